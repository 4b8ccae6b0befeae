//! Opening one shard of a log that other processes use too.

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
use treering_log::{AcquiredShard, ErasableLog, Erasure, EventLog, FolderLock};

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
        disk::make_folder(&dir).map_err(|error| failed(&dir, error))?;
        let lock = FolderLock::acquire(&dir).map_err(|error| log_refused(&dir, error))?;
        let log = Arc::new(ShardLog::new(log, place.shard, lock));
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
        let keeping = Arc::clone(log);
        let projections_path = dir.join(VIEWS_FILE);
        let projections = match options.fresh_projections {
            true => empty(&replacement_path(&projections_path)),
            false => open_projections(&projections_path),
        };
        let parts = Parts {
            log: Arc::clone(log) as _,
            acquired: Some(acquired),
            erasable,
            place: Some(place),
            announce: Box::new(|_, _| {}),
            keep_lock: Box::new(move || keeping.keep_lock()),
            packer: None,
            files: None,
            projections: projections.map_err(|error| failed(&dir, error))?,
            projections_path: Some(projections_path),
            index: IndexPlace::Folder(dir.join(INDEX_FOLDER)),
            hidden: hidden.content,
            erasing_at_open: hidden.at_open,
        };
        Self::start(options, parts).await
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
