//! JSON for answers that do not correspond to exactly one message. Scripts rely on the field names:
//! fields may only be added.

use super::{Array, Object, of};
use crate::{pb, text::short_id};

/// Returns a conversation with its branches and the state of one; `counts` writes the counts of
/// each branch.
#[must_use]
pub fn conversation(
    state: &pb::ConversationState,
    mut counts: impl FnMut(&pb::Branch, &mut Object),
) -> String {
    let mut object = Object::new();
    if let Some(summary) = &state.summary {
        object.fields(summary);
    }
    let branches = Array::of(&state.branches, |branch| {
        let mut object = Object::new();
        object.fields(branch);
        counts(branch, &mut object);
        object.finish()
    });
    object.raw("branch_list", &branches);
    if let Some(branch) = &state.branch {
        object.message("branch", branch);
    }
    object.finish()
}

/// Returns a tool call with its state.
#[must_use]
pub fn pending_call(call: &pb::ToolCall) -> String {
    let mut object = Object::new();
    object.fields_as("ToolCall/pending", call);
    object.finish()
}

/// Returns a search hit.
#[must_use]
pub fn hit(hit: &pb::SearchHit) -> String {
    let mut passage = Object::new();
    passage.fields_as("SearchHit/passage", hit);
    let mut object = Object::new();
    object
        .fields(hit)
        .raw("passage", &passage.finish())
        .fields_as("SearchHit/scores", hit)
        .string(
            "address",
            &format!(
                "{}#{}",
                short_id(&hit.source_id, &hit.conversation_id),
                hit.revision
            ),
        );
    object.finish()
}

/// Returns an appended compaction.
#[must_use]
pub fn compacted(answer: &pb::CompactResponse) -> String {
    let mut object = Object::new();
    if let Some(event) = &answer.event {
        object.fields_as("Appended/place", event);
    }
    object.fields(answer);
    object.finish()
}

/// Returns the appended events, one entry each.
#[must_use]
pub fn appended(
    events: &[pb::Appended],
    repeated_key: bool,
    warnings: &[String],
    mut object: Object,
) -> String {
    object
        .raw("events", &Array::of(events, of))
        .boolean("repeated_key", repeated_key)
        .raw("warnings", &Array::of_strings(warnings));
    object.finish()
}

/// Returns a change of an active context.
#[must_use]
pub fn context_change(change: &pb::WatchContextResponse) -> String {
    use pb::watch_context_response::Item;
    let mut object = Object::new();
    match &change.item {
        Some(Item::Entry(entry)) => object.fields(entry),
        Some(Item::RemovedKey(key)) => object.string("removed", key),
        Some(Item::CaughtUp(caught_up)) => object.number("caught_up", caught_up.revision),
        None => &mut object,
    };
    object.finish()
}

/// Returns a tool that is offered, or one that was only used.
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
        object.fields_as("ToolDefinition/offered", tool);
    }
    object.finish()
}

/// Returns the knowledge without its files, variables and recent results; those are printed on
/// their own lines.
#[must_use]
pub fn knowledge(known: &pb::KnowledgeResponse) -> String {
    let mut object = Object::new();
    object
        .string("item", "knowledge")
        .number("revision", known.revision)
        .number("files", known.files.len() as u64)
        .number("analysed_files", known.variables.len() as u64)
        .fields(known);
    object.finish()
}

/// Returns a file that a result has shown.
#[must_use]
pub fn file(file: &pb::KnownFile) -> String {
    let mut object = Object::new();
    object.string("item", "file").fields(file);
    object.finish()
}

/// Returns the variables of a file. Details are JSON, as the store returns them.
#[must_use]
pub fn variables(of_file: &pb::KnownVariables) -> String {
    let mut object = Object::new();
    object.string("item", "variables").fields(of_file);
    object.finish()
}

/// Returns arguments with the values that were filled in.
#[must_use]
pub fn suggested(tool: &str, answer: &pb::SuggestArgumentsResponse) -> String {
    let mut object = Object::new();
    object.string("tool", tool).fields(answer);
    object.finish()
}
