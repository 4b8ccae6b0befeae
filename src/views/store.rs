//! The file: opening, marks, transactions.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use redb::{
    Database, Durability, ReadableDatabase, WriteTransaction,
    backends::{FileBackend, InMemoryBackend},
};

use super::{
    base::{self, Base, BlockCache, BlockWeight, DEFINITIONS},
    codec::{self, VIEWS_VERSION},
    error::ViewsError,
    recent::{Changes, Recent},
    table::{Get, RawTable, ReadTable, TABLES, TableId},
};
use crate::disk::{self, Overlay};

pub(super) const META: TableId = TableId::Meta;
pub(super) const CONVERSATIONS: TableId = TableId::Conversations;
pub(super) const NAMESPACES: TableId = TableId::Namespaces;

const VERSION_KEY: &[u8] = b"version";
const REACHED_KEY: &[u8] = b"reached";

/// Files up to this size have every page checked when they are opened; that
/// reads all of it, which a start must have time for. In larger ones, damage
/// shows when a row is read.
const CHECKED_OPEN_BYTES_MAX: u64 = 256 << 20;
/// A file is compacted that has grown by a quarter, and at least by this. In bytes.
const GROWN_BYTES_MIN: u64 = 64 << 10;
/// Larger ones are not compacted in passing: 64 MiB take about a second.
const COMPACT_BYTES_MAX: u64 = 128 << 20;
/// Memory for pages while a file is compacted, in bytes.
const COMPACT_CACHE_BYTES: usize = 16 << 20;

/// What was written and is not in the file takes at most about so much memory, in
/// bytes; then whoever writes waits until it is.
const RECENT_BYTES_MAX: usize = 48 << 20;
/// Of the memory for the file's pages, so much keeps unpacked blocks instead.
const BLOCKS_SHARE: usize = 2;
/// Blocks in the cache, about: they are of one size.
const BLOCK_MEMORY_BYTES: usize = 14 << 10;
/// Memory for the pages of views that are in memory anyway, in bytes.
const MEMORY_CACHE_BYTES: usize = 8 << 20;

/// Everything that can be rebuilt from the log. Cheap to clone; all clones are
/// one store.
///
/// What is written is seen by readers at once, and is in memory; from there it
/// goes into the file in batches. A reader sees one state, whatever is written
/// meanwhile.
#[derive(Clone)]
pub struct Views {
    inner: Arc<Inner>,
}

struct Inner {
    /// None: nothing is open.
    rows: Option<Arc<RowStore>>,
    /// None: in memory.
    path: RwLock<Option<PathBuf>>,
    /// A read or a write has met what was not written.
    damaged: AtomicBool,
    /// Bytes of the file when it was opened; 0: it was new.
    opened_bytes: u64,
}

impl Inner {
    fn noted<T>(&self, done: Result<T, ViewsError>) -> Result<T, ViewsError> {
        if matches!(done, Err(ViewsError::Damaged { .. })) {
            self.damaged.store(true, Ordering::Release);
        }
        done
    }
}

impl Views {
    /// Opens the file, or makes an empty one. `cache_bytes` bounds the memory
    /// for its pages.
    ///
    /// # Errors
    /// [`ViewsError::OtherVersion`] and [`ViewsError::Damaged`] ask for
    /// [`wipe`](Self::wipe) and a rebuild; [`ViewsError::Locked`] when it is in
    /// use; [`ViewsError::NoSpace`] and [`ViewsError::Storage`] as they say.
    pub fn open(path: &Path, cache_bytes: usize) -> Result<Self, ViewsError> {
        Self::open_checking(path, cache_bytes, CHECKED_OPEN_BYTES_MAX)
    }

    /// Checks every page of files up to this size.
    pub(super) fn open_checking(
        path: &Path,
        cache_bytes: usize,
        checked_bytes_max: u64,
    ) -> Result<Self, ViewsError> {
        let bytes = match std::fs::metadata(path) {
            Ok(file) => file.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error.into()),
        };
        contained(|| {
            let mut builder = Database::builder();
            builder.set_cache_size(cache_bytes / BLOCKS_SHARE);
            builder.set_check_integrity_on_open(bytes > 0 && bytes <= checked_bytes_max);
            let file = disk::file_options().open(path)?;
            let backend = FileBackend::new(file)?;
            let db = builder.create_with_backend(backend)?;
            if bytes == 0 {
                disk::sync_folder(path.parent().unwrap_or(Path::new(".")))?;
            }
            Self::prepare(db, Some(path.to_owned()), cache_bytes)
        })
    }

    /// Opens the file without writing to it: what is applied is kept in memory
    /// and gone with this. For folders that may not change.
    ///
    /// # Errors
    /// As [`Views::open`]; a file that is not there is [`ViewsError::Storage`].
    pub fn open_unchanged(path: &Path, cache_bytes: usize) -> Result<Self, ViewsError> {
        let file = std::fs::File::open(path)?;
        contained(|| {
            let overlay = Overlay::new(FileBackend::new(file)?)?;
            let db = Database::builder()
                .set_cache_size(cache_bytes / BLOCKS_SHARE)
                .create_with_backend(overlay)?;
            Self::prepare(db, Some(path.to_owned()), cache_bytes)
        })
    }

    /// An empty store in memory.
    ///
    /// # Errors
    /// [`ViewsError::Storage`] when there is no memory for it.
    pub fn in_memory() -> Result<Self, ViewsError> {
        let db = Database::builder().create_with_backend(InMemoryBackend::new())?;
        Self::prepare(db, None, MEMORY_CACHE_BYTES)
    }

    /// Views that answer everything with [`ViewsError::Closed`]. They take the
    /// place of others whose file is to be let go.
    #[must_use]
    pub fn closed() -> Self {
        Self {
            inner: Arc::new(Inner {
                rows: None,
                path: RwLock::default(),
                damaged: AtomicBool::new(false),
                opened_bytes: 0,
            }),
        }
    }

    fn rows(&self) -> Result<&Arc<RowStore>, ViewsError> {
        self.inner.rows.as_ref().ok_or(ViewsError::Closed)
    }

    /// Deletes the file, if it is there. No [`Views`] may have it open.
    ///
    /// # Errors
    /// [`ViewsError::Storage`] when it cannot be deleted.
    pub fn wipe(path: &Path) -> Result<(), ViewsError> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn prepare(
        db: Database,
        path: Option<PathBuf>,
        cache_bytes: usize,
    ) -> Result<Self, ViewsError> {
        let mut opened_bytes = 0;
        if db.begin_read()?.list_tables()?.next().is_none() {
            initialise(&db)?;
        } else if let Some(path) = &path {
            opened_bytes = std::fs::metadata(path)?.len();
        }
        let rows = RowStore::new(db, cache_bytes / BLOCKS_SHARE)?;
        let reader = Reader(Arc::new(rows.snapshot()));
        let found = reader.version()?;
        if found != VIEWS_VERSION {
            return Err(ViewsError::OtherVersion {
                found,
                expected: VIEWS_VERSION,
            });
        }
        rows.durable.store(reader.reached()?, Ordering::Release);
        Ok(Self {
            inner: Arc::new(Inner {
                rows: Some(rows),
                path: RwLock::new(path),
                damaged: AtomicBool::new(false),
                opened_bytes,
            }),
        })
    }

    /// Log offset up to which the views are right; 0: they are empty.
    ///
    /// # Errors
    /// As every read: [`ViewsError::Damaged`], [`ViewsError::Closed`],
    /// [`ViewsError::Storage`].
    pub fn reached(&self) -> Result<u64, ViewsError> {
        self.read(Reader::reached)
    }

    /// The offset that the views would have reached after a crash now.
    #[must_use]
    pub fn durable(&self) -> u64 {
        let rows = self.inner.rows.as_ref();
        rows.map_or(0, |rows| rows.durable.load(Ordering::Acquire))
    }

    /// Puts everything that was applied on the disk, and says how far that is.
    /// Reads and writes go on meanwhile.
    ///
    /// # Errors
    /// [`ViewsError::NoSpace`], [`ViewsError::Storage`]; after one of them nothing
    /// can be applied any more, and the store must be opened again.
    pub fn make_durable(&self) -> Result<u64, ViewsError> {
        self.inner.noted(contained(|| self.rows()?.flush()))
    }

    /// True when the file is much larger than when it was opened: some of it may be
    /// free pages.
    #[must_use]
    pub fn have_grown(&self) -> bool {
        let opened = self.inner.opened_bytes;
        self.file_bytes() > opened + (opened / 4).max(GROWN_BYTES_MIN)
    }

    /// Gives the free pages of a file back to the system. It must not be open. A
    /// file that is too large to do so in a moment is left as it is, unless
    /// `however_long`.
    ///
    /// # Errors
    /// As [`Views::open`]; the file is right all the same.
    pub fn compact(path: &Path, however_long: bool) -> Result<(), ViewsError> {
        if !however_long && std::fs::metadata(path)?.len() > COMPACT_BYTES_MAX {
            return Ok(());
        }
        contained(|| {
            let mut db = Database::builder()
                .set_cache_size(COMPACT_CACHE_BYTES)
                .create_with_backend(FileBackend::new(disk::file_options().open(path)?)?)?;
            match db.compact() {
                Ok(_) => Ok(()),
                Err(redb::CompactionError::Storage(error)) => Err(error.into()),
                // It was opened for this alone.
                Err(error) => Err(ViewsError::Storage {
                    source: Box::new(error),
                }),
            }
        })
    }

    /// True when something of them was found to be damaged: they are to be made anew.
    #[must_use]
    pub fn are_damaged(&self) -> bool {
        self.inner.damaged.load(Ordering::Acquire)
    }

    /// Size of the file in bytes; 0 in memory.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        let path = self.path();
        path.and_then(|path| std::fs::metadata(path).ok())
            .map_or(0, |file| file.len())
    }

    /// Where the file is; none in memory.
    #[must_use]
    pub fn path(&self) -> Option<PathBuf> {
        let path = self.inner.path.read();
        path.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes that the file was renamed.
    pub fn moved_to(&self, path: &Path) {
        let own = self.inner.path.write();
        *own.unwrap_or_else(PoisonError::into_inner) = Some(path.to_owned());
    }

    /// Reads from one state of the views.
    pub(super) fn read<T>(
        &self,
        work: impl FnOnce(&Reader) -> Result<T, ViewsError>,
    ) -> Result<T, ViewsError> {
        let done = contained(|| work(&Reader(Arc::new(self.rows()?.snapshot()))));
        self.inner.noted(done)
    }

    /// Writes all or nothing; readers see it at once, the disk later.
    pub(super) fn write(
        &self,
        work: impl FnOnce(&mut Writer) -> Result<(), ViewsError>,
    ) -> Result<(), ViewsError> {
        let done = contained(|| {
            let rows = self.rows()?;
            rows.write(work)?;
            if rows.state.load().recent.bytes() > RECENT_BYTES_MAX {
                rows.flush()?;
            }
            Ok(())
        });
        self.inner.noted(done)
    }
}

/// Runs work on the store. redb trusts a file that was closed properly and may
/// panic where it was changed since; nothing of a panicking transaction is kept,
/// and the views can be rebuilt, so a panic is an answer like another.
fn contained<T>(work: impl FnOnce() -> Result<T, ViewsError>) -> Result<T, ViewsError> {
    crate::contained::contained(work)
        .unwrap_or_else(|_| Err(ViewsError::damaged("the store panicked")))
}

/// Each durable commit records which pages are free. A start after a crash then
/// takes no time, whatever the size, as long as every durable commit does so.
fn durable_commit(txn: &mut WriteTransaction) -> Result<(), ViewsError> {
    txn.set_durability(Durability::Immediate)?;
    txn.set_quick_repair(true);
    Ok(())
}

fn initialise(db: &Database) -> Result<(), ViewsError> {
    let mut txn = db.begin_write()?;
    durable_commit(&mut txn)?;
    for definition in DEFINITIONS {
        txn.open_table(definition)?;
    }
    let mut rows = Changes::new();
    for (key, value) in [
        (VERSION_KEY, &VIEWS_VERSION.to_le_bytes()[..]),
        (REACHED_KEY, &0_u64.to_le_bytes()),
    ] {
        rows.insert(Bytes::from_static(key), Some(meta_row(key, value)));
    }
    base::merge(
        &mut txn.open_table(DEFINITIONS[META as usize])?,
        rows.into_iter().collect(),
    )?;
    Ok(txn.commit()?)
}

fn meta_row(key: &[u8], value: &[u8]) -> Bytes {
    let mut sealed = key.to_vec();
    sealed.extend_from_slice(value);
    codec::seal(&mut sealed, 0);
    Bytes::from(sealed).slice(key.len()..)
}

pub(super) fn put_meta(meta: &mut RawTable<'_>, key: &[u8], value: &[u8]) {
    meta.put(Bytes::copy_from_slice(key), meta_row(key, value));
}

pub(super) fn set_reached(meta: &mut RawTable<'_>, reached: u64) {
    put_meta(meta, REACHED_KEY, &reached.to_le_bytes());
}

pub(super) fn reached_in(meta: &impl Get) -> Result<u64, ViewsError> {
    get_meta(meta, REACHED_KEY).map(u64::from_le_bytes)
}

pub(super) fn get_meta<const N: usize>(meta: &impl Get, key: &[u8]) -> Result<[u8; N], ViewsError> {
    let row = meta
        .get(key)?
        .ok_or_else(|| ViewsError::damaged("a mark is missing"))?;
    codec::checked(key, &row)?
        .try_into()
        .map_err(|_| ViewsError::damaged("a mark has the wrong length"))
}

/// One state of the views.
#[derive(Clone)]
pub(super) struct Reader(Arc<Snapshot>);

impl Reader {
    pub(super) fn table(&self, table: TableId) -> ReadTable {
        ReadTable::new(Arc::clone(&self.0), table)
    }

    pub(super) fn reached(&self) -> Result<u64, ViewsError> {
        reached_in(&self.table(META))
    }

    fn version(&self) -> Result<u32, ViewsError> {
        get_meta(&self.table(META), VERSION_KEY).map(u32::from_le_bytes)
    }
}

/// What a write changes, over the state before it.
pub(super) struct Writer {
    before: Snapshot,
    changes: [Changes; TABLES],
}

impl Writer {
    pub(super) fn table(&mut self, table: TableId) -> RawTable<'_> {
        RawTable {
            before: &self.before,
            table,
            changes: &mut self.changes[table as usize],
        }
    }
}

/// The rows: those in the file, and over them those that are not there yet.
pub(super) struct RowStore {
    db: Held,
    blocks: Arc<BlockCache>,
    state: ArcSwap<State>,
    /// The number of the last write.
    written: AtomicU64,
    /// How many read as of which write.
    readers: Mutex<BTreeMap<u64, usize>>,
    /// Held by who writes.
    writing: Mutex<()>,
    /// Held by who moves rows into the file.
    flushing: Mutex<()>,
    /// The file could not be written.
    failed: AtomicBool,
    durable: AtomicU64,
}

/// A database whose end is contained like its work: redb notes in the file what is
/// free when it is dropped, and panics where damage has made that wrong.
struct Held(Option<Database>);

impl Held {
    fn get(&self) -> Result<&Database, ViewsError> {
        self.0.as_ref().ok_or(ViewsError::Closed)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let db = self.0.take();
        // Views that were not closed well are checked when they are opened.
        let _ = contained(|| {
            drop(db);
            Ok(())
        });
    }
}

/// Where rows are.
struct State {
    /// Takes what is written.
    recent: Arc<Recent>,
    /// Takes nothing more, and is on its way into the file.
    leaving: Option<Arc<Recent>>,
    base: Arc<Base>,
}

impl RowStore {
    fn new(db: Database, cache_bytes: usize) -> Result<Arc<Self>, ViewsError> {
        let blocks = Arc::new(BlockCache::with_weighter(
            cache_bytes / BLOCK_MEMORY_BYTES,
            cache_bytes as u64,
            BlockWeight,
        ));
        let base = Arc::new(Base::new(&db.begin_read()?, Arc::clone(&blocks))?);
        let state = State {
            recent: Arc::default(),
            leaving: None,
            base,
        };
        Ok(Arc::new(Self {
            db: Held(Some(db)),
            blocks,
            state: ArcSwap::from_pointee(state),
            written: AtomicU64::new(0),
            readers: Mutex::default(),
            writing: Mutex::default(),
            flushing: Mutex::default(),
            failed: AtomicBool::new(false),
            durable: AtomicU64::new(0),
        }))
    }

    fn snapshot(self: &Arc<Self>) -> Snapshot {
        // In this order: a state never loses what was written before it was looked
        // at, but the file of a later one may be ahead of an earlier write.
        let state = self.state.load_full();
        let mut readers = locked(&self.readers);
        let as_of = self.written.load(Ordering::Acquire);
        *readers.entry(as_of).or_default() += 1;
        drop(readers);
        Snapshot {
            rows: Arc::clone(self),
            state,
            as_of,
        }
    }

    fn write(
        self: &Arc<Self>,
        work: impl FnOnce(&mut Writer) -> Result<(), ViewsError>,
    ) -> Result<(), ViewsError> {
        let _writing = locked(&self.writing);
        if self.failed.load(Ordering::Acquire) {
            return Err(ViewsError::Closed);
        }
        let mut writer = Writer {
            before: self.snapshot(),
            changes: Default::default(),
        };
        work(&mut writer)?;
        let write = writer.before.as_of + 1;
        // The one before this is still read, by this at least.
        let oldest = locked(&self.readers).keys().next().copied();
        let oldest = oldest.unwrap_or(writer.before.as_of);
        let recent = &self.state.load_full().recent;
        let [meta, conversations, namespaces] = writer.changes;
        recent.put(META, meta, write, oldest);
        recent.put(CONVERSATIONS, conversations, write, oldest);
        recent.put(NAMESPACES, namespaces, write, oldest);
        self.written.store(write, Ordering::Release);
        Ok(())
    }

    /// Moves what is recent into the file.
    fn flush(self: &Arc<Self>) -> Result<u64, ViewsError> {
        let _flushing = locked(&self.flushing);
        if self.failed.load(Ordering::Acquire) {
            return Err(ViewsError::Closed);
        }
        // After a panic, too, what is on its way must not be replaced by what came since.
        let done = contained(|| self.flush_recent());
        if done.is_err() {
            self.failed.store(true, Ordering::Release);
        }
        done
    }

    fn flush_recent(&self) -> Result<u64, ViewsError> {
        let leaving = {
            let _writing = locked(&self.writing);
            let state = self.state.load_full();
            if state.recent.bytes() == 0 {
                return Ok(self.durable.load(Ordering::Acquire));
            }
            self.state.store(Arc::new(State {
                recent: Arc::default(),
                leaving: Some(Arc::clone(&state.recent)),
                base: Arc::clone(&state.base),
            }));
            Arc::clone(&state.recent)
        };
        let mut txn = self.db.get()?.begin_write()?;
        durable_commit(&mut txn)?;
        for table in [META, CONVERSATIONS, NAMESPACES] {
            let mut stored = txn.open_table(DEFINITIONS[table as usize])?;
            base::merge(&mut stored, leaving.all(table))?;
        }
        txn.commit()?;
        let base = Base::new(&self.db.get()?.begin_read()?, Arc::clone(&self.blocks))?;
        let reached = leaving.get(META, REACHED_KEY, u64::MAX).flatten();
        let reached = reached.map(|row| codec::checked(REACHED_KEY, &row).map(<[u8]>::to_vec));
        if let Some(bytes) = reached.transpose()?
            && let Ok(bytes) = <[u8; 8]>::try_from(bytes)
        {
            self.durable
                .store(u64::from_le_bytes(bytes), Ordering::Release);
        }
        let state = self.state.load_full();
        self.state.store(Arc::new(State {
            recent: Arc::clone(&state.recent),
            leaving: None,
            base: Arc::new(base),
        }));
        Ok(self.durable.load(Ordering::Acquire))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The rows as of one write.
pub(super) struct Snapshot {
    rows: Arc<RowStore>,
    state: Arc<State>,
    as_of: u64,
}

impl Snapshot {
    pub(super) fn as_of(&self) -> u64 {
        self.as_of
    }

    pub(super) fn base(&self) -> &Base {
        &self.state.base
    }

    /// Newest first.
    pub(super) fn recents(&self) -> impl Iterator<Item = &Recent> {
        let leaving = self.state.leaving.as_deref();
        std::iter::once(&*self.state.recent).chain(leaving)
    }

    pub(super) fn get(&self, table: TableId, key: &[u8]) -> Result<Option<Bytes>, ViewsError> {
        for recent in self.recents() {
            if let Some(change) = recent.get(table, key, self.as_of) {
                return Ok(change);
            }
        }
        self.base().get(table, key)
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        let mut readers = locked(&self.rows.readers);
        if let Some(count) = readers.get_mut(&self.as_of) {
            *count -= 1;
            if *count == 0 {
                readers.remove(&self.as_of);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use redb::StorageBackend;

    use super::*;

    const SOUND: u64 = 0;
    const REFUSES: u64 = 1;
    const PANICS: u64 = 2;

    /// A file that begins to fail.
    #[derive(Debug)]
    struct Failing {
        file: InMemoryBackend,
        how: Arc<AtomicU64>,
    }

    impl Failing {
        fn check(&self) -> io::Result<()> {
            match self.how.load(Ordering::SeqCst) {
                REFUSES => Err(io::ErrorKind::StorageFull.into()),
                _ => Ok(()),
            }
        }
    }

    impl StorageBackend for Failing {
        fn len(&self) -> io::Result<u64> {
            self.file.len()
        }

        fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            self.file.read(offset, out)
        }

        fn set_len(&self, len: u64) -> io::Result<()> {
            self.check()?;
            self.file.set_len(len)
        }

        fn sync_data(&self) -> io::Result<()> {
            self.check()?;
            // Not in `write`: redb holds a lock there, and would panic again when dropped.
            assert!(self.how.load(Ordering::SeqCst) != PANICS, "no sync");
            self.file.sync_data()
        }

        fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            self.check()?;
            self.file.write(offset, data)
        }
    }

    fn put(views: &Views, number: u8) -> Result<(), ViewsError> {
        views.write(|writer| {
            let row = Bytes::from(vec![number; 100]);
            writer.table(CONVERSATIONS).put(row.slice(..1), row);
            Ok(())
        })
    }

    // What was on its way into the file when that failed is in no file and no log
    // entry would bring it again: readers must go on seeing it, and nothing may be
    // built on it until the views are opened again and have caught up.
    #[test]
    fn what_could_not_be_moved_is_still_seen() {
        for how in [REFUSES, PANICS] {
            let fails = Arc::new(AtomicU64::new(SOUND));
            let file = Failing {
                file: InMemoryBackend::new(),
                how: Arc::clone(&fails),
            };
            let db = Database::builder().create_with_backend(file).unwrap();
            let views = Views::prepare(db, None, 1 << 20).unwrap();
            put(&views, 1).unwrap();
            views.make_durable().unwrap();
            put(&views, 2).unwrap();
            fails.store(how, Ordering::SeqCst);
            assert!(views.make_durable().is_err());
            assert!(matches!(put(&views, 3), Err(ViewsError::Closed)));
            fails.store(SOUND, Ordering::SeqCst);
            assert!(matches!(views.make_durable(), Err(ViewsError::Closed)));
            let seen = views.read(|reader| {
                let rows = reader.table(CONVERSATIONS).iter();
                let keys = rows.map(|row| Ok::<_, ViewsError>(row?.0[0]));
                keys.collect::<Result<Vec<_>, _>>()
            });
            assert_eq!(seen.unwrap(), [1, 2], "failure {how}");
        }
    }

    // Views with one changed byte were opened, to hear what they prove; the panic at
    // their end, outside of all that contains panics, ended the call that opened the store.
    #[test]
    fn a_panic_at_the_end_is_no_ones() {
        let fails = Arc::new(AtomicU64::new(SOUND));
        let file = Failing {
            file: InMemoryBackend::new(),
            how: Arc::clone(&fails),
        };
        let db = Database::builder().create_with_backend(file).unwrap();
        let views = Views::prepare(db, None, 1 << 20).unwrap();
        put(&views, 1).unwrap();
        views.make_durable().unwrap();
        fails.store(PANICS, Ordering::SeqCst);
        drop(views);
    }

    // Blocks are written anew as they fill, and the file kept the room of the old
    // ones for ever: 67 MB for 20.
    #[test]
    fn what_is_free_is_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("views.redb");
        let views = Views::open(&path, 1 << 20).unwrap();
        assert!(views.have_grown());
        for round in 0..40_u16 {
            let written = views.write(|writer| {
                for number in 0..200_u16 {
                    let key = blake3::hash(&[number.to_le_bytes(), round.to_le_bytes()].concat());
                    let row = Bytes::copy_from_slice(key.as_bytes());
                    writer.table(CONVERSATIONS).put(row.clone(), row);
                }
                Ok(())
            });
            written.unwrap();
            views.make_durable().unwrap();
        }
        let rows = |views: &Views| {
            let rows = views.read(|reader| reader.table(CONVERSATIONS).iter().collect());
            let rows: Vec<(Bytes, Bytes)> = rows.unwrap();
            rows
        };
        let (before, bytes) = (rows(&views), views.file_bytes());
        assert!(matches!(
            Views::compact(&path, false),
            Err(ViewsError::Locked)
        ));
        drop(views);
        Views::compact(&path, false).unwrap();
        let views = Views::open(&path, 1 << 20).unwrap();
        assert!(rows(&views) == before && before.len() == 8_000);
        let left = views.file_bytes();
        assert!(left * 2 < bytes, "{left} of {bytes}");
        assert!(!views.have_grown());
    }
}
