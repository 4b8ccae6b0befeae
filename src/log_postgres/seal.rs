//! Sealing: moves the oldest frames of a shard to object storage.
//!
//! The order makes it safe to stop anywhere. A segment gets a number and a row that is not live; its
//! object is put and read back; then one statement makes the row live and deletes the frames. A row
//! that never became live, or that an erasure replaced, is garbage, and its object is removed. Before
//! that, the shard's last number is raised, after which no delayed statement can make an older row
//! live. The row stays for an hour and its object is removed again: an earlier owner may still have
//! been writing it.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::{
    runtime::Handle,
    task::spawn_blocking,
    time::{sleep, timeout},
};
use treering_domain::ShardId;
use treering_log::{EncodedFrame, LogError, Record, frame};
use treering_objects::{ObjectStorage, WriteMode};

use crate::{
    error::PostgresError,
    log::{Inner, PostgresLog},
    nodes::ask,
    object::{self, SealedBody, SegmentObject},
    owned::{OwnedShard, owned},
    schema,
    segments::{SegmentRow, SegmentStore, marker_of},
    session::{PostgresSession, SqlParam},
    settings::durable,
    shard::HotBytes,
    target::ServerTarget,
};

/// Size of the frames and large bodies of a segment, in bytes, before they are packed into blocks.
const SEGMENT_BYTES: u64 = 8 << 20;
/// Size of the frames that are read at a time to seal them, in bytes.
const READ_BYTES: usize = 256 << 10;
/// How often shards are looked at if no append asks for it.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// How long sealing pauses after an error.
const PAUSE: Duration = Duration::from_secs(5);

/// Bytes of a shard in the database.
const HOT: &str = "select (select coalesce(sum(octet_length(bytes)), 0) from treering_frame \
     where shard = $1)::bigint + (select coalesce(sum(octet_length(bytes)), 0) \
     from treering_blob where shard = $1)::bigint, \
     (select min(first_offset) from treering_frame where shard = $1)";

const GRANTED: &str = "select has_table_privilege('treering_frame', 'delete') \
     and has_table_privilege('treering_segment', 'delete')";

const BODY_SIZES: &str = "select home_offset, octet_length(bytes)::bigint from treering_blob \
     where shard = $1 and home_offset between $2 and $3 order by home_offset";
const BODIES: &str = "select home_offset, bytes from treering_blob \
     where shard = $1 and home_offset between $2 and $3 order by home_offset";

const RESERVE: &str = concat!(
    "with owned as (
        update treering_shard set last_segment = last_segment + 1
        where shard = $2 and epoch = $3 and ",
    durable!(),
    " returning last_segment
    ) insert into treering_segment
        (shard, number, hash, first_offset, last_offset, index_bytes, bytes, is_live)
    select $2, last_segment, $4, $5, $6, $7, $8, false from owned returning number"
);

const SEAL: &str = concat!(
    "with owned as (
        update treering_shard set sealed_upto = $6
        where shard = $2 and epoch = $3 and last_segment = $4 and ",
    durable!(),
    " returning 1
    ), live as (
        update treering_segment as s set is_live = true from owned
        where s.shard = $2 and s.number = $4 returning 1
    ), frames as (
        delete from treering_frame as f using live
        where f.shard = $2 and f.first_offset between $5 and $6
    ), bodies as (
        delete from treering_blob as b using live
        where b.shard = $2 and b.home_offset between $5 and $6
    ) select true from live"
);

const SWAP: &str = concat!(
    "with owned as (
        update treering_shard set last_segment = last_segment
        where shard = $2 and epoch = $3 and last_segment = $4 and ",
    durable!(),
    " returning 1
    ), live as (
        update treering_segment as s set is_live = s.number = $4 from owned
        where s.shard = $2 and s.number in ($4, $5)
    ) select true from owned"
);

const HAS_GARBAGE: &str =
    "select exists (select from treering_segment where shard = $1 and not is_live)";
const WITH_GARBAGE: &str = "select distinct shard from treering_segment where not is_live";

const RAISE: &str = concat!(
    "update treering_shard set last_segment = last_segment + 1
    where shard = $2 and epoch = $3 and ",
    durable!(),
    " returning true"
);

/// The commit confirms what the statement reads: a row that only the primary had would be live
/// again after a fail-over.
const GARBAGE: &str = concat!(
    "with owned as (
        update treering_shard set last_segment = last_segment + 1
        where shard = $2 and epoch = $3 and ",
    durable!(),
    " returning 1
    ) select
        array(select number from treering_segment where shard = $2 and not is_live order by number),
        array(select hash from treering_segment where shard = $2 and not is_live order by number)
    from owned"
);

/// An object that is still being written is put within minutes, or never.
const FORGET: &str = concat!(
    owned!(),
    "forgotten as (
        delete from treering_segment as s using owned
        where s.shard = $2 and s.number = any($4::bigint[]) and not s.is_live
            and s.reserved_at < now() - interval '1 hour'
    ) select true from owned"
);

const SEALING: &str = "sealing frames";
const COLLECTING: &str = "removing replaced segments";

const SET: &str = "update treering_log set objects = $1, hot_bytes = coalesce($2, hot_bytes) \
     returning hot_bytes";
const SET_NOW: &str = "select objects, (select count(*) from treering_segment) from treering_log";

const TIERS: &str = "select l.objects, s.segments, s.bytes, \
     pg_total_relation_size('treering_frame') + pg_total_relation_size('treering_blob') \
     from treering_log as l, (select count(*) as segments, \
         coalesce(sum(bytes), 0)::bigint as bytes from treering_segment where is_live) as s";

/// Makes a folder or bucket the object storage of a log: nodes then move frames into it, except for
/// the newest `hot_bytes` of each shard (`None`: as before, at first 64 MiB). Returns its address
/// and the size that applies. The role of the URL must own the tables. Nodes use it within a minute.
///
/// # Errors
/// [`PostgresError::Objects`] if it cannot be written, or if there are segments in another one and
/// they were not copied.
pub async fn set_objects(
    url: &str,
    address: &str,
    hot_bytes: Option<u64>,
) -> Result<(String, u64), PostgresError> {
    let deadline = Duration::from_secs(30);
    let target = ServerTarget::parse(url, deadline)?;
    let mut session = PostgresSession::connect(&target, deadline).await?;
    let log = schema::read(&mut session, &target.name).await?;
    let failed = |error| PostgresError::of_objects(&error);
    let storage = ObjectStorage::to_write(address).map_err(failed)?;
    let address = storage.address().to_owned();
    let marker = marker_of(log.identity.store);
    let is_marked = storage.find(&marker).await.map_err(failed)?.is_some();
    let rows = session.query(SET_NOW, &[]).await?;
    let now = rows.first().and_then(|row| row.get::<_, Option<&str>>(0));
    let segments = rows.first().map_or(0, |row| row.get::<_, i64>(1));
    if !is_marked {
        if let Some(now) = now.filter(|_| segments > 0) {
            return Err(PostgresError::Objects {
                what: format!(
                    "{segments} segments are in {now}, and {address} does not have them. Copy the \
                     whole folder or bucket there first"
                ),
            });
        }
        let text = "Sealed segments of a Treering cluster. Its events are lost without them.\n";
        let put = storage.put(&marker, Bytes::from_static(text.as_bytes()), WriteMode::Any);
        put.await.map_err(failed)?;
    }
    let hot_bytes = hot_bytes.map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
    let rows = session.query(SET, &[&address, &hot_bytes]).await?;
    let hot_bytes = rows.first().map_or(0, |row| row.get::<_, i64>(0));
    Ok((address, hot_bytes.cast_unsigned()))
}

/// How much of a log is where.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct LogTiers {
    /// The address of the object storage; `None`: everything is in the database.
    pub objects: Option<String>,
    /// Number of sealed segments.
    pub segments: u64,
    /// Their size, in bytes.
    pub segment_bytes: u64,
    /// Size of the tables of frames and large bodies, in bytes.
    pub database_bytes: u64,
}

impl PostgresLog {
    /// Returns how much of the log is in the database and in object storage.
    ///
    /// # Errors
    /// [`PostgresError`].
    pub async fn tiers(&self) -> Result<LogTiers, PostgresError> {
        let inner = self.inner();
        let rows = ask(inner, &inner.control, TIERS, &[]).await?;
        let Some(row) = rows.first() else {
            return Ok(LogTiers::default());
        };
        Ok(LogTiers {
            objects: row.get(0),
            segments: row.get::<_, i64>(1).cast_unsigned(),
            segment_bytes: row.get::<_, i64>(2).cast_unsigned(),
            database_bytes: row.get::<_, i64>(3).cast_unsigned(),
        })
    }
}

/// Seals what is due, until the log is closed.
pub(crate) async fn run(inner: Arc<Inner>, runtime: Handle) {
    let mut collected = Instant::now();
    loop {
        let _woken = timeout(LOOK_EVERY, inner.sealing.notified()).await;
        let mut done = seal_all(&inner, &runtime).await;
        if collected.elapsed() >= LOOK_EVERY {
            collected = Instant::now();
            done = done.and(collect_all(&inner, &runtime).await);
        }
        if inner.is_closed() {
            return;
        }
        if let Err(error) = done {
            tracing::warn!(%error, "sealing failed, so the database grows; retrying");
            sleep(PAUSE).await;
        }
    }
}

async fn seal_all(inner: &Arc<Inner>, runtime: &Handle) -> Result<(), LogError> {
    let Some(store) = inner.open_segment_store().await? else {
        return Ok(());
    };
    let mut failed = None;
    for (shard, epoch) in inner.owned_shards() {
        let owned = OwnedShard::new(Arc::clone(inner), runtime.clone(), shard, epoch);
        loop {
            match owned.seal_next(&store).await {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    let state = inner.shard(shard)?;
                    let is_over = matches!(error, LogError::NotOwner { .. });
                    let is_over = is_over && state.epoch() == epoch;
                    *state.hot() = if is_over {
                        HotBytes::NotOwned
                    } else {
                        // The next try begins by removing what this one left.
                        HotBytes::Unknown
                    };
                    // One damaged shard must not keep the others in the database.
                    failed = failed.or((!is_over).then_some(error));
                    break;
                }
            }
        }
    }
    failed.map_or(Ok(()), Err)
}

async fn collect_all(inner: &Arc<Inner>, runtime: &Handle) -> Result<(), LogError> {
    let Some(store) = inner.segment_store() else {
        return Ok(());
    };
    let rows = inner.ask(COLLECTING, WITH_GARBAGE, &[]).await?;
    let with_garbage: HashSet<i64> = rows.iter().map(|row| row.get(0)).collect();
    for (shard, epoch) in inner.owned_shards() {
        if with_garbage.contains(&i64::from(shard.0)) {
            let owned = OwnedShard::new(Arc::clone(inner), runtime.clone(), shard, epoch);
            let state = inner.shard(shard)?;
            let _turn = state.moving.lock().await;
            match owned.collect(&store).await {
                Ok(()) | Err(LogError::NotOwner { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

impl SegmentStore {
    /// Returns whether a shard with this many bytes in the database has a segment to seal.
    pub(crate) fn is_due(&self, hot: u64) -> bool {
        hot.saturating_sub(self.hot_bytes) > SEGMENT_BYTES.min(self.hot_bytes)
    }
}

impl OwnedShard {
    /// Seals one segment if that is due. Returns whether it was.
    async fn seal_next(&self, store: &SegmentStore) -> Result<bool, LogError> {
        let state = self.inner.shard(self.shard)?;
        let _turn = state.moving.lock().await;
        let known = *state.hot();
        match known {
            HotBytes::NotOwned => return Ok(false),
            HotBytes::Known(hot) if !store.is_due(hot) => return Ok(false),
            HotBytes::Known(_) => {}
            HotBytes::Unknown => {
                let granted = self.inner.ask(SEALING, GRANTED, &[]).await?;
                if !granted.first().is_some_and(|row| row.get(0)) {
                    return Err(PostgresError::NotGranted.while_doing(SEALING));
                }
                self.collect(store).await?;
            }
        }
        // The sum of appends may be wrong after a lost answer. Appends meanwhile are counted twice
        // rather than never.
        *state.hot() = HotBytes::Known(0);
        let (hot, first) = self.measure().await?;
        state.add_hot(hot);
        let first = first.filter(|_| store.is_due(hot));
        let Some(first) = first else {
            return Ok(false);
        };
        let bytes_max = SEGMENT_BYTES.min(hot - store.hot_bytes);
        let Some((last, frames)) = self.oldest(first, bytes_max).await? else {
            return Ok(false);
        };
        let bodies = self.bodies(first, last).await?;
        let taken = frames.iter().map(|frame| frame.bytes.len()).sum::<usize>()
            + bodies.iter().map(|body| body.bytes.len()).sum::<usize>();
        let object = in_background(move || seal(first, &frames, &bodies)).await?;
        let bytes = object.bytes.len();
        let row = self.upload(store, object).await?;
        let (from, upto) = (first.cast_signed(), last.cast_signed());
        let params: [SqlParam<'_>; 3] = [&row.number, &from, &upto];
        self.change(SEALING, SEAL, &params).await?;
        state.sealed(last);
        let taken = taken as u64;
        if let HotBytes::Known(hot) = &mut *state.hot() {
            *hot = hot.saturating_sub(taken);
        }
        tracing::debug!(
            shard = self.shard.0,
            first,
            last,
            taken,
            bytes,
            "sealed a segment"
        );
        Ok(true)
    }

    /// Returns how many bytes of the shard are in the database, and its first offset there.
    async fn measure(&self) -> Result<(u64, Option<u64>), LogError> {
        let rows = self
            .inner
            .ask(SEALING, HOT, &[&i64::from(self.shard.0)])
            .await?;
        let row = rows.first();
        Ok((
            row.map_or(0, |row| row.get::<_, i64>(0).cast_unsigned()),
            row.and_then(|row| row.get::<_, Option<i64>>(1))
                .map(i64::cast_unsigned),
        ))
    }

    /// Returns the oldest frames with at most this many bytes, large bodies included, but at least
    /// one, and their last offset.
    async fn oldest(
        &self,
        first: u64,
        bytes_max: u64,
    ) -> Result<Option<(u64, Vec<EncodedFrame>)>, LogError> {
        // What is not confirmed may disappear at a fail-over.
        let confirmed = self.inner.shard(self.shard)?.confirmed()?;
        let mut oldest: Vec<EncodedFrame> = Vec::new();
        let mut taken = 0;
        let mut next = first;
        'reading: while next <= confirmed {
            let frames = self
                .inner
                .hot_frames(self.shard, next, confirmed, READ_BYTES)
                .await?;
            let end = frames.last().map_or(next, EncodedFrame::last_offset);
            let sizes = self.of_range(BODY_SIZES, next, end).await?;
            let sizes: Vec<(u64, u64)> = sizes
                .iter()
                .map(|row| {
                    let home = row.get::<_, i64>(0).cast_unsigned();
                    (home, row.get::<_, i64>(1).cast_unsigned())
                })
                .collect();
            for stored in frames {
                let range = stored.first_offset..=stored.last_offset();
                let bodies = sizes.iter().filter(|(home, _)| range.contains(home));
                taken += stored.bytes.len() as u64 + bodies.map(|(_, bytes)| bytes).sum::<u64>();
                if taken > bytes_max && !oldest.is_empty() {
                    break 'reading;
                }
                next = stored.last_offset() + 1;
                oldest.push(stored);
            }
        }
        Ok(oldest
            .last()
            .map(EncodedFrame::last_offset)
            .map(|last| (last, oldest)))
    }

    async fn bodies(&self, first: u64, last: u64) -> Result<Vec<SealedBody>, LogError> {
        let rows = self.of_range(BODIES, first, last).await?;
        let bodies = rows.iter().map(|row| SealedBody {
            home_offset: row.get::<_, i64>(0).cast_unsigned(),
            bytes: Bytes::copy_from_slice(row.get(1)),
        });
        Ok(bodies.collect())
    }

    async fn of_range(
        &self,
        sql: &'static str,
        first: u64,
        last: u64,
    ) -> Result<Vec<tokio_postgres::Row>, LogError> {
        let (first, last) = (first.cast_signed(), last.cast_signed());
        let params: [SqlParam<'_>; 3] = [&i64::from(self.shard.0), &first, &last];
        self.inner.ask(SEALING, sql, &params).await
    }

    /// Gives an object a number, puts it and reads it back. Its row is not live yet.
    pub(crate) async fn upload(
        &self,
        store: &SegmentStore,
        object: SegmentObject,
    ) -> Result<SegmentRow, LogError> {
        let mut row = SegmentRow::of_object(&object);
        let (first, last) = (
            row.first_offset.cast_signed(),
            row.last_offset.cast_signed(),
        );
        let hash = &row.hash[..];
        let params: [SqlParam<'_>; 5] = [&hash, &first, &last, &row.index_bytes, &row.bytes];
        let reserved = self.change(SEALING, RESERVE, &params).await?;
        row.number = reserved.get(0);
        store.put(self.shard, &row, object.bytes).await?;
        Ok(row)
    }

    /// Replaces a segment by another one of the same records.
    pub(crate) async fn swap(&self, old: &SegmentRow, new: &SegmentRow) -> Result<(), LogError> {
        let params: [SqlParam<'_>; 2] = [&new.number, &old.number];
        self.change(COLLECTING, SWAP, &params).await.map(drop)
    }

    /// Removes the objects that are not part of the log.
    pub(crate) async fn collect(&self, store: &SegmentStore) -> Result<(), LogError> {
        let key = i64::from(self.shard.0);
        let found = self.inner.ask(COLLECTING, HAS_GARBAGE, &[&key]).await?;
        if !found.first().is_some_and(|row| row.get(0)) {
            return Ok(());
        }
        self.change(COLLECTING, RAISE, &[]).await?;
        let garbage = self.change(COLLECTING, GARBAGE, &[]).await?;
        let numbers: Vec<i64> = garbage.get(0);
        let hashes: Vec<Vec<u8>> = garbage.get(1);
        for (number, hash) in numbers.iter().zip(hashes) {
            let hash = hash.try_into().map_err(|_| {
                LogError::damaged(0, format!("segment {number} has an invalid hash"))
            })?;
            store.remove(self.shard, *number, &hash).await?;
        }
        self.change(COLLECTING, FORGET, &[&numbers]).await.map(drop)
    }
}

/// Packs frames and bodies, and checks that the same records can be read from the result.
fn seal(
    first: u64,
    frames: &[EncodedFrame],
    bodies: &[SealedBody],
) -> Result<SegmentObject, LogError> {
    let mut records = Vec::new();
    for stored in frames {
        records.extend(frame::decode(stored)?.records);
    }
    pack(first, records, bodies)
}

/// Packs records and bodies, and checks that they can be read from the result.
pub(crate) fn pack(
    first: u64,
    records: Vec<Record>,
    bodies: &[SealedBody],
) -> Result<SegmentObject, LogError> {
    let object = object::encode(first, records.clone(), bodies)?;
    let read = object::decode(first, &object.bytes, object.index_bytes)?;
    if read.0 != records || read.1 != bodies {
        return Err(LogError::damaged(
            first,
            "a segment cannot be read back as it was written; nothing was changed",
        ));
    }
    Ok(object)
}

/// Runs work that takes long on a thread for that.
pub(crate) async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, LogError> + Send + 'static,
) -> Result<T, LogError> {
    spawn_blocking(work).await.unwrap_or(Err(LogError::Closed))
}

impl Inner {
    /// Returns the shards that this process owns, as far as it knows.
    fn owned_shards(&self) -> Vec<(ShardId, treering_log::Epoch)> {
        let shards = self.known_shards();
        let owned = shards
            .into_iter()
            .filter(|(_, state)| *state.hot() != HotBytes::NotOwned);
        owned.map(|(shard, state)| (shard, state.epoch())).collect()
    }
}
