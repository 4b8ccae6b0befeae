//! `fork`: creates a branch or a conversation from any revision.

use clap::Args;

use super::{
    branch_args::{BranchArgs, FoundBranch, RevisionArg},
    connect::Connection,
    error::ClientError,
    json,
    output::{Out, Tone},
    pb, read,
    text::short_id,
    text_arg::free_text,
};

/// Start a new branch (or conversation) from any revision of a branch
///
/// Nothing is copied: the new branch shares the history up to that revision.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering fork CONVERSATION --at 41 --name retry
  treering fork CONVERSATION#41 --name retry      the same, as search prints it
  treering fork CONVERSATION#41                   the same, named at-41
  treering fork CONVERSATION --at 41 --name \"another model\" --new-conversation
  treering fork CONVERSATION --branch retry --at 57 --name again --activate")]
pub(crate) struct ForkArgs {
    #[command(flatten)]
    place: BranchArgs,
    /// Last revision that both share [default: the branch's head]
    #[arg(long, value_name = "REVISION")]
    at: Option<u64>,
    /// Name of the new branch, or with --new-conversation its title [default: at-REVISION]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Fork into a new conversation that shares the history
    #[arg(long)]
    new_conversation: bool,
    /// Make the new branch the active one
    #[arg(long, conflicts_with = "new_conversation")]
    activate: bool,
    /// Set another system prompt on the new branch
    #[arg(long, value_name = "TEXT")]
    #[arg(allow_hyphen_values = true, value_parser = free_text)]
    system_prompt: Option<String>,
}

/// Returns a generated name for the fork. A branch is named `at-REVISION`, with a number if that
/// name is taken. A conversation gets the title of its parent with the revision.
async fn own_name(
    place: &FoundBranch,
    new_conversation: bool,
    store: &Connection,
) -> Result<String, ClientError> {
    let state = read::state(store, &place.conversation, &place.branch, 0).await?;
    let at = match place.revision {
        0 => state.branch.map_or(0, |branch| branch.head),
        at => at,
    };
    if new_conversation {
        let title = state
            .summary
            .map(|summary| summary.title)
            .unwrap_or_default();
        return Ok(format!("{title} (from #{at})").trim_start().to_owned());
    }
    let is_taken = |name: &String| state.branches.iter().any(|branch| branch.name == *name);
    let first = format!("at-{at}");
    let others = (2..).map(|number: u64| format!("{first}-{number}"));
    let free = std::iter::once(first.clone())
        .chain(others)
        .find(|name| !is_taken(name));
    Ok(free.unwrap_or_default())
}

/// Forks, and prints the new place.
pub(crate) async fn run(
    args: ForkArgs,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let at = RevisionArg::Event(args.at.unwrap_or_default());
    let place = args.place.find(store, at).await?;
    let name = match args.name {
        Some(name) => name,
        None => own_name(&place, args.new_conversation, store).await?,
    };
    let request = pb::ForkRequest {
        conversation_id: place.conversation,
        branch: place.branch,
        at_revision: place.revision,
        name,
        system_prompt: args.system_prompt.unwrap_or_default(),
        into_conversation: if args.new_conversation { "new" } else { "" }.into(),
        activate: args.activate,
        actor: super::approve::person(None),
        ..Default::default()
    };
    let answer = store.conversations().fork(request).await?.into_inner();
    if out.json {
        return Ok(out.line(json::of(&answer))?);
    }
    let branch = answer.branch.unwrap_or_default();
    let paint = out.paint;
    let called = match args.new_conversation {
        true => short_id("", &answer.conversation_id).to_owned(),
        // The short name that messages use and that other commands accept.
        false => place.called,
    };
    let conversation = paint.text(Tone::Name, called);
    let at = branch.fork_revision;
    if args.new_conversation {
        out.line(format!(
            "Forked after #{at} into the conversation {conversation}"
        ))?;
    } else {
        out.line(format!(
            "Forked after #{at} into the branch {} of {conversation} (head #{})",
            paint.text(Tone::Name, &branch.name),
            branch.head
        ))?;
    }
    Ok(())
}
