//! Rebuilding the search index from the log in a separate folder, while the old one answers
//! searches. The new index replaces the old one once it is complete.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
};

use super::{
    Inner,
    indexer::{
        Failure, IndexPlace, Indexer, RETRY_PAUSE, add_some, blocking, held, open_index, sign,
    },
};
use treering_base::disk;
use treering_domain::with_causes;
use treering_log::LogIdentity;
use treering_search::{IndexError, SearchIndex, SearchOptions};

/// Number of consecutive failures that end a rebuild.
const FAILURES_MAX: u32 = 3;
/// Number of indexing threads while much is left to index and the old index answers searches.
const REMAKING_THREADS: usize = 2;

/// The result of a rebuild.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReindexOutcome {
    /// Number of passages in the index.
    pub(crate) documents: u64,
    /// Number of events that could not be read.
    pub(crate) not_indexed: u64,
}

/// Returns the folder in which a new index is built.
pub(super) fn new_index_path(dir: &Path) -> PathBuf {
    dir.with_extension("rebuild")
}

/// Returns the folder of the old index while the new one replaces it.
pub(super) fn old_index_path(dir: &Path) -> PathBuf {
    dir.with_extension("old")
}

/// Cleans up after a crash: restores an old index that was not replaced yet, and removes leftovers.
pub(super) fn clean_up(place: &IndexPlace) {
    let IndexPlace::Folder(dir) = place else {
        return;
    };
    let (old, new) = (old_index_path(dir), new_index_path(dir));
    let put_back = if !dir.exists() && old.exists() {
        disk::rename(&old, dir).map_err(|error| error.to_string())
    } else {
        disk::remove(&old).map_err(|error| error.to_string())
    };
    let removed = SearchIndex::wipe(&new).map_err(|error| error.to_string());
    for left in [put_back, removed] {
        if let Err(error) = left {
            tracing::warn!(error, "a leftover search index could not be removed");
        }
    }
}

/// Removes the leftover of a replaced index.
///
/// # Errors
/// The I/O error; the leftover is still there.
pub(super) fn remove_left_over(place: &IndexPlace) -> std::io::Result<()> {
    match place {
        IndexPlace::Folder(dir) => disk::remove(&old_index_path(dir)),
        IndexPlace::Memory | IndexPlace::Unchanged(_) => Ok(()),
    }
}

/// Rebuilds the index from the log. The old one answers searches and follows the log until the new
/// one is complete, and stays if the rebuild fails.
pub(super) async fn rebuild_index(
    inner: &Arc<Inner>,
    mut report: impl FnMut(u64),
) -> Result<ReindexOutcome, Failure> {
    let indexer = &inner.search.indexer;
    let _one = indexer.remaking.lock().await;
    held(inner)?;
    let making = Arc::clone(inner);
    let fresh =
        blocking(move || new_index(&making.search.indexer.place, making.search.indexer.identity))
            .await?;
    let fresh = Arc::new(fresh);
    if indexer.stands_in.load(Ordering::Acquire) {
        // A partial index is better than none; answers state how far it reaches.
        indexer.replace(Arc::clone(&fresh));
    }
    let mut not_indexed = follow(inner, &fresh, &mut report).await?;
    // From here on the old index does not advance.
    let _gate = indexer.gate.lock().await;
    not_indexed += follow(inner, &fresh, &mut report).await?;
    let committing = Arc::clone(&fresh);
    blocking(move || committing.commit()).await?;
    let documents = fresh.passage_count();
    held(inner)?;
    swap(indexer, fresh).await?;
    indexer.not_indexed.store(not_indexed, Ordering::Release);
    Ok(ReindexOutcome {
        documents,
        not_indexed,
    })
}

fn new_index(place: &IndexPlace, identity: LogIdentity) -> Result<SearchIndex, IndexError> {
    match place {
        IndexPlace::Memory | IndexPlace::Unchanged(_) => SearchIndex::in_memory(),
        IndexPlace::Folder(dir) => {
            let dir = new_index_path(dir);
            SearchIndex::wipe(&dir)?;
            let options = SearchOptions {
                hurried_threads: REMAKING_THREADS,
                ..SearchOptions::default()
            };
            let index = SearchIndex::open(&dir, options)?;
            index.set_hurried(true)?;
            sign(&dir, identity)?;
            Ok(index)
        }
    }
}

/// Adds the log's events, and counts those that could not be read.
async fn follow(
    inner: &Arc<Inner>,
    fresh: &Arc<SearchIndex>,
    report: &mut impl FnMut(u64),
) -> Result<u64, Failure> {
    let (mut failures, mut not_indexed) = (0, 0);
    loop {
        if inner.closing.load(Ordering::Acquire) {
            return Err(Failure::Closing);
        }
        let head = inner.reads.published.load(Ordering::Acquire);
        if fresh.added_to().offset >= head {
            return Ok(not_indexed);
        }
        match add_some(inner, fresh, head).await {
            Ok(added) => {
                failures = 0;
                not_indexed += added.not_indexed;
                report(fresh.added_to().offset);
                if added.committed && inner.search.indexer.stands_in.load(Ordering::Acquire) {
                    inner
                        .search
                        .indexer
                        .reached
                        .send_replace(fresh.reached().offset);
                }
            }
            Err(failure) => {
                failures += 1;
                if failures >= FAILURES_MAX {
                    return Err(failure);
                }
                tracing::warn!(error = %failure, "indexing failed; retrying");
                tokio::time::sleep(RETRY_PAUSE).await;
                let again = Arc::clone(fresh);
                blocking(move || again.recover()).await?;
            }
        }
    }
}

/// Replaces the old index with a complete one. The caller must keep all writers out.
async fn swap(indexer: &Arc<Indexer>, fresh: Arc<SearchIndex>) -> Result<(), Failure> {
    let IndexPlace::Folder(dir) = &indexer.place else {
        indexer.answers(fresh);
        return Ok(());
    };
    let dir = dir.clone();
    let swapping = Arc::clone(indexer);
    let opened = blocking(move || {
        let old = swapping.index();
        // An index opens files by path, even in background merges, so both must stop before their
        // folders are renamed.
        fresh.stop_writing();
        old.stop_writing();
        drop(fresh);
        let swapped = swap_folders(&dir, &swapping.place, swapping.identity);
        if swapped.is_err() && !swapping.stands_in.load(Ordering::Acquire) {
            old.recover()?;
        }
        swapped
    });
    indexer.answers(Arc::new(opened.await?));
    Ok(())
}

fn swap_folders(
    dir: &Path,
    place: &IndexPlace,
    identity: LogIdentity,
) -> Result<SearchIndex, IndexError> {
    let (new, old) = (new_index_path(dir), old_index_path(dir));
    let refused = |source| IndexError::Io {
        action: "moved into place",
        dir: new.clone(),
        source,
    };
    // A file in place of the folder is handled the same way.
    disk::remove(&old).map_err(refused)?;
    let had_one = dir.exists();
    if had_one {
        disk::rename(dir, &old).map_err(refused)?;
    }
    let opened = disk::rename(&new, dir)
        .map_err(refused)
        .and_then(|()| open_index(place, identity));
    if opened.is_err() && had_one {
        let aside_again = if dir.exists() {
            disk::rename(dir, &new)
        } else {
            Ok(())
        };
        aside_again
            .and_then(|()| disk::rename(&old, dir))
            .map_err(refused)?;
    }
    if opened.is_ok()
        && let Err(error) = disk::remove(&old)
    {
        tracing::warn!(error = %with_causes(&error), "the old search index could not be removed; the next start removes it");
    }
    opened
}
