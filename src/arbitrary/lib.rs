//! `proptest` strategies for event bodies of every kind. They are derived from the descriptors and
//! field options in `proto/`, and generate bodies that `body::decode` accepts. They do not check
//! whether a conversation would accept the event.

#![cfg_attr(not(test), warn(unreachable_pub))]

use std::{collections::HashSet, sync::LazyLock};

use bytes::Bytes;
use proptest::{
    collection::{hash_map, vec},
    option,
    prelude::*,
};
use prost::Message as _;
use prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor,
    ReflectMessage as _, Value,
};
use uuid::Uuid;

use treering_domain::{EventBody, EventKind};
use treering_proto::{DESCRIPTORS, body};

static POOL: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(DESCRIPTORS).unwrap());

/// Generates event bodies of any kind.
pub fn event_body() -> BoxedStrategy<EventBody> {
    prop::sample::select(EventKind::ALL)
        .prop_flat_map(body_of)
        .boxed()
}

/// Generates event bodies of one kind.
///
/// # Panics
/// If the schema has no message for the kind.
pub fn body_of(kind: EventKind) -> BoxedStrategy<EventBody> {
    let event = POOL.get_message_by_name("treering.v1.Event").unwrap();
    let Kind::Message(of) = event.get_field(kind.number().into()).unwrap().kind() else {
        panic!("{kind} is not a message");
    };
    let decoded = move |message: DynamicMessage| {
        let bytes = message.encode_to_vec().into();
        body::decode(kind, &bytes).unwrap_or_else(|fault| panic!("{fault}: {message}"))
    };
    message(&of).prop_map(decoded).boxed()
}

fn message(of: &MessageDescriptor) -> BoxedStrategy<DynamicMessage> {
    let alone = of.fields().filter(|field| !is_in_oneof(field));
    let alone = alone.map(|field| one_of(of, vec![field]));
    let oneofs = of.oneofs().filter(|oneof| !oneof.is_synthetic());
    let oneofs = oneofs.map(|oneof| one_of(of, oneof.fields().collect()));
    let fields: Vec<_> = alone.chain(oneofs).collect();
    let of = of.clone();
    let made = move |fields: Vec<Option<(FieldDescriptor, Value)>>| {
        let mut message = DynamicMessage::new(of.clone());
        for (field, value) in fields.into_iter().flatten() {
            message.set_field(&field, value);
        }
        keep_rules(&mut message);
        message
    };
    fields.prop_map(made).boxed()
}

fn is_in_oneof(field: &FieldDescriptor) -> bool {
    field
        .containing_oneof()
        .is_some_and(|oneof| !oneof.is_synthetic())
}

/// Generates a value for one of these fields.
fn one_of(
    of: &MessageDescriptor,
    fields: Vec<FieldDescriptor>,
) -> BoxedStrategy<Option<(FieldDescriptor, Value)>> {
    let can_be_unset = fields.iter().any(FieldDescriptor::supports_presence);
    // If the message has no other fields, one of these must be set.
    let is_required = of.fields().len() == fields.len();
    let field = prop::sample::select(fields);
    let set = field.prop_flat_map(|field| {
        let with_field = {
            let field = field.clone();
            move |value| (field.clone(), value)
        };
        value(&field).prop_map(with_field)
    });
    match can_be_unset && !is_required {
        true => option::of(set).boxed(),
        false => set.prop_map(Some).boxed(),
    }
}

fn value(field: &FieldDescriptor) -> BoxedStrategy<Value> {
    if field.is_map() {
        let values = hash_map(text().prop_map(MapKey::String), form(field), 0..3);
        return values.prop_map(Value::Map).boxed();
    }
    let one = match field.kind() {
        Kind::String | Kind::Bytes => form(field),
        Kind::Message(of) => message(&of).prop_map(Value::Message).boxed(),
        Kind::Enum(of) => {
            let numbers: Vec<_> = of.values().skip(1).map(|value| value.number()).collect();
            prop::sample::select(numbers)
                .prop_map(Value::EnumNumber)
                .boxed()
        }
        Kind::Bool => any::<bool>().prop_map(Value::Bool).boxed(),
        Kind::Uint32 => any::<u32>().prop_map(Value::U32).boxed(),
        Kind::Uint64 => any::<u64>().prop_map(Value::U64).boxed(),
        Kind::Double => (-1e300..1e300_f64).prop_map(Value::F64).boxed(),
        kind => panic!("{}: no strategy for {kind:?}", field.full_name()),
    };
    if !field.is_list() {
        return one;
    }
    // Lists of numbers are not empty.
    let least = usize::from(!matches!(field.kind(), Kind::String | Kind::Message(_)));
    let list = vec(one, least..4);
    list.prop_map(|items| Value::List(distinct(items))).boxed()
}

/// Generates text or bytes according to the field option `form`.
fn form(field: &FieldDescriptor) -> BoxedStrategy<Value> {
    let option = POOL.get_extension_by_name("treering.v1.form").unwrap();
    let options = field.options();
    let form = options.get_extension(&option).as_enum_number().unwrap();
    let form = option.kind().as_enum().unwrap().get_value(form).unwrap();
    let text = match form.name() {
        "FORM_TEXT" | "FORM_SHORT" => text().boxed(),
        "FORM_NAME" => "[a-zA-Z0-9_:.-]{1,16}".boxed(),
        "FORM_BRANCH_NAME" => "[a-zé0-9/._-]{1,20}".boxed(),
        "FORM_EVENT_KEY" => text().prop_map(|text| text.replace('\0', "")).boxed(),
        "FORM_UUID" => any::<u128>()
            .prop_map(|id| Uuid::from_u128(id).to_string())
            .boxed(),
        "FORM_JSON" => json().boxed(),
        "FORM_OPTIONAL_JSON" => prop_oneof![Just(String::new()), json()].boxed(),
        "FORM_LIKELY_JSON" => prop_oneof![json(), not_json()].boxed(),
        "FORM_BYTES" => return vec(any::<u8>(), 0..24).prop_map(in_bytes).boxed(),
        "FORM_HASH" => return vec(any::<u8>(), 32).prop_map(in_bytes).boxed(),
        "FORM_OPTIONAL_HASH" => {
            let hash = prop_oneof![vec(any::<u8>(), 0), vec(any::<u8>(), 32)];
            return hash.prop_map(in_bytes).boxed();
        }
        form => panic!("{}: no strategy for {form}", field.full_name()),
    };
    match field.kind() {
        Kind::Bytes => text.prop_map(|text| in_bytes(text.into())).boxed(),
        _ => text.prop_map(Value::String).boxed(),
    }
}

fn in_bytes(bytes: Vec<u8>) -> Value {
    Value::Bytes(Bytes::from(bytes))
}

/// Keeps one entry for each name or number.
fn distinct(items: Vec<Value>) -> Vec<Value> {
    let mut seen = HashSet::new();
    let key = |item: &Value| match item {
        // The first field of an entry is its name; in a content part, it is a member of a oneof.
        Value::Message(message) if is_named(&message.descriptor()) => {
            let name = message.get_field_by_number(1);
            name.map_or(String::new(), |name| name.to_string())
        }
        Value::Message(_) => String::new(),
        other => other.to_string(),
    };
    let is_new = |item: &Value| {
        let key = key(item);
        key.is_empty() || seen.insert(key)
    };
    items.into_iter().filter(is_new).collect()
}

fn is_named(of: &MessageDescriptor) -> bool {
    of.get_field(1).is_some_and(|field| !is_in_oneof(&field))
}

/// Makes a message satisfy the rules that span several fields.
fn keep_rules(message: &mut DynamicMessage) {
    const WHOLE: i32 = 1;
    const REST: i32 = 3;
    let descriptor = message.descriptor();
    if descriptor.name() == "ConversationCreated" && !message.has_field_by_name("parent") {
        message.clear_field_by_name("shares_history");
    }
    if descriptor.name() == "RawMessage" {
        let encoding = message.get_field_by_name("encoding").unwrap();
        let is_rest = encoding.as_enum_number() == Some(REST);
        let data = message.get_field_by_name("data").unwrap().into_owned();
        let data = data.as_bytes().unwrap();
        // Every encoding except WHOLE requires JSON, and REST requires a JSON object.
        if serde_json::from_slice::<serde::de::IgnoredAny>(data).is_err() {
            message.set_field_by_name("encoding", Value::EnumNumber(WHOLE));
        } else if is_rest {
            let object = [b"{\"rest\":", &data[..], b"}"].concat();
            message.set_field_by_name("data", in_bytes(object));
        }
    }
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        "\\PC{1,12}",
        "[a-z\\n\"\\\\ü€😀]{0,12}"
    ]
}

/// Generates unusual JSON text: with spaces, duplicate keys, long numbers.
fn json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("1.50e+02".to_owned()),
        Just("123456789012345678901234567890".to_owned()),
        text().prop_map(|text| serde_json::Value::from(text).to_string()),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(|items| format!("[{}]", items.join(" ,"))),
            vec(inner, 0..4).prop_map(|items| {
                let fields = items.iter().map(|item| format!("\"k\" : {item}"));
                format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
            }),
        ]
    })
}

/// Generates text that models write instead of JSON: nothing, prose, truncated JSON.
fn not_json() -> impl Strategy<Value = String> {
    let broken = (json(), any::<prop::sample::Index>()).prop_map(|(json, at)| {
        let text = format!("{{\"a\": {json}");
        let end = text.floor_char_boundary(1 + at.index(text.len()));
        text[..end].to_owned()
    });
    prop_oneof![Just(String::new()), Just("ls -la".to_owned()), broken]
}
