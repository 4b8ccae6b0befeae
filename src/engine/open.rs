//! Opening and closing a store.

use std::{
    error::Error,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;

use super::{
    Announce, AppendPath, ContextPath, Engine, Inner, OpenOptions, ReadPath, SearchPath, Upkeep,
    catch_up::{VIEWS_CACHE_BYTES, catch_up, empty, open_projections, reopen, replacement_path},
    consistency_check::{self, LogRelation},
    damage::QuarantineList,
    erase::{ErasureAtOpen, InterruptedErasure, OpenedLog, finish_erasing},
    error::{OpenError, ReadError},
    facet_sets::FacetSets,
    group_queue::GroupQueue,
    meaning::Meaning,
    memory::{Cache as _, Shares},
    packing::LogPacker,
    placement::ShardPlace,
    pseudonyms::Pseudonyms,
    publisher::EnginePublisher,
    sequencer::{Deltas, EngineSequencer},
    states::CachedConversations,
};
use treering_base::disk;
use treering_domain::{Cause, Limits, ShardId, TimestampMicros, with_causes};
use treering_log::{
    AcquiredShard, ErasableLog, Erasure, EventLog, GroupWriter, LogError, LogReader, MemoryLog,
    OpenMode, RedbLog, RedbLogOptions, WriterLimits, writer::ShardOwner,
};
use treering_projections::Projections;
use treering_search::SearchIndex;

/// Name of the projections' file in the data folder.
pub(super) const VIEWS_FILE: &str = "views.redb";
/// Name of the index's folder in the data folder.
pub(super) const INDEX_FOLDER: &str = "index";
/// Interval at which the projections are made durable. Anything newer is read from the log again
/// after a crash.
const VIEWS_DURABLE_EVERY: Duration = Duration::from_secs(1);
/// Interval at which full caches get memory that others do not use.
const SHARE_MEMORY_EVERY: Duration = Duration::from_secs(1);
/// Pause after a failure before damaged projections are rebuilt again.
const MEND_AGAIN_AFTER: Duration = Duration::from_secs(30);
/// Size of each of the two caches (projection pages, log frames) while a store is inspected before
/// it is opened, in bytes.
const VIEWS_LOOK_CACHE_BYTES: usize = 1 << 20;
/// Maximum total size of the events that wait in memory for the indexer, in bytes. Events wait
/// between two of its steps and while it commits.
const FEED_BYTES_MAX: usize = 4 << 20;
/// Maximum time that closing waits for running reads.
const READS_END_WITHIN: Duration = Duration::from_secs(2);

/// The parts that differ between a store in a folder and one in memory.
pub(super) struct Parts {
    pub(super) log: Arc<dyn EventLog>,
    /// `None`: starting acquires the shard.
    pub(super) acquired: Option<AcquiredShard>,
    /// `None`: the log cannot erase.
    pub(super) erasable: Option<Arc<dyn ErasableLog>>,
    /// `None` for an embedded store, which is one shard.
    pub(super) place: Option<ShardPlace>,
    pub(super) announce: Announce,
    /// Maintains the lock file; called periodically.
    pub(super) keep_lock: Box<dyn Fn() -> bool + Send + Sync>,
    pub(super) packer: Option<LogPacker>,
    pub(super) files: Option<Arc<RedbLog>>,
    pub(super) projections: Projections,
    pub(super) projections_path: Option<PathBuf>,
    pub(super) index: super::indexer::IndexPlace,
    /// Erased content that is still in files.
    pub(super) hidden: Option<Arc<Erasure>>,
    pub(super) erasing_at_open: ErasureAtOpen,
}

impl Engine {
    /// Opens the store in a folder, or creates one. The projections and the index catch up with the
    /// log; if they are damaged or of another version, they are rebuilt from it.
    ///
    /// # Errors
    /// [`OpenError`] states what is wrong with the folder or the log.
    pub async fn open(options: OpenOptions) -> Result<Self, OpenError> {
        let dir = options.data_dir.clone();
        let log = RedbLog::open(&dir, log_options(), options.mode)
            .map_err(|error| log_refused(&dir, error))?;
        let log = Arc::new(log);
        refuse_a_log_that_went_back(&dir, &log).await?;
        let opened = OpenedLog {
            log: Arc::clone(&log) as _,
            erasable: Arc::clone(&log) as _,
            shard: ShardId::default(),
            head: log.head(),
            is_read_only: log.is_read_only(),
        };
        let interrupted = finish_erasing(&dir, &opened).await?;
        drop(opened);
        let erasing_at_open = match interrupted {
            InterruptedErasure::Hidden(erasure, why) => {
                let hidden = Some((erasure, ErasureAtOpen::Hidden { why }));
                let log = to_read(&options, log).await?;
                return Self::open_to_read(options.read_only(), log, hidden).await;
            }
            InterruptedErasure::Finished => ErasureAtOpen::Finished,
            InterruptedErasure::Nothing => ErasureAtOpen::None,
        };
        if options.mode.is_read_only() {
            return Self::open_to_read(options, log, None).await;
        }
        let begins = options.pseudonyms;
        let had_key = crate::has_pseudonym_key(&dir);
        let projections_path = dir.join(VIEWS_FILE);
        let projections = if options.fresh_projections {
            empty(&replacement_path(&projections_path))
        } else {
            open_projections(&projections_path)
        };
        let projections = projections.map_err(|error| failed(&dir, error))?;
        let (announcing, keeping) = (Arc::clone(&log), Arc::clone(&log));
        let parts = Parts {
            packer: LogPacker::start(&log, options.packing),
            files: Some(Arc::clone(&log)),
            log: Arc::clone(&log) as _,
            acquired: None,
            erasable: Some(Arc::clone(&log) as _),
            place: None,
            announce: Box::new(move |address, secret| {
                if let Err(error) = announcing.announce(address, secret) {
                    tracing::warn!(error = %with_causes(&error), "the address could not be written to the lock file");
                }
            }),
            keep_lock: Box::new(move || keeping.keep_lock()),
            projections,
            projections_path: Some(projections_path),
            index: super::indexer::IndexPlace::Folder(dir.join(INDEX_FOLDER)),
            hidden: None,
            erasing_at_open,
        };
        let checked = !options.only_checked;
        let started = match Self::start(options, parts).await {
            Ok(engine) if checked => engine.keep_pseudonyms(begins && !had_key).await,
            started => started,
        };
        if started.is_err() {
            // Tasks already started may hold the log a little longer, but not its lock.
            let _ = log.close().await;
        }
        started
    }

    /// Opens a folder that must not change: updates of the projections stay in memory.
    ///
    /// If there is `hidden` content, the stored projections and index still contain it, so both are
    /// built in memory.
    async fn open_to_read(
        options: OpenOptions,
        log: Arc<RedbLog>,
        hidden: Option<(Arc<Erasure>, ErasureAtOpen)>,
    ) -> Result<Self, OpenError> {
        let dir = options.data_dir.clone();
        let (hidden, erasing_at_open) = hidden.unzip();
        let in_memory = || Projections::in_memory().map_err(|error| failed(&dir, error));
        let projections = match Projections::open_unchanged(
            &dir.join(VIEWS_FILE),
            VIEWS_CACHE_BYTES,
        ) {
            _ if options.fresh_projections || hidden.is_some() => in_memory()?,
            Ok(projections) if consistency_check::belong_to(&projections, &*log) => projections,
            Ok(_) => in_memory()?,
            Err(error) => {
                tracing::warn!(error = %with_causes(&error), "the projections are unusable; they are rebuilt in memory");
                in_memory()?
            }
        };
        let parts = Parts {
            index: match hidden {
                None => super::indexer::IndexPlace::Unchanged(dir.join(INDEX_FOLDER)),
                Some(_) => super::indexer::IndexPlace::Memory,
            },
            hidden,
            erasing_at_open: erasing_at_open.unwrap_or_default(),
            files: Some(Arc::clone(&log)),
            erasable: Some(Arc::clone(&log) as _),
            log,
            acquired: None,
            place: None,
            announce: Box::new(|_, _| {}),
            keep_lock: Box::new(|| true),
            packer: None,
            projections,
            projections_path: None,
        };
        Self::start(options, parts).await
    }

    /// Opens a store in memory: nothing is kept after it is closed.
    ///
    /// # Errors
    /// [`OpenError`] when a thread cannot be started.
    pub async fn in_memory(limits: Limits) -> Result<Self, OpenError> {
        let dir = PathBuf::from("memory");
        let parts = Parts {
            log: Arc::new(MemoryLog::new()),
            acquired: None,
            erasable: None,
            place: None,
            announce: Box::new(|_, _| {}),
            keep_lock: Box::new(|| true),
            packer: None,
            files: None,
            projections: Projections::in_memory().map_err(|error| failed(&dir, error))?,
            projections_path: None,
            index: super::indexer::IndexPlace::Memory,
            hidden: None,
            erasing_at_open: ErasureAtOpen::None,
        };
        Self::start(
            OpenOptions {
                limits,
                ..OpenOptions::new(dir)
            },
            parts,
        )
        .await
    }

    /// Opens a store over any log, with its projections in a folder.
    #[cfg(test)]
    pub(super) async fn over(log: Arc<dyn EventLog>, dir: &Path) -> Result<Self, OpenError> {
        Self::over_with(log, OpenOptions::new(dir)).await
    }

    /// Like `over`, with options.
    #[cfg(any(test, feature = "testkit"))]
    pub(super) async fn over_with(
        log: Arc<dyn EventLog>,
        options: OpenOptions,
    ) -> Result<Self, OpenError> {
        let dir = options.data_dir.as_path();
        let projections_path = dir.join(VIEWS_FILE);
        let parts = Parts {
            log,
            acquired: None,
            erasable: None,
            place: None,
            announce: Box::new(|_, _| {}),
            keep_lock: Box::new(|| true),
            packer: None,
            files: None,
            projections: open_projections(&projections_path).map_err(|error| failed(dir, error))?,
            projections_path: Some(projections_path),
            index: super::indexer::IndexPlace::Memory,
            hidden: None,
            erasing_at_open: ErasureAtOpen::None,
        };
        Self::start(options, parts).await
    }

    pub(super) async fn start(options: OpenOptions, parts: Parts) -> Result<Self, OpenError> {
        let dir = options.data_dir.clone();
        let shard = parts.place.map_or(ShardId::default(), |place| place.shard);
        let acquired = match parts.acquired {
            Some(acquired) => Ok(acquired),
            None => parts.log.acquire(shard).await,
        };
        let acquired = acquired.map_err(|error| log_refused(&dir, error))?;
        let pseudonyms = match parts.files.is_some() {
            true => pseudonyms(&options).map_err(|error| failed(&dir, error))?,
            false => None,
        };
        let shares = Shares::of(&options.limits);
        let reader = Arc::new(LogReader::new(
            Arc::clone(&parts.log),
            shard,
            usize::try_from(shares.frames).unwrap_or(usize::MAX),
        ));
        if let Some(hidden) = parts.hidden {
            reader.hide(hidden);
        }
        let identity = parts.log.identity();
        consistency_check::refuse_a_log_that_went_back(
            &dir,
            &parts.projections,
            &reader,
            acquired.head,
        )
        .await?;
        let projections = catch_up(
            parts.projections,
            parts.projections_path.as_deref(),
            &reader,
            acquired.head,
            |_| {},
        )
        .await
        .map_err(|error| read_refused(&dir, error))?;
        let quarantine = QuarantineList::of(&projections).map_err(|error| failed(&dir, error))?;
        let quarantine = Arc::new(quarantine);
        let projections = Arc::new(ArcSwap::from_pointee(projections));
        let published = Arc::new(AtomicU64::new(acquired.head));
        let (notify, news) = super::append_watch::channel(acquired.head);
        let closing = Arc::new(AtomicBool::new(false));
        let projections_gate = Arc::new(Mutex::new(()));
        let cached_set = Arc::new(CachedConversations::default());
        cached_set.room.set_room(shares.states);
        let deltas = Deltas::default();
        let sequencer = EngineSequencer::new(
            shard,
            (options.limits.clone(), options.quotas.clone()),
            Arc::clone(&projections),
            Arc::clone(&cached_set),
            Arc::clone(&quarantine),
            Arc::clone(&deltas),
            Arc::clone(&published),
        );
        let feed = Arc::new(GroupQueue::new(FEED_BYTES_MAX));
        let publisher = EnginePublisher {
            projections: Arc::clone(&projections),
            deltas,
            published: Arc::clone(&published),
            notify,
            feed: Arc::clone(&feed),
            reader: Arc::clone(&reader),
            reopen: reopen(parts.projections_path.clone()),
            projections_path: parts.projections_path.clone(),
            quarantine: Arc::clone(&quarantine),
            closing: Arc::clone(&closing),
            gate: Arc::clone(&projections_gate),
        };
        let owner = ShardOwner {
            shard,
            epoch: acquired.epoch,
            head: acquired.head,
        };
        let limits = WriterLimits {
            queue_appends_max: options.limits.queue_appends_max,
            queue_bytes_max: options.limits.queue_bytes_max,
            ..WriterLimits::default()
        };
        let writer =
            GroupWriter::start(Arc::clone(&parts.log), owner, sequencer, publisher, limits)
                .map_err(|error| log_refused(&dir, error))?;
        let meaning = Meaning::open(&options, &parts.index)?;
        let indexer = super::indexer::Indexer::open(parts.index, identity, acquired.head)
            .map_err(|error| index_refused(&dir, error))?;
        let knowledge = super::context::KnowledgeCache::new(shares.knowledge);
        let disk = parts.files.as_ref().and_then(|_| disk::space(&dir));
        let inner = Arc::new(Inner {
            work: super::work::Work::new(&options.limits, Arc::clone(&closing)),
            reads: ReadPath {
                projections,
                reader,
                published,
                quarantine,
            },
            appends: AppendPath {
                writer,
                gate: tokio::sync::RwLock::default(),
                pseudonyms,
                cached_set,
                refusals: super::measures::Refusals::default(),
                news,
                feed,
                followers: super::measures::Followers::default(),
            },
            search: SearchPath {
                indexer: Arc::new(indexer),
                meaning: meaning.map(Arc::new),
                facet_sets: FacetSets::default(),
            },
            context: ContextPath {
                windows: super::context::ContextCaches::new(&options.limits, shares),
                knowledge,
            },
            upkeep: Upkeep {
                started_at: TimestampMicros::now(),
                announce: parts.announce,
                served: Mutex::default(),
                keep_lock: parts.keep_lock,
                projections_path: parts.projections_path,
                projections_gate,
                rebuilding: Arc::default(),
                erasings: super::erase::ErasureCounter::default(),
                erasing_at_open: parts.erasing_at_open,
                packer: parts.packer,
                files: parts.files,
                erasable: parts.erasable,
                damaged: Mutex::new(None),
                disk: Mutex::new(disk),
            },
            options,
            log: parts.log,
            shard,
            place: parts.place,
            closing,
        });
        if !inner.options.mode.is_read_only() {
            tokio::spawn(maintain_projections(Arc::downgrade(&inner)));
        }
        tokio::spawn(share_memory(Arc::downgrade(&inner)));
        if disk.is_some() {
            tokio::spawn(super::measures::watch_disk(Arc::downgrade(&inner)));
        }
        tokio::spawn(super::indexer::run(Arc::downgrade(&inner)));
        tokio::spawn(super::meaning::run(Arc::downgrade(&inner)));
        Ok(Self { inner })
    }

    /// Returns whether opening found an interrupted erasure, and what became of it.
    #[must_use]
    pub fn erasing_at_open(&self) -> &ErasureAtOpen {
        &self.inner.upkeep.erasing_at_open
    }

    /// Finishes accepted appends, makes the projections and the index durable, and releases the
    /// folder. Further appends and reads are refused.
    pub async fn close(&self) {
        if self.inner.closing.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Some(meaning) = &self.inner.search.meaning {
            meaning.stop();
        }
        let inner = Arc::clone(&self.inner);
        let stopped = tokio::task::spawn_blocking(move || {
            inner.appends.writer.shutdown();
            if let Some(packer) = &inner.upkeep.packer {
                packer.close();
            }
            if !inner.options.mode.is_read_only()
                && let Err(error) = inner.reads.projections.load().make_durable()
            {
                tracing::warn!(error = %with_causes(&error), "the projections were not made durable; the next start catches up");
            }
        });
        if let Err(error) = stopped.await {
            tracing::error!(error = %with_causes(&error), "the writer did not stop cleanly");
        }
        self.inner.search.indexer.close().await;
        let have_grown = self.inner.reads.projections.load().have_grown();
        if self.inner.reads.close_projections().await && have_grown {
            self.inner.compact_projections().await;
        }
        if let Err(error) = self.inner.log.close().await {
            tracing::warn!(error = %with_causes(&error), "the log was not closed cleanly; the next start repairs it");
        }
    }
}

/// Reopens the log read-only, unless it already is.
async fn to_read(options: &OpenOptions, log: Arc<RedbLog>) -> Result<Arc<RedbLog>, OpenError> {
    if log.is_read_only() {
        return Ok(log);
    }
    let dir = &options.data_dir;
    let refused = |error| log_refused(dir, error);
    // Whatever prevented finishing the erasure may also make this fail.
    let _ = log.close().await;
    drop(log);
    let log = RedbLog::open(dir, log_options(), OpenMode::Read);
    Ok(Arc::new(log.map_err(refused)?))
}

/// Returns the store's pseudonyms, if it has them. Creates their key if the options ask for it.
fn pseudonyms(options: &OpenOptions) -> std::io::Result<Option<Pseudonyms>> {
    match options.pseudonyms && !options.mode.is_read_only() {
        true => Pseudonyms::begin(&options.data_dir).map(Some),
        false => Pseudonyms::of_store(&options.data_dir),
    }
}

/// Checks that the log has not regressed relative to the projections and the index, before any of
/// them is opened for writing: a refusal changes nothing.
async fn refuse_a_log_that_went_back(dir: &Path, log: &Arc<RedbLog>) -> Result<(), OpenError> {
    let index_path = dir.join(INDEX_FOLDER);
    let went_back = |what: String| OpenError::Regressed {
        path: dir.to_owned(),
        what,
    };
    match consistency_check::relation_of_index(&index_path, &**log) {
        LogRelation::Later => return Err(went_back(consistency_check::LATER_TIMELINE.to_owned())),
        LogRelation::Current => {
            // An index that cannot be opened proves nothing; opening it for writing reports why.
            let index = SearchIndex::open_unchanged(&index_path);
            let known = index.map_or(0, |index| index.reached().offset);
            if let Some(what) = super::indexer::find_regression(known, log.head()) {
                return Err(went_back(what));
            }
        }
        LogRelation::Earlier | LogRelation::Foreign => {}
    }
    let Ok(projections) =
        Projections::open_unchanged(&dir.join(VIEWS_FILE), VIEWS_LOOK_CACHE_BYTES)
    else {
        return Ok(());
    };
    let reader = LogReader::new(
        Arc::clone(log) as Arc<dyn EventLog>,
        ShardId::default(),
        VIEWS_LOOK_CACHE_BYTES,
    );
    consistency_check::refuse_a_log_that_went_back(dir, &projections, &reader, log.head()).await
}

impl Inner {
    /// Returns free pages of the projections' file to the file system.
    async fn compact_projections(&self) {
        let Some(path) = self.upkeep.projections_path.clone() else {
            return;
        };
        let however_long = self.options.packing == super::PackingMode::WhenClosed;
        let compact = move || {
            if let Err(error) = Projections::compact(&path, however_long) {
                tracing::warn!(error = %with_causes(&error), "the projections' file could not be compacted");
            }
        };
        // A panic has already been logged.
        let _ = tokio::task::spawn_blocking(compact).await;
    }
}

impl ReadPath {
    /// Closes the projections and waits a limited time for running reads to end. Another engine may
    /// then open the folder, although handles of this engine remain. Returns true if no read uses
    /// the projections any more.
    async fn close_projections(&self) -> bool {
        let projections = self.projections.swap(Arc::new(Projections::closed()));
        let patience = tokio::time::Instant::now() + READS_END_WITHIN;
        while Arc::strong_count(&projections) > 1 && tokio::time::Instant::now() < patience {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Arc::into_inner(projections).is_some()
    }
}

/// Returns the log's default options. End-to-end tests set an environment variable to get smaller
/// segments.
fn log_options() -> RedbLogOptions {
    const SEGMENT_BYTES_MIN: u64 = 1 << 20;
    let mut options = RedbLogOptions::default();
    let wanted = std::env::var("TREERING_SEGMENT_BYTES").ok();
    if let Some(bytes) = wanted.and_then(|bytes| bytes.parse::<u64>().ok()) {
        options.segment_bytes_max = bytes.max(SEGMENT_BYTES_MIN);
    }
    options
}

/// Makes the projections durable periodically, and rebuilds them when they are damaged.
async fn maintain_projections(inner: std::sync::Weak<Inner>) {
    let mut durable_to = 0;
    let mut mend_from = Instant::now();
    loop {
        tokio::time::sleep(VIEWS_DURABLE_EVERY).await;
        let Some(inner) = inner.upgrade() else { return };
        if inner.closing.load(Ordering::Acquire) {
            return;
        }
        (inner.upkeep.keep_lock)();
        if inner.reads.projections.load().are_damaged() {
            if mend_from <= Instant::now() && !inner.repair_projections().await {
                mend_from = Instant::now() + MEND_AGAIN_AFTER;
            }
            continue;
        }
        let published = inner.reads.published.load(Ordering::Acquire);
        if published == durable_to {
            continue;
        }
        let projections = inner.reads.projections.load_full();
        let done = tokio::task::spawn_blocking(move || projections.make_durable()).await;
        match done {
            Ok(Ok(_)) => durable_to = published,
            Ok(Err(error)) => {
                tracing::warn!(error = %with_causes(&error), "the projections were not made durable")
            }
            Err(error) => {
                tracing::warn!(error = %with_causes(&error), "the projections were not made durable")
            }
        }
    }
}

/// Distributes memory between the caches by use, periodically.
async fn share_memory(inner: std::sync::Weak<Inner>) {
    loop {
        tokio::time::sleep(SHARE_MEMORY_EVERY).await;
        let Some(inner) = inner.upgrade() else { return };
        if inner.closing.load(Ordering::Acquire) {
            return;
        }
        inner.share_memory();
    }
}

pub(super) fn failed(dir: &Path, error: impl Into<Box<dyn Error + Send + Sync>>) -> OpenError {
    OpenError::Failed {
        path: dir.to_owned(),
        source: Cause::of(error),
    }
}

pub(super) fn log_refused(dir: &Path, error: LogError) -> OpenError {
    let path = dir.to_owned();
    match error {
        LogError::Locked { holder, .. } => OpenError::Locked {
            path,
            holder: holder.to_string(),
            address: holder.address,
        },
        LogError::ReadOnly { .. } => OpenError::ReadOnly { path },
        LogError::NoStore { .. } => OpenError::NoStore { path },
        LogError::Regressed { what } => OpenError::Regressed { path, what },
        error @ LogError::NewerFormat { .. } => OpenError::NewerFormat {
            path,
            source: Cause::of(error),
        },
        error @ LogError::OlderFormat { .. } => OpenError::OlderFormat {
            path,
            source: Cause::of(error),
        },
        error @ LogError::Damaged { .. } => OpenError::Damaged {
            path,
            source: Cause::of(error),
        },
        error => OpenError::Failed {
            path,
            source: Cause::of(error),
        },
    }
}

fn index_refused(dir: &Path, error: super::indexer::IndexRefusal) -> OpenError {
    match error {
        super::indexer::IndexRefusal::Regressed { what } => OpenError::Regressed {
            path: dir.to_owned(),
            what,
        },
        super::indexer::IndexRefusal::Index(error) => failed(dir, error),
    }
}

fn read_refused(dir: &Path, error: ReadError) -> OpenError {
    let path = dir.to_owned();
    match error {
        error @ ReadError::Damaged { .. } => OpenError::Damaged {
            path,
            source: Cause::of(error),
        },
        ReadError::NewerFormat(error) => OpenError::NewerFormat {
            path,
            source: Cause::of(error),
        },
        error => OpenError::Failed {
            path,
            source: Cause::of(error),
        },
    }
}
