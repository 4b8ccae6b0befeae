//! Erasure of event content; ids and hashes are kept.
//!
//! [`plan`] finds what is to be erased in the log, and what must be erased with it. [`carry_out`]
//! records it, hides it from every reader, and removes it from the disk; [`resume`] finishes an
//! interrupted erasure when a store is opened. `docs/decisions/0010-erasing.md` gives the reasons.

mod carry_out;
mod erased_texts;
mod folder;
mod from_index;
mod literal;
mod plan;
mod receipt;
mod resume;
mod retention;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    ops::RangeInclusive,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use futures::{SinkExt, StreamExt, channel::mpsc, stream::BoxStream};

pub use self::carry_out::hash_of_stubs;
pub use self::folder::forget_erased;
pub use self::resume::ErasureAtOpen;
pub use self::retention::Retention;
pub(super) use self::{
    folder::bring_up,
    resume::{InterruptedErasure, OpenedLog, finish_erasing, wipe},
};
use self::{
    literal::{LITERAL_BYTES_MAX, LITERAL_BYTES_MIN, Literal},
    plan::{ErasePlan, EraseSelection},
};
use super::{
    Engine, Inner,
    error::{AppendError, ReadError},
    query::Progress,
};
use treering_domain::{Cause, ConversationId, Namespace, Position, Revision};

/// The content to be erased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EraseTarget {
    /// Events of a conversation, on any branch.
    Revisions {
        /// The conversation.
        conversation: ConversationId,
        /// Their revisions, both ends inclusive.
        revisions: Vec<RangeInclusive<u64>>,
    },
    /// A conversation with all sub-contexts spawned from it, directly or indirectly.
    Conversation(ConversationId),
    /// Every event of the namespace.
    Namespace,
    /// Every event of the namespace that contains these bytes, also in JSON-escaped form.
    Literal(Vec<u8>),
    /// Every conversation whose retention period has ended.
    Due(Retention),
}

/// A command to erase content.
#[derive(Clone, Debug)]
pub struct EraseCommand {
    /// The tenant.
    pub namespace: Namespace,
    /// The content to be erased.
    pub target: EraseTarget,
    /// Keep content derived from it: summaries, compactions, result digests.
    pub keep_derived: bool,
    /// Only report what would be erased.
    pub dry_run: bool,
    /// The reason, recorded in the history.
    pub reason: String,
    /// The actor, recorded in the history.
    pub actor: String,
}

/// Why an event is erased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EraseReason {
    /// It was requested.
    Asked,
    /// It was derived from erased content.
    Derived,
    /// It holds an unsalted hash of erased content: an approval decision about a call.
    Bound,
}

/// An event to be erased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErasedEvent {
    /// Its conversation.
    pub conversation: ConversationId,
    /// Its revision there.
    pub revision: Revision,
    /// Its kind, as a number.
    pub kind: u16,
    /// Why it is erased.
    pub why: EraseReason,
}

/// A conversation that shares erased events as part of its history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedBy {
    /// The fork.
    pub conversation: ConversationId,
    /// The conversation that it was forked from.
    pub parent: ConversationId,
    /// The fork revision.
    pub revision: Revision,
}

/// A large body that is kept although one of its events is erased, because a remaining event has
/// the same content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptBlob {
    /// The event under which it is stored.
    pub home: Position,
    /// Its length in bytes.
    pub bytes: u64,
    /// The first event that still has it.
    pub used_by: Position,
}

/// The outcome of an erasure.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct EraseOutcome {
    /// Number of events whose content was, or would be, erased.
    pub events: u64,
    /// Number of these that were not requested but had to be erased with the others.
    pub derived: u64,
    /// Number of events with the searched bytes in parts that are never erased: an actor, a
    /// correlation id, an idempotency key, a call id.
    pub stay: u64,
    /// The signed receipt, JSON; `None` for a dry run or when there was nothing to erase.
    pub receipt: Option<String>,
}

/// An item of an erasure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EraseItem {
    /// Progress.
    Progress(Progress),
    /// An event to be erased, reported beforehand.
    Event(ErasedEvent),
    /// A conversation that shares it.
    Shared(SharedBy),
    /// A body that is kept, and why.
    Kept(KeptBlob),
    /// The final outcome.
    Outcome(EraseOutcome),
}

/// Why an erasure failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EraseError {
    /// The request is invalid. Nothing was erased.
    #[error("{message}")]
    Invalid {
        /// The fault, and what to do.
        message: String,
    },
    /// The content to be erased could not be read. Nothing was erased.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The erasure could not be recorded. Nothing was erased.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// The erasure is recorded, at least in part, and the content may still be on the disk.
    #[error(
        "the erase has started but not finished: the next erase or the next start finishes it; \
         until then the content may still be on the disk"
    )]
    Unfinished {
        /// The cause.
        source: Cause,
    },
}

impl EraseError {
    fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid {
            message: message.into(),
        }
    }

    fn unfinished(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Unfinished {
            source: Cause::of(error),
        }
    }
}

/// Counts erasures that change what is read. During one, log, projections and index do not match,
/// so a comparison of them is invalid.
#[derive(Debug, Default)]
pub(super) struct ErasureCounter(AtomicU64);

/// Marks an erasure that changes what is read as running, until it is dropped.
struct ErasureGuard<'a>(&'a ErasureCounter);

impl ErasureCounter {
    /// Begins an erasure. The caller must ensure that only one runs at a time.
    fn begin(&self) -> ErasureGuard<'_> {
        self.0.fetch_add(1, Ordering::SeqCst);
        ErasureGuard(self)
    }

    /// Returns a number that changes with each erasure; `None` while one is running.
    pub(crate) fn settled(&self) -> Option<u64> {
        let number = self.0.load(Ordering::SeqCst);
        number.is_multiple_of(2).then_some(number)
    }
}

impl Drop for ErasureGuard<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_add(1, Ordering::SeqCst);
    }
}

type Reports = mpsc::Sender<Result<EraseItem, EraseError>>;

impl Engine {
    /// Erases content. Each event keeps its stub (ids, numbers and enums) and its hashes, so the
    /// chain still verifies. The stream first reports what is erased; a dry run ends there. When
    /// the outcome arrives, the content is in none of the store's files and every read returns
    /// stubs. A started erasure is finished even if the stream is dropped. An erasure waits for a
    /// running erasure or rebuild to end.
    ///
    /// Appends wait while the erasure is recorded and while the projections are replaced; reads
    /// continue. An erasure takes about as long as reading the log, rewriting the affected
    /// segments, and rebuilding the projections and the search index.
    pub fn erase(
        &self,
        command: EraseCommand,
    ) -> BoxStream<'static, Result<EraseItem, EraseError>> {
        let inner = Arc::clone(&self.inner);
        let (mut sender, receiver) = mpsc::channel(64);
        tokio::spawn(async move {
            let done = erase(&inner, command, &mut sender).await;
            // The caller may be gone; the work continues anyway.
            let _ = sender.send(done.map(EraseItem::Outcome)).await;
        });
        receiver.boxed()
    }
}

async fn erase(
    inner: &Arc<Inner>,
    command: EraseCommand,
    reports: &mut Reports,
) -> Result<EraseOutcome, EraseError> {
    let Some(log) = inner.upkeep.erasable.clone() else {
        return Err(EraseError::invalid(
            "a store in memory does not support erasing: it loses its data once it is closed",
        ));
    };
    if inner.options.mode.is_read_only() && !command.dry_run {
        return Err(AppendError::ReadOnly.into());
    }
    let mut wanted = wanted_by(inner, &command).await?;
    // Another erasure or a rebuild also rebuilds projections and index: wait for it to end.
    let rebuilding = Arc::clone(&inner.upkeep.rebuilding);
    let _one = match Arc::clone(&rebuilding).try_lock_owned() {
        Ok(one) => one,
        Err(_) => {
            let one = rebuilding.lock_owned().await;
            if inner.closing.load(Ordering::Acquire) {
                return Err(AppendError::Closing.into());
            }
            // Time has passed: evaluate the target again.
            wanted = wanted_by(inner, &command).await?;
            one
        }
    };
    let progress = log.progress().await.map_err(ReadError::from)?;
    if progress.erasing.is_some() && !command.dry_run {
        carry_out::finish_earlier(inner, &log, reports).await?;
    }
    let mut plan = ErasePlan::new(
        Some(command.namespace.clone()),
        wanted,
        command.keep_derived,
    );
    plan.scan(inner, &*log, |done, total| {
        report_progress(reports, "read", done, total);
    })
    .await?;
    check_whole(inner, &command.namespace, &plan)?;
    if command.dry_run {
        tell(&plan, reports).await;
        return Ok(plan.outcome());
    }
    carry_out::carry_out(inner, &log, &command, plan, reports).await
}

/// Refuses damaged conversations: an erasure is recorded in its conversation, and a damaged one
/// accepts no events.
fn check_whole(inner: &Inner, namespace: &Namespace, plan: &ErasePlan) -> Result<(), EraseError> {
    let conversations = plan.gone.values().map(|gone| gone.event.conversation);
    for conversation in conversations.collect::<BTreeSet<_>>() {
        if let Some(damage) = inner.reads.quarantine.get(namespace.key(conversation)) {
            let damaged = ReadError::ConversationDamaged {
                conversation,
                damage,
            };
            return Err(damaged.into());
        }
    }
    Ok(())
}

fn report_progress(reports: &mut Reports, what: &'static str, done: u64, total: u64) {
    // A slow reader may miss progress reports, but never the outcome.
    let _ = reports.try_send(Ok(EraseItem::Progress(Progress { what, done, total })));
}

/// Reports what is erased. The receiver may be gone.
async fn tell(plan: &ErasePlan, reports: &mut Reports) {
    for item in plan.items() {
        if reports.send(Ok(item)).await.is_err() {
            return;
        }
    }
}

/// Validates a command's target.
async fn wanted_by(
    inner: &Arc<Inner>,
    command: &EraseCommand,
) -> Result<EraseSelection, EraseError> {
    let namespace = &command.namespace;
    Ok(match &command.target {
        EraseTarget::Namespace => EraseSelection::Everything,
        EraseTarget::Conversation(id) => {
            inner.reads.row(namespace, *id)?;
            EraseSelection::Tree([*id].into())
        }
        EraseTarget::Revisions {
            conversation,
            revisions,
        } => {
            let head = inner.reads.row(namespace, *conversation)?.head;
            let last = revisions.iter().map(|range| *range.end()).max();
            let beyond = last.filter(|last| *last > head.0);
            if let Some(beyond) = beyond {
                return Err(EraseError::invalid(format!(
                    "conversation {conversation} has no revision {beyond}: its head is {head}"
                )));
            }
            if last.is_none()
                || revisions
                    .iter()
                    .any(|range| range.is_empty() || *range.start() == 0)
            {
                return Err(EraseError::invalid(
                    "a range of revisions is empty: its first revision must be 1 or later, and its \
                     last must not be before its first",
                ));
            }
            EraseSelection::Revisions(*conversation, revisions.clone())
        }
        EraseTarget::Due(retention) => {
            if !retention.says_something() {
                return Err(EraseError::invalid(
                    "the retention period is missing: give a number of days",
                ));
            }
            EraseSelection::These(inner.due(namespace, retention).await?)
        }
        EraseTarget::Literal(literal) => {
            if !(LITERAL_BYTES_MIN..=LITERAL_BYTES_MAX).contains(&literal.len()) {
                return Err(EraseError::invalid(format!(
                    "the literal has {} bytes; it must have {LITERAL_BYTES_MIN} to \
                     {LITERAL_BYTES_MAX}",
                    literal.len()
                )));
            }
            EraseSelection::Literal(Literal::new(literal))
        }
    })
}
