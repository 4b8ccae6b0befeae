//! The headers of a block's records, field by field.
//!
//! Numbers are LEB128; differences wrap around and are zigzagged. What repeats
//! (namespaces, conversations, texts) is in a table, and records have its number.
//! What lives here is what writing ([`super::apart`]) and reading
//! ([`super::together`]) share.

use uuid::Uuid;

/// The columns, in the order in which they are stored.
#[derive(Clone, Copy)]
pub(super) enum Column {
    /// Tables: names, 16-byte ids, texts.
    Namespaces,
    Conversations,
    Texts,
    /// What a record has; see the constants below.
    Flags,
    Kind,
    /// Numbers of rows of the tables; texts from 1 on, 0 is empty.
    Namespace,
    Conversation,
    Actor,
    Correlation,
    /// Differences to the conversation's record before.
    Branch,
    Revision,
    /// Differences to the record before: of bytes 0 to 7 and 8 to 11 of the id, as
    /// big-endian numbers, and of the time.
    IdHigh,
    IdMiddle,
    RecordedAt,
    /// Difference to the last time of this sort, at first to the recorded one.
    OccurredAt,
    /// How many records back the one is that led to it; 0: its id is given.
    Causation,
    BodyBytes,
    /// Difference of the record's offset and its blob's home.
    BlobHome,
    /// Text, number of events, 1 if its salt is there.
    AppendKey,
    /// Bytes of what is left of a body.
    Stub,
    /// Of each node of salts: its height.
    SaltHeight,
}

pub(super) const COLUMNS: usize = Column::SaltHeight as usize + 1;

pub(super) const HAS_OCCURRED_AT: u8 = 1;
pub(super) const HAS_CAUSATION: u8 = 1 << 1;
pub(super) const HAS_APPEND_KEY: u8 = 1 << 2;
pub(super) const BODY_IN_BLOBS: u8 = 1 << 3;
pub(super) const BODY_HASH_GIVEN: u8 = 1 << 4;
pub(super) const FIRST_LINK: u8 = 1 << 5;
pub(super) const CHAIN_GIVEN: u8 = 1 << 6;
pub(super) const BODY_ERASED: u8 = 1 << 7;

/// What an append key has.
pub(super) const KEY_SALTED: u64 = 1;
pub(super) const KEY_ENDING: u64 = 1 << 1;

/// Bytes of the end of an id, which is noise.
pub(super) const ID_LOW_BYTES: usize = 4;

/// What is known of a conversation from its last record in the block.
#[derive(Clone, Copy, Default)]
pub(super) struct Before {
    pub branch: u64,
    pub revision: u64,
}

/// What is known from the record before.
#[derive(Clone, Copy, Default)]
pub(super) struct Previous {
    pub id_high: u64,
    pub id_middle: u32,
    pub recorded_at: i64,
    pub occurred_at: Option<i64>,
}

pub(super) fn id_parts(id: Uuid) -> (u64, u32, [u8; ID_LOW_BYTES]) {
    let number = id.as_u128();
    // Truncated to the parts that they name.
    let (high, middle) = ((number >> 64) as u64, (number >> 32) as u32);
    (high, middle, (number as u32).to_be_bytes())
}
