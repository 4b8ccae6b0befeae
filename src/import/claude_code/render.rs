//! Renders events as session lines: the base of the stored JSON Patches.
//!
//! **Frozen.** Stored patches were made against exactly this rendering; changing it would damage
//! earlier imports.

use serde_json::{Map, Value, json};

use super::{SOURCE, blocks};
use crate::{
    canonical,
    exporter::ExportFault,
    raw::{self, RawFault},
};
use treering_domain::{
    EventBody, MessageAppended, RawMessage, Role, StoredEvent, TimestampMicros, ToolResultRecorded,
};
use treering_proto::body;

/// Prefix of the type names of custom events that hold lines.
pub(super) const TYPE_PREFIX: &str = "claude-code/";

/// The origin of raw forms of progress lines of a sub-agent.
pub(super) const PROGRESS_ORIGIN: &str = "claude-code/agent_progress";

/// JSON pointer to the sub-agent's line in a progress line.
pub(super) const PROGRESS_PLACE: &str = "/data/message";

/// Renders a progress line around a sub-agent's line.
pub(super) fn progress(said: Value) -> Value {
    json!({
        "type": "progress",
        "isSidechain": false,
        "userType": "external",
        "data": {"type": "agent_progress", "normalizedMessages": [], "message": said},
    })
}

/// Renders the line that these events come from. The first event holds the raw form of the line.
pub(super) fn line(bodies: &[&EventBody], occurred_at: Option<TimestampMicros>) -> Value {
    let mut message = Map::new();
    let mut line = Map::new();
    let mut content = Vec::new();
    let mut role = "user";
    let mut plain = None;
    for body in bodies {
        match body {
            EventBody::MessageAppended(said) if said.role == Role::Tool => {
                content.push(orphan_block(said));
            }
            EventBody::MessageAppended(said) => {
                role = said.role.as_str();
                content.extend(said.parts.iter().map(blocks::render_block));
                plain = Some(blocks::render(&said.parts)).filter(Value::is_string);
                put_message_fields(&mut message, said);
            }
            EventBody::Compacted(compacted) => {
                plain = Some(Value::from(compacted.summary.as_str()));
                content.push(json!({"type": "text", "text": compacted.summary}));
            }
            EventBody::ToolCallRequested(call) => content.push(json!({
                "type": "tool_use",
                "id": call.call_id,
                "name": call.tool,
                "input": serde_json::from_str::<Value>(call.arguments.as_str()).unwrap_or_default(),
            })),
            EventBody::ToolResultRecorded(result) => {
                content.push(result_block(result));
                if !result.structured.is_absent() {
                    let structured = serde_json::from_str(result.structured.as_str());
                    line.insert("toolUseResult".into(), structured.unwrap_or_default());
                }
            }
            _ => {}
        }
    }
    message.insert("role".into(), role.into());
    // A prompt is a plain text; assistant messages are lists of blocks.
    let alone = plain.filter(|_| bodies.len() == 1 && role == "user");
    message.insert("content".into(), alone.unwrap_or(Value::Array(content)));
    // Render the fields that nearly every line has, so that few lines need a patch for them.
    if role == "assistant" {
        message.insert("type".into(), "message".into());
        message.insert("stop_sequence".into(), Value::Null);
        message.entry("stop_reason").or_insert(Value::Null);
    }
    line.insert("isSidechain".into(), false.into());
    line.insert("userType".into(), "external".into());
    line.insert("type".into(), role.into());
    line.insert("message".into(), Value::Object(message));
    if let Some(time) = occurred_at.and_then(canonical::render_time) {
        line.insert("timestamp".into(), time.into());
    }
    Value::Object(line)
}

/// Returns JSON pointers to content that sources write in more than one shape. `place` points to
/// the line within the kept value.
pub(super) fn contents(line: &Value, place: &str) -> Vec<String> {
    let mut places = vec![format!("{place}/message")];
    let blocks = line["message"]["content"].as_array().map_or(0, Vec::len);
    places.extend((0..blocks).map(|block| format!("{place}/message/content/{block}")));
    places
}

fn put_message_fields(message: &mut Map<String, Value>, said: &MessageAppended) {
    let model = said.raw.as_ref().map_or("", |raw| raw.model.as_str());
    let fields = [
        ("id", said.message_id.as_str()),
        ("model", model),
        ("stop_reason", said.finish_reason.as_str()),
    ];
    for (name, text) in fields {
        if !text.is_empty() {
            message.insert(name.to_owned(), text.into());
        }
    }
    if let Some(usage) = &said.usage {
        message.insert("usage".into(), canonical::render_usage(usage));
    }
}

fn result_block(result: &ToolResultRecorded) -> Value {
    let mut block = json!({
        "type": "tool_result",
        "tool_use_id": result.call_id,
        "content": blocks::render(&result.parts),
    });
    if !result.success {
        block["is_error"] = true.into();
    }
    block
}

fn orphan_block(message: &MessageAppended) -> Value {
    json!({
        "type": "tool_result",
        "tool_use_id": message.tool_call_id,
        "content": blocks::render(&message.parts),
    })
}

/// Returns the lines of an imported session in order, each equal as JSON to the original (byte for
/// byte if it is not JSON). `events` are all events of the conversation in revision order.
///
/// # Errors
/// [`ExportFault`] names the event whose line cannot be restored.
pub fn session_lines(events: &[StoredEvent]) -> Result<Vec<Vec<u8>>, ExportFault> {
    let mut lines = Vec::new();
    let mut decoded = Vec::with_capacity(events.len());
    for event in events {
        let revision = event.header.revision;
        let Some(kind) = event.header.kind() else {
            continue;
        };
        let body = body::decode(kind, &event.body);
        let body = body.map_err(|fault| ExportFault::Body { revision, fault })?;
        decoded.push((event, body));
    }
    for (at, (event, body)) in decoded.iter().enumerate() {
        let revision = event.header.revision;
        if let EventBody::Custom(custom) = body {
            if custom.type_name.starts_with(TYPE_PREFIX) {
                lines.push(custom.data.to_vec());
            }
            continue;
        }
        let ours = |raw: &&RawMessage| [SOURCE, PROGRESS_ORIGIN].contains(&raw.origin.as_str());
        let Some(raw) = raw_of(body).filter(ours) else {
            continue;
        };
        let rest = decoded[at + 1..].iter().map(|(_, body)| body);
        let rest = rest.take_while(|body| !starts_line(body)).filter(|body| {
            matches!(
                body,
                EventBody::MessageAppended(_)
                    | EventBody::ToolCallRequested(_)
                    | EventBody::ToolResultRecorded(_)
            )
        });
        let rest: Vec<_> = std::iter::once(body).chain(rest).collect();
        let rendered = || {
            let line = line(&rest, event.header.occurred_at);
            match raw.origin.as_str() {
                PROGRESS_ORIGIN => progress(line),
                _ => line,
            }
        };
        let text = raw::restore(rendered, Some(raw))
            .map_err(|fault: RawFault| ExportFault::Raw { revision, fault })?;
        lines.push(text.into_bytes());
    }
    Ok(lines)
}

/// Returns true for the first event of a line, which has the line's raw form or the whole line.
fn starts_line(body: &EventBody) -> bool {
    raw_of(body).is_some() || matches!(body, EventBody::Custom(_))
}

fn raw_of(body: &EventBody) -> Option<&RawMessage> {
    match body {
        EventBody::MessageAppended(message) => message.raw.as_ref(),
        EventBody::ToolResultRecorded(result) => result.raw.as_ref(),
        EventBody::Compacted(compacted) => compacted.raw.as_ref(),
        _ => None,
    }
}
