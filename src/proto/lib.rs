//! Converts between protobuf messages and domain types. The only crate that knows both.
//!
//! It does no I/O and does not decide whether an event may be appended: it checks
//! only the shape of a single event. [`body`] decodes stored bytes into an
//! [`EventBody`](treering_domain::EventBody) and encodes it, [`envelope`] does the
//! same for the fields around a body, [`json`] checks JSON text.

#![cfg_attr(not(test), warn(unreachable_pub))]

pub mod access;
pub mod body;
pub mod envelope;
pub mod json;
pub mod pb;
pub mod rfc3339;
pub mod route;
pub mod tags;

/// The descriptors of `proto/treering/v1`, without comments.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// The same with comments, for reflection. Decoding them takes several times as long.
pub const DOCUMENTED_DESCRIPTORS: &[u8] =
    include_bytes!(concat!(env!("OUT_DIR"), "/documented_descriptors.bin"));
