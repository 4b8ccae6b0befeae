//! Tool calls, snapshots and tool knowledge as JSON objects.

use super::{
    super::pb,
    Array, Object,
    answers::{approval_name, reference, status_name, time},
    body::cancel_name,
};

/// A tool call with all that became of it.
#[must_use]
pub fn call(call: &pb::ToolCall) -> String {
    let mut object = Object::new();
    object
        .string("conversation", &call.conversation_id)
        .string("branch", &call.branch)
        .string("call_id", &call.call_id)
        .string("tool", &call.tool)
        .bytes("arguments", &call.arguments)
        .number("request_revision", call.request_revision)
        .string("status", status_name(call.status()))
        .string("approval", approval_name(call.approval()))
        .string_if("decided_by", &call.decided_by)
        .string_if("decision_reason", &call.decision_reason)
        .number_if("end_revision", call.end_revision)
        .string_if("error_message", &call.error_message)
        .string_if("cancel_reason", cancel_name(call.cancel_reason()));
    if let Some(milliseconds) = call.execution_time_ms {
        object.number("execution_time_ms", milliseconds);
    }
    object
        .number("result_bytes", call.result_bytes)
        .string("result_head", &call.result_head);
    time(&mut object, "requested_at", call.requested_at.as_ref());
    time(&mut object, "ended_at", call.ended_at.as_ref());
    object.finish()
}

/// A finished call in short.
#[must_use]
pub fn snapshot(snapshot: &pb::ToolSnapshot) -> String {
    let mut object = Object::new();
    object
        .string("call_id", &snapshot.call_id)
        .string("tool_name", &snapshot.tool_name)
        .bytes("arguments", &snapshot.arguments)
        .string("result_summary", &snapshot.result_summary)
        .string("full_result_ref", &snapshot.full_result_ref)
        .boolean("success", snapshot.success)
        .boolean("recorded", snapshot.recorded)
        .raw("request", &reference(snapshot.request.as_ref()));
    object.finish()
}

/// A tool on offer, or one that was only used.
#[must_use]
pub fn offered_tool(
    name: &str,
    definition: Option<&pb::ToolDefinition>,
    discovered: bool,
    uses: u64,
) -> String {
    let mut object = Object::new();
    let offered = definition.is_some_and(|tool| !tool.discoverable || discovered);
    object
        .string("tool", name)
        .boolean("defined", definition.is_some())
        .boolean("offered", offered)
        .boolean("discovered", discovered)
        .number("uses", uses);
    if let Some(tool) = definition {
        let needs_approval = tool.approval() == pb::ApprovalRequirement::Pending;
        object
            .boolean("discoverable", tool.discoverable)
            .boolean("needs_approval", needs_approval)
            .string_if("source", &tool.source)
            .string_if("description", &tool.description)
            .string_if("guidance", &tool.guidance)
            .bytes_if("input_schema", &tool.input_schema);
    }
    object.finish()
}

/// What is known, without its files, variables and recent results: those have
/// lines of their own.
#[must_use]
pub fn knowledge(known: &pb::KnowledgeResponse) -> String {
    let tools = Array::of(&known.tools, |tool| {
        let mut object = Object::new();
        object
            .string("tool", &tool.tool)
            .number("succeeded", tool.succeeded)
            .number("failed", tool.failed)
            .raw("last", &reference(tool.last.as_ref()));
        object.finish()
    });
    let directory = &known.working_directory;
    let mut object = Object::new();
    object
        .string("item", "knowledge")
        .number("revision", known.revision)
        .number("files", known.files.len() as u64)
        .number("analysed_files", known.variables.len() as u64)
        .number("left_out", known.left_out)
        .string_or_null(
            "working_directory",
            (!directory.is_empty()).then_some(directory.as_str()),
        )
        .raw(
            "working_directory_from",
            &reference(known.working_directory_from.as_ref()),
        )
        .raw("tools", &tools)
        .string("summary", &known.summary);
    object.finish()
}

/// A file that a result has shown.
#[must_use]
pub fn file(file: &pb::KnownFile) -> String {
    let mut object = Object::new();
    object
        .string("item", "file")
        .string("path", &file.path)
        .string("touch", &file.touch)
        .string("tool", &file.tool)
        .raw("event", &reference(file.event.as_ref()));
    object.finish()
}

/// The variables of a file. Details are JSON, as the store gives them.
#[must_use]
pub fn variables(of_file: &pb::KnownVariables) -> String {
    let variables = Array::of(&of_file.variables, |variable| {
        let mut object = Object::new();
        object
            .string("name", &variable.name)
            .bytes("detail", variable.detail.as_bytes());
        object.finish()
    });
    let mut object = Object::new();
    object
        .string("item", "variables")
        .string("file", &of_file.file)
        .raw("variables", &variables)
        .string("tool", &of_file.tool)
        .raw("event", &reference(of_file.event.as_ref()));
    object.finish()
}

/// Arguments with what was filled in.
#[must_use]
pub fn suggested(tool: &str, answer: &pb::SuggestArgumentsResponse) -> String {
    let suggestions = Array::of(&answer.suggestions, |suggestion| {
        let alternatives = Array::of(&suggestion.alternatives, String::clone);
        let mut object = Object::new();
        object
            .string("argument", &suggestion.argument)
            .bytes("value", suggestion.value.as_bytes())
            .raw("alternatives", &alternatives)
            .string("reason", &suggestion.reason)
            .raw("event", &reference(suggestion.event.as_ref()));
        object.finish()
    });
    let mut object = Object::new();
    object
        .string("tool", tool)
        .bytes("arguments", &answer.arguments)
        .raw("suggestions", &suggestions);
    object.finish()
}
