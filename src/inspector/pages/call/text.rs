//! A result by ranges of its lines. However long it is, and however long a line of it is, a page
//! has a bounded part, and says where the next one begins.

use maud::{Markup, PreEscaped, html};
use tonic::Code;

use crate::{
    cli::CliError,
    codec::pb::{self, get_result_request::Which},
    inspector::{
        bounds::{MARKUP_BYTES, TEXT_BYTES, TEXT_LINES},
        failure::Failure,
        parts::{
            hostile::escaped,
            numbers::{count, size},
            place::Place,
        },
        visit::{Visit, query},
    },
};

/// A long line is looked at in pieces of so many bytes. Each byte may be sixty of markup, and a
/// piece must have room on a page.
const PIECE_BYTES: usize = 512;

/// A part of a result.
#[derive(Debug, Default)]
pub struct Piece {
    /// What it begins at, in bytes of the whole.
    start: u64,
    /// Of the whole, in bytes.
    total: u64,
    text: String,
    /// The number of its first line, when that is known.
    line: Option<u64>,
    /// It begins after the end.
    is_behind: bool,
}

/// Asks for the whole result of a call.
#[must_use]
pub fn request(place: &Place, call: &pb::ToolCall) -> pb::GetResultRequest {
    let is_own = call.conversation_id == place.id;
    pb::GetResultRequest {
        conversation_id: place.id.clone(),
        branch: call.branch.clone(),
        which: Some(match is_own {
            true => Which::Revision(call.end_revision),
            // A fork's history has two events of one number.
            false => Which::CallId(call.call_id.clone()),
        }),
        ..Default::default()
    }
}

/// The part of a call's result that an address asks for: from a line (`line`), or from a byte
/// (`byte`), which is of the line `line`.
///
/// # Errors
/// What the store says.
pub async fn of_result(
    visit: &Visit,
    place: &Place,
    call: &pb::ToolCall,
) -> Result<Option<Piece>, Failure> {
    if call.end_revision == 0 || call.result_bytes == 0 {
        return Ok(None);
    }
    let line = visit.asked.number("line")?.map(|line| line.max(1));
    let mut asked = request(place, call);
    let line = match visit.asked.number("byte")? {
        Some(byte) => {
            asked.byte_start = byte;
            asked.byte_length = TEXT_BYTES;
            line
        }
        None => {
            let first = line.unwrap_or(1);
            asked.line_first = first;
            asked.line_last = first.saturating_add(TEXT_LINES - 1);
            Some(first)
        }
    };
    read(visit, asked, line, call.result_bytes).await.map(Some)
}

async fn read(
    visit: &Visit,
    request: pb::GetResultRequest,
    line: Option<u64>,
    total: u64,
) -> Result<Piece, Failure> {
    let mut answer = match visit.store.tools().get_result(request).await {
        Ok(answer) => answer.into_inner(),
        Err(status) if status.code() == Code::OutOfRange => {
            return Ok(Piece {
                total,
                is_behind: true,
                ..Piece::default()
            });
        }
        Err(status) => return Err(CliError::from(status).into()),
    };
    let mut piece = Piece {
        total,
        line,
        ..Piece::default()
    };
    let mut bytes = Vec::new();
    while let Some(message) = answer.message().await? {
        if let Some(info) = message.info {
            piece.start = info.byte_start;
            piece.total = info.total_bytes;
        }
        bytes.extend_from_slice(&message.chunk);
        if bytes.len() as u64 >= TEXT_BYTES {
            bytes.truncate(usize::try_from(TEXT_BYTES).unwrap_or(usize::MAX));
            break;
        }
    }
    let (skipped, text) = whole_characters(bytes);
    piece.start += skipped;
    piece.text = text;
    Ok(piece)
}

/// Text that may begin and end inside of a character: without what is only a part of one. Says
/// how many bytes that was at the beginning.
fn whole_characters(bytes: Vec<u8>) -> (u64, String) {
    let is_inside = |byte: &&u8| (0x80..0xc0).contains(*byte);
    let skipped = bytes.iter().take_while(is_inside).count().min(3);
    let rest = &bytes[skipped..];
    let text = match std::str::from_utf8(rest) {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&rest[..error.valid_up_to()]).unwrap_or_default(),
    };
    (skipped as u64, text.to_owned())
}

/// Lines as they are shown.
struct Lines {
    /// The number of each, if that is known, and its markup.
    lines: Vec<(Option<u64>, String)>,
    /// How much of the text they are, in bytes.
    bytes: usize,
    /// The number of the line that what comes next is of.
    next: Option<u64>,
}

fn lines(text: &str, first: Option<u64>, markup_max: usize) -> Lines {
    let mut shown = Lines {
        lines: Vec::new(),
        bytes: 0,
        next: first,
    };
    let mut room = markup_max;
    for line in text.split_inclusive('\n') {
        let mut markup = String::new();
        let content = match line.strip_suffix('\n') {
            Some(line) => line.strip_suffix('\r').unwrap_or(line),
            None => line,
        };
        let mut rest = content;
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.floor_char_boundary(PIECE_BYTES));
            let made = escaped(piece).0;
            if made.len() > room {
                break;
            }
            room -= made.len();
            markup.push_str(&made);
            shown.bytes += piece.len();
            rest = after;
        }
        let is_whole = rest.is_empty();
        if is_whole || !markup.is_empty() {
            shown.lines.push((shown.next, markup));
        }
        if !is_whole {
            return shown;
        }
        shown.bytes += line.len() - content.len();
        if line.ends_with('\n') {
            shown.next = shown.next.map(|line| line + 1);
        }
    }
    shown
}

/// The part of a result, and the way to the others.
#[must_use]
pub fn section(
    visit: &Visit,
    place: &Place,
    call: &pb::ToolCall,
    piece: Option<&Piece>,
) -> Markup {
    let Some(piece) = piece else {
        let said = match call.end_revision {
            0 => "It has not returned yet.",
            _ => "It returned no text.",
        };
        return html! { p.hint { (said) } };
    };
    let shown = lines(&piece.text, piece.line, MARKUP_BYTES);
    let end = piece.start + shown.bytes as u64;
    let ways = Ways { visit, place, call };
    html! {
        div.range {
            p.dim.number {
                @if piece.is_behind { "There is nothing there. " }
                @else if piece.start == 0 && end >= piece.total { "all of " }
                @else { "bytes " (count(piece.start)) "–" (count(end)) " of " }
                (size(piece.total))
            }
            (ways.jump())
            a href=(super::file_address(visit, &place.id, call, "result")) { "Whole, as a file" }
        }
        @if !shown.lines.is_empty() {
            ol.lines aria-label="Lines of the result" {
                @for (number, markup) in &shown.lines {
                    @match number {
                        Some(number) => li #{ "L" (number) } {
                            a.n href={ "#L" (number) } { (number) }
                            code { (PreEscaped(markup)) }
                        },
                        None => li { span.n {} code { (PreEscaped(markup)) } },
                    }
                }
            }
        }
        nav.pager aria-label="Parts of the result" {
            @if piece.start > 0 || piece.is_behind {
                a href=(ways.to(&[])) { "↑ To the beginning" }
            } @else { span {} }
            @if end < piece.total && !piece.is_behind {
                a href=(ways.after(end, &shown)) rel="next" {
                    "Go on"
                    @if let Some(line) = shown.next { " in line " (count(line)) }
                    " →"
                }
            }
            @if end < piece.total || piece.is_behind {
                a href=(ways.end(piece.total)) { "↓ To the end" }
            } @else { span {} }
        }
    }
}

/// Addresses of other parts.
struct Ways<'a> {
    visit: &'a Visit,
    place: &'a Place,
    call: &'a pb::ToolCall,
}

impl Ways<'_> {
    fn to(&self, pairs: &[(&str, &str)]) -> String {
        let address = super::address(self.visit, &self.place.id, self.call);
        format!("{address}&{}#result", query(pairs))
    }

    fn after(&self, end: u64, shown: &Lines) -> String {
        let line = shown.next.map(|line| line.to_string());
        let line = line.as_deref().unwrap_or_default();
        self.to(&[("byte", &end.to_string()), ("line", line)])
    }

    fn end(&self, total: u64) -> String {
        let byte = total.saturating_sub(TEXT_BYTES / 2).to_string();
        self.to(&[("byte", &byte)])
    }

    /// To a line that is typed.
    fn jump(&self) -> Markup {
        let call = self.call;
        html! {
            form.jump action={ (self.visit.link(&self.visit.here.path)) "#result" } {
                input type="hidden" name="branch" value=(call.branch);
                input type="hidden" name="at" value=(call.request_revision);
                input type="hidden" name="end" value=(call.end_revision);
                label { "Line " input type="number" name="line" min="1" inputmode="numeric"; }
                button.quiet { "Go" }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A range of bytes may begin and end in the middle of a letter: what is cut off is shown
    // with its other half, on the page before or after.
    #[test]
    fn half_letters_are_left_to_the_other_page() {
        let bytes = "aäb".as_bytes();
        assert_eq!(whole_characters(bytes[2..].to_vec()), (1, "b".into()));
        assert_eq!(whole_characters(bytes[..2].to_vec()), (0, "a".into()));
        assert_eq!(whole_characters(Vec::new()), (0, String::new()));
    }

    // What is shown, and what is said to come next, must be all there is: no line twice, none
    // left out.
    #[test]
    fn lines_are_numbered_and_cut() {
        let all = lines("one\n\nthree", Some(7), 1_000);
        let numbers: Vec<_> = all.lines.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [Some(7), Some(8), Some(9)]);
        assert_eq!((all.bytes, all.next), (10, Some(9)));
        let whole = lines("one\r\ntwo\n", Some(1), 1_000);
        assert_eq!((whole.lines.len(), whole.bytes, whole.next), (2, 9, Some(3)));
        assert_eq!(whole.lines[0].1, "one");
        let cut = lines("ok\n<<<<\nmore", None, 10);
        assert_eq!((cut.lines.len(), cut.bytes), (1, 3));
    }

    // Five megabytes of a line that all become longer as markup made a page of forty.
    #[test]
    fn a_hostile_line_does_not_fill_a_page() {
        let text = "\0".repeat(1 << 20);
        let shown = lines(&text, Some(1), MARKUP_BYTES);
        let markup: usize = shown.lines.iter().map(|(_, markup)| markup.len()).sum();
        assert!(markup <= MARKUP_BYTES && shown.bytes > 0, "{}", shown.bytes);
        assert_eq!(shown.next, Some(1));
    }
}
