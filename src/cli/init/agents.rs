//! The configuration files of each agent, and the changes that Treering makes to them.

use std::{env, path::PathBuf};

use directories::BaseDirs;
use serde_json::{Value, json};
use toml_edit::{InlineTable, Table, value};

use super::{Agent, edit::Change, options::Options};

/// The name of the server in configurations.
const NAME: &str = "treering";
/// Timeout of the import hook in Claude Code, in seconds.
const HOOK_SECONDS: u32 = 120;

/// The parameters of the configuration changes.
#[derive(Clone, Debug)]
pub(crate) struct AgentSetup {
    /// Folder of the project, or the home folder.
    pub(crate) folder: PathBuf,
    /// It is the home folder: the configuration is for all projects of the user.
    pub(crate) is_home: bool,
    /// Program to start.
    pub(crate) program: String,
    /// Arguments of the program.
    pub(crate) arguments: Vec<String>,
    /// The options given now; `None` to ignore existing options.
    pub(crate) given: Option<Options>,
    /// Add the hook that imports sessions.
    pub(crate) hook: bool,
}

/// Returns the configuration files of an agent, with their changes.
pub(crate) fn changes(agent: Agent, place: &AgentSetup) -> Vec<(PathBuf, Change)> {
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
            let own =
                env::var_os("CLAUDE_CONFIG_DIR").filter(|own| place.is_home && !own.is_empty());
            let (servers, settings) = match own.map(PathBuf::from) {
                Some(own) => (own.join(".claude.json"), own.join("settings.json")),
                None if place.is_home => (at(".claude.json"), at(".claude/settings.json")),
                None => (at(".mcp.json"), at(".claude/settings.json")),
            };
            let mut files = vec![(servers, member("mcpServers", server))];
            if place.hook {
                files.push((settings, hook(place)));
            }
            files
        }
        Agent::GeminiCli => {
            let server = json!({"command": program, "args": arguments});
            vec![(at(".gemini/settings.json"), member("mcpServers", server))]
        }
        Agent::Vscode => {
            let server = json!({"type": "stdio", "command": program, "args": arguments});
            let dirs = BaseDirs::new().filter(|_| place.is_home);
            let path = dirs.map_or_else(
                || at(".vscode/mcp.json"),
                |dirs| dirs.config_dir().join("Code/User/mcp.json"),
            );
            vec![(path, member("servers", server))]
        }
        Agent::Opencode => {
            let mut command = vec![program.clone()];
            command.extend(arguments.iter().cloned());
            let server = json!({"type": "local", "command": command, "enabled": true});
            let own = env::var_os("XDG_CONFIG_HOME").filter(|own| !own.is_empty());
            let folder = match place.is_home {
                true => own
                    .map_or_else(|| at(".config"), PathBuf::from)
                    .join("opencode"),
                false => place.folder.clone(),
            };
            // The agent reads files with either name.
            let commented = folder.join("opencode.jsonc");
            let path = match commented.exists() {
                true => commented,
                false => folder.join("opencode.json"),
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

/// Returns the hook that imports the session after each answer of the agent. Only new events are
/// added.
fn hook(place: &AgentSetup) -> Change {
    Change::Hook {
        event: "Stop",
        program: place.program.clone(),
        options: Options::of(&place.arguments).of_every_command(),
        given: place.given.clone().map(Options::of_every_command),
        mark: "import --format claude-code --hook",
        seconds: HOOK_SECONDS,
    }
}

/// Returns the configuration to reach a server by HTTP, without this program.
pub(crate) fn by_http(agent: Agent, url: &str, namespace: Option<&str>) -> String {
    let headers = |key: &str| {
        let mut headers = json!({"Authorization": format!("Bearer {key}")});
        if let Some(namespace) = namespace {
            headers["treering-namespace"] = namespace.into();
        }
        headers
    };
    let form = match agent {
        Agent::ClaudeCode => json!({"mcpServers": {NAME: {
            "type": "http", "url": url, "headers": headers("${TREERING_TOKEN:-}"),
        }}}),
        Agent::GeminiCli => json!({"mcpServers": {NAME: {
            "httpUrl": url, "headers": headers("$TREERING_TOKEN"),
        }}}),
        Agent::Vscode => json!({
            "inputs": [{
                "type": "promptString", "id": "treering-key", "description": "Key of Treering",
                "password": true,
            }],
            "servers": {NAME: {
                "type": "http", "url": url, "headers": headers("${input:treering-key}"),
            }},
        }),
        Agent::Opencode => json!({"mcp": {NAME: {
            "type": "remote", "url": url, "headers": headers("{env:TREERING_TOKEN}"),
            "enabled": true,
        }}}),
        Agent::Codex => {
            let mut server = Table::new();
            server.insert("url", value(url));
            server.insert("bearer_token_env_var", value("TREERING_TOKEN"));
            if let Some(namespace) = namespace {
                let mut headers = InlineTable::new();
                headers.insert("treering-namespace", namespace.into());
                server.insert("http_headers", value(headers));
            }
            return format!("[mcp_servers.{NAME}]\n{server}");
        }
    };
    format!("{form:#}\n")
}

#[cfg(test)]
mod tests {
    use toml_edit::DocumentMut;

    use super::*;

    // The configuration must be valid for the agent. It must not contain a key, since others could
    // read it.
    #[test]
    fn http_config_refers_to_the_key_by_environment() {
        let url = "https://agents.example/mcp";
        for agent in [
            Agent::ClaudeCode,
            Agent::GeminiCli,
            Agent::Vscode,
            Agent::Opencode,
        ] {
            let form = by_http(agent, url, Some("team \"a\""));
            let read: Value = serde_json::from_str(&form).unwrap();
            let servers = ["mcpServers", "servers", "mcp"];
            let server = servers.iter().find_map(|within| read.get(within));
            let server = &server.unwrap()[NAME];
            let address = server.get("url").or_else(|| server.get("httpUrl"));
            assert_eq!(address.unwrap(), url, "{form}");
            assert_eq!(server["headers"]["treering-namespace"], "team \"a\"");
            let key = server["headers"]["Authorization"].as_str().unwrap();
            assert!(
                key.starts_with("Bearer ") && key.contains(['$', '{']),
                "{key}"
            );
        }
        let form = by_http(Agent::Codex, url, Some("team-a"));
        let read: DocumentMut = form.parse().unwrap();
        let server = &read["mcp_servers"][NAME];
        assert_eq!(server["url"].as_str(), Some(url));
        assert_eq!(
            server["bearer_token_env_var"].as_str(),
            Some("TREERING_TOKEN")
        );
        assert_eq!(
            server["http_headers"]["treering-namespace"].as_str(),
            Some("team-a")
        );
    }
}
