//! The engine in this process, served on an in-memory pipe or a network listener.

use std::{fs, path::Path, sync::Arc, time::Duration};

use futures::FutureExt;
use tokio::{sync::oneshot, task::JoinHandle};

use super::{
    connect,
    error::{ClientError, Exit},
    safe::tell,
};
use treering_access::KeyStore;
use treering_backup::RESTORE_STAGING;
use treering_domain::with_causes;
use treering_embedders::{EmbedderError, EmbedderPlace};
use treering_engine::{Embedder, Engine, ErasureAtOpen, OpenError, OpenMode, OpenOptions};
use treering_server as server;
use treering_server::{
    ConnectionStream, ServeError, ServeOptions, ServedStore, ServerMeasures, WebService,
    tls::ServerTls,
};
use treering_summariser::{Summariser, SummariserConfig};

/// How long calls in flight may continue after a stop is requested.
const GRACE: Duration = Duration::from_secs(10);

/// Opens a folder in this process.
///
/// # Errors
/// [`ClientError::Locked`], [`ClientError::Open`]; [`ClientError::Usage`] when the folder cannot be
/// used for a store.
pub async fn open(options: OpenOptions) -> Result<Engine, ClientError> {
    check_folder(&options.data_dir, options.mode)?;
    let dir = options.data_dir.clone();
    let engine = Engine::open(options).await.map_err(refused)?;
    if let Some(told) = report_interrupted_erase(&engine, &dir) {
        tell!("{told}");
    }
    Ok(engine)
}

/// Opens an embedder.
///
/// # Errors
/// [`ClientError::Usage`] when it cannot be opened; the hint says what to do.
pub fn open_embedder(place: &EmbedderPlace) -> Result<Arc<dyn Embedder>, ClientError> {
    place.open().map_err(|error| ClientError::Usage {
        what: error.to_string(),
        hint: match error {
            EmbedderError::Local(_) => "docs/MEANING.md says where to get a model",
            EmbedderError::NotBuilt(_) => "docs/MEANING.md has both",
            EmbedderError::NoModel(_) => "name it with --embedder-model",
        }
        .into(),
    })
}

/// Opens the embedder that the environment names, as for `serve`.
pub(super) fn embedder_of_environment() -> Result<Option<Arc<dyn Embedder>>, ClientError> {
    let read = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let Some(at) = read("TREERING_EMBEDDER") else {
        return Ok(None);
    };
    let place = EmbedderPlace {
        at,
        model: read("TREERING_EMBEDDER_MODEL"),
        key: read("TREERING_EMBEDDER_KEY").unwrap_or_default(),
    };
    open_embedder(&place).map(Some)
}

/// Returns what to report about an interrupted erase.
fn report_interrupted_erase(engine: &Engine, dir: &Path) -> Option<String> {
    let dir = dir.display();
    Some(match engine.erasing_at_open() {
        ErasureAtOpen::None => return None,
        ErasureAtOpen::Finished => {
            "An interrupted erase of this store is now finished: the erased content is in none of \
             its files any more."
                .to_owned()
        }
        ErasureAtOpen::Hidden { why: None } => format!(
            "WARNING: an erase of this store was interrupted. The erased content is hidden, but \
             still in the files. `treering upgrade --data {dir}` finishes it."
        ),
        ErasureAtOpen::Hidden { why: Some(why) } => format!(
            "WARNING: an erase of this store was interrupted and cannot be finished: {why}. The \
             store is open read-only; the erased content is hidden, but still in the files. Fix \
             the problem (is the disk full?), then run `treering upgrade --data {dir}`."
        ),
    })
}

/// Prefixes of the file and folder names that a store uses, also during an interrupted run.
const OWN_NAMES: [&str; 10] = [
    "LOCK",
    "log",
    "index",
    "views",
    "summariser",
    "keys",
    "backups",
    "receipts",
    "pseudonyms",
    "vectors",
];
/// A folder that file systems create at their root.
const SYSTEMS_NAME: &str = "lost+found";

/// Refuses a path that is a file, and a new store in a folder with other files: the path is
/// probably mistyped.
fn check_folder(dir: &Path, mode: OpenMode) -> Result<(), ClientError> {
    if dir.is_file() {
        return Err(ClientError::Usage {
            what: format!("{} is a file; a store is a folder", dir.display()),
            hint: "name a folder with --data".into(),
        });
    }
    let entries = match fs::read_dir(dir) {
        Ok(entries) if mode == OpenMode::Create && !connect::has_store(dir) => entries,
        // The open call that follows reports the problem.
        _ => return Ok(()),
    };
    if dir.join(RESTORE_STAGING).exists() {
        let dir = dir.display();
        return Err(ClientError::Usage {
            what: format!("{dir} has no store yet: a restore into it was interrupted"),
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
    Err(ClientError::Usage {
        what: format!(
            "{} has no store, but has other files ({other}); a store needs a folder of its own",
            dir.display()
        ),
        hint: format!(
            "name a new folder, for example --data {}",
            dir.join("store").display()
        ),
    })
}

/// Where a network listener is reached, and how its callers authenticate.
#[derive(Clone, Debug)]
pub struct ListenEndpoint {
    /// Its URL.
    pub address: String,
    /// Keys that grant access.
    pub keys: Arc<KeyStore>,
    /// TLS certificate; `None`: no TLS.
    pub tls: Option<Arc<ServerTls>>,
    /// The web service for browsers at this address.
    pub web: Option<WebService>,
    /// Whether spans from agents are accepted.
    pub takes_spans: bool,
}

/// An engine that runs in this process.
#[derive(Debug)]
pub struct EmbeddedEngine {
    summariser: Option<Summariser>,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<Result<(), ServeError>>,
}

impl EmbeddedEngine {
    /// Serves an engine on these connections.
    ///
    /// `door` describes a network listener: its address is written to the lock file, for other
    /// processes that want the folder, and its keys grant access. Without it, the connection is a
    /// pipe, and the client at its other end may do everything. If `summariser` is given, it runs
    /// in the background. If `measures` is given, calls are counted there.
    ///
    /// # Errors
    /// [`ClientError::Outcome`] when the summariser cannot store its progress.
    pub async fn start(
        engine: Engine,
        door: Option<ListenEndpoint>,
        summariser: Option<SummariserConfig>,
        measures: Option<Arc<ServerMeasures>>,
        incoming: ConnectionStream,
    ) -> Result<Self, ClientError> {
        if let Some(door) = &door {
            engine.announce(&door.address);
        }
        let summariser = match summariser {
            Some(config) => Some(Summariser::start(&engine, &config).map_err(|error| {
                let dir = config.marks_dir.display();
                ClientError::Outcome {
                    what: format!("the summariser cannot store its progress in {dir}: {error}"),
                    hint: "check the folder's owner and mode".into(),
                    exit: Exit::Unavailable,
                }
            })?),
            None => None,
        };
        let (stop, stopped) = oneshot::channel();
        // A dropped sender also stops the server.
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
                // A pipe cannot be reconnected, so it lasts as long as its command.
                options.idle_max = None;
                options.connection_age_max = None;
                // Only the commands of this process call through a pipe.
                options.reflection = false;
                options.takes_spans = false;
            }
        }
        let serving = tokio::spawn(server::serve_on(
            engine.into(),
            incoming,
            shutdown.boxed(),
            options,
        ));
        Ok(Self {
            summariser,
            stop,
            serving,
        })
    }

    /// Serves a store on further connections, beside a server in this process that serves it
    /// already. That server's certificate and connection age limits do not apply to these
    /// connections. The keys are shared, and that server records their changes and uses.
    #[must_use]
    pub fn beside(store: ServedStore, keys: Arc<KeyStore>, incoming: ConnectionStream) -> Self {
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
            serving: tokio::spawn(server::serve_on(store, incoming, shutdown.boxed(), options)),
        }
    }

    /// Finishes the accepted work and closes the store.
    ///
    /// # Errors
    /// [`ClientError::Outcome`] when the server failed.
    pub async fn stop(self) -> Result<(), ClientError> {
        if let Some(summariser) = self.summariser {
            summariser.stop().await;
        }
        // The send fails if the server has already stopped, which is fine.
        let _ = self.stop.send(());
        let why = match self.serving.await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => with_causes(&error).to_string(),
            Err(error) => with_causes(&error).to_string(),
        };
        Err(ClientError::Outcome {
            what: format!("the engine stopped with an error: {why}"),
            hint: "acknowledged events are safe; `treering verify` checks the store".into(),
            exit: Exit::Failed,
        })
    }
}

/// Converts an error from opening a folder into a command's error.
#[must_use]
pub fn refused(error: OpenError) -> ClientError {
    let cause = with_causes(&error).to_string();
    let (path, exit) = match error {
        OpenError::Locked {
            path,
            holder,
            address,
        } => {
            return ClientError::Locked {
                dir: path,
                holder,
                server: address.map(|address| with_scheme(&address)),
            };
        }
        OpenError::NoStore { path } => {
            return ClientError::NotFound {
                what: format!("no store in {}", path.display()),
                hint: "name another folder with --data; `treering import`, `serve`, `demo` and \
                       `append` create a store"
                    .into(),
            };
        }
        OpenError::Regressed { path, .. } => {
            return ClientError::Outcome {
                hint: format!(
                    "`treering repair --data {}` lists what is lost",
                    path.display()
                ),
                what: cause,
                exit: Exit::Damaged,
            };
        }
        OpenError::NoPseudonyms { path } => {
            return ClientError::Outcome {
                hint: format!(
                    "put pseudonyms.key back into {} (after a restore, copy it from the old \
                     store); if it is lost for good, `treering serve --pseudonyms` creates a new \
                     one, but then earlier idempotency keys are no longer recognised",
                    path.display()
                ),
                what: cause,
                exit: Exit::Refused,
            };
        }
        OpenError::OlderFormat { path, .. } => {
            return ClientError::Outcome {
                hint: format!(
                    "export it with the program that wrote it and import that into a new folder; \
                     name another folder than {} with --data",
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
    ClientError::Open {
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
    use treering_domain::Cause;

    // A mistyped `--data ~/projects` created a store among the projects, and a path to a file
    // failed with a raw system message. Hidden files and remains of a store must not block a new
    // store.
    #[test]
    fn new_store_refuses_a_folder_with_other_files() {
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
        // A store with other files beside it can still be opened.
        fs::create_dir(dir.path().join("log")).unwrap();
        assert!(!refused(dir.path(), is_made));
    }

    /// A store of a newer version was reported as a permission problem with the general exit code.
    #[test]
    fn newer_format_has_its_own_exit_code_and_hint() {
        let error = refused(OpenError::NewerFormat {
            path: "store".into(),
            source: Cause::of("version 2"),
        });
        assert!(matches!(
            error,
            ClientError::Open {
                exit: Exit::Newer,
                ..
            }
        ));
        let hint = error.hint().unwrap();
        assert!(
            hint.contains("a newer one") && !hint.contains("permissions"),
            "{hint}"
        );
    }

    /// A store from before the first release is neither newer nor damaged, and the error must say
    /// so.
    #[test]
    fn older_format_hint_says_to_export() {
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
