//! Append and AppendStream.

use std::time::Duration;

use futures::StreamExt;
use prost::{
    Message,
    encoding::{WireType, encode_key, encode_varint},
};
use tonic::Code;
use tonic_types::StatusExt;
use treering::{
    domain::*,
    proto::{envelope, pb},
};

use super::harness::*;

// If the client names no conversation, one is created. Everything that it sent is stored when the
// answer comes.
#[tokio::test(flavor = "multi_thread")]
async fn appended_events_are_stored_when_answered() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let response = server.append(batch("", opening())).await;
    assert!(!response.repeated_key);
    let id = &response.events[0].conversation_id;
    let stored = server.read_all(id).await;
    assert_eq!(stored.len(), 5);
    for (index, (event, appended)) in stored.iter().zip(&response.events).enumerate() {
        assert_eq!(event.id, appended.event_id);
        assert_eq!(event.revision, index as u64 + 1);
        assert_eq!(event.position, appended.position);
        assert_eq!(event.branch, "main");
        let sent = new_event(&opening()[index]).body.map(envelope::arm_of_new);
        assert_eq!(event.body.clone().map(envelope::arm_of_event), sent);
    }
    server.stop().done().await;
}

// A newer client's fields, and the exact bytes of arguments, must be returned unchanged: other
// versions of the program read them, too.
#[tokio::test(flavor = "multi_thread")]
async fn bodies_round_trip_byte_for_byte() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    let mut bytes = pb::MessageAppended {
        role: pb::Role::User.into(),
        ..Default::default()
    }
    .encode_to_vec();
    encode_key(9_999, WireType::LengthDelimited, &mut bytes);
    encode_varint(6, &mut bytes);
    bytes.extend_from_slice(b"future");
    let mut request = batch(&id, []);
    request.events.push(pb::NewEvent {
        body: Some(pb::new_event::Body::MessageAppended(bytes.clone().into())),
        actor: "me".into(),
        correlation_id: "trace-1".into(),
        ..Default::default()
    });
    server.append(request).await;
    let last = server.read_all(&id).await.pop().unwrap();
    assert_eq!((&*last.actor, &*last.correlation_id), ("me", "trace-1"));
    let (_, body) = envelope::arm_of_event(last.body.unwrap());
    assert_eq!(body, bytes);
    server.stop().done().await;
}

// Two writers append to one branch. The second must learn that it lost and what the head is now,
// and nothing of its batch may be stored.
#[tokio::test(flavor = "multi_thread")]
async fn stale_append_is_refused_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    let mut request = batch(&id, [message(Role::User, "a"), message(Role::User, "b")]);
    request.expected = exactly(5);
    server.append(request.clone()).await;
    let status = server.events().append(request).await.unwrap_err();
    assert_eq!(status.code(), Code::Aborted);
    let details = status.get_error_details();
    let info = details.error_info().unwrap();
    assert_eq!(info.reason, "REVISION_MISMATCH");
    assert_eq!(
        (&*info.metadata["expected"], &*info.metadata["actual"]),
        ("5", "7")
    );
    assert_eq!(server.read_all(&id).await.len(), 7);
    server.stop().done().await;
}

// A used key answers with the first result, even if the engine chose the conversation's id. With
// other content it is refused.
#[tokio::test(flavor = "multi_thread")]
async fn repeated_idempotency_key_returns_the_first_answer() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let mut request = batch("", opening());
    request.idempotency_key = "import-1".into();
    let first = server.append(request.clone()).await;
    let second = server.append(request.clone()).await;
    assert!(second.repeated_key);
    assert_eq!(first.events, second.events);
    request.events.pop();
    let status = server.events().append(request).await.unwrap_err();
    assert_eq!(status.code(), Code::AlreadyExists);
    assert_eq!(reason(&status), "IDEMPOTENCY_CONFLICT");
    assert_eq!(server.events_stored(), 5);
    server.stop().done().await;
}

// Imported conversations are found by their source's name. An unknown name must not create a
// conversation.
#[tokio::test(flavor = "multi_thread")]
async fn conversations_are_found_by_source_id() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let imported = EventBody::ConversationCreated(ConversationCreated {
        source: "swe-agent".into(),
        source_id: "task/17".into(),
        ..Default::default()
    });
    let id = server.append(batch("", [imported])).await.events[0]
        .conversation_id
        .clone();
    let response = server
        .append(batch("task/17", [message(Role::User, "go on")]))
        .await;
    assert_eq!(response.events[0].conversation_id, id);
    let mut events = server.events();
    let status = events
        .append(batch("task/18", [message(Role::User, "x")]))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
    let status = events
        .append(batch("task/18", [created("x")]))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(bad_field(&status), "conversation_id");
    server.stop().done().await;
}

fn outcome(response: &pb::AppendStreamResponse) -> &pb::append_stream_response::Outcome {
    response.outcome.as_ref().unwrap()
}

// Pipelined requests are answered in order. A refused one must neither end the stream nor shift the
// answers of the others.
#[tokio::test(flavor = "multi_thread")]
async fn append_stream_answers_in_order() {
    use pb::append_stream_response::Outcome;
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    let bad = |index: usize| index % 7 == 3;
    let requests: Vec<_> = (0..700)
        .map(|index| {
            let text = format!("message {index}");
            let mut request = batch(&id, [message(Role::User, &text)]);
            if bad(index) {
                request.expected = exactly(1);
            }
            if index % 70 == 5 {
                request.events[0].body = None;
            }
            request
        })
        .collect();
    let sent = futures::stream::iter(requests);
    let answers = server.events().append_stream(sent).await.unwrap();
    let answers: Vec<_> = answers.into_inner().map(Result::unwrap).collect().await;
    assert_eq!(answers.len(), 700);
    let mut revision = 5;
    for (index, answer) in answers.iter().enumerate() {
        match outcome(answer) {
            Outcome::Appended(appended) => {
                revision += 1;
                assert_eq!(appended.events[0].revision, revision, "{index}");
            }
            Outcome::Error(error) if bad(index) => {
                assert_eq!(error.code, i32::from(Code::Aborted));
                assert_eq!(error.reason, "REVISION_MISMATCH");
                assert_eq!(error.metadata["actual"], revision.to_string());
            }
            Outcome::Error(error) => {
                assert_eq!(index % 70, 5, "{error:?}");
                assert_eq!(error.code, i32::from(Code::InvalidArgument));
                assert_eq!(error.metadata["field"], "events[0].body");
            }
        }
    }
    assert_eq!(server.read_all(&id).await.len() as u64, revision);
    server.stop().done().await;
}

// A writer with a short queue must slow a stream down, and must not refuse its batches.
#[tokio::test(flavor = "multi_thread")]
async fn full_writer_queue_slows_the_append_stream() {
    use pb::append_stream_response::Outcome;
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits {
        queue_appends_max: 2,
        ..Limits::default()
    };
    let server = TestServer::with(dir.path(), limits, GRACE).await;
    let id = server.conversation().await;
    let requests = (0..400).map(move |_| batch(&id, [message(Role::User, "again")]));
    let sent = futures::stream::iter(requests);
    let answers = server.events().append_stream(sent).await.unwrap();
    let answers: Vec<_> = answers.into_inner().map(Result::unwrap).collect().await;
    assert_eq!(answers.len(), 400);
    for (index, answer) in answers.iter().enumerate() {
        let Outcome::Appended(appended) = outcome(answer) else {
            panic!("request {index}: {answer:?}");
        };
        assert_eq!(appended.events[0].revision, index as u64 + 6);
    }
    server.stop().done().await;
}

// A batch may create a sub-context and record it in the parent: both or neither.
#[tokio::test(flavor = "multi_thread")]
async fn batch_over_parent_and_child_is_atomic() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    let parent: ConversationId = id.parse().unwrap();
    let child = server.id_beside(parent);
    let spawned = EventBody::SubContextSpawned(SubContextSpawned {
        conversation: child,
        call_id: String::new(),
        purpose: "look around".into(),
    });
    let created = EventBody::ConversationCreated(ConversationCreated {
        parent: Some(ParentRef {
            conversation: parent,
            branch: BranchId::MAIN,
            revision: Revision(5),
            call_id: String::new(),
        }),
        ..Default::default()
    });
    let mut request = batch(&id, [spawned, created]);
    request.expected = exactly(5);
    request.events[1].conversation_id = child.to_string();
    request.expectations.push(pb::BranchExpectation {
        conversation_id: child.to_string(),
        branch: String::new(),
        expected: Some(pb::ExpectedRevision {
            expected: Some(pb::expected_revision::Expected::NoStream(
                pb::expected_revision::NoStream {},
            )),
        }),
    });
    let response = server.append(request.clone()).await;
    let places: Vec<_> = response
        .events
        .iter()
        .map(|event| (&*event.conversation_id, event.revision))
        .collect();
    let child = child.to_string();
    assert_eq!(places, vec![(&*id, 6), (&*child, 1)]);
    request.expected = None;
    let status = server.events().append(request).await.unwrap_err();
    assert_eq!(status.code(), Code::AlreadyExists);
    assert_eq!(server.read_all(&id).await.len(), 6);
    server.stop().done().await;
}

// A client sends a feed again. Known events are skipped, and the answer says where they are. Other
// content under a known id, and ids that cannot be chosen, are refused with their index.
#[tokio::test(flavor = "multi_thread")]
async fn events_with_chosen_ids_are_deduplicated() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    let named = |number: u128, text: &str| pb::NewEvent {
        id: uuid::Builder::from_random_bytes(number.to_be_bytes())
            .into_uuid()
            .to_string(),
        ..new_event(&message(Role::User, text))
    };
    let feed = |events: Vec<pb::NewEvent>| pb::AppendRequest {
        events,
        skip_known: true,
        ..batch(&id, [])
    };
    let first = server
        .append(feed(vec![named(1, "a"), named(2, "b")]))
        .await;
    assert_eq!(first.events[0].event_id, named(1, "").id);
    let keyed = pb::NewEvent {
        idempotency_key: "own".into(),
        ..new_event(&message(Role::User, "c"))
    };
    let second = server
        .append(feed(vec![named(2, "b"), keyed.clone()]))
        .await;
    assert_eq!(
        second
            .events
            .iter()
            .map(|event| event.known)
            .collect::<Vec<_>>(),
        [true, false]
    );
    assert_eq!(second.events[0].position, first.events[1].position);
    let third = server
        .append(batch_of(
            &id,
            vec![keyed, new_event(&message(Role::User, "d"))],
        ))
        .await;
    assert_eq!(
        third
            .events
            .iter()
            .map(|event| event.known)
            .collect::<Vec<_>>(),
        [true, false]
    );
    assert_eq!(third.events[0].revision, second.events[1].revision);

    let eight = pb::NewEvent {
        id: uuid::Builder::from_custom_bytes([1; 16])
            .into_uuid()
            .to_string(),
        ..new_event(&message(Role::User, "x"))
    };
    let no_id = pb::NewEvent {
        id: "mine".into(),
        ..new_event(&message(Role::User, "x"))
    };
    for (request, code, why) in [
        (
            batch_of(&id, vec![named(1, "a")]),
            Code::AlreadyExists,
            "EVENT_ID_TAKEN",
        ),
        (
            feed(vec![named(1, "other")]),
            Code::AlreadyExists,
            "EVENT_ID_CONFLICT",
        ),
        (feed(vec![eight]), Code::InvalidArgument, "INVALID_EVENT"),
        (feed(vec![no_id]), Code::InvalidArgument, "MALFORMED"),
    ] {
        let status = server.events().append(request).await.unwrap_err();
        assert_eq!((status.code(), &*reason(&status)), (code, why), "{status}");
    }
    assert_eq!(server.read_all(&id).await.len(), 5 + 4);
    server.stop().done().await;
}

// A writer that sets a value after reading it must learn that another writer was first, and what
// the value is now.
#[tokio::test(flavor = "multi_thread")]
async fn append_checks_the_expected_latest_event_of_a_key() {
    use pb::expected_key::Expected;
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    let set = |expected: Option<Expected>| pb::AppendRequest {
        events: vec![pb::NewEvent {
            key: "plan".into(),
            ..new_event(&message(Role::User, "the plan"))
        }],
        expected_keys: vec![pb::ExpectedKey {
            key: "plan".into(),
            expected,
            ..Default::default()
        }],
        ..batch(&id, [])
    };
    let first = server.append(set(Some(Expected::Absent(true)))).await;
    let at = &first.events[0];
    let status = server
        .events()
        .append(set(Some(Expected::Absent(true))))
        .await
        .unwrap_err();
    assert_eq!(
        (status.code(), &*reason(&status)),
        (Code::Aborted, "LATEST_MISMATCH")
    );
    let details = status.get_error_details();
    let facts = &details.error_info().unwrap().metadata;
    assert_eq!(facts["event_id"], at.event_id);
    assert_eq!(facts["actual"], at.revision.to_string());
    assert!(!status.message().contains("plan"), "{status}");
    server
        .append(set(Some(Expected::EventId(at.event_id.clone()))))
        .await;
    server
        .append(set(Some(Expected::Revision(at.revision + 1))))
        .await;
    for unsaid in [
        None,
        Some(Expected::Absent(false)),
        Some(Expected::EventId("x".into())),
    ] {
        let status = server.events().append(set(unsaid)).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(
            bad_field(&status).starts_with("expected_keys[0]"),
            "{status}"
        );
    }
    server.stop().done().await;
}

// A client that makes a key for each append, so that retries are harmless, says how long the store
// must remember it.
#[tokio::test(flavor = "multi_thread")]
async fn idempotency_keys_expire() {
    const LIFE: Duration = Duration::from_secs(1);
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    let keyed = |life_seconds: u32| pb::AppendRequest {
        idempotency_key: "k".into(),
        key_life_seconds: life_seconds,
        ..batch(&id, [message(Role::User, "a")])
    };
    let first = server.append(keyed(1)).await;
    let again = server.append(keyed(0)).await;
    assert!(again.repeated_key && again.events == first.events);
    tokio::time::sleep(LIFE + Duration::from_millis(20)).await;
    let known = pb::KnownKeysRequest {
        idempotency_keys: vec!["k".into()],
    };
    let answer = server.events().known_keys(known).await.unwrap();
    assert_eq!(answer.into_inner().known, [false]);
    let anew = server.append(keyed(0)).await;
    assert!(!anew.repeated_key);
    assert_eq!(anew.events[0].revision, first.events[0].revision + 1);
    server.stop().done().await;
}

fn batch_of(id: &str, events: Vec<pb::NewEvent>) -> pb::AppendRequest {
    pb::AppendRequest {
        events,
        ..batch(id, [])
    }
}
