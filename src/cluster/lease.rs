//! The time within which this node may answer reads of its shards.
//!
//! Another node takes a shard at the earliest when the database has not seen this one for the
//! length of a lease. The lease that counts here began before the heartbeat was sent, so it ends
//! before that, however late this process notices anything.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// A period in which the lease never lapsed. In a later one, another node may have had the shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Term(u64);

#[derive(Default)]
struct State {
    until: Option<Instant>,
    term: u64,
    /// When the current term began, if it is not the first.
    resumed_at: Option<Instant>,
}

/// The lease of this node.
pub(crate) struct NodeLease {
    length: Duration,
    margin: Duration,
    state: Mutex<State>,
}

impl NodeLease {
    pub(crate) fn new(length: Duration, margin: Duration) -> Self {
        Self {
            length,
            margin,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Extends the lease after a heartbeat that succeeded and was sent at `sent`. If its answer
    /// came after the lease had ended, a new term begins.
    pub(crate) fn renew(&self, sent: Instant) {
        let mut state = self.state();
        let now = Instant::now();
        let until = sent + self.length.saturating_sub(self.margin);
        if state.until.is_none_or(|until| now >= until) {
            state.resumed_at = (state.term > 0).then_some(now);
            state.term += 1;
            state.until = None;
        }
        state.until = state.until.max(Some(until));
    }

    /// Ends the lease now.
    pub(crate) fn end(&self) {
        self.state().until = None;
    }

    /// Returns the current term, if the lease has not ended.
    pub(crate) fn term(&self) -> Option<Term> {
        let state = self.state();
        let is_valid = state.until.is_some_and(|until| Instant::now() < until);
        is_valid.then_some(Term(state.term))
    }

    /// Returns true for a lease's length after it resumed. Others may not have resumed yet: after a
    /// failure of the database, all leases have ended, but no node is dead.
    pub(crate) fn has_just_resumed(&self) -> bool {
        let resumed_at = self.state().resumed_at;
        resumed_at.is_some_and(|at| at.elapsed() < self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A process that was stopped for longer than its lease must notice before it answers, and the
    // late answer to a heartbeat from before must not hide that another node had the shard.
    #[test]
    fn late_renewal_begins_a_new_term() {
        let lease = NodeLease::new(Duration::from_millis(100), Duration::from_millis(20));
        assert_eq!(lease.term(), None);
        lease.renew(Instant::now());
        let first = lease.term().unwrap();
        let sent = Instant::now();
        lease.renew(sent);
        assert_eq!(lease.term(), Some(first));
        std::thread::sleep(Duration::from_millis(90));
        assert_eq!(lease.term(), None);
        lease.renew(sent);
        assert_eq!(lease.term(), None, "it was sent too long ago");
        lease.renew(Instant::now());
        assert!(lease.term().is_some_and(|term| term != first));
        assert!(lease.has_just_resumed());
    }
}
