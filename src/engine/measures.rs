//! What a store does, in numbers, for whoever watches it: counted as things happen, and put
//! together when somebody asks. How the numbers are called outside is not known here.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{
    Engine, Inner,
    error::{AppendError, ReadError},
    sequencer::lock,
};
use crate::{
    disk::{self, DiskSpace},
    domain::{ShardId, TimestampMicros},
    measure::Distribution,
};

/// How often the disk is looked at.
const DISK_LOOK_EVERY: Duration = Duration::from_secs(1);

/// A store in numbers, at a moment. Counts are since it was opened; durations are in
/// microseconds, sizes in bytes.
#[derive(Clone, Debug)]
pub struct Measures {
    /// Since when it is open.
    pub started_at: TimestampMicros,
    /// From handing a group of appends to the log until it was durable.
    pub commit_micros: Distribution,
    /// Syncs of the log's files; none: it is in memory.
    pub sync_micros: Option<Distribution>,
    /// Syncs of the log's files that failed.
    pub failed_syncs: u64,
    /// Events of each group.
    pub group_events: Distribution,
    /// Appends that each group answered.
    pub group_appends: Distribution,
    /// Bytes of the appends in those that were appended.
    pub appended_bytes: u64,
    /// Groups that were not appended, or of which that is not known.
    pub failed_groups: u64,
    /// Appends that were refused, by the stable name of the rule or of the trouble.
    pub refused_appends: BTreeMap<&'static str, u64>,
    /// Appends that wait for the writer, and the most that may.
    pub queue_appends: (u64, u64),
    /// Bytes of those, and the most that they may have.
    pub queue_bytes: (u64, u64),
    /// The last event that reads see.
    pub head: u64,
    /// The last event that the views have on disk.
    pub views_durable: u64,
    /// The last event that a search finds.
    pub index_reached: u64,
    /// Events that cannot be read, and so are not in the index.
    pub not_indexed: u64,
    /// Size of the log.
    pub log_bytes: u64,
    /// Segments of the log.
    pub log_segments: u64,
    /// Size of the views' file.
    pub views_bytes: u64,
    /// Size of the index; none: it could not be found out.
    pub index_bytes: Option<u64>,
    /// The disk that the store is on; none: it is in memory, or the system does not say.
    pub disk: Option<DiskSpace>,
    /// With less free than this the store is not ready.
    pub disk_floor_bytes: u64,
    /// Readers that follow the store now.
    pub subscriptions: u64,
    /// How many events the slowest of them is behind.
    pub subscription_lag: u64,
    /// Each cache: what it holds, and what it may hold.
    pub caches: Vec<CacheUse>,
    /// Conversations of all namespaces that cannot be read to their end.
    pub damaged_conversations: u64,
    /// Positions of the log that cannot be read.
    pub unreadable_positions: u64,
    /// Reads that met damaged data.
    pub damaged_reads: u64,
}

/// A cache, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheUse {
    /// What it is for.
    pub name: &'static str,
    /// What it holds.
    pub bytes: u64,
    /// What it may hold.
    pub room_bytes: u64,
}

impl Engine {
    /// The store in numbers. Looks at files, and so takes a moment.
    ///
    /// # Errors
    /// [`ReadError`] when the log or the views cannot be asked.
    pub async fn measures(&self) -> Result<Measures, ReadError> {
        let inner = &self.inner;
        let views = inner.views.load_full();
        let log = inner.log.stats(ShardId::default()).await?;
        let limits = &inner.options.limits;
        let files = inner.files.as_ref().map(|files| files.file_measures());
        let writer = inner.writer.measures();
        let head = self.head().offset;
        let most = |count: usize| count as u64;
        Ok(Measures {
            started_at: inner.started_at,
            commit_micros: writer.commit_micros.read(),
            sync_micros: files.map(|files| files.sync_micros.read()),
            failed_syncs: files.map_or(0, |files| files.failed_syncs.get()),
            group_events: writer.group_events.read(),
            group_appends: writer.group_requests.read(),
            appended_bytes: writer.bytes.get(),
            failed_groups: writer.failed_groups.get(),
            refused_appends: inner.refusals.read(),
            queue_appends: (most(inner.writer.queued()), most(limits.queue_appends_max)),
            queue_bytes: (
                most(inner.writer.queued_bytes()),
                most(limits.queue_bytes_max),
            ),
            head,
            views_durable: views.durable().min(head),
            index_reached: inner.indexer.reached().min(head),
            not_indexed: inner.indexer.not_indexed(),
            log_bytes: log.bytes,
            log_segments: log.segments,
            views_bytes: views.file_bytes(),
            index_bytes: inner.indexer.index().size_bytes().ok(),
            disk: self.disk_space(),
            disk_floor_bytes: self.disk_space().map_or(0, |disk| self.floor_of(disk)),
            subscriptions: inner.followers.count(),
            subscription_lag: inner.followers.largest_lag(head),
            caches: inner.cache_uses(),
            damaged_conversations: inner.marks.count(),
            unreadable_positions: views.lost()?.iter().map(|(a, b)| b - a + 1).sum(),
            damaged_reads: self.damage_met().map_or(0, |met| met.reads),
        })
    }

    /// The disk that the store is on, as it was a moment ago.
    pub(super) fn disk_space(&self) -> Option<DiskSpace> {
        *lock(&self.inner.disk)
    }

    /// What should stay free on it, in bytes.
    pub(super) fn floor_of(&self, disk: DiskSpace) -> u64 {
        let limits = &self.inner.options.limits;
        limits
            .disk_floor_bytes
            .unwrap_or_else(|| disk.floor_bytes())
    }
}

/// Looks at the disk now and then, on a thread that may hang with it.
pub(super) async fn watch_disk(inner: Weak<Inner>) {
    loop {
        tokio::time::sleep(DISK_LOOK_EVERY).await;
        let Some(inner) = inner.upgrade() else { return };
        if inner.closing.load(Ordering::Acquire) {
            return;
        }
        let dir = inner.options.data_dir.clone();
        let looked = tokio::task::spawn_blocking(move || disk::space(&dir)).await;
        if let Ok(Some(disk)) = looked {
            *lock(&inner.disk) = Some(disk);
        }
    }
}

impl Inner {
    fn cache_uses(&self) -> Vec<CacheUse> {
        self.caches()
            .into_iter()
            .map(|(name, cache)| CacheUse {
                name,
                bytes: cache.used(),
                room_bytes: cache.room(),
            })
            .collect()
    }
}

/// Appends that were refused, by why.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<BTreeMap<&'static str, u64>>);

impl Refusals {
    pub fn note(&self, error: &AppendError) {
        *lock(&self.0).entry(reason(error)).or_default() += 1;
    }

    fn read(&self) -> BTreeMap<&'static str, u64> {
        lock(&self.0).clone()
    }
}

/// The names that clients see, too.
fn reason(error: &AppendError) -> &'static str {
    match error {
        AppendError::Rejected(rejection) => rejection.rule.name(),
        AppendError::Invalid { .. } => "INVALID_EVENT",
        AppendError::TooLarge { .. } => "TOO_LARGE",
        AppendError::Busy { .. } => "BUSY",
        AppendError::OverQuota { .. } => "QUOTA_EXCEEDED",
        AppendError::NoSpace => "NO_SPACE",
        AppendError::ReadOnly => "READ_ONLY",
        AppendError::UnknownOutcome { .. } => "UNKNOWN_OUTCOME",
        AppendError::Unready { .. } => "NOT_READY",
        AppendError::Stopped { .. } => "APPENDS_STOPPED",
        AppendError::Storage { .. } => "STORAGE",
        AppendError::Read(_) => "READ_FAILED",
        AppendError::Closing => "CLOSING",
    }
}

/// The readers that follow the store.
#[derive(Debug, Default)]
pub(super) struct Followers(Mutex<Vec<Weak<Follower>>>);

/// How far one of them is.
#[derive(Debug, Default)]
pub(super) struct Follower {
    seen: AtomicU64,
    /// It has all that there was, and waits.
    waits: AtomicBool,
}

impl Follower {
    /// It was brought the event at this offset.
    pub fn saw(&self, offset: u64) {
        self.seen.store(offset, Ordering::Relaxed);
    }

    /// It has all there is, or goes on reading.
    pub fn waits(&self, waits: bool) {
        self.waits.store(waits, Ordering::Relaxed);
    }
}

impl Followers {
    /// One more, until what is returned is dropped; it has seen all up to `offset`.
    pub fn join(&self, offset: u64) -> Arc<Follower> {
        let follower = Arc::new(Follower::default());
        follower.saw(offset);
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(&follower));
        follower
    }

    fn count(&self) -> u64 {
        let all = lock(&self.0);
        all.iter().filter(|one| one.strong_count() > 0).count() as u64
    }

    fn largest_lag(&self, head: u64) -> u64 {
        let all = lock(&self.0);
        let lags = all.iter().filter_map(Weak::upgrade).map(|one| {
            let seen = one.seen.load(Ordering::Relaxed);
            match one.waits.load(Ordering::Relaxed) {
                true => 0,
                false => head.saturating_sub(seen),
            }
        });
        lags.max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A reader that is gone must not be counted for ever, and one that waits for news of a
    // quiet conversation is not behind, however long the log has grown without it.
    #[test]
    fn followers_are_behind_only_while_they_read() {
        let followers = Followers::default();
        let (slow, quiet) = (followers.join(0), followers.join(3));
        slow.saw(10);
        quiet.waits(true);
        assert_eq!((followers.count(), followers.largest_lag(50)), (2, 40));
        drop(slow);
        assert_eq!((followers.count(), followers.largest_lag(50)), (1, 0));
        quiet.waits(false);
        assert_eq!(followers.largest_lag(50), 47);
    }
}
