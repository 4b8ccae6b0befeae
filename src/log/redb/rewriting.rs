//! Writing sealed segments anew: densely, as blocks, and several small ones as one.
//!
//! One pass does it, whatever it is for: records are read in order, changed by a
//! function, written to a new file beside the old ones, read back from there and
//! compared; then the manifest names the new file, and the old ones go. Until then
//! nothing has changed, so whatever fails is tried again later. Appends and reads
//! go on meanwhile.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use super::{
    Folder, RedbLog, active,
    file::SegmentFile,
    lock_of,
    manifest::{self, FORM_BLOCKS, Manifest, Replaced, SegmentEntry},
    segment::{self, Sealed},
    sources::{Sources, not_read_back},
};
use crate::log::{
    port::{LogError, LogIdentity},
    record::Record,
};

/// Memory for pages of the file that is written, in bytes.
const CACHE_BYTES: usize = 4 << 20;
/// Segments that were written anew are joined with the one behind them while they
/// are at most this many times as large as all that they would be joined with: so
/// each byte is written as often as the log doubles.
const JOINED_WITHIN: u64 = 3;
/// What is joined has at most this share of a segment's bound: a pass over it takes
/// about as long as one over a full segment of frames.
const JOINED_SHARE: u64 = 3;

/// What a pass makes of what it reads.
pub(super) trait Change: Sync {
    /// Of a record.
    fn record(&self, offset: u64, record: Record) -> Record;

    /// Whether a large body stays, by its home.
    fn keeps_blob(&self, home_offset: u64) -> bool;

    /// Whether one goes whose home is between two offsets, both included.
    fn drops_blobs(&self, first: u64, last: u64) -> bool;
}

/// All stays as it is.
pub(super) struct Keep;

impl Change for Keep {
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

/// Says that a pass is to end: whoever closes the log does not wait for it.
pub(super) type Stop<'a> = &'a (dyn Fn() -> bool + Sync);

/// What a pass did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Rewritten {
    /// Segments that were written anew.
    pub segments: usize,
    /// Their records.
    pub records: u64,
    /// Bytes of their files before …
    pub bytes_before: u64,
    /// … and of the one that took their place.
    pub bytes_after: u64,
}

/// Why a pass ended that did not finish.
pub(super) enum Ended {
    /// It was asked to.
    Stopped,
    Failed(LogError),
}

impl From<LogError> for Ended {
    fn from(error: LogError) -> Self {
        Self::Failed(error)
    }
}

impl<F: Folder> RedbLog<F> {
    /// Writes what is next in its dense form, if anything is: a sealed segment that
    /// keeps frames, and with it small ones before it. None: everything is dense,
    /// or `stop` was set.
    ///
    /// # Errors
    /// Nothing has changed; it can be tried again. [`LogError::Damaged`]: a segment
    /// that cannot be read stays as it is.
    pub fn rewrite_next(&self, stop: &AtomicBool) -> Result<Option<Rewritten>, LogError> {
        if self.mode.is_read_only() {
            return Err(LogError::OpenedToRead);
        }
        // One pass at a time: each needs what the one before left.
        let _turn = lock_of(&self.rewriting);
        if self.head.borrow().closed {
            return Err(LogError::Closed);
        }
        // What an earlier process left goes before a file of this one is there.
        self.open_to_write()?;
        let stop: Stop<'_> = &|| stop.load(Ordering::Acquire) || self.head.borrow().closed;
        let Some((last, before)) = self.next_to_rewrite() else {
            return Ok(None);
        };
        let joined: Vec<_> = before.into_iter().chain([last.clone()]).collect();
        let mut outcome = self.rewrite(&joined, &Keep, stop);
        if joined.len() > 1 && matches!(outcome, Err(Ended::Failed(LogError::Damaged { .. }))) {
            // It may be one of the others.
            outcome = self.rewrite(std::slice::from_ref(&last), &Keep, stop);
        }
        match outcome {
            Ok(done) => Ok(Some(done)),
            Err(Ended::Stopped) => Ok(None),
            Err(Ended::Failed(error)) => {
                if matches!(error, LogError::Damaged { .. }) {
                    lock_of(&self.unfit).insert(last.first);
                }
                Err(error)
            }
        }
    }

    /// True when a sealed segment keeps frames, and was not found to be damaged.
    pub fn has_to_rewrite(&self) -> bool {
        let unfit = lock_of(&self.unfit);
        let manifest = self.manifest();
        let mut segments = manifest.segments.iter();
        segments.any(|entry| is_of_frames(entry) && !unfit.contains(&entry.first))
    }

    /// The first sealed segment of frames, and the dense ones before it that it is
    /// to be joined with.
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

    /// Writes adjacent sealed segments anew, as one.
    pub(super) fn rewrite(
        &self,
        entries: &[SegmentEntry],
        change: &dyn Change,
        stop: Stop<'_>,
    ) -> Result<Rewritten, Ended> {
        let began = Instant::now();
        let sources = self.sources(entries)?;
        let first = sources.first_offset();
        let (file, storage) = self.create_copy(entries)?;
        let written = self
            .write_copy(&sources, storage, change, stop)
            .and_then(|()| {
                self.folder.sync().map_err(|error| {
                    LogError::from_io("putting a segment's name on disk", error)
                })?;
                let opened = self.open_copy(&file, first).map_err(not_read_back)?;
                sources.compare(&opened, change, stop)?;
                Ok(opened.bytes)
            });
        let bytes_after = match written {
            Ok(bytes) => bytes,
            Err(ended) => {
                // The next opening would clear it away.
                let _left = self.folder.remove(&file);
                return Err(ended);
            }
        };
        self.take_its_place(entries, &file)?;
        let done = Rewritten {
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
            "segments of the log were written anew"
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

    /// An empty file in which the segments can be written anew.
    fn create_copy(&self, entries: &[SegmentEntry]) -> Result<(String, F::File), LogError> {
        let first = &entries[0];
        let copy = first.file.as_deref().map_or(0, active::next_copy);
        active::create_file(&self.folder, first.first, copy)
            .map_err(|error| LogError::from_io("creating a segment", error))
    }

    fn open_copy(&self, file: &str, first: u64) -> Result<Sealed, LogError> {
        let opened = segment::open_sealed(&self.folder, file, first, CACHE_BYTES)?;
        segment::check_identity(&opened.reader(), self.manifest().store, first)?;
        Ok(opened)
    }

    fn write_copy(
        &self,
        sources: &Sources,
        storage: F::File,
        change: &dyn Change,
        stop: Stop<'_>,
    ) -> Result<(), Ended> {
        // Asked before anything is written: appends need the room more.
        storage
            .ensure_room(sources.bytes())
            .map_err(|error| LogError::from_io("making room to write a segment anew", error))?;
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

    /// Lets the manifest name a file in the place of those that it was made from.
    fn take_its_place(&self, entries: &[SegmentEntry], file: &str) -> Result<(), LogError> {
        let replaced = self.replace_manifest(|manifest| swap(manifest, entries, file));
        let old = || entries.iter().filter_map(|entry| entry.file.clone());
        match replaced {
            Ok(replaced) => {
                lock_of(&self.sealed).retain(|(name, _)| !old().any(|old| old == *name));
                self.remove_when_sure(old(), replaced);
                Ok(())
            }
            // Either may be named on disk: both stay until that is known.
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

/// Puts one entry in the place of several.
fn swap(manifest: &mut Manifest, entries: &[SegmentEntry], file: &str) -> Result<(), LogError> {
    let (first, last) = (&entries[0], &entries[entries.len() - 1]);
    let at = manifest.segments.iter().position(|entry| entry == first);
    let place = at.map(|at| at..at + entries.len());
    let Some(place) = place.filter(|place| manifest.segments.get(place.clone()) == Some(entries))
    else {
        return Err(LogError::from_io(
            "writing a segment anew",
            std::io::Error::other("the segments have changed meanwhile"),
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
    /// Changes the manifest, on disk and then here; one change at a time.
    pub(super) fn replace_manifest(
        &self,
        change: impl FnOnce(&mut Manifest) -> Result<(), LogError>,
    ) -> Result<Replaced, LogError> {
        let _turn = lock_of(&self.manifest_turn);
        let mut manifest = self.manifest().clone();
        change(&mut manifest)?;
        let replaced = manifest::replace(&self.folder, &manifest)?;
        self.set_manifest(manifest);
        if replaced == Replaced::Lasting {
            self.remove_stale();
        }
        Ok(replaced)
    }

    /// Removes files that the manifest has named before, now or once it lasts.
    fn remove_when_sure(&self, files: impl Iterator<Item = String>, replaced: Replaced) {
        lock_of(&self.stale).extend(files);
        if replaced == Replaced::Lasting {
            let _turn = lock_of(&self.manifest_turn);
            self.remove_stale();
        }
    }

    /// The manifest on disk is the one here: what it does not name can go.
    fn remove_stale(&self) {
        let stale = std::mem::take(&mut *lock_of(&self.stale));
        let manifest = self.manifest();
        for file in stale {
            if !manifest.names(&file)
                && let Err(error) = self.folder.remove(&file)
            {
                // The next opening clears it away.
                tracing::warn!(file, %error, "a file that another one took the place of stays");
            }
        }
    }
}
