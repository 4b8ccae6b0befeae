//! The engine in this process, served on whatever connections come in: a pipe
//! in memory, or a network listener.

use std::{io, path::Path};

use futures::Stream;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::transport::server::Connected;

use super::error::{CliError, Exit};

/// An engine that runs in this process.
#[derive(Debug)]
pub struct Embedded {}

impl Embedded {
    /// Opens the folder and serves it on these connections. `address` is what
    /// another process is told that wants the folder too.
    ///
    /// # Errors
    /// [`CliError::Locked`] and [`CliError::Open`].
    pub async fn start<I, C>(
        dir: &Path,
        _address: Option<String>,
        _incoming: I,
    ) -> Result<Self, CliError>
    where
        I: Stream<Item = io::Result<C>> + Send + 'static,
        C: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    {
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
