//! The content of an object: blocks of records, and the large bodies that they refer to. The home
//! of a large body is the offset of the record that first stored it.

use std::collections::HashMap;

use bytes::Bytes;

use treering_engine::ShippedBlock;
use treering_log::{EncodedFrame, Record, frame};

const BLOCK: u8 = 1;
const BLOB: u8 = 2;

/// The content of an object under construction.
#[derive(Debug, Default)]
pub(super) struct ObjectContent {
    pub(crate) raw: Vec<u8>,
    /// Homes of the large bodies in it.
    homes: Vec<u64>,
    /// Homes of large bodies that its records refer to but that were shipped with other records, in
    /// this object or an earlier one.
    needs: Vec<u64>,
}

impl ObjectContent {
    pub(crate) fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    pub(crate) fn block(&mut self, block: &ShippedBlock) {
        self.raw.push(BLOCK);
        self.raw.extend_from_slice(&block.first.to_le_bytes());
        self.raw.extend_from_slice(&block.count.to_le_bytes());
        self.bytes(&block.bytes);
        self.needs.extend_from_slice(&block.needs);
    }

    pub(crate) fn blob(&mut self, home: u64, bytes: &[u8]) {
        if self.homes.contains(&home) {
            return;
        }
        self.raw.push(BLOB);
        self.raw.extend_from_slice(&home.to_le_bytes());
        self.bytes(bytes);
        self.homes.push(home);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.raw
            .extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        self.raw.extend_from_slice(bytes);
    }

    /// Returns the homes that earlier objects must hold.
    pub(crate) fn needs(&self) -> Vec<u64> {
        let mut needs = self.needs.clone();
        needs.sort_unstable();
        needs.dedup();
        needs.retain(|home| !self.homes.contains(home));
        needs
    }
}

/// The parsed content of an object.
#[derive(Debug, Default)]
pub(super) struct ParsedObject {
    pub(crate) blocks: Vec<EncodedFrame>,
    /// Large bodies by home.
    pub(crate) blobs: HashMap<u64, Bytes>,
}

impl ParsedObject {
    /// Parses the content of an object.
    ///
    /// # Errors
    /// A description of what is wrong with it.
    pub(crate) fn of(raw: Vec<u8>) -> Result<Self, String> {
        let cut_off = || "its content is truncated".to_owned();
        let mut rest = Bytes::from(raw);
        let mut read = Self::default();
        while !rest.is_empty() {
            match take::<1>(&mut rest).ok_or_else(cut_off)? {
                [BLOCK] => {
                    let first = take(&mut rest)
                        .map(u64::from_le_bytes)
                        .ok_or_else(cut_off)?;
                    let count = take(&mut rest)
                        .map(u32::from_le_bytes)
                        .ok_or_else(cut_off)?;
                    let bytes = take_bytes(&mut rest).ok_or_else(cut_off)?;
                    read.blocks.push(EncodedFrame::new(first, count, bytes));
                }
                [BLOB] => {
                    let home = take(&mut rest)
                        .map(u64::from_le_bytes)
                        .ok_or_else(cut_off)?;
                    let bytes = take_bytes(&mut rest).ok_or_else(cut_off)?;
                    read.blobs.insert(home, bytes);
                }
                [other] => {
                    return Err(format!("its content has a part of unknown kind {other}"));
                }
            }
        }
        Ok(read)
    }

    /// Returns the records from one offset to another, in order and without a gap.
    ///
    /// # Errors
    /// A description of what is wrong with them.
    pub(crate) fn records(&self, first: u64, last: u64) -> Result<Vec<(u64, Record)>, String> {
        let mut records = Vec::new();
        let mut next = first;
        for block in &self.blocks {
            if block.first_offset != next {
                return Err(format!("record {next} is missing"));
            }
            let decoded = frame::decode(block).map_err(|error| error.to_string())?;
            for record in decoded.records {
                records.push((next, record));
                next += 1;
            }
        }
        match next == last + 1 {
            true => Ok(records),
            false => Err(format!("it ends before record {last}")),
        }
    }
}

fn take<const N: usize>(rest: &mut Bytes) -> Option<[u8; N]> {
    let taken = rest.first_chunk().copied()?;
    *rest = rest.slice(N..);
    Some(taken)
}

fn take_bytes(rest: &mut Bytes) -> Option<Bytes> {
    let len = usize::try_from(u64::from_le_bytes(take(rest)?)).ok()?;
    (len <= rest.len()).then(|| rest.split_to(len))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Objects are untrusted input: truncated or added bytes must be an error, never a panic and
    // never a shorter history.
    #[test]
    fn truncated_or_extended_content_is_refused() {
        let mut content = ObjectContent::default();
        content.block(&ShippedBlock {
            first: 7,
            count: 2,
            bytes: Bytes::from_static(b"no real block"),
            needs: vec![3, 9, 3],
        });
        content.blob(9, b"a body");
        content.blob(9, b"a body");
        assert_eq!(content.needs(), [3]);
        let read = ParsedObject::of(content.raw.clone()).unwrap();
        assert_eq!(read.blocks.len(), 1);
        assert_eq!(read.blobs[&9], "a body");
        assert!(read.records(7, 8).is_err());
        let whole_parts = [0, 1 + 8 + 4 + 8 + 13];
        for cut in 0..content.raw.len() {
            let read = ParsedObject::of(content.raw[..cut].to_vec());
            assert_eq!(read.is_ok(), whole_parts.contains(&cut), "cut at {cut}");
        }
        let mut longer = content.raw;
        longer.push(7);
        assert!(ParsedObject::of(longer).is_err());
    }
}
