pub mod codec;
pub mod domain;
#[cfg(feature = "search")]
pub mod search;
