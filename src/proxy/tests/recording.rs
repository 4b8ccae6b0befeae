//! What is recorded for each API, with and without streaming.

use serde_json::{Value, json};
use treering_domain::EventKind;

use super::loopback::{Setup, chat, chat_answer, said, stream_text, streamed, user, whole};

// The simplest use: one question through an SDK. The SDK must get the provider's bytes. The store
// must get the messages, but not the API key.
#[tokio::test(flavor = "multi_thread")]
async fn chat_call_passes_unchanged_and_is_recorded() {
    let setup = Setup::start().await;
    let request = json!({"model": "gpt-4o", "messages": [
        {"role": "system", "content": "be brief"}, user("hello")]});
    let answer = chat_answer("chatcmpl-1", said("hi"));
    let headers = [
        ("authorization", "Bearer sk-secret-1"),
        ("x-treering-conversation", "mine"),
        ("user-agent", "test/1"),
    ];
    let got = setup
        .call_with("/v1/chat/completions", &headers, &request, whole(&answer))
        .await;
    assert_eq!(
        (got.status(), got.header("x-request-id")),
        (200, Some("r1"))
    );
    assert_eq!(got.body, answer.to_string().into_bytes());
    let passed = setup.provider.last_request();
    assert_eq!(passed.start, "POST /v1/chat/completions HTTP/1.1");
    assert_eq!(passed.header("authorization"), Some("Bearer sk-secret-1"));
    assert_eq!(passed.header("x-treering-conversation"), None);
    assert_eq!(passed.json(), request);

    let stored = setup.stop().await;
    let line = stored.only();
    assert_eq!(
        (&line["id"], &line["source"]),
        (&json!("mine"), &json!("proxy"))
    );
    assert_eq!(line["client"], "test/1");
    let usage = json!({"input_tokens": 10, "output_tokens": 3, "cache_read_input_tokens": 2,
        "cache_creation_input_tokens": 0});
    assert_eq!(
        line["messages"],
        json!([
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": "hi", "x": {"usage": usage, "stop": "stop"}},
        ])
    );
    assert!(!format!("{:?}", stored.conversations).contains("sk-secret"));
}

fn chunk(delta: Value, reason: Value) -> Value {
    json!({"id": "chatcmpl-1", "model": "gpt-4o", "choices":
        [{"index": 0, "delta": delta, "finish_reason": reason}]})
}

// An agent's turn takes two requests: first a tool call, streamed in pieces, then its result with
// the whole history again. Both must become one conversation without duplicates.
#[tokio::test(flavor = "multi_thread")]
async fn streamed_tool_call_and_result_are_one_conversation() {
    let setup = Setup::start().await;
    let function = |name: &str, text: &str| json!({"name": name, "arguments": text});
    let events = [
        chunk(json!({"role": "assistant", "content": null}), Value::Null),
        chunk(json!({"reasoning_content": "look "}), Value::Null),
        chunk(json!({"reasoning_content": "first"}), Value::Null),
        chunk(
            json!({"tool_calls": [{"index": 0, "id": "call_aaaaaaaaaaaaaaaa", "type": "function",
                "function": function("ls", "")}]}),
            Value::Null,
        ),
        chunk(
            json!({"tool_calls": [{"index": 0, "function": {"arguments": "{\"path\""}}]}),
            Value::Null,
        ),
        chunk(
            json!({"tool_calls": [{"index": 0, "function": {"arguments": ": \".\"}"}}]}),
            Value::Null,
        ),
        chunk(json!({}), json!("tool_calls")),
        json!({"id": "chatcmpl-1", "choices": [], "usage": {"prompt_tokens": 5,
            "completion_tokens": 7}}),
        json!("[DONE]"),
    ];
    let tools = json!([{"type": "function", "function": {"name": "ls", "parameters":
        {"type": "object"}}}]);
    let mut request = chat(json!([user("list")]));
    request["stream"] = true.into();
    request["tools"] = tools;
    let got = setup
        .call("/v1/chat/completions", &request, streamed(&events))
        .await;
    assert_eq!(String::from_utf8_lossy(&got.body), stream_text(&events));

    // The SDK sends the answer back changed: without reasoning, with other white space.
    let call = json!({"id": "call_aaaaaaaaaaaaaaaa", "type": "function",
        "function": function("ls", "{\"path\":\".\"}")});
    request["messages"] = json!([
        user("list"),
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_aaaaaaaaaaaaaaaa", "content": "a.rs"},
    ]);
    let text = chat_answer("chatcmpl-2", said("one file"));
    setup
        .call("/v1/chat/completions", &request, whole(&text))
        .await;
    let stored = setup.stop().await;
    let messages = stored.only()["messages"].clone();
    assert_eq!(messages[1]["reasoning_content"], "look first");
    assert_eq!(messages[1]["x"]["usage"]["output_tokens"], 7);
    assert_eq!(
        stored.talk(0),
        [
            "user: list",
            "call ls {\"path\": \".\"}",
            "tool: a.rs",
            "assistant: one file"
        ]
    );
    assert_eq!(stored.count(0, EventKind::BranchForked), 0);
    assert_eq!(stored.count(0, EventKind::ToolsDefined), 1);
}

fn block(index: u64, kind: &str, delta: Value) -> Value {
    json!({"type": kind, "index": index, "delta": delta})
}

// Anthropic streams blocks: thinking with a signature, text and the input of a call in pieces. The
// next request has the result in a user message, with cache marks.
#[tokio::test(flavor = "multi_thread")]
async fn anthropic_stream_with_thinking_and_call_is_recorded() {
    let setup = Setup::start().await;
    let start = |index: u64, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
    let stop = |index: u64| json!({"type": "content_block_stop", "index": index});
    let delta = |index, delta| block(index, "content_block_delta", delta);
    let events = [
        json!({"type": "message_start", "message": {"id": "msg_1", "type": "message",
            "role": "assistant", "model": "claude-sonnet-4-5", "content": [], "stop_reason": null,
            "usage": {"input_tokens": 10, "cache_read_input_tokens": 4, "output_tokens": 1}}}),
        start(
            0,
            json!({"type": "thinking", "thinking": "", "signature": ""}),
        ),
        delta(0, json!({"type": "thinking_delta", "thinking": "look"})),
        delta(0, json!({"type": "signature_delta", "signature": "c2ln"})),
        stop(0),
        json!({"type": "ping"}),
        start(1, json!({"type": "text", "text": ""})),
        delta(1, json!({"type": "text_delta", "text": "I look"})),
        delta(1, json!({"type": "text_delta", "text": " first."})),
        stop(1),
        start(
            2,
            json!({"type": "tool_use", "id": "toolu_1", "name": "ls", "input": {}}),
        ),
        delta(2, json!({"type": "input_json_delta", "partial_json": ""})),
        delta(
            2,
            json!({"type": "input_json_delta", "partial_json": "{\"path\": "}),
        ),
        delta(
            2,
            json!({"type": "input_json_delta", "partial_json": "\".\"}"}),
        ),
        stop(2),
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"},
            "usage": {"output_tokens": 25}}),
        json!({"type": "message_stop"}),
    ];
    let system = json!([
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=1;"},
        {"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}]);
    let user_id = "user_00_account__session_11111111-2222-3333-4444-555555555555";
    let mut request = json!({
        "model": "claude-sonnet-4-5", "max_tokens": 100, "stream": true, "system": system,
        "metadata": {"user_id": user_id},
        "messages": [{"role": "user", "content": [
            {"type": "text", "text": "<system-reminder>be nice</system-reminder>"},
            {"type": "text", "text": "list", "cache_control": {"type": "ephemeral"}}]}],
    });
    let got = setup
        .call("/v1/messages", &request, streamed(&events))
        .await;
    assert_eq!(String::from_utf8_lossy(&got.body), stream_text(&events));
    assert_eq!(
        setup.provider.last_request().start,
        "POST /v1/messages HTTP/1.1"
    );

    request["system"][0]["text"] = "x-anthropic-billing-header: cc_version=1; cch=2;".into();
    request["stream"] = false.into();
    request["messages"] = json!([
        {"role": "user", "content": [{"type": "text", "text": "list"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "look", "signature": "c2ln"},
            {"type": "text", "text": "I look first."},
            {"type": "tool_use", "id": "toolu_1", "name": "ls", "input": {"path": "."}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": "a.rs",
                "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "<system-reminder>still nice</system-reminder>"}]},
    ]);
    let answer = json!({"id": "msg_2", "type": "message", "role": "assistant",
        "model": "claude-sonnet-4-5", "content": [{"type": "text", "text": "one file"}],
        "stop_reason": "end_turn", "usage": {"input_tokens": 40, "output_tokens": 2}});
    setup.call("/v1/messages", &request, whole(&answer)).await;
    // The harness moves its notices.
    request["messages"][2]["content"]
        .as_array_mut()
        .unwrap()
        .pop();
    let messages = request["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": [{"type": "text", "text": "one file"}]}));
    messages.push(user("thanks"));
    let last = json!({"id": "msg_3", "role": "assistant", "model": "claude-sonnet-4-5",
        "content": [{"type": "text", "text": "bye"}], "stop_reason": "end_turn",
        "usage": {"input_tokens": 50, "output_tokens": 1}});
    setup.call("/v1/messages", &request, whole(&last)).await;

    let stored = setup.stop().await;
    let line = stored.only();
    assert_eq!(line["id"], "11111111-2222-3333-4444-555555555555");
    let first = &line["messages"][2];
    assert_eq!(first["reasoning_content"], "look");
    assert_eq!(first["x"]["stop"], "tool_use");
    let usage = json!({"input_tokens": 10, "output_tokens": 25, "cache_read_input_tokens": 4,
        "cache_creation_input_tokens": 0});
    assert_eq!(first["x"]["usage"], usage);
    let talk = stored.talk(0);
    assert_eq!(talk[0], "system: be brief");
    assert_eq!(
        talk[2..],
        [
            "assistant: I look first.",
            "call ls {\"path\":\".\"}",
            "tool: a.rs",
            "user: <system-reminder>still nice</system-reminder>",
            "assistant: one file",
            "user: thanks",
            "assistant: bye"
        ]
    );
    assert_eq!(stored.count(0, EventKind::BranchForked), 0);
}

// With Responses, an agent may repeat all items, as Codex does, or refer to the last answer by its
// id. Both must continue the conversation.
#[tokio::test(flavor = "multi_thread")]
async fn responses_continue_by_items_and_by_answer_id() {
    let setup = Setup::start().await;
    let reasoning = json!({"type": "reasoning", "id": "rs_1", "summary":
        [{"type": "summary_text", "text": "look"}], "encrypted_content": "enc"});
    let call = json!({"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "ls",
        "arguments": "{\"path\":\".\"}", "status": "completed"});
    let usage = json!({"input_tokens": 9, "output_tokens": 8, "total_tokens": 17,
        "input_tokens_details": {"cached_tokens": 4}, "output_tokens_details":
        {"reasoning_tokens": 6}});
    let done = json!({"id": "resp_1", "status": "completed", "model": "gpt-5.4", "output": [],
        "usage": usage});
    let events = [
        json!({"type": "response.created", "response": {"id": "resp_1", "output": []}}),
        json!({"type": "response.output_item.added", "output_index": 0, "item":
            {"type": "reasoning", "id": "rs_1", "summary": []}}),
        json!({"type": "response.output_item.done", "output_index": 0, "item": reasoning}),
        json!({"type": "response.output_item.added", "output_index": 1, "item":
            {"type": "function_call", "call_id": "call_1", "name": "ls", "arguments": ""}}),
        json!({"type": "response.function_call_arguments.delta", "output_index": 1,
            "delta": "{\"path\":\".\"}"}),
        json!({"type": "response.output_item.done", "output_index": 1, "item": call}),
        json!({"type": "response.completed", "response": done}),
    ];
    let prompt = json!({"type": "message", "role": "user", "content":
        [{"type": "input_text", "text": "list"}]});
    let mut request = json!({"model": "gpt-5.4", "instructions": "be brief", "stream": true,
        "prompt_cache_key": "thread-1", "input": [prompt]});
    let got = setup
        .call("/v1/responses", &request, streamed(&events))
        .await;
    assert_eq!(String::from_utf8_lossy(&got.body), stream_text(&events));

    // All items again, as with `store: false`.
    let output = json!({"type": "function_call_output", "call_id": "call_1", "output": "a.rs"});
    request["input"] = json!([prompt, reasoning, call, output]);
    request["stream"] = false.into();
    let text = |text: &str| {
        json!([{"type": "message", "id": "msg_1", "role": "assistant",
        "content": [{"type": "output_text", "text": text, "annotations": []}]}])
    };
    let second = json!({"id": "resp_2", "status": "completed", "model": "gpt-5.4",
        "output": text("one file"), "usage": usage});
    setup.call("/v1/responses", &request, whole(&second)).await;

    // Only what is new.
    let third = json!({"model": "gpt-5.4", "instructions": "be brief",
        "previous_response_id": "resp_2", "input": "and the size?"});
    let answer = json!({"id": "resp_3", "status": "incomplete", "model": "gpt-5.4",
        "incomplete_details": {"reason": "max_output_tokens"}, "output": text("10 b"),
        "usage": usage});
    setup.call("/v1/responses", &third, whole(&answer)).await;

    let stored = setup.stop().await;
    let line = stored.only();
    assert_eq!(line["id"], "thread-1");
    assert_eq!(
        stored.talk(0),
        [
            "system: be brief",
            "user: list",
            "call ls {\"path\":\".\"}",
            "tool: a.rs",
            "assistant: one file",
            "user: and the size?",
            "assistant: 10 b"
        ]
    );
    let messages = &line["messages"];
    assert_eq!(messages[2]["reasoning_content"], "look");
    assert_eq!(messages[2]["x"]["usage"]["reasoning_output_tokens"], 6);
    assert_eq!(messages[6]["x"]["stop"], "max_output_tokens");
}
