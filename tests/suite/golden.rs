//! Bytes that a released version wrote. They must always be decoded to the same values. Never write
//! these files again: add a folder for a new version.

use std::path::PathBuf;

use treering::{
    domain::*,
    log::{EncodedFrame, Record, RecordBody, Salt, frame},
    proto::{body, json},
};

const VERSION: &str = "v0.1";
const FRAME: &str = "frame.bin";
const FRAME_OFFSET: u64 = 42;

fn file(name: &str) -> PathBuf {
    let folder = ["tests", "fixtures", "golden", VERSION].iter();
    let folder: PathBuf = folder.collect();
    let root = PathBuf::from(crate::ROOT);
    root.join(folder).join(name)
}

fn id(number: u128) -> ConversationId {
    ConversationId(uuid::Uuid::from_u128(
        0x0190_0000_0000_7000_8000_0000_0000_0000 + number,
    ))
}

fn text(value: &str) -> String {
    value.to_owned()
}

fn json_text(value: &str) -> JsonText {
    json::check(value.as_bytes()).unwrap()
}

fn hash(bytes: &[u8]) -> ContentHash {
    ContentHash(blake3::hash(bytes).into())
}

fn raw() -> Option<RawMessage> {
    Some(RawMessage {
        origin: text("openai-chat"),
        provider: text("openai"),
        model: text("model-1"),
        encoding: RawEncoding::JsonPatch,
        data: br#"[{"op":"add","path":"/x","value":1.50}]"#.to_vec().into(),
    })
}

fn config() -> Config {
    Config {
        model_id: text("model-1"),
        mode: text("coding"),
        parameters: [(text("temperature"), text("0.70"))].into(),
    }
}

fn conversation_bodies() -> Vec<EventBody> {
    vec![
        EventBody::ConversationCreated(ConversationCreated {
            title: text("A title — with dashes"),
            config: config(),
            labels: [(text("team"), text("blue"))].into(),
            parent: Some(ParentRef {
                conversation: id(1),
                branch: BranchId(7),
                revision: Revision(9),
                call_id: text("call_1"),
            }),
            shares_history: true,
            policies: [(text("retention"), text(r#"{"days": 30}"#))].into(),
            source: text("somewhere"),
            source_id: text("there-1"),
            source_meta: json_text(r#"{"b": 1, "a": 1.0, "a": 2}"#),
            metadata: Default::default(),
        }),
        EventBody::ConversationChanged(ConversationChanged {
            title: Some(text("Another title")),
            set_labels: [(text("team"), text("red"))].into(),
            remove_labels: vec![text("old")],
            set_metadata: [(text("user"), text(r#"{"id": 7}"#))].into(),
            remove_metadata: vec![text("draft")],
        }),
        EventBody::ConfigChanged(config()),
        EventBody::BranchForked(BranchForked {
            name: BranchName::new("another way").unwrap(),
            parent: BranchId(3),
            fork_revision: Revision(300),
            system_prompt: text("be brief"),
        }),
        EventBody::BranchActivated,
        EventBody::BranchRenamed(BranchName::new("ein Ast").unwrap()),
        EventBody::BranchArchived {
            reason: text("worse"),
        },
        EventBody::SystemPromptSet(PromptSet {
            id: text("p1"),
            content: text("You help."),
        }),
        EventBody::UserPromptSet(PromptSet {
            id: text("p2"),
            content: text("Please."),
        }),
        EventBody::SubContextSpawned(SubContextSpawned {
            conversation: id(2),
            call_id: text("call_2"),
            purpose: text("look around"),
        }),
        EventBody::SubContextReturned(SubContextReturned {
            conversation: id(2),
            summary: text("nothing there"),
            call_id: text("call_2"),
        }),
        EventBody::ConversationSealed {
            reason: text("done"),
            summary: text("all was well"),
        },
        EventBody::ContentErased {
            revisions: vec![Revision(3), Revision(400)],
            reason: text("asked for"),
            stubs: None,
            signed_by: None,
        },
    ]
}

fn media(source: MediaSource) -> Media {
    Media {
        media_type: text("image/png"),
        source,
        name: text("a.png"),
        detail: text("low"),
    }
}

fn message_body() -> EventBody {
    let reasoning = Reasoning {
        text: text("hm"),
        signature: vec![0, 159, 255].into(),
        redacted: true,
        provider: text("anthropic"),
        model: text("model-2"),
        id: text("r1"),
    };
    let parts = vec![
        ContentPart::Text(text("words, \u{1f332}, \u{0} and 漢字")),
        ContentPart::Image(media(MediaSource::Data(vec![137, 80, 78, 71].into()))),
        ContentPart::File(media(MediaSource::Uri(text("file:///a")))),
        ContentPart::Audio(media(MediaSource::Data(vec![1].into()))),
        ContentPart::Reasoning(reasoning),
        ContentPart::Refusal(text("no")),
        ContentPart::Json(json_text(r#"[1e2, {"k": null}]"#)),
    ];
    EventBody::MessageAppended(MessageAppended {
        author: text("ada"),
        usage: Some(Usage {
            input_tokens: 1,
            output_tokens: 200,
            cache_read_input_tokens: 3,
            cache_creation_input_tokens: 4,
            reasoning_output_tokens: 5,
            model: text("model-1"),
        }),
        raw: raw(),
        message_id: text("m1"),
        finish_reason: text("tool_calls"),
        ..MessageAppended::new(Role::Assistant, parts)
    })
}

const ARGUMENTS: &str = r#"{"path": "src", "n": 1.50}"#;

fn tool_bodies() -> Vec<EventBody> {
    vec![
        EventBody::ToolCallRequested(ToolCallRequested {
            call_id: text("call_1"),
            tool: text("read_file"),
            arguments: json_text(ARGUMENTS),
            arguments_hash: hash(ARGUMENTS.as_bytes()),
            message_revision: Some(Revision(4)),
            needs_approval: true,
            ..ToolCallRequested::default()
        }),
        EventBody::ApprovalDecided(ApprovalDecided {
            call_id: text("call_1"),
            decision: Decision::Denied,
            arguments_hash: hash(ARGUMENTS.as_bytes()),
            decided_by: text("ada"),
            reason: text("too much"),
        }),
        EventBody::ToolCallStarted(ToolCallStarted {
            call_id: text("call_1"),
            executor: text("worker 1"),
        }),
        EventBody::ToolResultRecorded(ToolResultRecorded {
            success: false,
            error_message: text("not found"),
            execution_time_ms: Some(0),
            structured: json_text(r#"{"lines": []}"#),
            raw: raw(),
            ..ToolResultRecorded::text("call_1", "output\n")
        }),
        EventBody::ToolCallCancelled(ToolCallCancelled {
            call_id: text("call_1"),
            reason: CancelReason::TimedOut,
            detail: text("30 s"),
        }),
        EventBody::ToolSnapshotRecorded(ToolSnapshotRecorded {
            call_id: text("call_1"),
            request_revision: Revision(5),
            summary: text("read one file"),
        }),
        EventBody::ToolsDefined {
            tools: vec![ToolDefinition {
                name: text("read_file"),
                description: text("Reads."),
                input_schema: json_text(r#"{"type": "object"}"#),
                source: text("builtin"),
                needs_approval: true,
                guidance: String::new(),
                discoverable: false,
                strict: None,
            }],
        },
    ]
}

fn context_bodies() -> Vec<EventBody> {
    vec![
        EventBody::ContextSet(ContextSet {
            key: text("workspace"),
            value: json_text(r#"{"files": 3}"#),
            provider: text("editor"),
        }),
        EventBody::ContextRemoved {
            key: text("workspace"),
        },
        EventBody::ToolsDiscovered {
            names: vec![text("grep"), text("find")],
        },
        EventBody::GuidanceGiven {
            guidance: vec![Guidance {
                tool: text("grep"),
                text: text("Quote it."),
            }],
        },
        EventBody::EntitiesNoted {
            entities: vec![Entity {
                id: text("e1"),
                kind: text("file"),
                name: text("lib.rs"),
            }],
        },
        EventBody::SummaryRecorded(SummaryRecorded {
            content: text("They talked."),
            from_revision: Revision(1),
            to_revision: Revision(8),
        }),
        EventBody::Compacted(Compacted {
            summary: text("In short."),
            cut_revision: Revision(8),
            kept_turns: 2,
            tokens_before: 100_000,
            tokens_after: 900,
            trigger: CompactionTrigger::Threshold,
            raw: raw(),
        }),
        EventBody::AnnotationAdded(AnnotationAdded {
            target: Some(Revision(6)),
            whole_turn: true,
            score: Some(-0.25),
            label: text("good"),
            comment: text("quick"),
        }),
        EventBody::Custom(Custom {
            type_name: text("framework/state"),
            content_type: text("application/octet-stream"),
            data: vec![0, 1, 254, 255].into(),
            text: String::new(),
            delta_of: String::new(),
        }),
    ]
}

/// Returns one event of every kind, by number.
fn bodies() -> Vec<EventBody> {
    let mut bodies = conversation_bodies();
    bodies.push(message_body());
    bodies.extend(tool_bodies());
    bodies.extend(context_bodies());
    bodies.sort_by_key(|body| body.kind().number());
    bodies
}

/// Returns two records of one conversation.
fn records() -> Vec<Record> {
    let mut previous = ContentHash::default();
    let bodies = [EventBody::BranchActivated, message_body()];
    let records = (1..).zip(bodies).map(|(revision, event)| {
        let bytes = body::encode(&event);
        let header = EventHeader {
            id: EventId(id(100 + u128::from(revision)).0),
            namespace: Namespace::new("acme.test").unwrap(),
            conversation: id(1),
            branch: BranchId(7),
            revision: Revision(revision),
            kind: event.kind().number(),
            recorded_at: TimestampMicros(1_750_000_000_000_001),
            occurred_at: (revision == 2).then_some(TimestampMicros(-5)),
            actor: text("ada"),
            causation_id: Some(EventId(id(99).0)),
            correlation_id: text("run 1"),
        };
        let hash = Record::hash_body(&bytes);
        let inline = RecordBody::Inline(bytes);
        let salted = Salt::of([revision as u8; 16]).hash(hash);
        let record = Record::seal(previous, header, inline, salted, None).unwrap();
        previous = record.chain_hash();
        record
    });
    records.collect()
}

// Every later version must decode what an older one wrote to exactly the same values. Every kind
// needs a file.
#[test]
fn golden_event_of_every_kind_is_decoded() {
    let bodies = bodies();
    let kinds: Vec<_> = bodies.iter().map(EventBody::kind).collect();
    assert_eq!(kinds, EventKind::ALL, "one example of every kind");
    for wanted in bodies {
        let kind = wanted.kind();
        let bytes = std::fs::read(file(&format!("{kind}.bin"))).unwrap();
        assert_eq!(body::decode(kind, &bytes.into()).unwrap(), wanted, "{kind}");
    }
}

// The same for a frame, with header, compression and hashes.
#[test]
fn golden_frame_is_decoded() {
    let bytes = std::fs::read(file(FRAME)).unwrap();
    let frame = EncodedFrame {
        first_offset: FRAME_OFFSET,
        count: 2,
        bytes: bytes.into(),
        dictionary: None,
    };
    let decoded = frame::decode(&frame).unwrap();
    let mut previous = ContentHash::default();
    for (offset, wanted) in (FRAME_OFFSET..).zip(records()) {
        let record = decoded.record(offset).unwrap();
        assert_eq!(*record, wanted);
        assert!(record.verify_chain(previous));
        previous = record.chain_hash();
    }
    assert_eq!(decoded.last_offset(), FRAME_OFFSET + 1);
}

// Writes the files of new kinds. Existing files are never written again.
#[test]
#[ignore = "writes the files that the other tests read"]
fn write_golden_files() {
    std::fs::create_dir_all(file("")).unwrap();
    for example in bodies() {
        write_new(&format!("{}.bin", example.kind()), &body::encode(&example));
    }
    let frames = frame::encode_group(FRAME_OFFSET, &records()).unwrap();
    assert_eq!(frames.len(), 1);
    write_new(FRAME, &frames[0].bytes);
}

fn write_new(name: &str, bytes: &[u8]) {
    let path = file(name);
    if !path.exists() {
        std::fs::write(path, bytes).unwrap();
    }
}
