//! Appends in process that no well-behaved program makes. The services' part is in [`super::grpc`].

use treering::{
    domain::*,
    engine::*,
    proto::{self as codec, body::EncodedBody},
};

use super::store;

/// Returns bodies that are well typed but invalid.
fn impossible() -> Vec<(&'static str, EventBody)> {
    let call = |arguments: &[u8], hashed: &[u8]| {
        EventBody::ToolCallRequested(ToolCallRequested {
            call_id: "c".into(),
            tool: "t".into(),
            arguments: JsonText::from_checked(bytes::Bytes::copy_from_slice(arguments)),
            arguments_hash: ContentHash(blake3::hash(hashed).into()),
            message_revision: None,
            needs_approval: true,
            ..ToolCallRequested::default()
        })
    };
    let set = |key: &str, value: Vec<u8>| {
        EventBody::ContextSet(ContextSet {
            key: key.into(),
            value: JsonText::from_checked(value.into()),
            provider: String::new(),
        })
    };
    let deep = [b"[".repeat(5_000), b"]".repeat(5_000)].concat();
    let names = |names: &[&str]| EventBody::ToolsDiscovered {
        names: names.iter().map(|name| (*name).to_owned()).collect(),
    };
    let result = ToolResultRecorded::text("", "found");
    vec![
        ("a name twice", names(&["a", "b", "a"])),
        ("an empty name", names(&[""])),
        ("a name without end", names(&[&"n".repeat(100_000)])),
        ("arguments that are no JSON", call(b"{", b"{")),
        ("no arguments", call(b"", b"")),
        (
            "arguments that are no UTF-8",
            call(b"\"\xff\"", b"\"\xff\""),
        ),
        ("the hash of other arguments", call(b"{}", b"[]")),
        ("a value that is too deep", set("k", deep)),
        ("a value without a key", set("", b"1".to_vec())),
        ("a result of no call", EventBody::ToolResultRecorded(result)),
    ]
}

// A body that cannot be decoded would be damage to every later reader, and the store would not open
// again. It must be refused, and change nothing.
#[tokio::test(flavor = "multi_thread")]
async fn undecodable_body_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let engine = store::open(dir.path()).await;
    let id = store::conversation(&engine).await;
    let head = engine.head();
    for (what, body) in impossible() {
        let good = store::message(id, "before");
        let batch = vec![good, NewEvent::new(id, body)];
        let command = AppendCommand::new(store::ns(), batch);
        let error = engine.append(command).await.expect_err(what);
        let at = match error {
            AppendError::Invalid { event_index, .. } => Some(event_index),
            AppendError::Rejected(rejection) => rejection.event_index,
            other => panic!("{what}: {other}"),
        };
        assert_eq!(at, Some(1), "{what}");
        assert_eq!(engine.head(), head, "{what}");
    }
    engine.close().await;
    drop(engine);
    let engine = store::open(dir.path()).await;
    assert_eq!(engine.head(), head);
    store::assert_sound(&engine).await;
    engine.close().await;
}

// Names and keys that are empty, very long or full of control characters.
#[tokio::test(flavor = "multi_thread")]
async fn limits_hold_in_process() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = OpenOptions::new(dir.path());
    options.limits.body_bytes_max = 10_000;
    options.limits.batch_bytes_max = 20_000;
    options.limits.batch_events_max = 5;
    let engine = Engine::open(options).await.unwrap();
    let id = store::conversation(&engine).await;
    let head = engine.head();
    let of = |events: Vec<NewEvent>| AppendCommand::new(store::ns(), events);
    let keyed = |key: &str| AppendCommand {
        idempotency_key: Some(key.to_owned()),
        ..of(vec![store::message(id, "x")])
    };
    let actor = NewEvent {
        actor: "a".repeat(10_000),
        ..store::message(id, "x")
    };
    for (what, command) in [
        ("no events", of(Vec::new())),
        ("many events", of(vec![store::message(id, "x"); 6])),
        (
            "a large body",
            of(vec![store::message(id, &"x".repeat(10_001))]),
        ),
        (
            "a large batch",
            of(vec![store::message(id, &"x".repeat(9_000)); 3]),
        ),
        ("a long actor", of(vec![actor])),
        ("an empty key", keyed("")),
        ("a long key", keyed(&"k".repeat(10_000))),
    ] {
        engine.append(command).await.expect_err(what);
        assert_eq!(engine.head(), head, "{what}");
    }
    for name in ["", " ", "\n", "a\u{0}b", &"n".repeat(10_000)] {
        assert!(BranchName::new(name).is_err(), "{name:?}");
    }
    engine.close().await;
}

// Queries that no person types must be answered or refused, and never panic or hang.
#[tokio::test(flavor = "multi_thread")]
async fn hostile_queries_are_answered_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let engine = store::open(dir.path()).await;
    store::conversation(&engine).await;
    let (deep, long) = ("(".repeat(50_000), "word ".repeat(50_000));
    let wildcards = "a* ".repeat(2_000);
    let queries = [
        "",
        " ",
        "\"",
        "\"\"",
        "(",
        ")",
        "()",
        "AND",
        "NOT",
        "-",
        "+",
        "*",
        "a:",
        ":",
        "a:b:c",
        "\u{0}",
        "\u{202e}",
        "((((a",
        "a AND OR b",
        "\\",
        "[a TO",
        "^",
        "a^",
        "~",
        "\"a\"~99999999",
        &deep,
        &long,
        &wildcards,
    ];
    for query in queries {
        let request = SearchRequest {
            at_least: Some(engine.head()),
            ..SearchRequest::new(store::ns(), query, 10)
        };
        match engine.search(request).await {
            Ok(_) | Err(SearchError::Query { .. } | SearchError::EmptyQuery) => {}
            Err(other) => panic!("{:?}: {other}", &query[..query.len().min(40)]),
        }
    }
    engine.close().await;
}

// The bytes that an embedding program passes as a body are stored unchanged. Bytes of another kind,
// empty ones, or with a wrong hash must be refused.
#[tokio::test(flavor = "multi_thread")]
async fn received_bytes_must_match_kind_and_hash() {
    let dir = tempfile::tempdir().unwrap();
    let engine = store::open(dir.path()).await;
    let id = store::conversation(&engine).await;
    let honest = codec::body::encode(&store::message(id, "x").body);
    let kind = EventKind::MessageAppended;
    for bytes in [&b"\xff\xff"[..], b"\x08\x63"] {
        let bytes = bytes::Bytes::copy_from_slice(bytes);
        assert!(
            EncodedBody::received(kind, bytes.clone()).is_err(),
            "{bytes:?}"
        );
    }
    assert!(EncodedBody::received(EventKind::ToolResultRecorded, honest.clone()).is_err());
    let head = engine.head();
    let event = store::call(id, "c1", "look");
    let EventBody::ToolCallRequested(mut call) = event.body else {
        panic!("{event:?}");
    };
    call.arguments_hash.0[0] ^= 1;
    let event = NewEvent::new(id, EventBody::ToolCallRequested(call));
    let command = AppendCommand::new(store::ns(), vec![event]);
    let error = engine.append(command).await.unwrap_err();
    assert!(matches!(error, AppendError::Invalid { .. }), "{error}");
    assert_eq!(engine.head(), head);
    // Valid bytes are stored unchanged.
    let body = EncodedBody::received(kind, honest.clone()).unwrap();
    let command = AppendCommand::new(store::ns(), vec![NewEvent::new(id, body)]);
    engine.append(command).await.unwrap();
    let query = ReadQuery::all(store::ns(), EventSource::Conversation(id));
    let stored = engine.read_all(query).await.unwrap();
    assert_eq!(stored.last().unwrap().event.body, honest);
    engine.close().await;
}
