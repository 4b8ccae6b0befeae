//! `rewind`: takes a branch back to a revision. The old end stays as another branch.

use clap::Args;

use super::{
    approve::person,
    branch_args::{BranchArgs, RevisionArg},
    connect::Connection,
    error::ClientError,
    json,
    output::{Out, Tone},
    pb,
    text::printable,
};

/// Rewind a branch to a revision, without the later events
///
/// Nothing is deleted. The old end stays as another branch with all its events: `treering log
/// CONVERSATION --branch NAME` shows it, and `treering branch activate` goes back to it.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering rewind CONVERSATION --to 41
  treering rewind CONVERSATION#41                 the same, as search prints it
  treering rewind CONVERSATION --to 41 --keep-as first-try
  treering rewind CONVERSATION --clear            keep only the conversation itself")]
pub(crate) struct RewindArgs {
    #[command(flatten)]
    place: BranchArgs,
    /// Last revision that stays
    #[arg(long, value_name = "REVISION", conflicts_with = "clear")]
    to: Option<u64>,
    /// Rewind to the beginning, so that nothing stays
    #[arg(long)]
    clear: bool,
    /// Only if this is the branch's last revision
    #[arg(long, value_name = "REVISION")]
    expected_head: Option<u64>,
    /// Name for the old end [default: rewound-REVISION]
    #[arg(long, value_name = "NAME")]
    keep_as: Option<String>,
}

/// Rewinds, and prints how many events were moved to which branch.
pub(crate) async fn run(
    args: RewindArgs,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let to = RevisionArg::Event(args.to.unwrap_or_default());
    let place = args.place.find(store, to).await?;
    if place.revision == 0 && !args.clear {
        return Err(ClientError::Usage {
            what: "the revision to rewind to is missing".into(),
            hint: "use --to REVISION, or --clear".into(),
        });
    }
    if place.revision != 0 && args.clear {
        return Err(ClientError::Usage {
            what: "both a revision and --clear are given".into(),
            hint: "omit one of them".into(),
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
        return Ok(out.line(format!(
            "Nothing to rewind: no events after it on {name} of {called}"
        ))?);
    };
    let count = answer.went.len();
    let more = if answer.truncated { "at least " } else { "" };
    let events = if count == 1 { "event" } else { "events" };
    let stays = match place.revision {
        0 => "starts empty again".to_owned(),
        to => format!("ends at #{to} again"),
    };
    let kept = paint.text(Tone::Name, printable(&kept.name));
    out.line(format!(
        "{name} of {called} {stays} (head #{}); {more}{count} {events} moved to the branch {kept}",
        branch.head
    ))?;
    Ok(())
}
