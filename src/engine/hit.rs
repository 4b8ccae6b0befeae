//! Turns index hits into search hits: the place of the match in the event's text, the text around
//! it, the author's role, and what the call does.

use super::{
    ReadPath,
    error::ReadError,
    history::same_event,
    search_query::{HitDetails, HitPassage},
};
use treering_domain::{ContentPart, EventBody, EventHeader, Namespace, Position, Role};
use treering_projections::EventEntry;
use treering_search::{
    CallTarget, Hit, Passage, Pattern, Snippet, Snippeter, call_target, part_at, passage_at,
    passages, quoted_address, searchable_text,
};

/// Maximum size of a snippet, in bytes.
const SNIPPET_BYTES_MAX: usize = 240;
/// Maximum size of the context around a match, in bytes.
const CONTEXT_BYTES_MAX: usize = 16 << 10;
/// Maximum length of a hit's command, in bytes.
const COMMAND_BYTES_MAX: usize = 400;

/// The parameters for reading hits.
pub(super) struct HitReader<'a> {
    pub(crate) namespace: &'a Namespace,
    pub(crate) context_lines: u32,
    pub(crate) finds: MatchFinder<'a>,
}

/// How the match is found in a text.
pub(super) enum MatchFinder<'a> {
    /// By a query's words, in the passage that the index found.
    Words(&'a mut Snippeter),
    /// By a pattern, in the whole text.
    Pattern(&'a Pattern),
}

impl ReadPath {
    /// Reads the details of a hit from its event; `None` when the text has no match.
    pub(super) async fn read_hit(
        &self,
        hit: &Hit,
        reader: &mut HitReader<'_>,
    ) -> Result<Option<HitDetails>, ReadError> {
        let (header, body) = self.body_of(hit, reader.namespace).await?;
        let text = searchable_text(&body).unwrap_or_default();
        let place = match &mut reader.finds {
            MatchFinder::Pattern(pattern) => place_of_pattern(&text, pattern),
            MatchFinder::Words(snippeter) => {
                let start = usize::try_from(hit.byte_start).unwrap_or(usize::MAX);
                let passage = passage_at(&text, start).ok_or_else(|| ReadError::Damaged {
                    position: hit.position,
                    message: format!(
                        "the index refers to byte {start}, beyond the end of the text"
                    ),
                })?;
                Some((passage, snippet_of(hit, passage.text, snippeter)))
            }
        };
        let Some((passage, snippet)) = place else {
            return Ok(None);
        };
        let mut found = locate_match(&text, passage, snippet, reader.context_lines);
        found.role = match &body {
            EventBody::MessageAppended(message) => Some(message.role),
            _ => None,
        };
        let first = usize::try_from(found.byte_start).unwrap_or(usize::MAX);
        let part = part_at(&body, first);
        found.in_reasoning = matches!(part, Some(ContentPart::Reasoning(_)));
        if hit.recalled {
            found.quotes = quoted_address(&text, first).unwrap_or_default().to_owned();
        }
        found.call_id = call_id(&body).to_owned();
        let target = self.target(&header, &body).await?;
        found.path = target.paths.into_iter().next().unwrap_or_default();
        if let Some(ContentPart::File(file)) = part {
            found.path.clone_from(&file.name);
        }
        found.command = shortened(&target.command);
        Ok(Some(found))
    }

    /// Reads the event that an index hit refers to.
    pub(super) async fn body_of(
        &self,
        hit: &Hit,
        namespace: &Namespace,
    ) -> Result<(EventHeader, EventBody), ReadError> {
        let Position { offset, .. } = hit.position;
        let record = self.reader.record(offset).await?;
        let named = EventEntry {
            conversation: namespace.key(hit.conversation),
            revision: hit.revision,
            branch: hit.branch,
            kind: hit.kind.number(),
            offset,
        };
        same_event(&named, namespace, &record)?;
        let body = self.history().decode(offset, &record).await?;
        Ok((record.header.clone(), body))
    }

    /// Returns what the call of an event does.
    async fn target(
        &self,
        header: &EventHeader,
        body: &EventBody,
    ) -> Result<CallTarget, ReadError> {
        let call_id = match body {
            EventBody::ToolCallRequested(call) => {
                return Ok(call_target(call.arguments.as_str()));
            }
            EventBody::ToolResultRecorded(result) => &result.call_id,
            EventBody::ToolSnapshotRecorded(snapshot) => &snapshot.call_id,
            _ => return Ok(CallTarget::default()),
        };
        let request = self.request_body(header, call_id).await?;
        Ok(request.map_or_else(CallTarget::default, |call| {
            call_target(call.arguments.as_str())
        }))
    }
}

/// Returns a snippet of the passage, or of the part that a search by meaning found.
fn snippet_of(hit: &Hit, passage: &str, snippeter: &mut Snippeter) -> Snippet {
    let Some(window) = hit.window else {
        return snippeter.snippet(passage, SNIPPET_BYTES_MAX);
    };
    let mut snippet = snippeter.snippet(window.text(passage), SNIPPET_BYTES_MAX);
    let start = usize::from(window.start);
    snippet.byte_start += start;
    snippet.first = match snippet.first.is_empty() {
        true => start..start + usize::from(window.len),
        false => snippet.first.start + start..snippet.first.end + start,
    };
    snippet
}

/// Locates the match of a passage in the text, with its context.
fn locate_match(text: &str, passage: Passage<'_>, snippet: Snippet, around: u32) -> HitDetails {
    let first = snippet.first.clone();
    let lines = |text: &str| text.bytes().filter(|&b| b == b'\n').count() as u64;
    let line = passage.line + lines(&passage.text[..first.start]);
    let (context, context_line) = match around {
        0 => (String::new(), 0),
        around => around_line(text, passage.byte_start + first.start, line, around),
    };
    HitDetails {
        line,
        byte_start: (passage.byte_start + first.start) as u64,
        byte_end: (passage.byte_start + first.end) as u64,
        passage: HitPassage {
            line: passage.line,
            byte_start: passage.byte_start as u64,
            byte_end: passage.byte_end as u64,
        },
        snippet: snippet.text,
        highlights: snippet.highlights,
        context,
        context_line,
        ..HitDetails::default()
    }
}

/// Returns the passage with a pattern's first match, and the match in its line.
fn place_of_pattern<'a>(text: &'a str, pattern: &Pattern) -> Option<(Passage<'a>, Snippet)> {
    let first = pattern.first_match(text)?;
    let passage = passages(text).find(|passage| first.start < passage.byte_end)?;
    let from = first.start - passage.byte_start;
    let first = from..(first.end - passage.byte_start).min(passage.text.len());
    let before = passage.text[..from].rfind('\n').map_or(0, |end| end + 1);
    let after = passage.text[from..].find('\n');
    let line = before..after.map_or(passage.text.len(), |end| from + end);
    let mut piece = line.clone();
    if line.len() > SNIPPET_BYTES_MAX {
        let start = from.saturating_sub(SNIPPET_BYTES_MAX / 4).max(line.start);
        let start = passage.text.floor_char_boundary(start);
        // Begin at the line's start if the match still fits, otherwise at a word boundary.
        let fits = first.end - line.start <= SNIPPET_BYTES_MAX;
        let blank = passage.text[start..from].find(char::is_whitespace);
        piece.start = match (fits, blank) {
            (true, _) => line.start,
            (false, blank) => blank.map_or(start, |blank| start + blank + 1),
        };
        let end = (piece.start + SNIPPET_BYTES_MAX).min(line.end);
        piece.end = passage.text.floor_char_boundary(end);
    }
    let shown = &passage.text[piece.clone()];
    let snippet = Snippet {
        text: shown.to_owned(),
        highlights: pattern.matches(shown).collect(),
        byte_start: piece.start,
        first,
    };
    Some((passage, snippet))
}

/// Returns the line at byte `at` with `around` lines before and after it, within
/// [`CONTEXT_BYTES_MAX`], and the number of the first line.
fn around_line(text: &str, at: usize, line: u64, around: u32) -> (String, u64) {
    let mut start = text[..at].rfind('\n').map_or(0, |end| end + 1);
    let mut first_line = line;
    for _ in 0..around {
        let Some(end) = start.checked_sub(1) else {
            break;
        };
        let before = text[..end].rfind('\n').map_or(0, |end| end + 1);
        if at - before > CONTEXT_BYTES_MAX / 2 {
            break;
        }
        (start, first_line) = (before, first_line - 1);
    }
    let mut end = at;
    for _ in 0..=around {
        let next = text[end..]
            .find('\n')
            .map_or(text.len(), |next| end + next + 1);
        if next - start > CONTEXT_BYTES_MAX {
            break;
        }
        end = next;
    }
    if end <= at {
        // The line alone exceeds the limit.
        start = text.floor_char_boundary(at.saturating_sub(CONTEXT_BYTES_MAX / 4));
        end = text.floor_char_boundary((start + CONTEXT_BYTES_MAX).min(text.len()));
        return (text[start..end].to_owned(), line);
    }
    (
        text[start..end].trim_end_matches('\n').to_owned(),
        first_line,
    )
}

/// Truncates a command.
fn shortened(command: &str) -> String {
    if command.len() <= COMMAND_BYTES_MAX {
        return command.to_owned();
    }
    let end = command.floor_char_boundary(COMMAND_BYTES_MAX);
    format!("{}…", &command[..end])
}

/// Returns the call id of an event, or an empty text.
fn call_id(body: &EventBody) -> &str {
    match body {
        EventBody::ToolCallRequested(call) => &call.call_id,
        EventBody::ToolResultRecorded(result) => &result.call_id,
        EventBody::ToolSnapshotRecorded(snapshot) => &snapshot.call_id,
        EventBody::MessageAppended(message) if message.role == Role::Tool => &message.tool_call_id,
        _ => "",
    }
}
