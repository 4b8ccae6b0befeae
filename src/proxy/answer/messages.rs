//! Assembles an answer from the events of Anthropic Messages.

use serde_json::{Value, json};

use super::{ProviderAnswer, append, element, events::StreamEvent};

/// Field that collects the text of a call's input until it is complete.
const INPUT_TEXT: &str = "partial_input";

pub(super) fn assemble(events: &[StreamEvent]) -> Option<ProviderAnswer> {
    let mut answer = Value::Null;
    let mut is_complete = false;
    for event in events {
        let StreamEvent::Data(event) = event else {
            continue;
        };
        let kind = event["type"].as_str().unwrap_or_default();
        if kind == "message_start" {
            answer = event["message"].clone();
            answer["content"] = json!([]);
            continue;
        }
        if !answer.is_object() {
            continue;
        }
        let index = event["index"].as_u64().unwrap_or_default();
        match kind {
            "content_block_start" => {
                if let Some(block) = element(&mut answer["content"], index) {
                    *block = event["content_block"].clone();
                }
            }
            "content_block_delta" => {
                let block = element(&mut answer["content"], index);
                if let Some(block) = block.filter(|block| block.is_object()) {
                    add(block, &event["delta"]);
                }
            }
            "message_delta" => {
                merge(&mut answer, &event["delta"]);
                merge(&mut answer["usage"], &event["usage"]);
            }
            "message_stop" => is_complete = true,
            _ => {}
        }
    }
    let blocks = answer.get_mut("content")?.as_array_mut()?;
    blocks.retain(Value::is_object);
    blocks.iter_mut().for_each(end);
    Some(ProviderAnswer {
        value: answer,
        is_complete,
    })
}

fn add(block: &mut Value, delta: &Value) {
    match delta["type"].as_str().unwrap_or_default() {
        "text_delta" => append(&mut block["text"], &delta["text"]),
        "thinking_delta" => append(&mut block["thinking"], &delta["thinking"]),
        "signature_delta" => append(&mut block["signature"], &delta["signature"]),
        "input_json_delta" => append(&mut block[INPUT_TEXT], &delta["partial_json"]),
        _ => {}
    }
}

/// Parses the collected input of a call; text that is not JSON stays text.
fn end(block: &mut Value) {
    let fields = block.as_object_mut();
    let Some(Value::String(text)) = fields.and_then(|fields| fields.remove(INPUT_TEXT)) else {
        return;
    };
    if !text.is_empty() {
        block["input"] = serde_json::from_str(&text).unwrap_or(Value::String(text));
    }
}

/// Copies the fields that are not null.
fn merge(target: &mut Value, more: &Value) {
    for (name, value) in more.as_object().into_iter().flatten() {
        if !value.is_null() {
            target[name.as_str()] = value.clone();
        }
    }
}
