//! The views: everything that can be rebuilt from the log, in one redb file.
//!
//! This module stores and finds; it does not fold (the domain does) and does
//! not read the log (the engine does). Deleting its file loses nothing.

mod delta;

pub use delta::{CallEntry, EventEntry, KeyEntry, PendingEntry, ViewDelta};
