//! An index folder that is written only while it is still at the path where it was opened.
//!
//! tantivy writes by path, and in the background when it merges. If the store was moved and another
//! one was created at its old path, these writes would go to the other index.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use tantivy::{
    Directory,
    directory::{
        DirectoryLock, FileHandle, Lock, MmapDirectory, WatchCallback, WatchHandle, WritePtr,
        error::{DeleteError, LockError, OpenDirectoryError, OpenReadError, OpenWriteError},
    },
};

#[derive(Clone, Debug)]
pub(super) struct GuardedFolder {
    below: MmapDirectory,
    folder: Arc<File>,
    path: PathBuf,
}

impl GuardedFolder {
    pub(super) fn open(dir: &Path) -> Result<Self, OpenDirectoryError> {
        let below = MmapDirectory::open(dir)?;
        let folder = File::open(dir)
            .map_err(|error| OpenDirectoryError::wrap_io_error(error, dir.to_owned()))?;
        Ok(Self {
            below,
            folder: Arc::new(folder),
            path: dir.to_owned(),
        })
    }

    #[cfg(unix)]
    fn check(&self) -> io::Result<()> {
        use std::os::unix::fs::MetadataExt;
        let (held, there) = (self.folder.metadata()?, fs::metadata(&self.path)?);
        if (held.dev(), held.ino()) == (there.dev(), there.ino()) {
            return Ok(());
        }
        Err(io::Error::other(
            "the path now names another folder: the data folder was moved or replaced",
        ))
    }

    /// Always succeeds: systems other than Unix do not allow an open folder to be moved.
    #[cfg(not(unix))]
    fn check(&self) -> io::Result<()> {
        let _ = (&self.folder, &self.path);
        Ok(())
    }
}

impl Directory for GuardedFolder {
    fn get_file_handle(&self, path: &Path) -> Result<Arc<dyn FileHandle>, OpenReadError> {
        self.below.get_file_handle(path)
    }

    fn delete(&self, path: &Path) -> Result<(), DeleteError> {
        self.check().map_err(|error| DeleteError::IoError {
            io_error: Arc::new(error),
            filepath: path.to_owned(),
        })?;
        self.below.delete(path)
    }

    fn exists(&self, path: &Path) -> Result<bool, OpenReadError> {
        self.below.exists(path)
    }

    fn open_write(&self, path: &Path) -> Result<WritePtr, OpenWriteError> {
        self.check()
            .map_err(|error| OpenWriteError::wrap_io_error(error, path.to_owned()))?;
        self.below.open_write(path)
    }

    fn atomic_read(&self, path: &Path) -> Result<Vec<u8>, OpenReadError> {
        self.below.atomic_read(path)
    }

    fn atomic_write(&self, path: &Path, data: &[u8]) -> io::Result<()> {
        self.check()?;
        self.below.atomic_write(path, data)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.below.sync_directory()
    }

    fn acquire_lock(&self, lock: &Lock) -> Result<DirectoryLock, LockError> {
        self.check().map_err(LockError::wrap_io_error)?;
        self.below.acquire_lock(lock)
    }

    fn watch(&self, callback: WatchCallback) -> tantivy::Result<WatchHandle> {
        self.below.watch(callback)
    }
}
