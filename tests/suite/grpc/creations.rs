//! Conversations that are created by the batch that needs them, and the ids they get.

use std::collections::BTreeSet;

use tonic::Code;
use treering::{domain::*, engine::derived_id, proto::pb, server};

use super::{
    harness::*,
    keys::{guarded, key},
};

fn said(id: &str, text: &str) -> pb::AppendRequest {
    pb::AppendRequest {
        create_if_missing: Some(pb::ConversationCreated {
            title: "made on the way".into(),
            source: "langgraph".into(),
            ..Default::default()
        }),
        ..batch(id, [message(Role::User, text)])
    }
}

async fn append(
    server: &TestServer,
    namespace: &str,
    request: pb::AppendRequest,
) -> Result<pb::AppendResponse, tonic::Status> {
    let answer = server.events().append(within(namespace, request)).await;
    answer.map(tonic::Response::into_inner)
}

// Sixteen workers send the first messages of one thread at the same time. One batch creates the
// conversation, all messages are in it, and each answer has the places of its own events.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_appends_create_the_conversation_once() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let uuid = ConversationId::generate().to_string();
    for name in ["thread/17 ✓", &uuid] {
        let all: Vec<_> = (0..16)
            .map(|number| {
                let (mut events, request) = (server.events(), said(name, &format!("n{number}")));
                tokio::spawn(async move { events.append(request).await.unwrap().into_inner() })
            })
            .collect();
        let (mut created, mut revisions, mut ids) = (0, BTreeSet::new(), BTreeSet::new());
        for one in all {
            let answer = one.await.unwrap();
            created += u32::from(answer.created.is_some());
            assert_eq!(answer.events.len(), 1);
            revisions.insert(answer.events[0].revision);
            ids.insert(answer.events[0].conversation_id.clone());
        }
        assert_eq!((created, ids.len()), (1, 1));
        assert_eq!(revisions, (2..=17).collect());
        let events = server.read_all(name).await;
        assert_eq!(events.len(), 17);
        assert!(ids.contains(name) || name != uuid);
    }
    server.stop().done().await;
}

// The answer was lost, and the batch is sent again after other appends. The first answer must be
// returned unchanged.
#[tokio::test(flavor = "multi_thread")]
async fn repeated_batch_returns_its_creation() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    for (name, key) in [("thread 1", "first"), ("", "by its key alone")] {
        let request = pb::AppendRequest {
            idempotency_key: key.into(),
            ..said(name, "hello")
        };
        let first = server.append(request.clone()).await;
        let id = first.events[0].conversation_id.clone();
        assert_eq!(first.created.as_ref().map(|event| event.revision), Some(1));
        let second = server.append(said(&id, "again")).await;
        assert!(second.created.is_none());
        let again = server.append(request.clone()).await;
        assert!(again.repeated_key);
        assert_eq!(
            (&again.events, &again.created),
            (&first.events, &first.created)
        );
        let mut other = request;
        other.create_if_missing.as_mut().unwrap().title = "another".into();
        let status = server.events().append(other).await.unwrap_err();
        assert_eq!(reason(&status), "IDEMPOTENCY_CONFLICT");
    }
    server.stop().done().await;
}

// A batch that breaks a rule creates nothing, and the error has the client's index of the event.
#[tokio::test(flavor = "multi_thread")]
async fn invalid_batch_creates_no_conversation() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let mut request = said("thread", "hello");
    request.events.push(new_event(&result("no such call", "x")));
    let status = server.events().append(request).await.unwrap_err();
    assert_eq!(reason(&status), "CALL_NOT_OPEN");
    assert!(
        status.message().contains("event 1 "),
        "{}",
        status.message()
    );
    assert_eq!(server.events_stored(), 0);

    let both = pb::AppendRequest {
        create_if_missing: Some(pb::ConversationCreated::default()),
        ..batch("", [created("itself")])
    };
    let unnamed = pb::AppendRequest {
        conversation_id: String::new(),
        ..said("x", "y")
    };
    let mut other = said("thread", "hello");
    other.create_if_missing.as_mut().unwrap().source_id = "another".into();
    let mut stale = said("thread", "hello");
    stale.expected = exactly(3);
    for (request, code) in [
        (both, Code::InvalidArgument),
        (unnamed, Code::InvalidArgument),
        (other, Code::InvalidArgument),
        (stale, Code::NotFound),
    ] {
        let status = server.events().append(request).await.unwrap_err();
        assert_eq!(status.code(), code, "{status:?}");
    }
    assert_eq!(server.events_stored(), 0);
    server.stop().done().await;
}

// Threads with the same name from two sources are two conversations.
#[tokio::test(flavor = "multi_thread")]
async fn source_ids_are_scoped_to_their_source() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let first = server.append(said("main", "hello")).await;
    let mut other = said("main", "hello");
    other.create_if_missing.as_mut().unwrap().source = "adk".into();
    let second = server.append(other).await;
    assert_ne!(
        first.events[0].conversation_id,
        second.events[0].conversation_id
    );
    let again = server.append(said("main", "more")).await;
    assert_eq!(
        first.events[0].conversation_id,
        again.events[0].conversation_id
    );
    server.stop().done().await;
}

// A tenant who knows the key or name that another tenant will use can compute the id. Such an id
// cannot be chosen, and the error reveals nothing about other tenants.
#[tokio::test(flavor = "multi_thread")]
async fn derived_id_of_another_tenant_cannot_be_chosen() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let keyed = || pb::AppendRequest {
        idempotency_key: "order-17".into(),
        ..batch("", [created("keyed")])
    };
    // The victim's future id is computed on another server.
    let elsewhere = tempfile::tempdir().unwrap();
    let model = TestServer::start(elsewhere.path()).await;
    let mut ids = Vec::new();
    for request in [keyed(), said("thread", "hello")] {
        let answer = append(&model, "victim", request).await.unwrap();
        ids.push(answer.events[0].conversation_id.clone());
    }
    model.stop().done().await;

    let mut told = Vec::new();
    for id in &ids {
        for request in [batch(id, [created("mine")]), said(id, "mine")] {
            told.push(append(&server, "thief", request).await.unwrap_err());
        }
        let own = append(&server, "thief", batch("", [created("own")]))
            .await
            .unwrap();
        let fork = pb::ForkRequest {
            conversation_id: own.events[0].conversation_id.clone(),
            into_conversation: id.clone(),
            name: "mine".into(),
            ..Default::default()
        };
        let mut client = server.conversations();
        told.push(client.fork(within("thief", fork)).await.unwrap_err());
        let spawn = pb::SpawnRequest {
            conversation_id: own.events[0].conversation_id.clone(),
            child_id: id.clone(),
            ..Default::default()
        };
        let mut client = server.contexts();
        told.push(client.spawn(within("thief", spawn)).await.unwrap_err());
    }
    for (request, id) in [keyed(), said("thread", "hello")].into_iter().zip(&ids) {
        let answer = append(&server, "victim", request).await.unwrap();
        assert_eq!(answer.events[0].conversation_id, *id);
    }
    // The same answers, now that they exist.
    let mut later = Vec::new();
    for id in &ids {
        for request in [batch(id, [created("mine")]), said(id, "mine")] {
            later.push(append(&server, "thief", request).await.unwrap_err());
        }
    }
    for status in told.iter().chain(&later) {
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    }
    assert_eq!(told[0].message(), later[0].message());
    // Two tenants use one name, and neither sees the other.
    let thief = append(&server, "thief", said("thread", "hello"))
        .await
        .unwrap();
    assert_ne!(thief.events[0].conversation_id, ids[1]);
    server.stop().done().await;
}

// The id of the audit's conversation is in the source. In another namespace it is an ordinary id,
// and using it there must not affect the audit. An id that is derived from a name cannot be chosen,
// also not by naming it earlier in the batch.
#[tokio::test(flavor = "multi_thread")]
async fn id_of_a_system_conversation_cannot_be_taken() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let system = Namespace::new(server::audit::SYSTEM_NAMESPACE).unwrap();
    let ids = [derived_id(&system, "pseudonyms", &[])];
    let audit = server::audit::audit_conversation().to_string();
    let taken = batch(&audit, [created("mine")]);
    append(&server, "thief", taken).await.unwrap();
    let own = append(&server, "thief", batch("", [created("own")]))
        .await
        .unwrap();
    let own = own.events[0].conversation_id.clone();
    for id in ids.map(|id| id.to_string()) {
        let mut in_event = batch("", [created("mine"), created("mine, too")]);
        in_event.events[1].conversation_id = id.clone();
        // An id that is named earlier, by an expectation that creates nothing, must not count as
        // checked.
        let mut named_before = batch("", [created("mine"), created("mine, too")]);
        named_before.events[1].conversation_id = id.clone();
        named_before.expectations.push(pb::BranchExpectation {
            conversation_id: id.clone(),
            ..Default::default()
        });
        let mut told = Vec::new();
        for request in [
            batch(&id, [created("mine")]),
            said(&id, "mine"),
            in_event,
            named_before,
        ] {
            told.push(append(&server, "thief", request).await.expect_err(&id));
        }
        let fork = pb::ForkRequest {
            conversation_id: own.clone(),
            into_conversation: id.clone(),
            name: "mine".into(),
            ..Default::default()
        };
        let mut client = server.conversations();
        told.push(client.fork(within("thief", fork)).await.expect_err(&id));
        let spawn = pb::SpawnRequest {
            conversation_id: own.clone(),
            child_id: id.clone(),
            ..Default::default()
        };
        let mut client = server.contexts();
        told.push(client.spawn(within("thief", spawn)).await.expect_err(&id));
        for status in &told {
            assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        }
    }
    server.stop().done().await;

    let ops = key(dir.path(), "ops", &["admin:*"]);
    let server = guarded(dir.path()).await;
    let erase = pb::EraseRequest {
        target: Some(pb::erase_request::Target::ConversationId(own)),
        ..Default::default()
    };
    let mut request = within("thief", erase);
    let value = format!("Bearer {ops}").parse().unwrap();
    request.metadata_mut().insert("authorization", value);
    let mut erased = server
        .conversations()
        .erase(request)
        .await
        .unwrap()
        .into_inner();
    while erased.message().await.unwrap().is_some() {}
    let noted = audit_entries(&server, &ops).await;
    let is_noted = |deed: &serde_json::Value| deed["deed"] == "erase";
    assert!(noted.iter().any(is_noted), "the erasing is in the audit");
    server.stop().done().await;
}
