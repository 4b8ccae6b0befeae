//! `read`: returns a recorded text in small parts.

use prost::Message;
use schemars::JsonSchema;
use serde::Deserialize;
use tonic::Code;

use super::{ToolAnswer, given};
use crate::{
    bounds::{READ_BYTES, READ_BYTES_MAX, READ_BYTES_MIN, RESOURCE_BYTES_MAX},
    failure::Failure,
    place::{self, EventPlace},
    quote::{called, fence},
};
use treering_client::{
    Connection, names,
    read::{self as reading, result_of_call, whole_chars},
};
use treering_domain::EventKind;
use treering_present::text::count;
use treering_proto::pb;
use treering_search::call_text;

/// Input of `read`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadInput {
    /// CONVERSATION#REVISION of a result, call or message, or treering:CONVERSATION/REVISION
    #[serde(alias = "reference")]
    address: String,
    /// First line, from 1
    first_line: Option<u64>,
    /// Last line
    last_line: Option<u64>,
    /// First byte, from 0; cannot be combined with lines
    first_byte: Option<u64>,
    /// Maximum number of bytes [6000, at most 32000]
    max_bytes: Option<u32>,
    /// The branch, if not the one that has the event
    branch: Option<String>,
}

/// Returns the text, or the requested part of it.
///
/// # Errors
/// Those of the store, and when the event has no text.
pub(crate) async fn call(input: &ReadInput, store: &Connection) -> Result<ToolAnswer, Failure> {
    let range = Range::of(input)?;
    let max = input.max_bytes.unwrap_or(READ_BYTES);
    let max = max.clamp(READ_BYTES_MIN, READ_BYTES_MAX) as usize;
    let place = place::event(store, &input.address, given(input.branch.as_deref())).await?;
    let call = Call::at(store, &place).await?;
    let source = Source { store, place, call };
    let text = match range {
        Range::Unsaid => source.ends(max).await?,
        range => {
            let piece = source.piece(range, max).await?;
            format!(
                "{}{}{}",
                source.heading(&piece),
                fence(&piece.text),
                piece.rest()
            )
        }
    };
    Ok(ToolAnswer::text(text))
}

/// The requested part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Range {
    Unsaid,
    Lines { first: u64, last: u64 },
    Bytes { first: u64 },
}

impl Range {
    fn of(input: &ReadInput) -> Result<Self, Failure> {
        match (input.first_line, input.last_line, input.first_byte) {
            (None, None, None) => Ok(Self::Unsaid),
            (None, None, Some(first)) => Ok(Self::Bytes { first }),
            (_, _, Some(_)) => Err(Failure::new(
                "lines and bytes are both set",
                "set first_line and last_line, or first_byte",
            )),
            (first, last, None) => {
                let (first, last) = (first.unwrap_or(1).max(1), last.unwrap_or(0));
                match last != 0 && last < first {
                    true => Err(Failure::new(
                        format!("last_line {last} is before first_line {first}"),
                        "set first_line to the smaller number",
                    )),
                    false => Ok(Self::Lines { first, last }),
                }
            }
        }
    }
}

/// The text to read.
struct Source<'a> {
    store: &'a Connection,
    place: EventPlace,
    /// Set for a call: its text is its arguments.
    call: Option<Call>,
}

impl Source<'_> {
    async fn piece(&self, range: Range, max: usize) -> Result<Piece, Failure> {
        match &self.call {
            Some(call) => call.piece(range, max),
            None => Piece::read(self.store, &self.place, range, max).await,
        }
    }

    fn heading(&self, piece: &Piece) -> String {
        let note = self.call.as_ref().map(|call| call.note(&self.place));
        format!(
            "{}: {}{}\n",
            self.place.address(),
            piece.heading(),
            note.unwrap_or_default()
        )
    }

    /// Returns a short text completely, and both ends of a long one: errors are usually at the end.
    async fn ends(&self, max: usize) -> Result<String, Failure> {
        let whole = self.piece(Range::Bytes { first: 0 }, max).await?;
        if whole.is_to_end() {
            return Ok(format!("{}{}", self.heading(&whole), fence(&whole.text)));
        }
        let head = whole.shortened_to(max / 2);
        let tail_bytes = (max / 2) as u64;
        let first = head.total - tail_bytes.min(head.total - head.end());
        let tail = self.piece(Range::Bytes { first }, max / 2).await?;
        let tail = tail.beginning_with_line();
        Ok(format!(
            "{}Its beginning:\n{}[{} bytes omitted: continue with first_byte={}, max_bytes up to \
             {}; `search` with `conversation` finds places in it]\nIts end, from byte {}:\n{}",
            self.heading(&head),
            fence(&head.text),
            count(tail.start - head.end()),
            head.end(),
            READ_BYTES_MAX,
            tail.start,
            fence(&tail.text),
        ))
    }
}

/// A call, and where its result is.
struct Call {
    tool: String,
    /// As the model wrote them.
    arguments: String,
    result: Option<u64>,
}

impl Call {
    /// Returns the call of an event; `None` if the event is not a call.
    async fn at(store: &Connection, place: &EventPlace) -> Result<Option<Self>, Failure> {
        let request = pb::ReadRequest {
            from_revision: place.revision,
            to_revision: place.revision,
            kinds: vec![i32::from(EventKind::ToolCallRequested.number())],
            ..reading::of_branch(&place.id, &place.branch)
        };
        let event = names::first(store, request).await?;
        let Some(pb::event::Body::ToolCallRequested(body)) = event.and_then(|event| event.body)
        else {
            return Ok(None);
        };
        let Ok(call) = pb::ToolCallRequested::decode(body) else {
            return Ok(None);
        };
        let (id, branch) = (&place.id, &place.branch);
        let result = result_of_call(store, id, branch, place.revision, &call.call_id).await?;
        Ok(Some(Self {
            tool: call.tool,
            arguments: String::from_utf8_lossy(&call.arguments).into_owned(),
            result,
        }))
    }

    /// Returns a part of the arguments. Bytes are those of the recorded text; lines are counted as
    /// in `search`.
    fn piece(&self, range: Range, max: usize) -> Result<Piece, Failure> {
        let what = format!("arguments of the call of {}", called(&self.tool));
        match range {
            Range::Lines { .. } => Piece::of_text(what, &call_text(&self.arguments), range, max),
            range => Piece::of_text(what, &self.arguments, range, max),
        }
    }

    fn note(&self, place: &EventPlace) -> String {
        match self.result {
            Some(result) => format!("; its result: {}#{result}", place.called),
            None => "; it has no result".to_owned(),
        }
    }
}

/// A part of a text.
#[derive(Debug)]
struct Piece {
    /// The name of the whole text.
    what: String,
    /// Bytes of the whole text.
    total: u64,
    /// Offset of the part's first byte.
    start: u64,
    /// Number of the part's first line, if known.
    line: Option<u64>,
    text: String,
}

impl Piece {
    async fn read(
        store: &Connection,
        place: &EventPlace,
        range: Range,
        max: usize,
    ) -> Result<Self, Failure> {
        use pb::get_result_request::Which;
        let mut request = pb::GetResultRequest {
            conversation_id: place.id.clone(),
            branch: place.branch.clone(),
            which: Some(Which::Revision(place.revision)),
            ..Default::default()
        };
        let line = match range {
            Range::Lines { first, last } => {
                (request.line_first, request.line_last) = (first, last);
                Some(first)
            }
            Range::Bytes { first } => {
                // One more byte shows whether there is more.
                (request.byte_start, request.byte_length) = (first, max as u64 + 1);
                (first == 0).then_some(1)
            }
            Range::Unsaid => Some(1),
        };
        let failed = |status| not_given(status, place);
        let read = reading::beginning_of_result(store, request, max).await;
        let (info, mut bytes) = read.map_err(failed)?;
        let is_cut = bytes.len() > max;
        bytes.truncate(max);
        let (skipped, text) = whole_chars(&bytes);
        let what = match (info.tool.as_str(), info.success) {
            ("", _) => "text".to_owned(),
            (tool, true) => format!("result of {}", called(tool)),
            (tool, false) => format!("result of {}, which failed", called(tool)),
        };
        let piece = Self {
            what,
            total: info.total_bytes,
            start: info.byte_start + skipped as u64,
            line,
            text: text.to_owned(),
        };
        Ok(match is_cut {
            true => piece.ending_with_line(),
            false => piece,
        })
    }

    /// Returns a part of a text in memory.
    fn of_text(what: String, text: &str, range: Range, max: usize) -> Result<Self, Failure> {
        let total = text.len();
        let (part, line) = match range {
            Range::Lines { first, last } => (lines_of(text, first, last), Some(first)),
            Range::Bytes { first } => {
                let first = usize::try_from(first).ok().filter(|first| *first <= total);
                (
                    first.map(|first| text.ceil_char_boundary(first)..total),
                    (first == Some(0)).then_some(1),
                )
            }
            Range::Unsaid => (Some(0..total), Some(1)),
        };
        let Some(part) = part else {
            return Err(after_end(format!(
                "the range starts beyond the end of the text, which has {total} bytes in {} lines",
                text.lines().count()
            )));
        };
        let kept = &text[part.clone()];
        let kept = &kept[..kept.floor_char_boundary(max)];
        let piece = Self {
            what,
            total: total as u64,
            start: part.start as u64,
            line,
            text: kept.to_owned(),
        };
        Ok(match kept.len() < part.len() {
            true => piece.ending_with_line(),
            false => piece,
        })
    }

    fn end(&self) -> u64 {
        self.start + self.text.len() as u64
    }

    fn is_to_end(&self) -> bool {
        self.end() >= self.total
    }

    /// Cuts the part after its last line end, unless less than half would remain.
    fn ending_with_line(mut self) -> Self {
        if let Some(at) = self.text.rfind('\n')
            && at + 1 >= self.text.len() / 2
        {
            self.text.truncate(at + 1);
        }
        self
    }

    /// Starts the part after its first line end, unless less than half would remain.
    fn beginning_with_line(mut self) -> Self {
        if let Some(at) = self.text.find('\n')
            && at < self.text.len() / 2
        {
            self.text.drain(..=at);
            self.start += at as u64 + 1;
        }
        self
    }

    fn shortened_to(mut self, bytes: usize) -> Self {
        self.text.truncate(self.text.floor_char_boundary(bytes));
        self.ending_with_line()
    }

    /// Returns the number of the last line, if that of the first is known.
    fn last_line(&self) -> Option<u64> {
        let lines = self.text.lines().count().max(1) as u64;
        self.line.map(|line| line + lines - 1)
    }

    fn heading(&self) -> String {
        let part = match (self.line, self.last_line()) {
            _ if self.total == 0 => {
                ": it has no text (images and files are not returned)".to_owned()
            }
            _ if self.start == 0 && self.is_to_end() => String::new(),
            (Some(first), Some(last)) => format!(", lines {first} to {last}"),
            _ => format!(", bytes {} to {}", self.start, self.end()),
        };
        format!("{}, {} bytes{part}", self.what, count(self.total))
    }

    /// Returns a line that says what is left and how to get it.
    fn rest(&self) -> String {
        if self.is_to_end() {
            return "[End of the text.]\n".to_owned();
        }
        let left = count(self.total - self.end());
        match self.last_line().filter(|_| self.text.ends_with('\n')) {
            Some(last) => format!("[{left} more bytes: first_line={}]\n", last + 1),
            None => format!("[{left} more bytes: first_byte={}]\n", self.end()),
        }
    }
}

fn not_given(status: tonic::Status, place: &EventPlace) -> Failure {
    match status.code() {
        Code::NotFound => Failure::new(
            format!("{} has no text", place.address()),
            "`around` shows the event and its neighbours",
        ),
        Code::OutOfRange => after_end(status.message()),
        _ => status.into(),
    }
}

fn after_end(what: impl Into<String>) -> Failure {
    Failure::new(
        what,
        "set a smaller first_line or first_byte; omit both to see the beginning and the end",
    )
}

/// Returns the byte range of lines, counted from 1; `None` when the text ends before the first one.
fn lines_of(text: &str, first: u64, last: u64) -> Option<std::ops::Range<usize>> {
    let index = |line: u64| usize::try_from(line).unwrap_or(usize::MAX);
    let newlines = text.match_indices('\n').map(|(at, _)| at + 1);
    let mut starts = std::iter::once(0).chain(newlines.filter(|start| *start < text.len()));
    let start = starts.nth(index(first) - 1)?;
    let end = match last {
        0 => None,
        last => starts.nth(index(last - first)),
    };
    Some(start..end.unwrap_or(text.len()))
}

/// Returns a text as a resource, from a byte offset on, and the offset of the rest if there is one.
///
/// # Errors
/// As [`call`].
pub(crate) async fn resource(
    store: &Connection,
    uri: &str,
    first_byte: u64,
) -> Result<(String, Option<u64>), Failure> {
    let place = place::event(store, uri, None).await?;
    let range = Range::Bytes { first: first_byte };
    let piece = Piece::read(store, &place, range, RESOURCE_BYTES_MAX as usize).await?;
    let next = (!piece.is_to_end()).then(|| piece.end());
    Ok((fence(&piece.text), next))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(text: &str, start: u64, total: u64, line: Option<u64>) -> Piece {
        Piece {
            what: "result of bash".into(),
            total,
            start,
            line,
            text: text.into(),
        }
    }

    // The arguments of a call could not be read: the answer was the call's result instead, which
    // did not have the line numbers that a search had returned for the arguments.
    #[test]
    fn call_arguments_are_read_by_lines_and_bytes() {
        let call = Call {
            tool: "Edit".into(),
            arguments: r#"{"path":"a.rs","new":"one\ntwo\nthree"}"#.into(),
            result: Some(9),
        };
        let of = |range, max| call.piece(range, max).unwrap();
        let line = of(Range::Lines { first: 3, last: 3 }, 100);
        assert_eq!(line.text, "two\n");
        assert_eq!(
            line.heading(),
            "arguments of the call of Edit, 29 bytes, lines 3 to 3"
        );
        assert_eq!(line.rest(), "[5 more bytes: first_line=4]\n");
        let rest = of(Range::Lines { first: 3, last: 0 }, 5);
        assert_eq!((rest.text.as_str(), rest.start), ("two\n", 20));
        let whole = of(Range::Bytes { first: 0 }, 100);
        assert_eq!(whole.text, call.arguments);
        assert!(whole.is_to_end());
        let past = call
            .piece(Range::Lines { first: 5, last: 0 }, 9)
            .unwrap_err();
        assert!(past.text().contains("4 lines"), "{}", past.text());
        assert!(call.piece(Range::Bytes { first: 99 }, 9).is_err());
    }

    // Continuing at the place that an answer gives must return every byte once.
    #[test]
    fn next_part_begins_where_the_part_ends() {
        let by_line = piece("one\ntwo\nthr", 0, 100, Some(1)).ending_with_line();
        assert_eq!(by_line.text, "one\ntwo\n");
        assert_eq!(by_line.rest(), "[92 more bytes: first_line=3]\n");
        let by_byte = piece("one two", 40, 100, None).ending_with_line();
        assert_eq!(by_byte.rest(), "[53 more bytes: first_byte=47]\n");
        let tail = piece("ne\ntwo\nthree", 88, 100, None).beginning_with_line();
        assert_eq!((tail.start, tail.text.as_str()), (91, "two\nthree"));
        assert_eq!(tail.rest(), "[End of the text.]\n");
        assert_eq!(piece("x\ny\n", 0, 9, Some(5)).last_line(), Some(6));
        assert_eq!(piece("x\ny", 0, 9, Some(5)).last_line(), Some(6));
    }

    #[test]
    fn contradictory_ranges_are_refused() {
        let input = |first_line, last_line, first_byte| ReadInput {
            address: String::new(),
            first_line,
            last_line,
            first_byte,
            max_bytes: None,
            branch: None,
        };
        assert!(Range::of(&input(Some(3), Some(2), None)).is_err());
        assert!(Range::of(&input(Some(3), None, Some(0))).is_err());
        let range = Range::of(&input(None, Some(2), None)).unwrap();
        assert_eq!(range, Range::Lines { first: 1, last: 2 });
    }
}
