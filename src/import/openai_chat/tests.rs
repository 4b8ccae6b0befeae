use std::{collections::BTreeMap, path::Path};

use proptest::prelude::*;
use serde_json::json;

use super::{super::exporter::export_line, super::source::LineSource, *};
use crate::{
    plan,
    stored::{assert_legal, stored},
};
use treering_domain::{CancelReason, EventKind, MediaSource, RawEncoding, Revision, StoredEvent};

fn import(line: &Value) -> ImportedConversation {
    import_line(line.to_string().as_bytes()).unwrap()
}

/// Imports, checks the rules of appends, exports, and compares; returns the stored events.
pub(super) fn there_and_back(line: &str) -> (ImportedConversation, Vec<StoredEvent>) {
    let imported = import_line(line.as_bytes()).unwrap();
    let events = stored(&imported);
    assert_legal(&events);
    let exported = export_line(&events).unwrap();
    let value = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    assert_eq!(value(&exported), value(line));
    (imported, events)
}

fn conversation(messages: Value) -> Value {
    json!({"id": "c1", "source": "test", "meta": {"a": 1.50}, "messages": messages})
}

fn call(id: &str) -> Value {
    json!({"id": id, "type": "function", "function": {"name": "ls", "arguments": "{\"b\": 1,  \"a\":2}"}})
}

fn oddities(imported: &ImportedConversation) -> Vec<(usize, &'static str)> {
    let notes = imported.notes.iter();
    notes.map(|n| (n.message_index, n.what.name())).collect()
}

fn kinds(imported: &ImportedConversation) -> Vec<(&str, EventKind)> {
    let events = imported.events.iter();
    events
        .map(|e| (e.branch.as_ref().unwrap().as_str(), e.body.kind()))
        .collect()
}

// A plain conversation must need only its typed events, so that text is stored once.
#[test]
fn plain_conversation_stores_no_raw_form() {
    let line = conversation(json!([
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "list the files"},
        {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [call("a"), call("b")],
            "x": {"ts": "2026-02-03T03:49:43.026Z", "usage": {"input_tokens": 1, "output_tokens": 2,
                "cache_read_input_tokens": 3, "cache_creation_input_tokens": 4}}},
        {"role": "tool", "tool_call_id": "b", "name": "ls", "content": "x", "x": {"is_error": true, "error": "E: no"}},
        {"role": "tool", "tool_call_id": "a", "name": "ls", "content": "y"},
        {"role": "assistant", "content": "done"},
    ]));
    let (imported, _) = there_and_back(&line.to_string());
    assert!(imported.notes.is_empty());
    for event in &imported.events {
        match &event.body {
            EventBody::MessageAppended(message) => assert_eq!(message.raw, None),
            EventBody::ToolResultRecorded(result) => {
                assert_eq!(result.raw, None);
                assert_eq!(result.success, result.call_id == "a");
            }
            EventBody::ToolCallRequested(call) => {
                assert_eq!(call.arguments.as_str(), "{\"b\": 1,  \"a\":2}");
                assert_eq!(call.message_revision, Some(Revision(4)));
            }
            EventBody::ConversationCreated(created) => {
                assert_eq!(created.title, "list the files");
                assert_eq!(created.source_meta.as_str(), "{\"meta\":{\"a\":1.5}}");
            }
            _ => {}
        }
    }
    assert_eq!(imported.conversation, conversation_id("test", "c1"));
}

// Results without a call, reused ids and unanswered calls are real: all must be imported within the
// rules, reported, and restored.
#[test]
fn unusual_calls_are_imported_and_noted() {
    let line = conversation(json!([
        {"role": "tool", "tool_call_id": "zzz", "name": "ls", "content": "orphan"},
        {"role": "assistant", "content": "", "tool_calls": [call("a")]},
        {"role": "assistant", "content": null, "tool_calls": [call("a"), call("b")]},
        {"role": "tool", "tool_call_id": "a", "content": "answer"},
        {"role": "tool", "tool_call_id": "a", "content": "again"},
        {"role": "tool", "content": "no id"},
    ]));
    let (imported, _) = there_and_back(&line.to_string());
    assert_eq!(
        oddities(&imported),
        [
            (0, "orphan result"),
            (2, "superseded call"),
            (2, "unanswered call"),
            (4, "orphan result"),
            (5, "orphan result"),
        ]
    );
    let cancelled = imported.events.iter().find_map(|event| match &event.body {
        EventBody::ToolCallCancelled(cancelled) => Some(cancelled.reason),
        _ => None,
    });
    assert_eq!(cancelled, Some(CancelReason::Superseded));
}

// Unanswered calls accumulate: an import must stay below the limit on open calls, or the engine
// would refuse the whole conversation.
#[test]
fn open_calls_stay_below_the_limit() {
    let calls: Vec<_> = (0..1_500).map(|n| call(&format!("c{n}"))).collect();
    let line = conversation(json!([{"role": "assistant", "content": null, "tool_calls": calls}]));
    let imported = import(&line);
    let open = treering_domain::Limits::default().open_calls_max;
    let count = |name| {
        oddities(&imported)
            .iter()
            .filter(|(_, n)| *n == name)
            .count()
    };
    assert_eq!(count("call given up"), 500);
    assert!(count("unanswered call") <= open);
}

// A tree of messages must become branches that each contain what their author saw: a call that was
// open at the fork is open on both.
#[test]
fn message_tree_becomes_branches() {
    let line = conversation(json!([
        {"role": "user", "content": "q", "x": {"parent": null}},
        {"role": "assistant", "content": null, "tool_calls": [call("a")], "x": {"parent": 0}},
        {"role": "tool", "tool_call_id": "a", "name": "ls", "content": "one", "x": {"parent": 1}},
        {"role": "tool", "tool_call_id": "a", "name": "ls", "content": "two", "x": {"parent": 1}},
        {"role": "user", "content": "other", "x": {"parent": 0}},
        {"role": "assistant", "content": "end", "x": {"parent": 3}},
    ]));
    let (imported, events) = there_and_back(&line.to_string());
    assert!(imported.notes.is_empty());
    use EventKind as K;
    assert_eq!(
        kinds(&imported),
        [
            ("main", K::ConversationCreated),
            ("main", K::MessageAppended),
            ("main", K::MessageAppended),
            ("main", K::ToolCallRequested),
            ("main", K::ToolResultRecorded),
            ("at-4", K::BranchForked),
            ("at-4", K::ToolResultRecorded),
            ("at-2", K::BranchForked),
            ("at-2", K::MessageAppended),
            ("at-4", K::MessageAppended),
            // The branch that was continued last must be active.
            ("at-4", K::BranchActivated),
        ]
    );
    let EventBody::BranchForked(forked) = &imported.events[5].body else {
        panic!("another kind");
    };
    assert_eq!(forked.fork_revision, Revision(4));
    assert_eq!(events[9].header.branch.0, 6);
}

/// Returns the cut of each compaction, and the tokens before it.
fn compacted(imported: &ImportedConversation) -> Vec<(u64, u64)> {
    let found = imported.events.iter().filter_map(|e| match &e.body {
        EventBody::Compacted(c) => Some((c.cut_revision.0, c.tokens_before)),
        _ => None,
    });
    found.collect()
}

/// Returns the messages by which a source reports a compaction.
fn boundary_and_summary() -> (Value, Value) {
    let boundary = json!({"role": "system", "content": "Conversation compacted",
        "x": {"compact_boundary": {"trigger": "auto", "preTokens": 167}}});
    let summary = json!({"role": "user", "content": "summary…", "x": {"compact_summary": true}});
    (boundary, summary)
}

// A compaction of the source must become one here, with its cut at the end of a turn. Its summary
// is the following message, which is then no message of the window. The text between them is for
// people and must not become a message.
#[test]
fn compactions_cut_at_turn_boundaries() {
    let (boundary, summary) = boundary_and_summary();
    let (imported, _) = there_and_back(
        &conversation(json!([
            {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"},
            {"role": "user", "content": "q2"}, {"role": "assistant", "tool_calls": [call("a")]},
            {"role": "tool", "tool_call_id": "a", "content": "r"},
            boundary.clone(), summary.clone(),
            {"role": "assistant", "content": "a"}, boundary, summary,
        ]))
        .to_string(),
    );
    assert_eq!(compacted(&imported), [(3, 167), (11, 167)]);
    assert!(imported.notes.is_empty());
    let said = imported.events.iter().filter_map(|e| match &e.body {
        EventBody::Compacted(c) => Some(c.summary.as_str()),
        EventBody::MessageAppended(m) if m.role != Role::Assistant => m.parts[0].text(),
        _ => None,
    });
    let said: Vec<_> = said.collect();
    assert_eq!(said, ["q", "q2", "summary…", "summary…"]);
    let only =
        conversation(json!([{"role": "user", "content": "s", "x": {"compact_summary": true}}]));
    let (imported, _) = there_and_back(&only.to_string());
    assert_eq!(compacted(&imported), [(1, 0)]);
    assert!(imported.notes.is_empty());
}

// An agent works for hours on one question. Its harness compacts before any turn has ended, then
// again in the same turn, with or without open calls. All these summaries must become compactions,
// not messages beside the history that they replace.
#[test]
fn compaction_before_a_finished_turn_is_imported() {
    let (boundary, summary) = boundary_and_summary();
    let work = |id: &str| {
        let asks = json!({"role": "assistant", "content": null, "tool_calls": [call(id)]});
        [
            asks,
            json!({"role": "tool", "tool_call_id": id, "content": "r"}),
        ]
    };
    let [asks, answers] = work("a");
    let [asks_more, answers_more] = work("b");
    let [asks_in_vain, _] = work("c");
    let (imported, _) = there_and_back(
        &conversation(json!([
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "implement the plan"},
            asks, answers, boundary.clone(), summary.clone(),
            asks_more, answers_more, boundary.clone(), summary.clone(),
            asks_in_vain, boundary, summary,
            {"role": "assistant", "content": "done"},
        ]))
        .to_string(),
    );
    // The system message precedes the first turn.
    assert_eq!(compacted(&imported), [(2, 167), (2, 167), (2, 167)]);
    assert_eq!(oddities(&imported), [(10, "unanswered call")]);
}

// The title must not be an announcement such as "Implement the following plan:" or the text of a
// skill. It must be the line after the announcement, and for a command what the user typed.
#[test]
fn title_skips_announcements_and_skill_texts() {
    for (text, title) in [
        ("Fix it\nnow", Some("Fix it")),
        (
            "Implement the following plan:\n\n# Plan: Simplify `enable`\n",
            Some("Plan: Simplify `enable`"),
        ),
        (
            "We solve this issue. Here is its text:\nISSUE:\nA lamp is out\n",
            Some("A lamp is out"),
        ),
        // Prompts of sub-agents: the title must not be a fence or an item of a list.
        (
            "Review this change for:\n- correctness\n- style\n",
            Some("Review this change for"),
        ),
        ("```go\nfunc main() {}\n```\nWhy?", Some("func main() {}")),
        ("## Task\nFind it", Some("Task")),
        ("1. Read the plan\n2. Do it", Some("1. Read the plan")),
        ("ISSUE:\n\nHints:\n", Some("ISSUE:")),
        ("Look at this:", Some("Look at this:")),
        ("<local-command-stdout>x</local-command-stdout>", None),
        ("{\"command\": \"ls\"}", None),
        ("  \n", None),
        (
            "<command-message>review is running</command-message>\n\
             <command-name>/review</command-name>\n<command-args>167</command-args>",
            Some("/review 167"),
        ),
        (
            "<command-message>pr</command-message>\n<command-name>/pr</command-name>",
            Some("/pr"),
        ),
    ] {
        assert_eq!(headline(text).as_deref(), title, "{text}");
    }
    let skill = json!({"role": "user", "content": "Base directory", "x": {"meta": true}});
    let imported = import(&conversation(
        json!([skill, {"role": "user", "content": "go on"}]),
    ));
    let EventBody::ConversationCreated(created) = &imported.events[0].body else {
        panic!("another kind");
    };
    assert_eq!(created.title, "go on");
}

// Tools in a line must be defined before its first message, be restored, and not make the
// conversation a different one.
#[test]
fn tools_of_a_line_are_defined_and_restored() {
    let mut line = conversation(json!([{"role": "user", "content": "q"}]));
    let without = import(&line);
    line["tools"] = json!([{"type": "function", "function": {"name": "ls"}}]);
    let (imported, events) = there_and_back(&line.to_string());
    assert!(matches!(&imported.events[1].body,
        EventBody::ToolsDefined { tools } if tools[0].name == "ls"));
    assert_eq!(plan(&events, &imported).events, []);
    assert_eq!(plan(&stored(&without), &imported).events, []);
}

// An unanswered call must not suppress later compactions, or the request grows without limit. The
// engine does not need calls to be answered.
#[test]
fn open_call_does_not_block_compactions() {
    let summary =
        |text: &str| json!({"role": "user", "content": text, "x": {"compact_summary": true}});
    let (imported, _) = there_and_back(
        &conversation(json!([
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": null, "tool_calls": [call("lost")]},
            {"role": "user", "content": "go on"}, {"role": "assistant", "content": "a"},
            summary("one"),
            {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"},
            summary("two"),
        ]))
        .to_string(),
    );
    let summaries = imported.events.iter().filter_map(|e| match &e.body {
        EventBody::Compacted(c) => Some(c.summary.clone()),
        _ => None,
    });
    assert_eq!(summaries.collect::<Vec<_>>(), ["one", "two"]);
    assert_eq!(oddities(&imported), [(1, "unanswered call")]);
}

// Content of other shapes must be typed where possible and restored exactly, without storing its
// text twice.
#[test]
fn other_content_shapes_round_trip() {
    let text = "a long text that is looked for below";
    let line = conversation(json!([
        {"role": "user", "content": [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]},
        {"role": "user", "content": {"odd": text}},
        {"role": "user", "content": [{"type": "text", "text": text},
            {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "high"}},
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
            {"type": "hologram", "text": text}]},
        {"role": "user"}, {"role": "user", "content": []}, {"role": "user", "content": 5},
        {"role": "assistant", "content": null, "tool_calls": [], "refusal": null, "unknown": {"deep": [null]}},
        {"role": "developer", "name": "ada", "content": "x"},
        {"role": "function", "name": "ls", "content": text},
        {"role": "assistant", "tool_calls": [
            {"id": "1", "type": "function", "index": 0, "function": {"name": "f", "arguments": ""}},
            {"id": "2", "type": "function", "function": {"name": "f", "arguments": "not json"}},
            {"id": "3", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}},
            {"id": null, "type": "function", "function": {"name": "f", "arguments": "{}"}}, 7]},
    ]));
    let (imported, events) = there_and_back(&line.to_string());
    let EventBody::MessageAppended(message) = &imported.events[3].body else {
        panic!("another kind");
    };
    assert!(
        matches!(&message.parts[1], ContentPart::Image(m) if matches!(&m.source, MediaSource::Uri(_)))
    );
    for event in &events {
        let body = String::from_utf8_lossy(&event.body);
        let times = if event.header.revision.0 == 4 { 2 } else { 1 };
        assert!(body.matches(text).count() <= times, "{body}");
    }
    let names: Vec<_> = oddities(&imported)
        .into_iter()
        .map(|(_, name)| name)
        .collect();
    assert_eq!(
        names[..5],
        [
            "unknown role",
            "arguments not JSON",
            "call without id or name",
            "call without id or name",
            "call without id or name"
        ]
    );
}

// A number that 64 bits cannot hold must be restored digit by digit, and so must all fields of a
// line.
#[test]
fn numbers_and_fields_are_restored_exactly() {
    let line = r#"{"id":7,"x":12345678901234567890123,"source":"","messages":[{"role":"user","content":"a","n":0.1000000000000000055511151231257827}]}"#;
    let imported = import_line(line.as_bytes()).unwrap();
    assert_eq!(oddities(&imported), [(0, "number too precise")]);
    let EventBody::MessageAppended(message) = &imported.events[1].body else {
        panic!("another kind");
    };
    assert_eq!(message.raw.as_ref().unwrap().encoding, RawEncoding::Whole);
    let exported = export_line(&stored(&imported)).unwrap();
    assert!(exported.contains("0.1000000000000000055511151231257827"));
    assert!(exported.contains("\"x\":12345678901234567890123"));
    assert!(exported.contains("\"id\":7") && exported.contains("\"source\":\"\""));
    assert!(!exported.contains("\"id\":\"7\""));
    there_and_back(r#"{"messages":[],"id":"only"}"#);
}

// Plain chat lines have no id. Equal lines must be the same conversation, or a repeated import
// would double it. Different lines must be different conversations.
#[test]
fn line_without_an_id_gets_one_from_its_content() {
    let line = |text: &str| {
        let line = format!(r#"{{"messages":[{{"role":"user","content":"{text}"}}]}}"#);
        import_line(line.as_bytes()).unwrap()
    };
    let one = line("hello");
    assert!(one.source_id.starts_with("chat-"), "{}", one.source_id);
    assert_eq!(one.source_id, line("hello").source_id);
    assert_ne!(one.source_id, line("goodbye").source_id);
}

// A line that is not a conversation must be an error that says why and never quotes the line.
#[test]
fn hostile_lines_are_refused_without_quoting_them() {
    let deep = format!(
        "{{\"id\":\"a\",\"messages\":{}{}}}",
        "[".repeat(5000),
        "]".repeat(5000)
    );
    let long = format!("{{\"id\":\"{}\",\"messages\":[]}}", "s".repeat(600));
    let cases: &[(&[u8], &str)] = &[
        (b"", "the value is empty"),
        (b"secret", "not JSON"),
        (b"\xff\xfe", "UTF-8"),
        (b"[]", "not a JSON object"),
        (b"\"secret\"", "not a JSON object"),
        (b"{}", "messages must be"),
        (b"{\"id\":\"\",\"messages\":[]}", "id must be"),
        (b"{\"id\":[],\"messages\":[]}", "id must be"),
        (b"{\"id\":\"a\"}", "messages must be"),
        (
            b"{\"id\":\"a\",\"messages\":{\"secret\":1}}",
            "messages must be",
        ),
        (
            b"{\"id\":\"a\",\"source\":5,\"messages\":[]}",
            "source must be",
        ),
        (
            b"{\"id\":\"a\",\"messages\":[\"secret\"]}",
            "messages[0] must be an object",
        ),
        (
            b"{\"id\":\"a\",\"messages\":[{\"role\":7}]}",
            "messages[0].role must be",
        ),
        (
            b"{\"id\":\"a\",\"messages\":[{\"role\":\"user\",\"content\":1e999}]}",
            "messages[0] has a value",
        ),
        (
            b"{\"id\":\"a\",\"messages\":[{\"role\":\"user\",\"content\":\"\\ud800\"}]}",
            "messages[0] has a value",
        ),
        (deep.as_bytes(), "deeper than"),
        (long.as_bytes(), "the maximum is 512"),
    ];
    for (line, expected) in cases {
        let fault = import_line(line).unwrap_err().to_string();
        assert!(fault.contains(expected), "{fault}");
        assert!(!fault.contains("secret"), "{fault}");
    }
}

// Importing again must add nothing; a longer version must add its end; and changes in the source
// must go to their own branch, except titles, which are not content.
#[test]
fn repeated_import_plans_only_new_events() {
    let short = import(&conversation(json!([{"role": "user", "content": "a"}])));
    let long = import(&conversation(json!([
        {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])));
    let other = import(&conversation(json!([{"role": "user", "content": "z"}])));
    assert_eq!(plan(&[], &short).events, short.events);
    assert_eq!(plan(&stored(&short), &short).events, []);
    assert_eq!(plan(&stored(&long), &short).events, []);
    assert_eq!(plan(&stored(&short), &long).events, long.events[2..]);
    let parted = plan(&stored(&other), &short);
    assert_eq!(parted.parted[0].after, Revision(1));
    assert_eq!(parted.events[1].body, short.events[1].body);
}

fn odd_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (-1e9..1e9_f64).prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
        Just(json!("~/~0/")),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        let key = prop_oneof![
            Just("_".to_owned()),
            Just("text".to_owned()),
            "[a-z/~]{0,3}"
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map(key, inner, 0..3).prop_map(|map| json!(map)),
        ]
    })
}

fn odd_content() -> impl Strategy<Value = Value> {
    let part = prop_oneof![
        "\\PC{0,8}".prop_map(|text| json!({"type": "text", "text": text})),
        odd_value().prop_map(|v| json!({"type": "text", "text": "t", "extra": v})),
        odd_value().prop_map(|v| json!({"type": "image_url", "image_url": v})),
        odd_value().prop_map(|v| json!({"type": "file", "file": {"file_id": "f", "filename": v}})),
        odd_value(),
    ];
    prop_oneof![
        "\\PC{0,12}".prop_map(Value::from),
        Just(Value::Null),
        prop::collection::vec(part, 0..3).prop_map(Value::from),
        odd_value(),
    ]
}

fn odd_message() -> impl Strategy<Value = Value> {
    let id = prop::sample::select(vec!["a", "b", "c", ""]);
    let arguments = prop::sample::select(vec!["{}", "", "{", "[1,2 ]", "\"s\"", "null"]);
    let call =
        (id.clone(), arguments, prop::option::of(odd_value())).prop_map(|(id, args, odd)| {
            let mut call =
                json!({"id": id, "type": "function", "function": {"name": "f", "arguments": args}});
            if let Some(odd) = odd {
                call["index"] = odd;
            }
            call
        });
    let calls = prop_oneof![
        prop::collection::vec(call, 0..4).prop_map(Value::from),
        odd_value()
    ];
    let role = prop::sample::select(vec![
        "system",
        "user",
        "assistant",
        "assistant",
        "tool",
        "tool",
        "developer",
        "function",
        "",
    ]);
    let x_key = prop::sample::select(vec![
        "parent",
        "parent",
        "parent",
        "is_error",
        "error",
        "ts",
        "usage",
        "stop",
        "compact_summary",
        "compact_boundary",
        "odd",
    ]);
    let x_value = prop_oneof![
        (0..8_u64).prop_map(Value::from),
        Just(Value::Null),
        Just(json!("2026-01-02T03:04:05+01:00")),
        Just(json!({"input": 1, "output": 2})),
        odd_value(),
    ];
    let x = prop::collection::vec((x_key, x_value), 0..3);
    let fields = prop::collection::vec(
        (
            prop::sample::select(vec![
                "name",
                "refusal",
                "tool_calls",
                "x",
                "reasoning_content",
            ]),
            odd_value(),
        ),
        0..2,
    );
    let tools = (prop::option::of(calls), prop::option::of(id));
    (role, prop::option::of(odd_content()), tools, x, fields).prop_map(
        |(role, content, (calls, id), x, fields)| {
            let mut message = json!({"role": role});
            if let Some(content) = content {
                message["content"] = content;
            }
            if let Some(calls) = calls {
                message["tool_calls"] = calls;
            }
            if let Some(id) = id {
                message["tool_call_id"] = id.into();
            }
            for (key, value) in x {
                message["x"][key] = value;
            }
            for (key, value) in fields {
                message[key] = value;
            }
            message
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    // However odd a conversation is, it must be imported within the rules and restored exactly.
    #[test]
    fn random_conversations_round_trip(
        messages in prop::collection::vec(odd_message(), 0..12),
        meta in odd_value(),
    ) {
        let mut line = conversation(messages.into());
        line["meta"] = meta;
        there_and_back(&line.to_string());
    }

    // Arbitrary bytes, and conversations with one changed byte, must yield a result or an error.
    #[test]
    fn any_bytes_give_a_result_or_an_error(
        bytes in prop::collection::vec(any::<u8>(), 0..60),
        messages in prop::collection::vec(odd_message(), 0..3),
        at in any::<prop::sample::Index>(),
        byte: u8,
    ) {
        let _ = import_line(&bytes);
        let mut line = conversation(messages.into()).to_string().into_bytes();
        let at = at.index(line.len());
        line[at] = byte;
        if let Ok(imported) = import_line(&line) {
            assert_legal(&stored(&imported));
            export_line(&stored(&imported)).unwrap();
        }
    }
}

// Real trajectories, with all their oddities: every line must be restored exactly, within the
// rules, and not be stored twice.
#[test]
fn real_trajectories_round_trip() {
    let Some(folder) = std::env::var_os("TREERING_TEST_DATA") else {
        println!("skipped: TREERING_TEST_DATA does not name the data folder");
        return;
    };
    let folder = Path::new(&folder).join("trajectories");
    let all = std::env::var_os("TREERING_TEST_ALL").is_some();
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|f| f.unwrap().path())
        .collect();
    files.sort();
    for file in files {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with("agentdojo-rest") && !all {
            continue;
        }
        let mut notes: BTreeMap<&str, usize> = BTreeMap::new();
        let (mut lines, mut events_count, mut line_bytes, mut body_bytes, mut raw_bytes) =
            (0, 0, 0, 0, 0);
        for (number, line) in LineSource::open(&file, |_| {}).unwrap() {
            let line = line.unwrap();
            let text = std::str::from_utf8(&line).unwrap();
            let (imported, events) = there_and_back(text);
            assert_eq!(plan(&events, &imported).events, [], "{name}:{number}");
            lines += 1;
            events_count += events.len();
            line_bytes += line.len();
            body_bytes += events.iter().map(|e| e.body.len()).sum::<usize>();
            for event in &imported.events {
                let raw = match &event.body {
                    EventBody::MessageAppended(m) => m.raw.as_ref(),
                    EventBody::ToolResultRecorded(r) => r.raw.as_ref(),
                    _ => None,
                };
                raw_bytes += raw.map_or(0, |raw| raw.data.len());
                if let EventBody::Compacted(_) = event.body {
                    *notes.entry("(compacted)").or_default() += 1;
                }
                if let EventBody::BranchForked(_) = event.body {
                    *notes.entry("(branches)").or_default() += 1;
                }
            }
            for note in &imported.notes {
                *notes.entry(note.what.name()).or_default() += 1;
            }
        }
        println!(
            "{name}: {lines} lines, {events_count} events, {line_bytes} B in, {body_bytes} B bodies, {raw_bytes} B raw; {notes:?}"
        );
        assert!(body_bytes < line_bytes, "{name}");
    }
}

// A line within the size limit may hold millions of values, whose tree takes many times the memory.
// Repeated fields must not take quadratic time.
#[test]
fn lines_with_too_many_values_are_refused() {
    let wide = format!(
        "{{\"id\":\"a\",\"messages\":[],\"x\":[0{}]}}",
        ",0".repeat(5 << 20)
    );
    let fault = import_line(wide.as_bytes()).unwrap_err();
    assert!(matches!(
        fault,
        ImportFault::NotJson(json::JsonFault::TooMany { .. })
    ));
    let fields: String = (0..200_000).map(|n| format!("\"f{n}\":1,")).collect();
    let line = format!("{{{fields}\"id\":\"x\",\"id\":\"a\",\"messages\":[]}}");
    assert_eq!(import_line(line.as_bytes()).unwrap().source_id, "a");
}
