//! Converts append requests to commands. Bodies are decoded for the rules, but the received bytes
//! are what is stored.

use std::num::NonZeroU32;

use prost::Message;
use uuid::Uuid;

use super::{
    from_proto::{self, InvalidField},
    guard::Caller,
    status::Refusal,
};
use treering_domain::{
    AppendCommand, BranchName, ConversationCreated, ConversationId, EventBody, EventKind,
    Expectation, ExpectedKey, ExpectedNewest, ExpectedRevision, Namespace, NewEvent, Revision,
};
use treering_engine::{AppendError, Engine, ReadError, derived_id, is_derived};
use treering_proto::{
    body::{self, EncodedBody},
    envelope::{self, EnvelopeFault},
    pb,
};

/// Parses an append request.
///
/// # Errors
/// The first malformed field, the first event that the caller may not append, or a conversation
/// that cannot be found.
pub(super) async fn command(
    engine: &Engine,
    caller: &Caller,
    request: pb::AppendRequest,
) -> Result<AppendCommand<EncodedBody>, Refusal> {
    let namespace = &caller.namespace;
    check_count(request.events.len(), engine.limits().batch_events_max)?;
    let idempotency_key = from_proto::idempotency_key(request.idempotency_key)?;
    let branch = from_proto::branch("branch", &request.branch)?;
    let mut names = Names::new(engine, namespace);
    let create = create_if_missing(request.create_if_missing)?;
    let default = match creates(request.events.first()) {
        true if create.is_some() => {
            let message = "set either create_if_missing or a conversation_created event, not both";
            return Err(InvalidField::new("create_if_missing", message).into());
        }
        _ if create.is_some() => {
            let created = create.as_ref().map(|(created, _)| created);
            let of = names.missing(
                &request.conversation_id,
                idempotency_key.as_deref(),
                created,
            );
            Some(of.await?)
        }
        true if request.conversation_id.is_empty() => {
            let key = idempotency_key.as_deref();
            Some(new_conversation(engine, namespace, key).await?)
        }
        creates if !request.conversation_id.is_empty() => {
            let text = &request.conversation_id;
            Some(names.find("conversation_id", text, creates).await?)
        }
        _ => None,
    };

    let mut expectations = Vec::new();
    let expected = from_proto::expected(request.expected);
    if expected != ExpectedRevision::Any {
        expectations.push(Expectation {
            conversation: default.ok_or_else(|| unnamed("conversation_id"))?,
            branch: branch.clone(),
            expected,
        });
    }
    for (index, other) in request.expectations.into_iter().enumerate() {
        expectations.push(names.expectation(index, other).await?);
    }
    from_proto::at_most_keys("expected_keys", request.expected_keys.len())?;
    let mut expected_keys = Vec::with_capacity(request.expected_keys.len());
    for (index, wanted) in request.expected_keys.into_iter().enumerate() {
        let of = (default, branch.as_ref());
        expected_keys.push(names.expected_key(index, wanted, of).await?);
    }
    let mut events = Vec::with_capacity(request.events.len());
    let first_actor = request.events.first().map(|event| event.actor.clone());
    for (index, event) in request.events.into_iter().enumerate() {
        let field = || format!("events[{index}].conversation_id");
        let conversation = if event.conversation_id.is_empty() {
            default.ok_or_else(|| in_event(index, unnamed(&field())))?
        } else {
            let creates = creates(Some(&event));
            names
                .find(&field(), &event.conversation_id, creates)
                .await?
        };
        let mut event = new_event(index, event, conversation)?;
        caller.sign(&mut event)?;
        let ours = default.is_none_or(|default| event.conversation == default);
        if event.branch.is_none() && ours {
            event.branch.clone_from(&branch);
        }
        events.push(event);
    }
    let create_if_missing = match (create, default) {
        (Some((mut created, body)), Some(id)) => {
            let is_named = is_derived(id) && !request.conversation_id.is_empty();
            let body = match is_named && created.source_id.is_empty() {
                true => {
                    created.source_id.clone_from(&request.conversation_id);
                    encoded(&EventBody::ConversationCreated(created))?
                }
                false => body,
            };
            let mut event = NewEvent::new(id, body);
            event.actor = first_actor.unwrap_or_default();
            caller.sign(&mut event)?;
            Some(Box::new(event))
        }
        _ => None,
    };
    Ok(AppendCommand {
        namespace: namespace.clone(),
        expectations,
        idempotency_key,
        key_life_seconds: NonZeroU32::new(request.key_life_seconds),
        events,
        create_if_missing,
        expected_keys,
        skip_known: request.skip_known,
    })
}

fn encoded(body: &EventBody) -> Result<EncodedBody, InvalidField> {
    let bytes = body::encode(body);
    EncodedBody::received(body.kind(), bytes)
        .map_err(|fault| InvalidField::new("create_if_missing", fault.to_string()))
}

/// Parses what a conversation is to be created with. Returns it with its bytes.
fn create_if_missing(
    created: Option<pb::ConversationCreated>,
) -> Result<Option<(ConversationCreated, EncodedBody)>, InvalidField> {
    let Some(created) = created else {
        return Ok(None);
    };
    let kind = EventKind::ConversationCreated;
    let body = EncodedBody::received(kind, created.encode_to_vec().into()).map_err(|fault| {
        let field = format!("create_if_missing.{}", fault.field);
        InvalidField::new(field, fault.to_string())
    })?;
    match body.body() {
        EventBody::ConversationCreated(created) => Ok(Some((created.clone(), body.clone()))),
        _ => Ok(None),
    }
}

fn check_count(actual: usize, max: usize) -> Result<(), AppendError> {
    if actual > max {
        return Err(AppendError::TooLarge {
            what: "the number of events",
            actual,
            max,
            limit: "batch_events_max",
        });
    }
    Ok(())
}

fn creates(event: Option<&pb::NewEvent>) -> bool {
    matches!(
        event.and_then(|event| event.body.as_ref()),
        Some(pb::new_event::Body::ConversationCreated(_))
    )
}

/// Returns an id for a conversation that names none. With an idempotency key it is derived from the
/// key, so that a retry gets the same id.
///
/// # Errors
/// When the store cannot be read.
pub(super) async fn new_conversation(
    engine: &Engine,
    namespace: &Namespace,
    key: Option<&str>,
) -> Result<ConversationId, Refusal> {
    let Some(key) = key else {
        return Ok(ConversationId::generate());
    };
    // Older versions derived ids that clients could also choose; keep one that exists.
    let name = format!("treering:{namespace}:{key}");
    let before = Uuid::new_v5(&Uuid::NAMESPACE_URL, name.as_bytes());
    match engine.resolve(namespace, &before.to_string()).await {
        Ok(id) => Ok(id),
        Err(ReadError::ConversationNotFound { .. }) => Ok(derived_id(namespace, "key", &[key])),
        Err(error) => Err(error.into()),
    }
}

/// Checks an id that a client chooses for a new conversation.
///
/// # Errors
/// [`InvalidField`] when it is a derived id (UUID version 8).
pub(super) fn chosen(field: &str, id: ConversationId) -> Result<ConversationId, InvalidField> {
    if is_derived(id) {
        let message = "is a UUID of version 8, which is reserved for derived ids; use version 4 or \
                       7, or leave it empty";
        return Err(InvalidField::new(field, message));
    }
    Ok(id)
}

fn unnamed(field: &str) -> InvalidField {
    let message = "is empty: only a batch that starts with conversation_created may omit it";
    InvalidField::new(field, message)
}

fn in_event(index: usize, mut fault: InvalidField) -> InvalidField {
    fault.event_index = Some(index);
    fault
}

/// Parses one event of a batch.
fn new_event(
    index: usize,
    event: pb::NewEvent,
    conversation: ConversationId,
) -> Result<NewEvent<EncodedBody>, InvalidField> {
    envelope::new_event_from_pb(event, conversation).map_err(|fault| {
        let field = match &fault {
            EnvelopeFault::MissingBody => "body".to_owned(),
            EnvelopeFault::Body(body) if body.field.is_empty() => body.kind.to_string(),
            EnvelopeFault::Body(body) => format!("{}.{}", body.kind, body.field),
            EnvelopeFault::NotUuid { field }
            | EnvelopeFault::Time { field }
            | EnvelopeFault::TooLong { field, .. } => (*field).to_owned(),
            EnvelopeFault::Branch(_) => "branch".to_owned(),
            EnvelopeFault::Tags(fault) => fault.field().to_owned(),
            EnvelopeFault::HashLength { .. } => "chain_hash".to_owned(),
            EnvelopeFault::Kind { .. } => "kind".to_owned(),
        };
        let message = match &fault {
            EnvelopeFault::Body(body) => body.problem.to_string(),
            other => other.to_string(),
        };
        in_event(
            index,
            InvalidField::new(format!("events[{index}].{field}"), message),
        )
    })
}

/// Finds conversations by UUID or source id. Caches the last one, since the events of a batch
/// mostly name the same.
struct Names<'a> {
    engine: &'a Engine,
    namespace: &'a Namespace,
    last: Option<NamedConversation>,
}

/// A conversation that a request has named.
struct NamedConversation {
    text: String,
    id: ConversationId,
    /// It exists, or its id may be chosen for a new one.
    is_checked: bool,
}

impl<'a> Names<'a> {
    fn new(engine: &'a Engine, namespace: &'a Namespace) -> Self {
        Self {
            engine,
            namespace,
            last: None,
        }
    }

    /// Finds a conversation. An unknown UUID is accepted: the batch may create it, and otherwise
    /// the append rules refuse it.
    async fn find(
        &mut self,
        field: &str,
        text: &str,
        creates: bool,
    ) -> Result<ConversationId, Refusal> {
        let known = |last: &&NamedConversation| last.text == text && (last.is_checked || !creates);
        if let Some(last) = self.last.as_ref().filter(known) {
            return Ok(last.id);
        }
        from_proto::check_short(field, text)?;
        let (id, is_checked) = match self.engine.resolve(self.namespace, text).await {
            Ok(id) => (id, true),
            Err(ReadError::ConversationNotFound { id }) => match text.parse() {
                Ok(id) if creates => (chosen(field, id)?, true),
                Ok(id) => (id, false),
                Err(_) if creates => {
                    let kind = EventKind::ConversationCreated;
                    let message = format!("must be a UUID, or empty, for {kind}");
                    return Err(InvalidField::new(field, message).into());
                }
                Err(_) => return Err(ReadError::ConversationNotFound { id }.into()),
            },
            Err(error) => return Err(error.into()),
        };
        let text = text.to_owned();
        self.last = Some(NamedConversation {
            text,
            id,
            is_checked,
        });
        Ok(id)
    }

    /// Returns the id of a conversation that is created if it does not exist.
    async fn missing(
        &mut self,
        text: &str,
        key: Option<&str>,
        created: Option<&ConversationCreated>,
    ) -> Result<ConversationId, Refusal> {
        let field = "conversation_id";
        if text.is_empty() {
            if key.is_none() {
                let message = "is empty: create_if_missing needs a UUID, a name, or an \
                               idempotency_key to derive the id from";
                return Err(InvalidField::new(field, message).into());
            }
            return new_conversation(self.engine, self.namespace, key).await;
        }
        from_proto::check_short(field, text)?;
        if text.parse::<ConversationId>().is_ok() {
            return self.find(field, text, true).await;
        }
        let (source, source_id) =
            created.map_or(("", ""), |of| (of.source.as_str(), of.source_id.as_str()));
        if !source_id.is_empty() && source_id != text {
            let message = "differs from conversation_id: leave it out";
            return Err(InvalidField::new("create_if_missing.source_id", message).into());
        }
        let there = self.engine.of_source(self.namespace, source, text).await?;
        let id = there.unwrap_or_else(|| derived_id(self.namespace, "source", &[source, text]));
        self.last = Some(NamedConversation {
            text: text.to_owned(),
            id,
            is_checked: true,
        });
        Ok(id)
    }

    async fn expectation(
        &mut self,
        index: usize,
        other: pb::BranchExpectation,
    ) -> Result<Expectation, Refusal> {
        let field = format!("expectations[{index}]");
        let id = format!("{field}.conversation_id");
        from_proto::required(&id, &other.conversation_id)?;
        Ok(Expectation {
            conversation: self.find(&id, &other.conversation_id, false).await?,
            branch: from_proto::branch(&format!("{field}.branch"), &other.branch)?,
            expected: from_proto::expected(other.expected),
        })
    }

    /// Parses an expected key; conversation and branch default to those of the request.
    async fn expected_key(
        &mut self,
        index: usize,
        wanted: pb::ExpectedKey,
        (default, branch): (Option<ConversationId>, Option<&BranchName>),
    ) -> Result<ExpectedKey, Refusal> {
        use pb::expected_key::Expected;
        let field = format!("expected_keys[{index}]");
        from_proto::required(&format!("{field}.key"), &wanted.key)?;
        let named = format!("{field}.conversation_id");
        let conversation = match wanted.conversation_id.as_str() {
            "" => default.ok_or_else(|| unnamed(&named))?,
            text => self.find(&named, text, false).await?,
        };
        let own = branch.filter(|_| default == Some(conversation));
        let branch = from_proto::branch(&format!("{field}.branch"), &wanted.branch)?;
        let expected = match wanted.expected {
            Some(Expected::Absent(true)) => ExpectedNewest::Absent,
            Some(Expected::Revision(revision)) => ExpectedNewest::Revision(Revision(revision)),
            Some(Expected::EventId(id)) => {
                let id = id.parse().map_err(|_| {
                    InvalidField::new(format!("{field}.event_id"), "must be a UUID")
                })?;
                ExpectedNewest::Event(id)
            }
            Some(Expected::Absent(false)) | None => {
                let message = "must be one of absent, revision and event_id";
                return Err(InvalidField::new(field, message).into());
            }
        };
        Ok(ExpectedKey {
            conversation,
            branch: branch.or_else(|| own.cloned()),
            key: wanted.key,
            expected,
        })
    }
}
