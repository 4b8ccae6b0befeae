//! Searching: what is asked, what is found.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
};

use tantivy::{
    DocAddress, Score, Searcher, SegmentReader, TantivyError,
    collector::TopDocs,
    columnar::{BytesColumn, Column, StrColumn},
    query::Query,
};

use super::{
    analyser::Analyser,
    error::{IndexError, SearchError},
    index::SearchIndex,
    plan::{NamespaceStatistics, Planner},
    proximity::{POOL, rescore},
    schema::{column, outcome_of},
    syntax::{self, QueryError},
};
use crate::domain::{
    BranchId, ConversationId, EventKind, Namespace, Position, Revision, Role, ShardId,
    TimestampMicros,
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
    /// [`HITS_PER_EVENT_MAX`] passages of one event are hits.
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
        };
        let planned = planner.query(&parsed).ok_or(QueryError::Empty)?;
        let planned = Planned {
            query: planner.filtered(planned, &query.filters),
            pairs: planner.neighbours(&parsed),
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
        let total = planned.query.count(searcher).map_err(unreadable)?;
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
            let hits = limited(read_hits(searcher, &found)?, per_event);
            if complete || hits.len() >= wanted {
                let page = hits.into_iter().skip(query.offset).take(query.limit);
                return Ok((page.collect(), total as u64));
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

/// Keeps the best passages of each event.
fn limited(hits: Vec<Hit>, per_event: usize) -> Vec<Hit> {
    let mut seen: HashMap<Position, usize> = HashMap::new();
    let mut keep = |hit: &Hit| {
        let count = seen.entry(hit.position).or_default();
        *count += 1;
        *count <= per_event
    };
    hits.into_iter().filter(|hit| keep(hit)).collect()
}

fn read_hits(searcher: &Searcher, found: &[(Score, DocAddress)]) -> Result<Vec<Hit>, IndexError> {
    let mut columns: HashMap<u32, Columns> = HashMap::new();
    let mut hits = Vec::with_capacity(found.len());
    for &(score, address) in found {
        let segment = match columns.entry(address.segment_ord) {
            std::collections::hash_map::Entry::Occupied(open) => open.into_mut(),
            std::collections::hash_map::Entry::Vacant(place) => {
                let reader = searcher.segment_reader(address.segment_ord);
                place.insert(Columns::open(reader).map_err(unreadable)?)
            }
        };
        hits.push(segment.hit(address.doc_id, score)?);
    }
    // Merges move documents about: equal scores need an order of their own.
    hits.sort_by(|a, b| {
        b.score
            .total_cmp(&a.score)
            .then_with(|| (a.position, a.byte_start).cmp(&(b.position, b.byte_start)))
    });
    Ok(hits)
}

/// The columns of a segment that hits are read from.
struct Columns {
    conversation: Option<BytesColumn>,
    tool: Option<StrColumn>,
    call_id: Option<StrColumn>,
    recorded_at: Column<i64>,
    branch: Column<u64>,
    revision: Column<u64>,
    shard: Column<u64>,
    offset: Column<u64>,
    kind: Column<u64>,
    outcome: Column<u64>,
    byte_start: Column<u64>,
    byte_end: Column<u64>,
    line: Column<u64>,
    text_bytes: Column<u64>,
}

impl Columns {
    fn open(segment: &SegmentReader) -> tantivy::Result<Self> {
        let columns = segment.fast_fields();
        Ok(Self {
            conversation: columns.bytes(column::CONVERSATION)?,
            tool: columns.str(column::TOOL)?,
            call_id: columns.str(column::CALL_ID)?,
            recorded_at: columns.i64(column::RECORDED_AT)?,
            branch: columns.u64(column::BRANCH)?,
            revision: columns.u64(column::REVISION)?,
            shard: columns.u64(column::SHARD)?,
            offset: columns.u64(column::OFFSET)?,
            kind: columns.u64(column::KIND)?,
            outcome: columns.u64(column::OUTCOME)?,
            byte_start: columns.u64(column::BYTE_START)?,
            byte_end: columns.u64(column::BYTE_END)?,
            line: columns.u64(column::LINE)?,
            text_bytes: columns.u64(column::TEXT_BYTES)?,
        })
    }

    fn hit(&self, doc: u32, score: Score) -> Result<Hit, IndexError> {
        let number = |column: &Column<u64>| column.first(doc).ok_or_else(damaged);
        let narrow = |number: u64| u32::try_from(number).map_err(|_| damaged());
        let kind = u16::try_from(number(&self.kind)?)
            .ok()
            .and_then(EventKind::from_number);
        Ok(Hit {
            conversation: self.conversation(doc)?,
            branch: BranchId(number(&self.branch)?),
            revision: Revision(number(&self.revision)?),
            position: Position {
                shard: ShardId(narrow(number(&self.shard)?)?),
                offset: number(&self.offset)?,
            },
            kind: kind.ok_or_else(damaged)?,
            tool: label(self.tool.as_ref(), doc)?,
            call_id: label(self.call_id.as_ref(), doc)?,
            success: outcome_of(number(&self.outcome)?),
            recorded_at: TimestampMicros(self.recorded_at.first(doc).ok_or_else(damaged)?),
            score,
            byte_start: number(&self.byte_start)?,
            byte_end: number(&self.byte_end)?,
            line: number(&self.line)?,
            text_bytes: number(&self.text_bytes)?,
        })
    }

    fn conversation(&self, doc: u32) -> Result<ConversationId, IndexError> {
        let column = self.conversation.as_ref().ok_or_else(damaged)?;
        let ordinal = column.ords().first(doc).ok_or_else(damaged)?;
        let mut bytes = Vec::with_capacity(16);
        column
            .ord_to_bytes(ordinal, &mut bytes)
            .map_err(|_| damaged())?;
        let id = uuid::Uuid::from_slice(&bytes).map_err(|_| damaged())?;
        Ok(ConversationId(id))
    }
}

fn label(column: Option<&StrColumn>, doc: u32) -> Result<String, IndexError> {
    let mut text = String::new();
    if let Some(column) = column
        && let Some(ordinal) = column.ords().first(doc)
    {
        column
            .ord_to_str(ordinal, &mut text)
            .map_err(|_| damaged())?;
    }
    Ok(text)
}

fn damaged() -> IndexError {
    IndexError::NeedsRebuild {
        reason: "a column of a segment cannot be read".to_owned(),
    }
}

fn unreadable(source: TantivyError) -> IndexError {
    match source {
        TantivyError::DataCorruption(_) => damaged(),
        source => IndexError::Engine {
            action: "searched",
            source,
        },
    }
}
