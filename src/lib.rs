//! Treering: an event-sourced context storage engine for LLM agents.

#[cfg(feature = "cli")]
pub mod cli;
pub mod codec;
pub mod domain;
#[cfg(feature = "redb")]
pub mod engine;
#[cfg(feature = "import")]
pub mod importer;
pub mod log;
#[cfg(feature = "search")]
pub mod search;
#[cfg(feature = "redb")]
pub mod views;
