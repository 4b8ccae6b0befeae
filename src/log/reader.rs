//! Reads records by offset, with a cache of decoded frames.

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{Arc, PoisonError, RwLock},
};

use bytes::Bytes;
use quick_cache::{DefaultHashBuilder, Lifecycle, Weighter, sync::Cache};

use super::{
    frame::{self, DecodedFrame},
    port::{EventLog, LogError},
    record::{Record, RecordBody},
};
use crate::domain::ShardId;

/// A read that goes on through the log fetches this much at once, in bytes.
const READ_AHEAD_BYTES: usize = 256 * 1024;
/// A stored record has at least about this much, compressed: who wants a few
/// records must not pay for thousands.
const STORED_RECORD_BYTES_MIN: usize = 64;
/// Room is made for so many records before it is known how many there are.
const RECORDS_AT_ONCE: usize = 1_024;
/// What a decoded record costs in memory besides its share of the frame's bytes.
const RECORD_OVERHEAD_BYTES: usize = size_of::<Record>() + 64;

/// Reads a shard.
pub struct LogReader {
    log: Arc<dyn EventLog>,
    shard: ShardId,
    frames: FrameCache,
    /// First offsets of the frames in the cache, to find the one that holds an
    /// offset in its middle.
    cached: Arc<CachedFrames>,
}

/// Decoded frames, by their first offset.
pub type FrameCache = Cache<u64, Arc<DecodedFrame>, FrameWeight, DefaultHashBuilder, ForgetFrame>;

type CachedFrames = RwLock<BTreeMap<u64, u64>>;

/// Weighs what a frame takes in memory.
#[derive(Clone, Debug)]
pub struct FrameWeight;

impl Weighter<u64, Arc<DecodedFrame>> for FrameWeight {
    fn weight(&self, _: &u64, frame: &Arc<DecodedFrame>) -> u64 {
        (frame.raw_bytes + frame.records.len() * RECORD_OVERHEAD_BYTES) as u64
    }
}

/// Keeps the list of cached frames to what is in the cache.
#[derive(Clone, Debug)]
pub struct ForgetFrame(Arc<CachedFrames>);

impl Lifecycle<u64, Arc<DecodedFrame>> for ForgetFrame {
    type RequestState = ();

    fn on_evict(&self, (): &mut (), first_offset: u64, _: Arc<DecodedFrame>) {
        let mut cached = self.0.write().unwrap_or_else(PoisonError::into_inner);
        cached.remove(&first_offset);
    }
}

impl LogReader {
    /// A reader that keeps at most about `cache_bytes` of decoded frames.
    #[must_use]
    pub fn new(log: Arc<dyn EventLog>, shard: ShardId, cache_bytes: usize) -> Self {
        let cached = Arc::new(CachedFrames::default());
        let frames = Cache::with(
            (cache_bytes / READ_AHEAD_BYTES).max(16) * 4,
            cache_bytes as u64,
            FrameWeight,
            DefaultHashBuilder::default(),
            ForgetFrame(Arc::clone(&cached)),
        );
        Self {
            log,
            shard,
            frames,
            cached,
        }
    }

    /// The frames that are kept.
    #[must_use]
    pub fn cache(&self) -> &FrameCache {
        &self.frames
    }

    /// The log that is read.
    #[must_use]
    pub fn log(&self) -> &Arc<dyn EventLog> {
        &self.log
    }

    /// The record at an offset.
    ///
    /// # Errors
    /// [`LogError::NotFound`] beyond the head; [`LogError::Damaged`] with the
    /// offset when its frame cannot be trusted.
    pub async fn record(&self, offset: u64) -> Result<Record, LogError> {
        let frame = match self.find(offset) {
            Some(frame) => frame,
            None => self
                .load(offset, 1)
                .await?
                .into_iter()
                .next()
                .ok_or(LogError::NotFound { offset })?,
        };
        frame.record(offset).cloned().ok_or_else(|| missing(offset))
    }

    /// Records from an offset on: at most `records_max`, and no more once their
    /// headers and bodies have about `bytes_max` bytes, those in the blob table
    /// included, although [`body`](Self::body) is still to fetch them; at least one
    /// if there is one. Empty beyond the head.
    ///
    /// # Errors
    /// [`LogError::Damaged`] with the offset of the first record that cannot be
    /// trusted; nothing is ever skipped.
    pub async fn records(
        &self,
        from_offset: u64,
        records_max: usize,
        bytes_max: usize,
    ) -> Result<Vec<(u64, Record)>, LogError> {
        let mut found = Vec::with_capacity(records_max.min(RECORDS_AT_ONCE));
        let mut next = from_offset.max(1);
        let mut bytes = 0;
        while found.len() < records_max && (bytes < bytes_max || found.is_empty()) {
            let frames = match self.find(next) {
                Some(frame) => vec![frame],
                None => {
                    let wanted = bytes_max.saturating_sub(bytes);
                    let few = (records_max - found.len()).saturating_mul(STORED_RECORD_BYTES_MIN);
                    let wanted = wanted.min(few).clamp(1, READ_AHEAD_BYTES);
                    self.load(next, wanted).await?
                }
            };
            if frames.is_empty() {
                break;
            }
            for frame in frames {
                if frame.record(next).is_none() {
                    return Err(missing(next));
                }
                while let Some(record) = frame.record(next) {
                    if found.len() >= records_max || (bytes >= bytes_max && !found.is_empty()) {
                        return Ok(found);
                    }
                    bytes = bytes.saturating_add(record_bytes(record));
                    found.push((next, record.clone()));
                    next += 1;
                }
            }
        }
        Ok(found)
    }

    /// A record's body, from the blob table if it is there, checked against its
    /// hash.
    ///
    /// # Errors
    /// [`LogError::Damaged`] when it is not what its hash says.
    pub async fn body(&self, record: &Record) -> Result<Bytes, LogError> {
        match &record.body {
            RecordBody::Inline(bytes) => Ok(bytes.clone()),
            RecordBody::Blob(blob) => {
                let bytes = self
                    .log
                    .blob(self.shard, &record.header.namespace, blob)
                    .await?;
                if bytes.len() as u64 != blob.bytes_len || Record::hash_body(&bytes) != blob.hash {
                    return Err(LogError::damaged(
                        blob.home_offset,
                        "a large body is not what its hash says",
                    ));
                }
                Ok(bytes)
            }
        }
    }

    /// The same for those who keep it: it shares no memory. An inline body is a
    /// part of its frame, and whoever keeps a few bytes of that keeps all of it.
    ///
    /// # Errors
    /// As [`body`](Self::body).
    pub async fn body_to_keep(&self, record: &Record) -> Result<Bytes, LogError> {
        match &record.body {
            RecordBody::Inline(bytes) => Ok(Bytes::copy_from_slice(bytes)),
            RecordBody::Blob(_) => self.body(record).await,
        }
    }

    /// The cached frame that holds an offset.
    fn find(&self, offset: u64) -> Option<Arc<DecodedFrame>> {
        let first_offset = {
            let cached = self.cached.read().unwrap_or_else(PoisonError::into_inner);
            let (first, last) = cached.range(..=offset).next_back()?;
            (offset <= *last).then_some(*first)?
        };
        self.frames.get(&first_offset)
    }

    /// Reads, checks and caches the frame that holds an offset, and more up to
    /// `bytes_max` stored bytes.
    async fn load(
        &self,
        offset: u64,
        bytes_max: usize,
    ) -> Result<Vec<Arc<DecodedFrame>>, LogError> {
        let stored = self.log.read(self.shard, offset, bytes_max).await?;
        let mut frames = Vec::with_capacity(stored.len());
        for stored in &stored {
            let frame = match frame::decode(stored) {
                Ok(frame) => Arc::new(frame),
                // What came before it can still be given out; the next read
                // starts at the damage and names it.
                Err(_) if !frames.is_empty() => break,
                Err(error) => return Err(error),
            };
            self.keep(&frame);
            frames.push(frame);
        }
        Ok(frames)
    }

    fn keep(&self, frame: &Arc<DecodedFrame>) {
        let inside = {
            let mut cached = self.cached.write().unwrap_or_else(PoisonError::into_inner);
            // A segment was written anew: what several frames held would hide the
            // one that holds it now.
            let (first, last) = (frame.first_offset, frame.last_offset());
            let inside = cached.range((Bound::Excluded(first), Bound::Included(last.max(first))));
            let inside: Vec<u64> = inside.map(|(first, _)| *first).collect();
            for first in &inside {
                cached.remove(first);
            }
            cached.insert(frame.first_offset, frame.last_offset());
            inside
        };
        for first in inside {
            self.frames.remove(&first);
        }
        // May evict, and that takes the lock above again.
        self.frames.insert(frame.first_offset, Arc::clone(frame));
    }
}

/// What a record takes in memory with its body, wherever that is, in bytes.
pub(crate) fn record_bytes(record: &Record) -> usize {
    let body = match &record.body {
        RecordBody::Inline(bytes) => bytes.len(),
        RecordBody::Blob(blob) => usize::try_from(blob.bytes_len).unwrap_or(usize::MAX / 2),
    };
    body.saturating_add(size_of::<Record>())
}

fn missing(offset: u64) -> LogError {
    LogError::damaged(offset, "no frame holds this record")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::log::{MemoryLog, fallible::Fallible, testkit::samples};

    // A server under mixed load took several times what its caches counted: each
    // message of a window was a few bytes of a frame, and kept all of it.
    #[tokio::test]
    async fn what_is_kept_does_not_keep_its_frame() {
        let log = Arc::new(MemoryLog::new());
        let shard = ShardId::default();
        let owner = log.acquire(shard).await.unwrap();
        let batch = samples::batch(1, &samples::records(50, 700));
        log.append(shard, owner.epoch, 0, batch).await.unwrap();
        let reader = LogReader::new(log, shard, 1 << 20);
        let record = reader.record(7).await.unwrap();
        let (lent, kept) = (
            reader.body(&record).await.unwrap(),
            reader.body_to_keep(&record).await.unwrap(),
        );
        assert_eq!(lent, kept);
        assert!(!lent.is_unique());
        assert!(kept.is_unique());
    }

    // A fork in the middle of a long history wants a few records, and read 256 KiB of
    // compressed frames for them: thousands of records were decoded in vain.
    #[tokio::test]
    async fn a_few_records_are_read_for_a_few() {
        let log = Arc::new(Fallible::default());
        let shard = ShardId::default();
        let epoch = log.acquire(shard).await.unwrap().epoch;
        for head in 0..500 {
            let batch = samples::batch(head + 1, &[samples::noisy_record(200)]);
            log.append(shard, epoch, head, batch).await.unwrap();
        }
        let reader = LogReader::new(Arc::clone(&log) as Arc<dyn EventLog>, shard, 1 << 20);
        let found = reader.records(100, 8, usize::MAX).await.unwrap();
        let offsets: Vec<u64> = found.iter().map(|(offset, _)| *offset).collect();
        assert_eq!(offsets, (100..108).collect::<Vec<_>>());
        let asked = log.read_bytes.load(Ordering::SeqCst);
        assert!(asked < 8 * 1_024, "{asked} bytes were asked for");
    }
}
