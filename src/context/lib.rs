//! What an agent sends next.
//!
//! `window → enhancers → budget → provider adapter → request + explanation`
//!
//! The engine reads the events of a branch's open window and hands them over;
//! everything here is a pure function of those events, of the branch's state and
//! of a policy: no clock, no randomness, no I/O. Read in this order:
//!
//! - [`draft`]: what all steps work on: the items of a request, with where each
//!   came from and what became of it; [`shared`]: what requests share of them;
//! - [`policy`]: what a conversation or a call can choose;
//! - [`called`]: what calls have shown of tools that nobody defined;
//! - [`window`], [`enhancer`], [`budget`], [`tokens`], [`prefix`]: how a draft comes to be;
//! - [`provider`]: a draft as a provider's body;
//! - [`explain`]: what is told about it;
//! - [`references`]: how to read again what is not whole in a request;
//! - [`compaction`], [`due`], [`turns`], [`names`]: what stands for what was cut;
//! - [`heuristics`]: guesses about text, which the crate `treering-digest` makes.

pub mod budget;
pub mod called;
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
pub use provider::{Provider, RenderError, Rendered};
pub use shared::{Part, Parts, SharedContent};
pub use window::{LongTermEntry, WindowEvent, WindowInput};
