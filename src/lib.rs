pub mod codec;
pub mod domain;
pub mod engine;
pub mod views;
