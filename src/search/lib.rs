//! Full-text search over tool results, messages and summaries.
//!
//! Event text and its passages are in [`document`], terms in `analyser`, the query language in
//! [`syntax`], the tantivy index in `index`, searching in `query`, snippets in `snippet`.
//!
//! This crate is the only one that uses tantivy. It does not know the log, projections, event
//! encoding or access rules: the engine adds events in order of log position, with a mark (the log
//! position that it has reached), and resolves names to ids before it searches. The index stores no
//! text; snippets are made from text that the caller reads from the log.

#![cfg_attr(not(test), warn(unreachable_pub))]

pub(crate) mod analyser;
mod arguments;
mod attachment;
mod by_meaning;
mod columns;
mod conversation_set;
pub mod document;
mod duplicates;
mod erase;
mod error;
mod exclusion;
mod files;
#[cfg(unix)]
mod guarded_folder;
mod hits;
mod idle_merge;
mod index;
mod lineage;
mod memory;
mod merge;
mod names;
mod overlay_folder;
pub mod pattern;
mod plan;
mod query;
mod query_terms;
mod rank;
mod recall;
mod refusal;
mod schema;
mod snippet;
mod stop_words;
mod sweep;
pub mod syntax;
mod term_pattern;
mod tool_names;
mod top_k;
mod vectors;
mod verbatim;

pub use arguments::{CallTarget, call_target, call_text};
pub use by_meaning::{MEANING_HITS_MAX, MeaningQuery};
pub use conversation_set::ChosenConversations;
pub use document::{
    Passage, SearchableEvent, attached_names, part_at, passage_at, passages, searchable_text,
    text_hash,
};
pub use duplicates::{DuplicatePlace, HitDuplicates};
pub use error::{IndexError, IndexSearchError};
pub use index::{INDEX_VERSION, SearchIndex, SearchOptions, VerifyOnOpen};
pub use lineage::{BranchLookup, ShownBranches};
pub use memory::{ExceededBound, HASH_BYTES, HeldMemory, SEARCH_BYTES_MAX, SearchMemory};
pub use merge::{
    HitRank, MergedHit, PoolFloors, RerankPool, SharedRanking, SharedStatistics, merge,
};
pub use pattern::Pattern;
pub use query::{
    DuplicateHandling, FoundNames, Hit, LineageSegment, NameCompleteness, RecalledTexts, Scope,
    SearchFilters, SearchQuery, SearchResults,
};
pub use query_terms::QueryNames;
pub use rank::{NameTier, Scores};
pub use recall::{RECALL_MARK, is_recall_call, is_recalled_text, quoted_address};
pub use snippet::{Snippet, Snippeter};
pub use sweep::Candidates;
pub use syntax::{QUERY_BYTES_MAX, QueryError, QuerySyntax};
pub use term_pattern::check_globs;
pub use vectors::{MissingPassage, VectorCoverage, VectorIndex};
pub use verbatim::{VerbatimMatch, VerbatimQuery};

#[cfg(test)]
mod bounds_tests;
#[cfg(test)]
mod known_items_tests;
#[cfg(test)]
mod meaning_quality_tests;
#[cfg(test)]
mod merge_tests;
#[cfg(test)]
mod quality_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod vectors_tests;
