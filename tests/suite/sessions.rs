//! Branches that are exported as sessions of agents: their content, and importing them again.

use std::{fs, path::Path};

use serde_json::{Value, json};
use treering::{
    domain::*,
    import::{
        ImportedConversation, claude_code,
        exporter::{self, ResumeTarget},
        format::Format,
        openai_chat, opencode, plan,
        session::ToolSession,
        source::LineSource,
    },
    proto::body,
};

use super::{
    real_data::{files, lines},
    terminal::Shell,
};

/// The session formats of agents.
const AGENTS: [Format; 5] = [
    Format::ClaudeCode,
    Format::Codex,
    Format::GeminiCli,
    Format::OpenCode,
    Format::Pi,
];

/// Number of conversations of each file.
const LOOKED_AT: usize = 12;

const AT: &str = "2030-03-01T10:00:00.000Z";
const AT_MS: u64 = 1_898_589_600_000;

/// Reads an exported session as an import does.
fn imported(format: Format, lines: &[String]) -> ImportedConversation {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("session.jsonl");
    fs::write(&file, lines.join("\n") + "\n").unwrap();
    read(format, &file)
}

fn read(format: Format, file: &Path) -> ImportedConversation {
    let source = LineSource::open(file, |_| {}).unwrap();
    match format {
        Format::ClaudeCode => {
            let session = claude_code::read_session(file).unwrap();
            claude_code::import_session(&session).unwrap().remove(0)
        }
        Format::OpenCode => opencode::read_file(file, source).unwrap().import().unwrap(),
        format => ToolSession::read(format, file, source)
            .unwrap()
            .import()
            .unwrap(),
    }
}

/// Returns an imported conversation as a store would return it. Its branches are not needed here.
fn stored(imported: &ImportedConversation) -> Vec<StoredEvent> {
    let events = imported.events.iter().zip(1..);
    events
        .map(|(new, revision)| StoredEvent {
            header: EventHeader {
                id: EventId(uuid::Uuid::from_u128(u128::from(revision))),
                namespace: Namespace::default(),
                conversation: new.conversation,
                branch: BranchId::MAIN,
                revision: Revision(revision),
                kind: new.body.kind().number(),
                recorded_at: TimestampMicros(0),
                occurred_at: new.occurred_at,
                actor: new.actor.clone(),
                causation_id: new.causation_id,
                correlation_id: new.correlation_id.clone(),
            },
            position: Position::local(revision),
            chain_hash: Default::default(),
            body: body::encode(&new.body),
            erased: false,
        })
        .collect()
}

fn text(parts: &[ContentPart]) -> String {
    let texts: Vec<_> = parts.iter().filter_map(ContentPart::text).collect();
    texts.join("\n").trim().to_owned()
}

/// Returns true for a conversation that every format can express: one branch of texts, calls with
/// an object, and results.
fn is_plain(imported: &ImportedConversation) -> bool {
    let is_text =
        |part: &ContentPart| matches!(part, ContentPart::Text(_) | ContentPart::Reasoning(_));
    imported.events.iter().all(|event| match &event.body {
        EventBody::MessageAppended(said) => said.parts.iter().all(is_text),
        EventBody::ToolResultRecorded(result) => result.parts.iter().all(is_text),
        EventBody::ToolCallRequested(call) => {
            let arguments: Result<Value, _> = serde_json::from_str(call.arguments.as_str());
            arguments.is_ok_and(|arguments| arguments.is_object())
        }
        EventBody::BranchForked(_) | EventBody::Compacted(_) | EventBody::ToolCallCancelled(_) => {
            false
        }
        _ => true,
    })
}

/// Returns the messages, calls and results as text.
fn talk(imported: &ImportedConversation) -> Vec<String> {
    let mut talk: Vec<String> = Vec::new();
    for event in &imported.events {
        match &event.body {
            EventBody::MessageAppended(said) => match (said.role, text(&said.parts)) {
                (Role::System | Role::Developer, _) => {}
                (Role::Tool, text) => talk.push(format!("user: [a tool's result]\n{text}")),
                (_, text) if text.is_empty() => {}
                (role, text) => talk.push(format!("{}: {text}", role.as_str())),
            },
            EventBody::ToolCallRequested(call) => {
                let arguments: Value = serde_json::from_str(call.arguments.as_str()).unwrap();
                let is_legal = |c: char| c.is_ascii_alphanumeric() || c == '-';
                let tool = call.tool.replace(|c| !is_legal(c), "_");
                talk.push(format!("call {tool} {arguments}"));
            }
            EventBody::ToolResultRecorded(result) => {
                talk.push(format!("result {}", text(&result.parts)));
            }
            _ => {}
        }
    }
    talk
}

// Whatever agent a branch is exported for, the session must have the same texts, calls and results,
// each result behind its call.
#[test]
fn real_sessions_say_the_same_in_every_format() {
    let Some(files) = files() else { return };
    let mut sessions = 0;
    for file in &files {
        for line in lines(file).take(LOOKED_AT) {
            let original = openai_chat::import_line(&line).unwrap();
            if !is_plain(&original) {
                continue;
            }
            let resumed = ResumeTarget {
                session: uuid::Uuid::from_u128(9),
                cwd: "/home/dev",
                title: "a fork",
            };
            let events = stored(&original);
            let mut said = talk(&original);
            said.sort();
            let mut first: Option<Vec<String>> = None;
            for agent in AGENTS {
                let name = format!("{agent} of {}", original.source_id);
                let lines = exporter::session_lines(agent, &events, &resumed).unwrap();
                assert!(!lines.is_empty(), "{name}");
                let again = imported(agent, &lines);
                let in_order = talk(&again);
                let mut sorted = in_order.clone();
                sorted.retain(|said| !said.ends_with("[no result was recorded]"));
                sorted.sort();
                assert_eq!(sorted, said, "{name}");
                let first = first.get_or_insert(in_order.clone());
                assert_eq!(in_order, *first, "{name}: the order");
                // Importing an export adds nothing to the exported events.
                let mut back = again;
                back.continue_origin([]);
                assert_eq!(plan(&events, &back).events, [], "{name}");
            }
            sessions += 1;
        }
    }
    assert!(sessions > LOOKED_AT, "{sessions}");
    println!("{sessions} sessions in {} formats", AGENTS.len());
}

/// Adds a prompt and its answer to a session, as an agent does.
fn grow(format: Format, session: &str, number: usize) -> String {
    let mut lines: Vec<Value> = session
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let (prompt, answer) = (format!("prompt {number}"), format!("answer {number}"));
    let texts = [("user", &prompt), ("assistant", &answer)];
    let last = lines.last().unwrap().clone();
    let id = |role: &str| format!("own-{number}-{role}");
    let mut parent = [&last["uuid"], &last["id"]]
        .iter()
        .find(|id| id.is_string())
        .map_or(Value::Null, |id| (*id).clone());
    for (role, text) in texts {
        let block = json!([{"type": "text", "text": text}]);
        let line = match format {
            Format::ClaudeCode => json!({
                "type": role, "uuid": id(role), "parentUuid": parent, "timestamp": AT,
                "sessionId": last["sessionId"], "isSidechain": false, "cwd": "/work",
                "message": {"role": role, "content": block},
            }),
            Format::Codex => json!({
                "timestamp": AT, "type": "response_item",
                "payload": {"type": "message", "role": role, "content": block},
            }),
            Format::GeminiCli => json!({
                "id": id(role), "timestamp": AT, "content": text,
                "type": if role == "user" { "user" } else { "gemini" },
            }),
            Format::Pi => json!({
                "type": "message", "id": id(role), "parentId": parent, "timestamp": AT,
                "message": {"role": role, "content": block},
            }),
            _ => {
                let at = AT_MS + number as u64;
                let info = json!({"id": format!("msg_{}", id(role)), "role": role,
                    "sessionID": last["info"]["id"], "time": {"created": at, "completed": at}});
                let said = json!({"info": info, "parts": [{"type": "text", "text": text}]});
                lines[0]["messages"].as_array_mut().unwrap().push(said);
                continue;
            }
        };
        parent = json!(id(role));
        lines.push(line);
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn json_lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

// If an agent continues an exported branch, only its additions must be appended on import, to the
// exported branch. If that branch has continued meanwhile, they are appended to a fork from the
// exported revision.
#[tokio::test(flavor = "multi_thread")]
async fn continued_export_returns_to_its_branch() {
    let Some(files) = files() else { return };
    let real = files
        .iter()
        .find(|file| file.ends_with("claude-code-entire.jsonl.zst"));
    let line = lines(real.unwrap()).next().unwrap();
    for agent in AGENTS {
        let shell = Shell::new();
        let path = shell.path("real.jsonl");
        fs::write(&path, &line).unwrap();
        shell.ok(&["import", &path]).await;
        let one = json_lines(&shell.ok(&["--json", "ls"]).await).remove(0);
        let id = one["conversation"].as_str().unwrap().to_owned();
        let at = ["fork", &id, "--at", "12", "--name", "again"];
        shell.ok(&at).await;
        let before = shell.ok(&["log", &id, "-b", "main"]).await;

        let export = ["export", "--format", agent.name(), &id, "-b", "again"];
        let exported = shell.ok(&export).await;
        let file = shell.path("session.jsonl");
        let import = ["--json", "import", "--format", agent.name(), &file];
        fs::write(&file, &exported).unwrap();
        let unchanged = json_lines(&shell.ok(&import).await).remove(0);
        assert_eq!(unchanged["events"], 0, "{agent}: {unchanged}");

        let grown = grow(agent, &exported, 1);
        fs::write(&file, &grown).unwrap();
        let counts = json_lines(&shell.ok(&import).await).remove(0);
        assert_eq!(
            (&counts["continued"], &counts["branches"]),
            (&json!(1), &json!(0)),
            "{agent}: {counts}"
        );
        assert_eq!(shell.ok(&["--json", "ls"]).await.lines().count(), 1);
        let main = shell.ok(&["log", &id, "-b", "main"]).await;
        assert_eq!(main, before, "{agent}: the other branch stays");
        let again = shell.ok(&["log", &id, "-b", "again"]).await;
        for said in ["prompt 1", "answer 1"] {
            assert_eq!(again.matches(said).count(), 1, "{agent}: {again}");
        }
        let repeated = json_lines(&shell.ok(&import).await).remove(0);
        assert_eq!(repeated["events"], 0, "{agent}: {repeated}");

        // Both the branch and the session have continued.
        let say = ["append", &id, "-b", "again", "message", "user"];
        shell.ok(&[&say[..], &["meanwhile"]].concat()).await;
        fs::write(&file, grow(agent, &grown, 2)).unwrap();
        let counts = json_lines(&shell.ok(&import).await).remove(0);
        assert_eq!(counts["branches"], 1, "{agent}: {counts}");
        assert_eq!(shell.ok(&["--json", "ls"]).await.lines().count(), 1);
        let active = shell.ok(&["log", &id]).await;
        assert!(
            active.contains("answer 1") && active.contains("answer 2"),
            "{agent}: {active}"
        );
        assert!(!active.contains("meanwhile"), "{agent}: {active}");

        // Another store does not have the conversation, so it becomes a new one there.
        let elsewhere = shell.on("other", &import).await;
        assert_eq!(elsewhere.code, Some(0), "{agent}: {}", elsewhere.err);
        let counts = json_lines(&elsewhere.out).remove(0);
        assert_eq!(counts["new"], 1, "{agent}: {counts}");
    }
}
