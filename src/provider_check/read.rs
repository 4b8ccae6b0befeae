//! Reads bodies leniently: values that no rule needs are not decoded.

use std::{borrow::Cow, collections::HashSet, fmt};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::Violations;

/// Rules that several providers share.
pub(crate) const SHAPE: &str = "shape";
pub(crate) const TOOL_NAME: &str = "tool-name";
pub(crate) const TOOL_SCHEMA: &str = "tool-schema";
pub(crate) const TOOL_CHOICE: &str = "tool-choice";

/// Reads a value, or reports that it has the wrong shape. Serde's message may quote the
/// conversation, so only the place is reported.
pub(crate) fn read<'a, T: Deserialize<'a>>(
    json: &'a str,
    path: fmt::Arguments<'_>,
    report: &mut Violations,
) -> Option<T> {
    match serde_json::from_str(json) {
        Ok(value) => Some(value),
        Err(error) => {
            let at = error.column();
            let message = format!("a field is missing, unknown or of the wrong type, at byte {at}");
            report.add(SHAPE, path, message);
            None
        }
    }
}

/// Reads a whole body.
pub(crate) fn read_body<'a, T: Deserialize<'a>>(
    body: &'a [u8],
    report: &mut Violations,
) -> Option<T> {
    match std::str::from_utf8(body) {
        Ok(text) => read(text, format_args!("body"), report),
        Err(_) => {
            report.add(SHAPE, format_args!("body"), "not UTF-8");
            None
        }
    }
}

/// A value that is decoded only as far as needed.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(transparent)]
pub(crate) struct Value<'a>(#[serde(borrow)] pub &'a RawValue);

impl<'a> Value<'a> {
    pub fn json(self) -> &'a str {
        self.0.get()
    }

    pub fn is_object(self) -> bool {
        self.json().starts_with('{')
    }

    pub fn is_text(self) -> bool {
        self.json().starts_with('"')
    }

    pub fn is_list(self) -> bool {
        self.json().starts_with('[')
    }

    /// Whether it is a string of only white space.
    pub fn is_blank(self) -> bool {
        let says = |byte| !matches!(byte, b' ' | b'"' | b'\\' | b'n' | b't' | b'r');
        self.is_text() && !self.json().bytes().any(says) && self.text().trim().is_empty()
    }

    /// Whether it is a string that is not blank.
    pub fn says(self) -> bool {
        self.is_text() && !self.is_blank()
    }

    /// The string; empty for other values.
    pub fn text(self) -> Cow<'a, str> {
        #[derive(Deserialize)]
        struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
        serde_json::from_str::<Text<'a>>(self.json()).map_or(Cow::Borrowed(""), |text| text.0)
    }

    /// The list's elements; none for other values.
    pub fn list(self) -> Vec<Value<'a>> {
        serde_json::from_str(self.json()).unwrap_or_default()
    }

    /// Whether it is a positive integer.
    pub fn is_positive(self) -> bool {
        self.json().parse::<u64>().is_ok_and(|number| number > 0)
    }
}

/// A JSON Schema. Only its type is read.
#[derive(Deserialize)]
struct Schema<'a> {
    #[serde(borrow)]
    r#type: Option<Value<'a>>,
}

/// Names of the offered tools.
#[derive(Default)]
pub(crate) struct OfferedTools<'a>(HashSet<Cow<'a, str>>);

impl<'a> OfferedTools<'a> {
    /// Checks and records an offered tool.
    pub fn offer(
        &mut self,
        name: Value<'a>,
        schema: Option<Value<'a>>,
        at: usize,
        legal: fn(&str) -> bool,
        report: &mut Violations,
    ) {
        let name = name.text();
        if !legal(&name) {
            let message = "a name has characters or a length that is not accepted";
            report.add(TOOL_NAME, format_args!("tools[{at}]"), message);
        }
        if !self.0.insert(name) {
            let message = "another tool has the same name";
            report.add(TOOL_NAME, format_args!("tools[{at}]"), message);
        }
        let schema = schema.filter(|schema| schema.is_object());
        let schema = schema.and_then(|schema| serde_json::from_str(schema.json()).ok());
        let kind = schema.and_then(|schema: Schema<'_>| schema.r#type);
        if kind.is_none_or(|kind| kind.text() != "object") {
            let message = "the schema is not an object of type \"object\"";
            report.add(TOOL_SCHEMA, format_args!("tools[{at}]"), message);
        }
    }
}

/// Checks that a request has no model or a non-empty model name.
pub(crate) fn check_model(model: Option<Value<'_>>, report: &mut Violations) {
    if model.is_some_and(|model| !model.says()) {
        report.add(SHAPE, format_args!("model"), "not the name of a model");
    }
}

/// Checks that a tool choice comes with tools.
pub(crate) fn check_tool_choice<T>(
    choice: Option<Value<'_>>,
    tools: Option<&Vec<T>>,
    report: &mut Violations,
) {
    if choice.is_some() && tools.is_none_or(Vec::is_empty) {
        let path = format_args!("tool_choice");
        report.add(TOOL_CHOICE, path, "there are no tools");
    }
}

/// Whether a name has 1 to 64 letters, digits, `_` and `-`.
pub(crate) fn is_word(name: &str) -> bool {
    let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    (1..=64).contains(&name.len()) && name.bytes().all(is_legal)
}

/// Whether a text is not empty and base64 with padding, in the standard or URL-safe alphabet.
pub(crate) fn is_base64(text: &str) -> bool {
    let digits = text.trim_end_matches('=');
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || b"+/-_".contains(&byte);
    !digits.is_empty()
        && text.len().is_multiple_of(4)
        && text.len() - digits.len() <= 2
        && digits.bytes().all(is_digit)
}

/// Whether it is `data:TYPE;base64,…` with content.
pub(crate) fn is_data_url(url: &str) -> bool {
    let parts = url
        .strip_prefix("data:")
        .and_then(|rest| rest.split_once(";base64,"));
    parts.is_some_and(|(media_type, data)| media_type.contains('/') && is_base64(data))
}

pub(crate) fn is_web_url(url: &str) -> bool {
    url.starts_with("https://") || url.starts_with("http://")
}
