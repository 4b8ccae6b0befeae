//! Imports sessions of opencode: from its database, from the folder of JSON files of older
//! versions, or from the output of `opencode export`.
//!
//! Every form is read as the same lines (`read.rs`, `database.rs`): first what is known of the
//! session as a whole, then each message with its parts. The tool overwrites its data, so only the
//! stable parts of a message become events, and a message that is still being written is left for
//! the next import.

#[cfg(feature = "opencode-db")]
mod database;
mod parts;
mod read;
#[cfg(all(test, feature = "opencode-db"))]
mod tests;
pub(super) mod write;

use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::{
    ImportedConversation, Oddity,
    record::Record,
    steps::{self, About, Steps, json_text, short, time},
    transcript::BranchIndex,
    tree::{Parent, Tree},
};
use treering_domain::{
    EventBody, MessageAppended, NameError, Role, TimestampMicros, ToolCallRequested,
};

#[cfg(feature = "opencode-db")]
pub use database::{is_its_database, read_database};
pub use read::{is_named_as_database, is_read_with_session, read_file, sessions_of};
pub use write::session_id;

/// The source name of imported sessions.
pub const SOURCE: &str = "opencode";

/// Returns the tool's folder (`$XDG_DATA_HOME`, else `~/.local/share`, and there `opencode`).
#[must_use]
pub fn data_folder() -> Option<PathBuf> {
    let share = match std::env::var_os("XDG_DATA_HOME") {
        Some(folder) if !folder.is_empty() => PathBuf::from(folder),
        _ => std::env::home_dir()?.join(".local/share"),
    };
    Some(share.join("opencode"))
}

pub(super) fn import(name: &str, records: &[Record]) -> Result<ImportedConversation, NameError> {
    let mut steps = Steps::new(about(name, records));
    let (pieces, records) = take_apart(records);
    let mut tree = Tree::default();
    for _ in &pieces {
        tree.continues(BranchIndex::MAIN, Parent::Fits);
    }
    let time_of = |index: usize, _: &Record| pieces[index].time;
    steps.run(
        &tree,
        &records,
        time_of,
        |steps, branch, index, record| match &pieces[index].kind {
            Kind::User => user(steps, branch, record),
            Kind::Step => step(steps, branch, record),
            Kind::Result => result(steps, branch, record),
            Kind::Summary { text, kept_from } => {
                steps.compaction(branch, record, text.clone(), 0, *kept_from);
            }
            Kind::Other => steps.keep(branch, record, "line"),
        },
    )?;
    Ok(steps.finish())
}

fn about(name: &str, records: &[Record]) -> About {
    let session = records
        .iter()
        .find_map(|record| record.value.get("session"));
    let meta = session
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default();
    let text = |field: &str| meta.get(field).and_then(Value::as_str).unwrap_or_default();
    let id = match text("id") {
        "" => name.to_owned(),
        id => id.to_owned(),
    };
    let title = text("title").trim().to_owned();
    let messages = || records.iter().map(|record| &record.value);
    let began = |value: &Value| time(&value["time"]["created"]);
    About {
        source: SOURCE,
        source_id: id,
        title: match title.is_empty() || title.starts_with("New session - ") {
            true => steps::title(messages().filter_map(prompt)),
            false => Some(title),
        },
        model: messages().find_map(model_of).unwrap_or_default(),
        began: session
            .and_then(began)
            .or_else(|| messages().find_map(|message| began(&message["info"]))),
        meta,
    }
}

/// Returns what a person wrote.
fn prompt(message: &Value) -> Option<&str> {
    let parts = message["parts"].as_array()?;
    let is_user = message["info"]["role"] == "user";
    let mut texts = parts
        .iter()
        .filter(|part| part["type"] == "text" && part["synthetic"] != Value::Bool(true));
    is_user.then(|| texts.find_map(|part| part["text"].as_str()))?
}

/// Returns the model that answered.
fn model_of(message: &Value) -> Option<String> {
    let info = &message["info"];
    let is_answer = info["role"] == "assistant";
    let model = is_answer.then(|| info["modelID"].as_str().map(short))??;
    (!model.is_empty()).then_some(model)
}

enum Kind {
    /// A message of the user.
    User,
    /// A step of the model: its text and its calls.
    Step,
    /// The result of a tool.
    Result,
    /// A compaction with its summary.
    Summary {
        text: String,
        kept_from: Option<usize>,
    },
    /// Anything else.
    Other,
}

struct Piece {
    kind: Kind,
    time: Option<TimestampMicros>,
}

#[derive(Default)]
struct SessionReader {
    pieces: Vec<Piece>,
    records: Vec<Record>,
    /// By message id: its first piece.
    first: std::collections::HashMap<String, usize>,
    /// The first message that a requested compaction keeps.
    tail: Option<String>,
}

fn take_apart(records: &[Record]) -> (Vec<Piece>, Vec<Record>) {
    let mut apart = SessionReader::default();
    for record in records {
        if record.value.get("session").is_some() {
            continue;
        }
        let first = apart.records.len();
        apart.message(record);
        let exported = parts::place(&record.value);
        for record in &mut apart.records[first..] {
            record.exported = exported;
        }
    }
    (apart.pieces, apart.records)
}

impl SessionReader {
    fn push(&mut self, kind: Kind, time: Option<TimestampMicros>, record: Record) {
        self.pieces.push(Piece { kind, time });
        self.records.push(record);
    }

    fn message(&mut self, record: &Record) {
        let info = &record.value["info"];
        let at = time(&info["time"]["created"]);
        if let Some(id) = info["id"].as_str() {
            let next = self.pieces.len();
            self.first.entry(id.to_owned()).or_insert(next);
        }
        let parts = record.value["parts"].as_array();
        match (info["role"].as_str(), parts) {
            (Some("user"), Some(parts)) => {
                let marks = parts.iter().find(|part| part["type"] == "compaction");
                self.tail = marks.and_then(|part| Some(part["tail_start_id"].as_str()?.to_owned()));
                // The tool adds the summary later, by overwriting the message.
                let info = without(info, &["summary"]);
                let said = Record::of(json!({"info": info, "parts": parts}));
                self.push(Kind::User, at, said);
            }
            (Some("assistant"), Some(parts)) if info["summary"] == Value::Bool(true) => {
                let texts = parts.iter().filter(|part| part["type"] == "text");
                let texts: Vec<_> = texts.filter_map(|part| part["text"].as_str()).collect();
                let tail = self.tail.take();
                let kind = Kind::Summary {
                    text: texts.join("\n\n"),
                    kept_from: tail.and_then(|id| self.first.get(&id).copied()),
                };
                self.push(kind, at, record.clone());
            }
            (Some("assistant"), Some(parts)) => self.answer(info, parts),
            // The first versions kept results in this form.
            (Some("tool"), Some(parts)) => {
                for part in parts {
                    let returned = json!({
                        "info": info, "callID": part["callID"], "tool": part["tool"],
                        "state": part["state"],
                    });
                    self.push(Kind::Result, at, Record::of(returned));
                }
            }
            _ => self.push(Kind::Other, at, record.clone()),
        }
    }

    /// Adds an answer, step by step.
    fn answer(&mut self, info: &Value, parts: &[Value]) {
        let mut info = Some(info);
        let ends = |part: &Value| part["type"] == "step-finish";
        for step in parts.split_inclusive(ends) {
            self.step(info.take(), step);
        }
        // An answer without steps still has its own fields.
        if let Some(info) = info {
            self.step(Some(info), &[]);
        }
    }

    fn step(&mut self, info: Option<&Value>, parts: &[Value]) {
        let began = parts.iter().find_map(|part| {
            let times = [&part["time"]["start"], &part["state"]["time"]["start"]];
            times.iter().find_map(|start| time(start))
        });
        let at = info.and_then(|info| time(&info["time"]["created"]));
        let of_step = |part: &Value| match part["type"] == "tool" {
            true => {
                let mut asked = without(part, &["state"]);
                asked["state"] = json!({"input": part["state"]["input"]});
                asked
            }
            false => part.clone(),
        };
        let mut said = json!({"parts": parts.iter().map(of_step).collect::<Value>()});
        if let Some(info) = info {
            said["info"] = info.clone();
        }
        self.push(Kind::Step, at.or(began), Record::of(said));
        for part in parts.iter().filter(|part| has_ended(part)) {
            let mut state = without(&part["state"], &["input"]);
            // The tool adds this time later, when it drops the output from the window.
            if let Some(times) = state["time"].as_object_mut() {
                times.shift_remove("compacted");
            }
            let returned = json!({"callID": part["callID"], "tool": part["tool"], "state": state});
            let at = time(&part["state"]["time"]["end"]);
            self.push(Kind::Result, at, Record::of(returned));
        }
    }
}

fn has_ended(part: &Value) -> bool {
    let status = part["state"]["status"].as_str();
    part["type"] == "tool" && matches!(status, Some("completed" | "error"))
}

fn without(value: &Value, names: &[&str]) -> Value {
    let fields = value.as_object().into_iter().flatten();
    let fields = fields.filter(|(name, _)| !names.contains(&name.as_str()));
    let fields: Map<String, Value> = fields
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    Value::Object(fields)
}

fn user(steps: &mut Steps, branch: BranchIndex, record: &Record) {
    let parts = record.value["parts"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let parts = parts.iter().filter_map(parts::of_user).collect();
    steps.message(branch, record, MessageAppended::new(Role::User, parts));
}

fn step(steps: &mut Steps, branch: BranchIndex, record: &Record) {
    let info = &record.value["info"];
    let listed = record.value["parts"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let model = model_of(&record.value).unwrap_or_default();
    if !model.is_empty() {
        steps.transcript.answered_by(branch, model.clone());
    }
    let finish = listed.iter().find(|part| part["type"] == "step-finish");
    let reason = finish.map_or(&info["finish"], |finish| &finish["reason"]);
    let tokens = finish.map_or(&info["tokens"], |finish| &finish["tokens"]);
    let id = info["id"]
        .as_str()
        .or_else(|| listed.first()?["messageID"].as_str());
    let said = MessageAppended {
        usage: parts::usage(tokens),
        message_id: id.map(short).unwrap_or_default(),
        finish_reason: reason.as_str().map(short).unwrap_or_default(),
        ..MessageAppended::new(
            Role::Assistant,
            listed
                .iter()
                .filter_map(|part| parts::of_model(part, info))
                .collect(),
        )
    };
    let mut bodies = vec![EventBody::MessageAppended(said)];
    for part in listed.iter().filter(|part| part["type"] == "tool") {
        match call(part) {
            Some(call) => bodies.push(EventBody::ToolCallRequested(call)),
            None => steps.transcript.note(Oddity::CallNotTyped),
        }
    }
    steps.push(branch, record, &model, bodies);
}

fn call(part: &Value) -> Option<ToolCallRequested> {
    let text = |field: &str| part[field].as_str().unwrap_or_default();
    let arguments = json_text(&part["state"]["input"]);
    steps::call(text("callID"), text("tool"), arguments)
}

fn result(steps: &mut Steps, branch: BranchIndex, record: &Record) {
    let (value, state) = (&record.value, &record.value["state"]);
    let mut result = steps::result(
        value["callID"].as_str().unwrap_or_default(),
        state["status"] == "completed",
        parts::of_tool(state),
    );
    let end = |field: &str| state["time"][field].as_u64();
    result.execution_time_ms = end("end")
        .zip(end("start"))
        .and_then(|(end, start)| end.checked_sub(start));
    if let Some(metadata) = state
        .get("metadata")
        .filter(|metadata| metadata.is_object())
    {
        result.structured = json_text(metadata);
    }
    let tool = value["tool"].as_str().map(short).unwrap_or_default();
    steps.result(branch, record, &tool, result);
}
