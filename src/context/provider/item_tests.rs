//! Tests for ids and signatures that a provider expects back, and for arguments that are not JSON.

use serde_json::{Value, json};

use super::{samples::*, *};
use crate::{
    draft::{Block, Content, Draft, Maker, Step},
    policy::ContextPolicy,
};
use treering_domain::{ContentPart, Reasoning};

fn body_of(draft: &Draft) -> Value {
    let rendered = render(draft, &ContextPolicy::default()).unwrap();
    serde_json::from_slice(&rendered.body).unwrap()
}

fn called(call_id: &str, item_id: &str) -> Block {
    let mut block = call(call_id, "read", "{}", said("1"));
    if let Block::Call(call) = &mut block {
        call.item_id = item_id.into();
    }
    block
}

fn thought(id: &str, signature: &'static str) -> Block {
    part(ContentPart::Reasoning(Reasoning {
        text: "hm".into(),
        signature: signature.into(),
        id: id.into(),
        ..Reasoning::default()
    }))
}

/// An answer of this maker, with OpenAI's item ids.
fn answer(maker: Maker, blocks: Vec<Block>) -> Content {
    Content::Step(Step {
        blocks,
        maker,
        message_id: "msg_0a1b".into(),
    })
}

fn by(model: &str) -> Maker {
    Maker {
        provider: String::new(),
        model: model.into(),
    }
}

/// Type and id of each item.
fn ids(contents: Vec<Content>) -> Vec<(String, Option<String>)> {
    let body = body_of(&draft(Provider::OpenAiResponses, contents));
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let items = body["input"].as_array().unwrap().iter();
    items
        .map(|item| (text(&item["type"]).unwrap(), text(&item["id"])))
        .collect()
}

fn id_of(items: &[(String, Option<String>)], kind: &str) -> Option<String> {
    let found = items.iter().find(|(of, _)| of == kind);
    found.and_then(|(_, id)| id.clone())
}

/// Items were sent with ids that OpenAI had not assigned, or without ids, so its cache and traces
/// did not recognise them.
#[test]
fn openai_items_keep_their_ids() {
    let blocks = || vec![thought("rs_1", "x"), text("I look."), called("a", "fc_7")];
    let items = ids(vec![answer(by("gpt-5"), blocks()), user("go on")]);
    let id = |text: &str| Some(text.to_owned());
    assert_eq!(id_of(&items, "reasoning"), id("rs_1"));
    assert_eq!(id_of(&items, "message"), id("msg_0a1b"));
    assert_eq!(id_of(&items, "function_call"), id("fc_7"));
    assert_eq!(id_of(&items, "function_call_output"), None);
    // The maker is often unknown, but only OpenAI assigns these call ids.
    let unknown = vec![text("I look."), called("a", "fc_7")];
    let items = ids(vec![answer(Maker::default(), unknown)]);
    assert_eq!(id_of(&items, "message"), id("msg_0a1b"));
    assert_eq!(id_of(&items, "function_call"), id("fc_7"));
    // Each id is used for one item. An id that OpenAI refuses is not used.
    let twice = vec![
        called("a", "fc_7"),
        called("b", "fc_7"),
        called("c", "call 3"),
    ];
    let calls: Vec<_> = ids(vec![answer(by("gpt-5"), twice)]);
    let calls: Vec<_> = calls
        .iter()
        .filter(|(of, _)| of == "function_call")
        .collect();
    assert_eq!(calls[0].1, id("fc_7"));
    assert_eq!((&calls[1].1, &calls[2].1), (&None, &None));
}

/// OpenAI refuses a known item without the reasoning before it (`was provided without its required
/// 'reasoning' item`). If the reasoning is not sent, the id must not be sent either.
#[test]
fn ids_are_left_out_without_their_reasoning() {
    let items = |blocks: Vec<Block>| ids(vec![answer(by("gpt-5"), blocks)]);
    for blocks in [
        // The reasoning is not encrypted.
        vec![thought("rs_1", ""), text("so"), called("a", "fc_7")],
        // The first of two reasoning items is not directly before its message.
        vec![
            thought("rs_1", "x"),
            thought("rs_2", "y"),
            text("so"),
            called("a", "fc_7"),
        ],
    ] {
        let items = items(blocks);
        let message = id_of(&items, "message").unwrap();
        assert!(
            message.starts_with("msg_") && message != "msg_0a1b",
            "{message}"
        );
        assert_eq!(id_of(&items, "function_call"), None);
    }
    // The reasoning is from another model family.
    let other = vec![thought("rs_1", "x"), text("so"), called("a", "fc_7")];
    let items = ids(vec![answer(by("o3"), other)]);
    assert_ne!(id_of(&items, "message").unwrap(), "msg_0a1b");
    assert_eq!(id_of(&items, "function_call"), None);
}

/// Anthropic's message ids look like OpenAI's, and gateways assign such ids to calls of any model.
/// OpenAI must get only its own ids, and other providers none.
#[test]
fn item_ids_are_sent_only_to_their_provider() {
    let blocks = || vec![text("I look."), called("a", "fc_7")];
    let items = ids(vec![answer(by("claude-sonnet-4-5"), blocks())]);
    assert_ne!(id_of(&items, "message").unwrap(), "msg_0a1b");
    assert_eq!(id_of(&items, "function_call"), None);
    let of_anthropic = Content::Step(Step {
        blocks: vec![text("so")],
        maker: Maker::default(),
        message_id: "msg_01XFDUDYJgAACzvnptVvoYEL".into(),
    });
    let id = id_of(&ids(vec![of_anthropic]), "message").unwrap();
    assert_ne!(id, "msg_01XFDUDYJgAACzvnptVvoYEL");
    for provider in [Provider::OpenAiChat, Provider::Anthropic, Provider::Gemini] {
        let answer = answer(by("gpt-5"), blocks());
        let body = body_of(&draft(provider, vec![answer])).to_string();
        assert!(!body.contains("fc_7"), "{provider}: {body}");
        assert!(!body.contains("msg_0a1b"), "{provider}: {body}");
    }
}

/// Without storage, OpenAI accepts only encrypted reasoning, and returns it only if the request
/// asks for it. A model without reasoning refuses that option. A deployment can have any name, so
/// the request parameter `reasoning` decides.
#[test]
fn request_includes_encrypted_reasoning_for_reasoning_models() {
    let include = |model: &str, parameter: Option<(&str, &str)>| {
        let mut draft = draft(Provider::OpenAiResponses, vec![user("go")]);
        draft.config.model_id = model.into();
        let parameters = &mut draft.config.parameters;
        parameters.extend(parameter.map(|(name, text)| (name.to_owned(), text.to_owned())));
        let body = body_of(&draft);
        assert_eq!(body["store"], false);
        body["include"] == json!(["reasoning.encrypted_content"])
    };
    let effort = Some(("reasoning", r#"{"effort": "high"}"#));
    for (model, parameter, expected) in [
        ("gpt-5", None, true),
        ("gpt-5.1-codex-2025-11-13", None, true),
        ("openai/o4-mini", None, true),
        ("gpt-5-chat-latest", None, false),
        ("gpt-4o", None, false),
        ("gpt-4o", Some(("temperature", "0.2")), false),
        ("our-deployment", None, false),
        ("our-deployment", effort, true),
        ("", effort, true),
    ] {
        assert_eq!(include(model, parameter), expected, "{model} {parameter:?}");
    }
    // Recorded reasoning is encrypted, whatever the name of the model.
    let answer = step_of(
        Provider::OpenAiResponses,
        vec![thought("rs_1", "x"), text("so")],
    );
    let body = body_of(&draft(Provider::OpenAiResponses, vec![answer]));
    assert_eq!(body["include"], json!(["reasoning.encrypted_content"]));
}

/// A model wrote arguments that are not JSON. The request failed or omitted them. OpenAI's formats
/// take the text unchanged; the others get an object that marks the arguments as invalid.
#[test]
fn invalid_json_arguments_are_sent_as_text_or_wrapped() {
    for text in ["{\"a\": 1", "ls -la", "", "[[[["] {
        let contents = || vec![step(vec![call("a", "read", text, said("no"))])];
        let body = |provider| body_of(&draft(provider, contents()));
        let as_it_was = if text.is_empty() { "{}" } else { text };
        let chat = &body(Provider::OpenAiChat)["messages"][0]["tool_calls"][0];
        assert_eq!(chat["function"]["arguments"], as_it_was);
        let responses = &body(Provider::OpenAiResponses)["input"][0];
        assert_eq!(responses["arguments"], as_it_was);
        let object = match text {
            "" => json!({}),
            text => json!({"invalid_arguments": text}),
        };
        let anthropic = body(Provider::Anthropic);
        assert_eq!(anthropic["messages"][1]["content"][0]["input"], object);
        let gemini = body(Provider::Gemini);
        let called = &gemini["contents"][1]["parts"][0]["functionCall"];
        assert_eq!(called["args"], object);
    }
}
