//! Summaries without a model: first lines, the shape of JSON, counts, errors.
//!
//! All are pure: the same events give the same text. They only quote. Control
//! and formatting characters are taken out, so that what a tool printed can
//! neither break a line nor hide in one.
//!
//! - [`result_summary`]: one tool result in a line, for its snapshot;
//! - [`dialogue_summary`]: what came of turns;
//! - [`compaction_extract`]: what a successor needs, a section each;
//! - [`names`]: which tools a text names, because a summary should name none.

mod dialogue;
mod due;
mod extract;
mod facts;
mod gather;
mod harness;
pub mod names;
#[cfg(test)]
pub(in crate::context) mod probe_tests;
mod result;
mod shape;
mod text;
pub(super) mod turns;

pub use dialogue::{DIALOGUE_SUMMARY_CHARS_MAX, dialogue_summary};
pub use due::{DialogueDue, SnapshotDue, dialogue_due, snapshots_due};
pub use extract::{COMPACTION_EXTRACT_CHARS_MIN, compaction_extract};
pub(super) use harness::{as_said, is_harness_alone, is_said, without_reminders};
pub(super) use result::reports_error;
pub use result::result_summary;
pub(super) use shape::members as json_members;
pub(super) use text::{clip, counted, one_line, says_something};
