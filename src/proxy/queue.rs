//! The queue between the connections and the recorder. It is bounded by calls and by bytes. Calls
//! that do not fit are dropped and counted, so that no answer waits.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use treering_base::measure::Total;

use super::exchange::Exchange;

/// Maximum number of waiting calls.
const CALLS_MAX: usize = 1_024;
/// Maximum size of all waiting calls, in KiB: about a hundred long requests.
const KIB_MAX: usize = 256 << 10;

/// Counts of calls.
#[derive(Debug, Default)]
pub struct CallCounts {
    /// Calls that were put into the queue.
    pub(crate) queued: Total,
    /// Calls that were taken from the queue and are done.
    pub(crate) done: Total,
    /// Calls that are in the store.
    pub(crate) recorded: Total,
    /// Calls that could not be read, or that the store refused.
    pub(crate) refused: Total,
    /// Calls that were dropped because the queue was full or the proxy stopped.
    pub(crate) dropped: Total,
}

impl CallCounts {
    /// Returns the number of calls that are in the store.
    #[must_use]
    pub fn recorded(&self) -> u64 {
        self.recorded.get()
    }

    /// Returns the number of calls that were lost because the store was unavailable or slow.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.get()
    }

    /// Returns the number of calls that could not be read, or that the store refused.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.get()
    }

    /// Returns the number of waiting calls.
    pub(crate) fn waiting(&self) -> u64 {
        self.queued.get().saturating_sub(self.done.get())
    }
}

/// A waiting call, with its share of the queue's capacity.
#[derive(Debug)]
pub(crate) struct QueuedExchange {
    pub(crate) exchange: Exchange,
    _room: OwnedSemaphorePermit,
}

/// The sending end of the queue.
#[derive(Clone, Debug)]
pub(crate) struct CallQueue {
    to: mpsc::Sender<QueuedExchange>,
    room: Arc<Semaphore>,
    counts: Arc<CallCounts>,
}

impl CallQueue {
    /// Creates an empty queue.
    pub(crate) fn new(counts: Arc<CallCounts>) -> (Self, mpsc::Receiver<QueuedExchange>) {
        Self::bounded(CALLS_MAX, KIB_MAX, counts)
    }

    pub(crate) fn bounded(
        calls: usize,
        kib: usize,
        counts: Arc<CallCounts>,
    ) -> (Self, mpsc::Receiver<QueuedExchange>) {
        let (to, from) = mpsc::channel(calls);
        let room = Arc::new(Semaphore::new(kib));
        (Self { to, room, counts }, from)
    }

    /// Adds a call. If the queue is full, drops the call and logs a warning.
    pub(crate) fn push(&self, exchange: Exchange) {
        let kib = u32::try_from(exchange.bytes() / 1024 + 1).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.room).try_acquire_many_owned(kib);
        let pushed = room.is_ok_and(|room| {
            let queued = QueuedExchange {
                exchange,
                _room: room,
            };
            self.counts.queued.add_one();
            let sent = self.to.try_send(queued).is_ok();
            if !sent {
                self.counts.done.add_one();
            }
            sent
        });
        if !pushed {
            self.counts.dropped.add_one();
            let dropped = self.counts.dropped();
            tracing::warn!(
                dropped,
                "a call is not recorded: the queue for the store is full"
            );
        }
    }
}
