//! Health: whether the two threads make progress, and whether appends are accepted. Written by the
//! threads, read by health checks.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use super::lock;
use treering_domain::limits::{APPENDS_DOUBTED_FOR, STALL_MAX};

/// The health of a writer. Each error is a human-readable reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriterHealth {
    /// Its threads run and make progress. If not, only a restart helps.
    pub live: Result<(), String>,
    /// An append that arrives now can be expected to be accepted.
    pub ready: Result<(), String>,
}

/// The heartbeat of a thread.
#[derive(Debug)]
pub struct Heartbeat {
    started: Instant,
    /// When the current piece of work began, in milliseconds after `started`.
    began: AtomicU64,
    /// When the working thread last gave a sign, in milliseconds after `started`, plus one; 0 while
    /// it waits for work.
    last_sign: AtomicU64,
    ended: AtomicBool,
}

impl Heartbeat {
    /// Creates the heartbeat of a thread that waits for work.
    #[must_use]
    pub fn new() -> Self {
        Self {
            started: Instant::now(),
            began: AtomicU64::new(0),
            last_sign: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        }
    }

    /// Records that the thread is working and making progress.
    pub fn sign(&self) {
        self.last_sign.store(self.now() + 1, Ordering::Release);
    }

    /// Records that a new piece of work begins.
    pub(super) fn begin(&self) {
        self.began.store(self.now(), Ordering::Release);
        self.sign();
    }

    fn now(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// Records that the thread waits for work.
    pub(super) fn rest(&self) {
        self.last_sign.store(0, Ordering::Release);
    }

    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Checks that the thread runs and made progress within `stall_max`.
    ///
    /// # Errors
    /// Why this thread is not healthy.
    fn check(&self, name: &str, stall_max: Duration) -> Result<(), String> {
        if self.ended.load(Ordering::Acquire) {
            return Err(format!("the {name} has stopped"));
        }
        let Some(silent) = self.at_work_since(&self.last_sign, 1) else {
            return Ok(());
        };
        if silent <= stall_max {
            return Ok(());
        }
        let seconds = silent.as_secs();
        Err(format!(
            "the {name} has made no progress for {seconds} s; the disk may not respond"
        ))
    }

    /// Checks how long the current piece of work has taken.
    ///
    /// # Errors
    /// When it takes so long that new appends would wait.
    fn check_pace(&self, name: &str) -> Result<(), String> {
        match self.at_work_since(&self.began, 0) {
            Some(long) if long > APPENDS_DOUBTED_FOR => {
                let seconds = long.as_secs();
                Err(format!(
                    "the {name} has worked on one group for {seconds} s"
                ))
            }
            _ => Ok(()),
        }
    }

    /// Returns the time since a mark, if the thread is working. `more` was added to the stored
    /// mark.
    fn at_work_since(&self, mark: &AtomicU64, more: u64) -> Option<Duration> {
        if self.last_sign.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mark = mark.load(Ordering::Acquire).saturating_sub(more);
        Some(Duration::from_millis(self.now().saturating_sub(mark)))
    }
}

impl Default for Heartbeat {
    fn default() -> Self {
        Self::new()
    }
}

/// Whether appends are accepted, as the writer last saw it.
#[derive(Clone, Debug)]
pub(super) enum Appends {
    Taken,
    /// The last group was not appended; the next one may be.
    Failed {
        at: Instant,
        what: String,
    },
    /// The outcome of a group is unknown.
    Unsettled {
        what: String,
    },
    /// Stopped for good. A fault is a failure that only a restart fixes.
    Stopped {
        what: String,
        fault: bool,
    },
}

/// The state that both threads write and from which [`WriterHealth`] is computed.
pub(super) struct HealthState {
    pub(super) writer: Heartbeat,
    pub(super) publisher: Heartbeat,
    appends: Mutex<Appends>,
}

impl HealthState {
    pub(super) fn new() -> Self {
        Self {
            writer: Heartbeat::new(),
            publisher: Heartbeat::new(),
            appends: Mutex::new(Appends::Taken),
        }
    }

    /// Sets the state. `Stopped` is never replaced.
    pub(super) fn set(&self, appends: Appends) {
        let mut state = lock(&self.appends);
        if !matches!(&*state, Appends::Stopped { .. }) {
            *state = appends;
        }
    }

    pub(super) fn health(&self) -> WriterHealth {
        self.health_with(STALL_MAX)
    }

    fn health_with(&self, stall_max: Duration) -> WriterHealth {
        let appends = lock(&self.appends).clone();
        let threads = self
            .writer
            .check("writer", stall_max)
            .and_then(|()| self.publisher.check("publisher", stall_max));
        let live = threads.and_then(|()| match &appends {
            Appends::Stopped { what, fault: true } => Err(what.clone()),
            _ => Ok(()),
        });
        let taken = live.clone().and_then(|()| match appends {
            Appends::Taken => Ok(()),
            Appends::Failed { at, .. } if at.elapsed() > APPENDS_DOUBTED_FOR => Ok(()),
            Appends::Failed { what, .. }
            | Appends::Unsettled { what }
            | Appends::Stopped { what, .. } => Err(what),
        });
        let ready = taken
            .and_then(|()| self.writer.check_pace("writer"))
            .and_then(|()| self.publisher.check_pace("publisher"));
        WriterHealth { live, ready }
    }
}

/// Records the end of a thread, however it ends.
pub(super) struct EndRecorder<'a>(pub(super) &'a Heartbeat);

impl Drop for EndRecorder<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A thread that hangs in the disk blocks every append, and only the health check can still
    // report it. A thread that waits for work is healthy.
    #[test]
    fn stuck_thread_is_not_live() {
        let health_state = HealthState::new();
        let at_once = Duration::ZERO;
        assert_eq!(health_state.health_with(at_once).live, Ok(()));
        health_state.publisher.begin();
        std::thread::sleep(Duration::from_millis(5));
        let health = health_state.health_with(at_once);
        assert!(health.live.clone().unwrap_err().contains("publisher"));
        assert_eq!(health.ready, health.live);
        assert_eq!(health_state.health().live, Ok(()), "it has some time");
        health_state.publisher.rest();
        assert_eq!(health_state.health_with(at_once).live, Ok(()));
        drop(EndRecorder(&health_state.writer));
        assert!(health_state.health().live.unwrap_err().contains("writer"));
    }

    // The projections have no disk space and the publisher keeps retrying: it is live, but every
    // append waits for it.
    #[test]
    fn retrying_thread_is_live_but_not_ready() {
        let health_state = HealthState::new();
        health_state.publisher.begin();
        assert_eq!(health_state.health().ready, Ok(()));
        let long_ago = Instant::now().checked_sub(APPENDS_DOUBTED_FOR * 2).unwrap();
        let slow = HealthState {
            publisher: Heartbeat {
                started: long_ago,
                ..Heartbeat::new()
            },
            ..HealthState::new()
        };
        slow.publisher.sign();
        let health = slow.health();
        assert_eq!(health.live, Ok(()));
        assert!(health.ready.unwrap_err().contains("publisher"));
        slow.publisher.rest();
        assert_eq!(slow.health().ready, Ok(()));
    }

    // A disk that was full for one append must not keep the store unready for ever: nobody would
    // try again.
    #[test]
    fn failure_expires_and_a_stop_does_not() {
        let health_state = HealthState::new();
        let failed = |at| Appends::Failed {
            at,
            what: "full".to_owned(),
        };
        health_state.set(failed(Instant::now()));
        assert_eq!(health_state.health().ready, Err("full".to_owned()));
        let long_ago = Instant::now().checked_sub(APPENDS_DOUBTED_FOR * 2);
        health_state.set(failed(long_ago.unwrap()));
        assert_eq!(health_state.health().ready, Ok(()));
        health_state.set(Appends::Stopped {
            what: "fenced".to_owned(),
            fault: false,
        });
        health_state.set(Appends::Taken);
        assert_eq!(health_state.health().live, Ok(()));
        assert_eq!(health_state.health().ready, Err("fenced".to_owned()));
    }
}
