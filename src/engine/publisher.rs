//! Makes committed groups visible: applies them to the projections, then notifies waiting readers.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use super::{
    append_watch,
    catch_up::catch_up,
    damage::QuarantineList,
    group_queue::GroupQueue,
    sequencer::{Deltas, lock},
    states::SharedProjections,
};
use treering_domain::{ConversationRow, with_causes};
use treering_log::{CommittedGroup, Heartbeat, LogReader, PublishError, Publisher};
use treering_projections::{ProjectionDelta, Projections, ProjectionsError};

/// Pause before reopening the projections after a failure.
const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// Reopens the projections after a failure.
pub(super) type ReopenProjections = Box<dyn Fn() -> Result<Projections, ProjectionsError> + Send>;

/// Applies committed groups to the projections.
pub(super) struct EnginePublisher {
    pub(crate) projections: SharedProjections,
    pub(crate) deltas: Deltas,
    pub(crate) published: Arc<AtomicU64>,
    pub(crate) notify: append_watch::AppendNotifier,
    pub(crate) feed: Arc<GroupQueue>,
    pub(crate) reader: Arc<LogReader>,
    pub(crate) reopen: ReopenProjections,
    pub(crate) projections_path: Option<PathBuf>,
    pub(crate) quarantine: Arc<QuarantineList>,
    pub(crate) closing: Arc<AtomicBool>,
    /// Held while the projections change; a rebuild holds it to swap them.
    pub(crate) gate: Arc<std::sync::Mutex<()>>,
}

impl Publisher for EnginePublisher {
    fn publish(
        &mut self,
        group: &Arc<CommittedGroup>,
        beat: &Heartbeat,
    ) -> Result<(), PublishError> {
        let reached = group.first_offset + group.records.len() as u64 - 1;
        let Some(mut delta) = lock(&self.deltas).pop_front() else {
            return Err(PublishError {
                what: format!(
                    "the changes for the group that ends at offset {reached} are missing"
                ),
            });
        };
        {
            let gate = Arc::clone(&self.gate);
            let _gate = lock(&gate);
            let projections = self.projections.load_full();
            // A rebuild may have found damage after the group was decided.
            self.leave_out_damaged(&mut delta);
            let behind = projections
                .reached()
                .map(|reached| reached >= delta.reached);
            // A rebuild may already have reached this offset.
            if !matches!(behind, Ok(true))
                && let Err(error) = projections.apply(&delta)
            {
                drop(projections);
                self.recover(reached, &error, beat)?;
            }
        }
        self.feed.push(group);
        self.published.store(reached, Ordering::Release);
        let grown = group.records.iter().map(|record| record.header.key());
        self.notify.announce(reached, grown);
        Ok(())
    }
}

impl EnginePublisher {
    /// Recovers the projections after a failure, for example because the disk is full. Nothing is
    /// lost: they are reopened and catch up from the log. Appends wait until then.
    fn recover(
        &self,
        head: u64,
        error: &ProjectionsError,
        beat: &Heartbeat,
    ) -> Result<(), PublishError> {
        tracing::warn!(error = %with_causes(&error), "the projections failed; they are reopened and follow the log");
        let mut last = with_causes(error).to_string();
        while !self.closing.load(Ordering::Acquire) {
            match self.catch_up(head, beat) {
                Ok(()) => return Ok(()),
                Err(what) => last = what,
            }
            thread::sleep(RETRY_PAUSE);
            beat.sign();
        }
        Err(PublishError { what: last })
    }

    fn catch_up(&self, head: u64, beat: &Heartbeat) -> Result<(), String> {
        // Close the file before reopening it.
        self.projections.store(Arc::new(Projections::closed()));
        let projections = (self.reopen)().map_err(|error| with_causes(&error).to_string())?;
        let path = self.projections_path.as_deref();
        if projections.path().as_deref() == path {
            // Until the reopened projections catch up, reads see an earlier state. Projections that
            // are rebuilt at another path are not used until they are complete.
            self.projections.store(Arc::new(projections.clone()));
        }
        let whole = catch_up(projections, path, &self.reader, head, |_| beat.sign());
        let whole =
            futures::executor::block_on(whole).map_err(|error| with_causes(&error).to_string())?;
        let marked = self.quarantine.replace(&whole);
        marked.map_err(|error| with_causes(&error).to_string())?;
        self.projections.store(Arc::new(whole));
        Ok(())
    }

    fn leave_out_damaged(&self, delta: &mut ProjectionDelta) {
        let whole = |row: &ConversationRow| row.damage.is_none();
        let damaged =
            |row: &&ConversationRow| whole(row) && self.quarantine.get(row.key()).is_some();
        if delta.conversations.iter().any(|row| damaged(&row)) {
            delta.leave_out(|id| self.quarantine.get(id).is_some());
        }
    }
}
