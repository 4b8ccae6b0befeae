//! The built program on the command line: its output and its exit codes.

use std::{fs, path::Path};

use super::child;

/// The exit code when a named object does not exist.
pub(super) const NOT_FOUND: i32 = 3;
/// The exit code of an invalid command line.
pub(super) const USAGE: i32 = 2;

/// A folder in which commands are run.
pub(super) struct Shell {
    dir: tempfile::TempDir,
}

/// The result of a command.
pub(super) struct CommandOutput {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Shell {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { dir }
    }

    pub fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// Runs a command on the folder `store`.
    pub async fn run(&self, line: &[&str]) -> CommandOutput {
        self.on("store", line).await
    }

    pub async fn on(&self, folder: &str, line: &[&str]) -> CommandOutput {
        let data = self.path(folder);
        let output = child::run(&[&["--data", &data], line].concat()).await;
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        CommandOutput {
            code: output.status.code(),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }

    pub async fn ok(&self, line: &[&str]) -> String {
        let ended = self.run(line).await;
        assert_eq!(ended.code, Some(0), "{line:?}: {}", ended.err);
        ended.out
    }

    /// Creates a store with two conversations, one of them with a fork.
    pub async fn filled() -> Self {
        let shell = Self::new();
        let file = shell.path("lines.jsonl");
        fs::write(&file, LINES).unwrap();
        shell.ok(&["import", &file]).await;
        let fork = ["fork", "7ad31c26", "--at", "2", "--name", "retry"];
        shell.ok(&fork).await;
        let say = ["append", "7ad31c26", "-b", "retry", "message", "user"];
        shell.ok(&[&say[..], &["another way"]].concat()).await;
        shell
    }
}

const LINES: &str = concat!(
    r#"{"id":"7ad31c26-9708-4bd2-bbd5-9a3c977380c2","source":"test","messages":[{"role":"user","content":"Fix the lighthouse"},{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"bash","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c1","content":"the lamp is out"},{"role":"assistant","content":"done"}]}"#,
    "\n",
    r#"{"id":"tau/3-0","source":"other","messages":[{"role":"user","content":"Count the boats"}]}"#,
    "\n",
);

// A read command must not create a store, nor call a mistyped folder sound. It must say that there
// is none, and what to do.
#[tokio::test(flavor = "multi_thread")]
async fn read_commands_create_nothing_and_suggest_a_command() {
    let shell = Shell::new();
    let readme = shell.path("README.md");
    fs::write(&readme, "# Not a conversation\n").unwrap();
    let lines: [&[&str]; 9] = [
        &["ls"],
        &["verify"],
        &["stats"],
        &["search", "word"],
        &["show", "@last"],
        &["rebuild"],
        &["fork", "@last", "--name", "x"],
        &["append", "nosuch", "message", "user", "hello"],
        &["export", "--format", "openai-chat"],
    ];
    for folder in ["empty", "missing"] {
        if folder == "empty" {
            fs::create_dir(shell.path(folder)).unwrap();
        }
        for line in lines {
            let ended = shell.on(folder, line).await;
            assert_eq!(ended.code, Some(NOT_FOUND), "{line:?}: {}", ended.err);
            assert!(
                ended.err.contains("treering import"),
                "{line:?}: {}",
                ended.err
            );
        }
        let ended = shell.on(folder, &["import", &readme]).await;
        assert_eq!(ended.code, Some(1), "{}", ended.err);
        assert!(ended.err.contains("Markdown"), "{}", ended.err);
    }
    assert!(!Path::new(&shell.path("missing")).exists());
    assert_eq!(fs::read_dir(shell.path("empty")).unwrap().count(), 0);
    // A command that creates a store says so, once.
    for (round, said) in [(0, true), (1, false)] {
        let ended = shell
            .run(&["append", "new", "message", "user", "hello"])
            .await;
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        assert_eq!(
            ended.err.contains("Created a new store"),
            said,
            "round {round}"
        );
    }
}

// Every command accepts the beginning of an id, `@last`, words of a title, and the forms that
// commands print. For an unknown name, similar ones are suggested.
#[tokio::test(flavor = "multi_thread")]
async fn conversations_are_found_by_short_names() {
    let shell = Shell::filled().await;
    let whole = shell
        .ok(&["log", "7ad31c26-9708-4bd2-bbd5-9a3c977380c2"])
        .await;
    for name in [
        "7ad31c26",
        "the lighthouse",
        "@last",
        "FIX lighthouse",
        "9a3c977380c2",
    ] {
        assert_eq!(shell.ok(&["log", name]).await, whole, "{name}");
    }
    assert!(shell.ok(&["show", "@2"]).await.contains("Count the boats"));
    let hits = shell.ok(&["search", "lamp"]).await;
    assert!(hits.contains("7ad31c26#5"), "{hits}");
    let around = shell.ok(&["log", "7ad31c26#5", "-B", "1", "-A", "0"]).await;
    assert!(around.contains(">#5") && around.contains("#4"), "{around}");
    assert!(!around.contains("#6") && !around.contains("#3"), "{around}");
    let lines: [&[&str]; 4] = [
        &["result", "7ad31c26#5"],
        &["result", "7ad31c26/5"],
        &["result", "treering:7ad31c26/5"],
        // The call that the result belongs to.
        &["result", "7ad31c26#4"],
    ];
    for line in lines {
        assert_eq!(shell.ok(line).await, "the lamp is out", "{line:?}");
    }
    // A request refers to a call if it cuts its arguments: then the arguments must be printed, not
    // the result.
    for line in ["7ad31c26/4", "treering:7ad31c26/4"] {
        let arguments = shell.ok(&["result", line]).await;
        let arguments: serde_json::Value = serde_json::from_str(&arguments).unwrap();
        assert!(arguments.is_object(), "{line}: {arguments}");
    }
    let ended = shell.run(&["result", "7ad31c26#4"]).await;
    assert!(
        ended.err.contains("this is its result, #5"),
        "{}",
        ended.err
    );
    for (line, code, said) in [
        (
            &["show", "tua/3-0"][..],
            NOT_FOUND,
            "did you mean tau/3-0 (\"Count the boats\")",
        ),
        (&["show", "lighthouse"], NOT_FOUND, "did you mean 7ad31c26"),
        (&["show", "the the"], USAGE, "type more of it"),
        (
            &["log", "@last", "-b", "mian"],
            NOT_FOUND,
            "did you mean main",
        ),
        (
            &["log", "@last", "-b", ""],
            USAGE,
            "the branch name is empty",
        ),
        (&["show", "@9"], NOT_FOUND, "the store has 2"),
        (&["pending", "7ad31c26#2"], USAGE, "takes a conversation"),
    ] {
        let ended = shell.run(line).await;
        assert_eq!(ended.code, Some(code), "{line:?}: {}", ended.err);
        assert!(ended.err.contains(said), "{line:?}: {}", ended.err);
    }
    // Requests refer to messages, too. An event without text is reported.
    let message = shell.ok(&["result", "7ad31c26#2"]).await;
    assert_eq!(message.trim_end(), "Fix the lighthouse");
    let events = shell
        .ok(&["log", "7ad31c26", "-b", "retry", "--json"])
        .await;
    let mut events = events
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let fork = events
        .find(|event| event["kind"] == "branch_forked")
        .unwrap();
    let place = format!("7ad31c26#{}", fork["revision"]);
    let ended = shell.run(&["result", &place]).await;
    assert_eq!(ended.code, Some(NOT_FOUND), "{}", ended.err);
    assert!(
        ended.err.contains("has no text: branch forked"),
        "{}",
        ended.err
    );
}

// A revision identifies its branch, so a hit on an inactive branch must be found.
#[tokio::test(flavor = "multi_thread")]
async fn revision_selects_its_branch() {
    let shell = Shell::filled().await;
    let shown = shell.ok(&["branch", "ls", "7ad31c26"]).await;
    assert!(
        shown.contains("retry") && shown.contains("from main after #2"),
        "{shown}"
    );
    for line in [
        &["log", "7ad31c26#7"][..],
        &["log", "7ad31c26", "--from", "7"],
        &["show", "7ad31c26", "--as-of", "7"],
    ] {
        let ended = shell.run(line).await;
        assert_eq!(ended.code, Some(0), "{line:?}: {}", ended.err);
        assert!(
            ended.err.contains("#7 is on the branch retry"),
            "{}",
            ended.err
        );
    }
    let fork = ["fork", "7ad31c26#7", "--name", "again"];
    assert!(shell.ok(&fork).await.contains("Forked after #7"));
    for (line, said) in [
        (&["log", "7ad31c26#7", "-b", "main"][..], "but on retry"),
        (
            &["fork", "7ad31c26", "--at", "999", "--name", "x"],
            "its last event is #",
        ),
        (&["log", "7ad31c26", "--from", "999"], "its last event is #"),
    ] {
        let ended = shell.run(line).await;
        assert_eq!(ended.code, Some(NOT_FOUND), "{line:?}: {}", ended.err);
        assert!(ended.err.contains(said), "{line:?}: {}", ended.err);
    }
    // As of a revision: no later branch, no later head.
    let then = shell.ok(&["show", "7ad31c26", "--as-of", "3"]).await;
    assert!(
        then.contains("head #3") && !then.contains("retry"),
        "{then}"
    );
}

// Errors of these lines must say what to do.
#[tokio::test(flavor = "multi_thread")]
async fn cli_errors_suggest_what_to_do() {
    let shell = Shell::filled().await;
    let folder = format!("@{}", shell.path("store"));
    for (line, code, said) in [
        (
            &["log", "@last", "--from", "9", "--to", "3"][..],
            USAGE,
            "--from 9 is after --to 3",
        ),
        (
            &["compact", "@last", "expand"],
            USAGE,
            "branch main has no compaction",
        ),
        (&["search", " "], USAGE, "give at least one letter"),
        (
            &["append", "@last", "result", "c9", "x"],
            4,
            "error: call \"c9\" is not open",
        ),
        (
            &["append", "@last", "call", "grep", "call_1"],
            USAGE,
            "look swapped",
        ),
        (
            &["append", "@last", "message", "user", &folder],
            1,
            "this is a folder: name a file",
        ),
        (
            &["export", "--format", "html"],
            USAGE,
            "this format needs a conversation",
        ),
        (
            &["context", "@last", "--budget", "1"],
            4,
            "suffices; or allow more to be dropped",
        ),
    ] {
        let ended = shell.run(line).await;
        assert_eq!(ended.code, Some(code), "{line:?}: {}", ended.err);
        assert!(ended.err.contains(said), "{line:?}: {}", ended.err);
        // Reported once, by the command.
        assert_eq!(ended.err.matches("error:").count(), 1, "{}", ended.err);
    }
    for (line, said) in [
        (
            &["ls", "--source", "nosuch"][..],
            "the sources are other, test",
        ),
        (
            &["tools", "7ad31c26", "--tool", "nosuch"],
            "the tools are bash",
        ),
        (
            &["append", "@last", "message", "user", "x", "--key", "k1"],
            "#",
        ),
        (&["tools", "7ad31c26", "--stats"], "bash"),
    ] {
        let out = shell.ok(line).await;
        assert!(out.contains(said), "{line:?}: {out}");
    }
    let ended = shell.on("a\u{1b}[2J\u{202e}b", &["ls"]).await;
    assert!(ended.err.contains("a␛[2J<U+202E>b"), "{}", ended.err);
}

// Branches are renamed, activated and archived by events, and nothing is lost.
#[tokio::test(flavor = "multi_thread")]
async fn branches_are_renamed_activated_and_archived() {
    let shell = Shell::filled().await;
    shell
        .ok(&["branch", "rename", "7ad31c26", "retry", "better"])
        .await;
    shell
        .ok(&["branch", "activate", "7ad31c26", "better"])
        .await;
    shell.ok(&["branch", "archive", "7ad31c26", "main"]).await;
    let shown = shell.ok(&["branch", "ls", "7ad31c26"]).await;
    assert!(
        shown.contains("* better") && shown.contains("archived"),
        "{shown}"
    );
    assert!(shell.ok(&["log", "7ad31c26"]).await.contains("another way"));
    let refused = shell
        .run(&["branch", "rename", "7ad31c26", "retry", "x"])
        .await;
    assert_eq!(refused.code, Some(NOT_FOUND), "{}", refused.err);
}

// The command sets a conversation's title and labels. The list shows them at once, and an invalid
// change is refused as a whole.
#[tokio::test(flavor = "multi_thread")]
async fn label_command_sets_title_and_labels() {
    let shell = Shell::filled().await;
    let label = ["label", "7ad31c26", "team=blue", "stage=review", "--title"];
    let metadata = ["The lamp", "--metadata", r#"owner={"name": "ada"}"#];
    let told = shell.ok(&[&label[..], &metadata[..]].concat()).await;
    assert!(told.starts_with("Changed, as #"), "{told}");
    let of = |name: &'static str| {
        let list = ["ls", "--json", "--label", name];
        let shell = &shell;
        async move { shell.ok(&list).await }
    };
    let listed = of("team=blue").await;
    assert!(
        listed.contains("7ad31c26") && listed.contains("The lamp"),
        "{listed}"
    );
    let again = [
        "label", "7ad31c26", "--remove", "stage", "team=red", "--json",
    ];
    let told = shell.ok(&again).await;
    assert!(told.contains("\"revision\""), "{told}");
    assert!(of("team=red").await.contains("7ad31c26"));
    assert_eq!(of("stage=review").await, "");
    assert_eq!(of("team=blue").await, "");
    let log = shell.ok(&["log", "7ad31c26", "--json"]).await;
    assert!(log.contains(r#"{"owner":{"name": "ada"}}"#), "{log}");
    for line in [
        &["label", "7ad31c26"][..],
        &["label", "7ad31c26", "blue"],
        &["label", "7ad31c26", "team=a", "team=b"],
        &["label", "7ad31c26", "--metadata", "owner=ada"],
    ] {
        let refused = shell.run(line).await;
        assert_eq!(refused.code, Some(USAGE), "{line:?}: {}", refused.err);
    }
    assert!(of("team=red").await.contains("7ad31c26"));
}

// A branch is exported as a page for people, or as a session of Claude Code that ends with the
// fork.
#[tokio::test(flavor = "multi_thread")]
async fn branch_is_exported_as_page_or_session() {
    let shell = Shell::filled().await;
    let export = ["export", "7ad31c26", "--format"];
    let markdown = shell.ok(&[&export[..], &["markdown"]].concat()).await;
    assert!(markdown.starts_with("# Fix the lighthouse"), "{markdown}");
    let html = shell.ok(&[&export[..], &["html"]].concat()).await;
    assert!(
        html.contains("the lamp is out") && html.contains("</html>"),
        "{html}"
    );
    let session = [&export[..], &["claude-code", "-b", "retry"]].concat();
    let lines = shell.ok(&session).await;
    let last: serde_json::Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    assert!(
        lines.contains("another way") && !lines.contains("the lamp is out"),
        "{lines}"
    );
    assert_eq!(last["type"], "user");
}

// The times shown are those of the events, also after an import. The time of recording is shown,
// too.
#[tokio::test(flavor = "multi_thread")]
async fn times_shown_are_those_of_the_events() {
    let shell = Shell::new();
    let file = shell.path("old.jsonl");
    let line = r#"{"id":"old","source":"test","messages":[
        {"role":"user","content":"hello","x":{"ts":"2026-01-05T09:00:00Z"}},
        {"role":"assistant","content":"yes","x":{"ts":"2026-01-06T10:00:00Z"}}]}"#;
    fs::write(&file, line.replace('\n', "") + "\n").unwrap();
    shell.ok(&["import", &file]).await;
    let listed: serde_json::Value =
        serde_json::from_str(&shell.ok(&["ls", "--json"]).await).unwrap();
    let day = |field: &str| listed[field].as_str().unwrap()[..10].to_owned();
    assert_eq!(day("happened_from"), "2026-01-05");
    assert_eq!(day("happened_to"), "2026-01-06");
    assert!(day("created_at").as_str() > "2026-01-06");
    let listed = shell.ok(&["ls", "--absolute"]).await;
    assert!(listed.contains("2026-01-06 10:00:00"), "{listed}");
    let shown = shell.ok(&["show", "old"]).await;
    assert!(
        shown.contains("from 2026-01-05 to 2026-01-06, recorded just now"),
        "{shown}"
    );
    // A rebuild gives the same.
    shell.ok(&["rebuild"]).await;
    shell.ok(&["verify", "--deep"]).await;
}

// If imported events have no times, only the time of recording is known, and must be shown as such.
#[tokio::test(flavor = "multi_thread")]
async fn import_without_times_shows_recording_times() {
    let shell = Shell::new();
    let file = shell.path("old.jsonl");
    let line = r#"{"id":"old","source":"test","messages":[
        {"role":"user","content":"hello lighthouse"},{"role":"assistant","content":"yes"}]}"#;
    fs::write(&file, line.replace('\n', "") + "\n").unwrap();
    shell.ok(&["import", &file]).await;
    for (command, said) in [
        (&["ls"][..], "recorded just now"),
        (
            &["show", "old"],
            "its source has no times; recorded just now",
        ),
        (&["log", "old"], "as recorded: its source has no times"),
        (&["search", "lighthouse"], "recorded just now"),
        (&["export", "old", "--format", "markdown"], "· recorded 2"),
    ] {
        let told = shell.ok(command).await;
        assert!(told.contains(said), "{command:?}: {told}");
    }
    let listed: serde_json::Value =
        serde_json::from_str(&shell.ok(&["ls", "--json"]).await).unwrap();
    assert_eq!(listed["labels"]["treering/times"], "none");
}

// The list must be ordered by the times of the events, not by the time of the import. Lines without
// a time must not make a session the newest.
#[tokio::test(flavor = "multi_thread")]
async fn list_is_ordered_by_time_of_the_events() {
    let shell = Shell::new();
    for day in ["03", "07", "05"] {
        let file = shell.path(&format!("{day}.jsonl"));
        let line = format!(
            r#"{{"id":"of-{day}","source":"test","messages":[{{"role":"user","content":"hello","x":{{"ts":"2026-01-{day}T09:00:00Z"}}}}]}}"#
        );
        fs::write(&file, line + "\n").unwrap();
        shell.ok(&["import", &file]).await;
    }
    shell.ok(&["import", SESSIONS]).await;
    let listed = async |options: &[&str]| {
        let lines = shell.ok(&[&["ls", "--json"], options].concat()).await;
        let id = |line: &str| {
            let row: serde_json::Value = serde_json::from_str(line).unwrap();
            row["source_id"].as_str().unwrap_or_default()[..5].to_owned()
        };
        lines.lines().map(id).collect::<Vec<_>>()
    };
    // The session, and two that it has begun.
    let sessions = "5d0c3";
    let happened = listed(&["-n", "5"]).await;
    assert_eq!(happened, ["of-07", sessions, sessions, sessions, "of-05"]);
    let recorded = listed(&["--by", "recorded", "-n", "1", "--source", "test"]).await;
    assert_eq!(recorded, ["of-05"]);
    let oldest = listed(&["--oldest-first", "--source", "test"]).await;
    assert_eq!(oldest, ["of-03", "of-05", "of-07"]);
    assert!(shell.ok(&["show", "@last"]).await.contains("of-07"));
    // A new event makes it the newest.
    shell
        .ok(&["append", "of-03", "message", "user", "and now?"])
        .await;
    assert_eq!(listed(&["-n", "1"]).await, ["of-03"]);
    shell.ok(&["rebuild"]).await;
    assert_eq!(listed(&["-n", "2"]).await, ["of-03", "of-07"]);
}

// A third of the rows of real sessions are sub-agents, which nobody searches by time, so they are
// folded.
#[tokio::test(flavor = "multi_thread")]
async fn list_folds_sub_agents() {
    let shell = Shell::new();
    shell.ok(&["import", SESSIONS]).await;
    let rows = |text: &str| text.lines().filter(|line| line.contains("  ")).count();
    let all = shell.ok(&["ls", "--sub-agents"]).await;
    let folded = shell.ok(&["ls"]).await;
    assert_eq!(rows(&all), rows(&folded) + 2, "{all}\n{folded}");
    let note = "2 sub-agents are not listed; --sub-agents lists them";
    assert!(
        folded.ends_with(&format!("{note}\n")) && !all.contains(note),
        "{folded}"
    );
    let json = shell.ok(&["ls", "--json"]).await;
    assert_eq!(json.lines().count(), rows(&all));
    // The limit counts the rows listed.
    assert_eq!(rows(&shell.ok(&["ls", "-n", "1"]).await), 1);
}

/// Sessions as Claude Code stores them.
const SESSIONS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/fixtures/claude-code/projects"
);

// From sessions to a fork that continues in Claude Code, in six commands without long ids. Commands
// and output must be those in the README.
#[tokio::test(flavor = "multi_thread")]
async fn readme_session_runs_as_shown() {
    let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
    let readme = fs::read_to_string(readme).unwrap();
    let (_, session) = readme.split_once("with `TREERING_DATA` set:").unwrap();
    let session = session.split("```").nth(1).unwrap();
    let commands: Vec<_> = session.split("\n$ ").skip(1).collect();
    assert_eq!(commands.len(), 6);

    let home = tempfile::tempdir().unwrap();
    let sh = async |line: &str| {
        let binary = Path::new(env!("CARGO_BIN_EXE_treering"));
        let mut path = binary.parent().unwrap().as_os_str().to_owned();
        path.push(":/usr/bin:/bin");
        let mut command = tokio::process::Command::new("sh");
        command
            .args(["-c", line])
            .current_dir(home.path())
            .env_remove("TREERING_SERVER")
            .env_remove("CLAUDE_CONFIG_DIR")
            .env("HOME", home.path())
            .env("PATH", path)
            .env("TREERING_DATA", home.path().join("store"))
            .env("NO_COLOR", "1")
            .kill_on_drop(true);
        let output = tokio::time::timeout(child::PATIENCE, command.output());
        let output = output.await.expect("timed out").unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(output.status.success(), "{line}: {said}");
        said
    };
    sh(&format!(
        "mkdir -p .claude && cp -r '{SESSIONS}' .claude/projects"
    ))
    .await;
    for command in commands {
        let (line, shown) = command.split_once('\n').unwrap_or((command, ""));
        let words = line.split_whitespace();
        assert!(words.clone().all(|word| word.len() < 36), "{line}");
        let said = sh(line).await;
        let said: Vec<_> = said.lines().map(steady).collect();
        for shown in shown.lines().map(steady) {
            assert!(said.contains(&shown), "{line}: {shown}: {said:#?}");
        }
        if line.contains(" log ") {
            assert!(said.iter().any(|line| line.contains(">#19")), "{said:#?}");
        }
    }
    let body = fs::read(home.path().join("body.json")).unwrap();
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert!(body["messages"].as_array().unwrap().len() > 1, "{body}");
    // The exported session is where Claude Code looks, and importing it adds nothing to the fork.
    let again = sh("treering import ~/.claude/projects").await;
    assert!(
        again.contains("0 new") && again.contains("2 already there"),
        "{again}"
    );
}

/// Returns a line without the parts that differ each time: seconds, scores and session ids.
fn steady(line: &str) -> String {
    let mut line = line.to_owned();
    for (before, after) in [(" read in ", ": "), (", score ", ", "), ("--resume ", "\n")] {
        if let Some(from) = line.find(before).map(|at| at + before.len()) {
            let to = line[from..].find(after).map_or(line.len(), |at| from + at);
            line.replace_range(from..to, "…");
        }
    }
    line
}

// The shell asks the program for completions, which must be the current conversations and branches.
#[tokio::test(flavor = "multi_thread")]
async fn conversations_and_branches_are_completed() {
    let shell = Shell::filled().await;
    let data = shell.path("store");
    let completed = async |words: &[&str]| {
        let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_treering"))
            .env("COMPLETE", "bash")
            .env("_CLAP_COMPLETE_INDEX", (words.len() + 2).to_string())
            .env("_CLAP_COMPLETE_COMP_TYPE", "9")
            .env("_CLAP_COMPLETE_SPACE", "false")
            .env("_CLAP_IFS", "\n")
            .args(["--", "treering", "--data", &data])
            .args(words)
            .output()
            .await
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(completed(&["log", "7a"]).await.trim(), "7ad31c26");
    assert_eq!(completed(&["show", "tau"]).await.trim(), "tau/3-0");
    let branches = completed(&["log", "7ad31c26", "--branch", "r"]).await;
    assert_eq!(branches.trim(), "retry");
    let commands = completed(&["bra"]).await;
    assert_eq!(commands.trim(), "branch");
    let script = shell.ok(&["completions", "bash"]).await;
    assert!(script.contains("COMPLETE"), "{script}");
}

// The demo creates its folder in the current directory, which is often a repository. Git must
// ignore it.
#[tokio::test(flavor = "multi_thread")]
async fn demo_folder_is_ignored_by_git() {
    let dir = tempfile::tempdir().unwrap();
    let demo = tokio::process::Command::new(env!("CARGO_BIN_EXE_treering"))
        .current_dir(dir.path())
        .env_remove("TREERING_DATA")
        .args(["demo", "--exit", "--listen", "127.0.0.1:0"])
        .output();
    let output = tokio::time::timeout(child::PATIENCE, demo)
        .await
        .expect("timed out");
    assert!(output.unwrap().status.success());
    let store = dir.path().join(".treering-demo");
    assert_eq!(fs::read_to_string(store.join(".gitignore")).unwrap(), "*\n");
    let output = child::run(&["verify", "--data", store.to_str().unwrap()]).await;
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
