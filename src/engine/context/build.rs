//! Building requests.

use super::{BuildQuery, Built, ContextError};
use crate::engine::Engine;

impl Engine {
    /// The next request of a branch.
    ///
    /// # Errors
    /// [`ContextError`].
    pub async fn build(&self, query: BuildQuery) -> Result<Built, ContextError> {
        Err(ContextError::Invalid {
            message: format!("no request for {} yet", query.provider),
        })
    }
}
