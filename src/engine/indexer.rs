//! Brings events into the search index, behind the log and never in its way.
//!
//! An index is thrown away for two reasons only, damage and another version, and
//! not before a new one is whole: [`remake`](super::reindex) makes it in a folder
//! of its own. Whatever else goes wrong is tried again, and searches say that the
//! index lags.

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
    Dense, Inner,
    error::{ReadError, SearchError},
    reindex,
    searchable::{Searchable, searchable},
    sequencer::lock,
    witness,
};
use crate::{
    domain::{Cause, Position, with_causes},
    log::LogIdentity,
    search::{IndexError, SearchIndex, SearchOptions},
};

pub(super) use super::reindex::remake;

/// An index that is so many events behind commits seldom: each commit is a segment,
/// and many small ones are merged over and over.
const BEHIND_EVENTS: u64 = 16_384;
/// One that is so many behind is written by several threads: starting them costs
/// milliseconds.
const HURRIED_EVENTS: u64 = 65_536;
/// Threads that index then: an import is over sooner, and its first search with it.
const HURRIED_THREADS: usize = 2;
/// How long what was added may stay invisible then.
const BEHIND_COMMIT_INTERVAL: Duration = Duration::from_secs(5);
/// So long nothing comes until the index's segments are put together.
const IDLE_PAUSE: Duration = Duration::from_secs(3);
/// Pause before the index is tried again after a failure; it doubles with each
/// further one, unless someone waits for the index.
pub(super) const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause between two tries.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(30);

/// Whoever waits for the index is told after so many failures.
const FAILURES_WHILE_WAITING_MAX: u32 = 3;
/// After so many failures in a row the index's files are checked: one that is
/// damaged fails for ever.
const FAILURES_BEFORE_CHECK: u32 = 3;

/// Pause between two steps of an index that has nearly all of the log: groups come
/// faster than it is worth to look at each by itself. Whoever waits is not kept waiting.
const STEP_PAUSE: Duration = Duration::from_millis(10);
/// An index that is so many events behind does not pause.
const PAUSE_BEHIND_MAX: u64 = 512;
/// Pause when the publisher has gone, which is only so while an engine closes.
const GONE_PAUSE: Duration = Duration::from_millis(5);

/// Where the index is.
pub(super) enum IndexPlace {
    Memory,
    Folder(PathBuf),
    /// A folder in which nothing may change.
    Unchanged(PathBuf),
}

/// Why there is no index.
#[derive(Debug)]
pub(super) enum IndexRefused {
    /// It knows events of this log that the log does not have.
    WentBack {
        what: String,
    },
    Index(IndexError),
}

impl From<IndexError> for IndexRefused {
    fn from(error: IndexError) -> Self {
        Self::Index(error)
    }
}

/// What the indexer is at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    /// The index is open and follows the log.
    Following,
    /// The index could not be opened, and it is not known to be of no use.
    Opening,
    /// The index is of no use, and is made anew.
    Remaking { reason: String },
}

/// The index, and how far it has come.
pub(super) struct Indexer {
    pub(super) place: IndexPlace,
    /// The log that it is of.
    pub(super) identity: LogIdentity,
    index: RwLock<Arc<SearchIndex>>,
    /// What a search sees.
    pub(super) reached: watch::Sender<u64>,
    /// Someone waits for the index: commit at once.
    hurry: Notify,
    /// The task has ended.
    ended: watch::Sender<bool>,
    doing: Mutex<Doing>,
    /// What is searched is not the index at its place, which cannot be used.
    pub(super) stands_in: AtomicBool,
    /// Held while the index is written to or replaced.
    pub(super) gate: tokio::sync::Mutex<()>,
    /// Held while an index is made anew.
    pub(super) remaking: tokio::sync::Mutex<()>,
    /// Events that could not be read when they were to be indexed, as far as this
    /// process has met them.
    pub(super) not_indexed: AtomicU64,
    /// Failures since the last success, and what the last one said.
    failures: watch::Sender<(u32, String)>,
}

impl Indexer {
    /// Opens the index. One that cannot be opened is no reason to open nothing:
    /// it is tried again, or made anew if it is of no use.
    ///
    /// # Errors
    /// [`IndexRefused::WentBack`] when it was made from this log and knows more
    /// than that has.
    pub fn open(place: IndexPlace, identity: LogIdentity, head: u64) -> Result<Self, IndexRefused> {
        reindex::tidy(&place);
        let opened = open_index(&place, identity);
        let unusable = |reason: String| {
            tracing::warn!(reason, "the search index is made anew from the log");
            Doing::Remaking { reason }
        };
        let (index, doing) = match opened {
            Ok(index) => match knows_more(index.reached().offset, head) {
                None => (Some(index), Doing::Following),
                Some(what) => return Err(IndexRefused::WentBack { what }),
            },
            Err(IndexError::NeedsRebuild { reason }) => (None, unusable(reason)),
            Err(error) => {
                tracing::warn!(error = %with_causes(&error), "the search index could not be opened; it is tried again");
                (None, Doing::Opening)
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

    pub fn index(&self) -> Arc<SearchIndex> {
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&index)
    }

    pub fn reached(&self) -> u64 {
        *self.reached.borrow()
    }

    /// Events that cannot be read, and so are not in it.
    pub fn not_indexed(&self) -> u64 {
        self.not_indexed.load(Ordering::Acquire)
    }

    /// Why the index does not have all of the log up to `head`; none: it does.
    pub fn lagging(&self, head: u64) -> Option<String> {
        if self.reached() >= head {
            let left = self.not_indexed.load(Ordering::Acquire);
            return (left > 0)
                .then(|| format!("{left} events cannot be read, and so are not in it"));
        }
        let (count, message) = self.failures.borrow().clone();
        match self.doing() {
            Doing::Remaking { reason } => Some(format!("it is made anew, because {reason}")),
            _ if count > 0 => Some(message),
            Doing::Opening => Some("it is not open yet".to_owned()),
            Doing::Following => None,
        }
    }

    /// Waits until a search sees everything up to an offset.
    ///
    /// # Errors
    /// [`SearchError::Index`] when indexing keeps failing: the disk is full, or
    /// there are too many open files.
    pub async fn wait_for(&self, offset: u64) -> Result<(), SearchError> {
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
                // It may have ended meanwhile.
                () = tokio::time::sleep(RETRY_PAUSE) => {}
            }
        }
        Ok(())
    }

    /// Events that were not brought to the index yet.
    fn behind(&self, head: u64) -> u64 {
        head.saturating_sub(self.index().added_to().offset)
    }

    /// Lets some events come together; true: someone waits for them.
    async fn pause(&self) -> bool {
        tokio::select! {
            () = self.hurry.notified() => true,
            () = tokio::time::sleep(STEP_PAUSE) => false,
        }
    }

    /// Counts a failure, and says how many there were in a row.
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

    fn doing(&self) -> Doing {
        lock(&self.doing).clone()
    }

    fn set_doing(&self, doing: Doing) {
        *lock(&self.doing) = doing;
    }

    /// Waits for the task to commit what it has and end, and lets the folder go.
    pub async fn close(&self) {
        self.hurry.notify_one();
        let mut ended = self.ended.subscribe();
        while !*ended.borrow_and_update() {
            if ended.changed().await.is_err() {
                break;
            }
        }
        // One that is being made anew sees that the engine closes, and ends.
        let _remaking = self.remaking.lock().await;
        match SearchIndex::in_memory() {
            Ok(empty) => self.replace(Arc::new(empty)),
            Err(error) => {
                tracing::warn!(error = %with_causes(&error), "the search index stays open")
            }
        }
    }

    /// What was committed to an index can be searched, unless that was found to be
    /// damaged meanwhile.
    pub(super) fn came_to(&self, index: &Arc<SearchIndex>, offset: u64) {
        let doing = lock(&self.doing);
        if *doing == Doing::Following && Arc::ptr_eq(index, &self.index()) {
            self.reached.send_replace(offset);
        }
    }

    /// A search has found an index to be damaged: it is made anew.
    pub fn condemn(&self, index: &Arc<SearchIndex>, reason: &str) {
        let mut doing = lock(&self.doing);
        // Another search was first, or it is another index by now.
        if *doing != Doing::Following || !Arc::ptr_eq(index, &self.index()) {
            return;
        }
        tracing::warn!(
            reason,
            "the search index is damaged; it is made anew from the log"
        );
        *doing = Doing::Remaking {
            reason: reason.to_owned(),
        };
        self.reached.send_replace(0);
        self.hurry.notify_one();
    }

    pub(super) fn replace(&self, index: Arc<SearchIndex>) {
        *self.index.write().unwrap_or_else(PoisonError::into_inner) = index;
    }

    /// An index at its place answers from now on.
    pub(super) fn answers(&self, index: Arc<SearchIndex>) {
        let reached = index.reached().offset;
        self.replace(index);
        self.stands_in.store(false, Ordering::Release);
        self.set_doing(Doing::Following);
        self.note_success();
        self.reached.send_replace(reached);
    }
}

/// What an index proves that has seen event `known` of a log that ends with `head`.
pub(super) fn knows_more(known: u64, head: u64) -> Option<String> {
    let missing = known.checked_sub(head).filter(|missing| *missing > 0)?;
    Some(format!(
        "its log ends with event {head}, but the search index has seen event {known}: {missing} \
         events are missing"
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
    if made && !witness::index_is_of(dir, identity) {
        return Err(IndexError::NeedsRebuild {
            reason: "it is of another log".to_owned(),
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

/// Writes into an index's folder which log it is of.
pub(super) fn sign(dir: &Path, identity: LogIdentity) -> Result<(), IndexError> {
    witness::sign_index(dir, identity).map_err(|source| IndexError::Io {
        action: "signed",
        dir: dir.to_owned(),
        source,
    })
}

/// The indexer's task: ends when the engine closes or is dropped.
pub(super) async fn run(weak: Weak<Inner>) {
    let Some((indexer, mut news)) = weak
        .upgrade()
        .map(|inner| (Arc::clone(&inner.indexer), inner.news.of_log()))
    else {
        return;
    };
    let mut hurried = false;
    // What puts segments together, and whether nothing was added since.
    let mut joiner: Option<JoinHandle<()>> = None;
    let mut is_joined = false;
    while let Some(inner) = weak.upgrade() {
        let closing = inner.closing.load(Ordering::Acquire);
        if closing {
            if indexer.doing() == Doing::Following {
                let _gate = indexer.gate.lock().await;
                let is_whole = inner.options.dense == Dense::WhenClosed;
                let last = async {
                    while step(&inner).await? && is_whole {}
                    finish(&inner).await
                };
                if let Err(error) = last.await {
                    tracing::warn!(error = %with_causes(&error), "the search index was not committed; it goes on from its mark");
                }
                if inner.options.dense == Dense::WhenClosed {
                    let index = indexer.index();
                    let joined = blocking(move || index.join_before_closing()).await;
                    if let Err(error) = joined {
                        tracing::warn!(error = %with_causes(&error), "segments of the search index were not joined");
                    }
                }
            }
            break;
        }
        match work(&inner).await {
            Ok(worked) => {
                if indexer.doing() == Doing::Following {
                    indexer.note_success();
                }
                if worked {
                    is_joined = false;
                    let behind = indexer.behind(inner.published.load(Ordering::Acquire));
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
                // At once: whoever waits for the index gives no second sign.
                continue;
            }
        }
        // While it waits, the task must not keep a dropped engine alive.
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

/// Puts the index's segments together. Neither a close nor the end of the process waits
/// for it.
fn join_in_background(index: &Arc<SearchIndex>) -> Option<JoinHandle<()>> {
    let index = Arc::downgrade(index);
    let started = std::thread::Builder::new()
        .name("index-joiner".to_owned())
        .spawn(move || join_segments(&index));
    let failed = |error| tracing::warn!(error = %with_causes(&error), "no thread puts the search index's segments together");
    started.map_err(failed).ok()
}

fn join_segments(index: &Weak<SearchIndex>) {
    if let Err(error) = SearchIndex::join_segments(index) {
        tracing::warn!(error = %with_causes(&error), "segments of the search index were not joined");
    }
}

/// What is to do next; true when there was something.
async fn work(inner: &Arc<Inner>) -> Result<bool, Failure> {
    let indexer = &inner.indexer;
    match indexer.doing() {
        Doing::Following => {
            let _gate = indexer.gate.lock().await;
            step(inner).await
        }
        Doing::Opening => {
            let inner = Arc::clone(inner);
            let opened =
                blocking(move || open_index(&inner.indexer.place, inner.indexer.identity)).await;
            indexer.answers(Arc::new(opened?));
            Ok(true)
        }
        Doing::Remaking { .. } => remake(inner, |_| {}).await.map(|_| true),
    }
}

/// Why the index did not go on.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error(transparent)]
    Index(#[from] IndexError),
    #[error(transparent)]
    Log(#[from] ReadError),
    #[error(transparent)]
    Task(#[from] tokio::task::JoinError),
    #[error("the engine is closing")]
    Closing,
}

/// Runs what may wait for the disk.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, IndexError> + Send + 'static,
) -> Result<T, Failure> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(Failure::Index),
        Err(error) => Err(error.into()),
    }
}

/// After a failure: only damage is a reason for a new index.
async fn recover(indexer: &Arc<Indexer>, failure: Failure) {
    tracing::warn!(error = %failure, "indexing failed; it is tried again");
    let failures = indexer.note_failure(with_causes(&failure).to_string());
    let damage = match failure {
        Failure::Index(IndexError::NeedsRebuild { reason }) => Some(reason),
        _ if indexer.doing() == Doing::Following => recover_writer(indexer, failures).await,
        _ => None,
    };
    if let Some(reason) = damage {
        tracing::warn!(reason, "the search index is made anew from the log");
        indexer.set_doing(Doing::Remaking { reason });
    }
    tokio::time::sleep(RETRY_PAUSE).await;
    let longer = RETRY_PAUSE * (1 << failures.min(5)) - RETRY_PAUSE * 2;
    tokio::select! {
        () = tokio::time::sleep(longer.min(RETRY_PAUSE_MAX)) => {}
        () = indexer.hurry.notified() => {}
    }
}

/// Makes the index write again; what is damaged, if it never will.
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
            tracing::warn!(error = %with_causes(&error), "the search index cannot be written yet");
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

/// Indexes some records; true when there was something to do.
async fn step(inner: &Arc<Inner>) -> Result<bool, Failure> {
    let index = inner.indexer.index();
    let head = inner.published.load(Ordering::Acquire);
    let behind = head.saturating_sub(index.added_to().offset);
    if behind > HURRIED_EVENTS || behind == 0 {
        let hurried = Arc::clone(&index);
        blocking(move || hurried.set_hurried(behind > 0)).await?;
    }
    if behind == 0 {
        let waited_for = inner.indexer.reached() < head;
        if waited_for {
            finish(inner).await?;
        }
        return Ok(false);
    }
    let added = add_some(inner, &index, head).await?;
    let left = added.not_indexed;
    inner.indexer.not_indexed.fetch_add(left, Ordering::AcqRel);
    if added.committed {
        inner.indexer.came_to(&index, index.reached().offset);
    }
    Ok(true)
}

/// What adding some records did.
pub(super) struct Added {
    pub committed: bool,
    /// Events that could not be read.
    pub not_indexed: u64,
}

/// Adds the next records of the log to an index that has not come to `head`.
pub(super) async fn add_some(
    inner: &Arc<Inner>,
    index: &Arc<SearchIndex>,
    head: u64,
) -> Result<Added, Failure> {
    let from = index.added_to().offset + 1;
    let Searchable {
        events,
        reached,
        not_indexed,
    } = searchable(inner, from, head).await?;
    let index = Arc::clone(index);
    let committed = blocking(move || {
        index.add(&events, Position::local(reached))?;
        if head - reached > BEHIND_EVENTS {
            return index.commit_if_older(BEHIND_COMMIT_INTERVAL);
        }
        index.commit_if_due()
    });
    Ok(Added {
        committed: committed.await?,
        not_indexed,
    })
}

async fn finish(inner: &Arc<Inner>) -> Result<(), Failure> {
    let index = inner.indexer.index();
    let committed = Arc::clone(&index);
    let reached = blocking(move || committed.commit()).await?;
    inner.indexer.came_to(&index, reached.offset);
    Ok(())
}
