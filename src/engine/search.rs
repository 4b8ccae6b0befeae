//! Searching, with everything that the index does not know: branches, names,
//! and the text that snippets are made from.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, btree_map::Entry},
    sync::Arc,
    time::Duration,
};

use super::{
    Engine,
    error::SearchError,
    grep::Wanted,
    hit::{Finds, Found, HitReader, shortened},
    query::{ConversationHits, SearchAnswer, SearchRequest},
    work::{self, Lane},
};
use super::{Inner, error::ReadError, query::SearchHit};
use crate::{
    domain::{BranchId, BranchName, Cause, ConversationId, Namespace, Position},
    search::{
        Hit, IndexError, IndexSearchError, LineageSegment, Reading, Scope, SearchFilters,
        SearchIndex, SearchQuery, Snippeter,
    },
};

/// Hits that conversations are ordered by.
const GROUPED_HITS: usize = 1_000;
/// How long a search that has met a damaged index waits for a new one.
const INDEX_MADE_WITHIN: Duration = Duration::from_secs(10);
/// Most conversations that a search over sub-contexts spans.
const SUB_CONTEXTS_MAX: usize = 1_000;

impl Engine {
    /// Searches what tools returned, messages and summaries.
    ///
    /// # Errors
    /// [`SearchError::Query`] when the query cannot be read; others when the
    /// index or a name in the filters is not there.
    pub async fn search(&self, request: SearchRequest) -> Result<SearchAnswer, SearchError> {
        let inner = &self.inner;
        // An index that was let go is empty, and would find nothing.
        inner.views.load().reached().map_err(ReadError::from)?;
        let head = inner.published.load(std::sync::atomic::Ordering::Acquire);
        if let Some(position) = request.at_least {
            if position.offset > head {
                return Err(SearchError::Query {
                    message: format!("position {position} is not written yet; the head is {head}"),
                });
            }
            let waiting = inner.indexer.wait_for(position.offset);
            match request.wait_max {
                None => waiting.await?,
                // Who does not wait for all of it gets what is there.
                Some(max) => tokio::time::timeout(max, waiting).await.unwrap_or(Ok(()))?,
            }
        }
        let searched = self.search_index(request.clone(), head).await;
        let Err(SearchError::IndexDamaged { .. }) = searched else {
            return searched;
        };
        // It is made anew; a small one is there before anybody would ask again.
        let waiting = inner.indexer.wait_for(head);
        match tokio::time::timeout(INDEX_MADE_WITHIN, waiting).await {
            Ok(waited) => waited?,
            Err(_) => return searched,
        }
        self.search_index(request, head).await
    }

    async fn search_index(
        &self,
        request: SearchRequest,
        head: u64,
    ) -> Result<SearchAnswer, SearchError> {
        let lane = if request.regex || request.by_conversation {
            Lane::Long
        } else {
            Lane::Short
        };
        let search = |engine: Self| async move { engine.inner.search(request, head).await };
        self.on(lane, search).await
    }
}

fn refused(error: IndexSearchError) -> SearchError {
    match error {
        IndexSearchError::Index(IndexError::NeedsRebuild { reason }) => {
            SearchError::IndexDamaged { message: reason }
        }
        IndexSearchError::Index(error) => SearchError::Index {
            source: Cause::of(error),
        },
        other => SearchError::Query {
            message: other.to_string(),
        },
    }
}

/// What hits of one conversation share.
#[derive(Default)]
pub(super) struct Names(BTreeMap<ConversationId, Named>);

#[derive(Default)]
pub(super) struct Named {
    pub source_id: String,
    pub title: String,
    pub branches: BTreeMap<BranchId, BranchName>,
}

impl Inner {
    async fn search(&self, request: SearchRequest, head: u64) -> Result<SearchAnswer, SearchError> {
        let scope = self.scope(&request)?;
        let query = SearchQuery {
            namespace: request.namespace.clone(),
            reading: request.reading,
            limit: request.limit,
            offset: request.offset,
            count_all: request.count_all,
            filters: SearchFilters {
                scope,
                tools: request.tools,
                success: request.success,
                recorded_from: request.recorded_from,
                recorded_to: request.recorded_to,
                happened_from: request.happened_from,
                happened_to: request.happened_to,
                kinds: request.kinds,
                roles: request.roles,
                paths: request.paths,
            },
            ..SearchQuery::new(request.namespace.clone(), request.text)
        };
        if request.regex {
            let wanted = Wanted {
                context_lines: request.context_lines,
                by_conversation: request.by_conversation,
            };
            return self.search_pattern(&query, wanted, head).await;
        }
        let index = self.indexer.index();
        work::check()?;
        let refused = |error| self.search_failed(&index, error);
        let results = index.search(&query).map_err(refused)?;
        let mut snippeter = Snippeter::for_query(&index, &query).map_err(refused)?;
        let mut names = Names::default();
        let mut hits = Vec::with_capacity(results.hits.len());
        let mut reader = HitReader {
            namespace: &request.namespace,
            context_lines: request.context_lines,
            finds: Finds::Words(&mut snippeter),
        };
        for hit in results.hits {
            work::check()?;
            // An index from before the damage knows what cannot be served any more.
            if self.marks.covers(hit.conversation, hit.revision) {
                continue;
            }
            // One that cannot be read any more is no reason to find nothing.
            let found = match self.read_hit(&hit, &mut reader).await {
                Err(error @ ReadError::Damaged { .. }) => {
                    self.noticed(&error);
                    None
                }
                read => read?,
            };
            hits.push(self.named(hit, found.unwrap_or_default(), &mut names, &query)?);
        }
        let mut answer = self.answer(hits, results.reached, head);
        answer.total = results.total;
        answer.more_than_total = results.more_than_total;
        answer.read_as = results.read_as;
        if request.by_conversation {
            answer.conversations = self.grouped(&index, &query, &mut names)?;
        }
        Ok(answer)
    }

    /// The conversations with matches, with the scores of the best ones.
    fn grouped(
        &self,
        index: &Arc<SearchIndex>,
        query: &SearchQuery,
        names: &mut Names,
    ) -> Result<Vec<ConversationHits>, SearchError> {
        let best = SearchQuery {
            offset: 0,
            limit: GROUPED_HITS,
            ..query.clone()
        };
        let refused = |error| self.search_failed(index, error);
        let mut scores: HashMap<ConversationId, f32> = HashMap::new();
        for hit in index.search(&best).map_err(refused)?.hits {
            let score = scores.entry(hit.conversation).or_insert(hit.score);
            *score = score.max(hit.score);
        }
        work::check()?;
        let counts = index.by_conversation(query).map_err(refused)?;
        let counts = counts.into_iter().collect();
        Ok(self.hits_by_conversation(counts, scores, names, query)?)
    }

    /// Why a search of this index has no answer. One that is damaged is made anew.
    pub(super) fn search_failed(
        &self,
        index: &Arc<SearchIndex>,
        error: IndexSearchError,
    ) -> SearchError {
        if let IndexSearchError::Index(IndexError::NeedsRebuild { reason }) = &error {
            self.indexer.condemn(index, reason);
        }
        refused(error)
    }

    /// An answer, with how much of the log it is of.
    pub(super) fn answer(
        &self,
        hits: Vec<SearchHit>,
        reached: Position,
        head: u64,
    ) -> SearchAnswer {
        let published = self.published.load(std::sync::atomic::Ordering::Acquire);
        let lagging = self.indexer.lagging(published);
        let events_missing = head.saturating_sub(reached.offset);
        SearchAnswer {
            hits,
            total: 0,
            more_than_total: false,
            reached,
            complete: events_missing == 0 && lagging.is_none(),
            events_missing,
            read_as: Reading::Plain,
            conversations: Vec::new(),
            lagging,
        }
    }

    /// The conversations or histories that a search is restricted to.
    fn scope(&self, request: &SearchRequest) -> Result<Option<Scope>, SearchError> {
        let Some(id) = request.conversation else {
            if request.branch.is_some() || request.include_sub_contexts {
                let message = "a branch or sub-contexts need a conversation".to_owned();
                return Err(SearchError::Query { message });
            }
            let chosen = self.chosen_conversations(request)?;
            return Ok(chosen.map(Scope::Conversations));
        };
        self.row(&request.namespace, id)?;
        let mut conversations = BTreeSet::from([id]);
        if request.include_sub_contexts {
            self.add_children(id, &mut conversations)?;
        }
        if let Some(chosen) = self.chosen_conversations(request)? {
            conversations.retain(|id| chosen.contains(id));
            if conversations.is_empty() {
                return Ok(Some(Scope::Conversations(Vec::new())));
            }
        }
        let Some(name) = &request.branch else {
            return Ok(Some(Scope::Conversations(
                conversations.into_iter().collect(),
            )));
        };
        let branch = self.branch(&request.namespace, id, Some(name))?;
        let segments = self.history().lineage(id, &branch)?;
        let mut lineage: Vec<_> = segments
            .into_iter()
            .map(|segment| LineageSegment {
                conversation: segment.conversation,
                branch: segment.branch,
                up_to: segment.last,
            })
            .collect();
        for child in conversations.into_iter().filter(|child| *child != id) {
            let state = self.state(&request.namespace, child)?;
            lineage.extend(state.branches.values().map(|branch| LineageSegment {
                conversation: child,
                branch: branch.id,
                up_to: branch.head,
            }));
        }
        Ok(Some(Scope::Lineage(lineage)))
    }

    /// The namespace's conversations that have the sources and labels that a search
    /// wants; none: it wants none.
    fn chosen_conversations(
        &self,
        request: &SearchRequest,
    ) -> Result<Option<Vec<ConversationId>>, SearchError> {
        if request.sources.is_empty() && request.labels.is_empty() {
            return Ok(None);
        }
        let rows = self.views.load().every_conversation();
        let rows = rows.map_err(ReadError::from)?.into_iter();
        let chosen = rows.filter(|row| {
            let info = &row.info;
            let has_label = |label: &String| match label.split_once('=') {
                Some((name, value)) => info.labels.get(name).is_some_and(|own| own == value),
                None => info.labels.contains_key(label),
            };
            row.namespace == request.namespace
                && (request.sources.is_empty() || request.sources.contains(&info.source))
                && request.labels.iter().all(has_label)
        });
        Ok(Some(chosen.map(|row| row.id).collect()))
    }

    fn add_children(
        &self,
        root: ConversationId,
        found: &mut BTreeSet<ConversationId>,
    ) -> Result<(), ReadError> {
        let mut waiting = vec![root];
        while let Some(id) = waiting.pop() {
            for child in self.views.load().children(id)? {
                if found.len() < SUB_CONTEXTS_MAX && found.insert(child) {
                    waiting.push(child);
                }
            }
        }
        Ok(())
    }

    /// A hit with the names of where it is.
    pub(super) fn named(
        &self,
        hit: Hit,
        found: Found,
        names: &mut Names,
        query: &SearchQuery,
    ) -> Result<SearchHit, ReadError> {
        let named = self.names(&query.namespace, hit.conversation, names)?;
        let branch_name = named.branches.get(&hit.branch).cloned().unwrap_or_default();
        let (source_id, title) = (named.source_id.clone(), named.title.clone());
        Ok(SearchHit {
            conversation: hit.conversation,
            source_id,
            branch: hit.branch,
            branch_name,
            revision: hit.revision,
            position: hit.position,
            kind: hit.kind,
            call_id: found.call_id,
            tool: hit.tool,
            success: hit.success,
            score: hit.score,
            scores: hit.scores,
            line: found.line,
            byte_start: found.byte_start,
            byte_end: found.byte_end,
            passage: found.passage,
            role: found.role,
            title,
            path: found.target.paths.into_iter().next().unwrap_or_default(),
            command: shortened(&found.target.command),
            context: found.context,
            context_line: found.context_line,
            snippet: found.snippet.text,
            highlights: found.snippet.highlights,
            recorded_at: hit.recorded_at,
            happened_at: hit.happened_at,
        })
    }

    pub(super) fn names<'a>(
        &self,
        namespace: &Namespace,
        conversation: ConversationId,
        names: &'a mut Names,
    ) -> Result<&'a Named, ReadError> {
        Ok(match names.0.entry(conversation) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let state = self.state(namespace, conversation)?;
                let branches = state.branches.values();
                place.insert(Named {
                    source_id: state.row.info.source_id.clone(),
                    title: state.row.info.title.clone(),
                    branches: branches
                        .map(|branch| (branch.id, branch.name.clone()))
                        .collect(),
                })
            }
        })
    }
}
