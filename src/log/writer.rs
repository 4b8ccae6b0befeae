//! Group commit: one thread decides and writes, a second one publishes and
//! answers.
//!
//! No timer: a group is what arrived while the last one was being written. All
//! answers, rejections too, go out only after their group is durable and has
//! been published, so that whoever has an answer can read what it speaks of.
//! What is decided, and what publishing means, is the caller's.

mod commit;
mod queue;

use std::{
    future::Future,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::{self, JoinHandle},
};

use futures::channel::oneshot;

use self::{
    commit::{Committer, Owner},
    queue::{Queue, Waiting},
};
use super::{
    port::{Epoch, EventLog, LogError, NewBlob},
    record::Record,
};
use crate::domain::ShardId;

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
    fn aborted(&mut self, error: &LogError);

    /// The answer for each request of an aborted group.
    fn failure(&self, error: &LogError) -> Self::Answer;
}

/// Makes a group visible to readers, on its own thread, while the next one is
/// being written.
pub trait Publisher: Send + 'static {
    /// Publishes a group. Groups come in order, each once.
    ///
    /// # Errors
    /// Stops the writer: the group is durable and its answers go out, but what
    /// comes later is refused with [`LogError::Unpublished`], and this is not
    /// called again.
    fn publish(&mut self, group: &Arc<CommittedGroup>) -> Result<(), PublishError>;
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

/// The writer stopped before it answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the writer has stopped; the request may or may not have been appended")]
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
        let (finished, to_publish) = sync_channel(PUBLISH_GROUPS_MAX);
        let publishing = spawn("treering-publisher", {
            let unpublished = Arc::clone(&unpublished);
            move || publish_all::<S>(&to_publish, publisher, &unpublished)
        })?;
        let writing = spawn("treering-writer", {
            let queue = Arc::clone(&queue);
            let unpublished = Arc::clone(&unpublished);
            let committer = Committer::new(
                log,
                Owner {
                    shard: owner.shard,
                    epoch: owner.epoch,
                    head: owner.head,
                },
            );
            move || write_all(&queue, committer, sequencer, &finished, &unpublished)
        })?;
        Ok(Self {
            queue,
            unpublished,
            threads: Mutex::new(vec![writing, publishing]),
        })
    }

    /// Hands in a request of about `bytes` bytes. What it returns waits for the
    /// answer, or for [`WriterGone`]; dropping it does not take the request back.
    ///
    /// # Errors
    /// [`QueueFull`]; the request was not taken.
    pub fn submit(
        &self,
        request: S::Request,
        bytes: usize,
    ) -> Result<impl Future<Output = Result<S::Answer, WriterGone>> + Send + use<S>, QueueFull>
    {
        let (sender, answer) = oneshot::channel();
        // A writer that has stopped drops the request with its sender.
        self.queue.push(
            Waiting {
                request,
                answer: sender,
                bytes,
            },
            bytes,
        )?;
        Ok(async move { answer.await.map_err(|_| WriterGone) })
    }

    /// Requests between `submit` and the end of their commit.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Why the publisher stopped, if it did. Appends are refused since then.
    #[must_use]
    pub fn publish_failure(&self) -> Option<PublishError> {
        lock(&self.unpublished).clone()
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

/// The writer's thread: until the queue is closed and empty.
fn write_all<S: Sequencer>(
    queue: &Queue<Waiting<S>>,
    mut committer: Committer,
    mut sequencer: S,
    finished: &SyncSender<Finished<S::Answer>>,
    unpublished: &Mutex<Option<PublishError>>,
) {
    let _closed_on_panic = CloseOnDrop(queue);
    let mut ready = std::collections::VecDeque::new();
    while queue.wait(&mut ready) {
        while !ready.is_empty() {
            let failed = lock(unpublished)
                .as_ref()
                .map(|error| LogError::Unpublished {
                    what: error.what.clone(),
                });
            let done = match failed {
                Some(error) => commit::refuse_all(&sequencer, &mut ready, &error),
                None => committer.run(&mut sequencer, &mut ready, queue.limits()),
            };
            queue.done(done.requests, done.bytes);
            let gone = finished.send(Finished {
                group: done.group,
                answers: done.answers,
            });
            if gone.is_err() {
                return;
            }
        }
    }
}

struct CloseOnDrop<'a, T>(&'a Queue<T>);

impl<T> Drop for CloseOnDrop<'_, T> {
    fn drop(&mut self) {
        // Dropping what waits tells its callers that the writer is gone.
        self.0.close();
        self.0.clear();
    }
}

/// The publisher's thread: until the writer is gone.
fn publish_all<S: Sequencer>(
    groups: &Receiver<Finished<S::Answer>>,
    mut publisher: impl Publisher,
    unpublished: &Mutex<Option<PublishError>>,
) {
    for finished in groups {
        let failed_before = lock(unpublished).is_some();
        if let Some(group) = finished.group.filter(|_| !failed_before)
            && let Err(error) = publisher.publish(&group)
        {
            tracing::error!(
                first_offset = group.first_offset,
                %error,
                "appended events cannot be published; appends stop"
            );
            *lock(unpublished) = Some(error);
        }
        for (sender, answer) in finished.answers {
            // Whoever asked may have gone away; the append stands.
            let _gone = sender.send(answer);
        }
    }
}

#[cfg(test)]
mod tests;
