use proptest::prelude::*;

use super::*;

fn of(text: &str, max_chars: usize) -> String {
    digest(
        ResultOf::default(),
        &ToolResultRecorded::text("call", text),
        max_chars,
    )
}

fn kind(text: &str) -> OutputKind {
    OutputKind::of(ResultOf::default(), &lines::Output::of(text, 1 << 16))
}

fn numbered(count: usize, line: impl Fn(usize) -> String) -> String {
    (1..=count).map(line).collect::<Vec<_>>().join("\n")
}

fn cargo_run() -> String {
    let passed = numbered(80, |n| format!("test engine::case_{n} ... ok"));
    format!(
        "Exit code 101\nrunning 82 tests\n{passed}\ntest engine::broken ... FAILED\n\n\
         failures:\n\n---- engine::broken stdout ----\n\
         thread 'engine::broken' panicked at src/engine.rs:41:9:\n\
         assertion `left == right` failed\n  left: 3\n right: 4\n\n\
         failures:\n    engine::broken\n\n\
         test result: FAILED. 81 passed; 1 failed; 0 ignored; finished in 0.41s"
    )
}

// The end of a failed test run has what the next step needs, but a digest of the beginning hid it.
#[test]
fn digest_of_tests_keeps_failures_and_outcome() {
    let told = of(&cargo_run(), 600);
    for needed in [
        "exit code 101",
        "test result: FAILED. 81 passed; 1 failed",
        "engine::broken ... FAILED",
        "src/engine.rs:41:9",
        "assertion `left == right` failed",
    ] {
        assert!(told.contains(needed), "{needed} is not in:\n{told}");
    }
    assert!(!told.contains("case_40"), "{told}");
}

// The kind is detected from the lines, whatever tool printed them.
#[test]
fn output_kind_is_detected_from_lines() {
    let diff = "diff --git a/src/a.rs b/src/a.rs\nindex 1..2\n--- a/src/a.rs\n+++ b/src/a.rs\n\
                @@ -1,2 +1,2 @@\n-old\n+new\n same\n";
    for (text, expected) in [
        (cargo_run(), OutputKind::Tests),
        ("== 3 passed, 1 failed in 0.2s ==\nFAILED a.py::x - boom".into(), OutputKind::Tests),
        (numbered(9, |n| format!("src/a{n}.rs:{n}:fn x")), OutputKind::Matches),
        (numbered(9, |n| format!("src/deep/a{n}.rs")), OutputKind::Listing),
        (
            "total 8\n-rw-r--r-- 1 dev dev 12 Jan 1 10:00 a.txt\ndrwxr-xr-x 2 dev dev 40 Jan 1 10:00 src\n\
             -rw-r--r-- 1 dev dev 9 Jan 1 10:00 c.txt"
                .into(),
            OutputKind::Listing,
        ),
        (diff.into(), OutputKind::Diff),
        ("name|age\nann|3\nbob|4\ncyd|5".into(), OutputKind::Table),
        (numbered(9, |n| format!("    {n}→fn x{n}() {{")), OutputKind::Code),
        (
            "main.go:12:5: undefined: Foo\nmain.go:14:2: undefined: Bar\n".into(),
            OutputKind::Compiler,
        ),
        ("Well then.\nIt is done, and that is all.".into(), OutputKind::Text),
    ] {
        assert_eq!(kind(&text), expected, "{text}");
    }
}

// Counts by file or directory say more than the first lines.
#[test]
fn digest_counts_matches_and_changes_by_file() {
    let matches = numbered(40, |n| {
        format!("src/file_{}.rs:{n}: let needle = {n};", n % 3)
    });
    let told = of(&matches, 400);
    assert!(told.contains("40 matches in 3 files"), "{told}");
    assert!(told.contains("src/file_0.rs: 13"), "{told}");
    let hunk = numbered(60, |n| format!("+line {n}"));
    let diff = format!(
        "diff --git a/src/a.rs b/src/a.rs\n--- a/src/a.rs\n+++ b/src/a.rs\n@@ -1 +1,60 @@\n-x\n{hunk}\n\
         diff --git a/b.md b/b.md\n--- a/b.md\n+++ b/b.md\n@@ -1 +1 @@\n-y\n+z"
    );
    let told = of(&diff, 400);
    assert!(told.contains("src/a.rs +60 -1"), "{told}");
    assert!(told.contains("b.md +1 -1"), "{told}");
    let listing = numbered(90, |n| format!("src/part_{}/file_{n}.rs", n % 3));
    let told = of(&listing, 400);
    assert!(
        told.contains("90 lines") && told.contains("src/part_1/ 30"),
        "{told}"
    );
}

// JSON escaped in JSON was longer than the result. Short members must stay readable.
#[test]
fn digest_of_json_lists_its_members() {
    let rows: Vec<_> = (0..41)
        .map(|n| serde_json::json!({"id": n, "name": "x"}))
        .collect();
    let text = serde_json::json!({"status": "ok", "total": 41, "rows": rows}).to_string();
    let told = of(&text, 300);
    let front = format!(
        "JSON, {}\nstatus: ok, total: 41\n",
        counted(text.len(), "byte")
    );
    assert!(told.starts_with(&front), "{told}");
    let rows = "rows (41): [{id: 0, name: x}, {id: 1, name: x}, ";
    assert!(told.contains(rows) && told.ends_with('…'), "{told}");
    assert!(told.chars().count() <= 300 && told.len() > 250, "{told}");
}

// A digest had `array of 5 arrays` and `5 more keys` in place of flight numbers and balances.
#[test]
fn digest_of_nested_json_shows_leaf_values() {
    let text = serde_json::json!({
        "flights": [{"number": "HAT083", "date": "2024-05-21"}, {"number": "HAT194", "date": "2024-05-22"}],
        "passengers": [{"first": "Sofia", "born": "1986-03-02"}],
        "a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "f": 6, "g": 7,
        "created_at": "2024-05-08T19:01:02", "insurance": "no",
        "notes": "so ".repeat(400),
    });
    let told = of(&text.to_string(), 600);
    for leaf in [
        "HAT083",
        "HAT194",
        "Sofia",
        "insurance: no",
        "created_at: 2024-05-08",
        "g: 7",
    ] {
        assert!(told.contains(leaf), "{leaf}: {told}");
    }
    let lists: Vec<_> = (0..5)
        .map(|n| serde_json::json!([{"number": format!("HAT10{n}")}]))
        .collect();
    let told = of(
        &format!("{}{}", serde_json::json!(lists), " ".repeat(700)),
        600,
    );
    assert!(told.contains("5 items\n[{number: HAT100}]\n"), "{told}");
    assert!(told.ends_with("[{number: HAT104}]"), "{told}");
}

// The digest of a 345-line review had eight random lines without the verdict or findings. It also
// counted lines that the harness had appended.
#[test]
fn digest_of_a_report_keeps_verdict_and_findings() {
    let filler = "It is looked at here in some more detail than that.\n".repeat(40);
    let text = format!(
        "# Review\n{filler}## Summary\n{filler}**Verdict: REQUEST CHANGES**\n{filler}\
         ## Findings\n1. **The lock is lost**\n{filler}2. **The hook runs twice**\n{filler}\
         ## Tests\n{filler}They pass.\n"
    );
    let lines = counted(text.lines().count(), "line");
    let told = of(
        &format!("{text}<system-reminder>\nlook\n</system-reminder>"),
        600,
    );
    for line in [
        "Verdict: REQUEST CHANGES",
        "## Findings",
        "The lock is lost",
        "The hook runs twice",
    ] {
        assert!(told.contains(line), "{line}: {told}");
    }
    assert!(told.contains(&format!("{lines}, ")), "{lines}: {told}");
}

// Gaps are marked, and lines keep their order.
#[test]
fn digest_marks_gaps_and_keeps_line_order() {
    let text = numbered(100, |n| match n {
        50 => "error: the middle broke".to_owned(),
        n => format!("step {n} went well enough to be of no interest at all"),
    });
    let told = of(&text, 400);
    let lines: Vec<_> = told.lines().collect();
    assert!(lines[0].starts_with("100 lines, "), "{told}");
    assert!(lines.contains(&"… error: the middle broke"), "{told}");
    let middle = told.find("the middle broke").unwrap();
    assert!(told.find("step 1 ").unwrap() < middle, "{told}");
    assert!(middle < told.find("step 100 ").unwrap(), "{told}");
}

// Harness reminders and empty numbered lines took room from the file's text.
#[test]
fn digest_skips_harness_text_and_empty_lines() {
    let code = numbered(80, |n| match n {
        n if n % 2 == 0 => format!("    {n}→"),
        n => format!("    {n}→let x_{n} = {n};"),
    });
    let text = format!("{code}\n\n<system-reminder>\nConsider this.\n</system-reminder>\n");
    let told = of(&text, 300);
    assert!(told.ends_with("79→let x_79 = 79;"), "{told}");
    assert!(!told.contains("Consider"), "{told}");
}

// YAML lost its indentation, and lines from different blocks were joined without a gap mark. An
// editor that searches for these lines does not find them.
#[test]
fn digest_keeps_indentation_and_whole_lines() {
    let yaml = "     1→version: 2\n     2→\n     3→builds:\n     4→  - main: ./cmd/entire\n\
                     5→    binary: entire\n     6→    env:\n     7→      - CGO_ENABLED=0\n";
    let more = numbered(60, |n| format!("{:>6}→  key_{n}:  of no interest", n + 7));
    let told = of(&format!("{yaml}{more}"), 400);
    assert!(
        told.contains("\n3→builds:\n4→  - main: ./cmd/entire\n"),
        "{told}"
    );

    let go = numbered(80, |n| match n {
        1 => "func hash() (string, error) {".to_owned(),
        2 => "\tif err != nil {".to_owned(),
        3 => "\t}".to_owned(),
        n => format!("\thash = append(hash, {n})  // as it was"),
    });
    for code in [
        go.clone(),
        go.lines()
            .zip(229..)
            .map(|(line, n)| format!("{n:>6}→{line}\n"))
            .collect(),
    ] {
        let told = of(&code, 300);
        assert!(told.contains("\tif err != nil {"), "{told}");
        let after = told.split("if err != nil {\n").nth(1).unwrap();
        assert!(after.starts_with("… "), "{told}");
        assert!(told.contains("append(hash, 80)  // as it was"), "{told}");
    }
    let python = numbered(40, |n| format!("{}step_{n}(", "    ".repeat(n % 3)) + ",");
    let told = of(&(python + "\n)\n"), 300);
    assert!(told.contains("\n        step_2("), "{told}");
    assert!(told.ends_with("\n…"), "{told}");
}

// The middle of a megabyte is not read, and the gap is marked.
#[test]
fn digest_of_long_output_reads_both_ends() {
    let middle = "nothing to see here\n".repeat(60_000);
    let text = format!("first line\n{middle}error: at the very end\nExit code: 2\n");
    let told = of(&text, 400);
    assert!(told.contains("exit code 2"), "{told}");
    assert!(told.contains("error: at the very end"), "{told}");
    assert!(told.contains("first line"), "{told}");
}

proptest! {
    /// For any output, the digest is within its limit, not empty, deterministic, and without
    /// control characters except newlines.
    #[test]
    fn any_digest_is_bounded_and_not_empty(
        text in prop_oneof![any::<String>(), r"(error: x\n|a/b.rs:3: y\n|\| a \| b \|\n|[ -~]{0,40}\n){0,40}"],
        error in any::<String>(),
        success in any::<bool>(),
        max in 0_usize..300,
    ) {
        let mut result = ToolResultRecorded::text("call", text);
        result.error_message = error;
        result.success = success;
        let told = digest(ResultOf::default(), &result, max);
        prop_assert!(!told.is_empty());
        prop_assert!(told.chars().count() <= max.max(1));
        prop_assert!(!told.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\t')));
        prop_assert_eq!(&told, &digest(ResultOf::default(), &result, max));
    }
}
