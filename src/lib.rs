pub mod codec;
pub mod domain;
pub mod engine;
#[cfg(feature = "server")]
pub mod server;
