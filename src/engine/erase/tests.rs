//! Tests of erasure: needles are planted in every place with text, erased, and searched for in
//! every file, compressed and uncompressed.

mod shard;

use std::{
    collections::BTreeMap,
    io::Read,
    path::{Path, PathBuf},
    sync::Arc,
};

use futures::StreamExt;
use proptest::prelude::*;

use super::{
    carry_out::{begin, hash_of_stubs, record},
    plan::{ErasePlan, EraseSelection},
};
use crate::{
    BranchAddress, BuildQuery, Engine, EraseCommand, EraseError, EraseItem, EraseOutcome,
    EraseTarget, ErasedEvent, ErasureAtOpen, EventSource, LatestQuery, NamedEvent, OpenOptions,
    ReadQuery, Retention, SearchRequest, SharedBy, VerifyItem, receipt_signer, salvage,
    store_formats,
};
use treering_context::provider::Provider;
use treering_domain::*;
use treering_log::{
    BlobRef, EventLog, OpenMode, Record, RecordBody, RedbLog, RedbLogOptions, frame,
};
use treering_proto::body;
use treering_search::searchable_text;

/// The planted needles, named by place.
const NEEDLES: [&str; 21] = [
    "needletitleqzx",
    "needlelabelqzx",
    "needlesourceidqzx",
    "needletextqzx",
    "needleblobqzx",
    "needleargumentqzx",
    "needleresultqzx",
    "needleentityqzx",
    "needlekeyqzx",
    "needlebranchqzx",
    "needlesummaryqzx",
    "needlepromptqzx",
    "needleeventkeyqzx",
    "needleattributeqzx",
    "needleattributenameqzx",
    "needletypeqzx",
    "needlecustomqzx",
    "needleretitledqzx",
    "needlerelabelqzx",
    "needlemetadataqzx",
    "needlebornwithqzx",
];
/// The needles that are in the index.
const SEARCHED: [&str; 8] = [
    "needletitleqzx",
    "needleretitledqzx",
    "needletextqzx",
    "needleblobqzx",
    "needleargumentqzx",
    "needleresultqzx",
    "needlesummaryqzx",
    "needlecustomqzx",
];
/// The index of the large body among the planted events.
const LARGE_AT: usize = 6;
const CONVERSATION: u128 = 0x0190_0000_0000_7000_8000_0000_0000_0001;
const OTHER: u128 = CONVERSATION + 1;
const FORK: u128 = CONVERSATION + 2;
const CHILD: u128 = CONVERSATION + 3;

fn id(number: u128) -> ConversationId {
    ConversationId(uuid::Uuid::from_u128(number))
}

fn noise(seed: u64, bytes: usize) -> String {
    let mut text = String::new();
    for part in 0.. {
        if text.len() >= bytes {
            break;
        }
        let hash = blake3::hash(format!("{seed} {part}").as_bytes());
        text.push_str(hash.to_hex().as_str());
    }
    text
}

fn message(role: Role, text: &str) -> EventBody {
    EventBody::MessageAppended(MessageAppended::text(role, text))
}

/// Returns the events of a conversation with a needle in every place that can hold text.
fn planted() -> Vec<EventBody> {
    let mut call = body::tool_call(
        "call_1",
        "read_file",
        r#"{"path": "src/needleargumentqzx.rs"}"#,
    )
    .unwrap();
    call.needs_approval = true;
    let hash = call.arguments_hash;
    let blob = format!("needleblobqzx {}", noise(7, 200_000));
    vec![
        EventBody::ConversationCreated(ConversationCreated {
            title: "About needletitleqzx".into(),
            labels: [("secret".to_owned(), "needlelabelqzx".to_owned())].into(),
            source: "test".into(),
            source_id: "needlesourceidqzx".into(),
            metadata: [("born".to_owned(), r#""needlebornwithqzx""#.to_owned())].into(),
            ..ConversationCreated::default()
        }),
        EventBody::SystemPromptSet(PromptSet {
            id: String::new(),
            content: "Be needlepromptqzx".into(),
        }),
        message(Role::User, "what is needletextqzx?"),
        EventBody::ToolCallRequested(call),
        EventBody::ApprovalDecided(ApprovalDecided {
            call_id: "call_1".into(),
            decision: Decision::Approved,
            arguments_hash: hash,
            decided_by: "ada".into(),
            reason: String::new(),
        }),
        EventBody::ToolResultRecorded(ToolResultRecorded::text(
            "call_1",
            "it says needleresultqzx",
        )),
        message(Role::Assistant, &blob),
        EventBody::EntitiesNoted {
            entities: vec![Entity {
                id: "1".into(),
                kind: "file".into(),
                name: "needleentityqzx".into(),
            }],
        },
        EventBody::ContextSet(ContextSet {
            key: "needlekeyqzx".into(),
            value: JsonText::from_checked("1".into()),
            provider: String::new(),
        }),
        EventBody::BranchForked(BranchForked {
            name: BranchName::new("needlebranchqzx").unwrap(),
            parent: BranchId::MAIN,
            fork_revision: Revision(7),
            system_prompt: String::new(),
        }),
        EventBody::SummaryRecorded(SummaryRecorded {
            content: "needlesummaryqzx was asked for".into(),
            from_revision: Revision(1),
            to_revision: Revision(7),
        }),
        EventBody::Custom(Custom {
            type_name: "needletypeqzx".into(),
            content_type: "text/plain".into(),
            data: b"needletypeqzx".as_slice().into(),
            text: "needlecustomqzx".into(),
            delta_of: String::new(),
        }),
        EventBody::ConversationChanged(ConversationChanged {
            title: Some("About needleretitledqzx".into()),
            set_labels: [("other".to_owned(), "needlerelabelqzx".to_owned())].into(),
            set_metadata: [(
                "user".to_owned(),
                r#"{"id": "needlemetadataqzx"}"#.to_owned(),
            )]
            .into(),
            ..ConversationChanged::default()
        }),
    ]
}

async fn append(engine: &Engine, of: ConversationId, bodies: Vec<EventBody>) {
    let fork = bodies
        .iter()
        .position(|body| matches!(body, EventBody::BranchForked(_)));
    for (at, body) in bodies.into_iter().enumerate() {
        let mut event = NewEvent::new(of, body);
        event.actor = "tester".to_owned();
        // With tags, the large body would differ from the other conversation's.
        if of == id(CONVERSATION) && at != LARGE_AT {
            event.tags = Tags {
                key: format!("needleeventkeyqzx/{at}"),
                attributes: [(
                    "needleattributenameqzx".to_owned(),
                    "needleattributeqzx".to_owned(),
                )]
                .into(),
            };
        }
        if fork.is_some_and(|fork| at == fork) {
            event.branch = None;
        }
        let mut command = AppendCommand::new(Namespace::default(), vec![event]);
        command.idempotency_key = Some(format!("{of} {at} {}", EventId::generate()));
        engine.append(command).await.unwrap();
    }
}

async fn open(dir: &Path) -> Engine {
    Engine::open(OpenOptions::new(dir)).await.unwrap()
}

/// Creates a store with the planted conversation, another one with the same large body, a fork that
/// shares its history, and a sub-context; with other events before, between and after, in blocks
/// and in frames.
async fn filled(dir: &Path) -> Engine {
    let engine = open(dir).await;
    let others = |from: u64, count: u64| {
        let noisy = move |at| message(Role::User, &noise(at, 1_500));
        (from..from + count).map(noisy).collect::<Vec<_>>()
    };
    let created = EventBody::ConversationCreated(ConversationCreated::default());
    let mut first = vec![created];
    first.extend(others(0, 400));
    append(&engine, id(OTHER), first).await;
    append(&engine, id(CONVERSATION), planted()).await;
    append(&engine, id(OTHER), others(1_000, 100)).await;
    engine.pack_log().await.unwrap();
    let parent = |shares_history| ConversationCreated {
        parent: Some(ParentRef {
            conversation: id(CONVERSATION),
            branch: BranchId::MAIN,
            revision: Revision(7),
            call_id: String::new(),
        }),
        shares_history,
        ..ConversationCreated::default()
    };
    append(
        &engine,
        id(FORK),
        vec![EventBody::ConversationCreated(parent(true))],
    )
    .await;
    let mut child = vec![EventBody::ConversationCreated(parent(false))];
    child.push(message(Role::User, "needletextqzx again"));
    append(&engine, id(CHILD), child).await;
    append(&engine, id(OTHER), others(2_000, 20)).await;
    engine
}

fn command(target: EraseTarget) -> EraseCommand {
    EraseCommand {
        namespace: Namespace::default(),
        target,
        keep_derived: false,
        dry_run: false,
        reason: "asked for".to_owned(),
        actor: "ada".to_owned(),
    }
}

async fn erase(
    engine: &Engine,
    command: EraseCommand,
) -> Result<(Vec<EraseItem>, EraseOutcome), EraseError> {
    let (mut items, mut outcome) = (Vec::new(), None);
    let mut brought = engine.erase(command);
    while let Some(item) = brought.next().await {
        match item? {
            EraseItem::Progress(_) => {}
            EraseItem::Outcome(done) => outcome = Some(done),
            item => items.push(item),
        }
    }
    Ok((items, outcome.expect("it ends with an outcome")))
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files.extend(files_below(&path)),
            false => files.push(path),
        }
    }
    files
}

/// Returns the decompressed form of everything compressed in a file, because projections compress
/// their rows.
fn unpacked(bytes: &[u8]) -> Vec<u8> {
    const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
    const BYTES_MAX: u64 = 1 << 20;
    let mut all = Vec::new();
    for at in memchr::memmem::find_iter(bytes, &MAGIC) {
        let packed = zstd::stream::read::Decoder::new(&bytes[at..]).unwrap();
        // Bytes after the frame do not belong to it.
        let _ends = packed.single_frame().take(BYTES_MAX).read_to_end(&mut all);
    }
    all
}

fn holds(bytes: &[u8], needle: &str) -> bool {
    memchr::memmem::find(bytes, needle.as_bytes()).is_some()
}

/// Returns where needles are found: literally in files, in decompressed records and dictionaries,
/// and in large bodies.
async fn found(dir: &Path, blobs: &[BlobRef]) -> Vec<String> {
    let mut found = Vec::new();
    let mut look = |place: &str, bytes: &[u8]| {
        for needle in NEEDLES {
            if holds(bytes, needle) {
                found.push(format!("{needle} in {place}"));
            }
        }
    };
    for path in files_below(dir) {
        let (place, bytes) = (path.display().to_string(), std::fs::read(&path).unwrap());
        look(&place, &bytes);
        look(&format!("{place}, unpacked"), &unpacked(&bytes));
    }
    let log = RedbLog::open(dir, RedbLogOptions::default(), OpenMode::Read).unwrap();
    let (log, head) = (Arc::new(log) as Arc<dyn EventLog>, 1 << 20);
    let shard = ShardId::default();
    let mut next = 1;
    while next <= head {
        let frames = log.read(shard, next, 1 << 20).await.unwrap();
        let Some(last) = frames.last() else { break };
        next = last.last_offset() + 1;
        for stored in &frames {
            if let Some(dictionary) = &stored.dictionary {
                look("a dictionary", dictionary.bytes());
            }
            for record in frame::decode(stored).unwrap().records {
                look("a record", record.body.here());
                look("a header", format!("{:?}", record.header).as_bytes());
            }
        }
    }
    for blob in blobs {
        if let Ok(bytes) = log.blob(shard, blob).await {
            look("a large body", &bytes);
        }
    }
    log.close().await.unwrap();
    found
}

async fn blobs(engine: &Engine) -> Vec<BlobRef> {
    let reader = &engine.inner.reads.reader;
    let records = reader.records(1, usize::MAX, usize::MAX).await.unwrap();
    let blob = |record: Record| match record.body {
        RecordBody::Blob(blob) => Some(blob),
        RecordBody::Inline(_) | RecordBody::Stub(_) => None,
    };
    records
        .into_iter()
        .filter_map(|(_, record)| blob(record))
        .collect()
}

async fn events(engine: &Engine) -> Vec<NamedEvent> {
    let all = ReadQuery::all(Namespace::default(), EventSource::Log);
    engine.read_all(all).await.unwrap()
}

async fn check_sound(engine: &Engine) {
    let mut items = engine.verify(&Namespace::default(), true);
    while let Some(item) = items.next().await {
        match item.unwrap() {
            VerifyItem::Fault(fault) => panic!("{fault:?}"),
            VerifyItem::Outcome(outcome) => assert!(outcome.sound && outcome.events > 0),
            VerifyItem::Progress(_) => {}
        }
    }
}

/// Checks that no read of the conversation shows a needle.
async fn check_reads(engine: &Engine) {
    let namespace = Namespace::default();
    let mut told = format!("{:?}", events(engine).await);
    let state = engine
        .inner
        .reads
        .state(&namespace, id(CONVERSATION))
        .unwrap();
    told.push_str(&format!("{state:?}"));
    for of in [CONVERSATION, FORK] {
        let address = BranchAddress {
            namespace: namespace.clone(),
            conversation: id(of),
            branch: None,
        };
        for provider in [Provider::Anthropic, Provider::OpenAiChat] {
            let built = engine
                .build(BuildQuery::new(address.clone(), provider))
                .await
                .unwrap();
            treering_provider_check::assert_legal(provider.as_str(), &built.request);
            told.push_str(&String::from_utf8(built.request).unwrap());
        }
    }
    for needle in NEEDLES {
        assert!(!told.contains(needle), "{needle}");
        assert_eq!(hits(engine, needle).await, 0, "{needle}");
    }
    assert_eq!(looked_up(engine).await, 0);
}

/// Returns how many events are found by the planted keys and types.
async fn looked_up(engine: &Engine) -> usize {
    let keys = (0..12).map(|at| crate::EventSelector::Key(format!("needleeventkeyqzx/{at}")));
    let types =
        ["needletypeqzx", body::ERASED].map(|name| crate::EventSelector::Type(name.to_owned()));
    let query = LatestQuery {
        namespace: Namespace::default(),
        conversations: vec![id(CONVERSATION), id(FORK)],
        branch: None,
        wanted: keys.chain(types).collect(),
        as_of: None,
        headers_only: true,
        bytes_max: 1,
    };
    let found = engine.latest(query).await.unwrap();
    found
        .iter()
        .filter(|found| found.got.event.is_some())
        .count()
}

/// Searches for a needle. The index compresses terms by common prefixes, so its files cannot be
/// searched for them.
async fn hits(engine: &Engine, needle: &str) -> usize {
    let request = SearchRequest {
        at_least: Some(engine.head()),
        ..SearchRequest::new(Namespace::default(), needle, 10)
    };
    engine.search(request).await.unwrap().hits.len()
}

// An erased secret was still in a title, the search index, a free database page or a segment's
// compression dictionary. It must be in no file, and its events must still exist in place, with
// their hashes.
#[tokio::test(flavor = "multi_thread")]
async fn erased_content_is_in_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let engine = filled(dir.path()).await;
    let before = events(&engine).await;
    let large = blobs(&engine).await;
    assert_eq!(large.len(), 1);
    // Fill the caches: cached content must be erased, too.
    check_sound(&engine).await;
    let (items, outcome) = erase(
        &engine,
        command(EraseTarget::Conversation(id(CONVERSATION))),
    )
    .await
    .unwrap();
    // Thirteen events, and two of the sub-context.
    assert_eq!((outcome.events, outcome.derived), (15, 0));
    let shared = SharedBy {
        conversation: id(FORK),
        parent: id(CONVERSATION),
        revision: Revision(7),
    };
    assert!(items.contains(&EraseItem::Shared(shared)), "{items:?}");
    check_reads(&engine).await;
    check_sound(&engine).await;
    // The writer's cached content must not return with its next write.
    let event = NewEvent::new(id(CONVERSATION), message(Role::User, "and then?"));
    let appended = engine
        .append(AppendCommand::new(Namespace::default(), vec![event]))
        .await;
    appended.unwrap();
    let after = events(&engine).await;
    assert_eq!(after.len(), before.len() + 3);
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before.event.header, after.event.header);
        assert_eq!(before.event.chain_hash, after.event.chain_hash);
        let erased = [CONVERSATION, CHILD].contains(&after.event.header.conversation.0.as_u128());
        assert_eq!(after.event.erased, erased, "{after:?}");
        assert!(erased || before.event.body == after.event.body);
    }
    engine.close().await;
    assert_eq!(found(dir.path(), &large).await, [""; 0]);
    let engine = open(dir.path()).await;
    check_reads(&engine).await;
    check_sound(&engine).await;
    engine.close().await;
    assert_eq!(found(dir.path(), &large).await, [""; 0]);
}

/// Returns where events are found, and the names that the hits have from their calls.
async fn answers(engine: &Engine) -> Vec<(String, Vec<(Position, String)>)> {
    let mut answers = Vec::new();
    for (text, path) in [
        ("", "src/needleargumentqzx.rs"),
        ("needleresultqzx", ""),
        ("needleargumentqzx", ""),
        ("needletextqzx", ""),
        ("later", ""),
        ("again", ""),
        ("erased", ""),
    ] {
        let mut request = SearchRequest {
            at_least: Some(engine.head()),
            ..SearchRequest::new(Namespace::default(), text, 100)
        };
        request.filters.paths = [path].map(str::to_owned).into();
        request.filters.paths.retain(|path| !path.is_empty());
        let found = engine.search(request).await.unwrap();
        let hits = found.hits.into_iter();
        let hits = hits.map(|hit| (hit.found.position, hit.found.tool));
        answers.push((format!("{text}{path}"), hits.collect()));
    }
    answers
}

// Erasing a call's request keeps its result, also in a fork that shares the call. But the index
// stored the tool's name and the argument paths with both results. They must be removed without a
// rebuild, and a rebuild must not change any answer.
#[tokio::test(flavor = "multi_thread")]
async fn erasing_in_the_index_equals_a_rebuild() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).await;
    append(&engine, id(CONVERSATION), planted()).await;
    let mut of_fork = created("");
    of_fork.shares_history = true;
    of_fork.parent = Some(ParentRef {
        conversation: id(CONVERSATION),
        branch: BranchId::MAIN,
        revision: Revision(5),
        call_id: String::new(),
    });
    let in_fork = vec![
        EventBody::ConversationCreated(of_fork),
        EventBody::ToolResultRecorded(ToolResultRecorded::text("call_1", "later it says")),
    ];
    append(&engine, id(FORK), in_fork).await;
    let before = answers(&engine).await;
    assert_eq!(before[0].1.len(), 3, "{before:?}");
    assert!(before[0].1.iter().all(|(_, tool)| tool == "read_file"));
    let mark = dir.path().join(crate::open::INDEX_FOLDER).join("mark");
    std::fs::write(&mark, "").unwrap();
    let target = of(CONVERSATION, 4..=4);
    let (_, outcome) = erase(&engine, command(target)).await.unwrap();
    assert!(outcome.events > 0);
    assert!(mark.exists(), "the index was built again");
    let after = answers(&engine).await;
    assert_eq!(after[0].1, [], "{after:?}");
    assert_eq!(after[1].1.len(), 1, "{after:?}");
    assert_eq!(after[2].1, [], "{after:?}");
    assert_eq!(after[4].1.len(), 1, "{after:?}");
    assert!(!format!("{after:?}").contains("read_file"), "{after:?}");
    check_sound(&engine).await;
    let mut items = engine.rebuild(false, true);
    while let Some(item) = items.next().await {
        item.unwrap();
    }
    assert!(!mark.exists());
    assert_eq!(answers(&engine).await, after);
    engine.close().await;
}

// The needles must be found before the erasure, or the test above proves nothing.
#[tokio::test(flavor = "multi_thread")]
async fn planted_needles_are_found_before_erasing() {
    let dir = tempfile::tempdir().unwrap();
    let engine = filled(dir.path()).await;
    let large = blobs(&engine).await;
    for needle in SEARCHED {
        assert!(hits(&engine, needle).await > 0, "{needle}");
    }
    // On the branch ten of the eleven keys, and a type; in its fork the first six keys.
    assert_eq!(looked_up(&engine).await, 11 + 6);
    engine.close().await;
    let found = found(dir.path(), &large).await.join("\n");
    for needle in NEEDLES {
        assert!(found.contains(needle), "{needle} is nowhere");
    }
    for place in ["views.redb", "a record", "a large body"] {
        assert!(found.contains(place), "{place}: {found}");
    }
}

/// Records the erasure of the conversation, but does not carry it out.
async fn interrupted(engine: &Engine) {
    recorded_only(engine, id(CONVERSATION)).await;
    engine.close().await;
}

async fn recorded_only(engine: &Engine, of: ConversationId) {
    let log = engine.inner.upkeep.erasable.clone().unwrap();
    let command = command(EraseTarget::Conversation(of));
    let tree = EraseSelection::Tree([of].into());
    let mut plan = ErasePlan::new(Some(Namespace::default()), tree, false);
    plan.scan(&engine.inner, &*log, |_, _| {}).await.unwrap();
    begin(&log).await.unwrap();
    record(&engine.inner, &command, &plan, PublicKey([0; 32]))
        .await
        .unwrap();
}

// The power failed after the erasure was recorded, and before anything was removed. The next
// opening must finish it before anybody reads.
#[tokio::test(flavor = "multi_thread")]
async fn interrupted_erasure_finishes_at_the_next_open() {
    let dir = tempfile::tempdir().unwrap();
    let engine = filled(dir.path()).await;
    let large = blobs(&engine).await;
    interrupted(&engine).await;
    assert!(!found(dir.path(), &large).await.is_empty());

    // A read-only opening cannot finish it, but must hide the content.
    let read_only = Engine::open(OpenOptions::new(dir.path()).read_only())
        .await
        .unwrap();
    let at_open = read_only.erasing_at_open();
    assert_eq!(*at_open, ErasureAtOpen::Hidden { why: None });
    check_reads(&read_only).await;
    read_only.close().await;
    assert!(store_formats(dir.path()).await.unwrap().erasing);
    let looked = crate::repair(dir.path(), false).await.unwrap();
    assert!(looked.erasing && looked.log.is_whole());
    assert!(!found(dir.path(), &large).await.is_empty());
    let engine = open(dir.path()).await;
    assert_eq!(*engine.erasing_at_open(), ErasureAtOpen::Finished);
    check_reads(&engine).await;
    check_sound(&engine).await;
    engine.close().await;
    assert_eq!(found(dir.path(), &large).await, [""; 0]);
    let read_only = Engine::open(OpenOptions::new(dir.path()).read_only())
        .await
        .unwrap();
    check_reads(&read_only).await;
    assert_eq!(*read_only.erasing_at_open(), ErasureAtOpen::None);
    read_only.close().await;
    assert!(!store_formats(dir.path()).await.unwrap().erasing);
}

// The disk was full, so the erasure could not be finished, and the server did not start: nothing
// could be read. The store must be readable without the erased content, and the erasure finished
// later.
#[tokio::test(flavor = "multi_thread")]
async fn unfinished_erasure_hides_the_content() {
    let dir = tempfile::tempdir().unwrap();
    let engine = filled(dir.path()).await;
    let large = blobs(&engine).await;
    interrupted(&engine).await;
    // A folder in place of a file cannot be removed as one.
    let in_the_way = dir.path().join("views.verify.redb");
    std::fs::create_dir(&in_the_way).unwrap();
    let engine = open(dir.path()).await;
    let at_open = engine.erasing_at_open();
    assert!(
        matches!(at_open, ErasureAtOpen::Hidden { why: Some(_) }),
        "{at_open:?}"
    );
    check_reads(&engine).await;
    let event = NewEvent::new(id(OTHER), message(Role::User, "and then?"));
    let command = AppendCommand::new(Namespace::default(), vec![event]);
    let refused = engine.append(command.clone()).await;
    assert!(
        matches!(refused, Err(crate::AppendError::ReadOnly)),
        "{refused:?}"
    );
    engine.close().await;
    std::fs::remove_dir(&in_the_way).unwrap();
    let engine = open(dir.path()).await;
    check_reads(&engine).await;
    engine.append(command).await.unwrap();
    check_sound(&engine).await;
    engine.close().await;
    assert_eq!(found(dir.path(), &large).await, [""; 0]);
}

// A salvage of a damaged store must not bring back erased content.
#[tokio::test(flavor = "multi_thread")]
async fn salvage_does_not_copy_erased_content() {
    let (dir, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let engine = filled(dir.path()).await;
    let large = blobs(&engine).await;
    interrupted(&engine).await;
    let salvaged = salvage(dir.path(), to.path(), |_| {}).await.unwrap();
    assert!(salvaged.events_taken > 500 && salvaged.events_left == 0);
    let engine = open(to.path()).await;
    check_reads(&engine).await;
    check_sound(&engine).await;
    engine.close().await;
    assert_eq!(found(to.path(), &large).await, [""; 0]);
}

/// Formats erased events as `conversation#revision why`.
fn told(items: &[EraseItem]) -> Vec<String> {
    let event = |item: &EraseItem| match item {
        EraseItem::Event(ErasedEvent {
            conversation,
            revision,
            why,
            ..
        }) => Some(format!(
            "{}#{revision} {why:?}",
            conversation.0.as_u128() - CONVERSATION
        )),
        _ => None,
    };
    items.iter().filter_map(event).collect()
}

// Derived events repeat erased content in other words, and an approval decision has a hash that
// reveals the call's arguments.
#[tokio::test(flavor = "multi_thread")]
async fn erasing_includes_derived_events() {
    let dir = tempfile::tempdir().unwrap();
    let engine = filled(dir.path()).await;
    let target = |revisions| EraseTarget::Revisions {
        conversation: id(CONVERSATION),
        revisions,
    };
    let dry = |target, keep_derived| EraseCommand {
        dry_run: true,
        keep_derived,
        ..command(target)
    };
    let (items, outcome) = erase(&engine, dry(target(vec![4..=4]), false))
        .await
        .unwrap();
    assert_eq!(told(&items), ["0#4 Asked", "0#5 Bound", "0#11 Derived"]);
    assert_eq!((outcome.events, outcome.receipt), (3, None));
    let (items, _) = erase(&engine, dry(target(vec![4..=4]), true))
        .await
        .unwrap();
    assert_eq!(told(&items), ["0#4 Asked", "0#5 Bound"]);
    let literal = EraseTarget::Literal(b"needletextqzx".to_vec());
    let (items, _) = erase(&engine, dry(literal, true)).await.unwrap();
    assert_eq!(told(&items), ["0#3 Asked", "3#2 Asked"]);
    assert!(
        erase(&engine, dry(target(vec![4..=400]), false))
            .await
            .is_err()
    );
    assert!(
        erase(&engine, dry(EraseTarget::Literal(b"abc".to_vec()), false))
            .await
            .is_err()
    );
    // Nothing was erased, and no erasure is running.
    assert!(
        engine
            .inner
            .upkeep
            .files
            .as_ref()
            .unwrap()
            .erasing()
            .is_none()
    );
    assert!(
        events(&engine)
            .await
            .iter()
            .all(|event| !event.event.erased)
    );
    engine.close().await;
}

// Two conversations had the same large body. After an erasure from one, it must stay in the other;
// after an erasure from both, it must be gone. A later append of it must not refer to the old
// place.
#[tokio::test(flavor = "multi_thread")]
async fn shared_body_is_removed_with_its_last_event() {
    let dir = tempfile::tempdir().unwrap();
    let engine = filled(dir.path()).await;
    let body = planted()[6].clone();
    let again = NewEvent::new(id(OTHER), body.clone());
    engine
        .append(AppendCommand::new(
            Namespace::default(),
            vec![again.clone()],
        ))
        .await
        .unwrap();
    let large = blobs(&engine).await;
    assert_eq!(large[0].home_offset, large[1].home_offset);
    let erased = erase(
        &engine,
        command(EraseTarget::Conversation(id(CONVERSATION))),
    )
    .await
    .unwrap();
    assert!(
        erased
            .0
            .iter()
            .any(|item| matches!(item, EraseItem::Kept(_))),
        "{erased:?}"
    );
    check_sound(&engine).await;
    let literal = EraseTarget::Literal(b"needleblobqzx".to_vec());
    let (_, outcome) = erase(&engine, command(literal)).await.unwrap();
    assert_eq!(outcome.events, 1);
    engine
        .append(AppendCommand::new(Namespace::default(), vec![again]))
        .await
        .unwrap();
    let now = blobs(&engine).await;
    assert!(
        now.len() == 1 && now[0].home_offset > large[0].home_offset,
        "{now:?}"
    );
    check_sound(&engine).await;
    engine.close().await;
}

// A receipt must agree with the log: where the erasure is recorded, and the hash of the stubs.
#[tokio::test(flavor = "multi_thread")]
async fn receipt_equals_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let engine = filled(dir.path()).await;
    let target = EraseTarget::Revisions {
        conversation: id(CONVERSATION),
        revisions: vec![3..=3, 6..=7],
    };
    let (_, outcome) = erase(&engine, command(target)).await.unwrap();
    let receipt = outcome.receipt.unwrap();
    let signer = receipt_signer(&receipt).unwrap();
    let receipt: serde_json::Value = serde_json::from_str(&receipt).unwrap();
    let recorded = &receipt["recorded"][0];
    assert_eq!(
        recorded["revisions"],
        serde_json::json!([[3, 3], [6, 7], [11, 11]])
    );
    let offset = recorded["position"].as_u64().unwrap();
    let all = events(&engine).await;
    let event = &all[usize::try_from(offset).unwrap() - 1].event;
    assert_eq!(recorded["chain_hash"], event.chain_hash.get().to_string());
    let said = body::decode(EventKind::ContentErased, &event.body).unwrap();
    let EventBody::ContentErased {
        stubs,
        revisions,
        signed_by,
        ..
    } = said
    else {
        panic!("{said:?}");
    };
    assert_eq!(signed_by, Some(signer));
    let by_revision: BTreeMap<_, _> = all
        .iter()
        .filter(|event| event.event.header.conversation == id(CONVERSATION))
        .map(|event| (event.event.header.revision, &event.event))
        .collect();
    let left = revisions
        .iter()
        .map(|revision| &by_revision[revision].body[..]);
    assert_eq!(stubs, Some(hash_of_stubs(left)));
    assert!(
        revisions
            .iter()
            .all(|revision| by_revision[revision].erased)
    );
    engine.close().await;
}

proptest! {
    // A stub must be a valid body without text: one that cannot be decoded would count as damage,
    // and one with text would be found.
    #[test]
    fn stub_decodes_and_has_no_text(any in treering_arbitrary::event_body(), branch: u64) {
        let stub = body::stub(&any, BranchId(branch));
        let decoded = body::decode(any.kind(), &stub).unwrap();
        prop_assert_eq!(searchable_text(&decoded), None);
        // The stub of a stub is the stub itself.
        prop_assert_eq!(body::stub(&decoded, BranchId(branch)), stub);
    }
}

// Retention must not erase what is still in use, nor erase the same events again every day.
#[tokio::test(flavor = "multi_thread")]
async fn retention_erases_due_and_keeps_used_conversations() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).await;
    let created = |label: &str, parent: Option<ParentRef>| {
        EventBody::ConversationCreated(ConversationCreated {
            title: format!("title of {label}"),
            labels: [("team".to_owned(), label.to_owned())].into(),
            shares_history: parent.is_some(),
            parent,
            ..ConversationCreated::default()
        })
    };
    let fork = || {
        Some(ParentRef {
            conversation: id(CONVERSATION),
            branch: BranchId::MAIN,
            revision: Revision(1),
            call_id: String::new(),
        })
    };
    append(&engine, id(CONVERSATION), vec![created("red", None)]).await;
    append(&engine, id(OTHER), vec![created("red", None)]).await;
    append(&engine, id(FORK), vec![created("blue", fork())]).await;
    let due = || Retention {
        keep_days: Some(0),
        keep_sealed_days: None,
        labels: [("team".to_owned(), "red".to_owned())].into(),
    };
    // An event that records an erasure and its reason also becomes due.
    let silently = |target| EraseCommand {
        reason: String::new(),
        ..command(target)
    };
    let (items, outcome) = erase(&engine, silently(EraseTarget::Due(due())))
        .await
        .unwrap();
    assert_eq!((told(&items).len(), outcome.events), (1, 1), "{items:?}");
    let receipt: serde_json::Value = serde_json::from_str(&outcome.receipt.unwrap()).unwrap();
    let said = "conversations kept 0 days, with the label team=red";
    assert_eq!(receipt["target"], said);
    assert_eq!(
        receipt["recorded"][0]["conversation"],
        id(OTHER).to_string()
    );
    // The labels were erased with the content; without a label filter there is nothing more to
    // erase either.
    let any = Retention {
        labels: BTreeMap::new(),
        ..due()
    };
    let blue = Retention {
        labels: [("team".to_owned(), "blue".to_owned())].into(),
        ..due()
    };
    let (_, outcome) = erase(&engine, silently(EraseTarget::Due(blue)))
        .await
        .unwrap();
    assert_eq!(outcome.events, 1);
    let (_, outcome) = erase(&engine, silently(EraseTarget::Due(any.clone())))
        .await
        .unwrap();
    assert_eq!(outcome.events, 1, "the one that was built on");
    let (_, outcome) = erase(&engine, silently(EraseTarget::Due(any)))
        .await
        .unwrap();
    assert_eq!((outcome.events, outcome.receipt), (0, None));
    let nothing = erase(&engine, silently(EraseTarget::Due(Retention::default()))).await;
    let error = nothing.unwrap_err().to_string();
    assert!(error.contains("number of days"), "{error}");
    check_sound(&engine).await;
    engine.close().await;
}

const SECRET: &str = "The key is needletextqzx, in the harbour office";

fn created(title: &str) -> ConversationCreated {
    ConversationCreated {
        title: title.into(),
        ..ConversationCreated::default()
    }
}

fn of(number: u128, revisions: std::ops::RangeInclusive<u64>) -> EraseTarget {
    EraseTarget::Revisions {
        conversation: id(number),
        revisions: vec![revisions],
    }
}

/// Erases after a dry run, and searches every file. The erasure must match the dry run's report.
async fn gone_with(dir: &Path, engine: Engine, target: EraseTarget) -> (Vec<String>, Engine) {
    let dry = EraseCommand {
        dry_run: true,
        ..command(target.clone())
    };
    let (before, _) = erase(&engine, dry).await.unwrap();
    let (items, _) = erase(&engine, command(target)).await.unwrap();
    assert_eq!(told(&before), told(&items));
    check_sound(&engine).await;
    engine.close().await;
    let mut found = found(dir, &[]).await;
    found.retain(|place| place.starts_with("needletextqzx"));
    assert_eq!(found, [""; 0]);
    (told(&items), open(dir).await)
}

// An import titles a conversation by its first prompt, and a fork takes its parent's title: erased
// text stayed visible as the title in every list. Labels must be kept, because retention policies
// select conversations by them.
#[tokio::test(flavor = "multi_thread")]
async fn erasing_a_prompt_erases_titles_made_from_it() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).await;
    let first = ConversationCreated {
        labels: [("team", "red"), ("old", "1")]
            .map(|(name, text)| (name.to_owned(), text.to_owned()))
            .into(),
        ..created(SECRET)
    };
    let unlabelled = ConversationChanged {
        remove_labels: vec!["old".into()],
        ..ConversationChanged::default()
    };
    let bodies = vec![
        EventBody::ConversationCreated(first),
        message(Role::User, &format!("{SECRET}.\nWhere is that?")),
        message(Role::Assistant, "By the quay"),
        EventBody::ConversationChanged(unlabelled),
    ];
    append(&engine, id(CONVERSATION), bodies).await;
    let fork = ConversationCreated {
        parent: Some(ParentRef {
            conversation: id(CONVERSATION),
            branch: BranchId::MAIN,
            revision: Revision(3),
            call_id: String::new(),
        }),
        shares_history: true,
        ..created(&format!("{SECRET} (from #3)"))
    };
    append(
        &engine,
        id(FORK),
        vec![EventBody::ConversationCreated(fork)],
    )
    .await;
    append(
        &engine,
        id(OTHER),
        vec![EventBody::ConversationCreated(created("Quays"))],
    )
    .await;
    let (told, engine) = gone_with(dir.path(), engine, of(CONVERSATION, 2..=2)).await;
    assert_eq!(told, ["0#1 Derived", "0#2 Asked", "2#1 Derived"]);
    let row = engine
        .inner
        .reads
        .row(&Namespace::default(), id(CONVERSATION))
        .unwrap();
    let labels = [("team".to_owned(), "red".to_owned())];
    assert_eq!(
        (&row.info.title[..], &row.info.labels),
        ("", &labels.into())
    );
    engine.close().await;
}

fn call(call_id: &str, arguments: &str) -> EventBody {
    EventBody::ToolCallRequested(body::tool_call(call_id, "task", arguments).unwrap())
}

// A sub-context's result is copied into the result of the call that requested it. After it was
// erased in the child, it was still in the parent.
#[tokio::test(flavor = "multi_thread")]
async fn erasing_a_sub_context_erases_its_result_in_the_parent() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).await;
    let bodies = vec![
        EventBody::ConversationCreated(created("Boats")),
        message(Role::User, "Where is the key?"),
        call("call_1", "{}"),
    ];
    append(&engine, id(CONVERSATION), bodies).await;
    let place = BranchAddress::active(Namespace::default(), id(CONVERSATION));
    let spawn = crate::SpawnCommand {
        call_id: "call_1".into(),
        child: Some(id(CHILD)),
        ..crate::SpawnCommand::new(place)
    };
    engine.spawn(spawn).await.unwrap();
    append(&engine, id(CHILD), vec![message(Role::Assistant, SECRET)]).await;
    let end = crate::ReturnCommand::new(Namespace::default(), id(CHILD));
    engine.return_sub_context(end).await.unwrap();
    let later = vec![
        call("call_1", "{}"),
        EventBody::ToolResultRecorded(ToolResultRecorded::text("call_1", "another call")),
    ];
    append(&engine, id(CONVERSATION), later).await;
    let (told, engine) = gone_with(dir.path(), engine, of(CHILD, 2..=2)).await;
    let expected = ["0#5 Derived", "0#6 Derived", "3#2 Asked", "3#3 Derived"];
    let mut told = told;
    told.sort();
    assert_eq!(told, expected);
    engine.close().await;
}

// An import appends the parent first, including the result, and the child's purpose is the
// beginning of the child's first message.
#[tokio::test(flavor = "multi_thread")]
async fn erasing_an_imported_sub_context_erases_its_result() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).await;
    let answered = |call_id: &str, child: u128, purpose: &str, answer: &str| {
        [
            call(call_id, "{}"),
            EventBody::SubContextSpawned(SubContextSpawned {
                conversation: id(child),
                call_id: call_id.to_owned(),
                purpose: purpose.to_owned(),
            }),
            EventBody::ToolResultRecorded(ToolResultRecorded::text(call_id, answer)),
            EventBody::SubContextReturned(SubContextReturned {
                conversation: id(child),
                summary: String::new(),
                call_id: call_id.to_owned(),
            }),
        ]
    };
    let mut bodies = vec![EventBody::ConversationCreated(created("Boats"))];
    bodies.extend(answered(
        "call_1",
        CHILD,
        "The key is needletextqzx, in…",
        SECRET,
    ));
    bodies.extend(answered("call_2", OTHER, "tides", "high tide at six"));
    append(&engine, id(CONVERSATION), bodies).await;
    for (child, said) in [(CHILD, SECRET), (OTHER, "tides of today")] {
        let first = ConversationCreated {
            parent: Some(ParentRef {
                conversation: id(CONVERSATION),
                branch: BranchId::MAIN,
                revision: Revision(2),
                call_id: String::new(),
            }),
            ..created("")
        };
        let bodies = vec![
            EventBody::ConversationCreated(first),
            message(Role::User, said),
        ];
        append(&engine, id(child), bodies).await;
    }
    let (told, engine) = gone_with(dir.path(), engine, of(CHILD, 2..=2)).await;
    let expected = ["0#3 Derived", "0#4 Derived", "0#5 Derived", "3#2 Asked"];
    assert_eq!(told, expected);
    engine.close().await;
}

// A summary in a fork covers what the fork inherits, but its range has only the fork's revisions:
// it still quoted erased inherited text. A summary of a later part must stay.
#[tokio::test(flavor = "multi_thread")]
async fn erasing_inherited_events_erases_summaries_in_forks() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).await;
    let bodies = vec![
        EventBody::ConversationCreated(created("Boats")),
        message(Role::User, SECRET),
        message(Role::Assistant, "Noted"),
    ];
    append(&engine, id(CONVERSATION), bodies).await;
    let fork = ConversationCreated {
        parent: Some(ParentRef {
            conversation: id(CONVERSATION),
            branch: BranchId::MAIN,
            revision: Revision(3),
            call_id: String::new(),
        }),
        shares_history: true,
        ..created("A fork")
    };
    let summary = |content: &str, from, to| {
        EventBody::SummaryRecorded(SummaryRecorded {
            content: content.into(),
            from_revision: Revision(from),
            to_revision: Revision(to),
        })
    };
    let bodies = vec![
        EventBody::ConversationCreated(fork),
        EventBody::SystemPromptSet(PromptSet {
            id: String::new(),
            content: "Be brief".into(),
        }),
        message(Role::User, "And then?"),
        message(Role::Assistant, "That is all"),
        summary(SECRET, 3, 4),
        message(Role::User, "Tides?"),
        summary("Tides were asked for", 6, 6),
    ];
    append(&engine, id(FORK), bodies).await;
    let (told, engine) = gone_with(dir.path(), engine, of(CONVERSATION, 2..=2)).await;
    assert_eq!(told, ["0#2 Asked", "2#5 Derived"]);
    engine.close().await;
}

// A sub-context was due before its parent. Erasing it would also have erased events in the parent,
// which was not due, so the policy erased nothing, day after day.
#[tokio::test(flavor = "multi_thread")]
async fn retention_erases_a_due_sub_context_without_its_parent() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).await;
    let bodies = vec![EventBody::ConversationCreated(created("Boats"))];
    append(&engine, id(CONVERSATION), bodies).await;
    let place = BranchAddress::active(Namespace::default(), id(CONVERSATION));
    let spawn = crate::SpawnCommand {
        child: Some(id(CHILD)),
        ..crate::SpawnCommand::new(place)
    };
    engine.spawn(spawn).await.unwrap();
    let end = crate::ReturnCommand {
        summary: "By the quay".into(),
        ..crate::ReturnCommand::new(Namespace::default(), id(CHILD))
    };
    engine.return_sub_context(end).await.unwrap();
    let due = EraseTarget::Due(Retention {
        keep_days: None,
        keep_sealed_days: Some(0),
        labels: BTreeMap::new(),
    });
    let (items, _) = erase(&engine, command(due)).await.unwrap();
    assert_eq!(told(&items), ["3#1 Asked", "3#2 Asked"]);
    check_sound(&engine).await;
    engine.close().await;
}

// A second erasure was refused while another one ran, and had to be retried. It must queue instead.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_erasures_are_queued() {
    let dir = tempfile::tempdir().unwrap();
    let engine = filled(dir.path()).await;
    let (first, second) = tokio::join!(
        erase(
            &engine,
            command(EraseTarget::Conversation(id(CONVERSATION)))
        ),
        erase(&engine, command(of(OTHER, 2..=3))),
    );
    assert_eq!(first.unwrap().1.events, 15);
    assert_eq!(second.unwrap().1.events, 2);
    check_sound(&engine).await;
    engine.close().await;
}

// A deep verification read half of the store before an erasure and half after it, and reported
// damage. It must verify one consistent state.
#[tokio::test(flavor = "multi_thread")]
async fn verification_during_an_erasure_finds_no_fault() {
    let dir = tempfile::tempdir().unwrap();
    let engine = filled(dir.path()).await;
    let eraser = engine.clone();
    let erasing = tokio::spawn(async move {
        for revision in 2..6 {
            erase(&eraser, command(of(OTHER, revision..=revision)))
                .await
                .unwrap();
            tokio::task::yield_now().await;
        }
    });
    let mut checked = 0;
    while !erasing.is_finished() || checked == 0 {
        let mut items = engine.verify(&Namespace::default(), true);
        while let Some(item) = items.next().await {
            match item {
                Ok(VerifyItem::Fault(fault)) => panic!("{fault:?}"),
                Ok(VerifyItem::Outcome(outcome)) => assert!(outcome.sound),
                Ok(VerifyItem::Progress(_)) => {}
                Err(crate::ReadError::Busy { .. }) => break,
                Err(error) => panic!("{error}"),
            }
        }
        checked += 1;
    }
    erasing.await.unwrap();
    check_sound(&engine).await;
    engine.close().await;
}
