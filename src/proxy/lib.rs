//! A proxy between agents and model providers that records their calls.
//!
//! `forward` passes a request on and streams the answer back unchanged; `tee` keeps a copy of the
//! answer. The request and this copy go together into the bounded `queue`, from which the
//! `recorder` takes one call at a time. `answer` reads what a provider sent, `session` finds the id
//! by which a client names its conversation, and `treering_import::model_call` converts the call to
//! events. Because of the queue, no answer waits for the store.
//!
//! This crate does not know the command line or the contents of a store.

#![cfg_attr(not(test), warn(unreachable_pub))]

mod answer;
mod decode;
mod exchange;
mod forward;
mod queue;
mod recorder;
mod serve;
mod session;
mod tee;
#[cfg(test)]
mod tests;
mod upstream;

pub use queue::CallCounts;
pub use recorder::FOLDER;
pub use serve::{ProxyError, RunningProxy};
pub use upstream::{UpstreamFault, Upstreams};

/// Header by which a client names its conversation. It is not passed on.
pub const CONVERSATION_HEADER: &str = "x-treering-conversation";
