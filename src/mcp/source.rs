//! The store behind the tools.
//!
//! A folder is opened when it is needed and released shortly after the last answer: an agent's
//! session lasts for hours, and other sessions and imports need the folder meanwhile.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::{Mutex, MutexGuard};

use super::{
    bounds::{FOLDER_HELD_MAX, FOLDER_IDLE, FOLDER_LEFT},
    failure::Failure,
};
use treering_client::{ClientError, ConnectOptions, Connection, FolderOptions, Target};
use treering_engine::{OpenMode, PackingMode};

/// How often to check whether others have finished.
const TURN: Duration = Duration::from_millis(10);

/// How a call uses the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreUse {
    /// It only reads.
    Looks,
    /// It appends.
    Appends,
}

/// A store that is named by command line options.
#[derive(Debug)]
pub(crate) struct OwnStore {
    options: ConnectOptions,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    open: Option<OpenStore>,
    /// Rebuild the projections at the next open: damaged ones were found.
    fresh_projections: bool,
    /// Leave the folder to others until this time.
    left_until: Option<Instant>,
}

#[derive(Debug)]
struct OpenStore {
    connection: Arc<Connection>,
    may_append: bool,
    since: Instant,
    /// Whether others must wait until it is closed.
    keeps_out: bool,
    /// Whether the target is a folder. Its store is open in this process, or through the folder's
    /// server, which may end.
    is_folder: bool,
}

impl State {
    fn is_left(&self) -> bool {
        self.left_until.is_some_and(|until| Instant::now() < until)
    }
}

impl OwnStore {
    /// Creates the source; opens nothing yet.
    #[must_use]
    pub(crate) fn new(options: ConnectOptions) -> Arc<Self> {
        Arc::new(Self {
            options,
            state: Mutex::default(),
        })
    }

    /// Returns the store, and opens it if needed.
    ///
    /// # Errors
    /// As [`Connection::open`].
    pub(crate) async fn get(
        self: &Arc<Self>,
        what: StoreUse,
    ) -> Result<Arc<Connection>, ClientError> {
        let mut state = loop {
            let mut state = self.state.lock().await;
            match &state.open {
                Some(open) if open.suffices(what) && !open.is_held_too_long() => {
                    return Ok(Arc::clone(&open.connection));
                }
                None if state.is_left() => drop(state),
                None => break state,
                Some(open) if Arc::strong_count(&open.connection) == 1 => {
                    if open.is_held_too_long() {
                        state.left_until = Some(Instant::now() + FOLDER_LEFT);
                    }
                    close(&mut state).await?;
                }
                Some(_) => drop(state),
            }
            tokio::time::sleep(TURN).await;
        };
        let open = self.open(&state, what).await?;
        let connection = Arc::clone(&open.connection);
        let is_folder = open.is_folder;
        state.open = Some(open);
        drop(state);
        if is_folder {
            tokio::spawn(close_when_idle(
                Arc::clone(self),
                Arc::downgrade(&connection),
            ));
        }
        Ok(connection)
    }

    /// Records why a use failed. Returns true if a retry may succeed.
    pub(crate) async fn failed(&self, failure: &Failure) -> bool {
        let mut state = self.state.lock().await;
        if failure.is_of_damaged_views && !state.fresh_projections {
            state.fresh_projections = true;
            state.open = None;
            return true;
        }
        // The server of a folder has ended: the next use opens the folder itself.
        if failure.is_gone && state.open.as_ref().is_some_and(|open| open.is_folder) {
            state.open = None;
        }
        false
    }

    /// Closes the store.
    pub(crate) async fn close(&self) {
        let mut state = self.state.lock().await;
        // Nobody is left to report an error to.
        let _ = close(&mut state).await;
    }

    async fn open(&self, state: &State, what: StoreUse) -> Result<OpenStore, ClientError> {
        let is_folder = matches!(self.options.target, Target::Data(_));
        let opening = FolderOptions {
            with_meaning: true,
            mode: match what {
                StoreUse::Looks => OpenMode::Read,
                StoreUse::Appends => OpenMode::Append,
            },
            packing: PackingMode::Usually,
            fresh_projections: state.fresh_projections && what == StoreUse::Looks,
        };
        let connection = Connection::open(&self.options, opening).await?;
        Ok(OpenStore {
            may_append: what == StoreUse::Appends || !connection.is_embedded(),
            since: Instant::now(),
            keeps_out: what == StoreUse::Appends && connection.is_embedded(),
            connection: Arc::new(connection),
            is_folder,
        })
    }
}

impl OpenStore {
    fn suffices(&self, what: StoreUse) -> bool {
        what == StoreUse::Looks || self.may_append
    }

    /// True when an agent that writes without a pause has kept others out for too long.
    fn is_held_too_long(&self) -> bool {
        self.keeps_out && self.since.elapsed() > FOLDER_HELD_MAX
    }
}

async fn close(state: &mut MutexGuard<'_, State>) -> Result<(), ClientError> {
    match state
        .open
        .take()
        .map(|open| Arc::try_unwrap(open.connection))
    {
        Some(Ok(connection)) => connection.close().await,
        // The last user drops it, and that closes it.
        Some(Err(_)) | None => Ok(()),
    }
}

/// Closes a folder after nobody has used it for a while.
async fn close_when_idle(source: Arc<OwnStore>, connection: std::sync::Weak<Connection>) {
    let mut was_idle = false;
    loop {
        tokio::time::sleep(FOLDER_IDLE / 2).await;
        let mut state = source.state.lock().await;
        let Some(open) = &state.open else { return };
        if !std::ptr::eq(open.connection.as_ref(), connection.as_ptr()) {
            return;
        }
        let is_idle = Arc::strong_count(&open.connection) == 1;
        if is_idle && was_idle {
            if let Err(error) = close(&mut state).await {
                tracing::warn!(%error, "the data folder was not closed cleanly");
            }
            return;
        }
        was_idle = is_idle;
    }
}
