//! Search as you type, with filters that a click sets or removes.

use maud::{Markup, PreEscaped, html};

use crate::{
    bounds::{CHIPS, HITS, HITS_OFFSET_MAX, SNIPPET_BYTES, TITLE_CHARS},
    failure::PageFailure,
    frame::{Page, Tab},
    parts::{
        escape::{escape_inline, escaped, fitting, headline},
        numbers::{count, things},
        pager::pager,
        pieces::{BadgeColor, badge, chip, nothing},
        time,
    },
    request_context::{RequestContext, path_part, query},
};
use treering_present::{hit as hit_text, text::address, time_arg::TimeRange, tool_summary};
use treering_proto::pb;

/// Where to search: value in the address, label, kinds.
const PLACES: [(&str, &str, &[pb::EventKind]); 3] = [
    ("results", "results", &[pb::EventKind::ToolResultRecorded]),
    (
        "arguments",
        "arguments",
        &[pb::EventKind::ToolCallRequested],
    ),
    ("messages", "messages", &[pb::EventKind::MessageAppended]),
];
/// Time ranges that a click sets.
const SINCE: [(&str, &str); 3] = [
    ("1 h", "last hour"),
    ("1 day", "last day"),
    ("7 days", "last week"),
];

/// Returns the page.
///
/// # Errors
/// Errors of the store.
pub(crate) async fn page(request_context: RequestContext) -> Result<Page, PageFailure> {
    let asked = &request_context.asked;
    let similar = asked.text("similar").map(event_of).transpose()?;
    // A typed query replaces an event.
    let text = match similar {
        Some(_) => "",
        None => asked.text("q").unwrap_or_default(),
    };
    let is_asked = !text.is_empty() || similar.is_some() || has_filter(&request_context);
    let found = match is_asked {
        true => Some(answer(&request_context, text, similar.clone()).await?),
        false => None,
    };
    let body = html! {
        h1.hidden { "Search" }
        form.search method="get" action=(request_context.link("/search")) data-instant="#found" role="search" aria-label="With filters" {
            label.hidden for="q" { "Search for" }
            input #q type="search" name="q" value=(text) data-search autofocus autocomplete="off"
                spellcheck="false" placeholder="words, a pasted line, \"an exact phrase\", pre*";
            button { "Search" }
            span.searching data-searching role="status" aria-live="polite" {}
            @for name in ["tool", "failed", "since", "c", "in", "active", "regex", "by"] {
                @for value in request_context.asked.texts(name) { input type="hidden" name=(name) value=(value); }
            }
        }
        @if let Some(event) = &similar {
            p { "Texts that are similar in meaning to " (event_link(&request_context, event)) }
        }
        div #found aria-live="polite" {
            @match &found {
                Some(found) => (hits(&request_context, text, found)),
                None => {
                    (chips(&request_context, &[]))
                    (nothing(
                        "Search everything that was said, sent to tools, and returned.",
                        &html! { "Paste a part of an error to find where it occurred before, and \
                                  what helped." },
                    ))
                }
            }
        }
    };
    let title = match (text, &similar) {
        ("", None) => "Search".to_owned(),
        ("", Some(_)) => "Similar texts · Search".to_owned(),
        (text, _) => format!("{text} · Search"),
    };
    Ok(request_context.page(&title, Tab::Search, body))
}

fn has_filter(request_context: &RequestContext) -> bool {
    ["tool", "failed", "since", "c", "in"]
        .iter()
        .any(|name| request_context.asked.text(name).is_some())
}

/// Reads an event's place in the address of a page: a conversation and a revision, with `#` between.
fn event_of(place: &str) -> Result<pb::EventRef, PageFailure> {
    let parts = place.rsplit_once('#');
    let event = parts.and_then(|(id, revision)| {
        Some(pb::EventRef {
            conversation_id: id.to_owned(),
            revision: revision.parse().ok()?,
        })
    });
    event.ok_or_else(|| {
        PageFailure::asked("`similar` is invalid", "It names an event: 5d0c3c0e#19.")
    })
}

fn event_link(request_context: &RequestContext, event: &pb::EventRef) -> Markup {
    let pb::EventRef {
        conversation_id,
        revision,
    } = event;
    let path = format!("/c/{}/e/{revision}", path_part(conversation_id));
    html! {
        a.mono href=(request_context.link(&path)) { (escape_inline(&address("", conversation_id, *revision))) }
    }
}

/// Returns the query of the page with texts that are similar in meaning to an event's.
pub(super) fn similar_to(conversation: &str, revision: u64) -> String {
    query(&[("similar", &format!("{conversation}#{revision}"))])
}

async fn answer(
    request_context: &RequestContext,
    text: &str,
    similar_to: Option<pb::EventRef>,
) -> Result<pb::SearchResponse, PageFailure> {
    let asked = &request_context.asked;
    let since = asked.text("since").map(str::parse::<TimeRange>).transpose();
    let since = since.map_err(|takes| PageFailure::asked("`since` is invalid", takes))?;
    let place = asked.one_of("in", &PLACES.map(|(own, ..)| own))?;
    let kinds = PLACES
        .iter()
        .filter(|(own, _, _)| Some(*own) == place)
        .flat_map(|(_, _, kinds)| kinds.iter().map(|kind| i32::from(*kind)));
    let offset = asked.number("from")?.unwrap_or(0).min(HITS_OFFSET_MAX);
    let regex = asked.is_set("regex") && similar_to.is_none();
    let by_both = asked.one_of("by", &["both"])?.is_some() && !regex;
    let request = pb::SearchRequest {
        query: text.to_owned(),
        limit: HITS,
        offset: u32::try_from(offset).unwrap_or(0),
        conversation_id: asked.text("c").unwrap_or_default().to_owned(),
        include_sub_contexts: asked.text("c").is_some(),
        tools: asked.texts("tool").map(str::to_owned).collect(),
        success: asked.is_set("failed").then_some(false),
        kinds: kinds.collect(),
        happened_from: since.map(TimeRange::beginning),
        regex,
        active_branches_only: asked.is_set("active"),
        by: match by_both {
            true => pb::SearchBy::Both,
            false => pb::SearchBy::Words,
        }
        .into(),
        by_conversation: !by_both && !regex && similar_to.is_none(),
        conversations_max: CHIPS as u32,
        mode: pb::QueryMode::Unspecified.into(),
        similar_to,
        // The page has no fields for these.
        branch: String::new(),
        paths: Vec::new(),
        sources: Vec::new(),
        labels: Vec::new(),
        roles: Vec::new(),
        happened_to: None,
        recorded_from: None,
        recorded_to: None,
        not_sealed: false,
        every_copy: false,
        count_all: false,
        context_lines: 0,
        at_least: None,
        wait_max: None,
    };
    Ok(request_context
        .store
        .search()
        .search(request)
        .await?
        .into_inner())
}

fn hits(request_context: &RequestContext, text: &str, found: &pb::SearchResponse) -> Markup {
    let more = if found.more_than_total {
        "more than "
    } else {
        ""
    };
    html! {
        (chips(request_context, &found.hits))
        (conversations(request_context, found))
        @if found.hits.is_empty() {
            (none(request_context, text, found))
        } @else {
            p.count.dim role="status" {
                (more) (things(found.total, "hit", "hits"))
                @if found.parts_only { " · nothing contains all of it: these contain its parts" }
                @if found.events_missing > 0 { " · " (things(found.events_missing, "event is", "events are")) " not indexed yet" }
                @if !found.lagging.is_empty() { " · the index lags: " (escape_inline(&found.lagging)) }
            }
            ol.hits { @for found in &found.hits { (hit(request_context, found)) } }
            @if let Some(hidden) = &found.hidden {
                p.hint { "Not failed, but matching more of the words:" }
                ol.hits { (hit(request_context, hidden)) }
            }
            (pages(request_context, found))
        }
    }
}

fn none(request_context: &RequestContext, text: &str, found: &pb::SearchResponse) -> Markup {
    let bare = format!(
        "{}?{}",
        request_context.link("/search"),
        query(&[("q", text)])
    );
    let hint = match (has_filter(request_context), found.more_than_total) {
        (true, _) => html! { a href=(bare) { "Search without filters" } },
        (false, true) => {
            html! { "Only the newest texts were scanned: use a longer word, or a filter." }
        }
        (false, false) => {
            html! { "Try fewer or other words, or a prefix: " code { "pre*" } "." }
        }
    };
    nothing("Nothing found.", &hint)
}

/// Renders the filters as links, each of which sets or removes a filter.
fn chips(request_context: &RequestContext, hits: &[pb::SearchHit]) -> Markup {
    let asked = &request_context.asked;
    let to = |name: &str, value: Option<&str>| {
        format!(
            "{}?{}",
            request_context.link("/search"),
            asked.with(name, value, &["from"])
        )
    };
    let switch = |name: &str, value: &str, word: Markup| {
        let is_on = asked.text(name) == Some(value);
        chip(&to(name, (!is_on).then_some(value)), &word, is_on)
    };
    let mut tools: Vec<&str> = asked.texts("tool").collect();
    for hit in hits {
        if !hit.tool.is_empty() && !tools.contains(&hit.tool.as_str()) && tools.len() < CHIPS {
            tools.push(&hit.tool);
        }
    }
    html! {
        div.chips role="group" aria-label="Filters" {
            @for (value, word, _) in PLACES { (switch("in", value, html! { (word) })) }
            span.gap {}
            (switch("failed", "1", html! { "failed" }))
            (switch("active", "1", html! { "active branches only" }))
            @if asked.text("similar").is_none() { (switch("by", "both", html! { "by meaning too" })) }
            span.gap {}
            @for (value, word) in SINCE { (switch("since", value, html! { (word) })) }
            @if let Some(since) = asked.text("since").filter(|since| SINCE.iter().all(|(own, _)| own != since)) {
                (switch("since", since, html! { "since " (escape_inline(since)) }))
            }
            @if !tools.is_empty() { span.gap {} }
            @for tool in tools { (switch("tool", tool, html! { span.mono { (escape_inline(tool)) } })) }
            @if let Some(id) = asked.text("c") { (switch("c", id, html! { "in one conversation" })) }
        }
    }
}

/// Renders the conversations with the most hits, to narrow the search to one of them.
fn conversations(request_context: &RequestContext, found: &pb::SearchResponse) -> Markup {
    if found.conversations.len() < 2 {
        return html! {};
    }
    let asked = &request_context.asked;
    html! {
        div.chips.of role="group" aria-label="Conversations" {
            @for one in found.conversations.iter().take(CHIPS) {
                @let to = asked.with("c", Some(&one.conversation_id), &["from"]);
                (chip(&format!("{}?{to}", request_context.link("/search")), &html! {
                    @if one.title.trim().is_empty() { span.mono { (escape_inline(&one.conversation_id[..8.min(one.conversation_id.len())])) } }
                    @else { (headline(&one.title, 32)) }
                    " " span.dim { (count(one.hits)) }
                }, false))
            }
        }
    }
}

fn hit(request_context: &RequestContext, hit: &pb::SearchHit) -> Markup {
    let path = format!("/c/{}", path_part(&hit.conversation_id));
    let at = hit.line.to_string();
    let branch = [("branch", hit.branch.as_str())];
    let text = query(&[branch[0], ("at", &at)]);
    let text = format!(
        "{}?{text}#L{at}",
        request_context.link(&format!("{path}/text/{}", hit.revision))
    );
    let around = query(&[branch[0], ("around", &hit.revision.to_string())]);
    let around = format!("{}?{around}#e{}", request_context.link(&path), hit.revision);
    let what = hit_text::what(hit, str::to_owned);
    let deed = match (hit.command.as_str(), hit.path.as_str()) {
        ("", "") => None,
        ("", path) => Some(path.to_owned()),
        (command, _) => Some(tool_summary::summarise_call(&hit.tool, command)),
    };
    html! {
        li.hit #{ "h-" (hit.conversation_id) "-" (hit.revision) } data-item {
            div.line {
                a href=(text) data-open { (headline(&what, TITLE_CHARS)) }
                @if let Some(deed) = &deed { code.deed { (headline(deed, TITLE_CHARS)) } }
                @if hit.success == Some(false) { (badge(BadgeColor::Bad, "failed")) }
                @if hit.in_reasoning { (badge(BadgeColor::Plain, "reasoning")) }
                span.dim { "line " (count(hit.line)) }
                span.dim.end { (time::ago(hit.happened_at.as_ref().or(hit.recorded_at.as_ref()))) }
            }
            pre.snippet tabindex="0" { (highlighted(&hit.snippet[..fitting(&hit.snippet, SNIPPET_BYTES)], &hit.highlights)) }
            div.line.dim {
                a href=(around) { "in " (conversation(hit)) }
                span.mono { (escape_inline(&address(&hit.source_id, &hit.conversation_id, hit.revision))) }
                a href=(request_context.link(&format!("/search?{}", similar_to(&hit.conversation_id, hit.revision)))) { "similar texts" }
                @if hit.recalled { span { (hit_text::quoted(hit)) } }
                @if hit.copies > 0 { span { (things(hit.copies, "more with this text", "more with this text")) } }
            }
        }
    }
}

fn conversation(hit: &pb::SearchHit) -> Markup {
    match hit.title.trim() {
        "" => html! { "its conversation" },
        title => html! { "“" (headline(title, 80)) "”" },
    }
}

/// Renders text with highlights. Ranges are bytes of the text before escaping.
fn highlighted(text: &str, ranges: &[pb::Highlight]) -> PreEscaped<String> {
    let mut out = String::with_capacity(text.len() * 2);
    for (piece, is_match) in hit_text::pieces(text, ranges) {
        let piece = escaped(piece).0;
        match is_match {
            true => out.extend(["<mark>", &piece, "</mark>"]),
            false => out.push_str(&piece),
        }
    }
    PreEscaped(out)
}

fn pages(request_context: &RequestContext, found: &pb::SearchResponse) -> Markup {
    let from = request_context
        .asked
        .number("from")
        .ok()
        .flatten()
        .unwrap_or(0)
        .min(HITS_OFFSET_MAX);
    let next = from + found.hits.len() as u64;
    let to = |from: u64| {
        let from = (from > 0).then(|| from.to_string());
        let query = request_context.asked.with("from", from.as_deref(), &[]);
        format!("{}?{query}", request_context.link("/search"))
    };
    let before = (from > 0).then(|| (to(from.saturating_sub(u64::from(HITS))), "better"));
    let has_more = (next < found.total || found.more_than_total) && next <= HITS_OFFSET_MAX;
    let after = has_more.then(|| (to(next), "further"));
    if before.is_none() && after.is_none() {
        return html! {};
    }
    pager(
        before,
        after,
        &format!("{}–{}", count(from + 1), count(next)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    // A highlight must not break the escaping of recorded markup, and invalid ranges must not lose
    // text.
    #[test]
    fn highlights_are_inserted_into_escaped_text() {
        let range = |start, end| pb::Highlight { start, end };
        let out = highlighted("<b>é panic</b>", &[range(3, 5), range(6, 11)]).0;
        assert_eq!(out, "&lt;b&gt;<mark>é</mark> <mark>panic</mark>&lt;/b&gt;");
        for wrong in [range(4, 6), range(9, 900), range(5, 3)] {
            assert_eq!(highlighted("aéééé", &[wrong]).0, "aéééé");
        }
    }
}
