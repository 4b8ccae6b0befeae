//! Converts protobuf spans to plain values. Only attributes relevant to conversations are kept.

use base64::{Engine, engine::general_purpose::STANDARD};
use opentelemetry_proto::tonic::{
    common::v1::{AnyValue, KeyValue, any_value::Value as Any},
    resource::v1::Resource,
    trace::v1::{Span as PbSpan, status::StatusCode},
};
use serde_json::{Map, Value};

use treering_domain::{TimestampMicros, limits::SHORT_TEXT_BYTES_MAX};
use treering_otel::Span;

/// Prefixes of attributes that are relevant to conversations.
const PREFIXES: [&str; 8] = [
    "gen_ai.",
    "llm.",
    "openinference.",
    "pydantic_ai.",
    "tool",
    "session.id",
    "input.value",
    "output.value",
];

/// Prefixes that identify a span of a model, tool or agent: at least one attribute has one of them,
/// or the name of an event has the first one.
const TELLING: [&str; 3] = ["gen_ai.", "llm.", "openinference."];

/// Prefix of the service name of SDKs that have no configured name.
const NAMELESS: &str = "unknown_service";

/// Returns the name of the service that sent spans, or an empty text.
pub(super) fn service(resource: Option<&Resource>) -> String {
    let attributes = resource.map_or(&[][..], |resource| &resource.attributes);
    let name = attributes.iter().find(|it| it.key == "service.name");
    match name.and_then(|it| it.value.as_ref()?.value.as_ref()) {
        Some(Any::StringValue(name))
            if !name.starts_with(NAMELESS) && name.len() <= SHORT_TEXT_BYTES_MAX =>
        {
            name.clone()
        }
        _ => String::new(),
    }
}

/// Returns a span and its name, or `None` when it is not of a model, tool or agent.
pub(super) fn span(span: PbSpan) -> Option<(String, Span)> {
    let tells = |of: &[KeyValue]| {
        of.iter()
            .any(|it| TELLING.iter().any(|prefix| it.key.starts_with(prefix)))
    };
    let has_events = span
        .events
        .iter()
        .any(|event| event.name.starts_with("gen_ai."));
    if !tells(&span.attributes) && !has_events {
        return None;
    }
    let status = span.status.unwrap_or_default();
    let error = (status.code() == StatusCode::Error).then_some(status.message);
    let events = span.events.into_iter();
    let events = events.filter(|event| event.name.starts_with("gen_ai."));
    let read = Span {
        trace_id: hex(&span.trace_id),
        span_id: hex(&span.span_id),
        is_root: span.parent_span_id.is_empty(),
        start: time(span.start_time_unix_nano),
        end: time(span.end_time_unix_nano),
        error,
        attributes: attributes(span.attributes, |name| {
            PREFIXES.iter().any(|prefix| name.starts_with(prefix))
                || name.starts_with("traceloop.association.")
        }),
        events: events
            .map(|event| (event.name, attributes(event.attributes, |_| true)))
            .collect(),
    };
    Some((span.name, read))
}

fn attributes(of: Vec<KeyValue>, wanted: impl Fn(&str) -> bool) -> Map<String, Value> {
    let wanted = of.into_iter().filter(|it| wanted(&it.key));
    wanted.map(|it| (it.key, value(it.value))).collect()
}

fn value(any: Option<AnyValue>) -> Value {
    match any.and_then(|any| any.value) {
        None => Value::Null,
        Some(Any::StringValue(text)) => text.into(),
        Some(Any::BoolValue(flag)) => flag.into(),
        Some(Any::IntValue(number)) => number.into(),
        Some(Any::DoubleValue(number)) => number.into(),
        Some(Any::ArrayValue(list)) => {
            let values = list.values.into_iter();
            values.map(|it| value(Some(it))).collect()
        }
        Some(Any::KvlistValue(list)) => Value::Object(attributes(list.values, |_| true)),
        Some(Any::BytesValue(bytes)) => STANDARD.encode(bytes).into(),
        // An index into a string table of another signal.
        Some(_) => Value::Null,
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn time(nanos: u64) -> TimestampMicros {
    TimestampMicros(i64::try_from(nanos / 1_000).unwrap_or(i64::MAX))
}
