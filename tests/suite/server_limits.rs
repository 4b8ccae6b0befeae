//! The built server under attack: small requests that grow large, requests that never end, and idle
//! connections.

mod connections;
mod memory;
mod raw;
