//! Active context of a branch, and long-term context of a namespace.
//!
//! The long-term context is the active context of a conversation whose id is derived from the
//! namespace. Setting the first key creates the conversation.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use futures::{StreamExt, stream::BoxStream};

use super::ContextError;
use crate::{
    Engine, ReadPath,
    error::{AppendError, ReadError},
    history::decode_body,
    query::{EventSource, NamedEvent, StartAfter, SubscribeQuery, SubscriptionItem},
    work::{self, PriorityClass},
};
use treering_context::window::LongTermEntry;
use treering_domain::{
    AppendCommand, AppendOutcome, BranchId, BranchName, BranchState, ContextSet,
    ConversationCreated, ConversationId, ConversationKey, EventBody, EventKind, EventRef,
    Expectation, ExpectedRevision, JsonText, Namespace, NewEvent, Position, Rejection, Revision,
    Rule,
};

/// Label of the conversation that holds a namespace's long-term context.
pub const LONG_TERM_LABEL: &str = "treering.long_term";

const LONG_TERM_TITLE: &str = "Long-term context";

/// The owner of an active context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContextScope {
    /// A branch; `None` for the active one.
    Conversation {
        /// The conversation.
        id: ConversationId,
        /// The branch.
        branch: Option<BranchName>,
    },
    /// The namespace: its long-term context is available to every request of its conversations.
    LongTerm,
}

impl ContextScope {
    fn place(&self, namespace: &Namespace) -> (ConversationId, Option<&BranchName>) {
        match self {
            Self::Conversation { id, branch } => (*id, branch.as_ref()),
            Self::LongTerm => (namespace.long_term_conversation(), None),
        }
    }
}

/// A command to set and remove keys, in one step.
#[derive(Clone, Debug)]
pub struct SetContext {
    /// The tenant.
    pub namespace: Namespace,
    /// The owner of the context.
    pub scope: ContextScope,
    /// Values to set.
    pub set: Vec<ContextSet>,
    /// Keys to remove.
    pub remove: Vec<String>,
    /// See [`AppendCommand::idempotency_key`].
    pub idempotency_key: Option<String>,
    /// The actor, or empty.
    pub actor: String,
}

/// A key of an active context with its value.
#[derive(Clone, Debug, PartialEq)]
pub struct ContextEntry {
    /// Key.
    pub key: String,
    /// Value.
    pub value: JsonText,
    /// Who provides the value, or empty.
    pub provider: String,
    /// The event that set it.
    pub at: EventRef,
}

/// Values of an active context.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContextValues {
    /// The values, ordered by key.
    pub entries: Vec<ContextEntry>,
    /// Keys whose values did not fit.
    pub left_out: Vec<String>,
    /// The head of the branch at the time of the read; 0 if there is no long-term context.
    pub revision: Revision,
}

/// An item of a watch on an active context.
#[derive(Clone, Debug, PartialEq)]
pub enum ContextChange {
    /// A key's current or new value.
    Set(ContextEntry),
    /// A key that was removed.
    Removed {
        /// The key.
        key: String,
        /// The event that removed it.
        at: EventRef,
    },
    /// All keys as of this revision have been delivered; live changes follow.
    CaughtUp(Revision),
}

impl ContextChange {
    fn key(&self) -> Option<&str> {
        match self {
            Self::Set(entry) => Some(&entry.key),
            Self::Removed { key, .. } => Some(key),
            Self::CaughtUp(_) => None,
        }
    }
}

impl Engine {
    /// Sets and removes keys of an active context, all or none. The first key of a namespace's
    /// long-term context creates the conversation that holds it.
    ///
    /// # Errors
    /// [`ContextError::Invalid`] when there is nothing to do or a key occurs twice,
    /// [`ContextError::Append`] when a rule forbids it.
    pub async fn set_context(&self, command: SetContext) -> Result<AppendOutcome, ContextError> {
        check_keys(&command)?;
        let inner = &self.inner;
        let (namespace, scope) = (&command.namespace, &command.scope);
        let (id, branch) = scope.place(namespace);
        let events = key_events(&command, id, branch);
        let long_term = *scope == ContextScope::LongTerm;
        // Another writer may create the conversation first.
        let mut creates = long_term && inner.reads.find_row(namespace, id)?.is_none();
        if long_term {
            let key = command.idempotency_key.as_ref();
            if let Some(recorded) = inner.recorded_batch(namespace, key).await? {
                let first = recorded.events.first();
                creates = first.is_some_and(|(_, body)| is_creation(body));
            }
        }
        loop {
            let append = append_command(&command, id, events.clone(), creates);
            match self.append(append).await {
                Err(AppendError::Rejected(Rejection {
                    rule: Rule::ConversationExists { .. },
                    ..
                })) if creates => creates = false,
                done => return Ok(done?),
            }
        }
    }

    /// Returns an active context, ordered by key. It is empty for a namespace without long-term
    /// context.
    ///
    /// # Errors
    /// [`ReadError`] when the conversation or the branch does not exist.
    pub async fn active_context(
        &self,
        namespace: &Namespace,
        scope: &ContextScope,
    ) -> Result<Vec<ContextEntry>, ReadError> {
        let (namespace, scope) = (namespace.clone(), scope.clone());
        let read = |engine: Self| async move {
            let inner = &engine.inner;
            match inner.reads.watched(&namespace, &scope)? {
                Some((_, branch)) => inner.reads.context_entries(&namespace, &branch).await,
                None => Ok(Vec::new()),
            }
        };
        self.on(PriorityClass::Short, read).await
    }

    /// Returns the values of these keys of an active context, or of all keys if none are given. The
    /// values have at most `bytes_max` bytes in total, except that the first value is always
    /// returned.
    ///
    /// # Errors
    /// [`ReadError`] when the conversation or the branch does not exist.
    pub async fn context_values(
        &self,
        namespace: &Namespace,
        scope: &ContextScope,
        keys: Vec<String>,
        bytes_max: usize,
    ) -> Result<ContextValues, ReadError> {
        let (namespace, scope) = (namespace.clone(), scope.clone());
        let read = |engine: Self| async move {
            let inner = &engine.inner;
            let Some((id, branch)) = inner.reads.watched(&namespace, &scope)? else {
                return Ok(ContextValues::default());
            };
            inner
                .reads
                .check_whole(namespace.key(id), Revision(u64::MAX))?;
            let mut values = ContextValues {
                revision: branch.head,
                ..ContextValues::default()
            };
            let mut bytes = 0_usize;
            for (key, at) in wanted_of(&branch, &keys.into_iter().collect()) {
                work::check()?;
                if bytes >= bytes_max {
                    values.left_out.push(key.to_owned());
                    continue;
                }
                let Some(entry) = inner.reads.context_entry(&namespace, at).await? else {
                    continue;
                };
                let size = entry.value.as_bytes().len();
                if bytes + size > bytes_max && bytes > 0 {
                    values.left_out.push(entry.key);
                    continue;
                }
                bytes += size;
                values.entries.push(entry);
            }
            Ok(values)
        };
        self.on(PriorityClass::Short, read).await
    }

    /// Follows an active context: the current keys, then [`ContextChange::CaughtUp`], then every
    /// change of that branch in order. If `keys` is not empty, only these keys are followed. A slow
    /// reader continues from the log and misses nothing. The stream ends only with an error; drop
    /// it to stop.
    pub fn watch_context(
        &self,
        namespace: Namespace,
        scope: ContextScope,
        keys: Vec<String>,
    ) -> BoxStream<'static, Result<ContextChange, ReadError>> {
        let engine = self.clone();
        let keys: BTreeSet<String> = keys.into_iter().collect();
        async_stream::try_stream! {
            let wanted = |key: &str| keys.is_empty() || keys.contains(key);
            let inner = &engine.inner;
            let mut news = inner.appends.news.of(namespace.key(scope.place(&namespace).0));
            let mut watched = inner.reads.watched(&namespace, &scope)?;
            let mut after = Revision::NONE;
            if let Some((_, branch)) = &watched {
                after = branch.head;
                for (_, at) in wanted_of(branch, &keys) {
                    if let Some(entry) = inner.reads.context_entry(&namespace, at).await? {
                        yield ContextChange::Set(entry);
                    }
                }
            }
            yield ContextChange::CaughtUp(after);
            // The long-term context's conversation is created with its first key.
            while watched.is_none() {
                if news.changed().await.is_err() {
                    return;
                }
                watched = inner.reads.watched(&namespace, &scope)?;
            }
            let Some((id, branch)) = watched else { return };
            let mut events = engine.subscribe(changes_of(&namespace, id, &branch.name, after));
            while let Some(item) = events.next().await {
                let SubscriptionItem::Event(event) = item? else { continue };
                match change(&event, id, branch.id)? {
                    Some(change) if change.key().is_some_and(wanted) => yield change,
                    _ => {}
                }
            }
        }
        .boxed()
    }
}

fn check_keys(command: &SetContext) -> Result<(), ContextError> {
    let mut seen = BTreeSet::new();
    let set = command.set.iter().map(|set| &set.key);
    for key in set.chain(&command.remove) {
        if !seen.insert(key) {
            let message = "a key occurs twice: each key can be set or removed only once per call";
            return Err(ContextError::Invalid {
                message: message.to_owned(),
            });
        }
    }
    if seen.is_empty() {
        let message = "no key to set or remove";
        return Err(ContextError::Invalid {
            message: message.to_owned(),
        });
    }
    Ok(())
}

fn key_events(
    command: &SetContext,
    id: ConversationId,
    branch: Option<&BranchName>,
) -> Vec<NewEvent> {
    let set = command.set.iter().cloned().map(EventBody::ContextSet);
    let remove = command.remove.iter().cloned();
    let remove = remove.map(|key| EventBody::ContextRemoved { key });
    set.chain(remove)
        .map(|body| NewEvent {
            branch: branch.cloned(),
            actor: command.actor.clone(),
            ..NewEvent::new(id, body)
        })
        .collect()
}

fn append_command(
    command: &SetContext,
    id: ConversationId,
    mut events: Vec<NewEvent>,
    creates: bool,
) -> AppendCommand {
    let mut expectations = Vec::new();
    if creates {
        let created = EventBody::ConversationCreated(ConversationCreated {
            title: LONG_TERM_TITLE.to_owned(),
            labels: [(LONG_TERM_LABEL.to_owned(), "true".to_owned())].into(),
            ..ConversationCreated::default()
        });
        let created = NewEvent {
            actor: command.actor.clone(),
            ..NewEvent::new(id, created)
        };
        events.insert(0, created);
        expectations.push(Expectation {
            conversation: id,
            branch: None,
            expected: ExpectedRevision::NoStream,
        });
    }
    AppendCommand {
        expectations,
        idempotency_key: command.idempotency_key.clone(),
        ..AppendCommand::new(command.namespace.clone(), events)
    }
}

fn is_creation(body: &EventBody) -> bool {
    matches!(body, EventBody::ConversationCreated(_))
}

fn changes_of(
    namespace: &Namespace,
    id: ConversationId,
    branch: &BranchName,
    after: Revision,
) -> SubscribeQuery {
    SubscribeQuery {
        namespace: namespace.clone(),
        source: EventSource::Branch {
            conversation: id,
            branch: Some(branch.clone()),
        },
        start: StartAfter::Place(after.0),
        kinds: vec![EventKind::ContextSet, EventKind::ContextRemoved],
    }
}

/// Returns the change that an event of the branch makes to its active context.
fn change(
    event: &NamedEvent,
    id: ConversationId,
    branch: BranchId,
) -> Result<Option<ContextChange>, ReadError> {
    let event = &event.event;
    let header = &event.header;
    if header.conversation != id || header.branch != branch {
        return Ok(None);
    }
    let at = EventRef {
        conversation: id,
        revision: header.revision,
    };
    // Copy the body, so that the value does not keep the whole frame in memory.
    let body = Bytes::copy_from_slice(&event.body);
    let body = decode_body(event.position.offset, header.kind, &body)?;
    Ok(match body {
        EventBody::ContextSet(set) => Some(ContextChange::Set(entry(set, at))),
        EventBody::ContextRemoved { key } => Some(ContextChange::Removed { key, at }),
        _ => None,
    })
}

/// Returns the events that set these keys; all keys if none are given.
fn wanted_of<'b>(branch: &'b BranchState, keys: &BTreeSet<String>) -> Vec<(&'b str, EventRef)> {
    let context = &branch.active_context;
    let place = |(key, at): (&'b String, &EventRef)| (key.as_str(), *at);
    if keys.is_empty() {
        return context.iter().map(place).collect();
    }
    let set = keys.iter().filter_map(|key| context.get_key_value(key));
    set.map(place).collect()
}

fn entry(set: ContextSet, at: EventRef) -> ContextEntry {
    ContextEntry {
        key: set.key,
        value: set.value,
        provider: set.provider,
        at,
    }
}

impl ReadPath {
    /// Returns the branch of a scope; `None` if the namespace has no long-term context yet.
    fn watched(
        &self,
        namespace: &Namespace,
        scope: &ContextScope,
    ) -> Result<Option<(ConversationId, Arc<BranchState>)>, ReadError> {
        let (id, branch) = scope.place(namespace);
        if *scope == ContextScope::LongTerm && self.find_row(namespace, id)?.is_none() {
            return Ok(None);
        }
        Ok(Some((id, self.branch(namespace, id, branch)?)))
    }

    /// Returns the keys of a branch's active context with their values.
    async fn context_entries(
        &self,
        namespace: &Namespace,
        branch: &BranchState,
    ) -> Result<Vec<ContextEntry>, ReadError> {
        let mut entries = Vec::with_capacity(branch.active_context.len());
        for at in branch.active_context.values() {
            entries.extend(self.context_entry(namespace, *at).await?);
        }
        Ok(entries)
    }

    /// Returns the entry that an event set.
    async fn context_entry(
        &self,
        namespace: &Namespace,
        at: EventRef,
    ) -> Result<Option<ContextEntry>, ReadError> {
        let event = self.window_event(namespace, at).await?;
        Ok(match &event.body {
            EventBody::ContextSet(set) => Some(entry(set.clone(), at)),
            _ => None,
        })
    }

    /// Returns the namespace's long-term context as of a log position.
    pub(super) async fn long_term(
        &self,
        namespace: &Namespace,
        as_of: Option<Position>,
    ) -> Result<Vec<LongTermEntry>, ReadError> {
        let id = namespace.long_term_conversation();
        let Some(row) = self.find_row(namespace, id)? else {
            return Ok(Vec::new());
        };
        let mut branch = self.branch(namespace, id, None)?;
        if let Some(position) = as_of
            && row.last_position.offset > position.offset
        {
            let reached = self.revision_at(row.key(), row.head, position)?;
            match self.branch_up_to(row.key(), &branch, reached).await? {
                Some(past) => branch = past,
                None => return Ok(Vec::new()),
            }
        }
        let entries = self.context_entries(namespace, &branch).await?;
        let long_term = |entry: ContextEntry| LongTermEntry {
            key: entry.key,
            value: entry.value,
            at: entry.at,
        };
        Ok(entries.into_iter().map(long_term).collect())
    }

    /// Returns the last revision of a conversation at or before a log position; 0 if there is none.
    fn revision_at(
        &self,
        id: ConversationKey,
        head: Revision,
        position: Position,
    ) -> Result<Revision, ReadError> {
        let projections = self.projections.load();
        let (mut low, mut high) = (0, head.0);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            let offset = projections.offset(id, Revision(middle))?;
            if offset.is_some_and(|offset| offset <= position.offset) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        Ok(Revision(low))
    }

    /// Returns a branch's state at the last revision of its history up to `revision`. The event at
    /// `revision` may belong to another branch.
    async fn branch_up_to(
        &self,
        id: ConversationKey,
        branch: &Arc<BranchState>,
        revision: Revision,
    ) -> Result<Option<Arc<BranchState>>, ReadError> {
        let history = self.history();
        let mut revision = revision.min(branch.head);
        while revision > Revision::NONE {
            if revision == branch.head {
                return Ok(Some(Arc::clone(branch)));
            }
            if let Some(past) = history.branch_at(id, branch.id, revision).await? {
                return Ok(Some(past.state));
            }
            revision = Revision(revision.0 - 1);
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use treering_domain::{BranchForked, Limits};

    fn learn(key: &str, json: &'static str) -> SetContext {
        SetContext {
            namespace: Namespace::default(),
            scope: ContextScope::LongTerm,
            set: vec![ContextSet {
                key: key.to_owned(),
                value: JsonText::from_checked(json.into()),
                provider: String::new(),
            }],
            remove: Vec::new(),
            idempotency_key: None,
            actor: String::new(),
        }
    }

    async fn known(engine: &Engine, as_of: Option<Position>) -> Vec<String> {
        let namespace = Namespace::default();
        let entries = engine
            .inner
            .reads
            .long_term(&namespace, as_of)
            .await
            .unwrap();
        let text = |entry: LongTermEntry| format!("{}={}", entry.key, entry.value.as_str());
        entries.into_iter().map(text).collect()
    }

    // A request as of last week must contain what was known last week, whatever was learned,
    // removed, or tried on a fork of the long-term context since.
    #[tokio::test]
    async fn long_term_context_is_read_as_of_a_position() {
        let engine = Engine::in_memory(Limits::default()).await.unwrap();
        let namespace = Namespace::default();
        assert!(known(&engine, None).await.is_empty());
        let before = engine.head();
        let mut heads = Vec::new();
        for (key, json) in [("a", "1"), ("b", "2"), ("a", "3")] {
            engine.set_context(learn(key, json)).await.unwrap();
            heads.push(engine.head());
        }
        let fork = EventBody::BranchForked(BranchForked {
            name: BranchName::new("try").unwrap(),
            parent: BranchId::MAIN,
            fork_revision: Revision(2),
            system_prompt: String::new(),
        });
        let id = namespace.long_term_conversation();
        let fork = AppendCommand::new(namespace, vec![NewEvent::new(id, fork)]);
        engine.append(fork).await.unwrap();
        let forked = engine.head();
        let mut forget = learn("", "0");
        forget.set.clear();
        forget.remove.push("b".to_owned());
        engine.set_context(forget).await.unwrap();

        assert!(known(&engine, Some(before)).await.is_empty());
        for (head, expected) in [
            (heads[0], vec!["a=1"]),
            (heads[1], vec!["a=1", "b=2"]),
            (heads[2], vec!["a=3", "b=2"]),
            (forked, vec!["a=3", "b=2"]),
            (engine.head(), vec!["a=3"]),
        ] {
            assert_eq!(known(&engine, Some(head)).await, expected, "{head}");
        }
        assert_eq!(known(&engine, None).await, ["a=3"]);
    }
}
