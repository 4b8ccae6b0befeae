//! Salvage: copies everything sound from a damaged store into a new one.
//!
//! The log is scanned frame by frame. Each conversation is copied up to its first damage, with its
//! chain checked. Copied events keep ids, times, actors, revisions, bodies, chain hashes, and also
//! log positions: each omitted event is replaced by an empty event in a conversation of the
//! namespace [`SALVAGE_NAMESPACE`]. Idempotency keys therefore still refer to the events of their
//! batches, and readers that follow the log by position can continue.

use std::{
    collections::HashMap,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use bytes::Bytes;
use uuid::Uuid;

use super::{
    Engine, OpenOptions, consistency_check,
    damage::{LogStretch, stretch},
    error::{OpenError, ReadError},
    history::decode_body,
    open::{VIEWS_FILE, log_refused},
    pseudonyms::Pseudonyms,
    query::Progress,
};
use treering_domain::{
    BranchId, Cause, ContentHash, ConversationCreated, ConversationId, ConversationKey, Custom,
    EventBody, EventHeader, EventId, Namespace, Position, Revision, ShardId, TimestampMicros,
    with_causes,
};
use treering_log::{
    AcquiredShard, BlobRef, EncodedFrame, Epoch, EventLog, FrameBatch, LOG_FOLDER, LogError,
    LogFiller, LogIdentity, LogReader, LogStats, OpenMode, Record, RecordBody, RedbLog,
    RedbLogOptions, Salt,
};
use treering_projections::Projections;
use treering_proto::{self, tags};

/// The namespace of the placeholders for omitted events.
pub(crate) const SALVAGE_NAMESPACE: &str = "treering-salvage";
/// Type name of the placeholders.
const LEFT_OUT: &str = "treering.salvage.left_out";

/// Maximum number of records per read, and their maximum size in bytes.
const RECORDS_MAX: usize = 2_048;
const RECORDS_BYTES_MAX: usize = 4 << 20;
/// Cache size for decoded frames, in bytes; each frame is read once.
const CACHE_BYTES: usize = 4 << 20;
/// Maximum number of damaged conversations that are named; the others are only counted.
const NAMED_MAX: usize = 1_000;

/// The outcome of a salvage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SalvageOutcome {
    /// Conversations without any known omission.
    pub whole: u64,
    /// Conversations truncated before their damage.
    pub cut: u64,
    /// Conversations of which nothing could be copied.
    pub lost: u64,
    /// Events copied.
    pub events_taken: u64,
    /// Events omitted although their place in the log can be read: they are damaged, or follow
    /// damage.
    pub events_left: u64,
    /// Unreadable log positions. Their content is unknown.
    pub unreadable_positions: u64,
    /// The damaged conversations, at most 1,000 of them.
    pub damaged: Vec<CutConversation>,
}

/// A conversation that was not copied completely.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutConversation {
    /// The tenant.
    pub namespace: Namespace,
    /// The conversation.
    pub conversation: ConversationId,
    /// The first omitted revision.
    pub revision: Revision,
    /// Log position of the event that is damaged or reveals the loss. For a lost end, the first
    /// position of the unreadable part.
    pub position: Position,
    /// The fault.
    pub what: String,
}

/// Why a salvage failed.
#[derive(Debug, thiserror::Error)]
pub enum SalvageError {
    /// The folder has no log.
    #[error("no store in {path}: it has no folder `{LOG_FOLDER}`")]
    NoStore {
        /// The folder.
        path: PathBuf,
    },
    /// The target folder is not empty.
    #[error("{path} is not empty: name a new folder for the salvaged store")]
    NotEmpty {
        /// The folder.
        path: PathBuf,
    },
    /// The target folder is inside the damaged store, which must not change.
    #[error("{path} is inside the damaged store: name a folder outside it")]
    Within {
        /// The folder.
        path: PathBuf,
    },
    /// The source cannot be read.
    #[error("the store in {path} cannot be read")]
    Source {
        /// The folder.
        path: PathBuf,
        /// The log's error.
        source: LogError,
    },
    /// Another process has the source open.
    #[error(transparent)]
    Held(OpenError),
    /// The new store cannot be written.
    #[error("the new store in {path} cannot be written")]
    Target {
        /// The folder.
        path: PathBuf,
        /// The log's error.
        source: LogError,
    },
    /// The new store cannot be opened, or is damaged.
    #[error("the new store in {path} is unusable")]
    Unusable {
        /// The folder.
        path: PathBuf,
        /// The cause.
        source: Cause,
    },
}

/// Copies everything sound from the store in `from` into a new one in `to`, and reports progress.
/// The source is not changed.
///
/// # Errors
/// [`SalvageError`]. The content of `to` is then useless.
pub async fn salvage(
    from: &Path,
    to: &Path,
    mut report: impl FnMut(Progress),
) -> Result<SalvageOutcome, SalvageError> {
    check_places(from, to)?;
    let DamagedLog {
        reader: source,
        head,
        erasing,
    } = open_source(from).await?;
    let mut taking = SalvageTarget::start(to).await?;
    Pseudonyms::copy(from, to).map_err(|cause| SalvageError::Unusable {
        path: to.to_owned(),
        source: Cause::of(cause),
    })?;
    if erasing {
        // The copy may contain content to be erased. Opening the new store for the final check
        // finishes the erasure.
        let begun = taking.filler.log().begin_erasing();
        begun.map_err(|source| taking.failed(source))?;
    }
    let read_failed = |source| SalvageError::Source {
        path: from.to_owned(),
        source,
    };
    let mut lost = Vec::new();
    let mut next = 1;
    while next <= head {
        let read = stretch(&source, next, head, RECORDS_MAX, RECORDS_BYTES_MAX).await;
        match read.map_err(read_failed)? {
            LogStretch::Records(records) => {
                for (offset, record) in records {
                    taking.record(&source, offset, record).await?;
                    next = offset + 1;
                }
            }
            LogStretch::Lost(stretch) => {
                for offset in stretch.first..=stretch.last {
                    taking.outcome.unreadable_positions += 1;
                    taking.leave_out(offset, "unreadable").await?;
                }
                next = stretch.last + 1;
                lost.push(stretch.first..next);
            }
        }
        report(Progress {
            what: "log",
            done: next - 1,
            total: head,
        });
    }
    lost.push(head + 1..u64::MAX);
    if let Some(projections) = witnesses(from, &source) {
        taking.truncate_lost_ends(&projections, head, &lost);
    }
    let closed = source.log().close().await;
    if let Err(error) = closed {
        tracing::warn!(error = %with_causes(&error), "the damaged store was not closed cleanly");
    }
    let outcome = taking.end().await?;
    check_target(to).await?;
    Ok(outcome)
}

fn check_places(from: &Path, to: &Path) -> Result<(), SalvageError> {
    if !from.join(LOG_FOLDER).is_dir() {
        let path = from.to_owned();
        return Err(SalvageError::NoStore { path });
    }
    let is_free = match std::fs::read_dir(to) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    };
    let path = to.to_owned();
    if !is_free {
        return Err(SalvageError::NotEmpty { path });
    }
    if is_within(to, from) {
        return Err(SalvageError::Within { path });
    }
    Ok(())
}

/// Returns true if a path, existing or not, is `folder` or inside it.
fn is_within(path: &Path, folder: &Path) -> bool {
    let Ok(folder) = folder.canonicalize() else {
        return false;
    };
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let there = path.ancestors().find_map(|above| above.canonicalize().ok());
    there.is_some_and(|there| there.starts_with(folder))
}

/// Returns the damaged store's projections, if they were derived from its log: they may know of
/// lost events.
fn witnesses(from: &Path, source: &LogReader) -> Option<Projections> {
    let projections = Projections::open_unchanged(&from.join(VIEWS_FILE), CACHE_BYTES).ok()?;
    consistency_check::belong_to(&projections, &**source.log()).then_some(projections)
}

/// The remains of the damaged store's log.
struct DamagedLog {
    reader: LogReader,
    /// Its last offset.
    head: u64,
    /// An erasure was in progress.
    erasing: bool,
}

/// Opens the remains of the damaged store's log, read-only.
async fn open_source(from: &Path) -> Result<DamagedLog, SalvageError> {
    let failed = |source| match source {
        LogError::Locked { .. } => SalvageError::Held(log_refused(from, source)),
        source => SalvageError::Source {
            path: from.to_owned(),
            source,
        },
    };
    let log = RedbLog::open_remains(from, RedbLogOptions::default()).map_err(failed)?;
    let erasing = log.erasing().is_some();
    let log = Arc::new(FailingDiskLog(Arc::new(log)));
    let shard = ShardId::default();
    let head = log.acquire(shard).await.map_err(failed)?.head;
    Ok(DamagedLog {
        reader: LogReader::new(log, shard, CACHE_BYTES),
        head,
        erasing,
    })
}

/// Checks that the new store opens, and that nothing in it is damaged.
async fn check_target(to: &Path) -> Result<(), SalvageError> {
    let unusable = |source: Cause| SalvageError::Unusable {
        path: to.to_owned(),
        source,
    };
    let options = OpenOptions {
        // The pseudonyms' key may be lost, too.
        only_checked: true,
        ..OpenOptions::new(to)
    };
    let opened = Engine::open(options).await;
    let engine = opened.map_err(|error: OpenError| unusable(Cause::of(error)))?;
    let damaged = engine.inner.reads.projections.load().damaged();
    engine.close().await;
    match damaged {
        Ok(rows) if rows.is_empty() => Ok(()),
        Ok(rows) => {
            let what = format!("{} conversations are damaged", rows.len());
            Err(unusable(Cause::of(what)))
        }
        Err(error) => Err(unusable(Cause::of(error))),
    }
}

/// The copied part of a conversation.
#[derive(Default)]
struct Conversation {
    head: Revision,
    chain: ContentHash,
    is_cut: bool,
}

/// The new log, filled record by record at the positions of the old one.
struct SalvageTarget {
    to: PathBuf,
    filler: LogFiller<RedbLog>,
    conversations: HashMap<ConversationKey, Conversation>,
    left_out: OmittedEvents,
    outcome: SalvageOutcome,
}

impl SalvageTarget {
    async fn start(to: &Path) -> Result<Self, SalvageError> {
        let failed = |source| SalvageError::Target {
            path: to.to_owned(),
            source,
        };
        let log = RedbLog::open(to, RedbLogOptions::default(), OpenMode::Create).map_err(failed)?;
        let filler = LogFiller::start(log).await.map_err(failed)?;
        Ok(Self {
            to: to.to_owned(),
            filler,
            conversations: HashMap::new(),
            left_out: OmittedEvents::new(),
            outcome: SalvageOutcome::default(),
        })
    }

    fn failed(&self, source: LogError) -> SalvageError {
        SalvageError::Target {
            path: self.to.clone(),
            source,
        }
    }

    /// Copies a record, or omits it with all later ones of its conversation.
    async fn record(
        &mut self,
        source: &LogReader,
        offset: u64,
        record: Record,
    ) -> Result<(), SalvageError> {
        let header = &record.header;
        let known = self.conversations.get(&header.key());
        if known.is_some_and(|known| known.is_cut) {
            self.outcome.events_left += 1;
            return self.leave_out(offset, "after damage").await;
        }
        match self.check(source, offset, &record).await {
            Ok(body) => self.take(offset, record, body).await,
            Err(what) => {
                self.cut(offset, &record, what);
                self.outcome.events_left += 1;
                self.leave_out(offset, "damaged").await
            }
        }
    }

    /// Returns the record's body, if the record is undamaged and is the next event of its
    /// conversation.
    async fn check(
        &self,
        source: &LogReader,
        offset: u64,
        record: &Record,
    ) -> Result<Bytes, String> {
        let header = &record.header;
        let known = self.conversations.get(&header.key());
        let (head, chain) = known.map_or_else(Default::default, |known| (known.head, known.chain));
        if header.revision != head.next() {
            return Err(format!(
                "revision {} follows revision {head}",
                header.revision
            ));
        }
        if !record.verify_chain(chain) {
            return Err("its chain hash does not match the previous event".to_owned());
        }
        let bytes = source.body(record).await;
        let bytes = bytes.map_err(|error| match error {
            LogError::Damaged { what, .. } => what,
            error => error.to_string(),
        })?;
        let body = decode_body(offset, header.kind, &bytes).map_err(|error| match error {
            ReadError::Damaged { message, .. } => message,
            error => with_causes(&error).to_string(),
        })?;
        match (&body, known) {
            (EventBody::ConversationCreated(created), None) => {
                self.check_inherited(header.key(), created)?
            }
            (EventBody::ConversationCreated(_), Some(_)) | (_, None) => {
                return Err("only the first event creates a conversation".to_owned());
            }
            _ => {}
        }
        Ok(bytes)
    }

    /// Checks that the history which a conversation shares was copied.
    fn check_inherited(
        &self,
        heir: ConversationKey,
        created: &ConversationCreated,
    ) -> Result<(), String> {
        let Some(parent) = created.parent.as_ref().filter(|_| created.shares_history) else {
            return Ok(());
        };
        let known = self.conversations.get(&heir.sibling(parent.conversation));
        if known.is_some_and(|known| known.head >= parent.revision) {
            return Ok(());
        }
        Err(format!(
            "it shares the history of {} up to revision {}, which is damaged",
            parent.conversation, parent.revision
        ))
    }

    fn cut(&mut self, offset: u64, record: &Record, what: String) {
        let header = &record.header;
        let known = self.conversations.entry(header.key()).or_default();
        known.is_cut = true;
        let cut = CutConversation {
            namespace: header.namespace.clone(),
            conversation: header.conversation,
            revision: known.head.next(),
            position: Position::local(offset),
            what,
        };
        if self.outcome.damaged.len() < NAMED_MAX {
            self.outcome.damaged.push(cut);
        }
    }

    /// Truncates conversations whose end is lost according to the projections. The log alone does
    /// not reveal such a loss, because no later event follows.
    fn truncate_lost_ends(&mut self, projections: &Projections, head: u64, lost: &[Range<u64>]) {
        let reached = projections.reached().unwrap_or_default();
        if lost.len() == 1 && reached <= head {
            return;
        }
        for row in projections.every_conversation().unwrap_or_default() {
            // Projections built after the loss have a damage mark; older ones have the
            // conversation's former head.
            let (at, revision) = match &row.damage {
                Some(damage) => (damage.position.offset, damage.revision),
                None => (row.last_position.offset, row.head),
            };
            let Some(stretch) = lost.iter().find(|stretch| stretch.contains(&at)) else {
                continue;
            };
            let known = self.conversations.get(&row.key());
            if known.is_some_and(|known| known.is_cut || known.head >= revision) {
                continue;
            }
            let known = self.conversations.entry(row.key()).or_default();
            known.is_cut = true;
            let cut = CutConversation {
                namespace: row.namespace,
                conversation: row.id,
                revision: known.head.next(),
                position: Position::local(stretch.start),
                what: format!("its revisions up to {revision} are lost"),
            };
            if self.outcome.damaged.len() < NAMED_MAX {
                self.outcome.damaged.push(cut);
            }
        }
    }

    async fn take(&mut self, offset: u64, record: Record, body: Bytes) -> Result<(), SalvageError> {
        debug_assert_eq!(offset, self.filler.next());
        let header = &record.header;
        let known = self.conversations.entry(header.key()).or_default();
        known.head = header.revision;
        known.chain = record.chain_hash();
        if let RecordBody::Blob(blob) = &record.body
            && self.filler.home(&header.namespace, blob).is_none()
        {
            let is_like = tags::is_like_another(header.kind, &body);
            self.filler.keep(header, blob, body, is_like);
        }
        self.outcome.events_taken += 1;
        self.push(record).await
    }

    async fn leave_out(&mut self, offset: u64, why: &'static str) -> Result<(), SalvageError> {
        debug_assert_eq!(offset, self.filler.next());
        let record = self.left_out.next(why).map_err(|e| self.failed(e))?;
        self.push(record).await
    }

    async fn push(&mut self, record: Record) -> Result<(), SalvageError> {
        let pushed = self.filler.push(record).await;
        pushed.map_err(|error| self.failed(error))
    }

    async fn end(mut self) -> Result<SalvageOutcome, SalvageError> {
        let closed = self.filler.close().await;
        closed.map_err(|error| self.failed(error))?;
        let mut outcome = self.outcome;
        for known in self.conversations.values() {
            match (known.is_cut, known.head) {
                (false, _) => outcome.whole += 1,
                (true, Revision::NONE) => outcome.lost += 1,
                (true, _) => outcome.cut += 1,
            }
        }
        Ok(outcome)
    }
}

/// The conversation of the placeholders for omitted events.
struct OmittedEvents {
    id: ConversationId,
    head: Revision,
    chain: ContentHash,
    now: TimestampMicros,
}

impl OmittedEvents {
    fn new() -> Self {
        Self {
            id: ConversationId::generate(),
            head: Revision::NONE,
            chain: ContentHash::default(),
            now: TimestampMicros::now(),
        }
    }

    fn next(&mut self, why: &'static str) -> Result<Record, LogError> {
        let body = if self.head == Revision::NONE {
            EventBody::ConversationCreated(ConversationCreated {
                title: "Events that treering salvage left out".to_owned(),
                ..ConversationCreated::default()
            })
        } else {
            EventBody::Custom(Custom {
                type_name: LEFT_OUT.to_owned(),
                content_type: "text/plain".to_owned(),
                data: Bytes::from_static(why.as_bytes()),
                text: String::new(),
                delta_of: String::new(),
            })
        };
        let namespace = Namespace::new(SALVAGE_NAMESPACE);
        let namespace = namespace.map_err(|error| LogError::Io {
            doing: "naming the salvage namespace",
            source: Arc::new(std::io::Error::other(error)),
        })?;
        let header = EventHeader {
            id: EventId::generate(),
            namespace,
            conversation: self.id,
            branch: BranchId::MAIN,
            revision: self.head.next(),
            kind: body.kind().number(),
            recorded_at: self.now,
            occurred_at: None,
            actor: "treering salvage".to_owned(),
            causation_id: None,
            correlation_id: String::new(),
        };
        let bytes = treering_proto::body::encode(&body);
        let hash = Record::hash_body(&bytes);
        let record = Record::seal(
            self.chain,
            header,
            RecordBody::Inline(bytes),
            Salt::random().hash(hash),
            None,
        )?;
        self.head = self.head.next();
        self.chain = record.chain_hash();
        Ok(record)
    }
}

/// A log on a failing disk: unreadable sectors are treated as damage, and so are formats that claim
/// to be newer.
struct FailingDiskLog(Arc<RedbLog>);

/// Error codes of Unix systems for unreadable sectors, and of Linux for sectors that a file system
/// or device knows to be corrupt: EIO, EBADMSG, EUCLEAN.
const UNREADABLE: [i32; 3] = [5, 74, 117];

fn worn<T>(offset: u64, read: Result<T, LogError>) -> Result<T, LogError> {
    let what = match read {
        Err(LogError::Io { source, doing })
            if source
                .raw_os_error()
                .is_some_and(|code| UNREADABLE.contains(&code)) =>
        {
            format!("{doing}: {source}")
        }
        Err(error @ LogError::NewerFormat { .. }) => error.to_string(),
        read => return read,
    };
    Err(LogError::Damaged { offset, what })
}

#[async_trait]
impl EventLog for FailingDiskLog {
    fn identity(&self) -> LogIdentity {
        self.0.identity()
    }

    fn knows_timeline(&self, timeline: Uuid) -> bool {
        self.0.knows_timeline(timeline)
    }

    async fn next_frame(&self, shard: ShardId, after: u64) -> Result<Option<u64>, LogError> {
        self.0.next_frame(shard, after).await
    }

    async fn acquire(&self, shard: ShardId) -> Result<AcquiredShard, LogError> {
        self.0.acquire(shard).await
    }

    /// Fails: the damaged log is never written.
    async fn append(&self, _: ShardId, _: Epoch, _: u64, _: FrameBatch) -> Result<u64, LogError> {
        Err(LogError::Closed)
    }

    async fn read(
        &self,
        shard: ShardId,
        from_offset: u64,
        bytes_max: usize,
    ) -> Result<Vec<EncodedFrame>, LogError> {
        worn(
            from_offset,
            self.0.read(shard, from_offset, bytes_max).await,
        )
    }

    async fn blob(&self, shard: ShardId, blob: &BlobRef) -> Result<Bytes, LogError> {
        let read = self.0.blob(shard, blob).await;
        worn(blob.home_offset, read)
    }

    async fn tail(&self, shard: ShardId, after_offset: u64) -> Result<u64, LogError> {
        self.0.tail(shard, after_offset).await
    }

    async fn stats(&self, shard: ShardId) -> Result<LogStats, LogError> {
        self.0.stats(shard).await
    }

    async fn close(&self) -> Result<(), LogError> {
        self.0.close().await
    }
}
