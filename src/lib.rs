pub mod codec;
pub mod domain;
pub mod log;
