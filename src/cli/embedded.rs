//! The engine in this process, served on whatever connections come in: a pipe
//! in memory, or a network listener.

use std::{io, time::Duration};

use futures::Stream;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::oneshot,
    task::JoinHandle,
};
use tonic::transport::server::Connected;

use super::error::{CliError, Exit};
use crate::{
    domain::with_causes,
    engine::{Engine, OpenError, OpenOptions},
    server::{self, ServeError, ServeOptions},
    summariser::{Summariser, SummariserConfig},
};

/// How long calls of others may go on after the end was asked for.
const GRACE: Duration = Duration::from_secs(10);

/// Opens a folder in this process.
///
/// # Errors
/// [`CliError::Locked`], [`CliError::Open`].
pub async fn open(options: OpenOptions) -> Result<Engine, CliError> {
    Engine::open(options).await.map_err(refused)
}

/// An engine that runs in this process.
#[derive(Debug)]
pub struct Embedded {
    summariser: Option<Summariser>,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<Result<(), ServeError>>,
}

impl Embedded {
    /// Serves an engine on these connections. `address` is what another process is
    /// told that wants the folder too; `summariser` is what summarises by itself, if
    /// anything does.
    ///
    /// # Errors
    /// [`CliError::Outcome`] when the summariser's marks cannot be written.
    pub async fn start<I, C>(
        engine: Engine,
        address: Option<String>,
        summariser: Option<SummariserConfig>,
        incoming: I,
    ) -> Result<Self, CliError>
    where
        I: Stream<Item = io::Result<C>> + Send + 'static,
        C: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    {
        let pipe = address.is_none();
        if let Some(address) = address {
            engine.announce(&address);
        }
        let summariser = match summariser {
            Some(config) => Some(Summariser::start(&engine, &config).map_err(|error| {
                let dir = config.marks_dir.display();
                CliError::Outcome {
                    what: format!("the summariser cannot note in {dir} how far it is: {error}"),
                    hint: "check the folder's owner and mode".into(),
                    exit: Exit::Unavailable,
                }
            })?),
            None => None,
        };
        let (stop, stopped) = oneshot::channel();
        // A sender that is gone ends the serving too.
        let shutdown = async {
            let _ = stopped.await;
        };
        let mut options = ServeOptions {
            grace: GRACE,
            ..ServeOptions::default()
        };
        if pipe {
            // It cannot be made again: it lasts as long as its command.
            options.idle_max = None;
            options.connection_age_max = None;
        }
        let serving = tokio::spawn(server::serve_on(engine, incoming, shutdown, options));
        Ok(Self {
            summariser,
            stop,
            serving,
        })
    }

    /// Finishes what was taken, and closes the store.
    ///
    /// # Errors
    /// [`CliError::Outcome`] when the server ended badly.
    pub async fn stop(self) -> Result<(), CliError> {
        if let Some(summariser) = self.summariser {
            summariser.stop().await;
        }
        // It may have ended by itself: then there is nobody to tell.
        let _ = self.stop.send(());
        let why = match self.serving.await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => with_causes(&error).to_string(),
            Err(error) => with_causes(&error).to_string(),
        };
        Err(CliError::Outcome {
            what: format!("the engine ended badly: {why}"),
            hint: "what was acknowledged is safe; run `treering verify` to be sure".into(),
            exit: Exit::Failed,
        })
    }
}

pub(super) fn refused(error: OpenError) -> CliError {
    let cause = with_causes(&error).to_string();
    let (path, exit) = match error {
        OpenError::Locked {
            path,
            holder,
            address,
        } => {
            return CliError::Locked {
                dir: path,
                holder,
                server: address.map(|address| with_scheme(&address)),
            };
        }
        OpenError::NoStore { path } => {
            return CliError::NotFound {
                what: format!("there is no store in {}", path.display()),
                hint: "name another folder with --data; `treering import`, `serve`, `demo` and \
                       `append` make one"
                    .into(),
            };
        }
        OpenError::WentBack { path, .. } => {
            return CliError::Outcome {
                hint: format!(
                    "`treering repair --data {}` tells what is lost",
                    path.display()
                ),
                what: cause,
                exit: Exit::Damaged,
            };
        }
        OpenError::Damaged { path, .. } => (path, Exit::Damaged),
        OpenError::ReadOnly { path } => (path, Exit::Unavailable),
        OpenError::NewerFormat { path, .. } => (path, Exit::Newer),
        OpenError::Failed { path, .. } => (path, Exit::Failed),
    };
    CliError::Open {
        dir: path,
        cause,
        exit,
    }
}

fn with_scheme(address: &str) -> String {
    if address.contains("://") {
        address.to_owned()
    } else {
        format!("http://{address}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Cause;

    /// A store of a newer version was told as a matter of permissions, with the
    /// exit code of anything.
    #[test]
    fn a_newer_store_has_its_own_exit_and_hint() {
        let error = refused(OpenError::NewerFormat {
            path: "store".into(),
            source: Cause::of("version 2"),
        });
        assert!(matches!(
            error,
            CliError::Open {
                exit: Exit::Newer,
                ..
            }
        ));
        let hint = error.hint().unwrap();
        assert!(
            hint.contains("as new as") && !hint.contains("permissions"),
            "{hint}"
        );
    }
}
