//! `pending`, `approve`, `deny`: decisions on tool calls.

use std::env;

use clap::Args;

use super::{
    append::{self, bodies::encode},
    branch_args::{FoundBranch, find_if_named},
    connect::Connection,
    error::{ClientError, Exit},
    json,
    output::{Out, Tone},
    pb,
    text::{indent, short_id},
    text_arg::free_text,
};

/// Maximum number of lines of a call's arguments that are shown.
const LINES: usize = 40;

/// List the tool calls that wait for a decision
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering pending
  treering pending CONVERSATION --json")]
pub(crate) struct PendingArgs {
    /// Only in this conversation: an id or its beginning, @last, or words of its title
    conversation: Option<String>,
    /// Only on this branch
    #[arg(long, short, value_name = "NAME", requires = "conversation")]
    branch: Option<String>,
}

// The help of each command is in `lib.rs`.
#[derive(Args, Debug, Clone)]
pub(crate) struct DecideArgs {
    /// The conversation: an id or the beginning of one, @last, or words of its title
    conversation: String,
    /// The call's id, as `treering pending` shows it
    call_id: String,
    /// The branch, if the call waits on several
    #[arg(long, short, value_name = "NAME")]
    branch: Option<String>,
    /// Reason
    #[arg(long, short, value_name = "TEXT")]
    #[arg(allow_hyphen_values = true, value_parser = free_text)]
    reason: Option<String>,
    /// Who decides [default: the account's name]
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
}

/// Prints the pending calls.
pub(crate) async fn pending(
    args: PendingArgs,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let (conversation, branch) = (args.conversation.as_deref(), args.branch.as_deref());
    let place = find_if_named(store, conversation, branch).await?;
    let request = pb::PendingRequest {
        conversation_id: place.conversation,
        branch: place.branch,
        limit: 0,
    };
    let calls = store.tools().pending(request).await?.into_inner().calls;
    for call in &calls {
        if out.json {
            out.line(json::pending_call(call))?;
        } else {
            print_call(call, out)?;
        }
    }
    if calls.is_empty() && !out.json {
        out.line("No call waits for a decision.")?;
    }
    Ok(())
}

/// Approves or denies a call.
///
/// # Errors
/// [`ClientError::NotFound`] if no such call waits; errors of the store or the output.
pub(crate) async fn decide(
    args: DecideArgs,
    decision: pb::Decision,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let branch = args.branch.as_deref();
    let place = find_if_named(store, Some(&args.conversation), branch).await?;
    let call = waiting_call(&args.call_id, place, store).await?;
    let body = pb::ApprovalDecided {
        call_id: call.call_id.clone(),
        decision: decision.into(),
        arguments_hash: call.arguments_hash.clone(),
        decided_by: person(args.by.clone()),
        reason: args.reason.unwrap_or_default(),
    };
    let place = FoundBranch {
        conversation: call.conversation_id.clone(),
        branch: call.branch.clone(),
        ..Default::default()
    };
    let body = pb::new_event::Body::ApprovalDecided(encode(&body));
    let answer = append::one(store, &place, args.by, body, None).await?;
    let revision = answer.events.first().map_or(0, |event| event.revision);
    let (tone, word) = match decision {
        pb::Decision::Approved => (Tone::Good, "approved"),
        _ => (Tone::Bad, "denied"),
    };
    if out.json {
        let mut object = json::Object::new();
        object
            .string("conversation", &call.conversation_id)
            .string("branch", &call.branch)
            .string("call_id", &call.call_id)
            .string("tool", &call.tool)
            .string("decision", word)
            .number("revision", revision)
            .bytes("arguments", &call.arguments);
        return Ok(out.line(object.finish())?);
    }
    print_call(&call, out)?;
    let word = out.paint.text(tone, word);
    Ok(out.line(format!("{word} at #{revision}"))?)
}

/// Returns the pending call. A decision is bound to the hash of the call's arguments.
async fn waiting_call(
    call_id: &str,
    place: FoundBranch,
    store: &Connection,
) -> Result<pb::ToolCall, ClientError> {
    let request = pb::PendingRequest {
        conversation_id: place.conversation.clone(),
        branch: place.branch,
        limit: 0,
    };
    let mut calls = store.tools().pending(request).await?.into_inner().calls;
    calls.retain(|call| call.call_id == call_id);
    match calls.len() {
        0 => Err(ClientError::NotFound {
            what: format!(
                "no call {call_id} is waiting for a decision in {}",
                place.conversation
            ),
            hint: "`treering pending` lists waiting calls; this one may already have a decision"
                .into(),
        }),
        1 => Ok(calls.remove(0)),
        _ => {
            let names: Vec<_> = calls.iter().map(|call| call.branch.as_str()).collect();
            Err(ClientError::Outcome {
                what: format!(
                    "call {call_id} is waiting on several branches: {}",
                    names.join(", ")
                ),
                hint: "choose one with --branch".into(),
                exit: Exit::Refused,
            })
        }
    }
}

fn print_call(call: &pb::ToolCall, out: &mut Out) -> Result<(), ClientError> {
    let paint = out.paint;
    out.row(format!(
        "{} {}  {} {}  {}",
        paint.text(Tone::Wait, &call.tool),
        paint.text(Tone::Name, &call.call_id),
        paint.text(Tone::Name, short_id("", &call.conversation_id)),
        paint.text(
            Tone::Dim,
            format!("on {} #{}", call.branch, call.request_revision)
        ),
        paint.text(Tone::Dim, out.zone().clock(call.requested_at.as_ref())),
    ))?;
    let arguments = String::from_utf8_lossy(&call.arguments);
    for line in indent(&arguments, 4, LINES, out.width * 10) {
        out.row(line)?;
    }
    Ok(())
}

/// Returns the actor: the given name, else the account's.
pub(crate) fn person(given: Option<String>) -> String {
    given
        .or_else(|| env::var("USER").ok())
        .or_else(|| env::var("USERNAME").ok())
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "treering-cli".into())
}
