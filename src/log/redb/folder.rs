//! The folder of the log's files: on a disk or, for tests, a simulation that fails and loses data
//! as disks do.

use std::{
    fmt,
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use super::file::{DiskFile, FileMeasures, SegmentFile};

#[cfg(unix)]
use by_handle as names;
#[cfg(not(unix))]
use by_path as names;

/// The purpose for which a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// For reading only. The file is shared with other readers.
    Read,
    /// For writing, exclusively: the last segment, or a file that must be repaired.
    Write,
}

/// A folder. File names are durable only once [`Folder::sync`] has returned.
pub trait Folder: fmt::Debug + Send + Sync + 'static {
    /// A segment's file.
    type File: SegmentFile;

    /// Returns the names of all entries, in no order.
    ///
    /// # Errors
    /// When they cannot be listed.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Opens an existing file.
    ///
    /// # Errors
    /// When it is missing or cannot be opened; `WouldBlock` when another process holds it.
    fn open(&self, name: &str, access: Access) -> io::Result<Self::File>;

    /// Creates an empty file under a new name.
    ///
    /// # Errors
    /// `AlreadyExists`, or when it cannot be created.
    fn create(&self, name: &str) -> io::Result<Self::File>;

    /// Returns all bytes of a file of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// When it is missing, cannot be read, or is larger (`InvalidData`).
    fn read(&self, name: &str, bytes_max: u64) -> io::Result<Vec<u8>>;

    /// Writes a whole file, replacing an existing one, and syncs its content.
    ///
    /// # Errors
    /// I/O errors; the file may then be partly written.
    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()>;

    /// Renames a file, replacing the target atomically.
    ///
    /// # Errors
    /// I/O errors.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// I/O errors.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Syncs the names. It is called when changes cannot be undone any more, so it must not need a
    /// resource that may have run out, such as a file handle.
    ///
    /// # Errors
    /// I/O errors. Changes since the last successful sync must then not be trusted, whatever a
    /// later sync returns.
    fn sync(&self) -> io::Result<()>;

    /// Returns the disk space of the whole folder, in bytes.
    ///
    /// # Errors
    /// When it cannot be determined.
    fn bytes(&self) -> io::Result<u64>;

    /// Returns the length of a file, in bytes.
    ///
    /// # Errors
    /// When it is missing.
    fn bytes_of(&self, name: &str) -> io::Result<u64>;
}

/// A folder on a real disk. Its files are accessed through a handle of the folder. If the folder is
/// moved, the files stay the same: another folder at its path is never used.
#[derive(Debug)]
pub struct DiskFolder {
    path: PathBuf,
    /// Kept open, so that a sync needs no new handle.
    handle: names::Handle,
    measures: Arc<FileMeasures>,
}

impl DiskFolder {
    /// Opens an existing folder.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self {
            handle: names::open_folder(path)?,
            path: path.to_owned(),
            measures: Arc::default(),
        })
    }

    /// Returns the I/O measurements of its files.
    #[must_use]
    pub fn measures(&self) -> &FileMeasures {
        &self.measures
    }

    /// Returns the path at which it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Folder for DiskFolder {
    type File = DiskFile;

    fn bytes_of(&self, name: &str) -> io::Result<u64> {
        Ok(names::open(&self.handle, name, names::FileMode::Read)?
            .metadata()?
            .len())
    }

    fn names(&self) -> io::Result<Vec<String>> {
        names::list(&self.handle)
    }

    fn open(&self, name: &str, access: Access) -> io::Result<DiskFile> {
        let how = match access {
            Access::Read => names::FileMode::Read,
            Access::Write => names::FileMode::Write,
        };
        let file = names::open(&self.handle, name, how)?;
        DiskFile::new(file, access, Arc::clone(&self.measures))
    }

    fn create(&self, name: &str) -> io::Result<DiskFile> {
        let file = names::open(&self.handle, name, names::FileMode::Create)?;
        DiskFile::new(file, Access::Write, Arc::clone(&self.measures))
    }

    fn read(&self, name: &str, bytes_max: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let file = names::open(&self.handle, name, names::FileMode::Read)?;
        file.take(bytes_max.saturating_add(1))
            .read_to_end(&mut bytes)?;
        if bytes.len() as u64 > bytes_max {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{name} has more than {bytes_max} bytes"),
            ));
        }
        Ok(bytes)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut file = names::open(&self.handle, name, names::FileMode::Replace)?;
        file.write_all(bytes)?;
        file.sync_all()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        names::rename(&self.handle, from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        names::remove(&self.handle, name)
    }

    fn sync(&self) -> io::Result<()> {
        names::sync(&self.handle)
    }

    fn bytes(&self) -> io::Result<u64> {
        names::allocated_bytes(&self.handle)
    }
}

/// File operations relative to a folder's handle.
#[cfg(unix)]
mod by_handle {
    use std::{fs::File, io, path::Path};

    use rustix::fs::{AtFlags, Dir, Mode, OFlags};

    /// Only the owner may access the files.
    const FILE_MODE: u32 = 0o600;

    pub(super) type Handle = File;

    #[derive(Clone, Copy)]
    pub(super) enum FileMode {
        Read,
        Write,
        /// A new file; the name must not exist.
        Create,
        /// An empty file, new or replacing an existing one.
        Replace,
    }

    pub(super) fn open_folder(path: &Path) -> io::Result<Handle> {
        File::open(path)
    }

    pub(super) fn open(folder: &Handle, name: &str, how: FileMode) -> io::Result<File> {
        let flags = match how {
            FileMode::Read => OFlags::RDONLY,
            FileMode::Write => OFlags::RDWR,
            FileMode::Create => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
            FileMode::Replace => OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC,
        };
        let mode = Mode::from_raw_mode(FILE_MODE as _);
        let opened = rustix::fs::openat(folder, name, flags | OFlags::CLOEXEC, mode)?;
        Ok(opened.into())
    }

    pub(super) fn list(folder: &Handle) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(folder)? {
            // The log's file names are valid UTF-8, so other names are not its files.
            if let Ok(name) = entry?.file_name().to_str()
                && name != "."
                && name != ".."
            {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    pub(super) fn rename(folder: &Handle, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(folder, from, folder, to)?)
    }

    pub(super) fn remove(folder: &Handle, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(folder, name, AtFlags::empty())?)
    }

    pub(super) fn sync(folder: &Handle) -> io::Result<()> {
        folder.sync_all()
    }

    pub(super) fn allocated_bytes(folder: &Handle) -> io::Result<u64> {
        /// The unit of `st_blocks`, whatever the file system's own unit is.
        const BLOCK_BYTES: u64 = 512;
        let mut bytes = 0;
        for name in list(folder)? {
            let stat = rustix::fs::statat(folder, &name, AtFlags::SYMLINK_NOFOLLOW)?;
            bytes += stat.st_blocks as u64 * BLOCK_BYTES;
        }
        Ok(bytes)
    }
}

/// File operations by path, for systems on which an open folder cannot be moved.
#[cfg(not(unix))]
mod by_path {
    use std::{
        fs::{self, File, OpenOptions},
        io,
        path::{Path, PathBuf},
    };

    pub(super) type Handle = PathBuf;

    #[derive(Clone, Copy)]
    pub(super) enum FileMode {
        Read,
        Write,
        /// A new file; the name must not exist.
        Create,
        /// An empty file, new or replacing an existing one.
        Replace,
    }

    pub(super) fn open_folder(path: &Path) -> io::Result<Handle> {
        fs::metadata(path)?;
        Ok(path.to_owned())
    }

    pub(super) fn open(folder: &Handle, name: &str, how: FileMode) -> io::Result<File> {
        let mut options = OpenOptions::new();
        match how {
            FileMode::Read => options.read(true),
            FileMode::Write => options.read(true).write(true),
            FileMode::Create => options.read(true).write(true).create_new(true),
            FileMode::Replace => options.read(true).write(true).create(true).truncate(true),
        };
        options.open(folder.join(name))
    }

    pub(super) fn list(folder: &Handle) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(folder)? {
            names.extend(entry?.file_name().into_string().ok());
        }
        Ok(names)
    }

    pub(super) fn rename(folder: &Handle, from: &str, to: &str) -> io::Result<()> {
        fs::rename(folder.join(from), folder.join(to))
    }

    pub(super) fn remove(folder: &Handle, name: &str) -> io::Result<()> {
        fs::remove_file(folder.join(name))
    }

    pub(super) fn sync(_: &Handle) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn allocated_bytes(folder: &Handle) -> io::Result<u64> {
        let mut bytes = 0;
        for entry in fs::read_dir(folder)? {
            bytes += entry?.metadata()?.len();
        }
        Ok(bytes)
    }
}
