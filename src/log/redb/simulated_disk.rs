//! A simulated disk for tests: it loses and tears unsynced data, names included, fills up, fails
//! syncs, runs out of handles, and crashes in the middle of any operation.

use std::{
    collections::BTreeMap,
    fmt, io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ::redb::StorageBackend;

use super::{
    file::SegmentFile,
    folder::{Access, Folder},
};
use crate::testkit::samples::Random;

/// A torn write is torn between sectors of this size, in bytes.
const SECTOR_BYTES: usize = 512;

/// Which operation fails when the disk is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DiskFullAt {
    /// The request for space, as intended.
    Asked,
    /// Only growing a file.
    Growth,
    /// Only writing beyond everything written before.
    Write,
}

/// Failures that can be injected once each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A sync of a file fails, and the system treats the pages as written.
    Sync,
    /// The same, and the system then forgets the pages and reads the old ones.
    SyncAndForget,
    /// A sync of the folder.
    FolderSync,
    /// Anything that needs a new handle: opening, creating, listing, reading.
    Handle,
    /// A rename.
    Rename,
}

/// The simulated disk. Clones share one disk.
#[derive(Clone)]
pub struct SimulatedDisk(Arc<Mutex<Disk>>);

/// Identifies a file, whatever its name.
type FileId = usize;

struct Disk {
    files: Vec<Content>,
    names: BTreeMap<String, FileId>,
    /// The durable names; the next field has the changes since.
    lasting_names: BTreeMap<String, FileId>,
    renames: Vec<NameChange>,
    random: Random,
    /// Operations until the power fails; `None`: it does not.
    until_crash: Option<u64>,
    crashed: bool,
    room: Option<(u64, DiskFullAt)>,
    /// Injected faults, each with the number of operations of its kind that succeed before.
    faults: Vec<(Fault, u64)>,
    operations: u64,
    syncs: u64,
}

/// An atomic change of the folder: the new file of each name.
#[derive(Clone)]
struct NameChange(Vec<(String, Option<FileId>)>);

#[derive(Default, Clone)]
struct Content {
    durable: Vec<u8>,
    current: Vec<u8>,
    pending: Vec<Change>,
    /// Length up to the last byte that was ever written.
    written: u64,
    readers: u32,
    written_to: bool,
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
    fn change(&mut self, change: Change) {
        match &change {
            Change::Len(len) => self.written = self.written.min(*len as u64),
            Change::Write(at, data) => self.written = self.written.max((at + data.len()) as u64),
        }
        apply(&mut self.current, &change);
        self.pending.push(change);
    }

    /// Simulates a failed sync: a part of the pages reached the disk, the system treats all of them
    /// as clean, and no later sync writes the rest. With `forget`, it also reads the pages from
    /// disk again.
    fn fail_sync(&mut self, random: &mut Random, forget: bool) {
        let seen = self.current.clone();
        let (readers, written_to) = (self.readers, self.written_to);
        self.lose(random);
        (self.readers, self.written_to) = (readers, written_to);
        if !forget {
            self.current = seen;
        }
    }

    fn sync(&mut self) {
        for change in std::mem::take(&mut self.pending) {
            apply(&mut self.durable, &change);
        }
    }

    /// Simulates a power loss: a random part of the unsynced data survives, sector by sector.
    fn lose(&mut self, random: &mut Random) {
        // Sometimes nothing, sometimes half, sometimes nearly everything survives.
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
        self.written = self.current.len() as u64;
        self.readers = 0;
        self.written_to = false;
    }
}

impl fmt::Debug for SimulatedDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimulatedDisk")
    }
}

impl SimulatedDisk {
    /// Creates an empty disk. The seed determines what happens to unsynced writes.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(Disk {
            files: Vec::new(),
            names: BTreeMap::new(),
            lasting_names: BTreeMap::new(),
            renames: Vec::new(),
            random: Random(seed),
            until_crash: None,
            crashed: false,
            room: None,
            faults: Vec::new(),
            operations: 0,
            syncs: 0,
        })))
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the power fail after this many operations.
    pub fn crash_after(&self, operations: u64) {
        self.disk().until_crash = Some(operations);
    }

    /// Returns the disk as it is found after a power loss. Handles to the old one keep failing.
    #[must_use]
    pub fn after_crash(&self) -> Self {
        self.disk().crashed = true;
        self.if_it_crashed()
    }

    /// Returns the disk as it would be found if the power failed now.
    pub(super) fn if_it_crashed(&self) -> Self {
        let mut old = self.disk();
        let mut random = Random(old.random.next());
        let mut files = old.files.clone();
        files.iter_mut().for_each(|file| file.lose(&mut random));
        let names = old.names_after_crash(&mut random);
        let after = Self::new(random.next());
        {
            let mut disk = after.disk();
            disk.files = files;
            disk.lasting_names.clone_from(&names);
            disk.names = names;
        }
        after
    }
}

#[cfg(test)]
impl SimulatedDisk {
    /// Leaves room for this many bytes; `None`: unlimited.
    pub(super) fn set_room(&self, room: Option<(u64, DiskFullAt)>) {
        let mut disk = self.disk();
        let used = disk.used();
        disk.room = room.map(|(bytes, full)| (used + bytes, full));
    }

    /// Injects a fault once, after `after` operations of its kind have succeeded.
    pub(super) fn fail(&self, fault: Fault, after: u64) {
        self.disk().faults.push((fault, after));
    }

    /// Returns the number of injected faults that have not occurred yet.
    pub(super) fn faults_left(&self) -> usize {
        self.disk().faults.len()
    }

    pub(super) fn clear_faults(&self) {
        self.disk().faults.clear();
    }

    pub(super) fn syncs(&self) -> u64 {
        self.disk().syncs
    }

    /// Removes a file durably, as a user might by mistake.
    pub(super) fn lose_file(&self, name: &str) {
        let mut disk = self.disk();
        disk.names.remove(name);
        disk.lasting_names.remove(name);
    }

    pub(super) fn file_names(&self) -> Vec<String> {
        self.disk().names.keys().cloned().collect()
    }
}

impl Disk {
    fn used(&self) -> u64 {
        let open = self.names.values().map(|id| &self.files[*id]);
        open.map(|file| file.current.len() as u64).sum()
    }

    /// Counts an operation; fails when the power is off.
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

    /// Returns true when a fault of this kind is due now.
    fn is_due(&mut self, fault: Fault) -> bool {
        for (index, (kind, after)) in self.faults.iter_mut().enumerate() {
            if *kind != fault {
                continue;
            }
            if *after == 0 {
                self.faults.remove(index);
                return true;
            }
            *after -= 1;
        }
        false
    }

    fn need_handle(&mut self) -> io::Result<()> {
        if self.is_due(Fault::Handle) {
            // EMFILE
            return Err(io::Error::from_raw_os_error(24));
        }
        Ok(())
    }

    fn id(&self, name: &str) -> io::Result<FileId> {
        let found = self.names.get(name).copied();
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn change_names(&mut self, change: NameChange) {
        for (name, id) in &change.0 {
            match id {
                Some(id) => self.names.insert(name.clone(), *id),
                None => self.names.remove(name),
            };
        }
        self.renames.push(change);
    }

    /// Returns the names after a power loss: the durable names with some of the unsynced changes,
    /// either the first few or a random set.
    fn names_after_crash(&mut self, random: &mut Random) -> BTreeMap<String, FileId> {
        let mut names = self.lasting_names.clone();
        let in_order = random.below(2) == 0;
        let kept = random.below(self.renames.len() as u64 + 1) as usize;
        for (index, change) in self.renames.iter().enumerate() {
            let lasts = if in_order {
                index < kept
            } else {
                random.below(2) == 0
            };
            for (name, id) in change.0.iter().filter(|_| lasts) {
                match id {
                    Some(id) => names.insert(name.clone(), *id),
                    None => names.remove(name),
                };
            }
        }
        names
    }

    /// Fails when `more` bytes do not fit and the disk reports that at `at`.
    fn need(&self, more: u64, at: DiskFullAt) -> io::Result<()> {
        match self.room {
            Some((bytes, full)) if full == at && self.used() + more > bytes => {
                Err(io::ErrorKind::StorageFull.into())
            }
            _ => Ok(()),
        }
    }

    fn open(
        &mut self,
        disk: &SimulatedDisk,
        id: FileId,
        access: Access,
    ) -> io::Result<SimulatedFile> {
        let file = &mut self.files[id];
        match access {
            Access::Write if file.readers > 0 || file.written_to => {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Access::Read if file.written_to => return Err(io::ErrorKind::WouldBlock.into()),
            Access::Write => file.written_to = true,
            Access::Read => file.readers += 1,
        }
        Ok(SimulatedFile {
            disk: disk.clone(),
            id,
            access,
            sync_failed: Arc::default(),
        })
    }
}

impl Folder for SimulatedDisk {
    type File = SimulatedFile;

    fn names(&self) -> io::Result<Vec<String>> {
        let mut disk = self.disk();
        disk.step()?;
        disk.need_handle()?;
        Ok(disk.names.keys().cloned().collect())
    }

    fn open(&self, name: &str, access: Access) -> io::Result<SimulatedFile> {
        let mut disk = self.disk();
        disk.step()?;
        disk.need_handle()?;
        let id = disk.id(name)?;
        disk.open(self, id, access)
    }

    fn create(&self, name: &str) -> io::Result<SimulatedFile> {
        let mut disk = self.disk();
        disk.step()?;
        disk.need_handle()?;
        if disk.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let id = disk.files.len();
        disk.files.push(Content::default());
        disk.change_names(NameChange(vec![(name.to_owned(), Some(id))]));
        disk.open(self, id, Access::Write)
    }

    fn read(&self, name: &str, bytes_max: u64) -> io::Result<Vec<u8>> {
        let mut disk = self.disk();
        disk.step()?;
        disk.need_handle()?;
        let id = disk.id(name)?;
        let bytes = disk.files[id].current.clone();
        if bytes.len() as u64 > bytes_max {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(bytes)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut disk = self.disk();
        disk.step()?;
        disk.need_handle()?;
        let id = match disk.names.get(name) {
            Some(id) => *id,
            None => {
                let id = disk.files.len();
                disk.files.push(Content::default());
                disk.change_names(NameChange(vec![(name.to_owned(), Some(id))]));
                id
            }
        };
        disk.need(bytes.len() as u64, DiskFullAt::Growth)?;
        disk.need(bytes.len() as u64, DiskFullAt::Write)?;
        disk.files[id].change(Change::Len(0));
        disk.files[id].change(Change::Write(0, bytes.to_vec()));
        disk.step()?;
        if disk.is_due(Fault::Sync) {
            return Err(io::Error::from_raw_os_error(5));
        }
        disk.files[id].sync();
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut disk = self.disk();
        // If the power fails now, the rename may or may not have happened.
        let outcome = disk.step();
        if outcome.is_ok() && disk.is_due(Fault::Rename) {
            return Err(io::Error::from_raw_os_error(5));
        }
        let id = disk.id(from)?;
        let change = vec![(from.to_owned(), None), (to.to_owned(), Some(id))];
        disk.change_names(NameChange(change));
        outcome
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut disk = self.disk();
        disk.step()?;
        disk.id(name)?;
        disk.change_names(NameChange(vec![(name.to_owned(), None)]));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut disk = self.disk();
        disk.step()?;
        if disk.is_due(Fault::FolderSync) {
            // The changes count as clean from now on, and may or may not be durable.
            let changes = std::mem::take(&mut disk.renames);
            if disk.random.below(2) == 0 {
                for (name, id) in changes.into_iter().flat_map(|change| change.0) {
                    match id {
                        Some(id) => disk.lasting_names.insert(name, id),
                        None => disk.lasting_names.remove(&name),
                    };
                }
            }
            return Err(io::Error::from_raw_os_error(5));
        }
        for (name, id) in std::mem::take(&mut disk.renames)
            .into_iter()
            .flat_map(|c| c.0)
        {
            match id {
                Some(id) => disk.lasting_names.insert(name, id),
                None => disk.lasting_names.remove(&name),
            };
        }
        Ok(())
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.disk().used())
    }

    fn bytes_of(&self, name: &str) -> io::Result<u64> {
        let disk = self.disk();
        let id = disk.id(name)?;
        Ok(disk.files[id].current.len() as u64)
    }
}

/// A file on the simulated disk.
#[derive(Clone, Debug)]
pub struct SimulatedFile {
    disk: SimulatedDisk,
    id: FileId,
    access: Access,
    sync_failed: Arc<std::sync::atomic::AtomicBool>,
}

impl SimulatedFile {
    fn with<T>(&self, operation: impl FnOnce(&mut Disk, FileId) -> io::Result<T>) -> io::Result<T> {
        let mut disk = self.disk.disk();
        disk.step()?;
        operation(&mut disk, self.id)
    }
}

impl SegmentFile for SimulatedFile {
    fn ensure_room(&self, bytes: u64) -> io::Result<()> {
        self.with(|disk, _| disk.need(bytes, DiskFullAt::Asked))
    }

    fn is_poisoned(&self) -> bool {
        self.sync_failed.load(std::sync::atomic::Ordering::Acquire)
    }
}

impl StorageBackend for SimulatedFile {
    fn len(&self) -> io::Result<u64> {
        self.with(|disk, id| Ok(disk.files[id].current.len() as u64))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.with(|disk, id| {
            let start = offset as usize;
            let bytes = disk.files[id]
                .current
                .get(start..start + out.len())
                .ok_or(io::ErrorKind::UnexpectedEof)?;
            out.copy_from_slice(bytes);
            Ok(())
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.with(|disk, id| {
            let more = len.saturating_sub(disk.files[id].current.len() as u64);
            disk.need(more, DiskFullAt::Growth)?;
            disk.files[id].change(Change::Len(len as usize));
            Ok(())
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.with(|disk, id| {
            disk.syncs += 1;
            let forget = disk.is_due(Fault::SyncAndForget);
            if forget || disk.is_due(Fault::Sync) {
                self.sync_failed
                    .store(true, std::sync::atomic::Ordering::Release);
                let mut random = Random(disk.random.next());
                disk.files[id].fail_sync(&mut random, forget);
                return Err(io::Error::from_raw_os_error(5));
            }
            disk.files[id].sync();
            Ok(())
        })
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.with(|disk, id| {
            let end = offset + data.len() as u64;
            if end > disk.files[id].written {
                disk.need(1, DiskFullAt::Write)?;
            }
            disk.files[id].change(Change::Write(offset as usize, data.to_vec()));
            Ok(())
        })
    }

    fn close(&self) -> io::Result<()> {
        let mut disk = self.disk.disk();
        let file = &mut disk.files[self.id];
        match self.access {
            Access::Write => file.written_to = false,
            Access::Read => file.readers = file.readers.saturating_sub(1),
        }
        Ok(())
    }
}
