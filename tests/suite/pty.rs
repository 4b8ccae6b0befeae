//! Output on a terminal: a pseudo-terminal of 60 columns, and the pager.
#![cfg(target_os = "linux")]

use std::{
    fs::File,
    io::Read,
    process::Stdio,
    thread::{self, JoinHandle},
};

use rustix::{
    fs::{Mode, OFlags},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use tokio::time::timeout;
use unicode_width::UnicodeWidthStr;

use super::child::{self, PATIENCE};

const COLUMNS: u16 = 60;

/// A pseudo-terminal, and the thread that reads its output.
struct Terminal {
    tty: File,
    screen: JoinHandle<Vec<u8>>,
}

impl Terminal {
    fn open() -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY;
        let tty = rustix::fs::open(name.as_c_str(), flags, Mode::empty()).unwrap();
        let size = Winsize {
            ws_row: 24,
            ws_col: COLUMNS,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&tty, size).unwrap();
        let mut ours = File::from(ours);
        let screen = thread::spawn(move || {
            let (mut all, mut some) = (Vec::new(), [0; 4096]);
            // Reading fails once nobody holds the other end.
            while let Ok(read) = ours.read(&mut some)
                && read > 0
            {
                all.extend_from_slice(&some[..read]);
            }
            all
        });
        Self {
            tty: File::from(tty),
            screen,
        }
    }

    /// Runs a command on the terminal. Returns whether it succeeded, and the lines shown.
    async fn run(self, arguments: &[&str], variables: &[(&str, &str)]) -> (bool, Vec<String>) {
        let mut command = child::treering();
        command
            .args(arguments)
            .env_remove("LESS")
            .env_remove("TREERING_PAGER")
            .env("PAGER", "cat")
            .env("TERM", "xterm")
            .envs(variables.iter().copied())
            .stdout(Stdio::from(self.tty));
        let mut process = command.spawn().unwrap();
        // The command keeps the terminal open.
        drop(command);
        let status = timeout(PATIENCE, process.wait()).await.expect("timed out");
        let shown = tokio::task::spawn_blocking(|| self.screen.join().unwrap());
        let shown = timeout(PATIENCE, shown).await.expect("timed out").unwrap();
        let shown = String::from_utf8(shown).unwrap();
        let lines = shown
            .lines()
            .map(|line| line.trim_end_matches('\r').to_owned());
        (status.unwrap().success(), lines.collect())
    }
}

/// Creates a store with long words, long lines, wide characters and a fork.
async fn filled(dir: &tempfile::TempDir) -> String {
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (data, file) = (path("store"), path("lines.jsonl"));
    let long =
        "灯台の光が消えた。".repeat(12) + &"x".repeat(130) + " and so on ".repeat(20).as_str();
    let line = serde_json::json!({
        "id": "a/source/with/rather/long/ids/in/it/0001", "source": "test", "messages": [
            {"role": "user", "content": long},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "c1", "type": "function", "function":
                    {"name": "a_tool_with_a_long_name_for_a_column",
                     "arguments": serde_json::json!({"path": long}).to_string()}}]},
            {"role": "tool", "tool_call_id": "c1", "content": format!("{long}\nlamp\n{long}")},
            {"role": "assistant", "content": long},
        ]
    });
    std::fs::write(&file, line.to_string() + "\n").unwrap();
    let fork = [
        "fork",
        "@last",
        "--at",
        "2",
        "--name",
        "a-branch-with-a-rather-long-name",
    ];
    for line in [&["import", &file][..], &fork] {
        let output = child::run(&[&["--data", &data], line].concat()).await;
        assert!(output.status.success(), "{output:?}");
    }
    data
}

// No row of a list may be wider than the terminal, which would cut it in the middle of a word.
#[tokio::test(flavor = "multi_thread")]
async fn no_row_is_wider_than_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let data = filled(&dir).await;
    let lines: [&[&str]; 12] = [
        &["ls"],
        &["ls", "--absolute"],
        &["show", "@last"],
        &["branch", "ls", "@last"],
        &["log", "@last", "--branch", "main"],
        &["log", "@last", "--around", "4", "--branch", "main"],
        &["search", "lamp"],
        &["tools", "@last", "--branch", "main"],
        &["tools", "@last", "--branch", "main", "--stats"],
        &["diff", "@last", "main", "a-branch-with-a-rather-long-name"],
        &["context", "@last", "--branch", "main", "--explain"],
        &["compact", "@last", "--branch", "main"],
    ];
    let mut wide = Vec::new();
    for line in lines {
        let line = [&["--data", &data], line].concat();
        let (went_well, shown) = Terminal::open().run(&line, &[]).await;
        assert!(went_well, "{line:?}: {shown:?}");
        assert!(!shown.is_empty(), "{line:?}");
        let is_wide = |row: &String| row.width() > usize::from(COLUMNS);
        let rows = shown.into_iter().filter(is_wide);
        wide.extend(rows.map(|row| (line[2], row)));
    }
    assert!(wide.is_empty(), "{wide:#?}");
}

// On a narrow terminal a hit must keep its revision, also if the ids of its source are long: other
// commands need it.
#[tokio::test(flavor = "multi_thread")]
async fn event_addresses_are_whole_on_a_narrow_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let data = filled(&dir).await;
    let (went_well, shown) = Terminal::open()
        .run(&["--data", &data, "search", "lamp"], &[])
        .await;
    assert!(went_well, "{shown:?}");
    let place = shown[0].split_whitespace().find(|word| word.contains('#'));
    let place = place.unwrap_or_else(|| panic!("{shown:#?}"));
    let output = child::run(&["--data", &data, "log", place]).await;
    let log = String::from_utf8(output.stdout).unwrap();
    assert!(log.contains("lamp"), "{place}: {log}");
}

// Long output on a terminal goes through the user's pager, unless disabled. Elsewhere it never
// does.
#[tokio::test(flavor = "multi_thread")]
async fn long_output_is_paged_on_a_terminal_only() {
    let dir = tempfile::tempdir().unwrap();
    let data = filled(&dir).await;
    let log = ["--data", &data, "log", "@last", "--branch", "main"];
    let paged = [("PAGER", "sed s/^/paged:/")];
    let (went_well, shown) = Terminal::open().run(&log, &paged).await;
    assert!(went_well && !shown.is_empty());
    assert!(
        shown.iter().all(|row| row.starts_with("paged:")),
        "{shown:?}"
    );
    let no_pager = [&log[..], &["--no-pager"]].concat();
    let (went_well, shown) = Terminal::open().run(&no_pager, &paged).await;
    assert!(went_well && !shown.is_empty());
    assert!(
        !shown.iter().any(|row| row.starts_with("paged:")),
        "{shown:?}"
    );
    // Leaving the pager early is not an error.
    let (went_well, shown) = Terminal::open().run(&log, &[("PAGER", "head -n 1")]).await;
    assert!(went_well);
    assert_eq!(shown.len(), 1, "{shown:?}");
    // Output of commands that change something is not paged, nor is output to a script.
    let fork = ["--data", &data, "fork", "@last", "--at", "2", "--name", "b"];
    let (went_well, shown) = Terminal::open().run(&fork, &paged).await;
    assert!(went_well && !shown[0].starts_with("paged:"), "{shown:?}");
    let output = child::run_with(&log, &paged).await;
    assert!(!String::from_utf8(output.stdout).unwrap().contains("paged:"));
}

// A terminal shows times in the local time zone, each with the offset of its own day. Programs and
// files get UTC.
#[tokio::test(flavor = "multi_thread")]
async fn times_on_a_terminal_use_the_local_time_zone() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (data, file) = (path("store"), path("lines.jsonl"));
    let said = |time: &str| serde_json::json!({"role": "user", "content": "x", "x": {"ts": time}});
    let messages = [said("2026-01-31T23:30:00Z"), said("2026-07-31T23:30:00Z")];
    let line = serde_json::json!({"id": "a", "source": "test", "messages": messages});
    std::fs::write(&file, line.to_string()).unwrap();
    let output = child::run(&["--data", &data, "import", &file]).await;
    assert!(output.status.success(), "{output:?}");
    let log = ["--data", &data, "log", "a"];
    let ls = ["--data", &data, "ls", "--absolute"];
    let shown = async |words: &[&str], zone: &str| {
        let (went_well, shown) = Terminal::open().run(words, &[("TZ", zone)]).await;
        assert!(went_well, "{shown:?}");
        shown.join("\n")
    };
    let rule = "CET-1CEST,M3.5.0,M10.5.0/3";
    let named = std::path::Path::new("/usr/share/zoneinfo/Europe/Berlin");
    let mut zones = vec![rule];
    zones.extend(named.exists().then_some("Europe/Berlin"));
    for zone in zones {
        let text = shown(&log, zone).await;
        for time in [
            "2026-02-01 +01:00",
            " 00:30:00.000 ",
            "2026-08-01 +02:00",
            " 01:30:00.000 ",
        ] {
            assert!(text.contains(time), "{zone}: {time} in {text}");
        }
        let text = shown(&ls, zone).await;
        assert!(text.contains("2026-08-01 01:30:00+02:00"), "{zone}: {text}");
        let show = shown(&["--data", &data, "show", "a", "--absolute"], zone).await;
        assert!(show.contains("2026-08-01 01:30:00+02:00"), "{zone}: {show}");
    }
    for zone in ["UTC", "", "Nowhere/At_All", "/dev/null", "\u{1b}[31m"] {
        let text = shown(&ls, zone).await;
        assert!(text.contains("2026-07-31 23:30:00Z"), "{zone:?}: {text}");
        let text = shown(&log, zone).await;
        assert!(text.contains("2026-07-31 Z"), "{zone:?}: {text}");
    }
    // Times are accepted in the form in which they are shown.
    let since = "2026-08-01 01:30:00+02:00";
    let found = ["--data", &data, "search", "x", "--until", since, "--count"];
    let output = child::run(&found).await;
    assert!(output.status.success(), "{output:?}");
    let text = async |words: &[&str]| {
        let output = child::run_with(words, &[("TZ", rule)]).await;
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let piped = text(&ls).await;
    assert!(piped.contains("2026-07-31 23:30:00 "), "{piped}");
    let piped = text(&log).await;
    assert!(piped.contains("        2026-07-31\n"), "{piped}");
    let json = shown(&["--data", &data, "ls", "--json"], rule).await;
    assert!(json.contains("2026-07-31T23:30:00Z"), "{json}");
    let export = ["--data", &data, "export", "a", "--format", "markdown"];
    let export = shown(&export, rule).await;
    assert!(export.contains("2026-07-31 23:30:00"), "{export}");
}
