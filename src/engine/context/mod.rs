//! Builds requests: reads windows and passes them to `treering_context`, which is pure. Also
//! appends compactions, active context and sub-contexts.

mod active;
mod build;
mod cache;
mod compact;
mod earlier_tools;
#[cfg(feature = "digest")]
mod knowledge;
#[cfg(not(feature = "digest"))]
#[path = "no_knowledge.rs"]
mod knowledge;
mod recorded;
mod result_digests;
mod sub_contexts;
mod values;
mod window;

#[cfg(feature = "digest")]
pub(super) use self::knowledge::KnowledgeCache;
#[cfg(not(feature = "digest"))]
pub(super) use self::knowledge::NoKnowledge as KnowledgeCache;
#[cfg(feature = "digest")]
pub use self::knowledge::{KnowledgeAnswer, KnowledgeQuery, Prerequisites};
pub use self::{
    active::{
        ContextChange, ContextEntry, ContextScope, ContextValues, LONG_TERM_LABEL, SetContext,
    },
    compact::{CompactCommand, CompactOutcome, CompactionPlan, PlanQuery},
    result_digests::CallDigest,
    sub_contexts::{ReturnCommand, SpawnCommand, SpawnOutcome},
    values::BranchValues,
};
pub(super) use self::{cache::ContextCaches, compact::compactions_of, recorded::RecordedBatch};
use super::{
    error::{AppendError, ReadError},
    query::BranchAddress,
};
use treering_context::{
    LongTermEntry,
    enhancer::Enhancer,
    explain::Explanation,
    policy::PolicyError,
    provider::{Provider, RenderError},
};
use treering_domain::{Position, Revision};

/// A query for a request.
#[derive(Clone)]
pub struct BuildQuery {
    /// The branch.
    pub address: BranchAddress,
    /// As of this revision; `None` for now.
    pub as_of: Option<Revision>,
    /// The provider that determines the body's format.
    pub provider: Provider,
    /// The target model; `None` for the conversation's.
    pub model: Option<String>,
    /// A JSON object merged over the conversation's `context` policy; or empty.
    pub policy: String,
    /// Wait until reads have reached this log position.
    pub at_least: Option<Position>,
    /// The namespace's long-term context; `None` for that of this store. A shard of a cluster may lack
    /// it.
    pub long_term: Option<Vec<LongTermEntry>>,
    /// The caller's own enhancers, run after the engine's.
    pub enhancers: Vec<std::sync::Arc<dyn Enhancer>>,
}

impl BuildQuery {
    /// Creates a query for the next request of a branch.
    #[must_use]
    pub fn new(address: BranchAddress, provider: Provider) -> Self {
        Self {
            address,
            as_of: None,
            provider,
            model: None,
            policy: String::new(),
            at_least: None,
            long_term: None,
            enhancers: Vec::new(),
        }
    }
}

/// A request that is ready to be sent.
#[derive(Clone, Debug, PartialEq)]
pub struct BuiltRequest {
    /// The body as JSON text.
    pub request: Vec<u8>,
    /// The explanation of how it was built.
    pub explanation: Explanation,
}

/// Why a request, plan or compaction failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ContextError {
    /// A read failed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A policy is invalid.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The provider cannot accept such a request.
    #[error(transparent)]
    Render(#[from] RenderError),
    /// An append failed.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// No finished turn can be replaced by a summary.
    #[error("nothing to compact: {reason}")]
    NothingToCompact {
        /// The reason.
        reason: String,
    },
    /// The request is invalid, or not possible now.
    #[error("{message}")]
    Invalid {
        /// The fault, and what to do.
        message: String,
    },
}
