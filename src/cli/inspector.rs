//! What `serve` and `demo` take for the inspector, and the inspector of a server that runs.

use std::{net::SocketAddr, sync::Arc};

use clap::Args;

use super::error::CliError;
use crate::{access::KeyRing, engine::Engine, server::WebService};

/// How people look at the store.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Inspector")]
pub struct InspectorArgs {
    /// Serve no pages for people on the port of the services
    #[arg(long)]
    no_inspector: bool,
    /// Serve pages for this host, too: HOST or HOST:PORT, as browsers are told behind a proxy
    /// (may be given again)
    #[arg(
        long = "inspector-host",
        value_name = "HOST",
        conflicts_with = "no_inspector"
    )]
    inspector_hosts: Vec<String>,
}

impl InspectorArgs {
    /// How it is served; none: it is not.
    #[must_use]
    pub fn wanted(&self) -> Option<PagesOptions> {
        (cfg!(feature = "inspector") && !self.no_inspector).then(|| PagesOptions {
            hosts: self.inspector_hosts.clone(),
        })
    }
}

/// How pages are served.
#[derive(Clone, Debug, Default)]
pub struct PagesOptions {
    /// Hosts that they are for, besides the server's own names.
    pub hosts: Vec<String>,
}

/// The inspector of a server that runs.
#[derive(Debug)]
pub struct Pages {
    #[cfg(feature = "inspector")]
    inspector: crate::inspector::Inspector,
    #[cfg(not(feature = "inspector"))]
    never: std::convert::Infallible,
}

#[cfg(feature = "inspector")]
impl Pages {
    /// Begins.
    ///
    /// # Errors
    /// When the engine cannot be reached.
    pub async fn open(
        engine: Engine,
        keys: Arc<KeyRing>,
        address: SocketAddr,
        tls: bool,
        options: PagesOptions,
    ) -> Result<Self, CliError> {
        use crate::inspector::{Inspector, InspectorOptions};
        let options = InspectorOptions {
            hosts: options.hosts,
            tls,
        };
        let inspector = Inspector::open(engine, keys, address, options).await?;
        Ok(Self { inspector })
    }

    /// What answers browsers.
    #[must_use]
    pub fn web(&self) -> WebService {
        self.inspector.web()
    }

    /// Ends what is live, so that connections can end.
    pub fn end_streams(&self) {
        self.inspector.end_streams();
    }

    /// Ends it, after the server.
    pub async fn close(self) {
        self.inspector.close().await;
    }
}

/// This program has none.
#[cfg(not(feature = "inspector"))]
impl Pages {
    /// Never: see [`InspectorArgs::wanted`].
    ///
    /// # Errors
    /// Always.
    pub async fn open(
        _engine: Engine,
        _keys: Arc<KeyRing>,
        _address: SocketAddr,
        _tls: bool,
        options: PagesOptions,
    ) -> Result<Self, CliError> {
        drop(options.hosts);
        Err(CliError::Usage {
            what: "this program was built without the inspector".into(),
            hint: "build it with the feature `inspector`".into(),
        })
    }

    /// Nothing.
    #[must_use]
    pub fn web(&self) -> WebService {
        match self.never {}
    }

    /// Nothing.
    pub fn end_streams(&self) {
        match self.never {}
    }

    /// Nothing.
    pub async fn close(self) {
        match self.never {}
    }
}
