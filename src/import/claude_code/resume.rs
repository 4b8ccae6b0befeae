//! Writes a branch, from any source, as a session that Claude Code can resume. This is not the
//! inverse of an import (see [`super::session_lines`]): it repairs what the API would refuse, and
//! leaves out what belongs to another session.

use std::collections::HashSet;

use serde_json::{Value, json};
use uuid::Uuid;

use super::{SOURCE, blocks, render};
use crate::{
    canonical,
    exporter::ResumeTarget,
    origin::{self, Place},
    raw,
    turns::{Call, CallResult, History, ModelAnswer, Step, TurnContent},
};
use treering_domain::{Compacted, ContentPart, EventBody, MessageAppended, Role, TimestampMicros};

/// The version of Claude Code that uses this format of lines.
const VERSION: &str = "2.0.0";
/// The model of an answer whose source names none. Claude Code itself writes this name where no
/// model answered, and then continues with its default model. If an answer has no model, Claude
/// Code hangs.
const NO_MODEL: &str = "<synthetic>";

/// Returns the lines of a session file.
pub(crate) fn lines(history: &History, resumed: &ResumeTarget<'_>) -> Vec<Value> {
    let mut writer = Writer {
        resumed,
        lines: Vec::new(),
        parent: None,
        messages: HashSet::new(),
        at: TimestampMicros(0),
        place: history.end,
    };
    for turn in history.turns() {
        (writer.at, writer.place) = (turn.at, turn.place);
        match turn.content {
            TurnContent::User { parts, from } => {
                let is_meta = from.is_some_and(is_meta);
                writer.user(usable(&parts), is_meta);
            }
            TurnContent::Answer(answered) => writer.answer(answered),
            TurnContent::Result(result) => writer.result(result),
            TurnContent::Summary(compacted) => writer.compaction(compacted),
        }
    }
    writer.finish(history.end)
}

struct Writer<'a> {
    resumed: &'a ResumeTarget<'a>,
    lines: Vec<Value>,
    /// The id of the last line.
    parent: Option<Uuid>,
    /// Message ids that were written.
    messages: HashSet<String>,
    /// The time and the last event of the next line.
    at: TimestampMicros,
    place: Place,
}

impl Writer<'_> {
    /// Writes an answer as Claude Code does: a line for each piece, all with the message's id.
    fn answer(&mut self, answered: ModelAnswer<'_>) {
        let model = match answered.model.trim() {
            "" => NO_MODEL,
            model => model,
        };
        let id = self.message_id(answered.message_id);
        let nothing = EventBody::MessageAppended(MessageAppended::new(Role::Assistant, Vec::new()));
        for piece in answered.pieces {
            let mut content = usable(piece.parts);
            content.extend(piece.calls.iter().map(tool_use));
            if content.is_empty() {
                continue;
            }
            let mut line = render::line(&[piece.body.unwrap_or(&nothing)], None);
            let message = &mut line["message"];
            message["id"] = id.as_str().into();
            message["model"] = model.into();
            message["content"] = content.into();
            self.at = piece.at;
            self.line(line);
        }
    }

    /// Returns the recorded id, unless another message has it; else a new one.
    fn message_id(&mut self, recorded: Option<&str>) -> String {
        let made = || {
            let line = format!("message {}", self.lines.len());
            let id = Uuid::new_v5(&self.resumed.session, line.as_bytes());
            format!("msg_{}", id.simple())
        };
        let free = recorded.filter(|id| !self.messages.contains(*id));
        let id = free.map_or_else(made, str::to_owned);
        self.messages.insert(id.clone());
        id
    }

    fn result(&mut self, result: CallResult<'_>) {
        let content = blocks::render(&result.parts);
        let mut block =
            json!({"type": "tool_result", "tool_use_id": result.id, "content": content});
        if result.failed {
            block["is_error"] = true.into();
        }
        self.user(vec![block], false);
    }

    /// Writes what a user says, unless it is empty.
    fn user(&mut self, content: Vec<Value>, is_meta: bool) {
        let content = match &content[..] {
            [] => return,
            [only] if only["type"] == "text" => only["text"].clone(),
            _ => content.into(),
        };
        let mut line = json!({"type": "user", "message": {"role": "user", "content": content}});
        if is_meta {
            line["isMeta"] = true.into();
        }
        self.line(line);
    }

    /// Writes the boundary and the summary that replace everything before.
    fn compaction(&mut self, compacted: &Compacted) {
        let before = self.parent.take();
        self.line(json!({
            "type": "system",
            "subtype": "compact_boundary",
            "content": "Conversation compacted",
            "level": "info",
            "logicalParentUuid": before.map(|id| id.to_string()),
            "compactMetadata": {"trigger": "manual", "preTokens": compacted.tokens_before},
        }));
        self.line(json!({
            "type": "user",
            "isCompactSummary": true,
            "isVisibleInTranscriptOnly": true,
            "message": {"role": "user", "content": compacted.summary},
        }));
    }

    fn line(&mut self, mut line: Value) {
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
            ("timestamp", canonical::render_time(self.at).into()),
            (origin::FIELD, self.place.render()),
        ];
        for (name, value) in fields {
            line[name] = value;
        }
        self.lines.push(line);
        self.parent = Some(id);
    }

    fn finish(mut self, end: Place) -> Vec<Value> {
        if let Some(leaf) = self.parent {
            let summary = json!({
                "type": "summary",
                "summary": self.resumed.title,
                "leafUuid": leaf.to_string(),
                origin::FIELD: end.render(),
            });
            self.lines.insert(0, summary);
        }
        origin::end(self.lines, end)
    }
}

fn tool_use(call: &Call<'_>) -> Value {
    json!({"type": "tool_use", "id": call.id, "name": call.asked.tool, "input": call.input()})
}

/// Returns true for messages of a harness in the role of the user, if the source marks them.
fn is_meta(step: &Step) -> bool {
    let EventBody::MessageAppended(said) = &step.body else {
        return false;
    };
    let Some(raw) = said.raw.as_ref().filter(|raw| raw.origin == SOURCE) else {
        return false;
    };
    let rendered = || render::line(&[&step.body], step.occurred_at);
    let line = raw::restore(rendered, Some(raw)).ok();
    let line = line.and_then(|line| serde_json::from_str::<Value>(&line).ok());
    line.is_some_and(|line| line["isMeta"] == true)
}

/// Returns the blocks of a message that the API accepts again: reasoning only with its signature,
/// no empty texts.
fn usable(parts: &[ContentPart]) -> Vec<Value> {
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
    let is_foreign = |part: &&ContentPart| match part {
        ContentPart::Reasoning(thought) => {
            !thought.provider.is_empty() && thought.provider != blocks::PROVIDER
        }
        _ => false,
    };
    parts
        .iter()
        .filter(|part| !is_foreign(part))
        .map(blocks::render_block)
        .filter(is_usable)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ImportedConversation, claude_code, stored::stored, turns::NO_RESULT};
    use treering_domain::*;

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
            ..ToolCallRequested::default()
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
            origin: None,
        };
        let resumed = ResumeTarget {
            session: Uuid::from_u128(9),
            cwd: "/home/dev",
            title: "a fork",
        };
        super::lines(&History::read(&stored(&imported)).unwrap(), &resumed)
    }

    /// Returns the messages as the API gets them: consecutive lines of one side are merged.
    fn messages(lines: &[Value]) -> Vec<Value> {
        let blocks = |content: &Value| match content {
            Value::String(text) => vec![json!({"type": "text", "text": text})],
            content => content.as_array().cloned().unwrap_or_default(),
        };
        let said = lines.iter().map(|line| &line["message"]);
        let mut messages: Vec<Value> = Vec::new();
        for message in said.filter(|message| message.is_object()) {
            let mut content = blocks(&message["content"]);
            match messages.last_mut() {
                Some(last) if last["role"] == message["role"] => {
                    let mut all = blocks(&last["content"]);
                    all.append(&mut content);
                    last["content"] = all.into();
                }
                _ => messages.push(message.clone()),
            }
        }
        messages
    }

    // A fork is often in the middle of calls, and a history may come from another provider with
    // repeated call ids. Anything that the API refuses would make the session impossible to resume.
    #[test]
    fn resumed_session_repairs_what_the_api_refuses() {
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

    // Claude Code puts a skill's text before the result of the call that requested it. A recorded
    // result must be written next to its call, even if it came after the next answer. Otherwise the
    // session says that there was no result, and the model relies on that.
    #[test]
    fn late_result_is_written_next_to_its_call() {
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

    fn piece(id: &str, parts: Vec<ContentPart>, output_tokens: u64) -> EventBody {
        EventBody::MessageAppended(MessageAppended {
            message_id: id.into(),
            usage: Some(Usage {
                input_tokens: 3,
                output_tokens,
                ..Usage::default()
            }),
            ..MessageAppended::new(Role::Assistant, parts)
        })
    }

    // A source records an answer in pieces, each with the answer's id. They must be written as one
    // answer. Otherwise its calls are read back as separate calls without id, model and usage.
    #[test]
    fn answer_in_pieces_is_written_as_one_step() {
        let settings = Config {
            model_id: "claude-opus-4-6".into(),
            ..Config::default()
        };
        let text = |text: &str| vec![ContentPart::Text(text.into())];
        let lines = lines(vec![
            EventBody::ConfigChanged(settings),
            said(Role::User, "look"),
            piece("m1", text("I look."), 7),
            piece("m1", Vec::new(), 7),
            call("a", "{}"),
            result("a", "one"),
            piece("m1", Vec::new(), 8),
            call("b", "{}"),
            said(Role::User, "Base directory for this skill: /skills/x"),
            piece("m1", Vec::new(), 9),
            call("c", "{}"),
            result("c", "three"),
            result("b", "two"),
            piece("m1", text("Done."), 10),
        ]);
        let shape: Vec<_> = lines[1..]
            .iter()
            .map(|line| {
                let message = &line["message"];
                let block = &message["content"][0];
                let name = ["id", "tool_use_id", "text"].map(|name| block[name].as_str());
                let said = message["content"].as_str();
                let what = name.into_iter().flatten().next().or(said);
                (
                    what.unwrap_or_default(),
                    message["id"].as_str().unwrap_or_default(),
                    message["usage"]["output_tokens"].as_u64(),
                )
            })
            .collect();
        let again = lines.last().unwrap()["message"]["id"].as_str().unwrap();
        assert_eq!(
            shape,
            [
                ("look", "", None),
                ("I look.", "m1", Some(7)),
                ("a", "m1", Some(7)),
                ("b", "m1", Some(8)),
                ("c", "m1", Some(9)),
                ("a", "", None),
                ("c", "", None),
                ("b", "", None),
                ("Base directory for this skill: /skills/x", "", None),
                ("Done.", again, Some(10)),
            ]
        );
        assert!(
            again.starts_with("msg_"),
            "another step has another id: {again}"
        );
        let answers = lines.iter().filter(|line| line["type"] == "assistant");
        for answer in answers {
            assert_eq!(answer["message"]["model"], "claude-opus-4-6");
        }
    }

    // Ollama has 999 ids, so two answers sometimes share one. Text after a result or after a user's
    // message must therefore begin a new answer, even with the same id. The same holds for a call
    // after a finished answer.
    #[test]
    fn message_id_does_not_join_across_a_result_or_a_user() {
        let piece = |text: &str, finish: &str| {
            EventBody::MessageAppended(MessageAppended {
                message_id: "chatcmpl-7".into(),
                finish_reason: finish.into(),
                ..MessageAppended::text(Role::Assistant, text)
            })
        };
        let shape = |bodies: Vec<EventBody>| -> Vec<String> {
            let said = |message: Value| {
                let blocks = match &message["content"] {
                    Value::Array(blocks) => blocks.clone(),
                    text => vec![json!({"text": text})],
                };
                let said = ["text", "id", "tool_use_id"];
                let said = |block: &Value| {
                    let mut said = said.iter().filter_map(|name| block[*name].as_str());
                    said.next().map(str::to_owned)
                };
                blocks.iter().filter_map(said).collect::<Vec<_>>().join(" ")
            };
            messages(&lines(bodies)).into_iter().map(said).collect()
        };
        let one = vec![
            said(Role::User, "look"),
            piece("I look.", ""),
            call("a", "{}"),
            result("a", "one"),
            piece("One.", ""),
        ];
        assert_eq!(shape(one), ["look", "I look. a", "a", "One."]);
        let asks_again = vec![
            said(Role::User, "look"),
            piece("", "tool_calls"),
            call("a", "{}"),
            result("a", "one"),
            piece("", "tool_calls"),
            call("b", "{}"),
            result("b", "two"),
        ];
        assert_eq!(shape(asks_again), ["look", "a", "a", "b", "b"]);
        let interrupted = vec![
            said(Role::User, "look"),
            piece("I look.", ""),
            call("a", "{}"),
            said(Role::User, "stop"),
            piece("I stop.", ""),
        ];
        assert_eq!(
            shape(interrupted),
            ["look", "I look. a", "a stop", "I stop."]
        );
    }

    // Some providers have no message ids: each answer must get its own, and the calls of a batch
    // must stay in one line.
    #[test]
    fn answers_without_an_id_get_a_new_id() {
        let lines = lines(vec![
            said(Role::User, "look"),
            said(Role::Assistant, "I look."),
            call("a", "{}"),
            call("b", "{}"),
            result("a", "one"),
            result("b", "two"),
            call("c", "{}"),
            result("c", "three"),
        ]);
        let answers: Vec<_> = lines
            .iter()
            .filter(|line| line["type"] == "assistant")
            .map(|line| &line["message"])
            .collect();
        assert_eq!(answers.len(), 2);
        assert_eq!(answers[0]["content"].as_array().unwrap().len(), 3);
        assert_ne!(answers[0]["id"], answers[1]["id"]);
        assert!(answers[1]["id"].as_str().unwrap().starts_with("msg_"));
    }

    // If only the conversation's settings name the model, the session must be written with it,
    // because its next request uses it.
    #[test]
    fn answers_get_the_model_of_the_configuration() {
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

    // Most sources name no model. Claude Code hangs on resuming an answer without one, so it must
    // get the name that Claude Code itself writes where no model answered.
    #[test]
    fn answers_without_a_model_are_marked_synthetic() {
        let blank = Config {
            model_id: " ".into(),
            ..Config::default()
        };
        let lines = lines(vec![
            said(Role::User, "list"),
            said(Role::Assistant, "I look."),
            call("a", "{}"),
            result("a", "one"),
            EventBody::ConfigChanged(blank),
            call("b", "{}"),
        ]);
        let answers = lines.iter().filter(|line| line["type"] == "assistant");
        let models: Vec<_> = answers.map(|line| &line["message"]["model"]).collect();
        assert_eq!(models, ["<synthetic>", "<synthetic>"]);
    }

    // Each line must follow the previous one, in one session, or Claude Code shows only a part. The
    // importer must be able to read the lines.
    #[test]
    fn written_lines_form_one_parent_chain() {
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

    // After a compaction, only the summary and the kept turns are sent: they must follow the
    // boundary, in order.
    #[test]
    fn compaction_is_written_before_the_kept_turns() {
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
        let after = lines[boundary + 1..].iter();
        let after: Vec<_> = after
            .map(|line| line["message"]["content"].to_string())
            .collect();
        assert_eq!(after[0], r#""what was""#);
        assert!(
            after[1].contains("kept") && after[2].contains("kept answer"),
            "{after:?}"
        );
        assert_eq!(after[3], r#""new""#);
    }

    // A source compacted in the middle of a turn: its model saw nothing from before the summary, so
    // nothing from before may follow it in the resumed file.
    #[test]
    fn imported_compaction_is_written_at_its_place() {
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
