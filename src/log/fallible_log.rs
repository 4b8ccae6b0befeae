//! An in-memory log for tests. On demand it fails, is slow, or loses the answer to an append.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;

use super::{
    memory::MemoryLog,
    port::{AcquiredShard, EncodedFrame, Epoch, EventLog, FrameBatch, LogError, LogStats},
    record::BlobRef,
};
use treering_domain::ShardId;

/// How an append ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendEnding {
    /// Not appended: the disk is full.
    NoSpace,
    /// Appended, but the answer is lost.
    LostAnswer,
    /// Not appended, and the answer is lost.
    NeverArrived,
}

/// An in-memory log that fails on demand.
#[derive(Default)]
pub struct FallibleLog {
    /// The underlying log.
    pub inner: MemoryLog,
    outcomes: Mutex<VecDeque<AppendEnding>>,
    /// How long each append takes, in microseconds.
    pub append_micros: AtomicU64,
    /// Number of appends.
    pub appends: AtomicUsize,
    /// While set, `acquire` fails.
    pub deaf: AtomicBool,
    /// While set, every read reports damage.
    pub damaged: AtomicBool,
    /// Total bytes that reads have requested.
    pub read_bytes: AtomicUsize,
}

impl FallibleLog {
    /// Adds an ending to the queue: each append takes the first one.
    pub fn next_ends(&self, outcome: AppendEnding) {
        self.outcomes().push_back(outcome);
    }

    fn outcomes(&self) -> MutexGuard<'_, VecDeque<AppendEnding>> {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl EventLog for FallibleLog {
    fn identity(&self) -> crate::LogIdentity {
        self.inner.identity()
    }

    async fn next_frame(&self, shard: ShardId, after: u64) -> Result<Option<u64>, LogError> {
        self.inner.next_frame(shard, after).await
    }

    async fn acquire(&self, shard: ShardId) -> Result<AcquiredShard, LogError> {
        if self.deaf.load(Ordering::SeqCst) {
            let error = std::io::Error::other("the disk does not answer");
            return Err(LogError::from_io("asking for the head", error));
        }
        self.inner.acquire(shard).await
    }

    async fn append(
        &self,
        shard: ShardId,
        epoch: Epoch,
        head: u64,
        batch: FrameBatch,
    ) -> Result<u64, LogError> {
        self.appends.fetch_add(1, Ordering::SeqCst);
        thread::sleep(Duration::from_micros(
            self.append_micros.load(Ordering::SeqCst),
        ));
        let unknown = LogError::UnknownOutcome {
            head,
            what: "the line broke".to_owned(),
        };
        let outcome = self.outcomes().pop_front();
        match outcome {
            None => self.inner.append(shard, epoch, head, batch).await,
            Some(AppendEnding::NoSpace) => Err(LogError::NoSpace { doing: "testing" }),
            Some(AppendEnding::NeverArrived) => Err(unknown),
            Some(AppendEnding::LostAnswer) => {
                self.inner.append(shard, epoch, head, batch).await?;
                Err(unknown)
            }
        }
    }

    async fn read(
        &self,
        shard: ShardId,
        from_offset: u64,
        bytes_max: usize,
    ) -> Result<Vec<EncodedFrame>, LogError> {
        self.read_bytes.fetch_add(bytes_max, Ordering::SeqCst);
        if self.damaged.load(Ordering::SeqCst) {
            return Err(LogError::damaged(from_offset, "as told"));
        }
        self.inner.read(shard, from_offset, bytes_max).await
    }

    async fn blob(&self, shard: ShardId, blob: &BlobRef) -> Result<Bytes, LogError> {
        self.inner.blob(shard, blob).await
    }

    async fn tail(&self, shard: ShardId, after_offset: u64) -> Result<u64, LogError> {
        self.inner.tail(shard, after_offset).await
    }

    async fn stats(&self, shard: ShardId) -> Result<LogStats, LogError> {
        self.inner.stats(shard).await
    }

    async fn close(&self) -> Result<(), LogError> {
        self.inner.close().await
    }
}
