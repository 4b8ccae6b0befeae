//! Searching: what is asked, what is found.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tantivy::{Searcher, collector::TopDocs, query::Query};

use super::{
    analyser::Analyser,
    error::{IndexError, SearchError},
    hits::{self, unreadable},
    index::SearchIndex,
    plan::{NamespaceStatistics, Planner, Purpose},
    proximity::{POOL, rescore},
    syntax::{self, QueryError},
};
use crate::domain::{
    BranchId, ConversationId, EventKind, Namespace, Position, Revision, Role, TimestampMicros,
};

/// How deep a search pages: offset and limit together.
pub const HITS_MAX: usize = 10_000;
/// Most values of one filter.
pub const FILTER_VALUES_MAX: usize = 10_000;
/// Most passages of one event among the hits, unless one is wanted.
pub const HITS_PER_EVENT_MAX: usize = 3;

/// A search.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchQuery {
    /// Where to search. Nothing of another namespace is found or counted.
    pub namespace: Namespace,
    /// What to search for, in the language of [`syntax`].
    pub text: String,
    /// At most so many hits.
    pub limit: usize,
    /// Hits to pass over.
    pub offset: usize,
    /// One hit for each event, its best passage. Else up to
    /// `HITS_PER_EVENT_MAX` passages of one event are hits.
    pub one_hit_per_event: bool,
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
            limit: 10,
            offset: 0,
            one_hit_per_event: false,
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
    /// One of these kinds.
    pub kinds: Vec<EventKind>,
    /// Messages of one of these roles.
    pub roles: Vec<Role>,
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
    /// What the index had reached.
    pub reached: Position,
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
    /// The call, or empty.
    pub call_id: String,
    /// Whether the tool worked, for tool results.
    pub success: Option<bool>,
    /// When it was recorded.
    pub recorded_at: TimestampMicros,
    /// BM25; comparable within one search.
    pub score: f32,
    /// The passage's first byte in the event's text.
    pub byte_start: u64,
    /// The byte after its last.
    pub byte_end: u64,
    /// The line that it begins in, from 1.
    pub line: u64,
    /// Length of the event's text, in bytes.
    pub text_bytes: u64,
}

impl SearchIndex {
    /// Searches what is committed.
    ///
    /// # Errors
    /// [`SearchError::Query`] for a query that cannot be searched, others for a
    /// page or filter over its bound or a damaged index.
    pub fn search(&self, query: &SearchQuery) -> Result<SearchResults, SearchError> {
        check_bounds(query)?;
        let parsed = syntax::parse(&query.text)?;
        let mut planner = Planner {
            fields: &self.fields,
            namespace: &query.namespace,
            text: &query.text,
            analyser: Analyser::default(),
            purpose: Purpose::Rank,
        };
        let planned = planner.query(&parsed).ok_or(QueryError::Empty)?;
        let planned = Planned {
            query: planner.filtered(planned, &query.filters),
            pairs: planner.neighbours(&parsed),
            counted: {
                planner.purpose = Purpose::Count;
                let counted = planner.query(&parsed).ok_or(QueryError::Empty)?;
                planner.filtered(counted, &query.filters)
            },
        };
        let published = self.published();
        // tantivy answers some damage by a panic.
        let run = || self.run(&published.searcher, &planned, query);
        let found = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
            Err(IndexError::NeedsRebuild {
                reason: "a segment cannot be read".to_owned(),
            })
        });
        let (hits, total) = found?;
        Ok(SearchResults {
            hits,
            total,
            reached: published.reached,
        })
    }

    fn run(
        &self,
        searcher: &Searcher,
        planned: &Planned,
        query: &SearchQuery,
    ) -> Result<(Vec<Hit>, u64), IndexError> {
        let statistics = NamespaceStatistics::of(searcher, &self.fields, &query.namespace)
            .map_err(unreadable)?;
        let per_event = if query.one_hit_per_event {
            1
        } else {
            HITS_PER_EVENT_MAX
        };
        let wanted = query.offset + query.limit;
        let mut fetch = (wanted * 2 + 8).max(POOL);
        let total = planned.counted.count(searcher).map_err(unreadable)?;
        if wanted == 0 || total == 0 {
            return Ok((Vec::new(), total as u64));
        }
        loop {
            let top = TopDocs::with_limit(fetch.min(total).max(1)).order_by_score();
            let mut found = searcher
                .search_with_statistics_provider(&planned.query, &top, &statistics)
                .map_err(unreadable)?;
            rescore(searcher, &statistics, &planned.pairs, &mut found).map_err(unreadable)?;
            let complete = found.len() >= total || found.len() < fetch;
            let ranked = hits::ranked(searcher, &found, per_event)?;
            if complete || ranked.len() >= wanted {
                let page = ranked
                    .get(query.offset..wanted.min(ranked.len()))
                    .unwrap_or_default();
                return Ok((hits::read(searcher, page)?, total as u64));
            }
            fetch *= 4;
        }
    }
}

/// What tantivy is asked.
struct Planned {
    query: Box<dyn Query>,
    /// Neighbours, for the second look.
    pairs: Vec<Box<dyn Query>>,
    /// What matches as `query` does, faster.
    counted: Box<dyn Query>,
}

fn check_bounds(query: &SearchQuery) -> Result<(), SearchError> {
    let (offset, limit, max) = (query.offset, query.limit, HITS_MAX);
    if offset.saturating_add(limit) > max {
        return Err(SearchError::TooFar { offset, limit, max });
    }
    let filters = &query.filters;
    let scope = match &filters.scope {
        None => 0,
        Some(Scope::Conversations(conversations)) => conversations.len(),
        Some(Scope::Lineage(segments)) => segments.len(),
    };
    let max = FILTER_VALUES_MAX;
    for (what, count) in [
        ("conversations", scope),
        ("tools", filters.tools.len()),
        ("kinds", filters.kinds.len()),
        ("roles", filters.roles.len()),
    ] {
        if count > max {
            return Err(SearchError::FilterTooLarge { what, count, max });
        }
    }
    Ok(())
}
