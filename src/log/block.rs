//! Blocks: the records of a sealed segment, packed compactly.
//!
//! A block replaces several frames. It stores their headers as columns and their bodies
//! concatenated, both compressed, and only the hashes that cannot be derived from the rest. Other
//! hashes are computed on demand. See `docs/FORMAT.md` for the byte format.

mod columns;
mod decode;
mod dictionary;
mod encode;
mod hashes;
#[cfg(test)]
mod hostile_tests;
mod pack;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use bytes::Bytes;

use super::{
    codec::HEADER_BYTES_MAX,
    frame::{DecodedFrame, RAW_BYTES_MAX, decompress},
    port::{EncodedFrame, LogError, OLD_FORMAT},
    salt::SALT_BYTES,
};

use decode::DecompressedBlock;
pub use dictionary::{Dictionary, Samples};
pub(super) use hashes::BlockHashes;
pub use pack::Packer;

/// The newest format version that this program reads, and the one it writes.
pub(crate) const FORMAT_VERSION: u8 = 2;
/// Length of a block's header, in bytes.
pub const HEADER_BYTES: usize = 48;
/// Target size of a block's bodies, in bytes; a record that would exceed it starts a new block.
/// Larger blocks compress better, but reading a single record takes longer.
pub(crate) const BODIES_BYTES_TARGET: usize = 64 * 1024;
/// Maximum number of records in a block.
pub const RECORDS_MAX: usize = 1024;
/// Maximum size of the header texts in a block (actors, correlation ids, keys), in bytes, unless a
/// single record has more.
const TEXTS_BYTES_MAX: usize = 128 * 1024;
/// Maximum size of a block's bodies, in bytes: the same limit as for frames.
const BODIES_BYTES_MAX: usize = RAW_BYTES_MAX;
/// Maximum size of a block's columns, in bytes: about 200 for each record, and the texts.
const COLUMNS_BYTES_MAX: usize = RECORDS_MAX * 256 + TEXTS_BYTES_MAX + HEADER_BYTES_MAX;
/// Maximum size of the uncompressed part, in bytes: for each record the low bytes of its id, its
/// check, four hashes, an id and two salts.
const PLAIN_BYTES_MAX: usize = RECORDS_MAX * (4 + CHECK_BYTES + 4 * 32 + 16 + 2 * SALT_BYTES);
/// Maximum stored size of a block, in bytes.
pub(crate) const STORED_BYTES_MAX: usize =
    HEADER_BYTES + COLUMNS_BYTES_MAX + PLAIN_BYTES_MAX + BODIES_BYTES_MAX;
/// Length of a record's check, in bytes: it is the beginning of the record's chain hash.
const CHECK_BYTES: usize = 8;

const MAGIC: [u8; 3] = *b"TRK";
const CODEC_NONE: u8 = 0;
const CODEC_ZSTD: u8 = 1;
const CODEC_DICTIONARY: u8 = 2;

/// Returns true when the bytes start with the magic number of blocks.
pub(super) fn is_block(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// The header of a block.
struct Header {
    first_offset: u64,
    count: usize,
    columns: Part,
    plain_len: usize,
    bodies: Part,
    /// CRC32C of the dictionary; 0 when none is needed.
    dictionary: u32,
}

/// How a part of a block is stored.
#[derive(Clone, Copy)]
struct Part {
    codec: u8,
    raw_len: usize,
    stored_len: usize,
}

impl Header {
    fn write(&self, out: &mut Vec<u8>) {
        // The limits of a block keep all of these far below u32::MAX.
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[FORMAT_VERSION, self.columns.codec, self.bodies.codec, 0, 0]);
        out.extend_from_slice(&self.first_offset.to_le_bytes());
        for word in [
            self.count,
            self.columns.raw_len,
            self.columns.stored_len,
            self.plain_len,
            self.bodies.raw_len,
            self.bodies.stored_len,
        ] {
            out.extend_from_slice(&(word as u32).to_le_bytes());
        }
        out.extend_from_slice(&self.dictionary.to_le_bytes());
    }

    fn read(frame: &EncodedFrame) -> Result<Self, LogError> {
        let damaged = |what: &str| LogError::damaged(frame.first_offset, what);
        let header: &[u8; HEADER_BYTES] = frame
            .bytes
            .first_chunk()
            .ok_or_else(|| damaged("block is shorter than its header"))?;
        let word = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        if header[..3] != MAGIC {
            return Err(damaged("block has a wrong magic number"));
        }
        if word(HEADER_BYTES - 4) != crc_of(&frame.bytes) {
            return Err(damaged("block CRC32C mismatch"));
        }
        if header[3] > FORMAT_VERSION {
            return Err(LogError::NewerFormat {
                offset: frame.first_offset,
                version: header[3],
                supported: FORMAT_VERSION,
            });
        }
        let part = |codec: u8, at: usize| Part {
            codec,
            raw_len: word(at) as usize,
            stored_len: word(at + 4) as usize,
        };
        let read = Self {
            first_offset: u64::from(word(8)) | u64::from(word(12)) << 32,
            count: word(16) as usize,
            columns: part(header[4], 20),
            plain_len: word(28) as usize,
            bodies: part(header[5], 32),
            dictionary: word(40),
        };
        if read.first_offset != frame.first_offset || read.count != frame.count as usize {
            return Err(damaged("block belongs at another offset"));
        }
        if header[3] < FORMAT_VERSION {
            return Err(damaged(OLD_FORMAT));
        }
        if header[6..8] != [0; 2] || !read.is_possible() {
            return Err(damaged("block header has invalid values"));
        }
        let lens = [
            read.columns.stored_len,
            read.plain_len,
            read.bodies.stored_len,
        ];
        if frame.bytes.len() != HEADER_BYTES + lens.iter().sum::<usize>() {
            return Err(damaged("block length differs from its header"));
        }
        Ok(read)
    }

    fn is_possible(&self) -> bool {
        (1..=RECORDS_MAX).contains(&self.count)
            && self.first_offset.checked_add(self.count as u64).is_some()
            && self.columns.raw_len <= COLUMNS_BYTES_MAX
            && self.columns.stored_len <= COLUMNS_BYTES_MAX
            && self.plain_len <= PLAIN_BYTES_MAX
            && self.bodies.raw_len <= BODIES_BYTES_MAX
            && self.bodies.stored_len <= BODIES_BYTES_MAX
            && self.columns.codec <= CODEC_ZSTD
            && self.bodies.codec <= CODEC_DICTIONARY
            && (self.bodies.codec == CODEC_DICTIONARY) == (self.dictionary != 0)
    }
}

/// Computes the CRC of a block that is at least as long as its header.
fn crc_of(bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(
        crc32c::crc32c(&bytes[..HEADER_BYTES - 4]),
        &bytes[HEADER_BYTES..],
    )
}

/// Checks a block and unpacks it, except for the hashes of its records, which are computed on
/// demand.
///
/// # Errors
/// [`LogError::Damaged`] when any bit is wrong, [`LogError::NewerFormat`] when a newer version
/// wrote it.
pub fn decode(frame: &EncodedFrame) -> Result<DecodedFrame, LogError> {
    let damaged = |what: &str| LogError::damaged(frame.first_offset, what);
    let header = Header::read(frame)?;
    let mut at = HEADER_BYTES;
    let mut next = |len: usize| {
        at += len;
        frame.bytes.slice(at - len..at)
    };
    let columns = next(header.columns.stored_len);
    let plain = next(header.plain_len);
    let bodies = next(header.bodies.stored_len);
    let dictionary = match (&frame.dictionary, header.bodies.codec) {
        (Some(dictionary), CODEC_DICTIONARY) if dictionary.crc() == header.dictionary => {
            Some(dictionary)
        }
        (_, CODEC_DICTIONARY) => {
            return Err(damaged("dictionary of a block is missing or damaged"));
        }
        _ => None,
    };
    let unpacked = DecompressedBlock {
        first_offset: header.first_offset,
        count: header.count,
        columns: unpack(header.columns, columns, None)
            .ok_or_else(|| damaged("block columns cannot be decompressed"))?,
        plain,
        bodies: unpack(header.bodies, bodies, dictionary)
            .ok_or_else(|| damaged("block bodies cannot be decompressed"))?,
    };
    let raw_bytes = memory_of(&unpacked, frame);
    let records = BlockHashes::records_of(unpacked).map_err(|what| {
        LogError::damaged(frame.first_offset, format!("block is corrupt: {what}"))
    })?;
    Ok(DecodedFrame {
        first_offset: header.first_offset,
        records,
        raw_bytes,
    })
}

/// Returns the memory that an unpacked block takes, in bytes. A part that is stored uncompressed is
/// a slice that keeps the whole block alive.
fn memory_of(unpacked: &DecompressedBlock, frame: &EncodedFrame) -> usize {
    let read = frame.bytes.as_ptr_range();
    let parts = [&unpacked.columns, &unpacked.plain, &unpacked.bodies];
    let (lent, own): (Vec<_>, Vec<_>) = parts
        .into_iter()
        .filter(|part| !part.is_empty())
        .partition(|part| read.contains(&part.as_ptr()));
    let own: usize = own.into_iter().map(Bytes::len).sum();
    own + if lent.is_empty() {
        0
    } else {
        frame.bytes.len()
    }
}

fn unpack(part: Part, stored: Bytes, dictionary: Option<&Arc<Dictionary>>) -> Option<Bytes> {
    let raw = match (part.codec, dictionary) {
        (CODEC_NONE, _) => stored,
        (CODEC_ZSTD, _) => decompress(&stored, part.raw_len).ok()?.into(),
        (_, Some(dictionary)) => dictionary.decompress(&stored, part.raw_len).ok()?.into(),
        (_, None) => return None,
    };
    (raw.len() == part.raw_len).then_some(raw)
}
