//! Treering: an event-sourced context storage engine for LLM agents.

pub mod codec;
pub mod domain;
#[cfg(all(feature = "redb", feature = "search"))]
pub mod engine;
pub mod log;
#[cfg(feature = "search")]
pub mod search;
#[cfg(feature = "redb")]
pub mod views;
