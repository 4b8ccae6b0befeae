//! Answers that need all matches and no order: what a pattern may match, and how many
//! matches each conversation has.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
};

use tantivy::{
    DocAddress, DocId, DocSet, TERMINATED,
    query::{EnableScoring, Query},
};

use super::{
    columns::Columns,
    error::{IndexError, IndexSearchError},
    hits::{self, Ranked, unreadable},
    index::{Published, SearchIndex},
    pattern::{Needs, Pattern},
    plan::Purpose,
    query::{Copies, Hit, SearchQuery, check_bounds, guarded},
    rank::Scores,
    syntax::{self, QueryError},
};
use crate::domain::{ConversationId, Position, TimestampMicros};

/// Most events that a pattern is tried on. In memory each takes 32 bytes, twice; reading the
/// texts of 332,000 took 8 s on two busy cores.
pub const CANDIDATES_MAX: usize = 500_000;

/// An event that a pattern may match, with one of its passages. In their order the one that
/// happened last is first, and of those of one time the one that was recorded last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    happened_at: Reverse<TimestampMicros>,
    position: Reverse<Position>,
    address: DocAddress,
}

/// Events that a pattern may match, those that happened last first: to be verified on their text.
pub struct Candidates {
    published: Published,
    places: Vec<Place>,
    /// There are older ones.
    pub more: bool,
    /// What the index had reached.
    pub reached: Position,
}

impl Candidates {
    /// One hit for each of the next so many events from a place on; where it matches is
    /// not known. Empty behind the last one.
    ///
    /// # Errors
    /// [`IndexSearchError`] for a damaged index.
    pub fn hits(&self, from: usize, count: usize) -> Result<Vec<Hit>, IndexSearchError> {
        let rest = self.places.get(from..).unwrap_or_default();
        let ranked = |place: &Place| Ranked {
            address: place.address,
            score: 0.0,
            scores: Scores::default(),
            together: 0.0,
            position: place.position.0,
            byte_start: 0,
        };
        let page: Vec<Ranked> = rest.iter().take(count).map(ranked).collect();
        Ok(guarded(|| hits::read(&self.published.columns, &page))?)
    }
}

impl SearchIndex {
    /// The events that happened last whose words have what a pattern needs, and that pass the
    /// filters of a query; its text plays no part. At most [`CANDIDATES_MAX`].
    ///
    /// # Errors
    /// [`IndexSearchError`] for a filter over its bound or a damaged index.
    pub fn candidates(
        &self,
        pattern: &Pattern,
        query: &SearchQuery,
    ) -> Result<Candidates, IndexSearchError> {
        check_bounds(query)?;
        let planner = self.planner(query);
        let published = self.published();
        let find = || {
            let having = |piece: &str| positions(&published, planner.piece(piece).as_ref());
            let wanted = having_needs(pattern.needs(), &having)?;
            let all = planner.filtered(planner.all(), &query.filters);
            let mut newest = Newest::new(CANDIDATES_MAX);
            each_match(&published, all.as_ref(), |columns, address| {
                let (position, _) = columns.place(address.doc_id)?;
                if wanted
                    .as_ref()
                    .is_none_or(|wanted| wanted.contains(&position))
                {
                    newest.push(Place {
                        happened_at: Reverse(columns.happened_at(address.doc_id)?),
                        position: Reverse(position),
                        address,
                    });
                }
                Ok(())
            })?;
            Ok(newest.into_sorted())
        };
        let (places, more) = guarded(find)?;
        Ok(Candidates {
            places,
            more,
            reached: published.reached,
            published,
        })
    }

    /// The conversations that have matches, with how many of their events match; the
    /// most first. All matches are looked at.
    ///
    /// # Errors
    /// As [`Self::search`].
    pub fn by_conversation(
        &self,
        query: &SearchQuery,
    ) -> Result<Vec<(ConversationId, u64)>, IndexSearchError> {
        check_bounds(query)?;
        let (parsed, reading) = syntax::read(&query.text, query.reading)?;
        let mut planner = self.planner(query);
        planner.prepare(&parsed, reading);
        planner.purpose = Purpose::Count;
        let words = planner.query(&parsed).ok_or(QueryError::Empty)?;
        let matching = planner.filtered(words, &query.filters);
        let published = self.published();
        let count = || {
            let mut counts: HashMap<ConversationId, u64> = HashMap::new();
            let mut seen: HashSet<u64> = HashSet::new();
            each_match(&published, matching.as_ref(), |columns, address| {
                if seen.insert(columns.group(address.doc_id, Copies::Each)?) {
                    *counts
                        .entry(columns.conversation(address.doc_id)?)
                        .or_default() += 1;
                }
                Ok(())
            })?;
            let mut counts: Vec<_> = counts.into_iter().collect();
            counts.sort_unstable_by_key(|(id, count)| (Reverse(*count), *id));
            Ok(counts)
        };
        Ok(guarded(count)?)
    }
}

/// The events that have what a pattern needs; none: all may.
fn having_needs(
    needs: &Needs,
    having: &dyn Fn(&str) -> Result<HashSet<Position>, IndexError>,
) -> Result<Option<HashSet<Position>>, IndexError> {
    let (parts, is_all) = match needs {
        Needs::Nothing => return Ok(None),
        Needs::Piece(piece) => return having(piece).map(Some),
        Needs::All(parts) => (parts, true),
        Needs::Any(parts) => (parts, false),
    };
    let mut merged: Option<HashSet<Position>> = None;
    for part in parts {
        let Some(set) = having_needs(part, having)? else {
            continue;
        };
        merged = Some(match merged {
            None => set,
            Some(before) if is_all => before.intersection(&set).copied().collect(),
            Some(mut before) => {
                before.extend(set);
                before
            }
        });
    }
    Ok(merged)
}

/// The events of all matches.
fn positions(published: &Published, query: &dyn Query) -> Result<HashSet<Position>, IndexError> {
    let mut positions = HashSet::new();
    each_match(published, query, |columns, address| {
        positions.insert(columns.place(address.doc_id)?.0);
        Ok(())
    })?;
    Ok(positions)
}

/// The first so many places, in memory for twice as many.
struct Newest {
    max: usize,
    places: Vec<Place>,
    more: bool,
}

impl Newest {
    fn new(max: usize) -> Self {
        Self {
            max,
            places: Vec::new(),
            more: false,
        }
    }

    fn push(&mut self, place: Place) {
        self.places.push(place);
        if self.places.len() >= self.max.saturating_mul(2) {
            self.cut();
        }
    }

    /// Keeps one passage of each event, and the first events.
    fn cut(&mut self) {
        self.places.sort_unstable();
        self.places.dedup_by_key(|place| place.position);
        self.more |= self.places.len() > self.max;
        self.places.truncate(self.max);
    }

    /// The places, and whether there are more.
    fn into_sorted(mut self) -> (Vec<Place>, bool) {
        self.cut();
        (self.places, self.more)
    }
}

pub(super) fn each_match(
    published: &Published,
    query: &dyn Query,
    mut each: impl FnMut(&Columns, DocAddress) -> Result<(), IndexError>,
) -> Result<(), IndexError> {
    let searcher = &published.searcher;
    let scoring = EnableScoring::disabled_from_searcher(searcher);
    let weight = query.weight(scoring).map_err(unreadable)?;
    for (segment, reader) in (0..).zip(searcher.segment_readers()) {
        let columns = published.columns.of_segment(segment)?;
        let alive = reader.alive_bitset();
        let mut matches = weight.scorer(reader, 1.0).map_err(unreadable)?;
        let mut doc: DocId = matches.doc();
        while doc != TERMINATED {
            if alive.is_none_or(|alive| alive.is_alive(doc)) {
                each(columns, DocAddress::new(segment, doc))?;
            }
            doc = matches.advance();
        }
    }
    Ok(())
}
