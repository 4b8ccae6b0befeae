//! What the router must know about shards. A cluster implements it; this crate does not know
//! where shards come from.

use std::sync::{Arc, OnceLock};

use tonic::service::Routes;

use treering_domain::ShardId;
use treering_engine::{Engine, ShardMap};

/// Says which node serves which shard, and gives access to those of this node.
pub trait ShardDirectory: Send + Sync + 'static {
    /// Returns false while this node has not joined its cluster. It then answers no calls, and
    /// knows nothing of the shards.
    fn is_ready(&self) -> bool {
        true
    }

    /// Returns the number of shards.
    fn shards(&self) -> u32 {
        self.shard_map().shards()
    }

    /// Returns where conversations are.
    fn shard_map(&self) -> ShardMap;

    /// Returns the address at which other nodes reach this one.
    fn address(&self) -> String;

    /// Returns the secret of this process, which only nodes of the cluster know. A forwarded call
    /// carries the secret of its receiver, so no client can pass for a node.
    fn secret(&self) -> String;

    /// Returns the shards that this node may serve right now.
    fn served(&self) -> Vec<ShardId>;

    /// Returns what this node does with the shards that it has something to do with.
    fn roles(&self) -> Vec<ShardRole>;

    /// Returns a shard that this node may serve right now.
    ///
    /// # Errors
    /// [`ShardAway`]: who serves it, or why nobody does.
    fn shard(&self, shard: ShardId) -> Result<Arc<dyn LocalShard>, ShardAway>;
}

/// A shard that is open in this process.
pub trait LocalShard: Send + Sync + 'static {
    /// Returns its engine.
    fn engine(&self) -> &Engine;

    /// Checks that no other node can have owned the shard since it was taken from the directory.
    /// The result of a read may be sent only if this succeeds after the read.
    ///
    /// # Errors
    /// [`ShardAway`]: discard the result.
    fn check(&self) -> Result<(), ShardAway>;

    /// Returns the place for the services of this engine. It must live as long as the engine is
    /// open, and no longer, so that the services do not keep the engine's files.
    fn services(&self) -> &ShardServices;
}

/// The gRPC services over the engine of a shard. They are created by the first call.
#[derive(Default)]
pub struct ShardServices(pub(super) OnceLock<Routes>);

impl std::fmt::Debug for ShardServices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ShardServices")
    }
}

/// What a node does with a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardRole {
    /// The shard.
    pub shard: ShardId,
    /// What it does, as metrics name it: `owner`, `opening`, `handing_over`, `follower`,
    /// `emptying` or `failed`.
    pub role: &'static str,
    /// The epoch in which it owns the shard; 0 if it does not.
    pub epoch: u64,
    /// The number of events that it lacks as a follower; `None` if it is not one.
    pub follower_lag: Option<u64>,
}

/// The process that owns a shard.
#[derive(Clone, PartialEq, Eq)]
pub struct OwnerNode {
    /// The address at which it is reached.
    pub address: String,
    /// Its [secret](ShardDirectory::secret).
    pub secret: String,
}

impl std::fmt::Debug for OwnerNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OwnerNode({})", self.address)
    }
}

/// Why this node does not serve a shard right now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShardAway {
    /// Another node owns it.
    #[error("the node at {} owns the shard", .0.address)]
    Elsewhere(OwnerNode),
    /// It is being opened or handed over.
    #[error("the shard is changing its owner")]
    Moving,
    /// This node cannot reach the database, so another node may own its shards.
    #[error("this node has lost its lease")]
    NoLease,
    /// There is no such shard.
    #[error("the cluster has no such shard")]
    Unknown,
}
