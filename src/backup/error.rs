//! What can go wrong with a backup.

use std::path::PathBuf;

use crate::domain::Cause;

/// Why a backup, or a restore, did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// An address that names no place for a backup.
    #[error("`{address}` is no place for a backup: {what}")]
    Address {
        /// What was given.
        address: String,
        /// Why not.
        what: String,
    },
    /// A key that cannot be used.
    #[error("the key file {path} cannot be used: {what}")]
    Key {
        /// The file.
        path: PathBuf,
        /// Why not.
        what: String,
    },
    /// The target does not do what it is asked.
    #[error("{doing} {object} failed")]
    Target {
        /// What was being done.
        doing: &'static str,
        /// To which object, with the target's address.
        object: String,
        /// What it said.
        source: Cause,
    },
    /// An object of the backup is missing.
    #[error("the backup is damaged: {object} is missing")]
    Missing {
        /// Its address.
        object: String,
    },
    /// An object of the backup is not what it should be.
    #[error("the backup is damaged: {object}: {what}")]
    Damaged {
        /// Its address.
        object: String,
        /// What is wrong.
        what: String,
    },
    /// An object cannot be read with the key that was given, or without one.
    #[error("{object} cannot be read: {what}")]
    Locked {
        /// Its address.
        object: String,
        /// What is wrong.
        what: &'static str,
    },
    /// There is no backup there.
    #[error("there is no backup in {address}")]
    NoBackup {
        /// The place.
        address: String,
    },
    /// Backups of several stores are there.
    #[error("{address} has backups of several stores: {stores}")]
    Several {
        /// The place.
        address: String,
        /// Their ids.
        stores: String,
    },
    /// There are backups there, and none of the store that is meant.
    #[error("{address} has no backup of store {wanted}; it has backups of {stores}")]
    OtherStore {
        /// The place.
        address: String,
        /// The store that is meant.
        wanted: uuid::Uuid,
        /// The ids of those that are there.
        stores: String,
    },
    /// Somebody else wrote a generation meanwhile.
    #[error(
        "another backup to {address} wrote generation {generation} while this one ran: this one \
         wrote no generation, and the other one stands"
    )]
    Overtaken {
        /// The place.
        address: String,
        /// Which.
        generation: u64,
    },
    /// The generation that a backup goes on from was removed while it ran.
    #[error(
        "generation {generation} was removed from {address} while this backup ran, and no newer \
         one is there: this backup wrote no generation"
    )]
    Gone {
        /// The place.
        address: String,
        /// Which.
        generation: u64,
    },
    /// A key where earlier generations have none, or the other way round.
    #[error("{what}")]
    OtherKey {
        /// What is and what was.
        what: String,
    },
    /// The store that is backed up did not give what was asked.
    #[error("the store cannot be read")]
    Source {
        /// What it said.
        source: Cause,
        /// It may work when it is tried again.
        passes: bool,
    },
    /// A place of the history that the backup does not have.
    #[error("{what}")]
    NoSuchPlace {
        /// What was asked, and what there is.
        what: String,
    },
    /// There is something at the place of the new store.
    #[error("{path} is not empty: name a new folder for what is restored")]
    NotEmpty {
        /// The folder.
        path: PathBuf,
    },
    /// Another restore makes a store there.
    #[error("another restore into {path} is running: this one changed nothing")]
    RestoreRuns {
        /// The folder.
        path: PathBuf,
    },
    /// The new store cannot be written, or does not open.
    #[error("the store in {path} cannot be made")]
    Store {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: Cause,
    },
    /// What should not be.
    #[error("{doing} failed")]
    Internal {
        /// What was being done.
        doing: &'static str,
        /// What failed.
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
