//! Builds conversations from spans that follow the OpenTelemetry conventions for generative AI.
//!
//! A span of a model call carries the whole history that was sent, so most of it is already stored.
//! `read` parses a span, `merge` computes the events that a conversation lacks, grouped in units;
//! `merge_state` holds the state of a conversation that `merge` needs. This crate does not call an
//! engine: `server/spans` does.
//!
//! *Invariant:* any split, order and repetition of a session's spans gives the same conversation:
//! the same histories, each message once. *Held by* `tests.rs`.

#![cfg_attr(not(test), warn(unreachable_pub))]

#[cfg(feature = "export")]
mod bounds;
#[cfg(feature = "export")]
pub mod export;
mod flat;
mod merge;
mod merge_state;
mod message;
mod part;
mod read;
mod spans;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

use treering_domain::{ContentPart, JsonText, Role, TimestampMicros, ToolDefinition, Usage};

pub use merge::{Merge, Start, Unit};
pub use merge_state::MergeState;
pub use read::{SpanFault, SpanMeaning, ValueAllowance, read};
pub use spans::CallSpans;

/// The source of conversations that came as spans.
pub const SOURCE: &str = "otel";

/// Type of custom events that hold a tool run whose call is not known (yet).
pub(crate) const TOOL_RUN_TYPE: &str = "otel/tool_run";

/// Type of custom events that hold a system prompt that came too late to be set on its branch.
pub(crate) const PROMPT_TYPE: &str = "otel/system_instructions";

/// Label of an annotation with the token usage of an answer that was first seen in a later request.
pub(crate) const USAGE_LABEL: &str = "gen_ai.usage";

/// Label of an annotation on a tool result. The score is the duration of the tool run, in
/// milliseconds; the comment is the run's result if it differs from the recorded one.
pub(crate) const RUN_LABEL: &str = "gen_ai.execute_tool";

/// A span, in plain values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Span {
    /// The trace id: 32 hexadecimal digits.
    pub trace_id: String,
    /// The span id: 16 hexadecimal digits.
    pub span_id: String,
    /// It has no parent.
    pub is_root: bool,
    /// When it began.
    pub start: TimestampMicros,
    /// When it ended.
    pub end: TimestampMicros,
    /// The error message, if it failed.
    pub error: Option<String>,
    /// Its attributes.
    pub attributes: Map<String, Value>,
    /// Its events, by name.
    pub events: Vec<(String, Map<String, Value>)>,
}

/// A call to a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Chat {
    /// The conversation that it names.
    pub conversation: Option<String>,
    /// Its trace.
    pub trace_id: String,
    /// It has no parent, so only its content relates it to other calls.
    pub is_root: bool,
    /// It is the span of an agent, which summarises calls that have spans of their own.
    pub is_agent: bool,
    /// When it was sent.
    pub start: TimestampMicros,
    /// When it was answered.
    pub end: TimestampMicros,
    /// The model that answered, or else the requested one.
    pub model: String,
    /// The system prompt.
    pub system: Option<String>,
    /// The tools that were offered.
    pub tools: Vec<ToolDefinition>,
    /// The history that was sent.
    pub input: Vec<SpanItem>,
    /// The alternative answers.
    pub output: Vec<SpanMessage>,
    /// The provider's id of the answer.
    pub response_id: String,
    /// The token usage.
    pub usage: Option<Usage>,
}

/// A tool run.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolRun {
    /// The conversation that it names.
    pub conversation: Option<String>,
    /// Its trace.
    pub trace_id: String,
    /// Its span.
    pub span_id: String,
    /// When it ended.
    pub end: TimestampMicros,
    /// Its duration, in milliseconds.
    pub millis: u64,
    /// The call's id, or empty.
    pub call_id: String,
    /// The tool's name.
    pub tool: String,
    /// The arguments, or absent.
    pub arguments: JsonText,
    /// The result.
    pub parts: Vec<ContentPart>,
    /// The error message, if it failed.
    pub error: Option<String>,
}

/// A step of a history.
#[derive(Clone, Debug, PartialEq)]
pub enum SpanItem {
    /// A message.
    Said(SpanMessage),
    /// The result of a tool call.
    Result(SpanToolResult),
}

/// A message.
#[derive(Clone, Debug, PartialEq)]
pub struct SpanMessage {
    /// Who speaks.
    pub role: Role,
    /// The content.
    pub parts: Vec<ContentPart>,
    /// The tool calls that it requests.
    pub calls: Vec<SpanToolCall>,
    /// Why the model stopped.
    pub finish_reason: String,
    /// For a result without a call: the call id that it names.
    pub call_id: String,
}

/// A tool call requested by a message.
#[derive(Clone, Debug, PartialEq)]
pub struct SpanToolCall {
    /// The provider's id, or empty.
    pub id: String,
    /// The tool's name.
    pub tool: String,
    /// The arguments.
    pub arguments: JsonText,
}

/// A tool result, as sent to the model.
#[derive(Clone, Debug, PartialEq)]
pub struct SpanToolResult {
    /// The call's id, or empty.
    pub call_id: String,
    /// The tool's name, or empty.
    pub tool: String,
    /// The result.
    pub parts: Vec<ContentPart>,
}

/// Hashes of histories. They relate spans that have no conversation id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histories {
    /// The hash after each answer in the history that was sent.
    pub before: Vec<[u8; 32]>,
    /// The hash after the new answer.
    pub whole: Option<[u8; 32]>,
}

/// Returns the hashes of the histories in a model call by a service.
#[must_use]
pub fn histories(chat: &Chat, service: &str) -> Histories {
    let mut hasher = blake3::Hasher::new();
    hasher.update(service.as_bytes());
    let mut say = |said: &SpanMessage| {
        hasher.update(said.role.as_str().as_bytes());
        hasher.update(&merge_state::parts_digest(&said.parts));
        for call in &said.calls {
            hasher.update(&merge_state::digest(&call.id));
            hasher.update(&merge_state::digest(&call.tool));
        }
        <[u8; 32]>::from(hasher.finalize())
    };
    let mut histories = Histories::default();
    for item in &chat.input {
        if let SpanItem::Said(said) = item {
            let end = say(said);
            if said.role == Role::Assistant {
                histories.before.push(end);
            }
        }
    }
    histories.whole = chat.output.first().map(say);
    histories
}

/// Returns JSON with sorted keys and no spaces, so that equal values give equal texts.
fn canonical(value: &Value) -> String {
    match value {
        Value::Array(list) => {
            let list: Vec<_> = list.iter().map(canonical).collect();
            format!("[{}]", list.join(","))
        }
        Value::Object(map) => {
            let mut fields: Vec<_> = map.iter().collect();
            fields.sort_by_key(|(key, _)| *key);
            let field = |(key, value): (&String, &Value)| {
                format!("{}:{}", Value::from(key.as_str()), canonical(value))
            };
            let fields: Vec<_> = fields.into_iter().map(field).collect();
            format!("{{{}}}", fields.join(","))
        }
        plain => plain.to_string(),
    }
}

/// Returns the canonical form of a text that is JSON, otherwise the text without surrounding
/// spaces. Instrumentations write one value in several ways.
fn canonical_text(text: &str) -> String {
    match serde_json::from_str(text) {
        Ok(Value::String(inner)) => inner.trim().to_owned(),
        Ok(value) => canonical(&value),
        Err(_) => text.trim().to_owned(),
    }
}

/// Returns a value as text: a string as it is, anything else as JSON.
fn text_of(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Returns the arguments of a call as the model wrote them: a text as it is, whether or not it is
/// JSON.
fn arguments_of(value: &Value) -> JsonText {
    match value {
        Value::String(text) => JsonText::from_checked(text.clone().into()),
        other => json_of(other),
    }
}

/// Returns a value as JSON text. A string that is not JSON becomes a JSON string; null is absent.
fn json_of(value: &Value) -> JsonText {
    let text = match value {
        Value::Null => return JsonText::default(),
        Value::String(text) if treering_proto::json::check(text.as_bytes()).is_ok() => text.clone(),
        other => other.to_string(),
    };
    JsonText::from_checked(text.into())
}
