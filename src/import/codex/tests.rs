use serde_json::{Value, json};

use crate::{format::Format, session::ToolSession, session_properties::*};
use treering_domain::{ContentPart, EventBody};

fn line(kind: &str, payload: Value) -> Value {
    json!({"timestamp": "2026-03-01T10:00:00.000Z", "type": kind, "payload": payload})
}

fn item(payload: Value) -> Value {
    line("response_item", payload)
}

fn says(role: &str, text: &str) -> Value {
    let kind = if role == "assistant" {
        "output_text"
    } else {
        "input_text"
    };
    item(json!({"type": "message", "role": role, "content": [{"type": kind, "text": text}]}))
}

fn tokens(total: u64) -> Value {
    line(
        "event_msg",
        json!({"type": "token_count", "info": {
        "total_token_usage": {"total_tokens": total},
        "last_token_usage": {"input_tokens": 100, "cached_input_tokens": 60,
            "output_tokens": 20, "reasoning_output_tokens": 8, "total_tokens": 120}}}),
    )
}

/// Returns two turns, a rollback of the second, a replacement for it, and a compaction.
fn lines() -> Vec<Value> {
    vec![
        line(
            "session_meta",
            json!({"id": "0198-a", "forked_from_id": "0198-0", "cwd": "/work",
            "originator": "codex_cli_rs", "cli_version": "0.90.0", "source": "cli",
            "base_instructions": {"text": "You are a coding agent."}}),
        ),
        says(
            "developer",
            "<permissions instructions>ask</permissions instructions>",
        ),
        says(
            "user",
            "<environment_context><cwd>/work</cwd></environment_context>",
        ),
        line(
            "turn_context",
            json!({"cwd": "/work", "model": "gpt-6", "effort": "high"}),
        ),
        line(
            "event_msg",
            json!({"type": "user_message", "message": "Mend the test"}),
        ),
        says("user", "Mend the test"),
        item(json!({"type": "reasoning", "id": "rs_1", "summary": [
            {"type": "summary_text", "text": "I look."}], "encrypted_content": "gAAA"})),
        item(
            json!({"type": "function_call", "id": "fc_1", "name": "shell", "call_id": "c1",
            "arguments": "{\"command\":[\"cargo\",\"test\"]}"}),
        ),
        tokens(120),
        item(json!({"type": "function_call_output", "call_id": "c1",
            "output": "{\"output\":\"one failed\",\"metadata\":{\"exit_code\":101}}"})),
        item(
            json!({"type": "custom_tool_call", "call_id": "c2", "name": "apply_patch",
            "status": "completed", "input": "*** Begin Patch"}),
        ),
        item(json!({"type": "custom_tool_call_output", "call_id": "c2", "output": "Done"})),
        item(
            json!({"type": "function_call", "id": "fc_2", "namespace": "mcp__notes",
            "name": "search", "call_id": "c4", "arguments": "{\"query\":\"rounding\"}"}),
        ),
        item(json!({"type": "function_call_output", "call_id": "c4", "output": "None"})),
        item(json!({"type": "web_search_call", "status": "completed",
            "action": {"type": "search", "query": "rounding"}})),
        says("assistant", "It is mended."),
        tokens(240),
        // The second turn is taken back.
        says("user", "Delete it all"),
        says("assistant", "Deleted."),
        line(
            "event_msg",
            json!({"type": "thread_rolled_back", "num_turns": 1}),
        ),
        line(
            "turn_context",
            json!({"cwd": "/work", "model": "gpt-6-mini"}),
        ),
        says("user", "Write a note"),
        item(
            json!({"type": "local_shell_call", "call_id": "c3", "status": "completed",
            "action": {"type": "exec", "command": ["ls"]}}),
        ),
        item(json!({"type": "function_call_output", "call_id": "c3",
            "output": [{"type": "input_text", "text": "a b"},
                {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]})),
        line(
            "compacted",
            json!({"message": "", "replacement_history": [
            {"type": "message", "role": "user", "content": [
                {"type": "input_text", "text": "Write a note"}]},
            {"type": "compaction", "encrypted_content": "gBBB"}]}),
        ),
        says("assistant", "Noted."),
        line(
            "compacted",
            json!({"message": "We mended a test and wrote a note."}),
        ),
        line("world_state", json!({"full": true})),
    ]
}

fn codex(lines: &[Value]) -> ToolSession {
    session(Format::Codex, lines)
}

// A rollout must be typed, with its rollback as a branch, and every line must be restored,
// including what only the provider can read.
#[test]
fn rollout_becomes_typed_events() {
    let (imported, _) = there_and_back(&codex(&lines()));
    let EventBody::ConversationCreated(created) = &imported.events[0].body else {
        panic!("{:?}", imported.events[0]);
    };
    assert_eq!(
        (created.title.as_str(), created.source_id.as_str()),
        ("Mend the test", "0198-a")
    );
    assert_eq!(created.config.model_id, "gpt-6");
    assert!(
        created
            .source_meta
            .as_str()
            .contains("\"forked_from_id\":\"0198-0\"")
    );
    assert_eq!(
        told(&imported),
        [
            "main: system You are a coding agent.",
            "main: developer <permissions instructions>ask</permissions instructions>",
            "main: user <environment_context><cwd>/work</cwd></environment_context>",
            "main: codex/turn_context",
            "main: codex/event_msg.user_message",
            "main: user Mend the test",
            "main: assistant (I look.)",
            "main: assistant",
            r#"main: call c1 shell {"command":["cargo","test"]}"#,
            "main: assistant",
            r#"main: result c1 failed {"output":"one failed","metadata":{"exit_code":101}}"#,
            "main: assistant",
            r#"main: call c2 apply_patch "*** Begin Patch""#,
            "main: result c2 ok Done",
            "main: assistant",
            r#"main: call c4 mcp__notes__search {"query":"rounding"}"#,
            "main: result c4 ok None",
            r#"main: assistant {"type":"web_search_call","status":"completed","action":{"type":"search","query":"rounding"}}"#,
            "main: assistant It is mended.",
            "main: assistant",
            "main: user Delete it all",
            "main: assistant Deleted.",
            "main: codex/event_msg.thread_rolled_back",
            "at-21: fork at 21",
            "at-21: model gpt-6-mini",
            "at-21: codex/turn_context",
            "at-21: user Write a note",
            "at-21: assistant",
            r#"at-21: call c3 local_shell {"type":"exec","command":["ls"]}"#,
            "at-21: result c3 ok a b|[medium]",
            "at-21: compacted user: Write a note",
            "at-21: assistant Noted.",
            "at-21: compacted We mended a test and wrote a note.",
            "at-21: codex/world_state",
            "at-21: branch_activated",
        ]
    );
    let said: Vec<_> = bodies(&imported)
        .into_iter()
        .filter_map(|body| match body {
            EventBody::MessageAppended(said) => Some(said),
            _ => None,
        })
        .collect();
    // The lines of one answer belong together, and so do its tokens.
    let ids: Vec<_> = said.iter().map(|said| said.message_id.as_str()).collect();
    assert_eq!(
        ids[4..8],
        ["response-6", "response-6", "response-6", "response-10"]
    );
    let usage = said[6].usage.clone().unwrap();
    assert_eq!(
        (usage.input_tokens, usage.cache_read_input_tokens),
        (40, 60)
    );
    assert_eq!(
        (usage.output_tokens, usage.reasoning_output_tokens),
        (20, 8)
    );
    let ContentPart::Reasoning(thought) = &said[4].parts[0] else {
        panic!("{:?}", said[4]);
    };
    assert_eq!(
        (&thought.signature[..], thought.id.as_str()),
        (&b"gAAA"[..], "rs_1")
    );
    // The provider accepts its reasoning only for models of the same family.
    assert_eq!(
        (thought.provider.as_str(), thought.model.as_str()),
        ("openai", "gpt-6")
    );
    assert_eq!(oddities(&imported), [""; 0]);
}

// A rollout may be imported at any moment while it is written.
#[test]
fn growing_rollout_only_appends() {
    grows(&codex(&lines()));
}

// Before there were envelopes, the first line described the session and the others were items.
#[test]
fn rollouts_without_envelopes_are_imported() {
    let lines = [
        json!({"id": "5973b6c0", "timestamp": "2025-05-07T17:24:21.000Z",
            "instructions": "Be brief.", "git": {"branch": "main"}}),
        json!({"record_type": "state"}),
        json!({"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": "hi"}]}),
        json!({"record_type": "state"}),
        json!({"type": "reasoning", "id": "rs", "summary": [], "content": null,
            "encrypted_content": "gAAA"}),
        json!({"type": "message", "role": "assistant", "content": [
            {"type": "output_text", "text": "ho"}]}),
    ];
    let (imported, _) = there_and_back(&codex(&lines));
    assert_eq!(imported.source_id, "5973b6c0");
    assert_eq!(
        told(&imported),
        [
            "main: system Be brief.",
            "main: codex/state",
            "main: user hi",
            "main: codex/state",
            "main: assistant ()",
            "main: assistant ho",
        ]
    );
    grows(&codex(&lines));
}

// Whatever is in the file, the import must neither fail nor lose a line.
#[test]
fn unexpected_lines_are_kept_and_reported() {
    let mut lines = lines();
    lines.truncate(10);
    lines.extend([
        item(
            json!({"type": "function_call", "name": "shell", "call_id": "c9",
            "arguments": "{not json"}),
        ),
        item(
            json!({"type": "function_call", "name": "shell", "call_id": "c9",
            "arguments": "{}"}),
        ),
        item(json!({"type": "function_call_output", "call_id": "nobody", "output": "x"})),
        item(json!({"type": "function_call", "name": 5, "call_id": null})),
        item(json!({"type": "message", "role": "critic", "content": "x"})),
        item(json!({"type": "a new item", "n": [1]})),
        line(
            "event_msg",
            json!({"type": "thread_rolled_back", "num_turns": 99}),
        ),
        line(
            "event_msg",
            json!({"type": "thread_rolled_back", "num_turns": -1}),
        ),
        line("event_msg", json!({"type": "token_count", "info": null})),
        line(
            "compacted",
            json!({"message": "", "replacement_history": []}),
        ),
        line("compacted", json!(null)),
        json!({"type": "response_item"}),
        json!({"payload": 5, "timestamp": "1999", "type": []}),
        says("user", "on"),
        line("session_meta", json!({"id": "another"})),
    ]);
    let mut session = codex(&lines);
    session.lines.push("{\"cut\": ".into());
    let (imported, _) = there_and_back(&session);
    let mut odd = oddities(&imported);
    odd.sort_unstable();
    odd.dedup();
    assert_eq!(
        odd,
        [
            "arguments not JSON",
            "call without id or name",
            "orphan result",
            "superseded call",
            "unanswered call",
            "unknown role",
            "unreadable line"
        ]
    );
    assert_eq!(imported.source_id, "0198-a");
    grows(&session);
}

// The lines must identify the session; if they do not, the file name does.
#[test]
fn file_name_gives_the_session_id() {
    let mut session = codex(&[says("user", "hi")]);
    let id = "0199c7a2-5a3b-7c11-9f0e-2f6d1a2b3c4d";
    session.name = format!("rollout-2026-03-01T10-00-00-{id}");
    assert_eq!(session.import().unwrap().source_id, id);
}

// Lines may come in any order.
#[test]
fn any_line_order_only_appends() {
    any_grows(Format::Codex, &lines());
}
