//! Treering: an event-sourced context storage engine for LLM agents.

#[cfg(feature = "cli")]
pub mod cli;
pub mod codec;
#[cfg(any(feature = "redb", feature = "search"))]
pub mod contained;
pub mod context;
#[cfg(feature = "redb")]
pub mod disk;
pub mod domain;
#[cfg(all(feature = "redb", feature = "search"))]
pub mod engine;
#[cfg(feature = "import")]
pub mod importer;
pub mod log;
#[cfg(feature = "search")]
pub mod search;
#[cfg(feature = "server")]
pub mod server;
#[cfg(feature = "summariser")]
pub mod summariser;
#[cfg(feature = "redb")]
pub mod views;
