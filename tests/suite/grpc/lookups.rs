//! Latest, GetMany and reads with filters, and Get of a context.

use prost::Message as _;
use tonic::Code;
use treering::{
    domain::*,
    proto::pb::{self, latest_event::Of},
    server::bounds::{LATEST_CONVERSATIONS_MAX, LOOKUP_BYTES_MAX, LOOKUPS_MAX},
};

use super::harness::*;

fn custom(type_name: &str, key: &str, data: Vec<u8>) -> pb::NewEvent {
    let body = EventBody::Custom(Custom {
        type_name: type_name.into(),
        content_type: String::new(),
        data: data.into(),
        text: String::new(),
        delta_of: String::new(),
    });
    pb::NewEvent {
        key: key.into(),
        attributes: [("step".to_owned(), key.len().to_string())].into(),
        actor: "graph".into(),
        correlation_id: "run-1".into(),
        ..new_event(&body)
    }
}

async fn append(server: &TestServer, id: &str, events: Vec<pb::NewEvent>) -> pb::AppendResponse {
    let request = pb::AppendRequest {
        conversation_id: id.into(),
        events,
        ..Default::default()
    };
    server.append(request).await
}

fn filtered(id: &str, filter: pb::EventFilter) -> pb::ReadRequest {
    pb::ReadRequest {
        source: Some(branch_source(id, "")),
        filter: Some(filter),
        ..Default::default()
    }
}

// Event keys and attributes must be returned by every call that reads, with bodies and without.
// They must not be inside the body, where they could collide with another client's field.
#[tokio::test(flavor = "multi_thread")]
async fn event_keys_and_attributes_round_trip() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    let sent = vec![
        custom("graph/checkpoint", "checkpoint/1", vec![1; 10]),
        custom("graph/checkpoint", "checkpoint/2", vec![2; 100_000]),
    ];
    let appended = append(&server, &id, sent.clone()).await;
    for headers_only in [false, true] {
        let request = pb::ReadRequest {
            headers_only,
            from_revision: 6,
            ..filtered(&id, pb::EventFilter::default())
        };
        let read = read(server.events(), request).await.unwrap();
        assert_eq!(read.len(), 2);
        for (event, sent) in read.iter().zip(&sent) {
            assert_eq!(
                (&event.key, &event.attributes),
                (&sent.key, &sent.attributes)
            );
            assert_eq!(event.type_name, "graph/checkpoint");
            let body = match &event.body {
                Some(pb::event::Body::Custom(body)) => Some(body.clone()),
                _ => None,
            };
            let expected = match &sent.body {
                Some(pb::new_event::Body::Custom(body)) if !headers_only => Some(body.clone()),
                _ => None,
            };
            assert_eq!(body, expected, "byte for byte");
        }
    }
    let request = pb::GetManyRequest {
        events: vec![
            pb::EventName {
                by: Some(pb::event_name::By::EventId(
                    appended.events[1].event_id.clone(),
                )),
            },
            place(&id, 1),
            place(&id, 99),
            place("no such conversation", 1),
        ],
        headers_only: false,
    };
    let got = server
        .events()
        .get_many(request)
        .await
        .unwrap()
        .into_inner();
    let found: Vec<_> = got
        .events
        .iter()
        .map(|got| {
            got.event
                .as_ref()
                .map(|event| (event.revision, event.key.as_str()))
        })
        .collect();
    assert_eq!(
        found,
        [Some((7, "checkpoint/2")), Some((1, "")), None, None]
    );
    server.stop().done().await;
}

fn place(id: &str, revision: u64) -> pb::EventName {
    pb::EventName {
        by: Some(pb::event_name::By::Place(pb::EventPlace {
            conversation_id: id.into(),
            revision,
        })),
    }
}

// One call returns the newest events from which an adapter resumes. Bodies that do not fit are
// marked, and can be read alone.
#[tokio::test(flavor = "multi_thread")]
async fn latest_returns_several_events_in_one_call() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let (one, two) = (server.conversation().await, server.conversation().await);
    append(
        &server,
        &one,
        vec![
            custom("state", "a", vec![1; 10]),
            custom("state", "b", vec![2]),
        ],
    )
    .await;
    append(&server, &one, vec![custom("other", "a", vec![3; 10])]).await;
    append(
        &server,
        &two,
        vec![custom("state", "a", vec![9; LOOKUP_BYTES_MAX + 1])],
    )
    .await;
    append(&server, &two, vec![custom("state", "b", vec![9; 100])]).await;
    let request = pb::LatestRequest {
        conversations: vec![two.clone(), one.clone()],
        keys: vec!["a".into(), "b".into(), "c".into()],
        types: vec!["state".into()],
        kinds: vec![EventKind::MessageAppended.number().into()],
        ..Default::default()
    };
    let answer = server
        .events()
        .latest(request.clone())
        .await
        .unwrap()
        .into_inner();
    let found: Vec<_> = answer
        .found
        .iter()
        .map(|found| {
            let revision = found.event.as_ref().map(|event| event.revision);
            (found.conversation_id == one, revision, found.body_left_out)
        })
        .collect();
    assert_eq!(
        found,
        [
            // The first is larger than the limit of an answer, and is the only one with a body.
            (false, Some(6), false),
            (false, Some(7), true),
            (false, None, false),
            (false, Some(7), true),
            (false, Some(3), true),
            (true, Some(8), true),
            (true, Some(7), true),
            (true, None, false),
            (true, Some(7), true),
            (true, Some(3), true),
        ]
    );
    assert_eq!(answer.found[1].of, Some(Of::Key("b".into())));
    assert!(answer.found[1].event.as_ref().unwrap().body.is_none());
    assert_eq!(answer.found[1].event.as_ref().unwrap().key, "b");
    let alone = pb::LatestRequest {
        conversations: vec![one],
        ..request
    };
    let answer = server.events().latest(alone).await.unwrap().into_inner();
    assert!(answer.found.iter().all(|found| !found.body_left_out));
    assert!(answer.encoded_len() < 10_000);
    server.stop().done().await;
}

// Filters are combined. A read that has scanned as much as one call may, says where it stopped, and
// continuing there returns every event once.
#[tokio::test(flavor = "multi_thread")]
async fn filtered_read_continues_where_it_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    for batch in 0..11_u32 {
        let events = (0..5_000).map(|_| custom("noise", "", vec![1])).collect();
        append(&server, &id, events).await;
        append(
            &server,
            &id,
            vec![custom("state", &format!("s/{batch}"), vec![2])],
        )
        .await;
    }
    let filter = pb::EventFilter {
        attributes: [("step".to_owned(), "3".to_owned())].into(),
        actor: "graph".into(),
        ..Default::default()
    };
    for backward in [false, true] {
        let mut request = pb::ReadRequest {
            backward,
            ..filtered(&id, filter.clone())
        };
        let (mut keys, mut stops) = (Vec::new(), 0);
        loop {
            let mut stream = server
                .events()
                .read(request.clone())
                .await
                .unwrap()
                .into_inner();
            request.go_on_at = None;
            while let Some(message) = stream.message().await.unwrap() {
                assert!(request.go_on_at.is_none(), "it is the last one");
                keys.extend(message.events.into_iter().map(|event| event.key));
                request.go_on_at = message.stopped_at;
            }
            match request.go_on_at {
                Some(_) => stops += 1,
                None => break,
            }
        }
        let mut expected: Vec<_> = (0..10).map(|batch| format!("s/{batch}")).collect();
        if backward {
            expected.reverse();
        }
        assert_eq!(keys, expected);
        assert_eq!(stops, 1);
    }
    // With an index, no other events are scanned.
    let filter = pb::EventFilter {
        key_prefix: "s/1".into(),
        types: vec!["state".into()],
        correlation_id: "run-1".into(),
        ..Default::default()
    };
    let found = read(server.events(), filtered(&id, filter)).await.unwrap();
    let keys: Vec<_> = found.iter().map(|event| event.key.as_str()).collect();
    assert_eq!(keys, ["s/1", "s/10"]);
    let middle = found[1].recorded_at;
    let since = pb::EventFilter {
        types: vec!["state".into()],
        recorded_from: middle,
        ..Default::default()
    };
    let until = pb::EventFilter {
        recorded_from: None,
        recorded_to: middle,
        ..since.clone()
    };
    let count = async |filter| {
        read(server.events(), filtered(&id, filter))
            .await
            .unwrap()
            .len()
    };
    assert_eq!((count(since).await, count(until).await), (1, 10));
    server.stop().done().await;
}

// Stored fields and the size of one request are limited. An error names the field.
#[tokio::test(flavor = "multi_thread")]
async fn oversized_fields_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    let long = "k".repeat(513);
    let many = (0..33).map(|n| (n.to_string(), String::new())).collect();
    let mut crowded = custom("state", "", vec![]);
    crowded.attributes = many;
    for (event, field) in [
        (custom("state", &long, vec![]), "events[0].key"),
        (custom("state", "a\0b", vec![]), "events[0].key"),
        (crowded, "events[0].attributes"),
    ] {
        let request = pb::AppendRequest {
            conversation_id: id.clone(),
            events: vec![event],
            ..Default::default()
        };
        let status = server.events().append(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(bad_field(&status), field);
    }
    let latest = |conversations: Vec<String>, keys: Vec<String>| pb::LatestRequest {
        conversations,
        keys,
        ..Default::default()
    };
    let both = vec![id.clone(); 2];
    for (request, field) in [
        (latest(vec![], vec!["a".into()]), "conversations"),
        (latest(vec![id.clone()], vec![]), "keys"),
        (
            latest(vec![id.clone(), String::new()], vec!["a".into()]),
            "conversations[1]",
        ),
        (latest(vec![id.clone()], vec![String::new()]), "keys[0]"),
        (latest(vec![id.clone()], vec![long.clone()]), "keys[0]"),
        (
            latest(
                vec![id.clone(); LATEST_CONVERSATIONS_MAX + 1],
                vec!["a".into()],
            ),
            "conversations",
        ),
        (
            latest(both.clone(), vec!["a".into(); LOOKUPS_MAX / 2 + 1]),
            "conversations",
        ),
        (
            pb::LatestRequest {
                as_of_revision: 1,
                ..latest(both, vec!["a".into()])
            },
            "as_of_revision",
        ),
    ] {
        let status = server.events().latest(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(bad_field(&status), field);
    }
    let many = pb::GetManyRequest {
        events: vec![place(&id, 1); LOOKUPS_MAX + 1],
        headers_only: false,
    };
    let status = server.events().get_many(many).await.unwrap_err();
    assert_eq!(bad_field(&status), "events");
    let nameless = pb::GetManyRequest {
        events: vec![place(&id, 1), place(&id, 2), pb::EventName { by: None }],
        headers_only: false,
    };
    let status = server.events().get_many(nameless).await.unwrap_err();
    assert_eq!(bad_field(&status), "events[2]");
    let elsewhere = pb::ReadRequest {
        go_on_at: Some(pb::ReadStop {
            at: Some(pb::read_stop::At::Offset(1)),
        }),
        ..filtered(&id, pb::EventFilter::default())
    };
    let status = read(server.events(), elsewhere).await.unwrap_err();
    assert_eq!(bad_field(&status), "go_on_at");
    assert_eq!(server.read_all(&id).await.len(), 5, "nothing was appended");
    server.stop().done().await;
}

// An adapter reads two keys in one call. A key that is not set is not in the answer.
#[tokio::test(flavor = "multi_thread")]
async fn context_values_are_read_by_key() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    let set = |key: &str, value: String| pb::ContextSet {
        key: key.into(),
        value: value.into_bytes().into(),
        provider: "test".into(),
    };
    let large = format!("\"{}\"", "x".repeat(LOOKUP_BYTES_MAX));
    let request = pb::SetContextRequest {
        conversation_id: id.clone(),
        set: vec![
            set("a", "1".into()),
            set("b", "[2]".into()),
            set("large", large),
        ],
        ..Default::default()
    };
    server.contexts().set(request).await.unwrap();
    let get = async |keys: &[&str]| {
        let request = pb::GetContextRequest {
            conversation_id: id.clone(),
            keys: keys.iter().map(|key| (*key).to_owned()).collect(),
            ..Default::default()
        };
        server.contexts().get(request).await.unwrap().into_inner()
    };
    let got = get(&["b", "none"]).await;
    assert_eq!(got.entries.len(), 1);
    assert_eq!(
        (got.entries[0].key.as_str(), &got.entries[0].value[..]),
        ("b", &b"[2]"[..])
    );
    assert_eq!(got.revision, 8);
    let all = get(&[]).await;
    let keys: Vec<_> = all.entries.iter().map(|entry| entry.key.as_str()).collect();
    assert_eq!(
        (keys, all.left_out),
        (vec!["a", "b"], vec!["large".to_owned()])
    );
    assert_eq!(
        get(&["large"]).await.entries[0].value.len(),
        LOOKUP_BYTES_MAX + 2
    );
    let long_term = server
        .contexts()
        .get(pb::GetContextRequest::default())
        .await;
    assert_eq!(
        long_term.unwrap().into_inner(),
        pb::GetContextResponse::default()
    );
    server.stop().done().await;
}

// A custom event is found by its text, as an event of its kind.
#[tokio::test(flavor = "multi_thread")]
async fn custom_event_is_found_by_its_text() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    let body = EventBody::Custom(Custom {
        type_name: "graph/note".into(),
        content_type: String::new(),
        data: b"opaque"[..].into(),
        text: "the lighthouse keeper went home".into(),
        delta_of: String::new(),
    });
    let appended = append(&server, &id, vec![new_event(&body)]).await;
    for (query, hits) in [("lighthouse", 1), ("opaque", 0)] {
        let request = pb::SearchRequest {
            query: query.into(),
            kinds: vec![EventKind::Custom.number().into()],
            at_least: appended.events[0].position,
            ..Default::default()
        };
        let found = server.search().search(request).await.unwrap().into_inner();
        assert_eq!(found.hits.len(), hits, "{query}");
        for hit in found.hits {
            assert_eq!((hit.kind(), hit.revision), (pb::EventKind::Custom, 6));
            assert!(hit.snippet.contains("lighthouse keeper"));
        }
    }
    server.stop().done().await;
}
