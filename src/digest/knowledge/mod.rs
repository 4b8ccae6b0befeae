//! Tool knowledge: what the results of a branch have shown. Discovered files,
//! analysed variables, the working directory, and what has succeeded.
//!
//! - [`policy`]: the rules, as data; a conversation can change each of them;
//! - `read`: what one result or argument gives by a rule;
//! - [`fold`]: [`Knowledge`], a fold over calls and results, bounded;
//! - [`touch`]: which files a call read, listed, created, edited or deleted;
//! - [`suggest`]: empty file and variable arguments, filled from it;
//! - `advice`: prerequisites, guidance and a summary for prompts.
//!
//! What tools return is hostile until shown otherwise: every text is bounded, and
//! one with control characters is left out and counted.

mod advice;
pub mod fold;
#[cfg(test)]
mod labelled_tests;
pub mod policy;
mod read;
pub mod suggest;
#[cfg(test)]
mod tests;
pub mod touch;

pub use fold::{FileVariables, Knowledge, KnownFile, ToolOutcomes, Variable, WorkingDirectory};
pub use policy::{KNOWLEDGE_POLICY, KnowledgePolicy, KnowledgePolicyError, UNKNOWN_FILE};
pub use suggest::{NotAnObject, Suggested, Suggestion};
pub use touch::{Touch, TouchForm, TouchRule};
