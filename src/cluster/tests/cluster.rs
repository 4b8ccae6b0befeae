//! Engines and nodes over real PostgreSQL servers: `.ci/postgres.sh` runs these.

#![cfg(unix)]

mod failures;
mod nodes;
#[allow(dead_code)]
#[path = "../../log_postgres/tests/server.rs"]
mod server;
mod shards;
mod stand;
