//! Assembles an answer from the chunks of Chat Completions.

use serde_json::{Value, json};

use super::{ProviderAnswer, append, element, events::StreamEvent};

/// The text fields of a delta.
const TEXTS: [&str; 4] = ["content", "reasoning_content", "reasoning", "refusal"];

pub(super) fn assemble(events: &[StreamEvent]) -> Option<ProviderAnswer> {
    let mut answer = json!({"choices": [{"message": {"role": "assistant"}}]});
    let (mut is_complete, mut is_begun) = (false, false);
    for event in events {
        let chunk = match event {
            StreamEvent::Done => {
                is_complete = true;
                continue;
            }
            StreamEvent::Data(chunk) => chunk,
        };
        for field in ["id", "model", "usage"] {
            if !chunk[field].is_null() {
                answer[field] = chunk[field].clone();
            }
        }
        let choices = chunk["choices"].as_array().map_or(&[][..], Vec::as_slice);
        // Only the first choice is recorded.
        let first = |choice: &&Value| choice["index"].as_u64().unwrap_or_default() == 0;
        for choice in choices.iter().filter(first) {
            is_begun = true;
            add(&mut answer["choices"][0]["message"], &choice["delta"]);
            if choice["finish_reason"].is_string() {
                answer["choices"][0]["finish_reason"] = choice["finish_reason"].clone();
                is_complete = true;
            }
        }
        is_complete &= chunk["error"].is_null();
    }
    is_begun.then_some(ProviderAnswer {
        value: answer,
        is_complete,
    })
}

fn add(message: &mut Value, delta: &Value) {
    for field in TEXTS {
        if delta[field].is_string() {
            append(&mut message[field], &delta[field]);
        }
    }
    let calls = delta["tool_calls"].as_array();
    for piece in calls.map_or(&[][..], Vec::as_slice) {
        let index = piece["index"].as_u64().unwrap_or_default();
        let Some(call) = element(&mut message["tool_calls"], index) else {
            continue;
        };
        if call.is_null() {
            *call = json!({"type": "function"});
        }
        if piece["id"].as_str().is_some_and(|id| !id.is_empty()) {
            call["id"] = piece["id"].clone();
        }
        for (kind, text) in [("function", "arguments"), ("custom", "input")] {
            let part = &piece[kind];
            if !part.is_object() {
                continue;
            }
            if part["name"].as_str().is_some_and(|name| !name.is_empty()) {
                call[kind]["name"] = part["name"].clone();
            }
            let said = part[text].as_str().unwrap_or_default();
            append(&mut call[kind][text], &said.into());
        }
    }
}
