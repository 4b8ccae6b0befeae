//! Where each agent has its configuration, and what belongs there.

use std::{env, path::PathBuf};

use serde_json::{Value, json};

use super::{Agent, edit::Change};

/// The name of the server in configurations.
const NAME: &str = "treering";
/// How long Claude Code waits for the import of a session, in seconds.
const HOOK_SECONDS: u32 = 120;

/// What is to be configured, and where.
#[derive(Clone, Debug)]
pub struct AgentSetup {
    /// The project, or the home.
    pub folder: PathBuf,
    /// What is started.
    pub program: String,
    /// Behind it.
    pub arguments: Vec<String>,
    /// Sessions are imported.
    pub hook: bool,
}

/// The files of an agent, with what is to be in them.
#[must_use]
pub fn changes(agent: Agent, place: &AgentSetup) -> Vec<(PathBuf, Change)> {
    let (program, arguments) = (&place.program, &place.arguments);
    let at = |path: &str| place.folder.join(path);
    let member = |within: &'static str, value: Value| Change::Member {
        within,
        name: NAME,
        value,
    };
    match agent {
        Agent::ClaudeCode => {
            let server = json!({"command": program, "args": arguments});
            let mut files = vec![(at(".mcp.json"), member("mcpServers", server))];
            if place.hook {
                files.push((at(".claude/settings.json"), hook(place)));
            }
            files
        }
        Agent::GeminiCli => {
            let server = json!({"command": program, "args": arguments});
            vec![(at(".gemini/settings.json"), member("mcpServers", server))]
        }
        Agent::Vscode => {
            let server = json!({"type": "stdio", "command": program, "args": arguments});
            vec![(at(".vscode/mcp.json"), member("servers", server))]
        }
        Agent::Opencode => {
            let mut command = vec![program.clone()];
            command.extend(arguments.iter().cloned());
            let server = json!({"type": "local", "command": command, "enabled": true});
            // It reads both names.
            let commented = at("opencode.jsonc");
            let path = match commented.exists() {
                true => commented,
                false => at("opencode.json"),
            };
            vec![(path, member("mcp", server))]
        }
        Agent::Codex => {
            let own = env::var_os("CODEX_HOME").filter(|_| !at(".codex").exists());
            let folder = own.map_or_else(|| at(".codex"), PathBuf::from);
            let table = Change::Table {
                within: "mcp_servers",
                name: NAME,
                program: program.clone(),
                arguments: arguments.clone(),
            };
            vec![(folder.join("config.toml"), table)]
        }
    }
}

/// Imports the session whenever the agent has finished answering: what is there is known, and
/// only what is new is added.
fn hook(place: &AgentSetup) -> Change {
    let store = place
        .arguments
        .iter()
        .skip(1)
        .filter(|argument| *argument != "--writable");
    let words = [&place.program]
        .into_iter()
        .map(String::as_str)
        .chain(["import", "--format", "claude-code", "--hook"])
        .chain(store.map(String::as_str));
    let command: Vec<_> = words.map(quoted).collect();
    Change::Hook {
        event: "Stop",
        command: command.join(" "),
        mark: "import --format claude-code --hook",
        seconds: HOOK_SECONDS,
    }
}

/// A word of a command, as shells read it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A folder with a space or a quote in its name must not become two words, or another
    // command.
    #[test]
    fn words_of_a_hook_stay_words() {
        assert_eq!(quoted("--data"), "--data");
        assert_eq!(quoted("/home/a b"), "'/home/a b'");
        assert_eq!(quoted("it's; rm"), r"'it'\''s; rm'");
        assert_eq!(quoted(""), "''");
    }
}
