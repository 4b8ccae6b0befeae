//! A branch as a session that Claude Code can go on with, wherever its history came
//! from. Not the way back of an import (that is [`super::session_lines`]): what the
//! API would refuse is mended, and what belongs to another session is left out.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};
use uuid::Uuid;

use super::{blocks, render};
use crate::{
    codec::body,
    domain::{Compacted, EventBody, Revision, Role, StoredEvent, TimestampMicros},
    importer::{canonical, exporter::ExportFault},
};

/// The version of Claude Code whose lines these are like.
const VERSION: &str = "2.0.0";
/// What stands for the result of a call that has none: the API wants one for each.
const NO_RESULT: &str = "[no result was recorded]";

/// What a session is called, and where it goes on.
#[derive(Clone, Debug)]
pub struct Resumed<'a> {
    /// The session's id: its file has this name.
    pub session: Uuid,
    /// The folder in which Claude Code will run.
    pub cwd: &'a str,
    /// What the list of sessions shows.
    pub title: &'a str,
}

/// The lines of a session file, without their ends. `events` are a branch's history,
/// oldest first.
///
/// # Errors
/// [`ExportFault`] names the event that cannot be read.
pub fn resumed_lines(
    events: &[StoredEvent],
    resumed: &Resumed<'_>,
) -> Result<Vec<String>, ExportFault> {
    let mut steps = Vec::new();
    for event in events {
        let revision = event.header.revision;
        let Some(kind) = event.header.kind() else {
            continue;
        };
        let body = body::decode(kind, &event.body)
            .map_err(|fault| ExportFault::Body { revision, fault })?;
        steps.push(Step {
            revision,
            at: event.header.occurred_at.unwrap_or(event.header.recorded_at),
            body,
        });
    }
    let mut writer = Writer::new(resumed, late_results(&steps));
    let cut = steps
        .iter()
        .rposition(|step| matches!(step.body, EventBody::Compacted(_)));
    let last = cut.and_then(|at| match &steps[at].body {
        EventBody::Compacted(compacted) => Some((at, compacted.clone())),
        _ => None,
    });
    let mut compaction = last.as_ref();
    for (index, step) in steps.iter().enumerate() {
        // The summary stands behind what it stands for, before the turns that were kept.
        if let Some((at, compacted)) = compaction
            && (step.revision > compacted.stands_until(steps[*at].revision) || index == *at)
        {
            writer.compaction(compacted, steps[*at].at);
            compaction = None;
        }
        writer.step(index, step);
    }
    Ok(writer.finish())
}

struct Step {
    revision: Revision,
    at: TimestampMicros,
    body: EventBody,
}

/// The result of each call that has one, by the call's place: somebody may have spoken
/// between the two, and the API wants them side by side.
fn late_results(steps: &[Step]) -> HashMap<usize, &Step> {
    let mut open: HashMap<&str, usize> = HashMap::new();
    let mut results = HashMap::new();
    for (index, step) in steps.iter().enumerate() {
        match &step.body {
            EventBody::ToolCallRequested(call) => {
                open.insert(&call.call_id, index);
            }
            EventBody::ToolResultRecorded(result) => {
                if let Some(call) = open.remove(result.call_id.as_str()) {
                    results.insert(call, step);
                }
            }
            EventBody::ToolCallCancelled(cancelled) => {
                if let Some(call) = open.remove(cancelled.call_id.as_str()) {
                    results.insert(call, step);
                }
            }
            _ => {}
        }
    }
    results
}

/// A call that was written without its end.
struct OpenCall {
    /// The id that was recorded.
    recorded: String,
    /// The id that is written.
    written: String,
    /// Its place among the steps.
    place: usize,
}

/// A message under way: what comes next may belong to it.
struct Message {
    /// `user` or `assistant`.
    role: &'static str,
    line: Value,
    content: Vec<Value>,
    at: TimestampMicros,
}

struct Writer<'a> {
    resumed: &'a Resumed<'a>,
    lines: Vec<String>,
    /// The last line's id.
    parent: Option<Uuid>,
    message: Option<Message>,
    /// Calls without a result so far.
    open: Vec<OpenCall>,
    /// By the place of their calls.
    results: HashMap<usize, &'a Step>,
    /// The model that the conversation's settings name, or empty.
    model: String,
    /// Ids of calls that were written.
    used: HashSet<String>,
    /// How often each id came.
    times: HashMap<String, u32>,
}

impl<'a> Writer<'a> {
    fn new(resumed: &'a Resumed<'a>, results: HashMap<usize, &'a Step>) -> Self {
        Self {
            resumed,
            lines: Vec::new(),
            parent: None,
            message: None,
            open: Vec::new(),
            results,
            model: String::new(),
            used: HashSet::new(),
            times: HashMap::new(),
        }
    }

    fn step(&mut self, place: usize, step: &Step) {
        match &step.body {
            EventBody::ConversationCreated(created) => {
                self.model.clone_from(&created.config.model_id);
            }
            EventBody::ConfigChanged(config) => self.model.clone_from(&config.model_id),
            EventBody::UserPromptSet(prompt) if !prompt.content.is_empty() => {
                self.close_calls(step.at);
                let text = json!({"type": "text", "text": prompt.content});
                self.put("user", step.at, vec![text]);
            }
            EventBody::MessageAppended(said) => match said.role {
                Role::User => {
                    self.close_calls(step.at);
                    self.put("user", step.at, usable(&said.parts));
                }
                Role::Assistant => {
                    self.close_calls(step.at);
                    self.flush();
                    let mut line = render::line(&[&step.body], None);
                    if line["message"].get("model").is_none() && !self.model.is_empty() {
                        line["message"]["model"] = self.model.as_str().into();
                    }
                    self.put("assistant", step.at, usable(&said.parts));
                    if let Some(message) = &mut self.message {
                        message.line = line;
                    }
                }
                Role::Tool => {
                    let text = format!("[a tool's result]\n{}", text_of(&said.parts));
                    self.put("user", step.at, vec![json!({"type": "text", "text": text})]);
                }
                // Claude Code has instructions of its own.
                Role::System | Role::Developer => {}
            },
            EventBody::ToolCallRequested(call) => {
                let id = self.new_id(&call.call_id);
                self.open.push(OpenCall {
                    recorded: call.call_id.clone(),
                    written: id.clone(),
                    place,
                });
                let input = serde_json::from_str(call.arguments.as_str())
                    .ok()
                    .filter(Value::is_object)
                    .unwrap_or_else(|| json!({"arguments": call.arguments.as_str()}));
                let block =
                    json!({"type": "tool_use", "id": id, "name": call.tool, "input": input});
                self.put("assistant", step.at, vec![block]);
            }
            EventBody::ToolResultRecorded(result) => self.end(&result.call_id, step),
            EventBody::ToolCallCancelled(cancelled) => self.end(&cancelled.call_id, step),
            _ => {}
        }
    }

    /// An id that no other call has, of letters that the API takes.
    fn new_id(&mut self, recorded: &str) -> String {
        let legal = |c: char| {
            if c.is_ascii_alphanumeric() || c == '-' {
                c
            } else {
                '_'
            }
        };
        let plain: String = recorded.chars().map(legal).collect();
        let times = self.times.entry(plain.clone()).or_default();
        loop {
            *times += 1;
            let id = match *times {
                1 if !plain.is_empty() => plain.clone(),
                times => format!("{plain}_{times}"),
            };
            if self.used.insert(id.clone()) {
                return id;
            }
        }
    }

    /// Ends a call, if it is still open: its end may stand beside it already.
    fn end(&mut self, call_id: &str, step: &Step) {
        if let Some(at) = self.open.iter().position(|call| call.recorded == call_id) {
            let call = self.open.remove(at);
            self.outcome(&call.written, step);
        }
    }

    fn outcome(&mut self, id: &str, step: &Step) {
        match &step.body {
            EventBody::ToolResultRecorded(result) => {
                let content = match blocks::render(&result.parts) {
                    Value::Null => Value::from(result.error_message.as_str()),
                    content => content,
                };
                self.result(id, content, !result.success, step.at);
            }
            EventBody::ToolCallCancelled(cancelled) => {
                let why = match cancelled.detail.as_str() {
                    "" => "[cancelled]",
                    detail => detail,
                };
                self.result(id, why.into(), true, step.at);
            }
            _ => {}
        }
    }

    fn result(&mut self, id: &str, content: Value, failed: bool, at: TimestampMicros) {
        let mut block = json!({"type": "tool_result", "tool_use_id": id, "content": content});
        if failed {
            block["is_error"] = true.into();
        }
        self.put("user", at, vec![block]);
    }

    /// Gives every open call an end: the next message would be refused.
    fn close_calls(&mut self, at: TimestampMicros) {
        for call in std::mem::take(&mut self.open) {
            match self.results.get(&call.place).copied() {
                Some(step) => self.outcome(&call.written, step),
                None => self.result(&call.written, NO_RESULT.into(), true, at),
            }
        }
    }

    /// Adds blocks to the message under way, or begins another one.
    fn put(&mut self, role: &'static str, at: TimestampMicros, content: Vec<Value>) {
        if content.is_empty() {
            return;
        }
        if let Some(message) = self.message.as_mut().filter(|message| message.role == role) {
            message.content.extend(content);
            return;
        }
        self.flush();
        self.message = Some(Message {
            role,
            line: json!({"type": role, "message": {"role": role}}),
            content,
            at,
        });
    }

    fn flush(&mut self) {
        let Some(message) = self.message.take() else {
            return;
        };
        let mut line = message.line;
        line["message"]["content"] = match &message.content[..] {
            [only] if message.role == "user" && only["type"] == "text" => only["text"].clone(),
            _ => message.content.into(),
        };
        self.line(line, message.at);
    }

    /// The boundary and the summary that stand for all that is before.
    fn compaction(&mut self, compacted: &Compacted, at: TimestampMicros) {
        self.close_calls(at);
        self.flush();
        let before = self.parent.take();
        let boundary = json!({
            "type": "system",
            "subtype": "compact_boundary",
            "content": "Conversation compacted",
            "level": "info",
            "logicalParentUuid": before.map(|id| id.to_string()),
            "compactMetadata": {"trigger": "manual", "preTokens": compacted.tokens_before},
        });
        self.line(boundary, at);
        let summary = json!({
            "type": "user",
            "isCompactSummary": true,
            "isVisibleInTranscriptOnly": true,
            "message": {"role": "user", "content": compacted.summary},
        });
        self.line(summary, at);
    }

    fn line(&mut self, mut line: Value, at: TimestampMicros) {
        let id = Uuid::new_v5(
            &self.resumed.session,
            self.lines.len().to_string().as_bytes(),
        );
        let fields = [
            ("parentUuid", json!(self.parent.map(|id| id.to_string()))),
            ("isSidechain", false.into()),
            ("userType", "external".into()),
            ("cwd", self.resumed.cwd.into()),
            ("sessionId", self.resumed.session.to_string().into()),
            ("version", VERSION.into()),
            ("gitBranch", "".into()),
            ("uuid", id.to_string().into()),
            ("timestamp", canonical::render_time(at).into()),
        ];
        for (name, value) in fields {
            line[name] = value;
        }
        self.lines.push(line.to_string());
        self.parent = Some(id);
    }

    fn finish(mut self) -> Vec<String> {
        if let Some(at) = self.message.as_ref().map(|message| message.at) {
            self.close_calls(at);
        }
        self.flush();
        if let Some(leaf) = self.parent {
            let title = self.resumed.title;
            let summary =
                json!({"type": "summary", "summary": title, "leafUuid": leaf.to_string()});
            self.lines.insert(0, summary.to_string());
        }
        self.lines
    }
}

/// The blocks of a message that the API takes again: reasoning only with its signature,
/// no empty texts.
fn usable(parts: &[crate::domain::ContentPart]) -> Vec<Value> {
    let is_usable = |block: &Value| match block["type"].as_str() {
        Some("thinking") => block["signature"]
            .as_str()
            .is_some_and(|text| !text.is_empty()),
        Some("redacted_thinking") => block["data"].as_str().is_some_and(|text| !text.is_empty()),
        Some("text") => block["text"]
            .as_str()
            .is_some_and(|text| !text.trim().is_empty()),
        Some("image") => block["source"]["url"] != "",
        Some(_) => true,
        None => false,
    };
    parts
        .iter()
        .map(blocks::render_block)
        .filter(is_usable)
        .collect()
}

fn text_of(parts: &[crate::domain::ContentPart]) -> String {
    match blocks::render(parts) {
        Value::String(text) => text,
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        domain::*,
        importer::{ImportedConversation, claude_code, stored::stored},
    };

    fn said(role: Role, text: &str) -> EventBody {
        EventBody::MessageAppended(MessageAppended::text(role, text))
    }

    fn call(id: &str, arguments: &'static str) -> EventBody {
        let arguments = JsonText::from_checked(bytes::Bytes::from_static(arguments.as_bytes()));
        EventBody::ToolCallRequested(ToolCallRequested {
            call_id: id.into(),
            tool: "Bash".into(),
            arguments_hash: ContentHash(blake3::hash(arguments.as_bytes()).into()),
            arguments,
            message_revision: None,
            needs_approval: false,
        })
    }

    fn result(id: &str, text: &str) -> EventBody {
        EventBody::ToolResultRecorded(ToolResultRecorded::text(id, text))
    }

    fn lines(bodies: Vec<EventBody>) -> Vec<Value> {
        let conversation = ConversationId(Uuid::from_u128(7));
        let created = EventBody::ConversationCreated(ConversationCreated::default());
        let events = std::iter::once(created).chain(bodies);
        let imported = ImportedConversation {
            conversation,
            source: String::new(),
            source_id: String::new(),
            events: events
                .map(|body| NewEvent::new(conversation, body).on_branch(BranchName::default()))
                .collect(),
            notes: Vec::new(),
            follows: None,
        };
        let resumed = Resumed {
            session: Uuid::from_u128(9),
            cwd: "/home/dev",
            title: "a fork",
        };
        let lines = resumed_lines(&stored(&imported), &resumed).unwrap();
        lines
            .iter()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// The messages as the API gets them.
    fn messages(lines: &[Value]) -> Vec<&Value> {
        lines
            .iter()
            .map(|line| &line["message"])
            .filter(|message| message.is_object())
            .collect()
    }

    // A fork is often where a call was under way, and a history may come from another
    // provider, whose ids of calls come again: what the API refuses would make the
    // session one that cannot go on.
    #[test]
    fn what_the_api_refuses_is_mended() {
        let lines = lines(vec![
            said(Role::System, "be brief"),
            said(Role::User, "list"),
            said(Role::Assistant, "I look."),
            call("call.1", r#"{"command": "ls"}"#),
            call("c", "[1]"),
            result("call.1", "a.rs"),
            said(Role::User, "go on"),
            said(Role::Assistant, ""),
            call("call.1", "{}"),
        ]);
        let messages = messages(&lines);
        let roles: Vec<_> = messages
            .iter()
            .map(|m| m["role"].as_str().unwrap())
            .collect();
        assert_eq!(roles, ["user", "assistant", "user", "assistant", "user"]);
        assert_eq!(messages[0]["content"], "list");
        let asked = &messages[1]["content"];
        assert_eq!(asked[1]["id"], "call_1");
        assert_eq!(asked[2]["input"], json!({"arguments": "[1]"}));
        let answered = &messages[2]["content"];
        assert_eq!(answered[0]["content"], "a.rs");
        assert_eq!(answered[1]["content"], NO_RESULT);
        assert_eq!(answered[2]["text"], "go on");
        assert_eq!(messages[3]["content"][0]["id"], "call_1_2");
        assert_eq!(messages[4]["content"][0]["tool_use_id"], "call_1_2");
        assert_eq!(messages[4]["content"][0]["is_error"], true);
    }

    // Claude Code puts a skill's text before the result of the call that asked for it: the
    // session that was written said that no result was recorded, and a model goes on from
    // that. What was recorded stands at its call, also when it came after the next answer.
    #[test]
    fn a_result_stands_at_its_call_though_somebody_spoke_before_it_came() {
        let lines = lines(vec![
            said(Role::User, "discover"),
            said(Role::Assistant, "I look."),
            call("skill", "{}"),
            call("slow", "{}"),
            said(Role::User, "Base directory for this skill: /skills/x"),
            result("skill", "Launching skill"),
            said(Role::Assistant, "Meanwhile."),
            result("slow", "done at last"),
            said(Role::User, "and?"),
        ]);
        let messages = messages(&lines);
        let answered = &messages[2]["content"];
        assert_eq!(answered[0]["content"], "Launching skill");
        assert_eq!(answered[1]["content"], "done at last");
        assert_eq!(
            answered[2]["text"],
            "Base directory for this skill: /skills/x"
        );
        assert_eq!(messages.len(), 5);
        assert!(
            !lines
                .iter()
                .any(|line| line.to_string().contains(NO_RESULT))
        );
    }

    // The model was in the conversation's settings only: the session came back without
    // one, and its next request had none.
    #[test]
    fn answers_name_their_model() {
        let settings = Config {
            model_id: "claude-opus-4-6".into(),
            ..Config::default()
        };
        let lines = lines(vec![
            EventBody::ConfigChanged(settings),
            said(Role::User, "list"),
            said(Role::Assistant, "one"),
        ]);
        let models: Vec<_> = messages(&lines)
            .iter()
            .map(|message| message["model"].clone())
            .collect();
        assert_eq!(models, [Value::Null, "claude-opus-4-6".into()]);
    }

    // Each line must follow the one before, in one session, or Claude Code shows only a
    // part; and what we write we read.
    #[test]
    fn lines_are_one_session() {
        let lines = lines(vec![
            said(Role::User, "list"),
            said(Role::Assistant, "one"),
            said(Role::User, "again"),
            said(Role::Assistant, "two"),
        ]);
        assert_eq!(lines[0]["summary"], "a fork");
        assert_eq!(lines[0]["leafUuid"], lines[4]["uuid"]);
        assert_eq!(lines[1]["parentUuid"], Value::Null);
        for pair in lines[1..].windows(2) {
            assert_eq!(pair[1]["parentUuid"], pair[0]["uuid"]);
            assert_eq!(pair[1]["sessionId"], Uuid::from_u128(9).to_string());
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("9.jsonl");
        let text: Vec<_> = lines.iter().map(Value::to_string).collect();
        std::fs::write(&file, text.join("\n") + "\n").unwrap();
        let session = claude_code::read_session(&file).unwrap();
        let imported = claude_code::import_session(&session).unwrap();
        let spoken = imported[0]
            .events
            .iter()
            .filter_map(|event| match &event.body {
                EventBody::MessageAppended(said) => Some(said.parts.clone()),
                _ => None,
            });
        let text = |text: &str| vec![ContentPart::Text(text.into())];
        let expected = [text("list"), text("one"), text("again"), text("two")];
        assert_eq!(spoken.collect::<Vec<_>>(), expected);
    }

    // After a compaction only the summary and the turns that were kept are sent: they
    // must follow the boundary, in their order.
    #[test]
    fn a_compaction_stands_before_what_was_kept() {
        let lines = lines(vec![
            said(Role::User, "old"),
            said(Role::Assistant, "old answer"),
            said(Role::User, "kept"),
            said(Role::Assistant, "kept answer"),
            EventBody::Compacted(Compacted {
                summary: "what was".into(),
                cut_revision: Revision(3),
                kept_turns: 1,
                tokens_before: 10,
                tokens_after: 5,
                trigger: CompactionTrigger::Manual,
                raw: None,
            }),
            said(Role::User, "new"),
        ]);
        let boundary = lines
            .iter()
            .position(|line| line["subtype"] == "compact_boundary");
        let boundary = boundary.unwrap();
        assert_eq!(lines[boundary]["parentUuid"], Value::Null);
        assert_eq!(lines[boundary + 1]["isCompactSummary"], true);
        let after = messages(&lines[boundary + 1..]);
        let after: Vec<_> = after.iter().map(|m| m["content"].to_string()).collect();
        assert_eq!(after[0], r#""what was""#);
        assert!(
            after[1].contains("kept") && after[2].contains("kept answer"),
            "{after:?}"
        );
        assert_eq!(after[3], r#""new""#);
    }

    // A source compacted in the middle of a turn: its model was shown nothing from before
    // the summary, so nothing from before may follow it in the file that is resumed.
    #[test]
    fn an_imported_compaction_stands_where_it_was() {
        let lines = lines(vec![
            said(Role::User, "mend it"),
            said(Role::Assistant, "I look."),
            call("c", "{}"),
            result("c", "found"),
            EventBody::Compacted(Compacted {
                summary: "what was".into(),
                cut_revision: Revision(1),
                kept_turns: 0,
                tokens_before: 10,
                tokens_after: 0,
                trigger: CompactionTrigger::Imported,
                raw: None,
            }),
            said(Role::Assistant, "mended"),
        ]);
        let summary = lines
            .iter()
            .position(|line| line["isCompactSummary"] == true);
        let after = messages(&lines[summary.unwrap()..]);
        assert_eq!(after.len(), 2, "{after:?}");
        assert!(
            after[1]["content"].to_string().contains("mended"),
            "{after:?}"
        );
    }
}
