//! Parses spans.

use serde_json::{Map, Value};

use super::{
    Chat, Span, SpanItem, SpanMessage, ToolRun, flat,
    message::{self, with_call_ids},
    part,
};
use treering_domain::{
    ContentPart, JsonText, Role, ToolDefinition, Usage, limits::SHORT_TEXT_BYTES_MAX,
};
use treering_proto::json;

type Attributes = Map<String, Value>;

/// The meaning of a span.
#[derive(Clone, Debug, PartialEq)]
pub enum SpanMeaning {
    /// A call to a model, or an agent's work.
    Chat(Box<Chat>),
    /// A tool run.
    Tool(Box<ToolRun>),
    /// A model call without messages, because the instrumentation does not capture content.
    WithoutContent,
    /// Anything else.
    Other,
}

/// Why a span cannot be parsed. Never quotes its content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpanFault {
    /// An attribute is not a JSON list of messages.
    #[error("the attribute {attribute} is not {expected}")]
    Attribute {
        /// The attribute's name.
        attribute: String,
        /// The expected form.
        expected: &'static str,
    },
    /// The messages have too many JSON values.
    #[error(
        "the messages of the request's spans have more than {max} values: send fewer spans at once"
    )]
    TooMany {
        /// The largest allowed number in one request.
        max: usize,
    },
}

/// How many values the spans of a request may still have.
#[derive(Clone, Copy, Debug)]
pub struct ValueAllowance {
    /// Remaining JSON values of all their messages.
    pub values: usize,
    /// The initial number.
    pub values_max: usize,
}

impl ValueAllowance {
    /// Returns room for this many JSON values.
    #[must_use]
    pub fn new(values_max: usize) -> Self {
        Self {
            values: values_max,
            values_max,
        }
    }

    fn take(&mut self, values: usize) -> Result<(), SpanFault> {
        let max = self.values_max;
        let left = self.values.checked_sub(values);
        self.values = left.ok_or(SpanFault::TooMany { max })?;
        Ok(())
    }
}

/// Values of `gen_ai.operation.name` for model calls.
const CHATS: [&str; 3] = ["chat", "text_completion", "generate_content"];
/// Values of `gen_ai.operation.name` for agents.
const AGENTS: [&str; 2] = ["invoke_agent", "invoke_workflow"];

/// Parses a span, within `room`.
///
/// # Errors
/// [`SpanFault`] when an attribute should be a list of messages and is not, or there are too many
/// values.
pub fn read(span: &Span, room: &mut ValueAllowance) -> Result<SpanMeaning, SpanFault> {
    let operation = span.attributes.get("gen_ai.operation.name");
    let operation = operation.and_then(Value::as_str).unwrap_or_default();
    let kind = span.attributes.get("openinference.span.kind");
    let kind = kind.and_then(Value::as_str).unwrap_or_default();
    if operation == "execute_tool" || kind == "TOOL" {
        return Ok(SpanMeaning::Tool(Box::new(tool_run(span))));
    }
    let is_agent = AGENTS.contains(&operation) || kind == "AGENT";
    let is_chat = CHATS.contains(&operation) || kind == "LLM" || is_old_chat(span, operation);
    if !is_agent && !is_chat {
        return Ok(SpanMeaning::Other);
    }
    let chat = chat(span, is_agent, room)?;
    Ok(match chat.input.is_empty() && chat.output.is_empty() {
        true if is_agent => SpanMeaning::Other,
        true => SpanMeaning::WithoutContent,
        false => SpanMeaning::Chat(Box::new(chat)),
    })
}

/// Returns true for a model call that follows a convention without operation names.
fn is_old_chat(span: &Span, operation: &str) -> bool {
    operation.is_empty()
        && (span.attributes.contains_key("llm.request.type")
            || span.attributes.keys().any(|name| {
                ["gen_ai.prompt.", "gen_ai.completion.", "gen_ai.request."]
                    .iter()
                    .any(|prefix| name.starts_with(prefix))
            })
            || span.events.iter().any(|(name, _)| name == "gen_ai.choice"))
}

fn named(attributes: &Attributes, names: &[&str]) -> String {
    let found = names
        .iter()
        .find_map(|name| attributes.get(*name)?.as_str());
    part::cut(found.unwrap_or_default().to_owned())
}

fn number(attributes: &Attributes, names: &[&str]) -> Option<u64> {
    names.iter().find_map(|name| {
        let value = attributes.get(*name)?;
        value
            .as_u64()
            .or_else(|| value.as_str().and_then(|text| text.parse().ok()))
    })
}

fn conversation(attributes: &Attributes) -> Option<String> {
    let names = [
        "gen_ai.conversation.id",
        "session.id",
        "traceloop.association.properties.session_id",
    ];
    let id = named(attributes, &names);
    (!id.is_empty()).then_some(id)
}

fn tool_run(span: &Span) -> ToolRun {
    let of = |names: &[&str]| {
        let mut found = names.iter().filter_map(|name| span.attributes.get(*name));
        found.next().cloned().unwrap_or_default()
    };
    let arguments = of(&[
        "gen_ai.tool.call.arguments",
        "tool_arguments",
        "input.value",
    ]);
    let result = of(&["gen_ai.tool.call.result", "tool_response", "output.value"]);
    let lasted = span.end.0.saturating_sub(span.start.0).max(0);
    ToolRun {
        conversation: conversation(&span.attributes),
        trace_id: span.trace_id.clone(),
        span_id: span.span_id.clone(),
        end: span.end,
        millis: u64::try_from(lasted / 1_000).unwrap_or_default(),
        call_id: named(&span.attributes, &["gen_ai.tool.call.id", "tool_call.id"]),
        tool: named(&span.attributes, &["gen_ai.tool.name", "tool.name"]),
        arguments: super::arguments_of(&arguments),
        parts: part::returned(&result),
        error: span.error.clone(),
    }
}

fn chat(span: &Span, is_agent: bool, room: &mut ValueAllowance) -> Result<Chat, SpanFault> {
    let attributes = with_details(span);
    let said = said(&attributes, &span.events, room)?;
    let (mut system, input) = message::read_all(&said.input);
    if let Some(instructions) = attributes.get("gen_ai.system_instructions") {
        let parts = list("gen_ai.system_instructions", instructions, room)?;
        let parts = part::returned(&Value::Array(parts));
        system.insert(0, message::text_of(&parts));
    }
    let system = system.join("\n\n");
    // Calls without ids get one from their position, so an answer needs the history before it.
    let outputs = said
        .output
        .iter()
        .filter_map(|one| alternative(&input, one));
    let output: Vec<_> = outputs.collect();
    let model = named(
        &attributes,
        &[
            "gen_ai.response.model",
            "gen_ai.request.model",
            "llm.model_name",
            "llm.request.model",
        ],
    );
    Ok(Chat {
        conversation: conversation(&attributes),
        trace_id: span.trace_id.clone(),
        is_root: span.is_root,
        is_agent,
        start: span.start,
        end: span.end,
        system: (!system.is_empty()).then_some(system),
        tools: tools(&attributes, room)?,
        input: with_call_ids(input),
        output,
        response_id: named(&attributes, &["gen_ai.response.id", "llm.response.id"]),
        usage: usage(&attributes, &model),
        model,
    })
}

/// Parses one of the answers. Its calls get ids from their position after the history.
fn alternative(input: &[SpanItem], answer: &Value) -> Option<SpanMessage> {
    let mut answer = answer.clone();
    if answer["role"].is_null()
        && answer["message"]["role"].is_null()
        && let Value::Object(fields) = &mut answer
    {
        fields.insert("role".into(), "assistant".into());
    }
    let mut whole = input.to_vec();
    whole.extend(message::read(&answer));
    match with_call_ids(whole).pop()? {
        SpanItem::Said(said) if said.role == Role::Assistant => Some(said),
        _ => None,
    }
}

/// Returns the attributes, together with those of an event that may have the content instead.
fn with_details(span: &Span) -> Attributes {
    let mut attributes = span.attributes.clone();
    for (name, details) in &span.events {
        if name == "gen_ai.client.inference.operation.details" {
            attributes.extend(details.clone());
        }
    }
    attributes
}

/// Messages as JSON.
#[derive(Default)]
struct JsonMessages {
    input: Vec<Value>,
    output: Vec<Value>,
}

/// Returns the messages, whichever convention the span follows.
fn said(
    attributes: &Attributes,
    events: &[(String, Attributes)],
    room: &mut ValueAllowance,
) -> Result<JsonMessages, SpanFault> {
    let mut of = |names: &[&str]| {
        let found = names
            .iter()
            .find_map(|name| Some((*name, attributes.get(*name)?)));
        found.map_or_else(|| Ok(Vec::new()), |(name, value)| list(name, value, room))
    };
    let said = JsonMessages {
        input: of(&[
            "gen_ai.input.messages",
            "pydantic_ai.all_messages",
            "all_messages_events",
        ])?,
        output: of(&["gen_ai.output.messages"])?,
    };
    if !said.input.is_empty() || !said.output.is_empty() {
        return Ok(said);
    }
    let of = |prefix| flat::below(attributes, prefix).and_then(as_list);
    for (input, output) in [
        ("gen_ai.prompt.", "gen_ai.completion."),
        ("llm.input_messages.", "llm.output_messages."),
        ("llm.prompts.", "llm.completions."),
    ] {
        let said = JsonMessages {
            input: of(input).unwrap_or_default(),
            output: of(output).unwrap_or_default(),
        };
        if !said.input.is_empty() || !said.output.is_empty() {
            return Ok(said);
        }
    }
    let all = events
        .iter()
        .filter_map(|(name, event)| of_event(name, event));
    let mut said = JsonMessages::default();
    for (is_answer, message) in all {
        match is_answer {
            true => said.output.push(message),
            false => said.input.push(message),
        }
    }
    Ok(said)
}

fn as_list(value: Value) -> Option<Vec<Value>> {
    match value {
        Value::Array(list) => Some(list),
        _ => None,
    }
}

/// Returns a message that came as an event of the span, and whether it is an answer.
fn of_event(name: &str, event: &Attributes) -> Option<(bool, Value)> {
    let (role, is_answer) = match name {
        "gen_ai.system.message" => ("system", false),
        "gen_ai.user.message" => ("user", false),
        "gen_ai.assistant.message" => ("assistant", false),
        "gen_ai.tool.message" => ("tool", false),
        "gen_ai.choice" => ("assistant", true),
        _ => return None,
    };
    let mut message = match event.get("gen_ai.event.content") {
        Some(Value::String(text)) => match serde_json::from_str(text) {
            Ok(Value::Object(fields)) => fields,
            _ => event.clone(),
        },
        _ => event.clone(),
    };
    if let Some(Value::String(text)) = message.get("message")
        && let Ok(inner @ Value::Object(_)) = serde_json::from_str(text)
    {
        message.insert("message".into(), inner);
    }
    if let Some(Value::Object(inner)) = message.remove("message") {
        message.extend(inner);
    }
    message.insert("role".into(), role.into());
    Some((is_answer, Value::Object(message)))
}

/// Returns a list, given as it is or as JSON text.
fn list(
    attribute: &str,
    value: &Value,
    room: &mut ValueAllowance,
) -> Result<Vec<Value>, SpanFault> {
    let read = match value {
        Value::Array(list) => Some(list.clone()),
        Value::String(text) => {
            room.take(json::count_values(text.as_bytes()))?;
            serde_json::from_str(text).ok()
        }
        _ => None,
    };
    read.ok_or_else(|| SpanFault::Attribute {
        attribute: attribute.to_owned(),
        expected: "a list, or a text with a JSON list",
    })
}

fn usage(attributes: &Attributes, model: &str) -> Option<Usage> {
    let of = |names: &[&str]| number(attributes, names);
    let input = of(&[
        "gen_ai.usage.input_tokens",
        "gen_ai.usage.prompt_tokens",
        "llm.token_count.prompt",
    ]);
    let output = of(&[
        "gen_ai.usage.output_tokens",
        "gen_ai.usage.completion_tokens",
        "llm.token_count.completion",
    ]);
    if input.is_none() && output.is_none() {
        return None;
    }
    let cache_read = of(&[
        "gen_ai.usage.cache_read.input_tokens",
        "gen_ai.usage.cache_read_input_tokens",
        "llm.token_count.prompt_details.cache_read",
    ])
    .unwrap_or_default();
    let cache_creation = of(&[
        "gen_ai.usage.cache_creation.input_tokens",
        "gen_ai.usage.cache_creation_input_tokens",
        "llm.token_count.prompt_details.cache_write",
    ])
    .unwrap_or_default();
    // The conventions count cached tokens as part of the input. Some instrumentations report
    // Anthropic's numbers as they are: without them.
    let input = input.unwrap_or_default();
    Some(Usage {
        input_tokens: input
            .checked_sub(cache_read + cache_creation)
            .unwrap_or(input),
        output_tokens: output.unwrap_or_default(),
        cache_read_input_tokens: cache_read,
        cache_creation_input_tokens: cache_creation,
        reasoning_output_tokens: of(&[
            "gen_ai.usage.reasoning.output_tokens",
            "gen_ai.usage.reasoning_tokens",
            "llm.token_count.completion_details.reasoning",
        ])
        .unwrap_or_default(),
        model: model.to_owned(),
    })
}

fn tools(
    attributes: &Attributes,
    room: &mut ValueAllowance,
) -> Result<Vec<ToolDefinition>, SpanFault> {
    let defined = match attributes.get("gen_ai.tool.definitions") {
        Some(value) => list("gen_ai.tool.definitions", value, room)?,
        None => flat::below(attributes, "llm.request.functions.")
            .and_then(as_list)
            .unwrap_or_default(),
    };
    Ok(defined.iter().filter_map(tool).collect())
}

fn tool(value: &Value) -> Option<ToolDefinition> {
    let of = match &value["function"] {
        Value::Object(_) => &value["function"],
        _ => value,
    };
    let name = of["name"].as_str()?;
    if name.is_empty() || name.len() > SHORT_TEXT_BYTES_MAX {
        return None;
    }
    let schema = super::json_of(part::field(of, &["parameters", "input_schema"]));
    let is_schema = schema.as_str().trim_start().starts_with('{');
    Some(ToolDefinition {
        name: name.to_owned(),
        description: part::text(of, &["description"]),
        input_schema: if is_schema {
            schema
        } else {
            JsonText::default()
        },
        source: String::new(),
        needs_approval: false,
        guidance: String::new(),
        discoverable: false,
        strict: None,
    })
}

/// Returns the text of the first user message.
pub(super) fn question(items: &[SpanItem]) -> Option<&str> {
    items.iter().find_map(|item| match item {
        SpanItem::Said(said) if said.role == Role::User => {
            said.parts.iter().find_map(ContentPart::text)
        }
        _ => None,
    })
}
