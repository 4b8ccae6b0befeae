//! Faults in event bodies.

use crate::json::JsonFault;
use treering_domain::{EventKind, NameError};

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
    #[error("is required, but not set")]
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
    #[error(
        "must be a JSON object, {{…}}, with the members of the message that the event has no \
         field for"
    )]
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
    #[error("has a NUL character, which is not allowed in a key")]
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

pub(super) type FieldResult<T> = Result<T, FieldFault>;

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
