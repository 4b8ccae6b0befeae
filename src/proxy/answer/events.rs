//! Parses server-sent events.

use serde_json::Value;

/// The text that ends OpenAI's streams.
const DONE: &str = "[DONE]";

/// The content of an event.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum StreamEvent {
    /// JSON.
    Data(Value),
    /// The end of the stream.
    Done,
}

/// Returns the events of a stream. Events that are incomplete or not JSON are skipped.
pub(super) fn read(body: &[u8]) -> Vec<StreamEvent> {
    let text = String::from_utf8_lossy(body);
    let mut events = Vec::new();
    let mut data = String::new();
    for line in text.split('\n').chain([""]) {
        let line = line.strip_suffix('\r').unwrap_or(line);
        if let Some(more) = line.strip_prefix("data:") {
            if !data.is_empty() {
                data.push('\n');
            }
            data.push_str(more.strip_prefix(' ').unwrap_or(more));
        } else if line.is_empty() && !data.is_empty() {
            if data.trim() == DONE {
                events.push(StreamEvent::Done);
            } else if let Ok(value) = serde_json::from_str(&data) {
                events.push(StreamEvent::Data(value));
            }
            data.clear();
        }
    }
    events
}
