//! Errors of backups.

use std::path::PathBuf;

use treering_domain::Cause;
use treering_objects::ObjectError;

/// Why a backup or a restore failed.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// An address that is not valid for a backup.
    #[error("`{address}` is not a valid backup address: {what}")]
    Address {
        /// The address.
        address: String,
        /// What is wrong with it.
        what: String,
    },
    /// A key file that cannot be used.
    #[error("the key file {path} cannot be used: {what}")]
    Key {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// An operation of the target failed.
    #[error("{doing} {object} failed")]
    Target {
        /// The operation.
        doing: &'static str,
        /// The object, with the target's address.
        object: String,
        /// The cause.
        source: Cause,
    },
    /// An object of the backup is missing.
    #[error("the backup is damaged: {object} is missing")]
    Missing {
        /// Its address.
        object: String,
    },
    /// An object of the backup is damaged.
    #[error("the backup is damaged: {object}: {what}")]
    Damaged {
        /// Its address.
        object: String,
        /// What is wrong.
        what: String,
    },
    /// An object cannot be read with the given key, or without one.
    #[error("{object} cannot be read: {what}")]
    Locked {
        /// Its address.
        object: String,
        /// What is wrong.
        what: &'static str,
    },
    /// The target has no backup.
    #[error("no backup in {address}")]
    NoBackup {
        /// The target's address.
        address: String,
    },
    /// The target has backups of several stores.
    #[error("{address} has backups of several stores: {stores}")]
    Several {
        /// The target's address.
        address: String,
        /// Their ids.
        stores: String,
    },
    /// The target has backups, but none of the requested store.
    #[error("{address} has no backup of store {wanted}; it has backups of {stores}")]
    OtherStore {
        /// The target's address.
        address: String,
        /// The requested store.
        wanted: uuid::Uuid,
        /// The ids of the stores that are there.
        stores: String,
    },
    /// Another backup wrote a generation while this one ran.
    #[error(
        "another backup to {address} wrote generation {generation} while this one ran: this one \
         wrote no generation"
    )]
    Overtaken {
        /// The target's address.
        address: String,
        /// The generation.
        generation: u64,
    },
    /// The generation that this backup builds on was removed while it ran.
    #[error(
        "generation {generation} was removed from {address} while this backup ran, and there is no \
         newer one: this backup wrote no generation"
    )]
    Gone {
        /// The target's address.
        address: String,
        /// The generation.
        generation: u64,
    },
    /// A key was given, but the existing generations are not encrypted.
    #[error("{what}")]
    OtherKey {
        /// What was given, and what the target has.
        what: String,
    },
    /// The store that is backed up returned an error.
    #[error("the store cannot be read")]
    Source {
        /// The cause.
        source: Cause,
        /// Whether a retry may succeed.
        passes: bool,
    },
    /// The backup does not contain the requested position or time.
    #[error("{what}")]
    NoSuchPlace {
        /// What was requested, and what the backup contains.
        what: String,
    },
    /// The folder for the new store is not empty.
    #[error("{path} is not empty: name a new folder for the restored store")]
    NotEmpty {
        /// The folder.
        path: PathBuf,
    },
    /// Another restore is running in the folder.
    #[error("another restore into {path} is running: nothing was changed")]
    RestoreRuns {
        /// The folder.
        path: PathBuf,
    },
    /// The new store cannot be written or opened.
    #[error("the store in {path} cannot be created")]
    Store {
        /// The folder.
        path: PathBuf,
        /// The cause.
        source: Cause,
    },
    /// An internal error.
    #[error("{doing} failed")]
    Internal {
        /// The operation.
        doing: &'static str,
        /// The cause.
        source: Cause,
    },
}

impl BackupError {
    pub(super) fn internal(
        doing: &'static str,
        error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Internal {
            doing,
            source: Cause::of(error),
        }
    }

    pub(super) fn store(
        path: &std::path::Path,
        error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Store {
            path: path.to_owned(),
            source: Cause::of(error),
        }
    }
}

impl From<ObjectError> for BackupError {
    fn from(error: ObjectError) -> Self {
        match error {
            ObjectError::Address { address, what } => Self::Address { address, what },
            ObjectError::NoFolder { path } => Self::NoBackup {
                address: path.display().to_string(),
            },
            ObjectError::Storage {
                doing,
                object,
                source,
            } => Self::Target {
                doing,
                object,
                source,
            },
            ObjectError::Missing { object } => Self::Missing { object },
        }
    }
}
