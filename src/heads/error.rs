//! Errors of signed heads.

use treering_backup::BackupError;
use treering_domain::{Cause, ConversationId, PublicKey, Revision};
use treering_engine::{ReadError, SignatureError};

/// Why a head was not made, not stored, or does not match a store.
#[derive(Debug, thiserror::Error)]
pub enum HeadError {
    /// The text is not a head.
    #[error("not a signed head: {what}")]
    NoHead {
        /// What is wrong.
        what: String,
    },
    /// A head of a newer format.
    #[error("the head has version {version}, and this program supports version {known}")]
    Newer {
        /// Its version.
        version: u64,
        /// The newest known version.
        known: u64,
    },
    /// The signature is not valid.
    #[error(transparent)]
    Signature(#[from] SignatureError),
    /// The head has another signer.
    #[error("signed by {by}, expected {wanted}")]
    ForeignSigner {
        /// Its signer.
        by: PublicKey,
        /// The expected signer.
        wanted: PublicKey,
    },
    /// The head is of another store.
    #[error("the head belongs to store {of}, but this is store {this}")]
    OtherStore {
        /// The store of the head.
        of: uuid::Uuid,
        /// The store that was checked.
        this: uuid::Uuid,
    },
    /// The log ends before the head.
    #[error(
        "the store ends at position {ends}, before the signed position {position}: it was rolled \
         back to an older copy, or lost its end"
    )]
    Shorter {
        /// The last position of the log.
        ends: u64,
        /// The head's position.
        position: u64,
    },
    /// The log has another history.
    #[error(
        "the history up to position {position} differs from the signed one: it has {conversations} \
         conversations with root {root}, the head has {signed_conversations} with root \
         {signed_root}{after_loss}"
    )]
    Changed {
        /// The position of the head.
        position: u64,
        /// Conversations in the log.
        conversations: u64,
        /// Their root.
        root: String,
        /// Conversations in the head.
        signed_conversations: u64,
        /// Their root.
        signed_root: String,
        /// Note for the message: whether a loss was accepted since.
        after_loss: &'static str,
    },
    /// Content is missing without an event that records its erasure.
    #[error(
        "{count} events have no content, but no event records their erasure; the first is \
         {conversation}#{revision}"
    )]
    NotErased {
        /// Number of such events.
        count: u64,
        /// Conversation of the first one.
        conversation: ConversationId,
        /// Revision of the first one.
        revision: Revision,
    },
    /// The log is inconsistent.
    #[error("the history is inconsistent at position {position}: {what}")]
    Broken {
        /// The position.
        position: u64,
        /// The inconsistency.
        what: String,
    },
    /// The log cannot be read.
    #[error("the history cannot be read")]
    Unreadable(#[source] Cause),
    /// Signing or storing a head failed.
    #[error("{doing} failed")]
    Failed {
        /// The operation.
        doing: String,
        /// The cause.
        source: Cause,
    },
}

impl From<BackupError> for HeadError {
    fn from(error: BackupError) -> Self {
        match error {
            BackupError::Source { source, .. } => Self::Unreadable(source),
            error => Self::failed("storing a head", error),
        }
    }
}

impl From<ReadError> for HeadError {
    fn from(error: ReadError) -> Self {
        Self::Unreadable(Cause::of(error))
    }
}

impl HeadError {
    pub(super) fn failed(
        doing: impl Into<String>,
        error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Failed {
            doing: doing.into(),
            source: Cause::of(error),
        }
    }
}
