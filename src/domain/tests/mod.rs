//! The rules of appends: one test per rule, and random batches.

mod batches;
mod branch_rules;
mod call_rules;
mod compaction_rules;
mod conversation_rules;
mod sub_context_rules;
mod world;
