//! The text of an event and its passages, as indexed.
//!
//! Byte ranges and lines in search results refer to [`searchable_text`], which depends on the
//! event's body only: equal bodies give equal text. This module does not know the index.

use std::borrow::Cow;

use super::{
    arguments::{PATH_BYTES_MAX, PATHS_MAX, call_text},
    attachment,
};
use treering_domain::{
    BranchId, ContentPart, ConversationId, EventBody, EventKind, MessageAppended, Namespace,
    Position, Revision, Role, TimestampMicros, ToolResultRecorded,
};

/// A passage ends at the first line end after this many bytes.
pub(crate) const PASSAGE_BYTES_TARGET: usize = 3 * 1024;
/// Maximum number of bytes of a passage; longer lines are cut.
pub(crate) const PASSAGE_BYTES_MAX: usize = 4 * 1024;

/// An event with text, to be indexed.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchableEvent {
    /// The namespace.
    pub namespace: Namespace,
    /// The event's conversation.
    pub conversation: ConversationId,
    /// The branch it was appended to.
    pub branch: BranchId,
    /// The event's revision.
    pub revision: Revision,
    /// The event's log position.
    pub position: Position,
    /// The event's kind.
    pub kind: EventKind,
    /// The speaker, for messages.
    pub role: Option<Role>,
    /// The tool, for calls, tool results and snapshots; otherwise empty.
    pub tool: String,
    /// Files and folders that the call names, for calls and results.
    pub paths: Vec<String>,
    /// Whether the tool succeeded, for tool results.
    pub success: Option<bool>,
    /// The text quotes a memory: see [`is_recall_call`](super::is_recall_call).
    pub recalled: bool,
    /// When the engine recorded it.
    pub recorded_at: TimestampMicros,
    /// When it happened; for imported events, long before.
    pub happened_at: TimestampMicros,
    /// The [`searchable_text`] of its body.
    pub text: String,
}

/// Returns the text that is searched, or `None` when this kind of event has none or it is blank.
///
/// - A message: its text, refusal, JSON and reasoning parts and attached text documents, in order,
///   joined by a line feed.
/// - A tool result: its text and JSON parts and text documents, joined by a line feed; without such
///   parts the structured result. For a failure, the error message after a line feed, unless the parts
///   contain it.
/// - A tool call: its arguments, each on its own line as `name: value`, with strings unescaped.
/// - A dialogue summary, a compaction, a returned sub-context, a tool snapshot, a sealed
///   conversation: the summary.
/// - A new conversation, or one whose title changes: the title. An annotation: its label and
///   comment. A custom event: its search text.
///
/// A single part is borrowed, not copied.
#[must_use]
pub fn searchable_text(body: &EventBody) -> Option<Cow<'_, str>> {
    let text = match body {
        EventBody::MessageAppended(message) => message_text(message),
        EventBody::ToolResultRecorded(result) => result_text(result),
        EventBody::SummaryRecorded(summary) => Cow::from(&summary.content),
        EventBody::Compacted(compacted) => Cow::from(&compacted.summary),
        EventBody::SubContextReturned(returned) => Cow::from(&returned.summary),
        EventBody::ToolSnapshotRecorded(snapshot) => Cow::from(&snapshot.summary),
        EventBody::ConversationSealed { summary, .. } => Cow::from(summary),
        EventBody::ToolCallRequested(call) => Cow::from(call_text(call.arguments.as_str())),
        EventBody::ConversationCreated(created) => Cow::from(&created.title),
        EventBody::Custom(custom) => Cow::from(&custom.text),
        EventBody::ConversationChanged(changed) => {
            Cow::from(changed.title.as_deref().unwrap_or_default())
        }
        EventBody::AnnotationAdded(annotation) => join(
            [&annotation.label, &annotation.comment]
                .map(Cow::from)
                .into_iter(),
        ),
        _ => return None,
    };
    (!text.trim().is_empty()).then_some(text)
}

fn message_text(message: &MessageAppended) -> Cow<'_, str> {
    join(message.parts.iter().map(|part| match part {
        ContentPart::Reasoning(reasoning) => Cow::from(&reasoning.text),
        part => part_text(part),
    }))
}

fn part_text(part: &ContentPart) -> Cow<'_, str> {
    match part {
        ContentPart::File(media) => attachment::text(media),
        part => Cow::from(part.text().unwrap_or_default()),
    }
}

/// Returns the part of a message that a byte of [`searchable_text`] belongs to.
#[must_use]
pub fn part_at(body: &EventBody, byte: usize) -> Option<&ContentPart> {
    let EventBody::MessageAppended(message) = body else {
        return None;
    };
    let mut end = 0;
    message.parts.iter().find(|part| {
        let len = match part {
            ContentPart::Reasoning(reasoning) => reasoning.text.len(),
            part => part_text(part).len(),
        };
        if len > 0 {
            end += len + usize::from(end > 0);
        }
        len > 0 && byte < end
    })
}

/// Returns the names of attached files, within the limits on the number and length of indexed
/// paths.
pub fn attached_names(body: &EventBody) -> impl Iterator<Item = &str> {
    let parts = match body {
        EventBody::MessageAppended(message) => message.parts.as_slice(),
        _ => &[],
    };
    let names = parts.iter().filter_map(|part| match part {
        ContentPart::File(file) => Some(file.name.as_str()),
        _ => None,
    });
    names
        .filter(|name| !name.is_empty() && name.len() <= PATH_BYTES_MAX)
        .take(PATHS_MAX)
}

fn result_text(result: &ToolResultRecorded) -> Cow<'_, str> {
    let mut text = join(result.parts.iter().map(part_text));
    if text.is_empty() {
        text = Cow::from(result.structured.as_str());
    }
    let error = result.error_message.as_str();
    if result.success || error.is_empty() || text.contains(error) {
        return text;
    }
    join([text.as_ref(), error].map(Cow::from).into_iter())
        .into_owned()
        .into()
}

/// Joins the non-empty texts with line feeds.
fn join<'a>(texts: impl Iterator<Item = Cow<'a, str>>) -> Cow<'a, str> {
    let mut joined = Cow::from("");
    for text in texts.filter(|text| !text.is_empty()) {
        if joined.is_empty() {
            joined = text;
        } else {
            let joined = joined.to_mut();
            joined.push('\n');
            joined.push_str(&text);
        }
    }
    joined
}

/// Returns a hash of an event's kind and text: equal for equal texts of one kind, almost never for
/// others.
#[must_use]
pub fn text_hash(kind: EventKind, text: &str) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&kind.number().to_le_bytes());
    hasher.update(text.as_bytes());
    let mut first = [0; 8];
    hasher.finalize_xof().fill(&mut first);
    u64::from_le_bytes(first)
}

/// A piece of a text: the content of one document of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passage<'a> {
    /// The piece.
    pub text: &'a str,
    /// The offset of its first byte in the text.
    pub byte_start: usize,
    /// The offset after its last byte.
    pub byte_end: usize,
    /// The line of its first byte, from 1.
    pub line: u64,
}

/// Returns the passage that begins at a byte of a text, or `None` when none can.
#[must_use]
pub fn passage_at(text: &str, byte_start: usize) -> Option<Passage<'_>> {
    let rest = text.get(byte_start..).filter(|rest| !rest.is_empty())?;
    let before = &text.as_bytes()[..byte_start];
    Some(Passage {
        text: &rest[..passage_len(rest)],
        byte_start,
        byte_end: byte_start + passage_len(rest),
        line: before.iter().filter(|&&b| b == b'\n').count() as u64 + 1,
    })
}

/// Cuts a text into adjacent passages without gaps, at line ends, of about `PASSAGE_BYTES_TARGET`
/// bytes each. A line longer than `PASSAGE_BYTES_MAX` is cut at a blank, or else between
/// characters.
pub fn passages(text: &str) -> impl Iterator<Item = Passage<'_>> {
    let mut byte_start = 0;
    let mut line = 1;
    std::iter::from_fn(move || {
        let rest = text.get(byte_start..).filter(|rest| !rest.is_empty())?;
        let passage = Passage {
            text: &rest[..passage_len(rest)],
            byte_start,
            byte_end: byte_start + passage_len(rest),
            line,
        };
        byte_start = passage.byte_end;
        line += passage.text.bytes().filter(|&b| b == b'\n').count() as u64;
        Some(passage)
    })
}

fn passage_len(rest: &str) -> usize {
    if rest.len() <= PASSAGE_BYTES_MAX {
        return rest.len();
    }
    let bytes = rest.as_bytes();
    let line_end = |range: std::ops::Range<usize>| {
        let start = range.start;
        bytes[range]
            .iter()
            .position(|&b| b == b'\n')
            .map(|at| start + at + 1)
    };
    if let Some(end) = line_end(PASSAGE_BYTES_TARGET..PASSAGE_BYTES_MAX) {
        return end;
    }
    if let Some(at) = bytes[..PASSAGE_BYTES_TARGET]
        .iter()
        .rposition(|&b| b == b'\n')
    {
        return at + 1;
    }
    let hard = floor_boundary(rest, PASSAGE_BYTES_MAX);
    let blank = bytes[PASSAGE_BYTES_TARGET..hard]
        .iter()
        .rposition(|&b| b == b' ');
    blank.map_or(hard, |at| PASSAGE_BYTES_TARGET + at + 1)
}

/// Returns the last character boundary at or before `at`.
pub(super) fn floor_boundary(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// Returns the first character boundary at or after `at`.
pub(super) fn ceil_boundary(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use treering_domain::{
        ConversationCreated, JsonText, Media, MediaSource, Reasoning, SummaryRecorded,
    };

    // Byte ranges of hits refer to this text: if it changed, every stored reference would point
    // elsewhere.
    #[test]
    fn searchable_text_of_each_kind_is_fixed() {
        let mut failed = ToolResultRecorded::failure("c", "no such file");
        failed.parts = vec![ContentPart::Text("partial".into())];
        let mut structured = ToolResultRecorded::text("c", "");
        structured.structured = JsonText::from_checked(br#"{"a":1}"#.to_vec().into());
        let reasoning = Reasoning {
            text: "think".into(),
            ..Reasoning::default()
        };
        let message = MessageAppended::new(
            Role::Assistant,
            vec![
                ContentPart::Reasoning(reasoning),
                ContentPart::Text("say".into()),
            ],
        );
        let cases = [
            (
                EventBody::ToolResultRecorded(failed),
                Some("partial\nno such file"),
            ),
            (
                EventBody::ToolResultRecorded(ToolResultRecorded::failure("c", "gone")),
                Some("gone"),
            ),
            (
                EventBody::ToolResultRecorded(structured),
                Some(r#"{"a":1}"#),
            ),
            (
                EventBody::ToolResultRecorded(ToolResultRecorded::text("c", " \n")),
                None,
            ),
            (EventBody::MessageAppended(message), Some("think\nsay")),
            (
                EventBody::SummaryRecorded(SummaryRecorded {
                    content: "sum".into(),
                    from_revision: Revision(1),
                    to_revision: Revision(2),
                }),
                Some("sum"),
            ),
            (
                EventBody::ConversationSealed {
                    reason: "r".into(),
                    summary: "done".into(),
                },
                Some("done"),
            ),
            (
                EventBody::ConversationCreated(ConversationCreated {
                    title: "Where the port is set".into(),
                    ..ConversationCreated::default()
                }),
                Some("Where the port is set"),
            ),
            (EventBody::BranchActivated, None),
        ];
        for (body, expected) in cases {
            assert_eq!(searchable_text(&body).as_deref(), expected, "{body:?}");
        }
    }

    // A model's reasoning must not be shown as its answer.
    #[test]
    fn passages_in_reasoning_are_marked() {
        let reasoning = |text: &str| {
            ContentPart::Reasoning(Reasoning {
                text: text.into(),
                ..Reasoning::default()
            })
        };
        let said = |text: &str| ContentPart::Text(text.into());
        let parts = vec![said(""), reasoning("ab"), said("cd"), reasoning("ef")];
        let body = EventBody::MessageAppended(MessageAppended::new(Role::Assistant, parts));
        assert_eq!(searchable_text(&body).as_deref(), Some("ab\ncd\nef"));
        let is_reasoning =
            (0..9).map(|byte| matches!(part_at(&body, byte), Some(ContentPart::Reasoning(_))));
        let expected = [true, true, false, false, false, true, true, true, false];
        assert_eq!(is_reasoning.collect::<Vec<_>>(), expected);
    }

    // A document that a user attached must be found by its text, not only by its name.
    #[test]
    fn attached_documents_are_searched_and_named() {
        let attached = |media_type: &str, name: &str, bytes: &'static [u8]| {
            ContentPart::File(Media {
                media_type: media_type.into(),
                source: MediaSource::Data(bytes.into()),
                name: name.into(),
                ..Media::default()
            })
        };
        let url = "data:text/csv;charset=utf-8;base64,Y2l0eSxwb3BsCg==";
        let parts = vec![
            ContentPart::Text("see these".into()),
            attached(
                "text/markdown; charset=UTF-8",
                "notes.md",
                "# é\n".as_bytes(),
            ),
            attached("application/pdf", "paper.pdf", b"%PDF"),
            attached("", "main.rs", b"fn main() {}"),
            attached("", "a.bin", b"\x00\xff"),
            ContentPart::File(Media {
                source: MediaSource::Uri(url.into()),
                ..Media::default()
            }),
        ];
        let body = EventBody::MessageAppended(MessageAppended::new(Role::User, parts));
        let text = searchable_text(&body).unwrap();
        assert_eq!(text, "see these\n# é\n\nfn main() {}\ncity,popl\n");
        let name_at = |what: &str| match part_at(&body, text.find(what).unwrap()) {
            Some(ContentPart::File(media)) => media.name.as_str(),
            _ => "",
        };
        assert_eq!(name_at("these"), "");
        assert_eq!(name_at("é"), "notes.md");
        assert_eq!(name_at("main"), "main.rs");
        assert_eq!(name_at("popl"), "");
        let names: Vec<&str> = attached_names(&body).collect();
        assert_eq!(names, ["notes.md", "paper.pdf", "main.rs", "a.bin"]);
        let mut result = ToolResultRecorded::text("c", "exported");
        result.parts.push(attached("text/html", "a.html", b"<p>ok"));
        let result = EventBody::ToolResultRecorded(result);
        assert_eq!(searchable_text(&result).as_deref(), Some("exported\n<p>ok"));
    }

    #[test]
    fn repeated_error_message_is_indexed_once() {
        let mut failed = ToolResultRecorded::failure("c", "boom");
        failed.parts = vec![ContentPart::Text("it went boom".into())];
        let body = EventBody::ToolResultRecorded(failed);
        assert_eq!(searchable_text(&body).as_deref(), Some("it went boom"));
    }

    fn check(text: &str) {
        let mut end = 0;
        for passage in passages(text) {
            assert_eq!(passage.byte_start, end);
            assert_eq!(passage.text, &text[passage.byte_start..passage.byte_end]);
            assert!(!passage.text.is_empty() && passage.text.len() <= PASSAGE_BYTES_MAX);
            let line = text[..passage.byte_start].matches('\n').count() as u64 + 1;
            assert_eq!(passage.line, line);
            end = passage.byte_end;
        }
        assert_eq!(end, text.len());
    }

    // A byte in no passage could never be found; a byte in two passages would be found twice.
    proptest! {
        #[test]
        fn passages_cover_the_whole_text(lines in prop::collection::vec("\\PC{0,400}", 0..60)) {
            check(&lines.join("\n"));
        }
    }

    #[test]
    fn passages_cover_long_lines_and_empty_texts() {
        check("");
        check(&"x".repeat(100_000));
        check(&"é🌲".repeat(20_000));
        check(&"\n".repeat(20_000));
        check(&format!("{}\n{}", "a ".repeat(4_000), "b".repeat(10)));
    }
}
