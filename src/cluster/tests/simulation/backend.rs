//! The database as one process reaches it: by statements that are executed later, whose answers
//! come later still, or never.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::{
    sync::oneshot,
    time::{sleep, timeout},
};
use treering_domain::ShardId;
use treering_log::{
    AcquiredShard, BlobRef, EncodedFrame, Epoch, EventLog, FrameBatch, LogError, LogIdentity,
    LogStats,
};
use uuid::Uuid;

use super::{
    LEASE,
    database::{Database, SHARDS},
    process::{Outbox, Outgoing},
};
use crate::{ClusterView, Ownership, OwnershipError};

/// Delivers the answer of a statement.
pub(super) type Answer = Box<dyn FnOnce() + Send>;

/// A statement on its way to the database. Executing it gives its answer.
pub(super) type Statement = Box<dyn FnOnce(&mut Database) -> Answer + Send>;

/// The table of owners and the log for one process.
pub(super) struct Backend {
    process: Uuid,
    outbox: Outbox,
    /// The highest epoch of each shard that this process knows to be its own.
    epochs: Mutex<BTreeMap<ShardId, Epoch>>,
}

/// No answer came.
struct Lost;

impl From<Lost> for OwnershipError {
    fn from(_: Lost) -> Self {
        Self {
            what: "no answer".to_owned(),
            is_transient: true,
        }
    }
}

impl From<Lost> for LogError {
    fn from(_: Lost) -> Self {
        Self::Io {
            doing: "asking the simulated database",
            source: Arc::new(io::Error::other("no answer")),
        }
    }
}

impl Backend {
    pub(super) fn new(process: Uuid, outbox: Outbox) -> Self {
        Self {
            process,
            outbox,
            epochs: Mutex::default(),
        }
    }

    /// Has a statement executed. Like the real log, it waits for the answer up to a deadline.
    async fn ask<T: Send + 'static>(
        &self,
        name: &'static str,
        statement: impl FnOnce(&mut Database) -> T + Send + 'static,
    ) -> Result<T, Lost> {
        let (sender, answer) = oneshot::channel();
        let statement: Statement = Box::new(|database| {
            let result = statement(database);
            // The process may have died, or given up.
            Box::new(|| drop(sender.send(result)))
        });
        self.outbox.put(Outgoing::Statement { name, statement });
        let answer = timeout(LEASE, answer).await;
        answer.map_err(|_| Lost)?.map_err(|_| Lost)
    }

    fn note_epoch(&self, shard: ShardId, epoch: Epoch) {
        let mut epochs = self.epochs.lock().unwrap_or_else(PoisonError::into_inner);
        let known = epochs.entry(shard).or_default();
        *known = epoch.max(*known);
    }

    fn epoch(&self, shard: ShardId) -> Epoch {
        let epochs = self.epochs.lock().unwrap_or_else(PoisonError::into_inner);
        epochs.get(&shard).copied().unwrap_or_default()
    }
}

#[async_trait]
impl Ownership for Backend {
    fn process(&self) -> Uuid {
        self.process
    }

    fn shards(&self) -> u32 {
        SHARDS
    }

    async fn join(
        &self,
        node: &str,
        address: &str,
        lease: Duration,
    ) -> Result<bool, OwnershipError> {
        let (process, node, address) = (self.process, node.to_owned(), address.to_owned());
        let joined = self.ask("join", move |database| {
            database.join(process, &node, address, lease)
        });
        Ok(joined.await?)
    }

    async fn heartbeat(
        &self,
        node: &str,
        draining: bool,
        followed: &[(ShardId, u64)],
    ) -> Result<bool, OwnershipError> {
        let (process, node, followed) = (self.process, node.to_owned(), followed.to_vec());
        let beat = self.ask("heartbeat", move |database| {
            database.heartbeat(process, &node, draining, followed)
        });
        Ok(beat.await?)
    }

    async fn leave(&self, node: &str) -> Result<(), OwnershipError> {
        let (process, node) = (self.process, node.to_owned());
        let left = self.ask("leave", move |database| database.leave(process, &node));
        Ok(left.await?)
    }

    async fn view(&self) -> Result<ClusterView, OwnershipError> {
        Ok(self.ask("view", |database| database.view()).await?)
    }

    async fn claim(&self, shard: ShardId) -> Result<bool, OwnershipError> {
        let process = self.process;
        let claim = self.ask("claim", move |database| database.claim(process, shard));
        let epoch = claim.await?;
        epoch
            .into_iter()
            .for_each(|epoch| self.note_epoch(shard, epoch));
        Ok(epoch.is_some())
    }

    async fn release(&self, shard: ShardId) -> Result<(), OwnershipError> {
        let (process, epoch) = (self.process, self.epoch(shard));
        let release = self.ask("release", move |database| {
            database.release(process, shard, epoch);
        });
        Ok(release.await?)
    }
}

#[async_trait]
impl EventLog for Backend {
    fn identity(&self) -> LogIdentity {
        LogIdentity {
            store: Uuid::nil(),
            timeline: Uuid::nil(),
        }
    }

    async fn acquire(&self, shard: ShardId) -> Result<AcquiredShard, LogError> {
        let process = self.process;
        let acquired = self.ask("acquire", move |database| database.acquire(process, shard));
        let acquired = acquired.await??;
        self.note_epoch(shard, acquired.epoch);
        Ok(acquired)
    }

    async fn append(
        &self,
        shard: ShardId,
        epoch: Epoch,
        head: u64,
        batch: FrameBatch,
    ) -> Result<u64, LogError> {
        let appended = self.ask("append", move |database| {
            database.append(shard, epoch, head, batch)
        });
        appended.await.unwrap_or_else(|Lost| {
            let what = "no answer".to_owned();
            Err(LogError::UnknownOutcome { head, what })
        })
    }

    async fn read(
        &self,
        shard: ShardId,
        from_offset: u64,
        bytes_max: usize,
    ) -> Result<Vec<EncodedFrame>, LogError> {
        let read = self.ask("read", move |database| {
            database.read(shard, from_offset, bytes_max)
        });
        read.await?
    }

    async fn next_frame(&self, _: ShardId, _: u64) -> Result<Option<u64>, LogError> {
        Ok(None)
    }

    async fn blob(&self, _: ShardId, blob: &BlobRef) -> Result<Bytes, LogError> {
        let offset = blob.home_offset;
        Err(LogError::NotFound { offset })
    }

    async fn tail(&self, shard: ShardId, after_offset: u64) -> Result<u64, LogError> {
        loop {
            let head = self
                .ask("tail", move |database| database.head(shard))
                .await?;
            if head > after_offset {
                return Ok(head);
            }
            sleep(LEASE / 4).await;
        }
    }

    async fn stats(&self, _: ShardId) -> Result<LogStats, LogError> {
        Ok(LogStats::default())
    }

    async fn close(&self) -> Result<(), LogError> {
        Ok(())
    }
}
