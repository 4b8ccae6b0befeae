//! One group: staged, encoded and appended, or rolled back; or kept while its outcome is unknown.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{channel::oneshot, executor::block_on};
use tracing::Span;

use super::{
    CommittedGroup, GroupError, Sequencer, WriterLimits, WriterMeasures,
    health::{Appends, HealthState},
    queue::QueuedRequest,
};
use crate::{
    frame,
    port::{Epoch, EventLog, FrameBatch, LogError, NewBlob},
    record::Record,
};
use treering_base::trace::WriteTrace;
use treering_domain::{
    ShardId,
    limits::{ASK_PAUSE_MAX, ASK_PAUSE_MIN, ASK_WHILE_WAITING, RETRY_MIN},
};

pub(super) struct Owner {
    pub(super) shard: ShardId,
    pub(super) epoch: Epoch,
    pub(super) head: u64,
}

/// The outcome of some requests.
pub(super) struct CommitOutcome<A> {
    pub(super) group: Option<Arc<CommittedGroup>>,
    pub(super) answers: Vec<(oneshot::Sender<A>, A)>,
    pub(super) requests: usize,
    pub(super) bytes: usize,
}

impl<A> CommitOutcome<A> {
    fn published(group: Arc<CommittedGroup>) -> Self {
        Self {
            group: Some(group),
            answers: Vec::new(),
            requests: 0,
            bytes: 0,
        }
    }
}

/// Refuses all waiting requests without deciding them.
pub(super) fn refuse_all<S: Sequencer>(
    sequencer: &S,
    ready: &mut VecDeque<QueuedRequest<S>>,
    error: &GroupError,
) -> CommitOutcome<S::Answer> {
    let mut done = CommitOutcome {
        group: None,
        answers: Vec::with_capacity(ready.len()),
        requests: ready.len(),
        bytes: 0,
    };
    for waiting in ready.drain(..) {
        done.bytes += waiting.bytes;
        done.answers
            .push((waiting.answer, sequencer.refused(waiting.request, error)));
    }
    done
}

pub(super) struct Committer {
    log: Arc<dyn EventLog>,
    owner: Owner,
    health_state: Arc<HealthState>,
    measures: Arc<WriterMeasures>,
    state: State,
}

enum State {
    Open,
    /// The outcome of a group is unknown. What was staged for it stays staged, and nothing more is
    /// staged, until the log reports the outcome.
    Unsettled(InDoubtGroup),
    /// This writer can never append again.
    Stopped(GroupError),
}

/// A group that may or may not be in the log.
struct InDoubtGroup {
    group: Arc<CommittedGroup>,
    /// The head if the group is in the log.
    wanted: u64,
    what: String,
    ask_at: Instant,
    pause: Duration,
}

/// A group being built.
struct Group<A> {
    records: Vec<Record>,
    blobs: Vec<NewBlob>,
    answers: Vec<(oneshot::Sender<A>, A)>,
    bytes: usize,
    /// Traces of those requests that are traced.
    ways: Vec<WriteTrace>,
}

/// The trace spans of a group's appends while the log writes it.
struct Commits(Vec<Span>);

impl Commits {
    fn begin<A>(group: &mut Group<A>, events: usize) -> Self {
        let appends = group.answers.len();
        let ways = group.ways.drain(..);
        Self(ways.map(|way| way.commit(appends, events)).collect())
    }

    /// Runs `done` within the first span: the work is done once for the group, so it is recorded
    /// once.
    fn in_first_span<T>(&self, done: impl FnOnce() -> T) -> T {
        match self.0.first() {
            Some(span) => span.in_scope(done),
            None => done(),
        }
    }
}

/// The outcome of an append.
enum Outcome {
    There,
    NotThere(GroupError),
    /// `wanted` is the head if the batch was appended; `what` is the cause of the failure.
    Unknown {
        wanted: u64,
        what: String,
    },
    /// The outcome was unknown and always will be: the log is closed or has another owner.
    Lost(LogError),
}

impl Committer {
    pub(super) fn new(
        log: Arc<dyn EventLog>,
        owner: Owner,
        health_state: Arc<HealthState>,
        measures: Arc<WriterMeasures>,
    ) -> Self {
        Self {
            log,
            owner,
            health_state,
            measures,
            state: State::Open,
        }
    }

    /// Returns when the log must next be asked about an unsettled group, if there is one.
    pub(super) fn ask_in(&self) -> Option<Duration> {
        match &self.state {
            State::Unsettled(in_doubt) => {
                Some(in_doubt.ask_at.saturating_duration_since(Instant::now()))
            }
            State::Open | State::Stopped(_) => None,
        }
    }

    /// Stops appending for good. An unsettled group stays unsettled.
    pub(super) fn stop(&mut self, error: GroupError) {
        let fault = matches!(error, GroupError::Broken { .. });
        tracing::error!(%error, "appends are stopped");
        let what = error.to_string();
        self.health_state.set(Appends::Stopped { what, fault });
        self.state = State::Stopped(error);
    }

    /// Takes one group from the ready requests and commits it; refuses all while appends are not
    /// possible.
    pub(super) fn run<S: Sequencer>(
        &mut self,
        sequencer: &mut S,
        ready: &mut VecDeque<QueuedRequest<S>>,
        limits: &WriterLimits,
    ) -> CommitOutcome<S::Answer> {
        match &self.state {
            State::Open => {}
            State::Stopped(error) => return refuse_all(sequencer, ready, error),
            State::Unsettled(in_doubt) => {
                return refuse_all(sequencer, ready, &in_doubt.refusal());
            }
        }
        let mut group = self.stage(sequencer, ready, limits);
        let requests = group.answers.len();
        let committed = if group.records.is_empty() {
            None
        } else {
            self.commit(sequencer, &mut group)
        };
        CommitOutcome {
            group: committed,
            answers: group.answers,
            requests,
            bytes: group.bytes,
        }
    }

    fn stage<S: Sequencer>(
        &self,
        sequencer: &mut S,
        ready: &mut VecDeque<QueuedRequest<S>>,
        limits: &WriterLimits,
    ) -> Group<S::Answer> {
        let mut group = Group {
            records: Vec::new(),
            blobs: Vec::new(),
            answers: Vec::new(),
            bytes: 0,
            ways: Vec::new(),
        };
        while group.records.len() < limits.group_records_max && group.bytes < limits.group_bytes_max
        {
            let Some(waiting) = ready.pop_front() else {
                break;
            };
            group.ways.extend(waiting.way.map(WriteTrace::taken));
            let next_offset = self.owner.head + 1 + group.records.len() as u64;
            let staged = sequencer.stage(next_offset, waiting.request);
            group.records.extend(staged.records);
            group.blobs.extend(staged.blobs);
            group.answers.push((waiting.answer, staged.answer));
            group.bytes += waiting.bytes;
        }
        group
    }

    /// Appends a group with records. Returns the group if it was appended.
    fn commit<S: Sequencer>(
        &mut self,
        sequencer: &mut S,
        group: &mut Group<S::Answer>,
    ) -> Option<Arc<CommittedGroup>> {
        let first_offset = self.owner.head + 1;
        let records = std::mem::take(&mut group.records);
        let blobs = std::mem::take(&mut group.blobs);
        let traced = Commits::begin(group, records.len());
        let started = Instant::now();
        let outcome = traced.in_first_span(|| self.append(first_offset, &records, blobs));
        drop(traced);
        match outcome {
            Outcome::There => {
                self.measures.commit_micros.note_since(started);
                self.measures.group_events.note(records.len() as u64);
                self.measures.bytes.add(group.bytes as u64);
                self.measures
                    .group_requests
                    .note(group.answers.len() as u64);
            }
            _ => self.measures.failed_groups.add_one(),
        }
        let committed = Arc::new(CommittedGroup {
            first_offset,
            records,
        });
        let error = match outcome {
            Outcome::There => {
                self.health_state.set(Appends::Taken);
                sequencer.committed(&committed);
                return Some(committed);
            }
            Outcome::NotThere(error) => {
                tracing::warn!(%error, requests = group.answers.len(), "a group was not appended");
                self.handle_absent(sequencer, &error);
                error
            }
            Outcome::Unknown { wanted, what } => self.keep(committed, wanted, what),
            Outcome::Lost(error) => self.lose(error),
        };
        for (sender, answer) in std::mem::take(&mut group.answers) {
            group
                .answers
                .push((sender, sequencer.failed(answer, &error)));
        }
        None
    }

    fn append(&mut self, first_offset: u64, records: &[Record], blobs: Vec<NewBlob>) -> Outcome {
        let frames = match frame::encode_group(first_offset, records) {
            Ok(frames) => frames,
            Err(error) => return Outcome::NotThere(error.into()),
        };
        let batch = FrameBatch { frames, blobs };
        let Owner { shard, epoch, head } = self.owner;
        let wanted = batch.new_head(head);
        match block_on(self.log.append(shard, epoch, head, batch)) {
            Ok(new_head) => {
                self.owner.head = new_head;
                Outcome::There
            }
            Err(LogError::UnknownOutcome { what, .. }) => self.ask_while_waiting(wanted, what),
            Err(error) => Outcome::NotThere(error.into()),
        }
    }

    /// Asks for the head a few times before the waiting callers are told that the outcome is
    /// unknown.
    fn ask_while_waiting(&mut self, wanted: u64, what: String) -> Outcome {
        let mut last = what;
        for pause in ASK_WHILE_WAITING {
            std::thread::sleep(pause);
            self.health_state.writer.sign();
            match self.ask(wanted, last) {
                Outcome::Unknown { what, .. } => last = what,
                known => return known,
            }
        }
        Outcome::Unknown { wanted, what: last }
    }

    /// Asks for the head: at `wanted` the group was appended, at the old head it was not, and
    /// anywhere else someone else has written.
    fn ask(&mut self, wanted: u64, what: String) -> Outcome {
        let acquired = match block_on(self.log.acquire(self.owner.shard)) {
            Ok(acquired) => acquired,
            Err(error) if ends_ownership(&error) => return Outcome::Lost(error),
            Err(error) => {
                let what = first_and_last(&what, &error);
                return Outcome::Unknown { wanted, what };
            }
        };
        let head = self.owner.head;
        if acquired.head == wanted || acquired.head == head {
            self.owner.epoch = acquired.epoch;
            self.owner.head = acquired.head;
        }
        if acquired.head == wanted {
            Outcome::There
        } else if acquired.head == head {
            Outcome::NotThere(GroupError::NotAppended { what })
        } else {
            Outcome::Lost(LogError::HeadMismatch {
                expected: head,
                actual: acquired.head,
            })
        }
    }

    /// Handles a group that was not appended. Stops appending if the log is closed or has another
    /// owner.
    fn handle_absent<S: Sequencer>(&mut self, sequencer: &mut S, error: &GroupError) {
        sequencer.aborted(error);
        let of_log = match error {
            GroupError::Log(error) => Some(error),
            _ => None,
        };
        if of_log.is_some_and(ends_ownership) {
            return self.stop(error.clone());
        }
        // A batch that cannot be encoded says nothing about the log's health.
        let is_batch =
            |error: &LogError| matches!(error, LogError::TooLarge { .. } | LogError::Gap { .. });
        if !of_log.is_some_and(is_batch) {
            self.health_state.set(Appends::Failed {
                at: Instant::now(),
                what: error.to_string(),
            });
        }
    }

    /// Handles a group whose outcome will never be known: what was staged stays staged. Returns the
    /// error for the waiting callers.
    fn lose(&mut self, error: LogError) -> GroupError {
        let what = match &error {
            LogError::HeadMismatch { actual, .. } => {
                format!("the log head is {actual}: another process has written to the log")
            }
            LogError::NotOwner { .. } => "another process owns the log now".to_owned(),
            other => other.to_string(),
        };
        self.stop(error.into());
        let head = self.owner.head;
        LogError::UnknownOutcome { head, what }.into()
    }

    /// Keeps a group until the log reports its outcome. Returns the error for the waiting callers.
    fn keep(&mut self, group: Arc<CommittedGroup>, wanted: u64, what: String) -> GroupError {
        let error = GroupError::from(LogError::UnknownOutcome {
            head: self.owner.head,
            what: what.clone(),
        });
        tracing::error!(
            %error,
            first_offset = group.first_offset,
            records = group.records.len(),
            "the log did not report whether it appended a group; appends wait until it does"
        );
        let in_doubt = InDoubtGroup {
            group,
            wanted,
            what,
            ask_at: Instant::now() + ASK_PAUSE_MIN,
            pause: ASK_PAUSE_MIN,
        };
        self.health_state.set(Appends::Unsettled {
            what: error.to_string(),
        });
        self.state = State::Unsettled(in_doubt);
        error
    }

    /// Asks for the outcome of the unsettled group, if it is time or `at_once`. A group that is in
    /// the log must be published like any other, although its answers were sent long ago.
    pub(super) fn resolve_in_doubt<S: Sequencer>(
        &mut self,
        sequencer: &mut S,
        at_once: bool,
    ) -> Option<CommitOutcome<S::Answer>> {
        let State::Unsettled(in_doubt) = &self.state else {
            return None;
        };
        if !at_once && Instant::now() < in_doubt.ask_at {
            return None;
        }
        let (wanted, what) = (in_doubt.wanted, in_doubt.what.clone());
        let outcome = self.ask(wanted, what);
        let State::Unsettled(mut in_doubt) = std::mem::replace(&mut self.state, State::Open) else {
            return None;
        };
        match outcome {
            Outcome::There => {
                tracing::warn!(head = wanted, "the group is in the log; appends continue");
                self.health_state.set(Appends::Taken);
                sequencer.committed(&in_doubt.group);
                Some(CommitOutcome::published(in_doubt.group))
            }
            Outcome::NotThere(error) => {
                tracing::warn!(%error, "the group is not in the log; appends continue");
                sequencer.aborted(&error);
                self.health_state.set(Appends::Taken);
                None
            }
            Outcome::Lost(error) => {
                self.lose(error);
                None
            }
            Outcome::Unknown { what, .. } => {
                in_doubt.what = what;
                in_doubt.pause = (in_doubt.pause * 2).min(ASK_PAUSE_MAX);
                in_doubt.ask_at = Instant::now() + in_doubt.pause;
                self.state = State::Unsettled(in_doubt);
                None
            }
        }
    }
}

impl InDoubtGroup {
    fn refusal(&self) -> GroupError {
        let left = self.ask_at.saturating_duration_since(Instant::now());
        GroupError::Unsettled {
            what: self.what.clone(),
            retry_after_ms: left.max(RETRY_MIN).as_millis() as u64,
        }
    }
}

/// Keeps the first and the last of several failures in a row.
fn first_and_last(what: &str, error: &LogError) -> String {
    const THEN: &str = "; then ";
    let first = what.split(THEN).next().unwrap_or_default();
    format!("{first}{THEN}{error}")
}

/// Returns true when this writer must stop, because the log is closed or another owner decides the
/// order now.
fn ends_ownership(error: &LogError) -> bool {
    matches!(
        error,
        LogError::NotOwner { .. } | LogError::HeadMismatch { .. } | LogError::Closed
    )
}
