//! Names and places: who, where, and in what order.

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

/// A tenant. Nothing of one namespace can be seen or counted from another.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Namespace(Arc<str>);

impl Namespace {
    /// Checks and takes a name: 1 to 64 of `a-z A-Z 0-9 . _ -`, and neither `.` nor `..`,
    /// which would be other places where a name becomes a part of a path.
    ///
    /// # Errors
    /// [`NameError`] when it is empty, too long or has another character.
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

    /// True for a name that begins with `_`: the server's own, to which no client appends.
    #[must_use]
    pub fn is_reserved(&self) -> bool {
        self.0.starts_with('_')
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The conversation whose active context is the namespace's long-term
    /// context. Its id is a UUIDv5 of the name, so everyone finds it; it need
    /// not exist.
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

/// One stream of events.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
pub struct ConversationId(pub Uuid);

/// One event. UUIDv7, so ids sort by time.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
pub struct EventId(pub Uuid);

impl ConversationId {
    /// A new random id (UUIDv7).
    #[must_use]
    pub fn generate() -> Self {
        Self(id_at(SystemTime::now()))
    }
}

impl EventId {
    /// A new id (UUIDv7), of no place in a log.
    #[must_use]
    pub fn generate() -> Self {
        Self(id_at(SystemTime::now()))
    }

    /// The id of the event at an offset of the log (UUIDv7): after the time come the offset's
    /// 48 bits, so that the event is found by its id, and then what is random. Of two stores,
    /// two events at one offset and of one millisecond differ by that.
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

    /// Whether it may be chosen: a UUID of RFC 9562, of a version that leaves nothing to the
    /// engine. Version 8 is for ids that follow from names.
    #[must_use]
    pub fn may_be_chosen(self) -> bool {
        self.0.get_variant() == uuid::Variant::RFC4122
            && (1..=7).contains(&self.0.get_version_num())
    }

    /// The offset that the event of this id has in its log. What has another id there, or is
    /// not there, is not the event.
    #[must_use]
    pub fn offset(self) -> u64 {
        let (first, second) = self.0.as_u64_pair();
        (first & 0xfff) << OFFSET_BITS_BELOW | second >> ID_RANDOM_BITS & OFFSET_BELOW
    }
}

/// Bits of an offset that are in an event's id: 281 million millions of events.
const OFFSET_BITS: u32 = 48;
/// Those of them that stand behind the id's variant.
const OFFSET_BITS_BELOW: u32 = 36;
const OFFSET_BELOW: u64 = (1 << OFFSET_BITS_BELOW) - 1;
const ID_RANDOM_BITS: u32 = 26;

/// A UUIDv7 of a time. `Uuid::now_v7` panics when the clock is before 1970, as it
/// is on a machine whose battery is empty; such times count as 1970 here.
fn id_at(time: SystemTime) -> Uuid {
    // Ids of one millisecond are told apart, and put in order, by its counter.
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

/// The last time that a UUIDv7 has room for, 48 bits of milliseconds after 1970,
/// less a year in which its counter can run over.
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

/// Place of an event in its conversation: 1, 2, 3 … without gaps; 0 is before
/// the first.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
pub struct Revision(pub u64);

impl Revision {
    /// Before the first event.
    pub const NONE: Self = Self(0);

    /// The revision after this one.
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

/// A branch of a conversation: the revision of the event that forked it, 0 for
/// the first branch. Names can change; this cannot.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
pub struct BranchId(pub u64);

impl BranchId {
    /// The branch that a conversation starts with.
    pub const MAIN: Self = Self(0);
}

impl fmt::Display for BranchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Name of the branch that a conversation starts with.
pub const MAIN_BRANCH_NAME: &str = "main";

/// A branch name: 1 to 200 bytes, no control characters, not blank at either end.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BranchName(Arc<str>);

impl BranchName {
    /// Checks and takes a name.
    ///
    /// # Errors
    /// [`NameError`] when it is empty, too long, or has a control character or
    /// blanks at an end.
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

    /// The name as text.
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

/// Place of an event in the log. Comparable within a shard. Offsets start at 1.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
pub struct Position {
    /// The part of the log.
    pub shard: ShardId,
    /// Strictly increasing within the shard.
    pub offset: u64,
}

impl Position {
    /// A place in the embedded log.
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
    /// The system clock.
    #[must_use]
    pub fn now() -> Self {
        Self::of(SystemTime::now())
    }

    /// Any time, also before 1970; what no protobuf timestamp can say is cut.
    fn of(time: SystemTime) -> Self {
        let micros = |time: Duration| i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
        let since = match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(since) => micros(since),
            Err(before) => -micros(before.duration()),
        };
        Self(since).clamp(Self::FIRST, Self::LAST)
    }

    /// The beginning of the year 1, the first that a protobuf timestamp can say.
    pub const FIRST: Self = Self(-62_135_596_800_000_000);
    /// The end of the year 9999, the last one.
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

/// The public half of an Ed25519 key. In text it is 64 hexadecimal digits.
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

/// Why a name was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Nothing there.
    #[error("the {what} is empty")]
    Empty {
        /// Which name.
        what: &'static str,
    },
    /// Over its bound.
    #[error("the {what} has {bytes} bytes; at most {max} are allowed")]
    TooLong {
        /// Which name.
        what: &'static str,
        /// Its length.
        bytes: usize,
        /// The bound.
        max: usize,
    },
    /// A character that names of this sort cannot have.
    #[error("the {what} has the character {character:?}, which is not allowed there")]
    Character {
        /// Which name.
        what: &'static str,
        /// The character.
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

    // A machine with an empty battery starts in 1969 or in 2106, and NTP comes
    // later: appending must work there, with ids that differ and times that are
    // what the clock says.
    #[test]
    fn any_clock_gives_ids_and_times() {
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
        // A client cannot read a time that no timestamp can say.
        check(epoch + years(20_000), TimestampMicros::LAST.0);
        if let Some(far) = epoch.checked_add(years(400_000)) {
            check(far, TimestampMicros::LAST.0);
        }
        if let Some(far) = epoch.checked_sub(years(400_000)) {
            check(far, TimestampMicros::FIRST.0);
        }
    }
}
