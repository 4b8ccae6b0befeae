//! The headers of a block's records as columns.
//!
//! Numbers are LEB128; differences wrap around and are zigzag-encoded. Repeated values (namespaces,
//! conversations, texts) are stored in tables, and records hold their row numbers. The modules
//! `encode` and `decode` share this module.

use uuid::Uuid;

/// The columns, in storage order.
#[derive(Clone, Copy)]
pub(super) enum Column {
    /// Tables: names, 16-byte ids, texts.
    Namespaces,
    Conversations,
    Texts,
    /// Which fields a record has; see the constants below.
    Flags,
    Kind,
    /// Row numbers in the tables; those of texts start at 1, and 0 is the empty text.
    Namespace,
    Conversation,
    Actor,
    Correlation,
    /// Differences from the previous record of the conversation.
    Branch,
    Revision,
    /// Differences from the previous record: of bytes 0 to 7 and 8 to 11 of the id, as big-endian
    /// numbers, and of the time.
    IdHigh,
    IdMiddle,
    RecordedAt,
    /// Difference from the last `occurred_at`; for the first one, from `recorded_at`.
    OccurredAt,
    /// How many records back the cause is; 0: its id is stored.
    Causation,
    BodyBytes,
    /// Difference between the record's offset and its blob's home.
    BlobHome,
    /// Key text, number of events, and flags for the salt and the expiry (with the expiry, if any).
    AppendKey,
    /// Length of a stub, in bytes.
    Stub,
    /// The height of each salt node.
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

/// Flags of an append key.
pub(super) const KEY_SALTED: u64 = 1;
pub(super) const KEY_ENDING: u64 = 1 << 1;

/// Length of the low part of an id, in bytes; it is random.
pub(super) const ID_LOW_BYTES: usize = 4;

/// State of a conversation after its last record in the block.
#[derive(Clone, Copy, Default)]
pub(super) struct ConversationTail {
    pub(crate) branch: u64,
    pub(crate) revision: u64,
}

/// State after the previous record.
#[derive(Clone, Copy, Default)]
pub(super) struct PreviousRecord {
    pub(crate) id_high: u64,
    pub(crate) id_middle: u32,
    pub(crate) recorded_at: i64,
    pub(crate) occurred_at: Option<i64>,
}

pub(super) fn id_parts(id: Uuid) -> (u64, u32, [u8; ID_LOW_BYTES]) {
    let number = id.as_u128();
    // The casts truncate to the named parts.
    let (high, middle) = ((number >> 64) as u64, (number >> 32) as u32);
    (high, middle, (number as u32).to_be_bytes())
}
