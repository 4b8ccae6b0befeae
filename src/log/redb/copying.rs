//! Rows of a segment that are copied as they are stored.

use redb::{Database, ReadTransaction, ReadableTable, TableDefinition};

use super::{
    blob,
    segment::{BLOBS, FRAMES, Readable, StoreError, guarded},
};
use crate::log::port::LogError;

/// A commit of a copy holds about this much, in bytes: redb keeps a transaction's
/// pages in memory.
const COPY_COMMIT_BYTES: usize = 8 << 20;

/// Copies frames and large bodies of a segment, as they are stored, into an empty
/// one, up to and with the frame that ends at `last`.
pub(super) fn copy(
    from: &impl Readable,
    into: &Database,
    first_offset: u64,
    last: u64,
) -> Result<(), LogError> {
    guarded(first_offset, "writing a segment anew", || {
        let read = from.begin()?;
        copy_rows(&read, into, FRAMES, |offset| offset <= last)?;
        copy_rows(&read, into, BLOBS, |_| true)
    })
}

/// Copies large bodies of a segment, as they are stored: those whose homes are to be kept.
pub(super) fn copy_blobs(
    from: &impl Readable,
    into: &Database,
    keeps: impl Fn(u64) -> bool,
    first_offset: u64,
) -> Result<(), LogError> {
    guarded(first_offset, "copying large bodies", || {
        let keeps = |key: &[u8]| blob::home(key).is_none_or(&keeps);
        copy_rows(&from.begin()?, into, BLOBS, keeps)
    })
}

/// Fails unless a segment has the large bodies of another one that are to be kept, as they
/// are stored, and none that is not.
pub(super) fn check_blobs(
    original: &impl Readable,
    copied: &impl Readable,
    keeps: impl Fn(u64) -> bool,
    first_offset: u64,
) -> Result<(), LogError> {
    let keeps = |key: &[u8]| blob::home(key).is_none_or(&keeps);
    let differs = guarded(first_offset, "comparing large bodies", || {
        let copied = copied.begin()?.open_table(BLOBS)?;
        for row in copied.iter()? {
            if !keeps(row?.0.value()) {
                return Ok(true);
            }
        }
        for row in original.begin()?.open_table(BLOBS)?.iter()? {
            let (key, value) = row?;
            if !keeps(key.value()) {
                continue;
            }
            let there = copied.get(key.value())?;
            if there.is_none_or(|there| there.value() != value.value()) {
                return Ok(true);
            }
        }
        Ok(false)
    })?;
    if differs {
        return Err(LogError::damaged(
            first_offset,
            "a large body was not copied as it was",
        ));
    }
    Ok(())
}

/// Copies the rows of a table whose keys are wanted.
fn copy_rows<K: redb::Key + 'static>(
    from: &ReadTransaction,
    into: &Database,
    definition: TableDefinition<'_, K, &'static [u8]>,
    wanted: impl Fn(K::SelfType<'_>) -> bool,
) -> Result<(), StoreError> {
    let table = from.open_table(definition)?;
    let mut rows = table.iter()?.peekable();
    loop {
        let transaction = into.begin_write()?;
        let mut bytes = 0;
        {
            let mut copied = transaction.open_table(definition)?;
            while let Some(row) = rows.next_if(|_| bytes < COPY_COMMIT_BYTES) {
                let (key, value) = row?;
                if !wanted(key.value()) {
                    continue;
                }
                bytes += value.value().len();
                copied.insert(key.value(), value.value())?;
            }
        }
        transaction.commit()?;
        if bytes < COPY_COMMIT_BYTES {
            return Ok(());
        }
    }
}
