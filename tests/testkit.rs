//! Runs the log's conformance suite from another crate: only public items are used.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU32, Ordering},
    },
};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;
use treering::{
    domain::ShardId,
    log::{
        AcquiredShard, BlobRef, EncodedFrame, Epoch, EventLog, FrameBatch, LogError, LogIdentity,
        LogStats, MemoryLog, OpenMode, Record, RedbLog, RedbLogOptions, testkit::conformance,
    },
};
use uuid::Uuid;

/// A backend of another crate: a list for each shard.
struct ListLog {
    identity: LogIdentity,
    shards: Mutex<HashMap<ShardId, Shard>>,
}

struct Shard {
    epoch: Epoch,
    frames: Vec<EncodedFrame>,
    blobs: HashMap<u64, Bytes>,
    /// `None`: closed.
    head: watch::Sender<Option<u64>>,
}

impl Default for Shard {
    fn default() -> Self {
        Self {
            epoch: Epoch::default(),
            frames: Vec::new(),
            blobs: HashMap::new(),
            head: watch::channel(Some(0)).0,
        }
    }
}

impl Shard {
    fn head(&self) -> Result<u64, LogError> {
        self.head.borrow().ok_or(LogError::Closed)
    }
}

impl ListLog {
    fn new() -> Self {
        Self {
            identity: LogIdentity {
                store: Uuid::new_v4(),
                timeline: Uuid::new_v4(),
            },
            shards: Mutex::default(),
        }
    }

    fn shards(&self) -> MutexGuard<'_, HashMap<ShardId, Shard>> {
        self.shards.lock().unwrap()
    }
}

#[async_trait]
impl EventLog for ListLog {
    fn identity(&self) -> LogIdentity {
        self.identity
    }

    async fn acquire(&self, shard: ShardId) -> Result<AcquiredShard, LogError> {
        let mut shards = self.shards();
        let shard = shards.entry(shard).or_default();
        let head = shard.head()?;
        shard.epoch = Epoch(shard.epoch.0 + 1);
        let epoch = shard.epoch;
        Ok(AcquiredShard { epoch, head })
    }

    async fn append(
        &self,
        shard: ShardId,
        epoch: Epoch,
        head: u64,
        batch: FrameBatch,
    ) -> Result<u64, LogError> {
        let mut shards = self.shards();
        let list = shards.entry(shard).or_default();
        let actual = list.head()?;
        epoch.check(shard, list.epoch)?;
        if actual != head {
            let expected = head;
            return Err(LogError::HeadMismatch { expected, actual });
        }
        batch.check(head)?;
        let new_head = batch.new_head(head);
        for blob in batch.blobs {
            list.blobs.insert(blob.home_offset, blob.bytes);
        }
        // Rebuilds the frames, as a backend would that reads them from storage.
        let stored = batch.frames.into_iter();
        let stored = stored.map(|at| EncodedFrame::new(at.first_offset, at.count, at.bytes));
        list.frames.extend(stored);
        list.head.send_replace(Some(new_head));
        Ok(new_head)
    }

    async fn read(
        &self,
        shard: ShardId,
        from_offset: u64,
        bytes_max: usize,
    ) -> Result<Vec<EncodedFrame>, LogError> {
        let mut shards = self.shards();
        let list = shards.entry(shard).or_default();
        list.head()?;
        let mut bytes = 0;
        let mut read = Vec::new();
        for frame in &list.frames {
            let is_full = !read.is_empty() && bytes >= bytes_max;
            if frame.last_offset() >= from_offset && !is_full {
                bytes += frame.bytes.len();
                read.push(frame.clone());
            }
        }
        Ok(read)
    }

    async fn next_frame(&self, shard: ShardId, after: u64) -> Result<Option<u64>, LogError> {
        let mut shards = self.shards();
        let list = shards.entry(shard).or_default();
        list.head()?;
        let mut firsts = list.frames.iter().map(|frame| frame.first_offset);
        Ok(firsts.find(|first| *first > after))
    }

    async fn blob(&self, shard: ShardId, blob: &BlobRef) -> Result<Bytes, LogError> {
        let mut shards = self.shards();
        let list = shards.entry(shard).or_default();
        list.head()?;
        let found = list.blobs.get(&blob.home_offset).cloned();
        let is_named = |body: &Bytes| {
            body.len() as u64 == blob.bytes_len && Record::hash_body(body) == blob.hash
        };
        let found = found.filter(is_named);
        found.ok_or_else(|| LogError::damaged(blob.home_offset, "a body is missing"))
    }

    async fn tail(&self, shard: ShardId, after_offset: u64) -> Result<u64, LogError> {
        let mut head = self.shards().entry(shard).or_default().head.subscribe();
        let moved = head.wait_for(|head| head.is_none_or(|head| head > after_offset));
        let head = moved.await.map_err(|_| LogError::Closed)?;
        head.ok_or(LogError::Closed)
    }

    async fn stats(&self, shard: ShardId) -> Result<LogStats, LogError> {
        let mut shards = self.shards();
        let list = shards.entry(shard).or_default();
        list.head()?;
        let bytes = list.frames.iter().map(|frame| frame.bytes.len() as u64);
        Ok(LogStats {
            bytes: bytes.sum(),
            segments: 1,
        })
    }

    async fn close(&self) -> Result<(), LogError> {
        for shard in self.shards().values() {
            shard.head.send_replace(None);
        }
        Ok(())
    }
}

/// Another crate must be able to implement the port with public items only, and to run the suite
/// against it.
#[tokio::test(flavor = "multi_thread")]
async fn external_backend_passes_the_conformance_suite() {
    conformance::run_all(ListLog::new).await;
}

/// The suite defines the port's behaviour. The built-in backends must pass it from outside, too.
#[tokio::test(flavor = "multi_thread")]
async fn built_in_backends_pass_the_conformance_suite() {
    conformance::run_all(MemoryLog::new).await;
    let folder = tempfile::tempdir().unwrap();
    let next = AtomicU32::new(0);
    conformance::run_all(|| {
        let name = next.fetch_add(1, Ordering::Relaxed).to_string();
        RedbLog::open(
            &folder.path().join(name),
            RedbLogOptions::default(),
            OpenMode::Create,
        )
        .unwrap()
    })
    .await;
}
