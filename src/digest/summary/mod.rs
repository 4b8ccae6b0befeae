//! Writes summaries without a model: quotations, JSON shapes, counts and errors.
//!
//! All functions are pure: the same events give the same text. They only quote. Control and
//! formatting characters are removed, so the output of a tool cannot break a line or hide text.
//!
//! - [`result_summary`]: one tool result in a line, for its digest;
//! - [`dialogue_summary`]: the outcome of turns;
//! - [`compaction_extract`]: the facts for the model that continues, in sections.

mod analysis;
mod calls;
mod dialogue;
mod extract;
mod facts;
mod gather;
#[cfg(test)]
pub(crate) mod probe_tests;
mod result;
mod shape;
mod tasks;

pub use analysis::analysis;
pub(crate) use calls::{ended, is_verdict, paths, reports_outcome, said_of, shows_a_file};
pub use dialogue::dialogue_summary;
pub(crate) use extract::level;
pub use extract::{compaction_extract, is_extract};
pub(crate) use result::reports_error;
pub use result::result_summary;
pub(crate) use shape::members as json_members;
pub(crate) use tasks::TaskList;
use treering_context::{text, turns};
