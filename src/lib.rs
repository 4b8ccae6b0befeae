#[cfg(feature = "cli")]
pub mod cli;
pub mod codec;
pub mod domain;
pub mod engine;
#[cfg(feature = "import")]
pub mod importer;
