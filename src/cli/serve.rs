//! `serve`: the services on a network address, until told to stop.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::Arc,
    thread,
};

use clap::Args;
use futures::future::{self, Either};
use serde_json::json;
use tokio::{net::TcpListener, sync::oneshot};
use tonic::transport::server::TcpIncoming;

use super::{
    args::Common,
    connect::Waiting,
    embedded::{self, Embedded},
    error::CliError,
    observe::ObserveArgs,
    output::{Out, Tone},
    summariser::SummariserArgs,
};
use crate::{
    domain::{Limits, limits::MEMORY_OF_FILES_BYTES},
    engine::{Engine, OpenOptions},
    server::ServerMeasures,
    summariser::SummariserConfig,
};

/// The default port.
const PORT: u16 = 7171;

/// The default address: this machine only, as there are no keys yet.
#[must_use]
pub fn listen_default() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, PORT).into()
}

/// Serve a store over gRPC
///
/// Runs until Ctrl-C or SIGTERM, then finishes what it took. Reflection and
/// health are on. There are no keys yet: anybody who reaches the port can read
/// and write everything, so by default only this machine can.
///
/// With --json it prints one line once it serves, {"serving": URL, "data": DIR,
/// "pid": N, "version": V, "metrics": URL or null}, or, when another process holds the store,
/// {"locked_by": WHO, "server": URL or null, "data": DIR}, and exits with 5. For
/// another command it waits first (--wait), for another server it does not.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering serve --data ./store
  treering serve --data ./store --listen 127.0.0.1:9000
  treering serve --data ./store --listen 127.0.0.1:0 --json --until-stdin-closes
  treering serve --data ./store --metrics 127.0.0.1:9464
  treering serve --config /etc/treering/treering.toml
  treering serve --data ./store --summariser-url http://127.0.0.1:11434/v1 --summariser-model qwen3
  grpcurl -plaintext 127.0.0.1:7171 list")]
pub struct ServeArgs {
    /// Where to listen; port 0 takes any free one. Beyond this machine, whoever
    /// reaches it can read and write everything
    #[arg(long, value_name = "ADDR", default_value_t = listen_default())]
    listen: SocketAddr,
    /// Of the requests that it builds, read one in so many again, to check it against
    /// its provider's rules, besides the first of each conversation. 1: all; 0: none
    #[arg(long, value_name = "N", default_value_t = Limits::default().check_one_in)]
    check_one_in: u32,
    /// End when standard input ends, too. A program that starts a server keeps the
    /// other end of it: however the program ends, the server ends with it
    #[arg(long)]
    until_stdin_closes: bool,
    /// Memory for all that is kept because it may be wanted again: states, records,
    /// windows of requests, pages of files. What the program itself and the work under
    /// way take comes on top
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = memory)]
    memory: usize,
    /// Take options from this TOML file (or $TREERING_CONFIG): each by its name. What is
    /// typed beats the environment (as TREERING_LISTEN), and that beats the file
    #[arg(long, value_name = "FILE")]
    config: Option<std::path::PathBuf>,
    #[command(flatten)]
    observe: ObserveArgs,
    #[command(flatten)]
    summariser: SummariserArgs,
}

/// Least of it: what pages of files take, and a little for the rest. In bytes.
const MEMORY_MIN: usize = MEMORY_OF_FILES_BYTES + (4 << 20);

/// A size in bytes, MiB or GiB.
///
/// # Errors
/// What it takes.
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
    let dir = common.data_dir()?;
    let listener = TcpListener::bind(args.listen)
        .await
        .map_err(|cause| CliError::Listen {
            addr: args.listen,
            cause,
        })?;
    let observer = args.observe.observer().await?;
    let summariser = args.summariser.config(&dir)?;
    let summarises = summariser.is_some();
    let mut options = OpenOptions::new(&dir);
    options.limits.check_one_in = args.check_one_in;
    options.limits.memory_bytes = args.memory;
    options.limits.disk_floor_bytes = args.observe.disk_floor();
    let engine = match once_free(options, common).await {
        Ok(engine) => engine,
        Err(error) => {
            tell_who_holds(&error, out)?;
            return Err(error);
        }
    };
    let summaries = summariser
        .as_ref()
        .map(|config| Arc::clone(&config.measures));
    let counted = Some(observer.measures());
    let served = Served::counted(engine.clone(), listener, summariser, counted).await?;
    let metrics = observer.url();
    let observed = observer.start(&engine, summaries);
    drop(engine);
    let stop = future::select(Box::pin(stop_signal()), stdin_end(args.until_stdin_closes));
    if out.json {
        out.line(json!({
            "serving": served.url(),
            "data": dir.to_string_lossy(),
            "pid": std::process::id(),
            "version": env!("CARGO_PKG_VERSION"),
            "metrics": metrics,
        }))?;
    } else {
        let url = out.paint.text(Tone::Name, served.url());
        out.line(format!("Serving {} at {url}", dir.display()))?;
        if let Some(metrics) = metrics {
            out.line(format!("Metrics are at {metrics}"))?;
        }
        if summarises {
            out.line("A model summarises what is appended from now on.")?;
        }
        out.line("Ctrl-C ends it.")?;
    }
    out.flush()?;
    stop.await;
    drop(observed);
    served.stop().await
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

/// Programs that find the folder held want to know where it is served instead.
fn tell_who_holds(error: &CliError, out: &mut Out) -> Result<(), CliError> {
    if let (
        true,
        CliError::Locked {
            dir,
            holder,
            server,
        },
    ) = (out.json, error)
    {
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

/// A store that is served on a network address by this process.
#[derive(Debug)]
pub struct Served {
    engine: Embedded,
    addr: SocketAddr,
}

impl Served {
    /// Opens the folder and serves it.
    ///
    /// # Errors
    /// [`CliError::Listen`], [`CliError::Locked`], [`CliError::Open`].
    pub async fn start(
        dir: &Path,
        listener: TcpListener,
        summariser: Option<SummariserConfig>,
    ) -> Result<Self, CliError> {
        Self::start_with(OpenOptions::new(dir), listener, summariser).await
    }

    /// The same, with the engine's options.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_with(
        options: OpenOptions,
        listener: TcpListener,
        summariser: Option<SummariserConfig>,
    ) -> Result<Self, CliError> {
        Self::of(embedded::open(options).await?, listener, summariser).await
    }

    /// Serves what is open.
    ///
    /// # Errors
    /// When the listener has no address, or the summariser's marks cannot be written.
    pub async fn of(
        engine: Engine,
        listener: TcpListener,
        summariser: Option<SummariserConfig>,
    ) -> Result<Self, CliError> {
        Self::counted(engine, listener, summariser, None).await
    }

    /// The same, with its calls counted.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub async fn counted(
        engine: Engine,
        listener: TcpListener,
        summariser: Option<SummariserConfig>,
        measures: Option<Arc<ServerMeasures>>,
    ) -> Result<Self, CliError> {
        let addr = listener.local_addr()?;
        if let Some(warning) = warning(addr) {
            anstream::eprintln!("{warning}");
        }
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let url = Some(url_of(addr));
        let engine = Embedded::start(engine, url, summariser, measures, incoming).await?;
        Ok(Self { engine, addr })
    }

    /// Where clients on this machine reach it.
    #[must_use]
    pub fn url(&self) -> String {
        url_of(self.addr)
    }

    /// Finishes what was taken, and closes the store.
    ///
    /// # Errors
    /// [`CliError::Outcome`] when it ended badly.
    pub async fn stop(self) -> Result<(), CliError> {
        self.engine.stop().await
    }
}

/// What to tell whoever opens the port to others.
fn warning(addr: SocketAddr) -> Option<String> {
    let loopback = addr.ip().to_canonical().is_loopback();
    (!loopback).then(|| {
        format!(
            "WARNING: anybody who reaches {addr} can read and write everything in this store: \
             there are no keys yet.\nListen on 127.0.0.1, or let only those reach the port who \
             may do all that (a firewall, a tunnel, a proxy that asks for a key)."
        )
    })
}

/// An address that can be typed: "any address" is reached as this machine.
fn url_of(addr: SocketAddr) -> String {
    if addr.ip().is_unspecified() {
        format!("http://127.0.0.1:{}", addr.port())
    } else {
        format!("http://{addr}")
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
    /// be taken for it.
    #[test]
    fn only_this_machine_goes_without_a_warning() {
        for (addr, warned) in [
            ("127.0.0.1:1", false),
            ("127.8.0.1:1", false),
            ("[::1]:1", false),
            ("[::ffff:127.0.0.1]:1", false),
            ("0.0.0.0:1", true),
            ("[::]:1", true),
            ("192.168.1.4:1", true),
            ("[::ffff:10.0.0.1]:1", true),
        ] {
            assert_eq!(warning(addr.parse().unwrap()).is_some(), warned, "{addr}");
        }
    }

    #[test]
    fn the_url_can_be_typed() {
        assert_eq!(
            url_of("0.0.0.0:7171".parse().unwrap()),
            "http://127.0.0.1:7171"
        );
        assert_eq!(url_of("[::1]:80".parse().unwrap()), "http://[::1]:80");
    }
}
