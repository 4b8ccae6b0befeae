//! Scrubbing: what was erased goes off the disk.
//!
//! The manifest says that it is under way before anybody says what goes, and that it is
//! done once nothing of it is in a file of the log any more. In between sealed segments
//! are written anew, each as whenever that is done: whoever is interrupted begins again,
//! and finds those that are done already done.

use super::{
    Folder, RedbLog, active, lock_of,
    manifest::{Manifest, Replaced, SegmentEntry},
    open::names,
    rewriting::{Change, Ended},
    sealing::folder_not_synced,
};
use crate::log::{Erasure, Record, port::LogError};

/// What was done to the log's files.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Scrubbed {
    /// Segments that were written anew.
    pub segments: u64,
    /// Files of segments before, with their sizes in bytes.
    pub before: Vec<(String, u64)>,
    /// Files of segments afterwards.
    pub after: Vec<(String, u64)>,
}

impl Change for Erasure {
    fn record(&self, offset: u64, record: Record) -> Record {
        self.left_of(offset, record)
    }

    fn keeps_blob(&self, home_offset: u64) -> bool {
        !self.blobs.contains(&home_offset)
    }

    fn drops_blobs(&self, first: u64, last: u64) -> bool {
        self.blobs.range(first..=last).next().is_some()
    }
}

impl<F: Folder> RedbLog<F> {
    /// The first offset at which a record may say what is to be erased and was not yet;
    /// none: no erasing is under way.
    #[must_use]
    pub fn erasing(&self) -> Option<u64> {
        self.manifest().erasing
    }

    /// Lets the manifest say that an erasing begins: what goes is said by records behind
    /// the head. When it returns that is on the disk.
    ///
    /// # Errors
    /// What the system says. It may have begun then, and can be begun again.
    pub fn begin_erasing(&self) -> Result<(), LogError> {
        if self.mode.is_read_only() {
            return Err(LogError::OpenedToRead);
        }
        self.open_to_write()?;
        let next = self.head.borrow().offset + 1;
        self.lasting(|manifest| {
            manifest.erasing.get_or_insert(next);
        })
    }

    /// Stretches of offsets that were lost, which was accepted: there is nothing to erase.
    #[must_use]
    pub fn accepted_losses(&self) -> Vec<(u64, u64)> {
        let manifest = self.manifest();
        let lost = manifest
            .segments
            .iter()
            .filter(|entry| entry.file.is_none());
        lost.filter_map(|entry| Some((entry.first, entry.sealed.as_ref()?.offset)))
            .collect()
    }

    /// Writes anew what holds something that goes, without it; and what still has frames,
    /// because those say the salts of others, too. `report` is told how many segments are
    /// done, and of how many.
    ///
    /// # Errors
    /// Of the first step that failed. What was done before stays done, and it can be begun
    /// again.
    pub fn scrub(
        &self,
        erasure: &Erasure,
        mut report: impl FnMut(u64, u64),
    ) -> Result<Scrubbed, LogError> {
        // One pass at a time: each needs what the one before left.
        let _turn = lock_of(&self.rewriting);
        let mut done = Scrubbed {
            before: self.segment_files()?,
            ..Scrubbed::default()
        };
        self.seal_within(0..=u64::MAX)?;
        let manifest = self.manifest().clone();
        self.check_sealed(&manifest, erasure)?;
        let wanted = |entry: &&SegmentEntry| {
            let last = entry.sealed.as_ref().map_or(0, |mark| mark.offset);
            let touched = entry.form.is_none() || erasure.touches(entry.first, last);
            entry.sealed.is_some() && entry.file.is_some() && touched
        };
        let entries: Vec<_> = manifest.segments.iter().filter(wanted).cloned().collect();
        for entry in &entries {
            let closing = || self.head.borrow().closed;
            match self.rewrite(std::slice::from_ref(entry), erasure, &closing) {
                Ok(_) => done.segments += 1,
                Err(Ended::Stopped) => return Err(LogError::Closed),
                Err(Ended::Failed(error)) => return Err(error),
            }
            report(done.segments, entries.len() as u64);
        }
        self.remove_unnamed()?;
        self.recent.forget();
        done.after = self.segment_files()?;
        Ok(done)
    }

    /// Lets the manifest say that all is erased that records up to an offset say; 0: none
    /// did.
    ///
    /// # Errors
    /// What the system says; the erasing is begun again then.
    pub fn end_erasing(&self, offset: u64) -> Result<(), LogError> {
        self.lasting(|manifest| {
            manifest.erased = manifest.erased.max(offset);
            manifest.erasing = None;
        })
    }

    /// Changes the manifest so that it outlives the power.
    fn lasting(&self, change: impl FnOnce(&mut Manifest)) -> Result<(), LogError> {
        let replaced = self.replace_manifest(|manifest| {
            change(manifest);
            Ok(())
        })?;
        match replaced {
            Replaced::Lasting => Ok(()),
            Replaced::InPlace => Err(folder_not_synced()),
        }
    }

    /// What goes must be in sealed segments: the last one cannot be written anew.
    fn check_sealed(&self, manifest: &Manifest, erasure: &Erasure) -> Result<(), LogError> {
        let open_from = manifest.last().map_or(1, |last| last.first);
        if erasure.touches(open_from, u64::MAX) {
            return Err(LogError::from_io(
                "sealing what is to be erased",
                std::io::Error::other("a sync of the log has failed; try again"),
            ));
        }
        Ok(())
    }

    /// Removes unnamed files of sealed segments and syncs the folder.
    ///
    /// Only files before the last segment go. A file of the last segment or behind it may
    /// be one that an append is about to use: sealing and rewriting create the file first
    /// and name it in the manifest afterwards. Nothing that is erased is in such a file,
    /// because erasing seals first.
    pub(super) fn remove_unnamed(&self) -> Result<(), LogError> {
        // After a power loss the manifest on disk counts, and it may name other files.
        self.lasting(|_| {})?;
        let _turn = lock_of(&self.manifest_turn);
        let manifest = self.manifest().clone();
        let last_first = manifest.last().map_or(0, |last| last.first);
        let failed = |error| LogError::from_io("removing what was erased", error);
        for name in names(&self.folder)? {
            let is_before = active::parse_name(&name).is_some_and(|(first, _)| first < last_first);
            if is_before && !manifest.names(&name) {
                self.folder.remove(&name).map_err(failed)?;
            }
        }
        lock_of(&self.stale).clear();
        self.folder.sync().map_err(failed)
    }

    /// The files that the manifest names, and their sizes.
    fn segment_files(&self) -> Result<Vec<(String, u64)>, LogError> {
        let manifest = self.manifest().clone();
        let files = manifest
            .segments
            .iter()
            .filter_map(|entry| entry.file.clone());
        files
            .map(|file| {
                let bytes = self.folder.bytes_of(&file);
                let bytes = bytes.map_err(|e| LogError::from_io("measuring the log", e))?;
                Ok((file, bytes))
            })
            .collect()
    }
}
