//! Erased content, identified by the offsets of its records, and the port through which a log
//! removes it. Readers hide the content until then.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use async_trait::async_trait;
use bytes::Bytes;

use super::{
    frame,
    port::{EncodedFrame, LogError},
    record::{Record, RecordBody},
    salt,
};

/// The erased content of a log, and the stubs that replace bodies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Erasure {
    /// Offsets of the records whose bodies are erased, with the stubs that replace them.
    pub stubs: BTreeMap<u64, Bytes>,
    /// Offsets of records whose append key loses the salt of its content hash, because an event of
    /// their batch is erased.
    pub key_salts: BTreeSet<u64>,
    /// Home offsets of large bodies that no record references any more.
    pub blobs: BTreeSet<u64>,
}

impl Erasure {
    /// Returns true when nothing is erased.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.stubs.is_empty() && self.key_salts.is_empty() && self.blobs.is_empty()
    }

    /// Returns a record without its erased content. A record that is already erased keeps its stub.
    #[must_use]
    pub fn left_of(&self, offset: u64, record: Record) -> Record {
        match self.stubs.get(&offset) {
            Some(stub) if !record.is_erased() => record.erased(stub.clone()),
            _ if self.key_salts.contains(&offset) => record.without_key_salt(),
            _ => record,
        }
    }

    /// Returns true when content between two offsets, both included, is erased.
    #[must_use]
    pub fn touches(&self, first: u64, last: u64) -> bool {
        first <= last
            && (self.stubs.range(first..=last).next().is_some()
                || self.key_salts.range(first..=last).next().is_some()
                || self.blobs.range(first..=last).next().is_some())
    }

    /// Returns the ranges of offsets, both ends included, whose frames can have erased content or
    /// reveal the salt of an erased body. They are in order and do not overlap.
    #[must_use]
    pub fn reach(&self) -> Vec<(u64, u64)> {
        let trees = self.stubs.keys().map(|offset| salt::tree_of(*offset));
        let keys = self.key_salts.iter().map(|offset| (*offset, *offset));
        let ranges: BTreeSet<_> = trees.chain(keys).collect();
        let mut reach: Vec<(u64, u64)> = Vec::new();
        for (first, last) in ranges {
            match reach.last_mut() {
                Some(before) if first <= before.1 => before.1 = before.1.max(last),
                _ => reach.push((first, last)),
            }
        }
        reach
    }

    /// Returns what must replace a stored frame, with the same offsets and count, for backends that
    /// replace frames. It reveals only salts of its own records. Returns `None` if the frame can
    /// stay as it is.
    ///
    /// # Errors
    /// As [`frame::decode`].
    pub fn replacement(&self, stored: &EncodedFrame) -> Result<Option<FrameReplacement>, LogError> {
        let decoded = frame::decode(stored)?;
        let first = decoded.first_offset;
        let mut bodies = BTreeSet::new();
        let (mut reveals, mut had_content) = (false, false);
        let mut records = Vec::with_capacity(decoded.records.len());
        for (offset, record) in (first..).zip(decoded.records) {
            let salt = record.salt.as_ref();
            let below = salt.map(|salt| salt.range_at(offset));
            reveals |= below.is_some_and(|below| self.stubs.range(below).next().is_some());
            if let RecordBody::Blob(blob) = &record.body {
                bodies.extend(self.blobs.get(&blob.home_offset));
            }
            let left = self.left_of(offset, record.clone());
            had_content |= left != record;
            records.push(left);
        }
        if !reveals && !had_content {
            return Ok(None);
        }
        salt::narrow(first, &mut records);
        Ok(Some(FrameReplacement {
            frame: frame::encode_whole(first, &records)?,
            had_content,
            bodies: bodies.into_iter().collect(),
        }))
    }
}

/// A frame without erased content, to replace a stored one.
#[derive(Clone, Debug, PartialEq)]
pub struct FrameReplacement {
    /// The new frame.
    pub frame: EncodedFrame,
    /// The stored frame had erased content. Otherwise it only revealed salts of erased bodies.
    pub had_content: bool,
    /// Home offsets of erased large bodies that the stored frame names.
    pub bodies: Vec<u64>,
}

/// How far the erasures of a shard are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ErasureProgress {
    /// The first offset at which a record may request an erasure that is not done yet; `None`: no
    /// erasure is in progress.
    pub erasing: Option<u64>,
    /// Offset of the record that requested the last completed erasure; 0: there was none.
    pub erased: u64,
}

/// What was done to the storage of a log to remove erased content.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ScrubOutcome {
    /// Number of segments, or of stored frames, that were rewritten.
    pub segments: u64,
    /// Segment files or tables before, with their sizes in bytes.
    pub before: Vec<(String, u64)>,
    /// Segment files or tables afterwards, with their sizes in bytes.
    pub after: Vec<(String, u64)>,
    /// Places that the log cannot reach and that may still have the content, and what to do.
    pub may_remain: Vec<String>,
}

/// Receives the progress of a removal: how much is done, and the total.
pub type ScrubReport = Box<dyn FnMut(u64, u64) + Send>;

/// Erases content from a shard of a log.
///
/// This is not part of [`EventLog`](crate::EventLog), because everything else relies on a log that
/// only grows. Only the owner of a shard gets this port, bound to its epoch
/// ([`EventLog::erasable`](crate::EventLog::erasable)), and only the code that erases uses it.
///
/// The order of calls makes an erasure safe to interrupt: [`mark_begun`](Self::mark_begun), append
/// the records that say what to erase, [`remove`](Self::remove), [`mark_done`](Self::mark_done).
/// Whoever finds a mark without an end repeats what was recorded since.
#[async_trait]
pub trait ErasableLog: Send + Sync + 'static {
    /// Returns how far erasures are.
    ///
    /// # Errors
    /// When that cannot be read.
    async fn progress(&self) -> Result<ErasureProgress, LogError>;

    /// Returns the ranges of offsets whose loss was accepted: there is nothing to erase in them.
    fn accepted_losses(&self) -> Vec<(u64, u64)> {
        Vec::new()
    }

    /// Notes durably that an erasure begins. The records that are appended after the current head
    /// say what to erase.
    ///
    /// # Errors
    /// Nothing was noted, or it is unknown; the erasure can be begun again.
    /// [`LogError::NotOwner`] when the shard has another owner.
    async fn mark_begun(self: Arc<Self>) -> Result<(), LogError>;

    /// Removes erased content from storage.
    ///
    /// Whoever repeats an interrupted removal knows only the events that still have content. So the
    /// content of an event goes after the salts that other frames reveal of it, after the salt of
    /// its append key, and, if no other event names its large body, together with that.
    ///
    /// # Errors
    /// The error of the first step that failed. Earlier steps stay done, and the removal can be
    /// repeated.
    async fn remove(
        self: Arc<Self>,
        erasure: Arc<Erasure>,
        report: ScrubReport,
    ) -> Result<ScrubOutcome, LogError>;

    /// Notes durably that all erasures requested up to this offset are done; 0: there was no
    /// request.
    ///
    /// # Errors
    /// The erasure may still count as in progress; it is then repeated.
    async fn mark_done(self: Arc<Self>, offset: u64) -> Result<(), LogError>;
}
