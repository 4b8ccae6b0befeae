//! The last segment: creating, opening and measuring it, and reserving space.

use ::redb::{Database, StorageBackend};

use super::{
    file::SegmentFile,
    folder::{Access, Folder},
    segment::{self, End, Reader},
};
use crate::port::{FrameBatch, LogError, LogIdentity};

pub(super) struct ActiveSegment<F: Folder> {
    pub(super) first_offset: u64,
    /// Its file name.
    pub(super) file: String,
    /// `None` after a failure, until it can be opened again.
    pub(super) open: Option<OpenSegment<F>>,
    /// A handle of its file after the file was removed: the only way to reach its content.
    unnamed: Option<F::File>,
}

pub(super) struct OpenSegment<F: Folder> {
    pub(super) database: Database,
    /// `None`: opened read-only.
    pub(super) storage: Option<F::File>,
    /// Approximate size of its pages, in bytes.
    pub(super) used_bytes: u64,
    /// The part of `used_bytes` that redb allocated in advance in a new file.
    pub(super) empty_bytes: u64,
}

/// Returns the size of the pages that redb uses for a value of this size, in bytes.
fn page_bytes(value: usize) -> u64 {
    const PAGE: usize = 4096;
    // Key, lengths and the page's own header.
    const ROW: usize = 64;
    if value + ROW <= PAGE / 2 {
        return (value + ROW) as u64;
    }
    (value + ROW).next_power_of_two().max(PAGE) as u64
}

/// Returns an upper bound of the space that a batch takes, in bytes.
pub(super) fn batch_bytes(batch: &FrameBatch) -> u64 {
    let blobs = batch.blobs.iter().map(|b| blob_bytes(b.bytes.len() as u64));
    frames_bytes(batch) + blobs.sum::<u64>()
}

/// Returns the space that a batch took, given the stored size of its large bodies.
pub(super) fn written_bytes(batch: &FrameBatch, stored: u64) -> u64 {
    let blobs = match batch.blobs.len() as u64 {
        0 => 0,
        blobs => stored + stored / 6 + blobs * BLOB_ROW_BYTES,
    };
    frames_bytes(batch) + blobs
}

fn frames_bytes(batch: &FrameBatch) -> u64 {
    let frames = batch.frames.iter();
    frames.map(|frame| page_bytes(frame.bytes.len())).sum()
}

/// Allowance for each large body: small ones share a page, and the last page of a large one is half
/// empty on average.
const BLOB_ROW_BYTES: u64 = 1024;

fn blob_bytes(stored: u64) -> u64 {
    stored + stored / 6 + 4096
}

impl<F: Folder> ActiveSegment<F> {
    pub(super) fn closed(first_offset: u64, file: String) -> Self {
        Self {
            first_offset,
            file,
            open: None,
            unnamed: None,
        }
    }

    /// Opens the segment for appending, closing it first if it is open. Returns its end.
    pub(super) fn open_to_append(
        &mut self,
        folder: &F,
        cache_bytes: usize,
    ) -> Result<End, LogError> {
        self.close_or_note();
        let storage = folder
            .open(&self.file, Access::Write)
            .map_err(|error| self.cannot_open(error))?;
        let database = segment::open_on(storage.clone(), self.first_offset, cache_bytes)?;
        let used_bytes = storage
            .len()
            .map_err(|error| LogError::from_io("measuring a segment", error));
        let end = segment::end(Reader::frames(&database), self.first_offset);
        self.keep(database, Some(storage), used_bytes, end)
    }

    /// Opens the segment without changing its file. Returns its end.
    pub(super) fn open_to_read(&mut self, folder: &F, cache_bytes: usize) -> Result<End, LogError> {
        self.close_or_note();
        let database = match &self.unnamed {
            None => segment::open_unchanged(folder, &self.file, self.first_offset, cache_bytes)?,
            Some(file) => segment::open_overlay(file, self.first_offset, cache_bytes)?,
        };
        let end = segment::end(Reader::frames(&database), self.first_offset);
        self.keep(database, None, Ok(0), end)
    }

    fn keep(
        &mut self,
        database: Database,
        storage: Option<F::File>,
        used_bytes: Result<u64, LogError>,
        end: Result<End, LogError>,
    ) -> Result<End, LogError> {
        match used_bytes.and_then(|used_bytes| Ok((used_bytes, end?))) {
            Ok((used_bytes, end)) => {
                self.open = Some(OpenSegment {
                    database,
                    storage,
                    used_bytes,
                    // Closing truncated the unused space.
                    empty_bytes: 0,
                });
                Ok(end)
            }
            Err(error) => {
                // Closed explicitly, because dropping it may panic on damage.
                let _worse = segment::close(database, self.first_offset);
                Err(error)
            }
        }
    }

    fn cannot_open(&self, error: std::io::Error) -> LogError {
        segment::missing_or_io(self.first_offset, "opening a segment", error)
    }

    pub(super) fn close(&mut self) -> Result<(), LogError> {
        let Some(open) = self.open.take() else {
            return Ok(());
        };
        if let Some(file) = open.storage.filter(SegmentFile::is_unnamed) {
            self.unnamed = Some(file);
        }
        segment::close(open.database, self.first_offset)
    }

    fn close_or_note(&mut self) {
        if let Err(error) = self.close() {
            let first_offset = self.first_offset;
            tracing::debug!(first_offset, %error, "closed a failed segment");
        }
    }

    /// Returns true when a sync of its file has failed, so that its content must not be trusted.
    pub(super) fn is_poisoned(&self) -> bool {
        let storage = self.open.as_ref().and_then(|open| open.storage.as_ref());
        storage.is_some_and(SegmentFile::is_poisoned)
    }
}

impl<F: Folder> OpenSegment<F> {
    /// Returns the approximate size of its frames and large bodies, in bytes.
    pub(super) fn frames_bytes(&self) -> u64 {
        self.used_bytes.saturating_sub(self.empty_bytes)
    }

    /// Checks for space before redb writes, because redb accepts no more commits after a failed
    /// write. If the disk is full only at the write itself, the segment must be reopened, but
    /// nothing is lost.
    pub(super) fn ensure_room(&self, batch_bytes: u64) -> Result<(), LogError> {
        /// Bytes that a commit writes in addition: copied pages of the B-trees.
        const COMMIT_BYTES: u64 = 128 << 10;
        match &self.storage {
            Some(storage) => storage
                .ensure_room(batch_bytes + COMMIT_BYTES)
                .map_err(|error| LogError::from_io("making room for a batch", error)),
            None => Ok(()),
        }
    }
}

/// Creates an empty, durable segment under an unused name with a copy number of at least `copy`.
/// The manifest does not name it yet.
pub(super) fn create_segment<F: Folder>(
    folder: &F,
    identity: LogIdentity,
    first_offset: u64,
    copy: u32,
    cache_bytes: usize,
) -> Result<ActiveSegment<F>, LogError> {
    let io = |error| LogError::from_io("creating a segment", error);
    let (file, storage) = create_file(folder, first_offset, copy).map_err(io)?;
    let made = (|| {
        let database = segment::open_on(storage.clone(), first_offset, cache_bytes)?;
        if let Err(error) = segment::initialize(&database, identity, first_offset) {
            let _worse = segment::close(database, first_offset);
            return Err(error);
        }
        folder.sync().map_err(io)?;
        let used_bytes = storage.len().map_err(io)?;
        Ok(OpenSegment {
            database,
            storage: Some(storage),
            used_bytes,
            empty_bytes: used_bytes,
        })
    })();
    match made {
        Ok(open) => Ok(ActiveSegment {
            first_offset,
            file,
            open: Some(open),
            unnamed: None,
        }),
        Err(error) => {
            // No manifest names it; if the removal fails, the next opening removes it.
            let _left = folder.remove(&file);
            Err(error)
        }
    }
}

pub(super) fn create_file<F: Folder>(
    folder: &F,
    first_offset: u64,
    copy: u32,
) -> std::io::Result<(String, F::File)> {
    let mut copy = copy;
    loop {
        let file = file_name(first_offset, copy);
        match folder.create(&file) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => copy += 1,
            created => return created.map(|storage| (file, storage)),
        }
    }
}

const SUFFIX: &str = ".redb";

/// Returns the file name of a segment: its first offset in 16 hexadecimal digits, and the copy
/// number if it was rewritten.
fn file_name(first_offset: u64, copy: u32) -> String {
    match copy {
        0 => format!("{first_offset:016x}{SUFFIX}"),
        copy => format!("{first_offset:016x}-{copy}{SUFFIX}"),
    }
}

/// Parses a segment's file name into its first offset and copy number.
pub(super) fn parse_name(name: &str) -> Option<(u64, u32)> {
    let stem = name.strip_suffix(SUFFIX)?;
    let (digits, copy) = match stem.split_once('-') {
        Some((digits, copy)) => (digits, copy.parse().ok()?),
        None => (stem, 0),
    };
    let offset = u64::from_str_radix(digits, 16).ok()?;
    (file_name(offset, copy) == name).then_some((offset, copy))
}

/// Returns the number of the next copy of a segment.
pub(super) fn next_copy(file: &str) -> u32 {
    parse_name(file).map_or(0, |(_, copy)| copy.saturating_add(1))
}
