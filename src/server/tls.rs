//! TLS of the server: certificates, and taking new ones while it runs.
//!
//! A pair that cannot be used is told, and the one in use stays: a certificate that was
//! renewed badly shall not end the service. Connections keep what they began with.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

use arc_swap::ArcSwap;
use http::Version;
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        self, RootCertStore, ServerConfig,
        crypto::CryptoProvider,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
        server::WebPkiClientVerifier,
    },
    server::TlsStream,
};

use crate::access::{CertificateSubject, ClientCertificate};

/// What clients of gRPC speak, and browsers; others of them speak the second.
const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Where certificates are, each a PEM file.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The server's certificate, and those between it and its CA.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Clients must show a certificate that one of these has signed. None: they need none.
    pub client_ca: Option<PathBuf>,
}

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or has not what it is to have.
    #[error("{}: {why}", .path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The files do not fit together.
    #[error("{} and {} cannot be used together: {source}", .cert.display(), .key.display())]
    Pair {
        /// The certificate's.
        cert: PathBuf,
        /// The key's.
        key: PathBuf,
        /// What is wrong.
        source: rustls::Error,
    },
}

/// What a file was when it was looked at.
type Stamp = Option<(u64, SystemTime)>;

/// The certificates of a server that runs.
#[derive(Debug)]
pub struct ServerTls {
    files: TlsFiles,
    config: ArcSwap<ServerConfig>,
    seen: Mutex<Vec<Stamp>>,
}

impl ServerTls {
    /// Reads certificates.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn load(files: TlsFiles) -> Result<Arc<Self>, TlsError> {
        let seen = stamps(&files);
        let config = config(&files)?;
        Ok(Arc::new(Self {
            files,
            config: ArcSwap::from_pointee(config),
            seen: Mutex::new(seen),
        }))
    }

    /// Reads them again, if one of the files is another than it was.
    pub fn look(&self) {
        let now = stamps(&self.files);
        let changed = {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            let changed = *seen != now;
            *seen = now;
            changed
        };
        if changed {
            self.reload();
        }
    }

    /// Reads them again, and says how that went.
    pub fn reload(&self) {
        let cert = self.files.cert.display();
        match config(&self.files) {
            Ok(config) => {
                self.config.store(Arc::new(config));
                tracing::info!(%cert, "new connections get the certificate that was read again");
            }
            Err(error) => {
                tracing::error!(
                    %error,
                    "the certificate cannot be used: the one before stays in use"
                );
            }
        }
    }

    /// For a new connection.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.load_full())
    }
}

/// What a client has shown, which was verified in the handshake; none: nothing was asked for.
pub(super) fn client_certificate<IO>(stream: &TlsStream<IO>) -> Option<ClientCertificate> {
    let (_, connection) = stream.get_ref();
    let shown = connection.peer_certificates()?.first()?;
    Some(ClientCertificate {
        subject: CertificateSubject::of_certificate(shown),
    })
}

/// The version of HTTP that both sides agreed on; none: the client did not say what it knows.
pub(super) fn agreed_version<IO>(stream: &TlsStream<IO>) -> Option<Version> {
    let (_, connection) = stream.get_ref();
    match connection.alpn_protocol()? {
        protocol if protocol == ALPN[0] => Some(Version::HTTP_2),
        _ => Some(Version::HTTP_11),
    }
}

fn stamps(files: &TlsFiles) -> Vec<Stamp> {
    let paths = [
        Some(&files.cert),
        Some(&files.key),
        files.client_ca.as_ref(),
    ];
    let stamp = |path: &PathBuf| {
        let metadata = fs::metadata(path).ok()?;
        Some((metadata.len(), metadata.modified().ok()?))
    };
    paths.into_iter().flatten().map(stamp).collect()
}

fn config(files: &TlsFiles) -> Result<ServerConfig, TlsError> {
    let certs = certificates(&files.cert)?;
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|error| unusable(&files.key, error, "a private key"))?;
    let pair = |source| TlsError::Pair {
        cert: files.cert.clone(),
        key: files.key.clone(),
        source,
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions();
    let builder = builder.map_err(pair)?;
    let builder = match &files.client_ca {
        Some(path) => builder.with_client_cert_verifier(verifier(path, provider)?),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_single_cert(certs, key).map_err(pair)?;
    config.alpn_protocols = ALPN.map(<[u8]>::to_vec).to_vec();
    Ok(config)
}

fn verifier(
    path: &Path,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn rustls::server::danger::ClientCertVerifier>, TlsError> {
    let bad = |why: String| TlsError::File {
        path: path.to_owned(),
        why,
    };
    let mut roots = RootCertStore::empty();
    for cert in certificates(path)? {
        roots.add(cert).map_err(|error| bad(error.to_string()))?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| bad(error.to_string()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let certs: Vec<_> = read.map_err(|error| unusable(path, error, "a certificate"))?;
    if certs.is_empty() {
        return Err(TlsError::File {
            path: path.to_owned(),
            why: "there is no certificate in it".to_owned(),
        });
    }
    Ok(certs)
}

fn unusable(path: &Path, error: rustls::pki_types::pem::Error, what: &str) -> TlsError {
    use rustls::pki_types::pem::Error;
    let why = match error {
        Error::NoItemsFound => format!("there is no {} in it", what.trim_start_matches("a ")),
        Error::Io(error) if error.kind() == io::ErrorKind::NotFound => {
            "there is no such file".into()
        }
        Error::Io(error) => error.to_string(),
        error => format!("it cannot be read as {what} in PEM: {error}"),
    };
    TlsError::File {
        path: path.to_owned(),
        why,
    }
}
