//! Errors of the projections. They can be rebuilt, so most errors are resolved by
//! [`Projections::wipe`](super::Projections::wipe) and a rebuild.

use std::{error::Error, io};

use treering_domain::{ConversationId, Revision};

/// Why a read or write of the projections failed.
#[derive(Debug, thiserror::Error)]
pub enum ProjectionsError {
    /// The file was written by another version of the program.
    #[error(
        "the projections have version {found}, but this program writes {expected}: rebuild them"
    )]
    OtherVersion {
        /// The version of the file.
        found: u32,
        /// The version that this program writes.
        expected: u32,
    },
    /// The file differs from what was written.
    #[error("the projections are damaged ({what}): rebuild them")]
    Damaged {
        /// What was found.
        what: String,
    },
    /// Another process, or another handle of this one, has the file open.
    #[error("the projections are in use by another process")]
    Locked,
    /// The disk or its quota is full.
    #[error("no space left for the projections: free some space and retry")]
    NoSpace,
    /// The projections were closed, perhaps by an earlier failure: reopen them.
    #[error("the projections are closed: reopen them")]
    Closed,
    /// The delta starts at or before the offset that was already applied.
    #[error(
        "the projections have reached offset {reached}; a delta from {first} to {last} was already \
         applied"
    )]
    NotBeyond {
        /// Log offset that the projections have reached.
        reached: u64,
        /// First offset of the delta.
        first: u64,
        /// Offset that it would reach.
        last: u64,
    },
    /// The delta skips events.
    #[error(
        "expected revision {expected} of conversation {conversation}, got {found}: rebuild the \
         projections"
    )]
    Gap {
        /// The conversation.
        conversation: ConversationId,
        /// The revision that was expected next.
        expected: Revision,
        /// The revision in the delta.
        found: Revision,
    },
    /// The delta has events or a branch of a conversation, but not the conversation's row.
    #[error("the delta has no row for a conversation that it changes")]
    Incomplete,
    /// A row cannot be encoded.
    #[error("a row of the projections cannot be encoded: {what}")]
    Encode {
        /// Why.
        what: String,
    },
    /// Another failure of the store.
    #[error("the store of the projections failed")]
    Storage {
        /// The cause.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

impl ProjectionsError {
    /// Returns true when the file must be wiped and rebuilt.
    #[must_use]
    pub fn needs_rebuild(&self) -> bool {
        matches!(
            self,
            Self::OtherVersion { .. } | Self::Damaged { .. } | Self::Gap { .. } | Self::Incomplete
        )
    }

    pub(super) fn damaged(what: impl Into<String>) -> Self {
        Self::Damaged { what: what.into() }
    }

    fn of_io(error: io::Error) -> Self {
        use io::ErrorKind as Kind;
        match error.kind() {
            Kind::StorageFull | Kind::QuotaExceeded | Kind::FileTooLarge => Self::NoSpace,
            Kind::InvalidData | Kind::UnexpectedEof | Kind::IsADirectory => {
                Self::damaged(error.to_string())
            }
            _ => Self::Storage {
                source: Box::new(error),
            },
        }
    }

    fn of_redb(error: redb::Error) -> Self {
        use redb::Error as Redb;
        match error {
            Redb::Io(error) => Self::of_io(error),
            Redb::DatabaseAlreadyOpen | Redb::LockProtocolMismatch => Self::Locked,
            Redb::PreviousIo | Redb::DatabaseClosed | Redb::LockPoisoned(_) => Self::Closed,
            damage @ (Redb::Corrupted(_)
            | Redb::UpgradeRequired(_)
            | Redb::RepairAborted
            | Redb::TableTypeMismatch { .. }
            | Redb::TableIsMultimap(_)
            | Redb::TableIsNotMultimap(_)
            | Redb::TypeDefinitionChanged { .. }
            | Redb::TableDoesNotExist(_)) => Self::damaged(damage.to_string()),
            other => Self::Storage {
                source: Box::new(other),
            },
        }
    }
}

impl From<io::Error> for ProjectionsError {
    fn from(error: io::Error) -> Self {
        Self::of_io(error)
    }
}

macro_rules! from_redb {
    ($($error:ident)*) => {$(
        impl From<redb::$error> for ProjectionsError {
            fn from(error: redb::$error) -> Self {
                Self::of_redb(error.into())
            }
        }
    )*};
}

from_redb! { DatabaseError TransactionError TableError StorageError CommitError SetDurabilityError }
