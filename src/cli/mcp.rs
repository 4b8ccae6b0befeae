//! `mcp`: the store for an agent, over standard input and output; and what `serve` takes to be
//! reached by agents over HTTP.

use clap::Args;
use rmcp::transport::stdio_pipes;

use super::{args::Common, error::CliError};
use treering_mcp as mcp;
use treering_mcp::{Allowed, HttpOptions};
use treering_server::web_origin;

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
  treering serve --mcp-writable                    the same by HTTP (/mcp), for many

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
    let options = common.connect_options()?;
    let allowed = Allowed {
        writing: args.writable,
        approvals: args.allow_approvals,
    };
    let (read, write) = stdio_pipes();
    mcp::speak(options, allowed, read, write).await
}

/// How agents reach a server.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Agents")]
pub struct McpServeArgs {
    /// Serve agents nothing on the port of the services (/mcp, the Model Context Protocol by
    /// HTTP). Else a key comes as bearer token there, and may do what it may do by gRPC
    #[arg(long)]
    no_mcp: bool,
    /// Let agents remember things and fork conversations, as far as their keys allow it
    #[arg(long = "mcp-writable", conflicts_with = "no_mcp")]
    writable: bool,
    /// Take requests of agents from pages of this origin, too: https://HOST:PORT (may be given
    /// again)
    #[arg(
        long = "mcp-origin",
        value_name = "ORIGIN",
        conflicts_with = "no_mcp",
        value_parser = web_origin
    )]
    origins: Vec<String>,
}

impl McpServeArgs {
    /// How agents are served; none: they are not.
    pub fn wanted(&self) -> Option<HttpOptions> {
        (!self.no_mcp).then(|| HttpOptions {
            allowed: Allowed {
                writing: self.writable,
                approvals: false,
            },
            origins: self.origins.clone(),
        })
    }
}
