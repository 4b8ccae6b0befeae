//! Converts content of Gemini's messages to content parts.

use serde_json::Value;

use super::super::steps::{json_part, short, text_parts};
use treering_domain::{ContentPart, Media, MediaSource, Reasoning};

/// Returns the parts of content, which is a text, a part, or a list of either. Calls are converted
/// elsewhere.
pub(super) fn read(content: &Value) -> Vec<ContentPart> {
    match content {
        Value::Null => Vec::new(),
        Value::String(text) => text_parts(text),
        Value::Array(parts) => parts.iter().flat_map(read).collect(),
        part if is_call(part) => Vec::new(),
        part => vec![typed(part).unwrap_or_else(|| json_part(part))],
    }
}

fn is_call(part: &Value) -> bool {
    part.get("functionCall").is_some() || part.get("functionResponse").is_some()
}

fn typed(part: &Value) -> Option<ContentPart> {
    if let Some(text) = part["text"].as_str() {
        let text = text.to_owned();
        return Some(match part["thought"] == Value::Bool(true) {
            false => ContentPart::Text(text),
            true => ContentPart::Reasoning(Reasoning {
                text,
                provider: super::PROVIDER.to_owned(),
                ..Reasoning::default()
            }),
        });
    }
    let (media_type, uri) = match (&part["inlineData"], &part["fileData"]) {
        (Value::Object(inline), _) => {
            let media_type = short(inline.get("mimeType")?.as_str()?);
            let data = inline.get("data")?.as_str()?;
            let uri = format!("data:{media_type};base64,{data}");
            (media_type, uri)
        }
        (_, file) => {
            let media_type = file["mimeType"].as_str().map(short).unwrap_or_default();
            (media_type, file["fileUri"].as_str()?.to_owned())
        }
    };
    let kind = media_type.split('/').next().unwrap_or_default().to_owned();
    let media = Media {
        media_type,
        source: MediaSource::Uri(uri),
        ..Media::default()
    };
    Some(match kind.as_str() {
        "image" => ContentPart::Image(media),
        "audio" => ContentPart::Audio(media),
        _ => ContentPart::File(media),
    })
}

/// Returns a tool's output: the output in its response, and any further parts.
pub(super) fn of_result(result: &Value) -> Vec<ContentPart> {
    match result {
        Value::Array(parts) => parts.iter().flat_map(of_result).collect(),
        part => match part.get("functionResponse") {
            Some(response) => of_response(&response["response"]),
            None => read(part),
        },
    }
}

fn of_response(response: &Value) -> Vec<ContentPart> {
    let only = response.as_object().filter(|fields| fields.len() == 1);
    let text = only.and_then(|fields| {
        let text = fields.get("output").or_else(|| fields.get("error"));
        text.and_then(Value::as_str)
    });
    match (text, response) {
        (Some(text), _) => vec![ContentPart::Text(text.to_owned())],
        (None, Value::Null) => Vec::new(),
        (None, response) => vec![json_part(response)],
    }
}

/// Returns the first text of content.
pub(super) fn first_text(content: &Value) -> Option<&str> {
    match content {
        Value::String(text) => Some(text),
        Value::Array(parts) => parts.iter().find_map(first_text),
        part => part["text"].as_str(),
    }
}
