//! The JSON objects that a line of a session's file holds.

use bytes::Bytes;
use serde_json::{Value, value::RawValue};

use super::source::LINE_VALUES_MAX;
use crate::codec::json;

/// A JSON object of a source, or what could not be read as one.
#[derive(Clone, Debug)]
pub(super) struct Record {
    /// As it came.
    pub(super) text: Bytes,
    /// Null when it cannot be read.
    pub(super) value: Value,
}

impl Record {
    /// The objects that a line holds: one, unless its writer left out an end of line.
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
            });
        }
        records
    }

    /// An object that is part of something larger in the source.
    pub(super) fn of(value: Value) -> Self {
        Self {
            text: value.to_string().into(),
            value,
        }
    }

    fn readable(text: Bytes) -> Option<Self> {
        json::check_values(&text, LINE_VALUES_MAX).ok()?;
        json::check_text(&text).ok()?;
        let value: Value = serde_json::from_slice(&text).ok()?;
        value.is_object().then_some(Self { text, value })
    }

    pub(super) fn is_readable(&self) -> bool {
        self.value.is_object()
    }

    /// Its text; it is UTF-8 whenever it is readable.
    pub(super) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.text).unwrap_or_default()
    }

    /// A field's text, or nothing.
    pub(super) fn text_of(&self, field: &str) -> &str {
        self.value[field].as_str().unwrap_or_default()
    }
}

/// Where the first JSON object of a text ends, if there is a whole one.
pub(super) fn first_object_end(text: &[u8]) -> Option<usize> {
    let mut objects = serde_json::Deserializer::from_slice(text).into_iter::<&RawValue>();
    let first = objects.next()?.ok()?;
    let end = objects.byte_offset();
    first.get().starts_with('{').then_some(end)
}
