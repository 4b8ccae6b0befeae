//! Erasing: the marks of a shard's erasures, and replacing the rows that have erased content.
//!
//! A sealed segment is replaced by one without the erased content. Its records do not reveal the
//! salts of others, so only the order of content matters there.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use treering_log::{
    EncodedFrame, ErasableLog, Erasure, ErasureProgress, FrameReplacement, LogError, ScrubOutcome,
    ScrubReport,
};

use crate::{
    error::PostgresError,
    object,
    owned::{OwnedShard, owned},
    seal::{in_background, pack},
    segments::{SegmentRow, SegmentStore},
    session::QueryFailure,
    settings::durable,
};

/// Maximum size of the frames that one statement replaces, in bytes, unless a single one has more.
/// Appends of the shard wait for the statement.
const FRAMES_BYTES_MAX: usize = 1 << 20;
/// Maximum number of large bodies without a name that one statement deletes.
const BODIES_MAX: usize = 256;
/// How long `VACUUM` is awaited. It continues after that.
const VACUUM_WAIT_MAX: Duration = Duration::from_secs(600);

const PROGRESS: &str = "select erasing, erased from treering_shard where shard = $1";

/// Checked before anything is recorded: an erasure that cannot be finished would stay hidden only.
const GRANTED: &str = "select has_column_privilege('treering_frame', 'bytes', 'update') \
     and has_table_privilege('treering_blob', 'delete') \
     and ((select objects is null from treering_log) \
         or has_table_privilege('treering_segment', 'delete'))";

const BEGIN: &str = concat!(
    "update treering_shard set erasing = coalesce(erasing, head + 1)
    where shard = $2 and epoch = $3 and ",
    durable!(),
    " returning true"
);

const END: &str = concat!(
    "update treering_shard set erasing = null, erased = greatest(erased, $4)
    where shard = $2 and epoch = $3 and ",
    durable!(),
    " returning true"
);

const REPLACE: &str = concat!(
    owned!(),
    "replaced as (
        update treering_frame as f set bytes = n.bytes
        from owned, unnest($4::bigint[], $5::bytea[]) as n (first_offset, bytes)
        where f.shard = $2 and f.first_offset = n.first_offset returning 1
    ), deleted as (
        delete from treering_blob as b using owned
        where b.shard = $2 and b.home_offset = any($6::bigint[])
    ) select (select count(*) from replaced) = cardinality($4::bigint[]) from owned"
);

const REPLACING: &str = "replacing frames with erased content";
const NONE: &[i64] = &[];
const NO_BYTES: &[&[u8]] = &[];

const SIZES: &str = "select pg_table_size('treering_frame'), pg_table_size('treering_blob'), \
     coalesce((select sum(bytes) from treering_segment where shard = $1), 0)::bigint";
const SIZES_OF: [&str; 3] = ["treering_frame", "treering_blob", "segments"];

/// Removes the old versions of rows, in all shards.
const VACUUM: &str = "vacuum (index_cleanup on) treering_frame, treering_blob";

/// What `VACUUM` leaves.
const REMAINS: [&str; 2] = [
    "PostgreSQL: unused parts of the pages of treering_frame and treering_blob, until new rows \
     overwrite them or `VACUUM FULL treering_frame, treering_blob` rewrites them",
    "PostgreSQL: the write-ahead log, its archive, base backups and dumps from before, until they \
     are removed",
];

impl OwnedShard {
    async fn begin(&self) -> Result<(), LogError> {
        const DOING: &str = "beginning to erase";
        let granted = self.inner.ask(DOING, GRANTED, &[]).await?;
        if !granted.first().is_some_and(|row| row.get(0)) {
            return Err(PostgresError::NotGranted.while_doing(DOING));
        }
        self.change(DOING, BEGIN, &[]).await.map(drop)
    }

    async fn remove_all(
        &self,
        erasure: &Arc<Erasure>,
        mut report: ScrubReport,
    ) -> Result<ScrubOutcome, LogError> {
        let state = self.inner.shard(self.shard)?;
        let turn = state.moving.lock().await;
        let mut segments = self.inner.segments_of(self.shard).await?;
        let store = self.inner.open_segment_store().await?;
        let sealed_upto = segments.last().map_or(0, |row| row.last_offset);
        if store.is_none() && sealed_upto > 0 {
            return Err(segments[0].no_storage());
        }
        segments.retain(|row| erasure.touches(row.first_offset, row.last_offset));
        let mut done = ScrubOutcome {
            before: self.sizes().await?,
            ..ScrubOutcome::default()
        };
        let reach = self.reach(erasure, sealed_upto + 1)?;
        let offsets: u64 = reach.iter().map(|(first, last)| last - first + 1).sum();
        let sealed: u64 = segments.iter().map(SegmentRow::count).sum();
        let (mut read, total) = (0, 2 * offsets + sealed);
        // See `ErasableLog::remove`: first what frames reveal of others, then content, in order. A
        // body goes with the last frame that names it.
        let mut named: BTreeMap<u64, u64> = BTreeMap::new();
        for had_content in [false, true] {
            if had_content && let Some(store) = &store {
                for row in &segments {
                    let replaced = self.remove_sealed(store, row, erasure).await?;
                    done.segments += u64::from(replaced);
                    read += row.count();
                    report(read, total);
                }
                // An earlier attempt may have left some.
                self.collect(store).await?;
            }
            for (first, last) in &reach {
                let mut next = *first;
                while next <= *last {
                    let frames = self
                        .inner
                        .hot_frames(self.shard, next, *last, FRAMES_BYTES_MAX);
                    let frames = frames.await?;
                    let end = frames.last().map_or(*last, EncodedFrame::last_offset);
                    let mut new = replacements(erasure, &frames)?;
                    for one in new.iter().filter(|_| !had_content) {
                        let at = one.frame.first_offset;
                        named.extend(one.bodies.iter().map(|home| (*home, at)));
                    }
                    new.retain(|one| one.had_content == had_content);
                    for one in &mut new {
                        let at = one.frame.first_offset;
                        one.bodies.retain(|home| named.get(home) == Some(&at));
                    }
                    done.segments += self.replace(&new).await?;
                    read += end.min(*last) - next + 1;
                    report(read, total);
                    next = end + 1;
                }
            }
        }
        // An earlier attempt may have left these without a name.
        let unnamed = erasure
            .blobs
            .iter()
            .filter(|home| !named.contains_key(home));
        let unnamed: Vec<_> = unnamed.map(|home| home.cast_signed()).collect();
        for some in unnamed.chunks(BODIES_MAX) {
            self.change(REPLACING, REPLACE, &[&NONE, &NO_BYTES, &some])
                .await?;
        }
        // The vacuum may take minutes.
        drop(turn);
        done.may_remain = self.vacuum().await;
        if store.is_some() {
            done.may_remain.push(OBJECTS_REMAIN.to_owned());
        }
        done.after = self.sizes().await?;
        Ok(done)
    }

    /// Replaces a segment if it has erased content. Returns whether it had.
    ///
    /// A large body goes with the segment that has it, even if a later frame names it: readers hide
    /// that one already, and it still leads a repeated removal here.
    async fn remove_sealed(
        &self,
        store: &SegmentStore,
        old: &SegmentRow,
        erasure: &Arc<Erasure>,
    ) -> Result<bool, LogError> {
        let stored = store.object(self.shard, old).await?;
        let (first, index_bytes) = (old.first_offset, old.index_bytes);
        let erasure = Arc::clone(erasure);
        let left = in_background(move || {
            let index_bytes = usize::try_from(index_bytes).unwrap_or_default();
            let (records, mut bodies) = object::decode(first, &stored, index_bytes)?;
            let before = bodies.len();
            bodies.retain(|body| !erasure.blobs.contains(&body.home_offset));
            let left = (first..).zip(&records);
            let left = left.map(|(offset, record)| erasure.left_of(offset, record.clone()));
            let left: Vec<_> = left.collect();
            if left == records && bodies.len() == before {
                return Ok(None);
            }
            pack(first, left, &bodies).map(Some)
        });
        let Some(object) = left.await? else {
            return Ok(false);
        };
        let new = self.upload(store, object).await?;
        self.swap(old, &new).await?;
        Ok(true)
    }

    /// Returns the ranges of offsets, from one on, whose frames may have to be replaced.
    fn reach(&self, erasure: &Erasure, from: u64) -> Result<Vec<(u64, u64)>, LogError> {
        let head = self.inner.shard(self.shard)?.confirmed()?;
        let reach = erasure.reach().into_iter();
        let reach = reach.map(|(first, last)| (first.max(from), last.min(head)));
        Ok(reach.filter(|(first, last)| first <= last).collect())
    }

    /// Replaces frames, and deletes the bodies that they name; returns the number of frames.
    async fn replace(&self, new: &[FrameReplacement]) -> Result<u64, LogError> {
        let Some(first) = new.first() else {
            return Ok(0);
        };
        let offsets = new.iter().map(|one| one.frame.first_offset.cast_signed());
        let offsets: Vec<_> = offsets.collect();
        let bytes: Vec<&[u8]> = new.iter().map(|one| &*one.frame.bytes).collect();
        let homes = new.iter().flat_map(|one| &one.bodies);
        let homes: Vec<_> = homes.map(|home| home.cast_signed()).collect();
        let row = self
            .change(REPLACING, REPLACE, &[&offsets, &bytes, &homes])
            .await?;
        match row.get(0) {
            true => Ok(new.len() as u64),
            false => Err(LogError::damaged(
                first.frame.first_offset,
                "a row of a frame disappeared while content was erased",
            )),
        }
    }

    /// Removes the old versions of rows. Returns what may remain.
    async fn vacuum(&self) -> Vec<String> {
        let mut remains = REMAINS.map(str::to_owned).to_vec();
        let why = match self.inner.pool.run_apart(VACUUM, VACUUM_WAIT_MAX).await {
            Ok(()) => return remains,
            Err(QueryFailure::Refused(error)) => error.to_string(),
            // Without the right to vacuum a table, the server only warns.
            Err(QueryFailure::Unknown(what)) => what,
        };
        tracing::warn!(
            why,
            "old versions of rows with erased content were not removed: run `VACUUM \
             treering_frame, treering_blob` as the owner of the tables"
        );
        remains.push(format!(
            "PostgreSQL: old versions of rows, until the owner of the tables runs `VACUUM \
             treering_frame, treering_blob` ({why})"
        ));
        remains
    }

    async fn sizes(&self) -> Result<Vec<(String, u64)>, LogError> {
        let key = i64::from(self.shard.0);
        let rows = self.inner.ask("measuring the log", SIZES, &[&key]).await?;
        let size = |index| {
            let bytes = rows.first().map_or(0, |row| row.get::<_, i64>(index));
            bytes.cast_unsigned()
        };
        let places = SIZES_OF.into_iter().enumerate();
        let sizes = places.map(|(index, place)| (place.to_owned(), size(index)));
        Ok(sizes.collect())
    }
}

/// What removing replaced objects leaves.
const OBJECTS_REMAIN: &str = "object storage: earlier versions of objects, if the bucket keeps \
     versions or has backups, until its rules remove them";

fn replacements(
    erasure: &Erasure,
    frames: &[EncodedFrame],
) -> Result<Vec<FrameReplacement>, LogError> {
    let new = frames.iter().map(|stored| erasure.replacement(stored));
    new.filter_map(Result::transpose).collect()
}

#[async_trait]
impl ErasableLog for OwnedShard {
    async fn progress(&self) -> Result<ErasureProgress, LogError> {
        let (inner, shard) = (Arc::clone(&self.inner), self.shard);
        let work = async move {
            inner.shard(shard)?;
            let key = i64::from(shard.0);
            let rows = inner
                .ask("reading marks of erasures", PROGRESS, &[&key])
                .await?;
            let row = rows.first();
            Ok(
                row.map_or_else(ErasureProgress::default, |row| ErasureProgress {
                    erasing: row.get::<_, Option<i64>>(0).map(i64::cast_unsigned),
                    erased: row.get::<_, i64>(1).cast_unsigned(),
                }),
            )
        };
        self.run(work).await
    }

    async fn mark_begun(self: Arc<Self>) -> Result<(), LogError> {
        let own = Arc::clone(&self);
        self.run(async move { own.begin().await }).await
    }

    async fn remove(
        self: Arc<Self>,
        erasure: Arc<Erasure>,
        report: ScrubReport,
    ) -> Result<ScrubOutcome, LogError> {
        let own = Arc::clone(&self);
        self.run(async move { own.remove_all(&erasure, report).await })
            .await
    }

    async fn mark_done(self: Arc<Self>, offset: u64) -> Result<(), LogError> {
        let own = Arc::clone(&self);
        let work = async move {
            let offset = offset.cast_signed();
            let ended = own.change("ending an erasure", END, &[&offset]).await;
            ended.map(drop)
        };
        self.run(work).await
    }
}
