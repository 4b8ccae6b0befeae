//! Reads a provider's answer: a whole body, or the events of a stream, which are assembled into the
//! same form.

mod chat;
mod events;
mod messages;
mod responses;

use serde_json::Value;
use treering_import::model_call::CallFormat;

/// An answer in the form that the provider uses without streaming.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ProviderAnswer {
    /// The answer.
    pub(crate) value: Value,
    /// True if the provider finished the answer.
    pub(crate) is_complete: bool,
}

/// Returns the answer in a body; `None` if it cannot be read.
pub(crate) fn read(format: CallFormat, body: &[u8], is_stream: bool) -> Option<ProviderAnswer> {
    if !is_stream {
        let value: Value = serde_json::from_slice(body).ok()?;
        return value.is_object().then_some(ProviderAnswer {
            value,
            is_complete: true,
        });
    }
    let events = events::read(body);
    match format {
        CallFormat::ChatCompletions => chat::assemble(&events),
        CallFormat::Responses => responses::assemble(&events),
        CallFormat::Messages => messages::assemble(&events),
    }
}

/// Appends a piece of text to a field.
fn append(target: &mut Value, piece: &Value) {
    let Some(piece) = piece.as_str() else { return };
    match target {
        Value::String(text) => text.push_str(piece),
        other => *other = piece.into(),
    }
}

/// Returns an element of a list, which is extended if needed.
fn element(list: &mut Value, index: u64) -> Option<&mut Value> {
    /// Maximum number of elements. Larger indexes are ignored.
    const ELEMENTS_MAX: usize = 4_096;
    let index = usize::try_from(index)
        .ok()
        .filter(|at| *at < ELEMENTS_MAX)?;
    if !list.is_array() {
        *list = Value::Array(Vec::new());
    }
    let items = list.as_array_mut()?;
    if items.len() <= index {
        items.resize(index + 1, Value::Null);
    }
    items.get_mut(index)
}
