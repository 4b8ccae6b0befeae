//! Search by meaning: ranks passages by their similarity to a vector, alone or combined with a
//! search by words.

use std::{collections::HashSet, sync::Arc};

use tantivy::{DocAddress, DocId, query::TermQuery, schema::IndexRecordOption};
use treering_meaning::{QueryVector, TextWindow, VectorColumn, keep_nearest_by_signs};

use super::{
    error::{IndexError, IndexSearchError},
    hits::{self, unreadable},
    index::{PublishedState, SearchIndex},
    plan::NamespaceStatistics,
    query::{
        PlannedQuery, SearchQuery, SearchResults, SearchStrategy, catch_search_panics, check_bounds,
    },
    rank::{NameTier, POOL, ScoredPassage, Scores, rescore, worth},
    schema::namespace_tag,
    sweep::each_match,
    syntax::{QueryError, QuerySyntax},
    top_k::{TopHeap, TopSearch},
    vectors::VectorIndex,
};

/// Maximum number of passages found by words, and of those found by meaning. It does not depend on
/// the page, so that all pages of a search agree on the order.
pub const MEANING_HITS_MAX: usize = 1_000;
/// Number of passages up to which all vectors are compared. Of more passages, those are compared
/// whose signs are nearest: one in `SIGNS_SHARE`, but at least `SIGNS_MIN`.
const COMPARED_MAX: usize = 20_000;
const SIGNS_SHARE: usize = 32;
const SIGNS_MIN: usize = 4_000;
/// Weight of the meaning in a combined search; the words have the rest. Chosen with known items of
/// real sessions, checked with scifact: docs/MEANING.md.
const MEANING_WEIGHT: f32 = 0.6;

/// The vectors and options of a search by meaning.
#[derive(Clone, Copy, Debug)]
pub struct MeaningQuery<'a> {
    /// The vectors of the passages.
    pub vectors: &'a VectorIndex,
    /// The vector of the text to search for.
    pub vector: &'a QueryVector,
    /// The [`text_hash`](super::text_hash) of a text to leave out.
    pub except: Option<u64>,
    /// Search by words too.
    pub with_words: bool,
}

impl SearchIndex {
    /// Searches the committed events by meaning, and also by words if the query says so. By
    /// meaning, finds events that were embedded, pass the query's filters and have a positive
    /// similarity. The hits are ordered by score, best first. `total` counts at most 1,000 hits,
    /// and later ones cannot be requested.
    ///
    /// # Errors
    /// As [`Self::search`]; [`IndexSearchError::TooFar`] after the first 1,000 hits.
    pub fn search_by_meaning(
        &self,
        query: &SearchQuery,
        meaning: MeaningQuery<'_>,
    ) -> Result<SearchResults, IndexSearchError> {
        check_bounds(query)?;
        let (offset, limit, max) = (query.offset, query.limit, MEANING_HITS_MAX);
        if offset + limit > max {
            return Err(IndexSearchError::TooFar { offset, limit, max });
        }
        // A query without words still has a meaning.
        let words = match meaning.with_words {
            true => match self.planned(query, SearchStrategy::Shortest) {
                Err(IndexSearchError::Query(QueryError::Empty)) => None,
                planned => Some(planned?),
            },
            false => None,
        };
        let published = self.published();
        let open = meaning.vectors.open_columns();
        let readers = published.searcher.segment_readers().iter();
        let vectors = readers.map(|reader| open.get(&reader.segment_id()).cloned());
        let search = Search {
            index: self,
            published: &published,
            vectors: vectors.collect(),
            vector: meaning.vector,
            except: meaning.except,
            query,
        };
        catch_search_panics(|| search.run(words.as_ref()))
    }
}

struct Search<'a> {
    index: &'a SearchIndex,
    published: &'a PublishedState,
    /// By segment ordinal.
    vectors: Vec<Option<Arc<VectorColumn>>>,
    vector: &'a QueryVector,
    except: Option<u64>,
    query: &'a SearchQuery,
}

impl Search<'_> {
    fn run(&self, words: Option<&PlannedQuery>) -> Result<SearchResults, IndexSearchError> {
        let query = self.query;
        let read_as = words.map_or(QuerySyntax::Plain, |words| words.read_as);
        let mut results = SearchResults::empty(query, self.published.reached, read_as);
        let (mut passages, worth) = match words {
            Some(words) => self.by_words(words, &mut results)?,
            None => (Vec::new(), 0.0),
        };
        let weight = match passages.is_empty() {
            true => 1.0,
            false => MEANING_WEIGHT,
        };
        let similar = self.most_similar(&mut results.not_embedded)?;
        results.more_than_total |= similar.len() >= MEANING_HITS_MAX;
        let known: HashSet<DocAddress> = passages.iter().map(|passage| passage.address).collect();
        let others = similar
            .iter()
            .filter(|(_, address)| !known.contains(address));
        passages.extend(others.map(|(_, address)| found_by_meaning(*address)));
        // Without words, the similarity itself says more than its ratio to the best.
        let best = match words {
            Some(_) => similar.first().map_or(1.0, |(similarity, _)| *similarity),
            None => 1.0,
        };
        self.combine(&mut passages, weight, best, worth);
        let ranked = hits::ranked(&self.published.columns, &passages, POOL, query)?;
        results.total = ranked.len().min(MEANING_HITS_MAX) as u64;
        let ranks = results.ranks(query);
        let page = ranked.get(ranks.start..ranks.end.min(ranked.len()));
        results.hits = hits::read(&self.published.columns, page.unwrap_or_default())?;
        Ok(results)
    }

    /// Returns the passages found by words, and the `worth` of the words.
    fn by_words(
        &self,
        words: &PlannedQuery,
        results: &mut SearchResults,
    ) -> Result<(Vec<ScoredPassage>, f32), IndexSearchError> {
        let (query, fields) = (self.query, &self.index.fields);
        let searcher = &self.published.searcher;
        let statistics = NamespaceStatistics::of(searcher, fields, query).map_err(unreadable)?;
        let best = TopSearch::new(self.published, &statistics, words, query)?;
        let found = best.find_all(MEANING_HITS_MAX)?;
        results.more_than_total = !found.is_all;
        results.note_names(query, words, found.wholeness);
        let (columns, field, words) = (&self.published.columns, fields.text, &words.looked_for);
        let scored = rescore(
            columns,
            &statistics,
            field,
            words,
            &found,
            found.reranked(query),
        )?;
        Ok((scored, worth(&statistics, field, words)?))
    }

    /// Returns the most similar passages, most similar first, and counts those without vectors.
    fn most_similar(
        &self,
        not_embedded: &mut u64,
    ) -> Result<Vec<(f32, DocAddress)>, IndexSearchError> {
        let query = self.query;
        let planner = self.index.planner(query);
        let all = self.index.fields.tag(&namespace_tag(&query.namespace));
        let all = Box::new(TermQuery::new(all, IndexRecordOption::Basic));
        let all = planner.filtered(all, query);
        let mut embedded: Vec<Vec<DocId>> = vec![Vec::new(); self.vectors.len()];
        each_match(self.published, all.as_ref(), |_, address| {
            let column = self.column(address.segment_ord);
            let documents = embedded.get_mut(address.segment_ord as usize);
            match (column, documents) {
                (Some(column), Some(documents)) if column.has(address.doc_id) => {
                    documents.push(address.doc_id);
                }
                _ => *not_embedded += 1,
            }
            Ok(())
        })?;
        let count: usize = embedded.iter().map(Vec::len).sum();
        let (segments, mut documents): (Vec<u32>, Vec<_>) = (0..)
            .zip(embedded)
            .filter_map(|(segment, found)| Some((segment, (self.column(segment)?, found))))
            .unzip();
        if count > COMPARED_MAX {
            let nearest = (count / SIGNS_SHARE).max(SIGNS_MIN);
            keep_nearest_by_signs(&mut documents, self.vector, nearest);
        }
        let mut top = TopHeap::new(MEANING_HITS_MAX);
        let mut similarities = Vec::new();
        for (segment, (column, documents)) in segments.into_iter().zip(documents) {
            column.similarities(&documents, self.vector, &mut similarities);
            for (similarity, doc) in similarities.drain(..) {
                let address = DocAddress::new(segment, doc);
                if similarity > top.threshold.max(0.0) && !self.is_left_out(address)? {
                    top.push(similarity, address);
                }
            }
        }
        Ok(top.into_sorted())
    }

    fn is_left_out(&self, address: DocAddress) -> Result<bool, IndexError> {
        let Some(except) = self.except else {
            return Ok(false);
        };
        let columns = self.published.columns.of_segment(address.segment_ord)?;
        Ok(columns.text_hash(address.doc_id)? == except)
    }

    fn column(&self, segment: u32) -> Option<&VectorColumn> {
        self.vectors.get(segment as usize)?.as_deref()
    }

    /// Returns the similarity of a passage, and the most similar part of it.
    fn similar(&self, address: DocAddress) -> Option<(f32, TextWindow)> {
        let column = self.column(address.segment_ord)?;
        column.similarity(address.doc_id, self.vector)
    }

    /// Combines the scores of meaning and words, each relative to the best of its list: a convex
    /// combination (S. Bruch, S. Gai, A. Ingber, arXiv 2210.11934).
    ///
    /// The best passage by words may contain few of them, so word scores are divided by at least
    /// `worth`, and squared: of a text in other words, passages contain some words by chance, and
    /// they would displace those with its meaning.
    fn combine(&self, passages: &mut [ScoredPassage], weight: f32, most_similar: f32, worth: f32) {
        let totals = passages.iter().map(|passage| passage.scores.total());
        let best_words = totals.fold(worth, f32::max);
        for passage in &mut *passages {
            let scores = &mut passage.scores;
            let words = match best_words > 0.0 {
                true => (1.0 - weight) * scores.total() / best_words.powi(2),
                false => 0.0,
            };
            for part in [
                &mut scores.words,
                &mut scores.order,
                &mut scores.nearness,
                &mut scores.names,
                &mut scores.shortness,
            ] {
                *part *= words;
            }
            if let Some((similarity, window)) = self.similar(passage.address) {
                passage.window = Some(window);
                scores.meaning = weight * similarity.max(0.0) / most_similar;
            }
        }
        // Pages are cut from the list in this order.
        passages.sort_by(|a, b| b.scores.total().total_cmp(&a.scores.total()));
    }
}

fn found_by_meaning(address: DocAddress) -> ScoredPassage {
    ScoredPassage {
        scores: Scores {
            kind: 1.0,
            ..Scores::default()
        },
        address,
        tier: NameTier::Parts,
        phrase_score: 0.0,
        window: None,
    }
}
