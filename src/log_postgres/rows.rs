//! Converts rows to frames, and checks each row.

use bytes::Bytes;
use tokio_postgres::{Row, types::ToSql};
use treering_domain::ShardId;
use treering_log::{EncodedFrame, FrameBatch, LogError, frame};

use crate::session::{PostgresSession, QueryFailure};

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

/// The frames and bodies of a batch, as columns.
pub(crate) struct Columns<'a> {
    pub(crate) first_offsets: Vec<i64>,
    pub(crate) counts: Vec<i32>,
    pub(crate) frames: Vec<&'a [u8]>,
    pub(crate) home_offsets: Vec<i64>,
    pub(crate) namespaces: Vec<&'a str>,
    pub(crate) hashes: Vec<&'a [u8]>,
    pub(crate) bodies: Vec<&'a [u8]>,
}

impl<'a> Columns<'a> {
    pub(crate) fn of(batch: &'a FrameBatch) -> Self {
        let (frames, blobs) = (&batch.frames, &batch.blobs);
        Self {
            first_offsets: frames
                .iter()
                .map(|f| f.first_offset.cast_signed())
                .collect(),
            counts: frames.iter().map(|f| f.count.cast_signed()).collect(),
            frames: frames.iter().map(|f| &*f.bytes).collect(),
            home_offsets: blobs.iter().map(|b| b.home_offset.cast_signed()).collect(),
            namespaces: blobs.iter().map(|b| b.namespace.as_str()).collect(),
            hashes: blobs.iter().map(|b| &b.hash.0[..]).collect(),
            bodies: blobs.iter().map(|b| &*b.bytes).collect(),
        }
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
