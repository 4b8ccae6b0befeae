//! Checks and conversions of fields. The generated code selects them by the field's `form` option.

use std::collections::BTreeMap;

use bytes::Bytes;
use uuid::Uuid;

use super::fault::{BodyProblem, FieldFault, FieldResult};
use crate::json;
use treering_domain::{
    BranchId, BranchName, ContentHash, ConversationId, JsonText, PublicKey, Revision, TagsFault,
    check_key,
    limits::{EVENT_KEY_BYTES_MAX, JSON_VALUES_MAX, SHORT_TEXT_BYTES_MAX},
};

/// Replaces an erased text that is required.
pub const ERASED: &str = "erased";

/// A domain type that is an enum in protobuf.
pub(super) trait Choice: Sized {
    fn read(field: &str, value: i32) -> FieldResult<Self>;

    fn number(&self) -> i32;
}

/// A domain type that is a number, a bool or a hash in protobuf.
pub(super) trait Scalar<P>: Sized {
    fn read(field: &str, value: P) -> FieldResult<Self>;

    fn write(&self) -> P;
}

macro_rules! scalars {
    ($($domain:ty as $message:ty: |$value:ident| $read:expr, |$of:ident| $write:expr;)*) => {
        $(impl Scalar<$message> for $domain {
            fn read(_: &str, $value: $message) -> FieldResult<Self> {
                Ok($read)
            }

            fn write(&self) -> $message {
                let $of = self;
                $write
            }
        })*
    };
}

scalars! {
    u64 as u64: |value| value, |of| *of;
    u32 as u32: |value| value, |of| *of;
    bool as bool: |value| value, |of| *of;
    Option<u64> as Option<u64>: |value| value, |of| *of;
    Option<bool> as Option<bool>: |value| value, |of| *of;
    BranchId as u64: |value| Self(value), |of| of.0;
    Revision as u64: |value| Self(value), |of| of.0;
    Option<Revision> as u64: |value| (value != 0).then_some(Revision(value)),
        |of| of.map_or(0, |revision| revision.0);
    Vec<Revision> as Vec<u64>: |value| value.into_iter().map(Revision).collect(),
        |of| of.iter().map(|revision| revision.0).collect();
}

impl Scalar<Option<f64>> for Option<f64> {
    fn read(field: &str, value: Self) -> FieldResult<Self> {
        match value.is_some_and(|value| !value.is_finite()) {
            true => Err(FieldFault::at(field, BodyProblem::NotFinite)),
            false => Ok(value),
        }
    }

    fn write(&self) -> Self {
        *self
    }
}

impl Scalar<Bytes> for ContentHash {
    fn read(field: &str, value: Bytes) -> FieldResult<Self> {
        hash(field, &value)
    }

    fn write(&self) -> Bytes {
        Bytes::copy_from_slice(&self.0)
    }
}

impl Scalar<Bytes> for Option<ContentHash> {
    fn read(field: &str, value: Bytes) -> FieldResult<Self> {
        let is_set = !value.is_empty();
        is_set.then(|| hash(field, &value)).transpose()
    }

    fn write(&self) -> Bytes {
        self.as_ref().map_or_else(Bytes::new, Scalar::write)
    }
}

impl Scalar<Bytes> for Option<PublicKey> {
    fn read(field: &str, value: Bytes) -> FieldResult<Self> {
        let hash = Option::<ContentHash>::read(field, value)?;
        Ok(hash.map(|hash| PublicKey(hash.0)))
    }

    fn write(&self) -> Bytes {
        self.as_ref().map(|key| ContentHash(key.0)).write()
    }
}

fn hash(field: &str, bytes: &Bytes) -> FieldResult<ContentHash> {
    let array: Result<[u8; 32], _> = bytes.as_ref().try_into();
    array.map(ContentHash).map_err(|_| {
        let bytes = bytes.len();
        FieldFault::at(field, BodyProblem::HashLength { bytes })
    })
}

/// Checks a short text, which may be empty.
pub(super) fn short(field: &str, text: String) -> FieldResult<String> {
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
pub(super) fn event_key(field: &str, text: String) -> FieldResult<String> {
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
pub(super) fn name(field: &str, text: String) -> FieldResult<String> {
    if text.is_empty() {
        return Err(FieldFault::at(field, BodyProblem::Missing));
    }
    short(field, text)
}

pub(super) fn branch_name(field: &str, text: &str) -> FieldResult<BranchName> {
    BranchName::new(text).map_err(|error| FieldFault::at(field, error.into()))
}

/// Checks required JSON.
pub(super) fn json(field: &str, bytes: Bytes) -> FieldResult<JsonText> {
    json::check_bytes(bytes).map_err(|fault| FieldFault::at(field, fault.into()))
}

/// Checks optional JSON; no bytes mean that it is absent.
pub(super) fn optional_json(field: &str, bytes: Bytes) -> FieldResult<JsonText> {
    if bytes.is_empty() {
        return Ok(JsonText::default());
    }
    json(field, bytes)
}

pub(super) fn uuid(field: &str, text: &str) -> FieldResult<ConversationId> {
    if text.is_empty() {
        return Err(FieldFault::at(field, BodyProblem::Missing));
    }
    let uuid = Uuid::try_parse(text).map_err(|_| FieldFault::at(field, BodyProblem::NotUuid))?;
    Ok(ConversationId(uuid))
}

/// Checks a map whose keys are short texts, and orders it.
pub(super) fn text_map(
    field: &str,
    map: impl IntoIterator<Item = (String, String)>,
) -> FieldResult<BTreeMap<String, String>> {
    map.into_iter()
        .map(|(key, value)| Ok((short(field, key)?, value)))
        .collect()
}

/// Like [`text_map`], and checks that the values are JSON text.
pub(super) fn json_map(
    field: &str,
    map: impl IntoIterator<Item = (String, String)>,
) -> FieldResult<BTreeMap<String, String>> {
    let map = text_map(field, map)?;
    for value in map.values() {
        json::check_text(value.as_bytes()).map_err(|fault| FieldFault::at(field, fault.into()))?;
    }
    Ok(map)
}

/// Converts each entry of a list; a fault names the entry.
pub(super) fn each<A, B>(
    field: &str,
    items: Vec<A>,
    read: impl Fn(A) -> FieldResult<B>,
) -> FieldResult<Vec<B>> {
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
) -> FieldResult<()> {
    let mut seen = std::collections::HashSet::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        if !seen.insert(key(item)) {
            let fault = FieldFault::here(BodyProblem::Duplicate);
            return Err(fault.within_entry(field, index));
        }
    }
    Ok(())
}

/// Checks a list of short texts.
pub(super) fn short_list(field: &str, texts: Vec<String>) -> FieldResult<Vec<String>> {
    texts.into_iter().map(|text| short(field, text)).collect()
}

/// Checks a list of names, each of which occurs once.
pub(super) fn name_list(field: &str, names: Vec<String>) -> FieldResult<Vec<String>> {
    let names = each(field, names, |text| name("", text))?;
    distinct(field, &names, Clone::clone)?;
    Ok(names)
}

/// Limits the number of values in JSON from a client. Other text is counted as if it were JSON.
pub(super) fn values(field: &str, text: &[u8]) -> FieldResult<()> {
    json::check_values(text, JSON_VALUES_MAX).map_err(|fault| FieldFault::at(field, fault.into()))
}

/// Converts an enum whose zero value means "unspecified" and is refused.
pub(super) fn chosen<E: TryFrom<i32>>(field: &str, value: i32) -> FieldResult<E> {
    if value == 0 {
        return Err(FieldFault::at(field, BodyProblem::Unspecified));
    }
    E::try_from(value).map_err(|_| FieldFault::at(field, BodyProblem::UnknownEnumValue { value }))
}

/// The `match` arm for the zero value, which [`chosen`] has already refused.
pub(super) fn unspecified<T>(field: &str) -> FieldResult<T> {
    Err(FieldFault::at(field, BodyProblem::Unspecified))
}
