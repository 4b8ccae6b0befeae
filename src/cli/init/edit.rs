//! Changes a configuration file and preserves everything else in it: order, comments and
//! formatting.

use std::path::Path;

use jsonc_parser::{
    ParseOptions,
    cst::{CstArray, CstInputValue, CstObject, CstRootNode},
};
use serde_json::Value;
use toml_edit::{Array, DocumentMut, Item, Table, value};

use super::options::{Options, quoted, unquoted};

/// Name of the program.
const PROGRAM: &str = "treering";

/// A change to a file.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// JSON, perhaps with comments: a member of a top-level object.
    Member {
        /// Name of the object.
        within: &'static str,
        /// Name of the member.
        name: &'static str,
        /// Value of the member.
        value: Value,
    },
    /// JSON: a hook of Claude Code.
    Hook {
        /// Event on which it runs.
        event: &'static str,
        /// Program that it runs.
        program: String,
        /// Options after the mark, for a new hook.
        options: Options,
        /// Options given now, which replace those of an existing hook. None to remove the existing
        /// options.
        given: Option<Options>,
        /// Arguments by which the hook is recognised, whatever else it has.
        mark: &'static str,
        /// Timeout in seconds.
        seconds: u32,
    },
    /// TOML: a table with a command.
    Table {
        /// Name of the outer table.
        within: &'static str,
        /// Name of the table.
        name: &'static str,
        /// `command`.
        program: String,
        /// `args`.
        arguments: Vec<String>,
    },
}

impl Change {
    /// Returns the changed text. An empty input text means a new file.
    ///
    /// # Errors
    /// Why the change cannot be applied.
    pub(crate) fn applied(&self, text: &str) -> Result<String, String> {
        match self {
            Self::Member {
                within,
                name,
                value,
            } => in_json(text, |root| {
                let object = member_object(root, within)?;
                set_server(&object, name, value);
                Ok(())
            }),
            Self::Hook { .. } => in_json(text, |root| self.hook(root)),
            Self::Table {
                within,
                name,
                program,
                arguments,
            } => in_toml(text, within, name, program, arguments),
        }
    }
}

impl Change {
    /// Returns the program's current arguments. `None` if there is no entry, or one for another
    /// program.
    pub(crate) fn arguments_there(&self, text: &str) -> Option<Vec<String>> {
        let (command, words) = match self {
            Self::Member { within, name, .. } => {
                let root = CstRootNode::parse(text, &AS_AGENTS_READ).ok()?;
                let server = root.object_value()?.object_value(within)?.get(name)?;
                let server = server.value()?.to_serde_value()?;
                match (&server["command"], texts(&server["args"])) {
                    (Value::String(command), Some(words)) => (command.clone(), words),
                    (command, _) => {
                        let mut words = texts(command)?;
                        if words.is_empty() {
                            return None;
                        }
                        (words.remove(0), words)
                    }
                }
            }
            Self::Table { within, name, .. } => {
                let document: DocumentMut = text.parse().ok()?;
                let server = document.get(within)?.get(name)?;
                let words = server.get("args")?.as_array()?.iter();
                let words = words.map(|word| word.as_str().map(str::to_owned));
                let command = server.get("command")?.as_str()?.to_owned();
                (command, words.collect::<Option<_>>()?)
            }
            Self::Hook { .. } => return None,
        };
        Path::new(&command).ends_with(PROGRAM).then_some(words)
    }

    /// Adds the hook, or changes an existing one. In the file, `hooks.EVENT` is a list of groups,
    /// and each group has a list `hooks` of commands.
    fn hook(&self, root: &CstObject) -> Result<(), String> {
        let Self::Hook {
            event,
            program,
            options,
            given,
            mark,
            seconds,
        } = self
        else {
            return Ok(());
        };
        let command = |options: Options| {
            let words = options.words();
            let words = words.iter().map(|word| quoted(word));
            let all: Vec<_> = [quoted(program), (*mark).to_owned()]
                .into_iter()
                .chain(words)
                .collect();
            all.join(" ")
        };
        let hooks = member_object(root, "hooks")?;
        let groups: CstArray = hooks
            .array_value_or_create(event)
            .ok_or_else(|| format!("its `hooks.{event}` is not a list"))?;
        let commands = groups
            .elements()
            .into_iter()
            .filter_map(|group| group.as_object()?.array_value("hooks"))
            .flat_map(|hooks| hooks.elements())
            .filter_map(|hook| hook.as_object());
        for hook in commands {
            let has = hook
                .get("command")
                .and_then(|command| command.value()?.to_serde_value());
            let Some((_, behind)) = has
                .as_ref()
                .and_then(Value::as_str)
                .and_then(|has| has.split_once(mark))
            else {
                continue;
            };
            let changed = match given {
                None => command(options.clone()),
                Some(given) => match unquoted(behind) {
                    Some(words) => command(Options::of(&words).with(given).0),
                    // The user has extended the command, so do not touch it.
                    None => return Ok(()),
                },
            };
            set(&hook, "command", &Value::from(changed));
            return Ok(());
        }
        groups.ensure_multiline();
        groups.append(input(&serde_json::json!({
            "hooks": [{
                "type": "command", "command": command(options.clone()), "timeout": seconds
            }]
        })));
        Ok(())
    }
}

fn texts(list: &Value) -> Option<Vec<String>> {
    let texts = list.as_array()?.iter();
    texts.map(|text| text.as_str().map(str::to_owned)).collect()
}

/// JSON as several agents accept it: with comments and trailing commas, but no other extensions.
const AS_AGENTS_READ: ParseOptions = ParseOptions {
    allow_comments: true,
    allow_trailing_commas: true,
    allow_loose_object_property_names: false,
    allow_missing_commas: false,
    allow_single_quoted_strings: false,
    allow_hexadecimal_numbers: false,
    allow_unary_plus_numbers: false,
    allow_bare_decimal_point_numbers: false,
    allow_non_finite_numbers: false,
    allow_extended_string_escapes: false,
};

/// Changes JSON text.
fn in_json(
    text: &str,
    change: impl FnOnce(&CstObject) -> Result<(), String>,
) -> Result<String, String> {
    let is_new = text.trim().is_empty();
    let text = if is_new { "{}\n" } else { text };
    let root = CstRootNode::parse(text, &AS_AGENTS_READ)
        .map_err(|error| format!("it is not JSON: {error}"))?;
    let object = root.object_value().ok_or("it is not a JSON object")?;
    change(&object)?;
    let changed = root.to_string();
    // The result must be valid for other readers, and for the next run.
    CstRootNode::parse(&changed, &AS_AGENTS_READ)
        .map_err(|error| format!("it cannot be changed: {error}"))?;
    Ok(changed)
}

fn member_object(object: &CstObject, name: &str) -> Result<CstObject, String> {
    object
        .object_value_or_create(name)
        .ok_or_else(|| format!("its `{name}` is not an object"))
}

/// Members of the entry of a server that is reached by its address. An entry that starts a server
/// has none of them.
const OF_ADDRESSES: [&str; 3] = ["url", "httpUrl", "headers"];

/// Sets Treering's members of a server entry, and keeps those that the user added, such as
/// environment and timeout.
fn set_server(object: &CstObject, name: &str, value: &Value) {
    match (object.object_value(name), value) {
        (Some(server), Value::Object(members))
            if !OF_ADDRESSES.iter().any(|name| server.get(name).is_some()) =>
        {
            for (name, value) in members {
                set(&server, name, value);
            }
        }
        _ => set(object, name, value),
    }
}

/// Sets a member, unless it already has this value.
fn set(object: &CstObject, name: &str, value: &Value) {
    match object.get(name) {
        Some(member)
            if member.value().and_then(|has| has.to_serde_value()).as_ref() == Some(value) => {}
        Some(member) => member.set_value(input(value)),
        None => {
            object.append(name, input(value));
        }
    }
}

fn input(value: &Value) -> CstInputValue {
    match value {
        Value::Null => CstInputValue::Null,
        Value::Bool(is) => CstInputValue::Bool(*is),
        Value::Number(number) => CstInputValue::Number(number.to_string()),
        Value::String(text) => CstInputValue::String(text.clone()),
        Value::Array(items) => CstInputValue::Array(items.iter().map(input).collect()),
        Value::Object(members) => CstInputValue::Object(
            members
                .iter()
                .map(|(name, value)| (name.clone(), input(value)))
                .collect(),
        ),
    }
}

fn in_toml(
    text: &str,
    within: &str,
    name: &str,
    program: &str,
    arguments: &[String],
) -> Result<String, String> {
    let mut document: DocumentMut = text
        .parse()
        .map_err(|error| format!("it is not TOML: {error}"))?;
    let servers = document.entry(within).or_insert_with(|| {
        let mut table = Table::new();
        // The header `[mcp_servers.treering]` is enough.
        table.set_implicit(true);
        Item::Table(table)
    });
    let servers = servers
        .as_table_like_mut()
        .ok_or_else(|| format!("its `{within}` is not a table"))?;
    if servers.get(name).is_none() {
        servers.insert(name, Item::Table(Table::new()));
    }
    let server = servers
        .get_mut(name)
        .and_then(Item::as_table_like_mut)
        .ok_or_else(|| format!("its `{within}.{name}` is not a table"))?;
    let is = |item: Option<&Item>, wanted: &[String]| {
        let has = item.and_then(Item::as_array);
        has.is_some_and(|has| {
            has.iter()
                .map(|one| one.as_str())
                .eq(wanted.iter().map(|one| Some(one.as_str())))
        })
    };
    if server.get("command").and_then(Item::as_str) != Some(program) {
        server.insert("command", value(program));
    }
    if !is(server.get("args"), arguments) {
        server.insert("args", value(arguments.iter().collect::<Array>()));
    }
    Ok(document.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn member() -> Change {
        Change::Member {
            within: "mcpServers",
            name: "treering",
            value: json!({"command": "treering", "args": ["mcp"]}),
        }
    }

    fn hook(program: &str, more: &[&str]) -> Change {
        let more = Options::of(&more.iter().map(|&word| word.into()).collect::<Vec<_>>());
        Change::Hook {
            event: "Stop",
            program: program.into(),
            options: more.clone(),
            given: Some(more),
            mark: "import --hook",
            seconds: 60,
        }
    }

    // These files have years of settings with comments. Every byte that is not part of Treering's
    // entry must stay unchanged.
    #[test]
    fn edit_keeps_unrelated_text_and_comments() {
        let old = "{\n    // zeta first\n    \"zeta\": 1.0,\n    \"mcpServers\": {\n        \
                   \"other\": { \"command\": \"x\" }, // keep\n    },\n    \"alpha\": [ 1,2 ]\n}\n";
        let new = member().applied(old).unwrap();
        for kept in [
            "// zeta first",
            "\"zeta\": 1.0",
            "// keep",
            "\"alpha\": [ 1,2 ]",
        ] {
            assert!(new.contains(kept), "{kept}: {new}");
        }
        assert!(new.find("zeta").unwrap() < new.find("mcpServers").unwrap());
        assert!(new.find("other").unwrap() < new.find("treering").unwrap());
        assert_eq!(member().applied(&new).unwrap(), new);
        let lines = old
            .lines()
            .filter(|line| !new.lines().any(|other| other == *line));
        assert_eq!(lines.count(), 0, "{new}");
    }

    #[test]
    fn edit_of_an_empty_file_writes_json() {
        for empty in ["", "\n", "{}"] {
            let new = member().applied(empty).unwrap();
            let read: Value = serde_json::from_str(&new).unwrap();
            assert_eq!(read["mcpServers"]["treering"]["args"], json!(["mcp"]));
        }
        let read: Value =
            serde_json::from_str(&hook("treering", &[]).applied("").unwrap()).unwrap();
        let of_hook = &read["hooks"]["Stop"][0]["hooks"][0];
        assert_eq!(of_hook["command"], "treering import --hook");
        assert_eq!(of_hook["type"], "command");
    }

    // A second run must not add another hook, which would import the same session again.
    #[test]
    fn repeated_edit_adds_one_hook() {
        let old =
            r#"{"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "say done"}]}]}}"#;
        let first = hook("treering", &[]).applied(old).unwrap();
        assert_eq!(hook("treering", &[]).applied(&first).unwrap(), first);
        let moved = hook("/opt/treering", &["--data", "x"])
            .applied(&first)
            .unwrap();
        let read: Value = serde_json::from_str(&moved).unwrap();
        let groups = read["hooks"]["Stop"].as_array().unwrap();
        assert_eq!(groups.len(), 2);
        assert_eq!(groups[0]["hooks"][0]["command"], "say done");
        assert_eq!(
            groups[1]["hooks"][0]["command"],
            "/opt/treering import --hook --data x"
        );
        // A second run with fewer options keeps the existing ones. A command that is more than
        // plain words is not touched.
        let again = hook("/opt/treering", &["--namespace", "a b"]);
        let again = again.applied(&moved).unwrap();
        assert!(
            again.contains("--hook --data x --namespace 'a b'"),
            "{again}"
        );
        let own = again.replace("--data x", "--data $HOME/x");
        assert_eq!(hook("treering", &[]).applied(&own).unwrap(), own);
    }

    // A run must keep the environment and the timeout that a user has added to a server entry, and
    // must find its existing options.
    #[test]
    fn edit_keeps_other_fields_of_the_server_entry() {
        let old = r#"{"mcpServers": {"treering": {"command": "/opt/treering",
            "args": ["mcp", "--data", "/a"], "env": {"A": "b"}, "timeout": 5}}}"#;
        assert_eq!(
            member().arguments_there(old).unwrap(),
            ["mcp", "--data", "/a"]
        );
        let new: Value = serde_json::from_str(&member().applied(old).unwrap()).unwrap();
        let server = &new["mcpServers"]["treering"];
        assert_eq!(server["env"]["A"], "b");
        assert_eq!(
            (&server["timeout"], &server["command"]),
            (&json!(5), &json!("treering"))
        );
        let by_url = r#"{"mcpServers": {"treering": {"url": "http://a/mcp", "headers": {}}}}"#;
        assert_eq!(member().arguments_there(by_url), None);
        let new: Value = serde_json::from_str(&member().applied(by_url).unwrap()).unwrap();
        assert_eq!(new["mcpServers"]["treering"].get("url"), None);
        let other = old.replace("/opt/treering", "docker");
        assert_eq!(member().arguments_there(&other), None);
        let one_list = r#"{"mcpServers": {"treering": {"command": ["treering", "mcp", "--x"]}}}"#;
        assert_eq!(member().arguments_there(one_list).unwrap(), ["mcp", "--x"]);
        let toml = table("treering").applied("").unwrap();
        assert_eq!(
            table("x").arguments_there(&toml).unwrap(),
            ["mcp", "--writable"]
        );
    }

    #[test]
    fn edit_refuses_invalid_configuration() {
        for wrong in [
            "[]",
            "{\"mcpServers\": []}",
            "{\"a\": 1 \"b\": 2}",
            "{'a': 1}",
            "{",
            "1",
        ] {
            assert!(member().applied(wrong).is_err(), "{wrong}");
        }
        for wrong in ["{\"hooks\": 1}", "{\"hooks\": {\"Stop\": {}}}"] {
            assert!(hook("x", &[]).applied(wrong).is_err(), "{wrong}");
        }
        for wrong in ["mcp_servers = 1", "a = ", "[mcp_servers]\ntreering = 2"] {
            assert!(table("treering").applied(wrong).is_err(), "{wrong}");
        }
    }

    fn table(program: &str) -> Change {
        Change::Table {
            within: "mcp_servers",
            name: "treering",
            program: program.into(),
            arguments: vec!["mcp".into(), "--writable".into()],
        }
    }

    #[test]
    fn toml_tables_are_added_and_changed_in_place() {
        let old = "model = \"o3\" # mine\n\n[mcp_servers.other]\ncommand = \"x\"\n\n[tui]\ntheme = \"dark\"\n";
        let new = table("treering").applied(old).unwrap();
        for line in old.lines() {
            assert!(new.contains(line), "{line}: {new}");
        }
        assert!(
            new.contains(
                "[mcp_servers.treering]\ncommand = \"treering\"\nargs = [\"mcp\", \"--writable\"]\n"
            ),
            "{new}"
        );
        assert_eq!(table("treering").applied(&new).unwrap(), new);
        let with_env = new.replace(
            "--writable\"]\n",
            "--writable\"]\nenv = { A = \"b\" } # mine\n",
        );
        let moved = table("/opt/treering").applied(&with_env).unwrap();
        assert!(moved.contains("env = { A = \"b\" } # mine"), "{moved}");
        assert!(moved.contains("command = \"/opt/treering\""), "{moved}");
        assert_eq!(
            table("treering").applied("").unwrap(),
            "[mcp_servers.treering]\ncommand = \"treering\"\nargs = [\"mcp\", \"--writable\"]\n"
        );
    }
}
