//! Brings events into the search index, behind the log and never in its way.

use std::{
    path::PathBuf,
    sync::{Arc, RwLock, Weak, atomic::Ordering},
    time::Duration,
};

use tokio::sync::{Notify, watch};

use super::{
    Inner,
    error::{ReadError, SearchError},
};
use crate::{
    domain::{EventBody, EventHeader, Position, Role},
    search::{IndexError, SearchIndex, SearchOptions, SearchableEvent, searchable_text},
};

/// Records read at once, and their bytes.
const RECORDS_MAX: usize = 2_048;
const RECORDS_BYTES_MAX: usize = 4 << 20;
/// Pause before the index is tried again after a failure.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Whoever waits for the index is told after so many failures.
const FAILURES_WHILE_WAITING_MAX: u32 = 3;

/// Pause when the publisher has gone, which is only so while an engine closes.
const GONE_PAUSE: Duration = Duration::from_millis(5);

/// Where the index is.
pub(super) enum IndexPlace {
    Memory,
    Folder(PathBuf),
}

/// The index, and how far it has come.
pub(super) struct Indexer {
    place: IndexPlace,
    index: RwLock<Arc<SearchIndex>>,
    /// What a search sees.
    reached: watch::Sender<u64>,
    /// Someone waits for the index: commit at once.
    hurry: Notify,
    /// The task has ended.
    ended: watch::Sender<bool>,
    /// The index is to be made anew.
    rebuild: std::sync::atomic::AtomicBool,
    /// Failures since the last success, and what the last one said.
    failures: watch::Sender<(u32, String)>,
}

impl Indexer {
    /// Opens the index; what cannot be used is removed and made anew.
    pub fn open(place: IndexPlace, head: u64) -> Result<Self, IndexError> {
        let mut index = open_index(&place)?;
        if index.reached().offset > head {
            tracing::warn!("the search index does not belong to this log; it is made anew");
            drop(index);
            index = anew(&place)?;
        }
        let reached = index.reached().offset;
        Ok(Self {
            place,
            index: RwLock::new(Arc::new(index)),
            reached: watch::Sender::new(reached),
            hurry: Notify::new(),
            ended: watch::Sender::new(false),
            rebuild: std::sync::atomic::AtomicBool::new(false),
            failures: watch::Sender::default(),
        })
    }

    pub fn index(&self) -> Arc<SearchIndex> {
        let index = self
            .index
            .read()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        Arc::clone(&index)
    }

    pub fn reached(&self) -> u64 {
        *self.reached.borrow()
    }

    /// Waits until a search sees everything up to an offset.
    ///
    /// # Errors
    /// [`SearchError::Index`] when indexing keeps failing: the disk is full, or
    /// the log is damaged.
    pub async fn wait_for(&self, offset: u64) -> Result<(), SearchError> {
        let mut reached = self.reached.subscribe();
        let mut failures = self.failures.subscribe();
        let failed = |message: String| Err(SearchError::Index { message });
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

    fn note_failure(&self, message: String) {
        self.failures.send_modify(|(count, last)| {
            *count += 1;
            *last = message;
        });
    }

    /// Asks for an index made anew.
    pub fn start_over(&self) {
        self.rebuild.store(true, Ordering::Release);
        self.hurry.notify_one();
    }

    /// True from [`Indexer::start_over`] until the new index is empty and open.
    pub fn is_starting_over(&self) -> bool {
        self.rebuild.load(Ordering::Acquire)
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
        match SearchIndex::in_memory() {
            Ok(empty) => self.replace(empty),
            Err(error) => tracing::warn!(%error, "the search index stays open"),
        }
    }

    fn replace(&self, index: SearchIndex) {
        *self
            .index
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = Arc::new(index);
    }

    fn wipe(&self) -> Result<(), IndexError> {
        let mut index = self
            .index
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        // The old index must be closed before its folder goes.
        *index = Arc::new(SearchIndex::in_memory()?);
        *index = Arc::new(anew(&self.place)?);
        self.reached.send_replace(0);
        Ok(())
    }
}

fn open_index(place: &IndexPlace) -> Result<SearchIndex, IndexError> {
    let IndexPlace::Folder(dir) = place else {
        return SearchIndex::in_memory();
    };
    match SearchIndex::open(dir, SearchOptions::default()) {
        Err(IndexError::NeedsRebuild { reason }) => {
            tracing::warn!(reason, "the search index is made anew from the log");
            anew(place)
        }
        result => result,
    }
}

fn anew(place: &IndexPlace) -> Result<SearchIndex, IndexError> {
    match place {
        IndexPlace::Memory => SearchIndex::in_memory(),
        IndexPlace::Folder(dir) => {
            SearchIndex::wipe(dir)?;
            SearchIndex::open(dir, SearchOptions::default())
        }
    }
}

/// The indexer's task: ends when the engine closes or is dropped.
pub(super) async fn run(weak: Weak<Inner>) {
    let Some((indexer, mut news)) = weak
        .upgrade()
        .map(|inner| (Arc::clone(&inner.indexer), inner.news.of_log()))
    else {
        return;
    };
    while let Some(inner) = weak.upgrade() {
        let closing = inner.closing.load(Ordering::Acquire);
        let worked = match step(&inner).await {
            Ok(worked) => worked,
            Err(error) => {
                tracing::warn!(%error, "indexing failed; it is tried again");
                indexer.note_failure(error);
                recover(&indexer).await;
                // At once: whoever waits for the index gives no second sign.
                true
            }
        };
        if closing {
            if let Err(error) = commit(&inner, indexer.index()).await {
                tracing::warn!(%error, "the search index was not committed; it goes on from its mark");
            }
            break;
        }
        if worked {
            continue;
        }
        // While it waits, the task must not keep a dropped engine alive.
        drop(inner);
        let due = indexer.index().commit_due_at();
        tokio::select! {
            changed = news.changed() => if changed.is_err() {
                tokio::time::sleep(GONE_PAUSE).await;
            },
            () = indexer.hurry.notified() => {}
            () = sleep_until(due) => {}
        }
    }
    indexer.ended.send_replace(true);
}

async fn recover(indexer: &Arc<Indexer>) {
    let index = indexer.index();
    let recovered = tokio::task::spawn_blocking(move || index.recover()).await;
    if !matches!(recovered, Ok(Ok(_))) {
        tracing::warn!("the search index is made anew from the log");
        indexer.rebuild.store(true, Ordering::Release);
    }
    tokio::time::sleep(RETRY_PAUSE).await;
}

async fn sleep_until(due: Option<std::time::Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

/// Indexes some records; true when there was something to do.
async fn step(inner: &Arc<Inner>) -> Result<bool, String> {
    if inner.indexer.rebuild.load(Ordering::Acquire) {
        let inner = Arc::clone(inner);
        let wiped = tokio::task::spawn_blocking(move || {
            let wiped = inner.indexer.wipe();
            if wiped.is_ok() {
                inner.indexer.rebuild.store(false, Ordering::Release);
            }
            wiped
        });
        wiped.await.map_err(text)?.map_err(text)?;
        return Ok(true);
    }
    let index = inner.indexer.index();
    let from = index.added_to().offset + 1;
    let head = inner.published.load(Ordering::Acquire);
    if from > head {
        let waited_for = inner.indexer.reached() < head;
        if waited_for {
            commit(inner, index).await?;
        }
        return Ok(false);
    }
    let count = usize::try_from(head - from + 1)
        .unwrap_or(RECORDS_MAX)
        .min(RECORDS_MAX);
    let (events, reached) = searchable(inner, from, count).await.map_err(text)?;
    let due = tokio::task::spawn_blocking({
        let index = Arc::clone(&index);
        move || {
            index.add(&events, Position::local(reached))?;
            index.commit_if_due()
        }
    });
    if due.await.map_err(text)?.map_err(text)? {
        inner.indexer.reached.send_replace(index.reached().offset);
    }
    Ok(true)
}

async fn commit(inner: &Arc<Inner>, index: Arc<SearchIndex>) -> Result<(), String> {
    let reached = tokio::task::spawn_blocking(move || index.commit())
        .await
        .map_err(text)?;
    inner
        .indexer
        .reached
        .send_replace(reached.map_err(text)?.offset);
    Ok(())
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// What is to be indexed of the records from an offset on, and how far they go.
async fn searchable(
    inner: &Inner,
    from: u64,
    count: usize,
) -> Result<(Vec<SearchableEvent>, u64), ReadError> {
    let history = inner.history();
    let mut events = Vec::new();
    let mut reached = from - 1;
    for (offset, record) in inner.reader.records(from, count, RECORDS_BYTES_MAX).await? {
        let body = history.decode(offset, &record).await?;
        if let Some(text) = searchable_text(&body)
            && !text.is_empty()
        {
            let text = text.into_owned();
            events.push(event(inner, &record.header, offset, &body, text)?);
        }
        reached = offset;
    }
    Ok((events, reached))
}

fn event(
    inner: &Inner,
    header: &EventHeader,
    offset: u64,
    body: &EventBody,
    text: String,
) -> Result<SearchableEvent, ReadError> {
    let (mut role, mut tool, mut call_id, mut success) = (None, String::new(), String::new(), None);
    match body {
        EventBody::MessageAppended(message) => {
            role = Some(message.role);
            if message.role == Role::Tool {
                tool.clone_from(&message.tool_name);
                call_id.clone_from(&message.tool_call_id);
            }
        }
        EventBody::ToolResultRecorded(result) => {
            tool = inner.tool_of(header, &result.call_id)?;
            call_id.clone_from(&result.call_id);
            success = Some(result.success);
        }
        EventBody::ToolSnapshotRecorded(snapshot) => {
            tool = inner.tool_of(header, &snapshot.call_id)?;
            call_id.clone_from(&snapshot.call_id);
        }
        _ => {}
    }
    Ok(SearchableEvent {
        namespace: header.namespace.clone(),
        conversation: header.conversation,
        branch: header.branch,
        revision: header.revision,
        position: Position::local(offset),
        kind: body.kind(),
        role,
        tool,
        call_id,
        success,
        recorded_at: header.recorded_at,
        text,
    })
}
