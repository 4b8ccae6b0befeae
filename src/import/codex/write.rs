//! Writes a branch as a rollout that Codex can resume. [`super::super::turns`] lists the omissions.

use serde_json::{Value, json};

use crate::{
    canonical,
    exporter::ResumeTarget,
    origin::{self, Place},
    turns::{CallResult, History, ModelAnswer, TurnWriter, plain_name, plain_text},
};
use treering_domain::TimestampMicros;

/// The version of Codex that uses this format of lines.
const VERSION: &str = "0.169.0";

/// Returns the lines of the rollout.
pub(crate) fn lines(history: &History, resumed: &ResumeTarget<'_>) -> Vec<Value> {
    let mut writer = Writer { lines: Vec::new() };
    let turns = history.turns_in_window();
    let Some(first) = turns.first() else {
        return Vec::new();
    };
    let meta = json!({
        "id": resumed.session.to_string(),
        "timestamp": canonical::render_time(first.at),
        "cwd": resumed.cwd,
        "originator": "codex_cli_rs",
        "cli_version": VERSION,
        "source": "cli",
    });
    writer.line("session_meta", meta, first.at, history.end);
    writer.write(&turns);
    if writer.lines.len() == 1 {
        return Vec::new();
    }
    origin::end(writer.lines, history.end)
}

struct Writer {
    lines: Vec<Value>,
}

impl TurnWriter for Writer {
    fn user(&mut self, text: &str, at: TimestampMicros, place: Place) {
        self.message("user", text, at, place);
    }

    fn answer(&mut self, answer: &ModelAnswer<'_>, _: TimestampMicros, place: Place) {
        for piece in &answer.pieces {
            self.message("assistant", &plain_text(piece.parts), piece.at, place);
            for call in &piece.calls {
                let call = json!({
                    "type": "function_call",
                    "name": plain_name(&call.asked.tool),
                    "arguments": call.input().to_string(),
                    "call_id": call.id,
                });
                self.line("response_item", call, piece.at, place);
            }
        }
    }

    fn result(&mut self, result: &CallResult<'_>, at: TimestampMicros, place: Place) {
        let output = json!({
            "type": "function_call_output",
            "call_id": result.id,
            "output": plain_text(&result.parts),
        });
        self.line("response_item", output, at, place);
    }
}

impl Writer {
    /// Writes a message for the model, and the event that shows it to people.
    fn message(&mut self, role: &str, text: &str, at: TimestampMicros, place: Place) {
        if text.trim().is_empty() {
            return;
        }
        let (content, event) = match role {
            "user" => ("input_text", "user_message"),
            _ => ("output_text", "agent_message"),
        };
        let item = json!({
            "type": "message",
            "role": role,
            "content": [{"type": content, "text": text}],
        });
        self.line("response_item", item, at, place);
        self.line(
            "event_msg",
            json!({"type": event, "message": text}),
            at,
            place,
        );
    }

    fn line(&mut self, kind: &str, payload: Value, at: TimestampMicros, place: Place) {
        self.lines.push(json!({
            "timestamp": canonical::render_time(at),
            "type": kind,
            "payload": payload,
            origin::FIELD: place.render(),
        }));
    }
}
