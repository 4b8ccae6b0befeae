//! Where segments are stored: a folder of files, or, for tests, whatever fails
//! in the ways that disks do.

use std::{
    fmt,
    fs::{self, File, OpenOptions},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use redb::{StorageBackend, backends::FileBackend};

/// What a segment is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It is sealed.
    Read,
    /// It is the last one, or has to be repaired.
    Write,
}

/// A place for segments, each named by the offset of its first record.
pub trait SegmentFiles: fmt::Debug + Send + Sync + 'static {
    /// A segment's bytes.
    type Storage: SegmentStorage;

    /// The published segments, in order.
    ///
    /// # Errors
    /// When they cannot be listed.
    fn list(&self) -> io::Result<Vec<u64>>;

    /// Opens a published segment.
    ///
    /// # Errors
    /// When it is missing or cannot be opened.
    fn open(&self, first_offset: u64, access: Access) -> io::Result<Self::Storage>;

    /// An empty segment that is not published; one left from before is replaced.
    ///
    /// # Errors
    /// When it cannot be created.
    fn create(&self, first_offset: u64) -> io::Result<Self::Storage>;

    /// Makes a created segment one that [`SegmentFiles::list`] names, durably.
    ///
    /// # Errors
    /// When it may not be published.
    fn publish(&self, first_offset: u64) -> io::Result<()>;

    /// Bytes that all of it takes.
    ///
    /// # Errors
    /// When that cannot be found out.
    fn bytes(&self) -> io::Result<u64>;
}

/// A segment's bytes; a clone is the same storage.
pub trait SegmentStorage: StorageBackend + Clone {
    /// Makes sure that it can grow to `bytes` without asking for space again.
    ///
    /// # Errors
    /// `StorageFull` when there is no room; nothing has changed then.
    fn reserve(&self, bytes: u64) -> io::Result<()>;
}

/// Segments as files of a folder, `<first offset as 16 hex digits>.redb`.
#[derive(Debug, Clone)]
pub struct DiskFiles {
    folder: PathBuf,
}

const SUFFIX: &str = ".redb";
const UNPUBLISHED_SUFFIX: &str = ".redb.new";

impl DiskFiles {
    /// Takes a folder, which is created if needed.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn new(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        Ok(Self {
            folder: folder.to_owned(),
        })
    }

    fn path(&self, first_offset: u64, suffix: &str) -> PathBuf {
        self.folder.join(format!("{first_offset:016x}{suffix}"))
    }
}

impl SegmentFiles for DiskFiles {
    type Storage = DiskFile;

    fn list(&self) -> io::Result<Vec<u64>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let name = entry?.file_name();
            let first = name
                .to_str()
                .and_then(|name| name.strip_suffix(SUFFIX))
                .filter(|digits| digits.len() == 16)
                .and_then(|digits| u64::from_str_radix(digits, 16).ok());
            found.extend(first);
        }
        found.sort_unstable();
        Ok(found)
    }

    fn open(&self, first_offset: u64, access: Access) -> io::Result<DiskFile> {
        let file = OpenOptions::new()
            .read(true)
            .write(access == Access::Write)
            .open(self.path(first_offset, SUFFIX))?;
        DiskFile::new(file, access)
    }

    fn create(&self, first_offset: u64) -> io::Result<DiskFile> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(self.path(first_offset, UNPUBLISHED_SUFFIX))?;
        DiskFile::new(file, Access::Write)
    }

    fn publish(&self, first_offset: u64) -> io::Result<()> {
        fs::rename(
            self.path(first_offset, UNPUBLISHED_SUFFIX),
            self.path(first_offset, SUFFIX),
        )?;
        sync_folder(&self.folder)
    }

    fn bytes(&self) -> io::Result<u64> {
        let mut bytes = 0;
        for entry in fs::read_dir(&self.folder)? {
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

/// A rename lasts only once its folder is on disk.
fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

/// A segment file that asks for its space before it grows.
#[derive(Debug, Clone)]
pub struct DiskFile(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    backend: FileBackend,
    file: File,
    access: Access,
    /// The file system has set aside this much, in bytes.
    reserved: AtomicU64,
}

impl DiskFile {
    fn new(file: File, access: Access) -> io::Result<Self> {
        let backend = FileBackend::new(file.try_clone()?).map_err(io::Error::other)?;
        Ok(Self(Arc::new(Inner {
            reserved: AtomicU64::new(file.metadata()?.len()),
            backend,
            file,
            access,
        })))
    }
}

impl SegmentStorage for DiskFile {
    fn reserve(&self, bytes: u64) -> io::Result<()> {
        if bytes <= self.0.reserved.load(Ordering::Acquire) {
            return Ok(());
        }
        if allocate(&self.0.file, bytes)? {
            self.0.reserved.fetch_max(bytes, Ordering::AcqRel);
        }
        Ok(())
    }
}

/// With this much free beyond what is asked for, in bytes, space is not set
/// aside: the first write into space that is costs a journal entry of the file
/// system, about a fifth of a lone append. Should the room go all the same, the
/// write fails and the segment is opened again.
#[cfg(target_os = "linux")]
const ROOMY_BYTES: u64 = 1 << 30;

/// Sets space aside without changing the file's length, and says whether it
/// did. A file system that cannot do that shows a full disk at the write.
#[cfg(target_os = "linux")]
fn allocate(file: &File, bytes: u64) -> io::Result<bool> {
    use rustix::{
        fs::{FallocateFlags, fallocate, fstatvfs},
        io::Errno,
    };
    let disk = fstatvfs(file)?;
    if disk.f_bavail.saturating_mul(disk.f_frsize) > bytes.saturating_add(ROOMY_BYTES) {
        return Ok(false);
    }
    match fallocate(file, FallocateFlags::KEEP_SIZE, 0, bytes) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

#[cfg(not(target_os = "linux"))]
fn allocate(_: &File, _: u64) -> io::Result<bool> {
    Ok(true)
}

impl StorageBackend for DiskFile {
    fn len(&self) -> io::Result<u64> {
        self.0.backend.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.backend.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.reserve(len)?;
        let shrinks = len < self.len()?;
        self.0.backend.set_len(len)?;
        if shrinks {
            self.0.reserved.store(len, Ordering::Release);
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.backend.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.backend.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        if self.0.access == Access::Write {
            // Gives back what was set aside beyond the end.
            let len = self.len()?;
            self.0.backend.set_len(len)?;
            self.0.reserved.store(len, Ordering::Release);
        }
        self.0.backend.close()
    }
}
