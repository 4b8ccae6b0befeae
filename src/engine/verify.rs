//! Verification of the whole store: checksums, chain hashes, revisions, blobs, projections and
//! index. Also the store's statistics.

use std::{
    collections::HashSet,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures::{SinkExt, StreamExt, channel::mpsc, stream::BoxStream};

use super::{
    Engine, Inner,
    damage::{LogStretch, UnreadableRange, stretch},
    error::ReadError,
    fold::ProjectionFold,
    query::{Fault, Progress, Stats, VerifyItem, VerifyOutcome},
    work::CancelToken,
};
use treering_domain::{ConversationKey, EventKind, Namespace, NamespaceUse, Revision, with_causes};
use treering_log::{Record, RecordBody};
use treering_projections::{Head, Heads, Projections};
use treering_search::{passages, searchable_text};

/// Maximum number of records per read, and their maximum size in bytes.
const RECORDS_MAX: usize = 4_096;
const RECORDS_BYTES_MAX: usize = 4 << 20;
/// Number of conversations whose heads are compared per page.
const HEADS_PAGE: usize = 4_096;
/// Number of events that are folded between two checks for cancellation.
const FOLD_STEP_EVENTS: u64 = 8_192;
/// Up to this many events, the projections for the comparison are built in memory, which takes
/// about ten megabytes.
const FRESH_IN_MEMORY_EVENTS_MAX: u64 = 100_000;
/// Cache size for the pages of larger projections, in bytes.
const FRESH_CACHE_BYTES: usize = 16 << 20;
/// Maximum number of attempts of a verification. An attempt is repeated if an erasure intervened.
const TRIES_MAX: u32 = 8;
/// Retry hint after the last try, in milliseconds.
const AGAIN_AFTER_ERASINGS_MS: u64 = 10_000;
/// Interval at which a wait checks for cancellation.
const STOP_SEEN_WITHIN: Duration = Duration::from_millis(100);

/// A file that is removed on drop.
struct TemporaryFile(PathBuf);

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if let Err(error) = Projections::wipe(&self.0) {
            tracing::warn!(error = %with_causes(&error), "the verification's temporary projections could not be removed");
        }
    }
}

impl Engine {
    /// Returns statistics: counts of a namespace, sizes of the whole store.
    ///
    /// # Errors
    /// [`ReadError`] when a part of the store fails.
    pub async fn stats(&self, namespace: &Namespace) -> Result<Stats, ReadError> {
        let inner = &self.inner;
        let projections = inner.reads.projections.load_full();
        let counts = projections.counts(namespace)?;
        let log = inner.log.stats(inner.shard).await?;
        let index = inner.search.indexer.index();
        let damaged = projections.damaged()?.into_iter();
        let damaged = damaged.filter(|row| row.namespace == *namespace);
        let by_kind = |(number, count): (&u16, &u64)| {
            let name = EventKind::from_number(*number)
                .map_or_else(|| format!("kind_{number}"), |kind| kind.to_string());
            (name, *count)
        };
        Ok(Stats {
            conversations: counts.conversations,
            branches: counts.branches,
            events: counts.events,
            pending_approvals: counts.pending_calls,
            events_by_kind: counts.by_kind.iter().map(by_kind).collect(),
            head: self.head(),
            views_reached: inner.reads.reader.position(projections.reached()?),
            index_reached: inner.reads.reader.position(inner.search.indexer.reached()),
            log_bytes: log.bytes,
            views_bytes: projections.file_bytes(),
            index_bytes: index.size_bytes().map_err(ReadError::storage)?,
            log_segments: log.segments,
            damaged_conversations: damaged.count() as u64,
            unreadable_positions: projections.lost()?.iter().map(|(a, b)| b - a + 1).sum(),
            indexed_documents: index.passage_count(),
            vectors: self.vector_stats(),
            data_dir: std::path::absolute(&inner.options.data_dir)
                .unwrap_or_else(|_| inner.options.data_dir.clone())
                .display()
                .to_string(),
            used: NamespaceUse {
                bytes: counts.event_bytes,
                conversations: counts.conversations,
            },
            quota: inner.options.quotas.of(namespace),
            started_at: inner.upkeep.started_at,
        })
    }

    /// Reads and checks everything. `deep` also compares projections and index with the result of a
    /// rebuild. Appends and reads continue; events appended meanwhile are not checked. An erasure
    /// changes what is compared: a verification waits for a running erasure, restarts when an
    /// erasure intervened, and ends with [`ReadError::Busy`] when erasures keep intervening. Only
    /// one verification runs at a time: another one is refused with [`ReadError::Busy`]. Drop the
    /// stream to stop it. Faults in namespaces other than `namespace` name their position but not
    /// their conversation.
    pub fn verify(
        &self,
        namespace: &Namespace,
        deep: bool,
    ) -> BoxStream<'static, Result<VerifyItem, ReadError>> {
        let inner = Arc::clone(&self.inner);
        let namespace = namespace.clone();
        async_stream::stream! {
            let (sender, mut receiver) = mpsc::channel(64);
            let check = |stop| Check {
                inner: Arc::clone(&inner),
                namespace,
                stop,
                reports: sender,
                outcome: VerifyOutcome::default(),
                heads: Heads::default(),
                passages: 0,
                erasings: 0,
                told: HashSet::new(),
            };
            match inner.work.verify(|stop| check(stop).run(deep)).await {
                // Dropping the stream stops the check.
                Ok(_guard) => {
                    while let Some(item) = receiver.next().await {
                        yield item;
                    }
                }
                Err(error) => yield Err(error),
            }
        }
        .boxed()
    }
}

struct Check {
    inner: Arc<Inner>,
    namespace: Namespace,
    stop: CancelToken,
    reports: mpsc::Sender<Result<VerifyItem, ReadError>>,
    outcome: VerifyOutcome,
    /// The head of each conversation so far.
    heads: Heads,
    /// Number of passages that the index should have.
    passages: u64,
    /// [`ErasureCounter::settled`](super::erase::ErasureCounter::settled) at the start.
    erasings: u64,
    /// Hashes of reported faults, so that a restart does not report them again.
    told: HashSet<u64>,
}

impl Check {
    async fn run(mut self, deep: bool) {
        let done = self.check_one_state(deep).await;
        self.outcome.conversations = self.heads.count();
        self.outcome.sound = self.outcome.faults == 0;
        let last = done.map(|()| VerifyItem::Outcome(self.outcome));
        // The caller may be gone.
        let _ = self.reports.send(last).await;
    }

    /// Repeats the check until no erasure intervened: only then do log, projections and index
    /// match.
    async fn check_one_state(&mut self, deep: bool) -> Result<(), ReadError> {
        for _ in 0..TRIES_MAX {
            self.erasings = loop {
                self.stop.check()?;
                match self.inner.upkeep.erasings.settled() {
                    Some(settled) => break settled,
                    None => tokio::time::sleep(STOP_SEEN_WITHIN).await,
                }
            };
            self.outcome = VerifyOutcome::default();
            self.heads = Heads::default();
            self.passages = 0;
            match self.check(deep).await {
                Err(_) if !self.is_undisturbed() => {}
                done => return done,
            }
        }
        Err(ReadError::Busy {
            what: "erases interrupted every attempt to verify",
            retry_after_ms: AGAIN_AFTER_ERASINGS_MS,
        })
    }

    /// Returns true as long as no erasure has changed anything since the start.
    fn is_undisturbed(&self) -> bool {
        self.inner.upkeep.erasings.settled() == Some(self.erasings)
    }

    async fn check(&mut self, deep: bool) -> Result<(), ReadError> {
        let head = self.inner.reads.published.load(Ordering::Acquire);
        self.check_log(head, deep).await?;
        let log_is_whole = self.outcome.faults == 0;
        self.check_heads(head).await?;
        if deep && let Err(error) = self.check_projections(log_is_whole).await {
            self.stop.check()?;
            let message = format!(
                "the projections cannot be compared with a rebuild: {}",
                with_causes(&error)
            );
            self.fault("views", None, message).await?;
        }
        self.check_index(deep && log_is_whole, head).await
    }

    /// Reads the log, including what follows unreadable parts.
    async fn check_log(&mut self, head: u64, deep: bool) -> Result<(), ReadError> {
        let mut next = 1;
        while next <= head {
            self.stop.check()?;
            let reader = &self.inner.reads.reader;
            match stretch(reader, next, head, RECORDS_MAX, RECORDS_BYTES_MAX).await? {
                LogStretch::Records(records) => {
                    for (offset, record) in records {
                        self.stop.check()?;
                        self.check_record(offset, &record, deep).await?;
                        next = offset + 1;
                    }
                }
                LogStretch::Lost(lost) => {
                    self.log_fault(&lost).await?;
                    next = lost.last + 1;
                }
            }
            let progress = Progress {
                what: "log",
                done: next - 1,
                total: head,
            };
            let _ = self.reports.try_send(Ok(VerifyItem::Progress(progress)));
        }
        Ok(())
    }

    async fn check_record(
        &mut self,
        offset: u64,
        record: &Record,
        deep: bool,
    ) -> Result<(), ReadError> {
        self.outcome.events += 1;
        let header = &record.header;
        let before = self.heads.get(header.key())?;
        if header.revision != before.revision.next() {
            let message = format!(
                "revision {} follows revision {}",
                header.revision, before.revision
            );
            self.fault("log", Some((offset, record)), message).await?;
        }
        if !record.verify_chain(before.chain_hash) {
            let message = "its chain hash does not match the previous event".to_owned();
            self.fault("chain", Some((offset, record)), message).await?;
        }
        let head = Head {
            revision: header.revision,
            chain_hash: record.chain_hash(),
        };
        let dir = self
            .inner
            .upkeep
            .projections_path
            .as_deref()
            .and_then(Path::parent);
        self.heads.set(dir, header.key(), before, head)?;
        if let RecordBody::Blob(blob) = &record.body
            && blob.home_offset == offset
        {
            self.outcome.blobs += 1;
        }
        match self.inner.reads.history().decode(offset, record).await {
            Ok(body) if deep => {
                if let Some(text) = searchable_text(&body)
                    && !text.is_empty()
                {
                    self.passages += passages(&text).count() as u64;
                }
            }
            Ok(_) => {}
            Err(error) => {
                let part = match record.body {
                    RecordBody::Blob(_) => "blob",
                    RecordBody::Inline(_) | RecordBody::Stub(_) => "log",
                };
                let message = with_causes(&error).to_string();
                self.fault(part, Some((offset, record)), message).await?;
            }
        }
        Ok(())
    }

    /// Checks that the projections have the same heads as the log.
    async fn check_heads(&mut self, head: u64) -> Result<(), ReadError> {
        let projections = self.inner.reads.projections.load_full();
        if projections.reached()? < head {
            self.fault(
                "views",
                None,
                "the projections have not reached the published head".to_owned(),
            )
            .await?;
        }
        let mut last = None;
        loop {
            self.stop.check()?;
            let page = self.heads.page(last, HEADS_PAGE)?;
            let Some((id, _)) = page.last() else { break };
            last = Some(*id);
            self.check_head_page(&projections, page).await?;
        }
        Ok(())
    }

    async fn check_head_page(
        &mut self,
        projections: &Projections,
        page: Vec<(ConversationKey, Head)>,
    ) -> Result<(), ReadError> {
        for (id, head) in page {
            let Head {
                revision,
                chain_hash,
            } = head;
            let row = projections.conversation(id)?;
            let sound = row.as_ref().is_some_and(|row| {
                // A conversation marked as damaged ends before the damage, which is a fault of the
                // log.
                row.damage.is_some()
                    || row.head > revision
                    || (row.head == revision && row.chain_hash == chain_hash)
            });
            if !sound {
                let seen = row.map_or(Revision::NONE, |row| row.head);
                let message = format!(
                    "the head of a conversation is revision {revision} in the log and {seen} in \
                     the projections"
                );
                self.fault("views", None, message).await?;
            }
        }
        Ok(())
    }

    /// Checks that the projections equal those that a rebuild produces.
    async fn check_projections(&mut self, log_is_whole: bool) -> Result<(), ReadError> {
        let inner = Arc::clone(&self.inner);
        let total = inner.reads.published.load(Ordering::Acquire);
        let (_file, fresh) = self.fresh_projections(total)?;
        let mut folder = ProjectionFold::new(Arc::clone(&fresh), Arc::clone(&inner.reads.reader))?;
        let stop = self.stop.clone();
        self.fold_up_to(&mut folder, 0, total).await?;
        let projections = inner.reads.projections.load_full();
        // Compared at one moment, because appends continue.
        let rest =
            |reached| futures::executor::block_on(self.fold_up_to(&mut folder, total, reached));
        let difference = projections.differs_at_once_from(&fresh, rest, || !stop.is_set())?;
        stop.check()?;
        // Projections older than the damage have more than can be read from the log now.
        let same_damage = || {
            Ok::<_, ReadError>(
                projections.lost()? == fresh.lost()?
                    && projections.damaged()? == fresh.damaged()?,
            )
        };
        if !log_is_whole && !same_damage()? {
            return Ok(());
        }
        if let Some(place) = difference {
            let message = format!("the projections differ from a rebuild: {place}");
            self.fault("views", None, message).await?;
        }
        Ok(())
    }

    /// Folds in steps, so that it can be cancelled between them.
    async fn fold_up_to(
        &mut self,
        folder: &mut ProjectionFold,
        from: u64,
        total: u64,
    ) -> Result<(), ReadError> {
        let mut done = from;
        while done < total {
            self.stop.check()?;
            done = (done + FOLD_STEP_EVENTS).min(total);
            folder.run(done, |_| {}).await?;
            let progress = Progress {
                what: "views",
                done,
                total,
            };
            let _ = self.reports.try_send(Ok(VerifyItem::Progress(progress)));
        }
        Ok(())
    }

    /// Creates empty projections: in memory for a small store, else in a file beside the
    /// projections, which the guard removes.
    fn fresh_projections(
        &self,
        events: u64,
    ) -> Result<(Option<TemporaryFile>, Arc<Projections>), ReadError> {
        let path = self.inner.upkeep.projections_path.as_deref();
        let Some(path) = path.filter(|_| events > FRESH_IN_MEMORY_EVENTS_MAX) else {
            return Ok((None, Arc::new(Projections::in_memory()?)));
        };
        let path = path.with_extension("verify.redb");
        Projections::wipe(&path)?;
        let projections = Projections::open(&path, FRESH_CACHE_BYTES)?;
        Ok((Some(TemporaryFile(path)), Arc::new(projections)))
    }

    /// Checks that the index reaches the head, and has as many passages as the log.
    async fn check_index(&mut self, count: bool, head: u64) -> Result<(), ReadError> {
        let inner = Arc::clone(&self.inner);
        // Use a single wait: it ends after a number of indexing failures, and a new wait would
        // count them from zero. Poll, because a stuck indexer must not block cancellation.
        let mut waited = std::pin::pin!(inner.search.indexer.wait_for(head));
        let reached = loop {
            self.stop.check()?;
            if let Ok(reached) = tokio::time::timeout(STOP_SEEN_WITHIN, &mut waited).await {
                break reached;
            }
        };
        if let Err(error) = reached {
            let message = with_causes(&error).to_string();
            self.fault("index", None, message).await?;
            return Ok(());
        }
        let at_head = self.inner.reads.published.load(Ordering::Acquire) == head;
        let found = self.inner.search.indexer.index().passage_count();
        if count && at_head && found != self.passages {
            let message = format!(
                "the index has {found} passages, but the log has {}",
                self.passages
            );
            self.fault("index", None, message).await?;
        }
        Ok(())
    }

    async fn log_fault(&mut self, lost: &UnreadableRange) -> Result<(), ReadError> {
        let UnreadableRange { first, last, what } = lost;
        self.tell(Fault {
            part: "log",
            position: Some(self.inner.reads.reader.position(*first)),
            conversation: None,
            revision: None,
            message: format!("positions {first} to {last} cannot be read: {what}"),
        })
        .await
    }

    async fn fault(
        &mut self,
        part: &'static str,
        at: Option<(u64, &Record)>,
        message: String,
    ) -> Result<(), ReadError> {
        let own = at.filter(|(_, record)| record.header.namespace == self.namespace);
        self.tell(Fault {
            part,
            position: at.map(|(offset, _)| self.inner.reads.reader.position(offset)),
            conversation: own.map(|(_, record)| record.header.conversation),
            revision: own.map(|(_, record)| record.header.revision),
            message,
        })
        .await
    }

    /// Reports a fault. Fails if an erasure intervened, because the erasure may have caused the
    /// difference.
    async fn tell(&mut self, fault: Fault) -> Result<(), ReadError> {
        if !self.is_undisturbed() {
            return Err(ReadError::Stopped);
        }
        self.outcome.faults += 1;
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(&fault);
        if self.told.insert(hash) {
            let _ = self.reports.send(Ok(VerifyItem::Fault(fault))).await;
        }
        Ok(())
    }
}
