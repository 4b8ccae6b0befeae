//! Cuts test and build output. Passing lines are removed first; failures stay wherever they are.

use crate::result::{RunLine, run_lines};
use treering_context::text::counted;

/// Longer texts are cut to head and tail.
const TEXT_BYTES_MAX: usize = 256 * 1024;
/// Divisor of the room: failures get at most half of it.
const FAILED_SHARE: usize = 2;
/// Maximum number of lines kept below each failure.
const BESIDE_LINES: usize = 3;
/// Size of a mark for omitted lines, in bytes. Shorter gaps stay.
const GAP_BYTES: usize = 40;

/// Returns test or build output cut to about `bytes_max` bytes, and the number of bytes removed.
/// None if the text is something else or needs no cut, or if a cut to head and tail is better.
pub(crate) fn cut(text: &str, bytes_max: usize) -> Option<(String, usize)> {
    if text.len() > TEXT_BYTES_MAX {
        return None;
    }
    let said = run_lines(text)?;
    let lines = text.split_inclusive('\n').zip(said);
    let mut run = Run {
        lines: lines.map(|(text, said)| (text, said, false)).collect(),
        left: bytes_max,
    };
    let is_all = run.choose();
    run.close_gaps();
    let gone = run.gone();
    let told = run.told();
    // If little is kept, for example because one line is longer than the room, head and tail keep
    // more.
    let is_used = is_all || told.len() >= bytes_max / 2;
    (gone > 0 && is_used && told.len() <= bytes_max + bytes_max / 8).then_some((told, gone))
}

struct Run<'a> {
    /// Text, meaning, and whether the line stays.
    lines: Vec<(&'a str, RunLine, bool)>,
    left: usize,
}

impl Run<'_> {
    /// Marks the lines that stay. Returns true if everything except passing lines fits.
    fn choose(&mut self) -> bool {
        let passed = |line: &(&str, RunLine, bool)| line.1 == RunLine::Passed;
        let (mut all, mut gaps, mut in_gap) = (0, 0, false);
        for line in &self.lines {
            match passed(line) {
                true => gaps += usize::from(!in_gap),
                false => all += line.0.len(),
            }
            in_gap = passed(line);
        }
        if all + gaps * GAP_BYTES <= self.left {
            for line in &mut self.lines {
                line.2 = line.1 != RunLine::Passed;
            }
            return true;
        }
        self.keep_failed();
        let count = self.lines.len();
        let front = self.left / 3;
        let kept_back = self.left - front;
        self.left = front;
        self.keep_while(0..count);
        self.left += kept_back;
        self.keep_while((0..count).rev());
        false
    }

    /// Keeps failures and the lines below them.
    fn keep_failed(&mut self) {
        let mut share = self.left / FAILED_SHARE;
        for at in 0..self.lines.len() {
            if self.lines[at].1 != RunLine::Failed {
                continue;
            }
            let below = at + 1..(at + 1 + BESIDE_LINES).min(self.lines.len());
            let below = below.take_while(|at| self.lines[*at].1 == RunLine::Plain);
            let group: Vec<usize> = std::iter::once(at).chain(below).collect();
            let is_next = at > 0 && self.lines[at - 1].2;
            let gap = if is_next { 0 } else { GAP_BYTES };
            for (nth, at) in group.into_iter().enumerate() {
                let needs = self.lines[at].0.len() + if nth == 0 { gap } else { 0 };
                if needs > share {
                    break;
                }
                share -= needs;
                self.left -= needs;
                self.lines[at].2 = true;
            }
        }
    }

    /// Keeps lines that are not passing lines while there is room.
    fn keep_while(&mut self, places: impl Iterator<Item = usize>) {
        let mut in_passed = false;
        for at in places {
            let (text, said, stays) = self.lines[at];
            if stays || said == RunLine::Passed {
                in_passed = said == RunLine::Passed;
                continue;
            }
            let needs = text.len() + if in_passed { GAP_BYTES } else { 0 };
            in_passed = false;
            if needs > self.left {
                return;
            }
            self.left -= needs;
            self.lines[at].2 = true;
        }
    }

    /// Keeps gaps that are shorter than their mark.
    fn close_gaps(&mut self) {
        let mut at = 0;
        while at < self.lines.len() {
            let end = self.end_of_gap(at);
            let bytes: usize = self.lines[at..end].iter().map(|line| line.0.len()).sum();
            if bytes <= GAP_BYTES {
                self.lines[at..end]
                    .iter_mut()
                    .for_each(|line| line.2 = true);
            }
            at = end.max(at + 1);
        }
    }

    /// Returns the end of the gap that begins here.
    fn end_of_gap(&self, at: usize) -> usize {
        let gone = self.lines[at..].iter().take_while(|line| !line.2);
        at + gone.count()
    }

    fn gone(&self) -> usize {
        let gone = self.lines.iter().filter(|line| !line.2);
        gone.map(|line| line.0.len()).sum()
    }

    fn told(&self) -> String {
        let mut told = String::new();
        let mut at = 0;
        while at < self.lines.len() {
            let end = self.end_of_gap(at);
            if end == at {
                told.push_str(self.lines[at].0);
                at += 1;
                continue;
            }
            let gap = &self.lines[at..end];
            let mark = match gap.iter().all(|line| line.1 == RunLine::Passed) {
                true => format!("[… {} of what passed …]\n", counted(gap.len(), "line")),
                false => format!("[… lines {} to {end} …]\n", at + 1),
            };
            told.push_str(&mark);
            at = end;
        }
        told.truncate(told.trim_end().len());
        told
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn go_run(packages: usize) -> String {
        let ok = |at: usize| format!("ok  \tentire.io/cli/cmd/entire/part{at}\t(cached)\n");
        let first: String = (0..3).map(ok).collect();
        let rest: String = (3..packages).map(ok).collect();
        format!(
            "# entire.io/cli/cmd/entire/cli [entire.io/cli/cmd/entire/cli.test]\n\
             cmd/entire/cli/hooks_test.go:41:12: undefined: newHooksCmd\n{first}\
             FAIL\tentire.io/cli/cmd/entire/cli [build failed]\n{rest}FAIL\n"
        )
    }

    // A cut to head and tail would remove the only line that names the failed package, and keep
    // eight lines of `ok … (cached)`.
    #[test]
    fn failures_are_kept_before_passes() {
        let (told, gone) = cut(&go_run(12), 500).unwrap();
        for line in [
            "undefined: newHooksCmd",
            "FAIL\tentire.io/cli/cmd/entire/cli [build failed]",
            "[… 3 lines of what passed …]",
            "[… 9 lines of what passed …]",
        ] {
            assert!(told.contains(line), "{told}");
        }
        assert!(
            told.ends_with("\nFAIL") && !told.contains("(cached)"),
            "{told}"
        );
        assert_eq!(
            gone,
            12 * "ok  \tentire.io/cli/cmd/entire/part3\t(cached)\n".len() + 2
        );
    }

    // One of 400 tests failed in the middle. Its message was in neither the head nor the tail.
    #[test]
    fn failure_in_the_middle_is_kept() {
        let passed = |from: usize, to: usize| -> String {
            let line = |at| format!("tests/test_a.py::test_{at} PASSED   [ {}%]\n", at / 4);
            (from..to).map(line).collect()
        };
        let log = |from: usize| -> String {
            (from..from + 60)
                .map(|at| format!("captured log, line {at}\n"))
                .collect()
        };
        let text = format!(
            "collected 400 items\n{}tests/test_a.py::test_200 FAILED   [ 50%]\n{}{}\
             E       AssertionError: assert 3 == 4\ntests/test_a.py:12: AssertionError\n{}\
             FAILED tests/test_a.py::test_200 - assert 3 == 4\n==== 1 failed, 399 passed in 3.2s ====\n",
            passed(0, 200),
            passed(201, 400),
            log(0),
            log(60),
        );
        let (told, _) = cut(&text, 900).unwrap();
        for line in [
            "collected 400 items",
            "test_200 FAILED",
            "E       AssertionError: assert 3 == 4",
            "tests/test_a.py:12: AssertionError",
            "1 failed, 399 passed",
        ] {
            assert!(told.contains(line), "{line} is not in:\n{told}");
        }
        let gap = told
            .lines()
            .find(|line| line.starts_with("[… lines "))
            .unwrap();
        let first: usize = gap.split(' ').nth(2).unwrap().parse().unwrap();
        let before = told.lines().take_while(|line| *line != gap).last().unwrap();
        assert_eq!(text.lines().nth(first - 2), Some(before), "{told}");
    }

    #[test]
    fn plain_log_is_not_cut_as_a_test_run() {
        assert_eq!(cut(&"a line of a log\n".repeat(100), 300), None);
        assert_eq!(cut("", 300), None);
    }

    proptest! {
        // For any output, the cut is within its limit, and every line is from the text or is a
        // mark.
        #[test]
        fn any_test_run_is_cut_at_lines_within_its_limit(
            lines in prop::collection::vec(
                prop_oneof![
                    Just("ok  \tpart\t(cached)".to_owned()),
                    Just("--- FAIL: TestX (0.0s)".to_owned()),
                    "[ -~]{0,120}",
                ],
                0..60,
            ),
            bytes_max in 0_usize..3_000,
        ) {
            let text = lines.join("\n");
            if let Some((told, gone)) = cut(&text, bytes_max) {
                prop_assert!(told.len() <= bytes_max + bytes_max / 8);
                prop_assert!(gone > 0 && gone <= text.len());
                for line in told.lines() {
                    let is_mark = line.starts_with("[… ") && line.ends_with(" …]");
                    prop_assert!(is_mark || lines.iter().any(|whole| whole.trim_end() == line.trim_end()));
                }
            }
        }
    }
}
