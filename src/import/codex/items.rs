//! Converts the items of a rollout: what the model said and saw.

use std::collections::HashMap;

use bytes::Bytes;
use serde_json::Value;

use super::{
    super::{
        Oddity, content,
        record::Record,
        steps::{self, Steps, json_part, json_text, short, text_parts},
        transcript::BranchIndex,
    },
    said,
};
use treering_domain::{
    ContentPart, EventBody, JsonText, Media, MediaSource, MessageAppended, Reasoning, Role,
    ToolCallRequested,
};

/// The provider that encrypts the reasoning in rollouts.
const PROVIDER: &str = "openai";

/// State that was gathered from earlier items.
#[derive(Default)]
pub(super) struct Items {
    /// The message id of the current answer. The items of an answer are separate lines, so the id
    /// is made from the first one.
    response: Option<String>,
    /// The tool of the last call with each call id.
    tools: HashMap<String, String>,
    /// The model, as last named in the rollout.
    model: String,
}

impl Items {
    /// Ends the current answer and returns its message id. Called for the token count that follows
    /// an answer.
    pub(super) fn end_response(&mut self) -> Option<String> {
        self.response.take()
    }

    /// Sets the model that answers from here on.
    pub(super) fn answered_by(&mut self, model: &str) {
        model.clone_into(&mut self.model);
    }

    pub(super) fn item(
        &mut self,
        steps: &mut Steps,
        branch: BranchIndex,
        index: usize,
        record: &Record,
    ) {
        let item = said(record);
        let text = |field: &str| item[field].as_str().unwrap_or_default();
        let kind = text("type");
        match kind {
            "message" if text("role") != "assistant" => {
                self.response = None;
                message(steps, branch, record);
            }
            "function_call_output" | "custom_tool_call_output" | "tool_search_output" => {
                self.response = None;
                self.output(steps, branch, record);
            }
            "message" => {
                let parts = parts(&item["content"]);
                self.speak(steps, branch, index, record, (parts, None));
            }
            "reasoning" => {
                let parts = vec![reasoning(item, &self.model)];
                self.speak(steps, branch, index, record, (parts, None));
            }
            "function_call" | "custom_tool_call" | "local_shell_call" | "tool_search_call" => {
                let call = call(item);
                let parts = match call {
                    Some(_) => Vec::new(),
                    None => {
                        steps.transcript.note(Oddity::CallNotTyped);
                        vec![json_part(item)]
                    }
                };
                self.speak(steps, branch, index, record, (parts, call));
            }
            // The provider runs it, and no result follows.
            "web_search_call" | "image_generation_call" => {
                self.speak(steps, branch, index, record, (vec![json_part(item)], None));
            }
            kind => steps.keep(branch, record, &format!("response_item.{kind}")),
        }
    }

    fn speak(
        &mut self,
        steps: &mut Steps,
        branch: BranchIndex,
        index: usize,
        record: &Record,
        (parts, call): (Vec<ContentPart>, Option<ToolCallRequested>),
    ) {
        let name = || format!("response-{index}");
        let message_id = self.response.get_or_insert_with(name).clone();
        let said = MessageAppended {
            message_id,
            ..MessageAppended::new(Role::Assistant, parts)
        };
        let mut bodies = vec![EventBody::MessageAppended(said)];
        if let Some(call) = call {
            if call.arguments_not_json {
                let call_id = call.call_id.clone();
                steps.transcript.note(Oddity::ArgumentsNotJson { call_id });
            }
            self.tools.insert(call.call_id.clone(), call.tool.clone());
            bodies.push(EventBody::ToolCallRequested(call));
        }
        steps.push(branch, record, &self.model, bodies);
    }

    fn output(&self, steps: &mut Steps, branch: BranchIndex, record: &Record) {
        let item = said(record);
        let call_id = item["call_id"].as_str().unwrap_or_default();
        let (parts, success) = match item["type"] == "tool_search_output" {
            true => (vec![json_part(&item["tools"])], true),
            false => (output_parts(&item["output"]), succeeded(&item["output"])),
        };
        let tool = self.tools.get(call_id).map_or("", String::as_str);
        steps.result(branch, record, tool, steps::result(call_id, success, parts));
    }
}

fn message(steps: &mut Steps, branch: BranchIndex, record: &Record) {
    let item = said(record);
    let role = match item["role"].as_str().unwrap_or_default() {
        "user" => Role::User,
        "developer" => Role::Developer,
        "system" => Role::System,
        _ => {
            steps.transcript.note(Oddity::UnknownRole);
            return steps.keep(branch, record, "response_item.message");
        }
    };
    let parts = parts(&item["content"]);
    steps.message(branch, record, MessageAppended::new(role, parts));
}

/// Returns the parts of content, which is a text or a list of items.
pub(crate) fn parts(content: &Value) -> Vec<ContentPart> {
    match content {
        Value::Null => Vec::new(),
        Value::String(text) => text_parts(text),
        Value::Array(items) => {
            let part = |item| part(item).unwrap_or_else(|| json_part(item));
            items.iter().map(part).collect()
        }
        other => vec![json_part(other)],
    }
}

fn part(item: &Value) -> Option<ContentPart> {
    match item["type"].as_str()? {
        "input_text" | "output_text" | "text" => {
            Some(ContentPart::Text(item["text"].as_str()?.to_owned()))
        }
        "refusal" => Some(ContentPart::Refusal(item["refusal"].as_str()?.to_owned())),
        "input_image" => {
            let uri = item["image_url"].as_str()?;
            let of_data = uri
                .strip_prefix("data:")
                .and_then(|data| data.split_once(';'));
            Some(ContentPart::Image(Media {
                media_type: of_data.map(|(kind, _)| short(kind)).unwrap_or_default(),
                source: MediaSource::Uri(uri.to_owned()),
                name: String::new(),
                detail: content::short(&item["detail"]).unwrap_or_default(),
            }))
        }
        _ => None,
    }
}

pub(crate) fn reasoning(item: &Value, model: &str) -> ContentPart {
    let texts = |field: &str| {
        let items = item[field].as_array().map_or(&[][..], Vec::as_slice);
        let texts = items.iter().filter_map(|item| item["text"].as_str());
        texts.collect::<Vec<_>>().join("\n\n")
    };
    let encrypted = item["encrypted_content"].as_str().unwrap_or_default();
    let text = match texts("summary") {
        text if text.is_empty() => texts("content"),
        text => text,
    };
    ContentPart::Reasoning(Reasoning {
        redacted: text.is_empty() && !encrypted.is_empty(),
        text,
        signature: Bytes::copy_from_slice(encrypted.as_bytes()),
        provider: PROVIDER.to_owned(),
        model: model.to_owned(),
        id: content::short(&item["id"]).unwrap_or_default(),
    })
}

/// Returns a call as the model wrote it. The arguments are not always valid JSON.
pub(crate) fn call(item: &Value) -> Option<ToolCallRequested> {
    let text = |field: &str| item[field].as_str().unwrap_or_default();
    let id = match text("call_id") {
        "" => text("id"),
        id => id,
    };
    // A tool of a server has the server's name beside its own.
    let name = match (text("namespace"), text("name")) {
        ("", name) | (_, name @ "") => name.to_owned(),
        (namespace, name) => format!("{namespace}__{name}"),
    };
    let (tool, arguments) = match text("type") {
        "function_call" => (
            name.as_str(),
            JsonText::from_checked(Bytes::copy_from_slice(
                item["arguments"].as_str()?.as_bytes(),
            )),
        ),
        // The input is free text and is stored as a JSON string.
        "custom_tool_call" => (name.as_str(), json_text(item.get("input")?)),
        "local_shell_call" => ("local_shell", json_text(item.get("action")?)),
        _ => ("tool_search", json_text(item.get("arguments")?)),
    };
    let item_id = content::short(&item["id"]).filter(|item_id| item_id != id);
    let call = steps::call(id, tool, arguments)?;
    Some(ToolCallRequested {
        item_id: item_id.unwrap_or_default(),
        ..call
    })
}

/// Returns the output of a tool: a text, a list of items, or (older) an object with either.
pub(crate) fn output_parts(output: &Value) -> Vec<ContentPart> {
    match output.get("content") {
        Some(content) => parts(content),
        None => parts(output),
    }
}

/// False when the output reports a failure: by a flag, or by the exit code of a command.
pub(crate) fn succeeded(output: &Value) -> bool {
    if let Some(success) = output["success"].as_bool() {
        return success;
    }
    let text = output.as_str().unwrap_or_default();
    let told: Option<Value> = text
        .starts_with('{')
        .then(|| serde_json::from_str(text).ok())
        .flatten();
    let of_json = told.and_then(|told| told["metadata"]["exit_code"].as_i64());
    let marks = ["Exit code: ", "Process exited with code "];
    let of_text = || {
        text.lines().take(8).find_map(|line| {
            let code = marks.iter().find_map(|mark| line.strip_prefix(mark))?;
            code.trim().parse().ok()
        })
    };
    of_json.or_else(of_text).is_none_or(|code: i64| code == 0)
}
