//! The encoding of rows: bincode of the domain's types, with fixed-width little-endian numbers, and
//! a checksum over each row and its key, because the store checks its pages only when it is opened.
//! `docs/FORMAT.md` specifies the byte format.
//!
//! This is the only module of the projections that depends on bincode. Rows are decoded through
//! [`bounded`], which does not trust lengths.

mod bounded;

use std::sync::Arc;

use bincode::config::{Configuration, Fixint, LittleEndian};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use treering_domain::{
    BranchId, ContentHash, ConversationId, ConversationInfo, ConversationRow, Damage, Namespace,
    Position, Revision, TimestampMicros,
};

use self::bounded::UntrustedSeed;
use super::error::ProjectionsError;

/// Version of everything in the projections' file: tables, keys, rows, and the folds that fill
/// them. A file with a different version is rebuilt, never converted.
pub(crate) const VIEWS_VERSION: u32 = 15;

const CONFIG: Configuration<LittleEndian, Fixint> = bincode::config::standard()
    .with_little_endian()
    .with_fixed_int_encoding();

/// CRC32C, little-endian, at the end of every row.
const CHECKSUM_BYTES: usize = 4;

/// What an idempotency key was used for: hash and salt of the content, first offset, number of
/// events, and expiry.
pub(super) type KeyRow = (
    ContentHash,
    Option<[u8; 16]>,
    u64,
    u32,
    Option<TimestampMicros>,
);

/// The part of a conversation that changes with every event.
#[derive(Serialize, Deserialize)]
pub(super) struct HeadRow {
    head: Revision,
    chain_hash: ContentHash,
    last_position: Position,
    active: BranchId,
    branch_count: u64,
    sealed: bool,
    updated_at: TimestampMicros,
    happened_to: TimestampMicros,
    damage: Option<Arc<Damage>>,
}

/// The part of a conversation that seldom changes.
#[derive(Serialize, Deserialize)]
pub(super) struct CreatedRow {
    namespace: Namespace,
    first_position: Position,
    created_at: TimestampMicros,
    happened_from: TimestampMicros,
    info: Arc<ConversationInfo>,
}

impl HeadRow {
    pub(super) fn of(row: &ConversationRow) -> Self {
        Self {
            head: row.head,
            chain_hash: row.chain_hash,
            last_position: row.last_position,
            active: row.active,
            branch_count: row.branch_count,
            sealed: row.sealed,
            updated_at: row.updated_at,
            happened_to: row.happened_to,
            damage: row.damage.clone(),
        }
    }

    pub(super) fn head(&self) -> Revision {
        self.head
    }

    pub(super) fn happened_to(&self) -> TimestampMicros {
        self.happened_to
    }

    pub(super) fn updated_at(&self) -> TimestampMicros {
        self.updated_at
    }

    pub(super) fn is_sealed(&self) -> bool {
        self.sealed
    }

    pub(super) fn branch_count(&self) -> u64 {
        self.branch_count
    }

    pub(super) fn joined(self, id: ConversationId, created: CreatedRow) -> ConversationRow {
        ConversationRow {
            namespace: created.namespace,
            id,
            info: created.info,
            head: self.head,
            chain_hash: self.chain_hash,
            first_position: created.first_position,
            last_position: self.last_position,
            active: self.active,
            branch_count: self.branch_count,
            sealed: self.sealed,
            created_at: created.created_at,
            updated_at: self.updated_at,
            happened_from: created.happened_from,
            happened_to: self.happened_to,
            damage: self.damage,
        }
    }
}

impl CreatedRow {
    pub(super) fn info(self) -> Arc<ConversationInfo> {
        self.info
    }

    pub(super) fn of(row: &ConversationRow) -> Self {
        Self {
            namespace: row.namespace.clone(),
            first_position: row.first_position,
            created_at: row.created_at,
            happened_from: row.happened_from,
            info: Arc::clone(&row.info),
        }
    }
}

/// Appends the encoding of a value.
pub(super) fn encode<T: Serialize>(value: &T, bytes: &mut Vec<u8>) -> Result<(), ProjectionsError> {
    match bincode::serde::encode_into_std_write(value, bytes, CONFIG) {
        Ok(_) => Ok(()),
        Err(error) => Err(ProjectionsError::Encode {
            what: error.to_string(),
        }),
    }
}

/// Appends the checksum of a key and its row, which are adjacent at the end of `bytes`.
pub(super) fn seal(bytes: &mut Vec<u8>, key_start: usize) {
    let checksum = crc32c::crc32c(&bytes[key_start..]);
    bytes.extend_from_slice(&checksum.to_le_bytes());
}

/// Verifies a row's checksum and returns the row without it.
pub(super) fn checked<'a>(key: &[u8], row: &'a [u8]) -> Result<&'a [u8], ProjectionsError> {
    #[cfg(any(test, feature = "testkit"))]
    ROWS_READ.with(|rows| rows.set(rows.get() + 1));
    let damaged = || ProjectionsError::damaged("a row does not match its checksum");
    let (value, checksum) = row
        .split_last_chunk::<CHECKSUM_BYTES>()
        .ok_or_else(damaged)?;
    let actual = crc32c::crc32c_append(crc32c::crc32c(key), value);
    if actual == u32::from_le_bytes(*checksum) {
        Ok(value)
    } else {
        Err(damaged())
    }
}

/// Decodes a row's value, which must use all of its bytes.
pub(super) fn decode<T: DeserializeOwned>(key: &[u8], row: &[u8]) -> Result<T, ProjectionsError> {
    decode_value(checked(key, row)?)
}

/// Decodes the first fields of a value without a checksum of its own.
pub(super) fn decode_start<T: DeserializeOwned>(value: &[u8]) -> Result<T, ProjectionsError> {
    match bincode::serde::decode_from_slice(value, CONFIG) {
        Ok((decoded, _)) => Ok(decoded),
        Err(_) => Err(ProjectionsError::damaged("a row cannot be decoded")),
    }
}

/// Decodes a value without a checksum of its own, which must use all of its bytes.
pub(super) fn decode_value<T: DeserializeOwned>(value: &[u8]) -> Result<T, ProjectionsError> {
    let seed = UntrustedSeed::<T>::new();
    match bincode::serde::seed_decode_from_slice(seed, value, CONFIG) {
        Ok((decoded, used)) if used == value.len() => Ok(decoded),
        _ => Err(ProjectionsError::damaged("a row cannot be decoded")),
    }
}

#[cfg(any(test, feature = "testkit"))]
thread_local! {
    static ROWS_READ: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Returns how many rows this thread has read.
#[cfg(any(test, feature = "testkit"))]
pub fn rows_read() -> usize {
    ROWS_READ.with(std::cell::Cell::get)
}
