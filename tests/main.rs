//! The integration tests, in one binary, because linking is what takes time.

mod suite;

/// The top of the repository.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
