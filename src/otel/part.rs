//! Parses parts of messages in the forms that instrumentations write.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::Value;

use super::{SpanToolCall, SpanToolResult, json_of, text_of};
use treering_domain::{ContentPart, Media, MediaSource, Reasoning, limits::SHORT_TEXT_BYTES_MAX};
use treering_import::content;

/// A part of a message, or a call or result among its parts.
pub(super) enum Part {
    Content(ContentPart),
    Call(SpanToolCall),
    Result(SpanToolResult),
}

/// Returns the first of these fields that is present.
pub(super) fn field<'a>(value: &'a Value, names: &[&str]) -> &'a Value {
    const NOTHING: &Value = &Value::Null;
    let mut found = names.iter().map(|name| &value[*name]);
    found.find(|value| !value.is_null()).unwrap_or(NOTHING)
}

pub(super) fn text(value: &Value, names: &[&str]) -> String {
    text_of(field(value, names))
}

/// Returns a text cut to the length of names.
pub(super) fn short(value: &Value, names: &[&str]) -> String {
    cut(text(value, names))
}

pub(super) fn cut(mut text: String) -> String {
    if text.len() > SHORT_TEXT_BYTES_MAX {
        let ends = (0..=SHORT_TEXT_BYTES_MAX).rev();
        let end = ends.into_iter().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or_default());
    }
    text
}

pub(super) fn read(part: &Value) -> Part {
    match part["type"].as_str().unwrap_or_default() {
        "text" | "output_text" | "input_text" => {
            Part::Content(ContentPart::Text(text(part, &["content", "text"])))
        }
        "tool_call" | "tool_use" | "function_call" => Part::Call(call(part)),
        "tool_call_response" | "tool_result" | "function_call_output" => Part::Result(result(part)),
        "reasoning" | "thinking" => Part::Content(ContentPart::Reasoning(Reasoning {
            text: text(part, &["content", "text", "thinking"]),
            ..Reasoning::default()
        })),
        "refusal" => Part::Content(ContentPart::Refusal(text(part, &["content", "refusal"]))),
        "blob" => Part::Content(blob(part)),
        "uri" => Part::Content(medium(
            part,
            MediaSource::Uri(text(part, &["uri", "content"])),
        )),
        _ => {
            let one = Value::Array(vec![part.clone()]);
            let read = content::read(Some(&one)).into_iter().next();
            Part::Content(read.unwrap_or_else(|| ContentPart::Json(json_of(part))))
        }
    }
}

/// Parses a call: as a part or in a list of calls, with or without a `function` object.
pub(super) fn call(value: &Value) -> SpanToolCall {
    let call = match &value["tool_call"] {
        Value::Null => value,
        inner => inner,
    };
    let function = match &call["function"] {
        Value::Object(_) => &call["function"],
        _ => call,
    };
    let arguments = super::arguments_of(field(function, &["arguments", "input", "args"]));
    SpanToolCall {
        id: short(call, &["id", "call_id", "tool_call_id"]),
        tool: short(function, &["name"]),
        arguments,
    }
}

fn result(part: &Value) -> SpanToolResult {
    let content = field(part, &["response", "result", "content", "output"]);
    SpanToolResult {
        call_id: short(part, &["id", "tool_call_id", "tool_use_id", "call_id"]),
        tool: short(part, &["name"]),
        parts: returned(content),
    }
}

/// Parses a tool's result: a list of parts, a text, or JSON.
pub(super) fn returned(content: &Value) -> Vec<ContentPart> {
    if let Value::Array(list) = content
        && !list.is_empty()
        && list.iter().all(|part| part["type"].is_string())
    {
        let parts = list.iter().map(read).filter_map(|part| match part {
            Part::Content(part) => Some(part),
            Part::Call(_) | Part::Result(_) => None,
        });
        return parts.collect();
    }
    match content {
        Value::Null => Vec::new(),
        other => vec![ContentPart::Text(text_of(other))],
    }
}

fn blob(part: &Value) -> ContentPart {
    let encoded = text(part, &["content", "data"]);
    match STANDARD.decode(&encoded) {
        Ok(data) => medium(part, MediaSource::Data(data.into())),
        Err(_) => ContentPart::Json(json_of(part)),
    }
}

fn medium(part: &Value, source: MediaSource) -> ContentPart {
    let media_type = short(part, &["mime_type", "media_type"]);
    let modality = text(part, &["modality"]);
    let media = Media {
        source,
        name: short(part, &["name"]),
        detail: String::new(),
        media_type: media_type.clone(),
    };
    if modality == "image" || media_type.starts_with("image/") {
        ContentPart::Image(media)
    } else if modality == "audio" || media_type.starts_with("audio/") {
        ContentPart::Audio(media)
    } else {
        ContentPart::File(media)
    }
}
