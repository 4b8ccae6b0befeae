//! What can go wrong, by operation.

use std::path::PathBuf;

use super::syntax::QueryError;

/// Why the index could not be opened, written or read.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// Damaged, or written by another version: wipe it
    /// ([`super::SearchIndex::wipe`]) and index the log again.
    #[error("the search index must be rebuilt: {reason}")]
    NeedsRebuild {
        /// What was found.
        reason: String,
    },
    /// Another process, or another handle in this one, has it open.
    #[error("the search index in {} is in use by another process", dir.display())]
    Locked {
        /// Where it is.
        dir: PathBuf,
    },
    /// The options make no sense.
    #[error("the search index cannot use {bytes} bytes for its writer; give {min} to {max}")]
    WriterHeap {
        /// What was asked for.
        bytes: usize,
        /// The smallest that works.
        min: usize,
        /// The largest that works.
        max: usize,
    },
    /// The disk or the file system refused.
    #[error("the search index in {} cannot be {action}: {source}", dir.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// Where it is.
        dir: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The engine below failed in another way. The index as committed is intact;
    /// open it again.
    #[error("the search index cannot be {action}: {source}")]
    Engine {
        /// What was tried.
        action: &'static str,
        /// What it said.
        source: tantivy::TantivyError,
    },
}

/// Why a search has no answer.
#[derive(Debug, thiserror::Error)]
pub enum IndexSearchError {
    /// The query cannot be searched.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// A page beyond the bound.
    #[error("a search reaches at most {max} hits; offset {offset} and limit {limit} go beyond")]
    TooFar {
        /// Hits passed over.
        offset: usize,
        /// Hits wanted.
        limit: usize,
        /// The bound on both together.
        max: usize,
    },
    /// A filter with too many values.
    #[error("the filter on {what} has {count} values; at most {max} are allowed")]
    FilterTooLarge {
        /// Which filter.
        what: &'static str,
        /// Its values.
        count: usize,
        /// The bound.
        max: usize,
    },
    /// Path globs over their bound.
    #[error(
        "the path globs have {bytes} bytes together; at most {max} are allowed: \
         ask for fewer paths at a time"
    )]
    GlobsTooLong {
        /// Their bytes.
        bytes: usize,
        /// The bound.
        max: usize,
    },
    /// The index failed.
    #[error(transparent)]
    Index(#[from] IndexError),
}
