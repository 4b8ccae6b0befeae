//! A node before it has joined its cluster: it accepts connections, and says that it is not ready.

use std::sync::{Arc, OnceLock};

use treering_domain::ShardId;
use treering_engine::ShardMap;
use treering_server::{LocalShard, ShardAway, ShardDirectory, ShardRole};
use uuid::Uuid;

use crate::node::ClusterNode;

/// The directory of a node that may still be starting. Cheap to clone.
#[derive(Clone)]
pub struct StartingNode {
    address: String,
    process: Uuid,
    node: Arc<OnceLock<ClusterNode>>,
}

impl StartingNode {
    /// Creates it for a node with this address.
    #[must_use]
    pub fn new(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            process: Uuid::new_v4(),
            node: Arc::default(),
        }
    }

    /// Returns the id that the node's process must have
    /// ([`PostgresLogOptions::process`](treering_log_postgres::PostgresLogOptions::process)).
    #[must_use]
    pub fn process(&self) -> Uuid {
        self.process
    }

    /// Serves with the node from now on. Only the first node counts.
    pub fn joined(&self, node: ClusterNode) {
        let _is_first = self.node.set(node);
    }
}

impl ShardDirectory for StartingNode {
    fn is_ready(&self) -> bool {
        self.node.get().is_some()
    }

    fn shard_map(&self) -> ShardMap {
        self.node
            .get()
            .map(ClusterNode::shard_map)
            .unwrap_or_default()
    }

    fn address(&self) -> String {
        self.address.clone()
    }

    fn secret(&self) -> String {
        self.process.to_string()
    }

    fn served(&self) -> Vec<ShardId> {
        self.node.get().map(ClusterNode::served).unwrap_or_default()
    }

    fn roles(&self) -> Vec<ShardRole> {
        self.node.get().map(ClusterNode::roles).unwrap_or_default()
    }

    fn shard(&self, shard: ShardId) -> Result<Arc<dyn LocalShard>, ShardAway> {
        match self.node.get() {
            Some(node) => ShardDirectory::shard(node, shard),
            None => Err(ShardAway::NoLease),
        }
    }
}
