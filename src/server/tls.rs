//! TLS of the server: certificates, and reloading them while it runs.
//!
//! If a new pair cannot be used, the error is logged and the current one stays in use: a bad
//! renewal must not end the service. The same holds for a certificate that has expired, is not
//! valid yet or is for other names, since clients would refuse it. Connections keep the certificate
//! that they began with.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use arc_swap::ArcSwap;
use http::Version;
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        self, RootCertStore, ServerConfig,
        crypto::CryptoProvider,
        pki_types::{
            CertificateDer, PrivateKeyDer,
            pem::{self, PemObject},
        },
        server::WebPkiClientVerifier,
    },
    server::TlsStream,
};

use super::certificate::{CertificateFacts, CertificateFault};
use treering_access::{CertificateSubject, ClientCertificate};
use treering_base::disk;
use treering_domain::TimestampMicros;

/// Clients of gRPC and most browsers speak the first, other HTTP clients the second.
const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The PEM files of certificates.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The server's certificate, followed by intermediate ones.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// CAs of client certificates, which are then required. `None`: not required.
    pub client_ca: Option<PathBuf>,
}

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read or has invalid content.
    #[error("{}: {why}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Certificate and key cannot be used together.
    #[error("{} and {} do not match: {source}", .cert.display(), .key.display())]
    Pair {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// What is wrong.
        source: rustls::Error,
    },
}

/// Size and change time of a file; `None` when it cannot be read.
type Stamp = Option<(u64, (i64, i64))>;

/// The certificates of a running server.
#[derive(Debug)]
pub struct ServerTls {
    files: TlsFiles,
    config: ArcSwap<ServerConfig>,
    /// Facts of the certificate in use.
    facts: ArcSwap<CertificateFacts>,
    seen: Mutex<Vec<Stamp>>,
}

impl ServerTls {
    /// Loads the certificates.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn load(files: TlsFiles) -> Result<Arc<Self>, TlsError> {
        let seen = stamps(&files);
        let (config, facts) = config(&files)?;
        Ok(Arc::new(Self {
            files,
            config: ArcSwap::from_pointee(config),
            facts: ArcSwap::from_pointee(facts),
            seen: Mutex::new(seen),
        }))
    }

    /// Reloads the certificates if one of the files has changed.
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

    /// Reloads the certificates and logs the outcome.
    pub fn reload(&self) {
        let cert = self.files.cert.display();
        match self.renewed() {
            Ok((config, facts)) => {
                self.config.store(Arc::new(config));
                self.facts.store(Arc::new(facts));
                tracing::info!(%cert, "certificates reloaded; they apply to new connections");
            }
            Err(error) => {
                tracing::error!(
                    %error,
                    "the new certificate is unusable: the old one stays in use"
                );
            }
        }
    }

    fn renewed(&self) -> Result<(ServerConfig, CertificateFacts), TlsError> {
        let (config, facts) = config(&self.files)?;
        let fits = facts.check_takes_place_of(&self.facts.load());
        fits.map_err(|fault| unfit(&self.files, &fault))?;
        Ok((config, facts))
    }

    /// Returns when the certificate in use ends, in seconds since 1970.
    #[must_use]
    pub fn ends_at_seconds(&self) -> u64 {
        self.facts.load().ends_at_seconds()
    }

    /// Returns the acceptor for a new connection.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.load_full())
    }
}

/// Returns the client's certificate, verified in the handshake, or `None` when none was requested.
pub(super) fn client_certificate<IO>(stream: &TlsStream<IO>) -> Option<ClientCertificate> {
    let (_, connection) = stream.get_ref();
    let shown = connection.peer_certificates()?.first()?;
    Some(ClientCertificate {
        subject: CertificateSubject::of_certificate(shown),
    })
}

/// Returns the HTTP version that was negotiated, or `None` when the client offered none.
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
        Some((metadata.len(), disk::changed_at(&metadata)))
    };
    paths.into_iter().flatten().map(stamp).collect()
}

fn unfit(files: &TlsFiles, fault: &CertificateFault) -> TlsError {
    TlsError::File {
        path: files.cert.clone(),
        why: fault.to_string(),
    }
}

/// Reads the files, and checks that clients would accept the certificate now.
fn config(files: &TlsFiles) -> Result<(ServerConfig, CertificateFacts), TlsError> {
    let certs = certificates(&files.cert)?;
    let own = certs.first().map_or(&[][..], |cert| cert);
    let now = Duration::from_micros(TimestampMicros::now().0.max(0).unsigned_abs());
    let facts = CertificateFacts::of(own).and_then(|facts| facts.check_time(now).map(|()| facts));
    let facts = facts.map_err(|fault| unfit(files, &fault))?;
    let key = private_key(&files.key)?;
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
    Ok((config, facts))
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

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let refused = |error| unusable(path, error, "a private key");
    let mut file = fs::File::open(path).map_err(|error| refused(pem::Error::Io(error)))?;
    let key = PrivateKeyDer::from_pem_reader(&mut file).map_err(refused)?;
    // Checked after parsing: a certificate passed by mistake as the key need not be secret.
    disk::check_secret(path, &file).map_err(|error| refused(pem::Error::Io(error)))?;
    Ok(key)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let certs: Vec<_> = read.map_err(|error| unusable(path, error, "a certificate"))?;
    if certs.is_empty() {
        return Err(TlsError::File {
            path: path.to_owned(),
            why: "the file has no certificate".to_owned(),
        });
    }
    Ok(certs)
}

fn unusable(path: &Path, error: rustls::pki_types::pem::Error, what: &str) -> TlsError {
    use rustls::pki_types::pem::Error;
    let why = match error {
        Error::NoItemsFound => format!("the file has no {}", what.trim_start_matches("a ")),
        Error::Io(error) if error.kind() == io::ErrorKind::NotFound => "no such file".into(),
        Error::Io(error) => error.to_string(),
        error => format!("not {what} in PEM format: {error}"),
    };
    TlsError::File {
        path: path.to_owned(),
        why,
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    /// Writes a pair for these names, valid for these years.
    fn put(files: &TlsFiles, names: &[&str], years: [i32; 2]) {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.not_before = date_time_ymd(years[0], 1, 1);
        params.not_after = date_time_ymd(years[1], 1, 1);
        let key = KeyPair::generate().unwrap();
        let cert = params.self_signed(&key).unwrap();
        fs::write(&files.cert, cert.pem()).unwrap();
        treering_base::disk::write(&files.key, key.serialize_pem().as_bytes()).unwrap();
    }

    fn files(dir: &Path) -> TlsFiles {
        TlsFiles {
            cert: dir.join("cert.pem"),
            key: dir.join("key.pem"),
            client_ca: None,
        }
    }

    // A certificate that has expired, is not valid yet or belongs to another host must not replace
    // a valid one: that would end the service for every client.
    #[test]
    fn invalid_certificate_does_not_replace_a_valid_one() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path());
        put(&files, &["db.example", "127.0.0.1"], [2020, 2090]);
        let tls = ServerTls::load(files.clone()).unwrap();
        let first = tls.config.load_full();
        for (names, years, why) in [
            (&["db.example"][..], [2020, 2021], "expired at 2021-01-01"),
            (&["db.example"], [2088, 2090], "not valid before 2088-01-01"),
            (
                &["web.example", "127.0.0.2"],
                [2020, 2090],
                "for 127.0.0.2, web.example",
            ),
        ] {
            put(&files, names, years);
            tls.reload();
            assert!(Arc::ptr_eq(&first, &tls.config.load_full()), "{why}");
            let error = tls.renewed().unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        assert_eq!(tls.ends_at_seconds(), 3_786_912_000, "2090-01-01");
        put(&files, &["*.example"], [2020, 2080]);
        tls.reload();
        assert!(!Arc::ptr_eq(&first, &tls.config.load_full()));
        assert_eq!(tls.ends_at_seconds(), 3_471_292_800, "2080-01-01");
    }

    // A server must not start with an expired certificate: the operator must see the error, not
    // each client.
    #[test]
    fn start_fails_with_an_expired_certificate() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path());
        for (years, why) in [([2020, 2021], "renew it"), ([2088, 2090], "clock")] {
            put(&files, &["db.example"], years);
            let error = ServerTls::load(files.clone()).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
