//! Clauses that must not match, in a form that tantivy 0.27 excludes correctly.
//!
//! tantivy calls `seek_danger` for documents before the clause's first match, which phrases do not
//! support: a debug assertion fails. Here, only plain `seek` is called on a clause.

use tantivy::{
    DocId, DocSet, Score, SegmentReader, TantivyError,
    query::{ConstScorer, EnableScoring, Explanation, Query, Scorer, Weight},
};

/// A clause that only reports whether it matches.
#[derive(Debug)]
pub(super) struct Exclusion(pub(crate) Box<dyn Query>);

impl Clone for Exclusion {
    fn clone(&self) -> Self {
        Self(self.0.box_clone())
    }
}

impl Query for Exclusion {
    fn weight(&self, scoring: EnableScoring<'_>) -> tantivy::Result<Box<dyn Weight>> {
        let silent = match scoring.searcher() {
            Some(searcher) => EnableScoring::disabled_from_searcher(searcher),
            None => EnableScoring::disabled_from_schema(scoring.schema()),
        };
        Ok(Box::new(ExclusionWeight(self.0.weight(silent)?)))
    }
}

struct ExclusionWeight(Box<dyn Weight>);

impl Weight for ExclusionWeight {
    fn scorer(&self, segment: &SegmentReader, boost: Score) -> tantivy::Result<Box<dyn Scorer>> {
        let matches = PlainSeek(self.0.scorer(segment, boost)?);
        Ok(Box::new(ConstScorer::new(matches, 0.0)))
    }

    fn explain(&self, _: &SegmentReader, _: DocId) -> tantivy::Result<Explanation> {
        let reason = "an exclusion has no score to explain".to_owned();
        Err(TantivyError::InvalidArgument(reason))
    }
}

/// Uses the default `seek_danger` of the trait, which seeks.
struct PlainSeek(Box<dyn Scorer>);

impl DocSet for PlainSeek {
    fn advance(&mut self) -> DocId {
        self.0.advance()
    }

    fn seek(&mut self, target: DocId) -> DocId {
        self.0.seek(target)
    }

    fn doc(&self) -> DocId {
        self.0.doc()
    }

    fn size_hint(&self) -> u32 {
        self.0.size_hint()
    }
}
