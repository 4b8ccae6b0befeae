//! The log: owners, appends, barriers and reads.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::{
    runtime::Handle,
    sync::Notify,
    task::{JoinHandle, JoinSet},
    time::{sleep, timeout},
};
use tokio_postgres::Row;
use treering_domain::ShardId;
use treering_log::{
    AcquiredShard, BlobRef, EncodedFrame, Epoch, ErasableLog, EventLog, FrameBatch, LogError,
    LogIdentity, LogStats,
};
use uuid::Uuid;

use crate::{
    append::{AppendQueue, ShardAppend},
    error::PostgresError,
    object::{BODY_DAMAGED, checked_body},
    owned::OwnedShard,
    rows::read_frames,
    schema, seal,
    segments::SegmentStore,
    session::{Lease, SessionPool, SqlParam},
    settings::{self, Copies, durable},
    shard::{HotBytes, Shard},
    target::ServerTarget,
};

/// How long a read at the end of the log waits for a barrier. After that, the read ignores what is
/// not confirmed.
const READ_WAIT_MAX: Duration = Duration::from_secs(1);

/// Waits while an append holds the lock of the row. The commit of this statement is the barrier:
/// when it returns, all earlier commits are on the standby.
const ACQUIRE: &str = "\
    insert into treering_shard (shard, head, epoch, owner) values ($1, 0, 1, $2)
    on conflict (shard) do update set epoch = treering_shard.epoch + 1, owner = excluded.owner
    where not $3 or treering_shard.owner = excluded.owner
    returning epoch, head";

const HEAD: &str = "select head, epoch from treering_shard where shard = $1";

/// A commit that changes no table. It returns once it and all earlier commits are on the standby.
const BARRIER: &str = concat!(
    "select ",
    durable!(),
    ", pg_logical_emit_message(true, 'treering', 'barrier')::text"
);

const NEXT_FRAME: &str = "select min(first_offset) from treering_frame \
     where shard = $1 and first_offset > $2 and first_offset <= $3";
const BLOB: &str = "select bytes from treering_blob where shard = $1 and home_offset = $2";
const SIZE: &str = "select pg_total_relation_size('treering_frame') \
     + pg_total_relation_size('treering_blob') \
     + coalesce((select sum(bytes) from treering_segment), 0)::bigint, \
     exists (select from treering_frame where shard = $1)::integer \
     + (select count(*) from treering_segment where shard = $1 and is_live)";

/// Maximum number of connections for heartbeats and for reading who owns what.
const CONTROL_CONNECTIONS: usize = 2;

/// Options of a [`PostgresLog`].
#[derive(Clone, Debug)]
pub struct PostgresLogOptions {
    /// Acknowledge appends that are on one server only, if that server names no synchronous
    /// standby.
    pub accept_single_copy: bool,
    /// How long an answer may take. After that the outcome of an append is unknown.
    pub deadline: Duration,
    /// How often `tail` looks for appends of other processes.
    pub poll_interval: Duration,
    /// How often the settings of the server are checked. Each append checks most of them as well.
    pub check_every: Duration,
    /// Maximum number of connections in use at a time. An abandoned statement keeps one more until
    /// the server answers it.
    pub connections_max: usize,
    /// The id of this process as an owner of shards; `None`: a new one.
    pub process: Option<Uuid>,
    /// Acquire a shard only if this process has claimed it ([`PostgresLog::claim`]): for nodes of a
    /// cluster. Otherwise acquiring takes the shard from its owner.
    pub claimed_only: bool,
}

impl Default for PostgresLogOptions {
    fn default() -> Self {
        Self {
            accept_single_copy: false,
            deadline: Duration::from_secs(10),
            poll_interval: Duration::from_millis(250),
            check_every: Duration::from_secs(60),
            connections_max: 16,
            process: None,
            claimed_only: false,
        }
    }
}

/// The log in PostgreSQL. See `docs/CLUSTER.md`.
pub struct PostgresLog {
    inner: Arc<Inner>,
    /// Callers may be on threads without a runtime.
    runtime: Handle,
    checks: JoinHandle<()>,
    sealer: JoinHandle<()>,
}

pub(crate) struct Inner {
    pub(crate) identity: LogIdentity,
    /// How many shards the log has.
    pub(crate) shards_total: u32,
    pub(crate) options: PostgresLogOptions,
    pub(crate) pool: Arc<SessionPool>,
    /// For heartbeats, which must not wait for appends and reads.
    pub(crate) control: Arc<SessionPool>,
    /// Names this process as an owner.
    pub(crate) owner: Uuid,
    shards: Mutex<HashMap<ShardId, Arc<Shard>>>,
    /// The unsafe setting that the last check found. While it is set, appends are refused.
    unsafe_setting: Mutex<Option<PostgresError>>,
    closed: AtomicBool,
    /// Where sealed segments are.
    pub(crate) segments: Mutex<Option<Arc<SegmentStore>>>,
    /// Wakes the task that seals.
    pub(crate) sealing: Notify,
    pub(crate) appends: AppendQueue,
}

impl PostgresLog {
    /// Opens the log in the database of a URL. Must be called in a tokio runtime, which the log
    /// uses until it is dropped.
    ///
    /// # Errors
    /// When there is no log or no primary, or when a setting of the server makes acknowledgements
    /// unsafe.
    pub async fn open(url: &str, options: PostgresLogOptions) -> Result<Self, PostgresError> {
        let target = ServerTarget::parse(url, options.deadline)?;
        let control = SessionPool::new(target.clone(), options.deadline, CONTROL_CONNECTIONS);
        let pool = SessionPool::new(target, options.deadline, options.connections_max);
        let pool = Arc::new(pool);
        let (mut lease, _) = pool.lease().await?;
        let log = schema::read(&mut lease.session, pool.target_name()).await?;
        let copies = settings::check(&mut lease.session, options.accept_single_copy).await?;
        if copies == Copies::Single {
            tracing::warn!(
                "PostgreSQL has no synchronous standby: the only copy of acknowledged events is on \
                 one server"
            );
        }
        lease.give_back();
        let process = options.process;
        let inner = Arc::new(Inner {
            identity: log.identity,
            shards_total: log.shards,
            options,
            pool,
            control: Arc::new(control),
            owner: process.unwrap_or_else(Uuid::new_v4),
            shards: Mutex::default(),
            unsafe_setting: Mutex::default(),
            closed: false.into(),
            segments: Mutex::default(),
            sealing: Notify::new(),
            appends: AppendQueue::default(),
        });
        let checks = tokio::spawn(check_settings(Arc::downgrade(&inner)));
        let sealer = tokio::spawn(seal::run(Arc::clone(&inner), Handle::current()));
        Ok(Self {
            inner,
            runtime: Handle::current(),
            checks,
            sealer,
        })
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Runs work on the runtime of the log, and aborts it when the caller stops waiting.
    async fn run<T, F>(&self, work: F) -> Result<T, LogError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, LogError>> + Send + 'static,
    {
        let mut tasks = JoinSet::new();
        tasks.spawn_on(work, &self.runtime);
        match tasks.join_next().await {
            Some(Ok(done)) => done,
            _ => Err(LogError::Closed),
        }
    }
}

impl Drop for PostgresLog {
    fn drop(&mut self) {
        self.checks.abort();
        self.sealer.abort();
    }
}

/// Checks the settings at intervals, as long as the log exists.
async fn check_settings(log: Weak<Inner>) {
    let Some(every) = log.upgrade().map(|log| log.options.check_every) else {
        return;
    };
    loop {
        sleep(every).await;
        let Some(inner) = log.upgrade() else {
            return;
        };
        let Ok(mut lease) = inner.lease().await else {
            continue;
        };
        let checked = inner.check(&mut lease).await;
        lease.give_back();
        let error = match checked {
            Ok(()) => None,
            Err(error @ PostgresError::Setting { .. }) => Some(error),
            // This error says nothing about the settings.
            Err(_) => continue,
        };
        if let Some(error) = &error {
            tracing::error!(%error, "appends are refused until this setting is fixed");
        }
        *inner.unsafe_setting() = error;
    }
}

impl Inner {
    pub(crate) fn shard(&self, shard: ShardId) -> Result<Arc<Shard>, LogError> {
        let mut shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        if self.closed.load(Ordering::SeqCst) {
            return Err(LogError::Closed);
        }
        Ok(Arc::clone(shards.entry(shard).or_default()))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Returns the shards that were used.
    pub(crate) fn known_shards(&self) -> Vec<(ShardId, Arc<Shard>)> {
        let shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        let known = shards
            .iter()
            .map(|(shard, state)| (*shard, Arc::clone(state)));
        known.collect()
    }

    pub(crate) fn unsafe_setting(&self) -> MutexGuard<'_, Option<PostgresError>> {
        self.unsafe_setting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a session. Fails if the host name now resolves to a server with another log.
    pub(crate) async fn lease(&self) -> Result<Lease, PostgresError> {
        self.lease_of(&self.pool).await
    }

    /// Like [`Self::lease`], for a session of this pool.
    pub(crate) async fn lease_of(&self, pool: &Arc<SessionPool>) -> Result<Lease, PostgresError> {
        let (mut lease, is_new) = pool.lease().await?;
        if is_new {
            let target = pool.target_name();
            if schema::read(&mut lease.session, target).await?.identity != self.identity {
                return Err(PostgresError::OtherLog {
                    target: target.to_owned(),
                });
            }
        }
        Ok(lease)
    }

    /// Runs a statement that reads.
    pub(crate) async fn ask(
        &self,
        doing: &'static str,
        sql: &'static str,
        params: &[SqlParam<'_>],
    ) -> Result<Vec<Row>, LogError> {
        let failed = |error: PostgresError| error.while_doing(doing);
        let mut lease = self.lease().await.map_err(failed)?;
        let answer = lease.session.query(sql, params).await;
        lease.give_back();
        answer.map_err(|failure| failed(failure.into()))
    }

    pub(crate) async fn check(&self, lease: &mut Lease) -> Result<(), PostgresError> {
        settings::check(&mut lease.session, self.options.accept_single_copy)
            .await
            .map(drop)
    }

    async fn acquire(&self, shard: ShardId) -> Result<AcquiredShard, LogError> {
        const DOING: &str = "acquiring a shard";
        let state = self.shard(shard)?;
        let failed = |error: PostgresError| error.while_doing(DOING);
        let mut lease = self.lease().await.map_err(failed)?;
        self.check(&mut lease).await.map_err(failed)?;
        *self.unsafe_setting() = None;
        // After a lost answer, the head shows the outcome only if nobody else owned the shard
        // meanwhile.
        let doubt = *state.in_doubt();
        let key = i64::from(shard.0);
        let only_own = doubt.is_some() || self.options.claimed_only;
        let acquired = lease
            .session
            .query(ACQUIRE, &[&key, &self.owner, &only_own])
            .await;
        let acquired = match acquired {
            Ok(acquired) => acquired,
            Err(failure) => {
                lease.give_back();
                return Err(failed(failure.into()));
            }
        };
        let Some(row) = acquired.first() else {
            let (current, _) = self.current(&mut lease, shard).await.map_err(failed)?;
            lease.give_back();
            *state.in_doubt() = None;
            return Err(LogError::NotOwner {
                shard,
                epoch: doubt.unwrap_or_default(),
                current,
            });
        };
        let epoch = Epoch(row.get::<_, i64>(0).cast_unsigned());
        let head = row.get::<_, i64>(1).cast_unsigned();
        lease.give_back();
        let confirmed = state.confirmed()?;
        if head < confirmed {
            return Err(LogError::damaged(
                head + 1,
                format!(
                    "the head of the shard went back from {confirmed} to {head}: PostgreSQL failed \
                     over to a server that lacks acknowledged events, or was restored"
                ),
            ));
        }
        *state.in_doubt() = None;
        state.acquired(epoch);
        state.confirm(head);
        *state.hot() = HotBytes::Unknown;
        self.sealing.notify_one();
        Ok(AcquiredShard { epoch, head })
    }

    /// Returns the epoch and the head of a shard. The head may not be confirmed yet.
    pub(crate) async fn current(
        &self,
        lease: &mut Lease,
        shard: ShardId,
    ) -> Result<(Epoch, u64), PostgresError> {
        let rows = lease.session.query(HEAD, &[&i64::from(shard.0)]).await?;
        Ok(rows.first().map_or((Epoch::default(), 0), |row| {
            let epoch = Epoch(row.get::<_, i64>(1).cast_unsigned());
            (epoch, row.get::<_, i64>(0).cast_unsigned())
        }))
    }

    /// Reads the shard's head, and confirms it by a barrier if it has advanced. Gives up after
    /// `wait`; the barrier continues.
    async fn refresh(self: &Arc<Self>, shard: ShardId, wait: Duration) -> Result<(), LogError> {
        let state = self.shard(shard)?;
        let inner = Arc::clone(self);
        let refreshing = async {
            let guard = Arc::clone(&state.barrier).lock_owned().await;
            let task = tokio::spawn(async move {
                let _guard = guard;
                inner.confirm_head(shard).await
            });
            task.await.unwrap_or(Err(LogError::Closed))
        };
        timeout(wait, refreshing).await.unwrap_or(Ok(()))
    }

    async fn confirm_head(&self, shard: ShardId) -> Result<(), LogError> {
        let failed = |error: PostgresError| error.while_doing("looking for the head");
        let state = self.shard(shard)?;
        let mut lease = self.lease().await.map_err(failed)?;
        let (_, head) = self.current(&mut lease, shard).await.map_err(failed)?;
        if head > state.confirmed()? {
            lease.release_slot();
            let rows = lease
                .session
                .query_patiently(BARRIER, &[&self.options.accept_single_copy])
                .await
                .map_err(|failure| failed(failure.into()))?;
            if !rows.first().is_some_and(|row| row.get(0)) {
                return self.check(&mut lease).await.map_err(failed);
            }
            state.confirm(head);
        }
        lease.give_back();
        Ok(())
    }

    /// Returns the confirmed offset, which a read of `offset` must not pass.
    async fn readable(self: &Arc<Self>, shard: ShardId, offset: u64) -> Result<u64, LogError> {
        let state = self.shard(shard)?;
        if offset > state.confirmed()? {
            self.refresh(shard, READ_WAIT_MAX).await?;
        }
        state.confirmed()
    }

    async fn read(
        self: Arc<Self>,
        shard: ShardId,
        from: u64,
        bytes_max: usize,
    ) -> Result<Vec<EncodedFrame>, LogError> {
        let from = from.max(1);
        let upto = self.readable(shard, from).await?;
        if from > upto {
            return Ok(Vec::new());
        }
        if !self.shard(shard)?.is_sealed(from) {
            match self.hot_frames(shard, from, upto, bytes_max).await {
                Err(LogError::Damaged { .. }) => {}
                read => return read,
            }
        }
        match self.sealed_blocks(shard, from, bytes_max).await? {
            Some(blocks) => Ok(blocks),
            // It reports damage, or finds what a fail-over has unsealed.
            None => self.hot_frames(shard, from, upto, bytes_max).await,
        }
    }

    /// Reads frames that are in the database.
    pub(crate) async fn hot_frames(
        &self,
        shard: ShardId,
        from: u64,
        upto: u64,
        bytes_max: usize,
    ) -> Result<Vec<EncodedFrame>, LogError> {
        let failed = |error: PostgresError| error.while_doing("reading frames");
        let mut lease = self.lease().await.map_err(failed)?;
        let read = read_frames(&mut lease.session, shard, from, upto, bytes_max).await;
        lease.give_back();
        read.map_err(|failure| failed(failure.into()))?
    }

    async fn next_frame(
        self: Arc<Self>,
        shard: ShardId,
        after: u64,
    ) -> Result<Option<u64>, LogError> {
        let upto = self.readable(shard, after.saturating_add(1)).await?;
        let bounds = (after.cast_signed(), upto.cast_signed());
        let params: [SqlParam<'_>; 3] = [&i64::from(shard.0), &bounds.0, &bounds.1];
        let found = self.ask("looking for a frame", NEXT_FRAME, &params).await?;
        let first = found.first().and_then(|row| row.get::<_, Option<i64>>(0));
        // Frames that are sealed between the two looks are found by the second.
        let sealed = self.next_block(shard, after).await?;
        Ok(first
            .map(i64::cast_unsigned)
            .into_iter()
            .chain(sealed)
            .min())
    }

    async fn blob(self: Arc<Self>, shard: ShardId, blob: BlobRef) -> Result<Bytes, LogError> {
        let home = blob.home_offset;
        if home > self.readable(shard, home).await? {
            return Err(LogError::NotFound { offset: home });
        }
        // A fail-over may have undone a sealing that was not confirmed, so both are tried.
        let is_sealed = self.shard(shard)?.is_sealed(home);
        for in_segment in [is_sealed, !is_sealed] {
            let found = match in_segment {
                true => self.sealed_body(shard, &blob).await?,
                false => self.hot_body(shard, home).await?,
            };
            if let Some(body) = found {
                return checked_body(body, &blob);
            }
        }
        Err(LogError::damaged(home, BODY_DAMAGED))
    }

    /// Returns a large body that is in the database.
    async fn hot_body(&self, shard: ShardId, home: u64) -> Result<Option<Bytes>, LogError> {
        let params: [SqlParam<'_>; 2] = [&i64::from(shard.0), &home.cast_signed()];
        let found = self.ask("reading a large body", BLOB, &params).await?;
        Ok(found.first().map(|row| Bytes::copy_from_slice(row.get(0))))
    }

    async fn tail(self: Arc<Self>, shard: ShardId, after: u64) -> Result<u64, LogError> {
        let mut confirmed = self.shard(shard)?.watch();
        loop {
            let now = *confirmed.borrow_and_update();
            if now.closed {
                return Err(LogError::Closed);
            }
            if now.offset > after {
                return Ok(now.offset);
            }
            let looking = async {
                sleep(self.options.poll_interval).await;
                // If the server cannot be queried now, it is queried again later.
                if let Err(error) = self.refresh(shard, self.pool.deadline()).await {
                    tracing::debug!(%error, "the head of the log could not be read");
                }
            };
            tokio::select! {
                changed = confirmed.changed() => changed.map_err(|_| LogError::Closed)?,
                () = looking => {}
            }
        }
    }

    async fn stats(self: Arc<Self>, shard: ShardId) -> Result<LogStats, LogError> {
        self.shard(shard)?;
        let key = i64::from(shard.0);
        let measured = self.ask("measuring the log", SIZE, &[&key]).await?;
        Ok(measured
            .first()
            .map_or_else(LogStats::default, |row| LogStats {
                bytes: row.get::<_, i64>(0).cast_unsigned(),
                segments: row.get::<_, i64>(1).cast_unsigned(),
            }))
    }

    fn close(&self) {
        let shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        self.closed.store(true, Ordering::SeqCst);
        for shard in shards.values() {
            shard.close();
        }
        self.pool.close();
        self.control.close();
        self.sealing.notify_one();
    }
}

#[async_trait]
impl EventLog for PostgresLog {
    fn identity(&self) -> LogIdentity {
        self.inner.identity
    }

    async fn acquire(&self, shard: ShardId) -> Result<AcquiredShard, LogError> {
        let inner = Arc::clone(&self.inner);
        self.run(async move { inner.acquire(shard).await }).await
    }

    async fn append(
        &self,
        shard: ShardId,
        epoch: Epoch,
        head: u64,
        batch: FrameBatch,
    ) -> Result<u64, LogError> {
        let inner = Arc::clone(&self.inner);
        // The append continues when the caller stops waiting, so that a lost answer is noticed.
        let append = ShardAppend {
            shard,
            epoch,
            head,
            batch,
        };
        let append = async move { inner.append(append).await };
        match self.runtime.spawn(append).await {
            Ok(done) => done,
            Err(error) => Err(LogError::UnknownOutcome {
                head,
                what: format!("the append was aborted: {error}"),
            }),
        }
    }

    async fn read(
        &self,
        shard: ShardId,
        from_offset: u64,
        bytes_max: usize,
    ) -> Result<Vec<EncodedFrame>, LogError> {
        let inner = Arc::clone(&self.inner);
        self.run(inner.read(shard, from_offset, bytes_max)).await
    }

    async fn next_frame(&self, shard: ShardId, after_offset: u64) -> Result<Option<u64>, LogError> {
        let inner = Arc::clone(&self.inner);
        self.run(inner.next_frame(shard, after_offset)).await
    }

    async fn blob(&self, shard: ShardId, blob: &BlobRef) -> Result<Bytes, LogError> {
        let inner = Arc::clone(&self.inner);
        self.run(inner.blob(shard, *blob)).await
    }

    async fn tail(&self, shard: ShardId, after_offset: u64) -> Result<u64, LogError> {
        let inner = Arc::clone(&self.inner);
        self.run(inner.tail(shard, after_offset)).await
    }

    /// Returns the size of tables and objects, which all shards share.
    async fn stats(&self, shard: ShardId) -> Result<LogStats, LogError> {
        let inner = Arc::clone(&self.inner);
        self.run(inner.stats(shard)).await
    }

    fn erasable(self: Arc<Self>, shard: ShardId, epoch: Epoch) -> Option<Arc<dyn ErasableLog>> {
        let inner = Arc::clone(&self.inner);
        let runtime = self.runtime.clone();
        Some(Arc::new(OwnedShard::new(inner, runtime, shard, epoch)))
    }

    async fn close(&self) -> Result<(), LogError> {
        self.inner.close();
        Ok(())
    }
}
