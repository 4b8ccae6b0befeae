//! An index folder that is read in place and written in memory only, for read-only media and for
//! commands that only read.

use std::{
    collections::HashSet,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tantivy::{
    Directory,
    directory::{
        DirectoryLock, FileHandle, Lock, MmapDirectory, RamDirectory, WatchCallback, WatchHandle,
        WritePtr,
        error::{DeleteError, LockError, OpenDirectoryError, OpenReadError, OpenWriteError},
    },
};

/// A folder, with changes in memory over it.
///
/// Its locks do nothing. They would protect readers from a writer that deletes files; whoever opens
/// this holds the shared lock of the whole store, so there is no writer.
#[derive(Clone, Debug)]
pub(super) struct OverlayFolder {
    below: MmapDirectory,
    over: RamDirectory,
    /// Files of the folder that count as deleted.
    deleted: Arc<Mutex<HashSet<PathBuf>>>,
}

impl OverlayFolder {
    pub(super) fn open(dir: &Path) -> Result<Self, OpenDirectoryError> {
        Ok(Self {
            below: MmapDirectory::open(dir)?,
            over: RamDirectory::create(),
            deleted: Arc::default(),
        })
    }

    fn deleted(&self) -> MutexGuard<'_, HashSet<PathBuf>> {
        self.deleted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the directory that has the file.
    fn of(&self, path: &Path) -> Result<&dyn Directory, OpenReadError> {
        if self.over.exists(path)? {
            return Ok(&self.over);
        }
        if self.deleted().contains(path) {
            return Err(OpenReadError::FileDoesNotExist(path.to_owned()));
        }
        Ok(&self.below)
    }
}

impl Directory for OverlayFolder {
    fn get_file_handle(&self, path: &Path) -> Result<Arc<dyn FileHandle>, OpenReadError> {
        self.of(path)?.get_file_handle(path)
    }

    fn delete(&self, path: &Path) -> Result<(), DeleteError> {
        let io_error = |error: OpenReadError| DeleteError::IoError {
            io_error: Arc::new(io::Error::other(error.to_string())),
            filepath: path.to_owned(),
        };
        if !self.exists(path).map_err(io_error)? {
            return Err(DeleteError::FileDoesNotExist(path.to_owned()));
        }
        if self.over.exists(path).map_err(io_error)? {
            self.over.delete(path)?;
        }
        self.deleted().insert(path.to_owned());
        Ok(())
    }

    fn exists(&self, path: &Path) -> Result<bool, OpenReadError> {
        match self.of(path) {
            Ok(directory) => directory.exists(path),
            Err(OpenReadError::FileDoesNotExist(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn open_write(&self, path: &Path) -> Result<WritePtr, OpenWriteError> {
        self.over.open_write(path)
    }

    fn atomic_read(&self, path: &Path) -> Result<Vec<u8>, OpenReadError> {
        self.of(path)?.atomic_read(path)
    }

    fn atomic_write(&self, path: &Path, data: &[u8]) -> io::Result<()> {
        self.over.atomic_write(path, data)
    }

    fn sync_directory(&self) -> io::Result<()> {
        Ok(())
    }

    fn acquire_lock(&self, _: &Lock) -> Result<DirectoryLock, LockError> {
        Ok(DirectoryLock::from(Box::new(())))
    }

    fn watch(&self, _: WatchCallback) -> tantivy::Result<WatchHandle> {
        Ok(WatchHandle::empty())
    }
}
