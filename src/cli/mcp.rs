//! `mcp`: an MCP server on standard input and output, and the options of `serve` for MCP over HTTP.

use clap::Args;
use rmcp::transport::stdio_pipes;

use super::{args::Common, error::ClientError};
use treering_mcp as mcp;
use treering_mcp::{AgentPermissions, HttpOptions};
use treering_server::web_origin;

/// Serve the store to an agent by the Model Context Protocol on standard input and output
///
/// An agent (Claude Code, Codex, opencode, Gemini CLI, VS Code …) starts it to search past
/// sessions: `treering init AGENT` writes the configuration that the agent needs.
///
/// It only reads, unless --writable is given. A folder is opened for each request and closed at
/// once, so that several sessions can share it and imports continue. Answers are bounded, and
/// recorded text is marked as data.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering mcp                                     use the default folder
  treering mcp --data ./store --namespace team
  treering mcp --server http://127.0.0.1:7171 --writable
  treering init claude-code --write                add it to Claude Code, with a hook that imports
  treering serve --mcp-writable                    the same over HTTP (/mcp), for several agents

Tools: search, around, read, conversations, branches, request, recall; with --writable remember
and fork; with --allow-approvals pending and decide. docs/MCP.md has more.")]
pub(crate) struct McpArgs {
    /// Let the agent store memories and fork conversations
    #[arg(long)]
    writable: bool,
    /// Let the agent record decisions on pending calls
    ///
    /// Such an agent can approve calls, including its own. Use it only with a client that asks a
    /// person before each tool call.
    #[arg(long)]
    allow_approvals: bool,
}

/// Serves the agent until it disconnects.
///
/// # Errors
/// [`ClientError::Outcome`] if the input does not follow the protocol.
pub(crate) async fn run(args: &McpArgs, common: &Common) -> Result<(), ClientError> {
    // Report wrong options at once, not at the first call.
    let options = common.connect_options()?;
    let allowed = AgentPermissions {
        writing: args.writable,
        approvals: args.allow_approvals,
    };
    let (read, write) = stdio_pipes();
    mcp::serve_agent(options, allowed, read, write).await
}

/// MCP over HTTP on a server.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Agents")]
pub(crate) struct McpServeArgs {
    /// Do not serve agents on the port of the services (/mcp, the Model Context Protocol over
    /// HTTP). Otherwise, a key as bearer token gives the same access as over gRPC
    #[arg(long)]
    no_mcp: bool,
    /// Let agents store memories and fork conversations, within the roles of their keys
    #[arg(long = "mcp-writable", conflicts_with = "no_mcp")]
    writable: bool,
    /// Also accept agent requests from pages of this origin: https://HOST:PORT (may be given again)
    #[arg(
        long = "mcp-origin",
        value_name = "ORIGIN",
        conflicts_with = "no_mcp",
        value_parser = web_origin
    )]
    origins: Vec<String>,
}

impl McpServeArgs {
    /// Returns the options for agents, or `None` if they are not served.
    pub(crate) fn wanted(&self) -> Option<HttpOptions> {
        (!self.no_mcp).then(|| HttpOptions {
            allowed: AgentPermissions {
                writing: self.writable,
                approvals: false,
            },
            origins: self.origins.clone(),
        })
    }
}
