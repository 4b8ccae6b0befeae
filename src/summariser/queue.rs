//! Branches that wait for their summaries, in the order in which they got news.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use crate::domain::{BranchId, ConversationId};

/// A branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct BranchKey {
    pub conversation: ConversationId,
    pub branch: BranchId,
}

#[derive(Debug)]
struct Waiting {
    /// Log offset of the first news that was not worked on.
    first_offset: u64,
    not_before: Instant,
    failures: u32,
}

/// What waits.
#[derive(Debug, Default)]
pub(super) struct Queue {
    order: VecDeque<BranchKey>,
    waiting: HashMap<BranchKey, Waiting>,
    /// The endpoint is left alone until then.
    rest_until: Option<Instant>,
}

impl Queue {
    /// A branch has news.
    pub fn note(&mut self, place: BranchKey, offset: u64, settle: Duration) {
        self.waiting.entry(place).or_insert_with(|| {
            self.order.push_back(place);
            Waiting {
                first_offset: offset,
                not_before: Instant::now() + settle,
                failures: 0,
            }
        });
    }

    /// The first branch whose turn it is.
    pub fn due(&self) -> Option<BranchKey> {
        let now = Instant::now();
        if self.rest_until.is_some_and(|until| until > now) {
            return None;
        }
        let due = |place: &&BranchKey| self.waiting.get(place).is_some_and(|w| w.not_before <= now);
        self.order.iter().find(due).copied()
    }

    /// When the next branch is due; none when none waits.
    pub fn wake_at(&self) -> Option<Instant> {
        let first = self
            .waiting
            .values()
            .map(|waiting| waiting.not_before)
            .min()?;
        Some(self.rest_until.map_or(first, |until| until.max(first)))
    }

    /// Nothing more is to be done there.
    pub fn done(&mut self, place: BranchKey) {
        self.waiting.remove(&place);
        self.order.retain(|waiting| *waiting != place);
        self.rest_until = None;
    }

    /// There is more to do there, after the others.
    pub fn again(&mut self, place: BranchKey) {
        self.move_back(place, Duration::ZERO);
        self.rest_until = None;
        if let Some(waiting) = self.waiting.get_mut(&place) {
            waiting.failures = 0;
        }
    }

    /// It could not be done; the others go on meanwhile.
    pub fn postpone(&mut self, place: BranchKey, wait: Duration) {
        self.move_back(place, wait);
    }

    /// Nothing can be done for a while.
    pub fn rest(&mut self, wait: Duration) {
        self.rest_until = Some(Instant::now() + wait);
    }

    /// How often a branch's next task has failed.
    pub fn failures(&self, place: BranchKey) -> u32 {
        self.waiting
            .get(&place)
            .map_or(0, |waiting| waiting.failures)
    }

    /// Counts one more failure, and returns how many there are.
    pub fn failed(&mut self, place: BranchKey) -> u32 {
        self.waiting.get_mut(&place).map_or(1, |waiting| {
            waiting.failures = waiting.failures.saturating_add(1);
            waiting.failures
        })
    }

    /// The first offset that was not worked on; none: all was.
    pub fn first_offset(&self) -> Option<u64> {
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

    /// One branch that cannot be worked on must not keep the others waiting, nor
    /// let the mark pass it by.
    #[test]
    fn the_others_go_on() {
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

    /// An endpoint that is down is left alone, by all branches.
    #[test]
    fn rests() {
        let mut queue = Queue::default();
        queue.note(place(1), 1, Duration::ZERO);
        queue.rest(Duration::from_secs(60));
        assert_eq!(queue.due(), None);
        queue.again(place(1));
        assert_eq!(queue.due(), Some(place(1)));
    }
}
