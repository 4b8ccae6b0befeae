//! The integration tests. They are one binary, because linking takes most of the build time.

mod suite;

/// The top of the repository.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
