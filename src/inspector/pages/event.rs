//! One event: its header, its body, and its context.

use axum::response::{IntoResponse, Redirect, Response};
use maud::{Markup, html};

use crate::{
    bounds::{EVENT_JSON_BYTES, EVENT_WHOLE_BYTES, TITLE_CHARS},
    failure::PageFailure,
    frame::Tab,
    pages::{call, search},
    parts::{
        escape::{block, escape_inline, fitting, headline},
        json::pretty,
        numbers::{count, size},
        pieces::{BadgeColor, badge},
        place::moment,
        time,
    },
    recorded_text::{Piece, TextPart, TextPlace},
    request_context::{PathParams, RequestContext, path_part, query},
    transcript::step::deed_of,
};
use treering_domain::hex;
use treering_present::{
    json::{self, kind_name},
    text::describe_event,
};
use treering_proto::pb;

/// Returns the page.
///
/// # Errors
/// Errors of the store.
pub(crate) async fn page(
    request_context: RequestContext,
    PathParams((id, revision)): PathParams<(String, u64)>,
) -> Result<Response, PageFailure> {
    let header = find(&request_context, &id, revision, true).await?;
    let place = TextPlace {
        conversation: header.conversation_id.clone(),
        branch: header.branch.clone(),
        revision,
    };
    // A result may be larger than a page can show or should load.
    let text = Piece::read(
        &request_context.store,
        &place,
        TextPart::Bytes { first: 0 },
        EVENT_JSON_BYTES,
    )
    .await;
    let text = text.ok().filter(|piece| piece.info.total_bytes > 0);
    let is_large = text
        .as_ref()
        .is_some_and(|piece| piece.info.total_bytes > EVENT_WHOLE_BYTES);
    let event = match is_large {
        true => header,
        false => find(&request_context, &id, revision, false).await?,
    };
    let call = match is_of_call(event.kind()) {
        true => call::of_event(&request_context, &place).await,
        false => None,
    };
    let said = describe_event(&event);
    let name = kind_name(event.kind);
    let body = html! {
        div.crumbs {
            a href=(request_context.link(&conversation(&event))) { "conversation" } " / "
            a href=(request_context.link(&in_transcript(&event))) { "in the transcript" } " / "
            a href=(request_context.link(&fork_here(&event))) { "fork here" }
            @if text.is_some() {
                " / "
                a href=(request_context.link(&format!("/search?{}", search::similar_to(&event.conversation_id, revision)))) { "similar texts" }
            }
        }
        div.head {
            h1 { "#" (revision) " " (escape_inline(&said.title)) }
            p { (badge(BadgeColor::Plain, &name)) @if event.erased { " " (badge(BadgeColor::Bad, "erased")) } }
        }
        section.columns {
            dl.facts.card {
                @if let Some(call) = &call { (call_of(&request_context, &event, call)) }
                (facts(&request_context, &event))
            }
        }
        @if let Some(text) = &text { (text_of(&request_context, &place, text)) }
        section {
            h2 { "As JSON" }
            @if is_large {
                p.hint { "It is too large to be shown completely; its text is above, by lines." }
            }
            (body_of(&event))
        }
        (neighbours(&request_context, &event))
    };
    let page = request_context.page(&format!("#{revision} {name}"), Tab::Conversations, body);
    Ok(page.into_response())
}

/// Redirects from an event id to the event's address.
///
/// # Errors
/// Errors of the store.
pub(crate) async fn by_id(
    request_context: RequestContext,
    PathParams(id): PathParams<String>,
) -> Result<Redirect, PageFailure> {
    let name = pb::EventName {
        by: Some(pb::event_name::By::EventId(id)),
    };
    let event = one(&request_context, name, true).await?;
    let to = format!("/c/{}/e/{}", event.conversation_id, event.revision);
    Ok(Redirect::to(&request_context.link(&to)))
}

/// Finds an event by its place.
///
/// # Errors
/// Errors of the store.
pub(crate) async fn find(
    request_context: &RequestContext,
    id: &str,
    revision: u64,
    headers_only: bool,
) -> Result<pb::Event, PageFailure> {
    let place = pb::EventPlace {
        conversation_id: id.to_owned(),
        revision,
    };
    let name = pb::EventName {
        by: Some(pb::event_name::By::Place(place)),
    };
    one(request_context, name, headers_only).await
}

async fn one(
    request_context: &RequestContext,
    name: pb::EventName,
    headers_only: bool,
) -> Result<pb::Event, PageFailure> {
    let request = pb::GetManyRequest {
        events: vec![name],
        headers_only,
    };
    let answer = request_context
        .store
        .events()
        .get_many(request)
        .await?
        .into_inner();
    let event = answer.events.into_iter().next().and_then(|got| got.event);
    event.ok_or_else(|| {
        PageFailure::none(
            "no such event in this namespace",
            "see the conversation, or search",
        )
    })
}

fn is_of_call(kind: pb::EventKind) -> bool {
    use pb::EventKind as Kind;
    matches!(
        kind,
        Kind::ToolCallRequested
            | Kind::ApprovalDecided
            | Kind::ToolCallStarted
            | Kind::ToolResultRecorded
            | Kind::ToolCallCancelled
    )
}

/// Renders the call of an event, with a link to its request.
fn call_of(request_context: &RequestContext, event: &pb::Event, call: &pb::ToolCall) -> Markup {
    let id = &event.conversation_id;
    let asked = moment(request_context, id, &call.branch, call.request_revision);
    let deed = deed_of(&call.tool, &String::from_utf8_lossy(&call.arguments));
    html! {
        dt { "call" }
        dd {
            a href=(call::address(request_context, id, call)) { (escape_inline(&call.tool)) } " "
            code { (headline(&deed, TITLE_CHARS)) } " asked at "
            a href=(asked) { "#" (count(call.request_revision)) }
        }
    }
}

fn conversation(event: &pb::Event) -> String {
    format!("/c/{}", path_part(&event.conversation_id))
}

fn in_transcript(event: &pb::Event) -> String {
    let query = query(&[
        ("branch", &event.branch),
        ("around", &event.revision.to_string()),
    ]);
    format!("{}?{query}#e{}", conversation(event), event.revision)
}

fn fork_here(event: &pb::Event) -> String {
    let query = query(&[
        ("branch", &event.branch),
        ("fork", &event.revision.to_string()),
    ]);
    format!("{}/branches?{query}#fork", conversation(event))
}

fn facts(request_context: &RequestContext, event: &pb::Event) -> Markup {
    let position = event.position.unwrap_or_default();
    html! {
        dt { "conversation" } dd.mono { a href=(request_context.link(&conversation(event))) { (escape_inline(&event.conversation_id)) } }
        dt { "branch" } dd { (escape_inline(&event.branch)) @if event.branch_id > 0 { span.dim { " forked at #" (event.branch_id) } } }
        dt { "revision" } dd.number { (count(event.revision)) }
        dt { "log position" } dd.number { (count(position.offset)) }
        dt { "event id" } dd.mono { (escape_inline(&event.id)) }
        dt { "recorded" } dd { (time::moment(event.recorded_at.as_ref())) " · " (time::ago(event.recorded_at.as_ref())) }
        @if event.occurred_at.is_some() {
            dt { "happened" } dd { (time::moment(event.occurred_at.as_ref())) }
        }
        @if !event.actor.is_empty() { dt { "actor" } dd { (escape_inline(&event.actor)) } }
        @if !event.key.is_empty() { dt { "key" } dd.mono { (escape_inline(&event.key)) } }
        @for (name, value) in &event.attributes {
            dt { (escape_inline(name)) } dd { (escape_inline(value)) }
        }
        @if !event.causation_id.is_empty() {
            dt { "caused by" }
            dd.mono { a href=(request_context.link(&format!("/e/{}", path_part(&event.causation_id)))) { (escape_inline(&event.causation_id)) } }
        }
        @if !event.correlation_id.is_empty() {
            dt { "correlation" }
            dd.mono { a href={ (request_context.link("/correlated")) "?" (query(&[("id", &event.correlation_id)])) } { (escape_inline(&event.correlation_id)) } }
        }
        dt { "chain hash" } dd.mono { (hex(&event.chain_hash)) }
    }
}

fn text_of(request_context: &RequestContext, place: &TextPlace, piece: &Piece) -> Markup {
    let path = format!(
        "/c/{}/text/{}",
        path_part(&place.conversation),
        place.revision
    );
    let address = format!(
        "{}?{}",
        request_context.link(&path),
        query(&[("branch", &place.branch)])
    );
    html! {
        section {
            h2 { "Text " span.dim { (size(piece.info.total_bytes)) } }
            @if !piece.is_to_end() {
                p.hint { "This is the beginning. " a href=(address) { "Everything, by lines" } }
            } @else {
                p.hint { a href=(address) { "By lines" } }
            }
            (block(&piece.text))
        }
    }
}

fn body_of(event: &pb::Event) -> Markup {
    let text = json::event(event);
    match text.len() <= EVENT_JSON_BYTES {
        true => pretty(&text),
        false => {
            let end = text.floor_char_boundary(EVENT_JSON_BYTES);
            let end = fitting(&text[..end], 3 * EVENT_JSON_BYTES);
            html! {
                (block(&text[..end]))
                p.hint { (count((text.len() - end) as u64)) " bytes more: " code { "treering log --json" } " shows everything." }
            }
        }
    }
}

fn neighbours(request_context: &RequestContext, event: &pb::Event) -> Markup {
    let to = |revision: u64| {
        request_context.link(&format!(
            "/c/{}/e/{revision}",
            path_part(&event.conversation_id)
        ))
    };
    let before = (event.revision > 1).then(|| (to(event.revision - 1), "event before"));
    let after = Some((to(event.revision + 1), "event after"));
    crate::parts::pager::pager(before, after, &format!("#{}", count(event.revision)))
}
