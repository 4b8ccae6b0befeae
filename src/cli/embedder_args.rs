//! `serve`'s options for search by meaning.

use clap::Args;

use super::{embedded, error::ClientError};
use treering_embedders::EmbedderPlace;
use treering_engine::OpenOptions;

/// The models of search by meaning; off without `--embedder`.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Search by meaning")]
pub(crate) struct EmbedderArgs {
    /// Search by meaning too, with this model: a folder with model.onnx and tokenizer.json, or the
    /// URL of an OpenAI-compatible endpoint up to /embeddings, which then gets all texts of the
    /// store. See docs/MEANING.md
    #[arg(long, value_name = "DIR|URL")]
    embedder: Option<String>,
    /// Name of the model at the endpoint
    #[arg(long, value_name = "NAME", requires = "embedder")]
    embedder_model: Option<String>,
    /// The model that --embedder replaces: searches by meaning use it until all texts are embedded by
    /// the new one
    #[arg(long, value_name = "DIR|URL", requires = "embedder")]
    previous_embedder: Option<String>,
    /// Name of that model at its endpoint
    #[arg(long, value_name = "NAME", requires = "previous_embedder")]
    previous_embedder_model: Option<String>,
    /// Environment variable with the key of both endpoints
    #[arg(long, value_name = "NAME", default_value = "TREERING_EMBEDDER_KEY")]
    embedder_key_env: String,
}

impl EmbedderArgs {
    /// Returns the folder or URL of the model.
    pub(crate) fn at(&self) -> Option<&str> {
        self.embedder.as_deref()
    }

    /// Opens the models, and sets them in the options of an engine.
    ///
    /// # Errors
    /// [`ClientError::Usage`] for a model that cannot be opened.
    pub(crate) fn open(&self, options: &mut OpenOptions) -> Result<(), ClientError> {
        let open = |at: &Option<String>, model: &Option<String>| {
            let place = at.as_ref().map(|at| EmbedderPlace {
                at: at.clone(),
                model: model.clone(),
                key: std::env::var(&self.embedder_key_env).unwrap_or_default(),
            });
            place.as_ref().map(embedded::open_embedder).transpose()
        };
        options.embedder = open(&self.embedder, &self.embedder_model)?;
        options.previous_embedder = open(&self.previous_embedder, &self.previous_embedder_model)?;
        Ok(())
    }
}
