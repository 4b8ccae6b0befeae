//! Finds the file line at which a result begins, so that marks can name omitted lines by their
//! numbers in the file.

use serde_json::Value;

use crate::draft::Call;

/// Argument names that give the first line, for any tool.
const FIRST_LINE: [&str; 6] = [
    "start_line",
    "startLine",
    "start_line_one_indexed",
    "line_start",
    "lineStart",
    "from_line",
];
/// Argument names that hold a shell command.
const COMMAND: [&str; 3] = ["command", "cmd", "script"];

/// Returns the line number, in its file, of the first line of a result. None if this is line 1, or
/// if neither the text nor the call shows the number.
pub(super) fn first_line(call: &Call, text: &str) -> Option<u64> {
    let asked = || {
        let arguments: Value = serde_json::from_slice(call.arguments.as_bytes()).ok()?;
        named(&call.tool, &arguments).or_else(|| printed(&command(&arguments)?))
    };
    numbered(text).or_else(asked).filter(|line| *line > 1)
}

/// Returns the number of the first line, if the first two lines have consecutive numbers.
fn numbered(text: &str) -> Option<u64> {
    let mut lines = text.lines().take(2).map(|line| {
        let digits = line.trim_start();
        let end = digits.find(|c: char| !c.is_ascii_digit())?;
        let is_number = digits[end..].starts_with(['→', '\t']);
        digits[..end].parse().ok().filter(|_| is_number)
    });
    let (first, next): (u64, u64) = (lines.next()??, lines.next()??);
    (first.checked_add(1) == Some(next)).then_some(first)
}

fn named(tool: &str, arguments: &Value) -> Option<u64> {
    let number = |value: &Value| match value {
        Value::String(text) => text.trim().parse().ok(),
        value => value.as_u64(),
    };
    let range = || number(arguments.get("view_range")?.get(0)?);
    // Other tools count `offset` from 0, or in bytes.
    let offset = || match tool.eq_ignore_ascii_case("read") {
        true => number(arguments.get("offset")?),
        false => None,
    };
    let named = FIRST_LINE.iter();
    let mut named = named.filter_map(|name| number(arguments.get(*name)?));
    named.next().or_else(range).or_else(offset)
}

fn command(arguments: &Value) -> Option<String> {
    let command = COMMAND.iter().find_map(|name| arguments.get(*name))?;
    match command {
        Value::String(command) => Some(command.clone()),
        Value::Array(words) => Some(words.last()?.as_str()?.to_owned()),
        _ => None,
    }
}

/// Returns the number, in its file, of the first line that a command prints. None if the command
/// does not simply print lines of one file.
fn printed(command: &str) -> Option<u64> {
    let mut command = command.trim();
    while let Some((first, rest)) = command.split_once("&&")
        && first.trim_start().starts_with("cd ")
    {
        command = rest.trim();
    }
    let command = command.replace("2>/dev/null", "").replace("2>&1", "");
    if command.contains(['\n', ';', '&', '>', '<', '`', '(']) {
        return None;
    }
    let mut line = None;
    for stage in command.split('|') {
        let words: Vec<&str> = stage
            .split_whitespace()
            .map(|word| word.trim_matches(['\'', '"']))
            .collect();
        let skipped = skipped(&words, line.is_none())?;
        line = Some(line.unwrap_or(1_u64).checked_add(skipped)?);
    }
    line
}

/// Returns how many lines a command skips at the beginning of one file or of its input.
fn skipped(words: &[&str], has_file: bool) -> Option<u64> {
    let (name, mut arguments) = words.split_first()?;
    if has_file {
        let (file, rest) = arguments.split_last()?;
        if file.starts_with(['-', '+']) {
            return None;
        }
        arguments = rest;
    }
    match (*name, arguments) {
        ("cat" | "head", options) if options.iter().all(|word| is_option(word)) => Some(0),
        ("nl", ["-ba"]) => Some(0),
        ("sed", ["-n", range]) => {
            let first = range.strip_suffix('p')?.split(',').next()?;
            first.parse::<u64>().ok()?.checked_sub(1)
        }
        ("tail", ["-n", from] | [from]) => {
            let from = from.strip_prefix("-n").unwrap_or(from);
            let from = from.strip_prefix('+')?.parse::<u64>().ok()?;
            from.checked_sub(1)
        }
        _ => None,
    }
}

/// Whether a word is an option or its number.
fn is_option(word: &str) -> bool {
    word.starts_with('-') || word.parse::<u64>().is_ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        draft::Outcome,
        window::samples::{at, json as text_of},
    };
    use treering_domain::EventRef;

    fn begins(tool: &str, arguments: &Value, text: &str) -> Option<u64> {
        let event: EventRef = at(3);
        let call = Call {
            call_id: "a".into(),
            wire_id: "a".into(),
            tool: tool.into(),
            arguments: text_of(&arguments.to_string()),
            arguments_shortened: false,
            item_id: String::new(),
            request: event,
            outcome: Outcome::Missing {
                why: String::new(),
                event: None,
                open: true,
            },
        };
        first_line(&call, text)
    }

    // A result with lines 1604 to 1900 of a file was marked "lines 5 to 120 are left out", and the
    // model read the wrong lines. If the first line is unknown, the mark has no file lines.
    #[test]
    fn first_file_line_is_read_from_the_call() {
        let shell = |command: &str| begins("bash", &json!({"command": command}), "a\nb");
        for (command, line) in [
            ("sed -n '1604,1900p' src/main.ts", Some(1604)),
            ("cd /x && sed -n \"20,+9p\" a.rs 2>/dev/null", Some(20)),
            ("sed -n 7p a.rs", Some(7)),
            ("sed -n '100,$p' a.rs | head -50", Some(100)),
            ("cat a.rs | sed -n '10,90p' | tail -n +5", Some(14)),
            ("tail -n +30 a.rs", Some(30)),
            ("tail +30 a.rs", Some(30)),
            ("head -n 50 a.rs | tail -n +20", Some(20)),
            // Reads from the first line, from the end, of two files, or of search results.
            ("head -50 a.rs", None),
            ("sed -n '1,9p' a.rs", None),
            ("tail -n 30 a.rs", None),
            ("tail -30 a.rs", None),
            ("sed -n '5,9p;20,30p' a.rs", None),
            ("sed -n '5,9p' a.rs b.rs", None),
            ("sed -n '5,9p' a.rs && sed -n '5,9p' b.rs", None),
            ("sed -n '/fn a/,/^}/p' a.rs", None),
            ("grep -n fn a.rs | sed -n '5,9p'", None),
            ("echo hi; sed -n '5,9p' a.rs", None),
            ("sed -n '5,9p'", None),
            ("", None),
        ] {
            assert_eq!(shell(command), line, "{command}");
        }
        let words = json!({"command": ["bash", "-lc", "sed -n '5,9p' a"]});
        assert_eq!(begins("shell", &words, "a\nb"), Some(5));
        let offset = json!({"path": "a", "offset": 40, "limit": 10});
        assert_eq!(begins("Read", &offset, "a\nb"), Some(40));
        assert_eq!(begins("read_file", &offset, "a\nb"), None);
        assert_eq!(begins("read_file", &offset, " 41→a\n 42→b"), Some(41));
        assert_eq!(begins("x", &json!({}), "1,2\n3"), None);
        assert_eq!(begins("x", &json!({}), "5\ta\n9\tb"), None);
        let range = json!({"view_range": [11, 20]});
        assert_eq!(begins("view", &range, "a\nb"), Some(11));
        let start = json!({"start_line": "12"});
        assert_eq!(begins("open", &start, "a\nb"), Some(12));
        assert_eq!(begins("Read", &json!({"offset": 1}), "a"), None);
    }
}
