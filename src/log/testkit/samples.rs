//! Records and bodies to fill a log with.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use uuid::Uuid;

use crate::{
    domain::{
        BranchId, ContentHash, ConversationId, EventHeader, EventId, Namespace, Revision,
        TimestampMicros,
    },
    log::{
        frame,
        port::FrameBatch,
        record::{Record, RecordBody},
        salt::Salt,
    },
};

static SEED: AtomicU64 = AtomicU64::new(1);

/// A small generator: tests need many bytes, not good ones.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }
}

fn random() -> Random {
    Random(SEED.fetch_add(1, Ordering::Relaxed) << 20)
}

/// Bytes that do not pack.
pub fn noise(bytes: usize) -> Bytes {
    let mut random = random();
    let mut out = Vec::with_capacity(bytes + 8);
    while out.len() < bytes {
        out.extend_from_slice(&random.next().to_le_bytes());
    }
    out.truncate(bytes);
    Bytes::from(out)
}

/// Bytes that pack about as text does.
pub fn prose(bytes: usize) -> Bytes {
    const WORDS: [&str; 12] = [
        "the ",
        "log ",
        "keeps ",
        "what ",
        "a ",
        "tool ",
        "returned ",
        "once, ",
        "whole ",
        "and ",
        "in ",
        "order.\n",
    ];
    let mut random = random();
    let mut out = Vec::with_capacity(bytes + 16);
    while out.len() < bytes {
        out.extend_from_slice(WORDS[random.below(WORDS.len() as u64) as usize].as_bytes());
    }
    out.truncate(bytes);
    Bytes::from(out)
}

/// The header of an event at this revision.
pub fn header(revision: u64) -> EventHeader {
    EventHeader {
        id: EventId::generate(),
        namespace: Namespace::default(),
        conversation: ConversationId(Uuid::from_u128(7)),
        branch: BranchId::MAIN,
        revision: Revision(revision),
        kind: 9,
        recorded_at: TimestampMicros(1_700_000_000_000_000 + revision.cast_signed()),
        occurred_at: None,
        actor: String::new(),
        causation_id: None,
        correlation_id: String::new(),
    }
}

fn inline(revision: u64, body: Bytes) -> Record {
    let hash = Record::hash_body(&body);
    Record::seal(
        ContentHash::default(),
        header(revision),
        RecordBody::Inline(body),
        Salt::random().hash(hash),
        None,
    )
    .unwrap()
}

/// Records with text bodies of this size, in bytes.
///
/// # Panics
/// When a record cannot be sealed, which is a fault.
pub fn records(count: usize, body_bytes: usize) -> Vec<Record> {
    (1..=count as u64)
        .map(|revision| inline(revision, prose(body_bytes)))
        .collect()
}

/// A record whose body does not pack.
///
/// # Panics
/// As [`records`].
pub fn noisy_record(body_bytes: usize) -> Record {
    inline(1, noise(body_bytes))
}

/// A batch without blobs, its first record at this offset.
///
/// # Panics
/// When the records cannot be encoded, which is a fault.
pub fn batch(first_offset: u64, records: &[Record]) -> FrameBatch {
    FrameBatch {
        frames: frame::encode_group(first_offset, records).unwrap(),
        blobs: Vec::new(),
    }
}
