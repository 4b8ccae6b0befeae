//! Compares the computed memory with what the generated code really takes.

use proptest::prelude::*;
use prost::{
    Message,
    encoding::{WireType, encode_key, encode_varint},
};

use super::{
    budget::Pool,
    methods::{Method, Methods},
};
use crate as server;
use treering_domain::Limits;
use treering_proto::pb;

fn methods() -> Methods {
    let limits = Limits::default();
    let most = Pool::most_for_one(server::bytes_in_flight_max(&limits));
    Methods::read(
        &server::served(&server::ServeOptions::default()),
        &limits,
        most,
    )
    .unwrap()
}

fn append(methods: &Methods) -> Method {
    methods.get("/treering.v1.Events/Append")
}

fn field(number: u32, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_key(number, WireType::LengthDelimited, &mut bytes);
    encode_varint(content.len() as u64, &mut bytes);
    bytes.extend_from_slice(content);
    bytes
}

// A message that takes more than counted is a hole in the budget: sizes from the descriptors must
// never be below the real ones.
#[test]
fn counted_message_sizes_cover_the_real_ones() {
    let methods = methods();
    macro_rules! check {
        ($($message:ident)*) => {$({
            let name = concat!("treering.v1.", stringify!($message));
            let index = methods.shapes().index(name).unwrap();
            let counted = methods.shapes().get(index).size;
            let real = size_of::<pb::$message>();
            assert!(real <= counted, "{name}: {real} > {counted}");
            assert!(counted <= real * 3 + 64, "{name}: {real} is counted as {counted}");
        })*};
    }
    check!(AppendRequest NewEvent Event BranchExpectation ExpectedRevision MessageAppended);
    check!(ContentPart Media Reasoning Usage RawMessage ToolCallRequested ToolResultRecorded);
    check!(ToolDefinition ToolsDefined Guidance Entity ContextSet ConversationCreated Config);
    check!(ParentRef ApprovalDecided AnnotationAdded Compacted ContentErased ToolsDiscovered);
    check!(ReadRequest SubscribeRequest SearchRequest BuildRequest CompactRequest SpawnRequest);
    check!(SetContextRequest WatchContextRequest ForkRequest RecordResultStart);
}

/// Returns paths from a message to each of its lists and maps: field numbers, of which the last is
/// repeated.
fn lists(
    files: &prost_types::FileDescriptorSet,
    message: &str,
    way: &[u32],
    found: &mut Vec<(Vec<u32>, bool)>,
) {
    use prost_types::field_descriptor_proto::{Label, Type};
    let mut all = files.file.iter().flat_map(|file| {
        let named = |m: &prost_types::DescriptorProto| format!(".{}.{}", file.package(), m.name());
        file.message_type.iter().map(move |m| (named(m), m))
    });
    let Some((_, descriptor)) = all.find(|(name, _)| name == message) else {
        return;
    };
    for field in &descriptor.field {
        let way = [way, &[u32::try_from(field.number()).unwrap()]].concat();
        let is_message = field.r#type() == Type::Message;
        if field.label() == Label::Repeated {
            let packed = !is_message && !matches!(field.r#type(), Type::String | Type::Bytes);
            found.push((way.clone(), packed));
        }
        if is_message && way.len() < 5 {
            lists(files, field.type_name(), &way, found);
        }
    }
}

// New methods and fields must be limited automatically: every list of every request of every served
// method is filled, and none may be decoded.
#[test]
fn every_list_of_every_method_is_counted() {
    let methods = methods();
    let mut lists_seen = 0;
    let mut paths_seen = 0;
    for bytes in server::served(&server::ServeOptions::default()) {
        let files = prost_types::FileDescriptorSet::decode(bytes).unwrap();
        for file in &files.file {
            for service in &file.service {
                for described in &service.method {
                    let (package, service) = (file.package(), service.name());
                    let path = format!("/{package}.{service}/{}", described.name());
                    let known = methods.paths().any(|(known, _)| known == path);
                    assert!(known, "{path} is not known");
                    paths_seen += 1;
                    let mut found = Vec::new();
                    lists(&files, described.input_type(), &[], &mut found);
                    for (way, packed) in found {
                        lists_seen += 1;
                        // No need to fill the largest: the cost is linear.
                        let mut method = methods.get(&path);
                        method.bytes_max = 200_000;
                        let (last, outer) = way.split_last().unwrap();
                        let mut bytes = if packed {
                            field(*last, &vec![0; 190_000])
                        } else {
                            field(*last, b"").repeat(60_000)
                        };
                        for number in outer.iter().rev() {
                            bytes = field(*number, &bytes);
                        }
                        assert!(bytes.len() < method.bytes_max, "{path} {way:?}");
                        let cost = methods.cost(method, &bytes);
                        assert!(cost.is_err(), "{path} {way:?}: {cost:?}");
                    }
                }
            }
        }
    }
    assert!(paths_seen >= 35, "{paths_seen}");
    assert!(lists_seen >= 30, "{lists_seen}");
}

// The limits must admit what the store allows: a batch with the most events, of the most bytes.
#[test]
fn largest_allowed_batches_are_accepted() {
    let methods = methods();
    let limits = Limits::default();
    for (events, parts, text_bytes) in [
        (limits.batch_events_max, 1, 6_000),
        (limits.batch_events_max, 5, 600),
        (1, 1, 63 << 20),
        (1, 100_000, 300),
    ] {
        let part = pb::ContentPart {
            part: Some(pb::content_part::Part::Text("x".repeat(text_bytes))),
        };
        let message = pb::MessageAppended {
            role: pb::Role::User.into(),
            parts: vec![part; parts],
            ..Default::default()
        };
        let event = pb::NewEvent {
            conversation_id: "018f9f4e-0000-7000-8000-000000000000".into(),
            body: Some(pb::new_event::Body::MessageAppended(
                message.encode_to_vec().into(),
            )),
            ..Default::default()
        };
        let bytes = field(5, &event.encode_to_vec()).repeat(events);
        assert!(bytes.len() <= server::bounds::MESSAGE_BYTES_MAX);
        let cost = methods.cost(append(&methods), &bytes).unwrap();
        assert!(cost >= bytes.len() * 9 / 10, "{cost} < {}", bytes.len());
    }
}

proptest! {
    // Any bytes are counted or refused without a panic; what decodes was counted with at least its
    // texts.
    #[test]
    fn any_bytes_are_counted_or_refused(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        wrap in any::<bool>(),
    ) {
        let methods = methods();
        let bytes = if wrap { field(5, &field(28, &bytes)) } else { bytes };
        let cost = methods.cost(append(&methods), &bytes).unwrap_or(usize::MAX);
        if let Ok(request) = pb::AppendRequest::decode(bytes.as_slice()) {
            let texts: usize = request.events.iter().map(|event| event.actor.len()).sum();
            let events = request.events.len() * size_of::<pb::NewEvent>();
            prop_assert!(cost >= texts + events);
        }
    }
}
