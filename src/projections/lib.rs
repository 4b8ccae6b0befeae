//! The projections: everything that can be rebuilt from the log, in one redb file.
//!
//! This crate stores and looks up; it does not fold events (the domain does) or read the log (the
//! engine does). Deleting its file loses nothing.
//!
//! Read on in `delta` (the input), `keys` (the layout), `apply` (from input to rows), then `read`
//! and `namespace` (the queries). Below them, `table` is a table of rows: `recent` rows in memory
//! over `base`, the rows in the file, where they are packed into `block`s.

#![cfg_attr(not(test), warn(unreachable_pub))]

mod delta;

mod apply;
mod base;
mod block;
mod chunk;
mod codec;
mod damage;
mod digest;
mod ends;
mod error;
mod finding;
mod heads;
mod keys;
mod layers;
mod marks;
mod named;
mod namespace;
mod origin;
mod packing;
#[doc(hidden)]
pub mod probe;
mod read;
mod recent;
mod repack;
mod rows;
mod store;
mod table;
#[cfg(test)]
mod tests;
mod tip;

#[cfg(any(test, feature = "testkit"))]
pub use codec::rows_read;
pub use delta::{CallEntry, EventEntry, FoundBy, KeyEntry, PendingEntry, ViewDelta};
#[cfg(any(test, feature = "testkit"))]
pub use table::steps;
pub use {
    error::ViewsError,
    finding::{Finding, Found, KeyAfter, Within},
    heads::{Head, Heads},
    namespace::{ListOrder, ListPage, ListPlace, NamespaceCounts},
    origin::Origin,
    read::Ancestor,
    store::Views,
};
