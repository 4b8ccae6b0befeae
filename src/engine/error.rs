//! Errors, one enum per operation.

use std::{error::Error, path::PathBuf, sync::Arc};

use crate::{
    domain::{
        Cause, ConversationId, Damage, Namespace, Position, QuotaPassed, Rejection, Revision,
        limits::{RETRY_MIN, VIEWS_RETRY},
    },
    log::{GroupError, LogError},
    views::ViewsError,
};

/// Why an append was not taken.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AppendError {
    /// A rule forbids it. Nothing was appended.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// Event `event_index` of the batch is malformed. Nothing was appended.
    #[error("event {event_index} of the batch: {message}")]
    Invalid {
        /// Place in the batch, from 0.
        event_index: usize,
        /// What is wrong with it.
        message: String,
    },
    /// A bound was passed. Nothing was appended.
    #[error("{what} is {actual}; at most {max} are allowed (limits.{limit})")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its size.
        actual: usize,
        /// The bound.
        max: usize,
        /// The bound's name in the configuration.
        limit: &'static str,
    },
    /// The writer has as much waiting as it may. Nothing was appended.
    #[error("the writer is busy: try again in {retry_after_ms} ms")]
    Busy {
        /// When it makes sense to try again, in milliseconds.
        retry_after_ms: u64,
    },
    /// There is no room on the disk. Nothing was appended.
    #[error(
        "the disk is full: nothing was appended; reads go on, and appends work again once there is room"
    )]
    NoSpace,
    /// The namespace has all that it may have. Nothing was appended.
    #[error(
        "the namespace {namespace} has used {} of its quota of {} {}, and this takes {} more: \
         nothing was appended, and reads go on. {}, or let whoever runs the server raise the quota \
         (`serve --quota`)",
        .passed.used, .passed.quota, .passed.part, .passed.adds, .passed.advice()
    )]
    OverQuota {
        /// The namespace.
        namespace: Namespace,
        /// What is used, what there may be, and what would come.
        passed: QuotaPassed,
    },
    /// The folder cannot be written. Nothing was appended.
    #[error("the data folder is read-only: nothing was appended")]
    ReadOnly,
    /// The log did not say whether it took the batch, and does not yet.
    #[error(
        "it is not known whether the batch was appended ({message}): repeat it with its idempotency key, or read the branch"
    )]
    UnknownOutcome {
        /// What the log said.
        message: String,
    },
    /// Appends cannot be taken just now, and will be by themselves. Nothing was
    /// appended.
    #[error("nothing was appended: {message}; try again in {retry_after_ms} ms")]
    Unready {
        /// What is the matter.
        message: String,
        /// When it makes sense to try again, in milliseconds.
        retry_after_ms: u64,
    },
    /// Appends are not taken any more until the store is opened anew. Nothing was
    /// appended.
    #[error("nothing was appended, and appends are stopped until a restart: {message}")]
    Stopped {
        /// Why.
        message: String,
    },
    /// The log failed. Nothing was appended.
    #[error("nothing was appended")]
    Storage {
        /// What the log said.
        source: Cause,
    },
    /// What is needed to decide could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The engine is closing. Nothing was appended.
    #[error("the engine is shutting down: nothing was appended")]
    Closing,
}

/// Why a read failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReadError {
    /// No such conversation in this namespace.
    #[error("there is no conversation {id}")]
    ConversationNotFound {
        /// What was asked for.
        id: String,
    },
    /// A source id that several conversations have.
    #[error("{count} conversations have the source id {id}: use the UUID of one of them")]
    AmbiguousSourceId {
        /// What was asked for.
        id: String,
        /// How many there are.
        count: usize,
    },
    /// No such branch.
    #[error("conversation {conversation} has no branch named {branch:?}")]
    BranchNotFound {
        /// The conversation.
        conversation: ConversationId,
        /// What was asked for.
        branch: String,
    },
    /// The branch's history has no such revision.
    #[error("revision {revision} is not in the history of branch {branch:?}; its head is {head}")]
    RevisionNotFound {
        /// The branch.
        branch: String,
        /// What was asked for.
        revision: Revision,
        /// What there is.
        head: Revision,
    },
    /// No such call on the branch.
    #[error("branch {branch:?} has no tool call {call_id:?} {state}")]
    CallNotFound {
        /// The branch.
        branch: String,
        /// What was asked for.
        call_id: String,
        /// In what state it was looked for.
        state: &'static str,
    },
    /// The request makes no sense.
    #[error("{message}")]
    Invalid {
        /// What is wrong.
        message: String,
    },
    /// A read with a filter has looked at as many events as one may.
    #[error("the read looked at {looked_at} events, as many as one may: read on where it stopped")]
    ScanBound {
        /// How many.
        looked_at: u64,
        /// Where to go on, see [`ReadQuery::go_on_at`](super::ReadQuery).
        at: super::query::ReadStop,
    },
    /// Stored data is damaged.
    #[error("the store is damaged at position {position}: {message}")]
    Damaged {
        /// Where.
        position: Position,
        /// What is wrong.
        message: String,
    },
    /// A newer version of Treering wrote it.
    #[error(transparent)]
    NewerFormat(LogError),
    /// A conversation was asked for beyond what can be read of it.
    #[error(
        "conversation {conversation} is {damage}; it is whole up to revision {}: ask for no more than that, restore the log from a backup, or take what is sound with `treering salvage`",
        .damage.sound_to()
    )]
    ConversationDamaged {
        /// The conversation.
        conversation: ConversationId,
        /// From where on, and what is wrong.
        damage: Arc<Damage>,
    },
    /// A rebuild runs already.
    #[error("an erasing, or a rebuild of views or index, runs already: wait until it has ended")]
    RebuildRuns,
    /// Too much of this kind is under way.
    #[error("{what}: try again in {retry_after_ms} ms")]
    Busy {
        /// What is under way.
        what: &'static str,
        /// When it makes sense to try again, in milliseconds.
        retry_after_ms: u64,
    },
    /// It was stopped before it had ended.
    #[error("the read was stopped: the store is closing, or nobody waits for it")]
    Stopped,
    /// The views are not what was written. They are made from the log: nothing is
    /// lost, and an engine that may write makes them anew by itself.
    #[error("the views are damaged ({message}); nothing is lost, they are made anew from the log")]
    ViewsDamaged {
        /// What was found.
        message: String,
    },
    /// The store failed.
    #[error("the store failed")]
    Storage {
        /// What it said.
        source: Cause,
    },
}

/// Why a search failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SearchError {
    /// The query cannot be read.
    #[error("the query cannot be read: {message}")]
    Query {
        /// What is wrong, and where.
        message: String,
    },
    /// Something it needs could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The index is not what was written. It is made from the log: nothing is lost,
    /// and a new one is under way.
    #[error("the search index is damaged ({message}); it is made anew from the log")]
    IndexDamaged {
        /// What was found.
        message: String,
    },
    /// The index failed.
    #[error("the search index failed (`treering rebuild` makes it anew)")]
    Index {
        /// What it said.
        source: Cause,
    },
}

/// Why a store did not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("the data folder {path} is in use by {holder}")]
    Locked {
        /// The folder.
        path: PathBuf,
        /// Process, and the address it serves at, if it does.
        holder: String,
        /// The address that its holder serves at.
        address: Option<String>,
    },
    /// It cannot be written.
    #[error("the data folder {path} cannot be written: check its owner and mode")]
    ReadOnly {
        /// The folder.
        path: PathBuf,
    },
    /// A newer version wrote it.
    #[error("the data folder {path} was written by a newer version of Treering")]
    NewerFormat {
        /// The folder.
        path: PathBuf,
        /// Where, and the versions of the format.
        source: Cause,
    },
    /// A version from before the first release wrote it. Nothing was changed.
    #[error("the data folder {path} was written before the first release of Treering")]
    OlderFormat {
        /// The folder.
        path: PathBuf,
        /// The versions of the format, and what to do.
        source: Cause,
    },
    /// There is none, and none was to be made.
    #[error("there is no store in {path}")]
    NoStore {
        /// The folder.
        path: PathBuf,
    },
    /// It has pseudonyms, and their key is not there. Nothing was changed.
    #[error(
        "the store in {path} has pseudonyms in place of actors, correlation ids and idempotency \
         keys, and their key, pseudonyms.key, is not in it: without it they would be stored as \
         they are"
    )]
    NoPseudonyms {
        /// The folder.
        path: PathBuf,
    },
    /// Something that was there is not there any more. Nothing was changed.
    #[error(
        "the store in {path} is not what it was: {what}. Nothing was changed. Put back what is \
         missing, or restore a copy of the whole folder; `treering repair` tells what is lost, \
         and with --accept-loss goes on without it"
    )]
    WentBack {
        /// The folder.
        path: PathBuf,
        /// What is missing, or older than it was.
        what: String,
    },
    /// It is damaged.
    #[error("the log in {path} is damaged")]
    Damaged {
        /// The folder.
        path: PathBuf,
        /// Where, and how.
        source: Cause,
    },
    /// It failed.
    #[error("cannot open the data folder {path}")]
    Failed {
        /// The folder.
        path: PathBuf,
        /// What failed.
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
            other => Self::storage(other),
        }
    }
}

impl From<ViewsError> for ReadError {
    fn from(error: ViewsError) -> Self {
        match error {
            ViewsError::Damaged { what } => Self::ViewsDamaged { message: what },
            other => Self::storage(other),
        }
    }
}

impl From<GroupError> for AppendError {
    fn from(error: GroupError) -> Self {
        match error {
            GroupError::Log(error) => error.into(),
            GroupError::NotAppended { what } => Self::Unready {
                message: format!("the log failed and works again ({what})"),
                retry_after_ms: RETRY_MIN.as_millis() as u64,
            },
            GroupError::Unsettled {
                what,
                retry_after_ms,
            } => Self::Unready {
                message: format!("the log is being asked what became of an earlier batch ({what})"),
                retry_after_ms,
            },
            GroupError::Broken { what } => Self::Stopped {
                message: format!("the log's writer has failed ({what})"),
            },
            GroupError::Unpublished { what } => Self::Stopped {
                message: format!("the views could not follow the log ({what})"),
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
            LogError::Gap { .. }
            | LogError::Io { .. }
            | LogError::Damaged { .. }
            | LogError::Locked { .. }
            | LogError::FolderMoved { .. }
            | LogError::NoStore { .. }
            | LogError::WentBack { .. }
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
    /// What the decision needs is not in the views, though it was committed: they
    /// failed, and catch up with the log.
    pub(super) fn views_behind() -> Self {
        Self::Unready {
            message: "the views are catching up with the log".to_owned(),
            retry_after_ms: VIEWS_RETRY.as_millis() as u64,
        }
    }

    /// The store failed of this.
    pub(super) fn storage(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Storage {
            source: Cause::of(error),
        }
    }

    /// The views could not be asked.
    pub(super) fn of_views(error: ViewsError) -> Self {
        match error {
            ViewsError::Closed => Self::views_behind(),
            ViewsError::Damaged { what } => Self::Unready {
                message: format!(
                    "the views are damaged ({what}); nothing is lost, they are made anew"
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
    /// The store failed of this.
    pub(crate) fn storage(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Storage {
            source: Cause::of(error),
        }
    }
}
