//! Finds the shape of JSON in constant memory: values are counted and skipped, not kept.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::text::{clip, counted, one_line};

/// Maximum number of keys and elements that are kept. The others are only counted.
const SHOWN_MAX: usize = 8;
/// Maximum length of a quoted key or value, in characters.
const QUOTED_CHARS_MAX: usize = 60;
/// Depth from which arrays and objects are skipped instead of read. The top level has depth 0.
const DEPTH_MAX: u8 = 3;

/// The shape of a JSON text.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Shape {
    /// Null, a boolean or a number, as text.
    Plain(String),
    /// A string, clipped.
    Text(String),
    /// The first elements, and their number.
    Array(Vec<Shape>, usize),
    /// The first members, and their number.
    Object(Vec<(String, Shape)>, usize),
    /// An array or object that is nested too deep to be read.
    Deep,
}

/// Returns the top-level contents of a JSON text, one on each line: the members of an object, or a
/// description of an array. None for any other text.
pub(crate) fn members(text: &str) -> Option<Vec<String>> {
    match Shape::of(text)? {
        Shape::Object(members, count) if count > 0 => {
            let left = count - members.len();
            let told = |(key, value): (String, Shape)| format!("{key}: {value}");
            let mut lines: Vec<String> = members.into_iter().map(told).collect();
            if left > 0 {
                lines.push(format!("{} more keys", super::text::thousands(left)));
            }
            Some(lines)
        }
        shape => Some(vec![shape.to_string()]),
    }
}

impl Shape {
    /// Returns the shape of an object or array; none for any other text.
    pub fn of(text: &str) -> Option<Self> {
        if !text.trim_start().starts_with(['{', '[']) {
            return None;
        }
        let mut json = serde_json::Deserializer::from_str(text);
        let shape = ShapeReader { depth: 0 }.deserialize(&mut json).ok()?;
        json.end().ok()?;
        Some(shape)
    }

    /// Returns the error in a top-level member, if there is one.
    pub fn error(&self) -> Option<String> {
        let Self::Object(members, _) = self else {
            return None;
        };
        members.iter().find_map(|(key, value)| {
            let named = matches!(
                key.as_str(),
                "error" | "errors" | "error_message" | "exception"
            );
            match value {
                _ if !named => None,
                Self::Text(text) if !text.is_empty() => Some(text.clone()),
                Self::Object(inner, _) => inner.iter().find_map(|(key, value)| match value {
                    Self::Text(text) if key == "message" => Some(text.clone()),
                    _ => None,
                }),
                _ => None,
            }
        })
    }

    fn word(&self) -> &'static str {
        match self {
            Self::Plain(text) if text == "null" => "null",
            Self::Plain(text) if text == "true" || text == "false" => "boolean",
            Self::Plain(_) => "number",
            Self::Text(_) => "string",
            Self::Array(..) => "array",
            Self::Object(..) => "object",
            Self::Deep => "value",
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(text) => f.write_str(text),
            Self::Text(text) => write!(f, "\"{text}\""),
            Self::Deep => f.write_str("value"),
            Self::Object(_, 0) => f.write_str("empty object"),
            Self::Object(members, count) => {
                f.write_str("object with ")?;
                write_keys(f, members, *count)
            }
            Self::Array(_, 0) => f.write_str("empty array"),
            Self::Array(shown, count) => {
                let word = shown.first().map_or("value", Shape::word);
                let alike = shown.iter().all(|shape| shape.word() == word);
                let word = if alike { word } else { "value" };
                write!(f, "array of {}", counted(*count, word))?;
                match shown.first() {
                    Some(Self::Object(members, count)) if alike && *count > 0 => {
                        f.write_str(" with ")?;
                        write_keys(f, members, *count)
                    }
                    Some(Self::Text(_) | Self::Plain(_)) if alike => {
                        let values: Vec<_> = shown.iter().map(Shape::to_string).collect();
                        write!(f, ": {}", values.join(", "))?;
                        write_more(f, shown.len(), *count)
                    }
                    _ => Ok(()),
                }
            }
        }
    }
}

fn write_keys(
    f: &mut fmt::Formatter<'_>,
    members: &[(String, Shape)],
    count: usize,
) -> fmt::Result {
    let keys: Vec<_> = members.iter().map(|(key, _)| key.as_str()).collect();
    let word = if count == 1 { "key" } else { "keys" };
    write!(f, "{word} {}", keys.join(", "))?;
    write_more(f, members.len(), count)
}

fn write_more(f: &mut fmt::Formatter<'_>, shown: usize, count: usize) -> fmt::Result {
    match count - shown {
        0 => Ok(()),
        more => write!(f, " ({} more)", super::text::thousands(more)),
    }
}

#[derive(Clone, Copy)]
struct ShapeReader {
    depth: u8,
}

impl<'de> DeserializeSeed<'de> for ShapeReader {
    type Value = Shape;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Shape, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ShapeReader {
    type Value = Shape;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Shape, E> {
        Ok(Shape::Plain(value.to_string()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Shape, E> {
        Ok(Shape::Plain(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Shape, E> {
        Ok(Shape::Plain(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Shape, E> {
        Ok(Shape::Plain(value.to_string()))
    }

    fn visit_unit<E>(self) -> Result<Shape, E> {
        Ok(Shape::Plain("null".to_owned()))
    }

    fn visit_str<E>(self, text: &str) -> Result<Shape, E> {
        let part: String = text.chars().take(QUOTED_CHARS_MAX * 8).collect();
        Ok(Shape::Text(clip(&one_line(&part), QUOTED_CHARS_MAX)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Shape, A::Error> {
        if self.depth == DEPTH_MAX {
            while elements.next_element::<IgnoredAny>()?.is_some() {}
            return Ok(Shape::Deep);
        }
        let (mut shown, mut count) = (Vec::new(), 0);
        let inner = Self {
            depth: self.depth + 1,
        };
        while shown.len() < SHOWN_MAX {
            match elements.next_element_seed(inner)? {
                Some(shape) => shown.push(shape),
                None => return Ok(Shape::Array(shown, count)),
            }
            count += 1;
        }
        while elements.next_element::<IgnoredAny>()?.is_some() {
            count += 1;
        }
        Ok(Shape::Array(shown, count))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Shape, A::Error> {
        if self.depth == DEPTH_MAX {
            while members.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            return Ok(Shape::Deep);
        }
        let (mut shown, mut count) = (Vec::new(), 0);
        let inner = Self {
            depth: self.depth + 1,
        };
        while shown.len() < SHOWN_MAX {
            let Some(key) = members.next_key::<String>()? else {
                return Ok(Shape::Object(shown, count));
            };
            let key = clip(&one_line(&key), QUOTED_CHARS_MAX);
            shown.push((key, members.next_value_seed(inner)?));
            count += 1;
        }
        while members.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            count += 1;
        }
        Ok(Shape::Object(shown, count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// JSON is described as a person would describe it.
    #[test]
    fn json_shape_is_described_in_words() {
        let many: Vec<_> = (0..41)
            .map(|n| serde_json::json!({"id": n, "name": "x"}))
            .collect();
        let wide: serde_json::Map<_, _> = (0..20)
            .map(|n| (format!("k{n}"), serde_json::json!(null)))
            .collect();
        for (json, expected) in [
            (serde_json::json!({}), "empty object".to_owned()),
            (serde_json::json!([]), "empty array".to_owned()),
            (serde_json::json!({"a": 1}), "object with key a".to_owned()),
            (
                serde_json::json!(many),
                "array of 41 objects with keys id, name".to_owned(),
            ),
            (
                serde_json::json!(wide),
                "object with keys k0, k1, k2, k3, k4, k5, k6, k7 (12 more)".to_owned(),
            ),
            (
                serde_json::json!(["a", "b"]),
                "array of 2 strings: \"a\", \"b\"".to_owned(),
            ),
            (serde_json::json!([1, "b"]), "array of 2 values".to_owned()),
            (
                serde_json::json!([[1], [2]]),
                "array of 2 arrays".to_owned(),
            ),
            (serde_json::json!([{}]), "array of 1 object".to_owned()),
        ] {
            let shape = Shape::of(&json.to_string()).unwrap();
            assert_eq!(shape.to_string(), expected);
        }
    }

    /// Text that only begins like JSON is plain text.
    #[test]
    fn text_that_is_not_json_has_no_shape() {
        for text in ["{\"a\":", "[1] and more", "plain", "", "12"] {
            assert_eq!(Shape::of(text), None, "{text}");
        }
    }

    /// Tools report errors in a member, which matters more than the other keys.
    #[test]
    fn error_members_of_json_are_found() {
        for (json, expected) in [
            (r#"{"id":1,"error":"no such page"}"#, Some("no such page")),
            (r#"{"error":{"code":404,"message":"gone"}}"#, Some("gone")),
            (r#"{"error":null}"#, None),
            (r#"{"errors":[]}"#, None),
            (r#"["error"]"#, None),
        ] {
            assert_eq!(
                Shape::of(json).unwrap().error().as_deref(),
                expected,
                "{json}"
            );
        }
    }
}
