//! Tests of pi sessions in the form of chat lines.

use serde_json::{Value, json};

use super::{super::ImportedConversation, tests::there_and_back};
use treering_domain::EventBody;

fn session(messages: &Value) -> ImportedConversation {
    let line = json!({"id": "pi/1", "source": "pi", "meta": {"provider": "anthropic",
        "modelId": "claude-opus-4-5"}, "messages": messages});
    there_and_back(&line.to_string()).0
}

fn said(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

fn summary(first_kept: u64) -> Value {
    json!({"role": "system", "content": "what was", "x": {"compact_summary": true,
        "compaction": {"firstKeptEntryIndex": first_kept, "tokensBefore": 9}}})
}

/// Returns the cut and the kept turns of each compaction.
fn compacted(imported: &ImportedConversation) -> Vec<(u64, u32)> {
    let found = imported
        .events
        .iter()
        .filter_map(|event| match &event.body {
            EventBody::Compacted(compacted) => {
                Some((compacted.cut_revision.0, compacted.kept_turns))
            }
            _ => None,
        });
    found.collect()
}

// pi keeps the last turns beside a summary. After the import, the model must see them. pi counts
// entries of its file, of which the first are not messages.
#[test]
fn turns_kept_by_pi_are_kept_beside_the_summary() {
    let asks = json!({"role": "assistant", "content": null, "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "ls", "arguments": "{}"}}]});
    let answers = json!({"role": "tool", "tool_call_id": "a", "name": "ls", "content": "x"});
    let before = [
        said("user", "one"),
        said("assistant", "1"),
        said("user", "two"),
        asks,
        answers,
        said("assistant", "2"),
        said("user", "three"),
        said("assistant", "3"),
    ];
    let kept = |entries: &[u64]| {
        let mut messages = before.to_vec();
        for (at, entry) in entries.iter().enumerate() {
            messages.push(summary(*entry));
            messages.push(said("user", &format!("more {at}")));
            messages.push(said("assistant", "yes"));
        }
        compacted(&session(&json!(messages)))
    };
    // Events: created, one, 1, two, its call's message, call, result, 2, three, 3.
    for (entry, expected) in [
        // The start of a turn, however many entries of the file before it are not messages.
        (7, (8, 1)),
        (8, (8, 1)),
        (9, (8, 1)),
        (3, (3, 2)),
        // The middle of a turn: it stays whole.
        (5, (3, 2)),
        // Everything.
        (1, (1, 3)),
    ] {
        assert_eq!(kept(&[entry]), [expected], "{entry}");
    }
    // Nothing from before a compaction may come back with the next one.
    assert_eq!(kept(&[7, 10]), [(8, 1), (11, 1)]);
    assert_eq!(kept(&[7, 2]), [(8, 1), (11, 1)]);
}

// The title must not be a command that the user ran at the prompt, and the model of the session
// must be imported.
#[test]
fn pi_session_gets_its_model_and_title() {
    let record = json!({"command": "ls", "output": "a.rs", "exitCode": 0, "cancelled": false,
        "truncated": false, "timestamp": 1});
    let imported = session(&json!([
        said("user", &record.to_string()),
        said("user", "mend it")
    ]));
    let EventBody::ConversationCreated(created) = &imported.events[0].body else {
        panic!("another kind");
    };
    assert_eq!(created.config.model_id, "claude-opus-4-5");
    assert_eq!(created.title, "mend it");
}
