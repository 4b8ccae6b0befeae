//! The log in PostgreSQL: an [`EventLog`](treering_log::EventLog) whose acknowledged appends
//! survive the loss of a server.
//!
//! This crate has the tables ([`create_schema`]), sessions and their settings, the statement of an
//! append, the rule for lost answers ([`PostgresLog`]), and segments in object storage. `docs/CLUSTER.md` says what it
//! guarantees and which settings it needs.
//!
//! It also has the table of a cluster's nodes, the claims of shards, the keys of a cluster, and
//! erasing. It does not interpret frames or keys, and does not choose which node should own a shard.

#![cfg_attr(not(test), warn(unreachable_pub))]

mod append;
mod erase;
mod error;
mod keys;
mod log;
mod moving;
mod nodes;
mod object;
mod owned;
mod rows;
mod schema;
mod seal;
mod segments;
mod session;
mod settings;
mod shard;
mod target;

pub use error::PostgresError;
pub use keys::SharedKeys;
pub use log::{PostgresLog, PostgresLogOptions};
pub use moving::ShardEnd;
pub use nodes::{ClusterView, LiveNode};
pub use schema::{SCHEMA_VERSION, SHARDS_DEFAULT, SHARDS_MAX, create_role, create_schema, grants};
pub use seal::{LogTiers, set_objects};
