//! Frames and records of arbitrary bytes are read or refused, without a panic and without using
//! more memory than the bytes justify.

use allocation_counter::measure;
use proptest::prelude::*;

use super::*;
use crate::{salt::FrameSalts, testkit::samples};

/// Memory allowed for each byte of unpacked records: a record of the minimum size takes about a
/// hundred bytes in memory.
const EACH_BYTE_MAX: u64 = 16;
/// Memory allowed for an error's text and small allocations.
const BASE_BYTES_MAX: u64 = 4 << 10;

/// Decodes a frame and checks the memory used. A compressed frame may unpack to the size in its
/// header, which is bounded.
fn probe(bytes: &[u8], count: u32) -> bool {
    let frame = EncodedFrame {
        first_offset: 42,
        count,
        bytes: with_right_sum(bytes),
        dictionary: None,
    };
    let mut read = false;
    let took = measure(|| read = decode(&frame).is_ok()).bytes_max;
    let packed = bytes.get(4) == Some(&CODEC_ZSTD);
    let unpacked = if packed { RAW_BYTES_MAX } else { 0 };
    let max = BASE_BYTES_MAX + EACH_BYTE_MAX * (bytes.len() + unpacked) as u64;
    assert!(took <= max, "{took} bytes for {}: {bytes:?}", bytes.len());
    read
}

/// Replaces the CRC32C by a valid one, so that the code behind the check is tested.
fn with_right_sum(bytes: &[u8]) -> Bytes {
    let mut bytes = bytes.to_vec();
    if bytes.len() >= HEADER_BYTES {
        let sum = crc32c::crc32c(&bytes[..HEADER_BYTES - 4]);
        let sum = crc32c::crc32c_append(sum, &bytes[HEADER_BYTES..]);
        bytes[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
    }
    bytes.into()
}

/// Frames as written: a small uncompressed one and a compressed one.
fn frames() -> Vec<EncodedFrame> {
    let mut plain = samples::records(1, 20);
    plain[0].header.actor = "someone".to_owned();
    let small = pack_plain(&plain);
    let packed = encode_group(42, &samples::records(20, 300)).unwrap();
    vec![small, packed[0].clone()]
}

/// Encodes an uncompressed frame.
fn pack_plain(records: &[Record]) -> EncodedFrame {
    let mut raw = Vec::new();
    for record in records {
        codec::encode_record(record, &mut raw).unwrap();
    }
    let mut salts = FrameSalts::default();
    for (offset, record) in (42..).zip(records) {
        assert!(salts.push(offset, record.salt.as_ref()));
    }
    seal_frame(42, records.len(), &raw, &Payload::Raw, &salts)
}

// A large length in damaged bytes must not be trusted. The test writes each length at each
// position.
#[test]
fn false_lengths_are_not_trusted() {
    for frame in frames() {
        assert!(probe(&frame.bytes, frame.count));
        for at in 0..frame.bytes.len() - 8 {
            for claim in [u64::MAX, 1 << 62, 1 << 40, 1 << 20, 15_000, 300] {
                let mut bytes = frame.bytes.to_vec();
                bytes[at..at + 8].copy_from_slice(&claim.to_le_bytes());
                probe(&bytes, frame.count);
            }
        }
        for len in 0..frame.bytes.len() {
            probe(&frame.bytes[..len], frame.count);
        }
    }
}

// The record count in the header must not be trusted: the payload has only zero bytes.
#[test]
fn false_record_counts_are_refused() {
    let raw = vec![0; RAW_BYTES_MAX];
    for count in [1, RAW_BYTES_MAX / codec::RECORD_BYTES_MIN, 1 << 20] {
        let frame = seal_frame(42, count, &raw, &Payload::Raw, &FrameSalts::default());
        assert!(!probe(&frame.bytes, count as u32));
    }
}

proptest! {
    #[test]
    fn any_bytes_are_decoded_or_refused(
        start in 0..2_usize,
        bytes in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        // The bytes alone, and after a valid frame header.
        let frame = frames().swap_remove(start);
        let behind = [&frame.bytes[..HEADER_BYTES], &bytes].concat();
        probe(&bytes, 1);
        probe(&behind, frame.count);
    }

    #[test]
    fn changed_frames_are_decoded_or_refused(
        which in 0..2_usize,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let frame = frames().swap_remove(which);
        let mut bytes = frame.bytes.to_vec();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        probe(&bytes, frame.count);
    }
}
