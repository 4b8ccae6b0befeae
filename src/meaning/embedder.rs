//! The interface of models that turn texts into vectors.

use std::{fmt, time::Duration};

/// A model that turns texts into vectors: texts of similar meaning get similar ones.
///
/// Calls block, and may take seconds. An implementation keeps no text after a call.
pub trait Embedder: fmt::Debug + Send + Sync {
    /// Names the model. Vectors can be compared if their models have equal names; after a change of
    /// the name, all vectors are computed again.
    fn model(&self) -> &str;

    /// Returns one vector for each text, in order, all of one length. A text that is too long for
    /// the model is cut.
    ///
    /// # Errors
    /// [`EmbedError`]; then no vector is returned.
    fn embed(&self, texts: &[&str], role: TextRole) -> Result<Vec<Vec<f32>>, EmbedError>;
}

/// The role of a text. Some models embed queries and passages differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextRole {
    /// A text that is searched for.
    Query,
    /// A text that can be found.
    Passage,
}

/// The error of an embedder.
#[derive(Debug, thiserror::Error)]
pub enum EmbedError {
    /// It may work later: the endpoint does not answer, is busy or limits the rate.
    #[error("the embedder does not answer: {message}")]
    Unavailable {
        /// What happened.
        message: String,
        /// When to try again, if the endpoint says so.
        retry_after: Option<Duration>,
    },
    /// It does not accept one of the texts, for example because it is too long.
    #[error("the embedder refused a text: {message}")]
    Refused {
        /// What happened.
        message: String,
    },
    /// It will not work until somebody changes something: the key is wrong, the model is missing,
    /// or the answer is malformed.
    #[error("the embedder failed: {message}")]
    Failed {
        /// What happened, and what to do.
        message: String,
    },
}
