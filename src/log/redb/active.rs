//! The last segment: opened, measured, given room, and made.

use ::redb::{Database, StorageBackend};

use super::{
    files::{Access, SegmentFiles, SegmentStorage},
    segment,
};
use crate::log::port::{FrameBatch, LogError};

pub(super) struct Active<F: SegmentFiles> {
    pub(super) first_offset: u64,
    /// None after a failure, until it can be opened again.
    pub(super) open: Option<Open<F>>,
}

pub(super) struct Open<F: SegmentFiles> {
    pub(super) database: Database,
    storage: F::Storage,
    /// About how many bytes its pages take.
    pub(super) used_bytes: u64,
}

/// The pages that a value of this size takes in redb.
fn page_bytes(value: usize) -> u64 {
    const PAGE: usize = 4096;
    // Key, lengths and the page's own header.
    const ROW: usize = 64;
    if value + ROW <= PAGE / 2 {
        return (value + ROW) as u64;
    }
    (value + ROW).next_power_of_two().max(PAGE) as u64
}

pub(super) fn batch_bytes(batch: &FrameBatch) -> u64 {
    let frames = batch.frames.iter().map(|f| page_bytes(f.bytes.len()));
    let blobs = batch.blobs.iter().map(|b| {
        let stored = b.bytes.len();
        stored as u64 + stored as u64 / 6 + 4096
    });
    frames.chain(blobs).sum()
}

impl<F: SegmentFiles> Active<F> {
    /// Opens it, after closing it if it is open; returns the head.
    pub(super) fn reopen(&mut self, files: &F, cache_bytes: usize) -> Result<u64, LogError> {
        if let Err(error) = self.close() {
            let first_offset = self.first_offset;
            tracing::debug!(first_offset, %error, "a failed segment was closed");
        }
        let storage = files
            .open(self.first_offset, Access::Write)
            .map_err(|error| {
                segment::missing_or_io(self.first_offset, "opening a segment", error)
            })?;
        let database =
            segment::open_for_write::<F>(storage.clone(), self.first_offset, cache_bytes)?;
        let used_bytes = storage
            .len()
            .map_err(|error| LogError::from_io("measuring a segment", error));
        let head = segment::head(&database, self.first_offset);
        match (used_bytes, head) {
            (Ok(used_bytes), Ok(head)) => {
                self.open = Some(Open {
                    database,
                    storage,
                    used_bytes,
                });
                Ok(head)
            }
            (Err(error), _) | (_, Err(error)) => {
                // Not by dropping it: redb may panic on damage there, too.
                let _worse = segment::close(database, self.first_offset);
                Err(error)
            }
        }
    }

    pub(super) fn close(&mut self) -> Result<(), LogError> {
        match self.open.take() {
            Some(open) => segment::close(open.database, self.first_offset),
            None => Ok(()),
        }
    }
}

impl<F: SegmentFiles> Open<F> {
    /// Asks for the space that a batch may need before redb does, because redb
    /// takes no more commits after a failed write. redb doubles its file when it
    /// needs more.
    pub(super) fn reserve(&self, batch_bytes: u64) -> Result<(), LogError> {
        const SLACK_BYTES: u64 = 1 << 20;
        let doing = "reserving space for a batch";
        let len = self
            .storage
            .len()
            .map_err(|error| LogError::from_io(doing, error))?;
        let needed = self.used_bytes + 2 * batch_bytes + SLACK_BYTES / 2;
        if needed <= len / 4 * 3 {
            return Ok(());
        }
        self.storage
            .reserve(2 * len.max(needed) + SLACK_BYTES)
            .map_err(|error| LogError::from_io(doing, error))
    }
}

/// Makes an empty segment under another name, and publishes it when it is whole.
pub(super) fn create_segment<F: SegmentFiles>(
    files: &F,
    first_offset: u64,
    cache_bytes: usize,
) -> Result<(), LogError> {
    let doing = "creating a segment";
    let storage = files
        .create(first_offset)
        .map_err(|error| LogError::from_io(doing, error))?;
    let database = segment::open_for_write::<F>(storage, first_offset, cache_bytes)?;
    segment::initialize(&database, first_offset)?;
    segment::close(database, first_offset)?;
    files
        .publish(first_offset)
        .map_err(|error| LogError::from_io(doing, error))
}
