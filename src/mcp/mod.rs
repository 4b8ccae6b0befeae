//! The door for agents: the Model Context Protocol, over standard input and output
//! (`treering mcp`) or HTTP (`/mcp` on the port of the services).
//!
//! `tools` has what agents can call, `prompts` and `resources` the rest; `server` speaks the
//! protocol (with the crate `rmcp`), `message` and `lines` read what comes, `source` opens the store when it is needed, `http` is
//! what a request by HTTP passes. All of it knows the gRPC services and nothing behind them, as commands do: keys,
//! namespaces and the rules of appends hold here as there.
//!
//! What was recorded is hostile text: it was written by whoever could write to a page, a file or
//! a terminal that some agent once read. It goes out as data, marked as such (`quote`), and is
//! never part of what this server says itself.

mod bounds;
mod failure;
mod http;
mod lines;
mod message;
mod place;
mod prompts;
mod quote;
mod resources;
mod server;
mod source;
mod tools;

pub use http::{HttpDoor, HttpOptions, MCP_PATH};
pub use tools::Allowed;

use rmcp::{ServiceExt, service::ServerInitializeError};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::cli::{CliError, Common};
use lines::Lines;
use server::AgentDoor;
use source::OwnStore;

/// Speaks with one agent on these streams until it ends. The store is opened when the agent asks
/// for something.
///
/// # Errors
/// [`CliError::Outcome`] when what comes is not the protocol.
pub async fn speak<R, W>(
    common: Common,
    allowed: Allowed,
    read: R,
    write: W,
) -> Result<(), CliError>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let source = OwnStore::new(common);
    let door = AgentDoor::own(source.clone(), allowed);
    let running = match door.serve(Lines::new(read, write)).await {
        Ok(running) => running,
        // Who says nothing and leaves has done nothing wrong.
        Err(ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled) => {
            return Ok(());
        }
        Err(error) => return Err(not_spoken(&error)),
    };
    // However it ended, the other side is gone.
    let _ended = running.waiting().await;
    source.close().await;
    Ok(())
}

fn not_spoken(error: &ServerInitializeError) -> CliError {
    let told = match error {
        ServerInitializeError::ExpectedInitializeRequest(_) => {
            "it began without `initialize`".to_owned()
        }
        error => crate::domain::with_causes(error).to_string(),
    };
    CliError::Outcome {
        what: format!("what came is not the Model Context Protocol: {told}"),
        hint: "an agent starts `treering mcp` and speaks with it; `treering init --help` tells \
               how to add it to one"
            .into(),
        exit: crate::cli::error::Exit::Failed,
    }
}
