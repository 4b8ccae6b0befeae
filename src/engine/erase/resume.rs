//! Erasings that were interrupted, when a store is opened.

use std::{path::Path, sync::Arc};

use super::{EraseError, carry_out::recorded_since};
use crate::{
    disk,
    domain::ShardId,
    engine::{
        catch_up,
        error::OpenError,
        open::{INDEX_FOLDER, VIEWS_FILE, failed, log_refused},
        rebuild, reindex,
    },
    log::{LogError, LogReader, RedbLog},
    search::SearchIndex,
    views::Views,
};

/// Memory for frames that are read for it, in bytes.
const CACHE_BYTES: usize = 1 << 20;

/// Does again what was recorded to be erased and may still be on the disk: the log is
/// scrubbed, and views and index go, to be made anew from it.
///
/// # Errors
/// [`OpenError`]: a store is not opened before that is done.
pub(crate) async fn finish_erasing(dir: &Path, log: &Arc<RedbLog>) -> Result<(), OpenError> {
    if log.erasing().is_none() {
        return Ok(());
    }
    let reader = LogReader::new(Arc::clone(log) as _, ShardId::default(), CACHE_BYTES);
    let recorded = recorded_since(&reader, log, log.head()).await;
    let recorded = recorded.map_err(|error| failed(dir, error))?;
    let (erasure, last) = (recorded.erasure, recorded.last);
    if let Some(lost) = recorded.unread
        && last == 0
    {
        tracing::warn!(
            "events {} to {} cannot be read: whether something is still to be erased is looked \
             at again at the next start",
            lost.first,
            lost.last
        );
        return Ok(());
    }
    if log.is_read_only() {
        return match last {
            0 => Ok(()),
            _ => Err(failed(
                dir,
                EraseError::invalid(
                    "something was erased and may still be on the disk: open the store to write, \
                 and that is finished",
                ),
            )),
        };
    }
    if last > 0 {
        tracing::warn!("an erasing was interrupted; it is gone on with");
    }
    let (log, path) = (Arc::clone(log), dir.to_owned());
    let done = tokio::task::spawn_blocking(move || {
        if last > 0 {
            log.scrub(&erasure, |_, _| {})
                .map_err(|error| log_refused(&path, error))?;
            wipe(&path)?;
        }
        log.end_erasing(last)
            .map_err(|error: LogError| log_refused(&path, error))
    });
    done.await.map_err(|error| failed(dir, error))?
}

/// Removes everything that was made from the log.
fn wipe(dir: &Path) -> Result<(), OpenError> {
    let views = dir.join(VIEWS_FILE);
    let verified = views.with_extension("verify.redb");
    for path in [
        rebuild::beside(&views),
        catch_up::beside(&views),
        verified,
        views,
    ] {
        Views::wipe(&path).map_err(|error| failed(dir, error))?;
    }
    let index = dir.join(INDEX_FOLDER);
    for path in [reindex::beside(&index), reindex::aside(&index), index] {
        SearchIndex::wipe(&path).map_err(|error| failed(dir, error))?;
    }
    disk::sync_folder(dir).map_err(|error| failed(dir, error))
}
