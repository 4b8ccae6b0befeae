//! `erase`: erases the content of events and leaves stubs.

use std::{
    collections::BTreeMap,
    io::{IsTerminal, Write},
    path::PathBuf,
};

use clap::Args;

use super::{
    approve::person,
    connect::Connection,
    error::{ClientError, Exit},
    json::{self, Object},
    names,
    output::{Out, Steps, Tone},
    pb,
    retention::RetentionArgs,
    safe::{ask, tell},
    text::{bytes_human, count, printable, things},
    text_arg::free_text,
};

/// Maximum number of events that are listed. The others are counted.
const EVENTS_SHOWN_MAX: usize = 40;

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Erase content, without leaving a copy in the store
///
/// Each erased event leaves a stub with its ids, numbers, enums, actor and hashes, so that the
/// history still verifies. Content that was derived from it is erased as well: summaries,
/// compactions, short forms of results, results of sub-contexts, and a title that quotes it. When
/// the command returns, the content is gone from the log, the views and the index, and a receipt
/// says what was erased and where that is recorded. The actor, correlation id, idempotency key and
/// call ids stay. Copies, backups and clients are not changed.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering erase CONVERSATION#41 --dry-run         show what would be erased
  treering erase CONVERSATION#41 CONVERSATION#50-58
  treering erase CONVERSATION                      with its sub-contexts
  treering erase --literal-from secret.txt         every event with the file's text
  treering erase --keep-days 365 --dry-run         conversations unused for a year
  treering erase --whole-namespace --namespace old --yes --receipt old.json
  treering verify --erased old.json                check the erasure")]
pub(crate) struct EraseArgs {
    /// What to erase: CONVERSATION#REVISION, CONVERSATION#FIRST-LAST, or a whole CONVERSATION
    #[arg(required_unless_present_any = ["literal_from", "whole_namespace", "keep_days", "keep_sealed_days"])]
    #[arg(conflicts_with_all = ["literal_from", "whole_namespace"])]
    what: Vec<String>,
    /// Erase every event of the namespace that has the text in this file, in any JSON escaping.
    /// Line ends at the end of the file are ignored; several lines are one text
    #[arg(long, value_name = "FILE", conflicts_with = "whole_namespace")]
    literal_from: Option<PathBuf>,
    /// Erase every event of the namespace
    #[arg(long)]
    whole_namespace: bool,
    #[command(flatten)]
    retention: RetentionArgs,
    /// Keep derived content: summaries, compactions, short forms of results, results of
    /// sub-contexts, titles
    #[arg(long)]
    keep_derived: bool,
    /// Only show what would be erased, what is derived from it, and which conversations share it
    #[arg(long)]
    dry_run: bool,
    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,
    /// Reason, recorded in the history
    #[arg(long, short, value_name = "TEXT")]
    #[arg(allow_hyphen_values = true, value_parser = free_text)]
    reason: Option<String>,
    /// Write the receipt to this file, which must not exist
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run")]
    receipt: Option<PathBuf>,
}

impl EraseArgs {
    /// Returns true unless it is a dry run.
    pub(crate) fn erases(&self) -> bool {
        !self.dry_run
    }
}

/// Warns that several secrets in one file are taken as one text, which is probably not found.
fn hint_at_lines(target: &pb::erase_request::Target, events: u64) {
    let pb::erase_request::Target::Literal(literal) = target else {
        return;
    };
    let lines = literal.split(|byte| *byte == b'\n').count() as u64;
    if events == 0 && lines > 1 {
        tell!(
            "The file has {}, and is searched for as one text: to erase several texts, use one \
             file per text.",
            things(lines, "line", "lines")
        );
    }
}

/// The responses to one call.
#[derive(Default)]
struct EraseReply {
    events: Vec<pb::ErasedEvent>,
    shared: Vec<pb::SharedBy>,
    kept: Vec<pb::KeptBody>,
    outcome: pb::EraseOutcome,
    /// A part of a cluster failed after others had erased: the outcome is theirs.
    failed: Option<ClientError>,
}

/// Erases, or shows what would be erased.
///
/// # Errors
/// [`ClientError::Usage`] without a terminal to ask for confirmation; errors of the store.
pub(crate) async fn run(
    args: EraseArgs,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    if !args.dry_run && !args.yes && !std::io::stdin().is_terminal() {
        return Err(ClientError::Usage {
            what: "there is no terminal to ask for confirmation".into(),
            hint: "check with --dry-run, then use --yes".into(),
        });
    }
    let targets = targets(&args, store).await?;
    if args.receipt.is_some() && targets.len() > 1 {
        return Err(ClientError::Usage {
            what: "several conversations are named, and each gets its own receipt".into(),
            hint: "erase them one at a time, or omit --receipt".into(),
        });
    }
    if args.dry_run || !args.yes {
        let mut events = 0;
        for target in &targets {
            let told = call(store, request(&args, target.clone(), true)).await?;
            events += told.outcome.events;
            hint_at_lines(target, told.outcome.events);
            // A script gets the list at the end.
            if args.dry_run || !out.json {
                show(&told, ["would be erased", "would be erased"], out)?;
            }
        }
        out.flush()?;
        if args.dry_run || events == 0 {
            return Ok(());
        }
        if !confirmed(events)? {
            return Err(ClientError::Outcome {
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
            // The list was shown before the confirmation.
            let events = told.outcome.events;
            out.line(things(events, "event is erased", "events are erased"))?;
        }
        finish(&told.outcome, receipt.as_mut(), &args, out)?;
        if let Some(error) = told.failed {
            return Err(error);
        }
    }
    Ok(())
}

/// Creates the file of the receipt before the erasure, so that nothing is erased if the file cannot
/// be written.
fn create(path: &std::path::PathBuf) -> Result<std::fs::File, ClientError> {
    let file = std::fs::File::create_new(path);
    file.map_err(|cause| ClientError::Usage {
        what: format!("cannot write {}: {cause}", path.display()),
        hint: "name a file that does not exist yet".into(),
    })
}

/// Returns the targets, with all revisions of a conversation in one.
async fn targets(
    args: &EraseArgs,
    store: &Connection,
) -> Result<Vec<pb::erase_request::Target>, ClientError> {
    use pb::erase_request::Target;
    if args.whole_namespace {
        return Ok(vec![Target::WholeNamespace(true)]);
    }
    if let Some(due) = args.retention.policy() {
        return Ok(vec![Target::Due(due)]);
    }
    if let Some(path) = &args.literal_from {
        let read = std::fs::read(path);
        let mut literal = read.map_err(|cause| ClientError::ReadFile {
            path: path.clone(),
            cause,
        })?;
        while literal
            .pop_if(|last| matches!(last, b'\n' | b'\r'))
            .is_some()
        {}
        // The byte order mark of editors is not part of the text.
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

/// Returns the name and the range of `NAME#FIRST-LAST`.
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

async fn call(store: &Connection, request: pb::EraseRequest) -> Result<EraseReply, ClientError> {
    use pb::erase_response::Item;
    let bar = Steps::start("erase");
    let mut answers = store.conversations().erase(request).await?.into_inner();
    let mut told = EraseReply::default();
    let mut outcome = None;
    loop {
        let answer = match answers.message().await {
            Ok(Some(answer)) => answer,
            Ok(None) => break,
            Err(error) if outcome.is_none() => return Err(error.into()),
            Err(error) => {
                told.failed = Some(error.into());
                break;
            }
        };
        match answer.item {
            Some(Item::Progress(step)) => bar.show(&step),
            Some(Item::Event(event)) => told.events.push(event),
            Some(Item::SharedBy(by)) => told.shared.push(by),
            Some(Item::Kept(kept)) => told.kept.push(kept),
            Some(Item::Outcome(done)) => outcome = Some(done),
            None => {}
        }
    }
    told.outcome = outcome.ok_or(ClientError::Answer {
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

/// Prints the events. `what` is the verb phrase for one event, and for several.
fn show(told: &EraseReply, what: [&str; 2], out: &mut Out) -> Result<(), ClientError> {
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
            pb::ErasedWhy::Derived => " (derived from the others)",
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
            "{} shares this history: it is a fork of {} at #{}. Its own labels and model, \
             including inherited ones, stay: erase {}#1 to remove them",
            by.conversation_id, by.parent_conversation_id, by.revision, by.conversation_id
        ))?;
    }
    for kept in &told.kept {
        let used_by = kept.used_by.as_ref().map_or(0, |place| place.offset);
        out.line(format!(
            "A large body of {} stays: the event at position {used_by} also uses it",
            bytes_human(kept.bytes)
        ))?;
    }
    if outcome.stay > 0 {
        let stay = things(outcome.stay, "event has", "events have");
        out.line(format!(
            "{stay} it in fields that are not erased: an actor, a correlation id, an idempotency \
             key or a call id"
        ))?;
    }
    Ok(())
}

fn show_json(told: &EraseReply, out: &mut Out) -> Result<(), ClientError> {
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

fn confirmed(events: u64) -> Result<bool, ClientError> {
    let events = things(events, "event", "events");
    ask(format!("Erase {events}? This cannot be undone. [y/N] ")).map_err(ClientError::Output)?;
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    read.map_err(ClientError::Output)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn finish(
    outcome: &pb::EraseOutcome,
    receipt: Option<&mut std::fs::File>,
    args: &EraseArgs,
    out: &mut Out,
) -> Result<(), ClientError> {
    if outcome.receipt.is_empty() {
        return Ok(());
    }
    match (receipt, &args.receipt) {
        (Some(file), Some(path)) => {
            writeln!(file, "{}", outcome.receipt)
                .and_then(|()| file.sync_all())
                .map_err(ClientError::Output)?;
            if !out.json {
                let path = path.display().to_string();
                out.line(format!(
                    "To check it: treering verify --erased {}",
                    printable(&path)
                ))?;
            }
            Ok(())
        }
        // A receipt cannot be made again, so print it.
        _ => Ok(out.json(&outcome.receipt)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A range is part of the conversation argument. A dash inside an id is not a range.
    #[test]
    fn revision_range_follows_the_last_hash_sign() {
        assert_eq!(named("a-b#5-9"), ("a-b", Some((5, 9))));
        assert_eq!(named("a#7"), ("a#7", None));
        assert_eq!(named("a-b"), ("a-b", None));
        assert_eq!(named("a#x-9"), ("a#x-9", None));
    }
}
