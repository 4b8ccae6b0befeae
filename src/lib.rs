//! Treering: an event-sourced context storage engine for LLM agents.

pub mod codec;
pub mod domain;
#[cfg(feature = "redb")]
pub mod engine;
pub mod log;
#[cfg(feature = "search")]
pub mod search;
#[cfg(feature = "server")]
pub mod server;
#[cfg(feature = "redb")]
pub mod views;
