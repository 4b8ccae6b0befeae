//! Imports sessions of Gemini CLI: one document with `messages`, or (newer) JSON lines, each a
//! message, a change of the session's fields (`$set`) or a rewind (`$rewindTo`).
//!
//! The tool rewrites a message whenever it gets more content, so messages are split into pieces
//! (`pieces.rs`): the text, the calls, each result, the tokens. Both forms of a session thus become
//! the same events, and a session that has grown becomes the same events and more. A rewind becomes
//! a branch, and a checkpoint that puts a summary before the messages it keeps becomes a
//! compaction.

mod parts;
mod pieces;
#[cfg(test)]
mod tests;
pub(super) mod write;

use std::path::PathBuf;

use serde_json::{Map, Value};

use super::{
    ImportedConversation, Oddity,
    record::Record,
    steps::{self, About, Steps, json_text, short, time},
    transcript::BranchIndex,
};
use pieces::{Kind, Piece};
use treering_domain::{ContentPart, EventBody, MessageAppended, NameError, Reasoning, Role, Usage};

/// The source name of imported sessions.
pub const SOURCE: &str = "gemini-cli";

/// The provider whose reasoning these sessions have.
const PROVIDER: &str = "google";

/// Returns the tool's folder of sessions: `~/.gemini/tmp` (in `$GEMINI_CLI_HOME`, else the home
/// folder).
#[must_use]
pub fn sessions_folder() -> Option<PathBuf> {
    let home = match std::env::var_os("GEMINI_CLI_HOME") {
        Some(folder) if !folder.is_empty() => PathBuf::from(folder),
        _ => std::env::home_dir()?,
    };
    Some(home.join(".gemini/tmp"))
}

pub(super) fn import(name: &str, records: &[Record]) -> Result<ImportedConversation, NameError> {
    let mut steps = Steps::new(about(name, records));
    let (pieces, tree) = pieces::take_apart(records);
    let (pieces, records): (Vec<_>, Vec<_>) = pieces.into_iter().map(Piece::split).unzip();
    let time_of = |index: usize, _: &Record| time(&pieces[index].timestamp);
    steps.run(&tree, &records, time_of, |steps, branch, index, record| {
        let piece = &pieces[index];
        match &piece.kind {
            Kind::Message => message(steps, branch, record),
            Kind::Calls => calls(steps, branch, record),
            Kind::Result => result(steps, branch, record),
            Kind::Tokens => {
                let id = record.text_of("message");
                said_by_model(steps, branch, record, (id, Vec::new()), &record.value);
            }
            Kind::Compaction { summary, kept_from } => {
                steps.compaction(branch, record, summary.clone(), 0, *kept_from);
            }
            Kind::Other(name) => steps.keep(branch, record, name),
        }
    })?;
    Ok(steps.finish())
}

/// Returns the fields of the session as a whole; later records override earlier ones.
fn about(name: &str, records: &[Record]) -> About {
    let mut meta = Map::new();
    for record in records {
        let said = match record.value.get("$set") {
            Some(set) => set,
            None if record.value.get("sessionId").is_some() => &record.value,
            None => continue,
        };
        for (field, value) in said.as_object().into_iter().flatten() {
            if field != "messages" {
                meta.insert(field.clone(), value.clone());
            }
        }
    }
    let text = |field: &str| meta.get(field).and_then(Value::as_str).unwrap_or_default();
    let id = match text("sessionId") {
        "" => name.to_owned(),
        id => id.to_owned(),
    };
    let summary = text("summary").trim().to_owned();
    let began = meta.get("startTime").and_then(time);
    let messages = || records.iter().flat_map(pieces::messages);
    let model = messages().find_map(|message| message["model"].as_str().map(short));
    About {
        source: SOURCE,
        source_id: id,
        title: match summary.is_empty() {
            true => steps::title(messages().filter_map(prompt)),
            false => Some(summary),
        },
        model: model.unwrap_or_default(),
        meta,
        began: began.or_else(|| messages().find_map(|message| time(&message["timestamp"]))),
    }
}

/// Returns what a person wrote.
fn prompt(message: &Value) -> Option<&str> {
    let is_user = message["type"] == "user";
    is_user.then(|| parts::first_text(&message["content"]))?
}

fn message(steps: &mut Steps, branch: BranchIndex, record: &Record) {
    let content = parts::read(&record.value["content"]);
    match record.text_of("type") {
        "user" if content.is_empty() => steps.keep(branch, record, "user"),
        "user" => steps.message(branch, record, MessageAppended::new(Role::User, content)),
        "gemini" => {
            let mut said = thoughts(&record.value);
            said.extend(content);
            let id = record.text_of("id");
            said_by_model(steps, branch, record, (id, said), &record.value);
        }
        // Notices of the tool to its user.
        kind @ ("info" | "error" | "warning") => steps.keep(branch, record, kind),
        _ => {
            steps.transcript.note(Oddity::UnknownRole);
            steps.keep(branch, record, "message");
        }
    }
}

/// Appends what the model said. The model and the token counts are read from `of`.
fn said_by_model(
    steps: &mut Steps,
    branch: BranchIndex,
    record: &Record,
    (id, parts): (&str, Vec<ContentPart>),
    of: &Value,
) {
    let model = of["model"].as_str().map(short).unwrap_or_default();
    if !model.is_empty() {
        steps.transcript.answered_by(branch, model.clone());
    }
    let said = MessageAppended {
        usage: usage(&of["tokens"]),
        message_id: short(id),
        ..MessageAppended::new(Role::Assistant, parts)
    };
    let bodies = vec![EventBody::MessageAppended(said)];
    steps.push(branch, record, &model, bodies);
}

fn thoughts(message: &Value) -> Vec<ContentPart> {
    let model = message["model"].as_str().map(short).unwrap_or_default();
    let thoughts = message["thoughts"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let thought = |thought: &Value| {
        let text = |field: &str| thought[field].as_str().unwrap_or_default().to_owned();
        let text = match (text("subject"), text("description")) {
            (subject, text) if subject.is_empty() => text,
            (subject, text) if text.is_empty() => subject,
            (subject, text) => format!("{subject}\n\n{text}"),
        };
        ContentPart::Reasoning(Reasoning {
            text,
            provider: PROVIDER.to_owned(),
            model: model.clone(),
            ..Reasoning::default()
        })
    };
    thoughts.iter().map(thought).collect()
}

/// Returns the tokens of an answer. The tool counts cached tokens as part of the input, and
/// reasoning apart from the output.
fn usage(tokens: &Value) -> Option<Usage> {
    let count = |field: &str| tokens[field].as_u64();
    let cached = count("cached").unwrap_or_default();
    let reasoning = count("thoughts").unwrap_or_default();
    Some(Usage {
        input_tokens: count("input")?.saturating_sub(cached),
        output_tokens: count("output")? + reasoning,
        cache_read_input_tokens: cached,
        reasoning_output_tokens: reasoning,
        ..Usage::default()
    })
}

fn calls(steps: &mut Steps, branch: BranchIndex, record: &Record) {
    let calls = record.value["calls"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let mut typed = Vec::new();
    for call in calls {
        let text = |field: &str| call[field].as_str().unwrap_or_default();
        match steps::call(text("id"), text("name"), json_text(&call["args"])) {
            Some(call) => typed.push(EventBody::ToolCallRequested(call)),
            None => steps.transcript.note(Oddity::CallNotTyped),
        }
    }
    let said = MessageAppended {
        message_id: short(record.text_of("message")),
        ..MessageAppended::new(Role::Assistant, Vec::new())
    };
    let mut bodies = vec![EventBody::MessageAppended(said)];
    bodies.append(&mut typed);
    steps.push(branch, record, "", bodies);
}

fn result(steps: &mut Steps, branch: BranchIndex, record: &Record) {
    let call = &record.value["result"];
    let text = |field: &str| call[field].as_str().unwrap_or_default();
    let parts = parts::of_result(&call["result"]);
    let result = steps::result(text("id"), text("status") == "success", parts);
    steps.result(branch, record, &short(text("name")), result);
}
