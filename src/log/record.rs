//! Records: an event's header, hashes and body as the log keeps them.
//!
//! A record's chain hash covers the previous record of its conversation, its own
//! header and its body's hash, so that history cannot be changed unseen. It does
//! not cover where the body is, so that content can be moved or erased without
//! breaking the chain.

use bytes::Bytes;

use super::{codec, port::LogError};
use crate::domain::{ContentHash, EventHeader};

/// A large body, kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobRef {
    /// BLAKE3 of the body.
    pub hash: ContentHash,
    /// Its length, in bytes.
    pub bytes_len: u64,
    /// Offset of the record that first named it: says where it is stored.
    pub home_offset: u64,
}

/// Where a body is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordBody {
    /// In the record.
    Inline(Bytes),
    /// In the blob table.
    Blob(BlobRef),
}

impl RecordBody {
    /// The body's length, in bytes.
    #[must_use]
    pub fn bytes_len(&self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Blob(blob) => blob.bytes_len,
        }
    }
}

/// The idempotency key of a batch, on the batch's first record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppendKey {
    /// The key.
    pub key: String,
    /// How many events the batch has.
    pub events: u32,
    /// BLAKE3 of the batch's content.
    pub content_hash: ContentHash,
}

/// An event as the log keeps it.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Everything but the body.
    pub header: EventHeader,
    /// See [`Record::seal`].
    pub chain_hash: ContentHash,
    /// BLAKE3 of the body.
    pub body_hash: ContentHash,
    /// The body, or where it is.
    pub body: RecordBody,
    /// On the first record of a keyed batch.
    pub append_key: Option<AppendKey>,
}

impl Record {
    /// Makes a record that follows `previous`, the chain hash of the
    /// conversation's last record (all zero before the first).
    ///
    /// # Errors
    /// [`LogError::TooLarge`] when the header has more than the format holds.
    pub fn seal(
        previous: ContentHash,
        header: EventHeader,
        body: RecordBody,
        body_hash: ContentHash,
        append_key: Option<AppendKey>,
    ) -> Result<Self, LogError> {
        let mut record = Self {
            header,
            chain_hash: ContentHash::default(),
            body_hash,
            body,
            append_key,
        };
        record.chain_hash = record.expected_chain_hash(previous)?;
        Ok(record)
    }

    /// The hash of a body.
    #[must_use]
    pub fn hash_body(body: &[u8]) -> ContentHash {
        ContentHash(*blake3::hash(body).as_bytes())
    }

    /// True when this record, as it is, follows `previous`. An inline body is
    /// checked against its hash too.
    #[must_use]
    pub fn verify_chain(&self, previous: ContentHash) -> bool {
        let body_fits = match &self.body {
            RecordBody::Inline(bytes) => Self::hash_body(bytes) == self.body_hash,
            RecordBody::Blob(blob) => blob.hash == self.body_hash,
        };
        body_fits
            && self
                .expected_chain_hash(previous)
                .is_ok_and(|expected| expected == self.chain_hash)
    }

    /// True when this record's header and body hash follow `previous`. The body
    /// itself is not looked at: its frame has a checksum.
    #[must_use]
    pub fn follows(&self, previous: ContentHash) -> bool {
        self.expected_chain_hash(previous)
            .is_ok_and(|expected| expected == self.chain_hash)
    }

    fn expected_chain_hash(&self, previous: ContentHash) -> Result<ContentHash, LogError> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&previous.0);
        codec::with_header_bytes(self, |bytes| {
            hasher.update(bytes);
        })?;
        hasher.update(&self.body_hash.0);
        Ok(ContentHash(*hasher.finalize().as_bytes()))
    }
}
