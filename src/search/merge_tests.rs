//! Several indexes with parts of the real conversations answer as one index with all of them.

use std::sync::Arc;

use super::{
    known_items_tests::{queries, texts},
    quality_tests::data,
    *,
};
use treering_domain::Namespace;

const SHARDS: usize = 5;

/// Hits of one query: log offset and score.
type Page = Vec<(u64, f32)>;

struct Shards<'a> {
    events: &'a [SearchableEvent],
    indexes: Vec<SearchIndex>,
}

impl<'a> Shards<'a> {
    fn of(events: &'a [SearchableEvent], count: usize) -> Self {
        let indexes = (0..count).map(|shard| {
            let part = events.iter().enumerate();
            let part = part.filter(|(number, _)| number % count == shard);
            let part: Vec<_> = part.map(|(_, event)| event.clone()).collect();
            let index = SearchIndex::in_memory().unwrap();
            index.add(&part, part.last().unwrap().position).unwrap();
            index.commit().unwrap();
            index
        });
        Self {
            events,
            indexes: indexes.collect(),
        }
    }

    fn passage(&self, hit: &Hit) -> &str {
        let event = self
            .events
            .binary_search_by_key(&hit.position, |event| event.position);
        let start = usize::try_from(hit.byte_start).unwrap();
        passage_at(&self.events[event.unwrap()].text, start)
            .unwrap()
            .text
    }

    /// Searches each index as one of several, and merges their hits.
    fn search(&self, query: &SearchQuery) -> Page {
        let mut shared = SharedRanking::default();
        for index in &self.indexes {
            shared.statistics.add(index.statistics(query).unwrap());
        }
        let mut query = SearchQuery {
            shared: Some(Arc::new(shared.clone())),
            ..query.clone()
        };
        let pools = self.indexes.iter().map(|index| index.pool(&query).unwrap());
        shared.floors = Some(PoolFloors::of(&pools.collect::<Vec<_>>()));
        query.shared = Some(Arc::new(shared));
        let found: Vec<_> = self
            .indexes
            .iter()
            .map(|index| self.results(index, &query))
            .collect();
        let ranks = found
            .iter()
            .map(|results| results.hits.iter().map(HitRank::from).collect());
        let ranks: Vec<_> = ranks.collect();
        let merged = merge(&ranks, found[0].as_typed.hits, query.copies);
        let page = merged.iter().take(query.limit);
        page.map(|hit| (found[hit.shard].hits[hit.hit].position.offset, hit.score))
            .collect()
    }

    fn results(&self, index: &SearchIndex, query: &SearchQuery) -> SearchResults {
        let mut results = index.search(query).unwrap();
        let first = results.hits.iter().take(results.as_typed.hits);
        let matches = first.map(|hit| results.as_typed.standing(self.passage(hit)));
        VerbatimQuery::reorder(matches.collect(), &mut results, query);
        results
    }
}

/// Returns true if the page has the hits of the longer one, in its order. Hits with equal scores may
/// be in another order, because sums of the same numbers in another order differ in the last digits.
fn is_in_order_of(page: &Page, longer: &Page) -> bool {
    let is_equal = |((hit, _), (wanted, score)): (&(u64, f32), &(u64, f32))| {
        let mut same = longer.iter().filter(|(other, _)| other == hit);
        hit == wanted || same.any(|(_, other)| (other - score).abs() <= score * 1e-5)
    };
    page.iter().zip(longer).all(is_equal)
}

// A store that grew beyond one machine must find the same as before, in the same order: each shard
// knows only its own texts, and rare words are common in some of them.
#[test]
fn merged_order_is_that_of_one_index() {
    let Some(data) = data() else { return };
    let events = texts(&data.join("trajectories"));
    let (one, several) = (Shards::of(&events, 1), Shards::of(&events, SHARDS));
    let (mut asked, mut other) = (0, 0);
    let every = match std::env::var_os("TREERING_TEST_ALL") {
        Some(_) => 1,
        None => 5,
    };
    for text in queries().into_iter().step_by(every) {
        let query = SearchQuery {
            told_by_text: true,
            ..SearchQuery::new(Namespace::default(), text)
        };
        let more = SearchQuery {
            limit: 2 * query.limit,
            ..query.clone()
        };
        let results = one.results(&one.indexes[0], &more);
        let wanted = results
            .hits
            .iter()
            .map(|hit| (hit.position.offset, hit.score));
        let (wanted, merged): (Page, _) = (wanted.collect(), several.search(&query));
        asked += 1;
        if merged.len() != wanted.len().min(query.limit) || !is_in_order_of(&merged, &wanted) {
            other += 1;
            println!("{:?}\n  {wanted:?}\n  {merged:?}", query.text);
        }
    }
    assert!(asked * every >= 200, "{asked}");
    assert_eq!(other, 0, "of {asked} queries, {other} have other hits");
}
