//! Requests that no well-behaved client sends. Each is answered with the right status, and nothing
//! of it is stored.

use bytes::{Buf, BufMut, Bytes};
use tonic::{
    Code, Request, Status,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::http::uri::PathAndQuery,
};
use treering::{domain::*, proto::pb};

use super::harness::*;

/// A codec that sends bytes unchanged.
#[derive(Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

/// Calls a method with these bytes. Returns the first answer, or the error.
async fn call_raw(server: &TestServer, path: &str, bytes: &[u8]) -> Result<(), Status> {
    let mut client = tonic::client::Grpc::new(server.channel.clone());
    client.ready().await.unwrap();
    let path: PathAndQuery = path.parse().unwrap();
    let bytes = Bytes::copy_from_slice(bytes);
    let request = Request::new(futures::stream::iter([bytes]));
    let mut answers = client.streaming(request, path, Raw).await?.into_inner();
    while answers.message().await?.is_some() {}
    Ok(())
}

const METHODS: [&str; 24] = [
    "Events/Append",
    "Events/AppendStream",
    "Events/Read",
    "Events/Latest",
    "Events/GetMany",
    "Events/KnownKeys",
    "Events/Subscribe",
    "Conversations/Get",
    "Conversations/List",
    "Conversations/Fork",
    "Conversations/Lineage",
    "Conversations/Diff",
    "Conversations/Seal",
    "Contexts/Get",
    "Items/Batch",
    "Items/Read",
    "Tools/History",
    "Tools/Pending",
    "Tools/WaitForDecision",
    "Tools/GetResult",
    "Tools/RecordResult",
    "Tools/Recorded",
    "Search/Search",
    "Admin/Verify",
];

// Invalid protobuf and invalid UTF-8 must be an error of the call on every method: never a panic, a
// hang or a default.
#[tokio::test(flavor = "multi_thread")]
async fn invalid_bytes_are_refused_by_every_method() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    server.conversation().await;
    let head = server.events_stored();
    for method in METHODS {
        refuses_invalid_bytes(&server, &format!("/treering.v1.{method}")).await;
    }
    let path = "/treering.v1.Events/Nope";
    let status = call_raw(&server, path, b"").await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
    assert_eq!(server.events_stored(), head);
    server.stop().done().await;
}

async fn refuses_invalid_bytes(server: &TestServer, path: &str) {
    let truncated = [0x0a, 0xff];
    let wrong_wire_type = [0x0f];
    let endless = [0xff_u8; 64];
    for bytes in [&truncated[..], &wrong_wire_type, &endless] {
        let status = call_raw(server, path, bytes).await.expect_err(path);
        // gRPC's code for a message that cannot be parsed.
        assert_eq!(status.code(), Code::Internal, "{path}: {status:?}");
    }
    // Field 1 is a text in most requests: here it is not UTF-8.
    let not_utf8 = [0x0a, 2, 0xff, 0xfe];
    if let Err(status) = call_raw(server, path, &not_utf8).await {
        let expected = [Code::Internal, Code::InvalidArgument];
        assert!(expected.contains(&status.code()), "{path}: {status:?}");
    }
}

// Spans of agents come from any program.
#[tokio::test(flavor = "multi_thread")]
async fn invalid_bytes_are_refused_as_spans() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let path = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
    refuses_invalid_bytes(&server, path).await;
    assert_eq!(server.events_stored(), 0);
    server.stop().done().await;
}

// An empty message lacks every field. If one is required, the error names it.
#[tokio::test(flavor = "multi_thread")]
async fn empty_request_names_the_missing_field() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    server.conversation().await;
    let head = server.events_stored();
    for (method, field) in [
        ("Events/Append", "events"),
        ("Events/Read", "source"),
        ("Events/Subscribe", "source"),
        ("Conversations/Get", "conversation_id"),
        ("Conversations/Fork", "name"),
        ("Conversations/Lineage", "conversation_id"),
        ("Conversations/Diff", "conversation_id"),
        ("Conversations/Seal", "conversation_id"),
        ("Items/Batch", "ops"),
        ("Items/Read", "ops"),
        ("Tools/History", "conversation_id"),
        ("Tools/WaitForDecision", "call_id"),
        ("Tools/GetResult", "which"),
        ("Tools/RecordResult", "start"),
        ("Tools/Recorded", "tool"),
        ("Admin/Rebuild", "views"),
    ] {
        let path = format!("/treering.v1.{method}");
        let status = call_raw(&server, &path, b"").await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{method}: {status:?}");
        assert_eq!(bad_field(&status), field, "{method}");
    }
    for method in ["Conversations/List", "Tools/Pending", "Admin/Stats"] {
        let path = format!("/treering.v1.{method}");
        call_raw(&server, &path, b"").await.unwrap();
    }
    assert_eq!(server.events_stored(), head);
    server.stop().done().await;
}

fn raw_event(body: pb::new_event::Body) -> pb::NewEvent {
    pb::NewEvent {
        body: Some(body),
        ..Default::default()
    }
}

type Spoil = fn(&mut pb::AppendRequest);

/// Returns changes that make a batch of two valid events invalid, and the field that the error
/// names.
fn spoilt() -> Vec<(&'static str, Spoil)> {
    use pb::new_event::Body;
    vec![
        ("events[1].body", |r| r.events[1].body = None),
        ("events[1].custom", |r| {
            r.events[1] = raw_event(Body::Custom(Bytes::from_static(b"\x0a\xff")));
        }),
        ("events[0].context_set.value", |r| {
            let deep = "[".repeat(100_000) + &"]".repeat(100_000);
            let set = pb::ContextSet {
                key: "k".into(),
                value: deep.into(),
                ..Default::default()
            };
            let bytes = prost::Message::encode_to_vec(&set);
            r.events[0] = raw_event(Body::ContextSet(bytes.into()));
        }),
        ("events[0].message_appended.role", |r| {
            r.events[0] = raw_event(Body::MessageAppended(Bytes::new()));
        }),
        ("events[1].causation_id", |r| {
            r.events[1].causation_id = "x".into()
        }),
        ("events[1].branch", |r| r.events[1].branch = "\u{7}".into()),
        ("events[1].actor", |r| r.events[1].actor = "a".repeat(600)),
        ("events[1].occurred_at", |r| {
            let (seconds, nanos) = (0, -1);
            r.events[1].occurred_at = Some(prost_types::Timestamp { seconds, nanos });
        }),
        ("events[1].conversation_id", |r| {
            r.events[1].conversation_id = "c".repeat(100_000);
        }),
        ("branch", |r| r.branch = "b".repeat(300)),
        ("idempotency_key", |r| r.idempotency_key = "k".repeat(300)),
        ("conversation_id", |r| {
            r.conversation_id = "c".repeat(100_000)
        }),
        ("expectations[0].conversation_id", |r| {
            r.expectations.push(pb::BranchExpectation::default());
        }),
        ("events[0].conversation_id", |r| r.conversation_id.clear()),
        ("events[1]", |r| {
            let erased = EventBody::ContentErased {
                revisions: vec![Revision(1)],
                reason: "hide".into(),
                stubs: None,
                signed_by: None,
            };
            r.events[1] = new_event(&erased);
        }),
        ("events", |r| r.events.clear()),
        ("events", |r| r.events = vec![r.events[0].clone(); 10_001]),
    ]
}

// One invalid event invalidates its batch. The error names the field, and the valid events before
// it are not stored either.
#[tokio::test(flavor = "multi_thread")]
async fn invalid_batch_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    let head = server.events_stored();
    for (field, spoil) in spoilt() {
        let texts = [message(Role::User, "good"), message(Role::User, "too")];
        let mut request = batch(&id, texts);
        spoil(&mut request);
        let status = server.events().append(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{field}: {status:?}");
        assert_eq!(bad_field(&status), field);
        assert_eq!(server.events_stored(), head, "{field}");
    }
    server.stop().done().await;
}

// Requests over a limit are refused, and the connection continues.
#[tokio::test(flavor = "multi_thread")]
async fn oversized_requests_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits {
        body_bytes_max: 100_000,
        batch_bytes_max: 250_000,
        ..Limits::default()
    };
    let server = TestServer::with(dir.path(), limits, GRACE).await;
    let id = server.conversation().await;
    let head = server.events_stored();
    let text = |bytes: usize| message(Role::User, &"x".repeat(bytes));
    for bodies in [
        vec![text(100_001)],
        vec![text(90_000), text(90_000), text(90_000)],
    ] {
        let status = server
            .events()
            .append(batch(&id, bodies))
            .await
            .unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(reason(&status), "TOO_LARGE");
    }
    let large = vec![0x7a; 170 << 20];
    let path = "/treering.v1.Events/Append";
    let status = call_raw(&server, path, &large).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status:?}");
    assert_eq!(server.events_stored(), head);
    server.append(batch(&id, [text(1)])).await;
    server.stop().done().await;
}

// An invalid namespace is refused by every service.
#[tokio::test(flavor = "multi_thread")]
async fn invalid_namespaces_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    for name in ["a b", "../x", "", "ä?"] {
        let Ok(value) = name.parse::<tonic::metadata::MetadataValue<_>>() else {
            continue;
        };
        let mut request = Request::new(batch("", opening()));
        request
            .metadata_mut()
            .insert(treering::server::NAMESPACE_KEY, value);
        let status = server.events().append(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(bad_field(&status), "treering-namespace");
    }
    assert_eq!(server.events_stored(), 0);
    server.stop().done().await;
}

// Unknown names and extreme numbers are answered: not found, or out of bounds.
#[tokio::test(flavor = "multi_thread")]
async fn unknown_ids_and_extreme_numbers_are_answered() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    let search = |change: fn(&mut pb::SearchRequest)| {
        let mut request = pb::SearchRequest {
            query: "weather".into(),
            ..Default::default()
        };
        change(&mut request);
        request
    };
    for (field, request) in [
        ("query", search(|r| r.query = "q".repeat(100_000))),
        ("offset", search(|r| r.offset = u32::MAX)),
        ("kinds[0]", search(|r| r.kinds = vec![i32::MIN])),
        ("tools", search(|r| r.tools = vec!["t".into(); 1_000])),
        ("conversation_id", search(|r| r.branch = "main".into())),
        (
            "recorded_to",
            search(|r| {
                let (seconds, nanos) = (i64::MIN, 0);
                r.recorded_to = Some(prost_types::Timestamp { seconds, nanos });
            }),
        ),
    ] {
        let status = server.search().search(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(bad_field(&status), field);
    }
    let huge = pb::ListConversationsRequest {
        page_size: u32::MAX,
        ..Default::default()
    };
    let list = server
        .conversations()
        .list(huge)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(list.conversations.len(), 1);
    let request = pb::WaitForDecisionRequest {
        conversation_id: id.clone(),
        call_id: "call_9".into(),
        timeout_ms: u64::MAX,
        ..Default::default()
    };
    let status = server.tools().wait_for_decision(request).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
    let request = pb::RecordedRequest {
        conversation_id: id,
        tool: "clock".into(),
        arguments: format!("{}{}", "[".repeat(1_000), "]".repeat(1_000)).into(),
        ..Default::default()
    };
    let status = server.tools().recorded(request).await.unwrap_err();
    assert_eq!(bad_field(&status), "arguments");
    server.stop().done().await;
}
