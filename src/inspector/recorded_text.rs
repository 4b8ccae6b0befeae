//! Reads parts of a recorded text. Of a result of 30 MB, only the shown part is kept in memory.

use futures::StreamExt;
use tonic::Code;

use super::{bounds::LINES, failure::PageFailure, parts::escape::fitting};
use treering_client::{
    Connection,
    read::{self as reading, whole_chars},
};
use treering_proto::pb;

/// Maximum number of bytes of markup per requested byte.
const MARKUP_PER_BYTE: usize = 3;

/// The place of a text.
#[derive(Clone, Debug)]
pub(crate) struct TextPlace {
    /// Its conversation.
    pub(crate) conversation: String,
    /// A branch that contains it; empty: the active branch.
    pub(crate) branch: String,
    /// Its event's revision.
    pub(crate) revision: u64,
}

/// The requested part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextPart {
    /// From a line on, counted from 1.
    Lines {
        /// The first line.
        first: u64,
        /// Maximum number of lines.
        count: u64,
    },
    /// From a byte on.
    Bytes {
        /// The first byte.
        first: u64,
    },
    /// The last lines.
    Last,
}

/// A part of a text.
#[derive(Clone, Debug, Default)]
pub(crate) struct Piece {
    /// Information about the whole text.
    pub(crate) info: pb::ResultInfo,
    /// Offset of its first byte in the whole text.
    pub(crate) start: u64,
    /// The number of its first line, if known.
    pub(crate) line: Option<u64>,
    /// Its text, in complete characters.
    pub(crate) text: String,
}

impl Piece {
    /// Returns the offset of the byte after it.
    #[must_use]
    pub(crate) fn end(&self) -> u64 {
        self.start + self.text.len() as u64
    }

    /// True when nothing follows it.
    #[must_use]
    pub(crate) fn is_to_end(&self) -> bool {
        self.end() >= self.info.total_bytes
    }

    /// Reads a part from the store: at most `bytes_max` bytes, ending with a line if possible.
    ///
    /// # Errors
    /// [`PageFailure`] when there is no such text, or no such part of it.
    pub(crate) async fn read(
        store: &Connection,
        place: &TextPlace,
        part: TextPart,
        bytes_max: usize,
    ) -> Result<Self, PageFailure> {
        let mut request = pb::GetResultRequest {
            conversation_id: place.conversation.clone(),
            branch: place.branch.clone(),
            which: Some(pb::get_result_request::Which::Revision(place.revision)),
            ..Default::default()
        };
        let line = match part {
            TextPart::Last => return Self::read_last(store, request, bytes_max).await,
            TextPart::Lines { first, count } => {
                request.line_first = first.max(1);
                request.line_last = request.line_first.saturating_add(count.max(1) - 1);
                Some(request.line_first)
            }
            TextPart::Bytes { first } => {
                // A few more bytes, to end with a complete character.
                request.byte_start = first;
                request.byte_length = bytes_max as u64 + 4;
                (first == 0).then_some(1)
            }
        };
        let read = reading::beginning_of_result(store, request, bytes_max).await;
        let (info, bytes) = read.map_err(not_there)?;
        let start = info.byte_start;
        let piece = Self {
            info,
            start,
            line,
            text: String::new(),
        };
        Ok(piece.with(&bytes, bytes_max))
    }

    /// Reads the end of a text. To number its lines, all of the text is read, but only the shown
    /// part is kept.
    async fn read_last(
        store: &Connection,
        request: pb::GetResultRequest,
        bytes_max: usize,
    ) -> Result<Self, PageFailure> {
        let answers = store.tools().get_result(request).await;
        let mut answers = answers.map_err(not_there)?.into_inner();
        let mut tail = Tail::default();
        let mut info = pb::ResultInfo::default();
        while let Some(answer) = answers.next().await {
            let answer = answer.map_err(not_there)?;
            info = answer.info.unwrap_or(info);
            tail.bytes.extend_from_slice(&answer.chunk);
            if tail.bytes.len() > 2 * bytes_max {
                tail.skip(tail.bytes.len() - bytes_max);
            }
        }
        tail.skip(tail.bytes.len().saturating_sub(bytes_max));
        Ok(tail.piece(info, bytes_max))
    }

    fn with(mut self, bytes: &[u8], bytes_max: usize) -> Self {
        let (skipped, whole) = whole_chars(bytes);
        let is_cut = bytes.len() - skipped > bytes_max;
        let end = whole.floor_char_boundary(bytes_max.min(whole.len()));
        // Text whose markup is larger than usual is shown in smaller parts.
        let mut end = fitting(&whole[..end], bytes_max.saturating_mul(MARKUP_PER_BYTE));
        // Each line adds markup, so the line limit also applies to parts requested by bytes.
        let lines = whole[..end].split_inclusive('\n').map(str::len);
        end = lines.zip(0..LINES).map(|(bytes, _)| bytes).sum();
        let is_cut = is_cut || end < whole.len();
        if is_cut
            && let Some(at) = whole[..end].rfind('\n')
            && at + 1 >= end / 2
        {
            end = at + 1;
        }
        self.start += skipped as u64;
        self.text = whole[..end].to_owned();
        self
    }
}

/// The last bytes of a text that is streamed.
#[derive(Default)]
struct Tail {
    bytes: Vec<u8>,
    /// Offset of these bytes.
    start: u64,
    /// Number of lines that ended before them.
    lines: u64,
}

impl Tail {
    fn skip(&mut self, bytes: usize) {
        let skipped = self.bytes.drain(..bytes);
        self.start += bytes as u64;
        self.lines += skipped.filter(|byte| *byte == b'\n').count() as u64;
    }

    /// Returns the last lines that fit on a page.
    fn piece(mut self, info: pb::ResultInfo, bytes_max: usize) -> Piece {
        let inside = whole_chars(&self.bytes).0;
        self.skip(if self.start > 0 { inside } else { 0 });
        let mut begins_line = self.start == 0;
        let markup_max = bytes_max.saturating_mul(MARKUP_PER_BYTE);
        while let Some(bytes) = too_much(self.text(), markup_max, begins_line) {
            begins_line = self.text()[..bytes].ends_with('\n');
            self.skip(bytes);
        }
        Piece {
            info,
            start: self.start,
            line: begins_line.then_some(self.lines + 1),
            text: self.text().to_owned(),
        }
    }

    fn text(&self) -> &str {
        std::str::from_utf8(&self.bytes).unwrap_or_default()
    }
}

/// Returns the number of bytes to remove at the start of a text: lines or markup over the limit, or
/// a partial first line. `None` when the text fits.
fn too_much(text: &str, markup_max: usize, begins_line: bool) -> Option<usize> {
    let lines = text.split_inclusive('\n').map(str::len);
    let more = (lines.clone().count() as u64).saturating_sub(LINES);
    if more > 0 {
        return Some(lines.zip(0..more).map(|(bytes, _)| bytes).sum());
    }
    if fitting(text, markup_max) < text.len() {
        return Some(text.ceil_char_boundary(text.len() / 2));
    }
    let next = text.find('\n').map(|at| at + 1);
    next.filter(|at| !begins_line && *at < text.len())
}

fn not_there(status: tonic::Status) -> PageFailure {
    match status.code() {
        Code::NotFound => PageFailure::none("this event has no text", "see the event itself"),
        Code::OutOfRange => PageFailure::none(status.message(), "start with the first line"),
        _ => status.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Errors are usually at the end of a log, so its last lines must be reachable with one click
    // and have line numbers.
    #[test]
    fn last_lines_of_a_result_have_line_numbers() {
        let last = |text: &str, bytes_max: usize| {
            let mut tail = Tail::default();
            for chunk in text.as_bytes().chunks(7) {
                tail.bytes.extend_from_slice(chunk);
                if tail.bytes.len() > 2 * bytes_max {
                    tail.skip(tail.bytes.len() - bytes_max);
                }
            }
            tail.skip(tail.bytes.len().saturating_sub(bytes_max));
            let piece = tail.piece(pb::ResultInfo::default(), bytes_max);
            assert!(text.ends_with(&piece.text) && piece.end() == text.len() as u64);
            let before = text[..text.len() - piece.text.len()].matches('\n').count() as u64;
            assert!(piece.line.is_none_or(|line| line == before + 1));
            (piece.line, piece.text.lines().count() as u64)
        };
        assert_eq!(last("one\ntwo", 100), (Some(1), 2));
        assert_eq!(last("", 100), (Some(1), 0));
        let log: String = (1..=9_000).map(|line| format!("line {line}\n")).collect();
        assert_eq!(last(&log, 48 << 10), (Some(9_000 - LINES + 1), LINES));
        let (line, lines) = last(&log, 1_000);
        assert!(line == Some(9_001 - lines) && lines > 50);
        assert_eq!(last(&"é".repeat(5_000), 1_001).0, None);
        assert_eq!(last(&"<&\"\0".repeat(5_000), 1_000).0, None);
    }

    // A part must not begin or end inside a character, and bytes that are left out must be in the
    // next part.
    #[test]
    fn parts_end_at_characters_and_lines() {
        let piece = |bytes: &[u8], max| {
            let piece = Piece {
                info: pb::ResultInfo {
                    total_bytes: 100,
                    ..Default::default()
                },
                start: 10,
                ..Piece::default()
            };
            let piece = piece.with(bytes, max);
            (piece.start, piece.text.clone(), piece.end())
        };
        let text = "é日\nab\ncdefgh".as_bytes();
        assert_eq!(piece(&text[1..], 100), (11, "日\nab\ncdefgh".into(), 24));
        assert_eq!(piece(text, 9), (10, "é日\nab\n".into(), 19));
        assert_eq!(piece(text, 4), (10, "é".into(), 12));
        assert_eq!(piece(&text[..3], 100), (10, "é".into(), 12));
    }
}
