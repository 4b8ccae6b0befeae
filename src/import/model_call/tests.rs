//! Tests that repeated messages and calls are recognised.

use serde_json::{Map, Value, json};

use super::*;
use crate::{
    plan,
    stored::{erased, stored},
};

fn context() -> CallSource {
    CallSource {
        source_id: "s".into(),
        session: String::new(),
        meta: Map::new(),
        sent_at: TimestampMicros(1),
        answered_at: TimestampMicros(2),
        is_interrupted: false,
    }
}

fn recorded(call: &ModelCall) -> Vec<StoredEvent> {
    let nothing = StoredHistory::read(&[]);
    let place = nothing.place(call);
    stored(&import_call(call, &context(), &nothing, &place).unwrap())
}

fn messages(list: Value) -> ModelCall {
    let request = json!({"model": "m", "messages": list});
    let answer = json!({"id": "msg_9", "model": "m", "stop_reason": "tool_use", "content": [
        {"type": "thinking", "thinking": "so", "signature": "c2ln"},
        {"type": "text", "text": "I look. "},
        {"type": "tool_use", "id": "a", "name": "ls", "input": {"path": ".", "all": true}}]});
    CallFormat::Messages.read(&request, &answer).unwrap()
}

fn asked(answer: Value, result: Value) -> ModelCall {
    messages(json!([
        {"role": "user", "content": "list"},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": result}]},
    ]))
}

// A client sends an answer back in another form. If its content is the same, only later steps are
// new. If not, the history differs there.
#[test]
fn answers_are_found_again_in_other_words() {
    let first = messages(json!([{"role": "user", "content": "list"}]));
    let events = recorded(&first);
    let history = StoredHistory::read(&events);
    let call = |arguments: Value| {
        json!({"type": "tool_use", "id": "a", "name": "ls",
        "input": arguments})
    };
    let arguments = json!({"all": true, "path": "."});
    let text = json!({"type": "text", "text": "I look.", "cache_control": {"type": "ephemeral"}});
    for same in [
        json!([text, call(arguments.clone())]),
        json!([{"type": "text", "text": ""}, {"type": "text", "text": "I "},
            {"type": "text", "text": "look."}, call(arguments.clone())]),
    ] {
        let place = history.place(&asked(same, json!("x")));
        assert!(place.continues_answer && place.belongs());
        assert_eq!(place.new, [2]);
    }
    for other in [
        json!([text]),
        json!([{"type": "text", "text": "You look."}, call(arguments)]),
        json!([text, call(json!({"path": "/"}))]),
    ] {
        let place = history.place(&asked(other, json!("x")));
        assert!(!place.continues_answer && place.repeats_prompt);
        assert_eq!(place.new, [1, 2]);
    }
}

// Harnesses clear old results to save tokens, and move their notices. Neither changes the history.
#[test]
fn cleared_results_and_moved_notices_are_the_same_past() {
    let answer = json!([{"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "a", "name": "ls", "input": {"path": ".", "all": true}}]);
    let call = asked(answer.clone(), json!("a.rs"));
    let events = recorded(&call);
    let history = StoredHistory::read(&events);
    assert_eq!(history.place(&call).new, [0; 0]);
    assert!(history.has_call(&call, &history.place(&call)));
    let cleared = asked(answer.clone(), json!("[Old tool result content cleared]"));
    assert_eq!(history.place(&cleared).new, [0; 0]);
    let mut noticed = asked(answer.clone(), json!("a.rs"));
    let notice = MessageAppended::text(Role::User, "<system-reminder>hm</system-reminder>");
    noticed.request.insert(1, CallStep::said(notice));
    assert_eq!(history.place(&noticed).new, [0; 0]);
    let other = asked(answer, json!("b.rs"));
    assert_eq!(history.place(&other).new, [2]);
}

// Input that is not a message must not become one, whatever a client sends.
#[test]
fn odd_requests_are_refused_or_kept() {
    let nothing = json!({});
    for format in [
        CallFormat::ChatCompletions,
        CallFormat::Responses,
        CallFormat::Messages,
    ] {
        for odd in [json!(null), json!({}), json!({"messages": 5, "input": 5})] {
            assert_eq!(format.read(&odd, &nothing), None);
        }
        let list = json!([null, 5, {"role": 7}, {"role": "user"}, {"role": "tool"},
            {"role": "assistant", "content": [{"type": "tool_use"}], "tool_calls": [{}, null]},
            {"type": "function_call"}, {"type": "function_call_output", "output": null},
            {"type": "new", "x": 1}]);
        let odd = json!({"messages": list, "input": list});
        let answer = json!({"choices": [{"message": {"content": "hi"}}], "output": [
            {"type": "message", "role": "assistant", "content": [{"type": "output_text",
            "text": "hi"}]}], "content": [{"type": "text", "text": "hi"}]});
        let call = format.read(&odd, &answer).unwrap();
        assert!(call.answer.is_some(), "{format:?}");
        let events = recorded(&call);
        let history = StoredHistory::read(&events);
        assert!(history.has_call(&call, &history.place(&call)), "{format:?}");
    }
}

// A client still repeats an erased question and its answer. They must not be stored again, but a
// new question at that place must be stored.
#[test]
fn erased_messages_stay_erased() {
    let answer = json!([{"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "a", "name": "ls", "input": {"path": ".", "all": true}}]);
    let first = messages(json!([{"role": "user", "content": "my secret"}]));
    let events = erased(&recorded(&first), |index| index > 0);
    let history = StoredHistory::read(&events);
    let mut repeated = asked(answer, json!("x"));
    repeated.request[0] = first.request[0].clone();
    let place = history.place(&repeated);
    assert_eq!(place.new, [2]);
    let imported = import_call(&repeated, &context(), &history, &place).unwrap();
    let added = plan(&events, &imported);
    assert!(added.parted.is_empty(), "{:?}", added.parted);
    assert!(!format!("{:?}", added.events).contains("secret"));
    let other = messages(json!([{"role": "user", "content": "another question"}]));
    assert_eq!(history.place(&other).new, [0]);
}
