//! Reads the options of `proto/treering/v1/options.proto`.

use std::collections::BTreeMap;

use protox::prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, Value,
};

/// Returns the value of an option, without the prefix of its enum: `CLEAR` for `ERASE_CLEAR`.
pub fn chosen(pool: &DescriptorPool, options: &DynamicMessage, name: &str) -> Option<String> {
    let extension = pool
        .get_extension_by_name(&format!("treering.v1.{name}"))
        .unwrap_or_else(|| panic!("options.proto has no {name}"));
    if !options.has_extension(&extension) {
        return None;
    }
    let value = options.get_extension(&extension);
    let (Kind::Enum(choices), Value::EnumNumber(number)) = (extension.kind(), value.as_ref())
    else {
        panic!("the option {name} is not an enum");
    };
    let prefix = format!("{}_", snake(choices.name()).to_uppercase());
    let value = choices.get_value(*number).expect("a declared value");
    let text = value.name().strip_prefix(&prefix).expect("the prefix");
    Some(text.to_owned())
}

/// Returns the value of a field's option.
pub(crate) fn of_field(field: &FieldDescriptor, name: &str) -> Option<String> {
    chosen(field.parent_pool(), &field.options(), name)
}

/// The payload of a kind's variant in the domain crate.
pub enum Payload {
    Nothing,
    /// The fields of the message.
    Fields,
    /// A value of this type.
    Value(String),
}

/// A kind of event.
pub struct EventBody {
    pub message: MessageDescriptor,
    pub number: u32,
    pub payload: Payload,
}

/// Returns all kinds of events, ordered by number.
///
/// # Panics
/// If `EventKind`, `Event.body`, `NewEvent.body` and the domain's table have different kinds.
pub fn bodies(pool: &DescriptorPool) -> Vec<EventBody> {
    let arms = |name: &str| -> Vec<FieldDescriptor> {
        let envelope = message(pool, name);
        let body = envelope.oneofs().find(|oneof| oneof.name() == "body");
        body.map_or(Vec::new(), |body| body.fields().collect())
    };
    let named = |arm: &FieldDescriptor| (arm.number(), arm.name().to_owned());
    let numbered = |arms: &[FieldDescriptor]| arms.iter().map(named).collect::<BTreeMap<_, _>>();
    let arms_of_event = arms("Event");
    let names = numbered(&arms_of_event);
    assert_eq!(
        numbered(&arms("NewEvent")),
        names,
        "NewEvent.body is not Event.body"
    );
    let kinds = pool.get_enum_by_name("treering.v1.EventKind").unwrap();
    let kinds = kinds.values().skip(1).map(|kind| {
        let name = kind.name().trim_start_matches("EVENT_KIND_");
        (u32::try_from(kind.number()).unwrap(), name.to_lowercase())
    });
    assert_eq!(
        kinds.collect::<BTreeMap<_, _>>(),
        names,
        "EventKind is not Event.body"
    );
    let mut table = domain_table();
    let rows = table
        .iter()
        .map(|(number, (name, ..))| (*number, name.clone()));
    let rows: BTreeMap<_, _> = rows.collect();
    assert_eq!(
        rows, names,
        "the table of src/domain/kind.rs is not Event.body"
    );
    let bodies = arms_of_event.iter().map(|arm| {
        let Kind::Message(message) = arm.kind() else {
            panic!("{} is not a message", arm.full_name());
        };
        let (_, variant, payload) = table.remove(&arm.number()).unwrap();
        assert_eq!(message.name(), variant, "the name in src/domain/kind.rs");
        EventBody {
            message,
            number: arm.number(),
            payload,
        }
    });
    bodies.collect()
}

/// Reads the table of `src/domain/kind.rs`: name, variant and payload by number.
fn domain_table() -> BTreeMap<u32, (String, String, Payload)> {
    let text = std::fs::read_to_string("../domain/kind.rs").expect("the domain's table of kinds");
    let row = |line: &str| {
        let (number, rest) = line.trim().strip_suffix(';')?.split_once(' ')?;
        let (name, variant) = rest.split_once(' ')?;
        let end = variant.find([' ', '(']).unwrap_or(variant.len());
        let (variant, payload) = variant.split_at(end);
        let payload = match payload.trim_end_matches(')').split_once(": ") {
            None => Payload::Nothing,
            Some(_) if payload.starts_with(" {") => Payload::Fields,
            Some((_, of)) => Payload::Value(of.to_owned()),
        };
        Some((
            number.parse().ok()?,
            (name.to_owned(), variant.to_owned(), payload),
        ))
    };
    text.lines().filter_map(row).collect()
}

fn message(pool: &DescriptorPool, name: &str) -> MessageDescriptor {
    let found = pool.get_message_by_name(&format!("treering.v1.{name}"));
    found.unwrap_or_else(|| panic!("there is no message {name}"))
}

/// Returns `content_part` for `ContentPart`.
pub fn snake(name: &str) -> String {
    let mut text = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.extend(c.to_lowercase());
    }
    text
}

/// Returns `TimedOut` for `TIMED_OUT` and for `timed_out`.
pub fn camel(name: &str) -> String {
    let words = name.split('_').map(|word| {
        let (first, rest) = word.split_at(word.len().min(1));
        first.to_uppercase() + &rest.to_lowercase()
    });
    words.collect()
}
