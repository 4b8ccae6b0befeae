//! Builds the next request of an agent.
//!
//! `window → enhancers → budget → provider adapter → request + explanation`
//!
//! The engine reads the events of a branch's window. Everything here is a pure function of those
//! events, the branch's state and a policy: no clock, no randomness, no I/O. Read in this order:
//!
//! - [`draft`]: the items of a request, each with its source and fate; [`shared`]: the content that
//!   successive requests share;
//! - [`policy`]: what a conversation or a call can configure;
//! - [`called_tools`]: tool definitions derived from calls;
//! - [`window`], [`enhancer`], [`budget`], [`tokens`], [`prefix`]: build a draft;
//! - [`provider`]: renders a draft as a provider's body;
//! - [`explain`]: the explanation of a request;
//! - [`references`]: how to read shortened results in full;
//! - [`compaction`], [`due`], [`turns`], [`names`]: summaries that replace events;
//! - [`heuristics`]: the interface to guesses about text, which the crate `treering-digest`
//!   implements.

pub mod budget;
pub mod called_tools;
pub mod cancellation;
pub mod compaction;
pub mod draft;
pub mod due;
pub mod enhancer;
pub mod enhancers;
pub mod explain;
#[cfg(test)]
mod growth_tests;
pub mod heuristics;
pub mod names;
pub mod policy;
pub mod prefix;
pub mod provider;
pub mod references;
#[cfg(any(test, feature = "testkit"))]
#[allow(missing_docs, clippy::missing_panics_doc, clippy::must_use_candidate)]
pub mod samples;
pub mod shared;
pub mod steps;
pub mod text;
pub mod tokens;
pub mod turns;
pub mod window;

pub use draft::*;
pub use explain::*;
pub use policy::ContextPolicy;
pub use provider::{Provider, RenderError, RenderedBody};
pub use shared::{Part, Parts, SharedContent};
pub use window::{LongTermEntry, NamesInResult, WindowEvent, WindowInput};
