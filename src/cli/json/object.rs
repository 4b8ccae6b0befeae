//! Writes JSON objects and arrays straight to text. `serde_json::Value` would
//! change numbers and drop duplicate keys of the JSON text that is embedded.

use std::fmt::Write;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::value::RawValue;

/// A JSON object being written.
#[derive(Debug)]
pub struct Object {
    text: String,
}

impl Default for Object {
    fn default() -> Self {
        Self::new()
    }
}

impl Object {
    /// An empty object.
    #[must_use]
    pub fn new() -> Self {
        Self { text: "{".into() }
    }

    /// The finished text.
    #[must_use]
    pub fn finish(mut self) -> String {
        self.text.push('}');
        self.text
    }

    /// A string.
    pub fn string(&mut self, key: &str, value: &str) -> &mut Self {
        self.key(key);
        push_string(&mut self.text, value);
        self
    }

    /// A number without a fraction.
    pub fn number(&mut self, key: &str, value: u64) -> &mut Self {
        self.key(key);
        // Writing to a string cannot fail.
        let _ = write!(self.text, "{value}");
        self
    }

    /// A number with a fraction; null when JSON cannot say it.
    pub fn float(&mut self, key: &str, value: f64) -> &mut Self {
        self.written(key, |text| push_float(text, value))
    }

    /// True or false.
    pub fn boolean(&mut self, key: &str, value: bool) -> &mut Self {
        self.raw(key, if value { "true" } else { "false" })
    }

    /// JSON that is already text.
    pub fn raw(&mut self, key: &str, json: &str) -> &mut Self {
        self.key(key);
        self.text.push_str(json);
        self
    }

    /// Bytes: as the JSON that they are, else `{"base64": …}`.
    pub fn bytes(&mut self, key: &str, value: &[u8]) -> &mut Self {
        self.key(key);
        push_bytes(&mut self.text, value);
        self
    }

    /// Whatever `write` makes of it.
    pub(super) fn written(&mut self, key: &str, write: impl FnOnce(&mut String)) -> &mut Self {
        self.key(key);
        write(&mut self.text);
        self
    }

    fn key(&mut self, key: &str) {
        if self.text.len() > 1 {
            self.text.push(',');
        }
        push_string(&mut self.text, key);
        self.text.push(':');
    }
}

/// A JSON array being written.
#[derive(Debug)]
pub struct Array {
    text: String,
}

impl Default for Array {
    fn default() -> Self {
        Self::new()
    }
}

impl Array {
    /// An empty array.
    #[must_use]
    pub fn new() -> Self {
        Self { text: "[".into() }
    }

    /// An array of objects.
    #[must_use]
    pub fn of<T>(items: impl IntoIterator<Item = T>, mut write: impl FnMut(T) -> String) -> String {
        let mut array = Self::new();
        for item in items {
            array.push_raw(&write(item));
        }
        array.finish()
    }

    /// An array of strings.
    #[must_use]
    pub fn of_strings<'a>(items: impl IntoIterator<Item = &'a String>) -> String {
        Self::of(items, |item| {
            let mut text = String::new();
            push_string(&mut text, item);
            text
        })
    }

    /// Adds JSON that is already text.
    pub fn push_raw(&mut self, json: &str) -> &mut Self {
        if self.text.len() > 1 {
            self.text.push(',');
        }
        self.text.push_str(json);
        self
    }

    /// The finished text.
    #[must_use]
    pub fn finish(mut self) -> String {
        self.text.push(']');
        self.text
    }
}

/// A number with a fraction; null when JSON cannot say it.
pub(super) fn push_float(to: &mut String, value: f64) {
    match serde_json::to_string(&value) {
        Ok(text) => to.push_str(&text),
        Err(_) => to.push_str("null"),
    }
}

pub(super) fn push_string(to: &mut String, value: &str) {
    // A string always has a JSON form.
    if let Ok(text) = serde_json::to_string(value) {
        to.push_str(&text);
    }
}

pub(super) fn push_bytes(to: &mut String, value: &[u8]) {
    let checked = std::str::from_utf8(value)
        .ok()
        .filter(|text| serde_json::from_str::<&RawValue>(text).is_ok());
    match checked {
        // Outside of strings a line break is only space, and inside it cannot
        // be: so one object stays on one line and nothing is lost.
        Some(text) => to.extend(text.trim().chars().map(|c| match c {
            '\n' | '\r' => ' ',
            c => c,
        })),
        None => {
            to.push_str("{\"base64\":\"");
            STANDARD.encode_string(value, to);
            to.push_str("\"}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pretty-printed arguments with an odd number: one line must come out, and
    /// the number must not pass through a float.
    #[test]
    fn embedded_json_stays_as_it_is_on_one_line() {
        let mut object = Object::new();
        object.bytes("a", b"{\n  \"n\": 1.10e400,\n \"n\": 2\r\n}\n");
        assert_eq!(object.finish(), r#"{"a":{   "n": 1.10e400,  "n": 2  }}"#);
    }

    /// Bytes that are no JSON must not break the line around them.
    #[test]
    fn other_bytes_become_base64() {
        let mut object = Object::new();
        object.bytes("a", b"{\"open\": ").bytes("b", &[0xff, 0]);
        let text = object.finish();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["a"]["base64"], "eyJvcGVuIjog");
        assert_eq!(value["b"]["base64"], "/wA=");
    }
}
