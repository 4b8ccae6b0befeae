//! Graceful shutdown: accepted calls finish, and endless ones are ended.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use futures::StreamExt;
use tonic::Code;
use treering::{
    domain::*,
    proto::pb::{self, append_stream_response::Outcome},
};

use super::harness::*;

// A server stops under load. Every append that was acknowledged must be in the folder, once, and no
// other. The folder must then be free.
#[tokio::test(flavor = "multi_thread")]
async fn shutdown_keeps_every_acknowledged_append() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    let writers = (0..16).map(|writer| {
        let mut events = server.events();
        let id = id.clone();
        tokio::spawn(async move {
            let mut taken = BTreeSet::new();
            for count in 0.. {
                let text = format!("{writer}/{count}");
                let request = batch(&id, [message(Role::User, &text)]);
                match events.append(request).await {
                    Ok(response) => taken.insert(response.into_inner().events[0].revision),
                    Err(_) => return taken,
                };
            }
            taken
        })
    });
    let writers: Vec<_> = writers.collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    server.stop().done().await;
    let mut taken: BTreeSet<u64> = (1..=5).collect();
    for writer in writers {
        for revision in writer.await.unwrap() {
            assert!(
                taken.insert(revision),
                "revision {revision} was given twice"
            );
        }
    }
    assert!(taken.len() > 20, "{} were taken", taken.len());

    let server = TestServer::start(dir.path()).await;
    let stored = server.read_all(&id).await;
    let stored: BTreeSet<_> = stored.iter().map(|event| event.revision).collect();
    let missing: Vec<_> = taken.difference(&stored).collect();
    assert!(missing.is_empty(), "answered, but not there: {missing:?}");
    server.stop().done().await;
}

// An open stream of appends is answered for all that it sent, and then ends with the reason, as
// does a subscription. Neither may delay the shutdown.
#[tokio::test(flavor = "multi_thread")]
async fn open_streams_end_with_unavailable() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    let source = pb::subscribe_request::Source::Log(pb::LogSource {});
    let request = pb::SubscribeRequest {
        source: Some(source),
        ..Default::default()
    };
    let mut items = server
        .events()
        .subscribe(request)
        .await
        .unwrap()
        .into_inner();
    let bodies = (0..100).map(move |_| batch(&id, [message(Role::User, "x")]));
    let sent = futures::stream::iter(bodies).chain(futures::stream::pending());
    let mut answers = server
        .events()
        .append_stream(sent)
        .await
        .unwrap()
        .into_inner();
    for _ in 0..100 {
        let answer = answers.message().await.unwrap().unwrap();
        assert!(matches!(answer.outcome, Some(Outcome::Appended(_))));
    }
    let started = Instant::now();
    let stopping = server.stop();
    let end = answers.message().await.unwrap_err();
    assert_eq!(end.code(), Code::Unavailable);
    let end = loop {
        match items.message().await {
            Ok(item) => assert!(item.is_some(), "ended without a status"),
            Err(status) => break status,
        }
    };
    assert_eq!(end.code(), Code::Unavailable);
    assert!(end.message().contains("shutting down"), "{end:?}");
    stopping.done().await;
    assert!(started.elapsed() < GRACE / 2, "{:?}", started.elapsed());
}

// A wait for a person's decision may last an hour: it must not delay the shutdown.
#[tokio::test(flavor = "multi_thread")]
async fn waits_for_decisions_end_at_shutdown() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    let mut tools = server.tools();
    let waiting = tokio::spawn(async move {
        let request = pb::WaitForDecisionRequest {
            conversation_id: id,
            call_id: "call_1".into(),
            ..Default::default()
        };
        tools.wait_for_decision(request).await
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let stopping = server.stop();
    let status = waiting.await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    stopping.done().await;
}

// A client that neither reads nor disconnects must not keep the server beyond its grace period.
#[tokio::test(flavor = "multi_thread")]
async fn shutdown_ends_after_the_grace_period() {
    let dir = tempfile::tempdir().unwrap();
    let grace = Duration::from_millis(300);
    let server = TestServer::with(dir.path(), Limits::default(), grace).await;
    let id = server.conversation().await;
    let text = "x".repeat(1 << 20);
    for _ in 0..16 {
        server
            .append(batch(&id, [message(Role::User, &text)]))
            .await;
    }
    let request = pb::ReadRequest {
        source: Some(conversation_source(&id)),
        ..Default::default()
    };
    let unread = server.events().read(request).await.unwrap();
    let started = Instant::now();
    server.stop().done().await;
    assert!(started.elapsed() < Duration::from_secs(5));
    drop(unread);
}
