//! Lines that are not messages but that the model saw: attachments to a prompt, and commands that
//! were run in it.
//!
//! Only lines with content of their own become messages. Notices of the tool about itself
//! (reminders to use a list, modes, styles) are kept unchanged.

use serde_json::Value;

use super::{blocks, line::SessionLine};
use treering_domain::ContentPart;

/// Returns what the model saw of this line; `None` for nothing, or an unknown kind.
pub(super) fn parts(line: &SessionLine) -> Option<Vec<ContentPart>> {
    if !line.is_readable() || line.is_step() {
        return None;
    }
    let said = line.said();
    match line.text_of("type") {
        "system" if line.text_of("subtype") == "local_command" => {
            text(&said["content"]).map(|text| vec![ContentPart::Text(text.to_owned())])
        }
        "attachment" => attachment(&said["attachment"]),
        _ => None,
    }
}

fn attachment(attached: &Value) -> Option<Vec<ContentPart>> {
    let reminder = |text: String| {
        let text = format!("<system-reminder>\n{text}\n</system-reminder>");
        Some(vec![ContentPart::Text(text)])
    };
    let content = || content_of(&attached["content"]);
    match attached["type"].as_str()? {
        // Typed by the user while the model worked.
        "queued_command" => {
            let parts = blocks::read(attached.get("prompt")?, "");
            (!parts.is_empty()).then_some(parts)
        }
        "file" | "already_read_file" | "compact_file_reference" => {
            let name = text(&attached["filename"])?;
            reminder(format!("The file {name}:\n{}", content()?))
        }
        "directory" => {
            let path = text(&attached["path"])?;
            reminder(format!("The folder {path}:\n{}", content()?))
        }
        "edited_text_file" => {
            let name = text(&attached["filename"])?;
            let snippet = text(&attached["snippet"])?;
            reminder(format!(
                "{name} was changed by somebody else. What is there now:\n{snippet}"
            ))
        }
        "nested_memory" => {
            let path = text(&attached["path"])?;
            reminder(format!("Contents of {path}:\n\n{}", content()?))
        }
        "selected_lines_in_ide" => {
            let name = text(&attached["filename"])?;
            reminder(format!("Selected in {name}:\n{}", content()?))
        }
        "hook_additional_context" => reminder(content()?),
        _ => None,
    }
}

fn text(value: &Value) -> Option<&str> {
    value.as_str().filter(|text| !text.is_empty())
}

/// Returns a text, the texts of a list, or the text inside a tool's output.
fn content_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => (!text.is_empty()).then(|| text.clone()),
        Value::Array(items) => {
            let texts: Vec<String> = items.iter().filter_map(content_of).collect();
            (!texts.is_empty()).then(|| texts.join("\n"))
        }
        Value::Object(object) => ["text", "content", "file"]
            .iter()
            .find_map(|field| content_of(object.get(*field)?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::json;

    use super::*;

    fn shown(line: &Value) -> Option<String> {
        let line = SessionLine::read(&Bytes::from(line.to_string())).remove(0);
        let parts = parts(&line)?;
        Some(parts.iter().filter_map(ContentPart::text).collect())
    }

    // Text that a user typed while the model worked, and attached files, are in no message line.
    // Without them, the model's answer has no question. Notices of the tool about itself are not
    // messages.
    #[test]
    fn attachments_become_messages_and_notices_do_not() {
        let attached = |attachment: Value| json!({"type": "attachment", "attachment": attachment});
        let typed = attached(json!({"type": "queued_command", "prompt": "stop at 3"}));
        assert_eq!(shown(&typed).as_deref(), Some("stop at 3"));
        let file = attached(json!({"type": "file", "filename": "/a.rs",
            "content": {"type": "text", "file": {"filePath": "/a.rs", "content": "fn a() {}"}}}));
        let text = shown(&file).unwrap();
        assert!(
            text.contains("/a.rs") && text.contains("fn a() {}"),
            "{text}"
        );
        let command =
            json!({"type": "system", "subtype": "local_command", "content": "<x>/cost</x>"});
        assert_eq!(shown(&command).as_deref(), Some("<x>/cost</x>"));
        for other in [
            attached(json!({"type": "todo_reminder", "content": []})),
            attached(json!({"type": "file"})),
            attached(json!(null)),
            json!({"type": "progress", "data": {}}),
            json!({"type": "summary", "summary": "s"}),
        ] {
            assert_eq!(shown(&other), None, "{other}");
        }
    }
}
