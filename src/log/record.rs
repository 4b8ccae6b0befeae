//! Records: an event's header, hashes and body as the log stores them.
//!
//! A record's chain hash covers the previous record of its conversation, its own header and its
//! body's hash, so that history cannot be changed undetected. It does not cover where the body is
//! stored, so that content can be moved or erased without breaking the chain.

use std::{fmt, sync::Arc};

use bytes::Bytes;

use super::{
    block::BlockHashes,
    codec,
    port::LogError,
    salt::{KeySalt, Salt, SaltedHash},
};
use treering_domain::{ChainHash, ChainHashes as _, ContentHash, EventHeader, TimestampMicros};

/// A reference to a large body that is stored separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobRef {
    /// BLAKE3 of the body.
    pub hash: ContentHash,
    /// Its length, in bytes.
    pub bytes_len: u64,
    /// Offset of the record that first referenced it, under which it is stored.
    pub home_offset: u64,
}

/// Where a record's body is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordBody {
    /// In the record.
    Inline(Bytes),
    /// In the blob table.
    Blob(BlobRef),
    /// Erased: only a stub is left.
    Stub(Stub),
}

/// The replacement of an erased body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stub {
    /// A body of the same kind, without texts.
    pub bytes: Bytes,
    /// Length of the original body, in bytes. The header records it permanently.
    pub bytes_len: u64,
}

impl RecordBody {
    /// Returns the length of the body, in bytes; for an erased body, its original length.
    #[must_use]
    pub fn bytes_len(&self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Blob(blob) => blob.bytes_len,
            Self::Stub(stub) => stub.bytes_len,
        }
    }

    /// Returns the uncompressed length of what is stored, in bytes; for an erased body, the length
    /// of the stub.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Blob(blob) => blob.bytes_len,
            Self::Stub(stub) => stub.bytes.len() as u64,
        }
    }

    /// Returns the bytes that are stored in the record itself.
    pub fn here(&self) -> &[u8] {
        match self {
            Self::Inline(bytes) => bytes,
            Self::Blob(_) => &[],
            Self::Stub(stub) => &stub.bytes,
        }
    }
}

/// The idempotency key of a batch (on its first record) or of a single event (on its own record).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppendKey {
    /// The key.
    pub key: String,
    /// How many events the key covers: this one and the following ones.
    pub events: u32,
    /// Hash of the batch's content, keyed with the salt.
    pub content_hash: ContentHash,
    /// `None`: erased, because a part of the batch was erased.
    pub salt: Option<KeySalt>,
    /// When the key expires and may be reused; `None`: never.
    pub ends_at: Option<TimestampMicros>,
}

impl AppendKey {
    /// Removes the salt, so that the content hash reveals nothing.
    #[must_use]
    pub(crate) fn without_salt(self) -> Self {
        Self { salt: None, ..self }
    }
}

/// An event as the log stores it.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Everything but the body.
    pub header: EventHeader,
    /// The body, or where it is stored.
    pub body: RecordBody,
    /// Set on the first record of a keyed batch, and on an event that has its own key.
    pub append_key: Option<AppendKey>,
    pub(super) hashes: Hashes,
    /// `None`: erased with the body.
    pub(super) salt: Option<Salt>,
}

/// The hashes of a record, or the block from which they are computed.
#[derive(Clone)]
pub(super) enum Hashes {
    Known {
        body: ContentHash,
        chain: ContentHash,
    },
    /// Computed from the block that the record was read from.
    Block { of: Arc<BlockHashes>, index: u32 },
}

impl Hashes {
    fn body(&self) -> ContentHash {
        match self {
            Self::Known { body, .. } => *body,
            Self::Block { of, index } => of.body(*index),
        }
    }

    fn chain(&self) -> ContentHash {
        match self {
            Self::Known { chain, .. } => *chain,
            Self::Block { of, index } => of.chain_hash(*index),
        }
    }

    /// Returns true when the hashes match their stored check. Hashes that are stored in full always
    /// do.
    fn are_sound(&self) -> bool {
        match self {
            Self::Known { .. } => true,
            Self::Block { of, index } => of.is_sound(*index),
        }
    }
}

impl PartialEq for Hashes {
    fn eq(&self, other: &Self) -> bool {
        self.body() == other.body() && self.chain() == other.chain()
    }
}

impl fmt::Debug for Hashes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hashes")
            .field("body", &self.body())
            .field("chain", &self.chain())
            .finish()
    }
}

impl Record {
    /// Creates a record that follows `previous`, the chain hash of the conversation's last record
    /// (all zero before the first).
    ///
    /// # Errors
    /// [`LogError::TooLarge`] when the header exceeds a limit of the format.
    pub fn seal(
        previous: ContentHash,
        header: EventHeader,
        body: RecordBody,
        hash: SaltedHash,
        append_key: Option<AppendKey>,
    ) -> Result<Self, LogError> {
        let body_hash = hash.hash;
        let mut record = Self {
            header,
            body,
            append_key,
            hashes: Hashes::Known {
                body: body_hash,
                chain: ContentHash::default(),
            },
            salt: Some(hash.salt),
        };
        record.hashes = Hashes::Known {
            body: body_hash,
            chain: record.expected_chain_hash(previous, body_hash)?,
        };
        Ok(record)
    }

    /// Returns the plain (unsalted) hash of a body. A [`BlobRef`] has it while the body exists. The
    /// hash that stays after an erasure is computed from it with a [`Salt`].
    #[must_use]
    pub fn hash_body(body: &[u8]) -> ContentHash {
        ContentHash(*blake3::hash(body).as_bytes())
    }

    /// Returns the chain hash. See [`Record::seal`].
    #[must_use]
    pub fn chain_hash(&self) -> ContentHash {
        self.hashes.chain()
    }

    /// Returns the header and the chain hash. The chain hash of a record read from a block is
    /// computed only on demand.
    #[must_use]
    pub fn into_header(self) -> (EventHeader, ChainHash) {
        let chain = match self.hashes {
            Hashes::Known { chain, .. } => chain.into(),
            Hashes::Block { of, index } => ChainHash::later(of, index),
        };
        (self.header, chain)
    }

    /// Returns the salted hash of the body, which the chain hash covers.
    #[must_use]
    pub(crate) fn body_hash(&self) -> ContentHash {
        self.hashes.body()
    }

    /// Returns true when the body was erased and a stub is in its place.
    #[must_use]
    pub fn is_erased(&self) -> bool {
        matches!(self.body, RecordBody::Stub(_))
    }

    /// Removes the salt of the append key, because an event of its batch was erased: its content
    /// hash then reveals nothing.
    #[must_use]
    pub fn without_key_salt(self) -> Self {
        Self {
            append_key: self.append_key.map(AppendKey::without_salt),
            ..self
        }
    }

    /// Returns the plain hash of the body ([`Record::hash_body`]); `None` when it was erased.
    #[must_use]
    pub fn plain_hash(&self) -> Option<ContentHash> {
        match &self.body {
            RecordBody::Inline(bytes) => Some(Self::hash_body(bytes)),
            RecordBody::Blob(blob) => Some(blob.hash),
            RecordBody::Stub(_) => None,
        }
    }

    /// Computes the salted hash of the body that is present; `None` when it was erased.
    pub(super) fn hash_of_body(&self) -> Option<ContentHash> {
        Some(self.salt.as_ref()?.body_hash(self.plain_hash()?))
    }

    /// Returns true when this record follows `previous`. Also checks the body hash against an
    /// inline body, or against the hash in a blob reference.
    #[must_use]
    pub fn verify_chain(&self, previous: ContentHash) -> bool {
        let body_fits = match &self.body {
            RecordBody::Stub(_) => true,
            RecordBody::Inline(_) | RecordBody::Blob(_) => {
                self.hash_of_body() == Some(self.hashes.body())
            }
        };
        body_fits && self.is_sound() && self.hash_follows(previous)
    }

    /// Replaces the body by a stub. Hashes and header stay as they are.
    #[must_use]
    pub fn erased(self, stub: Bytes) -> Self {
        let hashes = Hashes::Known {
            body: self.hashes.body(),
            chain: self.hashes.chain(),
        };
        Self {
            body: RecordBody::Stub(Stub {
                bytes: stub,
                bytes_len: self.body.bytes_len(),
            }),
            append_key: self.append_key.map(AppendKey::without_salt),
            header: self.header,
            hashes,
            salt: None,
        }
    }

    /// Returns true when this record's header and body hash, as read, follow `previous`. Does not
    /// check the body itself, which is covered by the frame's checksum.
    #[must_use]
    pub fn follows(&self, previous: ContentHash) -> bool {
        let made_from = match &self.hashes {
            Hashes::Known { .. } => None,
            Hashes::Block { of, index } => of.previous(*index),
        };
        let follows = match made_from {
            // The chain hash was computed from `made_from` and the stored header.
            Some(made_from) => made_from == previous,
            None => self.hash_follows(previous),
        };
        follows && self.is_sound()
    }

    fn hash_follows(&self, previous: ContentHash) -> bool {
        self.expected_chain_hash(previous, self.hashes.body())
            .is_ok_and(|expected| expected == self.chain_hash())
    }

    /// Returns true when the hashes match their stored check. Hashes that are stored in full always
    /// do.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.hashes.are_sound()
    }

    /// Computes the chain hash of this record after `previous`.
    pub(super) fn expected_chain_hash(
        &self,
        previous: ContentHash,
        body_hash: ContentHash,
    ) -> Result<ContentHash, LogError> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&previous.0);
        codec::with_header_bytes(self, |bytes| {
            hasher.update(bytes);
        })?;
        hasher.update(&body_hash.0);
        Ok(ContentHash(*hasher.finalize().as_bytes()))
    }
}
