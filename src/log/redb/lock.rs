//! The lock on a data folder: one writing process, or any number of reading processes.
//!
//! It is an operating system lock on the file `LOCK`, released when the process ends, even by a
//! crash. The file's text only names the holder. Somebody may delete the file as stale. The log
//! stays safe, because segments are locked individually too ([`super::file`]), and the holder
//! restores the file.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use crate::{
    holder::HolderSecret,
    port::{LockHolder, LogError},
};
use treering_base::disk;

/// File name of the lock.
pub const LOCK_FILE: &str = "LOCK";

/// Maximum number of bytes that a holder writes into it.
const TEXT_BYTES_MAX: u64 = 4096;
/// Maximum number of attempts to lock the file, if it is deleted each time.
const TRIES_MAX: u32 = 16;

/// The lock on a data folder, held by this process.
#[derive(Debug)]
pub struct FolderLock {
    file: File,
    path: PathBuf,
    /// A handle of the data folder, valid even if it is moved.
    #[cfg(unix)]
    folder: File,
    address: Option<String>,
    secret: Option<HolderSecret>,
}

impl Drop for FolderLock {
    /// Unlocks explicitly instead of only closing the file: a child process that is being started
    /// holds a copy of the file handle, and the lock would last until that is closed too.
    fn drop(&mut self) {
        if let Err(error) = self.file.unlock() {
            tracing::debug!(%error, "closing the file releases the folder's lock");
        }
    }
}

impl FolderLock {
    /// Acquires a folder's lock for writing. The folder must exist.
    ///
    /// # Errors
    /// [`LogError::Locked`] when another process holds it, [`LogError::ReadOnly`] when it is not
    /// writable.
    pub fn acquire(folder: &Path) -> Result<Self, LogError> {
        let path = folder.join(LOCK_FILE);
        let open = || disk::file_options().open(&path);
        let file = take(&path, open, File::try_lock)?;
        let lock = Self::of(file, folder, path)?;
        lock.write_holder()?;
        Ok(lock)
    }

    /// Acquires a folder's lock for reading, shared with other readers. Returns `None` when the
    /// folder has no lock file, because a reader does not create one.
    ///
    /// # Errors
    /// [`LogError::Locked`] when another process holds it for writing.
    pub(crate) fn share(folder: &Path) -> Result<Option<Self>, LogError> {
        let path = folder.join(LOCK_FILE);
        let open = || OpenOptions::new().read(true).open(&path);
        match take(&path, open, File::try_lock_shared) {
            Ok(file) => Self::of(file, folder, path).map(Some),
            Err(LogError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn of(file: File, folder: &Path, path: PathBuf) -> Result<Self, LogError> {
        #[cfg(not(unix))]
        let _ = folder;
        Ok(Self {
            file,
            #[cfg(unix)]
            folder: File::open(folder).map_err(|error| refused(folder, error))?,
            path,
            address: None,
            secret: None,
        })
    }

    /// Writes the address and the secret of this process's server to the lock file.
    ///
    /// # Errors
    /// When the file cannot be written. The lock is still held.
    pub(crate) fn announce(
        &mut self,
        address: &str,
        secret: &HolderSecret,
    ) -> Result<(), LogError> {
        self.address = Some(address.to_owned());
        self.secret = Some(secret.clone());
        self.write_holder()
    }

    /// Checks that the folder at its path is still the one that this process holds, and restores
    /// the lock file if it was deleted.
    ///
    /// # Errors
    /// [`LogError::FolderMoved`] when another folder, or none, is at the path; [`LogError::Locked`]
    /// when another process has locked the folder since its lock file was deleted. After either,
    /// this process must not write.
    pub fn check(&mut self) -> Result<(), LogError> {
        if is_at(&self.file, &self.path) {
            return Ok(());
        }
        #[cfg(unix)]
        if let Some(path) = self.path.parent().filter(|path| !is_at(&self.folder, path)) {
            return Err(LogError::FolderMoved {
                path: path.to_owned(),
            });
        }
        self.put_back()
    }

    fn put_back(&mut self) -> Result<(), LogError> {
        tracing::error!(
            path = %self.path.display(),
            "the lock file of a store in use was deleted or replaced, and is restored. Never \
             delete it: the lock ends with its process"
        );
        let (address, secret) = (self.address.take(), self.secret.take());
        let folder = self.path.parent().map(Path::to_owned);
        let outcome = match folder.map(|folder| Self::acquire(&folder)) {
            Some(Ok(lock)) => {
                *self = lock;
                Ok(())
            }
            Some(Err(error @ (LogError::Locked { .. } | LogError::FolderMoved { .. }))) => {
                Err(error)
            }
            // No other process holds it; only the locks of the segments protect the log now.
            Some(Err(error)) => {
                tracing::error!(%error, "the lock file could not be restored");
                Ok(())
            }
            None => Ok(()),
        };
        (self.address, self.secret) = (address, secret);
        if outcome.is_ok()
            && let Err(error) = self.write_holder()
        {
            tracing::warn!(%error, "the holder could not be written to the lock file");
        }
        outcome
    }

    fn write_holder(&self) -> Result<(), LogError> {
        let mut text = format!("pid {}\n", std::process::id());
        let secret = self.secret.as_ref().map(HolderSecret::text);
        for (key, value) in [("address", &self.address), ("secret", &secret)] {
            if let Some(value) = value {
                let value = value.chars().filter(|c| !c.is_control());
                text.extend(key.chars().chain([' ']).chain(value).chain(['\n']));
            }
        }
        let write = |mut file: &File| {
            #[cfg(unix)]
            if secret.is_some() {
                // A copied lock file may be readable by everybody.
                use std::os::unix::fs::PermissionsExt;
                file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
            }
            file.set_len(0)?;
            file.seek(SeekFrom::Start(0))?;
            file.write_all(text.as_bytes())
        };
        match write(&self.file) {
            // The operating system holds the lock and the text is only informative, so a full disk
            // must not prevent reading.
            Err(error) if error.kind() == io::ErrorKind::StorageFull => Ok(()),
            result => result.map_err(|error| refused(&self.path, error)),
        }
    }
}

/// Opens and locks a file, and makes sure that it is still the one at its path.
fn take(
    path: &Path,
    open: impl Fn() -> io::Result<File>,
    lock: impl Fn(&File) -> Result<(), TryLockError>,
) -> Result<File, LogError> {
    for _ in 0..TRIES_MAX {
        let file = open().map_err(|error| not_opened(path, error))?;
        match lock(&file) {
            Ok(()) if is_at(&file, path) => return Ok(file),
            // The file was deleted meanwhile: another process may hold a new lock file.
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(LogError::Locked {
                    holder: read_holder(&file),
                    path: path.to_owned(),
                });
            }
            Err(TryLockError::Error(error)) => {
                return Err(LogError::from_io("locking the data folder", error));
            }
        }
    }
    Err(LogError::from_io(
        "locking the data folder",
        io::Error::other("another program keeps deleting the lock file"),
    ))
}

fn not_opened(path: &Path, error: io::Error) -> LogError {
    let is_link = path.is_symlink() && !path.exists();
    if is_link || path.is_dir() {
        let what = format!(
            "{} is a {}, which Treering never creates: move it away",
            path.display(),
            if is_link { "broken link" } else { "folder" }
        );
        return LogError::from_io("locking the data folder", io::Error::other(what));
    }
    refused(path, error)
}

/// Returns true when an open file is the one at its path.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let (Ok(held), Ok(there)) = (file.metadata(), std::fs::metadata(path)) else {
        return false;
    };
    (held.dev(), held.ino()) == (there.dev(), there.ino())
}

#[cfg(not(unix))]
fn is_at(_: &File, path: &Path) -> bool {
    // On these systems an open file cannot be deleted.
    path.exists()
}

/// Returns the holder of a data folder, according to its lock file.
pub fn holder_of(folder: &Path) -> LockHolder {
    File::open(folder.join(LOCK_FILE)).map_or_else(|_| LockHolder::default(), |f| read_holder(&f))
}

/// Reads the holder from the file's text, as far as possible.
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
        secret: value("secret").and_then(HolderSecret::read),
        is_private: is_private(file),
    }
}

/// Returns true when a file belongs to this user and nobody else can read or write it.
#[cfg(unix)]
fn is_private(file: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    let user = rustix::process::geteuid().as_raw();
    let own = file.metadata().ok();
    own.is_some_and(|it| it.uid() == user && it.mode() & 0o077 == 0)
}

#[cfg(not(unix))]
fn is_private(_: &File) -> bool {
    // On these systems a user's folders are private.
    true
}

/// Converts an error from opening a file or folder that must be writable.
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

    fn secret() -> HolderSecret {
        HolderSecret::read(&"07".repeat(32)).unwrap()
    }

    #[test]
    fn second_lock_is_refused_with_the_holder() {
        // Two writing processes would destroy the log. The second must be refused, with the pid and
        // the address of the first.
        let folder = tempfile::tempdir().unwrap();
        let mut first = FolderLock::acquire(folder.path()).unwrap();
        first.announce("http://127.0.0.1:7171", &secret()).unwrap();
        let error = FolderLock::acquire(folder.path()).unwrap_err();
        let LogError::Locked { path, holder } = &error else {
            panic!("{error}");
        };
        assert_eq!(path, &folder.path().join(LOCK_FILE));
        assert_eq!(holder.pid, Some(std::process::id()));
        assert_eq!(holder.address.as_deref(), Some("http://127.0.0.1:7171"));
        assert_eq!(holder.secret, Some(secret()));
        assert!(holder.is_private);
        assert!(!format!("{error} {error:?}").contains("0707"));
        assert!(error.to_string().contains("http://127.0.0.1:7171"));
        drop(first);
        FolderLock::acquire(folder.path()).unwrap();
    }

    #[test]
    fn readers_share_the_lock_and_create_no_file() {
        // `treering ls` may run beside `treering ls`, but not beside a writer. A reader of a folder
        // without a lock file must not create one.
        let folder = tempfile::tempdir().unwrap();
        assert!(FolderLock::share(folder.path()).unwrap().is_none());
        assert!(!folder.path().join(LOCK_FILE).exists());
        drop(FolderLock::acquire(folder.path()).unwrap());
        let one = FolderLock::share(folder.path()).unwrap();
        let two = FolderLock::share(folder.path()).unwrap();
        assert!(one.is_some() && two.is_some());
        let error = FolderLock::acquire(folder.path()).unwrap_err();
        assert!(matches!(error, LogError::Locked { .. }), "{error}");
        drop((one, two));
        let _writer = FolderLock::acquire(folder.path()).unwrap();
        let error = FolderLock::share(folder.path()).unwrap_err();
        assert!(matches!(error, LogError::Locked { .. }), "{error}");
    }

    #[test]
    fn deleted_lock_file_is_restored() {
        // If the lock file of a running server is deleted as stale, another process can lock the
        // folder. The server must restore the file with its address.
        let folder = tempfile::tempdir().unwrap();
        let mut first = FolderLock::acquire(folder.path()).unwrap();
        first.announce("http://127.0.0.1:7171", &secret()).unwrap();
        std::fs::remove_file(folder.path().join(LOCK_FILE)).unwrap();
        first.check().unwrap();
        let error = FolderLock::acquire(folder.path()).unwrap_err();
        let LogError::Locked { holder, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(holder.address.as_deref(), Some("http://127.0.0.1:7171"));
        assert_eq!(holder.secret, Some(secret()));
    }

    #[cfg(unix)]
    #[test]
    fn lock_file_accessible_to_others_is_not_private() {
        // A secret in a file that other users can read or write does not authenticate a server.
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let _lock = FolderLock::acquire(folder.path()).unwrap();
        let path = folder.path().join(LOCK_FILE);
        for (mode, private) in [
            (0o600, true),
            (0o640, false),
            (0o604, false),
            (0o620, false),
        ] {
            let mode_of = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&path, mode_of).unwrap();
            assert_eq!(holder_of(folder.path()).is_private, private, "{mode:o}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn check_fails_when_the_folder_was_moved_or_taken() {
        // A folder is moved while a server uses it, and a new server starts at the old path. The
        // old server must not put its lock file into the new store and continue to write.
        let above = tempfile::tempdir().unwrap();
        let path = above.path().join("data");
        std::fs::create_dir(&path).unwrap();
        let mut first = FolderLock::acquire(&path).unwrap();
        std::fs::rename(&path, above.path().join("moved")).unwrap();
        let error = first.check().unwrap_err();
        assert!(matches!(error, LogError::FolderMoved { .. }), "{error}");
        std::fs::create_dir(&path).unwrap();
        let error = first.check().unwrap_err();
        assert!(matches!(error, LogError::FolderMoved { .. }), "{error}");
        assert!(!path.join(LOCK_FILE).exists());

        // The lock file is deleted, and another process locks the folder.
        let mut second = FolderLock::acquire(&path).unwrap();
        std::fs::remove_file(path.join(LOCK_FILE)).unwrap();
        let _third = FolderLock::acquire(&path).unwrap();
        let error = second.check().unwrap_err();
        assert!(matches!(error, LogError::Locked { .. }), "{error}");
    }

    #[test]
    fn lock_is_released_by_its_holder_despite_copies() {
        // A child process holds a copy of every open file until it executes its own program. The
        // copy must not keep the folder locked, or this process could not reopen it.
        let folder = tempfile::tempdir().unwrap();
        let first = FolderLock::acquire(folder.path()).unwrap();
        let _copy = first.file.try_clone().unwrap();
        drop(first);
        drop(FolderLock::acquire(folder.path()).unwrap());
        let shared = FolderLock::share(folder.path()).unwrap().unwrap();
        let _copy = shared.file.try_clone().unwrap();
        drop(shared);
        FolderLock::acquire(folder.path()).unwrap();
    }

    #[test]
    fn read_only_folder_is_named_in_the_error() {
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
