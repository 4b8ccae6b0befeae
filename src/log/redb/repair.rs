//! Repair: continuing after a loss. This is the only way in which a log gets shorter, and it
//! happens only on request.

use std::path::{Path, PathBuf};

use super::{
    LOG_FOLDER, OpenMode, RedbLog, RedbLogOptions,
    active::{self, create_segment},
    folder::{DiskFolder, Folder},
    lock::{self, FolderLock},
    manifest::{self, FORM_BLOCKS, LogMark, Manifest, ManifestLookup, SegmentEntry, Timeline},
    open::{self, is_unknown, leftover, look, look_at_sealed, names},
};
use crate::port::{LogError, LogIdentity};
use treering_domain::{ContentHash, TimestampMicros};

/// Page cache of a segment during inspection, in bytes.
const CACHE_BYTES: usize = 4 << 20;

/// A range of offsets whose records are lost, both ends inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostRange {
    /// The first offset.
    pub from: u64,
    /// The last offset.
    pub to: u64,
}

/// What a repair found, and what it did if it was told to.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct LogRepair {
    /// Offset of the last event that is kept; the next one follows it directly.
    pub head: u64,
    /// Lost ranges in order.
    pub lost: Vec<LostRange>,
    /// Unusable files in the log's folder, and why.
    pub unusable: Vec<(String, String)>,
    /// The manifest was missing or damaged.
    pub manifest_lost: bool,
    /// The manifest was rebuilt completely from the segments and written.
    pub manifest_rebuilt: bool,
    /// The manifest can be rebuilt from the segments, but has not been written yet.
    pub can_be_rebuilt: bool,
    /// Why the manifest cannot be rebuilt, when nothing else is lost.
    pub unproven: Option<String>,
    /// Evidence from the projections or the index that the log was replaced by another version of
    /// it. In that case, the number of lost events is unknown.
    pub contradiction: Option<String>,
    /// The loss was accepted: a new timeline begins after what is kept.
    pub went_on: bool,
    /// Where unusable files were moved; `None`: nothing was moved.
    pub moved_to: Option<String>,
}

impl LogRepair {
    /// Returns true when the log is complete, as far as that can be determined.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.loses_nothing() && (!self.manifest_lost || self.manifest_rebuilt)
    }

    /// Returns how many events are known to be lost.
    #[must_use]
    pub fn events_lost(&self) -> u64 {
        self.lost.iter().map(|lost| lost.to - lost.from + 1).sum()
    }

    fn loses_nothing(&self) -> bool {
        self.lost.is_empty() && self.unusable.is_empty() && self.contradiction.is_none()
    }
}

/// What the projections and the index, which are derived from the log, know about it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ConsistencyEvidence {
    /// At least one exists and belongs to this log.
    pub is_there: bool,
    /// Offset of the last event that they have processed.
    pub reached: u64,
    /// What contradicts the assumption that the log is unchanged.
    pub contradiction: Option<String>,
}

/// A log under a lock, to be inspected or repaired.
///
/// The [`ConsistencyEvidence`] for a repair (the witness) must be collected under the same lock:
/// otherwise another process could repair the log meanwhile, and the evidence would be outdated.
#[derive(Debug)]
pub struct RepairSession {
    data: PathBuf,
    log: PathBuf,
    /// `None`: there is no lock file, and an inspection does not create one.
    _lock: Option<FolderLock>,
}

impl RepairSession {
    /// Locks a folder for inspection, shared with other readers.
    ///
    /// # Errors
    /// [`LogError::Locked`], [`LogError::NoStore`], and I/O errors.
    pub fn to_look(data: &Path) -> Result<Self, LogError> {
        if !data.is_dir() {
            return Err(no_store(data));
        }
        Ok(Self::holding(data, FolderLock::share(data)?))
    }

    /// Locks a folder exclusively for repair. Only for a folder that was found to contain a store.
    ///
    /// # Errors
    /// [`LogError::Locked`], [`LogError::ReadOnly`], and I/O errors.
    pub fn to_mend(data: &Path) -> Result<Self, LogError> {
        Ok(Self::holding(data, Some(FolderLock::acquire(data)?)))
    }

    fn holding(data: &Path, lock: Option<FolderLock>) -> Self {
        Self {
            data: data.to_owned(),
            log: data.join(LOG_FOLDER),
            _lock: lock,
        }
    }

    /// Opens the log, or what is left of it, for reading. Returns `None` when nothing identifies
    /// it.
    #[must_use]
    pub fn log(&self) -> Option<RedbLog<DiskFolder>> {
        let options = RedbLogOptions::default();
        let whole = open_folder(&self.log)
            .and_then(|folder| RedbLog::open_with(folder, options, OpenMode::Read));
        if let Ok(log) = whole {
            return Some(log);
        }
        let left = open::remains_of(&self.log, options).ok()?;
        (left.head() > 0).then_some(left)
    }

    /// Determines what is lost. Changes nothing.
    ///
    /// # Errors
    /// [`LogError::NoStore`], [`LogError::NewerFormat`], and I/O errors.
    pub fn look(&self, witness: &ConsistencyEvidence) -> Result<LogRepair, LogError> {
        if self.log.is_dir() {
            let (found, mut outcome) = assess(&open_folder(&self.log)?, witness)?;
            outcome.can_be_rebuilt = found.rebuilt().is_some();
            return Ok(outcome);
        }
        if witness.reached == 0 {
            return Err(no_store(&self.data));
        }
        Ok(LogRepair {
            lost: lost_up_to(1, witness.reached),
            manifest_lost: true,
            ..LogRepair::default()
        })
    }

    /// Rebuilds the manifest from the segments, if only the manifest is lost. With `accept`,
    /// continues the log without the lost records, in a new timeline; unusable files are moved
    /// aside, and nothing is deleted.
    ///
    /// # Errors
    /// Those of [`RepairSession::look`], before anything is changed, and I/O errors. A repair that
    /// failed halfway can be repeated.
    pub fn mend(&self, witness: &ConsistencyEvidence, accept: bool) -> Result<LogRepair, LogError> {
        let told = self.look(witness)?;
        if !told.can_be_rebuilt && (!accept || told.is_whole()) {
            return Ok(told);
        }
        let path = &self.log;
        treering_base::disk::make_folder(path).map_err(|error| lock::refused(path, error))?;
        let folder = open_folder(path)?;
        let (found, mut outcome) = assess(&folder, witness)?;
        if let Some(manifest) = found.rebuilt() {
            outcome.moved_to = move_aside(&folder, path, &outcome, &[])?;
            put_in_place(&folder, manifest)?;
            outcome.manifest_rebuilt = true;
            outcome.unproven = None;
            return Ok(outcome);
        }
        let unused = found.empty_last.as_ref().and_then(|last| last.file.clone());
        outcome.moved_to = move_aside(&folder, path, &outcome, unused.as_slice())?;
        start_timeline(&folder, found, outcome.head)?;
        outcome.went_on = true;
        Ok(outcome)
    }
}

fn no_store(data: &Path) -> LogError {
    LogError::NoStore {
        path: data.to_owned(),
    }
}

fn open_folder(path: &Path) -> Result<DiskFolder, LogError> {
    DiskFolder::open(path).map_err(|error| lock::refused(path, error))
}

/// Returns the manifest of what is left of a log, with every segment sealed, and its head.
pub(super) fn remains<F: Folder>(folder: &F) -> Result<(Manifest, u64), LogError> {
    let (left, outcome) = assess(folder, &ConsistencyEvidence::default())?;
    let mut manifest = left.manifest;
    manifest.segments.push(SegmentEntry {
        first: outcome.head + 1,
        file: None,
        sealed: None,
        form: None,
    });
    Ok((manifest, outcome.head))
}

fn lost_up_to(from: u64, to: u64) -> Vec<LostRange> {
    if from > to {
        return Vec::new();
    }
    vec![LostRange { from, to }]
}

/// What is left of a log.
struct RemainingLog {
    /// The manifest without unusable segments, every segment sealed.
    manifest: Manifest,
    /// The chain hash of the last record.
    last_chain: Option<ContentHash>,
    /// An empty last segment.
    empty_last: Option<SegmentEntry>,
    /// The manifest was derived from the segments, and they prove it.
    is_proven: bool,
}

impl RemainingLog {
    /// Returns the manifest as it was before the loss, if the segments prove it.
    fn rebuilt(&self) -> Option<Manifest> {
        if !self.is_proven {
            return None;
        }
        let mut manifest = self.manifest.clone();
        let end = manifest.segments.last()?.sealed.clone()?;
        match &self.empty_last {
            Some(last) => manifest.segments.push(SegmentEntry {
                sealed: None,
                ..last.clone()
            }),
            None => {
                let last = manifest.segments.last_mut()?;
                // A segment is rewritten as blocks only once another segment follows; that one is
                // lost.
                if last.form.is_some() {
                    return None;
                }
                last.sealed = None;
            }
        }
        manifest.reached = LogMark::new(end.offset, self.last_chain);
        Some(manifest)
    }
}

fn assess<F: Folder>(
    folder: &F,
    witness: &ConsistencyEvidence,
) -> Result<(RemainingLog, LogRepair), LogError> {
    let mut outcome = LogRepair {
        contradiction: witness.contradiction.clone(),
        ..LogRepair::default()
    };
    let mut manifest = match manifest::read(folder) {
        Ok(ManifestLookup::Manifest(manifest)) => manifest,
        Ok(ManifestLookup::Nothing) | Err(LogError::Regressed { .. }) => {
            outcome.manifest_lost = true;
            from_segments(folder)?
        }
        Err(error) => return Err(error),
    };
    let strays = strays(folder, &manifest, outcome.manifest_lost)?;
    let reached = witness.reached.max(manifest.reached.offset);
    let mut last_chain = None;
    let mut kept = Vec::new();
    for entry in std::mem::take(&mut manifest.segments) {
        let Some(file) = entry.file.clone() else {
            // Only the lost manifest could tell whether a gap was accepted before.
            if outcome.manifest_lost
                && let Some(end) = &entry.sealed
            {
                outcome.lost.extend(lost_up_to(entry.first, end.offset));
            }
            kept.push(entry);
            continue;
        };
        let should_end = entry.sealed.as_ref().map_or(reached, |mark| mark.offset);
        let seen = match entry.sealed {
            Some(_) => look_at_sealed(folder, &file, entry.first),
            // It must be possible to append to this one.
            None => look(folder, &file, entry.first),
        };
        let seen = seen.and_then(|seen| {
            if seen.identity.store != manifest.store || seen.first != entry.first {
                return Err(LogError::damaged(
                    entry.first,
                    "it belongs to another store or another offset",
                ));
            }
            Ok(seen)
        });
        match seen {
            Ok(seen) => {
                outcome
                    .lost
                    .extend(lost_up_to(seen.end.offset + 1, should_end));
                let end = LogMark::new(seen.end.offset, seen.end.chain_hash);
                if seen.end.offset >= entry.first {
                    last_chain = seen.end.chain_hash;
                } else if entry.sealed.is_some() {
                    let why = "it has none of its events".to_owned();
                    outcome.unusable.push((file, why));
                }
                kept.extend(ends_at(entry, end));
            }
            Err(error @ (LogError::Damaged { .. } | LogError::NewerFormat { .. })) => {
                outcome.lost.extend(lost_up_to(entry.first, should_end));
                outcome.unusable.push((file, error.to_string()));
                last_chain = None;
                // A lost segment that was never sealed leaves no entry.
                if entry.sealed.is_some() {
                    kept.push(SegmentEntry {
                        file: None,
                        ..entry
                    });
                }
            }
            Err(error) => return Err(error),
        }
    }
    // An empty last segment has no end to seal.
    let is_empty = |entry: &SegmentEntry| {
        let end = entry.sealed.as_ref().map_or(0, |mark| mark.offset);
        end < entry.first
    };
    let empty_last = kept.pop_if(|last| is_empty(last));
    kept.retain(|entry| !is_empty(entry));
    outcome.head = kept
        .last()
        .and_then(|entry| entry.sealed.as_ref())
        .map_or(0, |mark| mark.offset);
    // Everything lost after the end is one range, whichever files it was in.
    let last = outcome.lost.last().map_or(0, |lost| lost.to).max(reached);
    outcome.lost.retain(|lost| lost.to <= outcome.head);
    outcome.lost.extend(lost_up_to(outcome.head + 1, last));
    outcome.unusable.extend(strays);
    manifest.segments = kept;
    if outcome.manifest_lost && outcome.loses_nothing() {
        outcome.unproven = unproven(&manifest, witness);
    }
    let left = RemainingLog {
        is_proven: outcome.manifest_lost && outcome.loses_nothing() && outcome.unproven.is_none(),
        manifest,
        last_chain,
        empty_last: empty_last.map(|last| SegmentEntry {
            sealed: None,
            ..last
        }),
    };
    Ok((left, outcome))
}

/// Returns an entry for the part of a segment that is left, and one for the part after it that is
/// lost. The second entry keeps an accepted loss from being reported again.
fn ends_at(entry: SegmentEntry, end: LogMark) -> impl Iterator<Item = SegmentEntry> {
    let first = end.offset + 1;
    let (kept, lost) = match entry.sealed {
        None => (Some(end), None),
        Some(mark) if mark.offset <= end.offset => (Some(mark), None),
        Some(mark) => (Some(end).filter(|_| first > entry.first), Some(mark)),
    };
    let lost = lost.map(|mark| SegmentEntry {
        first,
        file: None,
        sealed: Some(mark),
        form: None,
    });
    let kept = kept.map(|mark| SegmentEntry {
        sealed: Some(mark),
        first: entry.first,
        file: entry.file,
        form: entry.form,
    });
    kept.into_iter().chain(lost)
}

/// Returns why intact segments do not prove the contents of the lost manifest.
fn unproven(manifest: &Manifest, witness: &ConsistencyEvidence) -> Option<String> {
    if manifest.segments.is_empty() {
        return Some("no segment has events".to_owned());
    }
    if let Some(gap) = manifest.segments.iter().find(|entry| entry.file.is_none()) {
        return Some(format!(
            "no segment begins with event {}: it is missing, or its loss was accepted earlier",
            gap.first
        ));
    }
    if !witness.is_there {
        return Some(
            "there are no projections and no search index that show how far the log had reached: a \
             last segment may be missing"
                .to_owned(),
        );
    }
    None
}

/// Returns the segment files that are neither part of the log nor leftovers.
fn strays<F: Folder>(
    folder: &F,
    manifest: &Manifest,
    manifest_lost: bool,
) -> Result<Vec<(String, String)>, LogError> {
    let mut strays = Vec::new();
    for name in names(folder)? {
        let Some((first, _)) = active::parse_name(&name) else {
            continue;
        };
        if manifest.names(&name) {
            continue;
        }
        let is_stray = if manifest_lost {
            // Only the manifest could tell whether an unreadable file was a part of the log.
            look(folder, &name, first).is_err() || !leftover(folder, manifest, &name)
        } else {
            is_unknown(folder, manifest, &name, first)
        };
        if is_stray {
            strays.push((name, "the manifest does not list it".to_owned()));
        }
    }
    Ok(strays)
}

/// A segment's file as it describes itself.
struct SegmentClaim {
    first: u64,
    copy: u32,
    name: String,
    identity: LogIdentity,
    end: LogMark,
    /// It stores blocks.
    is_packed: bool,
}

/// Derives a manifest from what the segments say about themselves.
fn from_segments<F: Folder>(folder: &F) -> Result<Manifest, LogError> {
    let mut found = Vec::new();
    for name in names(folder)? {
        let Some((first, copy)) = active::parse_name(&name) else {
            continue;
        };
        if let Ok(seen) = look(folder, &name, first)
            && seen.first == first
        {
            found.push(SegmentClaim {
                first,
                copy,
                name,
                identity: seen.identity,
                end: LogMark::new(seen.end.offset, seen.end.chain_hash),
                is_packed: seen.is_packed,
            });
        }
    }
    // Sorted so that the copy that reaches furthest comes last, and of equal ones the newest.
    found.sort_by_key(|one| (one.first, one.end.offset, one.copy));
    let mut manifest = Manifest::new(String::new());
    manifest.segments.clear();
    // Only the manifest could tell whether an erasure was in progress, so all erasures are
    // repeated.
    manifest.erasing = Some(1);
    if let Some(last) = found.last() {
        manifest.store = last.identity.store;
    }
    found.retain(|one| one.identity.store == manifest.store);
    let timelines = timelines(&found);
    if !timelines.is_empty() {
        manifest.timelines = timelines;
    }
    let mut next = 1;
    let mut rest = found.into_iter().peekable();
    while let Some(one) = rest.next() {
        let first = one.first;
        if rest.peek().is_some_and(|later| later.first == first) || first < next {
            continue;
        }
        if first > next {
            manifest.segments.push(SegmentEntry {
                first: next,
                file: None,
                sealed: Some(LogMark::new(first - 1, None)),
                form: None,
            });
        }
        let until = rest.peek().map_or(0, |later| later.first - 1);
        let end = if until > one.end.offset {
            LogMark::new(until, None)
        } else {
            one.end
        };
        next = end.offset + 1;
        // An empty last segment has no end to seal.
        let is_empty = end.offset < first;
        manifest.segments.push(SegmentEntry {
            first,
            file: Some(one.name),
            sealed: Some(end).filter(|_| !is_empty),
            form: one.is_packed.then(|| FORM_BLOCKS.to_owned()),
        });
    }
    Ok(manifest)
}

/// Returns the timelines of the segments, in order. A timeline without events may be missing.
fn timelines(found: &[SegmentClaim]) -> Vec<Timeline> {
    let mut timelines: Vec<Timeline> = Vec::new();
    for one in found {
        let id = one.identity.timeline;
        if timelines.iter().all(|known| known.id != id) {
            timelines.push(Timeline {
                id,
                from: one.first,
                began_at: TimestampMicros::now().0,
            });
        }
    }
    timelines
}

/// Moves unusable files, and copies the previous manifest, into a separate folder. Returns `None`
/// when there is nothing to move or copy.
fn move_aside<F: Folder>(
    folder: &F,
    path: &Path,
    outcome: &LogRepair,
    unused: &[String],
) -> Result<Option<String>, LogError> {
    let io = |error| LogError::from_io("moving unusable files away", error);
    let there = names(folder)?;
    let files = outcome.unusable.iter().map(|(file, _)| file);
    let files = files.chain(unused).filter(|file| there.contains(file));
    let files: Vec<_> = files.collect();
    let has_manifest = there.iter().any(|name| name == manifest::MANIFEST);
    if files.is_empty() && !has_manifest {
        return Ok(None);
    }
    let name = format!("set-aside-{}", TimestampMicros::now().0);
    treering_base::disk::make_folder(&path.join(&name)).map_err(io)?;
    if has_manifest {
        // A copy, because the manifest remains valid until another one replaces it.
        let there = std::fs::read(path.join(manifest::MANIFEST)).map_err(io)?;
        treering_base::disk::write(&path.join(&name).join(manifest::MANIFEST), &there)
            .map_err(io)?;
    }
    for file in files {
        folder.rename(file, &format!("{name}/{file}")).map_err(io)?;
    }
    treering_base::disk::sync_folder(&path.join(&name)).map_err(io)?;
    folder.sync().map_err(io)?;
    Ok(Some(path.join(name).display().to_string()))
}

/// Starts a new timeline after what is left.
fn start_timeline<F: Folder>(folder: &F, left: RemainingLog, head: u64) -> Result<(), LogError> {
    let mut manifest = left.manifest;
    let first = head + 1;
    manifest.begin_timeline(first);
    let mut fresh = create_segment(folder, manifest.identity(), first, 0, CACHE_BYTES)?;
    manifest.segments.push(SegmentEntry {
        first,
        file: Some(fresh.file.clone()),
        sealed: None,
        form: None,
    });
    manifest.reached = LogMark::new(head, left.last_chain);
    let replaced = put_in_place(folder, manifest);
    fresh.close()?;
    replaced
}

fn put_in_place<F: Folder>(folder: &F, manifest: Manifest) -> Result<(), LogError> {
    match manifest::replace(folder, &manifest)? {
        manifest::ReplaceOutcome::Lasting => Ok(()),
        manifest::ReplaceOutcome::InPlace => Err(super::seal::folder_not_synced()),
    }
}
