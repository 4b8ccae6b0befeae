//! HTTP on the port of the gRPC services: the options of `serve` and `demo`, and the HTTP services
//! for people and agents.

use std::{net::SocketAddr, path::Path, sync::Arc};

use clap::Args;

use super::{error::ClientError, mcp::McpServeArgs};
use treering_access::KeyStore;
use treering_inspector::{Inspector, Prices};
use treering_mcp::{HttpEndpoint, HttpOptions, MCP_PATH};
use treering_server::{ServedStore, WebPlace, WebService};

/// HTTP options.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct WebArgs {
    /// Do not serve web pages on the port of the services
    #[arg(long, help_heading = "Inspector")]
    no_inspector: bool,
    /// JSON file with the prices of models, so that pages show what model calls cost: an object
    /// with a model's name and its input_cost_per_token and output_cost_per_token (US dollars), and
    /// optionally cache_read_input_token_cost and cache_creation_input_token_cost, as in LiteLLM's
    /// list of prices
    #[arg(long, value_name = "FILE", value_parser = prices, help_heading = "Inspector")]
    prices: Option<Arc<Prices>>,
    #[command(flatten)]
    mcp: McpServeArgs,
    /// Also answer browsers and HTTP agents for this host: HOST or HOST:PORT, as they see it behind
    /// a proxy (may be given again)
    #[arg(long, value_name = "HOST", help_heading = "HTTP")]
    web_host: Vec<String>,
}

impl WebArgs {
    /// The settings from these options.
    pub(crate) fn options(&self) -> WebOptions {
        WebOptions {
            pages: !self.no_inspector,
            agents: self.mcp.wanted(),
            hosts: self.web_host.clone(),
            prices: self.prices.clone().unwrap_or_default(),
        }
    }
}

/// HTTP settings.
#[derive(Clone, Debug, Default)]
pub(crate) struct WebOptions {
    /// Serve web pages.
    pub(crate) pages: bool,
    /// Options for serving agents; `None`: agents are not served.
    pub(crate) agents: Option<HttpOptions>,
    /// Allowed hosts of requests, besides the server's own names.
    pub(crate) hosts: Vec<String>,
    /// What models cost; may be empty.
    pub(crate) prices: Arc<Prices>,
}

fn prices(path: &str) -> Result<Arc<Prices>, String> {
    let prices = Prices::read(Path::new(path));
    prices.map(Arc::new).map_err(|error| error.to_string())
}

/// The HTTP services of a running server.
#[derive(Debug)]
pub(crate) struct Web {
    pages: Option<Inspector>,
    agents: Option<HttpEndpoint>,
}

impl Web {
    /// Starts the services for a store that this process serves at the address.
    ///
    /// # Errors
    /// If the store cannot be reached.
    pub(crate) async fn open(
        store: ServedStore,
        keys: Arc<KeyStore>,
        address: SocketAddr,
        tls: bool,
        options: WebOptions,
    ) -> Result<Self, ClientError> {
        let place = WebPlace::new(address, options.hosts, tls);
        let pages = match options.pages {
            true => {
                let (store, keys) = (store.clone(), Arc::clone(&keys));
                Some(Inspector::open(store, keys, place.clone(), options.prices).await?)
            }
            false => None,
        };
        let agents = match options.agents {
            Some(options) => Some(HttpEndpoint::open(store, keys, place, options).await?),
            None => None,
        };
        Ok(Self { pages, agents })
    }

    /// Whether web pages are served.
    pub(crate) fn has_pages(&self) -> bool {
        self.pages.is_some()
    }

    /// Whether agents are served.
    pub(crate) fn has_agents(&self) -> bool {
        self.agents.is_some()
    }

    /// Returns the service, or `None` if there is nothing to serve.
    pub(crate) fn service(&self) -> Option<WebService> {
        let pages = self.pages.as_ref().map(Inspector::web);
        let agents = self.agents.as_ref().map(HttpEndpoint::web);
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

    /// Ends live streams, so that connections can close.
    pub(crate) fn end_streams(&self) {
        if let Some(pages) = &self.pages {
            pages.end_streams();
        }
    }

    /// Closes the services. The server must be closed first.
    pub(crate) async fn close(self) {
        if let Some(pages) = self.pages {
            pages.close().await;
        }
        if let Some(agents) = self.agents {
            agents.close().await;
        }
    }
}
