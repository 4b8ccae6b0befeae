//! Exports conversations as OpenAI chat lines: imported ones are restored exactly, others are
//! rendered the same way. Also exports branches as sessions that agents continue.
//!
//! Events that the engine or an importer made (forks, cancellations, compactions) produce no
//! message, except for a summary that a source sent as one.

use std::collections::HashMap;

use serde_json::Value;
use uuid::Uuid;

use super::{
    canonical::{self, ORIGIN},
    claude_code::resume,
    codex,
    format::Format,
    gemini_cli,
    openai_chat::MESSAGE_TYPE,
    opencode, pi,
    raw::{self, RawFault},
    turns::History,
};
use treering_domain::{
    ConversationCreated, ConversationId, EventBody, MessageAppended, RawMessage, Revision, Role,
    StoredEvent, ToolCallRequested,
};
use treering_proto::body::{self, BodyFault};

/// The source name of conversations that were not imported.
pub(crate) const OWN_SOURCE: &str = "treering";

/// Identity of an exported session, and where it will be resumed.
#[derive(Clone, Debug)]
pub struct ResumeTarget<'a> {
    /// The id by which the session's agent knows it.
    pub session: Uuid,
    /// The folder in which the agent will run.
    pub cwd: &'a str,
    /// The title in the list of sessions.
    pub title: &'a str,
}

/// Why a conversation was not exported. Never quotes its content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportFault {
    /// There is nothing to export.
    #[error("the conversation has no events")]
    Empty,
    /// A stored body cannot be decoded.
    #[error("revision {revision} cannot be read: {fault}")]
    Body {
        /// The event.
        revision: Revision,
        /// The cause.
        fault: BodyFault,
    },
    /// The raw form of the source's message cannot be applied.
    #[error("revision {revision} cannot be exported in its original form: {fault}")]
    Raw {
        /// The event.
        revision: Revision,
        /// The cause.
        fault: RawFault,
    },
}

/// Returns one line, without its end: `{"id", "source", …, "messages": [...]}`.
///
/// `events` are those of one conversation in revision order: of all branches for an imported
/// conversation, of one branch's history for any other. A history that starts in another
/// conversation is accepted too.
///
/// # Errors
/// [`ExportFault`] names the event that cannot be exported.
pub fn export_line(events: &[StoredEvent]) -> Result<String, ExportFault> {
    let conversation = events.last().ok_or(ExportFault::Empty)?.header.conversation;
    let events = decoded(events)?;
    let created = events.iter().find_map(|event| match &event.body {
        EventBody::ConversationCreated(created)
            if event.stored.header.conversation == conversation =>
        {
            Some(created)
        }
        _ => None,
    });
    let mut fields = head_fields(conversation, created);
    let messages = messages(&events)?;
    fields.push(format!("\"messages\":[{}]", messages.join(",")));
    Ok(format!("{{{}}}", fields.join(",")))
}

/// Writes a branch, from any source, as a session that the agent of this format can continue.
/// Returns its lines, without line ends: none for a history without messages, or if no agent reads
/// the format. `events` are the branch's history, oldest first.
///
/// Images, files, reasoning and system messages are left out; Claude Code's sessions keep images
/// and Anthropic's reasoning.
///
/// # Errors
/// [`ExportFault`] names the event that cannot be decoded.
pub fn session_lines(
    format: Format,
    events: &[StoredEvent],
    resumed: &ResumeTarget<'_>,
) -> Result<Vec<String>, ExportFault> {
    let history = History::read(events)?;
    let lines = match format {
        Format::ClaudeCode => resume::lines(&history, resumed),
        Format::Codex => codex::write::lines(&history, resumed),
        Format::Pi => pi::write::lines(&history, resumed),
        Format::GeminiCli => gemini_cli::write::lines(&history, resumed),
        Format::OpenCode => {
            let document = opencode::write::document(&history, resumed);
            document.into_iter().collect()
        }
        _ => Vec::new(),
    };
    Ok(lines.iter().map(Value::to_string).collect())
}

struct DecodedEvent<'a> {
    stored: &'a StoredEvent,
    body: EventBody,
}

impl DecodedEvent<'_> {
    fn place(&self) -> (ConversationId, Revision) {
        (self.stored.header.conversation, self.stored.header.revision)
    }
}

/// Decodes the events. Those of kinds that this version does not know produce no message.
fn decoded(events: &[StoredEvent]) -> Result<Vec<DecodedEvent<'_>>, ExportFault> {
    let known = events.iter().filter_map(|stored| {
        let kind = stored.header.kind()?;
        let revision = stored.header.revision;
        let body = body::decode(kind, &stored.body);
        let body = body.map_err(|fault| ExportFault::Body { revision, fault });
        Some(body.map(|body| DecodedEvent { stored, body }))
    });
    known.collect()
}

/// Returns all fields except the messages, each as `"name":value`.
fn head_fields(conversation: ConversationId, created: Option<&ConversationCreated>) -> Vec<String> {
    let text = |text: &str| Value::from(text).to_string();
    let imported = created.filter(|created| !created.source_id.is_empty());
    let Some(created) = imported else {
        let id = text(&conversation.to_string());
        let source = text(OWN_SOURCE);
        return vec![format!("\"id\":{id}"), format!("\"source\":{source}")];
    };
    let rest = created.source_meta.as_str();
    let rest_has = |field: &str| {
        let rest: Option<HashMap<&str, &serde_json::value::RawValue>> =
            serde_json::from_str(rest).ok();
        rest.is_some_and(|rest| rest.contains_key(field))
    };
    let mut fields = Vec::new();
    if !rest_has("id") {
        fields.push(format!("\"id\":{}", text(&created.source_id)));
    }
    if !created.source.is_empty() && !rest_has("source") {
        fields.push(format!("\"source\":{}", text(&created.source)));
    }
    let inner = rest
        .strip_prefix('{')
        .and_then(|rest| rest.strip_suffix('}'))
        .unwrap_or_default();
    if !inner.is_empty() {
        fields.push(inner.to_owned());
    }
    fields
}

fn messages(events: &[DecodedEvent<'_>]) -> Result<Vec<String>, ExportFault> {
    let calls = calls_by_message(events);
    let mut tools: HashMap<&str, &str> = HashMap::new();
    let mut out = Vec::new();
    for event in events {
        let revision = event.stored.header.revision;
        let occurred_at = event.stored.header.occurred_at;
        let text = match &event.body {
            EventBody::MessageAppended(message) => {
                let calls = calls.get(&event.place()).map_or(&[][..], Vec::as_slice);
                let rendered = canonical::message(message, calls, occurred_at);
                with_own_calls(rendered, calls)
                    .and_then(|rendered| raw::restore(move || rendered, ours(message.raw.as_ref())))
            }
            EventBody::ToolResultRecorded(result) => {
                let tool = tools
                    .get(result.call_id.as_str())
                    .copied()
                    .unwrap_or_default();
                raw::restore(
                    || canonical::result(result, tool, occurred_at),
                    ours(result.raw.as_ref()),
                )
            }
            EventBody::Compacted(compacted) if compacted.raw.is_some() => raw::restore(
                || canonical::summary(compacted, occurred_at),
                ours(compacted.raw.as_ref()),
            ),
            EventBody::SystemPromptSet(prompt) => {
                let message = MessageAppended::text(Role::System, prompt.content.as_str());
                Ok(canonical::message(&message, &[], occurred_at).to_string())
            }
            EventBody::Custom(custom) if custom.type_name == MESSAGE_TYPE => {
                let text = std::str::from_utf8(&custom.data);
                text.map(str::to_owned).map_err(|_| RawFault::NotJson)
            }
            EventBody::ToolCallRequested(call) => {
                tools.insert(&call.call_id, &call.tool);
                continue;
            }
            _ => continue,
        };
        out.push(text.map_err(|fault| ExportFault::Raw { revision, fault })?);
    }
    Ok(out)
}

/// Adds the original form of the calls to a message, if the client kept more fields of them.
fn with_own_calls(mut message: Value, calls: &[&ToolCallRequested]) -> Result<Value, RawFault> {
    for (index, call) in calls.iter().enumerate() {
        let raw = ours(call.raw.as_ref());
        if let (Some(raw), Some(entry)) = (raw, message["tool_calls"].get_mut(index)) {
            let own = raw::restore(|| entry.take(), Some(raw))?;
            *entry = serde_json::from_str(&own).map_err(|_| RawFault::NotJson)?;
        }
    }
    Ok(message)
}

/// Returns a raw form of this format; those of other importers do not apply here.
fn ours(raw: Option<&RawMessage>) -> Option<&RawMessage> {
    raw.filter(|raw| raw.origin == ORIGIN)
}

type Calls<'a> = HashMap<(ConversationId, Revision), Vec<&'a ToolCallRequested>>;

/// Returns the calls of each assistant message: those that name it, and those that name no message
/// and follow it on its branch.
fn calls_by_message<'a>(events: &'a [DecodedEvent<'_>]) -> Calls<'a> {
    let mut calls: Calls<'a> = HashMap::new();
    let mut last_assistant = HashMap::new();
    for event in events {
        let header = &event.stored.header;
        let branch = (header.conversation, header.branch);
        match &event.body {
            EventBody::MessageAppended(message) if message.role == Role::Assistant => {
                last_assistant.insert(branch, header.revision);
            }
            EventBody::ToolCallRequested(call) => {
                let message = call
                    .message_revision
                    .or(last_assistant.get(&branch).copied());
                if let Some(message) = message {
                    let place = (header.conversation, message);
                    calls.entry(place).or_default().push(call);
                }
            }
            _ => {}
        }
    }
    calls
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::json;

    use super::*;
    use crate::{ImportedConversation, openai_chat::import_line, stored::stored};
    use treering_domain::{
        BranchName, Compacted, CompactionTrigger, ContentHash, ContentPart, NewEvent, PromptSet,
        RawEncoding, ToolResultRecorded,
    };
    use treering_proto::json;

    fn native(bodies: Vec<EventBody>) -> Vec<StoredEvent> {
        let conversation = ConversationId(uuid::Uuid::from_u128(7));
        let created = EventBody::ConversationCreated(ConversationCreated::default());
        let main = BranchName::default;
        let events = std::iter::once(created)
            .chain(bodies)
            .map(|body| NewEvent::new(conversation, body).on_branch(main()));
        stored(&ImportedConversation {
            conversation,
            source: String::new(),
            source_id: String::new(),
            follows: None,
            origin: None,
            events: events.collect(),
            notes: Vec::new(),
        })
    }

    fn call(message: Option<u64>) -> EventBody {
        let arguments = json::check(b"{\"a\": 1}").unwrap();
        EventBody::ToolCallRequested(ToolCallRequested {
            call_id: "c".into(),
            tool: "ls".into(),
            arguments_hash: ContentHash(blake3::hash(arguments.as_bytes()).into()),
            arguments,
            message_revision: message.map(Revision),
            needs_approval: false,
            ..ToolCallRequested::default()
        })
    }

    // A conversation made here must be readable elsewhere and by the importer: calls that name no
    // message belong to the last one.
    #[test]
    fn native_conversation_is_exported_and_imported() {
        let said = |role, text: &str| EventBody::MessageAppended(MessageAppended::text(role, text));
        let events = native(vec![
            EventBody::SystemPromptSet(PromptSet {
                id: "p".into(),
                content: "be brief".into(),
            }),
            said(Role::User, "list"),
            EventBody::MessageAppended(MessageAppended::new(Role::Assistant, Vec::new())),
            call(None),
            EventBody::ToolResultRecorded(ToolResultRecorded::text("c", "a.rs")),
            said(Role::Assistant, "one file"),
            EventBody::Compacted(Compacted {
                summary: "s".into(),
                cut_revision: Revision(7),
                kept_turns: 0,
                tokens_before: 1,
                tokens_after: 1,
                trigger: CompactionTrigger::Manual,
                raw: None,
            }),
        ]);
        let line = export_line(&events).unwrap();
        let expected = json!({
            "id": "00000000-0000-0000-0000-000000000007", "source": "treering", "messages": [
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": "list"},
                {"role": "assistant", "content": null, "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "ls", "arguments": "{\"a\": 1}"}}]},
                {"role": "tool", "tool_call_id": "c", "name": "ls", "content": "a.rs"},
                {"role": "assistant", "content": "one file"},
            ]
        });
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), expected);
        assert!(import_line(line.as_bytes()).unwrap().notes.is_empty());
    }

    // A client must be able to keep fields that events do not have without making patches. An
    // object with the remaining fields must suffice, and arguments must stay as they were.
    #[test]
    fn remaining_fields_of_a_client_are_exported() {
        let rest = |data: &'static str| {
            Some(RawMessage {
                origin: ORIGIN.into(),
                provider: String::new(),
                model: String::new(),
                encoding: RawEncoding::Rest,
                data: Bytes::from_static(data.as_bytes()),
            })
        };
        let said = MessageAppended {
            raw: rest(r#"{"annotations": [null], "content": "as it was"}"#),
            ..MessageAppended::text(Role::Assistant, "as it is")
        };
        let asked = ToolCallRequested {
            raw: rest(r#"{"index": 0}"#),
            ..body::tool_call("c", "ls", "{\"a\": 1").unwrap()
        };
        let events = native(vec![
            EventBody::MessageAppended(said),
            EventBody::ToolCallRequested(asked),
        ]);
        let line: Value = serde_json::from_str(&export_line(&events).unwrap()).unwrap();
        let expected = json!({
            "role": "assistant", "content": "as it was", "annotations": [null], "tool_calls": [
                {"id": "c", "type": "function", "index": 0,
                    "function": {"name": "ls", "arguments": "{\"a\": 1"}}]});
        assert_eq!(line["messages"], json!([expected]));
    }

    // A message that cannot be restored must be an error that names the event: silently leaving it
    // out would be a loss.
    #[test]
    fn unrestorable_message_is_reported_with_its_event() {
        assert_eq!(export_line(&[]), Err(ExportFault::Empty));
        let raw = |data: &'static str| {
            EventBody::MessageAppended(MessageAppended {
                raw: Some(RawMessage {
                    origin: ORIGIN.into(),
                    provider: String::new(),
                    model: String::new(),
                    encoding: RawEncoding::JsonPatch,
                    data: Bytes::from_static(data.as_bytes()),
                }),
                ..MessageAppended::new(Role::User, vec![ContentPart::Text("hi".into())])
            })
        };
        let revision = Revision(2);
        let fault = |fault| Err(ExportFault::Raw { revision, fault });
        let misfit = native(vec![raw("[{\"op\":\"remove\",\"path\":\"/none\"}]")]);
        assert_eq!(export_line(&misfit), fault(RawFault::DoesNotApply));
        let no_patch = native(vec![raw("{}")]);
        assert_eq!(export_line(&no_patch), fault(RawFault::NotJson));
        let mut damaged = native(vec![call(None)]);
        damaged[1].body = Bytes::from_static(b"\xff");
        assert!(matches!(
            export_line(&damaged),
            Err(ExportFault::Body {
                revision: Revision(2),
                ..
            })
        ));
    }
}
