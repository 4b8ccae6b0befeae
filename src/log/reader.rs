//! Reads records by offset, with a cache of decoded frames.

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use quick_cache::{DefaultHashBuilder, Lifecycle, Weighter, sync::Cache};

use super::{
    erasure::Erasure,
    frame::{self, DecodedFrame},
    port::{EventLog, LogError},
    record::{Record, RecordBody},
};
use treering_domain::{Position, ShardId};

/// How much a sequential read fetches at once, in bytes.
const READ_AHEAD_BYTES: usize = 256 * 1024;
/// Approximate minimum size of a stored record, compressed, in bytes. It keeps a read of a few
/// records from fetching thousands.
const STORED_RECORD_BYTES_MIN: usize = 64;
/// Maximum number of records for which memory is reserved before their number is known.
const RECORDS_AT_ONCE: usize = 1_024;
/// Memory of a decoded record, in bytes, besides its share of the frame's bytes.
const RECORD_OVERHEAD_BYTES: usize = size_of::<Record>() + 64;

/// Reads records from a shard.
pub struct LogReader {
    log: Arc<dyn EventLog>,
    shard: ShardId,
    frames: FrameCache,
    /// First offsets of the cached frames, to find the frame that contains a given offset.
    cached: Arc<CachedFrames>,
    /// Erased content that may still be stored; the reader hides it.
    erasure: RwLock<Option<Arc<Erasure>>>,
    /// Number of times the stored data was rewritten. A frame read before a rewrite is not cached.
    scrubs: AtomicU64,
}

/// Cache of decoded frames, by first offset.
pub(crate) type FrameCache =
    Cache<u64, Arc<DecodedFrame>, FrameWeigher, DefaultHashBuilder, ForgetFrame>;

type CachedFrames = RwLock<BTreeMap<u64, CachedFrame>>;

#[derive(Clone, Copy, Debug)]
struct CachedFrame {
    last_offset: u64,
    /// Cached only for the next page of a one-time sequential read.
    once: bool,
    /// The frame's address, to tell apart frames with the same first offset.
    frame: usize,
}

/// Weighs a frame by its memory use, in bytes.
#[derive(Clone, Debug)]
pub struct FrameWeigher;

impl Weighter<u64, Arc<DecodedFrame>> for FrameWeigher {
    fn weight(&self, _: &u64, frame: &Arc<DecodedFrame>) -> u64 {
        (frame.raw_bytes + frame.records.len() * RECORD_OVERHEAD_BYTES) as u64
    }
}

/// Keeps the list of cached frames consistent with the cache.
#[derive(Clone, Debug)]
pub struct ForgetFrame(Arc<CachedFrames>);

impl Lifecycle<u64, Arc<DecodedFrame>> for ForgetFrame {
    type RequestState = ();

    /// A frame that was replaced is evicted after its replacement was listed; the address check
    /// keeps the replacement's entry.
    fn on_evict(&self, (): &mut (), first_offset: u64, frame: Arc<DecodedFrame>) {
        let mut cached = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let noted = cached.get(&first_offset);
        if noted.is_some_and(|noted| noted.frame == address(&frame)) {
            cached.remove(&first_offset);
        }
    }
}

fn address(frame: &Arc<DecodedFrame>) -> usize {
    Arc::as_ptr(frame).addr()
}

impl LogReader {
    /// Creates a reader that caches at most about `cache_bytes` of decoded frames.
    #[must_use]
    pub fn new(log: Arc<dyn EventLog>, shard: ShardId, cache_bytes: usize) -> Self {
        let cached = Arc::new(CachedFrames::default());
        let frames = Cache::with(
            (cache_bytes / READ_AHEAD_BYTES).max(16) * 4,
            cache_bytes as u64,
            FrameWeigher,
            DefaultHashBuilder::default(),
            ForgetFrame(Arc::clone(&cached)),
        );
        Self {
            log,
            shard,
            frames,
            cached,
            erasure: RwLock::default(),
            scrubs: AtomicU64::new(0),
        }
    }

    /// Returns the position of an offset in the reader's shard.
    #[must_use]
    pub fn position(&self, offset: u64) -> Position {
        Position {
            shard: self.shard,
            offset,
        }
    }

    /// Hides erased content from now on, although it is still stored.
    pub fn hide(&self, erasure: Arc<Erasure>) {
        let mut hidden = self.erasure.write().unwrap_or_else(PoisonError::into_inner);
        *hidden = Some(erasure);
    }

    /// Drops the cache and the erasure, once the hidden content is no longer stored.
    pub fn forget_hidden(&self) {
        self.scrubs.fetch_add(1, Ordering::AcqRel);
        let all: Vec<u64> = {
            let mut cached = self.cached.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *cached).into_keys().collect()
        };
        for first in all {
            self.frames.remove(&first);
        }
        self.frames.clear();
        let mut hidden = self.erasure.write().unwrap_or_else(PoisonError::into_inner);
        *hidden = None;
    }

    /// Returns the erasure in effect.
    fn current_erasure(&self) -> Option<Arc<Erasure>> {
        let hidden = self.erasure.read().unwrap_or_else(PoisonError::into_inner);
        hidden.clone()
    }

    /// Applies the erasure to a record.
    fn apply_erasure(&self, offset: u64, record: Record) -> Record {
        match self.current_erasure() {
            None => record,
            Some(erasure) => erasure.left_of(offset, record),
        }
    }

    /// Returns the frame cache.
    #[must_use]
    pub fn cache(&self) -> &FrameCache {
        &self.frames
    }

    /// Returns the underlying log.
    #[must_use]
    pub fn log(&self) -> &Arc<dyn EventLog> {
        &self.log
    }

    /// Returns the record at an offset.
    ///
    /// # Errors
    /// [`LogError::NotFound`] beyond the head; [`LogError::Damaged`] with the offset when its frame
    /// cannot be trusted.
    pub async fn record(&self, offset: u64) -> Result<Record, LogError> {
        let scrubs = self.scrubs.load(Ordering::Acquire);
        let frame = match self.find(offset) {
            Some(frame) => frame,
            None => {
                let loaded = self.load(offset, 1).await?.into_iter().next();
                let frame = Arc::new(loaded.ok_or(LogError::NotFound { offset })?);
                self.keep(&frame, false, scrubs);
                frame
            }
        };
        let record = frame.record(offset).cloned();
        let record = record.ok_or_else(|| missing(offset))?;
        Ok(self.apply_erasure(offset, record))
    }

    /// Returns records from an offset on: at most `records_max`, ending once their headers and
    /// bodies have about `bytes_max` bytes; at least one if any exists. Bodies in the blob table
    /// count, although [`body`](Self::body) fetches them separately. Empty beyond the head.
    ///
    /// # Errors
    /// [`LogError::Damaged`] with the offset of the first record that cannot be trusted; no record
    /// is ever skipped.
    pub async fn records(
        &self,
        from_offset: u64,
        records_max: usize,
        bytes_max: usize,
    ) -> Result<Vec<(u64, Record)>, LogError> {
        let page = Page::new(from_offset, records_max, bytes_max);
        self.fill(page, FrameRetention::All).await
    }

    /// Like [`records`](Self::records), for one-time sequential reads. The frames are not cached:
    /// they would evict frames that are needed again, and a full cache would be given more memory
    /// for no benefit.
    ///
    /// # Errors
    /// As [`records`](Self::records).
    pub async fn records_once(
        &self,
        from_offset: u64,
        records_max: usize,
        bytes_max: usize,
    ) -> Result<Vec<(u64, Record)>, LogError> {
        let page = Page::new(from_offset, records_max, bytes_max);
        self.fill(page, FrameRetention::Unfinished).await
    }

    async fn fill(
        &self,
        mut page: Page,
        keep: FrameRetention,
    ) -> Result<Vec<(u64, Record)>, LogError> {
        while !page.is_full() {
            let scrubs = self.scrubs.load(Ordering::Acquire);
            if let Some(frame) = self.find(page.next) {
                page.take(&frame)?;
                if keep == FrameRetention::Unfinished && page.next > frame.last_offset() {
                    self.forget_if_once(frame.first_offset);
                }
                continue;
            }
            let frames = self.load(page.next, page.wanted()).await?;
            if frames.is_empty() {
                break;
            }
            for frame in frames {
                if keep == FrameRetention::Unfinished && !page.ends_in(&frame) {
                    page.take_all(frame)?;
                    continue;
                }
                let frame = Arc::new(frame);
                self.keep(&frame, keep == FrameRetention::Unfinished, scrubs);
                page.take(&frame)?;
            }
        }
        if let Some(erasure) = self.current_erasure() {
            for (offset, record) in &mut page.found {
                if erasure.touches(*offset, *offset) {
                    *record = erasure.left_of(*offset, record.clone());
                }
            }
        }
        Ok(page.found)
    }

    /// Returns a record's body, from the blob table if it is there, checked against its hash; for
    /// an erased body, the stub.
    ///
    /// # Errors
    /// [`LogError::Damaged`] when it does not match its hash.
    pub async fn body(&self, record: &Record) -> Result<Bytes, LogError> {
        match &record.body {
            RecordBody::Inline(bytes) => Ok(bytes.clone()),
            RecordBody::Stub(stub) => Ok(stub.bytes.clone()),
            RecordBody::Blob(blob) => {
                let bytes = self.log.blob(self.shard, blob).await?;
                if bytes.len() as u64 != blob.bytes_len || Record::hash_body(&bytes) != blob.hash {
                    return Err(LogError::damaged(
                        blob.home_offset,
                        "large body does not match its hash",
                    ));
                }
                Ok(bytes)
            }
        }
    }

    /// Like [`body`](Self::body), for callers that keep the body: the returned bytes share no
    /// memory. An inline body is otherwise a slice of its frame and keeps the whole frame alive.
    ///
    /// # Errors
    /// As [`body`](Self::body).
    pub async fn body_to_keep(&self, record: &Record) -> Result<Bytes, LogError> {
        match &record.body {
            RecordBody::Inline(_) | RecordBody::Stub(_) => {
                Ok(Bytes::copy_from_slice(record.body.here()))
            }
            RecordBody::Blob(_) => self.body(record).await,
        }
    }

    /// Returns the cached frame that contains an offset.
    fn find(&self, offset: u64) -> Option<Arc<DecodedFrame>> {
        let first_offset = {
            let cached = self.cached.read().unwrap_or_else(PoisonError::into_inner);
            let (first, frame) = cached.range(..=offset).next_back()?;
            (offset <= frame.last_offset).then_some(*first)?
        };
        self.frames.get(&first_offset)
    }

    /// Reads and checks the frame that contains an offset, and further frames up to `bytes_max`
    /// stored bytes.
    async fn load(&self, offset: u64, bytes_max: usize) -> Result<Vec<DecodedFrame>, LogError> {
        let stored = self.log.read(self.shard, offset, bytes_max).await?;
        let mut frames = Vec::with_capacity(stored.len());
        for stored in &stored {
            let frame = match frame::decode(stored) {
                Ok(frame) => frame,
                // Return the sound frames before the damage; the next read starts at the damage and
                // reports it.
                Err(_) if !frames.is_empty() => break,
                Err(error) => return Err(error),
            };
            frames.push(frame);
        }
        Ok(frames)
    }

    fn forget_if_once(&self, first_offset: u64) {
        let once = {
            let cached = self.cached.read().unwrap_or_else(PoisonError::into_inner);
            cached.get(&first_offset).is_some_and(|frame| frame.once)
        };
        if once {
            let mut cached = self.cached.write().unwrap_or_else(PoisonError::into_inner);
            cached.remove(&first_offset);
            drop(cached);
            self.frames.remove(&first_offset);
        }
    }

    /// Caches a frame that was read when the rewrite counter was `scrubs`.
    fn keep(&self, frame: &Arc<DecodedFrame>, once: bool, scrubs: u64) {
        let inside = {
            let mut cached = self.cached.write().unwrap_or_else(PoisonError::into_inner);
            if self.scrubs.load(Ordering::Acquire) != scrubs {
                return;
            }
            // A rewritten segment may have one frame in place of several: the old entries would
            // hide the new one.
            let (first, last) = (frame.first_offset, frame.last_offset());
            let inside = cached.range((Bound::Excluded(first), Bound::Included(last.max(first))));
            let inside: Vec<u64> = inside.map(|(first, _)| *first).collect();
            for first in &inside {
                cached.remove(first);
            }
            let last_offset = frame.last_offset();
            let cached_frame = CachedFrame {
                last_offset,
                once,
                frame: address(frame),
            };
            cached.insert(first, cached_frame);
            inside
        };
        for first in inside {
            self.frames.remove(&first);
        }
        // Inserting may evict, and eviction takes the lock above again.
        self.frames.insert(frame.first_offset, Arc::clone(frame));
    }
}

/// Which frames stay in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrameRetention {
    All,
    /// Only a frame that does not fit in the page, until the next page has consumed it.
    Unfinished,
}

/// Records being collected, and the remaining limits.
struct Page {
    found: Vec<(u64, Record)>,
    next: u64,
    records_left: usize,
    bytes_left: usize,
}

impl Page {
    fn new(from_offset: u64, records_max: usize, bytes_max: usize) -> Self {
        Self {
            found: Vec::with_capacity(records_max.min(RECORDS_AT_ONCE)),
            next: from_offset.max(1),
            records_left: records_max,
            bytes_left: bytes_max,
        }
    }

    fn is_full(&self) -> bool {
        self.records_left == 0 || self.bytes_left == 0 && !self.found.is_empty()
    }

    /// Returns how many stored bytes to read for the remaining records.
    fn wanted(&self) -> usize {
        let few = self.records_left.saturating_mul(STORED_RECORD_BYTES_MIN);
        self.bytes_left.min(few).clamp(1, READ_AHEAD_BYTES)
    }

    fn push(&mut self, record: Record) {
        self.records_left -= 1;
        self.bytes_left = self.bytes_left.saturating_sub(record_bytes(&record));
        self.found.push((self.next, record));
        self.next += 1;
    }

    /// Takes as many records as fit. When the page is already full, the frame is not checked.
    fn take(&mut self, frame: &DecodedFrame) -> Result<(), LogError> {
        if !self.is_full() && frame.record(self.next).is_none() {
            return Err(missing(self.next));
        }
        while !self.is_full()
            && let Some(record) = frame.record(self.next)
        {
            self.push(record.clone());
        }
        Ok(())
    }

    /// Returns true when the rest of the frame does not fit.
    fn ends_in(&self, frame: &DecodedFrame) -> bool {
        let passed = usize::try_from(self.next.saturating_sub(frame.first_offset));
        let rest = frame.records.get(passed.unwrap_or(usize::MAX)..);
        let Some((_, before_last)) = rest.and_then(<[Record]>::split_last) else {
            return true;
        };
        let bytes: usize = before_last.iter().map(record_bytes).sum();
        before_last.len() >= self.records_left || bytes >= self.bytes_left
    }

    /// Takes all remaining records of the frame without copying them.
    fn take_all(&mut self, frame: DecodedFrame) -> Result<(), LogError> {
        if frame.record(self.next).is_none() {
            return Err(missing(self.next));
        }
        let passed = usize::try_from(self.next - frame.first_offset).unwrap_or(usize::MAX);
        for record in frame.records.into_iter().skip(passed) {
            self.push(record);
        }
        Ok(())
    }
}

/// Returns the size of a record in memory with its body, in bytes, even if the body is in the blob
/// table.
pub fn record_bytes(record: &Record) -> usize {
    let body = match &record.body {
        RecordBody::Inline(_) | RecordBody::Stub(_) => record.body.here().len(),
        RecordBody::Blob(blob) => usize::try_from(blob.bytes_len).unwrap_or(usize::MAX / 2),
    };
    body.saturating_add(size_of::<Record>())
}

fn missing(offset: u64) -> LogError {
    LogError::damaged(offset, "no frame contains this record")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::{MemoryLog, fallible_log::FallibleLog, testkit::samples};

    // A kept body must not share memory with its frame. A server used several times the memory that
    // its caches counted, because each message of a window kept a whole frame alive.
    #[tokio::test]
    async fn kept_record_does_not_keep_its_frame_in_memory() {
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

    // A read of a few records, such as for a fork in a long history, must not read 256 KiB of
    // compressed frames and decode thousands of records.
    #[tokio::test]
    async fn small_range_reads_few_bytes() {
        let log = Arc::new(FallibleLog::default());
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

    // Two concurrent reads of one frame both insert it into the cache, and so does a read of a
    // rewritten segment. Evicting the replaced frame must not remove the list entry of its
    // replacement: every later read would decode that frame again.
    #[tokio::test]
    async fn frame_inserted_twice_stays_in_the_cache() {
        let log = Arc::new(MemoryLog::new());
        let shard = ShardId::default();
        let owner = log.acquire(shard).await.unwrap();
        let batch = samples::batch(1, &samples::records(5, 100));
        log.append(shard, owner.epoch, 0, batch).await.unwrap();
        let reader = LogReader::new(log, shard, 1 << 20);
        let load = || async { Arc::new(reader.load(1, 1).await.unwrap().remove(0)) };
        let (one, other) = (load().await, load().await);
        for frame in [&one, &other] {
            reader.keep(frame, false, 0);
            let found = reader.find(3).expect("it was kept");
            assert!(Arc::ptr_eq(&found, frame));
        }
        reader.frames.remove(&1);
        assert!(reader.find(3).is_none());
    }

    // Indexing, verifying and replaying read the log once, so their frames must not stay in the
    // cache. A full cache gets the unused memory of other caches: it held a hundred MiB of records
    // that were not read again.
    #[tokio::test]
    async fn sequential_reads_are_not_cached() {
        let log = Arc::new(MemoryLog::new());
        let shard = ShardId::default();
        let epoch = log.acquire(shard).await.unwrap().epoch;
        for head in (0..600).step_by(20) {
            let records: Vec<_> = (0..20).map(|_| samples::noisy_record(300)).collect();
            let batch = samples::batch(head + 1, &records);
            log.append(shard, epoch, head, batch).await.unwrap();
        }
        let reader = LogReader::new(log, shard, 1 << 20);
        let all = reader.records(1, usize::MAX, usize::MAX).await.unwrap();
        assert_eq!(all.len(), 600);
        for (records_max, bytes_max) in [(7, usize::MAX), (20, usize::MAX), (600, 5_000), (33, 1)] {
            let reader = LogReader::new(Arc::clone(reader.log()), shard, 1 << 20);
            let mut read: Vec<(u64, Record)> = Vec::new();
            while read.len() < all.len() {
                let next = read.len() as u64 + 1;
                let page = reader.records_once(next, records_max, bytes_max).await;
                let same = reader.records(next, records_max, bytes_max).await;
                let page = page.unwrap();
                assert!(!page.is_empty() && page == same.unwrap());
                read.extend(page);
            }
            assert!(read == all);

            let reader = LogReader::new(Arc::clone(reader.log()), shard, 1 << 20);
            let (mut next, mut most) = (1, 0);
            while next <= 600 {
                let page = reader.records_once(next, records_max, bytes_max).await;
                next += page.unwrap().len() as u64;
                most = most.max(reader.cache().weight());
            }
            let all_weigh = all.iter().map(|(_, record)| record_bytes(record) as u64);
            assert!(most < all_weigh.sum::<u64>() / 2, "{most}");
            assert_eq!(reader.cache().weight(), 0);
            let cached = reader.cached.read().unwrap();
            assert!(cached.is_empty(), "{cached:?}");
        }
    }
}
