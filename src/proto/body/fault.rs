//! Faults of bodies, and the checks that several message types share.

use std::collections::BTreeMap;

use bytes::Bytes;
use uuid::Uuid;

use crate::json::{self, JsonFault};
use treering_domain::{
    BranchName, ContentHash, ConversationId, EventKind, JsonText, NameError, Revision, TagsFault,
    check_key,
    limits::{EVENT_KEY_BYTES_MAX, SHORT_TEXT_BYTES_MAX},
};

/// Why a body is not accepted. Never quotes the payload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind}: {}{problem}", field_prefix(.field))]
pub struct BodyFault {
    /// The kind of the event.
    pub kind: EventKind,
    /// The field, for example `parts[2].json`; empty: the whole body.
    pub field: String,
    /// What is wrong with the field.
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
    /// The bytes are not a protobuf message of the kind.
    #[error("the bytes are not a protobuf message of this kind")]
    NotProtobuf,
    /// A required field is not set.
    #[error("is not set, but required")]
    Missing,
    /// A required enum field has its zero value.
    #[error("is unspecified; choose a value")]
    Unspecified,
    /// This version does not know the enum value.
    #[error("has the enum value {value}, which this version does not know")]
    UnknownEnumValue {
        /// The number.
        value: i32,
    },
    /// The field is not JSON text.
    #[error("must be JSON text: {0}")]
    NotJson(#[from] JsonFault),
    /// The field is not a JSON object.
    #[error("must be a JSON object, {{…}}: the fields that the message had beside the event's")]
    NotAnObject,
    /// The name is not allowed.
    #[error("{0}")]
    Name(#[from] NameError),
    /// The field is not a BLAKE3 hash.
    #[error("must be a BLAKE3 hash of 32 bytes, but has {bytes}")]
    HashLength {
        /// Its length.
        bytes: usize,
    },
    /// The text is too long.
    #[error("has {bytes} bytes; at most {max} are allowed")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The bound.
        max: usize,
    },
    /// The event key contains a NUL character.
    #[error("has a NUL character, which no key has")]
    HasNul,
    /// The field is not a UUID.
    #[error("must be a UUID")]
    NotUuid,
    /// The list contains the entry twice.
    #[error("repeats an earlier entry of its list")]
    Duplicate,
    /// The number is infinite or NaN.
    #[error("must be a finite number")]
    NotFinite,
}

pub(super) type Checked<T> = Result<T, FieldFault>;

/// A fault while its field path is still being built, from the innermost field outwards.
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

    /// Prefixes the path with the field that contains the message.
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

/// Checks a short text, which may be empty.
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

/// Checks an event key, which may be empty.
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

/// Checks a short text that must not be empty.
pub(super) fn name(field: &str, text: String) -> Checked<String> {
    if text.is_empty() {
        return Err(FieldFault::at(field, BodyProblem::Missing));
    }
    short(field, text)
}

pub(super) fn branch_name(field: &str, text: &str) -> Checked<BranchName> {
    BranchName::new(text).map_err(|error| FieldFault::at(field, error.into()))
}

/// Checks required JSON.
pub(super) fn json(field: &str, bytes: Bytes) -> Checked<JsonText> {
    json::check_bytes(bytes).map_err(|fault| FieldFault::at(field, fault.into()))
}

/// Checks optional JSON; no bytes mean that it is absent.
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

/// Checks a map whose keys are short texts, and orders it.
pub(super) fn keyed(
    field: &str,
    map: impl IntoIterator<Item = (String, String)>,
) -> Checked<BTreeMap<String, String>> {
    map.into_iter()
        .map(|(key, value)| Ok((short(field, key)?, value)))
        .collect()
}

/// Like [`keyed`], and checks that the values are JSON text.
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

/// Converts each entry of a list; a fault names the entry.
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

/// Checks that no two entries of a list have the same key.
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

/// Converts an enum whose zero value means "unspecified" and is refused.
pub(super) fn chosen<E: TryFrom<i32>>(field: &str, value: i32) -> Checked<E> {
    if value == 0 {
        return Err(FieldFault::at(field, BodyProblem::Unspecified));
    }
    E::try_from(value).map_err(|_| FieldFault::at(field, BodyProblem::UnknownEnumValue { value }))
}

/// The `match` arm for the zero value, which [`chosen`] has already refused.
pub(super) fn unspecified<T>(field: &str) -> Checked<T> {
    Err(FieldFault::at(field, BodyProblem::Unspecified))
}
