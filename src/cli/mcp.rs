//! `mcp`: the store for an agent, over standard input and output; and what `serve` takes to be
//! reached by agents over HTTP.

use std::{net::SocketAddr, sync::Arc};

use clap::Args;
use rmcp::transport::stdio_pipes;
use tokio::net::TcpListener;

use super::{
    args::Common,
    error::{CliError, Exit},
};
use crate::{
    access::KeyRing,
    engine::Engine,
    mcp::{self, Allowed, HttpDoor, HttpOptions},
};

/// Give an agent the store: a server of the Model Context Protocol on standard input and output
///
/// An agent (Claude Code, Codex, opencode, Gemini CLI, VS Code …) starts it and searches with
/// it in what was said and done before: `treering init AGENT` writes the lines that this needs
/// into the agent's configuration.
///
/// It reads, and changes nothing, unless --writable is said. A folder is opened when the agent
/// asks for something and let go at once, so that several sessions can have the same one, and
/// imports go on. Answers are bounded, and recorded text is marked as data.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering mcp                                     over the default folder
  treering mcp --data ./store --namespace team
  treering mcp --server http://127.0.0.1:7171 --writable
  treering init claude-code --write                add it to Claude Code, with a hook that imports
  treering serve --mcp 127.0.0.1:7172              the same by HTTP, for many

Tools: search, around, read, conversations, branches, request, recall; with --writable remember
and fork; with --allow-approvals pending and decide. docs/MCP.md has more.")]
pub struct McpArgs {
    /// Let the agent remember things and fork conversations
    #[arg(long)]
    writable: bool,
    /// Let the agent write down decisions about calls that wait for a person
    ///
    /// An agent that has this can approve calls, its own among them. Only for one whose client
    /// asks a person before each call of a tool.
    #[arg(long)]
    allow_approvals: bool,
}

/// Speaks with the agent until it ends.
///
/// # Errors
/// [`CliError::Outcome`] when what comes is not the protocol.
pub async fn run(args: &McpArgs, common: &Common) -> Result<(), CliError> {
    // What is mistyped is told at once, not at the first call.
    common.target()?;
    let allowed = Allowed {
        writing: args.writable,
        approvals: args.allow_approvals,
    };
    let (read, write) = stdio_pipes();
    mcp::speak(common.clone(), allowed, read, write).await
}

/// How agents reach a server.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Agents")]
pub struct McpServeArgs {
    /// Serve agents there too, by the Model Context Protocol over HTTP (/mcp). A key comes as
    /// bearer token and may do what it may do by gRPC. There is no TLS: beyond this machine it
    /// needs keys, something before it that encrypts, and --insecure
    #[arg(long = "mcp", value_name = "ADDR")]
    addr: Option<SocketAddr>,
    /// Let agents remember things and fork conversations, as far as their keys allow it
    #[arg(long = "mcp-writable", requires = "addr")]
    writable: bool,
    /// Take requests for this host, too: HOST or HOST:PORT (may be given again)
    #[arg(long = "mcp-host", value_name = "HOST", requires = "addr")]
    hosts: Vec<String>,
    /// Take requests from pages of this origin: https://HOST:PORT (may be given again); of
    /// others none
    #[arg(long = "mcp-origin", value_name = "ORIGIN", requires = "addr", value_parser = mcp::origin)]
    origins: Vec<String>,
}

/// An address that is taken for agents.
#[derive(Debug)]
pub struct McpListener {
    listener: TcpListener,
    options: HttpOptions,
}

impl McpServeArgs {
    /// Where agents reach it, if they do.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.addr
    }

    /// Takes the address.
    ///
    /// # Errors
    /// [`CliError::Outcome`] when it is not to be had.
    pub async fn listen(&self) -> Result<Option<McpListener>, CliError> {
        let Some(addr) = self.addr else {
            return Ok(None);
        };
        let listener = TcpListener::bind(addr).await;
        let listener = listener.map_err(|cause| CliError::Outcome {
            what: CliError::Listen { addr, cause }.to_string(),
            hint: "choose another address with --mcp (port 0 takes any free one)".into(),
            exit: Exit::Failed,
        })?;
        let options = HttpOptions {
            allowed: Allowed {
                writing: self.writable,
                approvals: false,
            },
            hosts: self.hosts.clone(),
            origins: self.origins.clone(),
        };
        Ok(Some(McpListener { listener, options }))
    }
}

impl McpListener {
    /// Begins to serve an engine that is served by gRPC.
    ///
    /// # Errors
    /// As [`HttpDoor::open`].
    pub async fn serve(self, engine: Engine, keys: Arc<KeyRing>) -> Result<HttpDoor, CliError> {
        HttpDoor::open(self.listener, engine, keys, self.options).await
    }
}
