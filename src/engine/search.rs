//! Searching, with everything that the index does not know: branches, names,
//! and the text that snippets are made from.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    time::Duration,
};

use super::{
    Engine,
    error::SearchError,
    history::same_event,
    query::{SearchAnswer, SearchRequest},
    work::{self, Lane},
};
use super::{Inner, error::ReadError, query::SearchHit};
use crate::{
    domain::{BranchId, BranchName, ConversationId, EventBody, Namespace, Position, Role},
    search::{
        Hit, IndexError, LineageSegment, Scope, SearchError as Failed, SearchFilters, SearchQuery,
        Snippet, Snippeter, searchable_text,
    },
    views::EventEntry,
};

/// Longest snippet, in bytes.
const SNIPPET_BYTES_MAX: usize = 240;
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
        if let Some(position) = request.at_least {
            let head = inner.published.load(std::sync::atomic::Ordering::Acquire);
            if position.offset > head {
                return Err(SearchError::Query {
                    message: format!("position {position} is not written yet; the head is {head}"),
                });
            }
            inner.indexer.wait_for(position.offset).await?;
        }
        let searched = self.search_index(request.clone()).await;
        let Err(SearchError::IndexDamaged { .. }) = searched else {
            return searched;
        };
        // It is made anew; a small one is there before anybody would ask again.
        let head = inner.published.load(std::sync::atomic::Ordering::Acquire);
        match tokio::time::timeout(INDEX_MADE_WITHIN, inner.indexer.wait_for(head)).await {
            Ok(waited) => waited?,
            Err(_) => return searched,
        }
        self.search_index(request).await
    }

    async fn search_index(&self, request: SearchRequest) -> Result<SearchAnswer, SearchError> {
        let search = |engine: Self| async move { engine.inner.search(request).await };
        self.on(Lane::Short, search).await
    }
}

fn refused(error: Failed) -> SearchError {
    match error {
        Failed::Index(IndexError::NeedsRebuild { reason }) => {
            SearchError::IndexDamaged { message: reason }
        }
        Failed::Index(error) => SearchError::Index {
            message: error.to_string(),
        },
        other => SearchError::Query {
            message: other.to_string(),
        },
    }
}

/// Names that hits of one answer share.
#[derive(Default)]
struct Names(BTreeMap<ConversationId, (String, BTreeMap<BranchId, BranchName>)>);

impl Inner {
    async fn search(&self, request: SearchRequest) -> Result<SearchAnswer, SearchError> {
        let scope = self.scope(&request)?;
        let query = SearchQuery {
            namespace: request.namespace.clone(),
            limit: request.limit,
            offset: request.offset,
            count_all: request.count_all,
            filters: SearchFilters {
                scope,
                tools: request.tools,
                success: request.success,
                recorded_from: request.recorded_from,
                recorded_to: request.recorded_to,
                kinds: request.kinds,
                ..SearchFilters::default()
            },
            ..SearchQuery::new(request.namespace.clone(), request.text)
        };
        let index = self.indexer.index();
        work::check()?;
        let results = index.search(&query).map_err(|error| {
            if let Failed::Index(IndexError::NeedsRebuild { reason }) = &error {
                self.indexer.condemn(&index, reason);
            }
            refused(error)
        })?;
        let mut snippeter = Snippeter::for_query(&index, &query).map_err(refused)?;
        let mut names = Names::default();
        let mut hits = Vec::with_capacity(results.hits.len());
        for hit in results.hits {
            work::check()?;
            // An index from before the damage knows what cannot be served any more.
            if self.marks.covers(hit.conversation, hit.revision) {
                continue;
            }
            let hit = self.hit(&request.namespace, hit, &mut names, &mut snippeter);
            hits.push(hit.await?);
        }
        Ok(SearchAnswer {
            hits,
            total: results.total,
            more_than_total: results.more_than_total,
            reached: results.reached,
            lagging: self
                .indexer
                .lagging(self.published.load(std::sync::atomic::Ordering::Acquire)),
        })
    }

    /// The conversations or histories that a search is restricted to.
    fn scope(&self, request: &SearchRequest) -> Result<Option<Scope>, SearchError> {
        let Some(id) = request.conversation else {
            if request.branch.is_some() || request.include_sub_contexts {
                let message = "a branch or sub-contexts need a conversation".to_owned();
                return Err(SearchError::Query { message });
            }
            return Ok(None);
        };
        self.row(&request.namespace, id)?;
        let mut conversations = BTreeSet::from([id]);
        if request.include_sub_contexts {
            self.add_children(id, &mut conversations)?;
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

    async fn hit(
        &self,
        namespace: &Namespace,
        hit: Hit,
        names: &mut Names,
        snippeter: &mut Snippeter,
    ) -> Result<SearchHit, ReadError> {
        let (source_id, branch_name) = self.names(namespace, &hit, names)?;
        // One that cannot be read any more is no reason to find nothing.
        let (snippet, call_id) = match self.read_hit(namespace, &hit, snippeter).await {
            Err(error @ ReadError::Damaged { .. }) => {
                self.noticed(&error);
                Default::default()
            }
            read => read?,
        };
        Ok(SearchHit {
            conversation: hit.conversation,
            source_id,
            branch: hit.branch,
            branch_name,
            revision: hit.revision,
            position: hit.position,
            kind: hit.kind,
            call_id,
            tool: hit.tool,
            success: hit.success,
            score: hit.score,
            line: hit.line,
            byte_start: hit.byte_start,
            byte_end: hit.byte_end,
            snippet: snippet.text,
            highlights: snippet.highlights,
            recorded_at: hit.recorded_at,
        })
    }

    fn names(
        &self,
        namespace: &Namespace,
        hit: &Hit,
        names: &mut Names,
    ) -> Result<(String, BranchName), ReadError> {
        let (source_id, branches) = match names.0.entry(hit.conversation) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let state = self.state(namespace, hit.conversation)?;
                let branches = state
                    .branches
                    .values()
                    .map(|branch| (branch.id, branch.name.clone()))
                    .collect();
                place.insert((state.row.info.source_id.clone(), branches))
            }
        };
        let branch = branches.get(&hit.branch).cloned().unwrap_or_default();
        Ok((source_id.clone(), branch))
    }

    /// What only the event itself says: the text around the match, and the call.
    async fn read_hit(
        &self,
        namespace: &Namespace,
        hit: &Hit,
        snippeter: &mut Snippeter,
    ) -> Result<(Snippet, String), ReadError> {
        let Position { offset, .. } = hit.position;
        let record = self.reader.record(offset).await?;
        let named = EventEntry {
            conversation: hit.conversation,
            revision: hit.revision,
            branch: hit.branch,
            kind: hit.kind.number(),
            offset,
        };
        same_event(&named, namespace, &record)?;
        let body = self.history().decode(offset, &record).await?;
        let text = searchable_text(&body).unwrap_or_default();
        let start = usize::try_from(hit.byte_start).unwrap_or(usize::MAX);
        let end = usize::try_from(hit.byte_end).unwrap_or(usize::MAX);
        let passage = text.get(start..end).ok_or_else(|| ReadError::Damaged {
            position: hit.position,
            message: format!("the index names bytes {start} to {end}, which are not there"),
        })?;
        let snippet = snippeter.snippet(passage, SNIPPET_BYTES_MAX);
        Ok((snippet, call_id(&body).to_owned()))
    }
}

/// The call that a result or its snapshot is of, or empty.
fn call_id(body: &EventBody) -> &str {
    match body {
        EventBody::ToolResultRecorded(result) => &result.call_id,
        EventBody::ToolSnapshotRecorded(snapshot) => &snapshot.call_id,
        EventBody::MessageAppended(message) if message.role == Role::Tool => &message.tool_call_id,
        _ => "",
    }
}
