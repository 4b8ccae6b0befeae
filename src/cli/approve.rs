//! `pending`, `approve`, `deny`: calls that wait for a person.

use std::env;

use clap::Args;
use prost::Message;

use super::{
    connect::Connection,
    error::{CliError, Exit},
    json,
    named::Named,
    output::{Out, Tone},
    pb, read,
    text::{clock, indent, short_id},
};

/// Lines of a call's arguments that are shown.
const LINES: usize = 40;

/// List the tool calls that wait for a decision
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering pending
  treering pending CONVERSATION --json")]
pub struct PendingArgs {
    /// Only in this conversation: an id or its beginning, @last, or words of its title
    conversation: Option<String>,
    /// Only on this branch
    #[arg(long, short, value_name = "NAME", requires = "conversation")]
    branch: Option<String>,
}

impl PendingArgs {
    /// What it names.
    pub fn named(&mut self) -> Option<Named<'_>> {
        let conversation = self.conversation.as_mut()?;
        Some(Named::new(conversation).branch(&mut self.branch))
    }
}

/// Which call, and why.
#[derive(Args, Debug, Clone)]
pub struct DecideArgs {
    /// The conversation: an id or the beginning of one, @last, or words of its title
    conversation: String,
    /// The call's id, as `treering pending` shows it
    call_id: String,
    /// The branch, when the call waits on several
    #[arg(long, short, value_name = "NAME")]
    branch: Option<String>,
    /// Why
    #[arg(
        long,
        short,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    reason: String,
    /// Who decides [default: the account's name]
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
}

/// Approve a tool call that waits
///
/// The approval holds for exactly the arguments that are shown.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Example:
  treering approve CONVERSATION call_7 --reason 'only reads'")]
pub struct ApproveArgs {
    #[command(flatten)]
    call: DecideArgs,
}

impl ApproveArgs {
    /// What it names.
    pub fn named(&mut self) -> Named<'_> {
        Named::new(&mut self.call.conversation).branch(&mut self.call.branch)
    }
}

/// Deny a tool call that waits
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Example:
  treering deny CONVERSATION call_7 --reason 'outside of the workspace'")]
pub struct DenyArgs {
    #[command(flatten)]
    call: DecideArgs,
}

impl DenyArgs {
    /// What it names.
    pub fn named(&mut self) -> Named<'_> {
        Named::new(&mut self.call.conversation).branch(&mut self.call.branch)
    }
}

/// Prints the calls that wait.
///
/// # Errors
/// What the store or the output says.
pub async fn pending(args: PendingArgs, store: &Connection, out: &mut Out) -> Result<(), CliError> {
    let request = pb::PendingRequest {
        conversation_id: args.conversation.unwrap_or_default(),
        branch: args.branch.unwrap_or_default(),
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

/// Approves a call.
///
/// # Errors
/// What the store or the output says; [`CliError::NotFound`] when no such call
/// waits.
pub async fn approve(args: ApproveArgs, store: &Connection, out: &mut Out) -> Result<(), CliError> {
    decide(args.call, pb::Decision::Approved, store, out).await
}

/// Denies a call.
///
/// # Errors
/// What the store or the output says; [`CliError::NotFound`] when no such call
/// waits.
pub async fn deny(args: DenyArgs, store: &Connection, out: &mut Out) -> Result<(), CliError> {
    decide(args.call, pb::Decision::Denied, store, out).await
}

async fn decide(
    args: DecideArgs,
    decision: pb::Decision,
    store: &Connection,
    out: &mut Out,
) -> Result<(), CliError> {
    let call = waiting_call(&args, store).await?;
    let body = pb::ApprovalDecided {
        call_id: call.call_id.clone(),
        decision: decision.into(),
        arguments_hash: call.arguments_hash.clone(),
        decided_by: person(args.by.clone()),
        reason: args.reason,
    };
    let event = pb::NewEvent {
        actor: body.decided_by.clone(),
        body: Some(pb::new_event::Body::ApprovalDecided(
            body.encode_to_vec().into(),
        )),
        ..Default::default()
    };
    let request = pb::AppendRequest {
        conversation_id: call.conversation_id.clone(),
        branch: call.branch.clone(),
        events: vec![event],
        ..Default::default()
    };
    let answer = read::append(store, request).await?;
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

/// The call that waits; its arguments' hash is what the decision is bound to.
async fn waiting_call(args: &DecideArgs, store: &Connection) -> Result<pb::ToolCall, CliError> {
    let request = pb::PendingRequest {
        conversation_id: args.conversation.clone(),
        branch: args.branch.clone().unwrap_or_default(),
        limit: 0,
    };
    let mut calls = store.tools().pending(request).await?.into_inner().calls;
    calls.retain(|call| call.call_id == args.call_id);
    match calls.len() {
        0 => Err(CliError::NotFound {
            what: format!(
                "no call {} waits for a decision in {}",
                args.call_id, args.conversation
            ),
            hint: "`treering pending` lists those that do; it may have been decided already".into(),
        }),
        1 => Ok(calls.remove(0)),
        _ => {
            let names: Vec<_> = calls.iter().map(|call| call.branch.as_str()).collect();
            Err(CliError::Outcome {
                what: format!(
                    "the call {} waits on several branches: {}",
                    args.call_id,
                    names.join(", ")
                ),
                hint: "say which one with --branch".into(),
                exit: Exit::Refused,
            })
        }
    }
}

fn print_call(call: &pb::ToolCall, out: &mut Out) -> Result<(), CliError> {
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
        paint.text(Tone::Dim, clock(call.requested_at.as_ref())),
    ))?;
    let arguments = String::from_utf8_lossy(&call.arguments);
    for line in indent(&arguments, 4, LINES, out.width * 10) {
        out.row(line)?;
    }
    Ok(())
}

/// Who acts: the name that was given, else the account's.
#[must_use]
pub fn person(given: Option<String>) -> String {
    given
        .or_else(|| env::var("USER").ok())
        .or_else(|| env::var("USERNAME").ok())
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "treering-cli".into())
}
