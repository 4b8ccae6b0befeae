use serde_json::{Value, json};

use crate::{format::Format, session::ToolSession, session_properties::*};
use treering_domain::{EventBody, TimestampMicros};

fn entry(id: &str, parent: Option<&str>, mut fields: Value) -> Value {
    fields["id"] = id.into();
    fields["parentId"] = parent.into();
    fields["timestamp"] = "2026-03-01T10:00:00.000Z".into();
    fields
}

fn user(id: &str, parent: Option<&str>, text: &str) -> Value {
    let message = json!({"role": "user", "content": [{"type": "text", "text": text}]});
    entry(id, parent, json!({"type": "message", "message": message}))
}

/// Returns a session with a branch, a compaction, a change of the model, and data of extensions.
fn lines() -> Vec<Value> {
    let long = "what the tool printed ".repeat(8);
    vec![
        json!({"type": "session", "version": 3, "id": "s1", "cwd": "/work",
            "timestamp": "2026-03-01T09:59:00.000Z"}),
        entry(
            "e1",
            None,
            json!({"type": "model_change", "provider": "anthropic",
            "modelId": "opus"}),
        ),
        entry(
            "e2",
            Some("e1"),
            json!({"type": "thinking_level_change",
            "thinkingLevel": "high"}),
        ),
        user("e3", Some("e2"), "Why is the total wrong?"),
        entry(
            "e4",
            Some("e3"),
            json!({"type": "message", "message": {
            "role": "assistant", "provider": "anthropic", "model": "opus",
            "api": "anthropic-messages", "stopReason": "toolUse",
            "usage": {"input": 10, "output": 5, "cacheRead": 3, "cacheWrite": 2,
                "cost": {"total": 0.25}},
            "content": [
                {"type": "thinking", "thinking": "look first", "thinkingSignature": "sig"},
                {"type": "text", "text": "I look."},
                {"type": "toolCall", "id": "c1", "name": "bash", "arguments": {"command": "ls"}},
            ]}}),
        ),
        entry(
            "e5",
            Some("e4"),
            json!({"type": "message", "message": {
            "role": "toolResult", "toolCallId": "c1", "toolName": "bash", "isError": true,
            "details": {"exit": 1}, "content": [{"type": "text", "text": long}]}}),
        ),
        entry(
            "e6",
            Some("e5"),
            json!({"type": "label", "targetId": "e3", "label": "here"}),
        ),
        entry(
            "e7",
            Some("e6"),
            json!({"type": "message", "message": {
            "role": "assistant", "provider": "openai", "model": "gpt", "content": [
                {"type": "text", "text": "It is the rounding."}]}}),
        ),
        // Back to the question.
        entry(
            "e8",
            Some("e3"),
            json!({"type": "branch_summary", "fromId": "e7",
            "summary": "It was the rounding."}),
        ),
        user("e9", Some("e8"), "Mend it."),
        entry(
            "e10",
            Some("e9"),
            json!({"type": "compaction", "summary": "All that was.",
            "firstKeptEntryId": "e9", "tokensBefore": 900, "details": {"readFiles": []}}),
        ),
        entry(
            "e11",
            Some("e10"),
            json!({"type": "custom", "customType": "x", "data": {}}),
        ),
        entry(
            "e12",
            Some("e11"),
            json!({"type": "custom_message", "customType": "x",
            "content": "by an extension", "display": true}),
        ),
        entry(
            "e13",
            Some("e12"),
            json!({"type": "message", "message": {
            "role": "bashExecution", "command": "make", "output": "done", "exitCode": 0}}),
        ),
        entry(
            "e14",
            Some("e13"),
            json!({"type": "session_info", "name": "The cent"}),
        ),
        entry("e15", Some("e14"), json!({"type": "new thing!", "n": 1})),
    ]
}

fn pi(lines: &[Value]) -> ToolSession {
    session(Format::Pi, lines)
}

// A session of pi is a tree of entries of many kinds: each must get its type, branches must be
// those of the tree, and every line must be restored.
#[test]
fn session_becomes_a_tree_of_typed_events() {
    let (imported, _) = there_and_back(&pi(&lines()));
    assert_eq!(imported.source_id, "s1");
    let EventBody::ConversationCreated(created) = &imported.events[0].body else {
        panic!("{:?}", imported.events[0]);
    };
    assert_eq!(created.title, "The cent");
    assert_eq!(created.config.model_id, "opus");
    assert!(created.source_meta.as_str().contains("/work"));
    let long = "what the tool printed ".repeat(8);
    assert_eq!(
        told(&imported),
        [
            "main: pi/session",
            "main: pi/model_change",
            "main: pi/thinking_level_change",
            "main: user Why is the total wrong?",
            "main: assistant (look first)|I look.",
            r#"main: call c1 bash {"command":"ls"}"#,
            format!("main: result c1 failed {}", long.trim_end()).as_str(),
            "main: pi/label",
            "main: model gpt",
            "main: assistant It is the rounding.",
            "at-5: fork at 5",
            "at-5: user It was the rounding.",
            "at-5: user Mend it.",
            "at-5: compacted All that was.",
            "at-5: pi/custom",
            "at-5: user by an extension",
            "at-5: user The user ran: make|done",
            "at-5: pi/session_info",
            "at-5: pi/",
            "at-5: branch_activated",
        ]
    );
    let EventBody::MessageAppended(said) = bodies(&imported)[4] else {
        panic!();
    };
    let usage = said.usage.clone().unwrap();
    assert_eq!((usage.input_tokens, usage.output_tokens), (10, 5));
    assert_eq!(
        (
            usage.cache_read_input_tokens,
            usage.cache_creation_input_tokens
        ),
        (3, 2)
    );
    assert_eq!(said.finish_reason, "toolUse");
    let at = TimestampMicros(1_772_359_200_000_000);
    assert_eq!(imported.events[4].occurred_at, Some(at));
    assert_eq!(oddities(&imported), [""; 0]);
}

// A session may be imported at any moment while it grows: nothing may change, and nothing be
// imported twice.
#[test]
fn growing_session_only_appends() {
    grows(&pi(&lines()));
}

// The first version had no ids: its entries follow each other, and its compactions name the first
// kept entry by index.
#[test]
fn entries_without_ids_form_one_chain() {
    let says = |role: &str, text: &str| {
        json!({"type": "message", "timestamp": "2025-11-20T23:33:01.550Z", "message": {
            "role": role, "content": [{"type": "text", "text": text}]}})
    };
    let mut lines = vec![
        json!({"type": "session", "id": "old", "cwd": "/", "timestamp": "t",
        "branchedFrom": "/other.jsonl"}),
    ];
    lines.extend([
        says("user", "one"),
        says("assistant", "two"),
        says("user", "three"),
    ]);
    lines.push(
        json!({"type": "compaction", "timestamp": "2025-11-20T23:34:01.550Z",
        "summary": "so far", "firstKeptEntryIndex": 3, "tokensBefore": 5}),
    );
    lines.push(says("assistant", "four"));
    let (imported, _) = there_and_back(&pi(&lines));
    let compacted = bodies(&imported).into_iter().find_map(|body| match body {
        EventBody::Compacted(compacted) => Some(compacted.clone()),
        _ => None,
    });
    let compacted = compacted.unwrap();
    assert_eq!((compacted.kept_turns, compacted.tokens_before), (1, 5));
    grows(&pi(&lines));
}

// Whatever is in the file, the import must neither fail nor lose a line: duplicate ids, a missing
// parent, a result without its call, a line that is not JSON, invalid times, and two roots.
#[test]
fn unexpected_lines_are_kept_and_reported() {
    let mut lines = lines();
    lines.insert(6, user("e3", Some("e5"), "the id of another"));
    lines.push(user("x1", Some("nowhere"), "lost"));
    lines.push(user("x2", None, "begins anew"));
    lines.push(entry(
        "x3",
        Some("x2"),
        json!({"type": "message", "message": {
        "role": "toolResult", "toolCallId": "none", "content": []}}),
    ));
    lines.push(entry(
        "x4",
        Some("x3"),
        json!({"type": "message", "message": {
        "role": "assistant", "content": [{"type": "toolCall", "id": 5}]}}),
    ));
    lines.push(entry(
        "x5",
        Some("x4"),
        json!({"type": "message", "message": {"role": "?"}}),
    ));
    lines.push(entry("x6", Some("x5"), json!({"type": "message"})));
    lines.push(
        json!({"type": "message", "id": "x7", "parentId": 7, "timestamp": -1,
        "message": {"role": "user", "content": 5}}),
    );
    let mut session = pi(&lines);
    session.lines.push("no json at all".into());
    session.lines.push(b"\xff\xfe"[..].into());
    let (imported, _) = there_and_back(&session);
    let mut odd = oddities(&imported);
    odd.sort_unstable();
    odd.dedup();
    assert_eq!(
        odd,
        [
            "call without id or name",
            "orphan result",
            "parent not found",
            "unknown role",
            "unreadable line"
        ]
    );
    grows(&session);
}

// A turn ended, another model answers the next one, and the session is compacted while that one is
// still open. The cut must not be at the change of the model: a repeated import would not find it
// and make a branch with a second compaction.
#[test]
fn cut_before_a_model_change_is_found_by_a_repeated_import() {
    let lines = lines();
    let picked: Vec<Value> = [7, 4, 10].map(|at: usize| lines[at].clone()).to_vec();
    grows(&pi(&picked));
}

// Lines may come in any order.
#[test]
fn any_line_order_only_appends() {
    any_grows(Format::Pi, &lines());
}
