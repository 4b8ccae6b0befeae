//! Writes JSON objects and arrays directly as text. `serde_json::Value` would change numbers and
//! drop duplicate keys of embedded JSON text.

use std::fmt::Write;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::value::RawValue;

/// A JSON object under construction.
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
    /// Creates an empty object.
    #[must_use]
    pub fn new() -> Self {
        Self { text: "{".into() }
    }

    /// Returns the finished text.
    #[must_use]
    pub fn finish(mut self) -> String {
        self.text.push('}');
        self.text
    }

    /// Adds a string.
    pub fn string(&mut self, key: &str, value: &str) -> &mut Self {
        self.key(key);
        push_string(&mut self.text, value);
        self
    }

    /// Adds an integer.
    pub fn number(&mut self, key: &str, value: u64) -> &mut Self {
        self.key(key);
        // Writing to a string cannot fail.
        let _ = write!(self.text, "{value}");
        self
    }

    /// Adds a float; null when JSON cannot represent it (NaN, infinity).
    pub fn float(&mut self, key: &str, value: f64) -> &mut Self {
        self.written(key, |text| push_float(text, value))
    }

    /// Adds a boolean.
    pub fn boolean(&mut self, key: &str, value: bool) -> &mut Self {
        self.raw(key, if value { "true" } else { "false" })
    }

    /// Adds JSON text as it is.
    pub fn raw(&mut self, key: &str, json: &str) -> &mut Self {
        self.key(key);
        self.text.push_str(json);
        self
    }

    /// Adds bytes: as JSON if they are valid JSON, else as `{"base64": …}`.
    pub fn bytes(&mut self, key: &str, value: &[u8]) -> &mut Self {
        self.key(key);
        push_bytes(&mut self.text, value);
        self
    }

    /// Adds the value that `write` appends.
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

/// A JSON array under construction.
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
    /// Creates an empty array.
    #[must_use]
    pub fn new() -> Self {
        Self { text: "[".into() }
    }

    /// Returns an array of objects.
    #[must_use]
    pub fn of<T>(items: impl IntoIterator<Item = T>, mut write: impl FnMut(T) -> String) -> String {
        let mut array = Self::new();
        for item in items {
            array.push_raw(&write(item));
        }
        array.finish()
    }

    /// Returns an array of strings.
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

    /// Returns the finished text.
    #[must_use]
    pub fn finish(mut self) -> String {
        self.text.push(']');
        self.text
    }
}

/// Writes a float; null when JSON cannot represent it (NaN, infinity).
pub(super) fn push_float(to: &mut String, value: f64) {
    match serde_json::to_string(&value) {
        Ok(text) => to.push_str(&text),
        Err(_) => to.push_str("null"),
    }
}

pub(super) fn push_string(to: &mut String, value: &str) {
    // Serializing a string cannot fail.
    if let Ok(text) = serde_json::to_string(value) {
        to.push_str(&text);
    }
}

pub(super) fn push_bytes(to: &mut String, value: &[u8]) {
    let checked = std::str::from_utf8(value)
        .ok()
        .filter(|text| serde_json::from_str::<&RawValue>(text).is_ok());
    match checked {
        // In JSON, a line break can only be whitespace between tokens, never inside a string.
        // Replacing it with a space keeps the object on one line and loses nothing.
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

    /// Pretty-printed arguments with a number that a float cannot hold: the output must be one
    /// line, with the number unchanged.
    #[test]
    fn embedded_json_is_unchanged_on_one_line() {
        let mut object = Object::new();
        object.bytes("a", b"{\n  \"n\": 1.10e400,\n \"n\": 2\r\n}\n");
        assert_eq!(object.finish(), r#"{"a":{   "n": 1.10e400,  "n": 2  }}"#);
    }

    /// Bytes that are not JSON must not break the line around them.
    #[test]
    fn invalid_json_bytes_become_base64() {
        let mut object = Object::new();
        object.bytes("a", b"{\"open\": ").bytes("b", &[0xff, 0]);
        let text = object.finish();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["a"]["base64"], "eyJvcGVuIjog");
        assert_eq!(value["b"]["base64"], "/wA=");
    }
}
