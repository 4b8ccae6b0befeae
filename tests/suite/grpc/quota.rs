//! Quotas of namespaces on a running server: on every path that appends, at the exact limit, and
//! after rebuilds.

use std::{collections::BTreeMap, path::Path};

use futures::StreamExt;
use tonic::{Code, Status};
use tonic_types::StatusExt;
use treering::{
    domain::*,
    engine::{OpenOptions, RebuildItem},
    proto::pb::{self, append_stream_response::Outcome, record_result_request::Item},
    server::ServeOptions,
};

use super::harness::*;

async fn served(dir: &Path, quotas: Quotas) -> TestServer {
    let mut opening = OpenOptions::new(dir);
    opening.quotas = quotas;
    let options = ServeOptions {
        grace: GRACE,
        ..ServeOptions::default()
    };
    TestServer::opened(opening, options).await
}

fn quota(bytes: Option<u64>, conversations: Option<u64>) -> Quota {
    Quota {
        bytes,
        conversations,
    }
}

fn of_default(quota: Quota) -> Quotas {
    Quotas {
        others: Quota::default(),
        named: BTreeMap::from([(Namespace::default(), quota)]),
    }
}

fn assert_over(status: &Status, part: &str) {
    let facts = status.get_error_details().error_info().cloned().unwrap();
    assert_eq!(
        (status.code(), &*facts.reason, &*facts.metadata["limit"]),
        (Code::ResourceExhausted, "QUOTA_EXCEEDED", part),
        "{status:?}"
    );
    assert!(status.get_error_details().retry_info().is_none());
    for word in ["quota", "reads still work", "--quota"] {
        assert!(status.message().contains(word), "{status:?}");
    }
}

async fn stats(server: &TestServer) -> pb::StatsResponse {
    let asked = server.admin().stats(pb::StatsRequest {}).await;
    asked.unwrap().into_inner()
}

async fn used(server: &TestServer) -> u64 {
    stats(server).await.event_bytes
}

async fn rebuilt(server: &TestServer) {
    let mut items = server.engine().rebuild(true, false);
    let mut done = false;
    while let Some(item) = items.next().await {
        done |= matches!(item.unwrap(), RebuildItem::Outcome(_));
    }
    assert!(done);
}

/// Creates a conversation with two finished turns, an open call and a running sub-context.
async fn prepared(server: &TestServer) -> (String, String) {
    let events = vec![
        created("harbour"),
        message(Role::User, "How many boats?"),
        message(Role::Assistant, "Twelve."),
        message(Role::User, "And the wind?"),
        message(Role::Assistant, "West."),
        message(Role::User, "Look, please."),
        message(Role::Assistant, "I look."),
        call("call_1", "look", "{}", false),
        call("call_2", "clock", "{}", false),
    ];
    let appended = server.append(batch("", events)).await;
    let id = appended.events[0].conversation_id.clone();
    let spawn = pb::SpawnRequest {
        conversation_id: id.clone(),
        call_id: "call_2".into(),
        purpose: "find the time".into(),
        ..Default::default()
    };
    let spawned = server.contexts().spawn(spawn).await.unwrap().into_inner();
    (id, spawned.child_id)
}

// A path without a quota check could fill the disk. Every call that appends must be refused and
// append nothing, while reads, other namespaces and repeated requests work.
#[tokio::test(flavor = "multi_thread")]
async fn every_appending_method_checks_the_quota() {
    let dir = tempfile::tempdir().unwrap();
    let server = served(dir.path(), Quotas::default()).await;
    let (id, child) = prepared(&server).await;
    let mut once = batch(&id, [message(Role::User, "once")]);
    once.idempotency_key = "once".into();
    server.append(once.clone()).await;
    let full = used(&server).await;
    server.stop().done().await;

    let server = served(dir.path(), of_default(quota(Some(full), None))).await;
    let head = server.events_stored();
    let say = || batch(&id, [message(Role::User, "more")]);
    let mut refused: Vec<(&str, Status)> = Vec::new();
    let mut events = server.events();
    refused.push(("Append", events.append(say()).await.unwrap_err()));
    let mut conversations = server.conversations();
    for into_conversation in ["", "new"] {
        let fork = pb::ForkRequest {
            conversation_id: id.clone(),
            name: "other".into(),
            at_revision: 3,
            into_conversation: into_conversation.into(),
            ..Default::default()
        };
        refused.push(("Fork", conversations.fork(fork).await.unwrap_err()));
    }
    let seal = pb::SealRequest {
        conversation_id: id.clone(),
        ..Default::default()
    };
    refused.push(("Seal", conversations.seal(seal).await.unwrap_err()));
    let mut contexts = server.contexts();
    for conversation_id in [id.clone(), String::new()] {
        let set = pb::SetContextRequest {
            conversation_id,
            set: vec![pb::ContextSet {
                key: "place".into(),
                value: "\"harbour\"".into(),
                ..Default::default()
            }],
            ..Default::default()
        };
        refused.push(("Set", contexts.set(set).await.unwrap_err()));
    }
    let put = pb::ItemsRequest {
        ops: vec![super::items::put(&["boats"], "count", "12")],
        ..Default::default()
    };
    refused.push(("Batch", server.items().batch(put).await.unwrap_err()));
    let spawn = pb::SpawnRequest {
        conversation_id: id.clone(),
        purpose: "count".into(),
        ..Default::default()
    };
    refused.push(("Spawn", contexts.spawn(spawn).await.unwrap_err()));
    let returned = pb::ReturnRequest {
        conversation_id: child.clone(),
        summary: "noon".into(),
        ..Default::default()
    };
    refused.push(("Return", contexts.r#return(returned).await.unwrap_err()));
    let compact = pb::CompactRequest {
        conversation_id: id.clone(),
        summary: "Twelve boats.".into(),
        keep_turns: Some(1),
        ..Default::default()
    };
    refused.push(("Compact", contexts.compact(compact).await.unwrap_err()));
    let start = pb::RecordResultStart {
        conversation_id: id.clone(),
        result: Some(pb::ToolResultRecorded {
            call_id: "call_1".into(),
            success: true,
            ..Default::default()
        }),
        ..Default::default()
    };
    let items = [Item::Start(start), Item::Chunk("a boat".into())];
    let items = items.map(|item| pb::RecordResultRequest { item: Some(item) });
    let mut tools = server.tools();
    let recorded = tools.record_result(futures::stream::iter(items)).await;
    refused.push(("RecordResult", recorded.unwrap_err()));
    for (path, status) in &refused {
        assert_eq!(reason(status), "QUOTA_EXCEEDED", "{path}: {status:?}");
        assert_over(status, "bytes");
    }
    // A repeated request appends nothing. It is answered between others that are refused.
    let answers = events
        .append_stream(futures::stream::iter([say(), once, say()]))
        .await
        .unwrap();
    let answers: Vec<_> = answers.into_inner().map(Result::unwrap).collect().await;
    for at in [0, 2] {
        assert!(
            matches!(&answers[at].outcome, Some(Outcome::Error(error))
                if error.reason == "QUOTA_EXCEEDED" && error.metadata["quota"] == full.to_string()),
            "{answers:?}"
        );
    }
    assert!(matches!(&answers[1].outcome, Some(Outcome::Appended(done)) if done.repeated_key));

    assert_eq!(server.events_stored(), head, "something was appended");
    assert_eq!(server.read_all(&id).await.len(), 11);
    let elsewhere = within("elsewhere", batch("", [created("theirs")]));
    events.append(elsewhere).await.unwrap();
    let measures = server.engine().measures().await.unwrap();
    let counted = measures.refused_appends["QUOTA_EXCEEDED"];
    assert_eq!(counted, refused.len() as u64 + 2);
    server.stop().done().await;
}

// Two writers may both see space for one event while there is space for only one. The quota must be
// exact with many writers, after a restart and after a rebuild, and a batch must be accepted whole
// or not at all.
#[tokio::test(flavor = "multi_thread")]
async fn quota_is_exact_under_concurrency() {
    const FITS: u64 = 5;
    let dir = tempfile::tempdir().unwrap();
    let server = served(dir.path(), Quotas::default()).await;
    let mut ids = Vec::new();
    for n in 0..16 {
        let made = server
            .append(batch("", [created(&format!("{n:02}"))]))
            .await;
        ids.push(made.events[0].conversation_id.clone());
    }
    let before = used(&server).await;
    let say = |id: &str| batch(id, [message(Role::User, "a boat comes in")]);
    server.append(say(&ids[0])).await;
    let one = used(&server).await - before;
    assert!(one > 128, "{one}");
    server.stop().done().await;

    // One byte of the quota stays unused.
    let quotas = of_default(quota(Some(before + one * (1 + FITS) + 1), None));
    let server = served(dir.path(), quotas.clone()).await;
    let too_many = (0..=FITS).map(|_| message(Role::User, "a boat comes in"));
    let whole = server.events().append(batch(&ids[0], too_many)).await;
    assert_over(&whole.unwrap_err(), "bytes");
    let tried = ids.iter().map(|id| {
        let (mut events, request) = (server.events(), say(id));
        tokio::spawn(async move { events.append(request).await })
    });
    let mut appended = 0;
    for tried in futures::future::join_all(tried).await {
        match tried.unwrap() {
            Ok(_) => appended += 1,
            Err(status) => assert_over(&status, "bytes"),
        }
    }
    assert_eq!(appended, FITS);
    let full = before + one * (1 + FITS);
    assert_eq!(used(&server).await, full);
    rebuilt(&server).await;
    assert_eq!(used(&server).await, full, "views that were made anew");
    let late = server.events().append(say(&ids[3])).await.unwrap_err();
    assert_over(&late, "bytes");
    server.stop().done().await;

    let server = served(dir.path(), quotas).await;
    assert_eq!(used(&server).await, full, "after a restart");
    let late = server.events().append(say(&ids[3])).await.unwrap_err();
    assert_over(&late, "bytes");
    server.stop().done().await;
    // With a larger quota, appends continue.
    let more = of_default(quota(Some(full + one), None));
    let server = served(dir.path(), more).await;
    server.append(say(&ids[3])).await;
    let answer = stats(&server).await;
    assert_eq!(answer.quota_bytes, Some(answer.event_bytes));
    server.stop().done().await;
}

// A quota of conversations refuses new ones, and existing ones continue. Zero is a valid quota. The
// default applies to namespaces without their own.
#[tokio::test(flavor = "multi_thread")]
async fn quota_of_conversations_is_enforced() {
    let dir = tempfile::tempdir().unwrap();
    let quotas = Quotas {
        others: quota(None, Some(2)),
        named: BTreeMap::from([
            (Namespace::new("closed").unwrap(), quota(Some(0), Some(0))),
            (Namespace::new("free").unwrap(), Quota::default()),
        ]),
    };
    let server = served(dir.path(), quotas).await;
    let id = server.conversation().await;
    let two = batch("", [created("a"), message(Role::User, "hello")]);
    server.append(two).await;
    let third = server.events().append(batch("", [created("c")])).await;
    let third = third.unwrap_err();
    assert_over(&third, "conversations");
    let facts = third.get_error_details().error_info().cloned().unwrap();
    assert_eq!(
        (&*facts.metadata["used"], &*facts.metadata["adds"]),
        ("2", "1")
    );
    let fork = pb::ForkRequest {
        conversation_id: id.clone(),
        name: "away".into(),
        at_revision: 3,
        into_conversation: "new".into(),
        ..Default::default()
    };
    let away = server.conversations().fork(fork).await.unwrap_err();
    assert_over(&away, "conversations");
    server
        .append(batch(&id, [message(Role::User, "and on")]))
        .await;

    let mut events = server.events();
    let closed = events.append(within("closed", batch("", [created("x")])));
    assert_over(&closed.await.unwrap_err(), "conversations");
    for _ in 0..5 {
        let free = events.append(within("free", batch("", [created("x")])));
        free.await.unwrap();
    }
    let of = async |namespace| {
        let mut admin = server.admin();
        let asked = admin.stats(within(namespace, pb::StatsRequest {})).await;
        asked.unwrap().into_inner()
    };
    assert_eq!(of("closed").await.quota_bytes, Some(0));
    assert_eq!(of("free").await.quota_conversations, None);
    let others = of("default").await;
    assert_eq!(
        (others.conversations, others.quota_conversations),
        (2, Some(2))
    );
    server.stop().done().await;
}

// Erasing frees space, so it must work in a full namespace. The writer's counts must include the
// freed space.
#[tokio::test(flavor = "multi_thread")]
async fn erasing_frees_quota() {
    let dir = tempfile::tempdir().unwrap();
    let quotas = of_default(quota(Some(200_000), None));
    let server = served(dir.path(), quotas).await;
    let id = server.conversation().await;
    // Once in the record, and once as a body of its own.
    for length in [20_000, 100_000] {
        let long = "boat ".repeat(length / 5);
        server
            .append(batch(&id, [message(Role::User, &long)]))
            .await;
    }
    let long = || batch(&id, [message(Role::User, &"wind ".repeat(18_000))]);
    assert_over(&server.events().append(long()).await.unwrap_err(), "bytes");
    let before = used(&server).await;
    let erase = pb::EraseRequest {
        target: Some(pb::erase_request::Target::Literal("boat boat".into())),
        reason: "room".into(),
        ..Default::default()
    };
    let mut answers = server
        .conversations()
        .erase(erase)
        .await
        .unwrap()
        .into_inner();
    while answers.message().await.unwrap().is_some() {}
    let after = used(&server).await;
    assert!(after + 115_000 < before, "{before} {after}");
    rebuilt(&server).await;
    assert_eq!(used(&server).await, after);
    for _ in 0..2 {
        server.append(long()).await;
    }
    assert_over(&server.events().append(long()).await.unwrap_err(), "bytes");
    server.stop().done().await;
}
