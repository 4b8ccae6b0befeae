//! Assembles an answer from the events of Responses.

use serde_json::{Value, json};

use super::{ProviderAnswer, append, element, events::StreamEvent};

pub(super) fn assemble(events: &[StreamEvent]) -> Option<ProviderAnswer> {
    let mut answer = Value::Null;
    let mut output = Value::Array(Vec::new());
    let mut is_complete = false;
    for event in events {
        let StreamEvent::Data(event) = event else {
            continue;
        };
        let kind = event["type"].as_str().unwrap_or_default();
        match kind {
            "response.created" | "response.in_progress" | "response.failed" => {
                answer = event["response"].clone();
            }
            "response.completed" | "response.incomplete" => {
                answer = event["response"].clone();
                is_complete = true;
            }
            _ => {
                let index = event["output_index"].as_u64();
                if let Some(item) = index.and_then(|index| element(&mut output, index)) {
                    add(item, kind, event);
                }
            }
        }
    }
    let has_items = output.as_array().is_some_and(|items| !items.is_empty());
    if !answer.is_object() {
        if !has_items {
            return None;
        }
        answer = json!({});
    }
    // Some providers repeat the items at the end, others do not.
    let is_listed = answer["output"]
        .as_array()
        .is_some_and(|items| !items.is_empty());
    if !is_listed {
        answer["output"] = output;
    }
    Some(ProviderAnswer {
        value: answer,
        is_complete,
    })
}

fn add(item: &mut Value, kind: &str, event: &Value) {
    let index = |field: &str| event[field].as_u64().unwrap_or_default();
    let delta = &event["delta"];
    match kind {
        "response.output_item.added" | "response.output_item.done" => {
            *item = event["item"].clone();
        }
        _ if !item.is_object() => {}
        "response.output_text.delta" => {
            text(
                item,
                "content",
                index("content_index"),
                "output_text",
                delta,
            );
        }
        "response.reasoning_text.delta" => {
            text(
                item,
                "content",
                index("content_index"),
                "reasoning_text",
                delta,
            );
        }
        "response.reasoning_summary_text.delta" => {
            text(
                item,
                "summary",
                index("summary_index"),
                "summary_text",
                delta,
            );
        }
        "response.refusal.delta" => {
            if let Some(part) = element(&mut item["content"], index("content_index")) {
                if !part.is_object() {
                    *part = json!({"type": "refusal"});
                }
                append(&mut part["refusal"], delta);
            }
        }
        "response.function_call_arguments.delta" => append(&mut item["arguments"], delta),
        "response.custom_tool_call_input.delta" => append(&mut item["input"], delta),
        _ => {}
    }
}

fn text(item: &mut Value, list: &str, index: u64, kind: &str, delta: &Value) {
    if let Some(part) = element(&mut item[list], index) {
        if !part.is_object() {
            *part = json!({"type": kind});
        }
        append(&mut part["text"], delta);
    }
}
