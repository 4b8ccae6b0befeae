//! Summaries by a model, made by the server itself: off by default.
//!
//! A worker follows the log of each namespace that it is told of and does what is
//! due on a branch when a turn of it has ended, in this order: snapshots of large
//! tool results, the running dialogue summary, a compaction. It asks a model
//! behind an OpenAI-compatible endpoint.
//!
//! - Each task is done exactly once: its event is appended with a key made of
//!   what it is about, and the key is looked up before the model is asked. After
//!   a crash the worker goes on where its mark says; the mark only saves work.
//! - An append never waits for it: it reads what is published, asks one thing at
//!   a time, and appends like any client.
//! - A compaction is appended only at the head that it was planned at. When there
//!   is news it is planned again; the model is not asked again for the same cut.
//! - While the endpoint fails, tasks wait and are tried again. The engine's own
//!   extract stands in only where [`Fallback::Extract`] says so.
//!
//! It does not know gRPC or the command line, and nothing depends on it but the
//! command line. `worker` follows, `tasks` does, `endpoint` asks, `mark` remembers.

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
pub use endpoint::EndpointError;
pub use worker::Summariser;
