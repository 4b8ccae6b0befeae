pub mod codec;
pub mod domain;
