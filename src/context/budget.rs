//! The budget: what is shortened or dropped until a request fits.
//!
//! Of the conversation itself, `layout` says what stays, is cut or goes; here is the
//! order in which the policy lets that and the other sections give way.

mod arguments;
mod blobs;
mod cut;
mod file_lines;
mod json;
mod laid_out;
mod layout;
mod mark;
mod note;
mod once;
mod pieces;
mod rooms;
mod said;

pub(super) use note::BUDGET;

use treering_domain::ConversationId;

use self::{laid_out::LaidOut, layout::May};
use super::{
    compaction::threshold_tokens,
    draft::{Draft, Fate, Item, Section},
    heuristics::Heuristics,
    policy::{ContextPolicy, Drop},
    tokens::Tally,
    window::WindowInput,
};

/// A conversation with a smaller share of the budget than this is hardly one: sections
/// that may go then go, too.
const STARVED_SHARE: u64 = 4;

/// What the budget did.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Fitted {
    /// Tokens before anything gave way.
    pub tokens_before: u64,
    /// Tokens now.
    pub tokens: u64,
    /// Nothing more may give way, and it is still too much.
    pub over_budget: bool,
    /// The window is above the policy's threshold.
    pub compaction_due: bool,
    /// That threshold, in tokens.
    pub threshold_tokens: u64,
}

/// What cuts and notes of a request go by.
#[derive(Clone, Copy, Debug)]
struct Scope<'h> {
    /// The conversation of the request.
    conversation: ConversationId,
    heuristics: &'h dyn Heuristics,
}

/// Shortens and drops, in the policy's order, until a counted draft fits.
pub fn fit(
    window: &WindowInput,
    policy: &ContextPolicy,
    tally: &Tally,
    draft: &mut Draft,
) -> Fitted {
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
    Fitted {
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
    let mut may = May::default();
    let mut plan: Option<LaidOut> = None;
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
        let made = layout::lay_out(draft, scope, tally, may, budget);
        // Without more to let go, a starved conversation is what there is.
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

/// False when there was nothing of it.
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

impl Fitted {
    /// The same without tokens that were held for what is not in the request after all:
    /// room that nothing takes makes none too large.
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
