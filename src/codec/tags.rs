//! The tags of an event (its key and attributes) and its body, as one: field 2047 of the body,
//! in front of what was received. They are content: hashed, kept and erased with it, and who
//! reads the body alone passes over a field that it does not know.

use bytes::{Buf, Bytes};
use prost::{
    Message,
    encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint},
};

use super::pb;
use crate::domain::{EventKind, Tags};

/// The field that they are. The last one whose number takes two bytes: bodies do not come there.
const FIELD: u32 = 2047;

/// What is stored of a body with these tags.
#[must_use]
pub fn join(tags: &Tags, body: &Bytes) -> Bytes {
    // A body that happens to begin with that field gets empty ones before it.
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

/// A stored body as it was received, and its tags. The body shares memory.
#[must_use]
pub fn split(stored: &Bytes) -> (Tags, Bytes) {
    taken_apart(stored).unwrap_or_else(|| (Tags::default(), stored.clone()))
}

/// The tags of a stored body.
#[must_use]
pub fn of(stored: &Bytes) -> Tags {
    split(stored).0
}

/// What stays of a stored body with headers only: its tags, and of a framework's event its type.
#[must_use]
pub fn alone(kind: u16, stored: &Bytes) -> Bytes {
    let (tags, body) = split(stored);
    found_by(&tags, &type_name(kind, &body))
}

/// A body that has nothing but this.
#[must_use]
pub fn found_by(tags: &Tags, type_name: &str) -> Bytes {
    let custom = pb::Custom {
        type_name: type_name.to_owned(),
        ..Default::default()
    };
    join(tags, &custom.encode_to_vec().into())
}

/// What a framework calls its event; empty of other kinds. Nothing else of the body is copied.
#[must_use]
pub fn type_name(kind: u16, body: &Bytes) -> String {
    if kind != EventKind::Custom.number() {
        return String::new();
    }
    let custom = pb::Custom::decode(body.clone());
    custom.map_or_else(|_| String::new(), |custom| custom.type_name)
}

/// Whether a stored body says that it is like another one's: see `Custom.delta_of`.
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
    use crate::codec::{arbitrary::event_body, body};

    fn tags() -> impl Strategy<Value = Tags> {
        let attributes = prop::collection::btree_map("[a-z]{1,8}", ".{0,20}", 0..4);
        ("[^\0]{0,20}", attributes).prop_map(|(key, attributes)| Tags { key, attributes })
    }

    proptest! {
        // Tags and body must come back as they went in, and the body must be readable as it is
        // stored: folds and the search index read it so.
        #[test]
        fn tags_and_body_come_back(tags in tags(), event in event_body()) {
            let received = body::encode(&event);
            let stored = join(&tags, &received);
            prop_assert_eq!(split(&stored), (tags, received));
            prop_assert_eq!(body::decode(event.kind(), &stored).unwrap(), event);
        }

        // A client may send any bytes that protobuf can read, also those that look like tags:
        // what it sent must come back, and must not become a key.
        #[test]
        fn what_looks_like_tags_is_not_taken_for_them(
            tags in tags(), inner in tags(), bytes in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let received = join(&inner, &Bytes::from(bytes));
            prop_assert_eq!(split(&join(&tags, &received)), (tags, received.clone()));
            prop_assert_eq!(split(&join(&Tags::default(), &received)), (Tags::default(), received));
        }

        // Bytes from a damaged disk must not make the reader panic.
        #[test]
        fn any_bytes_are_safe(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = split(&Bytes::from(bytes));
        }
    }
}
