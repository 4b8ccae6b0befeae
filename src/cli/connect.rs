//! The way to a store. Commands always speak gRPC: to a server over the
//! network, or to the engine in this process through a pipe in memory. So
//! `--data` and `--server` give the same output by construction.

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
    Code, Request, Status,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity},
};

use super::{
    args::{Common, Credentials, Target},
    embedded::{self, Embedded},
    error::{CliError, Exit},
    keys::KeyArgument,
    pb,
    text::printable,
};
use crate::{
    access::{CallerProof, KeyRing},
    domain::Namespace,
    engine::{Dense, Engine, OpenMode, OpenOptions},
    server::{CERTIFICATE_KEY, certificate_word},
};

/// Pause before a folder that another process has is tried again.
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(30);
/// From here on it is said that a folder is waited for.
const QUIET_FOR: Duration = Duration::from_secs(1);
/// Metadata that names the tenant.
const NAMESPACE_METADATA: &str = "treering-namespace";
/// Metadata with the key.
const KEY_METADATA: &str = "authorization";
/// How long to wait for a server to answer the door.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes in flight on a stream: large results should not wait for windows.
const WINDOW_BYTES: u32 = 4 << 20;
/// Capacity of the in-memory pipe, each way.
const PIPE_BYTES: usize = 1 << 20;
/// Largest answer that is read: the server bounds what it sends.
const ANSWER_BYTES_MAX: usize = usize::MAX;

/// The transport that the generated clients use.
pub type Transport = InterceptedService<Channel, Tag>;

/// Puts the namespace, and who asks, on every request.
#[derive(Clone, Debug)]
pub struct Tag {
    namespace: MetadataValue<Ascii>,
    key: Option<MetadataValue<Ascii>>,
    /// Whose certificate another part of this process has seen.
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

/// How a folder is opened for a command.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// What for.
    pub mode: OpenMode,
    /// When its log is made dense.
    pub dense: Dense,
    /// The views are made from the log, whatever is in the folder.
    pub views_anew: bool,
}

/// Waiting for a folder that another process has.
#[derive(Debug)]
pub struct Waiting {
    began: Instant,
    wait: Duration,
    is_told: bool,
}

impl Waiting {
    /// For at most so long.
    #[must_use]
    pub fn new(wait: Duration) -> Self {
        Self {
            began: Instant::now(),
            wait,
            is_told: false,
        }
    }

    /// Returns when it is time to try again.
    ///
    /// # Errors
    /// The error itself, when it is another one than [`CliError::Locked`], or when it
    /// was waited long enough.
    pub async fn for_holder(&mut self, error: CliError) -> Result<(), CliError> {
        let is_locked = matches!(error, CliError::Locked { .. });
        if !is_locked || self.began.elapsed() >= self.wait {
            return Err(error);
        }
        if !self.is_told && self.began.elapsed() >= QUIET_FOR {
            self.is_told = true;
            anstream::eprintln!("Waiting: {}", printable(&error.to_string()));
        }
        tokio::time::sleep(TRY_AGAIN_AFTER).await;
        Ok(())
    }

    /// The same for what a server cannot do instead: while one has the folder, nothing
    /// is waited for, as servers do not end by themselves.
    ///
    /// # Errors
    /// As [`Waiting::for_holder`], and when a server has the folder.
    pub async fn for_command(&mut self, error: CliError) -> Result<(), CliError> {
        match error {
            CliError::Locked {
                server: Some(_), ..
            } => Err(error),
            error => self.for_holder(error).await,
        }
    }

    /// The same for what only works on a folder that nobody has: a server that has it is to
    /// be ended, not asked.
    ///
    /// # Errors
    /// As [`Waiting::for_command`].
    pub async fn for_folder_alone(&mut self, error: CliError) -> Result<(), CliError> {
        self.for_command(error).await.map_err(|error| match error {
            CliError::Locked {
                dir,
                holder,
                server: Some(url),
            } => CliError::Outcome {
                what: format!(
                    "the data folder {} is in use by {holder}, which serves it at {url}",
                    dir.display()
                ),
                hint: "end that server first: this works on the folder itself, and not through a \
                       server"
                    .into(),
                exit: Exit::Unavailable,
            },
            error => error,
        })
    }
}

/// A store that answers.
#[derive(Debug)]
pub struct Connection {
    channel: Channel,
    namespace: Namespace,
    tag: Tag,
    embedded: Option<Embedded>,
}

impl Connection {
    /// Connects to the store that the options name. What it is opened for holds for
    /// a folder, not for a server. A folder that another process has is waited for, or
    /// reached through the server that has it.
    ///
    /// # Errors
    /// [`CliError::Connect`] when no server answers, [`CliError::Locked`] when
    /// another process holds the folder, [`CliError::Open`] when it cannot be
    /// opened.
    pub async fn open(common: &Common, opening: Opening) -> Result<Self, CliError> {
        match common.target()? {
            Target::Server(url) => {
                Self::to_server_as(&url, &common.namespace, &common.credentials).await
            }
            Target::Data(dir) => {
                let is_new = opening.mode == OpenMode::Create && !has_store(&dir);
                let store = Self::to_folder(&dir, common, opening).await?;
                if is_new {
                    let dir = printable(&dir.display().to_string());
                    anstream::eprintln!("Made a new store in {dir}");
                }
                Ok(store)
            }
        }
    }

    /// Opens a folder in this process. While another process has it, waits; when that
    /// one serves it, goes through it.
    async fn to_folder(dir: &Path, common: &Common, opening: Opening) -> Result<Self, CliError> {
        let mut waiting = Waiting::new(common.wait);
        loop {
            let error = match Self::embedded(dir, &common.namespace, opening).await {
                Err(error) => error,
                opened => return opened,
            };
            if let CliError::Locked {
                server: Some(url), ..
            } = &error
                && !common.wait.is_zero()
                && let Some(store) = Self::to_holder(url, dir, common).await?
            {
                return Ok(store);
            }
            waiting.for_holder(error).await?;
        }
    }

    async fn embedded(dir: &Path, namespace: &str, opening: Opening) -> Result<Self, CliError> {
        let (namespace, tag) = tag(namespace, None)?;
        let (client, server) = pipes();
        let options = OpenOptions {
            mode: opening.mode,
            dense: opening.dense,
            views_anew: opening.views_anew,
            ..OpenOptions::new(dir)
        };
        let engine = embedded::open(options).await?;
        let embedded = Embedded::start(engine, None, None, None, server).await?;
        Ok(Self {
            channel: through_pipe(client).await?,
            namespace,
            tag,
            embedded: Some(embedded),
        })
    }

    /// Connects to an engine of this process that is served elsewhere, with the server's keys.
    /// Callers are asked for one as they are there: see [`Self::as_caller`].
    ///
    /// # Errors
    /// [`CliError::Connect`] when the pipe does not open.
    pub async fn to_engine(engine: Engine, keys: Arc<KeyRing>) -> Result<Self, CliError> {
        let (namespace, tag) = tag(Namespace::default().as_str(), None)?;
        let (client, server) = pipes();
        let embedded = Embedded::beside(engine, keys, server);
        Ok(Self {
            channel: through_pipe(client).await?,
            namespace,
            tag,
            embedded: Some(embedded),
        })
    }

    /// The same way, as somebody else: in this namespace, as whoever has shown this. Whoever has
    /// it does not end what it leads to.
    ///
    /// # Errors
    /// [`CliError::Usage`] for what is no namespace.
    pub fn as_caller(&self, namespace: &str, proof: &CallerProof) -> Result<Self, CliError> {
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

    /// The same way once more, for another task: whoever has it does not end what it leads to.
    #[must_use]
    pub fn share(&self) -> Self {
        Self {
            channel: self.channel.clone(),
            namespace: self.namespace.clone(),
            tag: self.tag.clone(),
            embedded: None,
        }
    }

    /// The server that a lock file names, if it answers and serves this very folder:
    /// the text may be that of a process that is gone.
    ///
    /// # Errors
    /// When it answers that a key is needed, or another one.
    async fn to_holder(url: &str, dir: &Path, common: &Common) -> Result<Option<Self>, CliError> {
        let store = Self::to_server_as(url, &common.namespace, &common.credentials).await;
        let Ok(store) = store else { return Ok(None) };
        let stats = match store.admin().stats(pb::StatsRequest {}).await {
            Ok(stats) => stats.into_inner(),
            Err(status) if is_about_keys(status.code()) => return Err(status.into()),
            Err(_) => return Ok(None),
        };
        let served = PathBuf::from(stats.data_dir);
        let canonical = |path: &Path| fs::canonicalize(path).ok();
        let is_same = served.is_absolute()
            && canonical(&served).is_some_and(|served| canonical(dir) == Some(served));
        Ok(is_same.then_some(store))
    }

    /// Connects to a server by its URL, without a key.
    ///
    /// # Errors
    /// As [`Self::to_server_as`].
    pub async fn to_server(url: &str, namespace: &str) -> Result<Self, CliError> {
        Self::to_server_as(url, namespace, &Credentials::default()).await
    }

    /// Connects to a server by its URL.
    ///
    /// # Errors
    /// [`CliError::Usage`] when the URL is none; [`CliError::ReadFile`] for a file of the
    /// credentials; [`CliError::Connect`] when nothing answers.
    pub async fn to_server_as(
        url: &str,
        namespace: &str,
        credentials: &Credentials,
    ) -> Result<Self, CliError> {
        let key = credentials.token.as_ref().map(KeyArgument::read);
        let key = key.transpose()?.flatten();
        if key.is_some() && is_open_to_others(url) {
            anstream::eprintln!(
                "WARNING: the key goes over the network unencrypted: use an https:// address"
            );
        }
        let (namespace, tag) = tag(namespace, key.as_deref())?;
        let endpoint = Endpoint::from_shared(url.to_owned()).map_err(|_| CliError::Usage {
            what: format!("`{url}` is not the address of a server"),
            hint: "give it as http://HOST:PORT, for example http://127.0.0.1:7171".into(),
        })?;
        let failed = |error: tonic::transport::Error| CliError::Connect {
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

    /// Ends the connection. When the engine ran in this process, waits until it
    /// has finished what it took.
    ///
    /// # Errors
    /// [`CliError::Outcome`] when the engine in this process ended badly.
    pub async fn close(self) -> Result<(), CliError> {
        drop(self.channel);
        match self.embedded {
            Some(embedded) => embedded.stop().await,
            None => Ok(()),
        }
    }

    /// True when the engine runs in this process, and ends with it.
    #[must_use]
    pub fn is_embedded(&self) -> bool {
        self.embedded.is_some()
    }

    /// The tenant of every request.
    #[must_use]
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// The log.
    #[must_use]
    pub fn events(&self) -> pb::events_client::EventsClient<Transport> {
        pb::events_client::EventsClient::new(self.transport())
            .max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// Conversations and branches.
    #[must_use]
    pub fn conversations(&self) -> pb::conversations_client::ConversationsClient<Transport> {
        pb::conversations_client::ConversationsClient::new(self.transport())
            .max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// Requests, compactions, active context, sub-contexts.
    #[must_use]
    pub fn contexts(&self) -> pb::contexts_client::ContextsClient<Transport> {
        pb::contexts_client::ContextsClient::new(self.transport())
            .max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// Tool calls.
    #[must_use]
    pub fn tools(&self) -> pb::tools_client::ToolsClient<Transport> {
        pb::tools_client::ToolsClient::new(self.transport())
            .max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// What is remembered under paths and keys.
    #[must_use]
    pub fn items(&self) -> pb::items_client::ItemsClient<Transport> {
        pb::items_client::ItemsClient::new(self.transport())
            .max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// Search.
    #[must_use]
    pub fn search(&self) -> pb::search_client::SearchClient<Transport> {
        pb::search_client::SearchClient::new(self.transport())
            .max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// The store itself.
    #[must_use]
    pub fn admin(&self) -> pb::admin_client::AdminClient<Transport> {
        pb::admin_client::AdminClient::new(self.transport())
            .max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// The log, for a backup.
    #[must_use]
    pub fn backups(&self) -> pb::backups_client::BackupsClient<Transport> {
        pb::backups_client::BackupsClient::new(self.transport())
            .max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// The connection itself, for services that are not among these.
    #[must_use]
    pub fn transport(&self) -> Transport {
        InterceptedService::new(self.channel.clone(), self.tag.clone())
    }
}

/// The folder of a store that holds its log.
const LOG_FOLDER: &str = "log";

/// True when a folder holds a store, or what is left of one.
#[must_use]
pub fn has_store(dir: &Path) -> bool {
    dir.join(LOG_FOLDER).exists()
}

/// True for what a server says of keys, and of nothing else.
fn is_about_keys(code: Code) -> bool {
    matches!(code, Code::Unauthenticated | Code::PermissionDenied)
}

/// True when others may hear what goes to this address.
fn is_open_to_others(url: &str) -> bool {
    let Some(uri) = url.parse::<http::Uri>().ok() else {
        return false;
    };
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let ip: Option<IpAddr> = host.parse().ok();
    let is_here = host == "localhost" || ip.is_some_and(|ip| ip.to_canonical().is_loopback());
    uri.scheme_str() == Some("http") && !is_here
}

/// How a server at an https:// address is known, and who asks it.
fn tls(url: &str, credentials: &Credentials) -> Result<Option<ClientTlsConfig>, CliError> {
    if !url.starts_with("https://") {
        if credentials.ca.is_some() || credentials.client_cert.is_some() {
            return Err(CliError::Usage {
                what: format!("{url} is not encrypted, and --ca or --client-cert is given"),
                hint: "give the server's address as https://HOST:PORT".into(),
            });
        }
        return Ok(None);
    }
    let read = |path: &PathBuf| {
        fs::read(path).map_err(|cause| CliError::ReadFile {
            path: path.clone(),
            cause,
        })
    };
    let mut tls = match &credentials.ca {
        Some(path) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(path)?)),
        None => ClientTlsConfig::new().with_webpki_roots(),
    };
    if let (Some(cert), Some(key)) = (&credentials.client_cert, &credentials.client_key) {
        tls = tls.identity(Identity::from_pem(read(cert)?, read(key)?));
    }
    Ok(Some(tls))
}

fn tag(namespace: &str, key: Option<&str>) -> Result<(Namespace, Tag), CliError> {
    let unusable = |cause: String| CliError::Usage {
        what: cause,
        hint: "a namespace has 1 to 64 of a-z A-Z 0-9 . _ -".into(),
    };
    let checked = Namespace::new(namespace).map_err(|error| unusable(error.to_string()))?;
    let value = MetadataValue::try_from(namespace).map_err(|error| unusable(error.to_string()))?;
    let key = key.and_then(|key| {
        let mut value = MetadataValue::try_from(format!("Bearer {key}")).ok()?;
        // Not in the debug output of anything that holds it.
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

/// The server's ends of the in-memory pipes, as a listener would give them.
type Incoming = UnboundedReceiverStream<std::io::Result<DuplexStream>>;
type Dial = mpsc::UnboundedSender<std::io::Result<DuplexStream>>;

fn pipes() -> (Dial, Incoming) {
    let (dial, incoming) = mpsc::unbounded_channel();
    (dial, UnboundedReceiverStream::new(incoming))
}

async fn through_pipe(dial: Dial) -> Result<Channel, CliError> {
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
        .map_err(|error| CliError::Connect {
            url: "in-process".into(),
            cause: innermost(&error),
        })
}

/// What really happened: transports wrap it several times.
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

    /// Whoever sends a key over a network that others hear must be told; on this machine,
    /// and encrypted, there is nothing to tell.
    #[test]
    fn open_ways_are_told_from_others() {
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
