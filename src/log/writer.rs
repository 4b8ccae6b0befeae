//! Group commit. One thread decides and writes. While more is waiting to be written, a second
//! thread publishes and answers; otherwise the first thread does that too.
//!
//! There is no timer: a group has the requests that arrived while the previous one was written. All
//! answers, rejections included, are sent only after their group is durable and published, so that
//! a caller with an answer can read the events it refers to. The caller defines what is decided and
//! what publishing means.
//!
//! A log may fail without reporting whether it appended a group. The waiting callers are told so
//! within seconds; the writer keeps asking the log, refuses appends meanwhile, and continues once
//! it knows: the group is published, or what was staged for it is rolled back. Appends stop for
//! good only when the log is closed or has another owner, when a group cannot be published, and
//! after a panic. [`WriterHealth`] reports the writer's state.

mod commit;
mod error;
mod health;
mod measures;
mod queue;

use std::{
    collections::VecDeque,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::{self, JoinHandle},
};

use futures::channel::oneshot;

use self::{
    commit::{Committer, Owner},
    health::{Appends, EndRecorder, HealthState},
    queue::{Queue, QueuedRequest, WakeReason},
};
pub use self::{
    error::GroupError,
    health::{Heartbeat, WriterHealth},
    measures::WriterMeasures,
};
use super::{
    port::{Epoch, EventLog, LogError, NewBlob},
    record::Record,
};
use treering_base::trace::WriteTrace;
use treering_domain::ShardId;

/// Maximum number of groups queued for the publisher; beyond that, the writer waits for it.
const PUBLISH_GROUPS_MAX: usize = 3;

/// The outcome of one request.
#[derive(Debug)]
pub struct PendingAppend<A> {
    /// Records to append, in order; empty for a rejection or a repeated key.
    pub records: Vec<Record>,
    /// Large bodies that the records reference; `home_offset` is that of the referencing record.
    pub blobs: Vec<NewBlob>,
    /// Sent when the group is durable and published.
    pub answer: A,
}

/// A group of durable records.
#[derive(Debug, Clone, PartialEq)]
pub struct CommittedGroup {
    /// Offset of the first record.
    pub first_offset: u64,
    /// The records in order, at least one.
    pub records: Vec<Record>,
}

/// Decides what is appended. Runs on the writer's thread and does no I/O.
pub trait Sequencer: Send + 'static {
    /// The type of requests.
    type Request: Send + 'static;
    /// The type of answers.
    type Answer: Send + 'static;

    /// Decides one request. `next_offset` is the offset that its first record would get. Later
    /// requests of the same group see what was staged before them.
    fn stage(&mut self, next_offset: u64, request: Self::Request) -> PendingAppend<Self::Answer>;

    /// Called when everything staged since the last call is durable. Not called for a group without
    /// records.
    fn committed(&mut self, group: &Arc<CommittedGroup>);

    /// Called when everything staged since the last call was not appended and must be rolled back.
    ///
    /// Nothing is staged between a group with an unknown outcome and the call that settles it,
    /// [`Self::committed`] or this one.
    fn aborted(&mut self, error: &GroupError);

    /// Returns the answer for a request whose group was not appended, or whose outcome is unknown
    /// ([`LogError::UnknownOutcome`]). It replaces `answer`, which [`Self::stage`] returned.
    fn failed(&self, answer: Self::Answer, error: &GroupError) -> Self::Answer;

    /// Returns the answer for a request that is refused without a decision, because nothing can be
    /// appended now.
    fn refused(&self, request: Self::Request, error: &GroupError) -> Self::Answer;
}

/// Makes groups visible to readers, while the next group (if any) is being written.
pub trait Publisher: Send + 'static {
    /// Publishes a group. Groups arrive in order, each once. A long publication calls
    /// [`Heartbeat::sign`] regularly.
    ///
    /// # Errors
    /// An error stops the writer: the group is durable and its answers are sent, but later requests
    /// are refused with [`GroupError::Unpublished`], and this is not called again.
    fn publish(
        &mut self,
        group: &Arc<CommittedGroup>,
        beat: &Heartbeat,
    ) -> Result<(), PublishError>;
}

/// Why a group could not be published.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct PublishError {
    /// The failure, without content of events.
    pub what: String,
}

/// Limits of the writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriterLimits {
    /// Maximum number of requests between `submit` and the end of their commit.
    pub queue_appends_max: usize,
    /// Maximum number of bytes of those requests.
    pub queue_bytes_max: usize,
    /// A group takes no more requests once it has this many records.
    pub group_records_max: usize,
    /// A group takes no more requests once they have this many bytes.
    pub group_bytes_max: usize,
}

impl Default for WriterLimits {
    fn default() -> Self {
        Self {
            queue_appends_max: 8_192,
            queue_bytes_max: 256 << 20,
            group_records_max: 16_384,
            group_bytes_max: 16 << 20,
        }
    }
}

/// The queue is full. The request was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the write queue is full; retry in {retry_after_ms} ms")]
pub struct QueueFull {
    /// When there is likely to be room, in milliseconds.
    pub retry_after_ms: u64,
}

/// Why a request was not accepted. No part of it was or will be appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The queue is full.
    #[error(transparent)]
    Full(QueueFull),
    /// The writer is shut down.
    #[error("the writer has stopped")]
    Closed,
}

/// The writer ended before it answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unknown whether the request was appended: the writer stopped before it answered")]
pub struct WriterGone;

/// A group and the answers that wait for it.
struct FinishedGroup<A> {
    group: Option<Arc<CommittedGroup>>,
    answers: Vec<(oneshot::Sender<A>, A)>,
}

/// The writer of a shard.
pub struct GroupWriter<S: Sequencer> {
    queue: Arc<Queue<QueuedRequest<S>>>,
    unpublished: Arc<Mutex<Option<PublishError>>>,
    health_state: Arc<HealthState>,
    measures: Arc<WriterMeasures>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl<S: Sequencer> GroupWriter<S> {
    /// Starts the writer's two threads. `owner` comes from `EventLog::acquire`.
    ///
    /// # Errors
    /// [`LogError::Io`] when a thread cannot be started.
    pub fn start(
        log: Arc<dyn EventLog>,
        owner: ShardOwner,
        sequencer: S,
        publisher: impl Publisher,
        limits: WriterLimits,
    ) -> Result<Self, LogError> {
        let queue = Arc::new(Queue::new(limits));
        let unpublished = Arc::new(Mutex::new(None));
        let health_state = Arc::new(HealthState::new());
        let measures = Arc::new(WriterMeasures::default());
        let (finished, to_publish) = sync_channel(PUBLISH_GROUPS_MAX);
        let desk = Arc::new(GroupPublisher {
            publisher: Mutex::new(publisher),
            under_way: AtomicUsize::new(0),
            unpublished: Arc::clone(&unpublished),
            health_state: Arc::clone(&health_state),
        });
        let publishing = spawn("treering-publisher", {
            let desk = Arc::clone(&desk);
            move || desk.publish_all(&to_publish)
        })?;
        let committer = Committer::new(
            log,
            Owner {
                shard: owner.shard,
                epoch: owner.epoch,
                head: owner.head,
            },
            Arc::clone(&health_state),
            Arc::clone(&measures),
        );
        let writing = WriterThread {
            queue: Arc::clone(&queue),
            committer,
            sequencer,
            finished,
            desk,
        };
        let writing = spawn("treering-writer", move || writing.run())?;
        Ok(Self {
            queue,
            unpublished,
            health_state,
            measures,
            threads: Mutex::new(vec![writing, publishing]),
        })
    }

    /// Submits a request of about `bytes` bytes. The returned future resolves to the answer or to
    /// [`WriterGone`]; dropping it does not cancel the request.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn submit(
        &self,
        request: S::Request,
        bytes: usize,
    ) -> Result<impl Future<Output = Result<S::Answer, WriterGone>> + Send + use<S>, SubmitError>
    {
        let (sender, answer) = oneshot::channel();
        self.queue.push(
            QueuedRequest {
                request,
                answer: sender,
                bytes,
                way: WriteTrace::begin(),
            },
            bytes,
        )?;
        Ok(async move { answer.await.map_err(|_| WriterGone) })
    }

    /// Returns the number of requests between `submit` and the end of their commit.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queue.size().0
    }

    /// Returns the size of the requests that [`Self::queued`] counts, in bytes.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.queue.size().1
    }

    /// Returns the measurements since the writer was started.
    #[must_use]
    pub fn measures(&self) -> &WriterMeasures {
        &self.measures
    }

    /// Returns why the publisher stopped, if it did. Appends are refused from then on.
    #[must_use]
    pub fn publish_failure(&self) -> Option<PublishError> {
        lock(&self.unpublished).clone()
    }

    /// Returns whether the threads make progress and whether appends are accepted.
    #[must_use]
    pub fn health(&self) -> WriterHealth {
        self.health_state.health()
    }

    /// Closes the queue, finishes and answers what was accepted, and waits for both threads.
    /// Blocks.
    pub fn shutdown(&self) {
        self.queue.close();
        let threads = std::mem::take(&mut *lock(&self.threads));
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a thread of the log's writer panicked");
            }
        }
    }
}

impl<S: Sequencer> Drop for GroupWriter<S> {
    fn drop(&mut self) {
        // Does not join: the drop may happen in an async task.
        self.queue.close();
    }
}

/// The shard that the writer owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardOwner {
    /// The shard.
    pub shard: ShardId,
    /// The epoch from `acquire`.
    pub epoch: Epoch,
    /// The last used offset, from `acquire`.
    pub head: u64,
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, LogError> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .map_err(|error| LogError::from_io("starting the writer", error))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state of the writer's thread.
struct WriterThread<S: Sequencer, P> {
    queue: Arc<Queue<QueuedRequest<S>>>,
    committer: Committer,
    sequencer: S,
    finished: SyncSender<FinishedGroup<S::Answer>>,
    desk: Arc<GroupPublisher<P>>,
}

/// The publisher's thread is gone, so nothing can be answered any more.
struct PublisherGone;

impl<S: Sequencer, P: Publisher> WriterThread<S, P> {
    /// Runs until the queue is closed and empty.
    fn run(mut self) {
        let queue = Arc::clone(&self.queue);
        let health_state = Arc::clone(&self.desk.health_state);
        let _end = EndRecorder(&health_state.writer);
        let _closed = CloseOnDrop(&queue);
        let mut ready = VecDeque::new();
        loop {
            health_state.writer.rest();
            let woken = queue.wait(&mut ready, self.committer.ask_in());
            health_state.writer.begin();
            let went_on = match woken {
                WakeReason::Items => self.take_all(&mut ready),
                WakeReason::Time => self.resolve_in_doubt(false),
                // Ask the log one last time: a group that is in the log should be published.
                WakeReason::Closed => self.resolve_in_doubt(true),
            };
            if went_on.is_err() || woken == WakeReason::Closed {
                return;
            }
        }
    }

    fn take_all(&mut self, ready: &mut VecDeque<QueuedRequest<S>>) -> Result<(), PublisherGone> {
        while !ready.is_empty() {
            self.resolve_in_doubt(false)?;
            self.desk.health_state.writer.begin();
            let taken = catch_unwind(AssertUnwindSafe(|| self.take_group(ready)));
            let done = match taken {
                Ok(done) => done,
                Err(_panic) => {
                    self.stop_after_panic();
                    // The callers of the dropped group learn that its writer is gone.
                    let bytes = ready.iter().map(|waiting| waiting.bytes).sum();
                    self.queue
                        .recount(ready.len(), bytes, |waiting| waiting.bytes);
                    continue;
                }
            };
            self.queue.done(done.requests, done.bytes);
            let more = !ready.is_empty() || self.queue.has_more();
            self.hand_over(done, more)?;
        }
        Ok(())
    }

    fn take_group(
        &mut self,
        ready: &mut VecDeque<QueuedRequest<S>>,
    ) -> commit::CommitOutcome<S::Answer> {
        let unpublished = lock(&self.desk.unpublished).clone();
        match unpublished {
            Some(PublishError { what }) => {
                commit::refuse_all(&self.sequencer, ready, &GroupError::Unpublished { what })
            }
            None => {
                let limits = self.queue.limits();
                self.committer.run(&mut self.sequencer, ready, limits)
            }
        }
    }

    /// Settles a group whose outcome is unknown, if it is time to ask the log or `at_once` is set.
    fn resolve_in_doubt(&mut self, at_once: bool) -> Result<(), PublisherGone> {
        let settled = catch_unwind(AssertUnwindSafe(|| {
            self.committer
                .resolve_in_doubt(&mut self.sequencer, at_once)
        }));
        match settled {
            Ok(Some(done)) => self.hand_over(done, true),
            Ok(None) => Ok(()),
            Err(_panic) => {
                self.stop_after_panic();
                Ok(())
            }
        }
    }

    /// Publishes and answers a group. When more work is waiting, the publisher's thread does it, so
    /// that the writer can continue; otherwise it is done here, because waking another thread would
    /// only delay the answer.
    fn hand_over(
        &self,
        done: commit::CommitOutcome<S::Answer>,
        more: bool,
    ) -> Result<(), PublisherGone> {
        let finished = FinishedGroup {
            group: done.group,
            answers: done.answers,
        };
        let health_state = &self.desk.health_state;
        // While waiting for the publisher, which has its own heartbeat, the writer counts as idle.
        health_state.writer.rest();
        let sent = if more || self.desk.is_busy() {
            self.desk.under_way.fetch_add(1, Ordering::AcqRel);
            self.finished.send(finished)
        } else {
            self.desk.publish(finished);
            Ok(())
        };
        health_state.writer.begin();
        sent.map_err(|_| PublisherGone)
    }

    fn stop_after_panic(&mut self) {
        let what = PANIC.to_owned();
        self.committer.stop(GroupError::Broken { what });
    }
}

/// The text of a panic may contain content, so it stays in the process's error output, where the
/// panic wrote it.
const PANIC: &str = "it panicked; the process's stderr has the panic message";

struct CloseOnDrop<'a, T>(&'a Queue<T>);

impl<T> Drop for CloseOnDrop<'_, T> {
    fn drop(&mut self) {
        // Dropping the waiting requests tells their callers that the writer is gone.
        self.0.close();
        self.0.clear();
    }
}

/// Publishes and answers groups, one at a time and in order.
struct GroupPublisher<P> {
    publisher: Mutex<P>,
    /// Groups that were handed to the publisher's thread and are not answered yet.
    under_way: AtomicUsize,
    unpublished: Arc<Mutex<Option<PublishError>>>,
    health_state: Arc<HealthState>,
}

impl<P: Publisher> GroupPublisher<P> {
    fn is_busy(&self) -> bool {
        self.under_way.load(Ordering::Acquire) > 0
    }

    /// Runs the publisher's thread until the writer is gone.
    fn publish_all<A>(&self, groups: &Receiver<FinishedGroup<A>>) {
        let _end = EndRecorder(&self.health_state.publisher);
        for finished in groups {
            self.publish(finished);
            self.under_way.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn publish<A>(&self, finished: FinishedGroup<A>) {
        let health_state = &self.health_state;
        health_state.publisher.begin();
        let failed_before = lock(&self.unpublished).is_some();
        if let Some(group) = finished.group.filter(|_| !failed_before)
            && let Err(error) =
                publish(&mut *lock(&self.publisher), &group, &health_state.publisher)
        {
            tracing::error!(
                first_offset = group.first_offset,
                %error,
                "appended events cannot be published; appends stop"
            );
            let what = error.to_string();
            *lock(&self.unpublished) = Some(error);
            health_state.set(Appends::Stopped { what, fault: true });
        }
        for (sender, answer) in finished.answers {
            // The caller may have gone away; the append stands.
            let _gone = sender.send(answer);
        }
        health_state.publisher.rest();
    }
}

/// Publishes a group; a panic becomes an error.
fn publish(
    publisher: &mut impl Publisher,
    group: &Arc<CommittedGroup>,
    beat: &Heartbeat,
) -> Result<(), PublishError> {
    catch_unwind(AssertUnwindSafe(|| publisher.publish(group, beat))).unwrap_or_else(|_panic| {
        Err(PublishError {
            what: PANIC.to_owned(),
        })
    })
}

#[cfg(test)]
mod tests;
