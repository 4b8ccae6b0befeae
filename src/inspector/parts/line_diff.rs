//! Renders the differing lines of two texts.

use maud::{Markup, html};
use similar::{ChangeTag, TextDiff};

use super::escape::escape_inline;
use crate::bounds::{COMPARE_MAX, LINE_CHARS};

/// Lines of context around a difference.
const AROUND: usize = 2;

/// Groups of differing lines, each with the unchanged lines around it.
#[derive(Debug, Default)]
pub(crate) struct LineDiff {
    groups: Vec<Vec<(ChangeTag, String)>>,
    /// Whether lines are missing because of the limit.
    pub(crate) is_cut: bool,
}

impl LineDiff {
    /// Compares two texts. At most `lines_max` lines are kept.
    #[must_use]
    pub(crate) fn new(one: &str, other: &str, lines_max: usize) -> Self {
        let diff = TextDiff::configure()
            .timeout(COMPARE_MAX)
            .diff_lines(one, other);
        let mut found = Self::default();
        let mut room = lines_max;
        for group in diff.grouped_ops(AROUND) {
            let changes = group.iter().flat_map(|op| diff.iter_changes(op));
            let lines = changes.map(|change| (change.tag(), change.value()));
            found.add(lines, &mut room);
        }
        found
    }

    /// Reads the lines of a patch. `None` if the text is not a patch.
    #[must_use]
    pub(crate) fn of_patch(text: &str, lines_max: usize) -> Option<Self> {
        let begins = ["*** Begin Patch", "diff --git ", "--- "];
        if !begins.iter().any(|begin| text.starts_with(begin)) {
            return None;
        }
        let lines = text.lines().map(|line| {
            let is_file = line.starts_with("+++") || line.starts_with("---");
            match line.as_bytes().first() {
                Some(b'+') if !is_file => (ChangeTag::Insert, &line[1..]),
                Some(b'-') if !is_file => (ChangeTag::Delete, &line[1..]),
                Some(b' ') => (ChangeTag::Equal, &line[1..]),
                _ => (ChangeTag::Equal, line),
            }
        });
        let mut found = Self::default();
        found.add(lines, &mut { lines_max });
        Some(found)
    }

    fn add<'a>(&mut self, lines: impl Iterator<Item = (ChangeTag, &'a str)>, room: &mut usize) {
        let lines = lines.map(|(tag, line)| (tag, line.trim_end_matches('\n').to_owned()));
        let mut lines: Vec<_> = lines.take(*room + 1).collect();
        self.is_cut |= lines.len() > *room;
        lines.truncate(*room);
        *room -= lines.len();
        if !lines.is_empty() {
            self.groups.push(lines);
        }
    }

    /// Renders the lines. A screen reader reads one of `words` before each line that only one text
    /// has.
    #[must_use]
    pub(crate) fn lines(&self, words: [&str; 2]) -> Markup {
        html! {
            @for group in &self.groups {
                ol.diff { @for (tag, text) in group { (line(*tag, text, words)) } }
            }
        }
    }
}

fn line(tag: ChangeTag, text: &str, [only_one, only_other]: [&str; 2]) -> Markup {
    let (class, sign, word) = match tag {
        ChangeTag::Delete => ("a", "−", only_one),
        ChangeTag::Insert => ("b", "+", only_other),
        ChangeTag::Equal => ("same", " ", ""),
    };
    let indent = text.len() - text.trim_start().len();
    let text = match text.char_indices().nth(LINE_CHARS) {
        Some((at, _)) => format!("{} …", &text[..at]),
        None => text.to_owned(),
    };
    let spaces = &text[..indent.min(text.len())];
    html! {
        li class=(class) {
            span.n aria-hidden="true" { (sign) }
            @if !word.is_empty() { span.hidden { (word) } }
            code { (spaces) (escape_inline(text.trim_start())) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signs(diff: &LineDiff) -> String {
        let sign = |tag: &ChangeTag| match tag {
            ChangeTag::Delete => '-',
            ChangeTag::Insert => '+',
            ChangeTag::Equal => ' ',
        };
        let lines = diff.groups.iter().flatten();
        lines.map(|(tag, _)| sign(tag)).collect()
    }

    // A long edit must not fill the page, and the page must say that lines are missing.
    #[test]
    fn differing_lines_are_limited() {
        let one: String = (0..50).map(|n| format!("{n}\n")).collect();
        let other = one.replace("\n7\n", "\nseven\n").replace("\n40\n", "\n");
        let diff = LineDiff::new(&one, &other, 100);
        assert_eq!((signs(&diff).as_str(), diff.is_cut), ("  -+    -  ", false));
        let diff = LineDiff::new(&one, &other, 4);
        assert_eq!((signs(&diff).as_str(), diff.is_cut), ("  -+", true));
        let diff = LineDiff::new(&one, &other, 6);
        assert_eq!((signs(&diff).as_str(), diff.is_cut), ("  -+  ", true));
    }

    #[test]
    fn patches_are_read_by_their_signs() {
        let patch = "*** Begin Patch\n*** Update File: a\n@@\n one\n-two\n+2\n*** End Patch";
        let diff = LineDiff::of_patch(patch, 100).unwrap();
        assert_eq!(signs(&diff), "    -+ ");
        let patch = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b";
        assert_eq!(signs(&LineDiff::of_patch(patch, 100).unwrap()), "   -+");
        assert!(LineDiff::of_patch("- a list\n+ no patch", 100).is_none());
    }
}
