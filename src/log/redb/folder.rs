//! Where the log's files are: a folder of a disk, or, for tests, whatever fails
//! and forgets in the ways that disks do.

use std::{
    fmt,
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

use super::file::{DiskFile, FileMeasures, SegmentFile};
use crate::disk;

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

/// A folder of a real disk.
#[derive(Debug)]
pub struct DiskFolder {
    path: PathBuf,
    /// Kept open, so that a sync needs no new handle.
    #[cfg(unix)]
    handle: File,
    measures: Arc<FileMeasures>,
}

impl DiskFolder {
    /// Opens a folder that is there.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self {
            #[cfg(unix)]
            handle: File::open(path)?,
            path: path.to_owned(),
            measures: Arc::default(),
        })
    }

    /// What its files have done.
    #[must_use]
    pub fn measures(&self) -> &FileMeasures {
        &self.measures
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Folder for DiskFolder {
    type File = DiskFile;

    fn bytes_of(&self, name: &str) -> io::Result<u64> {
        Ok(fs::metadata(self.path.join(name))?.len())
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            // Ours are plain; another's strange name is none of them.
            names.extend(entry?.file_name().into_string().ok());
        }
        Ok(names)
    }

    fn open(&self, name: &str, access: Access) -> io::Result<DiskFile> {
        let file = fs::OpenOptions::new()
            .read(true)
            .write(access == Access::Write)
            .open(self.path.join(name))?;
        DiskFile::new(file, access, Arc::clone(&self.measures))
    }

    fn create(&self, name: &str) -> io::Result<DiskFile> {
        let file = disk::file_options()
            .create_new(true)
            .open(self.path.join(name))?;
        DiskFile::new(file, Access::Write, Arc::clone(&self.measures))
    }

    fn read(&self, name: &str, bytes_max: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let file = File::open(self.path.join(name))?;
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
        disk::write(&self.path.join(name), bytes)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    #[cfg(unix)]
    fn sync(&self) -> io::Result<()> {
        self.handle.sync_all()
    }

    #[cfg(not(unix))]
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn bytes(&self) -> io::Result<u64> {
        let mut bytes = 0;
        for entry in fs::read_dir(&self.path)? {
            bytes += allocated_bytes(&entry?.metadata()?);
        }
        Ok(bytes)
    }
}

#[cfg(unix)]
fn allocated_bytes(metadata: &fs::Metadata) -> u64 {
    use std::os::unix::fs::MetadataExt;
    // The unit of `blocks` is 512 bytes whatever the file system's is.
    metadata.blocks() * 512
}

#[cfg(not(unix))]
fn allocated_bytes(metadata: &fs::Metadata) -> u64 {
    metadata.len()
}
