//! Erasing: the content of events goes, and what they were stays.
//!
//! [`plan`] finds in the log what goes and what must go with it. [`carry_out`] records it,
//! keeps it from every reader, and takes it off the disk; [`resume`] does the rest of one
//! that was interrupted when a store is opened. `docs/decisions/0033` says why so.

mod carry_out;
mod echo;
mod literal;
mod plan;
mod receipt;
mod resume;
mod retention;
mod signature;
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

pub(crate) use self::carry_out::hash_of_stubs;
pub use self::resume::ErasingAtOpen;
pub(super) use self::resume::{FoundErasing, finish_erasing};
pub use self::retention::Retention;
pub use self::signature::{ReceiptError, receipt_signer};
use self::{
    literal::{LITERAL_BYTES_MAX, LITERAL_BYTES_MIN, Literal},
    plan::{Plan, Wanted},
};
use super::{
    Engine, Inner,
    error::{AppendError, ReadError},
    query::Progress,
};
use crate::domain::{Cause, ConversationId, Namespace, Position, Revision};

/// What is to be erased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EraseTarget {
    /// Events of a conversation, on whatever branch they are.
    Revisions {
        /// The conversation.
        conversation: ConversationId,
        /// Their revisions, both ends included.
        revisions: Vec<RangeInclusive<u64>>,
    },
    /// A conversation, and the sub-contexts that it spawned, and those that they did.
    Conversation(ConversationId),
    /// Every event of the namespace.
    Namespace,
    /// Every event of the namespace that holds these bytes, also as JSON writes them.
    Literal(Vec<u8>),
    /// Every conversation that was kept as long as it is to be.
    Due(Retention),
}

/// An erasing.
#[derive(Clone, Debug)]
pub struct EraseCommand {
    /// The tenant.
    pub namespace: Namespace,
    /// What goes.
    pub target: EraseTarget,
    /// What was made from it stays: summaries, compactions, short forms of results.
    pub keep_derived: bool,
    /// Only tell what would go.
    pub dry_run: bool,
    /// Why, for the history.
    pub reason: String,
    /// Who erases, for the history.
    pub actor: String,
}

/// Why an event goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErasedWhy {
    /// It was asked for.
    Asked,
    /// It was made from what goes.
    Derived,
    /// It holds a plain hash of what goes: a decision about a call.
    Bound,
}

/// An event that goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErasedEvent {
    /// Its conversation.
    pub conversation: ConversationId,
    /// Its place there.
    pub revision: Revision,
    /// What it is about, as a number.
    pub kind: u16,
    /// Why it goes.
    pub why: ErasedWhy,
}

/// A conversation that shares, as its own history, something that goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedBy {
    /// The fork.
    pub conversation: ConversationId,
    /// What it was forked from.
    pub parent: ConversationId,
    /// Where.
    pub revision: Revision,
}

/// A large body that stays although an event of it goes: another one, with a life of its
/// own, has the same content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptBlob {
    /// The event under which it is stored.
    pub home: Position,
    /// How long it is.
    pub bytes: u64,
    /// The first event that still has it.
    pub used_by: Position,
}

/// What an erasing came to.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct EraseOutcome {
    /// Events whose content went, or would go.
    pub events: u64,
    /// Of them, those that were made from the others.
    pub derived: u64,
    /// Events of which the bytes that were looked for are in what stays: an actor, a
    /// correlation id, an idempotency key, the id of a call.
    pub stay: u64,
    /// What vouches for it, JSON; none of a dry run, and when there was nothing to erase.
    pub receipt: Option<String>,
}

/// What an erasing brings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EraseItem {
    /// How far it is.
    Progress(Progress),
    /// What goes, before it does.
    Event(ErasedEvent),
    /// Who shares it.
    Shared(SharedBy),
    /// What is kept of it, and why.
    Kept(KeptBlob),
    /// The end.
    Outcome(EraseOutcome),
}

/// Why something was not erased.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EraseError {
    /// The request makes no sense. Nothing was erased.
    #[error("{message}")]
    Invalid {
        /// What is wrong, and what to do.
        message: String,
    },
    /// What is to be erased could not be read. Nothing was erased.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// What is to be erased could not be recorded. Nothing was erased.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// It is recorded, or some of it, and may still be on the disk.
    #[error(
        "the erasing has begun and has not ended: what it recorded is done when something is \
         erased again, or at the next start; until then it may be on the disk"
    )]
    Unfinished {
        /// What failed.
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

/// Erasings that change what is read. While one does, log, views and index are not of one
/// state: who compares them must know.
#[derive(Debug, Default)]
pub(super) struct Erasings(AtomicU64);

/// An erasing that changes what is read, until it is dropped.
struct Changing<'a>(&'a Erasings);

impl Erasings {
    /// Begins one. The caller sees to it that there is one at a time.
    fn begin(&self) -> Changing<'_> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Changing(self)
    }

    /// A number that is another one after each erasing; none: one is under way.
    pub fn settled(&self) -> Option<u64> {
        let number = self.0.load(Ordering::SeqCst);
        number.is_multiple_of(2).then_some(number)
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_add(1, Ordering::SeqCst);
    }
}

type Reports = mpsc::Sender<Result<EraseItem, EraseError>>;

impl Engine {
    /// Erases content: of each event its ids, numbers and enums stay, as a stub, and its
    /// hashes, so that the chain goes on to verify. First comes what goes; a dry run ends
    /// there. When the outcome comes nothing of it is in the store's files any more, and
    /// every read shows stubs. What is under way is finished whether or not anybody waits.
    /// It waits its turn while another erasing, or a rebuild, runs.
    ///
    /// Appends wait while it is recorded and while the views are replaced; reads go on.
    /// Takes about as long as reading the log, writing the segments that hold it anew, and
    /// making views and search index anew.
    pub fn erase(
        &self,
        command: EraseCommand,
    ) -> BoxStream<'static, Result<EraseItem, EraseError>> {
        let inner = Arc::clone(&self.inner);
        let (mut sender, receiver) = mpsc::channel(64);
        tokio::spawn(async move {
            let done = erase(&inner, command, &mut sender).await;
            // Whoever asked may have gone; the work is done all the same.
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
    let Some(files) = inner.files.clone() else {
        return Err(EraseError::invalid(
            "this store is in memory: it is gone once it is closed",
        ));
    };
    if files.is_read_only() && !command.dry_run {
        return Err(AppendError::ReadOnly.into());
    }
    let mut wanted = wanted_by(inner, &command).await?;
    // Another erasing and a rebuild make views and index anew, too: this one waits its turn.
    let rebuilding = Arc::clone(&inner.rebuilding);
    let _one = match Arc::clone(&rebuilding).try_lock_owned() {
        Ok(one) => one,
        Err(_) => {
            let one = rebuilding.lock_owned().await;
            if inner.closing.load(Ordering::Acquire) {
                return Err(AppendError::Closing.into());
            }
            // That is longer ago now.
            wanted = wanted_by(inner, &command).await?;
            one
        }
    };
    if files.erasing().is_some() && !command.dry_run {
        carry_out::finish_earlier(inner, &files, reports).await?;
    }
    let mut plan = Plan::new(
        Some(command.namespace.clone()),
        wanted,
        command.keep_derived,
    );
    plan.scan(inner, &files, |done, total| {
        tell_progress(reports, "read", done, total);
    })
    .await?;
    check_whole(inner, &plan)?;
    if command.dry_run {
        tell(&plan, reports).await;
        return Ok(plan.outcome());
    }
    carry_out::carry_out(inner, &files, &command, plan, reports).await
}

/// What is erased is recorded in its conversation, and a damaged one takes nothing.
fn check_whole(inner: &Inner, plan: &Plan) -> Result<(), EraseError> {
    let conversations = plan.gone.values().map(|gone| gone.event.conversation);
    for conversation in conversations.collect::<BTreeSet<_>>() {
        if let Some(damage) = inner.marks.get(conversation) {
            let damaged = ReadError::ConversationDamaged {
                conversation,
                damage,
            };
            return Err(damaged.into());
        }
    }
    Ok(())
}

fn tell_progress(reports: &mut Reports, what: &'static str, done: u64, total: u64) {
    // A reader that is slow misses some progress, never the end.
    let _ = reports.try_send(Ok(EraseItem::Progress(Progress { what, done, total })));
}

/// Tells what goes. Nobody may listen any more.
async fn tell(plan: &Plan, reports: &mut Reports) {
    for item in plan.items() {
        if reports.send(Ok(item)).await.is_err() {
            return;
        }
    }
}

/// What a command asks for, if that can be there.
async fn wanted_by(inner: &Arc<Inner>, command: &EraseCommand) -> Result<Wanted, EraseError> {
    let namespace = &command.namespace;
    Ok(match &command.target {
        EraseTarget::Namespace => Wanted::Everything,
        EraseTarget::Conversation(id) => {
            inner.row(namespace, *id)?;
            Wanted::Tree([*id].into())
        }
        EraseTarget::Revisions {
            conversation,
            revisions,
        } => {
            let head = inner.row(namespace, *conversation)?.head;
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
                    "a range of revisions is empty: they begin with 1, and end where they \
                     begin or later",
                ));
            }
            Wanted::Revisions(*conversation, revisions.clone())
        }
        EraseTarget::Due(retention) => {
            if !retention.says_something() {
                return Err(EraseError::invalid(
                    "it is not said how long conversations are kept: give a number of days",
                ));
            }
            Wanted::These(inner.due(namespace, retention).await?)
        }
        EraseTarget::Literal(literal) => {
            if !(LITERAL_BYTES_MIN..=LITERAL_BYTES_MAX).contains(&literal.len()) {
                return Err(EraseError::invalid(format!(
                    "what is looked for has {} bytes: it must have {LITERAL_BYTES_MIN} to \
                     {LITERAL_BYTES_MAX}",
                    literal.len()
                )));
            }
            Wanted::Literal(Literal::new(literal))
        }
    })
}
