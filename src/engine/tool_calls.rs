//! Tool calls: history, pending approvals, results.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    future::Future,
    time::Duration,
};

use futures::StreamExt;

use super::{
    Engine, ReadPath,
    error::ReadError,
    history::{decode_body, stored},
    query::{
        BranchAddress, CallStatus, EventSource, NamedEvent, ReadQuery, RecordedResult, ToolCall,
        ToolHistoryQuery, WhichResult,
    },
    work::{self, PriorityClass, priority_for},
};
use treering_domain::{
    ApprovalStatus, BranchName, BranchState, ConversationId, EventBody, EventHeader, EventKind,
    JsonText, Namespace, Revision, StoredEvent, ToolCallRequested, ToolResultRecorded,
};
use treering_projections::CallEntry;
use treering_search::searchable_text;

/// Kinds of events that make up a call.
const CALL_KINDS: [EventKind; 5] = [
    EventKind::ToolCallRequested,
    EventKind::ApprovalDecided,
    EventKind::ToolCallStarted,
    EventKind::ToolResultRecorded,
    EventKind::ToolCallCancelled,
];
/// The `state` in [`ReadError::CallNotFound`] when the result is missing.
const RECORDED: &str = "with a recorded result";
/// Maximum length of a result's text in a history, in bytes.
const RESULT_HEAD_BYTES: usize = 200;

impl Engine {
    /// Returns calls of a branch with their outcomes, newest first.
    ///
    /// # Errors
    /// [`ReadError`] when the branch does not exist.
    pub async fn tool_history(&self, query: ToolHistoryQuery) -> Result<Vec<ToolCall>, ReadError> {
        self.on_history(query, |engine, query| async move {
            engine.calls_where(query, |_| true).await
        })
        .await
    }

    /// Runs work on a branch's calls, in the priority class that fits the length of its history.
    pub(super) async fn on_history<T, F>(
        &self,
        query: ToolHistoryQuery,
        work: impl FnOnce(Self, ToolHistoryQuery) -> F,
    ) -> Result<T, ReadError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, ReadError>> + Send + 'static,
    {
        let address = query.address.clone();
        let lane = self.on(PriorityClass::Short, |engine| async move {
            let branch = engine.inner.reads.branch_at(&address)?;
            Ok::<_, ReadError>(priority_for(branch.history_events))
        });
        let lane = lane.await?;
        self.on(lane, |engine| work(engine, query)).await
    }

    /// Like [`Self::tool_history`], with only the calls that `wanted` accepts.
    pub(super) async fn calls_where(
        &self,
        query: ToolHistoryQuery,
        wanted: impl Fn(&ToolCall) -> bool + Send + Sync,
    ) -> Result<Vec<ToolCall>, ReadError> {
        let (namespace, id) = (&query.address.namespace, query.address.conversation);
        let branch = self.inner.reads.branch_at(&query.address)?;
        if let Some(revision) = query.as_of {
            self.inner
                .reads
                .as_of(query.address.key(), &branch, revision)
                .await?;
        }
        let to = query.as_of.unwrap_or(branch.head);
        let mut calls = Vec::new();
        let mut later = LaterEvents::default();
        let mut batches = self.read(ReadQuery {
            backward: true,
            to: to.0,
            kinds: CALL_KINDS.to_vec(),
            ..branch_query(namespace, id, &branch)
        });
        while let Some(batch) = batches.next().await {
            for event in batch? {
                if calls.len() >= query.limit {
                    return Ok(calls);
                }
                let call = later.meet(&event, &branch)?;
                let named = |call: &ToolCall| query.tool.as_ref().is_none_or(|t| *t == call.tool);
                calls.extend(call.filter(|call| named(call) && wanted(call)));
            }
        }
        Ok(calls)
    }

    /// Returns calls that wait for an approval decision, in a conversation or in the namespace.
    ///
    /// # Errors
    /// [`ReadError`] when the conversation or the branch does not exist.
    pub async fn pending(
        &self,
        namespace: &Namespace,
        conversation: Option<ConversationId>,
        branch: Option<&BranchName>,
        limit: usize,
    ) -> Result<Vec<ToolCall>, ReadError> {
        let (namespace, branch) = (namespace.clone(), branch.cloned());
        let read = |engine: Self| async move {
            let inner = &engine.inner;
            inner
                .reads
                .pending(&namespace, conversation, branch.as_ref(), limit)
                .await
        };
        self.on(PriorityClass::Short, read).await
    }

    /// Waits until a call is decided or has ended, for at most `timeout`. Returns the call as it is
    /// then, and false after a timeout.
    ///
    /// # Errors
    /// [`ReadError::CallNotFound`] when the branch has no such call.
    pub async fn wait_for_decision(
        &self,
        address: &BranchAddress,
        call_id: &str,
        timeout: Duration,
    ) -> Result<(ToolCall, bool), ReadError> {
        let inner = &self.inner;
        let (namespace, id) = (&address.namespace, address.conversation);
        let deadline = tokio::time::Instant::now() + timeout;
        let mut news = inner.appends.news.of(address.key());
        loop {
            news.mark_unchanged();
            let state = inner.reads.branch_at(address)?;
            let open = state.open_calls.get(call_id);
            if open.is_none_or(|open| open.approval != ApprovalStatus::Pending) {
                // Read from the events, because the state does not hold who decided.
                return Ok((self.last_call(namespace, id, &state, call_id).await?, true));
            }
            let changed = tokio::time::timeout_at(deadline, news.changed()).await;
            if !matches!(changed, Ok(Ok(()))) {
                return Ok((
                    inner.reads.open_call(namespace, &state, call_id).await?,
                    false,
                ));
            }
        }
    }

    /// Returns a recorded result with its text. A revision may also name another event with a text,
    /// because requests to a model also refer to messages and calls that they leave out.
    ///
    /// # Errors
    /// [`ReadError::CallNotFound`] or [`ReadError::RevisionNotFound`].
    pub async fn result(
        &self,
        address: &BranchAddress,
        which: WhichResult,
    ) -> Result<RecordedResult, ReadError> {
        let address = address.clone();
        let read = |engine: Self| async move { engine.result_here(&address, which).await };
        self.on(PriorityClass::Short, read).await
    }

    async fn result_here(
        &self,
        address: &BranchAddress,
        which: WhichResult,
    ) -> Result<RecordedResult, ReadError> {
        let inner = &self.inner;
        let (id, state) = (address.conversation, inner.reads.branch_at(address)?);
        let query = ReadQuery {
            backward: true,
            kinds: vec![EventKind::ToolResultRecorded],
            ..branch_query(&address.namespace, id, &state)
        };
        let call_id = match which {
            WhichResult::Revision(revision) => {
                // A revision may be on any branch.
                let source = match address.branch {
                    None => EventSource::Conversation(id),
                    Some(_) => query.source.clone(),
                };
                let query = ReadQuery {
                    source,
                    from: revision.0,
                    to: revision.0,
                    kinds: Vec::new(),
                    ..query
                };
                let found = self.read_all(query).await?.into_iter().next();
                let not_found = || ReadError::RevisionNotFound {
                    branch: state.name.to_string(),
                    revision,
                    head: state.head,
                };
                let event = found.ok_or_else(not_found)?.event;
                return inner.reads.recorded(event)?.ok_or_else(not_found);
            }
            WhichResult::CallId(call_id) => call_id,
        };
        let mut batches = self.read(query);
        while let Some(batch) = batches.next().await {
            for event in batch? {
                if let EventBody::ToolResultRecorded(result) = decoded(&event)?
                    && result.call_id == call_id
                {
                    let recorded = inner.reads.recorded(event.event)?;
                    return recorded.ok_or_else(|| call_not_found(&state, &call_id, RECORDED));
                }
            }
        }
        Err(call_not_found(&state, &call_id, RECORDED))
    }

    /// Returns the recorded result of the same tool with the same arguments on a branch: the
    /// `occurrence`-th from the start, or the last one for 0. Arguments that are JSON are compared
    /// as JSON: key order and spacing do not matter.
    ///
    /// # Errors
    /// [`ReadError`] when the branch does not exist.
    pub async fn recorded(
        &self,
        address: &BranchAddress,
        tool: &str,
        arguments: &JsonText,
        occurrence: u32,
    ) -> Result<Option<(ToolCall, RecordedResult)>, ReadError> {
        let wanted = Arguments::read(arguments);
        let query = ToolHistoryQuery {
            address: address.clone(),
            as_of: None,
            tool: Some(tool.to_owned()),
            // The calls are read backward, so the first match is the last call. Counting from the
            // start needs all matches.
            limit: if occurrence == 0 { 1 } else { usize::MAX },
        };
        let find = |engine: Self, mut query: ToolHistoryQuery| async move {
            let state = engine.inner.reads.branch_at(&query.address)?;
            query.address.branch = Some(state.name.clone());
            let address = query.address.clone();
            let same = |call: &ToolCall| {
                matches!(call.status, CallStatus::Succeeded | CallStatus::Failed)
                    && Arguments::read(&call.arguments) == wanted
            };
            let mut same = engine.calls_where(query, same).await?;
            let nth = (occurrence as usize).min(same.len());
            let found = match occurrence {
                0 => same.pop(),
                wanted if wanted as usize > nth => None,
                _ => Some(same.swap_remove(same.len() - nth)),
            };
            let Some(call) = found else { return Ok(None) };
            let which = WhichResult::Revision(call.end_revision.unwrap_or_default());
            let result = engine.result(&address, which);
            Ok(Some((call, result.await?)))
        };
        self.on_history(query, find).await
    }

    /// Returns the last call with an id on a branch, ended or not.
    async fn last_call(
        &self,
        namespace: &Namespace,
        id: ConversationId,
        state: &BranchState,
        call_id: &str,
    ) -> Result<ToolCall, ReadError> {
        let mut later = LaterEvents::default();
        let mut batches = self.read(ReadQuery {
            backward: true,
            kinds: CALL_KINDS.to_vec(),
            ..branch_query(namespace, id, state)
        });
        while let Some(batch) = batches.next().await {
            for event in batch? {
                if let Some(call) = later.meet(&event, state)?
                    && call.call_id == call_id
                {
                    return Ok(call);
                }
            }
        }
        Err(call_not_found(state, call_id, "at all"))
    }
}

impl ReadPath {
    async fn pending(
        &self,
        namespace: &Namespace,
        conversation: Option<ConversationId>,
        branch: Option<&BranchName>,
        limit: usize,
    ) -> Result<Vec<ToolCall>, ReadError> {
        if let Some(id) = conversation {
            self.branch(namespace, id, branch)?;
        }
        let places = self
            .projections
            .load()
            .pending(namespace, conversation, limit)?;
        let mut calls = Vec::new();
        for (id, branch_id) in places {
            work::check()?;
            let state = self.history().branch(namespace.key(id), branch_id)?;
            if branch.is_some_and(|name| *name != state.name) {
                continue;
            }
            for (call_id, open) in &state.open_calls {
                if open.approval == ApprovalStatus::Pending && calls.len() < limit {
                    calls.push(self.open_call(namespace, &state, call_id).await?);
                }
            }
        }
        Ok(calls)
    }

    /// Returns the tool of a call, as named by the last request with the call's id before an event.
    pub(super) fn tool_of(&self, header: &EventHeader, call_id: &str) -> Result<String, ReadError> {
        let entry = self.request_of(header, call_id)?;
        Ok(entry.map(|entry| entry.tool).unwrap_or_default())
    }

    /// Returns the last request with a call's id before an event.
    pub(super) fn request_of(
        &self,
        header: &EventHeader,
        call_id: &str,
    ) -> Result<Option<CallEntry>, ReadError> {
        let projections = self.projections.load();
        let mut conversation = header.key();
        let mut before = header.revision;
        loop {
            let calls = projections.calls(conversation, call_id)?;
            let own = calls
                .iter()
                .rfind(|call| call.request < before && call.branch == header.branch)
                .or_else(|| calls.iter().rfind(|call| call.request < before));
            if let Some(call) = own {
                return Ok(Some(call.clone()));
            }
            // The request may be in the history that a fork shares.
            let parent = projections
                .conversation(conversation)?
                .filter(|row| row.info.shares_history)
                .and_then(|row| row.info.parent.clone());
            let Some(parent) = parent else {
                return Ok(None);
            };
            conversation = conversation.sibling(parent.conversation);
            before = parent.revision.next();
        }
    }

    /// Returns an open call, from the branch's state and its request.
    async fn open_call(
        &self,
        namespace: &Namespace,
        state: &BranchState,
        call_id: &str,
    ) -> Result<ToolCall, ReadError> {
        let missing = || call_not_found(state, call_id, "that is open");
        let open = state.open_calls.get(call_id).ok_or_else(missing)?;
        let found = self.history().event(namespace, open.request).await?;
        let (offset, record) = found.ok_or_else(missing)?;
        let body = self.history().decode(offset, &record).await?;
        let EventBody::ToolCallRequested(request) = body else {
            return Err(missing());
        };
        let event = stored(self.reader.position(offset), record, bytes::Bytes::new());
        let mut call = requested(&event, request, state);
        call.approval = open.approval;
        call.status = match (open.started, open.approval) {
            (true, _) => CallStatus::Started,
            (false, approval) => undecided_status(approval),
        };
        Ok(call)
    }

    /// Returns the recorded content of an event, with its text; `None` if it has no text.
    fn recorded(&self, event: StoredEvent) -> Result<Option<RecordedResult>, ReadError> {
        let body = decode_body(event.position.offset, event.header.kind, &event.body)?;
        let text = match &body {
            // The arguments as the model wrote them.
            EventBody::ToolCallRequested(call) => Some(call.arguments.as_str().to_owned()),
            body => searchable_text(body).map(Cow::into_owned),
        };
        let (result, tool) = match body {
            EventBody::ToolResultRecorded(result) => {
                let tool = self.tool_of(&event.header, &result.call_id)?;
                (result, tool)
            }
            EventBody::ToolCallRequested(call) => {
                (ToolResultRecorded::text(call.call_id, ""), call.tool)
            }
            _ if text.is_none() => return Ok(None),
            _ => (ToolResultRecorded::text("", ""), String::new()),
        };
        Ok(Some(RecordedResult {
            event,
            tool,
            result,
            text: text.unwrap_or_default(),
        }))
    }
}

/// Events that a backward read of calls has met before the requests of their calls.
#[derive(Default)]
struct LaterEvents {
    ends: HashMap<String, (StoredEvent, EventBody)>,
    decisions: HashMap<String, (Revision, treering_domain::ApprovalDecided)>,
    starts: BTreeMap<String, Revision>,
}

impl LaterEvents {
    /// Records an event. A request returns its call, completed with the recorded events.
    fn meet(
        &mut self,
        event: &NamedEvent,
        branch: &BranchState,
    ) -> Result<Option<ToolCall>, ReadError> {
        let revision = event.event.header.revision;
        match decoded(event)? {
            EventBody::ApprovalDecided(decided) => {
                self.decisions
                    .insert(decided.call_id.clone(), (revision, decided));
            }
            EventBody::ToolCallStarted(started) => {
                self.starts.insert(started.call_id, revision);
            }
            EventBody::ToolCallRequested(request) => {
                return Ok(Some(self.finish(&event.event, request, branch)));
            }
            body => {
                let call_id = match &body {
                    EventBody::ToolResultRecorded(result) => result.call_id.clone(),
                    EventBody::ToolCallCancelled(cancelled) => cancelled.call_id.clone(),
                    _ => return Ok(None),
                };
                self.ends.insert(call_id, (event.event.clone(), body));
            }
        }
        Ok(None)
    }

    fn finish(
        &mut self,
        event: &StoredEvent,
        request: ToolCallRequested,
        branch: &BranchState,
    ) -> ToolCall {
        let mut call = requested(event, request, branch);
        if let Some((revision, decided)) = self.decisions.remove(&call.call_id) {
            call.approval = decided.decision.into();
            call.status = undecided_status(call.approval);
            call.decided_by = decided.decided_by;
            call.decision_reason = decided.reason;
            call.decision_revision = Some(revision);
        }
        if let Some(revision) = self.starts.remove(&call.call_id) {
            call.started_revision = Some(revision);
            call.status = CallStatus::Started;
        }
        if let Some((end, body)) = self.ends.remove(&call.call_id) {
            call.end_revision = Some(end.header.revision);
            call.ended_at = Some(end.header.recorded_at);
            match body {
                EventBody::ToolResultRecorded(result) => note_result(&mut call, result),
                EventBody::ToolCallCancelled(cancelled) => {
                    call.status = CallStatus::Cancelled;
                    call.cancel_reason = Some(cancelled.reason);
                    call.error_message = cancelled.detail;
                }
                _ => {}
            }
        }
        call
    }
}

fn note_result(call: &mut ToolCall, result: ToolResultRecorded) {
    call.status = if result.success {
        CallStatus::Succeeded
    } else {
        CallStatus::Failed
    };
    call.error_message.clone_from(&result.error_message);
    call.execution_time_ms = result.execution_time_ms;
    let body = EventBody::ToolResultRecorded(result);
    let text = searchable_text(&body).unwrap_or_default();
    call.result_bytes = text.len() as u64;
    let end = text.floor_char_boundary(RESULT_HEAD_BYTES.min(text.len()));
    call.result_head = text[..end].to_owned();
}

fn requested(event: &StoredEvent, request: ToolCallRequested, branch: &BranchState) -> ToolCall {
    let approval = if request.needs_approval {
        ApprovalStatus::Pending
    } else {
        ApprovalStatus::NotRequired
    };
    ToolCall {
        conversation: event.header.conversation,
        branch: branch.id,
        branch_name: branch.name.clone(),
        call_id: request.call_id,
        tool: request.tool,
        arguments: request.arguments,
        arguments_not_json: request.arguments_not_json,
        item_id: request.item_id,
        arguments_hash: request.arguments_hash,
        request_revision: event.header.revision,
        status: undecided_status(approval),
        approval,
        decided_by: String::new(),
        decision_reason: String::new(),
        decision_revision: None,
        started_revision: None,
        end_revision: None,
        cancel_reason: None,
        error_message: String::new(),
        execution_time_ms: None,
        result_bytes: 0,
        result_head: String::new(),
        requested_at: event.header.recorded_at,
        ended_at: None,
    }
}

/// Returns the status of a call that has neither started nor ended.
fn undecided_status(approval: ApprovalStatus) -> CallStatus {
    match approval {
        ApprovalStatus::NotRequired => CallStatus::Requested,
        ApprovalStatus::Pending => CallStatus::PendingApproval,
        ApprovalStatus::Approved => CallStatus::Approved,
        ApprovalStatus::Denied => CallStatus::Denied,
        ApprovalStatus::Expired => CallStatus::Expired,
    }
}

fn branch_query(namespace: &Namespace, id: ConversationId, branch: &BranchState) -> ReadQuery {
    let source = EventSource::Branch {
        conversation: id,
        branch: Some(branch.name.clone()),
    };
    ReadQuery::all(namespace.clone(), source)
}

fn decoded(event: &NamedEvent) -> Result<EventBody, ReadError> {
    let event = &event.event;
    decode_body(event.position.offset, event.header.kind, &event.body)
}

/// Arguments in the form in which they are compared.
#[derive(PartialEq)]
enum Arguments {
    Json(serde_json::Value),
    /// The arguments are not JSON.
    Text(JsonText),
}

impl Arguments {
    fn read(arguments: &JsonText) -> Self {
        serde_json::from_slice(arguments.as_bytes())
            .map_or_else(|_| Self::Text(arguments.clone()), Self::Json)
    }
}

fn call_not_found(branch: &BranchState, call_id: &str, state: &'static str) -> ReadError {
    ReadError::CallNotFound {
        branch: branch.name.to_string(),
        call_id: call_id.to_owned(),
        state,
    }
}
