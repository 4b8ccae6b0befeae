//! Imports sessions of pi, as that tool keeps them: JSON lines, each an entry that names its
//! predecessor (`parentId`), so that they form a tree.
//!
//! Older versions wrote sequential entries without ids.

mod blocks;
#[cfg(test)]
mod tests;
pub(super) mod write;

use std::{collections::HashMap, path::PathBuf};

use serde_json::Value;

use super::{
    ImportedConversation, canonical,
    record::Record,
    steps::{self, About, Steps, json_text, short, time},
    transcript::BranchIndex,
    tree::{Parent, Tree},
};
use treering_domain::{
    ContentPart, EventBody, MessageAppended, NameError, Role, TimestampMicros, ToolResultRecorded,
};

/// The source name of imported sessions.
pub const SOURCE: &str = "pi";

/// Returns the tool's folder of sessions (in `$PI_CODING_AGENT_DIR`, else `~/.pi/agent`).
#[must_use]
pub fn sessions_folder() -> Option<PathBuf> {
    let folder = match std::env::var_os("PI_CODING_AGENT_DIR") {
        Some(folder) if !folder.is_empty() => PathBuf::from(folder),
        _ => std::env::home_dir()?.join(".pi/agent"),
    };
    Some(folder.join("sessions"))
}

/// Returns the folder for the sessions of a working directory, below the tool's own folder.
#[must_use]
pub fn project_folder(cwd: &str) -> Option<PathBuf> {
    let plain = cwd
        .trim_start_matches(['/', '\\'])
        .replace(['/', '\\', ':'], "-");
    Some(sessions_folder()?.join(format!("--{plain}--")))
}

pub(super) fn import(name: &str, records: &[Record]) -> Result<ImportedConversation, NameError> {
    let mut steps = Steps::new(about(name, records));
    let tree = places(records);
    steps.run(
        &tree,
        records,
        |_, record| time_of(record),
        |steps, branch, index, record| {
            entry(steps, branch, &records[..index], record);
        },
    )?;
    Ok(steps.finish())
}

fn about(name: &str, records: &[Record]) -> About {
    let header = records.iter().find(|record| is_header(record));
    let fields = [
        "id",
        "cwd",
        "version",
        "timestamp",
        "parentSession",
        "branchedFrom",
    ];
    let meta = header.into_iter().flat_map(|header| {
        let field = |field: &&str| Some(((*field).to_owned(), header.value.get(*field)?.clone()));
        fields.iter().filter_map(field).collect::<Vec<_>>()
    });
    let named = records.iter().rev().find_map(|record| {
        let name = record.text_of("name").trim();
        (record.text_of("type") == "session_info" && !name.is_empty()).then(|| name.to_owned())
    });
    let id = header.map(|header| header.text_of("id"));
    let model = |record: &Record| {
        let model = &record.value["message"]["model"];
        model.as_str().map(short).filter(|model| !model.is_empty())
    };
    About {
        source: SOURCE,
        source_id: id.filter(|id| !id.is_empty()).unwrap_or(name).to_owned(),
        title: named.or_else(|| steps::title(records.iter().filter_map(prompt))),
        model: records.iter().find_map(model).unwrap_or_default(),
        meta: meta.collect(),
        began: records.iter().find_map(time_of),
    }
}

fn is_header(record: &Record) -> bool {
    record.text_of("type") == "session"
}

/// Returns what a person wrote.
fn prompt(record: &Record) -> Option<&str> {
    let message = &record.value["message"];
    if message["role"] != "user" {
        return None;
    }
    let content = &message["content"];
    content.as_str().or_else(|| {
        let mut blocks = content.as_array()?.iter();
        blocks.find_map(|block| block["text"].as_str())
    })
}

fn time_of(record: &Record) -> Option<TimestampMicros> {
    time(&record.value["timestamp"]).or_else(|| time(&record.value["message"]["timestamp"]))
}

/// Assigns entries to branches. Every entry is a node of the tree, even if it is not a message,
/// because others may follow it.
fn places(records: &[Record]) -> Tree {
    let mut tree = Tree::default();
    let mut known: HashMap<&str, usize> = HashMap::new();
    let mut any = false;
    for (index, record) in records.iter().enumerate() {
        let current = tree.current();
        match record.value.get("parentId") {
            // A root that is not the first entry starts a new branch.
            Some(Value::Null) if any => tree.forks(None),
            Some(Value::String(parent)) => match known.get(parent.as_str()) {
                Some(&parent) => {
                    let branch = tree.nodes[parent].branch;
                    match tree.tip(branch) == Some(parent) {
                        true => tree.continues(branch, Parent::Fits),
                        false => tree.forks(Some(parent)),
                    }
                }
                None => tree.continues(current, Parent::NotFound),
            },
            _ => tree.continues(current, Parent::Fits),
        }
        let id = record.text_of("id");
        if !id.is_empty() && !is_header(record) {
            any = true;
            known.insert(id, index);
        }
    }
    tree
}

/// Converts an entry; `before` are the entries before it.
fn entry(steps: &mut Steps, branch: BranchIndex, before: &[Record], record: &Record) {
    let kind = record.text_of("type");
    match kind {
        "message" => message(steps, branch, record),
        "model_change" => {
            let model = short(record.text_of("modelId"));
            if !model.is_empty() {
                steps.transcript.answered_by(branch, model);
            }
            steps.keep(branch, record, kind);
        }
        "compaction" if record.value["summary"].is_string() => {
            let summary = record.text_of("summary").to_owned();
            let tokens = record.value["tokensBefore"].as_u64().unwrap_or_default();
            steps.compaction(branch, record, summary, tokens, kept_from(before, record));
        }
        "branch_summary" if record.value["summary"].is_string() => {
            let parts = steps::text_parts(record.text_of("summary"));
            steps.message(branch, record, MessageAppended::new(Role::User, parts));
        }
        "custom_message" => {
            let parts = blocks::read(&record.value["content"], "", "");
            steps.message(branch, record, MessageAppended::new(Role::User, parts));
        }
        kind => steps.keep(branch, record, kind),
    }
}

/// Returns the first entry that was kept, by its id, or in older sessions by its index.
fn kept_from(before: &[Record], compaction: &Record) -> Option<usize> {
    let place = compaction.value["firstKeptEntryIndex"].as_u64();
    if let Some(place) = place {
        return usize::try_from(place).ok();
    }
    let id = compaction.text_of("firstKeptEntryId");
    let is_it = |record: &Record| record.text_of("id") == id && !is_header(record);
    (!id.is_empty()).then(|| before.iter().position(is_it))?
}

fn message(steps: &mut Steps, branch: BranchIndex, record: &Record) {
    let message = &record.value["message"];
    let content = &message["content"];
    let user = |parts| MessageAppended::new(Role::User, parts);
    match message["role"].as_str().unwrap_or_default() {
        "user" => steps.message(branch, record, user(blocks::read(content, "", ""))),
        "assistant" => assistant(steps, branch, record),
        "toolResult" => result(steps, branch, record),
        "bashExecution" if message["excludeFromContext"] != Value::Bool(true) => {
            steps.message(branch, record, user(ran(message)));
        }
        "custom" | "hookMessage" => {
            steps.message(branch, record, user(blocks::read(content, "", "")));
        }
        "branchSummary" | "compactionSummary" if message["summary"].is_string() => {
            let summary = message["summary"].as_str().unwrap_or_default();
            steps.message(branch, record, user(steps::text_parts(summary)));
        }
        role => {
            if record.is_readable() && role != "bashExecution" {
                steps.transcript.note(super::Oddity::UnknownRole);
            }
            steps.keep(branch, record, "message");
        }
    }
}

/// Returns a command that the user ran, with its output: the model saw both.
fn ran(message: &Value) -> Vec<ContentPart> {
    let command = message["command"].as_str().unwrap_or_default();
    let output = message["output"].as_str().unwrap_or_default();
    vec![
        ContentPart::Text(format!("The user ran: {command}")),
        ContentPart::Text(output.to_owned()),
    ]
}

fn assistant(steps: &mut Steps, branch: BranchIndex, record: &Record) {
    let message = &record.value["message"];
    let text = |field: &str| message[field].as_str().map(short).unwrap_or_default();
    let (model, provider) = (text("model"), text("provider"));
    if !model.is_empty() {
        steps.transcript.answered_by(branch, model.clone());
    }
    let mut said = MessageAppended {
        usage: canonical::read_usage(&message["usage"]),
        message_id: text("responseId"),
        finish_reason: text("stopReason"),
        ..MessageAppended::new(Role::Assistant, Vec::new())
    };
    let mut calls = Vec::new();
    match &message["content"] {
        Value::Array(content) => {
            for block in content {
                let typed = (block["type"] == "toolCall").then(|| call(block));
                match typed {
                    Some(Some(call)) => calls.push(call),
                    Some(None) => {
                        steps.transcript.note(super::Oddity::CallNotTyped);
                        said.parts.push(steps::json_part(block));
                    }
                    None => said
                        .parts
                        .push(blocks::read_block(block, &provider, &model)),
                }
            }
        }
        content => said.parts = blocks::read(content, &provider, &model),
    }
    let mut bodies = vec![EventBody::MessageAppended(said)];
    bodies.extend(calls.into_iter().map(EventBody::ToolCallRequested));
    steps.push(branch, record, &model, bodies);
}

fn call(block: &Value) -> Option<treering_domain::ToolCallRequested> {
    let text = |field: &str| block[field].as_str().unwrap_or_default();
    steps::call(text("id"), text("name"), json_text(block.get("arguments")?))
}

fn result(steps: &mut Steps, branch: BranchIndex, record: &Record) {
    let message = &record.value["message"];
    let text = |field: &str| message[field].as_str().unwrap_or_default();
    let parts = blocks::read(&message["content"], "", "");
    let mut result: ToolResultRecorded = steps::result(
        text("toolCallId"),
        message["isError"] != Value::Bool(true),
        parts,
    );
    if let Some(details) = message.get("details").filter(|details| !details.is_null()) {
        result.structured = json_text(details);
    }
    steps.result(branch, record, &short(text("toolName")), result);
}
