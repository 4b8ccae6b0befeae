//! `serve`: the services on a network address, until told to stop.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

use clap::Args;
use futures::future::{self, Either};
use serde_json::json;
use tokio::{net::TcpListener, sync::oneshot};

use super::{
    Logging,
    args::Common,
    backup::Following,
    connect::Waiting,
    embedded::{self, Door, Embedded},
    error::CliError,
    heads::KeepHeadsArgs,
    holder, keys, log_to_stderr,
    observe::{ObserveArgs, of_backup, of_certificate, of_heads, of_summariser, of_traces},
    output::{Out, Tone},
    quota::{QuotaArg, quotas},
    retention::{RetentionPolicy, keep_to},
    safe::tell,
    summariser::SummariserArgs,
    web::{Web, WebArgs, WebOptions},
};
use treering_access::KeyRing;
use treering_domain::limits::MEMORY_OF_FILES_BYTES;
use treering_engine::{Engine, OpenOptions};
use treering_mcp::MCP_PATH;
use treering_server::{
    ConnectionStream, ServerMeasures,
    tls::{ServerTls, TlsFiles},
};
use treering_summariser::SummariserConfig;

/// The default port.
const PORT: u16 = 7171;

/// The default address: this machine only.
pub fn listen_default() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, PORT).into()
}

/// Serve a store over gRPC, with pages for people and a door for agents
///
/// The address, opened in a browser, shows what agents did (--no-inspector leaves that out). At
/// /mcp agents search in it, by the Model Context Protocol (--no-mcp).
///
/// Runs until Ctrl-C or SIGTERM, then finishes what it took. Reflection and
/// health are on. While no key was made (treering keys create), anybody who reaches
/// the port can read and write everything, so by default only this machine can. For
/// others it needs keys and TLS, or --insecure.
///
/// Keys that are made or revoked hold at once. Certificates are read again when their
/// files change, and on SIGHUP; a pair that cannot be used is told, and the one before
/// stays.
///
/// With --json it prints one line once it serves, {"serving": URL, "data": DIR,
/// "pid": N, "version": V, "metrics": URL or null, "mcp": URL or null, "inspector": URL or
/// null}, or, when another process holds the store,
/// {"locked_by": WHO, "server": URL or null, "data": DIR}, and exits with 5. For
/// another command it waits first (--wait), for another server it does not.
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
  treering serve --config /etc/treering/treering.toml
  treering serve --data ./store --summariser-url http://127.0.0.1:11434/v1 --summariser-model qwen3
  grpcurl -plaintext 127.0.0.1:7171 list")]
pub struct ServeArgs {
    /// Where to listen; port 0 takes any free one. Beyond this machine with keys and TLS
    /// only, or with --insecure
    #[arg(long, value_name = "ADDR", default_value_t = listen_default())]
    listen: SocketAddr,
    /// The server's certificate and those between it and its CA, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_key", help_heading = "TLS")]
    tls_cert: Option<PathBuf>,
    /// Its private key, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "TLS")]
    tls_key: Option<PathBuf>,
    /// Take only clients that show a certificate which one of these (PEM) has signed
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "TLS")]
    client_ca: Option<PathBuf>,
    /// Listen beyond this machine though keys or TLS are missing: whoever reaches it, or
    /// hears it, can read and write everything
    #[arg(long, help_heading = "TLS")]
    insecure: bool,
    /// End when standard input ends, too. A program that starts a server keeps the
    /// other end of it: however the program ends, the server ends with it
    #[arg(long)]
    until_stdin_closes: bool,
    /// Memory for all that is kept because it may be wanted again: states, records,
    /// windows of requests, pages of files. What the program itself and the work under
    /// way take comes on top
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = memory)]
    memory: usize,
    /// Store a keyed hash in place of each actor, correlation id and idempotency key, which an
    /// erasing leaves. Once this was said the store goes on so, by the key in `pseudonyms.key`
    /// of its folder: keep a copy of that file, apart from those of the store
    #[arg(long)]
    pseudonyms: bool,
    /// Once a day, erase the conversations of a namespace that were kept as long as they are
    /// to be: `NAMESPACE:keep_days=365,keep_sealed_days=90,label.team=red`. Look first at what
    /// `treering erase --keep-days 365 --dry-run` would erase
    #[arg(long, value_name = "POLICY")]
    retention: Vec<RetentionPolicy>,
    /// How much a namespace may hold: `NAMESPACE=BYTES,CONVERSATIONS`, as team-a=10GiB,1000;
    /// several times for several. `*` stands for every other namespace, `none` for no bound.
    /// Over it appends there are refused, reads go on
    #[arg(long, value_name = "QUOTA")]
    quota: Vec<QuotaArg>,
    /// Keep a copy of the store there, a folder or a bucket, and bring it up to date with
    /// what is appended: a second later it is on its way. See `treering backup --help`
    #[arg(long, value_name = "TO")]
    backup: Option<String>,
    /// Encrypt the copy with the key in this file
    #[arg(long, value_name = "FILE", env = "TREERING_BACKUP_KEY_FILE")]
    backup_key_file: Option<PathBuf>,
    /// Take options from this TOML file (or $TREERING_CONFIG): each by its name. What is
    /// typed beats the environment (as TREERING_LISTEN), and that beats the file
    #[arg(long, value_name = "FILE")]
    config: Option<std::path::PathBuf>,
    /// Take no spans of agents by OTLP. Else whoever may write and sends traces there
    /// (OTEL_EXPORTER_OTLP_ENDPOINT) has the conversations in them recorded
    #[arg(long)]
    no_otlp_receiver: bool,
    #[command(flatten)]
    heads: KeepHeadsArgs,
    #[command(flatten)]
    observe: ObserveArgs,
    #[command(flatten)]
    web: WebArgs,
    #[command(flatten)]
    summariser: SummariserArgs,
}

/// Least of it: what pages of files take, and a little for the rest. In bytes.
const MEMORY_MIN: usize = MEMORY_OF_FILES_BYTES + (4 << 20);

/// A size in bytes, MiB or GiB.
pub fn size(text: &str) -> Result<u64, String> {
    let takes = || "give bytes, MiB or GiB, as in 256MiB".to_owned();
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
        _ => Err(format!("at least {}MiB are needed", MEMORY_MIN >> 20)),
    }
}

/// Serves until told to stop.
///
/// # Errors
/// [`CliError::Listen`], [`CliError::Locked`], [`CliError::Open`].
pub async fn run(args: &ServeArgs, common: &Common, out: &mut Out) -> Result<(), CliError> {
    let traces = args.observe.traces()?;
    log_to_stderr(Logging::Served {
        traces: traces.as_deref(),
    });
    let dir = common.data_dir()?;
    let quotas = quotas(&args.quota)?;
    let keys = keys_of(&dir)?;
    let tls = args.certificates()?;
    check_reach(args, &keys)?;
    if keys.has_subjects() && args.client_ca.is_none() {
        tell!(
            "WARNING: keys that certificates stand for are of no use: no client is asked for one. \
             Give --client-ca, with --tls-cert and --tls-key."
        );
    }
    let listener = TcpListener::bind(args.listen)
        .await
        .map_err(|cause| CliError::Listen {
            addr: args.listen,
            cause,
        })?;
    let observer = args.observe.observer(traces.clone()).await?;
    let summariser = args.summariser.config(&dir)?;
    let following = match &args.backup {
        Some(to) => Some(Following::prepare(to, args.backup_key_file.clone())?),
        None => None,
    };
    let heads = args.heads.prepare(&dir)?;
    let summarises = summariser.is_some();
    let mut options = OpenOptions::new(&dir);
    options.limits.memory_bytes = args.memory;
    options.pseudonyms = args.pseudonyms;
    options.quotas = quotas;
    options.limits.disk_floor_bytes = args.observe.disk_floor();
    let engine = match once_free(options, common).await {
        Ok(engine) => engine,
        Err(error) => {
            tell_who_holds(&error, common, out).await?;
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
    let retaining = tokio::spawn(keep_to(engine.clone(), args.retention.clone()));
    let following = following.map(|following| following.start(&engine));
    let summaries = summariser
        .as_ref()
        .map(|config| Arc::clone(&config.measures));
    let parts = ServedParts {
        keys,
        tls: tls.clone(),
        web: args.web.options(),
        takes_spans: !args.no_otlp_receiver,
        summariser,
        measures: Some(observer.measures()),
    };
    let served = Served::of(engine.clone(), listener, parts).await?;
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
            out.line(format!("To look at it, open {pages} in a browser"))?;
        }
        if let Some(metrics) = metrics {
            out.line(format!("Metrics are at {metrics}"))?;
        }
        if let Some(agents) = served.agents() {
            out.line(format!("Agents reach it at {agents} (MCP)"))?;
        }
        if summarises {
            out.line("A model summarises what is appended from now on.")?;
        }
        if let Some(to) = &args.backup {
            out.line(format!("A copy is kept in {to}."))?;
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
    /// Finds fault with what can be judged without the store.
    ///
    /// # Errors
    /// [`CliError::Usage`] tells the first fault.
    pub fn check(&self) -> Result<(), CliError> {
        quotas(&self.quota)?;
        self.certificates()?;
        if self.insecure {
            return Ok(());
        }
        let tls = self.tls_cert.is_some();
        // Keys are the store's.
        match missing(self.listen, true, tls) {
            Some(missing) => Err(reached(self.listen, missing)),
            None => Ok(()),
        }
    }

    fn certificates(&self) -> Result<Option<Arc<ServerTls>>, CliError> {
        let (Some(cert), Some(key)) = (&self.tls_cert, &self.tls_key) else {
            return Ok(None);
        };
        let files = TlsFiles {
            cert: cert.clone(),
            key: key.clone(),
            client_ca: self.client_ca.clone(),
        };
        let loaded = ServerTls::load(files).map_err(|error| CliError::Usage {
            what: error.to_string(),
            hint: "--tls-cert takes the certificate and --tls-key its private key, both in PEM"
                .into(),
        });
        loaded.map(Some)
    }
}

/// The keys of a folder.
///
/// # Errors
/// When they cannot be read: nothing is served then.
fn keys_of(dir: &Path) -> Result<Arc<KeyRing>, CliError> {
    KeyRing::open(dir).map_err(keys::refused)
}

/// Refuses to let others in who cannot be told apart, or who can be overheard.
fn check_reach(args: &ServeArgs, keys: &KeyRing) -> Result<(), CliError> {
    let addr = args.listen;
    let Some(missing) = missing(addr, !keys.is_open(), args.tls_cert.is_some()) else {
        return Ok(());
    };
    if args.insecure {
        tell!("{}", warning(addr, missing));
        return Ok(());
    }
    Err(reached(addr, missing))
}

fn reached(addr: SocketAddr, missing: Missing) -> CliError {
    let (what, hint) = match missing {
        Missing::Keys { tls } => (
            "no key was ever made",
            if tls {
                "make a key first: treering keys create NAME --role 'admin:*' --data DIR"
            } else {
                "make a key (treering keys create NAME --role 'admin:*' --data DIR) and give \
                 --tls-cert and --tls-key, or listen on 127.0.0.1"
            },
        ),
        Missing::Tls => (
            "there is no TLS",
            "give --tls-cert and --tls-key, or listen on 127.0.0.1 behind what encrypts",
        ),
    };
    CliError::Usage {
        what: format!("{addr} is reached by other machines, and {what}"),
        hint: format!("{hint}; --insecure listens all the same"),
    }
}

/// What an address that others reach is to have, and has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    /// Nobody is asked for a key.
    Keys {
        /// It is encrypted, at least.
        tls: bool,
    },
    /// Keys and contents can be overheard.
    Tls,
}

fn missing(addr: SocketAddr, keys: bool, tls: bool) -> Option<Missing> {
    let loopback = addr.ip().to_canonical().is_loopback();
    match (keys, tls) {
        _ if loopback => None,
        (true, true) => None,
        (true, false) => Some(Missing::Tls),
        (false, tls) => Some(Missing::Keys { tls }),
    }
}

/// Reads the certificates again when the process is told to. Without any a hangup is
/// nothing: a server outlives the terminal that it was started from.
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
                None => tracing::info!("told to read certificates again, and there are none"),
            }
        }
    }
    #[cfg(not(unix))]
    drop(tls);
}

/// Opens the folder, once no other command has it.
async fn once_free(options: OpenOptions, common: &Common) -> Result<Engine, CliError> {
    let mut waiting = Waiting::new(common.wait);
    loop {
        match embedded::open(options.clone()).await {
            Err(error) => waiting.for_command(error).await?,
            opened => return opened,
        }
    }
}

/// Programs that find the folder held want to know where it is served instead, and go there with
/// their key: so they are told of a server only that has proved that it is the one.
async fn tell_who_holds(error: &CliError, common: &Common, out: &mut Out) -> Result<(), CliError> {
    if let (
        true,
        CliError::Locked {
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

/// Ready when standard input has ended, if that is wanted; never otherwise.
pub fn stdin_end(wanted: bool) -> impl Future<Output = ()> + Unpin {
    if !wanted {
        return Either::Left(future::pending());
    }
    let (end, ended) = oneshot::channel();
    // A thread of its own: the runtime would wait for one of its threads to come
    // back from the read before the process can end.
    thread::spawn(move || {
        // What comes is nothing to us; a failed read is an end, too.
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        let _ = end.send(());
    });
    Either::Right(Box::pin(async {
        let _ = ended.await;
    }))
}

/// Who may come in, by which certificate, what browsers and agents find, and what is done and
/// counted meanwhile.
struct ServedParts {
    keys: Arc<KeyRing>,
    tls: Option<Arc<ServerTls>>,
    web: WebOptions,
    takes_spans: bool,
    summariser: Option<SummariserConfig>,
    measures: Option<Arc<ServerMeasures>>,
}

/// A store that is served on a network address by this process.
#[derive(Debug)]
pub struct Served {
    engine: Embedded,
    web: Web,
    url: String,
}

impl Served {
    /// Opens a folder and serves it, with its keys.
    ///
    /// # Errors
    /// [`CliError::Listen`], [`CliError::Locked`], [`CliError::Open`].
    pub async fn start(
        options: OpenOptions,
        listener: TcpListener,
        web: WebOptions,
    ) -> Result<Self, CliError> {
        let parts = ServedParts {
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

    /// Serves what is open.
    async fn of(
        engine: Engine,
        listener: TcpListener,
        parts: ServedParts,
    ) -> Result<Self, CliError> {
        let address = listener.local_addr()?;
        let url = url_of(address, parts.tls.is_some());
        let web = {
            let (engine, keys) = (engine.clone(), Arc::clone(&parts.keys));
            Web::open(engine, keys, address, parts.tls.is_some(), parts.web).await?
        };
        let incoming = ConnectionStream::tcp(listener);
        let door = Some(Door {
            address: url.clone(),
            keys: parts.keys,
            tls: parts.tls,
            web: web.service(),
            takes_spans: parts.takes_spans,
        });
        let (summariser, measures) = (parts.summariser, parts.measures);
        let engine = Embedded::start(engine, door, summariser, measures, incoming).await?;
        Ok(Self { engine, web, url })
    }

    /// Where people on this machine look at it, if they can.
    pub fn inspector(&self) -> Option<String> {
        self.web.has_pages().then(|| format!("{}/", self.url))
    }

    /// Where agents on this machine reach it, if they do.
    pub fn agents(&self) -> Option<String> {
        self.web
            .has_agents()
            .then(|| format!("{}{MCP_PATH}", self.url))
    }

    /// Where clients on this machine reach it.
    pub fn url(&self) -> String {
        self.url.clone()
    }

    /// Finishes what was taken, and closes the store.
    ///
    /// # Errors
    /// [`CliError::Outcome`] when it ended badly.
    pub async fn stop(self) -> Result<(), CliError> {
        self.web.end_streams();
        let stopped = self.engine.stop().await;
        self.web.close().await;
        stopped
    }
}

/// What to tell whoever opens the port to others all the same.
fn warning(addr: SocketAddr, missing: Missing) -> String {
    match missing {
        Missing::Keys { .. } => format!(
            "WARNING: anybody who reaches {addr} can read and write everything in this store: \
             no key was ever made. Make one with `treering keys create` (the server takes it at \
             once), or let only those reach the port who may do all that."
        ),
        Missing::Tls => format!(
            "WARNING: {addr} is not encrypted: whoever hears a call has its key, and all that \
             the key may read and write in this store. Give --tls-cert and --tls-key, or put \
             something before it that encrypts."
        ),
    }
}

/// An address that can be typed: "any address" is reached as this machine.
fn url_of(addr: SocketAddr, tls: bool) -> String {
    let scheme = if tls { "https" } else { "http" };
    if addr.ip().is_unspecified() {
        format!("{scheme}://127.0.0.1:{}", addr.port())
    } else {
        format!("{scheme}://{addr}")
    }
}

/// Listens there, or on any free port of the same address when it is taken.
///
/// # Errors
/// [`CliError::Listen`] when that does not work either.
pub async fn bind_or_any(addr: SocketAddr) -> Result<(TcpListener, bool), CliError> {
    match TcpListener::bind(addr).await {
        Ok(listener) => Ok((listener, false)),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            let any = SocketAddr::new(addr.ip(), 0);
            let listener = TcpListener::bind(any)
                .await
                .map_err(|cause| CliError::Listen { addr: any, cause })?;
            Ok((listener, true))
        }
        Err(cause) => Err(CliError::Listen { addr, cause }),
    }
}

/// Listens on any free port of this machine.
///
/// # Errors
/// [`CliError::Listen`].
pub async fn listen_any() -> Result<TcpListener, CliError> {
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    TcpListener::bind(addr)
        .await
        .map_err(|cause| CliError::Listen { addr, cause })
}

/// Ready when the process is asked to stop, from this call on: whoever was told
/// that it serves may stop it at once.
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

    /// A size that is misread makes a server of another size than was asked for.
    #[test]
    fn sizes_are_read() {
        assert_eq!(memory("256MiB"), Ok(256 << 20));
        assert_eq!(memory("1GiB"), Ok(1 << 30));
        assert_eq!(memory("134217728"), Ok(128 << 20));
        for wrong in ["", "MiB", "10MiB", "1TB", "-1", "99999999999999GiB"] {
            assert!(memory(wrong).is_err(), "{wrong}");
        }
    }

    /// A second demo finds the port taken: it must take another, not fail.
    #[tokio::test]
    async fn a_taken_port_gives_another() {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let (first, moved) = bind_or_any(any).await.unwrap();
        assert!(!moved);
        let taken = first.local_addr().unwrap();
        let (second, moved) = bind_or_any(taken).await.unwrap();
        assert!(moved);
        assert_ne!(second.local_addr().unwrap(), taken);
    }

    /// An address that only looks like this machine's, or like another's, must not
    /// be taken for it; others need keys and TLS, both.
    #[test]
    fn others_are_let_in_with_keys_and_tls_only() {
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
            assert_eq!(missing(addr, true, false) == Some(Missing::Tls), reached);
            assert_eq!(missing(addr, false, true).is_some(), reached);
        }
    }

    #[test]
    fn the_url_can_be_typed() {
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
