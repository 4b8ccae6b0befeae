//! Summaries without a model: quotations, JSON shapes, counts and errors.
//!
//! All functions are pure: the same events give the same text. They only quote. Control and
//! formatting characters are removed, so the output of a tool can neither break a line nor hide
//! text.
//!
//! - [`result_summary`]: one tool result in a line, for its digest;
//! - [`dialogue_summary`]: the outcome of turns;
//! - [`compaction_extract`]: what a successor needs, in sections;
//! - [`names`]: finds tool names in a text: a summary by a model should have none.

mod calls;
mod dialogue;
mod due;
mod extract;
mod facts;
mod gather;
pub mod names;
#[cfg(test)]
pub(crate) mod probe_tests;
mod result;
mod shape;
mod tasks;
mod text;
pub(super) mod turns;

pub(super) use calls::{ended, is_verdict, paths, said_of, shows_a_file, tells_how_it_ended};
pub use dialogue::{DIALOGUE_SUMMARY_CHARS_MAX, dialogue_summary};
pub use due::{DialogueDue, SnapshotDue, dialogue_due, snapshots_due};
pub(super) use extract::level;
pub use extract::{COMPACTION_EXTRACT_CHARS_MIN, compaction_extract, is_extract};
pub(super) use result::reports_error;
pub use result::result_summary;
pub(super) use shape::members as json_members;
pub(super) use tasks::TaskList;
pub(super) use text::{clip, counted, one_line, says_something, whole_or_ends};
