//! Full text search over tool results, messages and summaries: the text of an
//! event and its passages ([`document`]), terms ([`analyser`]), the query
//! language ([`syntax`]), the index on tantivy (`index`), searching
//! (`query`) and snippets (`snippet`).
//!
//! Nothing outside this folder knows tantivy. Nothing here knows the log, the
//! views, how events are encoded, or who may ask: the engine brings events in
//! order of position with a mark of how far it has come, and resolves names to
//! ids before it asks. The index keeps no text; snippets are made from the
//! text that the caller reads from the log.

pub mod analyser;
mod arguments;
mod as_typed;
mod best;
mod columns;
mod copies;
pub mod document;
mod error;
mod exclusion;
mod files;
mod hits;
mod index;
mod joining;
mod looked_for;
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
pub use copies::{CopyPlace, HitCopies};
pub use document::{
    Passage, SearchableEvent, is_reasoning_at, passage_at, passages, searchable_text,
};
pub use error::{IndexError, IndexSearchError};
pub use index::{INDEX_VERSION, SearchIndex, SearchOptions, VerifyOnOpen};
pub use looked_for::TypedNames;
pub use pattern::Pattern;
pub use query::{
    COUNTED_MAX, Copies, FoundNames, Hit, LineageSegment, Scope, SearchFilters, SearchQuery,
    SearchResults, Wholeness,
};
pub use rank::Scores;
pub use snippet::{Snippet, Snippeter};
pub use sweep::{CANDIDATES_MAX, Candidates};
pub use syntax::{QueryError, Reading};
pub use term_pattern::{GLOBS_BYTES_MAX, check_globs};

#[cfg(test)]
mod known_items_tests;
#[cfg(test)]
mod quality_tests;
#[cfg(test)]
mod tests;
