//! engine
pub mod error;
pub mod query;
