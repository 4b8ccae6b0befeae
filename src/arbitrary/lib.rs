//! `proptest` strategies for event bodies of every kind that `body::decode` accepts.
//! They do not consider whether an event may be appended to a conversation.

#![cfg_attr(not(test), warn(unreachable_pub))]

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::{collection::btree_map, collection::vec, option, prelude::*};
use uuid::Uuid;

use treering_domain::*;

/// Generates event bodies of any kind.
pub fn event_body() -> BoxedStrategy<EventBody> {
    prop::sample::select(EventKind::ALL)
        .prop_flat_map(body_of)
        .boxed()
}

/// Generates event bodies of one kind.
pub fn body_of(kind: EventKind) -> BoxedStrategy<EventBody> {
    match kind {
        EventKind::ConversationCreated => {
            created().prop_map(EventBody::ConversationCreated).boxed()
        }
        EventKind::ConversationChanged => (
            option::of(text()),
            btree_map(text(), text(), 0..3),
            vec(text(), 0..3),
            json_map(),
            vec(text(), 0..3),
        )
            .prop_map(|(title, set_labels, remove_labels, set_metadata, remove)| {
                EventBody::ConversationChanged(ConversationChanged {
                    title,
                    set_labels,
                    remove_labels,
                    set_metadata,
                    remove_metadata: remove,
                })
            })
            .boxed(),
        EventKind::ConfigChanged => config().prop_map(EventBody::ConfigChanged).boxed(),
        EventKind::BranchForked => (branch_name(), any::<u64>(), any::<u64>(), text())
            .prop_map(|(name, parent, revision, system_prompt)| {
                EventBody::BranchForked(BranchForked {
                    name,
                    parent: BranchId(parent),
                    fork_revision: Revision(revision),
                    system_prompt,
                })
            })
            .boxed(),
        EventKind::BranchActivated => Just(EventBody::BranchActivated).boxed(),
        EventKind::BranchRenamed => branch_name().prop_map(EventBody::BranchRenamed).boxed(),
        EventKind::BranchArchived => text()
            .prop_map(|reason| EventBody::BranchArchived { reason })
            .boxed(),
        EventKind::SystemPromptSet => prompt().prop_map(EventBody::SystemPromptSet).boxed(),
        EventKind::UserPromptSet => prompt().prop_map(EventBody::UserPromptSet).boxed(),
        EventKind::MessageAppended => message().prop_map(EventBody::MessageAppended).boxed(),
        EventKind::ToolCallRequested
        | EventKind::ApprovalDecided
        | EventKind::ToolCallStarted
        | EventKind::ToolResultRecorded
        | EventKind::ToolCallCancelled
        | EventKind::ToolSnapshotRecorded
        | EventKind::ToolsDefined => tool_body(kind),
        EventKind::SubContextSpawned => (conversation(), text(), text())
            .prop_map(|(conversation, call_id, purpose)| {
                EventBody::SubContextSpawned(SubContextSpawned {
                    conversation,
                    call_id,
                    purpose,
                })
            })
            .boxed(),
        EventKind::SubContextReturned => (conversation(), text(), text())
            .prop_map(|(conversation, call_id, summary)| {
                EventBody::SubContextReturned(SubContextReturned {
                    conversation,
                    call_id,
                    summary,
                })
            })
            .boxed(),
        EventKind::ConversationSealed => (text(), text())
            .prop_map(|(reason, summary)| EventBody::ConversationSealed { reason, summary })
            .boxed(),
        EventKind::ContentErased => (
            prop::collection::btree_set(any::<u64>(), 1..4),
            text(),
            any::<Option<[u8; 32]>>(),
            any::<Option<[u8; 32]>>(),
        )
            .prop_map(
                |(revisions, reason, stubs, signed_by)| EventBody::ContentErased {
                    revisions: revisions.into_iter().map(Revision).collect(),
                    reason,
                    stubs: stubs.map(ContentHash),
                    signed_by: signed_by.map(PublicKey),
                },
            )
            .boxed(),
        EventKind::ContextSet
        | EventKind::ContextRemoved
        | EventKind::ToolsDiscovered
        | EventKind::GuidanceGiven
        | EventKind::EntitiesNoted
        | EventKind::SummaryRecorded
        | EventKind::Compacted
        | EventKind::AnnotationAdded
        | EventKind::Custom => context_body(kind),
    }
}

fn tool_body(kind: EventKind) -> BoxedStrategy<EventBody> {
    match kind {
        EventKind::ToolCallRequested => call().prop_map(EventBody::ToolCallRequested).boxed(),
        EventKind::ApprovalDecided => {
            let decision = prop::sample::select(vec![
                Decision::Approved,
                Decision::Denied,
                Decision::Expired,
            ]);
            (name(), decision, any::<[u8; 32]>(), text(), text())
                .prop_map(|(call_id, decision, hash, decided_by, reason)| {
                    EventBody::ApprovalDecided(ApprovalDecided {
                        call_id,
                        decision,
                        arguments_hash: ContentHash(hash),
                        decided_by,
                        reason,
                    })
                })
                .boxed()
        }
        EventKind::ToolCallStarted => (name(), text())
            .prop_map(|(call_id, executor)| {
                EventBody::ToolCallStarted(ToolCallStarted { call_id, executor })
            })
            .boxed(),
        EventKind::ToolResultRecorded => result().prop_map(EventBody::ToolResultRecorded).boxed(),
        EventKind::ToolCallCancelled => {
            let reason = prop::sample::select(vec![
                CancelReason::Denied,
                CancelReason::Interrupted,
                CancelReason::TimedOut,
                CancelReason::Superseded,
            ]);
            (name(), reason, text())
                .prop_map(|(call_id, reason, detail)| {
                    EventBody::ToolCallCancelled(ToolCallCancelled {
                        call_id,
                        reason,
                        detail,
                    })
                })
                .boxed()
        }
        EventKind::ToolSnapshotRecorded => (name(), any::<u64>(), text())
            .prop_map(|(call_id, revision, summary)| {
                EventBody::ToolSnapshotRecorded(ToolSnapshotRecorded {
                    call_id,
                    request_revision: Revision(revision),
                    summary,
                })
            })
            .boxed(),
        _ => btree_map(
            name(),
            (
                text(),
                optional_json(),
                text(),
                any::<bool>(),
                text(),
                any::<bool>(),
            ),
            0..4,
        )
        .prop_map(|tools| EventBody::ToolsDefined {
            tools: tools
                .into_iter()
                .map(
                    |(
                        name,
                        (description, input_schema, source, needs_approval, guidance, discoverable),
                    )| ToolDefinition {
                        name,
                        description,
                        input_schema,
                        source,
                        needs_approval,
                        guidance,
                        discoverable,
                        strict: discoverable.then_some(needs_approval),
                    },
                )
                .collect(),
        })
        .boxed(),
    }
}

fn context_body(kind: EventKind) -> BoxedStrategy<EventBody> {
    match kind {
        EventKind::ContextSet => (name(), json(), text())
            .prop_map(|(key, value, provider)| {
                EventBody::ContextSet(ContextSet {
                    key,
                    value,
                    provider,
                })
            })
            .boxed(),
        EventKind::ContextRemoved => name()
            .prop_map(|key| EventBody::ContextRemoved { key })
            .boxed(),
        EventKind::ToolsDiscovered => prop::collection::btree_set(name(), 0..4)
            .prop_map(|names| EventBody::ToolsDiscovered {
                names: names.into_iter().collect(),
            })
            .boxed(),
        EventKind::GuidanceGiven => {
            let item = (name(), text()).prop_map(|(tool, text)| Guidance { tool, text });
            vec(item, 0..4)
                .prop_map(|guidance| EventBody::GuidanceGiven { guidance })
                .boxed()
        }
        EventKind::EntitiesNoted => btree_map(name(), (text(), text()), 0..4)
            .prop_map(|entities| EventBody::EntitiesNoted {
                entities: entities
                    .into_iter()
                    .map(|(id, (kind, name))| Entity { id, kind, name })
                    .collect(),
            })
            .boxed(),
        EventKind::SummaryRecorded => (text(), any::<u64>(), any::<u64>())
            .prop_map(|(content, from, to)| {
                EventBody::SummaryRecorded(SummaryRecorded {
                    content,
                    from_revision: Revision(from),
                    to_revision: Revision(to),
                })
            })
            .boxed(),
        EventKind::Compacted => compacted().prop_map(EventBody::Compacted).boxed(),
        EventKind::AnnotationAdded => {
            let score = option::of(-1e300..1e300_f64);
            (
                option::of(1..u64::MAX),
                any::<bool>(),
                score,
                text(),
                text(),
            )
                .prop_map(|(target, whole_turn, score, label, comment)| {
                    EventBody::AnnotationAdded(AnnotationAdded {
                        target: target.map(Revision),
                        whole_turn,
                        score,
                        label,
                        comment,
                    })
                })
                .boxed()
        }
        _ => (name(), text(), bytes(), text(), text())
            .prop_map(|(type_name, content_type, data, text, delta_of)| {
                EventBody::Custom(Custom {
                    type_name,
                    content_type,
                    data,
                    text,
                    delta_of: delta_of.replace('\0', ""),
                })
            })
            .boxed(),
    }
}

fn compacted() -> impl Strategy<Value = Compacted> {
    let trigger = prop::sample::select(vec![
        CompactionTrigger::Threshold,
        CompactionTrigger::Manual,
        CompactionTrigger::Imported,
    ]);
    let numbers = (any::<u64>(), any::<u32>(), any::<u64>(), any::<u64>());
    (text(), numbers, trigger, option::of(raw())).prop_map(|(summary, numbers, trigger, raw)| {
        let (cut, kept_turns, tokens_before, tokens_after) = numbers;
        Compacted {
            summary,
            cut_revision: Revision(cut),
            kept_turns,
            tokens_before,
            tokens_after,
            trigger,
            raw,
        }
    })
}

/// Generates tool call requests whose hash matches their arguments.
pub fn call() -> impl Strategy<Value = ToolCallRequested> {
    (
        name(),
        name(),
        prop_oneof![json(), not_json()],
        option::of(1..u64::MAX),
        any::<bool>(),
        (text(), option::of(raw())),
    )
        .prop_map(
            |(call_id, tool, arguments, revision, needs_approval, (item_id, raw))| {
                ToolCallRequested {
                    call_id,
                    tool,
                    arguments_hash: ContentHash(blake3::hash(arguments.as_bytes()).into()),
                    arguments_not_json: serde_json::from_str::<serde::de::IgnoredAny>(
                        arguments.as_str(),
                    )
                    .is_err(),
                    arguments,
                    message_revision: revision.map(Revision),
                    needs_approval,
                    item_id,
                    raw,
                }
            },
        )
}

fn result() -> impl Strategy<Value = ToolResultRecorded> {
    let time = option::of(any::<u64>());
    let rest = (vec(part(), 0..4), optional_json(), option::of(raw()));
    (name(), any::<bool>(), text(), time, rest).prop_map(
        |(call_id, success, error_message, execution_time_ms, (parts, structured, raw))| {
            ToolResultRecorded {
                call_id,
                success,
                error_message,
                execution_time_ms,
                parts,
                structured,
                raw,
            }
        },
    )
}

/// Generates messages.
pub fn message() -> impl Strategy<Value = MessageAppended> {
    let role = prop::sample::select(vec![
        Role::System,
        Role::Developer,
        Role::User,
        Role::Assistant,
        Role::Tool,
    ]);
    let names = (text(), text(), text(), text(), text());
    let parts = vec(part(), 0..4);
    (role, parts, option::of(usage()), option::of(raw()), names).prop_map(
        |(role, parts, usage, raw, names)| {
            let (author, message_id, finish_reason, tool_call_id, tool_name) = names;
            MessageAppended {
                role,
                parts,
                author,
                usage,
                raw,
                message_id,
                finish_reason,
                tool_call_id,
                tool_name,
            }
        },
    )
}

/// Generates content parts.
pub fn part() -> impl Strategy<Value = ContentPart> {
    let reasoning = (text(), bytes(), any::<bool>(), text(), text(), text()).prop_map(
        |(text, signature, redacted, provider, model, id)| Reasoning {
            text,
            signature,
            redacted,
            provider,
            model,
            id,
        },
    );
    prop_oneof![
        text().prop_map(ContentPart::Text),
        media().prop_map(ContentPart::Image),
        media().prop_map(ContentPart::File),
        media().prop_map(ContentPart::Audio),
        reasoning.prop_map(ContentPart::Reasoning),
        text().prop_map(ContentPart::Refusal),
        json().prop_map(ContentPart::Json),
    ]
}

fn media() -> impl Strategy<Value = Media> {
    let source = prop_oneof![
        Just(MediaSource::Absent),
        bytes().prop_map(MediaSource::Data),
        text().prop_map(MediaSource::Uri),
    ];
    (text(), source, text(), text()).prop_map(|(media_type, source, name, detail)| Media {
        media_type,
        source,
        name,
        detail,
    })
}

fn usage() -> impl Strategy<Value = Usage> {
    (any::<[u64; 5]>(), text()).prop_map(|([input, output, read, creation, reasoning], model)| {
        Usage {
            input_tokens: input,
            output_tokens: output,
            cache_read_input_tokens: read,
            cache_creation_input_tokens: creation,
            reasoning_output_tokens: reasoning,
            model,
        }
    })
}

fn raw() -> impl Strategy<Value = RawMessage> {
    let content = prop_oneof![
        bytes().prop_map(|data| (RawEncoding::Whole, data)),
        json().prop_map(|patch| (RawEncoding::JsonPatch, patch.as_bytes().clone())),
        json().prop_map(|rest| {
            let object = format!("{{\"rest\":{}}}", rest.as_str());
            (RawEncoding::Rest, Bytes::from(object))
        }),
    ];
    (text(), text(), text(), content).prop_map(|(origin, provider, model, (encoding, data))| {
        RawMessage {
            origin,
            provider,
            model,
            encoding,
            data,
        }
    })
}

fn created() -> impl Strategy<Value = ConversationCreated> {
    let parent = (conversation(), any::<u64>(), any::<u64>(), text()).prop_map(
        |(conversation, branch, revision, call_id)| ParentRef {
            conversation,
            branch: BranchId(branch),
            revision: Revision(revision),
            call_id,
        },
    );
    let from = (text(), text(), optional_json());
    let parent = (option::of(parent), any::<bool>());
    let maps = (btree_map(text(), text(), 0..3), json_map(), json_map());
    (text(), config(), maps, parent, from).prop_map(
        |(
            title,
            config,
            (labels, policies, metadata),
            (parent, shares),
            (source, source_id, meta),
        )| {
            ConversationCreated {
                title,
                config,
                labels,
                shares_history: shares && parent.is_some(),
                parent,
                policies,
                source,
                source_id,
                source_meta: meta,
                metadata,
            }
        },
    )
}

fn config() -> impl Strategy<Value = Config> {
    (text(), text(), json_map()).prop_map(|(model_id, mode, parameters)| Config {
        model_id,
        mode,
        parameters,
    })
}

fn json_map() -> impl Strategy<Value = BTreeMap<String, String>> {
    let value = json().prop_map(|value| value.as_str().to_owned());
    btree_map(text(), value, 0..3)
}

fn prompt() -> impl Strategy<Value = PromptSet> {
    (text(), text()).prop_map(|(id, content)| PromptSet { id, content })
}

fn conversation() -> impl Strategy<Value = ConversationId> {
    any::<u128>().prop_map(|number| ConversationId(Uuid::from_u128(number)))
}

fn branch_name() -> impl Strategy<Value = BranchName> {
    "[a-zé0-9/._-]{1,20}".prop_map(|name| BranchName::new(&name).unwrap_or_default())
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        "\\PC{1,12}",
        "[a-z\\n\"\\\\ü€😀]{0,12}"
    ]
}

fn name() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9_:.-]{1,16}"
}

fn bytes() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..24).prop_map(Bytes::from)
}

/// Generates unusual JSON text: with spaces, duplicate keys, long numbers.
pub fn json() -> impl Strategy<Value = JsonText> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("1.50e+02".to_owned()),
        Just("123456789012345678901234567890".to_owned()),
        text().prop_map(|text| serde_json::Value::from(text).to_string()),
    ];
    let value = leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(|items| format!("[{}]", items.join(" ,"))),
            vec(inner, 0..4).prop_map(|items| {
                let fields = items.iter().map(|item| format!("\"k\" : {item}"));
                format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
            }),
        ]
    });
    value.prop_map(|text| JsonText::from_checked(Bytes::from(text)))
}

/// Generates what models write instead of JSON: nothing, prose, truncated JSON.
fn not_json() -> impl Strategy<Value = JsonText> {
    let broken = (json(), any::<prop::sample::Index>()).prop_map(|(json, at)| {
        let text = format!("{{\"a\": {}", json.as_str());
        let end = text.floor_char_boundary(1 + at.index(text.len()));
        text[..end].to_owned()
    });
    prop_oneof![Just(String::new()), Just("ls -la".to_owned()), broken]
        .prop_map(|text| JsonText::from_checked(Bytes::from(text)))
}

fn optional_json() -> impl Strategy<Value = JsonText> {
    prop_oneof![Just(JsonText::default()), json()]
}
