//! Changes of a configuration file that leave the rest of it as it is: its order, its comments,
//! its look.

use jsonc_parser::{
    ParseOptions,
    cst::{CstArray, CstInputValue, CstObject, CstRootNode},
};
use serde_json::Value;
use toml_edit::{Array, DocumentMut, Item, Table, value};

/// What is to be in a file.
#[derive(Clone, Debug)]
pub enum Change {
    /// JSON, with comments perhaps: a member of an object that the file has at its top.
    Member {
        /// The object.
        within: &'static str,
        /// The member.
        name: &'static str,
        /// Its value.
        value: Value,
    },
    /// JSON: a hook of Claude Code.
    Hook {
        /// When it runs.
        event: &'static str,
        /// What it runs.
        command: String,
        /// Which command is this one, whatever else is in it.
        mark: &'static str,
        /// How long it may run.
        seconds: u32,
    },
    /// TOML: a table with a command.
    Table {
        /// The table that it is in.
        within: &'static str,
        /// Its name.
        name: &'static str,
        /// `command`.
        program: String,
        /// `args`.
        arguments: Vec<String>,
    },
}

impl Change {
    /// The text with the change; empty texts are new files.
    ///
    /// # Errors
    /// Why that cannot be done.
    pub fn applied(&self, text: &str) -> Result<String, String> {
        match self {
            Self::Member {
                within,
                name,
                value,
            } => in_json(text, |root| {
                let object = member_object(root, within)?;
                set(&object, name, value);
                Ok(())
            }),
            Self::Hook {
                event,
                command,
                mark,
                seconds,
            } => in_json(text, |root| hook(root, event, command, mark, *seconds)),
            Self::Table {
                within,
                name,
                program,
                arguments,
            } => in_toml(text, within, name, program, arguments),
        }
    }
}

/// Changes JSON text. Comments and commas behind the last member are what several agents allow;
/// nothing else is that is no JSON.
fn in_json(
    text: &str,
    change: impl FnOnce(&CstObject) -> Result<(), String>,
) -> Result<String, String> {
    let options = ParseOptions {
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
    let is_new = text.trim().is_empty();
    let text = if is_new { "{}\n" } else { text };
    let root =
        CstRootNode::parse(text, &options).map_err(|error| format!("it is no JSON: {error}"))?;
    let object = root.object_value().ok_or("it is no JSON object")?;
    change(&object)?;
    let changed = root.to_string();
    // What is written must be read by others, and by this the next time.
    CstRootNode::parse(&changed, &options)
        .map_err(|error| format!("it cannot be changed: {error}"))?;
    Ok(changed)
}

fn member_object(object: &CstObject, name: &str) -> Result<CstObject, String> {
    object
        .object_value_or_create(name)
        .ok_or_else(|| format!("its `{name}` is no object"))
}

/// Sets a member, unless it has this value.
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

/// `hooks.EVENT` has groups, each with a list `hooks` of commands.
fn hook(
    root: &CstObject,
    event: &str,
    command: &str,
    mark: &str,
    seconds: u32,
) -> Result<(), String> {
    let hooks = member_object(root, "hooks")?;
    let groups: CstArray = hooks
        .array_value_or_create(event)
        .ok_or_else(|| format!("its `hooks.{event}` is no list"))?;
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
        if has
            .as_ref()
            .and_then(Value::as_str)
            .is_some_and(|has| has.contains(mark))
        {
            set(&hook, "command", &Value::from(command));
            return Ok(());
        }
    }
    groups.ensure_multiline();
    groups.append(input(&serde_json::json!({
        "hooks": [{"type": "command", "command": command, "timeout": seconds}]
    })));
    Ok(())
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
        .map_err(|error| format!("it is no TOML: {error}"))?;
    let servers = document.entry(within).or_insert_with(|| {
        let mut table = Table::new();
        // `[mcp_servers.treering]` says it all.
        table.set_implicit(true);
        Item::Table(table)
    });
    let servers = servers
        .as_table_like_mut()
        .ok_or_else(|| format!("its `{within}` is no table"))?;
    if servers.get(name).is_none() {
        servers.insert(name, Item::Table(Table::new()));
    }
    let server = servers
        .get_mut(name)
        .and_then(Item::as_table_like_mut)
        .ok_or_else(|| format!("its `{within}.{name}` is no table"))?;
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

    fn hook(command: &str) -> Change {
        Change::Hook {
            event: "Stop",
            command: command.into(),
            mark: "import --hook",
            seconds: 60,
        }
    }

    // Years of settings are in these files, with remarks: each byte of them that is not ours has
    // to be there afterwards, in its place.
    #[test]
    fn all_else_of_a_file_stays_as_it_is() {
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
    fn a_new_file_is_plain_json() {
        for empty in ["", "\n", "{}"] {
            let new = member().applied(empty).unwrap();
            let read: Value = serde_json::from_str(&new).unwrap();
            assert_eq!(read["mcpServers"]["treering"]["args"], json!(["mcp"]));
        }
        let read: Value =
            serde_json::from_str(&hook("treering import --hook").applied("").unwrap()).unwrap();
        let of_hook = &read["hooks"]["Stop"][0]["hooks"][0];
        assert_eq!(of_hook["command"], "treering import --hook");
        assert_eq!(of_hook["type"], "command");
    }

    // Each time that it was run, one more hook imported the same session.
    #[test]
    fn a_hook_is_there_once() {
        let old =
            r#"{"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "say done"}]}]}}"#;
        let first = hook("treering import --hook").applied(old).unwrap();
        assert_eq!(
            hook("treering import --hook").applied(&first).unwrap(),
            first
        );
        let moved = hook("/opt/treering import --hook --data x")
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
    }

    #[test]
    fn what_is_not_understood_is_refused() {
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
            assert!(hook("x").applied(wrong).is_err(), "{wrong}");
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
    fn tables_are_added_and_changed_in_place() {
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
