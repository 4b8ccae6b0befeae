//! What `serve` and `demo` take for the inspector, and the inspector of a server that runs.

use std::sync::Arc;

use clap::Args;

use super::error::CliError;
use crate::{
    access::KeyRing,
    engine::Engine,
    server::{WebPlace, WebService},
};

/// How people look at the store.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Inspector")]
pub struct InspectorArgs {
    /// Serve no pages for people on the port of the services
    #[arg(long)]
    no_inspector: bool,
}

impl InspectorArgs {
    /// True when it is served.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        cfg!(feature = "inspector") && !self.no_inspector
    }
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
        place: WebPlace,
    ) -> Result<Self, CliError> {
        let inspector = crate::inspector::Inspector::open(engine, keys, place).await?;
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
    /// Never: see [`InspectorArgs::is_wanted`].
    ///
    /// # Errors
    /// Always.
    pub async fn open(
        _engine: Engine,
        _keys: Arc<KeyRing>,
        _place: WebPlace,
    ) -> Result<Self, CliError> {
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
