//! Blocks: adjacent rows, compressed together. See `docs/FORMAT.md` for the byte format.
//!
//! Adjacent rows are similar, so they compress well together. Rows stored one by one do not
//! compress.

use std::{
    cell::RefCell,
    io::{self, Read},
};

use bytes::Bytes;

use super::{block_builder::ROWS_BYTES_MAX, error::ProjectionsError};

/// A header that claims more bytes than this is not trusted: memory then grows with the actual
/// output.
const BELIEVED_BYTES_MAX: usize = 1 << 20;
/// Length before compression (`u32`) and CRC32C (`u32`).
pub(super) const HEADER_BYTES: usize = 8;
const ZSTD_LEVEL: i32 = 3;

thread_local! {
    /// Each thread reuses one context, because a context takes several hundred KiB.
    static PACKER: RefCell<Option<zstd::bulk::Compressor<'static>>> = const { RefCell::new(None) };
    static UNPACKER: RefCell<Option<zstd::bulk::Decompressor<'static>>> =
        const { RefCell::new(None) };
}

/// A row: its key and its value.
pub(super) type Row = (Bytes, Bytes);

/// An unpacked block: rows in key order.
#[derive(Debug)]
pub(super) struct RowBlock {
    bytes: Bytes,
    rows: Vec<RowPlace>,
}

/// Where a row is in a block's bytes.
#[derive(Clone, Copy, Debug)]
struct RowPlace {
    key: u32,
    value: u32,
    end: u32,
}

impl RowBlock {
    /// Reads a block that [`pack`] wrote, stored under its first key.
    ///
    /// # Errors
    /// [`ProjectionsError::Damaged`] when it is not such a block.
    pub(super) fn read(first_key: &[u8], stored: &[u8]) -> Result<Self, ProjectionsError> {
        let damaged = || ProjectionsError::damaged("a block of rows is corrupt");
        let (header, packed) = stored.split_at_checked(HEADER_BYTES).ok_or_else(damaged)?;
        let number = |at: usize| {
            let bytes = header[at..at + 4].try_into();
            bytes.map(u32::from_le_bytes).map_err(|_| damaged())
        };
        let (len, crc) = (number(0)?, number(4)?);
        if crc != checksum(first_key, len, packed) {
            return Err(damaged());
        }
        let bytes = unpack(packed, len as usize).map_err(|_| damaged())?;
        if bytes.len() != len as usize {
            return Err(damaged());
        }
        let rows = places(&bytes).ok_or_else(damaged)?;
        let block = Self {
            bytes: bytes.into(),
            rows,
        };
        let sorted = (1..block.len()).all(|at| block.key(at - 1) < block.key(at));
        if !sorted || block.is_empty() || block.key(0) != first_key {
            return Err(damaged());
        }
        Ok(block)
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns its memory use in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        (self.bytes.len() + self.rows.len() * size_of::<RowPlace>() + size_of::<Self>()) as u64
    }

    pub(super) fn key(&self, at: usize) -> &[u8] {
        let place = self.rows[at];
        &self.bytes[place.key as usize..place.value as usize]
    }

    pub(super) fn row(&self, at: usize) -> Row {
        let place = self.rows[at];
        let (key, value, end) = (place.key as usize, place.value as usize, place.end as usize);
        (self.bytes.slice(key..value), self.bytes.slice(value..end))
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<Bytes> {
        let at = self.first_from(key);
        (at < self.len() && self.key(at) == key).then(|| self.row(at).1)
    }

    /// Returns the index of the first row at or after a key, or the number of rows if there is
    /// none.
    pub(super) fn first_from(&self, key: &[u8]) -> usize {
        self.rows
            .partition_point(|place| &self.bytes[place.key as usize..place.value as usize] < key)
    }
}

/// Packs one or more rows, which must be in key order.
///
/// # Errors
/// [`ProjectionsError::Encode`] when a block cannot hold them.
pub(super) fn pack(rows: &[Row]) -> Result<Vec<u8>, ProjectionsError> {
    let refused = |what: String| ProjectionsError::Encode { what };
    let mut raw = Vec::with_capacity(ROWS_BYTES_MAX * 2);
    for (key, value) in rows {
        write_length(&mut raw, key.len())?;
        write_length(&mut raw, value.len())?;
        raw.extend_from_slice(key);
        raw.extend_from_slice(value);
    }
    let len = length(raw.len())?;
    let packed = PACKER.with_borrow_mut(|slot| {
        let packer = match slot {
            Some(packer) => packer,
            None => slot.insert(zstd::bulk::Compressor::new(ZSTD_LEVEL)?),
        };
        packer.compress(&raw)
    });
    let packed = packed.map_err(|error| refused(error.to_string()))?;
    let first_key = rows.first().map_or(&[][..], |(key, _)| key);
    let mut stored = Vec::with_capacity(HEADER_BYTES + packed.len());
    stored.extend_from_slice(&len.to_le_bytes());
    stored.extend_from_slice(&checksum(first_key, len, &packed).to_le_bytes());
    stored.extend_from_slice(&packed);
    Ok(stored)
}

/// Returns the length of a row in a block, in bytes.
pub(super) fn row_bytes((key, value): &Row) -> usize {
    2 * LENGTH_BYTES + key.len() + value.len()
}

const LENGTH_BYTES: usize = 4;

fn length(bytes: usize) -> Result<u32, ProjectionsError> {
    u32::try_from(bytes).map_err(|_| ProjectionsError::Encode {
        what: format!("{bytes} bytes exceed the size of a block"),
    })
}

fn write_length(raw: &mut Vec<u8>, bytes: usize) -> Result<(), ProjectionsError> {
    raw.extend_from_slice(&length(bytes)?.to_le_bytes());
    Ok(())
}

fn places(bytes: &[u8]) -> Option<Vec<RowPlace>> {
    let number = |at: usize| {
        let bytes = bytes.get(at..at + LENGTH_BYTES)?.try_into().ok()?;
        Some(u32::from_le_bytes(bytes))
    };
    let (mut rows, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let (key, value) = (number(at)?, number(at + LENGTH_BYTES)?);
        let start = u32::try_from(at + 2 * LENGTH_BYTES).ok()?;
        let place = RowPlace {
            key: start,
            value: start.checked_add(key)?,
            end: start.checked_add(key)?.checked_add(value)?,
        };
        at = place.end as usize;
        if at > bytes.len() {
            return None;
        }
        rows.push(place);
    }
    Some(rows)
}

fn checksum(first_key: &[u8], len: u32, packed: &[u8]) -> u32 {
    let crc = crc32c::crc32c(first_key);
    crc32c::crc32c_append(crc32c::crc32c_append(crc, &len.to_le_bytes()), packed)
}

fn unpack(packed: &[u8], len: usize) -> io::Result<Vec<u8>> {
    if len > BELIEVED_BYTES_MAX {
        let mut bytes = Vec::new();
        let decoder = zstd::stream::read::Decoder::with_buffer(packed)?;
        decoder.take(len as u64 + 1).read_to_end(&mut bytes)?;
        return Ok(bytes);
    }
    UNPACKER.with_borrow_mut(|slot| {
        let unpacker = match slot {
            Some(unpacker) => unpacker,
            None => slot.insert(zstd::bulk::Decompressor::new()?),
        };
        unpacker.decompress(packed, len)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rows_of(map: std::collections::BTreeMap<Vec<u8>, Vec<u8>>) -> Vec<Row> {
        let row = |(key, value): (Vec<u8>, Vec<u8>)| (Bytes::from(key), Bytes::from(value));
        map.into_iter().map(row).collect()
    }

    proptest! {
        // Any rows come back unchanged, each by its key.
        #[test]
        fn blocks_round_trip(map: std::collections::BTreeMap<Vec<u8>, Vec<u8>>) {
            prop_assume!(!map.is_empty());
            let rows = rows_of(map);
            let stored = pack(&rows).unwrap();
            let block = RowBlock::read(&rows[0].0, &stored).unwrap();
            prop_assert_eq!(block.len(), rows.len());
            for (at, row) in rows.iter().enumerate() {
                prop_assert_eq!(&block.row(at), row);
                prop_assert_eq!(block.get(&row.0), Some(row.1.clone()));
            }
        }

        // A change anywhere in a block is detected as damage; forged bytes are refused without
        // allocating what they claim.
        #[test]
        fn changed_block_is_damage(at: prop::sample::Index, bit in 0..8_u8, junk: Vec<u8>) {
            let rows: Vec<Row> = (0..40_u8)
                .map(|n| (Bytes::from(vec![n; 9]), Bytes::from(vec![n ^ 5; 60])))
                .collect();
            let mut stored = pack(&rows).unwrap();
            let place = at.index(stored.len());
            stored[place] ^= 1 << bit;
            prop_assert!(RowBlock::read(&rows[0].0, &stored).is_err());
            let mut made = u32::MAX.to_le_bytes().to_vec();
            made.extend_from_slice(&checksum(b"k", u32::MAX, &junk).to_le_bytes());
            made.extend_from_slice(&junk);
            prop_assert!(RowBlock::read(b"k", &made).is_err());
        }
    }
}
