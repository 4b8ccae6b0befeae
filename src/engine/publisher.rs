//! Makes committed groups visible: to the views, and then to readers that wait.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use super::{
    fold::Folder,
    news,
    sequencer::{Deltas, lock},
    states::SharedViews,
};
use crate::{
    log::{CommittedGroup, LogReader, PublishError, Publisher},
    views::{Views, ViewsError},
};

/// Pause before the views are opened again after a failure.
const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// Opens the views again after a failure.
pub(super) type ReopenViews = Box<dyn Fn() -> Result<Views, ViewsError> + Send>;

/// Publishes groups to the views.
pub(super) struct EnginePublisher {
    pub views: SharedViews,
    pub deltas: Deltas,
    pub published: Arc<AtomicU64>,
    pub notify: news::Sender,
    pub reader: Arc<LogReader>,
    pub reopen: ReopenViews,
    pub closing: Arc<AtomicBool>,
    /// Held while the views change; a rebuild takes it to swap them.
    pub gate: Arc<std::sync::Mutex<()>>,
}

impl Publisher for EnginePublisher {
    fn publish(&mut self, group: &Arc<CommittedGroup>) -> Result<(), PublishError> {
        let reached = group.first_offset + group.records.len() as u64 - 1;
        let Some(delta) = lock(&self.deltas).pop_front() else {
            return Err(PublishError {
                what: format!("no changes for the group at {reached}"),
            });
        };
        {
            let gate = Arc::clone(&self.gate);
            let _gate = lock(&gate);
            let views = self.views.load_full();
            let behind = views.reached().map(|reached| reached >= delta.reached);
            // A rebuild may have come this far by itself.
            if !matches!(behind, Ok(true))
                && let Err(error) = views.apply(&delta)
            {
                drop(views);
                self.recover(reached, &error)?;
            }
        }
        self.published.store(reached, Ordering::Release);
        let grown = group
            .records
            .iter()
            .map(|record| record.header.conversation);
        self.notify.tell(reached, grown);
        Ok(())
    }
}

impl EnginePublisher {
    /// The views failed, for example because the disk is full. Nothing is lost:
    /// they are opened again and read from the log what they miss. Appends wait
    /// meanwhile.
    fn recover(&self, head: u64, error: &ViewsError) -> Result<(), PublishError> {
        tracing::warn!(%error, "the views failed; they are opened again and follow the log");
        let mut last = error.to_string();
        while !self.closing.load(Ordering::Acquire) {
            match self.catch_up(head) {
                Ok(()) => return Ok(()),
                Err(what) => last = what,
            }
            thread::sleep(RETRY_PAUSE);
        }
        Err(PublishError { what: last })
    }

    fn catch_up(&self, head: u64) -> Result<(), String> {
        // The file can be opened again only once it is not open any more.
        self.views.store(Arc::new(Views::closed()));
        let views = Arc::new((self.reopen)().map_err(|error| error.to_string())?);
        self.views.store(Arc::clone(&views));
        let mut folder =
            Folder::new(views, Arc::clone(&self.reader)).map_err(|error| error.to_string())?;
        futures::executor::block_on(folder.run(head, |_| {})).map_err(|error| error.to_string())
    }
}
