//! `fork`: a new branch, or a new conversation, from any revision.

use clap::Args;

use super::{
    connect::Connection,
    error::CliError,
    json,
    output::{Out, Tone},
    pb,
};

/// Start a new branch (or conversation) from any revision of a branch
///
/// Nothing is copied: the new branch shares the history up to that revision.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering fork CONVERSATION --at 41 --name retry
  treering fork CONVERSATION --at 41 --name \"another model\" --new-conversation
  treering fork CONVERSATION --branch retry --at 57 --name again --activate")]
pub struct ForkArgs {
    /// The conversation: its UUID, or its id at its source
    conversation: String,
    /// Last revision that both share
    #[arg(long, value_name = "REVISION")]
    at: u64,
    /// Name of the new branch (with --new-conversation: its title)
    #[arg(long, value_name = "NAME")]
    name: String,
    /// The branch to fork [default: the active one]
    #[arg(long, short, value_name = "NAME")]
    branch: Option<String>,
    /// Fork into a new conversation that shares the history
    #[arg(long)]
    new_conversation: bool,
    /// Make the new branch the active one
    #[arg(long, conflicts_with = "new_conversation")]
    activate: bool,
    /// A system prompt of its own
    #[arg(long, value_name = "TEXT")]
    system_prompt: Option<String>,
}

/// Forks and says where.
///
/// # Errors
/// What the store or the output says.
pub async fn run(args: ForkArgs, store: &Connection, out: &mut Out) -> Result<(), CliError> {
    let request = pb::ForkRequest {
        conversation_id: args.conversation,
        branch: args.branch.unwrap_or_default(),
        at_revision: args.at,
        name: args.name,
        system_prompt: args.system_prompt.unwrap_or_default(),
        into_conversation: if args.new_conversation {
            "new".into()
        } else {
            String::new()
        },
        activate: args.activate,
        actor: super::approve::person(None),
        ..Default::default()
    };
    let answer = store.conversations().fork(request).await?.into_inner();
    if out.json {
        return Ok(out.line(json::fork(&answer))?);
    }
    let branch = answer.branch.unwrap_or_default();
    let paint = out.paint;
    let conversation = paint.text(Tone::Name, &answer.conversation_id);
    if args.new_conversation {
        out.line(format!(
            "Forked after #{} into the conversation {conversation}",
            args.at
        ))?;
    } else {
        out.line(format!(
            "Forked after #{} into the branch {} of {conversation} (head #{})",
            args.at,
            paint.text(Tone::Name, &branch.name),
            branch.head
        ))?;
    }
    Ok(())
}
