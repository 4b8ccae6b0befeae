//! Receipts: what was erased, where the erasure is recorded, and what is kept.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use serde::Serialize;

use super::{EraseCommand, EraseTarget, plan::ErasePlan};
use crate::{Inner, Signer, backups, error::ReadError};
use treering_domain::{
    AppendOutcome, ConversationId, EventBody, NewEvent, Position, Revision, TimestampMicros,
};
use treering_log::{LOG_FOLDER, ScrubOutcome};
use treering_proto::rfc3339;

/// Version of the receipt format.
const VERSION: u32 = 1;
/// Name prefix of the folders into which a repair has quarantined unusable files.
const SET_ASIDE: &str = "set-aside-";

/// An appended erasure event.
#[derive(Clone, Debug)]
pub(super) struct RecordedErasure {
    pub(crate) conversation: ConversationId,
    pub(crate) revisions: Vec<Revision>,
    pub(crate) at: Revision,
    pub(crate) position: Position,
}

impl RecordedErasure {
    pub(crate) fn of(event: &NewEvent, appended: &AppendOutcome) -> Option<Self> {
        let EventBody::ContentErased { revisions, .. } = &event.body else {
            return None;
        };
        let placed = appended.events.first()?;
        Some(Self {
            conversation: event.conversation,
            revisions: revisions.clone(),
            at: placed.revision,
            position: placed.position,
        })
    }
}

#[derive(Serialize)]
struct Receipt {
    receipt: u32,
    store: String,
    erased_at: String,
    namespace: String,
    target: String,
    reason: String,
    actor: String,
    events: u64,
    derived: u64,
    /// Number of events with the searched bytes in parts that are never erased.
    stay: u64,
    recorded: Vec<RecordedEvent>,
    log: Files,
    shared_bodies: Vec<SharedBody>,
    /// Backups that may contain the content until the next `treering backup` to the same place.
    backups: Vec<BackupHolding>,
    /// Quarantine folders of repairs in the store; they are not examined.
    not_looked_at: Vec<String>,
    /// Places that the log cannot reach and that may still have the content, and what to do.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    may_remain: Vec<String>,
}

#[derive(Serialize)]
struct RecordedEvent {
    conversation: String,
    /// First and last revision of each range.
    revisions: Vec<[u64; 2]>,
    revision: u64,
    position: u64,
    chain_hash: String,
}

#[derive(Serialize)]
struct Files {
    segments_written_anew: u64,
    before: BTreeMap<String, u64>,
    after: BTreeMap<String, u64>,
}

#[derive(Serialize)]
struct BackupHolding {
    target: String,
    generation: u64,
    head: u64,
    /// The command that removes the content there, including older generations.
    clean_up: String,
}

#[derive(Serialize)]
struct SharedBody {
    position: u64,
    bytes: u64,
    used_by: u64,
}

/// Creates a signed receipt, as JSON.
pub(super) async fn make(
    inner: &Arc<Inner>,
    command: &EraseCommand,
    plan: &ErasePlan,
    recorded: Vec<RecordedErasure>,
    scrubbed: &ScrubOutcome,
    signer: &Signer,
) -> Result<String, ReadError> {
    let mut events = Vec::with_capacity(recorded.len());
    for one in recorded {
        let record = inner.reads.reader.record(one.position.offset).await?;
        events.push(RecordedEvent {
            conversation: one.conversation.to_string(),
            revisions: ranges(&one.revisions),
            revision: one.at.0,
            position: one.position.offset,
            chain_hash: record.chain_hash().to_string(),
        });
    }
    let outcome = plan.outcome();
    let bodies = plan.kept().map(|kept| SharedBody {
        position: kept.home.offset,
        bytes: kept.bytes,
        used_by: kept.used_by.offset,
    });
    let seconds = TimestampMicros::now().0.div_euclid(1_000_000);
    let now = TimestampMicros(seconds * 1_000_000);
    let receipt = Receipt {
        receipt: VERSION,
        store: inner.log.identity().store.to_string(),
        erased_at: rfc3339::text(now).unwrap_or_default(),
        namespace: command.namespace.as_str().to_owned(),
        target: described(&command.target),
        reason: command.reason.clone(),
        actor: command.actor.clone(),
        events: outcome.events,
        derived: outcome.derived,
        stay: outcome.stay,
        recorded: events,
        log: Files {
            segments_written_anew: scrubbed.segments,
            before: scrubbed.before.iter().cloned().collect(),
            after: scrubbed.after.iter().cloned().collect(),
        },
        shared_bodies: bodies.collect(),
        backups: held_by_backups(inner, plan),
        not_looked_at: set_aside(&inner.options.data_dir),
        may_remain: scrubbed.may_remain.clone(),
    };
    let receipt = serde_json::to_value(&receipt).map_err(ReadError::storage)?;
    Ok(signer.sign(receipt).to_string())
}

fn described(target: &EraseTarget) -> String {
    match target {
        EraseTarget::Revisions { conversation, .. } => format!("revisions of {conversation}"),
        EraseTarget::Conversation(id) => format!("conversation {id} with its sub-contexts"),
        EraseTarget::Namespace => "the namespace".to_owned(),
        EraseTarget::Due(retention) => retention.to_string(),
        EraseTarget::Literal(literal) => format!("a literal of {} bytes", literal.len()),
    }
}

/// Returns the backups that cover erased offsets, made before the erasure.
fn held_by_backups(inner: &Inner, plan: &ErasePlan) -> Vec<BackupHolding> {
    let first = plan.gone.keys().next().copied().unwrap_or(u64::MAX);
    let notes = backups::notes(&inner.options.data_dir).into_iter();
    let holding = notes.filter(|note| note.head >= first);
    let held = holding.map(|note| BackupHolding {
        clean_up: format!("treering backup '{}'", note.target),
        target: note.target,
        generation: note.generation,
        head: note.head,
    });
    held.collect()
}

/// Merges consecutive revisions into ranges.
fn ranges(revisions: &[Revision]) -> Vec<[u64; 2]> {
    let mut ranges: Vec<[u64; 2]> = Vec::new();
    for revision in revisions {
        match ranges.last_mut() {
            Some([_, last]) if *last + 1 == revision.0 => *last = revision.0,
            _ => ranges.push([revision.0, revision.0]),
        }
    }
    ranges
}

/// Returns the quarantine folders of repairs: nothing reads them, and they may contain erased
/// content.
fn set_aside(data: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for (folder, shown) in [
        (data.to_owned(), String::new()),
        (data.join(LOG_FOLDER), format!("{LOG_FOLDER}/")),
    ] {
        let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        let aside = names.filter(|name| name.starts_with(SET_ASIDE));
        found.extend(aside.map(|name| format!("{shown}{name}")));
    }
    found.sort();
    found
}
