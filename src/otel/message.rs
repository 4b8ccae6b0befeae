//! Parses messages in the forms that instrumentations write: the parts of the conventions, a
//! provider's own content, or attributes with paths as names.

use bytes::Bytes;
use serde_json::Value;

use super::{
    SpanItem, SpanMessage, SpanToolCall, SpanToolResult,
    part::{self, Part},
};
use treering_domain::{ContentPart, JsonText, Role};

/// The name of tools without one.
const NAMELESS: &str = "tool";

/// Parses a list of messages. System prompts at its front are returned separately.
pub(super) fn read_all(list: &[Value]) -> (Vec<String>, Vec<SpanItem>) {
    let mut items = Vec::new();
    let mut system = Vec::new();
    for message in list {
        let read = read(message);
        match &read[..] {
            [SpanItem::Said(said)] if items.is_empty() && is_prompt(said) => {
                system.push(text_of(&said.parts));
            }
            _ => items.extend(read),
        }
    }
    (system, items)
}

fn is_prompt(said: &SpanMessage) -> bool {
    matches!(said.role, Role::System | Role::Developer) && said.calls.is_empty()
}

/// Returns the text of parts.
pub(super) fn text_of(parts: &[ContentPart]) -> String {
    let texts: Vec<_> = parts.iter().filter_map(ContentPart::text).collect();
    texts.join("\n")
}

/// Parses a message. Results among its parts become separate items before it.
pub(super) fn read(message: &Value) -> Vec<SpanItem> {
    let message = match &message["message"] {
        Value::Object(_) => &message["message"],
        _ => message,
    };
    let role = role(message["role"].as_str().unwrap_or_default());
    let mut parts = Vec::new();
    let mut calls = Vec::new();
    let mut results = Vec::new();
    for part in parts_of(message) {
        match part {
            Part::Content(ContentPart::Text(text)) if text.is_empty() => {}
            Part::Content(part) => parts.push(part),
            Part::Call(call) => calls.push(call),
            Part::Result(told) => results.push(told),
        }
    }
    calls.extend(listed_calls(message));
    let call_id = part::short(message, &["tool_call_id", "id", "call_id"]);
    if role == Role::Tool && results.is_empty() {
        let told = SpanToolResult {
            call_id,
            tool: part::short(message, &["name"]),
            parts,
        };
        return vec![SpanItem::Result(told)];
    }
    let mut items: Vec<_> = results.into_iter().map(SpanItem::Result).collect();
    if !parts.is_empty() || !calls.is_empty() {
        items.push(SpanItem::Said(SpanMessage {
            role,
            parts,
            calls,
            finish_reason: part::short(message, &["finish_reason"]),
            call_id: String::new(),
        }));
    }
    items
}

fn role(name: &str) -> Role {
    match name.to_ascii_lowercase().as_str() {
        "system" => Role::System,
        "developer" => Role::Developer,
        "assistant" | "model" | "ai" => Role::Assistant,
        "tool" | "function" => Role::Tool,
        _ => Role::User,
    }
}

fn parts_of(message: &Value) -> Vec<Part> {
    let content = part::field(message, &["parts", "content", "contents"]);
    match content {
        Value::Array(list) => list.iter().map(unwrapped).collect(),
        Value::String(text) => match listed(text) {
            Some(list) => list.iter().map(unwrapped).collect(),
            None => vec![Part::Content(ContentPart::Text(text.clone()))],
        },
        Value::Null => Vec::new(),
        other => vec![Part::Content(ContentPart::Json(super::json_of(other)))],
    }
}

/// Reads a part, which may be wrapped as in OpenInference, or be a plain text.
fn unwrapped(value: &Value) -> Part {
    match value {
        Value::String(text) => Part::Content(ContentPart::Text(text.clone())),
        value => match &value["message_content"] {
            Value::Null => part::read(value),
            inner => part::read(inner),
        },
    }
}

/// Returns the parts in a text that is a JSON list of parts.
fn listed(text: &str) -> Option<Vec<Value>> {
    if !text.starts_with("[{") {
        return None;
    }
    let list: Vec<Value> = serde_json::from_str(text).ok()?;
    let all = list.iter().all(|part| part["type"].is_string());
    all.then_some(list)
}

fn listed_calls(message: &Value) -> Vec<SpanToolCall> {
    let list = match &message["tool_calls"] {
        Value::String(text) => serde_json::from_str(text).unwrap_or_default(),
        Value::Array(list) => list.clone(),
        _ => Vec::new(),
    };
    list.iter().map(part::call).collect()
}

/// Gives each call without an id one that is the same in all spans with this history. Assigns each
/// result to the first open call that it can belong to, and turns results without a call into
/// messages.
pub(super) fn with_call_ids(items: Vec<SpanItem>) -> Vec<SpanItem> {
    /// A call that has no result yet.
    struct UnansweredCall {
        id: String,
        tool: String,
    }
    let mut open: Vec<UnansweredCall> = Vec::new();
    let mut asked = 0_usize;
    let mut settled = Vec::with_capacity(items.len());
    for item in items {
        match item {
            SpanItem::Said(mut said) => {
                for call in &mut said.calls {
                    asked += 1;
                    if call.tool.is_empty() {
                        call.tool = NAMELESS.to_owned();
                    }
                    if call.arguments.is_absent() {
                        call.arguments = JsonText::from_checked(Bytes::from_static(b"{}"));
                    }
                    if call.id.is_empty() {
                        call.id = format!("otel-{asked}");
                    }
                    open.push(UnansweredCall {
                        id: call.id.clone(),
                        tool: call.tool.clone(),
                    });
                }
                settled.push(SpanItem::Said(said));
            }
            SpanItem::Result(mut told) => {
                let found = open.iter().position(|call| match told.call_id.is_empty() {
                    true => told.tool.is_empty() || told.tool == call.tool,
                    false => told.call_id == call.id,
                });
                settled.push(match found {
                    Some(at) => {
                        let call = open.remove(at);
                        told.call_id = call.id;
                        told.tool = call.tool;
                        SpanItem::Result(told)
                    }
                    None => SpanItem::Said(orphan(told)),
                });
            }
        }
    }
    settled
}

/// Returns a result without a call, as a message.
fn orphan(told: SpanToolResult) -> SpanMessage {
    SpanMessage {
        role: Role::Tool,
        parts: told.parts,
        calls: Vec::new(),
        finish_reason: String::new(),
        call_id: told.call_id,
    }
}
