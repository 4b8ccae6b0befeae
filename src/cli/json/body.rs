//! Events as JSON: the whole envelope, and the body by its kind.

use prost::Message;
use prost_types::Timestamp;

use super::{
    super::pb::{self, event::Body},
    Array, Object,
    object::hex,
    rfc3339,
};
use crate::domain::EventKind;

/// A stored event as one JSON object.
#[must_use]
pub fn event(event: &pb::Event) -> String {
    let time = |time: &Option<Timestamp>| time.as_ref().and_then(rfc3339);
    let position = event.position.unwrap_or_default();
    let mut object = Object::new();
    object
        .string("id", &event.id)
        .string("conversation", &event.conversation_id)
        .number("branch_id", event.branch_id)
        .string("branch", &event.branch)
        .number("revision", event.revision)
        .raw("position", &super::answers::position(&position))
        .string("kind", &kind_name(event.kind))
        .string_or_null("recorded_at", time(&event.recorded_at).as_deref())
        .string_or_null("occurred_at", time(&event.occurred_at).as_deref())
        .string("actor", &event.actor)
        .string("causation_id", &event.causation_id)
        .string("correlation_id", &event.correlation_id)
        .string("chain_hash", &hex(&event.chain_hash));
    match &event.body {
        Some(body) => object.raw("body", &body_json(body)),
        None => object.raw("body", "null"),
    };
    object.finish()
}

/// A kind's name; its number when this version does not know it.
#[must_use]
pub fn kind_name(kind: i32) -> String {
    u16::try_from(kind)
        .ok()
        .and_then(EventKind::from_number)
        .map_or_else(|| format!("kind_{kind}"), |kind| kind.as_str().to_owned())
}

/// A body that cannot be decoded is shown as it is: the log must stay readable.
fn body_json(body: &Body) -> String {
    let (bytes, written) = write_body(body);
    written.unwrap_or_else(|_| {
        let mut object = Object::new();
        object.base64_if("undecodable", bytes);
        object.finish()
    })
}

type Written = Result<String, prost::DecodeError>;

fn with<M: Message + Default>(bytes: &[u8], write: impl FnOnce(&M, &mut Object)) -> Written {
    let message = M::decode(bytes)?;
    let mut object = Object::new();
    write(&message, &mut object);
    Ok(object.finish())
}

/// Every kind, one arm each: the compiler names one that is forgotten.
fn write_body(body: &Body) -> (&[u8], Written) {
    match body {
        Body::ConversationCreated(b) => (b, with(b, conversation_created)),
        Body::ConfigChanged(b) => (b, with(b, config_changed)),
        Body::BranchForked(b) => (b, with(b, branch_forked)),
        Body::BranchActivated(b) => (b, with(b, |_: &pb::BranchActivated, _| {})),
        Body::BranchRenamed(b) => (b, with(b, branch_renamed)),
        Body::BranchArchived(b) => (b, with(b, branch_archived)),
        Body::SystemPromptSet(b) => (b, with(b, system_prompt)),
        Body::UserPromptSet(b) => (b, with(b, user_prompt)),
        Body::MessageAppended(b) => (b, with(b, message)),
        Body::ToolCallRequested(b) => (b, with(b, call_requested)),
        Body::ApprovalDecided(b) => (b, with(b, approval_decided)),
        Body::ToolCallStarted(b) => (b, with(b, call_started)),
        Body::ToolResultRecorded(b) => (b, with(b, result_recorded)),
        Body::ToolCallCancelled(b) => (b, with(b, call_cancelled)),
        Body::ToolSnapshotRecorded(b) => (b, with(b, snapshot)),
        Body::ContextSet(b) => (b, with(b, context_set)),
        Body::ContextRemoved(b) => (b, with(b, context_removed)),
        Body::ToolsDiscovered(b) => (b, with(b, tools_discovered)),
        Body::GuidanceGiven(b) => (b, with(b, guidance)),
        Body::EntitiesNoted(b) => (b, with(b, entities)),
        Body::SummaryRecorded(b) => (b, with(b, summary)),
        Body::Compacted(b) => (b, with(b, compacted)),
        Body::SubContextSpawned(b) => (b, with(b, spawned)),
        Body::SubContextReturned(b) => (b, with(b, returned)),
        Body::ConversationSealed(b) => (b, with(b, sealed)),
        Body::ToolsDefined(b) => (b, with(b, tools_defined)),
        Body::AnnotationAdded(b) => (b, with(b, annotation)),
        Body::Custom(b) => (b, with(b, custom)),
        Body::ContentErased(b) => (b, with(b, erased)),
    }
}

fn conversation_created(m: &pb::ConversationCreated, o: &mut Object) {
    o.string_if("title", &m.title);
    if let Some(config) = &m.config {
        o.raw("config", &config_json(config));
    }
    o.map_if("labels", &m.labels);
    if let Some(parent) = &m.parent {
        o.raw("parent", &parent_json(parent));
    }
    o.boolean_if("shares_history", m.shares_history)
        .entries_if("policies", &m.policies, json_entry)
        .string_if("source", &m.source)
        .string_if("source_id", &m.source_id)
        .bytes_if("source_meta", &m.source_meta);
}

fn json_entry(object: &mut Object, key: &str, value: &String) {
    object.bytes(key, value.as_bytes());
}

/// Model settings.
pub(super) fn config_json(config: &pb::Config) -> String {
    let mut object = Object::new();
    object
        .string_if("model_id", &config.model_id)
        .string_if("mode", &config.mode)
        .entries_if("parameters", &config.parameters, json_entry);
    object.finish()
}

/// Where a conversation came from.
pub(super) fn parent_json(parent: &pb::ParentRef) -> String {
    let mut object = Object::new();
    object
        .string("conversation", &parent.conversation_id)
        .number("branch_id", parent.branch_id)
        .number("revision", parent.revision)
        .string_if("call_id", &parent.call_id);
    object.finish()
}

fn config_changed(m: &pb::ConfigChanged, o: &mut Object) {
    if let Some(config) = &m.config {
        o.raw("config", &config_json(config));
    }
}

fn branch_forked(m: &pb::BranchForked, o: &mut Object) {
    o.string("name", &m.name)
        .number("parent_branch_id", m.parent_branch_id)
        .number("fork_revision", m.fork_revision)
        .string_if("system_prompt", &m.system_prompt);
}

fn branch_renamed(m: &pb::BranchRenamed, o: &mut Object) {
    o.string("name", &m.name);
}

fn branch_archived(m: &pb::BranchArchived, o: &mut Object) {
    o.string_if("reason", &m.reason);
}

fn system_prompt(m: &pb::SystemPromptSet, o: &mut Object) {
    o.string_if("id", &m.id).string("content", &m.content);
}

fn user_prompt(m: &pb::UserPromptSet, o: &mut Object) {
    o.string_if("id", &m.id).string("content", &m.content);
}

fn message(m: &pb::MessageAppended, o: &mut Object) {
    o.string("role", role_name(m.role))
        .raw("parts", &Array::of(&m.parts, part))
        .string_if("author", &m.author);
    if let Some(usage) = &m.usage {
        o.raw("usage", &usage_json(usage));
    }
    raw_message(m.raw.as_ref(), o);
    o.string_if("message_id", &m.message_id)
        .string_if("finish_reason", &m.finish_reason)
        .string_if("tool_call_id", &m.tool_call_id)
        .string_if("tool_name", &m.tool_name);
}

/// The name that providers use for a role.
#[must_use]
pub fn role_name(role: i32) -> &'static str {
    match pb::Role::try_from(role) {
        Ok(pb::Role::System) => "system",
        Ok(pb::Role::Developer) => "developer",
        Ok(pb::Role::User) => "user",
        Ok(pb::Role::Assistant) => "assistant",
        Ok(pb::Role::Tool) => "tool",
        Ok(pb::Role::Unspecified) | Err(_) => "unknown",
    }
}

fn part(part: &pb::ContentPart) -> String {
    use pb::content_part::Part;
    let mut object = Object::new();
    match &part.part {
        Some(Part::Text(text)) => object.string("text", text),
        Some(Part::Refusal(text)) => object.string("refusal", text),
        Some(Part::Json(text)) => object.bytes("json", text.as_bytes()),
        Some(Part::Image(media)) => object.raw("image", &media_json(media)),
        Some(Part::File(media)) => object.raw("file", &media_json(media)),
        Some(Part::Audio(media)) => object.raw("audio", &media_json(media)),
        Some(Part::Reasoning(reasoning)) => object.raw("reasoning", &reasoning_json(reasoning)),
        None => &mut object,
    };
    object.finish()
}

fn media_json(media: &pb::Media) -> String {
    use pb::media::Source;
    let mut object = Object::new();
    object
        .string_if("media_type", &media.media_type)
        .string_if("name", &media.name)
        .string_if("detail", &media.detail);
    match &media.source {
        Some(Source::Data(data)) => object.base64_if("base64", data),
        Some(Source::Uri(uri)) => object.string("uri", uri),
        None => &mut object,
    };
    object.finish()
}

fn reasoning_json(reasoning: &pb::Reasoning) -> String {
    let mut object = Object::new();
    object
        .string("text", &reasoning.text)
        .base64_if("signature", &reasoning.signature)
        .boolean_if("redacted", reasoning.redacted)
        .string_if("provider", &reasoning.provider)
        .string_if("model", &reasoning.model)
        .string_if("id", &reasoning.id);
    object.finish()
}

fn usage_json(usage: &pb::Usage) -> String {
    let mut object = Object::new();
    object
        .number("input_tokens", usage.input_tokens)
        .number("output_tokens", usage.output_tokens)
        .number_if("cache_read_input_tokens", usage.cache_read_input_tokens)
        .number_if(
            "cache_creation_input_tokens",
            usage.cache_creation_input_tokens,
        )
        .number_if("reasoning_output_tokens", usage.reasoning_output_tokens)
        .string_if("model", &usage.model);
    object.finish()
}

fn raw_message(raw: Option<&pb::RawMessage>, o: &mut Object) {
    let Some(raw) = raw else { return };
    let encoding = match raw.encoding() {
        pb::RawEncoding::Whole => "whole",
        pb::RawEncoding::JsonPatch => "json_patch",
        pb::RawEncoding::Unspecified => "",
    };
    let mut object = Object::new();
    object
        .string("origin", &raw.origin)
        .string_if("provider", &raw.provider)
        .string_if("model", &raw.model)
        .string_if("encoding", encoding)
        .bytes_if("data", &raw.data);
    o.raw("raw", &object.finish());
}

fn call_requested(m: &pb::ToolCallRequested, o: &mut Object) {
    o.string("call_id", &m.call_id)
        .string("tool", &m.tool)
        .bytes("arguments", &m.arguments)
        .number_if("message_revision", m.message_revision)
        .boolean(
            "needs_approval",
            m.approval() == pb::ApprovalRequirement::Pending,
        );
}

fn approval_decided(m: &pb::ApprovalDecided, o: &mut Object) {
    let decision = match m.decision() {
        pb::Decision::Approved => "approved",
        pb::Decision::Denied => "denied",
        pb::Decision::Expired => "expired",
        pb::Decision::Unspecified => "",
    };
    o.string("call_id", &m.call_id)
        .string("decision", decision)
        .hex_if("arguments_hash", &m.arguments_hash)
        .string_if("decided_by", &m.decided_by)
        .string_if("reason", &m.reason);
}

fn call_started(m: &pb::ToolCallStarted, o: &mut Object) {
    o.string("call_id", &m.call_id)
        .string_if("executor", &m.executor);
}

fn result_recorded(m: &pb::ToolResultRecorded, o: &mut Object) {
    o.string("call_id", &m.call_id)
        .boolean("success", m.success)
        .string_if("error_message", &m.error_message);
    if let Some(milliseconds) = m.execution_time_ms {
        o.number("execution_time_ms", milliseconds);
    }
    o.raw("parts", &Array::of(&m.parts, part))
        .bytes_if("structured", &m.structured);
    raw_message(m.raw.as_ref(), o);
}

fn call_cancelled(m: &pb::ToolCallCancelled, o: &mut Object) {
    o.string("call_id", &m.call_id)
        .string("reason", cancel_name(m.reason()))
        .string_if("detail", &m.detail);
}

/// Why a call ended without a result.
#[must_use]
pub fn cancel_name(reason: pb::CancelReason) -> &'static str {
    match reason {
        pb::CancelReason::Denied => "denied",
        pb::CancelReason::Interrupted => "interrupted",
        pb::CancelReason::TimedOut => "timed_out",
        pb::CancelReason::Superseded => "superseded",
        pb::CancelReason::Unspecified => "",
    }
}

fn snapshot(m: &pb::ToolSnapshotRecorded, o: &mut Object) {
    o.string("call_id", &m.call_id)
        .number("request_revision", m.request_revision)
        .string("summary", &m.summary);
}

fn context_set(m: &pb::ContextSet, o: &mut Object) {
    o.string("key", &m.key)
        .bytes("value", &m.value)
        .string_if("provider", &m.provider);
}

fn context_removed(m: &pb::ContextRemoved, o: &mut Object) {
    o.string("key", &m.key);
}

fn tools_discovered(m: &pb::ToolsDiscovered, o: &mut Object) {
    o.raw("names", &Array::of_strings(&m.names));
}

fn guidance(m: &pb::GuidanceGiven, o: &mut Object) {
    let items = Array::of(&m.guidance, |item| {
        let mut object = Object::new();
        object.string("tool", &item.tool).string("text", &item.text);
        object.finish()
    });
    o.raw("guidance", &items);
}

fn entities(m: &pb::EntitiesNoted, o: &mut Object) {
    let items = Array::of(&m.entities, |item| {
        let mut object = Object::new();
        object
            .string("id", &item.id)
            .string_if("kind", &item.kind)
            .string_if("name", &item.name);
        object.finish()
    });
    o.raw("entities", &items);
}

fn summary(m: &pb::SummaryRecorded, o: &mut Object) {
    o.string("content", &m.content)
        .number("from_revision", m.from_revision)
        .number("to_revision", m.to_revision);
}

fn compacted(m: &pb::Compacted, o: &mut Object) {
    let trigger = match m.trigger() {
        pb::CompactionTrigger::Threshold => "threshold",
        pb::CompactionTrigger::Manual => "manual",
        pb::CompactionTrigger::Imported => "imported",
        pb::CompactionTrigger::Unspecified => "",
    };
    o.string("summary", &m.summary)
        .number("cut_revision", m.cut_revision)
        .number_if("kept_turns", m.kept_turns.into())
        .number_if("tokens_before", m.tokens_before)
        .number_if("tokens_after", m.tokens_after)
        .string_if("trigger", trigger);
    raw_message(m.raw.as_ref(), o);
}

fn spawned(m: &pb::SubContextSpawned, o: &mut Object) {
    o.string("conversation", &m.conversation_id)
        .string_if("call_id", &m.call_id)
        .string_if("purpose", &m.purpose);
}

fn returned(m: &pb::SubContextReturned, o: &mut Object) {
    o.string("conversation", &m.conversation_id)
        .string_if("summary", &m.summary)
        .string_if("call_id", &m.call_id);
}

fn sealed(m: &pb::ConversationSealed, o: &mut Object) {
    o.string_if("reason", &m.reason)
        .string_if("summary", &m.summary);
}

fn tools_defined(m: &pb::ToolsDefined, o: &mut Object) {
    let items = Array::of(&m.tools, |tool| {
        let mut object = Object::new();
        object
            .string("name", &tool.name)
            .string_if("description", &tool.description)
            .bytes_if("input_schema", &tool.input_schema)
            .string_if("source", &tool.source)
            .boolean(
                "needs_approval",
                tool.approval() == pb::ApprovalRequirement::Pending,
            );
        object.finish()
    });
    o.raw("tools", &items);
}

fn annotation(m: &pb::AnnotationAdded, o: &mut Object) {
    o.number_if("target_revision", m.target_revision)
        .boolean_if("whole_turn", m.whole_turn);
    if let Some(score) = m.score {
        o.float("score", score);
    }
    o.string_if("label", &m.label)
        .string_if("comment", &m.comment);
}

fn custom(m: &pb::Custom, o: &mut Object) {
    o.string("type_name", &m.type_name)
        .string_if("content_type", &m.content_type)
        .bytes_if("data", &m.data);
}

fn erased(m: &pb::ContentErased, o: &mut Object) {
    let revisions = Array::of(&m.revisions, u64::to_string);
    o.raw("revisions", &revisions)
        .string_if("reason", &m.reason);
}
