//! The format of a sealed segment as an object: an index, blocks of records, and large bodies.
//!
//! All numbers are little-endian.
//!
//! | part | content |
//! |---|---|
//! | header, 16 bytes | `TRS`, version (1 byte), length of the dictionary (4), number of blocks (4), number of bodies (4) |
//! | a row for each block, 16 bytes | first offset (8), stored length (4), number of records (4) |
//! | a row for each body, 16 bytes | home offset (8), stored length (4), length (4) |
//! | dictionary | for the blocks; may be empty |
//! | checksum, 4 bytes | CRC32C of everything before it |
//! | content | the blocks, then the bodies, in the order of their rows |
//!
//! A block has a checksum of its own. A body is compressed if its stored length is not its length;
//! the record that names it has its hash.

use std::{io, ops::Range, sync::Arc};

use bytes::Bytes;
use treering_log::{
    BlobRef, EncodedFrame, LogError, Record,
    block::{Dictionary, Packer, Samples},
    frame,
};

const MAGIC: [u8; 3] = *b"TRS";
const VERSION: u8 = 1;
const HEADER_BYTES: usize = 16;
const ROW_BYTES: usize = 16;
const CRC_BYTES: usize = 4;
/// zstd level for large bodies: an object is written once.
const ZSTD_LEVEL: i32 = 3;

/// The place of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BlockPlace {
    pub(crate) first_offset: u64,
    pub(crate) count: u32,
    pub(crate) range: Range<u64>,
}

/// The place of a large body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BodyPlace {
    pub(crate) home_offset: u64,
    /// Its length, in bytes, when it is not compressed.
    pub(crate) raw_len: u32,
    pub(crate) range: Range<u64>,
}

/// What a segment has, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentIndex {
    /// In order of offsets; at least one.
    pub(crate) blocks: Vec<BlockPlace>,
    /// In order of home offsets.
    pub(crate) bodies: Vec<BodyPlace>,
    dictionary: Option<Arc<Dictionary>>,
}

/// A large body with its home offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SealedBody {
    pub(crate) home_offset: u64,
    pub(crate) bytes: Bytes,
}

/// A segment as an object.
#[derive(Clone, Debug)]
pub(crate) struct SegmentObject {
    pub(crate) bytes: Bytes,
    /// The length of its index, in bytes.
    pub(crate) index_bytes: usize,
    pub(crate) first_offset: u64,
    pub(crate) last_offset: u64,
}

impl SegmentIndex {
    /// Decodes the first bytes of an object: exactly its index.
    pub(crate) fn decode(first_offset: u64, bytes: &[u8]) -> Result<Self, LogError> {
        let damaged = |what: &str| LogError::damaged(first_offset, what);
        let content = bytes.len().checked_sub(CRC_BYTES);
        let (content, crc) = content
            .and_then(|at| bytes.split_at_checked(at))
            .ok_or_else(|| damaged("segment index is too short"))?;
        if content.len() < HEADER_BYTES || content[..3] != MAGIC {
            return Err(damaged("segment has a wrong magic number"));
        }
        if crc32c::crc32c(content).to_le_bytes() != crc {
            return Err(damaged("segment index CRC32C mismatch"));
        }
        if content[3] > VERSION {
            return Err(LogError::NewerFormat {
                offset: first_offset,
                version: content[3],
                supported: VERSION,
            });
        }
        let invalid = || damaged("segment index has invalid counts");
        let (header, rest) = content.split_at(HEADER_BYTES);
        let [dictionary_len, blocks_total, bodies_total] =
            [4, 8, 12].map(|at| word(header, at) as usize);
        let rows_len = blocks_total
            .saturating_add(bodies_total)
            .saturating_mul(ROW_BYTES);
        let (rows, dictionary) = rest.split_at_checked(rows_len).ok_or_else(invalid)?;
        if blocks_total == 0 || dictionary.len() != dictionary_len {
            return Err(invalid());
        }
        let dictionary = match dictionary {
            [] => None,
            bytes => {
                let loaded = Dictionary::new(Bytes::copy_from_slice(bytes));
                let loaded = loaded.map_err(|_| damaged("segment has an invalid dictionary"))?;
                Some(Arc::new(loaded))
            }
        };
        let (rows, _) = rows.as_chunks::<ROW_BYTES>();
        let (blocks, bodies) = rows.split_at(blocks_total);
        let mut at = bytes.len() as u64;
        let mut range = |row: &[u8; ROW_BYTES]| {
            let start = at;
            at += u64::from(word(row, 8));
            start..at
        };
        let blocks = blocks.iter().map(|row| BlockPlace {
            first_offset: long(row),
            count: word(row, 12),
            range: range(row),
        });
        let blocks = blocks.collect();
        let bodies = bodies.iter().map(|row| BodyPlace {
            home_offset: long(row),
            raw_len: word(row, 12),
            range: range(row),
        });
        Ok(Self {
            blocks,
            bodies: bodies.collect(),
            dictionary,
        })
    }

    /// Returns a block, given the bytes of its range.
    pub(crate) fn block(&self, place: &BlockPlace, bytes: Bytes) -> EncodedFrame {
        EncodedFrame {
            dictionary: self.dictionary.clone(),
            ..EncodedFrame::new(place.first_offset, place.count, bytes)
        }
    }

    /// Returns the blocks from the one that contains an offset on, until they have `bytes_max`
    /// bytes.
    pub(crate) fn blocks_from(&self, offset: u64, bytes_max: usize) -> &[BlockPlace] {
        let after = self.blocks.partition_point(|it| it.first_offset <= offset);
        let from = after.saturating_sub(1);
        let start = self.blocks[from].range.start;
        let fits = |it: &&BlockPlace| it.range.end - start <= bytes_max as u64;
        let some = self.blocks[from..].iter().take_while(fits).count().max(1);
        &self.blocks[from..from + some]
    }

    pub(crate) fn body(&self, home_offset: u64) -> Option<&BodyPlace> {
        let found = self
            .bodies
            .binary_search_by_key(&home_offset, |it| it.home_offset);
        found.ok().map(|at| &self.bodies[at])
    }
}

impl BodyPlace {
    /// Decompresses the stored bytes of this body. `None` if they are damaged.
    pub(crate) fn unpack(&self, stored: &Bytes) -> Option<Bytes> {
        let raw_len = self.raw_len as usize;
        if stored.len() == raw_len {
            return Some(stored.clone());
        }
        let raw = zstd::bulk::decompress(stored, raw_len).ok()?;
        (raw.len() == raw_len).then(|| raw.into())
    }
}

/// Packs consecutive records and the large bodies among them.
pub(crate) fn encode(
    first_offset: u64,
    records: Vec<Record>,
    bodies: &[SealedBody],
) -> Result<SegmentObject, LogError> {
    let last_offset = first_offset + records.len() as u64 - 1;
    let dictionary = train(&records).map(Arc::new);
    let packer = Packer::new(first_offset, dictionary.clone());
    let mut packer = packer.map_err(|error| failed(&error))?;
    let mut blocks = Vec::new();
    for record in records {
        blocks.extend(packer.push(record)?);
    }
    blocks.extend(packer.finish()?);
    let stored: Result<Vec<Bytes>, io::Error> =
        bodies.iter().map(|body| pack(&body.bytes)).collect();
    let stored = stored.map_err(|error| failed(&error))?;

    let dictionary = dictionary.map_or_else(Bytes::new, |dictionary| dictionary.bytes().clone());
    let rows_len = ROW_BYTES * (blocks.len() + bodies.len());
    let index_bytes = HEADER_BYTES + rows_len + dictionary.len() + CRC_BYTES;
    let content: usize = blocks.iter().map(|block| block.bytes.len()).sum();
    let content = content + stored.iter().map(Bytes::len).sum::<usize>();
    let mut bytes = Vec::with_capacity(index_bytes + content);
    bytes.extend_from_slice(&MAGIC);
    bytes.push(VERSION);
    for count in [dictionary.len(), blocks.len(), bodies.len()] {
        bytes.extend_from_slice(&length(count)?);
    }
    for block in &blocks {
        bytes.extend_from_slice(&block.first_offset.to_le_bytes());
        bytes.extend_from_slice(&length(block.bytes.len())?);
        bytes.extend_from_slice(&block.count.to_le_bytes());
    }
    for (body, stored) in bodies.iter().zip(&stored) {
        bytes.extend_from_slice(&body.home_offset.to_le_bytes());
        bytes.extend_from_slice(&length(stored.len())?);
        bytes.extend_from_slice(&length(body.bytes.len())?);
    }
    bytes.extend_from_slice(&dictionary);
    bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
    let parts = blocks.iter().map(|block| &block.bytes).chain(&stored);
    for part in parts {
        bytes.extend_from_slice(part);
    }
    Ok(SegmentObject {
        bytes: bytes.into(),
        index_bytes,
        first_offset,
        last_offset,
    })
}

/// The records and large bodies of a whole object.
pub(crate) fn decode(
    first_offset: u64,
    object: &Bytes,
    index_bytes: usize,
) -> Result<(Vec<Record>, Vec<SealedBody>), LogError> {
    let damaged = |what: &str| LogError::damaged(first_offset, what);
    let short = || damaged("segment is shorter than its index states");
    let index = object.get(..index_bytes).ok_or_else(short)?;
    let index = SegmentIndex::decode(first_offset, index)?;
    let part = |range: &Range<u64>| {
        let range = range.start as usize..range.end as usize;
        let is_there = range.end <= object.len();
        is_there.then(|| object.slice(range)).ok_or_else(short)
    };
    let mut records = Vec::new();
    for place in &index.blocks {
        let decoded = frame::decode(&index.block(place, part(&place.range)?))?;
        if decoded.first_offset != first_offset + records.len() as u64 {
            return Err(damaged("the blocks of a segment do not follow each other"));
        }
        records.extend(decoded.records);
    }
    let mut bodies = Vec::with_capacity(index.bodies.len());
    for place in &index.bodies {
        let bytes = place.unpack(&part(&place.range)?);
        bodies.push(SealedBody {
            home_offset: place.home_offset,
            bytes: bytes.ok_or_else(|| LogError::damaged(place.home_offset, BODY_DAMAGED))?,
        });
    }
    Ok((records, bodies))
}

pub(crate) const BODY_DAMAGED: &str = "large body does not match its hash";

/// Returns a body if it is the one that a record names.
pub(crate) fn checked_body(body: Bytes, named: &BlobRef) -> Result<Bytes, LogError> {
    let is_named = body.len() as u64 == named.bytes_len && Record::hash_body(&body) == named.hash;
    is_named
        .then_some(body)
        .ok_or_else(|| LogError::damaged(named.home_offset, BODY_DAMAGED))
}

/// Trains a dictionary on bodies from the whole segment.
fn train(records: &[Record]) -> Option<Dictionary> {
    let bodies: Vec<&[u8]> = records.iter().map(|record| record.body.here()).collect();
    let bytes: usize = bodies.iter().map(|body| body.len()).sum();
    let mut samples = Samples::default();
    for body in bodies.into_iter().step_by(bytes / Samples::BYTES_MAX + 1) {
        samples.push(body);
    }
    Dictionary::train(&samples)
}

fn pack(body: &Bytes) -> io::Result<Bytes> {
    let packed = zstd::bulk::compress(body, ZSTD_LEVEL)?;
    Ok(if packed.len() < body.len() {
        packed.into()
    } else {
        body.clone()
    })
}

fn failed(error: &io::Error) -> LogError {
    LogError::Io {
        doing: "packing a segment",
        source: Arc::new(io::Error::other(error.to_string())),
    }
}

fn length(bytes: usize) -> Result<[u8; 4], LogError> {
    let max = u32::MAX as usize;
    let fits = u32::try_from(bytes).map_err(|_| LogError::TooLarge {
        what: "part of a segment",
        bytes,
        max,
    });
    Ok(fits?.to_le_bytes())
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn long(row: &[u8]) -> u64 {
    u64::from(word(row, 0)) | u64::from(word(row, 4)) << 32
}
