//! The writer's queue, bounded in requests and in bytes.

use std::{
    collections::VecDeque,
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures::channel::oneshot;

use super::{QueueFull, Sequencer, SubmitError, WriterLimits};
use treering_base::trace::WriteTrace;

/// Bounds of the retry hint, in milliseconds.
const RETRY_MS_MIN: u64 = 5;
const RETRY_MS_MAX: u64 = 1_000;

/// A request and the channel for its answer.
pub(super) struct QueuedRequest<S: Sequencer> {
    pub(super) request: S::Request,
    pub(super) answer: oneshot::Sender<S::Answer>,
    pub(super) bytes: usize,
    pub(super) way: Option<WriteTrace>,
}

/// Why [`Queue::wait`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WakeReason {
    /// Items are available.
    Items,
    /// The time has elapsed.
    Time,
    /// The queue is closed and empty.
    Closed,
}

pub(super) struct Queue<T> {
    state: Mutex<State<T>>,
    arrived: Condvar,
    limits: WriterLimits,
    /// Smoothed time that a group takes for each of its requests, in microseconds.
    request_micros: AtomicU64,
}

struct State<T> {
    waiting: VecDeque<T>,
    /// Requests between `push` and `done`, with their bytes in the next field.
    requests: usize,
    bytes: usize,
    taken_at: Option<Instant>,
    closed: bool,
}

impl<T> Queue<T> {
    pub(super) fn new(limits: WriterLimits) -> Self {
        Self {
            state: Mutex::new(State {
                waiting: VecDeque::new(),
                requests: 0,
                bytes: 0,
                taken_at: None,
                closed: false,
            }),
            arrived: Condvar::new(),
            limits,
            request_micros: AtomicU64::new(20),
        }
    }

    pub(super) fn limits(&self) -> &WriterLimits {
        &self.limits
    }

    /// Returns the number of requests between `push` and `done`, and their bytes.
    pub(super) fn size(&self) -> (usize, usize) {
        let state = self.lock();
        (state.requests, state.bytes)
    }

    /// Returns true when items wait to be taken.
    pub(super) fn has_more(&self) -> bool {
        !self.lock().waiting.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts an item. An empty queue accepts one of any size, so that no item is refused for
    /// ever.
    pub(super) fn push(&self, item: T, bytes: usize) -> Result<(), SubmitError> {
        let mut state = self.lock();
        if state.closed {
            return Err(SubmitError::Closed);
        }
        let full = state.requests >= self.limits.queue_appends_max
            || state.bytes.saturating_add(bytes) > self.limits.queue_bytes_max;
        if full && state.requests > 0 {
            return Err(SubmitError::Full(self.full(state.requests)));
        }
        state.requests += 1;
        state.bytes += bytes;
        state.waiting.push_back(item);
        drop(state);
        self.arrived.notify_one();
        Ok(())
    }

    fn full(&self, requests: usize) -> QueueFull {
        // Retrying is worthwhile once half of the queue has drained.
        let micros = self.request_micros.load(Ordering::Relaxed) * requests as u64 / 2;
        QueueFull {
            retry_after_ms: (micros / 1_000).clamp(RETRY_MS_MIN, RETRY_MS_MAX),
        }
    }

    /// Waits for items and takes all of them; with `time`, waits no longer than that.
    pub(super) fn wait(&self, into: &mut VecDeque<T>, time: Option<Duration>) -> WakeReason {
        let until = time.map(|time| Instant::now() + time);
        let mut state = self.lock();
        while state.waiting.is_empty() {
            if state.closed {
                return WakeReason::Closed;
            }
            state = match until.map(|until| until.saturating_duration_since(Instant::now())) {
                None => self
                    .arrived
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => return WakeReason::Time,
                Some(left) => {
                    self.arrived
                        .wait_timeout(state, left)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
            };
        }
        state.taken_at = Some(Instant::now());
        into.append(&mut state.waiting);
        WakeReason::Items
    }

    /// Removes a finished group's requests from the counts.
    pub(super) fn done(&self, requests: usize, bytes: usize) {
        let mut state = self.lock();
        state.requests = state.requests.saturating_sub(requests);
        state.bytes = state.bytes.saturating_sub(bytes);
        let since = state.taken_at.replace(Instant::now());
        drop(state);
        if let Some(since) = since {
            let each = since.elapsed().as_micros() as u64 / requests.max(1) as u64;
            let before = self.request_micros.load(Ordering::Relaxed);
            self.request_micros
                .store((before * 7 + each) / 8, Ordering::Relaxed);
        }
    }

    /// Recomputes the counts: `taken` requests of `bytes` bytes were taken and are not finished.
    pub(super) fn recount(&self, taken: usize, bytes: usize, bytes_of: impl Fn(&T) -> usize) {
        let mut state = self.lock();
        state.requests = taken + state.waiting.len();
        state.bytes = bytes + state.waiting.iter().map(bytes_of).sum::<usize>();
    }

    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.arrived.notify_all();
    }

    /// Drops the waiting items.
    pub(super) fn clear(&self) {
        let dropped = std::mem::take(&mut self.lock().waiting);
        drop(dropped);
    }
}
