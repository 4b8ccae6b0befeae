//! `erase`: the content of events goes, and what they were stays.

use std::{
    collections::BTreeMap,
    io::{IsTerminal, Write},
    path::PathBuf,
};

use clap::Args;

use super::{
    approve::person,
    connect::Connection,
    error::{CliError, Exit},
    json::{self, Object},
    names,
    output::{Out, Steps, Tone},
    pb,
    retention::RetentionArgs,
    safe::{ask, tell},
    text::{bytes_human, count, printable, things},
    text_arg::free_text,
};

/// Events that are named one by one; of more, the number is said.
const EVENTS_SHOWN_MAX: usize = 40;

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Erase content, and leave no copy of it in the store
///
/// Of each event a stub is left: its ids, numbers and enums, who caused it, and its hashes, so
/// that the history still verifies. What was made from it goes, too: summaries, compactions,
/// short forms of results, what a sub-context returned, a title that is a line of it. It is gone from the log, the views and the index when this ends, and
/// a receipt tells what was erased and where that is recorded. Its actor, correlation id,
/// idempotency key and the ids of calls stay. What copies, backups and clients have is theirs.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering erase CONVERSATION#41 --dry-run         what would go
  treering erase CONVERSATION#41 CONVERSATION#50-58
  treering erase CONVERSATION                      with the sub-contexts that it spawned
  treering erase --literal-from secret.txt         every event that holds what is in the file
  treering erase --keep-days 365 --dry-run         what nobody went on with for a year
  treering erase --whole-namespace --namespace old --yes --receipt old.json
  treering verify --erased old.json                that it is gone")]
pub struct EraseArgs {
    /// What goes: CONVERSATION#REVISION, CONVERSATION#FIRST-LAST, or a whole CONVERSATION
    #[arg(required_unless_present_any = ["literal_from", "whole_namespace", "keep_days", "keep_sealed_days"])]
    #[arg(conflicts_with_all = ["literal_from", "whole_namespace"])]
    what: Vec<String>,
    /// Every event of the namespace that holds the text in this file, however JSON writes it.
    /// Blank lines at its end are not of it; several lines are one text
    #[arg(long, value_name = "FILE", conflicts_with = "whole_namespace")]
    literal_from: Option<PathBuf>,
    /// Every event of the namespace
    #[arg(long)]
    whole_namespace: bool,
    #[command(flatten)]
    retention: RetentionArgs,
    /// Keep what was made from it: summaries, compactions, short forms of results, answers of
    /// sub-contexts, titles
    #[arg(long)]
    keep_derived: bool,
    /// Only tell what would go, what was made from it, and who shares it
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    /// Why, for the history
    #[arg(long, short, value_name = "TEXT")]
    #[arg(allow_hyphen_values = true, value_parser = free_text)]
    reason: Option<String>,
    /// Write the receipt to this file, which must not be there
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run")]
    receipt: Option<PathBuf>,
}

impl EraseArgs {
    /// True when it may erase, and not only look.
    pub fn erases(&self) -> bool {
        !self.dry_run
    }
}

/// A file of several secrets is taken for one text, which is nowhere.
fn hint_at_lines(target: &pb::erase_request::Target, events: u64) {
    let pb::erase_request::Target::Literal(literal) = target else {
        return;
    };
    let lines = literal.split(|byte| *byte == b'\n').count() as u64;
    if events == 0 && lines > 1 {
        tell!(
            "The file has {}, and they are looked for as one text: for each of several texts, \
             give a file of its own.",
            things(lines, "line", "lines")
        );
    }
}

/// What one call said.
#[derive(Default)]
struct Told {
    events: Vec<pb::ErasedEvent>,
    shared: Vec<pb::SharedBy>,
    kept: Vec<pb::KeptBody>,
    outcome: pb::EraseOutcome,
}

/// Erases, or tells what would go.
///
/// # Errors
/// [`CliError::Usage`] without a terminal to ask on, and what the store says.
pub async fn run(args: EraseArgs, store: &Connection, out: &mut Out) -> Result<(), CliError> {
    if !args.dry_run && !args.yes && !std::io::stdin().is_terminal() {
        return Err(CliError::Usage {
            what: "there is no terminal to ask on whether to erase".into(),
            hint: "look with --dry-run, then say --yes".into(),
        });
    }
    let targets = targets(&args, store).await?;
    if args.receipt.is_some() && targets.len() > 1 {
        return Err(CliError::Usage {
            what: "several conversations are named, and each gets a receipt of its own".into(),
            hint: "erase one after the other, or leave --receipt out".into(),
        });
    }
    if args.dry_run || !args.yes {
        let mut events = 0;
        for target in &targets {
            let told = call(store, request(&args, target.clone(), true)).await?;
            events += told.outcome.events;
            hint_at_lines(target, told.outcome.events);
            // To a script, the end tells what went.
            if args.dry_run || !out.json {
                show(&told, ["would go", "would go"], out)?;
            }
        }
        out.flush()?;
        if args.dry_run || events == 0 {
            return Ok(());
        }
        if !confirmed(events)? {
            return Err(CliError::Outcome {
                what: "nothing was erased".into(),
                hint: "answer y to erase".into(),
                exit: Exit::Refused,
            });
        }
    }
    let mut receipt = args.receipt.as_ref().map(create).transpose()?;
    for target in targets {
        let told = call(store, request(&args, target.clone(), false)).await?;
        if args.yes {
            hint_at_lines(&target, told.outcome.events);
        }
        if args.yes || out.json {
            show(&told, ["is erased", "are erased"], out)?;
        } else {
            // What went was shown before it did.
            let events = told.outcome.events;
            out.line(things(events, "event is erased", "events are erased"))?;
        }
        finish(&told.outcome, receipt.as_mut(), &args, out)?;
    }
    Ok(())
}

/// Made before anything goes: a receipt that cannot be written is none.
fn create(path: &std::path::PathBuf) -> Result<std::fs::File, CliError> {
    let file = std::fs::File::create_new(path);
    file.map_err(|cause| CliError::Usage {
        what: format!("{} cannot be written: {cause}", path.display()),
        hint: "name a file that is not there".into(),
    })
}

/// What is named, with all revisions of a conversation in one.
async fn targets(
    args: &EraseArgs,
    store: &Connection,
) -> Result<Vec<pb::erase_request::Target>, CliError> {
    use pb::erase_request::Target;
    if args.whole_namespace {
        return Ok(vec![Target::WholeNamespace(true)]);
    }
    if let Some(due) = args.retention.policy() {
        return Ok(vec![Target::Due(due)]);
    }
    if let Some(path) = &args.literal_from {
        let read = std::fs::read(path);
        let mut literal = read.map_err(|cause| CliError::ReadFile {
            path: path.clone(),
            cause,
        })?;
        while literal
            .pop_if(|last| matches!(last, b'\n' | b'\r'))
            .is_some()
        {}
        // What editors put in front is not of the text.
        let literal = literal.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&literal);
        return Ok(vec![Target::Literal(literal.to_vec().into())]);
    }
    let mut whole = Vec::new();
    let mut parts: BTreeMap<String, Vec<pb::RevisionRange>> = BTreeMap::new();
    for text in &args.what {
        let (name, range) = named(text);
        let found = names::find(store, name).await?;
        let revision = found.revision.map(|revision| (revision, revision));
        match range.or(revision) {
            Some((first, last)) => {
                let range = pb::RevisionRange { first, last };
                parts.entry(found.id).or_default().push(range);
            }
            None => whole.push(Target::ConversationId(found.id)),
        }
    }
    let revisions = |(conversation_id, ranges)| {
        Target::Revisions(pb::EraseRevisions {
            conversation_id,
            ranges,
        })
    };
    whole.extend(parts.into_iter().map(revisions));
    Ok(whole)
}

/// The name and the range of `NAME#FIRST-LAST`.
fn named(text: &str) -> (&str, Option<(u64, u64)>) {
    let range = text.rsplit_once('#').and_then(|(name, range)| {
        let (first, last) = range.split_once('-')?;
        Some((name, (first.parse().ok()?, last.parse().ok()?)))
    });
    match range {
        Some((name, range)) => (name, Some(range)),
        None => (text, None),
    }
}

fn request(args: &EraseArgs, target: pb::erase_request::Target, dry_run: bool) -> pb::EraseRequest {
    pb::EraseRequest {
        target: Some(target),
        keep_derived: args.keep_derived,
        dry_run,
        reason: args.reason.clone().unwrap_or_default(),
        actor: person(None),
    }
}

async fn call(store: &Connection, request: pb::EraseRequest) -> Result<Told, CliError> {
    use pb::erase_response::Item;
    let bar = Steps::start("erase");
    let mut answers = store.conversations().erase(request).await?.into_inner();
    let mut told = Told::default();
    let mut outcome = None;
    while let Some(answer) = answers.message().await? {
        match answer.item {
            Some(Item::Progress(step)) => bar.show(&step),
            Some(Item::Event(event)) => told.events.push(event),
            Some(Item::SharedBy(by)) => told.shared.push(by),
            Some(Item::Kept(kept)) => told.kept.push(kept),
            Some(Item::Outcome(done)) => outcome = Some(done),
            None => {}
        }
    }
    told.outcome = outcome.ok_or(CliError::Answer {
        call: "Erase",
        part: "outcome",
    })?;
    Ok(told)
}

fn why(event: &pb::ErasedEvent) -> &'static str {
    match event.why() {
        pb::ErasedWhy::Derived => "derived",
        pb::ErasedWhy::Bound => "decision",
        pb::ErasedWhy::Asked | pb::ErasedWhy::Unspecified => "asked",
    }
}

/// `what` becomes of one event, and of several.
fn show(told: &Told, what: [&str; 2], out: &mut Out) -> Result<(), CliError> {
    if out.json {
        return show_json(told, out);
    }
    let outcome = &told.outcome;
    let [one, many] = what.map(|what| [" ", what].concat());
    let events = things(
        outcome.events,
        &format!("event{one}"),
        &format!("events{many}"),
    );
    out.line(events)?;
    for event in told.events.iter().take(EVENTS_SHOWN_MAX) {
        let note = match event.why() {
            pb::ErasedWhy::Derived => " (made from the others)",
            pb::ErasedWhy::Bound => " (a decision, with a hash of the call's arguments)",
            pb::ErasedWhy::Asked | pb::ErasedWhy::Unspecified => "",
        };
        let place = format!("{}#{}", event.conversation_id, event.revision);
        let place = out.paint.text(Tone::Name, place);
        let kind = json::kind_name(event.kind);
        out.line(format!("  {place} {kind}{note}"))?;
    }
    if told.events.len() > EVENTS_SHOWN_MAX {
        let more = told.events.len() - EVENTS_SHOWN_MAX;
        out.line(format!("  and {} more", count(more as u64)))?;
    }
    for by in &told.shared {
        out.line(format!(
            "{} shares it: its history is that of {} up to #{}. Its own labels and model, also \
             those that it was given from there, stay: erase {}#1 for these",
            by.conversation_id, by.parent_conversation_id, by.revision, by.conversation_id
        ))?;
    }
    for kept in &told.kept {
        let used_by = kept.used_by.as_ref().map_or(0, |place| place.offset);
        out.line(format!(
            "A large body of {} stays: the event at position {used_by} has it, too",
            bytes_human(kept.bytes)
        ))?;
    }
    if outcome.stay > 0 {
        let stay = things(outcome.stay, "event has", "events have");
        out.line(format!(
            "{stay} it in what stays: an actor, a correlation id, an idempotency key or \
             the id of a call"
        ))?;
    }
    Ok(())
}

fn show_json(told: &Told, out: &mut Out) -> Result<(), CliError> {
    for event in &told.events {
        let mut object = Object::new();
        object
            .string("conversation", &event.conversation_id)
            .number("revision", event.revision)
            .string("kind", &json::kind_name(event.kind))
            .string("why", why(event));
        out.line(object.finish())?;
    }
    for by in &told.shared {
        let mut object = Object::new();
        object
            .string("shared_by", &by.conversation_id)
            .string("parent", &by.parent_conversation_id)
            .number("revision", by.revision);
        out.line(object.finish())?;
    }
    for kept in &told.kept {
        let offset = |place: Option<&pb::Position>| place.map_or(0, |place| place.offset);
        let mut object = Object::new();
        object
            .number("kept_body", offset(kept.position.as_ref()))
            .number("bytes", kept.bytes)
            .number("used_by", offset(kept.used_by.as_ref()));
        out.line(object.finish())?;
    }
    let outcome = &told.outcome;
    let mut object = Object::new();
    object
        .number("events", outcome.events)
        .number("derived", outcome.derived)
        .number("stay", outcome.stay);
    Ok(out.line(object.finish())?)
}

fn confirmed(events: u64) -> Result<bool, CliError> {
    let events = things(events, "event", "events");
    ask(format!("Erase {events}? This cannot be undone. [y/N] ")).map_err(CliError::Output)?;
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    read.map_err(CliError::Output)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn finish(
    outcome: &pb::EraseOutcome,
    receipt: Option<&mut std::fs::File>,
    args: &EraseArgs,
    out: &mut Out,
) -> Result<(), CliError> {
    if outcome.receipt.is_empty() {
        return Ok(());
    }
    match (receipt, &args.receipt) {
        (Some(file), Some(path)) => {
            writeln!(file, "{}", outcome.receipt)
                .and_then(|()| file.sync_all())
                .map_err(CliError::Output)?;
            if !out.json {
                let path = path.display().to_string();
                out.line(format!(
                    "`treering verify --erased {}` checks it",
                    printable(&path)
                ))?;
            }
            Ok(())
        }
        // Nobody can make it again.
        _ => Ok(out.json(&outcome.receipt)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A range is typed with the conversation; an id with a dash in it is not one.
    #[test]
    fn a_range_is_what_stands_behind_the_last_sharp() {
        assert_eq!(named("a-b#5-9"), ("a-b", Some((5, 9))));
        assert_eq!(named("a#7"), ("a#7", None));
        assert_eq!(named("a-b"), ("a-b", None));
        assert_eq!(named("a#x-9"), ("a#x-9", None));
    }
}
