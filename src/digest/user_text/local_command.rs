//! Commands that a user ran at the prompt of the agent.
//!
//! pi records such a command (`!ls`) in the user's role, as an object with its output. It is not a
//! request of the user. A window shows it with the tags that Claude Code uses for the same.

use serde_json::{Map, Value};
use treering_context::heuristics::LocalCommand;

/// Fields of such an object; the first ones are required.
const FIELDS: [&str; 9] = [
    "command",
    "output",
    "cancelled",
    "truncated",
    "exitCode",
    "fullOutputPath",
    "excludeFromContext",
    "role",
    "timestamp",
];
/// Number of required fields.
const NEEDED: usize = 4;

/// Reads the text of a message, if it is such a command.
pub(super) fn read(text: &str) -> Option<LocalCommand> {
    let object = object(text)?;
    let text = |field: &str| object[field].as_str();
    let mut told = format!(
        "<bash-input>{}</bash-input>\n<bash-stdout>{}</bash-stdout>",
        text("command")?,
        text("output")?
    );
    let status = status(&object);
    if !status.is_empty() {
        told.push_str(&format!("\n<bash-status>{status}</bash-status>"));
    }
    Some(LocalCommand {
        text: told,
        is_hidden: object.get("excludeFromContext") == Some(&Value::Bool(true)),
    })
}

fn object(text: &str) -> Option<Map<String, Value>> {
    // Cheap test: most messages are not commands, and some are long.
    if !text.starts_with('{') || !FIELDS[..NEEDED].iter().all(|field| text.contains(field)) {
        return None;
    }
    let Ok(Value::Object(object)) = serde_json::from_str(text) else {
        return None;
    };
    let is_whole = FIELDS[..NEEDED].iter().all(|field| match *field {
        "cancelled" | "truncated" => object.get(*field).is_some_and(Value::is_boolean),
        _ => object.get(*field).is_some_and(Value::is_string),
    });
    let is_no_more = object.keys().all(|key| FIELDS.contains(&key.as_str()));
    (is_whole && is_no_more).then_some(object)
}

/// How it ended, if that is worth a text.
fn status(object: &Map<String, Value>) -> String {
    let mut told = Vec::new();
    if object["cancelled"] == true {
        told.push("cancelled".to_owned());
    }
    match object.get("exitCode").and_then(Value::as_i64) {
        Some(0) | None => {}
        Some(code) => told.push(format!("exit code {code}")),
    }
    if object["truncated"] == true {
        told.push(match object.get("fullOutputPath").and_then(Value::as_str) {
            Some(path) => format!("output cut; all of it: {path}"),
            None => "output cut".to_owned(),
        });
    }
    told.join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    // A listing of 52,000 bytes that a user ran at the prompt counted as the last message, which is
    // never cut, so no request of 8,000 tokens could be built. Text that the user writes or pastes
    // stays the user's.
    #[test]
    fn shell_commands_of_the_user_are_recognised() {
        let told = |record: &Value| read(&record.to_string()).map(|command| command.text);
        let mut record = json!({"command": "ls", "output": "a.rs\n", "exitCode": 0,
            "cancelled": false, "truncated": false, "timestamp": 1});
        let ls = "<bash-input>ls</bash-input>\n<bash-stdout>a.rs\n</bash-stdout>";
        assert_eq!(told(&record).as_deref(), Some(ls));
        record["exitCode"] = json!(2);
        record["truncated"] = json!(true);
        record["fullOutputPath"] = json!("/tmp/a");
        let status = "exit code 2, output cut; all of it: /tmp/a";
        let ended = format!("{ls}\n<bash-status>{status}</bash-status>");
        assert_eq!(told(&record), Some(ended));
        assert!(!read(&record.to_string()).unwrap().is_hidden);
        record["excludeFromContext"] = json!(true);
        assert!(read(&record.to_string()).unwrap().is_hidden);
        record["note"] = json!("what is this?");
        for other in [
            record.clone(),
            json!({"command": "ls", "output": "a.rs"}),
            json!([record]),
            json!("{command output cancelled truncated"),
        ] {
            assert_eq!(told(&other), None, "{other}");
        }
        assert_eq!(read("{command output cancelled truncated"), None);
    }
}
