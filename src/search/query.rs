//! Searching: what is asked, what is found.

use tantivy::{Term, query::Query};

use super::{
    analyser::Analyser,
    best::Best,
    error::{IndexError, IndexSearchError},
    hits::{self, unreadable},
    index::{Published, SearchIndex},
    plan::{NamespaceStatistics, Planner, Purpose},
    rank::{POOL, Scores, Words, rescore},
    syntax::{self, QueryError, Reading},
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
/// Most passages of one event among the hits, unless one is wanted.
pub const HITS_PER_EVENT_MAX: usize = 3;
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
    /// One hit for each event, its best passage. Else up to
    /// `HITS_PER_EVENT_MAX` passages of one event are hits.
    pub one_hit_per_event: bool,
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
            one_hit_per_event: false,
            count_all: false,
            filters: SearchFilters::default(),
        }
    }
}

/// What hits must be. An empty list or none: no condition.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct SearchFilters {
    /// Which conversations or branch.
    pub scope: Option<Scope>,
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
    /// Best first; equal scores in order of position.
    pub hits: Vec<Hit>,
    /// Passages that match, all pages together.
    pub total: u64,
    /// There are more than `total`: counting ended there.
    pub more_than_total: bool,
    /// What the index had reached.
    pub reached: Position,
    /// How the query was read.
    pub read_as: Reading,
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
        let (planned, read_as) = self.planned(query, way)?;
        let published = self.published();
        let (hits, total) = guarded(|| self.run(&published, &planned, query))?;
        Ok(SearchResults {
            hits,
            total: total.count,
            more_than_total: total.more,
            reached: published.reached,
            read_as,
        })
    }

    /// Scores of those that get a second look, before it.
    #[cfg(test)]
    pub(super) fn pool(&self, query: &SearchQuery, way: Way) -> Vec<f32> {
        let (planned, _) = self.planned(query, way).unwrap();
        let published = self.published();
        let statistics =
            NamespaceStatistics::of(&published.searcher, &self.fields, &query.namespace).unwrap();
        let best = Best::new(&published, &statistics, &planned, &query.filters).unwrap();
        let found = best.find(POOL).unwrap();
        found.into_iter().map(|(score, _)| score).collect()
    }

    fn planned(
        &self,
        query: &SearchQuery,
        way: Way,
    ) -> Result<(Planned, Reading), IndexSearchError> {
        let (parsed, read_as) = syntax::read(&query.text, query.reading)?;
        let mut planner = self.planner(query);
        let words = planner.query(&parsed).ok_or(QueryError::Empty)?;
        let planned = Planned {
            looked_for: planner.looked_for(&parsed),
            query: planner.filtered(words.box_clone(), &query.filters),
            filter_tags: planner.filter_tags(&query.filters),
            is_prunable: planner.is_flat && way == Way::Shortest,
            words,
            counted: {
                planner.purpose = Purpose::Count;
                let counted = planner.query(&parsed).ok_or(QueryError::Empty)?;
                planner.filtered(counted, &query.filters)
            },
        };
        Ok((planned, read_as))
    }

    pub(super) fn planner<'a>(&'a self, query: &'a SearchQuery) -> Planner<'a> {
        Planner {
            fields: &self.fields,
            namespace: &query.namespace,
            text: &query.text,
            analyser: Analyser::default(),
            purpose: Purpose::Rank,
            is_flat: true,
        }
    }

    fn run(
        &self,
        published: &Published,
        planned: &Planned,
        query: &SearchQuery,
    ) -> Result<(Vec<Hit>, Total), IndexError> {
        let searcher = &published.searcher;
        let statistics = NamespaceStatistics::of(searcher, &self.fields, &query.namespace)
            .map_err(unreadable)?;
        let best = Best::new(published, &statistics, planned, &query.filters)?;
        let per_event = if query.one_hit_per_event {
            1
        } else {
            HITS_PER_EVENT_MAX
        };
        let wanted = query.offset + query.limit;
        if wanted == 0 {
            return Ok((Vec::new(), best.count(query.count_all)?));
        }
        let mut fetch = (wanted * 2 + 8).max(POOL);
        loop {
            let found = best.find(fetch)?;
            let complete = found.len() < fetch;
            let (columns, text) = (&published.columns, self.fields.text);
            let found = rescore(columns, &statistics, text, &planned.looked_for, &found)?;
            let ranked = hits::ranked(&published.columns, &found, per_event)?;
            if complete || ranked.len() >= wanted {
                let page = ranked
                    .get(query.offset..wanted.min(ranked.len()))
                    .unwrap_or_default();
                let hits = hits::read(&published.columns, page)?;
                let total = if complete {
                    Total {
                        count: found.len() as u64,
                        more: false,
                    }
                } else {
                    best.count(query.count_all)?
                };
                return Ok((hits, total));
            }
            fetch = fetch.saturating_mul(4);
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
    /// What was typed, with the filters.
    pub query: Box<dyn Query>,
    /// What was typed, without them.
    pub words: Box<dyn Query>,
    /// `words` is a union of single terms: its best can be found without looking
    /// at all of its matches.
    pub is_prunable: bool,
    /// What each filter looks at: one of each list must match.
    pub filter_tags: Vec<Vec<Term>>,
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
