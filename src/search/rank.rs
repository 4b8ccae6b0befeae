//! Reranks the best passages: by how much of the query they contain in order or close together, by
//! whole names, and by the kind of event.
//!
//! Reading positions for every match would slow down each search; reading those of the first
//! [`POOL`] passages is cheap, and these are the ones that matter.

use std::collections::HashMap;

use tantivy::{
    DocAddress, DocId, TERMINATED, Term,
    postings::Postings,
    query::Bm25StatisticsProvider,
    schema::{Field, IndexRecordOption},
};

use super::{
    columns::OpenColumns, error::IndexError, hits::unreadable, plan::NamespaceStatistics,
    top_k::TopPassages,
};
use treering_domain::EventKind;
use treering_meaning::TextWindow;

/// The number of passages that are reranked. Independent of the page, so that all pages of a search
/// agree on the order.
pub(super) const POOL: usize = 100;
/// Maximum number of words of a query used for reranking. Of a longer query, the rarest are used.
const UNITS_MAX: usize = 48;
/// The largest distance, in words, at which two words count as near.
const NEAR_MAX: u32 = 8;
/// Maximum number of matches examined in one passage.
const MATCHES_MAX: usize = 1_024;

// The weights below are measured: docs/decisions/0023-search-ranking.md. Each is a share of the
// worth of the query's words.

/// Weight of the query's words in a row, in their order.
const ORDER_WEIGHT: f32 = 2.5;
/// A word that is near the previous word, but not at the same distance as in the query, adds this
/// share of its worth to a row.
const NEAR_SHARE: f32 = 0.5;
/// Weight of the query's words close together, in any order.
const NEARNESS_WEIGHT: f32 = 1.5;
/// Many texts contain up to this share of a query in a row, or close together, by chance.
const BY_CHANCE: f32 = 0.6;
/// Weight of adjacent pairs of query words, by BM25.
const PAIRS_WEIGHT: f32 = 0.2;
/// Weight of a name that is found whole rather than in parts, if the name is the whole query.
/// Otherwise the weight is scaled by the name's share of the query.
const WHOLE_WEIGHT: f32 = 1.0;
/// Weight of the place where such a name is defined.
const DEFINITION_WEIGHT: f32 = 0.1;
/// Weight of a passage that contains little else.
const SHORTNESS_WEIGHT: f32 = 0.15;
/// Weight of matches near the passage's beginning.
const EARLINESS_WEIGHT: f32 = 0.2;
/// Share of its worth that a small word (a stop word) keeps if the query has other words.
pub(super) const SMALL_SHARE: f32 = 0.25;
/// Factors for kinds of event that are not tool results.
const MESSAGE_SHARE: f32 = 0.85;
const CALL_SHARE: f32 = 0.8;
const OTHER_SHARE: f32 = 0.8;

/// BM25's parameters, the same as tantivy's.
const K1: f32 = 1.2;
const B: f32 = 0.75;

/// A word of the query.
#[derive(Clone, Debug)]
pub(super) struct QueryWord {
    /// Its stem, or else the word itself.
    pub(crate) term: Term,
    /// Its position in the query.
    pub(crate) position: u32,
    /// It is a stop word, and the query has other words.
    pub(crate) is_small: bool,
}

/// A name in the query.
#[derive(Clone, Debug)]
pub(super) struct Name {
    /// The name without separators, for an identifier of several parts.
    pub(crate) whole: Option<Term>,
    /// The definition term, for an identifier.
    pub(crate) definition: Option<Term>,
    /// Passages with the whole name rank before those with only its parts.
    pub(crate) comes_first: bool,
    /// Its words in `Words::units`.
    pub(crate) units: std::ops::Range<usize>,
}

/// The words and names used for reranking.
#[derive(Clone, Debug, Default)]
pub(super) struct Words {
    pub(crate) units: Vec<QueryWord>,
    pub(crate) names: Vec<Name>,
}

/// The parts of a passage's score.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scores {
    /// BM25 of the words.
    pub words: f32,
    /// Added for the order of the words.
    pub order: f32,
    /// Added for their nearness.
    pub nearness: f32,
    /// Added for whole names and definitions.
    pub names: f32,
    /// Added for a short passage and for early matches.
    pub shortness: f32,
    /// The factor of the event's kind, by which the sum of these is multiplied.
    pub kind: f32,
    /// Added for the similarity of meaning.
    pub meaning: f32,
}

impl Scores {
    /// Returns the score that orders hits.
    #[must_use]
    pub fn total(&self) -> f32 {
        let words = self.words + self.order + self.nearness + self.names + self.shortness;
        words * self.kind + self.meaning
    }
}

/// Returns the factor of an event kind: tool results are searched for more often than text about
/// them.
fn kind_weight(kind: Option<EventKind>) -> f32 {
    match kind {
        Some(EventKind::ToolResultRecorded) | None => 1.0,
        Some(EventKind::MessageAppended) => MESSAGE_SHARE,
        Some(EventKind::ToolCallRequested) => CALL_SHARE,
        Some(_) => OTHER_SHARE,
    }
}

/// Whether a passage contains some or all of the query's names whole. Later ones rank first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum NameTier {
    /// No name whole.
    #[default]
    Parts,
    /// Some names whole.
    SomeWhole,
    /// All names whole.
    AllWhole,
}

/// A scored passage, before it becomes a hit.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScoredPassage {
    pub(crate) scores: Scores,
    pub(crate) address: DocAddress,
    pub(crate) tier: NameTier,
    /// The share of the query that stands close together.
    pub(crate) phrase_score: f32,
    /// The part that is most similar, in a search by meaning.
    pub(crate) window: Option<TextWindow>,
}

/// The matches of a passage that is reranked.
#[derive(Clone, Debug, Default)]
struct PassageMatches {
    /// The position and the number of the unit.
    matches: Vec<(u32, u16)>,
    names: f32,
    /// A bit for each of the names that come first, set when found whole.
    wholes: u64,
    length: u32,
}

/// Scores the passages that were found, in order, and reranks the first [`POOL`]. After the pool
/// every kind gets the lowest factor, so that no later passage scores better because of its kind.
pub(super) fn rescore(
    columns: &OpenColumns,
    statistics: &NamespaceStatistics<'_>,
    field: Field,
    words: &Words,
    found: &TopPassages,
    reranked: usize,
) -> Result<Vec<ScoredPassage>, IndexError> {
    let passages = &found.passages;
    let mut scored = Vec::with_capacity(passages.len());
    for (place, &(score, address)) in passages.iter().enumerate() {
        let kind = match place < reranked {
            true => {
                let segment = columns.of_segment(address.segment_ord)?;
                kind_weight(segment.kind(address.doc_id))
            }
            false => OTHER_SHARE,
        };
        scored.push(ScoredPassage {
            scores: Scores {
                words: score,
                kind,
                ..Scores::default()
            },
            address,
            tier: match place < found.named {
                true => NameTier::SomeWhole,
                false => NameTier::Parts,
            },
            phrase_score: 0.0,
            window: None,
        });
    }
    let pool = &mut scored[..reranked];
    let look = RankContext::new(statistics, field, words).map_err(unreadable)?;
    look.at(pool).map_err(unreadable)?;
    Ok(scored)
}

/// Returns the worth of a query's words: about the score of a passage of average length that
/// contains each of them once.
pub(super) fn worth(
    statistics: &NamespaceStatistics<'_>,
    field: Field,
    words: &Words,
) -> Result<f32, IndexError> {
    let context = RankContext::new(statistics, field, words).map_err(unreadable)?;
    Ok(context.worth_of_all)
}

struct RankContext<'a> {
    statistics: &'a NamespaceStatistics<'a>,
    field: Field,
    units: Vec<&'a QueryWord>,
    /// The worth of each unit: its rarity.
    worth: Vec<f32>,
    /// The worth of all units of the query.
    worth_of_all: f32,
    /// Names, with the worth of their words.
    names: Vec<(&'a Name, f32)>,
    /// A bit for each of the names that come first.
    firsts: u64,
    /// The index in `units` of each of the query's words.
    unit_of: Vec<Option<u16>>,
    /// BM25's average passage length, in words.
    average_length: f32,
}

impl<'a> RankContext<'a> {
    fn new(
        statistics: &'a NamespaceStatistics<'a>,
        field: Field,
        words: &'a Words,
    ) -> tantivy::Result<Self> {
        let mut worth = Vec::with_capacity(words.units.len());
        for unit in &words.units {
            let share = if unit.is_small { SMALL_SHARE } else { 1.0 };
            worth.push(share * rarity(statistics, &unit.term)?);
        }
        let of = |range: &std::ops::Range<usize>| -> f32 {
            worth.get(range.clone()).unwrap_or_default().iter().sum()
        };
        let names = words.names.iter().map(|name| (name, of(&name.units)));
        let names: Vec<_> = names.take(UNITS_MAX).collect();
        let mut rarest: Vec<usize> = (0..worth.len()).collect();
        rarest.sort_by(|&a, &b| worth[b].total_cmp(&worth[a]));
        rarest.truncate(UNITS_MAX);
        rarest.sort_unstable();
        let mut unit_of = vec![None; worth.len()];
        for (number, &at) in (0_u16..).zip(&rarest) {
            unit_of[at] = Some(number);
        }
        let firsts = names.iter().enumerate();
        let firsts = firsts.filter(|(_, (name, _))| name.comes_first);
        Ok(Self {
            statistics,
            field,
            firsts: firsts.fold(0, |bits, (at, _)| bits | 1 << at),
            unit_of,
            units: rarest.iter().map(|&at| &words.units[at]).collect(),
            worth_of_all: worth.iter().sum::<f32>().max(f32::MIN_POSITIVE),
            worth: rarest.iter().map(|&at| worth[at]).collect(),
            names,
            average_length: (statistics.total_num_tokens(field)? as f32
                / statistics.passages.max(1) as f32)
                .max(1.0),
        })
    }

    fn at(&self, pool: &mut [ScoredPassage]) -> tantivy::Result<()> {
        let mut by_segment: HashMap<u32, Vec<(DocId, usize)>> = HashMap::new();
        for (place, scored) in pool.iter().enumerate() {
            let docs = by_segment.entry(scored.address.segment_ord).or_default();
            docs.push((scored.address.doc_id, place));
        }
        for (segment, mut docs) in by_segment {
            docs.sort_unstable();
            let seen = self.look_into(segment, &docs)?;
            for (seen, (_, place)) in seen.into_iter().zip(&docs) {
                self.score(seen, &mut pool[*place]);
            }
        }
        Ok(())
    }

    fn look_into(
        &self,
        segment: u32,
        docs: &[(DocId, usize)],
    ) -> tantivy::Result<Vec<PassageMatches>> {
        let reader = self.statistics.searcher.segment_reader(segment);
        let index = reader.inverted_index(self.field)?;
        let mut seen = vec![PassageMatches::default(); docs.len()];
        let lengths = reader.get_fieldnorms_reader(self.field)?;
        for (seen, (doc, _)) in seen.iter_mut().zip(docs) {
            seen.length = lengths.fieldnorm(*doc);
        }
        let mut places = Vec::new();
        for (number, unit) in (0_u16..).zip(&self.units) {
            let option = IndexRecordOption::WithFreqsAndPositions;
            let Some(mut postings) = index.read_postings(&unit.term, option)? else {
                continue;
            };
            each_of(&mut postings, docs, |place, postings| {
                let matches = &mut seen[place].matches;
                if matches.len() < MATCHES_MAX {
                    postings.positions(&mut places);
                    matches.extend(places.iter().map(|&at| (at, number)));
                }
            });
        }
        for (number, (name, worth)) in self.names.iter().enumerate() {
            let whole = if name.comes_first { 1 << number } else { 0 };
            let terms = [
                (name.whole.as_ref(), WHOLE_WEIGHT, whole),
                (name.definition.as_ref(), DEFINITION_WEIGHT, 0),
            ];
            for (term, weight, whole) in terms {
                let Some(term) = term else { continue };
                let Some(mut postings) = index.read_postings(term, IndexRecordOption::Basic)?
                else {
                    continue;
                };
                let share = worth / self.worth_of_all;
                each_of(&mut postings, docs, |place, _| {
                    seen[place].names += weight * worth * share;
                    seen[place].wholes |= whole;
                });
            }
        }
        Ok(seen)
    }

    fn score(&self, mut seen: PassageMatches, scored: &mut ScoredPassage) {
        seen.matches.sort_unstable();
        if scored.tier != NameTier::Parts && self.has_all_whole(&seen) {
            scored.tier = NameTier::AllWhole;
        }
        let order = self.order(&seen.matches) / self.worth_of_all;
        let nearness = self.nearness(&seen.matches) / self.worth_of_all;
        let units = self.units.len() as f32;
        let fit = (units + 8.0) / (seen.length.max(1) as f32 + 8.0);
        let early = seen
            .matches
            .first()
            .map_or(0.0, |(at, _)| 1.0 / (1.0 + *at as f32 / 16.0));
        // Many texts contain a part of a query in a row by chance; few contain most of it.
        let most = |share: f32| {
            let above = ((share - BY_CHANCE) / (1.0 - BY_CHANCE)).max(0.0);
            above * above
        };
        scored.phrase_score = nearness;
        let scores = &mut scored.scores;
        scores.order =
            ORDER_WEIGHT * most(order) * self.worth_of_all + PAIRS_WEIGHT * self.pairs(&seen);
        scores.nearness = NEARNESS_WEIGHT * most(nearness) * self.worth_of_all;
        scores.names = seen.names;
        scores.shortness = (SHORTNESS_WEIGHT * fit.min(1.0) + EARLINESS_WEIGHT * early)
            * most(order.max(nearness))
            * self.worth_of_all;
    }

    /// Returns whether a passage contains all names that come first, each of them whole.
    fn has_all_whole(&self, seen: &PassageMatches) -> bool {
        let is_there = |(number, (name, _)): (usize, &(&Name, f32))| {
            let is_one = seen.wholes & (1 << number) != 0;
            !name.comes_first || is_one || self.has_row(&seen.matches, &name.units)
        };
        self.firsts == seen.wholes || self.names.iter().enumerate().all(is_there)
    }

    /// Returns whether the given words of the query stand in a row.
    fn has_row(&self, matches: &[(u32, u16)], words: &std::ops::Range<usize>) -> bool {
        let row: Vec<u16> = words.clone().filter_map(|at| self.unit_of[at]).collect();
        let Some((&first, rest)) = row.split_first() else {
            return false;
        };
        let place = |unit: u16| self.units[usize::from(unit)].position;
        let follows = |&(at, unit): &(u32, u16)| {
            unit == first
                && rest.iter().all(|&next| {
                    let wanted = (at + place(next) - place(first), next);
                    matches.binary_search(&wanted).is_ok()
                })
        };
        matches.iter().any(follows)
    }

    /// Returns the BM25 score of the pairs of adjacent query words that are also adjacent in the
    /// passage.
    fn pairs(&self, seen: &PassageMatches) -> f32 {
        let mut counts = vec![0_u32; self.units.len()];
        for (index, &(at, unit)) in seen.matches.iter().enumerate() {
            let place = self.units[usize::from(unit)].position;
            for &(next_at, next) in &seen.matches[index + 1..] {
                if next_at > at + 1 {
                    break;
                }
                let is_next = self.units[usize::from(next)].position == place + 1;
                if next_at == at + 1 && is_next {
                    counts[usize::from(unit)] += 1;
                }
            }
        }
        let longer = seen.length as f32 / self.average_length;
        let norm = K1 * (1.0 - B + B * longer);
        let of = |(unit, &count): (usize, &u32)| {
            let count = count as f32;
            let worth = self.worth[unit] + self.worth.get(unit + 1).copied().unwrap_or_default();
            worth * count * (K1 + 1.0) / (count + norm)
        };
        counts
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
            .map(of)
            .sum()
    }

    /// Returns the worth of the best chain of words in the query's order: full worth for words at
    /// the query's distance, half for near ones.
    fn order(&self, matches: &[(u32, u16)]) -> f32 {
        let mut best = 0.0_f32;
        let mut chains: Vec<f32> = Vec::with_capacity(matches.len());
        for (index, &(at, unit)) in matches.iter().enumerate() {
            let worth = self.worth[usize::from(unit)];
            let place = self.units[usize::from(unit)].position;
            let mut chain = worth;
            for before in (0..index).rev() {
                let (at_before, unit_before) = matches[before];
                if at - at_before > NEAR_MAX {
                    break;
                }
                if unit_before >= unit || at_before == at {
                    continue;
                }
                let place_before = self.units[usize::from(unit_before)].position;
                let as_typed = at - at_before == place - place_before;
                let share = if as_typed { 1.0 } else { NEAR_SHARE };
                chain = chain.max(chains[before] + share * worth);
            }
            chains.push(chain);
            best = best.max(chain);
        }
        best
    }

    /// Returns the worth of the words that stand close together in some part of the passage.
    fn nearness(&self, matches: &[(u32, u16)]) -> f32 {
        let reach = 2 * self.units.len() as u32 + NEAR_MAX;
        let mut counts = vec![0_u32; self.units.len()];
        let (mut first, mut within, mut best) = (0, 0.0_f32, 0.0_f32);
        for &(at, unit) in matches {
            let unit = usize::from(unit);
            counts[unit] += 1;
            if counts[unit] == 1 {
                within += self.worth[unit];
            }
            while at - matches[first].0 > reach {
                let gone = usize::from(matches[first].1);
                counts[gone] -= 1;
                if counts[gone] == 0 {
                    within -= self.worth[gone];
                }
                first += 1;
            }
            best = best.max(within);
        }
        best
    }
}

/// Calls `found` for each document that has the term, with its index in `docs`.
fn each_of<P: Postings>(
    postings: &mut P,
    docs: &[(DocId, usize)],
    mut found: impl FnMut(usize, &mut P),
) {
    let mut at = postings.doc();
    for (place, (doc, _)) in docs.iter().enumerate() {
        if at < *doc {
            at = postings.seek(*doc);
        }
        if at == TERMINATED {
            return;
        }
        if at == *doc {
            found(place, postings);
        }
    }
}

/// Returns the BM25 weight (inverse document frequency) of a term.
fn rarity(statistics: &NamespaceStatistics<'_>, term: &Term) -> tantivy::Result<f32> {
    let with = statistics.doc_freq(term)? as f32;
    let all = statistics.passages.max(1) as f32;
    Ok((1.0 + (all - with + 0.5) / (with + 0.5)).ln())
}
