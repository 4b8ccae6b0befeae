//! Rebuilding projections and index from the log while the store is in use. One rebuild runs at a
//! time. The new projections and the new index are built beside the old ones, and replace them once
//! complete.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
};

use futures::{SinkExt, StreamExt, channel::mpsc, stream::BoxStream};

use super::{
    Engine, Inner,
    catch_up::{empty, replace_projections},
    error::ReadError,
    fold::ProjectionFold,
    indexer::held,
    query::{Progress, RebuildItem, RebuildOutcome},
    sequencer::lock,
};
use treering_domain::{OperationError, with_causes};
use treering_projections::Projections;

impl Engine {
    /// Rebuilds the projections, the index or both from the log. Appends and reads continue. The
    /// new ones replace the old ones once they have caught up; after a failure the old ones stay.
    /// Unreadable parts of the log are skipped, marked and counted. A second rebuild is refused
    /// while one runs.
    pub fn rebuild(
        &self,
        projections: bool,
        index: bool,
    ) -> BoxStream<'static, Result<RebuildItem, ReadError>> {
        let inner = Arc::clone(&self.inner);
        let (mut sender, receiver) = mpsc::channel(16);
        tokio::spawn(async move {
            let done = rebuild(&inner, projections, index, &mut sender).await;
            // The caller may be gone; the work continues anyway.
            let _ = sender.send(done.map(RebuildItem::Outcome)).await;
        });
        receiver.boxed()
    }
}

impl Inner {
    /// Rebuilds damaged projections; returns false on failure.
    pub(super) async fn repair_projections(self: &Arc<Self>) -> bool {
        tracing::error!(
            "the projections are damaged and are rebuilt from the log; nothing is lost"
        );
        // Progress is not reported.
        let (mut reports, _) = mpsc::channel(1);
        match rebuild(self, true, false, &mut reports).await {
            Ok(made) => {
                tracing::info!(events = made.events, "the projections are intact again");
                true
            }
            Err(error) => {
                tracing::error!(error = %with_causes(&error), "the projections were not rebuilt; retrying");
                false
            }
        }
    }
}

type Reports = mpsc::Sender<Result<RebuildItem, ReadError>>;

async fn rebuild(
    inner: &Arc<Inner>,
    projections: bool,
    index: bool,
    reports: &mut Reports,
) -> Result<RebuildOutcome, ReadError> {
    let one = Arc::clone(&inner.upkeep.rebuilding).try_lock_owned();
    let _one = one.map_err(|_| ReadError::RebuildRuns)?;
    held(inner).map_err(ReadError::storage)?;
    let mut outcome = RebuildOutcome::default();
    if projections {
        let mut told = |done, head| report(reports, "views", done, head);
        let made = rebuild_projections(inner, Appends::GoOn, &mut told).await;
        (outcome.events, outcome.damaged) = made?;
    }
    if index {
        let head = inner.reads.published.load(Ordering::Acquire);
        let made =
            super::indexer::rebuild_index(inner, |done| report(reports, "index", done, head));
        let made = made.await.map_err(|error| {
            let what = "the search index was not rebuilt; the old one stays";
            ReadError::storage(OperationError::new(what, error))
        })?;
        outcome.events = outcome.events.max(head);
        (outcome.documents, outcome.not_indexed) = (made.documents, made.not_indexed);
    }
    Ok(outcome)
}

fn report(reports: &mut Reports, what: &'static str, done: u64, total: u64) {
    // A slow reader may miss progress reports, but never the outcome.
    let _ = reports.try_send(Ok(RebuildItem::Progress(Progress { what, done, total })));
}

/// How appends are handled while new projections replace the old ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Appends {
    /// They continue.
    GoOn,
    /// They wait, and the writer discards its caches, because the new projections have less content
    /// than the old ones.
    Wait,
}

/// Rebuilds the projections. Returns how many events were read, and how many conversations had to
/// be marked as damaged.
pub(super) async fn rebuild_projections(
    inner: &Arc<Inner>,
    appends: Appends,
    report: &mut (impl FnMut(u64, u64) + Send),
) -> Result<(u64, u64), ReadError> {
    let place = inner.upkeep.projections_path.as_deref().map(beside);
    let fresh = match &place {
        Some(place) => empty(place)?,
        None => Projections::in_memory()?,
    };
    let made = fill_and_swap(inner, Arc::new(fresh), appends, report).await;
    if let (Err(_), Some(place)) = (&made, &place)
        && let Err(error) = Projections::wipe(place)
    {
        tracing::warn!(error = %with_causes(&error), "the unfinished projections could not be removed; the next rebuild removes them");
    }
    made
}

async fn fill_and_swap(
    inner: &Arc<Inner>,
    projections: Arc<Projections>,
    appends: Appends,
    report: &mut (impl FnMut(u64, u64) + Send),
) -> Result<(u64, u64), ReadError> {
    let folder = ProjectionFold::new(Arc::clone(&projections), Arc::clone(&inner.reads.reader))?;
    let mut folder = folder
        .stop_when(Arc::clone(&inner.closing))
        .after((**inner.reads.projections.load()).clone());
    let head = inner.reads.published.load(Ordering::Acquire);
    folder.run(head, |done| report(done, head)).await?;
    projections.make_durable()?;
    let _alone = match appends {
        Appends::GoOn => None,
        Appends::Wait => {
            let alone = inner.appends.gate.write().await;
            inner.settled().await.map_err(ReadError::storage)?;
            Some(alone)
        }
    };
    let inner = Arc::clone(inner);
    let last = tokio::task::spawn_blocking(move || {
        // Nothing is published while the last events are folded and the projections are replaced.
        let _gate = lock(&inner.upkeep.projections_gate);
        let head = inner.reads.published.load(Ordering::Acquire);
        futures::executor::block_on(folder.run(head, |_| {}))?;
        if inner.closing.load(Ordering::Acquire) {
            return Err(ReadError::storage("the engine is closing"));
        }
        held(&inner).map_err(ReadError::storage)?;
        if let Some(old) = &inner.upkeep.projections_path {
            replace_projections(&projections, old)?;
        }
        inner.reads.projections.store(Arc::clone(&projections));
        if appends == Appends::Wait {
            inner.appends.cached_set.forget_all(None);
        }
        let damaged = inner.reads.quarantine.replace(&projections)?;
        Ok::<_, ReadError>((head, damaged as u64))
    });
    last.await.map_err(ReadError::storage)?
}

/// Returns the path for the rebuild. The publisher rebuilds at another path, so the two never
/// collide.
pub(super) fn beside(path: &Path) -> PathBuf {
    path.with_extension("rebuild.redb")
}
