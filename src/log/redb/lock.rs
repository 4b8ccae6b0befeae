//! The lock on a data folder: one process at a time.
//!
//! The lock is the operating system's, on the file `LOCK`; it goes away with the
//! process, however that ends. The file's text only says who holds it.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use crate::log::port::{LockHolder, LogError};

/// Name of the lock file.
pub const LOCK_FILE: &str = "LOCK";

/// No holder writes more than this, in bytes.
const TEXT_BYTES_MAX: u64 = 4096;

/// A data folder that this process holds.
#[derive(Debug)]
pub struct FolderLock {
    file: File,
    path: PathBuf,
}

impl FolderLock {
    /// Creates the folder if needed, and takes its lock.
    ///
    /// # Errors
    /// [`LogError::Locked`] when another process holds it, [`LogError::ReadOnly`]
    /// when it cannot be written.
    pub fn acquire(folder: &Path) -> Result<Self, LogError> {
        std::fs::create_dir_all(folder).map_err(|error| refused(folder, error))?;
        let path = folder.join(LOCK_FILE);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|error| refused(folder, error))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(LogError::Locked {
                    holder: read_holder(&file),
                    path,
                });
            }
            Err(TryLockError::Error(error)) => {
                return Err(LogError::from_io("locking the data folder", error));
            }
        }
        let lock = Self { file, path };
        lock.write_holder(None)?;
        Ok(lock)
    }

    /// Lets others read where this process serves the folder.
    ///
    /// # Errors
    /// When the file cannot be written. The lock is held all the same.
    pub fn set_address(&self, address: &str) -> Result<(), LogError> {
        self.write_holder(Some(address))
    }

    fn write_holder(&self, address: Option<&str>) -> Result<(), LogError> {
        let mut text = format!("pid {}\n", std::process::id());
        if let Some(address) = address {
            text.push_str("address ");
            text.extend(address.chars().filter(|c| !c.is_control()));
            text.push('\n');
        }
        let write = |mut file: &File| {
            file.set_len(0)?;
            file.seek(SeekFrom::Start(0))?;
            file.write_all(text.as_bytes())
        };
        match write(&self.file) {
            // A full disk must not keep anyone from reading; the lock is the
            // system's, its text only a courtesy.
            Err(error) if error.kind() == io::ErrorKind::StorageFull => Ok(()),
            result => result.map_err(|error| refused(&self.path, error)),
        }
    }
}

/// Who holds it, as far as its text can be read.
fn read_holder(mut file: &File) -> LockHolder {
    let mut text = String::new();
    let read = file
        .seek(SeekFrom::Start(0))
        .and_then(|_| file.take(TEXT_BYTES_MAX).read_to_string(&mut text));
    if read.is_err() {
        return LockHolder::default();
    }
    let value = |key: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))
    };
    LockHolder {
        pid: value("pid").and_then(|pid| pid.parse().ok()),
        address: value("address").map(str::to_owned),
    }
}

/// An error on something that must be writable.
pub(super) fn refused(path: &Path, error: io::Error) -> LogError {
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => LogError::ReadOnly {
            path: path.to_owned(),
        },
        _ => LogError::from_io("opening the data folder", error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_holder_is_told_who_the_first_is() {
        // Two processes on one folder would destroy it; the second one must be
        // turned away with what it needs to reach the first.
        let folder = tempfile::tempdir().unwrap();
        let first = FolderLock::acquire(folder.path()).unwrap();
        first.set_address("http://127.0.0.1:7171").unwrap();
        let error = FolderLock::acquire(folder.path()).unwrap_err();
        let LogError::Locked { path, holder } = &error else {
            panic!("{error}");
        };
        assert_eq!(path, &folder.path().join(LOCK_FILE));
        assert_eq!(holder.pid, Some(std::process::id()));
        assert_eq!(holder.address.as_deref(), Some("http://127.0.0.1:7171"));
        assert!(error.to_string().contains("http://127.0.0.1:7171"));
        drop(first);
        FolderLock::acquire(folder.path()).unwrap();
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_named() {
        // The system's "permission denied" alone does not say what to do.
        for kind in [
            io::ErrorKind::PermissionDenied,
            io::ErrorKind::ReadOnlyFilesystem,
        ] {
            let error = refused(Path::new("data"), io::Error::from(kind));
            assert!(matches!(&error, LogError::ReadOnly { path } if path == Path::new("data")));
        }
    }
}
