//! The interface for agents: the Model Context Protocol, over standard input and output (`treering
//! mcp`) or HTTP (`/mcp` on the port of the services).
//!
//! `tools`, `prompts` and `resources` have the tools, prompts and resources; `server` implements
//! the protocol (with the crate `rmcp`), `message` and `lines` read input, `source` opens the store
//! when it is needed, `http` checks HTTP requests. Like the commands, all of it uses only the gRPC
//! services, so the same keys, namespaces and rules of appends apply.
//!
//! Recorded text is treated as hostile: its author may be anyone who could write to a page, a file
//! or a terminal that an agent read. It is sent as data and marked as such (`quote`). It is never
//! part of the server's own text.

#![cfg_attr(not(test), warn(unreachable_pub))]

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

pub use http::{HttpEndpoint, HttpOptions, MCP_PATH};
pub use tools::AgentPermissions;

use rmcp::{ServiceExt, service::ServerInitializeError};
use tokio::io::{AsyncRead, AsyncWrite};

use lines::Lines;
use server::AgentHandler;
use source::OwnStore;
use treering_client::ClientError;
use treering_client::ConnectOptions;

/// Serves one agent on these streams until it disconnects. The store is opened when the agent first
/// needs it.
///
/// # Errors
/// [`ClientError::Outcome`] when the input is not valid in the protocol.
pub async fn serve_agent<R, W>(
    options: ConnectOptions,
    allowed: AgentPermissions,
    read: R,
    write: W,
) -> Result<(), ClientError>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let source = OwnStore::new(options);
    let door = AgentHandler::own(source.clone(), allowed);
    let running = match door.serve(Lines::new(read, write)).await {
        Ok(running) => running,
        // A client that disconnects without a message is not an error.
        Err(ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled) => {
            return Ok(());
        }
        Err(error) => return Err(not_spoken(&error)),
    };
    // The client is gone, so the reason for the end does not matter.
    let _ended = running.waiting().await;
    source.close().await;
    Ok(())
}

fn not_spoken(error: &ServerInitializeError) -> ClientError {
    let told = match error {
        ServerInitializeError::ExpectedInitializeRequest(_) => {
            "it did not begin with `initialize`".to_owned()
        }
        error => treering_domain::with_causes(error).to_string(),
    };
    ClientError::Outcome {
        what: format!("the input is not the Model Context Protocol: {told}"),
        hint: "`treering mcp` is started by an agent; `treering init --help` explains how to add \
               it to one"
            .into(),
        exit: treering_client::error::Exit::Failed,
    }
}
