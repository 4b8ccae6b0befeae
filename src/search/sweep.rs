//! Operations that visit all matches in no particular order: candidates of a regular expression,
//! and matches per conversation.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap, hash_map::Entry},
};

use tantivy::{
    COLLECT_BLOCK_BUFFER_LEN, DocAddress, DocId, DocSet,
    query::{EnableScoring, Occur, Query, Weight},
};

use super::{
    columns::Columns,
    error::IndexSearchError,
    hits::{self, RankedPassage, unreadable},
    index::{PublishedState, SearchIndex},
    memory::{EventSet, ExceededBound, HeldMemory, SearchMemory},
    pattern::{Needs, Pattern},
    plan::{Purpose, union_of},
    query::{DuplicateHandling, Hit, SearchQuery, catch_search_panics, check_bounds},
    rank::{NameTier, Scores},
    syntax::{self, QueryError},
};
use treering_base::cancel;
use treering_domain::{ConversationId, Position, TimestampMicros};

/// Maximum number of events on which a pattern is tried. Each takes 32 bytes, and up to twice as
/// many are held while they are collected. Reading the texts of 332,000 events took 8 s on two busy
/// cores.
pub(crate) const CANDIDATES_MAX: usize = 500_000;

/// Number of candidates collected at first. A page has ten hits, and a regular expression matches
/// most of the candidates that its words select.
const FIRST_CANDIDATES: usize = 1_024;

/// Memory of a conversation and its count, in a map and then a list, in bytes.
const COUNT_BYTES: usize = 96;

/// An event that a pattern may match, with one of its passages. Ordered by time, newest first, then
/// by recording, newest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct EventCandidate {
    happened_at: Reverse<TimestampMicros>,
    position: Reverse<Position>,
    address: DocAddress,
}

/// Events that a pattern may match, newest first. Each must be verified on its text.
pub struct Candidates {
    published: PublishedState,
    /// Matches passages of all candidates, and of other events.
    query: Box<dyn Query>,
    /// The events whose words satisfy the pattern; `None`: all may.
    wanted: Option<EventSet>,
    memory: SearchMemory,
    places: Vec<EventCandidate>,
    /// Limit of the last collection. Small at first, because most pages need few places.
    max: usize,
    /// There are older candidates.
    more: bool,
    /// The memory of the places.
    held: HeldMemory,
    /// The log position up to which the index was searched.
    pub reached: Position,
}

impl Candidates {
    /// Returns one hit for each of the next `count` events from index `from`, without the place of
    /// the match. Empty past the last one, or past `CANDIDATES_MAX`.
    ///
    /// # Errors
    /// [`IndexSearchError`] for a damaged index, or too much memory.
    pub fn hits(&mut self, from: usize, count: usize) -> Result<Vec<Hit>, IndexSearchError> {
        if from >= self.places.len() && self.more && self.max < CANDIDATES_MAX {
            self.collect(CANDIDATES_MAX)?;
        }
        let rest = self.places.get(from..).unwrap_or_default();
        let ranked = |place: &EventCandidate| RankedPassage {
            address: place.address,
            score: 0.0,
            scores: Scores::default(),
            phrase_score: 0.0,
            position: place.position.0,
            byte_start: 0,
            window: None,
            tier: NameTier::Parts,
            is_reranked: false,
        };
        let page: Vec<RankedPassage> = rest.iter().take(count).map(ranked).collect();
        catch_search_panics(|| Ok(hits::read(&self.published.columns, &page)?))
    }

    /// Returns whether there are older events than the collected candidates.
    #[must_use]
    pub fn more(&self) -> bool {
        self.more
    }

    fn collect(&mut self, max: usize) -> Result<(), IndexSearchError> {
        let held = self.memory.holding(ExceededBound::Candidates);
        let mut newest = NewestCollector::new(max, held);
        let wanted = self.wanted.as_ref();
        catch_search_panics(|| {
            let published = &self.published;
            let mut segments = Vec::new();
            for segment in 0..published.searcher.segment_readers().len() as u32 {
                let columns = published.columns.of_segment(segment)?;
                segments.push((Reverse(columns.newest()), segment));
            }
            segments.sort_unstable();
            let mut matches = Matches::new(published, self.query.as_ref())?;
            for (Reverse(latest), segment) in segments {
                // All other segments are older still.
                if newest.are_newer_than(latest) {
                    break;
                }
                matches.each_in(segment, |columns, address| {
                    let happened_at = columns.happened_at(address.doc_id)?;
                    if newest.are_newer_than(happened_at) {
                        return Ok(());
                    }
                    let (position, _) = columns.place(address.doc_id)?;
                    if wanted.is_none_or(|wanted| wanted.contains(position.offset)) {
                        newest.push(EventCandidate {
                            happened_at: Reverse(happened_at),
                            position: Reverse(position),
                            address,
                        })?;
                    }
                    Ok(())
                })?;
            }
            Ok(())
        })?;
        (self.places, self.more, self.held) = newest.into_sorted();
        self.max = max;
        Ok(())
    }
}

impl SearchIndex {
    /// Returns the newest events whose words satisfy the pattern's requirements and that pass the
    /// query's filters, at most `CANDIDATES_MAX`. The query's text is ignored.
    ///
    /// # Errors
    /// [`IndexSearchError`] for a filter over its limit, a damaged index, or too much memory.
    pub fn candidates(
        &self,
        pattern: &Pattern,
        query: &SearchQuery,
    ) -> Result<Candidates, IndexSearchError> {
        check_bounds(query)?;
        let planner = self.planner(query);
        let published = self.published();
        let having =
            |piece: &str| events_of(&published, planner.piece(piece).as_ref(), &query.memory);
        let wanted = catch_search_panics(|| having_needs(pattern.needs(), &having))?;
        let passages = match pattern.needs().pieces() {
            None => planner.all(),
            Some(pieces) => {
                let having = pieces.into_iter().map(|piece| planner.piece(piece));
                union_of(having.map(|query| (Occur::Should, query)).collect())
            }
        };
        let mut candidates = Candidates {
            query: planner.filtered(passages, query),
            wanted,
            memory: query.memory.clone(),
            places: Vec::new(),
            max: 0,
            more: false,
            held: query.memory.holding(ExceededBound::Candidates),
            reached: published.reached,
            published,
        };
        candidates.collect(FIRST_CANDIDATES)?;
        Ok(candidates)
    }

    /// Returns the conversations with matches and how many of their events match, the most first.
    /// Visits all matches.
    ///
    /// # Errors
    /// As [`Self::candidates`].
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
        let matching = planner.filtered(words, query);
        let published = self.published();
        let count = || {
            let mut counts: HashMap<ConversationId, u64> = HashMap::new();
            let mut seen = EventSet::new(query.memory.holding(ExceededBound::Matching));
            let mut held = query.memory.holding(ExceededBound::Matching);
            // Counted by ordinal, because looking up a conversation's id takes a microsecond.
            let mut of_segments: BTreeMap<u32, HashMap<u64, u64>> = BTreeMap::new();
            each_match(&published, matching.as_ref(), |columns, address| {
                if seen.insert(columns.group(address.doc_id, DuplicateHandling::Each)?)? {
                    let counts = of_segments.entry(address.segment_ord).or_default();
                    let ordinal = columns.conversation_ordinal(address.doc_id)?;
                    match counts.entry(ordinal) {
                        Entry::Occupied(mut count) => *count.get_mut() += 1,
                        Entry::Vacant(first) => {
                            held.more(COUNT_BYTES)?;
                            first.insert(1);
                        }
                    }
                }
                Ok(())
            })?;
            for (segment, of_segment) in of_segments {
                let columns = published.columns.of_segment(segment)?;
                columns.each_conversation(of_segment, |id, count| {
                    *counts.entry(id).or_default() += count;
                })?;
            }
            let mut counts: Vec<_> = counts.into_iter().collect();
            counts.sort_unstable_by_key(|(id, count)| (Reverse(*count), *id));
            Ok(counts)
        };
        catch_search_panics(count)
    }
}

/// Returns the events that satisfy a pattern's requirements, or `None` when all may.
fn having_needs(
    needs: &Needs,
    having: &dyn Fn(&str) -> Result<EventSet, IndexSearchError>,
) -> Result<Option<EventSet>, IndexSearchError> {
    let (parts, is_all) = match needs {
        Needs::Nothing => return Ok(None),
        Needs::Piece(piece) => return having(piece).map(Some),
        Needs::All(parts) => (parts, true),
        Needs::Any(parts) => (parts, false),
    };
    let mut merged: Option<EventSet> = None;
    for part in parts {
        let Some(set) = having_needs(part, having)? else {
            continue;
        };
        merged = Some(match merged {
            None => set,
            Some(mut before) if is_all => {
                before.intersect(&set);
                before
            }
            Some(before) => before.unite(set),
        });
    }
    Ok(merged)
}

/// Returns the events of all matches.
fn events_of(
    published: &PublishedState,
    query: &dyn Query,
    memory: &SearchMemory,
) -> Result<EventSet, IndexSearchError> {
    let mut events = EventSet::new(memory.holding(ExceededBound::Candidates));
    each_match(published, query, |columns, address| {
        events.insert(columns.place(address.doc_id)?.0.offset)?;
        Ok(())
    })?;
    Ok(events)
}

/// Collects the newest `max` places, in memory for twice as many.
struct NewestCollector {
    max: usize,
    places: Vec<EventCandidate>,
    held: HeldMemory,
    more: bool,
    /// When the oldest kept event happened, once others were dropped.
    oldest: Option<TimestampMicros>,
}

impl NewestCollector {
    fn new(max: usize, held: HeldMemory) -> Self {
        Self {
            max,
            places: Vec::new(),
            held,
            more: false,
            oldest: None,
        }
    }

    /// Returns whether all kept places are newer than this; false until others were dropped.
    fn are_newer_than(&self, happened_at: TimestampMicros) -> bool {
        self.oldest.is_some_and(|oldest| happened_at < oldest)
    }

    fn push(&mut self, place: EventCandidate) -> Result<(), IndexSearchError> {
        let before = self.places.capacity();
        self.places.push(place);
        let more = self.places.capacity() - before;
        if more > 0 {
            self.held.more(more * size_of::<EventCandidate>())?;
        }
        if self.places.len() >= self.max.saturating_mul(2) {
            self.cut();
        }
        Ok(())
    }

    /// Keeps one passage of each event, and the newest events.
    fn cut(&mut self) {
        self.places.sort_unstable();
        self.places.dedup_by_key(|place| place.position);
        self.more |= self.places.len() > self.max;
        self.places.truncate(self.max);
        if self.more {
            self.oldest = self.places.last().map(|place| place.happened_at.0);
        }
    }

    /// Returns the places, whether there are more, and their memory.
    fn into_sorted(mut self) -> (Vec<EventCandidate>, bool, HeldMemory) {
        self.cut();
        self.places.shrink_to_fit();
        self.held
            .shrink_to(self.places.capacity() * size_of::<EventCandidate>());
        (self.places, self.more, self.held)
    }
}

/// Checks from time to time whether the search was cancelled.
#[derive(Debug, Default)]
pub(super) struct StopCheck(u32);

impl StopCheck {
    /// Passages between two checks: some ten microseconds.
    pub(crate) const EVERY: u32 = 1_024;

    /// Must be called for each passage visited.
    pub(crate) fn check(&mut self) -> Result<(), IndexSearchError> {
        let is_due = self.0.is_multiple_of(Self::EVERY);
        self.0 = self.0.wrapping_add(1);
        match is_due && !cancel::is_wanted() {
            true => Err(IndexSearchError::Stopped),
            false => Ok(()),
        }
    }
}

/// Visits all matching passages until the search is cancelled.
pub(super) fn each_match(
    published: &PublishedState,
    query: &dyn Query,
    mut each: impl FnMut(&Columns, DocAddress) -> Result<(), IndexSearchError>,
) -> Result<(), IndexSearchError> {
    let mut matches = Matches::new(published, query)?;
    for segment in 0..published.searcher.segment_readers().len() as u32 {
        matches.each_in(segment, &mut each)?;
    }
    Ok(())
}

/// The passages that match a query, segment by segment.
struct Matches<'a> {
    published: &'a PublishedState,
    weight: Box<dyn Weight>,
    stop: StopCheck,
}

impl<'a> Matches<'a> {
    fn new(published: &'a PublishedState, query: &dyn Query) -> Result<Self, IndexSearchError> {
        let scoring = EnableScoring::disabled_from_searcher(&published.searcher);
        Ok(Self {
            published,
            weight: query.weight(scoring).map_err(unreadable)?,
            stop: StopCheck::default(),
        })
    }

    /// Visits those of a segment.
    fn each_in(
        &mut self,
        segment: u32,
        mut each: impl FnMut(&Columns, DocAddress) -> Result<(), IndexSearchError>,
    ) -> Result<(), IndexSearchError> {
        let reader = self.published.searcher.segment_reader(segment);
        let columns = self.published.columns.of_segment(segment)?;
        let alive = reader.alive_bitset();
        let mut matches = self.weight.scorer(reader, 1.0).map_err(unreadable)?;
        let mut buffer = [DocId::MIN; COLLECT_BLOCK_BUFFER_LEN];
        loop {
            let count = matches.fill_buffer(&mut buffer);
            for doc in &buffer[..count] {
                self.stop.check()?;
                if alive.is_none_or(|alive| alive.is_alive(*doc)) {
                    each(columns, DocAddress::new(segment, *doc))?;
                }
            }
            if count < buffer.len() {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Two passages of one event must not make a full collection look complete: older events would
    // be skipped without a sign that there are more.
    #[test]
    fn collector_reports_older_places() {
        let memory = SearchMemory::default();
        let mut newest = NewestCollector::new(2, memory.holding(ExceededBound::Candidates));
        for (doc, at) in (0..).zip([9, 9, 8, 8, 7, 6]) {
            let happened_at = TimestampMicros(at);
            if newest.are_newer_than(happened_at) {
                continue;
            }
            let place = EventCandidate {
                happened_at: Reverse(happened_at),
                position: Reverse(Position::local(at.unsigned_abs())),
                address: DocAddress::new(0, doc),
            };
            newest.push(place).unwrap();
        }
        let (places, is_more, _) = newest.into_sorted();
        let kept: Vec<_> = places.iter().map(|place| place.happened_at.0.0).collect();
        assert_eq!((kept, is_more), (vec![9, 8], true));
    }
}
