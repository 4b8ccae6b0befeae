//! One call: its arguments, the decision, its result, and the result digest that replaces it in
//! requests.

mod find;
mod strings;
mod text;

pub(crate) use find::of_event;

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use futures::StreamExt;
use http::{
    HeaderValue,
    header::{CONTENT_DISPOSITION, CONTENT_TYPE},
};
use maud::{Markup, html};

use crate::{
    bounds::{ARGUMENTS_BYTES, MARKUP_BYTES},
    failure::PageFailure,
    frame::{Page, Tab},
    pages::approvals,
    parts::{
        escape::{block, escape_inline},
        json::pretty,
        numbers::{count, size},
        pieces::{BadgeColor, badge},
        place::{ConversationPlace, link, moment},
        time,
    },
    request_context::{PathParams, RequestContext, path_part},
    transcript::step::BETWEEN,
};
use treering_domain::hex;
use treering_present::{
    json::{approval_name, cancel_name},
    text::{duration, status_text},
    tool_stats::{self, HappenedAt},
};
use treering_proto::pb::{self, CallStatus};

/// Bytes of markup of arguments and result together.
const PAGE_MARKUP: usize = 240 << 10;

/// Returns the address of a call. It contains the revisions of its start and end, so that the call
/// is found at once, even if its id was used again.
#[must_use]
pub(crate) fn address(
    request_context: &RequestContext,
    conversation: &str,
    call: &pb::ToolCall,
) -> String {
    let place = (conversation, call.branch.as_str());
    let events = (call.request_revision, call.end_revision);
    address_of(request_context, place, &call.call_id, events)
}

/// Returns the address of the call with this id in a conversation, on a branch, between two events;
/// the second is 0 for an open call.
#[must_use]
pub(crate) fn address_of(
    request_context: &RequestContext,
    (conversation, branch): (&str, &str),
    call_id: &str,
    (at, end): (u64, u64),
) -> String {
    let end = if end == 0 {
        String::new()
    } else {
        end.to_string()
    };
    let tail = format!("/call/{}", path_part(call_id));
    let pairs = [("branch", branch), ("at", &at.to_string()), ("end", &end)];
    link(request_context, conversation, &tail, &pairs)
}

/// Renders the outcome as a badge.
#[must_use]
pub(crate) fn outcome(call: &pb::ToolCall) -> Markup {
    let (tone, text) = status_text(call.status());
    badge(BadgeColor::of(tone), &text)
}

/// Returns the page.
///
/// # Errors
/// Errors of the store.
pub(crate) async fn page(
    PathParams((id, call_id)): PathParams<(String, String)>,
    request_context: RequestContext,
) -> Result<Page, PageFailure> {
    let place = ConversationPlace::of(&request_context, &id).await?;
    let call = find::call(&request_context, &place, &call_id).await?;
    let (piece, snapshot, happened) = tokio::try_join!(
        text::of_result(&request_context, &place, &call),
        find::snapshot(&request_context, &place, &call),
        find::happened(&request_context, &place, &call)
    )?;
    let asked = strings::apart(&request_context, &place, &call);
    let room = PAGE_MARKUP.saturating_sub(asked.0.len());
    let room = room.clamp(MARKUP_BYTES / 4, MARKUP_BYTES);
    let body = html! {
        (place.heading_of(&request_context, "tools", &escape_inline(&call.tool)))
        (facts(&request_context, &place, &call, &happened))
        @if call.status() == CallStatus::PendingApproval {
            section aria-labelledby="decide" {
                h2 #decide { "Waiting for a decision" }
                (approvals::decision(&request_context, &call))
            }
        }
        section aria-labelledby="arguments" {
            h2 #arguments { "Arguments" }
            (asked)
        }
        section #result aria-labelledby="result-title" {
            h2 #result-title { "Result" }
            @if !call.error_message.is_empty() { (block(&call.error_message)) }
            (text::section(&request_context, &place, &call, piece.as_ref(), room))
        }
        @if let Some(snapshot) = &snapshot {
            section aria-labelledby="snapshot" {
                h2 #snapshot { "Snapshot" }
                p.hint {
                    "Replaces the result in requests after its turn has ended, if the policy says \
                     so"
                    @if !snapshot.recorded { "; an extract, because no summary was recorded" }
                    "."
                }
                (block(&snapshot.result_summary))
                p.hint { code { (escape_inline(&snapshot.full_result_ref)) } }
            }
        }
    };
    let title = format!("{} · {}", call.tool, place.name());
    Ok(request_context.page(&title, Tab::Tools, body))
}

fn facts(
    request_context: &RequestContext,
    place: &ConversationPlace,
    call: &pb::ToolCall,
    happened: &HappenedAt,
) -> Markup {
    let asked = happened.get(&(call.conversation_id.clone(), call.request_revision));
    let asked = asked.or(call.requested_at.as_ref());
    let took = tool_stats::took(call, &place.id, happened);
    let to = |revision| moment(request_context, &place.id, &call.branch, revision);
    let at = |revision: u64| {
        html! { a href=(to(revision)) title="in the transcript" { "#" (count(revision)) } }
    };
    let seen = if call.end_revision > 0 {
        call.end_revision
    } else {
        call.request_revision
    };
    html! {
        dl.facts {
            dt { "Outcome" }
            dd {
                (outcome(call))
                @if call.end_revision > 0 { " at " (at(call.end_revision)) }
                @if call.status() == CallStatus::Cancelled { " " (cancel_name(call.cancel_reason())) }
            }
            dt { "Call" } dd { code { (escape_inline(&call.call_id)) } }
            dt { "Branch" }
            dd { a href=(place.link(request_context, "", &[("branch", &call.branch)])) { (escape_inline(&call.branch)) } }
            dt { "Asked" }
            dd { "at " (at(call.request_revision)) ", " (time::moment(asked)) " UTC" }
            (approval(call, &at))
            @if call.started_revision > 0 { dt { "Started" } dd { "at " (at(call.started_revision)) } }
            @if let Some(took) = took {
                dt { "Took" }
                dd { (duration(took)) @if call.execution_time_ms.is_none() { span.dim { ", " (BETWEEN) } } }
            }
            @if call.end_revision > 0 { dt { "Returned" } dd { (size(call.result_bytes)) } }
            dt { "Seen" } dd { a href=(to(seen)) { "in the transcript" } }
        }
    }
}

fn approval(call: &pb::ToolCall, at: &impl Fn(u64) -> Markup) -> Markup {
    html! {
        dt { "Approval" }
        dd {
            (approval_name(call.approval()).replace('_', " "))
            @if !call.decided_by.is_empty() { " by " (escape_inline(&call.decided_by)) }
            @if call.decision_revision > 0 { " at " (at(call.decision_revision)) }
            @if !call.decision_reason.is_empty() { ": " (escape_inline(&call.decision_reason)) }
        }
        dt { "Arguments' hash" } dd { code.hash { (hex(&call.arguments_hash)) } }
    }
}

/// Renders the arguments, formatted; cut if they are too long.
#[must_use]
pub(crate) fn arguments(
    request_context: &RequestContext,
    place: &ConversationPlace,
    call: &pb::ToolCall,
) -> Markup {
    let text = String::from_utf8_lossy(&call.arguments);
    if text.len() <= ARGUMENTS_BYTES {
        return pretty(&text);
    }
    let head = &text[..text.floor_char_boundary(ARGUMENTS_BYTES)];
    html! {
        (block(head))
        p.hint {
            "The first " (size(head.len() as u64)) " of " (size(text.len() as u64)) ". "
            a href=(file_address(request_context, &place.id, call, "arguments")) { "Complete, as a file" }
        }
    }
}

/// Returns the address of the file with all arguments (`arguments`) or the whole result (`result`).
fn file_address(
    request_context: &RequestContext,
    conversation: &str,
    call: &pb::ToolCall,
    what: &str,
) -> String {
    let (at, end) = (
        call.request_revision.to_string(),
        call.end_revision.to_string(),
    );
    let end = if call.end_revision == 0 { "" } else { &end };
    let tail = format!("/call/{}/{what}", path_part(&call.call_id));
    let pairs = [("branch", call.branch.as_str()), ("at", &at), ("end", end)];
    link(request_context, conversation, &tail, &pairs)
}

/// Returns the whole result as a file.
///
/// # Errors
/// Errors of the store.
pub(crate) async fn result(
    PathParams((id, call_id)): PathParams<(String, String)>,
    request_context: RequestContext,
) -> Result<Response, PageFailure> {
    let place = ConversationPlace::of(&request_context, &id).await?;
    let call = find::call(&request_context, &place, &call_id).await?;
    if call.end_revision == 0 {
        return Err(PageFailure::none(
            "the call has no result yet",
            "retry later",
        ));
    }
    let request = text::request(&place, &call);
    let answer = request_context
        .store
        .tools()
        .get_result(request)
        .await?
        .into_inner();
    let chunks = answer.map(|piece| piece.map(|piece| piece.chunk));
    Ok(file(
        Body::from_stream(chunks),
        "attachment; filename=\"result.txt\"",
    ))
}

/// Returns the original arguments as a file.
///
/// # Errors
/// Errors of the store.
pub(crate) async fn whole_arguments(
    PathParams((id, call_id)): PathParams<(String, String)>,
    request_context: RequestContext,
) -> Result<Response, PageFailure> {
    let place = ConversationPlace::of(&request_context, &id).await?;
    let call = find::call(&request_context, &place, &call_id).await?;
    Ok(file(
        call.arguments.into(),
        "attachment; filename=\"arguments.json\"",
    ))
}

fn file(body: Body, disposition: &'static str) -> Response {
    let mut file = body.into_response();
    let headers = file.headers_mut();
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    headers.insert(CONTENT_TYPE, text);
    headers.insert(CONTENT_DISPOSITION, HeaderValue::from_static(disposition));
    file
}
