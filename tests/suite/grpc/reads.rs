//! Read and Subscribe.

use std::time::Duration;

use futures::StreamExt;
use tonic::Code;
use treering::{
    domain::*,
    proto::pb::{self, subscribe_response::Item},
    server::bounds::{MESSAGE_BYTES_MAX, READ_MESSAGE_BYTES},
};

use super::harness::*;

// The store is made for large events. No message may exceed a limit, and no answer may hold the
// whole history at once.
#[tokio::test(flavor = "multi_thread")]
async fn large_history_is_read_in_limited_messages() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    let large = "x".repeat(9 << 20);
    let mut client = server.events().max_encoding_message_size(MESSAGE_BYTES_MAX);
    let request = batch(&id, [message(Role::User, &large)]);
    client.append(request).await.unwrap();
    for _ in 0..20 {
        let text = "y".repeat(100_000);
        server
            .append(batch(&id, [message(Role::User, &text)]))
            .await;
    }
    let request = pb::ReadRequest {
        source: Some(branch_source(&id, "")),
        ..Default::default()
    };
    let mut messages = client.read(request).await.unwrap().into_inner();
    let mut revisions = Vec::new();
    while let Some(message) = messages.message().await.unwrap() {
        let bytes = prost::Message::encoded_len(&message);
        let alone = message.events.len() == 1;
        assert!(alone || bytes <= READ_MESSAGE_BYTES + 16_384, "{bytes}");
        revisions.extend(message.events.iter().map(|event| event.revision));
    }
    assert_eq!(revisions, (1..=26).collect::<Vec<u64>>());
    server.stop().done().await;
}

// Every combination of limits must return exactly the requested events.
#[tokio::test(flavor = "multi_thread")]
async fn reads_return_the_requested_range() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    let base = || pb::ReadRequest {
        source: Some(conversation_source(&id)),
        ..Default::default()
    };
    let request = |change: &dyn Fn(&mut pb::ReadRequest)| {
        let mut request = base();
        change(&mut request);
        request
    };
    let log = pb::read_request::Source::Log(pb::LogSource {});
    let calls = i32::from(EventKind::ToolCallRequested.number());
    let cases: Vec<(pb::ReadRequest, Vec<u64>)> = vec![
        (base(), vec![1, 2, 3, 4, 5]),
        (request(&|r| r.from_revision = 4), vec![4, 5]),
        (
            request(&|r| (r.from_revision, r.to_revision) = (2, 3)),
            vec![2, 3],
        ),
        (request(&|r| r.limit = 2), vec![1, 2]),
        (request(&|r| r.backward = true), vec![5, 4, 3, 2, 1]),
        (
            request(&|r| (r.backward, r.from_revision, r.to_revision) = (true, 4, 2)),
            vec![4, 3, 2],
        ),
        (request(&|r| (r.backward, r.limit) = (true, 1)), vec![5]),
        (request(&|r| r.kinds = vec![calls]), vec![4, 5]),
        (request(&|r| r.from_revision = 99), vec![]),
        (
            request(&|r| r.source = Some(log.clone())),
            vec![1, 2, 3, 4, 5],
        ),
        (
            request(&|r| (r.source, r.from_offset) = (Some(log.clone()), 4)),
            vec![4, 5],
        ),
        (
            request(&|r| (r.source, r.backward, r.limit) = (Some(log.clone()), true, 2)),
            vec![5, 4],
        ),
    ];
    for (request, expected) in cases {
        let events = read(server.events(), request.clone()).await.unwrap();
        let revisions: Vec<_> = events.iter().map(|event| event.revision).collect();
        assert_eq!(revisions, expected, "{request:?}");
        assert!(events.iter().all(|event| event.body.is_some()));
    }
    let headers = request(&|r| r.headers_only = true);
    let events = read(server.events(), headers).await.unwrap();
    assert_eq!(events.len(), 5);
    assert!(events.iter().all(|e| e.kind != 0));
    server.stop().done().await;
}

fn follow(id: &str) -> pb::SubscribeRequest {
    use pb::subscribe_request::Source;
    pb::SubscribeRequest {
        source: Some(Source::Conversation(pb::ConversationSource {
            conversation_id: id.into(),
        })),
        ..Default::default()
    }
}

// A subscription sends the past events, then a mark that it has caught up, then new events, and
// heartbeats while there are none.
#[tokio::test(flavor = "multi_thread")]
async fn subscription_catches_up_and_follows() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    let request = pb::SubscribeRequest {
        after_revision: 3,
        heartbeat_seconds: 1,
        ..follow(&id)
    };
    let mut items = server
        .events()
        .subscribe(request)
        .await
        .unwrap()
        .into_inner();
    let mut next = async || items.message().await.unwrap().unwrap().item.unwrap();
    for revision in [4, 5] {
        let Item::Event(event) = next().await else {
            panic!("an event");
        };
        assert_eq!(event.revision, revision);
    }
    let Item::CaughtUp(at) = next().await else {
        panic!("caught up");
    };
    let caught_up = at.position;
    let Item::Heartbeat(beat) = next().await else {
        panic!("a heartbeat");
    };
    assert_eq!(beat.position, caught_up);
    server
        .append(batch(&id, [message(Role::User, "live")]))
        .await;
    let event = loop {
        match next().await {
            Item::Event(event) => break event,
            Item::Heartbeat(_) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(event.revision, 6);
    server.stop().done().await;
}

// A subscription from now on sends no earlier events.
#[tokio::test(flavor = "multi_thread")]
async fn subscription_from_now_skips_earlier_events() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    let request = pb::SubscribeRequest {
        source: Some(pb::subscribe_request::Source::Log(pb::LogSource {})),
        from_now: true,
        ..Default::default()
    };
    let mut items = server
        .events()
        .subscribe(request)
        .await
        .unwrap()
        .into_inner();
    let first = items.message().await.unwrap().unwrap().item.unwrap();
    assert!(matches!(first, Item::CaughtUp(_)), "{first:?}");
    server
        .append(batch(&id, [message(Role::User, "live")]))
        .await;
    let next = items.message().await.unwrap().unwrap().item.unwrap();
    let Item::Event(event) = next else {
        panic!("{next:?}");
    };
    assert_eq!(event.revision, 6);
    server.stop().done().await;
}

// A reader that stalls while others write must later get every event once and in order. The server
// must neither buffer the events in memory nor drop the reader.
#[tokio::test(flavor = "multi_thread")]
async fn slow_reader_loses_no_event() {
    const EVENTS: u64 = 6_000;
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    // A separate connection: its full window must not stop the writer.
    let channel = connect(server.address).await;
    let mut client = pb::events_client::EventsClient::new(channel);
    let mut items = client.subscribe(follow(&id)).await.unwrap().into_inner();
    let text = "z".repeat(2_000);
    for _ in 0..EVENTS / 100 {
        let bodies = (0..100).map(|_| message(Role::User, &text));
        server.append(batch(&id, bodies)).await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mut last = 0;
    while last < EVENTS + 5 {
        match items.message().await.unwrap().unwrap().item.unwrap() {
            Item::Event(event) => {
                assert_eq!(event.revision, last + 1);
                last = event.revision;
            }
            Item::CaughtUp(_) | Item::Heartbeat(_) | Item::FellBehind(_) => {}
        }
    }
    server.stop().done().await;
}

// The stream of a client that has disconnected must end. Otherwise the server would never stop.
#[tokio::test(flavor = "multi_thread")]
async fn dropped_client_ends_its_stream() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    for _ in 0..50 {
        let mut items = server
            .events()
            .subscribe(follow(&id))
            .await
            .unwrap()
            .into_inner();
        items.next().await.unwrap().unwrap();
    }
    let stopping = server.stop();
    let done = tokio::time::timeout(Duration::from_secs(5), stopping.done());
    done.await.unwrap();
}

// A read of a missing object must fail, and not return an empty history.
#[tokio::test(flavor = "multi_thread")]
async fn read_of_missing_objects_is_not_found() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    let unknown = ConversationId::generate().to_string();
    for (source, why) in [
        (conversation_source(&unknown), "CONVERSATION_NOT_FOUND"),
        (branch_source(&unknown, ""), "CONVERSATION_NOT_FOUND"),
        (branch_source(&id, "nope"), "BRANCH_NOT_FOUND"),
    ] {
        let request = pb::ReadRequest {
            source: Some(source),
            ..Default::default()
        };
        let status = read(server.events(), request).await.unwrap_err();
        assert_eq!(status.code(), Code::NotFound);
        assert_eq!(reason(&status), why);
    }
    server.stop().done().await;
}

// The history of a fork into a new conversation has revisions of two conversations. Reading it in
// pages, from the last event received, must return each event once, in both directions.
#[tokio::test(flavor = "multi_thread")]
async fn history_of_a_fork_is_read_in_pages() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    let mut forked = id.clone();
    for name in ["a copy", "a copy of the copy"] {
        let fork = pb::ForkRequest {
            conversation_id: forked.clone(),
            into_conversation: "new".into(),
            name: name.into(),
            ..Default::default()
        };
        let answer = server.conversations().fork(fork).await.unwrap();
        forked = answer.into_inner().conversation_id;
        let said = (0..4).map(|number| message(Role::User, &format!("{name} {number}")));
        server.append(batch(&forked, said)).await;
    }
    let all = pb::ReadRequest {
        source: Some(branch_source(&forked, "")),
        ..Default::default()
    };
    let place = |event: &pb::Event| (event.conversation_id.clone(), event.revision);
    let whole: Vec<_> = read(server.events(), all.clone())
        .await
        .unwrap()
        .iter()
        .map(place)
        .collect();
    assert_eq!(whole.len(), 15);
    for backward in [false, true] {
        let mut found: Vec<(String, u64)> = Vec::new();
        loop {
            let (conversation, revision) = found.last().cloned().unwrap_or_default();
            let request = pb::ReadRequest {
                from_conversation: conversation,
                from_revision: revision,
                backward,
                limit: 3,
                ..all.clone()
            };
            let page = read(server.events(), request).await.unwrap();
            let fresh = page
                .iter()
                .map(place)
                .filter(|one| found.last() != Some(one));
            let fresh: Vec<_> = fresh.collect();
            if fresh.is_empty() {
                break;
            }
            found.extend(fresh);
        }
        if backward {
            found.reverse();
        }
        assert_eq!(found, whole, "backward: {backward}");
    }
    let wrong = pb::ReadRequest {
        source: Some(conversation_source(&forked)),
        from_conversation: id.clone(),
        from_revision: 2,
        ..Default::default()
    };
    let status = read(server.events(), wrong).await.unwrap_err();
    assert_eq!(bad_field(&status), "from_conversation");
    // The history contains nothing of this conversation.
    let elsewhere = server.conversation().await;
    let nothing = pb::ReadRequest {
        from_conversation: elsewhere,
        from_revision: 1,
        ..all
    };
    assert!(read(server.events(), nothing).await.unwrap().is_empty());
    server.stop().done().await;
}

// An event with the largest accepted body must fit into a message of 64 MiB: a client with that
// limit must be able to read it.
#[tokio::test(flavor = "multi_thread")]
async fn largest_body_fits_a_64_mib_message() {
    const MESSAGE: usize = 64 << 20;
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    let max = Limits::default().body_bytes_max;
    let custom = |bytes: usize| {
        let custom = EventBody::Custom(Custom {
            type_name: "blob".into(),
            content_type: String::new(),
            data: vec![7; bytes].into(),
            text: String::new(),
            delta_of: String::new(),
        });
        let mut request = batch(&id, [custom]);
        request.events[0].actor = "a".repeat(512);
        request
    };
    let channel = server.channel.clone();
    let mut sending = pb::events_client::EventsClient::new(channel.clone());
    let status = sending.append(custom(max)).await.unwrap_err();
    assert_eq!(reason(&status), "TOO_LARGE");
    let appended = sending.append(custom(max - 64)).await.unwrap().into_inner();
    let reading = pb::events_client::EventsClient::new(channel).max_decoding_message_size(MESSAGE);
    let request = pb::ReadRequest {
        source: Some(branch_source(&id, "")),
        from_revision: appended.events[0].revision,
        ..Default::default()
    };
    let events = read(reading, request).await.unwrap();
    assert_eq!(events.len(), 1);
    server.stop().done().await;
}
