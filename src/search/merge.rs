//! Merges the hits of several indexes, each of which has a part of a namespace, into the order that
//! one index with all of it would give.
//!
//! First each index says how many of its passages have each term of the query
//! ([`SearchIndex::statistics`]). Their sum ranks the passages of each index
//! ([`SearchQuery::shared`]). Then [`merge`] orders the hits as a search in one index does: only the
//! best passages by words keep what reranking added, whole names come first, equal texts are one
//! hit, and the first hits are ordered by what their texts contain.

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
    query::{DuplicateHandling, Hit, NameCompleteness, PlannedQuery, SearchQuery, SearchStrategy},
    rank::{NameTier, OTHER_SHARE, POOL, Scores, worth},
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
}

/// What orders a hit among those of other indexes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HitRank {
    /// The parts of its score.
    pub scores: Scores,
    /// Its index has reranked it.
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

/// The hits of one index.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ShardRanks {
    /// The hits, best first.
    pub hits: Vec<HitRank>,
    /// The passages that the index reranked.
    pub pool: RerankedPool,
    /// How completely the index found the query's names.
    pub found: NameCompleteness,
    /// The number of first hits that are ordered by what their texts contain.
    pub checked: usize,
}

/// The scores, by words alone, of the passages that an index reranked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RerankedPool {
    /// Of those that contain names of the query whole, best first.
    pub named: Vec<f32>,
    /// Of the others, best first.
    pub others: Vec<f32>,
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

/// Orders the hits of several indexes, which were ranked by the same statistics. With
/// [`DuplicateHandling::Folded`], hits with equal text are one: the best of them.
///
/// A page ends at the same hit as that of one index if each index gave as many hits as the page and
/// those before it have, and at least as many as it says are ordered by their texts.
#[must_use]
pub fn merge(shards: &[ShardRanks], copies: DuplicateHandling) -> Vec<MergedHit> {
    let found = shards.iter().map(|shard| shard.found).max();
    let found = found.unwrap_or_default();
    let best = shards.iter().filter(|shard| shard.found == found);
    let checked = best.map(|shard| shard.checked).max().unwrap_or_default();
    let limits = PoolLimits::of(shards, found);
    let mut ranked = Vec::new();
    for (shard, ranks) in shards.iter().enumerate() {
        for (hit, rank) in ranks.hits.iter().enumerate() {
            let mut rank = *rank;
            // A name in a row is nothing if another index has the name as a word.
            if ranks.found < found {
                rank.tier = NameTier::Parts;
            }
            if rank.is_reranked && !limits.contain(&rank) {
                rank.is_reranked = false;
                rank.scores = Scores {
                    words: rank.scores.words,
                    kind: OTHER_SHARE,
                    meaning: rank.scores.meaning,
                    ..Scores::default()
                };
            }
            let merged = MergedHit {
                shard,
                hit,
                score: rank.scores.total(),
                scores: rank.scores,
            };
            ranked.push((rank, merged));
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

/// The lowest scores, by words alone, of the passages that one index would rerank.
struct PoolLimits {
    named: f32,
    others: f32,
}

impl PoolLimits {
    fn of(shards: &[ShardRanks], found: NameCompleteness) -> Self {
        let (mut named, mut others) = (Vec::new(), Vec::new());
        for shard in shards {
            let counted = match shard.found == found {
                true => &mut named,
                false => &mut others,
            };
            counted.extend(&shard.pool.named);
            others.extend(&shard.pool.others);
        }
        let left = POOL.saturating_sub(named.len());
        Self {
            named: last_of_best(named, POOL),
            others: last_of_best(others, left),
        }
    }

    fn contain(&self, rank: &HitRank) -> bool {
        let limit = match rank.tier {
            NameTier::Parts => self.others,
            NameTier::SomeWhole | NameTier::AllWhole => self.named,
        };
        rank.scores.words >= limit
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
