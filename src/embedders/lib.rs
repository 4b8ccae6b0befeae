//! Embedders: [`LocalModel`] runs a model from files, [`EmbeddingEndpoint`] queries a server.
//!
//! Nothing here downloads a model.

#![cfg_attr(not(test), warn(unreachable_pub))]

use std::{sync::Arc, time::Duration};

use treering_meaning::Embedder;

mod endpoint;
#[cfg(feature = "local")]
mod local;
#[cfg(feature = "local")]
mod tokens;

pub use endpoint::{EmbeddingEndpoint, EndpointOptions};
#[cfg(feature = "local")]
pub use local::{LocalModel, LocalModelError};

/// Maximum time for one answer of an endpoint.
const ENDPOINT_TIMEOUT: Duration = Duration::from_secs(60);

/// The location of an embedder: a folder with a model, or an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EmbedderPlace {
    /// A folder, or the URL of an endpoint without the `/embeddings` at its end.
    pub at: String,
    /// The model's name at the endpoint.
    pub model: Option<String>,
    /// The endpoint's key; may be empty.
    pub key: String,
}

/// Why an embedder could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum EmbedderError {
    /// The folder has no usable model.
    #[error(transparent)]
    Local(Box<dyn std::error::Error + Send + Sync>),
    /// The feature `local` is off.
    #[error(
        "this program was built without models in files, so it cannot use {0}: name an endpoint \
         (https://…), or build it with `--features full`"
    )]
    NotBuilt(String),
    /// The endpoint has no model name.
    #[error("the embedder at {0} needs a model name")]
    NoModel(String),
}

impl EmbedderPlace {
    /// Opens the embedder. A local model is read, which takes about 100 ms; an endpoint is not
    /// contacted yet.
    ///
    /// # Errors
    /// [`EmbedderError`].
    pub fn open(&self) -> Result<Arc<dyn Embedder>, EmbedderError> {
        let is_url = ["http://", "https://"]
            .iter()
            .any(|scheme| self.at.starts_with(scheme));
        if !is_url {
            return self.open_folder();
        }
        let no_model = || EmbedderError::NoModel(self.at.clone());
        Ok(Arc::new(EmbeddingEndpoint::new(EndpointOptions {
            base_url: self.at.clone(),
            model: self.model.clone().ok_or_else(no_model)?,
            key: self.key.clone(),
            timeout: ENDPOINT_TIMEOUT,
        })))
    }

    #[cfg(feature = "local")]
    fn open_folder(&self) -> Result<Arc<dyn Embedder>, EmbedderError> {
        let model = LocalModel::open(self.at.as_ref());
        Ok(Arc::new(
            model.map_err(|error| EmbedderError::Local(error.into()))?,
        ))
    }

    #[cfg(not(feature = "local"))]
    fn open_folder(&self) -> Result<Arc<dyn Embedder>, EmbedderError> {
        Err(EmbedderError::NotBuilt(self.at.clone()))
    }
}
