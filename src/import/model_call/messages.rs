//! Reads calls of Anthropic Messages.

use serde_json::Value;

use super::{
    super::{canonical, claude_code::blocks, content, openai_chat, steps},
    CallStep, ModelCall, list, text, without_empty,
};
use treering_domain::{ContentPart, MessageAppended, Role, ToolCallRequested};

/// The start of a system block by which a harness counts its calls. It differs in every call, and
/// no model reads it.
const BILLING: &str = "x-anthropic-billing-header:";

pub(super) fn read(request: &Value, answer: &Value) -> Option<ModelCall> {
    let messages = request["messages"].as_array()?;
    let model = [text(answer, "model"), text(request, "model")];
    let model = model.into_iter().find(|model| !model.is_empty());
    let model = model.map(steps::short).unwrap_or_default();
    let mut asked: Vec<CallStep> = system(&request["system"]).into_iter().collect();
    for message in messages {
        match text(message, "role") {
            "assistant" => asked.push(assistant(message, "")),
            "system" => asked.extend(system(&message["content"])),
            _ => user(message, &mut asked),
        }
    }
    let answered = answer["content"].is_array().then(|| {
        let mut step = assistant(answer, &model);
        if let CallStep::Said { message, .. } = &mut step {
            message.finish_reason = content::short(&answer["stop_reason"]).unwrap_or_default();
            message.message_id = content::short(&answer["id"]).unwrap_or_default();
            message.usage = canonical::read_usage(&answer["usage"]);
        }
        step
    });
    let says = |step: &CallStep| match step {
        CallStep::Said { message, calls } => !message.parts.is_empty() || !calls.is_empty(),
        CallStep::Result(_) => false,
    };
    Some(ModelCall {
        model,
        tools: openai_chat::tools(&request["tools"]),
        request: asked,
        answer: answered.filter(says),
        answer_id: text(answer, "id").to_owned(),
        ..ModelCall::default()
    })
}

fn system(content: &Value) -> Option<CallStep> {
    let mut parts = without_empty(blocks::read(content, ""));
    let is_billing = |part: &ContentPart| part.text().is_some_and(|text| text.starts_with(BILLING));
    parts.retain(|part| !is_billing(part));
    let message = MessageAppended::new(Role::System, parts);
    (!message.parts.is_empty()).then(|| CallStep::said(message))
}

fn assistant(message: &Value, model: &str) -> CallStep {
    let mut said = MessageAppended::new(Role::Assistant, Vec::new());
    let mut calls = Vec::new();
    if message["content"].is_string() {
        said.parts = blocks::read(&message["content"], model);
    }
    for block in list(message, "content") {
        match call(block) {
            Some(call) => calls.push(call),
            None => said.parts.push(blocks::read_block(block, model)),
        }
    }
    said.parts = without_empty(said.parts);
    CallStep::Said {
        message: said,
        calls,
    }
}

fn call(block: &Value) -> Option<ToolCallRequested> {
    if block["type"] != "tool_use" {
        return None;
    }
    // The input of an interrupted answer is text.
    let input = match block.get("input")? {
        Value::String(text) => treering_domain::JsonText::from_checked(text.clone().into()),
        input => steps::json_text(input),
    };
    steps::call(text(block, "id"), text(block, "name"), input)
}

/// Adds the steps of a user's message: first each result as a step of its own, then the rest of the
/// message.
fn user(message: &Value, asked: &mut Vec<CallStep>) {
    let mut parts = Vec::new();
    if message["content"].is_string() {
        parts = blocks::read(&message["content"], "");
    }
    let before = asked.len();
    for block in list(message, "content") {
        if block["type"] == "tool_result" {
            let success = block["is_error"] != Value::Bool(true);
            let said = without_empty(blocks::read(&block["content"], ""));
            let result = steps::result(text(block, "tool_use_id"), success, said);
            asked.push(CallStep::Result(result));
        } else {
            parts.push(blocks::read_block(block, ""));
        }
    }
    let parts = without_empty(parts);
    if !parts.is_empty() || asked.len() == before {
        asked.push(CallStep::said(MessageAppended::new(Role::User, parts)));
    }
}
