//! Stores a source's message as a difference from Treering's rendering.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::number::numbers_survive;
use treering_domain::{RawEncoding, RawMessage};

/// Why a raw form cannot be turned back into a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RawFault {
    /// `data` is not JSON.
    #[error("the stored source form is not JSON")]
    NotJson,
    /// The patch does not apply to the message.
    #[error("the stored JSON Patch does not apply to its message")]
    DoesNotApply,
}

/// A message as its source sent it.
pub(super) struct SentMessage<'a> {
    pub(super) origin: &'a str,
    pub(super) provider: &'a str,
    pub(super) model: &'a str,
    pub(super) value: &'a Value,
    pub(super) text: &'a str,
}

impl SentMessage<'_> {
    fn raw(&self, encoding: RawEncoding, data: Bytes) -> RawMessage {
        RawMessage {
            origin: self.origin.to_owned(),
            provider: self.provider.to_owned(),
            model: self.model.to_owned(),
            encoding,
            data,
        }
    }
}

/// Returns the data that must be kept beside `rendered` to restore the source's message; `None`
/// when they are equal. `contents` are JSON pointers to objects whose `content` may have another
/// shape than the rendered one.
pub(super) fn keep(
    source: &SentMessage<'_>,
    rendered: Value,
    contents: &[String],
) -> Option<RawMessage> {
    let text = || Bytes::copy_from_slice(source.text.as_bytes());
    if !numbers_survive(source.text) {
        return Some(source.raw(RawEncoding::Whole, text()));
    }
    if rendered == *source.value {
        return None;
    }
    // Use the patch only if it restores the message.
    let patch = patch_between(rendered.clone(), source.value, contents)
        .and_then(|patch| serde_json::to_vec(&patch).ok())
        .filter(|data| apply(rendered, data).as_ref() == Ok(source.value));
    Some(match patch {
        Some(data) => source.raw(RawEncoding::JsonPatch, data.into()),
        None => source.raw(RawEncoding::Whole, text()),
    })
}

/// Restores the message by applying its raw form to `rendered`.
pub(super) fn restore(
    rendered: impl FnOnce() -> Value,
    raw: Option<&RawMessage>,
) -> Result<String, RawFault> {
    match raw {
        Some(raw) if raw.encoding == RawEncoding::Whole => {
            let text = std::str::from_utf8(&raw.data).map_err(|_| RawFault::NotJson)?;
            Ok(text.to_owned())
        }
        Some(raw) if raw.encoding == RawEncoding::Rest => {
            Ok(beside(rendered(), &raw.data)?.to_string())
        }
        Some(raw) => Ok(apply(rendered(), &raw.data)?.to_string()),
        None => Ok(rendered().to_string()),
    }
}

fn apply(mut value: Value, patch: &[u8]) -> Result<Value, RawFault> {
    let patch: json_patch::Patch = serde_json::from_slice(patch).map_err(|_| RawFault::NotJson)?;
    json_patch::patch_unsafe(&mut value, &patch).map_err(|_| RawFault::DoesNotApply)?;
    Ok(value)
}

/// Adds the fields of `rest`; the rendered fields come first, and `rest` wins on equal names.
fn beside(rendered: Value, rest: &[u8]) -> Result<Value, RawFault> {
    let rest: Map<String, Value> = serde_json::from_slice(rest).map_err(|_| RawFault::NotJson)?;
    let mut fields = match rendered {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    fields.extend(rest);
    Ok(Value::Object(fields))
}

/// Returns a patch that first moves content of another shape, so that it is not stored twice, and
/// then applies a plain difference.
fn patch_between(
    mut rendered: Value,
    original: &Value,
    contents: &[String],
) -> Option<json_patch::Patch> {
    let mut patch = json_patch::Patch::default();
    for place in contents {
        let reshape = reshape(&rendered, original, place);
        json_patch::patch_unsafe(&mut rendered, &reshape).ok()?;
        patch.0.extend(reshape.0);
    }
    patch.0.extend(json_patch::diff(&rendered, original).0);
    Some(patch)
}

fn reshape(rendered: &Value, original: &Value, place: &str) -> json_patch::Patch {
    let content = format!("{place}/content");
    let operations = match (rendered.pointer(&content), original.pointer(&content)) {
        // A string, which the source sent as a list with one part.
        (Some(Value::String(text)), Some(Value::Array(parts)))
            if parts.len() == 1 && parts[0]["text"] == *text =>
        {
            json!([
                {"op": "add", "path": "/_", "value": [{"type": "text"}]},
                {"op": "move", "from": content, "path": "/_/0/text"},
                {"op": "move", "from": "/_", "path": content},
            ])
        }
        // A list with one part, which the source sent as a string.
        (Some(Value::Array(parts)), Some(Value::String(text)))
            if parts.len() == 1 && parts[0]["text"] == *text =>
        {
            json!([{"op": "move", "from": format!("{content}/0/text"), "path": content}])
        }
        // A list with one part, which the source sent as a value without a list.
        (Some(Value::Array(parts)), Some(other))
            if parts.len() == 1 && !other.is_array() && parts[0] == *other =>
        {
            json!([{"op": "move", "from": format!("{content}/0"), "path": content}])
        }
        _ => return json_patch::Patch::default(),
    };
    serde_json::from_value(operations).unwrap_or_default()
}
