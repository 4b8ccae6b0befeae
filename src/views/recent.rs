//! What was written last and is not in the file yet, with the versions of each row
//! that somebody may still be reading.

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{
        PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;

use super::table::{TABLES, TableId};

/// What a row takes beside its bytes: entries of two collections, and counters.
const ROW_BYTES: usize = 160;

/// What became of a row: its value, or that it was removed.
pub(super) type Change = Option<Bytes>;
/// Rows of one table that were changed, by key.
pub(super) type Changes = BTreeMap<Bytes, Change>;

/// A change, and the number of the write that made it.
type Version = (u64, Change);
type Rows = BTreeMap<Bytes, Vec<Version>>;

/// Rows in memory.
#[derive(Debug, Default)]
pub(super) struct Recent {
    tables: [RwLock<Rows>; TABLES],
    bytes: AtomicUsize,
}

impl Recent {
    fn rows(&self, table: TableId) -> RwLockReadGuard<'_, Rows> {
        let rows = self.tables[table as usize].read();
        rows.unwrap_or_else(PoisonError::into_inner)
    }

    fn rows_mut(&self, table: TableId) -> RwLockWriteGuard<'_, Rows> {
        let rows = self.tables[table as usize].write();
        rows.unwrap_or_else(PoisonError::into_inner)
    }

    /// About how much memory it takes, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// What is known of a row as of a write; none: nothing.
    pub(super) fn get(&self, table: TableId, key: &[u8], as_of: u64) -> Option<Change> {
        visible(self.rows(table).get(key)?, as_of)
    }

    /// Takes over what a write changed. Versions that no reader of `oldest` and
    /// later writes can see are dropped.
    pub(super) fn put(&self, table: TableId, changes: Changes, write: u64, oldest: u64) {
        let mut rows = self.rows_mut(table);
        let (mut added, mut dropped) = (0, 0);
        for (key, change) in changes {
            added += ROW_BYTES + key.len() + change.as_ref().map_or(0, Bytes::len);
            let versions = rows.entry(key).or_default();
            let needed = versions.partition_point(|(made, _)| *made <= oldest);
            // The last one of those is what a reader of `oldest` sees.
            for (_, change) in versions.drain(..needed.saturating_sub(1)) {
                dropped += ROW_BYTES + change.as_ref().map_or(0, Bytes::len);
            }
            versions.push((write, change));
        }
        self.bytes.fetch_add(added, Ordering::Relaxed);
        let bytes = self.bytes().saturating_sub(dropped);
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    /// The first changes between two keys as of a write, at most `max`; the last
    /// ones, last first, when it goes backward.
    pub(super) fn changes(
        &self,
        table: TableId,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        as_of: u64,
        backward: bool,
        max: usize,
    ) -> Vec<(Bytes, Change)> {
        let rows = self.rows(table);
        let range = rows.range::<[u8], _>(bounds);
        let seen = |(key, versions): (&Bytes, &Vec<Version>)| {
            Some((key.clone(), visible(versions, as_of)?))
        };
        if backward {
            range.rev().filter_map(seen).take(max).collect()
        } else {
            range.filter_map(seen).take(max).collect()
        }
    }

    /// Every row of a table as it was written last.
    pub(super) fn all(&self, table: TableId) -> Vec<(Bytes, Change)> {
        self.changes(
            table,
            (Bound::Unbounded, Bound::Unbounded),
            u64::MAX,
            false,
            usize::MAX,
        )
    }
}

fn visible(versions: &[Version], as_of: u64) -> Option<Change> {
    let last = versions.iter().rev().find(|(made, _)| *made <= as_of)?;
    Some(last.1.clone())
}
