//! The durable log: redb files, one per segment of bounded size.
//!
//! Only the last segment is written to, so only that one needs repair after a crash;
//! `docs/decisions/0001-log-segments.md` has the measurements. What lives here: the manifest and
//! its checks, locks, opening, sealing and repairing segments, and recovery from failures. What
//! does not: the byte formats of frames and records, which all backends share.

mod active;
mod blob;
mod copy;
mod file;
mod folder;
mod lock;
mod manifest;
mod open;
mod packed;
mod recent_bodies;
mod repair;
mod rewrite;
mod rewriter;
mod rows;
mod scrub;
mod seal;
mod segment;
#[cfg(any(test, feature = "testkit"))]
pub mod simulated_disk;
mod sources;

use std::{
    collections::HashSet,
    io,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;
use uuid::Uuid;

pub use self::lock::FolderLock;
use self::{
    active::{ActiveSegment, batch_bytes, written_bytes},
    manifest::SegmentEntry,
    recent_bodies::RecentBodies,
    segment::SealedSegment,
};
pub use self::{
    file::{DiskFile, FileMeasures, SegmentFile},
    folder::{Access, DiskFolder, Folder},
    lock::{LOCK_FILE, holder_of},
    manifest::{FORMAT as LOG_FORMAT, MANIFEST, Manifest},
    open::OpenMode,
    repair::{ConsistencyEvidence, LogRepair, LostRange, RepairSession},
    rewrite::RewriteOutcome,
    rewriter::Rewriter,
};

use super::{
    erasure::ErasableLog,
    holder::HolderSecret,
    port::{
        AcquiredShard, EncodedFrame, Epoch, EventLog, FrameBatch, LogError, LogIdentity, LogStats,
    },
    record::BlobRef,
};
use treering_domain::ShardId;

/// Folder of the segments, inside the data folder.
pub const LOG_FOLDER: &str = "log";

/// Options of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedbLogOptions {
    /// A segment accepts no more batches once its file has about this size, in bytes.
    pub segment_bytes_max: u64,
    /// Page cache of the last segment, in bytes.
    pub cache_bytes: usize,
    /// Page cache of each open sealed segment, in bytes.
    pub sealed_cache_bytes: usize,
    /// Maximum number of sealed segments that are open at once.
    pub sealed_open_max: usize,
}

impl Default for RedbLogOptions {
    fn default() -> Self {
        Self {
            segment_bytes_max: 64 << 20,
            cache_bytes: 16 << 20,
            sealed_cache_bytes: 1 << 20,
            sealed_open_max: 8,
        }
    }
}

/// A log in redb files. It has one shard, number 0.
pub struct RedbLog<F: Folder = DiskFolder> {
    folder: F,
    options: RedbLogOptions,
    mode: OpenMode,
    owner: Mutex<Owner>,
    /// The manifest. The one on disk may differ after a replacement whose outcome is unknown or
    /// that was not synced.
    manifest: RwLock<Manifest>,
    /// The last segment. Locked for writing only while it is opened or replaced.
    active: RwLock<ActiveSegment<F>>,
    /// Set after a failed sync: the last segment must be rewritten to a new file before the next
    /// append.
    poisoned: AtomicBool,
    /// Open sealed segments by file name, the most recently used last.
    sealed: Mutex<Vec<(String, Arc<SealedSegment>)>>,
    /// Recently read bodies that patches are based on.
    recent: RecentBodies,
    /// Held while the manifest is changed.
    manifest_turn: Mutex<()>,
    /// Held while the log is opened for appending, when leftover files are removed.
    opening: Mutex<()>,
    /// Files to remove once a manifest that does not name them is durable.
    stale: Mutex<Vec<String>>,
    /// Held while segments are rewritten.
    rewriting: Mutex<()>,
    /// First offsets of sealed segments that cannot be rewritten because they are damaged.
    unfit: Mutex<HashSet<u64>>,
    head: watch::Sender<Head>,
    lock: Mutex<Option<FolderLock>>,
}

#[derive(Debug, Default)]
struct Owner {
    epoch: Epoch,
}

#[derive(Clone, Copy, Debug)]
struct Head {
    offset: u64,
    closed: bool,
}

impl<F: Folder> std::fmt::Debug for RedbLog<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedbLog")
            .field("folder", &self.folder)
            .field("options", &self.options)
            .field("mode", &self.mode)
            .field("head", &*self.head.borrow())
            .finish_non_exhaustive()
    }
}

fn lock_of<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The locked values change in single steps, so a poisoned lock is still consistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<F: Folder> RedbLog<F> {
    fn check_open(&self, shard: ShardId) -> Result<u64, LogError> {
        if shard != ShardId::default() {
            return Err(LogError::UnknownShard { shard });
        }
        let head = *self.head.borrow();
        if head.closed {
            return Err(LogError::Closed);
        }
        Ok(head.offset)
    }

    /// Checks that the data folder still belongs to this process. Its files are accessed through an
    /// open folder handle, so appends would succeed even after the folder was moved, but they would
    /// not be in the folder at its path.
    fn check_lock(&self) -> Result<(), LogError> {
        match &mut *lock_of(&self.lock) {
            Some(lock) if !self.mode.is_read_only() => lock.check(),
            _ => Ok(()),
        }
    }

    fn read_active(&self) -> RwLockReadGuard<'_, ActiveSegment<F>> {
        self.active.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_active(&self) -> RwLockWriteGuard<'_, ActiveSegment<F>> {
        self.active.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn manifest(&self) -> RwLockReadGuard<'_, Manifest> {
        self.manifest.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_manifest(&self, manifest: Manifest) {
        *self
            .manifest
            .write()
            .unwrap_or_else(PoisonError::into_inner) = manifest;
    }

    fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Acquire)
    }

    /// Returns the last segment, reopening it if a failure has closed it.
    fn active(&self) -> Result<RwLockReadGuard<'_, ActiveSegment<F>>, LogError> {
        let active = self.read_active();
        if active.open.is_some() {
            return Ok(active);
        }
        drop(active);
        let mut active = self.write_active();
        if active.open.is_none() {
            if self.head.borrow().closed {
                return Err(LogError::Closed);
            }
            let cache_bytes = self.options.cache_bytes;
            if self.mode.is_read_only() || self.is_poisoned() {
                active.open_to_read(&self.folder, cache_bytes)?;
            } else {
                let end = active.open_to_append(&self.folder, cache_bytes)?;
                self.head.send_modify(|state| state.offset = end.offset);
            }
        }
        drop(active);
        Ok(self.read_active())
    }

    /// Appends to the last segment. The caller holds the owner's lock and has checked the batch.
    fn append_batch(&self, head: u64, batch: &FrameBatch) -> Result<u64, LogError> {
        let wanted = batch.new_head(head);
        let bytes = batch_bytes(batch);
        self.check_lock()?;
        self.rotate_if_poisoned(head)?;
        self.seal_if_full(head, bytes)?;
        self.rotate_if_poisoned(head)?;
        let active = self.active()?;
        let open = active.open.as_ref().ok_or(LogError::Closed)?;
        open.ensure_room(bytes)?;
        match segment::append(&open.database, batch) {
            Ok(blob_bytes) => {
                drop(active);
                if let Some(open) = &mut self.write_active().open {
                    open.used_bytes += written_bytes(batch, blob_bytes);
                }
                let generation = self.recent.generation();
                for blob in batch.blobs.iter().filter(|blob| blob.patch.is_some()) {
                    self.recent
                        .keep(blob.home_offset, blob.bytes.clone(), generation);
                }
                Ok(wanted)
            }
            Err(error) if active.is_poisoned() => {
                drop(active);
                self.recover_from_sync(head, error)
            }
            Err(error) => {
                drop(active);
                self.recover(head, wanted, error)
            }
        }
    }

    /// Returns the segment that contains an offset.
    fn segment_of(&self, offset: u64) -> Result<SegmentEntry, LogError> {
        let manifest = self.manifest();
        let behind = manifest
            .segments
            .partition_point(|segment| segment.first <= offset);
        behind
            .checked_sub(1)
            .and_then(|index| manifest.segments.get(index).cloned())
            .ok_or_else(|| LogError::damaged(offset, "no segment contains this record"))
    }

    /// Returns a sealed segment for reading. A segment that was sealed just now may still be open
    /// for writing; this waits until it is closed.
    fn sealed(&self, entry: &SegmentEntry) -> Result<Arc<SealedSegment>, LogError> {
        /// How long closing a segment may take on a slow disk.
        const CLOSING_MAX: Duration = Duration::from_secs(2);
        let started = Instant::now();
        loop {
            match self.sealed_now(entry) {
                Err(error) if is_held(&error) && started.elapsed() < CLOSING_MAX => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                outcome => return outcome,
            }
        }
    }

    fn sealed_now(&self, entry: &SegmentEntry) -> Result<Arc<SealedSegment>, LogError> {
        let first_offset = entry.first;
        let file = entry.file.as_deref().ok_or_else(|| {
            LogError::damaged(
                first_offset,
                "this segment is lost, and `treering repair --accept-loss` accepted that",
            )
        })?;
        let mut sealed = lock_of(&self.sealed);
        if let Some(index) = sealed.iter().position(|(name, _)| name == file) {
            let entry = sealed.remove(index);
            let database = Arc::clone(&entry.1);
            sealed.push(entry);
            return Ok(database);
        }
        let cache_bytes = self.options.sealed_cache_bytes;
        let opened = segment::open_sealed(&self.folder, file, first_offset, cache_bytes)?;
        let store = self.manifest().store;
        segment::check_identity(&opened.reader(), store, first_offset)?;
        let database = Arc::new(opened);
        sealed.push((file.to_owned(), Arc::clone(&database)));
        if sealed.len() > self.options.sealed_open_max {
            sealed.remove(0);
        }
        Ok(database)
    }

    /// Runs `read` on the segment that contains an offset.
    fn in_segment<T>(
        &self,
        offset: u64,
        read: impl Fn(segment::Reader<'_>) -> Result<T, LogError>,
    ) -> Result<T, LogError> {
        /// How many times a segment may be sealed or rewritten during one read.
        const TRIES_MAX: u32 = 100;
        let mut tries = 0;
        loop {
            let entry = self.segment_of(offset)?;
            let outcome = self.in_entry(&entry, &read);
            tries += 1;
            if outcome.is_ok() || tries > TRIES_MAX || self.segment_of(offset)? == entry {
                return outcome;
            }
        }
    }

    fn in_entry<T>(
        &self,
        entry: &SegmentEntry,
        read: impl Fn(segment::Reader<'_>) -> Result<T, LogError>,
    ) -> Result<T, LogError> {
        if entry.sealed.is_none() {
            let active = self.active()?;
            if active.first_offset == entry.first {
                let open = active.open.as_ref().ok_or(LogError::Closed)?;
                return read(segment::Reader::frames(&open.database));
            }
        }
        read(self.sealed(entry)?.reader())
    }
}

impl RedbLog {
    /// Returns the format version of the log.
    #[must_use]
    pub fn format(&self) -> u32 {
        self.manifest().format
    }

    /// Returns the I/O measurements of its files since it was opened.
    #[must_use]
    pub fn file_measures(&self) -> &FileMeasures {
        self.folder.measures()
    }
}

/// Returns true when a segment that was sealed just now is still open for writing.
fn is_held(error: &LogError) -> bool {
    matches!(error, LogError::Io { source, .. } if source.kind() == io::ErrorKind::WouldBlock)
}

impl<F: Folder> Drop for RedbLog<F> {
    fn drop(&mut self) {
        if let Err(error) = self.write_active().close() {
            tracing::warn!(%error, "the log was not closed cleanly; the next open repairs it");
        }
    }
}

#[async_trait]
impl<F: Folder> EventLog for RedbLog<F> {
    fn identity(&self) -> LogIdentity {
        self.manifest().identity()
    }

    fn knows_timeline(&self, timeline: Uuid) -> bool {
        self.manifest().knows_timeline(timeline)
    }

    async fn acquire(&self, shard: ShardId) -> Result<AcquiredShard, LogError> {
        self.check_open(shard)?;
        let mut owner = lock_of(&self.owner);
        if self.mode.is_read_only() {
            owner.epoch.0 += 1;
            return Ok(AcquiredShard {
                epoch: owner.epoch,
                head: self.head.borrow().offset,
            });
        }
        // A failed append may have left the segment closed or untrusted, and the head unknown.
        let head = self.head.borrow().offset;
        self.rotate_if_poisoned(head)?;
        self.open_to_write()?;
        drop(self.active()?);
        owner.epoch.0 += 1;
        Ok(AcquiredShard {
            epoch: owner.epoch,
            head: self.head.borrow().offset,
        })
    }

    fn erasable(self: Arc<Self>, _: ShardId, _: Epoch) -> Option<Arc<dyn ErasableLog>> {
        Some(self)
    }

    async fn append(
        &self,
        shard: ShardId,
        epoch: Epoch,
        head: u64,
        batch: FrameBatch,
    ) -> Result<u64, LogError> {
        self.check_open(shard)?;
        if self.mode.is_read_only() {
            return Err(LogError::OpenedToRead);
        }
        let owner = lock_of(&self.owner);
        epoch.check(shard, owner.epoch)?;
        self.open_to_write()?;
        drop(self.active()?);
        let actual = self.head.borrow().offset;
        if actual != head {
            return Err(LogError::HeadMismatch {
                expected: head,
                actual,
            });
        }
        batch.check(head)?;
        if batch.frames.is_empty() {
            return Ok(head);
        }
        let new_head = self.append_batch(head, &batch)?;
        self.head.send_modify(|state| state.offset = new_head);
        Ok(new_head)
    }

    async fn read(
        &self,
        shard: ShardId,
        from_offset: u64,
        bytes_max: usize,
    ) -> Result<Vec<EncodedFrame>, LogError> {
        let head = self.check_open(shard)?;
        let mut frames = Vec::new();
        let mut next = from_offset.max(1);
        let mut bytes = 0;
        while next <= head && (bytes < bytes_max || frames.is_empty()) {
            let room = bytes_max.saturating_sub(bytes).max(1);
            let read = self.in_segment(next, |segment| rows::read_frames(segment, next, room));
            let found = match read {
                Ok(found) if found.is_empty() => {
                    Err(LogError::damaged(next, "no frame contains this record"))
                }
                read => read,
            };
            match found {
                Ok(mut found) => {
                    // A batch whose outcome is unknown may follow the head.
                    found.retain(|frame| frame.last_offset() <= head);
                    if found.is_empty() {
                        break;
                    }
                    bytes += found.iter().map(|frame| frame.bytes.len()).sum::<usize>();
                    next = found.last().map_or(next, |frame| frame.last_offset() + 1);
                    frames.extend(found);
                }
                // The next read starts at the damage and reports it.
                Err(_) if !frames.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(frames)
    }

    async fn next_frame(&self, shard: ShardId, after_offset: u64) -> Result<Option<u64>, LogError> {
        let head = self.check_open(shard)?;
        if after_offset >= head {
            return Ok(None);
        }
        let entry = self.segment_of(after_offset.max(1))?;
        let next = self.in_segment(after_offset.max(1), |segment| {
            segment::next_frame(segment, after_offset)
        });
        match (next, &entry.sealed) {
            (Ok(Some(next)), _) => Ok(Some(next).filter(|next| *next <= head)),
            // The next segment begins with a frame.
            (_, Some(mark)) => Ok(Some(mark.offset + 1).filter(|next| *next <= head)),
            (Ok(None), None) => Ok(None),
            (Err(error), None) => Err(error),
        }
    }

    async fn blob(&self, shard: ShardId, blob: &BlobRef) -> Result<Bytes, LogError> {
        self.check_open(shard)?;
        self.in_segment(blob.home_offset, |segment| {
            segment::read_blob(&segment, blob, &self.recent)
        })
    }

    async fn tail(&self, shard: ShardId, after_offset: u64) -> Result<u64, LogError> {
        self.check_open(shard)?;
        let mut head = self.head.subscribe();
        let reached = head
            .wait_for(|head| head.closed || head.offset > after_offset)
            .await
            .map_err(|_| LogError::Closed)?;
        if reached.closed {
            return Err(LogError::Closed);
        }
        Ok(reached.offset)
    }

    async fn stats(&self, shard: ShardId) -> Result<LogStats, LogError> {
        self.check_open(shard)?;
        let bytes = self
            .folder
            .bytes()
            .map_err(|error| LogError::from_io("measuring the log", error))?;
        Ok(LogStats {
            bytes,
            segments: self.manifest().segments.len() as u64,
        })
    }

    async fn close(&self) -> Result<(), LogError> {
        let _owner = lock_of(&self.owner);
        if self.head.borrow().closed {
            return Ok(());
        }
        let noted = self.note_reached();
        self.head.send_modify(|head| head.closed = true);
        // Wait for a running rewrite to end: others may open the folder once its lock is released.
        let _turn = lock_of(&self.rewriting);
        let mut active = self.write_active();
        let closed = active.close();
        lock_of(&self.sealed).clear();
        *lock_of(&self.lock) = None;
        closed.and(noted)
    }
}

impl RedbLog<DiskFolder> {
    /// Returns true when the log was opened for reading only.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.mode.is_read_only()
    }

    /// Writes the address of this process's server into the lock file, so that other processes can
    /// report it.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn announce(&self, address: &str, secret: &HolderSecret) -> Result<(), LogError> {
        match &mut *lock_of(&self.lock) {
            Some(lock) => lock.announce(address, secret),
            None => Err(LogError::Closed),
        }
    }

    /// Returns the last used offset; 0 when the log is empty. Opening determines it without
    /// changing anything.
    #[must_use]
    pub fn head(&self) -> u64 {
        self.head.borrow().offset
    }

    /// Restores the folder's lock file if it was deleted. Returns false, and logs an error, when
    /// the folder no longer belongs to this process; appends are refused then.
    pub fn keep_lock(&self) -> bool {
        let kept = self.check_lock();
        if let Err(error) = &kept {
            tracing::error!(%error, "this process no longer holds its data folder");
        }
        kept.is_ok()
    }

    /// Opens the log of a data folder and locks the folder until the log is closed or dropped.
    ///
    /// # Errors
    /// [`LogError::Locked`] when another process holds the folder, [`LogError::NoStore`] when there
    /// is no store and `mode` does not create one, [`LogError::ReadOnly`] when it is not writable,
    /// [`LogError::Regressed`] when a part of it is missing, [`LogError::Damaged`] when its end
    /// cannot be trusted.
    pub fn open(data: &Path, options: RedbLogOptions, mode: OpenMode) -> Result<Self, LogError> {
        open::open(data, options, mode)
    }

    /// Opens the remaining parts of a data folder's log, read-only, for salvage.
    ///
    /// # Errors
    /// [`LogError::Locked`], [`LogError::NoStore`], and I/O errors.
    pub fn open_remains(data: &Path, options: RedbLogOptions) -> Result<Self, LogError> {
        open::open_remains(data, options)
    }
}

#[cfg(test)]
mod tests;
