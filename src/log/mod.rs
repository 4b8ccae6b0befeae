//! The log: every event once, in one order, durable.
//!
//! What lives here: the port that a backend fills ([`EventLog`]), the backends
//! ([`memory`], [`redb`]), records and frames with their bytes ([`record`],
//! [`frame`]), the reader with its cache and the group-committing writer.
//!
//! What does not: what an event means. The log knows a record's header and the
//! hash of its body, never the body. `docs/FORMAT.md` states the bytes.

pub mod block;
mod codec;
pub mod erasure;
#[cfg(test)]
pub(crate) mod fallible;
pub mod filling;
pub mod frame;
pub mod memory;
pub mod patch;
pub mod port;
pub mod reader;
pub mod record;
#[cfg(feature = "redb")]
pub mod redb;
pub mod salt;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
pub mod writer;

#[cfg(feature = "redb")]
pub use self::redb::{
    FileMeasures, LOG_FOLDER, LOG_FORMAT, LogRepair, LostRange, OpenMode, RedbLog, RedbLogOptions,
    Repairing, Rewriter, Rewritten, Scrubbed, Witness, holder_of,
};
pub use erasure::Erasure;
pub use filling::LogFiller;
pub use frame::DecodedFrame;
pub use memory::MemoryLog;
pub use patch::BodyPatch;
pub use port::{
    Acquired, Announced, EncodedFrame, Epoch, EventLog, FrameBatch, LockHolder, LogError,
    LogIdentity, LogStats, NewBlob,
};
pub use reader::LogReader;
pub use record::{AppendKey, BlobRef, Record, RecordBody};
pub use salt::{KeySalt, Salt, SaltSource, SaltedHash};
pub use writer::{
    Beat, CommittedGroup, GroupError, GroupWriter, NotTaken, PublishError, Publisher, QueueFull,
    Sequencer, ShardOwner, Staged, WriterGone, WriterHealth, WriterLimits, WriterMeasures,
};
