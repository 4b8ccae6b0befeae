//! Finds the shard of a call from its method and its first message, without decoding it.

use treering_domain::{ConversationId, Namespace, ShardId};
use treering_engine::{ShardMap, derived_id, items::items_conversation};
use treering_proto::{pb::RouteTo, route::MethodRoute};

use crate::{status::Refusal, wire};

/// Where a call goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// To this shard.
    Shard(ShardId),
    /// To any shard.
    Any,
    /// To the shard of the conversation that has this id at its source. If there is none, to that
    /// in which the append creates it, or to any shard, which refuses the call.
    Named {
        name: String,
        creates: Option<NamedCreation>,
    },
    /// To every shard, or to those of its entries.
    All,
    /// Clusters do not offer the method.
    Nowhere,
}

/// A conversation that an append creates if no conversation of this source has its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedCreation {
    pub(super) source: String,
    pub(super) shard: ShardId,
}

/// Field numbers of requests, as in `proto/treering/v1/events.proto`.
mod field {
    /// `AppendRequest`.
    pub(super) const CONVERSATION: u32 = 1;
    pub(super) const IDEMPOTENCY_KEY: u32 = 4;
    pub(super) const EVENTS: u32 = 5;
    pub(super) const EXPECTATIONS: u32 = 6;
    pub(super) const EXPECTED_KEYS: u32 = 8;
    pub(super) const CREATE_IF_MISSING: u32 = 40;
    /// `NewEvent`.
    pub(super) const EVENT_CONVERSATION: u32 = 1;
    pub(super) const CREATED: u32 = 20;
    /// `BranchExpectation`.
    pub(super) const EXPECTATION_CONVERSATION: u32 = 1;
    /// `ExpectedKey`.
    pub(super) const KEY_CONVERSATION: u32 = 2;
    /// `ConversationCreated`: the conversation of its parent.
    pub(super) const PARENT: [u32; 2] = [4, 1];
    pub(super) const SOURCE: u32 = 7;
}

/// Returns where a call goes. `message` is its first message, without the prefix.
///
/// # Errors
/// An append that names conversations of several shards.
pub(super) fn target(
    route: &MethodRoute,
    namespace: &Namespace,
    map: &ShardMap,
    message: &[u8],
) -> Result<Target, Refusal> {
    if route.to == RouteTo::Append {
        return append(namespace, map, message);
    }
    if let Some(name) = named(route, message) {
        return Ok(of_name(name, map));
    }
    let of = |id| Target::Shard(map.of(id));
    Ok(match route.to {
        RouteTo::Unspecified | RouteTo::Append => Target::Any,
        RouteTo::Items => of(items_conversation(namespace)),
        RouteTo::LongTerm => of(namespace.long_term_conversation()),
        RouteTo::All => Target::All,
        RouteTo::Nowhere => Target::Nowhere,
    })
}

/// Returns the first name of a conversation in a request.
pub(super) fn named<'m>(route: &MethodRoute, message: &'m [u8]) -> Option<&'m str> {
    match route.to {
        RouteTo::Append => wire::text(message, &[field::CONVERSATION]),
        _ => route
            .conversation
            .iter()
            .find_map(|path| wire::text(message, path)),
    }
}

pub(super) fn of_name(name: &str, map: &ShardMap) -> Target {
    match name.parse::<ConversationId>() {
        Ok(id) => Target::Shard(map.of(id)),
        Err(_) => Target::Named {
            name: name.to_owned(),
            creates: None,
        },
    }
}

/// What an append request names.
#[derive(Default)]
struct AppendNames<'m> {
    /// The first conversation that is named by a UUID, and its shard.
    known: Option<(ConversationId, ShardId)>,
    /// The first one that is named by its id at the source.
    name: Option<&'m str>,
    key: Option<&'m str>,
    create_if_missing: Option<&'m [u8]>,
}

impl<'m> AppendNames<'m> {
    /// Adds a conversation's name; `None` and an empty one name nothing.
    fn add(&mut self, name: Option<&'m str>, map: &ShardMap) -> Result<(), Refusal> {
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return Ok(());
        };
        let Ok(id) = name.parse::<ConversationId>() else {
            self.name.get_or_insert(name);
            return Ok(());
        };
        let shard = map.of(id);
        match self.known {
            None => self.known = Some((id, shard)),
            Some((_, known)) if known == shard => {}
            Some(known) => return Err(Refusal::different_shards(known, (id, shard))),
        }
        Ok(())
    }
}

/// Returns where an append goes. All conversations of one tree have one shard, so any of them
/// decides.
fn append(namespace: &Namespace, map: &ShardMap, message: &[u8]) -> Result<Target, Refusal> {
    let mut names = AppendNames::default();
    let mut own = None;
    for (number, content) in wire::contents(message) {
        match number {
            field::CONVERSATION => own = std::str::from_utf8(content).ok(),
            field::IDEMPOTENCY_KEY => names.key = std::str::from_utf8(content).ok(),
            field::EVENTS => {
                names.add(wire::text(content, &[field::EVENT_CONVERSATION]), map)?;
                let [parent, conversation] = field::PARENT;
                let path = [field::CREATED, parent, conversation];
                names.add(wire::text(content, &path), map)?;
            }
            field::EXPECTATIONS => {
                let path = [field::EXPECTATION_CONVERSATION];
                names.add(wire::text(content, &path), map)?;
            }
            field::EXPECTED_KEYS => {
                names.add(wire::text(content, &[field::KEY_CONVERSATION]), map)?;
            }
            field::CREATE_IF_MISSING => {
                names.create_if_missing = Some(content);
                names.add(wire::text(content, &field::PARENT), map)?;
            }
            _ => {}
        }
    }
    names.add(own, map)?;
    if let Some((_, shard)) = names.known {
        return Ok(Target::Shard(shard));
    }
    if let Some(name) = names.name {
        // The same id as `append_request` derives for a conversation that it creates.
        let creates = names.create_if_missing.map(|created| {
            let source = wire::text(created, &[field::SOURCE]).unwrap_or_default();
            NamedCreation {
                source: source.to_owned(),
                shard: map.of(derived_id(namespace, "source", &[source, name])),
            }
        });
        return Ok(Target::Named {
            name: name.to_owned(),
            creates,
        });
    }
    Ok(match names.key.filter(|key| !key.is_empty()) {
        // The id is derived from the key, so that a retry finds the conversation.
        Some(key) => Target::Shard(map.of(derived_id(namespace, "key", &[key]))),
        None => Target::Any,
    })
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use uuid::Uuid;

    use super::*;
    use treering_engine::shard_of;
    use treering_proto::{pb, route};

    const SHARDS: u32 = 64;

    fn to(path: &str, request: &impl Message) -> Result<Target, Refusal> {
        let route = route::of(path).unwrap();
        let message = request.encode_to_vec();
        target(route, &Namespace::default(), &map(), &message)
    }

    /// A map in which one conversation was moved in from another store.
    fn map() -> ShardMap {
        ShardMap::new(SHARDS, [(id(9), ShardId(63))])
    }

    fn id(number: u128) -> ConversationId {
        ConversationId(Uuid::from_u128(number))
    }

    fn shard(id: ConversationId) -> Target {
        Target::Shard(shard_of(id, SHARDS))
    }

    const APPEND: &str = "/treering.v1.Events/Append";

    fn event(conversation_id: String) -> pb::NewEvent {
        pb::NewEvent {
            conversation_id,
            ..pb::NewEvent::default()
        }
    }

    // Every name that an append can have decides its shard, and names of two shards are refused.
    #[test]
    fn appends_go_to_the_shard_of_their_conversations() {
        let (one, other) = (id(0), id(1));
        assert_ne!(shard(one), shard(other));
        let request = pb::AppendRequest {
            conversation_id: one.to_string(),
            ..pb::AppendRequest::default()
        };
        assert_eq!(to(APPEND, &request), Ok(shard(one)));
        let request = pb::AppendRequest {
            events: vec![event(other.to_string())],
            ..pb::AppendRequest::default()
        };
        assert_eq!(to(APPEND, &request), Ok(shard(other)));
        let request = pb::AppendRequest {
            conversation_id: one.to_string(),
            ..request
        };
        assert!(to(APPEND, &request).is_err());
    }

    // Forks of an embedded store keep their ids, which do not belong to the shard of their tree.
    #[test]
    fn moved_conversations_are_found_where_they_are() {
        assert_ne!(shard_of(id(9), SHARDS), ShardId(63));
        let request = pb::AppendRequest {
            conversation_id: id(9).to_string(),
            ..pb::AppendRequest::default()
        };
        assert_eq!(to(APPEND, &request), Ok(Target::Shard(ShardId(63))));
        let request = pb::PendingRequest {
            conversation_id: id(9).to_string(),
            ..pb::PendingRequest::default()
        };
        let pending = "/treering.v1.Tools/Pending";
        assert_eq!(to(pending, &request), Ok(Target::Shard(ShardId(63))));
    }

    // A retry must find the conversation that the first attempt created.
    #[test]
    fn new_conversations_go_to_the_shard_of_their_derived_id() {
        let namespace = Namespace::default();
        let request = pb::AppendRequest::default();
        assert_eq!(to(APPEND, &request), Ok(Target::Any));
        let request = pb::AppendRequest {
            idempotency_key: "k".into(),
            ..request
        };
        let derived = derived_id(&namespace, "key", &["k"]);
        assert_eq!(to(APPEND, &request), Ok(shard(derived)));
        let request = pb::AppendRequest {
            conversation_id: "session 7".into(),
            create_if_missing: Some(pb::ConversationCreated {
                source: "s".into(),
                ..pb::ConversationCreated::default()
            }),
            ..request
        };
        let derived = derived_id(&namespace, "source", &["s", "session 7"]);
        let wanted = Target::Named {
            name: "session 7".into(),
            creates: Some(NamedCreation {
                source: "s".into(),
                shard: shard_of(derived, SHARDS),
            }),
        };
        assert_eq!(to(APPEND, &request), Ok(wanted));
    }

    // A call that names a conversation goes to its shard; one that needs none goes elsewhere.
    #[test]
    fn calls_without_a_conversation_go_where_the_method_says() {
        let pending = "/treering.v1.Tools/Pending";
        let request = pb::PendingRequest::default();
        assert_eq!(to(pending, &request), Ok(Target::All));
        let request = pb::PendingRequest {
            conversation_id: id(7).to_string(),
            ..request
        };
        assert_eq!(to(pending, &request), Ok(shard(id(7))));
        let long_term = Namespace::default().long_term_conversation();
        let request = pb::GetContextRequest::default();
        let get = "/treering.v1.Contexts/Get";
        assert_eq!(to(get, &request), Ok(shard(long_term)));
        let request = pb::GuidanceRequest::default();
        assert_eq!(to("/treering.v1.Tools/Guidance", &request), Ok(Target::Any));
    }
}
