use std::{fs, path::Path};

use rusqlite::Connection;
use serde_json::{Value, json};

use super::{is_its_database, is_read_with_session, read_database, read_file, sessions_of};
use crate::{format::Format, session::ToolSession, session_properties::*, source::LineSource};
use treering_domain::EventBody;

const AT: u64 = 1_772_359_200_000;

fn user(id: &str, at: u64, text: &str) -> Value {
    json!({
        "info": {"id": id, "sessionID": "ses_1", "role": "user", "time": {"created": AT + at},
            "agent": "build", "model": {"providerID": "anthropic", "modelID": "opus"}},
        "parts": [part(id, 1, json!({"type": "text", "text": text}))],
    })
}

fn part(message: &str, number: u64, mut fields: Value) -> Value {
    fields["id"] = format!("prt_{message}_{number}").into();
    fields["sessionID"] = "ses_1".into();
    fields["messageID"] = message.into();
    fields
}

fn answer(id: &str, at: u64, fields: &Value, parts: &[Value]) -> Value {
    let mut info = json!({"id": id, "sessionID": "ses_1", "role": "assistant",
        "time": {"created": AT + at, "completed": AT + at + 5},
        "providerID": "anthropic", "modelID": "opus", "cost": 0.1,
        "tokens": {"input": 9, "output": 4, "reasoning": 1, "cache": {"read": 3, "write": 2}}});
    for (name, value) in fields.as_object().unwrap() {
        info[name] = value.clone();
    }
    let number = |(number, fields): (usize, &Value)| part(id, number as u64, fields.clone());
    let parts: Vec<_> = parts.iter().enumerate().map(number).collect();
    json!({"info": info, "parts": parts})
}

fn tool(call: &str, status: &str) -> Value {
    let mut state = json!({"status": status, "input": {"command": "ls"}});
    if status == "completed" {
        state["output"] = format!("what {call} printed, {}", "line ".repeat(20)).into();
        state["metadata"] = json!({"exit": 0});
        state["title"] = "ls".into();
        state["time"] = json!({"start": AT + 11, "end": AT + 14});
    }
    if status == "error" {
        state["error"] = "it was refused".into();
    }
    json!({"type": "tool", "callID": call, "tool": "bash", "state": state})
}

/// Returns a turn of two steps, a compacted one, and one after that.
fn messages() -> Vec<Value> {
    let step = |reason: &str| {
        json!({"type": "step-finish", "reason": reason, "cost": 0,
            "tokens": {"input": 5, "output": 2, "reasoning": 0, "cache": {"read": 1, "write": 0}}})
    };
    vec![
        user("msg_1", 0, "Why is the total wrong?"),
        answer(
            "msg_2",
            10,
            &json!({"finish": "stop"}),
            &[
                json!({"type": "step-start", "snapshot": "abc"}),
                json!({"type": "reasoning", "text": "look first", "time": {"start": AT + 10},
                "metadata": {"anthropic": {"signature": "sig"}}}),
                json!({"type": "text", "text": "I look."}),
                tool("c1", "completed"),
                tool("c2", "error"),
                step("tool-calls"),
                json!({"type": "step-start"}),
                json!({"type": "text", "text": "It is the rounding."}),
                step("stop"),
            ],
        ),
        json!({
            "info": {"id": "msg_3", "sessionID": "ses_1", "role": "user", "time": {"created": AT + 20}},
            "parts": [part("msg_3", 1, json!({"type": "compaction", "auto": true,
                "tail_start_id": "msg_1"}))],
        }),
        answer(
            "msg_4",
            30,
            &json!({"summary": true}),
            &[json!({"type": "text", "text": "A total was wrong."})],
        ),
        user("msg_5", 40, "Mend it"),
        answer(
            "msg_6",
            50,
            &json!({}),
            &[json!({"type": "text", "text": "Mended."})],
        ),
    ]
}

fn export(messages: &[Value]) -> String {
    let session = json!({"id": "ses_1", "title": "The cent", "directory": "/work",
        "projectID": "p", "version": "1.2.0", "time": {"created": AT, "updated": AT}});
    serde_json::to_string_pretty(&json!({"info": session, "messages": messages})).unwrap()
}

fn of_export(text: &str) -> ToolSession {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("export.json");
    fs::write(&file, text).unwrap();
    read_file(&file, LineSource::open(&file, |_| {}).unwrap()).unwrap()
}

fn output(call: &str) -> String {
    format!("what {call} printed, {}", "line ".repeat(20))
        .trim_end()
        .to_owned()
}

// An answer of many steps must become separate steps, each with its calls and results.
#[test]
fn export_becomes_typed_events() {
    let (imported, _) = imported(&of_export(&export(&messages())));
    let EventBody::ConversationCreated(created) = &imported.events[0].body else {
        panic!("{:?}", imported.events[0]);
    };
    assert_eq!(
        (created.title.as_str(), created.source_id.as_str()),
        ("The cent", "ses_1")
    );
    assert_eq!(created.config.model_id, "opus");
    assert_eq!(
        told(&imported),
        [
            "main: user Why is the total wrong?",
            "main: assistant (look first)|I look.",
            r#"main: call c1 bash {"command":"ls"}"#,
            r#"main: call c2 bash {"command":"ls"}"#,
            format!("main: result c1 ok {}", output("c1")).as_str(),
            "main: result c2 failed it was refused",
            "main: assistant It is the rounding.",
            "main: user",
            "main: compacted A total was wrong.",
            "main: user Mend it",
            "main: assistant Mended.",
        ]
    );
    let said = bodies(&imported);
    let EventBody::MessageAppended(step) = said[1] else {
        panic!();
    };
    assert_eq!(
        (step.message_id.as_str(), step.finish_reason.as_str()),
        ("msg_2", "tool-calls")
    );
    assert_eq!(step.usage.clone().unwrap().cache_read_input_tokens, 1);
    let EventBody::ToolResultRecorded(result) = said[4] else {
        panic!();
    };
    assert_eq!(
        (result.execution_time_ms, result.structured.as_str()),
        (Some(3), r#"{"exit":0}"#)
    );
    assert_eq!(oddities(&imported), [""; 0]);
}

// Everything in a message must be restored: each part is in a record, with all of its fields.
#[test]
fn every_field_of_a_message_is_restored() {
    let (imported, events) = imported(&of_export(&export(&messages())));
    let back = crate::records(&events, &imported.source).unwrap();
    let back: Vec<Value> = back
        .iter()
        .map(|record| serde_json::from_slice(record).unwrap())
        .collect();
    let all = messages();
    assert_eq!(back[0], all[0]);
    assert_eq!(back[1]["info"], all[1]["info"]);
    let reasoning = &all[1]["parts"][1];
    assert!(back[1]["parts"].as_array().unwrap().contains(reasoning));
    let mut state = all[1]["parts"][3]["state"].clone();
    state.as_object_mut().unwrap().shift_remove("input");
    assert_eq!(back[2]["state"], state);
}

// The tool overwrites its messages. Its later changes to an earlier message (a title, a note that
// an output was dropped) must change nothing, and an unfinished answer must be left until it has
// ended.
#[test]
fn growing_session_only_appends() {
    let all = messages();
    let whole = of_export(&export(&all));
    grows(&whole);
    let (_, known) = imported(&whole);
    let mut later = all.clone();
    later[0]["info"]["summary"] = json!({"title": "A total", "diffs": []});
    later[1]["parts"][3]["state"]["time"]["compacted"] = AT.into();
    later.push(user("msg_7", 60, "And now?"));
    let (later, _) = imported(&of_export(&export(&later)));
    let rest = crate::plan(&known, &later);
    assert_eq!((rest.parted.len(), rest.events.len()), (0, 1));

    let mut under_way = all[..2].to_vec();
    under_way[1]["info"]["time"] = json!({"created": AT + 10});
    let session = of_export(&export(&under_way));
    assert_eq!((session.lines.len(), session.unfinished.len()), (2, 1));
    // A message follows it, so it will not continue.
    under_way.push(user("msg_7", 60, "And now?"));
    assert_eq!(of_export(&export(&under_way)).lines.len(), 4);
    // A file that is being written.
    let text = export(&all);
    assert_eq!(of_export(&text[..text.len() / 2]).unfinished.len(), 1);
}

/// Writes the messages in the form of older versions.
fn store(storage: &Path, messages: &[Value]) {
    let write = |file: std::path::PathBuf, value: &Value| {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, serde_json::to_string_pretty(value).unwrap()).unwrap();
    };
    let whole: Value = serde_json::from_str(&export(messages)).unwrap();
    write(storage.join("session/p/ses_1.json"), &whole["info"]);
    for message in messages {
        let id = message["info"]["id"].as_str().unwrap();
        write(
            storage.join(format!("message/ses_1/{id}.json")),
            &message["info"],
        );
        for part in message["parts"].as_array().unwrap() {
            let part_id = part["id"].as_str().unwrap();
            write(storage.join(format!("part/{id}/{part_id}.json")), part);
        }
    }
}

/// Writes the messages into a database, as newer versions do.
fn fill(connection: &Connection, messages: &[Value]) {
    connection
        .execute_batch(
            "CREATE TABLE IF NOT EXISTS session (id TEXT PRIMARY KEY, project_id TEXT,
                parent_id TEXT, directory TEXT, title TEXT, version TEXT,
                time_created INTEGER, time_updated INTEGER);
             CREATE TABLE IF NOT EXISTS message (id TEXT PRIMARY KEY, session_id TEXT,
                time_created INTEGER, time_updated INTEGER, data TEXT);
             CREATE TABLE IF NOT EXISTS part (id TEXT PRIMARY KEY, message_id TEXT,
                session_id TEXT, time_created INTEGER, time_updated INTEGER, data TEXT);",
        )
        .unwrap();
    let at = i64::try_from(AT).unwrap();
    connection
        .execute(
            "INSERT OR REPLACE INTO session VALUES ('ses_1', 'p', NULL, '/work', 'The cent', '1.2.0', ?1, ?1)",
            [at],
        )
        .unwrap();
    let data = |value: &Value, own: &[&str]| {
        let mut value = value.clone();
        for name in own {
            value.as_object_mut().unwrap().shift_remove(*name);
        }
        value.to_string()
    };
    for message in messages {
        let info = &message["info"];
        let id = info["id"].as_str().unwrap();
        let own = data(info, &["id", "sessionID"]);
        connection
            .execute(
                "INSERT OR REPLACE INTO message VALUES (?1, 'ses_1', ?2, ?2, ?3)",
                (id, at, own),
            )
            .unwrap();
        for part in message["parts"].as_array().unwrap() {
            let own = data(part, &["id", "sessionID", "messageID"]);
            connection
                .execute(
                    "INSERT OR REPLACE INTO part VALUES (?1, ?2, 'ses_1', ?3, ?3, ?4)",
                    (part["id"].as_str().unwrap(), id, at, own),
                )
                .unwrap();
        }
    }
}

fn of_database(file: &Path) -> Vec<ToolSession> {
    let mut sessions = Vec::new();
    read_database(file, |session| {
        sessions.push(session.unwrap());
        true
    })
    .unwrap();
    sessions
}

// A session must be the same in all three forms: a session imported from an older folder must not
// be a different one after the tool has moved it into its database.
#[test]
fn export_folder_and_database_give_the_same_session() {
    let folder = tempfile::tempdir().unwrap();
    let (expected, _) = imported(&of_export(&export(&messages())));
    let storage = folder.path().join("storage");
    store(&storage, &messages());
    let file = storage.join("session/p/ses_1.json");
    let stored = read_file(&file, LineSource::open(&file, |_| {}).unwrap()).unwrap();
    assert_eq!(stored.import().unwrap().events[1..], expected.events[1..]);
    for (name, is_read) in [
        ("message/ses_1/msg_1.json", true),
        ("part/msg_1/prt_msg_1_1.json", true),
        ("session/p/ses_1.json", false),
    ] {
        let path = storage.join(name);
        assert_eq!(is_read_with_session(&path), is_read, "{name}");
        if is_read {
            assert_eq!(sessions_of(&path), std::slice::from_ref(&file), "{name}");
        }
    }

    let database = folder.path().join("opencode.db");
    let writer = Connection::open(&database).unwrap();
    writer.pragma_update(None, "journal_mode", "WAL").unwrap();
    fill(&writer, &messages()[..2]);
    assert!(is_its_database(&database));
    let (_, known) = imported(&of_database(&database)[0]);
    // Uncommitted writes must not be visible, and nothing may wait for them.
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    fill(&writer, &messages()[2..]);
    assert_eq!(of_database(&database)[0].lines.len(), 3);
    writer.execute_batch("COMMIT").unwrap();
    let of_database = of_database(&database)[0].import().unwrap();
    assert_eq!(of_database.events[1..], expected.events[1..]);
    let rest = crate::plan(&known, &of_database);
    assert_eq!(rest.parted, []);
    assert_eq!(known.len() + rest.events.len(), expected.events.len());
}

// In the first versions, a message contained its parts, and results were messages.
#[test]
fn database_of_the_first_schema_is_imported() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("opencode.db");
    let writer = Connection::open(&database).unwrap();
    writer
        .execute_batch(
            r#"CREATE TABLE sessions (id TEXT PRIMARY KEY, parent_session_id TEXT, title TEXT,
                message_count INTEGER, prompt_tokens INTEGER, completion_tokens INTEGER,
                cost REAL, updated_at INTEGER, created_at INTEGER);
             CREATE TABLE messages (id TEXT PRIMARY KEY, session_id TEXT, role TEXT, parts TEXT,
                model TEXT, created_at INTEGER, updated_at INTEGER, finished_at INTEGER);
             INSERT INTO sessions VALUES ('s1', NULL, 'The cent', 3, 1, 1, 0.5, 1746000000, 1746000000);
             INSERT INTO messages VALUES ('b', 's1', 'user',
                '[{"type":"text","data":{"text":"Why?"}},{"type":"finish","data":{"reason":"stop"}}]',
                NULL, 1746000001, 1746000001, 1746000001);
             INSERT INTO messages VALUES ('a', 's1', 'assistant',
                '[{"type":"reasoning","data":{"thinking":"look"}},{"type":"text","data":{"text":"I look."}},
                  {"type":"tool_call","data":{"id":"c1","name":"ls","input":"{\"path\":\".\"}","finished":true}},
                  {"type":"finish","data":{"reason":"tool_use","time":1746000003}}]',
                'opus', 1746000002, 1746000003, 1746000003);
             INSERT INTO messages VALUES ('c', 's1', 'tool',
                '[{"type":"tool_result","data":{"tool_call_id":"c1","name":"ls","content":"a b","is_error":false}}]',
                NULL, 1746000004, 1746000004, NULL);"#,
        )
        .unwrap();
    let sessions = of_database(&database);
    let (imported, _) = imported(&sessions[0]);
    assert_eq!(
        told(&imported),
        [
            "main: user Why?",
            "main: assistant (look)|I look.",
            r#"main: call c1 ls {"path":"."}"#,
            "main: result c1 ok a b",
        ]
    );
    let at = imported.events[1].occurred_at.unwrap();
    assert_eq!(at.0, 1_746_000_001_000_000);
    grows(&sessions[0]);
}

// A foreign or damaged database must be reported as such.
#[test]
fn foreign_and_damaged_databases_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other.db");
    let connection = Connection::open(&other).unwrap();
    connection.execute_batch("CREATE TABLE x (y)").unwrap();
    assert!(!is_its_database(&other));
    let why = |file: &Path| read_database(file, |_| true).unwrap_err().to_string();
    assert!(
        why(&other).contains("no opencode tables"),
        "{}",
        why(&other)
    );
    let damaged = folder.path().join("opencode.db");
    fs::write(&damaged, [&b"SQLite format 3\0"[..], &[7; 4096]].concat()).unwrap();
    // Its name is that of a database; reading it reports why it is not one.
    assert!(is_its_database(&damaged));
    assert!(why(&damaged).contains("opencode.db is not a readable database"));
}

/// Makes a database with a session and a message of it; `more` is added to the definition of both
/// tables.
fn made(file: &Path, more: &str) {
    let writer = Connection::open(file).unwrap();
    let tables = format!(
        r#"CREATE TABLE session (id TEXT PRIMARY KEY, title TEXT, time_created INTEGER {more});
           CREATE TABLE message (id TEXT PRIMARY KEY, session_id TEXT, time_created INTEGER,
             data TEXT {more});
           INSERT INTO session (id, title, time_created) VALUES ('ses_1', 'x', {AT});
           INSERT INTO message (id, session_id, time_created, data)
             VALUES ('msg_1', 'ses_1', {AT}, '{{"role":"user","time":{{"created":{AT}}}}}');"#
    );
    writer.execute_batch(&tables).unwrap();
}

// A file of 16 KB produced two gigabytes through a generated column, and the import was killed.
// Only stored data may be read, and no code of the schema may run.
#[test]
fn generated_columns_are_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("opencode.db");
    made(
        &file,
        ", bomb TEXT GENERATED ALWAYS AS (hex(zeroblob(1000000))) VIRTUAL",
    );
    let sessions = of_database(&file);
    assert_eq!(sessions.len(), 1);
    let bytes: usize = sessions[0].lines.iter().map(|line| line.len()).sum();
    assert!(bytes < 1_000, "{bytes}");
    // If the column with the session of a message is generated, the database cannot be used.
    let file = folder.path().join("opencode-2.db");
    let writer = Connection::open(&file).unwrap();
    writer
        .execute_batch(
            "CREATE TABLE session (id TEXT); CREATE TABLE message (id TEXT, data TEXT,
               session_id TEXT GENERATED ALWAYS AS (hex(zeroblob(1000000))) VIRTUAL);",
        )
        .unwrap();
    assert!(!is_its_database(&file));
}

// The resources for a database are limited before anything is read: its values, its memory, and the
// total size of its rows.
#[test]
fn database_values_and_memory_are_limited() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("opencode.db");
    made(&file, "");
    let connection = super::database::open(&file).unwrap();
    let value = |pragma: &str| -> i64 {
        let sql = format!("PRAGMA {pragma}");
        connection.query_row(&sql, [], |row| row.get(0)).unwrap()
    };
    assert_eq!((value("trusted_schema"), value("query_only")), (0, 1));
    assert!(value("hard_heap_limit") > 0);
    let too_big = "SELECT length(zeroblob(300000000))";
    let error = connection.query_row(too_big, [], |row| row.get::<_, i64>(0));
    assert!(error.unwrap_err().to_string().contains("too big"));
    let bytes = super::database::bytes_of(&connection, "message", Some("ses_1")).unwrap();
    let text = "msg_1ses_1".len() + AT.to_string().len();
    assert!(bytes > text as u64, "{bytes}");
    let none = super::database::bytes_of(&connection, "message", Some("ses_2")).unwrap();
    assert_eq!(none, 0);
}

// SQLite opens files next to a database. A pipe there must not block the import.
#[cfg(unix)]
#[test]
fn pipe_next_to_a_database_is_refused() {
    for end in ["-journal", "-wal", "-shm"] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("opencode.db");
        made(&file, "");
        let beside = folder.path().join(format!("opencode.db{end}"));
        let made = std::process::Command::new("mkfifo").arg(&beside).status();
        assert!(made.unwrap().success());
        assert!(is_its_database(&file));
        let why = read_database(&file, |_| true).unwrap_err().to_string();
        assert!(why.contains("is not a regular file"), "{why}");
    }
}

// Whatever is in the database, the import must neither fail nor lose a message.
#[test]
fn unexpected_messages_are_kept_and_reported() {
    let mut all = messages();
    all.push(json!({"info": {"role": "critic"}, "parts": []}));
    all.push(json!({"info": {"id": "msg_8", "role": "user", "time": {"created": "soon"}}}));
    all.push(answer(
        "msg_9",
        70,
        &json!({"error": {"name": "Aborted"}}),
        &[],
    ));
    all.push(answer("msg_2", 80, &json!({}), &[
        tool("c1", "completed"), json!({"type": "tool", "callID": 5}),
        json!({"type": "tool", "callID": "c3", "tool": "x", "state": {"status": "running", "input": 5}}),
        json!({"type": "text"}), json!({"type": "new"}), json!({"type": "file", "url": 5})]));
    let session = of_export(&export(&all));
    let (imported, _) = imported(&session);
    let mut odd = oddities(&imported);
    odd.sort_unstable();
    odd.dedup();
    assert_eq!(odd, ["call without id or name", "unanswered call"]);
    grows(&session);
}

// Messages may come in any order.
#[test]
fn any_message_order_only_appends() {
    any_grows(Format::OpenCode, &messages());
}
