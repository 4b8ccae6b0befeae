//! Engines and nodes over real PostgreSQL servers, which `.ci/postgres.sh` installs; and the routing
//! of calls among nodes over a log in memory.

#![cfg(unix)]

mod away;
mod erase;
mod erase_routing;
mod failures;
mod followers;
mod keys;
#[allow(dead_code)]
mod memory;
mod moving;
mod nodes;
mod routing;
mod searches;
#[allow(dead_code)]
#[path = "../../log_postgres/tests/server.rs"]
mod server;
mod shards;
mod stand;
mod whole_log;
