//! The engine in this process, served on whatever connections come in: a pipe
//! in memory, or a network listener.

use std::{fs, io, path::Path, sync::Arc, time::Duration};

use futures::Stream;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::oneshot,
    task::JoinHandle,
};
use tonic::transport::server::Connected;

use super::{
    connect,
    error::{CliError, Exit},
};
use crate::{
    access::KeyRing,
    backup::RESTORE_STAGING,
    domain::with_causes,
    engine::{Engine, ErasingAtOpen, OpenError, OpenMode, OpenOptions},
    server::{self, ServeError, ServeOptions, ServerMeasures, WebService, tls::ServerTls},
    summariser::{Summariser, SummariserConfig},
};

/// How long calls of others may go on after the end was asked for.
const GRACE: Duration = Duration::from_secs(10);

/// Opens a folder in this process.
///
/// # Errors
/// [`CliError::Locked`], [`CliError::Open`]; [`CliError::Usage`] for what is no folder for a
/// store.
pub async fn open(options: OpenOptions) -> Result<Engine, CliError> {
    check_folder(&options.data_dir, options.mode)?;
    let dir = options.data_dir.clone();
    let engine = Engine::open(options).await.map_err(refused)?;
    if let Some(told) = told_of_erasing(&engine, &dir) {
        anstream::eprintln!("{told}");
    }
    Ok(engine)
}

/// What there is to say of an erasing that was interrupted.
fn told_of_erasing(engine: &Engine, dir: &Path) -> Option<String> {
    let dir = dir.display();
    Some(match engine.erasing_at_open() {
        ErasingAtOpen::None => return None,
        ErasingAtOpen::Finished => {
            "An erasing had been interrupted in this store. It is finished now: what it erased is \
             in no file of it any more."
                .to_owned()
        }
        ErasingAtOpen::Hidden { why: None } => format!(
            "WARNING: an erasing was interrupted in this store. What it erased is not shown, but \
             still in its files: `treering upgrade --data {dir}` finishes it."
        ),
        ErasingAtOpen::Hidden { why: Some(why) } => format!(
            "WARNING: an erasing was interrupted in this store, and cannot be finished: {why}. \
             The store is open to be read only; what was erased is not shown, but still in its \
             files. Mend that (is the disk full?), then `treering upgrade --data {dir}` finishes \
             it."
        ),
    })
}

/// What is in a store's folder, however it was left.
const OWN_NAMES: [&str; 9] = [
    "LOCK",
    "log",
    "index",
    "views",
    "summariser",
    "keys",
    "backups",
    "receipts",
    "pseudonyms",
];
/// What file systems put into their topmost folders.
const SYSTEMS_NAME: &str = "lost+found";

/// Refuses a file, and a new store among other things: its folder was mistyped.
fn check_folder(dir: &Path, mode: OpenMode) -> Result<(), CliError> {
    if dir.is_file() {
        return Err(CliError::Usage {
            what: format!("{} is a file, and a store is a folder", dir.display()),
            hint: "name a folder with --data".into(),
        });
    }
    let entries = match fs::read_dir(dir) {
        Ok(entries) if mode == OpenMode::Create && !connect::has_store(dir) => entries,
        // Opening says what is wrong with it.
        _ => return Ok(()),
    };
    if dir.join(RESTORE_STAGING).exists() {
        let dir = dir.display();
        return Err(CliError::Usage {
            what: format!("{dir} has no store yet: restoring one there was interrupted"),
            hint: format!("run `treering restore FROM --to {dir}` again, or name another folder"),
        });
    }
    let is_other = |name: &String| {
        !name.starts_with('.')
            && name != SYSTEMS_NAME
            && !OWN_NAMES.iter().any(|own| name.starts_with(own))
    };
    let names = entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned());
    let Some(other) = names.filter(is_other).min() else {
        return Ok(());
    };
    Err(CliError::Usage {
        what: format!(
            "{} has no store, but other files ({other}), and a store has its folder for itself",
            dir.display()
        ),
        hint: format!(
            "name a new folder, for example --data {}",
            dir.join("store").display()
        ),
    })
}

/// Where a network listener is reached, and who may come in.
#[derive(Clone, Debug)]
pub struct Door {
    /// Its URL.
    pub address: String,
    /// Who may do what.
    pub keys: Arc<KeyRing>,
    /// Its certificate, if it has one.
    pub tls: Option<Arc<ServerTls>>,
    /// What answers browsers there, if anything does.
    pub web: Option<WebService>,
    /// Spans of agents are taken.
    pub takes_spans: bool,
}

/// An engine that runs in this process.
#[derive(Debug)]
pub struct Embedded {
    summariser: Option<Summariser>,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<Result<(), ServeError>>,
}

impl Embedded {
    /// Serves an engine on these connections. `door` is what another process is told that
    /// wants the folder too, and who may come in; without one it is a pipe, and whoever has
    /// its other end may do everything. `summariser` is what summarises by itself, if
    /// anything does; in `measures`, calls are counted.
    ///
    /// # Errors
    /// [`CliError::Outcome`] when the summariser's marks cannot be written.
    pub async fn start<I, C>(
        engine: Engine,
        door: Option<Door>,
        summariser: Option<SummariserConfig>,
        measures: Option<Arc<ServerMeasures>>,
        incoming: I,
    ) -> Result<Self, CliError>
    where
        I: Stream<Item = io::Result<C>> + Send + 'static,
        C: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    {
        if let Some(door) = &door {
            engine.announce(&door.address);
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
            measures,
            ..ServeOptions::default()
        };
        match door {
            Some(door) => {
                options.keys = Some(door.keys);
                options.tls = door.tls;
                options.web = door.web;
                options.takes_spans = door.takes_spans;
            }
            None => {
                // It cannot be made again: it lasts as long as its command.
                options.idle_max = None;
                options.connection_age_max = None;
            }
        }
        let serving = tokio::spawn(server::serve_on(engine, incoming, shutdown, options));
        Ok(Self {
            summariser,
            stop,
            serving,
        })
    }

    /// Serves an engine that a server of this process has, on more connections, which that
    /// server's certificate and limits of age are not for. The keys are the same, and it is the
    /// server that notes their changes and uses.
    #[must_use]
    pub fn beside<I, C>(engine: Engine, keys: Arc<KeyRing>, incoming: I) -> Self
    where
        I: Stream<Item = io::Result<C>> + Send + 'static,
        C: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    {
        let (stop, stopped) = oneshot::channel();
        let shutdown = async {
            let _ = stopped.await;
        };
        let options = ServeOptions {
            grace: GRACE,
            keys: Some(keys),
            is_beside: true,
            idle_max: None,
            connection_age_max: None,
            ..ServeOptions::default()
        };
        Self {
            summariser: None,
            stop,
            serving: tokio::spawn(server::serve_on(engine, incoming, shutdown, options)),
        }
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
        OpenError::NoPseudonyms { path } => {
            return CliError::Outcome {
                hint: format!(
                    "put pseudonyms.key back into {} (a restored store: copy that of the old \
                     one); if it is gone for good, `treering serve --pseudonyms` makes a new one, \
                     and idempotency keys of before are not known again",
                    path.display()
                ),
                what: cause,
                exit: Exit::Refused,
            };
        }
        OpenError::OlderFormat { path, .. } => {
            return CliError::Outcome {
                hint: format!(
                    "export it with the program that wrote it and import that into a new folder, \
                     or name another one than {} with --data",
                    path.display()
                ),
                what: cause,
                exit: Exit::Refused,
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

    // A mistyped `--data ~/projects` made a store among the projects, and that of a file was
    // told in words of the system. What is hidden, or was left of a store, is no hindrance.
    #[test]
    fn a_new_store_has_its_folder_for_itself() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("notes.txt");
        let refused = |dir: &Path, mode| check_folder(dir, mode).is_err();
        let is_made = OpenMode::Create;
        assert!(!refused(dir.path(), is_made) && !refused(&dir.path().join("new"), is_made));
        for own in [".gitignore", "lost+found", "LOCK", "views.redb"] {
            fs::write(dir.path().join(own), "").unwrap();
        }
        assert!(!refused(dir.path(), is_made));
        fs::write(&file, "").unwrap();
        let error = check_folder(dir.path(), is_made).unwrap_err();
        assert!(error.to_string().contains("notes.txt"), "{error}");
        assert!(!refused(dir.path(), OpenMode::Read));
        for mode in [OpenMode::Read, OpenMode::Append, is_made] {
            assert!(refused(&file, mode));
        }
        // A store that has got other files is still one.
        fs::create_dir(dir.path().join("log")).unwrap();
        assert!(!refused(dir.path(), is_made));
    }

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

    /// One from before the first release is not of a newer version, and not damaged.
    #[test]
    fn an_older_store_is_told_what_to_do() {
        let error = refused(OpenError::OlderFormat {
            path: "store".into(),
            source: Cause::of("version 1"),
        });
        let hint = error.hint().unwrap();
        assert!(
            hint.contains("export it") && hint.contains("store"),
            "{hint}"
        );
    }
}
