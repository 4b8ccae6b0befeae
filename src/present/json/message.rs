//! Writes messages as JSON from their descriptors; [`views`] defines the fields and forms of each.

use std::{borrow::Cow, fmt::Write};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use prost::{Message, Name};
use prost_reflect::{
    DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MapKey, ReflectMessage, Value,
};
use prost_types::Timestamp;

use super::{
    Object,
    object::{push_bytes, push_float, push_string},
    rfc3339,
    views::{self, JsonForm, ViewField},
    word,
};
use crate::pb::{self, event::Body};
use treering_domain::hex;
use treering_proto::envelope::arm_of_event;

/// Returns a message as one JSON object.
#[must_use]
pub fn of<M: Message + Name>(message: &M) -> String {
    let mut object = Object::new();
    object.fields(message);
    object.finish()
}

impl Object {
    /// Adds the fields of a message.
    pub fn fields<M: Message + Name>(&mut self, message: &M) -> &mut Self {
        self.fields_as(M::NAME, message)
    }

    /// Adds the fields of a message in the given view.
    pub(crate) fn fields_as<M: Message + Name>(&mut self, view: &str, message: &M) -> &mut Self {
        if let Some(message) = dynamic(message) {
            write_fields(self, views::named(view), &message);
        }
        self
    }

    /// Adds a message as an object.
    pub fn message<M: Message + Name>(&mut self, key: &str, message: &M) -> &mut Self {
        self.raw(key, &of(message))
    }
}

fn dynamic<M: Message + Name>(message: &M) -> Option<DynamicMessage> {
    let mut dynamic = DynamicMessage::new(views::message(M::NAME)?);
    dynamic.transcode_from(message).ok()?;
    Some(dynamic)
}

/// Returns a stored event as one JSON object: the whole envelope, and the body by its kind.
#[must_use]
pub fn event(event: &pb::Event) -> String {
    // The body is written separately, because one that cannot be decoded must be shown too.
    let envelope = pb::Event {
        body: None,
        ..event.clone()
    };
    let mut object = Object::new();
    object.fields(&envelope);
    match event.body.clone() {
        Some(body) => object.raw("body", &body_json(body)),
        None => object.raw("body", "null"),
    };
    object.finish()
}

/// Returns the body as JSON. A body that cannot be decoded is shown as base64: the log must stay
/// readable.
fn body_json(body: Body) -> String {
    let (kind, bytes) = arm_of_event(body);
    let field = views::message("Event").and_then(|of| of.get_field(kind.number().into()));
    let mut object = Object::new();
    let body = match field.map(|field| field.kind()) {
        Some(Kind::Message(of)) => DynamicMessage::decode(of, bytes.clone()).ok(),
        _ => None,
    };
    match body {
        Some(body) => write_fields(&mut object, views::named(body.descriptor().name()), &body),
        None => {
            object.string("undecodable", &STANDARD.encode(&bytes));
        }
    }
    object.finish()
}

fn write_fields(object: &mut Object, view: &[ViewField], message: &DynamicMessage) {
    for shown in view {
        let is_set = message.has_field(&shown.field);
        let without = shown
            .with
            .as_ref()
            .is_some_and(|with| !message.has_field(with));
        let value = message.get_field(&shown.field);
        if without || (shown.is_optional && (!is_set || says_nothing(&value, shown))) {
            continue;
        }
        let is_null = !is_set && !shown.is_never_null && matches!(*value, Value::Message(_));
        object.written(&shown.key, |text| {
            if is_null {
                text.push_str("null");
            } else {
                write_value(text, &value, &shown.field, shown.form);
            }
        });
    }
}

/// Returns true for empty bytes, and for an enum value that has no word, see `word_of`.
fn says_nothing(value: &Value, shown: &ViewField) -> bool {
    match (value, shown.field.kind()) {
        (Value::Bytes(bytes), _) => bytes.is_empty(),
        (Value::EnumNumber(number), Kind::Enum(of)) => word_of(&of, *number).is_empty(),
        _ => false,
    }
}

fn write_value(text: &mut String, value: &Value, of: &FieldDescriptor, form: JsonForm) {
    match value {
        Value::Bool(is) => text.push_str(if *is { "true" } else { "false" }),
        Value::I32(number) => push_number(text, number),
        Value::I64(number) => push_number(text, number),
        Value::U32(number) => push_number(text, number),
        Value::U64(number) => push_number(text, number),
        Value::F32(number) => push_float(text, f64::from(*number)),
        Value::F64(number) => push_float(text, *number),
        Value::String(string) => write_text(text, string, form),
        Value::Bytes(bytes) => match form {
            JsonForm::Hex => push_string(text, &hex(bytes)),
            JsonForm::Base64 => push_string(text, &STANDARD.encode(bytes)),
            _ => push_bytes(text, bytes),
        },
        Value::EnumNumber(number) => write_enum(text, *number, of, form),
        Value::Message(message) => write_message(text, message, form),
        Value::List(items) => write_list(text, items.iter().map(|item| (item, of)), form),
        Value::Map(entries) => write_map(text, entries, of, form),
    }
}

fn push_number(text: &mut String, number: impl std::fmt::Display) {
    // Writing to a string cannot fail.
    let _ = write!(text, "{number}");
}

fn write_text(text: &mut String, string: &str, form: JsonForm) {
    match form {
        JsonForm::Json => push_bytes(text, string.as_bytes()),
        JsonForm::OrNull if string.is_empty() => text.push_str("null"),
        _ => push_string(text, string),
    }
}

fn write_enum(text: &mut String, number: i32, of: &FieldDescriptor, form: JsonForm) {
    if form == JsonForm::IsPending {
        let is_pending = number == i32::from(pb::ApprovalRequirement::Pending);
        text.push_str(if is_pending { "true" } else { "false" });
    } else if let Kind::Enum(of) = of.kind() {
        push_string(text, &word_of(&of, number));
    }
}

fn write_message(text: &mut String, message: &DynamicMessage, form: JsonForm) {
    let of = message.descriptor();
    if of.full_name() == "google.protobuf.Timestamp" {
        match message
            .transcode_to::<Timestamp>()
            .ok()
            .as_ref()
            .and_then(rfc3339)
        {
            Some(time) => push_string(text, &time),
            None => text.push_str("null"),
        }
        return;
    }
    let view = views::named(of.name());
    if form == JsonForm::List {
        let values: Vec<(Cow<'_, Value>, _)> = view
            .iter()
            .map(|shown| (message.get_field(&shown.field), &shown.field))
            .collect();
        let values = values.iter().map(|(value, of)| (value.as_ref(), *of));
        return write_list(text, values, JsonForm::Plain);
    }
    let mut object = Object::new();
    write_fields(&mut object, view, message);
    text.push_str(&object.finish());
}

fn write_list<'a>(
    text: &mut String,
    values: impl Iterator<Item = (&'a Value, &'a FieldDescriptor)>,
    form: JsonForm,
) {
    text.push('[');
    for (index, (value, of)) in values.enumerate() {
        if index > 0 {
            text.push(',');
        }
        write_value(text, value, of, form);
    }
    text.push(']');
}

fn write_map(
    text: &mut String,
    entries: &std::collections::HashMap<MapKey, Value>,
    of: &FieldDescriptor,
    form: JsonForm,
) {
    let Kind::Message(entry) = of.kind() else {
        return;
    };
    let of = entry.map_entry_value_field();
    // A hash map's order changes between runs; the output must not.
    let mut entries: Vec<_> = entries
        .iter()
        .filter_map(|(key, value)| Some((key.as_str()?, value)))
        .collect();
    entries.sort_unstable_by_key(|(key, _)| *key);
    let mut object = Object::new();
    for (key, value) in entries {
        object.written(key, |text| write_value(text, value, &of, form));
    }
    text.push_str(&object.finish());
}

/// Returns the word for an enum value: `timed_out` for `CANCEL_REASON_TIMED_OUT`.
fn word_of(of: &EnumDescriptor, number: i32) -> String {
    // The first value of each enum is `…_UNSPECIFIED`, with the name of the enum as its prefix.
    let unset = of.default_value();
    let prefix = unset.name().strip_suffix("UNSPECIFIED").unwrap_or_default();
    let known = of
        .get_value(number)
        .filter(|value| value.number() != unset.number());
    let word = known.map(|value| word(value.name(), prefix));
    match (word, of.name()) {
        // With hyphens, as on the command line.
        (Some(word), "Provider") => word.replace('_', "-"),
        (Some(word), _) => word,
        (None, "Provider") => "neutral".to_owned(),
        (None, "Role") => "unknown".to_owned(),
        (None, "EventKind") => format!("kind_{number}"),
        (None, "Section" | "Fate") => "unspecified".to_owned(),
        (None, _) => String::new(),
    }
}
