//! How it is shown what a call does: a command as one types it, a pattern as a pattern.

/// Parts of the names of tools that run commands.
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
/// Names of tools that run commands, which say something else in other names.
const SHELLS_WHOLE: [&str; 2] = ["exec", "run"];
/// Parts of the names of tools that look for a pattern.
const PATTERNS: [&str; 3] = ["grep", "rg", "ripgrep"];

/// The deed of a call of this tool, on one line.
#[must_use]
pub fn shown(tool: &str, deed: &str) -> String {
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

/// The words of a name: `run_terminal_cmd`, `RunCommand`, `mcp__host__bash`.
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

    // The pattern of a Grep and a question in SQL stood there as commands of a shell.
    #[test]
    fn only_commands_look_like_commands() {
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
            assert_eq!(shown(tool, "x"), expected, "{tool}");
        }
    }
}
