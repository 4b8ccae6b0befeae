//! Builds the next request of an agent.
//!
//! `window → enhancers → budget → provider adapter → request + explanation`
//!
//! The engine reads the events of a branch's window. Everything here is a pure function of those
//! events, the branch's state and a policy: no clock, no randomness, no I/O. Read in this order:
//!
//! - [`draft`]: the items of a request, each with its source and fate; [`shared`]: the content that
//!   requests share;
//! - [`policy`]: what a conversation or a call can configure;
//! - [`called`]: tool definitions derived from calls;
//! - [`window`], [`enhancer`], [`budget`], [`tokens`], [`prefix`]: build a draft;
//! - [`provider`]: renders a draft as a provider's body;
//! - [`explain`]: the explanation of a request;
//! - [`digest`], [`references`]: short forms of results, and how to read the whole;
//! - [`compaction`], [`summary`]: summaries that replace events;
//! - [`knowledge`]: what tool results have shown;
//! - `words`: tells the user's words from harness notices in the user's role.

pub mod budget;
pub mod called;
pub mod compaction;
pub mod digest;
pub mod draft;
pub mod enhancer;
pub mod enhancers;
pub mod explain;
#[cfg(test)]
mod growth_tests;
pub mod knowledge;
pub mod policy;
pub mod prefix;
pub mod provider;
pub mod references;
#[cfg(test)]
mod samples;
pub mod shared;
mod steps;
pub mod stopping;
pub mod summary;
pub mod tokens;
pub mod window;
mod words;

pub use draft::*;
pub use explain::*;
pub use policy::ContextPolicy;
pub use provider::{Provider, RenderError, Rendered};
pub use shared::{Part, Parts, SharedContent};
pub use window::{LongTermEntry, WindowEvent, WindowInput};
