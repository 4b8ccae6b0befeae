//! Rates each line of an output.

use super::kind::OutputKind;
use crate::{
    summary::{is_verdict, reports_error},
    user_text::without_reminders,
};
use treering_context::text::{one_line, says_something};

/// The lines of an output. A long output has only the lines of its beginning and end.
pub(super) struct Output<'a> {
    pub lines: Vec<Line<'a>>,
    /// Whether lines were skipped after the last one.
    pub ends_in_gap: bool,
}

/// A line with content.
pub(super) struct Line<'a> {
    pub text: &'a str,
    /// Whether lines without content (`}`), or lines that were not read, precede this line.
    after_gap: bool,
}

/// How much a line matters. Lines with worth 0 are used last, starting with the first.
pub(super) type Worth = u32;

const TOTAL: Worth = 1_000;
const ERROR: Worth = 800;
const FAILED: Worth = 700;
const HEADER: Worth = 650;
const SECTION: Worth = 460;
const FINDING: Worth = 440;
const BESIDE: Worth = 400;
const LAST: Worth = 600;
const FIRST: Worth = 500;
const DEFINES: Worth = 200;
/// Maximum number of lines of one sort (see [`by_itself`]) with their full worth. Further lines are
/// worth less, because the first errors matter most and the end needs room.
const ALIKE_MAX: u32 = 6;

impl<'a> Output<'a> {
    pub fn of(text: &'a str, bytes_max: usize) -> Self {
        let text = without_reminders(text);
        let (start, end) = if text.len() <= 2 * bytes_max {
            (text, "")
        } else {
            let start = text.floor_char_boundary(bytes_max);
            let end = text.ceil_char_boundary(text.len() - bytes_max);
            (&text[..start], &text[end..])
        };
        let mut lines: Vec<Line<'a>> = Vec::new();
        let mut gap = false;
        for (part, is_end) in [(start, false), (end, true)] {
            gap |= is_end && !part.is_empty();
            let mut is_reminder = false;
            for text in part.lines() {
                // Reminders that a harness added are not part of the result.
                is_reminder |= text.trim_start().starts_with("<system-reminder>");
                if is_reminder {
                    is_reminder = !text.trim_end().ends_with("</system-reminder>");
                    continue;
                }
                let said = numberless(text.trim_start());
                let after_gap = gap;
                gap |= !said.trim().is_empty();
                if says_something(said) {
                    let text = text.trim_end();
                    lines.push(Line { text, after_gap });
                    gap = false;
                }
            }
        }
        Self {
            lines,
            ends_in_gap: gap,
        }
    }

    /// Whether a line between two indexes was omitted.
    pub(crate) fn says_something_between(&self, from: usize, to: usize) -> bool {
        to > from || self.lines.get(to).is_some_and(|line| line.after_gap)
    }

    /// Returns the exit code in the output.
    pub fn exit_code(&self) -> Option<i64> {
        let ends = self
            .lines
            .iter()
            .take(3)
            .chain(self.lines.iter().rev().take(3));
        ends.filter_map(|line| exit_code(line.text)).next()
    }

    /// Returns the texts of the lines.
    pub fn texts(&self) -> impl DoubleEndedIterator<Item = &'a str> {
        self.lines.iter().map(|line| line.text)
    }
}

/// Reads `Exit code 1`, `exit status: 101`, `return code 2` or `<returncode>1<`.
fn exit_code(line: &str) -> Option<i64> {
    const SIGNS: [&str; 6] = [
        "exit code",
        "exit status",
        "exited with code",
        "exited with",
        "return code",
        "returncode",
    ];
    let line = line
        .get(..line.floor_char_boundary(120))?
        .to_ascii_lowercase();
    let after = SIGNS
        .iter()
        .find_map(|sign| line.split_once(sign).map(|(_, after)| after))?;
    let after = after.trim_start_matches([':', '=', ' ', '>', '"', '\'', '(']);
    let end = after
        .char_indices()
        .find(|(at, c)| !(c.is_ascii_digit() || *at == 0 && *c == '-'))
        .map_or(after.len(), |(at, _)| at);
    after[..end].parse().ok()
}

/// Returns the worth of each line, with its index.
pub(super) fn worth(output: &Output<'_>, kind: OutputKind) -> Vec<(Worth, usize)> {
    let count = output.lines.len();
    let mut worths: Vec<Worth> = Vec::with_capacity(count);
    let mut alike: [u32; 2] = [0; 2];
    let is_report = kind == OutputKind::Text && is_report(output);
    for (at, line) in output.lines.iter().enumerate() {
        let from_end = count - 1 - at;
        let mut worth = match (at, from_end) {
            (_, 0..3) => LAST - u32::try_from(from_end).unwrap_or(0) * 20,
            (0..3, _) => FIRST - u32::try_from(at).unwrap_or(0) * 20,
            _ => 0,
        };
        if let Some((own, nth)) = by_itself(line.text, kind) {
            let seen = &mut alike[nth];
            *seen += 1;
            let own = if *seen > ALIKE_MAX { own / 4 } else { own };
            worth = worth.max(own);
        }
        if is_report {
            worth = worth.max(of_report(line.text));
        }
        worths.push(worth);
    }
    if kind == OutputKind::Table && count > 0 {
        worths[0] = HEADER;
    }
    // Lines below an error often have its place and cause.
    for at in 1..count {
        if worths[at - 1] >= FAILED && worths[at - 1] != TOTAL && worths[at] < BESIDE {
            worths[at] = BESIDE;
        }
    }
    worths.into_iter().zip(0..).collect()
}

/// Whether the output is a text with headings, like the reports of sub-agents.
fn is_report(output: &Output<'_>) -> bool {
    const HEADINGS_LEAST: usize = 3;
    let headings = output.texts().filter(|line| heading_depth(line) > 1);
    headings.count() >= HEADINGS_LEAST
}

fn heading_depth(line: &str) -> usize {
    let rest = line.trim_start_matches('#');
    match rest.starts_with(' ') {
        true => line.len() - rest.len(),
        false => 0,
    }
}

/// Returns the worth of a line in a report. The verdict is worth most, then headings, then numbered
/// or bold findings.
fn of_report(line: &str) -> Worth {
    let bare = line.trim_start().trim_start_matches(['-', ' ']);
    let numberless = bare.trim_start_matches(|c: char| c.is_ascii_digit());
    let is_numbered = numberless.len() < bare.len() && numberless.starts_with(". ");
    match heading_depth(line) {
        _ if is_verdict(line) => TOTAL,
        1..=3 => SECTION,
        4.. => FINDING,
        _ if is_numbered || bare.starts_with("**") => FINDING,
        _ => 0,
    }
}

/// Returns the worth of a line by its text, and its sort: 0 for totals, 1 for other lines.
fn by_itself(text: &str, kind: OutputKind) -> Option<(Worth, usize)> {
    let line = text.trim_start();
    match kind {
        OutputKind::Listing | OutputKind::Matches | OutputKind::Table => None,
        OutputKind::Diff => {
            (line.starts_with("diff --git") || line.starts_with("+++ ")).then_some((DEFINES, 1))
        }
        OutputKind::Code => defines(numberless(line)).then_some((DEFINES, 1)),
        OutputKind::Tests | OutputKind::Compiler | OutputKind::Text => {
            if is_total(line) {
                Some((TOTAL, 0))
            } else if reports_error(line) || is_located_error(line) {
                Some((ERROR, 1))
            } else if is_failed(line) {
                Some((FAILED, 1))
            } else {
                None
            }
        }
    }
}

/// Whether a line is the summary of a test run or build.
pub(crate) fn is_total(line: &str) -> bool {
    const STARTS: [&str; 9] = [
        "test result:",
        "Tests:",
        "Test Suites:",
        "Ran ",
        "FAILED (",
        "Total:",
        "could not compile",
        "error: could not compile",
        "error: aborting",
    ];
    let bare = line.trim_matches(['=', ' ', '-']);
    let counted = |word: &str| {
        bare.match_indices(word).any(|(at, _)| {
            bare[..at]
                .trim_end()
                .ends_with(|c: char| c.is_ascii_digit())
        })
    };
    STARTS.iter().any(|start| bare.starts_with(start))
        || bare.len() <= 160
            && [
                " passed",
                " failed",
                " errors",
                " error,",
                " problems",
                " passing",
                " failing",
            ]
            .iter()
            .any(|word| counted(word))
}

/// Whether a line says that a test run or build failed.
pub(super) fn is_failed_run(line: &str) -> bool {
    let line = line.trim_start();
    line == "FAIL"
        || line.starts_with("FAIL\t")
        || line.starts_with("--- FAIL")
        || line.starts_with("test result: FAILED")
        || line.starts_with("FAILED (")
        || line.starts_with("error: could not compile")
        || line.starts_with("npm ERR!")
        || line.ends_with("ERROR task failed")
}

/// Whether a line names something that failed.
pub(super) fn is_failed(line: &str) -> bool {
    const STARTS: [&str; 17] = [
        "--- FAIL",
        "FAIL",
        "FAILED",
        "not ok ",
        "✗",
        "✘",
        "✕",
        "× ",
        "● ",
        "[ERROR]",
        "[  FAILED  ]",
        "##[error]",
        "E   ",
        "assert",
        "AssertionError",
        "Expected",
        "thread '",
    ];
    STARTS.iter().any(|start| line.starts_with(start))
        || line.ends_with("... FAIL")
        || line.ends_with("... ERROR")
        || line.rsplit_once(" [").is_some_and(|(said, share)| {
            share.ends_with("%]") && said.trim_end().ends_with(" FAILED")
        })
        || line.ends_with("... FAILED")
        || line.ends_with(" FAILED")
        || line.contains(": command not found")
        || line.contains("No such file or directory")
        || line.contains("Permission denied")
}

/// Whether a line is like `path:12:5: error …`, `path(3,4): error …` or `path:12: undefined: x`.
pub(super) fn is_located_error(line: &str) -> bool {
    let Some((place, rest)) = line.split_once(": ") else {
        return false;
    };
    let places = place.matches(':').count() >= 1
        && place
            .rsplit(':')
            .next()
            .is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
        && place.contains('.')
        && !place.contains(' ');
    let says = [
        "error",
        "undefined",
        "cannot",
        "expected",
        "not ",
        "unknown",
    ];
    let rest = rest.get(..rest.floor_char_boundary(80)).unwrap_or(rest);
    (places || place.ends_with(')') && place.contains('('))
        && says.iter().any(|word| rest.contains(word))
}

/// Returns a line without its line number: `   12→code`, `12: code`.
pub(crate) fn numberless(line: &str) -> &str {
    let rest = line.trim_start_matches(|c: char| c.is_ascii_digit());
    if rest.len() == line.len() || !rest.starts_with(['→', '\t', ':', '|']) {
        return line;
    }
    rest.trim_start_matches(['→', '\t', ':', '|', ' '])
        .trim_start()
}

/// Returns a line with its line number and indentation, without control characters. In code, diffs
/// and other text, spaces between words stay.
pub(super) fn as_it_stands(line: &str, kind: OutputKind) -> String {
    let bare = line.trim_start();
    let said = numberless_part(bare);
    let (number, said) = match said {
        Some(said) => (&bare[..bare.len() - said.len()], said),
        None => ("", line),
    };
    let text = said.trim_start();
    let (indent, _) = said.split_at(said.len() - text.len());
    let mut told = String::with_capacity(line.len());
    told.push_str(number);
    told.extend(indent.chars().map(|c| if c == '\t' { c } else { ' ' }));
    if !matches!(kind, OutputKind::Code | OutputKind::Diff | OutputKind::Text) {
        told.push_str(&one_line(text));
        return told;
    }
    for word in text.split_inclusive([' ', '\t']) {
        let end = word.trim_end_matches([' ', '\t']).len();
        told.push_str(&one_line(&word[..end]));
        told.push_str(&word[end..]);
    }
    told
}

/// Returns the part of a line after its number and separator, if it has them.
fn numberless_part(line: &str) -> Option<&str> {
    let rest = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let is_numbered = rest.len() < line.len() && rest.starts_with(['→', '\t', ':', '|']);
    let sign = rest.chars().next().map_or(0, char::len_utf8);
    is_numbered.then(|| &rest[sign..])
}

/// Whether a line of code starts a definition.
pub(super) fn defines(line: &str) -> bool {
    const WORDS: [&str; 18] = [
        "fn ",
        "pub fn ",
        "pub struct ",
        "struct ",
        "pub enum ",
        "enum ",
        "impl ",
        "trait ",
        "func ",
        "type ",
        "def ",
        "class ",
        "async def ",
        "function ",
        "export ",
        "interface ",
        "# ",
        "## ",
    ];
    WORDS.iter().any(|word| line.starts_with(word))
}
