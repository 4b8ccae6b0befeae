//! Summaries written by a model on behalf of the server: off by default.
//!
//! A worker follows the log of each configured namespace. When a turn of a branch has ended, it
//! does what is due there, in this order: snapshots of large tool results, the running dialogue
//! summary, a compaction. It queries a model at an OpenAI-compatible endpoint.
//!
//! - Each task is done exactly once: the idempotency key of its event is derived from the subject
//!   of the task, and the key is looked up before the model is queried. After a crash the worker
//!   continues from its mark; the mark only saves work.
//! - Appends never wait for the worker: it reads published state, does one task at a time, and
//!   appends like any client.
//! - A compaction is appended only at the head that it was planned for. After new events it is
//!   planned again. If the cut is still the same, the model is not queried again.
//! - While the endpoint fails, tasks wait and are retried. The engine's own extract is used only
//!   with [`Fallback::Extract`].
//!
//! This crate does not know gRPC or the command line, and only the command line depends on it.
//! `worker` follows the log, `tasks` does the work, `endpoint` queries the model, `mark` stores the
//! progress.

#![cfg_attr(not(test), warn(unreachable_pub))]

mod config;
mod endpoint;
mod mark;
mod queue;
mod tasks;
#[cfg(test)]
mod tests;
mod worker;

pub use config::{
    BackOff, EndpointConfig, Fallback, Secret, SummariserConfig, SummariserMeasures, Tasks,
};
pub use worker::Summariser;
