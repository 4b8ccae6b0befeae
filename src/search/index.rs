//! The index as a store: opening, adding, committing. Erasing is in `erase`, searching in
//! `query`.
//!
//! The payload of each commit holds the mark: the log position that the index has reached.
//! Documents and mark are therefore durable together. After a crash the index is as of its last
//! commit, and the engine continues from [`SearchIndex::reached`] without gaps or duplicates.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    thread,
    time::{Duration, Instant},
};

use tantivy::{
    Index, IndexReader, IndexSettings, IndexWriter, ReloadPolicy, Searcher, TantivyDocument,
    TantivyError,
    directory::error::LockError,
    indexer::{IndexWriterOptions, LogMergePolicy, NoMergePolicy},
};

use super::{
    columns::OpenColumns,
    document::{Passage, SearchableEvent, passages, text_hash},
    error::IndexError,
    files,
    overlay_folder::OverlayFolder,
    plan::only_offsets,
    query::damage_of_panic,
    refusal::{engine_error, io_error, rebuild, unreadable},
    schema::{Fields, PassageTokenizer, TOKENIZER, column, outcome_number, text_tag, text_value},
};
use treering_domain::{Position, ShardId};

#[cfg(unix)]
use super::guarded_folder::GuardedFolder as Folder;
#[cfg(not(unix))]
use tantivy::directory::MmapDirectory as Folder;

/// How long opening waits for the lock of an index that was just closed: a child process holds a
/// copy of the lock between fork and exec.
const LOCK_WAIT: Duration = Duration::from_millis(500);
const LOCK_PAUSE: Duration = Duration::from_millis(10);
/// Version of the index format. An index of another version is rebuilt. Raise it with any change of
/// fields, passages or analyser.
pub const INDEX_VERSION: u32 = 5;
/// Prefix of the payload of each commit.
const PAYLOAD_NAME: &str = "treering-search";
/// How often a mark that moves without new documents is made durable.
const MARK_DURABLE_EVERY: Duration = Duration::from_secs(10);
/// tantivy's own bounds, in bytes.
const WRITER_HEAP_BYTES_MIN: usize = 15_000_000;
const WRITER_HEAP_BYTES_MAX: usize = 2_000_000_000;
/// Memory factor of each writer thread while the index catches up.
const HURRIED_HEAP_FACTOR: usize = 2;
/// Minimum number of segments of similar size that are merged at once while the index catches up.
const HURRIED_SEGMENTS_MIN: usize = 24;
/// Share of erased passages above which a segment is rewritten.
const ERASED_SHARE_MAX: f32 = 0.2;

/// How the index uses memory, threads and time.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchOptions {
    /// Memory for uncommitted documents, in bytes: 15 MB to 2 GB. More makes rebuilding faster.
    pub writer_heap_bytes: usize,
    /// Number of indexing threads, which share `writer_heap_bytes`. More threads write more and
    /// smaller segments, which suits an index that is built from scratch.
    pub writer_threads: usize,
    /// Indexing threads while the index catches up. Each gets twice `writer_heap_bytes`: fewer and
    /// larger segments are less work.
    pub hurried_threads: usize,
    /// How long an added event may stay invisible: see [`SearchIndex::commit_if_due`].
    pub commit_interval: Duration,
    /// Whether opening reads every file and verifies its checksum.
    pub verify: VerifyOnOpen,
}

/// How much opening verifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifyOnOpen {
    /// Reads all files: about a second for 1 GB that is not cached.
    Checksums,
    /// Reads only what opening needs. Damage elsewhere shows when it is read.
    Structure,
}

impl Default for SearchOptions {
    fn default() -> Self {
        Self {
            writer_heap_bytes: 32 << 20,
            writer_threads: 1,
            hurried_threads: 1,
            commit_interval: Duration::from_millis(150),
            verify: VerifyOnOpen::Checksums,
        }
    }
}

impl SearchOptions {
    /// The options for catching up.
    fn catch_up_options(&self) -> Self {
        let threads = self.hurried_threads.max(1);
        Self {
            writer_threads: threads,
            writer_heap_bytes: (self.writer_heap_bytes * threads * HURRIED_HEAP_FACTOR)
                .min(WRITER_HEAP_BYTES_MAX),
            ..self.clone()
        }
    }
}

/// A full-text index over the events of one shard.
///
/// All methods take `&self`. Searching never waits for writing.
pub struct SearchIndex {
    pub(super) fields: Fields,
    pub(super) index: Index,
    pub(super) dir: PathBuf,
    options: SearchOptions,
    pub(super) merges: Merges,
    /// Held by merges in idle time, merges before closing, and purges: one of them runs at a time.
    pub(super) joining: Arc<Mutex<()>>,
    reader: IndexReader,
    published: RwLock<PublishedState>,
    state: Mutex<WriterState>,
}

impl std::fmt::Debug for SearchIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SearchIndex")
            .field("dir", &self.dir)
            .finish_non_exhaustive()
    }
}

/// Whether tantivy merges segments as their number grows. Over a read-only folder, merges would
/// copy the folder into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Merges {
    AsTheyCome,
    /// While the index catches up: segments are merged only when many have a similar size.
    WhenMany,
    Never,
}

/// The state that searches read.
#[derive(Clone)]
pub(super) struct PublishedState {
    pub(crate) searcher: Searcher,
    pub(crate) columns: OpenColumns,
    pub(crate) reached: Position,
}

pub(super) struct WriterState {
    /// `None` after a failed write: everything since the last commit is lost.
    writer: Option<IndexWriter>,
    /// The log position up to which events were added, committed or not.
    pub(super) added_to: Position,
    /// The mark of the last commit on disk.
    durable: Position,
    durable_at: Instant,
    /// When the oldest uncommitted change was made.
    changed_at: Option<Instant>,
    /// There are documents or erasures to commit, not only a mark.
    pub(super) has_operations: bool,
    noted: files::RecordedFiles,
    /// The index is catching up.
    hurried: bool,
}

impl SearchIndex {
    /// Opens the index in a directory, or creates one when the directory is empty or missing.
    ///
    /// # Errors
    /// [`IndexError::NeedsRebuild`] when it is damaged or of another version,
    /// [`IndexError::Locked`] when it is open elsewhere.
    pub fn open(dir: &Path, options: SearchOptions) -> Result<Self, IndexError> {
        let fail = |source| io_error("opened", dir, source);
        if dir.exists() && !dir.is_dir() {
            return Err(rebuild("a file is at the path of its folder"));
        }
        std::fs::create_dir_all(dir).map_err(fail)?;
        let is_index = dir.join("meta.json").exists();
        if !is_index && holds_files(dir).map_err(fail)? {
            return Err(rebuild("its list of segments is missing"));
        }
        let fields = Fields::new();
        let folder = Folder::open(dir).map_err(|error| unreadable(dir, error.into()))?;
        let index = if is_index {
            Index::open(folder).map_err(|error| unreadable(dir, error))?
        } else {
            Index::create(folder, fields.schema.clone(), IndexSettings::default())
                .map_err(|error| engine_error("made", dir, error))?
        };
        if index.schema() != fields.schema {
            return Err(rebuild("its schema is from another version"));
        }
        Self::with_index(index, fields, dir, options, Merges::AsTheyCome)
    }

    /// Opens the index in a directory without changing the directory. What is added is kept in
    /// memory and lost when this is dropped.
    ///
    /// # Errors
    /// [`IndexError::NeedsRebuild`] when it is missing, damaged or of another version.
    pub fn open_unchanged(dir: &Path) -> Result<Self, IndexError> {
        if !dir.join("meta.json").exists() {
            return Err(rebuild("it does not exist"));
        }
        let unreadable = |error| unreadable(dir, error);
        let directory = OverlayFolder::open(dir).map_err(|error| unreadable(error.into()))?;
        let index = Index::open(directory).map_err(unreadable)?;
        let fields = Fields::new();
        if index.schema() != fields.schema {
            return Err(rebuild("its schema is from another version"));
        }
        let options = SearchOptions {
            verify: VerifyOnOpen::Structure,
            ..SearchOptions::default()
        };
        Self::with_index(index, fields, dir, options, Merges::Never)
    }

    /// Creates an index in memory, for tests and experiments.
    ///
    /// # Errors
    /// [`IndexError::WriterHeap`] when the options are out of bounds.
    pub fn in_memory() -> Result<Self, IndexError> {
        let fields = Fields::new();
        let index = Index::create_in_ram(fields.schema.clone());
        let options = SearchOptions::default();
        Self::with_index(
            index,
            fields,
            Path::new("memory"),
            options,
            Merges::AsTheyCome,
        )
    }

    /// Deletes an index from disk, whatever its state. It must not be open.
    ///
    /// # Errors
    /// [`IndexError::Io`] when the system reports an error.
    pub fn wipe(dir: &Path) -> Result<(), IndexError> {
        match std::fs::remove_dir_all(dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(io_error("removed", dir, error))
            }
            _ => Ok(()),
        }
    }

    fn with_index(
        index: Index,
        fields: Fields,
        dir: &Path,
        options: SearchOptions,
        merges: Merges,
    ) -> Result<Self, IndexError> {
        // tantivy reports some damage by a panic.
        let open = || Self::opened(index, fields, dir, options, merges);
        damage_of_panic(open)
    }

    fn opened(
        index: Index,
        fields: Fields,
        dir: &Path,
        options: SearchOptions,
        merges: Merges,
    ) -> Result<Self, IndexError> {
        check_heap(options.writer_heap_bytes)?;
        index
            .tokenizers()
            .register(TOKENIZER, PassageTokenizer::default());
        let metas = index.load_metas().map_err(|error| unreadable(dir, error))?;
        let fresh = metas.payload.is_none() && metas.segments.is_empty();
        let reached = match &metas.payload {
            Some(payload) => parse_payload(payload)?,
            None if fresh => Position::default(),
            None => return Err(rebuild("its last commit has no position")),
        };
        if options.verify == VerifyOnOpen::Checksums {
            verify(&index, dir)?;
        }
        if let Some(name) = files::find_changed_file(dir, &metas.segments) {
            return Err(rebuild(format!("{name} was replaced")));
        }
        let writer = open_writer(&index, dir, &options, merges)?;
        let reader = index
            .reader_builder()
            .reload_policy(ReloadPolicy::Manual)
            .try_into()
            .map_err(|error| unreadable(dir, error))?;
        let searcher = reader.searcher();
        check_segments(&searcher)?;
        let now = Instant::now();
        let state = WriterState {
            writer: Some(writer),
            added_to: reached,
            durable: reached,
            durable_at: now,
            changed_at: None,
            has_operations: false,
            noted: files::RecordedFiles::new(),
            hurried: false,
        };
        let this = Self {
            fields,
            index,
            dir: dir.to_owned(),
            options,
            merges,
            joining: Arc::default(),
            reader,
            published: RwLock::new(PublishedState {
                columns: OpenColumns::of(&searcher, None),
                searcher,
                reached,
            }),
            state: Mutex::new(state),
        };
        if fresh {
            this.commit_durably(&mut this.state())?;
        }
        Ok(this)
    }

    /// Returns the log position up to which searches see all events.
    #[must_use]
    pub fn reached(&self) -> Position {
        self.published().reached
    }

    /// Returns the log position up to which events were added, committed or not.
    #[must_use]
    pub fn added_to(&self) -> Position {
        self.state().added_to
    }

    /// Returns the number of visible passages over all namespaces.
    #[must_use]
    pub fn passage_count(&self) -> u64 {
        self.published().searcher.num_docs()
    }

    /// Returns the size of the visible index on disk (or in memory), in bytes.
    ///
    /// # Errors
    /// [`IndexError::Io`] when a file cannot be read.
    pub fn size_bytes(&self) -> Result<u64, IndexError> {
        let usage = self.published().searcher.space_usage();
        Ok(usage
            .map_err(|e| io_error("measured", &self.dir, e))?
            .total()
            .get_bytes())
    }

    /// Adds events in order of log position. `reached` is the position up to which the log was
    /// read, events without text included. Events up to [`Self::added_to`] are skipped, so adding
    /// them twice does no harm. Nothing is visible or durable before a commit.
    ///
    /// # Errors
    /// [`IndexError`]. Everything added since the last commit is then lost: call [`Self::recover`].
    pub fn add(&self, events: &[SearchableEvent], reached: Position) -> Result<(), IndexError> {
        let mut state = self.state();
        let known = state.added_to;
        for event in events.iter().filter(|event| event.position > known) {
            self.add_event(&mut state, event)?;
            state.added_to = state.added_to.max(event.position);
        }
        state.added_to = state.added_to.max(reached);
        if state.added_to > known {
            state.changed_at.get_or_insert_with(Instant::now);
        }
        Ok(())
    }

    /// Replaces events that were added before by their current form; those that were not are
    /// skipped. Nothing is visible or durable before a commit.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub fn replace(&self, events: &[SearchableEvent]) -> Result<(), IndexError> {
        let mut state = self.state();
        let known = state.added_to;
        let known: Vec<_> = events
            .iter()
            .filter(|event| event.position <= known)
            .collect();
        let offsets: BTreeSet<u64> = known.iter().map(|event| event.position.offset).collect();
        if !offsets.is_empty() {
            self.write(&mut state, |writer| {
                writer.delete_query(only_offsets(&offsets))
            })?;
        }
        for event in known {
            self.add_event(&mut state, event)?;
        }
        Ok(())
    }

    pub(super) fn add_event(
        &self,
        state: &mut WriterState,
        event: &SearchableEvent,
    ) -> Result<(), IndexError> {
        let text_hash = text_hash(event.kind, &event.text);
        for passage in passages(&event.text) {
            let document = self.document(event, &passage, text_hash);
            self.write(state, |writer| writer.add_document(document))?;
            state.has_operations = true;
        }
        Ok(())
    }

    /// Makes all added events visible. They are also made durable, unless only the mark moved.
    ///
    /// # Errors
    /// [`IndexError`]. Everything added since the last commit is then lost: call [`Self::recover`].
    pub fn commit(&self) -> Result<Position, IndexError> {
        let mut state = self.state();
        self.commit_state(&mut state)?;
        Ok(state.added_to)
    }

    /// Commits, then turns the catch-up mode on or off. In this mode, the index uses
    /// [`SearchOptions::hurried_threads`] and more memory, and does not merge segments that would
    /// soon be merged again. Does nothing with fewer than two `hurried_threads`.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub fn set_hurried(&self, hurried: bool) -> Result<(), IndexError> {
        let mut state = self.state();
        if state.hurried == hurried || self.options.hurried_threads < 2 {
            return Ok(());
        }
        let (options, merges) = match (hurried, self.merges) {
            (true, Merges::AsTheyCome) => (self.options.catch_up_options(), Merges::WhenMany),
            (true, merges) => (self.options.catch_up_options(), merges),
            (false, merges) => (self.options.clone(), merges),
        };
        self.change_writer(&mut state, &options, merges)?;
        state.hurried = hurried;
        Ok(())
    }

    /// Waits for running automatic merges and starts no new ones.
    pub(super) fn settle(&self, state: &mut WriterState) -> Result<(), IndexError> {
        self.change_writer(state, &self.options, Merges::Never)
    }

    /// Commits, then continues with a writer with these options.
    fn change_writer(
        &self,
        state: &mut WriterState,
        options: &SearchOptions,
        merges: Merges,
    ) -> Result<(), IndexError> {
        if state.has_operations {
            self.commit_durably(state)?;
        }
        // The old writer holds the lock, so it and its merges must end first.
        if let Some(Err(error)) = state.writer.take().map(IndexWriter::wait_merging_threads) {
            tracing::warn!(%error, "a merge of the search index failed");
        }
        state.writer = Some(open_writer(&self.index, &self.dir, options, merges)?);
        Ok(())
    }

    /// Commits when the oldest change has waited for the options' `commit_interval`. An indexing
    /// task calls this after each [`Self::add`] and at [`Self::commit_due_at`]. Returns whether it
    /// committed.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub fn commit_if_due(&self) -> Result<bool, IndexError> {
        self.commit_if_older(self.options.commit_interval)
    }

    /// Commits when the oldest change is at least this old. Returns whether it committed.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub fn commit_if_older(&self, age: Duration) -> Result<bool, IndexError> {
        let mut state = self.state();
        let due = state.changed_at.is_some_and(|since| since.elapsed() >= age);
        if due {
            self.commit_state(&mut state)?;
        }
        Ok(due)
    }

    /// Returns when the next commit is due, or `None` when there is nothing to commit.
    #[must_use]
    pub fn commit_due_at(&self) -> Option<Instant> {
        self.state()
            .changed_at
            .map(|since| since + self.options.commit_interval)
    }

    /// Recovers from a failed write: discards everything since the last commit and returns the log
    /// position after which to add events again.
    ///
    /// # Errors
    /// [`IndexError`] when writing still fails; try again later. Searching continues meanwhile.
    pub fn recover(&self) -> Result<Position, IndexError> {
        let mut state = self.state();
        // The old writer holds the lock, so it must be dropped first.
        state.writer = None;
        state.writer = Some(open_writer(
            &self.index,
            &self.dir,
            &self.options,
            self.merges,
        )?);
        state.hurried = false;
        state.changed_at = None;
        state.has_operations = false;
        state.added_to = state.durable;
        Ok(state.durable)
    }

    /// Stops writing and waits for running merges, so that the folder can be renamed. Uncommitted
    /// events are lost. Searching continues, and [`Self::recover`] starts writing again.
    pub fn stop_writing(&self) {
        let writer = self.state().writer.take();
        if let Some(Err(error)) = writer.map(IndexWriter::wait_merging_threads) {
            tracing::warn!(%error, "a merge of the search index failed");
        }
    }

    /// Reads every file and verifies its checksum.
    ///
    /// # Errors
    /// [`IndexError::NeedsRebuild`] when a file is damaged or missing.
    pub fn check_files(&self) -> Result<(), IndexError> {
        verify(&self.index, &self.dir)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, WriterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn published(&self) -> PublishedState {
        self.published
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn commit_state(&self, state: &mut WriterState) -> Result<(), IndexError> {
        let mark_is_late =
            state.added_to != state.durable && state.durable_at.elapsed() >= MARK_DURABLE_EVERY;
        if state.has_operations || mark_is_late || state.writer.is_none() {
            return self.commit_durably(state);
        }
        state.changed_at = None;
        // No new documents: only the mark moves, and there is nothing to reload.
        let mut published = self
            .published
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        published.reached = state.added_to;
        Ok(())
    }

    pub(super) fn commit_durably(&self, state: &mut WriterState) -> Result<(), IndexError> {
        let payload = payload(state.added_to);
        self.write(state, |writer| {
            let mut prepared = writer.prepare_commit()?;
            prepared.set_payload(&payload);
            prepared.commit()
        })?;
        state.durable = state.added_to;
        state.durable_at = Instant::now();
        state.changed_at = None;
        state.has_operations = false;
        self.publish(state)?;
        self.note_files(state);
        Ok(())
    }

    pub(super) fn note_files(&self, state: &mut WriterState) {
        if self.merges == Merges::Never || !self.dir.is_dir() {
            return;
        }
        let segments = self.index.searchable_segment_metas();
        let noted = segments
            .map_err(std::io::Error::other)
            .and_then(|segments| files::note(&self.dir, &segments, &mut state.noted));
        if let Err(error) = noted {
            tracing::warn!(%error, "the files of the search index could not be recorded");
        }
    }

    /// Runs one operation of the writer. A failure makes the writer unusable until
    /// [`Self::recover`], so that a gap is never committed.
    pub(super) fn write<T>(
        &self,
        state: &mut WriterState,
        operation: impl FnOnce(&mut IndexWriter) -> Result<T, TantivyError>,
    ) -> Result<T, IndexError> {
        let Some(writer) = state.writer.as_mut() else {
            let source = TantivyError::SystemError("an earlier write failed".to_owned());
            return Err(IndexError::Engine {
                action: "written before recovery",
                source,
            });
        };
        operation(writer).map_err(|error| {
            state.writer = None;
            engine_error("written", &self.dir, error)
        })
    }

    fn publish(&self, state: &WriterState) -> Result<(), IndexError> {
        self.reload(Some(state.added_to))
    }

    /// Makes committed documents visible to searches. `None` leaves `reached` as it was.
    pub(super) fn reload(&self, reached: Option<Position>) -> Result<(), IndexError> {
        self.reader
            .reload()
            .map_err(|error| engine_error("read", &self.dir, error))?;
        let searcher = self.reader.searcher();
        let mut published = self
            .published
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        published.columns = OpenColumns::of(&searcher, Some(&published.columns));
        published.searcher = searcher;
        published.reached = reached.unwrap_or(published.reached);
        Ok(())
    }

    fn document(
        &self,
        event: &SearchableEvent,
        passage: &Passage<'_>,
        text_hash: u64,
    ) -> TantivyDocument {
        let fields = &self.fields;
        let mut document = TantivyDocument::default();
        document.add_text(fields.text, text_value(&event.namespace, passage.text));
        for tag in fields.tags_of(event) {
            document.add_text(fields.tags, tag);
        }
        if passage.byte_start == 0 {
            document.add_text(fields.tags, text_tag(&event.namespace, text_hash));
        }
        document.add_bytes(fields.conversation, event.conversation.0.as_bytes());
        document.add_i64(fields.recorded_at, event.recorded_at.0);
        document.add_i64(fields.happened_at, event.happened_at.0);
        for (field, number) in [
            (fields.branch, event.branch.0),
            (fields.revision, event.revision.0),
            (fields.shard, u64::from(event.position.shard.0)),
            (fields.offset, event.position.offset),
            (fields.kind, u64::from(event.kind.number())),
            (
                fields.outcome,
                outcome_number(event.success, event.recalled),
            ),
            (fields.byte_start, passage.byte_start as u64),
            (fields.text_hash, text_hash),
        ] {
            document.add_u64(field, number);
        }
        document.add_text(fields.tool, &event.tool);
        document
    }
}

fn open_writer(
    index: &Index,
    dir: &Path,
    options: &SearchOptions,
    merging: Merges,
) -> Result<IndexWriter, IndexError> {
    let threads = options.writer_threads.max(1);
    let of_thread = options.writer_heap_bytes / threads;
    let started = Instant::now();
    let writer: IndexWriter = loop {
        let writer_options = IndexWriterOptions::builder()
            .num_worker_threads(threads)
            .num_merge_threads(1)
            .memory_budget_per_thread(of_thread.max(WRITER_HEAP_BYTES_MIN))
            .build();
        match index.writer_with_options(writer_options) {
            Err(TantivyError::LockFailure(LockError::LockBusy, _))
                if started.elapsed() < LOCK_WAIT =>
            {
                thread::sleep(LOCK_PAUSE);
            }
            opened => break opened.map_err(|error| unreadable(dir, error))?,
        }
    };
    match merging {
        Merges::AsTheyCome | Merges::WhenMany => {
            let mut merges = LogMergePolicy::default();
            merges.set_del_docs_ratio_before_merge(ERASED_SHARE_MAX);
            if merging == Merges::WhenMany {
                merges.set_min_num_segments(HURRIED_SEGMENTS_MIN);
            }
            writer.set_merge_policy(Box::new(merges));
        }
        Merges::Never => writer.set_merge_policy(Box::new(NoMergePolicy)),
    }
    Ok(writer)
}

fn check_heap(bytes: usize) -> Result<(), IndexError> {
    let (min, max) = (WRITER_HEAP_BYTES_MIN, WRITER_HEAP_BYTES_MAX);
    if (min..=max).contains(&bytes) {
        return Ok(());
    }
    Err(IndexError::WriterHeap { bytes, min, max })
}

/// Returns true when a directory has files that are not hidden (lock files are hidden).
fn holds_files(dir: &Path) -> std::io::Result<bool> {
    for entry in std::fs::read_dir(dir)? {
        if !entry?.file_name().to_string_lossy().starts_with('.') {
            return Ok(true);
        }
    }
    Ok(false)
}

fn verify(index: &Index, dir: &Path) -> Result<(), IndexError> {
    let damaged = index
        .validate_checksum()
        .map_err(|error| unreadable(dir, error))?;
    match damaged.iter().next() {
        None => Ok(()),
        Some(file) => Err(rebuild(format!(
            "{} has a checksum mismatch",
            file.display()
        ))),
    }
}

/// Checks the sizes in the list of segments, which has no checksum, against the segments.
fn check_segments(searcher: &Searcher) -> Result<(), IndexError> {
    for segment in searcher.segment_readers() {
        let starts = segment.fast_fields().u64(column::BYTE_START);
        let starts = starts.map_err(|_| rebuild("a segment has no byte_start column"))?;
        if starts.num_docs() != segment.max_doc() {
            return Err(rebuild(
                "a segment's size differs from the list of segments",
            ));
        }
    }
    Ok(())
}

/// Returns `treering-search VERSION SHARD:OFFSET CRC32C`. The file that stores it has no checksum
/// of its own.
fn payload(mark: Position) -> String {
    let text = format!("{PAYLOAD_NAME} {INDEX_VERSION} {mark}");
    let checksum = crc32c::crc32c(text.as_bytes());
    format!("{text} {checksum:08x}")
}

fn parse_payload(payload: &str) -> Result<Position, IndexError> {
    let damaged = || rebuild("the position of its last commit is invalid");
    let (text, checksum) = payload.rsplit_once(' ').ok_or_else(damaged)?;
    if format!("{:08x}", crc32c::crc32c(text.as_bytes())) != checksum {
        return Err(damaged());
    }
    let words: Vec<&str> = text.split(' ').collect();
    let [PAYLOAD_NAME, version, mark] = words[..] else {
        return Err(damaged());
    };
    if version != INDEX_VERSION.to_string() {
        return Err(rebuild(format!(
            "it has version {version}; this program uses version {INDEX_VERSION}"
        )));
    }
    let (shard, offset) = mark.split_once(':').ok_or_else(damaged)?;
    let shard = ShardId(shard.parse().map_err(|_| damaged())?);
    let offset = offset.parse().map_err(|_| damaged())?;
    Ok(Position { shard, offset })
}
