//! Blocks of arbitrary bytes are read or refused, without a panic and without using more memory
//! than the bytes justify.

use allocation_counter::measure;
use proptest::prelude::*;

use super::{
    tests::{conversations, pack, with_right_sum},
    *,
};

/// Memory allowed for each byte of an unpacked block.
const EACH_BYTE_MAX: u64 = 32;
/// Memory allowed for records of the minimum size, and for the maximum of their texts.
const BASE_BYTES_MAX: u64 = (TEXTS_BYTES_MAX + HEADER_BYTES_MAX) as u64 * 2 + (64 << 10);

/// Sets a valid checksum, decodes the block, computes the hashes, and checks the memory used.
fn probe(block: &EncodedFrame, bytes: Vec<u8>) -> bool {
    let unpacked: usize = [20, 32]
        .iter()
        .filter_map(|at| bytes.get(*at..at + 4))
        .map(|word| u32::from_le_bytes(word.try_into().unwrap()) as usize)
        .map(|len| len.min(COLUMNS_BYTES_MAX))
        .sum();
    let len = bytes.len();
    let block = with_right_sum(block, bytes);
    let mut read = false;
    let took = measure(|| {
        if let Ok(decoded) = decode(&block) {
            read = true;
            for record in decoded.records {
                let _hash = record.chain_hash();
            }
        }
    });
    let max = BASE_BYTES_MAX + EACH_BYTE_MAX * (len + unpacked) as u64;
    assert!(took.bytes_max <= max, "{} bytes for {len}", took.bytes_max);
    read
}

fn small() -> EncodedFrame {
    pack(42, &conversations(9, 20), None).remove(0)
}

/// Returns the same block uncompressed, so that changed bytes reach the decoder and not zstd.
pub(super) fn plain(block: &EncodedFrame) -> EncodedFrame {
    let header = Header::read(block).unwrap();
    let at = HEADER_BYTES + header.columns.stored_len;
    let columns = unpack(header.columns, block.bytes.slice(HEADER_BYTES..at), None).unwrap();
    let rest = block.bytes.slice(at..at + header.plain_len);
    let bodies = block.bytes.slice(at + header.plain_len..);
    let bodies = unpack(header.bodies, bodies, None).unwrap();
    let part = |raw: &Bytes| Part {
        codec: CODEC_NONE,
        raw_len: raw.len(),
        stored_len: raw.len(),
    };
    let header = Header {
        columns: part(&columns),
        bodies: part(&bodies),
        ..header
    };
    let mut bytes = Vec::new();
    header.write(&mut bytes);
    bytes.extend_from_slice(&[0; 4]);
    for part in [columns, rest, bodies] {
        bytes.extend_from_slice(&part);
    }
    with_right_sum(block, bytes)
}

// A large length in damaged bytes must not be trusted. The test writes each length at each
// position.
#[test]
fn false_lengths_are_not_trusted() {
    for block in [small(), plain(&small())] {
        assert!(probe(&block, block.bytes.to_vec()));
        for at in 0..block.bytes.len() - 8 {
            for claim in [
                u64::MAX,
                1 << 62,
                1 << 40,
                0x80_8080_8080,
                1 << 20,
                1023,
                300,
            ] {
                let mut bytes = block.bytes.to_vec();
                bytes[at..at + 8].copy_from_slice(&u64::to_le_bytes(claim));
                probe(&block, bytes);
            }
        }
        for len in 0..block.bytes.len() {
            probe(&block, block.bytes[..len].to_vec());
        }
    }
}

// A long text that every record references must be refused: each record would get a copy.
#[test]
fn repeated_long_text_is_refused() {
    let mut records = crate::testkit::samples::records(1_000, 0);
    for record in &mut records {
        record.header.actor = "x".repeat(10_000);
    }
    let parts = encode::BlockEncoder::parts(1, &records).unwrap();
    let unpacked = DecompressedBlock {
        first_offset: 1,
        count: records.len(),
        columns: parts.columns.into(),
        plain: parts.plain.into(),
        bodies: parts.bodies.into(),
    };
    assert!(BlockHashes::records_of(unpacked).is_err());
}

proptest! {
    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        // The bytes alone, and after a valid block header.
        let block = small();
        let behind = [&block.bytes[..HEADER_BYTES], &bytes].concat();
        probe(&block, bytes);
        probe(&block, behind);
    }

    #[test]
    fn changed_blocks_are_decoded_or_refused(
        unpacked in any::<bool>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let block = if unpacked { plain(&small()) } else { small() };
        let mut bytes = block.bytes.to_vec();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        probe(&block, bytes);
    }
}
