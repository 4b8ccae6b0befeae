//! Rules of Gemini `generateContent`.

use std::{borrow::Cow, fmt};

use serde::Deserialize;

use crate::{
    Violations,
    read::{OfferedTools, SHAPE, TOOL_NAME, TOOL_SCHEMA, Value, is_base64, read, read_body},
};

pub(crate) const RULES: &[&str] = &[
    SHAPE,
    TOOL_NAME,
    TOOL_SCHEMA,
    "system-instruction",
    "contents-empty",
    "role",
    "first-role",
    "call-after-user",
    "parts-empty",
    "part",
    "text-empty",
    "args-object",
    "call-place",
    "response-count",
    "response-name",
    "response-object",
    "response-place",
    "thought-signature",
    "media-source",
];

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow)]
    contents: Vec<Value<'a>>,
    #[serde(borrow)]
    tools: Option<Vec<Tool<'a>>>,
    #[serde(borrow, rename = "systemInstruction")]
    system_instruction: Option<Content<'a>>,
}

#[derive(Deserialize)]
struct Tool<'a> {
    #[serde(borrow, rename = "functionDeclarations")]
    function_declarations: Vec<Declaration<'a>>,
}

#[derive(Deserialize)]
struct Declaration<'a> {
    #[serde(borrow)]
    name: Value<'a>,
    #[serde(borrow, rename = "parametersJsonSchema")]
    parameters: Option<Value<'a>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Content<'a> {
    #[serde(borrow)]
    role: Option<Cow<'a, str>>,
    #[serde(borrow)]
    parts: Vec<Value<'a>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Part<'a> {
    #[serde(borrow)]
    text: Option<Value<'a>>,
    #[serde(borrow)]
    inline_data: Option<Medium<'a>>,
    #[serde(borrow)]
    file_data: Option<Medium<'a>>,
    #[serde(borrow)]
    function_call: Option<FunctionCall<'a>>,
    #[serde(borrow)]
    function_response: Option<FunctionResponse<'a>>,
    thought: Option<bool>,
    #[serde(borrow)]
    thought_signature: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Medium<'a> {
    #[serde(borrow)]
    mime_type: Cow<'a, str>,
    #[serde(borrow)]
    data: Option<Cow<'a, str>>,
    #[serde(borrow)]
    file_uri: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct FunctionCall<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    args: Option<Value<'a>>,
}

#[derive(Deserialize)]
struct FunctionResponse<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    response: Option<Value<'a>>,
}

/// State after the previous content.
#[derive(Default)]
struct State<'a> {
    role: Cow<'a, str>,
    /// Names of the calls without responses.
    open: Vec<Cow<'a, str>>,
}

pub(crate) fn check(body: &[u8], report: &mut Violations) {
    let Some(body): Option<Body<'_>> = read_body(body, report) else {
        return;
    };
    let mut names = OfferedTools::default();
    let declarations = body.tools.iter().flatten();
    let declarations = declarations.flat_map(|tool| &tool.function_declarations);
    for (at, one) in declarations.enumerate() {
        names.offer(one.name, one.parameters, at, is_name, report);
    }
    if let Some(system) = &body.system_instruction {
        check_system(system, report);
    }
    if body.contents.is_empty() {
        report.add(
            "contents-empty",
            format_args!("contents"),
            "there is no content",
        );
    }
    let mut state = State::default();
    for (at, content) in body.contents.iter().enumerate() {
        let content = read(content.json(), format_args!("contents[{at}]"), report);
        if let Some(content) = content {
            check_content(at, &content, &mut state, report);
        }
    }
    if !state.open.is_empty() {
        let message = "the calls of the last content have no responses";
        report.add("response-count", format_args!("contents"), message);
    }
}

/// Whether a name has 1 to 64 letters, digits, `_`, `.` and `-`, and begins with a letter or `_`.
fn is_name(name: &str) -> bool {
    let first = name.bytes().next().unwrap_or_default();
    name.len() <= 64
        && (first.is_ascii_alphabetic() || first == b'_')
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}

fn check_system(system: &Content<'_>, report: &mut Violations) {
    let says = |part: &Value<'_>| {
        let part = serde_json::from_str::<Part<'_>>(part.json());
        part.is_ok_and(|part| part.text.is_some_and(Value::says))
    };
    if system.parts.is_empty() || !system.parts.iter().all(says) {
        let message = "not parts of text, or blank";
        report.add(
            "system-instruction",
            format_args!("systemInstruction"),
            message,
        );
    }
}

fn check_content<'a>(
    at: usize,
    content: &Content<'a>,
    state: &mut State<'a>,
    report: &mut Violations,
) {
    let path = format_args!("contents[{at}]");
    let role = content.role.clone().unwrap_or_default();
    if role != "user" && role != "model" {
        report.add("role", path, "neither user nor model");
    }
    if at == 0 && role != "user" {
        report.add("first-role", path, "the first content is not from the user");
    }
    if content.parts.is_empty() {
        report.add("parts-empty", path, "there are no parts");
    }
    let (mut calls, mut responses) = (Vec::new(), Vec::new());
    for (place, part) in content.parts.iter().enumerate() {
        let path = format_args!("contents[{at}].parts[{place}]");
        let Some(part): Option<Part<'a>> = read(part.json(), path, report) else {
            continue;
        };
        check_part(&part, &role, path, report);
        calls.extend(part.function_call.map(|call| call.name));
        responses.extend(part.function_response.map(|response| response.name));
    }
    check_responses(at, content.parts.len(), &responses, state, report);
    if !calls.is_empty() && state.role == "model" {
        let message = "calls do not come directly after the user's turn";
        report.add("call-after-user", path, message);
    }
    state.open = calls;
    state.role = role;
}

fn check_responses<'a>(
    at: usize,
    parts: usize,
    responses: &[Cow<'a, str>],
    state: &mut State<'a>,
    report: &mut Violations,
) {
    let path = format_args!("contents[{at}]");
    if responses.len() != state.open.len() {
        let (found, calls) = (responses.len(), state.open.len());
        let message = format!("{found} responses to {calls} calls in the previous content");
        report.add("response-count", path, message);
    } else if responses != state.open {
        let message = "the responses do not have the names of the calls, in order";
        report.add("response-name", path, message);
    }
    if !responses.is_empty() && responses.len() != parts {
        let message = "there are other parts besides the responses";
        report.add("response-place", path, message);
    }
}

fn check_part(part: &Part<'_>, role: &str, path: fmt::Arguments<'_>, report: &mut Violations) {
    let kinds = [
        part.text.is_some(),
        part.inline_data.is_some(),
        part.file_data.is_some(),
        part.function_call.is_some(),
        part.function_response.is_some(),
    ];
    if kinds.into_iter().filter(|is_there| *is_there).count() != 1 {
        report.add("part", path, "not exactly one kind of data");
    }
    if part.text.is_some_and(|text| !text.says()) {
        report.add("text-empty", path, "a blank text");
    }
    if let Some(call) = &part.function_call {
        if role != "model" {
            report.add("call-place", path, "a call is not in the model's content");
        }
        if !is_name(&call.name) {
            report.add(TOOL_NAME, path, "the name is not accepted");
        }
        if call.args.is_some_and(|args| !args.is_object()) {
            report.add("args-object", path, "the arguments are not an object");
        }
    }
    if let Some(response) = &part.function_response {
        if role != "user" {
            report.add(
                "response-place",
                path,
                "a response is not in the user's content",
            );
        }
        if !response.response.is_some_and(Value::is_object) {
            report.add("response-object", path, "the response is not an object");
        }
    }
    check_signature(part, role, path, report);
    let is_taken = |medium: &Medium<'_>, is_inline: bool| {
        medium.mime_type.contains('/')
            && if is_inline {
                medium.data.as_deref().is_some_and(is_base64)
            } else {
                medium
                    .file_uri
                    .as_deref()
                    .is_some_and(|uri| uri.contains("://"))
            }
    };
    let inline = part
        .inline_data
        .as_ref()
        .is_none_or(|medium| is_taken(medium, true));
    let file = part
        .file_data
        .as_ref()
        .is_none_or(|medium| is_taken(medium, false));
    if !inline || !file {
        report.add("media-source", path, "no type, or no content");
    }
}

fn check_signature(part: &Part<'_>, role: &str, path: fmt::Arguments<'_>, report: &mut Violations) {
    let is_signed = part.thought_signature.is_some();
    if (part.thought == Some(true) || is_signed) && role != "model" {
        report.add(
            "thought-signature",
            path,
            "a thought or signature is not in the model's content",
        );
    }
    if part
        .thought_signature
        .as_deref()
        .is_some_and(|signature| !is_base64(signature))
    {
        report.add("thought-signature", path, "a signature that is not base64");
    }
}
