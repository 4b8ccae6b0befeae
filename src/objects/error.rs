//! Errors of object storage.

use std::path::PathBuf;

use treering_domain::Cause;

/// Why an operation on object storage failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ObjectError {
    /// The address cannot be used.
    #[error("`{address}` is not a usable folder or bucket: {what}")]
    Address {
        /// The address.
        address: String,
        /// What is wrong with it.
        what: String,
    },
    /// There is no such folder.
    #[error("{path} is not a folder")]
    NoFolder {
        /// The folder.
        path: PathBuf,
    },
    /// An operation failed.
    #[error("{doing} {object} failed")]
    Storage {
        /// The operation.
        doing: &'static str,
        /// The object, with the address of the storage.
        object: String,
        /// The cause.
        source: Cause,
    },
    /// An object is missing.
    #[error("{object} is missing")]
    Missing {
        /// Its address.
        object: String,
    },
}
