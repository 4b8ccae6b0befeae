//! Compares the encoding of headers with that of bincode, the original encoder.

use bincode::Encode;
use proptest::prelude::*;

use super::*;
use crate::frame::tests::a_record;

/// The fields as listed in `docs/FORMAT.md`.
#[derive(Encode)]
struct Fields<'a> {
    id: [u8; 16],
    namespace: &'a str,
    conversation: [u8; 16],
    branch: u64,
    revision: u64,
    kind: u16,
    recorded_at: i64,
    occurred_at: Option<i64>,
    actor: &'a str,
    causation_id: Option<[u8; 16]>,
    correlation_id: &'a str,
    body_bytes: u64,
    /// 0: no key, and nothing follows; 1: a key; 2: a key with an expiry.
    key: u8,
    append_key: OptionalField<(&'a str, u32, [u8; 32])>,
    key_ends_at: OptionalField<i64>,
}

/// Encodes nothing when there is no value.
struct OptionalField<T>(Option<T>);

impl<T: Encode> Encode for OptionalField<T> {
    fn encode<E: bincode::enc::Encoder>(
        &self,
        encoder: &mut E,
    ) -> Result<(), bincode::error::EncodeError> {
        self.0
            .as_ref()
            .map_or(Ok(()), |value| value.encode(encoder))
    }
}

impl<'a> Fields<'a> {
    fn of(record: &'a Record) -> Self {
        let header = &record.header;
        let key = record.append_key.as_ref();
        let ends_at = key.and_then(|key| key.ends_at);
        Self {
            id: header.id.0.into_bytes(),
            namespace: header.namespace.as_str(),
            conversation: header.conversation.0.into_bytes(),
            branch: header.branch.0,
            revision: header.revision.0,
            kind: header.kind,
            recorded_at: header.recorded_at.0,
            occurred_at: header.occurred_at.map(|at| at.0),
            actor: &header.actor,
            causation_id: header.causation_id.map(|id| id.0.into_bytes()),
            correlation_id: &header.correlation_id,
            body_bytes: record.body.bytes_len(),
            key: u8::from(key.is_some()) + u8::from(ends_at.is_some()),
            append_key: OptionalField(
                key.map(|key| (key.key.as_str(), key.events, key.content_hash.0)),
            ),
            key_ends_at: OptionalField(ends_at.map(|at| at.0)),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    // Headers are encoded by hand; a single different byte would break every chain hash of every
    // store.
    #[test]
    fn header_encoding_equals_bincode(record in a_record()) {
        let fixed = bincode::config::standard().with_fixed_int_encoding();
        let wanted = bincode::encode_to_vec(Fields::of(&record), fixed).unwrap();
        let found = with_header_bytes(&record, <[u8]>::to_vec).unwrap();
        prop_assert_eq!(found, wanted);
    }

    // Decoding must return exactly what was encoded, and reject a truncated or longer header.
    #[test]
    fn header_round_trips_and_truncation_is_refused(record in a_record(), cut in any::<prop::sample::Index>()) {
        let bytes = with_header_bytes(&record, <[u8]>::to_vec).unwrap();
        let (header, body_bytes, key) = RecordReader::default().header(&bytes).unwrap();
        prop_assert_eq!(&header, &record.header);
        prop_assert_eq!(body_bytes, record.body.bytes_len());
        // The salt must not be in the header: the chain hash covers the header, so it could not be
        // erased.
        let wanted = record.append_key.clone().map(AppendKey::without_salt);
        prop_assert_eq!(key, wanted);
        let cut = cut.index(bytes.len());
        prop_assert!(RecordReader::default().header(&bytes[..cut]).is_err());
        let longer = [bytes.as_slice(), &[0]].concat();
        prop_assert!(RecordReader::default().header(&longer).is_err());
    }
}

// A frame can hold records of several namespaces: the cached last namespace must not be used for a
// different name.
#[test]
fn cached_namespace_is_used_only_for_its_name() {
    let names = ["a", "b", "b", "a"].map(|name| Namespace::new(name).unwrap());
    let mut reader = RecordReader::default();
    for name in &names {
        assert_eq!(reader.namespace(name.as_str()).unwrap(), *name);
    }
    assert!(reader.namespace("not legal").is_err());
    assert_eq!(reader.namespace("a").unwrap(), names[0]);
}
