//! Sub-contexts: spawning and returning. Each is one atomic batch over parent and child, so no
//! crash leaves one without the other.

use std::{collections::BTreeMap, sync::Arc};

use super::{ContextError, recorded::RecordedBatch};
use crate::{
    Engine, Inner,
    error::{AppendError, ReadError},
    query::{BranchAddress, EventSource, ReadQuery},
};
use futures::StreamExt;
use treering_domain::{
    AppendCommand, AppendOutcome, BranchState, Config, ContentPart, ConversationCreated,
    ConversationId, ConversationRow, EventBody, EventKind, Expectation, ExpectedRevision,
    MessageAppended, Namespace, NewEvent, ParentRef, PromptSet, Rejection, Role, Rule,
    SubContextReturned, SubContextSpawned, TimestampMicros, ToolResultRecorded,
};

/// Maximum number of optimistic retries when another writer was first.
const ATTEMPTS_MAX: usize = 16;

const FAILED: &str = "the sub-context failed";

/// A command to spawn a sub-context.
#[derive(Clone, Debug)]
pub struct SpawnCommand {
    /// The parent's branch.
    pub address: BranchAddress,
    /// The open call that requests it, or empty.
    pub call_id: String,
    /// Its task, recorded in the parent.
    pub purpose: String,
    /// The child's title.
    pub title: String,
    /// The child's model settings; `None` for the parent's.
    pub config: Option<Config>,
    /// The child's system prompt, or empty.
    pub system_prompt: String,
    /// The child's policies, name to JSON text.
    pub policies: BTreeMap<String, String>,
    /// The child's labels.
    pub labels: BTreeMap<String, String>,
    /// The child's id; `None` to let the engine generate one.
    pub child: Option<ConversationId>,
    /// See [`AppendCommand::idempotency_key`].
    pub idempotency_key: Option<String>,
    /// The actor, or empty.
    pub actor: String,
}

impl SpawnCommand {
    /// Creates a command to spawn a sub-context without a call.
    #[must_use]
    pub fn new(address: BranchAddress) -> Self {
        Self {
            address,
            call_id: String::new(),
            purpose: String::new(),
            title: String::new(),
            config: None,
            system_prompt: String::new(),
            policies: BTreeMap::new(),
            labels: BTreeMap::new(),
            child: None,
            idempotency_key: None,
            actor: String::new(),
        }
    }
}

/// The result of a spawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpawnOutcome {
    /// The child conversation.
    pub child: ConversationId,
    /// The outcome of the append.
    pub outcome: AppendOutcome,
}

/// A command to return a sub-context.
#[derive(Clone, Debug)]
pub struct ReturnCommand {
    /// The tenant.
    pub namespace: Namespace,
    /// The child.
    pub child: ConversationId,
    /// A summary of its result; empty for the last text of its assistant.
    pub summary: String,
    /// Whether it succeeded. If not, the call that requested it fails too.
    pub success: bool,
    /// See [`AppendCommand::idempotency_key`].
    pub idempotency_key: Option<String>,
    /// The actor, or empty.
    pub actor: String,
}

impl ReturnCommand {
    /// Creates a command that returns success with the last text of the child's assistant.
    #[must_use]
    pub fn new(namespace: Namespace, child: ConversationId) -> Self {
        Self {
            namespace,
            child,
            summary: String::new(),
            success: true,
            idempotency_key: None,
            actor: String::new(),
        }
    }
}

impl Engine {
    /// Spawns a sub-context: a child conversation with its own settings and prompt, recorded on the
    /// parent's branch. It shares no history. The call that requests it must be open, allowed to
    /// run, and have no other running sub-context.
    ///
    /// # Errors
    /// [`ContextError::Read`] when the parent does not exist, [`ContextError::Append`] when a rule
    /// forbids it: the call is not open, or sub-contexts are nested too deep.
    pub async fn spawn(&self, spawn: SpawnCommand) -> Result<SpawnOutcome, ContextError> {
        let inner = &self.inner;
        let namespace = &spawn.address.namespace;
        let key = spawn.idempotency_key.as_ref();
        let mut attempt = 0;
        loop {
            attempt += 1;
            if let Some(recorded) = inner.recorded_batch(namespace, key).await? {
                return recorded_spawn(&spawn, recorded);
            }
            let parent = inner.reads.branch_at(&spawn.address)?;
            let own = spawn.child;
            let child = own.unwrap_or_else(|| self.place(ConversationId::generate()));
            let command = AppendCommand {
                idempotency_key: spawn.idempotency_key.clone(),
                ..AppendCommand::new(namespace.clone(), spawn_events(&spawn, &parent, child))
            };
            match self.append(command).await {
                Ok(outcome) => return Ok(SpawnOutcome { child, outcome }),
                Err(error) if attempt < ATTEMPTS_MAX && spawn_was_outrun(&error) => {
                    inner.next_news().await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Returns a sub-context: seals the child and appends its summary to the branch that it was
    /// spawned from, with the result of the call that requested it. If that call has already ended,
    /// it gets no result, and the outcome has a warning.
    ///
    /// # Errors
    /// [`ContextError::Invalid`] when the conversation is not a sub-context or has no text to
    /// return; [`ContextError::Append`] when it has returned before, or another rule forbids it.
    pub async fn return_sub_context(
        &self,
        end: ReturnCommand,
    ) -> Result<AppendOutcome, ContextError> {
        let inner = &self.inner;
        let key = end.idempotency_key.as_ref();
        let mut attempt = 0;
        loop {
            attempt += 1;
            if let Some(recorded) = inner.recorded_batch(&end.namespace, key).await? {
                return recorded_return(&end, recorded);
            }
            let ending = self.ending(&end).await?;
            let warnings = ending.warnings();
            match self.append(ending.command(&end)).await {
                Ok(outcome) => {
                    return Ok(AppendOutcome {
                        warnings,
                        ..outcome
                    });
                }
                Err(error) if attempt < ATTEMPTS_MAX && return_was_outrun(&error) => {
                    inner.next_news().await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads the child and the branch that waits for it.
    async fn ending(&self, end: &ReturnCommand) -> Result<ReturnInput, ContextError> {
        let inner = &self.inner;
        let child = inner.reads.row(&end.namespace, end.child)?;
        let parent = match &child.info.parent {
            Some(parent) if !child.info.shares_history => parent.clone(),
            _ => {
                return Err(refused(
                    &child,
                    "is not a sub-context: no call waits for it",
                ));
            }
        };
        let waits = inner.reads.state(&end.namespace, parent.conversation)?;
        if waits.row.sealed {
            let conversation = parent.conversation;
            return Err(rejected(Rule::Sealed { conversation }));
        }
        let waits = waits.branches.get(&parent.branch).cloned();
        let waits = waits.ok_or_else(|| ReadError::BranchNotFound {
            conversation: parent.conversation,
            branch: parent.branch.to_string(),
        })?;
        let Some(running) = waits.sub_contexts.get(&end.child) else {
            return Err(rejected(Rule::SubContextNotRunning {
                branch: waits.name.clone(),
                child: end.child,
            }));
        };
        if child.sealed {
            let conversation = end.child;
            return Err(rejected(Rule::Sealed { conversation }));
        }
        let (summary, head) = self.summary_of(end, &child).await?;
        Ok(ReturnInput {
            parent: ParentRef {
                call_id: running.call_id.clone(),
                ..parent
            },
            child_head: head,
            call_open: waits.open_calls.contains_key(&running.call_id),
            waits,
            summary,
            ran_ms: ran_ms(child.created_at),
        })
    }

    /// Returns the summary; also the child's branch, if the summary is its last text.
    async fn summary_of(
        &self,
        end: &ReturnCommand,
        child: &ConversationRow,
    ) -> Result<(String, Option<Arc<BranchState>>), ContextError> {
        if !end.summary.is_empty() {
            return Ok((end.summary.clone(), None));
        }
        let branch = self.inner.reads.branch(&end.namespace, child.id, None)?;
        let mut messages = self.read(ReadQuery {
            backward: true,
            to: branch.head.0,
            kinds: vec![EventKind::MessageAppended],
            ..ReadQuery::all(
                end.namespace.clone(),
                EventSource::Branch {
                    conversation: child.id,
                    branch: Some(branch.name.clone()),
                },
            )
        });
        while let Some(batch) = messages.next().await {
            for event in batch? {
                let event = event.event;
                let (offset, kind) = (event.position.offset, event.header.kind);
                let body = crate::history::decode_body(offset, kind, &event.body)?;
                if let Some(text) = said(&body) {
                    return Ok((text, Some(branch)));
                }
            }
        }
        let why = "has no text to return: give a summary";
        Err(refused(child, why))
    }
}

/// The input of a return.
struct ReturnInput {
    /// Where it was spawned, and the call that requested it.
    parent: ParentRef,
    /// The branch that waits for it.
    waits: Arc<BranchState>,
    /// The child's branch, when the summary depends on it.
    child_head: Option<Arc<BranchState>>,
    call_open: bool,
    summary: String,
    ran_ms: u64,
}

impl ReturnInput {
    fn command(self, end: &ReturnCommand) -> AppendCommand {
        let seal = EventBody::ConversationSealed {
            reason: if end.success { "returned" } else { "failed" }.to_owned(),
            summary: self.summary.clone(),
        };
        let returned = EventBody::SubContextReturned(SubContextReturned {
            conversation: end.child,
            summary: self.summary.clone(),
            call_id: self.parent.call_id.clone(),
        });
        let to_parent =
            |body| NewEvent::new(self.parent.conversation, body).on_branch(self.waits.name.clone());
        let mut events = vec![NewEvent::new(end.child, seal), to_parent(returned)];
        if self.call_open {
            let result = self.result(end.success);
            events.push(to_parent(EventBody::ToolResultRecorded(result)));
        }
        for event in &mut events {
            event.actor.clone_from(&end.actor);
        }
        let expectation = self.child_head.map(|head| Expectation {
            conversation: end.child,
            branch: Some(head.name.clone()),
            expected: ExpectedRevision::Exact(head.head),
        });
        AppendCommand {
            expectations: expectation.into_iter().collect(),
            idempotency_key: end.idempotency_key.clone(),
            ..AppendCommand::new(end.namespace.clone(), events)
        }
    }

    fn result(&self, success: bool) -> ToolResultRecorded {
        let call_id = self.parent.call_id.clone();
        let result = ToolResultRecorded::text(call_id, self.summary.clone());
        ToolResultRecorded {
            success,
            error_message: if success { "" } else { FAILED }.to_owned(),
            execution_time_ms: Some(self.ran_ms),
            ..result
        }
    }

    fn warnings(&self) -> Vec<String> {
        if self.call_open || self.parent.call_id.is_empty() {
            return Vec::new();
        }
        vec![format!(
            "call {} had already ended, so it did not get the sub-context's result",
            self.parent.call_id
        )]
    }
}

impl Inner {
    /// Waits until reads see new events, at most 20 ms.
    pub(crate) async fn next_news(&self) {
        const MOMENT: std::time::Duration = std::time::Duration::from_millis(20);
        let mut news = self.appends.news.of_log();
        news.mark_unchanged();
        // The caller retries either way.
        let _ = tokio::time::timeout(MOMENT, news.changed()).await;
    }
}

/// Returns the violated rule, if the batch was rejected.
fn rule(error: &AppendError) -> Option<&Rule> {
    match error {
        AppendError::Rejected(Rejection { rule, .. }) => Some(rule),
        _ => None,
    }
}

/// Returns true when another writer was first, so that a retry can help: the same key is in flight,
/// or the branch was renamed.
fn spawn_was_outrun(error: &AppendError) -> bool {
    matches!(
        rule(error),
        Some(Rule::IdempotencyConflict | Rule::BranchNotFound { .. })
    )
}

/// Like `spawn_was_outrun`, for a return: the child grew, its call ended, or it returned.
fn return_was_outrun(error: &AppendError) -> bool {
    let changed = matches!(
        rule(error),
        Some(
            Rule::RevisionMismatch { .. }
                | Rule::CallNotOpen { .. }
                | Rule::SubContextNotRunning { .. }
                | Rule::Sealed { .. }
        )
    );
    changed || spawn_was_outrun(error)
}

fn rejected(rule: Rule) -> ContextError {
    AppendError::Rejected(Rejection::batch(rule)).into()
}

fn refused(child: &ConversationRow, why: &str) -> ContextError {
    ContextError::Invalid {
        message: format!("conversation {} {why}", child.id),
    }
}

fn ran_ms(since: TimestampMicros) -> u64 {
    let micros = TimestampMicros::now().0.saturating_sub(since.0);
    u64::try_from(micros / 1_000).unwrap_or(0)
}

/// Returns the text of an assistant message, if it has any.
fn said(body: &EventBody) -> Option<String> {
    let EventBody::MessageAppended(MessageAppended { role, parts, .. }) = body else {
        return None;
    };
    let texts: Vec<_> = parts.iter().filter_map(ContentPart::text).collect();
    let text = texts.join("\n");
    (*role == Role::Assistant && !text.trim().is_empty()).then_some(text)
}

/// Creates the events of a spawn. The child comes first, so that the decision finds the parent's
/// head unchanged.
fn spawn_events(
    spawn: &SpawnCommand,
    parent: &BranchState,
    child: ConversationId,
) -> Vec<NewEvent> {
    let created = EventBody::ConversationCreated(ConversationCreated {
        title: spawn.title.clone(),
        config: spawn
            .config
            .clone()
            .unwrap_or_else(|| parent.config.clone()),
        labels: spawn.labels.clone(),
        parent: Some(ParentRef {
            conversation: spawn.address.conversation,
            branch: parent.id,
            revision: parent.head,
            call_id: spawn.call_id.clone(),
        }),
        policies: spawn.policies.clone(),
        ..ConversationCreated::default()
    });
    let mut events = vec![NewEvent::new(child, created)];
    if !spawn.system_prompt.is_empty() {
        let prompt = EventBody::SystemPromptSet(PromptSet {
            id: String::new(),
            content: spawn.system_prompt.clone(),
        });
        events.push(NewEvent::new(child, prompt));
    }
    let spawned = EventBody::SubContextSpawned(SubContextSpawned {
        conversation: child,
        call_id: spawn.call_id.clone(),
        purpose: spawn.purpose.clone(),
    });
    events.push(NewEvent::new(spawn.address.conversation, spawned).on_branch(parent.name.clone()));
    for event in &mut events {
        event.actor.clone_from(&spawn.actor);
    }
    events
}

/// Returns the answer to a repeated spawn; fails if the recorded batch is something else.
fn recorded_spawn(
    spawn: &SpawnCommand,
    recorded: RecordedBatch,
) -> Result<SpawnOutcome, ContextError> {
    let mut events = recorded.events.iter();
    let (Some((created_at, EventBody::ConversationCreated(created))), Some((spawned_at, last))) =
        (events.next(), events.next_back())
    else {
        return Err(other_content());
    };
    let prompt = events.find_map(|(_, body)| match body {
        EventBody::SystemPromptSet(prompt) => Some(prompt.content.as_str()),
        _ => None,
    });
    let child = created_at.conversation;
    let asked = EventBody::SubContextSpawned(SubContextSpawned {
        conversation: child,
        call_id: spawn.call_id.clone(),
        purpose: spawn.purpose.clone(),
    });
    let same = *last == asked
        && spawned_at.conversation == spawn.address.conversation
        && spawn.child.is_none_or(|id| id == child)
        && spawn.title == created.title
        && spawn.policies == created.policies
        && spawn.labels == created.labels
        && spawn.config.as_ref().is_none_or(|c| *c == created.config)
        && spawn.system_prompt == prompt.unwrap_or_default();
    if !same {
        return Err(other_content());
    }
    let outcome = recorded.repeated();
    Ok(SpawnOutcome { child, outcome })
}

/// Returns the answer to a repeated return; fails if the recorded batch is something else.
fn recorded_return(
    end: &ReturnCommand,
    recorded: RecordedBatch,
) -> Result<AppendOutcome, ContextError> {
    let [
        (sealed, EventBody::ConversationSealed { reason, summary }),
        ..,
    ] = &recorded.events[..]
    else {
        return Err(other_content());
    };
    let returned = recorded.events.iter().any(|(_, body)| {
        matches!(body, EventBody::SubContextReturned(returned) if returned.conversation == end.child)
    });
    let same = returned
        && sealed.conversation == end.child
        && end.success == (reason == "returned")
        && (end.summary.is_empty() || end.summary == *summary);
    if same {
        Ok(recorded.repeated())
    } else {
        Err(other_content())
    }
}

fn other_content() -> ContextError {
    rejected(Rule::IdempotencyConflict)
}
