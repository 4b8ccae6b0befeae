//! Removes events from the index and its files.
//!
//! Erased passages are marked first. Then only the segments that contain them are rewritten without
//! them. A rewritten segment has only the terms of its remaining passages.

use std::{
    collections::{BTreeSet, HashSet},
    sync::PoisonError,
    thread,
    time::{Duration, Instant},
};

use tantivy::{
    FutureResult, SegmentMeta, TantivyError,
    index::SegmentId,
    query::{BooleanQuery, Query, TermQuery},
    schema::IndexRecordOption,
};
use treering_domain::{ConversationId, EventKind, Namespace};

use super::{
    document::SearchableEvent,
    error::{IndexError, IndexSearchError},
    files,
    index::SearchIndex,
    plan::only_offsets,
    query::catch_search_panics,
    refusal::{engine_error, io_error},
    schema::kind_tag,
    sweep::each_match,
};

/// How long a purge waits for running merges. One of the largest takes about a minute.
const PURGE_WAIT_MAX: Duration = Duration::from_secs(600);
const PURGE_PAUSE: Duration = Duration::from_millis(50);

/// What a purge does next.
enum PurgeStep {
    Merges(FutureResult<Option<SegmentMeta>>),
    /// A file that belongs to no segment still exists, because a merge is running.
    HasOther(String),
    Done,
}

impl SearchIndex {
    /// Returns the offsets of visible events of some kinds in some conversations.
    ///
    /// # Errors
    /// [`IndexSearchError`] when the index is damaged.
    pub fn offsets_of(
        &self,
        namespace: &Namespace,
        conversations: &HashSet<ConversationId>,
        kinds: &[EventKind],
    ) -> Result<BTreeSet<u64>, IndexSearchError> {
        let tag = |tag: String| -> Box<dyn Query> {
            let term = self.fields.tag(&tag);
            Box::new(TermQuery::new(term, IndexRecordOption::Basic))
        };
        let kinds = kinds.iter().map(|kind| tag(kind_tag(namespace, *kind)));
        let of_kinds = BooleanQuery::union(kinds.collect());
        let published = self.published();
        let mut offsets = BTreeSet::new();
        catch_search_panics(|| {
            each_match(&published, &of_kinds, |columns, address| {
                if conversations.contains(&columns.conversation(address.doc_id)?) {
                    offsets.insert(columns.place(address.doc_id)?.0.offset);
                }
                Ok(())
            })
        })?;
        Ok(offsets)
    }

    /// Removes the events at these offsets from the index, and adds `left`, the stubs that remain
    /// of them. Commits: the events are invisible when this returns. They leave the disk with
    /// [`Self::purge`] or a later merge.
    ///
    /// # Errors
    /// [`IndexError`]; in that case, nothing was removed.
    pub fn erase(
        &self,
        offsets: &BTreeSet<u64>,
        left: &[SearchableEvent],
    ) -> Result<(), IndexError> {
        let mut state = self.state();
        let erased = only_offsets(offsets);
        self.write(&mut state, |writer| writer.delete_query(erased))?;
        let known = state.added_to;
        for event in left.iter().filter(|event| event.position <= known) {
            self.add_event(&mut state, event)?;
        }
        // An erasure must be durable when this returns.
        self.commit_durably(&mut state)
    }

    /// Rewrites every segment that has erased passages, so that their terms leave the disk too, and
    /// waits until the folder has only files of the index's segments. Adding and searching
    /// continue.
    ///
    /// # Errors
    /// [`IndexError`]; purging can be repeated.
    pub fn purge(&self) -> Result<(), IndexError> {
        // Hold off idle-time merges: they would only compete for the segments.
        let _one = self.joining.lock().unwrap_or_else(PoisonError::into_inner);
        let mut deadline = Instant::now() + PURGE_WAIT_MAX;
        loop {
            let step = self.purge_step()?;
            let waits_for = match step {
                PurgeStep::Done => return Ok(()),
                PurgeStep::Merges(merge) => match merge.wait() {
                    Ok(_) => {
                        deadline = Instant::now() + PURGE_WAIT_MAX;
                        continue;
                    }
                    // An automatic merge may hold the segment.
                    Err(error) => error,
                },
                PurgeStep::HasOther(file) => {
                    let waits = format!("{file} belongs to no segment and was not removed");
                    TantivyError::SystemError(waits)
                }
            };
            if Instant::now() > deadline {
                return Err(engine_error("purged", &self.dir, waits_for));
            }
            thread::sleep(PURGE_PAUSE);
        }
    }

    fn purge_step(&self) -> Result<PurgeStep, IndexError> {
        let mut state = self.state();
        if let Some(segment) = self.segment_with_erased()? {
            let merge = self.write(&mut state, |writer| Ok(writer.merge(&[segment])))?;
            return Ok(PurgeStep::Merges(merge));
        }
        if state.has_operations {
            // Otherwise files of uncommitted segments look like files of merged ones.
            self.commit_durably(&mut state)?;
        }
        self.reload(None)?;
        self.note_files(&mut state);
        self.write(&mut state, |writer| writer.garbage_collect_files().wait())?;
        if !self.dir.is_dir() {
            return Ok(PurgeStep::Done);
        }
        let metas = self.index.load_metas();
        let metas = metas.map_err(|error| engine_error("read", &self.dir, error))?;
        let other = files::find_other_file(&self.dir, &metas.list_segment_files());
        let other = other.map_err(|error| io_error("read", &self.dir, error))?;
        Ok(other.map_or(PurgeStep::Done, PurgeStep::HasOther))
    }

    fn segment_with_erased(&self) -> Result<Option<SegmentId>, IndexError> {
        let segments = self.index.searchable_segment_metas();
        let segments = segments.map_err(|error| engine_error("read", &self.dir, error))?;
        Ok(segments
            .iter()
            .find(|segment| segment.has_deletes())
            .map(|segment| segment.id()))
    }
}
