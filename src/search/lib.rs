//! Full-text search over tool results, messages and summaries.
//!
//! Event text and its passages are in [`document`], terms in [`analyser`], the query language in
//! [`syntax`], the tantivy index in `index`, searching in `query`, snippets in `snippet`.
//!
//! This crate is the only one that uses tantivy. It does not know the log, projections, event
//! encoding or access rules: the engine adds events in order of log position with a mark of its
//! progress, and resolves names to ids before it searches. The index stores no text; snippets are
//! made from text that the caller reads from the log.

#![cfg_attr(not(test), warn(unreachable_pub))]

pub mod analyser;
mod arguments;
mod as_typed;
mod best;
mod chosen;
mod columns;
mod copies;
pub mod document;
mod error;
mod exclusion;
mod files;
#[cfg(unix)]
mod held;
mod hits;
mod index;
mod joining;
mod looked_for;
mod memory;
mod names;
pub mod pattern;
mod plan;
mod query;
mod rank;
mod refusal;
mod schema;
mod small_words;
mod snippet;
mod sweep;
pub mod syntax;
mod term_pattern;
mod unchanged;

pub use arguments::{CallTarget, call_target, call_text};
pub use as_typed::{AsTyped, Standing};
pub use chosen::ChosenConversations;
pub use copies::{CopyPlace, HitCopies};
pub use document::{
    Passage, SearchableEvent, is_reasoning_at, passage_at, passages, searchable_text,
};
pub use error::{IndexError, IndexSearchError};
pub use index::{INDEX_VERSION, SearchIndex, SearchOptions, VerifyOnOpen};
pub use looked_for::TypedNames;
pub use memory::{HASH_BYTES, HeldMemory, SEARCH_BYTES_MAX, SearchMemory, TooMany};
pub use pattern::Pattern;
pub use query::{
    Copies, FoundNames, Hit, LineageSegment, Scope, SearchFilters, SearchQuery, SearchResults,
    Wholeness,
};
pub use rank::Scores;
pub use snippet::{Snippet, Snippeter};
pub use sweep::Candidates;
pub use syntax::{QUERY_BYTES_MAX, QueryError, Reading};
pub use term_pattern::check_globs;

#[cfg(test)]
mod bounds_tests;
#[cfg(test)]
mod known_items_tests;
#[cfg(test)]
mod quality_tests;
#[cfg(test)]
mod tests;
