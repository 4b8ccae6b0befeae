//! Two requests side by side: their budgets, the items with a different fate, and the differing
//! lines of their bodies.

use std::collections::HashMap;

use maud::{Markup, html};

use super::{
    ask::{RequestAnswer, RequestParams},
    budget, items,
};
use crate::{
    bounds::{COMPARED_LINES, DIFFERENT_LINES, ITEMS},
    parts::{
        escape::{escape_inline, headline},
        line_diff::LineDiff,
        numbers::{count, things},
        pieces::fold,
    },
};
use treering_present::text::pretty_json;
use treering_proto::pb;

/// Characters of an item's label and content.
const LABEL_CHARS: usize = 120;

/// Renders two requests and their differences.
#[must_use]
pub(crate) fn section(
    [(first, one), (second, other)]: [(&RequestParams, &RequestAnswer); 2],
    [whole_one, whole_other]: [String; 2],
    link_of: impl Fn(&pb::EventRef) -> String,
) -> Markup {
    html! {
        div.two {
            div {
                p.side { span.a { "A" } " " (escape_inline(&first.words())) }
                (budget(&one.told, "a"))
                p { a href=(whole_one) { "Its body" } }
            }
            div {
                p.side { span.b { "B" } " " (escape_inline(&second.words())) }
                (budget(&other.told, "b"))
                p { a href=(whole_other) { "Its body" } }
            }
        }
        (differing_items(&one.told, &other.told, link_of))
        (differing_lines(one, other))
    }
}

/// Identifies an item in both requests by its origin.
type Origin<'a> = (Vec<(&'a str, u64)>, &'a str, &'a str);

fn origin(item: &pb::ExplainedItem) -> Origin<'_> {
    let events = item.events.iter();
    let events = events.map(|event| (event.conversation_id.as_str(), event.revision));
    (events.collect(), &item.enhancer, &item.label)
}

/// The same item in each request; `None` if the request lacks it.
type ItemPair<'a> = (Option<&'a pb::ExplainedItem>, Option<&'a pb::ExplainedItem>);

/// Returns the items that differ, in the order of the first request, then those that only the
/// second one has.
fn different<'a>(one: &'a pb::Explanation, other: &'a pb::Explanation) -> Vec<ItemPair<'a>> {
    let mut rest: HashMap<Origin<'_>, Vec<&pb::ExplainedItem>> = HashMap::new();
    for item in other.items.iter().rev() {
        rest.entry(origin(item)).or_default().push(item);
    }
    let mut pairs: Vec<ItemPair<'_>> = Vec::new();
    for item in &one.items {
        let same = rest.get_mut(&origin(item)).and_then(Vec::pop);
        if same.is_none_or(|same| same.fate() != item.fate() || same.tokens != item.tokens) {
            pairs.push((Some(item), same));
        }
    }
    let left: Vec<_> = other
        .items
        .iter()
        .filter(|item| {
            let left = rest.get(&origin(item));
            left.is_some_and(|left| left.iter().any(|one| std::ptr::eq(*one, *item)))
        })
        .collect();
    pairs.extend(left.into_iter().map(|item| (None, Some(item))));
    pairs
}

fn differing_items(
    one: &pb::Explanation,
    other: &pb::Explanation,
    link_of: impl Fn(&pb::EventRef) -> String,
) -> Markup {
    // The estimates of two providers differ for nearly every item, which must not hide a different
    // fate.
    let (estimates, fates): (Vec<_>, Vec<_>) = different(one, other)
        .into_iter()
        .partition(is_estimate_only);
    let in_fold = ITEMS
        .saturating_sub(fates.len().min(ITEMS))
        .max(ESTIMATES_MIN);
    html! {
        section aria-labelledby="different-items" {
            h2 #different-items {
                @if !fates.is_empty() { (things(fates.len() as u64, "item differs", "items differ")) }
                @else if estimates.is_empty() { "The same items" }
                @else { "The same items with the same outcome" }
            }
            @if !fates.is_empty() { (table(&fates, ITEMS - ESTIMATES_MIN, "different-items", &link_of)) }
            @if !estimates.is_empty() {
                (fold(
                    "other-estimates",
                    false,
                    &html! {
                        span #other-estimates-title {
                            (things(estimates.len() as u64, "item has", "items have"))
                            " only a different token estimate"
                        }
                    },
                    &table(&estimates, in_fold, "other-estimates-title", &link_of),
                ))
            }
        }
    }
}

/// Minimum number of rows for items that differ only by their estimate.
const ESTIMATES_MIN: usize = 50;

/// True for an item in both requests that differs only by its estimate.
fn is_estimate_only((one, other): &ItemPair<'_>) -> bool {
    matches!((one, other), (Some(one), Some(other)) if one.fate() == other.fate())
}

fn table(
    pairs: &[ItemPair<'_>],
    rows: usize,
    titled: &str,
    link_of: &impl Fn(&pb::EventRef) -> String,
) -> Markup {
    let more = pairs.len().saturating_sub(rows);
    html! {
        div.table role="group" aria-labelledby=(titled) tabindex="0" {
            table.items {
                thead {
                    tr {
                        th scope="col" { "Item" }
                        th.number scope="col" { "A" }
                        th.number scope="col" { "B" }
                        th scope="col" { "Event" }
                    }
                }
                tbody {
                    @for (one, other) in pairs.iter().take(rows) {
                        @if let Some(item) = one.or(*other) {
                            tr {
                                td {
                                    strong { (headline(&item.label, LABEL_CHARS)) }
                                    " " span.quote { (headline(&item.head, LABEL_CHARS)) }
                                }
                                (side(*one)) (side(*other))
                                td.rev {
                                    @if let Some(event) = item.events.first() {
                                        a href=(link_of(event)) { "#" (count(event.revision)) }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
        @if more > 0 { p.hint { "and " (count(more as u64)) " more" } }
    }
}

fn side(item: Option<&pb::ExplainedItem>) -> Markup {
    html! {
        td.number {
            @match item {
                Some(item) => {
                    (count(item.tokens)) " " (items::fate(item.fate()))
                    @if !item.reason.is_empty() && item.fate() != pb::Fate::Kept {
                        br; span.dim.reason { (headline(&item.reason, LABEL_CHARS)) }
                    }
                }
                None => span.dim { "missing" },
            }
        }
    }
}

fn differing_lines(one: &RequestAnswer, other: &RequestAnswer) -> Markup {
    let [one, other] = [one, other].map(|answer| {
        let text = String::from_utf8_lossy(&answer.body);
        pretty_json(&text)
    });
    if one == other {
        return html! { p.notice.good { "The bodies are equal, except for white space." } };
    }
    let lines = one.lines().count() + other.lines().count();
    if lines > COMPARED_LINES {
        return html! {
            p.notice {
                "The bodies are too long to compare here (" (count(lines as u64))
                " lines): download both, and compare them with a tool."
            }
        };
    }
    let diff = LineDiff::new(&one, &other, DIFFERENT_LINES);
    html! {
        section aria-labelledby="different-lines" {
            h2 #different-lines { "Bodies, formatted" }
            div.lines-diff role="group" aria-labelledby="different-lines" tabindex="0" {
                (diff.lines(["only in A: ", "only in B: "]))
            }
            @if diff.is_cut {
                p.hint { "Only the first " (count(DIFFERENT_LINES as u64)) " lines are shown; download both bodies for the rest." }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(revision: u64, tokens: u64, fate: pb::Fate) -> pb::ExplainedItem {
        pb::ExplainedItem {
            events: vec![pb::EventRef {
                conversation_id: "c".into(),
                revision,
            }],
            tokens,
            fate: fate.into(),
            ..Default::default()
        }
    }

    fn told(items: Vec<pb::ExplainedItem>) -> pb::Explanation {
        pb::Explanation {
            items,
            ..Default::default()
        }
    }

    // Two policies over a long history have hundreds of items in common. Only items with a
    // different fate may have a row, each once.
    #[test]
    fn only_items_with_a_different_fate_are_listed() {
        let kept = pb::Fate::Kept;
        let one = told(vec![item(1, 5, kept), item(2, 7, kept), item(3, 9, kept)]);
        let other = told(vec![
            item(1, 5, kept),
            item(2, 0, pb::Fate::Dropped),
            item(4, 3, kept),
        ]);
        let pairs: Vec<_> = different(&one, &other)
            .into_iter()
            .map(|(one, other)| {
                let place = |item: &pb::ExplainedItem| item.events[0].revision;
                (one.map(place), other.map(place))
            })
            .collect();
        assert_eq!(
            pairs,
            [(Some(2), Some(2)), (Some(3), None), (None, Some(4))]
        );
        assert!(different(&one, &one).is_empty());
    }

    // Another provider estimates each item differently. Fifty rows of "kept, kept" must not hide a
    // dropped item.
    #[test]
    fn different_token_estimates_are_not_differences() {
        let one = told(vec![item(1, 5, pb::Fate::Kept), item(2, 7, pb::Fate::Kept)]);
        let other = told(vec![
            item(1, 6, pb::Fate::Kept),
            item(2, 0, pb::Fate::Dropped),
        ]);
        let page = differing_items(&one, &other, |event| event.revision.to_string());
        let page = page.into_string();
        let (fates, estimates) = page.split_once("<details").unwrap();
        assert!(
            fates.contains("1 item differs") && fates.contains("#2"),
            "{page}"
        );
        assert!(!fates.contains("#1"), "{page}");
        assert!(
            estimates.contains("1 item has") && estimates.contains("#1"),
            "{page}"
        );
        let same = differing_items(&one, &one, |_| String::new()).into_string();
        assert!(same.contains("The same items") && !same.contains("<details"));
    }

    #[test]
    fn different_lines_of_bodies_are_listed() {
        let answer = |body: &'static str| RequestAnswer {
            told: told(Vec::new()),
            body: body.into(),
        };
        let (one, other) = (answer(r#"{"a":1,"b":"<x>"}"#), answer(r#"{"a":1,"b":"y"}"#));
        let page = differing_lines(&one, &other).into_string();
        assert!(
            page.contains("only in A: ") && page.contains("&lt;x&gt;"),
            "{page}"
        );
        assert!(
            differing_lines(&one, &one)
                .into_string()
                .contains("are equal")
        );
    }
}
