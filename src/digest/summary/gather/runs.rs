//! Commands that ran: which runs are equivalent, and which success fixes which failure.

use serde_json::Value;

use super::text_of;
use crate::{
    knowledge::file_effects,
    summary::{
        result::result_summary,
        shape::members,
        text::{clip, one_line, says_something},
    },
};
use treering_domain::{ToolCallRequested, ToolResultRecorded};

/// Maximum number of failures, and of commands; the last ones are kept.
const RUNS_MAX: usize = 16;

/// Keeps only the last run of each command, at the place of that run.
pub(super) fn note_run(
    runs: &mut Vec<(String, String)>,
    keys: &mut Vec<String>,
    key: &str,
    what: String,
    said: String,
) {
    if let Some(at) = keys.iter().position(|known| known == key) {
        keys.remove(at);
        runs.remove(at);
    }
    keys.push(key.to_owned());
    runs.push((what, said));
    if runs.len() > RUNS_MAX {
        keys.remove(0);
        runs.remove(0);
    }
}

/// Returns the keys that identify later runs of the same call: its programs with effects, or the
/// tool and the file.
pub(super) fn keys_of(call: &ToolCallRequested, line: Option<&str>) -> Vec<String> {
    if let Some(line) = line {
        let mut programs = file_effects::programs(line);
        programs.retain(|program| !is_quiet(program));
        return programs;
    }
    let arguments: Value = serde_json::from_str(call.arguments.as_str()).unwrap_or_default();
    let file = ["file_path", "path", "filename"]
        .iter()
        .find_map(|key| arguments.get(*key)?.as_str());
    match file {
        // Any later write of the file fixes a failed edit.
        Some(file) if file_effects::is_of_files(&call.tool) && !file_effects::only_looks(call) => {
            vec![format!("file {file}")]
        }
        file => vec![format!("{} {}", call.tool, file.unwrap_or_default())],
    }
}

/// Purpose of a program whose failure another program can fix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunKind {
    Tests,
    Lint,
    Merge,
}

impl RunKind {
    pub fn of(program: &str) -> Option<Self> {
        const LINTERS: [&str; 6] = [
            "clippy",
            "golangci-lint",
            "eslint",
            "ruff",
            "flake8",
            "pylint",
        ];
        const MERGING: [&str; 5] = ["merge", "rebase", "pull", "cherry-pick", "revert"];
        let mut words = program.split([' ', ':', '/']);
        let is_test = |word: &str| {
            word.starts_with("test") || matches!(word, "pytest" | "jest" | "vitest" | "rspec")
        };
        if words.clone().any(is_test) {
            return Some(Self::Tests);
        }
        if words
            .clone()
            .any(|word| word.starts_with("lint") || LINTERS.contains(&word))
        {
            return Some(Self::Lint);
        }
        let is_merge = words.next() == Some("git") && words.any(|word| MERGING.contains(&word));
        is_merge.then_some(Self::Merge)
    }

    /// Returns the purpose that is completed if this program succeeds; for example, a commit
    /// completes a merge.
    pub(crate) fn ended_by(program: &str) -> Option<Self> {
        match program {
            "git commit" | "git push" => Some(Self::Merge),
            program => Self::of(program),
        }
    }
}

/// Whether a program only reads or prints.
fn is_quiet(program: &str) -> bool {
    const QUIET: [&str; 31] = [
        "cat", "ls", "grep", "rg", "find", "head", "tail", "sed", "awk", "echo", "pwd", "cd",
        "which", "wc", "sort", "uniq", "true", "less", "tree", "fd", "jq", "cut", "tr", "xargs",
        "diff", "file", "stat", "sleep", "printf", "test", "export",
    ];
    let mut words = program.split(' ');
    let name = words.next().unwrap_or("");
    let looks = [
        "status", "log", "diff", "show", "blame", "branch", "ls-files", "config",
    ];
    QUIET.contains(&name) || name == "git" && words.next().is_some_and(|verb| looks.contains(&verb))
}

/// Returns a result in short: the members of JSON, else the first and the last line with content.
pub(super) fn last_words(result: &ToolResultRecorded) -> String {
    let text = text_of(result);
    // The first and last lines of JSON have no information.
    if text.starts_with(['{', '[']) && serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok()
    {
        let told = members(&text).map(|members| clip(&one_line(&members.join(", ")), 240));
        return told.unwrap_or_else(|| result_summary(result, 240));
    }
    let lines: Vec<&str> = text.lines().filter(|line| says_something(line)).collect();
    match lines.as_slice() {
        [] => "no output".to_owned(),
        [only] => clip(&one_line(only), 240),
        [first, .., last] => format!(
            "{} … {}",
            clip(&one_line(first), 140),
            clip(&one_line(last), 140)
        ),
    }
}
