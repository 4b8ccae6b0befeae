//! Calls that wait for a person: what exactly is asked for, and a decision about exactly that.

use axum::response::Redirect;
use futures::{StreamExt, stream};
use maud::{Markup, html};
use prost::Message;

use super::call;
use crate::{
    access::KeyRole,
    cli::read,
    codec::pb::{self, new_event::Body},
    domain::hex,
    inspector::{
        bounds::{ARGUMENTS_BYTES, ASKED_AT_ONCE, PENDING, PENDING_BYTES, TITLE_CHARS},
        failure::PageFailure,
        form::Form,
        frame::{Page, Tab, token},
        parts::{
            hostile::{headline, shown},
            json::pretty,
            numbers::{count, size, things},
            pieces::nothing,
            place::link,
            time,
        },
        visit::{Visit, query},
    },
};

/// Who decides, where nobody is asked for a key.
const SOMEBODY: &str = "inspector";

/// The page.
///
/// # Errors
/// What the store says.
pub async fn page(visit: Visit) -> Result<Page, PageFailure> {
    let request = pb::PendingRequest {
        limit: PENDING + 1,
        ..Default::default()
    };
    let mut calls = visit
        .store
        .tools()
        .pending(request)
        .await?
        .into_inner()
        .calls;
    // Who waits longest comes first, so that what is new comes in below and nothing moves.
    calls.sort_by_key(|call| {
        let at = call.requested_at.unwrap_or_default();
        (at.seconds, at.nanos, call.request_revision)
    });
    let more = calls.len() > PENDING as usize;
    calls.truncate(PENDING as usize);
    let ids: Vec<String> = calls
        .iter()
        .map(|call| call.conversation_id.clone())
        .collect();
    let visit_of = &visit;
    let titles: Vec<String> = stream::iter(ids)
        .map(|id| async move { title(visit_of, &id).await })
        .buffered(ASKED_AT_ONCE)
        .collect()
        .await;
    let told = match (calls.len() as u64, more) {
        (0, _) => "no call waits".to_owned(),
        (number, false) => format!(
            "{} for a decision",
            things(number, "call waits", "calls wait")
        ),
        (number, true) => format!("more than {} calls wait for a decision", count(number)),
    };
    let mut room = PENDING_BYTES;
    let body = html! {
        header.head {
            h1 { "Approvals" }
            span.live role="status" { "not live" }
        }
        (decided(&visit))
        div #waiting data-live=(visit.link("/live")) data-part="#waiting"
            data-status=(told) data-title={ "(" (calls.len()) ") Approvals · Treering" } {
            p.lead { (told) "." }
            @if let (false, Err(why)) = (calls.is_empty(), visit.may(KeyRole::Approver)) {
                p.notice.wait { "You see what waits, and cannot decide. " (shown(&why)) }
            }
            @if calls.is_empty() {
                (nothing("No call waits for a decision.", &html! {
                    "A call waits when its agent says that it needs approval. This page is live: \
                     one that comes appears here."
                }))
            }
            @for (call, title) in calls.iter().zip(&titles) {
                (card(&visit, call, title, &mut room))
            }
        }
    };
    Ok(visit.page("Approvals", Tab::Approvals, body))
}

/// What a conversation is called; its id when that cannot be known.
async fn title(visit: &Visit, id: &str) -> String {
    let request = pb::GetConversationRequest {
        conversation_id: id.to_owned(),
        ..Default::default()
    };
    let answer = visit.store.conversations().get(request).await;
    let summary = answer.ok().and_then(|answer| answer.into_inner().summary);
    let summary = summary.unwrap_or_default();
    match summary.title.trim() {
        "" => crate::cli::text::short_id(&summary.source_id, id).to_owned(),
        title => title.to_owned(),
    }
}

/// What was decided just now.
fn decided(visit: &Visit) -> Markup {
    let (Some(word), Some(tool)) = (visit.asked.text("decided"), visit.asked.text("tool")) else {
        return html! {};
    };
    let (class, word) = match word {
        "approved" => ("notice good", "Approved: "),
        _ => ("notice bad", "Denied: "),
    };
    html! { p class=(class) role="status" { (word) (headline(tool, TITLE_CHARS)) } }
}

fn card(visit: &Visit, call: &pb::ToolCall, title: &str, room: &mut usize) -> Markup {
    let id = format!(
        "w-{}-{}-{}",
        call.conversation_id, call.branch_id, call.request_revision
    );
    let bytes = call.arguments.len();
    let fits = bytes <= ARGUMENTS_BYTES.min(*room);
    if fits {
        *room -= bytes;
    }
    let own = call::address(visit, &call.conversation_id, call);
    let may_decide = visit.may(KeyRole::Approver).is_ok();
    let in_it = [("branch", call.branch.as_str())];
    html! {
        article.card.waiting #(id) data-item data-keep=(hex(&call.arguments_hash))
            aria-labelledby={ (id) "-tool" } {
            header {
                h2 #{ (id) "-tool" } { a data-open href=(own) { (shown(&call.tool)) } }
                p.dim {
                    a href=(link(visit, &call.conversation_id, "", &in_it)) {
                        (headline(title, TITLE_CHARS))
                    }
                    " on " (shown(&call.branch)) " #" (count(call.request_revision)) ", "
                    (time::ago(call.requested_at.as_ref()))
                }
            }
            @if fits {
                (pretty(&String::from_utf8_lossy(&call.arguments)))
                @if may_decide { (decision(visit, call)) }
            } @else {
                p.notice.wait {
                    "Its arguments are too long for this list (" (size(bytes as u64)) "). "
                    a href=(own) { @if may_decide { "Look at them, and decide there" } @else { "Look at them" } }
                }
            }
        }
    }
}

/// The form that decides. It names the hash of the arguments that are shown: a decision about
/// others is refused.
/// Who may not decide is told why, and has no buttons.
#[must_use]
pub fn decision(visit: &Visit, call: &pb::ToolCall) -> Markup {
    if let Err(why) = visit.may(KeyRole::Approver) {
        return html! { p.hint { "You cannot decide about it. " (shown(&why)) } };
    }
    let hash = hex(&call.arguments_hash);
    let id = format!(
        "d-{}-{}-{}",
        call.conversation_id, call.branch_id, call.request_revision
    );
    html! {
        form.decide method="post" action=(visit.link("/approvals")) {
            (token(&visit.here))
            input type="hidden" name="conversation" value=(call.conversation_id);
            input type="hidden" name="branch" value=(call.branch);
            input type="hidden" name="call" value=(call.call_id);
            input type="hidden" name="tool" value=(call.tool);
            input type="hidden" name="hash" value=(hash);
            label {
                span { "Reason " span.dim { "(the agent may read it)" } }
                input #(id) name="reason" maxlength="2000" autocomplete="off";
            }
            div.actions {
                button name="decision" value="approved" { "Approve" }
                button.danger name="decision" value="denied" { "Deny" }
                span.dim {
                    "for exactly these arguments, "
                    code.hash title=(hash) { (hash[..hash.len().min(12)]) }
                }
            }
        }
    }
}

/// Decides.
///
/// # Errors
/// What the store says: nothing is changed then.
pub async fn decide(form: Form) -> Result<Redirect, PageFailure> {
    let Form { visit, fields } = form;
    let text = |name| fields.text(name).unwrap_or_default().to_owned();
    let (decision, word) = match fields.text("decision") {
        Some("approved") => (pb::Decision::Approved, "approved"),
        Some("denied") => (pb::Decision::Denied, "denied"),
        _ => {
            return Err(PageFailure::asked(
                "the form says neither to approve nor to deny",
                "use one of its two buttons",
            ));
        }
    };
    let Some(arguments_hash) = fields.text("hash").and_then(unhex) else {
        return Err(PageFailure::asked(
            "the form does not say for which arguments the decision is",
            "load the page again, and look at what is asked for",
        ));
    };
    let by = if visit.is_known() { "" } else { SOMEBODY };
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
    read::append(&visit.store, request).await?;
    let told = query(&[("decided", word), ("tool", &text("tool"))]);
    Ok(Redirect::to(&visit.link(&format!("/approvals?{told}"))))
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

    // A decision holds for what was shown: the hash must come back as it went out, and another
    // text is no hash.
    #[test]
    fn a_hash_comes_back_as_it_went() {
        let hash: Vec<u8> = (0..=255).collect();
        assert_eq!(unhex(&hex(&hash)).as_deref(), Some(&hash[..]));
        for wrong in ["", "0", "0g", "éé"] {
            assert_eq!(unhex(wrong), None, "{wrong}");
        }
    }
}
