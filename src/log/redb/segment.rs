//! A segment: a redb file with a table of frames and a table of large bodies.

use std::ops::Bound;

use bytes::Bytes;
use redb::{
    Builder, Database, ReadOnlyDatabase, ReadTransaction, ReadableDatabase, ReadableTable,
    StorageBackend, Table, TableDefinition, WriteTransaction,
};
use uuid::Uuid;

use super::{
    blob::{self, PatchDepth, StoredBlob},
    folder::{Access, Folder},
    packed::{self, PackedSegment},
    recent_bodies::RecentBodies,
};
use crate::{
    frame::{self, FrameHeader},
    patch::{PATCHED_BYTES_MAX, PATCHES_MAX},
    port::{EncodedFrame, FrameBatch, LogError, LogIdentity, NewBlob},
    record::{BlobRef, Record},
};
use treering_base::catch_panics::catch_panics;
use treering_base::disk::Overlay;
use treering_domain::ContentHash;

/// Maps the offset of a frame's first record to the frame's bytes.
pub(super) const FRAMES: TableDefinition<u64, &[u8]> = TableDefinition::new("frames");
/// The identity of the segment: see [`initialize`].
pub(super) const META: TableDefinition<&str, &[u8]> = TableDefinition::new("meta");
const META_STORE: &str = "store";
const META_TIMELINE: &str = "timeline";
const META_FIRST: &str = "first";
/// See [`blob`].
pub(super) const BLOBS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("blobs");

/// A failure of a redb operation.
#[derive(Debug)]
pub(super) struct StoreError(redb::Error);

impl<E: Into<redb::Error>> From<E> for StoreError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl StoreError {
    /// Converts the error to [`LogError`]; `offset` is where damage is reported.
    pub(super) fn into_log(self, offset: u64, doing: &'static str) -> LogError {
        match self.0 {
            redb::Error::Io(error) => match error.kind() {
                // redb reads pages at the places that its tree names, so a damaged tree leads to
                // these errors. So does a folder in place of the file: it can be opened, but not
                // read.
                std::io::ErrorKind::UnexpectedEof
                | std::io::ErrorKind::InvalidData
                | std::io::ErrorKind::IsADirectory => {
                    LogError::damaged(offset, format!("{doing}: {error}"))
                }
                _ => LogError::from_io(doing, error),
            },
            redb::Error::DatabaseClosed => LogError::Closed,
            redb::Error::PreviousIo => LogError::from_io(
                doing,
                std::io::Error::other("an earlier failure closed the segment"),
            ),
            error => LogError::damaged(offset, format!("{doing}: {error}")),
        }
    }
}

/// Runs a redb operation and converts panics to errors. redb verifies its pages only during repair
/// and panics on some damaged pages.
pub(super) fn catch_redb_panics<T>(
    offset: u64,
    doing: &'static str,
    operation: impl FnOnce() -> Result<T, StoreError>,
) -> Result<T, LogError> {
    match catch_panics(operation) {
        Ok(result) => result.map_err(|error| error.into_log(offset, doing)),
        Err(_) => Err(LogError::damaged(
            offset,
            format!("{doing}: the segment's B-tree is corrupt"),
        )),
    }
}

/// Opens a segment on any storage, repairing it if it was not closed.
pub(super) fn open_on(
    storage: impl StorageBackend,
    first_offset: u64,
    cache_bytes: usize,
) -> Result<Database, LogError> {
    catch_redb_panics(first_offset, "opening a segment", || {
        Ok(Builder::new()
            .set_cache_size(cache_bytes)
            .create_with_backend(storage)?)
    })
}

/// Opens a segment without writing to its file. Repairs by redb are made in memory only; if redb's
/// record of free pages is damaged, it is rebuilt from the trees.
pub(super) fn open_unchanged<F: Folder>(
    folder: &F,
    file: &str,
    first_offset: u64,
    cache_bytes: usize,
) -> Result<Database, LogError> {
    let doing = "opening a segment to read it";
    let storage = || {
        folder
            .open(file, Access::Read)
            .map_err(|error| missing_or_io(first_offset, doing, error))
    };
    open_in_memory(storage, first_offset, cache_bytes)
}

/// Opens a segment from a file handle without writing to it: for a file that has no name.
pub(super) fn open_overlay<B: StorageBackend + Clone>(
    file: &B,
    first_offset: u64,
    cache_bytes: usize,
) -> Result<Database, LogError> {
    open_in_memory(|| Ok(file.clone()), first_offset, cache_bytes)
}

fn open_in_memory<B: StorageBackend>(
    storage: impl Fn() -> Result<B, LogError>,
    first_offset: u64,
    cache_bytes: usize,
) -> Result<Database, LogError> {
    let io = |error| missing_or_io(first_offset, "opening a segment to read it", error);
    let opened = open_on(
        Overlay::new(storage()?).map_err(io)?,
        first_offset,
        cache_bytes,
    );
    match opened {
        Err(LogError::Damaged { .. }) => {
            let repairing = Overlay::to_repair(storage()?).map_err(io)?;
            open_on(repairing, first_offset, cache_bytes)
        }
        opened => opened,
    }
}

/// Estimated minimum ratio of the size of frames to the size of their blocks, for bodies that
/// compress.
const FRAMES_TO_BLOCKS: u64 = 2;

/// A sealed segment, which is no longer written to.
pub(super) struct SealedSegment {
    file: SealedFile,
    /// `None`: it stores frames.
    packed: Option<PackedSegment>,
    /// Size of its file, in bytes.
    pub(super) bytes: u64,
}

enum SealedFile {
    /// The file was closed properly.
    Closed(ReadOnlyDatabase),
    /// The file was not closed properly, or is damaged, and was repaired in memory.
    Repaired(Database),
}

/// Opens a sealed segment.
pub(super) fn open_sealed<F: Folder>(
    folder: &F,
    file: &str,
    first_offset: u64,
    cache_bytes: usize,
) -> Result<SealedSegment, LogError> {
    let doing = "opening a sealed segment";
    let storage = folder
        .open(file, Access::Read)
        .map_err(|error| missing_or_io(first_offset, doing, error))?;
    let bytes = storage
        .len()
        .map_err(|error| LogError::from_io(doing, error))?;
    let file = open_sealed_file(folder, file, storage, first_offset, cache_bytes)?;
    let mut sealed = SealedSegment {
        file,
        packed: None,
        bytes,
    };
    sealed.packed = packed::of(&sealed.reader(), first_offset)?;
    Ok(sealed)
}

fn open_sealed_file<F: Folder>(
    folder: &F,
    file: &str,
    storage: F::File,
    first_offset: u64,
    cache_bytes: usize,
) -> Result<SealedFile, LogError> {
    let doing = "opening a sealed segment";
    let opened = catch_panics(|| {
        Builder::new()
            .set_cache_size(cache_bytes)
            .open_read_only_with_backend(storage)
    });
    let failed = match opened {
        Ok(Ok(database)) => return Ok(SealedFile::Closed(database)),
        Ok(Err(error)) => StoreError::from(error).into_log(first_offset, doing),
        Err(_) => LogError::damaged(first_offset, doing),
    };
    match failed {
        LogError::Damaged { .. } => {
            open_unchanged(folder, file, first_offset, cache_bytes).map(SealedFile::Repaired)
        }
        error => Err(error),
    }
}

pub(super) fn missing_or_io(
    first_offset: u64,
    doing: &'static str,
    error: std::io::Error,
) -> LogError {
    match error.kind() {
        std::io::ErrorKind::NotFound => {
            LogError::damaged(first_offset, "a segment file is missing")
        }
        std::io::ErrorKind::IsADirectory => {
            LogError::damaged(first_offset, "a folder is at the path of a segment file")
        }
        _ => LogError::from_io(doing, error),
    }
}

/// Creates a segment's tables and records its identity.
pub(super) fn initialize(
    database: &Database,
    identity: LogIdentity,
    first_offset: u64,
) -> Result<(), LogError> {
    catch_redb_panics(first_offset, "creating a segment", || {
        let transaction = database.begin_write()?;
        transaction.open_table(FRAMES)?;
        transaction.open_table(BLOBS)?;
        write_identity(&transaction, identity, first_offset)?;
        Ok(transaction.commit()?)
    })
}

/// Records a segment's identity.
pub(super) fn write_identity(
    transaction: &WriteTransaction,
    identity: LogIdentity,
    first_offset: u64,
) -> Result<(), StoreError> {
    let mut meta = transaction.open_table(META)?;
    meta.insert(META_STORE, identity.store.as_bytes().as_slice())?;
    meta.insert(META_TIMELINE, identity.timeline.as_bytes().as_slice())?;
    meta.insert(META_FIRST, first_offset.to_le_bytes().as_slice())?;
    Ok(())
}

/// Reads a segment's identity: its log and its first offset.
pub(super) fn read_identity(
    segment: &impl Readable,
    first_offset: u64,
) -> Result<(LogIdentity, u64), LogError> {
    let rows = catch_redb_panics(first_offset, "reading a segment's identity", || {
        let meta = segment.begin()?.open_table(META)?;
        let row = |key| -> Result<Vec<u8>, StoreError> {
            Ok(meta
                .get(key)?
                .map_or_else(Vec::new, |row| row.value().to_vec()))
        };
        Ok([row(META_STORE)?, row(META_TIMELINE)?, row(META_FIRST)?])
    })?;
    let [store, timeline, first] = rows;
    let id = |bytes: Vec<u8>| bytes.try_into().map(Uuid::from_bytes).ok();
    let read = id(store).zip(id(timeline)).zip(first.try_into().ok());
    let Some(((store, timeline), first)) = read else {
        return Err(LogError::damaged(
            first_offset,
            "segment has no valid identity",
        ));
    };
    Ok((LogIdentity { store, timeline }, u64::from_le_bytes(first)))
}

/// Checks that a segment is the one that the manifest names.
pub(super) fn check_identity(
    segment: &impl Readable,
    store: Uuid,
    first_offset: u64,
) -> Result<(), LogError> {
    let (identity, first) = read_identity(segment, first_offset)?;
    if identity.store != store {
        return Err(LogError::damaged(
            first_offset,
            "the file belongs to another store",
        ));
    }
    if first != first_offset {
        return Err(LogError::damaged(
            first_offset,
            format!("the file belongs to the segment that begins at {first}"),
        ));
    }
    Ok(())
}

/// Closes a segment so that it opens without repair.
pub(super) fn close(database: Database, first_offset: u64) -> Result<(), LogError> {
    catch_redb_panics(first_offset, "closing a segment", || Ok(database.close()?))
}

/// Compacts a segment: moves its content to the front of the file and truncates the file.
pub(super) fn compact(database: &mut Database, first_offset: u64) -> Result<(), LogError> {
    catch_redb_panics(first_offset, "compacting a segment", || {
        database.compact()?;
        Ok(())
    })
}

/// Writes a batch in one durable commit with one sync. Returns the stored size of its large bodies,
/// in bytes.
pub(super) fn append(database: &Database, batch: &FrameBatch) -> Result<u64, LogError> {
    let first = batch.frames.first().map_or(0, |frame| frame.first_offset);
    let blobs = stored_forms(database, &batch.blobs)?;
    catch_redb_panics(first, "appending frames", || {
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
            for (home_offset, stored) in &blobs {
                insert_blob(&mut table, *home_offset, stored)?;
            }
        }
        Ok(transaction.commit()?)
    })?;
    Ok(blobs.iter().map(|(_, stored)| stored.len() as u64).sum())
}

/// Inserts a stored body into the table.
pub(super) fn insert_blob(
    table: &mut Table<'_, &'static [u8], &'static [u8]>,
    home_offset: u64,
    stored: &[u8],
) -> Result<(), StoreError> {
    for (number, piece) in blob::pieces(stored) {
        let key = blob::key(home_offset, number);
        table.insert(key.as_slice(), piece)?;
    }
    Ok(())
}

/// Encodes large bodies for storage, with their home offsets: as patches when their bases are in
/// this segment or precede them in the batch.
fn stored_forms(database: &Database, blobs: &[NewBlob]) -> Result<Vec<(u64, Vec<u8>)>, LogError> {
    let mut stored: Vec<(u64, Vec<u8>)> = Vec::with_capacity(blobs.len());
    for new in blobs {
        let patched = match &new.patch {
            Some(patch) => {
                let of_batch = stored.iter().find(|(home, _)| *home == patch.base_home);
                let base = match of_batch {
                    Some((_, base)) => StoredBlob::depth_of(base),
                    None => depth_of(database, patch.base_home)?,
                };
                base.and_then(|base| blob::encode_patch(new.bytes.len(), patch, base))
            }
            None => None,
        };
        let form = match patched {
            Some(patched) => patched,
            None => blob::encode(&new.bytes)?,
        };
        stored.push((new.home_offset, form));
    }
    Ok(stored)
}

/// Returns the patch depth of a large body in this segment; `None` when it is not there.
fn depth_of(segment: &impl Readable, home_offset: u64) -> Result<Option<PatchDepth>, LogError> {
    catch_redb_panics(home_offset, "looking for the base of a patch", || {
        let table = segment.begin()?.open_table(BLOBS)?;
        let first = table.get(blob::key(home_offset, 0).as_slice())?;
        Ok(first.and_then(|piece| StoredBlob::depth_of(piece.value())))
    })
}

impl SealedSegment {
    pub(super) fn reader(&self) -> Reader<'_> {
        let source = match &self.file {
            SealedFile::Closed(database) => Source::Closed(database),
            SealedFile::Repaired(database) => Source::Open(database),
        };
        Reader {
            source,
            packed: self.packed.as_ref(),
        }
    }

    /// Returns the approximate size that its file has, or would have, with blocks, in bytes.
    pub(super) fn dense_bytes(&self) -> u64 {
        match &self.packed {
            Some(_) => self.bytes,
            None => self.bytes / FRAMES_TO_BLOCKS,
        }
    }
}

/// A segment to read from.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    source: Source<'a>,
    /// `None`: it stores frames.
    pub(super) packed: Option<&'a PackedSegment>,
}

#[derive(Clone, Copy)]
enum Source<'a> {
    Open(&'a Database),
    Closed(&'a ReadOnlyDatabase),
}

impl<'a> Reader<'a> {
    /// Creates a reader of a segment that is open for writing or was opened like one.
    pub(super) fn new(database: &'a Database, packed: Option<&'a PackedSegment>) -> Self {
        Self {
            source: Source::Open(database),
            packed,
        }
    }

    /// Creates a reader of a segment of frames.
    pub(super) fn frames(database: &'a Database) -> Self {
        Self::new(database, None)
    }
}

impl Readable for Reader<'_> {
    fn begin(&self) -> Result<ReadTransaction, StoreError> {
        match self.source {
            Source::Open(database) => database.begin(),
            Source::Closed(database) => database.begin(),
        }
    }
}

/// A readable segment.
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

/// Returns the last frame or block, undecoded; `None` when the segment is empty.
fn last_frame(segment: Reader<'_>, first_offset: u64) -> Result<Option<EncodedFrame>, LogError> {
    if let Some(packed) = segment.packed {
        return packed.last(&segment, first_offset);
    }
    let last = catch_redb_panics(first_offset, "reading the last frame", || {
        let table = segment.begin()?.open_table(FRAMES)?;
        let row = table.last()?;
        Ok(row.map(|(key, value)| (key.value(), Bytes::copy_from_slice(value.value()))))
    })?;
    let Some((offset, bytes)) = last else {
        return Ok(None);
    };
    let header = FrameHeader::read(offset, &bytes)?;
    if u64::from(header.count) > frame::FRAME_RECORDS_MAX {
        return Err(LogError::damaged(
            offset,
            "the last frame states more records than the maximum",
        ));
    }
    Ok(Some(EncodedFrame {
        first_offset: offset,
        count: header.count,
        bytes,
        dictionary: None,
    }))
}

/// The end of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    /// The last used offset; `first_offset - 1` when the segment is empty.
    pub(crate) offset: u64,
    /// Chain hash of the last record; `None`: there is no record, or it cannot be read.
    pub(crate) chain_hash: Option<ContentHash>,
}

/// Determines where a segment ends. A damaged last frame still states its number of records: they
/// are lost, but the offsets of later records are known.
///
/// # Errors
/// When the end cannot be determined.
pub(super) fn end(segment: Reader<'_>, first_offset: u64) -> Result<End, LogError> {
    let Some(last) = last_frame(segment, first_offset)? else {
        return Ok(End {
            offset: first_offset - 1,
            chain_hash: None,
        });
    };
    let chain_hash = match frame::decode(&last) {
        Ok(decoded) => decoded.records.last().map(Record::chain_hash),
        Err(error) => {
            tracing::error!(%error, "the last frame of the log is damaged; appends continue after \
                                     it");
            None
        }
    };
    Ok(End {
        offset: last.last_offset(),
        chain_hash,
    })
}

/// Returns the first offset of the first frame after `after`.
pub(super) fn next_frame(segment: Reader<'_>, after: u64) -> Result<Option<u64>, LogError> {
    if segment.packed.is_some() {
        return packed::next_block(&segment, after);
    }
    catch_redb_panics(after, "looking for the next frame", || {
        let table = segment.begin()?.open_table(FRAMES)?;
        let next = table.range(after.saturating_add(1)..)?.next().transpose()?;
        Ok(next.map(|(key, _)| key.value()))
    })
}

/// Returns a large body, unpacked and checked.
pub(super) fn read_blob(
    segment: &impl Readable,
    wanted: &BlobRef,
    recent: &RecentBodies,
) -> Result<Bytes, LogError> {
    let stored_max = blob::stored_bytes_max(wanted.bytes_len);
    let stored = fetch_blob(segment, wanted.home_offset, stored_max)?;
    let stored = StoredBlob::of(&stored, wanted.home_offset)?;
    blob::check_length(&stored, wanted)?;
    let raw = on_its_base(segment, &stored, wanted.home_offset, recent)?;
    blob::check_hash(&raw, wanted)?;
    Ok(raw)
}

/// Returns a large body by its home offset alone, without a record to check it against; a patch has
/// a checksum of its own.
pub(super) fn read_unnamed_blob(
    segment: &impl Readable,
    home_offset: u64,
) -> Result<Bytes, LogError> {
    let stored = fetch_blob(segment, home_offset, u64::MAX)?;
    let stored = StoredBlob::of(&stored, home_offset)?;
    if stored.base_home().is_some() && stored.depth.raw_len > PATCHED_BYTES_MAX as u64 {
        return Err(LogError::damaged(
            home_offset,
            "large body is a patch and exceeds the size limit of patches",
        ));
    }
    on_its_base(segment, &stored, home_offset, &RecentBodies::default())
}

/// Unpacks a body. If it is a patch, unpacks its base first.
fn on_its_base(
    segment: &impl Readable,
    stored: &StoredBlob<'_>,
    home_offset: u64,
    recent: &RecentBodies,
) -> Result<Bytes, LogError> {
    let Some(base_home) = stored.base_home() else {
        return stored.unpack(None, home_offset);
    };
    let generation = recent.generation();
    let mut chain = Vec::new();
    let (mut home, mut below) = (base_home, home_offset);
    let mut base = loop {
        if let Some(known) = recent.get(home) {
            break known;
        }
        // A base always precedes the patches on it, so this terminates.
        if home >= below || chain.len() > usize::from(PATCHES_MAX) {
            return Err(LogError::damaged(
                home_offset,
                "large body is a patch on a later body",
            ));
        }
        let bytes = fetch_blob(
            segment,
            home,
            blob::stored_bytes_max(PATCHED_BYTES_MAX as u64),
        )?;
        let read = StoredBlob::of(&bytes, home).map_err(|error| of_base(home_offset, error))?;
        if read.depth.raw_len > PATCHED_BYTES_MAX as u64 {
            return Err(LogError::damaged(
                home_offset,
                "large body is a patch on a body that exceeds the size limit of bases",
            ));
        }
        match read.base_home() {
            Some(next) => {
                chain.push((home, bytes));
                (home, below) = (next, home);
            }
            None => {
                break read
                    .unpack(None, home)
                    .map_err(|error| of_base(home_offset, error))?;
            }
        }
    };
    while let Some((home, bytes)) = chain.pop() {
        let read = StoredBlob::of(&bytes, home)?;
        base = read
            .unpack(Some(&base), home)
            .map_err(|error| of_base(home_offset, error))?;
    }
    let raw = stored.unpack(Some(&base), home_offset)?;
    recent.keep(base_home, base, generation);
    recent.keep(home_offset, raw.clone(), generation);
    Ok(raw)
}

/// Reports the damage of a base as damage of the body that depends on it.
fn of_base(home_offset: u64, error: LogError) -> LogError {
    match error {
        LogError::Damaged { offset, what } => LogError::damaged(
            home_offset,
            format!(
                "large body is a patch on the body at offset {offset}, which is damaged: {what}"
            ),
        ),
        error => error,
    }
}

fn fetch_blob(
    segment: &impl Readable,
    home_offset: u64,
    stored_max: u64,
) -> Result<Vec<u8>, LogError> {
    catch_redb_panics(home_offset, "reading a large body", || {
        let table = segment.begin()?.open_table(BLOBS)?;
        let first = blob::key(home_offset, 0);
        let last = blob::key(home_offset, u32::MAX);
        let mut stored = Vec::new();
        for row in table.range(first.as_slice()..=last.as_slice())? {
            stored.extend_from_slice(row?.1.value());
            if stored.len() as u64 > stored_max {
                break;
            }
        }
        Ok(stored)
    })
}

/// Returns the home offset of the base of a patched body.
#[cfg(test)]
pub(super) fn base_of(segment: &impl Readable, home_offset: u64) -> Result<Option<u64>, LogError> {
    let stored = fetch_blob(segment, home_offset, u64::MAX)?;
    Ok(StoredBlob::of(&stored, home_offset)?.base_home())
}
