//! Rows on their way into a table: collected, then written in the order of
//! their keys, so that each page of the store is met once.

use std::ops::Range;

use redb::Table;

use super::{codec, error::ViewsError, keys::Key};

/// A table of the views: bytes to bytes, see `keys` and `codec`.
pub(super) type RawTable<'txn> = Table<'txn, &'static [u8], &'static [u8]>;

/// Rows to be written to one table. They share one buffer.
#[derive(Default)]
pub(super) struct Rows {
    bytes: Vec<u8>,
    rows: Vec<(Range<usize>, Range<usize>)>,
}

impl Rows {
    /// Adds a row. `write` adds the value's bytes.
    pub(super) fn put(
        &mut self,
        key: &Key,
        write: impl FnOnce(&mut Vec<u8>) -> Result<(), ViewsError>,
    ) -> Result<(), ViewsError> {
        let key_start = self.bytes.len();
        self.bytes.extend_from_slice(key.as_bytes());
        let value_start = self.bytes.len();
        write(&mut self.bytes)?;
        codec::seal(&mut self.bytes, key_start);
        let rows = (key_start..value_start, value_start..self.bytes.len());
        self.rows.push(rows);
        Ok(())
    }

    /// Adds a row of these bytes.
    pub(super) fn put_bytes(&mut self, key: &Key, value: &[u8]) -> Result<(), ViewsError> {
        self.put(key, |bytes| {
            bytes.extend_from_slice(value);
            Ok(())
        })
    }

    /// Writes them. Of two rows with one key, the later one stays.
    pub(super) fn write(mut self, table: &mut RawTable<'_>) -> Result<(), ViewsError> {
        let Self { bytes, rows } = &mut self;
        rows.sort_by(|(a, _), (b, _)| bytes[a.clone()].cmp(&bytes[b.clone()]));
        for (key, value) in rows {
            table.insert(&bytes[key.clone()], &bytes[value.clone()])?;
        }
        Ok(())
    }
}
