//! Appends. Those of several shards share a statement, and so PostgreSQL's work for a commit.
//!
//! An append waits while [`STATEMENTS_MAX`] statements run. The first task that gets a turn then
//! executes all appends that wait. So an append to an idle database is executed at once and alone,
//! and the busier the database is, the more appends share a statement.

use std::{
    collections::{HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::future::join_all;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    time::{Instant, timeout_at},
};
use tokio_postgres::Row;
use treering_domain::ShardId;
use treering_log::{Epoch, FrameBatch, LogError};

use crate::{
    error::PostgresError,
    log::Inner,
    rows::Columns,
    session::{Lease, QueryFailure, SqlParam},
    settings::durable,
};

/// Maximum number of statements of appends that run at a time, except for those of appends that are
/// tried alone.
const STATEMENTS_MAX: usize = 4;
/// Maximum number of appends in a statement.
const APPENDS_MAX: usize = 128;
/// A statement with this many bytes gets no further append.
const STATEMENT_BYTES: u64 = 4 << 20;

/// Appends to shards whose head and epoch are as expected, and returns these shards. This is one
/// statement, so each append is executed as a whole or not at all. The parameters are those of
/// [`Inner::execute`].
macro_rules! append {
    ($locked_rows:literal) => {
        concat!(
            "with locked as materialized (
        select s.shard, a.new_head
        from unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[])
            as a (shard, epoch, head, new_head)
        join treering_shard as s on s.shard = a.shard and s.epoch = a.epoch and s.head = a.head
        where ",
            durable!(),
            " for no key update of s ",
            $locked_rows,
            "
    ), advanced as (
        update treering_shard as s set head = locked.new_head from locked
        where s.shard = locked.shard returning s.shard
    ), frames as (
        insert into treering_frame (shard, first_offset, count, frame_id, bytes)
        select f.shard, f.first_offset, f.count, f.frame_id, f.bytes from advanced
        join unnest($6::bigint[], $7::bigint[], $8::integer[], $9::uuid[], $10::bytea[])
            as f (shard, first_offset, count, frame_id, bytes) using (shard)
    ), blobs as (
        insert into treering_blob (shard, home_offset, namespace, hash, bytes)
        select b.shard, b.home_offset, b.namespace, b.hash, b.bytes from advanced
        join unnest($11::bigint[], $12::bigint[], $13::text[], $14::bytea[], $15::bytea[])
            as b (shard, home_offset, namespace, hash, bytes) using (shard)
    ) select shard from advanced"
        )
    };
}

/// Waits while an erasure, a sealing or another append has the row of the shard.
const APPEND: &str = append!("");

/// Leaves out shards whose row is locked, so that the others need not wait for it.
const APPEND_UNLOCKED: &str = append!("skip locked");

/// An append to a shard.
pub(crate) struct ShardAppend {
    pub(crate) shard: ShardId,
    pub(crate) epoch: Epoch,
    pub(crate) head: u64,
    pub(crate) batch: FrameBatch,
}

impl ShardAppend {
    fn new_head(&self) -> u64 {
        self.batch.new_head(self.head)
    }

    /// Returns the size of frames and bodies.
    fn stored_bytes(&self) -> u64 {
        let frames = self.batch.frames.iter().map(|frame| frame.bytes.len());
        let bodies = self.batch.blobs.iter().map(|blob| blob.bytes.len());
        frames.chain(bodies).map(|len| len as u64).sum()
    }
}

type AppendSender = oneshot::Sender<Result<u64, LogError>>;

/// An append that waits for its statement.
struct QueuedAppend {
    append: ShardAppend,
    since: Instant,
    outcome: AppendSender,
}

impl QueuedAppend {
    fn end(self, outcome: Result<u64, LogError>) {
        // The caller may have gone.
        let _gone = self.outcome.send(outcome);
    }
}

/// Appends that wait, in order, and the turns to execute them.
pub(crate) struct AppendQueue {
    waiting: Mutex<VecDeque<QueuedAppend>>,
    turns: Arc<Semaphore>,
}

impl Default for AppendQueue {
    fn default() -> Self {
        Self {
            waiting: Mutex::default(),
            turns: Arc::new(Semaphore::new(STATEMENTS_MAX)),
        }
    }
}

impl AppendQueue {
    fn waiting(&self) -> MutexGuard<'_, VecDeque<QueuedAppend>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an append, and returns the time.
    fn push(&self, append: ShardAppend, outcome: AppendSender) -> Instant {
        let mut waiting = self.waiting();
        // The queue is ordered by this.
        let since = Instant::now();
        waiting.push_back(QueuedAppend {
            append,
            since,
            outcome,
        });
        since
    }

    /// Takes the appends of the next statement: at most one of each shard, because two would take
    /// the same offsets.
    fn next_group(&self) -> Vec<QueuedAppend> {
        let mut waiting = self.waiting();
        let (mut group, mut later) = (Vec::new(), VecDeque::new());
        let (mut shards, mut bytes) = (HashSet::new(), 0);
        while let Some(queued) = waiting.pop_front() {
            let is_full = group.len() == APPENDS_MAX || bytes >= STATEMENT_BYTES;
            if is_full || !shards.insert(queued.append.shard) {
                later.push_back(queued);
                continue;
            }
            bytes += queued.append.stored_bytes();
            group.push(queued);
        }
        *waiting = later;
        group
    }

    /// Takes the appends that were added until `time`.
    fn queued_until(&self, time: Instant) -> Vec<QueuedAppend> {
        let mut waiting = self.waiting();
        let count = waiting.partition_point(|queued| queued.since <= time);
        waiting.drain(..count).collect()
    }
}

impl Inner {
    /// Appends. Waits for at most half of the deadline before it executes the append.
    pub(crate) async fn append(self: Arc<Self>, append: ShardAppend) -> Result<u64, LogError> {
        self.shard(append.shard)?;
        append.batch.check(append.head)?;
        if let Some(error) = &*self.unsafe_setting() {
            return Err(failed(error.clone()));
        }
        let (shard, epoch, head) = (append.shard, append.epoch, append.head);
        let ended = |ended: Result<_, oneshot::error::RecvError>| match ended {
            Ok(outcome) => outcome,
            Err(_) => Err(self.in_doubt(shard, epoch, head, "the append was aborted".to_owned())),
        };
        let (sender, mut outcome) = oneshot::channel();
        let since = self.appends.push(append, sender);
        let wait_max = self.options.deadline / 2;
        loop {
            let turn = Arc::clone(&self.appends.turns).acquire_owned();
            tokio::select! {
                biased;
                outcome = &mut outcome => return ended(outcome),
                turn = timeout_at(since + wait_max, turn) => match turn {
                    // A task of its own, because one of the group may wait for a lock.
                    Ok(Ok(turn)) => {
                        let group = self.appends.next_group();
                        if group.is_empty() {
                            // Another task executes it, and so the turn is for others.
                            drop(turn);
                            return ended(outcome.await);
                        }
                        tokio::spawn(Arc::clone(&self).execute_group(group, turn));
                    }
                    Ok(Err(_)) | Err(_) => break,
                },
            }
        }
        // It is being executed, or is refused here.
        for late in self.appends.queued_until(since) {
            let what = format!(
                "earlier appends have no answer after {} ms",
                wait_max.as_millis()
            );
            late.end(Err(failed(PostgresError::Busy { what })));
        }
        ended(outcome.await)
    }

    /// Executes appends to different shards, in one statement if it succeeds.
    async fn execute_group(
        self: Arc<Self>,
        mut group: Vec<QueuedAppend>,
        turn: OwnedSemaphorePermit,
    ) {
        let appends: Vec<_> = group.iter().map(|queued| &queued.append).collect();
        let executed = self.execute(APPEND_UNLOCKED, &appends).await;
        drop(turn);
        match executed {
            Ok(advanced) => {
                let is_done = |queued: &mut QueuedAppend| advanced.contains(&queued.append.shard);
                for queued in group.extract_if(.., is_done) {
                    let new_head = self.appended(&queued.append);
                    queued.end(Ok(new_head));
                }
            }
            // Nothing was appended, and the fault of one must not be that of all.
            Err(QueryFailure::Refused(PostgresError::Refused { .. })) if group.len() > 1 => {}
            Err(QueryFailure::Refused(error)) => {
                for queued in group.drain(..) {
                    queued.end(Err(failed(error.clone())));
                }
            }
            Err(QueryFailure::Unknown(what)) => {
                for queued in group.drain(..) {
                    let ShardAppend {
                        shard, epoch, head, ..
                    } = queued.append;
                    let error = self.in_doubt(shard, epoch, head, what.clone());
                    queued.end(Err(error));
                }
            }
        }
        // These wait for a lock, or fail with their own errors.
        join_all(group.into_iter().map(async |queued| {
            let outcome = self.execute_alone(&queued.append).await;
            queued.end(outcome);
        }))
        .await;
    }

    async fn execute_alone(&self, append: &ShardAppend) -> Result<u64, LogError> {
        match self.execute(APPEND, &[append]).await {
            Ok(advanced) if advanced.is_empty() => Err(self.explain(append).await),
            Ok(_) => Ok(self.appended(append)),
            Err(QueryFailure::Refused(error)) => Err(failed(error)),
            Err(QueryFailure::Unknown(what)) => {
                Err(self.in_doubt(append.shard, append.epoch, append.head, what))
            }
        }
    }

    /// Runs a statement of appends to different shards, and returns the shards that it advanced.
    async fn execute(
        &self,
        sql: &'static str,
        appends: &[&ShardAppend],
    ) -> Result<HashSet<ShardId>, QueryFailure> {
        let numbers = |of: fn(&ShardAppend) -> u64| -> Vec<i64> {
            appends
                .iter()
                .map(|append| of(append).cast_signed())
                .collect()
        };
        let shards = numbers(|append| append.shard.0.into());
        let (epochs, heads) = (
            numbers(|append| append.epoch.0),
            numbers(|append| append.head),
        );
        let new_heads = numbers(ShardAppend::new_head);
        let rows = Columns::of(appends);
        let mut lease = self.lease().await.map_err(QueryFailure::Refused)?;
        let params: [SqlParam<'_>; 15] = [
            &self.options.accept_single_copy,
            &shards,
            &epochs,
            &heads,
            &new_heads,
            &rows.frame_shards,
            &rows.first_offsets,
            &rows.counts,
            &rows.frame_ids,
            &rows.frames,
            &rows.body_shards,
            &rows.home_offsets,
            &rows.namespaces,
            &rows.hashes,
            &rows.bodies,
        ];
        let advanced = lease.session.query(sql, &params).await;
        lease.give_back();
        let shard = |row: &Row| ShardId(u32::try_from(row.get::<_, i64>(0)).unwrap_or(u32::MAX));
        Ok(advanced?.iter().map(shard).collect())
    }

    /// Notes that an append succeeded, and returns the new head.
    fn appended(&self, append: &ShardAppend) -> u64 {
        let new_head = append.new_head();
        if let Ok(state) = self.shard(append.shard) {
            state.confirm(new_head);
            let hot = state.add_hot(append.stored_bytes());
            let store = self.segment_store();
            if hot.zip(store).is_some_and(|(hot, store)| store.is_due(hot)) {
                self.sealing.notify_one();
            }
        }
        new_head
    }

    /// Notes that the outcome of an append is unknown.
    fn in_doubt(&self, shard: ShardId, epoch: Epoch, head: u64, what: String) -> LogError {
        if let Ok(state) = self.shard(shard) {
            *state.in_doubt() = Some(epoch);
        }
        LogError::UnknownOutcome { head, what }
    }

    /// Returns why an append changed no row.
    async fn explain(&self, append: &ShardAppend) -> LogError {
        let mut lease = match self.lease().await {
            Ok(lease) => lease,
            Err(error) => return failed(error),
        };
        let why = self.why_not(&mut lease, append).await;
        lease.give_back();
        why
    }

    async fn why_not(&self, lease: &mut Lease, append: &ShardAppend) -> LogError {
        let (current, actual) = match self.current(lease, append.shard).await {
            Ok(found) => found,
            Err(error) => return failed(error),
        };
        if let Err(error) = append.epoch.check(append.shard, current) {
            return error;
        }
        if actual != append.head {
            return LogError::HeadMismatch {
                expected: append.head,
                actual,
            };
        }
        failed(match self.check(lease).await {
            Err(error) => error,
            Ok(()) => PostgresError::Unconfirmed {
                what: "a setting changed during an append; append again".to_owned(),
            },
        })
    }
}

fn failed(error: PostgresError) -> LogError {
    error.while_doing("appending")
}
