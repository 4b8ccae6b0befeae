//! Opening the projections, and bringing them up to the log's head.
//!
//! Unusable projections are rebuilt beside the old ones, which stay until the new ones are
//! complete.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{consistency_check, error::ReadError, fold::ProjectionFold, history::decode_body};
use treering_base::disk;
use treering_domain::{DamageKind, OperationError, with_causes};
use treering_log::LogReader;
use treering_projections::{Projections, ProjectionsError};

/// Cache size for projection pages, in bytes.
pub(super) const VIEWS_CACHE_BYTES: usize = 32 << 20;
/// Maximum number of damage marks and lost stretches that are checked again when a store is opened.
/// A restored part of the log usually heals several.
const LOOKED_AT_AGAIN_MAX: usize = 256;

/// Returns the path for projections that are to replace those at `path`.
pub(super) fn replacement_path(path: &Path) -> PathBuf {
    path.with_extension("new.redb")
}

/// Opens the projections. If they are unusable, opens empty ones beside them, which [`catch_up`]
/// fills and moves into place.
pub(super) fn open_projections(path: &Path) -> Result<Projections, ProjectionsError> {
    if path.is_dir() {
        // Only an empty folder may be removed.
        std::fs::remove_dir(path)?;
        tracing::warn!("removed a folder at the path of the projections; they are rebuilt");
    } else if path.is_symlink() && !path.exists() {
        std::fs::remove_file(path)?;
        tracing::warn!("removed a broken link at the path of the projections; they are rebuilt");
    }
    match Projections::open(path, VIEWS_CACHE_BYTES) {
        Err(error @ (ProjectionsError::OtherVersion { .. } | ProjectionsError::Damaged { .. })) => {
            tracing::warn!(error = %with_causes(&error), "the projections are rebuilt from the log");
            empty(&replacement_path(path))
        }
        result => result,
    }
}

/// Wipes a path and creates empty projections there.
pub(super) fn empty(path: &Path) -> Result<Projections, ProjectionsError> {
    Projections::wipe(path)?;
    Projections::open(path, VIEWS_CACHE_BYTES)
}

pub(super) fn reopen(path: Option<PathBuf>) -> super::publisher::ReopenProjections {
    Box::new(move || match &path {
        Some(path) => open_projections(path),
        None => Projections::in_memory(),
    })
}

/// Brings the projections up to the log's head. They are rebuilt beside the old ones if they belong
/// to another log, are damaged, or have marks of damage that no longer exists; the old ones stay in
/// place until that is done.
pub(super) async fn catch_up(
    projections: Projections,
    path: Option<&Path>,
    reader: &Arc<LogReader>,
    head: u64,
    report: impl Fn(u64),
) -> Result<Projections, ReadError> {
    let report = &report;
    let Some(path) = path else {
        follow(&projections, None, reader, head, report).await?;
        return Ok(projections);
    };
    if projections.path().as_deref() != Some(path) {
        return refill(projections, None, path, reader, head, report).await;
    }
    let mut before = None;
    let reason = if !belongs(&projections, reader, head).await {
        "they belong to another log".to_owned()
    } else if has_healed(&projections, reader).await {
        before = Some(projections.clone());
        "damaged data is readable again".to_owned()
    } else {
        match follow(&projections, None, reader, head, report).await {
            Ok(()) => return Ok(projections),
            Err(CatchUpError::Views(error)) => with_causes(&error).to_string(),
            Err(CatchUpError::Other(error)) => return Err(error),
        }
    };
    tracing::warn!(reason, "the projections are rebuilt from the log");
    let fresh = empty(&replacement_path(path))?;
    let fresh = refill(fresh, before, path, reader, head, report).await?;
    drop(projections);
    Ok(fresh)
}

/// Why projections could not follow the log.
enum CatchUpError {
    /// They are unusable.
    Views(ReadError),
    Other(ReadError),
}

impl From<CatchUpError> for ReadError {
    fn from(failed: CatchUpError) -> Self {
        match failed {
            CatchUpError::Views(error) | CatchUpError::Other(error) => error,
        }
    }
}

async fn follow(
    projections: &Projections,
    before: Option<Projections>,
    reader: &Arc<LogReader>,
    head: u64,
    report: impl Fn(u64),
) -> Result<(), CatchUpError> {
    let folder = ProjectionFold::new(Arc::new(projections.clone()), Arc::clone(reader));
    let mut folder = folder.map_err(CatchUpError::Views)?;
    if let Some(before) = before {
        folder = folder.after(before);
    }
    match folder.run(head, report).await {
        Ok(()) => Ok(()),
        Err(error) if folder.projections_are_unsound() => Err(CatchUpError::Views(error)),
        Err(error) => Err(CatchUpError::Other(error)),
    }
}

/// Fills new projections and moves them to the place of the old ones.
async fn refill(
    fresh: Projections,
    before: Option<Projections>,
    path: &Path,
    reader: &Arc<LogReader>,
    head: u64,
    report: impl Fn(u64),
) -> Result<Projections, ReadError> {
    follow(&fresh, before, reader, head, report).await?;
    replace_projections(&fresh, path)?;
    Ok(fresh)
}

/// Moves complete projections to the place of the old ones.
pub(super) fn replace_projections(fresh: &Projections, path: &Path) -> Result<(), ReadError> {
    fresh.make_durable()?;
    let Some(from) = fresh.path() else {
        return Ok(());
    };
    disk::rename(&from, path).map_err(|error| {
        let path = path.display();
        let what = format!("the new projections could not replace {path}, which is unchanged");
        ReadError::storage(OperationError::new(what, error))
    })?;
    fresh.moved_to(path);
    Ok(())
}

/// Returns true when the last event that the projections know is the log's event at that offset.
async fn belongs(projections: &Projections, reader: &LogReader, head: u64) -> bool {
    if !consistency_check::belong_to(projections, &**reader.log()) {
        return false;
    }
    let Ok(reached) = projections.reached() else {
        return false;
    };
    if reached == 0 || reached > head {
        return reached == 0;
    }
    let Ok(record) = reader.record(reached).await else {
        // Damage is reported by the reads that meet it, and is no reason to discard good
        // projections.
        return true;
    };
    let header = &record.header;
    let row = projections.conversation(header.key());
    row.is_ok_and(|row| {
        row.is_some_and(|row| match &row.damage {
            None => row.last_position.offset == reached && row.chain_hash == record.chain_hash(),
            // For a damaged conversation, the projections have only the intact part.
            Some(_) => row.last_position.offset <= reached,
        })
    })
}

/// Returns true when something that was damaged when the projections were built can be read now,
/// because a part of the log was restored.
async fn has_healed(projections: &Projections, reader: &LogReader) -> bool {
    let lost = projections.lost().unwrap_or_default();
    for (first, _) in lost.into_iter().take(LOOKED_AT_AGAIN_MAX) {
        if reader.record(first).await.is_ok() {
            return true;
        }
    }
    let damaged = projections.damaged().unwrap_or_default().into_iter();
    let quarantine = damaged.filter_map(|row| row.damage);
    for mark in quarantine
        .filter(|mark| mark.kind == DamageKind::Unreadable)
        .take(LOOKED_AT_AGAIN_MAX)
    {
        let offset = mark.position.offset;
        let Ok(record) = reader.record(offset).await else {
            continue;
        };
        let body = reader.body(&record).await;
        if body.is_ok_and(|body| decode_body(offset, record.header.kind, &body).is_ok()) {
            return true;
        }
    }
    false
}
