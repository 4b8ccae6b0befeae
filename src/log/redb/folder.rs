//! Where the log's files are: a folder of a disk, or, for tests, whatever fails
//! and forgets in the ways that disks do.

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

/// What a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing of it may change. Shares the file with others who read.
    Read,
    /// It is the last segment, or has to be repaired. Alone.
    Write,
}

/// A folder. Names last once [`Folder::sync`] has answered, and not before.
pub trait Folder: fmt::Debug + Send + Sync + 'static {
    /// A segment's bytes.
    type File: SegmentFile;

    /// Names of all that is there, in no order.
    ///
    /// # Errors
    /// When they cannot be listed.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Opens a file that is there.
    ///
    /// # Errors
    /// When it is missing or cannot be opened; `WouldBlock` when another process
    /// holds it.
    fn open(&self, name: &str, access: Access) -> io::Result<Self::File>;

    /// Makes an empty file under a name that nothing has.
    ///
    /// # Errors
    /// `AlreadyExists`, or when it cannot be made.
    fn create(&self, name: &str) -> io::Result<Self::File>;

    /// All bytes of a file of at most `bytes_max`.
    ///
    /// # Errors
    /// When it is missing, cannot be read, or is larger (`InvalidData`).
    fn read(&self, name: &str, bytes_max: u64) -> io::Result<Vec<u8>>;

    /// Writes a whole file, anew if it is there, and puts its bytes on disk.
    ///
    /// # Errors
    /// What the system says; part of it may be there then.
    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()>;

    /// Gives a file another name, in place of what had it: at once, or not at all.
    ///
    /// # Errors
    /// What the system says.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// What the system says.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Puts the names on disk. Must not need what may have run out, such as a
    /// handle: it is asked when there is no way back.
    ///
    /// # Errors
    /// What the system says. What changed since the last success is then not to
    /// be trusted, whatever a later sync says.
    fn sync(&self) -> io::Result<()>;

    /// Bytes that all of it takes.
    ///
    /// # Errors
    /// When that cannot be found out.
    fn bytes(&self) -> io::Result<u64>;

    /// How long a file is, in bytes.
    ///
    /// # Errors
    /// When it is missing.
    fn bytes_of(&self, name: &str) -> io::Result<u64>;
}

/// A folder of a real disk. Its files are reached through a handle of the folder, so
/// that they are the same ones when the folder is moved, and never those of another folder
/// that took its path.
#[derive(Debug)]
pub struct DiskFolder {
    path: PathBuf,
    /// Kept open: a sync needs no new handle either.
    handle: names::Handle,
    measures: Arc<FileMeasures>,
}

impl DiskFolder {
    /// Opens a folder that is there.
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

    /// What its files have done.
    #[must_use]
    pub fn measures(&self) -> &FileMeasures {
        &self.measures
    }

    /// Where it was when it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Folder for DiskFolder {
    type File = DiskFile;

    fn bytes_of(&self, name: &str) -> io::Result<u64> {
        Ok(names::open(&self.handle, name, names::Open::Read)?
            .metadata()?
            .len())
    }

    fn names(&self) -> io::Result<Vec<String>> {
        names::list(&self.handle)
    }

    fn open(&self, name: &str, access: Access) -> io::Result<DiskFile> {
        let how = match access {
            Access::Read => names::Open::Read,
            Access::Write => names::Open::Write,
        };
        let file = names::open(&self.handle, name, how)?;
        DiskFile::new(file, access, Arc::clone(&self.measures))
    }

    fn create(&self, name: &str) -> io::Result<DiskFile> {
        let file = names::open(&self.handle, name, names::Open::Create)?;
        DiskFile::new(file, Access::Write, Arc::clone(&self.measures))
    }

    fn read(&self, name: &str, bytes_max: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let file = names::open(&self.handle, name, names::Open::Read)?;
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
        let mut file = names::open(&self.handle, name, names::Open::Replace)?;
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

/// Names in a folder, reached through its handle.
#[cfg(unix)]
mod by_handle {
    use std::{fs::File, io, path::Path};

    use rustix::fs::{AtFlags, Dir, Mode, OFlags};

    /// Files are their owner's alone.
    const FILE_MODE: u32 = 0o600;

    pub(super) type Handle = File;

    #[derive(Clone, Copy)]
    pub(super) enum Open {
        Read,
        Write,
        /// A new file, under a name that nothing has.
        Create,
        /// An empty file, new or in place of what was there.
        Replace,
    }

    pub(super) fn open_folder(path: &Path) -> io::Result<Handle> {
        File::open(path)
    }

    pub(super) fn open(folder: &Handle, name: &str, how: Open) -> io::Result<File> {
        let flags = match how {
            Open::Read => OFlags::RDONLY,
            Open::Write => OFlags::RDWR,
            Open::Create => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
            Open::Replace => OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC,
        };
        let mode = Mode::from_raw_mode(FILE_MODE as _);
        let opened = rustix::fs::openat(folder, name, flags | OFlags::CLOEXEC, mode)?;
        Ok(opened.into())
    }

    pub(super) fn list(folder: &Handle) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(folder)? {
            // Ours are plain; a strange name of somebody else is none of them.
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
        /// Of `st_blocks`, whatever the file system's own unit is.
        const BLOCK_BYTES: u64 = 512;
        let mut bytes = 0;
        for name in list(folder)? {
            let stat = rustix::fs::statat(folder, &name, AtFlags::SYMLINK_NOFOLLOW)?;
            bytes += stat.st_blocks as u64 * BLOCK_BYTES;
        }
        Ok(bytes)
    }
}

/// Names in a folder, reached through its path: where an open folder cannot be moved.
#[cfg(not(unix))]
mod by_path {
    use std::{
        fs::{self, File, OpenOptions},
        io,
        path::{Path, PathBuf},
    };

    pub(super) type Handle = PathBuf;

    #[derive(Clone, Copy)]
    pub(super) enum Open {
        Read,
        Write,
        /// A new file, under a name that nothing has.
        Create,
        /// An empty file, new or in place of what was there.
        Replace,
    }

    pub(super) fn open_folder(path: &Path) -> io::Result<Handle> {
        fs::metadata(path)?;
        Ok(path.to_owned())
    }

    pub(super) fn open(folder: &Handle, name: &str, how: Open) -> io::Result<File> {
        let mut options = OpenOptions::new();
        match how {
            Open::Read => options.read(true),
            Open::Write => options.read(true).write(true),
            Open::Create => options.read(true).write(true).create_new(true),
            Open::Replace => options.read(true).write(true).create(true).truncate(true),
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
