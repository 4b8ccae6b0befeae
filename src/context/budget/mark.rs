//! Cuts texts and marks the cut. Text is cut at line ends, JSON by its members, and test output
//! around its failures.

use std::ops::Range;

use super::{blobs, json};
use crate::heuristics::Heuristics;

/// Name in a mark for the text of a tool result.
pub(super) const RESULT: &str = "this result";
/// Tenths of the kept text that come before the cut.
const HEAD_TENTHS: usize = 5;
/// A cut moves to a line end within 1/`LINE_WITHIN` of the part, or within `LINE_WITHIN_BYTES` if
/// the part is small.
const LINE_WITHIN: usize = 4;
const LINE_WITHIN_BYTES: usize = 100;
/// Bytes of encoded data that stay, so that its kind can be recognised.
const BLOB_HEAD: usize = 16;

/// The mark in place of the text that was cut.
pub(super) struct CutMark<'h> {
    pub heuristics: &'h dyn Heuristics,
    pub of: &'static str,
    /// The suffix with the reference to the whole text, or empty.
    pub whole: String,
    /// The file line at which the text begins, if it is known and is not line 1.
    pub begins: Option<u64>,
    /// Bytes and lines of the whole text that precede this text.
    pub skipped: (usize, usize),
}

impl<'h> CutMark<'h> {
    pub fn of(of: &'static str, at: Option<String>, heuristics: &'h dyn Heuristics) -> Self {
        Self {
            heuristics,
            of,
            whole: at.map_or_else(String::new, |at| format!("; the whole: {at}")),
            begins: None,
            skipped: (0, 0),
        }
    }

    /// As [`Self::cut`], but omits this part of the text first.
    pub fn cut_beside(&self, text: &str, part: &Range<usize>, bytes_max: usize) -> String {
        let newlines = |text: &str| text.bytes().filter(|byte| *byte == b'\n').count();
        let (head, rest) = (&text[..part.start], &text[part.end..]);
        let from = newlines(head) + 1;
        let lines = newlines(&text[part.clone()]);
        let told = self.told((from, from + lines.saturating_sub(1)));
        let note = self.behind(part.len(), text.len(), &told);
        let room = bytes_max.saturating_sub(head.len());
        let rest = match rest.len() <= room {
            true => rest.to_owned(),
            false => {
                let rest_mark = Self {
                    whole: self.whole.clone(),
                    skipped: (part.end, newlines(&text[..part.end])),
                    ..*self
                };
                rest_mark.cut(rest, room)
            }
        };
        format!("{}{note}\n{rest}", head.trim_end())
    }

    /// Returns the head and tail of a text, about `bytes_max` bytes in total.
    pub fn cut(&self, text: &str, bytes_max: usize) -> String {
        // Reminders that a harness appended are not the end of the text.
        let told = self.heuristics.without_notices(text);
        if told.len() > bytes_max
            && let Some(json) = json::cut(told, bytes_max)
        {
            let gone = text.len().saturating_sub(json.text.len());
            let note = self.behind(gone, text.len(), &json.beside.told());
            return format!("{}{note}", json.text);
        }
        if told.len() > bytes_max
            && self.of == RESULT
            && let Some((run, gone)) = self.heuristics.cut_run(told, bytes_max)
        {
            let gone = gone + text.len() - told.len();
            return format!("{run}{}", self.behind(gone, text.len(), ""));
        }
        let told = &*blobs::without(told, BLOB_HEAD);
        let (head, tail) = match told.len() <= bytes_max {
            true => (told.len(), told.len()),
            false => {
                let head_max = bytes_max * HEAD_TENTHS / 10;
                let tail_at = ceil(told, told.len() - (bytes_max - head_max));
                let head = line_end_before(told, floor(told, head_max));
                (head, line_start_after(told, tail_at))
            }
        };
        let gone = text.len().saturating_sub(head + told.len() - tail);
        let lines = lines(told, head, tail);
        let lines = lines.map_or_else(String::new, |(from, to)| {
            self.told((from + self.skipped.1, to + self.skipped.1))
        });
        let mark = self.behind(gone, text.len() + self.skipped.0, &lines);
        format!("{}{mark}\n{}", &told[..head], &told[tail..])
    }

    /// The text without its encoded data, if it has any.
    pub(crate) fn without_blobs(&self, text: &str) -> Option<String> {
        if !blobs::are_beside(text) {
            return None;
        }
        let (told, gone) = blobs::without_and_bytes(text, 0);
        let (all, of, whole) = (text.len(), self.of, &self.whole);
        // The mark is at the end: each gap already shows how many bytes it omits.
        (gone > 0).then(|| {
            format!(
                "{told}\n[… encoded data is left out above, {gone} of {all} bytes of {of}{whole} …]"
            )
        })
    }

    fn told(&self, (from, to): (usize, usize)) -> String {
        let in_file = self.begins.map_or_else(String::new, |begins| {
            let [from, to] = [from, to].map(|line| begins.saturating_add(line as u64 - 1));
            format!(" (of the file: {from} to {to})")
        });
        format!(", lines {from} to {to}{in_file}")
    }

    /// The mark at the end of the kept text, with `told` as additional facts.
    fn behind(&self, gone: usize, all: usize, told: &str) -> String {
        let (of, whole) = (self.of, &self.whole);
        format!("\n[… {gone} of {all} bytes of {of} are left out{told}{whole} …]")
    }
}

/// Returns the first and last omitted line, from 1, so that they can be read by number. None if
/// there are too few.
fn lines(text: &str, head: usize, tail: usize) -> Option<(usize, usize)> {
    /// Fewer omitted lines are described only by bytes.
    const LEAST: usize = 3;
    let newlines = |text: &str| text.bytes().filter(|byte| *byte == b'\n').count();
    let gone = newlines(&text[head..tail]);
    if gone < LEAST {
        return None;
    }
    // A cut is at the end of a line or inside one.
    let from = newlines(&text[..head]) + 1 + usize::from(text[head..].starts_with('\n'));
    let to = newlines(&text[..tail]) + usize::from(!text[..tail].ends_with('\n'));
    Some((from, to))
}

/// The end of the last whole line, if it is near.
fn line_end_before(text: &str, at: usize) -> usize {
    match text[..at].rfind('\n') {
        Some(line) if line > 0 && at - line <= line_within(at) => line,
        _ => at,
    }
}

/// The start of the next line, if it is near.
fn line_start_after(text: &str, at: usize) -> usize {
    let rest = text.len() - at;
    match text[at..].find('\n') {
        Some(line) if line + 1 < rest && line < line_within(rest) => at + line + 1,
        _ => at,
    }
}

/// How far a cut may move to the end of a line, for a part of `bytes` bytes.
fn line_within(bytes: usize) -> usize {
    (bytes / LINE_WITHIN).max(LINE_WITHIN_BYTES.min(bytes / 2))
}

fn floor(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

fn ceil(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heuristics::PlainHeuristics;

    // The mark must name the omitted lines, because they can be read by number.
    #[test]
    fn cut_mark_names_the_omitted_lines() {
        let mark = CutMark::of(RESULT, Some("#7".to_owned()), &PlainHeuristics);
        let text: String = (1..=100)
            .map(|line| format!("this is line {line}\n"))
            .collect();
        let told = mark.cut(&text, 400);
        let (head, rest) = told.split_once("\n[… ").unwrap();
        let (said, tail) = rest.split_once(" …]\n").unwrap();
        let last = head.lines().count();
        let next: usize = tail.lines().next().unwrap()["this is line ".len()..]
            .parse()
            .unwrap();
        assert!(head.ends_with(&format!("this is line {last}")), "{told}");
        let lines = format!(
            "left out, lines {} to {}; the whole: #7",
            last + 1,
            next - 1
        );
        assert!(said.ends_with(&lines), "{told}");
        // A single long line has no line numbers.
        assert!(!mark.cut(&"x y ".repeat(500), 400).contains("lines"));
    }

    // A cut in the output of `git status` left half lines on both sides, 40 bytes from their line
    // ends.
    #[test]
    fn short_cut_keeps_whole_lines() {
        let mark = CutMark::of(RESULT, None, &PlainHeuristics);
        let text = "  (use \"git add/rm <file>...\" to update what will be committed)\n".repeat(8);
        let told = mark.cut(&text, 270);
        let is_whole = |line: &str| line.ends_with("committed)") && line.starts_with("  (");
        let whole = told.lines().filter(|line| !line.starts_with("[…"));
        assert!(whole.clone().count() >= 2, "{told}");
        assert!(whole.clone().all(is_whole), "{told}");
    }
}
