//! Converts parts of opencode's messages to content parts.

use bytes::Bytes;
use serde_json::Value;

use super::super::{
    content,
    origin::Place,
    steps::{json_part, short, text_parts},
};
use treering_domain::{ContentPart, Media, MediaSource, Reasoning, Usage};

/// Returns the place of a message in the conversation from which it was exported, if it was.
pub(super) fn place(message: &Value) -> Option<Place> {
    let mut parts = message["parts"].as_array()?.iter().rev();
    parts.find_map(|part| Place::of(&part["metadata"]))
}

/// Returns what the model saw of a part of a user's message.
pub(super) fn of_user(part: &Value) -> Option<ContentPart> {
    match part["type"].as_str() {
        Some("text") if part["ignored"] == Value::Bool(true) => None,
        Some("text") => Some(text(part)),
        Some("file") => Some(file(part).unwrap_or_else(|| json_part(part))),
        Some("subtask") => Some(match part["prompt"].as_str() {
            Some(prompt) => ContentPart::Text(prompt.to_owned()),
            None => json_part(part),
        }),
        _ => None,
    }
}

/// Returns the content of a part of the model's message; `None` for calls, which are converted
/// elsewhere, and for other parts.
pub(super) fn of_model(part: &Value, info: &Value) -> Option<ContentPart> {
    match part["type"].as_str()? {
        "text" => Some(text(part)),
        "reasoning" => Some(ContentPart::Reasoning(reasoning(part, info))),
        "file" => Some(file(part).unwrap_or_else(|| json_part(part))),
        _ => None,
    }
}

fn text(part: &Value) -> ContentPart {
    match part["text"].as_str() {
        Some(text) => ContentPart::Text(text.to_owned()),
        None => json_part(part),
    }
}

fn reasoning(part: &Value, info: &Value) -> Reasoning {
    let signature = signature(&part["metadata"]).unwrap_or_default();
    let text = part["text"].as_str().unwrap_or_default();
    Reasoning {
        redacted: text.is_empty() && !signature.is_empty(),
        text: text.to_owned(),
        signature: Bytes::copy_from_slice(signature.as_bytes()),
        provider: content::short(&info["providerID"]).unwrap_or_default(),
        model: content::short(&info["modelID"]).unwrap_or_default(),
        id: String::new(),
    }
}

/// Returns the signature that a provider requires back with its reasoning.
fn signature(metadata: &Value) -> Option<&str> {
    const FIELDS: [&str; 4] = [
        "signature",
        "redactedData",
        "reasoningEncryptedContent",
        "thoughtSignature",
    ];
    let mut providers = metadata.as_object()?.values();
    providers.find_map(|of| FIELDS.iter().find_map(|field| of[*field].as_str()))
}

fn file(part: &Value) -> Option<ContentPart> {
    let media_type = short(part["mime"].as_str()?);
    let kind = media_type.split('/').next().unwrap_or_default().to_owned();
    let media = Media {
        media_type,
        source: MediaSource::Uri(part["url"].as_str()?.to_owned()),
        name: content::short(&part["filename"]).unwrap_or_default(),
        detail: String::new(),
    };
    Some(match kind.as_str() {
        "image" => ContentPart::Image(media),
        "audio" => ContentPart::Audio(media),
        _ => ContentPart::File(media),
    })
}

/// Returns the output of a tool, or its error.
pub(super) fn of_tool(state: &Value) -> Vec<ContentPart> {
    let text = state["output"].as_str().or_else(|| state["error"].as_str());
    let mut parts = text_parts(text.unwrap_or_default());
    let attached = state["attachments"].as_array().into_iter().flatten();
    parts.extend(attached.map(|part| file(part).unwrap_or_else(|| json_part(part))));
    parts
}

pub(super) fn usage(tokens: &Value) -> Option<Usage> {
    let count = |value: &Value| value.as_u64();
    Some(Usage {
        input_tokens: count(&tokens["input"])?,
        output_tokens: count(&tokens["output"])?,
        cache_read_input_tokens: count(&tokens["cache"]["read"]).unwrap_or_default(),
        cache_creation_input_tokens: count(&tokens["cache"]["write"]).unwrap_or_default(),
        reasoning_output_tokens: count(&tokens["reasoning"]).unwrap_or_default(),
        model: String::new(),
    })
}
