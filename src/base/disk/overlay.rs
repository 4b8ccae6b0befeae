//! A file whose writes are kept in memory only.
//!
//! If a file was not closed, redb repairs it by writing to it. Where that is not possible, because
//! the folder belongs to somebody else, the medium is read-only or the file is not trusted, redb
//! repairs this overlay instead: no byte on disk changes.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    io,
    sync::{Mutex, MutexGuard, PoisonError},
};

use redb::StorageBackend;

/// Writes are kept in memory in pages of this size, in bytes.
const PAGE_BYTES: u64 = 4096;
/// Offset of the byte in a redb file that says whether the file was closed (the "god byte" in
/// redb's design document), and two flags in that byte.
const FLAGS_AT: u64 = 9;
const FLAG_REPAIR: u8 = 2;
const FLAG_QUICK_REPAIR: u8 = 4;

/// An underlying file, and the writes over it.
#[derive(Debug)]
pub struct Overlay<B> {
    below: B,
    over: Mutex<OverlayState>,
}

#[derive(Debug)]
struct OverlayState {
    len: u64,
    /// Length up to which the underlying file is still read: its own length, or the shortest length
    /// to which this file was truncated.
    below_len: u64,
    pages: BTreeMap<u64, Box<[u8]>>,
}

impl<B: StorageBackend> Overlay<B> {
    /// Creates an overlay of a file.
    ///
    /// # Errors
    /// When its length cannot be read.
    pub fn new(below: B) -> io::Result<Self> {
        let len = below.len()?;
        Ok(Self {
            below,
            over: Mutex::new(OverlayState {
                len,
                below_len: len,
                pages: BTreeMap::new(),
            }),
        })
    }

    /// Creates an overlay of a file whose record of free pages is not trusted: redb rebuilds it
    /// from the trees, which have checksums.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn to_repair(below: B) -> io::Result<Self> {
        let overlay = Self::new(below)?;
        let mut flags = [0];
        overlay.read(FLAGS_AT, &mut flags)?;
        let flags = (flags[0] | FLAG_REPAIR) & !FLAG_QUICK_REPAIR;
        overlay.write(FLAGS_AT, &[flags])?;
        Ok(overlay)
    }

    fn over(&self) -> MutexGuard<'_, OverlayState> {
        self.over.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a page of the underlying file; zeros beyond its end.
    fn page_below(&self, page: u64, below_len: u64) -> io::Result<Box<[u8]>> {
        let mut bytes = vec![0; PAGE_BYTES as usize].into_boxed_slice();
        let start = page * PAGE_BYTES;
        let there = below_len.saturating_sub(start).min(PAGE_BYTES) as usize;
        if there > 0 {
            self.below.read(start, &mut bytes[..there])?;
        }
        Ok(bytes)
    }
}

/// Splits a range at page boundaries. Returns for each part: page, position in the page, length.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset + len as u64;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let within = at % PAGE_BYTES;
        let bytes = (PAGE_BYTES - within).min(end - at);
        let part = (at / PAGE_BYTES, within as usize, bytes as usize);
        at += bytes;
        Some(part)
    })
}

impl<B: StorageBackend> StorageBackend for Overlay<B> {
    fn len(&self) -> io::Result<u64> {
        Ok(self.over().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let over = self.over();
        if offset.saturating_add(out.len() as u64) > over.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if over.pages.is_empty() && offset + out.len() as u64 <= over.below_len {
            drop(over);
            return self.below.read(offset, out);
        }
        let mut done = 0;
        for (page, within, bytes) in parts(offset, out.len()) {
            let target = &mut out[done..done + bytes];
            match over.pages.get(&page) {
                Some(written) => target.copy_from_slice(&written[within..within + bytes]),
                None => {
                    let start = page * PAGE_BYTES + within as u64;
                    let there = over.below_len.saturating_sub(start).min(bytes as u64) as usize;
                    if there > 0 {
                        self.below.read(start, &mut target[..there])?;
                    }
                    target[there..].fill(0);
                }
            }
            done += bytes;
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut over = self.over();
        if len < over.len {
            over.below_len = over.below_len.min(len);
            let first_gone = len.div_ceil(PAGE_BYTES);
            over.pages.split_off(&first_gone);
            // If the file grows again, the rest of its last page must read as zeros.
            if let Some(last) = over.pages.get_mut(&(len / PAGE_BYTES)) {
                last[(len % PAGE_BYTES) as usize..].fill(0);
            }
        }
        over.len = len;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut over = self.over();
        let below_len = over.below_len;
        let mut done = 0;
        for (page, within, bytes) in parts(offset, data.len()) {
            let written = match over.pages.entry(page) {
                Entry::Occupied(there) => there.into_mut(),
                Entry::Vacant(place) => place.insert(self.page_below(page, below_len)?),
            };
            written[within..within + bytes].copy_from_slice(&data[done..done + bytes]);
            done += bytes;
        }
        over.len = over.len.max(offset + data.len() as u64);
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.below.close()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use redb::backends::InMemoryBackend;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Write(u64, Vec<u8>),
        Len(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0_u64..20_000, prop::collection::vec(any::<u8>(), 1..9_000))
                .prop_map(|(at, data)| Step::Write(at, data)),
            (0_u64..30_000).prop_map(Step::Len),
        ]
    }

    proptest! {
        // Read-only opening depends on this: a read returns what a real file would after the same
        // writes, and the underlying file keeps every byte.
        #[test]
        fn overlay_reads_its_writes_and_keeps_the_file_unchanged(
            below in prop::collection::vec(any::<u8>(), 0..12_000),
            steps in prop::collection::vec(step(), 0..8),
        ) {
            let file = InMemoryBackend::new();
            file.set_len(below.len() as u64).unwrap();
            file.write(0, &below).unwrap();
            let overlay = Overlay::new(file).unwrap();
            let mut expected = below.clone();
            for step in &steps {
                match step {
                    Step::Write(at, data) => {
                        let at = (*at).min(expected.len() as u64) as usize;
                        overlay.write(at as u64, data).unwrap();
                        expected.resize(expected.len().max(at + data.len()), 0);
                        expected[at..at + data.len()].copy_from_slice(data);
                    }
                    Step::Len(len) => {
                        overlay.set_len(*len).unwrap();
                        expected.resize(*len as usize, 0);
                    }
                }
            }
            prop_assert_eq!(overlay.len().unwrap(), expected.len() as u64);
            let mut read = vec![1; expected.len()];
            overlay.read(0, &mut read).unwrap();
            prop_assert!(read == expected);
            let mut kept = vec![0; below.len()];
            overlay.below.read(0, &mut kept).unwrap();
            prop_assert!(kept == below);
        }
    }
}
