//! Token counts of a window before and after a cut.

use std::collections::BTreeSet;

use treering_context::{
    draft::{Draft, Item, Section},
    window::WindowInput,
};
use treering_domain::EventRef;

/// Token counts of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WindowTokens {
    /// The whole window.
    pub(crate) before: u64,
    /// What remains after the cut, without the summary.
    pub(crate) kept: u64,
}

impl WindowTokens {
    /// Counts the window of a draft whose first `cut_end` events would be cut.
    pub(crate) fn of(window: &WindowInput, draft: &Draft, cut_end: usize) -> Self {
        let cut: BTreeSet<EventRef> = window.events[..cut_end]
            .iter()
            .map(|event| event.at)
            .collect();
        let goes = |item: &&Item| cut_end > 0 && goes_with(item, &cut);
        let gone: u64 = draft
            .items
            .iter()
            .filter(goes)
            .map(|item| item.tokens)
            .sum();
        let before = draft.tokens();
        Self {
            before,
            kept: before.saturating_sub(gone),
        }
    }
}

/// Returns whether a cut of these events removes an item. Prompts, tools and the active context
/// always stay.
fn goes_with(item: &Item, cut: &BTreeSet<EventRef>) -> bool {
    match item.section {
        // The new summary also replaces the previous one.
        Section::Compaction => true,
        Section::Messages | Section::ToolResults | Section::OpenTurn | Section::Guidance => {
            item.events.first().is_some_and(|first| cut.contains(first))
        }
        _ => false,
    }
}
