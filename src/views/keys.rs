//! The keys of the views' two tables, which make their order: everything of a
//! conversation is side by side, and everything that is found by namespace is
//! under its namespace.
//!
//! | table | key | row |
//! |---|---|---|
//! | `conversations` | id, 0 | what changes with every event, see `tip` |
//! | | id, 1 | what it was created with |
//! | | id, 2, branch | a branch as it is, but for the first one |
//! | | id, 3, chunk | a full chunk of the event index, see `chunk` |
//! | | id, 4, branch, revision | a branch as it was |
//! | | id, 5, call id, request | a call |
//! | | id, 6, child | a conversation that was forked or spawned from it |
//! | | id, 7, event's key, branch, revision | an event with that key |
//! | | id, 8, type, branch, revision | an event of a framework, by its type |
//! | | id, 9, branch, kind, chunk | that chunk has events of that kind |
//! | | id, 10, revision | what an event with a large body is found by |
//! | | id, 20, name | a branch by its name, but for the first one while it is `main` |
//! | `namespaces` | ns, 0 | counts |
//! | | ns, 1, offset | a conversation, by its first event |
//! | | ns, 2, source, offset | the same, of one source |
//! | | ns, 3, source id, conversation | a conversation, by its source's id |
//! | | ns, 4, key | an idempotency key |
//! | | ns, 5, conversation, branch | a branch with calls that wait |
//! | | ns, 6, hash | where a body has its home |
//! | | ns, 7, second, offset | a conversation, by when its last event happened |
//! | | ns, 8, source, second, offset | the same, of one source |
//! | | ns, 9, id | where an event is whose id does not say so |
//! | | ns, 10, end, offset | an idempotency key that ends, by when it does |
//!
//! Numbers are big endian, so that they sort; of a time, the sign is turned round. A text is its length (LEB128) and
//! its bytes, so that no text is the beginning of another; an idempotency key is
//! last in its row's key and needs no length; an event's key ends with a zero byte, which it
//! cannot have, so that keys with a common beginning stand together.

use crate::domain::{
    BranchId, BranchName, ContentHash, ConversationId, EventId, Namespace, Revision,
    TimestampMicros,
};

use super::chunk::{read_varint, write_varint};

const TIP: u8 = 0;
const CREATED: u8 = 1;
const BRANCH: u8 = 2;
const EVENTS: u8 = 3;
const SNAPSHOT: u8 = 4;
const CALL: u8 = 5;
const CHILD: u8 = 6;
const EVENT_KEY: u8 = 7;
const EVENT_TYPE: u8 = 8;
const EVENT_KIND: u8 = 9;
const LARGE: u8 = 10;
const BRANCH_NAME: u8 = 20;

const COUNTS: u8 = 0;
const LISTED: u8 = 1;
const OF_SOURCE: u8 = 2;
const SOURCE_ID: u8 = 3;
const KEY: u8 = 4;
const PENDING: u8 = 5;
const BLOB: u8 = 6;
const HAPPENED: u8 = 7;
const HAPPENED_OF_SOURCE: u8 = 8;
const EVENT_ID: u8 = 9;
const KEY_END: u8 = 10;

/// Bytes of a conversation's id, after which comes what the row is.
const ID_BYTES: usize = 16;

/// A key, or the beginning that keys share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key(Vec<u8>);

impl Key {
    fn of(conversation: ConversationId, tag: u8) -> Self {
        let mut bytes = Vec::with_capacity(48);
        bytes.extend_from_slice(conversation.0.as_bytes());
        bytes.push(tag);
        Self(bytes)
    }

    fn under(namespace: &Namespace, tag: u8) -> Self {
        let name = namespace.as_str().as_bytes();
        let mut bytes = Vec::with_capacity(name.len() + 64);
        write_varint(&mut bytes, name.len() as u64);
        bytes.extend_from_slice(name);
        bytes.push(tag);
        Self(bytes)
    }

    fn number(mut self, number: u64) -> Self {
        self.0.extend_from_slice(&number.to_be_bytes());
        self
    }

    fn time(self, time: i64) -> Self {
        self.number(time.cast_unsigned() ^ (1 << 63))
    }

    pub(super) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn text(mut self, text: &str) -> Self {
        write_varint(&mut self.0, text.len() as u64);
        self.bytes(text.as_bytes())
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The first key after all that begin with this one.
    pub(super) fn after_prefix(&self) -> Self {
        let mut bytes = self.0.clone();
        while bytes.pop_if(|last| *last == u8::MAX).is_some() {}
        if let Some(last) = bytes.last_mut() {
            *last += 1;
        }
        Self(bytes)
    }
}

/// The conversation that a row of `conversations` is of.
pub(super) fn conversation_of(key: &[u8]) -> Option<ConversationId> {
    let bytes = key.first_chunk::<ID_BYTES>()?;
    Some(ConversationId(uuid::Uuid::from_bytes(*bytes)))
}

/// Behind all rows of a conversation.
pub(super) fn after_conversation(id: ConversationId) -> Key {
    Key::of(id, u8::MAX)
}

pub(super) fn tip(id: ConversationId) -> Key {
    Key::of(id, TIP)
}

pub(super) fn created(id: ConversationId) -> Key {
    Key::of(id, CREATED)
}

pub(super) fn branches(id: ConversationId) -> Key {
    Key::of(id, BRANCH)
}

pub(super) fn branch(id: ConversationId, branch: BranchId) -> Key {
    branches(id).number(branch.0)
}

pub(super) fn branch_name(id: ConversationId, name: &BranchName) -> Key {
    Key::of(id, BRANCH_NAME).bytes(name.as_str().as_bytes())
}

pub(super) fn events(id: ConversationId, chunk: u64) -> Key {
    Key::of(id, EVENTS).number(chunk)
}

pub(super) fn snapshot(id: ConversationId, branch: BranchId, revision: Revision) -> Key {
    Key::of(id, SNAPSHOT).number(branch.0).number(revision.0)
}

pub(super) fn calls(id: ConversationId, call_id: &str) -> Key {
    Key::of(id, CALL).text(call_id)
}

pub(super) fn call(id: ConversationId, call_id: &str, request: Revision) -> Key {
    calls(id, call_id).number(request.0)
}

pub(super) fn children(id: ConversationId) -> Key {
    Key::of(id, CHILD)
}

pub(super) fn child(parent: ConversationId, child: ConversationId) -> Key {
    children(parent).bytes(child.0.as_bytes())
}

/// Under this: all events whose key begins so.
pub(super) fn events_with_key_from(id: ConversationId, beginning: &str) -> Key {
    Key::of(id, EVENT_KEY).bytes(beginning.as_bytes())
}

/// Under this: all events with this key.
pub(super) fn events_with_key(id: ConversationId, key: &str) -> Key {
    events_with_key_from(id, key).bytes(&[0])
}

/// The event's key that a row's key has.
pub(super) fn key_of_event(key: &[u8]) -> Option<&str> {
    let rest = key.get(ID_BYTES + 1..)?;
    let end = rest.iter().position(|byte| *byte == 0)?;
    std::str::from_utf8(&rest[..end]).ok()
}

/// Under this: all events of this type.
pub(super) fn events_of_type(id: ConversationId, type_name: &str) -> Key {
    Key::of(id, EVENT_TYPE).text(type_name)
}

/// An event under one of those.
pub(super) fn event_under(under: Key, branch: BranchId, revision: Revision) -> Key {
    under.number(branch.0).number(revision.0)
}

/// Branch and revision, which end the key of an event.
pub(super) fn last_event(key: &[u8]) -> Option<(BranchId, Revision)> {
    let (before, revision) = key.split_last_chunk::<8>()?;
    let branch = last_number(before)?;
    Some((BranchId(branch), Revision(u64::from_be_bytes(*revision))))
}

pub(super) fn chunk_with_kind(id: ConversationId, branch: BranchId, kind: u16, chunk: u64) -> Key {
    let key = Key::of(id, EVENT_KIND).number(branch.0);
    key.bytes(&kind.to_be_bytes()).number(chunk)
}

pub(super) fn large(id: ConversationId, revision: Revision) -> Key {
    Key::of(id, LARGE).number(revision.0)
}

pub(super) fn counts(namespace: &Namespace) -> Key {
    Key::under(namespace, COUNTS)
}

/// Under this: all conversations, or those of one source.
pub(super) fn listing(namespace: &Namespace, source: Option<&str>) -> Key {
    match source {
        None => Key::under(namespace, LISTED),
        Some(source) => Key::under(namespace, OF_SOURCE).text(source),
    }
}

pub(super) fn listed(namespace: &Namespace, source: Option<&str>, first_offset: u64) -> Key {
    listing(namespace, source).number(first_offset)
}

/// Under this: all conversations, or those of one source, by when they happened.
pub(super) fn happenings(namespace: &Namespace, source: Option<&str>) -> Key {
    match source {
        None => Key::under(namespace, HAPPENED),
        Some(source) => Key::under(namespace, HAPPENED_OF_SOURCE).text(source),
    }
}

/// By what conversations are ordered: within a second by when they began. So one that
/// much is appended to has another place once a second, and not with each event.
pub(super) fn second(time: TimestampMicros) -> i64 {
    time.0.div_euclid(1_000_000)
}

pub(super) fn happened(
    namespace: &Namespace,
    source: Option<&str>,
    time: TimestampMicros,
    first_offset: u64,
) -> Key {
    happenings(namespace, source)
        .time(second(time))
        .number(first_offset)
}

/// Under this: all ids of sources, the shorter ones first.
pub(super) fn all_source_ids(namespace: &Namespace) -> Key {
    Key::under(namespace, SOURCE_ID)
}

/// The id of a key under [`all_source_ids`], and what the keys of all ids of its length
/// begin with.
pub(super) fn source_id_of<'k>(namespace: &Namespace, key: &'k [u8]) -> Option<(Key, &'k [u8])> {
    let mut under = all_source_ids(namespace);
    let mut rest = key.strip_prefix(under.as_bytes())?;
    let length = read_varint(&mut rest)?;
    write_varint(&mut under.0, length);
    let id = rest.get(..usize::try_from(length).ok()?)?;
    Some((under, id))
}

/// Where the rows of conversations begin whose ids are not before this one.
pub(super) fn from_conversation(id: ConversationId) -> Key {
    Key(id.0.as_bytes().to_vec())
}

pub(super) fn source_ids(namespace: &Namespace, source_id: &str) -> Key {
    Key::under(namespace, SOURCE_ID).text(source_id)
}

pub(super) fn source_id(namespace: &Namespace, source_id: &str, id: ConversationId) -> Key {
    source_ids(namespace, source_id).bytes(id.0.as_bytes())
}

pub(super) fn idempotency(namespace: &Namespace, key: &str) -> Key {
    Key::under(namespace, KEY).bytes(key.as_bytes())
}

/// Under this: all idempotency keys that end, the first ones to do so first.
pub(super) fn key_ends(namespace: &Namespace) -> Key {
    Key::under(namespace, KEY_END)
}

/// Behind all idempotency keys that have ended at a time.
pub(super) fn after_key_ends(namespace: &Namespace, time: TimestampMicros) -> Key {
    key_ends(namespace).time(time.0).after_prefix()
}

pub(super) fn key_end(namespace: &Namespace, time: TimestampMicros, first_offset: u64) -> Key {
    key_ends(namespace).time(time.0).number(first_offset)
}

pub(super) fn event_id(namespace: &Namespace, id: EventId) -> Key {
    Key::under(namespace, EVENT_ID).bytes(id.0.as_bytes())
}

/// Under this: all branches with waiting calls, or those of one conversation.
pub(super) fn pendings(namespace: &Namespace, id: Option<ConversationId>) -> Key {
    let key = Key::under(namespace, PENDING);
    match id {
        None => key,
        Some(id) => key.bytes(id.0.as_bytes()),
    }
}

pub(super) fn pending(namespace: &Namespace, id: ConversationId, branch: BranchId) -> Key {
    pendings(namespace, Some(id)).number(branch.0)
}

pub(super) fn blob(namespace: &Namespace, hash: &ContentHash) -> Key {
    Key::under(namespace, BLOB).bytes(&hash.0)
}

/// What a row of one conversation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StateRow {
    Tip,
    Created,
    Branch,
}

/// Which of the three rows of a state this key is of.
pub(super) fn state_row(key: &[u8]) -> Option<StateRow> {
    match *key.get(ID_BYTES)? {
        TIP => Some(StateRow::Tip),
        CREATED => Some(StateRow::Created),
        BRANCH => Some(StateRow::Branch),
        _ => None,
    }
}

/// The number that ends a key.
pub(super) fn last_number(key: &[u8]) -> Option<u64> {
    key.last_chunk::<8>().map(|tail| u64::from_be_bytes(*tail))
}

/// The conversation that ends a key.
pub(super) fn last_conversation(key: &[u8]) -> Option<ConversationId> {
    key.last_chunk::<16>()
        .map(|tail| ConversationId(uuid::Uuid::from_bytes(*tail)))
}

/// The branch that ends a key, and its conversation before it.
pub(super) fn last_pending(key: &[u8]) -> Option<(ConversationId, BranchId)> {
    let (before, branch) = key.split_last_chunk::<8>()?;
    let id = last_conversation(before)?;
    Some((id, BranchId(u64::from_be_bytes(*branch))))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Lookups are by prefix. When one text is the beginning of another, a lookup
    // of the first must not meet rows of the second.
    #[test]
    fn no_text_is_the_beginning_of_another() {
        let namespace = Namespace::default();
        let id = ConversationId::generate();
        for (short, long) in [("", "a"), ("a", "ab"), ("call_1", "call_12")] {
            let prefix = calls(id, short);
            let key = call(id, long, Revision(1));
            assert!(!key.as_bytes().starts_with(prefix.as_bytes()));
            let prefix = source_ids(&namespace, short);
            let key = source_id(&namespace, long, id);
            assert!(!key.as_bytes().starts_with(prefix.as_bytes()));
        }
    }

    // A namespace whose name begins with another's must not be inside it.
    #[test]
    fn no_namespace_is_inside_another() -> Result<(), crate::domain::NameError> {
        let (short, long) = (Namespace::new("team")?, Namespace::new("team-b")?);
        for tag in 0..=10 {
            let inside = Key::under(&long, tag);
            assert!(!inside.as_bytes().starts_with(&Key::under(&short, tag).0));
        }
        Ok(())
    }

    // The end of a prefix must lie after every key that begins with it, even when
    // the prefix ends in the largest byte.
    #[test]
    fn a_prefix_ends_after_all_of_its_keys() {
        for prefix in [vec![1, 2], vec![1, 0xff], vec![1, 0xff, 0xff]] {
            let key = Key(prefix.clone());
            let end = key.after_prefix();
            let mut inside = prefix;
            inside.extend([0xff; 20]);
            assert!(inside < end.0);
            assert!(!end.0.starts_with(&key.0));
        }
    }

    // Times before 1970 are those of sources with odd clocks: they come first.
    #[test]
    fn times_sort() {
        let key = |time| happened(&Namespace::default(), None, TimestampMicros(time), 1).0;
        let times = [i64::MIN, -1_000_001, -1, 0, 1_000_000, i64::MAX];
        assert!(times.is_sorted_by(|a, b| key(*a) < key(*b)));
        assert_eq!(key(0), key(999_999));
    }

    // What is typed may be longer than an id, whose key goes on with other bytes.
    #[test]
    fn a_source_id_is_read_from_its_key() {
        let namespace = Namespace::default();
        for text in ["a", "session", &"long ".repeat(100)] {
            let key = source_id(&namespace, text, ConversationId::generate());
            let (under, id) = source_id_of(&namespace, key.as_bytes()).unwrap();
            assert_eq!(id, text.as_bytes());
            assert_eq!(under.bytes(text.as_bytes()), source_ids(&namespace, text));
        }
        let key = listed(&namespace, None, 7);
        assert!(source_id_of(&namespace, key.as_bytes()).is_none());
    }
}
