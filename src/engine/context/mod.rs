//! Requests: windows are read here and handed to `crate::context`, which is
//! pure; and what is appended for the context: compactions, active context,
//! sub-contexts.

mod active;
mod build;
mod cache;
mod compact;
mod earlier_tools;
mod knowledge;
mod recorded;
mod snapshots;
mod sub_contexts;
mod values;
mod window;

pub use self::{
    active::{
        ContextChange, ContextEntry, ContextScope, ContextValues, LONG_TERM_LABEL, SetContext,
    },
    build::Assembled,
    compact::{CompactCommand, CompactOutcome, CompactionPlan, PlanQuery},
    knowledge::{KnowledgeAnswer, KnowledgeQuery, Prerequisites},
    snapshots::ToolSnapshot,
    sub_contexts::{Return, Spawn, Spawned},
    values::BranchValues,
};
pub(super) use self::{
    cache::ContextCaches, compact::compactions_of, knowledge::KnowledgeCache,
    recorded::RecordedBatch,
};
use super::{
    error::{AppendError, ReadError},
    query::BranchAddress,
};
use crate::{
    context::{
        enhancer::Enhancer,
        explain::Explanation,
        policy::PolicyError,
        provider::{Provider, RenderError},
    },
    domain::{Position, Revision},
};

/// Which request.
#[derive(Clone)]
pub struct BuildQuery {
    /// The branch.
    pub address: BranchAddress,
    /// As the branch was at this revision; none: now.
    pub as_of: Option<Revision>,
    /// Whose body.
    pub provider: Provider,
    /// The model it is for; none: the conversation's.
    pub model: Option<String>,
    /// JSON object, merged over the conversation's `context` policy; or empty.
    pub policy: String,
    /// Wait until reads have come to this position.
    pub at_least: Option<Position>,
    /// The caller's own steps, after the engine's.
    pub enhancers: Vec<std::sync::Arc<dyn Enhancer>>,
}

impl BuildQuery {
    /// The next request of a conversation's active branch.
    #[must_use]
    pub fn new(address: BranchAddress, provider: Provider) -> Self {
        Self {
            address,
            as_of: None,
            provider,
            model: None,
            policy: String::new(),
            at_least: None,
            enhancers: Vec::new(),
        }
    }
}

/// A request that can be sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Built {
    /// The body, JSON text.
    pub request: Vec<u8>,
    /// How it came to be.
    pub explanation: Explanation,
}

/// Why there is no request, plan or compaction.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ContextError {
    /// Something could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A policy cannot be used.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The provider takes no such request.
    #[error(transparent)]
    Render(#[from] RenderError),
    /// Something could not be appended.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// The request makes no sense, or not now.
    #[error("{message}")]
    Invalid {
        /// What is wrong, and what to do.
        message: String,
    },
}
