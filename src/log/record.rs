//! Records: an event's header, hashes and body as the log keeps them.
//!
//! A record's chain hash covers the previous record of its conversation, its own
//! header and its body's hash, so that history cannot be changed unseen. It does
//! not cover where the body is, so that content can be moved or erased without
//! breaking the chain.

use std::{fmt, sync::Arc};

use bytes::Bytes;

use super::{
    block::BlockHashes,
    codec,
    port::LogError,
    salt::{KeySalt, Salt, SaltedHash},
};
use crate::domain::{ChainHash, ChainHashes as _, ContentHash, EventHeader, TimestampMicros};

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
    /// Nowhere: it was erased.
    Stub(Stub),
}

/// What is left of a body that was erased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stub {
    /// A body of the same kind, without texts.
    pub bytes: Bytes,
    /// How long the body was, in bytes: its header says so for ever.
    pub bytes_len: u64,
}

impl RecordBody {
    /// The body's length, in bytes; of an erased one, what it was.
    #[must_use]
    pub fn bytes_len(&self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Blob(blob) => blob.bytes_len,
            Self::Stub(stub) => stub.bytes_len,
        }
    }

    /// The length of what is stored of it, in bytes, before anything is compressed; of an
    /// erased one, of what is left.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Blob(blob) => blob.bytes_len,
            Self::Stub(stub) => stub.bytes.len() as u64,
        }
    }

    /// Bytes of it that are in the record itself.
    pub(crate) fn here(&self) -> &[u8] {
        match self {
            Self::Inline(bytes) => bytes,
            Self::Blob(_) => &[],
            Self::Stub(stub) => &stub.bytes,
        }
    }
}

/// The idempotency key of a batch, on the batch's first record; or of one event, on its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppendKey {
    /// The key.
    pub key: String,
    /// How many events it stands for, this one and those behind it.
    pub events: u32,
    /// Keyed with the salt: the hash of the batch's content.
    pub content_hash: ContentHash,
    /// None: it was erased with something of the batch.
    pub salt: Option<KeySalt>,
    /// From then on it is not known any more, and may be used again; none: it is for ever.
    pub ends_at: Option<TimestampMicros>,
}

impl AppendKey {
    /// Its content hash says nothing any more.
    #[must_use]
    pub fn without_salt(self) -> Self {
        Self { salt: None, ..self }
    }
}

/// An event as the log keeps it.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Everything but the body.
    pub header: EventHeader,
    /// The body, or where it is.
    pub body: RecordBody,
    /// On the first record of a keyed batch, and on that of an event with a key of its own.
    pub append_key: Option<AppendKey>,
    pub(super) hashes: Hashes,
    /// None: it was erased with the body.
    pub(super) salt: Option<Salt>,
}

/// The hashes of a record, or where they are worked out.
#[derive(Clone)]
pub(super) enum Hashes {
    Known {
        body: ContentHash,
        chain: ContentHash,
    },
    /// They follow from the block that it was read from.
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

    /// True when they are what was kept of them.
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
    /// Makes a record that follows `previous`, the chain hash of the
    /// conversation's last record (all zero before the first).
    ///
    /// # Errors
    /// [`LogError::TooLarge`] when the header has more than the format holds.
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

    /// The plain hash of a body. It is kept of large bodies, as long as they are; what
    /// stays is made from it with a [`Salt`].
    #[must_use]
    pub fn hash_body(body: &[u8]) -> ContentHash {
        ContentHash(*blake3::hash(body).as_bytes())
    }

    /// See [`Record::seal`].
    #[must_use]
    pub fn chain_hash(&self) -> ContentHash {
        self.hashes.chain()
    }

    /// The header, and the chain hash for whoever may not need it: of a record that
    /// was read from a block it is worked out when it is asked for.
    #[must_use]
    pub fn into_header(self) -> (EventHeader, ChainHash) {
        let chain = match self.hashes {
            Hashes::Known { chain, .. } => chain.into(),
            Hashes::Block { of, index } => ChainHash::later(of, index),
        };
        (self.header, chain)
    }

    /// The hash of the body, made with a salt: what the chain hash is made from.
    #[must_use]
    pub fn body_hash(&self) -> ContentHash {
        self.hashes.body()
    }

    /// True when a stub stands in the place of its body.
    #[must_use]
    pub fn is_erased(&self) -> bool {
        matches!(self.body, RecordBody::Stub(_))
    }

    /// This record with a content hash of its append key that says nothing any more:
    /// something of its batch was erased.
    #[must_use]
    pub fn without_key_salt(self) -> Self {
        Self {
            append_key: self.append_key.map(AppendKey::without_salt),
            ..self
        }
    }

    /// The plain hash of the body ([`Record::hash_body`]); none: it was erased.
    #[must_use]
    pub fn plain_hash(&self) -> Option<ContentHash> {
        match &self.body {
            RecordBody::Inline(bytes) => Some(Self::hash_body(bytes)),
            RecordBody::Blob(blob) => Some(blob.hash),
            RecordBody::Stub(_) => None,
        }
    }

    /// The hash that the body has which is there; none: it was erased.
    pub(super) fn hash_of_body(&self) -> Option<ContentHash> {
        Some(self.salt.as_ref()?.body_hash(self.plain_hash()?))
    }

    /// True when this record, as it is, follows `previous`. An inline body is
    /// checked against its hash too.
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

    /// This record without its body: what is left of that stands in its place. Hashes
    /// and header stay as they are.
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

    /// True when this record's header and body hash follow `previous`, as they were
    /// read. The body itself is not looked at: its frame has a checksum.
    #[must_use]
    pub fn follows(&self, previous: ContentHash) -> bool {
        let made_from = match &self.hashes {
            Hashes::Known { .. } => None,
            Hashes::Block { of, index } => of.previous(*index),
        };
        let follows = match made_from {
            // Its hash was made from that and from what was read.
            Some(made_from) => made_from == previous,
            None => self.hash_follows(previous),
        };
        follows && self.is_sound()
    }

    fn hash_follows(&self, previous: ContentHash) -> bool {
        self.expected_chain_hash(previous, self.hashes.body())
            .is_ok_and(|expected| expected == self.chain_hash())
    }

    /// True when its hashes are what was kept of them, as far as they were.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.hashes.are_sound()
    }

    /// The chain hash that this record has behind `previous`.
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
