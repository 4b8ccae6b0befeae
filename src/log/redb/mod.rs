//! The durable log: redb files, cut into segments of bounded size.
//!
//! Only the last segment is written, so only that one is repaired after a crash;
//! `docs/decisions/0001-segments-or-quick-repair.md` has the numbers. What lives
//! here: choosing, opening, sealing and repairing segments, and going on after
//! failures. What does not: the bytes of frames and records, which are those of
//! every backend.

mod active;
mod blob;
mod files;
mod lock;
mod segment;
#[cfg(test)]
pub(crate) mod simulated;

use std::{
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use ::redb::{Database, ReadOnlyDatabase};
use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;

use self::active::{Active, batch_bytes, create_segment};
pub use self::{
    files::{Access, DiskFile, DiskFiles, SegmentFiles, SegmentStorage},
    lock::{FolderLock, LOCK_FILE},
};
use super::{
    memory::check_owner,
    port::{Acquired, EncodedFrame, Epoch, EventLog, FrameBatch, LogError, LogStats},
};
use crate::domain::{ContentHash, Namespace, ShardId};

/// Folder of the segments, in the data folder.
pub const LOG_FOLDER: &str = "log";

/// What can be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedbLogOptions {
    /// A segment takes no more batches once its file has about this many bytes.
    pub segment_bytes_max: u64,
    /// Memory for pages of the last segment, in bytes.
    pub cache_bytes: usize,
    /// Memory for pages of each open sealed segment, in bytes.
    pub sealed_cache_bytes: usize,
    /// Most sealed segments that are open at once.
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

/// A log in redb files. It is one shard, number 0.
pub struct RedbLog<F: SegmentFiles = DiskFiles> {
    files: F,
    options: RedbLogOptions,
    owner: Mutex<Owner>,
    /// The last segment. Held for writing only while it is opened or replaced.
    active: RwLock<Active<F>>,
    /// First offsets of all segments, in order.
    segments: RwLock<Vec<u64>>,
    /// Open sealed segments, the last used one at the end.
    sealed: Mutex<Vec<(u64, Arc<ReadOnlyDatabase>)>>,
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

impl<F: SegmentFiles> std::fmt::Debug for RedbLog<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedbLog")
            .field("files", &self.files)
            .field("options", &self.options)
            .field("head", &*self.head.borrow())
            .finish_non_exhaustive()
    }
}

impl RedbLog<DiskFiles> {
    /// Opens the log of a data folder, or starts one, and holds the folder until
    /// it is closed or dropped.
    ///
    /// # Errors
    /// [`LogError::Locked`] when another process holds the folder,
    /// [`LogError::ReadOnly`] when it cannot be written, [`LogError::Damaged`]
    /// when its end cannot be trusted.
    pub fn open(data: &Path, options: RedbLogOptions) -> Result<Self, LogError> {
        let lock = FolderLock::acquire(data)?;
        let folder = data.join(LOG_FOLDER);
        let files = DiskFiles::new(&folder).map_err(|error| lock::refused(&folder, error))?;
        let log = Self::open_with(files, options).map_err(|error| match error {
            LogError::Io { source, .. } if is_refusal(&source) => LogError::ReadOnly {
                path: folder.clone(),
            },
            error => error,
        })?;
        *lock_of(&log.lock) = Some(lock);
        Ok(log)
    }

    /// Writes into the lock file where this process serves the folder, so that
    /// another one can say how to reach it.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn set_address(&self, address: &str) -> Result<(), LogError> {
        match &*lock_of(&self.lock) {
            Some(lock) => lock.set_address(address),
            None => Err(LogError::Closed),
        }
    }
}

fn is_refusal(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem
    )
}

fn lock_of<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What a lock holds here is changed in single steps.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<F: SegmentFiles> RedbLog<F> {
    /// Opens a log over any place for segments; nothing keeps another process
    /// away from that place.
    ///
    /// # Errors
    /// As [`RedbLog::open`].
    pub fn open_with(files: F, options: RedbLogOptions) -> Result<Self, LogError> {
        let mut segments = files
            .list()
            .map_err(|error| LogError::from_io("listing the segments", error))?;
        if segments.is_empty() {
            create_segment(&files, 1, options.cache_bytes)?;
            segments.push(1);
        }
        let first_offset = segments.last().copied().unwrap_or(1);
        let mut active = Active {
            first_offset,
            open: None,
        };
        let head = active.reopen(&files, options.cache_bytes)?;
        Ok(Self {
            files,
            options,
            owner: Mutex::default(),
            active: RwLock::new(active),
            segments: RwLock::new(segments),
            sealed: Mutex::default(),
            head: watch::channel(Head {
                offset: head,
                closed: false,
            })
            .0,
            lock: Mutex::default(),
        })
    }

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

    fn read_active(&self) -> RwLockReadGuard<'_, Active<F>> {
        self.active.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_active(&self) -> RwLockWriteGuard<'_, Active<F>> {
        self.active.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last segment, opened again if a failure has closed it.
    fn active(&self) -> Result<RwLockReadGuard<'_, Active<F>>, LogError> {
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
            let head = active.reopen(&self.files, self.options.cache_bytes)?;
            self.head.send_modify(|state| state.offset = head);
        }
        drop(active);
        Ok(self.read_active())
    }

    /// Appends to the last segment; the caller holds the owner's lock and has
    /// checked the batch.
    fn append_batch(&self, head: u64, batch: &FrameBatch) -> Result<u64, LogError> {
        let wanted = batch.new_head(head);
        let bytes = batch_bytes(batch);
        self.seal_if_full(head, bytes)?;
        let active = self.active()?;
        let open = active.open.as_ref().ok_or(LogError::Closed)?;
        open.reserve(bytes)?;
        match segment::append(&open.database, batch) {
            Ok(()) => {
                drop(active);
                if let Some(open) = &mut self.write_active().open {
                    open.used_bytes += bytes;
                }
                Ok(wanted)
            }
            Err(error) => {
                drop(active);
                self.recover(head, wanted, error)
            }
        }
    }

    /// After a failed append: redb refuses everything until the file is opened
    /// again; that also shows whether the batch is there.
    fn recover(&self, head: u64, wanted: u64, failed: LogError) -> Result<u64, LogError> {
        tracing::warn!(error = %failed, "an append failed; the segment is opened again");
        let mut active = self.write_active();
        let now = active
            .reopen(&self.files, self.options.cache_bytes)
            .map_err(|error| LogError::UnknownOutcome {
                head,
                what: format!("{failed}; and then: {error}"),
            })?;
        if now == wanted {
            return Ok(wanted);
        }
        if now == head {
            return Err(failed);
        }
        self.head.send_modify(|state| state.offset = now);
        Err(LogError::HeadMismatch {
            expected: head,
            actual: now,
        })
    }

    /// Starts a new segment when the last one would grow over its bound.
    fn seal_if_full(&self, head: u64, batch_bytes: u64) -> Result<(), LogError> {
        let next = head + 1;
        {
            let active = self.active()?;
            let used = active.open.as_ref().map_or(0, |open| open.used_bytes);
            let empty = active.first_offset == next;
            if empty || used + batch_bytes <= self.options.segment_bytes_max {
                return Ok(());
            }
        }
        create_segment(&self.files, next, self.options.cache_bytes)?;
        // It is published: from here on nothing may go to the old one.
        let mut active = self.write_active();
        let mut full = std::mem::replace(
            &mut *active,
            Active {
                first_offset: next,
                open: None,
            },
        );
        self.segments
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .push(next);
        if let Err(error) = full.close() {
            // It is repaired when it is read.
            tracing::warn!(first_offset = full.first_offset, %error, "a full segment was not closed");
        }
        active.reopen(&self.files, self.options.cache_bytes)?;
        Ok(())
    }

    /// First offset of the segment that holds an offset.
    fn segment_of(&self, offset: u64) -> Result<u64, LogError> {
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        let behind = segments.partition_point(|first| *first <= offset);
        behind
            .checked_sub(1)
            .and_then(|index| segments.get(index).copied())
            .ok_or_else(|| LogError::damaged(offset, "no segment holds this record"))
    }

    fn sealed(&self, first_offset: u64) -> Result<Arc<ReadOnlyDatabase>, LogError> {
        let mut sealed = lock_of(&self.sealed);
        if let Some(index) = sealed.iter().position(|(first, _)| *first == first_offset) {
            let entry = sealed.remove(index);
            let database = Arc::clone(&entry.1);
            sealed.push(entry);
            return Ok(database);
        }
        let opened =
            segment::open_sealed(&self.files, first_offset, self.options.sealed_cache_bytes)?;
        let database = Arc::new(opened);
        sealed.push((first_offset, Arc::clone(&database)));
        if sealed.len() > self.options.sealed_open_max {
            sealed.remove(0);
        }
        Ok(database)
    }

    /// Runs `read` on the segment that holds an offset.
    fn in_segment<T>(
        &self,
        offset: u64,
        read: impl Fn(Segment<'_>) -> Result<T, LogError>,
    ) -> Result<T, LogError> {
        let first_offset = self.segment_of(offset)?;
        {
            let active = self.active()?;
            if active.first_offset == first_offset {
                let open = active.open.as_ref().ok_or(LogError::Closed)?;
                return read(Segment::Active(&open.database));
            }
        }
        read(Segment::Sealed(&*self.sealed(first_offset)?))
    }
}

/// A segment to read from.
enum Segment<'a> {
    Active(&'a Database),
    Sealed(&'a ReadOnlyDatabase),
}

impl<F: SegmentFiles> Drop for RedbLog<F> {
    fn drop(&mut self) {
        if let Err(error) = self.write_active().close() {
            tracing::warn!(%error, "the log was not closed cleanly; it is repaired when it is opened");
        }
    }
}

#[async_trait]
impl<F: SegmentFiles> EventLog for RedbLog<F> {
    async fn acquire(&self, shard: ShardId) -> Result<Acquired, LogError> {
        self.check_open(shard)?;
        let mut owner = lock_of(&self.owner);
        // A failed append may have left the segment closed and the head unknown.
        drop(self.active()?);
        owner.epoch.0 += 1;
        Ok(Acquired {
            epoch: owner.epoch,
            head: self.head.borrow().offset,
        })
    }

    async fn append(
        &self,
        shard: ShardId,
        epoch: Epoch,
        head: u64,
        batch: FrameBatch,
    ) -> Result<u64, LogError> {
        self.check_open(shard)?;
        let owner = lock_of(&self.owner);
        check_owner(shard, epoch, owner.epoch)?;
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
            let read = self.in_segment(next, |segment| {
                let mut found = Vec::new();
                match segment {
                    Segment::Active(s) => segment::read_frames(s, next, room, &mut found),
                    Segment::Sealed(s) => segment::read_frames(s, next, room, &mut found),
                }
                .map(|()| found)
            });
            let found = match read {
                Ok(found) if found.is_empty() => {
                    Err(LogError::damaged(next, "no frame holds this record"))
                }
                read => read,
            };
            match found {
                Ok(found) => {
                    bytes += found.iter().map(|frame| frame.bytes.len()).sum::<usize>();
                    next = found.last().map_or(next, |frame| frame.last_offset() + 1);
                    frames.extend(found);
                }
                // The next read starts at the damage and names it.
                Err(_) if !frames.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(frames)
    }

    async fn blob(
        &self,
        shard: ShardId,
        namespace: &Namespace,
        hash: ContentHash,
        home_offset: u64,
    ) -> Result<Bytes, LogError> {
        self.check_open(shard)?;
        self.in_segment(home_offset, |segment| match segment {
            Segment::Active(s) => segment::read_blob(s, namespace, hash, home_offset),
            Segment::Sealed(s) => segment::read_blob(s, namespace, hash, home_offset),
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
            .files
            .bytes()
            .map_err(|error| LogError::from_io("measuring the log", error))?;
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        Ok(LogStats {
            bytes,
            segments: segments.len() as u64,
        })
    }

    async fn close(&self) -> Result<(), LogError> {
        let _owner = lock_of(&self.owner);
        self.head.send_modify(|head| head.closed = true);
        let mut active = self.write_active();
        let closed = active.close();
        lock_of(&self.sealed).clear();
        *lock_of(&self.lock) = None;
        closed
    }
}

#[cfg(test)]
mod tests;
