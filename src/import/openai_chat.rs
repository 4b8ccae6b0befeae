//! Imports OpenAI chat lines: `{"id", "source", "meta", "messages": [...]}`.
//!
//! Messages become typed events. The data that events cannot express is kept as a JSON Patch beside
//! them (see [`exporter`](super::exporter) for the reverse). Messages that name their parent in
//! `x.parent` form a tree: the first child continues its parent's branch, further ones open
//! branches.

mod line;
mod tools;
mod tree;

use std::collections::HashMap;

use serde_json::{Value, value::RawValue};
use uuid::Uuid;

use super::{
    ImportedConversation, Oddity,
    canonical::{self, ORIGIN},
    content::{self, short},
    number::numbers_survive,
    raw,
    source::LINE_VALUES_MAX,
    transcript::{BranchIndex, Transcript},
};
use line::Line;
use treering_domain::{
    Config, ContentHash, ContentPart, ConversationCreated, ConversationId, Custom, EventBody,
    JsonText, MessageAppended, NameError, RawEncoding, RawMessage, Reasoning, Role,
    ToolCallRequested, ToolDefinition, ToolResultRecorded,
};
use treering_proto::json;

/// Type of custom events that hold a message without a typed form.
pub(super) const MESSAGE_TYPE: &str = "openai-chat/message";

/// Longest title, in characters: about one line of a terminal.
const TITLE_CHARS_MAX: usize = 80;

/// UUID namespace for ids of imported conversations.
const IDS: Uuid = Uuid::from_u128(0x6b1f_1f0e_8c5c_5d0a_9a55_3f3c_4f1e_7a21);

/// Why a line is not a conversation. Never quotes its content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportFault {
    /// Not JSON, or JSON beyond the parser's limits.
    #[error("not a JSON line: {0}")]
    NotJson(#[from] json::JsonFault),
    /// A value that cannot be represented, for example a number beyond 1e308.
    #[error("{place} has a value that cannot be read (a number out of range, or a broken escape)")]
    Unreadable {
        /// Its place in the line.
        place: String,
    },
    /// The line is another JSON value.
    #[error("not a conversation: the line is not a JSON object")]
    NotAnObject,
    /// A field is missing or has another type.
    #[error("not a conversation: {field} must be {expected}")]
    Field {
        /// The field.
        field: String,
        /// What it must be.
        expected: &'static str,
    },
    /// An id or source over its length limit.
    #[error("{field} has {bytes} bytes; the maximum is {max}")]
    TooLong {
        /// The field.
        field: &'static str,
        /// Its length.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// A branch could not be named.
    #[error(transparent)]
    Branch(#[from] NameError),
}

/// Returns the id of a conversation of a source; it is the same for every importer.
#[must_use]
pub fn conversation_id(source: &str, source_id: &str) -> ConversationId {
    let name = format!("{source}\n{source_id}");
    ConversationId(Uuid::new_v5(&IDS, name.as_bytes()))
}

/// Converts one line.
///
/// # Errors
/// [`ImportFault`] when the line is not a conversation. Odd messages are not errors: they are
/// reported as notes.
pub fn import_line(line: &[u8]) -> Result<ImportedConversation, ImportFault> {
    json::check_values(line, LINE_VALUES_MAX)?;
    json::check_text(line)?;
    let line = Line::read(line)?;
    let messages = line.messages()?;
    let conversation = conversation_id(&line.source, &line.id);
    let created = ConversationCreated {
        title: title(&messages).unwrap_or_else(|| shortened(&line.id)),
        config: Config {
            model_id: line.model.clone(),
            ..Config::default()
        },
        source: line.source.clone(),
        source_id: line.id.clone(),
        source_meta: line.rest.clone(),
        ..ConversationCreated::default()
    };
    let first_time = messages.iter().find_map(|message| time_of(&message.value));
    let mut import = Import {
        transcript: Transcript::new(conversation, created, first_time),
        boundaries: HashMap::new(),
        tools: HashMap::new(),
    };
    import.transcript.define_tools(line.tools);
    import.run(&messages)?;
    let (events, notes) = import.transcript.finish();
    Ok(ImportedConversation {
        conversation,
        source: line.source,
        source_id: line.id,
        follows: None,
        origin: None,
        events,
        notes,
    })
}

/// A message of the list.
struct Message<'a> {
    text: &'a str,
    value: Value,
}

fn time_of(message: &Value) -> Option<treering_domain::TimestampMicros> {
    canonical::read_time(&message["x"]["ts"])
}

/// Returns true for a message that marks a compaction and precedes its summary.
fn is_boundary(message: &Value) -> bool {
    let x = &message["x"];
    is_said(&x["compact_boundary"]) && !is_said(&x["compact_summary"])
}

fn is_said(flag: &Value) -> bool {
    !matches!(flag, Value::Null | Value::Bool(false))
}

/// Returns true for custom events that hold an unchanged message.
pub(super) fn is_message(custom: &Custom) -> bool {
    custom.type_name == MESSAGE_TYPE
}

/// Returns the raw form of a message that equals its rendering.
fn nothing_more() -> RawMessage {
    RawMessage {
        origin: ORIGIN.to_owned(),
        provider: String::new(),
        model: String::new(),
        encoding: RawEncoding::JsonPatch,
        data: bytes::Bytes::from_static(b"[]"),
    }
}

/// Returns true when the message says that older context was replaced.
fn is_compaction(message: &Value) -> bool {
    let x = &message["x"];
    ["compact_boundary", "compact_summary", "compaction"]
        .iter()
        .any(|key| is_said(&x[*key]))
}

/// Returns a title from the first prompt that a person wrote; if there is none, from the first user
/// message, which a harness wrote.
fn title(messages: &[Message<'_>]) -> Option<String> {
    let user = messages
        .iter()
        .filter(|message| message.value["role"] == "user" && message.value["x"]["meta"] != true);
    let texts = user.filter_map(|message| {
        let parts = content::read(message.value.get("content"));
        parts.iter().find_map(ContentPart::text).map(str::to_owned)
    });
    let mut first = None;
    for text in texts {
        if let Some(line) = headline(&text) {
            return Some(shortened(&line));
        }
        let line = || text.lines().map(str::trim).find(|line| !line.is_empty());
        first = first.or_else(|| line().map(shortened));
    }
    first
}

/// Returns the subject of a prompt: its first line, or the next line if the first only announces it
/// (`Implement the following plan:`); or a command with its arguments. `None` for text that a tool
/// wrote, which begins with a tag or is JSON.
pub fn headline(text: &str) -> Option<String> {
    let of_tag = |tag: &str| {
        let (_, rest) = text.split_once(&format!("<{tag}>"))?;
        Some(rest.split_once("</")?.0.trim())
    };
    if text.trim_start().starts_with("<command-message>") {
        let told = format!(
            "{} {}",
            of_tag("command-name")?,
            of_tag("command-args").unwrap_or("")
        );
        return Some(told.trim().to_owned());
    }
    let says = |line: &&str| !line.starts_with("```") && line.contains(char::is_alphanumeric);
    let mut lines = text.lines().map(str::trim).filter(says).peekable();
    let first = lines.next_if(|line| !line.starts_with(['<', '{']))?;
    let plain = |line: &str| line.trim_start_matches(['#', '*', '-', ' ']).to_owned();
    if !first.ends_with(':') || lines.peek().is_some_and(|next| is_list_item(next)) {
        return Some(plain(first).trim_end_matches(':').to_owned());
    }
    // Skip headings: they say no more than the line before.
    let next = lines.map(plain).find(|line| !line.ends_with(':'));
    next.or_else(|| Some(first.to_owned()))
}

/// Returns the start of a text, without control characters.
pub fn shortened(text: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let mut short: String = text.chars().take(TITLE_CHARS_MAX).map(plain).collect();
    if text.chars().nth(TITLE_CHARS_MAX).is_some() {
        short.push('…');
    }
    short
}

fn is_list_item(line: &str) -> bool {
    let number = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let is_numbered = number.len() < line.len() && number.starts_with(['.', ')']);
    is_numbered || line.starts_with(['-', '*', '•'])
}

struct Import {
    transcript: Transcript,
    /// For each branch whose last message announced a compaction: the number of tokens before the
    /// compaction.
    boundaries: HashMap<BranchIndex, u64>,
    /// By call id: the tool of its last call, on any branch.
    tools: HashMap<String, String>,
}

impl Import {
    fn run(&mut self, messages: &[Message<'_>]) -> Result<(), ImportFault> {
        let tree = tree::places(messages.iter().map(|message| &message.value));
        for (index, message) in messages.iter().enumerate() {
            self.transcript.occurred_at = time_of(&message.value);
            let branch = self.transcript.arrive(&tree, index)?;
            match tree.nodes[index].is_beside {
                true => self.keep_as_custom(branch, message),
                false => self.message(branch, message),
            }
            self.transcript.leave(&tree, index);
        }
        Ok(())
    }

    fn message(&mut self, branch: BranchIndex, message: &Message<'_>) {
        let boundary = self.boundaries.remove(&branch);
        if is_boundary(&message.value) {
            // Boundaries are for people; the model never saw them.
            self.boundaries
                .insert(branch, tokens_before(&message.value));
            return self.keep_as_custom(branch, message);
        }
        if boundary.is_some() || is_compaction(&message.value) {
            let tokens = boundary.unwrap_or_else(|| tokens_before(&message.value));
            if self.compact(branch, tokens, message) {
                return;
            }
        }
        let role = message.value["role"].as_str().unwrap_or_default();
        match role {
            "system" => self.speak(branch, Role::System, message),
            "developer" => self.speak(branch, Role::Developer, message),
            "user" => self.speak(branch, Role::User, message),
            "assistant" => self.speak(branch, Role::Assistant, message),
            "tool" => self.answer(branch, message),
            _ => {
                self.transcript.note(Oddity::UnknownRole);
                self.keep_as_custom(branch, message);
            }
        }
    }

    /// Appends a compaction, with this message as its summary if it is one. Returns true if the
    /// message needs no further event.
    fn compact(&mut self, branch: BranchIndex, tokens: u64, message: &Message<'_>) -> bool {
        let summary = is_compaction(&message.value)
            .then(|| message.value["content"].as_str())
            .flatten()
            .unwrap_or_default();
        let kept_from = kept_from(&message.value);
        let mut compacted =
            self.transcript
                .compaction(branch, summary.to_owned(), tokens, kept_from);
        let is_summary = !summary.is_empty();
        if is_summary {
            let rendered = canonical::summary(&compacted, self.transcript.occurred_at);
            compacted.raw = self
                .keep(rendered, message)
                .or_else(|| Some(nothing_more()));
        }
        self.transcript
            .push(branch, EventBody::Compacted(compacted));
        is_summary
    }

    fn keep_as_custom(&mut self, branch: BranchIndex, message: &Message<'_>) {
        let custom = Custom {
            type_name: MESSAGE_TYPE.to_owned(),
            content_type: "application/json".to_owned(),
            data: bytes::Bytes::copy_from_slice(message.text.as_bytes()),
            text: String::new(),
            delta_of: String::new(),
        };
        self.transcript.push(branch, EventBody::Custom(custom));
    }

    fn speak(&mut self, branch: BranchIndex, role: Role, message: &Message<'_>) {
        let mut appended = typed_message(role, &message.value);
        let calls = match (role, &message.value["tool_calls"]) {
            (Role::Assistant, Value::Array(calls)) => self.typed_calls(calls),
            _ => Vec::new(),
        };
        let listed: Vec<_> = calls.iter().collect();
        let rendered = canonical::message(&appended, &listed, self.transcript.occurred_at);
        appended.raw = self.keep(rendered, message);
        let revision = self
            .transcript
            .push(branch, EventBody::MessageAppended(appended));
        for call in calls {
            self.transcript.request(branch, revision, call);
        }
    }

    fn typed_calls(&mut self, calls: &[Value]) -> Vec<ToolCallRequested> {
        let mut typed = Vec::with_capacity(calls.len());
        for call in calls {
            let Some(call) = typed_call(call) else {
                self.transcript.note(Oddity::CallNotTyped);
                continue;
            };
            // A call without arguments is normal.
            if call.arguments_not_json && !call.arguments.is_absent() {
                let call_id = call.call_id.clone();
                self.transcript.note(Oddity::ArgumentsNotJson { call_id });
            }
            self.tools.insert(call.call_id.clone(), call.tool.clone());
            typed.push(call);
        }
        typed
    }

    fn answer(&mut self, branch: BranchIndex, message: &Message<'_>) {
        let call_id = short(&message.value["tool_call_id"]).unwrap_or_default();
        if !self.transcript.is_open(branch, &call_id) {
            self.transcript.note(Oddity::OrphanResult { call_id });
            self.speak(branch, Role::Tool, message);
            return;
        }
        let x = &message.value["x"];
        let error_message = x["error"].as_str().unwrap_or_default().to_owned();
        let failed = x["is_error"].as_bool().unwrap_or(!error_message.is_empty());
        let mut result = ToolResultRecorded {
            call_id,
            success: !failed,
            error_message,
            execution_time_ms: None,
            parts: content::read(message.value.get("content")),
            structured: JsonText::default(),
            raw: None,
        };
        let tool = self.tools.get(&result.call_id).map_or("", String::as_str);
        let rendered = canonical::result(&result, tool, self.transcript.occurred_at);
        result.raw = self.keep(rendered, message);
        self.transcript
            .push(branch, EventBody::ToolResultRecorded(result));
    }

    fn keep(&mut self, rendered: Value, message: &Message<'_>) -> Option<RawMessage> {
        if !numbers_survive(message.text) {
            self.transcript.note(Oddity::NumberTooPrecise);
        }
        let source = raw::SentMessage {
            origin: ORIGIN,
            provider: "",
            model: "",
            value: &message.value,
            text: message.text,
        };
        raw::keep(&source, rendered, &[String::new()])
    }
}

fn tokens_before(message: &Value) -> u64 {
    let x = &message["x"];
    [
        &x["compact_boundary"]["preTokens"],
        &x["compaction"]["tokensBefore"],
    ]
    .iter()
    .find_map(|value| value.as_u64())
    .unwrap_or_default()
}

/// Returns the first message that a source kept, or a later one. pi counts entries of its file, and
/// the first and a few others are not messages, so the index may be too high. That is precise
/// enough, because a compaction cuts at the start of a turn.
fn kept_from(message: &Value) -> Option<usize> {
    let entry = message["x"]["compaction"]["firstKeptEntryIndex"].as_u64()?;
    usize::try_from(entry).ok()?.checked_sub(1)
}

pub(super) fn typed_message(role: Role, value: &Value) -> MessageAppended {
    let mut parts = Vec::new();
    if let Some(text) = value["reasoning_content"].as_str() {
        parts.push(ContentPart::Reasoning(Reasoning {
            text: text.to_owned(),
            ..Reasoning::default()
        }));
    }
    parts.extend(content::read(value.get("content")));
    let name = short(&value["name"]).unwrap_or_default();
    let x = &value["x"];
    let mut message = MessageAppended {
        usage: canonical::read_usage(&x["usage"]),
        finish_reason: short(&x["stop"]).unwrap_or_default(),
        ..MessageAppended::new(role, parts)
    };
    if role == Role::Tool {
        message.tool_call_id = short(&value["tool_call_id"]).unwrap_or_default();
        message.tool_name = name;
    } else {
        message.author = name;
    }
    message
}

/// Returns the tool definitions in a list.
pub(super) fn tools(list: &Value) -> Vec<ToolDefinition> {
    let text = RawValue::from_string(list.to_string());
    text.map(|text| tools::read(&text)).unwrap_or_default()
}

/// Returns a call; `None` without a usable id and name.
pub(super) fn typed_call(call: &Value) -> Option<ToolCallRequested> {
    let function = &call["function"];
    let call_id = short(&call["id"]).filter(|id| !id.is_empty())?;
    let tool = short(&function["name"]).filter(|name| !name.is_empty())?;
    let text = function["arguments"].as_str()?;
    let text = bytes::Bytes::copy_from_slice(text.as_bytes());
    let (arguments, arguments_not_json) = content::arguments(text);
    Some(ToolCallRequested {
        call_id,
        tool,
        arguments_hash: ContentHash(blake3::hash(arguments.as_bytes()).into()),
        arguments,
        arguments_not_json,
        ..ToolCallRequested::default()
    })
}

#[cfg(test)]
mod pi_tests;
#[cfg(test)]
mod tests;
