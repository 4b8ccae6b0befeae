//! Connections that send nothing, too much, or invalid data.

use std::time::{Duration, Instant};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use treering::{
    domain::Role,
    proto::pb::{self, admin_client::AdminClient, events_client::EventsClient},
};

use super::raw::LimitedServer;
use crate::suite::{
    child::run,
    grpc::harness::{batch, created, message},
};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

async fn append(server: &LimitedServer) -> Result<(), tonic::Status> {
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", server.address));
    let channel = endpoint.unwrap().connect().await;
    let channel = channel.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
    let mut events = EventsClient::new(channel);
    let append = events.append(batch("", [created("c"), message(Role::User, "x")]));
    let append = timeout(Duration::from_secs(30), append).await;
    append
        .map_err(|_| tonic::Status::unavailable("no answer"))?
        .map(drop)
}

/// Opens connections that send this and then nothing.
async fn silent(server: &LimitedServer, count: usize, said: &[u8]) -> Vec<TcpStream> {
    let mut all = Vec::new();
    for _ in 0..count {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(said).await.unwrap();
        all.push(stream);
    }
    all
}

// Connections without a call must not delay the shutdown: those that send nothing, those that send
// half a preface, and those of idle clients.
#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_do_not_delay_the_shutdown() {
    let dir = tempfile::tempdir().unwrap();
    let server = LimitedServer::start(dir.path(), "true").await;
    let mut held = silent(&server, 40, b"").await;
    held.extend(silent(&server, 20, &PREFACE[..10]).await);
    held.extend(silent(&server, 40, PREFACE).await);
    let mut clients = Vec::new();
    for _ in 0..20 {
        let mut client = AdminClient::new(server.channel().await);
        client.stats(pb::StatsRequest::default()).await.unwrap();
        clients.push(client);
    }
    let started = Instant::now();
    assert!(server.terminate().await.success());
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "{:?}",
        started.elapsed()
    );
}

// The first byte selects the protocol, however late it comes. HTTP/2 settings that are sent before
// it would break the HTTP/1 request of a browser on a spare connection.
#[tokio::test(flavor = "multi_thread")]
async fn first_byte_selects_the_protocol() {
    let dir = tempfile::tempdir().unwrap();
    let server = LimitedServer::start(dir.path(), "true").await;
    let mut spare = silent(&server, 4, b"").await;
    for stream in &mut spare {
        let mut byte = [0];
        let said = timeout(Duration::from_millis(500), stream.read(&mut byte)).await;
        assert!(said.is_err(), "the server spoke first: {said:?}");
    }
    let request = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    for stream in &mut spare[..2] {
        stream.write_all(request).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 "), "{answer}");
    }
    for (stream, pieces) in spare[2..]
        .iter_mut()
        .zip([&[PREFACE][..], &[&PREFACE[..1], &PREFACE[1..]]])
    {
        for piece in pieces {
            stream.write_all(piece).await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let mut settings = [0; 9];
        let read = timeout(Duration::from_secs(5), stream.read_exact(&mut settings)).await;
        read.expect("no settings").unwrap();
        assert_eq!(settings[3], 4, "a frame of settings");
        let mut rest = vec![0; usize::from(settings[2])];
        stream.read_exact(&mut rest).await.unwrap();
        let acknowledged = [0, 0, 0, 4, 1, 0, 0, 0, 0];
        let mut answer = Vec::new();
        while !answer.ends_with(&acknowledged) {
            let mut byte = [0];
            let read = timeout(Duration::from_secs(5), stream.read_exact(&mut byte)).await;
            read.expect("not acknowledged").unwrap();
            answer.push(byte[0]);
        }
    }
    // Also if the bytes come one at a time.
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(b"G").await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    stream.write_all(&request[1..]).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 "), "{answer}");
    assert!(server.terminate().await.success());
}

// Clients that do nothing must not bring the server to its limit of open files, where it cannot
// accept new connections. Busy clients must not notice.
#[tokio::test(flavor = "multi_thread")]
async fn many_idle_connections_do_not_block_new_ones() {
    let dir = tempfile::tempdir().unwrap();
    let server = LimitedServer::start(dir.path(), "ulimit -n 128").await;
    let mut worker = EventsClient::new(server.channel().await);
    let first = worker
        .append(batch("", [created("c")]))
        .await
        .unwrap()
        .into_inner();
    let id = &first.events[0].conversation_id;
    let mut held = Vec::new();
    for round in 0..10 {
        let said = [b"", PREFACE][round % 2];
        held.extend(silent(&server, 50, said).await);
        worker
            .append(batch(id, [message(Role::User, "on")]))
            .await
            .unwrap();
        append(&server).await.unwrap();
    }
    let before = server.ticks();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let busy = server.ticks() - before;
    assert!(busy < 50, "{busy} ticks of 100 with nothing to do");
    let said = server.said.lock().unwrap().clone();
    assert!(said.contains("too many connections"), "{said}");
    assert!(said.matches("too many connections").count() < 5, "{said}");
    drop(held);
    append(&server).await.unwrap();
    assert!(server.terminate().await.success());
}

// If other files take the last free handle (here: the limit is lowered while the server runs), the
// server must pause, log it once, and resume by itself.
#[tokio::test(flavor = "multi_thread")]
async fn accepting_resumes_when_file_handles_are_free() {
    let dir = tempfile::tempdir().unwrap();
    let server = LimitedServer::start(dir.path(), "ulimit -n 1024").await;
    append(&server).await.unwrap();
    let set = |limit: &str| {
        let pid = server.pid().to_string();
        let limit = format!("--nofile={limit}:1024");
        std::process::Command::new("prlimit")
            .args(["--pid", &pid, &limit])
            .status()
    };
    if !set("1").is_ok_and(|status| status.success()) {
        println!("skipped: no prlimit here");
        return;
    }
    let waiting = silent(&server, 10, PREFACE).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let before = server.ticks();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let busy = server.ticks() - before;
    let said = server.said.lock().unwrap().clone();
    assert!(set("1024").unwrap().success());
    assert!(busy < 50, "{busy} ticks of 100 at the limit");
    assert_eq!(said.matches("cannot be accepted").count(), 1, "{said}");
    append(&server).await.unwrap();
    drop(waiting);
    assert!(server.terminate().await.success());
}

// A client that cancels many calls at once is not an attacker. Its connection, with its other
// calls, must not be ended.
#[tokio::test(flavor = "multi_thread")]
async fn cancelling_10000_calls_keeps_the_connection() {
    let dir = tempfile::tempdir().unwrap();
    let server = LimitedServer::start(dir.path(), "true").await;
    let channel = server.channel().await;
    let mut tools = pb::tools_client::ToolsClient::new(channel.clone());
    let mut events = EventsClient::new(channel.clone());
    let first = events
        .append(batch("", [created("c")]))
        .await
        .unwrap()
        .into_inner();
    let id = &first.events[0].conversation_id;
    // It must survive all of it on this one connection.
    let source = pb::subscribe_request::Source::Log(pb::LogSource {});
    let follow = pb::SubscribeRequest {
        source: Some(source),
        ..Default::default()
    };
    let mut followed = events.subscribe(follow).await.unwrap().into_inner();
    for _ in 0..10 {
        let calls: Vec<_> = (0..1_000)
            .map(|_| {
                let mut tools = tools.clone();
                tokio::spawn(async move { tools.pending(pb::PendingRequest::default()).await })
            })
            .collect();
        tokio::task::yield_now().await;
        for call in &calls {
            call.abort();
        }
        for call in calls {
            if let Ok(answered) = call.await {
                answered.unwrap();
            }
        }
    }
    tools.pending(pb::PendingRequest::default()).await.unwrap();
    events
        .append(batch(id, [message(Role::User, "last")]))
        .await
        .unwrap();
    let mut seen = 0;
    while seen < 2 {
        let next = timeout(Duration::from_secs(30), followed.message()).await;
        let next = next.unwrap().expect("the connection lives").unwrap();
        if let Some(pb::subscribe_response::Item::Event(_)) = next.item {
            seen += 1;
        }
    }
    assert!(server.terminate().await.success());
}

/// Returns a call's headers and its cancellation, in as few bytes as possible.
fn called_and_cancelled(stream: u32, headers: &[u8]) -> Vec<u8> {
    let id = stream.to_be_bytes();
    let length = u32::try_from(headers.len()).unwrap().to_be_bytes();
    let open = [&length[1..], &[1, 4], &id, headers].concat();
    let reset = [&[0, 0, 4, 3, 0][..], &id, &[0, 0, 0, 8]].concat();
    [open, reset].concat()
}

// The same in one write, 30,000 times. The bytes read before calls start are bounded, so memory
// does not grow, and the connection is not ended.
#[tokio::test(flavor = "multi_thread")]
async fn rapid_resets_use_bounded_memory() {
    let dir = tempfile::tempdir().unwrap();
    let server = LimitedServer::start(dir.path(), "ulimit -v 4194304").await;
    append(&server).await.unwrap();
    // :method POST, :scheme http, :path /, :authority a
    let headers = [0x83, 0x86, 0x84, 0x41, 1, b'a'];
    let mut all = PREFACE.to_vec();
    for call in 0..30_000 {
        all.extend(called_and_cancelled(call * 2 + 1, &headers));
    }
    // A ping at the end: an open connection answers it.
    all.extend([0, 0, 8, 6, 0, 0, 0, 0, 0]);
    all.extend(b"stillon?");
    let before = server.mark();
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let (mut reader, mut writer) = stream.split();
    let write = async { writer.write_all(&all).await };
    let read = async {
        let mut seen = Vec::new();
        let mut buffer = [0; 65_536];
        while !seen.windows(8).any(|window| window == b"stillon?") {
            let read = reader.read(&mut buffer).await.unwrap();
            assert!(read > 0, "the connection was ended");
            seen.extend_from_slice(&buffer[..read]);
        }
    };
    let both = futures::future::join(write, read);
    let (written, ()) = timeout(Duration::from_secs(60), both).await.unwrap();
    written.unwrap();
    assert!(server.most() - before < 64 << 20);
    append(&server).await.unwrap();
    assert!(server.terminate().await.success());
}

// Compressed headers that expand greatly, and headers that never end, must end at most their own
// connection or call.
#[tokio::test(flavor = "multi_thread")]
async fn header_bomb_ends_only_its_connection() {
    let dir = tempfile::tempdir().unwrap();
    let server = LimitedServer::start(dir.path(), "ulimit -v 4194304").await;
    let before = server.mark();
    // Adds a header of 4,000 bytes to the table, then refers to it 10,000 times.
    let mut bomb = vec![0x83, 0x86, 0x84, 0x41, 1, b'a', 0x40, 1, b'x'];
    bomb.extend([0x7f, 0xa1, 0x1e]);
    bomb.extend(vec![b'y'; 4_000]);
    bomb.extend(vec![0xbe; 10_000]);
    for round in 0..20 {
        let mut wire = PREFACE.to_vec();
        for call in 0..10_u32 {
            let length = u32::try_from(bomb.len()).unwrap().to_be_bytes();
            wire.extend(&length[1..]);
            wire.extend([1, 5]);
            wire.extend((call * 2 + 1).to_be_bytes());
            wire.extend(&bomb);
        }
        if round % 2 == 1 {
            // Headers without an end.
            wire.truncate(PREFACE.len());
            wire.extend([0, 0, 1, 1, 0, 0, 0, 0, 1, 0x83]);
            for _ in 0..5_000 {
                wire.extend([0, 0, 1, 9, 0, 0, 0, 0, 1, 0x84]);
            }
        }
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        // It may be ended in the middle.
        let _ended = stream.write_all(&wire).await;
        let mut answer = vec![0; 65_536];
        let _ended = timeout(Duration::from_millis(200), stream.read(&mut answer)).await;
    }
    let grown = server.most().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes");
    append(&server).await.unwrap();
    assert!(server.terminate().await.success());
}

// Thousands of connections, most of them silent or not HTTP/2, come and go. The server must serve
// all the time, and its memory must not grow with them.
#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_connections_use_bounded_memory() {
    let dir = tempfile::tempdir().unwrap();
    let server = LimitedServer::start(dir.path(), "ulimit -n 256").await;
    let mut before = 0;
    for round in 0..60 {
        if round == 20 {
            before = server.mark();
        }
        let said = [&b""[..], PREFACE, b"GET / HTTP/1.1\r\n\r\n", &[0xff; 100]][round % 4];
        let held = silent(&server, 50, said).await;
        append(&server).await.unwrap();
        drop(held);
    }
    let grown = server.most().saturating_sub(before);
    assert!(grown < 48 << 20, "{grown} bytes");
    assert!(server.terminate().await.success());
}

// Listening on other addresses than loopback needs a flag, and gives a warning. Loopback needs
// neither.
#[tokio::test(flavor = "multi_thread")]
async fn non_loopback_bind_needs_a_flag_and_gives_a_warning() {
    for listen in ["0.0.0.0:0", "[::]:0"] {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("store");
        let path = folder.to_string_lossy();
        let refused = run(&["serve", "--data", &path, "--listen", listen]).await;
        assert_eq!(refused.status.code(), Some(2));
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        for word in [
            "not a loopback address",
            "this store has no keys",
            "keys create",
            "--tls-cert",
        ] {
            assert!(said.contains(word), "{said}");
        }
        assert!(!folder.exists(), "a refusal makes nothing");
    }
    for (listen, warned) in [
        ("0.0.0.0:0", true),
        ("[::]:0", true),
        ("127.0.0.1:0", false),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let server = LimitedServer::listening(dir.path(), "true", listen).await;
        let said = std::sync::Arc::clone(&server.said);
        assert!(server.terminate().await.success());
        let said = said.lock().unwrap().clone();
        let words = ["WARNING", "read and write", "it has no keys"];
        let found = words.iter().all(|word| said.contains(word));
        assert_eq!(found, warned, "{listen}: {said:?}");
        if warned {
            assert!(said.contains("0.0.0.0") || said.contains("[::]"), "{said}");
        }
    }
    let help = run(&["serve", "--help"]).await;
    let help = String::from_utf8_lossy(&help.stdout)
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    assert!(help.contains("Before the first key is created"), "{help}");
    assert!(help.contains("read and write"), "{help}");
}
