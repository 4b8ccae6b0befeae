//! The rules of appends: one test per rule, and random batches.

mod batches;
mod branch_rules;
mod call_rules;
mod compaction_rules;
mod conversation_rules;
mod random;
mod sub_context_rules;
mod world;

// `world` and `random` are compiled in the tests of `treering-proto` as well.
use crate as domain;
