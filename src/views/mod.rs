//! The views: everything that can be rebuilt from the log, in one redb file.
//!
//! This module stores and finds; it does not fold (the domain does) and does
//! not read the log (the engine does). Deleting its file loses nothing.
//!
//! Read on in `delta` (what comes in), `keys` (what is where), `apply` (how one
//! becomes the other), then `read` and `namespace` (what comes out). Below them,
//! `table` is a table of rows: `recent` ones in memory over `base`, those in the
//! file, where they are packed into a `block` each.

mod delta;

#[cfg(feature = "redb")]
mod apply;
#[cfg(feature = "redb")]
mod base;
#[cfg(feature = "redb")]
mod block;
#[cfg(feature = "redb")]
mod chunk;
#[cfg(feature = "redb")]
mod codec;
#[cfg(feature = "redb")]
mod damage;
#[cfg(feature = "redb")]
mod digest;
#[cfg(feature = "redb")]
mod ends;
mod error;
#[cfg(feature = "redb")]
mod finding;
#[cfg(feature = "redb")]
mod heads;
#[cfg(feature = "redb")]
mod keys;
#[cfg(feature = "redb")]
mod layers;
#[cfg(feature = "redb")]
mod marks;
#[cfg(feature = "redb")]
mod named;
#[cfg(feature = "redb")]
mod namespace;
#[cfg(feature = "redb")]
mod origin;
#[cfg(feature = "redb")]
mod packing;
#[cfg(feature = "redb")]
#[doc(hidden)]
pub mod probe;
#[cfg(feature = "redb")]
mod read;
#[cfg(feature = "redb")]
mod recent;
#[cfg(feature = "redb")]
mod repack;
#[cfg(feature = "redb")]
mod rows;
#[cfg(feature = "redb")]
mod store;
#[cfg(feature = "redb")]
mod table;
#[cfg(all(test, feature = "redb"))]
mod tests;
#[cfg(feature = "redb")]
mod tip;

#[cfg(all(test, feature = "redb"))]
pub(crate) use codec::rows_read;
pub use delta::{CallEntry, EventEntry, FoundBy, KeyEntry, PendingEntry, ViewDelta};
#[cfg(test)]
pub(crate) use table::steps;
#[cfg(feature = "redb")]
pub use {
    codec::VIEWS_VERSION,
    error::ViewsError,
    finding::{Finding, Found, KeyAfter, Within},
    heads::{Head, Heads},
    namespace::{ListOrder, ListPage, ListPlace, NamespaceCounts},
    origin::Origin,
    read::Ancestor,
    store::Views,
};
