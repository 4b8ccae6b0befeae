//! `read`: a recorded text, in parts that are small enough.

use futures::StreamExt;
use schemars::JsonSchema;
use serde::Deserialize;
use tonic::Code;

use super::{ToolAnswer, given};
use crate::{
    cli::{
        Connection,
        names::SCHEME,
        result::{Meant, meant},
        text::count,
    },
    codec::pb,
    mcp::{
        bounds::{READ_BYTES, READ_BYTES_MAX, READ_BYTES_MIN, RESOURCE_BYTES_MAX, TITLE_CHARS},
        failure::Failure,
        place::{self, EventPlace},
        quote::{fenced, named},
    },
};

/// What to read.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadInput {
    /// CONVERSATION#REVISION of a result, call or message, or treering:CONVERSATION/REVISION
    reference: String,
    /// From this line on, counted from 1
    first_line: Option<u64>,
    /// To this line
    last_line: Option<u64>,
    /// From this byte on, counted from 0; not together with lines
    first_byte: Option<u64>,
    /// Most bytes [6000, at most 32000]
    max_bytes: Option<u32>,
    /// The branch, when it is not the one that has the event
    branch: Option<String>,
}

/// The text, or the part of it that was asked for.
///
/// # Errors
/// What the store says, and that there is no text.
pub async fn call(input: &ReadInput, store: &Connection) -> Result<ToolAnswer, Failure> {
    let range = Range::of(input)?;
    let max = input.max_bytes.unwrap_or(READ_BYTES);
    let max = max.clamp(READ_BYTES_MIN, READ_BYTES_MAX) as usize;
    let place = place::event(store, &input.reference, given(input.branch.as_deref())).await?;
    let place = text_of(store, place, &input.reference).await?;
    let text = match range {
        Range::Unsaid => ends(store, &place, max).await?,
        range => {
            let piece = Piece::read(store, &place, range, max).await?;
            format!(
                "{}{}{}",
                piece.heading(&place),
                fenced(&piece.text),
                piece.rest()
            )
        }
    };
    Ok(ToolAnswer::text(text))
}

/// The part that is wanted.
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
                "lines and bytes are both given",
                "give first_line and last_line, or first_byte",
            )),
            (first, last, None) => {
                let (first, last) = (first.unwrap_or(1).max(1), last.unwrap_or(0));
                match last != 0 && last < first {
                    true => Err(Failure::new(
                        format!("last_line {last} is before first_line {first}"),
                        "give the smaller one to first_line",
                    )),
                    false => Ok(Self::Lines { first, last }),
                }
            }
        }
    }
}

/// The event whose text is meant: of a call its result, unless the reference is one of a
/// request, which names an event and no other.
async fn text_of(
    store: &Connection,
    place: EventPlace,
    reference: &str,
) -> Result<EventPlace, Failure> {
    if reference.starts_with(SCHEME) {
        return Ok(place);
    }
    match meant(store, &place.id, &place.branch, place.revision).await? {
        Meant::Itself => Ok(place),
        Meant::ItsResult(revision) => Ok(EventPlace { revision, ..place }),
        Meant::NoResultYet => Err(Failure::new(
            format!("the call {} has no result", place.address()),
            format!(
                "`around` shows what followed; its arguments are at treering:{}/{}",
                place.called, place.revision
            ),
        )),
    }
}

/// A short text whole, of a long one both ends: what failed is told at the end.
async fn ends(store: &Connection, place: &EventPlace, max: usize) -> Result<String, Failure> {
    let whole = Piece::read(store, place, Range::Bytes { first: 0 }, max).await?;
    if whole.is_to_end() {
        return Ok(format!("{}{}", whole.heading(place), fenced(&whole.text)));
    }
    let head = whole.shortened_to(max / 2);
    let tail_bytes = (max / 2) as u64;
    let first = head.total - tail_bytes.min(head.total - head.end());
    let tail = Piece::read(store, place, Range::Bytes { first }, max / 2).await?;
    let tail = tail.beginning_with_line();
    Ok(format!(
        "{}Its beginning:\n{}[{} bytes between are left out: first_byte={} reads on, max_bytes up \
         to {}; `search` with `conversation` finds places in it]\nIts end, from byte {}:\n{}",
        head.heading(place),
        fenced(&head.text),
        count(tail.start - head.end()),
        head.end(),
        READ_BYTES_MAX,
        tail.start,
        fenced(&tail.text),
    ))
}

/// A part of a text.
#[derive(Debug)]
struct Piece {
    tool: String,
    success: bool,
    /// Bytes of the whole text.
    total: u64,
    /// Its first byte.
    start: u64,
    /// The number of its first line, where that is known.
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
                // One more, to know whether there is more.
                (request.byte_start, request.byte_length) = (first, max as u64 + 1);
                (first == 0).then_some(1)
            }
            Range::Unsaid => Some(1),
        };
        let failed = |status| not_given(status, place);
        let mut answers = store
            .tools()
            .get_result(request)
            .await
            .map_err(failed)?
            .into_inner();
        let (mut info, mut bytes) = (pb::ResultInfo::default(), Vec::new());
        // A result may have megabytes: no more is taken than will be shown.
        while bytes.len() <= max
            && let Some(answer) = answers.next().await
        {
            let answer = answer.map_err(failed)?;
            info = answer.info.unwrap_or(info);
            bytes.extend_from_slice(&answer.chunk);
        }
        let is_cut = bytes.len() > max;
        bytes.truncate(max);
        let (skipped, text) = whole_chars(&bytes);
        let piece = Self {
            tool: info.tool,
            success: info.success,
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

    fn end(&self) -> u64 {
        self.start + self.text.len() as u64
    }

    fn is_to_end(&self) -> bool {
        self.end() >= self.total
    }

    /// Ends it with a line, unless that would leave less than half of it.
    fn ending_with_line(mut self) -> Self {
        if let Some(at) = self.text.rfind('\n')
            && at + 1 >= self.text.len() / 2
        {
            self.text.truncate(at + 1);
        }
        self
    }

    /// Begins it with a line, unless that would leave less than half of it.
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

    /// The last line, where the first is known.
    fn last_line(&self) -> Option<u64> {
        let lines = self.text.lines().count().max(1) as u64;
        self.line.map(|line| line + lines - 1)
    }

    fn heading(&self, place: &EventPlace) -> String {
        let what = match (self.tool.as_str(), self.success) {
            ("", _) => "text".to_owned(),
            (tool, true) => format!("result of {}", named(tool, TITLE_CHARS)),
            (tool, false) => format!("result of {}, which failed", named(tool, TITLE_CHARS)),
        };
        let part = match (self.line, self.last_line()) {
            _ if self.total == 0 => {
                ": none of it is text (images and files are not given)".to_owned()
            }
            _ if self.start == 0 && self.is_to_end() => String::new(),
            (Some(first), Some(last)) => format!(", lines {first} to {last}"),
            _ => format!(", bytes {} to {}", self.start, self.end()),
        };
        format!(
            "{}: {what}, {} bytes{part}\n",
            place.address(),
            count(self.total)
        )
    }

    /// What is left, and how to get it.
    fn rest(&self) -> String {
        if self.is_to_end() {
            return "[That is the end.]\n".to_owned();
        }
        let left = count(self.total - self.end());
        match self.last_line().filter(|_| self.text.ends_with('\n')) {
            Some(last) => format!("[{left} bytes follow: first_line={}]\n", last + 1),
            None => format!("[{left} bytes follow: first_byte={}]\n", self.end()),
        }
    }
}

/// The whole characters of a part of a text, and how many bytes of another stand before them.
fn whole_chars(bytes: &[u8]) -> (usize, &str) {
    let is_inside = |byte: &u8| byte & 0b1100_0000 == 0b1000_0000;
    let skipped = bytes
        .iter()
        .take(3)
        .take_while(|byte| is_inside(byte))
        .count();
    let rest = &bytes[skipped..];
    let text = match std::str::from_utf8(rest) {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&rest[..error.valid_up_to()]).unwrap_or_default(),
    };
    (skipped, text)
}

fn not_given(status: tonic::Status, place: &EventPlace) -> Failure {
    match status.code() {
        Code::NotFound => Failure::new(
            format!("{} has no text", place.address()),
            "`around` shows what it is, and its neighbours",
        ),
        Code::OutOfRange => Failure::new(
            status.message(),
            "give a smaller first_line or first_byte; without any you see both ends",
        ),
        _ => status.into(),
    }
}

/// A text as a resource: from its beginning, and what is left of it.
///
/// # Errors
/// As [`call`].
pub async fn resource(
    store: &Connection,
    uri: &str,
    first_byte: u64,
) -> Result<(String, Option<u64>), Failure> {
    let place = place::event(store, uri, None).await?;
    let range = Range::Bytes { first: first_byte };
    let piece = Piece::read(store, &place, range, RESOURCE_BYTES_MAX as usize).await?;
    let next = (!piece.is_to_end()).then(|| piece.end());
    Ok((piece.text, next))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(text: &str, start: u64, total: u64, line: Option<u64>) -> Piece {
        Piece {
            tool: "bash".into(),
            success: false,
            total,
            start,
            line,
            text: text.into(),
        }
    }

    // A part that begins or ends inside a character is no text; what is left out of it must not
    // be lost to who reads on.
    #[test]
    fn parts_are_whole_characters() {
        let text = "aé日本".as_bytes();
        assert_eq!(whole_chars(&text[..2]), (0, "a"));
        assert_eq!(whole_chars(&text[2..]), (1, "日本"));
        assert_eq!(whole_chars(&text[4..]), (2, "本"));
        assert_eq!(whole_chars(&text[..8]), (0, "aé日"));
        assert_eq!(whole_chars(b""), (0, ""));
    }

    // Reading on from where an answer says gives every byte once.
    #[test]
    fn what_is_left_begins_where_the_part_ends() {
        let by_line = piece("one\ntwo\nthr", 0, 100, Some(1)).ending_with_line();
        assert_eq!(by_line.text, "one\ntwo\n");
        assert_eq!(by_line.rest(), "[92 bytes follow: first_line=3]\n");
        let by_byte = piece("one two", 40, 100, None).ending_with_line();
        assert_eq!(by_byte.rest(), "[53 bytes follow: first_byte=47]\n");
        let tail = piece("ne\ntwo\nthree", 88, 100, None).beginning_with_line();
        assert_eq!((tail.start, tail.text.as_str()), (91, "two\nthree"));
        assert_eq!(tail.rest(), "[That is the end.]\n");
        assert_eq!(piece("x\ny\n", 0, 9, Some(5)).last_line(), Some(6));
        assert_eq!(piece("x\ny", 0, 9, Some(5)).last_line(), Some(6));
    }

    #[test]
    fn ranges_that_contradict_themselves_are_refused() {
        let input = |first_line, last_line, first_byte| ReadInput {
            reference: String::new(),
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
