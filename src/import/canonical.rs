//! Renders events as OpenAI chat messages: the base of the stored JSON Patches.
//!
//! **Frozen.** Stored patches were made against exactly this rendering; changing it would damage
//! earlier imports.

use serde_json::{Map, Value, json};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::content;
use treering_domain::{
    Compacted, ContentPart, MessageAppended, Role, TimestampMicros, ToolCallRequested,
    ToolResultRecorded, Usage,
};

/// Name of the origin for raw forms that are stored as patches against this rendering.
pub(super) const ORIGIN: &str = "openai-chat";

/// Renders a message with its calls.
pub(super) fn message(
    message: &MessageAppended,
    calls: &[&ToolCallRequested],
    occurred_at: Option<TimestampMicros>,
) -> Value {
    let mut out = Map::new();
    let mut put = |key: &str, value: &str| {
        if !value.is_empty() {
            out.insert(key.to_owned(), value.into());
        }
    };
    put("role", message.role.as_str());
    put("name", &message.author);
    put("tool_call_id", &message.tool_call_id);
    put("name", &message.tool_name);
    out.insert("content".into(), content::render(&message.parts));
    if let Some(reasoning) = reasoning(&message.parts) {
        out.insert("reasoning_content".into(), reasoning.into());
    }
    if !calls.is_empty() {
        let calls = calls.iter().map(|call| tool_call(call));
        out.insert("tool_calls".into(), Value::Array(calls.collect()));
    }
    let mut x = Map::new();
    put_time(&mut x, occurred_at);
    if let Some(usage) = &message.usage {
        x.insert("usage".into(), render_usage(usage));
    }
    if !message.finish_reason.is_empty() {
        x.insert("stop".into(), message.finish_reason.as_str().into());
    }
    put_extra(out, x)
}

/// Renders a result; `tool` is the name of the called tool.
pub(super) fn result(
    result: &ToolResultRecorded,
    tool: &str,
    occurred_at: Option<TimestampMicros>,
) -> Value {
    let mut out = Map::new();
    out.insert("role".into(), "tool".into());
    out.insert("tool_call_id".into(), result.call_id.as_str().into());
    out.insert("name".into(), tool.into());
    out.insert("content".into(), content::render(&result.parts));
    let mut x = Map::new();
    put_time(&mut x, occurred_at);
    if !result.success {
        x.insert("is_error".into(), true.into());
    }
    if !result.error_message.is_empty() {
        x.insert("error".into(), result.error_message.as_str().into());
    }
    put_extra(out, x)
}

/// Renders a compaction whose summary the source sent as a message.
pub(super) fn summary(compacted: &Compacted, occurred_at: Option<TimestampMicros>) -> Value {
    let said = MessageAppended::text(Role::User, compacted.summary.as_str());
    message(&said, &[], occurred_at)
}

fn put_extra(mut out: Map<String, Value>, x: Map<String, Value>) -> Value {
    if !x.is_empty() {
        out.insert("x".into(), Value::Object(x));
    }
    Value::Object(out)
}

fn put_time(x: &mut Map<String, Value>, time: Option<TimestampMicros>) {
    if let Some(text) = time.and_then(render_time) {
        x.insert("ts".into(), text.into());
    }
}

fn tool_call(call: &ToolCallRequested) -> Value {
    json!({
        "id": call.call_id,
        "type": "function",
        "function": {"name": call.tool, "arguments": call.arguments.as_str()},
    })
}

fn reasoning(parts: &[ContentPart]) -> Option<String> {
    let texts = parts.iter().filter_map(|part| match part {
        ContentPart::Reasoning(thought) if !thought.redacted => Some(thought.text.as_str()),
        _ => None,
    });
    let texts: Vec<_> = texts.collect();
    (!texts.is_empty()).then(|| texts.join("\n"))
}

pub(super) fn render_usage(usage: &Usage) -> Value {
    let mut out = json!({
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_input_tokens": usage.cache_read_input_tokens,
        "cache_creation_input_tokens": usage.cache_creation_input_tokens,
    });
    if usage.reasoning_output_tokens != 0 {
        out["reasoning_output_tokens"] = usage.reasoning_output_tokens.into();
    }
    out
}

/// Reads token counts by the names that sources use; `None` when they are not counts.
pub(super) fn read_usage(value: &Value) -> Option<Usage> {
    let object = value.as_object()?;
    let count = |names: &[&str]| {
        names
            .iter()
            .find_map(|name| object.get(*name))
            .and_then(Value::as_u64)
    };
    Some(Usage {
        input_tokens: count(&["input_tokens", "input", "prompt_tokens"])?,
        output_tokens: count(&["output_tokens", "output", "completion_tokens"])?,
        cache_read_input_tokens: count(&["cache_read_input_tokens", "cacheRead"])
            .unwrap_or_default(),
        cache_creation_input_tokens: count(&["cache_creation_input_tokens", "cacheWrite"])
            .unwrap_or_default(),
        reasoning_output_tokens: count(&["reasoning_output_tokens"]).unwrap_or_default(),
        model: String::new(),
    })
}

/// Formats a time with milliseconds, as sources do, or with microseconds if it has some.
pub(super) fn render_time(time: TimestampMicros) -> Option<String> {
    let nanos = i128::from(time.0) * 1_000;
    let time = OffsetDateTime::from_unix_timestamp_nanos(nanos).ok()?;
    let (year, month, day) = time.to_calendar_date();
    let month = u8::from(month);
    let (hour, minute, second, micros) = time.to_hms_micro();
    let fraction = if micros % 1_000 == 0 {
        format!("{:03}", micros / 1_000)
    } else {
        format!("{micros:06}")
    };
    let date = format!("{year:04}-{month:02}-{day:02}");
    Some(format!(
        "{date}T{hour:02}:{minute:02}:{second:02}.{fraction}Z"
    ))
}

/// Parses an RFC 3339 time; `None` when it is not one.
pub(super) fn read_time(value: &Value) -> Option<TimestampMicros> {
    let time = OffsetDateTime::parse(value.as_str()?, &Rfc3339).ok()?;
    // The year 0 is valid in RFC 3339, but not in a protobuf timestamp.
    if time.year() < 1 {
        return None;
    }
    let micros = time.unix_timestamp_nanos().div_euclid(1_000);
    i64::try_from(micros).ok().map(TimestampMicros)
}
