//! A recorded text by lines: `/c/ID/text/REVISION?from=LINE`, `?at=LINE` with the lines around it,
//! `?byte=BYTE` for a part of one line, `?last=1` for the last lines.

use futures::future;
use maud::{Markup, html};

use crate::{
    bounds::{LINE_BYTES_SHOWN, LINES, LINES_BEFORE, TEXT_BYTES, TITLE_CHARS},
    failure::PageFailure,
    frame::{Page, Tab},
    pages::call,
    parts::{
        escape::{escape_inline, escaped, headline},
        numbers::{count, size},
        pager::PagerLinks,
        pieces::{BadgeColor, badge},
        place::{event, link, moment},
    },
    recorded_text::{Piece, TextPart, TextPlace},
    request_context::{PathParams, RequestContext},
    transcript::step::deed_of,
};
use treering_proto::pb;

/// Returns the page.
///
/// # Errors
/// Errors of the store.
pub(crate) async fn page(
    request_context: RequestContext,
    PathParams((id, revision)): PathParams<(String, u64)>,
) -> Result<Page, PageFailure> {
    let place = TextPlace {
        conversation: id,
        branch: request_context
            .asked
            .text("branch")
            .unwrap_or_default()
            .to_owned(),
        revision,
    };
    let at = request_context.asked.number("at")?;
    let (piece, call) = future::join(
        part(&request_context, &place, at),
        call::of_event(&request_context, &place),
    )
    .await;
    let piece = piece?;
    let tool = match (piece.info.tool.as_str(), &call) {
        ("", Some(call)) => call.tool.as_str(),
        (tool, _) => tool,
    };
    let name = if tool.is_empty() { "Text" } else { tool };
    let ways = ways(&request_context, &piece);
    let body = html! {
        (crumbs(&request_context, &place, call.as_ref()))
        div.head {
            h1 { (escape_inline(name)) " " span.dim { "#" (revision) } }
            (state(&piece.info))
        }
        @if let Some(call) = &call {
            @let deed = deed_of(&call.tool, &String::from_utf8_lossy(&call.arguments));
            p.of-call { code.deed { (headline(&deed, 2 * TITLE_CHARS)) } }
        }
        @if !piece.info.error_message.is_empty() {
            p.notice.bad { (escape_inline(&piece.info.error_message)) }
        }
        div.range {
            p.dim.number {
                "bytes " (count(piece.start)) "–" (count(piece.end())) " of " (count(piece.info.total_bytes))
            }
            (jump(&request_context))
        }
        (ways.markup("above"))
        (lines(&request_context, &piece, at))
        (ways.markup("below"))
    };
    Ok(request_context.page(&format!("{name} #{revision}"), Tab::Conversations, body))
}

/// Reads the requested part of the text.
async fn part(
    request_context: &RequestContext,
    place: &TextPlace,
    at: Option<u64>,
) -> Result<Piece, PageFailure> {
    let from = request_context.asked.number("from")?;
    let first = from
        .or_else(|| Some(at?.saturating_sub(LINES_BEFORE)))
        .unwrap_or(1)
        .max(1);
    let part = match request_context.asked.number("byte")? {
        _ if request_context.asked.is_set("last") => TextPart::Last,
        Some(first) => TextPart::Bytes { first },
        None => TextPart::Lines {
            first,
            count: LINES,
        },
    };
    Piece::read(&request_context.store, place, part, TEXT_BYTES).await
}

/// Renders links to the conversation, the place in its transcript, the call and the event.
fn crumbs(
    request_context: &RequestContext,
    place: &TextPlace,
    call: Option<&pb::ToolCall>,
) -> Markup {
    let id = &place.conversation;
    let branch = match (place.branch.as_str(), call) {
        ("", Some(call)) => call.branch.as_str(),
        (branch, _) => branch,
    };
    let revision = place.revision;
    html! {
        div.crumbs {
            a href=(link(request_context, id, "", &[("branch", branch)])) { "conversation" } " / "
            a href=(moment(request_context, id, branch, revision)) { "in the transcript" } " / "
            @if let Some(call) = call {
                a href=(call::address(request_context, id, call)) { "the call" } " / "
            }
            a href=(event(request_context, id, revision)) { "#" (revision) }
        }
    }
}

/// Renders a form to go to a line.
fn jump(request_context: &RequestContext) -> Markup {
    html! {
        form.jump action=(request_context.link(&request_context.here.path)) {
            @if let Some(branch) = request_context.asked.text("branch") {
                input type="hidden" name="branch" value=(branch);
            }
            label { "Line " input type="number" name="at" min="1" inputmode="numeric"; }
            button.quiet { "Go" }
        }
    }
}

fn state(info: &pb::ResultInfo) -> Markup {
    html! {
        @if !info.tool.is_empty() {
            @match info.success {
                true => (badge(BadgeColor::Good, "succeeded")),
                false => (badge(BadgeColor::Bad, "failed")),
            }
        }
        (size(info.total_bytes))
        button.quiet.copy data-copy="" data-script-only hidden { "copy address" }
    }
}

/// Renders the lines of a piece, each with its number and an address.
fn lines(request_context: &RequestContext, piece: &Piece, at: Option<u64>) -> Markup {
    if piece.info.total_bytes == 0 {
        return html! { p.nothing { "The text is empty." } };
    }
    let mut byte = piece.start;
    let lines = piece
        .text
        .split_inclusive('\n')
        .enumerate()
        .map(|(index, line)| {
            let start = byte;
            byte += line.len() as u64;
            let number = piece.line.map(|first| first + index as u64);
            (number, start, line.trim_end_matches('\n'))
        });
    html! {
        // The script finds the lines by `data-at`: a click on a line updates `at` in the address.
        ol.lines data-at {
            @for (number, start, line) in lines {
                li id=[number.map(|number| format!("L{number}"))] .hit[at.is_some() && number == at] {
                    @if let Some(number) = number {
                        a.n href={ "#L" (number) } { (number) }
                    }
                    code { (line_shown(request_context, line, start, piece)) }
                }
            }
        }
    }
}

fn line_shown(request_context: &RequestContext, line: &str, start: u64, piece: &Piece) -> Markup {
    // A request by bytes (without a line number) is for the long line itself.
    let max = if piece.line == Some(1) || piece.line.is_some() {
        LINE_BYTES_SHOWN
    } else {
        TEXT_BYTES
    };
    if line.len() <= max {
        return html! { (escaped(line)) };
    }
    let end = line.floor_char_boundary(max);
    let byte = start + end as u64;
    let query =
        request_context
            .asked
            .with("byte", Some(&byte.to_string()), &["from", "at", "last"]);
    html! {
        (escaped(&line[..end]))
        a.more href={ "?" (query) } { "… " (count((line.len() - end) as u64)) " bytes more" }
    }
}

fn ways(request_context: &RequestContext, piece: &Piece) -> PagerLinks {
    let to = |name: &str, value: Option<u64>| {
        let value = value.map(|value| value.to_string());
        let others = ["from", "at", "byte", "last"];
        let query = request_context.asked.with(name, value.as_deref(), &others);
        format!(
            "{}?{query}",
            request_context.link(&request_context.here.path)
        )
    };
    let shown = piece.text.split_inclusive('\n').count() as u64;
    let before = match piece.line {
        Some(line) => to("from", Some(line.saturating_sub(LINES).max(1))),
        None => to("byte", Some(piece.start.saturating_sub(TEXT_BYTES as u64))),
    };
    let after = match piece.line {
        Some(line) if piece.text.ends_with('\n') => {
            let next = line + shown;
            (to("from", Some(next)), Some(next))
        }
        _ => (to("byte", Some(piece.end())), None),
    };
    let (is_begun, is_cut) = (piece.start > 0, !piece.is_to_end());
    PagerLinks {
        first: is_begun.then(|| to("from", None)),
        before: is_begun.then_some(before),
        after: is_cut.then_some(after),
        last: is_cut.then(|| to("last", Some(1))),
    }
}
