//! Stores the tags of an event (its event key and attributes) in its body: as field 2047, before
//! the bytes that were received. So they are hashed, stored and erased with the body, and
//! readers of the body skip them as an unknown field.

use bytes::{Buf, Bytes};
use prost::{
    Message,
    encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint},
};

use super::pb;
use treering_domain::{EventKind, Tags};

/// The field number: the last one that takes two bytes. No body uses it.
const FIELD: u32 = 2047;

/// Returns the stored body: the tags, then the body as received.
#[must_use]
pub fn join(tags: &Tags, body: &Bytes) -> Bytes {
    // A received body that begins with this field gets empty tags before it.
    if tags.is_empty() && taken_apart(body).is_none() {
        return body.clone();
    }
    let message = pb::EventTags {
        key: tags.key.clone(),
        attributes: tags.attributes.clone(),
    };
    let length = message.encoded_len();
    let mut joined = Vec::with_capacity(length + body.len() + 8);
    encode_key(FIELD, WireType::LengthDelimited, &mut joined);
    encode_varint(length as u64, &mut joined);
    message.encode_raw(&mut joined);
    joined.extend_from_slice(body);
    joined.into()
}

/// Splits a stored body into its tags and the body as received, which shares memory with it.
#[must_use]
pub fn split(stored: &Bytes) -> (Tags, Bytes) {
    taken_apart(stored).unwrap_or_else(|| (Tags::default(), stored.clone()))
}

/// Returns the tags of a stored body.
#[must_use]
pub fn of(stored: &Bytes) -> Tags {
    split(stored).0
}

/// Reduces a stored body to what a read with headers only returns: its tags and, for custom
/// events, the type name.
#[must_use]
pub fn alone(kind: u16, stored: &Bytes) -> Bytes {
    let (tags, body) = split(stored);
    found_by(&tags, &type_name(kind, &body))
}

/// Returns a stored body with only these tags and this type name.
#[must_use]
pub fn found_by(tags: &Tags, type_name: &str) -> Bytes {
    let custom = pb::Custom {
        type_name: type_name.to_owned(),
        ..Default::default()
    };
    join(tags, &custom.encode_to_vec().into())
}

/// Returns the type name of a custom event; empty for other kinds. Copies nothing else.
#[must_use]
pub fn type_name(kind: u16, body: &Bytes) -> String {
    if kind != EventKind::Custom.number() {
        return String::new();
    }
    let custom = pb::Custom::decode(body.clone());
    custom.map_or_else(|_| String::new(), |custom| custom.type_name)
}

/// Returns true if a stored body sets `Custom.delta_of`.
#[must_use]
pub fn is_like_another(kind: u16, stored: &Bytes) -> bool {
    if kind != EventKind::Custom.number() {
        return false;
    }
    let custom = pb::Custom::decode(split(stored).1);
    custom.is_ok_and(|custom| !custom.delta_of.is_empty())
}

fn taken_apart(stored: &Bytes) -> Option<(Tags, Bytes)> {
    let mut rest = stored.clone();
    let key = decode_key(&mut rest).ok()?;
    if key != (FIELD, WireType::LengthDelimited) {
        return None;
    }
    let length = usize::try_from(decode_varint(&mut rest).ok()?).ok()?;
    if length > rest.remaining() {
        return None;
    }
    let message = pb::EventTags::decode(rest.split_to(length)).ok()?;
    let tags = Tags {
        key: message.key,
        attributes: message.attributes,
    };
    Some((tags, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::body;
    use treering_arbitrary::event_body;

    fn tags() -> impl Strategy<Value = Tags> {
        let attributes = prop::collection::btree_map("[a-z]{1,8}", ".{0,20}", 0..4);
        ("[^\0]{0,20}", attributes).prop_map(|(key, attributes)| Tags { key, attributes })
    }

    proptest! {
        // Splitting must return the same tags and body. The stored body must also decode as it
        // is: projections and the search index read it without splitting.
        #[test]
        fn tags_and_body_round_trip(tags in tags(), event in event_body()) {
            let received = body::encode(&event);
            let stored = join(&tags, &received);
            prop_assert_eq!(split(&stored), (tags, received));
            prop_assert_eq!(body::decode(event.kind(), &stored).unwrap(), event);
        }

        // A client may send a body that begins like tags. It must come back unchanged, and must
        // not be taken for tags.
        #[test]
        fn body_that_looks_like_tags_is_unchanged(
            tags in tags(), inner in tags(), bytes in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let received = join(&inner, &Bytes::from(bytes));
            prop_assert_eq!(split(&join(&tags, &received)), (tags, received.clone()));
            prop_assert_eq!(split(&join(&Tags::default(), &received)), (Tags::default(), received));
        }

        // Damaged bytes must not cause a panic.
        #[test]
        fn any_bytes_are_split_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = split(&Bytes::from(bytes));
        }
    }
}
