//! A second look at the best passages: words that stand side by side in the
//! query and in the passage count more.
//!
//! Looking at positions for every match would make each search slow; looking at
//! the first [`POOL`] only costs little and is where it matters.

use std::{collections::HashMap, sync::Arc};

use tantivy::{
    DocAddress, DocId, DocSet, Score, Searcher, SegmentReader, TERMINATED, TantivyError,
    index::SegmentId,
    query::{
        Bm25StatisticsProvider, BooleanQuery, ConstScorer, EmptyScorer, EnableScoring, Explanation,
        Occur, Query, Scorer, Weight,
    },
};

/// Passages that get a second look. Independent of the page, so that pages of
/// one search agree on the order.
pub(super) const POOL: usize = 100;
/// Pairs of neighbours that are looked for.
pub(super) const PAIRS_MAX: usize = 24;

/// Adds the scores of `pairs` to the first [`POOL`] of `found`, and sorts these.
pub(super) fn rescore(
    searcher: &Searcher,
    statistics: &dyn Bm25StatisticsProvider,
    pairs: &[Box<dyn Query>],
    found: &mut [(Score, DocAddress)],
) -> tantivy::Result<()> {
    let length = found.len().min(POOL);
    let best = &mut found[..length];
    let pool = Pool::of(searcher, best);
    let mut gained: HashMap<DocAddress, Score> = HashMap::new();
    for pair in pairs {
        let within: Vec<(Occur, Box<dyn Query>)> = vec![
            (Occur::Must, Box::new(pool.clone())),
            (Occur::Must, pair.box_clone()),
        ];
        let scoring = EnableScoring::enabled_from_statistics_provider(statistics, searcher);
        let weight = BooleanQuery::new(within).weight(scoring)?;
        for (segment, reader) in (0..).zip(searcher.segment_readers()) {
            if pool.0.contains_key(&reader.segment_id()) {
                weight.for_each(reader, &mut |doc, score| {
                    *gained.entry(DocAddress::new(segment, doc)).or_default() += score;
                })?;
            }
        }
    }
    for (score, address) in &mut *best {
        *score += gained.get(address).copied().unwrap_or_default();
    }
    best.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    Ok(())
}

/// A query that is these documents, in order of segment.
#[derive(Clone, Debug)]
struct Pool(Arc<HashMap<SegmentId, Vec<DocId>>>);

impl Pool {
    fn of(searcher: &Searcher, found: &[(Score, DocAddress)]) -> Self {
        let mut docs: HashMap<SegmentId, Vec<DocId>> = HashMap::new();
        for (_, address) in found {
            let segment = searcher.segment_reader(address.segment_ord).segment_id();
            docs.entry(segment).or_default().push(address.doc_id);
        }
        docs.values_mut().for_each(|docs| docs.sort_unstable());
        Self(Arc::new(docs))
    }
}

impl Query for Pool {
    fn weight(&self, _: EnableScoring<'_>) -> tantivy::Result<Box<dyn Weight>> {
        Ok(Box::new(self.clone()))
    }
}

impl Weight for Pool {
    fn scorer(&self, reader: &SegmentReader, _: Score) -> tantivy::Result<Box<dyn Scorer>> {
        let docs = self
            .0
            .get(&reader.segment_id())
            .cloned()
            .unwrap_or_default();
        if docs.is_empty() {
            return Ok(Box::new(EmptyScorer));
        }
        Ok(Box::new(ConstScorer::new(Docs { docs, next: 0 }, 0.0)))
    }

    fn explain(&self, _: &SegmentReader, _: DocId) -> tantivy::Result<Explanation> {
        let reason = "a pool has no score to explain".to_owned();
        Err(TantivyError::InvalidArgument(reason))
    }
}

/// Documents of one segment, in order.
struct Docs {
    docs: Vec<DocId>,
    next: usize,
}

impl DocSet for Docs {
    fn advance(&mut self) -> DocId {
        self.next += 1;
        self.doc()
    }

    fn doc(&self) -> DocId {
        self.docs.get(self.next).copied().unwrap_or(TERMINATED)
    }

    fn size_hint(&self) -> u32 {
        u32::try_from(self.docs.len()).unwrap_or(u32::MAX)
    }
}
