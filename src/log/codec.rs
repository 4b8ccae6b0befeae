//! The byte format of a record (`docs/FORMAT.md`): fields in order, fixed-width numbers in
//! little-endian, as bincode 2 writes them in its fixed-width configuration. The code is written by
//! hand, because an append encodes each header twice and a read decodes hundreds; a test compares
//! it with bincode (`docs/decisions/0008-projection-store.md`).

use std::cell::RefCell;

use bytes::Bytes;
use uuid::Uuid;

use super::{
    port::LogError,
    record::{AppendKey, BlobRef, Hashes, Record, RecordBody, Stub},
    salt::KeySalt,
};
use treering_domain::{
    BranchId, ContentHash, ConversationId, EventHeader, EventId, Namespace, Revision,
    TimestampMicros,
};

/// Maximum size of an encoded header, in bytes. The texts in it have limits of their own, about 2
/// KiB together; this one rejects hostile lengths.
pub(crate) const HEADER_BYTES_MAX: usize = 16 * 1024;

/// Minimum size of a record, in bytes: header length, two hashes, place of the body.
pub(crate) const RECORD_BYTES_MIN: usize = 4 + 32 + 32 + 1;

const PLACE_INLINE: u8 = 0;
const PLACE_BLOB: u8 = 1;
const PLACE_ERASED: u8 = 2;
/// Tag of an optional field.
const NONE: u8 = 0;
const SOME: u8 = 1;
/// Tag of an append key with an expiry, which follows the key.
const ENDING: u8 = 2;

/// Writes a header: all that the chain hash covers, except the body's hash.
fn write_header(record: &Record, out: &mut Vec<u8>) {
    let header = &record.header;
    out.extend_from_slice(header.id.0.as_bytes());
    write_text(header.namespace.as_str(), out);
    out.extend_from_slice(header.conversation.0.as_bytes());
    out.extend_from_slice(&header.branch.0.to_le_bytes());
    out.extend_from_slice(&header.revision.0.to_le_bytes());
    out.extend_from_slice(&header.kind.to_le_bytes());
    out.extend_from_slice(&header.recorded_at.0.to_le_bytes());
    write_option(header.occurred_at.map(|at| at.0.to_le_bytes()), out);
    write_text(&header.actor, out);
    write_option(header.causation_id.map(|id| id.0.into_bytes()), out);
    write_text(&header.correlation_id, out);
    out.extend_from_slice(&record.body.bytes_len().to_le_bytes());
    let Some(key) = &record.append_key else {
        out.push(NONE);
        return;
    };
    out.push(match key.ends_at {
        None => SOME,
        Some(_) => ENDING,
    });
    write_text(&key.key, out);
    out.extend_from_slice(&key.events.to_le_bytes());
    out.extend_from_slice(&key.content_hash.0);
    if let Some(ends_at) = key.ends_at {
        out.extend_from_slice(&ends_at.0.to_le_bytes());
    }
}

fn write_text(text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(&(text.len() as u64).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn write_option<const N: usize>(value: Option<[u8; N]>, out: &mut Vec<u8>) {
    match value {
        None => out.push(NONE),
        Some(value) => {
            out.push(SOME);
            out.extend_from_slice(&value);
        }
    }
}

fn check_header(bytes: usize) -> Result<(), LogError> {
    if bytes > HEADER_BYTES_MAX {
        return Err(LogError::TooLarge {
            what: "header",
            bytes,
            max: HEADER_BYTES_MAX,
        });
    }
    Ok(())
}

thread_local! {
    /// Headers are encoded one after another, so one buffer per thread is enough.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Passes the encoded header (what the chain hash covers) to `take`.
///
/// # Errors
/// [`LogError::TooLarge`] when it exceeds [`HEADER_BYTES_MAX`].
pub(crate) fn with_header_bytes<T>(
    record: &Record,
    take: impl FnOnce(&[u8]) -> T,
) -> Result<T, LogError> {
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.clear();
        write_header(record, scratch);
        check_header(scratch.len())?;
        Ok(take(scratch))
    })
}

/// Appends an encoded record to `out`.
///
/// # Errors
/// [`LogError::TooLarge`], as [`with_header_bytes`].
pub(crate) fn encode_record(record: &Record, out: &mut Vec<u8>) -> Result<(), LogError> {
    // The length is filled in later.
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    let header = out.len();
    write_header(record, out);
    let bytes = out.len() - header;
    check_header(bytes)?;
    // The limit keeps the length far below u32::MAX.
    out[start..header].copy_from_slice(&(bytes as u32).to_le_bytes());
    out.extend_from_slice(&record.body_hash().0);
    out.extend_from_slice(&record.chain_hash().0);
    if let Some(key) = &record.append_key {
        write_option(key.salt.map(|salt| salt.0), out);
    }
    write_body(&record.body, out)
}

fn write_body(body: &RecordBody, out: &mut Vec<u8>) -> Result<(), LogError> {
    match body {
        RecordBody::Inline(bytes) => {
            out.push(PLACE_INLINE);
            out.extend_from_slice(bytes);
        }
        RecordBody::Blob(blob) => {
            out.push(PLACE_BLOB);
            out.extend_from_slice(&blob.home_offset.to_le_bytes());
            out.extend_from_slice(&blob.hash.0);
        }
        RecordBody::Stub(stub) => {
            let bytes = stub.bytes.len();
            let len = u32::try_from(bytes).map_err(|_| LogError::TooLarge {
                what: "stub",
                bytes,
                max: u32::MAX as usize,
            })?;
            out.push(PLACE_ERASED);
            out.extend_from_slice(&len.to_le_bytes());
            out.extend_from_slice(&stub.bytes);
        }
    }
    Ok(())
}

/// Why bytes are not a valid record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RecordError {
    #[error("record is truncated in its {0}")]
    Truncated(&'static str),
    #[error("record header has {0} bytes, more than the maximum")]
    HeaderTooLong(u64),
    #[error("record header is invalid: {0}")]
    Header(String),
    #[error("record has unknown body place {0}")]
    Place(u8),
}

/// Reads consecutive records.
#[derive(Default)]
pub(crate) struct RecordReader {
    /// The namespace of the last record: the next record usually has the same.
    namespace: Option<Namespace>,
}

impl RecordReader {
    /// Reads the record that starts at `at`, except for its salt, and advances `at` past it. An
    /// inline body is a slice of `bytes`.
    ///
    /// # Errors
    /// [`RecordError`] when the bytes are not a record.
    pub(crate) fn read(&mut self, bytes: &Bytes, at: &mut usize) -> Result<Record, RecordError> {
        let mut cursor = Cursor { bytes, at: *at };
        let header_len = cursor.word("header length")?;
        if header_len as usize > HEADER_BYTES_MAX {
            return Err(RecordError::HeaderTooLong(header_len.into()));
        }
        let (header, body_bytes, mut append_key) =
            self.header(cursor.take(header_len as usize, "header")?)?;
        let body_hash = ContentHash(cursor.array("body hash")?);
        let chain_hash = ContentHash(cursor.array("chain hash")?);
        if let Some(key) = &mut append_key
            && cursor.has("salt of the idempotency key")?
        {
            key.salt = Some(KeySalt(cursor.array("salt of the idempotency key")?));
        }
        let body = read_body(&mut cursor, bytes, body_bytes)?;
        *at = cursor.at;
        Ok(Record {
            header,
            hashes: Hashes::Known {
                body: body_hash,
                chain: chain_hash,
            },
            body,
            append_key,
            salt: None,
        })
    }

    /// Decodes a header, with the length of the body and the append key.
    fn header(
        &mut self,
        bytes: &[u8],
    ) -> Result<(EventHeader, u64, Option<AppendKey>), RecordError> {
        let mut fields = Cursor { bytes, at: 0 };
        let header = EventHeader {
            id: EventId(fields.uuid("id")?),
            namespace: self.namespace(fields.text("namespace")?)?,
            conversation: ConversationId(fields.uuid("conversation")?),
            branch: BranchId(fields.number("branch")?),
            revision: Revision(fields.number("revision")?),
            kind: u16::from_le_bytes(fields.array("kind")?),
            recorded_at: fields.time("recorded at")?,
            occurred_at: match fields.has("occurred at")? {
                true => Some(fields.time("occurred at")?),
                false => None,
            },
            actor: fields.text("actor")?.to_owned(),
            causation_id: match fields.has("causation id")? {
                true => Some(EventId(fields.uuid("causation id")?)),
                false => None,
            },
            correlation_id: fields.text("correlation id")?.to_owned(),
        };
        let body_bytes = fields.number("body bytes")?;
        let append_key = append_key(&mut fields)?;
        match bytes.len() - fields.at {
            0 => Ok((header, body_bytes, append_key)),
            left => Err(RecordError::Header(format!(
                "{left} bytes follow the last field"
            ))),
        }
    }

    fn namespace(&mut self, name: &str) -> Result<Namespace, RecordError> {
        if let Some(last) = self.namespace.as_ref().filter(|last| last.as_str() == name) {
            return Ok(last.clone());
        }
        let namespace =
            Namespace::new(name).map_err(|error| RecordError::Header(error.to_string()))?;
        self.namespace = Some(namespace.clone());
        Ok(namespace)
    }
}

/// Decodes the append key at the end of a header, without its salt.
fn append_key(fields: &mut Cursor<'_>) -> Result<Option<AppendKey>, RecordError> {
    const WHAT: &str = "idempotency key";
    let [there] = fields.array(WHAT)?;
    if there == NONE {
        return Ok(None);
    }
    Ok(Some(AppendKey {
        key: fields.text(WHAT)?.to_owned(),
        events: fields.word(WHAT)?,
        content_hash: ContentHash(fields.array(WHAT)?),
        salt: None,
        ends_at: match there {
            SOME => None,
            ENDING => Some(fields.time(WHAT)?),
            _ => {
                let message = format!("the idempotency key has unknown type {there}");
                return Err(RecordError::Header(message));
            }
        },
    }))
}

/// Decodes a body, a reference to a blob, or a stub.
fn read_body(
    cursor: &mut Cursor<'_>,
    bytes: &Bytes,
    body_bytes: u64,
) -> Result<RecordBody, RecordError> {
    let here = |cursor: &mut Cursor<'_>, len: u64| {
        let len = usize::try_from(len).map_err(|_| RecordError::Truncated("body"))?;
        let start = cursor.at;
        cursor.take(len, "body")?;
        Ok(bytes.slice(start..start + len))
    };
    let [place] = cursor.array("body place")?;
    Ok(match place {
        PLACE_INLINE => RecordBody::Inline(here(cursor, body_bytes)?),
        PLACE_BLOB => RecordBody::Blob(BlobRef {
            home_offset: cursor.number("blob offset")?,
            hash: ContentHash(cursor.array("hash of a large body")?),
            bytes_len: body_bytes,
        }),
        PLACE_ERASED => {
            let len = cursor.word("length of a stub")?;
            RecordBody::Stub(Stub {
                bytes: here(cursor, len.into())?,
                bytes_len: body_bytes,
            })
        }
        other => return Err(RecordError::Place(other)),
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

    fn word(&mut self, what: &'static str) -> Result<u32, RecordError> {
        self.array(what).map(u32::from_le_bytes)
    }

    fn number(&mut self, what: &'static str) -> Result<u64, RecordError> {
        self.array(what).map(u64::from_le_bytes)
    }

    fn time(&mut self, what: &'static str) -> Result<TimestampMicros, RecordError> {
        self.array(what)
            .map(i64::from_le_bytes)
            .map(TimestampMicros)
    }

    fn uuid(&mut self, what: &'static str) -> Result<Uuid, RecordError> {
        self.array(what).map(Uuid::from_bytes)
    }

    /// Returns a text as a slice of the bytes. Its stated length is checked against the available
    /// bytes.
    fn text(&mut self, what: &'static str) -> Result<&'a str, RecordError> {
        let len = usize::try_from(self.number(what)?).map_err(|_| RecordError::Truncated(what))?;
        std::str::from_utf8(self.take(len, what)?)
            .map_err(|_| RecordError::Header(format!("{what} is not UTF-8")))
    }

    fn has(&mut self, what: &'static str) -> Result<bool, RecordError> {
        match self.array(what)? {
            [NONE] => Ok(false),
            [SOME] => Ok(true),
            _ => Err(RecordError::Header(format!(
                "{what} has an invalid presence flag"
            ))),
        }
    }
}

#[cfg(test)]
mod tests;
