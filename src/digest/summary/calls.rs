//! Describes a call in one line: its most important arguments, whether it only reads, and how it
//! ended.

use serde_json::{Map, Value};

use super::{
    result::reports_error,
    shape::Shape,
    text::{clip, counted, one_line, says_something, whole_or_ends},
};
use crate::{
    knowledge::file_effects,
    result::{is_total, numberless},
};

/// Names of the most important arguments of a call.
const MAIN_KEYS: [&str; 17] = [
    "command",
    "cmd",
    "pattern",
    "regex",
    "query",
    "file_path",
    "path",
    "filename",
    "notebook_path",
    "url",
    "title",
    "description",
    "subject",
    "question",
    "name",
    "id",
    "code",
];
/// Arguments that contain a command.
const COMMANDS: [&str; 2] = ["command", "cmd"];
/// Arguments that name a place or a query. If the main argument is one of them, no id precedes it.
const WHERE: [&str; 9] = [
    "pattern",
    "regex",
    "query",
    "file_path",
    "path",
    "filename",
    "notebook_path",
    "url",
    "question",
];
/// Arguments of searches: the pattern and the place.
const SEARCH_KEYS: [&str; 3] = ["pattern", "regex", "query"];
const PLACES: [&str; 4] = ["path", "glob", "file_path", "dir"];
/// Arguments that are paths.
const PATHS: [&str; 6] = [
    "file_path",
    "path",
    "filename",
    "notebook_path",
    "dir",
    "directory",
];
/// Maximum length of a path that is shown whole, in characters. A clipped path cannot be opened.
const PATH_CHARS_MAX: usize = 200;
/// Maximum number of characters of an argument that are read to describe it.
const LOOKED_AT_CHARS: usize = 1_000;
/// First words in the names of tools that only read or think.
const READ_VERBS: [&str; 34] = [
    "get",
    "list",
    "read",
    "search",
    "find",
    "fetch",
    "view",
    "show",
    "describe",
    "query",
    "lookup",
    "look",
    "check",
    "calculate",
    "compute",
    "think",
    "count",
    "browse",
    "resolve",
    "inspect",
    "grep",
    "glob",
    "ls",
    "cat",
    "head",
    "tail",
    "diff",
    "status",
    "wait",
    "open",
    "scroll",
    "goto",
    "help",
    "ping",
];
/// Words that may precede these verbs.
const READ_VERB_PREFIXES: [&str; 6] = ["web", "file", "files", "code", "docs", "lsp"];
/// Internal tools of a harness. Their effects are described elsewhere or do not matter later.
const HOUSEKEEPING: [&str; 16] = [
    "todowrite",
    "todoread",
    "updateplan",
    "taskcreate",
    "taskupdate",
    "tasklist",
    "taskget",
    "taskoutput",
    "taskstop",
    "bashoutput",
    "killshell",
    "skill",
    "askuserquestion",
    "enterplanmode",
    "exitplanmode",
    "lsp",
];

/// Whether a tool, judged by its name, has effects and is not internal to its harness.
pub(super) fn acts(tool: &str) -> bool {
    let own = own(tool);
    let plain: String = own.chars().filter(|c| c.is_alphanumeric()).collect();
    if HOUSEKEEPING.contains(&plain.to_lowercase().as_str()) {
        return false;
    }
    let words = words(own);
    let mut words = words.iter().map(String::as_str);
    match words.next() {
        Some(first) if READ_VERBS.contains(&first) => false,
        Some(first) if READ_VERB_PREFIXES.contains(&first) => {
            !words.next().is_some_and(|word| READ_VERBS.contains(&word))
        }
        first => first.is_some(),
    }
}

/// Returns the name of a tool as plain words. A summary with the exact name could lead the model to
/// call a tool that no longer exists.
pub(super) fn in_words(tool: &str) -> String {
    words(own(tool)).join(" ")
}

/// Returns the name of a tool without its server's name.
fn own(tool: &str) -> &str {
    let own = tool.rsplit("__").next().unwrap_or(tool);
    own.rsplit(['.', ':', '/']).next().unwrap_or(own)
}

/// Whether the end of a tool's result shows how the call ended. True for commands and tools with
/// effects, false for reads.
pub(crate) fn reports_outcome(tool: &str) -> bool {
    match file_effects::is_of_files(tool) {
        true => file_effects::runs_commands(tool),
        false => acts(tool),
    }
}

/// Splits `get_page`, `getPage` and `Get-Page` into `get`, `page`.
fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut last = None;
    for c in name.chars() {
        let goes_on =
            |last: char| last.is_alphanumeric() && !(last.is_lowercase() && c.is_uppercase());
        match words.last_mut().filter(|_| last.is_some_and(goes_on)) {
            Some(word) if c.is_alphanumeric() => word.extend(c.to_lowercase()),
            _ if c.is_alphanumeric() => words.push(c.to_lowercase().collect()),
            _ => {}
        }
        last = Some(c);
    }
    words
}

/// Returns the most important arguments as one line of about `chars_max` characters. Paths below
/// `below` are shown relative to it.
pub(crate) fn said_of(arguments: &str, chars_max: usize, below: Option<&str>) -> String {
    let object: Option<Map<String, Value>> = serde_json::from_str(arguments).ok();
    let Some(object) = object else {
        return clip(&looked_at(arguments), chars_max);
    };
    let named = |names: &[&str]| names.iter().find_map(|name| object.get(*name)?.as_str());
    if let Some(all) = values(&object, chars_max) {
        return all;
    }
    let telling = named(&MAIN_KEYS).or_else(|| first_text(&object));
    let Some(telling) = telling else {
        return clip(&looked_at(arguments), chars_max);
    };
    if let Some(command) = named(&COMMANDS).filter(|command| *command == telling) {
        return shown(without_cd(command, chars_max), chars_max, below);
    }
    let is_place = named(&WHERE).is_some_and(|place| place == telling);
    if let Some(id) = id(&object).filter(|id| !is_place && !telling.contains(id.as_str())) {
        let left = chars_max.saturating_sub(id.chars().count() + 1);
        return format!("{id} {}", shown(telling, left, below))
            .trim_end()
            .to_owned();
    }
    let told = shown(telling, chars_max, below);
    let place = named(&SEARCH_KEYS).and(named(&PLACES));
    match place.filter(|place| *place != telling) {
        Some(place) => format!("{told} in {}", shown(place, chars_max, below)),
        None => told,
    }
}

/// Returns the id of the object that the call is about (`ENT-241`), if an argument has one.
fn id(object: &Map<String, Value>) -> Option<String> {
    const LONGEST: usize = 40;
    let is_id = |name: &str| {
        let plain = name.to_lowercase();
        matches!(plain.as_str(), "id" | "key") || plain.ends_with("_id") || name.ends_with("Id")
    };
    let ids = object.iter().filter(|(name, _)| is_id(name));
    let mut told = ids.filter_map(|(_, value)| match value {
        Value::String(id) if id.len() <= LONGEST => Some(one_line(id)),
        Value::Number(id) => Some(id.to_string()),
        _ => None,
    });
    told.find(|id| !id.is_empty())
}

/// Returns a command line. If it has more than `chars_max` characters, its leading `cd` is removed.
fn without_cd(command: &str, chars_max: usize) -> &str {
    let command = command.trim();
    if command.chars().count() <= chars_max {
        return command;
    }
    let rest = command.strip_prefix("cd ").and_then(|rest| {
        let (directory, rest) = rest.split_once("&&").or_else(|| rest.split_once(';'))?;
        (!directory.contains(['|', '\n'])).then(|| rest.trim())
    });
    rest.filter(|rest| !rest.is_empty()).unwrap_or(command)
}

/// Whether the call's command only prints a file. Its output then does not show how it ended.
pub(crate) fn shows_a_file(arguments: &str) -> bool {
    const SHOWS: [&str; 6] = ["cat ", "head ", "nl ", "bat ", "less ", "sed -n "];
    const SAYS: [&str; 3] = [".log", ".out", ".txt"];
    let object: Option<Map<String, Value>> = serde_json::from_str(arguments).ok();
    let command = object
        .as_ref()
        .and_then(|object| COMMANDS.iter().find_map(|name| object.get(*name)?.as_str()));
    command.is_some_and(|command| {
        let command = without_cd(command, 0);
        SHOWS.iter().any(|shows| command.starts_with(shows))
            && !command.contains(['|', ';', '&', '>', '<', '\n'])
            && !SAYS.iter().any(|says| command.contains(says))
    })
}

/// Returns all arguments on one line of at most `chars_max` characters. Longer arguments keep their
/// beginning and end.
pub(super) fn whole(arguments: &str, chars_max: usize) -> String {
    whole_or_ends(&one_line(arguments), chars_max)
}

/// Returns the absolute paths in a call's arguments.
pub(crate) fn paths(arguments: &str) -> Vec<String> {
    let Ok(object) = serde_json::from_str::<Map<String, Value>>(arguments) else {
        return Vec::new();
    };
    let named = PATHS.iter().filter_map(|name| object.get(*name)?.as_str());
    named
        .filter(|path| path.starts_with('/'))
        .map(str::to_owned)
        .collect()
}

fn shown(text: &str, chars_max: usize, below: Option<&str>) -> String {
    let text = looked_at(text);
    let is_path = text.contains('/') && !text.contains(' ') && !text.contains("://");
    if !is_path {
        return clip(&text, chars_max);
    }
    let from_there = below.and_then(|below| text.strip_prefix(below)?.strip_prefix('/'));
    clip_front(from_there.unwrap_or(&text), PATH_CHARS_MAX)
}

fn looked_at(text: &str) -> String {
    let part: String = text.chars().take(LOOKED_AT_CHARS).collect();
    one_line(&part)
}

/// Returns the first string of an object, or of its first nested values.
fn first_text(object: &Map<String, Value>) -> Option<&str> {
    const DEPTH_MAX: u8 = 4;
    fn first(value: &Value, depth: u8) -> Option<&str> {
        let inner = |value| first(value, depth + 1);
        match value {
            Value::String(text) if says_something(text) => Some(text),
            _ if depth == DEPTH_MAX => None,
            Value::Array(values) => values.iter().find_map(inner),
            Value::Object(object) => {
                let named = MAIN_KEYS
                    .iter()
                    .find_map(|name| object.get(*name)?.as_str());
                named.or_else(|| object.values().find_map(inner))
            }
            _ => None,
        }
    }
    let mut top = object.values().filter_map(Value::as_str);
    let deep = || object.values().find_map(|value| first(value, 1));
    top.find(|text| says_something(text)).or_else(deep)
}

/// Returns the short arguments that fit. None if an argument has a well-known name.
fn values(object: &Map<String, Value>, chars_max: usize) -> Option<String> {
    const SHORT: usize = 35;
    let has_telling = |name: &&str| object.get(*name).is_some_and(Value::is_string);
    if MAIN_KEYS.iter().any(has_telling) {
        return None;
    }
    let short = object.values().filter_map(|value| match value {
        Value::String(text) if text.len() <= SHORT => {
            Some(one_line(text)).filter(|text| !text.trim().is_empty())
        }
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    });
    let mut told = String::new();
    for value in short {
        if told.chars().count() + value.chars().count() >= chars_max {
            break;
        }
        if !told.is_empty() {
            told.push(' ');
        }
        told.push_str(&value);
    }
    (!told.is_empty()).then_some(told)
}

/// Returns the end of a path, which has the file name.
fn clip_front(path: &str, max_chars: usize) -> String {
    let over = path.chars().count().saturating_sub(max_chars);
    if over == 0 {
        return path.to_owned();
    }
    let rest: String = path.chars().skip(over + 1).collect();
    format!("…{rest}")
}

/// Returns how a call ended: the line with an error, a verdict or a total, else the last line with
/// content, after `…` if there are other lines. If the last line only closes a block (`fi`),
/// returns the number of lines instead. For JSON, returns its error, or an empty text.
pub(crate) fn ended(text: &str, chars_max: usize) -> String {
    /// Bytes read at the end of a long text, where a run reports its outcome.
    const LOOKED_AT_BYTES: usize = 8 << 10;
    if let Some(shape) = Shape::of(text) {
        return clip(&shape.error().unwrap_or_default(), chars_max);
    }
    let end = text.ceil_char_boundary(text.len().saturating_sub(LOOKED_AT_BYTES));
    // After a sub-agent's answer, its harness adds instructions for continuing it.
    let tells = |line: &&str| says_something(line) && !line.starts_with("agentId:");
    let lines: Vec<&str> = text[end..].lines().filter(tells).collect();
    let reported = lines.iter().find(|line| reports_error(line));
    let told = reported
        .map(|line| one_line(line))
        .or_else(|| verdict(&text[..end], &lines));
    let total = || lines.iter().rev().find(|line| is_total(line));
    if let Some(outcome) = told.or_else(|| total().map(|line| one_line(line))) {
        return clip(&outcome, chars_max);
    }
    let Some(last) = lines.last() else {
        return String::new();
    };
    let is_alone = lines.len() == 1 && end == 0;
    if closes(last) && !is_alone {
        return clip(&counted(text.lines().count(), "line"), chars_max);
    }
    match is_alone {
        true => clip(&one_line(last), chars_max),
        false => clip(&format!("… {}", one_line(last)), chars_max),
    }
}

/// Returns the last line with a verdict (`**Verdict:** REQUEST CHANGES`), at the beginning of a
/// text or in `lines`. Reports have it at the start or at the end.
fn verdict(front: &str, lines: &[&str]) -> Option<String> {
    const FRONT_BYTES: usize = 2 << 10;
    let front = &front[..front.floor_char_boundary(FRONT_BYTES)];
    let front: Vec<&str> = front.lines().filter(|line| says_something(line)).collect();
    let of = |lines: &[&str]| {
        let at = lines.iter().rposition(|line| is_verdict(line))?;
        let told = plain(lines[at]);
        // For a heading, the text below it is used.
        let is_heading = !told.contains(':') || told.ends_with(':');
        match lines
            .get(at + 1)
            .filter(|_| is_heading && is_named_verdict(&told))
        {
            Some(next) => Some(format!("{}: {}", told.trim_end_matches(':'), plain(next))),
            None => Some(told),
        }
    };
    of(lines).or_else(|| of(&front))
}

/// Whether a line has a verdict.
pub(crate) fn is_verdict(line: &str) -> bool {
    const WORDS: [&str; 4] = [
        "REQUEST CHANGES",
        "CHANGES REQUESTED",
        "REQUEST_CHANGES",
        "APPROVED",
    ];
    WORDS.iter().any(|word| line.contains(word)) || is_named_verdict(&plain(line))
}

/// Whether a line names a verdict: `Verdict: …`, `Overall assessment`.
fn is_named_verdict(line: &str) -> bool {
    const NAMES: [&str; 8] = [
        "verdict",
        "final verdict",
        "overall verdict",
        "recommendation",
        "overall assessment",
        "conclusion",
        "outcome",
        "result",
    ];
    let name = line.split(':').next().unwrap_or_default().trim();
    NAMES.iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// Returns a line without the markup of headings, lists and emphasis.
fn plain(line: &str) -> String {
    let line = one_line(line);
    let line = line.trim_start_matches(|c: char| !c.is_alphanumeric());
    line.replace("**", "").trim().to_owned()
}

/// Whether a line only closes a block of code.
fn closes(line: &str) -> bool {
    const ENDS: [&str; 8] = ["fi", "done", "esac", "end", "endif", "EOF", "EOT", "pass"];
    let line = numberless(line.trim_start());
    ENDS.contains(&line.trim_matches(|c: char| !c.is_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(arguments: &str) -> String {
        said_of(arguments, 70, None)
    }

    // The description of a search must contain its pattern, not only its place.
    #[test]
    fn search_call_is_described_by_its_pattern() {
        let both = r#"{"path":"/repo/src","pattern":"fn parse","output_mode":"content"}"#;
        assert_eq!(told(both), "fn parse in /repo/src");
        assert_eq!(told(r#"{"file_path":"a.rs","pattern":"x"}"#), "x in a.rs");
        assert_eq!(told(r#"{"query":"rust json"}"#), "rust json");
        assert_eq!(told(r#"{"path":"/repo/src"}"#), "/repo/src");
    }

    // `search_direct_flight MCO` would lack the destination and the date, although there is room.
    #[test]
    fn call_is_described_by_all_short_arguments() {
        let flight = r#"{"origin":"MCO","destination":"BOS","date":"2024-05-21","seats":2}"#;
        assert_eq!(told(flight), "MCO BOS 2024-05-21 2");
        let long = format!(r#"{{"to":"ada","text":"{}"}}"#, "so ".repeat(50));
        assert_eq!(told(&long), "ada");
        assert_eq!(told(r#"{"all":true}"#), r#"{"all":true}"#);
        let alone = format!(r#"{{"text":"{}"}}"#, "so ".repeat(50));
        assert!(told(&alone).starts_with("so so"), "{}", told(&alone));
        let nested = r#"{"questions":[{"header":"Install","question":"Which method?"}]}"#;
        assert_eq!(told(nested), "Which method?");
    }

    // `…ev/workspace/tmp/cli/docs/plans/a.md` cannot be opened.
    #[test]
    fn paths_are_full_or_relative_to_a_given_directory() {
        let deep = format!(
            "/Users/dev{}/strategy/manual_commit_test.go",
            "/work".repeat(20)
        );
        let arguments = format!(r#"{{"file_path":"{deep}"}}"#);
        assert_eq!(told(&arguments), deep);
        let below = format!("/Users/dev{}", "/work".repeat(20));
        let from_there = said_of(&arguments, 70, Some(&below));
        assert_eq!(from_there, "strategy/manual_commit_test.go");
        let beside = r#"{"path":"/Users/developer/a.rs"}"#;
        assert_eq!(
            said_of(beside, 70, Some("/Users/dev")),
            "/Users/developer/a.rs"
        );
    }

    // For an agent that does not use files, the calls with effects matter most.
    #[test]
    fn tools_with_side_effects_are_detected() {
        for tool in [
            "update_reservation_flights",
            "book_reservation",
            "send_email",
            "mcp__linear-server__create_issue",
            "transfer_to_human_agents",
            "cancelReservation",
            "post_webpage",
            "Task",
        ] {
            assert!(acts(tool), "{tool}");
        }
        for tool in [
            "get_user_details",
            "search_direct_flight",
            "calculate",
            "think",
            "WebFetch",
            "mcp__linear-server__list_issues",
            "resolve-library-id",
            "TodoWrite",
            "listFiles",
            "",
        ] {
            assert!(!acts(tool), "{tool}");
        }
    }

    // A note must say how tests ended, not only that they ran.
    #[test]
    fn outcome_of_a_call_is_its_last_meaningful_line() {
        assert_eq!(ended("running\n0 issues.\n\n", 40), "… 0 issues.");
        assert_eq!(ended("0 issues.\n", 40), "0 issues.");
        assert_eq!(
            ended("a\nerror: no such file\nexit 1", 40),
            "error: no such file"
        );
        assert_eq!(ended(r#"{"error":"gone","id":1}"#, 40), "gone");
        assert_eq!(ended(r#"{"id":1}"#, 40), "");
        assert_eq!(
            ended("Approved.\nagentId: a2 (to go on)\n", 40),
            "Approved."
        );
        assert_eq!(ended("", 40), "");
    }

    // A review can request changes although its last line says that lint and tests pass. The last
    // line of a script (`fi`) has no content, and that of a status shows only one file.
    #[test]
    fn outcome_prefers_a_verdict_over_the_last_line() {
        let review = "# Review\n\n**Verdict: REQUEST CHANGES**\n\n2 critical findings.\n\n\
                      - Lint and all unit tests pass clean.\n";
        assert_eq!(ended(review, 80), "Verdict: REQUEST CHANGES");
        let below = "## Conclusion\n\nIt is **not** safe to merge.\n\n- Lint passes.\n";
        assert_eq!(ended(below, 80), "Conclusion: It is not safe to merge.");
        let long = format!(
            "**Result: REQUEST CHANGES**\n{}",
            "- it is so\n".repeat(2_000)
        );
        assert_eq!(ended(&long, 80), "Result: REQUEST CHANGES");
        assert_eq!(ended("if x; then\n  y\nfi\n", 40), "3 lines");
        assert_eq!(ended(" M a.rs\n M b.rs\n", 40), "… M b.rs");
        let tests = "test a ... ok\ntest result: ok. 3 passed; 0 failed\n   Doc-tests x\n";
        assert_eq!(ended(tests, 60), "test result: ok. 3 passed; 0 failed");
        assert!(shows_a_file(r#"{"command":"cd /w && cat x.sh"}"#));
        assert!(!shows_a_file(r#"{"command":"cat x.sh | sh"}"#));
        assert!(!shows_a_file(r#"{"command":"cat build.log"}"#));
    }

    // A short description must show what a command does, not only the directory that it runs in.
    #[test]
    fn command_is_described_without_its_cd() {
        let deep = "/Users/dev/workspaces/mono/packages/agent/with/a/long/name/of/its/own";
        let command = format!(r#"{{"command":"cd {deep} && npm run check"}}"#);
        assert_eq!(told(&command), "npm run check");
        assert_eq!(told(r#"{"command":"cd /w && make"}"#), "cd /w && make");
    }

    // `refused update_issue ## Problem …` would not say which issue.
    #[test]
    fn id_or_path_comes_first_in_a_call_description() {
        let issue = r###"{"description":"## Problem\nIt is so","id":"ENT-241"}"###;
        assert_eq!(told(issue), "ENT-241 ## Problem It is so");
        let titled = r#"{"issue_id":7,"title":"Mend it","description":"So"}"#;
        assert_eq!(told(titled), "7 Mend it");
        assert_eq!(told(r#"{"id":"7","path":"/a.rs"}"#), "/a.rs");
    }
}
