//! Converts Anthropic content blocks to content parts and back.

use bytes::Bytes;
use serde_json::{Value, json};

use super::super::content::short;
use treering_domain::{ContentPart, JsonText, Media, MediaSource, Reasoning};

/// The provider that signs the reasoning in these sessions.
pub(super) const PROVIDER: &str = "anthropic";

/// Returns the parts of content, which is a text or a list of blocks. `model` is the model that
/// wrote the reasoning blocks.
pub(crate) fn read(content: &Value, model: &str) -> Vec<ContentPart> {
    match content {
        Value::Null => Vec::new(),
        Value::String(text) => vec![ContentPart::Text(text.clone())],
        Value::Array(blocks) => blocks
            .iter()
            .map(|block| read_block(block, model))
            .collect(),
        other => vec![as_json(other)],
    }
}

pub(crate) fn read_block(block: &Value, model: &str) -> ContentPart {
    typed_block(block, model).unwrap_or_else(|| as_json(block))
}

fn as_json(value: &Value) -> ContentPart {
    ContentPart::Json(JsonText::from_checked(value.to_string().into()))
}

fn typed_block(block: &Value, model: &str) -> Option<ContentPart> {
    let reasoning = |text: &str, signature: &str, redacted| {
        ContentPart::Reasoning(Reasoning {
            text: text.to_owned(),
            signature: Bytes::copy_from_slice(signature.as_bytes()),
            redacted,
            provider: PROVIDER.to_owned(),
            model: model.to_owned(),
            id: String::new(),
        })
    };
    match block["type"].as_str()? {
        "text" => Some(ContentPart::Text(block["text"].as_str()?.to_owned())),
        "thinking" => {
            let signature = block["signature"].as_str().unwrap_or_default();
            Some(reasoning(block["thinking"].as_str()?, signature, false))
        }
        "redacted_thinking" => Some(reasoning("", block["data"].as_str()?, true)),
        "image" => {
            let source = &block["source"];
            let (media_type, uri) = match source["type"].as_str()? {
                "base64" => {
                    let media_type = short(&source["media_type"])?;
                    let data = source["data"].as_str()?;
                    let uri = format!("data:{media_type};base64,{data}");
                    (media_type, uri)
                }
                "url" => (String::new(), source["url"].as_str()?.to_owned()),
                _ => return None,
            };
            Some(ContentPart::Image(Media {
                media_type,
                source: MediaSource::Uri(uri),
                ..Media::default()
            }))
        }
        _ => None,
    }
}

/// Renders parts as content: as plain text where possible.
pub(super) fn render(parts: &[ContentPart]) -> Value {
    match parts {
        [] => Value::Null,
        [ContentPart::Text(text)] => text.as_str().into(),
        parts => parts.iter().map(render_block).collect(),
    }
}

pub(super) fn render_block(part: &ContentPart) -> Value {
    match part {
        ContentPart::Text(text) | ContentPart::Refusal(text) => {
            json!({"type": "text", "text": text})
        }
        ContentPart::Reasoning(thought) => {
            let signature = String::from_utf8_lossy(&thought.signature);
            if thought.redacted {
                json!({"type": "redacted_thinking", "data": signature})
            } else {
                let text = &thought.text;
                json!({"type": "thinking", "thinking": text, "signature": signature})
            }
        }
        ContentPart::Json(text) => serde_json::from_str(text.as_str()).unwrap_or_default(),
        ContentPart::Image(media) | ContentPart::File(media) | ContentPart::Audio(media) => {
            let uri = match &media.source {
                MediaSource::Uri(uri) => uri.as_str(),
                MediaSource::Data(_) | MediaSource::Absent => "",
            };
            let inline = format!("data:{};base64,", media.media_type);
            let source = match uri.strip_prefix(&inline) {
                Some(data) => {
                    json!({"type": "base64", "media_type": media.media_type, "data": data})
                }
                None => json!({"type": "url", "url": uri}),
            };
            json!({"type": "image", "source": source})
        }
    }
}
