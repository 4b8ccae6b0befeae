//! Stands in for `knowledge` if the feature `digest` is off: there are no tool observations.

use quick_cache::sync::Cache;

use crate::{Engine, error::ReadError, memory, query::BranchAddress};
use treering_domain::Revision;

/// A cache that stays empty.
pub(crate) struct NoKnowledge(Cache<(), ()>);

impl NoKnowledge {
    pub(crate) fn new(_: u64) -> Self {
        Self(Cache::new(1))
    }

    pub(crate) fn forget(&self) {
        self.0.clear();
    }

    pub(crate) fn cache(&self) -> &impl memory::Cache {
        &self.0
    }
}

impl Engine {
    /// Returns an empty text, because there are no tool observations.
    #[allow(clippy::unused_async)]
    pub(super) async fn knowledge_summary(
        &self,
        _: &BranchAddress,
        _: Option<Revision>,
    ) -> Result<String, ReadError> {
        Ok(String::new())
    }
}
