//! Encoding records into frames.

use std::{cell::RefCell, ops::Range, sync::LazyLock};

use bytes::Bytes;

use super::{
    CODEC_NONE, CODEC_ZSTD, FORMAT_VERSION, HEADER_BYTES, MAGIC, RAW_BYTES_MAX, RAW_BYTES_TARGET,
    STORED_BYTES_MAX,
};
use crate::{
    codec,
    port::{EncodedFrame, LogError},
    record::{Record, RecordBody},
    salt::FrameSalts,
};

const ZSTD_LEVEL: i32 = 1;
/// Minimum payload size to compress, in bytes: below it, the header of a zstd frame uses up the
/// savings.
pub(crate) const COMPRESS_BYTES_MIN: usize = 96;
/// Maximum number of bytes in a sample for the entropy check.
const SAMPLE_BYTES: usize = 4096;
/// Minimum number of bytes for the entropy check.
const SAMPLE_BYTES_MIN: usize = 512;
/// Above this entropy, in bits per byte, data counts as random or already compressed. Base64 has 6;
/// random bytes have over 7.5 even in the smallest sample.
const INCOMPRESSIBLE_BITS: f32 = 7.3;

thread_local! {
    /// Each thread reuses one context, because a context takes several hundred KiB.
    static COMPRESSOR: RefCell<Option<zstd::bulk::Compressor<'static>>> =
        const { RefCell::new(None) };
}

/// Packs records, the first of which has `first_offset`, into frames.
///
/// # Errors
/// [`LogError::TooLarge`] when a record exceeds what a frame can hold.
pub fn encode_group(first_offset: u64, records: &[Record]) -> Result<Vec<EncodedFrame>, LogError> {
    let mut noise = InPlace::with_room_for(records);
    let taken = noise.take(first_offset, records)?;
    let mut frames = noise.finish();
    let rest = &records[taken..];
    if !rest.is_empty() {
        frames.extend(encode_packed(first_offset + taken as u64, rest)?);
    }
    Ok(frames)
}

/// Packs records into one frame, even if it is larger than those of [`encode_group`].
///
/// # Errors
/// [`LogError::TooLarge`] when they exceed what a frame can hold.
pub(crate) fn encode_whole(
    first_offset: u64,
    records: &[Record],
) -> Result<EncodedFrame, LogError> {
    let mut raw = Vec::with_capacity(records.iter().map(bytes_about).sum());
    for record in records {
        encode_record(record, &mut raw)?;
    }
    let salts = salts(first_offset, records);
    if raw.len() > RAW_BYTES_MAX || salts.records < records.len() {
        return Err(LogError::TooLarge {
            what: "records of one frame",
            bytes: raw.len(),
            max: RAW_BYTES_MAX,
        });
    }
    let payload = Payload::of(&raw)?;
    let count = records.len();
    Ok(seal_frame(
        first_offset,
        count,
        &raw,
        &payload,
        &salts.salts,
    ))
}

fn encode_packed(first_offset: u64, records: &[Record]) -> Result<Vec<EncodedFrame>, LogError> {
    let mut raw = Vec::with_capacity(records.iter().map(bytes_about).sum());
    let mut ends = Vec::with_capacity(records.len());
    for record in records {
        encode_record(record, &mut raw)?;
        ends.push(raw.len());
    }
    pack(first_offset, records, &raw, &ends)
}

fn encode_record(record: &Record, out: &mut Vec<u8>) -> Result<(), LogError> {
    let start = out.len();
    codec::encode_record(record, out)?;
    let bytes = out.len() - start;
    if bytes > RAW_BYTES_MAX {
        return Err(LogError::TooLarge {
            what: "inline body and header",
            bytes,
            max: RAW_BYTES_MAX,
        });
    }
    Ok(())
}

/// Estimates a record's encoded size, in bytes. The estimate is an upper bound unless the header
/// has long texts.
fn bytes_about(record: &Record) -> usize {
    const HEADER_AND_HASHES: usize = 320;
    HEADER_AND_HASHES + record.body.here().len()
}

/// Frames of incompressible records: each record is written once, into one shared buffer, and not
/// copied again.
struct InPlace {
    out: Vec<u8>,
    frames: Vec<FrameAt>,
}

struct FrameAt {
    first_offset: u64,
    count: u32,
    range: Range<usize>,
}

impl InPlace {
    fn with_room_for(records: &[Record]) -> Self {
        let bytes = match records.first() {
            Some(first) if may_be_noise(first) => records.iter().map(bytes_about).sum(),
            _ => 0,
        };
        // Frames end where a record would not fit, so they may be half full.
        let headers = (2 * bytes / STORED_BYTES_MAX + 1) * HEADER_BYTES;
        Self {
            out: Vec::with_capacity(bytes + headers),
            frames: Vec::new(),
        }
    }

    /// Writes frames until one looks compressible. Returns the number of records written.
    fn take(&mut self, first_offset: u64, records: &[Record]) -> Result<usize, LogError> {
        let mut taken = 0;
        loop {
            let count = self.frame(first_offset + taken as u64, &records[taken..])?;
            if count == 0 {
                return Ok(taken);
            }
            taken += count;
        }
    }

    /// Writes one frame of the next records; returns 0 when they look compressible.
    fn frame(&mut self, first_offset: u64, records: &[Record]) -> Result<usize, LogError> {
        if !records.first().is_some_and(may_be_noise) {
            return Ok(0);
        }
        let start = self.out.len();
        self.out.resize(start + HEADER_BYTES, 0);
        let mut count = 0;
        let mut salts = FrameSalts::default();
        for record in records {
            let before = (self.out.len(), salts.bytes().len());
            encode_record(record, &mut self.out)?;
            let fits = salts.push(first_offset + count as u64, record.salt.as_ref());
            let bytes = self.out.len() - start + salts.bytes().len();
            if count > 0 && (!fits || bytes > STORED_BYTES_MAX) {
                self.out.truncate(before.0);
                salts.truncate(before.1);
                break;
            }
            count += 1;
        }
        let (head, payload) = self.out[start..].split_at_mut(HEADER_BYTES);
        if !looks_incompressible(payload) {
            self.out.truncate(start);
            return Ok(0);
        }
        let head_of = PayloadHeader {
            codec: CODEC_NONE,
            first_offset,
            count: count as u32,
            raw_len: payload.len(),
            salts: salts.count(),
        };
        head_of.write(head, payload, salts.bytes());
        self.out.extend_from_slice(salts.bytes());
        self.frames.push(FrameAt {
            first_offset,
            count: count as u32,
            range: start..self.out.len(),
        });
        Ok(count)
    }

    fn finish(self) -> Vec<EncodedFrame> {
        let bytes = Bytes::from(self.out);
        let frame = |at: FrameAt| EncodedFrame {
            first_offset: at.first_offset,
            count: at.count,
            bytes: bytes.slice(at.range),
            dictionary: None,
        };
        self.frames.into_iter().map(frame).collect()
    }
}

/// Returns true when a record's body looks incompressible.
fn may_be_noise(record: &Record) -> bool {
    matches!(&record.body, RecordBody::Inline(body) if looks_incompressible(body))
}

/// Cuts encoded records into frames. The compression ratio of each frame determines where to cut
/// the next.
fn pack(
    first_offset: u64,
    records: &[Record],
    raw: &[u8],
    ends: &[usize],
) -> Result<Vec<EncodedFrame>, LogError> {
    let room = STORED_BYTES_MAX - HEADER_BYTES;
    let mut frames = Vec::new();
    let mut next = 0;
    let mut target = RAW_BYTES_TARGET;
    while next < ends.len() {
        let first = first_offset + next as u64;
        let mut bytes = run(ends, next, target);
        let salts = salts(first, &records[next..next + bytes.len]);
        if salts.records < bytes.len {
            bytes = Run::of(ends, next, salts.records);
        }
        let payload = Payload::of(&raw[bytes.range.clone()])?;
        let stored = payload.bytes(&raw[bytes.range.clone()]).len() + salts.salts.bytes().len();
        // A sixteenth of slack, because the next run may compress a little worse.
        let fitting = bytes.range.len() * room / stored.max(1) / 16 * 15;
        if stored > room && bytes.len > 1 {
            target = fitting.min(bytes.range.len() - 1);
            continue;
        }
        frames.push(seal_frame(
            first,
            bytes.len,
            &raw[bytes.range.clone()],
            &payload,
            &salts.salts,
        ));
        target = fitting.clamp(1, RAW_BYTES_TARGET);
        next += bytes.len;
    }
    Ok(frames)
}

/// The salts of a frame, and how many records they cover.
struct SaltedRecords {
    salts: FrameSalts,
    records: usize,
}

/// Collects the salts of as many records as fit in one frame.
fn salts(first_offset: u64, records: &[Record]) -> SaltedRecords {
    let mut salts = FrameSalts::default();
    let fit = |(offset, record): &(u64, &Record)| salts.push(*offset, record.salt.as_ref());
    let records = (first_offset..).zip(records).take_while(fit).count();
    SaltedRecords { salts, records }
}

struct Run {
    range: Range<usize>,
    len: usize,
}

impl Run {
    fn of(ends: &[usize], first: usize, len: usize) -> Self {
        let start = if first == 0 { 0 } else { ends[first - 1] };
        Self {
            range: start..ends[first + len - 1],
            len,
        }
    }
}

/// Returns the records from `first` on that fit in `target` bytes; at least one.
fn run(ends: &[usize], first: usize, target: usize) -> Run {
    let start = if first == 0 { 0 } else { ends[first - 1] };
    let fitting = ends[first..].partition_point(|end| end - start <= target);
    Run::of(ends, first, fitting.max(1))
}

pub(super) enum Payload {
    Raw,
    Zstd(Vec<u8>),
}

impl Payload {
    fn of(raw: &[u8]) -> Result<Self, LogError> {
        if raw.len() < COMPRESS_BYTES_MIN || looks_incompressible(raw) {
            return Ok(Self::Raw);
        }
        let packed = compress(raw).map_err(|e| LogError::from_io("compressing a frame", e))?;
        Ok(if packed.len() < raw.len() {
            Self::Zstd(packed)
        } else {
            Self::Raw
        })
    }

    fn bytes<'a>(&'a self, raw: &'a [u8]) -> &'a [u8] {
        match self {
            Self::Raw => raw,
            Self::Zstd(packed) => packed,
        }
    }
}

pub(crate) fn compress(raw: &[u8]) -> std::io::Result<Vec<u8>> {
    COMPRESSOR.with_borrow_mut(|slot| {
        let compressor = match slot {
            Some(compressor) => compressor,
            None => slot.insert(zstd::bulk::Compressor::new(ZSTD_LEVEL)?),
        };
        compressor.compress(raw)
    })
}

/// `n * log2(n)` for each count `n` that a sample can have; 0 for `n = 0`.
static N_LOG2_N: LazyLock<Vec<f32>> = LazyLock::new(|| {
    let of = |n: usize| n as f32 * (n.max(1) as f32).log2();
    (0..=SAMPLE_BYTES).map(of).collect()
});

/// Returns true when a sample spread over all bytes has a high entropy. Estimating this is cheaper
/// than trying to compress.
pub(crate) fn looks_incompressible(raw: &[u8]) -> bool {
    if raw.len() < SAMPLE_BYTES_MIN {
        return false;
    }
    let stride = raw.len().div_ceil(SAMPLE_BYTES);
    let mut counts = [0_u16; 256];
    for byte in raw.iter().step_by(stride) {
        counts[usize::from(*byte)] += 1;
    }
    let total = raw.len().div_ceil(stride);
    // The sum of -share * log2(share), with share = count / total.
    let own: f32 = counts
        .iter()
        .map(|count| N_LOG2_N[usize::from(*count)])
        .sum();
    let bits = (N_LOG2_N[total] - own) / total as f32;
    bits > INCOMPRESSIBLE_BITS
}

pub(super) fn seal_frame(
    first_offset: u64,
    count: usize,
    raw: &[u8],
    payload: &Payload,
    salts: &FrameSalts,
) -> EncodedFrame {
    let body = payload.bytes(raw);
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len() + salts.bytes().len());
    bytes.resize(HEADER_BYTES, 0);
    bytes.extend_from_slice(body);
    bytes.extend_from_slice(salts.bytes());
    let head = PayloadHeader {
        codec: match payload {
            Payload::Raw => CODEC_NONE,
            Payload::Zstd(_) => CODEC_ZSTD,
        },
        first_offset,
        // The limits of a frame keep count and lengths far below u32::MAX.
        count: count as u32,
        raw_len: raw.len(),
        salts: salts.count(),
    };
    head.write(&mut bytes[..HEADER_BYTES], body, salts.bytes());
    EncodedFrame {
        first_offset,
        count: count as u32,
        bytes: Bytes::from(bytes),
        dictionary: None,
    }
}

/// The fields of a frame's header.
struct PayloadHeader {
    codec: u8,
    first_offset: u64,
    count: u32,
    raw_len: usize,
    /// Number of salt nodes.
    salts: usize,
}

impl PayloadHeader {
    /// Writes the header into zeroed bytes, for a payload and salts as stored.
    fn write(&self, out: &mut [u8], payload: &[u8], salts: &[u8]) {
        out[..3].copy_from_slice(&MAGIC);
        out[3] = FORMAT_VERSION;
        out[4] = self.codec;
        // A frame has too few records for the cast to truncate.
        out[6..8].copy_from_slice(&(self.salts as u16).to_le_bytes());
        out[8..16].copy_from_slice(&self.first_offset.to_le_bytes());
        out[16..20].copy_from_slice(&self.count.to_le_bytes());
        out[20..24].copy_from_slice(&(self.raw_len as u32).to_le_bytes());
        out[24..28].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c(&out[..28]), payload);
        let crc = crc32c::crc32c_append(crc, salts);
        out[28..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
    }
}
