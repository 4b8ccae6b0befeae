//! What a server serves: one store, or the shards of a cluster.

use std::{fmt, sync::Arc};

use tonic::transport::ClientTlsConfig;

use crate::{
    router::ShardDirectory,
    shutdown::{StopSignal, Stopper},
};
use treering_domain::Limits;
use treering_engine::Engine;

/// What a server serves. Cheap to clone.
#[derive(Clone)]
pub enum ServedStore {
    /// One store.
    Engine(Engine),
    /// The shards of a cluster.
    Node(Box<NodeShards>),
}

impl From<Engine> for ServedStore {
    fn from(engine: Engine) -> Self {
        Self::Engine(engine)
    }
}

impl From<NodeShards> for ServedStore {
    fn from(node: NodeShards) -> Self {
        Self::Node(Box::new(node))
    }
}

/// The shards of a cluster, as a node serves them: those of its own in this process, and others by
/// forwarding calls to their owners. All servers of a node share one.
#[derive(Clone)]
pub struct NodeShards {
    pub(crate) directory: Arc<dyn ShardDirectory>,
    pub(crate) limits: Limits,
    pub(crate) owners_tls: Option<ClientTlsConfig>,
    /// The services of a shard belong to all servers of the node, and end with the first one that is
    /// not beside another.
    pub(crate) stopper: Arc<Stopper>,
    pub(crate) stop: StopSignal,
}

impl NodeShards {
    /// The shards of this directory. `limits` are those of requests. Other nodes are asked by TLS if
    /// `owners_tls` is set.
    #[must_use]
    pub fn new(
        directory: Arc<dyn ShardDirectory>,
        limits: Limits,
        owners_tls: Option<ClientTlsConfig>,
    ) -> Self {
        let (stopper, stop) = Stopper::new();
        Self {
            directory,
            limits,
            owners_tls,
            stopper: Arc::new(stopper),
            stop,
        }
    }
}

impl fmt::Debug for ServedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Engine(_) => "Engine",
            Self::Node(_) => "Node",
        })
    }
}

impl fmt::Debug for NodeShards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeShards")
    }
}
