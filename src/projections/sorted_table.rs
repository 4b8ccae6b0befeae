//! Rows in the file: blocks, and merging changes into them.

use std::{
    hash::BuildHasher,
    iter::Peekable,
    ops::Bound,
    sync::{Arc, LazyLock},
};

use bytes::Bytes;
use foldhash::quality::RandomState;
use quick_cache::{Weighter, sync::Cache};
use redb::{ReadOnlyTable, ReadTransaction, ReadableTable, Table, TableDefinition};

use super::{
    block::{HEADER_BYTES, Row, RowBlock},
    block_builder::{self, RowPlacement, SMALL_BYTES},
    error::ProjectionsError,
    memtable::RowChange,
    table::{TABLES, TableId},
};

pub(super) type Definition = TableDefinition<'static, &'static [u8], &'static [u8]>;
type BlockTable = ReadOnlyTable<&'static [u8], &'static [u8]>;

/// The file's tables: first key of a block to the block.
pub(super) const DEFINITIONS: [Definition; TABLES] = [
    TableDefinition::new("meta"),
    TableDefinition::new("conversations"),
    TableDefinition::new("namespaces"),
];

/// Identifies a block by its stored bytes, so that a changed block is a different entry: a hash
/// with a seed of this process, and the block's own length and CRC32C. A cryptographic hash of the
/// block took a tenth of the time of each search.
type BlockId = (u64, [u8; HEADER_BYTES]);

/// Unpacked blocks.
pub(super) type BlockCache = Cache<BlockId, Arc<RowBlock>, BlockWeigher>;

static HASHES: LazyLock<RandomState> = LazyLock::new(RandomState::default);

fn block_id(stored: &[u8]) -> BlockId {
    let header = stored.first_chunk().copied().unwrap_or_default();
    (HASHES.hash_one(stored), header)
}

#[derive(Clone)]
pub(super) struct BlockWeigher;

impl Weighter<BlockId, Arc<RowBlock>> for BlockWeigher {
    fn weight(&self, _: &BlockId, block: &Arc<RowBlock>) -> u64 {
        block.memory_bytes() + 96
    }
}

/// One state of the file.
pub(super) struct SortedTable {
    tables: [BlockTable; TABLES],
    cache: Arc<BlockCache>,
}

impl SortedTable {
    pub(super) fn new(
        txn: &ReadTransaction,
        cache: Arc<BlockCache>,
    ) -> Result<Self, ProjectionsError> {
        let [meta, conversations, namespaces] = DEFINITIONS;
        Ok(Self {
            tables: [
                txn.open_table(meta)?,
                txn.open_table(conversations)?,
                txn.open_table(namespaces)?,
            ],
            cache,
        })
    }

    fn table(&self, table: TableId) -> &BlockTable {
        &self.tables[table as usize]
    }

    fn block(&self, key: &[u8], stored: &[u8]) -> Result<Arc<RowBlock>, ProjectionsError> {
        // The block's checksum covers the key, so equal stored bytes under another key are not
        // valid.
        let id = block_id(stored);
        if let Some(block) = self.cache.get(&id)
            && block.key(0) == key
        {
            return Ok(block);
        }
        let block = Arc::new(RowBlock::read(key, stored)?);
        self.cache.insert(id, Arc::clone(&block));
        Ok(block)
    }

    /// Returns the block that contains a key, if any does.
    fn block_of(
        &self,
        table: TableId,
        key: &[u8],
    ) -> Result<Option<Arc<RowBlock>>, ProjectionsError> {
        let found = self.table(table).range::<&[u8]>(..=key)?.next_back();
        let Some(found) = found else { return Ok(None) };
        let (first, stored) = found?;
        self.block(first.value(), stored.value()).map(Some)
    }

    pub(super) fn get(
        &self,
        table: TableId,
        key: &[u8],
    ) -> Result<Option<Bytes>, ProjectionsError> {
        let block = self.block_of(table, key)?;
        Ok(block.and_then(|block| block.get(key)))
    }

    /// Returns the first rows between two keys, at least `min` if there are that many: whole blocks
    /// are read.
    pub(super) fn rows(
        &self,
        table: TableId,
        (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
        min: usize,
    ) -> Result<Vec<Row>, ProjectionsError> {
        let mut rows = Vec::new();
        let start = match lower {
            Bound::Included(key) | Bound::Excluded(key) => self.block_of(table, key)?,
            Bound::Unbounded => None,
        };
        let mut after = match &start {
            Some(block) => {
                add(block, (lower, upper), &mut rows);
                Bound::Excluded(Bytes::copy_from_slice(block.key(0)))
            }
            None => Bound::Unbounded,
        };
        while rows.len() < min {
            let from = (after.as_ref().map(|key| &key[..]), Bound::Unbounded);
            let next = self.table(table).range::<&[u8]>(from)?.next();
            let Some(found) = next else { break };
            let (first, stored) = found?;
            let beyond = match upper {
                Bound::Included(key) => first.value() > key,
                Bound::Excluded(key) => first.value() >= key,
                Bound::Unbounded => false,
            };
            if beyond {
                break;
            }
            let block = self.block(first.value(), stored.value())?;
            add(&block, (lower, upper), &mut rows);
            after = Bound::Excluded(Bytes::copy_from_slice(first.value()));
        }
        Ok(rows)
    }

    /// Returns the last rows between two keys, last first, at least `min` if there are that many.
    pub(super) fn rows_back(
        &self,
        table: TableId,
        (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
        min: usize,
    ) -> Result<Vec<Row>, ProjectionsError> {
        let mut rows = Vec::new();
        let mut before = upper.map(Bytes::copy_from_slice);
        while rows.len() < min {
            let until = before.as_ref().map(|key| &key[..]);
            let mut blocks = self
                .table(table)
                .range::<&[u8]>((Bound::Unbounded, until))?;
            let Some(found) = blocks.next_back() else {
                break;
            };
            let (first, stored) = found?;
            let block = self.block(first.value(), stored.value())?;
            let mut own = Vec::new();
            add(&block, (lower, upper), &mut own);
            rows.extend(own.into_iter().rev());
            let first_is_below = match lower {
                Bound::Included(key) | Bound::Excluded(key) => first.value() <= key,
                Bound::Unbounded => false,
            };
            if first_is_below {
                break;
            }
            before = Bound::Excluded(Bytes::copy_from_slice(first.value()));
        }
        Ok(rows)
    }
}

/// Adds a block's rows between two keys.
fn add(block: &RowBlock, (lower, upper): (Bound<&[u8]>, Bound<&[u8]>), rows: &mut Vec<Row>) {
    let behind = |key: &[u8]| {
        let at = block.first_from(key);
        at + usize::from(at < block.len() && block.key(at) == key)
    };
    let from = match lower {
        Bound::Included(key) => block.first_from(key),
        Bound::Excluded(key) => behind(key),
        Bound::Unbounded => 0,
    };
    let to = match upper {
        Bound::Included(key) => behind(key),
        Bound::Excluded(key) => block.first_from(key),
        Bound::Unbounded => block.len(),
    };
    rows.extend((from..to.max(from)).map(|at| block.row(at)));
}

/// Merges changes, which must be in key order, into a table of blocks. Each affected block is
/// rewritten.
///
/// # Errors
/// [`ProjectionsError::Damaged`] when a block cannot be read, [`ProjectionsError::NoSpace`],
/// [`ProjectionsError::Storage`].
pub(super) fn merge(
    table: &mut Table<'_, &'static [u8], &'static [u8]>,
    changes: Vec<(Bytes, RowChange)>,
) -> Result<(), ProjectionsError> {
    let mut changes = changes.into_iter().peekable();
    while let Some((key, _)) = changes.peek() {
        let mut rows = take_block(table, key)?;
        let mut next = next_key(table, rows.first().map_or(key, |(first, _)| first).clone())?;
        rows = merged(rows, before(&mut changes, next.as_ref()));
        if let Some(small) = next.clone()
            && block_builder::bytes_of(&rows) < SMALL_BYTES
        {
            // A small remainder is merged with the next block and the changes to that block.
            rows.extend(take_block(table, &small)?);
            next = next_key(table, small)?;
            rows = merged(rows, before(&mut changes, next.as_ref()));
        }
        let at = if next.is_some() {
            RowPlacement::Within
        } else {
            RowPlacement::End
        };
        for packed in block_builder::pack(&rows, at)? {
            table.insert(&packed.key[..], packed.stored.as_slice())?;
        }
    }
    Ok(())
}

/// Takes the changes before a key, or all.
fn before(
    changes: &mut Peekable<impl Iterator<Item = (Bytes, RowChange)>>,
    end: Option<&Bytes>,
) -> Vec<(Bytes, RowChange)> {
    let is_before = |change: &(Bytes, RowChange)| end.is_none_or(|end| change.0 < *end);
    std::iter::from_fn(|| changes.next_if(is_before)).collect()
}

/// Removes and returns the block that contains a key or would contain it: the last one that begins
/// at or before it, otherwise the first. Empty when there is none.
fn take_block(
    table: &mut Table<'_, &'static [u8], &'static [u8]>,
    key: &[u8],
) -> Result<Vec<Row>, ProjectionsError> {
    let block = {
        let found = match table.range::<&[u8]>(..=key)?.next_back() {
            Some(found) => Some(found?),
            None => table.first()?,
        };
        let Some((first, stored)) = found else {
            return Ok(Vec::new());
        };
        RowBlock::read(first.value(), stored.value())?
    };
    table.remove(block.key(0))?;
    Ok((0..block.len()).map(|at| block.row(at)).collect())
}

/// Returns the first key of the block after this key.
fn next_key(
    table: &Table<'_, &'static [u8], &'static [u8]>,
    key: Bytes,
) -> Result<Option<Bytes>, ProjectionsError> {
    let bounds = (Bound::Excluded(&key[..]), Bound::Unbounded);
    let next = table.range::<&[u8]>(bounds)?.next().transpose()?;
    Ok(next.map(|(key, _)| Bytes::copy_from_slice(key.value())))
}

fn merged(rows: Vec<Row>, changes: Vec<(Bytes, RowChange)>) -> Vec<Row> {
    let mut all = Vec::with_capacity(rows.len() + changes.len());
    let mut rows = rows.into_iter().peekable();
    for (key, change) in changes {
        while let Some(row) = rows.next_if(|row| row.0 < key) {
            all.push(row);
        }
        rows.next_if(|row| row.0 == key);
        all.extend(change.map(|value| (key, value)));
    }
    all.extend(rows);
    all
}
