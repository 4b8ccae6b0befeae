//! The budget: what is shortened or dropped until a request fits.
//!
//! Nothing is remembered from one request to the next, and yet what gives way
//! moves seldom: the tokens to save are rounded up to a quarter of the budget, so
//! that the front of a request at its limit stays the same for many requests.

mod cut;

use super::{
    compaction::threshold_tokens,
    draft::{Content, Draft, Fate, Item, Section, Speaker},
    enhancers::{drop_reasoning, snapshots::Snapshots},
    policy::{ContextPolicy, Drop},
    tokens::Tally,
    window::WindowInput,
};

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

/// Shortens and drops, in the policy's order, until a counted draft fits.
pub fn fit(
    window: &WindowInput,
    policy: &ContextPolicy,
    tally: &Tally,
    draft: &mut Draft,
) -> Fitted {
    let tokens_before = draft.tokens();
    let threshold_tokens = threshold_tokens(policy);
    let mut budget = Budget {
        window,
        policy,
        tally,
        draft,
    };
    if policy.budget_tokens > 0 {
        for step in &policy.drop_order {
            if budget.excess() == 0 {
                break;
            }
            budget.give_way(*step);
        }
    }
    let excess = budget.excess();
    if excess > 0 {
        budget.warn(excess);
    }
    Fitted {
        tokens_before,
        tokens: draft.tokens(),
        over_budget: excess > 0,
        compaction_due: tokens_before > threshold_tokens,
        threshold_tokens,
    }
}

struct Budget<'a> {
    window: &'a WindowInput,
    policy: &'a ContextPolicy,
    tally: &'a Tally,
    draft: &'a mut Draft,
}

impl Budget<'_> {
    fn excess(&self) -> u64 {
        match self.policy.budget_tokens {
            0 => 0,
            budget => self.draft.tokens().saturating_sub(budget),
        }
    }

    /// What to save so that the next requests fit, too.
    fn wanted(&self) -> u64 {
        let step = (self.policy.budget_tokens / 4).max(1);
        self.excess().div_ceil(step) * step
    }

    fn give_way(&mut self, what: Drop) {
        match what {
            Drop::ToolResults => self.shorten_results(),
            Drop::Reasoning => self.drop_reasoning(),
            Drop::Turns => self.drop_turns(),
            Drop::OpenTurnResults => self.cut_open_results(),
            Drop::Knowledge
            | Drop::DialogueSummary
            | Drop::LongTermContext
            | Drop::ActiveContext
            | Drop::Guidance => self.drop_section(what.section()),
        }
    }

    /// Results of finished turns become snapshots, oldest first.
    fn shorten_results(&mut self) {
        let (wanted, mut saved) = (self.wanted(), 0);
        let snapshots = Snapshots::new(self.window, self.policy);
        for item in &mut self.draft.items {
            if saved >= wanted {
                break;
            }
            if item.section != Section::Messages || item.fate == Fate::Dropped {
                continue;
            }
            let mut shorter = item.clone();
            let reason = "over the budget: results in short";
            if !snapshots.replace(&mut shorter, 0, reason) {
                continue;
            }
            self.tally.measure_item(&mut shorter);
            // A short result can be shorter than its reference.
            if shorter.tokens < item.tokens {
                saved += item.tokens - shorter.tokens;
                *item = shorter;
            }
        }
    }

    fn drop_reasoning(&mut self) {
        for item in &mut self.draft.items {
            if item.section != Section::Messages || item.fate == Fate::Dropped {
                continue;
            }
            let blocks = |item: &Item| item.step().map_or(0, |step| step.blocks.len());
            let before = blocks(item);
            drop_reasoning(item);
            match blocks(item) {
                after if after == before => {}
                0 => drop(item, "over the budget: it was all reasoning"),
                _ => {
                    item.fate = Fate::Shortened;
                    item.reason = "over the budget: without its reasoning".into();
                    self.tally.measure_item(item);
                }
            }
        }
    }

    fn drop_section(&mut self, section: Section) {
        for item in &mut self.draft.items {
            if item.section == section && item.fate != Fate::Dropped {
                drop(item, "over the budget");
            }
        }
    }

    /// Whole finished turns go, oldest first, but not the one with the last
    /// message of the user.
    fn drop_turns(&mut self) {
        let kept = self.last_user_turn();
        let turns = self.turns_before(kept);
        let needed = self.excess();
        let Some(last) = whole_turns(&turns, needed, self.wanted()) else {
            return;
        };
        for item in &mut self.draft.items {
            if item.section == Section::Messages && (1..=last).contains(&item.turn) {
                drop(item, "over the budget: the oldest turns go first");
            }
        }
    }

    fn last_user_turn(&self) -> u32 {
        let last = self.draft.items.iter().rev().find(|item| {
            let of_user =
                matches!(&*item.content, Content::Message(message) if message.speaker == Speaker::User);
            of_user && matches!(item.section, Section::Messages | Section::OpenTurn)
        });
        match last {
            Some(item) => item.turn,
            None => self
                .draft
                .items
                .iter()
                .map(|item| item.turn)
                .max()
                .unwrap_or_default(),
        }
    }

    /// Tokens of each finished turn before one.
    fn turns_before(&self, kept: u32) -> Vec<(u32, u64)> {
        let mut turns: Vec<(u32, u64)> = Vec::new();
        for item in &self.draft.items {
            if item.section != Section::Messages || item.turn == 0 || item.turn >= kept {
                continue;
            }
            match turns.last_mut() {
                Some((turn, tokens)) if *turn == item.turn => *tokens += item.tokens,
                _ => turns.push((item.turn, item.tokens)),
            }
        }
        turns
    }

    /// Long results of the open turn are cut to head and tail, oldest first.
    fn cut_open_results(&mut self) {
        // Counted along: a sum over all items for each of them would never end.
        let mut tokens = self.draft.tokens();
        for item in &mut self.draft.items {
            if tokens <= self.policy.budget_tokens {
                return;
            }
            if item.section == Section::OpenTurn && cut::results(item) {
                tokens = tokens.saturating_sub(item.tokens);
                self.tally.measure_item(item);
                tokens += item.tokens;
            }
        }
    }

    fn warn(&mut self, excess: u64) {
        let budget = self.policy.budget_tokens;
        self.draft.warnings.push(format!(
            "the request is {excess} tokens over its budget of {budget}, and nothing more may be \
             dropped: compact the conversation, raise `budget_tokens`, or let more go in `drop_order`"
        ));
    }
}

fn drop(item: &mut Item, reason: &'static str) {
    item.fate = Fate::Dropped;
    item.tokens = 0;
    item.reason = reason.into();
}

/// The last turn that has to go: so that `wanted` is saved, or if all of them
/// hold less, what is `needed`.
fn whole_turns(turns: &[(u32, u64)], needed: u64, wanted: u64) -> Option<u32> {
    let until = |tokens: u64| {
        let mut saved = 0;
        turns.iter().find_map(|(turn, of_turn)| {
            saved += of_turn;
            (saved >= tokens).then_some(*turn)
        })
    };
    until(wanted)
        .or_else(|| until(needed))
        .or_else(|| turns.last().map(|(turn, _)| *turn))
}

#[cfg(test)]
mod tests;
