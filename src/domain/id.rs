//! Identifiers: namespaces, conversations, events, branches, revisions and log positions.

use std::{
    fmt,
    str::FromStr,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};
use uuid::{ContextV7, Timestamp, Uuid};

use super::hex;
use super::limits::{BRANCH_NAME_BYTES_MAX, NAMESPACE_BYTES_MAX};

/// A tenant. A namespace cannot see or count the contents of another.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Namespace(Arc<str>);

impl Namespace {
    /// Creates a namespace name: 1 to 64 characters of `a-z A-Z 0-9 . _ -`. `.` and `..` are
    /// rejected because a name can become a path component.
    ///
    /// # Errors
    /// [`NameError`] when the name is empty, too long or has another character.
    pub fn new(name: &str) -> Result<Self, NameError> {
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        check_name("namespace", name, NAMESPACE_BYTES_MAX, legal)?;
        if matches!(name, "." | "..") {
            return Err(NameError::Character {
                what: "namespace",
                character: '.',
            });
        }
        Ok(Self(name.into()))
    }

    /// Returns true for a name that begins with `_`. Such namespaces belong to the server; no
    /// client appends to them.
    #[must_use]
    pub fn is_reserved(&self) -> bool {
        self.0.starts_with('_')
    }

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the key of a conversation in this namespace. A name of up to 15 bytes is stored
    /// after its length. A longer name is stored as the first 15 bytes of its BLAKE3 hash after a
    /// byte that is not a valid length. Finding two long names with the same 15 bytes takes about
    /// 2⁶⁰ hashes.
    #[must_use]
    pub fn key(&self, id: ConversationId) -> ConversationKey {
        const IS_HASH: u8 = u8::MAX;
        let name = self.0.as_bytes();
        let mut namespace = [0; 16];
        match name.len() {
            length @ ..=15 => {
                namespace[0] = length as u8;
                namespace[1..=length].copy_from_slice(name);
            }
            _ => {
                namespace[0] = IS_HASH;
                namespace[1..].copy_from_slice(&blake3::hash(name).as_bytes()[..15]);
            }
        }
        ConversationKey { namespace, id }
    }

    /// Returns the conversation whose active context is the long-term context of this
    /// namespace. Its id is a UUIDv5 of the name, so every process computes the same one. The
    /// conversation need not exist.
    #[must_use]
    pub fn long_term_conversation(&self) -> ConversationId {
        const LONG_TERM: Uuid = Uuid::from_u128(0x6f0c_41a5_7d0e_4d53_9c52_2f6c_1b0a_e7d4);
        ConversationId(Uuid::new_v5(&LONG_TERM, self.0.as_bytes()))
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Self("default".into())
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Namespace({})", self.0)
    }
}

/// The id of a conversation.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
pub struct ConversationId(pub Uuid);

/// A conversation, identified by namespace and id. Ids are unique only within a namespace, so
/// state that covers several namespaces is keyed by this type.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
pub struct ConversationKey {
    /// The encoded namespace; see [`Namespace::key`].
    namespace: [u8; 16],
    /// The conversation's id within the namespace.
    pub id: ConversationId,
}

impl ConversationKey {
    /// Length of a key in bytes: 16 for the namespace, 16 for the id.
    pub const BYTES: usize = 32;

    /// Returns the key of another conversation in the same namespace.
    #[must_use]
    pub fn sibling(self, id: ConversationId) -> Self {
        Self { id, ..self }
    }

    /// Returns the key as bytes, which sort in the same order as keys.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let (namespace, id) = bytes.split_at_mut(16);
        namespace.copy_from_slice(&self.namespace);
        id.copy_from_slice(self.id.0.as_bytes());
        bytes
    }

    /// Decodes a key from its bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let (mut namespace, mut id) = ([0; 16], [0; 16]);
        namespace.copy_from_slice(&bytes[..16]);
        id.copy_from_slice(&bytes[16..]);
        Self {
            namespace,
            id: ConversationId(Uuid::from_bytes(id)),
        }
    }
}

/// The id of an event: a UUIDv7, so ids sort by time.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
pub struct EventId(pub Uuid);

impl ConversationId {
    /// Generates a random id (UUIDv7).
    #[must_use]
    pub fn generate() -> Self {
        Self(id_at(SystemTime::now()))
    }
}

impl EventId {
    /// Generates an id (UUIDv7) that is not tied to a log offset.
    #[must_use]
    pub fn generate() -> Self {
        Self(id_at(SystemTime::now()))
    }

    /// Generates the id of the event at a log offset (UUIDv7). The 48 bits of the offset follow
    /// the time, so that the event can be found by its id; random bits follow the offset, so that
    /// events of two stores with equal offset and millisecond get different ids.
    #[must_use]
    pub fn at(time: TimestampMicros, offset: u64) -> Self {
        let millis = (time.0.max(0).unsigned_abs() / 1_000).min((1 << 48) - 1);
        let offset = offset & ((1 << OFFSET_BITS) - 1);
        let (above, below) = (offset >> OFFSET_BITS_BELOW, offset & OFFSET_BELOW);
        let first = millis << 16 | 0x7000 | above;
        let random = Uuid::new_v4().as_u64_pair().1 & ((1 << ID_RANDOM_BITS) - 1);
        let second = 1 << 63 | below << ID_RANDOM_BITS | random;
        Self(Uuid::from_u64_pair(first, second))
    }

    /// Returns true if a client may choose this id: a UUID of RFC 9562, version 1 to 7. Version 8
    /// is reserved for ids that the engine derives from names.
    #[must_use]
    pub fn may_be_chosen(self) -> bool {
        self.0.get_variant() == uuid::Variant::RFC4122
            && (1..=7).contains(&self.0.get_version_num())
    }

    /// Returns the log offset that this id encodes. The event exists only if the event at that
    /// offset has this id.
    #[must_use]
    pub fn offset(self) -> u64 {
        let (first, second) = self.0.as_u64_pair();
        (first & 0xfff) << OFFSET_BITS_BELOW | second >> ID_RANDOM_BITS & OFFSET_BELOW
    }
}

/// Bits of the log offset in an event id: enough for 281 trillion events.
const OFFSET_BITS: u32 = 48;
/// Bits of the offset that follow the UUID's variant bits.
const OFFSET_BITS_BELOW: u32 = 36;
const OFFSET_BELOW: u64 = (1 << OFFSET_BITS_BELOW) - 1;
const ID_RANDOM_BITS: u32 = 26;

/// Generates a UUIDv7 for a time. `Uuid::now_v7` panics when the clock is before 1970, as on a
/// machine with an empty clock battery; here such times count as 1970.
fn id_at(time: SystemTime) -> Uuid {
    // The counter makes ids of one millisecond distinct and ordered.
    static COUNTER: Mutex<ContextV7> = Mutex::new(ContextV7::new());
    let since = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .min(ID_TIME_MAX);
    Uuid::new_v7(Timestamp::from_unix(
        &COUNTER,
        since.as_secs(),
        since.subsec_nanos(),
    ))
}

/// The latest time that ids use: the 48 bits of milliseconds that a UUIDv7 holds, minus one year,
/// because the counter can overflow into the time.
const ID_TIME_MAX: Duration = Duration::from_millis((1 << 48) - 366 * 24 * 3_600 * 1_000);

macro_rules! uuid_text {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Uuid::try_parse(text).map(Self)
            }
        }
    };
}
uuid_text!(ConversationId);
uuid_text!(EventId);

/// The number of an event in its conversation: 1, 2, 3 … without gaps. 0 means before the
/// first event.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
pub struct Revision(pub u64);

impl Revision {
    /// The revision before the first event.
    pub const NONE: Self = Self(0);

    /// Returns the revision after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The id of a branch: the revision of the event that forked it, 0 for the first branch. A
/// branch's name can change; its id cannot.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
pub struct BranchId(pub u64);

impl BranchId {
    /// The first branch of a conversation.
    pub const MAIN: Self = Self(0);
}

impl fmt::Display for BranchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Initial name of a conversation's first branch.
pub(crate) const MAIN_BRANCH_NAME: &str = "main";

/// The name of a branch: 1 to 200 bytes, no control characters, no leading or trailing
/// whitespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BranchName(Arc<str>);

impl BranchName {
    /// Creates a branch name.
    ///
    /// # Errors
    /// [`NameError`] when the name is empty, too long, or has a control character or leading or
    /// trailing whitespace.
    pub fn new(name: &str) -> Result<Self, NameError> {
        check_name("branch name", name, BRANCH_NAME_BYTES_MAX, |c| {
            !c.is_control()
        })?;
        if name.trim() != name {
            return Err(NameError::Character {
                what: "branch name",
                character: ' ',
            });
        }
        Ok(Self(name.into()))
    }

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for BranchName {
    fn default() -> Self {
        Self(MAIN_BRANCH_NAME.into())
    }
}

impl fmt::Display for BranchName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A totally ordered part of the log. The embedded log is shard 0.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
pub struct ShardId(pub u32);

/// The log position of an event. Comparable only within a shard. Offsets start at 1.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
pub struct Position {
    /// The shard of the log.
    pub shard: ShardId,
    /// The offset, strictly increasing within the shard.
    pub offset: u64,
}

impl Position {
    /// Returns a position in the embedded log (shard 0).
    #[must_use]
    pub fn local(offset: u64) -> Self {
        Self {
            shard: ShardId::default(),
            offset,
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.shard.0, self.offset)
    }
}

/// Microseconds since 1970-01-01 UTC.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
pub struct TimestampMicros(pub i64);

impl TimestampMicros {
    /// Returns the current time of the system clock.
    #[must_use]
    pub fn now() -> Self {
        Self::of(SystemTime::now())
    }

    /// Converts any time, even before 1970, and clamps it to the range of a protobuf timestamp.
    fn of(time: SystemTime) -> Self {
        let micros = |time: Duration| i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
        let since = match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(since) => micros(since),
            Err(before) => -micros(before.duration()),
        };
        Self(since).clamp(Self::FIRST, Self::LAST)
    }

    /// The beginning of the year 1, the earliest protobuf timestamp.
    pub const FIRST: Self = Self(-62_135_596_800_000_000);
    /// The end of the year 9999, the latest protobuf timestamp.
    pub const LAST: Self = Self(253_402_300_799_999_999);
}

/// A BLAKE3 hash.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct ContentHash(pub [u8; 32]);

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The public half of an Ed25519 key. Its text form is 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PublicKey(pub [u8; 32]);

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a name was rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The name is empty.
    #[error("the {what} is empty")]
    Empty {
        /// The sort of name, such as "branch name".
        what: &'static str,
    },
    /// The name is too long.
    #[error("the {what} has {bytes} bytes; the maximum is {max}")]
    TooLong {
        /// The sort of name.
        what: &'static str,
        /// The name's length in bytes.
        bytes: usize,
        /// The maximum length in bytes.
        max: usize,
    },
    /// The name has a character that is not allowed in this sort of name.
    #[error("the {what} has the character {character:?}, which is not allowed")]
    Character {
        /// The sort of name.
        what: &'static str,
        /// The offending character.
        character: char,
    },
}

fn check_name(
    what: &'static str,
    name: &str,
    max: usize,
    legal: impl Fn(char) -> bool,
) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty { what });
    }
    if name.len() > max {
        return Err(NameError::TooLong {
            what,
            bytes: name.len(),
            max,
        });
    }
    match name.chars().find(|&c| !legal(c)) {
        Some(character) => Err(NameError::Character { what, character }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A machine with an empty clock battery starts in 1969 or 2106 until NTP corrects it.
    // Appending must still work, with distinct ids and the times that the clock shows.
    #[test]
    fn ids_and_times_work_for_any_system_clock() {
        let epoch = SystemTime::UNIX_EPOCH;
        let seconds = Duration::from_secs;
        let years = |years: u64| seconds(years * 31_557_600);
        let mut ids = std::collections::BTreeSet::new();
        let mut check = |time: SystemTime, micros: i64| {
            assert_eq!(TimestampMicros::of(time), TimestampMicros(micros));
            for _ in 0..3 {
                let id = id_at(time);
                assert_eq!(id.get_version_num(), 7);
                assert!(ids.insert(id), "{id} again");
            }
        };
        check(epoch - seconds(1), -1_000_000);
        check(epoch - years(200), -200 * 31_557_600_000_000);
        check(epoch, 0);
        check(epoch + years(100), 100 * 31_557_600_000_000);
        // Clients cannot read a time that a protobuf timestamp cannot represent.
        check(epoch + years(20_000), TimestampMicros::LAST.0);
        if let Some(far) = epoch.checked_add(years(400_000)) {
            check(far, TimestampMicros::LAST.0);
        }
        if let Some(far) = epoch.checked_sub(years(400_000)) {
            check(far, TimestampMicros::FIRST.0);
        }
    }
}
