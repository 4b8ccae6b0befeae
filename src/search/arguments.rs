//! The target of a tool call, from its arguments.

use serde_json::Value;

/// Names of arguments that hold a file or folder.
const PATH_NAMES: [&str; 14] = [
    "path",
    "paths",
    "file",
    "files",
    "filename",
    "file_name",
    "filepath",
    "file_path",
    "notebook_path",
    "target_file",
    "directory",
    "dir",
    "cwd",
    "source_path",
];
/// Names of arguments that hold the action, the most specific first.
const DEED_NAMES: [&str; 8] = [
    "command", "cmd", "script", "code", "query", "pattern", "url", "prompt",
];
/// The first of these hold commands of a shell.
const COMMAND_NAMES: usize = 3;
/// Maximum number of paths indexed for one call.
pub(super) const PATHS_MAX: usize = 32;
/// Longest path, in bytes.
pub(super) const PATH_BYTES_MAX: usize = 512;
/// Deepest nesting that is read; real arguments are not deeper.
const DEPTH_MAX: usize = 16;

/// The target of one call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallTarget {
    /// Files and folders named in the arguments, each once, in order.
    pub paths: Vec<String>,
    /// The command, query or pattern, or empty.
    pub command: String,
}

/// Returns the target of a call from its arguments.
#[must_use]
pub fn call_target(arguments: &str) -> CallTarget {
    let mut target = CallTarget::default();
    let mut rank = DEED_NAMES.len();
    for_each_value(arguments, &mut |name, value| {
        let Value::String(text) = value else { return };
        let name = name.to_ascii_lowercase();
        if PATH_NAMES.contains(&name.as_str()) {
            add_path(&mut target.paths, text);
        }
        let own = DEED_NAMES.iter().position(|deed| *deed == name);
        match own {
            Some(own) if own < rank => {
                rank = own;
                target.command.clone_from(text);
            }
            // A list of words: ["bash", "-lc", "cargo test"].
            Some(own) if own == rank && own < COMMAND_NAMES => {
                target.command.push(' ');
                target.command.push_str(text);
            }
            _ => {}
        }
    });
    if rank < COMMAND_NAMES {
        for word in target.command.split_whitespace() {
            let word = word.trim_matches(|c: char| "\"'`;,()".contains(c));
            if is_path(word) {
                add_path(&mut target.paths, word);
            }
        }
    }
    target
}

/// Returns true for a word of a command that can only be a path.
fn is_path(word: &str) -> bool {
    let plain = |c: char| c.is_alphanumeric() || "/._-~+@".contains(c);
    word.contains('/')
        && !word.contains("//")
        && !word.starts_with('-')
        && word.chars().any(char::is_alphanumeric)
        && word.chars().all(plain)
}

fn add_path(paths: &mut Vec<String>, path: &str) {
    let is_fit = !path.is_empty() && path.len() <= PATH_BYTES_MAX && !path.contains('\n');
    if is_fit && paths.len() < PATHS_MAX && !paths.iter().any(|known| known == path) {
        paths.push(path.to_owned());
    }
}

/// Returns the searchable text of a call: `name: value`, one per line.
pub fn call_text(arguments: &str) -> String {
    let mut text = String::new();
    let was_read = for_each_value(arguments, &mut |name, value| {
        let plain = match value {
            Value::String(plain) => plain.clone(),
            Value::Number(_) | Value::Bool(_) => value.to_string(),
            _ => return,
        };
        if plain.is_empty() {
            return;
        }
        if !text.is_empty() {
            text.push('\n');
        }
        if !name.is_empty() {
            text.push_str(name);
            text.push_str(": ");
        }
        text.push_str(&plain);
    });
    if was_read { text } else { arguments.to_owned() }
}

/// Calls `each` with every scalar value and the nearest name above it. Returns false when the
/// arguments are not a JSON object or array.
fn for_each_value(arguments: &str, each: &mut dyn FnMut(&str, &Value)) -> bool {
    match serde_json::from_str::<Value>(arguments) {
        Ok(value @ (Value::Object(_) | Value::Array(_))) => {
            walk("", &value, 0, each);
            true
        }
        _ => false,
    }
}

fn walk(name: &str, value: &Value, depth: usize, each: &mut dyn FnMut(&str, &Value)) {
    if depth > DEPTH_MAX {
        return;
    }
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                walk(name, value, depth + 1, each);
            }
        }
        Value::Array(values) => {
            for value in values {
                walk(name, value, depth + 1, each);
            }
        }
        value => each(name, value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Commands, paths and edits must be searchable without their JSON escapes.
    #[test]
    fn arguments_become_unescaped_text() {
        let cases = [
            (
                r#"{"command":"go test ./...\n -run X","timeout":5}"#,
                "command: go test ./...\n -run X\ntimeout: 5",
            ),
            (
                r#"{"edits":[{"old_string":"a \"b\"","new_string":""}],"path":null}"#,
                "old_string: a \"b\"",
            ),
            (r#"["x",{"a":[1,2]}]"#, "x\na: 1\na: 2"),
            ("\"ls -la\"", "\"ls -la\""),
            ("not json", "not json"),
            ("{}", ""),
        ];
        for (arguments, text) in cases {
            assert_eq!(call_text(arguments), text, "{arguments}");
        }
    }

    #[test]
    fn call_target_has_paths_and_command() {
        let target = call_target(
            r#"{"file_path":"/a/b.rs","edits":[{"path":"c.rs"},{"path":"c.rs"}],"pattern":"x"}"#,
        );
        assert_eq!(target.paths, ["/a/b.rs", "c.rs"]);
        assert_eq!(target.command, "x");
        let target =
            call_target(r#"{"query":"q","command":"cat src/main.rs | head -3 'a/b' -x/y"}"#);
        assert_eq!(target.paths, ["src/main.rs", "a/b"]);
        assert!(target.command.starts_with("cat"));
        assert_eq!(call_target("[]"), CallTarget::default());
    }
}
