//! What a source sent, said as a difference from what Treering renders.

use bytes::Bytes;
use serde_json::{Value, json};

use super::number::numbers_survive;
use crate::domain::{RawEncoding, RawMessage};

/// A raw form that cannot be turned back into a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RawFault {
    /// `data` is not JSON.
    #[error("the kept source form is not JSON")]
    NotJson,
    /// The patch does not fit the message.
    #[error("the kept JSON Patch does not fit the message that it was made for")]
    DoesNotApply,
}

/// What has to be kept beside `rendered` to get `text` (whose value is
/// `original`) back; none when nothing has to.
pub(super) fn keep(
    origin: &str,
    rendered: Value,
    original: &Value,
    text: &str,
) -> Option<RawMessage> {
    let raw = |encoding, data| {
        Some(RawMessage {
            origin: origin.to_owned(),
            provider: String::new(),
            model: String::new(),
            encoding,
            data,
        })
    };
    let whole = || raw(RawEncoding::Whole, Bytes::copy_from_slice(text.as_bytes()));
    if !numbers_survive(text) {
        return whole();
    }
    if rendered == *original {
        return None;
    }
    // A patch is checked before it is relied on.
    patch_between(rendered.clone(), original)
        .and_then(|patch| serde_json::to_vec(&patch).ok())
        .filter(|data| apply(rendered, data).as_ref() == Ok(original))
        .map_or_else(whole, |data| raw(RawEncoding::JsonPatch, data.into()))
}

/// The message that was kept: `rendered` with its raw form applied.
pub(super) fn restore(
    rendered: impl FnOnce() -> Value,
    raw: Option<&RawMessage>,
) -> Result<String, RawFault> {
    match raw {
        Some(raw) if raw.encoding == RawEncoding::Whole => {
            let text = std::str::from_utf8(&raw.data).map_err(|_| RawFault::NotJson)?;
            Ok(text.to_owned())
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

/// Moves first, so that content in another shape is not stored twice; then a
/// plain difference.
fn patch_between(mut rendered: Value, original: &Value) -> Option<json_patch::Patch> {
    let mut patch = reshape(&rendered, original);
    json_patch::patch_unsafe(&mut rendered, &patch).ok()?;
    patch.0.extend(json_patch::diff(&rendered, original).0);
    Some(patch)
}

fn reshape(rendered: &Value, original: &Value) -> json_patch::Patch {
    let operations = match (&rendered["content"], &original["content"]) {
        // One text, which the source sent as a list of one part.
        (Value::String(text), Value::Array(parts))
            if parts.len() == 1 && parts[0]["text"] == *text =>
        {
            json!([
                {"op": "add", "path": "/_", "value": [{"type": "text"}]},
                {"op": "move", "from": "/content", "path": "/_/0/text"},
                {"op": "move", "from": "/_", "path": "/content"},
            ])
        }
        // One value that is no list of parts.
        (Value::Array(parts), other)
            if parts.len() == 1 && !other.is_array() && parts[0] == *other =>
        {
            json!([{"op": "move", "from": "/content/0", "path": "/content"}])
        }
        _ => return json_patch::Patch::default(),
    };
    serde_json::from_value(operations).unwrap_or_default()
}
