//! Going on after a loss: the only way in which a log gets shorter, and only
//! when somebody says so.

use std::path::Path;

use super::{
    LOG_FOLDER,
    active::{self, create_segment},
    folder::{DiskFolder, Folder},
    lock::{self, FolderLock},
    manifest::{self, FORM_BLOCKS, Found, Manifest, Mark, SegmentEntry},
    open::{Seen, look},
};
use crate::{
    domain::{ContentHash, TimestampMicros},
    log::port::{LogError, LogIdentity},
};

/// Memory for pages of a segment while it is looked at, in bytes.
const CACHE_BYTES: usize = 4 << 20;

/// Offsets whose records are lost, both ends inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostRange {
    /// The first.
    pub from: u64,
    /// The last.
    pub to: u64,
}

/// What a repair finds, and does if it is told to.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Repair {
    /// The last event that is kept; the next one comes right behind it.
    pub head: u64,
    /// What is lost, in order.
    pub lost: Vec<LostRange>,
    /// Files of the log's folder that cannot be used, and why.
    pub unusable: Vec<(String, String)>,
    /// The manifest itself was missing or damaged.
    pub manifest_lost: bool,
    /// Where the unusable files were put; none: nothing was changed.
    pub moved_to: Option<String>,
}

impl Repair {
    /// True when the log is what it was.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.lost.is_empty() && self.unusable.is_empty() && !self.manifest_lost
    }
}

/// Finds out what of a data folder's log is lost, which had come to `reached` as
/// far as views and index know. With `accept`, lets the log go on without it, in a
/// new timeline; what cannot be used is moved aside, nothing is deleted.
///
/// # Errors
/// [`LogError::Locked`], [`LogError::NoStore`], [`LogError::NewerFormat`], and
/// what the system says; nothing has changed then, unless it failed on the way,
/// and then it can be repeated.
pub fn repair(data: &Path, reached: u64, accept: bool) -> Result<Repair, LogError> {
    let path = data.join(LOG_FOLDER);
    if !data.is_dir() || reached == 0 && !path.is_dir() {
        return Err(LogError::NoStore {
            path: data.to_owned(),
        });
    }
    let _lock = if accept {
        crate::disk::make_folder(&path).map_err(|error| lock::refused(&path, error))?;
        Some(FolderLock::acquire(data)?)
    } else {
        FolderLock::share(data)?
    };
    if !path.is_dir() {
        return Ok(Repair {
            lost: lost_up_to(1, reached),
            manifest_lost: true,
            ..Repair::default()
        });
    }
    let folder = DiskFolder::open(&path).map_err(|error| lock::refused(&path, error))?;
    let (found, mut outcome) = assess(&folder, reached)?;
    if accept && !outcome.is_whole() {
        let aside = move_aside(&folder, &path, &outcome)?;
        go_on(&folder, found, outcome.head)?;
        outcome.moved_to = Some(aside);
    }
    Ok(outcome)
}

/// What is left of a log, with every segment sealed, and where that ends.
pub(super) fn remains<F: Folder>(folder: &F) -> Result<(Manifest, u64), LogError> {
    let (left, outcome) = assess(folder, 0)?;
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

/// What is left of a log: its manifest without what cannot be used, and the chain
/// hash of its last record.
struct Left {
    manifest: Manifest,
    last_chain: Option<ContentHash>,
}

fn assess<F: Folder>(folder: &F, reached: u64) -> Result<(Left, Repair), LogError> {
    let mut outcome = Repair::default();
    let mut manifest = match manifest::read(folder) {
        Ok(Found::Manifest(manifest)) => manifest,
        Ok(Found::Nothing) | Err(LogError::WentBack { .. }) => {
            outcome.manifest_lost = true;
            from_segments(folder)?
        }
        Err(error) => return Err(error),
    };
    let reached = reached.max(manifest.reached.offset);
    let mut last_chain = None;
    let mut kept = Vec::new();
    for entry in std::mem::take(&mut manifest.segments) {
        let Some(file) = entry.file.clone() else {
            kept.push(entry);
            continue;
        };
        let should_end = entry.sealed.as_ref().map_or(reached, |mark| mark.offset);
        let seen = look(folder, &file, entry.first).and_then(|seen| {
            if seen.identity.store != manifest.store || seen.first != entry.first {
                return Err(LogError::damaged(
                    entry.first,
                    "it is of another store or place",
                ));
            }
            Ok(seen)
        });
        match seen {
            Ok(seen) => {
                outcome
                    .lost
                    .extend(lost_up_to(seen.end.offset + 1, should_end));
                last_chain = seen.end.chain_hash;
                kept.push(SegmentEntry {
                    sealed: entry
                        .sealed
                        .or_else(|| Some(Mark::new(seen.end.offset, seen.end.chain_hash))),
                    ..entry
                });
            }
            Err(error @ (LogError::Damaged { .. } | LogError::NewerFormat { .. })) => {
                outcome.lost.extend(lost_up_to(entry.first, should_end));
                outcome.unusable.push((file, error.to_string()));
                last_chain = None;
                // What was never sealed and is gone leaves no place behind.
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
    kept.retain(|entry| {
        entry
            .sealed
            .as_ref()
            .is_some_and(|mark| mark.offset >= entry.first)
    });
    outcome.head = kept
        .last()
        .and_then(|entry| entry.sealed.as_ref())
        .map_or(0, |mark| mark.offset);
    // What came behind the end is one loss, whichever files it was in.
    let last = outcome.lost.last().map_or(0, |lost| lost.to).max(reached);
    outcome.lost.retain(|lost| lost.to <= outcome.head);
    outcome.lost.extend(lost_up_to(outcome.head + 1, last));
    for name in folder.names().unwrap_or_default() {
        let is_segment = active::parse_name(&name).is_some();
        let known = kept.iter().any(|e| e.file.as_deref() == Some(&name))
            || outcome.unusable.iter().any(|(file, _)| *file == name);
        if is_segment && !known && !manifest.names(&name) {
            let why = "the log does not name it".to_owned();
            outcome.unusable.push((name, why));
        }
    }
    manifest.segments = kept;
    Ok((
        Left {
            manifest,
            last_chain,
        },
        outcome,
    ))
}

/// A manifest made from what the segments say of themselves.
fn from_segments<F: Folder>(folder: &F) -> Result<Manifest, LogError> {
    let names = folder
        .names()
        .map_err(|error| LogError::from_io("listing the segments", error))?;
    let mut found: Vec<(u64, u32, String, LogIdentity, Seen)> = Vec::new();
    for name in names {
        let Some((first, copy)) = active::parse_name(&name) else {
            continue;
        };
        if let Ok(seen) = look(folder, &name, first)
            && seen.first == first
        {
            found.push((first, copy, name, seen.identity, seen));
        }
    }
    found.sort_by_key(|(first, copy, ..)| (*first, *copy));
    let mut manifest = Manifest::new(String::new());
    manifest.segments.clear();
    if let Some((.., identity, _)) = found.last() {
        manifest.store = identity.store;
        if let Some(timeline) = manifest.timelines.first_mut() {
            timeline.id = identity.timeline;
            timeline.began_at = TimestampMicros::now().0;
        }
    }
    found.retain(|(.., identity, _)| identity.store == manifest.store);
    let mut next = 1;
    let mut rest = found.into_iter().peekable();
    while let Some((first, _, name, _, seen)) = rest.next() {
        let end = seen.end.offset;
        // Of copies of a segment the last one is the one that was written to.
        if rest.peek().is_some_and(|(later, ..)| *later == first) || first < next {
            continue;
        }
        if first > next {
            manifest.segments.push(SegmentEntry {
                first: next,
                file: None,
                sealed: Some(Mark::new(first - 1, None)),
                form: None,
            });
        }
        let until = rest.peek().map_or(end, |(later, ..)| later - 1);
        manifest.segments.push(SegmentEntry {
            first,
            file: Some(name),
            sealed: Some(Mark::new(until.max(end), None)),
            form: seen.is_dense.then(|| FORM_BLOCKS.to_owned()),
        });
        next = until.max(end) + 1;
    }
    Ok(manifest)
}

/// Puts unusable files, and a manifest that is none, into a folder of their own.
fn move_aside<F: Folder>(folder: &F, path: &Path, outcome: &Repair) -> Result<String, LogError> {
    let io = |error| LogError::from_io("moving unusable files aside", error);
    let name = format!("set-aside-{}", TimestampMicros::now().0);
    crate::disk::make_folder(&path.join(&name)).map_err(io)?;
    let manifest = Some(manifest::MANIFEST).filter(|_| outcome.manifest_lost);
    let files = outcome.unusable.iter().map(|(file, _)| file.as_str());
    for file in files.chain(manifest) {
        match folder.rename(file, &format!("{name}/{file}")) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            moved => moved.map_err(io)?,
        }
    }
    crate::disk::sync_folder(&path.join(&name)).map_err(io)?;
    folder.sync().map_err(io)?;
    Ok(path.join(name).display().to_string())
}

/// Starts a timeline behind what is left.
fn go_on<F: Folder>(folder: &F, left: Left, head: u64) -> Result<(), LogError> {
    let mut manifest = left.manifest;
    let first = head + 1;
    manifest.begin_timeline(first);
    let copy = manifest
        .segments
        .iter()
        .filter(|entry| entry.first == first)
        .filter_map(|entry| entry.file.as_deref())
        .map(active::next_copy)
        .max()
        .unwrap_or(0);
    let mut fresh = create_segment(folder, manifest.identity(), first, copy, CACHE_BYTES)?;
    manifest.segments.retain(|entry| entry.first < first);
    manifest.segments.push(SegmentEntry {
        first,
        file: Some(fresh.file.clone()),
        sealed: None,
        form: None,
    });
    manifest.reached = Mark::new(head, left.last_chain);
    let replaced = manifest::replace(folder, &manifest);
    fresh.close()?;
    match replaced? {
        manifest::Replaced::Lasting => Ok(()),
        manifest::Replaced::InPlace => Err(super::sealing::folder_not_synced()),
    }
}
