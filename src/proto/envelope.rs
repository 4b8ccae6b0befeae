//! Converts the envelopes `pb::Event` and `pb::NewEvent` to and from domain types.
//!
//! The body variants of both envelopes are bytes (see `build.rs`), so a body passes
//! through unchanged, including fields of newer versions.

use bytes::Bytes;
use prost_types::Timestamp;
use uuid::Uuid;

use super::{
    body::{BodyFault, Encode, EncodedBody},
    pb, tags,
};
use treering_domain::{
    BranchId, BranchName, ContentHash, ConversationId, EventBody, EventHeader, EventId, EventKind,
    NameError, Namespace, NewEvent, Position, Revision, ShardId, StoredEvent, Tags, TagsFault,
    TimestampMicros, event_kinds, limits::SHORT_TEXT_BYTES_MAX,
};

/// Why an envelope is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeFault {
    /// The event has no body.
    #[error("the event has no body; set one of its body fields")]
    MissingBody,
    /// The body is invalid.
    #[error(transparent)]
    Body(#[from] BodyFault),
    /// A field is not a UUID.
    #[error("{field} must be a UUID")]
    NotUuid {
        /// Which field.
        field: &'static str,
    },
    /// A time is outside the years 1 to 9999.
    #[error("{field} is not a time between the years 1 and 9999")]
    Time {
        /// Which field.
        field: &'static str,
    },
    /// A text is too long.
    #[error("{field} has {bytes} bytes; at most {max} are allowed")]
    TooLong {
        /// Which field.
        field: &'static str,
        /// Its length.
        bytes: usize,
        /// The bound.
        max: usize,
    },
    /// A branch name is not allowed.
    #[error(transparent)]
    Branch(#[from] NameError),
    /// The event key or the attributes exceed a limit.
    #[error(transparent)]
    Tags(#[from] TagsFault),
    /// The chain hash does not have 32 bytes.
    #[error("chain_hash must have 32 bytes, but has {bytes}")]
    HashLength {
        /// Its length.
        bytes: usize,
    },
    /// The number cannot be that of a kind.
    #[error("{kind} is not a valid number of a kind")]
    Kind {
        /// The number.
        kind: i32,
    },
}

macro_rules! arms {
    ($(
        $(#[$about:meta])*
        $number:literal $text:ident $name:ident
        $(($($payload:tt)*))? $({ $($fields:tt)* })?;
    )*) => {
        /// Returns the kind and the bytes of a new event's body.
        #[must_use]
        pub fn arm_of_new(body: pb::new_event::Body) -> (EventKind, Bytes) {
            match body {
                $(pb::new_event::Body::$name(bytes) => (EventKind::$name, bytes),)*
            }
        }

        /// Returns the body variant of a new event for these bytes of this kind.
        #[must_use]
        pub fn new_arm(kind: EventKind, body: Bytes) -> pb::new_event::Body {
            match kind {
                $(EventKind::$name => pb::new_event::Body::$name(body),)*
            }
        }

        /// Returns the kind and the bytes of a stored event's body.
        #[must_use]
        pub fn arm_of_event(body: pb::event::Body) -> (EventKind, Bytes) {
            match body {
                $(pb::event::Body::$name(bytes) => (EventKind::$name, bytes),)*
            }
        }

        /// Returns the body variant of a stored event; `None` if a newer version wrote it.
        #[must_use]
        pub fn event_arm(kind: u16, body: Bytes) -> Option<pb::event::Body> {
            Some(match EventKind::from_number(kind)? {
                $(EventKind::$name => pb::event::Body::$name(body),)*
            })
        }
    };
}

event_kinds!(arms);

/// Converts a time to protobuf.
#[must_use]
pub fn timestamp_to_pb(time: TimestampMicros) -> Timestamp {
    let nanos = time.0.rem_euclid(1_000_000) * 1_000;
    Timestamp {
        seconds: time.0.div_euclid(1_000_000),
        nanos: i32::try_from(nanos).unwrap_or_default(),
    }
}

/// Converts a protobuf time, rounded down to the microsecond. `None` if it is not a valid
/// protobuf timestamp (years 1 to 9999).
#[must_use]
pub fn timestamp_from_pb(time: &Timestamp) -> Option<TimestampMicros> {
    const FIRST_SECOND: i64 = -62_135_596_800;
    const LAST_SECOND: i64 = 253_402_300_799;
    let seconds = (FIRST_SECOND..=LAST_SECOND).contains(&time.seconds);
    let nanos = (0..1_000_000_000).contains(&time.nanos);
    (seconds && nanos)
        .then(|| TimestampMicros(time.seconds * 1_000_000 + i64::from(time.nanos) / 1_000))
}

/// Converts a log position to protobuf.
#[must_use]
pub fn position_to_pb(position: Position) -> pb::Position {
    pb::Position {
        shard: position.shard.0,
        offset: position.offset,
    }
}

/// Converts a protobuf log position.
#[must_use]
pub fn position_from_pb(position: &pb::Position) -> Position {
    Position {
        shard: ShardId(position.shard),
        offset: position.offset,
    }
}

/// Converts a stored event for a client. Without `with_body`, tags and type name are still set.
#[must_use]
pub fn event_to_pb(event: &StoredEvent, branch_name: Option<&str>, with_body: bool) -> pb::Event {
    let header = &event.header;
    let (tags, body) = tags::split(&event.body);
    pb::Event {
        id: header.id.to_string(),
        conversation_id: header.conversation.to_string(),
        branch_id: header.branch.0,
        branch: branch_name.unwrap_or_default().to_owned(),
        revision: header.revision.0,
        position: Some(position_to_pb(event.position)),
        recorded_at: Some(timestamp_to_pb(header.recorded_at)),
        occurred_at: header.occurred_at.map(timestamp_to_pb),
        actor: header.actor.clone(),
        causation_id: header
            .causation_id
            .map_or_else(String::new, |id| id.to_string()),
        correlation_id: header.correlation_id.clone(),
        kind: header.kind.into(),
        chain_hash: Bytes::copy_from_slice(&event.chain_hash.get().0),
        erased: event.erased,
        key: tags.key,
        attributes: tags.attributes,
        type_name: tags::type_name(header.kind, &body),
        body: if with_body {
            event_arm(header.kind, body)
        } else {
            None
        },
    }
}

/// Converts an event that a server sent. The message does not contain the namespace:
/// pass that of the request. An event without a body (headers only, or of a kind that
/// this version does not know) gets an empty one.
///
/// # Errors
/// [`EnvelopeFault`] names the field that is wrong.
pub fn event_from_pb(event: pb::Event, namespace: Namespace) -> Result<StoredEvent, EnvelopeFault> {
    let number = u16::try_from(event.kind);
    let number = number.map_err(|_| EnvelopeFault::Kind { kind: event.kind })?;
    let (kind, body) = match event.body.map(arm_of_event) {
        Some((kind, body)) => (kind.number(), body),
        None => (number, Bytes::new()),
    };
    let sent = Tags {
        key: event.key,
        attributes: event.attributes,
    };
    let chain_hash: Result<[u8; 32], _> = event.chain_hash.as_ref().try_into();
    let bytes = event.chain_hash.len();
    Ok(StoredEvent {
        header: EventHeader {
            id: EventId(uuid("id", &event.id)?),
            namespace,
            conversation: ConversationId(uuid("conversation_id", &event.conversation_id)?),
            branch: BranchId(event.branch_id),
            revision: Revision(event.revision),
            kind,
            recorded_at: time("recorded_at", event.recorded_at.as_ref())?.unwrap_or_default(),
            occurred_at: time("occurred_at", event.occurred_at.as_ref())?,
            actor: event.actor,
            causation_id: id_from_pb("causation_id", &event.causation_id)?,
            correlation_id: event.correlation_id,
        },
        position: event
            .position
            .as_ref()
            .map(position_from_pb)
            .unwrap_or_default(),
        chain_hash: chain_hash
            .map(|bytes| ContentHash(bytes).into())
            .map_err(|_| EnvelopeFault::HashLength { bytes })?,
        body: tags::join(&sent, &body),
        erased: event.erased,
    })
}

/// Converts an event for sending. If the body has its received bytes, they are sent unchanged.
#[must_use]
pub fn new_event_to_pb<B: Encode>(event: &NewEvent<B>) -> pb::NewEvent {
    let body: &EventBody = event.body.borrow();
    let arm = new_arm(body.kind(), event.body.to_bytes());
    pb::NewEvent {
        conversation_id: event.conversation.to_string(),
        branch: branch_to_pb(event.branch.as_ref()),
        occurred_at: event.occurred_at.map(timestamp_to_pb),
        causation_id: event
            .causation_id
            .map_or_else(String::new, |id| id.to_string()),
        correlation_id: event.correlation_id.clone(),
        actor: event.actor.clone(),
        key: event.tags.key.clone(),
        attributes: event.tags.attributes.clone(),
        id: event.id.map_or_else(String::new, |id| id.to_string()),
        idempotency_key: event.idempotency_key.clone().unwrap_or_default(),
        body: Some(arm),
    }
}

/// Converts an event that a client sent. The body is decoded, and its bytes are kept.
/// `conversation_id` may be empty or a source id; `conversation` is what the caller resolved it to.
/// An empty branch becomes `None`.
///
/// # Errors
/// [`EnvelopeFault`] names the field that is wrong.
pub fn new_event_from_pb(
    event: pb::NewEvent,
    conversation: ConversationId,
) -> Result<NewEvent<EncodedBody>, EnvelopeFault> {
    let (kind, bytes) = arm_of_new(event.body.ok_or(EnvelopeFault::MissingBody)?);
    let tags = Tags {
        key: event.key,
        attributes: event.attributes,
    };
    tags.check()?;
    Ok(NewEvent {
        conversation,
        branch: branch_from_pb(&event.branch)?,
        occurred_at: time("occurred_at", event.occurred_at.as_ref())?,
        actor: bounded("actor", event.actor)?,
        causation_id: id_from_pb("causation_id", &event.causation_id)?,
        correlation_id: bounded("correlation_id", event.correlation_id)?,
        id: id_from_pb("id", &event.id)?,
        idempotency_key: Some(event.idempotency_key).filter(|key| !key.is_empty()),
        tags,
        body: EncodedBody::received(kind, bytes)?,
    })
}

/// Parses a branch name. Empty text becomes `None` (the active branch).
///
/// # Errors
/// [`NameError`] if the name is not allowed.
pub fn branch_from_pb(name: &str) -> Result<Option<BranchName>, NameError> {
    (!name.is_empty())
        .then(|| BranchName::new(name))
        .transpose()
}

/// Returns a branch name as text; `None` becomes empty text.
#[must_use]
pub(crate) fn branch_to_pb(name: Option<&BranchName>) -> String {
    name.map_or_else(String::new, |name| name.as_str().to_owned())
}

fn uuid(field: &'static str, text: &str) -> Result<Uuid, EnvelopeFault> {
    Uuid::try_parse(text).map_err(|_| EnvelopeFault::NotUuid { field })
}

fn id_from_pb(field: &'static str, text: &str) -> Result<Option<EventId>, EnvelopeFault> {
    if text.is_empty() {
        return Ok(None);
    }
    uuid(field, text).map(EventId).map(Some)
}

fn time(
    field: &'static str,
    time: Option<&Timestamp>,
) -> Result<Option<TimestampMicros>, EnvelopeFault> {
    let read = |time| timestamp_from_pb(time).ok_or(EnvelopeFault::Time { field });
    time.map(read).transpose()
}

fn bounded(field: &'static str, text: String) -> Result<String, EnvelopeFault> {
    if text.len() > SHORT_TEXT_BYTES_MAX {
        return Err(EnvelopeFault::TooLong {
            field,
            bytes: text.len(),
            max: SHORT_TEXT_BYTES_MAX,
        });
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::{
        Message,
        encoding::{WireType, encode_key, encode_varint},
    };

    use super::*;
    use treering_arbitrary::event_body;
    use treering_domain::{EventBody, MessageAppended, Role};

    fn stored(kind: u16, body: Bytes) -> StoredEvent {
        StoredEvent {
            header: EventHeader {
                id: EventId::generate(),
                namespace: Namespace::default(),
                conversation: ConversationId::generate(),
                branch: BranchId(3),
                revision: Revision(17),
                kind,
                recorded_at: TimestampMicros(1_700_000_000_123_456),
                occurred_at: Some(TimestampMicros(-1)),
                actor: "someone".into(),
                causation_id: Some(EventId::generate()),
                correlation_id: "trace".into(),
            },
            position: Position::local(99),
            chain_hash: ContentHash([7; 32]).into(),
            body,
            erased: false,
        }
    }

    /// Encodes a field by hand, as a client of another version would.
    fn field(tag: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode_key(tag, WireType::LengthDelimited, &mut bytes);
        encode_varint(payload.len() as u64, &mut bytes);
        bytes.extend_from_slice(payload);
        bytes
    }

    // Other languages use messages for the body variants, our generated code uses bytes.
    // Both must be equal on the wire, and the field number must be that of the kind.
    #[test]
    fn body_variants_are_messages_on_the_wire() {
        let message = pb::MessageAppended {
            role: pb::Role::User.into(),
            author: "ada".into(),
            ..Default::default()
        };
        let wire = field(
            u32::from(EventKind::MessageAppended.number()),
            &message.encode_to_vec(),
        );
        let event = pb::NewEvent::decode(wire.as_slice()).unwrap();
        assert_eq!(event.encode_to_vec(), wire);
        let event = new_event_from_pb(event, ConversationId::generate()).unwrap();
        let expected = MessageAppended {
            author: "ada".into(),
            ..MessageAppended::new(Role::User, Vec::new())
        };
        assert_eq!(*event.body.body(), EventBody::MessageAppended(expected));
    }

    // Fields of a newer client must come back to newer clients, although this version
    // does not know them.
    #[test]
    fn unknown_fields_round_trip() {
        let mut body = pb::BranchArchived {
            reason: "done".into(),
        }
        .encode_to_vec();
        body.extend(field(12_345, b"from the future"));
        let kind = EventKind::BranchArchived;
        let wire = field(u32::from(kind.number()), &body);

        let sent = pb::NewEvent::decode(wire.as_slice()).unwrap();
        let new = new_event_from_pb(sent, ConversationId::generate()).unwrap();
        let bytes = new.body.bytes().clone();
        let event = event_to_pb(&stored(kind.number(), bytes), None, true);
        let received = pb::Event::decode(event.encode_to_vec().as_slice()).unwrap();
        let (_, received) = arm_of_event(received.body.unwrap());
        assert_eq!(received, body);
        let forwarded = new_event_to_pb(&new);
        assert_eq!(arm_of_new(forwarded.body.unwrap()), (kind, body.into()));
    }

    // An event of a newer kind must still be listed with its header.
    #[test]
    fn event_of_a_newer_kind_keeps_its_header() {
        let event = stored(999, Bytes::from_static(b"?"));
        let sent = event_to_pb(&event, Some("main"), true);
        assert_eq!((sent.kind, sent.body.is_none()), (999, true));
        let back = event_from_pb(sent, Namespace::default()).unwrap();
        assert_eq!(back.header, event.header);
    }

    // Times before 1970 and at the ends of the range must not overflow.
    #[test]
    fn timestamps_keep_microseconds() {
        for micros in [0, -1, 1, 999_999, -1_000_001, 253_402_300_799_999_999] {
            let time = TimestampMicros(micros);
            assert_eq!(timestamp_from_pb(&timestamp_to_pb(time)), Some(time));
        }
        let nanos = |nanos| Timestamp { seconds: 0, nanos };
        assert_eq!(timestamp_from_pb(&nanos(-1)), None);
        assert_eq!(timestamp_from_pb(&nanos(1_000_000_000)), None);
        let seconds = Timestamp {
            seconds: i64::MAX,
            nanos: 0,
        };
        assert_eq!(timestamp_from_pb(&seconds), None);
    }

    // An event without a body and an invalid id must be errors that name the field.
    #[test]
    fn invalid_envelope_names_the_field() {
        let id = ConversationId::generate();
        let empty = pb::NewEvent::default();
        assert_eq!(
            new_event_from_pb(empty, id),
            Err(EnvelopeFault::MissingBody)
        );
        let body = Some(new_arm(EventKind::BranchActivated, Bytes::new()));
        let event = pb::NewEvent {
            causation_id: "x".into(),
            body,
            ..Default::default()
        };
        let field = "causation_id";
        assert_eq!(
            new_event_from_pb(event, id),
            Err(EnvelopeFault::NotUuid { field })
        );
    }

    proptest! {
        // Sending, storing and reading must not change an event.
        #[test]
        fn envelopes_round_trip(body in event_body()) {
            let mut new = NewEvent::new(ConversationId::generate(), body);
            new.branch = Some(BranchName::default());
            new.occurred_at = Some(TimestampMicros(5));
            new.actor = "me".into();
            new.tags.key = "checkpoint/7".into();
            new.tags.attributes.insert("step".into(), "7".into());
            let sent = new_event_to_pb(&new);
            let sent = pb::NewEvent::decode(sent.encode_to_vec().as_slice()).unwrap();
            let taken = new_event_from_pb(sent, new.conversation).unwrap();
            prop_assert_eq!(taken.body.body(), &new.body);
            prop_assert_eq!(&taken.branch, &new.branch);
            prop_assert_eq!(taken.occurred_at, new.occurred_at);
            prop_assert_eq!(&taken.tags, &new.tags);

            let body = tags::join(&new.tags, &new.body.to_bytes());
            let event = stored(new.body.kind().number(), body);
            let sent = event_to_pb(&event, None, true).encode_to_vec();
            let sent = pb::Event::decode(sent.as_slice()).unwrap();
            prop_assert_eq!(event_from_pb(sent, Namespace::default()).unwrap(), event);
        }
    }
}
