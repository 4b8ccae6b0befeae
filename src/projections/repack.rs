//! Rewrites all blocks of a file as full as possible.
//!
//! Rows are inserted anywhere, and a block without room for a row is split in two: after many
//! writes, blocks are only a little more than half full.

use redb::{Database, ReadableTable as _, TableDefinition, WriteTransaction};

use super::{
    block::{Row, RowBlock},
    block_builder::{self, PackedBlock, RowPlacement},
    error::ProjectionsError,
    row_store::durable_commit,
    sorted_table::{DEFINITIONS, Definition},
};

/// Rows packed at a time, in bytes.
const CHUNK_BYTES: usize = 1 << 20;

/// The name of a new table until it replaces the old one.
const ANEW: Definition = TableDefinition::new("anew");

/// Repacks all rows in one commit. The replaced pages become free.
///
/// # Errors
/// [`ProjectionsError::Damaged`] when a block cannot be read, [`ProjectionsError::NoSpace`],
/// [`ProjectionsError::Storage`]; the file is then unchanged.
pub(super) fn repack(db: &Database) -> Result<(), ProjectionsError> {
    let mut txn = db.begin_write()?;
    durable_commit(&mut txn)?;
    for definition in DEFINITIONS {
        copy_table(&txn, definition)?;
        txn.delete_table(definition)?;
        txn.rename_table(ANEW, definition)?;
    }
    txn.commit()?;
    Ok(())
}

fn copy_table(txn: &WriteTransaction, from: Definition) -> Result<(), ProjectionsError> {
    let old = txn.open_table(from)?;
    let mut new = txn.open_table(ANEW)?;
    let mut put = |blocks: Vec<PackedBlock>| {
        for block in blocks {
            new.insert(&block.key[..], block.stored.as_slice())?;
        }
        Ok::<(), ProjectionsError>(())
    };
    let mut rows: Vec<Row> = Vec::new();
    let mut bytes = 0;
    for stored in old.range::<&[u8]>(..)? {
        let (first, stored) = stored?;
        let block = RowBlock::read(first.value(), stored.value())?;
        let known = rows.len();
        rows.extend((0..block.len()).map(|at| block.row(at)));
        bytes += block_builder::bytes_of(&rows[known..]);
        if bytes < CHUNK_BYTES {
            continue;
        }
        let mut blocks = block_builder::pack(&rows, RowPlacement::End)?;
        // The last block is incomplete, because the chunk ends there; its rows go into the next
        // chunk.
        let last = blocks.pop().map_or(0, |block| block.rows());
        rows.drain(..rows.len() - last);
        bytes = block_builder::bytes_of(&rows);
        put(blocks)?;
    }
    put(block_builder::pack(&rows, RowPlacement::End)?)
}
