//! The keys of the tables `conversations` and `namespaces`. They determine the order: all rows of a
//! conversation are adjacent, and everything that is found by namespace is under its namespace.
//!
//! | table | key | row |
//! |---|---|---|
//! | `conversations` | conversation, 0 | what changes with every event, see `conversation_head` |
//! | | conversation, 1 | what it was created with |
//! | | conversation, 2, branch | the current state of a branch, except the first one |
//! | | conversation, 3, chunk | a full chunk of the event index, see `chunk` |
//! | | conversation, 4, branch, revision | a snapshot of a branch |
//! | | conversation, 5, call id, request | a call |
//! | | conversation, 6, child | a conversation that was forked or spawned from it |
//! | | conversation, 7, event's key, branch, revision | an event with that key |
//! | | conversation, 8, type, branch, revision | an event of a framework, by its type |
//! | | conversation, 9, branch, kind, chunk | that chunk has events of that kind |
//! | | conversation, 10, revision | type, key and attributes of an event with a large body |
//! | | conversation, 20, name | a branch by its name, except the first one while it is `main` |
//! | `namespaces` | ns, 0 | counts |
//! | | ns, 1, offset | a conversation, by its first event |
//! | | ns, 2, source, offset | the same, of one source |
//! | | ns, 3, source id, conversation | a conversation, by its source's id |
//! | | ns, 4, key | an idempotency key |
//! | | ns, 5, conversation, branch | a branch with pending calls |
//! | | ns, 6, hash | the home offset of a body |
//! | | ns, 7, second, offset | a conversation, by when its last event happened |
//! | | ns, 8, source, second, offset | the same, of one source |
//! | | ns, 9, id | the offset of an event whose id does not contain it |
//! | | ns, 10, end, offset | an idempotency key with an expiry, by its expiry |
//! | | ns, 11, facet, offset | a conversation with a facet, see `facets` |
//! | | ns, 12, second, offset | a conversation, by when its last event was recorded |
//!
//! `namespaces` identifies a conversation by its id; `conversations`, which covers all namespaces,
//! by the namespace's 16 bytes and the id ([`ConversationKey`]). Numbers are big-endian, so that
//! they sort; the sign bit of times is inverted. A text is its length (LEB128) and its bytes, so
//! that no text is a prefix of another. An idempotency key is last in its row's key and needs no
//! length. An event's key ends with a zero byte, which it cannot contain, so that keys with a
//! common prefix are adjacent.

use treering_domain::{
    BranchId, BranchName, ContentHash, ConversationId, ConversationKey, EventId, Namespace,
    Revision, TimestampMicros,
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
const FACET: u8 = 11;
const UPDATED: u8 = 12;

/// The beginning of a facet's BLAKE3 hash.
pub(super) type FacetHash = [u8; 8];

/// Length of a conversation's key, in bytes; the row's tag follows it.
const KEY_BYTES: usize = ConversationKey::BYTES;

/// A key, or a prefix of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key(Vec<u8>);

impl Key {
    fn of(conversation: ConversationKey, tag: u8) -> Self {
        let mut bytes = Vec::with_capacity(64);
        bytes.extend_from_slice(&conversation.to_bytes());
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

    pub(super) fn number(mut self, number: u64) -> Self {
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

    /// Returns the first key after all keys with this prefix.
    pub(super) fn after_prefix(&self) -> Self {
        let mut bytes = self.0.clone();
        while bytes.pop_if(|last| *last == u8::MAX).is_some() {}
        if let Some(last) = bytes.last_mut() {
            *last += 1;
        }
        Self(bytes)
    }
}

/// Returns the conversation of a row of `conversations`.
pub(super) fn conversation_of(key: &[u8]) -> Option<ConversationKey> {
    key.first_chunk().map(ConversationKey::from_bytes)
}

/// Returns a key after all rows of a conversation.
pub(super) fn after_conversation(id: ConversationKey) -> Key {
    Key::of(id, u8::MAX)
}

pub(super) fn tip(id: ConversationKey) -> Key {
    Key::of(id, TIP)
}

pub(super) fn created(id: ConversationKey) -> Key {
    Key::of(id, CREATED)
}

pub(super) fn branches(id: ConversationKey) -> Key {
    Key::of(id, BRANCH)
}

pub(super) fn branch(id: ConversationKey, branch: BranchId) -> Key {
    branches(id).number(branch.0)
}

pub(super) fn branch_name(id: ConversationKey, name: &BranchName) -> Key {
    Key::of(id, BRANCH_NAME).bytes(name.as_str().as_bytes())
}

pub(super) fn events(id: ConversationKey, chunk: u64) -> Key {
    Key::of(id, EVENTS).number(chunk)
}

pub(super) fn snapshot(id: ConversationKey, branch: BranchId, revision: Revision) -> Key {
    Key::of(id, SNAPSHOT).number(branch.0).number(revision.0)
}

pub(super) fn calls(id: ConversationKey, call_id: &str) -> Key {
    Key::of(id, CALL).text(call_id)
}

pub(super) fn call(id: ConversationKey, call_id: &str, request: Revision) -> Key {
    calls(id, call_id).number(request.0)
}

pub(super) fn children(id: ConversationKey) -> Key {
    Key::of(id, CHILD)
}

pub(super) fn child(parent: ConversationKey, child: ConversationId) -> Key {
    children(parent).bytes(child.0.as_bytes())
}

/// Returns the prefix of all events whose key begins with this text.
pub(super) fn events_with_key_from(id: ConversationKey, beginning: &str) -> Key {
    Key::of(id, EVENT_KEY).bytes(beginning.as_bytes())
}

/// Returns the prefix of all events with this key.
pub(super) fn events_with_key(id: ConversationKey, key: &str) -> Key {
    events_with_key_from(id, key).bytes(&[0])
}

/// Returns the event key in a row's key.
pub(super) fn key_of_event(key: &[u8]) -> Option<&str> {
    let rest = key.get(KEY_BYTES + 1..)?;
    let end = rest.iter().position(|byte| *byte == 0)?;
    std::str::from_utf8(&rest[..end]).ok()
}

/// Returns the prefix of all events of this type.
pub(super) fn events_of_type(id: ConversationKey, type_name: &str) -> Key {
    Key::of(id, EVENT_TYPE).text(type_name)
}

/// Returns the key of an event under one of these prefixes.
pub(super) fn event_under(under: Key, branch: BranchId, revision: Revision) -> Key {
    under.number(branch.0).number(revision.0)
}

/// Returns the branch and revision at the end of an event's row key.
pub(super) fn last_event(key: &[u8]) -> Option<(BranchId, Revision)> {
    let (before, revision) = key.split_last_chunk::<8>()?;
    let branch = last_number(before)?;
    Some((BranchId(branch), Revision(u64::from_be_bytes(*revision))))
}

pub(super) fn chunk_with_kind(id: ConversationKey, branch: BranchId, kind: u16, chunk: u64) -> Key {
    let key = Key::of(id, EVENT_KIND).number(branch.0);
    key.bytes(&kind.to_be_bytes()).number(chunk)
}

pub(super) fn large(id: ConversationKey, revision: Revision) -> Key {
    Key::of(id, LARGE).number(revision.0)
}

pub(super) fn counts(namespace: &Namespace) -> Key {
    Key::under(namespace, COUNTS)
}

/// Returns the prefix of all conversations, or of those from one source.
pub(super) fn listing(namespace: &Namespace, source: Option<&str>) -> Key {
    match source {
        None => Key::under(namespace, LISTED),
        Some(source) => Key::under(namespace, OF_SOURCE).text(source),
    }
}

pub(super) fn listed(namespace: &Namespace, source: Option<&str>, first_offset: u64) -> Key {
    listing(namespace, source).number(first_offset)
}

/// Returns the prefix of all conversations, or of those from one source, by when they happened.
pub(super) fn happenings(namespace: &Namespace, source: Option<&str>) -> Key {
    match source {
        None => Key::under(namespace, HAPPENED),
        Some(source) => Key::under(namespace, HAPPENED_OF_SOURCE).text(source),
    }
}

/// Returns the second by which conversations are ordered; within a second they are ordered by their
/// first event. So a conversation that grows quickly moves once a second, and not with each event.
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

/// Returns the prefix of the conversations with a facet; the first event's offset follows.
pub(super) fn faceted(namespace: &Namespace, facet: FacetHash) -> Key {
    Key::under(namespace, FACET).bytes(&facet)
}

/// Returns the prefix of all conversations by when their last events were recorded.
pub(super) fn updates(namespace: &Namespace) -> Key {
    Key::under(namespace, UPDATED)
}

/// Returns the beginning of the keys of conversations that were updated in this second.
pub(super) fn updated_in(namespace: &Namespace, time: TimestampMicros) -> Key {
    updates(namespace).time(second(time))
}

/// Returns the prefix of all source ids, the shorter ones first.
pub(super) fn all_source_ids(namespace: &Namespace) -> Key {
    Key::under(namespace, SOURCE_ID)
}

/// Returns the source id in a key under [`all_source_ids`], and the prefix of the keys of all ids
/// of the same length.
pub(super) fn source_id_of<'k>(namespace: &Namespace, key: &'k [u8]) -> Option<(Key, &'k [u8])> {
    let mut under = all_source_ids(namespace);
    let mut rest = key.strip_prefix(under.as_bytes())?;
    let length = read_varint(&mut rest)?;
    write_varint(&mut under.0, length);
    let id = rest.get(..usize::try_from(length).ok()?)?;
    Some((under, id))
}

/// Returns the first possible row key of conversations with this id or a later one.
pub(super) fn from_conversation(id: ConversationKey) -> Key {
    Key(id.to_bytes().to_vec())
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

/// Returns the prefix of all idempotency keys with an expiry, the earliest first.
pub(super) fn key_ends(namespace: &Namespace) -> Key {
    Key::under(namespace, KEY_END)
}

/// Returns a key after all idempotency keys that have expired by a time.
pub(super) fn after_key_ends(namespace: &Namespace, time: TimestampMicros) -> Key {
    key_ends(namespace).time(time.0).after_prefix()
}

pub(super) fn key_end(namespace: &Namespace, time: TimestampMicros, first_offset: u64) -> Key {
    key_ends(namespace).time(time.0).number(first_offset)
}

pub(super) fn event_id(namespace: &Namespace, id: EventId) -> Key {
    Key::under(namespace, EVENT_ID).bytes(id.0.as_bytes())
}

/// Returns the prefix of all branches with pending calls, or of those of one conversation.
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

/// The kinds of rows in a conversation's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StateRow {
    Tip,
    Created,
    Branch,
}

/// Returns which of the three kinds of state rows this key belongs to.
pub(super) fn state_row(key: &[u8]) -> Option<StateRow> {
    match *key.get(KEY_BYTES)? {
        TIP => Some(StateRow::Tip),
        CREATED => Some(StateRow::Created),
        BRANCH => Some(StateRow::Branch),
        _ => None,
    }
}

/// Returns the number at the end of a key.
pub(super) fn last_number(key: &[u8]) -> Option<u64> {
    key.last_chunk::<8>().map(|tail| u64::from_be_bytes(*tail))
}

/// Returns the second and the offset at the end of a key in a list by time. In other lists, the
/// second means nothing.
pub(super) fn last_place(key: &[u8]) -> Option<(TimestampMicros, u64)> {
    let (before, offset) = key.split_last_chunk::<8>()?;
    let second = last_number(before).unwrap_or_default() ^ (1 << 63);
    let second = TimestampMicros(second.cast_signed().saturating_mul(1_000_000));
    Some((second, u64::from_be_bytes(*offset)))
}

/// Returns the conversation id at the end of a key.
pub(super) fn last_conversation(key: &[u8]) -> Option<ConversationId> {
    key.last_chunk::<16>()
        .map(|tail| ConversationId(uuid::Uuid::from_bytes(*tail)))
}

/// Returns the branch at the end of a key and the conversation before it.
pub(super) fn last_pending(key: &[u8]) -> Option<(ConversationId, BranchId)> {
    let (before, branch) = key.split_last_chunk::<8>()?;
    let id = last_conversation(before)?;
    Some((id, BranchId(u64::from_be_bytes(*branch))))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Lookups are by prefix. A lookup of a text must not find rows of a text that merely begins
    // with it.
    #[test]
    fn text_key_is_no_prefix_of_a_longer_text() {
        let namespace = Namespace::default();
        let id = namespace.key(ConversationId::generate());
        for (short, long) in [("", "a"), ("a", "ab"), ("call_1", "call_12")] {
            let prefix = calls(id, short);
            let key = call(id, long, Revision(1));
            assert!(!key.as_bytes().starts_with(prefix.as_bytes()));
            let prefix = source_ids(&namespace, short);
            let key = source_id(&namespace, long, id.id);
            assert!(!key.as_bytes().starts_with(prefix.as_bytes()));
        }
    }

    // The rows of a namespace must not fall under another one whose name is a prefix of its name.
    #[test]
    fn namespace_key_is_no_prefix_of_another() -> Result<(), treering_domain::NameError> {
        let (short, long) = (Namespace::new("team")?, Namespace::new("team-b")?);
        for tag in 0..=UPDATED {
            let inside = Key::under(&long, tag);
            assert!(!inside.as_bytes().starts_with(&Key::under(&short, tag).0));
        }
        Ok(())
    }

    // The end of a prefix must be after every key that begins with it, even when the prefix ends in
    // the largest byte.
    #[test]
    fn prefix_end_is_after_all_keys_with_the_prefix() {
        for prefix in [vec![1, 2], vec![1, 0xff], vec![1, 0xff, 0xff]] {
            let key = Key(prefix.clone());
            let end = key.after_prefix();
            let mut inside = prefix;
            inside.extend([0xff; 20]);
            assert!(inside < end.0);
            assert!(!end.0.starts_with(&key.0));
        }
    }

    // Times before 1970 come from sources with wrong clocks: they sort first.
    #[test]
    fn time_keys_sort_by_time() {
        let key = |time| happened(&Namespace::default(), None, TimestampMicros(time), 1).0;
        let times = [i64::MIN, -1_000_001, -1, 0, 1_000_000, i64::MAX];
        assert!(times.is_sorted_by(|a, b| key(*a) < key(*b)));
        assert_eq!(key(0), key(999_999));
    }

    // A source id of any length must be read without the conversation id that follows it in the
    // key.
    #[test]
    fn source_id_is_decoded_from_its_key() {
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
