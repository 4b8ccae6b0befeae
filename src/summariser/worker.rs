//! Follows the log and processes one branch after the other.

use std::io;

use futures::{FutureExt, StreamExt, stream::BoxStream};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep_until},
};

use super::{
    config::SummariserConfig,
    endpoint::Endpoint,
    mark::MarkFile,
    queue::{BranchKey, Queue},
    tasks::{WorkError, WorkOutcome, Worker},
};
use treering_domain::{EventKind, Namespace, with_causes};
use treering_engine::{
    Engine, EventSource, ReadError, StartAfter, SubscribeQuery, SubscriptionItem,
};

/// A running summariser.
#[derive(Debug)]
pub struct Summariser {
    stop: watch::Sender<bool>,
    workers: Vec<JoinHandle<()>>,
}

impl Summariser {
    /// Starts a worker for each namespace. One without a mark starts at the end of the log:
    /// enabling a summariser does not summarise the past.
    ///
    /// # Errors
    /// When the folder of the marks cannot be written.
    pub fn start(engine: &Engine, config: &SummariserConfig) -> io::Result<Self> {
        let (stop, stopped) = watch::channel(false);
        let mut workers = Vec::new();
        for namespace in &config.namespaces {
            let follower = Follower::new(engine, config, namespace)?;
            workers.push(tokio::spawn(follower.run(stopped.clone())));
        }
        Ok(Self { stop, workers })
    }

    /// Stops waiting and writes the progress. Interrupted work is done after the next start.
    pub async fn stop(mut self) {
        // Fails if the workers have ended already.
        let _ = self.stop.send(true);
        for worker in std::mem::take(&mut self.workers) {
            if let Err(error) = worker.await {
                tracing::error!(error = %with_causes(&error), "a summariser failed");
            }
        }
    }
}

/// Dropping a summariser stops it.
impl Drop for Summariser {
    fn drop(&mut self) {
        self.workers.iter().for_each(JoinHandle::abort);
    }
}

/// Follows one namespace.
pub(super) struct Follower {
    pub(crate) worker: Worker,
    mark: MarkFile,
    marked: u64,
    /// The log offset of the last event that was read.
    seen: u64,
    queue: Queue,
}

type News = BoxStream<'static, Result<SubscriptionItem, ReadError>>;

impl Follower {
    pub(crate) fn new(
        engine: &Engine,
        config: &SummariserConfig,
        namespace: &Namespace,
    ) -> io::Result<Self> {
        let mark = MarkFile::of(&config.marks_dir, namespace)?;
        let head = engine.head().offset;
        let marked = match mark.read() {
            // A store that was restored to an earlier state has a shorter log.
            Some(offset) => offset.min(head),
            None => {
                mark.write(head)?;
                head
            }
        };
        Ok(Self {
            worker: Worker {
                engine: engine.clone(),
                namespace: namespace.clone(),
                endpoint: Endpoint::new(config.endpoint.clone()),
                config: config.clone(),
                answers: Default::default(),
                #[cfg(test)]
                dies_at: None,
            },
            mark,
            marked,
            seen: marked,
            queue: Queue::default(),
        })
    }

    /// Works until it is stopped.
    pub(crate) async fn run(mut self, mut stopped: watch::Receiver<bool>) {
        let mut news = self.news();
        let mut mark_at = Instant::now() + self.worker.config.mark_every;
        loop {
            while let Some(item) = news.next().now_or_never() {
                if !self.take(item) {
                    return self.write_mark().await;
                }
            }
            if mark_at <= Instant::now() {
                self.write_mark().await;
                mark_at = Instant::now() + self.worker.config.mark_every;
            }
            if let Some(place) = self.queue.due() {
                let failures = self.queue.failures(place);
                let outcome = tokio::select! {
                    biased;
                    _ = stopped.changed() => return self.write_mark().await,
                    outcome = self.worker.work(place, failures) => outcome,
                };
                if !self.settle(place, outcome) {
                    return;
                }
                continue;
            }
            let unmarked = self.progress() > self.marked;
            let wake = [self.queue.wake_at(), unmarked.then_some(mark_at)];
            let wake = wake.into_iter().flatten().min();
            tokio::select! {
                biased;
                _ = stopped.changed() => return self.write_mark().await,
                item = news.next() => if !self.take(item) {
                    return self.write_mark().await;
                },
                () = until(wake) => {}
            }
        }
    }

    fn news(&self) -> News {
        self.worker.engine.subscribe(SubscribeQuery {
            namespace: self.worker.namespace.clone(),
            source: EventSource::Log,
            start: StartAfter::Place(self.seen),
            kinds: vec![EventKind::MessageAppended],
        })
    }

    /// Handles an item of the subscription; false when it has ended.
    fn take(&mut self, item: Option<Result<SubscriptionItem, ReadError>>) -> bool {
        match item {
            Some(Ok(SubscriptionItem::Event(event))) => {
                let offset = event.event.position.offset;
                let place = BranchKey {
                    conversation: event.event.header.conversation,
                    branch: event.event.header.branch,
                };
                self.queue.note(place, offset, self.worker.config.settle);
                self.seen = self.seen.max(offset);
                true
            }
            Some(Ok(SubscriptionItem::CaughtUp(position))) => {
                self.seen = self.seen.max(position.offset);
                true
            }
            Some(Ok(SubscriptionItem::FellBehind(_))) => true,
            Some(Err(error)) => {
                tracing::error!(error = %with_causes(&error), "the summariser cannot read the log: it stops");
                false
            }
            None => false,
        }
    }

    /// Handles the result of work on a branch; false when the worker must stop.
    fn settle(&mut self, place: BranchKey, outcome: Result<WorkOutcome, WorkError>) -> bool {
        let BranchKey {
            conversation,
            branch,
        } = place;
        match outcome {
            Ok(WorkOutcome::All) => self.queue.done(place),
            Ok(WorkOutcome::More) => self.queue.again(place),
            Err(WorkError::Needless(why)) => {
                tracing::debug!(%conversation, %branch, why, "nothing to summarise");
                self.queue.done(place);
            }
            Err(WorkError::Endpoint(error)) => {
                let failures = self.queue.failed(place);
                let wait = self.worker.config.back_off.after(failures);
                let wait = error.retry_after().map_or(wait, |asked| asked.max(wait));
                tracing::warn!(
                    %conversation, %branch, failures, wait_ms = wait.as_millis(), error = %with_causes(&error),
                    "a summary is delayed"
                );
                if error.is_about_the_endpoint() {
                    self.queue.rest(wait);
                } else {
                    self.queue.postpone(place, wait);
                }
            }
            Err(WorkError::Later(why)) => {
                // This may last long, for example while the disk or a quota is full, and each try
                // queries the model.
                let failures = self.queue.failed(place);
                let wait = self.worker.config.back_off.after(failures);
                tracing::warn!(%conversation, %branch, why, failures, "a summary is delayed");
                self.queue.postpone(place, wait);
            }
            Err(WorkError::Closing) => return false,
            #[cfg(test)]
            Err(WorkError::Died) => return false,
        }
        true
    }

    /// Returns the offset up to which everything is done.
    fn progress(&self) -> u64 {
        self.queue
            .first_offset()
            .map_or(self.seen, |first| first - 1)
    }

    async fn write_mark(&mut self) {
        let offset = self.progress();
        if offset <= self.marked {
            return;
        }
        let mark = self.mark.clone();
        match tokio::task::spawn_blocking(move || mark.write(offset)).await {
            Ok(Ok(())) => self.marked = offset,
            Ok(Err(error)) => {
                tracing::warn!(error = %with_causes(&error), "the summariser's progress cannot be stored")
            }
            Err(error) => {
                tracing::warn!(error = %with_causes(&error), "the summariser's progress was not stored")
            }
        }
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
