//! Tests of arguments that people type, and of the messages for slightly wrong ones.

use std::fs;

use super::{
    child::Server,
    terminal::{NOT_FOUND, Shell, USAGE},
};

/// The exit code when the store cannot be used now.
const UNAVAILABLE: i32 = 5;

/// A session of two days with calls of several tools, and a second session.
async fn sessions() -> Shell {
    let shell = Shell::new();
    let file = shell.path("lines.jsonl");
    let call = |id: &str, tool: &str, arguments: serde_json::Value| {
        serde_json::json!({"id": id, "type": "function",
            "function": {"name": tool, "arguments": arguments.to_string()}})
    };
    let at = |day: &str| serde_json::json!({"ts": format!("2026-02-{day}T20:15:00Z")});
    let one = serde_json::json!({"id": "cd46624d-fbea-4097-aaf8-2f63c3db0818",
        "source": "claude-code-entire", "messages": [
            {"role": "user", "content": "Why does the lint fail?", "x": at("09")},
            {"role": "assistant", "content": null, "x": at("09"), "tool_calls": [
                call("c1", "Bash", serde_json::json!({"command": "make lint"})),
                call("c2", "Grep", serde_json::json!({"pattern": "lint_.*", "path": "src/manual_commit.go"}))]},
            {"role": "tool", "tool_call_id": "c1", "x": at("09"),
                "content": "--- FAIL: TestShadow (6.88s)\n-\told := lint\n✕ two lint errors"},
            {"role": "tool", "tool_call_id": "c2", "x": at("09"), "content": "lint_all => x"},
            {"role": "assistant", "content": "The Lint is mended.", "x": at("10")}]});
    let other = serde_json::json!({"id": "runs/8", "source": "tau-bench", "messages": [
        {"role": "user", "content": "Book flight 8", "x": at("10")}]});
    fs::write(&file, format!("{one}\n{other}\n")).unwrap();
    shell.ok(&["import", &file]).await;
    shell
}

// A mistyped name must not show another conversation with that word in its title. The output must
// say which conversation it shows, and leave out the records of the harness.
#[tokio::test(flavor = "multi_thread")]
async fn log_shows_the_talk_of_the_named_conversation() {
    let shell = sessions().await;
    for name in ["lint", "flight"] {
        let ended = shell.run(&["log", name]).await;
        assert_eq!(ended.code, Some(NOT_FOUND), "{}", ended.err);
        assert!(ended.out.is_empty(), "{}", ended.out);
        assert!(ended.err.contains("did you mean"), "{}", ended.err);
    }
    let log = shell.ok(&["log", "cd46624d"]).await;
    let first = log.lines().next().unwrap();
    assert_eq!(first, "cd46624d  Why does the lint fail?  (branch main)");
    let record = [
        "append",
        "cd46624d",
        "custom",
        "codex/event_msg.task_started",
        "{}",
    ];
    shell.ok(&record).await;
    let log = shell.ok(&["log", "cd46624d"]).await;
    assert!(!log.contains("task_started"), "{log}");
    assert!(
        log.trim_end().ends_with("not shown: --full shows them"),
        "{log}"
    );
    // The message without content that made the two calls, and the record.
    assert!(log.contains("2 secondary events"), "{log}");
    let full = shell.ok(&["log", "cd46624d", "--full"]).await;
    assert!(
        full.contains("task_started") && !full.contains("not shown"),
        "{full}"
    );
    let kinds = shell.ok(&["log", "cd46624d", "--kind", "custom"]).await;
    assert!(kinds.contains("task_started"), "{kinds}");
}

// A line of a failed test, a diff or a list begins with a dash. If pasted as text, it must not be
// refused or read as an option.
#[tokio::test(flavor = "multi_thread")]
async fn text_arguments_may_begin_with_a_dash() {
    let shell = sessions().await;
    // The recorded tool is `Bash`.
    let found = shell.ok(&["search", "--tool", "bash", "lint"]).await;
    assert!(found.contains("cd46624d#"), "{found}");
    let exact = shell.ok(&["search", "--tool", "\"bash\"", "lint"]).await;
    assert!(!exact.contains("cd46624d#"), "{exact}");
    for text in [
        "--- FAIL: TestShadow (6.88s)",
        "-\told := lint",
        "-old lint",
    ] {
        let found = shell.ok(&["search", text]).await;
        assert!(found.contains("cd46624d#"), "{text}: {found}");
    }
    let text = "- name: checkout\n- name: build";
    for line in [
        &["append", "cd46624d", "message", "user", "--", text][..],
        &[
            "compact",
            "cd46624d",
            "apply",
            "--keep-turns",
            "0",
            "--summary",
            text,
        ],
        &["set", "cd46624d", "degrees", "-1"],
        &["annotate", "cd46624d", "--comment", "- fine"],
    ] {
        shell.ok(line).await;
    }
    assert!(
        shell
            .ok(&["log", "cd46624d"])
            .await
            .contains("- name: build")
    );
    // A single word after `--` is text; before it, it is a mistyped option. `append` takes text
    // that begins with a dash only after `--`.
    let found = shell.ok(&["search", "--count", "--", "--no-verify"]).await;
    assert_eq!(found.trim(), "0");
    for (line, said) in [
        (&["search", "--limt", "5", "lint"][..], "use '-- --limt'"),
        (&["search", "-n5", "lint"], "'-n 5', not '-n5'"),
        (&["search", "-n", "-1", "lint"], "invalid value '-1'"),
        (&["append", "cd46624d", "message", "user", text], "use '-- "),
        (
            &["annotate", "cd46624d", "--comment", "--json"],
            "like an option",
        ),
    ] {
        let ended = shell.run(line).await;
        assert_eq!(ended.code, Some(USAGE), "{line:?}: {}", ended.out);
        assert!(ended.err.contains(said), "{line:?}: {}", ended.err);
    }
}

// A search of one day must find the events of that day.
#[tokio::test(flavor = "multi_thread")]
async fn search_of_one_day_finds_all_its_events() {
    let shell = sessions().await;
    let found = async |since: &str, until: &str| {
        let line = [
            "search", "--count", "--since", since, "--until", until, "lint",
        ];
        shell.ok(&line).await.trim().parse::<u64>().unwrap()
    };
    let first = found("2026-02-09", "2026-02-09").await;
    let both = found("2026-02-09", "2026-02-10").await;
    assert!(0 < first && first < both, "{first} {both}");
    assert_eq!(found("2026-02", "2026-02").await, both);
    assert_eq!(found("2026-02-09 20:00", "2026-02-09 20:30").await, first);
    assert_eq!(found("2026-02-09 20:16", "2026-02-09 20:30").await, 0);
    let turned = [
        "search",
        "--since",
        "2026-02-10",
        "--until",
        "2026-02-09",
        "lint",
    ];
    let ended = shell.run(&turned).await;
    assert_eq!(ended.code, Some(USAGE), "{}", ended.out);
    assert!(
        ended.err.contains("--since is later than --until"),
        "{}",
        ended.err
    );
}

// "Nothing found." is not enough. The output must give the reason: the source has another name, a
// path is compared whole, or a filter excludes everything. It must not blame a correct name.
#[tokio::test(flavor = "multi_thread")]
async fn search_without_hits_gives_the_reason() {
    let shell = sessions().await;
    for (options, said) in [
        (
            &["--source", "claude-code"][..],
            "No conversations from claude-code: the sources are claude-code-entire, tau-bench.",
        ),
        (
            &["--source", "claude-code"],
            "without --source claude-code: ",
        ),
        (
            &["--label", "x=y"],
            "No conversations with the label x=y: no conversation has a label.",
        ),
        (&["--path", "manual_commit"], "use '*manual_commit*'"),
        (
            &["--path", "manual_commit", "--failed"],
            "without all of these filters: ",
        ),
        (&["--since", "2130-01-01"], "--since is in the future"),
        (
            &["--role", "assistant", "--tool", "Bash"],
            "no event matches both",
        ),
        (&["--tool", "nosuch"], "without --tool nosuch: "),
        (&["-c", "runs/8"], "without --conversation: "),
        (&["-c", "runs/8", "--by-conversation"], "Nothing found."),
    ] {
        let told = shell.ok(&[&["search", "lint"], options].concat()).await;
        assert!(told.contains(said), "{options:?}: {told}");
        let ended = shell
            .run(&[&["search", "--json", "lint"], options].concat())
            .await;
        assert_eq!((ended.code, &*ended.out), (Some(0), ""), "{options:?}");
        if said != "Nothing found." {
            assert!(ended.err.contains(said), "{options:?}: {}", ended.err);
        }
    }
    let role = ["search", "--role", "assistant", "--tool", "Bash", "lint"];
    assert!(!shell.ok(&role).await.contains("lists tool names"));
    let nowhere = shell.ok(&["search", "--tool", "Bash", "zeppelin"]).await;
    assert!(
        nowhere.contains("no matches without the filters"),
        "{nowhere}"
    );
    let found = shell
        .ok(&["search", "--path", "*manual_commit*", "lint"])
        .await;
    assert!(found.contains("cd46624d#"), "{found}");
}

// The output must show the correct total, a score only if there is one, and the pattern of a Grep
// not as a command. Signs that occur in texts must be accepted.
#[tokio::test(flavor = "multi_thread")]
async fn search_output_shows_correct_totals_and_calls() {
    let shell = sessions().await;
    let all = shell
        .ok(&["search", "--regex", "-n", "1", "FAIL: Test"])
        .await;
    assert!(
        all.contains("1 of 1 hit") && !all.contains("score"),
        "{all}"
    );
    let exact = shell
        .ok(&["search", "--count", "--regex", "the Lint is"])
        .await;
    let loose = shell
        .ok(&["search", "--count", "--regex", "-i", "the Lint is"])
        .await;
    assert_eq!((exact.trim(), loose.trim()), ("0", "1"));
    for signs in ["✕", "=>"] {
        let found = shell.ok(&["search", signs]).await;
        assert!(
            found.contains("cd46624d#") && found.contains("exact characters"),
            "{found}"
        );
    }
    let found = shell.ok(&["search", "lint_all"]).await;
    assert!(found.contains("/lint_.*/"), "{found}");
    let found = shell.ok(&["search", "two lint errors"]).await;
    assert!(found.contains("$ make lint"), "{found}");
    let none = shell.ok(&["search", "-n", "0", "lint"]).await;
    assert!(none.starts_with("0 of "), "{none}");
    assert_eq!(shell.ok(&["ls", "-n", "0"]).await, "");
    let hit = shell
        .ok(&["search", "--json", "-n", "1", "TestShadow"])
        .await;
    let hit: serde_json::Value = serde_json::from_str(&hit).unwrap();
    let address = hit["address"].as_str().unwrap();
    assert!(address.starts_with("cd46624d#"), "{address}");
    assert!(
        shell
            .ok(&["result", address])
            .await
            .contains("FAIL: TestShadow")
    );
    let ended = shell.run(&["search", "-b", "main", "lint"]).await;
    assert_eq!(ended.code, Some(USAGE));
    assert!(ended.err.contains("--conversation"), "{}", ended.err);
}

// A typing error after the name of a conversation must not be reported as an unknown conversation,
// nor with the full id as a suggestion.
#[tokio::test(flavor = "multi_thread")]
async fn misspelt_event_addresses_are_accepted_or_explained() {
    let shell = sessions().await;
    let right = shell.ok(&["log", "cd46624d#2"]).await;
    for name in [
        "CD46624D#2",
        "cd46624d #2",
        "CD46624D-fbea-4097-aaf8-2f63c3db0818#2",
    ] {
        assert_eq!(shell.ok(&["log", name]).await, right, "{name}");
    }
    for (name, said) in [
        ("cd46624d#x", "`x` is not a revision"),
        ("cd46624d#", "revisions are numbers"),
        ("cd46624d:2", "did you mean cd46624d#2"),
        ("cd46624d@2", "did you mean cd46624d#2"),
        ("cd46624d#0", "its first event is cd46624d#1"),
        ("8", "`8` is too short"),
    ] {
        for command in [&["log"][..], &["fork", "--name", "x"], &["show"]] {
            let ended = shell.run(&[command, &[name]].concat()).await;
            assert_eq!(ended.code, Some(USAGE), "{command:?} {name}: {}", ended.err);
            assert!(
                ended.err.contains(said),
                "{command:?} {name}: {}",
                ended.err
            );
        }
    }
    let ended = shell.run(&["log", "dc46624d"]).await;
    assert_eq!(ended.code, Some(NOT_FOUND), "{}", ended.err);
    assert!(
        ended.err.contains("did you mean cd46624d (\"Why"),
        "{}",
        ended.err
    );
}

// A search prints event addresses. Other commands, such as fork and export, must accept them.
#[tokio::test(flavor = "multi_thread")]
async fn commands_accept_event_addresses() {
    let shell = sessions().await;
    let to_event = ["export", "--format", "claude-code", "cd46624d#6"];
    let lines = shell.ok(&to_event).await;
    assert!(
        lines.contains("TestShadow") && !lines.contains("is mended"),
        "{lines}"
    );
    let page = shell
        .ok(&["export", "--format", "markdown", "cd46624d#2"])
        .await;
    assert!(
        page.contains("Why does the lint fail?") && !page.contains("make lint"),
        "{page}"
    );
    let line = shell
        .ok(&["export", "--format", "openai-chat", "cd46624d#2"])
        .await;
    assert!(
        line.contains("Why does") && !line.contains("TestShadow"),
        "{line}"
    );
    let ended = shell.run(&["export", "cd46624d"]).await;
    assert_eq!(ended.code, Some(USAGE));
    assert!(
        ended.err.contains("claude-code") && ended.err.contains("markdown"),
        "{}",
        ended.err
    );

    for name in ["at-2", "at-2-2"] {
        let forked = shell.ok(&["fork", "cd46624d#2"]).await;
        assert!(
            forked.contains(&format!("into the branch {name} of")),
            "{forked}"
        );
    }
    let ended = shell.run(&["result", "cd46624d#4"]).await;
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(
        ended.err.contains("treering result cd46624d/4"),
        "{}",
        ended.err
    );
}

// Two commands must not contradict each other: one said "add --server", the other "not through a
// server".
#[tokio::test(flavor = "multi_thread")]
async fn repair_and_salvage_ask_to_stop_the_server() {
    let shell = sessions().await;
    let store = shell.path("store");
    let server = Server::start(store.as_ref()).await;
    let sound = shell.path("sound");
    for line in [&["repair"][..], &["salvage", "--to", &sound]] {
        let ended = shell.run(line).await;
        assert_eq!(ended.code, Some(UNAVAILABLE), "{line:?}: {}", ended.err);
        assert!(
            ended.err.contains("stop that server first"),
            "{line:?}: {}",
            ended.err
        );
        assert!(!ended.err.contains("--server"), "{line:?}: {}", ended.err);
    }
    server.kill().await;
}

// A store must not be created among other files. The error for a file as the data folder must be
// clear.
#[tokio::test(flavor = "multi_thread")]
async fn data_folder_with_other_files_is_refused() {
    let shell = sessions().await;
    let file = shell.path("lines.jsonl");
    let among = shell.on(".", &["import", &file]).await;
    assert_eq!(among.code, Some(USAGE), "{}", among.err);
    assert!(among.err.contains("lines.jsonl") && among.err.contains("name a new folder"));
    let in_file = shell.on("lines.jsonl", &["ls"]).await;
    assert_eq!(in_file.code, Some(USAGE), "{}", in_file.err);
    assert!(in_file.err.contains("is a file"), "{}", in_file.err);
}

// An import must name an empty folder and each file that it skips. An empty file is not one that is
// still being written.
#[tokio::test(flavor = "multi_thread")]
async fn import_names_the_files_it_skips() {
    let shell = sessions().await;
    let folder = shell.path("in");
    fs::create_dir(&folder).unwrap();
    let ended = shell.run(&["import", &folder]).await;
    assert!(ended.err.contains("it has no importable files") && ended.err.contains(".jsonl"));
    let write = |name: &str, bytes: &[u8]| fs::write(format!("{folder}/{name}"), bytes).unwrap();
    write("empty.jsonl", b"");
    write("cut.jsonl", br#"{"id": "x", "mess"#);
    write("settings.json", b"{\"a\": 1}\n{\"b\": 2}\n");
    write("notes.json", b"# no JSON");
    let packed = zstd::encode_all("{\"id\": 1}\n".repeat(9_999).as_bytes(), 1).unwrap();
    write("cut.jsonl.zst", &packed[..packed.len() - 7]);
    let ended = shell.run(&["import", &folder]).await;
    for said in [
        "empty.jsonl: it is empty",
        "cut.jsonl: its last line is incomplete",
        "truncated or damaged",
    ] {
        assert!(ended.err.contains(said), "{said}: {}", ended.err);
    }
    for said in [
        "1 file of other-json: skipped: ",
        "1 file of no-json: skipped: ",
    ] {
        assert!(ended.out.contains(said), "{said}: {}", ended.out);
    }
    assert!(ended.out.contains("settings.json") && ended.out.contains("notes.json"));
    let database = shell.path("some.db");
    fs::write(&database, b"SQLite format 3\0\x10\0\x01").unwrap();
    let ended = shell.run(&["import", &database]).await;
    assert!(
        ended.err.contains("it holds a binary file"),
        "{}",
        ended.err
    );
}

// Ctrl-C during an import must report what is already in the store, and how to continue.
#[tokio::test(flavor = "multi_thread")]
async fn interrupted_import_reports_its_progress() {
    use tokio::io::AsyncWriteExt;

    let shell = sessions().await;
    let server = Server::start(shell.path("store").as_ref()).await;
    let mut import = super::child::treering()
        .args(["--server", &server.url, "import", "-"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // More than one batch, more than is read first, and no end.
    let said = "hi ".repeat(100);
    let line = |number: u32| {
        format!(
            "{{\"id\":\"n-{number}\",\"messages\":[{{\"role\":\"user\",\"content\":\"{said}\"}}]}}\n"
        )
    };
    let lines: String = (0..600).map(line).collect();
    let mut stdin = import.stdin.take().unwrap();
    stdin.write_all(lines.as_bytes()).await.unwrap();
    stdin.flush().await.unwrap();
    let pid = import.id().unwrap().to_string();
    let all_appended =
        async { while shell.ok(&["ls", "--json"]).await.lines().count() < 2 + 512 {} };
    let in_time = tokio::time::timeout(super::child::PATIENCE, all_appended);
    in_time.await.expect("timed out");
    let killed = std::process::Command::new("kill")
        .args(["-INT", &pid])
        .status();
    assert!(killed.unwrap().success());
    let output = tokio::time::timeout(super::child::PATIENCE, import.wait_with_output());
    let output = output.await.expect("timed out").unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(130), "{out}{err}");
    assert!(err.contains("continues where this one stopped"), "{err}");
    assert!(out.contains("conversations read"), "{out}");
    drop(stdin);
    server.kill().await;
}
