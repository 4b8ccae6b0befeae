//! Rules of OpenAI Responses.

use std::{borrow::Cow, collections::HashSet};

use serde::Deserialize;

use crate::{
    Violations,
    ledger::{CALL_ID, CALL_ID_UNIQUE, Ledger, UNANSWERED_CALL, UNMATCHED_RESULT},
    read::{
        OfferedTools, SHAPE, TOOL_CHOICE, TOOL_NAME, TOOL_SCHEMA, Value, check_model,
        check_tool_choice, is_data_url, is_web_url, is_word, read, read_body,
    },
};

pub(crate) const RULES: &[&str] = &[
    SHAPE,
    TOOL_NAME,
    TOOL_SCHEMA,
    "input-empty",
    "item-type",
    "role",
    "content-empty",
    "content-part",
    "instructions",
    "arguments-string",
    CALL_ID,
    CALL_ID_UNIQUE,
    UNANSWERED_CALL,
    UNMATCHED_RESULT,
    "output",
    "reasoning-place",
    "reasoning-content",
    "item-id",
    TOOL_CHOICE,
];

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow)]
    model: Option<Value<'a>>,
    store: Option<bool>,
    #[serde(borrow)]
    include: Option<Vec<Cow<'a, str>>>,
    #[serde(borrow)]
    instructions: Option<Value<'a>>,
    #[serde(borrow)]
    input: Vec<Value<'a>>,
    #[serde(borrow)]
    tools: Option<Vec<Tool<'a>>>,
    #[serde(borrow)]
    tool_choice: Option<Value<'a>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tool<'a> {
    #[serde(borrow)]
    r#type: Value<'a>,
    #[serde(borrow)]
    name: Value<'a>,
    #[serde(borrow)]
    parameters: Option<Value<'a>>,
    #[allow(dead_code)]
    strict: bool,
    #[serde(borrow)]
    #[allow(dead_code)]
    description: Option<Value<'a>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Item<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
    #[serde(borrow)]
    id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    role: Option<Cow<'a, str>>,
    #[serde(borrow)]
    #[allow(dead_code)]
    status: Option<Value<'a>>,
    #[serde(borrow)]
    content: Option<Value<'a>>,
    #[serde(borrow)]
    call_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    name: Option<Value<'a>>,
    #[serde(borrow)]
    arguments: Option<Value<'a>>,
    #[serde(borrow)]
    output: Option<Value<'a>>,
    #[serde(borrow)]
    summary: Option<Value<'a>>,
    #[serde(borrow)]
    encrypted_content: Option<Value<'a>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Part<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
    #[serde(borrow)]
    text: Option<Value<'a>>,
    #[serde(borrow)]
    #[allow(dead_code)]
    annotations: Option<Value<'a>>,
    #[serde(borrow)]
    refusal: Option<Value<'a>>,
    #[serde(borrow)]
    image_url: Option<Cow<'a, str>>,
    #[serde(borrow)]
    detail: Option<Value<'a>>,
    #[serde(borrow)]
    #[allow(dead_code)]
    filename: Option<Value<'a>>,
    #[serde(borrow)]
    file_data: Option<Cow<'a, str>>,
    #[serde(borrow)]
    file_url: Option<Cow<'a, str>>,
}

const INPUT: [&str; 3] = ["input_text", "input_image", "input_file"];

pub(crate) fn check(body: &[u8], report: &mut Violations) {
    let Some(body): Option<Body<'_>> = read_body(body, report) else {
        return;
    };
    check_top(&body, report);
    let mut calls = Ledger::default();
    let mut ids = HashSet::new();
    let mut thought: Option<usize> = None;
    for (at, item) in body.input.iter().enumerate() {
        let item: Option<Item<'_>> = read(item.json(), format_args!("input[{at}]"), report);
        let Some(item) = item else {
            continue;
        };
        let is_own = item.r#type == "function_call"
            || (item.r#type == "message" && item.role.as_deref() == Some("assistant"));
        if let Some(before) = thought.take().filter(|_| !is_own) {
            let message = "the next item is not from the model";
            report.add("reasoning-place", format_args!("input[{before}]"), message);
        }
        if item.r#type == "reasoning" {
            thought = Some(at);
        }
        if let Some(id) = &item.id
            && !ids.insert(id.clone())
        {
            report.add(
                "item-id",
                format_args!("input[{at}].id"),
                "an id is used twice",
            );
        }
        check_item(at, &item, &body, &mut calls, report);
    }
    if let Some(at) = thought {
        let message = "nothing follows";
        report.add("reasoning-place", format_args!("input[{at}]"), message);
    }
    calls.settle(|at| format!("input[{at}]"), report);
}

fn check_top(body: &Body<'_>, report: &mut Violations) {
    check_model(body.model, report);
    if body.instructions.is_some_and(|text| !text.says()) {
        report.add(
            "instructions",
            format_args!("instructions"),
            "not a text, or blank",
        );
    }
    let mut names = OfferedTools::default();
    for (at, tool) in body.tools.iter().flatten().enumerate() {
        if tool.r#type.text() != "function" {
            report.add(
                SHAPE,
                format_args!("tools[{at}]"),
                "not of type \"function\"",
            );
        }
        names.offer(tool.name, tool.parameters, at, is_word, report);
    }
    check_tool_choice(body.tool_choice, body.tools.as_ref(), report);
    if body.input.is_empty() {
        report.add("input-empty", format_args!("input"), "there is no item");
    }
}

fn check_item<'a>(
    at: usize,
    item: &Item<'a>,
    body: &Body<'_>,
    calls: &mut Ledger<'a>,
    report: &mut Violations,
) {
    match item.r#type.as_ref() {
        "message" => check_message(at, item, report),
        "function_call" => check_call(at, item, calls, report),
        "function_call_output" => {
            let call_id = item.call_id.as_deref().unwrap_or_default();
            calls.result(call_id, format_args!("input[{at}]"), report);
            check_output(at, item.output, report);
        }
        "reasoning" => check_reasoning(at, item, body, report),
        _ => report.add(
            "item-type",
            format_args!("input[{at}].type"),
            "an unknown type",
        ),
    }
}

fn check_call<'a>(at: usize, item: &Item<'a>, calls: &mut Ledger<'a>, report: &mut Violations) {
    let call_id = item.call_id.clone().unwrap_or_default();
    let is_legal = (1..=64).contains(&call_id.chars().count());
    calls.call(call_id, is_legal, at, format_args!("input[{at}]"), report);
    if item.id.as_deref().is_some_and(|id| !id.starts_with("fc_")) {
        let message = "an id of a call does not start with fc_";
        report.add("item-id", format_args!("input[{at}]"), message);
    }
    if !item.name.is_some_and(|name| is_word(&name.text())) {
        report.add(
            TOOL_NAME,
            format_args!("input[{at}].name"),
            "the name is not accepted",
        );
    }
    if !item.arguments.is_some_and(Value::is_text) {
        let message = "arguments are not a JSON string";
        report.add(
            "arguments-string",
            format_args!("input[{at}].arguments"),
            message,
        );
    }
}

fn check_output(at: usize, output: Option<Value<'_>>, report: &mut Violations) {
    let path = format_args!("input[{at}].output");
    match output {
        Some(output) if output.is_text() => {}
        Some(output) if output.is_list() && !output.list().is_empty() => {
            check_parts(at, output, &INPUT, report);
        }
        _ => report.add("output", path, "neither text nor a non-empty list"),
    }
}

fn check_reasoning(at: usize, item: &Item<'_>, body: &Body<'_>, report: &mut Violations) {
    let path = format_args!("input[{at}]");
    if !item.id.as_deref().is_some_and(|id| id.starts_with("rs_")) {
        report.add(
            "item-id",
            path,
            "an id of reasoning does not start with rs_",
        );
    }
    if !item.summary.is_some_and(Value::is_list) {
        report.add("reasoning-content", path, "the summary is not a list");
    }
    let is_encrypted = item.encrypted_content.is_some_and(Value::says);
    let word = "reasoning.encrypted_content";
    let is_included = body
        .include
        .iter()
        .flatten()
        .any(|included| included == word);
    if body.store == Some(false) && !(is_encrypted && is_included) {
        let message = "store is false, and encrypted content is missing or not included";
        report.add("reasoning-content", path, message);
    }
}

fn check_message(at: usize, item: &Item<'_>, report: &mut Violations) {
    let kinds: &[&str] = match item.role.as_deref() {
        Some("user") => &INPUT,
        Some("system" | "developer") => &INPUT[..1],
        Some("assistant") => &["output_text", "refusal"],
        _ => {
            report.add("role", format_args!("input[{at}].role"), "an unknown role");
            return;
        }
    };
    match item.content {
        Some(content) if content.is_text() && !content.is_blank() => {}
        Some(content) if content.is_list() && !content.list().is_empty() => {
            if item.role.as_deref() == Some("assistant")
                && !item.id.as_deref().is_some_and(|id| id.starts_with("msg_"))
            {
                let message = "an id of an output message does not start with msg_";
                report.add("item-id", format_args!("input[{at}]"), message);
            }
            check_parts(at, content, kinds, report);
        }
        _ => report.add(
            "content-empty",
            format_args!("input[{at}]"),
            "there is no content",
        ),
    }
}

fn check_parts(at: usize, parts: Value<'_>, kinds: &[&str], report: &mut Violations) {
    for (place, part) in parts.list().into_iter().enumerate() {
        let path = format_args!("input[{at}].content[{place}]");
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
        "input_text" | "output_text" => part.text.is_some_and(Value::says),
        "refusal" => part.refusal.is_some_and(Value::says),
        "input_image" => {
            let detail = part.detail.map(Value::text).unwrap_or_default();
            let url = part.image_url.as_deref().unwrap_or_default();
            ["auto", "low", "high"].contains(&detail.as_ref())
                && (is_web_url(url) || is_data_url(url))
        }
        "input_file" => match (&part.file_data, &part.file_url) {
            (Some(data), None) => is_data_url(data),
            (None, Some(url)) => is_web_url(url),
            _ => false,
        },
        _ => false,
    }
}
