//! Writes a branch as a document that `opencode import` takes. See [`super::super::turns`] for what
//! is left out.
//!
//! The tool drops unknown fields, so the origin is in the `metadata` of each part.

use serde_json::{Value, json};

use crate::{
    exporter::ResumeTarget,
    origin::{self, Place},
    turns::{
        CallResult, History, ModelAnswer, TurnContent, TurnWriter, plain_name, plain_text,
        provider_of,
    },
};
use treering_domain::TimestampMicros;

/// The version of opencode whose format is written.
const VERSION: &str = "1.18.0";
/// The agent and mode of the messages: the tool's default.
const AGENT: &str = "build";

/// Returns the id of the session in the tool.
#[must_use]
pub fn session_id(resumed: &ResumeTarget<'_>) -> String {
    format!("ses_{}", resumed.session.simple())
}

/// Returns the document, or `None` if the branch has no messages.
pub(crate) fn document(history: &History, resumed: &ResumeTarget<'_>) -> Option<Value> {
    let turns = history.turns_in_window();
    let mut writer = Writer {
        resumed,
        session: session_id(resumed),
        model: "",
        messages: Vec::new(),
        ids: 0,
        at_ms: 0,
    };
    let mut models = turns.iter().filter_map(|turn| match &turn.content {
        TurnContent::Answer(answer) => Some(answer.model),
        _ => None,
    });
    writer.model = models
        .find(|model| !model.trim().is_empty())
        .unwrap_or("unknown");
    writer.write(&turns);
    let parts = writer.messages.last_mut()?["parts"].as_array_mut()?;
    parts.last_mut()?["metadata"] = json!({origin::FIELD: history.end.render()});
    let created = writer.messages[0]["info"]["time"]["created"].clone();
    let info = json!({
        "id": writer.session,
        "slug": writer.session,
        "projectID": "global",
        "directory": resumed.cwd,
        "title": resumed.title,
        "version": VERSION,
        "time": {"created": created, "updated": writer.at_ms},
    });
    Some(json!({"info": info, "messages": writer.messages}))
}

struct Writer<'a> {
    resumed: &'a ResumeTarget<'a>,
    session: String,
    /// The model of messages that name none.
    model: &'a str,
    messages: Vec<Value>,
    /// Number of ids so far.
    ids: u64,
    /// The time of the last message: the tool sorts by time.
    at_ms: i64,
}

impl TurnWriter for Writer<'_> {
    fn user(&mut self, text: &str, at: TimestampMicros, place: Place) {
        self.advance(at);
        let (provider, _) = provider_of(self.model);
        let info = json!({
            "role": "user",
            "time": {"created": self.at_ms},
            "agent": AGENT,
            "model": {"providerID": provider, "modelID": self.model},
        });
        self.message(info, vec![json!({"type": "text", "text": text})], place);
    }

    fn answer(&mut self, answer: &ModelAnswer<'_>, at: TimestampMicros, place: Place) {
        self.advance(at);
        let mut parts = Vec::new();
        let mut finish = "stop";
        for piece in &answer.pieces {
            let text = plain_text(piece.parts);
            if !text.trim().is_empty() {
                parts.push(json!({"type": "text", "text": text}));
            }
            for call in &piece.calls {
                finish = "tool-calls";
                parts.push(json!({
                    "type": "tool",
                    "callID": call.id,
                    "tool": plain_name(&call.asked.tool),
                    "state": {"status": "pending", "input": call.input(), "raw": ""},
                }));
            }
        }
        if parts.is_empty() {
            return;
        }
        let model = match answer.model.trim() {
            "" => self.model,
            model => model,
        };
        let asked = self.messages.iter().rev();
        let mut asked = asked.filter(|message| message["info"]["role"] == "user");
        let parent = asked.next().map(|message| message["info"]["id"].clone());
        let info = json!({
            "role": "assistant",
            "time": {"created": self.at_ms, "completed": self.at_ms},
            "parentID": parent.unwrap_or_else(|| "msg_0".into()),
            "modelID": model,
            "providerID": provider_of(model).0,
            "mode": AGENT,
            "agent": AGENT,
            "path": {"cwd": self.resumed.cwd, "root": self.resumed.cwd},
            "cost": 0,
            "tokens": {"input": 0, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}},
            "finish": finish,
        });
        self.message(info, parts, place);
    }

    /// Adds a result to its call, which is in the last message.
    fn result(&mut self, result: &CallResult<'_>, at: TimestampMicros, place: Place) {
        self.advance(at);
        let at_ms = self.at_ms;
        let Some(message) = self.messages.last_mut() else {
            return;
        };
        message["info"]["time"]["completed"] = at_ms.into();
        let began = message["info"]["time"]["created"].clone();
        let parts = message["parts"].as_array_mut().into_iter().flatten();
        let Some(part) = parts.into_iter().find(|part| part["callID"] == result.id) else {
            return;
        };
        part["metadata"] = json!({origin::FIELD: place.render()});
        let text = plain_text(&result.parts);
        let input = part["state"]["input"].take();
        let time = json!({"start": began, "end": at_ms});
        part["state"] = match result.failed {
            true => json!({"status": "error", "input": input, "error": text, "time": time}),
            false => json!({
                "status": "completed", "input": input, "output": text, "title": "",
                "metadata": {}, "time": time,
            }),
        };
    }
}

impl Writer<'_> {
    fn advance(&mut self, at: TimestampMicros) {
        self.at_ms = self.at_ms.max(at.0 / 1_000);
    }

    fn message(&mut self, mut info: Value, mut parts: Vec<Value>, place: Place) {
        let id = self.new_id("msg");
        info["id"] = id.as_str().into();
        info["sessionID"] = self.session.as_str().into();
        for part in &mut parts {
            part["id"] = self.new_id("prt").into();
            part["sessionID"] = self.session.as_str().into();
            part["messageID"] = id.as_str().into();
            part["metadata"] = json!({origin::FIELD: place.render()});
        }
        self.messages.push(json!({"info": info, "parts": parts}));
    }

    /// Returns an id that sorts after earlier ones and before those of the tool, which begin with a
    /// time.
    fn new_id(&mut self, kind: &str) -> String {
        self.ids += 1;
        let session = self.resumed.session.simple().to_string();
        format!("{kind}_{:012x}{}", self.ids, &session[..14])
    }
}
