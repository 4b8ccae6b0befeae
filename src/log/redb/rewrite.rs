//! Rewriting sealed segments: as blocks, and several small ones joined into one.
//!
//! One procedure serves every purpose: records are read in order, changed by a function, written to
//! a new file beside the old ones, read back and compared; then the manifest names the new file,
//! and the old ones are removed. Nothing changes before that, so any failure can be retried later.
//! Appends and reads continue meanwhile.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use super::{
    Folder, RedbLog, active,
    file::SegmentFile,
    lock_of,
    manifest::{self, FORM_BLOCKS, Manifest, ReplaceOutcome, SegmentEntry},
    segment::{self, SealedSegment},
    sources::{Sources, not_read_back},
};
use crate::{
    port::{LogError, LogIdentity},
    record::Record,
};

/// Page cache of the written file, in bytes.
const CACHE_BYTES: usize = 4 << 20;
/// A segment is joined with the rewritten segments before it, the nearest first. Joining stops at a
/// segment that is more than this many times as large as all those after it together. A byte is
/// then rewritten about once each time the log doubles.
const JOINED_WITHIN: u64 = 3;
/// The size limit of a segment, divided by this, is the limit of a joined segment. Rewriting one
/// then takes about as long as rewriting a full segment of frames.
const JOINED_SHARE: u64 = 3;

/// A change made by a rewrite.
pub(super) trait Change: Sync {
    /// Changes a record.
    fn record(&self, offset: u64, record: Record) -> Record;

    /// Returns whether to keep a large body, given its home offset.
    fn keeps_blob(&self, home_offset: u64) -> bool;

    /// Returns whether any large body is dropped whose home offset is from `first` to `last`, both
    /// included.
    fn drops_blobs(&self, first: u64, last: u64) -> bool;
}

/// Changes nothing.
pub(super) struct NoChange;

impl Change for NoChange {
    fn record(&self, _: u64, record: Record) -> Record {
        record
    }

    fn keeps_blob(&self, _: u64) -> bool {
        true
    }

    fn drops_blobs(&self, _: u64, _: u64) -> bool {
        false
    }
}

/// Returns true when a rewrite must stop, so that closing the log does not wait for it.
pub(super) type StopCheck<'a> = &'a (dyn Fn() -> bool + Sync);

/// What a rewrite did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RewriteOutcome {
    /// Number of segments rewritten.
    pub segments: usize,
    /// Number of their records.
    pub records: u64,
    /// Size of their files before, in bytes.
    pub bytes_before: u64,
    /// Size of the new file, in bytes.
    pub bytes_after: u64,
}

/// Why a rewrite ended early.
pub(super) enum RewriteError {
    /// It was told to stop.
    Stopped,
    Failed(LogError),
}

impl From<LogError> for RewriteError {
    fn from(error: LogError) -> Self {
        Self::Failed(error)
    }
}

impl<F: Folder> RedbLog<F> {
    /// Rewrites the next sealed segment of frames as blocks, joined with small segments before it.
    /// Returns `None` when no segment of frames is left, or when `stop` was set.
    ///
    /// # Errors
    /// Nothing has changed, and it can be retried. With [`LogError::Damaged`], the unreadable
    /// segment stays as it is.
    pub fn rewrite_next(&self, stop: &AtomicBool) -> Result<Option<RewriteOutcome>, LogError> {
        if self.mode.is_read_only() {
            return Err(LogError::OpenedToRead);
        }
        // One rewrite at a time: each depends on the result of the previous one.
        let _turn = lock_of(&self.rewriting);
        if self.head.borrow().closed {
            return Err(LogError::Closed);
        }
        // Remove leftovers of earlier processes before this one creates files.
        self.open_to_write()?;
        let stop: StopCheck<'_> = &|| stop.load(Ordering::Acquire) || self.head.borrow().closed;
        let Some((last, before)) = self.next_to_rewrite() else {
            return Ok(None);
        };
        let joined: Vec<_> = before.into_iter().chain([last.clone()]).collect();
        let mut outcome = self.rewrite(&joined, &NoChange, stop);
        if joined.len() > 1
            && matches!(outcome, Err(RewriteError::Failed(LogError::Damaged { .. })))
        {
            // One of the other segments may be the damaged one.
            outcome = self.rewrite(std::slice::from_ref(&last), &NoChange, stop);
        }
        match outcome {
            Ok(done) => Ok(Some(done)),
            Err(RewriteError::Stopped) => Ok(None),
            Err(RewriteError::Failed(error)) => {
                if matches!(error, LogError::Damaged { .. }) {
                    lock_of(&self.unfit).insert(last.first);
                }
                Err(error)
            }
        }
    }

    /// Returns true when a sealed segment stores frames and was not found to be damaged.
    pub fn has_to_rewrite(&self) -> bool {
        let unfit = lock_of(&self.unfit);
        let manifest = self.manifest();
        let mut segments = manifest.segments.iter();
        segments.any(|entry| is_of_frames(entry) && !unfit.contains(&entry.first))
    }

    /// Returns the first sealed segment of frames, and the rewritten ones before it to join it
    /// with.
    fn next_to_rewrite(&self) -> Option<(SegmentEntry, Vec<SegmentEntry>)> {
        let manifest = self.manifest().clone();
        let unfit = lock_of(&self.unfit).clone();
        let fit = |entry: &SegmentEntry| is_of_frames(entry) && !unfit.contains(&entry.first);
        let at = manifest.segments.iter().position(fit)?;
        let last = &manifest.segments[at];
        let mut bytes = self
            .sealed(last)
            .map_or(u64::MAX, |sealed| sealed.dense_bytes());
        let mut first = at;
        while let Some(before) = first.checked_sub(1).map(|at| &manifest.segments[at]) {
            if before.form.is_none() {
                break;
            }
            let Ok(sealed) = self.sealed(before) else {
                break;
            };
            let more = sealed.dense_bytes();
            let joined = bytes.saturating_add(more);
            if more > bytes.saturating_mul(JOINED_WITHIN)
                || joined > self.options.segment_bytes_max / JOINED_SHARE
            {
                break;
            }
            bytes = joined;
            first -= 1;
        }
        Some((last.clone(), manifest.segments[first..at].to_vec()))
    }

    /// Rewrites adjacent sealed segments as one.
    pub(super) fn rewrite(
        &self,
        entries: &[SegmentEntry],
        change: &dyn Change,
        stop: StopCheck<'_>,
    ) -> Result<RewriteOutcome, RewriteError> {
        let began = Instant::now();
        let sources = self.sources(entries)?;
        let first = sources.first_offset();
        let (file, storage) = self.create_copy(entries)?;
        let written = self
            .write_copy(&sources, storage, change, stop)
            .and_then(|()| {
                self.folder
                    .sync()
                    .map_err(|error| LogError::from_io("syncing the folder of a segment", error))?;
                let opened = self.open_copy(&file, first).map_err(not_read_back)?;
                sources.compare(&opened, change, stop)?;
                Ok(opened.bytes)
            });
        let bytes_after = match written {
            Ok(bytes) => bytes,
            Err(ended) => {
                // If this fails, the next opening removes the file.
                let _left = self.folder.remove(&file);
                return Err(ended);
            }
        };
        self.replace_in_manifest(entries, &file)?;
        let done = RewriteOutcome {
            segments: entries.len(),
            records: sources.records(),
            bytes_before: sources.bytes(),
            bytes_after,
        };
        tracing::info!(
            file,
            segments = done.segments,
            records = done.records,
            bytes_before = done.bytes_before,
            bytes_after = done.bytes_after,
            milliseconds = began.elapsed().as_millis() as u64,
            "segments of the log were rewritten"
        );
        Ok(done)
    }

    fn sources(&self, entries: &[SegmentEntry]) -> Result<Sources, LogError> {
        let open = |entry: &SegmentEntry| Ok((entry.clone(), self.sealed(entry)?));
        let segments: Result<Vec<_>, LogError> = entries.iter().map(open).collect();
        Ok(Sources {
            segments: segments?,
        })
    }

    /// Creates an empty file to rewrite the segments into.
    fn create_copy(&self, entries: &[SegmentEntry]) -> Result<(String, F::File), LogError> {
        let first = &entries[0];
        let copy = first.file.as_deref().map_or(0, active::next_copy);
        active::create_file(&self.folder, first.first, copy)
            .map_err(|error| LogError::from_io("creating a segment", error))
    }

    fn open_copy(&self, file: &str, first: u64) -> Result<SealedSegment, LogError> {
        let opened = segment::open_sealed(&self.folder, file, first, CACHE_BYTES)?;
        segment::check_identity(&opened.reader(), self.manifest().store, first)?;
        Ok(opened)
    }

    fn write_copy(
        &self,
        sources: &Sources,
        storage: F::File,
        change: &dyn Change,
        stop: StopCheck<'_>,
    ) -> Result<(), RewriteError> {
        // Check the free space before anything is written. If space is short, it is left
        // to appends.
        storage
            .ensure_room(sources.bytes())
            .map_err(|error| LogError::from_io("making room to rewrite a segment", error))?;
        let first = sources.first_offset();
        let mut database = segment::open_on(storage, first, CACHE_BYTES)?;
        let identity = LogIdentity {
            store: self.manifest().store,
            timeline: sources.timeline()?,
        };
        let filled = sources
            .fill(&database, identity, change, stop)
            .and_then(|()| Ok(segment::compact(&mut database, first)?));
        let closed = segment::close(database, first);
        filled?;
        Ok(closed?)
    }

    /// Replaces the entries of the old segments in the manifest by one for the new file.
    fn replace_in_manifest(&self, entries: &[SegmentEntry], file: &str) -> Result<(), LogError> {
        let replaced = self.replace_manifest(|manifest| swap(manifest, entries, file));
        let old = || entries.iter().filter_map(|entry| entry.file.clone());
        match replaced {
            Ok(replaced) => {
                lock_of(&self.sealed).retain(|(name, _)| !old().any(|old| old == *name));
                self.remove_when_sure(old(), replaced);
                Ok(())
            }
            // The manifest on disk may name the old files or the new one: keep all until that is
            // known.
            Err(error @ LogError::UnknownOutcome { .. }) => {
                lock_of(&self.stale).extend(old().chain([file.to_owned()]));
                Err(error)
            }
            Err(error) => {
                let _left = self.folder.remove(file);
                Err(error)
            }
        }
    }
}

fn is_of_frames(entry: &SegmentEntry) -> bool {
    entry.sealed.is_some() && entry.file.is_some() && entry.form.is_none()
}

/// Replaces several entries by one.
fn swap(manifest: &mut Manifest, entries: &[SegmentEntry], file: &str) -> Result<(), LogError> {
    let (first, last) = (&entries[0], &entries[entries.len() - 1]);
    let at = manifest.segments.iter().position(|entry| entry == first);
    let place = at.map(|at| at..at + entries.len());
    let Some(place) = place.filter(|place| manifest.segments.get(place.clone()) == Some(entries))
    else {
        return Err(LogError::from_io(
            "rewriting a segment",
            std::io::Error::other("the segments have changed in the meantime"),
        ));
    };
    let entry = SegmentEntry {
        first: first.first,
        file: Some(file.to_owned()),
        sealed: last.sealed.clone(),
        form: Some(FORM_BLOCKS.to_owned()),
    };
    manifest.segments.splice(place, [entry]);
    Ok(())
}

impl<F: Folder> RedbLog<F> {
    /// Changes the manifest on disk and then in memory; one change at a time.
    pub(super) fn replace_manifest(
        &self,
        change: impl FnOnce(&mut Manifest) -> Result<(), LogError>,
    ) -> Result<ReplaceOutcome, LogError> {
        let _turn = lock_of(&self.manifest_turn);
        let mut manifest = self.manifest().clone();
        change(&mut manifest)?;
        let replaced = manifest::replace(&self.folder, &manifest)?;
        self.set_manifest(manifest);
        if replaced == ReplaceOutcome::Lasting {
            self.remove_stale();
        }
        Ok(replaced)
    }

    /// Removes files that only an earlier manifest names. If the new manifest is not durable yet,
    /// they are removed once it is.
    fn remove_when_sure(&self, files: impl Iterator<Item = String>, replaced: ReplaceOutcome) {
        lock_of(&self.stale).extend(files);
        if replaced == ReplaceOutcome::Lasting {
            let _turn = lock_of(&self.manifest_turn);
            self.remove_stale();
        }
    }

    /// Removes the stale files. The manifest on disk must equal the one in memory.
    fn remove_stale(&self) {
        let stale = std::mem::take(&mut *lock_of(&self.stale));
        let manifest = self.manifest();
        for file in stale {
            if !manifest.names(&file)
                && let Err(error) = self.folder.remove(&file)
            {
                // The next opening removes it.
                tracing::warn!(file, %error, "a replaced file could not be removed");
            }
        }
    }
}
