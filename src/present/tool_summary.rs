//! Formats the summary of a tool call. Shell commands and search patterns have their own forms.

/// Parts of tool names that indicate a shell.
const SHELLS: [&str; 9] = [
    "bash",
    "sh",
    "zsh",
    "shell",
    "powershell",
    "terminal",
    "console",
    "command",
    "cmd",
];
/// Tool names that indicate a shell only as the whole name, not as a part of it.
const SHELLS_WHOLE: [&str; 2] = ["exec", "run"];
/// Parts of tool names that indicate a pattern search.
const PATTERNS: [&str; 3] = ["grep", "rg", "ripgrep"];

/// Returns the summary of a call of this tool, on one line.
#[must_use]
pub fn summarise_call(tool: &str, deed: &str) -> String {
    let parts = parts(tool);
    let is_one = |names: &[&str]| parts.iter().any(|part| names.contains(&part.as_str()));
    if is_one(&SHELLS) || matches!(&parts[..], [only] if SHELLS_WHOLE.contains(&only.as_str())) {
        format!("$ {deed}")
    } else if is_one(&PATTERNS) {
        format!("/{deed}/")
    } else {
        deed.to_owned()
    }
}

/// Splits a tool name into words: `run_terminal_cmd`, `RunCommand`, `mcp__host__bash`.
fn parts(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut was_small = false;
    for letter in name.chars() {
        if !letter.is_alphanumeric() || (letter.is_uppercase() && was_small) {
            parts.push(String::new());
        }
        was_small = letter.is_lowercase();
        if let (true, Some(part)) = (letter.is_alphanumeric(), parts.last_mut()) {
            part.extend(letter.to_lowercase());
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    // A Grep pattern and an SQL query were shown as shell commands.
    #[test]
    fn only_shell_tools_are_shown_as_commands() {
        for (tool, expected) in [
            ("Bash", "$ x"),
            ("shell", "$ x"),
            ("run_terminal_cmd", "$ x"),
            ("RunCommand", "$ x"),
            ("mcp__host__bash", "$ x"),
            ("exec", "$ x"),
            ("Grep", "/x/"),
            ("grep_search", "/x/"),
            ("Glob", "x"),
            ("execute_sql", "x"),
            ("WebSearch", "x"),
            ("Publish", "x"),
            ("", "x"),
        ] {
            assert_eq!(summarise_call(tool, "x"), expected, "{tool}");
        }
    }
}
