//! Versions of a store's parts, determined without opening it for use.

use std::{path::Path, sync::Arc};

use super::{
    OpenMode,
    catch_up::VIEWS_CACHE_BYTES,
    consistency_check,
    error::OpenError,
    open::{INDEX_FOLDER, VIEWS_FILE, log_refused},
};
use treering_domain::{Cause, ShardId, with_causes};
use treering_log::{EventLog as _, LOG_FORMAT, LogReader, RedbLog, RedbLogOptions};
use treering_projections::Projections;
use treering_search::SearchIndex;

/// Cache size for frames of the log during inspection, in bytes.
const FRAME_CACHE_BYTES: usize = 1 << 20;

/// The versions of a store's parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreFormats {
    /// The log's format version.
    pub log: u32,
    /// The version that this program writes, which is the newest that it reads.
    pub log_here: u32,
    /// Number of events in the log.
    pub events: u64,
    /// Why the projections are unusable and will be rebuilt from the log when the store is opened;
    /// `None` if they are usable.
    pub projections: Option<String>,
    /// The same for the index.
    pub index: Option<String>,
    /// An erasure was interrupted: opening the store for writing finishes it.
    pub erasing: bool,
}

/// Inspects the store in a folder without changing anything. Success means that this program can
/// open it: it knows the log's version and has read its first and last records.
///
/// # Errors
/// [`OpenError`], as opening it would return.
pub async fn store_formats(dir: &Path) -> Result<StoreFormats, OpenError> {
    let owned = dir.to_owned();
    let open = move || RedbLog::open(&owned, RedbLogOptions::default(), OpenMode::Read);
    let opened = tokio::task::spawn_blocking(open).await;
    let opened = opened.map_err(|error| OpenError::Failed {
        path: dir.to_owned(),
        source: Cause::of(error),
    })?;
    let log = Arc::new(opened.map_err(|error| log_refused(dir, error))?);
    let formats = of_log(dir, &log).await;
    let _ = log.close().await;
    formats
}

async fn of_log(dir: &Path, log: &Arc<RedbLog>) -> Result<StoreFormats, OpenError> {
    let refused = |error| log_refused(dir, error);
    let shard = ShardId::default();
    let head = log.acquire(shard).await.map_err(refused)?.head;
    let reader = LogReader::new(Arc::clone(log) as _, shard, FRAME_CACHE_BYTES);
    if head > 0 {
        reader.record(1).await.map_err(refused)?;
        reader.record(head).await.map_err(refused)?;
    }
    let projections = match Projections::open_unchanged(&dir.join(VIEWS_FILE), VIEWS_CACHE_BYTES) {
        Ok(projections) if consistency_check::belong_to(&projections, &**log) => None,
        Ok(_) => Some("they belong to another log".to_owned()),
        Err(error) => Some(with_causes(&error).to_string()),
    };
    let index = SearchIndex::open_unchanged(&dir.join(INDEX_FOLDER));
    Ok(StoreFormats {
        log: log.format(),
        log_here: LOG_FORMAT,
        events: head,
        projections,
        index: index.err().map(|error| with_causes(&error).to_string()),
        erasing: log.erasing().is_some(),
    })
}
