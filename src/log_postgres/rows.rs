//! Converts rows to frames, and checks each row.

use bytes::Bytes;
use tokio_postgres::{Row, types::ToSql};
use treering_domain::ShardId;
use treering_log::{EncodedFrame, LogError, frame};
use uuid::Uuid;

use crate::{
    append::ShardAppend,
    session::{PostgresSession, QueryFailure},
};

/// Maximum number of rows in one read.
const ROWS_MAX: i64 = 1_024;
/// Approximate minimum size of a frame, in bytes. It keeps a small read from scanning many rows.
const FRAME_BYTES_MIN: i64 = 256;

// PostgreSQL knows the sizes without reading the values.
const READ: &str = "\
    select first_offset, count, bytes from (
        select first_offset, count, bytes, sum(octet_length(bytes)) over (order by first_offset
            rows between unbounded preceding and 1 preceding) as before
        from (
            select first_offset, count, bytes from treering_frame
            where shard = $1 and first_offset <= $3 and first_offset >= (
                select coalesce(max(first_offset), 0) from treering_frame
                where shard = $1 and first_offset <= $2)
            order by first_offset limit $5
        ) as looked_at
    ) as summed
    where before is null or before < $4 order by first_offset";

/// The rows of appends, as columns.
#[derive(Default)]
pub(crate) struct Columns<'a> {
    pub(crate) frame_shards: Vec<i64>,
    pub(crate) first_offsets: Vec<i64>,
    pub(crate) counts: Vec<i32>,
    pub(crate) frame_ids: Vec<Uuid>,
    pub(crate) frames: Vec<&'a [u8]>,
    pub(crate) body_shards: Vec<i64>,
    pub(crate) home_offsets: Vec<i64>,
    pub(crate) namespaces: Vec<&'a str>,
    pub(crate) hashes: Vec<&'a [u8]>,
    pub(crate) bodies: Vec<&'a [u8]>,
}

impl<'a> Columns<'a> {
    pub(crate) fn of(appends: &[&'a ShardAppend]) -> Self {
        let mut columns = Self::default();
        for append in appends {
            let (shard, id) = (append.shard.0.into(), Uuid::new_v4());
            for frame in &append.batch.frames {
                columns.frame_shards.push(shard);
                columns.first_offsets.push(frame.first_offset.cast_signed());
                columns.counts.push(frame.count.cast_signed());
                columns.frame_ids.push(id);
                columns.frames.push(&frame.bytes);
            }
            for body in &append.batch.blobs {
                columns.body_shards.push(shard);
                columns.home_offsets.push(body.home_offset.cast_signed());
                columns.namespaces.push(body.namespace.as_str());
                columns.hashes.push(&body.hash.0);
                columns.bodies.push(&body.bytes);
            }
        }
        columns
    }
}

/// Reads frames from the one that contains `from` up to the offset `upto`, until they have
/// `bytes_max` bytes. If a frame is damaged, returns those before it, or its error if there are
/// none.
pub(crate) async fn read_frames(
    session: &mut PostgresSession,
    shard: ShardId,
    from: u64,
    upto: u64,
    bytes_max: usize,
) -> Result<Result<Vec<EncodedFrame>, LogError>, QueryFailure> {
    let bytes_max = i64::try_from(bytes_max.max(1)).unwrap_or(i64::MAX);
    let rows_max = (bytes_max / FRAME_BYTES_MIN + 1).min(ROWS_MAX);
    let params: [&(dyn ToSql + Sync); 5] = [
        &i64::from(shard.0),
        &from.cast_signed(),
        &upto.cast_signed(),
        &bytes_max,
        &rows_max,
    ];
    let rows = session.query(READ, &params).await?;
    let mut frames: Vec<EncodedFrame> = Vec::with_capacity(rows.len());
    for row in &rows {
        let found = frame_of(row);
        let follows = match frames.last() {
            None => found.first_offset <= from && from <= found.last_offset(),
            Some(last) => found.first_offset == last.last_offset() + 1,
        };
        let checked = if follows {
            frame::check(&found)
        } else {
            Err(missing(
                frames.last().map_or(from, |last| last.last_offset() + 1),
            ))
        };
        match checked {
            Ok(()) => frames.push(found),
            Err(error) if frames.is_empty() => return Ok(Err(error)),
            Err(_) => break,
        }
    }
    if frames.is_empty() {
        return Ok(Err(missing(from)));
    }
    Ok(Ok(frames))
}

fn missing(offset: u64) -> LogError {
    LogError::damaged(
        offset,
        "the row of its frame is missing or has another offset or count",
    )
}

fn frame_of(row: &Row) -> EncodedFrame {
    EncodedFrame::new(
        row.get::<_, i64>(0).cast_unsigned(),
        row.get::<_, i32>(1).cast_unsigned(),
        Bytes::copy_from_slice(row.get(2)),
    )
}
