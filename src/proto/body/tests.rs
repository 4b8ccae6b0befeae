use proptest::prelude::*;

use super::*;
use crate::json::JsonFault;
use treering_arbitrary::{body_of, event_body};
use treering_domain::{Config, ContentHash, ConversationCreated, NameError};

fn fault<M: Message>(kind: EventKind, message: &M) -> (String, BodyProblem) {
    let fault = decode(kind, &message.encode_to_vec().into()).unwrap_err();
    assert_eq!(fault.kind, kind);
    (fault.field, fault.problem)
}

// Unordered maps were encoded in a different order each time. A batch that an embedding
// program repeated with its idempotency key had another content hash and could be refused:
// equal content must be encoded to equal bytes.
#[test]
fn equal_bodies_encode_to_equal_bytes() {
    let body = || {
        let map = || {
            let entry = |n: u32| (format!("name {n}"), "1".to_owned());
            (0..20).map(entry).collect()
        };
        EventBody::ConversationCreated(ConversationCreated {
            labels: map(),
            policies: map(),
            config: Config {
                parameters: map(),
                ..Config::default()
            },
            ..ConversationCreated::default()
        })
    };
    let first = encode(&body());
    for _ in 0..100 {
        assert!(encode(&body()) == first);
    }
}

proptest! {
    // Decoding must return the body that was encoded: the log is read for years.
    #[test]
    fn every_body_round_trips(body in event_body()) {
        let bytes = encode(&body);
        prop_assert_eq!(decode(body.kind(), &bytes), Ok(body));
    }

    // Bytes come from the network: decoding any bytes as any kind must not panic.
    #[test]
    fn any_bytes_are_decoded_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let bytes = Bytes::from(bytes);
        for &kind in EventKind::ALL {
            let _ = decode(kind, &bytes);
        }
    }

    // Almost valid bytes reach more of the checks than random bytes do.
    #[test]
    fn damaged_bodies_are_decoded_without_panic(body in event_body(), at in any::<prop::sample::Index>(), byte: u8) {
        let mut bytes = encode(&body).to_vec();
        if !bytes.is_empty() {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let bytes = Bytes::from(bytes);
        for &kind in EventKind::ALL {
            let _ = decode(kind, &bytes);
        }
    }
}

// The random choice of a kind could miss one: each kind must survive encoding and decoding.
#[test]
fn every_kind_round_trips() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    for &kind in EventKind::ALL {
        for _ in 0..20 {
            let body = body_of(kind).new_tree(&mut runner).unwrap().current();
            assert_eq!(body.kind(), kind);
            assert_eq!(decode(kind, &encode(&body)), Ok(body));
        }
    }
}

// A fault must name the field, also inside a list.
#[test]
fn body_fault_names_the_field() {
    let text = pb::ContentPart {
        part: Some(pb::content_part::Part::Text("x".into())),
    };
    let json = pb::ContentPart {
        part: Some(pb::content_part::Part::Json("{".into())),
    };
    let message = pb::MessageAppended {
        role: pb::Role::User.into(),
        parts: vec![text, json],
        ..Default::default()
    };
    let (field, problem) = fault(EventKind::MessageAppended, &message);
    assert_eq!(field, "parts[1].json");
    assert!(matches!(
        problem,
        BodyProblem::NotJson(JsonFault::Syntax { .. })
    ));

    let created = pb::ConversationCreated {
        parent: Some(pb::ParentRef {
            conversation_id: "not a uuid".into(),
            ..Default::default()
        }),
        ..Default::default()
    };
    assert_eq!(
        fault(EventKind::ConversationCreated, &created),
        ("parent.conversation_id".into(), BodyProblem::NotUuid)
    );
}

// Each check of a field must report its own problem.
#[test]
fn each_field_check_reports_its_problem() {
    let message = pb::MessageAppended::default();
    let (field, problem) = fault(EventKind::MessageAppended, &message);
    assert_eq!(
        (field.as_str(), problem),
        ("role", BodyProblem::Unspecified)
    );

    let message = pb::MessageAppended {
        role: 99,
        ..Default::default()
    };
    let (_, problem) = fault(EventKind::MessageAppended, &message);
    assert_eq!(problem, BodyProblem::UnknownEnumValue { value: 99 });

    let call = pb::ToolCallRequested {
        call_id: "c".into(),
        tool: "t".into(),
        arguments: vec![b'"', 0xff, b'"'].into(),
        ..Default::default()
    };
    let (field, problem) = fault(EventKind::ToolCallRequested, &call);
    assert_eq!(field, "arguments");
    let not_text = JsonFault::NotUtf8 { offset: 1 };
    assert_eq!(problem, BodyProblem::NotJson(not_text));

    let message = pb::MessageAppended {
        role: pb::Role::User.into(),
        raw: Some(pb::RawMessage {
            encoding: pb::RawEncoding::Rest.into(),
            data: "[1]".into(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let (field, problem) = fault(EventKind::MessageAppended, &message);
    assert_eq!(field, "raw.data");
    assert_eq!(problem, BodyProblem::NotAnObject);

    let call = pb::ToolCallRequested {
        call_id: "c".repeat(513),
        tool: "t".into(),
        arguments: "{}".into(),
        ..Default::default()
    };
    let (_, problem) = fault(EventKind::ToolCallRequested, &call);
    let too_long = BodyProblem::TooLong {
        bytes: 513,
        max: 512,
    };
    assert_eq!(problem, too_long);

    let decided = pb::ApprovalDecided {
        call_id: "c".into(),
        decision: pb::Decision::Approved.into(),
        arguments_hash: vec![1; 31].into(),
        ..Default::default()
    };
    let (_, problem) = fault(EventKind::ApprovalDecided, &decided);
    assert_eq!(problem, BodyProblem::HashLength { bytes: 31 });

    let renamed = pb::BranchRenamed::default();
    let (_, problem) = fault(EventKind::BranchRenamed, &renamed);
    assert!(matches!(
        problem,
        BodyProblem::Name(NameError::Empty { .. })
    ));

    let discovered = pb::ToolsDiscovered {
        names: vec!["a".into(), "b".into(), "a".into()],
    };
    let expected = ("names[2]".to_owned(), BodyProblem::Duplicate);
    assert_eq!(fault(EventKind::ToolsDiscovered, &discovered), expected);

    let annotation = pb::AnnotationAdded {
        score: Some(f64::NAN),
        ..Default::default()
    };
    let (_, problem) = fault(EventKind::AnnotationAdded, &annotation);
    assert_eq!(problem, BodyProblem::NotFinite);

    let not_protobuf = Bytes::from_static(b"\xff\xff\xff");
    let fault = decode(EventKind::Custom, &not_protobuf).unwrap_err();
    assert_eq!(fault.problem, BodyProblem::NotProtobuf);
    assert!(
        fault.to_string().starts_with("custom: the bytes"),
        "{fault}"
    );
}

// Approvals are bound to the argument bytes, so the received bytes must be hashed as they
// are. An unset approval field means that none is required.
#[test]
fn arguments_are_hashed_as_received() {
    let arguments = "{ \"b\":1, \"a\": 2}";
    let call = pb::ToolCallRequested {
        call_id: "c".into(),
        tool: "t".into(),
        arguments: arguments.into(),
        ..Default::default()
    };
    let body = decode(EventKind::ToolCallRequested, &call.encode_to_vec().into()).unwrap();
    let EventBody::ToolCallRequested(call) = body else {
        panic!("another kind");
    };
    let hash = blake3::hash(arguments.as_bytes());
    assert_eq!(call.arguments_hash, ContentHash(hash.into()));
    assert_eq!(call.arguments.as_str(), arguments);
    assert!(!call.needs_approval);
}

// Decoding must not copy large byte fields.
#[test]
fn decoded_byte_fields_are_not_copied() {
    let custom = pb::Custom {
        type_name: "t".into(),
        content_type: String::new(),
        data: vec![7; 100_000].into(),
        text: String::new(),
        delta_of: String::new(),
    };
    let bytes = Bytes::from(custom.encode_to_vec());
    let EventBody::Custom(custom) = decode(EventKind::Custom, &bytes).unwrap() else {
        panic!("another kind");
    };
    assert!(bytes.as_ptr_range().contains(&custom.data.as_ptr()));
}

fn a_call(arguments: impl Into<Bytes>, arguments_not_json: bool) -> Bytes {
    let call = pb::ToolCallRequested {
        call_id: "c".into(),
        tool: "t".into(),
        arguments: arguments.into(),
        arguments_not_json,
        ..Default::default()
    };
    call.encode_to_vec().into()
}

fn received(bytes: &Bytes) -> (ToolCallRequested, pb::ToolCallRequested) {
    let encoded = EncodedBody::received(EventKind::ToolCallRequested, bytes.clone()).unwrap();
    let EventBody::ToolCallRequested(call) = encoded.body().clone() else {
        panic!("another kind");
    };
    // The received bytes are unchanged, and the stored bytes decode to the same body.
    assert!(encoded.bytes().starts_with(bytes));
    assert_eq!(
        decode(EventKind::ToolCallRequested, encoded.bytes()).as_ref(),
        Ok(encoded.body())
    );
    let stored = pb::ToolCallRequested::decode(encoded.bytes().clone()).unwrap();
    (call, stored)
}

proptest! {
    // Calls whose arguments were not JSON were refused and could not be recorded. Any text must
    // be kept byte for byte, and `arguments_not_json` set correctly whatever the sender set.
    #[test]
    fn any_arguments_are_kept_and_flagged(text in "(\\PC|[{}\\[\\]\",:0-9]){0,40}", said: bool) {
        let (call, stored) = received(&a_call(text.clone(), said));
        let is_json = serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok();
        prop_assert_eq!(call.arguments.as_str(), &text);
        prop_assert_eq!(&stored.arguments, text.as_bytes());
        prop_assert_eq!(call.arguments_not_json, !is_json);
        prop_assert_eq!(stored.arguments_not_json, !is_json);
        prop_assert_eq!(call.arguments_hash, ContentHash(blake3::hash(text.as_bytes()).into()));
    }

    // Setting `arguments_not_json` must not change a call that has it already: receiving stored
    // bytes again must keep them, including unknown fields.
    #[test]
    fn received_call_round_trips_unchanged(body in body_of(EventKind::ToolCallRequested)) {
        let mut bytes = encode(&body).to_vec();
        prost::encoding::string::encode(999, &"unknown".to_owned(), &mut bytes);
        let bytes = Bytes::from(bytes);
        let once = EncodedBody::received(EventKind::ToolCallRequested, bytes.clone()).unwrap();
        prop_assert_eq!(once.bytes(), &bytes);
        prop_assert_eq!(once.body(), &body);
    }
}

// A model that repeats itself may open thousands of brackets. Unclosed, they are not JSON and
// must be kept as text; closed, they are JSON that is too deep for readers and must be refused.
#[test]
fn unclosed_brackets_are_text_and_deep_json_is_refused() {
    let open = "[".repeat(10_000);
    let (call, _) = received(&a_call(open.clone(), false));
    assert!(call.arguments_not_json);
    assert_eq!(call.arguments.as_str(), open);
    let deep = format!("{open}{}", "]".repeat(10_000));
    let fault = decode(EventKind::ToolCallRequested, &a_call(deep, false)).unwrap_err();
    assert!(matches!(
        fault.problem,
        BodyProblem::NotJson(JsonFault::TooDeep { .. })
    ));
    assert!(tool_call("c", "t", "ls -la").unwrap().arguments_not_json);
    assert!(!tool_call("c", "t", "{}").unwrap().arguments_not_json);
}

// A JSON list of 4 MiB takes 100 MB as a tree: it must be refused in any field of a
// client's event, and must stay readable if it is stored.
#[test]
fn incoming_json_with_too_many_values_is_refused() {
    let wide = format!("[0{}]", ",0".repeat(2 << 20));
    let tool = |name: &str, schema: &str| pb::ToolDefinition {
        name: name.into(),
        input_schema: schema.as_bytes().to_vec().into(),
        ..Default::default()
    };
    let tools = pb::ToolsDefined {
        tools: vec![tool("narrow", "{}"), tool("wide", &wide)],
    };
    let result = pb::ToolResultRecorded {
        call_id: "c".into(),
        parts: vec![pb::ContentPart {
            part: Some(pb::content_part::Part::Json(wide.clone())),
        }],
        ..Default::default()
    };
    for (kind, bytes, field) in [
        (
            EventKind::ToolsDefined,
            tools.encode_to_vec(),
            "tools[1].input_schema",
        ),
        (
            EventKind::ToolResultRecorded,
            result.encode_to_vec(),
            "parts[0].json",
        ),
    ] {
        let bytes = bytes.into();
        assert_eq!(decode_incoming(kind, &bytes).unwrap_err().field, field);
        assert!(decode(kind, &bytes).is_ok());
    }
}
