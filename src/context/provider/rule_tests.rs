//! Tests how each adapter renders edge cases: a few items in, messages out.

use serde_json::{Value, json};

use super::{samples::*, *};
use crate::{
    cancellation::CancellationToken,
    draft::{Block, Content, Draft, Maker, Message, Speaker, Step},
    policy::ContextPolicy,
};
use treering_domain::ContentPart;

fn body_of(draft: &Draft) -> (Value, Vec<String>) {
    let policy = ContextPolicy {
        anthropic_cache_breakpoints: false,
        ..ContextPolicy::default()
    };
    let rendered = render(draft, &policy).unwrap();
    (
        serde_json::from_slice(&rendered.body).unwrap(),
        rendered.warnings,
    )
}

#[track_caller]
fn becomes(provider: Provider, contents: Vec<Content>, expected: Value) {
    let (body, _) = body_of(&draft(provider, contents));
    let messages = &body[provider.description().cutting.said];
    let without_ids = without(messages.clone(), "id", "msg_");
    assert_eq!(without_ids, expected, "{provider}: {without_ids:#}");
}

/// Removes generated ids and constant fields.
fn without(mut value: Value, key: &str, start: &str) -> Value {
    for item in value.as_array_mut().unwrap() {
        let is_made = item[key].as_str().is_some_and(|id| id.starts_with(start));
        if let (true, Some(item)) = (is_made, item.as_object_mut()) {
            item.shift_remove(key);
            item.shift_remove("status");
        }
    }
    value
}

/// After a batch, Anthropic requires `[results…, user message]`: all in one message, results first.
/// The others require the results directly after the calls.
#[test]
fn results_come_before_the_next_user_message() {
    let contents = || {
        vec![
            user("go"),
            step(vec![
                call("a", "read", r#"{"b":1,"a":2}"#, said("1")),
                call("b", "read", "{}", missing("interrupted")),
            ]),
            user("and?"),
        ]
    };
    becomes(
        Provider::OpenAiChat,
        contents(),
        json!([
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "a", "type": "function",
                    "function": {"name": "read", "arguments": "{\"b\":1,\"a\":2}"}},
                {"id": "b", "type": "function", "function": {"name": "read", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "a", "content": "1"},
            {"role": "tool", "tool_call_id": "b", "content": "Error: interrupted"},
            {"role": "user", "content": "and?"},
        ]),
    );
    becomes(
        Provider::OpenAiResponses,
        contents(),
        json!([
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]},
            {"type": "function_call", "call_id": "a", "name": "read",
                "arguments": "{\"b\":1,\"a\":2}"},
            {"type": "function_call", "call_id": "b", "name": "read", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "1"},
            {"type": "function_call_output", "call_id": "b", "output": "Error: interrupted"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "and?"}]},
        ]),
    );
    becomes(
        Provider::Anthropic,
        contents(),
        json!([
            {"role": "user", "content": [{"type": "text", "text": "go"}]},
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "a", "name": "read", "input": {"b": 1, "a": 2}},
                {"type": "tool_use", "id": "b", "name": "read", "input": {}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "a",
                    "content": [{"type": "text", "text": "1"}]},
                {"type": "tool_result", "tool_use_id": "b",
                    "content": [{"type": "text", "text": "interrupted"}], "is_error": true},
                {"type": "text", "text": "and?"}]},
        ]),
    );
    becomes(
        Provider::Gemini,
        contents(),
        json!([
            {"role": "user", "parts": [{"text": "go"}]},
            {"role": "model", "parts": [
                {"functionCall": {"name": "read", "args": {"b": 1, "a": 2}}},
                {"functionCall": {"name": "read", "args": {}}}]},
            {"role": "user", "parts": [
                {"functionResponse": {"name": "read", "response": {"output": "1"}}},
                {"functionResponse": {"name": "read", "response": {"error": "interrupted"}}}]},
            {"role": "user", "parts": [{"text": "and?"}]},
        ]),
    );
}

/// A history may begin with the assistant and have empty messages. Anthropic and Gemini require
/// that the user begins, and no provider accepts empty messages.
#[test]
fn leading_assistant_and_empty_messages_are_adapted() {
    let contents = || {
        vec![
            step(vec![text("hi")]),
            user(" "),
            step(vec![]),
            step(vec![text("ho")]),
        ]
    };
    let opening = "(The conversation begins with the assistant.)";
    becomes(
        Provider::OpenAiChat,
        contents(),
        json!([{"role": "assistant", "content": "hi"}, {"role": "assistant", "content": "ho"}]),
    );
    becomes(
        Provider::Anthropic,
        contents(),
        json!([
            {"role": "user", "content": [{"type": "text", "text": opening}]},
            {"role": "assistant", "content": [
                {"type": "text", "text": "hi"}, {"type": "text", "text": "ho"}]},
        ]),
    );
    becomes(
        Provider::Gemini,
        contents(),
        json!([
            {"role": "user", "parts": [{"text": opening}]},
            {"role": "model", "parts": [{"text": "hi"}, {"text": "ho"}]},
        ]),
    );
}

/// Other providers refuse reasoning, and its own provider refuses it without the item that it led
/// to. It must be sent exactly, or not at all.
#[test]
fn reasoning_is_sent_whole_or_left_out() {
    let blocks = || {
        vec![
            reasoning("one", "c2ln"),
            text("so"),
            reasoning("two", "c2ln"),
            call("a", "read", "{}", said("1")),
            reasoning("three", "c2ln"),
        ]
    };
    let provider = Provider::Anthropic;
    becomes(
        provider,
        vec![user("go"), step_of(provider, blocks())],
        json!([
            {"role": "user", "content": [{"type": "text", "text": "go"}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "one", "signature": "c2ln"},
                {"type": "text", "text": "so"},
                {"type": "thinking", "thinking": "two", "signature": "c2ln"},
                {"type": "tool_use", "id": "a", "name": "read", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a",
                "content": [{"type": "text", "text": "1"}]}]},
        ]),
    );
    let provider = Provider::OpenAiResponses;
    let (body, warnings) = body_of(&draft(provider, vec![step_of(provider, blocks())]));
    let kinds: Vec<_> = body["input"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| &item["type"])
        .collect();
    let expected = [
        "reasoning",
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
    ];
    assert_eq!(kinds, expected);
    assert_eq!(
        warnings,
        ["reasoning was left out: the output that it led to is missing"]
    );
    let others = |provider: &Provider| *provider != Provider::Neutral;
    for provider in Provider::ALL.into_iter().filter(others) {
        let other = match provider {
            Provider::Anthropic => Provider::Gemini,
            _ => Provider::Anthropic,
        };
        for maker in [other, Provider::Neutral] {
            let contents = vec![user("go"), step_of(maker, blocks())];
            let (body, warnings) = body_of(&draft(provider, contents));
            let body = body.to_string();
            assert!(
                !body.contains("c2ln") && !body.contains("three"),
                "{provider}: {body}"
            );
            assert_eq!(warnings.len(), 1, "{provider}: {warnings:?}");
        }
    }
}

/// Of several signed reasoning items before one item, only the last is directly before it, unless
/// they are pieces of one item.
#[test]
fn openai_reasoning_with_one_id_is_one_item() {
    let thought = |id: &str, text: &str| {
        part(ContentPart::Reasoning(treering_domain::Reasoning {
            text: text.into(),
            signature: "x".into(),
            id: id.into(),
            ..Default::default()
        }))
    };
    let provider = Provider::OpenAiResponses;
    let blocks = vec![
        thought("rs_1", "lost"),
        thought("rs_2", "one"),
        thought("rs_2", "two"),
        text("so"),
    ];
    becomes(
        provider,
        vec![step_of(provider, blocks)],
        json!([
            {"type": "reasoning", "id": "rs_2", "summary": [
                {"type": "summary_text", "text": "one"},
                {"type": "summary_text", "text": "two"}], "encrypted_content": "x"},
            {"type": "message", "role": "assistant", "content": [
                {"type": "output_text", "text": "so", "annotations": []}]},
        ]),
    );
}

/// From the third generation on, Gemini refuses calls without a signature. Histories of other
/// providers need Google's placeholder on the first call of each content. Real signatures must stay
/// at their place.
#[test]
fn gemini_3_calls_have_signatures() {
    let contents = vec![
        user("go"),
        step(vec![
            call("a", "read", "{}", said("1")),
            call("b", "read", "{}", said("2")),
        ]),
        Content::Step(Step {
            blocks: vec![reasoning("", "c2ln"), call("c", "read", "{}", said("3"))],
            maker: Maker {
                provider: "google".into(),
                model: "gemini-3-pro".into(),
            },
            message_id: String::new(),
        }),
    ];
    let mut draft = draft(Provider::Gemini, contents);
    draft.config.model_id = "gemini-3-pro-preview".into();
    let (body, _) = body_of(&draft);
    let signature = |pointer: &str| body.pointer(pointer).and_then(Value::as_str);
    let unsigned = "skip_thought_signature_validator";
    assert_eq!(
        signature("/contents/1/parts/0/thoughtSignature"),
        Some(unsigned)
    );
    assert_eq!(signature("/contents/1/parts/1/thoughtSignature"), None);
    assert_eq!(
        signature("/contents/3/parts/0/thoughtSignature"),
        Some("c2ln")
    );
}

/// OpenAI has a role for a system message in the middle of a conversation. The others get it as a
/// marked user message.
#[test]
fn late_system_messages_get_a_role_or_a_marker() {
    let contents = || {
        vec![
            Content::Instruction("be kind".into()),
            user("go"),
            Content::Message(Message::text(Speaker::Developer, "be brief")),
        ]
    };
    let marked = "<system-message>\nbe brief\n</system-message>";
    becomes(
        Provider::OpenAiChat,
        contents(),
        json!([
            {"role": "system", "content": "be kind"},
            {"role": "user", "content": "go"},
            {"role": "developer", "content": "be brief"},
        ]),
    );
    becomes(
        Provider::OpenAiResponses,
        contents(),
        json!([
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]},
            {"type": "message", "role": "developer",
                "content": [{"type": "input_text", "text": "be brief"}]},
        ]),
    );
    becomes(
        Provider::Anthropic,
        contents(),
        json!([{"role": "user", "content": [
            {"type": "text", "text": "go"}, {"type": "text", "text": marked}]}]),
    );
    becomes(
        Provider::Gemini,
        contents(),
        json!([
            {"role": "user", "parts": [{"text": "go"}]},
            {"role": "user", "parts": [{"text": marked}]},
        ]),
    );
}

/// A refusal has its own field at OpenAI and is text elsewhere. A structured result stays
/// structured if results are objects.
#[test]
fn refusals_and_structured_results_are_adapted() {
    let structured = crate::draft::Outcome::Result(crate::draft::ResultOutcome {
        event: at(3),
        success: true,
        error_message: String::new(),
        parts: crate::Parts::default(),
        structured: json(r#"{"n": 1.50}"#),
        shortened: false,
    });
    let blocks = || -> Vec<Block> {
        vec![
            part(ContentPart::Refusal("no".into())),
            call("a", "read", "{}", structured.clone()),
        ]
    };
    let (chat, _) = body_of(&draft(Provider::OpenAiChat, vec![step(blocks())]));
    assert_eq!(chat["messages"][0]["refusal"], "no");
    assert_eq!(chat["messages"][0]["content"], Value::Null);
    assert_eq!(chat["messages"][1]["content"], r#"{"n": 1.50}"#);
    let (gemini, _) = body_of(&draft(Provider::Gemini, vec![user("go"), step(blocks())]));
    assert_eq!(gemini["contents"][1]["parts"][0]["text"], "no");
    let response = &gemini["contents"][2]["parts"][0]["functionResponse"]["response"];
    assert_eq!(response, &json!({"n": 1.50}));
    let (anthropic, _) = body_of(&draft(
        Provider::Anthropic,
        vec![user("go"), step(blocks())],
    ));
    assert_eq!(anthropic["messages"][1]["content"][0]["text"], "no");
}

/// There are at most four breakpoints, and each costs a cache write. They must be at the end of the
/// tools, of the system prompt, and of the stable parts of this request and the previous one, never
/// on content that changes.
#[test]
fn anthropic_breakpoints_end_stable_parts() {
    let mut draft = rich(Provider::Anthropic);
    let marks = |draft: &Draft| -> Vec<String> {
        let body: Value =
            serde_json::from_slice(&render(draft, &ContextPolicy::default()).unwrap().body)
                .unwrap();
        let mut found = Vec::new();
        for field in ["/tools", "/system"] {
            let list = body.pointer(field).and_then(Value::as_array).unwrap();
            let marked = list
                .iter()
                .position(|one| one.get("cache_control").is_some());
            found.extend(marked.map(|place| format!("{field}/{place}")));
        }
        for (at, message) in body["messages"].as_array().unwrap().iter().enumerate() {
            for (place, block) in message["content"].as_array().unwrap().iter().enumerate() {
                if block.get("cache_control").is_some() {
                    found.push(format!("/messages/{at}/{place}"));
                }
            }
        }
        found
    };
    // The last block is volatile.
    assert_eq!(
        marks(&draft),
        ["/tools/1", "/system/1", "/messages/4/3", "/messages/6/1"]
    );
    // Everything after a volatile item may move.
    for item in &mut draft.items[5..] {
        item.is_volatile = true;
    }
    assert_eq!(
        marks(&draft),
        ["/tools/1", "/system/1", "/messages/2/0", "/messages/4/3"]
    );
    for item in &mut draft.items {
        item.is_volatile = true;
    }
    assert_eq!(marks(&draft), ["/tools/1", "/system/1"]);
}

/// An embedding program can use the typed body and send it.
#[test]
fn typed_body_serialises_to_the_rendered_body() {
    let draft = rich(Provider::Anthropic);
    let policy = ContextPolicy::default();
    let adapted = anthropic::Anthropic
        .adapt(&draft, &policy, &CancellationToken::default())
        .unwrap();
    assert_eq!(adapted.body.messages.len(), 7);
    assert_eq!(adapted.body.messages[0].role, anthropic::Role::User);
    let rendered = render_with(
        &anthropic::Anthropic,
        &draft,
        &policy,
        &CancellationToken::default(),
    )
    .unwrap();
    assert_eq!(serde_json::to_vec(&adapted.body).unwrap(), rendered.body);
}

/// With `thinking` enabled, the open tool loop must begin with thinking. A history of another
/// provider has none, which must not make the request fail.
#[test]
fn thinking_is_disabled_without_reasoning_in_the_open_turn() {
    let body = |maker: Provider, most: Option<&str>| {
        let blocks = vec![reasoning("so", "c2ln"), call("a", "read", "{}", said("1"))];
        let mut draft = draft(
            Provider::Anthropic,
            vec![user("go"), step_of(maker, blocks)],
        );
        let parameters = &mut draft.config.parameters;
        let thinking = r#"{"type":"enabled","budget_tokens":2000}"#;
        parameters.insert("thinking".into(), thinking.into());
        parameters.insert("temperature".into(), "0.5".into());
        if let Some(most) = most {
            parameters.insert("max_tokens".into(), most.into());
        }
        body_of(&draft)
    };
    let (own, warnings) = body(Provider::Anthropic, None);
    assert_eq!(own["thinking"]["budget_tokens"], 2000);
    assert_eq!(own["max_tokens"], 4_096 + 2_000);
    assert_eq!(own.get("temperature"), None);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    let (foreign, _) = body(Provider::Gemini, None);
    assert_eq!(foreign.get("thinking"), None);
    assert_eq!(foreign["temperature"], 0.5);
    let (small, _) = body(Provider::Anthropic, Some("1000"));
    assert_eq!(small.get("thinking"), None);
    assert_eq!(small["max_tokens"], 1000);
}

/// A fork for another provider named the parent's model. A fork without a model named an empty one,
/// which every provider refuses. The first must give a warning; in the second the field must be
/// omitted.
#[test]
fn missing_or_foreign_model_gives_a_warning() {
    let request = |provider: Provider, model: &str| {
        let mut draft = draft(provider, vec![user("go")]);
        draft.config.model_id = model.into();
        let (body, warnings) = body_of(&draft);
        (body.get("model").cloned(), warnings)
    };
    for (provider, own, foreign) in [
        (Provider::OpenAiChat, "gpt-4o", "claude-sonnet-4-5"),
        (Provider::OpenAiResponses, "o3", "gemini-2.5-pro"),
        (Provider::OpenAiResponses, "o3", "mistral-medium-latest"),
        (
            Provider::Anthropic,
            "claude-sonnet-4-5",
            "mistral-medium-latest",
        ),
        (Provider::Gemini, "gemini-2.5-pro", "mistralai/mixtral-8x7b"),
        (
            Provider::Anthropic,
            "us.anthropic.claude-sonnet-4-v1",
            "gpt-4o",
        ),
        (Provider::Gemini, "gemini-2.5-pro", "claude-sonnet-4-5"),
    ] {
        for fine in [own, "llama-3-70b"] {
            assert_eq!(request(provider, fine).1, [""; 0], "{provider} {fine}");
        }
        let (_, warnings) = request(provider, foreign);
        let [warning] = &warnings[..] else {
            panic!("{provider}: {warnings:?}");
        };
        assert!(
            warning.contains(foreign) && warning.contains("--model"),
            "{warning}"
        );
        let is_told = warning.contains("unless a gateway");
        assert_eq!(
            is_told,
            provider.description().is_for_any_model,
            "{warning}"
        );
        let (none, warnings) = request(provider, "");
        assert_eq!(none, None, "{provider}");
        assert!(warnings[0].contains("no model is set"), "{warnings:?}");
    }
    assert_eq!(request(Provider::Neutral, "gpt-4o").1, [""; 0]);
}

/// A tool choice has the tool's name in the conversation. It must be mapped to the provider's name,
/// in each provider's format.
#[test]
fn tool_choice_is_adapted_to_each_provider() {
    let body = |provider: Provider| {
        let mut draft = draft(provider, vec![user("go")]);
        draft.tools = vec![tool("fs/read", "{}")];
        let choice = r#"{"type":"function","function":{"name":"fs/read"}}"#;
        draft
            .config
            .parameters
            .insert("tool_choice".into(), choice.into());
        body_of(&draft).0
    };
    let name = "fs_read_fa5f0296";
    let chat = json!({"type": "function", "function": {"name": name}});
    assert_eq!(body(Provider::OpenAiChat)["tool_choice"], chat);
    let responses = json!({"type": "function", "name": name});
    assert_eq!(body(Provider::OpenAiResponses)["tool_choice"], responses);
    assert_eq!(
        body(Provider::Anthropic)["tool_choice"],
        json!({"type": "tool", "name": name})
    );
    let gemini = json!({"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": [name]}});
    assert_eq!(body(Provider::Gemini)["toolConfig"], gemini);
}
