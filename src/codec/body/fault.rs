//! What can be wrong with a body, and the checks that several themes share.

use std::collections::BTreeMap;

use bytes::Bytes;
use uuid::Uuid;

use crate::{
    codec::json::{self, JsonFault},
    domain::{
        BranchName, ContentHash, ConversationId, EventKind, JsonText, NameError, Revision,
        TagsFault, check_key,
        limits::{EVENT_KEY_BYTES_MAX, SHORT_TEXT_BYTES_MAX},
    },
};

/// A body that cannot be taken. Never quotes the payload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind}: {}{problem}", field_prefix(.field))]
pub struct BodyFault {
    /// Which kind of event.
    pub kind: EventKind,
    /// Which field, for example `parts[2].json`; empty: the body as a whole.
    pub field: String,
    /// What is wrong there.
    pub problem: BodyProblem,
}

fn field_prefix(field: &str) -> String {
    if field.is_empty() {
        String::new()
    } else {
        format!("{field}: ")
    }
}

/// What is wrong with a field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyProblem {
    /// The bytes are no protobuf message of the kind.
    #[error("the bytes are not a protobuf message of this kind")]
    NotProtobuf,
    /// A required field is not set.
    #[error("is not set, but required")]
    Missing,
    /// An enum field that must be chosen was left at its zero value.
    #[error("is unspecified; choose a value")]
    Unspecified,
    /// An enum value that this version does not know.
    #[error("has the enum value {value}, which this version does not know")]
    UnknownEnumValue {
        /// The number.
        value: i32,
    },
    /// Must be JSON text.
    #[error("must be JSON text: {0}")]
    NotJson(#[from] JsonFault),
    /// Must be a JSON object.
    #[error("must be a JSON object, {{…}}: the fields that the message had beside the event's")]
    NotAnObject,
    /// A name that is not allowed.
    #[error("{0}")]
    Name(#[from] NameError),
    /// Must be a BLAKE3 hash.
    #[error("must be a BLAKE3 hash of 32 bytes, but has {bytes}")]
    HashLength {
        /// Its length.
        bytes: usize,
    },
    /// Longer than its bound.
    #[error("has {bytes} bytes; at most {max} are allowed")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The bound.
        max: usize,
    },
    /// A key must have none.
    #[error("has a NUL character, which no key has")]
    HasNul,
    /// Must be a UUID.
    #[error("must be a UUID")]
    NotUuid,
    /// Is in the list twice.
    #[error("repeats an earlier entry of its list")]
    Duplicate,
    /// Must be an ordinary number.
    #[error("must be a finite number")]
    NotFinite,
}

pub(super) type Checked<T> = Result<T, FieldFault>;

/// A fault whose place is still being spelled out, from the inside.
pub(super) struct FieldFault {
    path: String,
    problem: BodyProblem,
}

impl FieldFault {
    pub(super) fn here(problem: BodyProblem) -> Self {
        let path = String::new();
        Self { path, problem }
    }

    pub(super) fn at(field: &str, problem: BodyProblem) -> Self {
        let path = field.to_owned();
        Self { path, problem }
    }

    /// The same, seen from the message that holds `field`.
    pub(super) fn within(mut self, field: &str) -> Self {
        if !self.path.is_empty() {
            self.path.insert(0, '.');
        }
        self.path.insert_str(0, field);
        self
    }

    pub(super) fn within_entry(self, field: &str, index: usize) -> Self {
        self.within(&format!("{field}[{index}]"))
    }

    pub(super) fn of(self, kind: EventKind) -> BodyFault {
        BodyFault {
            kind,
            field: self.path,
            problem: self.problem,
        }
    }
}

/// A text that names something: bounded, may be empty.
pub(super) fn short(field: &str, text: String) -> Checked<String> {
    if text.len() > SHORT_TEXT_BYTES_MAX {
        let problem = BodyProblem::TooLong {
            bytes: text.len(),
            max: SHORT_TEXT_BYTES_MAX,
        };
        return Err(FieldFault::at(field, problem));
    }
    Ok(text)
}

/// The key of an event, or nothing.
pub(super) fn event_key(field: &str, text: String) -> Checked<String> {
    match check_key(&text) {
        Err(TagsFault::KeyTooLong { bytes }) => {
            let max = EVENT_KEY_BYTES_MAX;
            Err(FieldFault::at(field, BodyProblem::TooLong { bytes, max }))
        }
        Err(_) => Err(FieldFault::at(field, BodyProblem::HasNul)),
        Ok(()) => Ok(text),
    }
}

/// A text that names something and must be there.
pub(super) fn name(field: &str, text: String) -> Checked<String> {
    if text.is_empty() {
        return Err(FieldFault::at(field, BodyProblem::Missing));
    }
    short(field, text)
}

pub(super) fn branch_name(field: &str, text: &str) -> Checked<BranchName> {
    BranchName::new(text).map_err(|error| FieldFault::at(field, error.into()))
}

/// JSON that must be there.
pub(super) fn json(field: &str, bytes: Bytes) -> Checked<JsonText> {
    json::check_bytes(bytes).map_err(|fault| FieldFault::at(field, fault.into()))
}

/// JSON, or absent when there is no byte.
pub(super) fn optional_json(field: &str, bytes: Bytes) -> Checked<JsonText> {
    if bytes.is_empty() {
        return Ok(JsonText::default());
    }
    json(field, bytes)
}

pub(super) fn hash(field: &str, bytes: &Bytes) -> Checked<ContentHash> {
    let array: Result<[u8; 32], _> = bytes.as_ref().try_into();
    array.map(ContentHash).map_err(|_| {
        let bytes = bytes.len();
        FieldFault::at(field, BodyProblem::HashLength { bytes })
    })
}

pub(super) fn conversation(field: &str, text: &str) -> Checked<ConversationId> {
    if text.is_empty() {
        return Err(FieldFault::at(field, BodyProblem::Missing));
    }
    let uuid = Uuid::try_parse(text).map_err(|_| FieldFault::at(field, BodyProblem::NotUuid))?;
    Ok(ConversationId(uuid))
}

pub(super) fn optional_revision(revision: u64) -> Option<Revision> {
    (revision != 0).then_some(Revision(revision))
}

/// Map keys are short and ordered.
pub(super) fn keyed(
    field: &str,
    map: impl IntoIterator<Item = (String, String)>,
) -> Checked<BTreeMap<String, String>> {
    map.into_iter()
        .map(|(key, value)| Ok((short(field, key)?, value)))
        .collect()
}

/// Map values are JSON text.
pub(super) fn keyed_json(
    field: &str,
    map: impl IntoIterator<Item = (String, String)>,
) -> Checked<BTreeMap<String, String>> {
    let map = keyed(field, map)?;
    for value in map.values() {
        json::check_text(value.as_bytes()).map_err(|fault| FieldFault::at(field, fault.into()))?;
    }
    Ok(map)
}

/// Reads a list; a fault names the entry.
pub(super) fn each<A, B>(
    field: &str,
    items: Vec<A>,
    read: impl Fn(A) -> Checked<B>,
) -> Checked<Vec<B>> {
    items
        .into_iter()
        .enumerate()
        .map(|(index, item)| read(item).map_err(|fault| fault.within_entry(field, index)))
        .collect()
}

/// Refuses a list that says the same thing twice.
pub(super) fn distinct<T, K: std::hash::Hash + Eq>(
    field: &str,
    items: &[T],
    key: impl Fn(&T) -> K,
) -> Checked<()> {
    let mut seen = std::collections::HashSet::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        if !seen.insert(key(item)) {
            let fault = FieldFault::here(BodyProblem::Duplicate);
            return Err(fault.within_entry(field, index));
        }
    }
    Ok(())
}

/// Reads an enum whose zero value means "not chosen".
pub(super) fn chosen<E: TryFrom<i32>>(field: &str, value: i32) -> Checked<E> {
    if value == 0 {
        return Err(FieldFault::at(field, BodyProblem::Unspecified));
    }
    E::try_from(value).map_err(|_| FieldFault::at(field, BodyProblem::UnknownEnumValue { value }))
}

/// For the zero value of an enum that [`chosen`] has already refused.
pub(super) fn unspecified<T>(field: &str) -> Checked<T> {
    Err(FieldFault::at(field, BodyProblem::Unspecified))
}
