//! Token budget: shortens and drops items until a request fits.
//!
//! This module applies the policy's drop order. `layout` decides which items of the conversation
//! stay, are cut or are dropped.

mod arguments;
mod authorship;
mod blobs;
mod conversation_layout;
mod cut;
mod file_lines;
mod json;
mod layout;
mod mark;
mod note;
mod note_allowance;
mod pieces;
mod repeats;

pub(super) use note::BUDGET;

use treering_domain::ConversationId;

use self::{conversation_layout::ConversationLayout, layout::CutPermissions};
use super::{
    compaction::threshold_tokens,
    draft::{Draft, Fate, Item, Section},
    heuristics::Heuristics,
    policy::{ContextPolicy, Drop},
    tokens::Tally,
    window::WindowInput,
};

/// Optional sections are dropped too if the conversation gets less than 1/`STARVED_SHARE` of the
/// budget.
const STARVED_SHARE: u64 = 4;

/// Result of fitting a draft to its budget.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct BudgetOutcome {
    /// Tokens before anything was shortened or dropped.
    pub tokens_before: u64,
    /// Tokens after fitting.
    pub tokens: u64,
    /// Whether the request is over the budget although nothing else may be dropped.
    pub over_budget: bool,
    /// Whether the window exceeds the policy's compaction threshold.
    pub compaction_due: bool,
    /// The compaction threshold, in tokens.
    pub threshold_tokens: u64,
}

/// Inputs for cutting items and writing notes.
#[derive(Clone, Copy, Debug)]
struct Scope<'h> {
    conversation: ConversationId,
    heuristics: &'h dyn Heuristics,
}

/// Shortens and drops items of a counted draft, in the policy's drop order, until it fits.
pub fn fit(
    window: &WindowInput,
    policy: &ContextPolicy,
    tally: &Tally,
    draft: &mut Draft,
) -> BudgetOutcome {
    let tokens_before = draft.tokens();
    let threshold_tokens = threshold_tokens(policy);
    let budget = policy.budget_tokens;
    if budget > 0 && tokens_before > budget {
        give_way(window, policy, tally, draft);
    }
    let tokens = draft.tokens();
    let excess = match budget {
        0 => 0,
        budget => tokens.saturating_sub(budget),
    };
    if excess > 0 {
        warn(draft, budget, excess);
    }
    BudgetOutcome {
        tokens_before,
        tokens,
        over_budget: excess > 0,
        compaction_due: tokens_before > threshold_tokens,
        threshold_tokens,
    }
}

fn give_way(window: &WindowInput, policy: &ContextPolicy, tally: &Tally, draft: &mut Draft) {
    let scope = Scope {
        conversation: window.conversation,
        heuristics: &*window.heuristics,
    };
    let budget = policy.budget_tokens;
    let mut may = CutPermissions::default();
    let mut plan: Option<ConversationLayout> = None;
    for (at, measure) in policy.drop_order.iter().enumerate() {
        if tally.is_stopped() {
            return;
        }
        let is_last = at + 1 == policy.drop_order.len();
        match measure {
            Drop::ToolResults => may.finished_results = true,
            Drop::OpenTurnResults => may.open_results = true,
            Drop::Reasoning => may.reasoning = true,
            Drop::Steps => may.steps = true,
            Drop::Knowledge
            | Drop::DialogueSummary
            | Drop::LongTermContext
            | Drop::ActiveContext
            | Drop::Guidance => {
                if !drop_section(draft, measure.section()) && !is_last {
                    continue;
                }
            }
        }
        if !is_last && !layout::may_fit(draft, tally, may, budget) {
            continue;
        }
        let made = layout::compute_layout(draft, scope, tally, may, budget);
        // If nothing else may be dropped, the last layout is used even if it has too little room.
        let is_enough = made.fits && (!may.steps || made.room >= budget / STARVED_SHARE);
        plan = Some(made);
        if is_enough {
            break;
        }
    }
    if let Some(plan) = plan {
        plan.apply(draft, scope, tally, budget);
    }
}

/// Drops a section. Returns false if the section was already empty.
fn drop_section(draft: &mut Draft, section: Section) -> bool {
    let mut dropped = false;
    for item in &mut draft.items {
        if item.section == section && item.fate != Fate::Dropped {
            drop(item, "over the budget");
            dropped = true;
        }
    }
    dropped
}

impl BudgetOutcome {
    /// Returns the outcome without `unused` tokens, which were reserved for content that is not in
    /// the request. Updates the warning of the draft.
    #[must_use]
    pub fn without(&self, unused: u64, budget: u64, draft: &mut Draft) -> Self {
        let over = |tokens: u64| match budget {
            0 => 0,
            budget => tokens.saturating_sub(budget),
        };
        let tokens = self.tokens.saturating_sub(unused);
        let (before, excess) = (over(self.tokens), over(tokens));
        if before != excess {
            let said = too_much(budget, before);
            draft.warnings.retain(|warning| *warning != said);
            if excess > 0 {
                warn(draft, budget, excess);
            }
        }
        Self {
            tokens,
            tokens_before: self.tokens_before.saturating_sub(unused),
            over_budget: excess > 0,
            ..*self
        }
    }
}

fn warn(draft: &mut Draft, budget: u64, excess: u64) {
    draft.warnings.push(too_much(budget, excess));
}

fn too_much(budget: u64, excess: u64) -> String {
    format!(
        "the request is {excess} tokens over its budget of {budget}, and nothing more may be \
         dropped: compact the conversation, raise `budget_tokens`, or let more go in `drop_order`"
    )
}

fn drop(item: &mut Item, reason: &'static str) {
    item.fate = Fate::Dropped;
    item.tokens = 0;
    item.reason = reason.into();
}
