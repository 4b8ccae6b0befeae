pub mod codec;
pub mod domain;
#[cfg(feature = "import")]
pub mod importer;
