//! The backend port: the interface of a log backend, which stores frames without interpreting their
//! content.
//!
//! A shard is a totally ordered part of the log with one owner at a time. The embedded log is one
//! shard, owned by this process. The interface does not assume that this process decides the order.

use std::{io, path::PathBuf, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use uuid::Uuid;

use super::{
    block::Dictionary, erasure::ErasableLog, holder::HolderSecret, patch::BodyPatch,
    record::BlobRef,
};
use treering_domain::{ContentHash, Namespace, ShardId};

/// The error text for a frame or block in a format that only unreleased builds wrote.
pub(super) const OLD_FORMAT: &str =
    "its format is from before the first release and is no longer supported";

/// The ownership epoch of a shard. A later epoch fences off the earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Epoch(pub u64);

impl Epoch {
    /// Checks that the holder of this epoch may append to a shard whose owner has epoch `current`.
    /// For backends.
    ///
    /// # Errors
    /// [`LogError::NotOwner`].
    pub fn check(self, shard: ShardId, current: Self) -> Result<(), LogError> {
        if self == current && self != Self::default() {
            return Ok(());
        }
        Err(LogError::NotOwner {
            shard,
            epoch: self,
            current,
        })
    }
}

/// The result of acquiring a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcquiredShard {
    /// The epoch to pass with every append.
    pub epoch: Epoch,
    /// The last used offset; 0 when the shard is empty. Offsets start at 1.
    pub head: u64,
}

/// The identity of a log. Data derived from one log is valid for that log only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LogIdentity {
    /// The store, fixed when it is created. A copy of its folder has the same id.
    pub store: Uuid,
    /// The period in which the log has only grown. It changes when a loss was accepted: offsets
    /// after that point may then refer to different records than before.
    pub timeline: Uuid,
}

/// Consecutive records as stored: a frame or, once the segment is sealed, a block. See
/// [`crate::frame`] and [`crate::block`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedFrame {
    /// Offset of its first record.
    pub first_offset: u64,
    /// How many records it holds, at least 1.
    pub count: u32,
    /// Header and payload of a frame or a [block](crate::block).
    pub bytes: Bytes,
    /// The dictionary that a block may need for decompression. `None` when it needs none, or when
    /// the dictionary is damaged.
    pub dictionary: Option<Arc<Dictionary>>,
}

impl EncodedFrame {
    /// Wraps stored bytes. They are validated when they are decoded, not here.
    #[must_use]
    pub fn new(first_offset: u64, count: u32, bytes: Bytes) -> Self {
        Self {
            first_offset,
            count,
            bytes,
            dictionary: None,
        }
    }

    /// Returns the offset of its last record.
    #[must_use]
    pub fn last_offset(&self) -> u64 {
        self.first_offset + u64::from(self.count.saturating_sub(1))
    }
}

/// A large body, stored separately under the offset of the record that first references it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewBlob {
    /// The tenant of that record. Equal content in another namespace is a separate blob.
    pub namespace: Namespace,
    /// BLAKE3 of `bytes`.
    pub hash: ContentHash,
    /// Offset of that record, which must be in the same batch.
    pub home_offset: u64,
    /// The body, uncompressed.
    pub bytes: Bytes,
    /// The difference from another large body, which may be in the same batch. A backend may store
    /// the patch instead of the body; reads return the full body.
    pub patch: Option<BodyPatch>,
}

impl NewBlob {
    /// Returns the reference by which records name this blob.
    #[must_use]
    pub fn reference(&self) -> BlobRef {
        BlobRef {
            hash: self.hash,
            bytes_len: self.bytes.len() as u64,
            home_offset: self.home_offset,
        }
    }
}

/// The unit of an append: all of it is appended, or nothing.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct FrameBatch {
    /// In order, without gaps; the first one starts at head + 1.
    pub frames: Vec<EncodedFrame>,
    /// Large bodies that the records reference.
    pub blobs: Vec<NewBlob>,
}

impl FrameBatch {
    /// Returns the head after this batch.
    #[must_use]
    pub fn new_head(&self, head: u64) -> u64 {
        self.frames.last().map_or(head, EncodedFrame::last_offset)
    }

    /// Makes the checks that every backend must make: frames follow the head and each other without
    /// a gap, and the home offset of every blob is in the batch.
    ///
    /// # Errors
    /// [`LogError::Gap`] with the expected offset.
    pub fn check(&self, head: u64) -> Result<(), LogError> {
        let mut next = head + 1;
        for frame in &self.frames {
            if frame.first_offset != next || frame.count == 0 {
                return Err(LogError::Gap {
                    expected: next,
                    actual: frame.first_offset,
                });
            }
            next = frame.last_offset() + 1;
        }
        match self
            .blobs
            .iter()
            .find(|blob| blob.home_offset <= head || blob.home_offset >= next)
        {
            Some(blob) => Err(LogError::Gap {
                expected: head + 1,
                actual: blob.home_offset,
            }),
            None => Ok(()),
        }
    }
}

/// The size of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LogStats {
    /// Bytes that it occupies in storage.
    pub bytes: u64,
    /// Number of segments.
    pub segments: u64,
}

/// The process that has a data folder open, according to its lock file.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct LockHolder {
    /// Process id, if it could be read.
    pub pid: Option<u32>,
    /// Address of its server, if it has one.
    pub address: Option<String>,
    /// The secret that authenticates its server. `None` when there is none, or when other users
    /// could have written the file.
    pub secret: Option<HolderSecret>,
    /// True when the lock file belongs to this user and nobody else can read or write it.
    pub is_private: bool,
}

impl std::fmt::Display for LockHolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.pid, &self.address) {
            (Some(pid), Some(address)) => {
                write!(f, "process {pid}, which serves it at {address}")
            }
            (Some(pid), None) => write!(f, "process {pid}"),
            (None, Some(address)) => write!(f, "a process that serves it at {address}"),
            (None, None) => f.write_str("another process"),
        }
    }
}

/// Why a log backend failed. The outcome of a group of appends is reported as
/// [`GroupError`](super::GroupError).
#[derive(Clone, Debug, thiserror::Error)]
pub enum LogError {
    /// Another owner holds the shard.
    #[error("shard {shard} is owned by epoch {current}, not {epoch}; acquire it again", shard = shard.0, current = current.0, epoch = epoch.0)]
    NotOwner {
        /// The shard.
        shard: ShardId,
        /// The caller's epoch.
        epoch: Epoch,
        /// The owner's epoch.
        current: Epoch,
    },
    /// The shard's head differs from the expected one. Nothing was appended.
    #[error("log head is {actual}, not {expected}; nothing was appended")]
    HeadMismatch {
        /// The head that the caller expected.
        expected: u64,
        /// The actual head.
        actual: u64,
    },
    /// The offsets of a batch are not consecutive. Nothing was appended.
    #[error("batch starts at offset {actual}, expected {expected}; nothing was appended")]
    Gap {
        /// The expected offset.
        expected: u64,
        /// The offset in the batch.
        actual: u64,
    },
    /// The disk is full. Nothing was appended; reads still work.
    #[error(
        "no space left on the log's disk ({doing}); nothing was appended. Free some space and \
         append again"
    )]
    NoSpace {
        /// The operation that needed space.
        doing: &'static str,
    },
    /// The data folder is not writable.
    #[error("{path} is not writable; check its permissions and mount options")]
    ReadOnly {
        /// The folder or file.
        path: PathBuf,
    },
    /// The store was opened for reading only. Nothing was appended.
    #[error("the store is open read-only; nothing was appended")]
    OpenedToRead,
    /// An I/O error.
    #[error("I/O error while {doing}: {source}")]
    Io {
        /// The operation that failed.
        doing: &'static str,
        /// The error of the operating system.
        source: Arc<io::Error>,
    },
    /// The database or object storage of the log does not answer now. Nothing was appended, and the
    /// same call can succeed later.
    #[error(
        "the storage of the log cannot be used while {doing}: {what}. Check that its PostgreSQL \
         primary and synchronous standby, and its object storage, run and can be reached"
    )]
    Unavailable {
        /// The operation that failed.
        doing: &'static str,
        /// What happened.
        what: String,
    },
    /// The stored bytes differ from what was written.
    #[error("log is damaged at offset {offset}: {what}")]
    Damaged {
        /// The first record that cannot be trusted; 0 when unknown.
        offset: u64,
        /// What is wrong.
        what: String,
    },
    /// The log regressed: something that it contained is missing. Nothing was changed.
    #[error(
        "log regressed: {what}. Nothing was changed. Put the missing files back, or restore a copy \
         of the whole folder; `treering repair` lists what is lost, and `treering repair \
         --accept-loss` continues without it"
    )]
    Regressed {
        /// What is missing, or older than before.
        what: String,
    },
    /// There is no log here, and the caller did not ask to create one.
    #[error("no store in {path}")]
    NoStore {
        /// The data folder.
        path: PathBuf,
    },
    /// The batch may or may not have been appended; read the head again.
    #[error("unknown whether the batch after offset {head} was appended ({what})")]
    UnknownOutcome {
        /// The head before the batch.
        head: u64,
        /// What went wrong.
        what: String,
    },
    /// Another process has the folder open.
    #[error("{path} is locked by {holder}")]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// The process that holds it.
        holder: LockHolder,
    },
    /// The data folder was moved or replaced under this process. Nothing was appended.
    #[error(
        "{path} is not the data folder that this process opened: it was moved or replaced. Nothing \
         was appended. Stop this process and start it with the folder's new path"
    )]
    FolderMoved {
        /// Where the data folder was.
        path: PathBuf,
    },
    /// The log was written by a newer version.
    #[error(
        "the log has format version {version} at offset {offset}, newer than the supported version \
         {supported}"
    )]
    NewerFormat {
        /// Offset at which the newer format was found.
        offset: u64,
        /// The version found.
        version: u8,
        /// The newest version that this program reads.
        supported: u8,
    },
    /// The log was written by a version from before the first release. Nothing was changed.
    #[error(
        "the log has format version {version}, and this program reads only version {supported}: it \
         was written before the first release of treering. Export it with the program that wrote \
         it, and import that into a new store"
    )]
    OlderFormat {
        /// The version found.
        version: u32,
        /// The version that this program reads.
        supported: u32,
    },
    /// A record exceeds a limit of the format. Nothing was appended.
    #[error("a record's {what} has {bytes} bytes; the maximum is {max}")]
    TooLarge {
        /// The part that is too large.
        what: &'static str,
        /// Its size, in bytes.
        bytes: usize,
        /// The limit, in bytes.
        max: usize,
    },
    /// No record has this offset.
    #[error("no record at offset {offset}: it is beyond the end of the log")]
    NotFound {
        /// The requested offset.
        offset: u64,
    },
    /// The backend does not have this shard.
    #[error("no shard {shard} in this log", shard = shard.0)]
    UnknownShard {
        /// The requested shard.
        shard: ShardId,
    },
    /// The log has been closed.
    #[error("the log is closed")]
    Closed,
}

impl LogError {
    /// Converts an I/O error; a full disk becomes [`LogError::NoSpace`].
    #[must_use]
    pub(crate) fn from_io(doing: &'static str, error: io::Error) -> Self {
        if matches!(
            error.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
        ) {
            return Self::NoSpace { doing };
        }
        Self::Io {
            doing,
            source: Arc::new(error),
        }
    }

    /// Creates the error for a damaged manifest.
    pub(crate) fn manifest(what: &str) -> Self {
        Self::Regressed {
            what: format!("the manifest is damaged: {what}"),
        }
    }

    /// Creates the error for damage at an offset.
    #[must_use]
    pub fn damaged(offset: u64, what: impl Into<String>) -> Self {
        Self::Damaged {
            offset,
            what: what.into(),
        }
    }
}

/// A log of frames. The suite that every backend must pass is in `log::testkit` (feature
/// `testkit`).
#[async_trait]
pub trait EventLog: Send + Sync + 'static {
    /// Returns the identity of this log.
    fn identity(&self) -> LogIdentity;

    /// Returns true when this log has, or once had, this timeline.
    fn knows_timeline(&self, timeline: Uuid) -> bool {
        self.identity().timeline == timeline
    }

    /// Acquires ownership of the shard. Earlier owners can no longer append.
    ///
    /// # Errors
    /// When the shard cannot be read.
    async fn acquire(&self, shard: ShardId) -> Result<AcquiredShard, LogError>;

    /// Appends a batch after `head`, all or nothing, and returns the new head once the batch is
    /// durable.
    ///
    /// # Errors
    /// On error nothing was appended, except for [`LogError::UnknownOutcome`].
    async fn append(
        &self,
        shard: ShardId,
        epoch: Epoch,
        head: u64,
        batch: FrameBatch,
    ) -> Result<u64, LogError>;

    /// Returns the frame that contains `from_offset` and the following frames, until their total
    /// size reaches `bytes_max`; at least one if any exists. Empty when `from_offset` is beyond the
    /// head.
    ///
    /// # Errors
    /// When they cannot be read.
    async fn read(
        &self,
        shard: ShardId,
        from_offset: u64,
        bytes_max: usize,
    ) -> Result<Vec<EncodedFrame>, LogError>;

    /// Returns the first offset after `after_offset` at which a frame begins, as far as the list of
    /// frames is still readable. For callers that continue after damage.
    ///
    /// # Errors
    /// [`LogError::Damaged`] when the following frame cannot be found either; its offset is the
    /// last one known to be unreachable.
    async fn next_frame(&self, shard: ShardId, after_offset: u64) -> Result<Option<u64>, LogError>;

    /// Returns a large body, checked against the length and hash in its record.
    ///
    /// # Errors
    /// [`LogError::Damaged`] when it is missing or does not match its record.
    async fn blob(&self, shard: ShardId, blob: &BlobRef) -> Result<Bytes, LogError>;

    /// Waits until the head is beyond `after_offset`, and returns the head.
    ///
    /// # Errors
    /// [`LogError::Closed`] when the log is closed meanwhile.
    async fn tail(&self, shard: ShardId, after_offset: u64) -> Result<u64, LogError>;

    /// Returns the size of a shard.
    ///
    /// # Errors
    /// When the size cannot be determined.
    async fn stats(&self, shard: ShardId) -> Result<LogStats, LogError>;

    /// Returns what erases content from a shard, for the owner that acquired it with this epoch.
    /// `None`: the log cannot erase.
    fn erasable(self: Arc<Self>, shard: ShardId, epoch: Epoch) -> Option<Arc<dyn ErasableLog>> {
        let _ = (shard, epoch);
        None
    }

    /// Closes the log: later calls fail with [`LogError::Closed`].
    ///
    /// # Errors
    /// When it could not be closed cleanly; no acknowledged append is lost.
    async fn close(&self) -> Result<(), LogError>;
}
