//! Repair after a loss in the log, with the projections and the index as evidence.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    catch_up::VIEWS_CACHE_BYTES,
    consistency_check::{self, LogRelation},
    error::OpenError,
    open::{INDEX_FOLDER, VIEWS_FILE, log_refused},
};
use treering_base::disk;
use treering_domain::{Cause, ConversationId, OperationError, ShardId, TimestampMicros};
use treering_log::{
    ConsistencyEvidence, LogError, LogReader, LogRepair, OpenMode, RedbLog, RedbLogOptions,
    RepairSession,
};
use treering_projections::Projections;
use treering_search::SearchIndex;

/// Cache size for frames of the log during inspection, in bytes.
const FRAME_CACHE_BYTES: usize = 1 << 20;

/// What a store has lost.
#[derive(Clone, Debug, Default)]
pub struct Repair {
    /// Losses of the log.
    pub log: LogRepair,
    /// Conversations whose last event is lost, as far as the projections know.
    pub conversations: Vec<ConversationId>,
    /// An erasure was interrupted: erased content is still in files.
    pub erasing: bool,
}

/// Determines what the store in a folder has lost. If only the manifest is lost, it is rebuilt.
/// With `accept_loss`, the store continues without what is lost: projections and an index that may
/// contain lost events are moved aside, and rebuilt when the store is opened.
///
/// # Errors
/// [`OpenError`]: nothing has changed, or the call can be repeated.
pub async fn repair(dir: &Path, accept_loss: bool) -> Result<Repair, OpenError> {
    let dir = dir.to_owned();
    let work = move || repair_now(&dir, accept_loss);
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| {
            Err(OpenError::Failed {
                path: PathBuf::new(),
                source: Cause::of(error),
            })
        })
}

fn repair_now(dir: &Path, accept_loss: bool) -> Result<Repair, OpenError> {
    let repaired = repair_log(dir, accept_loss)?;
    // A rebuilt manifest reports an erasure only as a precaution.
    let known = RedbLog::open(dir, RedbLogOptions::default(), OpenMode::Read);
    let erasing = !repaired.log.manifest_rebuilt && known.is_ok_and(|log| log.erasing().is_some());
    Ok(Repair {
        erasing,
        ..repaired
    })
}

fn repair_log(dir: &Path, accept_loss: bool) -> Result<Repair, OpenError> {
    let refused = |error| log_refused(dir, error);
    let looking = RepairSession::to_look(dir).map_err(refused)?;
    let derived = DerivedData::of(dir, &looking);
    let mut repair = derived.add_affected(looking.look(&derived.witness).map_err(refused)?);
    let is_accepted = accept_loss && !(repair.log.is_whole() && derived.earlier.is_empty());
    if !repair.log.can_be_rebuilt && !is_accepted {
        return Ok(repair);
    }
    drop((derived, looking));
    let mending = match RepairSession::to_mend(dir) {
        Err(LogError::ReadOnly { .. }) if !accept_loss => {
            repair.log.unproven = Some(
                "the segments have everything that the manifest listed, but the folder is not \
                 writable"
                    .to_owned(),
            );
            return Ok(repair);
        }
        mending => mending.map_err(refused)?,
    };
    // Another repair may have intervened.
    let derived = DerivedData::of(dir, &mending);
    let mended = mending.mend(&derived.witness, accept_loss);
    let repair = derived.add_affected(mended.map_err(refused)?);
    if repair.log.went_on {
        move_aside(dir, &[dir.join(VIEWS_FILE), dir.join(INDEX_FOLDER)])?;
    } else if accept_loss {
        move_aside(dir, &derived.earlier)?;
    }
    Ok(repair)
}

/// Data derived from a store's log, as evidence about the log.
struct DerivedData {
    witness: ConsistencyEvidence,
    /// The projections, if they are evidence.
    projections: Option<Projections>,
    /// Files from before an accepted loss, left by an interrupted repair.
    earlier: Vec<PathBuf>,
}

impl DerivedData {
    fn of(dir: &Path, repairing: &RepairSession) -> Self {
        let (projections_path, index_path) = (dir.join(VIEWS_FILE), dir.join(INDEX_FOLDER));
        let log = repairing.log().map(Arc::new);
        let mut derived = Self {
            witness: ConsistencyEvidence::default(),
            projections: None,
            earlier: Vec::new(),
        };
        if let Ok(projections) = Projections::open_unchanged(&projections_path, VIEWS_CACHE_BYTES) {
            let kinship = match &log {
                Some(log) => consistency_check::relation_of_projections(&projections, &**log),
                // No log is left to compare with.
                None => LogRelation::Current,
            };
            if derived.record_evidence(
                kinship,
                projections_path,
                projections.reached().unwrap_or(0),
            ) {
                if kinship == LogRelation::Current
                    && let Some(log) = &log
                {
                    derived.witness.contradiction = contradiction(&projections, log);
                }
                derived.projections = Some(projections);
            }
        }
        if let Ok(index) = SearchIndex::open_unchanged(&index_path) {
            let kinship = match &log {
                Some(log) => consistency_check::relation_of_index(&index_path, &**log),
                None => LogRelation::Current,
            };
            derived.record_evidence(kinship, index_path, index.reached().offset);
        }
        derived
    }

    /// Records the progress of derived data as evidence; returns false if it proves nothing.
    fn record_evidence(&mut self, kinship: LogRelation, path: PathBuf, reached: u64) -> bool {
        match kinship {
            LogRelation::Current => self.witness.is_there |= reached > 0,
            LogRelation::Later => {
                self.witness.contradiction = Some(consistency_check::LATER_TIMELINE.to_owned());
            }
            LogRelation::Earlier => self.earlier.push(path),
            LogRelation::Foreign => {}
        }
        let counts = matches!(kinship, LogRelation::Current | LogRelation::Later);
        if counts {
            self.witness.reached = self.witness.reached.max(reached);
        }
        counts
    }

    /// Adds the conversations that a loss affects.
    fn add_affected(&self, log: LogRepair) -> Repair {
        Repair {
            conversations: self.affected_conversations(&log),
            log,
            erasing: false,
        }
    }

    /// Returns the conversations whose last event is lost.
    fn affected_conversations(&self, found: &LogRepair) -> Vec<ConversationId> {
        let is_lost = |offset: u64| {
            found
                .lost
                .iter()
                .any(|lost| (lost.from..=lost.to).contains(&offset))
        };
        let Some(projections) = self.projections.as_ref().filter(|_| !found.lost.is_empty()) else {
            return Vec::new();
        };
        let rows = projections.every_conversation().unwrap_or_default();
        rows.into_iter()
            .filter(|row| is_lost(row.last_position.offset))
            .map(|row| row.id)
            .collect()
    }
}

/// Returns how the projections contradict existing events, if they do. Missing events are reported
/// as lost instead.
fn contradiction(projections: &Projections, log: &Arc<RedbLog>) -> Option<String> {
    let head = log.head();
    if projections.reached().ok()? > head {
        return None;
    }
    let reader = LogReader::new(Arc::clone(log) as _, ShardId::default(), FRAME_CACHE_BYTES);
    futures::executor::block_on(consistency_check::contradiction(projections, &reader, head))
}

/// Moves files and folders of a store into a quarantine folder.
fn move_aside(dir: &Path, paths: &[PathBuf]) -> Result<(), OpenError> {
    let aside = dir.join(format!("set-aside-{}", TimestampMicros::now().0));
    for path in paths {
        let Some(name) = path.file_name().filter(|_| path.exists()) else {
            continue;
        };
        disk::make_folder(&aside)
            .and_then(|()| disk::rename(path, &aside.join(name)))
            .map_err(|error| OpenError::Failed {
                path: path.clone(),
                source: Cause::of(OperationError::new(
                    format!("it could not be moved to {}", aside.display()),
                    error,
                )),
            })?;
    }
    Ok(())
}
