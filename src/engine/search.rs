//! Searching, with everything that the index does not know: branches, names,
//! and the text that snippets are made from.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use super::{
    Engine,
    error::SearchError,
    history::same_event,
    query::{HitPassage, SearchAnswer, SearchRequest},
    work::{self, Lane},
};
use super::{Inner, error::ReadError, query::SearchHit};
use crate::{
    domain::{
        BranchId, BranchName, ConversationId, EventBody, EventHeader, Namespace, Position, Role,
    },
    search::{
        CallTarget, Hit, LineageSegment, Passage, Scope, SearchFilters, SearchQuery, Snippet,
        Snippeter, call_target, passage_at, searchable_text,
    },
    views::EventEntry,
};

/// Longest snippet, in bytes.
const SNIPPET_BYTES_MAX: usize = 240;
/// Most of what stands around a match, in bytes.
const CONTEXT_BYTES_MAX: usize = 16 << 10;
/// Longest command of a hit's call, in bytes.
const COMMAND_BYTES_MAX: usize = 400;
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
        let search = |engine: Self| async move { engine.inner.search(request, head).await };
        self.on(Lane::Short, search).await
    }
}

fn refused(error: crate::search::SearchError) -> SearchError {
    match error {
        crate::search::SearchError::Index(error) => SearchError::Index {
            message: error.to_string(),
        },
        other => SearchError::Query {
            message: other.to_string(),
        },
    }
}

/// What hits of one conversation share.
#[derive(Default)]
struct Names(BTreeMap<ConversationId, Named>);

#[derive(Default)]
struct Named {
    source_id: String,
    title: String,
    branches: BTreeMap<BranchId, BranchName>,
}

/// What only the event itself says of a hit.
#[derive(Default)]
struct Found {
    snippet: Snippet,
    line: u64,
    byte_start: u64,
    byte_end: u64,
    passage: HitPassage,
    role: Option<Role>,
    call_id: String,
    target: CallTarget,
    context: String,
    context_line: u64,
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
        let index = self.indexer.index();
        work::check()?;
        let results = index.search(&query).map_err(refused)?;
        let mut snippeter = Snippeter::for_query(&index, &query).map_err(refused)?;
        let mut names = Names::default();
        let mut hits = Vec::with_capacity(results.hits.len());
        for hit in results.hits {
            work::check()?;
            // An index from before the damage knows what cannot be served any more.
            if self.marks.covers(hit.conversation, hit.revision) {
                continue;
            }
            let mut reader = HitReader {
                namespace: &request.namespace,
                snippeter: &mut snippeter,
                context_lines: request.context_lines,
            };
            hits.push(self.hit(hit, &mut names, &mut reader).await?);
        }
        let published = self.published.load(std::sync::atomic::Ordering::Acquire);
        let lagging = self.indexer.lagging(published);
        let events_missing = head.saturating_sub(results.reached.offset);
        Ok(SearchAnswer {
            hits,
            total: results.total,
            more_than_total: results.more_than_total,
            reached: results.reached,
            complete: events_missing == 0 && lagging.is_none(),
            events_missing,
            read_as: results.read_as,
            lagging,
        })
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

    async fn hit(
        &self,
        hit: Hit,
        names: &mut Names,
        reader: &mut HitReader<'_>,
    ) -> Result<SearchHit, ReadError> {
        let named = self.names(reader.namespace, &hit, names)?;
        let branch_name = named.branches.get(&hit.branch).cloned().unwrap_or_default();
        let (source_id, title) = (named.source_id.clone(), named.title.clone());
        // One that cannot be read any more is no reason to find nothing.
        let found = match self.read_hit(&hit, reader).await {
            Err(error @ ReadError::Damaged { .. }) => {
                self.noticed(&error);
                Found::default()
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

    fn names<'a>(
        &self,
        namespace: &Namespace,
        hit: &Hit,
        names: &'a mut Names,
    ) -> Result<&'a Named, ReadError> {
        Ok(match names.0.entry(hit.conversation) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let state = self.state(namespace, hit.conversation)?;
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

    /// What only the event itself says: the text around the match, and the call.
    async fn read_hit(&self, hit: &Hit, reader: &mut HitReader<'_>) -> Result<Found, ReadError> {
        let Position { offset, .. } = hit.position;
        let record = self.reader.record(offset).await?;
        let named = EventEntry {
            conversation: hit.conversation,
            revision: hit.revision,
            branch: hit.branch,
            kind: hit.kind.number(),
            offset,
        };
        same_event(&named, reader.namespace, &record)?;
        let body = self.history().decode(offset, &record).await?;
        let text = searchable_text(&body).unwrap_or_default();
        let start = usize::try_from(hit.byte_start).unwrap_or(usize::MAX);
        let passage = passage_at(&text, start).ok_or_else(|| ReadError::Damaged {
            position: hit.position,
            message: format!("the index names byte {start}, which is not there"),
        })?;
        let mut found = located(&text, passage, reader);
        found.role = match &body {
            EventBody::MessageAppended(message) => Some(message.role),
            _ => None,
        };
        found.call_id = call_id(&body).to_owned();
        found.target = self.target(&record.header, &body).await?;
        Ok(found)
    }

    /// What the call does that an event is of.
    async fn target(
        &self,
        header: &EventHeader,
        body: &EventBody,
    ) -> Result<CallTarget, ReadError> {
        let call_id = match body {
            EventBody::ToolCallRequested(call) => {
                return Ok(call_target(call.arguments.as_str()));
            }
            EventBody::ToolResultRecorded(result) => &result.call_id,
            EventBody::ToolSnapshotRecorded(snapshot) => &snapshot.call_id,
            _ => return Ok(CallTarget::default()),
        };
        let request = self.request_body(header, call_id).await?;
        Ok(request.map_or_else(CallTarget::default, |call| {
            call_target(call.arguments.as_str())
        }))
    }
}

/// What hits are read with.
struct HitReader<'a> {
    namespace: &'a Namespace,
    snippeter: &'a mut Snippeter,
    context_lines: u32,
}

/// Where in the text a passage matches, and what stands around it.
fn located(text: &str, passage: Passage<'_>, reader: &mut HitReader<'_>) -> Found {
    let snippet = reader.snippeter.snippet(passage.text, SNIPPET_BYTES_MAX);
    let first = snippet.first.clone();
    let lines = |text: &str| text.bytes().filter(|&b| b == b'\n').count() as u64;
    let line = passage.line + lines(&passage.text[..first.start]);
    let (context, context_line) = match reader.context_lines {
        0 => (String::new(), 0),
        around => around_line(text, passage.byte_start + first.start, line, around),
    };
    Found {
        line,
        byte_start: (passage.byte_start + first.start) as u64,
        byte_end: (passage.byte_start + first.end) as u64,
        passage: HitPassage {
            line: passage.line,
            byte_start: passage.byte_start as u64,
            byte_end: passage.byte_end as u64,
        },
        snippet,
        context,
        context_line,
        ..Found::default()
    }
}

/// The line that a byte is in and as many before and after it, within
/// [`CONTEXT_BYTES_MAX`], with the number of the first.
fn around_line(text: &str, at: usize, line: u64, around: u32) -> (String, u64) {
    let mut start = text[..at].rfind('\n').map_or(0, |end| end + 1);
    let mut first_line = line;
    for _ in 0..around {
        let Some(end) = start.checked_sub(1) else {
            break;
        };
        let before = text[..end].rfind('\n').map_or(0, |end| end + 1);
        if at - before > CONTEXT_BYTES_MAX / 2 {
            break;
        }
        (start, first_line) = (before, first_line - 1);
    }
    let mut end = at;
    for _ in 0..=around {
        let next = text[end..]
            .find('\n')
            .map_or(text.len(), |next| end + next + 1);
        if next - start > CONTEXT_BYTES_MAX {
            break;
        }
        end = next;
    }
    if end <= at {
        // One line that is longer than all that is shown.
        start = text.floor_char_boundary(at.saturating_sub(CONTEXT_BYTES_MAX / 4));
        end = text.floor_char_boundary((start + CONTEXT_BYTES_MAX).min(text.len()));
        return (text[start..end].to_owned(), line);
    }
    (
        text[start..end].trim_end_matches('\n').to_owned(),
        first_line,
    )
}

/// A command in short.
fn shortened(command: &str) -> String {
    if command.len() <= COMMAND_BYTES_MAX {
        return command.to_owned();
    }
    let end = command.floor_char_boundary(COMMAND_BYTES_MAX);
    format!("{}…", &command[..end])
}

/// The call that an event is of, or empty.
fn call_id(body: &EventBody) -> &str {
    match body {
        EventBody::ToolCallRequested(call) => &call.call_id,
        EventBody::ToolResultRecorded(result) => &result.call_id,
        EventBody::ToolSnapshotRecorded(snapshot) => &snapshot.call_id,
        EventBody::MessageAppended(message) if message.role == Role::Tool => &message.tool_call_id,
        _ => "",
    }
}
