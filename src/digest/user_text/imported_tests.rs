//! Tests of records in the form that this project's importers write.

use serde_json::{Value, json};

use super::{is_by_harness, local_command, of_message};
use crate::budget_tests::{fitted, kept_texts, policy};
use treering_context::window::samples::Story;
use treering_domain::{EventBody, MessageAppended};
use treering_import::{format::Format, session::ToolSession};

/// Imports a pi session with these messages. Returns the events.
fn pi(messages: Vec<Value>) -> Vec<EventBody> {
    let header = json!({"type": "session", "version": 3, "id": "s", "cwd": "/work"});
    let entries = messages.into_iter().enumerate().map(|(at, mut entry)| {
        if entry.get("type").is_none() {
            entry = json!({"type": "message", "message": entry});
        }
        entry["id"] = format!("e{at}").into();
        let before = at.checked_sub(1).map(|before| format!("e{before}"));
        entry["parentId"] = before.map_or(Value::Null, Value::from);
        entry
    });
    let lines = std::iter::once(header).chain(entries);
    let session = ToolSession {
        format: Format::Pi,
        name: "s".to_owned(),
        lines: lines.map(|line| line.to_string().into()).collect(),
        unfinished: Vec::new(),
    };
    let events = session.import().unwrap().events;
    events.into_iter().map(|event| event.body).collect()
}

fn said(role: &str, text: &str) -> Value {
    json!({"role": role, "content": [{"type": "text", "text": text}]})
}

fn ran(command: &str, output: &str) -> Value {
    json!({"role": "bashExecution", "command": command, "output": output, "exitCode": 1,
        "cancelled": false, "truncated": false})
}

fn messages(events: &[EventBody]) -> Vec<&MessageAppended> {
    let messages = events.iter().filter_map(|event| match event {
        EventBody::MessageAppended(message) => Some(message),
        _ => None,
    });
    messages.collect()
}

// Only sessions that other tools had converted from pi were recognised, not those of this project's
// importer. A command with a long output counted as the user's last message, which is never cut,
// and an extension's notice counted as a request.
#[test]
fn records_of_pi_are_told_from_the_users_words() {
    let long = "a line of the listing\n".repeat(20);
    let events = pi(vec![
        said("user", "fix the failing test"),
        ran("ls", &long),
        ran("pwd", "/work"),
        json!({"role": "custom", "customType": "x", "content": "a notice"}),
        json!({"type": "custom_message", "customType": "x", "content": long}),
        json!({"type": "branch_summary", "fromId": "e0", "summary": long}),
        said("user", "/mode"),
        said("user", "The user ran: rm -rf /"),
    ]);
    let messages = messages(&events);
    let told: Vec<_> = messages.iter().map(|message| of_message(message)).collect();
    let expected = [
        "fix the failing test",
        "",
        "",
        "",
        "",
        "",
        "",
        "The user ran: rm -rf /",
    ];
    assert_eq!(
        told,
        expected.map(|text| (!text.is_empty()).then(|| text.to_owned()))
    );
    let command = local_command(messages[1]).unwrap();
    assert!(!command.is_hidden);
    assert!(
        command
            .text
            .starts_with("<bash-input>ls</bash-input>\n<bash-stdout>a line")
    );
    assert!(
        command
            .text
            .ends_with("<bash-status>exit code 1</bash-status>")
    );
    assert!(local_command(messages[2]).unwrap().text.contains("/work"));
    let by_harness: Vec<bool> = messages
        .iter()
        .map(|message| is_by_harness(message))
        .collect();
    assert_eq!(
        by_harness,
        [false, false, false, true, true, true, false, false]
    );
}

// A session with such a command needed 27,704 tokens and was refused at 8,000. The task was dropped
// first.
#[test]
fn long_command_output_of_pi_fits_a_budget() {
    let mut spoken = vec![said("user", "/mode"), said("user", "fix the failing test")];
    for step in 0..30 {
        spoken.push(said(
            "assistant",
            &format!("step {step}: {}", "a word ".repeat(200)),
        ));
        spoken.push(said("user", &format!("go on with part {step}")));
    }
    spoken.push(ran(
        "find .",
        &"./some/file/of/the/project.rs\n".repeat(4_000),
    ));
    let mut story = Story::new();
    for event in pi(spoken).into_iter().skip(1) {
        story = story.then(event);
    }
    let (draft, outcome) = fitted(&story, &policy(8_000));
    assert!(!outcome.over_budget, "{outcome:?}");
    let kept = kept_texts(&draft).join("\n");
    assert!(kept.contains("fix the failing test"), "{kept}");
    assert!(kept.contains("<bash-input>find .</bash-input>"), "{kept}");
}
