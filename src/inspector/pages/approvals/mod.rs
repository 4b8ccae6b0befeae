//! Calls that wait for approval: their exact arguments, and a form for the decision on them.

mod context;

use axum::response::Redirect;
use context::{CallContext, call_place};
use futures::{StreamExt, stream};
use maud::{Markup, html};
use prost::Message;

use super::call;
use crate::{
    bounds::{ARGUMENTS_BYTES, ASKED_AT_ONCE, PENDING, PENDING_BYTES, TITLE_CHARS},
    failure::PageFailure,
    form::Form,
    frame::{Page, Tab, token},
    parts::{
        escape::{escape_inline, headline},
        json::pretty,
        numbers::{count, size, things},
        pieces::nothing,
        place::moment,
        time,
    },
    request_context::{RequestContext, query},
};
use treering_access::KeyRole;
use treering_client::read;
use treering_domain::hex;
use treering_proto::pb::{self, new_event::Body};

/// Maximum number of characters of a question and of a reason.
const QUESTION_CHARS: usize = 160;

/// The actor of decisions without authentication.
const SOMEBODY: &str = "inspector";

/// Returns the page.
///
/// # Errors
/// Errors of the store.
pub(crate) async fn page(request_context: RequestContext) -> Result<Page, PageFailure> {
    let request = pb::PendingRequest {
        limit: PENDING + 1,
        ..Default::default()
    };
    let mut calls = request_context
        .store
        .tools()
        .pending(request)
        .await?
        .into_inner()
        .calls;
    // Oldest first, so that new calls appear below and nothing moves.
    calls.sort_by_key(asked_at);
    let more = calls.len() > PENDING as usize;
    calls.truncate(PENDING as usize);
    let waiting = calls.len();
    // A decided call keeps its place: if the next call moved there, a second click would decide it.
    if let Some(ended) = decided_call(&request_context).await {
        let at = calls.partition_point(|call| asked_at(call) < asked_at(&ended));
        calls.insert(at, ended);
    }
    let asked: Vec<_> = calls.iter().map(call_place).collect();
    let visit_of = &request_context;
    let contexts: Vec<CallContext> = stream::iter(asked)
        .map(|place| async move { CallContext::of(visit_of, &place).await })
        .buffered(ASKED_AT_ONCE)
        .collect()
        .await;
    let told = match (waiting as u64, more) {
        (0, _) => "no call is waiting".to_owned(),
        (number, false) => format!(
            "{} for a decision",
            things(number, "call is waiting", "calls are waiting")
        ),
        (number, true) => format!(
            "more than {} calls are waiting for a decision",
            count(number)
        ),
    };
    let mut room = PENDING_BYTES;
    let body = html! {
        header.head {
            h1 { "Approvals" }
            span.live role="status" { "not live" }
        }
        div #waiting data-live=(request_context.link("/live")) data-part="#waiting"
            data-status=(told) data-title={ "(" (waiting) ") Approvals · Treering" } {
            p.lead { (told) "." }
            @if let (false, Err(why)) = (waiting == 0, request_context.may(KeyRole::Approver)) {
                p.notice.wait { "You can see the waiting calls, but you cannot decide them. " (escape_inline(&why)) }
            }
            @if waiting == 0 {
                (nothing("No call is waiting for a decision.", &html! {
                    "A call waits here if its agent says that it needs approval. This page is \
                     live: new calls appear here."
                }))
            }
            @for (call, context) in calls.iter().zip(&contexts) {
                (card(&request_context, call, context, &mut room))
            }
        }
    };
    Ok(request_context.page("Approvals", Tab::Approvals, body))
}

/// Returns the sort key of a call: when it was requested.
fn asked_at(call: &pb::ToolCall) -> (i64, i32, u64) {
    let at = call.requested_at.unwrap_or_default();
    (at.seconds, at.nanos, call.request_revision)
}

/// Returns the call in the address if it is no longer pending. It is read from the store, because
/// an address alone does not prove that it was decided.
async fn decided_call(request_context: &RequestContext) -> Option<pb::ToolCall> {
    let asked = &request_context.asked;
    let at = asked.number("at").ok()??;
    let request = pb::WaitForDecisionRequest {
        conversation_id: asked.text("c")?.to_owned(),
        branch: asked.text("branch").unwrap_or_default().to_owned(),
        call_id: asked.text("call")?.to_owned(),
        // Only the current state is needed.
        timeout_ms: 1,
    };
    let answer = request_context
        .store
        .tools()
        .wait_for_decision(request)
        .await
        .ok()?;
    let call = answer.into_inner().call?;
    let was_asked = call.approval() != pb::ApprovalStatus::NotRequired;
    let waits = call.status() == pb::CallStatus::PendingApproval;
    (call.request_revision == at && was_asked && !waits).then_some(call)
}

/// Returns the address that shows the outcome of a call.
fn outcome_address(
    request_context: &RequestContext,
    (id, branch, call, at): (&str, &str, &str, &str),
) -> String {
    let asked = query(&[("c", id), ("branch", branch), ("call", call), ("at", at)]);
    request_context.link(&format!("/approvals?{asked}"))
}

/// Renders the decision on a call: the call, who decided, and the reason.
fn ended(request_context: &RequestContext, call: &pb::ToolCall, context: &CallContext) -> Markup {
    let (mood, word) = match call.approval() {
        pb::ApprovalStatus::Approved => ("good", "Approved"),
        pb::ApprovalStatus::Denied => ("bad", "Denied"),
        pb::ApprovalStatus::Expired => ("wait", "Nobody decided in time"),
        _ if call.status() == pb::CallStatus::Cancelled => ("wait", "Cancelled"),
        _ => ("wait", "Ended"),
    };
    let id = (!request_context.here.is_fragment).then_some("decided");
    html! {
        p class={ "notice " (mood) } id=[id] role="status" data-decided tabindex="-1" {
            (word) ": " (headline(&call.tool, TITLE_CHARS)) " at "
            a href=(moment(request_context, &call.conversation_id, &call.branch, call.request_revision)) {
                "#" (count(call.request_revision))
            }
            " of " (headline(&context.title, TITLE_CHARS))
            @if !call.decided_by.is_empty() { ", by " (headline(&call.decided_by, TITLE_CHARS)) }
            @if !call.decision_reason.is_empty() {
                ": " (headline(&call.decision_reason, QUESTION_CHARS))
            }
        }
    }
}

fn card(
    request_context: &RequestContext,
    call: &pb::ToolCall,
    context: &CallContext,
    room: &mut usize,
) -> Markup {
    let id = format!(
        "w-{}-{}-{}",
        call.conversation_id, call.branch_id, call.request_revision
    );
    let bytes = call.arguments.len();
    let fits = bytes <= ARGUMENTS_BYTES.min(*room);
    if fits {
        *room -= bytes;
    }
    let own = call::address(request_context, &call.conversation_id, call);
    let may_decide = request_context.may(KeyRole::Approver).is_ok();
    let waits = call.status() == pb::CallStatus::PendingApproval;
    let at = call.request_revision.to_string();
    let told = outcome_address(
        request_context,
        (&call.conversation_id, &call.branch, &call.call_id, &at),
    );
    html! {
        article.card.waiting.gone[!waits] #(id) data-item data-keep=(hex(&call.arguments_hash))
            data-told=(told) aria-labelledby={ (id) "-tool" } {
            header {
                h2 #{ (id) "-tool" } { a data-open href=(own) { (escape_inline(&call.tool)) } }
                p.dim {
                    a href=(moment(request_context, &call.conversation_id, &call.branch, call.request_revision)) {
                        (headline(&context.title, TITLE_CHARS))
                    }
                    " on " (escape_inline(&call.branch)) " #" (count(call.request_revision)) ", "
                    (time::ago(call.requested_at.as_ref()))
                }
                @if !context.question.is_empty() {
                    p.quote { "Last question: " (headline(&context.question, QUESTION_CHARS)) }
                }
            }
            @if fits {
                (pretty(&String::from_utf8_lossy(&call.arguments)))
                @if may_decide { (decision(request_context, call)) }
            } @else {
                p.notice.wait {
                    "Its arguments are too long for this list (" (size(bytes as u64)) "). "
                    a href=(own) { @if may_decide && waits { "View them and decide there" } @else { "View them" } }
                }
            }
            @if !waits { (ended(request_context, call, context)) }
        }
    }
}

/// Renders the form for a decision. It contains the hash of the shown arguments: a decision on
/// other arguments is refused. A visitor who may not decide sees the reason instead of buttons.
#[must_use]
pub(crate) fn decision(request_context: &RequestContext, call: &pb::ToolCall) -> Markup {
    if let Err(why) = request_context.may(KeyRole::Approver) {
        return html! { p.hint { "You cannot decide this call. " (escape_inline(&why)) } };
    }
    let hash = hex(&call.arguments_hash);
    let id = format!(
        "d-{}-{}-{}",
        call.conversation_id, call.branch_id, call.request_revision
    );
    let is_over = call.status() != pb::CallStatus::PendingApproval;
    html! {
        form.decide method="post" action=(request_context.link("/approvals")) {
            (token(&request_context.here))
            input type="hidden" name="conversation" value=(call.conversation_id);
            input type="hidden" name="branch" value=(call.branch);
            input type="hidden" name="call" value=(call.call_id);
            input type="hidden" name="at" value=(call.request_revision);
            input type="hidden" name="hash" value=(hash);
            label {
                span { "Reason " span.dim { "(the agent may see it)" } }
                input #(id) name="reason" maxlength="2000" autocomplete="off" disabled[is_over];
            }
            div.actions {
                button name="decision" value="approved" disabled[is_over] { "Approve" }
                button.danger name="decision" value="denied" disabled[is_over] { "Deny" }
                span.dim {
                    "for exactly these arguments, "
                    code.hash title=(hash) { (hash[..hash.len().min(12)]) }
                }
            }
        }
    }
}

/// Records a decision.
///
/// # Errors
/// Errors of the store; nothing is changed then.
pub(crate) async fn decide(form: Form) -> Result<Redirect, PageFailure> {
    let Form {
        request_context,
        fields,
    } = form;
    let text = |name| fields.text(name).unwrap_or_default().to_owned();
    let decision = match fields.text("decision") {
        Some("approved") => pb::Decision::Approved,
        Some("denied") => pb::Decision::Denied,
        _ => {
            return Err(PageFailure::asked(
                "the form has no decision",
                "use one of its two buttons",
            ));
        }
    };
    let Some(arguments_hash) = fields.text("hash").and_then(unhex) else {
        return Err(PageFailure::asked(
            "the form has no hash of the arguments",
            "reload the page, and check the arguments",
        ));
    };
    let by = if request_context.is_known() {
        ""
    } else {
        SOMEBODY
    };
    let body = pb::ApprovalDecided {
        call_id: text("call"),
        decision: decision.into(),
        arguments_hash: arguments_hash.into(),
        decided_by: by.to_owned(),
        reason: text("reason"),
    };
    let event = pb::NewEvent {
        actor: by.to_owned(),
        body: Some(Body::ApprovalDecided(body.encode_to_vec().into())),
        ..Default::default()
    };
    let request = pb::AppendRequest {
        conversation_id: text("conversation"),
        branch: text("branch"),
        events: vec![event],
        ..Default::default()
    };
    read::append(&request_context.store, request).await?;
    let (id, branch, call, at) = (
        text("conversation"),
        text("branch"),
        text("call"),
        text("at"),
    );
    let told = outcome_address(&request_context, (&id, &branch, &call, &at));
    Ok(Redirect::to(&format!("{told}#decided")))
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if text.is_empty() || !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    let bytes = (0..text.len()).step_by(2);
    bytes
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    // A decision applies to the shown arguments: the hash must be returned unchanged, and other
    // text is not a hash.
    #[test]
    fn arguments_hash_round_trips() {
        let hash: Vec<u8> = (0..=255).collect();
        assert_eq!(unhex(&hex(&hash)).as_deref(), Some(&hash[..]));
        for wrong in ["", "0", "0g", "éé"] {
            assert_eq!(unhex(wrong), None, "{wrong}");
        }
    }
}
