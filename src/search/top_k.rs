//! Finds the best passages and counts the matching ones.
//!
//! The best matches of a union of single terms can be found without scoring every match: tantivy
//! skips blocks of postings that cannot contain any. If the filters were clauses of the query,
//! tantivy could not skip blocks. So if columns can answer the filters and enough passages pass
//! them, the filters are applied to the few candidates instead. Passages and scores are the same
//! either way.

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
    error::{IndexError, IndexSearchError},
    hits::unreadable,
    index::PublishedState,
    memory::Groups,
    merge::RerankPool,
    plan::NamespaceStatistics,
    query::{COUNTED_MAX, NameCompleteness, PlannedQuery, Scope, SearchQuery, Total},
    rank::POOL,
    sweep::StopCheck,
};

/// Filters that pass a smaller share become clauses of the query: few documents are scored anyway,
/// and pruning would skip little.
const PRUNED_SHARE_MIN: f64 = 0.05;

/// Maximum number of passages examined to count hits, unless all are counted. Hits alone cannot
/// limit the work, because all copies of a text count as one hit.
const COUNTED_IN_MAX: u64 = 20 * COUNTED_MAX;

/// The best passages.
pub(super) struct TopPassages {
    /// Passages in order, each with the score of its words.
    pub(crate) passages: Vec<(Score, DocAddress)>,
    /// How many passages at the start contain names of the query whole.
    pub(crate) named: usize,
    /// How completely names were found.
    pub(crate) wholeness: NameCompleteness,
    /// No other passages match.
    pub(crate) is_all: bool,
}

impl TopPassages {
    /// Returns how many of the first passages are reranked.
    pub(crate) fn reranked(&self, query: &SearchQuery) -> usize {
        let floors = query.shared.as_ref().and_then(|shared| shared.floors);
        let Some(floors) = floors else {
            return self.passages.len().min(POOL);
        };
        let is_reranked = |(place, (score, _)): &(usize, &(Score, DocAddress))| {
            let floor = match *place < self.named {
                true => floors.named,
                false => floors.others,
            };
            *score >= floor
        };
        let best = self.passages.iter().enumerate();
        best.take_while(is_reranked).count()
    }

    /// Returns the scores of the passages that are reranked if no other index has better ones.
    pub(crate) fn pool(&self) -> RerankPool {
        let pool = &self.passages[..self.passages.len().min(POOL)];
        let (named, others) = pool.split_at(self.named.min(pool.len()));
        let scores = |passages: &[(Score, DocAddress)]| {
            let scores = passages.iter().map(|(score, _)| *score);
            scores.collect()
        };
        RerankPool {
            found: self.wholeness,
            named: scores(named),
            others: scores(others),
        }
    }
}

/// A query being executed.
pub(super) struct TopSearch<'a> {
    searcher: &'a Searcher,
    columns: &'a OpenColumns,
    statistics: &'a NamespaceStatistics<'a>,
    planned: &'a PlannedQuery,
    query: &'a SearchQuery,
    is_pruned: bool,
}

impl<'a> TopSearch<'a> {
    pub(crate) fn new(
        published: &'a PublishedState,
        statistics: &'a NamespaceStatistics<'a>,
        planned: &'a PlannedQuery,
        query: &'a SearchQuery,
    ) -> Result<Self, IndexError> {
        let mut this = Self {
            searcher: &published.searcher,
            columns: &published.columns,
            statistics,
            planned,
            query,
            is_pruned: planned.is_prunable && ColumnFilter::answers(query),
        };
        if this.is_pruned {
            for tags in &planned.filter_tags {
                this.is_pruned &= this.share(tags)? >= PRUNED_SHARE_MIN;
            }
            this.is_pruned = this.is_pruned && this.chosen_share()? >= PRUNED_SHARE_MIN;
        }
        Ok(this)
    }

    /// Estimates the share of all passages that belong to the chosen conversations, as if all
    /// conversations of a segment had equally many.
    fn chosen_share(&self) -> Result<f64, IndexError> {
        let Some(Scope::Conversations(chosen)) = &self.query.scope else {
            return Ok(1.0);
        };
        let (mut all, mut within) = (0.0, 0.0);
        for (segment, reader) in (0..).zip(self.searcher.segment_readers()) {
            let columns = self.columns.of_segment(segment)?;
            let passages = f64::from(reader.max_doc());
            all += passages;
            within += passages * columns.chosen(reader, chosen)?.share();
        }
        Ok(within / f64::max(all, 1.0))
    }

    /// Returns the share of the namespace's passages that have one of these tags.
    fn share(&self, tags: &[Term]) -> Result<f64, IndexError> {
        let mut passages = 0;
        for tag in tags {
            passages += self.searcher.doc_freq(tag).map_err(unreadable)?;
        }
        Ok(passages as f64 / self.statistics.own_passages.max(1) as f64)
    }

    /// Returns the passages that contain the query's names whole, then the others. Each group is
    /// sorted best first.
    pub(crate) fn find_all(&self, limit: usize) -> Result<TopPassages, IndexError> {
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
        Ok(TopPassages {
            passages,
            named,
            wholeness,
            is_all,
        })
    }

    fn find_named(
        &self,
        limit: usize,
    ) -> Result<(Vec<(Score, DocAddress)>, NameCompleteness), IndexError> {
        let (named, found) = self.find_own_named(limit)?;
        let floors = self.query.shared.as_ref().and_then(|shared| shared.floors);
        match floors {
            // A name in a row is nothing if another index has the name as a word.
            Some(floors) if found < floors.found => Ok((Vec::new(), floors.found)),
            _ => Ok((named, found)),
        }
    }

    fn find_own_named(
        &self,
        limit: usize,
    ) -> Result<(Vec<(Score, DocAddress)>, NameCompleteness), IndexError> {
        let Some(names) = &self.planned.whole else {
            return Ok((Vec::new(), NameCompleteness::Parts));
        };
        let whole = self.find_by(names.query.as_ref(), limit)?;
        if !whole.is_empty() {
            return Ok((whole, NameCompleteness::Whole));
        }
        let Some(in_a_row) = &names.in_a_row else {
            return Ok((whole, NameCompleteness::Parts));
        };
        let in_a_row = self.find_by(in_a_row.as_ref(), limit)?;
        let wholeness = match in_a_row.is_empty() {
            true => NameCompleteness::Parts,
            false => NameCompleteness::InARow,
        };
        Ok((in_a_row, wholeness))
    }

    /// Returns the best passages, best first, equal ones in index order; fewer than `limit` when
    /// there are no more.
    pub(crate) fn find(&self, limit: usize) -> Result<Vec<(Score, DocAddress)>, IndexError> {
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

    /// Bounds the limit by the number of documents, since tantivy allocates for all at once.
    fn room_for(&self, limit: usize) -> usize {
        let room = usize::try_from(self.searcher.num_docs()).unwrap_or(usize::MAX);
        limit.min(room).max(1)
    }

    fn find_pruned(&self, limit: usize) -> Result<Vec<(Score, DocAddress)>, IndexError> {
        let scoring =
            EnableScoring::enabled_from_statistics_provider(self.statistics, self.searcher);
        let weight = self.planned.words.weight(scoring).map_err(unreadable)?;
        let mut top = TopHeap::new(limit);
        for (segment, reader) in (0..).zip(self.searcher.segment_readers()) {
            let columns = self.columns.of_segment(segment)?;
            let filter = ColumnFilter::new(columns, reader, self.query)?;
            let alive = reader.alive_bitset();
            let threshold = top.threshold;
            let mut stop = StopCheck::default();
            let mut candidate = |doc, score| {
                if stop.check().is_err() {
                    // Nothing scores above this, so the rest is skipped.
                    return Score::MAX;
                }
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

    /// Counts the hits. Stops at the memory limit, and also at [`COUNTED_MAX`] unless all are to be
    /// counted.
    pub(crate) fn count(&self, query: &SearchQuery) -> Result<Total, IndexSearchError> {
        let scoring = EnableScoring::disabled_from_searcher(self.searcher);
        let weight = self.planned.counted.weight(scoring).map_err(unreadable)?;
        let (mut seen, mut stop) = (Groups::new(query), StopCheck::default());
        let (mut count, mut looked_at) = (0, 0);
        for (segment, reader) in (0..).zip(self.searcher.segment_readers()) {
            let columns = self.columns.of_segment(segment)?;
            let alive = reader.alive_bitset();
            let mut matches = weight.scorer(reader, 1.0).map_err(unreadable)?;
            let mut doc = matches.doc();
            while doc != TERMINATED {
                stop.check()?;
                if alive.is_none_or(|alive| alive.is_alive(doc)) {
                    looked_at += 1;
                    match seen.insert(columns.group(doc, query.copies)?) {
                        Ok(is_new) => count += u64::from(is_new),
                        Err(IndexSearchError::TooMuchMemory { .. }) => {
                            return Ok(Total { count, more: true });
                        }
                        Err(error) => return Err(error),
                    }
                    let is_enough = count > COUNTED_MAX || looked_at > COUNTED_IN_MAX;
                    if !query.count_all && is_enough {
                        return Ok(Total {
                            count: count.min(COUNTED_MAX),
                            more: true,
                        });
                    }
                }
                doc = matches.advance();
            }
        }
        Ok(Total { count, more: false })
    }
}

/// The best passages so far. Of passages with equal scores, the first are kept.
pub(super) struct TopHeap {
    limit: usize,
    /// Passages must score above this to enter.
    pub(crate) threshold: Score,
    /// The worst of them is on top.
    heap: BinaryHeap<Reverse<Candidate>>,
}

impl TopHeap {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            threshold: Score::MIN,
            heap: BinaryHeap::with_capacity(limit + 1),
        }
    }

    pub(crate) fn push(&mut self, score: Score, address: DocAddress) {
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

    pub(crate) fn into_sorted(self) -> Vec<(Score, DocAddress)> {
        let sorted = self.heap.into_sorted_vec().into_iter();
        sorted
            .map(|Reverse(Candidate(score, Reverse(address)))| (score, address))
            .collect()
    }
}

/// A passage; greater is better.
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
