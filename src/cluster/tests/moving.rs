//! Moving an embedded store into a cluster and back.

use std::{collections::BTreeMap, path::Path};

use futures::StreamExt;
use tokio::sync::Notify;
use treering_cluster::{
    ClusterNode, MoveError, MoveOutcome, NodeOptions, export_store, import_store, shard_of,
    verify_cluster,
};
use treering_domain::*;
use treering_engine::*;
use treering_log_postgres::{PostgresLog, create_schema};

use crate::{
    server::{Server, single_copy},
    stand::{LEASE, created, events_of, id_in, ns, said, until},
};

const SHARDS: u32 = 12;

/// What a reader sees of an event: everything but its log position.
type Seen = (String, u64, String, Vec<u8>, bool, String);

fn seen(found: &NamedEvent) -> Seen {
    let event = &found.event;
    (
        event.header.conversation.to_string(),
        event.header.revision.0,
        format!("{:?}", event.header),
        event.body.to_vec(),
        event.erased,
        format!("{:?}", event.chain_hash.get()),
    )
}

/// Returns all events of engines, by conversation and revision.
async fn all_of(engines: &[Engine]) -> Vec<Seen> {
    let mut all = Vec::new();
    for engine in engines {
        all.extend(events_of(engine).await.iter().map(seen));
    }
    all.sort();
    all
}

fn child(id: ConversationId, of: ConversationId, shares_history: bool) -> NewEvent {
    let body = ConversationCreated {
        parent: Some(ParentRef {
            conversation: of,
            branch: BranchId::MAIN,
            revision: Revision(2),
            call_id: String::new(),
        }),
        shares_history,
        labels: [("team".to_owned(), "red".to_owned())].into(),
        ..ConversationCreated::default()
    };
    NewEvent::new(id, EventBody::ConversationCreated(body))
}

/// What a test checks later.
struct Filled {
    root: ConversationId,
    fork: ConversationId,
    keyed: AppendCommand,
}

/// Fills an embedded store: a tree whose members have ids of many shards, a keyed batch over several
/// members, large and erased bodies.
async fn fill(dir: &Path) -> Filled {
    let engine = Engine::open(OpenOptions::new(dir)).await.unwrap();
    let append = |events| engine.append(AppendCommand::new(ns(), events));
    let (root, other) = (ConversationId::generate(), ConversationId::generate());
    let large = "large ".repeat(40_000);
    append(vec![
        created(root),
        said(root, "needle one"),
        said(root, &large),
    ])
    .await
    .unwrap();
    append(vec![created(other), said(other, &large)])
        .await
        .unwrap();
    let mut fork = root;
    for number in 1..5 {
        let shard = (shard_of(root, SHARDS).0 + number) % SHARDS;
        let id = id_in(ShardId(shard), SHARDS);
        append(vec![
            child(id, root, true),
            said(id, "in the fork").with_key("k"),
        ])
        .await
        .unwrap();
        fork = id;
    }
    let keyed = AppendCommand {
        idempotency_key: Some("once".into()),
        ..AppendCommand::new(ns(), vec![said(fork, "both"), said(root, "both")])
    };
    engine.append(keyed.clone()).await.unwrap();
    for number in 0..40 {
        let id = ConversationId::generate();
        append(vec![created(id), said(id, &format!("{number} {large}"))])
            .await
            .unwrap();
    }
    for number in 0..300 {
        let id = ConversationId::generate();
        append(vec![created(id), said(id, &format!("text {number}"))])
            .await
            .unwrap();
    }
    let erase = EraseCommand {
        namespace: ns(),
        target: EraseTarget::Revisions {
            conversation: root,
            revisions: vec![3..=3],
        },
        keep_derived: false,
        dry_run: false,
        reason: "a test".into(),
        actor: "admin".into(),
    };
    let mut erasing = engine.erase(erase);
    while let Some(item) = erasing.next().await {
        item.unwrap();
    }
    engine.close().await;
    Filled { root, fork, keyed }
}

async fn cluster(server: &Server, name: &str) -> String {
    server.sql(&format!("create database {name}")).await;
    let url = server.url(name);
    create_schema(&url, SHARDS).await.unwrap();
    url
}

async fn moved(dir: &Path, url: &str) -> Result<MoveOutcome, MoveError> {
    import_store(dir, url, |_| {}).await
}

/// Returns the files of a folder with their contents.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => {
                    let bytes = std::fs::read(&path).unwrap();
                    found.insert(path.display().to_string(), bytes);
                }
            }
        }
    }
    found
}

async fn start(url: &str, dir: &Path) -> ClusterNode {
    let options = NodeOptions {
        lease: LEASE,
        ..NodeOptions::new("one", "one:5417", dir.join("node"))
    };
    let node = ClusterNode::start(url, single_copy(), options)
        .await
        .unwrap();
    until("all shards are served", || {
        node.served().len() == SHARDS as usize
    })
    .await;
    node
}

fn engines(node: &ClusterNode) -> Vec<Engine> {
    let shards = (0..SHARDS).map(ShardId);
    shards
        .map(|shard| node.shard(shard).unwrap().engine().clone())
        .collect()
}

// A store outgrows its machine, moves into a cluster, and moves back. Every event must be the same,
// and every conversation must be found and take appends, also those whose ids belong to another
// shard than their tree.
#[tokio::test(flavor = "multi_thread")]
async fn store_moves_into_a_cluster_and_back() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    let url = cluster(&server, "cluster").await;
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let filled = fill(&store).await;
    let before = files(&store);
    let done = moved(&store, &url).await.unwrap();
    assert!(files(&store) == before, "the store was changed");
    assert!(done.moved > 0 && done.conversations > 300, "{done:?}");

    let embedded = Engine::open(OpenOptions::new(&store)).await.unwrap();
    let wanted = all_of(std::slice::from_ref(&embedded)).await;
    assert!(wanted.iter().any(|event| event.4), "nothing is erased");
    let node = start(&url, dir.path()).await;
    assert_eq!(all_of(&engines(&node)).await, wanted);

    let shard = node.shard_of(filled.fork);
    assert_eq!(shard, node.shard_of(filled.root));
    let engine = node.shard(shard).unwrap().engine().clone();
    let again = engine.append(filled.keyed.clone()).await.unwrap();
    let first = embedded.append(filled.keyed).await.unwrap();
    assert!(again.repeated_key && first.repeated_key);
    let ids =
        |done: &AppendOutcome| -> Vec<_> { done.events.iter().map(|one| one.event).collect() };
    assert_eq!(ids(&again), ids(&first));
    // A fork takes appends, also of clients that create what is missing, and can be forked.
    let more = AppendCommand {
        create_if_missing: Some(Box::new(created(filled.fork))),
        ..AppendCommand::new(ns(), vec![said(filled.fork, "more")])
    };
    engine.append(more).await.unwrap();
    let new = engine.place(ConversationId::generate());
    let forked = vec![child(new, filled.fork, true)];
    engine
        .append(AppendCommand::new(ns(), forked))
        .await
        .unwrap();

    let shown = all_of(&engines(&node)).await;
    let verified = verify_cluster(&url, |_| {}).await.unwrap();
    assert!(verified.damaged.is_empty(), "{verified:?}");
    assert_eq!(verified.events, shown.len() as u64);
    let back = dir.path().join("back");
    let refused = export_store(&url, &back, |_| {}).await.unwrap_err();
    assert!(refused.to_string().contains("stop all nodes"), "{refused}");
    node.close().await;
    export_store(&url, &back, |_| {}).await.unwrap();
    let back = Engine::open(OpenOptions::new(&back)).await.unwrap();
    assert_eq!(all_of(std::slice::from_ref(&back)).await, shown);
    back.close().await;
    embedded.close().await;
}

// The import is interrupted after any append. The same command must continue it, and until then no
// node may start and no other store may be moved in.
#[tokio::test(flavor = "multi_thread")]
async fn interrupted_import_is_continued() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    let url = cluster(&server, "cluster").await;
    let dir = tempfile::tempdir().unwrap();
    let (store, other) = (dir.path().join("store"), dir.path().join("other"));
    fill(&store).await;
    fill(&other).await;
    let stop = Notify::new();
    tokio::select! {
        done = import_store(&store, &url, |step| {
            if (step.what, step.done) == ("copy", 512) {
                stop.notify_one();
            }
        }) => panic!("it ended: {:?}", done.map_err(|error| error.to_string())),
        () = stop.notified() => {}
    }
    let options = NodeOptions::new("one", "one:5417", dir.path().join("node"));
    let refused = ClusterNode::start(&url, single_copy(), options).await;
    let refused = refused.err().unwrap().to_string();
    assert!(
        refused.contains("run `treering cluster import` again"),
        "{refused}"
    );
    let refused = moved(&other, &url).await.unwrap_err().to_string();
    assert!(refused.contains("nothing was changed"), "{refused}");
    let back = dir.path().join("back");
    assert!(export_store(&url, &back, |_| {}).await.is_err());
    let done = moved(&store, &url).await.unwrap();
    let (before, all) = (done.continued_after, done.events);
    assert!(before > 0 && before < all, "{done:?}");
    let node = start(&url, dir.path()).await;
    let embedded = Engine::open(OpenOptions::new(&store)).await.unwrap();
    let wanted = all_of(std::slice::from_ref(&embedded)).await;
    assert_eq!(all_of(&engines(&node)).await, wanted);
    node.close().await;
    embedded.close().await;

    // A store that is in use, and a cluster that has events, are refused.
    let refused = moved(&other, &url).await.unwrap_err().to_string();
    assert!(refused.contains("the cluster has events"), "{refused}");
    let url = cluster(&server, "empty").await;
    let used = Engine::open(OpenOptions::new(&other)).await.unwrap();
    let refused = moved(&other, &url).await.unwrap_err().to_string();
    assert!(refused.contains("locked by"), "{refused}");
    used.close().await;
    let log = PostgresLog::open(&url, single_copy()).await.unwrap();
    assert_eq!(log.importing().await.unwrap(), None);
}

// A verification without a node must find what a failing disk or an attacker changed.
#[tokio::test(flavor = "multi_thread")]
async fn verification_finds_changed_rows() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    let url = cluster(&server, "cluster").await;
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    fill(&store).await;
    moved(&store, &url).await.unwrap();
    let sound = verify_cluster(&url, |_| {}).await.unwrap();
    assert!(
        sound.damaged.is_empty() && sound.shards == SHARDS,
        "{sound:?}"
    );
    let change = "update treering_blob set bytes = bytes || 'x' where shard = \
                  (select min(shard) from treering_blob)";
    server.sql_in("cluster", change).await;
    let found = verify_cluster(&url, |_| {}).await.unwrap();
    assert_eq!(found.damaged.len(), 1, "{found:?}");
    assert!(found.events < sound.events);
}
