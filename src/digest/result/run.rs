//! Classifies the lines of test and build output.

use super::{
    ResultOf,
    kind::OutputKind,
    lines::{Output, is_failed, is_located_error, is_total},
};
use crate::summary::reports_error;

/// Minimum number of passing lines that are enough to treat any text as test output.
const PASSED_LEAST: usize = 3;

/// Meaning of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunLine {
    /// A failure, or the overall outcome.
    Failed,
    /// A success or normal progress: a passing test, an up-to-date package, a download.
    Passed,
    /// Anything else.
    Plain,
}

/// Returns the meaning of each line of test or build output. None if the text is something else, or
/// if it reports neither a failure nor a success.
pub(crate) fn run_lines(text: &str) -> Option<Vec<RunLine>> {
    let lines: Vec<RunLine> = text.lines().map(of_line).collect();
    let count = |wanted| lines.iter().filter(|line| **line == wanted).count();
    let passed = count(RunLine::Passed);
    let is_run = passed >= PASSED_LEAST || {
        let kind = OutputKind::of(ResultOf::default(), &Output::of(text, 16 << 10));
        matches!(kind, OutputKind::Tests | OutputKind::Compiler)
            && passed + count(RunLine::Failed) > 0
    };
    is_run.then_some(lines)
}

fn of_line(text: &str) -> RunLine {
    let line = text.trim();
    match () {
        () if has_passed(line) => RunLine::Passed,
        () if is_failed(line) || is_total(line) => RunLine::Failed,
        () if reports_error(line) || is_located_error(line) => RunLine::Failed,
        () => RunLine::Plain,
    }
}

/// Whether a line reports a success or normal progress in the format of go, cargo, pytest,
/// unittest, jest, mocha, TAP, maven, gradle, dotnet, ctest or googletest.
fn has_passed(line: &str) -> bool {
    const STARTS: [&str; 27] = [
        "ok  \t",
        "?   \t",
        "--- PASS: ",
        "=== RUN ",
        "=== PAUSE ",
        "=== CONT ",
        "PASS ",
        "ok ",
        "✓ ",
        "✔ ",
        "√ ",
        "[       OK ]",
        "[ RUN      ]",
        "[INFO] Running ",
        "[INFO] Download",
        "Downloading ",
        "Downloaded ",
        "Compiling ",
        "Fresh ",
        "Collecting ",
        "Requirement already satisfied",
        "Passed ",
        "> Task ",
        "PASSED ",
        "remote: Counting ",
        "go: downloading ",
        "Checking ",
    ];
    const ENDS: [&str; 6] = [
        " ... ok",
        " ... ignored",
        " PASSED",
        " UP-TO-DATE",
        " ok.",
        "(cached)",
    ];
    if line.ends_with(" FAILED") || line.contains("[build failed]") {
        return false;
    }
    STARTS.iter().any(|start| line.starts_with(start))
        || ENDS.iter().any(|end| line.ends_with(end))
        || is_passed_with_share(line)
        || is_passed_class(line)
        || line.contains(" Passed ") && line.ends_with(" sec")
}

/// Whether a line of pytest reports no failure and ends with a percentage:
/// `a.py::test_b PASSED [ 12%]`, `a.py ....s.. [ 12%]`.
fn is_passed_with_share(line: &str) -> bool {
    let Some((said, share)) = line.rsplit_once('[') else {
        return false;
    };
    let said = said.trim_end();
    let dots = said.rsplit(' ').next().unwrap_or_default();
    let are_dots = !dots.is_empty() && dots.bytes().all(|byte| b".sx".contains(&byte));
    share.ends_with("%]") && (said.ends_with(" PASSED") || said.ends_with(" SKIPPED") || are_dots)
}

/// Whether a line is Maven's total of a test class without failures:
/// `Tests run: 12, Failures: 0, Errors: 0, … Time elapsed: 0.1 s`.
fn is_passed_class(line: &str) -> bool {
    let is_class = line.contains("Time elapsed: ") && line.contains("Tests run: ");
    is_class && line.contains("Failures: 0, Errors: 0")
}

#[cfg(test)]
mod tests {
    use super::*;

    // Each test runner has its own wording for success and failure.
    #[test]
    fn lines_of_each_test_runner_are_classified() {
        let (failed, passed, plain) = (RunLine::Failed, RunLine::Passed, RunLine::Plain);
        for (line, expected) in [
            ("ok  \tentire.io/cli/cmd/entire/cli/agent\t(cached)", passed),
            ("?   \tentire.io/cli/version\t[no test files]", passed),
            ("FAIL\tentire.io/cli/cmd/entire/cli [build failed]", failed),
            ("--- FAIL: TestSave (0.02s)", failed),
            ("    --- PASS: TestSave/empty (0.00s)", passed),
            ("test engine::case_7 ... ok", passed),
            ("test engine::broken ... FAILED", failed),
            ("   Compiling serde v1.0.228", passed),
            ("error[E0308]: mismatched types", failed),
            ("tests/test_a.py::test_b PASSED        [ 12%]", passed),
            ("tests/test_a.py ....s..               [ 40%]", passed),
            ("tests/test_a.py ..F....               [ 52%]", plain),
            ("tests/test_a.py::test_c FAILED        [ 60%]", failed),
            ("E       AssertionError: 3 != 4", failed),
            ("FAILED tests/test_a.py::test_c - AssertionError", failed),
            ("PASS src/util.test.ts (5.1 s)", passed),
            ("FAIL src/app.test.ts", failed),
            ("  ✓ adds two numbers (3 ms)", passed),
            ("  ✕ takes one away (4 ms)", failed),
            ("  ● app › takes one away", failed),
            ("not ok 4 - it ends", failed),
            ("ok 5 - it begins", passed),
            ("test_join (test_a.Case.test_join) ... ok", passed),
            ("test_split (test_a.Case.test_split) ... FAIL", failed),
            (
                "[INFO] Tests run: 12, Failures: 0, Errors: 0, Skipped: 0, Time elapsed: 0.1 s - in org.A",
                passed,
            ),
            (
                "[ERROR] Tests run: 2, Failures: 1, Errors: 0, Skipped: 0, Time elapsed: 0.1 s <<< FAILURE!",
                failed,
            ),
            ("[ERROR]   ATest.adds:12 expected:<3> but was:<4>", failed),
            ("[       OK ] Queue.Empty (0 ms)", passed),
            ("[  FAILED  ] Queue.Full (1 ms)", failed),
            (
                "src/app.ts(3,4): error TS2304: Cannot find name 'x'.",
                failed,
            ),
            ("this is a line of a log", plain),
        ] {
            assert_eq!(of_line(line), expected, "{line}");
        }
    }

    // A file that mentions tests is not test output.
    #[test]
    fn code_and_prose_are_not_test_runs() {
        let code: String = (1..60)
            .map(|at| format!("{at:>6}→    assert_eq!(of({at}), Expected::Ok);\n"))
            .collect();
        let prose = "It failed to start.\nOk then.\nWe check that again tomorrow.\n".repeat(10);
        for text in [code, prose] {
            assert_eq!(run_lines(&text), None, "{text}");
        }
    }
}
