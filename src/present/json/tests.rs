//! Pins the output of `--json`: scripts rely on every byte of it.

use std::{path::Path, sync::LazyLock};

use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MapKey, Value};

use super::*;
use crate::pb;
use treering_domain::EventKind;
use treering_proto::{DESCRIPTORS, envelope::event_arm};

static POOL: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(DESCRIPTORS).unwrap());

/// Returns a message with every field set. Texts are valid JSON, so that embedding is visible, and
/// lists have two entries.
fn full(name: &str) -> DynamicMessage {
    let descriptor = POOL.get_message_by_name(name).unwrap();
    let mut message = DynamicMessage::new(descriptor.clone());
    for field in descriptor.fields() {
        let value = if field.is_map() {
            let Kind::Message(entry) = field.kind() else {
                panic!("a map has entries");
            };
            let of = |key: &str| {
                (
                    MapKey::String(key.to_owned()),
                    one(&entry.map_entry_value_field()),
                )
            };
            Value::Map([of("b"), of("a")].into())
        } else if field.is_list() {
            Value::List(vec![one(&field), one(&field)])
        } else {
            one(&field)
        };
        message.set_field(&field, value);
    }
    message
}

fn one(field: &FieldDescriptor) -> Value {
    let text = format!("{{\"{}\":\n 1.50}}", field.name());
    match field.kind() {
        Kind::String => Value::String(text),
        Kind::Bytes => Value::Bytes(text.into()),
        Kind::Bool => Value::Bool(true),
        Kind::Double => Value::F64(-0.25),
        Kind::Float => Value::F32(7.1),
        Kind::Int64 => Value::I64(-3),
        Kind::Uint32 => Value::U32(field.number()),
        Kind::Uint64 => Value::U64(u64::MAX - u64::from(field.number())),
        Kind::Enum(of) => Value::EnumNumber(of.values().last().unwrap().number()),
        Kind::Message(of) if of.name() == "Timestamp" => {
            let time = prost_types::Timestamp {
                seconds: 1_750_000_000,
                nanos: 1_000,
            };
            let mut message = DynamicMessage::new(of);
            message.transcode_from(&time).unwrap();
            Value::Message(message)
        }
        Kind::Message(of) => Value::Message(full(of.full_name())),
        other => panic!("{other:?} is not used"),
    }
}

/// Returns the output for a message with every field set and for an empty one.
fn both<M: Message + Default>(name: &str, write: impl Fn(&M) -> String) -> String {
    let all: M = full(&format!("treering.v1.{name}")).transcode_to().unwrap();
    format!("{name}\n{}\n{}\n", write(&all), write(&M::default()))
}

fn golden(kind: EventKind) -> Vec<u8> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/golden/v0.1");
    std::fs::read(root.join(format!("{kind}.bin"))).unwrap()
}

fn of_kind(kind: EventKind, body: Vec<u8>) -> String {
    event(&pb::Event {
        kind: kind.number().into(),
        body: event_arm(kind.number(), body.into()),
        ..Default::default()
    })
}

/// Returns the message name of a kind: `BranchRenamed` for `branch_renamed`.
fn message_name(kind: EventKind) -> String {
    let words = kind.as_str().split('_').map(|word| {
        let (first, rest) = word.split_at(1);
        first.to_ascii_uppercase() + rest
    });
    format!("treering.v1.{}", words.collect::<String>())
}

// The output format of a kind must not change with an update: each kind, with every field set and
// with none.
#[test]
fn json_of_events_matches_the_snapshot() {
    let mut text = String::new();
    for &kind in EventKind::ALL {
        let all = full(&message_name(kind)).encode_to_vec();
        for body in [golden(kind), all, Vec::new()] {
            text.push_str(&of_kind(kind, body));
            text.push('\n');
        }
    }
    text.push_str(&both("Event", |m: &pb::Event| {
        let mut event_only = m.clone();
        event_only.body = None;
        event(&event_only)
    }));
    // A body that cannot be decoded, and a kind of a newer version.
    text.push_str(&of_kind(EventKind::Custom, vec![0xff, 0xff]));
    let newer = pb::Event {
        kind: 999,
        ..Default::default()
    };
    text.push('\n');
    text.push_str(&event(&newer));
    insta::assert_snapshot!(text);
}

// Every variant of each oneof, since only one of them can be set at a time.
#[test]
fn json_of_parts_matches_the_snapshot() {
    use pb::{content_part::Part, media::Source};
    let media = |source| pb::Media {
        media_type: "image/png".into(),
        source,
        ..Default::default()
    };
    let parts = [
        None,
        Some(Part::Text(String::new())),
        Some(Part::Refusal("\u{1}no".into())),
        Some(Part::Json(r#"{"a": 1e400}"#.into())),
        Some(Part::Json("no JSON".into())),
        Some(Part::Image(media(None))),
        Some(Part::File(media(Some(Source::Uri(String::new()))))),
        Some(Part::Audio(media(Some(Source::Data(vec![0, 255].into()))))),
        Some(Part::Audio(media(Some(Source::Data(Vec::new().into()))))),
        Some(Part::Reasoning(pb::Reasoning::default())),
    ];
    let message = pb::MessageAppended {
        role: 99,
        parts: parts.map(|part| pb::ContentPart { part }).into(),
        ..Default::default()
    };
    let mut text = of_kind(EventKind::MessageAppended, message.encode_to_vec());
    use pb::watch_context_response::Item;
    let entry = full("treering.v1.ContextEntry").transcode_to().unwrap();
    for item in [
        None,
        Some(Item::Entry(entry)),
        Some(Item::RemovedKey("workspace".into())),
        Some(Item::CaughtUp(pb::CaughtUpContext { revision: 7 })),
    ] {
        text.push('\n');
        text.push_str(&context_change(&pb::WatchContextResponse { item }));
    }
    insta::assert_snapshot!(text);
}

// The same for all printed answers.
#[test]
fn json_of_answers_matches_the_snapshot() {
    let mut text = both("ConversationSummary", of::<pb::ConversationSummary>);
    text += &both("Branch", of::<pb::Branch>);
    text += &both("ConversationState", |m| {
        conversation(m, |branch, object| {
            object.number("counted", branch.head);
        })
    });
    text += &both("ToolCall", pending_call);
    text += &both("ToolCall", of::<pb::ToolCall>);
    text += &both("ForkResponse", of::<pb::ForkResponse>);
    text += &both("SearchHit", hit);
    text += &both("ConversationHits", of::<pb::ConversationHits>);
    text += &both("StatsResponse", of::<pb::StatsResponse>);
    text += &both("Fault", of::<pb::Fault>);
    text += &both("VerifyOutcome", of::<pb::VerifyOutcome>);
    text += &both("BuildResponse", of::<pb::BuildResponse>);
    text += &both("CompactionPlan", of::<pb::CompactionPlan>);
    text += &both("CompactResponse", compacted);
    text += &both("AppendResponse", |m: &pb::AppendResponse| {
        appended(&m.events, m.repeated_key, &m.warnings, Object::new())
    });
    text += &both("ToolSnapshot", of::<pb::ToolSnapshot>);
    text += &both("ToolDefinition", |m| offered_tool("grep", Some(m), true, 3));
    text += &offered_tool("grep", None, false, 0);
    text.push('\n');
    text += &both("KnowledgeResponse", knowledge);
    text += &both("KnownFile", file);
    text += &both("KnownVariables", variables);
    text += &both("SuggestArgumentsResponse", |m| suggested("grep", m));
    insta::assert_snapshot!(text);
}
