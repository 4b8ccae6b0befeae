//! Tokens of a window before and after a cut.

use std::collections::BTreeSet;

use crate::{
    context::{
        draft::{Draft, Item, Section},
        window::WindowInput,
    },
    domain::EventRef,
};

/// Tokens of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WindowTokens {
    /// All of it.
    pub before: u64,
    /// What stays after the cut, without the summary.
    pub kept: u64,
}

impl WindowTokens {
    /// Of a window as it is offered for a request, whose events before `cut_end`
    /// would be cut.
    pub fn of(window: &WindowInput, draft: &Draft, cut_end: usize) -> Self {
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

/// Whether an item goes when these events do. What holds on (prompts, tools, the
/// active context) stays wherever it was said.
fn goes_with(item: &Item, cut: &BTreeSet<EventRef>) -> bool {
    match item.section {
        // The new summary stands for the one before as well.
        Section::Compaction => true,
        Section::Messages | Section::ToolResults | Section::OpenTurn | Section::Guidance => {
            item.events.first().is_some_and(|first| cut.contains(first))
        }
        _ => false,
    }
}
