//! Metrics of a store, counted as things happen and collected on request. Their external names are
//! defined elsewhere.

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
use treering_base::disk::{self, DiskSpace};
use treering_base::measure::Distribution;
use treering_domain::TimestampMicros;

/// Interval at which the disk space is checked.
const DISK_LOOK_EVERY: Duration = Duration::from_secs(1);

/// Metrics of a store at one moment. Counts are since it was opened; durations are in microseconds,
/// sizes in bytes.
#[derive(Clone, Debug)]
pub struct Measures {
    /// When the store was opened.
    pub started_at: TimestampMicros,
    /// Time from handing a group of appends to the log until it was durable.
    pub commit_micros: Distribution,
    /// Durations of syncs of the log's files; `None` if the log is in memory.
    pub sync_micros: Option<Distribution>,
    /// Number of failed syncs of the log's files.
    pub failed_syncs: u64,
    /// Number of events per group.
    pub group_events: Distribution,
    /// Number of appends answered per group.
    pub group_appends: Distribution,
    /// Bytes of successful appends.
    pub appended_bytes: u64,
    /// Number of groups that were not appended, or whose outcome is unknown.
    pub failed_groups: u64,
    /// Number of refused appends, by the stable name of the rule or problem.
    pub refused_appends: BTreeMap<&'static str, u64>,
    /// Number of appends that wait for the writer, and the maximum.
    pub queue_appends: (u64, u64),
    /// Size of the appends that wait for the writer, and the maximum.
    pub queue_bytes: (u64, u64),
    /// The last offset that reads see.
    pub head: u64,
    /// The last offset that is durable in the projections.
    pub views_durable: u64,
    /// The last offset that searches find.
    pub index_reached: u64,
    /// Number of events that cannot be read and therefore are not indexed.
    pub not_indexed: u64,
    /// Number of indexed passages without vectors; `None`: there is no embedder.
    pub not_embedded: Option<u64>,
    /// Size of the log.
    pub log_bytes: u64,
    /// Number of segments of the log.
    pub log_segments: u64,
    /// Size of the projections' file.
    pub views_bytes: u64,
    /// Size of the index; `None` if it could not be determined.
    pub index_bytes: Option<u64>,
    /// The store's disk; `None` if the store is in memory or the system does not report it.
    pub disk: Option<DiskSpace>,
    /// Free space below which the store is not ready.
    pub disk_floor_bytes: u64,
    /// Number of active subscriptions.
    pub subscriptions: u64,
    /// Number of log offsets by which the slowest subscription is behind.
    pub subscription_lag: u64,
    /// Usage and capacity of each cache.
    pub caches: Vec<CacheUse>,
    /// Number of damaged conversations in all namespaces.
    pub damaged_conversations: u64,
    /// Number of unreadable log positions.
    pub unreadable_positions: u64,
    /// Number of reads that met damaged data.
    pub damaged_reads: u64,
}

/// The usage of a cache, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheUse {
    /// Its name.
    pub name: &'static str,
    /// Its current size.
    pub bytes: u64,
    /// Its capacity.
    pub room_bytes: u64,
}

/// How far a store is. Reading it does no I/O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreReach {
    /// The last offset that reads see.
    pub head: u64,
    /// The last offset that searches find.
    pub index_reached: u64,
    /// Number of events appended since the store was opened.
    pub events_appended: u64,
}

impl Engine {
    /// Returns how far the store is.
    #[must_use]
    pub fn reach(&self) -> StoreReach {
        let head = self.head().offset;
        let writer = self.inner.appends.writer.measures();
        StoreReach {
            head,
            index_reached: self.inner.search.indexer.reached().min(head),
            events_appended: writer.group_events.read().sum,
        }
    }

    /// Collects the metrics. This inspects files and takes a moment.
    ///
    /// # Errors
    /// [`ReadError`] when the log or the projections cannot be read.
    pub async fn measures(&self) -> Result<Measures, ReadError> {
        let inner = &self.inner;
        let projections = inner.reads.projections.load_full();
        let log = inner.log.stats(inner.shard).await?;
        let limits = &inner.options.limits;
        let files = inner
            .upkeep
            .files
            .as_ref()
            .map(|files| files.file_measures());
        let writer = inner.appends.writer.measures();
        let head = self.head().offset;
        let most = |count: usize| count as u64;
        Ok(Measures {
            started_at: inner.upkeep.started_at,
            commit_micros: writer.commit_micros.read(),
            sync_micros: files.map(|files| files.sync_micros.read()),
            failed_syncs: files.map_or(0, |files| files.failed_syncs.get()),
            group_events: writer.group_events.read(),
            group_appends: writer.group_requests.read(),
            appended_bytes: writer.bytes.get(),
            failed_groups: writer.failed_groups.get(),
            refused_appends: inner.appends.refusals.read(),
            queue_appends: (
                most(inner.appends.writer.queued()),
                most(limits.queue_appends_max),
            ),
            queue_bytes: (
                most(inner.appends.writer.queued_bytes()),
                most(limits.queue_bytes_max),
            ),
            head,
            views_durable: projections.durable().min(head),
            index_reached: inner.search.indexer.reached().min(head),
            not_indexed: inner.search.indexer.not_indexed(),
            not_embedded: self
                .vector_stats()
                .map(|stats| stats.passages - stats.embedded),
            log_bytes: log.bytes,
            log_segments: log.segments,
            views_bytes: projections.file_bytes(),
            index_bytes: inner.search.indexer.index().size_bytes().ok(),
            disk: self.disk_space(),
            disk_floor_bytes: self.disk_space().map_or(0, |disk| self.floor_of(disk)),
            subscriptions: inner.appends.followers.count(),
            subscription_lag: inner.appends.followers.largest_lag(head),
            caches: inner.cache_uses(),
            damaged_conversations: inner.reads.quarantine.count(),
            unreadable_positions: projections.lost()?.iter().map(|(a, b)| b - a + 1).sum(),
            damaged_reads: self.damage_met().map_or(0, |met| met.reads),
        })
    }

    /// Returns the store's disk space at the last check.
    pub(super) fn disk_space(&self) -> Option<DiskSpace> {
        *lock(&self.inner.upkeep.disk)
    }

    /// Returns the space that should stay free, in bytes.
    pub(super) fn floor_of(&self, disk: DiskSpace) -> u64 {
        let limits = &self.inner.options.limits;
        limits
            .disk_floor_bytes
            .unwrap_or_else(|| disk.floor_bytes())
    }
}

/// Checks the disk space periodically, on a thread that may hang if the disk does.
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
            *lock(&inner.upkeep.disk) = Some(disk);
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

/// Number of refused appends, by reason.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<BTreeMap<&'static str, u64>>);

impl Refusals {
    pub(crate) fn note(&self, error: &AppendError) {
        *lock(&self.0).entry(reason(error)).or_default() += 1;
    }

    fn read(&self) -> BTreeMap<&'static str, u64> {
        lock(&self.0).clone()
    }
}

/// Returns the name of a reason, as clients see it.
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

/// The active subscriptions.
#[derive(Debug, Default)]
pub(super) struct Followers(Mutex<Vec<Weak<Follower>>>);

/// The progress of one subscription.
#[derive(Debug, Default)]
pub(super) struct Follower {
    seen: AtomicU64,
    /// The subscription is up to date and waits.
    waits: AtomicBool,
}

impl Follower {
    /// Records that the event at this offset was delivered.
    pub(crate) fn record_delivery(&self, offset: u64) {
        self.seen.store(offset, Ordering::Relaxed);
    }

    /// Records whether the subscription is up to date and waits.
    pub(crate) fn record_waiting(&self, waits: bool) {
        self.waits.store(waits, Ordering::Relaxed);
    }
}

impl Followers {
    /// Adds a subscription that has seen everything up to `offset`; it is removed when the returned
    /// value is dropped.
    pub(crate) fn join(&self, offset: u64) -> Arc<Follower> {
        let follower = Arc::new(Follower::default());
        follower.record_delivery(offset);
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

    // A reader that is gone must no longer be counted. One that waits on a quiet conversation is
    // not behind, however far the log has grown.
    #[test]
    fn only_reading_followers_have_lag() {
        let followers = Followers::default();
        let (slow, quiet) = (followers.join(0), followers.join(3));
        slow.record_delivery(10);
        quiet.record_waiting(true);
        assert_eq!((followers.count(), followers.largest_lag(50)), (2, 40));
        drop(slow);
        assert_eq!((followers.count(), followers.largest_lag(50)), (1, 0));
        quiet.record_waiting(false);
        assert_eq!(followers.largest_lag(50), 47);
    }
}
