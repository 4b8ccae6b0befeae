//! Writes a branch as a session that Gemini CLI can continue. [`super::super::turns`] lists the
//! omissions.

use serde_json::{Value, json};

use crate::{
    canonical,
    exporter::ResumeTarget,
    origin::{self, Place},
    turns::{CallResult, History, ModelAnswer, TurnWriter, plain_name, plain_text},
};
use treering_domain::TimestampMicros;

/// The project of the session: the tool sets its own when it reads the file.
const PROJECT: &str = "treering";

/// Returns the lines of the session.
pub(crate) fn lines(history: &History, resumed: &ResumeTarget<'_>) -> Vec<Value> {
    let turns = history.turns_in_window();
    let (Some(first), Some(last)) = (turns.first(), turns.last()) else {
        return Vec::new();
    };
    let header = json!({
        "sessionId": resumed.session.to_string(),
        "projectHash": PROJECT,
        "startTime": canonical::render_time(first.at),
        "lastUpdated": canonical::render_time(last.at),
        "kind": "main",
        "summary": resumed.title,
    });
    let mut writer = Writer {
        lines: vec![header],
    };
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
        let content = json!([{"text": text}]);
        self.message(json!({"type": "user", "content": content}), at, place);
    }

    fn answer(&mut self, answer: &ModelAnswer<'_>, at: TimestampMicros, place: Place) {
        let texts = answer.pieces.iter().map(|piece| plain_text(piece.parts));
        let texts = texts.filter(|text| !text.trim().is_empty());
        let texts: Vec<_> = texts.map(|text| json!({"text": text})).collect();
        let calls = answer.pieces.iter().flat_map(|piece| &piece.calls);
        let calls: Vec<_> = calls
            .map(|call| {
                json!({
                    "id": call.id,
                    "name": plain_name(&call.asked.tool),
                    "args": call.input(),
                })
            })
            .collect();
        if texts.is_empty() && calls.is_empty() {
            return;
        }
        // The content is a list, the form that Gemini CLI uses when it writes a message again.
        let mut message = json!({"type": "gemini", "content": texts});
        if !calls.is_empty() {
            message["toolCalls"] = calls.into();
        }
        if !answer.model.is_empty() {
            message["model"] = answer.model.into();
        }
        self.message(message, at, place);
    }

    /// Adds a result to its call, which is in the last message.
    fn result(&mut self, result: &CallResult<'_>, at: TimestampMicros, place: Place) {
        let Some(message) = self.lines.last_mut() else {
            return;
        };
        message[origin::FIELD] = place.render();
        let calls = message["toolCalls"].as_array_mut().into_iter().flatten();
        let Some(call) = calls.into_iter().find(|call| call["id"] == result.id) else {
            return;
        };
        let (status, field) = match result.failed {
            true => ("error", "error"),
            false => ("success", "output"),
        };
        let response = json!({field: plain_text(&result.parts)});
        let response = json!({"id": result.id, "name": call["name"], "response": response});
        call["result"] = json!([{"functionResponse": response}]);
        call["status"] = status.into();
        call["timestamp"] = canonical::render_time(at).into();
    }
}

impl Writer {
    fn message(&mut self, mut message: Value, at: TimestampMicros, place: Place) {
        message["id"] = format!("treering-{}", self.lines.len()).into();
        message["timestamp"] = canonical::render_time(at).into();
        message[origin::FIELD] = place.render();
        self.lines.push(message);
    }
}
