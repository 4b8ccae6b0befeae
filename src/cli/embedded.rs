//! The engine in this process, served through a pipe in memory.

use std::path::Path;

use super::{
    connect::Incoming,
    error::{CliError, Exit},
};

/// An engine that runs in this process.
#[derive(Debug)]
pub struct Embedded {}

impl Embedded {
    /// Opens the folder and serves it on these pipes.
    ///
    /// # Errors
    /// [`CliError::Locked`] and [`CliError::Open`].
    pub async fn start(dir: &Path, _incoming: Incoming) -> Result<Self, CliError> {
        Err(CliError::Open {
            dir: dir.to_owned(),
            cause: "the engine is not there yet".into(),
            exit: Exit::Failed,
        })
    }

    /// Finishes what was taken, and closes the store.
    ///
    /// # Errors
    /// [`CliError::Outcome`] when the engine ended badly.
    pub async fn stop(self) -> Result<(), CliError> {
        Ok(())
    }
}
