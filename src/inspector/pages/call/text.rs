//! A result by ranges of lines. However long the result or one of its lines is, a page shows a
//! limited part of it and links to the next.

use maud::{Markup, PreEscaped, html};

use crate::{
    bounds::{LINES, TEXT_BYTES},
    failure::PageFailure,
    parts::{
        escape::escaped,
        numbers::{count, size},
        pager::PagerLinks,
        place::ConversationPlace,
    },
    recorded_text::{Piece, TextPart, TextPlace},
    request_context::{RequestContext, query},
};
use treering_proto::pb;

/// A long line is divided into pieces of this many bytes. Each byte may become sixty bytes of
/// markup, and a piece must fit on a page.
const PIECE_BYTES: usize = 512;

/// Returns a request for the whole result of a call.
#[must_use]
pub(crate) fn request(place: &ConversationPlace, call: &pb::ToolCall) -> pb::GetResultRequest {
    let of = place_of(place, call);
    pb::GetResultRequest {
        conversation_id: of.conversation,
        branch: of.branch,
        which: Some(pb::get_result_request::Which::Revision(of.revision)),
        ..Default::default()
    }
}

/// Returns the place of a call's result.
fn place_of(place: &ConversationPlace, call: &pb::ToolCall) -> TextPlace {
    let is_own = call.conversation_id == place.id;
    TextPlace {
        conversation: call.conversation_id.clone(),
        // For an inherited call, `call.branch` is a branch of the fork, not of the call's
        // conversation.
        branch: if is_own {
            call.branch.clone()
        } else {
            String::new()
        },
        revision: call.end_revision,
    }
}

/// Reads the part of a call's result that an address requests: from a line (`line`), or from a byte
/// (`byte`) of the line `line`; or the last lines (`last=1`).
///
/// # Errors
/// Errors of the store.
pub(crate) async fn of_result(
    request_context: &RequestContext,
    place: &ConversationPlace,
    call: &pb::ToolCall,
) -> Result<Option<Piece>, PageFailure> {
    if call.end_revision == 0 || call.result_bytes == 0 {
        return Ok(None);
    }
    let line = request_context
        .asked
        .number("line")?
        .map(|line| line.max(1));
    let byte = request_context.asked.number("byte")?;
    let part = match byte {
        _ if request_context.asked.is_set("last") => TextPart::Last,
        Some(first) => TextPart::Bytes { first },
        None => TextPart::Lines {
            first: line.unwrap_or(1),
            count: LINES,
        },
    };
    let mut piece = Piece::read(
        &request_context.store,
        &place_of(place, call),
        part,
        TEXT_BYTES,
    )
    .await?;
    if matches!(part, TextPart::Bytes { .. }) && line.is_some() {
        piece.line = line;
    }
    Ok(Some(piece))
}

/// Rendered lines.
struct Lines {
    /// The number of each line, if known, and its markup.
    lines: Vec<(Option<u64>, String)>,
    /// Length of their text in bytes.
    bytes: usize,
    /// The number of the line that follows.
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

/// Renders the part of a result, with links to other parts.
#[must_use]
pub(crate) fn section(
    request_context: &RequestContext,
    place: &ConversationPlace,
    call: &pb::ToolCall,
    piece: Option<&Piece>,
    markup_max: usize,
) -> Markup {
    let Some(piece) = piece else {
        let said = match call.end_revision {
            0 => "No result yet.",
            _ => "The result has no text.",
        };
        return html! { p.hint { (said) } };
    };
    let shown = lines(&piece.text, piece.line, markup_max);
    let end = piece.start + shown.bytes as u64;
    let total = piece.info.total_bytes;
    let links = Links {
        request_context,
        place,
        call,
    };
    let parts = links.ways(piece, &shown);
    html! {
        div.range {
            p.dim.number {
                @if piece.start == 0 && end >= total { "all of " }
                @else { "bytes " (count(piece.start)) "–" (count(end)) " of " }
                (size(total))
            }
            (links.jump())
            a href=(super::file_address(request_context, &place.id, call, "result")) { "Complete, as a file" }
        }
        (parts.markup("above"))
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
        (parts.markup("below"))
    }
}

/// Addresses of other parts.
struct Links<'a> {
    request_context: &'a RequestContext,
    place: &'a ConversationPlace,
    call: &'a pb::ToolCall,
}

impl Links<'_> {
    fn to(&self, pairs: &[(&str, &str)]) -> String {
        let address = super::address(self.request_context, &self.place.id, self.call);
        format!("{address}&{}#result", query(pairs))
    }

    fn ways(&self, piece: &Piece, shown: &Lines) -> PagerLinks {
        let end = piece.start + shown.bytes as u64;
        let is_begun = piece.start > 0;
        let is_cut = end < piece.info.total_bytes;
        let first = self.to(&[]);
        let before = match piece.line {
            Some(line) => self.to(&[("line", &line.saturating_sub(LINES).max(1).to_string())]),
            None => {
                let byte = piece.start.saturating_sub(TEXT_BYTES as u64);
                self.to(&[("byte", &byte.to_string())])
            }
        };
        let line = shown.next.map(|line| line.to_string());
        let line = line.as_deref().unwrap_or_default();
        let after = self.to(&[("byte", &end.to_string()), ("line", line)]);
        PagerLinks {
            first: is_begun.then_some(first),
            before: is_begun.then_some(before),
            after: is_cut.then_some((after, shown.next)),
            last: is_cut.then(|| self.to(&[("last", "1")])),
        }
    }

    /// Renders a form to go to a line.
    fn jump(&self) -> Markup {
        let call = self.call;
        html! {
            form.jump action={ (self.request_context.link(&self.request_context.here.path)) "#result" } {
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
    use crate::bounds::MARKUP_BYTES;

    // The shown lines and the announced next line must include each line exactly once.
    #[test]
    fn lines_are_numbered_and_limited() {
        let all = lines("one\n\nthree", Some(7), 1_000);
        let numbers: Vec<_> = all.lines.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [Some(7), Some(8), Some(9)]);
        assert_eq!((all.bytes, all.next), (10, Some(9)));
        let whole = lines("one\r\ntwo\n", Some(1), 1_000);
        assert_eq!(
            (whole.lines.len(), whole.bytes, whole.next),
            (2, 9, Some(3))
        );
        assert_eq!(whole.lines[0].1, "one");
        let cut = lines("ok\n<<<<\nmore", None, 10);
        assert_eq!((cut.lines.len(), cut.bytes), (1, 3));
    }

    // A long line with even longer markup must not make a page of many megabytes.
    #[test]
    fn markup_of_one_long_line_is_limited() {
        let text = "\0".repeat(1 << 20);
        let shown = lines(&text, Some(1), MARKUP_BYTES);
        let markup: usize = shown.lines.iter().map(|(_, markup)| markup.len()).sum();
        assert!(markup <= MARKUP_BYTES && shown.bytes > 0, "{}", shown.bytes);
        assert_eq!(shown.next, Some(1));
    }
}
