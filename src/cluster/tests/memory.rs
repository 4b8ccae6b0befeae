//! A cluster in this process: a table of owners in memory, a log in memory or elsewhere, and nodes that
//! serve gRPC on loopback ports.

use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use futures::FutureExt;
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};
use tonic::transport::{Channel, Endpoint};
use treering_access::KeyStore;
use treering_cluster::{
    ClusterNode, ClusterView, LiveNode, NodeOptions, Ownership, OwnershipError, SharedKeys,
};
use treering_domain::ShardId;
use treering_engine::{Embedder, OpenOptions};
use treering_log::{Epoch, EventLog, MemoryLog};
use treering_proto::pb::{
    conversations_client::ConversationsClient, events_client::EventsClient,
    search_client::SearchClient,
};
use treering_server::{NodeShards, ServeError, ServeOptions, serve_shards};
use uuid::Uuid;

/// The log and the table that all nodes of a cluster share.
pub struct MemoryCluster {
    log: Arc<dyn EventLog>,
    shards: u32,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    nodes: BTreeMap<String, Row>,
    owners: HashMap<ShardId, Uuid>,
    keys: Option<SharedKeys>,
}

struct Row {
    process: Uuid,
    address: String,
    lease: Duration,
    seen: Instant,
    draining: bool,
    followed: Vec<(ShardId, u64)>,
}

impl Row {
    fn is_live(&self) -> bool {
        self.seen.elapsed() < self.lease
    }
}

impl Table {
    fn is_live(&self, process: Uuid) -> bool {
        let mut nodes = self.nodes.values();
        nodes.any(|row| row.process == process && row.is_live())
    }
}

impl MemoryCluster {
    pub fn new(shards: u32) -> Arc<Self> {
        Self::over(Arc::new(MemoryLog::default()), shards)
    }

    pub fn over(log: Arc<dyn EventLog>, shards: u32) -> Arc<Self> {
        Arc::new(Self {
            log,
            shards,
            table: Mutex::default(),
        })
    }

    /// Returns the head of each shard.
    async fn heads(&self) -> Vec<(ShardId, u64)> {
        let mut heads = Vec::new();
        for shard in (0..self.shards).map(ShardId) {
            let head = self.log.tail(shard, 0).now_or_never();
            heads.extend(head.map(|head| (shard, head.unwrap())));
        }
        heads
    }

    /// Returns the last erasure of each shard.
    async fn erased(&self) -> Vec<(ShardId, u64)> {
        let mut erased = Vec::new();
        for shard in (0..self.shards).map(ShardId) {
            let port = Arc::clone(&self.log).erasable(shard, Epoch::default());
            let progress = port.unwrap().progress().await.unwrap();
            erased.extend((progress.erased > 0).then_some((shard, progress.erased)));
        }
        erased
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The table, as one process uses it. A process that is dead does not reach it any more.
pub struct MemoryOwnership {
    cluster: Arc<MemoryCluster>,
    process: Uuid,
    pub dead: AtomicBool,
}

impl MemoryOwnership {
    async fn reach(&self) {
        if self.dead.load(Ordering::Acquire) {
            std::future::pending::<()>().await;
        }
    }
}

#[async_trait]
impl Ownership for MemoryOwnership {
    fn process(&self) -> Uuid {
        self.process
    }

    fn shards(&self) -> u32 {
        self.cluster.shards
    }

    async fn keys(&self, known: Option<Uuid>) -> Result<Option<SharedKeys>, OwnershipError> {
        self.reach().await;
        let keys = self.cluster.table().keys.clone();
        Ok(keys.filter(|keys| Some(keys.version) != known))
    }

    async fn replace_keys(
        &self,
        from: Option<Uuid>,
        keys: &SharedKeys,
    ) -> Result<bool, OwnershipError> {
        self.reach().await;
        let mut table = self.cluster.table();
        let is_unchanged = table.keys.as_ref().map(|keys| keys.version) == from;
        if is_unchanged {
            table.keys = Some(keys.clone());
        }
        Ok(is_unchanged)
    }

    async fn join(
        &self,
        node: &str,
        address: &str,
        lease: Duration,
    ) -> Result<bool, OwnershipError> {
        self.reach().await;
        let mut table = self.cluster.table();
        let taken = table.nodes.get(node);
        if taken.is_some_and(|row| row.process != self.process && row.is_live()) {
            return Ok(false);
        }
        let row = Row {
            process: self.process,
            address: address.to_owned(),
            lease,
            seen: Instant::now(),
            draining: false,
            followed: Vec::new(),
        };
        table.nodes.insert(node.to_owned(), row);
        Ok(true)
    }

    async fn heartbeat(
        &self,
        node: &str,
        draining: bool,
        followed: &[(ShardId, u64)],
    ) -> Result<bool, OwnershipError> {
        self.reach().await;
        let mut table = self.cluster.table();
        let row = table.nodes.get_mut(node);
        let Some(row) = row.filter(|row| row.process == self.process) else {
            return Ok(false);
        };
        (row.seen, row.draining) = (Instant::now(), draining);
        row.followed = followed.to_vec();
        Ok(true)
    }

    async fn leave(&self, node: &str) -> Result<(), OwnershipError> {
        self.reach().await;
        let mut table = self.cluster.table();
        table
            .nodes
            .retain(|name, row| name != node || row.process != self.process);
        Ok(())
    }

    async fn view(&self) -> Result<ClusterView, OwnershipError> {
        self.reach().await;
        let (erased, heads) = (self.cluster.erased().await, self.cluster.heads().await);
        let table = self.cluster.table();
        let live = table.nodes.iter().filter(|(_, row)| row.is_live());
        Ok(ClusterView {
            nodes: live
                .map(|(name, row)| LiveNode {
                    name: name.clone(),
                    process: row.process,
                    address: row.address.clone(),
                    draining: row.draining,
                    followed: row.followed.clone(),
                })
                .collect(),
            owners: table
                .owners
                .iter()
                .map(|(shard, owner)| (*shard, *owner))
                .collect(),
            erased,
            heads,
        })
    }

    async fn claim(&self, shard: ShardId) -> Result<bool, OwnershipError> {
        self.reach().await;
        {
            let mut table = self.cluster.table();
            let owner = table.owners.get(&shard).copied();
            let is_taken = owner.is_some_and(|owner| owner != self.process && table.is_live(owner));
            if is_taken || !table.is_live(self.process) {
                return Ok(false);
            }
            table.owners.insert(shard, self.process);
        }
        // A claim fences off the earlier owner.
        let fenced = self.cluster.log.acquire(shard).await;
        fenced.map_err(|error| OwnershipError {
            what: error.to_string(),
            is_transient: true,
        })?;
        Ok(true)
    }

    async fn release(&self, shard: ShardId) -> Result<(), OwnershipError> {
        self.reach().await;
        let mut table = self.cluster.table();
        if table.owners.get(&shard) == Some(&self.process) {
            table.owners.remove(&shard);
        }
        Ok(())
    }
}

/// A node that serves gRPC.
pub struct ServingNode {
    pub node: ClusterNode,
    pub address: SocketAddr,
    pub owners: Arc<MemoryOwnership>,
    stop: oneshot::Sender<()>,
    served: JoinHandle<Result<(), ServeError>>,
}

/// A lease that is short for a test, and long for a busy machine.
pub const LEASE: Duration = Duration::from_secs(5);

/// A node that is in the table, and does not serve yet.
struct JoinedNode {
    name: String,
    listener: TcpListener,
    owners: Arc<MemoryOwnership>,
}

impl JoinedNode {
    async fn new(cluster: &Arc<MemoryCluster>, name: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let owners = Arc::new(MemoryOwnership {
            cluster: Arc::clone(cluster),
            process: Uuid::new_v4(),
            dead: AtomicBool::new(false),
        });
        assert!(owners.join(name, &address, LEASE).await.unwrap());
        let name = name.to_owned();
        Self {
            name,
            listener,
            owners,
        }
    }

    /// Serves with these options. The node's folder is in that of the engine's options. Its keys
    /// follow the cluster's if they are given.
    async fn serve(
        self,
        engine: &OpenOptions,
        serving: ServeOptions,
        keys: Option<Arc<KeyStore>>,
    ) -> ServingNode {
        let address = self.listener.local_addr().unwrap();
        let dir = engine.data_dir.join(&self.name);
        let mut options = NodeOptions {
            lease: LEASE,
            engine: engine.clone(),
            keys,
            ..NodeOptions::new(self.name, address.to_string(), &dir)
        };
        options.engine.data_dir = dir;
        let log = Arc::clone(&self.owners.cluster.log);
        let node = ClusterNode::start_over(log, Arc::clone(&self.owners) as _, options);
        let node = node.await.unwrap();
        let (stop, stopped) = oneshot::channel();
        let shards = NodeShards::new(Arc::new(node.clone()), engine.limits.clone(), None);
        let served = serve_shards(
            shards,
            self.listener,
            async {
                let _stopped = stopped.await;
            },
            serving,
        );
        ServingNode {
            node,
            address,
            owners: self.owners,
            stop,
            served: tokio::spawn(served),
        }
    }
}

impl ServingNode {
    pub async fn start(cluster: &Arc<MemoryCluster>, name: &str, dir: &Path) -> Self {
        Self::start_with(cluster, name, dir, None).await
    }

    pub async fn start_with(
        cluster: &Arc<MemoryCluster>,
        name: &str,
        dir: &Path,
        embedder: Option<Arc<dyn Embedder>>,
    ) -> Self {
        let engine = OpenOptions {
            embedder,
            ..OpenOptions::new(dir)
        };
        let joined = JoinedNode::new(cluster, name).await;
        joined.serve(&engine, ServeOptions::default(), None).await
    }

    /// Starts a node whose keys follow the cluster's.
    pub async fn start_with_keys(cluster: &Arc<MemoryCluster>, name: &str, dir: &Path) -> Self {
        let keys = KeyStore::open(&dir.join(name)).unwrap();
        let serving = ServeOptions {
            keys: Some(Arc::clone(&keys)),
            ..ServeOptions::default()
        };
        let joined = JoinedNode::new(cluster, name).await;
        joined
            .serve(&OpenOptions::new(dir), serving, Some(keys))
            .await
    }

    /// Starts nodes that know of each other from the start, so no shard changes its owner. Returns
    /// when they serve all shards.
    pub async fn start_together(
        cluster: &Arc<MemoryCluster>,
        names: &[&str],
        engine: &OpenOptions,
        serving: impl Fn() -> ServeOptions,
    ) -> Vec<Self> {
        let mut joined = Vec::new();
        for name in names {
            joined.push(JoinedNode::new(cluster, name).await);
        }
        let mut nodes = Vec::new();
        for node in joined {
            nodes.push(node.serve(engine, serving(), None).await);
        }
        settled(&nodes.iter().collect::<Vec<_>>()).await;
        nodes
    }

    /// Asks it to stop to serve. It keeps its shards.
    pub fn stop(self) -> StoppingNode {
        let _stopping = self.stop.send(());
        StoppingNode {
            node: self.node,
            owners: self.owners,
            served: self.served,
        }
    }

    /// Cuts its connections and its heartbeats, as the death of the process does.
    pub fn kill(&self) {
        self.owners.dead.store(true, Ordering::Release);
        self.served.abort();
    }

    pub fn channel(&self) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address));
        endpoint.unwrap().connect_lazy()
    }

    pub fn events(&self) -> EventsClient<Channel> {
        EventsClient::new(self.channel())
    }

    pub fn search(&self) -> SearchClient<Channel> {
        SearchClient::new(self.channel())
    }

    pub fn conversations(&self) -> ConversationsClient<Channel> {
        ConversationsClient::new(self.channel())
    }
}

/// A node that answers its last calls.
pub struct StoppingNode {
    node: ClusterNode,
    owners: Arc<MemoryOwnership>,
    served: JoinHandle<Result<(), ServeError>>,
}

impl StoppingNode {
    /// Waits until it has stopped to serve, closes its engines and leaves the cluster. The log stays
    /// open, because the other nodes have the same.
    pub async fn done(self) {
        self.served.await.unwrap().unwrap();
        assert!(self.node.drain(Duration::from_secs(60)).await);
        self.owners.leave(self.node.name()).await.unwrap();
        self.owners.dead.store(true, Ordering::Release);
    }
}

/// Waits until these nodes serve all shards, and know it of each other.
pub async fn settled(nodes: &[&ServingNode]) {
    let give_up = Instant::now() + Duration::from_secs(60);
    let is_settled = || {
        let owners = |shard| nodes.iter().filter_map(move |own| own.node.owner(shard));
        let shards = nodes[0].node.shards();
        let agreed = (0..shards).map(ShardId).all(|shard| {
            let mut named = owners(shard).map(|owner| owner.name);
            let first = named.next();
            let owner = nodes
                .iter()
                .find(|own| Some(own.node.name()) == first.as_deref());
            owners(shard).count() == nodes.len()
                && named.all(|name| Some(name) == first)
                && owner.is_some_and(|own| own.node.served().contains(&shard))
        });
        let served: usize = nodes.iter().map(|own| own.node.served().len()).sum();
        agreed && served == shards as usize && nodes.iter().all(|own| !own.node.served().is_empty())
    };
    while !is_settled() {
        assert!(Instant::now() < give_up, "the shards do not settle");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
