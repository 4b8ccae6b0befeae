//! The items of a request in order: the events that each came from, and what became of it.

use maud::{Markup, html};

use super::{ask::RequestAsk, link_of};
use crate::{
    bounds::ITEMS,
    parts::{
        hostile::{headline, shown},
        numbers::{count, things},
        pager::pager,
        pieces::{Mood, badge, nothing},
        place::ConversationPlace,
    },
    visit::Visit,
};
use treering_proto::pb::{self, Fate};

/// Characters of an item's content.
const HEAD_CHARS: usize = 160;
/// Characters of an item's label.
const LABEL_CHARS: usize = 60;
/// This many consecutive items that were dropped for the same reason are merged into one row.
const RUN_MIN: usize = 3;
/// Events of an item that are linked.
const EVENTS: usize = 3;

/// A row of the table.
enum Row<'a> {
    /// An item.
    One(&'a pb::ExplainedItem),
    /// Several items that were dropped for the same reason.
    Dropped(&'a [pb::ExplainedItem]),
    /// The end of a prompt cache's stable prefix.
    Border,
}

/// Renders the items, and a link to further ones.
#[must_use]
pub fn section(
    visit: &Visit,
    place: &ConversationPlace,
    ask: &RequestAsk,
    told: &pb::Explanation,
) -> Markup {
    let rows = rows(&told.items, visit.asked.is_set("all"));
    let from = visit.asked.number("from").ok().flatten().unwrap_or(0);
    let from = usize::try_from(from)
        .unwrap_or(usize::MAX)
        .min(rows.len().saturating_sub(1));
    let until = rows.len().min(from + ITEMS);
    let to = |from: usize, word| {
        let query = visit.asked.with("from", Some(&from.to_string()), &[]);
        (
            format!("{}?{query}#items", visit.link(&visit.here.path)),
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
                            @for row in &rows[from..until] { (row_of(visit, place, ask, row)) }
                        }
                    }
                }
                @if before.is_some() || after.is_some() { (pager(before, after, "")) }
            }
        }
    }
}

fn rows(items: &[pb::ExplainedItem], all: bool) -> Vec<Row<'_>> {
    let mut rows = Vec::new();
    let mut is_volatile = false;
    let mut rest = items;
    while let Some(first) = rest.first() {
        let run = rest.iter().take_while(|item| alike(item, first)).count();
        if first.is_volatile && !is_volatile && first.fate() != Fate::Dropped {
            is_volatile = true;
            rows.push(Row::Border);
        }
        let taken = if !all && run >= RUN_MIN { run } else { 1 };
        rows.push(match taken {
            1 => Row::One(first),
            _ => Row::Dropped(&rest[..taken]),
        });
        rest = &rest[taken..];
    }
    rows
}

/// True when both were dropped for the same reason.
fn alike(item: &pb::ExplainedItem, first: &pb::ExplainedItem) -> bool {
    item.fate() == Fate::Dropped && first.fate() == Fate::Dropped && item.reason == first.reason
}

fn row_of(visit: &Visit, place: &ConversationPlace, ask: &RequestAsk, row: &Row<'_>) -> Markup {
    match row {
        Row::Border => html! {
            tr.border { td colspan="5" { "items below may differ in the next request" } }
        },
        Row::Dropped(run) => dropped(visit, place, run),
        Row::One(item) => one(visit, place, ask, item),
    }
}

fn dropped(visit: &Visit, place: &ConversationPlace, run: &[pb::ExplainedItem]) -> Markup {
    let tokens: u64 = run.iter().map(|item| item.whole_tokens).sum();
    let reason = run.first().map_or("", |item| item.reason.as_str());
    let turns = run.iter().map(|item| item.turn).filter(|turn| *turn > 0);
    let query = visit.asked.with("all", Some("1"), &["from"]);
    html! {
        tr.dropped {
            td.number {
                @if let (Some(first), Some(last)) = (turns.clone().min(), turns.max()) {
                    (first) @if first != last { "–" (last) }
                }
            }
            td {
                (things(run.len() as u64, "item", "items")) ": " (shown(reason)) " "
                a href={ (place.link(visit, "/request", &[])) "?" (query) "#items" } { "each" }
            }
            td.number { (count(tokens)) }
            td { (fate(Fate::Dropped)) }
            td {}
        }
    }
}

/// Renders what became of an item.
#[must_use]
pub fn fate(fate: Fate) -> Markup {
    match fate {
        Fate::Kept | Fate::Unspecified => badge(Mood::Plain, "kept"),
        Fate::Shortened => badge(Mood::Wait, "shortened"),
        Fate::Dropped => badge(Mood::Bad, "dropped"),
    }
}

fn one(
    visit: &Visit,
    place: &ConversationPlace,
    ask: &RequestAsk,
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
                @if !item.reason.is_empty() { p.dim { (shown(&item.reason)) } }
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
                    a data-open href=(link_of(visit, event, place, ask)) {
                        "#" (count(event.revision))
                    }
                    " "
                }
                @if item.events.len() > EVENTS { span.dim { "+" (item.events.len() - EVENTS) } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(fate: Fate, reason: &str, is_volatile: bool) -> pb::ExplainedItem {
        pb::ExplainedItem {
            fate: fate.into(),
            reason: reason.into(),
            is_volatile,
            ..Default::default()
        }
    }

    // Four hundred items that were dropped for one reason hid the dozen that were sent.
    #[test]
    fn what_was_dropped_alike_is_one_row() {
        let mut items = vec![item(Fate::Kept, "", false)];
        items.extend((0..4).map(|_| item(Fate::Dropped, "old", false)));
        items.extend((0..2).map(|_| item(Fate::Dropped, "long", false)));
        items.push(item(Fate::Kept, "", true));
        items.push(item(Fate::Kept, "", true));
        let kinds = |all| {
            let kinds = rows(&items, all).into_iter().map(|row| match row {
                Row::One(_) => 1,
                Row::Dropped(run) => run.len(),
                Row::Border => 0,
            });
            kinds.collect::<Vec<_>>()
        };
        assert_eq!(kinds(false), [1, 4, 1, 1, 0, 1, 1]);
        assert_eq!(kinds(true), [1, 1, 1, 1, 1, 1, 1, 0, 1, 1]);
    }
}
