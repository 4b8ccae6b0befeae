//! Sealing a full segment, rotating to a new file after a failed sync, and recovering from a failed
//! append.
//!
//! Sealing and rotating take effect in one step, when the manifest is replaced: before that nothing
//! has changed, and afterwards nothing is written to the old file.

use std::sync::atomic::Ordering;

use super::{
    Folder, LogError, RedbLog,
    active::{self, ActiveSegment, create_segment},
    copy,
    manifest::{LogMark, ReplaceOutcome, SegmentEntry},
    segment::{self, End, Reader},
};
use crate::port::EventLog;

/// A segment that cannot be sealed, for lack of handles or space, stays in use until it reaches
/// this many times its limit.
const OVERFULL: u64 = 2;

impl<F: Folder> RedbLog<F> {
    /// Recovers from a failed sync: the batch may or may not be on disk, and reading it back would
    /// not tell. Copies the acknowledged part to a new file; once that has replaced the old one,
    /// the batch is certainly not there.
    pub(super) fn recover_from_sync(&self, head: u64, failed: LogError) -> Result<u64, LogError> {
        tracing::error!(error = %failed, "a sync of the log failed; the last segment is rewritten");
        self.recent.forget();
        self.poisoned.store(true, Ordering::Release);
        match self.rotate_if_poisoned(head) {
            Ok(()) => Err(failed),
            Err(error) => Err(LogError::UnknownOutcome {
                head,
                what: format!("{failed}; then: {error}"),
            }),
        }
    }

    /// Recovers from an append that failed before its sync: redb refuses everything until the file
    /// is reopened, which also shows whether the batch is there.
    pub(super) fn recover(
        &self,
        head: u64,
        wanted: u64,
        failed: LogError,
    ) -> Result<u64, LogError> {
        tracing::warn!(error = %failed, "an append failed; the segment is reopened");
        self.recent.forget();
        let mut active = self.write_active();
        let opened = active.open_to_append(&self.folder, self.options.cache_bytes);
        let now = match opened {
            Ok(end) => end.offset,
            Err(error) => {
                // Opening may have synced, and that sync may be what failed.
                self.poisoned.store(true, Ordering::Release);
                drop(active);
                let written = self.rotate_if_poisoned(head);
                return Err(match written {
                    Ok(()) => failed,
                    Err(_) if matches!(failed, LogError::NoSpace { .. }) => failed,
                    Err(_) => LogError::UnknownOutcome {
                        head,
                        what: format!("{failed}; then: {error}"),
                    },
                });
            }
        };
        if now == wanted {
            return Ok(wanted);
        }
        if now == head {
            return Err(failed);
        }
        self.head.send_modify(|state| state.offset = now);
        Err(LogError::HeadMismatch {
            expected: head,
            actual: now,
        })
    }

    /// After a failed sync, copies the last segment up to `head` into a new file and makes the
    /// manifest name that one.
    ///
    /// # Errors
    /// The segment stays untrusted, and nothing may be appended.
    pub(super) fn rotate_if_poisoned(&self, head: u64) -> Result<(), LogError> {
        if !self.is_poisoned() || self.mode.is_read_only() {
            return Ok(());
        }
        let cache_bytes = self.options.cache_bytes;
        let mut active = self.write_active();
        let first_offset = active.first_offset;
        let end = active.open_to_read(&self.folder, cache_bytes)?;
        if end.offset < head {
            return Err(LogError::damaged(
                end.offset + 1,
                "acknowledged events cannot be read back after a failed sync",
            ));
        }
        let source = active.open.as_ref().ok_or(LogError::Closed)?;
        let identity = self.identity();
        let copy = active::next_copy(&active.file);
        let mut fresh = create_segment(&self.folder, identity, first_offset, copy, cache_bytes)?;
        let replaced = copy_into(&source.database, &mut fresh, head).and_then(|()| {
            self.replace_manifest(|manifest| {
                if let Some(last) = manifest.segments.last_mut() {
                    last.file = Some(fresh.file.clone());
                }
                Ok(())
            })
        });
        let replaced = match replaced {
            Ok(replaced) => replaced,
            Err(error) => {
                self.discard(fresh, &error);
                return Err(error);
            }
        };
        let mut old = std::mem::replace(&mut *active, fresh);
        drop(active);
        let _closed = old.close();
        self.head.send_modify(|state| state.offset = head);
        match replaced {
            ReplaceOutcome::Lasting => {
                self.poisoned.store(false, Ordering::Release);
                // If this fails, the next opening removes the file.
                let _left = self.folder.remove(&old.file);
                tracing::warn!(
                    first_offset,
                    "the last segment was rewritten; appends continue"
                );
                Ok(())
            }
            // After a power loss the manifest may name the old file, so it stays.
            ReplaceOutcome::InPlace => Err(folder_not_synced()),
        }
    }

    /// Starts a new segment when the last one would exceed its limit.
    pub(super) fn seal_if_full(&self, head: u64, batch_bytes: u64) -> Result<(), LogError> {
        let full = {
            let active = self.active()?;
            let used = active.open.as_ref().map_or(0, |open| open.used_bytes);
            let after = used + batch_bytes;
            if active.first_offset == head + 1 || after <= self.options.segment_bytes_max {
                return Ok(());
            }
            after > self.options.segment_bytes_max.saturating_mul(OVERFULL)
        };
        match self.seal(head) {
            // Nothing has changed, so the segment can stay in use.
            Err(error) if !full && !self.is_poisoned() => {
                tracing::warn!(%error, "a full segment could not be sealed; it stays in use");
                Ok(())
            }
            sealed => sealed,
        }
    }

    /// Seals the last segment and starts a new one. Once the manifest names the new one, it is
    /// used, whatever follows.
    pub(super) fn seal(&self, head: u64) -> Result<(), LogError> {
        let next = head + 1;
        let cache_bytes = self.options.cache_bytes;
        let end = self.end_of_active()?;
        let fresh = create_segment(&self.folder, self.identity(), next, 0, cache_bytes)?;
        let mark = LogMark::new(head, end.chain_hash);
        let replaced = self.replace_manifest(|manifest| {
            if let Some(last) = manifest.segments.last_mut() {
                last.sealed = Some(mark.clone());
            }
            manifest.segments.push(SegmentEntry {
                first: next,
                file: Some(fresh.file.clone()),
                sealed: None,
                form: None,
            });
            manifest.reached = mark;
            Ok(())
        });
        match replaced {
            Ok(ReplaceOutcome::Lasting) => {}
            Ok(ReplaceOutcome::InPlace) => self.poisoned.store(true, Ordering::Release),
            Err(error) => {
                self.discard(fresh, &error);
                return Err(error);
            }
        }
        let mut full = std::mem::replace(&mut *self.write_active(), fresh);
        if let Err(error) = full.close() {
            // It is repaired when it is read.
            tracing::warn!(first_offset = full.first_offset, %error, "a full segment was not closed");
        }
        Ok(())
    }

    /// Discards a new segment that could not replace the old one.
    fn discard(&self, mut fresh: ActiveSegment<F>, why: &LogError) {
        let _closed = fresh.close();
        if matches!(why, LogError::UnknownOutcome { .. }) {
            // The manifest on disk may name it: replace the manifest before appending.
            self.poisoned.store(true, Ordering::Release);
        } else {
            let _left = self.folder.remove(&fresh.file);
        }
    }

    fn end_of_active(&self) -> Result<End, LogError> {
        let active = self.active()?;
        let open = active.open.as_ref().ok_or(LogError::Closed)?;
        segment::end(Reader::frames(&open.database), active.first_offset)
    }

    /// Records the current head in the manifest, so that an older copy of the last segment is
    /// detected at the next opening.
    pub(super) fn note_reached(&self) -> Result<(), LogError> {
        let head = self.head.borrow().offset;
        let noted = self.manifest().reached.offset;
        if self.mode.is_read_only() || self.is_poisoned() || noted == head {
            return Ok(());
        }
        let end = self.end_of_active()?;
        let chain_hash = end.chain_hash.filter(|_| end.offset == head);
        let _lasting = self.replace_manifest(|manifest| {
            manifest.reached = LogMark::new(head, chain_hash);
            Ok(())
        })?;
        Ok(())
    }
}

pub(super) fn folder_not_synced() -> LogError {
    LogError::from_io(
        "syncing the log's folder",
        std::io::Error::other("the sync failed"),
    )
}

/// Copies a segment into a new one, and checks where the copy ends.
fn copy_into<F: Folder>(
    from: &::redb::Database,
    fresh: &mut ActiveSegment<F>,
    last: u64,
) -> Result<(), LogError> {
    use ::redb::StorageBackend;
    let first_offset = fresh.first_offset;
    let open = fresh.open.as_mut().ok_or(LogError::Closed)?;
    copy::copy(from, &open.database, first_offset, last)?;
    let end = segment::end(Reader::frames(&open.database), first_offset)?;
    if end.offset != last {
        return Err(LogError::damaged(
            end.offset + 1,
            "the copy of a segment ends at another offset",
        ));
    }
    if let Some(storage) = &open.storage {
        open.used_bytes = storage
            .len()
            .map_err(|error| LogError::from_io("measuring a segment", error))?;
        open.empty_bytes = 0;
    }
    Ok(())
}
