//! A disk for tests: loses and tears what was not synced, fills up, and stops
//! in the middle of anything.

use std::{
    collections::BTreeMap,
    fmt, io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ::redb::StorageBackend;

use super::files::{Access, SegmentFiles, SegmentStorage};
use crate::log::samples::Random;

/// A torn write is torn between sectors, in bytes.
const SECTOR_BYTES: usize = 512;

/// Where a full disk shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    /// When space is set aside, as it should.
    Reserve,
    /// Only when a file grows.
    Growth,
    /// Only when something is written behind what was written before.
    Write,
}

/// A clone is the same disk.
#[derive(Clone)]
pub(crate) struct SimulatedDisk(Arc<Mutex<Disk>>);

struct Disk {
    files: BTreeMap<(u64, bool), Content>,
    random: Random,
    /// Operations until the power goes; none: it stays.
    until_crash: Option<u64>,
    crashed: bool,
    room: Option<(u64, Full)>,
    operations: u64,
    syncs: u64,
}

#[derive(Default, Clone)]
struct Content {
    durable: Vec<u8>,
    current: Vec<u8>,
    pending: Vec<Change>,
    reserved: u64,
    written: u64,
}

#[derive(Clone)]
enum Change {
    Len(usize),
    Write(usize, Vec<u8>),
}

fn apply(bytes: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Len(len) => bytes.resize(*len, 0),
        Change::Write(at, data) => put(bytes, *at, data),
    }
}

fn put(bytes: &mut Vec<u8>, at: usize, data: &[u8]) {
    let end = at + data.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[at..end].copy_from_slice(data);
}

impl Content {
    fn sync(&mut self) {
        for change in std::mem::take(&mut self.pending) {
            apply(&mut self.durable, &change);
        }
    }

    /// What is there when the power comes back: of what was not synced, a
    /// random part, by sectors.
    fn lose(&mut self, random: &mut Random) {
        // Sometimes nothing, sometimes nearly all, sometimes half survives.
        let survives = [0, 10, 50, 90, 100][random.below(5) as usize];
        for change in std::mem::take(&mut self.pending) {
            match change {
                Change::Len(_) => {
                    if random.below(100) < survives {
                        apply(&mut self.durable, &change);
                    }
                }
                Change::Write(at, data) => {
                    let mut from = 0;
                    while from < data.len() {
                        let sector_end = (at + from) / SECTOR_BYTES * SECTOR_BYTES + SECTOR_BYTES;
                        let to = (sector_end - at).min(data.len());
                        if random.below(100) < survives {
                            put(&mut self.durable, at + from, &data[from..to]);
                        }
                        from = to;
                    }
                }
            }
        }
        self.current = self.durable.clone();
        self.reserved = self.current.len() as u64;
        self.written = self.reserved;
    }
}

impl fmt::Debug for SimulatedDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimulatedDisk")
    }
}

impl SimulatedDisk {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(Disk {
            files: BTreeMap::new(),
            random: Random(seed),
            until_crash: None,
            crashed: false,
            room: None,
            operations: 0,
            syncs: 0,
        })))
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The power goes after this many operations.
    pub(crate) fn crash_after(&self, operations: u64) {
        self.disk().until_crash = Some(operations);
    }

    /// The disk as it is found after the power is back. What still has the old
    /// one open keeps failing.
    pub(crate) fn after_crash(&self) -> Self {
        let mut old = self.disk();
        old.crashed = true;
        let mut random = Random(old.random.next());
        let mut files = old.files.clone();
        files.values_mut().for_each(|file| file.lose(&mut random));
        let after = Self::new(random.next());
        after.disk().files = files;
        after
    }

    /// Leaves room for this many bytes; none: any number.
    pub(super) fn set_room(&self, room: Option<(u64, Full)>) {
        let mut disk = self.disk();
        let used = disk.used();
        disk.room = room.map(|(bytes, full)| (used + bytes, full));
    }

    pub(super) fn syncs(&self) -> u64 {
        self.disk().syncs
    }
}

impl Disk {
    fn used(&self) -> u64 {
        self.files.values().map(|file| file.reserved).sum()
    }

    /// Counts an operation; fails when the power is gone.
    fn step(&mut self) -> io::Result<()> {
        self.operations += 1;
        if let Some(left) = &mut self.until_crash {
            self.crashed |= *left == 0;
            *left = left.saturating_sub(1);
        }
        if self.crashed {
            return Err(io::Error::other("the power is gone"));
        }
        Ok(())
    }

    fn file(&mut self, name: (u64, bool)) -> io::Result<&mut Content> {
        self.files
            .get_mut(&name)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Fails when `more` bytes do not fit and the disk shows it at `at`.
    fn need(&self, more: u64, at: Full) -> io::Result<()> {
        match self.room {
            Some((bytes, full)) if full == at && self.used() + more > bytes => {
                Err(io::ErrorKind::StorageFull.into())
            }
            _ => Ok(()),
        }
    }
}

impl SegmentFiles for SimulatedDisk {
    type Storage = SimulatedFile;

    fn list(&self) -> io::Result<Vec<u64>> {
        let mut disk = self.disk();
        disk.step()?;
        let published = disk.files.keys().filter(|(_, published)| *published);
        Ok(published.map(|(first, _)| *first).collect())
    }

    fn open(&self, first_offset: u64, _: Access) -> io::Result<SimulatedFile> {
        let mut disk = self.disk();
        disk.step()?;
        disk.file((first_offset, true))?;
        Ok(SimulatedFile {
            disk: self.clone(),
            first_offset,
            published: true,
        })
    }

    fn create(&self, first_offset: u64) -> io::Result<SimulatedFile> {
        let mut disk = self.disk();
        disk.step()?;
        disk.files.insert((first_offset, false), Content::default());
        Ok(SimulatedFile {
            disk: self.clone(),
            first_offset,
            published: false,
        })
    }

    fn publish(&self, first_offset: u64) -> io::Result<()> {
        let mut disk = self.disk();
        // If the power goes now, the rename may have happened or not.
        let outcome = disk.step();
        if outcome.is_ok() || disk.random.below(2) == 0 {
            let file = disk
                .files
                .remove(&(first_offset, false))
                .ok_or(io::ErrorKind::NotFound)?;
            disk.files.insert((first_offset, true), file);
        }
        outcome
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.disk().used())
    }
}

#[derive(Clone, Debug)]
pub(crate) struct SimulatedFile {
    disk: SimulatedDisk,
    first_offset: u64,
    published: bool,
}

impl SimulatedFile {
    fn with<T>(
        &self,
        operation: impl FnOnce(&mut Disk, (u64, bool)) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut disk = self.disk.disk();
        disk.step()?;
        operation(&mut disk, (self.first_offset, self.published))
    }
}

impl SegmentStorage for SimulatedFile {
    fn reserve(&self, bytes: u64) -> io::Result<()> {
        self.with(|disk, name| {
            let more = bytes.saturating_sub(disk.file(name)?.reserved);
            disk.need(more, Full::Reserve)?;
            if disk.room.is_none_or(|(_, full)| full == Full::Reserve) {
                disk.file(name)?.reserved += more;
            }
            Ok(())
        })
    }
}

impl StorageBackend for SimulatedFile {
    fn len(&self) -> io::Result<u64> {
        self.with(|disk, name| Ok(disk.file(name)?.current.len() as u64))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.with(|disk, name| {
            let start = offset as usize;
            let bytes = disk
                .file(name)?
                .current
                .get(start..start + out.len())
                .ok_or(io::ErrorKind::UnexpectedEof)?;
            out.copy_from_slice(bytes);
            Ok(())
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.with(|disk, name| {
            let more = len.saturating_sub(disk.file(name)?.reserved);
            disk.need(more, Full::Growth)?;
            disk.need(more, Full::Reserve)?;
            let file = disk.file(name)?;
            if len < file.current.len() as u64 {
                file.reserved = len;
            }
            file.reserved = file.reserved.max(len);
            let change = Change::Len(len as usize);
            apply(&mut file.current, &change);
            file.pending.push(change);
            Ok(())
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.with(|disk, name| {
            disk.syncs += 1;
            disk.file(name)?.sync();
            Ok(())
        })
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.with(|disk, name| {
            let end = offset + data.len() as u64;
            if end > disk.file(name)?.written {
                disk.need(1, Full::Write)?;
            }
            let file = disk.file(name)?;
            file.written = file.written.max(end);
            let change = Change::Write(offset as usize, data.to_vec());
            apply(&mut file.current, &change);
            file.pending.push(change);
            Ok(())
        })
    }
}
