//! Merges the hits of several indexes, each of which has a part of a namespace, into the order that
//! one index with all of it would give.
//!
//! First each index says how many of its passages have each term of the query
//! ([`SearchIndex::statistics`]). By their sum ([`SearchQuery::shared`]) each index finds the passages
//! that it would rerank ([`SearchIndex::pool`]). Of these, each reranks those that are among the best
//! of all indexes ([`PoolFloors`]), and gives its best hits, which [`merge`] orders as a search in one
//! index does.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashSet},
};

use tantivy::query::EnableScoring;

use super::{
    error::IndexSearchError,
    hits::{raise, unreadable},
    index::SearchIndex,
    plan::NamespaceStatistics,
    query::{
        DuplicateHandling, Hit, NameCompleteness, PlannedQuery, SearchQuery, SearchStrategy,
        catch_search_panics, check_bounds,
    },
    rank::{NameTier, POOL, Scores, worth},
    top_k::TopSearch,
    verbatim::{VerbatimMatch, order_by_texts},
};
use treering_domain::{Position, TimestampMicros};

/// How often the terms of a query occur.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedStatistics {
    /// Passages of the namespace.
    pub passages: u64,
    /// Passages of all namespaces.
    pub documents: u64,
    /// Tokens of all namespaces in each field.
    pub tokens: BTreeMap<u32, u64>,
    /// Passages that have each term, which is a field's number and a value.
    pub terms: BTreeMap<Vec<u8>, u64>,
}

impl SharedStatistics {
    /// Adds the statistics of another index for the same query.
    pub fn add(&mut self, other: Self) {
        self.passages += other.passages;
        self.documents += other.documents;
        for (field, tokens) in other.tokens {
            *self.tokens.entry(field).or_default() += tokens;
        }
        for (term, passages) in other.terms {
            *self.terms.entry(term).or_default() += passages;
        }
    }
}

/// What an index needs to rank its passages among those of other indexes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SharedRanking {
    /// Statistics of all indexes.
    pub statistics: SharedStatistics,
    /// Which passages are reranked, once it is known.
    pub floors: Option<PoolFloors>,
    /// Hash of a text that is left out of a search by meaning.
    pub except_text: Option<u64>,
}

/// The scores, by words alone, of the passages that an index would rerank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RerankPool {
    /// How completely the index found the query's names.
    pub found: NameCompleteness,
    /// Of those that contain names of the query whole, best first.
    pub named: Vec<f32>,
    /// Of the others, best first.
    pub others: Vec<f32>,
}

/// The lowest scores, by words alone, of the passages that are reranked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PoolFloors {
    /// How completely the query's names were found in all indexes.
    pub found: NameCompleteness,
    /// Of passages that contain names of the query whole.
    pub named: f32,
    /// Of the others.
    pub others: f32,
}

impl PoolFloors {
    /// Returns the floors for the passages of all indexes.
    #[must_use]
    pub fn of(pools: &[RerankPool]) -> Self {
        let found = pools.iter().map(|pool| pool.found).max();
        let found = found.unwrap_or_default();
        let (mut named, mut others) = (Vec::new(), Vec::new());
        for pool in pools {
            // A name in a row is nothing if another index has the name as a word. Its passages are
            // among the others too, if they are good enough by words.
            if pool.found == found {
                named.extend(&pool.named);
            }
            others.extend(&pool.others);
        }
        let left = POOL.saturating_sub(named.len());
        Self {
            found,
            named: last_of_best(named, POOL),
            others: last_of_best(others, left),
        }
    }
}

/// Returns the lowest of the `count` highest scores.
fn last_of_best(mut scores: Vec<f32>, count: usize) -> f32 {
    if scores.len() <= count {
        return f32::MIN;
    }
    scores.sort_by(|a, b| b.total_cmp(a));
    match count.checked_sub(1) {
        Some(last) => scores[last],
        None => f32::MAX,
    }
}

impl SearchIndex {
    /// Returns how often the terms of a query occur in this index.
    ///
    /// # Errors
    /// As [`Self::search`].
    pub fn statistics(&self, query: &SearchQuery) -> Result<SharedStatistics, IndexSearchError> {
        let planned = self.planned(query, SearchStrategy::Shortest)?;
        let published = self.published();
        let statistics = NamespaceStatistics::noting(&published.searcher, &self.fields, query)
            .map_err(unreadable)?;
        let PlannedQuery {
            query: filtered,
            words,
            whole,
            looked_for,
            ..
        } = &planned;
        let names = whole.iter();
        let names = names.flat_map(|names| [Some(&names.query), names.in_a_row.as_ref()]);
        let ranked = [Some(filtered), Some(words)].into_iter().chain(names);
        for query in ranked.flatten() {
            // A weight asks for the statistics of all terms that it scores.
            let scoring =
                EnableScoring::enabled_from_statistics_provider(&statistics, &published.searcher);
            query.weight(scoring).map_err(unreadable)?;
        }
        worth(&statistics, self.fields.text, looked_for)?;
        Ok(statistics.into_noted())
    }

    /// Returns the passages that this index would rerank.
    ///
    /// # Errors
    /// As [`Self::search`].
    pub fn pool(&self, query: &SearchQuery) -> Result<RerankPool, IndexSearchError> {
        check_bounds(query)?;
        let planned = self.planned(query, SearchStrategy::Shortest)?;
        let published = self.published();
        catch_search_panics(|| {
            let statistics = NamespaceStatistics::of(&published.searcher, &self.fields, query)
                .map_err(unreadable)?;
            let best = TopSearch::new(&published, &statistics, &planned, query)?;
            Ok(best.find_all(POOL)?.pool())
        })
    }
}

/// What orders a hit among those of other indexes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HitRank {
    /// The parts of its score.
    pub scores: Scores,
    /// It was reranked.
    pub is_reranked: bool,
    /// Whether it contains the query's names whole.
    pub tier: NameTier,
    /// What its text contains, for the first hits.
    pub as_typed: VerbatimMatch,
    /// Equal for hits of one kind whose events have equal text.
    pub text_hash: u64,
    /// When its event was recorded: the order of hits with equal scores.
    pub recorded_at: TimestampMicros,
    /// Its event's log position.
    pub position: Position,
}

impl From<&Hit> for HitRank {
    fn from(hit: &Hit) -> Self {
        Self {
            scores: hit.scores,
            is_reranked: hit.is_reranked,
            tier: hit.tier,
            as_typed: hit.as_typed,
            text_hash: hit.text_hash,
            recorded_at: hit.recorded_at,
            position: hit.position,
        }
    }
}

/// A hit in the merged order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MergedHit {
    /// The index in the list of shards.
    pub shard: usize,
    /// The index in its hits.
    pub hit: usize,
    /// The score that orders hits.
    pub score: f32,
    /// Its parts.
    pub scores: Scores,
}

/// Orders the hits of several indexes. The texts of the first `checked` hits decide their order. With
/// [`DuplicateHandling::Folded`], hits with equal text are one: the best of them.
///
/// A page ends at the same hit as that of one index if each index gave as many hits as the page and
/// those before it have, and at least `checked`.
#[must_use]
pub fn merge(shards: &[Vec<HitRank>], checked: usize, copies: DuplicateHandling) -> Vec<MergedHit> {
    let mut ranked = Vec::new();
    for (shard, ranks) in shards.iter().enumerate() {
        for (hit, rank) in ranks.iter().enumerate() {
            let merged = MergedHit {
                shard,
                hit,
                score: rank.scores.total(),
                scores: rank.scores,
            };
            ranked.push((*rank, merged));
        }
    }
    ranked.sort_by(|(a, a_hit), (b, b_hit)| {
        let key = |rank: &HitRank| (!rank.is_reranked, Reverse(rank.tier));
        let time = |rank: &HitRank| (rank.recorded_at, rank.position);
        let by_key = key(a).cmp(&key(b));
        let by_score = by_key.then_with(|| b_hit.score.total_cmp(&a_hit.score));
        by_score.then_with(|| time(a).cmp(&time(b)))
    });
    raise_all(&mut ranked);
    if copies == DuplicateHandling::Folded {
        let mut seen = HashSet::new();
        ranked.retain(|(rank, _)| seen.insert(rank.text_hash));
    }
    let checked = checked.min(ranked.len());
    order_by_texts(&mut ranked[..checked], |(rank, hit)| {
        (rank.as_typed, &mut hit.score, &mut hit.scores)
    });
    raise_all(&mut ranked);
    ranked.into_iter().map(|(_, merged)| merged).collect()
}

fn raise_all(ranked: &mut [(HitRank, MergedHit)]) {
    let scores = ranked.iter_mut();
    raise(scores.map(|(_, hit)| (&mut hit.score, &mut hit.scores)));
}
