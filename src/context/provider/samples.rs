//! Drafts for tests: small hand-written ones, one with all kinds of content, and random ones.

use bytes::Bytes;
use proptest::{collection::vec, prelude::*};
use uuid::Uuid;

use super::Provider;
use crate::{
    draft::{
        Block, Call, Content, Draft, Fate, Item, Maker, Message, Outcome, ResultDigest,
        ResultOutcome, Section, Speaker, Step,
    },
    shared::Parts,
};
use treering_domain::{
    Config, ContentPart, ConversationId, EventRef, JsonText, Media, MediaSource, Reasoning,
    Revision, ToolDefinition,
};

pub(crate) fn at(revision: u64) -> EventRef {
    EventRef {
        conversation: ConversationId(Uuid::from_u128(7)),
        revision: Revision(revision),
    }
}

pub(crate) fn json(text: &str) -> JsonText {
    JsonText::from_checked(Bytes::copy_from_slice(text.as_bytes()))
}

pub(crate) fn item(content: Content) -> Item {
    Item {
        section: Section::Messages,
        events: Vec::new(),
        enhancer: "test".into(),
        content: content.into(),
        turn: 1,
        tokens: 1,
        whole_tokens: 1,
        fate: Fate::Kept,
        reason: "".into(),
        is_volatile: false,
    }
}

/// Returns a draft of these contents, each from its own event.
pub(crate) fn draft(provider: Provider, contents: Vec<Content>) -> Draft {
    let items = contents
        .into_iter()
        .enumerate()
        .map(|(place, content)| Item {
            events: vec![at(place as u64 + 1)],
            ..item(content)
        });
    Draft {
        provider,
        config: Config {
            model_id: model(provider).into(),
            ..Config::default()
        },
        tools: Vec::new(),
        tools_tokens: 0,
        items: items.collect(),
        warnings: Vec::new(),
    }
}

/// A model of the provider.
pub(crate) fn model(provider: Provider) -> &'static str {
    match provider {
        Provider::Neutral => "any",
        Provider::OpenAiChat => "gpt-4o",
        Provider::OpenAiResponses => "gpt-5",
        Provider::Anthropic => "claude-sonnet-4-5",
        Provider::Gemini => "gemini-2.5-pro",
    }
}

/// Returns the maker to which the provider's reasoning may be sent.
pub(crate) fn maker(provider: Provider) -> Maker {
    let name = match provider {
        Provider::Neutral => "",
        Provider::OpenAiChat | Provider::OpenAiResponses => "openai",
        Provider::Anthropic => "anthropic",
        Provider::Gemini => "google",
    };
    Maker {
        provider: name.into(),
        model: model(provider).into(),
    }
}

pub(crate) fn user(text: &str) -> Content {
    Content::Message(Message::text(Speaker::User, text))
}

pub(crate) fn step(blocks: Vec<Block>) -> Content {
    Content::Step(Step {
        blocks,
        ..Step::default()
    })
}

pub(crate) fn step_of(provider: Provider, blocks: Vec<Block>) -> Content {
    Content::Step(Step {
        blocks,
        maker: maker(provider),
        message_id: String::new(),
    })
}

pub(crate) fn text(text: &str) -> Block {
    part(ContentPart::Text(text.into()))
}

pub(crate) fn part(part: ContentPart) -> Block {
    Block::Part(part.into())
}

pub(crate) fn reasoning(text: &str, signature: &'static str) -> Block {
    part(ContentPart::Reasoning(Reasoning {
        text: text.into(),
        signature: signature.into(),
        ..Reasoning::default()
    }))
}

pub(crate) fn call(id: &str, tool: &str, arguments: &str, outcome: Outcome) -> Block {
    Block::Call(Call {
        call_id: id.into(),
        wire_id: id.into(),
        tool: tool.into(),
        arguments: json(arguments),
        arguments_shortened: false,
        item_id: String::new(),
        request: at(2),
        outcome,
    })
}

pub(crate) fn result(parts: Vec<ContentPart>) -> Outcome {
    Outcome::Result(ResultOutcome {
        event: at(3),
        success: true,
        error_message: String::new(),
        parts: parts.into(),
        structured: JsonText::default(),
        shortened: false,
    })
}

pub(crate) fn said(text: &str) -> Outcome {
    result(vec![ContentPart::Text(text.into())])
}

pub(crate) fn missing(why: &str) -> Outcome {
    Outcome::Missing {
        why: why.into(),
        event: None,
        open: false,
    }
}

pub(crate) fn png() -> ContentPart {
    ContentPart::Image(Media {
        media_type: "image/png".into(),
        source: MediaSource::Data(Bytes::from_static(b"\x89PNG\r\n\x1a\n")),
        name: "plot.png".into(),
        detail: String::new(),
    })
}

pub(crate) fn tool(name: &str, schema: &str) -> ToolDefinition {
    ToolDefinition {
        name: name.into(),
        description: format!("Does {name}."),
        input_schema: json(schema),
        source: "test".into(),
        needs_approval: false,
        guidance: String::new(),
        discoverable: false,
        strict: None,
    }
}

/// Returns a conversation with all kinds of content, as the pipeline returns it.
pub(crate) fn rich(provider: Provider) -> Draft {
    let failed = Outcome::Result(ResultOutcome {
        event: at(9),
        success: false,
        error_message: "no such file".into(),
        parts: Parts::default(),
        structured: JsonText::default(),
        shortened: false,
    });
    let snapshot = Outcome::Snapshot(ResultDigest {
        event: at(4),
        success: true,
        summary: "3 files".into(),
        reference: "#4".into(),
        recorded: false,
    });
    let mut draft = draft(
        provider,
        vec![
            Content::Instruction("You read files.".into()),
            Content::Instruction("Answer in one line.".into()),
            Content::Message(Message {
                speaker: Speaker::User,
                parts: vec![ContentPart::Text("What is in the folder?".into()), png()].into(),
                author: "Ann Lee".into(),
                is_told: false,
            }),
            step_of(
                provider,
                vec![
                    reasoning("The folder first.", "c2lnbmF0dXJl"),
                    text("I look."),
                    call("toolu_1", "list_files", r#"{"path": "."}"#, snapshot),
                ],
            ),
            step_of(
                provider,
                vec![
                    reasoning("", "c2lnbmVk"),
                    call("call:2", "fs/read", r#"{"path": "a.txt"}"#, said("hello")),
                    call("call:3", "fs/read", "[\"b.txt\"]", failed),
                    call("call_4", "plot", "{}", result(vec![png()])),
                    call(
                        "call_5",
                        "delete",
                        "",
                        missing("denied by ann: not on Fridays"),
                    ),
                ],
            ),
            step_of(provider, vec![text("a.txt says hello. ")]),
            Content::Message(Message::text(Speaker::System, "Ann has left.")),
            user("And now?"),
            user("<SYSTEM_CONTEXT>\n{\"cwd\":\"/src\"}\n</SYSTEM_CONTEXT>"),
        ],
    );
    let list = r#"{"type":"object","properties":{"path":{"type":"string"}}}"#;
    draft.tools = vec![tool("list_files", list), tool("fs/read", "")];
    for (name, value) in [("temperature", "0.2"), ("stop", "\"END\"")] {
        draft.config.parameters.insert(name.into(), value.into());
    }
    if let Some(last) = draft.items.last_mut() {
        last.is_volatile = true;
        last.section = Section::ActiveContext;
    }
    draft
}

/// Text as it occurs in practice: empty, blank, ending in white space, unusual.
fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => "[a-z ]{1,8}",
        1 => Just(String::new()),
        1 => Just(" \n\t".to_owned()),
        1 => Just("ends with space \n".to_owned()),
        1 => "\\PC{1,6}",
        1 => Just("\u{0}\u{2028}\u{a0}\"\\😀".to_owned()),
    ]
}

fn any_arguments() -> impl Strategy<Value = JsonText> {
    let texts = [
        "{}",
        r#"{"a": 1.50, "a": 2}"#,
        "",
        "null",
        "[1,2]",
        "\"x\"",
        "{\"cut\": ",
        "not json",
        r#"{"half":"\ud83d"}"#,
        " {\"space\":true} ",
        r#"{"cache_control":{"type":"ephemeral"}}"#,
    ];
    let deep = format!("{}{}", "[".repeat(120), "]".repeat(120));
    let mut all: Vec<JsonText> = texts.iter().map(|text| json(text)).collect();
    all.push(json(&deep));
    proptest::sample::select(all)
}

fn any_media() -> impl Strategy<Value = ContentPart> {
    let media_type = proptest::sample::select(vec![
        "",
        "image/png",
        "IMAGE/JPG",
        "image/gif",
        "image/tiff",
        "application/pdf",
        "text/plain",
        "audio/wav",
        "audio/mpeg",
        "audio/x-strange",
        "video/mp4",
        "nonsense",
        "image/svg+xml; x",
    ]);
    let source = prop_oneof![
        Just(MediaSource::Absent),
        Just(MediaSource::Data(Bytes::new())),
        Just(MediaSource::Data(Bytes::from_static(b"\x89PNG\r\n\x1a\n"))),
        Just(MediaSource::Data(Bytes::from_static(b"plain text"))),
        proptest::sample::select(vec![
            "https://x.org/a.png",
            "gs://bucket/a",
            "file:///etc/passwd",
            "/tmp/a.png",
            "",
            "data:image/png;base64,iVBORw0KGgo=",
            "data:image/png;base64,???",
            "data:,plain",
            "data:application/pdf;base64,JVBERi0=",
        ])
        .prop_map(|uri| MediaSource::Uri(uri.to_owned())),
    ];
    let media = (media_type, source, any_text(), any_text()).prop_map(
        |(media_type, source, name, detail)| Media {
            media_type: media_type.into(),
            source,
            name,
            detail,
        },
    );
    (media, 0..3).prop_map(|(media, kind)| match kind {
        0 => ContentPart::Image(media),
        1 => ContentPart::File(media),
        _ => ContentPart::Audio(media),
    })
}

fn any_reasoning() -> impl Strategy<Value = ContentPart> {
    let signature = proptest::sample::select(vec![
        Bytes::new(),
        Bytes::from_static(b"c2lnbmVk"),
        Bytes::from_static(b"not base64!"),
        Bytes::from_static(b"\xff\x00\x01"),
    ]);
    let maker = proptest::sample::select(vec![
        ("", ""),
        ("openai", "gpt-5-2025-08-07"),
        ("anthropic", "claude-sonnet-4-5-20250929"),
        ("anthropic", "claude-opus-4"),
        ("google", "gemini-2.5-pro"),
        ("someone", "else"),
    ]);
    let id = proptest::sample::select(vec!["", "rs_1", "rs_2", "x y"]);
    (any_text(), signature, any::<bool>(), maker, id).prop_map(
        |(text, signature, redacted, (provider, model), id)| {
            ContentPart::Reasoning(Reasoning {
                text,
                signature,
                redacted,
                provider: provider.into(),
                model: model.into(),
                id: id.into(),
            })
        },
    )
}

fn any_part() -> impl Strategy<Value = ContentPart> {
    prop_oneof![
        4 => any_text().prop_map(ContentPart::Text),
        1 => any_text().prop_map(ContentPart::Refusal),
        1 => any_arguments().prop_map(ContentPart::Json),
        1 => any_media(),
        2 => any_reasoning(),
    ]
}

fn any_outcome() -> impl Strategy<Value = Outcome> {
    let result = (
        any::<bool>(),
        any_text(),
        vec(any_part(), 0..3),
        any_arguments(),
    )
        .prop_map(|(success, error_message, parts, structured)| {
            Outcome::Result(ResultOutcome {
                event: at(3),
                success,
                error_message,
                parts: parts.into(),
                structured,
                shortened: false,
            })
        });
    let snapshot = (any::<bool>(), any_text()).prop_map(|(success, summary)| {
        Outcome::Snapshot(ResultDigest {
            event: at(3),
            success,
            summary,
            reference: "#3".into(),
            recorded: false,
        })
    });
    let missing = any_text().prop_map(|why| missing(&why));
    prop_oneof![3 => result, 1 => snapshot, 1 => missing]
}

fn any_name() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => proptest::sample::select(vec!["read", "list_files", "fs.read", "a b", "a_b", "1st"])
            .prop_map(str::to_owned),
        1 => any_text(),
        1 => Just("long".repeat(30)),
    ]
}

fn any_call() -> impl Strategy<Value = Block> {
    let id = prop_oneof![
        "[a-z0-9_-]{1,8}",
        any_text(),
        Just("x".repeat(90)),
        Just("call:1".to_owned()),
    ];
    let item_id = prop_oneof![Just("fc_1".to_owned()), any_item_id("fc_"), any_text()];
    (id, any_name(), any_arguments(), any_outcome(), item_id).prop_map(
        |(id, tool, arguments, outcome, item_id)| {
            let mut block = call(&id, &tool, arguments.as_str(), outcome);
            if let Block::Call(call) = &mut block {
                call.item_id = item_id;
            }
            block
        },
    )
}

/// Ids like OpenAI's, from a set so small that duplicates occur.
fn any_item_id(start: &'static str) -> impl Strategy<Value = String> {
    "[0-9a-f]{1,2}".prop_map(move |rest| format!("{start}{rest}"))
}

fn any_step() -> impl Strategy<Value = Content> {
    let block = prop_oneof![
        2 => any_part().prop_map(part),
        1 => any_call(),
    ];
    let maker = proptest::sample::select(Provider::ALL.to_vec()).prop_map(maker);
    let message_id = prop_oneof![any_item_id("msg_"), any_text()];
    (vec(block, 0..6), maker, message_id).prop_map(|(blocks, maker, message_id)| {
        Content::Step(Step {
            blocks,
            maker,
            message_id,
        })
    })
}

fn any_content() -> impl Strategy<Value = Content> {
    let speaker = proptest::sample::select(vec![
        Speaker::User,
        Speaker::User,
        Speaker::System,
        Speaker::Developer,
    ]);
    let message =
        (speaker, vec(any_part(), 0..4), any_text()).prop_map(|(speaker, parts, author)| {
            Content::Message(Message {
                speaker,
                parts: parts.into(),
                author,
                is_told: false,
            })
        });
    prop_oneof![
        3 => message,
        4 => any_step(),
        1 => any_text().prop_map(Content::Instruction),
    ]
}

fn any_tool() -> impl Strategy<Value = ToolDefinition> {
    let schema = proptest::sample::select(vec![
        "",
        "{}",
        "true",
        r#"{"type":"object","properties":{}}"#,
        r#"{"type":"string"}"#,
        r#"{"properties":{"a":{}}, "type": ["object","null"]}"#,
        "{\"cut\":",
        r#"{"a":"\udc00"}"#,
        r#"{"type":"object","cache_control":{"type":"ephemeral"}}"#,
    ]);
    (any_name(), any_text(), schema).prop_map(|(name, description, schema)| ToolDefinition {
        description,
        ..tool(&name, schema)
    })
}

fn any_parameters() -> impl Strategy<Value = std::collections::BTreeMap<String, String>> {
    let name = proptest::sample::select(vec![
        "temperature",
        "max_tokens",
        "maxOutputTokens",
        "stop",
        "seed",
        "top_p",
        "tool_choice",
        "thinking",
        "odd",
    ]);
    let value = proptest::sample::select(vec![
        "0.5",
        "1.5",
        "-1",
        "7",
        "\"x\"",
        "[\"a\"]",
        "null",
        "{}",
        "broken",
        "\"auto\"",
        r#"{"type":"enabled","budget_tokens":2000}"#,
        r#"{"type":"function","function":{"name":"read"}}"#,
    ]);
    proptest::collection::btree_map(
        name.prop_map(str::to_owned),
        value.prop_map(str::to_owned),
        0..4,
    )
}

/// A random draft for a provider. Wire ids are unique, as required.
pub(crate) fn any_draft(provider: Provider) -> impl Strategy<Value = Draft> {
    let fate =
        proptest::sample::select(vec![Fate::Kept, Fate::Kept, Fate::Shortened, Fate::Dropped]);
    let items = vec((any_content(), fate), 0..12);
    let models = proptest::sample::select(vec![model(provider), "", "gemini-3-pro-preview"]);
    (
        items,
        vec(any_tool(), 0..4),
        any_parameters(),
        models,
        0_usize..4,
    )
        .prop_map(move |(contents, tools, parameters, model, volatile)| {
            let (contents, fates): (Vec<_>, Vec<_>) = contents.into_iter().unzip();
            let mut draft = draft(provider, contents);
            draft.tools = tools;
            draft.config.parameters = parameters;
            draft.config.model_id = model.into();
            let stable = draft.items.len().saturating_sub(volatile);
            for (place, (item, fate)) in draft.items.iter_mut().zip(fates).enumerate() {
                item.fate = fate;
                item.is_volatile = place >= stable;
            }
            make_wire_ids_unique(&mut draft);
            draft
        })
}

pub(crate) fn make_wire_ids_unique(draft: &mut Draft) {
    let mut seen = std::collections::HashSet::new();
    for item in &mut draft.items {
        let Content::Step(step) = item.content.make_mut() else {
            continue;
        };
        for call in step.calls_mut() {
            while !seen.insert(call.wire_id.clone()) {
                call.wire_id.push('~');
            }
        }
    }
}
