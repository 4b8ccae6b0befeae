//! Parses an append request and checks it without the store. Bodies are decoded for the append
//! rules, but the received bytes are stored.

use std::num::NonZeroU32;

use prost::Message;
use uuid::Uuid;

use crate::{
    from_proto::{self, InvalidField},
    status::Refusal,
};
use treering_domain::{
    BranchName, ConversationCreated, ConversationId, EventBody, EventKind, Expectation,
    ExpectedKey, ExpectedNewest, ExpectedRevision, NewEvent, Revision,
};
use treering_engine::AppendError;
use treering_proto::{
    body::EncodedBody,
    envelope::{self, EnvelopeFault},
    pb,
};

/// An append request whose conversations are still names.
pub(super) struct ParsedAppend {
    /// The request's conversation: an id, a source id, or empty.
    pub(super) conversation: String,
    pub(super) branch: Option<BranchName>,
    pub(super) idempotency_key: Option<String>,
    pub(super) key_life_seconds: Option<NonZeroU32>,
    /// The expected revision of the request's own branch.
    pub(super) expected: ExpectedRevision,
    pub(super) expectations: Vec<Named<Expectation>>,
    pub(super) expected_keys: Vec<Named<ExpectedKey>>,
    pub(super) create_if_missing: Option<ParsedCreation>,
    pub(super) events: Vec<Named<NewEvent<EncodedBody>>>,
    pub(super) skip_known: bool,
}

/// A value with the name of its conversation, as in the request. `value.conversation` is the nil
/// UUID until the name is resolved.
pub(super) struct Named<T> {
    /// An id, a source id, or empty.
    pub(super) conversation: String,
    pub(super) value: T,
}

/// The body that creates a conversation, decoded and as received.
pub(super) struct ParsedCreation {
    pub(super) created: ConversationCreated,
    pub(super) body: EncodedBody,
}

const UNRESOLVED: ConversationId = ConversationId(Uuid::nil());

impl ParsedAppend {
    /// # Errors
    /// The first malformed field, or more than `events_max` events.
    pub(super) fn parse(request: pb::AppendRequest, events_max: usize) -> Result<Self, Refusal> {
        check_count(request.events.len(), events_max)?;
        let idempotency_key = from_proto::idempotency_key(request.idempotency_key)?;
        let branch = from_proto::branch("branch", &request.branch)?;
        let create_if_missing = request.create_if_missing.map(parse_creation).transpose()?;
        let expectations = request.expectations.into_iter().enumerate();
        let expectations = expectations.map(|(index, other)| parse_expectation(index, other));
        from_proto::at_most_keys("expected_keys", request.expected_keys.len())?;
        let expected_keys = request.expected_keys.into_iter().enumerate();
        let expected_keys = expected_keys.map(|(index, wanted)| parse_expected_key(index, wanted));
        let events = request.events.into_iter().enumerate();
        let events = events.map(|(index, event)| parse_event(index, event));
        let parsed = Self {
            conversation: request.conversation_id,
            branch,
            idempotency_key,
            key_life_seconds: NonZeroU32::new(request.key_life_seconds),
            expected: from_proto::expected(request.expected),
            expectations: expectations.collect::<Result<_, _>>()?,
            expected_keys: expected_keys.collect::<Result<_, _>>()?,
            create_if_missing,
            events: events.collect::<Result<_, _>>()?,
            skip_known: request.skip_known,
        };
        if parsed.create_if_missing.is_some() && parsed.starts_conversation() {
            let message = "set either create_if_missing or a conversation_created event, not both";
            return Err(InvalidField::new("create_if_missing", message).into());
        }
        Ok(parsed)
    }

    /// Returns true if the first event creates the conversation.
    pub(super) fn starts_conversation(&self) -> bool {
        self.events.first().is_some_and(|first| first.creates())
    }
}

impl Named<NewEvent<EncodedBody>> {
    /// Returns true if the event creates its conversation.
    pub(super) fn creates(&self) -> bool {
        self.value.body.body().kind() == EventKind::ConversationCreated
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

fn parse_creation(created: pb::ConversationCreated) -> Result<ParsedCreation, InvalidField> {
    let kind = EventKind::ConversationCreated;
    let body = EncodedBody::received(kind, created.encode_to_vec().into()).map_err(|fault| {
        let field = format!("create_if_missing.{}", fault.field);
        InvalidField::new(field, fault.to_string())
    })?;
    match body.body() {
        EventBody::ConversationCreated(created) => Ok(ParsedCreation {
            created: created.clone(),
            body,
        }),
        _ => Err(InvalidField::new(
            "create_if_missing",
            "is of the wrong kind",
        )),
    }
}

fn parse_expectation(
    index: usize,
    other: pb::BranchExpectation,
) -> Result<Named<Expectation>, InvalidField> {
    let field = format!("expectations[{index}]");
    let named = format!("{field}.conversation_id");
    from_proto::required(&named, &other.conversation_id)?;
    Ok(Named {
        conversation: other.conversation_id,
        value: Expectation {
            conversation: UNRESOLVED,
            branch: from_proto::branch(&format!("{field}.branch"), &other.branch)?,
            expected: from_proto::expected(other.expected),
        },
    })
}

fn parse_expected_key(
    index: usize,
    wanted: pb::ExpectedKey,
) -> Result<Named<ExpectedKey>, InvalidField> {
    use pb::expected_key::Expected;
    let field = format!("expected_keys[{index}]");
    from_proto::required(&format!("{field}.key"), &wanted.key)?;
    let branch = from_proto::branch(&format!("{field}.branch"), &wanted.branch)?;
    let expected = match wanted.expected {
        Some(Expected::Absent(true)) => ExpectedNewest::Absent,
        Some(Expected::Revision(revision)) => ExpectedNewest::Revision(Revision(revision)),
        Some(Expected::EventId(id)) => {
            let not_uuid = |_| InvalidField::new(format!("{field}.event_id"), "must be a UUID");
            ExpectedNewest::Event(id.parse().map_err(not_uuid)?)
        }
        Some(Expected::Absent(false)) | None => {
            let message = "must be one of absent, revision and event_id";
            return Err(InvalidField::new(field, message));
        }
    };
    Ok(Named {
        conversation: wanted.conversation_id,
        value: ExpectedKey {
            conversation: UNRESOLVED,
            branch,
            key: wanted.key,
            expected,
        },
    })
}

fn parse_event(
    index: usize,
    mut event: pb::NewEvent,
) -> Result<Named<NewEvent<EncodedBody>>, InvalidField> {
    let conversation = std::mem::take(&mut event.conversation_id);
    let value = envelope::new_event_from_pb(event, UNRESOLVED).map_err(|fault| {
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
        InvalidField::new(format!("events[{index}].{field}"), message).in_event(index)
    })?;
    Ok(Named {
        conversation,
        value,
    })
}
