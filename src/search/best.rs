//! Finding the best passages, and counting those that match.
//!
//! A union of single terms has its best found without looking at all of its
//! matches: tantivy passes over blocks of postings that cannot hold any of them.
//! Filters as clauses of the query would switch that off, so where columns can
//! answer them and they let enough pass, they are asked about the few candidates
//! instead. The passages and their scores are the same either way.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashSet},
};

use tantivy::{
    DocAddress, DocSet, Score, Searcher, TERMINATED, Term,
    collector::TopDocs,
    query::{EnableScoring, Query},
};

use super::{
    columns::{ColumnFilter, OpenColumns},
    error::IndexError,
    hits::unreadable,
    index::Published,
    plan::NamespaceStatistics,
    query::{COUNTED_MAX, Planned, SearchFilters, SearchQuery, Total, Wholeness},
};

/// Filters that let a smaller share pass are clauses of the query: then few
/// documents are looked at anyway, and pruning would pass over little.
const PRUNED_SHARE_MIN: f64 = 0.05;

/// So many passages are looked at to count hits, unless all are to be counted: of one text
/// that is there a hundred thousand times all passages are one hit.
const COUNTED_IN_MAX: u64 = 20 * COUNTED_MAX;

/// The best passages.
pub(super) struct Found {
    /// In their order, each with what its words are worth.
    pub passages: Vec<(Score, DocAddress)>,
    /// So many of the first have names of the query whole.
    pub named: usize,
    /// How whole.
    pub wholeness: Wholeness,
    /// There are no others.
    pub is_all: bool,
}

/// A query in the making of an answer.
pub(super) struct Best<'a> {
    searcher: &'a Searcher,
    columns: &'a OpenColumns,
    statistics: &'a NamespaceStatistics<'a>,
    planned: &'a Planned,
    filters: &'a SearchFilters,
    is_pruned: bool,
}

impl<'a> Best<'a> {
    pub fn new(
        published: &'a Published,
        statistics: &'a NamespaceStatistics<'a>,
        planned: &'a Planned,
        filters: &'a SearchFilters,
    ) -> Result<Self, IndexError> {
        let mut this = Self {
            searcher: &published.searcher,
            columns: &published.columns,
            statistics,
            planned,
            filters,
            is_pruned: planned.is_prunable && ColumnFilter::answers(filters),
        };
        if this.is_pruned {
            for tags in &planned.filter_tags {
                this.is_pruned &= this.share(tags)? >= PRUNED_SHARE_MIN;
            }
        }
        Ok(this)
    }

    /// The share of the namespace's passages that have one of these tags.
    fn share(&self, tags: &[Term]) -> Result<f64, IndexError> {
        let mut passages = 0;
        for tag in tags {
            passages += self.searcher.doc_freq(tag).map_err(unreadable)?;
        }
        Ok(passages as f64 / self.statistics.passages.max(1) as f64)
    }

    /// What has the query's names whole, then all others; each the best first.
    pub fn find_all(&self, limit: usize) -> Result<Found, IndexError> {
        let (mut passages, wholeness) = self.find_named(limit)?;
        let named = passages.len();
        let mut is_all = false;
        if named < limit {
            let others = self.find(limit)?;
            is_all = others.len() < limit;
            let known: HashSet<DocAddress> = passages.iter().map(|(_, address)| *address).collect();
            let is_other = |(_, address): &(Score, DocAddress)| !known.contains(address);
            passages.extend(others.into_iter().filter(is_other));
        }
        Ok(Found {
            passages,
            named,
            wholeness,
            is_all,
        })
    }

    fn find_named(
        &self,
        limit: usize,
    ) -> Result<(Vec<(Score, DocAddress)>, Wholeness), IndexError> {
        let Some(names) = &self.planned.whole else {
            return Ok((Vec::new(), Wholeness::Parts));
        };
        let whole = self.find_by(names.query.as_ref(), limit)?;
        if !whole.is_empty() {
            return Ok((whole, Wholeness::Whole));
        }
        let Some(in_a_row) = &names.in_a_row else {
            return Ok((whole, Wholeness::Parts));
        };
        let in_a_row = self.find_by(in_a_row.as_ref(), limit)?;
        let wholeness = match in_a_row.is_empty() {
            true => Wholeness::Parts,
            false => Wholeness::InARow,
        };
        Ok((in_a_row, wholeness))
    }

    /// The best passages, best first, equal ones in the order of the index; fewer
    /// than `limit` when there are no more.
    pub fn find(&self, limit: usize) -> Result<Vec<(Score, DocAddress)>, IndexError> {
        match self.is_pruned {
            true => self.find_pruned(self.room_for(limit)),
            false => self.find_by(self.planned.query.as_ref(), limit),
        }
    }

    fn find_by(
        &self,
        query: &dyn Query,
        limit: usize,
    ) -> Result<Vec<(Score, DocAddress)>, IndexError> {
        let top = TopDocs::with_limit(self.room_for(limit)).order_by_score();
        self.searcher
            .search_with_statistics_provider(query, &top, self.statistics)
            .map_err(unreadable)
    }

    /// tantivy makes room for as many at once.
    fn room_for(&self, limit: usize) -> usize {
        let room = usize::try_from(self.searcher.num_docs()).unwrap_or(usize::MAX);
        limit.min(room).max(1)
    }

    fn find_pruned(&self, limit: usize) -> Result<Vec<(Score, DocAddress)>, IndexError> {
        let scoring =
            EnableScoring::enabled_from_statistics_provider(self.statistics, self.searcher);
        let weight = self.planned.words.weight(scoring).map_err(unreadable)?;
        let mut top = Top::new(limit);
        for (segment, reader) in (0..).zip(self.searcher.segment_readers()) {
            let columns = self.columns.of_segment(segment)?;
            let filter = ColumnFilter::new(columns, self.filters)?;
            let alive = reader.alive_bitset();
            let threshold = top.threshold;
            let mut candidate = |doc, score| {
                if score > top.threshold
                    && alive.is_none_or(|alive| alive.is_alive(doc))
                    && filter.passes(doc)
                {
                    top.push(score, DocAddress::new(segment, doc));
                }
                top.threshold
            };
            weight
                .for_each_pruning(threshold, reader, &mut candidate)
                .map_err(unreadable)?;
        }
        Ok(top.into_sorted())
    }

    /// How many hits there are; no further than [`COUNTED_MAX`] unless all are to be
    /// counted.
    pub fn count(&self, query: &SearchQuery) -> Result<Total, IndexError> {
        let scoring = EnableScoring::disabled_from_searcher(self.searcher);
        let weight = self.planned.counted.weight(scoring).map_err(unreadable)?;
        let mut seen: HashSet<u64> = HashSet::new();
        let mut looked_at = 0;
        for (segment, reader) in (0..).zip(self.searcher.segment_readers()) {
            let columns = self.columns.of_segment(segment)?;
            let alive = reader.alive_bitset();
            let mut matches = weight.scorer(reader, 1.0).map_err(unreadable)?;
            let mut doc = matches.doc();
            while doc != TERMINATED {
                if alive.is_none_or(|alive| alive.is_alive(doc)) {
                    looked_at += 1;
                    let is_new = seen.insert(columns.group(doc, query.copies)?);
                    let is_over = is_new && seen.len() as u64 > COUNTED_MAX;
                    if !query.count_all && (is_over || looked_at > COUNTED_IN_MAX) {
                        return Ok(Total {
                            count: (seen.len() as u64).min(COUNTED_MAX),
                            more: true,
                        });
                    }
                }
                doc = matches.advance();
            }
        }
        Ok(Total {
            count: seen.len() as u64,
            more: false,
        })
    }
}

/// The best so far. Of equal ones, those that came first.
struct Top {
    limit: usize,
    /// What is not above this is not among the best.
    threshold: Score,
    /// The worst of them is on top.
    heap: BinaryHeap<Reverse<Candidate>>,
}

impl Top {
    fn new(limit: usize) -> Self {
        Self {
            limit,
            threshold: Score::MIN,
            heap: BinaryHeap::with_capacity(limit + 1),
        }
    }

    fn push(&mut self, score: Score, address: DocAddress) {
        self.heap.push(Reverse(Candidate(score, Reverse(address))));
        if self.heap.len() > self.limit {
            self.heap.pop();
        }
        if self.heap.len() == self.limit
            && let Some(Reverse(worst)) = self.heap.peek()
        {
            self.threshold = worst.0;
        }
    }

    fn into_sorted(self) -> Vec<(Score, DocAddress)> {
        let sorted = self.heap.into_sorted_vec().into_iter();
        sorted
            .map(|Reverse(Candidate(score, Reverse(address)))| (score, address))
            .collect()
    }
}

/// A passage; the greater, the better.
#[derive(PartialEq)]
struct Candidate(Score, Reverse<DocAddress>);

impl Eq for Candidate {}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let score = self.0.total_cmp(&other.0);
        score.then_with(|| self.1.cmp(&other.1))
    }
}
