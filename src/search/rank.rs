//! A second look at the best passages: how much of the query stands there, in its
//! order and close together, whole names, and what kind of text it is.
//!
//! Looking at positions for every match would make each search slow; looking at
//! those of the first [`POOL`] costs little and is where it matters.

use std::collections::HashMap;

use tantivy::{
    DocAddress, DocId, TERMINATED, Term,
    postings::Postings,
    query::Bm25StatisticsProvider,
    schema::{Field, IndexRecordOption},
};

use super::{
    best::Found, columns::OpenColumns, error::IndexError, hits::unreadable,
    plan::NamespaceStatistics,
};
use crate::domain::EventKind;

/// Passages that get a second look. Independent of the page, so that pages of
/// one search agree on the order.
pub(super) const POOL: usize = 100;
/// Words of a query that are looked for in them; of more, the rarest.
const UNITS_MAX: usize = 48;
/// How far apart two words may be to be near each other, in words.
const NEAR_MAX: u32 = 8;
/// Matches of one passage that are looked at.
const MATCHES_MAX: usize = 1_024;

// The weights below are measured: docs/decisions/0022-a-second-look.md. Each is in
// shares of what the query's words are worth.

/// The query's words in a row, as they were typed.
const ORDER_WEIGHT: f32 = 2.5;
/// What a word counts in a row that is near the last one and not right behind it.
const NEAR_SHARE: f32 = 0.5;
/// Its words close together, in any order.
const NEARNESS_WEIGHT: f32 = 1.5;
/// So much of a query stands in a row, or together, in many texts by chance.
const BY_CHANCE: f32 = 0.6;
/// Pairs of neighbours, by BM25.
const PAIRS_WEIGHT: f32 = 0.2;
/// Names as they were typed, and not only their parts; of a name that is all of the
/// query. It counts less the less of the query it is.
const WHOLE_WEIGHT: f32 = 1.0;
/// The place where such a name is defined.
const DEFINITION_WEIGHT: f32 = 0.1;
/// Little else in the passage.
const SHORTNESS_WEIGHT: f32 = 0.15;
/// Near the passage's beginning.
const EARLINESS_WEIGHT: f32 = 0.2;
/// What a small word counts beside others.
pub(super) const SMALL_SHARE: f32 = 0.25;
/// What is no result of a tool.
const MESSAGE_SHARE: f32 = 0.85;
const CALL_SHARE: f32 = 0.8;
const OTHER_SHARE: f32 = 0.8;

/// BM25's parameters, as tantivy has them.
const K1: f32 = 1.2;
const B: f32 = 0.75;

/// A word of the query.
#[derive(Clone, Debug)]
pub(super) struct QueryWord {
    /// Its stem, or itself.
    pub term: Term,
    /// Its place in the query.
    pub position: u32,
    /// It is one that nearly every sentence has, and others were typed.
    pub is_small: bool,
}

/// A name in the query.
#[derive(Clone, Debug)]
pub(super) struct Name {
    /// The name without its joints, of an identifier of several parts.
    pub whole: Option<Term>,
    /// The name where it is defined, of an identifier.
    pub definition: Option<Term>,
    /// What has it whole comes before what has only its parts.
    pub comes_first: bool,
    /// Its words in `Words::units`.
    pub units: std::ops::Range<usize>,
}

/// What is looked for in the best passages.
#[derive(Clone, Debug, Default)]
pub(super) struct Words {
    pub units: Vec<QueryWord>,
    pub names: Vec<Name>,
}

/// What made a passage's score.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scores {
    /// BM25 of the words.
    pub words: f32,
    /// What their order added.
    pub order: f32,
    /// What their nearness added.
    pub nearness: f32,
    /// What whole names and definitions added.
    pub names: f32,
    /// What having little else added.
    pub shortness: f32,
    /// What the kind of event multiplied the sum by.
    pub kind: f32,
}

impl Scores {
    /// The score that orders.
    pub(super) fn total(&self) -> f32 {
        (self.words + self.order + self.nearness + self.names + self.shortness) * self.kind
    }
}

/// What a kind of event counts: what a tool returned is looked for more often than
/// what was said about it.
fn kind_weight(kind: Option<EventKind>) -> f32 {
    match kind {
        Some(EventKind::ToolResultRecorded) | None => 1.0,
        Some(EventKind::MessageAppended) => MESSAGE_SHARE,
        Some(EventKind::ToolCallRequested) => CALL_SHARE,
        Some(_) => OTHER_SHARE,
    }
}

/// How much of the query's names a passage has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Tier {
    /// Parts at most.
    #[default]
    Parts,
    /// Some of them whole.
    SomeWhole,
    /// All of them whole.
    AllWhole,
}

/// A passage on its way to becoming a hit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scored {
    pub scores: Scores,
    pub address: DocAddress,
    pub tier: Tier,
    /// The share of the query that stands together.
    pub together: f32,
}

/// A passage in the second look.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// Position, and which unit.
    matches: Vec<(u32, u16)>,
    names: f32,
    /// Which of the names that come first it has whole, a bit each.
    wholes: u64,
    length: u32,
}

/// Scores what was found, in its order, the first [`POOL`] by a second look. Behind the pool all kinds count as little as the
/// least does, so that nothing there has a better score.
pub(super) fn rescore(
    columns: &OpenColumns,
    statistics: &NamespaceStatistics<'_>,
    field: Field,
    words: &Words,
    found: &Found,
) -> Result<Vec<Scored>, IndexError> {
    let passages = &found.passages;
    let mut scored = Vec::with_capacity(passages.len());
    for (place, &(score, address)) in passages.iter().enumerate() {
        let kind = match place < POOL {
            true => {
                let segment = columns.of_segment(address.segment_ord)?;
                kind_weight(segment.kind(address.doc_id))
            }
            false => OTHER_SHARE,
        };
        scored.push(Scored {
            scores: Scores {
                words: score,
                kind,
                ..Scores::default()
            },
            address,
            tier: match place < found.named {
                true => Tier::SomeWhole,
                false => Tier::Parts,
            },
            together: 0.0,
        });
    }
    let pool = &mut scored[..passages.len().min(POOL)];
    let look = Look::new(statistics, field, words).map_err(unreadable)?;
    look.at(pool).map_err(unreadable)?;
    Ok(scored)
}

struct Look<'a> {
    statistics: &'a NamespaceStatistics<'a>,
    field: Field,
    units: Vec<&'a QueryWord>,
    /// How rare each is.
    worth: Vec<f32>,
    /// Of all units of the query.
    worth_of_all: f32,
    /// Names, with the worth of their words.
    names: Vec<(&'a Name, f32)>,
    /// Of the names that come first, a bit each.
    firsts: u64,
    /// Each of the query's words in `units`.
    unit_of: Vec<Option<u16>>,
    /// What BM25 takes for the average of passages, in words.
    average_length: f32,
}

impl<'a> Look<'a> {
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

    fn at(&self, pool: &mut [Scored]) -> tantivy::Result<()> {
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

    fn look_into(&self, segment: u32, docs: &[(DocId, usize)]) -> tantivy::Result<Vec<Seen>> {
        let reader = self.statistics.searcher.segment_reader(segment);
        let index = reader.inverted_index(self.field)?;
        let mut seen = vec![Seen::default(); docs.len()];
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

    fn score(&self, mut seen: Seen, scored: &mut Scored) {
        seen.matches.sort_unstable();
        if scored.tier != Tier::Parts && self.has_all_whole(&seen) {
            scored.tier = Tier::AllWhole;
        }
        let order = self.order(&seen.matches) / self.worth_of_all;
        let nearness = self.nearness(&seen.matches) / self.worth_of_all;
        let units = self.units.len() as f32;
        let fit = (units + 8.0) / (seen.length.max(1) as f32 + 8.0);
        let early = seen
            .matches
            .first()
            .map_or(0.0, |(at, _)| 1.0 / (1.0 + *at as f32 / 16.0));
        // A part of a query stands in a row in many texts by chance, most of it in few.
        let most = |share: f32| {
            let above = ((share - BY_CHANCE) / (1.0 - BY_CHANCE)).max(0.0);
            above * above
        };
        scored.together = nearness;
        let scores = &mut scored.scores;
        scores.order =
            ORDER_WEIGHT * most(order) * self.worth_of_all + PAIRS_WEIGHT * self.pairs(&seen);
        scores.nearness = NEARNESS_WEIGHT * most(nearness) * self.worth_of_all;
        scores.names = seen.names;
        scores.shortness = (SHORTNESS_WEIGHT * fit.min(1.0) + EARLINESS_WEIGHT * early)
            * most(order.max(nearness))
            * self.worth_of_all;
    }

    /// Whether all names that come first stand in a passage whole.
    fn has_all_whole(&self, seen: &Seen) -> bool {
        let is_there = |(number, (name, _)): (usize, &(&Name, f32))| {
            let is_one = seen.wholes & (1 << number) != 0;
            !name.comes_first || is_one || self.has_row(&seen.matches, &name.units)
        };
        self.firsts == seen.wholes || self.names.iter().enumerate().all(is_there)
    }

    /// Whether some of the query's words stand in a row.
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

    /// BM25 of the pairs of neighbours of the query that are neighbours here.
    fn pairs(&self, seen: &Seen) -> f32 {
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

    /// The worth of the best chain of words in the query's order: all of it for
    /// words that stand as in the query, half for what stands near.
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

    /// The worth of the words that stand together in some piece of the passage.
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

/// Calls back for each of the documents that has the term, with its place.
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

/// How much finding a term says: BM25's weight of it.
fn rarity(statistics: &NamespaceStatistics<'_>, term: &Term) -> tantivy::Result<f32> {
    let with = statistics.doc_freq(term)? as f32;
    let all = statistics.passages.max(1) as f32;
    Ok((1.0 + (all - with + 0.5) / (with + 0.5)).ln())
}
