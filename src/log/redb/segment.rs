//! One segment: a redb file with a table of frames and a table of large bodies.

use std::{
    ops::Bound,
    panic::{AssertUnwindSafe, catch_unwind},
};

use bytes::Bytes;
use redb::{
    Builder, Database, DatabaseError, ReadOnlyDatabase, ReadTransaction, ReadableDatabase,
    ReadableTable, TableDefinition,
};

use super::{
    blob,
    files::{Access, SegmentFiles},
};
use crate::{
    domain::{ContentHash, Namespace},
    log::{
        frame::{self, FrameHeader},
        port::{EncodedFrame, FrameBatch, LogError},
    },
};

/// Offset of the first record to the frame's bytes.
const FRAMES: TableDefinition<u64, &[u8]> = TableDefinition::new("frames");
/// See [`blob`].
const BLOBS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("blobs");

/// What a redb operation may fail with here.
#[derive(Debug)]
pub(super) struct StoreError(redb::Error);

impl<E: Into<redb::Error>> From<E> for StoreError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl StoreError {
    /// As the port says it; `offset` is where damage would be.
    pub(super) fn into_log(self, offset: u64, doing: &'static str) -> LogError {
        match self.0 {
            redb::Error::Io(error) => match error.kind() {
                // redb reads pages where its tree says that they are.
                std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::InvalidData => {
                    LogError::damaged(offset, format!("{doing}: {error}"))
                }
                _ => LogError::from_io(doing, error),
            },
            redb::Error::DatabaseClosed => LogError::Closed,
            redb::Error::PreviousIo => LogError::from_io(
                doing,
                std::io::Error::other("an earlier failure has closed the segment"),
            ),
            error => LogError::damaged(offset, format!("{doing}: {error}")),
        }
    }
}

/// Runs a redb operation. redb checks its pages only when it repairs, and panics
/// on some that are damaged; here, that is an error like any other.
pub(super) fn guarded<T>(
    offset: u64,
    doing: &'static str,
    operation: impl FnOnce() -> Result<T, StoreError>,
) -> Result<T, LogError> {
    match catch_unwind(AssertUnwindSafe(operation)) {
        Ok(result) => result.map_err(|error| error.into_log(offset, doing)),
        Err(_) => Err(LogError::damaged(
            offset,
            format!("{doing}: the segment's tree makes no sense"),
        )),
    }
}

/// Opens a segment for appending, repairing it if it was not closed.
pub(super) fn open_for_write<F: SegmentFiles>(
    storage: F::Storage,
    first_offset: u64,
    cache_bytes: usize,
) -> Result<Database, LogError> {
    guarded(first_offset, "opening a segment", || {
        Ok(Builder::new()
            .set_cache_size(cache_bytes)
            .create_with_backend(storage)?)
    })
}

/// Opens a sealed segment. One that a crash kept from being closed is repaired
/// first.
pub(super) fn open_sealed<F: SegmentFiles>(
    files: &F,
    first_offset: u64,
    cache_bytes: usize,
) -> Result<ReadOnlyDatabase, LogError> {
    let doing = "opening a sealed segment";
    let open = || {
        let storage = files
            .open(first_offset, Access::Read)
            .map_err(|error| missing_or_io(first_offset, doing, error))?;
        let opened = catch_unwind(AssertUnwindSafe(|| {
            Builder::new()
                .set_cache_size(cache_bytes)
                .open_read_only_with_backend(storage)
        }));
        opened.map_err(|_| LogError::damaged(first_offset, "a sealed segment cannot be opened"))
    };
    match open()? {
        Err(DatabaseError::RepairAborted) => {
            let storage = files
                .open(first_offset, Access::Write)
                .map_err(|error| missing_or_io(first_offset, doing, error))?;
            let repaired = open_for_write::<F>(storage, first_offset, cache_bytes)?;
            close(repaired, first_offset)?;
            open()?.map_err(|error| StoreError::from(error).into_log(first_offset, doing))
        }
        opened => opened.map_err(|error| StoreError::from(error).into_log(first_offset, doing)),
    }
}

pub(super) fn missing_or_io(
    first_offset: u64,
    doing: &'static str,
    error: std::io::Error,
) -> LogError {
    if error.kind() == std::io::ErrorKind::NotFound {
        return LogError::damaged(first_offset, "a segment file is missing");
    }
    LogError::from_io(doing, error)
}

/// Makes a segment's tables.
pub(super) fn initialize(database: &Database, first_offset: u64) -> Result<(), LogError> {
    guarded(first_offset, "creating a segment", || {
        let transaction = database.begin_write()?;
        transaction.open_table(FRAMES)?;
        transaction.open_table(BLOBS)?;
        Ok(transaction.commit()?)
    })
}

/// Closes a segment so that it opens without repair.
pub(super) fn close(database: Database, first_offset: u64) -> Result<(), LogError> {
    guarded(first_offset, "closing a segment", || Ok(database.close()?))
}

/// Writes a batch in one durable commit with one sync.
pub(super) fn append(database: &Database, batch: &FrameBatch) -> Result<(), LogError> {
    let first = batch.frames.first().map_or(0, |frame| frame.first_offset);
    let mut blobs = Vec::with_capacity(batch.blobs.len());
    for new in &batch.blobs {
        blobs.push((new, blob::encode(&new.bytes)?));
    }
    guarded(first, "appending frames", || {
        let transaction = database.begin_write()?;
        {
            let mut frames = transaction.open_table(FRAMES)?;
            let mut edge = frames.upper_bound_mut(Bound::<u64>::Unbounded)?;
            for frame in &batch.frames {
                edge.insert_before(frame.first_offset, frame.bytes.as_ref())?;
            }
            edge.close()?;
        }
        if !blobs.is_empty() {
            let mut table = transaction.open_table(BLOBS)?;
            for (new, stored) in &blobs {
                for (number, piece) in blob::pieces(stored) {
                    let key = blob::key(&new.namespace, new.hash, number);
                    table.insert(key.as_slice(), piece)?;
                }
            }
        }
        Ok(transaction.commit()?)
    })
}

/// A segment that can be read, appended to or not.
pub(super) trait Readable {
    fn begin(&self) -> Result<ReadTransaction, StoreError>;
}

impl Readable for Database {
    fn begin(&self) -> Result<ReadTransaction, StoreError> {
        Ok(self.begin_read()?)
    }
}

impl Readable for ReadOnlyDatabase {
    fn begin(&self) -> Result<ReadTransaction, StoreError> {
        Ok(self.begin_read()?)
    }
}

/// The last used offset; `first_offset - 1` when the segment is empty.
pub(super) fn head(segment: &impl Readable, first_offset: u64) -> Result<u64, LogError> {
    let last = guarded(first_offset, "reading the last frame", || {
        let table = segment.begin()?.open_table(FRAMES)?;
        let row = table.last()?;
        Ok(row.map(|(key, value)| (key.value(), Bytes::copy_from_slice(value.value()))))
    })?;
    let Some((offset, bytes)) = last else {
        return Ok(first_offset - 1);
    };
    let header = FrameHeader::read(offset, &bytes)?;
    let last = EncodedFrame {
        first_offset: offset,
        count: header.count,
        bytes,
    };
    // The next offset is taken from it: it has to be sound.
    frame::decode(&last)?;
    Ok(last.last_offset())
}

/// Appends to `into` the frames from the one that holds `from` on, until they
/// have `bytes_max` bytes together. Stops before a frame that is damaged, unless
/// it is the first one.
pub(super) fn read_frames(
    segment: &impl Readable,
    from: u64,
    bytes_max: usize,
    into: &mut Vec<EncodedFrame>,
) -> Result<(), LogError> {
    let rows = guarded(from, "reading frames", || {
        let table = segment.begin()?.open_table(FRAMES)?;
        let Some(first) = table
            .range(..=from)?
            .next_back()
            .transpose()?
            .map(|(key, _)| key.value())
        else {
            return Ok(Vec::new());
        };
        let mut rows = Vec::new();
        let mut bytes = 0;
        for row in table.range(first..)? {
            let (key, value) = row?;
            rows.push((key.value(), Bytes::copy_from_slice(value.value())));
            bytes += value.value().len();
            if bytes >= bytes_max {
                break;
            }
        }
        Ok(rows)
    })?;
    let mut next = from;
    for (first_offset, bytes) in rows {
        let read = FrameHeader::read(first_offset, &bytes).and_then(|header| {
            let frame = EncodedFrame {
                first_offset,
                count: header.count,
                bytes,
            };
            let follows = if next == from {
                (first_offset..=frame.last_offset()).contains(&from)
            } else {
                first_offset == next
            };
            if follows {
                Ok(frame)
            } else {
                Err(LogError::damaged(next, "no frame holds this record"))
            }
        });
        match read {
            Ok(frame) => {
                next = frame.last_offset() + 1;
                into.push(frame);
            }
            Err(error) if next == from => return Err(error),
            Err(_) => break,
        }
    }
    Ok(())
}

/// A large body, decompressed and checked.
pub(super) fn read_blob(
    segment: &impl Readable,
    namespace: &Namespace,
    hash: ContentHash,
    home_offset: u64,
) -> Result<Bytes, LogError> {
    let stored = guarded(home_offset, "reading a large body", || {
        let table = segment.begin()?.open_table(BLOBS)?;
        let first = blob::key(namespace, hash, 0);
        let last = blob::key(namespace, hash, u32::MAX);
        let mut stored = Vec::new();
        for row in table.range(first.as_slice()..=last.as_slice())? {
            stored.extend_from_slice(row?.1.value());
        }
        Ok(stored)
    })?;
    blob::decode(&stored, hash, home_offset)
}
