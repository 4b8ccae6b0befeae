//! Segments that are put together while nothing else is to do.
//!
//! Each segment has its own dictionary, and each search looks into all of them: a few
//! large ones are smaller and faster than many small ones. While events come, tantivy's
//! policy merges as much as keeps their number down; when none come there is time.

use std::sync::{Arc, PoisonError, Weak};

use tantivy::{FutureResult, SegmentMeta, index::SegmentId};

use super::{
    error::IndexError,
    index::{Merges, SearchIndex},
    refusal::engine_error,
};

/// The largest segment that is joined has at most so many times the passages of the
/// others: a passage is written anew only as often as an index doubles, or nearly.
const LARGEST_SHARE: u64 = 3;
/// More passages are not joined at once: so many take about half a minute of one
/// processor.
const JOINED_PASSAGES_MAX: u64 = 2_000_000;

impl SearchIndex {
    /// Puts segments together, if there are some that are worth it, and says whether
    /// there were. What is searched is the same. Adding and searching go on meanwhile,
    /// and an index that is let go meanwhile stays as it was.
    ///
    /// # Errors
    /// [`IndexError`] when the index cannot be read or written.
    pub fn join_segments(index: &Weak<Self>) -> Result<bool, IndexError> {
        let Some(joining) = index.upgrade().map(|this| Arc::clone(&this.joining)) else {
            return Ok(false);
        };
        // One at a time: who comes second looks at what the first one made.
        let _one = joining.lock().unwrap_or_else(PoisonError::into_inner);
        let started = index.upgrade().map(|this| this.start_joining());
        let Some(merge) = started.transpose()?.flatten() else {
            return Ok(false);
        };
        // Nobody keeps the index open for it.
        let merged = merge.wait();
        let Some(this) = index.upgrade() else {
            return Ok(false);
        };
        if let Err(error) = merged {
            tracing::debug!(%error, "segments of the search index were not joined");
            return Ok(false);
        }
        this.show_joined()?;
        Ok(true)
    }

    fn start_joining(&self) -> Result<Option<Merging>, IndexError> {
        if self.merges == Merges::Never {
            return Ok(None);
        }
        let mut state = self.state();
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
        self.write(&mut state, |writer| Ok(Some(writer.merge(&chosen))))
    }

    fn show_joined(&self) -> Result<(), IndexError> {
        let mut state = self.state();
        self.reload(None)?;
        self.note_files(&mut state);
        self.write(&mut state, |writer| writer.garbage_collect_files().wait())?;
        Ok(())
    }
}

type Merging = FutureResult<Option<SegmentMeta>>;

/// Which of the segments, given with their passages: the smallest ones, as many as can
/// be without one that is large beside the others.
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

    // Joining everything each time would write a large index anew for every few events
    // that somebody adds now and then.
    #[test]
    fn what_is_large_is_left_alone() {
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
