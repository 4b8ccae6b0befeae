//! The generated protobuf messages and services.

#![allow(clippy::all, clippy::pedantic, missing_docs)]

include!(concat!(env!("OUT_DIR"), "/treering.v1.rs"));
