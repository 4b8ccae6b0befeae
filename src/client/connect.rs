//! Connects to a store. Commands always use gRPC: to a server over the network, or to an engine in
//! this process through an in-memory pipe. This is why `--data` and `--server` give the same
//! output.

use std::{
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use hyper_util::rt::TokioIo;
use tokio::{io::DuplexStream, sync::mpsc};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity},
};

use super::{
    embedded::{self, EmbeddedEngine},
    error::{ClientError, Exit},
    holder,
    options::{ConnectOptions, Credentials, Target},
    pb,
    safe::tell,
};
use treering_access::{CallerProof, KeyStore};
use treering_base::disk;
use treering_domain::Namespace;
use treering_engine::{OpenMode, OpenOptions, PackingMode};
use treering_server::{CERTIFICATE_KEY, ConnectionStream, ServedStore, certificate_word};

/// Pause between attempts to open a folder that another process holds.
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(30);
/// A wait for a folder that lasts longer than this is reported to the user.
const QUIET_FOR: Duration = Duration::from_secs(1);
/// Metadata key of the namespace.
const NAMESPACE_METADATA: &str = "treering-namespace";
/// Metadata key of the API key.
const KEY_METADATA: &str = "authorization";
/// Timeout for connecting to a server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// HTTP/2 window in bytes: large, so that big results do not wait for window updates.
const WINDOW_BYTES: u32 = 4 << 20;
/// Capacity of the in-memory pipe in bytes, each way.
const PIPE_BYTES: usize = 1 << 20;
/// Largest answer that a client decodes, in bytes. Not limited here: the server limits its answers.
const ANSWER_BYTES_MAX: usize = usize::MAX;

/// The transport that the generated clients use.
pub type Transport = InterceptedService<Channel, Tag>;

/// Adds the namespace and the caller's proof to every request.
#[derive(Clone, Debug)]
pub struct Tag {
    namespace: MetadataValue<Ascii>,
    key: Option<MetadataValue<Ascii>>,
    /// The client certificate of the caller, as verified by another part of this process.
    certificate: Option<MetadataValue<Ascii>>,
}

impl Interceptor for Tag {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let metadata = request.metadata_mut();
        metadata.insert(NAMESPACE_METADATA, self.namespace.clone());
        if let Some(key) = &self.key {
            metadata.insert(KEY_METADATA, key.clone());
        }
        if let Some(certificate) = &self.certificate {
            metadata.insert(CERTIFICATE_KEY, certificate.clone());
        }
        Ok(request)
    }
}

/// How a command opens a folder.
#[derive(Clone, Copy, Debug)]
pub struct FolderOptions {
    /// Whether the folder is created, read or written.
    pub mode: OpenMode,
    /// When the log is packed.
    pub packing: PackingMode,
    /// Rebuild the projections from the log, even if the folder has some.
    pub fresh_projections: bool,
    /// Whether to search by meaning too, with the embedder that the environment names, as `serve`
    /// does.
    pub with_meaning: bool,
}

/// A wait for a folder that another process holds.
#[derive(Debug)]
pub struct FolderWait {
    began: Instant,
    wait: Duration,
    is_told: bool,
}

impl FolderWait {
    /// Starts a wait of at most `wait`.
    #[must_use]
    pub fn new(wait: Duration) -> Self {
        Self {
            began: Instant::now(),
            wait,
            is_told: false,
        }
    }

    /// Sleeps briefly and returns when it is time to try again.
    ///
    /// # Errors
    /// Returns `error` itself if it is not [`ClientError::Locked`], or if the wait is over.
    pub(crate) async fn for_holder(&mut self, error: ClientError) -> Result<(), ClientError> {
        let is_locked = matches!(error, ClientError::Locked { .. });
        if !is_locked || self.began.elapsed() >= self.wait {
            return Err(error);
        }
        if !self.is_told && self.began.elapsed() >= QUIET_FOR {
            self.is_told = true;
            tell!("Waiting: {error}");
        }
        tokio::time::sleep(TRY_AGAIN_AFTER).await;
        Ok(())
    }

    /// Like `FolderWait::for_holder`, for work that cannot go through a server. Does not wait while
    /// a server holds the folder, because a server does not stop on its own.
    ///
    /// # Errors
    /// As `FolderWait::for_holder`, and when a server has the folder.
    pub async fn for_command(&mut self, error: ClientError) -> Result<(), ClientError> {
        match error {
            ClientError::Locked {
                server: Some(_), ..
            } => Err(error),
            error => self.for_holder(error).await,
        }
    }

    /// Like [`FolderWait::for_command`], for work that must be the only user of the folder. When a
    /// server holds it, the error says to stop that server.
    ///
    /// # Errors
    /// As [`FolderWait::for_command`].
    pub async fn for_folder_alone(&mut self, error: ClientError) -> Result<(), ClientError> {
        self.for_command(error).await.map_err(|error| match error {
            ClientError::Locked {
                dir,
                holder,
                server: Some(url),
            } => ClientError::Outcome {
                what: format!(
                    "data folder {} is in use by {holder}, which serves it at {url}",
                    dir.display()
                ),
                hint: "stop that server first: this command works on the folder itself, not \
                       through a server"
                    .into(),
                exit: Exit::Unavailable,
            },
            error => error,
        })
    }
}

/// An open connection to a store.
#[derive(Debug)]
pub struct Connection {
    channel: Channel,
    namespace: Namespace,
    tag: Tag,
    embedded: Option<EmbeddedEngine>,
}

impl Connection {
    /// Connects to the store that the options name. `opening` applies to a folder and is ignored
    /// for a server. If another process holds the folder, waits for it, or connects to the server
    /// that holds it.
    ///
    /// # Errors
    /// [`ClientError::Connect`] when no server answers, [`ClientError::Locked`] when another
    /// process holds the folder, [`ClientError::Open`] when it cannot be opened.
    pub async fn open(
        options: &ConnectOptions,
        opening: FolderOptions,
    ) -> Result<Self, ClientError> {
        match &options.target {
            Target::Server(url) => {
                Self::to_server_as(url, &options.namespace, &options.credentials).await
            }
            Target::Data(dir) => {
                let is_new = opening.mode == OpenMode::Create && !has_store(dir);
                let store = Self::to_folder(dir, options, opening).await?;
                if is_new {
                    tell!("Created a new store in {}", dir.display());
                }
                Ok(store)
            }
        }
    }

    /// Opens a folder in this process. While another process holds it, waits; if that process
    /// serves it, connects to that server.
    async fn to_folder(
        dir: &Path,
        options: &ConnectOptions,
        opening: FolderOptions,
    ) -> Result<Self, ClientError> {
        let mut waiting = FolderWait::new(options.wait);
        loop {
            let error = match Self::embedded(dir, &options.namespace, opening).await {
                Err(error) => error,
                opened => return opened,
            };
            if let ClientError::Locked {
                server: Some(url), ..
            } = &error
                && !options.wait.is_zero()
                && let Some(store) =
                    holder::connect(url, dir, &options.namespace, &options.credentials).await?
            {
                return Ok(store);
            }
            waiting.for_holder(error).await?;
        }
    }

    async fn embedded(
        dir: &Path,
        namespace: &str,
        opening: FolderOptions,
    ) -> Result<Self, ClientError> {
        let (namespace, tag) = tag(namespace, None)?;
        let (client, server) = pipes();
        let embedder = match opening.with_meaning {
            true => embedded::embedder_of_environment()?,
            false => None,
        };
        let options = OpenOptions {
            embedder,
            mode: opening.mode,
            packing: opening.packing,
            fresh_projections: opening.fresh_projections,
            ..OpenOptions::new(dir)
        };
        let engine = embedded::open(options).await?;
        let embedded = EmbeddedEngine::start(engine, None, None, None, server).await?;
        Ok(Self {
            channel: through_pipe(client).await?,
            namespace,
            tag,
            embedded: Some(embedded),
        })
    }

    /// Connects to a store that a server of this process serves already. `keys` are the keys of
    /// that server. Calls need the same authentication as calls to that server: see
    /// [`Self::as_caller`].
    ///
    /// # Errors
    /// [`ClientError::Connect`] when the pipe does not open.
    pub async fn beside(store: ServedStore, keys: Arc<KeyStore>) -> Result<Self, ClientError> {
        let (namespace, tag) = tag(Namespace::default().as_str(), None)?;
        let (client, server) = pipes();
        let embedded = EmbeddedEngine::beside(store, keys, server);
        Ok(Self {
            channel: through_pipe(client).await?,
            namespace,
            tag,
            embedded: Some(embedded),
        })
    }

    /// Returns a connection over the same channel for another caller, with its namespace and proof.
    /// Closing it does not stop the engine.
    ///
    /// # Errors
    /// [`ClientError::Usage`] when `namespace` is not valid.
    pub fn as_caller(&self, namespace: &str, proof: &CallerProof) -> Result<Self, ClientError> {
        let key = match proof {
            CallerProof::Key(key) => Some(key.as_str()),
            CallerProof::Nothing | CallerProof::Certificate(_) => None,
        };
        let (namespace, mut tag) = tag(namespace, key)?;
        if let CallerProof::Certificate(subject) = proof {
            tag.certificate = MetadataValue::try_from(certificate_word(subject)).ok();
        }
        Ok(Self {
            channel: self.channel.clone(),
            namespace,
            tag,
            embedded: None,
        })
    }

    /// Returns the same connection for use in another task. Closing it does not stop the engine.
    #[must_use]
    pub fn share(&self) -> Self {
        Self {
            channel: self.channel.clone(),
            namespace: self.namespace.clone(),
            tag: self.tag.clone(),
            embedded: None,
        }
    }

    /// Adds the key of the credentials. A server gets the key only after it has proved, in calls
    /// without the key, that it holds the folder.
    ///
    /// # Errors
    /// [`ClientError::ReadFile`] when the key cannot be read.
    pub(super) fn with_key(self, credentials: &Credentials) -> Result<Self, ClientError> {
        let (namespace, tag) = tag(self.namespace.as_str(), credentials.key()?.as_deref())?;
        Ok(Self {
            namespace,
            tag,
            ..self
        })
    }

    /// Connects to a server by its URL, without a key.
    ///
    /// # Errors
    /// As [`Self::to_server_as`].
    pub async fn to_server(url: &str, namespace: &str) -> Result<Self, ClientError> {
        Self::to_server_as(url, namespace, &Credentials::default()).await
    }

    /// Connects to a server by its URL.
    ///
    /// # Errors
    /// [`ClientError::Usage`] when the URL is malformed; [`ClientError::ReadFile`] when a file of
    /// the credentials cannot be read; [`ClientError::Connect`] when nothing answers.
    pub async fn to_server_as(
        url: &str,
        namespace: &str,
        credentials: &Credentials,
    ) -> Result<Self, ClientError> {
        let key = credentials.key()?;
        if key.is_some() && is_open_to_others(url) {
            tell!("WARNING: the key goes over the network unencrypted: use an https:// address");
        }
        let (namespace, tag) = tag(namespace, key.as_deref())?;
        let endpoint = Endpoint::from_shared(url.to_owned()).map_err(|_| ClientError::Usage {
            what: format!("`{url}` is not a server address"),
            hint: "use the form http://HOST:PORT, for example http://127.0.0.1:7171".into(),
        })?;
        let failed = |error: tonic::transport::Error| ClientError::Connect {
            url: url.to_owned(),
            cause: innermost(&error),
        };
        let endpoint = match tls(url, credentials)? {
            Some(tls) => endpoint.tls_config(tls).map_err(failed)?,
            None => endpoint,
        };
        let channel = tuned(endpoint)
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .connect()
            .await
            .map_err(failed)?;
        Ok(Self {
            channel,
            namespace,
            tag,
            embedded: None,
        })
    }

    /// Closes the connection. If the engine runs in this process, waits until it has finished the
    /// work that it accepted.
    ///
    /// # Errors
    /// [`ClientError::Outcome`] when the engine in this process failed.
    pub async fn close(self) -> Result<(), ClientError> {
        drop(self.channel);
        match self.embedded {
            Some(embedded) => embedded.stop().await,
            None => Ok(()),
        }
    }

    /// True when the engine runs in this process and stops with this connection.
    #[must_use]
    pub fn is_embedded(&self) -> bool {
        self.embedded.is_some()
    }

    /// Returns the namespace of every request.
    #[must_use]
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Returns a client for the log.
    #[must_use]
    pub fn events(&self) -> pb::events_client::EventsClient<Transport> {
        pb::events_client::EventsClient::new(self.transport())
            .max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// Returns a client for conversations and branches.
    #[must_use]
    pub fn conversations(&self) -> pb::conversations_client::ConversationsClient<Transport> {
        pb::conversations_client::ConversationsClient::new(self.transport())
            .max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// Returns a client for requests, compactions, active context and sub-contexts.
    #[must_use]
    pub fn contexts(&self) -> pb::contexts_client::ContextsClient<Transport> {
        pb::contexts_client::ContextsClient::new(self.transport())
            .max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// Returns a client for tool calls.
    #[must_use]
    pub fn tools(&self) -> pb::tools_client::ToolsClient<Transport> {
        pb::tools_client::ToolsClient::new(self.transport())
            .max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// Returns a client for items, which are stored under paths and keys.
    #[must_use]
    pub fn items(&self) -> pb::items_client::ItemsClient<Transport> {
        pb::items_client::ItemsClient::new(self.transport())
            .max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// Returns a client for search.
    #[must_use]
    pub fn search(&self) -> pb::search_client::SearchClient<Transport> {
        pb::search_client::SearchClient::new(self.transport())
            .max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// Returns a client for administration of the store.
    #[must_use]
    pub fn admin(&self) -> pb::admin_client::AdminClient<Transport> {
        pb::admin_client::AdminClient::new(self.transport())
            .max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// Returns a client for reading the log for a backup.
    #[must_use]
    pub fn backups(&self) -> pb::backups_client::BackupsClient<Transport> {
        pb::backups_client::BackupsClient::new(self.transport())
            .max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// Returns the transport, for services without a method here.
    #[must_use]
    pub fn transport(&self) -> Transport {
        InterceptedService::new(self.channel.clone(), self.tag.clone())
    }
}

/// Folder inside a store that holds its log.
const LOG_FOLDER: &str = "log";

/// True when the folder holds a store or the remains of one.
#[must_use]
pub fn has_store(dir: &Path) -> bool {
    dir.join(LOG_FOLDER).exists()
}

/// True when traffic to this address is unencrypted and leaves this machine.
fn is_open_to_others(url: &str) -> bool {
    url.starts_with("http:") && !is_of_this_machine(url)
}

/// True when this address is a loopback address.
pub(crate) fn is_of_this_machine(url: &str) -> bool {
    let Ok(uri) = url.parse::<http::Uri>() else {
        return false;
    };
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let ip: Option<IpAddr> = host.parse().ok();
    host == "localhost" || ip.is_some_and(|ip| ip.to_canonical().is_loopback())
}

/// Returns the TLS settings for an https:// address: the trusted CA and the client certificate.
fn tls(url: &str, credentials: &Credentials) -> Result<Option<ClientTlsConfig>, ClientError> {
    if !url.starts_with("https://") {
        if credentials.ca.is_some() || credentials.client_cert.is_some() {
            return Err(ClientError::Usage {
                what: format!("{url} is not encrypted, but --ca or --client-cert is given"),
                hint: "use an address of the form https://HOST:PORT".into(),
            });
        }
        return Ok(None);
    }
    let unread = |path: &Path| {
        let path = path.to_owned();
        move |cause| ClientError::ReadFile { path, cause }
    };
    let read = |path: &PathBuf| fs::read(path).map_err(unread(path));
    let secret = |path: &PathBuf| disk::read_secret(path).map_err(unread(path));
    let mut tls = match &credentials.ca {
        Some(path) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(path)?)),
        None => ClientTlsConfig::new().with_webpki_roots(),
    };
    if let (Some(cert), Some(key)) = (&credentials.client_cert, &credentials.client_key) {
        tls = tls.identity(Identity::from_pem(read(cert)?, secret(key)?));
    }
    Ok(Some(tls))
}

fn tag(namespace: &str, key: Option<&str>) -> Result<(Namespace, Tag), ClientError> {
    let unusable = |cause: String| ClientError::Usage {
        what: cause,
        hint: "a namespace has 1 to 64 characters of a-z A-Z 0-9 . _ -".into(),
    };
    let checked = Namespace::new(namespace).map_err(|error| unusable(error.to_string()))?;
    let value = MetadataValue::try_from(namespace).map_err(|error| unusable(error.to_string()))?;
    let key = key.and_then(|key| {
        let mut value = MetadataValue::try_from(format!("Bearer {key}")).ok()?;
        // Keeps the value out of debug output.
        value.set_sensitive(true);
        Some(value)
    });
    let tag = Tag {
        namespace: value,
        key,
        certificate: None,
    };
    Ok((checked, tag))
}

fn tuned(endpoint: Endpoint) -> Endpoint {
    endpoint
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(2 * WINDOW_BYTES)
}

type Dial = mpsc::UnboundedSender<std::io::Result<DuplexStream>>;

fn pipes() -> (Dial, ConnectionStream) {
    let (dial, incoming) = mpsc::unbounded_channel();
    (
        dial,
        ConnectionStream::pipes(UnboundedReceiverStream::new(incoming)),
    )
}

async fn through_pipe(dial: Dial) -> Result<Channel, ClientError> {
    let connector = tower::service_fn(move |_| {
        let dial = dial.clone();
        async move {
            let (near, far) = tokio::io::duplex(PIPE_BYTES);
            dial.send(Ok(far))
                .map_err(|_| std::io::Error::from(std::io::ErrorKind::ConnectionRefused))?;
            Ok::<_, std::io::Error>(TokioIo::new(near))
        }
    });
    tuned(Endpoint::from_static("http://in-process"))
        .connect_with_connector(connector)
        .await
        .map_err(|error| ClientError::Connect {
            url: "in-process".into(),
            cause: innermost(&error),
        })
}

/// Returns the innermost source of the error: transports wrap the real cause several times.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sending a key unencrypted over a network must give a warning; loopback and TLS must not.
    #[test]
    fn plaintext_to_a_remote_host_is_reported() {
        for (url, open) in [
            ("http://127.0.0.1:7171", false),
            ("http://[::1]:7171", false),
            ("http://localhost:7171", false),
            ("https://db.example:7171", false),
            ("http://db.example:7171", true),
            ("http://10.0.0.7:7171", true),
            ("http://127.0.0.1.example:1", true),
        ] {
            assert_eq!(is_open_to_others(url), open, "{url}");
        }
    }
}
