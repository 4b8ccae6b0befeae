//! Breaks each rule by hand. The bodies are written here and not rendered, so that checker and
//! adapters cannot share a mistake.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::*;

/// A rule, and a change that breaks it.
type Case = (&'static str, fn(&mut Value));

/// A valid body must pass, each change must be reported under its rule's name, and each rule must
/// have a change.
fn check_all(provider: &str, good: &Value, cases: &[Case]) {
    let found = |body: &Value| check(provider, body.to_string().as_bytes());
    assert_eq!(found(good), [], "{provider}: the good body");
    for (place, (rule, break_it)) in cases.iter().enumerate() {
        let mut body = good.clone();
        break_it(&mut body);
        let violations = found(&body);
        let is_named = violations.iter().any(|violation| violation.rule == *rule);
        assert!(
            is_named,
            "{provider}: case {place} of {rule}: {violations:?}"
        );
    }
    let tried: BTreeSet<_> = cases.iter().map(|(rule, _)| *rule).collect();
    let all: BTreeSet<_> = rules(provider).iter().copied().collect();
    assert_eq!(
        tried, all,
        "{provider}: rules without a case, or the other way"
    );
}

fn list(value: &mut Value) -> &mut Vec<Value> {
    value.as_array_mut().unwrap()
}

fn remove(value: &mut Value, key: &str) {
    value.as_object_mut().unwrap().shift_remove(key).unwrap();
}

/// A text that is not JSON or not a body must be reported.
#[test]
fn what_is_no_body_is_found() {
    for provider in PROVIDERS {
        for body in [
            &b""[..],
            b"null",
            b"[]",
            b"{}",
            b"{\"messages\":1}",
            b"\xff",
        ] {
            let violations = check(provider, body);
            // Gemini's `contents` and the lists of the others are required.
            assert_eq!(violations[0].rule, "shape", "{provider}: {violations:?}");
        }
    }
}

/// Violations go into errors and logs, so they must not quote the conversation.
#[test]
fn violations_do_not_quote_the_conversation() {
    let secret = "hunter2";
    let bodies = [
        json!({"model": "m", "max_tokens": 1, "messages": [{"role": secret, "content": secret}]}),
        json!({"model": "m", "messages": [{"role": "user", "content": {"a": secret}}]}),
        json!({"model": "m", "input": [{"type": "message", "role": [secret]}]}),
        json!({"contents": [{"role": "user", "parts": [{"text": 1, "inlineData": secret}]}]}),
        json!({"model": secret, "messages": secret, "contents": secret, "input": secret}),
    ];
    for provider in PROVIDERS {
        for body in &bodies {
            let violations = check(provider, body.to_string().as_bytes());
            assert!(!violations.is_empty());
            assert!(
                !format!("{violations:?}").contains(secret),
                "{violations:?}"
            );
        }
    }
}

fn chat() -> Value {
    json!({
        "model": "gpt-4o",
        "tool_choice": "auto",
        "tools": [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}],
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "name": "ann", "content": [
                {"type": "text", "text": "t"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
                {"type": "file", "file": {"filename": "a", "file_data": "data:application/pdf;base64,AAAA"}}]},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "read", "arguments": "{}"}},
                {"id": "b", "type": "function", "function": {"name": "read", "arguments": "not json"}}]},
            {"role": "tool", "tool_call_id": "b", "content": "1"},
            {"role": "tool", "tool_call_id": "a", "content": "2"},
            {"role": "assistant", "content": "done"},
        ],
    })
}

#[test]
fn openai_chat_rules() {
    let cases: &[Case] = &[
        ("shape", |body| body["model"] = json!("")),
        ("shape", |body| body["messages"][1]["colour"] = json!(1)),
        ("shape", |body| body["tools"][0]["type"] = json!("thing")),
        ("tool-name", |body| {
            body["tools"][0]["function"]["name"] = json!("a b")
        }),
        ("tool-name", |body| {
            let again = body["tools"][0].clone();
            list(&mut body["tools"]).push(again);
        }),
        ("tool-name", |body| {
            body["messages"][2]["tool_calls"][0]["function"]["name"] = json!("");
        }),
        ("tool-schema", |body| {
            body["tools"][0]["function"]["parameters"] = json!({})
        }),
        ("messages-empty", |body| body["messages"] = json!([])),
        ("role", |body| body["messages"][0]["role"] = json!("robot")),
        ("role", |body| body["messages"][2]["role"] = json!("user")),
        ("content-empty", |body| {
            body["messages"][0]["content"] = json!(" \n")
        }),
        ("content-empty", |body| {
            body["messages"][1]["content"] = json!([])
        }),
        ("content-empty", |body| {
            remove(&mut body["messages"][5], "content")
        }),
        ("content-empty", |body| {
            body["messages"][2]["tool_calls"] = json!([])
        }),
        ("content-part", |body| {
            body["messages"][1]["content"][0]["text"] = json!("")
        }),
        ("content-part", |body| {
            body["messages"][1]["content"][1]["image_url"]["url"] = json!("file:///x");
        }),
        ("content-part", |body| {
            body["messages"][1]["content"][2]["input_audio"]["format"] = json!("ogg");
        }),
        ("content-part", |body| {
            let image = body["messages"][1]["content"][1].clone();
            body["messages"][3]["content"] = json!([image]);
        }),
        ("arguments-string", |body| {
            body["messages"][2]["tool_calls"][0]["function"]["arguments"] = json!({});
        }),
        ("call-id", |body| {
            body["messages"][2]["tool_calls"][0]["id"] = json!("x".repeat(41));
        }),
        ("call-id-unique", |body| {
            body["messages"][2]["tool_calls"][0]["id"] = json!("b")
        }),
        // Call without a result.
        ("unanswered-call", |body| {
            drop(list(&mut body["messages"]).remove(3))
        }),
        // A crash between call and result.
        ("unanswered-call", |body| {
            list(&mut body["messages"]).truncate(3)
        }),
        // A user message between call and result.
        ("unanswered-call", |body| {
            list(&mut body["messages"]).insert(3, json!({"role": "user", "content": "u"}));
        }),
        // Result without a call.
        ("unmatched-result", |body| {
            let result = body["messages"][3].clone();
            list(&mut body["messages"]).push(result);
        }),
        // Wrong id.
        ("unmatched-result", |body| {
            body["messages"][3]["tool_call_id"] = json!("c")
        }),
        ("unmatched-result", |body| {
            remove(&mut body["messages"][3], "tool_call_id")
        }),
        ("author-name", |body| {
            body["messages"][1]["name"] = json!("Ann Lee")
        }),
        ("tool-choice", |body| remove(body, "tools")),
    ];
    check_all("openai-chat", &chat(), cases);
}

fn responses() -> Value {
    json!({
        "model": "gpt-5",
        "store": false,
        "include": ["reasoning.encrypted_content"],
        "tool_choice": "auto",
        "tools": [{"type": "function", "name": "read", "parameters": {"type": "object"}, "strict": false}],
        "instructions": "s",
        "input": [
            {"type": "message", "role": "user", "content": [
                {"type": "input_text", "text": "t"},
                {"type": "input_image", "image_url": "https://x.org/a.png", "detail": "auto"},
                {"type": "input_file", "filename": "a", "file_data": "data:application/pdf;base64,AAAA"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
            {"type": "function_call", "call_id": "a", "name": "read", "arguments": "{}"},
            {"type": "function_call", "call_id": "b", "name": "read", "arguments": ""},
            {"type": "function_call_output", "call_id": "a", "output": "1"},
            {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "2"}]},
            {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [
                {"type": "output_text", "text": "t", "annotations": []}]},
        ],
    })
}

#[test]
fn openai_responses_rules() {
    let cases: &[Case] = &[
        ("shape", |body| body["model"] = json!(1)),
        ("shape", |body| remove(&mut body["tools"][0], "strict")),
        ("tool-name", |body| body["tools"][0]["name"] = json!("a.b")),
        ("tool-name", |body| body["input"][2]["name"] = json!("a.b")),
        ("tool-schema", |body| {
            body["tools"][0]["parameters"] = json!(true)
        }),
        ("input-empty", |body| body["input"] = json!([])),
        ("item-type", |body| {
            body["input"][0]["type"] = json!("thing")
        }),
        ("role", |body| body["input"][0]["role"] = json!("tool")),
        ("content-empty", |body| {
            body["input"][0]["content"] = json!([])
        }),
        ("content-part", |body| {
            body["input"][0]["content"][0]["text"] = json!("")
        }),
        ("content-part", |body| {
            body["input"][0]["content"][0]["type"] = json!("output_text")
        }),
        ("content-part", |body| {
            remove(&mut body["input"][0]["content"][1], "detail")
        }),
        ("content-part", |body| {
            body["input"][0]["content"][2]["file_url"] = json!("https://x")
        }),
        ("instructions", |body| body["instructions"] = json!("")),
        ("arguments-string", |body| {
            body["input"][2]["arguments"] = json!({})
        }),
        ("call-id", |body| body["input"][2]["call_id"] = json!("")),
        ("call-id-unique", |body| {
            body["input"][3]["call_id"] = json!("a")
        }),
        ("unanswered-call", |body| {
            drop(list(&mut body["input"]).remove(4))
        }),
        ("unanswered-call", |body| {
            list(&mut body["input"]).truncate(4)
        }),
        ("unmatched-result", |body| {
            body["input"][4]["call_id"] = json!("c")
        }),
        ("unmatched-result", |body| {
            list(&mut body["input"]).swap(0, 4)
        }),
        ("unmatched-result", |body| {
            body["input"][5]["call_id"] = json!("a")
        }),
        ("output", |body| body["input"][4]["output"] = json!({})),
        ("reasoning-place", |body| {
            list(&mut body["input"]).swap(0, 1)
        }),
        ("reasoning-place", |body| {
            let reasoning = list(&mut body["input"]).remove(1);
            list(&mut body["input"]).push(reasoning);
        }),
        ("reasoning-content", |body| {
            remove(&mut body["input"][1], "encrypted_content")
        }),
        ("reasoning-content", |body| remove(body, "include")),
        ("item-id", |body| body["input"][1]["id"] = json!("x")),
        ("item-id", |body| remove(&mut body["input"][6], "id")),
        ("item-id", |body| {
            let again = body["input"][6].clone();
            list(&mut body["input"]).push(again);
        }),
        ("tool-choice", |body| remove(body, "tools")),
    ];
    check_all("openai-responses", &responses(), cases);
}

fn anthropic() -> Value {
    let mark = json!({"type": "ephemeral"});
    json!({
        "model": "claude",
        "max_tokens": 100,
        "tool_choice": {"type": "auto"},
        "tools": [{"name": "read", "input_schema": {"type": "object"}, "cache_control": mark}],
        "system": [{"type": "text", "text": "s", "cache_control": mark}],
        "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "t"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
                {"type": "document", "source": {"type": "url", "url": "https://x.org/a.pdf"}}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "", "signature": "s"},
                {"type": "redacted_thinking", "data": "d"},
                {"type": "tool_use", "id": "a", "name": "read", "input": {}},
                {"type": "tool_use", "id": "b", "name": "read", "input": {}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "b", "content": [{"type": "text", "text": "1"}]},
                {"type": "tool_result", "tool_use_id": "a", "is_error": true, "cache_control": mark},
                {"type": "text", "text": "t", "cache_control": mark}]},
            {"role": "assistant", "content": [{"type": "text", "text": "t"}]},
        ],
    })
}

#[test]
fn anthropic_rules() {
    let cases: &[Case] = &[
        ("shape", |body| body["model"] = json!("")),
        ("shape", |body| body["messages"][0]["name"] = json!("ann")),
        ("shape", |body| {
            body["messages"][0]["content"][0]["colour"] = json!(1)
        }),
        ("tool-name", |body| body["tools"][0]["name"] = json!("a.b")),
        ("tool-name", |body| {
            body["messages"][1]["content"][2]["name"] = json!("")
        }),
        ("tool-schema", |body| {
            remove(&mut body["tools"][0], "input_schema")
        }),
        ("max-tokens", |body| remove(body, "max_tokens")),
        ("max-tokens", |body| body["max_tokens"] = json!(0)),
        ("system", |body| body["system"] = json!("")),
        ("system", |body| body["system"][0]["text"] = json!("\n")),
        ("messages-empty", |body| body["messages"] = json!([])),
        ("first-role", |body| {
            drop(list(&mut body["messages"]).remove(0))
        }),
        ("role", |body| body["messages"][0]["role"] = json!("system")),
        ("roles-alternate", |body| {
            list(&mut body["messages"]).insert(0, json!({"role": "user", "content": "u"}));
        }),
        ("content-empty", |body| {
            body["messages"][0]["content"] = json!([])
        }),
        ("content-block", |body| {
            let image = body["messages"][0]["content"][1].clone();
            list(&mut body["messages"][1]["content"]).insert(2, image);
        }),
        ("text-blank", |body| {
            body["messages"][0]["content"][0]["text"] = json!(" ")
        }),
        ("text-blank", |body| {
            body["messages"][0]["content"] = json!("\t")
        }),
        ("input-object", |body| {
            body["messages"][1]["content"][2]["input"] = json!("{}")
        }),
        ("input-object", |body| {
            body["messages"][1]["content"][2]["input"] = json!([])
        }),
        ("call-id", |body| {
            body["messages"][1]["content"][2]["id"] = json!("call:a")
        }),
        ("call-id-unique", |body| {
            body["messages"][1]["content"][2]["id"] = json!("b")
        }),
        // A batch with a missing result.
        ("unanswered-call", |body| {
            drop(list(&mut body["messages"][2]["content"]).remove(0))
        }),
        // A crash between call and result.
        ("unanswered-call", |body| {
            list(&mut body["messages"]).truncate(2)
        }),
        // The results of a batch in two messages.
        ("unanswered-call", |body| {
            let result = list(&mut body["messages"][2]["content"]).remove(1);
            let more = [
                json!({"role": "assistant", "content": "a"}),
                json!({"role": "user", "content": [result]}),
            ];
            list(&mut body["messages"]).splice(3..3, more);
        }),
        ("unmatched-result", |body| {
            body["messages"][2]["content"][0]["tool_use_id"] = json!("c");
        }),
        ("unmatched-result", |body| {
            let result = body["messages"][2]["content"][0].clone();
            list(&mut body["messages"][2]["content"]).insert(0, result);
        }),
        ("results-first", |body| {
            list(&mut body["messages"][2]["content"]).swap(0, 2)
        }),
        ("result-content", |body| {
            body["messages"][2]["content"][0]["content"][0]["text"] = json!("");
        }),
        ("result-content", |body| {
            body["messages"][2]["content"][0]["content"] = json!({})
        }),
        ("thinking", |body| {
            body["messages"][1]["content"][0]["signature"] = json!("")
        }),
        ("thinking", |body| {
            remove(&mut body["messages"][1]["content"][1], "data")
        }),
        ("thinking", |body| {
            body["messages"][1]["content"][0]["cache_control"] = json!({"type": "ephemeral"});
        }),
        ("thinking-last", |body| {
            let thinking = body["messages"][1]["content"][0].clone();
            list(&mut body["messages"][3]["content"]).push(thinking);
        }),
        ("thinking-parameter", |body| {
            body["thinking"] = json!({"type": "enabled", "budget_tokens": 2000});
        }),
        ("thinking-parameter", |body| {
            body["max_tokens"] = json!(3000);
            body["thinking"] = json!({"type": "enabled", "budget_tokens": 2000});
            list(&mut body["messages"]).truncate(3);
            list(&mut body["messages"][1]["content"]).drain(..2);
        }),
        ("trailing-space", |body| {
            body["messages"][3]["content"][0]["text"] = json!("t \n")
        }),
        ("media-source", |body| {
            body["messages"][0]["content"][1]["source"]["media_type"] = json!("image/tiff");
        }),
        ("media-source", |body| {
            body["messages"][0]["content"][1]["source"]["data"] = json!("A-A A");
        }),
        ("media-source", |body| {
            body["messages"][0]["content"][2]["source"]["url"] = json!("gs://x");
        }),
        ("cache-control", |body| {
            body["messages"][0]["content"][0]["cache_control"] = json!({"type": "ephemeral"});
        }),
        ("cache-control", |body| {
            body["tools"][0]["cache_control"]["type"] = json!("eternal")
        }),
        ("tool-choice", |body| body["tools"] = json!([])),
    ];
    check_all("anthropic", &anthropic(), cases);
}

fn gemini() -> Value {
    json!({
        "tools": [{"functionDeclarations": [{"name": "fs.read", "parametersJsonSchema": {"type": "object"}}]}],
        "systemInstruction": {"parts": [{"text": "s"}]},
        "contents": [
            {"role": "user", "parts": [
                {"text": "t"},
                {"inlineData": {"mimeType": "image/png", "data": "AAAA"}},
                {"fileData": {"mimeType": "image/png", "fileUri": "gs://x/y"}}]},
            {"role": "model", "parts": [
                {"text": "t", "thought": true, "thoughtSignature": "AAAA"},
                {"functionCall": {"name": "fs.read", "args": {}}, "thoughtSignature": "AAAA"},
                {"functionCall": {"name": "list"}}]},
            {"role": "user", "parts": [
                {"functionResponse": {"name": "fs.read", "response": {"output": "1"}}},
                {"functionResponse": {"name": "list", "response": {"output": "2"}}}]},
            {"role": "user", "parts": [{"text": "t"}]},
            {"role": "model", "parts": [{"text": "t"}]},
        ],
    })
}

#[test]
fn gemini_rules() {
    let cases: &[Case] = &[
        ("shape", |body| {
            body["contents"][0]["parts"][0]["colour"] = json!(1)
        }),
        ("tool-name", |body| {
            body["tools"][0]["functionDeclarations"][0]["name"] = json!("1st");
        }),
        ("tool-name", |body| {
            body["contents"][1]["parts"][1]["functionCall"]["name"] = json!("a b");
        }),
        ("tool-schema", |body| {
            body["tools"][0]["functionDeclarations"][0]["parametersJsonSchema"] = json!([]);
        }),
        ("system-instruction", |body| {
            body["systemInstruction"]["parts"] = json!([])
        }),
        ("contents-empty", |body| body["contents"] = json!([])),
        ("role", |body| {
            body["contents"][0]["role"] = json!("assistant")
        }),
        ("first-role", |body| {
            drop(list(&mut body["contents"]).remove(0))
        }),
        ("call-after-user", |body| {
            let before = json!({"role": "model", "parts": [{"text": "t"}]});
            list(&mut body["contents"]).insert(1, before);
        }),
        ("parts-empty", |body| {
            body["contents"][0]["parts"] = json!([])
        }),
        ("part", |body| {
            body["contents"][0]["parts"][1]["text"] = json!("t");
        }),
        ("part", |body| body["contents"][0]["parts"][0] = json!({})),
        ("text-empty", |body| {
            body["contents"][0]["parts"][0]["text"] = json!("")
        }),
        ("args-object", |body| {
            body["contents"][1]["parts"][1]["functionCall"]["args"] = json!("{}");
        }),
        ("call-place", |body| {
            body["contents"][1]["role"] = json!("user")
        }),
        // A batch with a missing result.
        ("response-count", |body| {
            drop(list(&mut body["contents"][2]["parts"]).pop())
        }),
        // A call without a result, and a crash between call and result.
        ("response-count", |body| {
            list(&mut body["contents"]).truncate(2)
        }),
        // A user message between call and result.
        ("response-count", |body| {
            list(&mut body["contents"]).swap(2, 3)
        }),
        // Result without a call.
        ("response-count", |body| {
            let response = body["contents"][2].clone();
            list(&mut body["contents"]).insert(3, response);
        }),
        // Results out of order.
        ("response-name", |body| {
            list(&mut body["contents"][2]["parts"]).swap(0, 1)
        }),
        ("response-object", |body| {
            body["contents"][2]["parts"][0]["functionResponse"]["response"] = json!("1");
        }),
        ("response-place", |body| {
            list(&mut body["contents"][2]["parts"]).push(json!({"text": "t"}));
        }),
        ("response-place", |body| {
            body["contents"][2]["role"] = json!("model")
        }),
        ("thought-signature", |body| {
            body["contents"][1]["parts"][1]["thoughtSignature"] = json!("not base64!");
        }),
        ("thought-signature", |body| {
            body["contents"][0]["parts"][0]["thought"] = json!(true)
        }),
        ("media-source", |body| {
            body["contents"][0]["parts"][1]["inlineData"]["data"] = json!("");
        }),
        ("media-source", |body| {
            body["contents"][0]["parts"][2]["fileData"]["mimeType"] = json!("");
        }),
    ];
    check_all("gemini", &gemini(), cases);
}

#[test]
fn neutral_rules() {
    let call = json!({"type": "call", "id": "a", "outcome": {"type": "result"}});
    let good = json!({
        "format": "treering.context/1",
        "items": [
            {"type": "message", "parts": []},
            {"type": "step", "blocks": [{"type": "text", "text": "t"}, call]},
        ],
    });
    let cases: &[Case] = &[
        ("shape", |body| body["items"][0] = json!(1)),
        ("format", |body| {
            body["format"] = json!("treering.context/0")
        }),
        ("item-type", |body| remove(&mut body["items"][1], "blocks")),
        ("call-id-unique", |body| {
            let again = body["items"][1]["blocks"][1].clone();
            list(&mut body["items"][1]["blocks"]).push(again);
        }),
        ("outcome", |body| {
            remove(&mut body["items"][1]["blocks"][1], "outcome")
        }),
    ];
    check_all("neutral", &good, cases);
}
