//! Making views and index anew from the log, while the store goes on working.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
};

use futures::{SinkExt, StreamExt, channel::mpsc, stream::BoxStream};

use super::{
    Engine, Inner,
    error::ReadError,
    fold::Folder,
    query::{Progress, RebuildItem, RebuildOutcome},
    sequencer::lock,
};
use crate::views::Views;

/// Memory for pages of views while they are built, in bytes.
const CACHE_BYTES: usize = 64 << 20;

impl Engine {
    /// Builds the views, the index or both anew from the log. Appends and reads
    /// go on; the new views take the old ones' place once they have caught up.
    pub fn rebuild(
        &self,
        views: bool,
        index: bool,
    ) -> BoxStream<'static, Result<RebuildItem, ReadError>> {
        let inner = Arc::clone(&self.inner);
        let (mut sender, receiver) = mpsc::channel(16);
        tokio::spawn(async move {
            let mut outcome = RebuildOutcome::default();
            let done = async {
                if views {
                    outcome.events = rebuild_views(&inner, &mut sender).await?;
                }
                if index {
                    outcome.documents = rebuild_index(&inner, &mut sender).await?;
                }
                Ok(RebuildItem::Outcome(outcome))
            };
            let done = done.await;
            // Whoever asked may have gone; the work is done all the same.
            let _ = sender.send(done).await;
        });
        receiver.boxed()
    }
}

type Reports = mpsc::Sender<Result<RebuildItem, ReadError>>;

fn report(reports: &mut Reports, what: &'static str, done: u64, total: u64) {
    // A reader that is slow misses some progress, never the end.
    let _ = reports.try_send(Ok(RebuildItem::Progress(Progress { what, done, total })));
}

async fn rebuild_views(inner: &Arc<Inner>, reports: &mut Reports) -> Result<u64, ReadError> {
    let path = inner.views_path.as_deref().map(beside);
    let fresh = match &path {
        Some(path) => {
            Views::wipe(path)?;
            Views::open(path, CACHE_BYTES)?
        }
        None => Views::in_memory()?,
    };
    let views = Arc::new(fresh);
    let mut folder = Folder::new(Arc::clone(&views), Arc::clone(&inner.reader))?;
    let head = inner.published.load(Ordering::Acquire);
    folder
        .run(head, |done| report(reports, "views", done, head))
        .await?;
    views.make_durable()?;
    let inner = Arc::clone(inner);
    let last = tokio::task::spawn_blocking(move || {
        // Nothing is published while the last events are folded and the new
        // views take their place.
        let _gate = lock(&inner.views_gate);
        let head = inner.published.load(Ordering::Acquire);
        futures::executor::block_on(folder.run(head, |_| {}))?;
        views.make_durable()?;
        if let (Some(new), Some(old)) = (&path, &inner.views_path) {
            std::fs::rename(new, old).map_err(|error| ReadError::Storage {
                message: format!("the new views could not take their place: {error}"),
            })?;
        }
        inner.views.store(views);
        Ok::<_, ReadError>(head)
    });
    last.await.map_err(|error| ReadError::Storage {
        message: error.to_string(),
    })?
}

fn beside(path: &Path) -> PathBuf {
    path.with_extension("rebuild.redb")
}

async fn rebuild_index(inner: &Arc<Inner>, reports: &mut Reports) -> Result<u64, ReadError> {
    let head = inner.published.load(Ordering::Acquire);
    let indexer = &inner.indexer;
    indexer.start_over();
    while indexer.is_starting_over() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let failed = |error: super::error::SearchError| ReadError::Storage {
        message: error.to_string(),
    };
    let mut ticks = tokio::time::interval(std::time::Duration::from_millis(100));
    loop {
        tokio::select! {
            done = indexer.wait_for(head) => {
                done.map_err(failed)?;
                return Ok(indexer.index().passage_count());
            }
            _ = ticks.tick() => {
                let done = indexer.index().added_to().offset;
                report(reports, "index", done, head);
            }
        }
    }
}
