//! The layers of rows: recent rows in memory over the rows in the file. Flushes the recent rows.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use redb::{Database, Durability, ReadableDatabase, WriteTransaction};

use super::{
    codec,
    error::ProjectionsError,
    memtable::{Changes, Memtable},
    meta::{REACHED_KEY, reached_in, version_in},
    sorted_table::{self, BlockCache, BlockWeigher, DEFINITIONS, SortedTable},
    table::{CONVERSATIONS, META, NAMESPACES, RawTable, ReadTable, TABLES, TableId},
};

/// Approximate memory of a cached block, in bytes.
const BLOCK_MEMORY_BYTES: usize = 14 << 10;

/// Runs work on the store and converts panics to [`ProjectionsError::Damaged`]. redb trusts a file
/// that was closed properly and may panic if it was changed since; nothing of a panicking
/// transaction is kept, and the projections can be rebuilt.
pub(super) fn catch_redb_panics<T>(
    work: impl FnOnce() -> Result<T, ProjectionsError>,
) -> Result<T, ProjectionsError> {
    treering_base::catch_panics::catch_panics(work)
        .unwrap_or_else(|_| Err(ProjectionsError::damaged("the store panicked")))
}

/// Makes a transaction durable and lets it record which pages are free. A start after a crash is
/// then quick at any size, as long as every durable commit does this.
pub(super) fn durable_commit(txn: &mut WriteTransaction) -> Result<(), ProjectionsError> {
    txn.set_durability(Durability::Immediate)?;
    txn.set_quick_repair(true);
    Ok(())
}

/// One state of the projections.
#[derive(Clone)]
pub(super) struct Reader(pub(super) Arc<RowsAsOf>);

impl Reader {
    pub(super) fn table(&self, table: TableId) -> ReadTable {
        ReadTable::new(Arc::clone(&self.0), table)
    }

    pub(super) fn reached(&self) -> Result<u64, ProjectionsError> {
        reached_in(&self.table(META))
    }

    pub(super) fn version(&self) -> Result<u32, ProjectionsError> {
        version_in(&self.table(META))
    }
}

/// The changes of a write, over the state before it.
pub(super) struct Writer {
    before: RowsAsOf,
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

/// The rows in the file, and over them the rows that are not flushed yet.
pub(super) struct RowStore {
    db: DatabaseGuard,
    blocks: Arc<BlockCache>,
    layers: ArcSwap<LayeredRows>,
    /// The number of the last write.
    written: AtomicU64,
    /// Number of readers of each write.
    readers: Mutex<BTreeMap<u64, usize>>,
    /// Held while writing.
    writing: Mutex<()>,
    /// Held while rows are flushed to the file.
    flushing: Mutex<()>,
    /// The file could not be written.
    failed: AtomicBool,
    pub(super) durable: AtomicU64,
}

/// Catches the panics of a database that is dropped: redb then records the free pages in the file,
/// and panics if damage has made them inconsistent.
struct DatabaseGuard(Option<Database>);

impl DatabaseGuard {
    fn get(&self) -> Result<&Database, ProjectionsError> {
        self.0.as_ref().ok_or(ProjectionsError::Closed)
    }
}

impl Drop for DatabaseGuard {
    fn drop(&mut self) {
        let db = self.0.take();
        // Projections that were not closed properly are checked when they are opened.
        let _ = catch_redb_panics(|| {
            drop(db);
            Ok(())
        });
    }
}

/// The layers of rows.
struct LayeredRows {
    /// Receives new writes.
    recent: Arc<Memtable>,
    /// Receives nothing more and is being flushed.
    leaving: Option<Arc<Memtable>>,
    base: Arc<SortedTable>,
}

impl RowStore {
    pub(super) fn new(db: Database, cache_bytes: usize) -> Result<Arc<Self>, ProjectionsError> {
        let blocks = Arc::new(BlockCache::with_weighter(
            cache_bytes / BLOCK_MEMORY_BYTES,
            cache_bytes as u64,
            BlockWeigher,
        ));
        let base = Arc::new(SortedTable::new(&db.begin_read()?, Arc::clone(&blocks))?);
        let layers = LayeredRows {
            recent: Arc::default(),
            leaving: None,
            base,
        };
        Ok(Arc::new(Self {
            db: DatabaseGuard(Some(db)),
            blocks,
            layers: ArcSwap::from_pointee(layers),
            written: AtomicU64::new(0),
            readers: Mutex::default(),
            writing: Mutex::default(),
            flushing: Mutex::default(),
            failed: AtomicBool::new(false),
            durable: AtomicU64::new(0),
        }))
    }

    pub(super) fn snapshot(self: &Arc<Self>) -> RowsAsOf {
        // In this order, the snapshot includes everything written before it was taken. In the
        // reverse order, the file could have newer rows than `as_of`.
        let layers = self.layers.load_full();
        let mut readers = locked(&self.readers);
        let as_of = self.written.load(Ordering::Acquire);
        *readers.entry(as_of).or_default() += 1;
        drop(readers);
        RowsAsOf {
            rows: Arc::clone(self),
            layers,
            as_of,
        }
    }

    pub(super) fn write(
        self: &Arc<Self>,
        work: impl FnOnce(&mut Writer) -> Result<(), ProjectionsError>,
    ) -> Result<(), ProjectionsError> {
        let _writing = locked(&self.writing);
        if self.failed.load(Ordering::Acquire) {
            return Err(ProjectionsError::Closed);
        }
        let mut writer = Writer {
            before: self.snapshot(),
            changes: Default::default(),
        };
        work(&mut writer)?;
        let write = writer.before.as_of + 1;
        // The state before this write is still read, at least by this write.
        let oldest = locked(&self.readers).keys().next().copied();
        let oldest = oldest.unwrap_or(writer.before.as_of);
        let recent = &self.layers.load_full().recent;
        let [meta, conversations, namespaces] = writer.changes;
        recent.put(META, meta, write, oldest);
        recent.put(CONVERSATIONS, conversations, write, oldest);
        recent.put(NAMESPACES, namespaces, write, oldest);
        self.written.store(write, Ordering::Release);
        Ok(())
    }

    /// Returns the approximate memory of rows that are not in the file, in bytes.
    pub(super) fn recent_bytes(&self) -> usize {
        self.layers.load().recent.bytes()
    }

    /// Flushes the recent rows to the file.
    pub(super) fn flush(self: &Arc<Self>) -> Result<u64, ProjectionsError> {
        let _flushing = locked(&self.flushing);
        if self.failed.load(Ordering::Acquire) {
            return Err(ProjectionsError::Closed);
        }
        // Even after a panic, rows being flushed must not be replaced by later ones.
        let done = catch_redb_panics(|| self.flush_recent());
        if done.is_err() {
            self.failed.store(true, Ordering::Release);
        }
        done
    }

    fn flush_recent(&self) -> Result<u64, ProjectionsError> {
        let leaving = {
            let _writing = locked(&self.writing);
            let layers = self.layers.load_full();
            if layers.recent.bytes() == 0 {
                return Ok(self.durable.load(Ordering::Acquire));
            }
            self.layers.store(Arc::new(LayeredRows {
                recent: Arc::default(),
                leaving: Some(Arc::clone(&layers.recent)),
                base: Arc::clone(&layers.base),
            }));
            Arc::clone(&layers.recent)
        };
        let mut txn = self.db.get()?.begin_write()?;
        durable_commit(&mut txn)?;
        for table in [META, CONVERSATIONS, NAMESPACES] {
            let mut stored = txn.open_table(DEFINITIONS[table as usize])?;
            sorted_table::merge(&mut stored, leaving.all(table))?;
        }
        txn.commit()?;
        let base = SortedTable::new(&self.db.get()?.begin_read()?, Arc::clone(&self.blocks))?;
        let reached = leaving.get(META, REACHED_KEY, u64::MAX).flatten();
        let reached = reached.map(|row| codec::checked(REACHED_KEY, &row).map(<[u8]>::to_vec));
        if let Some(bytes) = reached.transpose()?
            && let Ok(bytes) = <[u8; 8]>::try_from(bytes)
        {
            self.durable
                .store(u64::from_le_bytes(bytes), Ordering::Release);
        }
        let layers = self.layers.load_full();
        self.layers.store(Arc::new(LayeredRows {
            recent: Arc::clone(&layers.recent),
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
pub(super) struct RowsAsOf {
    rows: Arc<RowStore>,
    layers: Arc<LayeredRows>,
    as_of: u64,
}

impl RowsAsOf {
    pub(super) fn as_of(&self) -> u64 {
        self.as_of
    }

    pub(super) fn base(&self) -> &SortedTable {
        &self.layers.base
    }

    /// Returns the recent layers, newest first.
    pub(super) fn recents(&self) -> impl Iterator<Item = &Memtable> {
        let leaving = self.layers.leaving.as_deref();
        std::iter::once(&*self.layers.recent).chain(leaving)
    }

    pub(super) fn get(
        &self,
        table: TableId,
        key: &[u8],
    ) -> Result<Option<Bytes>, ProjectionsError> {
        for recent in self.recents() {
            if let Some(change) = recent.get(table, key, self.as_of) {
                return Ok(change);
            }
        }
        self.base().get(table, key)
    }
}

impl Drop for RowsAsOf {
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
