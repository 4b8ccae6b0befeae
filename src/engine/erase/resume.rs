//! Interrupted erasures, when a store is opened.
//!
//! Opening with write access finishes them. If that fails, for example on a full disk, or if the
//! opening is read-only, the engine opens the store read-only, hides the erased content, and
//! reports the state. A shard of a shared log is opened for writing nevertheless: it must have an
//! owner.

use std::{path::Path, sync::Arc};

use super::{carry_out::recorded_since, plan::unread};
use crate::{
    catch_up,
    error::OpenError,
    meaning::VECTORS_FOLDER,
    open::{INDEX_FOLDER, VIEWS_FILE, failed, log_refused},
    rebuild, reindex,
};
use treering_base::disk;
use treering_domain::{ShardId, with_causes};
use treering_log::{ErasableLog, Erasure, EventLog, LogError, LogReader};
use treering_projections::Projections;
use treering_search::{SearchIndex, VectorIndex};

/// Cache size for frames read here, in bytes.
const CACHE_BYTES: usize = 1 << 20;

/// How opening handled an interrupted erasure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ErasureAtOpen {
    /// There was none.
    #[default]
    None,
    /// It was finished.
    Finished,
    /// The erased content is hidden from all readers, but is still stored. An embedded store is open
    /// read-only; a shard of a shared log takes appends.
    Hidden {
        /// What prevented finishing it; `None` if the opening was read-only.
        why: Option<String>,
    },
}

/// Like [`ErasureAtOpen`], with the content to hide.
pub(crate) enum InterruptedErasure {
    Nothing,
    Finished,
    Hidden(Arc<Erasure>, Option<String>),
}

/// A log that is being opened.
pub(crate) struct OpenedLog {
    pub(crate) log: Arc<dyn EventLog>,
    pub(crate) erasable: Arc<dyn ErasableLog>,
    pub(crate) shard: ShardId,
    pub(crate) head: u64,
    pub(crate) is_read_only: bool,
}

/// Repeats recorded erasures whose content may still be on the disk: scrubs the log, and removes
/// the projections and the index, which are later rebuilt from the log.
///
/// # Errors
/// [`OpenError`] when the recorded erasures cannot be read.
pub(crate) async fn finish_erasing(
    dir: &Path,
    opened: &OpenedLog,
) -> Result<InterruptedErasure, OpenError> {
    let port = &opened.erasable;
    let progress = port.progress().await;
    if progress
        .map_err(|error| log_refused(dir, error))?
        .erasing
        .is_none()
    {
        return Ok(InterruptedErasure::Nothing);
    }
    let reader = LogReader::new(Arc::clone(&opened.log), opened.shard, CACHE_BYTES);
    let recorded = recorded_since(&reader, &**port, opened.head).await;
    let recorded = recorded.map_err(|error| failed(dir, error))?;
    let (erasure, last) = (recorded.erasure, recorded.last);
    let erasure = Arc::new(erasure);
    if let Some(lost) = recorded.unread {
        let why = with_causes(&unread(&lost)).to_string();
        if last > 0 {
            tracing::error!(why, "an interrupted erase could not be finished");
            return Ok(InterruptedErasure::Hidden(erasure, Some(why)));
        }
        tracing::warn!(
            "events {} to {} cannot be read: the next start checks again whether anything is left \
             to erase",
            lost.first,
            lost.last
        );
        return Ok(InterruptedErasure::Nothing);
    }
    if opened.is_read_only {
        return Ok(match last {
            0 => InterruptedErasure::Nothing,
            _ => InterruptedErasure::Hidden(erasure, None),
        });
    }
    if last > 0 {
        tracing::warn!("an erase was interrupted; it is resumed");
    }
    match carry_on(dir, port, &erasure, last).await {
        Ok(()) if last == 0 => Ok(InterruptedErasure::Nothing),
        Ok(()) => Ok(InterruptedErasure::Finished),
        // Nothing was recorded, so clearing the mark can wait until the next start.
        Err(error) if last == 0 => {
            let error = with_causes(&error);
            tracing::warn!(%error, "could not record that nothing is left to erase");
            Ok(InterruptedErasure::Nothing)
        }
        Err(error) => {
            let why = with_causes(&error).to_string();
            tracing::error!(why, "an interrupted erase could not be finished");
            Ok(InterruptedErasure::Hidden(erasure, Some(why)))
        }
    }
}

/// Removes the content of an erasure. `last` is the offset of its last event; 0: nothing was
/// recorded.
async fn carry_on(
    dir: &Path,
    port: &Arc<dyn ErasableLog>,
    erasure: &Arc<Erasure>,
    last: u64,
) -> Result<(), OpenError> {
    let refused = |error: LogError| log_refused(dir, error);
    if last > 0 {
        // Remove these first: rewriting needs their space.
        let path = dir.to_owned();
        let wiped = tokio::task::spawn_blocking(move || wipe(&path)).await;
        wiped.map_err(|error| failed(dir, error))??;
        let removed = Arc::clone(port).remove(Arc::clone(erasure), Box::new(|_, _| {}));
        removed.await.map_err(refused)?;
    }
    Arc::clone(port).mark_done(last).await.map_err(refused)
}

/// Removes everything that is derived from the log.
pub(crate) fn wipe(dir: &Path) -> Result<(), OpenError> {
    let projections = dir.join(VIEWS_FILE);
    let verified = projections.with_extension("verify.redb");
    for path in [
        rebuild::beside(&projections),
        catch_up::replacement_path(&projections),
        verified,
        projections,
    ] {
        Projections::wipe(&path).map_err(|error| failed(dir, error))?;
    }
    let index = dir.join(INDEX_FOLDER);
    for path in [
        reindex::new_index_path(&index),
        reindex::old_index_path(&index),
        index,
    ] {
        SearchIndex::wipe(&path).map_err(|error| failed(dir, error))?;
    }
    let vectors = dir.join(VECTORS_FOLDER);
    VectorIndex::wipe(&vectors).map_err(|error| failed(dir, error))?;
    disk::sync_folder(dir).map_err(|error| failed(dir, error))
}
