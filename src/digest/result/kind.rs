//! Recognises the kind of a tool's output.

use super::{
    ResultOf,
    lines::{self, Output},
};

/// Kind of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutputKind {
    /// Test output.
    Tests,
    /// Output of a compiler or linter.
    Compiler,
    /// Matches in files: `path:line:text`.
    Matches,
    /// File names, one on each line.
    Listing,
    /// A diff.
    Diff,
    /// Rows of cells.
    Table,
    /// The text of a file, with line numbers.
    Code,
    /// Anything else.
    Text,
}

/// Number of lines read to recognise the kind.
const SAMPLE: usize = 200;

impl OutputKind {
    pub(super) fn of(said: ResultOf<'_>, output: &Output<'_>) -> Self {
        let sample: Vec<&str> = output.texts().take(SAMPLE).collect();
        let ends: Vec<&str> = output.texts().rev().take(20).collect();
        let most = |is: fn(&str) -> bool| {
            sample.len() >= 2
                && sample.iter().filter(|line| is(line)).count() * 10 >= sample.len() * 7
        };
        let any =
            |is: fn(&str) -> bool| sample.iter().chain(&ends).any(|line| is(line.trim_start()));
        let has_hunk = sample.iter().any(|line| line.starts_with("@@ "));
        if has_hunk && any(|line| line.starts_with("+++ ") || line.starts_with("diff --git")) {
            return Self::Diff;
        }
        if most(is_numbered) {
            return Self::Code;
        }
        if most(lines::is_located_error) {
            return Self::Compiler;
        }
        if most(is_match) {
            return Self::Matches;
        }
        if any(lines::is_total) {
            return Self::Tests;
        }
        if any(lines::is_located_error) || any(|line| line.starts_with("error[")) {
            return Self::Compiler;
        }
        if most(is_entry) {
            return Self::Listing;
        }
        if is_table(&sample) {
            return Self::Table;
        }
        let is_test = |text: &str| text.contains("test") && !text.contains(".test.");
        if is_test(said.tool) && any(lines::is_failed) {
            return Self::Tests;
        }
        Self::Text
    }
}

/// Whether a line is numbered: `   12→code`, `12\tcode`.
fn is_numbered(line: &str) -> bool {
    let line = line.trim_start();
    let rest = line.trim_start_matches(|c: char| c.is_ascii_digit());
    rest.len() < line.len() && rest.starts_with(['→', '\t', '|'])
}

/// Whether a line is `path:12:text` or `path:text`.
fn is_match(line: &str) -> bool {
    line.split_once(':').is_some_and(|(path, rest)| {
        let numbered = rest.starts_with(|c: char| c.is_ascii_digit());
        !rest.is_empty() && is_path(path) && (numbered || !rest.starts_with(' '))
    })
}

/// Whether a line is a path, or a line of `ls -l`.
fn is_entry(line: &str) -> bool {
    let line = line.trim();
    is_path(line)
        || super::groups::long_entry(line).is_some()
        || line.starts_with("[FILE] ")
        || line.starts_with("[DIR] ")
}

/// Whether a text is a word with a slash or extension that does not look like part of a sentence.
pub(super) fn is_path(text: &str) -> bool {
    let text = text.trim_end_matches(['/', '*', '@']);
    let plain = |c: char| c.is_alphanumeric() || "_-./~+@#%\\()[]".contains(c);
    let is_name = !text.is_empty() && text.len() <= 240 && text.chars().all(plain);
    is_name
        && (text.contains('/')
            || text
                .rsplit_once('.')
                .is_some_and(|(_, end)| (1..=8).contains(&end.len())))
}

/// Whether the rows have the same number of the same separator.
fn is_table(sample: &[&str]) -> bool {
    ['|', '\t', ',', ';'].iter().any(|separator| {
        let cells = |line: &&str| line.matches(*separator).count();
        let first = sample.first().map_or(0, cells);
        let needed = if *separator == ',' { 2 } else { 1 };
        sample.len() >= 3
            && first >= needed
            && sample.iter().filter(|line| cells(line) == first).count() * 10 >= sample.len() * 8
    })
}
