//! Presents recorded data as text, figures and JSON: one implementation for the terminal, the web
//! and agents.
//!
//! Nothing here accesses a store. Only [`safe`] writes to a stream: standard error.

#![cfg_attr(not(test), warn(unreachable_pub))]

pub mod explanation;
pub mod hit;
pub mod json;
mod paint;
pub mod safe;
pub mod text;
pub mod time_arg;
pub mod tool_stats;
pub mod tool_summary;

pub use paint::{Paint, Tone};
use treering_proto::pb;
