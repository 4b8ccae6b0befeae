//! Tests of the services as clients in any language use them: a real server on a loopback port, a
//! real engine in its own folder, generated clients. `in_cluster` runs them against a cluster, too.

mod appends;
mod contexts;
mod conversations;
mod creations;
mod fields;
pub mod harness;
mod hostile;
mod in_cluster;
mod instructions;
mod items;
mod keys;
mod limits;
mod lookups;
mod mass_reading;
#[allow(dead_code)]
#[path = "../../src/cluster/tests/memory.rs"]
mod memory;
mod namespaces;
mod quota;
mod read_counting;
mod reads;
mod rewinds;
mod search_admin;
mod shutdown;
mod spans;
mod tools;
mod transport;
