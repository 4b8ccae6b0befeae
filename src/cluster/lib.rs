//! Many nodes of Treering over one log in PostgreSQL.
//!
//! Each shard of the log is a store of its own, with one [engine](treering_engine::Engine) on the
//! node that owns it. [`ClusterNode`] opens the engines of the shards that this node should own, hands
//! over the others, and says which node owns which shard. `docs/CLUSTER.md` states the rules.
//!
//! What lives here: who should own a shard ([`desired_owner`]), the port to the table of owners
//! ([`Ownership`]), and the lease within which a node may answer reads. What does not: passing a
//! request to the node that owns its shard, which is the router of `treering-server`. A node is its
//! [directory](treering_server::ShardDirectory).

#![cfg_attr(not(test), warn(unreachable_pub))]

pub mod bounds;
mod directory;
mod keys;
mod lease;
mod moving;
mod node;
mod old_folders;
mod open_shard;
mod ownership;
mod rendezvous;
#[cfg(test)]
#[path = "tests/simulation.rs"]
mod simulation;
mod starting;
mod trouble;
mod watched_log;

pub use keys::{SharedKeysError, change_keys, read_keys};
pub use moving::{
    ClusterDamage, ClusterVerification, MoveError, MoveOutcome, MoveStep, export_store,
    import_store, verify_cluster,
};
pub use node::{ClusterNode, NodeOptions, NotServed, Owner, ShardGuard, StartError};
pub use ownership::{ClusterView, LiveNode, Ownership, OwnershipError, SharedKeys};
pub use rendezvous::desired_owner;
pub use starting::StartingNode;
pub use treering_engine::shard_of;
