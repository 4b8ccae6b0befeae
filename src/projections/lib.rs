//! The projections: everything that can be rebuilt from the log, in one redb file.
//!
//! This crate stores and looks up; it does not fold events (the domain does) or read the log (the
//! engine does). Deleting its file loses nothing.
//!
//! Read on in `delta` (the input), `keys` (the layout), `apply` (from input to rows), then `read`
//! and `namespace` (the queries). Below them, `table` puts the rows in memory (`memtable`) over the
//! rows in the file (`sorted_table`), which are packed into `block`s.

#![cfg_attr(not(test), warn(unreachable_pub))]

mod delta;

mod apply;
mod block;
mod block_builder;
mod chunk;
mod codec;
mod conversation_head;
mod damage;
mod digest;
mod error;
mod facets;
mod find_events;
mod heads;
mod key_expiry;
mod keys;
mod memtable;
mod meta;
mod namespace;
mod origin;
mod partial_ids;
#[doc(hidden)]
pub mod probe;
mod read;
mod repack;
mod row_store;
mod rows;
mod sorted_table;
mod store;
mod table;
#[cfg(test)]
mod tests;

#[cfg(any(test, feature = "testkit"))]
pub use codec::rows_read;
pub use delta::{CallEntry, EventEntry, FoundBy, KeyEntry, PendingEntry, ProjectionDelta};
#[cfg(any(test, feature = "testkit"))]
pub use table::steps;
pub use {
    error::ProjectionsError,
    facets::{Facet, FacetVersion},
    find_events::{EventRange, EventTerm, FoundEvents, KeyAfter},
    heads::{Head, Heads},
    namespace::{ListNarrowing, ListOrder, ListPage, ListPlace, NamespaceCounts},
    origin::Origin,
    read::Ancestor,
    store::Projections,
};
