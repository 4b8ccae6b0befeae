//! Resolves the conversations that a parsed append request names.

use uuid::Uuid;

use super::parse::{Named, ParsedAppend, ParsedCreation};
use crate::{
    from_proto::{self, InvalidField},
    status::Refusal,
};
use treering_domain::{
    AppendCommand, BranchName, ConversationCreated, ConversationId, EventBody, EventKind,
    Expectation, ExpectedKey, ExpectedRevision, Namespace, NewEvent,
};
use treering_engine::{Engine, ReadError, derived_id, is_derived};
use treering_proto::body::{self, EncodedBody};

/// Resolves all names of a request.
///
/// # Errors
/// The first conversation that cannot be found, or whose id is reserved.
pub(super) async fn resolve(
    engine: &Engine,
    namespace: &Namespace,
    parsed: ParsedAppend,
) -> Result<AppendCommand<EncodedBody>, Refusal> {
    let mut names = Names::new(engine, namespace);
    let default = names.default_conversation(&parsed).await?;
    let own = OwnBranch {
        conversation: default,
        branch: parsed.branch,
    };
    let mut expectations = Vec::new();
    if parsed.expected != ExpectedRevision::Any {
        expectations.push(Expectation {
            conversation: own.conversation("conversation_id")?,
            branch: own.branch.clone(),
            expected: parsed.expected,
        });
    }
    for (
        index,
        Named {
            conversation,
            value,
        },
    ) in parsed.expectations.into_iter().enumerate()
    {
        let field = || format!("expectations[{index}].conversation_id");
        let conversation = names.find(field, &conversation, false).await?;
        expectations.push(Expectation {
            conversation,
            ..value
        });
    }
    let first_actor = parsed.events.first().map(|first| first.value.actor.clone());
    let expected_keys = names.expected_keys(parsed.expected_keys, &own).await?;
    let events = names.events(parsed.events, &own).await?;
    let create_if_missing = match (parsed.create_if_missing, default) {
        (Some(creation), Some(id)) => {
            let body = creation_body(creation, id, &parsed.conversation)?;
            let mut event = NewEvent::new(id, body);
            event.actor = first_actor.unwrap_or_default();
            Some(Box::new(event))
        }
        _ => None,
    };
    Ok(AppendCommand {
        namespace: namespace.clone(),
        expectations,
        idempotency_key: parsed.idempotency_key,
        key_life_seconds: parsed.key_life_seconds,
        events,
        create_if_missing,
        expected_keys,
        skip_known: parsed.skip_known,
    })
}

/// Returns the body that creates a missing conversation. If the request names it by a source id,
/// the body gets that source id.
fn creation_body(
    creation: ParsedCreation,
    id: ConversationId,
    name: &str,
) -> Result<EncodedBody, InvalidField> {
    let ParsedCreation { mut created, body } = creation;
    if !is_derived(id) || name.is_empty() || !created.source_id.is_empty() {
        return Ok(body);
    }
    name.clone_into(&mut created.source_id);
    let named = EventBody::ConversationCreated(created);
    EncodedBody::received(named.kind(), body::encode(&named))
        .map_err(|fault| InvalidField::new("create_if_missing", fault.to_string()))
}

/// Returns an id for a new conversation. With an idempotency key it is derived from the key, so
/// that a retry gets the same id.
///
/// # Errors
/// When the store cannot be read.
pub(crate) async fn new_conversation(
    engine: &Engine,
    namespace: &Namespace,
    key: Option<&str>,
) -> Result<ConversationId, Refusal> {
    let Some(key) = key else {
        return Ok(engine.place(ConversationId::generate()));
    };
    // Older versions derived ids that clients could also choose; keep one that exists.
    let name = format!("treering:{namespace}:{key}");
    let before = Uuid::new_v5(&Uuid::NAMESPACE_URL, name.as_bytes());
    match engine.resolve(namespace, &before.to_string()).await {
        Ok(id) => Ok(id),
        Err(ReadError::ConversationNotFound { .. }) => {
            Ok(engine.place(derived_id(namespace, "key", &[key])))
        }
        Err(error) => Err(error.into()),
    }
}

/// Checks an id that a client chooses for a new conversation.
///
/// # Errors
/// [`InvalidField`] when it is a derived id (UUID version 8).
pub(crate) fn chosen(field: &str, id: ConversationId) -> Result<ConversationId, InvalidField> {
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

/// Finds conversations by UUID or source id. Caches the last one, since the events of a batch
/// mostly name the same.
struct Names<'a> {
    engine: &'a Engine,
    namespace: &'a Namespace,
    last: Option<NamedConversation>,
}

/// The conversation and branch of events that name none.
struct OwnBranch {
    conversation: Option<ConversationId>,
    branch: Option<BranchName>,
}

impl OwnBranch {
    fn conversation(&self, field: &str) -> Result<ConversationId, InvalidField> {
        self.conversation.ok_or_else(|| unnamed(field))
    }
}

/// A conversation that a request has named.
struct NamedConversation {
    text: String,
    id: ConversationId,
    /// It exists, or its id is allowed for a new one.
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

    /// Resolves the conversation of the events that name none. Returns `None` if the request does
    /// not name or create a conversation either.
    async fn default_conversation(
        &mut self,
        parsed: &ParsedAppend,
    ) -> Result<Option<ConversationId>, Refusal> {
        let (name, key) = (&parsed.conversation, parsed.idempotency_key.as_deref());
        if let Some(creation) = &parsed.create_if_missing {
            return self.missing(name, key, &creation.created).await.map(Some);
        }
        match (name.is_empty(), parsed.starts_conversation()) {
            (false, creates) => {
                let field = || "conversation_id".to_owned();
                self.find(field, name, creates).await.map(Some)
            }
            (true, true) => new_conversation(self.engine, self.namespace, key)
                .await
                .map(Some),
            (true, false) => Ok(None),
        }
    }

    async fn expected_keys(
        &mut self,
        keys: Vec<Named<ExpectedKey>>,
        own: &OwnBranch,
    ) -> Result<Vec<ExpectedKey>, Refusal> {
        let mut resolved = Vec::with_capacity(keys.len());
        for (
            index,
            Named {
                conversation,
                value,
            },
        ) in keys.into_iter().enumerate()
        {
            let mut key = value;
            let field = || format!("expected_keys[{index}].conversation_id");
            key.conversation = match conversation.as_str() {
                "" => own.conversation(&field())?,
                name => self.find(field, name, false).await?,
            };
            if key.branch.is_none() && own.conversation == Some(key.conversation) {
                key.branch.clone_from(&own.branch);
            }
            resolved.push(key);
        }
        Ok(resolved)
    }

    async fn events(
        &mut self,
        events: Vec<Named<NewEvent<EncodedBody>>>,
        own: &OwnBranch,
    ) -> Result<Vec<NewEvent<EncodedBody>>, Refusal> {
        let mut resolved = Vec::with_capacity(events.len());
        for (index, named) in events.into_iter().enumerate() {
            let field = || format!("events[{index}].conversation_id");
            let conversation = match named.conversation.as_str() {
                "" => {
                    let own = own.conversation(&field());
                    own.map_err(|fault| fault.in_event(index))?
                }
                name => self.find(field, name, named.creates()).await?,
            };
            let mut event = named.value;
            event.conversation = conversation;
            if event.branch.is_none() && own.conversation.is_none_or(|own| own == conversation) {
                event.branch.clone_from(&own.branch);
            }
            resolved.push(event);
        }
        Ok(resolved)
    }

    /// Finds a conversation. An unknown UUID is accepted: the batch may create it, and otherwise
    /// the append rules refuse it.
    async fn find(
        &mut self,
        field: impl Fn() -> String,
        text: &str,
        creates: bool,
    ) -> Result<ConversationId, Refusal> {
        let known = |last: &&NamedConversation| last.text == text && (last.is_checked || !creates);
        if let Some(last) = self.last.as_ref().filter(known) {
            return Ok(last.id);
        }
        from_proto::check_short(&field(), text)?;
        let (id, is_checked) = match self.engine.resolve(self.namespace, text).await {
            Ok(id) => (id, true),
            Err(ReadError::ConversationNotFound { id }) => match text.parse() {
                Ok(id) if creates => (chosen(&field(), id)?, true),
                Ok(id) => (id, false),
                Err(_) if creates => {
                    let kind = EventKind::ConversationCreated;
                    let message = format!("must be a UUID, or empty, for {kind}");
                    return Err(InvalidField::new(field(), message).into());
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

    /// Returns the id of a conversation that the append creates if it does not exist.
    async fn missing(
        &mut self,
        text: &str,
        key: Option<&str>,
        created: &ConversationCreated,
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
            return self.find(|| field.to_owned(), text, true).await;
        }
        let (source, source_id) = (created.source.as_str(), created.source_id.as_str());
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
}
