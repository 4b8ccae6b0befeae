//! `diff`: shows what two branches share, and where they differ.

use clap::Args;

use super::{
    branch_args::RevisionArg,
    connect::Connection,
    error::ClientError,
    json::{self, Object},
    names,
    output::{Out, Paint, Tone},
    pb,
    text::{EventText, event_lines, things},
};

/// Maximum number of lines of one event that are shown without `--full`.
const LINES: usize = 6;

/// Compare two branches: where they diverge, and what each of them did after that
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering diff CONVERSATION main retry
  treering diff CONVERSATION main retry --json | jq -r '.side + \" \" + .event.kind'")]
pub(crate) struct DiffArgs {
    /// The conversation: an id or the beginning of one, @last, or words of its title
    conversation: String,
    /// One branch
    left: String,
    /// The other branch
    right: String,
    /// Show at most this many events of each branch
    #[arg(long, short = 'n', value_name = "N")]
    limit: Option<u32>,
    /// Show whole contents
    #[arg(long)]
    full: bool,
}

/// Prints the difference.
pub(crate) async fn run(
    args: &DiffArgs,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let found = names::find(store, &args.conversation).await?;
    RevisionArg::None.with(found.revision, &args.conversation)?;
    names::check_branch(&found, &args.left)?;
    names::check_branch(&found, &args.right)?;
    let request = pb::DiffRequest {
        conversation_id: found.id,
        left_branch: args.left.clone(),
        right_branch: args.right.clone(),
        headers_only: false,
        limit: args.limit.unwrap_or_default(),
    };
    let diff = store.conversations().diff(request).await?.into_inner();
    print(&diff, [&args.left, &args.right], args.full, out)
}

/// Prints the difference of two sides with these names.
pub(crate) fn print(
    diff: &pb::DiffResponse,
    [left, right]: [&str; 2],
    full: bool,
    out: &mut Out,
) -> Result<(), ClientError> {
    if out.json {
        return print_json(diff, out);
    }
    let paint = out.paint;
    if diff.ancestor_revision == 0 {
        out.line("The branches share no event.")?;
    } else {
        out.line(format!(
            "Both branches share everything up to {}",
            paint.text(Tone::Name, format!("#{}", diff.ancestor_revision))
        ))?;
    }
    let how = out.event_text(LINES, full);
    let [cut_left, cut_right] = cut(diff);
    side(
        left,
        DiffMark('<', Tone::Bad),
        (&diff.left, cut_left),
        how,
        out,
    )?;
    side(
        right,
        DiffMark('>', Tone::Good),
        (&diff.right, cut_right),
        how,
        out,
    )?;
    if diff.truncated {
        out.line("")?;
        out.note("There are more events: raise --limit, or use `treering log`.")?;
    }
    Ok(())
}

/// Returns, for each side, whether it may have more events than the answer. Both sides are filled
/// alternately, so a side that is shorter by two events or more is complete.
fn cut(diff: &pb::DiffResponse) -> [bool; 2] {
    let longest = diff.left.len().max(diff.right.len());
    [&diff.left, &diff.right].map(|side| diff.truncated && side.len() + 1 >= longest)
}

#[derive(Clone, Copy)]
struct DiffMark(char, Tone);

fn side(
    name: &str,
    mark: DiffMark,
    (events, is_cut): (&[pb::Event], bool),
    how: EventText,
    out: &mut Out,
) -> Result<(), ClientError> {
    let paint: Paint = out.paint;
    let at_least = if is_cut { "at least " } else { "" };
    let number = things(events.len() as u64, "event", "events");
    out.heading(format!("{name}: {at_least}{number} of its own"))?;
    let sign = paint.text(mark.1, mark.0);
    for event in events {
        for line in event_lines(event, how) {
            let line = format!("{sign} {line}");
            if how.is_whole() {
                out.line(line)?;
            } else {
                out.row(line)?;
            }
        }
    }
    Ok(())
}

fn print_json(diff: &pb::DiffResponse, out: &mut Out) -> Result<(), ClientError> {
    let mut ancestor = Object::new();
    ancestor
        .string("side", "ancestor")
        .string("conversation", &diff.ancestor_conversation_id)
        .number("revision", diff.ancestor_revision)
        .boolean("truncated", diff.truncated);
    out.line(ancestor.finish())?;
    for (side, events) in [("left", &diff.left), ("right", &diff.right)] {
        for event in events {
            let mut object = Object::new();
            object
                .string("side", side)
                .raw("event", &json::event(event));
            out.line(object.finish())?;
        }
    }
    Ok(())
}
