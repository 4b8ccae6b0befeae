//! What `serve` and `demo` take for whoever comes by HTTP to the port of the services, people and
//! agents, and what answers them.

use std::{net::SocketAddr, sync::Arc};

use clap::Args;

use super::{error::CliError, mcp::McpServeArgs};
use treering_access::KeyRing;
use treering_engine::Engine;
use treering_inspector::Inspector;
use treering_mcp::{HttpDoor, HttpOptions, MCP_PATH};
use treering_server::{WebPlace, WebService};

/// Who is answered by HTTP.
#[derive(Args, Debug, Clone, Default)]
pub struct WebArgs {
    /// Serve no pages for people on the port of the services
    #[arg(long, help_heading = "Inspector")]
    no_inspector: bool,
    #[command(flatten)]
    mcp: McpServeArgs,
    /// Answer browsers, and agents by HTTP, for this host, too: HOST or HOST:PORT, as they are
    /// told behind a proxy (may be given again)
    #[arg(long, value_name = "HOST", help_heading = "By HTTP")]
    web_host: Vec<String>,
}

impl WebArgs {
    /// What is wanted of it.
    pub fn options(&self) -> WebOptions {
        WebOptions {
            pages: !self.no_inspector,
            agents: self.mcp.wanted(),
            hosts: self.web_host.clone(),
        }
    }
}

/// Who is answered by HTTP, and how.
#[derive(Clone, Debug, Default)]
pub struct WebOptions {
    /// People, by pages.
    pub pages: bool,
    /// Agents.
    pub agents: Option<HttpOptions>,
    /// Hosts that requests may be for, besides the server's own names.
    pub hosts: Vec<String>,
}

/// What answers by HTTP on a server that runs.
#[derive(Debug)]
pub struct Web {
    pages: Option<Inspector>,
    agents: Option<HttpDoor>,
}

impl Web {
    /// Begins, over an engine that is served at this address by this process.
    ///
    /// # Errors
    /// When the engine cannot be reached.
    pub async fn open(
        engine: Engine,
        keys: Arc<KeyRing>,
        address: SocketAddr,
        tls: bool,
        options: WebOptions,
    ) -> Result<Self, CliError> {
        let place = WebPlace::new(address, options.hosts, tls);
        let pages = match options.pages {
            true => {
                let (engine, keys) = (engine.clone(), Arc::clone(&keys));
                Some(Inspector::open(engine, keys, place.clone()).await?)
            }
            false => None,
        };
        let agents = match options.agents {
            Some(options) => Some(HttpDoor::open(engine, keys, place, options).await?),
            None => None,
        };
        Ok(Self { pages, agents })
    }

    /// True when people are answered.
    pub fn has_pages(&self) -> bool {
        self.pages.is_some()
    }

    /// True when agents are answered.
    pub fn has_agents(&self) -> bool {
        self.agents.is_some()
    }

    /// What answers; none: nobody is answered.
    pub fn service(&self) -> Option<WebService> {
        let pages = self.pages.as_ref().map(Inspector::web);
        let agents = self.agents.as_ref().map(HttpDoor::web);
        match (pages, agents) {
            (None, None) => None,
            (Some(one), None) | (None, Some(one)) => Some(one),
            (Some(pages), Some(agents)) => Some(WebService::new(move |request| {
                match request.uri().path() == MCP_PATH {
                    true => agents.answer(request),
                    false => pages.answer(request),
                }
            })),
        }
    }

    /// Ends what is live, so that connections can end.
    pub fn end_streams(&self) {
        if let Some(pages) = &self.pages {
            pages.end_streams();
        }
    }

    /// Ends it, after the server.
    pub async fn close(self) {
        if let Some(pages) = self.pages {
            pages.close().await;
        }
        if let Some(agents) = self.agents {
            agents.close().await;
        }
    }
}
