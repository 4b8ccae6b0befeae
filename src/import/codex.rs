//! Imports rollouts of Codex, as that tool keeps them: JSON lines in an envelope of `timestamp`,
//! `type` and `payload`; older versions wrote the items alone.
//!
//! `response_item`s are what the model said and saw. `event_msg`s mostly repeat it for people and
//! are kept unchanged. A rollback of a thread becomes a branch that forks before the turns that
//! were taken back.

mod branches;
pub(super) mod items;
#[cfg(test)]
mod tests;
pub(super) mod write;

use std::path::PathBuf;

use serde_json::Value;

use super::{
    ImportedConversation,
    record::Record,
    steps::{self, About, Steps, short, time},
    transcript::BranchIndex,
};
use items::Items;
use treering_domain::{EventBody, MessageAppended, NameError, Role, TimestampMicros, Usage};

/// The source name of imported sessions.
pub const SOURCE: &str = "codex";

/// Returns the tool's folders of rollouts (in `$CODEX_HOME`, else `~/.codex`): current and archived
/// ones.
#[must_use]
pub fn sessions_folders() -> Vec<PathBuf> {
    let home = match std::env::var_os("CODEX_HOME") {
        Some(folder) if !folder.is_empty() => Some(PathBuf::from(folder)),
        _ => std::env::home_dir().map(|home| home.join(".codex")),
    };
    let folders = |home: PathBuf| ["sessions", "archived_sessions"].map(|name| home.join(name));
    home.map(folders).into_iter().flatten().collect()
}

pub(super) fn import(name: &str, records: &[Record]) -> Result<ImportedConversation, NameError> {
    let mut steps = Steps::new(about(name, records));
    let tree = branches::places(records);
    let mut items = Items::default();
    let meta = records.iter().position(is_meta);
    steps.run(
        &tree,
        records,
        |_, record| time_of(record),
        |steps, branch, index, record| match kind(record) {
            "session_meta" if Some(index) == meta => begin(steps, branch, record),
            "turn_context" => turn(steps, &mut items, branch, record),
            "compacted" => compacted(steps, branch, record),
            "event_msg" => event(steps, &mut items, branch, record),
            "response_item" => items.item(steps, branch, index, record),
            kind => steps.keep(branch, record, kind),
        },
    )?;
    Ok(steps.finish())
}

/// Returns the kind of a line. Items without an envelope get the kind that their envelope would
/// have.
fn kind(record: &Record) -> &str {
    const ITEMS: [&str; 14] = [
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "local_shell_call",
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
        "image_generation_call",
        "compaction",
        "context_compaction",
        "ghost_snapshot",
    ];
    let has = |field: &str| record.value.get(field).is_some();
    match record.text_of("type") {
        kind if ITEMS.contains(&kind) && !has("payload") => "response_item",
        "" if has("instructions") || (has("id") && has("timestamp")) => "session_meta",
        "" if has("record_type") => "state",
        kind => kind,
    }
}

/// Returns the content of a line, without its envelope.
fn said(record: &Record) -> &Value {
    match record.value.get("payload") {
        Some(payload) => payload,
        None => &record.value,
    }
}

fn is_meta(record: &Record) -> bool {
    kind(record) == "session_meta"
}

fn time_of(record: &Record) -> Option<TimestampMicros> {
    time(&record.value["timestamp"]).or_else(|| time(&said(record)["timestamp"]))
}

fn about(name: &str, records: &[Record]) -> About {
    const FIELDS: [&str; 10] = [
        "id",
        "session_id",
        "forked_from_id",
        "parent_thread_id",
        "timestamp",
        "cwd",
        "originator",
        "cli_version",
        "source",
        "git",
    ];
    let meta = records.iter().find(|record| is_meta(record)).map(said);
    let id = meta.and_then(|meta| meta["id"].as_str());
    let id = id.filter(|id| !id.is_empty());
    let fields = meta.into_iter().flat_map(|meta| {
        let field = |field: &&str| Some(((*field).to_owned(), meta.get(*field)?.clone()));
        FIELDS.iter().filter_map(field).collect::<Vec<_>>()
    });
    let model = |record: &Record| {
        let model = said(record)["model"].as_str().map(short);
        model.filter(|model| kind(record) == "turn_context" && !model.is_empty())
    };
    About {
        source: SOURCE,
        source_id: id.unwrap_or_else(|| id_of_name(name)).to_owned(),
        title: steps::title(records.iter().filter_map(branches::prompt)),
        model: records.iter().find_map(model).unwrap_or_default(),
        meta: fields.filter(|(_, value)| !value.is_null()).collect(),
        began: records.iter().find_map(time_of),
    }
}

/// Returns the id in a file name `rollout-TIME-ID`.
fn id_of_name(name: &str) -> &str {
    const ID_CHARS: usize = 36;
    let id = name
        .len()
        .checked_sub(ID_CHARS)
        .and_then(|at| name.get(at..));
    id.filter(|id| name.starts_with("rollout-") && uuid::Uuid::parse_str(id).is_ok())
        .unwrap_or(name)
}

/// Converts the first line: its instructions become the system message.
fn begin(steps: &mut Steps, branch: BranchIndex, record: &Record) {
    let meta = said(record);
    let texts = [&meta["base_instructions"]["text"], &meta["instructions"]];
    let instructions = texts.iter().find_map(|text| text.as_str());
    match instructions.filter(|text| !text.trim().is_empty()) {
        Some(text) => steps.message(branch, record, MessageAppended::text(Role::System, text)),
        None => steps.keep(branch, record, "session_meta"),
    }
}

fn turn(steps: &mut Steps, items: &mut Items, branch: BranchIndex, record: &Record) {
    let model = said(record)["model"]
        .as_str()
        .map(short)
        .unwrap_or_default();
    if !model.is_empty() {
        items.answered_by(&model);
        steps.transcript.answered_by(branch, model);
    }
    steps.keep(branch, record, "turn_context");
}

/// Converts a compaction. If only the provider can read its summary, the messages of the
/// replacement history stand for it; if there are none, the line is kept unchanged and the history
/// before it stays.
fn compacted(steps: &mut Steps, branch: BranchIndex, record: &Record) {
    let payload = said(record);
    let message = payload["message"].as_str().unwrap_or_default();
    let summary = match message.trim().is_empty() {
        true => replacing(&payload["replacement_history"]),
        false => message.to_owned(),
    };
    match summary.is_empty() {
        true => steps.keep(branch, record, "compacted"),
        false => steps.compaction(branch, record, summary, 0, None),
    }
}

fn replacing(history: &Value) -> String {
    let items = history.as_array().map_or(&[][..], Vec::as_slice);
    let texts = items.iter().filter(|item| item["type"] == "message");
    let texts = texts.filter_map(|item| {
        let role = item["role"].as_str().filter(|role| *role != "developer")?;
        let text = branches::text_of(item)?;
        Some(format!("{role}: {text}"))
    });
    texts.collect::<Vec<_>>().join("\n\n")
}

fn event(steps: &mut Steps, items: &mut Items, branch: BranchIndex, record: &Record) {
    let payload = said(record);
    let kind = payload["type"].as_str().unwrap_or_default();
    let usage = (kind == "token_count")
        .then(|| usage(&payload["info"]["last_token_usage"]))
        .flatten();
    let Some(message_id) = usage.as_ref().and_then(|_| items.end_response()) else {
        return steps.keep(branch, record, &format!("event_msg.{kind}"));
    };
    // Token counts follow the answer, which may be imported already.
    let said = MessageAppended {
        usage,
        message_id,
        ..MessageAppended::new(Role::Assistant, Vec::new())
    };
    steps.push(branch, record, "", vec![EventBody::MessageAppended(said)]);
}

/// Returns the tokens of one answer. The tool counts cached tokens as part of the input.
fn usage(value: &Value) -> Option<Usage> {
    let count = |field: &str| value[field].as_u64();
    let cached = count("cached_input_tokens").unwrap_or_default();
    Some(Usage {
        input_tokens: count("input_tokens")?.saturating_sub(cached),
        output_tokens: count("output_tokens")?,
        cache_read_input_tokens: cached,
        reasoning_output_tokens: count("reasoning_output_tokens").unwrap_or_default(),
        ..Usage::default()
    })
}
