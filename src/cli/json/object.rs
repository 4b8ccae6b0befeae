//! Writes JSON objects and arrays straight to text. `serde_json::Value` would
//! change numbers and drop duplicate keys of the JSON text that is embedded.

use std::fmt::Write;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::value::RawValue;

/// A JSON object being written. Empty strings and zeros that mean "not set"
/// are left out by the `_if` methods.
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

    /// A string, if there is one.
    pub fn string_if(&mut self, key: &str, value: &str) -> &mut Self {
        if value.is_empty() {
            self
        } else {
            self.string(key, value)
        }
    }

    /// A string, or null when there is none.
    pub fn string_or_null(&mut self, key: &str, value: Option<&str>) -> &mut Self {
        match value {
            Some(value) => self.string(key, value),
            None => self.raw(key, "null"),
        }
    }

    /// A number without a fraction.
    pub fn number(&mut self, key: &str, value: u64) -> &mut Self {
        self.key(key);
        // Writing to a string cannot fail.
        let _ = write!(self.text, "{value}");
        self
    }

    /// A number, unless it is 0.
    pub fn number_if(&mut self, key: &str, value: u64) -> &mut Self {
        if value == 0 {
            self
        } else {
            self.number(key, value)
        }
    }

    /// A number with a fraction; null when JSON cannot say it.
    pub fn float(&mut self, key: &str, value: f64) -> &mut Self {
        self.key(key);
        match serde_json::to_string(&value) {
            Ok(text) => self.text.push_str(&text),
            Err(_) => self.text.push_str("null"),
        }
        self
    }

    /// True or false.
    pub fn boolean(&mut self, key: &str, value: bool) -> &mut Self {
        self.raw(key, if value { "true" } else { "false" })
    }

    /// True, or nothing.
    pub fn boolean_if(&mut self, key: &str, value: bool) -> &mut Self {
        if value { self.boolean(key, true) } else { self }
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

    /// Bytes, if there are any.
    pub fn bytes_if(&mut self, key: &str, value: &[u8]) -> &mut Self {
        if value.is_empty() {
            self
        } else {
            self.bytes(key, value)
        }
    }

    /// Bytes as hexadecimal digits, if there are any.
    pub fn hex_if(&mut self, key: &str, value: &[u8]) -> &mut Self {
        if value.is_empty() {
            self
        } else {
            self.string(key, &hex(value))
        }
    }

    /// Bytes as base64, if there are any.
    pub fn base64_if(&mut self, key: &str, value: &[u8]) -> &mut Self {
        if value.is_empty() {
            self
        } else {
            self.string(key, &STANDARD.encode(value))
        }
    }

    /// A map of strings, in the order of its keys, if it has any.
    pub fn map_if<'a, V: AsRef<str> + 'a>(
        &mut self,
        key: &str,
        entries: impl IntoIterator<Item = (&'a String, &'a V)>,
    ) -> &mut Self {
        self.entries_if(key, entries, |object, key, value| {
            object.string(key, value.as_ref());
        })
    }

    /// A map of anything, in the order of its keys, if it has any.
    pub fn entries_if<'a, V: 'a>(
        &mut self,
        key: &str,
        entries: impl IntoIterator<Item = (&'a String, &'a V)>,
        mut write: impl FnMut(&mut Object, &str, &'a V),
    ) -> &mut Self {
        let mut entries: Vec<_> = entries.into_iter().collect();
        if entries.is_empty() {
            return self;
        }
        // A hash map's order changes from run to run; output must not.
        entries.sort_by_key(|(key, _)| *key);
        let mut object = Object::new();
        for (key, value) in entries {
            write(&mut object, key, value);
        }
        self.raw(key, &object.finish())
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

/// Bytes as lower-case hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn push_string(to: &mut String, value: &str) {
    // A string always has a JSON form.
    if let Ok(text) = serde_json::to_string(value) {
        to.push_str(&text);
    }
}

fn push_bytes(to: &mut String, value: &[u8]) {
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

    /// Keys come in one order whatever a hash map does, and what is not set is
    /// not there.
    #[test]
    fn maps_are_sorted_and_empty_values_left_out() {
        let map = std::collections::HashMap::from([
            ("b".to_owned(), "2".to_owned()),
            ("a".to_owned(), "1\n".to_owned()),
        ]);
        let mut object = Object::new();
        object
            .map_if("m", &map)
            .string_if("s", "")
            .number_if("z", 0)
            .boolean_if("f", false);
        assert_eq!(object.finish(), r#"{"m":{"a":"1\n","b":"2"}}"#);
    }
}
