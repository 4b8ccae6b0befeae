//! Views that follow the log: opening them, and bringing them up to its head.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{error::ReadError, fold::Folder};
use crate::{
    log::LogReader,
    views::{Views, ViewsError},
};

/// Memory for pages of the views, in bytes.
const VIEWS_CACHE_BYTES: usize = 64 << 20;

/// Opens the views; what cannot be used is removed, because the log has it all.
pub(super) fn open_views(path: &Path) -> Result<Views, ViewsError> {
    match Views::open(path, VIEWS_CACHE_BYTES) {
        Err(error @ (ViewsError::OtherVersion { .. } | ViewsError::Damaged { .. })) => {
            tracing::warn!(%error, "the views are made anew from the log");
            Views::wipe(path)?;
            Views::open(path, VIEWS_CACHE_BYTES)
        }
        result => result,
    }
}

pub(super) fn reopen(path: Option<PathBuf>) -> super::publisher::ReopenViews {
    Box::new(move || match &path {
        Some(path) => open_views(path),
        None => Views::in_memory(),
    })
}

/// Brings the views up to the log's head; makes them anew if they do not belong
/// to this log.
pub(super) async fn catch_up(
    views: Views,
    path: Option<&Path>,
    reader: &Arc<LogReader>,
    head: u64,
) -> Result<Views, ReadError> {
    let mut views = views;
    if !belongs(&views, reader, head).await
        && let Some(path) = path
    {
        tracing::warn!("the views do not belong to this log; they are made anew");
        drop(views);
        Views::wipe(path)?;
        views = Views::open(path, VIEWS_CACHE_BYTES)?;
    }
    let mut folder = Folder::new(Arc::new(views.clone()), Arc::clone(reader))?;
    folder.run(head, |_| {}).await?;
    Ok(views)
}

/// True when the last event that the views know is the log's at that place.
async fn belongs(views: &Views, reader: &LogReader, head: u64) -> bool {
    let Ok(reached) = views.reached() else {
        return false;
    };
    if reached == 0 || reached > head {
        return reached == 0;
    }
    let Ok(record) = reader.record(reached).await else {
        // Damage is for the reads that meet it to report, not a reason to
        // throw good views away.
        return true;
    };
    let header = &record.header;
    let row = views.conversation(header.conversation);
    row.is_ok_and(|row| {
        row.is_some_and(|row| {
            row.last_position.offset == reached && row.chain_hash == record.chain_hash
        })
    })
}
