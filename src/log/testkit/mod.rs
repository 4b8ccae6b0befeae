//! For backends in other crates: the suite that every backend must pass, and sample records.
//! Requires the feature `testkit`.
//!
//! ```
//! # #[tokio::main(flavor = "multi_thread")] async fn main() {
//! use treering_log::{MemoryLog, testkit::conformance};
//!
//! // The function returns an empty log on every call.
//! conformance::run_all(MemoryLog::new).await;
//! # }
//! ```
//!
//! `tests/testkit.rs` has a whole backend that passes it.

pub mod conformance;
pub mod samples;
