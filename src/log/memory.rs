//! The in-memory log, for tests and for builds without a durable backend.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;
use uuid::Uuid;

use super::{
    erasure::{ErasableLog, Erasure, ErasureProgress, ScrubOutcome, ScrubReport},
    port::{
        AcquiredShard, EncodedFrame, Epoch, EventLog, FrameBatch, LogError, LogIdentity, LogStats,
    },
    record::{BlobRef, Record},
};
use treering_domain::ShardId;

/// A log that is lost when it is dropped.
#[derive(Debug)]
pub struct MemoryLog {
    identity: LogIdentity,
    shards: Mutex<HashMap<ShardId, Shard>>,
}

impl Default for MemoryLog {
    fn default() -> Self {
        Self {
            identity: LogIdentity {
                store: Uuid::new_v4(),
                timeline: Uuid::new_v4(),
            },
            shards: Mutex::default(),
        }
    }
}

#[derive(Debug)]
struct Shard {
    epoch: Epoch,
    frames: BTreeMap<u64, EncodedFrame>,
    /// Large bodies by home offset.
    blobs: HashMap<u64, Bytes>,
    bytes: u64,
    head: watch::Sender<Head>,
    erasures: ErasureProgress,
}

/// The state on which `tail` waits.
#[derive(Clone, Copy, Debug, Default)]
struct Head {
    offset: u64,
    closed: bool,
}

impl Default for Shard {
    fn default() -> Self {
        Self {
            epoch: Epoch::default(),
            frames: BTreeMap::new(),
            blobs: HashMap::new(),
            bytes: 0,
            head: watch::channel(Head::default()).0,
            erasures: ErasureProgress::default(),
        }
    }
}

impl Shard {
    fn open(&self) -> Result<u64, LogError> {
        let head = *self.head.borrow();
        if head.closed {
            return Err(LogError::Closed);
        }
        Ok(head.offset)
    }
}

impl MemoryLog {
    /// Creates an empty log.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn shards(&self) -> MutexGuard<'_, HashMap<ShardId, Shard>> {
        // No critical section can panic halfway through a change, so a poisoned lock is still
        // consistent.
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl EventLog for MemoryLog {
    fn identity(&self) -> LogIdentity {
        self.identity
    }

    async fn next_frame(&self, shard: ShardId, after_offset: u64) -> Result<Option<u64>, LogError> {
        let mut shards = self.shards();
        let state = shards.entry(shard).or_default();
        state.open()?;
        let next = state.frames.range(after_offset.saturating_add(1)..).next();
        Ok(next.map(|(first, _)| *first))
    }

    async fn acquire(&self, shard: ShardId) -> Result<AcquiredShard, LogError> {
        let mut shards = self.shards();
        let state = shards.entry(shard).or_default();
        let head = state.open()?;
        state.epoch.0 += 1;
        Ok(AcquiredShard {
            epoch: state.epoch,
            head,
        })
    }

    async fn append(
        &self,
        shard: ShardId,
        epoch: Epoch,
        head: u64,
        batch: FrameBatch,
    ) -> Result<u64, LogError> {
        let mut shards = self.shards();
        let state = shards.entry(shard).or_default();
        let actual = state.open()?;
        epoch.check(shard, state.epoch)?;
        if actual != head {
            return Err(LogError::HeadMismatch {
                expected: head,
                actual,
            });
        }
        batch.check(head)?;
        let new_head = batch.new_head(head);
        for blob in batch.blobs {
            state.bytes += blob.bytes.len() as u64;
            state.blobs.insert(blob.home_offset, blob.bytes);
        }
        for frame in batch.frames {
            state.bytes += frame.bytes.len() as u64;
            state.frames.insert(frame.first_offset, frame);
        }
        state.head.send_modify(|head| head.offset = new_head);
        Ok(new_head)
    }

    async fn read(
        &self,
        shard: ShardId,
        from_offset: u64,
        bytes_max: usize,
    ) -> Result<Vec<EncodedFrame>, LogError> {
        let mut shards = self.shards();
        let state = shards.entry(shard).or_default();
        if from_offset > state.open()? {
            return Ok(Vec::new());
        }
        let first = state
            .frames
            .range(..=from_offset)
            .next_back()
            .map_or(0, |(first, _)| *first);
        let mut bytes = 0;
        Ok(state
            .frames
            .range(first..)
            .map(|(_, frame)| frame.clone())
            .take_while(|frame| {
                let take = bytes < bytes_max.max(1);
                bytes += frame.bytes.len();
                take
            })
            .collect())
    }

    async fn blob(&self, shard: ShardId, blob: &BlobRef) -> Result<Bytes, LogError> {
        let mut shards = self.shards();
        let state = shards.entry(shard).or_default();
        state.open()?;
        state
            .blobs
            .get(&blob.home_offset)
            .filter(|bytes| bytes.len() as u64 == blob.bytes_len)
            .filter(|bytes| Record::hash_body(bytes) == blob.hash)
            .cloned()
            .ok_or_else(|| {
                LogError::damaged(blob.home_offset, "large body does not match its hash")
            })
    }

    async fn tail(&self, shard: ShardId, after_offset: u64) -> Result<u64, LogError> {
        let mut head = self.shards().entry(shard).or_default().head.subscribe();
        let reached = head
            .wait_for(|head| head.closed || head.offset > after_offset)
            .await
            .map_err(|_| LogError::Closed)?;
        if reached.closed {
            return Err(LogError::Closed);
        }
        Ok(reached.offset)
    }

    async fn stats(&self, shard: ShardId) -> Result<LogStats, LogError> {
        let mut shards = self.shards();
        let state = shards.entry(shard).or_default();
        state.open()?;
        Ok(LogStats {
            bytes: state.bytes,
            segments: u64::from(!state.frames.is_empty()),
        })
    }

    fn erasable(self: Arc<Self>, shard: ShardId, epoch: Epoch) -> Option<Arc<dyn ErasableLog>> {
        Some(Arc::new(OwnedShard {
            log: self,
            shard,
            epoch,
        }))
    }

    async fn close(&self) -> Result<(), LogError> {
        for state in self.shards().values() {
            state.head.send_modify(|head| head.closed = true);
        }
        Ok(())
    }
}

/// A shard, as its owner of one epoch may erase from it.
struct OwnedShard {
    log: Arc<MemoryLog>,
    shard: ShardId,
    epoch: Epoch,
}

impl OwnedShard {
    fn change<T>(
        &self,
        change: impl FnOnce(&mut Shard) -> Result<T, LogError>,
    ) -> Result<T, LogError> {
        let mut shards = self.log.shards();
        let state = shards.entry(self.shard).or_default();
        state.open()?;
        self.epoch.check(self.shard, state.epoch)?;
        change(state)
    }
}

#[async_trait]
impl ErasableLog for OwnedShard {
    async fn progress(&self) -> Result<ErasureProgress, LogError> {
        let mut shards = self.log.shards();
        let state = shards.entry(self.shard).or_default();
        state.open()?;
        Ok(state.erasures)
    }

    async fn mark_begun(self: Arc<Self>) -> Result<(), LogError> {
        self.change(|state| {
            let next = state.open()? + 1;
            state.erasures.erasing.get_or_insert(next);
            Ok(())
        })
    }

    async fn remove(
        self: Arc<Self>,
        erasure: Arc<Erasure>,
        mut report: ScrubReport,
    ) -> Result<ScrubOutcome, LogError> {
        self.change(|state| {
            let mut done = ScrubOutcome::default();
            for frame in state.frames.values_mut() {
                if let Some(replacement) = erasure.replacement(frame)? {
                    *frame = replacement.frame;
                    done.segments += 1;
                }
            }
            state.blobs.retain(|home, _| !erasure.blobs.contains(home));
            report(done.segments, done.segments);
            Ok(done)
        })
    }

    async fn mark_done(self: Arc<Self>, offset: u64) -> Result<(), LogError> {
        self.change(|state| {
            let erasures = &mut state.erasures;
            erasures.erased = erasures.erased.max(offset);
            erasures.erasing = None;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::conformance;

    #[tokio::test(flavor = "multi_thread")]
    async fn memory_log_passes_the_conformance_suite() {
        // The suite defines the port; all backends must pass it.
        conformance::run_all(MemoryLog::new).await;
        conformance::run_erasing(MemoryLog::new).await;
        conformance::an_earlier_owner_cannot_erase(MemoryLog::new()).await;
    }
}
