//! Heuristics about recorded text, without a model: who wrote a message, which lines of a result
//! matter, what to quote from dropped history, what calls did to files.
//!
//! [`TextHeuristics`] implements [`Heuristics`]. Requests use this crate through that trait, except
//! for [`knowledge`]. Without this crate, texts in requests are cut to a maximum length, and notes
//! only count dropped items.
//!
//! - [`result`]: digests of tool results;
//! - [`summary`]: extracts and dialogue summaries;
//! - `user_text`: tells the user's words apart from harness notices in the user's role;
//! - `note`: notes that quote dropped history;
//! - `runs`: cuts the output of tests and builds to a maximum length;
//! - [`knowledge`]: what tool results have shown: files, variables, the working directory, tools,
//!   entities.
//!
//! All functions are pure. The texts that they return quote the conversation and contain no control
//! characters.

#[cfg(test)]
mod budget_tests;
#[cfg(test)]
mod growth_tests;
pub mod knowledge;
mod note;
#[cfg(test)]
mod note_tests;
#[cfg(test)]
mod real_tests;
pub mod result;
mod runs;
#[cfg(test)]
mod savings_tests;
pub mod summary;
mod user_text;

use std::{collections::BTreeMap, sync::Arc};

use treering_context::{
    heuristics::{Heuristics, LocalCommand, NoteWriter, Reply, ResultOf},
    window::{NamesInResult, WindowEvent},
};
use treering_domain::{ConversationId, MessageAppended, ToolResultRecorded};

/// The heuristics of this crate.
#[derive(Clone, Copy, Debug, Default)]
pub struct TextHeuristics;

impl Heuristics for TextHeuristics {
    fn local_command(&self, message: &MessageAppended) -> Option<LocalCommand> {
        user_text::local_command(message)
    }

    fn is_by_harness(&self, message: &MessageAppended) -> bool {
        user_text::is_by_harness(message)
    }

    fn without_notices<'t>(&self, text: &'t str) -> &'t str {
        user_text::without_reminders(text)
    }

    fn is_said(&self, text: &str) -> bool {
        user_text::is_said(text)
    }

    fn said_with(&self, texts: &[&str]) -> Option<String> {
        user_text::of_texts(texts.iter().copied())
    }

    fn reply<'t>(&self, text: &'t str) -> Option<Reply<'t>> {
        user_text::reply(text)
    }

    fn cut_run(&self, text: &str, bytes_max: usize) -> Option<(String, usize)> {
        runs::cut(text, bytes_max)
    }

    fn notes<'h>(&'h self) -> Box<dyn NoteWriter + 'h> {
        Box::<note::Notes>::default()
    }

    fn digest(&self, of: ResultOf<'_>, result: &ToolResultRecorded, max_chars: usize) -> String {
        result::digest(of, result, max_chars)
    }

    fn result_summary(&self, result: &ToolResultRecorded, max_chars: usize) -> String {
        summary::result_summary(result, max_chars)
    }

    fn dialogue_summary(
        &self,
        conversation: ConversationId,
        events: &[Arc<WindowEvent>],
        max_chars: usize,
    ) -> String {
        summary::dialogue_summary(conversation, events, max_chars)
    }

    fn extract(
        &self,
        events: &[Arc<WindowEvent>],
        earlier: Option<&str>,
        max_chars: usize,
    ) -> String {
        summary::compaction_extract(events, earlier, max_chars)
    }

    fn names_in_results(
        &self,
        policies: &BTreeMap<String, String>,
        events: &[Arc<WindowEvent>],
        from: usize,
    ) -> Result<Vec<NamesInResult>, String> {
        knowledge::names_in_results(policies, events, from)
    }

    fn is_extract(&self, summary: &str) -> bool {
        summary::is_extract(summary)
    }

    fn analysis(&self, summary: &str) -> Option<std::ops::Range<usize>> {
        summary::analysis(summary)
    }
}

#[cfg(test)]
trait Digested {
    /// The same window with the heuristics of this crate.
    fn digested(self) -> Self;
}

#[cfg(test)]
impl Digested for treering_context::WindowInput {
    fn digested(mut self) -> Self {
        self.heuristics = Arc::new(TextHeuristics);
        self
    }
}
