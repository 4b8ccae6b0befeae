//! Imports of other tools' sessions with the built program, and watching files that grow.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    process::Stdio,
};

use serde_json::{Value, json};
use tokio::process::Child;

use super::{
    child::{PATIENCE, Server, treering},
    terminal::{CommandOutput, Shell, USAGE},
};

const AT: &str = "2026-03-01T10:00:00.000Z";

fn codex(id: &str, texts: &[&str]) -> String {
    let line = |kind: &str, payload: Value| {
        json!({"timestamp": AT, "type": kind, "payload": payload}).to_string() + "\n"
    };
    let mut lines = line("session_meta", json!({"id": id, "cwd": "/work"}));
    for text in texts {
        lines += &line(
            "response_item",
            json!({"type": "message", "role": "user",
            "content": [{"type": "input_text", "text": text}]}),
        );
    }
    lines
}

fn pi(id: &str, text: &str) -> String {
    let header = json!({"type": "session", "version": 3, "id": id, "cwd": "/", "timestamp": AT});
    let said = json!({"type": "message", "id": "e1", "parentId": null, "timestamp": AT,
        "message": {"role": "user", "content": text}});
    format!("{header}\n{said}\n")
}

fn gemini(id: &str, text: &str) -> String {
    let session = json!({"sessionId": id, "projectHash": "h", "startTime": AT, "messages": [
        {"id": "m1", "timestamp": AT, "type": "user", "content": text}]});
    serde_json::to_string_pretty(&session).unwrap()
}

fn opencode(id: &str, text: &str) -> String {
    let session = json!({"info": {"id": id, "title": "", "time": {"created": 1_772_359_200_000_u64}},
        "messages": [{"info": {"id": "msg_1", "sessionID": id, "role": "user",
            "time": {"created": 1_772_359_200_000_u64}},
            "parts": [{"id": "prt_1", "type": "text", "text": text}]}]});
    serde_json::to_string_pretty(&session).unwrap()
}

/// Writes a file of each tool, and others, into a folder.
fn mixed(folder: &Path) {
    fs::create_dir_all(folder.join("deep/er")).unwrap();
    let write = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
    write("deep/er/rollout-1.jsonl", &codex("c-1", &["mend the lint"]));
    write("deep/session.jsonl", &pi("p-1", "mend the total"));
    write("session-1.json", &gemini("g-1", "mend the cent"));
    write("export.json", &opencode("ses_1", "mend the date"));
    write(
        "lines.jsonl",
        "{\"id\": \"o-1\", \"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}\n",
    );
    write("settings.json", "{\"a\": 1}\n{\"b\": 2}\n");
    write(
        "logs.json",
        "[{\"sessionId\": \"g-1\", \"messageId\": 0, \"message\": \"x\"}]",
    );
}

fn json_of(text: &str) -> Value {
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

// Each file of a mixed folder is imported by its format, the others are named, and a second import
// adds nothing.
#[tokio::test(flavor = "multi_thread")]
async fn folder_with_all_formats_is_imported() {
    let shell = Shell::new();
    let folder = shell.path("in");
    mixed(folder.as_ref());
    let counts = json_of(&shell.ok(&["--json", "import", &folder]).await);
    assert_eq!(
        (&counts["new"], &counts["failed"]),
        (&json!(5), &json!(0)),
        "{counts}"
    );
    for format in ["codex", "pi", "gemini-cli", "opencode", "openai-chat"] {
        assert_eq!(counts["files"][format], 1, "{counts}");
    }
    assert_eq!(counts["files"]["other-json"], 2, "{counts}");
    let again = json_of(&shell.ok(&["--json", "import", &folder]).await);
    assert_eq!(
        (&again["known"], &again["events"]),
        (&json!(5), &json!(0)),
        "{again}"
    );
    // Each is found by the id of its tool, and by its text.
    for (id, text) in [
        ("c-1", "mend the lint"),
        ("p-1", "mend the total"),
        ("g-1", "mend the cent"),
        ("ses_1", "mend the date"),
    ] {
        let log = shell.ok(&["log", id]).await;
        assert!(log.contains(text), "{id}: {log}");
    }
    // If the format is wrong, the error names the right one.
    let file = format!("{folder}/session-1.json");
    let ended = shell.run(&["import", "--format", "codex", &file]).await;
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains("--format gemini-cli"), "{}", ended.err);
    let list = format!("{folder}/logs.json");
    let ended = shell.run(&["import", &list]).await;
    assert!(ended.err.contains("supported formats are"), "{}", ended.err);
}

#[cfg(unix)]
fn pipe(file: PathBuf) {
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&file).status();
    assert!(made.unwrap().success(), "{}", file.display());
}

#[cfg(unix)]
fn link(to: &Path, file: PathBuf) {
    std::os::unix::fs::symlink(to, file).unwrap();
}

// In a folder from somebody else, an import must not wait on pipes, read devices, or follow links
// that lead elsewhere. It reads the regular files in the folder, and reports what it skips.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn import_reads_only_regular_files_inside_the_folder() {
    let shell = Shell::new();
    let folder = PathBuf::from(shell.path("in"));
    let outside = PathBuf::from(shell.path("outside"));
    fs::create_dir(&folder).unwrap();
    fs::create_dir(&outside).unwrap();
    let chat = |id: &str, text: &str| {
        json!({"id": id, "messages": [{"role": "user", "content": text}]}).to_string() + "\n"
    };
    let claude = |id: &str, text: &str| {
        json!({"type": "user", "uuid": format!("u-{id}"), "parentUuid": null, "sessionId": "s1",
            "timestamp": AT, "message": {"role": "user", "content": text}})
        .to_string()
            + "\n"
    };
    let write = |file: PathBuf, text: &str| {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    };
    write(folder.join("good.jsonl"), &chat("good", "in the folder"));
    write(outside.join("secret.jsonl"), &chat("secret", "out of it"));
    write(outside.join("agent-s.jsonl"), &claude("x", "out of it"));
    link(&folder.join("good.jsonl"), folder.join("inside.jsonl"));
    link(&outside.join("secret.jsonl"), folder.join("out.jsonl"));
    link(Path::new("/dev/zero"), folder.join("zero.jsonl"));
    pipe(folder.join("pipe.jsonl"));
    pipe(folder.join("opencode.db"));
    // Files that are read together with a session.
    write(folder.join("s1.jsonl"), &claude("1", "in the folder, too"));
    pipe(folder.join("agent-b.jsonl"));
    let agents = folder.join("s1/subagents");
    pipe(agents.join("agent-a.jsonl"));
    link(&outside.join("agent-s.jsonl"), agents.join("agent-s.jsonl"));
    link(&outside, agents.join("more"));
    let storage = folder.join("storage");
    let session = json!({"id": "ses_1", "title": "parts", "time": {"created": 1}});
    write(storage.join("session/p/ses_1.json"), &session.to_string());
    pipe(storage.join("message/ses_1/msg_1.json"));
    let message = json!({"id": "msg_2", "sessionID": "ses_1", "role": "user",
        "text": "out of it", "time": {"created": 2}});
    write(outside.join("msg_2.json"), &message.to_string());
    let linked = storage.join("message/ses_1/msg_2.json");
    link(&outside.join("msg_2.json"), linked);

    let folder = folder.to_str().unwrap();
    let ended = shell.run(&["--json", "import", folder]).await;
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let counts = json_of(&ended.out);
    assert_eq!(
        (&counts["new"], &counts["known"], &counts["failed"]),
        (&json!(3), &json!(1), &json!(0)),
        "{counts}"
    );
    for (file, why) in [
        ("out.jsonl", "outside the folder"),
        ("zero.jsonl", "outside the folder"),
        ("pipe.jsonl", "not a regular file"),
        ("opencode.db", "not a regular file"),
    ] {
        let told = ended
            .err
            .lines()
            .any(|line| line.contains(file) && line.contains(why));
        assert!(told, "{file}: {}", ended.err);
    }
    let all = shell.ok(&["export", "--format", "openai-chat"]).await;
    assert!(all.contains("in the folder, too"), "{all}");
    assert!(!all.contains("out of it"), "{all}");
}

// A pipe that the user names is read once: `treering import <(...)`.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn named_pipe_is_imported() {
    let shell = Shell::new();
    let file = PathBuf::from(shell.path("named.jsonl"));
    pipe(file.clone());
    let line = json!({"id": "a", "messages": [{"role": "user", "content": "piped"}]});
    let to = file.clone();
    let writer = std::thread::spawn(move || fs::write(to, format!("{line}\n")).unwrap());
    let counts = json_of(
        &shell
            .ok(&["--json", "import", file.to_str().unwrap()])
            .await,
    );
    writer.join().unwrap();
    assert_eq!(counts["new"], 1, "{counts}");
}

/// Imports with this folder as the home, and nothing else in the environment.
async fn import_at_home(shell: &Shell, home: &Path, arguments: &[&str]) -> CommandOutput {
    let output = treering()
        .args(["--data", &shell.path("store"), "--json", "import"])
        .args(arguments)
        .env("HOME", home)
        .env_remove("CLAUDE_CONFIG_DIR")
        .env_remove("CODEX_HOME")
        .env_remove("GEMINI_CLI_HOME")
        .env_remove("PI_CODING_AGENT_DIR")
        .env_remove("XDG_DATA_HOME")
        .output();
    let output = tokio::time::timeout(PATIENCE, output).await;
    let output = output.expect("timed out").unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    CommandOutput {
        code: output.status.code(),
        out: text(&output.stdout),
        err: text(&output.stderr),
    }
}

// Without a PATH, the sessions of all tools of this user are imported, or those of one tool.
#[tokio::test(flavor = "multi_thread")]
async fn import_without_a_path_finds_the_tool_folders() {
    let shell = Shell::new();
    let home = PathBuf::from(shell.path("home"));
    fs::create_dir(&home).unwrap();
    let ended = import_at_home(&shell, &home, &[]).await;
    assert_eq!(ended.code, Some(USAGE), "{}", ended.err);
    for said in ["no PATH is given", ".codex"] {
        assert!(ended.err.contains(said), "{}", ended.err);
    }
    let write = |name: &str, text: &str| {
        let file = home.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    };
    write(
        ".codex/sessions/2026/03/01/rollout-1.jsonl",
        &codex("c-1", &["one"]),
    );
    write(
        ".codex/archived_sessions/rollout-0.jsonl",
        &codex("c-0", &["zero"]),
    );
    write(
        ".gemini/tmp/hash/chats/session-1.json",
        &gemini("g-1", "two"),
    );
    write(".pi/agent/sessions/--work--/1.jsonl", &pi("p-1", "three"));
    write(
        ".local/share/opencode/storage/session/p/ses_1.json",
        "{\"id\": \"ses_1\", \"title\": \"four\", \"time\": {\"created\": 1772359200000}}",
    );
    write(".local/share/opencode/auth.json", "{\"secret\": 1}");
    let ended = import_at_home(&shell, &home, &["--format", "codex"]).await;
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert_eq!(json_of(&ended.out)["new"], 2, "{}", ended.out);
    let ended = import_at_home(&shell, &home, &[]).await;
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let counts = json_of(&ended.out);
    assert_eq!(
        (&counts["new"], &counts["known"]),
        (&json!(3), &json!(2)),
        "{counts}"
    );
}

fn watch(server: &Server, folder: &str) -> Child {
    treering()
        .args(["--server", &server.url, "import", "--watch", folder])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits until a conversation has this many events.
async fn has_events(shell: &Shell, id: &str, events: usize) {
    let is_there = async {
        loop {
            let shown = shell.run(&["show", "--json", id]).await;
            let shown: Value = serde_json::from_str(&shown.out).unwrap_or_default();
            if shown["head"] == events {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    let in_time = tokio::time::timeout(PATIENCE, is_there).await;
    if in_time.is_err() {
        let shown = shell.run(&["show", "--json", id]).await;
        panic!(
            "{id} does not get {events} events: {}{}",
            shown.out, shown.err
        );
    }
}

fn append(file: &Path, text: &str) {
    let mut file = OpenOptions::new()
        .append(true)
        .create(true)
        .open(file)
        .unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

fn signal(process: &Child, name: &str) {
    let pid = process.id().unwrap().to_string();
    let killed = std::process::Command::new("kill")
        .args([name, &pid])
        .status();
    assert!(killed.unwrap().success());
}

// A watched file is in the store soon after it was written, once, whatever happens: a line in two
// parts, a kill, a file that is truncated or replaced, and new files.
#[tokio::test(flavor = "multi_thread")]
async fn watch_follows_files_and_survives_kill() {
    let shell = Shell::new();
    let server = Server::start(shell.path("store").as_ref()).await;
    let folder = shell.path("in");
    fs::create_dir(&folder).unwrap();
    let file = PathBuf::from(&folder).join("rollout-1.jsonl");
    let all = codex("c-1", &["one", "two", "three", "four", "five", "six"]);
    let lines: Vec<&str> = all.split_inclusive('\n').collect();
    fs::write(&file, lines[..2].concat()).unwrap();
    let mut first = watch(&server, &folder);
    has_events(&shell, "c-1", 3).await;
    // An incomplete line is not imported.
    let (half, rest) = lines[2].split_at(40);
    append(&file, half);
    append(
        &PathBuf::from(&folder).join("late.jsonl"),
        &pi("p-1", "late"),
    );
    has_events(&shell, "p-1", 3).await;
    has_events(&shell, "c-1", 3).await;
    append(&file, rest);
    has_events(&shell, "c-1", 4).await;
    // Killed, and started again while the file grows.
    append(&file, lines[3]);
    first.kill().await.unwrap();
    append(&file, lines[4]);
    let second = watch(&server, &folder);
    append(&file, lines[5]);
    has_events(&shell, "c-1", 7).await;
    // Truncated and rewritten: known lines are not imported again.
    fs::write(&file, lines[..2].concat()).unwrap();
    let other = PathBuf::from(&folder).join("other.jsonl");
    fs::write(&other, codex("c-2", &["other"])).unwrap();
    has_events(&shell, "c-2", 3).await;
    fs::write(&file, lines.concat()).unwrap();
    has_events(&shell, "c-1", 8).await;
    // Replaced by another file.
    fs::write(
        PathBuf::from(&folder).join("new"),
        codex("c-3", &["replaced"]),
    )
    .unwrap();
    fs::rename(PathBuf::from(&folder).join("new"), &file).unwrap();
    has_events(&shell, "c-3", 3).await;
    has_events(&shell, "c-1", 8).await;
    signal(&second, "-INT");
    let output = tokio::time::timeout(PATIENCE, second.wait_with_output()).await;
    let output = output.expect("timed out").unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{out}{err}");
    assert!(
        err.contains("Watching") && err.contains("Stopped: "),
        "{err}"
    );
    assert!(!err.contains("incomplete"), "{err}");
    assert!(out.contains("appended: "), "{out}");
    // Each text is stored, once, since the number of events is right.
    let log = shell.ok(&["log", "c-1"]).await;
    for said in ["one", "two", "three", "four", "five", "six"] {
        assert!(log.contains(said), "{said}: {log}");
    }
    server.kill().await;
}

// Standard input ends, so it cannot be watched.
#[tokio::test(flavor = "multi_thread")]
async fn watch_of_standard_input_is_refused() {
    let shell = Shell::new();
    let ended = shell.run(&["import", "--watch", "-"]).await;
    assert_eq!(ended.code, Some(USAGE), "{}", ended.err);
    assert!(ended.err.contains("cannot be watched"), "{}", ended.err);
}

// A call without a result must not keep later turns open. Otherwise a compaction finds too few
// finished turns.
#[tokio::test(flavor = "multi_thread")]
async fn orphaned_call_does_not_block_compaction() {
    let shell = Shell::new();
    let lines =
        |session: &[Value]| -> String { session.iter().map(|line| format!("{line}\n")).collect() };
    let mut chat = vec![json!({"role": "user", "content": "look"})];
    let mut of_pi = vec![json!({"type": "session", "version": 3, "id": "pi-1", "cwd": "/"})];
    let mut claude = Vec::new();
    for turn in 0..6 {
        let (id, ask) = (format!("call-{turn}"), format!("ask {turn}"));
        // The first is never answered.
        let is_answered = turn > 0;
        chat.push(json!({"role": "user", "content": ask}));
        chat.push(
            json!({"role": "assistant", "content": null, "tool_calls": [{"id": id,
            "type": "function", "function": {"name": "ls", "arguments": "{}"}}]}),
        );
        let pi = |message: Value| json!({"type": "message", "message": message});
        of_pi.push(pi(json!({"role": "user", "content": ask})));
        of_pi.push(pi(json!({"role": "assistant", "content": [
            {"type": "toolCall", "id": id, "name": "ls", "arguments": {}}]})));
        let line = |role: &str, content: Value, at: usize| {
            let before = at.checked_sub(1).map(|before| format!("u{before}"));
            json!({"type": role, "uuid": format!("u{at}"), "parentUuid": before,
                "sessionId": "claude-1", "timestamp": "2026-01-02T03:04:05Z",
                "message": {"role": role, "content": content}})
        };
        claude.push(line("user", json!(ask), claude.len()));
        let calls = json!([{"type": "tool_use", "id": id, "name": "ls", "input": {}}]);
        claude.push(line("assistant", calls, claude.len()));
        if is_answered {
            chat.push(json!({"role": "tool", "tool_call_id": id, "content": "a.rs"}));
            of_pi.push(pi(
                json!({"role": "toolResult", "toolCallId": id, "toolName": "ls",
                "content": [{"type": "text", "text": "a.rs"}]}),
            ));
            let result = json!([{"type": "tool_result", "tool_use_id": id, "content": "a.rs"}]);
            claude.push(line("user", result, claude.len()));
        }
        if turn == 3 {
            chat.push(json!({"role": "assistant", "content": "done"}));
            of_pi.push(pi(json!({"role": "assistant", "content": [
                {"type": "text", "text": "done"}]})));
            let done = json!([{"type": "text", "text": "done"}]);
            claude.push(line("assistant", done, claude.len()));
        }
    }
    let chat = json!({"id": "chat-1", "messages": chat});
    for (name, text) in [
        ("chat-1.jsonl", lines(&[chat])),
        ("pi-1.jsonl", lines(&of_pi)),
        ("claude-1.jsonl", lines(&claude)),
    ] {
        let file = shell.path(name);
        fs::write(&file, text).unwrap();
        shell.ok(&["import", &file]).await;
        let id = name.trim_end_matches(".jsonl");
        shell
            .ok(&["compact", id, "apply", "--extract", "--keep-turns", "1"])
            .await;
    }
}
