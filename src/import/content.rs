//! Converts OpenAI message content to content parts and back.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use treering_domain::{ContentPart, JsonText, Media, MediaSource, limits::SHORT_TEXT_BYTES_MAX};
use treering_proto::body;

/// Prefix of the id of a file that the provider keeps.
const FILE_ID_SCHEME: &str = "openai-file:";

/// Returns the arguments of a call byte for byte, and true if they are text that is not JSON.
/// Arguments that are not UTF-8 or are nested too deeply become a JSON string.
pub fn arguments(text: Bytes) -> (JsonText, bool) {
    body::arguments(text.clone()).unwrap_or_else(|_| {
        let string = Value::from(String::from_utf8_lossy(&text)).to_string();
        (JsonText::from_checked(string.into()), false)
    })
}

/// Returns the parts of a message's `content`; none for null or absent content.
pub fn read(content: Option<&Value>) -> Vec<ContentPart> {
    match content {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(text)) => vec![ContentPart::Text(text.clone())],
        Some(Value::Array(parts)) => parts.iter().map(read_part).collect(),
        Some(other) => vec![as_json(other)],
    }
}

/// Renders parts as `content`; reasoning is not part of it in this format.
pub fn render(parts: &[ContentPart]) -> Value {
    let mut parts = parts
        .iter()
        .filter(|part| !matches!(part, ContentPart::Reasoning(_)))
        .peekable();
    let Some(first) = parts.next() else {
        return Value::Null;
    };
    if let (ContentPart::Text(text), None) = (first, parts.peek()) {
        return Value::from(text.as_str());
    }
    let list = std::iter::once(first).chain(parts).map(render_part);
    Value::Array(list.collect())
}

fn as_json(value: &Value) -> ContentPart {
    ContentPart::Json(JsonText::from_checked(Bytes::from(value.to_string())))
}

fn read_part(part: &Value) -> ContentPart {
    typed_part(part).unwrap_or_else(|| as_json(part))
}

/// Returns a part of a known shape; `None` when a field is missing or odd.
fn typed_part(part: &Value) -> Option<ContentPart> {
    match part["type"].as_str()? {
        "text" => Some(ContentPart::Text(part["text"].as_str()?.to_owned())),
        "refusal" => Some(ContentPart::Refusal(part["refusal"].as_str()?.to_owned())),
        "image_url" => {
            let image = &part["image_url"];
            let url = image["url"].as_str()?;
            Some(ContentPart::Image(Media {
                media_type: data_url_type(url).unwrap_or_default(),
                source: MediaSource::Uri(url.to_owned()),
                name: String::new(),
                detail: short(&image["detail"]).unwrap_or_default(),
            }))
        }
        "input_audio" => {
            let audio = &part["input_audio"];
            let media_type = format!("audio/{}", short(&audio["format"])?);
            if media_type.len() > SHORT_TEXT_BYTES_MAX {
                return None;
            }
            let data = audio["data"].as_str()?;
            Some(ContentPart::Audio(Media {
                source: MediaSource::Uri(format!("data:{media_type};base64,{data}")),
                media_type,
                ..Media::default()
            }))
        }
        "file" => {
            let file = &part["file"];
            let uri = match (file["file_data"].as_str(), file["file_id"].as_str()) {
                (Some(data), None) => data.to_owned(),
                (None, Some(id)) => format!("{FILE_ID_SCHEME}{id}"),
                _ => return None,
            };
            Some(ContentPart::File(Media {
                media_type: data_url_type(&uri).unwrap_or_default(),
                source: MediaSource::Uri(uri),
                name: short(&file["filename"]).unwrap_or_default(),
                detail: String::new(),
            }))
        }
        _ => None,
    }
}

fn render_part(part: &ContentPart) -> Value {
    match part {
        ContentPart::Text(text) => json!({"type": "text", "text": text}),
        ContentPart::Refusal(text) => json!({"type": "refusal", "refusal": text}),
        ContentPart::Json(text) => serde_json::from_str(text.as_str()).unwrap_or_default(),
        ContentPart::Reasoning(thought) => json!({"type": "reasoning", "text": thought.text}),
        ContentPart::Image(media) => {
            let mut image = Map::new();
            image.insert("url".into(), uri(media).into());
            if !media.detail.is_empty() {
                image.insert("detail".into(), media.detail.as_str().into());
            }
            json!({"type": "image_url", "image_url": image})
        }
        ContentPart::Audio(media) => {
            let uri = uri(media);
            let data = uri.split_once(";base64,").map_or("", |(_, data)| data);
            let format = media.media_type.strip_prefix("audio/").unwrap_or_default();
            json!({"type": "input_audio", "input_audio": {"data": data, "format": format}})
        }
        ContentPart::File(media) => {
            let uri = uri(media);
            let mut file = Map::new();
            match uri.strip_prefix(FILE_ID_SCHEME) {
                Some(id) => file.insert("file_id".into(), id.into()),
                None => file.insert("file_data".into(), uri.into()),
            };
            if !media.name.is_empty() {
                file.insert("filename".into(), media.name.as_str().into());
            }
            json!({"type": "file", "file": file})
        }
    }
}

/// Returns the URI of the media; inline content becomes a data URL.
fn uri(media: &Media) -> String {
    match &media.source {
        MediaSource::Absent => String::new(),
        MediaSource::Uri(uri) => uri.clone(),
        MediaSource::Data(data) => {
            format!("data:{};base64,{}", media.media_type, base64(data))
        }
    }
}

fn data_url_type(url: &str) -> Option<String> {
    let (media_type, _) = url.strip_prefix("data:")?.split_once([';', ','])?;
    (media_type.len() <= SHORT_TEXT_BYTES_MAX).then(|| media_type.to_owned())
}

/// Returns a text if it is short enough for a name.
pub fn short(value: &Value) -> Option<String> {
    let text = value.as_str()?;
    (text.len() <= SHORT_TEXT_BYTES_MAX).then(|| text.to_owned())
}

fn base64(data: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(data.len().div_ceil(3) * 4);
    for chunk in data.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            if place <= chunk.len() {
                let index = (bits >> (18 - 6 * place)) & 63;
                text.push(char::from(ALPHABET[index as usize]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    // Known parts must be restored as they were; unknown parts must be kept as JSON, never dropped.
    #[test]
    fn content_parts_round_trip() {
        for content in [
            json!(null),
            json!("text"),
            json!(""),
            json!([{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "no"}]),
            json!([{"type": "text", "text": "a"}, {"type": "image_url",
                "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}}]),
            json!([{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}]),
            json!([{"type": "file", "file": {"file_id": "f1"}},
                {"type": "file", "file": {"file_data": "data:text/plain,x", "filename": "x"}}]),
            json!([{"type": "new", "field": [1, null]}, 5, "bare", {"type": "text"}]),
            json!([]),
        ] {
            let parts = read(Some(&content));
            let expected = if content == json!([]) {
                json!(null)
            } else {
                content
            };
            assert_eq!(render(&parts), expected);
        }
        let image = read(Some(
            &json!([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]),
        ));
        assert!(matches!(&image[0], ContentPart::Image(media) if media.media_type == "image/png"));
    }

    // The alphabet and the padding of base64 are easy to get wrong.
    #[test]
    fn base64_uses_the_standard_alphabet_and_padding() {
        for (data, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(data.as_bytes()), text);
        }
        assert_eq!(base64(&[0xfb, 0xff, 0xfe]), "+//+");
    }
}
