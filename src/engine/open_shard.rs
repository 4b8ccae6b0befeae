//! Opening one shard of a log that other processes use too, and following one that another process
//! owns.

use std::{path::Path, sync::Arc};

use super::{
    Engine, OpenOptions,
    catch_up::{empty, open_projections, replacement_path},
    erase::{ErasureAtOpen, InterruptedErasure, OpenedLog, bring_up, finish_erasing, wipe},
    error::OpenError,
    indexer::IndexPlace,
    open::{INDEX_FOLDER, Parts, VIEWS_FILE, failed, log_refused},
    placement::ShardPlace,
    shard_log::ShardLog,
};
use treering_base::disk;
use treering_domain::ShardId;
use treering_log::{AcquiredShard, Epoch, ErasableLog, Erasure, EventLog, FolderLock};
use treering_projections::Projections;
use treering_search::SearchIndex;

/// Maximum number of events that one call of [`Engine::follow_shard`] reads into new projections, so
/// that it can end within seconds.
const FOLLOW_EVENTS_MAX: u64 = 65_536;

impl Engine {
    /// Opens one shard of a log that other processes use too, for example one in PostgreSQL, and
    /// acquires its ownership. The folder of the options holds only what is derived from the log.
    /// If that belongs to another shard or log, it is rebuilt. Closing the engine does not close
    /// the log.
    ///
    /// New conversations must belong to the shard ([`shard_of`](crate::shard_of)).
    ///
    /// Each shard is a store: its id and its backups differ from those of the other shards. Not
    /// supported: packing and pseudonyms.
    ///
    /// Finishes an erasure that an earlier owner began. If the folder lacks an erasure, what was
    /// derived in it is rebuilt.
    ///
    /// # Errors
    /// [`OpenError`], also when another process uses the folder, or the options ask for what is not
    /// supported.
    pub async fn open_shard(
        log: Arc<dyn EventLog>,
        place: ShardPlace,
        options: OpenOptions,
    ) -> Result<Self, OpenError> {
        let dir = options.data_dir.clone();
        if options.pseudonyms || options.mode.is_read_only() {
            let what = "a shard of a shared log has no pseudonyms and cannot be opened read-only: \
                        clear these options";
            return Err(failed(&dir, what));
        }
        let log = lock(log, place, &dir)?;
        let started = Self::start_shard(&log, place, options).await;
        if started.is_err() {
            let _ = log.close().await;
        }
        started
    }

    async fn start_shard(
        log: &Arc<ShardLog>,
        place: ShardPlace,
        options: OpenOptions,
    ) -> Result<Self, OpenError> {
        let dir = options.data_dir.clone();
        let acquired = log.acquire(place.shard).await;
        let acquired = acquired.map_err(|error| log_refused(&dir, error))?;
        let (erasable, hidden) = erasures(log, place.shard, acquired, &dir).await?;
        let projections_path = dir.join(VIEWS_FILE);
        let projections = match options.fresh_projections {
            true => empty(&replacement_path(&projections_path)),
            false => open_projections(&projections_path),
        };
        let projections = projections.map_err(|error| failed(&dir, error))?;
        let parts = Parts {
            erasable,
            hidden: hidden.content,
            erasing_at_open: hidden.at_open,
            ..parts(log, place, acquired, projections, &dir)
        };
        Self::start(options, parts).await
    }

    /// Brings the projections and the index in the folder of the options up to date with a shard
    /// that another process owns, so that [`Engine::open_shard`] finds little left to read. Returns
    /// the offset that both have reached: `confirmed`, or less if much is left to read or `stopped`
    /// resolved.
    ///
    /// `confirmed` must come from [`EventLog::tail`]: an event that a fail-over of the log drops must
    /// not be followed. While content is being erased, nothing is done, because the result would have
    /// to be removed again.
    ///
    /// # Errors
    /// [`OpenError`], as [`Engine::open_shard`].
    pub async fn follow_shard(
        log: Arc<dyn EventLog>,
        place: ShardPlace,
        options: OpenOptions,
        confirmed: u64,
        stopped: impl Future<Output = ()>,
    ) -> Result<u64, OpenError> {
        let dir = options.data_dir.clone();
        let log = lock(log, place, &dir)?;
        let options = OpenOptions {
            // The owner makes the vectors: models are slow or cost money.
            embedder: None,
            previous_embedder: None,
            ..options
        };
        let followed = Self::start_following(&log, place, options, confirmed).await;
        let reached = match followed {
            Ok(Some(engine)) => {
                let indexer = &engine.inner.search.indexer;
                tokio::select! {
                    // If it fails, the answer shows how far the index got.
                    _ = indexer.wait_for(engine.head().offset) => {}
                    () = stopped => {}
                }
                let reached = indexer.reached();
                engine.close().await;
                Ok(reached)
            }
            Ok(None) => Ok(0),
            Err(error) => Err(error),
        };
        let _ = log.close().await;
        reached
    }

    /// Starts an engine that does not own its shard. It gets no appends. Returns `None` while content
    /// is being erased.
    async fn start_following(
        log: &Arc<ShardLog>,
        place: ShardPlace,
        options: OpenOptions,
        confirmed: u64,
    ) -> Result<Option<Self>, OpenError> {
        let dir = options.data_dir.clone();
        if let Some(erasable) = Arc::clone(log).erasable(place.shard, Epoch::default()) {
            let progress = erasable.progress().await;
            let progress = progress.map_err(|error| log_refused(&dir, error))?;
            if progress.erasing.is_some() {
                return Ok(None);
            }
            in_folder(&dir, move |dir| bring_up(dir, progress.erased)).await?;
        }
        let projections = open_projections(&dir.join(VIEWS_FILE));
        let projections = projections.map_err(|error| failed(&dir, error))?;
        let indexed = SearchIndex::open_unchanged(&dir.join(INDEX_FOLDER));
        let indexed = indexed.map_or(0, |index| index.reached().offset);
        let known = projections.reached().unwrap_or_default().max(indexed);
        let not_owned = AcquiredShard {
            epoch: Epoch::default(),
            head: confirmed.min(known + FOLLOW_EVENTS_MAX),
        };
        let parts = parts(log, place, not_owned, projections, &dir);
        Self::start(options, parts).await.map(Some)
    }
}

/// Takes the lock of a shard's folder.
fn lock(log: Arc<dyn EventLog>, place: ShardPlace, dir: &Path) -> Result<Arc<ShardLog>, OpenError> {
    disk::make_folder(dir).map_err(|error| failed(dir, error))?;
    let lock = FolderLock::acquire(dir).map_err(|error| log_refused(dir, error))?;
    Ok(Arc::new(ShardLog::new(log, place.shard, lock)))
}

/// Returns the parts of an engine that cannot erase.
fn parts(
    log: &Arc<ShardLog>,
    place: ShardPlace,
    acquired: AcquiredShard,
    projections: Projections,
    dir: &Path,
) -> Parts {
    let keeping = Arc::clone(log);
    Parts {
        log: Arc::clone(log) as _,
        acquired: Some(acquired),
        erasable: None,
        place: Some(place),
        announce: Box::new(|_, _| {}),
        keep_lock: Box::new(move || keeping.keep_lock()),
        packer: None,
        files: None,
        projections,
        projections_path: Some(dir.join(VIEWS_FILE)),
        index: IndexPlace::Folder(dir.join(INDEX_FOLDER)),
        hidden: None,
        erasing_at_open: ErasureAtOpen::default(),
    }
}

/// What became of an interrupted erasure.
#[derive(Default)]
struct ShardErasure {
    /// Erased content that is still in the log.
    content: Option<Arc<Erasure>>,
    at_open: ErasureAtOpen,
}

/// Removes what was derived before content was erased, and finishes an interrupted erasure. If that
/// fails, readers do not see its content, and the next erasure or opening tries again.
async fn erasures(
    log: &Arc<ShardLog>,
    shard: ShardId,
    acquired: AcquiredShard,
    dir: &Path,
) -> Result<(Option<Arc<dyn ErasableLog>>, ShardErasure), OpenError> {
    let Some(erasable) = Arc::clone(log).erasable(shard, acquired.epoch) else {
        return Ok((None, ShardErasure::default()));
    };
    let opened = OpenedLog {
        log: Arc::clone(log) as _,
        erasable: Arc::clone(&erasable),
        shard,
        head: acquired.head,
        is_read_only: false,
    };
    let erasure = match finish_erasing(dir, &opened).await? {
        InterruptedErasure::Nothing => ShardErasure::default(),
        InterruptedErasure::Finished => ShardErasure {
            at_open: ErasureAtOpen::Finished,
            ..ShardErasure::default()
        },
        InterruptedErasure::Hidden(content, why) => {
            in_folder(dir, wipe).await?;
            ShardErasure {
                content: Some(content),
                at_open: ErasureAtOpen::Hidden { why },
            }
        }
    };
    let progress = erasable.progress().await;
    let progress = progress.map_err(|error| log_refused(dir, error))?;
    in_folder(dir, move |dir| bring_up(dir, progress.erased)).await?;
    Ok((Some(erasable), erasure))
}

async fn in_folder(
    dir: &Path,
    work: impl FnOnce(&Path) -> Result<(), OpenError> + Send + 'static,
) -> Result<(), OpenError> {
    let path = dir.to_owned();
    let done = tokio::task::spawn_blocking(move || work(&path)).await;
    done.map_err(|error| failed(dir, error))?
}
