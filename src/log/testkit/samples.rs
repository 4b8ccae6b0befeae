//! Sample records and bodies.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use uuid::Uuid;

use crate::{
    frame,
    port::FrameBatch,
    record::{Record, RecordBody},
    salt::Salt,
};
use treering_domain::{
    BranchId, ContentHash, ConversationId, EventHeader, EventId, Namespace, Revision,
    TimestampMicros,
};

static SEED: AtomicU64 = AtomicU64::new(1);

/// A small pseudo-random generator (SplitMix64): tests need many bytes, not good ones.
pub struct Random(pub u64);

impl Random {
    /// Returns the next number. Not an iterator, because it never ends.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below a bound.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }
}

fn random() -> Random {
    Random(SEED.fetch_add(1, Ordering::Relaxed) << 20)
}

/// Returns incompressible bytes.
pub fn noise(bytes: usize) -> Bytes {
    let mut random = random();
    let mut out = Vec::with_capacity(bytes + 8);
    while out.len() < bytes {
        out.extend_from_slice(&random.next().to_le_bytes());
    }
    out.truncate(bytes);
    Bytes::from(out)
}

/// Returns bytes that compress about as well as text.
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

/// Returns the header of an event at this revision.
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

/// Returns records with text bodies of this size, in bytes.
///
/// # Panics
/// When a record cannot be sealed, which is a bug.
pub fn records(count: usize, body_bytes: usize) -> Vec<Record> {
    (1..=count as u64)
        .map(|revision| inline(revision, prose(body_bytes)))
        .collect()
}

/// Returns a record with an incompressible body.
///
/// # Panics
/// As [`records`].
pub fn noisy_record(body_bytes: usize) -> Record {
    inline(1, noise(body_bytes))
}

/// Returns a batch without blobs, its first record at this offset.
///
/// # Panics
/// When the records cannot be encoded, which is a bug.
pub fn batch(first_offset: u64, records: &[Record]) -> FrameBatch {
    FrameBatch {
        frames: frame::encode_group(first_offset, records).unwrap(),
        blobs: Vec::new(),
    }
}
