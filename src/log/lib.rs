//! The log: stores every event durably, exactly once and in one total order.
//!
//! What lives here: the backend port ([`EventLog`]), the backends ([`memory`], [`redb`]), records
//! and frames and their byte formats ([`record`], [`frame`]), the caching reader and the
//! group-committing writer.
//!
//! What does not: the meaning of events. The log uses a record's header and the hash of its body,
//! and never interprets the body. `docs/FORMAT.md` specifies the byte format.

#![cfg_attr(not(test), warn(unreachable_pub))]

pub mod block;
mod codec;
pub mod erasure;
#[cfg(any(test, feature = "testkit"))]
pub mod fallible_log;
pub mod filler;
pub mod frame;
pub mod holder;
pub mod memory;
pub mod patch;
pub mod port;
pub mod reader;
pub mod record;
pub mod redb;
pub mod salt;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
pub mod writer;

pub use self::redb::{
    ConsistencyEvidence, FileMeasures, FolderLock, LOG_FOLDER, LOG_FORMAT, LogRepair, LostRange,
    OpenMode, RedbLog, RedbLogOptions, RepairSession, RewriteOutcome, Rewriter, holder_of,
};
pub use erasure::{
    ErasableLog, Erasure, ErasureProgress, FrameReplacement, ScrubOutcome, ScrubReport,
};
pub use filler::LogFiller;
pub use frame::DecodedFrame;
pub use holder::HolderSecret;
pub use memory::MemoryLog;
pub use patch::BodyPatch;
pub use port::{
    AcquiredShard, EncodedFrame, Epoch, EventLog, FrameBatch, LockHolder, LogError, LogIdentity,
    LogStats, NewBlob,
};
pub use reader::LogReader;
pub use record::{AppendKey, BlobRef, Record, RecordBody};
pub use salt::{KeySalt, Salt, SaltSource, SaltedHash};
pub use writer::{
    CommittedGroup, GroupError, GroupWriter, Heartbeat, PendingAppend, PublishError, Publisher,
    QueueFull, Sequencer, ShardOwner, SubmitError, WriterGone, WriterHealth, WriterLimits,
    WriterMeasures,
};
