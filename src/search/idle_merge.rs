//! Merges segments while the index is idle.
//!
//! Each segment has its own dictionary, which each search consults, so a few large segments are
//! smaller and faster than many small ones. While events arrive, tantivy's merge policy only limits
//! the number of segments; idle time allows more merging.

use std::{
    sync::{Arc, PoisonError, Weak},
    time::Duration,
};

use tantivy::{FutureResult, SegmentMeta, index::SegmentId};

use super::{
    error::IndexError,
    index::{Merges, SearchIndex, WriterState},
    refusal::engine_error,
};

/// The largest merged segment has at most this many times the passages of the others. A passage is
/// therefore rewritten about as often as the index doubles.
const LARGEST_SHARE: u64 = 3;
/// Maximum number of passages merged at once: about half a minute of one processor.
const JOINED_PASSAGES_MAX: u64 = 2_000_000;
/// Attempts, with pauses, when an automatic merge holds one of the segments.
const ATTEMPTS: usize = 4;
const ATTEMPT_PAUSE: Duration = Duration::from_secs(1);
/// Time for the thread of a finished merge to release its segments.
const LAST_MOMENT: Duration = Duration::from_millis(100);

impl SearchIndex {
    /// Merges segments if that is worthwhile, and removes files that are no longer needed. Returns
    /// whether it merged. Search results do not change, adding and searching continue, and an index
    /// that is dropped meanwhile stays as it was.
    ///
    /// # Errors
    /// [`IndexError`] when the index cannot be read or written.
    pub fn join_segments(index: &Weak<Self>) -> Result<bool, IndexError> {
        let Some(joining) = index.upgrade().map(|this| Arc::clone(&this.joining)) else {
            return Ok(false);
        };
        // One at a time: the second caller sees the first one's result.
        let _one = joining.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..ATTEMPTS {
            let Some(this) = index.upgrade() else {
                return Ok(false);
            };
            let Some(merge) = this.start_joining(&mut this.state())? else {
                this.show_joined(&mut this.state())?;
                return Ok(false);
            };
            // Waiting must not keep the index open.
            drop(this);
            let merged = merge.wait();
            // The merge thread keeps the segments, and their files, for a moment longer.
            std::thread::sleep(LAST_MOMENT);
            let Some(this) = index.upgrade() else {
                return Ok(false);
            };
            let Err(error) = merged else {
                this.show_joined(&mut this.state())?;
                return Ok(true);
            };
            // An automatic merge held one of the segments.
            tracing::debug!(%error, "segments of the search index were not merged");
            drop(this);
            std::thread::sleep(ATTEMPT_PAUSE);
        }
        Ok(false)
    }

    /// Merges segments of an index that is about to be closed. Automatic merges end first, so that
    /// the index on disk is compact. Adding waits meanwhile.
    ///
    /// # Errors
    /// [`IndexError`] when the index cannot be read or written.
    pub fn join_before_closing(&self) -> Result<(), IndexError> {
        let _one = self.joining.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.state();
        self.settle(&mut state)?;
        if let Some(merge) = self.start_joining(&mut state)? {
            let merged = merge.wait();
            merged.map_err(|error| engine_error("joined", &self.dir, error))?;
            // The merge thread keeps the segments, and their files, for a moment longer.
            self.settle(&mut state)?;
        }
        self.show_joined(&mut state)
    }

    fn start_joining(&self, state: &mut WriterState) -> Result<Option<MergeFuture>, IndexError> {
        if self.merges == Merges::Never {
            return Ok(None);
        }
        let segments = self.index.searchable_segment_metas();
        let segments = segments.map_err(|error| engine_error("read", &self.dir, error))?;
        let sizes = segments
            .iter()
            .map(|segment| (segment.id(), u64::from(segment.num_docs())))
            .collect();
        let chosen: Vec<SegmentId> = worth_joining(sizes);
        if chosen.len() < 2 {
            return Ok(None);
        }
        self.write(state, |writer| Ok(Some(writer.merge(&chosen))))
    }

    /// Makes searches use the merged segments, so that the old files can be removed.
    fn show_joined(&self, state: &mut WriterState) -> Result<(), IndexError> {
        self.reload(None)?;
        self.note_files(state);
        self.write(state, |writer| writer.garbage_collect_files().wait())?;
        Ok(())
    }
}

type MergeFuture = FutureResult<Option<SegmentMeta>>;

/// Selects segments by their passage counts: as many of the smallest as possible, without one that
/// is large compared with the others.
fn worth_joining<T>(mut segments: Vec<(T, u64)>) -> Vec<T> {
    segments.sort_by_key(|(_, passages)| *passages);
    let (mut passages, mut count) = (0, 0);
    for (at, (_, own)) in segments.iter().enumerate() {
        if passages + own > JOINED_PASSAGES_MAX {
            break;
        }
        if *own <= passages * LARGEST_SHARE {
            count = at + 1;
        }
        passages += own;
    }
    segments.truncate(count);
    segments.into_iter().map(|(segment, _)| segment).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    // Merging everything each time would rewrite a large index for every few new events.
    #[test]
    fn merge_leaves_large_segments() {
        let cases: [(&[u64], &[u64]); 8] = [
            (&[], &[]),
            (&[70], &[]),
            (&[70, 70], &[70, 70]),
            (&[1_000, 5, 9], &[5, 9]),
            (&[1_000, 300, 5, 90], &[5, 90, 300, 1_000]),
            (&[1_000, 10], &[]),
            (&[1_500_000, 400_000, 300_000], &[300_000, 400_000]),
            (&[40, 40, 40, 1_999_000], &[40, 40, 40]),
        ];
        for (segments, joined) in cases {
            let segments = segments.iter().map(|&passages| (passages, passages));
            let mut found = worth_joining(segments.collect());
            found.sort_unstable();
            assert_eq!(found, joined);
        }
    }
}
