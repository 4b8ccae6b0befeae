//! Decides when segments are rewritten. Sealed segments are rewritten in the background. In a log
//! that never fills a segment, the last one is sealed and rewritten when the log is idle or closed.

use std::{
    io,
    ops::RangeInclusive,
    sync::{
        Arc, Condvar, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::{Folder, RedbLog, RewriteOutcome, lock_of};
use crate::port::LogError;

/// After this long without an append, the last segment is sealed so that it can be rewritten as
/// blocks.
const IDLE_AFTER: Duration = Duration::from_secs(10);
/// Minimum size of frames, in bytes, that is worth a segment of its own.
const SEALED_BYTES_MIN: u64 = 256 << 10;
/// How often the thread checks for work.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// After a failure, it retries when there is another segment, or after this long.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(600);
/// The thread's nice value, from 0 to 19: it yields to the threads that serve requests.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 15;

impl<F: Folder> RedbLog<F> {
    /// Seals the last segment if its frames are large enough and have at most `frames_bytes_max`
    /// bytes. A low maximum limits the work that follows. Returns true when the segment was sealed.
    ///
    /// # Errors
    /// As for appending; the log stays as it was.
    pub fn seal_last(&self, frames_bytes_max: u64) -> Result<bool, LogError> {
        self.seal_within(SEALED_BYTES_MIN..=frames_bytes_max)
    }

    pub(super) fn seal_within(&self, bytes: RangeInclusive<u64>) -> Result<bool, LogError> {
        let _owner = lock_of(&self.owner);
        let head = *self.head.borrow();
        if self.mode.is_read_only() || self.is_poisoned() || head.closed {
            return Ok(false);
        }
        self.open_to_write()?;
        let frames = {
            let active = self.active()?;
            if active.first_offset == head.offset + 1 {
                return Ok(false);
            }
            active.open.as_ref().map_or(0, |open| open.frames_bytes())
        };
        if !bytes.contains(&frames) {
            return Ok(false);
        }
        self.seal(head.offset)?;
        Ok(true)
    }

    /// Rewrites the whole log as blocks. The last segment is included if its frames are large
    /// enough and have at most `frames_bytes_max` bytes.
    ///
    /// # Errors
    /// The error of the first step that failed; earlier steps stay done.
    pub fn pack_log(
        &self,
        frames_bytes_max: u64,
        stop: &AtomicBool,
    ) -> Result<RewriteOutcome, LogError> {
        self.seal_last(frames_bytes_max)?;
        let mut all = RewriteOutcome::default();
        while let Some(done) = self.rewrite_next(stop)? {
            all.segments += done.segments;
            all.records += done.records;
            all.bytes_before += done.bytes_before;
            all.bytes_after += done.bytes_after;
        }
        Ok(all)
    }
}

/// A background thread that rewrites segments. It stops when this is dropped.
#[derive(Debug)]
pub struct Rewriter {
    signal: Arc<Signal>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Signal {
    stop: AtomicBool,
    asleep: Mutex<()>,
    wake: Condvar,
}

impl Rewriter {
    /// Starts the thread for a log that is written to.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start<F: Folder>(log: &Arc<RedbLog<F>>) -> io::Result<Self> {
        let signal = Arc::new(Signal::default());
        let (log, seen) = (Arc::downgrade(log), Arc::clone(&signal));
        let thread = thread::Builder::new()
            .name("log-rewriter".to_owned())
            .spawn(move || run(&log, &seen))?;
        Ok(Self {
            signal,
            thread: Some(thread),
        })
    }

    /// Stops the thread. A rewrite in progress is abandoned without effect, and done again later.
    pub fn stop(&mut self) {
        {
            let _asleep = lock_of(&self.signal.asleep);
            self.signal.stop.store(true, Ordering::Release);
        }
        self.signal.wake.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the rewriting of segments panicked");
        }
    }
}

impl Drop for Rewriter {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The thread's state between checks.
struct LastCheck {
    head: u64,
    since: Instant,
    /// Number of segments at the last failure, and when that was.
    failed: Option<(usize, Instant)>,
}

fn run<F: Folder>(log: &Weak<RedbLog<F>>, signal: &Signal) {
    lower_priority();
    // Wait first: a process that only appends something and exits must not pay for a rewrite.
    signal.sleep();
    let mut looked = LastCheck {
        head: 0,
        since: Instant::now(),
        failed: None,
    };
    while !signal.stop.load(Ordering::Acquire) {
        let Some(log) = log.upgrade() else { return };
        if !looked.look(&log, &signal.stop) {
            drop(log);
            signal.sleep();
        }
    }
}

impl Signal {
    fn sleep(&self) {
        let asleep = lock_of(&self.asleep);
        if !self.stop.load(Ordering::Acquire) {
            let _woken = self
                .wake
                .wait_timeout(asleep, LOOK_EVERY)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl LastCheck {
    /// Does the next piece of work; returns true when there may be more.
    fn look<F: Folder>(&mut self, log: &RedbLog<F>, stop: &AtomicBool) -> bool {
        let head = log.head.borrow().offset;
        if head != self.head {
            self.head = head;
            self.since = Instant::now();
        }
        let segments = log.manifest().segments.len();
        if let Some((there, at)) = self.failed {
            if there == segments && at.elapsed() < TRY_AGAIN_AFTER {
                return false;
            }
            self.failed = None;
        }
        let done = if log.has_to_rewrite() {
            log.rewrite_next(stop).map(|done| done.is_some())
        } else if self.since.elapsed() >= IDLE_AFTER {
            // Check again only after another append, or much later.
            self.since = Instant::now() + TRY_AGAIN_AFTER;
            log.seal_last(u64::MAX)
        } else {
            Ok(false)
        };
        done.unwrap_or_else(|error| {
            if !matches!(error, LogError::Closed) {
                tracing::warn!(%error, "a segment was not rewritten; it stays as it is");
            }
            self.failed = Some((log.manifest().segments.len(), Instant::now()));
            false
        })
    }
}

/// Lowers the thread's priority.
fn lower_priority() {
    #[cfg(target_os = "linux")]
    {
        // On Linux, niceness applies to a thread.
        let thread = rustix::thread::gettid();
        let _ = rustix::process::setpriority_process(Some(thread), NICENESS);
    }
}
