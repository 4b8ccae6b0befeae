//! Frames and records as bytes: round trips, limits, and hostile input.

use bytes::Bytes;
use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use crate::{
    record::{AppendKey, BlobRef, RecordBody},
    salt::{FrameSalts, KeySalt, Salt, SaltSource},
    testkit::samples,
};
use treering_domain::{
    BranchId, ContentHash, ConversationId, EventHeader, EventId, Namespace, Revision,
    TimestampMicros,
};

fn a_header() -> impl Strategy<Value = EventHeader> {
    let ids = (
        any::<[u8; 16]>(),
        any::<[u8; 16]>(),
        any::<Option<[u8; 16]>>(),
    );
    let numbers = (any::<u64>(), any::<u64>(), any::<u16>());
    let times = (any::<i64>(), any::<Option<i64>>());
    let texts = ("[a-z_-][a-z._-]{0,63}", ".{0,40}", ".{0,40}");
    (ids, numbers, times, texts).prop_map(|(ids, numbers, times, texts)| EventHeader {
        id: EventId(Uuid::from_bytes(ids.0)),
        namespace: Namespace::new(&texts.0).unwrap(),
        conversation: ConversationId(Uuid::from_bytes(ids.1)),
        branch: BranchId(numbers.0),
        revision: Revision(numbers.1),
        kind: numbers.2,
        recorded_at: TimestampMicros(times.0),
        occurred_at: times.1.map(TimestampMicros),
        actor: texts.1,
        causation_id: ids.2.map(|id| EventId(Uuid::from_bytes(id))),
        correlation_id: texts.2,
    })
}

pub(crate) fn a_record() -> impl Strategy<Value = Record> {
    let body = prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 0..600).prop_map(|b| RecordBody::Inline(b.into())),
        2 => (0..5_000_usize).prop_map(|len| RecordBody::Inline(samples::prose(len))),
        1 => any::<([u8; 32], u64, u64)>().prop_map(|(hash, bytes_len, home_offset)| {
            RecordBody::Blob(BlobRef { hash: ContentHash(hash), bytes_len, home_offset })
        }),
    ];
    let salts = (any::<[u8; 16]>(), any::<Option<[u8; 16]>>());
    let key = (
        ".{1,30}",
        any::<u32>(),
        any::<[u8; 32]>(),
        any::<Option<i64>>(),
    );
    let key = prop::option::of(key.prop_map(|(key, events, hash, ends_at)| AppendKey {
        key,
        events,
        content_hash: ContentHash(hash),
        salt: None,
        ends_at: ends_at.map(TimestampMicros),
    }));
    let erased = prop::option::weighted(0.1, prop::collection::vec(any::<u8>(), 0..60));
    (a_header(), body, key, any::<[u8; 32]>(), salts, erased).prop_map(
        |(header, body, mut key, previous, (salt, key_salt), erased)| {
            let hash = match &body {
                RecordBody::Blob(blob) => blob.hash,
                _ => Record::hash_body(body.here()),
            };
            if let Some(key) = &mut key {
                key.salt = key_salt.map(KeySalt);
            }
            let salted = Salt::of(salt).hash(hash);
            let record = Record::seal(ContentHash(previous), header, body, salted, key).unwrap();
            match erased {
                Some(stub) => record.erased(stub.into()),
                None => record,
            }
        },
    )
}

fn decode_all(frames: &[EncodedFrame]) -> Result<Vec<Record>, LogError> {
    let mut records = Vec::new();
    for frame in frames {
        records.extend(decode(frame)?.records);
    }
    Ok(records)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn records_round_trip(
        records in prop::collection::vec(a_record(), 1..120),
        first in 1_u64..1 << 60,
    ) {
        // For any headers and bodies, decoding returns what was encoded, offsets are consecutive,
        // and frames stay within their limit.
        let frames = encode_group(first, &records).unwrap();
        let mut next = first;
        for frame in &frames {
            prop_assert_eq!(frame.first_offset, next);
            prop_assert!(frame.bytes.len() <= STORED_BYTES_MAX || frame.count == 1);
            next = frame.last_offset() + 1;
        }
        prop_assert_eq!(next, first + records.len() as u64);
        prop_assert_eq!(decode_all(&frames).unwrap(), records);
    }

    #[test]
    fn any_bytes_are_an_error(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        // Hostile bytes never cause a panic.
        let frame = EncodedFrame { first_offset: 1, count: 1, bytes: bytes.into(), dictionary: None };
        prop_assert!(decode(&frame).is_err());
    }

    #[test]
    fn hostile_bytes_with_a_valid_crc_are_an_error(
        payload in prop::collection::vec(any::<u8>(), 0..400),
        count in 1_u32..,
        codec in 0_u8..4,
        raw_len in any::<u32>(),
    ) {
        // A CRC can be forged to match: lengths and counts are not trusted.
        let frame = forged(&payload, count, codec, raw_len);
        prop_assert!(decode(&frame).is_err());
    }

    #[test]
    fn changed_record_with_a_valid_crc_never_panics(
        record in a_record(),
        at in any::<prop::sample::Index>(),
        to in any::<u8>(),
        cut in any::<bool>(),
    ) {
        // Tests the record codec: the frame has a valid CRC.
        let mut raw = Vec::new();
        codec::encode_record(&record, &mut raw).unwrap();
        let at = at.index(raw.len());
        if cut { raw.truncate(at) } else { raw[at] = to }
        let raw_len = raw.len() as u32;
        let _error_or_record = decode(&forged(&raw, 1, CODEC_NONE, raw_len));
    }

    #[test]
    fn chain_hash_covers_every_field(record in a_record(), previous in any::<[u8; 32]>()) {
        // No header or body can change, and no record can move, without breaking the chain.
        let previous = ContentHash(previous);
        prop_assume!(record.salt.is_some());
        let plain = match &record.body {
            RecordBody::Blob(blob) => blob.hash,
            body => Record::hash_body(body.here()),
        };
        let salted = record.salt.clone().unwrap().hash(plain);
        let sealed = Record::seal(
            previous, record.header.clone(), record.body.clone(), salted, record.append_key.clone(),
        ).unwrap();
        prop_assert!(sealed.verify_chain(previous));
        prop_assert!(!sealed.verify_chain(sealed.chain_hash()));
        let mut changed = sealed.clone();
        changed.header.actor.push('x');
        prop_assert!(!changed.verify_chain(previous));
        let mut changed = sealed.clone();
        changed.header.revision.0 ^= 1;
        prop_assert!(!changed.verify_chain(previous));
        let mut changed = sealed.clone();
        changed.body = RecordBody::Inline(Bytes::from_static(b"something else"));
        prop_assert!(!changed.verify_chain(previous));
        let mut changed = sealed.clone();
        changed.salt = Some(Salt::random());
        prop_assert!(!changed.verify_chain(previous));
        // The stub of an erased record stays in the chain.
        let erased = sealed.clone().erased(Bytes::from_static(b"a stub"));
        prop_assert!(erased.verify_chain(previous) && erased.body_hash() == sealed.body_hash());
        let mut changed = erased;
        changed.header.kind ^= 1;
        prop_assert!(!changed.verify_chain(previous));
    }
}

/// Builds a frame with a valid CRC around any payload.
fn forged(payload: &[u8], count: u32, codec: u8, raw_len: u32) -> EncodedFrame {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&[FORMAT_VERSION, codec, 0, 0, 0]);
    bytes.extend_from_slice(&1_u64.to_le_bytes());
    bytes.extend_from_slice(&count.to_le_bytes());
    bytes.extend_from_slice(&raw_len.to_le_bytes());
    bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes), payload);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes.extend_from_slice(payload);
    EncodedFrame {
        first_offset: 1,
        count,
        bytes: bytes.into(),
        dictionary: None,
    }
}

fn with_bytes(frame: &EncodedFrame, bytes: Vec<u8>) -> EncodedFrame {
    EncodedFrame {
        bytes: bytes.into(),
        ..frame.clone()
    }
}

#[test]
fn every_flipped_bit_and_truncation_is_an_error() {
    // A disk that changes or loses a byte anywhere in a frame must be detected, compressed or not.
    for records in [samples::records(3, 200), vec![samples::noisy_record(700)]] {
        let frame = encode_group(7, &records).unwrap().remove(0);
        let sound = frame.bytes.to_vec();
        for at in 0..sound.len() {
            for bit in 0..8 {
                let mut damaged = sound.clone();
                damaged[at] ^= 1 << bit;
                let damaged = with_bytes(&frame, damaged);
                assert!(decode(&damaged).is_err(), "{at}.{bit}");
                assert!(check(&damaged).is_err(), "{at}.{bit}");
            }
            let cut = with_bytes(&frame, sound[..at].to_vec());
            assert!(
                matches!(decode(&cut), Err(LogError::Damaged { offset: 7, .. })),
                "cut at {at}"
            );
            assert!(check(&cut).is_err(), "cut at {at}");
        }
        check(&frame).unwrap();
        let mut longer = sound;
        longer.push(0);
        assert!(decode(&with_bytes(&frame, longer)).is_err());
    }
}

#[test]
fn frames_are_filled_close_to_their_limit() {
    // A frame far below the limit wastes space in its redb pages; a frame above it takes twice the
    // space.
    for (records, fill) in [
        ((0..500).map(|_| samples::noisy_record(1024)).collect(), 85),
        (samples::records(2_000, 1024), 60),
        (
            (0..100)
                .map(|_| samples::noisy_record(5_000))
                .collect::<Vec<_>>(),
            70,
        ),
    ] {
        let frames = encode_group(1, &records).unwrap();
        let full = &frames[..frames.len() - 1];
        let stored: usize = full.iter().map(|frame| frame.bytes.len()).sum();
        let raw: usize = full.iter().map(|f| decode(f).unwrap().raw_bytes).sum();
        let room =
            (full.len() * STORED_BYTES_MAX).min(raw.div_ceil(RAW_BYTES_TARGET) * STORED_BYTES_MAX);
        let percent = stored * 100 / room;
        let by_raw = raw * 100 / (full.len() * RAW_BYTES_TARGET);
        assert!(
            percent.max(by_raw) >= fill,
            "{percent} %, by raw bytes {by_raw} %"
        );
        assert!(frames.iter().all(|f| f.bytes.len() <= STORED_BYTES_MAX));
    }
}

#[test]
fn salts_of_a_group_round_trip() {
    // Salts of one tree need one node per frame; salts of several trees need several nodes, in as
    // many frames as necessary: no record may get the salt of another tree.
    for noisy in [false, true] {
        let mut source = SaltSource::default();
        let mut records = Vec::new();
        for offset in 65_400..65_700_u64 {
            if [65_410, 65_411, 65_600].contains(&offset) {
                source.renew();
            }
            let body = match noisy {
                true => samples::noise(700),
                false => samples::prose(700),
            };
            let salted = source.at(offset).hash(Record::hash_body(&body));
            let body = RecordBody::Inline(body);
            let header = samples::header(offset);
            records.push(Record::seal(ContentHash::default(), header, body, salted, None).unwrap());
        }
        let frames = encode_group(65_400, &records).unwrap();
        let read = decode_all(&frames).unwrap();
        assert!(read == records);
        assert!(
            read.iter()
                .all(|record| record.verify_chain(ContentHash::default()))
        );
        let nodes = frames.iter().map(|frame| usize::from(frame.bytes[6]));
        assert!(
            nodes.clone().sum::<usize>() <= frames.len() + 4,
            "{nodes:?}"
        );
        // Encoding the decoded records again gives the same frames.
        assert!(encode_group(65_400, &read).unwrap() == frames);
    }
}

#[test]
fn large_record_gets_its_own_frame() {
    // A large record must not push its neighbours over the limit.
    let records = [
        samples::noisy_record(100),
        samples::noisy_record(64 * 1024),
        samples::noisy_record(100),
    ];
    let frames = encode_group(1, &records).unwrap();
    let counts: Vec<_> = frames.iter().map(|frame| frame.count).collect();
    assert_eq!(counts, [1, 1, 1]);
    assert_eq!(decode_all(&frames).unwrap(), records);
}

#[test]
fn oversized_header_is_refused_on_write() {
    // An oversized header must be refused when it is written, because it could not be read.
    let mut header = samples::header(1);
    header.actor = "x".repeat(100_000);
    let body = RecordBody::Inline(Bytes::new());
    let error = Record::seal(
        ContentHash::default(),
        header,
        body,
        Salt::random().hash(ContentHash::default()),
        None,
    );
    assert!(matches!(error, Err(LogError::TooLarge { .. })), "{error:?}");
    let error = encode_group(1, &[samples::noisy_record(RAW_BYTES_MAX)]);
    assert!(matches!(error, Err(LogError::TooLarge { .. })), "{error:?}");
}

#[test]
fn newer_version_is_not_reported_as_damage() {
    // A newer format must not be reported as damage: the user needs a newer program then, not a
    // backup.
    let frame = encode_group(1, &samples::records(1, 10)).unwrap().remove(0);
    let mut newer = frame.bytes.to_vec();
    newer[3] = FORMAT_VERSION + 1;
    // A flipped bit looks the same, but its CRC does not match.
    let error = decode(&with_bytes(&frame, newer.clone()));
    assert!(matches!(error, Err(LogError::Damaged { .. })), "{error:?}");
    let crc = super::crc_of(&newer).to_le_bytes();
    newer[28..32].copy_from_slice(&crc);
    let error = decode(&with_bytes(&frame, newer));
    assert!(matches!(
        error,
        Err(LogError::NewerFormat { version: 3, .. })
    ));
}

/// Returns the record in `docs/FORMAT.md`.
pub(crate) fn documented() -> Record {
    let body = Bytes::from_static(b"\x12\x09Be brief.");
    let mut header = samples::header(1);
    header.id = EventId(Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0001));
    header.conversation =
        ConversationId(Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_00c1));
    header.kind = 26;
    header.recorded_at = TimestampMicros(1_750_000_000_000_000);
    header.actor = "ann".to_owned();
    let hash = Record::hash_body(&body);
    let key_salt = KeySalt(*b"salt of the key.");
    let key = AppendKey {
        key: "k1".to_owned(),
        events: 1,
        content_hash: key_salt.hash(hash),
        salt: Some(key_salt),
        ends_at: None,
    };
    Record::seal(
        ContentHash::default(),
        header,
        RecordBody::Inline(body),
        Salt::of(*b"salt of the body").hash(hash),
        Some(key),
    )
    .unwrap()
}

/// The frame in `docs/FORMAT.md`, as version 2 writes it.
const GOLDEN: &str = include_str!("golden_v2.hex");

pub(crate) fn hex_lines(bytes: &[u8]) -> String {
    let line = |chunk: &[u8]| {
        let hex: Vec<_> = chunk.iter().map(|byte| format!("{byte:02x}")).collect();
        hex.join(" ") + "\n"
    };
    bytes.chunks(16).map(line).collect()
}

#[test]
fn frame_format_equals_the_golden_bytes() {
    // A written log must stay readable for ever. These bytes were written by version 2; if this
    // fails, a released format was changed. Not compressed, because another zstd version may
    // compress the same bytes differently.
    let mut raw = Vec::new();
    let record = documented();
    codec::encode_record(&record, &mut raw).unwrap();
    let mut salts = FrameSalts::default();
    assert!(salts.push(42, record.salt.as_ref()));
    let frame = seal_frame(42, 1, &raw, &Payload::Raw, &salts);
    assert_eq!(hex_lines(&frame.bytes), GOLDEN);
    let golden: Vec<u8> = GOLDEN
        .split_whitespace()
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect();
    let frame = EncodedFrame {
        first_offset: 42,
        count: 1,
        bytes: golden.into(),
        dictionary: None,
    };
    assert_eq!(decode(&frame).unwrap().records, [documented()]);
}
