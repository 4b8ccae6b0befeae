//! The log in PostgreSQL: an [`EventLog`](treering_log::EventLog) whose acknowledged appends
//! survive the loss of a server.
//!
//! This crate has the tables ([`create_schema`]), sessions and their settings, the statement of an
//! append, and the rule for lost answers ([`PostgresLog`]). `docs/CLUSTER.md` says what it
//! guarantees and which settings it needs.
//!
//! This crate does not interpret frames, and does not choose who should own a shard. The first
//! session that acquires a shard owns it until another one does.

#![cfg_attr(not(test), warn(unreachable_pub))]

mod error;
mod log;
mod rows;
mod schema;
mod session;
mod settings;
mod shard;
mod target;

pub use error::PostgresError;
pub use log::{PostgresLog, PostgresLogOptions};
pub use schema::{SCHEMA_VERSION, create_schema, grants};
