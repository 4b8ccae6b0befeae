//! Errors, one enum per operation.

use std::path::PathBuf;

use treering_meaning::ColumnError;

use super::{memory::ExceededBound, syntax::QueryError};

/// Why the index could not be opened, written or read.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// The index is damaged or has another version: call [`super::SearchIndex::wipe`] and index the
    /// log again.
    #[error("the search index must be rebuilt: {reason}")]
    NeedsRebuild {
        /// Why it must be rebuilt.
        reason: String,
    },
    /// Another process, or another handle in this process, has the index open.
    #[error("the search index in {} is in use by another process", dir.display())]
    Locked {
        /// The folder of the index.
        dir: PathBuf,
    },
    /// The writer's heap size is out of bounds.
    #[error("the search index's writer heap of {bytes} bytes is out of range; use {min} to {max}")]
    WriterHeap {
        /// The requested size.
        bytes: usize,
        /// The smallest allowed size.
        min: usize,
        /// The largest allowed size.
        max: usize,
    },
    /// The operating system reported an error.
    #[error("the search index in {} cannot be {action}: {source}", dir.display())]
    Io {
        /// The operation that failed.
        action: &'static str,
        /// The folder of the index.
        dir: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The vectors are inconsistent with each other.
    #[error("the vectors of the search index cannot be written: {0}")]
    Vectors(ColumnError),
    /// tantivy failed in another way. The committed index is intact: open it again.
    #[error("the search index cannot be {action}: {source}")]
    Engine {
        /// The operation that failed.
        action: &'static str,
        /// tantivy's error.
        source: tantivy::TantivyError,
    },
}

/// Why a search failed.
#[derive(Debug, thiserror::Error)]
pub enum IndexSearchError {
    /// The query cannot be searched.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// Offset and limit together exceed the maximum.
    #[error("offset {offset} and limit {limit} exceed the maximum of {max} hits")]
    TooFar {
        /// Hits to skip.
        offset: usize,
        /// Hits to return.
        limit: usize,
        /// The largest sum of both.
        max: usize,
    },
    /// A filter with too many values.
    #[error("the filter {what} has {count} values; the maximum is {max}")]
    FilterTooLarge {
        /// The name of the filter.
        what: &'static str,
        /// The number of its values.
        count: usize,
        /// The largest allowed number.
        max: usize,
    },
    /// Path globs are too long.
    #[error(
        "the path globs have {bytes} bytes together; the maximum is {max}: use fewer paths per \
         search"
    )]
    GlobsTooLong {
        /// Their length in bytes, together.
        bytes: usize,
        /// The largest allowed length in bytes.
        max: usize,
    },
    /// The search would exceed the memory limit of one search.
    #[error("the search needs more than the memory limit of {} MiB, for {what}", max >> 20)]
    TooMuchMemory {
        /// What exceeds the limit, and what to do about it.
        what: ExceededBound,
        /// The limit, in bytes.
        max: usize,
    },
    /// The search was cancelled: its caller left, or the store is closing.
    #[error("the search was stopped: the store is closing, or the caller is gone")]
    Stopped,
    /// The index failed.
    #[error(transparent)]
    Index(#[from] IndexError),
}
