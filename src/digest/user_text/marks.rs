//! Reads marks of authorship in the original form of a message.

use serde_json::Value;

use super::{
    harness::is_harness_alone,
    local_command::{self, read},
};
use treering_context::heuristics::LocalCommand;
use treering_domain::{ContentPart, MessageAppended, RawEncoding, RawMessage};

/// Fields with which harnesses mark their own messages in the user's role: the text of a skill, a
/// notice, the output of a hook.
const MARKS: [&str; 6] = [
    "meta",
    "isMeta",
    "is_meta",
    "synthetic",
    "isSynthetic",
    "is_synthetic",
];

/// The source name of imported pi sessions.
const PI: &str = "pi";
/// Entry types and roles of pi for texts that pi or an extension wrote.
const PI_KINDS: [&str; 6] = [
    "custom_message",
    "branch_summary",
    "custom",
    "hookMessage",
    "branchSummary",
    "compactionSummary",
];
/// pi's role for a command that the user ran.
const PI_COMMAND: &str = "bashExecution";

/// Returns the command that the user ran at the prompt, if the message records one.
pub(crate) fn local_command(message: &MessageAppended) -> Option<LocalCommand> {
    match &message.parts[..] {
        [ContentPart::Text(text)] => read(text),
        [ContentPart::Text(ran), ContentPart::Text(output)] => {
            let record = of_pi(message.raw.as_ref()?, &[PI_COMMAND])?;
            let ran_here = &record["message"];
            (ran_here["role"] == PI_COMMAND).then(|| local_command::imported(ran, output, ran_here))
        }
        _ => None,
    }
}

/// Returns the record of a message from a pi session, if it contains one of these words.
fn of_pi(raw: &RawMessage, words: &[&str]) -> Option<Value> {
    // Cheap test first: most originals have none of the words, and some have megabytes.
    let text = std::str::from_utf8(&raw.data).ok()?;
    if raw.origin != PI || !words.iter().any(|word| text.contains(word)) {
        return None;
    }
    let mut form: Value = serde_json::from_str(text).ok()?;
    match raw.encoding {
        RawEncoding::Whole | RawEncoding::Rest => Some(form),
        // The first operation adds the record, without the texts that the message already has.
        RawEncoding::JsonPatch => Some(form.get_mut(0)?.get_mut("value")?.take()),
    }
}

/// Whether pi or one of its extensions wrote the message.
fn is_by_pi(raw: &RawMessage) -> bool {
    of_pi(raw, &PI_KINDS).is_some_and(|record| {
        let kinds = [&record["type"], &record["message"]["role"]];
        kinds
            .iter()
            .filter_map(|kind| kind.as_str())
            .any(|kind| PI_KINDS.contains(&kind))
    })
}

/// Whether a message in the user's role is from the harness: marked as such, or with only tagged
/// texts.
pub(crate) fn is_by_harness(message: &MessageAppended) -> bool {
    let is_marked = |raw: &RawMessage| is_marked(raw) || is_by_pi(raw);
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
    // Cheap test first: most originals have no mark, and some have megabytes.
    let Ok(text) = std::str::from_utf8(&raw.data) else {
        return false;
    };
    if !MARKS.iter().any(|mark| text.contains(mark)) {
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

/// Whether there is a mark in the message itself, in the extra data of its format (`x`), or in all
/// its texts (opencode).
fn marks(object: &Value) -> bool {
    let is_true = |of: &Value| MARKS.iter().any(|mark| of[*mark] == Value::Bool(true));
    let parts = object["parts"].as_array().into_iter().flatten();
    let mut texts = parts.filter(|part| part["type"] == "text").peekable();
    is_true(object) || is_true(&object["x"]) || texts.peek().is_some() && texts.all(is_true)
}

/// Whether a JSON Patch operation adds a mark, or an object with one.
fn adds_mark(operation: &Value) -> bool {
    let path = operation["path"].as_str().unwrap_or_default();
    let value = &operation["value"];
    // Most importers put the original under `/record`.
    let place = path.strip_prefix("/record").unwrap_or(path);
    let place = place.strip_prefix("/x").unwrap_or(place);
    match place.strip_prefix('/') {
        Some(name) => MARKS.contains(&name) && *value == Value::Bool(true),
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

    // A skill's text that a harness added must not count as the user's last message, or the task
    // could be dropped. Only a mark of the message itself counts, not a mark in its content.
    #[test]
    fn marked_messages_are_attributed_to_the_harness() {
        use RawEncoding::{JsonPatch, Whole};
        for (encoding, form) in [
            (JsonPatch, r#"[{"op":"add","path":"/x/meta","value":true}]"#),
            (
                JsonPatch,
                r#"[{"op":"add","path":"/x","value":{"meta":true,"i":1}}]"#,
            ),
            (JsonPatch, r#"[{"op":"add","path":"/isMeta","value":true}]"#),
            (
                JsonPatch,
                r#"[{"op":"add","path":"/record","value":{"isMeta":true}}]"#,
            ),
            (Whole, r#"{"type":"user","isMeta":true,"message":{}}"#),
            (Whole, r#"{"role":"user","content":"x","x":{"meta":true}}"#),
            (
                JsonPatch,
                r#"[{"op":"add","path":"/record","value":{"parts":[{"type":"text","text":null,
                    "synthetic":true}]}},{"op":"copy","from":"/said/0",
                    "path":"/record/parts/0/text"}]"#,
            ),
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
            (
                Whole,
                r#"{"parts":[{"type":"text","synthetic":true},{"type":"text"}]}"#,
            ),
            (Whole, "meta"),
        ] {
            assert!(!is_by_harness(&raw(encoding, form)), "{form}");
        }
        assert!(!is_by_harness(&MessageAppended::text(Role::User, "meta")));
    }
}
