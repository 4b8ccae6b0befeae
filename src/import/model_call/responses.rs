//! Reads calls of OpenAI Responses.

use serde_json::Value;

use super::{
    super::{codex::items, content, openai_chat, steps},
    CallStep, Continues, ModelCall, list, text, usage, without_empty,
};
use treering_domain::{ContentPart, MessageAppended, Role, ToolCallRequested};

pub(super) fn read(request: &Value, answer: &Value) -> Option<ModelCall> {
    let model = [text(answer, "model"), text(request, "model")];
    let model = model.into_iter().find(|model| !model.is_empty());
    let model = model.map(steps::short).unwrap_or_default();
    let mut asked = Vec::new();
    asked.extend(CallStep::instructions(
        Role::System,
        text(request, "instructions"),
    ));
    match &request["input"] {
        Value::String(input) => {
            asked.push(CallStep::said(MessageAppended::text(Role::User, input)));
        }
        Value::Array(input) => {
            for item in input {
                if let Some(step) = step(item, "") {
                    step.push_piece(&mut asked);
                }
            }
        }
        _ => return None,
    }
    let mut answered = Vec::new();
    for item in list(answer, "output") {
        if let Some(step) = step(item, &model).filter(|step| step.role() == Role::Assistant) {
            step.push_piece(&mut answered);
        }
    }
    Some(ModelCall {
        model,
        tools: openai_chat::tools(&request["tools"]),
        continues: continues(request),
        request: asked,
        answer: answered.pop().map(|step| finished(step, answer)),
        answer_id: text(answer, "id").to_owned(),
    })
}

fn continues(request: &Value) -> Continues {
    let conversation = &request["conversation"];
    match request["previous_response_id"].as_str() {
        Some(id) if !id.is_empty() => Continues::Answer(id.to_owned()),
        _ if conversation.is_string() || conversation["id"].is_string() => Continues::Latest,
        _ => Continues::Nothing,
    }
}

fn finished(mut step: CallStep, answer: &Value) -> CallStep {
    if let CallStep::Said { message, .. } = &mut step {
        let reason = content::short(&answer["incomplete_details"]["reason"]);
        let reason = reason.or_else(|| content::short(&answer["status"]));
        message.finish_reason = reason.unwrap_or_default();
        message.message_id = content::short(&answer["id"]).unwrap_or_default();
        message.usage = usage(&answer["usage"], ["input", "output"]);
    }
    step
}

/// Returns the step of an item. `model` is the model that wrote the reasoning in it.
fn step(item: &Value, model: &str) -> Option<CallStep> {
    let assistant = |parts: Vec<ContentPart>, call: Option<ToolCallRequested>| CallStep::Said {
        message: MessageAppended::new(Role::Assistant, parts),
        calls: call.into_iter().collect(),
    };
    match text(item, "type") {
        "message" | "" => {
            let role = match text(item, "role") {
                "assistant" => Role::Assistant,
                "system" => Role::System,
                "developer" => Role::Developer,
                "user" => Role::User,
                _ => return None,
            };
            let parts = without_empty(items::parts(&item["content"]));
            Some(CallStep::said(MessageAppended::new(role, parts)))
        }
        "reasoning" => Some(assistant(vec![items::reasoning(item, model)], None)),
        "function_call" | "custom_tool_call" | "local_shell_call" | "tool_search_call" => {
            Some(match items::call(item) {
                Some(call) => assistant(Vec::new(), Some(call)),
                None => assistant(vec![steps::json_part(item)], None),
            })
        }
        "function_call_output" | "custom_tool_call_output" | "local_shell_call_output" => {
            let output = &item["output"];
            let parts = without_empty(items::output_parts(output));
            let result = steps::result(call_id(item), items::succeeded(output), parts);
            Some(CallStep::Result(result))
        }
        "tool_search_output" => {
            let parts = vec![steps::json_part(&item["tools"])];
            let result = steps::result(call_id(item), true, parts);
            Some(CallStep::Result(result))
        }
        // It stands for an item that the provider keeps.
        "item_reference" => None,
        _ => Some(assistant(vec![steps::json_part(item)], None)),
    }
}

fn call_id(item: &Value) -> &str {
    match text(item, "call_id") {
        "" => text(item, "id"),
        id => id,
    }
}
