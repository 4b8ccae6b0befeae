//! The explanation of a request in words and figures. The terminal, the web pages and the tools for
//! agents lay it out.

use crate::{
    Tone,
    json::section_name,
    pb::{self, Fate},
    text::{count, short_id, things},
};

/// At least this many consecutive items that were dropped for the same reason are merged into one
/// row.
const RUN_MIN: usize = 3;

/// A row of a list of items.
#[derive(Clone, Copy, Debug)]
pub enum ItemRow<'a> {
    /// An item.
    One(&'a pb::ExplainedItem),
    /// Several items that were dropped for the same reason.
    Dropped(DroppedRun<'a>),
    /// Where the stable prefix of a prompt cache ends, or begins.
    Border {
        /// The items that follow may differ in the next request.
        is_volatile: bool,
    },
}

/// Consecutive items that were dropped for the same reason.
#[derive(Clone, Copy, Debug)]
pub struct DroppedRun<'a> {
    /// Number of items.
    pub items: usize,
    /// Their tokens.
    pub tokens: u64,
    /// The first and the last turn, if they have any.
    pub turns: Option<(u32, u32)>,
    /// Why they were dropped.
    pub reason: &'a str,
}

impl<'a> DroppedRun<'a> {
    fn of(run: &'a [pb::ExplainedItem]) -> Self {
        let turns = run.iter().map(|item| item.turn).filter(|turn| *turn > 0);
        Self {
            items: run.len(),
            tokens: run.iter().map(|item| item.whole_tokens).sum(),
            turns: turns.clone().min().zip(turns.max()),
            reason: run.first().map_or("", |item| item.reason.as_str()),
        }
    }
}

/// Returns the items as rows; with `all`, each dropped item has its own.
#[must_use]
pub fn item_rows(items: &[pb::ExplainedItem], all: bool) -> Vec<ItemRow<'_>> {
    let mut rows = Vec::new();
    let mut is_volatile = false;
    let mut rest = items;
    while let Some(first) = rest.first() {
        let run = rest.iter().take_while(|item| alike(item, first)).count();
        if first.is_volatile != is_volatile && first.fate() != Fate::Dropped {
            is_volatile = first.is_volatile;
            rows.push(ItemRow::Border { is_volatile });
        }
        let taken = if !all && run >= RUN_MIN { run } else { 1 };
        rows.push(match taken {
            1 => ItemRow::One(first),
            _ => ItemRow::Dropped(DroppedRun::of(&rest[..taken])),
        });
        rest = &rest[taken..];
    }
    rows
}

/// Returns true when both were dropped for the same reason.
fn alike(item: &pb::ExplainedItem, first: &pb::ExplainedItem) -> bool {
    item.fate() == Fate::Dropped && first.fate() == Fate::Dropped && item.reason == first.reason
}

/// Describes [`ItemRow::Border`].
#[must_use]
pub fn border_text(is_volatile: bool) -> &'static str {
    match is_volatile {
        true => "from here on the next request may differ",
        false => "from here on it stays until a compaction",
    }
}

/// Describes what became of an item.
#[must_use]
pub fn fate_text(fate: Fate) -> (Tone, &'static str) {
    match fate {
        Fate::Kept | Fate::Unspecified => (Tone::Dim, "kept"),
        Fate::Shortened => (Tone::Wait, "shortened"),
        Fate::Dropped => (Tone::Bad, "dropped"),
    }
}

/// Returns the name of a section.
#[must_use]
pub fn section_text(section: pb::Section) -> String {
    section_name(section).replace('_', " ")
}

/// Returns the sections that have tokens, or had some before the budget was applied.
pub fn sections(told: &pb::Explanation) -> impl Iterator<Item = &pb::SectionTokens> {
    let sections = told.sections.iter();
    sections.filter(|section| section.tokens > 0 || section.dropped_tokens > 0)
}

/// The tokens of a request within its budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetTokens {
    /// The budget, or the used tokens if they are more.
    pub whole: u64,
    /// Unused tokens.
    pub free: u64,
}

impl BudgetTokens {
    /// Returns the tokens of a request.
    #[must_use]
    pub fn of(told: &pb::Explanation) -> Self {
        let used = told.sections.iter().map(|section| section.tokens).sum();
        let whole = told.budget_tokens.max(used);
        Self {
            whole,
            free: whole - used,
        }
    }
}

/// Returns a share in whole percent; `<1%` for one that is not zero and below 1 %.
#[must_use]
pub fn token_share(part: u64, whole: u64) -> String {
    if whole == 0 {
        return String::new();
    }
    let percent = u128::from(part) * 100 / u128::from(whole);
    match (percent, part) {
        (0, 1..) => "<1%".to_owned(),
        (percent, _) => format!("{percent}%"),
    }
}

/// Returns how a request's tokens were counted: the encoding, and the calibration if there is one.
#[must_use]
pub fn token_basis(basis: &pb::TokenBasis) -> String {
    let kind = if basis.estimate {
        "estimated with"
    } else {
        "counted with"
    };
    let calibrated = match basis.calibrated_on {
        0 => String::new(),
        usages => format!(
            " × {:.2}, calibrated on {}",
            basis.factor,
            things(u64::from(usages), "recorded usage", "recorded usages")
        ),
    };
    format!("{kind} {}{calibrated}", basis.encoding)
}

/// What the reader should know before the details.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Its severity.
    pub tone: Tone,
    /// One sentence.
    pub text: String,
    /// What to do, if that is known.
    pub advice: Option<Advice>,
}

/// What to do about a notice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Advice {
    /// A sentence.
    Text(&'static str),
    /// A command, which shows more.
    Command(String),
}

/// Returns the notices, with at most `warnings_max` warnings.
#[must_use]
pub fn notices(told: &pb::Explanation, warnings_max: usize) -> Vec<Notice> {
    let notice = |tone, text: &str, advice| Notice {
        tone,
        text: text.to_owned(),
        advice,
    };
    let mut notices = Vec::new();
    if told.over_budget {
        let advice = "Raise the budget, or drop more in the policy's drop_order.";
        notices.push(notice(
            Tone::Bad,
            "It is over its budget, and nothing more may be dropped.",
            Some(Advice::Text(advice)),
        ));
    }
    if told.compaction_due {
        let command = Advice::Command(compact_command(told));
        let text = "A compaction is due. This shows where it would cut:";
        notices.push(notice(Tone::Wait, text, Some(command)));
    }
    if !told.guidance_missing.is_empty() {
        let names = told.guidance_missing.join(", ");
        let text = format!("No guidance was given yet for: {names}");
        notices.push(notice(Tone::Strong, &text, None));
    }
    let warnings = told.warnings.iter().take(warnings_max);
    notices.extend(warnings.map(|warning| notice(Tone::Wait, warning, None)));
    notices
}

/// Returns the number of tokens that the budget removed by dropping and shortening.
#[must_use]
pub fn dropped_tokens(told: &pb::Explanation) -> u64 {
    told.tokens_before_budget.saturating_sub(told.tokens)
}

/// Lists the sections with their tokens on one line.
#[must_use]
pub fn sections_line(told: &pb::Explanation) -> String {
    let sections = sections(told).map(|section| {
        let (name, tokens) = (section_text(section.section()), count(section.tokens));
        match section.dropped_tokens {
            0 => format!("{name} {tokens}"),
            left => format!("{name} {tokens} ({} left out)", count(left)),
        }
    });
    sections.collect::<Vec<_>>().join(", ")
}

/// Returns the command that plans the due compaction, with the budget for which it is due: with
/// another budget, the plan could say that none is due.
#[must_use]
pub fn compact_command(told: &pb::Explanation) -> String {
    let id = short_id("", &told.conversation_id);
    match told.budget_tokens {
        0 => format!("treering compact {id}"),
        budget => format!("treering compact {id} --budget {budget}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(fate: Fate, reason: &str, is_volatile: bool) -> pb::ExplainedItem {
        pb::ExplainedItem {
            fate: fate.into(),
            reason: reason.into(),
            is_volatile,
            ..Default::default()
        }
    }

    // Four hundred items that were dropped for one reason hid the dozen that were sent.
    #[test]
    fn items_dropped_alike_are_one_row() {
        let mut items = vec![item(Fate::Kept, "", false)];
        items.extend((0..4).map(|_| item(Fate::Dropped, "old", false)));
        items.extend((0..2).map(|_| item(Fate::Dropped, "long", false)));
        items.push(item(Fate::Kept, "", true));
        items.push(item(Fate::Kept, "", true));
        let kinds = |all| {
            let kinds = item_rows(&items, all).into_iter().map(|row| match row {
                ItemRow::One(_) => 1,
                ItemRow::Dropped(run) => run.items,
                ItemRow::Border { .. } => 0,
            });
            kinds.collect::<Vec<_>>()
        };
        assert_eq!(kinds(false), [1, 4, 1, 1, 0, 1, 1]);
        assert_eq!(kinds(true), [1, 1, 1, 1, 1, 1, 1, 0, 1, 1]);
    }
}
