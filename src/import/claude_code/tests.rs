use std::collections::{BTreeMap, HashSet};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::{
    exporter::{ResumeTarget, session_lines as session_lines_of},
    format::Format,
    origin, plan,
    stored::{assert_legal, stored},
    turns::NO_RESULT,
};
use treering_domain::{
    Config, ContentPart, ConversationChanged, EventBody, EventKind, NewEvent, Role, StoredEvent,
};

fn fixture() -> Session {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/claude-code");
    let found = find_sessions_in(&folder);
    assert_eq!(found.len(), 1);
    read_session(&found[0]).unwrap()
}

fn value(line: &[u8]) -> Value {
    serde_json::from_slice(line).unwrap_or_else(|_| String::from_utf8_lossy(line).into())
}

/// Returns the input lines of the session and of each of its side chains.
fn lines_in(session: &Session) -> Vec<Value> {
    let agents = session.agents.iter().flat_map(|(_, lines)| lines);
    session
        .lines
        .iter()
        .chain(agents)
        .flat_map(SessionLine::read)
        .map(|line| value(&line.text))
        .collect()
}

/// Imports, checks the rules of appends, and compares every line with the input.
fn there_and_back(session: &Session) -> Vec<(ImportedConversation, Vec<StoredEvent>)> {
    let imported = import_session(session).unwrap();
    let ids: HashSet<_> = imported.iter().map(|c| c.conversation).collect();
    assert_eq!(ids.len(), imported.len(), "two conversations, one id");
    let mut out = Vec::new();
    let mut lines = Vec::new();
    for conversation in imported {
        let events = stored(&conversation);
        assert_legal(&events);
        assert_eq!(plan(&events, &conversation).events, []);
        let back = session_lines(&events).unwrap();
        lines.extend(back.iter().map(|line| value(line).to_string()));
        out.push((conversation, events));
    }
    let mut expected: Vec<_> = lines_in(session).iter().map(Value::to_string).collect();
    // Side chains come after the session; within each, the order must be kept.
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

/// Returns equal texts for equal values, whatever their key order.
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

// The hand-made session has what real ones have: parallel calls whose results are siblings, a
// rewound prompt, sub-agents, a compaction, an interruption and a truncated line. All of it must be
// imported, and only the user's branches may become branches.
#[test]
fn session_becomes_conversations() {
    let session = fixture();
    let imported = there_and_back(&session);
    assert_eq!(imported.len(), 3);
    let (main, events) = &imported[0];
    // The truncated line is left for the next import.
    assert_eq!(session.unfinished.len(), 1);
    assert_eq!(names(main), ["unanswered call", "orphan result"]);
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
    let kept = &main.events[..compacted.cut_revision.0 as usize];
    let last = kept.iter().rev().find_map(|event| match &event.body {
        EventBody::MessageAppended(message) => Some(message.message_id.as_str()),
        _ => None,
    });
    assert_eq!(last, Some("msg_7"));

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

// A sub-agent's work must be a conversation that names the call that started it, whether its lines
// were in the session's file or in their own.
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

// A session is imported repeatedly while it grows: stored events must not change, line by line.
#[test]
fn growing_session_only_appends() {
    let whole = fixture();
    let all = import_session(&whole).unwrap();
    for count in 3..whole.lines.len() {
        let mut part = whole.clone();
        part.lines.truncate(count);
        let known = import_session(&part).unwrap();
        let planned = plan(&stored(&known[0]), &all[0]);
        assert!(!planned.events.is_empty(), "{count} lines");
        assert_eq!(planned.parted, [], "{count} lines");
    }
}

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// Returns a user line of a session; `None` as parent is written as null.
fn user(session: &str, uuid: &str, parent: Option<&str>, text: &str) -> String {
    json!({"type": "user", "uuid": uuid, "parentUuid": parent, "sessionId": session,
        "message": {"role": "user", "content": text}})
    .to_string()
}

/// Returns an assistant line.
fn assistant(uuid: &str, parent: &str, content: Value) -> String {
    json!({"type": "assistant", "uuid": uuid, "parentUuid": parent, "sessionId": "s",
        "message": {"role": "assistant", "id": format!("m-{uuid}"), "content": content}})
    .to_string()
}

fn session_of(lines: &[String]) -> Session {
    Session {
        id: "s".into(),
        lines: lines.iter().map(|line| line.clone().into()).collect(),
        ..Session::default()
    }
}

fn texts(conversation: &ImportedConversation) -> Vec<(String, &str)> {
    let said = conversation.events.iter().filter_map(|event| {
        let branch = event.branch.as_ref().unwrap().as_str().to_owned();
        match &event.body {
            EventBody::MessageAppended(message) => Some((branch, message.parts.first()?.text()?)),
            EventBody::Compacted(compacted) => Some((branch, compacted.summary.as_str())),
            EventBody::BranchActivated => Some((branch, "(active)")),
            _ => None,
        }
    });
    said.collect()
}

// A message that the user typed while calls ran is a sibling of their results. It must not open a
// branch, because the model answered it as part of the history.
#[test]
fn message_during_calls_opens_no_branch() {
    let result = |uuid: &str, parent: &str, id: &str| {
        json!({"type": "user", "uuid": uuid, "parentUuid": parent, "sessionId": "s",
            "message": {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": id, "content": id}]}})
        .to_string()
    };
    let call = |id: &str| json!({"type": "tool_use", "id": id, "name": "ls", "input": {}});
    let first = [
        user("s", "a", None, "look"),
        assistant("b", "a", json!([call("t1"), call("t2")])),
    ];
    let results = [result("r1", "b", "t1"), result("r2", "r1", "t2")];
    let said = user("s", "u", Some("b"), "and test it");
    let answer = |parent: &str| assistant("c", parent, json!([{"type": "text", "text": "yes"}]));
    let [one, two] = results;
    for rest in [
        [one.clone(), said.clone(), two.clone(), answer("r2")],
        [said.clone(), one.clone(), two.clone(), answer("r2")],
        [one.clone(), two.clone(), said.clone(), answer("r2")],
        [one, two, said, answer("u")],
    ] {
        let lines = [&first[..], &rest[..]].concat();
        let whole = there_and_back(&session_of(&lines)).remove(0).0;
        let said: Vec<_> = texts(&whole).into_iter().map(|(_, text)| text).collect();
        assert_eq!(said, ["look", "and test it", "yes"]);
        assert!(names(&whole).is_empty(), "{:?}", names(&whole));
        let forks = whole.events.iter().map(|event| event.body.kind());
        assert!(
            !forks
                .into_iter()
                .any(|kind| kind == EventKind::BranchForked)
        );
        for count in 1..lines.len() {
            let part = import_session(&session_of(&lines[..count])).unwrap();
            assert_eq!(plan(&stored(&part[0]), &whole).parted, [], "{count}");
        }
    }
}

// On a server with a thousand ids, two answers may share one. Their results must not be taken for
// those of one answer: a retry must open a branch.
#[test]
fn retry_with_a_repeated_id_opens_a_branch() {
    let result = |uuid: &str, parent: &str| {
        json!({"type": "user", "uuid": uuid, "parentUuid": parent, "sessionId": "s",
            "message": {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": parent, "content": "one"}]}})
        .to_string()
    };
    let asks = |uuid: &str, parent: &str, id: &str| {
        json!({"type": "assistant", "uuid": uuid, "parentUuid": parent, "sessionId": "s",
            "message": {"role": "assistant", "id": id, "stop_reason": "tool_use", "content": [
                {"type": "tool_use", "id": uuid, "name": "ls", "input": {}}]}})
        .to_string()
    };
    let again = |parent: &str| {
        let said = json!([{"type": "text", "text": "I try again."}]);
        assistant("again", parent, said)
    };
    let far = [
        user("s", "u", None, "look"),
        asks("a1", "u", "msg_7"),
        result("r1", "a1"),
        asks("a2", "r1", "msg_8"),
        result("r2", "a2"),
        asks("a3", "r2", "msg_7"),
        result("r3", "a3"),
        again("r1"),
    ];
    let near = [
        user("s", "u", None, "look"),
        asks("a1", "u", "msg_7"),
        result("r1", "a1"),
        asks("a2", "r1", "msg_7"),
        result("r2", "a2"),
        again("r1"),
    ];
    for lines in [&far[..], &near[..]] {
        let (whole, _) = there_and_back(&session_of(lines)).remove(0);
        let said = texts(&whole);
        let (branch, _) = said
            .iter()
            .find(|(_, text)| *text == "I try again.")
            .unwrap();
        assert_ne!(branch, "main", "{said:?}");
    }
}

/// Imports a session of two turns, the second with `steps` steps, whose compaction keeps the lines
/// from `head` on; returns the cut and the number of kept turns.
fn compacted_keeping(head: &str, steps: usize, field: &str) -> (u64, u32) {
    let text = |text: &str| json!([{"type": "text", "text": text}]);
    let mut lines = vec![
        user("s", "a", None, "one"),
        assistant("b", "a", text("1")),
        user("s", "c", Some("b"), "two"),
    ];
    let mut parent = "c".to_owned();
    for step in 0..steps {
        let uuid = format!("d{step}");
        lines.push(assistant(&uuid, &parent, text("2")));
        parent = uuid;
    }
    let kept = match field {
        "preservedSegment" => json!({"headUuid": head, "anchorUuid": "s", "tailUuid": parent}),
        _ => json!({"anchorUuid": "s", "uuids": [head]}),
    };
    lines.push(
        json!({"type": "system", "subtype": "compact_boundary", "uuid": "x", "sessionId": "s",
        "parentUuid": null, "logicalParentUuid": parent, "content": "Conversation compacted",
        "compactMetadata": {"trigger": "auto", "preTokens": 9, field: kept}})
        .to_string(),
    );
    let mut summary: Value = serde_json::from_str(&user("s", "s", Some("x"), "what was")).unwrap();
    summary["isCompactSummary"] = json!(true);
    lines.push(summary.to_string());
    let (imported, _) = there_and_back(&session_of(&lines)).remove(0);
    let compacted = imported.events.iter().find_map(|event| match &event.body {
        EventBody::Compacted(compacted) => Some(compacted),
        _ => None,
    });
    let compacted = compacted.unwrap();
    (compacted.cut_revision.0, compacted.kept_turns)
}

// Newer versions keep the last messages beside a summary, under different names. A cut must be
// between turns: if only the end of a long turn was kept, the summary replaces all of it.
#[test]
fn compaction_keeps_the_preserved_turns() {
    for field in ["preservedSegment", "preservedMessages"] {
        assert_eq!(compacted_keeping("c", 1, field), (3, 1), "{field}");
        assert_eq!(compacted_keeping("d1", 4, field), (3, 1), "{field}");
        assert_eq!(compacted_keeping("a", 1, field), (1, 2), "{field}");
        assert_eq!(compacted_keeping("gone", 1, field).1, 0, "{field}");
        assert_eq!(compacted_keeping("d38", 40, field).1, 0, "{field}");
    }
}

/// Returns an assistant line with the name of its model.
fn answered(uuid: &str, parent: &str, model: &str) -> String {
    let mut line: Value = serde_json::from_str(&assistant(
        uuid,
        parent,
        json!([
        {"type": "text", "text": uuid}]),
    ))
    .unwrap();
    line["message"]["model"] = json!(model);
    line.to_string()
}

/// Returns the models that events set, in order.
fn models(events: &[NewEvent]) -> Vec<&str> {
    let set = events.iter().filter_map(|event| match &event.body {
        EventBody::ConversationCreated(created) => Some(created.config.model_id.as_str()),
        EventBody::ConfigChanged(config) => Some(config.model_id.as_str()),
        _ => None,
    });
    set.collect()
}

// An imported session needs a model for its next request, and every line of an answer names one.
// The user may change the model, and a session may be imported before any answer. A later setting
// must not be reverted.
#[test]
fn session_gets_the_model_of_its_answers() {
    let lines = [
        user("s", "a", None, "hi"),
        answered("b", "a", "<synthetic>"),
        answered("c", "b", "claude-a"),
        user("s", "d", Some("c"), "and now?"),
        answered("e", "d", "claude-b"),
        answered("f", "e", "claude-b"),
    ];
    let imported = |lines: &[String]| import_session(&session_of(lines)).unwrap().remove(0);
    let whole = there_and_back(&session_of(&lines)).remove(0).0;
    assert_eq!(models(&whole.events), ["claude-a", "claude-b"]);
    for (count, said) in [
        (1, &["claude-a", "claude-b"][..]),
        (2, &["claude-a", "claude-b"]),
        (3, &["claude-b"]),
        (5, &[]),
        (6, &[]),
    ] {
        let mut all = imported(&lines[..count]);
        let rest = plan(&stored(&all), &whole);
        assert_eq!((models(&rest.events), rest.parted), (said.to_vec(), vec![]));
        all.events.extend(rest.events);
        assert_eq!(plan(&stored(&all), &whole).events, [], "{count}");
    }
    let mut own = imported(&lines[..3]);
    let mine = EventBody::ConfigChanged(Config {
        model_id: "mine".into(),
        ..Config::default()
    });
    own.events.push(NewEvent::new(own.conversation, mine));
    let rest = plan(&stored(&own), &imported(&lines[..4]));
    assert_eq!((models(&rest.events), rest.parted), (vec![], vec![]));
}

// Real files often have the same name: 548 of 552 were named full.jsonl. Standard input has no name
// at all. The lines must identify the session of a file.
#[test]
fn session_id_is_read_from_its_lines() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a", "b"] {
        std::fs::create_dir(folder.path().join(name)).unwrap();
    }
    let id = |name: &str, text: &str| read_session(&write(folder.path(), name, text)).unwrap().id;
    let snapshot = r#"{"type":"file-history-snapshot","messageId":"m"}"#;
    let first = format!("{snapshot}\n{}\n", user("s1", "a", None, "hi"));
    assert_eq!(id("a/full.jsonl", &first), "s1");
    assert_eq!(id("b/full.jsonl", &user("s2", "a", None, "hi")), "s2");
    // Lines of a surrounding session do not count.
    let around = r#"{"type":"progress","sessionId":"s0","data":{}}"#;
    let both = format!("{around}\n{}\n", user("s1", "a", None, "hi"));
    assert_eq!(id("a/full.jsonl", &both), "s1");
    // A file whose lines do not identify it is identified by its name.
    assert_eq!(id("b/named.jsonl", snapshot), "named");
}

// A session that is being written ends in the middle of a line. If that line were stored as an
// unreadable line, later imports of the session would be refused.
#[test]
fn unfinished_last_line_is_left_for_the_next_import() {
    let folder = tempfile::tempdir().unwrap();
    let lines = [
        user("s", "a", None, "one"),
        user("s", "b", Some("a"), "two"),
    ];
    let whole = lines.join("\n");
    let known = stored(&import_session(&session_of(&lines)).unwrap()[0]);
    for cut in lines[0].len() + 1..whole.len() {
        let path = write(folder.path(), "full.jsonl", &whole[..cut]);
        let session = read_session(&path).unwrap();
        let is_cut = cut > lines[0].len() + 1;
        assert_eq!(session.unfinished.len(), usize::from(is_cut), "{cut}");
        assert_eq!(session.lines.len(), 1);
        let part = stored(&import_session(&session).unwrap()[0]);
        let next = plan(&part, &import_session(&session_of(&lines)).unwrap()[0]);
        assert_eq!((next.events.len(), next.parted.len()), (1, 0), "{cut}");
    }
    let session = read_session(&write(folder.path(), "full.jsonl", &whole)).unwrap();
    assert!(session.unfinished.is_empty());
    assert_eq!(
        plan(&known, &import_session(&session).unwrap()[0]).events,
        []
    );
}

// A writer that was killed between two lines leaves both on one line: they must be two.
#[test]
fn two_objects_on_one_line_are_two_lines() {
    let lines = [
        user("s", "a", None, "one"),
        user("s", "b", Some("a"), "two"),
    ];
    let joined = session_of(&[lines.concat(), format!("{} rest", lines[0])]);
    let imported = import_session(&joined).unwrap();
    let main = "main".to_owned();
    assert_eq!(texts(&imported[0]), [(main.clone(), "one"), (main, "two")]);
    assert_eq!(names(&imported[0]), ["unreadable line"]);
    let back = session_lines(&stored(&imported[0])).unwrap();
    assert_eq!(back.len(), 4);
    assert_eq!(back[3], b"rest");
}

// A line whose parent is not in the file must follow the previous line, whatever is in between. A
// branch at the very beginning would lack the history.
#[test]
fn line_with_a_missing_parent_follows_the_previous_line() {
    let hook = r#"{"type":"progress","uuid":"h","parentUuid":"gone","data":{}}"#.to_owned();
    let lines = [
        user("s", "a", None, "one"),
        assistant("b", "a", json!([{"type": "text", "text": "two"}])),
        hook,
        user("s", "c", Some("h"), "three"),
        user("s", "d", Some("lost"), "four"),
    ];
    let imported = there_and_back(&session_of(&lines)).remove(0).0;
    let on_main = ["one", "two", "three", "four"].map(|text| ("main".to_owned(), text));
    assert_eq!(texts(&imported), on_main);
    assert_eq!(names(&imported), ["parent not found"]);
}

// Messages of a long session after a checkpoint are in a file of their own, whose first line
// follows one of another file. The import must continue after that line, whatever is kept beside
// it, and a repeated import must add nothing.
#[test]
fn second_file_of_a_session_continues_at_its_parent() {
    let snapshot = |n: u8| format!(r#"{{"type":"file-history-snapshot","messageId":"{n}"}}"#);
    let one = [
        user("s", "a", None, "one"),
        assistant(
            "b",
            "a",
            json!([{"type": "tool_use", "id": "t", "name": "x", "input": {}}]),
        ),
        snapshot(1),
    ];
    let two = [
        snapshot(2),
        user("s", "c", Some("b"), "three"),
        user("s", "d", Some("c"), "four"),
    ];
    let lost = [user("s", "z", Some("y"), "five")];
    let parts =
        [&one[..], &two, &lost].map(|lines| import_session(&session_of(lines)).unwrap().remove(0));
    let mut all = parts[0].clone();
    for part in [1, 2, 0, 1, 2, 1] {
        let planned = plan(&stored(&all), &parts[part]);
        assert_eq!(planned.parted, []);
        all.events.extend(planned.events);
    }
    let on_main = ["one", "three", "four"].map(|text| ("main".to_owned(), text));
    assert_eq!(texts(&all)[..3], on_main);
    assert_eq!(session_lines(&stored(&all)).unwrap().len(), 7);
}

// The file of a resumed session begins with lines of the earlier one. It must get its own id.
#[test]
fn resumed_session_has_the_id_of_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let own = user("new", "b", Some("a"), "and now?");
    let lines = [user("old", "a", None, "mend it"), own.clone()];
    let read = |name: &str, lines: &[String]| {
        let path = dir.path().join(name);
        std::fs::write(&path, lines.join("\n") + "\n").unwrap();
        read_session(&path).unwrap()
    };
    let session = read("new.jsonl", &lines);
    assert_eq!(session.id, "new");
    let imported = there_and_back(&session).remove(0).0;
    assert_eq!(imported.source_id, "new");
    assert_eq!(texts(&imported).len(), 2);
    // A copy under another name has the session id of its lines.
    assert_eq!(read("copy.jsonl", &lines).id, "old");
}

// A title that was given after the first prompt must be used.
#[test]
fn latest_title_is_used() {
    let titled = |lines: &[String]| {
        let imported = import_session(&session_of(lines)).unwrap().remove(0);
        match &imported.events[0].body {
            EventBody::ConversationCreated(created) => created.title.clone(),
            other => panic!("{other:?}"),
        }
    };
    let mut lines = vec![user("s", "a", None, "mend it")];
    assert_eq!(titled(&lines), "mend it");
    lines.push(r#"{"type":"ai-title","sessionId":"s","aiTitle":"Mending"}"#.to_owned());
    assert_eq!(titled(&lines), "Mending");
    for name in ["Mine", "All mine"] {
        let line = json!({"type": "custom-title", "sessionId": "s", "customTitle": name});
        lines.push(line.to_string());
    }
    assert_eq!(titled(&lines), "All mine");
}

// A prompt that was rewound and repeated continues where it was given last. That branch must be
// active, not the abandoned one.
#[test]
fn last_continued_branch_is_active() {
    let lines = [
        user("s", "a", None, "one"),
        assistant("b", "a", json!([{"type": "text", "text": "two"}])),
        user("s", "c", Some("b"), "left"),
        user("s", "d", Some("b"), "again"),
    ];
    let imported = there_and_back(&session_of(&lines)).remove(0).0;
    let last = texts(&imported);
    let branch = "at-3".to_owned();
    assert_eq!(last[3..], [(branch.clone(), "again"), (branch, "(active)")]);
}

// Every event that an import adds needs a time, or an old session is listed as new: the activation
// of the continued branch when the last line has no time, and events appended to a stored session.
#[test]
fn events_added_by_an_import_have_times() {
    let timed = |line: String, time: &str| {
        let mut line: Value = serde_json::from_str(&line).unwrap();
        line["timestamp"] = time.into();
        line.to_string()
    };
    let text = json!([{"type": "text", "text": "two"}]);
    let lines = [
        timed(user("s", "a", None, "one"), "2026-01-05T09:00:00Z"),
        timed(assistant("b", "a", text), "2026-01-05T09:01:00Z"),
        timed(user("s", "c", Some("b"), "left"), "2026-01-05T09:02:00Z"),
        timed(user("s", "d", Some("b"), "again"), "2026-01-05T09:03:00Z"),
        json!({"type": "summary", "summary": "All of it", "leafUuid": "d"}).to_string(),
    ];
    let times = |events: &[NewEvent]| -> Vec<_> {
        let timed = events
            .iter()
            .filter(|event| event.body.kind() != EventKind::Custom);
        timed.map(|event| event.occurred_at).collect()
    };
    let imported = there_and_back(&session_of(&lines)).remove(0).0;
    let times_of_all = times(&imported.events);
    assert!(times_of_all.iter().all(Option::is_some), "{times_of_all:?}");
    assert_eq!(times_of_all.last(), times_of_all.iter().max());
    let begun = there_and_back(&session_of(&lines[..3])).remove(0).1;
    let rest = plan(&begun, &imported).events;
    assert!(rest.len() > 2, "{rest:?}");
    assert!(times(&rest).iter().all(Option::is_some), "{rest:?}");
}

// A session that was written for resuming must be read back with the same steps, calls, results,
// ids, models and usage.
#[test]
fn resumed_session_reads_back_equal() {
    let mut sessions = vec![fixture()];
    let call = |id: &str| json!([{"type": "tool_use", "id": id, "name": "ls", "input": {}}]);
    let piece = |uuid: &str, parent: &str, content: Value| {
        let mut line: Value = serde_json::from_str(&assistant(uuid, parent, content)).unwrap();
        line["message"]["id"] = "m".into();
        line["message"]["model"] = "claude-opus-4-6".into();
        line["message"]["usage"] = json!({"input_tokens": 3, "output_tokens": 7});
        line.to_string()
    };
    let result = |uuid: &str, parent: &str, id: &str| {
        json!({"type": "user", "uuid": uuid, "parentUuid": parent, "sessionId": "s",
            "message": {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": id, "content": id}]}})
        .to_string()
    };
    let thought = json!([{"type": "thinking", "thinking": "hm", "signature": "c2ln"}]);
    let mut end = value(assistant("h", "g", json!([{"type": "text", "text": "Two."}])).as_bytes());
    end["message"]["model"] = "claude-opus-4-6".into();
    sessions.push(session_of(&[
        user("s", "a", None, "look"),
        piece("b", "a", thought),
        piece("c", "b", json!([{"type": "text", "text": "I look."}])),
        piece("d", "c", call("t1")),
        piece("e", "d", call("t2")),
        result("f", "e", "t1"),
        result("g", "f", "t2"),
        end.to_string(),
    ]));
    for session in sessions {
        let written = |imported: &ImportedConversation| {
            let history = of_active_branch(&stored(imported));
            let lines = resumed(&history);
            assert_can_go_on(&lines);
            (history, lines)
        };
        let imported = import_session(&session).unwrap().remove(0);
        let (history, lines) = written(&imported);
        let again = import_session(&session_of(&lines)).unwrap().remove(0);
        let (history_again, lines_again) = written(&again);
        assert_eq!(values(&lines_again), values(&lines));
        let steps = steps_of(&history);
        assert!(!steps.is_empty());
        assert_eq!(steps_of(&history_again), steps);
    }
}

/// Returns the history of the active branch.
fn of_active_branch(events: &[StoredEvent]) -> Vec<StoredEvent> {
    let mut parents = HashMap::new();
    let mut active = treering_domain::BranchId::MAIN;
    for event in events {
        let kind = event.header.kind().unwrap();
        match treering_proto::body::decode(kind, &event.body).unwrap() {
            EventBody::BranchForked(forked) => {
                parents.insert(event.header.branch, (forked.parent, forked.fork_revision));
            }
            EventBody::BranchActivated => active = event.header.branch,
            _ => {}
        }
    }
    let mut until = HashMap::from([(active, treering_domain::Revision(u64::MAX))]);
    let mut branch = active;
    while let Some((parent, at)) = parents.get(&branch) {
        until.insert(*parent, *at);
        branch = *parent;
    }
    let is_in = |event: &&StoredEvent| {
        let header = &event.header;
        until
            .get(&header.branch)
            .is_some_and(|at| header.revision <= *at)
    };
    events.iter().filter(is_in).cloned().collect()
}

/// Returns the text and calls of each assistant message, and the results of its calls.
fn steps_of(history: &[StoredEvent]) -> Vec<String> {
    let mut steps = Vec::new();
    for event in history {
        let kind = event.header.kind().unwrap();
        match treering_proto::body::decode(kind, &event.body).unwrap() {
            EventBody::MessageAppended(said) if said.role == Role::Assistant => {
                let model = said.raw.as_ref().map(|raw| raw.model.clone());
                let id = &said.message_id;
                steps.push(format!("{id} {model:?} {:?} {:?}", said.usage, said.parts));
            }
            EventBody::ToolCallRequested(call) => {
                steps.push(format!(
                    "{} {} {:?}",
                    call.call_id, call.tool, call.arguments
                ));
            }
            // The placeholder for a missing result is read back as a result.
            EventBody::ToolResultRecorded(result)
                if result.parts[..] == [ContentPart::Text(NO_RESULT.into())] => {}
            EventBody::ToolResultRecorded(result) => {
                steps.push(format!(
                    "{} {} {:?}",
                    result.call_id, result.success, result.parts
                ));
            }
            _ => {}
        }
    }
    steps
}

// A compaction contains its summary. Neither the summary nor the boundary before it may also be a
// message of the window.
#[test]
fn summary_is_in_the_compaction_and_not_a_message() {
    let boundary = json!({"type": "system", "subtype": "compact_boundary", "uuid": "x",
        "parentUuid": null, "logicalParentUuid": "b", "content": "Conversation compacted",
        "compactMetadata": {"trigger": "auto", "preTokens": 9}});
    let mut summary: Value =
        serde_json::from_str(&user("s", "y", Some("x"), "all so far")).unwrap();
    summary["isCompactSummary"] = true.into();
    summary["isVisibleInTranscriptOnly"] = true.into();
    let lines = [
        user("s", "a", None, "one"),
        assistant("b", "a", json!([{"type": "text", "text": "two"}])),
        boundary.to_string(),
        summary.to_string(),
        assistant("z", "y", json!([{"type": "text", "text": "three"}])),
    ];
    let imported = there_and_back(&session_of(&lines)).remove(0).0;
    let said: Vec<_> = texts(&imported).into_iter().map(|(_, text)| text).collect();
    assert_eq!(said, ["one", "two", "all so far", "three"]);
    let compacted = imported.events.iter().find_map(|event| match &event.body {
        EventBody::Compacted(compacted) => Some((compacted.tokens_before, compacted.raw.is_some())),
        _ => None,
    });
    assert_eq!(compacted, Some((9, true)));
    // A session that is still being written must only grow.
    let whole = import_session(&session_of(&lines)).unwrap();
    for count in 1..lines.len() {
        let part = import_session(&session_of(&lines[..count])).unwrap();
        assert_eq!(plan(&stored(&part[0]), &whole[0]).parted, [], "{count}");
    }
}

// The tool compacts when its window is full: not at the end of a turn, but directly after a result,
// even twice in a turn. Such summaries must become compactions too.
#[test]
fn compaction_inside_a_turn_is_imported() {
    let boundary = |uuid: &str, after: &str| {
        json!({"type": "system", "subtype": "compact_boundary", "uuid": uuid,
            "parentUuid": null, "logicalParentUuid": after, "content": "Conversation compacted",
            "compactMetadata": {"trigger": "auto", "preTokens": 9}})
        .to_string()
    };
    let summary = |uuid: &str, parent: &str, text: &str| {
        let mut line: Value = serde_json::from_str(&user("s", uuid, Some(parent), text)).unwrap();
        line["isCompactSummary"] = true.into();
        line.to_string()
    };
    let asks = |uuid: &str, parent: &str, id: &str| {
        let call = json!([{"type": "tool_use", "id": id, "name": "Bash", "input": {}}]);
        assistant(uuid, parent, call)
    };
    let result = |uuid: &str, parent: &str, id: &str| {
        json!({"type": "user", "uuid": uuid, "parentUuid": parent, "sessionId": "s",
            "message": {"role": "user",
                "content": [{"type": "tool_result", "tool_use_id": id, "content": "r"}]}})
        .to_string()
    };
    let lines = [
        user("s", "a", None, "implement the plan"),
        asks("b", "a", "t1"),
        result("c", "b", "t1"),
        boundary("d", "c"),
        summary("e", "d", "half of it"),
        asks("f", "e", "t2"),
        result("g", "f", "t2"),
        boundary("h", "g"),
        summary("i", "h", "most of it"),
        assistant("j", "i", json!([{"type": "text", "text": "done"}])),
    ];
    let imported = there_and_back(&session_of(&lines)).remove(0).0;
    assert_eq!(names(&imported), Vec::<&str>::new());
    let compacted = imported
        .events
        .iter()
        .filter_map(|event| match &event.body {
            EventBody::Compacted(c) => Some((c.summary.as_str(), c.cut_revision.0)),
            _ => None,
        });
    let compacted: Vec<_> = compacted.collect();
    assert_eq!(compacted, [("half of it", 1), ("most of it", 1)]);
    let whole = import_session(&session_of(&lines)).unwrap();
    for count in 1..lines.len() {
        let part = import_session(&session_of(&lines[..count])).unwrap();
        assert_eq!(plan(&stored(&part[0]), &whole[0]).parted, [], "{count}");
    }
}

/// Returns a progress line around a sub-agent's line.
fn progress(uuid: &str, parent: &str, said: Value) -> String {
    json!({"type": "progress", "uuid": uuid, "parentUuid": parent, "sessionId": "s",
        "isSidechain": false, "parentToolUseID": "t", "toolUseID": "agent_msg_1",
        "data": {"type": "agent_progress", "agentId": "a1", "prompt": "look", "message": said,
            "normalizedMessages": []}})
    .to_string()
}

// The calls of a sub-agent may be only in progress lines. They must become a sub-context of the
// call that started it, from the first line on.
#[test]
fn progress_lines_become_a_sub_context() {
    let tool = |id: &str, name: &str| json!([{"type": "tool_use", "id": id, "name": name, "input": {"prompt": "look"}}]);
    let result =
        |id: &str, text: &str| json!([{"type": "tool_result", "tool_use_id": id, "content": text}]);
    let inner = |kind: &str, uuid: &str, content: Value| {
        json!({"type": kind, "uuid": uuid, "timestamp": "2026-01-02T03:04:05.678Z",
            "message": {"role": kind, "content": content}})
    };
    let lines = [
        user("s", "a", None, "one"),
        assistant("b", "a", tool("t", "Task")),
        progress(
            "p1",
            "b",
            inner("user", "i1", json!([{"type": "text", "text": "look"}])),
        ),
        progress("p2", "p1", inner("assistant", "i2", tool("u", "Grep"))),
        progress(
            "p3",
            "p2",
            inner("user", "i3", result("u", "a.rs:1: found")),
        ),
        user("s", "c", Some("p3"), "typed meanwhile"),
        json!({"type": "user", "uuid": "d", "parentUuid": "c", "sessionId": "s",
            "toolUseResult": {"agentId": "a1"},
            "message": {"role": "user", "content": result("t", "done")}})
        .to_string(),
    ];
    let imported = there_and_back(&session_of(&lines));
    assert_eq!(imported.len(), 2);
    let kinds = |conversation: &ImportedConversation| {
        let kinds = conversation
            .events
            .iter()
            .map(|event| event.body.kind().as_str());
        kinds.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        kinds(&imported[0].0),
        "conversation_created message_appended message_appended tool_call_requested \
         sub_context_spawned message_appended tool_result_recorded sub_context_returned"
    );
    assert_eq!(
        kinds(&imported[1].0),
        "conversation_created message_appended message_appended tool_call_requested \
         tool_result_recorded"
    );
    assert!(imported[0].0.notes.is_empty() && imported[1].0.notes.is_empty());
    let whole = import_session(&session_of(&lines)).unwrap();
    for count in 3..lines.len() {
        let part = import_session(&session_of(&lines[..count])).unwrap();
        for (part, whole) in part.iter().zip(&whole) {
            assert_eq!(plan(&stored(part), whole).parted, [], "{count}");
        }
    }
    // A sub-agent with its own file has the same lines there: they must not be imported twice.
    let mut with_file = session_of(&lines);
    with_file
        .agents
        .push(("a1".into(), vec![user("s", "i1", None, "look").into()]));
    assert_eq!(there_and_back(&with_file).len(), 2);
}

// Lines that the tool shows only to people must not become messages. Otherwise an error of the
// provider is sent back to the model as its own words.
#[test]
fn display_only_lines_are_not_messages() {
    let mut error: Value = serde_json::from_str(&assistant(
        "b",
        "a",
        json!([{"type": "text", "text": "API Error"}]),
    ))
    .unwrap();
    error["isApiErrorMessage"] = true.into();
    let lines = [
        user("s", "a", None, "one"),
        error.to_string(),
        user("s", "c", Some("b"), "go on"),
    ];
    let imported = there_and_back(&session_of(&lines)).remove(0).0;
    let said: Vec<_> = texts(&imported).into_iter().map(|(_, text)| text).collect();
    assert_eq!(said, ["one", "go on"]);
}

// Text must not be stored both in the events and beside them.
#[test]
fn text_of_a_session_is_stored_once() {
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
                // A text that the tool itself wrote twice is stored twice.
                assert!(
                    copies <= if body.contains("totalTokens") { 2 } else { 1 },
                    "{body}"
                );
            }
        }
    }
}

// Unexpected lines must be kept and never stop the import.
#[test]
fn unexpected_lines_are_kept() {
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
        ..Session::default()
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
    let says = |event: &treering_domain::NewEvent| match &event.body {
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

// All sessions in the tool's folder must be found, and files of agents are not sessions.
#[test]
fn sessions_are_found_by_folder() {
    let folder = tempfile::tempdir().unwrap();
    let project = folder.path().join("projects").join("-home-x");
    std::fs::create_dir_all(&project).unwrap();
    for name in ["b.jsonl", "a.jsonl", "agent-1.jsonl", "notes.txt"] {
        let id = if name == "b.jsonl" { "b" } else { "a" };
        let line = format!(r#"{{"type":"user","sessionId":"{id}"}}"#);
        std::fs::write(project.join(name), line).unwrap();
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

// Real sessions, if a folder of them is named: each line must be restored, within the rules.
#[test]
fn real_sessions_round_trip() {
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

// All of a session is in memory: a small compressed file that expands beyond the limit must be an
// error that names the file.
#[test]
fn oversized_session_is_refused_with_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.jsonl");
    let line = format!("{{\"type\":\"{}\"}}\n", "x".repeat(1_000));
    let packed = zstd::encode_all(line.repeat(1_000).as_bytes(), 3).unwrap();
    assert!(packed.len() < 10_000);
    std::fs::write(&path, packed).unwrap();
    let mut left = 2_000_000;
    assert_eq!(
        read_lines(&path, open(&path).unwrap(), &mut left)
            .unwrap()
            .lines
            .len(),
        1_000
    );
    assert!(left < 1_000_000, "what it has is taken");
    let fault = read_lines(&path, open(&path).unwrap(), &mut 500_000)
        .map(|_| ())
        .unwrap_err();
    assert!(matches!(fault, SessionFault::TooLarge { .. }), "{fault}");
}

// Parsing a line with many values takes many times its size. Such a line must be kept as an
// unreadable line and be restored.
#[test]
fn line_with_too_many_values_is_not_parsed() {
    let wide = format!("{{\"type\":\"user\",\"x\":[0{}]}}", ",0".repeat(5 << 20));
    assert!(!SessionLine::read(&Bytes::from(wide))[0].is_readable());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    // Whatever the order of lines, the rules must hold and every line be kept.
    #[test]
    fn random_sessions_round_trip(lines in prop::collection::vec(odd_line(), 0..16)) {
        let lines = lines.iter().map(|line| Bytes::from(line.to_string()));
        let session = Session { id: "s".into(), lines: lines.collect(), ..Session::default() };
        there_and_back(&session);
    }
}

/// Returns a session as it is written for resuming.
fn resumed(events: &[StoredEvent]) -> Vec<String> {
    let resumed = ResumeTarget {
        session: uuid::Uuid::from_u128(9),
        cwd: "/home/dev",
        title: "again",
    };
    session_lines_of(Format::ClaudeCode, events, &resumed).unwrap()
}

/// Returns the lines without their origin, which differs between copies.
fn values(lines: &[String]) -> Vec<Value> {
    let lines = lines.iter().map(|line| {
        let mut line = value(line.as_bytes());
        line.as_object_mut().unwrap().remove(origin::FIELD);
        line
    });
    lines.collect()
}

/// Checks what the API requires: the lines of each answer side by side, followed by exactly the
/// results of its calls, before anybody else speaks. Returns the number of calls.
fn assert_can_go_on(lines: &[String]) -> usize {
    let mut ids = HashSet::new();
    let mut open: Vec<String> = Vec::new();
    let (mut calls, mut last) = (0, Value::Null);
    for line in lines.iter().map(|line| value(line.as_bytes())) {
        let message = &line["message"];
        let blocks = message["content"].as_array().cloned().unwrap_or_default();
        if message["role"] == "assistant" {
            let id = message["id"].as_str().unwrap().to_owned();
            let goes_on = last == message["id"];
            assert!(ids.insert(id) || goes_on, "an id of another answer: {line}");
            assert!(goes_on || open.is_empty(), "{open:?} before {line}");
            let asked = blocks.iter().filter(|block| block["type"] == "tool_use");
            open.extend(asked.map(|block| block["id"].as_str().unwrap().to_owned()));
        }
        for block in blocks.iter().filter(|block| block["type"] == "tool_result") {
            let at = open
                .iter()
                .position(|id| block["tool_use_id"] == id.as_str());
            open.remove(at.unwrap_or_else(|| panic!("not asked for: {line}")));
            calls += 1;
        }
        if message["role"] == "user" && blocks.iter().all(|block| block["type"] != "tool_result") {
            assert!(open.is_empty(), "{open:?} before {line}");
        }
        last = message["id"].clone();
    }
    assert!(open.is_empty(), "{open:?} at the end");
    calls
}

// Real conversations of all sources, written as sessions for resuming: each call must have its
// result next to it, nothing may be lost, and reading and writing again must give the same.
#[test]
fn real_conversations_are_written_as_resumable_sessions() {
    /// Conversations per file.
    const LOOKED_AT: usize = 40;
    let Some(data) = std::env::var_os("TREERING_TEST_DATA").map(PathBuf::from) else {
        println!("skipped: TREERING_TEST_DATA names no data folder");
        return;
    };
    let mut all = 0;
    for file in entries(&data.join("trajectories")) {
        let lines = LineSource::open(&file, |_| {}).unwrap();
        for (_, line) in lines.take(LOOKED_AT) {
            let imported = crate::openai_chat::import_line(&line.unwrap()).unwrap();
            let history = of_active_branch(&stored(&imported));
            let lines = resumed(&history);
            let is_call =
                |event: &&StoredEvent| event.header.kind() == Some(EventKind::ToolCallRequested);
            let calls = history.iter().filter(is_call).count();
            assert_eq!(assert_can_go_on(&lines), calls, "{}", imported.source_id);
            let again = import_session(&session_of(&lines)).unwrap().remove(0);
            let lines_again = resumed(&of_active_branch(&stored(&again)));
            let (lines, lines_again) = (values(&lines), values(&lines_again));
            let differs = lines
                .iter()
                .zip(&lines_again)
                .find(|(one, other)| one != other);
            assert_eq!(differs, None, "{}", imported.source_id);
            assert_eq!(lines_again.len(), lines.len(), "{}", imported.source_id);
            all += 1;
        }
    }
    assert!(all > LOOKED_AT, "{all}");
}

// A session that is imported with only half of its first line would become a conversation that
// never gets a title or times.
#[test]
fn session_begins_with_its_first_complete_message() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir
        .path()
        .join("5d0c3c0e-0000-4000-8000-000000000001.jsonl");
    let snapshot = json!({"type": "file-history-snapshot", "messageId": "m", "snapshot": {}});
    let line = json!({
        "type": "user", "uuid": "u", "sessionId": "s", "timestamp": "2026-01-02T03:04:05Z",
        "message": {"role": "user", "content": "where does the quokka live"},
    })
    .to_string();
    let half = &line[..line.len() / 2];
    for (text, has_begun) in [
        (half.to_owned(), false),
        (format!("{snapshot}\n"), false),
        (format!("{snapshot}\n{half}"), false),
        (format!("{snapshot}\n{line}\n"), true),
        (
            "{\"type\": \"summary\", \"summary\": \"Quokkas\", \"leafUuid\": \"l\"}\n".to_owned(),
            true,
        ),
    ] {
        std::fs::write(&file, &text).unwrap();
        let agents = dir
            .path()
            .join("5d0c3c0e-0000-4000-8000-000000000001/subagents");
        std::fs::create_dir_all(&agents).unwrap();
        std::fs::write(agents.join("agent-a1.jsonl"), half).unwrap();
        let session = read_session(&file).unwrap();
        assert_eq!(session.has_begun(), has_begun, "{text}");
        assert_eq!(session.agents, [], "{text}");
        assert!(
            session
                .unfinished
                .iter()
                .any(|file| file.ends_with("agent-a1.jsonl"))
        );
    }
}

// The label tells a session from those of other projects. A session that was imported without it
// must get it with the next import, unless somebody has set another.
#[test]
fn project_is_a_label_and_is_set_late() {
    let line = |meta: Value| {
        let mut line = json!({
            "type": "user", "uuid": "u", "sessionId": "s", "timestamp": "2026-01-02T03:04:05Z",
            "message": {"role": "user", "content": "hello"},
        });
        let members = meta.as_object().unwrap().clone();
        line.as_object_mut().unwrap().extend(members);
        let session = Session {
            id: "s".into(),
            lines: vec![line.to_string().into()],
            ..Session::default()
        };
        import_session(&session).unwrap().remove(0)
    };
    let labels = |imported: &ImportedConversation| match &imported.events[0].body {
        EventBody::ConversationCreated(created) => created.labels.clone(),
        other => panic!("{other:?}"),
    };
    let plain = line(json!({}));
    assert_eq!(labels(&plain), BTreeMap::new());
    let placed = line(json!({"cwd": "/home/ada/website/", "gitBranch": "fix"}));
    let expected = [("git_branch", "fix"), ("project", "website")];
    let expected = BTreeMap::from(expected.map(|(name, value)| (name.into(), value.into())));
    assert_eq!(labels(&placed), expected);
    let windows = line(json!({"cwd": "C:\\work\\shop"}));
    assert_eq!(labels(&windows)["project"], "shop");

    let mut early = placed.clone();
    if let EventBody::ConversationCreated(created) = &mut early.events[0].body {
        created.labels.clear();
    }
    let rest = plan(&stored(&early), &placed).events;
    let [
        NewEvent {
            body: EventBody::ConversationChanged(changed),
            ..
        },
    ] = &rest[..]
    else {
        panic!("{rest:?}")
    };
    assert_eq!(changed.set_labels, expected);
    let mut known = early.clone();
    known.events.extend(rest);
    assert_eq!(plan(&stored(&known), &placed).events, []);
    let mut renamed = early;
    let changed = ConversationChanged {
        set_labels: BTreeMap::from([("project".into(), "shop".into())]),
        remove_labels: vec!["git_branch".into()],
        ..ConversationChanged::default()
    };
    let changed = EventBody::ConversationChanged(changed);
    let id = renamed.events[0].conversation;
    renamed.events.push(NewEvent::new(id, changed));
    assert_eq!(plan(&stored(&renamed), &placed).events, []);
}

// A conversation that was imported before it had a title must get one later. In other tools, the
// first line has a time, but no title.
#[test]
fn late_title_is_applied_once() {
    let snapshot = json!({"type": "file-history-snapshot", "messageId": "m", "snapshot": {}});
    let line = json!({
        "type": "user", "uuid": "u", "sessionId": "s", "timestamp": "2026-01-02T03:04:05Z",
        "message": {"role": "user", "content": "where does the quokka live"},
    });
    let session = |lines: &[&Value]| Session {
        id: "s".into(),
        lines: lines.iter().map(|line| line.to_string().into()).collect(),
        ..Session::default()
    };
    let import = |session: &Session| import_session(session).unwrap().remove(0);
    let early = import(&session(&[&snapshot]));
    let whole = import(&session(&[&snapshot, &line]));
    let rest = plan(&stored(&early), &whole);
    let changes = |events: &[NewEvent]| {
        let changed = events.iter().filter_map(|event| match &event.body {
            EventBody::ConversationChanged(changed) => Some(changed.clone()),
            _ => None,
        });
        changed.collect::<Vec<_>>()
    };
    let changed = changes(&rest.events);
    assert_eq!(changed.len(), 1, "{:?}", rest.events);
    assert_eq!(
        changed[0].title.as_deref(),
        Some("where does the quokka live")
    );
    assert_eq!(changed[0].remove_labels, [treering_domain::TIMES_LABEL]);
    let mut grown = early.clone();
    grown.events.extend(rest.events);
    let known = stored(&grown);
    assert_legal(&known);
    assert_eq!(plan(&known, &whole).events, []);
    assert_eq!(
        plan(&known, &early).events,
        [],
        "an older copy says nothing new"
    );
    assert_eq!(changes(&plan(&stored(&whole), &whole).events), []);
}
