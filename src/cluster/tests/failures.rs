use std::{
    collections::BTreeMap,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use treering_cluster::NotServed;
use treering_domain::{AppendCommand, EventId, ShardId};
use treering_engine::AppendError;
use treering_log_postgres::create_schema;

use crate::{
    server::{Server, quick},
    stand::{LEASE, created, events_of, id_in, ns, said, settled, start, until},
};

const SHARDS: u32 = 4;

// A node is cut off, or its process is stopped for a while, and does not know that others took its
// shards. It must answer no read, its late append must be refused, and the new owner must have
// every acknowledged event once.
#[tokio::test(flavor = "multi_thread")]
async fn node_without_heartbeats_loses_its_shards() {
    let Some((server, _standby)) = Server::pair().await else {
        return;
    };
    server.sql("create database cluster").await;
    let url = server.url("cluster");
    create_schema(&url, SHARDS).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let one = start(&url, quick(), "one", dir.path()).await;
    settled(&[&one]).await;
    let two = start(&url, quick(), "two", dir.path()).await;
    until("both serve", || !two.node.served().is_empty()).await;
    let placed = settled(&[&one, &two]).await;
    let of_one: Vec<ShardId> = one.node.served();
    assert!(!of_one.is_empty(), "{placed:?}");
    let mut acknowledged = BTreeMap::<ShardId, Vec<EventId>>::new();
    let mut guards = Vec::new();
    for shard in &of_one {
        let guard = one.node.shard(*shard).unwrap();
        let id = id_in(*shard, SHARDS);
        let batch = vec![created(id), said(id, "kept")];
        let done = guard
            .engine()
            .append(AppendCommand::new(ns(), batch))
            .await
            .unwrap();
        acknowledged
            .entry(*shard)
            .or_default()
            .extend(done.events.iter().map(|event| event.event));
        guard.check().unwrap();
        guards.push((guard, id));
    }

    one.owners.cut.store(true, Ordering::Release);
    let cut = Instant::now();
    until("the lease ends", || {
        // Both are read before this node is asked, so a pause of the test changes no outcome.
        let since_cut = cut.elapsed();
        let taken = two.node.served();
        let ended = one.node.served().is_empty();
        assert!(ended || since_cut < LEASE, "{since_cut:?}");
        // As long as this node answers, nobody else may.
        assert!(ended || taken.iter().all(|shard| !of_one.contains(shard)));
        ended
    })
    .await;
    until("the other node serves all", || {
        two.node.served().len() == SHARDS as usize
    })
    .await;
    for (guard, id) in &guards {
        assert_eq!(guard.check(), Err(NotServed::NoLease));
        let late = guard
            .engine()
            .append(AppendCommand::new(ns(), vec![said(*id, "late")]))
            .await;
        let refused = late.unwrap_err();
        assert!(
            matches!(
                refused,
                AppendError::Stopped { .. } | AppendError::UnknownOutcome { .. }
            ),
            "{refused:?}"
        );
    }
    for (shard, acknowledged) in &acknowledged {
        let guard = two.node.shard(*shard).unwrap();
        let stored = events_of(guard.engine()).await;
        let stored: Vec<_> = stored.iter().map(|found| found.event.header.id).collect();
        assert_eq!(stored, *acknowledged);
    }

    // Once it can reach the database again, it must not believe that it still owns them.
    one.owners.cut.store(false, Ordering::Release);
    for _ in 0..200 {
        for (guard, _) in &guards {
            assert!(guard.check().is_err());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // It is still the node that should own them, so it gets them back.
    until("both serve", || !one.node.served().is_empty()).await;
    assert_eq!(settled(&[&one, &two]).await, placed);
    one.node.close().await;
    two.node.close().await;
}

// The standby is away for a moment, so nobody knows what became of an append. Once it is back, the
// event must be there once, however often the client repeated it with its key.
#[tokio::test(flavor = "multi_thread")]
async fn unknown_outcome_neither_loses_nor_doubles() {
    let Some((server, mut standby)) = Server::pair().await else {
        return;
    };
    server.sql("create database cluster").await;
    let url = server.url("cluster");
    create_schema(&url, 1).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let one = start(&url, quick(), "one", dir.path()).await;
    settled(&[&one]).await;
    let id = id_in(ShardId(0), 1);
    let engine = one.node.shard(ShardId(0)).unwrap().engine().clone();
    engine
        .append(AppendCommand::new(ns(), vec![created(id)]))
        .await
        .unwrap();
    let keyed = || AppendCommand {
        idempotency_key: Some("once".into()),
        ..AppendCommand::new(ns(), vec![said(id, "once")])
    };
    standby.stop();
    let unknown = engine.append(keyed()).await.unwrap_err();
    assert!(
        matches!(unknown, AppendError::UnknownOutcome { .. }),
        "{unknown:?}"
    );
    until("the lease ends", || one.node.served().is_empty()).await;
    standby.start().await;
    let give_up = Instant::now() + Duration::from_secs(60);
    loop {
        // The engine may have been closed and opened again meanwhile.
        let appended = match one.node.shard(ShardId(0)) {
            Ok(guard) => guard
                .engine()
                .append(keyed())
                .await
                .map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match appended {
            Ok(_) => break,
            Err(error) => assert!(Instant::now() < give_up, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let guard = one.node.shard(ShardId(0)).unwrap();
    assert_eq!(events_of(guard.engine()).await.len(), 2);
    one.node.close().await;
}
