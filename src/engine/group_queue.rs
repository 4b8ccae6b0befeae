//! A queue of committed groups from the publisher to the indexer, so that new events are not read
//! from the log again. Overflow is dropped: an indexer that fell behind reads the log until it
//! reaches the queue.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use super::sequencer::lock;
use treering_log::{CommittedGroup, Record, reader::record_bytes};

/// Consecutive groups, the latest last.
pub(super) struct GroupQueue {
    bytes_max: usize,
    groups: Mutex<Groups>,
}

#[derive(Default)]
struct Groups {
    /// Each group with its approximate size in bytes.
    waiting: VecDeque<(usize, Arc<CommittedGroup>)>,
    bytes: usize,
}

impl Groups {
    fn pop(&mut self) -> Option<Arc<CommittedGroup>> {
        let (bytes, group) = self.waiting.pop_front()?;
        self.bytes -= bytes;
        Some(group)
    }

    fn front(&self) -> Option<&Arc<CommittedGroup>> {
        self.waiting.front().map(|(_, group)| group)
    }
}

fn last_offset(group: &CommittedGroup) -> u64 {
    group.first_offset + group.records.len() as u64 - 1
}

impl GroupQueue {
    /// Creates a queue of about this many bytes.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            groups: Mutex::default(),
        }
    }

    /// Adds a published group. The oldest ones are dropped if there is no room.
    pub(crate) fn push(&self, group: &Arc<CommittedGroup>) {
        let bytes = group.records.iter().map(record_bytes).sum();
        let mut groups = lock(&self.groups);
        groups.bytes += bytes;
        groups.waiting.push_back((bytes, Arc::clone(group)));
        while groups.bytes > self.bytes_max && groups.pop().is_some() {}
    }

    /// Drops everything; the log has it.
    pub(crate) fn clear(&self) {
        *lock(&self.groups) = Groups::default();
    }

    /// Returns about `records_max` records from an offset up to `last`; none if they must be read
    /// from the log.
    pub(crate) fn take(&self, from: u64, last: u64, records_max: usize) -> Vec<(u64, Record)> {
        let mut records = Vec::new();
        let mut next = from;
        while next <= last && records.len() < records_max {
            let Some(group) = self.group(next, last) else {
                break;
            };
            let first = group.first_offset;
            // Usually this is the last reference.
            let of = Arc::try_unwrap(group).map_or_else(|of| of.records.clone(), |of| of.records);
            let from_next = (first..).zip(of).skip_while(|(offset, _)| *offset < next);
            records.extend(from_next.take_while(|(offset, _)| *offset <= last));
            next = records.last().map_or(next, |(offset, _)| offset + 1);
        }
        records
    }

    /// Returns the group that contains an offset and ends no later than `last`. Earlier groups are
    /// dropped.
    fn group(&self, offset: u64, last: u64) -> Option<Arc<CommittedGroup>> {
        let mut groups = lock(&self.groups);
        while groups
            .front()
            .is_some_and(|group| last_offset(group) < offset)
        {
            groups.pop();
        }
        let group = groups.front()?;
        let fits = group.first_offset <= offset && last_offset(group) <= last;
        if fits { groups.pop() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use treering_log::testkit::samples;

    fn group(first_offset: u64, records: usize) -> Arc<CommittedGroup> {
        Arc::new(CommittedGroup {
            first_offset,
            records: samples::records(records, 100),
        })
    }

    fn offsets(feed: &GroupQueue, from: u64, last: u64) -> Vec<u64> {
        let taken = feed.take(from, last, 1_000);
        taken.into_iter().map(|(offset, _)| offset).collect()
    }

    // The index must get every event once, in order, from either source: the queue returns the next
    // events without a gap, or nothing.
    #[test]
    fn queue_returns_groups_without_a_gap() {
        let feed = GroupQueue::new(1 << 20);
        for first in [11, 14, 17] {
            feed.push(&group(first, 3));
        }
        assert!(offsets(&feed, 5, 19).is_empty(), "the log has these");
        assert_eq!(offsets(&feed, 12, 16), [12, 13, 14, 15, 16]);
        // An index that went back reads the log.
        assert!(offsets(&feed, 12, 19).is_empty());
        assert_eq!(offsets(&feed, 17, 19), [17, 18, 19]);
        assert!(offsets(&feed, 20, 19).is_empty());
    }

    // A stuck indexer must not make the store's memory grow.
    #[test]
    fn full_queue_drops_the_oldest_groups() {
        let one = group(1, 4).records.iter().map(record_bytes).sum::<usize>();
        let feed = GroupQueue::new(one * 3);
        for first in (1..100).step_by(4) {
            feed.push(&group(first, 4));
        }
        assert!(offsets(&feed, 85, 100).is_empty());
        assert_eq!(offsets(&feed, 89, 100), (89..=100).collect::<Vec<_>>());
        // A group that exceeds the limit by itself is not kept.
        feed.push(&group(101, 400));
        assert_eq!(lock(&feed.groups).bytes, 0);
    }
}
