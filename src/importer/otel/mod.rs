//! Conversations from spans that follow the OpenTelemetry conventions for generative AI.
//!
//! A span of a call to a model carries the whole history that it sent, so most of it is
//! known. `read` says what a span tells, `merge` what of that a conversation
//! lacks, as events in units; `known` is the conversation as far as that is decided on.
//! Nothing here talks to an engine: `server/spans` does.
//!
//! *Invariant:* any split, order and repetition of the spans of a session gives the same
//! conversation: the same histories, each message once. *Held by* `tests.rs`.

mod flat;
mod known;
mod merge;
mod message;
mod part;
mod read;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

use crate::domain::{ContentPart, JsonText, Role, TimestampMicros, ToolDefinition, Usage};

pub use known::Known;
pub use merge::{Merge, Start, Unit};
pub use read::{Seen, SpanFault, ValueRoom, read};

/// The source of conversations that came as spans.
pub const SOURCE: &str = "otel";

/// Custom events of this type hold the run of a tool whose call is not known (yet).
pub const TOOL_RUN_TYPE: &str = "otel/tool_run";

/// Custom events of this type hold a system prompt that no later request had.
pub const PROMPT_TYPE: &str = "otel/system_instructions";

/// The label of an annotation that says what a model's answer cost, where the answer was
/// known from a later request first.
pub const USAGE_LABEL: &str = "gen_ai.usage";

/// The label of an annotation that says how long a tool ran (its score, in milliseconds), and
/// what it returned where that reads otherwise than what is recorded.
pub const RUN_LABEL: &str = "gen_ai.execute_tool";

/// A span, in plain values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Span {
    /// 32 hexadecimal digits.
    pub trace_id: String,
    /// 16 of them.
    pub span_id: String,
    /// It has no parent.
    pub is_root: bool,
    /// When it began.
    pub start: TimestampMicros,
    /// When it ended.
    pub end: TimestampMicros,
    /// What went wrong; none: nothing did.
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
    /// It has no parent: nothing but its content ties it to others.
    pub is_root: bool,
    /// What an agent did in all, of which its calls to models say more.
    pub is_agent: bool,
    /// When it was sent.
    pub start: TimestampMicros,
    /// When it was answered.
    pub end: TimestampMicros,
    /// The model that answered, or was asked.
    pub model: String,
    /// The system prompt.
    pub system: Option<String>,
    /// The tools that were offered.
    pub tools: Vec<ToolDefinition>,
    /// What was sent.
    pub input: Vec<SpanItem>,
    /// What was answered: alternatives.
    pub output: Vec<Said>,
    /// The provider's id of the answer.
    pub response_id: String,
    /// What it cost.
    pub usage: Option<Usage>,
}

/// The run of a tool.
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
    /// How long it ran, in milliseconds.
    pub millis: u64,
    /// The call, or empty.
    pub call_id: String,
    /// The tool.
    pub tool: String,
    /// What it was called with, or absent.
    pub arguments: JsonText,
    /// What it returned.
    pub parts: Vec<ContentPart>,
    /// What went wrong.
    pub error: Option<String>,
}

/// A step of a history.
#[derive(Clone, Debug, PartialEq)]
pub enum SpanItem {
    /// A message.
    Said(Said),
    /// What a tool returned.
    Result(Told),
}

/// A message.
#[derive(Clone, Debug, PartialEq)]
pub struct Said {
    /// Who speaks.
    pub role: Role,
    /// What is said.
    pub parts: Vec<ContentPart>,
    /// The calls that it asks for.
    pub calls: Vec<AskedCall>,
    /// Why the model stopped.
    pub finish_reason: String,
    /// Of a result without a call: which call it names.
    pub call_id: String,
}

/// A call that a message asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct AskedCall {
    /// The provider's id, or empty.
    pub id: String,
    /// The tool.
    pub tool: String,
    /// The arguments.
    pub arguments: JsonText,
}

/// What a tool returned, as the model was told.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    /// The call, or empty.
    pub call_id: String,
    /// The tool, or empty.
    pub tool: String,
    /// What it returned.
    pub parts: Vec<ContentPart>,
}

/// What is known of a history without asking where it was said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histories {
    /// After each answer among what was sent.
    pub before: Vec<[u8; 32]>,
    /// After what was answered now.
    pub whole: Option<[u8; 32]>,
}

/// Hashes of what was said in a call to a model, by a service.
#[must_use]
pub fn histories(chat: &Chat, service: &str) -> Histories {
    let mut hasher = blake3::Hasher::new();
    hasher.update(service.as_bytes());
    let mut say = |said: &Said| {
        hasher.update(said.role.as_str().as_bytes());
        hasher.update(&known::parts_digest(&said.parts));
        for call in &said.calls {
            hasher.update(&known::digest(&call.id));
            hasher.update(&known::digest(&call.tool));
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

/// JSON with its keys in order and no spaces: the same value is the same text.
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

/// The same for a text that may be JSON; as it is, without the spaces around it, when it is
/// none. Instrumentations write one value in several ways.
fn canonical_text(text: &str) -> String {
    match serde_json::from_str(text) {
        Ok(Value::String(inner)) => inner.trim().to_owned(),
        Ok(value) => canonical(&value),
        Err(_) => text.trim().to_owned(),
    }
}

/// A value as text: a string is itself, all else JSON.
fn text_of(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A text or a value as JSON text. A string that is no JSON becomes a JSON string.
/// Arguments of a call as the model wrote them: a text is itself, be it JSON or not.
fn arguments_of(value: &Value) -> JsonText {
    match value {
        Value::String(text) => JsonText::from_checked(text.clone().into()),
        other => json_of(other),
    }
}

fn json_of(value: &Value) -> JsonText {
    let text = match value {
        Value::Null => return JsonText::default(),
        Value::String(text) if crate::codec::json::check(text.as_bytes()).is_ok() => text.clone(),
        other => other.to_string(),
    };
    JsonText::from_checked(text.into())
}
