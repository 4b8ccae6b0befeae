//! Handling of damage: reads past unreadable parts of the log, and the marks of conversations that
//! cannot be read to their end.

use std::{
    collections::HashMap,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{
    ReadPath,
    error::ReadError,
    query::{EventSource, ReadQuery},
};
use treering_domain::{ConversationKey, Damage, Revision};
use treering_log::{LogError, LogReader, Record, frame::FRAME_RECORDS_MAX};
use treering_projections::{Projections, ProjectionsError};

/// A stretch of the log.
pub(super) enum LogStretch {
    /// Consecutive records with their offsets; at least one.
    Records(Vec<(u64, Record)>),
    /// An unreadable stretch.
    Lost(UnreadableRange),
}

/// Unreadable offsets, both ends inclusive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UnreadableRange {
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// The fault.
    pub(crate) what: String,
}

/// Reads from an offset that is at most `head`: returns the records there, or the extent of the
/// unreadable stretch.
///
/// # Errors
/// Failures other than damage: I/O errors, and a log of a newer version.
pub(super) async fn stretch(
    reader: &LogReader,
    from: u64,
    head: u64,
    records_max: usize,
    bytes_max: usize,
) -> Result<LogStretch, LogError> {
    let rest = usize::try_from(head - from + 1).unwrap_or(usize::MAX);
    let mut wanted = rest.min(records_max);
    let what = loop {
        match reader.records_once(from, wanted, bytes_max).await {
            Ok(records) if !records.is_empty() => return Ok(LogStretch::Records(records)),
            Ok(_) => break format!("the log ends here, but its head is {head}"),
            Err(LogError::NotFound { .. }) => break "the record is missing".to_owned(),
            // First return the records before the damage.
            Err(LogError::Damaged { offset, what }) => {
                let before = usize::try_from(offset.saturating_sub(from)).unwrap_or(usize::MAX);
                if before == 0 || before >= wanted {
                    break what;
                }
                wanted = before;
            }
            Err(error) => return Err(error),
        }
    };
    let next = readable_after(reader, from, head).await?;
    Ok(LogStretch::Lost(UnreadableRange {
        first: from,
        last: next - 1,
        what,
    }))
}

/// Returns the first readable offset after a lost one; `head + 1` if there is none.
async fn readable_after(reader: &LogReader, lost: u64, head: u64) -> Result<u64, LogError> {
    // The next frame begins at most this far away, so one lost frame never hides another.
    let near = head.min(lost.saturating_add(FRAME_RECORDS_MAX));
    for offset in lost + 1..=near {
        if can_read(reader, offset).await? {
            return Ok(offset);
        }
    }
    // More than one frame is lost: a part of the file, or all of it. Find the end of the loss by
    // exponential, then binary search.
    let (mut low, mut step) = (near, FRAME_RECORDS_MAX);
    let mut high = loop {
        if low >= head {
            return Ok(head + 1);
        }
        let offset = head.min(low.saturating_add(step));
        if can_read(reader, offset).await? {
            break offset;
        }
        (low, step) = (offset, step.saturating_mul(2));
    };
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if can_read(reader, middle).await? {
            high = middle;
        } else {
            low = middle;
        }
    }
    Ok(high)
}

async fn can_read(reader: &LogReader, offset: u64) -> Result<bool, LogError> {
    match reader.record(offset).await {
        Ok(_) => Ok(true),
        Err(LogError::Damaged { .. } | LogError::NotFound { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The marks of damaged conversations, for reads and for the writer.
#[derive(Debug, Default)]
pub(super) struct QuarantineList {
    any: AtomicBool,
    quarantine: RwLock<HashMap<ConversationKey, Arc<Damage>>>,
}

impl QuarantineList {
    /// Loads the marks from the projections.
    pub(crate) fn of(projections: &Projections) -> Result<Self, ProjectionsError> {
        let quarantine = Self::default();
        quarantine.replace(projections)?;
        Ok(quarantine)
    }

    /// Replaces the marks with those of other projections, and returns their number.
    pub(crate) fn replace(&self, projections: &Projections) -> Result<usize, ProjectionsError> {
        let rows = projections.damaged()?.into_iter();
        let found: HashMap<_, _> = rows
            .filter_map(|row| Some((row.key(), row.damage?)))
            .collect();
        let count = found.len();
        let mut quarantine = self
            .quarantine
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        self.any.store(count > 0, Ordering::Release);
        *quarantine = found;
        Ok(count)
    }

    /// Returns the number of marks.
    pub(crate) fn count(&self) -> u64 {
        let quarantine = self
            .quarantine
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        quarantine.len() as u64
    }

    /// Returns a conversation's mark.
    pub(crate) fn get(&self, id: ConversationKey) -> Option<Arc<Damage>> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let quarantine = self
            .quarantine
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        quarantine.get(&id).cloned()
    }

    /// Returns true when an event cannot be served.
    pub(crate) fn covers(&self, id: ConversationKey, revision: Revision) -> bool {
        self.get(id)
            .is_some_and(|damage| revision >= damage.revision)
    }
}

impl ReadPath {
    /// Fails if `revision` is in the damaged part of a conversation.
    pub(super) fn check_whole(
        &self,
        conversation: ConversationKey,
        revision: Revision,
    ) -> Result<(), ReadError> {
        match self.quarantine.get(conversation) {
            Some(damage) if revision >= damage.revision => Err(ReadError::ConversationDamaged {
                conversation: conversation.id,
                damage,
            }),
            _ => Ok(()),
        }
    }

    /// Checks the whole range of a read: a reader must not mistake the intact part of a
    /// conversation for all of it.
    pub(super) fn check_read_whole(&self, query: &ReadQuery) -> Result<(), ReadError> {
        match &query.source {
            EventSource::Log => Ok(()),
            EventSource::Conversation(id)
            | EventSource::Branch {
                conversation: id, ..
            } => self.check_whole(query.namespace.key(*id), Revision(query.to)),
        }
    }
}
