//! Special cases of forwarding: other requests, errors, broken streams, and an unavailable store.

use std::{io::Write, sync::Arc, time::Duration};

use bytes::Bytes;
use serde_json::{Value, json};
use treering_client::Connection;
use treering_domain::{EventKind, TimestampMicros};
use treering_import::model_call::CallFormat;

use super::loopback::{
    PATIENCE, Reply, Setup, Stored, chat, chat_answer, cut_off, said, store_in, user, whole,
    with_body,
};
use crate::{
    CallCounts, FOLDER, Upstreams,
    exchange::{Exchange, SentRequest},
    queue::CallQueue,
};

const PATH: &str = "/v1/chat/completions";

// Requests that are not calls, and calls that fail, must pass as if there were no proxy, and must
// not be recorded.
#[tokio::test(flavor = "multi_thread")]
async fn other_requests_and_errors_pass_unrecorded() {
    let setup = Setup::start().await;
    let error = json!({"error": {"message": "slow down"}}).to_string();
    let refused = with_body(
        "429 Too Many Requests",
        "retry-after: 7\r\n",
        error.as_bytes(),
    );
    let got = setup
        .call(PATH, &chat(json!([user("hello")])), refused)
        .await;
    assert_eq!((got.status(), got.header("retry-after")), (429, Some("7")));
    assert_eq!(got.body, error.into_bytes());

    setup
        .provider
        .will(with_body("200 OK", "", b"made of bytes"));
    let got = setup.send("/v1/audio/speech?x=1", &[], b"\x00\xff").await;
    assert_eq!(got.body, b"made of bytes");
    let passed = setup.provider.last_request();
    assert_eq!(passed.start, "POST /v1/audio/speech?x=1 HTTP/1.1");
    assert_eq!(passed.body, b"\x00\xff");

    setup.provider.will(whole(&chat_answer("1", said("what?"))));
    let got = setup.send(PATH, &[], b"{not json").await;
    assert_eq!(got.status(), 200);
    assert_eq!(setup.provider.last_request().body, b"{not json");

    setup.provider.will(Reply(vec![]));
    let got = setup
        .call(PATH, &chat(json!([user("hello")])), Reply(vec![]))
        .await;
    assert_eq!(got.status(), 502, "the provider hangs up");
    assert!(
        got.json()["error"]["message"]
            .as_str()
            .unwrap()
            .contains("cannot be reached")
    );
    let stored = setup.stop().await;
    assert_eq!(stored.conversations.len(), 0);
}

// Base URLs may or may not include the version, and providers may be under other paths.
#[test]
fn requests_go_to_the_provider_of_their_api() {
    let upstreams = Upstreams::new("https://o.example/v1/", "https://a.example").unwrap();
    let target = |path: &str| upstreams.target(path, &http::HeaderMap::new());
    for (path, url) in [
        (
            "/v1/chat/completions",
            "https://o.example/v1/chat/completions",
        ),
        ("/chat/completions", "https://o.example/v1/chat/completions"),
        ("/v1/models?limit=1", "https://o.example/v1/models?limit=1"),
        ("/v1beta/x", "https://o.example/v1/v1beta/x"),
        (
            "/v1/messages?beta=true",
            "https://a.example/v1/messages?beta=true",
        ),
        (
            "/v1/messages/count_tokens",
            "https://a.example/v1/messages/count_tokens",
        ),
        (
            "/v1/threads/1/messages",
            "https://o.example/v1/threads/1/messages",
        ),
    ] {
        assert_eq!(target(path), url);
    }
    let mut headers = http::HeaderMap::new();
    headers.insert(
        "anthropic-version",
        http::HeaderValue::from_static("2023-06-01"),
    );
    assert_eq!(
        upstreams.target("/v1/models", &headers),
        "https://a.example/v1/models"
    );
    let local = Upstreams::new("http://127.0.0.1:11434", "https://a.example/api/v1").unwrap();
    let none = http::HeaderMap::new();
    assert_eq!(
        local.target("/v1/responses", &none),
        "http://127.0.0.1:11434/v1/responses"
    );
    assert_eq!(
        local.target("/v1/messages", &none),
        "https://a.example/api/v1/messages"
    );
    for wrong in [
        "api.openai.com",
        "ftp://o.example",
        "https://o.example/?key=1",
        "",
    ] {
        assert!(
            Upstreams::new(wrong, "https://a.example").is_err(),
            "{wrong}"
        );
    }
}

// SDKs accept compressed answers. The client must get the compressed bytes, and the store the text.
#[tokio::test(flavor = "multi_thread")]
async fn compressed_answer_passes_as_it_is() {
    let setup = Setup::start().await;
    let answer = chat_answer("1", said("hi")).to_string();
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(answer.as_bytes()).unwrap();
    let packed = encoder.finish().unwrap();
    let more = "content-type: application/json\r\ncontent-encoding: gzip\r\n";
    let accepts = [("accept-encoding", "gzip, deflate, br;q=0.9, zstd")];
    let reply = with_body("200 OK", more, &packed);
    let request = chat(json!([user("hello")]));
    let got = setup.call_with(PATH, &accepts, &request, reply).await;
    assert_eq!(got.header("content-encoding"), Some("gzip"));
    assert_eq!(got.body, packed);
    let asked = setup.provider.last_request();
    assert_eq!(asked.header("accept-encoding"), Some("gzip, deflate, zstd"));
    let stored = setup.stop().await;
    assert_eq!(stored.talk(0), ["user: hello", "assistant: hi"]);
}

fn chunk(delta: Value) -> Value {
    json!({"id": "c", "model": "m", "choices": [{"index": 0, "delta": delta}]})
}

// The provider or the network fails in the middle of an answer. The client must notice. The part
// that arrived must be kept, marked as interrupted, with its call cancelled.
#[tokio::test(flavor = "multi_thread")]
async fn broken_stream_is_recorded_as_interrupted() {
    let setup = Setup::start().await;
    let call =
        json!({"index": 0, "id": "call_1", "function": {"name": "ls", "arguments": "{\"pa"}});
    let events = [
        chunk(json!({"content": "I look"})),
        chunk(json!({"content": " for", "tool_calls": [call]})),
    ];
    let got = setup
        .call(PATH, &chat(json!([user("list")])), cut_off(&events))
        .await;
    assert!(got.is_broken, "the client sees that the answer broke off");
    // The client tries again.
    let answer = whole(&chat_answer("2", said("one file")));
    setup.call(PATH, &chat(json!([user("list")])), answer).await;
    let stored = setup.stop().await;
    let messages = stored.only()["messages"].clone();
    assert_eq!(messages[1]["content"], "I look for");
    assert_eq!(messages[1]["x"]["stop"], "interrupted");
    assert_eq!(messages[2]["content"], "one file");
    assert_eq!(stored.count(0, EventKind::ToolCallCancelled), 1);
    assert_eq!(stored.count(0, EventKind::BranchForked), 1);
}

// Another command has the data folder open. The answer must arrive at once, and be recorded when
// the folder is free.
#[tokio::test(flavor = "multi_thread")]
async fn answer_comes_while_the_store_is_away() {
    let dir = tempfile::tempdir().unwrap();
    let held = Connection::open(&store_in(dir.path()), FOLDER)
        .await
        .unwrap();
    let setup = Setup::start_on(dir).await;
    let first = whole(&chat_answer("1", said("1")));
    let got = setup.call(PATH, &chat(json!([user("one")])), first).await;
    assert_eq!(got.status(), 200);
    let other = whole(&chat_answer("2", said("2")));
    setup.call(PATH, &chat(json!([user("two")])), other).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    held.close().await.unwrap();
    let stored = setup.stop().await;
    assert_eq!(stored.conversations.len(), 2);
}

// The recorder closes the folder when no calls come, so that other commands can read it.
#[tokio::test(flavor = "multi_thread")]
async fn folder_is_free_between_calls() {
    let setup = Setup::start().await;
    let first = whole(&chat_answer("1", said("1")));
    setup.call(PATH, &chat(json!([user("one")])), first).await;
    let began = std::time::Instant::now();
    while setup.proxy.counts().recorded() == 0 {
        assert!(began.elapsed() < PATIENCE, "nothing is recorded");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let store = loop {
        match Connection::open(&store_in(setup.dir.path()), FOLDER).await {
            Ok(store) => break store,
            Err(error) => assert!(began.elapsed() < 2 * PATIENCE, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let request = treering_proto::pb::ListConversationsRequest::default();
    let listed = store.conversations().list(request).await.unwrap();
    assert_eq!(listed.into_inner().conversations.len(), 1);
    store.close().await.unwrap();
    setup.stop().await;
}

// A store that is unavailable for long must not fill the memory: calls that do not fit are dropped
// and counted.
#[tokio::test]
async fn full_queue_drops_and_counts() {
    let counts = Arc::new(CallCounts::default());
    let (queue, mut queued) = CallQueue::bounded(2, 64, Arc::clone(&counts));
    let exchange = |bytes: usize| Exchange {
        request: SentRequest {
            format: CallFormat::Messages,
            body: Bytes::from(vec![0; bytes]),
            encoding: String::new(),
            conversation: None,
            client: String::new(),
            sent_at: TimestampMicros(0),
        },
        answer: Bytes::new(),
        encoding: String::new(),
        content_type: String::new(),
        answered_at: TimestampMicros(0),
    };
    queue.push(exchange(100 << 10));
    assert_eq!(counts.dropped(), 1, "too large for the room");
    queue.push(exchange(10));
    queue.push(exchange(10));
    queue.push(exchange(10));
    assert_eq!((counts.dropped(), counts.waiting()), (2, 2));
    assert!(queued.recv().await.is_some());
    queue.push(exchange(10));
    assert_eq!(counts.dropped(), 2, "there is room again");
}

// A client may disconnect before the stream ends. Its call must still be recorded.
#[tokio::test(flavor = "multi_thread")]
async fn client_that_leaves_early_is_recorded() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let setup = Setup::start().await;
    let mut reply = cut_off(&[chunk(json!({"content": "so far"}))]);
    // The provider never ends.
    for _ in 0..4_000 {
        reply.0.push(b"10\r\n: keep alive   \n\r\n".to_vec());
    }
    setup.provider.will(reply);
    let body = chat(json!([user("hello")])).to_string();
    let mut stream = tokio::net::TcpStream::connect(setup.address())
        .await
        .unwrap();
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nhost: p\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).await.unwrap();
    let mut first = vec![0; 200];
    stream.read_exact(&mut first).await.unwrap();
    drop(stream);
    let stored: Stored = setup.stop().await;
    let messages = stored.only()["messages"].clone();
    assert_eq!(messages[1]["content"], "so far");
    assert_eq!(messages[1]["x"]["stop"], "interrupted");
}
