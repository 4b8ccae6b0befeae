//! The limits of connections on a running server, set low. Each must be reached, refuse what is
//! over it, and not disturb the rest.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tonic::{Code, Streaming};
use treering::{
    domain::Limits,
    proto::pb::{self, admin_client::AdminClient, events_client::EventsClient},
    server::ServeOptions,
};

use super::harness::*;

/// Nothing here takes this long; beyond it, something hangs.
const PATIENCE: Duration = Duration::from_secs(180);
/// The magic of HTTP/2 and empty settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

async fn served(dir: &Path, options: ServeOptions) -> TestServer {
    let options = ServeOptions {
        grace: Duration::from_millis(100),
        ..options
    };
    TestServer::serving(dir, Limits::default(), options).await
}

/// Starts a call that continues until it is dropped.
async fn held(channel: &AnyNode) -> Streaming<pb::SubscribeResponse> {
    let all = pb::SubscribeRequest {
        source: Some(pb::subscribe_request::Source::Log(pb::LogSource {})),
        ..Default::default()
    };
    let mut events = EventsClient::new(channel.clone());
    events.subscribe(all).await.unwrap().into_inner()
}

async fn call(channel: &AnyNode) -> Result<(), Code> {
    let mut admin = AdminClient::new(channel.clone());
    let asked = timeout(PATIENCE, admin.stats(pb::StatsRequest {})).await;
    asked.expect("timed out").map(drop).map_err(|it| it.code())
}

/// Opens a connection of a client that then sends nothing more.
async fn idle(server: &TestServer) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(PREFACE).await.unwrap();
    stream
}

async fn ended(stream: &mut TcpStream) {
    let mut bytes = Vec::new();
    // Any end will do, also an error.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut bytes))
        .await
        .expect("the connection stays open");
}

// A client must not run more calls than allowed. Further ones wait, and are not lost.
#[tokio::test(flavor = "multi_thread")]
async fn calls_per_connection_are_limited() {
    let dir = tempfile::tempdir().unwrap();
    let options = ServeOptions {
        calls_per_connection_max: 3,
        ..ServeOptions::default()
    };
    let server = served(dir.path(), options).await;
    // A client keeps to the limit only after the server has announced it.
    call(&server.channel).await.unwrap();
    let mut calls = Vec::new();
    for _ in 0..3 {
        calls.push(held(&server.channel).await);
    }
    let channel = server.channel.clone();
    let mut fourth = tokio::spawn(async move { call(&channel).await });
    let early = timeout(Duration::from_millis(300), &mut fourth).await;
    assert!(early.is_err(), "a fourth call went with three");
    // Another connection has its own limit.
    call(&connect(server.address).await).await.unwrap();
    calls.pop();
    fourth.await.unwrap().unwrap();
    drop(calls);
    server.stop().done().await;
}

// Idle connections are closed for new ones. If all are busy, the new one is closed, and the busy
// ones do not notice.
#[tokio::test(flavor = "multi_thread")]
async fn connections_are_limited() {
    let dir = tempfile::tempdir().unwrap();
    let options = ServeOptions {
        connections_max: 4,
        ..ServeOptions::default()
    };
    let server = served(dir.path(), options).await;
    let mut first = idle(&server).await;
    let mut others = Vec::new();
    for _ in 0..8 {
        others.push(idle(&server).await);
    }
    ended(&mut first).await;
    call(&connect(server.address).await).await.unwrap();
    drop(others);

    let mut at_work = Vec::new();
    for _ in 0..4 {
        let channel = connect(server.address).await;
        at_work.push((held(&channel).await, channel));
    }
    let mut too_many = idle(&server).await;
    ended(&mut too_many).await;
    for (_, channel) in &at_work {
        call(channel).await.unwrap();
    }
    at_work.pop();
    // The server may see the new connection before it sees that this one closed.
    let since = Instant::now();
    while let Err(code) = call(&connect(server.address).await).await {
        assert!(since.elapsed() < PATIENCE, "{code:?}");
    }
    drop(at_work);
    server.stop().done().await;
}

// A connection that is too old, or idle for too long, must end. A client that calls again is served
// on a new one, and a running call must not be cut off.
#[tokio::test(flavor = "multi_thread")]
async fn old_and_idle_connections_end() {
    let soon = Some(Duration::from_secs(1));
    for (idle_max, connection_age_max) in [(soon, None), (None, soon)] {
        let dir = tempfile::tempdir().unwrap();
        let options = ServeOptions {
            idle_max,
            connection_age_max,
            ..ServeOptions::default()
        };
        let server = served(dir.path(), options).await;
        let id = server.conversation().await;
        let channel = connect(server.address).await;
        let mut following = held(&channel).await;
        let mut quiet = idle(&server).await;
        ended(&mut quiet).await;
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_millis(300)).await;
            // A call that meets the end of its connection is retried, as clients do.
            if call(&channel).await.is_err() {
                call(&channel).await.unwrap();
            }
        }
        EventsClient::new(connect(server.address).await)
            .append(batch(&id, [message(treering::domain::Role::User, "on")]))
            .await
            .unwrap();
        loop {
            let next = timeout(PATIENCE, following.message()).await;
            let next = next
                .expect("no event arrives")
                .unwrap()
                .expect("it goes on");
            if let Some(pb::subscribe_response::Item::Event(event)) = next.item
                && event.revision == 6
            {
                break;
            }
        }
        drop(following);
        server.stop().done().await;
    }
}
