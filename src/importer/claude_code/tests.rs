use std::collections::HashSet;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::{
    domain::{ContentPart, EventBody, EventKind, Role, StoredEvent},
    importer::{
        Plan, plan,
        stored::{assert_legal, stored},
    },
};

fn fixture() -> Session {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/claude-code");
    let found = find_sessions_in(&folder);
    assert_eq!(found.len(), 1);
    read_session(&found[0]).unwrap()
}

fn value(line: &[u8]) -> Value {
    serde_json::from_slice(line).unwrap_or_else(|_| String::from_utf8_lossy(line).into())
}

/// Lines of the session, and of each of its side chains, as they went in.
fn lines_in(session: &Session) -> Vec<Value> {
    let agents = session.agents.iter().flat_map(|(_, lines)| lines);
    session
        .lines
        .iter()
        .chain(agents)
        .map(|line| value(line))
        .collect()
}

/// Imports, checks the rules, and compares every line with what went in.
fn there_and_back(session: &Session) -> Vec<(ImportedConversation, Vec<StoredEvent>)> {
    let imported = import_session(session).unwrap();
    let ids: HashSet<_> = imported.iter().map(|c| c.conversation).collect();
    assert_eq!(ids.len(), imported.len(), "two conversations, one id");
    let mut out = Vec::new();
    let mut lines = Vec::new();
    for conversation in imported {
        let events = stored(&conversation);
        assert_legal(&events);
        assert_eq!(plan(&events, &conversation), Plan::Nothing);
        let back = session_lines(&events).unwrap();
        lines.extend(back.iter().map(|line| value(line).to_string()));
        out.push((conversation, events));
    }
    let mut expected: Vec<_> = lines_in(session).iter().map(Value::to_string).collect();
    // Side chains come after the session; within each, order is kept.
    let sorted = |lines: &[String]| {
        let objects = lines.iter().map(|line| {
            let value: Value = serde_json::from_str(line).unwrap();
            let mut fields: Vec<_> = value
                .as_object()
                .into_iter()
                .flatten()
                .map(|(k, v)| format!("{k}{}", canonical(v)))
                .collect();
            fields.sort();
            if fields.is_empty() {
                line.clone()
            } else {
                fields.concat()
            }
        });
        let mut all: Vec<_> = objects.collect();
        all.sort();
        all
    };
    assert_eq!(sorted(&lines), sorted(&expected));
    if out.len() == 1 {
        let strip = |lines: &mut Vec<String>| {
            for line in lines {
                *line = canonical(&serde_json::from_str(line).unwrap());
            }
        };
        strip(&mut lines);
        strip(&mut expected);
        assert_eq!(lines, expected);
    }
    out
}

/// A text that is equal for values that are equal, whatever their key order.
fn canonical(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let mut fields: Vec<_> = map
                .iter()
                .map(|(k, v)| format!("{k:?}:{}", canonical(v)))
                .collect();
            fields.sort();
            format!("{{{}}}", fields.join(","))
        }
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(canonical).collect();
            format!("[{}]", items.join(","))
        }
        other => other.to_string(),
    }
}

fn names(conversation: &ImportedConversation) -> Vec<&'static str> {
    conversation
        .notes
        .iter()
        .map(|note| note.what.name())
        .collect()
}

// The hand-made session has what real ones have: parallel calls whose results
// are siblings, a rewound prompt, sub-agents, a compaction, an interruption and
// a line that was cut off. All of it must be there, and nothing must fork that
// its user did not fork.
#[test]
fn a_session_becomes_conversations() {
    let session = fixture();
    let imported = there_and_back(&session);
    assert_eq!(imported.len(), 3);
    let (main, events) = &imported[0];
    assert_eq!(
        names(main),
        ["unanswered call", "orphan result", "unreadable line"]
    );
    let forks: Vec<_> = main
        .events
        .iter()
        .filter_map(|event| match &event.body {
            EventBody::BranchForked(forked) => {
                Some((forked.name.as_str().to_owned(), forked.fork_revision))
            }
            _ => None,
        })
        .collect();
    assert_eq!(forks.len(), 1, "{forks:?}");
    let EventBody::ConversationCreated(created) = &main.events[0].body else {
        panic!("another kind");
    };
    assert_eq!(created.title, "Why is the total wrong by a cent?");
    assert!(
        created
            .source_meta
            .as_str()
            .contains("\"cwd\":\"/home/dev/shop\"")
    );

    let compacted = main
        .events
        .iter()
        .find_map(|event| match &event.body {
            EventBody::Compacted(compacted) => Some(compacted),
            _ => None,
        })
        .unwrap();
    assert_eq!(compacted.tokens_before, 155_025);
    let cut = &main.events[compacted.cut_revision.0 as usize - 1].body;
    assert!(matches!(cut, EventBody::MessageAppended(m) if m.message_id == "msg_7"));

    let reasoning = main
        .events
        .iter()
        .find_map(|event| match &event.body {
            EventBody::MessageAppended(message) => {
                message.parts.iter().find_map(|part| match part {
                    ContentPart::Reasoning(thought) => Some(thought),
                    _ => None,
                })
            }
            _ => None,
        })
        .unwrap();
    assert_eq!(reasoning.model, "claude-sonnet-4-5");
    assert_eq!(reasoning.signature.as_ref(), b"c2lnbmF0dXJl");
    assert!(
        events
            .iter()
            .any(|e| e.header.kind() == Some(EventKind::Custom))
    );
}

// A sub-agent's work is a conversation that names the call that asked for it,
// whether it was kept in the session's file or in its own.
#[test]
fn sub_agents_become_sub_contexts() {
    let imported = there_and_back(&fixture());
    let main = &imported[0].0;
    let spawned: Vec<_> = main
        .events
        .iter()
        .filter_map(|event| match &event.body {
            EventBody::SubContextSpawned(spawned) => {
                Some((spawned.conversation, spawned.call_id.as_str()))
            }
            _ => None,
        })
        .collect();
    let returned = main
        .events
        .iter()
        .filter(|e| e.body.kind() == EventKind::SubContextReturned);
    assert_eq!((spawned.len(), returned.count()), (2, 2));
    for (child, _) in &imported[1..] {
        assert!(child.notes.is_empty(), "{:?}", child.notes);
        let EventBody::ConversationCreated(created) = &child.events[0].body else {
            panic!("another kind");
        };
        let parent = created.parent.as_ref().unwrap();
        assert_eq!(parent.conversation, main.conversation);
        assert!(spawned.contains(&(child.conversation, parent.call_id.as_str())));
        let request = &main.events[parent.revision.0 as usize - 1].body;
        assert!(
            matches!(request, EventBody::ToolCallRequested(call) if call.call_id == parent.call_id)
        );
        assert!(!created.shares_history);
    }
}

// A session is imported again and again while it grows: what was stored must
// stay as it is, line by line.
#[test]
fn a_growing_session_only_appends() {
    let whole = fixture();
    let all = import_session(&whole).unwrap();
    let complete = whole.lines.len() - 1;
    for count in 3..complete {
        let mut part = whole.clone();
        part.lines.truncate(count);
        let known = import_session(&part).unwrap();
        let planned = plan(&stored(&known[0]), &all[0]);
        assert!(
            matches!(planned, Plan::Append(_)),
            "{count} lines: {planned:?}"
        );
    }
}

// Text must not be stored both in the events and beside them.
#[test]
fn text_is_stored_once() {
    for (_, events) in there_and_back(&fixture()) {
        for event in events {
            let body = String::from_utf8_lossy(&event.body);
            for text in [
                "Prices are floats; sums",
                "items.iter().map",
                "use a decimal type",
                "rust_decimal 1.36",
            ] {
                let copies = body.matches(text).count();
                // What the tool says twice itself is there twice.
                assert!(
                    copies <= if body.contains("totalTokens") { 2 } else { 1 },
                    "{body}"
                );
            }
        }
    }
}

// Lines that nobody expects must be kept, and never stop the import.
#[test]
fn odd_lines_are_kept() {
    let lines = [
        "null",
        "[]",
        "{}",
        "\"text\"",
        "{",
        "{\"type\":5}",
        r#"{"type":"user"}"#,
        r#"{"type":"user","message":{"role":"user","content":5},"uuid":"z"}"#,
        r#"{"type":"user","message":{"role":"user","content":"hi","n":12345678901234567890123},"uuid":"a"}"#,
        r#"{"type":"user","message":{"role":"user","content":"again"},"uuid":"a"}"#,
        r#"{"type":"user","message":{"role":"user","content":"lost"},"uuid":"b","parentUuid":"nowhere"}"#,
        r#"{"type":"assistant","message":{"role":"assistant","content":"plain","id":"m"},"uuid":"c","parentUuid":"b"}"#,
        r#"{"type":"assistant","message":{"role":"assistant","content":[{"type":"tool_use","id":"","name":"x","input":{}},{"type":"tool_use","id":"t","name":"x","input":[1.0e0]}]},"uuid":"d","parentUuid":"c"}"#,
        r#"{"type":"assistant","message":{"role":"assistant","content":[{"type":"text","text":"late"}]},"uuid":"e","parentUuid":"c","isSidechain":true}"#,
        r#"{"type":"user","message":{"role":"user","content":[]},"uuid":"f","parentUuid":"f"}"#,
    ];
    let session = Session {
        id: "odd".into(),
        lines: lines
            .iter()
            .map(|line| Bytes::from_static(line.as_bytes()))
            .collect(),
        agents: Vec::new(),
    };
    let imported = import_session(&session).unwrap();
    let expected = [
        "unreadable line",
        "unreadable line",
        "unreadable line",
        "unreadable line",
        "number too precise",
        "parent not found",
        "call without id or name",
        "unanswered call",
        "parent not found",
    ];
    assert_eq!(names(&imported[0]), expected);
    assert_eq!(names(&imported[1]), ["sub-context not linked"]);
    let mut back = Vec::new();
    for conversation in &imported {
        let events = stored(conversation);
        assert_legal(&events);
        back.extend(session_lines(&events).unwrap());
    }
    assert_eq!(back.len(), lines.len());
    assert!(
        back.iter()
            .any(|line| value(line)["message"]["content"] == "again")
    );
    let says = |event: &crate::domain::NewEvent| match &event.body {
        EventBody::MessageAppended(m) => {
            m.role == Role::User && m.parts == [ContentPart::Text("again".into())]
        }
        _ => false,
    };
    assert!(
        !imported[0].events.iter().any(says),
        "the same line twice is one message"
    );
}

// Where the tool keeps its sessions nothing may be missing, and agents' files
// are no sessions.
#[test]
fn sessions_are_found_by_folder() {
    let folder = tempfile::tempdir().unwrap();
    let project = folder.path().join("projects").join("-home-x");
    std::fs::create_dir_all(&project).unwrap();
    for name in ["b.jsonl", "a.jsonl", "agent-1.jsonl", "notes.txt"] {
        std::fs::write(project.join(name), r#"{"type":"user","sessionId":"a"}"#).unwrap();
    }
    let found = find_sessions_in(folder.path());
    assert_eq!(found, [project.join("a.jsonl"), project.join("b.jsonl")]);
    assert_eq!(read_session(&found[0]).unwrap().agents.len(), 1);
    assert_eq!(read_session(&found[1]).unwrap().agents.len(), 0);
    assert!(find_sessions_in(&folder.path().join("none")).is_empty());
    assert!(matches!(
        read_session(&project.join("c.jsonl")),
        Err(SessionFault::Read { .. })
    ));
}

// Sessions that the tool really wrote, where a folder of them is named: each line
// comes back, within the rules.
#[test]
fn real_sessions_come_back() {
    let Some(folder) = std::env::var_os("TREERING_TEST_SESSIONS") else {
        println!("skipped: TREERING_TEST_SESSIONS does not name a folder of sessions");
        return;
    };
    let mut files = files_below(Path::new(&folder), 8);
    files.retain(|file| is_lines(file) && !is_agent(file));
    let mut counts = std::collections::BTreeMap::<&str, usize>::new();
    for file in files {
        let Ok(session) = read_session(&file) else {
            continue;
        };
        for (conversation, events) in there_and_back(&session) {
            *counts.entry("(conversations)").or_default() += 1;
            *counts.entry("(events)").or_default() += events.len();
            let forks = events
                .iter()
                .filter(|e| e.header.kind() == Some(EventKind::BranchForked));
            *counts.entry("(branches)").or_default() += forks.count();
            let cuts = events
                .iter()
                .filter(|e| e.header.kind() == Some(EventKind::Compacted));
            *counts.entry("(compacted)").or_default() += cuts.count();
            let line_bytes: usize = session.lines.iter().map(Bytes::len).sum();
            *counts.entry("(bytes in)").or_default() += line_bytes;
            *counts.entry("(bytes of bodies)").or_default() +=
                events.iter().map(|e| e.body.len()).sum::<usize>();
            for event in &conversation.events {
                let raw = match &event.body {
                    EventBody::MessageAppended(message) => message.raw.as_ref(),
                    EventBody::ToolResultRecorded(result) => result.raw.as_ref(),
                    _ => None,
                };
                *counts.entry("(bytes of raw forms)").or_default() +=
                    raw.map_or(0, |raw| raw.data.len());
            }
            for note in &conversation.notes {
                *counts.entry(note.what.name()).or_default() += 1;
            }
        }
    }
    println!("{counts:?}");
}

fn odd_line() -> impl Strategy<Value = Value> {
    let id = || prop::sample::select(vec!["a", "b", "c", "d", "e", "f"]);
    let block = (prop::sample::select(vec!["text", "tool_use", "tool_result", "thinking", "image", "odd"]), id(), any::<bool>())
        .prop_map(|(kind, id, flag)| json!({
            "type": kind, "text": id, "id": id, "name": "Task", "input": {"prompt": id}, "tool_use_id": id,
            "content": if flag { json!(id) } else { json!([{"type": "text", "text": id}]) },
            "is_error": flag, "thinking": "hm", "source": {"type": "url", "url": "u"},
        }));
    let content = prop_oneof![
        "[a-f]{1}".prop_map(Value::from),
        prop::collection::vec(block, 0..4).prop_map(Value::from)
    ];
    let kind = prop::sample::select(vec![
        "user",
        "assistant",
        "user",
        "assistant",
        "system",
        "progress",
    ]);
    let flags = (
        any::<bool>(),
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.1),
    );
    (kind, id(), prop::option::of(id()), content, flags).prop_map(
        |(kind, uuid, parent, content, (short, side, summary))| {
            let mut line = json!({
                "type": kind, "parentUuid": parent, "isSidechain": side,
                "message": {"role": kind, "content": content, "id": if short { "m" } else { uuid }},
            });
            if !short {
                line["uuid"] = uuid.into();
                line["timestamp"] = "2026-01-02T03:04:05.678Z".into();
                line["toolUseResult"] = json!({"agentId": uuid});
            }
            if summary {
                line["isCompactSummary"] = true.into();
            }
            if kind == "system" {
                line["subtype"] = "compact_boundary".into();
            }
            line
        },
    )
}

// All of a session is held at once: a small compressed file that unfolds to more
// than it may have must end there, with the file's name.
#[test]
fn a_session_has_an_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.jsonl");
    let line = format!("{{\"type\":\"{}\"}}\n", "x".repeat(1_000));
    let packed = zstd::encode_all(line.repeat(1_000).as_bytes(), 3).unwrap();
    assert!(packed.len() < 10_000);
    std::fs::write(&path, packed).unwrap();
    let mut left = 2_000_000;
    assert_eq!(read_lines(&path, &mut left).unwrap().len(), 1_000);
    assert!(left < 1_000_000, "what it has is taken");
    let fault = read_lines(&path, &mut 500_000).unwrap_err();
    assert!(matches!(fault, SessionFault::TooLarge { .. }), "{fault}");
}

// A line of many values is a tree of many times its size: it is kept as a line that
// cannot be read, and comes back.
#[test]
fn a_line_with_too_many_values_is_kept_unread() {
    let wide = format!("{{\"type\":\"user\",\"x\":[0{}]}}", ",0".repeat(5 << 20));
    assert!(!SessionLine::read(&Bytes::from(wide)).is_readable());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    // Whatever lines follow each other: the rules hold and every line is kept.
    #[test]
    fn odd_sessions_come_back(lines in prop::collection::vec(odd_line(), 0..16)) {
        let lines = lines.iter().map(|line| Bytes::from(line.to_string()));
        let session = Session { id: "s".into(), lines: lines.collect(), agents: Vec::new() };
        there_and_back(&session);
    }
}
