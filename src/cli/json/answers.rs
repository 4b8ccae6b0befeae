//! Answers of the services as JSON objects. Field names are what scripts rely
//! on: they are only ever added to.

use prost_types::Timestamp;

use super::{
    super::pb,
    Array, Object,
    body::{cancel_name, config_json, kind_name, parent_json, role_name},
    rfc3339,
};

/// A place in the log.
#[must_use]
pub fn position(position: &pb::Position) -> String {
    let mut object = Object::new();
    object
        .number("shard", position.shard.into())
        .number("offset", position.offset);
    object.finish()
}

pub(super) fn time(object: &mut Object, key: &str, time: Option<&Timestamp>) {
    object.string_or_null(key, time.and_then(rfc3339).as_deref());
}

/// A conversation in a list.
#[must_use]
pub fn summary(summary: &pb::ConversationSummary) -> String {
    let mut object = Object::new();
    write_summary(summary, &mut object);
    object.finish()
}

fn write_summary(summary: &pb::ConversationSummary, object: &mut Object) {
    object
        .string("conversation", &summary.conversation_id)
        .string("source_id", &summary.source_id)
        .string("title", &summary.title)
        .number("branches", summary.branch_count)
        .number("head", summary.head)
        .string("source", &summary.source)
        .string("active_branch", &summary.active_branch)
        .boolean("sealed", summary.sealed);
    time(object, "created_at", summary.created_at.as_ref());
    time(object, "updated_at", summary.updated_at.as_ref());
    time(object, "happened_from", summary.happened_from.as_ref());
    time(object, "happened_to", summary.happened_to.as_ref());
    object.map_if("labels", &summary.labels);
    if let Some(config) = &summary.config {
        object.raw("config", &config_json(config));
    }
    if let Some(parent) = &summary.parent {
        object
            .raw("parent", &parent_json(parent))
            .boolean("shares_history", summary.shares_history);
    }
    object.bytes_if("source_meta", &summary.source_meta);
    if let Some(damage) = &summary.damage {
        let mut mark = Object::new();
        mark.number("revision", damage.revision)
            .raw("position", &position(&damage.position.unwrap_or_default()))
            .string("what", &damage.what);
        object.raw("damage", &mark.finish());
    }
}

fn write_branch(branch: &pb::Branch, object: &mut Object) {
    object
        .string("name", &branch.name)
        .number("branch_id", branch.branch_id)
        .number("parent_branch_id", branch.parent_branch_id)
        .number("fork_revision", branch.fork_revision)
        .number("head", branch.head)
        .boolean("archived", branch.archived)
        .boolean("active", branch.active);
}

/// One branch.
#[must_use]
pub fn branch(branch: &pb::Branch) -> String {
    let mut object = Object::new();
    write_branch(branch, &mut object);
    object.finish()
}

/// A conversation with its branches and the state of one; `counts` writes what
/// was counted on each.
#[must_use]
pub fn conversation(
    state: &pb::ConversationState,
    mut counts: impl FnMut(&pb::Branch, &mut Object),
) -> String {
    let mut object = Object::new();
    if let Some(summary) = &state.summary {
        write_summary(summary, &mut object);
    }
    let branches = Array::of(&state.branches, |branch| {
        let mut object = Object::new();
        write_branch(branch, &mut object);
        counts(branch, &mut object);
        object.finish()
    });
    object.raw("branch_list", &branches);
    if let Some(branch) = &state.branch {
        object.raw("branch", &branch_state(branch));
    }
    object.finish()
}

fn branch_state(state: &pb::BranchState) -> String {
    let calls = Array::of(&state.open_calls, |call| {
        let mut object = Object::new();
        object
            .string("call_id", &call.call_id)
            .string("tool", &call.tool)
            .raw("request", &reference(call.request.as_ref()))
            .string("approval", approval_name(call.approval()))
            .hex_if("arguments_hash", &call.arguments_hash)
            .boolean("started", call.started);
        object.finish()
    });
    let mut object = Object::new();
    object
        .string("name", &state.name)
        .number("branch_id", state.branch_id)
        .number("head", state.head)
        .raw("open_calls", &calls);
    for (key, event) in [
        ("system_prompt", &state.system_prompt),
        ("user_prompt", &state.user_prompt),
        ("tools_defined", &state.tools_defined),
        ("summary", &state.summary),
        ("compaction", &state.compaction),
    ] {
        object.raw(key, &reference(event.as_ref()));
    }
    object
        .entries_if(
            "active_context",
            &state.active_context,
            |object, key, event| {
                object.raw(key, &reference(Some(event)));
            },
        )
        .raw(
            "discovered_tools",
            &Array::of_strings(&state.discovered_tools),
        )
        .entries_if("tool_uses", &state.tool_uses, number_entry)
        .number_if("cut_revision", state.cut_revision)
        .number("finished_turns", state.finished_turns)
        .boolean("turn_open", state.turn_open);
    if let Some(config) = &state.config {
        object.raw("config", &config_json(config));
    }
    object.finish()
}

/// An event by its place; null when there is none.
pub(super) fn reference(event: Option<&pb::EventRef>) -> String {
    let Some(event) = event else {
        return "null".into();
    };
    let mut object = Object::new();
    object
        .string("conversation", &event.conversation_id)
        .number("revision", event.revision);
    object.finish()
}

fn number_entry(object: &mut Object, key: &str, value: &u64) {
    object.number(key, *value);
}

/// What was decided about a call, or not yet.
#[must_use]
pub fn approval_name(status: pb::ApprovalStatus) -> &'static str {
    match status {
        pb::ApprovalStatus::NotRequired => "not_required",
        pb::ApprovalStatus::Pending => "pending",
        pb::ApprovalStatus::Approved => "approved",
        pb::ApprovalStatus::Denied => "denied",
        pb::ApprovalStatus::Expired => "expired",
        pb::ApprovalStatus::Unspecified => "",
    }
}

/// Where a call stands.
#[must_use]
pub fn status_name(status: pb::CallStatus) -> &'static str {
    match status {
        pb::CallStatus::Requested => "requested",
        pb::CallStatus::PendingApproval => "pending_approval",
        pb::CallStatus::Approved => "approved",
        pb::CallStatus::Denied => "denied",
        pb::CallStatus::Expired => "expired",
        pb::CallStatus::Started => "started",
        pb::CallStatus::Succeeded => "succeeded",
        pb::CallStatus::Failed => "failed",
        pb::CallStatus::Cancelled => "cancelled",
        pb::CallStatus::Unspecified => "",
    }
}

/// A tool call, as it stands.
#[must_use]
pub fn pending_call(call: &pb::ToolCall) -> String {
    let mut object = Object::new();
    object
        .string("conversation", &call.conversation_id)
        .string("branch", &call.branch)
        .number("branch_id", call.branch_id)
        .string("call_id", &call.call_id)
        .string("tool", &call.tool)
        .bytes("arguments", &call.arguments)
        .hex_if("arguments_hash", &call.arguments_hash)
        .number("request_revision", call.request_revision)
        .string("status", status_name(call.status()))
        .string("approval", approval_name(call.approval()))
        .string_if("decided_by", &call.decided_by)
        .string_if("decision_reason", &call.decision_reason)
        .string_if("error_message", &call.error_message)
        .string_if("cancel_reason", cancel_name(call.cancel_reason()));
    time(&mut object, "requested_at", call.requested_at.as_ref());
    object.finish()
}

/// A new branch, or a conversation that shares history.
#[must_use]
pub fn fork(answer: &pb::ForkResponse) -> String {
    let mut object = Object::new();
    object.string("conversation", &answer.conversation_id);
    if let Some(new) = &answer.branch {
        let mut branch = Object::new();
        write_branch(new, &mut branch);
        object.raw("branch", &branch.finish());
    }
    object.finish()
}

/// A search hit.
#[must_use]
pub fn hit(hit: &pb::SearchHit) -> String {
    let mut object = Object::new();
    object
        .string("conversation", &hit.conversation_id)
        .string("source_id", &hit.source_id)
        .string("branch", &hit.branch)
        .number("revision", hit.revision)
        .string("call_id", &hit.call_id)
        .string("tool", &hit.tool)
        .float("score", f64::from(hit.score))
        .number("line", hit.line)
        .number("byte_start", hit.byte_start)
        .number("byte_end", hit.byte_end)
        .string("snippet", &hit.snippet)
        .string("kind", &kind_name(hit.kind))
        .number("branch_id", hit.branch_id);
    if let Some(success) = hit.success {
        object.boolean("success", success);
    }
    let highlights = Array::of(&hit.highlights, |range| {
        format!("[{},{}]", range.start, range.end)
    });
    object.raw("highlights", &highlights);
    time(&mut object, "recorded_at", hit.recorded_at.as_ref());
    time(&mut object, "happened_at", hit.happened_at.as_ref());
    for (key, text) in [
        ("title", &hit.title),
        ("path", &hit.path),
        ("command", &hit.command),
        ("context", &hit.context),
    ] {
        if !text.is_empty() {
            object.string(key, text);
        }
    }
    if hit.role != 0 {
        object.string("role", role_name(hit.role));
    }
    if hit.context_line > 0 {
        object.number("context_line", hit.context_line);
    }
    let passage = format!(
        "{{\"line\":{},\"byte_start\":{},\"byte_end\":{}}}",
        hit.passage_line, hit.passage_byte_start, hit.passage_byte_end
    );
    object.raw("passage", &passage);
    if let Some(scores) = &hit.scores {
        let mut of = Object::new();
        for (key, value) in [
            ("words", scores.words),
            ("order", scores.order),
            ("nearness", scores.nearness),
            ("names", scores.names),
            ("shortness", scores.shortness),
            ("kind", scores.kind),
        ] {
            of.float(key, f64::from(value));
        }
        object.raw("scores", &of.finish());
    }
    object.finish()
}

/// What a search found in one conversation.
#[must_use]
pub fn conversation_hits(hits: &pb::ConversationHits) -> String {
    let mut object = Object::new();
    object
        .string("conversation", &hits.conversation_id)
        .string("source_id", &hits.source_id)
        .string("title", &hits.title)
        .number("hits", hits.hits)
        .float("score", f64::from(hits.score));
    object.finish()
}

/// The store in numbers.
#[must_use]
pub fn stats(stats: &pb::StatsResponse) -> String {
    let mut object = Object::new();
    object
        .string("version", &stats.version)
        .string("data_dir", &stats.data_dir)
        .number("conversations", stats.conversations)
        .number("branches", stats.branches)
        .number("events", stats.events)
        .number("pending_approvals", stats.pending_approvals)
        .entries_if("events_by_kind", &stats.events_by_kind, number_entry);
    for (key, place) in [
        ("head", stats.head),
        ("views_reached", stats.views_reached),
        ("index_reached", stats.index_reached),
    ] {
        object.raw(key, &position(&place.unwrap_or_default()));
    }
    object
        .number("log_bytes", stats.log_bytes)
        .number("views_bytes", stats.views_bytes)
        .number("index_bytes", stats.index_bytes)
        .number("log_segments", stats.log_segments)
        .number("indexed_documents", stats.indexed_documents)
        .number("damaged_conversations", stats.damaged_conversations)
        .number("unreadable_positions", stats.unreadable_positions)
        .number("damaged_reads", stats.damaged_reads)
        .string_if("first_damage", &stats.first_damage);
    time(&mut object, "started_at", stats.started_at.as_ref());
    object.finish()
}

/// Something that is not as it should be.
#[must_use]
pub fn verify_fault(fault: &pb::Fault) -> String {
    let mut object = Object::new();
    object
        .string("fault", &fault.part)
        .string("message", &fault.message)
        .string_if("conversation", &fault.conversation_id)
        .number_if("revision", fault.revision);
    if let Some(place) = &fault.position {
        object.raw("position", &position(place));
    }
    object.finish()
}

/// Whether all is sound.
#[must_use]
pub fn verify_outcome(outcome: &pb::VerifyOutcome) -> String {
    let mut object = Object::new();
    object
        .boolean("sound", outcome.sound)
        .number("events", outcome.events)
        .number("conversations", outcome.conversations)
        .number("blobs", outcome.blobs)
        .number("faults", outcome.faults);
    object.finish()
}
