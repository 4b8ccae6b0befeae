//! The file: opening, marks, transactions.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use redb::{
    Database, Durability, ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTable,
    TableDefinition, WriteTransaction,
    backends::{FileBackend, InMemoryBackend},
};

use super::{
    codec::{self, VIEWS_VERSION},
    error::ViewsError,
    rows::RawTable,
};
use crate::disk::{self, Overlay};

pub(super) type RawDefinition = TableDefinition<'static, &'static [u8], &'static [u8]>;
pub(super) type ReadTable = ReadOnlyTable<&'static [u8], &'static [u8]>;

pub(super) const META: RawDefinition = TableDefinition::new("meta");
pub(super) const CONVERSATIONS: RawDefinition = TableDefinition::new("conversations");
pub(super) const NAMESPACES: RawDefinition = TableDefinition::new("namespaces");

const VERSION_KEY: &[u8] = b"version";
const REACHED_KEY: &[u8] = b"reached";

/// Files up to this size have every page checked when they are opened; that
/// reads all of it, which a start must have time for. In larger ones, damage
/// shows when a row is read.
const CHECKED_OPEN_BYTES_MAX: u64 = 256 << 20;

/// Everything that can be rebuilt from the log. Cheap to clone; all clones are
/// one store.
#[derive(Clone)]
pub struct Views {
    inner: Arc<Inner>,
}

struct Inner {
    /// None: nothing is open.
    db: Option<Database>,
    /// None: in memory.
    path: RwLock<Option<PathBuf>>,
    durable: AtomicU64,
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
            builder.set_cache_size(cache_bytes);
            builder.set_check_integrity_on_open(bytes > 0 && bytes <= checked_bytes_max);
            let file = disk::file_options().open(path)?;
            let backend = FileBackend::new(file)?;
            let db = builder.create_with_backend(backend)?;
            if bytes == 0 {
                disk::sync_folder(path.parent().unwrap_or(Path::new(".")))?;
            }
            Self::prepare(db, Some(path.to_owned()))
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
                .set_cache_size(cache_bytes)
                .create_with_backend(overlay)?;
            Self::prepare(db, Some(path.to_owned()))
        })
    }

    /// An empty store in memory.
    ///
    /// # Errors
    /// [`ViewsError::Storage`] when there is no memory for it.
    pub fn in_memory() -> Result<Self, ViewsError> {
        let db = Database::builder().create_with_backend(InMemoryBackend::new())?;
        Self::prepare(db, None)
    }

    /// Views that answer everything with [`ViewsError::Closed`]. They take the
    /// place of others whose file is to be let go.
    #[must_use]
    pub fn closed() -> Self {
        Self {
            inner: Arc::new(Inner {
                db: None,
                path: RwLock::default(),
                durable: AtomicU64::new(0),
            }),
        }
    }

    fn db(&self) -> Result<&Database, ViewsError> {
        self.inner.db.as_ref().ok_or(ViewsError::Closed)
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

    fn prepare(db: Database, path: Option<PathBuf>) -> Result<Self, ViewsError> {
        let has_tables = db.begin_read()?.list_tables()?.next().is_some();
        if !has_tables {
            initialise(&db)?;
        }
        let reader = Reader {
            txn: db.begin_read()?,
        };
        let found = reader.version()?;
        if found != VIEWS_VERSION {
            return Err(ViewsError::OtherVersion {
                found,
                expected: VIEWS_VERSION,
            });
        }
        let durable = AtomicU64::new(reader.reached()?);
        drop(reader);
        Ok(Self {
            inner: Arc::new(Inner {
                db: Some(db),
                path: RwLock::new(path),
                durable,
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
        self.inner.durable.load(Ordering::Acquire)
    }

    /// Puts everything that was applied on the disk, and says how far that is.
    ///
    /// # Errors
    /// [`ViewsError::NoSpace`], [`ViewsError::Storage`]; after one of them the
    /// store is closed, and must be opened again.
    pub fn make_durable(&self) -> Result<u64, ViewsError> {
        contained(|| {
            let mut txn = self.db()?.begin_write()?;
            let reached = reached_in(&txn.open_table(META)?)?;
            if reached == self.durable() {
                txn.abort()?;
                return Ok(reached);
            }
            durable_commit(&mut txn)?;
            txn.commit()?;
            self.inner.durable.store(reached, Ordering::Release);
            Ok(reached)
        })
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
        contained(|| {
            let txn = self.db()?.begin_read()?;
            work(&Reader { txn })
        })
    }

    /// Writes all or nothing; readers see it at once, the disk later.
    pub(super) fn write(
        &self,
        work: impl FnOnce(&WriteTransaction) -> Result<(), ViewsError>,
    ) -> Result<(), ViewsError> {
        contained(|| {
            let mut txn = self.db()?.begin_write()?;
            txn.set_durability(Durability::None)?;
            work(&txn)?;
            Ok(txn.commit()?)
        })
    }
}

/// Runs work on the store. redb trusts a file that was closed properly and may
/// panic where it was changed since; nothing of a panicking transaction is kept,
/// and the views can be rebuilt, so a panic is an answer like another.
fn contained<T>(work: impl FnOnce() -> Result<T, ViewsError>) -> Result<T, ViewsError> {
    catch_unwind(AssertUnwindSafe(work))
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
    txn.open_table(CONVERSATIONS)?;
    txn.open_table(NAMESPACES)?;
    {
        let mut meta = txn.open_table(META)?;
        put_meta(&mut meta, VERSION_KEY, &VIEWS_VERSION.to_le_bytes())?;
        set_reached(&mut meta, 0)?;
    }
    Ok(txn.commit()?)
}

pub(super) fn put_meta(
    meta: &mut RawTable<'_>,
    key: &[u8],
    value: &[u8],
) -> Result<(), ViewsError> {
    let mut sealed = key.to_vec();
    sealed.extend_from_slice(value);
    codec::seal(&mut sealed, 0);
    meta.insert(key, &sealed[key.len()..])?;
    Ok(())
}

pub(super) fn set_reached(meta: &mut RawTable<'_>, reached: u64) -> Result<(), ViewsError> {
    put_meta(meta, REACHED_KEY, &reached.to_le_bytes())
}

pub(super) fn reached_in(
    meta: &impl ReadableTable<&'static [u8], &'static [u8]>,
) -> Result<u64, ViewsError> {
    get_meta(meta, REACHED_KEY).map(u64::from_le_bytes)
}

pub(super) fn get_meta<const N: usize>(
    meta: &impl ReadableTable<&'static [u8], &'static [u8]>,
    key: &[u8],
) -> Result<[u8; N], ViewsError> {
    let row = meta
        .get(key)?
        .ok_or_else(|| ViewsError::damaged("a mark is missing"))?;
    codec::checked(key, row.value())?
        .try_into()
        .map_err(|_| ViewsError::damaged("a mark has the wrong length"))
}

/// One state of the views.
pub(super) struct Reader {
    txn: ReadTransaction,
}

impl Reader {
    pub(super) fn table(&self, definition: RawDefinition) -> Result<ReadTable, ViewsError> {
        Ok(self.txn.open_table(definition)?)
    }

    pub(super) fn reached(&self) -> Result<u64, ViewsError> {
        reached_in(&self.table(META)?)
    }

    fn version(&self) -> Result<u32, ViewsError> {
        get_meta(&self.table(META)?, VERSION_KEY).map(u32::from_le_bytes)
    }
}
