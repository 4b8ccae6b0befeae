use serde_json::{Value, json};

use crate::{
    format::Format,
    plan,
    session::ToolSession,
    session_properties::*,
    source::LineSource,
    stored::{assert_legal, stored},
};
use treering_domain::{EventBody, NewEvent};

const AT: &str = "2026-03-01T10:00:00.000Z";

fn header() -> Value {
    json!({"sessionId": "s1", "projectHash": "h", "startTime": AT, "lastUpdated": AT,
        "kind": "main"})
}

fn user(id: &str, text: &str) -> Value {
    json!({"id": id, "timestamp": AT, "type": "user", "content": [{"text": text}]})
}

fn gemini(id: &str, text: &str) -> Value {
    json!({"id": id, "timestamp": AT, "type": "gemini", "content": text, "model": "gemini-3",
        "thoughts": [{"subject": "Look", "description": "at the file", "timestamp": AT}],
        "tokens": {"input": 100, "output": 7, "cached": 40, "thoughts": 5, "total": 112}})
}

fn call(id: &str, status: &str) -> Value {
    let mut call = json!({"id": id, "name": "read_file", "args": {"path": "a.rs"},
        "status": status, "timestamp": AT, "displayName": "ReadFile"});
    if status != "executing" {
        call["result"] = json!([{"functionResponse": {"id": id, "name": "read_file",
            "response": {"output": format!("what is in {id}, {}", "line ".repeat(20))}}}]);
    }
    call
}

fn with_calls(mut message: Value, calls: &[Value]) -> Value {
    message["toolCalls"] = calls.into();
    message
}

/// Returns a session whose answers are rewritten as they grow, with a rewind.
fn lines() -> Vec<Value> {
    vec![
        header(),
        user("m1", "Why is it wrong?"),
        json!({"$set": {"lastUpdated": AT}}),
        gemini("m2", "I read."),
        with_calls(gemini("m2", "I read."), &[call("c1", "executing")]),
        with_calls(
            gemini("m2", "I read."),
            &[call("c1", "success"), call("c2", "error")],
        ),
        gemini("m3", "It is the rounding."),
        json!({"$set": {"summary": "The cent"}}),
        user("m4", "Delete it all"),
        gemini("m5", "Deleted."),
        json!({"$rewindTo": "m4"}),
        user("m6", "Mend it"),
        json!({"id": "m7", "timestamp": AT, "type": "info", "content": "Update available"}),
        json!({"id": "m8", "timestamp": AT, "type": "gemini", "content": "Mended."}),
        json!({"id": "m8", "timestamp": AT, "type": "gemini", "content": "Mended.",
            "tokens": {"input": 1, "output": 2, "cached": 0, "total": 3}}),
    ]
}

fn of(lines: &[Value]) -> ToolSession {
    session(Format::GeminiCli, lines)
}

fn output(id: &str) -> String {
    format!("what is in {id}, {}", "line ".repeat(20))
        .trim_end()
        .to_owned()
}

// A message is rewritten whenever it gets more content: each piece must become one event, once; and
// rewound messages must stay on an abandoned branch.
#[test]
fn session_becomes_typed_events() {
    let (imported, _) = imported(&of(&lines()));
    let EventBody::ConversationCreated(created) = &imported.events[0].body else {
        panic!("{:?}", imported.events[0]);
    };
    assert_eq!(
        (created.title.as_str(), created.source_id.as_str()),
        ("The cent", "s1")
    );
    assert_eq!(
        told(&imported),
        [
            "main: user Why is it wrong?".to_owned(),
            "main: gemini-cli/set".to_owned(),
            "main: assistant (Look\n\nat the file)|I read.".to_owned(),
            "main: assistant".to_owned(),
            r#"main: call c1 read_file {"path":"a.rs"}"#.to_owned(),
            "main: assistant".to_owned(),
            r#"main: call c2 read_file {"path":"a.rs"}"#.to_owned(),
            format!("main: result c1 ok {}", output("c1")),
            format!("main: result c2 failed {}", output("c2")),
            "main: assistant (Look\n\nat the file)|It is the rounding.".to_owned(),
            "main: gemini-cli/set".to_owned(),
            "main: user Delete it all".to_owned(),
            "main: assistant (Look\n\nat the file)|Deleted.".to_owned(),
            "main: gemini-cli/rewind".to_owned(),
            "at-12: fork at 12".to_owned(),
            "at-12: user Mend it".to_owned(),
            "at-12: gemini-cli/info".to_owned(),
            "at-12: model".to_owned(),
            "at-12: assistant Mended.".to_owned(),
            "at-12: assistant".to_owned(),
            "at-12: branch_activated".to_owned(),
        ]
        .into_iter()
        .filter(|line| line != "at-12: model")
        .collect::<Vec<_>>()
    );
    let EventBody::MessageAppended(said) = bodies(&imported)[2] else {
        panic!();
    };
    let usage = said.usage.clone().unwrap();
    assert_eq!(
        (usage.input_tokens, usage.cache_read_input_tokens),
        (60, 40)
    );
    assert_eq!(
        (usage.output_tokens, usage.reasoning_output_tokens),
        (12, 5)
    );
    assert_eq!(said.message_id, "m2");
    assert_eq!(oddities(&imported), [""; 0]);
}

// Each record must be restored once, with all of its fields.
#[test]
fn every_field_of_a_message_is_restored() {
    let (imported, events) = imported(&of(&lines()));
    let back = crate::records(&events, &imported.source).unwrap();
    let back: Vec<Value> = back
        .iter()
        .map(|record| serde_json::from_slice(record).unwrap())
        .collect();
    let result = back
        .iter()
        .find(|piece| piece["result"]["id"] == "c1")
        .unwrap();
    let mut call = call("c1", "success");
    call.as_object_mut().unwrap().shift_remove("args");
    assert_eq!(result["result"], call);
    assert!(back.contains(&gemini("m2", "I read.")));
}

#[test]
fn growing_session_only_appends() {
    grows(&of(&lines()));
}

// The older form is one document that is rewritten each time. It must become the same events as the
// lines, and a document that has grown must become the same events and more.
#[test]
fn document_and_lines_become_the_same_events() {
    let messages = [
        user("m1", "Why is it wrong?"),
        with_calls(gemini("m2", "I read."), &[call("c1", "success")]),
        user("m3", "Mend it"),
        gemini("m4", "Mended."),
    ];
    let document = |count: usize| {
        let mut document = header();
        document["messages"] = messages[..count].into();
        of(&[document])
    };
    let mut lines = vec![header()];
    lines.extend(messages.clone());
    let (of_lines, _) = imported(&of(&lines));
    let (of_document, _) = imported(&document(4));
    assert_eq!(of_lines.events[1..], of_document.events[1..]);
    for count in 1..4 {
        let (_, known) = imported(&document(count));
        let rest = crate::plan(&known, &of_document);
        assert_eq!(rest.parted, []);
        // The model is recorded when it is known.
        let is_config = |body: &EventBody| matches!(body, EventBody::ConfigChanged(_));
        let rest = rest.events.iter().filter(|event| !is_config(&event.body));
        assert_eq!(known.len() + rest.count(), of_document.events.len());
    }
    // Written over many lines, without a final line end, as the tool does.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("session-1.json");
    let text = serde_json::to_string_pretty(
        &serde_json::from_slice::<Value>(&document(4).lines[0]).unwrap(),
    );
    let text = text.unwrap();
    std::fs::write(&file, &text).unwrap();
    let read = || {
        ToolSession::read(
            Format::GeminiCli,
            &file,
            LineSource::open(&file, |_| {}).unwrap(),
        )
    };
    assert_eq!(read().unwrap().import().unwrap().events, of_document.events);
    // A document that is being written is left for the next import.
    std::fs::write(&file, &text[..text.len() / 2]).unwrap();
    let part = read().unwrap();
    assert_eq!((part.lines.len(), part.unfinished.len()), (0, 1));
    std::fs::write(&file, "{\n oops").unwrap();
    assert!(read().is_err());
}

// Messages that the tool replaces with a summary are compacted. Messages that it only shortens stay
// as they are, and the checkpoint is kept as a custom event.
#[test]
fn checkpoint_with_a_summary_is_a_compaction() {
    let mut lines = lines();
    let masked = json!({"id": "m3", "timestamp": AT, "type": "gemini", "content": "[masked]"});
    lines.truncate(9);
    lines.push(
        json!({"$set": {"messages": [user("m1", "Why is it wrong?"), masked],
        "lastUpdated": AT}}),
    );
    lines.push(json!({"$set": {"messages": [
        user("s1", "<state_snapshot>All that was</state_snapshot>"),
        gemini("s2", "Got it."), user("m4", "Delete it all")], "lastUpdated": AT}}));
    lines.push(gemini("m9", "No."));
    let (imported, _) = imported(&of(&lines));
    let told = told(&imported);
    let last = &told[told.len() - 4..];
    assert_eq!(
        last,
        [
            "main: user Delete it all",
            "main: gemini-cli/checkpoint",
            "main: compacted <state_snapshot>All that was</state_snapshot>",
            "main: assistant (Look\n\nat the file)|No.",
        ]
    );
    grows(&of(&lines));
}

// A session that was read with `--session-file` begins with a notice that the tool's list of
// messages lacks. That list, with the tool's context before the messages, must not become a
// compaction.
#[test]
fn checkpoint_without_a_notice_is_no_compaction() {
    let notice = json!({"id": "import-1", "timestamp": AT, "type": "info", "content": "Imported"});
    let context = user("m0", "<session_context>");
    let listed = [context, user("m1", "Why is it wrong?")];
    let lines = [
        header(),
        notice,
        user("m1", "Why is it wrong?"),
        json!({"$set": {"messages": listed, "lastUpdated": AT}}),
        gemini("m2", "It is the rounding."),
    ];
    let imported = of(&lines).import().unwrap();
    let is_compaction = |event: &NewEvent| matches!(event.body, EventBody::Compacted(_));
    assert!(!imported.events.iter().any(is_compaction));
}

// Whatever is in the file, the import must neither fail nor lose a line.
#[test]
fn unexpected_lines_are_kept_and_reported() {
    let mut lines = lines();
    lines.extend([
        json!({"$rewindTo": "nowhere"}),
        json!({"id": "o1", "type": "critic", "content": "?"}),
        json!({"id": "o2", "type": "gemini", "content": {"text": 5}, "timestamp": 7,
            "toolCalls": [{"status": "success"}, {"id": "c1", "name": "x", "status": "success"}]}),
        json!({"id": "o3", "type": "user", "content": null}),
        json!({"id": "o3", "type": "user", "content": "another with this id"}),
        json!({"$set": 5}),
        json!({"messages": [5, {"id": "o4"}]}),
        json!({"unknown": true}),
    ]);
    let mut session = of(&lines);
    session.lines.push("no json".into());
    let (imported, _) = imported(&session);
    let mut odd = oddities(&imported);
    odd.sort_unstable();
    odd.dedup();
    assert!(
        odd.contains(&"unknown role") && odd.contains(&"unreadable line"),
        "{odd:?}"
    );
    grows(&session);
}

// Lines may come in any order.
#[test]
fn any_line_order_only_appends() {
    any_grows(Format::GeminiCli, &lines());
}

/// Returns the active branch after these sessions were imported, one after the other.
fn active_after(sessions: &[ToolSession]) -> Vec<String> {
    let mut all = sessions[0].import().unwrap();
    for next in &sessions[1..] {
        let rest = plan(&stored(&all), &next.import().unwrap());
        all.events.extend(rest.events);
    }
    assert_legal(&stored(&all));
    let on = |event: &NewEvent| event.branch.clone().unwrap_or_default();
    let active = all.events.iter().rev();
    let mut active = active.filter(|event| event.body == EventBody::BranchActivated);
    let active = active.next().map(on).unwrap_or_default();
    let said = all.events.iter().filter(|event| on(event) == active);
    let text = |event: &NewEvent| match &event.body {
        EventBody::MessageAppended(said) => said.parts.first()?.text().map(str::to_owned),
        _ => None,
    };
    said.filter_map(text).collect()
}

// `gemini --resume` leaves another file of the same session with only one message. A file that has
// no message in common with the stored session and is shorter must not become active, whichever is
// imported first.
#[test]
fn short_unrelated_file_does_not_become_active() {
    let later = |id: &str, text: &str| {
        let mut said = user(id, text);
        said["timestamp"] = "2026-03-02T10:00:00.000Z".into();
        said
    };
    let whole = vec![
        header(),
        user("m1", "one"),
        gemini("m2", "two"),
        user("m3", "three"),
    ];
    let stub = of(&[header(), later("x1", "This is the Gemini CLI.")]);
    let grown = of(&[&whole[..], &[later("m4", "four")]].concat());
    let whole = of(&whole);
    let said = ["one", "three"];
    assert_eq!(active_after(&[whole.clone(), stub.clone()]), said);
    assert_eq!(active_after(&[stub.clone(), whole.clone()]), said);
    let said = ["one", "three", "four"];
    assert_eq!(active_after(&[whole, stub.clone(), grown.clone()]), said);
    assert_eq!(active_after(&[grown, stub]), said);
}

// A restarted session becomes active once it has at least as many messages.
#[test]
fn restarted_session_becomes_active_if_not_shorter() {
    let short = of(&[header(), user("m1", "one")]);
    let long = of(&[header(), user("n1", "other"), user("n2", "more")]);
    assert_eq!(active_after(&[short, long]), ["other", "more"]);
}
