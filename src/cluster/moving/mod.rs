//! Moves whole stores: an embedded store into a cluster, and a cluster into an embedded store.
//!
//! Records are moved as they are: header, body, idempotency key, salts, hashes. Only the log position
//! of an event changes. No node may run meanwhile. The importer acquires each shard, so the epoch
//! fences off whoever owned it before.
//!
//! Each move ends with a second pass that reads both sides again, and compares every record and its
//! chain.

mod export;
mod import;
mod placement;
mod stream;
mod verify;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use treering_domain::{ContentHash, ConversationKey, Revision, ShardId};
use treering_log::{ErasableLog, LogError, OpenMode, Record, RedbLog, RedbLogOptions};
use treering_log_postgres::{PostgresError, PostgresLog, PostgresLogOptions};

pub use export::export_store;
pub use import::import_store;
pub use verify::{ClusterDamage, ClusterVerification, verify_cluster};

use stream::RecordStream;

/// How long the database may take for one statement of a move.
const DEADLINE: std::time::Duration = std::time::Duration::from_secs(60);

/// What is being done, and how far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveStep {
    /// `plan`, `copy`, `compare` or `verify`.
    pub what: &'static str,
    /// Events that are done.
    pub done: u64,
    /// Events in all.
    pub total: u64,
}

/// Progress is reported after this many events.
const REPORT_EVERY: u64 = 256;

/// Reports the progress of a pass over events, now and then and at its end.
fn tell(report: &mut impl FnMut(MoveStep), what: &'static str, done: u64, total: u64) {
    if done.is_multiple_of(REPORT_EVERY) || done == total {
        report(MoveStep { what, done, total });
    }
}

/// What was moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MoveOutcome {
    /// Events.
    pub events: u64,
    /// Conversations.
    pub conversations: u64,
    /// Events that an earlier, interrupted import had copied.
    pub continued_after: u64,
    /// Conversations that are not in the shard of their id.
    pub moved: u64,
}

/// Why a store was not moved.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// The store or its folder cannot be used.
    #[error("the store in {path}: {what}")]
    Store {
        /// The folder.
        path: PathBuf,
        /// What is wrong, and what to do.
        what: String,
    },
    /// The log of the store or of the cluster failed.
    #[error("while {doing}")]
    Log {
        /// What was being done.
        doing: &'static str,
        /// The error.
        source: LogError,
    },
    /// The database cannot be used.
    #[error(transparent)]
    Database(#[from] PostgresError),
    /// The cluster is not in a state in which stores can be moved.
    #[error("{what}")]
    Cluster {
        /// What is wrong, and what to do.
        what: String,
    },
    /// An event of the copy differs from the original.
    #[error("event {offset} differs in the copy: {what}. The copy must not be used")]
    Differs {
        /// Its log position in the store, or in the order of the export.
        offset: u64,
        /// What differs.
        what: &'static str,
    },
}

fn of_log(doing: &'static str) -> impl Fn(LogError) -> MoveError {
    move |source| MoveError::Log { doing, source }
}

/// Opens the cluster's log. Whether there is a second copy does not matter: the source stays.
async fn open_cluster(url: &str) -> Result<Arc<PostgresLog>, MoveError> {
    let options = PostgresLogOptions {
        accept_single_copy: true,
        deadline: DEADLINE,
        ..PostgresLogOptions::default()
    };
    Ok(Arc::new(PostgresLog::open(url, options).await?))
}

/// Refuses a cluster with live nodes.
async fn check_stopped(log: &PostgresLog) -> Result<(), MoveError> {
    let view = log.view().await?;
    let Some(node) = view.nodes.first() else {
        return Ok(());
    };
    Err(MoveError::Cluster {
        what: format!(
            "node {} at {} runs: stop all nodes, wait until `treering cluster status` shows none, \
             and run this again",
            node.name, node.address
        ),
    })
}

/// Opens an embedded store's log for reading, which changes nothing in its folder.
async fn open_store(dir: &Path) -> Result<Arc<RedbLog>, MoveError> {
    let refused = |what: String| MoveError::Store {
        path: dir.to_owned(),
        what,
    };
    let log = RedbLog::open(dir, RedbLogOptions::default(), OpenMode::Read);
    let log = Arc::new(log.map_err(|error| refused(error.to_string()))?);
    let erasable: Arc<dyn ErasableLog> = Arc::clone(&log) as _;
    let progress = erasable
        .progress()
        .await
        .map_err(of_log("reading the store"))?;
    if progress.erasing.is_some() {
        let what = "an erasure is not finished: start `treering serve` on it, which finishes it, \
                    stop it, and run this again";
        return Err(refused(what.to_owned()));
    }
    Ok(log)
}

/// Checks that records follow their conversations, while they are compared with their copies.
#[derive(Default)]
struct ChainCheck {
    chains: HashMap<ConversationKey, (Revision, ContentHash)>,
}

impl ChainCheck {
    /// Compares the next record of a conversation with its copy.
    async fn compare(
        &mut self,
        offset: u64,
        (one, record): (&RecordStream, &Record),
        (other, copy): (&RecordStream, &Record),
    ) -> Result<(), MoveError> {
        let differs = |what| Err(MoveError::Differs { offset, what });
        let (head, chain) = self
            .chains
            .entry(record.header.key())
            .or_insert((Revision::NONE, ContentHash::default()));
        if record.header != copy.header {
            return differs("its header");
        }
        if record.append_key != copy.append_key {
            return differs("its idempotency key");
        }
        if copy.chain_hash() != record.chain_hash() || copy.plain_hash() != record.plain_hash() {
            return differs("its hashes");
        }
        if copy.header.revision != head.next() || !copy.verify_chain(*chain) {
            return differs("its chain hash does not follow the event before it");
        }
        (*head, *chain) = (copy.header.revision, copy.chain_hash());
        let body = one.body(record).await?;
        if body != other.body(copy).await? {
            return differs("its body");
        }
        Ok(())
    }
}

/// Returns a stream of the records of each shard, up to its head.
fn shard_streams(log: &Arc<PostgresLog>, heads: &[u64]) -> Vec<RecordStream> {
    let shards = (0..).map(ShardId).zip(heads);
    shards
        .map(|(shard, head)| RecordStream::new(Arc::clone(log) as _, shard, *head))
        .collect()
}

/// Returns the head of each shard.
async fn heads(log: &PostgresLog) -> Result<Vec<u64>, MoveError> {
    let mut heads = vec![0; log.shards() as usize];
    for end in log.ends().await? {
        if end.is_erasing {
            let what = format!(
                "an erasure in shard {} is not finished: start a node, which finishes it, stop it, \
                 and run this again",
                end.shard.0
            );
            return Err(MoveError::Cluster { what });
        }
        if let Some(head) = heads.get_mut(end.shard.0 as usize) {
            *head = end.head;
        }
    }
    Ok(heads)
}
