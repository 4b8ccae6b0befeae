//! Searching: what is asked, what is found.

use tantivy::{Term, query::Query};

use super::{
    analyser::Analyser,
    as_typed::AsTyped,
    best::Best,
    error::{IndexError, IndexSearchError},
    hits::{self, unreadable},
    index::{Published, SearchIndex},
    looked_for::{TypedNames, WholeNames},
    plan::{NamespaceStatistics, Planner, Purpose},
    rank::{POOL, Scores, Words, rescore},
    syntax::{self, QueryError, Reading},
    term_pattern::check_globs,
};
use crate::{
    contained::contained,
    domain::{
        BranchId, ConversationId, EventKind, Namespace, Position, Revision, Role, TimestampMicros,
    },
};

/// How deep a search pages: offset and limit together.
pub const HITS_MAX: usize = 10_000;
/// Most values of one filter.
pub const FILTER_VALUES_MAX: usize = 10_000;
/// Matches are counted up to this, unless all are to be: nobody reads on so far,
/// and finding the best does not need to look at every match.
pub const COUNTED_MAX: u64 = 1_000;

/// A search.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchQuery {
    /// Where to search. Nothing of another namespace is found or counted.
    pub namespace: Namespace,
    /// What to search for.
    pub text: String,
    /// How it is read.
    pub reading: Reading,
    /// At most so many hits.
    pub limit: usize,
    /// Hits to pass over.
    pub offset: usize,
    /// The first hits come with the answer, before the page, where their texts say more of
    /// their order: [`AsTyped::reorder`] cuts the page then.
    pub told_by_text: bool,
    /// Whether events with one text are one hit.
    pub copies: Copies,
    /// Count all matches, not only the first [`COUNTED_MAX`].
    pub count_all: bool,
    /// What hits must be besides.
    pub filters: SearchFilters,
}

impl SearchQuery {
    /// The ten best hits for a text.
    #[must_use]
    pub fn new(namespace: Namespace, text: impl Into<String>) -> Self {
        Self {
            namespace,
            text: text.into(),
            reading: Reading::default(),
            limit: 10,
            offset: 0,
            told_by_text: false,
            copies: Copies::Folded,
            count_all: false,
            filters: SearchFilters::default(),
        }
    }
}

/// What is done with events of one kind whose whole text is equal: a file that was read
/// twice, a session that came again with another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Copies {
    /// They are one hit, the best of them.
    #[default]
    Folded,
    /// Each is a hit.
    Each,
}

/// What hits must be. An empty list or none: no condition.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct SearchFilters {
    /// Which conversations or branch.
    pub scope: Option<Scope>,
    /// Of the conversations that are here, only what these segments hold; of others all.
    pub shown: Vec<LineageSegment>,
    /// One of these tools.
    pub tools: Vec<String>,
    /// Results of calls that worked, or did not.
    pub success: Option<bool>,
    /// Recorded then or later.
    pub recorded_from: Option<TimestampMicros>,
    /// Recorded then or earlier.
    pub recorded_to: Option<TimestampMicros>,
    /// Happened then or later.
    pub happened_from: Option<TimestampMicros>,
    /// Happened then or earlier.
    pub happened_to: Option<TimestampMicros>,
    /// One of these kinds.
    pub kinds: Vec<EventKind>,
    /// Messages of one of these roles.
    pub roles: Vec<Role>,
    /// Calls, and their results, that name a path like one of these: `*` and `?`
    /// stay in a folder, `**` does not; without `/` it is the last part's name.
    pub paths: Vec<String>,
}

/// Where in a namespace.
#[derive(Clone, Debug, PartialEq)]
pub enum Scope {
    /// All of these conversations. An empty list finds nothing.
    Conversations(Vec<ConversationId>),
    /// The history of a branch: what each segment's branch holds up to its
    /// revision. An empty list finds nothing.
    Lineage(Vec<LineageSegment>),
}

/// A branch's own events up to a fork, or to where one looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineageSegment {
    /// The branch's conversation.
    pub conversation: ConversationId,
    /// The branch.
    pub branch: BranchId,
    /// The last revision that counts.
    pub up_to: Revision,
}

/// What a search found.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchResults {
    /// Best first; equal scores in order of position. One for each event, or text.
    pub hits: Vec<Hit>,
    /// How many hits come before the first of these.
    pub first: usize,
    /// What texts tell of the order of the first hits.
    pub as_typed: AsTyped,
    /// Hits of all pages together.
    pub total: u64,
    /// There are more than `total`: counting ended there.
    pub more_than_total: bool,
    /// What the index had reached.
    pub reached: Position,
    /// How the query was read.
    pub read_as: Reading,
    /// The query's names, and what has them.
    pub names: FoundNames,
}

/// What has the names of a query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundNames {
    /// The names; none: nothing is looked for by its name.
    pub typed: TypedNames,
    /// How whole they are found.
    pub found: Wholeness,
}

/// How whole names are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wholeness {
    /// Nothing has more than their parts.
    #[default]
    Parts,
    /// Something has the parts of one in a row, and nothing has it as one word.
    InARow,
    /// Something has one of them: as one word, or its parts in a row where the index
    /// knows no more.
    Whole,
}

/// A passage that matches.
#[derive(Clone, Debug, PartialEq)]
pub struct Hit {
    /// The event's conversation.
    pub conversation: ConversationId,
    /// Its branch.
    pub branch: BranchId,
    /// Its place in the conversation.
    pub revision: Revision,
    /// Its place in the log.
    pub position: Position,
    /// What it is about.
    pub kind: EventKind,
    /// The tool, or empty.
    pub tool: String,
    /// Whether the tool worked, for tool results.
    pub success: Option<bool>,
    /// When it was recorded.
    pub recorded_at: TimestampMicros,
    /// When it happened.
    pub happened_at: TimestampMicros,
    /// What orders hits; comparable within one search.
    pub score: f32,
    /// What made it.
    pub scores: Scores,
    /// The share of the query that stands together in the passage, 0 to 1; of hits
    /// behind the first ones it is not known, and 0.
    pub together: f32,
    /// Equal for hits of one kind whose events have the same text.
    pub text_hash: u64,
    /// The passage's first byte in the event's text:
    /// [`passage_at`](super::passage_at) gives the passage.
    pub byte_start: u64,
}

impl SearchIndex {
    /// Searches what is committed.
    ///
    /// # Errors
    /// [`IndexSearchError::Query`] for a query that cannot be searched, others for a
    /// page or filter over its bound or a damaged index.
    pub fn search(&self, query: &SearchQuery) -> Result<SearchResults, IndexSearchError> {
        self.search_by(query, Way::Shortest)
    }

    pub(super) fn search_by(
        &self,
        query: &SearchQuery,
        way: Way,
    ) -> Result<SearchResults, IndexSearchError> {
        check_bounds(query)?;
        let planned = self.planned(query, way)?;
        let published = self.published();
        Ok(guarded(|| self.run(&published, &planned, query))?)
    }

    /// Scores of those that get a second look, before it.
    #[cfg(test)]
    pub(super) fn pool(&self, query: &SearchQuery, way: Way) -> Vec<f32> {
        let planned = self.planned(query, way).unwrap();
        let published = self.published();
        let statistics =
            NamespaceStatistics::of(&published.searcher, &self.fields, &query.namespace).unwrap();
        let best = Best::new(&published, &statistics, &planned, &query.filters).unwrap();
        let found = best.find(POOL).unwrap();
        found.into_iter().map(|(score, _)| score).collect()
    }

    fn planned(&self, query: &SearchQuery, way: Way) -> Result<Planned, IndexSearchError> {
        let (parsed, read_as) = syntax::read(&query.text, query.reading)?;
        let mut planner = self.planner(query);
        planner.prepare(&parsed, read_as);
        let words = planner.query(&parsed).ok_or(QueryError::Empty)?;
        Ok(Planned {
            read_as,
            looked_for: planner.looked_for(&parsed),
            query: planner.filtered(words.box_clone(), &query.filters),
            filter_tags: planner.filter_tags(&query.filters),
            is_prunable: planner.is_flat && way == Way::Shortest,
            whole: planner.whole_names(&parsed, words.as_ref(), &query.filters),
            words,
            counted: {
                planner.purpose = Purpose::Count;
                let counted = planner.query(&parsed).ok_or(QueryError::Empty)?;
                planner.filtered(counted, &query.filters)
            },
        })
    }

    pub(super) fn planner<'a>(&'a self, query: &'a SearchQuery) -> Planner<'a> {
        Planner {
            fields: &self.fields,
            namespace: &query.namespace,
            text: &query.text,
            analyser: Analyser::default(),
            purpose: Purpose::Rank,
            is_flat: true,
            passes_small: false,
            is_one_word: false,
            puts_names_first: false,
        }
    }

    fn run(
        &self,
        published: &Published,
        planned: &Planned,
        query: &SearchQuery,
    ) -> Result<SearchResults, IndexError> {
        let searcher = &published.searcher;
        let statistics = NamespaceStatistics::of(searcher, &self.fields, &query.namespace)
            .map_err(unreadable)?;
        let best = Best::new(published, &statistics, planned, &query.filters)?;
        let mut results = SearchResults {
            hits: Vec::new(),
            first: query.offset,
            as_typed: AsTyped::default(),
            total: 0,
            more_than_total: false,
            reached: published.reached,
            read_as: planned.read_as,
            names: FoundNames::default(),
        };
        if query.limit == 0 {
            let total = best.count(query)?;
            (results.total, results.more_than_total) = (total.count, total.more);
            return Ok(results);
        }
        let mut last = query.offset + query.limit;
        let mut fetch = (last * 2 + 8).max(POOL);
        loop {
            let found = best.find_all(fetch)?;
            results.names.found = found.wholeness;
            if let Some(whole) = &planned.whole {
                results.names.typed = whole.typed.clone();
            }
            let FoundNames {
                typed,
                found: whole,
            } = &results.names;
            results.as_typed = AsTyped::of(query, planned.read_as, typed, *whole);
            if query.told_by_text && query.offset < results.as_typed.hits {
                results.first = 0;
                last = last.max(results.as_typed.hits);
            }
            let (columns, words) = (&published.columns, &planned.looked_for);
            let scored = rescore(columns, &statistics, self.fields.text, words, &found)?;
            let ranked = hits::ranked(columns, &scored, query.copies)?;
            if !found.is_all && ranked.len() < last {
                fetch = fetch.saturating_mul(4);
                continue;
            }
            let page = ranked.get(results.first..last.min(ranked.len()));
            results.hits = hits::read(columns, page.unwrap_or_default())?;
            let total = match found.is_all {
                true => Total {
                    count: ranked.len() as u64,
                    more: false,
                },
                false => best.count(query)?,
            };
            (results.total, results.more_than_total) = (total.count, total.more);
            return Ok(results);
        }
    }
}

/// tantivy answers some damage by a panic.
pub(super) fn guarded<T>(look: impl FnOnce() -> Result<T, IndexError>) -> Result<T, IndexError> {
    contained(look).unwrap_or_else(|_| {
        Err(IndexError::NeedsRebuild {
            reason: "a segment cannot be read".to_owned(),
        })
    })
}

/// How the best are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// By looking at as little as possible.
    Shortest,
    /// By looking at all matches: what the other way is held against.
    #[cfg(test)]
    Exhaustive,
}

/// How many passages match.
#[derive(Clone, Copy, Debug)]
pub(super) struct Total {
    pub count: u64,
    /// There are more.
    pub more: bool,
}

/// What tantivy is asked.
pub(super) struct Planned {
    pub read_as: Reading,
    /// What was typed, with the filters.
    pub query: Box<dyn Query>,
    /// What was typed, without them.
    pub words: Box<dyn Query>,
    /// `words` is a union of single terms: its best can be found without looking
    /// at all of its matches.
    pub is_prunable: bool,
    /// What each filter looks at: one of each list must match.
    pub filter_tags: Vec<Vec<Term>>,
    /// What has the query's names whole: it comes before all others.
    pub whole: Option<WholeNames>,
    /// For the second look.
    looked_for: Words,
    /// What matches as `query` does, faster.
    pub counted: Box<dyn Query>,
}

pub(super) fn check_bounds(query: &SearchQuery) -> Result<(), IndexSearchError> {
    let (offset, limit, max) = (query.offset, query.limit, HITS_MAX);
    if offset.saturating_add(limit) > max {
        return Err(IndexSearchError::TooFar { offset, limit, max });
    }
    let filters = &query.filters;
    let lineage = match &filters.scope {
        Some(Scope::Lineage(segments)) => segments.len(),
        // All that a source has may be many, and is looked up.
        None | Some(Scope::Conversations(_)) => 0,
    };
    let max = FILTER_VALUES_MAX;
    check_globs(&filters.paths)?;
    for (what, count) in [
        ("branches", lineage),
        ("tools", filters.tools.len()),
        ("kinds", filters.kinds.len()),
        ("roles", filters.roles.len()),
        ("paths", filters.paths.len()),
    ] {
        if count > max {
            return Err(IndexSearchError::FilterTooLarge { what, count, max });
        }
    }
    Ok(())
}
