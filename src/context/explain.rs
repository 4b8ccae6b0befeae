//! What is told about a request: the budget by section, each item with its
//! events and its fate, what each enhancer did, and how much of the last request
//! it repeats.

mod tell;

use std::borrow::Cow;

use super::{
    draft::{Fate, Section},
    provider::Provider,
};
use treering_domain::{BranchName, ConversationId, EventRef, Revision};

pub use tell::{Telling, items, sections};

/// How a request came to be.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// Conversation.
    pub conversation: ConversationId,
    /// Branch.
    pub branch: BranchName,
    /// The branch's revision that it was built at.
    pub revision: Revision,
    /// Whose body.
    pub provider: Provider,
    /// The model, or empty.
    pub model: String,
    /// How tokens were counted.
    pub basis: TokenBasis,
    /// Tokens of the request.
    pub tokens: u64,
    /// Most tokens; 0: no bound.
    pub budget_tokens: u64,
    /// It has more than the budget: nothing more may be dropped.
    pub over_budget: bool,
    /// A compaction is due.
    pub compaction_due: bool,
    /// Tokens before anything was shortened or dropped for the budget.
    pub tokens_before_budget: u64,
    /// In the order of [`Section`].
    pub sections: Vec<SectionTokens>,
    /// In the order of the request, dropped ones where they would have been.
    pub items: Vec<ExplainedItem>,
    /// In the order of the pipeline.
    pub enhancers: Vec<EnhancerReport>,
    /// None: the first request of the branch to this provider since the engine
    /// was opened.
    pub shared_prefix: Option<SharedPrefix>,
    /// What the caller should know.
    pub warnings: Vec<String>,
    /// Discovered tools for which no guidance was given yet.
    pub guidance_missing: Vec<String>,
}

/// How tokens were counted.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenBasis {
    /// Name of the encoding, for example `o200k_base`.
    pub encoding: &'static str,
    /// False: the model's own encoding, exact but for the provider's framing.
    pub estimate: bool,
    /// What counts were multiplied by; 1: not calibrated.
    pub factor: f64,
    /// Tokens that the provider counts and no event holds (its own framing, a
    /// system prompt that was never recorded). Not in [`Explanation::tokens`].
    pub offset: i64,
    /// Recorded usages that factor and offset come from.
    pub calibrated_on: u32,
}

/// A line of the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SectionTokens {
    /// Which.
    pub section: Section,
    /// Tokens that are in.
    pub tokens: u64,
    /// Tokens that were shortened away or dropped.
    pub dropped_tokens: u64,
    /// Items that are in.
    pub items: u32,
}

/// An item, for people.
#[derive(Clone, Debug, PartialEq)]
pub struct ExplainedItem {
    /// Its line in the budget.
    pub section: Section,
    /// Where it came from.
    pub events: Vec<EventRef>,
    /// The enhancer that put it in.
    pub enhancer: Cow<'static, str>,
    /// `user`, `assistant → read_file, grep` and the like.
    pub label: String,
    /// Its first characters, one line.
    pub head: String,
    /// Tokens now.
    pub tokens: u64,
    /// Tokens that it had whole.
    pub whole_tokens: u64,
    /// What became of it.
    pub fate: Fate,
    /// Why.
    pub reason: Cow<'static, str>,
    /// It may change or move in the next request.
    pub is_volatile: bool,
    /// Turn in the window, from 1; 0: none.
    pub turn: u32,
}

/// What an enhancer did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnhancerReport {
    /// Its name.
    pub name: String,
    /// It was switched on.
    pub enabled: bool,
    /// What it did, or why nothing.
    pub did: String,
    /// Items that it put in or changed.
    pub items: u32,
}

/// How much of the last request of the same branch, provider and model the front
/// of this one repeats: what a provider's prompt cache can serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedPrefix {
    /// Bytes of equal leading units (the tools, the system prompt, a message).
    pub bytes: u64,
    /// Their tokens.
    pub tokens: u64,
    /// All bytes of the last request's units.
    pub previous_bytes: u64,
    /// All of its tokens.
    pub previous_tokens: u64,
    /// The revision that it was built at.
    pub previous_revision: Revision,
}
