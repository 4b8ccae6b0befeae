//! API keys that all nodes share.

use std::{
    path::Path,
    sync::{Arc, Barrier, atomic::Ordering},
    time::{Duration, Instant},
};

use tonic::{Code, Request, Status, metadata::MetadataValue};
use treering_access::{
    Grant, GrantScope, IssuedKey, KeyFileError, KeyLimits, KeyRefusal, KeyRole, KeyStore, NewKey,
    is_copy, revoke,
};
use treering_cluster::{Ownership, SharedKeysError, change_keys, read_keys};
use treering_log_postgres::{PostgresLog, PostgresLogOptions, create_schema};
use treering_proto::pb;

use crate::{
    memory::{MemoryCluster, ServingNode, settled},
    server::{Server, open, single_copy},
    stand::{start_with_keys, until},
};

const SHARDS: u32 = 6;

fn new_key(name: &str) -> NewKey {
    NewKey {
        name: name.into(),
        roles: vec![Grant {
            role: KeyRole::Admin,
            namespace: GrantScope::Every,
        }],
        expires_in: None,
        limits: KeyLimits::default(),
        by: "ada".into(),
    }
}

async fn create(table: &dyn Ownership, name: &str) -> IssuedKey {
    change_keys(table, |keys| keys.create(new_key(name)))
        .await
        .unwrap()
}

/// Lists through a node with a key.
async fn list(node: &ServingNode, key: Option<&IssuedKey>) -> Result<(), Status> {
    let mut request = Request::new(pb::ListConversationsRequest::default());
    if let Some(key) = key {
        let value = MetadataValue::try_from(format!("Bearer {}", key.token.reveal())).unwrap();
        request.metadata_mut().insert("authorization", value);
    }
    node.conversations().list(request).await.map(drop)
}

/// Waits until a node gives this answer to a key.
async fn answers(node: &ServingNode, key: Option<&IssuedKey>, wanted: Code) {
    let give_up = Instant::now() + Duration::from_secs(30);
    loop {
        let answer = list(node, key).await;
        let code = answer.as_ref().map_or_else(Status::code, |()| Code::Ok);
        if code == wanted {
            return;
        }
        assert!(Instant::now() < give_up, "still: {answer:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

// A key was copied to the folder of each node, and a node that was forgotten still took a revoked
// one. Now any node takes a key that was made anywhere, and none takes it after it was revoked
// anywhere; a node that starts later too.
#[tokio::test(flavor = "multi_thread")]
async fn keys_are_those_of_all_nodes() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = MemoryCluster::new(SHARDS);
    let one = ServingNode::start_with_keys(&cluster, "one", dir.path()).await;
    let two = ServingNode::start_with_keys(&cluster, "two", dir.path()).await;
    settled(&[&one, &two]).await;
    list(&one, None).await.unwrap();
    let (ops, agent) = (
        create(&*one.owners, "ops").await,
        create(&*two.owners, "agent").await,
    );
    for node in [&one, &two] {
        answers(node, None, Code::Unauthenticated).await;
        answers(node, Some(&ops), Code::Ok).await;
        answers(node, Some(&agent), Code::Ok).await;
    }
    let three = ServingNode::start_with_keys(&cluster, "three", dir.path()).await;
    settled(&[&one, &two, &three]).await;
    list(&three, Some(&agent)).await.unwrap();
    let refused = list(&three, None).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
    change_keys(&*three.owners, |keys| keys.revoke("agent", "ada"))
        .await
        .unwrap();
    for node in [&one, &two, &three] {
        answers(node, Some(&agent), Code::Unauthenticated).await;
        list(node, Some(&ops)).await.unwrap();
    }
    // A change in the folder of one node would be lost, and would not reach the others.
    let folder = dir.path().join("one");
    let refused = revoke(&folder, "ops", "ada").unwrap_err();
    assert!(matches!(refused, KeyFileError::IsCopy(_)), "{refused}");
    // Without the table, a node keeps its keys. Another node may have refused the key for it.
    let copy = || KeyStore::open(&dir.path().join("three")).unwrap();
    until("the third node has the change", || {
        copy().holder(agent.token.reveal()).is_err()
    })
    .await;
    three.owners.dead.store(true, Ordering::Release);
    change_keys(&*one.owners, |keys| keys.revoke("ops", "ada"))
        .await
        .unwrap();
    answers(&one, Some(&ops), Code::Unauthenticated).await;
    copy().holder(ops.token.reveal()).unwrap();
}

// Operators change keys at the same time: all have read the keys before the first one replaces them.
// Each change must be kept, and the second creation of a name must be refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 10)]
async fn concurrent_changes_are_all_kept() {
    const OPERATORS: usize = 8;
    let dir = tempfile::tempdir().unwrap();
    let cluster = MemoryCluster::new(SHARDS);
    let node = ServingNode::start_with_keys(&cluster, "one", dir.path()).await;
    let all_have_read = Arc::new(Barrier::new(OPERATORS));
    let made = (0..OPERATORS).map(|number| {
        let (table, all_have_read) = (Arc::clone(&node.owners), Arc::clone(&all_have_read));
        tokio::spawn(async move {
            let mut is_first = true;
            let made = change_keys(&*table, |keys| {
                if std::mem::take(&mut is_first) {
                    all_have_read.wait();
                }
                keys.create(new_key(&format!("agent-{number}")))
            });
            made.await.unwrap()
        })
    });
    let made = futures::future::try_join_all(made).await.unwrap();
    let keys = read_keys(&*node.owners).await.unwrap().keys;
    for key in &made {
        assert!(keys.contains(&key.record));
    }
    let again = change_keys(&*node.owners, |keys| keys.create(new_key("agent-3"))).await;
    let again = again.unwrap_err();
    assert!(
        matches!(again, SharedKeysError::Keys(KeyFileError::NameTaken(_))),
        "{again}"
    );
}

/// Returns the keys that a node's folder has, in force.
fn in_force(dir: &Path, name: &str) -> Arc<KeyStore> {
    KeyStore::open(&dir.join(name)).unwrap()
}

// Each node of an earlier version had a file of its own. The keys of the first node that starts become
// the cluster's: no node may be without keys for a moment, and another node's file is kept aside.
#[tokio::test(flavor = "multi_thread")]
async fn keys_of_the_first_folder_become_the_clusters() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    server.sql("create database cluster").await;
    let url = server.url("cluster");
    create_schema(&url, SHARDS).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let make = |name: &str| {
        treering_access::create(&dir.path().join(name), new_key(&format!("of-{name}"))).unwrap()
    };
    let (first, second) = (make("one"), make("two"));
    let mut stores = Vec::new();
    let mut nodes = Vec::new();
    for name in ["one", "two", "three"] {
        let store = in_force(dir.path(), name);
        let keys = Some(Arc::clone(&store));
        nodes.push(start_with_keys(&url, single_copy(), name, dir.path(), keys).await);
        store.holder(first.token.reveal()).unwrap();
        let unknown = store.holder(second.token.reveal()).unwrap_err();
        assert_eq!(unknown, KeyRefusal::Unknown);
        assert!(is_copy(&dir.path().join(name)));
        stores.push(store);
    }
    assert!(dir.path().join("two/keys.json.before").exists());
    assert!(!dir.path().join("one/keys.json.before").exists());

    // The third node loses the database. It takes the change over when it is back.
    nodes[2].owners.cut.store(true, Ordering::Release);
    let log: PostgresLog = open(
        &url,
        PostgresLogOptions {
            claimed_only: true,
            ..single_copy()
        },
    )
    .await;
    change_keys(&log, |keys| keys.revoke("of-one", "ada"))
        .await
        .unwrap();
    let is_refused = |store: &Arc<KeyStore>| {
        store.reload_if_changed();
        store.holder(first.token.reveal()).is_err()
    };
    until("two nodes refuse the key", || {
        stores[..2].iter().all(is_refused)
    })
    .await;
    assert!(!is_refused(&stores[2]));
    nodes[2].owners.cut.store(false, Ordering::Release);
    until("the third refuses it", || is_refused(&stores[2])).await;
    // What is in the folder is in force when the node starts again.
    in_force(dir.path(), "three")
        .holder(first.token.reveal())
        .unwrap_err();
    for node in nodes {
        node.node.close().await;
    }
}
