//! Errors, one enum per operation.

use std::{error::Error, path::PathBuf, sync::Arc};

#[cfg(feature = "digest")]
use treering_digest::knowledge::KnowledgePolicyError;
use treering_domain::{
    Cause, ConversationId, Damage, Namespace, Position, QuotaExceeded, Rejection, Revision,
    limits::{LOG_RETRY, RETRY_MIN, VIEWS_RETRY},
};
use treering_log::{GroupError, LogError};
use treering_projections::ProjectionsError;

/// Why an append failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AppendError {
    /// A rule forbids it. Nothing was appended.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// Event `event_index` of the batch is malformed. Nothing was appended.
    #[error("event {event_index} of the batch: {message}")]
    Invalid {
        /// Index in the batch, from 0.
        event_index: usize,
        /// What is wrong with it.
        message: String,
    },
    /// A limit was exceeded. Nothing was appended.
    #[error("{what} is {actual}; the maximum is {max} (limits.{limit})")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its size.
        actual: usize,
        /// The limit.
        max: usize,
        /// The limit's name in the configuration.
        limit: &'static str,
    },
    /// The writer's queue is full. Nothing was appended.
    #[error("the writer is busy: retry in {retry_after_ms} ms")]
    Busy {
        /// When to retry, in milliseconds.
        retry_after_ms: u64,
    },
    /// The disk is full. Nothing was appended.
    #[error(
        "the disk is full: nothing was appended. Reads still work; appends resume once there is \
         space"
    )]
    NoSpace,
    /// The append would exceed the namespace's quota. Nothing was appended.
    #[error(
        "namespace {namespace} has used {} of its quota of {} {}, and this append adds {}: nothing \
         was appended, reads still work. {}, or ask the server's operator to raise the quota \
         (`serve --quota`)",
        .passed.used, .passed.quota, .passed.part, .passed.adds, .passed.advice()
    )]
    OverQuota {
        /// The namespace.
        namespace: Namespace,
        /// The used amount, the quota, and what the append would add.
        passed: QuotaExceeded,
    },
    /// The folder is not writable. Nothing was appended.
    #[error("the data folder is read-only: nothing was appended")]
    ReadOnly,
    /// The log has not confirmed whether it stored the batch.
    #[error(
        "unknown whether the batch was appended ({message}): repeat it with its idempotency key, \
         or read the branch"
    )]
    UnknownOutcome {
        /// The log's error.
        message: String,
    },
    /// Appends are temporarily impossible and recover without intervention. Nothing was appended.
    #[error("nothing was appended: {message}; retry in {retry_after_ms} ms")]
    Unready {
        /// The problem.
        message: String,
        /// When to retry, in milliseconds.
        retry_after_ms: u64,
    },
    /// Appends are stopped until the store is reopened. Nothing was appended.
    #[error("nothing was appended; appends are stopped until a restart: {message}")]
    Stopped {
        /// The reason.
        message: String,
    },
    /// The store failed. Nothing was appended.
    #[error("nothing was appended")]
    Storage {
        /// The cause.
        source: Cause,
    },
    /// Data needed for the decision could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The engine is closing. Nothing was appended.
    #[error("the engine is shutting down: nothing was appended")]
    Closing,
}

/// Why a read failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReadError {
    /// The conversation's stored `knowledge` policy is invalid.
    #[cfg(feature = "digest")]
    #[error(transparent)]
    KnowledgePolicy(#[from] KnowledgePolicyError),
    /// No such conversation in this namespace.
    #[error("no conversation {id}")]
    ConversationNotFound {
        /// The requested id.
        id: String,
    },
    /// Several conversations have this source id.
    #[error("{count} conversations have the source id {id}: use a UUID instead")]
    AmbiguousSourceId {
        /// The requested id.
        id: String,
        /// The number of conversations with the id.
        count: usize,
    },
    /// No such branch.
    #[error("conversation {conversation} has no branch named {branch:?}")]
    BranchNotFound {
        /// The conversation.
        conversation: ConversationId,
        /// The requested branch.
        branch: String,
    },
    /// The revision is not in the branch's history.
    #[error("revision {revision} is not in the history of branch {branch:?}; its head is {head}")]
    RevisionNotFound {
        /// The branch.
        branch: String,
        /// The requested revision.
        revision: Revision,
        /// The branch's head.
        head: Revision,
    },
    /// No such tool call on the branch.
    #[error("branch {branch:?} has no tool call {call_id:?} {state}")]
    CallNotFound {
        /// The branch.
        branch: String,
        /// The requested call id.
        call_id: String,
        /// The state that the call was required to have.
        state: &'static str,
    },
    /// The request is invalid.
    #[error("{message}")]
    Invalid {
        /// What is wrong.
        message: String,
    },
    /// A filtered read has scanned as many events as one read may.
    #[error(
        "the read scanned {looked_at} events, the most that one read may: continue from where it \
         stopped"
    )]
    ScanBound {
        /// The number of scanned events.
        looked_at: u64,
        /// Where to continue; see [`ReadQuery::go_on_at`](super::ReadQuery).
        at: super::query::ReadStop,
    },
    /// Stored data is damaged.
    #[error("the store is damaged at position {position}: {message}")]
    Damaged {
        /// The log position of the damage.
        position: Position,
        /// What is wrong.
        message: String,
    },
    /// A newer version of Treering wrote the data.
    #[error(transparent)]
    NewerFormat(LogError),
    /// The request goes beyond the intact part of a damaged conversation.
    #[error(
        "conversation {conversation} is {damage}; it is intact up to revision {}: read no further \
         than that, restore a backup, or copy the intact data with `treering salvage`",
        .damage.sound_to()
    )]
    ConversationDamaged {
        /// The conversation.
        conversation: ConversationId,
        /// The first damaged revision, and what is wrong.
        damage: Arc<Damage>,
    },
    /// An erasure or a rebuild is already running.
    #[error("an erase, or a rebuild of projections or index, is running: wait until it ends")]
    RebuildRuns,
    /// Too many operations of this kind are running.
    #[error("{what}: retry in {retry_after_ms} ms")]
    Busy {
        /// The running operations.
        what: &'static str,
        /// When to retry, in milliseconds.
        retry_after_ms: u64,
    },
    /// The read was stopped before it finished.
    #[error("the read was stopped: the store is closing, or the caller is gone")]
    Stopped,
    /// The projections are damaged. They are derived from the log, so nothing is lost; an engine
    /// with write access rebuilds them by itself.
    #[error(
        "the projections are damaged ({message}); nothing is lost, they are rebuilt from the log"
    )]
    ViewsDamaged {
        /// The fault.
        message: String,
    },
    /// The log cannot be read now. It recovers without intervention of the caller.
    #[error("{message}; retry in {retry_after_ms} ms")]
    Unready {
        /// The problem.
        message: String,
        /// When to retry, in milliseconds.
        retry_after_ms: u64,
    },
    /// The store failed.
    #[error("storage failed")]
    Storage {
        /// The cause.
        source: Cause,
    },
}

/// Why a search failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SearchError {
    /// The query cannot be parsed.
    #[error("invalid query: {message}")]
    Query {
        /// The fault and its place.
        message: String,
    },
    /// The query has no words, phrases or filters to search for.
    #[error("the query has no words to search for")]
    EmptyQuery,
    /// A search by meaning needs a model, and the store was opened without one.
    #[error("search by meaning is off: it needs a model (treering serve --embedder DIR or URL)")]
    NoEmbedder,
    /// The query could not be embedded.
    #[error("the query could not be embedded: {message}")]
    Embedder {
        /// Why the embedder failed.
        message: String,
    },
    /// Data needed for the search could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The index is damaged. It is derived from the log, so nothing is lost; it is being rebuilt.
    #[error("the search index is damaged ({message}); it is rebuilt from the log")]
    IndexDamaged {
        /// The fault.
        message: String,
    },
    /// The index failed.
    #[error("the search index failed (`treering rebuild` rebuilds it)")]
    Index {
        /// The cause.
        source: Cause,
    },
}

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process holds the store.
    #[error("data folder {path} is in use by {holder}")]
    Locked {
        /// The folder.
        path: PathBuf,
        /// The process, and the address it serves at, if any.
        holder: String,
        /// The address that the holder serves at.
        address: Option<String>,
    },
    /// The folder cannot be written.
    #[error("data folder {path} is not writable: check its owner and mode")]
    ReadOnly {
        /// The folder.
        path: PathBuf,
    },
    /// A newer version wrote the store.
    #[error("data folder {path} was written by a newer version of Treering")]
    NewerFormat {
        /// The folder.
        path: PathBuf,
        /// The place, and the format versions.
        source: Cause,
    },
    /// A version from before the first release wrote the store. Nothing was changed.
    #[error("data folder {path} was written before the first release of Treering")]
    OlderFormat {
        /// The folder.
        path: PathBuf,
        /// The format versions, and what to do.
        source: Cause,
    },
    /// There is no store, and the mode does not allow creating one.
    #[error("no store in {path}")]
    NoStore {
        /// The folder.
        path: PathBuf,
    },
    /// The store has pseudonyms, but their key is missing. Nothing was changed.
    #[error(
        "the store in {path} replaces actors, correlation ids and idempotency keys with \
         pseudonyms, but their key, pseudonyms.key, is missing: without it they would be stored in \
         plain text"
    )]
    NoPseudonyms {
        /// The folder.
        path: PathBuf,
    },
    /// The log regressed: something that was stored is missing now. Nothing was changed.
    #[error(
        "the log of the store in {path} regressed: {what}. Nothing was changed. Put the missing \
         files back, or restore a copy of the whole folder; `treering repair` lists what is lost, \
         and `treering repair --accept-loss` continues without it"
    )]
    Regressed {
        /// The folder.
        path: PathBuf,
        /// What is missing, or older than it was.
        what: String,
    },
    /// The log is damaged.
    #[error("the log in {path} is damaged")]
    Damaged {
        /// The folder.
        path: PathBuf,
        /// The place and the fault.
        source: Cause,
    },
    /// Opening failed for another reason.
    #[error("cannot open the data folder {path}")]
    Failed {
        /// The folder.
        path: PathBuf,
        /// The cause.
        source: Cause,
    },
}

impl From<LogError> for ReadError {
    fn from(error: LogError) -> Self {
        match error {
            LogError::Damaged { offset, what } => Self::Damaged {
                position: Position::local(offset),
                message: what,
            },
            error @ LogError::NewerFormat { .. } => Self::NewerFormat(error),
            error @ LogError::Unavailable { .. } => Self::Unready {
                message: error.to_string(),
                retry_after_ms: LOG_RETRY.as_millis() as u64,
            },
            other => Self::storage(other),
        }
    }
}

impl From<ProjectionsError> for ReadError {
    fn from(error: ProjectionsError) -> Self {
        match error {
            ProjectionsError::Damaged { what } => Self::ViewsDamaged { message: what },
            other => Self::storage(other),
        }
    }
}

impl From<GroupError> for AppendError {
    fn from(error: GroupError) -> Self {
        match error {
            GroupError::Log(error) => error.into(),
            GroupError::NotAppended { what } => Self::Unready {
                message: format!("the log failed and has recovered ({what})"),
                retry_after_ms: RETRY_MIN.as_millis() as u64,
            },
            GroupError::Unsettled {
                what,
                retry_after_ms,
            } => Self::Unready {
                message: format!("the outcome of an earlier batch is still unknown ({what})"),
                retry_after_ms,
            },
            GroupError::Broken { what } => Self::Stopped {
                message: format!("the log's writer failed ({what})"),
            },
            GroupError::Unpublished { what } => Self::Stopped {
                message: format!("the projections could not follow the log ({what})"),
            },
        }
    }
}

impl From<LogError> for AppendError {
    fn from(error: LogError) -> Self {
        match error {
            LogError::NoSpace { .. } => Self::NoSpace,
            LogError::ReadOnly { .. } | LogError::OpenedToRead => Self::ReadOnly,
            LogError::UnknownOutcome { what, .. } => Self::UnknownOutcome { message: what },
            LogError::NotOwner { .. } | LogError::HeadMismatch { .. } => Self::Stopped {
                message: "another process has written to the log".to_owned(),
            },
            LogError::Closed => Self::Closing,
            LogError::Unavailable { .. } => Self::Unready {
                message: error.to_string(),
                retry_after_ms: LOG_RETRY.as_millis() as u64,
            },
            LogError::Gap { .. }
            | LogError::Io { .. }
            | LogError::Damaged { .. }
            | LogError::Locked { .. }
            | LogError::FolderMoved { .. }
            | LogError::NoStore { .. }
            | LogError::Regressed { .. }
            | LogError::NewerFormat { .. }
            | LogError::OlderFormat { .. }
            | LogError::TooLarge { .. }
            | LogError::NotFound { .. }
            | LogError::UnknownShard { .. } => Self::Storage {
                source: Cause::of(error),
            },
        }
    }
}

impl AppendError {
    /// Returns the error for a decision that needs committed data that the projections lack. They
    /// have failed and are catching up with the log.
    pub(super) fn projections_behind() -> Self {
        Self::Unready {
            message: "the projections are catching up with the log".to_owned(),
            retry_after_ms: VIEWS_RETRY.as_millis() as u64,
        }
    }

    /// Wraps the cause of a storage failure.
    pub(super) fn storage(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Storage {
            source: Cause::of(error),
        }
    }

    /// Converts an error of the projections.
    pub(super) fn from_projections(error: ProjectionsError) -> Self {
        match error {
            ProjectionsError::Closed => Self::projections_behind(),
            ProjectionsError::Damaged { what } => Self::Unready {
                message: format!(
                    "the projections are damaged ({what}); nothing is lost, they are rebuilt"
                ),
                retry_after_ms: VIEWS_RETRY.as_millis() as u64,
            },
            other => Self::Storage {
                source: Cause::of(other),
            },
        }
    }
}

impl ReadError {
    /// Wraps the cause of a storage failure.
    pub fn storage(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Storage {
            source: Cause::of(error),
        }
    }
}
