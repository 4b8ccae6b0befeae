//! A log that notes when this process turned out not to own a shard.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::Notify;
use treering_domain::ShardId;
use treering_log::{
    AcquiredShard, BlobRef, EncodedFrame, Epoch, ErasableLog, EventLog, FrameBatch, LogError,
    LogIdentity, LogStats,
};
use uuid::Uuid;

/// The log of one shard's engine.
pub(crate) struct WatchedLog {
    pub(crate) log: Arc<dyn EventLog>,
    /// Set when an append was refused because another owner decides the order now. The engine then
    /// accepts no more appends.
    pub(crate) lost: AtomicBool,
    /// The epoch in which the shard was acquired last.
    pub(crate) epoch: AtomicU64,
    /// Notified when `lost` is set.
    pub(crate) wake: Arc<Notify>,
}

impl WatchedLog {
    fn watch<T>(&self, done: Result<T, LogError>) -> Result<T, LogError> {
        if let Err(LogError::NotOwner { .. } | LogError::HeadMismatch { .. }) = &done {
            self.lost.store(true, Ordering::Release);
            self.wake.notify_one();
        }
        done
    }
}

#[async_trait]
impl EventLog for WatchedLog {
    fn identity(&self) -> LogIdentity {
        self.log.identity()
    }

    fn knows_timeline(&self, timeline: Uuid) -> bool {
        self.log.knows_timeline(timeline)
    }

    async fn acquire(&self, shard: ShardId) -> Result<AcquiredShard, LogError> {
        let acquired = self.watch(self.log.acquire(shard).await)?;
        self.epoch.store(acquired.epoch.0, Ordering::Release);
        Ok(acquired)
    }

    async fn append(
        &self,
        shard: ShardId,
        epoch: Epoch,
        head: u64,
        batch: FrameBatch,
    ) -> Result<u64, LogError> {
        self.watch(self.log.append(shard, epoch, head, batch).await)
    }

    async fn read(
        &self,
        shard: ShardId,
        from_offset: u64,
        bytes_max: usize,
    ) -> Result<Vec<EncodedFrame>, LogError> {
        self.log.read(shard, from_offset, bytes_max).await
    }

    async fn next_frame(&self, shard: ShardId, after_offset: u64) -> Result<Option<u64>, LogError> {
        self.log.next_frame(shard, after_offset).await
    }

    async fn blob(&self, shard: ShardId, blob: &BlobRef) -> Result<Bytes, LogError> {
        self.log.blob(shard, blob).await
    }

    async fn tail(&self, shard: ShardId, after_offset: u64) -> Result<u64, LogError> {
        self.log.tail(shard, after_offset).await
    }

    async fn stats(&self, shard: ShardId) -> Result<LogStats, LogError> {
        self.log.stats(shard).await
    }

    /// Its errors are not watched: the next append or view tells of another owner.
    fn erasable(self: Arc<Self>, shard: ShardId, epoch: Epoch) -> Option<Arc<dyn ErasableLog>> {
        Arc::clone(&self.log).erasable(shard, epoch)
    }

    async fn close(&self) -> Result<(), LogError> {
        self.log.close().await
    }
}
