//! Writes a branch as a session that pi can resume. [`super::super::turns`] lists the omissions.

use serde_json::{Value, json};

use crate::{
    canonical,
    exporter::ResumeTarget,
    origin::{self, Place},
    turns::{CallResult, History, ModelAnswer, TurnWriter, plain_name, plain_text, provider_of},
};
use treering_domain::TimestampMicros;

/// The version of pi's session format that these lines have.
const VERSION: u32 = 3;

/// Returns the lines of the session.
pub(crate) fn lines(history: &History, resumed: &ResumeTarget<'_>) -> Vec<Value> {
    let turns = history.turns_in_window();
    let Some(first) = turns.first() else {
        return Vec::new();
    };
    let header = json!({
        "type": "session",
        "version": VERSION,
        "id": resumed.session.to_string(),
        "timestamp": canonical::render_time(first.at),
        "cwd": resumed.cwd,
        origin::FIELD: history.end.render(),
    });
    let mut writer = Writer {
        lines: vec![header],
    };
    writer.write(&turns);
    if writer.lines.len() == 1 {
        return Vec::new();
    }
    if let Some(last) = turns.last() {
        let name = json!({"type": "session_info", "name": resumed.title});
        writer.entry(name, last.at, history.end);
    }
    origin::end(writer.lines, history.end)
}

struct Writer {
    lines: Vec<Value>,
}

impl TurnWriter for Writer {
    fn user(&mut self, text: &str, at: TimestampMicros, place: Place) {
        let content = json!([{"type": "text", "text": text}]);
        self.message(json!({"role": "user", "content": content}), at, place);
    }

    fn answer(&mut self, answer: &ModelAnswer<'_>, at: TimestampMicros, place: Place) {
        let mut content = Vec::new();
        let mut stop = "stop";
        for piece in &answer.pieces {
            let text = plain_text(piece.parts);
            if !text.trim().is_empty() {
                content.push(json!({"type": "text", "text": text}));
            }
            for call in &piece.calls {
                stop = "toolUse";
                content.push(json!({
                    "type": "toolCall",
                    "id": call.id,
                    "name": plain_name(&call.asked.tool),
                    "arguments": call.input(),
                }));
            }
        }
        if content.is_empty() {
            return;
        }
        let (provider, api) = provider_of(answer.model);
        let nothing = json!({
            "input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 0,
            "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "total": 0},
        });
        let message = json!({
            "role": "assistant",
            "content": content,
            "api": api,
            "provider": provider,
            "model": answer.model,
            "usage": nothing,
            "stopReason": stop,
        });
        self.message(message, at, place);
    }

    fn result(&mut self, result: &CallResult<'_>, at: TimestampMicros, place: Place) {
        let message = json!({
            "role": "toolResult",
            "toolCallId": result.id,
            "toolName": plain_name(result.tool),
            "content": [{"type": "text", "text": plain_text(&result.parts)}],
            "isError": result.failed,
        });
        self.message(message, at, place);
    }
}

impl Writer {
    fn message(&mut self, mut message: Value, at: TimestampMicros, place: Place) {
        message["timestamp"] = (at.0 / 1_000).into();
        self.entry(json!({"type": "message", "message": message}), at, place);
    }

    fn entry(&mut self, mut entry: Value, at: TimestampMicros, place: Place) {
        let id = |number: usize| format!("{number:08x}");
        let number = self.lines.len();
        let parent = number.checked_sub(1).filter(|parent| *parent > 0).map(id);
        entry["id"] = id(number).into();
        entry["parentId"] = parent.into();
        entry["timestamp"] = canonical::render_time(at).into();
        entry[origin::FIELD] = place.render();
        self.lines.push(entry);
    }
}
