//! What a request takes from guesses about text: who wrote a message, what of a result or of
//! dropped history is worth quoting.
//!
//! The crate `treering-digest` implements [`Heuristics`]. [`PlainHeuristics`] guesses nothing:
//! each message is its author's, texts are cut to a length, and dropped steps leave a note that
//! only counts them.

use std::{collections::BTreeSet, fmt, ops::Range, sync::Arc};

use super::{
    compaction::transcript,
    draft::Item,
    text::{clip, head},
    window::WindowEvent,
};
use treering_domain::{ContentPart, ConversationId, MessageAppended, ToolResultRecorded};

/// Guesses about recorded text. All methods are pure: the same input gives the same output.
pub trait Heuristics: fmt::Debug + Send + Sync {
    /// Reads a message in the user's place that records a command which the user ran at the
    /// prompt of the agent.
    fn local_command(&self, message: &MessageAppended) -> Option<LocalCommand>;

    /// Returns whether a harness wrote a message in the user's place.
    fn is_by_harness(&self, message: &MessageAppended) -> bool;

    /// Returns a tool's text without notices that a harness appended to it.
    fn without_notices<'t>(&self, text: &'t str) -> &'t str;

    /// Returns whether a text in the user's place asks or tells something.
    fn is_said(&self, text: &str) -> bool;

    /// Returns what the user said with the texts of a message, without what a harness added.
    fn said_with(&self, texts: &[&str]) -> Option<String>;

    /// Reads the text of a result that is the user's reply to the call.
    fn reply<'t>(&self, text: &'t str) -> Option<Reply<'t>>;

    /// Cuts the output of a test or build run to about `bytes_max` bytes. Returns the text and
    /// the number of bytes left out; `None` if it is no such output or its head and tail say as
    /// much.
    fn cut_run(&self, text: &str, bytes_max: usize) -> Option<(String, usize)>;

    /// Returns the writer of one request's notes.
    fn notes<'h>(&'h self) -> Box<dyn NoteWriter + 'h>;

    /// Returns a digest of a tool result: some lines, at most `max_chars` characters (at least
    /// one), never empty.
    fn digest(&self, of: ResultOf<'_>, result: &ToolResultRecorded, max_chars: usize) -> String;

    /// Returns a tool result in one line of at most `max_chars` characters (at least one), never
    /// empty.
    fn result_summary(&self, result: &ToolResultRecorded, max_chars: usize) -> String;

    /// Returns the summary of a dialogue's turns.
    fn dialogue_summary(
        &self,
        conversation: ConversationId,
        events: &[Arc<WindowEvent>],
        max_chars: usize,
    ) -> String;

    /// Returns the summary for a compaction of events. `earlier` is the summary of an earlier
    /// compaction, which this one replaces.
    fn extract(
        &self,
        events: &[Arc<WindowEvent>],
        earlier: Option<&str>,
        max_chars: usize,
    ) -> String;

    /// Returns whether a summary was written by [`extract`](Self::extract).
    fn is_extract(&self, summary: &str) -> bool;
}

/// Writes the notes of a request, in their order.
pub trait NoteWriter {
    /// Returns the longest text of a note about a gap that `fits`; `None` for one that only
    /// counts what is missing.
    fn write(&mut self, gap: &Gap<'_>, fits: &dyn Fn(&str) -> bool) -> Option<String>;
}

/// Neighbours that were dropped from a request.
#[derive(Debug)]
pub struct Gap<'a> {
    /// The conversation of the request.
    pub conversation: ConversationId,
    /// All items of the request.
    pub items: &'a [Item],
    /// The places of the dropped items in `items`, from the first to the last.
    pub range: Range<usize>,
    /// The dropped items that would have been sent.
    pub gone: &'a [&'a Item],
    /// The number of steps with calls among them.
    pub steps: usize,
    /// How the note begins: what is missing, and where it can be read.
    pub head: &'a str,
}

/// The call that produced a result, as far as it helps to read the result.
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
    /// The command and its output, as a window shows it.
    pub text: String,
    /// The user hid it from the model.
    pub is_hidden: bool,
}

/// What the user said to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// The user refused it, and why; empty: without a reason.
    Refused(&'a str),
    /// Questions with the user's answers, in order.
    Answered(Vec<(&'a str, &'a str)>),
    /// The user agreed to the plan that the call presented.
    Approved,
}

impl<'a> Reply<'a> {
    /// Returns in a line each what the user said to this call, after what it replies to. A
    /// refusal without a reason is included: what was refused is not to be done.
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

/// Guesses nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlainHeuristics;

/// Writes no text into notes.
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

    fn is_extract(&self, _: &str) -> bool {
        false
    }
}
