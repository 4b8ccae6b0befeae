//! Calls that concern the log of all shards: following, reading and verifying it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::StreamExt;
use tonic::{Request, Streaming};
use tonic_types::StatusExt;
use treering_domain::ShardId;
use treering_proto::pb::{
    self, admin_client::AdminClient, read_request, subscribe_request, subscribe_response::Item,
    verify_response,
};

use crate::{
    memory::{MemoryCluster, ServingNode, settled},
    routing::{append, created, said},
    stand::id_in,
};

const SHARDS: u32 = 12;

/// Offsets of the events of each shard, in the order of their arrival.
type Arrived = BTreeMap<u32, Vec<u64>>;

async fn follow(node: &ServingNode, cursor: Bytes) -> Streaming<pb::SubscribeResponse> {
    let request = pb::SubscribeRequest {
        source: Some(subscribe_request::Source::Log(pb::LogSource {})),
        after_cursor: cursor,
        ..Default::default()
    };
    node.events().subscribe(request).await.unwrap().into_inner()
}

/// Reads items until this many events arrived in all. Returns the last cursor.
async fn take(
    items: &mut Streaming<pb::SubscribeResponse>,
    arrived: &mut Arrived,
    events: usize,
) -> Bytes {
    let mut cursor = Bytes::new();
    while arrived.values().map(Vec::len).sum::<usize>() < events {
        let next = tokio::time::timeout(Duration::from_secs(60), items.next()).await;
        let item = next.expect("an event is missing").unwrap().unwrap();
        if !item.cursor.is_empty() {
            cursor = item.cursor;
        }
        if let Some(Item::Event(event)) = item.item {
            let place = event.position.unwrap();
            arrived.entry(place.shard).or_default().push(place.offset);
        }
    }
    cursor
}

fn assert_whole(arrived: &Arrived) {
    assert_eq!(arrived.len(), SHARDS as usize);
    for (shard, offsets) in arrived {
        let wanted: Vec<u64> = (1..=offsets.len() as u64).collect();
        assert_eq!(*offsets, wanted, "shard {shard}");
    }
}

// A program that mirrors all events into another system follows the log through any node. It must
// get each event once, in the order of its shard, also while a node hands its shards over, and when
// it goes on later through another node.
#[tokio::test(flavor = "multi_thread")]
async fn log_is_followed_through_a_drain_and_another_node() {
    let (cluster, dir) = (MemoryCluster::new(SHARDS), tempfile::tempdir().unwrap());
    let one = ServingNode::start(&cluster, "one", dir.path()).await;
    let two = Arc::new(ServingNode::start(&cluster, "two", dir.path()).await);
    settled(&[&one, &two]).await;
    let ids: Vec<_> = (0..SHARDS)
        .map(|shard| id_in(ShardId(shard), SHARDS).to_string())
        .collect();
    let write = |texts: usize| {
        let (ids, node) = (ids.clone(), Arc::clone(&two));
        async move {
            for number in 0..texts {
                for id in &ids {
                    let text = said(&format!("number {number}"));
                    node.events().append(append(id, vec![text])).await.unwrap();
                }
            }
        }
    };
    for id in &ids {
        let first = append(id, vec![created(), said("begin")]);
        two.events().append(first).await.unwrap();
    }
    let (shards, mut arrived) = (SHARDS as usize, Arrived::new());
    let mut items = follow(&two, Bytes::new()).await;
    take(&mut items, &mut arrived, 2 * shards).await;

    let writing = tokio::spawn(write(20));
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(one.node.drain(Duration::from_secs(60)).await);
    writing.await.unwrap();
    let cursor = take(&mut items, &mut arrived, 22 * shards).await;
    assert_whole(&arrived);
    drop(items);

    write(5).await;
    let mut items = follow(&one, cursor).await;
    take(&mut items, &mut arrived, 27 * shards).await;
    assert_whole(&arrived);

    let other = Request::new(pb::SubscribeRequest {
        source: Some(subscribe_request::Source::Log(pb::LogSource {})),
        after_offset: Some(7),
        ..Default::default()
    });
    let refused = two.events().subscribe(other).await.unwrap_err();
    let info = refused.get_details_error_info().unwrap();
    assert_eq!(info.reason, "MALFORMED", "{refused:?}");
}

// An export of a namespace, and the check after an incident, must cover every shard, although the
// node that is asked owns only some of them.
#[tokio::test(flavor = "multi_thread")]
async fn log_is_read_and_verified_as_a_whole() {
    let (cluster, dir) = (MemoryCluster::new(SHARDS), tempfile::tempdir().unwrap());
    let one = ServingNode::start(&cluster, "one", dir.path()).await;
    let two = ServingNode::start(&cluster, "two", dir.path()).await;
    settled(&[&one, &two]).await;
    let mut appended = Vec::new();
    for number in 0..30_u32 {
        let id = id_in(ShardId(number * 5 % SHARDS), SHARDS).to_string();
        let events = append(&id, vec![created(), said(&format!("number {number}"))]);
        let done = one.events().append(events).await.unwrap().into_inner();
        appended.extend(done.events.into_iter().map(|event| event.event_id));
    }
    let read = async |node: &ServingNode, backward, limit| {
        let request = pb::ReadRequest {
            source: Some(read_request::Source::Log(pb::LogSource {})),
            backward,
            limit,
            ..Default::default()
        };
        let mut pages = node.events().read(request).await.unwrap().into_inner();
        let mut ids = Vec::new();
        while let Some(page) = pages.message().await.unwrap() {
            ids.extend(page.events.into_iter().map(|event| event.id));
        }
        ids
    };
    for node in [&one, &two] {
        // The two events of an append have one time.
        assert_eq!(read(node, false, 0).await, appended);
        let mut last = read(node, true, 10).await;
        last.sort();
        let mut wanted = appended[50..].to_vec();
        wanted.sort();
        assert_eq!(last, wanted);

        let mut admin = AdminClient::new(node.channel());
        let request = pb::VerifyRequest { deep: true };
        let items = admin.verify(request).await.unwrap().into_inner();
        let items: Vec<_> = items
            .map(|item| item.unwrap().item.unwrap())
            .collect()
            .await;
        let Some(verify_response::Item::Outcome(outcome)) = items.last() else {
            panic!("{items:?}");
        };
        assert!(outcome.sound, "{items:?}");
        assert_eq!((outcome.events, outcome.conversations), (60, 30));

        let request = pb::RebuildRequest {
            views: true,
            index: true,
        };
        let items = admin.rebuild(request).await.unwrap().into_inner();
        let items: Vec<_> = items
            .map(|item| item.unwrap().item.unwrap())
            .collect()
            .await;
        let Some(pb::rebuild_response::Item::Outcome(outcome)) = items.last() else {
            panic!("{items:?}");
        };
        assert_eq!((outcome.events, outcome.damaged), (60, 0), "{items:?}");
    }
}
