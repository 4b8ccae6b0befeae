//! Explains a request: tokens by section, each item with its events and fate, the report of each
//! enhancer, and the prefix shared with the last request.

mod builder;

use std::borrow::Cow;

use super::{
    draft::{Fate, Section},
    provider::Provider,
};
use treering_domain::{BranchName, ConversationId, EventRef, Revision};

pub use builder::{ExplanationBuilder, items, sections};

/// The explanation of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The conversation.
    pub conversation: ConversationId,
    /// The branch.
    pub branch: BranchName,
    /// Revision of the branch at which the request was built.
    pub revision: Revision,
    /// Provider of the body.
    pub provider: Provider,
    /// The model, or empty.
    pub model: String,
    /// How tokens were counted.
    pub basis: TokenBasis,
    /// Tokens of the request.
    pub tokens: u64,
    /// Token budget; 0 for none.
    pub budget_tokens: u64,
    /// Whether the request exceeds the budget although nothing else may be dropped.
    pub over_budget: bool,
    /// Whether a compaction is due.
    pub compaction_due: bool,
    /// Tokens before anything was shortened or dropped for the budget.
    pub tokens_before_budget: u64,
    /// In the order of [`Section`].
    pub sections: Vec<SectionTokens>,
    /// In the order of the request, including dropped items.
    pub items: Vec<ExplainedItem>,
    /// In the order of the pipeline.
    pub enhancers: Vec<EnhancerReport>,
    /// None for the first request of the branch to this provider since the engine was opened.
    pub shared_prefix: Option<SharedPrefix>,
    /// Warnings for the caller.
    pub warnings: Vec<String>,
    /// Discovered tools without guidance.
    pub guidance_missing: Vec<String>,
}

/// How tokens were counted.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenBasis {
    /// Name of the encoding, for example `o200k_base`.
    pub encoding: &'static str,
    /// False for the model's own encoding, which is exact except for the provider's framing.
    pub estimate: bool,
    /// Factor applied to the counts; 1 if not calibrated.
    pub factor: f64,
    /// Tokens that the provider counts but that no event contains (its framing, an unrecorded
    /// system prompt). Not included in [`Explanation::tokens`].
    pub offset: i64,
    /// Number of recorded usages from which factor and offset were computed.
    pub calibrated_on: u32,
}

/// Tokens of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SectionTokens {
    /// The section.
    pub section: Section,
    /// Tokens in the request.
    pub tokens: u64,
    /// Tokens that were cut or dropped.
    pub dropped_tokens: u64,
    /// Items in the request.
    pub items: u32,
}

/// Description of an item for people.
#[derive(Clone, Debug, PartialEq)]
pub struct ExplainedItem {
    /// Its section in the budget.
    pub section: Section,
    /// Its source events.
    pub events: Vec<EventRef>,
    /// The enhancer that added it.
    pub enhancer: Cow<'static, str>,
    /// `user`, `assistant → read_file, grep` and the like.
    pub label: String,
    /// Its first characters, on one line.
    pub head: String,
    /// Current tokens.
    pub tokens: u64,
    /// Tokens before it was shortened or dropped.
    pub whole_tokens: u64,
    /// What became of it.
    pub fate: Fate,
    /// Why it was added, shortened or dropped.
    pub reason: Cow<'static, str>,
    /// Whether it may change or move in the next request.
    pub is_volatile: bool,
    /// Turn in the window, from 1; 0 for none.
    pub turn: u32,
}

/// Report of an enhancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnhancerReport {
    /// Its name.
    pub name: String,
    /// Whether it was enabled.
    pub enabled: bool,
    /// What it did, or why it did nothing.
    pub did: String,
    /// Number of items that it added or changed.
    pub items: u32,
}

/// The prefix that a request shares with the previous one of the same branch, provider and model.
/// The provider can serve it from its prompt cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedPrefix {
    /// Bytes of equal leading units (the tools, the system prompt, a message).
    pub bytes: u64,
    /// Tokens of these units.
    pub tokens: u64,
    /// Bytes of all units of the previous request.
    pub previous_bytes: u64,
    /// Tokens of the previous request.
    pub previous_tokens: u64,
    /// Revision at which the previous request was built.
    pub previous_revision: Revision,
}
