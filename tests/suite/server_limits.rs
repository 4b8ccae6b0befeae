//! The built server, attacked from outside: with little that grows large, with
//! what never ends, and with connections that do nothing.

mod connections;
mod memory;
mod raw;
