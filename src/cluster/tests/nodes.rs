use std::{sync::Arc, time::Duration};

use treering_cluster::NotServed;
use treering_domain::{AppendCommand, ShardId};
use treering_log_postgres::create_schema;
use treering_server::{ServerMeasures, ShardDirectory, metrics::Exporter};

use crate::{
    server::{Server, single_copy},
    stand::{LEASE, TestNode, created, events_of, id_in, ns, said, settled, start, until},
};

const SHARDS: u32 = 12;

async fn cluster(server: &Server) -> String {
    server.sql("create database cluster").await;
    let url = server.url("cluster");
    create_schema(&url, SHARDS).await.unwrap();
    url
}

// A cluster grows while it is used: every shard must have exactly one owner all the time, and only
// those that the new node gets may move.
#[tokio::test(flavor = "multi_thread")]
async fn joining_node_takes_only_its_share() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    let url = cluster(&server).await;
    let dir = tempfile::tempdir().unwrap();
    let one = start(&url, single_copy(), "one", dir.path()).await;
    let two = start(&url, single_copy(), "two", dir.path()).await;
    until("both serve", || !two.node.served().is_empty()).await;
    let before = settled(&[&one, &two]).await;
    let three = start(&url, single_copy(), "three", dir.path()).await;
    until("the new node serves", || !three.node.served().is_empty()).await;
    let after = settled(&[&one, &two, &three]).await;
    let moved: Vec<_> = after
        .iter()
        .filter(|(shard, name)| before[shard] != **name)
        .collect();
    assert!(
        !moved.is_empty() && moved.len() < SHARDS as usize * 2 / 3,
        "{moved:?}"
    );
    assert!(moved.iter().all(|(_, name)| *name == "three"), "{moved:?}");
    let shard = *moved[0].0;
    let owner = one.node.owner(shard).unwrap();
    assert_eq!((&*owner.name, &*owner.address), ("three", "three:5417"));
    assert_eq!(
        one.node.shard(shard).err(),
        Some(NotServed::Elsewhere(owner))
    );
    assert!(three.node.shard(shard).is_ok());
    assert_eq!(
        one.node.shard(ShardId(SHARDS)).err(),
        Some(NotServed::Unknown)
    );
    for own in [one, two, three] {
        own.node.close().await;
    }
}

// A node is stopped for an upgrade while clients append: what was acknowledged must be on the new
// owners, once and in order.
#[tokio::test(flavor = "multi_thread")]
async fn drained_node_hands_over_what_it_acknowledged() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    let url = cluster(&server).await;
    let dir = tempfile::tempdir().unwrap();
    let one = start(&url, single_copy(), "one", dir.path()).await;
    settled(&[&one]).await;
    let mut writers = Vec::new();
    for shard in (0..SHARDS).map(ShardId) {
        let engine = one.node.shard(shard).unwrap().engine().clone();
        let id = id_in(shard, SHARDS);
        writers.push(tokio::spawn(async move {
            let mut acknowledged = Vec::new();
            let mut batch = vec![created(id)];
            while let Ok(done) = engine.append(AppendCommand::new(ns(), batch)).await {
                acknowledged.extend(done.events.iter().map(|event| event.event));
                batch = vec![said(id, "and on")];
            }
            acknowledged
        }));
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let two = start(&url, single_copy(), "two", dir.path()).await;
    assert!(one.node.drain(Duration::from_secs(60)).await);
    assert!(one.node.served().is_empty());
    settled(&[&two]).await;
    for (shard, writer) in (0..SHARDS).map(ShardId).zip(writers) {
        let acknowledged = writer.await.unwrap();
        assert!(acknowledged.len() > 1);
        let guard = two.node.shard(shard).unwrap();
        let stored = events_of(guard.engine()).await;
        let stored: Vec<_> = stored.iter().map(|found| found.event.header.id).collect();
        assert_eq!(stored, acknowledged, "shard {}", shard.0);
        guard.check().unwrap();
    }
    one.node.close().await;
    two.node.close().await;
}

// An operator drains a node through the database, without access to its machine. It must stay
// drained while it runs on, and take its shards again after a restart.
#[tokio::test(flavor = "multi_thread")]
async fn node_is_drained_by_its_name() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    let url = cluster(&server).await;
    let dir = tempfile::tempdir().unwrap();
    let one = start(&url, single_copy(), "one", dir.path()).await;
    let two = start(&url, single_copy(), "two", dir.path()).await;
    until("both serve", || !two.node.served().is_empty()).await;
    let before = settled(&[&one, &two]).await;
    two.owners.log.ask_to_drain("one").await.unwrap();
    until("the other one has all", || {
        two.node.served().len() == SHARDS as usize
    })
    .await;
    tokio::time::sleep(LEASE).await;
    assert!(one.node.served().is_empty());
    let owner = one.node.owner(ShardId(0)).unwrap();
    assert_eq!(owner.name, "two");
    one.node.close().await;
    let one = start(&url, single_copy(), "one", dir.path()).await;
    until("both serve", || !one.node.served().is_empty()).await;
    assert_eq!(settled(&[&one, &two]).await, before);
    one.node.close().await;
    two.node.close().await;
}

// An operator sees on a node's metrics which shards it owns, and that an owner changed.
#[tokio::test(flavor = "multi_thread")]
async fn metrics_show_the_shards_of_a_node() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    let url = cluster(&server).await;
    let dir = tempfile::tempdir().unwrap();
    let scrape = async |node: &TestNode| {
        let measures = Arc::new(ServerMeasures::new(None).unwrap());
        let exporter = Exporter::of_node(Arc::new(node.node.clone()), measures);
        exporter.text().await.unwrap()
    };
    let one = start(&url, single_copy(), "one", dir.path()).await;
    settled(&[&one]).await;
    let id = id_in(ShardId(3), SHARDS);
    let engine = one.node.shard(ShardId(3)).unwrap().engine().clone();
    let batch = vec![created(id), said(id, "hello")];
    engine
        .append(AppendCommand::new(ns(), batch))
        .await
        .unwrap();
    let text = scrape(&one).await;
    for line in [
        "treering_shard_role{shard=\"3\",role=\"owner\"} 1\n",
        "treering_shard_head_position{shard=\"3\"} 2\n",
        "treering_shard_head_position{shard=\"4\"} 0\n",
        "treering_shard_events_appended_total{shard=\"3\"} 2\n",
        "treering_shard_index_lag_events{shard=\"4\"} 0\n",
        "treering_ready 1\n",
    ] {
        assert!(text.contains(line), "no {line:?} in {text}");
    }
    let epoch = |text: &str| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("treering_shard_epoch{shard=\"3\"} "));
        line.unwrap().parse::<u64>().unwrap()
    };
    let two = start(&url, single_copy(), "two", dir.path()).await;
    until("both serve", || !two.node.served().is_empty()).await;
    settled(&[&one, &two]).await;
    until("each follows the other", || {
        let followed = |node: &TestNode| {
            let roles = ShardDirectory::roles(&node.node);
            let followers = roles.iter().filter(|role| role.role == "follower");
            followers.filter(|own| own.follower_lag == Some(0)).count()
        };
        followed(&one) + followed(&two) == SHARDS as usize
    })
    .await;
    let followed = two.node.served().first().map(|shard| shard.0).unwrap();
    let lag = format!("treering_shard_follower_lag_events{{shard=\"{followed}\"}} 0\n");
    assert!(scrape(&one).await.contains(&lag));
    assert!(one.node.drain(Duration::from_secs(60)).await);
    settled(&[&two]).await;
    assert!(epoch(&scrape(&two).await) > epoch(&text));
    assert!(!scrape(&one).await.contains("treering_shard_role{"));
    one.node.close().await;
    two.node.close().await;
}

// Two processes are started with one name, by a copied configuration: the second must not take the
// shards of the first.
#[tokio::test(flavor = "multi_thread")]
async fn name_of_a_live_node_is_refused() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    let url = cluster(&server).await;
    let dir = tempfile::tempdir().unwrap();
    let one = start(&url, single_copy(), "one", dir.path()).await;
    settled(&[&one]).await;
    let options = treering_cluster::NodeOptions {
        lease: Duration::from_secs(1),
        ..treering_cluster::NodeOptions::new("one", "elsewhere:1", dir.path().join("copy"))
    };
    let refused = treering_cluster::ClusterNode::start(&url, single_copy(), options).await;
    let refused = refused.err().unwrap();
    assert!(
        matches!(refused, treering_cluster::StartError::NameInUse { .. }),
        "{refused}"
    );
    settled(&[&one]).await;
    one.node.close().await;
}
