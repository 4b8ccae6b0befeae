//! JSON objects in the lines of a session file.

use bytes::Bytes;
use serde_json::{Value, value::RawValue};

use super::{origin::Place, source::LINE_VALUES_MAX};
use treering_proto::json;

/// A JSON object of a source, or text that could not be parsed as one.
#[derive(Clone, Debug)]
pub(super) struct Record {
    /// The original text.
    pub(super) text: Bytes,
    /// Null when the text cannot be parsed.
    pub(super) value: Value,
    /// Its place in the conversation from which it was exported, if it was.
    pub(super) exported: Option<Place>,
}

impl Record {
    /// Returns the objects of a line: one, unless the writer left out a line end.
    pub(super) fn read(text: &Bytes) -> Vec<Self> {
        if let Some(record) = Self::readable(text.clone()) {
            return vec![record];
        }
        let mut records = Vec::new();
        let mut rest = text.clone();
        while let Some(end) = first_object_end(&rest) {
            let Some(record) = Self::readable(rest.split_to(end)) else {
                break;
            };
            records.push(record);
            let blank = rest.iter().take_while(|byte| byte.is_ascii_whitespace());
            let blank = blank.count();
            rest = rest.split_off(blank);
        }
        if records.is_empty() {
            rest = text.clone();
        }
        if !rest.is_empty() {
            records.push(Self {
                text: rest,
                value: Value::Null,
                exported: None,
            });
        }
        records
    }

    /// Makes a record of an object that is not a line of the source.
    pub(super) fn of(value: Value) -> Self {
        Self {
            text: value.to_string().into(),
            exported: Place::of(&value),
            value,
        }
    }

    fn readable(text: Bytes) -> Option<Self> {
        json::check_values(&text, LINE_VALUES_MAX).ok()?;
        json::check_text(&text).ok()?;
        let value: Value = serde_json::from_slice(&text).ok()?;
        value.is_object().then(|| Self {
            text,
            exported: Place::of(&value),
            value,
        })
    }

    pub(super) fn is_readable(&self) -> bool {
        self.value.is_object()
    }

    /// Returns the text; it is UTF-8 whenever it can be parsed.
    pub(super) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.text).unwrap_or_default()
    }

    /// Returns the text of a field, or an empty text.
    pub(super) fn text_of(&self, field: &str) -> &str {
        self.value[field].as_str().unwrap_or_default()
    }
}

/// Returns where the first JSON object of a text ends, if it is complete.
pub(super) fn first_object_end(text: &[u8]) -> Option<usize> {
    let mut objects = serde_json::Deserializer::from_slice(text).into_iter::<&RawValue>();
    let first = objects.next()?.ok()?;
    let end = objects.byte_offset();
    first.get().starts_with('{').then_some(end)
}
