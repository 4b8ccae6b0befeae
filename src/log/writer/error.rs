//! Why a group was not appended.

use crate::log::port::LogError;

/// Why a group of appends is not in the log, or may not be.
#[derive(Clone, Debug, thiserror::Error)]
pub enum GroupError {
    /// The log did not take it, or does not say ([`LogError::UnknownOutcome`]).
    #[error(transparent)]
    Log(#[from] LogError),
    /// The outcome of a batch was not known; then the log said that it is not there.
    #[error("the log failed ({what}), and has said since that nothing was appended")]
    NotAppended {
        /// What went wrong.
        what: String,
    },
    /// It is not known what became of an earlier batch, so that this one has no
    /// place yet. It was not appended.
    #[error(
        "the log is being asked what became of an earlier batch ({what}); nothing of this one was appended"
    )]
    Unsettled {
        /// What went wrong.
        what: String,
        /// When the log is asked again, in milliseconds.
        retry_after_ms: u64,
    },
    /// The writer cannot be trusted any more. Nothing was appended.
    #[error("the log's writer has failed: {what}; nothing was appended")]
    Broken {
        /// What happened to it.
        what: String,
    },
    /// An earlier group is in the log but could not be published. Nothing was appended.
    #[error("what was appended before could not be published ({what}); nothing was appended")]
    Unpublished {
        /// What the publisher said.
        what: String,
    },
}
