//! Damage, and how the rest goes on: reading the log past what cannot be read,
//! and which conversations cannot be served to their end.

use std::{
    collections::HashMap,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{
    Inner,
    error::ReadError,
    query::{ReadQuery, Source},
};
use crate::{
    domain::{ConversationId, Damage, Revision},
    log::{LogError, LogReader, Record, frame::FRAME_RECORDS_MAX},
    views::{Views, ViewsError},
};

/// A part of the log, as far as it can be read.
pub(super) enum Stretch {
    /// Records that follow each other, with their offsets; at least one.
    Records(Vec<(u64, Record)>),
    /// Nothing of these can be read.
    Lost(Lost),
}

/// Offsets that cannot be read, both ends inclusive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lost {
    pub first: u64,
    pub last: u64,
    /// What is wrong.
    pub what: String,
}

/// Reads on from an offset that is not beyond `head`: the records there, or how
/// far the log cannot be read.
///
/// # Errors
/// What is no damage: the system's refusals, and a log of a newer version.
pub(super) async fn stretch(
    reader: &LogReader,
    from: u64,
    head: u64,
    records_max: usize,
    bytes_max: usize,
) -> Result<Stretch, LogError> {
    let rest = usize::try_from(head - from + 1).unwrap_or(usize::MAX);
    let mut wanted = rest.min(records_max);
    let what = loop {
        match reader.records_once(from, wanted, bytes_max).await {
            Ok(records) if !records.is_empty() => return Ok(Stretch::Records(records)),
            Ok(_) => break format!("the log ends there, but its head is {head}"),
            Err(LogError::NotFound { .. }) => break "there is no record".to_owned(),
            // What is before the damage comes first.
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
    Ok(Stretch::Lost(Lost {
        first: from,
        last: next - 1,
        what,
    }))
}

/// The first offset after a lost one that can be read; after the head, if none can.
async fn readable_after(reader: &LogReader, lost: u64, head: u64) -> Result<u64, LogError> {
    // The next frame begins at most so far away, so that one lost frame never
    // hides another.
    let near = head.min(lost.saturating_add(FRAME_RECORDS_MAX));
    for offset in lost + 1..=near {
        if can_read(reader, offset).await? {
            return Ok(offset);
        }
    }
    // More than a frame is lost: a part of the file, or all of it. Its end is found
    // by growing steps, and then between the last two.
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

/// The damaged conversations, at hand for every read and for the writer.
#[derive(Debug, Default)]
pub(super) struct Marks {
    any: AtomicBool,
    marks: RwLock<HashMap<ConversationId, Arc<Damage>>>,
}

impl Marks {
    /// Those that views have.
    pub fn of(views: &Views) -> Result<Self, ViewsError> {
        let marks = Self::default();
        marks.replace(views)?;
        Ok(marks)
    }

    /// Takes over those of other views, and says how many there are.
    pub fn replace(&self, views: &Views) -> Result<usize, ViewsError> {
        let rows = views.damaged()?.into_iter();
        let found: HashMap<_, _> = rows.filter_map(|row| Some((row.id, row.damage?))).collect();
        let count = found.len();
        let mut marks = self.marks.write().unwrap_or_else(PoisonError::into_inner);
        self.any.store(count > 0, Ordering::Release);
        *marks = found;
        Ok(count)
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        let marks = self.marks.read().unwrap_or_else(PoisonError::into_inner);
        marks.len() as u64
    }

    /// A conversation's mark.
    pub fn get(&self, id: ConversationId) -> Option<Arc<Damage>> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let marks = self.marks.read().unwrap_or_else(PoisonError::into_inner);
        marks.get(&id).cloned()
    }

    /// True when an event cannot be served.
    pub fn covers(&self, id: ConversationId, revision: Revision) -> bool {
        self.get(id)
            .is_some_and(|damage| revision >= damage.revision)
    }
}

impl Inner {
    /// Refuses what would need a conversation's events from `revision` on, when
    /// they are damaged.
    pub(super) fn check_whole(
        &self,
        conversation: ConversationId,
        revision: Revision,
    ) -> Result<(), ReadError> {
        match self.marks.get(conversation) {
            Some(damage) if revision >= damage.revision => Err(ReadError::ConversationDamaged {
                conversation,
                damage,
            }),
            _ => Ok(()),
        }
    }

    /// The same for all that a read asks for: whoever asks for a conversation to
    /// its end must not take its sound part for all of it.
    pub(super) fn check_read_whole(&self, query: &ReadQuery) -> Result<(), ReadError> {
        match &query.source {
            Source::Log => Ok(()),
            Source::Conversation(id)
            | Source::Branch {
                conversation: id, ..
            } => self.check_whole(*id, Revision(query.to)),
        }
    }
}
