//! Folders of shards that are not open on this node. If content was erased from a shard since, its
//! folder still has that content and must be emptied.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
};

use treering_domain::{ShardId, with_causes};
use treering_engine::forget_erased;

/// The folders of a node's shards, as far as erasures concern them.
pub(crate) struct OldFolders {
    dir: PathBuf,
    /// The last erasure that each folder is known to have.
    known: Mutex<BTreeMap<ShardId, u64>>,
    /// Those that could not be emptied at the last attempt.
    failed: Mutex<BTreeSet<ShardId>>,
}

impl OldFolders {
    /// Creates them for a node's folder.
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self {
            dir,
            known: Mutex::default(),
            failed: Mutex::default(),
        }
    }

    /// Returns the folder of a shard.
    pub(crate) fn of(&self, shard: ShardId) -> PathBuf {
        self.dir.join("shards").join(shard.0.to_string())
    }

    /// Returns true if a folder may lack an erasure.
    pub(crate) fn may_lack(&self, shard: ShardId, erased: u64) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&shard).is_none_or(|known| *known < erased)
    }

    /// Empties the folder of a shard that is not open, if it lacks the erasure.
    pub(crate) async fn forget(&self, shard: ShardId, erased: u64) {
        let dir = self.of(shard);
        let done = tokio::task::spawn_blocking(move || forget_erased(&dir, erased)).await;
        match done {
            Ok(Ok(true)) => {
                let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
                known.insert(shard, erased);
                self.failed().remove(&shard);
            }
            // An engine of this shard is still being closed; the next view tries again.
            Ok(Ok(false)) => {}
            Ok(Err(error)) => self.note(shard, &with_causes(&error).to_string()),
            Err(error) => self.note(shard, &error.to_string()),
        }
    }

    /// Logs a failure, unless the last attempt failed too.
    fn note(&self, shard: ShardId, error: &str) {
        if self.failed().insert(shard) {
            tracing::error!(
                shard = shard.0,
                error,
                "erased content could not be removed from the folder of a shard; this is tried again"
            );
        }
    }

    fn failed(&self) -> MutexGuard<'_, BTreeSet<ShardId>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
