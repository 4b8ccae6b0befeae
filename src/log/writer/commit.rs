//! One group: decided, encoded, appended, or rolled back.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use futures::{channel::oneshot, executor::block_on};

use super::{CommittedGroup, Sequencer, WriterLimits, queue::Waiting};
use crate::{
    domain::ShardId,
    log::{
        frame,
        port::{Epoch, EventLog, FrameBatch, LogError, NewBlob},
        record::Record,
    },
};

/// How often, and how far apart, the head is asked for when an append's outcome
/// is not known.
const ASK_AGAIN: [Duration; 6] = [
    Duration::ZERO,
    Duration::from_millis(10),
    Duration::from_millis(50),
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_secs(1),
];

pub(super) struct Owner {
    pub(super) shard: ShardId,
    pub(super) epoch: Epoch,
    pub(super) head: u64,
}

/// What became of some requests.
pub(super) struct Done<A> {
    pub(super) group: Option<Arc<CommittedGroup>>,
    pub(super) answers: Vec<(oneshot::Sender<A>, A)>,
    pub(super) requests: usize,
    pub(super) bytes: usize,
}

/// Refuses what waits, without deciding it.
pub(super) fn refuse_all<S: Sequencer>(
    sequencer: &S,
    ready: &mut VecDeque<Waiting<S>>,
    error: &LogError,
) -> Done<S::Answer> {
    let mut done = Done {
        group: None,
        answers: Vec::with_capacity(ready.len()),
        requests: ready.len(),
        bytes: 0,
    };
    for waiting in ready.drain(..) {
        done.bytes += waiting.bytes;
        done.answers
            .push((waiting.answer, sequencer.failure(error)));
    }
    done
}

pub(super) struct Committer {
    log: Arc<dyn EventLog>,
    owner: Owner,
    /// Set when this writer can never append again.
    dead: Option<LogError>,
}

/// A group on its way.
struct Group<A> {
    records: Vec<Record>,
    blobs: Vec<NewBlob>,
    answers: Vec<(oneshot::Sender<A>, A)>,
    bytes: usize,
}

impl Committer {
    pub(super) fn new(log: Arc<dyn EventLog>, owner: Owner) -> Self {
        Self {
            log,
            owner,
            dead: None,
        }
    }

    /// Takes one group from what is ready and commits it.
    pub(super) fn run<S: Sequencer>(
        &mut self,
        sequencer: &mut S,
        ready: &mut VecDeque<Waiting<S>>,
        limits: &WriterLimits,
    ) -> Done<S::Answer> {
        if let Some(error) = &self.dead {
            return refuse_all(sequencer, ready, error);
        }
        let mut group = self.stage(sequencer, ready, limits);
        let requests = group.answers.len();
        let first_offset = self.owner.head + 1;
        let blobs = std::mem::take(&mut group.blobs);
        let committed = if group.records.is_empty() {
            None
        } else {
            match self.append(first_offset, &group.records, blobs) {
                Ok(()) => {
                    let committed = Arc::new(CommittedGroup {
                        first_offset,
                        records: group.records,
                    });
                    sequencer.committed(&committed);
                    Some(committed)
                }
                Err(error) => {
                    tracing::warn!(%error, requests, "a group was not appended");
                    sequencer.aborted(&error);
                    for (_, answer) in &mut group.answers {
                        *answer = sequencer.failure(&error);
                    }
                    None
                }
            }
        };
        Done {
            group: committed,
            answers: group.answers,
            requests,
            bytes: group.bytes,
        }
    }

    fn stage<S: Sequencer>(
        &self,
        sequencer: &mut S,
        ready: &mut VecDeque<Waiting<S>>,
        limits: &WriterLimits,
    ) -> Group<S::Answer> {
        let mut group = Group {
            records: Vec::new(),
            blobs: Vec::new(),
            answers: Vec::new(),
            bytes: 0,
        };
        while group.records.len() < limits.group_records_max && group.bytes < limits.group_bytes_max
        {
            let Some(waiting) = ready.pop_front() else {
                break;
            };
            let next_offset = self.owner.head + 1 + group.records.len() as u64;
            let staged = sequencer.stage(next_offset, waiting.request);
            group.records.extend(staged.records);
            group.blobs.extend(staged.blobs);
            group.answers.push((waiting.answer, staged.answer));
            group.bytes += waiting.bytes;
        }
        group
    }

    fn append(
        &mut self,
        first_offset: u64,
        records: &[Record],
        blobs: Vec<NewBlob>,
    ) -> Result<(), LogError> {
        let batch = FrameBatch {
            frames: frame::encode_group(first_offset, records)?,
            blobs,
        };
        let Owner { shard, epoch, head } = self.owner;
        let wanted = batch.new_head(head);
        match block_on(self.log.append(shard, epoch, head, batch)) {
            Ok(new_head) => {
                self.owner.head = new_head;
                Ok(())
            }
            Err(error @ LogError::UnknownOutcome { .. }) => self.find_out(head, wanted, error),
            Err(error) => {
                // Another owner decides the order now; this one must not go on.
                if matches!(
                    error,
                    LogError::NotOwner { .. } | LogError::HeadMismatch { .. } | LogError::Closed
                ) {
                    self.dead = Some(error.clone());
                }
                Err(error)
            }
        }
    }

    /// Asks where the head is now: at `wanted` the group is there, at `head` it
    /// is not, elsewhere someone else has written.
    fn find_out(&mut self, head: u64, wanted: u64, unknown: LogError) -> Result<(), LogError> {
        for pause in ASK_AGAIN {
            std::thread::sleep(pause);
            let Ok(acquired) = block_on(self.log.acquire(self.owner.shard)) else {
                continue;
            };
            self.owner.epoch = acquired.epoch;
            self.owner.head = acquired.head;
            if acquired.head == wanted {
                return Ok(());
            }
            if acquired.head == head {
                return Err(LogError::Io {
                    doing: "appending a group, which turned out not to be there",
                    source: Arc::new(std::io::Error::other(unknown)),
                });
            }
            let error = LogError::HeadMismatch {
                expected: head,
                actual: acquired.head,
            };
            self.dead = Some(error.clone());
            return Err(error);
        }
        self.dead = Some(unknown.clone());
        Err(unknown)
    }
}
