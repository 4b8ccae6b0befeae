//! The interface to heuristics about text: who wrote a message, and which part of a result or of
//! dropped history to quote.
//!
//! The crate `treering-digest` implements [`Heuristics`]. [`PlainHeuristics`] guesses nothing: the
//! role of a message decides its author, texts are cut to a length, and notes only count dropped
//! steps.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::Range,
    sync::Arc,
};

use super::{
    compaction::transcript,
    draft::Item,
    text::{clip, head},
    window::{NamesInResult, WindowEvent},
};
use treering_domain::{ContentPart, ConversationId, MessageAppended, ToolResultRecorded};

/// Guesses about recorded text. All methods are pure: the same input gives the same output.
pub trait Heuristics: fmt::Debug + Send + Sync {
    /// Returns the command that a message in the user's role records: one that the user ran at the
    /// agent's prompt. None for other messages.
    fn local_command(&self, message: &MessageAppended) -> Option<LocalCommand>;

    /// Whether a harness wrote a message in the user's role.
    fn is_by_harness(&self, message: &MessageAppended) -> bool;

    /// Returns the text of a tool result without the notices that a harness appended.
    fn without_notices<'t>(&self, text: &'t str) -> &'t str;

    /// Whether the user wrote a text in the user's role; false for a notice of a harness.
    fn is_said(&self, text: &str) -> bool;

    /// Returns the user's words in the texts of a message, without the harness's texts. None if
    /// there are none.
    fn said_with(&self, texts: &[&str]) -> Option<String>;

    /// Returns the user's comment that a text in place of a call's result contains. None if the
    /// text is the output of a tool.
    fn reply<'t>(&self, text: &'t str) -> Option<Reply<'t>>;

    /// Cuts the output of a test or build run to about `bytes_max` bytes. Returns the text and the
    /// number of omitted bytes. None for other texts, or if the head and tail of the text are just
    /// as informative.
    fn cut_run(&self, text: &str, bytes_max: usize) -> Option<(String, usize)>;

    /// Returns the writer of the notes of one request.
    fn notes<'h>(&'h self) -> Box<dyn NoteWriter + 'h>;

    /// Returns the digest of a tool result: a few lines, never empty, of at most `max_chars`
    /// characters. A `max_chars` of 0 counts as 1.
    fn digest(&self, of: ResultOf<'_>, result: &ToolResultRecorded, max_chars: usize) -> String;

    /// Returns a tool result as one line, never empty, of at most `max_chars` characters. A
    /// `max_chars` of 0 counts as 1.
    fn result_summary(&self, result: &ToolResultRecorded, max_chars: usize) -> String;

    /// Returns the dialogue summary of events, of at most `max_chars` characters.
    fn dialogue_summary(
        &self,
        conversation: ConversationId,
        events: &[Arc<WindowEvent>],
        max_chars: usize,
    ) -> String;

    /// Returns the summary of events that a compaction replaces, of at most `max_chars` characters.
    /// `earlier` is the summary of an earlier compaction, which is replaced as well.
    fn extract(
        &self,
        events: &[Arc<WindowEvent>],
        earlier: Option<&str>,
        max_chars: usize,
    ) -> String;

    /// Returns the tools and entities that results name, by the rules in a conversation's
    /// `policies`, for results from index `from` on. Earlier events are only searched for calls.
    ///
    /// # Errors
    /// A message if a policy is invalid.
    fn names_in_results(
        &self,
        policies: &BTreeMap<String, String>,
        events: &[Arc<WindowEvent>],
        from: usize,
    ) -> Result<Vec<NamesInResult>, String>;

    /// Whether [`extract`](Self::extract) wrote the summary.
    fn is_extract(&self, summary: &str) -> bool;

    /// Returns the range of the analysis that a model wrote before the summary itself. The analysis
    /// repeats what the summary says, so it can be left out. None if there is no analysis.
    fn analysis(&self, summary: &str) -> Option<Range<usize>>;
}

/// Writes the notes of a request. Gaps must be passed in order.
pub trait NoteWriter {
    /// Returns the longest note about a gap that satisfies `fits`. None if the note should only
    /// count the dropped items.
    fn write(&mut self, gap: &Gap<'_>, fits: &dyn Fn(&str) -> bool) -> Option<String>;
}

/// Adjacent items that were dropped from a request.
#[derive(Debug)]
pub struct Gap<'a> {
    /// The conversation of the request.
    pub conversation: ConversationId,
    /// All items of the request.
    pub items: &'a [Item],
    /// The range in `items` from the first to the last dropped item.
    pub range: Range<usize>,
    /// The dropped items in `range`, without items that have no tokens, which are never sent.
    pub gone: &'a [&'a Item],
    /// The number of dropped steps with calls.
    pub steps: usize,
    /// The beginning of the note, which says what is missing and how to read it.
    pub head: &'a str,
}

/// The call that produced a result.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResultOf<'a> {
    /// Name of the tool, or empty.
    pub tool: &'a str,
    /// Its arguments as JSON text, or empty.
    pub arguments: &'a str,
}

/// A command that the user ran at the prompt of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalCommand {
    /// Command and output, as text for the window.
    pub text: String,
    /// Whether the user hid it from the model (`!!ls`).
    pub is_hidden: bool,
}

/// The user's comment on a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// The user refused the call, with the reason or an empty text.
    Refused(&'a str),
    /// Questions with the user's answers, in order.
    Answered(Vec<(&'a str, &'a str)>),
    /// The user approved the plan.
    Approved,
}

impl<'a> Reply<'a> {
    /// Returns the comment on this call as pairs: a context, and the user's words. Includes a
    /// refusal without a reason, because the call must not be repeated.
    #[must_use]
    pub fn told(&self, call: &str) -> Vec<(String, &'a str)> {
        match self {
            Self::Refused(reason) => vec![(format!("refused {call}"), *reason)],
            Self::Answered(pairs) => {
                let asked = |question: &str| format!("asked “{}”", question.trim());
                let pairs = pairs.iter();
                pairs
                    .map(|(question, answer)| (asked(question), *answer))
                    .collect()
            }
            Self::Approved => vec![(format!("agreed to {call}"), "")],
        }
    }
}

/// Heuristics that guess nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlainHeuristics;

/// Adds no quotations to notes.
struct PlainNotes;

impl NoteWriter for PlainNotes {
    fn write(&mut self, _: &Gap<'_>, _: &dyn Fn(&str) -> bool) -> Option<String> {
        None
    }
}

impl Heuristics for PlainHeuristics {
    fn local_command(&self, _: &MessageAppended) -> Option<LocalCommand> {
        None
    }

    fn is_by_harness(&self, _: &MessageAppended) -> bool {
        false
    }

    fn without_notices<'t>(&self, text: &'t str) -> &'t str {
        text
    }

    fn is_said(&self, text: &str) -> bool {
        !text.trim().is_empty()
    }

    fn said_with(&self, texts: &[&str]) -> Option<String> {
        (!texts.is_empty()).then(|| texts.join("\n"))
    }

    fn reply<'t>(&self, _: &'t str) -> Option<Reply<'t>> {
        None
    }

    fn cut_run(&self, _: &str, _: usize) -> Option<(String, usize)> {
        None
    }

    fn notes<'h>(&'h self) -> Box<dyn NoteWriter + 'h> {
        Box::new(PlainNotes)
    }

    fn digest(&self, _: ResultOf<'_>, result: &ToolResultRecorded, max_chars: usize) -> String {
        self.result_summary(result, max_chars)
    }

    fn result_summary(&self, result: &ToolResultRecorded, max_chars: usize) -> String {
        let max_chars = max_chars.max(1);
        let texts = result.parts.iter().filter_map(ContentPart::text);
        let mut text = head(&texts.collect::<Vec<_>>().join("\n"), max_chars);
        if text.is_empty() {
            text = head(result.structured.as_str(), max_chars);
        }
        let text = match (result.success, text.as_str()) {
            (true, "") => "empty result".to_owned(),
            (true, text) => text.to_owned(),
            (false, text) => format!("failed: {} {text}", result.error_message),
        };
        clip(text.trim(), max_chars)
    }

    fn dialogue_summary(
        &self,
        _: ConversationId,
        events: &[Arc<WindowEvent>],
        max_chars: usize,
    ) -> String {
        clip(
            &transcript(self, events, &BTreeSet::new(), max_chars),
            max_chars,
        )
    }

    fn extract(
        &self,
        events: &[Arc<WindowEvent>],
        earlier: Option<&str>,
        max_chars: usize,
    ) -> String {
        let earlier = earlier.map(|earlier| clip(earlier, max_chars / 2));
        let earlier = earlier.unwrap_or_default();
        let room = max_chars.saturating_sub(earlier.chars().count() + 2);
        let rest = transcript(self, events, &BTreeSet::new(), room);
        clip(format!("{earlier}\n\n{rest}").trim(), max_chars)
    }

    fn names_in_results(
        &self,
        _: &BTreeMap<String, String>,
        _: &[Arc<WindowEvent>],
        _: usize,
    ) -> Result<Vec<NamesInResult>, String> {
        Ok(Vec::new())
    }

    fn is_extract(&self, _: &str) -> bool {
        false
    }

    fn analysis(&self, _: &str) -> Option<Range<usize>> {
        None
    }
}
