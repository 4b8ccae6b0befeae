//! Prepares recorded JSON text for use inside a request body.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{MapAccess, Visitor},
    ser::SerializeMap,
};
use serde_json::value::RawValue;

/// JSON text that is written to a body unchanged.
pub type Raw<'a> = Cow<'a, RawValue>;

/// The fields of a JSON object in order, with values in their original text.
#[derive(Clone, Debug, Default)]
pub struct Fields<'a>(pub Vec<(Cow<'a, str>, Raw<'a>)>);

impl<'a> Fields<'a> {
    /// Appends a field.
    pub fn push(&mut self, name: impl Into<Cow<'a, str>>, value: Raw<'a>) {
        self.0.push((name.into(), value));
    }

    /// Whether there are no fields.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value of a field; the last one if it is duplicated.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&RawValue> {
        let field = self.0.iter().rev().find(|(field, _)| field == name)?;
        Some(field.1.as_ref())
    }
}

impl Serialize for Fields<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FieldsVisitor;
        impl<'de> Visitor<'de> for FieldsVisitor {
            type Value = Fields<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut fields = Fields::default();
                while let Some((name, value)) = map.next_entry::<String, &'de RawValue>()? {
                    fields.push(name, Cow::Borrowed(value));
                }
                Ok(fields)
            }
        }
        deserializer.deserialize_map(FieldsVisitor)
    }
}

/// The text as JSON, if it is JSON. Escapes of unpaired surrogates, which strict parsers refuse,
/// become U+FFFD. Everything else is unchanged.
#[must_use]
pub fn raw(text: &str) -> Option<Raw<'_>> {
    match mended(text) {
        Cow::Borrowed(text) => serde_json::from_str::<&RawValue>(text)
            .ok()
            .map(Cow::Borrowed),
        Cow::Owned(text) => RawValue::from_string(text).ok().map(Cow::Owned),
    }
}

/// A value as JSON. Serializing values of this crate cannot fail.
#[must_use]
pub(crate) fn to_raw<'a, T: Serialize + ?Sized>(value: &T) -> Raw<'a> {
    let written = serde_json::value::to_raw_value(value);
    Cow::Owned(written.unwrap_or_else(|_| RawValue::NULL.to_owned()))
}

/// Whether the JSON text is an object.
#[must_use]
pub fn is_object(value: &RawValue) -> bool {
    value.get().starts_with('{')
}

/// The arguments of a call as an object: unchanged if they are one, `{}` if they are empty,
/// `{"value": …}` for other JSON, and `{"invalid_arguments": text}` for text that is not JSON, so
/// that the model sees its mistake.
#[must_use]
pub(crate) fn arguments_object(text: &str) -> Raw<'_> {
    let mut fields = Fields::default();
    match raw(text) {
        Some(value) if is_object(&value) => return value,
        Some(value) => fields.push("value", value),
        None if text.trim().is_empty() => {}
        None => fields.push("invalid_arguments", to_raw(text)),
    }
    to_raw(&fields)
}

/// The text with unpaired surrogates replaced.
fn mended(text: &str) -> Cow<'_, str> {
    if !text.contains("\\ud") && !text.contains("\\uD") {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let taken = match (escaped_unit(rest), rest.get(6..).and_then(escaped_unit)) {
            (Some(0xD800..=0xDBFF), Some(0xDC00..=0xDFFF)) => {
                out.push_str(&rest[..12]);
                12
            }
            (Some(0xD800..=0xDFFF), _) => {
                out.push_str("\\ufffd");
                6
            }
            _ => {
                // The backslash and the character after it.
                let length = 1 + rest[1..].chars().next().map_or(0, char::len_utf8);
                out.push_str(&rest[..length]);
                length
            }
        };
        rest = &rest[taken..];
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// The UTF-16 unit of `\uXXXX` at the start of the text.
fn escaped_unit(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    u16::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Some providers accept only an object, and models write anything. All arguments must become
    /// an object without loss.
    #[test]
    fn any_arguments_become_a_json_object() {
        let cases = [
            (r#"{"b":1, "a":1.50}"#, r#"{"b":1, "a":1.50}"#),
            ("", "{}"),
            ("[1, 2]", r#"{"value":[1, 2]}"#),
            ("null", r#"{"value":null}"#),
            ("\"x\"", r#"{"value":"x"}"#),
            ("{\"a\": ", r#"{"invalid_arguments":"{\"a\": "}"#),
            ("ls -la", r#"{"invalid_arguments":"ls -la"}"#),
            (" \n", "{}"),
        ];
        for (text, object) in cases {
            assert_eq!(arguments_object(text).get(), object);
        }
    }

    /// An escaped unpaired surrogate makes strict parsers refuse the whole body. It must be
    /// replaced, and nothing else may change.
    #[test]
    fn lone_surrogates_are_replaced() {
        let cases = [
            (r#"{"a":"\ud83d\ude00"}"#, r#"{"a":"\ud83d\ude00"}"#),
            (r#"{"a":"\ud83d"}"#, r#"{"a":"\ufffd"}"#),
            (r#"{"a":"\uDE00\ud83d x"}"#, r#"{"a":"\ufffd\ufffd x"}"#),
            (r#"{"a":"\\ud83d"}"#, r#"{"a":"\\ud83d"}"#),
        ];
        for (text, object) in cases {
            assert_eq!(arguments_object(text).get(), object);
        }
    }
}
