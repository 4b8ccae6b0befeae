//! `rewind`: takes a branch back; the old end stays as a branch of its own.

use clap::Args;

use super::{
    approve::person,
    branch_args::{BranchArgs, RevisionArg},
    connect::Connection,
    error::CliError,
    json,
    output::{Out, Tone},
    pb,
    text::printable,
};

/// Take a branch back to a revision: what came after is not on it any more
///
/// Nothing is deleted. The old end stays as a branch of its own, with all that it had:
/// `treering log CONVERSATION --branch NAME` shows it, and `treering branch activate` goes
/// back to it.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering rewind CONVERSATION --to 41
  treering rewind CONVERSATION#41                 the same, as a search has printed it
  treering rewind CONVERSATION --to 41 --keep-as first-try
  treering rewind CONVERSATION --clear            nothing stays but the conversation itself")]
pub struct RewindArgs {
    #[command(flatten)]
    place: BranchArgs,
    /// Last revision that stays
    #[arg(long, value_name = "REVISION", conflicts_with = "clear")]
    to: Option<u64>,
    /// Let all of it go
    #[arg(long)]
    clear: bool,
    /// Only if this is the branch's last revision
    #[arg(long, value_name = "REVISION")]
    expected_head: Option<u64>,
    /// Name for the old end [default: rewound-REVISION]
    #[arg(long, value_name = "NAME")]
    keep_as: Option<String>,
}

/// Rewinds and says what went.
pub async fn run(args: RewindArgs, store: &Connection, out: &mut Out) -> Result<(), CliError> {
    let to = RevisionArg::Event(args.to.unwrap_or_default());
    let place = args.place.find(store, to).await?;
    if place.revision == 0 && !args.clear {
        return Err(CliError::Usage {
            what: "it is not said what stays".into(),
            hint: "give --to REVISION, or --clear".into(),
        });
    }
    if place.revision != 0 && args.clear {
        return Err(CliError::Usage {
            what: "both a revision and --clear are given".into(),
            hint: "leave one of them out".into(),
        });
    }
    let called = place.called;
    let request = pb::RewindRequest {
        conversation_id: place.conversation,
        branch: place.branch,
        to_revision: place.revision,
        expected_head: args.expected_head.unwrap_or_default(),
        keep_as: args.keep_as.unwrap_or_default(),
        actor: person(None),
        headers_only: true,
        ..Default::default()
    };
    let answer = store.conversations().rewind(request).await?.into_inner();
    if out.json {
        return Ok(out.line(json::of(&answer))?);
    }
    let branch = answer.branch.unwrap_or_default();
    let paint = out.paint;
    let name = paint.text(Tone::Name, printable(&branch.name));
    let Some(kept) = answer.kept else {
        return Ok(out.line(format!("Nothing comes after it on {name} of {called}"))?);
    };
    let count = answer.went.len();
    let more = if answer.truncated { "at least " } else { "" };
    let events = if count == 1 { "event" } else { "events" };
    let stays = match place.revision {
        0 => "begins anew".to_owned(),
        to => format!("ends with #{to} again"),
    };
    let kept = paint.text(Tone::Name, printable(&kept.name));
    out.line(format!(
        "{name} of {called} {stays} (head #{}); {more}{count} {events} went, and are on the branch {kept}",
        branch.head
    ))?;
    Ok(())
}
