//! Packs rows into blocks, two of which fill a page of the file.
//!
//! Two values of slightly more than half a page take two pages of redb. So the number of rows in a
//! block is chosen by its size after compression.

use bytes::Bytes;

use super::{
    block::{self, Row},
    error::ProjectionsError,
};

/// Maximum size of a block's rows before compression, in bytes: reading a row unpacks all of them.
pub(super) const ROWS_BYTES_MAX: usize = 16 << 10;
/// Rows with fewer bytes than this are merged with the next block when they are written.
pub(super) const SMALL_BYTES: usize = 4 << 10;
/// Size of redb's pages, of a page's header, and of the overhead for each key and value, in bytes.
const PAGE_BYTES: usize = 4 << 10;
const PAGE_HEADER_BYTES: usize = 4;
const PLACE_BYTES: usize = 8;
/// Blocks per page.
const OF_A_PAGE: usize = 2;
/// A block is large enough when at most 1/16 of its share of the page is free.
const LEFT_SHARE_MAX: usize = 16;
/// Maximum number of estimates of a block's row count.
const GUESSES_MAX: usize = 5;

/// A block to be written to the file.
pub(super) struct PackedBlock {
    /// Its first row's key.
    pub(crate) key: Bytes,
    /// The stored bytes.
    pub(crate) stored: Vec<u8>,
    rows: usize,
}

/// Where rows are in their table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowPlacement {
    /// After all others, where a table usually grows: the remainder becomes a small block, which
    /// later rows extend.
    End,
    /// Between others.
    Within,
}

/// Packs rows, which must be in key order. Each block fits into its share of a page or has a single
/// row.
///
/// # Errors
/// [`ProjectionsError::Encode`] for a row that no block can hold.
pub(super) fn pack(rows: &[Row], at: RowPlacement) -> Result<Vec<PackedBlock>, ProjectionsError> {
    let mut blocks: Vec<PackedBlock> = Vec::new();
    let mut rest = rows;
    let mut guess = ROWS_BYTES_MAX;
    while !rest.is_empty() {
        let (packed, bytes) = fill(rest, guess)?;
        rest = &rest[packed.rows..];
        if !rest.is_empty() {
            guess = bytes;
        }
        blocks.push(packed);
    }
    if at == RowPlacement::Within && blocks.len() > 1 {
        even_out(rows, &mut blocks)?;
    }
    Ok(blocks)
}

/// Splits the last two blocks evenly if the last one is small, so that both have room and the next
/// change does not leave another small one.
fn even_out(rows: &[Row], blocks: &mut Vec<PackedBlock>) -> Result<(), ProjectionsError> {
    let last_two = blocks.len() - 2;
    let [full, last] = &blocks[last_two..] else {
        return Ok(());
    };
    if last.stored.len() * 2 > room(&last.key) {
        return Ok(());
    }
    let rows = &rows[rows.len() - full.rows - last.rows..];
    let half = bytes_of(rows) / 2;
    let first = fitting(rows, half).clamp(1, rows.len() - 1);
    let halves = [one(&rows[..first])?, one(&rows[first..])?];
    if halves.iter().all(PackedBlock::fits) {
        blocks.truncate(last_two);
        blocks.extend(halves);
    }
    Ok(())
}

/// Packs as many of the first rows as fill a block's share of a page. Returns the block and its
/// rows' bytes. `guess` is an estimate of these bytes.
fn fill(rows: &[Row], guess: usize) -> Result<(PackedBlock, usize), ProjectionsError> {
    let most = fitting(rows, ROWS_BYTES_MAX).max(1);
    // Numbers of rows that are known to fit, and known not to fit.
    let (mut fit, mut too_many) = (0, most + 1);
    let mut best = None;
    let mut guess = fitting(rows, guess);
    for _ in 0..GUESSES_MAX {
        let count = guess.clamp(fit + 1, too_many - 1);
        let packed = one(&rows[..count])?;
        let (bytes, len, room) = (
            bytes_of(&rows[..count]),
            packed.stored.len(),
            room(&packed.key),
        );
        if packed.fits() || count == 1 {
            fit = count;
            best = Some((packed, bytes));
            if len + room / LEFT_SHARE_MAX >= room {
                break;
            }
        } else {
            too_many = count;
        }
        if fit + 1 == too_many {
            break;
        }
        // A little less than would fit if all rows compressed equally well.
        guess = fitting(rows, bytes * room / len * 31 / 32);
    }
    match best {
        Some(best) => Ok(best),
        None => Ok((one(&rows[..1])?, block::row_bytes(&rows[0]))),
    }
}

impl PackedBlock {
    /// Returns the number of rows.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    fn fits(&self) -> bool {
        self.stored.len() <= room(&self.key)
    }
}

fn one(rows: &[Row]) -> Result<PackedBlock, ProjectionsError> {
    Ok(PackedBlock {
        key: rows.first().map(|(key, _)| key.clone()).unwrap_or_default(),
        stored: block::pack(rows)?,
        rows: rows.len(),
    })
}

/// Returns the size in bytes of a value that, with its key, fills its share of a page.
fn room(key: &[u8]) -> usize {
    let share = (PAGE_BYTES - PAGE_HEADER_BYTES) / OF_A_PAGE - PLACE_BYTES;
    share - key.len().min(share / 2)
}

/// Returns how many of the first rows have at most this many bytes in total.
fn fitting(rows: &[Row], bytes_max: usize) -> usize {
    let mut bytes = 0;
    let fits = rows.iter().take_while(|row| {
        bytes += block::row_bytes(row);
        bytes <= bytes_max
    });
    fits.count()
}

pub(super) fn bytes_of(rows: &[Row]) -> usize {
    rows.iter().map(block::row_bytes).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns rows like those of conversations: some unique bytes and much in common.
    fn rows(count: u32, value_bytes: usize) -> Vec<Row> {
        let row = |number: u32| {
            let hash = blake3::hash(&number.to_le_bytes());
            let mut value = hash.as_bytes()[..16].to_vec();
            value.resize(value_bytes.max(16), number as u8 & 3);
            (
                Bytes::copy_from_slice(&number.to_be_bytes()),
                Bytes::from(value),
            )
        };
        (0..count).map(row).collect()
    }

    // Blocks of 8 KiB of rows compressed to a third of a page or to a little more than half of one,
    // and even splits left blocks of a few rows: 37 % of the file was unused space between them.
    #[test]
    fn blocks_fill_pages() {
        for value_bytes in [16, 60, 100, 700] {
            let rows = rows(6_000, value_bytes);
            let blocks = pack(&rows, RowPlacement::End).unwrap();
            let (last, full) = blocks.split_last().unwrap();
            let most = full.iter().filter(|block| {
                let most_rows = ROWS_BYTES_MAX / (value_bytes + 12);
                block.stored.len() * 10 >= room(&block.key) * 9 || block.rows >= most_rows
            });
            assert!(most.count() * 20 >= full.len() * 19, "{value_bytes} bytes");
            assert!(blocks.iter().all(PackedBlock::fits) && last.rows > 0);
        }
    }

    // A block between others that gets one row too many is split into two blocks with room, not
    // into a full one and one with a single row.
    #[test]
    fn overfull_block_is_split_in_halves() {
        let rows = rows(5_000, 40);
        let (full, _) = fill(&rows, ROWS_BYTES_MAX).unwrap();
        let blocks = pack(&rows[..full.rows + 3], RowPlacement::Within).unwrap();
        let sizes: Vec<usize> = blocks.iter().map(|block| block.stored.len()).collect();
        assert_eq!(sizes.len(), 2, "{sizes:?}");
        assert!(sizes[0] < sizes[1] * 5 / 4 && sizes[1] < sizes[0] * 5 / 4);
    }

    proptest! {
        // For any rows, all of them are in the blocks, in order, and no block exceeds its share of
        // a page unless it has a single row.
        #[test]
        fn every_row_is_in_a_block(
            lengths in prop::collection::vec((0..30_usize, 0..9_000_usize, any::<u64>()), 1..60),
            within: bool,
        ) {
            let random = |seed: u64, len: usize| {
                let mut bytes = vec![0; len];
                blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
                bytes
            };
            let rows: Vec<Row> = lengths.iter().enumerate().map(|(at, (key, value, seed))| {
                let key = [&(at as u32).to_be_bytes()[..], &random(*seed, *key)].concat();
                (Bytes::from(key), Bytes::from(random(!seed, *value)))
            }).collect();
            let at = if within { RowPlacement::Within } else { RowPlacement::End };
            let mut back = Vec::new();
            for packed in pack(&rows, at).unwrap() {
                prop_assert!(packed.fits() || packed.rows == 1);
                let block = block::RowBlock::read(&packed.key, &packed.stored).unwrap();
                back.extend((0..block.len()).map(|at| block.row(at)));
            }
            prop_assert_eq!(back, rows);
        }
    }
}
