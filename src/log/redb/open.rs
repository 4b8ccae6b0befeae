//! Opening a log: compares the folder with its manifest.

use std::{
    io,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use std::sync::{Mutex, RwLock};

use tokio::sync::watch;

use super::{
    Head, LOG_FOLDER, RedbLog, RedbLogOptions,
    active::{self, ActiveSegment, create_segment},
    folder::{DiskFolder, Folder},
    lock::{self, FolderLock},
    manifest::{self, MANIFEST_NEW, Manifest, ManifestLookup},
    packed,
    recent_bodies::RecentBodies,
    repair,
    segment::{self, End, Reader},
};
use crate::{
    frame,
    port::{LockHolder, LogError, LogIdentity},
};
use treering_base::disk;

/// The purpose for which a log is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// To append; the log is created if it is missing.
    Create,
    /// To append to an existing log.
    Append,
    /// To read: nothing in the folder changes, and it may be read-only.
    Read,
}

impl OpenMode {
    /// Returns true when nothing may be written.
    #[must_use]
    pub fn is_read_only(self) -> bool {
        self == Self::Read
    }
}

/// Entries of a data folder that are derived from a log, and so prove that there was a log.
const MADE_FROM_A_LOG: [&str; 2] = ["views.redb", "index"];

pub(super) fn open(
    data: &Path,
    options: RedbLogOptions,
    mode: OpenMode,
) -> Result<RedbLog<DiskFolder>, LogError> {
    let path = data.join(LOG_FOLDER);
    if !path.join(manifest::MANIFEST).exists() {
        refuse_to_begin(data, &path, mode)?;
    }
    let lock = if mode.is_read_only() {
        FolderLock::share(data)?
    } else {
        disk::make_folder(&path).map_err(|error| lock::refused(&path, error))?;
        Some(FolderLock::acquire(data)?)
    };
    let folder = DiskFolder::open(&path).map_err(|error| lock::refused(&path, error))?;
    let log = RedbLog::open_with(folder, options, mode)
        .map_err(|error| refusal(error, &path, || lock::holder_of(data)))?;
    *super::lock_of(&log.lock) = lock;
    Ok(log)
}

pub(super) fn open_remains(
    data: &Path,
    options: RedbLogOptions,
) -> Result<RedbLog<DiskFolder>, LogError> {
    match open(data, options, OpenMode::Read) {
        Err(LogError::Regressed { .. } | LogError::Damaged { .. }) => {}
        opened => return opened,
    }
    let lock = FolderLock::share(data)?;
    let log = remains_of(&data.join(LOG_FOLDER), options)?;
    *super::lock_of(&log.lock) = lock;
    Ok(log)
}

/// Opens the remaining parts of a log. The caller holds the folder's lock.
pub(super) fn remains_of(
    path: &Path,
    options: RedbLogOptions,
) -> Result<RedbLog<DiskFolder>, LogError> {
    let folder = DiskFolder::open(path).map_err(|error| lock::refused(path, error))?;
    let (manifest, head) = repair::remains(&folder)?;
    let active = ActiveSegment::closed(head + 1, String::new());
    let mode = OpenMode::Read;
    Ok(RedbLog::assemble(
        folder, options, mode, manifest, active, head,
    ))
}

/// Converts the I/O errors that mean that the folder is read-only or in use.
fn refusal(error: LogError, path: &Path, holder: impl Fn() -> LockHolder) -> LogError {
    let path = path.to_owned();
    match error {
        LogError::Io { source, .. } if is_refusal(&source) => LogError::ReadOnly { path },
        LogError::Io { source, .. } if source.kind() == io::ErrorKind::WouldBlock => {
            LogError::Locked {
                holder: holder(),
                path,
            }
        }
        error => error,
    }
}

fn is_refusal(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
    )
}

/// Checks that a folder without a manifest never had a log, so that a new one may be created.
fn refuse_to_begin(data: &Path, path: &Path, mode: OpenMode) -> Result<(), LogError> {
    for name in MADE_FROM_A_LOG {
        if data.join(name).exists() {
            return Err(LogError::Regressed {
                what: format!(
                    "{} was derived from a log, but {} is missing",
                    data.join(name).display(),
                    path.join(manifest::MANIFEST).display()
                ),
            });
        }
    }
    let none = || LogError::NoStore {
        path: data.to_owned(),
    };
    match mode {
        OpenMode::Create => Ok(()),
        // Files of an interrupted creation are no store: the next creation removes them.
        OpenMode::Append | OpenMode::Read if !path.is_dir() => Err(none()),
        OpenMode::Append | OpenMode::Read => {
            let folder = DiskFolder::open(path).map_err(|error| lock::refused(path, error))?;
            refuse_used_segments(&folder, &names(&folder)?)?;
            Err(none())
        }
    }
}

pub(super) fn names<F: Folder>(folder: &F) -> Result<Vec<String>, LogError> {
    folder
        .names()
        .map_err(|error| LogError::from_io("listing the segments", error))
}

/// Refuses a folder without a manifest that has segments with records.
fn refuse_used_segments<F: Folder>(folder: &F, names: &[String]) -> Result<(), LogError> {
    let used = names
        .iter()
        .find(|name| active::parse_name(name).is_some() && looks_used(folder, name));
    match used {
        None => Ok(()),
        Some(name) => Err(LogError::Regressed {
            what: format!("the manifest is missing, but {name} has events"),
        }),
    }
}

/// Returns true when a segment's file contains a frame or may contain one. A file that was being
/// created during a power loss may be unreadable although it has none.
fn looks_used<F: Folder>(folder: &F, file: &str) -> bool {
    /// Maximum size of an empty segment's file, in bytes.
    const EMPTY_BYTES_MAX: u64 = 8 << 20;
    let first_offset = active::parse_name(file).map_or(1, |(first, _)| first);
    match look(folder, file, first_offset) {
        Ok(seen) => seen.used,
        Err(LogError::Damaged { .. }) => match folder.read(file, EMPTY_BYTES_MAX) {
            Ok(bytes) => frame::contains_frame(&bytes),
            Err(_) => true,
        },
        Err(_) => true,
    }
}

/// A summary of a segment's file.
pub(super) struct SegmentSummary {
    pub(crate) identity: LogIdentity,
    pub(crate) first: u64,
    pub(crate) end: End,
    /// It contains a frame or a block.
    pub(crate) used: bool,
    /// It stores blocks.
    pub(crate) is_packed: bool,
}

/// Page cache of a segment while it is inspected, in bytes.
const LOOK_CACHE_BYTES: usize = 1 << 20;

/// Inspects a segment's file without changing it.
pub(super) fn look<F: Folder>(
    folder: &F,
    file: &str,
    first: u64,
) -> Result<SegmentSummary, LogError> {
    let open = segment::open_unchanged(folder, file, first, LOOK_CACHE_BYTES)?;
    let seen = packed::of(&open, first)
        .and_then(|dense| summary(Reader::new(&open, dense.as_ref()), first));
    segment::close(open, first).and(seen)
}

/// Like [`look`], for a sealed segment: opens it as reads do, because they can serve the undamaged
/// parts of a file that redb cannot repair.
pub(super) fn look_at_sealed<F: Folder>(
    folder: &F,
    file: &str,
    first: u64,
) -> Result<SegmentSummary, LogError> {
    let open = segment::open_sealed(folder, file, first, LOOK_CACHE_BYTES)?;
    summary(open.reader(), first)
}

fn summary(reader: Reader<'_>, first: u64) -> Result<SegmentSummary, LogError> {
    let (identity, named) = segment::read_identity(&reader, first)?;
    let end = segment::end(reader, first)?;
    Ok(SegmentSummary {
        identity,
        first: named,
        // The path to the first frame may be corrupt although other frames can be read.
        used: end.offset >= first || segment::next_frame(reader, 0)?.is_some(),
        end,
        is_packed: reader.packed.is_some(),
    })
}

impl<F: Folder> RedbLog<F> {
    /// Opens a log without locking its folder: only the locks of its segments exclude other
    /// processes.
    ///
    /// # Errors
    /// As [`RedbLog::open`].
    pub fn open_with(folder: F, options: RedbLogOptions, mode: OpenMode) -> Result<Self, LogError> {
        match manifest::read(&folder)? {
            ManifestLookup::Manifest(manifest) => {
                Self::open_existing(folder, options, mode, manifest)
            }
            ManifestLookup::Nothing => {
                refuse_used_segments(&folder, &names(&folder)?)?;
                if mode.is_read_only() {
                    return Err(LogError::NoStore {
                        path: super::LOG_FOLDER.into(),
                    });
                }
                Self::begin(folder, options, mode)
            }
        }
    }

    /// Creates a new log.
    fn begin(folder: F, options: RedbLogOptions, mode: OpenMode) -> Result<Self, LogError> {
        clear_away(&folder, None)?;
        let mut manifest = Manifest::new(String::new());
        let active = create_segment(&folder, manifest.identity(), 1, 0, options.cache_bytes)?;
        if let Some(first) = manifest.segments.first_mut() {
            first.file = Some(active.file.clone());
        }
        match manifest::replace(&folder, &manifest)? {
            manifest::ReplaceOutcome::Lasting => {}
            manifest::ReplaceOutcome::InPlace => return Err(super::seal::folder_not_synced()),
        }
        Ok(Self::assemble(folder, options, mode, manifest, active, 0))
    }

    fn open_existing(
        folder: F,
        options: RedbLogOptions,
        mode: OpenMode,
        manifest: Manifest,
    ) -> Result<Self, LogError> {
        check_files(&folder, &manifest)?;
        let (first, file) = match manifest.last() {
            Some(last) => (last.first, last.file.clone().unwrap_or_default()),
            None => (1, String::new()),
        };
        let mut active = ActiveSegment::closed(first, file);
        // Opened for reading, whatever the mode: its files stay unchanged until the log has been
        // compared with everything that it must contain. See `open_to_write`.
        let end = active.open_to_read(&folder, options.cache_bytes)?;
        if let Some(open) = &active.open {
            segment::check_identity(&open.database, manifest.store, first)?;
        }
        check_reached(&manifest, end)?;
        Ok(Self::assemble(
            folder, options, mode, manifest, active, end.offset,
        ))
    }

    /// Reopens the last segment for appending, if it was opened for reading, and removes what an
    /// earlier process left behind.
    pub(super) fn open_to_write(&self) -> Result<(), LogError> {
        let read_only = |active: &ActiveSegment<F>| {
            let open = active.open.as_ref();
            open.is_some_and(|open| open.storage.is_none())
        };
        if self.is_poisoned() || !read_only(&self.read_active()) {
            return Ok(());
        }
        // A second caller must not remove files that the first one has created since.
        let _turn = super::lock_of(&self.opening);
        if !read_only(&self.read_active()) {
            return Ok(());
        }
        clear_away(&self.folder, Some(&self.manifest()))?;
        let mut active = self.write_active();
        if !read_only(&active) {
            return Ok(());
        }
        let cache_bytes = self.options.cache_bytes;
        match active.open_to_append(&self.folder, cache_bytes) {
            Ok(end) => {
                self.head.send_modify(|state| state.offset = end.offset);
                Ok(())
            }
            // The data may be intact although redb's own metadata is damaged.
            Err(LogError::Damaged { .. }) => {
                let end = active.open_to_read(&self.folder, cache_bytes)?;
                drop(active);
                tracing::warn!(
                    "the last segment's metadata is damaged, but not its data; it is rewritten"
                );
                self.poisoned.store(true, Ordering::Release);
                self.rotate_if_poisoned(end.offset)
            }
            Err(error) => Err(refusal(error, LOG_FOLDER.as_ref(), LockHolder::default)),
        }
    }

    fn assemble(
        folder: F,
        options: RedbLogOptions,
        mode: OpenMode,
        manifest: Manifest,
        active: ActiveSegment<F>,
        head: u64,
    ) -> Self {
        Self {
            folder,
            options,
            mode,
            owner: Mutex::default(),
            manifest: RwLock::new(manifest),
            active: RwLock::new(active),
            poisoned: AtomicBool::new(false),
            sealed: Mutex::default(),
            manifest_turn: Mutex::default(),
            opening: Mutex::default(),
            recent: RecentBodies::default(),
            stale: Mutex::default(),
            rewriting: Mutex::default(),
            unfit: Mutex::default(),
            head: watch::channel(Head {
                offset: head,
                closed: false,
            })
            .0,
            lock: Mutex::default(),
        }
    }
}

/// Checks that every file in the manifest exists, and that no other file shows that the manifest is
/// outdated.
fn check_files<F: Folder>(folder: &F, manifest: &Manifest) -> Result<(), LogError> {
    let names = names(folder)?;
    for entry in &manifest.segments {
        let Some(file) = &entry.file else { continue };
        if names.contains(file) {
            continue;
        }
        if entry.sealed.is_none() {
            return Err(LogError::Regressed {
                what: format!("the last segment, {file}, is missing"),
            });
        }
        // Reads from this segment fail; all other reads succeed.
        tracing::error!(file, "a segment of the log is missing");
    }
    for name in &names {
        let Some((first, _)) = active::parse_name(name) else {
            continue;
        };
        if manifest.names(name) {
            continue;
        }
        if is_unknown(folder, manifest, name, first) {
            return Err(LogError::Regressed {
                what: format!(
                    "the manifest does not list {name}, which has events of this store: the \
                     manifest is an older copy"
                ),
            });
        }
        if !leftover(folder, manifest, name) {
            tracing::warn!(
                name,
                "the log's folder has a file that is not part of the log"
            );
        }
    }
    Ok(())
}

/// Returns true for a file that has events of this store and should be in the manifest, but is not.
pub(super) fn is_unknown<F: Folder>(
    folder: &F,
    manifest: &Manifest,
    name: &str,
    first: u64,
) -> bool {
    let ours = || look(folder, name, first).is_ok_and(|s| s.identity.store == manifest.store);
    !leftover(folder, manifest, name) && ours() && looks_used(folder, name)
}

/// Returns true for a file that can be removed without loss, although the manifest does not name
/// it: a replaced copy, an unfinished copy, or a segment without records.
pub(super) fn leftover<F: Folder>(folder: &F, manifest: &Manifest, name: &str) -> bool {
    let Some((first, copy)) = active::parse_name(name) else {
        return name == MANIFEST_NEW;
    };
    let named = manifest.segments.iter().find(|entry| entry.first == first);
    let Some(entry) = named else {
        let Ok(seen) = look(folder, name, first) else {
            return false;
        };
        let ours = seen.identity.store == manifest.store;
        return ours && (!seen.used || is_covered(folder, manifest, first, &seen));
    };
    let Some(file) = &entry.file else {
        return false;
    };
    if active::parse_name(file).is_some_and(|(_, current)| copy < current) {
        return true;
    }
    // A later copy that the manifest does not name is unfinished, unless it has more records than
    // its original.
    let end = |file: &str| look(folder, file, first).map(|seen| seen.end.offset);
    match (end(name), end(file)) {
        (Ok(copied), Ok(original)) if copied <= original => true,
        // The target file of a join of several segments.
        (Ok(_), Ok(_)) => {
            look(folder, name, first).is_ok_and(|seen| is_covered(folder, manifest, first, &seen))
        }
        (Err(LogError::Damaged { .. }), Ok(_)) => true,
        _ => false,
    }
}

/// Returns true when all records of a file are in sealed segments that exist: it is the target of
/// an unfinished join, or one of the segments that a join replaced.
fn is_covered<F: Folder>(
    folder: &F,
    manifest: &Manifest,
    first: u64,
    seen: &SegmentSummary,
) -> bool {
    if seen.identity.store != manifest.store || seen.first != first {
        return false;
    }
    let mut next = seen.first;
    for entry in &manifest.segments {
        let Some(mark) = &entry.sealed else {
            return false;
        };
        if mark.offset < next {
            continue;
        }
        let Some(file) = &entry.file else {
            return false;
        };
        let whole = look(folder, file, entry.first).is_ok_and(|there| {
            there.identity.store == manifest.store
                && there.first == entry.first
                && there.end.offset == mark.offset
        });
        if !whole || entry.first > next {
            return false;
        }
        if seen.end.offset <= mark.offset {
            let found = seen.end.chain_hash.map(|hash| hash.to_string());
            return seen.end.offset < mark.offset
                || mark.chain_hash.is_none()
                || found == mark.chain_hash;
        }
        next = mark.offset + 1;
    }
    false
}

/// Removes the files that an earlier process left behind.
fn clear_away<F: Folder>(folder: &F, manifest: Option<&Manifest>) -> Result<(), LogError> {
    let mut leftovers = names(folder)?;
    leftovers.retain(|name| match manifest {
        // `refuse_used_segments` has checked that they have no records.
        None => name == MANIFEST_NEW || active::parse_name(name).is_some(),
        Some(manifest) => !manifest.names(name) && leftover(folder, manifest, name),
    });
    // If the folder was not synced, a power loss may restore an older manifest that names these
    // files.
    if let Some(manifest) = manifest
        && leftovers.iter().any(|name| name != MANIFEST_NEW)
    {
        match manifest::replace(folder, manifest) {
            Ok(manifest::ReplaceOutcome::Lasting) => leftovers.retain(|name| name != MANIFEST_NEW),
            _ => return Ok(()),
        }
    }
    for name in leftovers {
        if let Err(error) = folder.remove(&name) {
            tracing::warn!(name, %error, "a leftover file of the log could not be removed");
        }
    }
    Ok(())
}

/// Checks that the log reaches at least the position in the manifest.
fn check_reached(manifest: &Manifest, end: End) -> Result<(), LogError> {
    let reached = &manifest.reached;
    if end.offset < reached.offset {
        return Err(LogError::Regressed {
            what: format!(
                "the log ends at event {}, but once reached event {}: the last segment is an older \
                 copy",
                end.offset, reached.offset
            ),
        });
    }
    let differs = match (&reached.chain_hash, end.chain_hash) {
        (Some(noted), Some(found)) if end.offset == reached.offset => *noted != found.to_string(),
        _ => false,
    };
    if differs {
        return Err(LogError::Regressed {
            what: format!(
                "event {} changed: the last segment is from another copy of this store",
                end.offset
            ),
        });
    }
    Ok(())
}
