//! A segment's file: locked while it is open, and asked for space before it
//! grows.

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
use crate::measure::{Histogram, Total};

/// A segment's bytes; a clone is the same file.
pub trait SegmentFile: StorageBackend + Clone {
    /// Makes sure, as far as that can be known, that `bytes` more can be written.
    ///
    /// # Errors
    /// `StorageFull` when there is no room; nothing has changed then.
    fn ensure_room(&self, bytes: u64) -> io::Result<()>;

    /// True once a sync has failed. The system may then hold pages for written
    /// that never came to the disk, and a later sync does not tell (PostgreSQL
    /// learned that in 2018): nothing that is read back proves anything, and
    /// nothing more may be built on this file.
    fn is_distrusted(&self) -> bool;

    /// True once a sync found that no folder names this file any more: somebody removed
    /// it. What it holds goes when it is closed.
    fn is_unnamed(&self) -> bool {
        false
    }
}

/// What the files of a folder have done since it was opened.
#[derive(Debug)]
pub struct FileMeasures {
    /// How long a segment took to be synced, in microseconds.
    pub sync_micros: Histogram,
    /// Syncs that failed.
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

/// A file of a real disk.
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
    /// Takes a file, and its lock: the system's, which goes with the process.
    pub(super) fn new(file: File, access: Access, measures: Arc<FileMeasures>) -> io::Result<Self> {
        let locked = match access {
            Access::Read => file.try_lock_shared(),
            Access::Write => file.try_lock(),
        };
        match locked {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(io::ErrorKind::WouldBlock.into()),
            // A file system without locks: the folder's lock has to do.
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // Removed between opening and locking: nothing written to it would be found again.
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

    /// Syncs the file, and makes sure that it can be found again.
    fn sync_named(&self) -> io::Result<()> {
        self.0.backend.sync_data()?;
        if is_unnamed(&self.0.file)? {
            self.0.unnamed.store(true, Ordering::Release);
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the file of the last segment was removed from the log's folder",
            ));
        }
        Ok(())
    }
}

/// True when no folder names an open file.
#[cfg(unix)]
fn is_unnamed(file: &File) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    Ok(file.metadata()?.nlink() == 0)
}

/// An open file cannot be removed there.
#[cfg(not(unix))]
fn is_unnamed(_: &File) -> io::Result<bool> {
    Ok(false)
}

impl SegmentFile for DiskFile {
    #[cfg(target_os = "linux")]
    fn ensure_room(&self, bytes: u64) -> io::Result<()> {
        let disk = rustix::fs::fstatvfs(&self.0.file)?;
        // Some file systems do not say how large they are.
        if disk.f_blocks > 0 && disk.f_bavail.saturating_mul(disk.f_frsize) < bytes {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    #[cfg(not(target_os = "linux"))]
    fn ensure_room(&self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn is_distrusted(&self) -> bool {
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
        if self.is_distrusted() {
            return Err(io::Error::other("an earlier sync of this file failed"));
        }
        let started = Instant::now();
        let synced = crate::traced!("append.fsync").in_scope(|| self.sync_named());
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
        // Clones of this handle may live on for a moment; the lock must not.
        match self.0.file.unlock() {
            Err(error) if self.0.access == Access::Write => closed.and(Err(error)),
            _ => closed,
        }
    }
}
