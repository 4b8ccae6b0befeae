//! `log`: prints the events of a branch.

use clap::Args;

use super::{
    branch_args::{BranchArgs, FoundBranch, RevisionArg},
    connect::Connection,
    error::ClientError,
    json,
    kind_arg::KindArg,
    names,
    output::{Out, Tone},
    pb, read,
    tag_args::FilterArgs,
    text::{
        EventText, Zone, event_lines, first_line, is_beside_talk, is_undated, left_out, printable,
        short_id,
    },
};

/// Maximum number of lines of one event that are shown without `--full`.
const LINES: usize = 12;

/// Maximum number of characters of the title in the first line.
const TITLE_CHARS: usize = 80;

/// Default number of events before and after the event of `--around`.
const AROUND: u64 = 5;

/// Read the events of a branch, with its inherited history
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering log CONVERSATION                       the active branch
  treering log CONVERSATION --reverse --limit 20  the last 20 events
  treering log CONVERSATION#57                    around an event, as search prints it
  treering log @last --around 57 -B 2 -A 20
  treering log CONVERSATION --branch retry --kind tool_call_requested,tool_result_recorded
  treering log CONVERSATION --key-prefix checkpoint/ --reverse --limit 1
  treering log CONVERSATION --json | jq -r 'select(.kind == \"message_appended\") | .body.role'")]
pub(crate) struct LogArgs {
    #[command(flatten)]
    place: BranchArgs,
    /// All branches, in the order in which events were recorded
    #[arg(long, conflicts_with = "branch")]
    all: bool,
    /// Newest first
    #[arg(long, short)]
    reverse: bool,
    /// Maximum number of events
    #[arg(long, short = 'n', value_name = "N")]
    limit: Option<u64>,
    /// Show this event and its neighbours, as with CONVERSATION#REVISION
    #[arg(long, value_name = "REVISION")]
    #[arg(conflicts_with_all = [
        "all", "reverse", "limit", "from", "to", "key", "key_prefix", "types", "by", "attributes",
    ])]
    around: Option<u64>,
    /// Number of events after it [default: 5]
    #[arg(long, short = 'A', value_name = "N")]
    after: Option<u64>,
    /// Number of events before it [default: 5]
    #[arg(long, short = 'B', value_name = "N")]
    before: Option<u64>,
    /// Number of events before and after it
    #[arg(long, short = 'C', value_name = "N", conflicts_with_all = ["before", "after"])]
    context: Option<u64>,
    /// Only events of these kinds, separated by commas
    #[arg(long = "kind", visible_alias = "kinds", value_name = "KIND")]
    #[arg(value_enum, value_delimiter = ',', hide_possible_values = true)]
    kinds: Vec<KindArg>,
    /// First revision to show
    #[arg(long, value_name = "REVISION")]
    from: Option<u64>,
    /// Last revision to show
    #[arg(long, value_name = "REVISION")]
    to: Option<u64>,
    /// Show whole contents, and also secondary events: progress, snapshots, empty messages
    #[arg(long)]
    full: bool,
    #[command(flatten)]
    found_by: FilterArgs,
}

impl LogArgs {
    /// Returns true if secondary events (progress, snapshots, empty messages) are shown too. With a
    /// filter, the user may be looking for them.
    fn shows_all(&self) -> bool {
        self.full || !self.kinds.is_empty() || self.found_by.filter().is_some()
    }

    /// Returns the branch, and the request for its events.
    async fn find(&self, store: &Connection) -> Result<BranchReader<'_>, ClientError> {
        let (from, to) = (self.from.unwrap_or_default(), self.to.unwrap_or_default());
        if to > 0 && from > to {
            return Err(ClientError::Usage {
                what: format!("--from {from} is after --to {to}"),
                hint: "give the smaller revision to --from; --reverse shows the newest first"
                    .into(),
            });
        }
        let revision = RevisionArg::EventOr {
            event: self.around.unwrap_or_default(),
            from: if self.all { 0 } else { from },
        };
        let place = self.place.find(store, revision).await?;
        let source = match self.all {
            true => read::of_conversation(&place.conversation),
            false => read::of_branch(&place.conversation, &place.branch),
        };
        let events = pb::ReadRequest {
            kinds: self.kinds.iter().map(|kind| kind.number()).collect(),
            ..source
        };
        Ok(BranchReader {
            args: self,
            place,
            events,
        })
    }
}

/// The part of a branch to read.
struct BranchReader<'a> {
    args: &'a LogArgs,
    place: FoundBranch,
    events: pb::ReadRequest,
}

/// Prints the events.
///
/// # Errors
/// Errors of the store or the output; [`ClientError::Usage`] for an empty range.
pub(crate) async fn run(
    args: &LogArgs,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let reading = args.find(store).await?;
    if args.limit == Some(0) {
        return Ok(());
    }
    let mut how = out.event_text(LINES, args.full);
    // The line for the day shows the zone.
    how.zone = out.zone().unnamed();
    let how = if args.all { how.with_branch() } else { how };
    let mut printer = Printer {
        how,
        zone: out.zone(),
        day: String::new(),
        day_note: head(&reading, store, out).await?,
        imported_at: None,
        shown: 0,
        left_out: match args.shows_all() || out.json {
            true => None,
            false => Some(0),
        },
    };
    if reading.place.revision > 0 {
        print_neighbours(&reading, &mut printer, store, out).await?;
        return printer.end(out);
    }
    let (from, to) = (args.from.unwrap_or_default(), args.to.unwrap_or_default());
    // A backward read begins at the higher end.
    let (from_revision, to_revision) = match args.reverse {
        true => (to, from),
        false => (from, to),
    };
    let mut request = pb::ReadRequest {
        from_revision,
        to_revision,
        backward: args.reverse,
        filter: args.found_by.filter(),
        ..reading.events.clone()
    };
    loop {
        // A read may stop before it has found enough events.
        request.limit = args.limit.map_or(0, |limit| limit - printer.shown);
        request.go_on_at = print_all(store, request.clone(), &mut printer, out).await?;
        let is_enough = args.limit.is_some_and(|limit| printer.shown >= limit);
        if request.go_on_at.is_none() || is_enough {
            break;
        }
    }
    if printer.shown == 0 && !out.json {
        nothing(&reading, store, out).await?;
    }
    printer.end(out)
}

/// Prints the events of a read. Returns where it stopped, if it stopped early.
async fn print_all(
    store: &Connection,
    request: pb::ReadRequest,
    printer: &mut Printer,
    out: &mut Out,
) -> Result<Option<pb::ReadStop>, ClientError> {
    let mut stopped_at = None;
    let mut events = read::start(store, request).await?;
    while let Some(batch) = events.message().await? {
        for event in &batch.events {
            printer.print(event, out)?;
        }
        stopped_at = batch.stopped_at;
    }
    Ok(stopped_at)
}

/// Prints the id, the title and the branch. Returns a note that is added to each day if the source
/// of the conversation has no times.
async fn head(
    reading: &BranchReader<'_>,
    store: &Connection,
    out: &mut Out,
) -> Result<&'static str, ClientError> {
    if out.json {
        return Ok("");
    }
    let place = &reading.place;
    // If the conversation is damaged, reading its events reports it.
    let Ok(state) = read::state(store, &place.conversation, &place.branch, 0).await else {
        return Ok("");
    };
    let summary = state.summary.unwrap_or_default();
    let branch = match (&state.branch, reading.args.all) {
        (Some(branch), false) => format!("branch {}", printable(&branch.name)),
        _ => "all branches".to_owned(),
    };
    let id = printable(short_id(&summary.source_id, &summary.conversation_id));
    let title = match first_line(&summary.title, TITLE_CHARS) {
        title if title.is_empty() || title == id => String::new(),
        title => format!("  {title}"),
    };
    out.row(
        out.paint
            .text(Tone::Dim, format!("{id}{title}  ({branch})")),
    )?;
    Ok(match is_undated(&summary) {
        true => ", as recorded: its source has no times",
        false => "",
    })
}

/// Prints an event with its neighbours.
async fn print_neighbours(
    reading: &BranchReader<'_>,
    printer: &mut Printer,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let (args, event) = (reading.args, reading.place.revision);
    let many = |asked: Option<u64>| asked.or(args.context).unwrap_or(AROUND);
    let mut before = Vec::new();
    // A backward read with a limit returns the preceding events of the branch, including inherited
    // ones.
    if many(args.before) > 0 && event > 1 {
        let request = pb::ReadRequest {
            from_revision: event - 1,
            backward: true,
            limit: many(args.before),
            ..reading.events.clone()
        };
        before = read::all(store, request).await?;
    }
    for event in before.iter().rev() {
        printer.print(event, out)?;
    }
    let itself = pb::ReadRequest {
        from_revision: event,
        to_revision: event,
        kinds: Vec::new(),
        ..reading.events.clone()
    };
    let marked = printer.how.marked();
    let plain = std::mem::replace(&mut printer.how, marked);
    if let Some(event) = names::first(store, itself).await? {
        // The user asked for this event, so it is printed even if it is a secondary one.
        let left_out = printer.left_out.take();
        printer.print(&event, out)?;
        printer.left_out = left_out;
    }
    printer.how = plain;
    if many(args.after) > 0 {
        let request = pb::ReadRequest {
            from_revision: event + 1,
            limit: many(args.after),
            ..reading.events.clone()
        };
        for event in &read::all(store, request).await? {
            printer.print(event, out)?;
        }
    }
    Ok(())
}

/// Explains why nothing was printed.
async fn nothing(
    BranchReader { args, place, .. }: &BranchReader<'_>,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let state = read::state(store, &place.conversation, &place.branch, 0).await?;
    let of_branch = state.branch.unwrap_or_default();
    let why = if args.found_by.filter().is_some() {
        "No events there match.".to_owned()
    } else if args.kinds.is_empty() {
        format!(
            "No events there: {} ends with #{}.",
            of_branch.name, of_branch.head
        )
    } else {
        "No events of this kind there.".to_owned()
    };
    Ok(out.line(out.paint.text(Tone::Dim, why))?)
}

/// Prints events, and a line when the day changes.
struct Printer {
    how: EventText,
    zone: Zone,
    day: String,
    day_note: &'static str,
    /// Recording time of the last event that has its own time; `None` if that event was not
    /// imported (see [`IMPORT_SECONDS`]).
    imported_at: Option<i64>,
    shown: u64,
    /// Number of secondary events that were not shown; `None` if all are shown.
    left_out: Option<u64>,
}

/// Number of seconds. An event that was recorded later than this after it happened was imported. An
/// event without a time was imported too if it was recorded within this time of an imported one.
const IMPORT_SECONDS: i64 = 60;

impl Printer {
    fn print(&mut self, event: &pb::Event, out: &mut Out) -> Result<(), ClientError> {
        self.shown += 1;
        let is_untimed = self.is_untimed(event);
        if let Some(left_out) = &mut self.left_out
            && is_beside_talk(event)
        {
            *left_out += 1;
            return Ok(());
        }
        if is_untimed {
            return print(event, self.how.untimed(), out);
        }
        let time = event.occurred_at.as_ref().or(event.recorded_at.as_ref());
        let day = self.zone.day(time);
        if !out.json && day != self.day {
            let note = self.day_note;
            out.row(out.paint.text(Tone::Dim, format!("        {day}{note}")))?;
            self.day = day;
        }
        print(event, self.how, out)
    }

    /// Says how many events were not shown.
    fn end(&self, out: &mut Out) -> Result<(), ClientError> {
        let said = left_out(self.left_out.unwrap_or_default(), "--full shows them");
        if let Some(said) = said {
            out.row(out.paint.text(Tone::Dim, said))?;
        }
        Ok(())
    }

    /// Returns true for an imported event that has no time although its neighbours have one. The
    /// recording time of such an event does not tell when it happened.
    fn is_untimed(&mut self, event: &pb::Event) -> bool {
        let seconds =
            |time: &Option<prost_types::Timestamp>| time.as_ref().map(|time| time.seconds);
        let Some(recorded) = seconds(&event.recorded_at) else {
            return false;
        };
        if let Some(occurred) = seconds(&event.occurred_at) {
            let is_of_past = recorded - occurred > IMPORT_SECONDS;
            self.imported_at = is_of_past.then_some(recorded);
            return false;
        }
        self.imported_at
            .is_some_and(|imported| (recorded - imported).abs() <= IMPORT_SECONDS)
    }
}

/// Prints one event in the format of the options.
pub(crate) fn print(event: &pb::Event, how: EventText, out: &mut Out) -> Result<(), ClientError> {
    if out.json {
        return Ok(out.line(json::event(event))?);
    }
    for line in event_lines(event, how) {
        if how.is_whole() {
            out.line(line)?;
        } else {
            out.row(line)?;
        }
    }
    Ok(())
}
