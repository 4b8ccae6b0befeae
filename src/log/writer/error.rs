//! Why a group was not appended.

use crate::port::LogError;

/// Why a group of appends is not in the log, or may not be.
#[derive(Clone, Debug, thiserror::Error)]
pub enum GroupError {
    /// The log refused it, or cannot report the outcome ([`LogError::UnknownOutcome`]).
    #[error(transparent)]
    Log(#[from] LogError),
    /// The outcome of a batch was unknown; later the log reported that it was not appended.
    #[error("the log failed ({what}); nothing was appended")]
    NotAppended {
        /// What went wrong.
        what: String,
    },
    /// The outcome of an earlier batch is unknown, so this batch has no offset yet. It was not
    /// appended.
    #[error("the outcome of an earlier batch is still unknown ({what}); nothing was appended")]
    Unsettled {
        /// What went wrong.
        what: String,
        /// When the log is asked again, in milliseconds.
        retry_after_ms: u64,
    },
    /// The writer failed and cannot be trusted any more. Nothing was appended.
    #[error("the log's writer failed: {what}; nothing was appended")]
    Broken {
        /// The failure.
        what: String,
    },
    /// An earlier group is in the log but could not be published. Nothing was appended.
    #[error("events appended earlier could not be published ({what}); nothing was appended")]
    Unpublished {
        /// The publisher's error.
        what: String,
    },
}
