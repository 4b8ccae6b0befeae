//! Applies a rule to one result or to the arguments of one call. Keeps no state.

use serde_json::{Map, Value};

use super::policy::{KnowledgeRule, TextForm};
use treering_domain::{ContentPart, ToolResultRecorded};

/// Maximum length of a path, in bytes.
pub(super) const PATH_BYTES_MAX: usize = 1_024;
/// Maximum length of a variable's name, in bytes.
pub(super) const NAME_BYTES_MAX: usize = 256;
/// Maximum length of a variable's detail, in bytes of JSON text.
pub(super) const DETAIL_BYTES_MAX: usize = 240;
/// Maximum size of a result that is parsed as JSON, and of the text whose lines are read.
const TEXT_BYTES_MAX: usize = 2 << 20;
/// Maximum depth at which names are read. Deeper values are data.
pub(super) const DEPTH_MAX: usize = 8;
/// Maximum number of values of one result that are read.
const VALUES_MAX: usize = 200_000;
/// Maximum number of words in a name. A line with more words is prose.
const WORDS_MAX: usize = 4;

/// A parsed result.
#[derive(Debug)]
pub(super) enum ReadableResult {
    Json(Value),
    Text(String),
    /// The result is JSON and too large.
    TooLarge,
}

/// Facts that a rule found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ExtractedFacts {
    /// Names of files, in the order of the result.
    pub names: Vec<String>,
    /// Names of variables with their details.
    pub variables: Vec<(String, String)>,
    /// The file that the result is about.
    pub file: Option<String>,
    /// Number of omitted texts (not valid as names) and values (too deep or too many).
    pub left_out: u64,
    looked_at: usize,
}

impl ReadableResult {
    pub fn of(result: &ToolResultRecorded) -> Self {
        let structured = result.structured.as_str();
        if structured.len() <= TEXT_BYTES_MAX
            && let Ok(value) = serde_json::from_str(structured)
        {
            return Self::Json(value);
        }
        let texts: Vec<&str> = result.parts.iter().filter_map(ContentPart::text).collect();
        let text = texts.join("\n");
        let trimmed = text.trim();
        let json = trimmed.starts_with(['{', '[', '"']);
        if trimmed.len() > TEXT_BYTES_MAX {
            if json {
                return Self::TooLarge;
            }
            let end = trimmed.floor_char_boundary(TEXT_BYTES_MAX);
            return Self::Text(trimmed[..end].to_owned());
        }
        if json && let Ok(value) = serde_json::from_str(trimmed) {
            return Self::Json(value);
        }
        match literal_list(trimmed) {
            Some(list) => Self::Json(list),
            None => Self::Text(trimmed.to_owned()),
        }
    }

    /// Returns the parts that a rule's pointers select; the whole value if it has no pointers.
    pub fn parts<'a>(&'a self, rule: &'a KnowledgeRule) -> Vec<&'a Value> {
        let Self::Json(value) = self else {
            return Vec::new();
        };
        if rule.pointers.is_empty() {
            return vec![value];
        }
        let pointers = rule.pointers.iter();
        pointers.filter_map(|at| value.pointer(at)).collect()
    }
}

/// Parses a list of quoted strings as Python prints it: `['a', 'b']`.
fn literal_list(text: &str) -> Option<Value> {
    let mut rest = text.strip_prefix('[')?.strip_suffix(']')?.trim();
    let mut list = Vec::new();
    while !rest.is_empty() {
        let quote = rest.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
        let (item, after) = rest[1..].split_once(quote)?;
        if item.contains('\\') {
            return None;
        }
        list.push(Value::from(item));
        let after = after.trim_start();
        rest = match after.strip_prefix(',') {
            Some(next) => next.trim_start(),
            None if after.is_empty() => "",
            None => return None,
        };
    }
    Some(Value::Array(list))
}

impl ExtractedFacts {
    /// Returns the files of a result.
    pub fn files(reading: &ReadableResult, rule: &KnowledgeRule) -> Self {
        let mut found = Self::default();
        match reading {
            ReadableResult::Text(text) => found.file_lines(text, rule),
            ReadableResult::TooLarge => found.left_out += 1,
            ReadableResult::Json(_) => {
                for part in reading.parts(rule) {
                    match part {
                        Value::String(text) => found.file_lines(text, rule),
                        part => found.files_in(part, rule, 0),
                    }
                }
            }
        }
        found
    }

    /// Returns the variables of a result, and the file that it names.
    pub fn variables(reading: &ReadableResult, rule: &KnowledgeRule, file_keys: &[String]) -> Self {
        let mut found = Self::default();
        match reading {
            ReadableResult::Text(text) => found.variable_lines(text, rule.text),
            ReadableResult::TooLarge => found.left_out += 1,
            ReadableResult::Json(whole) => {
                found.file = whole.as_object().and_then(|map| first(map, file_keys));
                for part in reading.parts(rule) {
                    match part {
                        Value::String(text) => found.variable_lines(text, rule.text),
                        part => found.variables_in(part, rule, file_keys),
                    }
                }
            }
        }
        found
    }

    /// Returns the directory in a result.
    pub fn directory(reading: &ReadableResult, rule: &KnowledgeRule) -> Option<String> {
        let text = match reading {
            ReadableResult::Text(text) => text.clone(),
            ReadableResult::TooLarge => return None,
            ReadableResult::Json(_) => match reading.parts(rule).first()? {
                Value::String(text) => text.clone(),
                Value::Object(map) => first(map, &rule.name_keys)?,
                _ => return None,
            },
        };
        let text = clean(&text, PATH_BYTES_MAX)?;
        is_rooted(text).then(|| text.to_owned())
    }

    fn may_look(&mut self, depth: usize) -> bool {
        self.looked_at += 1;
        let may = depth <= DEPTH_MAX && self.looked_at <= VALUES_MAX;
        self.left_out += u64::from(!may);
        may
    }

    fn name(&mut self, text: &str) {
        match clean(text, PATH_BYTES_MAX) {
            Some(name) if name.ends_with(['/', '\\']) => {}
            Some(name) if self.names.len() < VALUES_MAX => self.names.push(name.to_owned()),
            _ => self.left_out += 1,
        }
    }

    fn variable(&mut self, name: &str, detail: &Value) {
        match clean(name, NAME_BYTES_MAX) {
            Some(name) if self.variables.len() < VALUES_MAX => {
                self.variables.push((name.to_owned(), short_json(detail)));
            }
            _ => self.left_out += 1,
        }
    }

    fn files_in(&mut self, value: &Value, rule: &KnowledgeRule, depth: usize) {
        if !self.may_look(depth) {
            return;
        }
        match value {
            Value::String(text) => self.name(text),
            Value::Array(items) => {
                for item in items {
                    if self.looked_at > VALUES_MAX {
                        self.left_out += 1;
                        return;
                    }
                    self.files_in(item, rule, depth + 1);
                }
            }
            Value::Object(map) => {
                let lists: Vec<&Value> = listed(map, rule).collect();
                if lists.is_empty()
                    && !is_directory(map)
                    && let Some(name) = first(map, &rule.name_keys)
                {
                    self.name(&name);
                }
                for list in lists {
                    match list {
                        // A map from path to details.
                        Value::Object(by_name)
                            if listed(by_name, rule).next().is_none()
                                && first(by_name, &rule.name_keys).is_none() =>
                        {
                            by_name.keys().for_each(|name| self.name(name));
                        }
                        list => self.files_in(list, rule, depth + 1),
                    }
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn variables_in(&mut self, value: &Value, rule: &KnowledgeRule, file_keys: &[String]) {
        match value {
            Value::Array(items) => self.variable_list(items, rule),
            Value::Object(map) => {
                if map.get("error").is_some_and(is_said) {
                    return;
                }
                let lists: Vec<&Value> = listed(map, rule).collect();
                for list in &lists {
                    match list {
                        Value::Array(items) => self.variable_list(items, rule),
                        Value::Object(by_name) => {
                            for (name, detail) in by_name.iter().take(VALUES_MAX) {
                                self.variable(name, detail);
                            }
                        }
                        _ => {}
                    }
                }
                if lists.is_empty() {
                    let own = map.iter().filter(|(key, value)| {
                        !(value.is_string() && file_keys.iter().any(|known| known == *key))
                    });
                    for (name, detail) in own.take(VALUES_MAX) {
                        self.variable(name, detail);
                    }
                }
            }
            _ => {}
        }
    }

    fn variable_list(&mut self, items: &[Value], rule: &KnowledgeRule) {
        for item in items.iter().take(VALUES_MAX) {
            match item {
                Value::String(name) => self.variable(name, &Value::Null),
                Value::Object(map) => {
                    let key = rule.name_keys.iter().find(|key| map[*key].is_string());
                    if let Some((key, name)) = key.and_then(|key| Some((key, map[key].as_str()?))) {
                        let mut rest = map.clone();
                        rest.shift_remove(key);
                        let rest = match rest.len() {
                            0 => Value::Null,
                            _ => Value::Object(rest),
                        };
                        self.variable(name, &rest);
                    }
                }
                _ => {}
            }
        }
        self.left_out += items.len().saturating_sub(VALUES_MAX) as u64;
    }

    fn file_lines(&mut self, text: &str, rule: &KnowledgeRule) {
        if rule.text == TextForm::Lines
            && let Some(names) = records(text, &rule.name_keys)
        {
            names.into_iter().for_each(|name| self.name(name));
            return;
        }
        let lines = || text.lines().filter(|line| !line.trim().is_empty());
        let alone = lines().nth(1).is_none();
        let names: Vec<&str> = lines()
            .filter_map(|line| match rule.text {
                TextForm::Ignore | TextForm::ShellCd => None,
                TextForm::Lines => name_of_line(line),
                TextForm::FirstWord => line.split_whitespace().next(),
                TextForm::LastWord => line.split_whitespace().next_back(),
                TextForm::BeforeColon => line.split_once(':').map(|(before, _)| before.trim()),
            })
            .map(unquoted)
            .filter(|name| is_file_name(name, alone))
            .collect();
        // If most lines are something else, the words are not names.
        let prose = names.len() * 2 < lines().count();
        for name in names {
            if !prose || looks_like_path(name) && !name.ends_with(['"', '\'']) {
                self.name(name);
            }
        }
    }

    fn variable_lines(&mut self, text: &str, form: TextForm) {
        if matches!(form, TextForm::Ignore | TextForm::ShellCd) {
            return;
        }
        for line in text.lines() {
            let line = without_bullet(line.trim());
            let (name, detail) = match line.split_once([':', '=', '(', '\t']) {
                Some((name, detail)) => (name, detail.trim().trim_end_matches(')')),
                None => (line, ""),
            };
            let name = unquoted(name.trim());
            let named = !name.is_empty() && !name.contains(char::is_whitespace);
            // A single word is a name only if the text has more than one line.
            if named && (!detail.is_empty() || text.trim().contains('\n')) {
                let detail = match detail {
                    "" => Value::Null,
                    detail => Value::from(detail),
                };
                self.variable(name, &detail);
            }
        }
    }
}

fn listed<'a>(
    map: &'a Map<String, Value>,
    rule: &'a KnowledgeRule,
) -> impl Iterator<Item = &'a Value> {
    let keys = rule.list_keys.iter();
    keys.filter_map(|key| map.get(key))
        .filter(|value| value.is_array() || value.is_object())
}

/// Returns the first of these members that is a string.
fn first(map: &Map<String, Value>, keys: &[String]) -> Option<String> {
    let mut texts = keys.iter().filter_map(|key| map.get(key)?.as_str());
    texts
        .find(|text| !text.trim().is_empty())
        .map(str::to_owned)
}

fn is_said(value: &Value) -> bool {
    !matches!(value, Value::Null | Value::Bool(false)) && value.as_str() != Some("")
}

fn is_directory(map: &Map<String, Value>) -> bool {
    let kind = ["type", "kind"]
        .iter()
        .find_map(|key| map.get(*key)?.as_str());
    let said = ["is_dir", "is_directory", "isDirectory"]
        .iter()
        .any(|key| map.get(*key).and_then(Value::as_bool) == Some(true));
    said || kind.is_some_and(|kind| matches!(kind, "directory" | "dir" | "folder"))
}

/// Returns the trimmed text if it can be a name: not empty, within the limit, and without
/// characters that break a line or change the writing direction.
pub(super) fn clean(text: &str, bytes_max: usize) -> Option<&str> {
    let text = text.trim();
    let unfit =
        |c: char| c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    (!text.is_empty() && text.len() <= bytes_max && !text.contains(unfit)).then_some(text)
}

/// Returns the JSON text of a value; for a long one, a JSON string with its beginning.
pub(super) fn short_json(value: &Value) -> String {
    let whole = value.to_string();
    if whole.len() <= DETAIL_BYTES_MAX {
        return whole;
    }
    let text = value.as_str().unwrap_or(&whole);
    // An escaped byte can take six bytes.
    let mut end = text.floor_char_boundary(DETAIL_BYTES_MAX);
    loop {
        let short = Value::from(format!("{}…", &text[..end])).to_string();
        if short.len() <= DETAIL_BYTES_MAX || end == 0 {
            return short;
        }
        end = text.floor_char_boundary(end.saturating_sub(short.len() - DETAIL_BYTES_MAX));
    }
}

fn without_bullet(line: &str) -> &str {
    let bullet = ["- ", "* ", "• ", "[FILE] "];
    bullet
        .iter()
        .find_map(|start| line.strip_prefix(start))
        .unwrap_or(line)
        .trim()
}

fn unquoted(name: &str) -> &str {
    let name = name.trim();
    for quote in ['"', '\'', '`'] {
        let inner = name.strip_prefix(quote).and_then(|n| n.strip_suffix(quote));
        if let Some(inner) = inner.filter(|inner| !inner.contains(quote)) {
            return inner;
        }
    }
    name
}

/// Returns the names of records in a text (`- filename: a.txt`), by the most specific key present.
/// None if the text has no records.
fn records<'a>(text: &'a str, keys: &[String]) -> Option<Vec<&'a str>> {
    let listed = text.trim_start().starts_with("- ");
    keys.iter().find_map(|key| {
        let names: Vec<&str> = text
            .lines()
            .filter_map(|line| without_bullet(line.trim()).strip_prefix(key.as_str()))
            .filter_map(|rest| rest.strip_prefix(": "))
            .map(unquoted)
            .filter(|name| is_file_name(name, false))
            .collect();
        let enough = if listed { 1 } else { 2 };
        (names.len() >= enough).then_some(names)
    })
}

/// Returns the part of a line that names a file. None if it names a directory.
fn name_of_line(line: &str) -> Option<&str> {
    let line = line.trim();
    if line.starts_with("[DIR]") {
        return None;
    }
    if is_mode(line) {
        return long_listing(line);
    }
    let line = without_bullet(line);
    let columns: Vec<&str> = line
        .split('\t')
        .flat_map(|part| part.split("  "))
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .collect();
    match columns.as_slice() {
        [] => None,
        [only] => Some(only),
        several => {
            let paths = several.iter().rev().find(|part| looks_like_path(part));
            paths.or(several.last()).copied()
        }
    }
}

/// Whether the line starts with a mode, the first column of `ls -l`.
fn is_mode(line: &str) -> bool {
    let mode = line.split(' ').next().unwrap_or("");
    mode.len() >= 10
        && mode.is_ascii()
        && mode.starts_with(['-', 'd', 'l', 'b', 'c', 'p', 's'])
        && mode[1..10]
            .chars()
            .all(|c| matches!(c, '-' | 'r' | 'w' | 'x' | 's' | 'S' | 't' | 'T'))
}

fn long_listing(line: &str) -> Option<&str> {
    const COLUMNS_BEFORE_NAME: usize = 8;
    if line.starts_with('d') {
        return None;
    }
    let mut rest = line;
    for _ in 0..COLUMNS_BEFORE_NAME {
        let (_, after) = rest.split_once(char::is_whitespace)?;
        rest = after.trim_start();
    }
    Some(rest.split(" -> ").next().unwrap_or(rest))
}

pub(super) fn is_rooted(text: &str) -> bool {
    let drive = text
        .as_bytes()
        .get(1..3)
        .is_some_and(|b| b == b":\\" || b == b":/");
    drive || text.starts_with(['/', '~']) || text.starts_with("\\\\")
}

fn looks_like_path(text: &str) -> bool {
    text.contains(['/', '\\']) || has_extension(text)
}

fn has_extension(text: &str) -> bool {
    text.rsplit_once('.').is_some_and(|(stem, extension)| {
        !stem.is_empty()
            && (1..=10).contains(&extension.len())
            && extension.chars().all(|c| c.is_ascii_alphanumeric())
            && extension.chars().any(|c| c.is_ascii_alphabetic())
    })
}

/// Whether a text can be a file name. Prose, headings and links cannot.
fn is_file_name(name: &str, alone: bool) -> bool {
    if name.ends_with(':')
        || name.contains("://")
        || name.starts_with("...")
        || name.starts_with('…')
    {
        return false;
    }
    if !name.contains(char::is_whitespace) {
        return !alone || looks_like_path(name);
    }
    let words = name.split_whitespace().count();
    is_rooted(name) && !name.contains(": ")
        || words <= WORDS_MAX && !name.contains([':', '(']) && has_extension(name)
}

/// Returns the directory of a `cd` at the start of a shell command.
pub(super) fn shell_cd(command: &str) -> Option<String> {
    let rest = command.trim_start().strip_prefix("cd ")?.trim_start();
    let (path, after) = match rest.chars().next()? {
        quote @ ('"' | '\'') => rest[1..].split_once(quote)?,
        _ => {
            let end = rest.find([' ', '\t', '\n', ';', '&', '|', ')']);
            rest.split_at(end.unwrap_or(rest.len()))
        }
    };
    let after = after.trim_start_matches([' ', '\t']);
    let ends = after.is_empty() || after.starts_with("&&") || after.starts_with([';', '\n']);
    // Only a shell can expand these.
    let plain = !path.is_empty() && path != "-" && !path.contains(['$', '`', '(', '*', '?']);
    (ends && plain).then(|| path.to_owned())
}

/// Returns the words of a text that look like paths, without quotes and punctuation.
pub(super) fn names_in(text: &str) -> impl Iterator<Item = &str> {
    let of_paths = |c: char| c.is_alphanumeric() || "/\\._-@~+".contains(c);
    let words = text.split(move |c| !of_paths(c));
    words
        .map(|word| word.trim_end_matches('.'))
        .filter(|word| word.len() <= PATH_BYTES_MAX && looks_like_path(word))
        .map(|word| word.strip_prefix("./").unwrap_or(word))
}

/// Resolves a path against a known directory, including `.` and `..`.
pub(super) fn below(known: Option<&str>, path: &str) -> String {
    let Some(known) = known.filter(|_| !is_rooted(path)) else {
        return path.to_owned();
    };
    let mut parts: Vec<&str> = known.trim_end_matches('/').split('/').collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            // A root, drive or home directory has no parent.
            ".." => {
                if parts.len() > 1 {
                    parts.pop();
                }
            }
            part => parts.push(part),
        }
    }
    match parts.join("/") {
        root if root.is_empty() => "/".to_owned(),
        joined => joined,
    }
}

#[cfg(test)]
mod tests {
    use super::{super::policy::KnowledgePolicy, *};

    fn rule(name: &str) -> KnowledgeRule {
        KnowledgePolicy::default().rules[name].clone()
    }

    fn names(text: &str) -> Vec<String> {
        let reading = ReadableResult::of(&ToolResultRecorded::text("c", text));
        ExtractedFacts::files(&reading, &rule("files")).names
    }

    // Tools list files in a dozen formats. Each must give the files, without other words, folders
    // or links.
    #[test]
    fn files_are_parsed_from_every_common_format() {
        for (text, expected) in [
            (r#"["a.nc", "b/c.nc"]"#, &["a.nc", "b/c.nc"][..]),
            (
                r#"[{"name": "a", "path": "/x/a"}, {"file": "b"}]"#,
                &["/x/a", "b"],
            ),
            (
                r#"{"path": "/x", "files": ["a.txt"], "count": 1}"#,
                &["a.txt"],
            ),
            (
                r#"{"files": {"a.txt": {"size": 3}, "b.txt": null}}"#,
                &["a.txt", "b.txt"],
            ),
            (
                r#"{"results": [{"filename": "a.txt", "type": "file"}, {"name": "d", "type": "directory"}]}"#,
                &["a.txt"],
            ),
            (r#""one.txt\ntwo.txt""#, &["one.txt", "two.txt"]),
            ("['a.txt', 'it is b.txt']", &["a.txt", "it is b.txt"]),
            (
                "src/main.rs\nMakefile\n\nsrc/\nsub:\n",
                &["src/main.rs", "Makefile"],
            ),
            (
                "- 'a b.pdf'\n* \"c.pdf\"\n[FILE] d.pdf\n[DIR] e",
                &["a b.pdf", "c.pdf", "d.pdf"],
            ),
            (
                "     120  README.md\n   3,400  src/lib.rs\n… and 7 more files",
                &["README.md", "src/lib.rs"],
            ),
            (
                "total 8\ndrwxr-xr-x 2 a b 40 Jan  1 10:00 sub\n-rw-r--r-- 1 a b 12 Jan  1 10:00 my notes.txt",
                &["my notes.txt"],
            ),
            (
                "Found 2 files for \"x\" in /data:\n/data/a x.nc\n/data/b.nc",
                &["/data/a x.nc", "/data/b.nc"],
            ),
            (
                "- content: 'one\n\n    and two.\n    Milk\n    name: x'\n  filename: a b.docx\n  id_: '1'\n- filename: 'c.txt'\n  size: 3",
                &["a b.docx", "c.txt"],
            ),
            (
                "I looked everywhere and\nfound\nonly two things, which are in\nsrc/a.rs\nand elsewhere, as was said.",
                &["src/a.rs"],
            ),
            ("No files found", &[]),
            ("None", &[]),
            ("https://example.com/a.txt\nsee http://x.y", &[]),
            (r#"{"SFO": "San Francisco", "JFK": "New York"}"#, &[]),
            ("{not json", &[]),
            ("", &[]),
        ] {
            assert_eq!(names(text), expected, "{text}");
        }
    }

    // Variables come as maps, lists of names and lists of objects, with or without the file. An
    // error result gives none.
    #[test]
    fn variables_are_parsed_from_every_common_format() {
        let keys = KnowledgePolicy::default().file_arguments;
        for (text, expected, file) in [
            (
                r#"{"t": {"unit": "K"}, "u": 1}"#,
                &[("t", r#"{"unit":"K"}"#), ("u", "1")][..],
                None,
            ),
            (
                r#"{"file": "a.nc", "variables": ["t", "u"]}"#,
                &[("t", "null"), ("u", "null")],
                Some("a.nc"),
            ),
            (
                r#"{"columns": [{"name": "age", "type": "int"}]}"#,
                &[("age", r#"{"type":"int"}"#)],
                None,
            ),
            (
                r#"{"path": "b.csv", "rows": 3}"#,
                &[("rows", "3")],
                Some("b.csv"),
            ),
            (r#"{"error": "no such file"}"#, &[], None),
            (
                "t: float32, K\n- u (m/s)\nand some prose here",
                &[("t", "\"float32, K\""), ("u", "\"m/s\"")],
                None,
            ),
            ("t\nu", &[("t", "null"), ("u", "null")], None),
            ("done", &[], None),
        ] {
            let reading = ReadableResult::of(&ToolResultRecorded::text("c", text));
            let found = ExtractedFacts::variables(&reading, &rule("variables"), &keys);
            let expected: Vec<_> = expected
                .iter()
                .map(|(n, d)| ((*n).into(), (*d).into()))
                .collect();
            assert_eq!(found.variables, expected, "{text}");
            assert_eq!(found.file.as_deref(), file, "{text}");
        }
    }

    // A hostile result is deep, wide and long, and has control characters. Kept texts are bounded
    // and clean, and the others are counted.
    #[test]
    fn hostile_results_are_bounded() {
        let deep = format!("{}\"x.txt\"{}", "[".repeat(100), "]".repeat(100));
        let reading = ReadableResult::of(&ToolResultRecorded::text("c", deep));
        let found = ExtractedFacts::files(&reading, &rule("files"));
        assert_eq!((found.names.len(), found.left_out), (0, 1));

        let long = serde_json::json!(["a".repeat(5_000), "b\u{1b}[2Jc", "d\u{202e}e", "ok.txt"]);
        let reading = ReadableResult::of(&ToolResultRecorded::text("c", long.to_string()));
        let found = ExtractedFacts::files(&reading, &rule("files"));
        assert_eq!(
            (found.names, found.left_out),
            (vec!["ok.txt".to_owned()], 3)
        );

        let detail = serde_json::json!({"t": "\u{1}é".repeat(1_000), "u": vec![1; 1_000]});
        let reading = ReadableResult::of(&ToolResultRecorded::text("c", detail.to_string()));
        let found = ExtractedFacts::variables(&reading, &rule("variables"), &[]);
        assert_eq!(found.variables.len(), 2);
        for (_, detail) in found.variables {
            assert!(detail.len() <= DETAIL_BYTES_MAX, "{}", detail.len());
            serde_json::from_str::<Value>(&detail).unwrap();
        }
        let large = format!("[{}1]", "\"a.txt\",".repeat(300_000));
        let reading = ReadableResult::of(&ToolResultRecorded::text("c", large));
        assert!(matches!(reading, ReadableResult::TooLarge));
    }

    // The directory after `cd` is known only if the path needs no shell expansion.
    #[test]
    fn shell_cd_sets_the_working_directory() {
        for (command, expected) in [
            ("cd /a/b && ls", Some("/a/b")),
            ("cd 'my dir'; ls", Some("my dir")),
            ("cd src", Some("src")),
            ("cd $HOME && ls", None),
            ("cd - && ls", None),
            ("cd a | tee", None),
            ("ls && cd /a", None),
            ("cdrecord x", None),
        ] {
            assert_eq!(shell_cd(command).as_deref(), expected, "{command}");
        }
        for (known, path, expected) in [
            (Some("/a/b"), "../c/./d", "/a/c/d"),
            (Some("/a"), "/x", "/x"),
            (Some("/"), "..", "/"),
            (None, "x", "x"),
            (Some("/a"), "../../..", "/"),
        ] {
            assert_eq!(below(known, path), expected, "{path}");
        }
    }
}
