//! Tests of what new users try, and the messages that they get.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::end_to_end::{ok, path, treering};

/// A store with one imported conversation.
struct Store {
    dir: TempDir,
}

impl Store {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { dir }
    }

    async fn of(lines: &[Value]) -> Self {
        let store = Self::new();
        let file = store.dir.path().join("lines.jsonl");
        let text: Vec<_> = lines.iter().map(Value::to_string).collect();
        fs::write(&file, text.join("\n") + "\n").unwrap();
        store.ok(&["import", &path(&file)]).await;
        store
    }

    fn line<'a>(&self, line: &[&'a str], data: &'a str) -> Vec<&'a str> {
        [&["--data", data], line].concat()
    }

    async fn ok(&self, line: &[&str]) -> String {
        let data = path(&self.dir.path().join("data"));
        ok(&self.line(line, &data)).await
    }

    async fn refused(&self, line: &[&str]) -> String {
        let data = path(&self.dir.path().join("data"));
        let (_, done) = treering(&self.line(line, &data)).await;
        match done.unwrap_err() {
            super::ClientError::Usage { what, hint } => format!("{what}: {hint}"),
            other => other.to_string(),
        }
    }
}

fn call(id: &str, tool: &str, arguments: &Value) -> Value {
    json!({"id": id, "type": "function",
        "function": {"name": tool, "arguments": arguments.to_string()}})
}

/// A conversation with a number of turns, each with a tool call on a file.
fn conversation(id: &str, turns: usize) -> Value {
    let mut messages = Vec::new();
    for turn in 0..turns {
        let call_id = format!("c{turn}");
        let file = json!({"path": format!("/home/dev/src/file_{turn}.rs")});
        let text = format!("fn part_{turn}() {{}}\n{}", "// a line of it\n".repeat(40));
        messages.extend([
            json!({"role": "user", "content": format!("Show part {turn}, please.")}),
            json!({"role": "assistant", "content": null,
                "tool_calls": [call(&call_id, "read_file", &file)]}),
            json!({"role": "tool", "tool_call_id": call_id, "content": text}),
            json!({"role": "assistant", "content": format!("That is part {turn}.")}),
        ]);
    }
    json!({"id": id, "source": "test", "messages": messages})
}

// "Who touched this file?" has no search words. The search was refused, and `*` found nothing.
#[tokio::test(flavor = "multi_thread")]
async fn search_without_words_lists_filtered_events() {
    let store = Store::of(&[conversation("one", 3)]).await;
    for query in [&[][..], &[""], &["*"]] {
        let line = [&["search", "--path", "**/file_1.rs"], query].concat();
        let found = store.ok(&line).await;
        assert!(found.contains("call of read_file"), "{query:?}: {found}");
        assert!(
            found.contains("fn part_1") && !found.contains("part_2"),
            "{found}"
        );
        assert!(
            found.contains("2 of 2 hits") && found.contains("no words"),
            "{found}"
        );
        assert!(!found.contains("score"), "{found}");
        let counted = store.ok(&[&line[..], &["--count"]].concat()).await;
        assert_eq!(counted.trim(), "2", "{query:?}");
    }
    let newest = store
        .ok(&["search", "--tool", "read_file", "-n", "1"])
        .await;
    assert!(newest.contains("fn part_2"), "{newest}");
    let refused = store.refused(&["search"]).await;
    assert!(refused.contains("--path"), "{refused}");
}

// The hint was about a correct path, although another filter excluded everything.
#[tokio::test(flavor = "multi_thread")]
async fn hint_names_the_filter_that_excludes_all_hits() {
    let store = Store::of(&[conversation("one", 2)]).await;
    let told = store
        .ok(&["search", "--path", "file_1.rs", "--failed", "part_1"])
        .await;
    assert!(told.contains("matches without --failed: "), "{told}");
    assert!(!told.contains("whole file and folder names"), "{told}");
    let told = store.ok(&["search", "--path", "file_", "part_1"]).await;
    assert!(told.contains("whole file and folder names"), "{told}");
}

// A sub-agent of an imported session had returned, but was listed as running.
#[tokio::test(flavor = "multi_thread")]
async fn returned_sub_context_is_shown_as_ended() {
    let store = Store::new();
    let fixture = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/fixtures/claude-code/projects"
    );
    store.ok(&["import", fixture]).await;
    let listed = store.ok(&["sub", "ls", "5d0c3c0e"]).await;
    assert!(
        listed.contains("ended") && !listed.contains("runs"),
        "{listed}"
    );
    let listed = store.ok(&["--json", "sub", "ls", "5d0c3c0e"]).await;
    let listed: Value = serde_json::from_str(listed.lines().next().unwrap()).unwrap();
    assert_eq!(
        (&listed["returned"], &listed["sealed"]),
        (&true.into(), &false.into())
    );
}

// A plan named an open turn when there was none, a summary of 3,987 tokens went into requests of
// 4,000, and a compaction was due when nothing could be cut.
#[tokio::test(flavor = "multi_thread")]
async fn compaction_plan_and_summary_fit_the_budget() {
    let store = Store::of(&[conversation("one", 30), conversation("new", 1)]).await;
    let plan = store
        .ok(&["compact", "one", "plan", "--keep-turns", "0"])
        .await;
    assert!(
        plan.contains("no turn;") && !plan.contains("open one"),
        "{plan}"
    );
    assert!(
        plan.lines()
            .all(|line| !line.contains("one-") && line.chars().count() < 300)
    );
    let whole = store
        .ok(&["compact", "one", "plan", "--keep-turns", "0", "--full"])
        .await;
    assert!(
        whole.len() > plan.len() && plan.contains("--full"),
        "{plan}"
    );

    let due = store
        .ok(&["context", "new", "--budget", "200", "--explain"])
        .await;
    assert!(!due.contains("compaction is due"), "{due}");
    let due = store
        .ok(&["context", "one", "--budget", "4k", "--explain"])
        .await;
    assert!(
        due.contains("compaction is due") && due.contains("--budget 4000"),
        "{due}"
    );

    let apply = [
        "compact",
        "one",
        "apply",
        "--extract",
        "--budget",
        "4k",
        "--keep-turns",
        "0",
    ];
    store.ok(&apply).await;
    let expected = 1_000 * 4;
    let log = store
        .ok(&["--json", "log", "one", "--kinds", "compacted"])
        .await;
    let compacted: Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
    let summary = compacted.to_string().len();
    assert!(summary < expected + 1_000, "{summary}");
    let refused = store.refused(&apply).await;
    assert!(
        refused.contains("nothing to compact") && refused.contains("turn"),
        "{refused}"
    );
    let due = store
        .ok(&[
            "context",
            "one",
            "--budget",
            "400",
            "--explain",
            "--allow-over",
        ])
        .await;
    assert!(!due.contains("compaction is due"), "{due}");
}

// A failed run was shown by the progress lines of its runner instead of the error.
#[tokio::test(flavor = "multi_thread")]
async fn failed_result_shows_its_error_line() {
    let steps: String = (0..20)
        .map(|step| format!("[lint:{step}] $ tasks/lint/{step}\n"))
        .collect();
    let text = format!("{steps}[lint:go] main.go:7: undefined: lamp\n[lint:go] done\n");
    let store = Store::of(&[json!({"id": "one", "source": "test", "messages": [
        {"role": "user", "content": "go on"},
        {"role": "assistant", "content": null, "tool_calls": [call("c", "bash", &json!({}))]},
        {"role": "tool", "tool_call_id": "c", "content": text, "x": {"is_error": true}}]})])
    .await;
    let found = store.ok(&["search", "--failed", "lint"]).await;
    assert!(
        found.contains("undefined: lamp") && found.contains("line 21"),
        "{found}"
    );
    let found = store
        .ok(&["search", "--kind", "tool_result_recorded", "lint"])
        .await;
    assert!(found.contains("line 1,"), "{found}");
}

// Summaries and session titles have no time. Between events of last year, they were shown with
// today's date.
#[tokio::test(flavor = "multi_thread")]
async fn event_without_time_shows_no_date() {
    let store = Store::of(&[json!({"id": "one", "source": "test", "messages": [
        {"role": "user", "content": "go on", "x": {"ts": "2025-01-05T09:00:00Z"}},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "thanks", "x": {"ts": "2025-01-05T09:01:00Z"}}]})])
    .await;
    let log = store.ok(&["log", "one"]).await;
    assert_eq!(log.matches("2025-01-05").count(), 1, "{log}");
    assert!(log.contains("--:--:--") && !log.contains("2026-"), "{log}");
}
