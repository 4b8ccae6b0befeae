//! Whole command lines against a real store in a temporary folder.

use std::{fs, net::SocketAddr, path::Path};

use clap::Parser;
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;

use super::{Cli, CliError, demo, output::Out, run, serve::Served};

async fn treering(line: &[&str]) -> (String, Result<(), CliError>) {
    let args = std::iter::once("treering").chain(line.iter().copied());
    let cli = Cli::try_parse_from(args).unwrap();
    let (mut out, captured) = Out::captured(cli.common.json);
    let done = run(cli, &mut out).await;
    drop(out);
    (captured.text(), done)
}

async fn ok(line: &[&str]) -> String {
    let (text, done) = treering(line).await;
    done.unwrap_or_else(|error| panic!("{line:?}: {error}"));
    text
}

fn exit(done: &Result<(), CliError>) -> String {
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

fn path(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// What scripts rely on: a file comes in once however often it is imported, a
/// bad line stops nothing, and what goes out equals what came in.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_imported_comes_back_equal() {
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
        assert_eq!(counts["oddities"]["orphan_result"], 1);
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
    // Another tenant imports the same file: it is new there.
    let other = [&import[..], &["--namespace", "other"]].concat();
    let counts: Value = serde_json::from_str(&ok(&other).await).unwrap();
    assert_eq!(counts["new"], 2, "{counts}");
    let mut strict = import.to_vec();
    strict.push("--strict");
    assert_eq!(exit(&treering(&strict).await.1), code(1));
    ok(&["--data", &data, "verify", "--deep"]).await;
}

/// The same command must print the same, whether the store is a folder or a
/// server; and while a server holds the folder, the error must say where it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_folder_and_a_server_print_the_same() {
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
    let served = Served::start(Path::new(&data), listener).await.unwrap();
    let url = served.url();
    for (command, expected) in commands.iter().zip(&from_folder) {
        let line = [&["--server", &url], *command].concat();
        assert_eq!(&ok(&line).await, expected, "{command:?}");
    }
    let locked = treering(&["--data", &data, "ls"]).await.1;
    assert_eq!(exit(&locked), code(5));
    assert!(locked.unwrap_err().hint().unwrap().contains(&url));
    let missing = treering(&["--server", &url, "show", "three"]).await.1;
    assert_eq!(exit(&missing), code(3));
    served.stop().await.unwrap();
}

/// A newcomer's first command, in an empty folder of a fresh machine, twice: it
/// must tell its story, leave nothing waiting and keep what was there.
#[tokio::test(flavor = "multi_thread")]
async fn the_demo_tells_its_story() {
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
        let list = ok(&["--data", &data, "ls", "--json"]).await;
        assert_eq!(list.lines().count(), round);
    }
    let waiting = ok(&["--data", &data, "pending", "--json"]).await;
    assert_eq!(waiting, "");
    ok(&["--data", &data, "verify", "--deep"]).await;
    // The script's own names are what its documentation promises.
    let list = ok(&["--data", &data, "ls", "--json", "--limit", "1"]).await;
    let summary: Value = serde_json::from_str(&list).unwrap();
    let id = summary["conversation"].as_str().unwrap();
    ok(&["--data", &data, "diff", id, "main", demo::OTHER_WAY]).await;
}
