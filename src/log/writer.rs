//! Group commit: one thread decides and writes, a second one publishes and
//! answers while there is more to write; else the first one does that, too.
//!
//! No timer: a group is what arrived while the last one was being written. All
//! answers, rejections too, go out only after their group is durable and has
//! been published, so that whoever has an answer can read what it speaks of.
//! What is decided, and what publishing means, is the caller's.
//!
//! A log may fail without saying whether it took a group. Those who wait for it
//! are told so within seconds; the writer goes on asking the log, refuses appends
//! meanwhile, and goes on once it knows: the group is published, or what was
//! staged for it is taken back. Only another owner of the log, or a panic, stops
//! it for good. [`WriterHealth`] says how it stands.

mod commit;
mod error;
mod measures;
mod queue;
mod vitals;

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
    queue::{Queue, Waiting, Woken},
    vitals::{Appends, EndNoted, Vitals},
};
pub use self::{
    error::GroupError,
    measures::WriterMeasures,
    vitals::{Beat, WriterHealth},
};
use super::{
    port::{Epoch, EventLog, LogError, NewBlob},
    record::Record,
};
use crate::{domain::ShardId, traced::Way};

/// Groups that may wait for the publisher before the writer waits for it.
const PUBLISH_GROUPS_MAX: usize = 3;

/// What a request came to.
#[derive(Debug)]
pub struct Staged<A> {
    /// To be appended, in order; empty for a rejection or a repeated key.
    pub records: Vec<Record>,
    /// Bodies that the records name; `home_offset` is the naming record's.
    pub blobs: Vec<NewBlob>,
    /// Goes out when the group is durable and published.
    pub answer: A,
}

/// Records that are durable.
#[derive(Debug, Clone, PartialEq)]
pub struct CommittedGroup {
    /// Offset of the first record.
    pub first_offset: u64,
    /// In order, at least one.
    pub records: Vec<Record>,
}

/// Decides what is appended. Lives on the writer's thread and does no I/O.
pub trait Sequencer: Send + 'static {
    /// What is asked for.
    type Request: Send + 'static;
    /// What is answered.
    type Answer: Send + 'static;

    /// Decides one request. `next_offset` is what its first record would get.
    /// Later requests of the same group see what was staged before them.
    fn stage(&mut self, next_offset: u64, request: Self::Request) -> Staged<Self::Answer>;

    /// All that was staged since the last call is durable. Not called for a
    /// group without records.
    fn committed(&mut self, group: &Arc<CommittedGroup>);

    /// It is not: everything staged since the last call never happened.
    ///
    /// Between a group whose outcome is not known and the call that settles it,
    /// [`Self::committed`] or this one, nothing is staged.
    fn aborted(&mut self, error: &GroupError);

    /// The answer for a request of a group that was not appended, or of which
    /// that is not known ([`LogError::UnknownOutcome`]), in place of `answer`,
    /// which is what [`Self::stage`] said.
    fn failed(&self, answer: Self::Answer, error: &GroupError) -> Self::Answer;

    /// The answer for a request that is not decided, because nothing can be
    /// appended now.
    fn refused(&self, request: Self::Request, error: &GroupError) -> Self::Answer;
}

/// Makes a group visible to readers: while the next one is being written, if there
/// is one.
pub trait Publisher: Send + 'static {
    /// Publishes a group. Groups come in order, each once. What takes long gives
    /// a [`Beat::sign`] now and then.
    ///
    /// # Errors
    /// Stops the writer: the group is durable and its answers go out, but what
    /// comes later is refused with [`GroupError::Unpublished`], and this is not
    /// called again.
    fn publish(&mut self, group: &Arc<CommittedGroup>, beat: &Beat) -> Result<(), PublishError>;
}

/// Why a group could not be published.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct PublishError {
    /// What went wrong, without content of events.
    pub what: String,
}

/// Bounds of the writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriterLimits {
    /// Most requests between `submit` and the end of their commit.
    pub queue_appends_max: usize,
    /// Most bytes of those.
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

/// The queue is at its bound. Nothing was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the writer's queue is full; try again in {retry_after_ms} ms")]
pub struct QueueFull {
    /// When there is likely to be room, in milliseconds.
    pub retry_after_ms: u64,
}

/// Why a request was not taken. Nothing of it was or will be appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotTaken {
    /// There is no room in the queue.
    #[error(transparent)]
    Full(QueueFull),
    /// The writer is shut down.
    #[error("the writer is shut down")]
    Closed,
}

/// The writer ended before it answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is not known whether the request was appended: the writer ended before it answered")]
pub struct WriterGone;

/// Answers that wait for a group, and the group.
struct Finished<A> {
    group: Option<Arc<CommittedGroup>>,
    answers: Vec<(oneshot::Sender<A>, A)>,
}

/// The writer of a shard.
pub struct GroupWriter<S: Sequencer> {
    queue: Arc<Queue<Waiting<S>>>,
    unpublished: Arc<Mutex<Option<PublishError>>>,
    vitals: Arc<Vitals>,
    measures: Arc<WriterMeasures>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl<S: Sequencer> GroupWriter<S> {
    /// Starts the two threads. `owner` is what `EventLog::acquire` gave.
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
        let vitals = Arc::new(Vitals::new());
        let measures = Arc::new(WriterMeasures::default());
        let (finished, to_publish) = sync_channel(PUBLISH_GROUPS_MAX);
        let desk = Arc::new(Desk {
            publisher: Mutex::new(publisher),
            under_way: AtomicUsize::new(0),
            unpublished: Arc::clone(&unpublished),
            vitals: Arc::clone(&vitals),
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
            Arc::clone(&vitals),
            Arc::clone(&measures),
        );
        let writing = Writing {
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
            vitals,
            measures,
            threads: Mutex::new(vec![writing, publishing]),
        })
    }

    /// Hands in a request of about `bytes` bytes. What it returns waits for the
    /// answer, or for [`WriterGone`]; dropping it does not take the request back.
    ///
    /// # Errors
    /// [`NotTaken`].
    pub fn submit(
        &self,
        request: S::Request,
        bytes: usize,
    ) -> Result<impl Future<Output = Result<S::Answer, WriterGone>> + Send + use<S>, NotTaken> {
        let (sender, answer) = oneshot::channel();
        self.queue.push(
            Waiting {
                request,
                answer: sender,
                bytes,
                way: Way::begin(),
            },
            bytes,
        )?;
        Ok(async move { answer.await.map_err(|_| WriterGone) })
    }

    /// Requests between `submit` and the end of their commit.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queue.size().0
    }

    /// Bytes of those.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.queue.size().1
    }

    /// What it has done since it was started.
    #[must_use]
    pub fn measures(&self) -> &WriterMeasures {
        &self.measures
    }

    /// Why the publisher stopped, if it did. Appends are refused since then.
    #[must_use]
    pub fn publish_failure(&self) -> Option<PublishError> {
        lock(&self.unpublished).clone()
    }

    /// Whether its threads move, and whether appends can be taken.
    #[must_use]
    pub fn health(&self) -> WriterHealth {
        self.vitals.health()
    }

    /// Takes nothing more, finishes and answers what was accepted, and waits for
    /// both threads. Blocks.
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
        // Without joining: dropping may happen in an async task.
        self.queue.close();
    }
}

/// What the writer owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardOwner {
    /// The shard.
    pub shard: ShardId,
    /// From `acquire`.
    pub epoch: Epoch,
    /// From `acquire`: the last used offset.
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

/// The writer's thread.
struct Writing<S: Sequencer, P> {
    queue: Arc<Queue<Waiting<S>>>,
    committer: Committer,
    sequencer: S,
    finished: SyncSender<Finished<S::Answer>>,
    desk: Arc<Desk<P>>,
}

/// The publisher's thread is gone, so nothing can be answered any more.
struct PublisherGone;

impl<S: Sequencer, P: Publisher> Writing<S, P> {
    /// Until the queue is closed and empty.
    fn run(mut self) {
        let queue = Arc::clone(&self.queue);
        let vitals = Arc::clone(&self.desk.vitals);
        let _end = EndNoted(&vitals.writer);
        let _closed = CloseOnDrop(&queue);
        let mut ready = VecDeque::new();
        loop {
            vitals.writer.rest();
            let woken = queue.wait(&mut ready, self.committer.ask_in());
            vitals.writer.begin();
            let went_on = match woken {
                Woken::Items => self.take_all(&mut ready),
                Woken::Time => self.settle(false),
                // A last question: what is there should be published.
                Woken::Closed => self.settle(true),
            };
            if went_on.is_err() || woken == Woken::Closed {
                return;
            }
        }
    }

    fn take_all(&mut self, ready: &mut VecDeque<Waiting<S>>) -> Result<(), PublisherGone> {
        while !ready.is_empty() {
            self.settle(false)?;
            self.desk.vitals.writer.begin();
            let taken = catch_unwind(AssertUnwindSafe(|| self.take_group(ready)));
            let done = match taken {
                Ok(done) => done,
                Err(_panic) => {
                    self.stop_after_panic();
                    // Those who waited for the group learn that its writer is gone.
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

    fn take_group(&mut self, ready: &mut VecDeque<Waiting<S>>) -> commit::Done<S::Answer> {
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

    /// Finds out what became of a group, if that is not known and it is time.
    fn settle(&mut self, at_once: bool) -> Result<(), PublisherGone> {
        let settled = catch_unwind(AssertUnwindSafe(|| {
            self.committer.settle(&mut self.sequencer, at_once)
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

    /// Has a group published and answered: by the publisher, so that the writer can
    /// go on with what waits; or at once, when nothing does. Then waking another
    /// thread would only cost whoever waits for the answer.
    fn hand_over(&self, done: commit::Done<S::Answer>, more: bool) -> Result<(), PublisherGone> {
        let finished = Finished {
            group: done.group,
            answers: done.answers,
        };
        let vitals = &self.desk.vitals;
        // Waiting for the publisher, who has a beat of its own.
        vitals.writer.rest();
        let sent = if more || self.desk.is_busy() {
            self.desk.under_way.fetch_add(1, Ordering::AcqRel);
            self.finished.send(finished)
        } else {
            self.desk.publish(finished);
            Ok(())
        };
        vitals.writer.begin();
        sent.map_err(|_| PublisherGone)
    }

    fn stop_after_panic(&mut self) {
        let what = PANIC.to_owned();
        self.committer.stop(GroupError::Broken { what });
    }
}

/// The text of a panic may hold what it was about, so it stays in the process's
/// error output, where the panic wrote it.
const PANIC: &str = "a panic, which the process's error output tells of";

struct CloseOnDrop<'a, T>(&'a Queue<T>);

impl<T> Drop for CloseOnDrop<'_, T> {
    fn drop(&mut self) {
        // Dropping what waits tells its callers that the writer is gone.
        self.0.close();
        self.0.clear();
    }
}

/// Where groups are published and answered, one at a time and in order.
struct Desk<P> {
    publisher: Mutex<P>,
    /// Groups that were handed to the publisher's thread and are not answered yet.
    under_way: AtomicUsize,
    unpublished: Arc<Mutex<Option<PublishError>>>,
    vitals: Arc<Vitals>,
}

impl<P: Publisher> Desk<P> {
    fn is_busy(&self) -> bool {
        self.under_way.load(Ordering::Acquire) > 0
    }

    /// The publisher's thread: until the writer is gone.
    fn publish_all<A>(&self, groups: &Receiver<Finished<A>>) {
        let _end = EndNoted(&self.vitals.publisher);
        for finished in groups {
            self.publish(finished);
            self.under_way.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn publish<A>(&self, finished: Finished<A>) {
        let vitals = &self.vitals;
        vitals.publisher.begin();
        let failed_before = lock(&self.unpublished).is_some();
        if let Some(group) = finished.group.filter(|_| !failed_before)
            && let Err(error) = publish(&mut *lock(&self.publisher), &group, &vitals.publisher)
        {
            tracing::error!(
                first_offset = group.first_offset,
                %error,
                "appended events cannot be published; appends stop"
            );
            let what = error.to_string();
            *lock(&self.unpublished) = Some(error);
            vitals.set(Appends::Stopped { what, fault: true });
        }
        for (sender, answer) in finished.answers {
            // Whoever asked may have gone away; the append stands.
            let _gone = sender.send(answer);
        }
        vitals.publisher.rest();
    }
}

/// Publishes; a panic is an error.
fn publish(
    publisher: &mut impl Publisher,
    group: &Arc<CommittedGroup>,
    beat: &Beat,
) -> Result<(), PublishError> {
    catch_unwind(AssertUnwindSafe(|| publisher.publish(group, beat))).unwrap_or_else(|_panic| {
        Err(PublishError {
            what: PANIC.to_owned(),
        })
    })
}

#[cfg(test)]
mod tests;
