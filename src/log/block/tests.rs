//! Blocks as bytes: round trips, bounds, damage.

use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use crate::{
    frame::tests::{a_record, documented, hex_lines},
    record::{AppendKey, Record, RecordBody},
    salt::{KeySalt, Salt, SaltSource},
    testkit::samples,
};
use treering_domain::{ContentHash, ConversationId, EventId, Revision, TimestampMicros};

/// Packs records into blocks.
pub(super) fn pack(
    first_offset: u64,
    records: &[Record],
    dictionary: Option<&Arc<Dictionary>>,
) -> Vec<EncodedFrame> {
    let mut packer = Packer::new(first_offset, dictionary.cloned()).unwrap();
    let mut blocks = Vec::new();
    for record in records {
        blocks.extend(packer.push(record.clone()).unwrap());
    }
    blocks.extend(packer.finish().unwrap());
    blocks
}

fn unpack_all(blocks: &[EncodedFrame]) -> Vec<Record> {
    let blocks = blocks.iter().map(|block| decode(block).unwrap());
    blocks.flat_map(|block| block.records).collect()
}

/// Returns interleaved conversations, chained as an engine does it; some records have a causation
/// id, an idempotency key or an `occurred_at`.
pub(super) fn conversations(count: usize, body_bytes: usize) -> Vec<Record> {
    conversations_from(1, count, body_bytes)
}

/// Like `conversations`, with the salts of the offsets from `first_offset` on.
pub(super) fn conversations_from(
    first_offset: u64,
    count: usize,
    body_bytes: usize,
) -> Vec<Record> {
    let mut salts = SaltSource::default();
    let mut chains = [ContentHash::default(); 3];
    let mut causes: Vec<EventId> = vec![EventId::generate()];
    let mut records = Vec::new();
    for index in 0..count {
        let which = index * 7 % 3;
        let mut header = samples::header(index as u64 / 3 + 1);
        header.conversation = ConversationId(Uuid::from_u128(which as u128 + 1));
        header.revision = Revision(index as u64 / 3 + 1);
        header.actor = ["", "ada", "grace"][index % 3].to_owned();
        header.correlation_id = if index % 5 == 0 { "run 1" } else { "" }.to_owned();
        header.occurred_at = (index % 2 == 0).then_some(header.recorded_at);
        header.causation_id = (index % 4 == 0).then(|| causes[index / 2 % causes.len()]);
        causes.push(header.id);
        let body = samples::prose(body_bytes + index % 50);
        let hash = Record::hash_body(&body);
        let salt = KeySalt::random();
        let key = (index % 6 == 0).then(|| AppendKey {
            key: format!("batch {index}"),
            events: 6,
            content_hash: salt.hash(hash),
            salt: Some(salt),
            ends_at: (index % 12 == 0).then(|| TimestampMicros(header.recorded_at.0 + 1)),
        });
        let body = RecordBody::Inline(body);
        let salted = salts.at(first_offset + index as u64).hash(hash);
        let record = Record::seal(chains[which], header, body, salted, key).unwrap();
        chains[which] = record.chain_hash();
        records.push(record);
    }
    records
}

pub(super) fn dictionary() -> Arc<Dictionary> {
    let mut samples = Samples::default();
    for record in conversations(2_000, 400) {
        if let RecordBody::Inline(body) = &record.body {
            samples.push(body);
        }
    }
    Arc::new(Dictionary::train(&samples).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn records_round_trip(
        records in prop::collection::vec(a_record(), 1..120),
        first in 1_u64..1 << 60,
        hashes in any::<[u8; 32]>(),
    ) {
        // For any headers, bodies and underivable hashes, decoding returns what was encoded, and
        // offsets are consecutive.
        let mut records = records;
        for record in records.iter_mut().step_by(5) {
            if matches!(record.body, RecordBody::Inline(_)) {
                // Like a record whose body was erased.
                record.hashes = crate::record::Hashes::Known {
                    body: ContentHash(hashes),
                    chain: record.expected_chain_hash(ContentHash::default(), ContentHash(hashes)).unwrap(),
                };
            }
        }
        let blocks = pack(first, &records, None);
        let mut next = first;
        for block in &blocks {
            prop_assert_eq!(block.first_offset, next);
            prop_assert!(block.bytes.len() <= STORED_BYTES_MAX);
            next = block.last_offset() + 1;
        }
        prop_assert_eq!(next, first + records.len() as u64);
        let read = unpack_all(&blocks);
        for (read, record) in read.iter().zip(&records) {
            prop_assert!(read.hashes == record.hashes);
            prop_assert_eq!(read, record);
        }
        prop_assert_eq!(read.len(), records.len());
        // Packing the decoded records again gives the same bytes.
        prop_assert!(pack(first, &read, None) == blocks);
    }
}

#[test]
fn hashes_of_chained_events_are_not_stored() {
    // Hashes, 64 bytes per record, were a quarter of the log. Consecutive events store only 8 bytes
    // each, and decoding must return all hashes.
    let records = conversations_from(42, 1_000, 300);
    let with = dictionary();
    for dictionary in [None, Some(&with)] {
        let blocks = pack(42, &records, dictionary);
        assert!(blocks.len() > 2);
        let plain = DecompressedBlock::of(&blocks[1]);
        // Low bytes of ids, checks, one hash for each of three conversations, hashes and salts of
        // keys, causation ids, and a few salt nodes.
        let count = blocks[1].count as usize;
        let nodes = 2 * count.ilog2() as usize * 16;
        assert!(plain.len() < count * (4 + 8) + 3 * 32 + count / 6 * 49 + count / 4 * 17 + nodes);
        let mut chains = std::collections::HashMap::new();
        let read = unpack_all(&blocks);
        assert!(read == records);
        for record in &read {
            let previous = chains.entry(record.header.conversation).or_default();
            assert!(record.verify_chain(*previous));
            assert!(!record.verify_chain(ContentHash([9; 32])));
            *previous = record.chain_hash();
        }
    }
}

impl DecompressedBlock {
    fn of(block: &EncodedFrame) -> bytes::Bytes {
        let header = Header::read(block).unwrap();
        let at = HEADER_BYTES + header.columns.stored_len;
        block.bytes.slice(at..at + header.plain_len)
    }
}

#[test]
fn changed_record_with_a_valid_checksum_is_unsound() {
    // Even when the checksum is forged, the check of the changed record must fail.
    let records = conversations(60, 40);
    let block = pack(1, &records, None).remove(0);
    let header = Header::read(&block).unwrap();
    let mut bytes = block.bytes.to_vec();
    let checks = HEADER_BYTES + header.columns.stored_len + 4 * header.count;
    bytes[checks + 8 * 20] ^= 1;
    let forged = with_right_sum(&block, bytes);
    let read = decode(&forged).unwrap().records;
    for (index, (read, record)) in read.iter().zip(&records).enumerate() {
        assert_eq!(read.hashes.clone(), record.hashes);
        let sound = match &read.hashes {
            crate::record::Hashes::Block { of, index } => of.is_sound(*index),
            crate::record::Hashes::Known { .. } => false,
        };
        assert_eq!(sound, index != 20);
    }
}

pub(super) fn with_right_sum(block: &EncodedFrame, mut bytes: Vec<u8>) -> EncodedFrame {
    if bytes.len() >= HEADER_BYTES {
        let crc = crc_of(&bytes);
        bytes[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
    }
    EncodedFrame {
        bytes: bytes.into(),
        ..block.clone()
    }
}

#[test]
fn flipped_bit_is_damage() {
    // Flipping any bit of a block gives an error with the block's offset, never other records.
    let block = pack(7, &conversations(12, 60), None).remove(0);
    for at in 0..block.bytes.len() {
        let mut bytes = block.bytes.to_vec();
        bytes[at] ^= 1 << (at % 8);
        let damaged = EncodedFrame {
            bytes: bytes.into(),
            ..block.clone()
        };
        let error = crate::frame::decode(&damaged).unwrap_err();
        assert!(
            matches!(error, LogError::Damaged { offset: 7, .. }),
            "byte {at}: {error}"
        );
    }
}

#[test]
fn newer_version_is_reported_as_newer() {
    let block = pack(7, &conversations(2, 10), None).remove(0);
    let mut bytes = block.bytes.to_vec();
    bytes[3] = FORMAT_VERSION + 1;
    let error = decode(&with_right_sum(&block, bytes)).unwrap_err();
    assert!(
        matches!(
            error,
            LogError::NewerFormat {
                offset: 7,
                version: 3,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn block_with_another_dictionary_is_damage() {
    // With a different dictionary, zstd returns other bytes or fails; decoding must report damage
    // in both cases.
    let ours = dictionary();
    let mut samples = Samples::default();
    (0..900).for_each(|_| samples.push(&samples::prose(700)));
    let theirs = Arc::new(Dictionary::train(&samples).unwrap());
    let records = conversations(100, 300);
    let block = pack(3, &records, Some(&ours)).remove(0);
    for dictionary in [None, Some(theirs)] {
        let lost = EncodedFrame {
            dictionary,
            ..block.clone()
        };
        let error = decode(&lost).unwrap_err();
        assert!(
            matches!(error, LogError::Damaged { offset: 3, .. }),
            "{error}"
        );
    }
    assert!(decode(&block).unwrap().records[..] == records[..block.count as usize]);
}

#[test]
fn blocks_stay_within_their_limits() {
    // Bodies at the limit of frames, very many empty ones, and texts of the maximum length.
    let large: Vec<_> = [0, 1, 65_535, 65_536, 65_537, 250_000, 10]
        .map(samples::noisy_record)
        .to_vec();
    let empty = samples::records(3_000, 0);
    let mut wordy = samples::records(200, 10);
    for (index, record) in wordy.iter_mut().enumerate() {
        let mut header = record.header.clone();
        header.actor = index.to_string().repeat(1_500);
        header.correlation_id = "x".repeat(4_000);
        let body = record.body.clone();
        let hash = Salt::random().hash(Record::hash_body(body.here()));
        *record = Record::seal(ContentHash::default(), header, body, hash, None).unwrap();
    }
    for records in [large, empty, wordy] {
        let blocks = pack(1, &records, None);
        for block in &blocks {
            assert!(block.count as usize <= RECORDS_MAX);
            assert!(block.bytes.len() <= STORED_BYTES_MAX);
        }
        assert!(unpack_all(&blocks) == records);
    }
}

/// The block of the record in `docs/FORMAT.md`, as version 2 writes it.
const GOLDEN: &str = include_str!("golden_v2.hex");

#[test]
fn block_format_equals_the_golden_bytes() {
    // A written segment must stay readable for ever. The block is too small to be compressed,
    // because another zstd version may compress the same bytes differently.
    let block = pack(42, &[documented()], None).remove(0);
    assert_eq!(hex_lines(&block.bytes), GOLDEN);
    let golden: Vec<u8> = GOLDEN
        .split_whitespace()
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect();
    let golden = EncodedFrame {
        bytes: golden.into(),
        ..block
    };
    assert_eq!(decode(&golden).unwrap().records, [documented()]);
}

// The fuzz target starts from these seeds; they must be valid blocks.
#[test]
fn fuzz_seeds_are_decoded() {
    let folder = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/fixtures/fuzz/block"
    );
    let blocks = [
        pack(42, &[documented()], None).remove(0),
        pack(42, &conversations(9, 20), None).remove(0),
        hostile_tests::plain(&pack(42, &conversations(9, 20), None).remove(0)),
        pack(42, &conversations(200, 5), None).remove(0),
    ];
    for (number, block) in blocks.iter().enumerate() {
        let path = format!("{folder}/block{number}");
        if std::env::var_os("TREERING_WRITE_SEEDS").is_some() {
            std::fs::create_dir_all(folder).unwrap();
            let bytes = [&42_u64.to_le_bytes()[..], &block.bytes].concat();
            std::fs::write(&path, bytes).unwrap();
        }
        let bytes = std::fs::read(&path).unwrap();
        let seed = EncodedFrame {
            bytes: bytes[8..].to_vec().into(),
            ..block.clone()
        };
        assert_eq!(decode(&seed).unwrap().records.len(), block.count as usize);
    }
}
