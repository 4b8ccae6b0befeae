//! `log`: the events of a branch, as they are stored.

use clap::Args;

use super::{
    connect::Connection,
    error::CliError,
    json,
    output::Out,
    pb,
    read::{self, Kind},
    text::{EventText, event_lines},
};

/// Lines of content of one event that are shown without `--full`.
const LINES: usize = 12;

/// Read the events of a branch, with the history that it inherited
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering log CONVERSATION                       the active branch
  treering log CONVERSATION --reverse --limit 20  the last 20 events
  treering log CONVERSATION --branch retry --kinds tool_call_requested,tool_result_recorded
  treering log CONVERSATION --json | jq -r 'select(.kind == \"message_appended\") | .body.role'")]
pub struct LogArgs {
    /// The conversation: its UUID, or its id at its source
    conversation: String,
    /// The branch [default: the active one]
    #[arg(long, short, value_name = "NAME", conflicts_with = "all")]
    branch: Option<String>,
    /// All branches, in the order in which things happened
    #[arg(long)]
    all: bool,
    /// Newest first
    #[arg(long, short)]
    reverse: bool,
    /// At most so many events
    #[arg(long, short = 'n', value_name = "N")]
    limit: Option<u64>,
    /// Only these kinds of events, separated by commas
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "KIND",
        hide_possible_values = true
    )]
    kinds: Vec<Kind>,
    /// First revision to show
    #[arg(
        long,
        value_name = "REVISION",
        default_value_t = 0,
        hide_default_value = true
    )]
    from: u64,
    /// Last revision to show
    #[arg(
        long,
        value_name = "REVISION",
        default_value_t = 0,
        hide_default_value = true
    )]
    to: u64,
    /// Show contents whole, however long
    #[arg(long)]
    full: bool,
}

/// Prints the events.
///
/// # Errors
/// What the store or the output says.
pub async fn run(args: &LogArgs, store: &Connection, out: &mut Out) -> Result<(), CliError> {
    if args.limit == Some(0) {
        return Ok(());
    }
    let source = if args.all {
        read::of_conversation(&args.conversation)
    } else {
        read::of_branch(&args.conversation, args.branch.as_deref().unwrap_or(""))
    };
    // Backward, reading begins at the higher end.
    let (from_revision, to_revision) = if args.reverse {
        (args.to, args.from)
    } else {
        (args.from, args.to)
    };
    let request = pb::ReadRequest {
        from_revision,
        to_revision,
        backward: args.reverse,
        kinds: args.kinds.iter().map(|kind| kind.number()).collect(),
        limit: args.limit.unwrap_or(0),
        ..source
    };
    let how = EventText::new(out, LINES, args.full);
    let how = if args.all { how.with_branch() } else { how };
    let mut events = read::start(store, request).await?;
    while let Some(batch) = events.message().await? {
        for event in &batch.events {
            print(event, how, out)?;
        }
    }
    Ok(())
}

/// Prints one event in the form that the options ask for.
///
/// # Errors
/// What the output says.
pub fn print(event: &pb::Event, how: EventText, out: &mut Out) -> Result<(), CliError> {
    if out.json {
        return Ok(out.line(json::event(event))?);
    }
    for line in event_lines(event, how) {
        out.line(line)?;
    }
    Ok(())
}
