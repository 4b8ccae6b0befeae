//! Shows two branches side by side: where they diverge, then the events of each. Events that both
//! branches have are shown once.

mod sides;

use maud::{Markup, html};
use sides::{DiffRow, DiffSide, EventDescription};

use crate::{
    bounds::SIDE_EVENTS,
    failure::PageFailure,
    frame::{Page, Tab},
    parts::{
        escape::{escape_inline, escaped, headline},
        numbers::{count, things},
        pieces::nothing,
        place::{ConversationPlace, link, moment},
    },
    request_context::{PathParams, RequestContext},
};
use treering_present::Tone;
use treering_proto::pb;

/// Maximum characters of a title.
const TITLE_CHARS: usize = 100;

/// Returns the page.
///
/// # Errors
/// Errors of the store.
pub(crate) async fn page(
    PathParams(id): PathParams<String>,
    request_context: RequestContext,
) -> Result<Page, PageFailure> {
    let place = ConversationPlace::of(&request_context, &id).await?;
    let [a, b] = chosen(&request_context, &place);
    let differ = a != b && !b.is_empty();
    let found = match differ {
        true => Some(both(&request_context, &place, [&a, &b]).await?),
        false => None,
    };
    let body = html! {
        (place.heading(&request_context, "diff"))
        (form(&place, &a, &b))
        @match &found {
            None if place.branches.len() < 2 => (nothing("This conversation has only one branch.", &html! {
                "Fork it at any event: " a href=(place.link(&request_context, "/branches", &[])) { "branches" }
            })),
            None => (nothing("Choose two branches.", &html! { "They are shown side by side." })),
            Some(found) => (beside(&request_context, &place, [&a, &b], found)),
        }
    };
    let title = format!("{a} and {b}");
    let title = if differ { title.as_str() } else { "Compare" };
    Ok(request_context.page(&place.titled(title), Tab::Conversations, body))
}

/// Returns the two branches that the address names. The defaults are the active branch and the
/// newest other branch.
fn chosen(request_context: &RequestContext, place: &ConversationPlace) -> [String; 2] {
    let named = |name| request_context.asked.text(name).map(str::to_owned);
    let a = named("a").unwrap_or_else(|| place.branch.name.clone());
    let newest = || {
        let others = place
            .branches
            .iter()
            .rev()
            .filter(|branch| branch.name != a);
        others.map(|branch| branch.name.clone()).next()
    };
    let b = named("b").or_else(newest).unwrap_or_default();
    [a, b]
}

/// The data that was read from two branches.
struct DiffSource {
    ancestor: (String, u64),
    sides: [DiffSide; 2],
    rows: Vec<DiffRow>,
}

async fn both(
    request_context: &RequestContext,
    place: &ConversationPlace,
    names: [&str; 2],
) -> Result<DiffSource, PageFailure> {
    let request = pb::DiffRequest {
        conversation_id: place.id.clone(),
        left_branch: names[0].to_owned(),
        right_branch: names[1].to_owned(),
        headers_only: true,
        limit: 1,
    };
    let diff = request_context
        .store
        .conversations()
        .diff(request)
        .await?
        .into_inner();
    let ancestor = (diff.ancestor_conversation_id, diff.ancestor_revision);
    let after = |name| match request_context.asked.text(name) {
        Some(text) => sides::parsed(text),
        None => Ok(ancestor.clone()),
    };
    let (left, right) = (after("after_a")?, after("after_b")?);
    let (left, right) = tokio::try_join!(
        DiffSide::read(request_context, &place.id, names[0], left),
        DiffSide::read(request_context, &place.id, names[1], right)
    )?;
    let rows = sides::aligned(&left.events, &right.events);
    Ok(DiffSource {
        ancestor,
        sides: [left, right],
        rows,
    })
}

fn form(place: &ConversationPlace, a: &str, b: &str) -> Markup {
    html! {
        form.filters aria-label="The two branches" {
            label { "A" (place.branch_field("a", a)) }
            label { "B" (place.branch_field("b", b)) }
            button { "Compare" }
        }
    }
}

fn beside(
    request_context: &RequestContext,
    place: &ConversationPlace,
    names: [&str; 2],
    found: &DiffSource,
) -> Markup {
    let (conversation, revision) = &found.ancestor;
    let is_later = request_context
        .asked
        .text("after_a")
        .or(request_context.asked.text("after_b"))
        .is_some();
    html! {
        p.lead {
            @if *revision == 0 {
                "The branches share no event."
            } @else {
                "Both branches share everything up to "
                a href=(moment(request_context, conversation, names[0], *revision)) { "#" (count(*revision)) }
                ". "
                a href=(place.link(request_context, "/diff", &[("a", names[1]), ("b", names[0])])) { "Swap them" }
                " · "
                a href=(requests(request_context, place, names)) { "compare their requests" }
            }
            @if is_later {
                " " a href=(place.link(request_context, "/diff", &[("a", names[0]), ("b", names[1])])) {
                    "Back to the fork point"
                }
            }
        }
        div.beside.heads aria-hidden="true" {
            (head(request_context, place, names[0], &found.sides[0], "A"))
            (head(request_context, place, names[1], &found.sides[1], "B"))
        }
        @if found.rows.is_empty() {
            (nothing("Neither branch has its own events.", &html! { "They are identical so far." }))
        }
        ol.pairs aria-label="Events of both branches" {
            @for row in &found.rows { (pair(request_context, place, names, found, row)) }
        }
        (more(request_context, found))
    }
}

fn requests(
    request_context: &RequestContext,
    place: &ConversationPlace,
    names: [&str; 2],
) -> String {
    let neutral = treering_context::Provider::default().as_str();
    let pairs = [
        ("provider", neutral),
        ("branch", names[0]),
        ("b_provider", neutral),
        ("b_branch", names[1]),
    ];
    link(request_context, &place.id, "/request", &pairs)
}

fn head(
    request_context: &RequestContext,
    place: &ConversationPlace,
    name: &str,
    side: &DiffSide,
    letter: &str,
) -> Markup {
    let number = things(side.events.len() as u64, "event", "events");
    html! {
        div.head-of {
            span class={ "letter " (letter.to_lowercase()) } { (letter) }
            " " a href=(place.link(request_context, "", &[("branch", name)])) tabindex="-1" { (headline(name, TITLE_CHARS)) }
            " " span.dim { (number) @if side.next.is_some() { ", and more" } }
        }
    }
}

fn pair(
    request_context: &RequestContext,
    place: &ConversationPlace,
    names: [&str; 2],
    found: &DiffSource,
    row: &DiffRow,
) -> Markup {
    let [left, right] = &found.sides;
    html! {
        @match *row {
            DiffRow::Same(at, other) => {
                li.pair.same data-item {
                    (told(request_context, place, names[0], &left.events[at], "both", Some(right.events[other].revision)))
                }
            }
            DiffRow::Apart(one, other) => {
                li.pair data-item {
                    @match one {
                        Some(at) => (told(request_context, place, names[0], &left.events[at], "a", None)),
                        None => div.empty {},
                    }
                    @match other {
                        Some(at) => (told(request_context, place, names[1], &right.events[at], "b", None)),
                        None => div.empty {},
                    }
                }
            }
        }
    }
}

/// Renders an event of one side or of both. For an event of both, `other` is its revision on the
/// other side.
fn told(
    request_context: &RequestContext,
    place: &ConversationPlace,
    branch: &str,
    event: &EventDescription,
    class: &str,
    other: Option<u64>,
) -> Markup {
    let of = match event.conversation == place.id {
        true => branch,
        false => "",
    };
    let word = match class {
        "a" => "A",
        "b" => "B",
        _ => "A and B",
    };
    html! {
        article class={ "told " (class) } {
            header {
                span class={ "letter " (class) } { (word) }
                a.rev data-open href=(moment(request_context, &event.conversation, of, event.revision)) {
                    "#" (count(event.revision))
                    @if let Some(other) = other { @if other != event.revision { " / #" (count(other)) } }
                }
                strong class=(tone(event.tone)) { (headline(&event.title, TITLE_CHARS)) }
                @if !event.note.is_empty() { span.dim { (headline(&event.note, TITLE_CHARS)) } }
            }
            @if !event.content.is_empty() {
                p.content dir="auto" { (escaped(&event.content)) @if event.is_cut { span.dim { " …" } } }
            }
        }
    }
}

fn tone(tone: Tone) -> &'static str {
    match tone {
        Tone::User => "user",
        Tone::Assistant => "assistant",
        Tone::Tool => "tool",
        Tone::Good => "good",
        Tone::Bad => "bad",
        Tone::Wait => "wait",
        _ => "plain",
    }
}

fn more(request_context: &RequestContext, found: &DiffSource) -> Markup {
    let [left, right] = &found.sides;
    if left.next.is_none() && right.next.is_none() {
        return html! {};
    }
    // A side without further events stays at its end.
    let after = |side: &DiffSide| side.next.clone().unwrap_or_else(|| side.end.clone());
    let query = request_context
        .asked
        .with("after_a", Some(&after(left)), &["after_b"]);
    let b = crate::request_context::query(&[("after_b", &after(right))]);
    html! {
        nav.pager aria-label="Further events" {
            span {}
            a href={ (request_context.link(&request_context.here.path)) "?" (query) "&" (b) } rel="next" {
                "The next " (SIDE_EVENTS) " of each →"
            }
        }
        @for (side, word) in [(left, "A"), (right, "B")] {
            @if side.next.is_some() { span.hidden { (escape_inline(word)) " has more events" } }
        }
    }
}
