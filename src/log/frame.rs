//! Frames: records packed together, the unit that every backend stores.
//!
//! A frame is a 32-byte header followed by the records, compressed together if that makes them
//! smaller. See `docs/FORMAT.md` for the byte format.

mod encode;

use std::{cell::RefCell, sync::Arc};

use bytes::Bytes;

use super::{
    block, codec,
    port::{EncodedFrame, LogError},
    record::{Record, RecordBody},
    salt::{NODE_BYTES, Salt, SaltNode},
};
pub(super) use encode::COMPRESS_BYTES_MIN;
pub(crate) use encode::compress;
pub use encode::encode_group;
#[cfg(test)]
use encode::{Payload, seal_frame};
pub(crate) use encode::{encode_whole, looks_incompressible};

/// The newest format version that this program reads, and the one it writes.
pub const FORMAT_VERSION: u8 = 2;
/// Length of a frame's header, in bytes.
pub const HEADER_BYTES: usize = 32;
/// Maximum stored size of a frame, header included, in bytes. redb rounds a value up to a power of
/// two of its 4 KiB pages, so such a frame takes at most 32 KiB. A larger record gets a frame of
/// its own.
pub(crate) const STORED_BYTES_MAX: usize = 28 * 1024;
/// Records are packed into a frame up to about this size before compression, in bytes.
pub(crate) const RAW_BYTES_TARGET: usize = 64 * 1024;
/// Maximum unpacked size of a frame, in bytes, even if it has only one record.
pub const RAW_BYTES_MAX: usize = 256 * 1024;
/// Maximum number of records in a frame: as many of the smallest records as fit in the largest
/// frame.
pub const FRAME_RECORDS_MAX: u64 = (RAW_BYTES_MAX / codec::RECORD_BYTES_MIN) as u64;

const MAGIC: [u8; 3] = *b"TRF";
const CODEC_NONE: u8 = 0;
const CODEC_ZSTD: u8 = 1;
thread_local! {
    /// One context per thread, because each takes several hundred KiB.
    static DECOMPRESSOR: RefCell<Option<zstd::bulk::Decompressor<'static>>> =
        const { RefCell::new(None) };
}

/// The records of a frame.
#[derive(Clone, Debug, PartialEq)]
pub struct DecodedFrame {
    /// Offset of the first record.
    pub first_offset: u64,
    /// The records in order.
    pub records: Vec<Record>,
    /// Their unpacked size, in bytes; their bodies share one buffer of this size.
    pub raw_bytes: usize,
}

impl DecodedFrame {
    /// Returns the offset of the last record.
    #[must_use]
    pub fn last_offset(&self) -> u64 {
        (self.first_offset + self.records.len() as u64).saturating_sub(1)
    }

    /// Returns the record at an offset, if it is in this frame.
    #[must_use]
    pub fn record(&self, offset: u64) -> Option<&Record> {
        let index = offset.checked_sub(self.first_offset)?;
        self.records.get(usize::try_from(index).ok()?)
    }
}

pub(crate) fn decompress(packed: &[u8], raw_len: usize) -> std::io::Result<Vec<u8>> {
    DECOMPRESSOR.with_borrow_mut(|slot| {
        let decompressor = match slot {
            Some(decompressor) => decompressor,
            None => slot.insert(zstd::bulk::Decompressor::new()?),
        };
        decompressor.decompress(packed, raw_len)
    })
}

/// A frame's header, which can be read without the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    /// Offset of the first record.
    pub(crate) first_offset: u64,
    /// Number of records.
    pub(crate) count: u32,
    codec: u8,
    /// Number of salt nodes after the payload.
    salts: usize,
    raw_len: usize,
    payload_len: usize,
    crc: u32,
}

impl FrameHeader {
    /// Reads the header of a frame that is stored under `first_offset`. Does not check the CRC;
    /// [`decode`] does.
    ///
    /// # Errors
    /// [`LogError::Damaged`] or [`LogError::NewerFormat`].
    pub(crate) fn read(first_offset: u64, bytes: &[u8]) -> Result<Self, LogError> {
        let damaged = |what: &str| LogError::damaged(first_offset, what);
        let header: &[u8; HEADER_BYTES] = bytes
            .first_chunk()
            .ok_or_else(|| damaged("frame is shorter than its header"))?;
        if header[..3] != MAGIC {
            return Err(damaged("frame has a wrong magic number"));
        }
        // Every version keeps the CRC in the same place: a flipped bit must not look like a newer
        // version.
        if header[3] > FORMAT_VERSION && stored_crc(header) != crc_of(bytes) {
            return Err(damaged("frame CRC32C mismatch"));
        }
        if header[3] > FORMAT_VERSION {
            return Err(LogError::NewerFormat {
                offset: first_offset,
                version: header[3],
                supported: FORMAT_VERSION,
            });
        }
        let word = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let read = Self {
            first_offset: u64::from(word(8)) | u64::from(word(12)) << 32,
            count: word(16),
            codec: header[4],
            salts: usize::from(u16::from_le_bytes([header[6], header[7]])),
            raw_len: word(20) as usize,
            payload_len: word(24) as usize,
            crc: word(28),
        };
        if read.first_offset != first_offset {
            return Err(damaged("frame belongs at another offset"));
        }
        if header[3] < FORMAT_VERSION {
            return Err(damaged(super::port::OLD_FORMAT));
        }
        if read.count == 0 || header[5] != 0 {
            return Err(damaged("frame header has invalid values"));
        }
        Ok(read)
    }
}

/// Returns the CRC in a header.
fn stored_crc(header: &[u8; HEADER_BYTES]) -> u32 {
    u32::from_le_bytes([header[28], header[29], header[30], header[31]])
}

/// Computes the CRC of a frame that is at least as long as its header.
fn crc_of(bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(
        crc32c::crc32c(&bytes[..HEADER_BYTES - 4]),
        &bytes[HEADER_BYTES..],
    )
}

/// Checks and unpacks a frame or a block.
///
/// # Errors
/// [`LogError::Damaged`] when any bit is wrong, [`LogError::NewerFormat`] when a newer version
/// wrote it.
pub fn decode(frame: &EncodedFrame) -> Result<DecodedFrame, LogError> {
    if block::is_block(&frame.bytes) {
        return block::decode(frame);
    }
    let (header, salts) = checked_header(frame)?;
    let raw = unpack(&header, frame.bytes.slice(HEADER_BYTES..salts))?;
    let mut records = decode_records(&header, &raw)?;
    assign_salts(&header, &frame.bytes[salts..], &mut records)?;
    Ok(DecodedFrame {
        first_offset: header.first_offset,
        records,
        raw_bytes: raw.len(),
    })
}

/// Checks a frame's header and checksum without unpacking it; a block is unpacked. For backends
/// that report damage when they read.
///
/// # Errors
/// As [`decode`].
pub fn check(frame: &EncodedFrame) -> Result<(), LogError> {
    if block::is_block(&frame.bytes) {
        return block::decode(frame).map(drop);
    }
    checked_header(frame).map(drop)
}

/// Returns the header of a frame with a correct checksum, and where its salts begin.
fn checked_header(frame: &EncodedFrame) -> Result<(FrameHeader, usize), LogError> {
    let damaged = |what: &str| LogError::damaged(frame.first_offset, what);
    let header = FrameHeader::read(frame.first_offset, &frame.bytes)?;
    let salts = HEADER_BYTES.saturating_add(header.payload_len);
    if frame.bytes.len() != salts.saturating_add(header.salts * NODE_BYTES) {
        return Err(damaged("frame length differs from its header"));
    }
    if crc_of(&frame.bytes) != header.crc {
        return Err(damaged("frame CRC32C mismatch"));
    }
    if header.count != frame.count {
        return Err(damaged("frame's record count differs from its header"));
    }
    Ok((header, salts))
}

/// Returns true when the start of a frame or block occurs anywhere in the bytes.
pub(crate) fn contains_frame(bytes: &[u8]) -> bool {
    let mut start = MAGIC.to_vec();
    start.push(FORMAT_VERSION);
    bytes
        .windows(start.len())
        .any(|window| window == start || block::is_block(window))
}

fn unpack(header: &FrameHeader, payload: Bytes) -> Result<Bytes, LogError> {
    let damaged = |what: &str| LogError::damaged(header.first_offset, what);
    if header.raw_len > RAW_BYTES_MAX {
        return Err(damaged("frame's stated size exceeds the maximum"));
    }
    let raw = match header.codec {
        CODEC_NONE => payload,
        CODEC_ZSTD => decompress(&payload, header.raw_len)
            .map(Bytes::from)
            .map_err(|_| damaged("frame cannot be decompressed"))?,
        _ => return Err(damaged("frame has an unknown codec")),
    };
    if raw.len() != header.raw_len {
        return Err(damaged(
            "frame decompresses to another length than its header states",
        ));
    }
    Ok(raw)
}

fn decode_records(header: &FrameHeader, raw: &Bytes) -> Result<Vec<Record>, LogError> {
    let count = header.count as usize;
    if count > raw.len() / codec::RECORD_BYTES_MIN {
        return Err(LogError::damaged(
            header.first_offset,
            "frame states more records than it can hold",
        ));
    }
    let mut records = Vec::with_capacity(count);
    let mut at = 0;
    let mut reader = codec::RecordReader::default();
    for index in 0..count {
        let record = reader.read(raw, &mut at).map_err(|error| {
            LogError::damaged(header.first_offset + index as u64, error.to_string())
        })?;
        records.push(record);
    }
    if at != raw.len() {
        return Err(LogError::damaged(
            header.first_offset,
            "bytes follow the last record of a frame",
        ));
    }
    Ok(records)
}

/// Assigns the stored salts to the records that have a salt; all salts must be used.
fn assign_salts(
    header: &FrameHeader,
    nodes: &[u8],
    records: &mut [Record],
) -> Result<(), LogError> {
    let (nodes, _) = nodes.as_chunks::<NODE_BYTES>();
    let mut nodes = nodes.iter();
    let mut last: Option<Arc<SaltNode>> = None;
    for (offset, record) in (header.first_offset..).zip(records) {
        if matches!(record.body, RecordBody::Stub(_)) {
            continue;
        }
        let node = match last.take().filter(|node| node.covers(offset)) {
            Some(node) => node,
            None => next_node(&mut nodes, offset)?,
        };
        record.salt = Some(Salt::below(&node, offset));
        last = Some(node);
    }
    if nodes.len() > 0 {
        return Err(LogError::damaged(
            header.first_offset,
            "frame has more salts than records",
        ));
    }
    Ok(())
}

fn next_node(
    nodes: &mut std::slice::Iter<'_, [u8; NODE_BYTES]>,
    offset: u64,
) -> Result<Arc<SaltNode>, LogError> {
    let damaged = |what: &str| LogError::damaged(offset, what);
    let [height, key @ ..] = nodes
        .next()
        .ok_or_else(|| damaged("frame has too few salts"))?;
    let node = SaltNode::new(offset, *height, *key);
    let node = node.ok_or_else(|| damaged("frame has an invalid salt"))?;
    Ok(Arc::new(node))
}

#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
pub(super) mod tests;
