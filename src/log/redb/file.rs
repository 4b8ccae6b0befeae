//! A segment's file: locked while it is open, and checked for space before it grows.

use std::{
    fs::{File, TryLockError},
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use redb::{StorageBackend, backends::FileBackend};

use super::folder::Access;
use treering_base::measure::{Histogram, Total};

/// A segment's file; clones share it.
pub trait SegmentFile: StorageBackend + Clone {
    /// Makes sure, as far as possible, that `bytes` more can be written.
    ///
    /// # Errors
    /// `StorageFull` when there is no space; nothing has changed then.
    fn ensure_room(&self, bytes: u64) -> io::Result<()>;

    /// Returns true once a sync has failed. The system may then treat pages as written that never
    /// reached the disk, and a later sync does not report it (PostgreSQL found this in 2018).
    /// Reading the data back does not prove that it is on disk, so the file must not be used any
    /// more.
    fn is_poisoned(&self) -> bool;

    /// Returns true once a sync found that the file was removed from its folder. Its content is
    /// lost when it is closed.
    fn is_unnamed(&self) -> bool {
        false
    }
}

/// I/O measurements of a folder's files since it was opened.
#[derive(Debug)]
pub struct FileMeasures {
    /// Time to sync a segment, in microseconds.
    pub sync_micros: Histogram,
    /// Number of failed syncs.
    pub failed_syncs: Total,
}

impl Default for FileMeasures {
    fn default() -> Self {
        Self {
            sync_micros: Histogram::of_durations(),
            failed_syncs: Total::default(),
        }
    }
}

/// A file on a real disk.
#[derive(Debug, Clone)]
pub struct DiskFile(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    backend: FileBackend,
    file: File,
    access: Access,
    sync_failed: AtomicBool,
    unnamed: AtomicBool,
    measures: Arc<FileMeasures>,
}

impl DiskFile {
    /// Locks a file with an operating system lock, which ends with the process.
    pub(super) fn new(file: File, access: Access, measures: Arc<FileMeasures>) -> io::Result<Self> {
        let locked = match access {
            Access::Read => file.try_lock_shared(),
            Access::Write => file.try_lock(),
        };
        match locked {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(io::ErrorKind::WouldBlock.into()),
            // On a file system without locks, only the folder's lock protects the file.
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // The file was removed between opening and locking: data written to it would be lost.
        if is_unnamed(&file)? {
            return Err(io::ErrorKind::NotFound.into());
        }
        let backend = FileBackend::new(file.try_clone()?).map_err(io::Error::other)?;
        Ok(Self(Arc::new(Inner {
            backend,
            file,
            access,
            sync_failed: AtomicBool::new(false),
            unnamed: AtomicBool::new(false),
            measures,
        })))
    }

    /// Syncs the file, and checks that it still has a name.
    fn sync_named(&self) -> io::Result<()> {
        self.0.backend.sync_data()?;
        if is_unnamed(&self.0.file)? {
            self.0.unnamed.store(true, Ordering::Release);
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the last segment's file was deleted from the log's folder",
            ));
        }
        Ok(())
    }
}

/// Returns true when no folder entry refers to an open file.
#[cfg(unix)]
fn is_unnamed(file: &File) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    Ok(file.metadata()?.nlink() == 0)
}

/// On these systems an open file cannot be removed.
#[cfg(not(unix))]
fn is_unnamed(_: &File) -> io::Result<bool> {
    Ok(false)
}

impl SegmentFile for DiskFile {
    #[cfg(target_os = "linux")]
    fn ensure_room(&self, bytes: u64) -> io::Result<()> {
        let disk = rustix::fs::fstatvfs(&self.0.file)?;
        // Some file systems do not report their size.
        if disk.f_blocks > 0 && disk.f_bavail.saturating_mul(disk.f_frsize) < bytes {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    #[cfg(not(target_os = "linux"))]
    fn ensure_room(&self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn is_poisoned(&self) -> bool {
        self.0.sync_failed.load(Ordering::Acquire)
    }

    fn is_unnamed(&self) -> bool {
        self.0.unnamed.load(Ordering::Acquire)
    }
}

impl StorageBackend for DiskFile {
    fn len(&self) -> io::Result<u64> {
        self.0.backend.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.backend.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.backend.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.is_poisoned() {
            return Err(io::Error::other("an earlier sync of this file failed"));
        }
        let started = Instant::now();
        let synced = treering_base::traced!("append.fsync").in_scope(|| self.sync_named());
        if synced.is_err() {
            self.0.sync_failed.store(true, Ordering::Release);
            self.0.measures.failed_syncs.add_one();
        } else {
            self.0.measures.sync_micros.note_since(started);
        }
        synced
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.backend.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        let closed = self.0.backend.close();
        // Unlocks explicitly, because clones of this handle may stay open for a moment.
        match self.0.file.unlock() {
            Err(error) if self.0.access == Access::Write => closed.and(Err(error)),
            _ => closed,
        }
    }
}
