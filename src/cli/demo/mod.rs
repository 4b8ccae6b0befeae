//! `demo`: starts a server with a real conversation, in one command.
//!
//! `agent` is the script, `tools` are its tools, `author` records over gRPC, and `tour` is the
//! output for the user.

mod agent;
mod author;
mod tools;
mod tour;

use std::{
    env, fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use clap::Args;

use super::{
    args::Common,
    connect::Connection,
    error::ClientError,
    import,
    output::{Out, Tone},
    serve::{RunningServer, bind_or_any, listen_default, stop_signal},
    text::things,
    web::WebArgs,
};
#[cfg(test)]
pub(crate) use agent::OTHER_WAY;
use tools::Workplace;
use tour::StoreLocation;
use treering_engine::OpenOptions;
use treering_import::{claude_code, format::Format};

/// Folder of the demo's store without `--data`.
const DEMO_DATA: &str = ".treering-demo";

/// Take a tour: a server with a real agent conversation
///
/// Creates a store in ./.treering-demo (or --data DIR), starts a server, and runs a small scripted
/// agent in the current folder. Its tools really run, and only read. Then it shows what was
/// recorded, and serves until Ctrl-C.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering demo                     the tour, then serves until Ctrl-C
  treering demo --exit              the tour alone
  treering demo --claude-code      over your own Claude Code sessions")]
pub(crate) struct DemoArgs {
    /// Stop after the tour
    #[arg(long)]
    exit: bool,
    /// Import your own Claude Code sessions and use them for the tour
    #[arg(long)]
    claude_code: bool,
    /// Address to serve at; if the port is taken, another free one is used
    #[arg(long, value_name = "ADDR", default_value_t = listen_default())]
    listen: SocketAddr,
    #[command(flatten)]
    web: WebArgs,
}

/// Runs the demo.
///
/// # Errors
/// Errors of the store, the network or the output.
pub(crate) async fn run(
    args: &DemoArgs,
    common: &Common,
    out: &mut Out,
) -> Result<(), ClientError> {
    let dir = common
        .data
        .clone()
        .unwrap_or_else(|| PathBuf::from(DEMO_DATA));
    let (listener, moved) = bind_or_any(args.listen).await?;
    if moved {
        out.line(format!("{} is in use: using a free port.", args.listen))?;
    }
    let served = RunningServer::start(OpenOptions::new(&dir), listener, args.web.options()).await?;
    if common.data.is_none() {
        keep_from_git(&dir)?;
    }
    let toured = tour(args, common, &served, &dir, out).await;
    let shown = out.flush();
    if toured.is_ok() && shown.is_ok() && !args.exit {
        stop_signal().await;
    }
    let stopped = served.stop().await;
    toured?;
    shown?;
    stopped
}

/// The demo's folder may be inside a repository, so it gets a `.gitignore`.
fn keep_from_git(dir: &Path) -> Result<(), ClientError> {
    let path = dir.join(".gitignore");
    if path.exists() {
        return Ok(());
    }
    Ok(fs::write(path, "*\n")?)
}

async fn tour(
    args: &DemoArgs,
    common: &Common,
    served: &RunningServer,
    dir: &Path,
    out: &mut Out,
) -> Result<(), ClientError> {
    let url = served.url();
    let store = Connection::to_server_as(&url, &common.namespace, &common.credentials()).await?;
    let paint = out.paint;
    out.line(format!(
        "Serving {} at {} (gRPC, with reflection)",
        dir.display(),
        paint.text(Tone::Name, served.url())
    ))?;
    if let Some(pages) = served.inspector().filter(|_| !args.exit) {
        let pages = paint.text(Tone::Name, pages);
        out.line(format!("To inspect it, open {pages} in a browser"))?;
    }
    let reach = StoreLocation {
        command: command_typed(),
        store: if args.exit {
            format!("--data {}", quoted(dir))
        } else {
            format!("--server {}", served.url())
        },
    };
    if args.claude_code {
        own_sessions(&store, &reach, out).await?;
    } else {
        scripted(&store, dir, &reach, out).await?;
    }
    if !args.exit {
        out.line("")?;
        out.line(
            "The server is still running. Use a second terminal for these commands; Ctrl-C here \
             stops it.",
        )?;
        if let Some(pages) = served.inspector() {
            let pages = paint.text(Tone::Name, pages);
            out.line(format!("Or open {pages} in a browser."))?;
        }
    }
    store.close().await
}

async fn scripted(
    store: &Connection,
    dir: &Path,
    reach: &StoreLocation,
    out: &mut Out,
) -> Result<(), ClientError> {
    let folder = env::current_dir().map_err(|cause| ClientError::ReadFile {
        path: PathBuf::from("."),
        cause,
    })?;
    let story = agent::work(store, Workplace::new(folder, dir)).await?;
    tour::story(&story, out)?;
    tour::search(&story.word, &story.conversation, store, out).await?;
    tour::diff(&story, store, out).await?;
    tour::requests(&story, store, out).await?;
    tour::next_commands(&story, reach, out)
}

/// The tour with the user's own Claude Code sessions.
async fn own_sessions(
    store: &Connection,
    reach: &StoreLocation,
    out: &mut Out,
) -> Result<(), ClientError> {
    let sessions = claude_code::find_sessions();
    if sessions.is_empty() {
        return Err(ClientError::NotFound {
            what: "this account has no Claude Code sessions".into(),
            hint: "expected below projects/ in $CLAUDE_CONFIG_DIR or ~/.claude; `treering demo` \
                   without --claude-code needs none"
                .into(),
        });
    }
    let found = things(sessions.len() as u64, "session", "sessions");
    out.line(format!("Importing {found} of Claude Code."))?;
    out.flush()?;
    let report = import::files(Some(Format::ClaudeCode), sessions, false, store).await?;
    out.lines(report.summary())?;
    let Some((largest, _)) = report.counts().largest else {
        return Err(ClientError::NotFound {
            what: "no session could be imported".into(),
            hint: "see the reasons above".into(),
        });
    };
    tour::search("error", "", store, out).await?;
    tour::next_for_imported(&largest, reach, out)
}

/// Returns the program name for commands that the tour shows: the name that the user typed.
fn command_typed() -> String {
    env::args()
        .next()
        .filter(|command| !command.is_empty())
        .unwrap_or_else(|| "treering".into())
}

fn quoted(dir: &Path) -> String {
    let text = dir.display().to_string();
    let plain = text
        .chars()
        .all(|c| c.is_alphanumeric() || "/._-:\\".contains(c));
    if plain { text } else { format!("'{text}'") }
}
