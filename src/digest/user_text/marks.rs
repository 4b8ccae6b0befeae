//! What a source's own form of a message says about who wrote it.

use serde_json::Value;

use super::{harness::is_harness_alone, local_command::read};
use crate::is_one_of;
use treering_context::heuristics::LocalCommand;
use treering_domain::{ContentPart, MessageAppended, RawEncoding, RawMessage};

/// Names by which harnesses mark what they put into the user's place themselves: the text
/// of a skill, a notice, what a hook said.
const MARKS: &str = "meta isMeta is_meta synthetic isSynthetic is_synthetic";

/// A command that the user ran at the prompt, if a message is one.
pub(crate) fn local_command(message: &MessageAppended) -> Option<LocalCommand> {
    match &message.parts[..] {
        [ContentPart::Text(text)] => read(text),
        _ => None,
    }
}

/// Whether a message in the user's place is nobody's word: marked as its harness's, or all
/// of it told by its harness's tags.
pub(crate) fn is_by_harness(message: &MessageAppended) -> bool {
    message.raw.as_ref().is_some_and(is_marked) || is_tagged(message)
}

fn is_tagged(message: &MessageAppended) -> bool {
    let is_tagged = |part: &ContentPart| match part {
        ContentPart::Text(text) => is_harness_alone(text),
        _ => false,
    };
    !message.parts.is_empty() && message.parts.iter().all(is_tagged)
}

fn is_marked(raw: &RawMessage) -> bool {
    // Most forms name no mark, and some are megabytes.
    let Ok(text) = std::str::from_utf8(&raw.data) else {
        return false;
    };
    if !MARKS.split(' ').any(|mark| text.contains(mark)) {
        return false;
    }
    let Ok(form) = serde_json::from_str::<Value>(text) else {
        return false;
    };
    match raw.encoding {
        RawEncoding::Whole | RawEncoding::Rest => marks(&form),
        RawEncoding::JsonPatch => form
            .as_array()
            .is_some_and(|patch| patch.iter().any(adds_mark)),
    }
}

/// In the message itself, or in what its format keeps beside (`x`).
fn marks(object: &Value) -> bool {
    let is_true = |of: &Value| MARKS.split(' ').any(|mark| of[mark] == Value::Bool(true));
    is_true(object) || is_true(&object["x"])
}

/// Whether an operation of a JSON Patch adds a mark, or an object that has one.
fn adds_mark(operation: &Value) -> bool {
    let path = operation["path"].as_str().unwrap_or_default();
    let value = &operation["value"];
    let place = path.strip_prefix("/x").unwrap_or(path);
    match place.strip_prefix('/') {
        Some(name) => is_one_of(MARKS, name) && *value == Value::Bool(true),
        None => marks(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use treering_domain::Role;

    fn raw(encoding: RawEncoding, form: &str) -> MessageAppended {
        let mut message = MessageAppended::text(Role::User, "Base directory for this skill: /x");
        message.raw = Some(RawMessage {
            origin: "openai-chat".to_owned(),
            provider: String::new(),
            model: String::new(),
            encoding,
            data: bytes::Bytes::copy_from_slice(form.as_bytes()),
        });
        message
    }

    // A skill's text that a harness put in counted as the last that the user said, and his
    // task went. Only a mark of the message's own says so, not one in what it tells of.
    #[test]
    fn marked_messages_are_the_harnesses() {
        use RawEncoding::{JsonPatch, Whole};
        for (encoding, form) in [
            (JsonPatch, r#"[{"op":"add","path":"/x/meta","value":true}]"#),
            (
                JsonPatch,
                r#"[{"op":"add","path":"/x","value":{"meta":true,"i":1}}]"#,
            ),
            (JsonPatch, r#"[{"op":"add","path":"/isMeta","value":true}]"#),
            (Whole, r#"{"type":"user","isMeta":true,"message":{}}"#),
            (Whole, r#"{"role":"user","content":"x","x":{"meta":true}}"#),
        ] {
            assert!(is_by_harness(&raw(encoding, form)), "{form}");
        }
        for (encoding, form) in [
            (
                JsonPatch,
                r#"[{"op":"add","path":"/x/meta","value":false}]"#,
            ),
            (
                JsonPatch,
                r#"[{"op":"add","path":"/x/a/meta","value":true}]"#,
            ),
            (
                JsonPatch,
                r#"[{"op":"add","path":"/meta","value":{"a":1}}]"#,
            ),
            (Whole, r#"{"role":"user","content":"{\"meta\":true}"}"#),
            (Whole, "meta"),
        ] {
            assert!(!is_by_harness(&raw(encoding, form)), "{form}");
        }
        assert!(!is_by_harness(&MessageAppended::text(Role::User, "meta")));
    }
}
