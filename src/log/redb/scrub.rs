//! Scrubbing: removing erased content from disk.
//!
//! The manifest records an erasure as in progress before any record says what to erase, and as done
//! once no file of the log contains erased content. In between, the affected sealed segments are
//! rewritten. An interrupted erasure starts again; segments that were done before are rewritten
//! without effect.

use std::sync::Arc;

use async_trait::async_trait;

use super::{
    Folder, RedbLog, active, lock_of,
    manifest::{Manifest, ReplaceOutcome, SegmentEntry},
    open::names,
    rewrite::{Change, RewriteError},
    seal::folder_not_synced,
};
use crate::{
    Record,
    erasure::{ErasableLog, Erasure, ErasureProgress, ScrubOutcome, ScrubReport},
    port::LogError,
};

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
    /// Returns the first offset at which a record may request an erasure that is not done yet;
    /// `None`: no erasure is in progress.
    #[must_use]
    pub fn erasing(&self) -> Option<u64> {
        self.manifest().erasing
    }

    /// Notes in the manifest, durably, that an erasure begins. The records that are appended after
    /// the current head say what to erase.
    ///
    /// # Errors
    /// I/O errors. The erasure may have begun then, and can be begun again.
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

    /// Returns the ranges of offsets whose loss was accepted: there is nothing to erase in them.
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

    /// Rewrites the segments that contain erased content, so that they no longer contain it. Also
    /// rewrites the segments that still store frames, because frames reveal the salts of other
    /// records too. `report` is called with the number of finished segments and their total.
    ///
    /// # Errors
    /// The error of the first step that failed. Earlier steps stay done, and the scrub can be
    /// repeated.
    pub fn scrub(
        &self,
        erasure: &Erasure,
        mut report: impl FnMut(u64, u64),
    ) -> Result<ScrubOutcome, LogError> {
        // One rewrite at a time: each depends on the result of the previous one.
        let _turn = lock_of(&self.rewriting);
        let mut done = ScrubOutcome {
            before: self.segment_files()?,
            ..ScrubOutcome::default()
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
                Err(RewriteError::Stopped) => return Err(LogError::Closed),
                Err(RewriteError::Failed(error)) => return Err(error),
            }
            report(done.segments, entries.len() as u64);
        }
        self.remove_unnamed()?;
        self.recent.forget();
        done.after = self.segment_files()?;
        Ok(done)
    }

    /// Records in the manifest that all erasures requested up to this offset are done; 0: there was
    /// no request.
    ///
    /// # Errors
    /// I/O errors; the erasure is then begun again.
    pub fn end_erasing(&self, offset: u64) -> Result<(), LogError> {
        self.lasting(|manifest| {
            manifest.erased = manifest.erased.max(offset);
            manifest.erasing = None;
        })
    }

    /// Changes the manifest durably.
    fn lasting(&self, change: impl FnOnce(&mut Manifest)) -> Result<(), LogError> {
        let replaced = self.replace_manifest(|manifest| {
            change(manifest);
            Ok(())
        })?;
        match replaced {
            ReplaceOutcome::Lasting => Ok(()),
            ReplaceOutcome::InPlace => Err(folder_not_synced()),
        }
    }

    /// Checks that the erased content is in sealed segments: the last one cannot be rewritten.
    fn check_sealed(&self, manifest: &Manifest, erasure: &Erasure) -> Result<(), LogError> {
        let open_from = manifest.last().map_or(1, |last| last.first);
        if erasure.touches(open_from, u64::MAX) {
            return Err(LogError::from_io(
                "sealing a segment to erase from it",
                std::io::Error::other("a sync of the log failed; retry"),
            ));
        }
        Ok(())
    }

    /// Removes unnamed files of sealed segments and syncs the folder.
    ///
    /// Only files before the last segment are removed. A later file may be one that an append is
    /// about to use: sealing and rewriting create a file first and name it in the manifest
    /// afterwards. Such a file has no erased content, because an erasure seals the last segment
    /// first.
    pub(super) fn remove_unnamed(&self) -> Result<(), LogError> {
        // After a power loss the manifest on disk counts, so it must not name the files to remove.
        self.lasting(|_| {})?;
        let _turn = lock_of(&self.manifest_turn);
        let manifest = self.manifest().clone();
        let last_first = manifest.last().map_or(0, |last| last.first);
        let failed = |error| LogError::from_io("removing erased content", error);
        for name in names(&self.folder)? {
            let is_before = active::parse_name(&name).is_some_and(|(first, _)| first < last_first);
            if is_before && !manifest.names(&name) {
                self.folder.remove(&name).map_err(failed)?;
            }
        }
        lock_of(&self.stale).clear();
        self.folder.sync().map_err(failed)
    }

    /// Returns the files that the manifest names, and their sizes.
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

/// The epoch does not matter: a folder's lock keeps it to one process.
#[async_trait]
impl<F: Folder> ErasableLog for RedbLog<F> {
    async fn progress(&self) -> Result<ErasureProgress, LogError> {
        let manifest = self.manifest();
        Ok(ErasureProgress {
            erasing: manifest.erasing,
            erased: manifest.erased,
        })
    }

    fn accepted_losses(&self) -> Vec<(u64, u64)> {
        Self::accepted_losses(self)
    }

    async fn mark_begun(self: Arc<Self>) -> Result<(), LogError> {
        blocking(move || self.begin_erasing()).await
    }

    async fn remove(
        self: Arc<Self>,
        erasure: Arc<Erasure>,
        report: ScrubReport,
    ) -> Result<ScrubOutcome, LogError> {
        blocking(move || self.scrub(&erasure, report)).await
    }

    async fn mark_done(self: Arc<Self>, offset: u64) -> Result<(), LogError> {
        blocking(move || self.end_erasing(offset)).await
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, LogError> + Send + 'static,
) -> Result<T, LogError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| {
        let error = std::io::Error::other(error);
        Err(LogError::from_io("erasing", error))
    })
}
