//! Rules of Anthropic Messages.

use std::borrow::Cow;

use serde::Deserialize;

use crate::{
    Violations,
    ledger::{CALL_ID, CALL_ID_UNIQUE, Ledger, UNANSWERED_CALL, UNMATCHED_RESULT},
    read::{
        OfferedTools, SHAPE, TOOL_CHOICE, TOOL_NAME, TOOL_SCHEMA, Value, check_model,
        check_tool_choice, is_base64, is_web_url, is_word, read, read_body,
    },
};

pub(crate) const RULES: &[&str] = &[
    SHAPE,
    TOOL_NAME,
    TOOL_SCHEMA,
    "max-tokens",
    "system",
    "messages-empty",
    "first-role",
    "role",
    "roles-alternate",
    "content-empty",
    "content-block",
    "text-blank",
    "input-object",
    CALL_ID,
    CALL_ID_UNIQUE,
    UNANSWERED_CALL,
    UNMATCHED_RESULT,
    "results-first",
    "result-content",
    "thinking",
    "thinking-last",
    "thinking-parameter",
    "trailing-space",
    "media-source",
    "cache-control",
    TOOL_CHOICE,
];

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow)]
    model: Option<Value<'a>>,
    #[serde(borrow)]
    max_tokens: Option<Value<'a>>,
    #[serde(borrow)]
    thinking: Option<Value<'a>>,
    #[serde(borrow)]
    temperature: Option<Value<'a>>,
    #[serde(borrow)]
    system: Option<Value<'a>>,
    #[serde(borrow)]
    messages: Vec<Value<'a>>,
    #[serde(borrow)]
    tools: Option<Vec<Tool<'a>>>,
    #[serde(borrow)]
    tool_choice: Option<Value<'a>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tool<'a> {
    #[serde(borrow)]
    name: Value<'a>,
    #[serde(borrow)]
    input_schema: Option<Value<'a>>,
    #[serde(borrow)]
    cache_control: Option<CacheControl<'a>>,
    #[serde(borrow)]
    #[allow(dead_code)]
    description: Option<Value<'a>>,
}

#[derive(Deserialize)]
struct CacheControl<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Message<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(borrow)]
    content: Value<'a>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Block<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
    #[serde(borrow)]
    text: Option<Value<'a>>,
    #[serde(borrow)]
    source: Option<Source<'a>>,
    #[serde(borrow)]
    #[allow(dead_code)]
    title: Option<Value<'a>>,
    #[serde(borrow)]
    thinking: Option<Value<'a>>,
    #[serde(borrow)]
    signature: Option<Value<'a>>,
    #[serde(borrow)]
    data: Option<Value<'a>>,
    #[serde(borrow)]
    id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    name: Option<Value<'a>>,
    #[serde(borrow)]
    input: Option<Value<'a>>,
    #[serde(borrow)]
    tool_use_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    content: Option<Value<'a>>,
    #[allow(dead_code)]
    is_error: Option<bool>,
    #[serde(borrow)]
    cache_control: Option<CacheControl<'a>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Source<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
    #[serde(borrow)]
    media_type: Option<Cow<'a, str>>,
    #[serde(borrow)]
    data: Option<Cow<'a, str>>,
    #[serde(borrow)]
    url: Option<Cow<'a, str>>,
}

pub(crate) fn check(body: &[u8], report: &mut Violations) {
    let Some(body): Option<Body<'_>> = read_body(body, report) else {
        return;
    };
    let mut state = State::default();
    check_top(&body, &mut state, report);
    let last = body.messages.len().saturating_sub(1);
    for (at, message) in body.messages.iter().enumerate() {
        let message = read(message.json(), format_args!("messages[{at}]"), report);
        if let Some(message) = message {
            check_message(at, &message, &mut state, report);
        }
        if at == last && state.ends_with_space {
            let message = "the last text of the assistant ends with white space";
            report.add("trailing-space", format_args!("messages[{at}]"), message);
        }
    }
    state.end_batch(&[], last + 1, report);
    check_thinking(&body, &state, report);
    if state.breakpoints > 4 {
        let message = format!("{} breakpoints where 4 are allowed", state.breakpoints);
        report.add("cache-control", format_args!("body"), message);
    }
}

/// State after the messages read so far.
#[derive(Default)]
struct State<'a> {
    role: Cow<'a, str>,
    calls: Ledger<'a>,
    breakpoints: usize,
    ends_with_space: bool,
    /// The last assistant message calls tools and does not begin with thinking.
    lacks_thinking: bool,
}

impl<'a> State<'a> {
    fn breakpoint(
        &mut self,
        cache_control: Option<&CacheControl<'_>>,
        path: std::fmt::Arguments<'_>,
        report: &mut Violations,
    ) {
        let Some(cache_control) = cache_control else {
            return;
        };
        self.breakpoints += 1;
        if cache_control.r#type != "ephemeral" {
            report.add("cache-control", path, "an unknown type of breakpoint");
        }
    }

    /// Checks the results in the message at `at` against the open calls.
    fn end_batch(&mut self, results: &[Cow<'a, str>], at: usize, report: &mut Violations) {
        for result in results {
            self.calls
                .result(result, format_args!("messages[{at}]"), report);
        }
        // Report the message in which the result is missing.
        self.calls.settle(|_| format!("messages[{at}]"), report);
    }
}

fn check_top<'a>(body: &Body<'a>, state: &mut State<'a>, report: &mut Violations) {
    check_model(body.model, report);
    if !body.max_tokens.is_some_and(Value::is_positive) {
        report.add(
            "max-tokens",
            format_args!("max_tokens"),
            "not a number above zero",
        );
    }
    let mut names = OfferedTools::default();
    for (at, tool) in body.tools.iter().flatten().enumerate() {
        names.offer(tool.name, tool.input_schema, at, is_word, report);
        state.breakpoint(
            tool.cache_control.as_ref(),
            format_args!("tools[{at}]"),
            report,
        );
    }
    check_tool_choice(body.tool_choice, body.tools.as_ref(), report);
    if let Some(system) = body.system {
        check_system(system, state, report);
    }
    if body.messages.is_empty() {
        report.add(
            "messages-empty",
            format_args!("messages"),
            "there is no message",
        );
    }
}

#[derive(Deserialize)]
struct Thinking<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
    budget_tokens: Option<u64>,
}

fn check_thinking(body: &Body<'_>, state: &State<'_>, report: &mut Violations) {
    let Some(thinking) = body.thinking else {
        return;
    };
    let path = format_args!("thinking");
    let Some(thinking): Option<Thinking<'_>> = read(thinking.json(), path, report) else {
        return;
    };
    let most = body.max_tokens.and_then(|most| most.json().parse().ok());
    let message = match thinking.r#type.as_ref() {
        "disabled" => return,
        "enabled" if thinking.budget_tokens.is_none_or(|budget| budget < 1024) => {
            "budget_tokens is missing or below 1024"
        }
        "enabled" if thinking.budget_tokens >= most => "budget_tokens is not below max_tokens",
        "enabled" | "adaptive" if body.temperature.is_some() => "beside a temperature",
        "enabled" | "adaptive" if state.lacks_thinking => {
            "the assistant's last message has tool calls but does not begin with thinking"
        }
        "enabled" | "adaptive" => return,
        _ => "an unknown type",
    };
    report.add("thinking-parameter", path, message);
}

fn check_system<'a>(system: Value<'a>, state: &mut State<'a>, report: &mut Violations) {
    if system.is_text() && !system.is_blank() {
        return;
    }
    let blocks = system.list();
    if blocks.is_empty() {
        report.add(
            "system",
            format_args!("system"),
            "neither text nor blocks of text",
        );
    }
    for (at, block) in blocks.into_iter().enumerate() {
        let path = format_args!("system[{at}]");
        let Some(block): Option<Block<'_>> = read(block.json(), path, report) else {
            continue;
        };
        state.breakpoint(block.cache_control.as_ref(), path, report);
        if block.r#type != "text" || !says(block.text) {
            report.add("system", path, "not a block of text, or blank");
        }
    }
}

fn says(text: Option<Value<'_>>) -> bool {
    text.is_some_and(Value::says)
}

fn check_message<'a>(
    at: usize,
    message: &Message<'a>,
    state: &mut State<'a>,
    report: &mut Violations,
) {
    let path = format_args!("messages[{at}]");
    check_role(at, message, state, report);
    state.ends_with_space = false;
    if message.content.is_text() {
        if message.content.is_blank() {
            report.add("text-blank", path, "the content is blank");
        }
        state.end_batch(&[], at, report);
        let is_own = message.role == "assistant";
        state.ends_with_space = is_own && ends_with_space(message.content.json());
        return;
    }
    let told = check_blocks(at, message, state, report);
    state.end_batch(&told.results, at, report);
    if message.role == "assistant" {
        if told.last_kind.ends_with("thinking") {
            report.add("thinking-last", path, "the last block is thinking");
        }
        let thinks = told.first_kind.ends_with("thinking");
        state.lacks_thinking = !told.calls.is_empty() && !thinks;
    }
    for (place, id) in told.calls {
        let path = format_args!("messages[{at}].content[{place}]");
        let is_legal_char = |b: u8| b.is_ascii_alphanumeric() || b"_-".contains(&b);
        let is_legal = !id.is_empty() && id.bytes().all(is_legal_char);
        state.calls.call(id, is_legal, at, path, report);
    }
}

fn check_role<'a>(
    at: usize,
    message: &Message<'a>,
    state: &mut State<'a>,
    report: &mut Violations,
) {
    let path = format_args!("messages[{at}]");
    let role = message.role.as_ref();
    if role != "user" && role != "assistant" {
        report.add("role", path, "an unknown role");
    }
    if at == 0 && role != "user" {
        report.add("first-role", path, "the first message is not from the user");
    }
    if state.role == message.role {
        report.add(
            "roles-alternate",
            path,
            "the same role as the previous message",
        );
    }
    state.role = message.role.clone();
}

/// The blocks of a message that are needed to match calls with results.
#[derive(Default)]
struct Blocks<'a> {
    /// Index and id.
    calls: Vec<(usize, Cow<'a, str>)>,
    results: Vec<Cow<'a, str>>,
    first_kind: Cow<'a, str>,
    last_kind: Cow<'a, str>,
}

fn check_blocks<'a>(
    at: usize,
    message: &Message<'a>,
    state: &mut State<'a>,
    report: &mut Violations,
) -> Blocks<'a> {
    let role = message.role.as_ref();
    let mut told = Blocks::default();
    let blocks = message.content.list();
    if blocks.is_empty() {
        report.add(
            "content-empty",
            format_args!("messages[{at}]"),
            "there is no content",
        );
    }
    let mut is_after_other = false;
    for (place, block) in blocks.into_iter().enumerate() {
        let path = format_args!("messages[{at}].content[{place}]");
        let Some(block): Option<Block<'a>> = read(block.json(), path, report) else {
            continue;
        };
        state.breakpoint(block.cache_control.as_ref(), path, report);
        check_block(&block, role, path, report);
        match block.r#type.as_ref() {
            "tool_use" => told.calls.push((place, block.id.unwrap_or_default())),
            "tool_result" => {
                told.results.push(block.tool_use_id.unwrap_or_default());
                if is_after_other {
                    let message = "a result follows other content in the same message";
                    report.add("results-first", path, message);
                }
            }
            _ => is_after_other = true,
        }
        let text = block.text.map_or("", Value::json);
        state.ends_with_space = role == "assistant" && ends_with_space(text);
        if place == 0 {
            told.first_kind = block.r#type.clone();
        }
        told.last_kind = block.r#type;
    }
    told
}

/// Whether the last character of a JSON string is white space.
fn ends_with_space(json: &str) -> bool {
    let text = json.trim_end_matches('"');
    [" ", "\\n", "\\t", "\\r"]
        .iter()
        .any(|space| text.ends_with(space))
        && serde_json::from_str::<String>(json)
            .is_ok_and(|text| text.ends_with(char::is_whitespace))
}

fn check_block(
    block: &Block<'_>,
    role: &str,
    path: std::fmt::Arguments<'_>,
    report: &mut Violations,
) {
    let kinds: &[&str] = match role {
        "user" => &["text", "image", "document", "tool_result"],
        _ => &["text", "thinking", "redacted_thinking", "tool_use"],
    };
    let kind = block.r#type.as_ref();
    if !kinds.contains(&kind) {
        report.add(
            "content-block",
            path,
            "this role cannot have this type of block",
        );
    }
    match kind {
        "text" if !says(block.text) => report.add("text-blank", path, "a blank text"),
        "image" | "document" => check_source(block, path, report),
        "thinking" => {
            let is_whole = block.thinking.is_some_and(Value::is_text) && says(block.signature);
            if !is_whole || block.cache_control.is_some() {
                let message = "no text, no signature, or a breakpoint on it";
                report.add("thinking", path, message);
            }
        }
        "redacted_thinking" if !says(block.data) || block.cache_control.is_some() => {
            report.add("thinking", path, "no data, or a breakpoint on it");
        }
        "tool_use" => {
            if !block.input.is_some_and(Value::is_object) {
                report.add("input-object", path, "the input is not an object");
            }
            if !block.name.is_some_and(|name| is_word(&name.text())) {
                report.add(TOOL_NAME, path, "the name is not accepted");
            }
        }
        "tool_result" => check_result(block.content, path, report),
        _ => {}
    }
}

fn check_result(
    content: Option<Value<'_>>,
    path: std::fmt::Arguments<'_>,
    report: &mut Violations,
) {
    let Some(content) = content.filter(|content| !content.is_text()) else {
        return;
    };
    if !content.is_list() {
        report.add("result-content", path, "neither text nor a list");
    }
    for block in content.list() {
        let Some(block): Option<Block<'_>> = read(block.json(), path, report) else {
            continue;
        };
        match block.r#type.as_ref() {
            "text" if says(block.text) => {}
            "image" | "document" => check_source(&block, path, report),
            _ => report.add(
                "result-content",
                path,
                "a result cannot have this block, or it is blank",
            ),
        }
    }
}

fn check_source(block: &Block<'_>, path: std::fmt::Arguments<'_>, report: &mut Violations) {
    let images = ["image/png", "image/jpeg", "image/gif", "image/webp"];
    let is_taken = block.source.as_ref().is_some_and(|source| {
        let media_type = source.media_type.as_deref().unwrap_or_default();
        match source.r#type.as_ref() {
            "url" => source.url.as_deref().is_some_and(is_web_url),
            "base64" if block.r#type == "image" => {
                images.contains(&media_type) && source.data.as_deref().is_some_and(is_base64)
            }
            "base64" => {
                media_type == "application/pdf" && source.data.as_deref().is_some_and(is_base64)
            }
            _ => false,
        }
    });
    if !is_taken {
        report.add(
            "media-source",
            path,
            "the media type or source is not accepted",
        );
    }
}
