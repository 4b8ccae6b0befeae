//! Tests of whole command lines on a real store in a temporary folder.

use std::{fs, net::SocketAddr, path::Path};

use clap::Parser;
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;

use super::{Cli, ClientError, demo, output::Out, run, serve::RunningServer, web::WebOptions};
use treering_engine::OpenOptions;
use treering_import::format;

pub(super) async fn treering(line: &[&str]) -> (String, Result<(), ClientError>) {
    let args = std::iter::once("treering").chain(line.iter().copied());
    let cli = Cli::try_parse_from(args).unwrap();
    let (mut out, captured) = Out::captured(cli.common.json);
    let done = run(cli, &mut out).await;
    drop(out);
    (captured.text(), done)
}

pub(super) async fn ok(line: &[&str]) -> String {
    let (text, done) = treering(line).await;
    done.unwrap_or_else(|error| panic!("{line:?}: {error}"));
    text
}

fn exit(done: &Result<(), ClientError>) -> String {
    let code = match done {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => error.exit(),
    };
    format!("{code:?}")
}

fn code(number: u8) -> String {
    format!("{:?}", std::process::ExitCode::from(number))
}

const LINES: &str = concat!(
    r#"{"id":"one","source":"test","extra":{"kept":[1.50,null]},"messages":[{"role":"user","content":"list the harbour"},{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"bash","arguments":"{\"cmd\": \"ls\"}"}}]},{"role":"tool","tool_call_id":"c1","content":"lighthouse.txt\nquay.txt"},{"role":"assistant","content":"two files","unknown":true}]}"#,
    "\nthis is no conversation\n",
    r#"{"id":"two","source":"test","messages":[{"role":"user","content":"hello"},{"role":"tool","tool_call_id":"gone","content":"nobody asked"}]}"#,
    "\n",
);

fn imported(dir: &TempDir) -> (String, String) {
    let file = dir.path().join("lines.jsonl");
    fs::write(&file, LINES).unwrap();
    let data = dir.path().join("data");
    (path(&data), path(&file))
}

pub(super) fn path(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// Scripts rely on this: importing a file again adds nothing, an invalid line does not stop the
/// import, and an export equals the imported file.
#[tokio::test(flavor = "multi_thread")]
async fn import_is_idempotent_and_export_returns_the_input() {
    let dir = tempfile::tempdir().unwrap();
    let (data, file) = imported(&dir);
    let import = [
        "--json",
        "--data",
        &data,
        "import",
        "--format",
        "openai-chat",
        &file,
    ];
    for (round, new, known) in [(1, 2, 0), (2, 0, 2)] {
        let counts: Value = serde_json::from_str(&ok(&import).await).unwrap();
        assert_eq!(counts["new"], new, "round {round}: {counts}");
        assert_eq!(counts["known"], known, "round {round}: {counts}");
        assert_eq!(counts["bad_lines"], 1);
        // Known conversations are skipped.
        let odd = &counts["oddities"]["orphan_result"];
        assert_eq!(odd.as_u64(), (round == 1).then_some(1));
        assert_eq!(counts["files"]["openai-chat"], 1);
    }
    let out = ok(&["--data", &data, "export", "--format", "openai-chat"]).await;
    let values = |text: &str| -> Vec<Value> {
        let lines = text.lines().filter(|line| line.starts_with('{'));
        let mut values: Vec<Value> = lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        values.sort_by_key(|value| value["id"].to_string());
        values
    };
    assert_eq!(values(&out), values(LINES));
    // The same file is new in another namespace.
    let other = [&import[..], &["--namespace", "other"]].concat();
    let counts: Value = serde_json::from_str(&ok(&other).await).unwrap();
    assert_eq!(counts["new"], 2, "{counts}");
    let mut strict = import.to_vec();
    strict.push("--strict");
    assert_eq!(exit(&treering(&strict).await.1), code(1));
    ok(&["--data", &data, "verify", "--deep"]).await;
}

/// A line of a Claude Code session.
fn said(role: &str, uuid: &str, parent: &str, text: &str) -> String {
    format!(
        r#"{{"type":"{role}","uuid":"{uuid}","parentUuid":{parent},"sessionId":"s-1","message":{{"role":"{role}","content":[{{"type":"text","text":"{text}"}}]}}}}"#
    )
}

async fn counts(line: &[&str]) -> Value {
    serde_json::from_str(&ok(line).await).unwrap()
}

/// A session is imported while it is written, again after it has grown, from another file of the
/// same name, and after its past was changed. It stays one conversation, with new events at its end
/// and changes on a branch. Known events are not added again.
#[tokio::test(flavor = "multi_thread")]
async fn repeated_import_appends_only_new_messages() {
    let dir = tempfile::tempdir().unwrap();
    let data = path(&dir.path().join("data"));
    let write = |folder: &str, text: &str| {
        fs::create_dir_all(dir.path().join(folder)).unwrap();
        let file = dir.path().join(folder).join("full.jsonl");
        fs::write(&file, text).unwrap();
        path(&file)
    };
    let lines = [
        said("user", "a", "null", "one"),
        said("assistant", "b", r#""a""#, "two"),
        said("user", "c", r#""b""#, "three"),
    ];
    let whole = lines.join("\n");
    let import = |file: &str| {
        let line = ["--json", "--data", &data, "import", file];
        line.map(str::to_owned)
    };
    let imported = async |file: &str| {
        let line = import(file);
        counts(&line.each_ref().map(String::as_str)).await
    };
    let cut = write("cut", &whole[..whole.len() - 5]);
    let first = imported(&cut).await;
    assert_eq!(
        (&first["new"], &first["unfinished"]),
        (&1.into(), &1.into())
    );
    let grown = imported(&write("grown", &whole)).await;
    assert_eq!(
        (&grown["continued"], &grown["events"]),
        (&1.into(), &1.into())
    );
    for known in [&cut, &path(&dir.path().join("grown"))] {
        let again = imported(known).await;
        assert_eq!((&again["known"], &again["events"]), (&1.into(), &0.into()));
    }
    let changed = [&lines[0], &lines[1], &said("user", "c", r#""b""#, "other")];
    let changed = changed.map(String::as_str).join("\n");
    let file = write("changed", &changed);
    let parted = imported(&file).await;
    assert_eq!(
        (&parted["continued"], &parted["branches"]),
        (&1.into(), &1.into())
    );
    let again = imported(&file).await;
    assert_eq!((&again["known"], &again["events"]), (&1.into(), &0.into()));
    let shown = ok(&["--data", &data, "log", "s-1"]).await;
    assert!(
        shown.contains("other") && !shown.contains("three"),
        "{shown}"
    );
    let list = ok(&["--json", "--data", &data, "ls"]).await;
    let one: Value = serde_json::from_str(&list).unwrap();
    assert_eq!(one["branches"], 2);
}

/// A file that does not have the requested format must be refused with an error that names its
/// format, not imported as invalid lines. In an import of a folder, the format of each file is
/// recognised.
#[tokio::test(flavor = "multi_thread")]
async fn import_refuses_unknown_formats_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let data = path(&dir.path().join("data"));
    let folder = dir.path().join("in");
    fs::create_dir(&folder).unwrap();
    let gemini = r#"{"sessionId": "s", "projectHash": "p", "messages": [
        {"id": "1", "type": "user", "content": "hi"}]}"#;
    let files = [
        (
            "README.md",
            "# A title\n\n- not a conversation\n",
            "not JSON",
        ),
        ("gemini.json", gemini, "--format gemini-cli"),
        (
            "session.jsonl",
            &said("user", "a", "null", "one"),
            "--format claude-code",
        ),
    ];
    for (name, text, why) in files {
        let file = folder.join(name);
        fs::write(&file, text).unwrap();
        let line = [
            "--data",
            &data,
            "import",
            "--format",
            "openai-chat",
            &path(&file),
        ];
        let (said, done) = treering(&line).await;
        assert_eq!(exit(&done), code(1), "{name}: {said}");
        assert!(said.contains("1  not imported"), "{name}: {said}");
        // The reason goes to standard error.
        let told = format::of_head(text.as_bytes(), true);
        let asked = Some(format::Format::OpenaiChat);
        let refusal = super::import::refusal(asked, told);
        assert!(refusal.contains(why), "{name}: {refusal}");
    }
    let counts = counts(&["--json", "--data", &data, "import", &path(&folder)]).await;
    assert_eq!(counts["new"], 2, "{counts}");
    assert_eq!(counts["files"]["gemini-cli"], 1, "{counts}");
    assert_eq!(counts["files"]["claude-code"], 1, "{counts}");
}

/// A command must print the same for a folder and a server. If a server has the folder open and the
/// command may not wait, the error must have the server's address.
#[tokio::test(flavor = "multi_thread")]
async fn folder_and_server_give_the_same_output() {
    let dir = tempfile::tempdir().unwrap();
    let (data, file) = imported(&dir);
    ok(&["--data", &data, "import", "--format", "openai-chat", &file]).await;
    ok(&[
        "--data", &data, "fork", "one", "--at", "4", "--name", "again",
    ])
    .await;
    let commands: [&[&str]; 14] = [
        &["ls", "--json"],
        &["show", "one"],
        &["log", "one", "--json"],
        &["log", "one", "--branch", "again", "--reverse"],
        &["replay", "one", "--as-of", "3"],
        &["diff", "one", "main", "again", "--json"],
        &[
            "search",
            "--json",
            "-k",
            "3",
            "--tool",
            "bash",
            "lighthouse",
        ],
        &["knowledge", "one", "--json"],
        &["knowledge", "one", "--recent", "2"],
        &["knowledge", "one", "suggest", "read", r#"{"path": ""}"#],
        &["knowledge", "one", "prerequisites", "bash", "--json"],
        &["tools", "one", "--json"],
        &["tools", "one", "--snapshots"],
        &["tools", "one", "--offered", "--as-of", "4"],
    ];
    let mut from_folder = Vec::new();
    for command in commands {
        let line = [&["--data", &data], command].concat();
        from_folder.push(ok(&line).await);
    }
    let hit: Value = serde_json::from_str(from_folder[6].lines().next().unwrap()).unwrap();
    assert_eq!(hit["source_id"], "one");
    assert_eq!(hit["call_id"], "c1");
    assert_eq!(hit["line"], 1);
    let known: Value = serde_json::from_str(from_folder[7].lines().next().unwrap()).unwrap();
    assert_eq!(known["tools"][0]["succeeded"], 1);
    let call: Value = serde_json::from_str(&from_folder[11]).unwrap();
    assert_eq!(call["result_head"], "lighthouse.txt\nquay.txt");
    assert!(
        from_folder[8].contains("Recent results"),
        "{}",
        from_folder[8]
    );
    assert!(from_folder[12].contains("treering:"), "{}", from_folder[12]);
    assert!(
        from_folder[13].contains("bash  not defined  1 use"),
        "{}",
        from_folder[13]
    );
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = TcpListener::bind(any).await.unwrap();
    let served = RunningServer::start(
        OpenOptions::new(Path::new(&data)),
        listener,
        WebOptions::default(),
    )
    .await
    .unwrap();
    let url = served.url();
    for (command, expected) in commands.iter().zip(&from_folder) {
        let line = [&["--server", &url], *command].concat();
        assert_eq!(&ok(&line).await, expected, "{command:?}");
    }
    // A command goes through the server that has the folder open, unless it may not wait.
    let through = ok(&["--data", &data, "ls", "--json"]).await;
    assert_eq!(through, from_folder[0]);
    let locked = treering(&["--data", &data, "ls", "--wait", "0"]).await.1;
    assert_eq!(exit(&locked), code(5));
    assert!(locked.unwrap_err().hint().unwrap().contains(&url));
    let missing = treering(&["--server", &url, "show", "three"]).await.1;
    assert_eq!(exit(&missing), code(3));
    served.stop().await.unwrap();
}

/// A newcomer runs this command first, in an empty folder of a new machine. Run twice, it must show
/// the tour, leave no pending call, and keep existing files.
#[tokio::test(flavor = "multi_thread")]
async fn demo_shows_each_step_and_leaves_no_open_call() {
    let dir = tempfile::tempdir().unwrap();
    let data = path(&dir.path().join("data"));
    for round in 1..=2 {
        let line = ["--data", &data, "demo", "--exit", "--listen", "127.0.0.1:0"];
        let text = ok(&line).await;
        for part in [
            "in parallel",
            "denied",
            "approved",
            "fails",
            "a fork",
            "Try next",
        ] {
            assert!(text.contains(part), "{part} is missing:\n{text}");
        }
        // The suggested commands work as they are printed.
        let (_, next) = text.split_once("Try next").unwrap();
        let lines: Vec<&str> = next
            .lines()
            .filter(|line| line.contains("--data"))
            .collect();
        assert!(lines.len() > 5, "{text}");
        for line in lines {
            let words: Vec<&str> = line.split_whitespace().skip(1).collect();
            let typed = words.iter().filter(|word| **word != data);
            assert!(typed.clone().all(|word| word.len() < 36), "{line}");
            if round == 1 {
                ok(&words).await;
            }
        }
        let list = ok(&["--data", &data, "ls", "--json"]).await;
        assert_eq!(list.lines().count(), round);
    }
    let waiting = ok(&["--data", &data, "pending", "--json"]).await;
    assert_eq!(waiting, "");
    ok(&["--data", &data, "verify", "--deep"]).await;
    // The documentation promises the names in the script.
    let list = ok(&["--data", &data, "ls", "--json", "--limit", "1"]).await;
    let summary: Value = serde_json::from_str(&list).unwrap();
    let id = summary["conversation"].as_str().unwrap();
    ok(&["--data", &data, "diff", id, "main", demo::OTHER_WAY]).await;
}

/// `context` prints a body to pipe, an explanation to read, or both as JSON. `compact` goes from
/// the plan to the expansion.
#[tokio::test(flavor = "multi_thread")]
async fn context_and_compact_commands_run_end_to_end() {
    let dir = tempfile::tempdir().unwrap();
    let (data, file) = imported(&dir);
    ok(&["--data", &data, "import", "--format", "openai-chat", &file]).await;
    let context = |more: &'static [&str]| {
        let data = data.clone();
        async move {
            let line = [&["--data", &data, "context", "one"], more].concat();
            ok(&line).await
        }
    };
    let body: Value = serde_json::from_str(&context(&["-p", "openai-chat"]).await).unwrap();
    let calls = &body["messages"][1]["tool_calls"][0]["function"];
    assert_eq!(calls["arguments"], "{\"cmd\": \"ls\"}");
    let body: Value = serde_json::from_str(&context(&["-p", "anthropic"]).await).unwrap();
    assert_eq!(body["messages"][1]["content"][0]["input"]["cmd"], "ls");

    let line = context(&["-p", "gemini", "--json", "--budget", "5000"]).await;
    assert_eq!(line.lines().count(), 1);
    let both: Value = serde_json::from_str(&line).unwrap();
    assert!(both["request"]["contents"].is_array());
    assert_eq!(both["explanation"]["budget_tokens"], 5000);
    assert_eq!(both["explanation"]["provider"], "gemini");
    let sections = both["explanation"]["sections"].as_array().unwrap();
    let sum: u64 = sections.iter().filter_map(|s| s["tokens"].as_u64()).sum();
    assert_eq!(both["explanation"]["tokens"], sum);

    let text = context(&["-p", "anthropic", "--explain", "--budget", "5000"]).await;
    for part in [
        "Request for anthropic",
        " of 5,000 tokens",
        "Steps",
        "free",
        "assistant",
    ] {
        assert!(text.contains(part), "{part} is missing:\n{text}");
    }
    // A request above its budget is never printed as if it could be sent.
    let over = ["--data", &data, "context", "one", "--budget", "1"];
    let (text, done) = treering(&over).await;
    assert_eq!((text.as_str(), exit(&done)), ("", code(4)));
    let (text, done) = treering(&[&over[..], &["--explain"]].concat()).await;
    assert!(text.contains("over its budget"), "{text}");
    assert_eq!(exit(&done), code(4));
    let all = context(&["-p", "openai-chat", "--budget", "1", "--allow-over"]).await;
    assert!(all.contains("list the harbour"), "{all}");

    let past = context(&["--as-of", "2", "-p", "openai-chat"]).await;
    assert!(past.contains("list the harbour") && !past.contains("tool_calls"));
    let bad = ["--data", &data, "context", "one", "--policy", "{\"no\": 1}"];
    assert_eq!(exit(&treering(&bad).await.1), code(2));

    let plan = ok(&["--data", &data, "compact", "one", "--keep-turns", "0"]).await;
    assert!(plan.contains("Cut after"), "{plan}");
    let short = ok(&["--data", &data, "compact", "two"]).await;
    assert!(short.contains("Nothing to cut"), "{short}");
    // By default all turns stay, so nothing can be cut. The command must then suggest an option
    // that cuts.
    let default = ok(&["--data", &data, "compact", "one"]).await;
    assert!(default.contains("--keep-turns 0`"), "{default}");
    let apply = [
        "--data",
        &data,
        "compact",
        "one",
        "apply",
        "--keep-turns",
        "0",
    ];
    let empty = [&apply[..], &["--summary", " "]].concat();
    assert_eq!(exit(&treering(&empty).await.1), code(2));
    let summary = [&apply[..], &["--summary", "The harbour was listed."]].concat();
    assert!(ok(&summary).await.contains("Compacted up to #"));
    let text = context(&["-p", "openai-chat"]).await;
    assert!(text.contains("The harbour was listed.") && !text.contains("lighthouse"));
    let expanded = ok(&["--data", &data, "compact", "one", "expand"]).await;
    assert!(expanded.contains("lighthouse.txt"), "{expanded}");
    ok(&["--data", &data, "verify", "--deep"]).await;
}

/// Active context and sub-contexts on the command line: values are printed as they were written,
/// and a task is spawned, listed and returned.
#[tokio::test(flavor = "multi_thread")]
async fn active_context_and_sub_context_commands_run_end_to_end() {
    let dir = tempfile::tempdir().unwrap();
    let (data, file) = imported(&dir);
    ok(&["--data", &data, "import", "--format", "openai-chat", &file]).await;
    let at = |line: &[&'static str]| {
        let (data, line) = (data.clone(), line.to_vec());
        async move { treering(&[&["--data", &data], &line[..]].concat()).await }
    };
    let (_, done) = at(&["set", "one", "file", "{\"n\": 1.50}", "gone", "true"]).await;
    done.unwrap();
    at(&["set", "one", "--remove", "gone"]).await.1.unwrap();
    at(&["set", "--long-term", "home", "\"Lisbon\""])
        .await
        .1
        .unwrap();
    let (text, _) = at(&["watch", "one", "--once"]).await;
    assert!(text.starts_with("file  {\"n\": 1.50}"), "{text}");
    let (text, _) = at(&["watch", "--long-term", "--once", "--json"]).await;
    assert!(text.contains(r#"{"key":"home","value":"Lisbon""#), "{text}");
    for (line, expected) in [
        (&["set", "one", "file"][..], 2),
        (&["set", "one", "file", "no json"], 2),
        (&["set", "one"], 2),
        (&["set", "nobody", "file", "1"], 3),
        (&["watch", "nobody", "--once"], 3),
        (&["sub", "spawn", "one", "--call", "c9"], 4),
        (&["sub", "return", "one"], 2),
    ] {
        assert_eq!(exit(&at(line).await.1), code(expected), "{line:?}");
    }
    let (text, done) = at(&["--json", "sub", "spawn", "one", "--purpose", "count boats"]).await;
    done.unwrap();
    let spawned: Value = serde_json::from_str(&text).unwrap();
    let child = spawned["child"].as_str().unwrap();
    let (list, _) = at(&["sub", "ls", "one"]).await;
    assert!(list.contains(child) && list.contains("runs") && list.contains("count boats"));
    let end = [
        "--data",
        &data,
        "sub",
        "return",
        child,
        "--summary",
        "twelve",
    ];
    assert!(ok(&end).await.contains("Returned to"));
    assert_eq!(exit(&treering(&end).await.1), code(4));
    let (list, _) = at(&["sub", "ls", "one"]).await;
    assert!(list.contains("ended"), "{list}");
}

/// Notes of searches and comparisons must be true: a limit that was reached is not reported as the
/// number of hits, a given limit is kept, and a search with the wrong filter suggests the right
/// one.
#[tokio::test(flavor = "multi_thread")]
async fn search_and_diff_report_counts_and_limits() {
    let dir = tempfile::tempdir().unwrap();
    let (data, file) = imported(&dir);
    ok(&["--data", &data, "import", "--format", "openai-chat", &file]).await;
    let at = async |line: &[&str]| ok(&[&["--data", &data], line].concat()).await;
    let found = at(&["search", "-n", "1", "--regex", "t"]).await;
    assert!(found.contains("1 hit, and there are more"), "{found}");
    let all = at(&["search", "--regex", "lighthouse"]).await;
    assert!(all.contains("1 of 1 hit"), "{all}");

    let grouped = ["search", "--by-conversation", "--regex", "o"];
    assert_eq!(at(&grouped).await.lines().count(), 2);
    let one = at(&[&grouped[..], &["-n", "1"]].concat()).await;
    assert_eq!(one.lines().count(), 2, "{one}");
    assert!(one.contains("1 of 2 conversations"), "{one}");
    let second = at(&[&grouped[..], &["-n", "1", "--offset", "1", "--json"]].concat()).await;
    assert_eq!(second.lines().count(), 1, "{second}");

    let nothing = at(&["search", "--role", "tool", "lighthouse"]).await;
    assert!(nothing.contains("--kind tool_result_recorded"), "{nothing}");
    let kind = ["search", "--kind", "tool_result_recorded", "lighthouse"];
    assert!(at(&kind).await.contains("1 of 1 hit"));

    let place = at(&["search", "one#4"]).await;
    assert!(place.contains("treering log one#4"), "{place}");
    let no_place = at(&["search", "lighthouse#4"]).await;
    assert!(!no_place.contains("treering log"), "{no_place}");
    for (bound, is_found) in [("--since", true), ("--until", false)] {
        let found = at(&["search", bound, "yesterday", "harbour"]).await;
        assert_eq!(!found.contains("Nothing found"), is_found, "{found}");
    }

    at(&["fork", "one", "--at", "2", "--name", "again"]).await;
    let all = at(&["diff", "one", "main", "again"]).await;
    assert!(all.contains("main: 4 events of its own"), "{all}");
    let some = at(&["diff", "one", "main", "again", "-n", "3"]).await;
    assert!(
        some.contains("main: at least 3 events of its own"),
        "{some}"
    );
    assert!(some.contains("again: 1 event of its own"), "{some}");
}

/// Claude Code compacts when its context window is full, in the middle of a turn. The next request
/// has the user's messages from before the summary, but not the tool calls and results.
#[tokio::test(flavor = "multi_thread")]
async fn imported_summary_inside_a_turn_is_a_compaction() {
    let dir = tempfile::tempdir().unwrap();
    let data = path(&dir.path().join("data"));
    let file = dir.path().join("lines.jsonl");
    let line = concat!(
        r#"{"id":"long","source":"test","messages":[{"role":"user","content":"tidy the harbour"},"#,
        r#"{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"bash","arguments":"{}"}}]},"#,
        r#"{"role":"tool","tool_call_id":"c1","content":"lighthouse.txt"},"#,
        r#"{"role":"system","content":"Conversation compacted","x":{"compact_boundary":{"preTokens":9}}},"#,
        r#"{"role":"user","content":"The quay is swept.","x":{"compact_summary":true}},"#,
        r#"{"role":"assistant","content":"Now the mole."}]}"#,
    );
    fs::write(&file, line).unwrap();
    let file = path(&file);
    let import = [
        "--json",
        "--data",
        &data,
        "import",
        "--format",
        "openai-chat",
        &file,
    ];
    assert_eq!(counts(&import).await["oddities"], serde_json::json!({}));
    let built = ok(&["--data", &data, "context", "long", "-p", "openai-chat"]).await;
    assert!(
        built.contains("tidy the harbour") && built.contains("Now the mole."),
        "{built}"
    );
    assert!(built.matches("The quay is swept.").count() == 1, "{built}");
    assert!(
        !built.contains("lighthouse") && !built.contains("tool_calls"),
        "{built}"
    );
    let log = ok(&["--data", &data, "log", "long"]).await;
    assert!(log.contains("all before"), "{log}");
    let expanded = ok(&["--data", &data, "compact", "long", "expand"]).await;
    assert!(expanded.contains("lighthouse.txt"), "{expanded}");
}
