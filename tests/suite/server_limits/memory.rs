//! Small requests that need much memory.

use std::{io::Write, time::Duration};

use bytes::Bytes;
use prost::encoding::{WireType, encode_key, encode_varint};
use tokio::{task::JoinHandle, time::timeout};
use tonic::{Code, body::Body, transport::Channel};
use treering::{domain::Role, proto::pb::events_client::EventsClient};

use super::raw::{LimitedServer, call, framed, full};
use crate::suite::grpc::harness::{batch, created, message};

const APPEND: &str = "/treering.v1.Events/Append";
const MESSAGE_MAX: usize = treering::server::bounds::MESSAGE_BYTES_MAX;
const BYTES_IN_FLIGHT_MAX: usize = treering::server::bounds::BYTES_IN_FLIGHT_MAX;
const BODY_MAX: usize = 65 << 20;
const SMALL_MAX: usize = treering::server::bounds::REQUEST_BYTES_MAX;

/// Other memory of the process: threads, and the allocator's own.
const NOISE_BYTES: u64 = 24 << 20;

fn field(number: u32, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(content.len() + 12);
    encode_key(number, WireType::LengthDelimited, &mut bytes);
    encode_varint(content.len() as u64, &mut bytes);
    bytes.extend_from_slice(content);
    bytes
}

/// Returns repeated empty elements that fill this many bytes.
fn empties(number: u32, bytes: usize) -> Vec<u8> {
    let one = field(number, b"");
    one.repeat(bytes / one.len())
}

/// Returns an append of one event with this body.
fn event(kind: u32, body: &[u8]) -> Vec<u8> {
    field(5, &field(kind, body))
}

/// Returns a map with this many short keys and empty values.
fn keys(number: u32, count: u32) -> Vec<u8> {
    (0..count)
        .flat_map(|key| field(number, &field(1, &key.to_be_bytes()[1..])))
        .collect()
}

fn groups(depth: usize) -> Vec<u8> {
    [[0xfb_u8, 0x01].repeat(depth), [0xfc, 0x01].repeat(depth)].concat()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).unwrap()
}

/// Returns an empty frame that requires a window of 128 MiB.
fn zstd_window() -> Vec<u8> {
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    encoder.window_log(27).unwrap();
    encoder.write_all(b"{}").unwrap();
    encoder.finish().unwrap()
}

struct Attack {
    name: &'static str,
    path: &'static str,
    encoding: Option<&'static str>,
    content: Vec<u8>,
    limit: usize,
}

fn attack(name: &'static str, path: &'static str, limit: usize, content: Vec<u8>) -> Attack {
    Attack {
        name,
        path,
        encoding: None,
        content,
        limit,
    }
}

fn squeezed(mut attack: Attack, encoding: &'static str) -> Attack {
    attack.content = match encoding {
        "gzip" => gzip(&attack.content),
        _ => zstd(&attack.content),
    };
    attack.encoding = Some(encoding);
    attack
}

/// Returns hostile requests.
fn attacks() -> Vec<Attack> {
    let append = |name, content| attack(name, APPEND, MESSAGE_MAX, content);
    let mega = 1 << 20;
    let full = MESSAGE_MAX - 64;
    vec![
        append("16 MiB of empty events", empties(5, 16 * mega)),
        squeezed(append("80 million events, gzip", empties(5, full)), "gzip"),
        squeezed(append("80 million events, zstd", empties(5, full)), "zstd"),
        append("expectations", empties(6, 40 * mega)),
        append("parts of a message", event(28, &empties(2, 60 * mega))),
        append("parts of a result", event(32, &empties(5, 60 * mega))),
        append("tools", event(45, &empties(1, 60 * mega))),
        append("discovered tools", event(37, &empties(1, 60 * mega))),
        append("guidance", event(38, &empties(1, 60 * mega))),
        append("entities", event(39, &empties(1, 60 * mega))),
        append("labels", event(20, &keys(3, 6_000_000))),
        append("parameters", event(21, &field(1, &keys(3, 6_000_000)))),
        append(
            "erased revisions",
            event(48, &field(1, &vec![1; 60 * mega])),
        ),
        append("groups in groups", groups(10_000_000)),
        append("deep JSON", event(35, &field(2, &vec![b'['; 60 * mega]))),
        squeezed(append("wide JSON", wide_json(60 * mega)), "zstd"),
        squeezed(append("a gzip bomb", vec![0; 400 * mega]), "gzip"),
        squeezed(append("a zstd bomb", vec![0; 400 * mega]), "zstd"),
        attack(
            "tools to search",
            "/treering.v1.Search/Search",
            SMALL_MAX,
            empties(7, full),
        ),
        squeezed(
            attack(
                "kinds to search",
                "/treering.v1.Search/Search",
                SMALL_MAX,
                field(11, &vec![1; full]),
            ),
            "gzip",
        ),
        attack(
            "kinds to read",
            "/treering.v1.Events/Read",
            SMALL_MAX,
            field(8, &vec![1; SMALL_MAX - 64]),
        ),
        attack(
            "keys to watch",
            "/treering.v1.Contexts/Watch",
            SMALL_MAX,
            empties(3, SMALL_MAX - 64),
        ),
        attack(
            "context",
            "/treering.v1.Contexts/Set",
            MESSAGE_MAX,
            empties(3, 60 * mega),
        ),
        attack(
            "context to remove",
            "/treering.v1.Contexts/Set",
            MESSAGE_MAX,
            empties(4, 60 * mega),
        ),
        attack(
            "policies",
            "/treering.v1.Contexts/Spawn",
            BODY_MAX,
            keys(8, 5_000_000),
        ),
        attack(
            "a result's parts",
            "/treering.v1.Tools/RecordResult",
            BODY_MAX,
            field(1, &field(6, &empties(5, 60 * mega))),
        ),
        squeezed(
            attack(
                "health",
                "/grpc.health.v1.Health/Check",
                SMALL_MAX,
                vec![0; full],
            ),
            "gzip",
        ),
        attack(
            "health, plain",
            "/grpc.health.v1.Health/Check",
            SMALL_MAX,
            field(1, &vec![b'x'; 3 * mega]),
        ),
        Attack {
            encoding: Some("zstd"),
            ..attack(
                "a zstd window",
                "/treering.v1.Search/Search",
                SMALL_MAX,
                zstd_window(),
            )
        },
        squeezed(
            attack(
                "reflection",
                "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
                SMALL_MAX,
                field(3, &vec![b'x'; 30 * mega]),
            ),
            "gzip",
        ),
        attack(
            "reflection, plain",
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            SMALL_MAX,
            field(3, &vec![b'x'; 3 * mega]),
        ),
    ]
}

/// Returns an append of a tool call whose arguments are a list of this many bytes.
fn wide_json(bytes: usize) -> Vec<u8> {
    let mut text = b"[0".to_vec();
    text.extend(b",0".repeat(bytes / 2));
    text.push(b']');
    let call = [field(1, b"call"), field(2, b"tool"), field(3, &text)].concat();
    event(29, &call)
}

/// Starts another client that appends all the time. Returns the number of its appends.
fn bystander(channel: Channel) -> (tokio::sync::oneshot::Sender<()>, JoinHandle<usize>) {
    let (stop, mut stopped) = tokio::sync::oneshot::channel();
    let appending = tokio::spawn(async move {
        let mut events = EventsClient::new(channel);
        let first = batch("", [created("meanwhile")]);
        let first = events.append(first).await.unwrap().into_inner();
        let id = &first.events[0].conversation_id;
        for count in 1.. {
            let append = events.append(batch(id, [message(Role::User, "on")]));
            let append = timeout(Duration::from_secs(60), append).await;
            append
                .expect("an append hangs")
                .expect("an append of somebody else");
            tokio::select! {
                _ = &mut stopped => return count,
                () = tokio::time::sleep(Duration::from_millis(20)) => {}
            }
        }
        0
    });
    (stop, appending)
}

// A small request may need much memory, for example with millions of empty events. Every method, in
// every encoding, must answer with a clear status and use at most four times its own limit in
// memory, and nobody else may notice.
#[tokio::test(flavor = "multi_thread")]
async fn request_uses_at_most_four_times_its_limit() {
    let dir = tempfile::tempdir().unwrap();
    let server = LimitedServer::start(dir.path(), "ulimit -v 4194304").await;
    let (stop, others) = bystander(server.channel().await);
    for attack in attacks() {
        let mut channel = server.channel().await;
        let wire = framed(&attack.content, attack.encoding.is_some());
        drop(attack.content);
        let before = server.mark();
        let called = call(&mut channel, attack.path, attack.encoding, full(wire));
        let status = timeout(Duration::from_secs(120), called).await;
        let status = status.unwrap_or_else(|_| panic!("{}: no answer", attack.name));
        let status = status.unwrap_or_else(|error| panic!("{}: {error:?}", attack.name));
        let grown = server.most().saturating_sub(before);
        println!("{}: {:?}, {} MiB", attack.name, status.code(), grown >> 20);
        // The library's reflection ends its stream without a message.
        let silent = attack.name.starts_with("reflection") && status.code() == Code::Ok;
        let clear = [
            Code::OutOfRange,
            Code::InvalidArgument,
            Code::ResourceExhausted,
            Code::Internal,
            Code::Unimplemented,
        ];
        let said = clear.contains(&status.code()) && !status.message().is_empty();
        assert!(said || silent, "{}: {status:?}", attack.name);
        let most = 4 * attack.limit as u64 + NOISE_BYTES;
        assert!(grown <= most, "{}: {grown} bytes", attack.name);
    }
    stop.send(()).unwrap();
    assert!(others.await.unwrap() > 10);
    assert!(server.terminate().await.success());
}

// A message that only announces its size must not reserve that memory. Unfinished messages of all
// connections share one limit.
#[tokio::test(flavor = "multi_thread")]
async fn unfinished_requests_share_one_memory_limit() {
    let dir = tempfile::tempdir().unwrap();
    let server = LimitedServer::start(dir.path(), "ulimit -v 4194304").await;
    let (stop, others) = bystander(server.channel().await);
    let announced = u32::try_from(MESSAGE_MAX).unwrap().to_be_bytes();
    let prefix = Bytes::from([&[0][..], &announced].concat());
    let before = server.mark();
    let mut open = Vec::new();
    for _ in 0..200 {
        open.push(half_sent(&server, vec![prefix.clone()]).await);
    }
    let piece = Bytes::from(vec![0; 1 << 20]);
    for _ in 0..15 {
        let mut pieces = vec![prefix.clone()];
        pieces.extend(std::iter::repeat_n(piece.clone(), (MESSAGE_MAX >> 20) - 10));
        open.push(half_sent(&server, pieces).await);
    }
    // The buffer of a message has up to twice the size of its bytes, and the memory of a refused
    // one is not returned to the system at once.
    let most = 3 * BYTES_IN_FLIGHT_MAX as u64 + NOISE_BYTES + (64 << 20);
    let mut refused = 0;
    for (_, answer) in &mut open[200..] {
        if let Ok(status) = timeout(Duration::from_secs(3), answer).await {
            let status = status.unwrap();
            assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
            assert!(!status.details().is_empty(), "no retry delay is given");
            refused += 1;
        }
    }
    let grown = server.most().saturating_sub(before);
    println!("half sent: {} MiB, {refused} refused", grown >> 20);
    assert!(grown <= most, "{grown} bytes");
    assert!((8..=15).contains(&refused), "{refused} were refused");
    stop.send(()).unwrap();
    assert!(others.await.unwrap() > 10);
    // Ended requests free their memory.
    drop(open);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut channel = server.channel().await;
    let large = framed(&event(47, &field(3, &vec![7; 60 << 20])), false);
    let status = call(&mut channel, APPEND, None, full(large)).await.unwrap();
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
}

type HalfSent = (
    http_body_util::channel::Sender<Bytes, tonic::Status>,
    JoinHandle<tonic::Status>,
);

/// Starts a call that sends these pieces, and then nothing more.
async fn half_sent(server: &LimitedServer, pieces: Vec<Bytes>) -> HalfSent {
    let mut channel = server.channel().await;
    let (mut sender, body) = http_body_util::channel::Channel::new(4);
    let called = tokio::spawn(async move {
        let called = call(&mut channel, APPEND, None, Body::new(body)).await;
        called.unwrap_or_else(|error| tonic::Status::unknown(error.to_string()))
    });
    for piece in pieces {
        let sent = timeout(Duration::from_secs(3), sender.send_data(piece)).await;
        if !matches!(sent, Ok(Ok(()))) {
            break;
        }
    }
    (sender, called)
}

// The same limit must accept legitimate requests: the largest allowed batch is accepted, within
// four times its own limit.
#[tokio::test(flavor = "multi_thread")]
async fn largest_allowed_batch_is_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let server = LimitedServer::start(dir.path(), "ulimit -v 8388608").await;
    let mut events = EventsClient::new(server.channel().await);
    let text = "Lorem ipsum ".repeat((12 << 20) / 12 - 10);
    let bodies = (0..5).map(|_| message(Role::User, &text));
    let request = batch("", std::iter::once(created("large")).chain(bodies));
    let before = server.mark();
    let response = events.append(request).await.unwrap().into_inner();
    assert_eq!(response.events.len(), 6);
    let grown = server.most().saturating_sub(before);
    println!("the largest batch: {} MiB", grown >> 20);
    assert!(
        grown <= 4 * MESSAGE_MAX as u64 + NOISE_BYTES,
        "{grown} bytes"
    );
}
