//! The vectors of the index's passages: a column of vectors for each segment of the index.
//!
//! Columns are built after the segments, and never delay them: [`VectorIndex::missing`] lists the
//! passages without vectors, and [`VectorIndex::add`] adds vectors for them. Merges, rebuilds and
//! copies of a text need no new embedding, because vectors are found by their text's hash in the
//! columns of other segments. A column never changes: a new one replaces it.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
};

use bytes::Bytes;
use tantivy::{
    DocId, SegmentReader,
    directory::{Directory, MmapDirectory},
    index::SegmentId,
};
use treering_base::disk;
use treering_domain::Position;
use treering_meaning::{
    ColumnError, PassageKey, PassageVectors, VectorColumn, VectorColumnBuilder,
};

use super::{
    columns::Columns,
    error::IndexError,
    index::{PublishedState, SearchIndex},
    refusal::{io_error, rebuild},
};

/// File extension of columns.
const EXTENSION: &str = "vectors";
/// Length of the name of a model's folder, in characters.
const FOLDER_CHARS: usize = 16;

/// The columns of one model's vectors.
///
/// All methods take `&self`. Searching never waits for writing.
#[derive(Debug)]
pub struct VectorIndex {
    /// `None`: in memory.
    dir: Option<PathBuf>,
    columns: RwLock<OpenVectors>,
    /// Held while columns are replaced; the number of the last file.
    writing: Mutex<u64>,
}

/// The columns by their segments.
pub(super) type OpenVectors = HashMap<SegmentId, Arc<VectorColumn>>;

/// A passage without vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingPassage {
    /// Its key. Equal passages are listed once.
    pub key: PassageKey,
    /// An event that has it.
    pub position: Position,
}

/// How much of the index has vectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VectorCoverage {
    /// Visible passages over all namespaces.
    pub passages: u64,
    /// Those of them that were embedded.
    pub embedded: u64,
    /// Stored vectors.
    pub vectors: u64,
    /// The size of the columns, in bytes.
    pub bytes: u64,
}

impl VectorIndex {
    /// Opens the vectors of a model below a folder, and creates the folder if it is missing.
    /// Damaged columns are removed, to be built again.
    ///
    /// # Errors
    /// [`IndexError::Io`].
    pub fn open(dir: &Path, model: &str) -> Result<Self, IndexError> {
        let dir = folder_of(dir, model);
        let fail = |source| io_error("opened", &dir, source);
        fs::create_dir_all(&dir).map_err(fail)?;
        let mut newest: HashMap<SegmentId, (u64, Arc<VectorColumn>)> = HashMap::new();
        let mut last = 0;
        for entry in fs::read_dir(&dir).map_err(fail)? {
            let path = entry.map_err(fail)?.path();
            let Some((segment, generation)) = parse_name(&path) else {
                remove(&path);
                continue;
            };
            last = last.max(generation);
            let is_newer = newest
                .get(&segment)
                .is_none_or(|(known, _)| *known < generation);
            match open_column(&path) {
                Ok(column) if is_newer => {
                    let replaced = newest.insert(segment, (generation, Arc::new(column)));
                    if let Some((older, _)) = replaced {
                        remove(&dir.join(file_name(segment, older)));
                    }
                }
                Ok(_) => remove(&path),
                Err(error) => {
                    tracing::warn!(file = %path.display(), error, "a file of vectors is unusable; \
                                                                   its vectors are computed again");
                    remove(&path);
                }
            }
        }
        let columns = newest.into_iter();
        Ok(Self {
            dir: Some(dir),
            columns: RwLock::new(
                columns
                    .map(|(segment, (_, column))| (segment, column))
                    .collect(),
            ),
            writing: Mutex::new(last),
        })
    }

    /// Opens the vectors of a model below a folder without changing the folder. Added vectors stay
    /// in memory. Missing or damaged columns are left out.
    #[must_use]
    pub fn open_unchanged(dir: &Path, model: &str) -> Self {
        let this = Self::in_memory();
        let files = fs::read_dir(folder_of(dir, model)).into_iter().flatten();
        let paths = files.filter_map(|entry| Some(entry.ok()?.path()));
        let mut named: Vec<_> = paths
            .filter_map(|path| Some((parse_name(&path)?, path)))
            .collect();
        named.sort_by_key(|((_, generation), _)| *generation);
        let sound = named
            .into_iter()
            .filter_map(|((segment, _), path)| Some((segment, Arc::new(open_column(&path).ok()?))));
        let columns = RwLock::new(sound.collect());
        Self { columns, ..this }
    }

    /// Creates an empty index of vectors in memory.
    #[must_use]
    pub fn in_memory() -> Self {
        Self {
            dir: None,
            columns: RwLock::default(),
            writing: Mutex::new(0),
        }
    }

    /// Deletes the vectors of all models below a folder.
    ///
    /// # Errors
    /// [`IndexError::Io`].
    pub fn wipe(dir: &Path) -> Result<(), IndexError> {
        SearchIndex::wipe(dir)
    }

    /// Returns the number of dimensions of the stored vectors; `None` without vectors.
    #[must_use]
    pub fn dimensions(&self) -> Option<usize> {
        dimensions_of(&self.open_columns())
    }

    /// Removes the vectors of models other than this one and `also` from a folder.
    ///
    /// # Errors
    /// [`IndexError::Io`].
    pub fn remove_other_models(&self, also: Option<&Self>) -> Result<(), IndexError> {
        let Some((dir, all)) = self
            .dir
            .as_deref()
            .and_then(|dir| Some((dir, dir.parent()?)))
        else {
            return Ok(());
        };
        let fail = |source| io_error("cleaned", all, source);
        for entry in fs::read_dir(all).map_err(fail)? {
            let path = entry.map_err(fail)?.path();
            let is_kept = path == dir || also.is_some_and(|also| also.dir.as_ref() == Some(&path));
            if !is_kept && path.is_dir() {
                fs::remove_dir_all(&path).map_err(fail)?;
            }
        }
        Ok(())
    }

    /// Follows the index: gives its new segments the known vectors, removes columns of segments
    /// that it no longer has, and returns up to `max` passages without vectors.
    ///
    /// # Errors
    /// [`IndexError`].
    pub fn missing(
        &self,
        index: &SearchIndex,
        max: usize,
    ) -> Result<Vec<MissingPassage>, IndexError> {
        let (published, mut last) = (index.published(), self.writing());
        let before = self.open_columns();
        self.replace_columns(&published, &mut last, &before, &HashMap::new())?;
        self.forget_others(&published)?;
        let columns = self.open_columns();
        let mut missing = Vec::new();
        let mut named = HashSet::new();
        for (at, reader) in (0..).zip(published.searcher.segment_readers()) {
            let column = columns.get(&reader.segment_id());
            let fields = published.columns.of_segment(at)?;
            for doc in alive(reader) {
                if missing.len() >= max {
                    return Ok(missing);
                }
                if column.is_some_and(|column| column.has(doc)) {
                    continue;
                }
                let key = key_of(fields, doc)?;
                if named.insert(key) {
                    let position = fields.place(doc)?.0;
                    missing.push(MissingPassage { key, position });
                }
            }
        }
        Ok(missing)
    }

    /// Adds the vectors of passages. Those of passages that were erased meanwhile are dropped.
    ///
    /// # Errors
    /// [`IndexError`]; some of the vectors may have been added.
    pub fn add(
        &self,
        index: &SearchIndex,
        vectors: &HashMap<PassageKey, PassageVectors>,
    ) -> Result<(), IndexError> {
        let (published, mut last) = (index.published(), self.writing());
        let before = self.open_columns();
        check_dimensions(&before, vectors).map_err(of_column)?;
        self.replace_columns(&published, &mut last, &before, vectors)
    }

    /// Returns how much of an index has vectors.
    #[must_use]
    pub fn coverage(&self, index: &SearchIndex) -> VectorCoverage {
        let (published, columns) = (index.published(), self.open_columns());
        let mut coverage = VectorCoverage::default();
        for reader in published.searcher.segment_readers() {
            coverage.passages += u64::from(reader.num_docs());
            let Some(column) = columns.get(&reader.segment_id()) else {
                continue;
            };
            coverage.embedded += alive(reader).filter(|doc| column.has(*doc)).count() as u64;
            coverage.vectors += column.vector_count() as u64;
            coverage.bytes += column.size_bytes() as u64;
        }
        coverage
    }

    pub(super) fn open_columns(&self) -> OpenVectors {
        let columns = self.columns.read().unwrap_or_else(PoisonError::into_inner);
        columns.clone()
    }

    fn writing(&self) -> MutexGuard<'_, u64> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Builds columns for the segments that have none or that gain vectors, from `vectors` and all
    /// known columns.
    fn replace_columns(
        &self,
        published: &PublishedState,
        last: &mut u64,
        before: &OpenVectors,
        vectors: &HashMap<PassageKey, PassageVectors>,
    ) -> Result<(), IndexError> {
        for (at, reader) in (0..).zip(published.searcher.segment_readers()) {
            let segment = reader.segment_id();
            let own = before.get(&segment);
            if own.is_some() && vectors.is_empty() {
                continue;
            }
            let fields = published.columns.of_segment(at)?;
            let keys = alive(reader).map(|doc| Ok((doc, key_of(fields, doc)?)));
            let keys = keys.collect::<Result<Vec<_>, IndexError>>()?;
            let gains = |(doc, key): &(DocId, PassageKey)| {
                vectors.contains_key(key) && !own.is_some_and(|column| column.has(*doc))
            };
            if own.is_some() && !keys.iter().any(gains) {
                continue;
            }
            let others = before.iter().filter(|(id, _)| **id != segment);
            let known: Vec<&VectorColumn> = own
                .into_iter()
                .chain(others.map(|(_, column)| column))
                .map(Arc::as_ref)
                .collect();
            let bytes = column_of(reader.max_doc(), &keys, vectors, &known).map_err(of_column)?;
            let column = self.store(segment, last, bytes)?;
            let mut columns = self.columns.write().unwrap_or_else(PoisonError::into_inner);
            columns.insert(segment, Arc::new(column));
        }
        Ok(())
    }

    fn store(
        &self,
        segment: SegmentId,
        last: &mut u64,
        bytes: Vec<u8>,
    ) -> Result<VectorColumn, IndexError> {
        let Some(dir) = &self.dir else {
            return VectorColumn::open(bytes.into()).map_err(of_column);
        };
        let next = *last + 1;
        let path = dir.join(file_name(segment, next));
        let unfinished = path.with_extension("unfinished");
        // Not synced: a torn file fails its checksum, and is built again.
        fs::write(&unfinished, bytes)
            .and_then(|()| fs::rename(&unfinished, &path))
            .map_err(|source| io_error("written", dir, source))?;
        *last = next;
        let column = open_column(&path).map_err(rebuild)?;
        for generation in files_of(dir, segment, next) {
            remove(&dir.join(file_name(segment, generation)));
        }
        Ok(column)
    }

    /// Removes the columns of segments that the index no longer has.
    fn forget_others(&self, published: &PublishedState) -> Result<(), IndexError> {
        let readers = published.searcher.segment_readers();
        let current: HashSet<SegmentId> = readers.iter().map(SegmentReader::segment_id).collect();
        let mut columns = self.columns.write().unwrap_or_else(PoisonError::into_inner);
        columns.retain(|segment, _| current.contains(segment));
        drop(columns);
        let Some(dir) = &self.dir else {
            return Ok(());
        };
        let fail = |source| io_error("cleaned", dir, source);
        for entry in fs::read_dir(dir).map_err(fail)? {
            let path = entry.map_err(fail)?.path();
            if parse_name(&path).is_none_or(|(segment, _)| !current.contains(&segment)) {
                // An erase must not end while these files still exist.
                disk::remove(&path).map_err(fail)?;
            }
        }
        Ok(())
    }
}

fn dimensions_of(columns: &OpenVectors) -> Option<usize> {
    let mut dimensions = columns.values().map(|column| column.dimensions());
    dimensions.find(|dimensions| *dimensions > 0)
}

/// Checks that vectors have the dimensions of the stored ones.
fn check_dimensions(
    before: &OpenVectors,
    vectors: &HashMap<PassageKey, PassageVectors>,
) -> Result<(), ColumnError> {
    let rows = vectors.values().flat_map(|vectors| &vectors.0);
    let added = rows.map(|(_, vector)| vector.dimensions());
    let mut all = dimensions_of(before).into_iter().chain(added);
    let Some(expected) = all.next() else {
        return Ok(());
    };
    match all.find(|found| *found != expected) {
        None => Ok(()),
        Some(found) => Err(ColumnError::Dimensions { expected, found }),
    }
}

/// Returns the bytes of a segment's column.
fn column_of(
    docs: DocId,
    keys: &[(DocId, PassageKey)],
    vectors: &HashMap<PassageKey, PassageVectors>,
    known: &[&VectorColumn],
) -> Result<Vec<u8>, ColumnError> {
    let mut builder = VectorColumnBuilder::default();
    let mut keys = keys.iter().peekable();
    for doc in 0..docs {
        let Some((_, key)) = keys.next_if(|(at, _)| *at == doc) else {
            // An erased passage.
            builder.skip();
            continue;
        };
        if builder.add_known(*key) {
            continue;
        }
        if let Some(vectors) = vectors.get(key) {
            builder.add(*key, vectors)?;
            continue;
        }
        let mut is_added = false;
        for column in known {
            is_added = builder.add_from(column, *key)?;
            if is_added {
                break;
            }
        }
        if !is_added {
            builder.skip();
        }
    }
    Ok(builder.finish())
}

fn folder_of(dir: &Path, model: &str) -> PathBuf {
    let hash = blake3::hash(model.as_bytes()).to_hex();
    dir.join(&hash[..FOLDER_CHARS])
}

fn alive(reader: &SegmentReader) -> impl Iterator<Item = DocId> + '_ {
    let bits = reader.alive_bitset();
    (0..reader.max_doc()).filter(move |doc| bits.is_none_or(|bits| bits.is_alive(*doc)))
}

fn key_of(fields: &Columns, doc: DocId) -> Result<PassageKey, IndexError> {
    let (_, byte_start) = fields.place(doc)?;
    Ok(PassageKey {
        text_hash: fields.text_hash(doc)?,
        byte_start: u32::try_from(byte_start).map_err(|_| rebuild("a text is too long"))?,
    })
}

fn of_column(error: ColumnError) -> IndexError {
    IndexError::Vectors(error)
}

fn open_column(path: &Path) -> Result<VectorColumn, String> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err("it has no folder".to_owned());
    };
    let folder = MmapDirectory::open(dir).map_err(|error| error.to_string())?;
    let file = folder.open_read(Path::new(name));
    let bytes = file.map_err(|error| error.to_string())?.read_bytes();
    let bytes = Bytes::from_owner(bytes.map_err(|error| error.to_string())?);
    VectorColumn::open(bytes).map_err(|error| error.to_string())
}

fn file_name(segment: SegmentId, generation: u64) -> String {
    format!("{}.{generation}.{EXTENSION}", segment.uuid_string())
}

fn parse_name(path: &Path) -> Option<(SegmentId, u64)> {
    let name = path.file_name()?.to_str()?;
    let (rest, EXTENSION) = name.rsplit_once('.')? else {
        return None;
    };
    let (segment, generation) = rest.split_once('.')?;
    let segment = SegmentId::from_uuid_string(segment).ok()?;
    Some((segment, generation.parse().ok()?))
}

/// Returns the older generations of a segment's files.
fn files_of(dir: &Path, segment: SegmentId, before: u64) -> Vec<u64> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let named = entries.filter_map(|entry| parse_name(&entry.path()));
    named
        .filter(|(of, generation)| *of == segment && *generation < before)
        .map(|(_, generation)| generation)
        .collect()
}

/// Removes a file that is not needed. One that remains is removed at the next opening.
fn remove(path: &Path) {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(file = %path.display(), %error, "old vectors were not removed");
        }
        _ => {}
    }
}
