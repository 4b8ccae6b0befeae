//! Tool knowledge: facts from the results of a branch. It includes discovered files, analysed
//! variables, the working directory, and successful tools.
//!
//! - [`policy`]: the rules, as data; a conversation can change each of them;
//! - `read`: applies a rule to one result or to arguments;
//! - [`fold`]: [`Knowledge`], a bounded fold over calls and results;
//! - `files`: the known files, found by each of their names;
//! - `file_effects`: which files a call read, listed, created, edited or deleted;
//! - [`suggest`]: fills empty file and variable arguments;
//! - `advice`: prerequisites, guidance and a summary for prompts.
//!
//! Tool results are untrusted: every text is bounded. Texts with control characters are omitted and
//! counted.

mod advice;
pub(crate) mod file_effects;
mod files;
pub mod fold;
#[cfg(test)]
mod labelled_tests;
mod names;
pub mod policy;
mod read;
pub mod suggest;
#[cfg(test)]
mod suggest_tests;
#[cfg(test)]
mod tests;

pub use file_effects::{FileEffect, FileEffectForm, FileEffectRule};
pub use files::KnownFile;
pub use fold::{FileVariables, Knowledge, ToolOutcomes, Variable, WorkingDirectory};
pub(crate) use names::names_in_results;
pub use policy::{KNOWLEDGE_POLICY, KnowledgePolicy, KnowledgePolicyError, UNKNOWN_FILE};
pub use suggest::{CompletedArguments, NotAnObject, Suggestion};
