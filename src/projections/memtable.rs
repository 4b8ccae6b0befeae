//! Recent writes that are not in the file yet, with the versions of each row that may still be
//! read.

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

/// Memory of a row besides its bytes: entries of two collections, and counters.
const ROW_BYTES: usize = 160;

/// The change of a row: its new value, or `None` if it was removed.
pub(super) type RowChange = Option<Bytes>;
/// Changed rows of one table, by key.
pub(super) type Changes = BTreeMap<Bytes, RowChange>;

/// A change, and the number of the write that made it.
type Version = (u64, RowChange);
type Rows = BTreeMap<Bytes, Vec<Version>>;

/// Rows in memory.
#[derive(Debug, Default)]
pub(super) struct Memtable {
    tables: [RwLock<Rows>; TABLES],
    bytes: AtomicUsize,
}

impl Memtable {
    fn rows(&self, table: TableId) -> RwLockReadGuard<'_, Rows> {
        let rows = self.tables[table as usize].read();
        rows.unwrap_or_else(PoisonError::into_inner)
    }

    fn rows_mut(&self, table: TableId) -> RwLockWriteGuard<'_, Rows> {
        let rows = self.tables[table as usize].write();
        rows.unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the approximate memory use, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the change of a row as of a write; `None` when the row is not in this layer.
    pub(super) fn get(&self, table: TableId, key: &[u8], as_of: u64) -> Option<RowChange> {
        visible(self.rows(table).get(key)?, as_of)
    }

    /// Adds the changes of a write. Versions that no reader of `oldest` or a later write can see
    /// are dropped.
    pub(super) fn put(&self, table: TableId, changes: Changes, write: u64, oldest: u64) {
        let mut rows = self.rows_mut(table);
        let (mut added, mut dropped) = (0, 0);
        for (key, change) in changes {
            added += ROW_BYTES + key.len() + change.as_ref().map_or(0, Bytes::len);
            let versions = rows.entry(key).or_default();
            let needed = versions.partition_point(|(made, _)| *made <= oldest);
            // A reader of `oldest` sees the last of these, so it stays.
            for (_, change) in versions.drain(..needed.saturating_sub(1)) {
                dropped += ROW_BYTES + change.as_ref().map_or(0, Bytes::len);
            }
            versions.push((write, change));
        }
        self.bytes.fetch_add(added, Ordering::Relaxed);
        let bytes = self.bytes().saturating_sub(dropped);
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    /// Returns at most `max` changes between two keys as of a write: the first ones or, when
    /// `backward`, the last ones in reverse order.
    pub(super) fn changes(
        &self,
        table: TableId,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        as_of: u64,
        backward: bool,
        max: usize,
    ) -> Vec<(Bytes, RowChange)> {
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

    /// Returns the latest version of every row of a table.
    pub(super) fn all(&self, table: TableId) -> Vec<(Bytes, RowChange)> {
        self.changes(
            table,
            (Bound::Unbounded, Bound::Unbounded),
            u64::MAX,
            false,
            usize::MAX,
        )
    }
}

fn visible(versions: &[Version], as_of: u64) -> Option<RowChange> {
    let last = versions.iter().rev().find(|(made, _)| *made <= as_of)?;
    Some(last.1.clone())
}
