//! Rows to be written to a table.

use std::ops::Range;

use bytes::Bytes;

use super::{codec, error::ProjectionsError, keys::Key, table::RawTable};

/// Rows to be written to one table. They share one buffer.
#[derive(Default)]
pub(super) struct Rows {
    bytes: Vec<u8>,
    rows: Vec<(Range<usize>, Range<usize>)>,
}

impl Rows {
    /// Adds a row. `write` appends the value's bytes.
    pub(super) fn put(
        &mut self,
        key: &Key,
        write: impl FnOnce(&mut Vec<u8>) -> Result<(), ProjectionsError>,
    ) -> Result<(), ProjectionsError> {
        let key_start = self.bytes.len();
        self.bytes.extend_from_slice(key.as_bytes());
        let value_start = self.bytes.len();
        write(&mut self.bytes)?;
        codec::seal(&mut self.bytes, key_start);
        let rows = (key_start..value_start, value_start..self.bytes.len());
        self.rows.push(rows);
        Ok(())
    }

    /// Adds a row with these bytes.
    pub(super) fn put_bytes(&mut self, key: &Key, value: &[u8]) -> Result<(), ProjectionsError> {
        self.put(key, |bytes| {
            bytes.extend_from_slice(value);
            Ok(())
        })
    }

    /// Writes the rows. Of two rows with the same key, the later one wins. Each is copied to its
    /// own memory, because rows are dropped at different times.
    pub(super) fn write(self, table: &mut RawTable<'_>) {
        let own = |range| Bytes::copy_from_slice(&self.bytes[range]);
        for (key, value) in self.rows {
            table.put(own(key), own(value));
        }
    }
}
