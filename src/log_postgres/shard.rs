//! What this process knows about a shard: how far it is confirmed to be on the standby.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use tokio::sync::watch;
use treering_log::{Epoch, LogError};

/// How far a shard is confirmed. Nothing beyond it is acknowledged, read or followed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Confirmed {
    /// Everything up to this offset is on the standby: it was in the database before a synchronous
    /// commit, and that commit has succeeded.
    pub(crate) offset: u64,
    /// The log is closed.
    pub(crate) closed: bool,
}

/// A shard of this process.
pub(crate) struct Shard {
    confirmed: watch::Sender<Confirmed>,
    /// The epoch of an append whose outcome is unknown. It is kept until the shard is acquired
    /// again, or found to have another owner.
    in_doubt: Mutex<Option<Epoch>>,
    /// The epoch that this process acquired last; 0 if none.
    epoch: AtomicU64,
    /// Held while a barrier runs: one at a time is enough, and each may wait long for the standby.
    pub(crate) barrier: Arc<tokio::sync::Mutex<()>>,
    /// An offset up to which everything is in segments. More may be.
    sealed_upto: AtomicU64,
    hot: Mutex<HotBytes>,
    /// Held while rows of the shard are sealed or erased.
    pub(crate) moving: tokio::sync::Mutex<()>,
}

/// How many bytes of a shard are in the database, not in segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum HotBytes {
    /// This process does not own the shard.
    #[default]
    NotOwned,
    /// They were not measured since this process acquired the shard.
    Unknown,
    /// About so many.
    Known(u64),
}

impl Default for Shard {
    fn default() -> Self {
        Self {
            confirmed: watch::channel(Confirmed::default()).0,
            in_doubt: Mutex::default(),
            epoch: AtomicU64::new(0),
            barrier: Arc::default(),
            sealed_upto: AtomicU64::new(0),
            hot: Mutex::default(),
            moving: tokio::sync::Mutex::default(),
        }
    }
}

impl Shard {
    /// Returns the confirmed offset.
    ///
    /// # Errors
    /// [`LogError::Closed`].
    pub(crate) fn confirmed(&self) -> Result<u64, LogError> {
        let confirmed = *self.confirmed.borrow();
        if confirmed.closed {
            return Err(LogError::Closed);
        }
        Ok(confirmed.offset)
    }

    pub(crate) fn confirm(&self, offset: u64) {
        self.confirmed.send_if_modified(|confirmed| {
            let is_news = confirmed.offset < offset;
            confirmed.offset = confirmed.offset.max(offset);
            is_news
        });
    }

    pub(crate) fn close(&self) {
        self.confirmed
            .send_modify(|confirmed| confirmed.closed = true);
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Confirmed> {
        self.confirmed.subscribe()
    }

    pub(crate) fn acquired(&self, epoch: Epoch) {
        self.epoch.fetch_max(epoch.0, Ordering::AcqRel);
    }

    pub(crate) fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Ordering::Acquire))
    }

    pub(crate) fn sealed(&self, upto: u64) {
        self.sealed_upto.fetch_max(upto, Ordering::AcqRel);
    }

    pub(crate) fn is_sealed(&self, offset: u64) -> bool {
        offset <= self.sealed_upto.load(Ordering::Acquire)
    }

    pub(crate) fn hot(&self) -> MutexGuard<'_, HotBytes> {
        self.hot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts appended bytes, and returns the sum if it is known.
    pub(crate) fn add_hot(&self, bytes: u64) -> Option<u64> {
        match &mut *self.hot() {
            HotBytes::Known(known) => {
                *known += bytes;
                Some(*known)
            }
            HotBytes::NotOwned | HotBytes::Unknown => None,
        }
    }

    pub(crate) fn in_doubt(&self) -> MutexGuard<'_, Option<Epoch>> {
        self.in_doubt.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
