//! The integration tests, in one binary, because linking is what takes time.

mod suite;
