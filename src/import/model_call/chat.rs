//! Reads calls of OpenAI Chat Completions.

use serde_json::Value;

use super::{
    super::{content, openai_chat, steps},
    CallStep, ModelCall, list, text, usage, without_empty,
};
use treering_domain::{
    ContentPart, MessageAppended, Reasoning, Role, ToolCallRequested, ToolResultRecorded,
};

pub(super) fn read(request: &Value, answer: &Value) -> Option<ModelCall> {
    let messages = request["messages"].as_array()?;
    let model = [text(answer, "model"), text(request, "model")];
    let model = model.into_iter().find(|model| !model.is_empty());
    let choice = &answer["choices"][0];
    let said = choice["message"].as_object().map(|_| &choice["message"]);
    Some(ModelCall {
        model: model.map(steps::short).unwrap_or_default(),
        tools: openai_chat::tools(&request["tools"]),
        request: messages.iter().filter_map(step).collect(),
        answer: said.and_then(|said| finished(step(said)?, answer)),
        answer_id: text(answer, "id").to_owned(),
        ..ModelCall::default()
    })
}

fn finished(mut step: CallStep, answer: &Value) -> Option<CallStep> {
    let CallStep::Said { message, calls } = &mut step else {
        return None;
    };
    let reason = &answer["choices"][0]["finish_reason"];
    message.finish_reason = content::short(reason).unwrap_or_default();
    message.message_id = content::short(&answer["id"]).unwrap_or_default();
    message.usage = usage(&answer["usage"], ["prompt", "completion"]);
    let says = !message.parts.is_empty() || !calls.is_empty();
    says.then_some(step)
}

fn step(message: &Value) -> Option<CallStep> {
    let role = match text(message, "role") {
        "system" => Role::System,
        "developer" => Role::Developer,
        "user" => Role::User,
        // An interrupted answer may lack its role.
        "assistant" | "" => Role::Assistant,
        "tool" | "function" => return Some(CallStep::Result(result(message))),
        _ => return None,
    };
    let mut said = openai_chat::typed_message(role, message);
    said.parts = without_empty(said.parts);
    if role == Role::Assistant {
        add_assistant_parts(&mut said, message);
    }
    let calls = list(message, "tool_calls").iter().filter_map(call);
    Some(CallStep::Said {
        calls: calls.collect(),
        message: said,
    })
}

/// Adds reasoning and refusals, which only some providers send.
fn add_assistant_parts(said: &mut MessageAppended, message: &Value) {
    let has_reasoning = message["reasoning_content"].is_string();
    let reasoning = message["reasoning"].as_str().filter(|_| !has_reasoning);
    if let Some(text) = reasoning.filter(|text| !text.is_empty()) {
        let thought = Reasoning {
            text: text.to_owned(),
            ..Reasoning::default()
        };
        said.parts.insert(0, ContentPart::Reasoning(thought));
    }
    said.parts
        .retain(|part| !matches!(part, ContentPart::Reasoning(thought) if thought.text.is_empty()));
    if let Some(refusal) = message["refusal"].as_str().filter(|text| !text.is_empty()) {
        said.parts.push(ContentPart::Refusal(refusal.to_owned()));
    }
}

fn call(call: &Value) -> Option<ToolCallRequested> {
    let custom = &call["custom"];
    if let Some(input) = custom["input"].as_str() {
        let input = steps::json_text(&input.into());
        return steps::call(text(call, "id"), text(custom, "name"), input);
    }
    openai_chat::typed_call(call)
}

fn result(message: &Value) -> ToolResultRecorded {
    let parts = without_empty(content::read(message.get("content")));
    steps::result(text(message, "tool_call_id"), true, parts)
}
