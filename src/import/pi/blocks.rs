//! Converts content of pi's messages to content parts.

use bytes::Bytes;
use serde_json::Value;

use super::super::{
    content,
    steps::{json_part, text_parts},
};
use treering_domain::{ContentPart, Media, MediaSource, Reasoning};

/// Returns the parts of content, which is a text or a list of blocks.
pub(super) fn read(content: &Value, provider: &str, model: &str) -> Vec<ContentPart> {
    match content {
        Value::Null => Vec::new(),
        Value::String(text) => text_parts(text),
        Value::Array(blocks) => blocks
            .iter()
            .map(|block| read_block(block, provider, model))
            .collect(),
        other => vec![json_part(other)],
    }
}

pub(super) fn read_block(block: &Value, provider: &str, model: &str) -> ContentPart {
    typed_block(block, provider, model).unwrap_or_else(|| json_part(block))
}

fn typed_block(block: &Value, provider: &str, model: &str) -> Option<ContentPart> {
    let text = |field: &str| block[field].as_str();
    match text("type")? {
        "text" => Some(ContentPart::Text(text("text")?.to_owned())),
        "thinking" => {
            let signature = text("thinkingSignature").unwrap_or_default();
            Some(ContentPart::Reasoning(Reasoning {
                text: text("thinking")?.to_owned(),
                signature: Bytes::copy_from_slice(signature.as_bytes()),
                redacted: block["redacted"] == Value::Bool(true),
                provider: provider.to_owned(),
                model: model.to_owned(),
                id: String::new(),
            }))
        }
        "image" => {
            let media_type = content::short(&block["mimeType"])?;
            let uri = format!("data:{media_type};base64,{}", text("data")?);
            Some(ContentPart::Image(Media {
                media_type,
                source: MediaSource::Uri(uri),
                ..Media::default()
            }))
        }
        _ => None,
    }
}
