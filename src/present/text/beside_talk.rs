//! Separates the messages of a conversation from the other records of its agent program.

use prost::Message;

use super::super::pb::{self, content_part::Part, event::Body};

/// Type-name prefixes of records that imports keep unchanged: progress, file snapshots, settings.
const RECORDS: [&str; 7] = [
    "claude-code/",
    "codex/",
    "gemini-cli/",
    "openai-chat/",
    "opencode/",
    "pi/",
    "treering/imported",
];

/// Returns true for a secondary event: a record that imports keep unchanged, or an empty message of
/// the model, which some sources record before each call.
#[must_use]
pub fn is_beside_talk(event: &pb::Event) -> bool {
    match &event.body {
        Some(Body::Custom(body)) => pb::Custom::decode(body.as_ref()).is_ok_and(|custom| {
            let mut records = RECORDS.iter();
            records.any(|record| custom.type_name.starts_with(record))
        }),
        Some(Body::MessageAppended(body)) => {
            pb::MessageAppended::decode(body.as_ref()).is_ok_and(|message| {
                message.role() == pb::Role::Assistant
                    && is_usual_end(&message.finish_reason)
                    && message.parts.iter().all(is_empty)
            })
        }
        _ => false,
    }
}

/// Returns a line that says how many secondary events are not shown; `None` for 0.
#[must_use]
pub fn left_out(events: u64, how: &str) -> Option<String> {
    let what = match events {
        0 => return None,
        1 => "1 secondary event (progress, a snapshot, an empty message) is".to_owned(),
        events => format!(
            "{} secondary events (progress, snapshots, empty messages) are",
            super::count(events)
        ),
    };
    Some(format!("{what} not shown: {how}"))
}

fn is_empty(part: &pb::ContentPart) -> bool {
    match &part.part {
        None => true,
        Some(Part::Text(text)) => text.trim().is_empty(),
        Some(Part::Reasoning(thought)) => thought.text.trim().is_empty(),
        Some(_) => false,
    }
}

/// True for finish reasons that need no warning, as spelled by providers and harnesses: `toolUse`,
/// `tool_calls`, `end_turn`.
#[must_use]
pub fn is_usual_end(finish_reason: &str) -> bool {
    let letters = finish_reason.chars().filter(char::is_ascii_alphanumeric);
    let plain: String = letters.map(|letter| letter.to_ascii_lowercase()).collect();
    let usual = [
        "",
        "stop",
        "endturn",
        "tooluse",
        "toolcall",
        "toolcalls",
        "stopsequence",
        "completed",
    ];
    usual.contains(&plain.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(role: pb::Role, finish_reason: &str, parts: Vec<Part>) -> pb::Event {
        let message = pb::MessageAppended {
            role: role.into(),
            finish_reason: finish_reason.to_owned(),
            parts: parts
                .into_iter()
                .map(|part| pb::ContentPart { part: Some(part) })
                .collect(),
            ..Default::default()
        };
        pb::Event {
            body: Some(Body::MessageAppended(message.encode_to_vec().into())),
            ..Default::default()
        }
    }

    // Half of the cards in a transcript were progress records, file snapshots and empty messages.
    #[test]
    fn records_and_empty_answers_are_beside_the_talk() {
        let custom = |type_name: &str| {
            let custom = pb::Custom {
                type_name: type_name.to_owned(),
                ..Default::default()
            };
            is_beside_talk(&pb::Event {
                body: Some(Body::Custom(custom.encode_to_vec().into())),
                ..Default::default()
            })
        };
        assert!(custom("claude-code/progress") && custom("codex/event_msg.task_started"));
        assert!(!custom("my-app/note") && !custom("claude-codes"));
        let thought = Part::Reasoning(pb::Reasoning::default());
        let blank = Part::Text(" \n".into());
        assert!(is_beside_talk(&said(
            pb::Role::Assistant,
            "tool_use",
            vec![thought, blank]
        )));
        assert!(is_beside_talk(&said(pb::Role::Assistant, "", vec![])));
        assert!(!is_beside_talk(&said(pb::Role::User, "", vec![])));
        assert!(!is_beside_talk(&said(
            pb::Role::Assistant,
            "max_tokens",
            vec![]
        )));
        let text = Part::Text("I look.".into());
        assert!(!is_beside_talk(&said(pb::Role::Assistant, "", vec![text])));
    }

    // Every answer with a tool call had a warning, because its harness writes `toolUse`.
    #[test]
    fn usual_finish_reason_gives_no_warning() {
        for usual in ["", "stop", "end_turn", "toolUse", "TOOL_CALLS", "tool_use"] {
            assert!(is_usual_end(usual), "{usual}");
        }
        for other in ["max_tokens", "length", "refusal", "SAFETY", "error"] {
            assert!(!is_usual_end(other), "{other}");
        }
    }
}
