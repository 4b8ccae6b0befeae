//! Branches that wait for summaries, in the order of their new events.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use treering_domain::{BranchId, ConversationId};

/// Identifies a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct BranchKey {
    pub(crate) conversation: ConversationId,
    pub(crate) branch: BranchId,
}

#[derive(Debug)]
struct WaitingBranch {
    /// Log offset of the first event that was not processed.
    first_offset: u64,
    not_before: Instant,
    failures: u32,
}

/// The waiting branches.
#[derive(Debug, Default)]
pub(super) struct Queue {
    order: VecDeque<BranchKey>,
    waiting: HashMap<BranchKey, WaitingBranch>,
    /// No branch is processed until then, to spare the endpoint.
    rest_until: Option<Instant>,
}

impl Queue {
    /// Records new events of a branch.
    pub(crate) fn note(&mut self, place: BranchKey, offset: u64, settle: Duration) {
        self.waiting.entry(place).or_insert_with(|| {
            self.order.push_back(place);
            WaitingBranch {
                first_offset: offset,
                not_before: Instant::now() + settle,
                failures: 0,
            }
        });
    }

    /// Returns the first branch that is due.
    pub(crate) fn due(&self) -> Option<BranchKey> {
        let now = Instant::now();
        if self.rest_until.is_some_and(|until| until > now) {
            return None;
        }
        let due = |place: &&BranchKey| self.waiting.get(place).is_some_and(|w| w.not_before <= now);
        self.order.iter().find(due).copied()
    }

    /// Returns when the next branch is due; `None` when none waits.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        let first = self
            .waiting
            .values()
            .map(|waiting| waiting.not_before)
            .min()?;
        Some(self.rest_until.map_or(first, |until| until.max(first)))
    }

    /// Removes a branch: nothing is left to do.
    pub(crate) fn done(&mut self, place: BranchKey) {
        self.waiting.remove(&place);
        self.order.retain(|waiting| *waiting != place);
        self.rest_until = None;
    }

    /// Moves a branch behind the others: it has more to do.
    pub(crate) fn again(&mut self, place: BranchKey) {
        self.move_back(place, Duration::ZERO);
        self.rest_until = None;
        if let Some(waiting) = self.waiting.get_mut(&place) {
            waiting.failures = 0;
        }
    }

    /// Delays a branch after a failure; the others continue.
    pub(crate) fn postpone(&mut self, place: BranchKey, wait: Duration) {
        self.move_back(place, wait);
    }

    /// Delays all branches.
    pub(crate) fn rest(&mut self, wait: Duration) {
        self.rest_until = Some(Instant::now() + wait);
    }

    /// Returns how often a branch's next task has failed.
    pub(crate) fn failures(&self, place: BranchKey) -> u32 {
        self.waiting
            .get(&place)
            .map_or(0, |waiting| waiting.failures)
    }

    /// Counts a failure and returns the number of failures.
    pub(crate) fn failed(&mut self, place: BranchKey) -> u32 {
        self.waiting.get_mut(&place).map_or(1, |waiting| {
            waiting.failures = waiting.failures.saturating_add(1);
            waiting.failures
        })
    }

    /// Returns the first offset that was not processed; `None` if all were.
    pub(crate) fn first_offset(&self) -> Option<u64> {
        self.waiting
            .values()
            .map(|waiting| waiting.first_offset)
            .min()
    }

    fn move_back(&mut self, place: BranchKey, wait: Duration) {
        if let Some(waiting) = self.waiting.get_mut(&place) {
            waiting.not_before = Instant::now() + wait;
            self.order.retain(|waiting| *waiting != place);
            self.order.push_back(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(branch: u64) -> BranchKey {
        BranchKey {
            conversation: ConversationId(uuid::Uuid::from_u128(1)),
            branch: BranchId(branch),
        }
    }

    /// A failing branch must neither block the others nor let the mark pass its events.
    #[test]
    fn failing_branch_does_not_block_others() {
        let mut queue = Queue::default();
        for (branch, offset) in [(1, 10), (2, 20), (1, 30)] {
            queue.note(place(branch), offset, Duration::ZERO);
        }
        assert_eq!(queue.due(), Some(place(1)));
        assert_eq!(queue.failed(place(1)), 1);
        queue.postpone(place(1), Duration::from_secs(60));
        assert_eq!(queue.due(), Some(place(2)));
        queue.done(place(2));
        assert_eq!((queue.due(), queue.first_offset()), (None, Some(10)));
        assert!(queue.wake_at().unwrap() > Instant::now());
        queue.done(place(1));
        assert_eq!((queue.wake_at(), queue.first_offset()), (None, None));
    }

    /// When an endpoint is down, no branch may use it.
    #[test]
    fn resting_queue_has_nothing_due() {
        let mut queue = Queue::default();
        queue.note(place(1), 1, Duration::ZERO);
        queue.rest(Duration::from_secs(60));
        assert_eq!(queue.due(), None);
        queue.again(place(1));
        assert_eq!(queue.due(), Some(place(1)));
    }
}
