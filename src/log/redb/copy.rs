//! Copies rows of a segment as they are stored, and re-encodes large bodies whose patch base is
//! dropped.

use std::collections::BTreeSet;

use redb::{Database, ReadTransaction, ReadableTable, TableDefinition};

use super::{
    blob,
    segment::{self, BLOBS, FRAMES, Readable, StoreError, catch_redb_panics},
};
use crate::port::LogError;

/// Approximate size of each commit of a copy, in bytes: redb keeps a transaction's pages in memory.
const COPY_COMMIT_BYTES: usize = 8 << 20;

/// Copies frames and large bodies of a segment, as stored, into an empty one, up to and including
/// the frame that ends at `last`.
pub(super) fn copy(
    from: &impl Readable,
    into: &Database,
    first_offset: u64,
    last: u64,
) -> Result<(), LogError> {
    catch_redb_panics(first_offset, "rewriting a segment", || {
        let read = from.begin()?;
        copy_rows(&read, into, FRAMES, |offset| offset <= last)?;
        // A body that is appended later at the same offset may have fewer pieces, so no old pieces
        // may remain.
        copy_rows(&read, into, BLOBS, |key| {
            blob::home(key).is_none_or(|home| home <= last)
        })
    })
}

/// Which large bodies of a segment are kept, and how.
pub(super) struct KeptBlobs<'a> {
    /// `None`: all are kept.
    keeps: Option<Box<dyn Fn(u64) -> bool + 'a>>,
    /// Home offsets of patches on dropped bodies: these are stored whole.
    cut_off: BTreeSet<u64>,
}

impl<'a> KeptBlobs<'a> {
    /// Keeps all as stored.
    pub(super) fn all() -> Self {
        Self {
            keeps: None,
            cut_off: BTreeSet::new(),
        }
    }

    /// Keeps the bodies whose home offsets `keeps` accepts; a patch on a dropped body is stored
    /// whole.
    pub(super) fn of(
        segment: &impl Readable,
        keeps: impl Fn(u64) -> bool + 'a,
        first_offset: u64,
    ) -> Result<Self, LogError> {
        let cut_off = catch_redb_panics(first_offset, "looking for patches", || {
            let mut cut_off = BTreeSet::new();
            for row in segment.begin()?.open_table(BLOBS)?.iter()? {
                let (key, value) = row?;
                let home = blob::home(key.value()).filter(|_| blob::is_first(key.value()));
                let base = blob::base_of(value.value());
                if let (Some(home), Some(base)) = (home, base)
                    && keeps(home)
                    && !keeps(base)
                {
                    cut_off.insert(home);
                }
            }
            Ok(cut_off)
        })?;
        Ok(Self {
            keeps: Some(Box::new(keeps)),
            cut_off,
        })
    }

    /// Returns true when a row is kept.
    fn keeps(&self, key: &[u8]) -> bool {
        match (&self.keeps, blob::home(key)) {
            (Some(keeps), Some(home)) => keeps(home),
            _ => true,
        }
    }

    /// Returns true when a row is kept as stored.
    fn copies(&self, key: &[u8]) -> bool {
        let is_cut_off = blob::home(key).is_some_and(|home| self.cut_off.contains(&home));
        self.keeps(key) && !is_cut_off
    }
}

/// Copies large bodies of a segment.
pub(super) fn copy_blobs(
    from: &impl Readable,
    into: &Database,
    kept: &KeptBlobs<'_>,
    first_offset: u64,
) -> Result<(), LogError> {
    catch_redb_panics(first_offset, "copying large bodies", || {
        copy_rows(&from.begin()?, into, BLOBS, |key| kept.copies(key))
    })?;
    for home in &kept.cut_off {
        let whole = blob::encode(&segment::read_unnamed_blob(from, *home)?)?;
        catch_redb_panics(*home, "storing a large body in full", || {
            let transaction = into.begin_write()?;
            segment::insert_blob(&mut transaction.open_table(BLOBS)?, *home, &whole)?;
            Ok(transaction.commit()?)
        })?;
    }
    Ok(())
}

/// Checks that `copied` has exactly the kept large bodies of `original`: with equal rows, or with
/// equal content if they were re-encoded.
pub(super) fn check_blobs(
    original: &impl Readable,
    copied: &impl Readable,
    kept: &KeptBlobs<'_>,
    first_offset: u64,
) -> Result<(), LogError> {
    let differs = catch_redb_panics(first_offset, "comparing large bodies", || {
        let copied = copied.begin()?.open_table(BLOBS)?;
        for row in copied.iter()? {
            if !kept.keeps(row?.0.value()) {
                return Ok(true);
            }
        }
        for row in original.begin()?.open_table(BLOBS)?.iter()? {
            let (key, value) = row?;
            if !kept.copies(key.value()) {
                continue;
            }
            let there = copied.get(key.value())?;
            if there.is_none_or(|there| there.value() != value.value()) {
                return Ok(true);
            }
        }
        Ok(false)
    })?;
    let mut was_copied = !differs;
    for home in &kept.cut_off {
        let whole = segment::read_unnamed_blob(original, *home)?;
        was_copied &= whole == segment::read_unnamed_blob(copied, *home)?;
    }
    if !was_copied {
        return Err(LogError::damaged(
            first_offset,
            "the copy of a large body differs from the original",
        ));
    }
    Ok(())
}

/// Copies the rows of a table whose keys `wanted` accepts.
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
