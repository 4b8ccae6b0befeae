//! Recognises commands that a user ran at the agent's prompt.
//!
//! Agents record such a command (`!ls`) in the user's role, with its output. It is not a request of
//! the user. A window shows it with the tags that Claude Code uses for such commands.

use serde_json::{Map, Value};
use treering_context::heuristics::LocalCommand;

/// Text before the command in an imported pi session (`treering_import::pi`).
const RAN: &str = "The user ran: ";
/// Texts that Gemini CLI writes before the command and before its output.
const GEMINI: [&str; 2] = [
    "I ran the following shell command:\n",
    "\n\nThis produced the following result:\n",
];
/// Fields of pi's record of such a command. The first [`NEEDED`] are required.
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
    if let Some((command, output)) = of_gemini(text) {
        return Some(told(command, output, &Value::Null));
    }
    let object = Value::Object(object(text)?);
    let text = |field: &str| object[field].as_str();
    Some(told(text("command")?, text("output")?, &object))
}

/// Returns the command of an imported pi session from its two texts and pi's record.
pub(super) fn imported(ran: &str, output: &str, record: &Value) -> LocalCommand {
    told(ran.strip_prefix(RAN).unwrap_or(ran), output, record)
}

fn told(command: &str, output: &str, record: &Value) -> LocalCommand {
    let mut text =
        format!("<bash-input>{command}</bash-input>\n<bash-stdout>{output}</bash-stdout>");
    let status = status(record);
    if !status.is_empty() {
        text.push_str(&format!("\n<bash-status>{status}</bash-status>"));
    }
    LocalCommand {
        text,
        is_hidden: record["excludeFromContext"] == true,
    }
}

/// Returns the command and output in Gemini CLI's text about a command.
fn of_gemini(text: &str) -> Option<(&str, &str)> {
    let (command, output) = text.strip_prefix(GEMINI[0])?.split_once(GEMINI[1])?;
    Some((unfenced(command), unfenced(output)))
}

/// Returns a text without the Markdown fence around it.
fn unfenced(text: &str) -> &str {
    let fenced = || {
        let (_, inner) = text.strip_prefix("```")?.split_once('\n')?;
        Some(inner.trim_end().strip_suffix("```")?.trim_end())
    };
    fenced().unwrap_or(text)
}

fn object(text: &str) -> Option<Map<String, Value>> {
    // Cheap test first: most messages are not commands, and some are long.
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

/// Returns how the command ended, if that is worth stating.
fn status(object: &Value) -> String {
    let mut told = Vec::new();
    if object["cancelled"] == true {
        told.push("cancelled".to_owned());
    }
    match object["exitCode"].as_i64() {
        Some(0) | None => {}
        Some(code) => told.push(format!("exit code {code}")),
    }
    if object["truncated"] == true {
        told.push(match object["fullOutputPath"].as_str() {
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

    // Gemini CLI records a command as a sentence of the user, which must not be mistaken for the
    // task.
    #[test]
    fn commands_of_gemini_cli_are_recognised() {
        let text = "I ran the following shell command:\n```sh\nls -l\n```\n\nThis produced the \
                    following result:\n```\na.rs\n```";
        let told = "<bash-input>ls -l</bash-input>\n<bash-stdout>a.rs</bash-stdout>";
        assert_eq!(read(text).unwrap().text, told);
        assert_eq!(read("I ran the following shell command:\nls. Why?"), None);
    }

    // The user's last message is never cut. If a long listing that the user ran at the prompt
    // counted as that message, no small request could be built. Text that the user writes or pastes
    // remains the user's.
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
