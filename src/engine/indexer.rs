//! Adds events to the search index, asynchronously to the log and without delaying it.
//!
//! A failure leads to a replacement of the index only if the index is damaged, has a different
//! version or belongs to another log. [`remake`](super::reindex) builds the replacement in a
//! separate folder; it is used once it is complete. After any other failure the indexer retries,
//! and searches report that the index lags.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError, RwLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use tokio::sync::{Notify, watch};

use super::{
    Inner, PackingMode, consistency_check,
    error::{ReadError, SearchError},
    reindex,
    searchable::{SearchableContent, searchable},
    sequencer::lock,
};
use treering_domain::{Cause, with_causes};
use treering_log::LogIdentity;
use treering_search::{IndexError, IndexSearchError, SearchIndex, SearchOptions};

pub(super) use super::reindex::rebuild_index;

/// An index more than this many events behind commits rarely: each commit creates a segment, and
/// many small segments are merged repeatedly.
const BEHIND_EVENTS: u64 = 16_384;
/// An index more than this many events behind is written by several threads; starting them costs
/// milliseconds.
const HURRIED_EVENTS: u64 = 65_536;
/// Number of threads in that case, so that an import and the first search after it finish sooner.
const HURRIED_THREADS: usize = 2;
/// How long additions may stay uncommitted if the index is more than [`BEHIND_EVENTS`] behind.
const BEHIND_COMMIT_INTERVAL: Duration = Duration::from_secs(5);
/// Idle time before the index's segments are merged.
const IDLE_PAUSE: Duration = Duration::from_secs(3);
/// Pause before retrying after a failure; doubled for each further failure, unless someone waits
/// for the index.
pub(super) const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Maximum pause between two retries.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(30);

/// Callers that wait for the index get an error after this many failures.
const FAILURES_WHILE_WAITING_MAX: u32 = 3;
/// After this many consecutive failures the index's files are checked: a damaged index fails
/// permanently.
const FAILURES_BEFORE_CHECK: u32 = 3;

/// Pause between two steps of an index that is nearly current, because indexing each group
/// separately is inefficient. Skipped when someone waits.
const STEP_PAUSE: Duration = Duration::from_millis(10);
/// An index more than this many events behind does not pause.
const PAUSE_BEHIND_MAX: u64 = 512;
/// Pause when the publisher is gone, which happens only while an engine closes.
const GONE_PAUSE: Duration = Duration::from_millis(5);

/// The location of the index.
pub(super) enum IndexPlace {
    Memory,
    Folder(PathBuf),
    /// A folder that must not change.
    Unchanged(PathBuf),
}

/// Why the index was refused.
#[derive(Debug)]
pub(super) enum IndexRefusal {
    /// The log regressed: the index has events of this log that the log lacks.
    Regressed {
        what: String,
    },
    Index(IndexError),
}

impl From<IndexError> for IndexRefusal {
    fn from(error: IndexError) -> Self {
        Self::Index(error)
    }
}

/// The state of the indexer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum IndexerState {
    /// The index is open and follows the log.
    Following,
    /// The index could not be opened, but it may still be usable.
    Opening,
    /// The index is unusable and is being rebuilt.
    Remaking { reason: String },
}

/// The index and its progress.
pub(super) struct Indexer {
    pub(super) place: IndexPlace,
    /// The log that the index belongs to.
    pub(super) identity: LogIdentity,
    index: RwLock<Arc<SearchIndex>>,
    /// The offset up to which searches see the log.
    pub(super) reached: watch::Sender<u64>,
    /// Someone waits for the index: commit at once.
    hurry: Notify,
    /// The task has ended.
    ended: watch::Sender<bool>,
    doing: Mutex<IndexerState>,
    /// Searches use a substitute, because the index at `place` is unusable.
    pub(super) stands_in: AtomicBool,
    /// Held while the index is written to or replaced.
    pub(super) gate: tokio::sync::Mutex<()>,
    /// Held while an index is rebuilt.
    pub(super) remaking: tokio::sync::Mutex<()>,
    /// Number of events that could not be read for indexing, as far as this process knows.
    pub(super) not_indexed: AtomicU64,
    /// Number of failures since the last success, and the last message.
    failures: watch::Sender<(u32, String)>,
}

impl Indexer {
    /// Opens the index. An index that cannot be opened does not prevent opening the store: opening
    /// is retried, or the index is rebuilt if it is unusable.
    ///
    /// # Errors
    /// [`IndexRefusal::Regressed`] when the index belongs to this log and has events that the log
    /// lacks.
    pub(crate) fn open(
        place: IndexPlace,
        identity: LogIdentity,
        head: u64,
    ) -> Result<Self, IndexRefusal> {
        reindex::clean_up(&place);
        let opened = open_index(&place, identity);
        let unusable = |reason: String| {
            tracing::warn!(reason, "the search index is rebuilt from the log");
            IndexerState::Remaking { reason }
        };
        let (index, doing) = match opened {
            Ok(index) => match find_regression(index.reached().offset, head) {
                None => (Some(index), IndexerState::Following),
                Some(what) => return Err(IndexRefusal::Regressed { what }),
            },
            Err(IndexError::NeedsRebuild { reason }) => (None, unusable(reason)),
            Err(error) => {
                tracing::warn!(error = %with_causes(&error), "the search index could not be opened; retrying");
                (None, IndexerState::Opening)
            }
        };
        let stands_in = index.is_none();
        let index = match index {
            Some(index) => index,
            None => SearchIndex::in_memory()?,
        };
        let reached = index.reached().offset;
        Ok(Self {
            place,
            identity,
            index: RwLock::new(Arc::new(index)),
            reached: watch::Sender::new(reached),
            hurry: Notify::new(),
            ended: watch::Sender::new(false),
            doing: Mutex::new(doing),
            stands_in: AtomicBool::new(stands_in),
            gate: tokio::sync::Mutex::default(),
            remaking: tokio::sync::Mutex::default(),
            not_indexed: AtomicU64::new(0),
            failures: watch::Sender::default(),
        })
    }

    pub(crate) fn index(&self) -> Arc<SearchIndex> {
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&index)
    }

    pub(crate) fn reached(&self) -> u64 {
        *self.reached.borrow()
    }

    /// Returns the number of events that cannot be read and therefore are not indexed.
    pub(crate) fn not_indexed(&self) -> u64 {
        self.not_indexed.load(Ordering::Acquire)
    }

    /// Returns why the index does not cover the log up to `head`; `None` if it does.
    pub(crate) fn lagging(&self, head: u64) -> Option<String> {
        if self.reached() >= head {
            let left = self.not_indexed.load(Ordering::Acquire);
            return (left > 0).then(|| format!("{left} events cannot be read and are not indexed"));
        }
        let (count, message) = self.failures.borrow().clone();
        match self.doing() {
            IndexerState::Remaking { reason } => Some(format!("it is being rebuilt: {reason}")),
            _ if count > 0 => Some(message),
            IndexerState::Opening => Some("it is not yet open".to_owned()),
            IndexerState::Following => None,
        }
    }

    /// Waits until searches see everything up to an offset.
    ///
    /// # Errors
    /// [`SearchError::Index`] when indexing keeps failing, for example because the disk is full or
    /// there are too many open files.
    pub(crate) async fn wait_for(&self, offset: u64) -> Result<(), SearchError> {
        let mut reached = self.reached.subscribe();
        let mut failures = self.failures.subscribe();
        let failed = |message: String| {
            Err(SearchError::Index {
                source: Cause::of(message),
            })
        };
        let mut seen = 0;
        while *reached.borrow_and_update() < offset {
            self.hurry.notify_one();
            if *self.ended.borrow() {
                return failed("the indexer has stopped".to_owned());
            }
            tokio::select! {
                _ = reached.changed() => {}
                _ = failures.changed() => {
                    let (count, message) = failures.borrow_and_update().clone();
                    seen += u32::from(count > 0);
                    if seen >= FAILURES_WHILE_WAITING_MAX {
                        return failed(message);
                    }
                }
                // The indexer may have ended in the meantime.
                () = tokio::time::sleep(RETRY_PAUSE) => {}
            }
        }
        Ok(())
    }

    /// Returns the number of events that were not added to the index yet.
    fn behind(&self, head: u64) -> u64 {
        head.saturating_sub(self.index().added_to().offset)
    }

    /// Pauses so that events accumulate; returns true if someone waits for them.
    async fn pause(&self) -> bool {
        tokio::select! {
            () = self.hurry.notified() => true,
            () = tokio::time::sleep(STEP_PAUSE) => false,
        }
    }

    /// Counts a failure, and returns the number of consecutive ones.
    fn note_failure(&self, message: String) -> u32 {
        self.failures.send_modify(|(count, last)| {
            *count += 1;
            *last = message;
        });
        self.failures.borrow().0
    }

    fn note_success(&self) {
        if self.failures.borrow().0 > 0 {
            self.failures.send_replace((0, String::new()));
        }
    }

    /// Returns whether searches use the store's own index, and it is not being replaced.
    pub(super) fn is_following(&self) -> bool {
        self.doing() == IndexerState::Following && !self.stands_in.load(Ordering::Acquire)
    }

    fn doing(&self) -> IndexerState {
        lock(&self.doing).clone()
    }

    fn set_doing(&self, doing: IndexerState) {
        *lock(&self.doing) = doing;
    }

    /// Waits until the task has committed and ended, and releases the folder.
    pub(crate) async fn close(&self) {
        self.hurry.notify_one();
        let mut ended = self.ended.subscribe();
        while !*ended.borrow_and_update() {
            if ended.changed().await.is_err() {
                break;
            }
        }
        // A running rebuild notices that the engine is closing, and ends.
        let _remaking = self.remaking.lock().await;
        match SearchIndex::in_memory() {
            Ok(empty) => self.replace(Arc::new(empty)),
            Err(error) => {
                tracing::warn!(error = %with_causes(&error), "the search index is still open")
            }
        }
    }

    /// Publishes a commit to an index, unless the index was found damaged in the meantime.
    pub(super) fn publish_commit(&self, index: &Arc<SearchIndex>, offset: u64) {
        let doing = lock(&self.doing);
        if *doing == IndexerState::Following && Arc::ptr_eq(index, &self.index()) {
            self.reached.send_replace(offset);
        }
    }

    /// Marks an index as damaged after a search found damage; it is then rebuilt.
    pub(crate) fn mark_damaged(&self, index: &Arc<SearchIndex>, reason: &str) {
        let mut doing = lock(&self.doing);
        // Another search was first, or the index has been replaced.
        if *doing != IndexerState::Following || !Arc::ptr_eq(index, &self.index()) {
            return;
        }
        tracing::warn!(
            reason,
            "the search index is damaged; it is rebuilt from the log"
        );
        *doing = IndexerState::Remaking {
            reason: reason.to_owned(),
        };
        self.reached.send_replace(0);
        self.hurry.notify_one();
    }

    pub(super) fn replace(&self, index: Arc<SearchIndex>) {
        *self.index.write().unwrap_or_else(PoisonError::into_inner) = index;
    }

    /// Makes searches use an index that is in its final location.
    pub(super) fn answers(&self, index: Arc<SearchIndex>) {
        let reached = index.reached().offset;
        self.replace(index);
        self.stands_in.store(false, Ordering::Release);
        self.set_doing(IndexerState::Following);
        self.note_success();
        self.reached.send_replace(reached);
    }
}

/// Returns the evidence of a regressed log, if an index has seen event `known` but the log ends at
/// `head`.
pub(super) fn find_regression(known: u64, head: u64) -> Option<String> {
    let missing = known.checked_sub(head).filter(|missing| *missing > 0)?;
    Some(format!(
        "the log ends at event {head}, but the search index has event {known}: {missing} events \
         are missing"
    ))
}

pub(super) fn open_index(
    place: &IndexPlace,
    identity: LogIdentity,
) -> Result<SearchIndex, IndexError> {
    let (dir, changes) = match place {
        IndexPlace::Memory => return SearchIndex::in_memory(),
        IndexPlace::Folder(dir) => (dir, true),
        IndexPlace::Unchanged(dir) => (dir, false),
    };
    let made = dir.join("meta.json").exists();
    if made && !consistency_check::index_is_of(dir, identity) {
        return Err(IndexError::NeedsRebuild {
            reason: "it belongs to another log".to_owned(),
        });
    }
    if !changes {
        return SearchIndex::open_unchanged(dir);
    }
    let options = SearchOptions {
        hurried_threads: HURRIED_THREADS,
        ..SearchOptions::default()
    };
    let index = SearchIndex::open(dir, options)?;
    if !made {
        sign(dir, identity)?;
    }
    Ok(index)
}

/// Records in an index's folder which log it belongs to.
pub(super) fn sign(dir: &Path, identity: LogIdentity) -> Result<(), IndexError> {
    consistency_check::sign_index(dir, identity).map_err(|source| IndexError::Io {
        action: "signed",
        dir: dir.to_owned(),
        source,
    })
}

/// Runs the indexer's task until the engine closes or is dropped.
pub(super) async fn run(weak: Weak<Inner>) {
    let Some((indexer, mut news)) = weak.upgrade().map(|inner| {
        (
            Arc::clone(&inner.search.indexer),
            inner.appends.news.of_log(),
        )
    }) else {
        return;
    };
    let mut hurried = false;
    // The thread that merges segments, and whether nothing was added since the merge.
    let mut joiner: Option<JoinHandle<()>> = None;
    let mut is_joined = false;
    while let Some(inner) = weak.upgrade() {
        let closing = inner.closing.load(Ordering::Acquire);
        if closing {
            if indexer.doing() == IndexerState::Following && held(&inner).is_ok() {
                let _gate = indexer.gate.lock().await;
                let is_whole = inner.options.packing == PackingMode::WhenClosed;
                let last = async {
                    while step(&inner).await? && is_whole {}
                    finish(&inner).await
                };
                if let Err(error) = last.await {
                    tracing::warn!(error = %with_causes(&error), "the search index was not committed; it continues from its last commit");
                }
                if inner.options.packing == PackingMode::WhenClosed {
                    let index = indexer.index();
                    let joined = blocking(move || index.join_before_closing()).await;
                    if let Err(error) = joined {
                        tracing::warn!(error = %with_causes(&error), "segments of the search index were not merged");
                    }
                }
            }
            break;
        }
        match work(&inner).await {
            Ok(worked) => {
                if indexer.doing() == IndexerState::Following {
                    indexer.note_success();
                }
                if worked {
                    is_joined = false;
                    let behind = indexer.behind(inner.reads.published.load(Ordering::Acquire));
                    drop(inner);
                    if !hurried && behind <= PAUSE_BEHIND_MAX {
                        hurried = indexer.pause().await;
                    }
                    continue;
                }
                hurried = false;
            }
            Err(failure) => {
                drop(inner);
                recover(&indexer, failure).await;
                // Retry at once: a waiting caller does not signal twice.
                continue;
            }
        }
        // A waiting task must not keep a dropped engine alive.
        drop(inner);
        let due = indexer.index().commit_due_at();
        tokio::select! {
            changed = news.changed() => if changed.is_err() {
                tokio::time::sleep(GONE_PAUSE).await;
            },
            () = indexer.hurry.notified() => hurried = true,
            () = sleep_until(due) => {}
            () = tokio::time::sleep(IDLE_PAUSE), if !is_joined => {
                if joiner.as_ref().is_none_or(JoinHandle::is_finished) {
                    is_joined = true;
                    joiner = join_in_background(&indexer.index());
                }
            }
        }
    }
    indexer.ended.send_replace(true);
}

/// Merges the index's segments on a thread. Neither closing nor process exit waits for it.
fn join_in_background(index: &Arc<SearchIndex>) -> Option<JoinHandle<()>> {
    let index = Arc::downgrade(index);
    let started = std::thread::Builder::new()
        .name("index-joiner".to_owned())
        .spawn(move || join_segments(&index));
    let failed = |error| tracing::warn!(error = %with_causes(&error), "the thread that merges segments of the search index could not be started");
    started.map_err(failed).ok()
}

fn join_segments(index: &Weak<SearchIndex>) {
    if let Err(error) = SearchIndex::join_segments(index) {
        tracing::warn!(error = %with_causes(&error), "segments of the search index were not merged");
    }
}

/// Errors if the folder at the index's path is no longer this store's: the index is written by
/// path.
pub(super) fn held(inner: &Inner) -> Result<(), Failure> {
    match (inner.upkeep.keep_lock)() {
        true => Ok(()),
        false => Err(Failure::NotHeld),
    }
}

/// Does the next step; returns true if there was something to do.
async fn work(inner: &Arc<Inner>) -> Result<bool, Failure> {
    let indexer = &inner.search.indexer;
    held(inner)?;
    match indexer.doing() {
        IndexerState::Following => {
            let _gate = indexer.gate.lock().await;
            step(inner).await
        }
        IndexerState::Opening => {
            let inner = Arc::clone(inner);
            let opened = blocking(move || {
                open_index(&inner.search.indexer.place, inner.search.indexer.identity)
            })
            .await;
            indexer.answers(Arc::new(opened?));
            Ok(true)
        }
        IndexerState::Remaking { .. } => rebuild_index(inner, |_| {}).await.map(|_| true),
    }
}

/// Why indexing did not proceed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error(transparent)]
    Index(#[from] IndexError),
    #[error(transparent)]
    Search(#[from] IndexSearchError),
    #[error(transparent)]
    Log(#[from] ReadError),
    #[error(transparent)]
    Task(#[from] tokio::task::JoinError),
    #[error("the engine is closing")]
    Closing,
    #[error(
        "the data folder at this path is not the one that this process opened: stop the process \
         and start it with the folder's new path"
    )]
    NotHeld,
}

/// Runs work that may wait for the disk.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, IndexError> + Send + 'static,
) -> Result<T, Failure> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(Failure::Index),
        Err(error) => Err(error.into()),
    }
}

/// Handles a failure: only damage leads to a rebuild.
async fn recover(indexer: &Arc<Indexer>, failure: Failure) {
    tracing::warn!(error = %failure, "indexing failed; retrying");
    let failures = indexer.note_failure(with_causes(&failure).to_string());
    let damage = match failure {
        Failure::Index(IndexError::NeedsRebuild { reason }) => Some(reason),
        Failure::NotHeld => None,
        _ if indexer.doing() == IndexerState::Following => recover_writer(indexer, failures).await,
        _ => None,
    };
    if let Some(reason) = damage {
        tracing::warn!(reason, "the search index is rebuilt from the log");
        indexer.set_doing(IndexerState::Remaking { reason });
    }
    tokio::time::sleep(RETRY_PAUSE).await;
    let longer = RETRY_PAUSE * (1 << failures.min(5)) - RETRY_PAUSE * 2;
    tokio::select! {
        () = tokio::time::sleep(longer.min(RETRY_PAUSE_MAX)) => {}
        () = indexer.hurry.notified() => {}
    }
}

/// Recovers the index's writer; returns the damage if it cannot be recovered.
async fn recover_writer(indexer: &Arc<Indexer>, failures: u32) -> Option<String> {
    let _gate = indexer.gate.lock().await;
    let index = indexer.index();
    let recovered = blocking(move || {
        if failures >= FAILURES_BEFORE_CHECK {
            index.check_files()?;
        }
        index.recover()
    });
    match recovered.await {
        Ok(_) => None,
        Err(Failure::Index(IndexError::NeedsRebuild { reason })) => Some(reason),
        Err(error) => {
            tracing::warn!(error = %with_causes(&error), "the search index is not yet writable");
            None
        }
    }
}

async fn sleep_until(due: Option<std::time::Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

/// Indexes some records; returns true if there was something to do.
async fn step(inner: &Arc<Inner>) -> Result<bool, Failure> {
    let index = inner.search.indexer.index();
    let head = inner.reads.published.load(Ordering::Acquire);
    let behind = head.saturating_sub(index.added_to().offset);
    if behind > HURRIED_EVENTS || behind == 0 {
        let hurried = Arc::clone(&index);
        blocking(move || hurried.set_hurried(behind > 0)).await?;
    }
    if behind == 0 {
        let waited_for = inner.search.indexer.reached() < head;
        if waited_for {
            finish(inner).await?;
        }
        return Ok(false);
    }
    let added = add_some(inner, &index, head).await?;
    let left = added.not_indexed;
    inner
        .search
        .indexer
        .not_indexed
        .fetch_add(left, Ordering::AcqRel);
    if added.committed {
        inner
            .search
            .indexer
            .publish_commit(&index, index.reached().offset);
    }
    Ok(true)
}

/// The result of adding records.
pub(super) struct AddOutcome {
    pub(crate) committed: bool,
    /// Events that could not be read.
    pub(crate) not_indexed: u64,
}

/// Adds the next records of the log to an index that has not reached `head`.
pub(super) async fn add_some(
    inner: &Arc<Inner>,
    index: &Arc<SearchIndex>,
    head: u64,
) -> Result<AddOutcome, Failure> {
    let from = index.added_to().offset + 1;
    let SearchableContent {
        events,
        reached,
        not_indexed,
        recalled_before,
        ..
    } = searchable(inner, from, head).await?;
    let index = Arc::clone(index);
    let reached_position = inner.reads.reader.position(reached);
    let committed = blocking(move || {
        index.replace(&recalled_before)?;
        index.add(&events, reached_position)?;
        if head - reached > BEHIND_EVENTS {
            return index.commit_if_older(BEHIND_COMMIT_INTERVAL);
        }
        index.commit_if_due()
    });
    Ok(AddOutcome {
        committed: committed.await?,
        not_indexed,
    })
}

async fn finish(inner: &Arc<Inner>) -> Result<(), Failure> {
    let index = inner.search.indexer.index();
    let committed = Arc::clone(&index);
    let reached = blocking(move || committed.commit()).await?;
    inner.search.indexer.publish_commit(&index, reached.offset);
    Ok(())
}
