//! The block form of a sealed segment: a stream of blocks, stored in rows that fill redb's pages,
//! and an index of the blocks.
//!
//! redb stores a value that is larger than a page in 2, 4, 8 or more pages: always a power of two.
//! Storing each block as its own value would waste a third of the space. So the blocks form one
//! stream, which is cut at page boundaries.

use std::{io, sync::Arc};

use bytes::Bytes;
use redb::{
    AccessGuard, Database, Durability, Range, ReadableTable, TableDefinition, WriteTransaction,
};

use super::{
    copy::{self, KeptBlobs},
    segment::{self, BLOBS, META, Readable, StoreError, catch_redb_panics},
};
use crate::{
    block::{self, Dictionary},
    port::{EncodedFrame, LogError, LogIdentity},
};

/// Row of `meta` with the form in which a segment stores its records; absent: frames.
const META_FORM: &str = "form";
/// The newest form that this program reads: blocks.
const FORM_BLOCKS: u32 = 1;
/// Row of `meta` with the position of the dictionary in the stream, its length and its CRC32C.
const META_DICTIONARY: &str = "dictionary";
/// Maps the first offset of a block to its position in the stream, its length and its number of
/// records.
const BLOCKS: TableDefinition<u64, &[u8; ROW_BYTES]> = TableDefinition::new("blocks");
const ROW_BYTES: usize = 16;
/// Maps a position in the stream to the bytes from there on.
const EXTENTS: TableDefinition<u64, &[u8]> = TableDefinition::new("extents");

/// Size of redb's pages, in bytes.
const PAGE_BYTES: usize = 4096;
/// What redb stores in the page of a single row besides its value: the page's kind and count, the
/// value's end, the key.
const PAGE_OVERHEAD_BYTES: usize = 4 + 4 + 8;
/// Size of a full extent, which fills a page of 64 KiB. Reading one block reads that much.
const EXTENT_BYTES: usize = 16 * PAGE_BYTES - PAGE_OVERHEAD_BYTES;
/// Number of bytes after which a transaction is committed, because redb keeps the pages of an open
/// transaction in memory.
const COMMIT_BYTES: usize = 8 << 20;

/// What is loaded when a segment of blocks is opened.
#[derive(Debug)]
pub(super) struct PackedSegment {
    dictionary: Option<Arc<Dictionary>>,
}

/// The location of a block in the stream.
#[derive(Clone, Copy)]
struct Row {
    at: u64,
    len: u32,
    count: u32,
}

impl Row {
    fn encode(self) -> [u8; ROW_BYTES] {
        let mut row = [0; ROW_BYTES];
        row[..8].copy_from_slice(&self.at.to_le_bytes());
        row[8..12].copy_from_slice(&self.len.to_le_bytes());
        row[12..].copy_from_slice(&self.count.to_le_bytes());
        row
    }

    fn decode(row: &[u8; ROW_BYTES]) -> Self {
        let word = |at: usize| u32::from_le_bytes([row[at], row[at + 1], row[at + 2], row[at + 3]]);
        Self {
            at: u64::from(word(0)) | u64::from(word(4)) << 32,
            len: word(8),
            count: word(12),
        }
    }
}

/// Reads the block form of a segment; `None` when it stores frames.
///
/// # Errors
/// [`LogError::NewerFormat`] for a form that a newer version writes.
pub(super) fn of(
    segment: &impl Readable,
    first_offset: u64,
) -> Result<Option<PackedSegment>, LogError> {
    let [form, place] = catch_redb_panics(first_offset, "reading a segment's form", || {
        let meta = segment.begin()?.open_table(META)?;
        let row = |key| -> Result<Vec<u8>, StoreError> {
            Ok(meta
                .get(key)?
                .map_or_else(Vec::new, |row| row.value().to_vec()))
        };
        Ok([row(META_FORM)?, row(META_DICTIONARY)?])
    })?;
    if form.is_empty() {
        return Ok(None);
    }
    match form.try_into().map(u32::from_le_bytes) {
        Ok(FORM_BLOCKS) => {}
        Ok(form) if form > FORM_BLOCKS => {
            return Err(LogError::NewerFormat {
                offset: first_offset,
                version: u8::try_from(form).unwrap_or(u8::MAX),
                supported: FORM_BLOCKS as u8,
            });
        }
        _ => {
            return Err(LogError::damaged(
                first_offset,
                "segment has an invalid form",
            ));
        }
    }
    // If the dictionary is unreadable, only the blocks that need it are damaged.
    let dictionary = read_dictionary(segment, first_offset, &place).unwrap_or_else(|error| {
        tracing::error!(%error, "a segment's dictionary cannot be read");
        None
    });
    Ok(Some(PackedSegment { dictionary }))
}

fn read_dictionary(
    segment: &impl Readable,
    first_offset: u64,
    place: &[u8],
) -> Result<Option<Arc<Dictionary>>, LogError> {
    let damaged = || LogError::damaged(first_offset, "segment dictionary is damaged");
    if place.is_empty() {
        return Ok(None);
    }
    let place = Row::decode(place.try_into().map_err(|_| damaged())?);
    let bytes = catch_redb_panics(first_offset, "reading a dictionary", || {
        let extents = segment.begin()?.open_table(EXTENTS)?;
        Stream::new(&extents).fetch(place)
    })?;
    let bytes = bytes.ok_or_else(damaged)?;
    // For the dictionary, the count field holds the checksum.
    if crc32c::crc32c(&bytes) != place.count {
        return Err(damaged());
    }
    let dictionary = Dictionary::new(bytes).map_err(|_| damaged())?;
    Ok(Some(Arc::new(dictionary)))
}

/// Reads the stream. Consecutive blocks share extents; each extent is looked up once.
struct Stream<'a, T> {
    extents: &'a T,
    here: Option<Extent<'a>>,
    /// Iterator over the following extents; `None` until one of them is needed.
    behind: Option<Range<'a, u64, &'static [u8]>>,
}

struct Extent<'a> {
    at: u64,
    bytes: AccessGuard<'a, &'static [u8]>,
}

impl Extent<'_> {
    /// Returns the bytes from a position on; `None` when the position is in another extent.
    fn from(&self, at: u64) -> Option<&[u8]> {
        let within = usize::try_from(at.checked_sub(self.at)?).ok()?;
        let there = self.bytes.value().get(within..)?;
        (!there.is_empty()).then_some(there)
    }

    fn end(&self) -> u64 {
        self.at.saturating_add(self.bytes.value().len() as u64)
    }
}

impl<'a, T: ReadableTable<u64, &'static [u8]>> Stream<'a, T> {
    fn new(extents: &'a T) -> Self {
        Self {
            extents,
            here: None,
            behind: None,
        }
    }

    /// Returns a part of the stream; `None` when it is missing.
    fn fetch(&mut self, row: Row) -> Result<Option<Bytes>, StoreError> {
        let len = row.len as usize;
        if len > block::STORED_BYTES_MAX {
            return Ok(None);
        }
        let mut bytes = Vec::with_capacity(len);
        let mut at = row.at;
        while bytes.len() < len {
            if self.there(at).is_none() {
                self.move_to(at)?;
            }
            let Some(there) = self.there(at) else {
                return Ok(None);
            };
            let taken = there.len().min(len - bytes.len());
            bytes.extend_from_slice(&there[..taken]);
            at = at.saturating_add(taken as u64);
        }
        Ok(Some(bytes.into()))
    }

    fn there(&self, at: u64) -> Option<&[u8]> {
        self.here.as_ref()?.from(at)
    }

    /// Moves to the extent that contains a position, if there is one.
    fn move_to(&mut self, at: u64) -> Result<(), StoreError> {
        let row = if self.here.as_ref().is_some_and(|here| here.end() == at) {
            let behind = match self.behind.take() {
                Some(behind) => behind,
                None => self.extents.range(at..)?,
            };
            self.behind.insert(behind).next()
        } else {
            self.behind = None;
            self.extents.range(..=at)?.next_back()
        };
        self.here = row.transpose()?.map(|(at, bytes)| Extent {
            at: at.value(),
            bytes,
        });
        Ok(())
    }
}

impl PackedSegment {
    /// Returns the blocks from the one that contains `from` on, until they have `bytes_max` bytes
    /// in total. A damaged block is returned as its error and is the last result.
    pub(super) fn read(
        &self,
        segment: &impl Readable,
        from: u64,
        bytes_max: usize,
    ) -> Result<Vec<Result<EncodedFrame, LogError>>, LogError> {
        let mut found = Vec::new();
        let read = catch_redb_panics(from, "reading blocks", || {
            let transaction = segment.begin()?;
            let (blocks, extents) = (
                transaction.open_table(BLOCKS)?,
                transaction.open_table(EXTENTS)?,
            );
            let first = blocks.range(..=from)?.next_back().transpose()?;
            let Some(first) = first.map(|(key, _)| key.value()) else {
                return Ok(());
            };
            let mut stream = Stream::new(&extents);
            let mut bytes = 0;
            for row in blocks.range(first..)? {
                let (key, row) = row?;
                let block = self.block(&mut stream, key.value(), Row::decode(row.value()))?;
                bytes += block.as_ref().map_or(0, |block| block.bytes.len());
                let is_last = block.is_err() || bytes >= bytes_max;
                found.push(block);
                if is_last {
                    break;
                }
            }
            Ok(())
        });
        // Results before a corrupt tree page stay valid: each block is checked by itself.
        if found.is_empty() {
            read?;
        }
        Ok(found)
    }

    fn block<T: ReadableTable<u64, &'static [u8]>>(
        &self,
        stream: &mut Stream<'_, T>,
        first_offset: u64,
        row: Row,
    ) -> Result<Result<EncodedFrame, LogError>, StoreError> {
        let bytes = stream.fetch(row)?;
        let count_fits = (1..=block::RECORDS_MAX as u32).contains(&row.count)
            && first_offset.checked_add(row.count.into()).is_some();
        Ok(match bytes {
            Some(bytes) if count_fits => Ok(EncodedFrame {
                first_offset,
                count: row.count,
                bytes,
                dictionary: self.dictionary.clone(),
            }),
            _ => Err(LogError::damaged(
                first_offset,
                "a block's location is invalid",
            )),
        })
    }

    /// Returns the last block; `None` when there is none.
    pub(super) fn last(
        &self,
        segment: &impl Readable,
        first_offset: u64,
    ) -> Result<Option<EncodedFrame>, LogError> {
        let last = catch_redb_panics(first_offset, "reading the last block", || {
            let transaction = segment.begin()?;
            let extents = transaction.open_table(EXTENTS)?;
            let blocks = transaction.open_table(BLOCKS)?;
            let Some((key, row)) = blocks.last()? else {
                return Ok(None);
            };
            let row = Row::decode(row.value());
            self.block(&mut Stream::new(&extents), key.value(), row)
                .map(Some)
        })?;
        last.transpose()
    }
}

/// Returns the first offset of the first block after `after`.
pub(super) fn next_block(segment: &impl Readable, after: u64) -> Result<Option<u64>, LogError> {
    catch_redb_panics(after, "looking for the next block", || {
        let table = segment.begin()?.open_table(BLOCKS)?;
        let next = table.range(after.saturating_add(1)..)?.next().transpose()?;
        Ok(next.map(|(key, _)| key.value()))
    })
}

/// Writes a segment of blocks into an empty file.
pub(super) struct PackedSegmentWriter<'a> {
    database: &'a Database,
    first_offset: u64,
    transaction: Option<WriteTransaction>,
    /// The end of the stream that is not in an extent yet, and its position.
    tail: Vec<u8>,
    tail_at: u64,
    uncommitted: usize,
}

impl<'a> PackedSegmentWriter<'a> {
    /// Creates the tables and records the segment's identity.
    pub(super) fn new(
        database: &'a Database,
        identity: LogIdentity,
        first_offset: u64,
        dictionary: Option<&Dictionary>,
    ) -> Result<Self, LogError> {
        let mut writer = Self {
            database,
            first_offset,
            transaction: None,
            tail: Vec::new(),
            tail_at: 0,
            uncommitted: 0,
        };
        let place = dictionary.map(|dictionary| Row {
            at: 0,
            len: dictionary.bytes().len() as u32,
            count: dictionary.crc(),
        });
        writer.run(|transaction| {
            transaction.open_table(BLOCKS)?;
            transaction.open_table(EXTENTS)?;
            transaction.open_table(BLOBS)?;
            segment::write_identity(transaction, identity, first_offset)?;
            let mut meta = transaction.open_table(META)?;
            meta.insert(META_FORM, FORM_BLOCKS.to_le_bytes().as_slice())?;
            if let Some(place) = place {
                meta.insert(META_DICTIONARY, place.encode().as_slice())?;
            }
            Ok(())
        })?;
        if let Some(dictionary) = dictionary {
            writer.stream(dictionary.bytes())?;
        }
        Ok(writer)
    }

    /// Runs an operation in the open transaction, or in a new one.
    fn run<T>(
        &mut self,
        operation: impl FnOnce(&WriteTransaction) -> Result<T, StoreError>,
    ) -> Result<T, LogError> {
        let (first_offset, database) = (self.first_offset, self.database);
        let transaction = &mut self.transaction;
        catch_redb_panics(first_offset, "writing a segment of blocks", || {
            let transaction = match transaction {
                Some(transaction) => transaction,
                None => {
                    let mut begun = database.begin_write()?;
                    // The final commit makes all transactions durable.
                    begun.set_durability(Durability::None)?;
                    transaction.insert(begun)
                }
            };
            operation(transaction)
        })
    }

    /// Appends a block.
    pub(super) fn push(&mut self, block: &EncodedFrame) -> Result<(), LogError> {
        let row = Row {
            at: self.tail_at + self.tail.len() as u64,
            // A block is far smaller than 4 GiB.
            len: block.bytes.len() as u32,
            count: block.count,
        };
        self.run(|transaction| {
            let mut blocks = transaction.open_table(BLOCKS)?;
            blocks.insert(block.first_offset, &row.encode())?;
            Ok(())
        })?;
        self.stream(&block.bytes)
    }

    fn stream(&mut self, bytes: &[u8]) -> Result<(), LogError> {
        self.tail.extend_from_slice(bytes);
        while self.tail.len() >= EXTENT_BYTES {
            self.extent(EXTENT_BYTES)?;
        }
        if self.uncommitted >= COMMIT_BYTES {
            self.commit(Durability::None)?;
        }
        Ok(())
    }

    /// Moves the first bytes of the tail into a row.
    fn extent(&mut self, len: usize) -> Result<(), LogError> {
        let at = self.tail_at;
        let tail = std::mem::take(&mut self.tail);
        self.run(|transaction| {
            let mut extents = transaction.open_table(EXTENTS)?;
            extents.insert(at, &tail[..len])?;
            Ok(())
        })?;
        self.tail = tail;
        self.tail.drain(..len);
        self.tail_at += len as u64;
        self.uncommitted += len;
        Ok(())
    }

    /// Copies large bodies of a segment.
    pub(super) fn copy_blobs(
        &mut self,
        from: &impl Readable,
        kept: &KeptBlobs<'_>,
    ) -> Result<(), LogError> {
        self.commit(Durability::None)?;
        copy::copy_blobs(from, self.database, kept, self.first_offset)
    }

    /// Writes the rest and makes everything durable.
    pub(super) fn finish(mut self) -> Result<(), LogError> {
        // The rest goes into rows that fill smaller pages.
        while !self.tail.is_empty() {
            let mut len = PAGE_BYTES - PAGE_OVERHEAD_BYTES;
            while len * 2 + PAGE_OVERHEAD_BYTES <= self.tail.len() {
                len = len * 2 + PAGE_OVERHEAD_BYTES;
            }
            self.extent(len.min(self.tail.len()))?;
        }
        self.commit(Durability::Immediate)
    }

    fn commit(&mut self, durability: Durability) -> Result<(), LogError> {
        self.run(|_| Ok(()))?;
        let Some(mut transaction) = self.transaction.take() else {
            return Err(LogError::from_io(
                "writing a segment of blocks",
                io::Error::other("no transaction is open"),
            ));
        };
        self.uncommitted = 0;
        catch_redb_panics(self.first_offset, "writing a segment of blocks", || {
            transaction.set_durability(durability)?;
            Ok(transaction.commit()?)
        })
    }
}
