//! The log against real PostgreSQL servers: `.ci/postgres.sh` runs these.

#![cfg(unix)]

mod conformance;
mod crash;
mod damage;
mod erase;
mod fencing;
mod groups;
mod measure;
mod refusals;
mod schema;
mod server;
mod tiering;
mod tls;
mod unknown_outcome;
