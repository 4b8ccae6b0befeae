//! For backends of other crates: the suite that every backend passes before it is used,
//! and records to fill it with. With the feature `testkit`.
//!
//! ```
//! # #[tokio::main(flavor = "multi_thread")] async fn main() {
//! use treering_log::{MemoryLog, testkit::conformance};
//!
//! // Gives an empty log each time that it is called.
//! conformance::run_all(MemoryLog::new).await;
//! # }
//! ```
//!
//! `tests/testkit.rs` has a whole backend that passes it.

pub mod conformance;
pub mod samples;
