//! The bytes of a record. The only place of the log that knows bincode; its
//! fixed-width little-endian configuration makes every field's place plain, so
//! that the crate could be replaced without changing a byte (`docs/FORMAT.md`,
//! `docs/decisions/0013`).
//!
//! Texts are read in place: bincode would make room for what an owned one claims
//! to have before it looks whether that much is there.

use std::cell::RefCell;

use bincode::{
    BorrowDecode, Encode,
    config::{Configuration, Fixint, Limit, LittleEndian},
};
use bytes::Bytes;
use uuid::Uuid;

use super::{
    port::LogError,
    record::{AppendKey, BlobRef, Hashes, Record, RecordBody},
};
use crate::domain::{
    BranchId, ContentHash, ConversationId, EventHeader, EventId, Namespace, Revision,
    TimestampMicros,
};

/// Most bytes of an encoded header. The texts in it have bounds of their own,
/// about 2 KiB together; this one keeps hostile lengths from being believed.
pub(crate) const HEADER_BYTES_MAX: usize = 16 * 1024;

/// Fewest bytes of a record: lengths, fixed fields, hashes.
pub(crate) const RECORD_BYTES_MIN: usize = 4 + 32 + 32 + 1;

const PLACE_INLINE: u8 = 0;
const PLACE_BLOB: u8 = 1;

type Fixed = Configuration<LittleEndian, Fixint, Limit<HEADER_BYTES_MAX>>;

const fn fixed() -> Fixed {
    bincode::config::standard()
        .with_fixed_int_encoding()
        .with_limit::<HEADER_BYTES_MAX>()
}

/// The part of a record that the chain hash covers, in the order of its bytes.
#[derive(Encode, BorrowDecode)]
struct HeaderBytes<'a> {
    id: [u8; 16],
    namespace: &'a str,
    conversation: [u8; 16],
    branch: u64,
    revision: u64,
    kind: u16,
    recorded_at: i64,
    occurred_at: Option<i64>,
    actor: &'a str,
    causation_id: Option<[u8; 16]>,
    correlation_id: &'a str,
    body_bytes: u64,
    append_key: Option<KeyBytes<'a>>,
}

#[derive(Encode, BorrowDecode)]
struct KeyBytes<'a> {
    key: &'a str,
    events: u32,
    content_hash: [u8; 32],
}

impl<'a> HeaderBytes<'a> {
    fn of(record: &'a Record) -> Self {
        let header = &record.header;
        Self {
            id: header.id.0.into_bytes(),
            namespace: header.namespace.as_str(),
            conversation: header.conversation.0.into_bytes(),
            branch: header.branch.0,
            revision: header.revision.0,
            kind: header.kind,
            recorded_at: header.recorded_at.0,
            occurred_at: header.occurred_at.map(|at| at.0),
            actor: &header.actor,
            causation_id: header.causation_id.map(|id| id.0.into_bytes()),
            correlation_id: &header.correlation_id,
            body_bytes: record.body.bytes_len(),
            append_key: record.append_key.as_ref().map(|key| KeyBytes {
                key: &key.key,
                events: key.events,
                content_hash: key.content_hash.0,
            }),
        }
    }
}

thread_local! {
    /// Headers are encoded one after the other; one buffer serves them all.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Hands the encoded header (what the chain hash covers) to `take`.
///
/// # Errors
/// [`LogError::TooLarge`] when it is over [`HEADER_BYTES_MAX`].
pub(crate) fn with_header_bytes<T>(
    record: &Record,
    take: impl FnOnce(&[u8]) -> T,
) -> Result<T, LogError> {
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.clear();
        bincode::encode_into_std_write(HeaderBytes::of(record), scratch, fixed()).map_err(
            |error| LogError::Io {
                doing: "encoding a record's header",
                source: std::sync::Arc::new(std::io::Error::other(error)),
            },
        )?;
        if scratch.len() > HEADER_BYTES_MAX {
            return Err(LogError::TooLarge {
                what: "header",
                bytes: scratch.len(),
                max: HEADER_BYTES_MAX,
            });
        }
        Ok(take(scratch))
    })
}

/// Writes a record behind what `out` already has.
///
/// # Errors
/// [`LogError::TooLarge`], as [`with_header_bytes`].
pub(crate) fn encode_record(record: &Record, out: &mut Vec<u8>) -> Result<(), LogError> {
    with_header_bytes(record, |bytes| {
        // The bound above keeps the length far below u32::MAX.
        out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        out.extend_from_slice(bytes);
    })?;
    out.extend_from_slice(&record.body_hash().0);
    out.extend_from_slice(&record.chain_hash().0);
    match &record.body {
        RecordBody::Inline(bytes) => {
            out.push(PLACE_INLINE);
            out.extend_from_slice(bytes);
        }
        RecordBody::Blob(blob) => {
            // Its hash is the body's, which is above.
            out.push(PLACE_BLOB);
            out.extend_from_slice(&blob.home_offset.to_le_bytes());
        }
    }
    Ok(())
}

/// Why bytes are no record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RecordError {
    #[error("a record ends early, in its {0}")]
    Truncated(&'static str),
    #[error("a record's header has {0} bytes, more than any can have")]
    HeaderTooLong(u64),
    #[error("a record's header cannot be read: {0}")]
    Header(String),
    #[error("a record's body is in place {0}, which is unknown")]
    Place(u8),
}

/// Reads the record that starts at `at` and moves `at` behind it. An inline body
/// shares `bytes`.
pub(crate) fn decode_record(bytes: &Bytes, at: &mut usize) -> Result<Record, RecordError> {
    let mut cursor = Cursor { bytes, at: *at };
    let header_len = u32::from_le_bytes(cursor.array("header length")?);
    if header_len as usize > HEADER_BYTES_MAX {
        return Err(RecordError::HeaderTooLong(header_len.into()));
    }
    let header = decode_header(cursor.take(header_len as usize, "header")?)?;
    let body_hash = ContentHash(cursor.array("body hash")?);
    let chain_hash = ContentHash(cursor.array("chain hash")?);
    let [place] = cursor.array("body place")?;
    let body = match place {
        PLACE_INLINE => {
            let len =
                usize::try_from(header.body_bytes).map_err(|_| RecordError::Truncated("body"))?;
            let start = cursor.at;
            cursor.take(len, "body")?;
            RecordBody::Inline(bytes.slice(start..start + len))
        }
        PLACE_BLOB => RecordBody::Blob(BlobRef {
            hash: body_hash,
            bytes_len: header.body_bytes,
            home_offset: u64::from_le_bytes(cursor.array("blob offset")?),
        }),
        other => return Err(RecordError::Place(other)),
    };
    *at = cursor.at;
    record_of(header, body, body_hash, chain_hash)
}

fn decode_header(bytes: &[u8]) -> Result<HeaderBytes<'_>, RecordError> {
    let (header, used) = bincode::borrow_decode_from_slice::<HeaderBytes<'_>, _>(bytes, fixed())
        .map_err(|error| RecordError::Header(error.to_string()))?;
    if used != bytes.len() {
        return Err(RecordError::Header(format!(
            "{} bytes are left over",
            bytes.len() - used
        )));
    }
    Ok(header)
}

fn record_of(
    header: HeaderBytes<'_>,
    body: RecordBody,
    body_hash: ContentHash,
    chain_hash: ContentHash,
) -> Result<Record, RecordError> {
    let namespace =
        Namespace::new(header.namespace).map_err(|error| RecordError::Header(error.to_string()))?;
    Ok(Record {
        header: EventHeader {
            id: EventId(Uuid::from_bytes(header.id)),
            namespace,
            conversation: ConversationId(Uuid::from_bytes(header.conversation)),
            branch: BranchId(header.branch),
            revision: Revision(header.revision),
            kind: header.kind,
            recorded_at: TimestampMicros(header.recorded_at),
            occurred_at: header.occurred_at.map(TimestampMicros),
            actor: header.actor.to_owned(),
            causation_id: header.causation_id.map(|id| EventId(Uuid::from_bytes(id))),
            correlation_id: header.correlation_id.to_owned(),
        },
        hashes: Hashes::Known {
            body: body_hash,
            chain: chain_hash,
        },
        body,
        append_key: header.append_key.map(|key| AppendKey {
            key: key.key.to_owned(),
            events: key.events,
            content_hash: ContentHash(key.content_hash),
        }),
    })
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize, what: &'static str) -> Result<&'a [u8], RecordError> {
        let end = self
            .at
            .checked_add(len)
            .ok_or(RecordError::Truncated(what))?;
        let taken = self
            .bytes
            .get(self.at..end)
            .ok_or(RecordError::Truncated(what))?;
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], RecordError> {
        self.take(N, what)?
            .try_into()
            .map_err(|_| RecordError::Truncated(what))
    }
}
