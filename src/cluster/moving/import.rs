//! Moves an embedded store into a cluster.
//!
//! The store's events are distributed to the shards in their order, so each shard gets a fixed
//! sequence of records. The head of a shard therefore tells how much of its sequence is there, which
//! is all that an interrupted import must know to continue.

use std::{collections::HashMap, path::Path, sync::Arc};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use treering_domain::{ContentHash, Namespace, ShardId};
use treering_engine::has_pseudonym_key;
use treering_log::{
    AcquiredShard, BlobRef, Epoch, EventLog, FrameBatch, NewBlob, Record, RecordBody, RedbLog,
    frame,
};
use treering_log_postgres::PostgresLog;

use super::{
    ChainCheck, MoveError, MoveOutcome, MoveStep, check_stopped, heads, of_log, open_cluster,
    open_store,
    placement::{ConversationTrees, Placement},
    shard_streams,
    stream::RecordStream,
    tell,
};

/// Appended once this many bytes wait, in all shards together. A kill loses no more than that.
const WAITING_BYTES_MAX: usize = 8 << 20;
/// Number of appends in flight.
const APPENDS_MAX: usize = 8;
/// Estimated size of a record besides its body, in bytes.
const RECORD_BYTES: usize = 256;

/// Moves the store in `dir` into the cluster in the database of a URL, which must have no events and
/// no live node. The role must own the tables. An interrupted import is continued by the same call.
/// Nothing in the folder changes.
///
/// # Errors
/// [`MoveError`]. Until an import has ended, no node can join.
pub async fn import_store(
    dir: &Path,
    url: &str,
    mut report: impl FnMut(MoveStep) + Send,
) -> Result<MoveOutcome, MoveError> {
    if has_pseudonym_key(dir) {
        return Err(MoveError::Store {
            path: dir.to_owned(),
            what: "it has pseudonyms, which nodes of a cluster do not make: actors and keys would \
                   be stored in plain text from now on"
                .to_owned(),
        });
    }
    let store = open_store(dir).await?;
    let cluster = open_cluster(url).await?;
    check_stopped(&cluster).await?;
    let placement = plan(&store, cluster.shards(), &mut report).await?;
    let mark = mark_of(&store);
    cluster.begin_import(&mark, &placement.moved).await?;
    check_stopped(&cluster).await?;
    let mut target = ClusterTarget::acquire(&cluster).await?;
    let continued_after = target.shards.iter().map(|shard| shard.head).sum();
    copy(&store, &placement, &mut target, &mut report).await?;
    let conversations = compare(&store, &placement, &cluster, &mut report).await?;
    cluster.end_import(&mark).await?;
    cluster.close().await.map_err(of_log("closing the log"))?;
    Ok(MoveOutcome {
        events: store.head(),
        conversations,
        continued_after,
        moved: placement.moved.len() as u64,
    })
}

/// Names a store in its current state. It changes with every append.
fn mark_of(store: &RedbLog) -> String {
    let identity = store.identity();
    format!("{} {} {}", identity.store, identity.timeline, store.head())
}

fn stream_of(store: &Arc<RedbLog>) -> RecordStream {
    RecordStream::new(Arc::clone(store) as _, ShardId::default(), store.head())
}

async fn plan(
    store: &Arc<RedbLog>,
    shards: u32,
    report: &mut impl FnMut(MoveStep),
) -> Result<Placement, MoveError> {
    let mut trees = ConversationTrees::default();
    let mut records = stream_of(store);
    while let Some((offset, record)) = records.next().await? {
        trees.add(&records, &record).await?;
        tell(report, "plan", offset, store.head());
    }
    Ok(trees.placed(shards))
}

async fn copy(
    store: &Arc<RedbLog>,
    placement: &Placement,
    target: &mut ClusterTarget,
    report: &mut impl FnMut(MoveStep),
) -> Result<(), MoveError> {
    let mut records = stream_of(store);
    while let Some((offset, record)) = records.next().await? {
        let shard = placement.shards[&record.header.conversation];
        target.push(shard, &records, record).await?;
        tell(report, "copy", offset, store.head());
    }
    target.flush().await
}

/// Reads both sides again and compares them. Returns the number of conversations.
async fn compare(
    store: &Arc<RedbLog>,
    placement: &Placement,
    cluster: &Arc<PostgresLog>,
    report: &mut impl FnMut(MoveStep),
) -> Result<u64, MoveError> {
    let mut copies = shard_streams(cluster, &heads(cluster).await?);
    let mut check = ChainCheck::default();
    let mut records = stream_of(store);
    while let Some((offset, record)) = records.next().await? {
        let shard = placement.shards[&record.header.conversation];
        let copies = &mut copies[shard.0 as usize];
        let Some((_, copy)) = copies.next().await? else {
            return Err(MoveError::Differs {
                offset,
                what: "it is missing",
            });
        };
        let (one, other) = ((&records, &record), (&*copies, &copy));
        check.compare(offset, one, other).await?;
        tell(report, "compare", offset, store.head());
    }
    for copies in &mut copies {
        if copies.peek().await?.is_some() {
            return Err(MoveError::Cluster {
                what: "the cluster has events that the store does not have".to_owned(),
            });
        }
    }
    Ok(check.chains.len() as u64)
}

/// The shards of the cluster, owned by this process.
struct ClusterTarget {
    log: Arc<PostgresLog>,
    shards: Vec<ShardTarget>,
    waiting_bytes: usize,
}

/// What waits to be appended to a shard.
struct ShardTarget {
    epoch: Epoch,
    head: u64,
    /// Number of records of the shard's sequence that were read so far.
    seen: u64,
    /// Home offsets of large bodies.
    homes: HashMap<(Namespace, ContentHash), u64>,
    records: Vec<Record>,
    blobs: Vec<NewBlob>,
}

impl ClusterTarget {
    async fn acquire(log: &Arc<PostgresLog>) -> Result<Self, MoveError> {
        let mut shards = Vec::new();
        for shard in (0..log.shards()).map(ShardId) {
            let acquired = log.acquire(shard).await;
            shards.push(ShardTarget::new(
                acquired.map_err(of_log("acquiring a shard"))?,
            ));
        }
        Ok(Self {
            log: Arc::clone(log),
            shards,
            waiting_bytes: 0,
        })
    }

    /// Adds the next record of a shard, unless an earlier import has appended it.
    async fn push(
        &mut self,
        shard: ShardId,
        source: &RecordStream,
        mut record: Record,
    ) -> Result<(), MoveError> {
        let target = &mut self.shards[shard.0 as usize];
        target.seen += 1;
        let offset = target.seen;
        let is_there = offset <= target.head;
        if let RecordBody::Blob(blob) = record.body {
            let key = (record.header.namespace.clone(), blob.hash);
            let home_offset = *target.homes.entry(key).or_insert(offset);
            if home_offset == offset && !is_there {
                let bytes = source.body(&record).await?;
                self.waiting_bytes += bytes.len();
                target.keep(&record, offset, bytes);
            }
            record.body = RecordBody::Blob(BlobRef {
                home_offset,
                ..blob
            });
        }
        if is_there {
            return Ok(());
        }
        self.waiting_bytes += RECORD_BYTES + record.body.here().len();
        target.records.push(record);
        if self.waiting_bytes >= WAITING_BYTES_MAX {
            self.flush().await?;
        }
        Ok(())
    }

    /// Appends what waits.
    async fn flush(&mut self) -> Result<(), MoveError> {
        self.waiting_bytes = 0;
        let log = &self.log;
        let shards = self.shards.iter_mut().zip((0..).map(ShardId));
        let appends = shards
            .filter(|(target, _)| !target.records.is_empty())
            .map(|(target, shard)| target.append(log, shard));
        stream::iter(appends)
            .buffer_unordered(APPENDS_MAX)
            .try_collect()
            .await
    }
}

impl ShardTarget {
    fn new(acquired: AcquiredShard) -> Self {
        Self {
            epoch: acquired.epoch,
            head: acquired.head,
            seen: 0,
            homes: HashMap::new(),
            records: Vec::new(),
            blobs: Vec::new(),
        }
    }

    /// Stores a large body with its first record.
    fn keep(&mut self, record: &Record, home_offset: u64, bytes: Bytes) {
        self.blobs.push(NewBlob {
            namespace: record.header.namespace.clone(),
            hash: Record::hash_body(&bytes),
            home_offset,
            bytes,
            patch: None,
        });
    }

    async fn append(&mut self, log: &PostgresLog, shard: ShardId) -> Result<(), MoveError> {
        let failed = of_log("appending to the cluster; run the import again to continue it");
        let records = std::mem::take(&mut self.records);
        let batch = FrameBatch {
            frames: frame::encode_group(self.head + 1, &records).map_err(&failed)?,
            blobs: std::mem::take(&mut self.blobs),
        };
        let appended = log.append(shard, self.epoch, self.head, batch);
        self.head = appended.await.map_err(failed)?;
        Ok(())
    }
}
