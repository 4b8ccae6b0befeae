//! Segments that are put together while nothing else is to do.
//!
//! Each segment has its own dictionary, and each search looks into all of them: a few
//! large ones are smaller and faster than many small ones. While events come, tantivy's
//! policy merges as much as keeps their number down; when none come there is time.

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

/// The largest segment that is joined has at most so many times the passages of the
/// others: a passage is written anew only as often as an index doubles, or nearly.
const LARGEST_SHARE: u64 = 3;
/// More passages are not joined at once: so many take about half a minute of one
/// processor.
const JOINED_PASSAGES_MAX: u64 = 2_000_000;
/// A merge that runs by itself may have a segment: so often it is tried, after a pause.
const ATTEMPTS: usize = 4;
const ATTEMPT_PAUSE: Duration = Duration::from_secs(1);
/// In which the thread of a merge that is done lets go what it had.
const LAST_MOMENT: Duration = Duration::from_millis(100);

impl SearchIndex {
    /// Puts segments together, if there are some that are worth it, and removes the files
    /// that nothing needs any more. Says whether there were such segments. What is searched
    /// is the same. Adding and searching go on meanwhile, and an index that is let go
    /// meanwhile stays as it was.
    ///
    /// # Errors
    /// [`IndexError`] when the index cannot be read or written.
    pub fn join_segments(index: &Weak<Self>) -> Result<bool, IndexError> {
        let Some(joining) = index.upgrade().map(|this| Arc::clone(&this.joining)) else {
            return Ok(false);
        };
        // One at a time: who comes second looks at what the first one made.
        let _one = joining.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..ATTEMPTS {
            let Some(this) = index.upgrade() else {
                return Ok(false);
            };
            let Some(merge) = this.start_joining(&mut this.state())? else {
                this.show_joined(&mut this.state())?;
                return Ok(false);
            };
            // Nobody keeps the index open for it.
            drop(this);
            let merged = merge.wait();
            // Its thread has the segments for a moment more, and so their files.
            std::thread::sleep(LAST_MOMENT);
            let Some(this) = index.upgrade() else {
                return Ok(false);
            };
            let Err(error) = merged else {
                this.show_joined(&mut this.state())?;
                return Ok(true);
            };
            // A merge that ran by itself had one of the segments.
            tracing::debug!(%error, "segments of the search index were not joined");
            drop(this);
            std::thread::sleep(ATTEMPT_PAUSE);
        }
        Ok(false)
    }

    /// The same for an index that is closed soon: merges that run by themselves end first,
    /// so that what is left on disk is dense. Adding waits meanwhile.
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
            // Its thread has the segments for a moment more, and so their files.
            self.settle(&mut state)?;
        }
        self.show_joined(&mut state)
    }

    fn start_joining(&self, state: &mut WriterState) -> Result<Option<Merging>, IndexError> {
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

    /// Searches see what was joined, and so nothing holds what it was made of.
    fn show_joined(&self, state: &mut WriterState) -> Result<(), IndexError> {
        self.reload(None)?;
        self.note_files(state);
        self.write(state, |writer| writer.garbage_collect_files().wait())?;
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
