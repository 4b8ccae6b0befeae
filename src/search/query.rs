//! Search queries, filters and results.

use std::sync::Arc;

use tantivy::{Term, query::Query};

use super::{
    analyser::Analyser,
    conversation_set::ChosenConversations,
    error::{IndexError, IndexSearchError},
    hits::{self, unreadable},
    index::{PublishedState, SearchIndex},
    lineage::ShownBranches,
    memory::SearchMemory,
    merge::SharedRanking,
    plan::{NamespaceStatistics, Planner, Purpose},
    query_terms::{QueryNames, WholeNames},
    rank::{NameTier, POOL, Scores, Words, rescore},
    schema::recalled_tag,
    syntax::{self, QueryError, QuerySyntax},
    term_pattern::check_globs,
    top_k::TopSearch,
    verbatim::{VerbatimMatch, VerbatimQuery},
};
use treering_base::cancel;
use treering_base::catch_panics::catch_panics;
use treering_domain::{
    BranchId, ConversationId, EventKind, Namespace, Position, Revision, Role, TimestampMicros,
};
use treering_meaning::TextWindow;

/// The largest sum of a search's offset and limit.
pub(crate) const HITS_MAX: usize = 10_000;
/// Maximum number of values in one filter.
pub(crate) const FILTER_VALUES_MAX: usize = 10_000;
/// Maximum number of passages fetched to fill a page when events or equal texts are collapsed into
/// one hit: a text stored 100,000 times needs that many. While ranked, each takes about 200 bytes
/// of memory.
pub(super) const FETCHED_MAX: usize = 1 << 18;
/// Matches are counted up to this number unless all are requested: nobody pages that far, and
/// finding the best hits does not need every match.
pub(crate) const COUNTED_MAX: u64 = 1_000;

/// A search request.
#[derive(Clone, Debug)]
pub struct SearchQuery {
    /// The namespace to search. Other namespaces are neither searched nor counted.
    pub namespace: Namespace,
    /// The text to search for.
    pub text: String,
    /// How the text is parsed.
    pub reading: QuerySyntax,
    /// Maximum number of hits to return.
    pub limit: usize,
    /// Hits to skip.
    pub offset: usize,
    /// Returns the first hits too, even those before the page, when reading their texts can refine
    /// their order. [`VerbatimQuery::reorder`] then cuts out the page.
    pub told_by_text: bool,
    /// Whether events with equal text are collapsed into one hit.
    pub copies: DuplicateHandling,
    /// Counts all matches, not only the first `COUNTED_MAX`.
    pub count_all: bool,
    /// The conversations or the branch; `None` for all conversations.
    pub scope: Option<Scope>,
    /// Restricts each conversation named here to these segments. Other conversations are
    /// unrestricted.
    pub shown: ShownBranches,
    /// Conditions on the hits.
    pub filters: SearchFilters,
    /// The memory that the search may use.
    pub memory: SearchMemory,
    /// What ranks hits among those of other indexes, if this one has only a part of the namespace.
    /// They are then ordered for [`merge`](super::merge()).
    pub shared: Option<Arc<SharedRanking>>,
}

impl SearchQuery {
    /// Returns a query for the ten best hits.
    #[must_use]
    pub fn new(namespace: Namespace, text: impl Into<String>) -> Self {
        Self {
            namespace,
            text: text.into(),
            reading: QuerySyntax::default(),
            limit: 10,
            offset: 0,
            told_by_text: false,
            copies: DuplicateHandling::Folded,
            count_all: false,
            scope: None,
            shown: ShownBranches::default(),
            filters: SearchFilters::default(),
            memory: SearchMemory::default(),
            shared: None,
        }
    }
}

/// Whether events of one kind with equal text are collapsed, such as a file that was read twice or
/// a session that was imported twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DuplicateHandling {
    /// They are one hit: the best of them.
    #[default]
    Folded,
    /// Each is a hit of its own.
    Each,
}

/// Conditions on hits. An empty list or `None` sets no condition.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct SearchFilters {
    /// Tool names, one of which must match.
    pub tools: Vec<String>,
    /// Tool results that succeeded (`true`) or failed (`false`).
    pub success: Option<bool>,
    /// Earliest recording time, inclusive.
    pub recorded_from: Option<TimestampMicros>,
    /// Latest recording time, inclusive.
    pub recorded_to: Option<TimestampMicros>,
    /// Earliest time of the event, inclusive.
    pub happened_from: Option<TimestampMicros>,
    /// Latest time of the event, inclusive.
    pub happened_to: Option<TimestampMicros>,
    /// Event kinds, one of which must match.
    pub kinds: Vec<EventKind>,
    /// Message roles, one of which must match.
    pub roles: Vec<Role>,
    /// Globs, one of which must match a path that a call or its result names. `*` and `?` stay
    /// within a folder, `**` crosses folders; a glob without `/` matches the last path component.
    pub paths: Vec<String>,
    /// Whether texts that quote a memory match.
    pub recalled: RecalledTexts,
}

/// Whether texts that quote a memory match: see [`is_recall_call`](super::is_recall_call).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecalledTexts {
    /// They do not match.
    #[default]
    LeftOut,
    /// Only they match.
    Only,
    /// They match, like all others.
    Included,
}

/// The part of a namespace to search.
#[derive(Clone, Debug, PartialEq)]
pub enum Scope {
    /// These conversations. An empty list finds nothing.
    Conversations(ChosenConversations),
    /// The history of a branch: each segment's branch up to its revision. An empty list finds
    /// nothing.
    Lineage(Vec<LineageSegment>),
}

/// A branch's own events up to a fork or another last revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineageSegment {
    /// The branch's conversation.
    pub conversation: ConversationId,
    /// The branch.
    pub branch: BranchId,
    /// The last revision included.
    pub up_to: Revision,
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchResults {
    /// Hits, best first; equal scores by log position. One for each event, or for each text.
    pub hits: Vec<Hit>,
    /// The rank of the first of these hits, from 0.
    pub first: usize,
    /// How the texts of the first hits can refine their order.
    pub as_typed: VerbatimQuery,
    /// The number of hits on all pages.
    pub total: u64,
    /// Counting stopped at `total`; there are more hits.
    pub more_than_total: bool,
    /// The log position up to which the index was searched.
    pub reached: Position,
    /// How the query was parsed.
    pub read_as: QuerySyntax,
    /// The names in the query, and how completely they were found.
    pub names: FoundNames,
    /// Passages that pass the filters and have no vectors yet, in a search by meaning.
    pub not_embedded: u64,
}

impl SearchResults {
    /// Returns results without hits.
    pub(super) fn empty(query: &SearchQuery, reached: Position, read_as: QuerySyntax) -> Self {
        Self {
            hits: Vec::new(),
            first: query.offset,
            as_typed: VerbatimQuery::default(),
            total: 0,
            more_than_total: false,
            reached,
            read_as,
            names: FoundNames::default(),
            not_embedded: 0,
        }
    }

    /// Records how completely the names were found, and what the texts of the hits can decide.
    pub(super) fn note_names(
        &mut self,
        query: &SearchQuery,
        planned: &PlannedQuery,
        found: NameCompleteness,
    ) {
        if let Some(whole) = &planned.whole {
            self.names.typed = whole.typed.clone();
        }
        self.names.found = found;
        self.as_typed = VerbatimQuery::of(query, planned.read_as, &self.names.typed, found);
    }

    /// Returns the ranks of the hits to read: those of the page, and the first ones too when their
    /// texts can refine the order.
    pub(super) fn ranks(&mut self, query: &SearchQuery) -> std::ops::Range<usize> {
        let mut last = query.offset + query.limit;
        let is_refined = query.told_by_text && query.offset < self.as_typed.hits;
        (self.first, last) = match is_refined {
            true => (0, last.max(self.as_typed.hits)),
            false => (query.offset, last),
        };
        self.first..last
    }
}

/// The names in a query and how completely they were found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundNames {
    /// The names; empty when the query has none to look up.
    pub typed: QueryNames,
    /// How completely they were found.
    pub found: NameCompleteness,
}

/// How completely names were found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum NameCompleteness {
    /// At most their parts were found.
    #[default]
    Parts,
    /// At least one name's parts were found in a row, and no name as one word.
    InARow,
    /// At least one name was found: as one word, or, if the index does not have the name as one
    /// word, as parts in a row.
    Whole,
}

/// A matching passage.
#[derive(Clone, Debug, PartialEq)]
pub struct Hit {
    /// The event's conversation.
    pub conversation: ConversationId,
    /// Its branch.
    pub branch: BranchId,
    /// The event's revision.
    pub revision: Revision,
    /// The event's log position.
    pub position: Position,
    /// The event's kind.
    pub kind: EventKind,
    /// The tool's name, or empty.
    pub tool: String,
    /// Whether the tool succeeded, for tool results.
    pub success: Option<bool>,
    /// The text quotes a memory.
    pub recalled: bool,
    /// When the event was recorded.
    pub recorded_at: TimestampMicros,
    /// When the event happened.
    pub happened_at: TimestampMicros,
    /// The score that orders hits; comparable within one search only.
    pub score: f32,
    /// The parts of the score.
    pub scores: Scores,
    /// The share of the query that stands close together in the passage, 0 to 1. It is 0 for hits
    /// after the reranked ones, where it is not known.
    pub phrase_score: f32,
    /// Equal for hits of one kind whose events have equal text.
    pub text_hash: u64,
    /// The offset of the passage's first byte in the event's text;
    /// [`passage_at`](super::passage_at) returns the passage.
    pub byte_start: u64,
    /// The part of the passage that is most similar to the query, in a search by meaning.
    pub window: Option<TextWindow>,
    /// Whether the passage contains the query's names whole.
    pub tier: NameTier,
    /// It was one of the best passages by words, and reranked.
    pub is_reranked: bool,
    /// What the text contains, if it was looked at.
    pub as_typed: VerbatimMatch,
}

impl SearchIndex {
    /// Searches the committed events.
    ///
    /// # Errors
    /// [`IndexSearchError::Query`] for a query that cannot be searched; other variants for a page
    /// or filter over its limit, or a damaged index.
    pub fn search(&self, query: &SearchQuery) -> Result<SearchResults, IndexSearchError> {
        self.search_by(query, SearchStrategy::Shortest)
    }

    pub(super) fn search_by(
        &self,
        query: &SearchQuery,
        way: SearchStrategy,
    ) -> Result<SearchResults, IndexSearchError> {
        check_bounds(query)?;
        let planned = self.planned(query, way)?;
        let published = self.published();
        catch_search_panics(|| self.run(&published, &planned, query))
    }

    /// Returns the scores of the passages to rerank, before reranking.
    #[cfg(test)]
    pub(super) fn pool_scores(&self, query: &SearchQuery, way: SearchStrategy) -> Vec<f32> {
        let planned = self.planned(query, way).unwrap();
        let published = self.published();
        let statistics = NamespaceStatistics::of(&published.searcher, &self.fields, query).unwrap();
        let best = TopSearch::new(&published, &statistics, &planned, query).unwrap();
        let found = best.find(POOL).unwrap();
        found.into_iter().map(|(score, _)| score).collect()
    }

    pub(super) fn planned(
        &self,
        query: &SearchQuery,
        way: SearchStrategy,
    ) -> Result<PlannedQuery, IndexSearchError> {
        let (parsed, read_as) = syntax::read(&query.text, query.reading)?;
        let mut planner = self.planner(query);
        planner.prepare(&parsed, read_as);
        let words = planner.query(&parsed).ok_or(QueryError::Empty)?;
        Ok(PlannedQuery {
            read_as,
            looked_for: planner.query_terms(&parsed),
            query: planner.filtered(words.box_clone(), query),
            filter_tags: planner.filter_tags(&query.filters),
            is_prunable: planner.is_flat && way == SearchStrategy::Shortest,
            whole: planner.whole_names(&parsed, words.as_ref(), query),
            words,
            counted: {
                planner.purpose = Purpose::Count;
                let counted = planner.query(&parsed).ok_or(QueryError::Empty)?;
                planner.filtered(counted, query)
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
            has_recalled: self.has_recalled(&query.namespace),
        }
    }

    /// Returns whether texts of a namespace quote a memory. True if the index cannot be read.
    #[must_use]
    pub fn has_recalled(&self, namespace: &Namespace) -> bool {
        let tag = self.fields.tag(&recalled_tag(namespace));
        let passages = self.published().searcher.doc_freq(&tag);
        passages.map_or(true, |passages| passages > 0)
    }

    fn run(
        &self,
        published: &PublishedState,
        planned: &PlannedQuery,
        query: &SearchQuery,
    ) -> Result<SearchResults, IndexSearchError> {
        let searcher = &published.searcher;
        let statistics =
            NamespaceStatistics::of(searcher, &self.fields, query).map_err(unreadable)?;
        let best = TopSearch::new(published, &statistics, planned, query)?;
        let mut results = SearchResults::empty(query, published.reached, planned.read_as);
        if query.limit == 0 {
            let total = best.count(query)?;
            (results.total, results.more_than_total) = (total.count, total.more);
            return Ok(results);
        }
        let mut fetch = ((query.offset + query.limit) * 2 + 8).max(POOL);
        let fetched_max = FETCHED_MAX.max(fetch);
        loop {
            let found = best.find_all(fetch)?;
            results.note_names(query, planned, found.wholeness);
            let ranks = results.ranks(query);
            let (columns, words) = (&published.columns, &planned.looked_for);
            let reranked = found.reranked(query);
            let field = self.fields.text;
            let scored = rescore(columns, &statistics, field, words, &found, reranked)?;
            let ranked = hits::ranked(columns, &scored, reranked, query)?;
            let is_short = !found.is_all && ranked.len() < ranks.end;
            if is_short && fetch < fetched_max {
                fetch = fetch.saturating_mul(4).min(fetched_max);
                continue;
            }
            let page = ranked.get(ranks.start..ranks.end.min(ranked.len()));
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

/// Runs a read of the index. A panic, by which tantivy reports some damage, becomes an error.
pub(super) fn damage_of_panic<T, E: From<IndexError>>(
    look: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    catch_panics(look).unwrap_or_else(|_| {
        let reason = "a segment cannot be read".to_owned();
        Err(IndexError::NeedsRebuild { reason }.into())
    })
}

/// Like `damage_of_panic`, for a search. Once it is cancelled, any result becomes `Stopped`.
pub(super) fn catch_search_panics<T>(
    look: impl FnOnce() -> Result<T, IndexSearchError>,
) -> Result<T, IndexSearchError> {
    let looked = damage_of_panic(look);
    match cancel::is_wanted() {
        true => looked,
        false => Err(IndexSearchError::Stopped),
    }
}

/// How the best hits are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SearchStrategy {
    /// By looking at as few matches as possible.
    Shortest,
    /// By looking at all matches: the reference in tests.
    #[cfg(test)]
    Exhaustive,
}

/// The number of matching passages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Total {
    pub(crate) count: u64,
    /// There are more than `count`.
    pub(crate) more: bool,
}

/// The tantivy queries of a search.
pub(super) struct PlannedQuery {
    pub(crate) read_as: QuerySyntax,
    /// The typed words, with filters.
    pub(crate) query: Box<dyn Query>,
    /// The typed words, without filters.
    pub(crate) words: Box<dyn Query>,
    /// `words` is a union of single terms, so its best hits can be found without scoring every
    /// match.
    pub(crate) is_prunable: bool,
    /// The tags that each filter accepts: one of each list must match.
    pub(crate) filter_tags: Vec<Vec<Term>>,
    /// Finds passages that contain the query's names whole; these rank before all others.
    pub(crate) whole: Option<WholeNames>,
    /// The words for reranking.
    pub(crate) looked_for: Words,
    /// Matches the same passages as `query`, but faster.
    pub(crate) counted: Box<dyn Query>,
}

pub(super) fn check_bounds(query: &SearchQuery) -> Result<(), IndexSearchError> {
    let (offset, limit, max) = (query.offset, query.limit, HITS_MAX);
    if offset.saturating_add(limit) > max {
        return Err(IndexSearchError::TooFar { offset, limit, max });
    }
    // Filters with a single value need no check.
    let SearchFilters {
        recalled: _,
        tools,
        success: _,
        recorded_from: _,
        recorded_to: _,
        happened_from: _,
        happened_to: _,
        kinds,
        roles,
        paths,
    } = &query.filters;
    let lineage = match &query.scope {
        Some(Scope::Lineage(segments)) => segments.len(),
        // Conversations are looked up, so their number is not limited.
        None | Some(Scope::Conversations(_)) => 0,
    };
    let max = FILTER_VALUES_MAX;
    check_globs(paths)?;
    for (what, count) in [
        ("branches", lineage),
        ("tools", tools.len()),
        ("kinds", kinds.len()),
        ("roles", roles.len()),
        ("paths", paths.len()),
    ] {
        if count > max {
            return Err(IndexSearchError::FilterTooLarge { what, count, max });
        }
    }
    Ok(())
}
