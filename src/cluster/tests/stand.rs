//! What the tests share: events, reads, and nodes whose table of owners can be disturbed.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use futures::TryStreamExt;
use treering_access::KeyStore;
use treering_cluster::{
    ClusterNode, ClusterView, NodeOptions, Ownership, OwnershipError, SharedKeys,
};
use treering_domain::*;
use treering_engine::*;
use treering_log_postgres::{PostgresLog, PostgresLogOptions};
use uuid::Uuid;

pub fn ns() -> Namespace {
    Namespace::default()
}

pub fn said(id: ConversationId, text: &str) -> NewEvent {
    let body = MessageAppended::text(Role::User, text);
    NewEvent::new(id, EventBody::MessageAppended(body))
}

pub fn created(id: ConversationId) -> NewEvent {
    let body = ConversationCreated::default();
    NewEvent::new(id, EventBody::ConversationCreated(body))
}

/// Returns an id of a shard.
pub fn id_in(shard: ShardId, shards: u32) -> ConversationId {
    ShardPlace { shard, shards }.place(ConversationId::generate())
}

/// Reads the whole log of an engine.
pub async fn events_of(engine: &Engine) -> Vec<NamedEvent> {
    let pages = engine.read(ReadQuery::all(ns(), EventSource::Log));
    let pages: Vec<Vec<NamedEvent>> = pages.try_collect().await.unwrap();
    pages.into_iter().flatten().collect()
}

/// A table of owners that loses its connection on demand.
pub struct Disturbed {
    pub log: Arc<PostgresLog>,
    pub cut: AtomicBool,
}

impl Disturbed {
    async fn reach(&self) {
        while self.cut.load(Ordering::Acquire) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[async_trait]
impl Ownership for Disturbed {
    fn process(&self) -> Uuid {
        Ownership::process(&*self.log)
    }

    fn shards(&self) -> u32 {
        Ownership::shards(&*self.log)
    }

    async fn keys(&self, known: Option<Uuid>) -> Result<Option<SharedKeys>, OwnershipError> {
        self.reach().await;
        Ownership::keys(&*self.log, known).await
    }

    async fn replace_keys(
        &self,
        from: Option<Uuid>,
        keys: &SharedKeys,
    ) -> Result<bool, OwnershipError> {
        self.reach().await;
        Ownership::replace_keys(&*self.log, from, keys).await
    }

    async fn join(
        &self,
        node: &str,
        address: &str,
        lease: Duration,
    ) -> Result<bool, OwnershipError> {
        self.reach().await;
        Ownership::join(&*self.log, node, address, lease).await
    }

    async fn heartbeat(
        &self,
        node: &str,
        draining: bool,
        followed: &[(ShardId, u64)],
    ) -> Result<bool, OwnershipError> {
        self.reach().await;
        Ownership::heartbeat(&*self.log, node, draining, followed).await
    }

    async fn leave(&self, node: &str) -> Result<(), OwnershipError> {
        self.reach().await;
        Ownership::leave(&*self.log, node).await
    }

    async fn view(&self) -> Result<ClusterView, OwnershipError> {
        self.reach().await;
        Ownership::view(&*self.log).await
    }

    async fn claim(&self, shard: ShardId) -> Result<bool, OwnershipError> {
        self.reach().await;
        Ownership::claim(&*self.log, shard).await
    }

    async fn release(&self, shard: ShardId) -> Result<(), OwnershipError> {
        self.reach().await;
        Ownership::release(&*self.log, shard).await
    }
}

/// A node, and how to disturb it.
pub struct TestNode {
    pub node: ClusterNode,
    pub owners: Arc<Disturbed>,
}

pub const LEASE: Duration = Duration::from_secs(3);

pub async fn start(url: &str, options: PostgresLogOptions, name: &str, dir: &Path) -> TestNode {
    start_with_keys(url, options, name, dir, None).await
}

/// Starts a node with these keys, which follow the cluster's.
pub async fn start_with_keys(
    url: &str,
    options: PostgresLogOptions,
    name: &str,
    dir: &Path,
    keys: Option<Arc<KeyStore>>,
) -> TestNode {
    let options = PostgresLogOptions {
        claimed_only: true,
        ..options
    };
    let log = Arc::new(PostgresLog::open(url, options).await.unwrap());
    let owners = Arc::new(Disturbed {
        log: Arc::clone(&log),
        cut: AtomicBool::new(false),
    });
    let options = NodeOptions {
        keys,
        lease: LEASE,
        ..NodeOptions::new(name, format!("{name}:5417"), dir.join(name))
    };
    let node = ClusterNode::start_over(log, Arc::clone(&owners) as _, options)
        .await
        .unwrap();
    TestNode { node, owners }
}

/// Waits until something is true.
pub async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let give_up = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < give_up, "never: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until these nodes serve all shards; returns the node of each.
pub async fn settled(nodes: &[&TestNode]) -> BTreeMap<ShardId, String> {
    let shards = nodes[0].node.shards() as usize;
    let placed = || {
        let mut placed = BTreeMap::new();
        for own in nodes {
            for shard in own.node.served() {
                let before = placed.insert(shard, own.node.name().to_owned());
                let first = nodes
                    .iter()
                    .find(|other| before.as_deref() == Some(other.node.name()));
                // A shard may have moved since the first node was asked.
                assert!(
                    first.is_none_or(|first| !first.node.served().contains(&shard)),
                    "two nodes serve a shard"
                );
            }
        }
        placed
    };
    until("all shards are served", || {
        let placed = placed();
        placed.len() == shards
            && placed.iter().all(|(shard, name)| {
                nodes
                    .iter()
                    .all(|own| own.node.owner(*shard).is_some_and(|own| own.name == *name))
            })
    })
    .await;
    placed()
}
