//! Converts filters and look-ups of events from and to messages.

use std::collections::HashMap;

use super::{
    bounds::{FILTER_TYPES_MAX, LATEST_CONVERSATIONS_MAX, LOOKUP_BYTES_MAX, LOOKUPS_MAX},
    call::{Call, ServiceContext},
    from_proto::{self, InvalidField},
    status::Refusal,
    to_proto,
};
use treering_domain::{ConversationId, EventId, EventRef, Revision, check_key};
use treering_engine::{
    EventName, EventSelector, FoundEvent, LatestEvent, LatestQuery, ReadError, ReadFilter, ReadStop,
};
use treering_proto::pb;

/// Parses the filter of a read.
pub(super) fn filter(filter: &pb::EventFilter) -> Result<ReadFilter, InvalidField> {
    key("filter.key", &filter.key)?;
    key("filter.key_prefix", &filter.key_prefix)?;
    from_proto::at_most_entries("filter.types", filter.types.len(), FILTER_TYPES_MAX)?;
    check_names("filter.types", &filter.types)?;
    from_proto::check_short("filter.actor", &filter.actor)?;
    from_proto::check_short("filter.correlation_id", &filter.correlation_id)?;
    let recorded_from = filter.recorded_from.as_ref();
    Ok(ReadFilter {
        key: (!filter.key.is_empty()).then(|| filter.key.clone()),
        key_prefix: filter.key_prefix.clone(),
        types: filter.types.clone(),
        actor: filter.actor.clone(),
        correlation_id: filter.correlation_id.clone(),
        attributes: filter.attributes.clone(),
        recorded_from: from_proto::time("filter.recorded_from", recorded_from)?,
        recorded_to: from_proto::time("filter.recorded_to", filter.recorded_to.as_ref())?,
    })
}

fn key(field: &str, text: &str) -> Result<(), InvalidField> {
    check_key(text).map_err(|fault| InvalidField::new(field, fault.to_string()))
}

/// Checks that texts are not empty and within the limit of names.
fn check_names(field: &str, texts: &[String]) -> Result<(), InvalidField> {
    for (index, text) in texts.iter().enumerate() {
        let field = format!("{field}[{index}]");
        from_proto::required(&field, text)?;
        from_proto::check_short(&field, text)?;
    }
    Ok(())
}

/// Parses where a read continues; `None` when it is unset.
pub(super) fn go_on_at(stop: &pb::ReadStop, log: bool) -> Result<Option<ReadStop>, InvalidField> {
    use pb::read_stop::At;
    let stop = match &stop.at {
        None => return Ok(None),
        Some(At::Offset(offset)) if log => ReadStop::Offset(*offset),
        Some(At::Event(place)) if !log => {
            let id = place.conversation_id.parse();
            let id = id.map_err(|_| InvalidField::new("go_on_at.event", "must be a UUID"))?;
            ReadStop::Event(EventRef {
                conversation: id,
                revision: Revision(place.revision),
            })
        }
        Some(_) => {
            let message = "is from another read: pass the value of this read's own answer";
            return Err(InvalidField::new("go_on_at", message));
        }
    };
    Ok(Some(stop))
}

/// Converts where a read stopped.
pub(super) fn read_stop(stop: ReadStop) -> pb::ReadStop {
    use pb::read_stop::At;
    pb::ReadStop {
        at: Some(match stop {
            ReadStop::Offset(offset) => At::Offset(offset),
            ReadStop::Event(at) => At::Event(pb::EventPlace {
                conversation_id: at.conversation.to_string(),
                revision: at.revision.0,
            }),
        }),
    }
}

/// Parses a request for newest events.
pub(super) async fn latest(
    shared: &ServiceContext,
    call: &Call,
    request: pb::LatestRequest,
) -> Result<LatestQuery, Refusal> {
    let conversations = request.conversations.len();
    from_proto::at_most_entries("conversations", conversations, LATEST_CONVERSATIONS_MAX)?;
    if conversations == 0 {
        return Err(InvalidField::new("conversations", "is required").into());
    }
    if request.as_of_revision != 0 && conversations > 1 {
        let message = "can be set only for one conversation";
        return Err(InvalidField::new("as_of_revision", message).into());
    }
    let wanted = wanted(&request)?;
    let lookups = conversations.saturating_mul(wanted.len());
    if lookups > LOOKUPS_MAX {
        let message = format!(
            "{conversations} conversations with {} each are {lookups} lookups; the maximum is \
             {LOOKUPS_MAX}",
            wanted.len()
        );
        return Err(InvalidField::new("conversations", message).into());
    }
    let mut ids = Vec::with_capacity(conversations);
    for (index, id) in request.conversations.iter().enumerate() {
        let field = format!("conversations[{index}]");
        ids.push(shared.conversation(call, &field, id).await?);
    }
    Ok(LatestQuery {
        namespace: call.namespace.clone(),
        conversations: ids,
        branch: from_proto::branch("branch", &request.branch)?,
        wanted,
        as_of: from_proto::revision(request.as_of_revision),
        headers_only: request.headers_only,
        bytes_max: LOOKUP_BYTES_MAX,
    })
}

fn wanted(request: &pb::LatestRequest) -> Result<Vec<EventSelector>, InvalidField> {
    for (index, text) in request.keys.iter().enumerate() {
        let field = format!("keys[{index}]");
        from_proto::required(&field, text)?;
        key(&field, text)?;
    }
    check_names("types", &request.types)?;
    let kinds = from_proto::kinds(&request.kinds)?;
    let keys = request.keys.iter().cloned().map(EventSelector::Key);
    let types = request.types.iter().cloned().map(EventSelector::Type);
    let kinds = kinds.into_iter().map(EventSelector::Kind);
    let wanted: Vec<_> = keys.chain(types).chain(kinds).collect();
    if wanted.is_empty() {
        let message = "no keys, types or kinds are set: set at least one";
        return Err(InvalidField::new("keys", message));
    }
    Ok(wanted)
}

/// Converts the newest event with a key, type or kind.
pub(super) fn latest_event(found: LatestEvent, headers_only: bool) -> pb::LatestEvent {
    use pb::latest_event::Of;
    let got = got_event(found.got, headers_only);
    pb::LatestEvent {
        conversation_id: found.conversation.to_string(),
        of: Some(match found.wanted {
            EventSelector::Key(key) => Of::Key(key),
            EventSelector::Type(type_name) => Of::Type(type_name),
            EventSelector::Kind(kind) => Of::Kind(kind.number().into()),
        }),
        event: got.event,
        body_left_out: got.body_left_out,
    }
}

/// Converts an event that was looked up.
pub(super) fn got_event(got: FoundEvent, headers_only: bool) -> pb::GotEvent {
    let headers_only = headers_only || got.body_left_out;
    let event = got.event.as_ref();
    pb::GotEvent {
        event: event.map(|named| to_proto::event(named, headers_only)),
        body_left_out: got.body_left_out,
    }
}

/// Checks the name of an event.
pub(super) fn check_name(index: usize, name: &pb::EventName) -> Result<(), InvalidField> {
    use pb::event_name::By;
    let field = |name: &str| format!("events[{index}].{name}");
    match &name.by {
        None => {
            let message = "names no event: set an id or a place";
            Err(InvalidField::new(format!("events[{index}]"), message))
        }
        Some(By::EventId(id)) => match id.parse::<EventId>() {
            Ok(_) => Ok(()),
            Err(_) => Err(InvalidField::new(field("event_id"), "must be a UUID")),
        },
        Some(By::Place(place)) => {
            let field = field("place.conversation_id");
            from_proto::required(&field, &place.conversation_id)?;
            from_proto::check_short(&field, &place.conversation_id)
        }
    }
}

/// Parses event names. `None` stands for one whose conversation does not exist.
pub(super) async fn names(
    shared: &ServiceContext,
    call: &Call,
    events: Vec<pb::EventName>,
) -> Result<Vec<Option<EventName>>, Refusal> {
    use pb::event_name::By;
    from_proto::at_most_entries("events", events.len(), LOOKUPS_MAX)?;
    let mut known: HashMap<String, Option<ConversationId>> = HashMap::new();
    let mut names = Vec::with_capacity(events.len());
    for (index, name) in events.into_iter().enumerate() {
        check_name(index, &name)?;
        names.push(match name.by {
            None => None,
            Some(By::EventId(id)) => id.parse().ok().map(EventName::Id),
            Some(By::Place(place)) => {
                let of = match known.get(&place.conversation_id) {
                    Some(of) => *of,
                    None => {
                        let of = shared
                            .engine
                            .resolve(&call.namespace, &place.conversation_id);
                        let of = match of.await {
                            Ok(of) => Some(of),
                            Err(ReadError::ConversationNotFound { .. }) => None,
                            Err(error) => return Err(error.into()),
                        };
                        known.insert(place.conversation_id, of);
                        of
                    }
                };
                of.map(|conversation| {
                    EventName::Place(EventRef {
                        conversation,
                        revision: Revision(place.revision),
                    })
                })
            }
        });
    }
    Ok(names)
}
