//! The items of a request in order, each with the events that it came from and its fate.

use maud::{Markup, html};

use super::{ask::RequestParams, link_of};
use crate::{
    bounds::ITEMS,
    parts::{
        escape::{escape_inline, headline},
        numbers::{count, things},
        pager::pager,
        pieces::{BadgeColor, badge, nothing},
        place::ConversationPlace,
    },
    request_context::RequestContext,
};
use treering_present::explanation::{DroppedRun, ItemRow, border_text, fate_text, item_rows};
use treering_proto::pb::{self, Fate};

/// Characters of an item's content.
const HEAD_CHARS: usize = 160;
/// Characters of an item's label.
const LABEL_CHARS: usize = 60;
/// Events of an item that are linked.
const EVENTS: usize = 3;

/// Renders the items, and a link to further ones.
#[must_use]
pub(crate) fn section(
    request_context: &RequestContext,
    place: &ConversationPlace,
    ask: &RequestParams,
    told: &pb::Explanation,
) -> Markup {
    let rows = item_rows(&told.items, request_context.asked.is_set("all"));
    let from = request_context
        .asked
        .number("from")
        .ok()
        .flatten()
        .unwrap_or(0);
    let from = usize::try_from(from)
        .unwrap_or(usize::MAX)
        .min(rows.len().saturating_sub(1));
    let until = rows.len().min(from + ITEMS);
    let to = |from: usize, word| {
        let query = request_context
            .asked
            .with("from", Some(&from.to_string()), &[]);
        (
            format!(
                "{}?{query}#items",
                request_context.link(&request_context.here.path)
            ),
            word,
        )
    };
    let before = (from > 0).then(|| to(from.saturating_sub(ITEMS), "Items before"));
    let after = (until < rows.len()).then(|| to(until, "More items"));
    html! {
        section #items aria-labelledby="items-title" {
            h2 #items-title { (things(told.items.len() as u64, "item", "items")) }
            @if told.items.is_empty() {
                (nothing("There is nothing to send.", &html! { "The branch has no content yet." }))
            } @else {
                div.table role="group" aria-labelledby="items-title" tabindex="0" {
                    table.items {
                        thead {
                            tr {
                                th.number scope="col" { "Turn" }
                                th scope="col" { "Item" }
                                th.number scope="col" { "Tokens" }
                                th scope="col" { "" span.hidden { "Outcome" } }
                                th scope="col" { "Event" }
                            }
                        }
                        tbody {
                            @for row in &rows[from..until] { (row_of(request_context, place, ask, row)) }
                        }
                    }
                }
                @if before.is_some() || after.is_some() { (pager(before, after, "")) }
            }
        }
    }
}

fn row_of(
    request_context: &RequestContext,
    place: &ConversationPlace,
    ask: &RequestParams,
    row: &ItemRow<'_>,
) -> Markup {
    match row {
        ItemRow::Border { is_volatile } => html! {
            tr.border { td colspan="5" { (border_text(*is_volatile)) } }
        },
        ItemRow::Dropped(run) => dropped(request_context, place, run),
        ItemRow::One(item) => one(request_context, place, ask, item),
    }
}

fn dropped(
    request_context: &RequestContext,
    place: &ConversationPlace,
    run: &DroppedRun<'_>,
) -> Markup {
    let query = request_context.asked.with("all", Some("1"), &["from"]);
    html! {
        tr.dropped {
            td.number {
                @if let Some((first, last)) = run.turns {
                    (first) @if first != last { "–" (last) }
                }
            }
            td {
                (things(run.items as u64, "item", "items")) ": " (escape_inline(run.reason)) " "
                a href={ (place.link(request_context, "/request", &[])) "?" (query) "#items" } { "each" }
            }
            td.number { (count(run.tokens)) }
            td { (fate(Fate::Dropped)) }
            td {}
        }
    }
}

/// Renders the fate of an item.
#[must_use]
pub(crate) fn fate(fate: Fate) -> Markup {
    let (tone, word) = fate_text(fate);
    badge(BadgeColor::of(tone), word)
}

fn one(
    request_context: &RequestContext,
    place: &ConversationPlace,
    ask: &RequestParams,
    item: &pb::ExplainedItem,
) -> Markup {
    let class = match item.fate() {
        Fate::Dropped => Some("dropped"),
        _ => None,
    };
    html! {
        tr data-item class=[class] {
            td.number { @if item.turn > 0 { (item.turn) } }
            td {
                strong { (headline(&item.label, LABEL_CHARS)) }
                @if !item.head.is_empty() { " " span.quote { (headline(&item.head, HEAD_CHARS)) } }
                @if !item.reason.is_empty() { p.dim { (escape_inline(&item.reason)) } }
            }
            td.number {
                @match item.fate() {
                    Fate::Dropped => s { (count(item.whole_tokens)) },
                    Fate::Shortened => {
                        (count(item.tokens)) br; span.dim { "of " (count(item.whole_tokens)) }
                    }
                    _ => (count(item.tokens)),
                }
            }
            td { (fate(item.fate())) }
            td.rev {
                @for event in item.events.iter().take(EVENTS) {
                    a data-open href=(link_of(request_context, event, place, ask)) {
                        "#" (count(event.revision))
                    }
                    " "
                }
                @if item.events.len() > EVENTS { span.dim { "+" (item.events.len() - EVENTS) } }
            }
        }
    }
}
