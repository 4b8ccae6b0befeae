//! Keys that read unusually much, by whatever method, are all in the audit.

use std::{collections::BTreeMap, path::Path, time::Duration};

use serde_json::Value;
use treering::{domain::*, proto::pb, server::bounds::MANY_READ};

use super::{
    harness::*,
    keys::{guarded, key, keyed},
};

/// Nothing here takes this long; beyond it, something hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// Creates enough conversations that reading all of them counts as mass reading.
async fn store(server: &TestServer) -> (Vec<String>, Option<pb::Position>) {
    let mut ids = Vec::new();
    let mut last = None;
    for number in 0..MANY_READ.conversations {
        let text = format!("quokka number {number}");
        let bodies = [
            created("boat"),
            message(Role::User, &text),
            call("call_1", "weather", "{}", true),
        ];
        let made = server.append(batch("", bodies)).await;
        ids.push(made.events[0].conversation_id.clone());
        last = made.events[1].position;
    }
    (ids, last)
}

/// Returns the audit entries of keys that have read unusually much.
async fn very_much(server: &TestServer, ops: &str) -> Vec<Value> {
    let mut deeds = audit_entries(server, ops).await;
    deeds.retain(|deed| deed["deed"] == "read_many");
    deeds
}

/// Returns these entries once all of these keys are in them.
async fn once_noted(server: &TestServer, ops: &str, keys: &[&str]) -> Vec<Value> {
    let started = tokio::time::Instant::now();
    let wait = async {
        loop {
            let deeds = very_much(server, ops).await;
            let is_there = |key: &&&str| deeds.iter().any(|deed| deed["key"] == **key);
            let missing: Vec<_> = keys.iter().filter(|key| !is_there(key)).collect();
            if missing.is_empty() {
                return Ok(deeds);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
            if started.elapsed() > PATIENCE / 2 {
                return Err(format!("not in the audit: {missing:?}"));
            }
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap().unwrap()
}

fn reader(dir: &Path, name: &str) -> String {
    key(dir, name, &["reader:default"])
}

async fn read(server: &TestServer, key: &str, request: pb::ReadRequest) {
    let mut pages = server
        .events()
        .read(keyed(key, request))
        .await
        .unwrap()
        .into_inner();
    while pages.message().await.unwrap().is_some() {}
}

// A store can be copied without an export: by following each conversation, reading to a far end or
// by kind, looking up events, building requests, and searching. All of it must be in the audit. An
// agent that reads its own conversations again and again must not fill it.
#[tokio::test(flavor = "multi_thread")]
async fn mass_reading_by_any_method_is_in_the_audit() {
    let dir = tempfile::tempdir().unwrap();
    let server = guarded(dir.path()).await;
    let (ids, last) = store(&server).await;
    let ops = key(dir.path(), "ops", &["admin:*"]);
    let thief = |name: &str| reader(dir.path(), name);
    let whole = |id: &str| pb::ReadRequest {
        source: Some(conversation_source(id)),
        ..Default::default()
    };
    let agent = thief("agent");
    let (whole_key, far, kinds, parts) = (
        thief("whole"),
        thief("to-a-far-end"),
        thief("by-kinds"),
        thief("in-parts"),
    );
    let (follows, builds, lists) = (thief("follows"), thief("builds"), thief("lists"));
    for id in &ids {
        read(&server, &agent, whole(&ids[0])).await;
        read(&server, &whole_key, whole(id)).await;
        let to_far = pb::ReadRequest {
            to_revision: 1 << 60,
            ..whole(id)
        };
        read(&server, &far, to_far).await;
        let of_kinds = pb::ReadRequest {
            kinds: (20..=49).collect(),
            ..whole(id)
        };
        read(&server, &kinds, of_kinds).await;
        for revision in [1, 2] {
            let part = pb::ReadRequest {
                from_revision: revision,
                limit: 1,
                ..whole(id)
            };
            read(&server, &parts, part).await;
        }
        let source = pb::ConversationSource {
            conversation_id: id.clone(),
        };
        let follow = pb::SubscribeRequest {
            source: Some(pb::subscribe_request::Source::Conversation(source)),
            ..Default::default()
        };
        let mut followed = server
            .events()
            .subscribe(keyed(&follows, follow))
            .await
            .unwrap()
            .into_inner();
        followed.message().await.unwrap();
        let build = pb::BuildRequest {
            conversation_id: id.clone(),
            provider: pb::Provider::Anthropic.into(),
            model: "claude-sonnet-4-5".into(),
            ..Default::default()
        };
        server
            .contexts()
            .build(keyed(&builds, build))
            .await
            .unwrap();
    }
    let list = pb::ListConversationsRequest {
        page_size: 100,
        with_values: true,
        ..Default::default()
    };
    server
        .conversations()
        .list(keyed(&lists, list))
        .await
        .unwrap();
    let place = |id: &String| pb::EventName {
        by: Some(pb::event_name::By::Place(pb::EventPlace {
            conversation_id: id.clone(),
            revision: 2,
        })),
    };
    let get_many = pb::GetManyRequest {
        events: ids.iter().map(place).collect(),
        ..Default::default()
    };
    let looks_up = thief("looks-up");
    server
        .events()
        .get_many(keyed(&looks_up, get_many))
        .await
        .unwrap();
    let search = pb::SearchRequest {
        query: "quo[k]+a number".into(),
        regex: true,
        limit: 200,
        at_least: last,
        ..Default::default()
    };
    let searches = thief("searches");
    let found = server.search().search(keyed(&searches, search)).await;
    assert!(found.unwrap().into_inner().hits.len() >= ids.len());
    let pending = pb::PendingRequest::default();
    let waits = thief("asks-for-pending");
    server
        .tools()
        .pending(keyed(&waits, pending))
        .await
        .unwrap();

    let thieves = [
        "whole",
        "to-a-far-end",
        "by-kinds",
        "in-parts",
        "follows",
        "builds",
        "lists",
        "looks-up",
        "searches",
        "asks-for-pending",
    ];
    let deeds = once_noted(&server, &ops, &thieves).await;
    // One entry per hour is enough.
    for id in &ids {
        read(&server, &whole_key, whole(id)).await;
    }
    let late = thief("late");
    for id in &ids {
        read(&server, &late, whole(id)).await;
    }
    let deeds_then = once_noted(&server, &ops, &["late"]).await;
    assert_eq!(deeds_then.len(), deeds.len() + 1);
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for deed in &deeds_then {
        assert_eq!(deed["conversations"], MANY_READ.conversations);
        assert_eq!(deed["namespace"], "default");
        *counts
            .entry(deed["key"].as_str().unwrap().to_owned())
            .or_default() += 1;
    }
    assert!(counts.values().all(|count| *count == 1), "{counts:?}");
    assert!(!counts.contains_key("agent") && !counts.contains_key("ops"));
    server.stop().done().await;
}

// One conversation may be most of a store, so reading many bytes of it must be in the audit, too.
#[tokio::test(flavor = "multi_thread")]
async fn mass_reading_of_bytes_is_in_the_audit() {
    const LARGE: usize = 16 << 20;
    let dir = tempfile::tempdir().unwrap();
    let server = guarded(dir.path()).await;
    let id = server.conversation().await;
    let large = "x".repeat(LARGE);
    server
        .append(batch(&id, [message(Role::User, &large)]))
        .await;
    let ops = key(dir.path(), "ops", &["admin:*"]);
    let thief = reader(dir.path(), "thief");
    let request = pb::ReadRequest {
        source: Some(conversation_source(&id)),
        ..Default::default()
    };
    let times = usize::try_from(MANY_READ.bytes).unwrap() / LARGE;
    for _ in 0..=times {
        read(&server, &thief, request.clone()).await;
    }
    let deeds = once_noted(&server, &ops, &["thief"]).await;
    assert_eq!(deeds.len(), 1, "{deeds:?}");
    assert_eq!(deeds[0]["bytes"], MANY_READ.bytes);
    assert!(deeds[0]["conversations"].is_null());
    server.stop().done().await;
}
