//! One shard of a log, as the log of one engine.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use uuid::{Builder, Uuid};

use treering_domain::ShardId;
use treering_log::{
    AcquiredShard, BlobRef, EncodedFrame, Epoch, ErasableLog, EventLog, FolderLock, FrameBatch,
    LogError, LogIdentity, LogStats,
};

/// A log with an identity of its own for the shard, so that derived files of another shard are
/// recognised as foreign. Closing it does not close the log, which other shards use.
pub(super) struct ShardLog {
    log: Arc<dyn EventLog>,
    store: Uuid,
    /// The lock of the folder with what is derived from the shard; `None` once closed.
    lock: Mutex<Option<FolderLock>>,
}

impl ShardLog {
    pub(super) fn new(log: Arc<dyn EventLog>, shard: ShardId, lock: FolderLock) -> Self {
        Self {
            store: store_of(log.identity().store, shard),
            log,
            lock: Mutex::new(Some(lock)),
        }
    }

    fn open(&self) -> Result<&dyn EventLog, LogError> {
        match &*self.lock() {
            Some(_) => Ok(&*self.log),
            None => Err(LogError::Closed),
        }
    }

    /// Restores the folder's lock file if it was deleted. Returns false if another process has the
    /// folder, or another folder is at its path.
    pub(super) fn keep_lock(&self) -> bool {
        let mut lock = self.lock();
        lock.as_mut().is_none_or(|lock| lock.check().is_ok())
    }

    fn lock(&self) -> MutexGuard<'_, Option<FolderLock>> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the id of a shard's store.
fn store_of(log: Uuid, shard: ShardId) -> Uuid {
    let mut hasher = blake3::Hasher::new_derive_key("treering shard of a log v1");
    hasher.update(log.as_bytes()).update(&shard.0.to_le_bytes());
    let mut bytes = [0; 16];
    hasher.finalize_xof().fill(&mut bytes);
    Builder::from_custom_bytes(bytes).into_uuid()
}

#[async_trait]
impl EventLog for ShardLog {
    fn identity(&self) -> LogIdentity {
        LogIdentity {
            store: self.store,
            ..self.log.identity()
        }
    }

    fn knows_timeline(&self, timeline: Uuid) -> bool {
        self.log.knows_timeline(timeline)
    }

    async fn acquire(&self, shard: ShardId) -> Result<AcquiredShard, LogError> {
        self.open()?.acquire(shard).await
    }

    async fn append(
        &self,
        shard: ShardId,
        epoch: Epoch,
        head: u64,
        batch: FrameBatch,
    ) -> Result<u64, LogError> {
        self.open()?.append(shard, epoch, head, batch).await
    }

    async fn read(
        &self,
        shard: ShardId,
        from_offset: u64,
        bytes_max: usize,
    ) -> Result<Vec<EncodedFrame>, LogError> {
        self.open()?.read(shard, from_offset, bytes_max).await
    }

    async fn next_frame(&self, shard: ShardId, after_offset: u64) -> Result<Option<u64>, LogError> {
        self.open()?.next_frame(shard, after_offset).await
    }

    async fn blob(&self, shard: ShardId, blob: &BlobRef) -> Result<Bytes, LogError> {
        self.open()?.blob(shard, blob).await
    }

    async fn tail(&self, shard: ShardId, after_offset: u64) -> Result<u64, LogError> {
        self.open()?.tail(shard, after_offset).await
    }

    async fn stats(&self, shard: ShardId) -> Result<LogStats, LogError> {
        self.open()?.stats(shard).await
    }

    fn erasable(self: Arc<Self>, shard: ShardId, epoch: Epoch) -> Option<Arc<dyn ErasableLog>> {
        Arc::clone(&self.log).erasable(shard, epoch)
    }

    async fn close(&self) -> Result<(), LogError> {
        self.lock().take();
        Ok(())
    }
}
