//! Reads the fields of a line as text.

use std::{collections::HashSet, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::{Value, value::RawValue};

use super::{ImportFault, Message, tools};
use treering_domain::{JsonText, ToolDefinition, limits::SHORT_TEXT_BYTES_MAX};

/// Names of the model in the `meta` of sources.
const MODEL_FIELDS: [&str; 3] = ["model", "modelId", "model_id"];

pub(super) struct Line<'a> {
    pub(super) id: String,
    pub(super) source: String,
    /// The model in `meta`, or empty.
    pub(super) model: String,
    /// The tools that the model had.
    pub(super) tools: Vec<ToolDefinition>,
    /// All fields that events do not restore, as one JSON object.
    pub(super) rest: JsonText,
    messages: &'a RawValue,
}

/// The fields of an object in order, each value as text.
struct Fields<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields: Vec<(String, &'de RawValue)> = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                // As is usual in JSON, the last of equal fields wins.
                let mut later = HashSet::with_capacity(fields.len());
                fields.reverse();
                fields.retain(|(key, _)| later.insert(key.clone()));
                fields.reverse();
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

impl<'a> Line<'a> {
    /// Parses a line that is known to be JSON.
    pub(super) fn read(line: &'a [u8]) -> Result<Self, ImportFault> {
        let fields: Fields<'a> = match serde_json::from_slice(line) {
            Ok(fields) => fields,
            Err(error) if error.is_data() => return Err(ImportFault::NotAnObject),
            Err(_) => return Err(unreadable("the line")),
        };
        let field = |name: &str| {
            let found = fields.0.iter().find(|(key, _)| key == name);
            found.map(|(_, value)| *value)
        };
        let id = field("id")
            .map(text_or_number)
            .transpose()?
            .flatten()
            .filter(|id| !id.is_empty());
        let id = match id {
            Some(id) => id,
            // Plain chat lines have no id: equal lines are the same conversation.
            None if field("id").is_none() => made_id(line),
            None => return Err(field_fault("id", "a non-empty text")),
        };
        let source = match field("source") {
            None => None,
            Some(value) => text(value, "source")?,
        };
        let Some(messages) = field("messages") else {
            return Err(field_fault("messages", "a list"));
        };
        let model = field("meta")
            .and_then(|meta| serde_json::from_str::<Value>(meta.get()).ok())
            .and_then(|meta| {
                MODEL_FIELDS
                    .iter()
                    .find_map(|name| super::short(&meta[*name]))
            })
            .unwrap_or_default();
        let id_is_text = field("id").is_some_and(|id| id.get().starts_with('"'));
        let source = source.unwrap_or_default();
        let rest = fields.0.iter().filter(|(key, _)| match key.as_str() {
            "messages" => false,
            "id" => !id_is_text,
            "source" => source.is_empty(),
            _ => true,
        });
        let rest = join(rest);
        bounded("id", &id)?;
        bounded("source", &source)?;
        Ok(Self {
            id,
            source,
            model,
            tools: field("tools").map(tools::read).unwrap_or_default(),
            rest,
            messages,
        })
    }

    pub(super) fn messages(&self) -> Result<Vec<Message<'a>>, ImportFault> {
        let list: Vec<&'a RawValue> = serde_json::from_str(self.messages.get())
            .map_err(|_| field_fault("messages", "a list"))?;
        let read = |(index, text): (usize, &'a RawValue)| {
            let place = || format!("messages[{index}]");
            let text = text.get();
            let value: Value = serde_json::from_str(text).map_err(|_| unreadable(&place()))?;
            if !value.is_object() {
                return Err(field_fault(&place(), "an object"));
            }
            if !value["role"].is_string() {
                return Err(field_fault(&format!("{}.role", place()), "a text"));
            }
            Ok(Message { text, value })
        };
        list.into_iter().enumerate().map(read).collect()
    }
}

/// Returns an object of these fields, with their values unchanged.
fn join<'a, 'b: 'a>(fields: impl Iterator<Item = &'a (String, &'b RawValue)>) -> JsonText {
    let fields: Vec<_> = fields
        .map(|(key, value)| format!("{}:{}", Value::from(key.as_str()), value.get()))
        .collect();
    if fields.is_empty() {
        return JsonText::default();
    }
    JsonText::from_checked(format!("{{{}}}", fields.join(",")).into())
}

/// Returns the id for a line without one: the start of its hash.
fn made_id(line: &[u8]) -> String {
    let hash = blake3::hash(line).to_hex();
    format!("chat-{}", &hash[..MADE_ID_CHARS])
}

/// Number of hexadecimal digits of the hash in an id: 64 bits.
const MADE_ID_CHARS: usize = 16;

fn text(value: &RawValue, field: &str) -> Result<Option<String>, ImportFault> {
    match serde_json::from_str(value.get()).map_err(|_| unreadable(field))? {
        Value::String(text) => Ok(Some(text)),
        _ => Err(field_fault(field, "a text")),
    }
}

fn text_or_number(value: &RawValue) -> Result<Option<String>, ImportFault> {
    match value.get().bytes().next() {
        Some(b'"') => text(value, "id"),
        Some(b'-' | b'0'..=b'9') => Ok(Some(value.get().to_owned())),
        _ => Ok(None),
    }
}

fn bounded(field: &'static str, text: &str) -> Result<(), ImportFault> {
    if text.len() > SHORT_TEXT_BYTES_MAX {
        return Err(ImportFault::TooLong {
            field,
            bytes: text.len(),
            max: SHORT_TEXT_BYTES_MAX,
        });
    }
    Ok(())
}

fn field_fault(field: &str, expected: &'static str) -> ImportFault {
    let field = field.to_owned();
    ImportFault::Field { field, expected }
}

fn unreadable(place: &str) -> ImportFault {
    let place = place.to_owned();
    ImportFault::Unreadable { place }
}
