//! `proxy`: passes the calls of agents on to model providers, and records them.

use std::net::{Ipv4Addr, SocketAddr};

use clap::Args;
use futures::future;
use serde_json::json;

use super::{
    LogMode,
    args::Common,
    connect::Connection,
    error::ClientError,
    log_to_stderr,
    output::{Out, Tone},
    safe::tell,
    serve::{listen, stdin_end, stop_signal},
    text::things,
};
use treering_proto::pb;
use treering_proxy::{FOLDER, RunningProxy, UpstreamFault, Upstreams};

/// The default port: the one after the server's.
const PORT: u16 = 7172;

fn listen_default() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, PORT).into()
}

/// Record any agent: forward its calls to the model provider, and store them
///
/// Set the base URL of the agent or the client library to this proxy. It forwards every request
/// and streams the answer back unchanged. OpenAI's Chat Completions and Responses and Anthropic's
/// Messages are recorded: messages, tool calls, results, reasoning and tokens. API keys are the
/// caller's own; they are forwarded and never stored or logged.
///
/// Answers never wait for the store. While it is unavailable, model calls are queued; calls that
/// do not fit are reported and not recorded. Ctrl-C or SIGTERM ends the proxy after the queue is
/// recorded.
///
/// A conversation has the id that the client sends (the header x-treering-conversation, or what
/// Codex and Claude Code send), otherwise it is found by its beginning. A changed past becomes a
/// branch. A data folder is open only while model calls are recorded, so other commands can use it.
///
/// With --json it prints one line when it is ready: {"proxy": URL, "openai": URL, "anthropic": URL,
/// "pid": N, "version": V}.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering proxy                                    use the default folder
  treering proxy --server http://127.0.0.1:7171     record to a running server
  treering proxy --openai http://127.0.0.1:11434/v1 a local model

Then, in another terminal:
  ANTHROPIC_BASE_URL=http://127.0.0.1:7172 claude
  OPENAI_BASE_URL=http://127.0.0.1:7172/v1 python agent.py
  treering ls

docs/PROXY.md has more.")]
pub(crate) struct ProxyArgs {
    /// Address to listen on; port 0 takes any free one. A non-loopback address requires --insecure
    #[arg(long, value_name = "ADDR", default_value_t = listen_default())]
    listen: SocketAddr,
    /// Base URL for requests with OpenAI's API: all but Anthropic's
    #[arg(long, value_name = "URL", default_value = "https://api.openai.com/v1")]
    openai: String,
    /// Base URL for requests with Anthropic's API: /v1/messages, and those with a header of its
    /// clients (anthropic-…)
    #[arg(long, value_name = "URL", default_value = "https://api.anthropic.com")]
    anthropic: String,
    /// Listen on a non-loopback address: everyone who reaches it can add to the store, and API keys
    /// go there unencrypted
    #[arg(long)]
    insecure: bool,
    /// Also stop when standard input ends. A program that starts a proxy holds the other end, so
    /// the proxy ends with it
    #[arg(long)]
    until_stdin_closes: bool,
}

/// Passes calls on until it is stopped.
///
/// # Errors
/// [`ClientError::Usage`] for an unusable address, [`ClientError::Listen`], and permanent errors of
/// the store.
pub(crate) async fn run(
    args: &ProxyArgs,
    common: &Common,
    out: &mut Out,
) -> Result<(), ClientError> {
    log_to_stderr(LogMode::Proxied);
    let store = common.connect_options()?;
    let upstreams = Upstreams::new(&args.openai, &args.anthropic).map_err(refused)?;
    if !args.listen.ip().to_canonical().is_loopback() && !args.insecure {
        return Err(ClientError::Usage {
            what: format!("{} is not a loopback address", args.listen),
            hint: "API keys would go there unencrypted: listen on 127.0.0.1, or use --insecure"
                .into(),
        });
    }
    let listener = listen(args.listen).await?;
    let stop = future::select(Box::pin(stop_signal()), stdin_end(args.until_stdin_closes));
    // Reports wrong options at once, not at the first call.
    match Connection::open(&store, FOLDER).await {
        Ok(store) => {
            let request = pb::ListConversationsRequest {
                page_size: 1,
                ..Default::default()
            };
            let asked = store.conversations().list(request).await;
            store.close().await?;
            asked?;
        }
        Err(error @ (ClientError::Connect { .. } | ClientError::Locked { .. })) => {
            tell!("WARNING: the store is unavailable, so model calls are queued: {error}");
        }
        Err(error) => return Err(error),
    }
    let proxy = RunningProxy::start(listener, upstreams, store);
    let proxy = proxy.map_err(|error| ClientError::Usage {
        what: error.to_string(),
        hint: "check the network settings of this machine".into(),
    })?;
    let url = format!("http://{}", proxy.address());
    if out.json {
        out.line(json!({
            "proxy": url,
            "openai": args.openai,
            "anthropic": args.anthropic,
            "pid": std::process::id(),
            "version": env!("CARGO_PKG_VERSION"),
        }))?;
    } else {
        let painted = out.paint.text(Tone::Name, &url);
        out.line(format!("Recording model calls at {painted}"))?;
        out.line(format!("  OPENAI_BASE_URL={url}/v1   for {}", args.openai))?;
        out.line(format!(
            "  ANTHROPIC_BASE_URL={url}   for {}",
            args.anthropic
        ))?;
        out.line("Ctrl-C ends it.")?;
    }
    out.flush()?;
    stop.await;
    let counts = proxy.stop().await;
    if !out.json {
        let recorded = things(counts.recorded(), "model call", "model calls");
        out.line(format!("Recorded {recorded}."))?;
    }
    let lost = counts.dropped();
    if lost > 0 {
        let lost = things(lost, "model call was", "model calls were");
        tell!("WARNING: {lost} not recorded, because the store was unavailable or slow.");
    }
    Ok(())
}

fn refused(fault: UpstreamFault) -> ClientError {
    ClientError::Usage {
        what: fault.to_string(),
        hint: "use the base URL of the provider, for example https://api.openai.com/v1".into(),
    }
}
