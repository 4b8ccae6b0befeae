//! A recorded text by its lines: `/c/ID/text/REVISION?from=LINE`, `?at=LINE` with what stands
//! around it, `?byte=BYTE` for what is on one line.

use maud::{Markup, html};

use crate::{
    codec::pb,
    inspector::{
        bounds::{LINE_BYTES_SHOWN, LINES, LINES_BEFORE, TEXT_BYTES},
        failure::PageFailure,
        frame::{Page, Tab},
        parts::{
            hostile::{escaped, shown},
            numbers::{count, size},
            pager::pager,
            pieces::{Mood, badge},
        },
        recorded::{Piece, TextPart, TextPlace},
        visit::{At, Visit, path_part},
    },
};

/// The page.
///
/// # Errors
/// What the store says.
pub async fn page(
    visit: Visit,
    At((id, revision)): At<(String, u64)>,
) -> Result<Page, PageFailure> {
    let place = TextPlace {
        conversation: id,
        branch: visit.asked.text("branch").unwrap_or_default().to_owned(),
        revision,
    };
    let at = visit.asked.number("at")?;
    let from = visit.asked.number("from")?;
    let first = from
        .or_else(|| Some(at?.saturating_sub(LINES_BEFORE)))
        .unwrap_or(1)
        .max(1);
    let part = match visit.asked.number("byte")? {
        Some(first) => TextPart::Bytes { first },
        None => TextPart::Lines {
            first,
            count: LINES,
        },
    };
    let piece = Piece::read(&visit.store, &place, part, TEXT_BYTES).await?;
    let name = match piece.info.tool.as_str() {
        "" => "Text",
        tool => tool,
    };
    let id = &piece.info.conversation_id;
    let body = html! {
        div.crumbs {
            a href=(visit.link(&format!("/c/{}", path_part(id)))) { "conversation" } " / "
            a href=(visit.link(&event_path(&place))) { "#" (revision) }
        }
        div.head {
            h1 { (shown(name)) " " span.dim { "#" (revision) } }
            (state(&piece.info))
        }
        @if !piece.info.error_message.is_empty() {
            p.notice.bad { (shown(&piece.info.error_message)) }
        }
        (lines(&visit, &piece, at))
        (pages(&visit, &piece, first))
    };
    Ok(visit.page(&format!("{name} #{revision}"), Tab::Conversations, body))
}

fn event_path(place: &TextPlace) -> String {
    format!("/c/{}/e/{}", path_part(&place.conversation), place.revision)
}

fn state(info: &pb::ResultInfo) -> Markup {
    html! {
        @if !info.tool.is_empty() {
            @match info.success {
                true => (badge(Mood::Good, "succeeded")),
                false => (badge(Mood::Bad, "failed")),
            }
        }
        (size(info.total_bytes))
        button.quiet.copy data-copy="" data-script-only hidden { "copy address" }
    }
}

/// The lines of a piece, each with its number and an address.
fn lines(visit: &Visit, piece: &Piece, at: Option<u64>) -> Markup {
    if piece.info.total_bytes == 0 {
        return html! { p.nothing { "It is empty." } };
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
        ol.lines {
            @for (number, start, line) in lines {
                li id=[number.map(|number| format!("L{number}"))] .hit[at.is_some() && number == at] {
                    @if let Some(number) = number {
                        a.n href={ "#L" (number) } { (number) }
                    }
                    code { (line_shown(visit, line, start, piece)) }
                }
            }
        }
    }
}

fn line_shown(visit: &Visit, line: &str, start: u64, piece: &Piece) -> Markup {
    // By bytes a long line is what was asked for.
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
    let query = visit
        .asked
        .with("byte", Some(&byte.to_string()), &["from", "at"]);
    html! {
        (escaped(&line[..end]))
        a.more href={ "?" (query) } { "… " (count((line.len() - end) as u64)) " bytes more" }
    }
}

fn pages(visit: &Visit, piece: &Piece, first: u64) -> Markup {
    let to = |name: &str, value: u64| {
        let query = visit
            .asked
            .with(name, Some(&value.to_string()), &["from", "at", "byte"]);
        format!("?{query}")
    };
    let shown = piece.text.lines().count() as u64;
    let place = format!(
        "bytes {}–{} of {}",
        count(piece.start),
        count(piece.end()),
        count(piece.info.total_bytes)
    );
    let before = match piece.line {
        Some(_) if first > 1 => Some((
            to("from", first.saturating_sub(LINES).max(1)),
            "earlier lines",
        )),
        None => Some((
            to("byte", piece.start.saturating_sub(TEXT_BYTES as u64)),
            "earlier",
        )),
        Some(_) => None,
    };
    let after = (!piece.is_to_end()).then(|| match piece.line {
        Some(line) if piece.text.ends_with('\n') => (to("from", line + shown), "further lines"),
        _ => (to("byte", piece.end()), "further"),
    });
    pager(before, after, &place)
}
