//! `pending` and `decide`: calls that wait for a person. Only where somebody has said
//! `--allow-approvals`: an agent must not approve its own calls.

use prost::Message;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{ToolAnswer, given, shown};
use crate::{
    cli::{
        Connection, read,
        text::{day_clock, first_line, short_id},
    },
    codec::pb,
    domain::hex,
    mcp::{
        bounds::{ARGUMENTS_CHARS, PENDING_MAX, TITLE_CHARS},
        failure::Failure,
        place,
        quote::quoted_within,
    },
};

/// Letters of a hash of arguments that name them.
const HASH_CHARS: usize = 16;

/// Whose calls.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PendingInput {
    /// Only of this conversation
    conversation: Option<String>,
}

/// The calls that wait.
///
/// # Errors
/// What the store says.
pub async fn pending(input: PendingInput, store: &Connection) -> Result<ToolAnswer, Failure> {
    let conversation = match given(input.conversation.as_deref()) {
        Some(name) => place::conversation(store, name).await?.id,
        None => String::new(),
    };
    let calls = waiting(store, conversation, PENDING_MAX + 1).await?;
    if calls.is_empty() {
        return Ok(ToolAnswer::text("No call waits for a decision."));
    }
    let mut text = String::from(
        "Calls that wait for a decision of the user. `decide` takes conversation, call_id and \
         arguments_hash.\n",
    );
    for call in calls.iter().take(PENDING_MAX as usize) {
        text.push_str(&format!(
            "\n{}  call_id={}  conversation={}  on {}  {}  arguments_hash={}\n",
            first_line(&call.tool, TITLE_CHARS),
            first_line(&call.call_id, TITLE_CHARS),
            short_id("", &call.conversation_id),
            first_line(&call.branch, TITLE_CHARS),
            day_clock(call.requested_at.as_ref()),
            hash(call),
        ));
        let arguments = String::from_utf8_lossy(&call.arguments);
        text.push_str(&quoted_within(&arguments, 40, ARGUMENTS_CHARS));
    }
    if calls.len() > PENDING_MAX as usize {
        text.push_str("\nThere are more: name a conversation.\n");
    }
    Ok(ToolAnswer::text(text))
}

/// A decision.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DecideInput {
    /// The conversation, as `pending` shows it
    conversation: String,
    /// The call's id, as `pending` shows it
    call_id: String,
    /// As `pending` shows it: what the user decided about is what is run
    arguments_hash: String,
    /// True: it may run
    approve: bool,
    /// Why, in the user's words
    reason: Option<String>,
    /// The branch, when the call waits on several
    branch: Option<String>,
}

/// Writes a decision down.
///
/// # Errors
/// What the store says, and that no such call waits.
pub async fn decide(
    input: DecideInput,
    store: &Connection,
    actor: &str,
) -> Result<ToolAnswer, Failure> {
    let found = place::conversation(store, &input.conversation).await?;
    let mut calls = waiting(store, found.id, 0).await?;
    let branch = given(input.branch.as_deref());
    calls.retain(|call| {
        call.call_id == input.call_id && branch.is_none_or(|branch| call.branch == branch)
    });
    let call = match &calls[..] {
        [call] => call,
        [] => {
            return Err(Failure::new(
                format!("no call {} waits there", shown(&input.call_id)),
                "`pending` lists those that do; it may have been decided already",
            ));
        }
        several => {
            let branches: Vec<_> = several.iter().map(|call| call.branch.as_str()).collect();
            return Err(Failure::new(
                format!(
                    "the call waits on several branches: {}",
                    shown(&branches.join(", "))
                ),
                "give the `branch`",
            ));
        }
    };
    if hash(call) != input.arguments_hash.trim() {
        return Err(Failure::new(
            "the call has other arguments than those that were decided about",
            "look at `pending` again, show the user the arguments, and ask again",
        ));
    }
    let decision = match input.approve {
        true => pb::Decision::Approved,
        false => pb::Decision::Denied,
    };
    let body = pb::ApprovalDecided {
        call_id: call.call_id.clone(),
        decision: decision.into(),
        arguments_hash: call.arguments_hash.clone(),
        decided_by: actor.to_owned(),
        reason: input.reason.unwrap_or_default(),
    };
    let request = pb::AppendRequest {
        conversation_id: call.conversation_id.clone(),
        branch: call.branch.clone(),
        events: vec![pb::NewEvent {
            actor: actor.to_owned(),
            body: Some(pb::new_event::Body::ApprovalDecided(
                body.encode_to_vec().into(),
            )),
            ..Default::default()
        }],
        ..Default::default()
    };
    read::append(store, request).await?;
    let word = if input.approve { "Approved" } else { "Denied" };
    Ok(ToolAnswer::text(format!(
        "{word} the call {}.",
        shown(&call.call_id)
    )))
}

async fn waiting(
    store: &Connection,
    conversation_id: String,
    limit: u32,
) -> Result<Vec<pb::ToolCall>, Failure> {
    let request = pb::PendingRequest {
        conversation_id,
        limit,
        ..Default::default()
    };
    Ok(store.tools().pending(request).await?.into_inner().calls)
}

fn hash(call: &pb::ToolCall) -> String {
    hex(&call.arguments_hash).chars().take(HASH_CHARS).collect()
}
