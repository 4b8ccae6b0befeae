//! Rules of OpenAI Chat Completions.

use std::{borrow::Cow, collections::HashSet};

use serde::Deserialize;

use super::{
    super::steps,
    Report,
    read::{
        OpenCalls, SHAPE, TOOL_NAME, TOOL_SCHEMA, ToolNames, Value, close, is_base64, is_data_url,
        is_web_url, is_word, read, read_body,
    },
};

pub(super) const RULES: &[&str] = &[
    SHAPE,
    TOOL_NAME,
    TOOL_SCHEMA,
    "messages-empty",
    "role",
    "content-empty",
    "content-part",
    "arguments-string",
    "call-id",
    "call-id-unique",
    "unanswered-call",
    "unmatched-result",
    "author-name",
    "tool-choice",
];

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow)]
    model: Value<'a>,
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
    function: Called<'a>,
}

#[derive(Deserialize)]
struct Called<'a> {
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

pub(super) fn check(body: &[u8], report: &mut Report) {
    let Some(body): Option<Body<'_>> = read_body(body, report) else {
        return;
    };
    if !body.model.is_text() {
        report.add(SHAPE, format_args!("model"), "not a text");
    }
    let mut names = ToolNames::default();
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
    if body.tool_choice.is_some() && body.tools.as_ref().is_none_or(Vec::is_empty) {
        report.add(
            "tool-choice",
            format_args!("tool_choice"),
            "there are no tools",
        );
    }
    if body.messages.is_empty() {
        report.add(
            "messages-empty",
            format_args!("messages"),
            "there is no message",
        );
    }
    let mut batch = Batch::default();
    for (at, message) in body.messages.iter().enumerate() {
        let message = read(message.json(), format_args!("messages[{at}]"), report);
        if let Some(message) = message {
            check_message(at, &message, &mut batch, report);
        }
    }
    batch.end(report);
}

/// The calls that are not answered yet.
#[derive(Default)]
struct Batch<'a> {
    open: OpenCalls<'a>,
    at: usize,
    seen: HashSet<Cow<'a, str>>,
}

impl<'a> Batch<'a> {
    fn end(&mut self, report: &mut Report) {
        let at = self.at;
        for _ in 0..self.open.drain().map(|(_, count)| count).sum::<usize>() {
            let message = "a call has no tool message before the next other message";
            report.add(
                "unanswered-call",
                format_args!("messages[{at}].tool_calls"),
                message,
            );
        }
    }

    fn call(&mut self, at: usize, id: Cow<'a, str>, report: &mut Report) {
        let path = format_args!("messages[{at}].tool_calls");
        if id.is_empty() || id.chars().count() > 40 {
            report.add(
                "call-id",
                path,
                "an id is empty or longer than 40 characters",
            );
        }
        if !self.seen.insert(id.clone()) {
            report.add("call-id-unique", path, "an id comes twice");
        }
        self.at = at;
        *self.open.entry(id).or_default() += 1;
    }

    fn result(&mut self, at: usize, id: Option<&str>, report: &mut Report) {
        steps::note(1);
        if !id.is_some_and(|id| close(&mut self.open, id)) {
            let message = "no open call of the message before has this id";
            report.add("unmatched-result", format_args!("messages[{at}]"), message);
        }
    }
}

fn check_message<'a>(at: usize, message: &Message<'a>, batch: &mut Batch<'a>, report: &mut Report) {
    if message.role != "tool" {
        batch.end(report);
    }
    let has_calls = message.tool_calls.is_some();
    if has_calls && message.role != "assistant" {
        report.add(
            "role",
            format_args!("messages[{at}]"),
            "only the assistant calls",
        );
    }
    if message.name.is_some_and(|name| !is_word(&name.text())) {
        let message = "a name of other characters than is taken";
        report.add("author-name", format_args!("messages[{at}].name"), message);
    }
    match message.role.as_ref() {
        "system" | "developer" => check_content(at, message.content, &["text"], report),
        "user" => {
            let parts = ["text", "image_url", "input_audio", "file"];
            check_content(at, message.content, &parts, report);
        }
        "tool" => {
            batch.result(at, message.tool_call_id.as_deref(), report);
            check_content(at, message.content, &["text"], report);
        }
        "assistant" => check_assistant(at, message, batch, report),
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
    batch: &mut Batch<'a>,
    report: &mut Report,
) {
    let calls = message.tool_calls.as_deref().unwrap_or_default();
    if message.tool_calls.is_some() && calls.is_empty() {
        report.add(
            "content-empty",
            format_args!("messages[{at}].tool_calls"),
            "an empty list",
        );
    }
    let says_something = message.refusal.is_some_and(|refusal| !refusal.is_blank());
    if message.content.is_some() || (calls.is_empty() && !says_something) {
        check_content(at, message.content, &["text", "refusal"], report);
    }
    for call in calls {
        batch.call(at, call.id.clone(), report);
        let path = format_args!("messages[{at}].tool_calls");
        if call.r#type.text() != "function" {
            report.add(SHAPE, path, "a call is not of type \"function\"");
        }
        if !is_word(&call.function.name.text()) {
            report.add(TOOL_NAME, path, "a call has a name that is not taken");
        }
        if !call.function.arguments.is_text() {
            report.add("arguments-string", path, "arguments are not a JSON string");
        }
    }
}

fn check_content(at: usize, content: Option<Value<'_>>, kinds: &[&str], report: &mut Report) {
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
            let message = "a part that is not taken here, or without its content";
            report.add("content-part", path, message);
        }
    }
}

fn is_part(part: &Part<'_>) -> bool {
    match part.r#type.as_ref() {
        "text" => part
            .text
            .is_some_and(|text| text.is_text() && !text.is_blank()),
        "refusal" => part
            .refusal
            .is_some_and(|text| text.is_text() && !text.is_blank()),
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
