//! `serve`: serves a store on a network address until it is stopped.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

use clap::Args;
use futures::{
    FutureExt,
    future::{self, Either},
};
use serde_json::json;
use tokio::{net::TcpListener, sync::oneshot};

use super::{
    LogMode,
    args::Common,
    backup::BackupJob,
    cluster::{ClusterArgs, NodeParts},
    connect::FolderWait,
    embedded::{self, EmbeddedEngine, ListenEndpoint},
    embedder_args::EmbedderArgs,
    error::ClientError,
    heads::KeepHeadsArgs,
    holder, keys, log_to_stderr,
    observe::{
        ObserveArgs, Observer, of_backup, of_certificate, of_heads, of_summariser, of_traces,
    },
    output::{Out, Tone},
    quota::{QuotaArg, quotas},
    retention::{RetentionPolicy, run_policy},
    safe::tell,
    summariser::SummariserArgs,
    web::{Web, WebArgs, WebOptions},
};
use treering_access::KeyStore;
use treering_domain::limits::MEMORY_OF_FILES_BYTES;
use treering_engine::{Engine, OpenOptions};
use treering_mcp::MCP_PATH;
use treering_server::{
    ConnectionStream, ServeOptions, ServerMeasures,
    tls::{ServerTls, TlsFiles},
};
use treering_summariser::SummariserConfig;

/// The default port.
const PORT: u16 = 7171;

/// Returns the default address: this machine only.
pub(crate) fn listen_default() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, PORT).into()
}

/// Serve a store over gRPC, with web pages for people and MCP for agents
///
/// In a browser, the address shows what agents did (--no-inspector disables that). At /mcp, agents
/// search the store by the Model Context Protocol (--no-mcp).
///
/// Runs until Ctrl-C or SIGTERM, then finishes accepted requests. Reflection and health checks are
/// enabled. Before the first key is created (treering keys create), everyone who reaches the port
/// can read and write everything, so by default it listens on this machine only. Binding to a
/// non-loopback address requires keys and TLS, or --insecure.
///
/// New and revoked keys take effect at once. Certificates are read again when their files change,
/// and on SIGHUP; if the new pair is invalid, that is logged and the old one stays.
///
/// With --json it prints one line when it is ready, {"serving": URL, "data": DIR, "pid": N,
/// "version": V, "metrics": URL or null, "mcp": URL or null, "inspector": URL or null}, or, if
/// another process has the store open, {"locked_by": WHO, "server": URL or null, "data": DIR}, and
/// exits with 5. It waits for another command (--wait), but not for another server.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering serve --data ./store
  treering serve --data ./store --listen 127.0.0.1:9000
  treering serve --data ./store --listen 127.0.0.1:0 --json --until-stdin-closes
  treering serve --data ./store --listen 0.0.0.0:7171 --tls-cert server.pem --tls-key server.key
  treering serve --data ./store --backup /mnt/backups
  treering serve --data ./store --heads 60s --heads-to https://audit.example/heads
  treering serve --data ./store --metrics 127.0.0.1:9464
  treering serve --data ./store --quota '*=1GiB,10000' --quota team-a=50GiB
  treering serve --data ./store --otlp-endpoint http://127.0.0.1:4317 --otlp-ratio 0.05
  treering serve --data ./store --mcp-writable
  treering serve --data ./store --web-host agents.example
  treering serve --data ./store --embedder ./minilm
  treering serve --data ./a --cluster postgres://node@db/treering --node a --advertise 10.0.0.1:7171
  treering serve --config /etc/treering/treering.toml
  treering serve --data ./store --summariser-url http://127.0.0.1:11434/v1 --summariser-model qwen3
  grpcurl -plaintext 127.0.0.1:7171 list")]
pub(crate) struct ServeArgs {
    /// Address to listen on; port 0 takes any free one. A non-loopback address requires keys and
    /// TLS, or --insecure
    #[arg(long, value_name = "ADDR", default_value_t = listen_default())]
    listen: SocketAddr,
    /// PEM file with the server's certificate and intermediate certificates
    #[arg(long, value_name = "FILE", requires = "tls_key", help_heading = "TLS")]
    tls_cert: Option<PathBuf>,
    /// PEM file with the server's private key
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "TLS")]
    tls_key: Option<PathBuf>,
    /// Accept only clients with a certificate signed by one of these CAs (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "TLS")]
    client_ca: Option<PathBuf>,
    /// Listen on a non-loopback address without keys or TLS: everyone who reaches it, or can listen
    /// in, may read and write everything
    #[arg(long, help_heading = "TLS")]
    insecure: bool,
    /// Also stop when standard input ends. A program that starts a server holds the other end, so
    /// the server ends with it, however it ends
    #[arg(long)]
    until_stdin_closes: bool,
    /// Memory for caches: states, records, windows of requests, pages of files. The program itself
    /// and requests in progress need additional memory
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = memory)]
    memory: usize,
    /// Store a keyed hash in place of each actor, correlation id and idempotency key, which erasing
    /// does not remove. Once set, this stays on for the store. The key is in `pseudonyms.key` in
    /// its folder: keep a copy of that file apart from copies of the store
    #[arg(long)]
    pseudonyms: bool,
    /// Once a day, erase the conversations of a namespace whose retention time is over:
    /// `NAMESPACE:keep_days=365,keep_sealed_days=90,label.team=red`. First check what `treering
    /// erase --keep-days 365 --dry-run` would erase
    #[arg(long, value_name = "POLICY")]
    retention: Vec<RetentionPolicy>,
    /// Quota of a namespace: `NAMESPACE=BYTES,CONVERSATIONS`, for example team-a=10GiB,1000; may be
    /// given several times. `*` stands for every other namespace, `none` for no limit. Above it,
    /// appends are refused; reads still work
    #[arg(long, value_name = "QUOTA")]
    quota: Vec<QuotaArg>,
    /// Keep a copy of the store in this folder or bucket, up to date to about a second. See
    /// `treering backup --help`
    #[arg(long, value_name = "TO")]
    backup: Option<String>,
    /// Encrypt the backup with the key in this file
    #[arg(long, value_name = "FILE", env = "TREERING_BACKUP_KEY_FILE")]
    backup_key_file: Option<PathBuf>,
    /// Read options from this TOML file (or $TREERING_CONFIG), by their names. Precedence: flags,
    /// then environment variables (for example TREERING_LISTEN), then the file
    #[arg(long, value_name = "FILE")]
    config: Option<std::path::PathBuf>,
    /// Do not receive spans of agents by OTLP. Otherwise, the conversations in traces that a writer
    /// sends here (OTEL_EXPORTER_OTLP_ENDPOINT) are recorded
    #[arg(long)]
    no_otlp_receiver: bool,
    #[command(flatten)]
    embedders: EmbedderArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    heads: KeepHeadsArgs,
    #[command(flatten)]
    observe: ObserveArgs,
    #[command(flatten)]
    web: WebArgs,
    #[command(flatten)]
    summariser: SummariserArgs,
}

/// Minimum memory, in bytes: for pages of files, and a little for the rest.
const MEMORY_MIN: usize = MEMORY_OF_FILES_BYTES + (4 << 20);

/// Parses a size in bytes, MiB or GiB.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let takes = || "expected bytes, MiB or GiB, for example 256MiB".to_owned();
    let (number, unit) = match text.find(|c: char| !c.is_ascii_digit()) {
        Some(at) => text.split_at(at),
        None => (text, ""),
    };
    let unit: u64 = match unit.trim() {
        "" => 1,
        "MiB" | "M" => 1 << 20,
        "GiB" | "G" => 1 << 30,
        _ => return Err(takes()),
    };
    let number = number.parse::<u64>().ok();
    number
        .and_then(|number| number.checked_mul(unit))
        .ok_or_else(takes)
}

fn memory(text: &str) -> Result<usize, String> {
    match usize::try_from(size(text)?) {
        Ok(bytes) if bytes >= MEMORY_MIN => Ok(bytes),
        _ => Err(format!("at least {}MiB are required", MEMORY_MIN >> 20)),
    }
}

/// Serves until it is stopped.
///
/// # Errors
/// [`ClientError::Listen`], [`ClientError::Locked`], [`ClientError::Open`].
pub(crate) async fn run(
    args: &ServeArgs,
    common: &Common,
    out: &mut Out,
) -> Result<(), ClientError> {
    let traces = args.observe.traces()?;
    log_to_stderr(LogMode::Served {
        traces: traces.as_deref(),
    });
    let dir = common.data_dir()?;
    let quotas = quotas(&args.quota)?;
    let keys = keys_of(&dir)?;
    let tls = args.certificates()?;
    if let Some(url) = &args.cluster.cluster {
        args.check()?;
        let listener = listen(args.listen).await?;
        let observer = args.observe.observer(None).await?;
        let mut parts = args.node_parts(&dir, keys, listener, observer)?;
        parts.serve.tls = tls;
        let stop = future::select(Box::pin(stop_signal()), stdin_end(args.until_stdin_closes));
        return args.cluster.serve(url, parts, stop.map(drop), out).await;
    }
    check_reach(args, &keys)?;
    let listener = listen(args.listen).await?;
    let observer = args.observe.observer(traces.clone()).await?;
    let summariser = args.summariser.config(&dir)?;
    let following = match &args.backup {
        Some(to) => Some(BackupJob::prepare(to, args.backup_key_file.clone())?),
        None => None,
    };
    let heads = args.heads.prepare(&dir)?;
    let summarises = summariser.is_some();
    let mut options = OpenOptions::new(&dir);
    options.limits.memory_bytes = args.memory;
    options.pseudonyms = args.pseudonyms;
    options.quotas = quotas;
    options.limits.disk_floor_bytes = args.observe.disk_floor();
    args.embedders.open(&mut options)?;
    let engine = match once_free(options, common).await {
        Ok(engine) => engine,
        Err(error) => {
            report_holder(&error, common, out).await?;
            return Err(error);
        }
    };
    if let Err(refused) = keys::check_are_there(&engine, &keys, args.insecure).await {
        engine.close().await;
        return Err(refused);
    }
    let heads = match heads.map(|heads| heads.start(&engine, &dir)).transpose() {
        Ok(heads) => heads,
        Err(refused) => {
            engine.close().await;
            return Err(refused);
        }
    };
    let retaining = tokio::spawn(run_policy(engine.clone(), args.retention.clone()));
    let following = following.map(|following| following.start(&engine));
    let summaries = summariser
        .as_ref()
        .map(|config| Arc::clone(&config.measures));
    let parts = ServerParts {
        keys,
        tls: tls.clone(),
        web: args.web.options(),
        takes_spans: !args.no_otlp_receiver,
        summariser,
        measures: Some(observer.measures()),
    };
    let served = RunningServer::of(engine.clone(), listener, parts).await?;
    let reload = tokio::spawn(reload_on_hangup(tls.clone()));
    let metrics = observer.url();
    let mut more = summaries.map(of_summariser).unwrap_or_default();
    if let Some(following) = &following {
        more.extend(of_backup(following.reached()));
    }
    if let Some(heads) = &heads {
        more.extend(of_heads(heads.measures()));
    }
    if let Some(traces) = &traces {
        more.extend(of_traces(traces.measures()));
    }
    more.extend(tls.clone().map(of_certificate));
    let observed = observer.start(&engine, more);
    drop(engine);
    let stop = future::select(Box::pin(stop_signal()), stdin_end(args.until_stdin_closes));
    if out.json {
        out.line(json!({
            "serving": served.url(),
            "data": dir.to_string_lossy(),
            "pid": std::process::id(),
            "version": env!("CARGO_PKG_VERSION"),
            "metrics": metrics,
            "mcp": served.agents(),
            "inspector": served.inspector(),
        }))?;
    } else {
        let url = out.paint.text(Tone::Name, served.url());
        out.line(format!("Serving {} at {url}", dir.display()))?;
        if let Some(pages) = served.inspector() {
            out.line(format!("To inspect it, open {pages} in a browser"))?;
        }
        if let Some(metrics) = metrics {
            out.line(format!("Metrics are at {metrics}"))?;
        }
        if let Some(agents) = served.agents() {
            out.line(format!("Agents connect to {agents} (MCP)"))?;
        }
        if let Some(at) = args.embedders.at() {
            out.line(format!("Texts are embedded by {at}."))?;
        }
        if summarises {
            out.line("A model summarises new events.")?;
        }
        if let Some(to) = &args.backup {
            out.line(format!("A backup is kept in {to}."))?;
        }
        if let Some(heads) = &heads {
            out.line(format!("Signed heads go to {}.", heads.address()))?;
        }
        out.line("Ctrl-C ends it.")?;
    }
    out.flush()?;
    stop.await;
    retaining.abort();
    reload.abort();
    if let Some(following) = following {
        following.stop().await;
    }
    if let Some(heads) = heads {
        heads.stop().await;
    }
    drop(observed);
    let stopped = served.stop().await;
    if let Some(traces) = traces {
        traces.stop().await;
    }
    stopped
}

impl ServeArgs {
    /// Checks the options that do not depend on the store.
    ///
    /// # Errors
    /// [`ClientError::Usage`] for the first error.
    pub(crate) fn check(&self) -> Result<(), ClientError> {
        quotas(&self.quota)?;
        self.certificates()?;
        if self.insecure {
            return Ok(());
        }
        let tls = self.tls_cert.is_some();
        // Whether there are keys depends on the store, so this check assumes that there are keys.
        match missing(self.listen, true, tls) {
            Some(missing) => Err(reached(self.listen, missing)),
            None => Ok(()),
        }
    }

    /// Returns what a node of a cluster serves with.
    fn node_parts(
        &self,
        dir: &Path,
        keys: Arc<KeyStore>,
        listener: TcpListener,
        observer: Observer,
    ) -> Result<NodeParts, ClientError> {
        let mut engine = OpenOptions::new(dir);
        engine.limits.memory_bytes = self.memory;
        engine.limits.disk_floor_bytes = self.observe.disk_floor();
        self.embedders.open(&mut engine)?;
        Ok(NodeParts {
            engine,
            listener,
            tls: self.tls_files(),
            serve: ServeOptions {
                takes_spans: !self.no_otlp_receiver,
                measures: Some(observer.measures()),
                ..ServeOptions::default()
            },
            keys,
            web: self.web.options(),
            observer,
            check: {
                let args = self.clone();
                Box::new(move |keys| check_reach(&args, keys))
            },
        })
    }

    fn tls_files(&self) -> Option<TlsFiles> {
        Some(TlsFiles {
            cert: self.tls_cert.clone()?,
            key: self.tls_key.clone()?,
            client_ca: self.client_ca.clone(),
        })
    }

    fn certificates(&self) -> Result<Option<Arc<ServerTls>>, ClientError> {
        let Some(files) = self.tls_files() else {
            return Ok(None);
        };
        let loaded = ServerTls::load(files).map_err(|error| ClientError::Usage {
            what: error.to_string(),
            hint: "--tls-cert needs the certificate and --tls-key its private key, both in PEM"
                .into(),
        });
        loaded.map(Some)
    }
}

/// Returns the keys of a folder.
///
/// # Errors
/// If they cannot be read; then nothing is served.
fn keys_of(dir: &Path) -> Result<Arc<KeyStore>, ClientError> {
    KeyStore::open(dir).map_err(keys::refused)
}

/// Refuses a non-loopback address without keys or TLS. Warns of keys that have no effect.
fn check_reach(args: &ServeArgs, keys: &KeyStore) -> Result<(), ClientError> {
    let addr = args.listen;
    if keys.has_subjects() && args.client_ca.is_none() {
        tell!(
            "WARNING: keys with certificate subjects have no effect: the server does not ask for \
             client certificates. Use --client-ca, with --tls-cert and --tls-key."
        );
    }
    let Some(missing) = missing(addr, !keys.is_open(), args.tls_cert.is_some()) else {
        return Ok(());
    };
    if args.insecure {
        tell!("{}", warning(addr, missing));
        return Ok(());
    }
    Err(reached(addr, missing))
}

fn reached(addr: SocketAddr, missing: MissingProtection) -> ClientError {
    let (what, hint) = match missing {
        MissingProtection::Keys { tls } => (
            "this store has no keys",
            if tls {
                "create a key first: treering keys create NAME --role 'admin:*' --data DIR"
            } else {
                "create a key (treering keys create NAME --role 'admin:*' --data DIR) and use \
                 --tls-cert and --tls-key, or listen on 127.0.0.1"
            },
        ),
        MissingProtection::Tls => (
            "there is no TLS",
            "use --tls-cert and --tls-key, or listen on 127.0.0.1 behind a proxy that encrypts",
        ),
    };
    ClientError::Usage {
        what: format!("{addr} is not a loopback address, and {what}"),
        hint: format!("{hint}; --insecure listens anyway"),
    }
}

/// The protection that a non-loopback address needs and lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MissingProtection {
    /// The store requires no keys.
    Keys {
        /// Whether TLS is on.
        tls: bool,
    },
    /// Connections are not encrypted.
    Tls,
}

fn missing(addr: SocketAddr, keys: bool, tls: bool) -> Option<MissingProtection> {
    let loopback = addr.ip().to_canonical().is_loopback();
    match (keys, tls) {
        _ if loopback => None,
        (true, true) => None,
        (true, false) => Some(MissingProtection::Tls),
        (false, tls) => Some(MissingProtection::Keys { tls }),
    }
}

/// Reloads the certificates on SIGHUP. Without TLS, SIGHUP is ignored, so a server outlives its
/// terminal.
async fn reload_on_hangup(tls: Option<Arc<ServerTls>>) {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let Ok(mut hangup) = signal(SignalKind::hangup()) else {
            return;
        };
        while hangup.recv().await.is_some() {
            match &tls {
                Some(tls) => tls.reload(),
                None => tracing::info!("SIGHUP ignored: there are no certificates to reload"),
            }
        }
    }
    #[cfg(not(unix))]
    drop(tls);
}

/// Waits for other commands, and then opens the folder.
async fn once_free(options: OpenOptions, common: &Common) -> Result<Engine, ClientError> {
    let mut waiting = FolderWait::new(common.wait);
    loop {
        match embedded::open(options.clone()).await {
            Err(error) => waiting.for_command(error).await?,
            opened => return opened,
        }
    }
}

/// Prints which process has the folder open. Programs then connect to that server with their key,
/// so its address is printed only if it has proved that it has the folder open.
async fn report_holder(
    error: &ClientError,
    common: &Common,
    out: &mut Out,
) -> Result<(), ClientError> {
    if let (
        true,
        ClientError::Locked {
            dir,
            holder,
            server,
        },
    ) = (out.json, error)
    {
        let proved = match server {
            Some(url) => {
                let credentials = common.credentials();
                let asked = holder::connect(url, dir, &common.namespace, &credentials);
                asked.await.ok().flatten()
            }
            None => None,
        };
        let server = server.as_ref().filter(|_| proved.is_some());
        out.line(json!({"locked_by": holder, "server": server, "data": dir.to_string_lossy()}))?;
        out.flush()?;
    }
    Ok(())
}

/// Completes when standard input ends if `wanted` is set, otherwise never.
pub fn stdin_end(wanted: bool) -> impl Future<Output = ()> + Unpin {
    if !wanted {
        return Either::Left(future::pending());
    }
    let (end, ended) = oneshot::channel();
    // Uses a separate thread, since the runtime would wait at exit for a blocked read on one of its
    // own.
    thread::spawn(move || {
        // The input is ignored; a failed read counts as its end.
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        let _ = end.send(());
    });
    Either::Right(Box::pin(async {
        let _ = ended.await;
    }))
}

/// Keys, certificates, HTTP services and background work of a server.
struct ServerParts {
    keys: Arc<KeyStore>,
    tls: Option<Arc<ServerTls>>,
    web: WebOptions,
    takes_spans: bool,
    summariser: Option<SummariserConfig>,
    measures: Option<Arc<ServerMeasures>>,
}

/// A store that this process serves on a network address.
#[derive(Debug)]
pub(crate) struct RunningServer {
    engine: EmbeddedEngine,
    web: Web,
    url: String,
}

impl RunningServer {
    /// Opens a folder and serves it, with its keys.
    ///
    /// # Errors
    /// [`ClientError::Listen`], [`ClientError::Locked`], [`ClientError::Open`].
    pub(crate) async fn start(
        options: OpenOptions,
        listener: TcpListener,
        web: WebOptions,
    ) -> Result<Self, ClientError> {
        let parts = ServerParts {
            keys: keys_of(&options.data_dir)?,
            tls: None,
            web,
            takes_spans: true,
            summariser: None,
            measures: None,
        };
        let engine = embedded::open(options).await?;
        Self::of(engine, listener, parts).await
    }

    /// Serves an open store.
    async fn of(
        engine: Engine,
        listener: TcpListener,
        parts: ServerParts,
    ) -> Result<Self, ClientError> {
        let address = listener.local_addr()?;
        let url = url_of(address, parts.tls.is_some());
        let web = {
            let (store, keys) = (engine.clone().into(), Arc::clone(&parts.keys));
            Web::open(store, keys, address, parts.tls.is_some(), parts.web).await?
        };
        let incoming = ConnectionStream::tcp(listener);
        let door = Some(ListenEndpoint {
            address: url.clone(),
            keys: parts.keys,
            tls: parts.tls,
            web: web.service(),
            takes_spans: parts.takes_spans,
        });
        let (summariser, measures) = (parts.summariser, parts.measures);
        let engine = EmbeddedEngine::start(engine, door, summariser, measures, incoming).await?;
        Ok(Self { engine, web, url })
    }

    /// Returns the URL of the inspector on this machine, if it is served.
    pub(crate) fn inspector(&self) -> Option<String> {
        self.web.has_pages().then(|| format!("{}/", self.url))
    }

    /// Returns the URL for agents on this machine, if they are served.
    pub(crate) fn agents(&self) -> Option<String> {
        self.web
            .has_agents()
            .then(|| format!("{}{MCP_PATH}", self.url))
    }

    /// Returns the URL for clients on this machine.
    pub(crate) fn url(&self) -> String {
        self.url.clone()
    }

    /// Finishes accepted requests, and closes the store.
    ///
    /// # Errors
    /// [`ClientError::Outcome`] if it ends with an error.
    pub(crate) async fn stop(self) -> Result<(), ClientError> {
        self.web.end_streams();
        let stopped = self.engine.stop().await;
        self.web.close().await;
        stopped
    }
}

/// Returns the warning for an insecure non-loopback address.
fn warning(addr: SocketAddr, missing: MissingProtection) -> String {
    match missing {
        MissingProtection::Keys { .. } => format!(
            "WARNING: anybody who can reach {addr} can read and write everything in this store: it \
             has no keys. Create one with `treering keys create` (it applies at once), or let only \
             trusted clients reach the port."
        ),
        MissingProtection::Tls => format!(
            "WARNING: {addr} is not encrypted: anybody who can read the network traffic gets the \
             keys, and with them access to this store. Use --tls-cert and --tls-key, or a proxy \
             that encrypts."
        ),
    }
}

/// Returns a URL that clients can use: a wildcard address is replaced by a loopback address.
pub(super) fn url_of(addr: SocketAddr, tls: bool) -> String {
    let scheme = if tls { "https" } else { "http" };
    if addr.ip().is_unspecified() {
        format!("{scheme}://127.0.0.1:{}", addr.port())
    } else {
        format!("{scheme}://{addr}")
    }
}

/// Listens at the address, or on any free port if the port is taken.
///
/// # Errors
/// [`ClientError::Listen`] if that fails as well.
pub(crate) async fn bind_or_any(addr: SocketAddr) -> Result<(TcpListener, bool), ClientError> {
    match TcpListener::bind(addr).await {
        Ok(listener) => Ok((listener, false)),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            let any = SocketAddr::new(addr.ip(), 0);
            let listener = TcpListener::bind(any)
                .await
                .map_err(|cause| ClientError::Listen { addr: any, cause })?;
            Ok((listener, true))
        }
        Err(cause) => Err(ClientError::Listen { addr, cause }),
    }
}

/// Listens on any free port of this machine.
///
/// # Errors
/// [`ClientError::Listen`].
pub async fn listen_any() -> Result<TcpListener, ClientError> {
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    TcpListener::bind(addr)
        .await
        .map_err(|cause| ClientError::Listen { addr, cause })
}

/// Listens on an address.
///
/// # Errors
/// [`ClientError::Listen`].
pub(super) async fn listen(addr: SocketAddr) -> Result<TcpListener, ClientError> {
    let bound = TcpListener::bind(addr).await;
    bound.map_err(|cause| ClientError::Listen { addr, cause })
}

/// Completes when the process is asked to stop. Signals are caught from this call on, because a
/// caller may stop the server as soon as it is ready.
pub fn stop_signal() -> impl Future<Output = ()> {
    #[cfg(unix)]
    let asked = {
        use tokio::signal::unix::{SignalKind, signal};
        let interrupt = signal(SignalKind::interrupt());
        let terminate = signal(SignalKind::terminate());
        async move {
            let (Ok(mut interrupt), Ok(mut terminate)) = (interrupt, terminate) else {
                return std::future::pending().await;
            };
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        }
    };
    #[cfg(not(unix))]
    let asked = async {
        let _ = tokio::signal::ctrl_c().await;
    };
    asked
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A misread size would give the server the wrong amount of memory.
    #[test]
    fn memory_sizes_are_parsed() {
        assert_eq!(memory("256MiB"), Ok(256 << 20));
        assert_eq!(memory("1GiB"), Ok(1 << 30));
        assert_eq!(memory("134217728"), Ok(128 << 20));
        for wrong in ["", "MiB", "10MiB", "1TB", "-1", "99999999999999GiB"] {
            assert!(memory(wrong).is_err(), "{wrong}");
        }
    }

    /// A second demo finds the port taken, and must use another one.
    #[tokio::test]
    async fn bind_or_any_picks_a_free_port_if_taken() {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let (first, moved) = bind_or_any(any).await.unwrap();
        assert!(!moved);
        let taken = first.local_addr().unwrap();
        let (second, moved) = bind_or_any(taken).await.unwrap();
        assert!(moved);
        assert_ne!(second.local_addr().unwrap(), taken);
    }

    /// An address that only looks like a loopback address must not count as one. Other addresses
    /// need both keys and TLS.
    #[test]
    fn non_loopback_bind_requires_keys_and_tls() {
        for (addr, reached) in [
            ("127.0.0.1:1", false),
            ("127.8.0.1:1", false),
            ("[::1]:1", false),
            ("[::ffff:127.0.0.1]:1", false),
            ("0.0.0.0:1", true),
            ("[::]:1", true),
            ("192.168.1.4:1", true),
            ("[::ffff:10.0.0.1]:1", true),
        ] {
            let addr = addr.parse().unwrap();
            assert_eq!(missing(addr, true, true), None, "{addr}");
            assert_eq!(missing(addr, false, false).is_some(), reached, "{addr}");
            assert_eq!(
                missing(addr, true, false) == Some(MissingProtection::Tls),
                reached
            );
            assert_eq!(missing(addr, false, true).is_some(), reached);
        }
    }

    #[test]
    fn url_of_unspecified_address_uses_loopback() {
        assert_eq!(
            url_of("0.0.0.0:7171".parse().unwrap(), false),
            "http://127.0.0.1:7171"
        );
        assert_eq!(
            url_of("[::1]:80".parse().unwrap(), true),
            "https://[::1]:80"
        );
    }
}
