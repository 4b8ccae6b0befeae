//! The port: what a log backend does, over frames that it does not look into.
//!
//! A shard is a totally ordered part of the log with one owner at a time. The
//! embedded log is one shard, owned by this process. Nothing here assumes that
//! the order is decided in this process.

use std::{io, path::PathBuf, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use uuid::Uuid;

use super::{block::Dictionary, patch::BodyPatch, record::BlobRef};
use crate::domain::{ContentHash, Namespace, ShardId};

/// What is said of a frame or a block of a version that nobody has but who built from the
/// sources before the first release.
pub(super) const OLD_FORMAT: &str =
    "it is of a format from before the first release, which is not read any more";

/// Which owner of a shard: a later one fences off the earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Epoch(pub u64);

impl Epoch {
    /// For a backend: whether who shows this epoch may append to a shard, of which
    /// `current` is the owner's.
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

/// What an owner got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acquired {
    /// To be shown with every append.
    pub epoch: Epoch,
    /// The last used offset; 0 when the shard is empty. Offsets start at 1.
    pub head: u64,
}

/// Which log it is. What is made from one log belongs to that one only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LogIdentity {
    /// The store, from its making on. A copy of its folder has the same one.
    pub store: Uuid,
    /// The time in which the log only grew. It changes when a loss was accepted:
    /// offsets beyond that place may stand for other records than before.
    pub timeline: Uuid,
}

/// Some consecutive records as they are stored: a frame, or, once their segment is
/// sealed, a block. See [`crate::log::frame`] and [`crate::log::block`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedFrame {
    /// Offset of its first record.
    pub first_offset: u64,
    /// How many records it holds, at least 1.
    pub count: u32,
    /// Header and payload, of a frame or of a [block](crate::log::block).
    pub bytes: Bytes,
    /// What a block may need to be unpacked; none: it needs nothing, or what it
    /// needs is damaged.
    pub dictionary: Option<Arc<Dictionary>>,
}

impl EncodedFrame {
    /// Records as a backend was given them. Bytes that are no frame are found when they
    /// are read.
    #[must_use]
    pub fn new(first_offset: u64, count: u32, bytes: Bytes) -> Self {
        Self {
            first_offset,
            count,
            bytes,
            dictionary: None,
        }
    }

    /// Offset of its last record.
    #[must_use]
    pub fn last_offset(&self) -> u64 {
        self.first_offset + u64::from(self.count.saturating_sub(1))
    }
}

/// A large body, kept apart under the offset of the record that first names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewBlob {
    /// The tenant of that record. The same content of another one is another blob.
    pub namespace: Namespace,
    /// BLAKE3 of `bytes`.
    pub hash: ContentHash,
    /// Offset of that record; in the same batch.
    pub home_offset: u64,
    /// The body, not compressed.
    pub bytes: Bytes,
    /// What is different in it from another large body, which may be of the same batch. A
    /// backend may keep that instead, and gives the whole back.
    pub patch: Option<BodyPatch>,
}

impl NewBlob {
    /// How a record names it.
    #[must_use]
    pub fn reference(&self) -> BlobRef {
        BlobRef {
            hash: self.hash,
            bytes_len: self.bytes.len() as u64,
            home_offset: self.home_offset,
        }
    }
}

/// What is appended at once: all of it or nothing.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct FrameBatch {
    /// In order, without gaps; the first one starts at head + 1.
    pub frames: Vec<EncodedFrame>,
    /// Bodies that their records name.
    pub blobs: Vec<NewBlob>,
}

impl FrameBatch {
    /// The head after this batch.
    #[must_use]
    pub fn new_head(&self, head: u64) -> u64 {
        self.frames.last().map_or(head, EncodedFrame::last_offset)
    }

    /// Checks what every backend checks: frames follow the head and each other
    /// without a gap, and every blob is named from within the batch.
    ///
    /// # Errors
    /// [`LogError::Gap`] with the offset that was wanted.
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

/// How large a shard is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LogStats {
    /// Bytes that it takes where it is stored.
    pub bytes: u64,
    /// Parts that it is cut into.
    pub segments: u64,
}

/// Who holds a data folder, as far as its lock file says.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct LockHolder {
    /// Process id, when it could be read.
    pub pid: Option<u32>,
    /// Where its server listens, when it has one.
    pub address: Option<String>,
    /// Where its metrics are, when it has some.
    pub metrics: Option<String>,
}

/// What the holder of a data folder tells others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announced<'a> {
    /// Where its server listens.
    Services(&'a str),
    /// Where its metrics are.
    Metrics(&'a str),
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

/// Why the log did not do it. It is a backend's own word; what becomes of a group of appends
/// is told by [`GroupError`](super::GroupError).
#[derive(Clone, Debug, thiserror::Error)]
pub enum LogError {
    /// Someone else owns the shard now.
    #[error("shard {shard} is owned by epoch {current}, not {epoch}; acquire it again", shard = shard.0, current = current.0, epoch = epoch.0)]
    NotOwner {
        /// The shard.
        shard: ShardId,
        /// What the caller showed.
        epoch: Epoch,
        /// The owner's.
        current: Epoch,
    },
    /// The shard's head is elsewhere. Nothing was appended.
    #[error("the log's head is {actual}, not {expected}; nothing was appended")]
    HeadMismatch {
        /// What the caller believed.
        expected: u64,
        /// Where it is.
        actual: u64,
    },
    /// A batch whose offsets do not follow. Nothing was appended.
    #[error("a batch has offset {actual} where {expected} should be; nothing was appended")]
    Gap {
        /// The offset that should come.
        expected: u64,
        /// The one that came.
        actual: u64,
    },
    /// The disk is full. Nothing was appended; reads go on.
    #[error(
        "no space left for the log ({doing}); nothing was appended, free some space and append again"
    )]
    NoSpace {
        /// What needed the space.
        doing: &'static str,
    },
    /// The data folder cannot be written.
    #[error("{path} cannot be written; check its permissions and how its file system is mounted")]
    ReadOnly {
        /// The folder or file.
        path: PathBuf,
    },
    /// Appends were not asked for when it was opened. Nothing was appended.
    #[error("the store was opened for reading only; nothing was appended")]
    OpenedToRead,
    /// The system failed.
    #[error("the log failed while {doing}: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// Stored bytes are not what was written.
    #[error("the log is damaged at offset {offset}: {what}")]
    Damaged {
        /// The first record that cannot be trusted; 0 when not known.
        offset: u64,
        /// What is wrong.
        what: String,
    },
    /// Something that was there is not there any more. Nothing was changed.
    #[error(
        "the log is not what it was: {what}; nothing was changed. Put back what is missing, or \
         restore a copy of the whole folder; `treering repair` tells what is lost, and with \
         --accept-loss goes on without it"
    )]
    WentBack {
        /// What is missing, or older than it was.
        what: String,
    },
    /// There is no log here, and none was asked for.
    #[error("there is no store in {path}")]
    NoStore {
        /// The data folder.
        path: PathBuf,
    },
    /// It may or may not have been appended; read the head again.
    #[error("it is not known whether the batch after offset {head} was appended ({what})")]
    UnknownOutcome {
        /// The head before it.
        head: u64,
        /// What went wrong.
        what: String,
    },
    /// Another process has the folder open.
    #[error("{path} is held by {holder}")]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// Who holds it.
        holder: LockHolder,
    },
    /// The data folder was moved or replaced under this process. Nothing was appended.
    #[error(
        "{path} is not the data folder that this process opened: it was moved or replaced. \
         Nothing was appended. Stop this process; start it again with the folder's new path"
    )]
    FolderMoved {
        /// Where the data folder was.
        path: PathBuf,
    },
    /// A newer version wrote it.
    #[error(
        "the log at offset {offset} has format version {version}, and this program reads up to {supported}: a newer version of treering wrote it"
    )]
    NewerFormat {
        /// Where.
        offset: u64,
        /// What is there.
        version: u8,
        /// What can be read.
        supported: u8,
    },
    /// A version from before the first release wrote it. Nothing was changed.
    #[error(
        "the log has format version {version}, and this program reads only {supported}: it was \
         written before the first release of treering. The program that wrote it can export it; \
         import that into a new store"
    )]
    OlderFormat {
        /// What is there.
        version: u32,
        /// What can be read.
        supported: u32,
    },
    /// A record that the format has no room for. Nothing was appended.
    #[error("a record's {what} has {bytes} bytes; at most {max} fit")]
    TooLarge {
        /// Which part.
        what: &'static str,
        /// Its size.
        bytes: usize,
        /// The bound.
        max: usize,
    },
    /// No record has this offset.
    #[error("there is no record at offset {offset}: the log ends before it")]
    NotFound {
        /// What was asked for.
        offset: u64,
    },
    /// The backend does not hold this shard.
    #[error("shard {shard} is not in this log", shard = shard.0)]
    UnknownShard {
        /// What was asked for.
        shard: ShardId,
    },
    /// The log has been closed.
    #[error("the log is closed")]
    Closed,
}

impl LogError {
    /// From an error of the system, with a full disk told apart.
    #[must_use]
    pub fn from_io(doing: &'static str, error: io::Error) -> Self {
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

    /// Damage of the manifest.
    #[cfg(feature = "redb")]
    pub(crate) fn manifest(what: &str) -> Self {
        Self::WentBack {
            what: format!("its manifest is damaged ({what})"),
        }
    }

    /// Damage at an offset.
    #[must_use]
    pub fn damaged(offset: u64, what: impl Into<String>) -> Self {
        Self::Damaged {
            offset,
            what: what.into(),
        }
    }
}

/// A log of frames. The feature `testkit` has the suite that every backend passes
/// (`log::testkit`).
#[async_trait]
pub trait EventLog: Send + Sync + 'static {
    /// Which log it is.
    fn identity(&self) -> LogIdentity;

    /// True for a timeline that this log is of, or was once.
    fn knows_timeline(&self, timeline: Uuid) -> bool {
        self.identity().timeline == timeline
    }

    /// Becomes the shard's owner. Earlier owners can no longer append.
    ///
    /// # Errors
    /// When the shard cannot be read.
    async fn acquire(&self, shard: ShardId) -> Result<Acquired, LogError>;

    /// Appends a batch after `head`, whole or not at all, and returns the new
    /// head once it is durable.
    ///
    /// # Errors
    /// Nothing was appended, except for [`LogError::UnknownOutcome`].
    async fn append(
        &self,
        shard: ShardId,
        epoch: Epoch,
        head: u64,
        batch: FrameBatch,
    ) -> Result<u64, LogError>;

    /// The frame that holds `from_offset` and those that follow, until their
    /// bytes together reach `bytes_max`; at least one if there is one. Empty
    /// when `from_offset` is beyond the head.
    ///
    /// # Errors
    /// When they cannot be read.
    async fn read(
        &self,
        shard: ShardId,
        from_offset: u64,
        bytes_max: usize,
    ) -> Result<Vec<EncodedFrame>, LogError>;

    /// The first offset after `after_offset` at which a frame begins, as far as the
    /// log's order can still be read. For those who go on behind damage.
    ///
    /// # Errors
    /// [`LogError::Damaged`] when what comes next cannot be found either; its
    /// offset is the last one that is known to be out of reach.
    async fn next_frame(&self, shard: ShardId, after_offset: u64) -> Result<Option<u64>, LogError>;

    /// A large body, checked against the length and the hash that its record gives.
    ///
    /// # Errors
    /// [`LogError::Damaged`] when it is missing or is not what its record says.
    async fn blob(&self, shard: ShardId, blob: &BlobRef) -> Result<Bytes, LogError>;

    /// Waits until the head is beyond `after_offset`, and returns the head.
    ///
    /// # Errors
    /// [`LogError::Closed`] when the log is closed meanwhile.
    async fn tail(&self, shard: ShardId, after_offset: u64) -> Result<u64, LogError>;

    /// How large it is.
    ///
    /// # Errors
    /// When that cannot be found out.
    async fn stats(&self, shard: ShardId) -> Result<LogStats, LogError>;

    /// Closes it: what follows fails with [`LogError::Closed`].
    ///
    /// # Errors
    /// When it could not be closed cleanly; nothing that was acknowledged is lost.
    async fn close(&self) -> Result<(), LogError>;
}
