//! Rules of OpenAI Chat Completions.

use std::borrow::Cow;

use serde::Deserialize;

use crate::{
    Violations,
    ledger::{CALL_ID, CALL_ID_UNIQUE, Ledger, UNANSWERED_CALL, UNMATCHED_RESULT},
    read::{
        OfferedTools, SHAPE, TOOL_CHOICE, TOOL_NAME, TOOL_SCHEMA, Value, check_model,
        check_tool_choice, is_base64, is_data_url, is_web_url, is_word, read, read_body,
    },
};

pub(crate) const RULES: &[&str] = &[
    SHAPE,
    TOOL_NAME,
    TOOL_SCHEMA,
    "messages-empty",
    "role",
    "content-empty",
    "content-part",
    "arguments-string",
    CALL_ID,
    CALL_ID_UNIQUE,
    UNANSWERED_CALL,
    UNMATCHED_RESULT,
    "author-name",
    TOOL_CHOICE,
];

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow)]
    model: Option<Value<'a>>,
    #[serde(borrow)]
    messages: Vec<Value<'a>>,
    #[serde(borrow)]
    tools: Option<Vec<Tool<'a>>>,
    #[serde(borrow)]
    tool_choice: Option<Value<'a>>,
}

#[derive(Deserialize)]
struct Tool<'a> {
    #[serde(borrow)]
    r#type: Value<'a>,
    #[serde(borrow)]
    function: Function<'a>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Function<'a> {
    #[serde(borrow)]
    name: Value<'a>,
    #[serde(borrow)]
    parameters: Option<Value<'a>>,
    #[serde(borrow)]
    #[allow(dead_code)]
    description: Option<Value<'a>>,
    #[serde(borrow)]
    #[allow(dead_code)]
    strict: Option<Value<'a>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Message<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(borrow)]
    content: Option<Value<'a>>,
    #[serde(borrow)]
    name: Option<Value<'a>>,
    #[serde(borrow)]
    refusal: Option<Value<'a>>,
    #[serde(borrow)]
    tool_calls: Option<Vec<ToolCall<'a>>>,
    #[serde(borrow)]
    tool_call_id: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct ToolCall<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    r#type: Value<'a>,
    #[serde(borrow)]
    function: FunctionRef<'a>,
}

#[derive(Deserialize)]
struct FunctionRef<'a> {
    #[serde(borrow)]
    name: Value<'a>,
    #[serde(borrow)]
    arguments: Value<'a>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Part<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
    #[serde(borrow)]
    text: Option<Value<'a>>,
    #[serde(borrow)]
    refusal: Option<Value<'a>>,
    #[serde(borrow)]
    image_url: Option<ImageUrl<'a>>,
    #[serde(borrow)]
    input_audio: Option<InputAudio<'a>>,
    #[serde(borrow)]
    file: Option<File<'a>>,
}

#[derive(Deserialize)]
struct ImageUrl<'a> {
    #[serde(borrow)]
    url: Cow<'a, str>,
    #[serde(borrow)]
    detail: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct InputAudio<'a> {
    #[serde(borrow)]
    data: Cow<'a, str>,
    #[serde(borrow)]
    format: Cow<'a, str>,
}

#[derive(Deserialize)]
struct File<'a> {
    #[serde(borrow)]
    file_data: Option<Cow<'a, str>>,
    #[serde(borrow)]
    file_id: Option<Cow<'a, str>>,
}

pub(crate) fn check(body: &[u8], report: &mut Violations) {
    let Some(body): Option<Body<'_>> = read_body(body, report) else {
        return;
    };
    check_model(body.model, report);
    let mut names = OfferedTools::default();
    for (at, tool) in body.tools.iter().flatten().enumerate() {
        if tool.r#type.text() != "function" {
            report.add(
                SHAPE,
                format_args!("tools[{at}]"),
                "not of type \"function\"",
            );
        }
        let function = &tool.function;
        names.offer(function.name, function.parameters, at, is_word, report);
    }
    check_tool_choice(body.tool_choice, body.tools.as_ref(), report);
    if body.messages.is_empty() {
        report.add(
            "messages-empty",
            format_args!("messages"),
            "there is no message",
        );
    }
    let mut calls = Ledger::default();
    for (at, message) in body.messages.iter().enumerate() {
        let message = read(message.json(), format_args!("messages[{at}]"), report);
        if let Some(message) = message {
            check_message(at, &message, &mut calls, report);
        }
    }
    calls.settle(calls_at, report);
}

/// Path of the calls of a message.
fn calls_at(at: usize) -> String {
    format!("messages[{at}].tool_calls")
}

fn check_message<'a>(
    at: usize,
    message: &Message<'a>,
    calls: &mut Ledger<'a>,
    report: &mut Violations,
) {
    if message.role != "tool" {
        calls.settle(calls_at, report);
    }
    let has_calls = message.tool_calls.is_some();
    if has_calls && message.role != "assistant" {
        report.add(
            "role",
            format_args!("messages[{at}]"),
            "only the assistant can call tools",
        );
    }
    if message.name.is_some_and(|name| !is_word(&name.text())) {
        let message = "a name has characters that are not accepted";
        report.add("author-name", format_args!("messages[{at}].name"), message);
    }
    match message.role.as_ref() {
        "system" | "developer" => check_content(at, message.content, &["text"], report),
        "user" => {
            let parts = ["text", "image_url", "input_audio", "file"];
            check_content(at, message.content, &parts, report);
        }
        "tool" => {
            let id = message.tool_call_id.as_deref().unwrap_or_default();
            calls.result(id, format_args!("messages[{at}]"), report);
            check_content(at, message.content, &["text"], report);
        }
        "assistant" => check_assistant(at, message, calls, report),
        _ => report.add(
            "role",
            format_args!("messages[{at}].role"),
            "an unknown role",
        ),
    }
}

fn check_assistant<'a>(
    at: usize,
    message: &Message<'a>,
    calls: &mut Ledger<'a>,
    report: &mut Violations,
) {
    let called = message.tool_calls.as_deref().unwrap_or_default();
    if message.tool_calls.is_some() && called.is_empty() {
        report.add(
            "content-empty",
            format_args!("messages[{at}].tool_calls"),
            "an empty list",
        );
    }
    let says_something = message.refusal.is_some_and(|refusal| !refusal.is_blank());
    if message.content.is_some() || (called.is_empty() && !says_something) {
        check_content(at, message.content, &["text", "refusal"], report);
    }
    for call in called {
        let path = format_args!("messages[{at}].tool_calls");
        let is_legal = (1..=40).contains(&call.id.chars().count());
        calls.call(call.id.clone(), is_legal, at, path, report);
        if call.r#type.text() != "function" {
            report.add(SHAPE, path, "a call is not of type \"function\"");
        }
        if !is_word(&call.function.name.text()) {
            report.add(TOOL_NAME, path, "a call has a name that is not accepted");
        }
        if !call.function.arguments.is_text() {
            report.add("arguments-string", path, "arguments are not a JSON string");
        }
    }
}

fn check_content(at: usize, content: Option<Value<'_>>, kinds: &[&str], report: &mut Violations) {
    let Some(content) = content else {
        report.add(
            "content-empty",
            format_args!("messages[{at}]"),
            "there is no content",
        );
        return;
    };
    if content.is_blank() {
        report.add(
            "content-empty",
            format_args!("messages[{at}]"),
            "the content is blank",
        );
    }
    if content.is_text() {
        return;
    }
    if !content.is_list() {
        report.add(
            SHAPE,
            format_args!("messages[{at}]"),
            "content is neither text nor a list",
        );
        return;
    }
    let parts = content.list();
    if parts.is_empty() {
        report.add(
            "content-empty",
            format_args!("messages[{at}]"),
            "the content is empty",
        );
    }
    for (place, part) in parts.into_iter().enumerate() {
        let path = format_args!("messages[{at}].content[{place}]");
        let Some(part): Option<Part<'_>> = read(part.json(), path, report) else {
            continue;
        };
        if !kinds.contains(&part.r#type.as_ref()) || !is_part(&part) {
            let message = "a part is not accepted here, or has no content";
            report.add("content-part", path, message);
        }
    }
}

fn is_part(part: &Part<'_>) -> bool {
    match part.r#type.as_ref() {
        "text" => part.text.is_some_and(Value::says),
        "refusal" => part.refusal.is_some_and(Value::says),
        "image_url" => part.image_url.as_ref().is_some_and(|image| {
            let detail = image.detail.as_deref().unwrap_or("auto");
            ["auto", "low", "high"].contains(&detail)
                && (is_web_url(&image.url) || is_data_url(&image.url))
        }),
        "input_audio" => part.input_audio.as_ref().is_some_and(|audio| {
            ["wav", "mp3"].contains(&audio.format.as_ref()) && is_base64(&audio.data)
        }),
        "file" => part.file.as_ref().is_some_and(|file| {
            file.file_id.is_some() || file.file_data.as_deref().is_some_and(is_data_url)
        }),
        _ => false,
    }
}
