//! The file: opening, reading, writing, compacting.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
};

use redb::{
    Database, ReadableDatabase,
    backends::{FileBackend, InMemoryBackend},
};

use super::{
    codec::VIEWS_VERSION,
    error::ProjectionsError,
    facets::FacetVersions,
    meta,
    repack::repack,
    row_store::{Reader, RowStore, Writer, catch_redb_panics},
};
use treering_base::disk::{self, Overlay};

/// Files up to this size, in bytes, have every page checked when they are opened, which reads the
/// whole file and delays the start. In larger ones, damage is noticed when a row is read.
const CHECKED_OPEN_BYTES_MAX: u64 = 256 << 20;
/// A file is compacted after it has grown by a quarter, and by at least this many bytes.
const GROWN_BYTES_MIN: u64 = 64 << 10;
/// Files with more bytes than this are compacted only on request: 64 MiB take about a second.
const COMPACT_BYTES_MAX: u64 = 128 << 20;
/// Page cache while a file is compacted, in bytes.
const COMPACT_CACHE_BYTES: usize = 16 << 20;

/// Approximate maximum memory for rows that are not in the file yet, in bytes; beyond it, a writer
/// waits until they are flushed.
const RECENT_BYTES_MAX: usize = 48 << 20;
/// The cache has this many equal parts: one for the file's pages, one for unpacked blocks.
const BLOCKS_SHARE: usize = 2;
/// Cache for in-memory projections, in bytes.
const MEMORY_CACHE_BYTES: usize = 8 << 20;

/// The projections of a log. Cheap to clone; all clones share one store.
///
/// Writes are visible to readers at once and kept in memory; from there they are flushed to the
/// file in batches. A reader sees one consistent state, whatever is written meanwhile.
#[derive(Clone)]
pub struct Projections {
    inner: Arc<Inner>,
}

struct Inner {
    /// `None`: closed.
    rows: Option<Arc<RowStore>>,
    /// `None`: in memory.
    path: RwLock<Option<PathBuf>>,
    /// A read or a write has found damage.
    damaged: AtomicBool,
    /// Size of the file when it was opened, in bytes; 0: it was new.
    opened_bytes: u64,
    facet_versions: FacetVersions,
}

impl Inner {
    fn noted<T>(&self, done: Result<T, ProjectionsError>) -> Result<T, ProjectionsError> {
        if matches!(done, Err(ProjectionsError::Damaged { .. })) {
            self.damaged.store(true, Ordering::Release);
        }
        done
    }
}

impl Projections {
    /// Opens the file, or creates an empty one. `cache_bytes` bounds the memory for its pages and
    /// blocks.
    ///
    /// # Errors
    /// [`ProjectionsError::OtherVersion`] and [`ProjectionsError::Damaged`] require a
    /// [`wipe`](Self::wipe) and a rebuild; [`ProjectionsError::Locked`] when the file is in use;
    /// [`ProjectionsError::NoSpace`]; [`ProjectionsError::Storage`].
    pub fn open(path: &Path, cache_bytes: usize) -> Result<Self, ProjectionsError> {
        Self::open_checking(path, cache_bytes, CHECKED_OPEN_BYTES_MAX)
    }

    /// Opens the file, checking every page if it is at most this large.
    pub(super) fn open_checking(
        path: &Path,
        cache_bytes: usize,
        checked_bytes_max: u64,
    ) -> Result<Self, ProjectionsError> {
        let bytes = match std::fs::metadata(path) {
            Ok(file) => file.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error.into()),
        };
        catch_redb_panics(|| {
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

    /// Opens the file without writing to it: applied deltas stay in memory and are lost with this
    /// handle. For folders that must not change.
    ///
    /// # Errors
    /// As [`Projections::open`]; [`ProjectionsError::Storage`] when the file is missing.
    pub fn open_unchanged(path: &Path, cache_bytes: usize) -> Result<Self, ProjectionsError> {
        let file = std::fs::File::open(path)?;
        catch_redb_panics(|| {
            let overlay = Overlay::new(FileBackend::new(file)?)?;
            let db = Database::builder()
                .set_cache_size(cache_bytes / BLOCKS_SHARE)
                .create_with_backend(overlay)?;
            Self::prepare(db, Some(path.to_owned()), cache_bytes)
        })
    }

    /// Creates an empty store in memory.
    ///
    /// # Errors
    /// [`ProjectionsError::Storage`] when there is no memory for it.
    pub fn in_memory() -> Result<Self, ProjectionsError> {
        let db = Database::builder().create_with_backend(InMemoryBackend::new())?;
        Self::prepare(db, None, MEMORY_CACHE_BYTES)
    }

    /// Creates closed projections, which answer everything with [`ProjectionsError::Closed`]. They
    /// replace projections whose file must be released.
    #[must_use]
    pub fn closed() -> Self {
        Self {
            inner: Arc::new(Inner {
                rows: None,
                path: RwLock::default(),
                damaged: AtomicBool::new(false),
                opened_bytes: 0,
                facet_versions: FacetVersions::new(),
            }),
        }
    }

    fn rows(&self) -> Result<&Arc<RowStore>, ProjectionsError> {
        self.inner.rows.as_ref().ok_or(ProjectionsError::Closed)
    }

    pub(super) fn facet_versions(&self) -> &FacetVersions {
        &self.inner.facet_versions
    }

    /// Deletes the file, if it exists. No [`Projections`] may have it open.
    ///
    /// # Errors
    /// [`ProjectionsError::Storage`] when it cannot be deleted.
    pub fn wipe(path: &Path) -> Result<(), ProjectionsError> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn prepare(
        db: Database,
        path: Option<PathBuf>,
        cache_bytes: usize,
    ) -> Result<Self, ProjectionsError> {
        let mut opened_bytes = 0;
        if db.begin_read()?.list_tables()?.next().is_none() {
            meta::initialise(&db)?;
        } else if let Some(path) = &path {
            opened_bytes = std::fs::metadata(path)?.len();
        }
        let rows = RowStore::new(db, cache_bytes / BLOCKS_SHARE)?;
        let reader = Reader(Arc::new(rows.snapshot()));
        let found = reader.version()?;
        if found != VIEWS_VERSION {
            return Err(ProjectionsError::OtherVersion {
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
                facet_versions: FacetVersions::new(),
            }),
        })
    }

    /// Returns the log offset up to which the projections are complete; 0: they are empty.
    ///
    /// # Errors
    /// As for all reads: [`ProjectionsError::Damaged`], [`ProjectionsError::Closed`],
    /// [`ProjectionsError::Storage`].
    pub fn reached(&self) -> Result<u64, ProjectionsError> {
        self.read(Reader::reached)
    }

    /// Returns the log offset that is on disk: the projections would be at this offset after a
    /// crash.
    #[must_use]
    pub fn durable(&self) -> u64 {
        let rows = self.inner.rows.as_ref();
        rows.map_or(0, |rows| rows.durable.load(Ordering::Acquire))
    }

    /// Flushes everything that was applied to disk, and returns the offset that is durable. Reads
    /// and writes continue meanwhile.
    ///
    /// # Errors
    /// [`ProjectionsError::NoSpace`], [`ProjectionsError::Storage`]; after either, nothing more can
    /// be applied, and the store must be reopened.
    pub fn make_durable(&self) -> Result<u64, ProjectionsError> {
        self.inner.noted(catch_redb_panics(|| self.rows()?.flush()))
    }

    /// Returns true when the file is much larger than when it was opened, so that it may have many
    /// free pages.
    #[must_use]
    pub fn have_grown(&self) -> bool {
        let opened = self.inner.opened_bytes;
        self.file_bytes() > opened + (opened / 4).max(GROWN_BYTES_MIN)
    }

    /// Returns the free pages of a file to the system. The file must not be open. Without
    /// `however_long`, a file that is too large to compact quickly is left unchanged. With it, a
    /// file of any size is compacted, and its rows are also repacked.
    ///
    /// # Errors
    /// As [`Projections::open`]; the file stays valid.
    pub fn compact(path: &Path, however_long: bool) -> Result<(), ProjectionsError> {
        if !however_long && std::fs::metadata(path)?.len() > COMPACT_BYTES_MAX {
            return Ok(());
        }
        catch_redb_panics(|| {
            let mut db = Database::builder()
                .set_cache_size(COMPACT_CACHE_BYTES)
                .create_with_backend(FileBackend::new(disk::file_options().open(path)?)?)?;
            if however_long {
                repack(&db)?;
            }
            match db.compact() {
                Ok(_) => Ok(()),
                Err(redb::CompactionError::Storage(error)) => Err(error.into()),
                // Nothing else uses this handle of the database, so other errors are unexpected.
                Err(error) => Err(ProjectionsError::Storage {
                    source: Box::new(error),
                }),
            }
        })
    }

    /// Returns true when damage was found, so that the projections must be rebuilt.
    #[must_use]
    pub fn are_damaged(&self) -> bool {
        self.inner.damaged.load(Ordering::Acquire)
    }

    /// Returns the size of the file in bytes; 0 in memory.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        let path = self.path();
        path.and_then(|path| std::fs::metadata(path).ok())
            .map_or(0, |file| file.len())
    }

    /// Returns the path of the file; `None` in memory.
    #[must_use]
    pub fn path(&self) -> Option<PathBuf> {
        let path = self.inner.path.read();
        path.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records that the file was renamed.
    pub fn moved_to(&self, path: &Path) {
        let own = self.inner.path.write();
        *own.unwrap_or_else(PoisonError::into_inner) = Some(path.to_owned());
    }

    /// Reads from one state of the projections.
    pub(super) fn read<T>(
        &self,
        work: impl FnOnce(&Reader) -> Result<T, ProjectionsError>,
    ) -> Result<T, ProjectionsError> {
        let done = catch_redb_panics(|| work(&Reader(Arc::new(self.rows()?.snapshot()))));
        self.inner.noted(done)
    }

    /// Writes all or nothing. Readers see the write at once; it reaches the disk later.
    pub(super) fn write(
        &self,
        work: impl FnOnce(&mut Writer) -> Result<(), ProjectionsError>,
    ) -> Result<(), ProjectionsError> {
        let done = catch_redb_panics(|| {
            let rows = self.rows()?;
            rows.write(work)?;
            if rows.recent_bytes() > RECENT_BYTES_MAX {
                rows.flush()?;
            }
            Ok(())
        });
        self.inner.noted(done)
    }
}
#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use bytes::Bytes;
    use redb::StorageBackend;

    use super::*;
    use crate::table::CONVERSATIONS;

    const SOUND: u64 = 0;
    const REFUSES: u64 = 1;
    const PANICS: u64 = 2;

    /// A file that can be made to fail.
    #[derive(Debug)]
    struct FailingFile {
        file: InMemoryBackend,
        how: Arc<AtomicU64>,
    }

    impl FailingFile {
        fn check(&self) -> io::Result<()> {
            match self.how.load(Ordering::SeqCst) {
                REFUSES => Err(io::ErrorKind::StorageFull.into()),
                _ => Ok(()),
            }
        }
    }

    impl StorageBackend for FailingFile {
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
            // The panic must not be in `write`: redb holds a lock there, and would panic again when
            // dropped.
            assert!(self.how.load(Ordering::SeqCst) != PANICS, "no sync");
            self.file.sync_data()
        }

        fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            self.check()?;
            self.file.write(offset, data)
        }
    }

    fn put(projections: &Projections, number: u8) -> Result<(), ProjectionsError> {
        projections.write(|writer| {
            let row = Bytes::from(vec![number; 100]);
            writer.table(CONVERSATIONS).put(row.slice(..1), row);
            Ok(())
        })
    }

    // Rows whose flush failed are not in the file, and no later log entry writes them again.
    // Readers must still see them. Nothing may be applied until the projections are reopened and
    // have caught up.
    #[test]
    fn rows_of_a_failed_flush_stay_readable() {
        for how in [REFUSES, PANICS] {
            let fails = Arc::new(AtomicU64::new(SOUND));
            let file = FailingFile {
                file: InMemoryBackend::new(),
                how: Arc::clone(&fails),
            };
            let db = Database::builder().create_with_backend(file).unwrap();
            let projections = Projections::prepare(db, None, 1 << 20).unwrap();
            put(&projections, 1).unwrap();
            projections.make_durable().unwrap();
            put(&projections, 2).unwrap();
            fails.store(how, Ordering::SeqCst);
            assert!(projections.make_durable().is_err());
            assert!(matches!(
                put(&projections, 3),
                Err(ProjectionsError::Closed)
            ));
            fails.store(SOUND, Ordering::SeqCst);
            assert!(matches!(
                projections.make_durable(),
                Err(ProjectionsError::Closed)
            ));
            let seen = projections.read(|reader| {
                let rows = reader.table(CONVERSATIONS).iter();
                let keys = rows.map(|row| Ok::<_, ProjectionsError>(row?.0[0]));
                keys.collect::<Result<Vec<_>, _>>()
            });
            assert_eq!(seen.unwrap(), [1, 2], "failure {how}");
        }
    }

    // A store whose projections had one changed byte was opened. Dropping the projections panicked
    // outside the code that catches panics, so opening the store failed with a panic.
    #[test]
    fn panic_in_drop_is_caught() {
        let fails = Arc::new(AtomicU64::new(SOUND));
        let file = FailingFile {
            file: InMemoryBackend::new(),
            how: Arc::clone(&fails),
        };
        let db = Database::builder().create_with_backend(file).unwrap();
        let projections = Projections::prepare(db, None, 1 << 20).unwrap();
        put(&projections, 1).unwrap();
        projections.make_durable().unwrap();
        fails.store(PANICS, Ordering::SeqCst);
        drop(projections);
    }

    // Blocks are rewritten as they fill, and the file kept the space of the old ones forever: 67 MB
    // instead of 20.
    #[test]
    fn compaction_returns_free_space() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("views.redb");
        let projections = Projections::open(&path, 1 << 20).unwrap();
        assert!(projections.have_grown());
        for round in 0..40_u16 {
            let written = projections.write(|writer| {
                for number in 0..200_u16 {
                    let key = blake3::hash(&[number.to_le_bytes(), round.to_le_bytes()].concat());
                    let row = Bytes::copy_from_slice(key.as_bytes());
                    writer.table(CONVERSATIONS).put(row.clone(), row);
                }
                Ok(())
            });
            written.unwrap();
            projections.make_durable().unwrap();
        }
        let rows = |projections: &Projections| {
            let rows = projections.read(|reader| reader.table(CONVERSATIONS).iter().collect());
            let rows: Vec<(Bytes, Bytes)> = rows.unwrap();
            rows
        };
        let (before, bytes) = (rows(&projections), projections.file_bytes());
        assert!(matches!(
            Projections::compact(&path, false),
            Err(ProjectionsError::Locked)
        ));
        drop(projections);
        Projections::compact(&path, false).unwrap();
        let projections = Projections::open(&path, 1 << 20).unwrap();
        assert!(rows(&projections) == before && before.len() == 8_000);
        let left = projections.file_bytes();
        assert!(left * 2 < bytes, "{left} of {bytes}");
        assert!(!projections.have_grown());
        // With `however_long`, blocks whose rows arrived in random order are also repacked.
        drop(projections);
        Projections::compact(&path, true).unwrap();
        let projections = Projections::open(&path, 1 << 20).unwrap();
        assert!(rows(&projections) == before);
        let packed = projections.file_bytes();
        assert!(packed * 6 < left * 5, "{packed} of {left}");
    }
}
