//! Reads the frames of a segment, past damage where another way leads to them.

use bytes::Bytes;

use super::segment::{FRAMES, Readable, Reader, catch_redb_panics};
use crate::{
    frame::FrameHeader,
    port::{EncodedFrame, LogError},
};

/// Returns the frames or blocks from the one that contains `from` on, until they have `bytes_max`
/// bytes in total. Stops before a damaged one, unless it is the first.
pub(super) fn read_frames(
    segment: Reader<'_>,
    from: u64,
    bytes_max: usize,
) -> Result<Vec<EncodedFrame>, LogError> {
    if let Some(packed) = segment.packed {
        return in_order(from, packed.read(&segment, from, bytes_max)?);
    }
    let found = look_up_rows(&segment, from, bytes_max).and_then(|rows| frames_of(from, rows));
    let is_lost = match &found {
        Ok(frames) => frames.is_empty(),
        Err(error) => matches!(error, LogError::Damaged { .. }),
    };
    if !is_lost {
        return found;
    }
    // A look-up passes pages that reading on from an earlier frame does not, and one of those may be
    // corrupt.
    LOOK_BACK
        .into_iter()
        .map(|back| read_on_rows(&segment, from.saturating_sub(back), from, bytes_max))
        .find_map(|rows| {
            frames_of(from, rows)
                .ok()
                .filter(|frames| !frames.is_empty())
        })
        .map_or(found, Ok)
}

/// How many records before a lost one reading on begins. Few, because each lost record pays for all.
const LOOK_BACK: [u64; 4] = [1, 4, 16, 64];

/// The first offset and the bytes of a stored frame.
type Row = (u64, Bytes);

fn frames_of(from: u64, rows: Vec<Row>) -> Result<Vec<EncodedFrame>, LogError> {
    let frames = rows.into_iter().map(|(first_offset, bytes)| {
        FrameHeader::read(first_offset, &bytes).map(|header| EncodedFrame {
            first_offset,
            count: header.count,
            bytes,
            dictionary: None,
        })
    });
    in_order(from, frames)
}

/// Looks up the row that may contain `from`, and returns it with the rows after it.
fn look_up_rows(
    segment: &impl Readable,
    from: u64,
    bytes_max: usize,
) -> Result<Vec<Row>, LogError> {
    let mut rows = Vec::new();
    let read = catch_redb_panics(from, "reading frames", || {
        let table = segment.begin()?.open_table(FRAMES)?;
        let Some(first) = table
            .range(..=from)?
            .next_back()
            .transpose()?
            .map(|(key, _)| key.value())
        else {
            return Ok(());
        };
        let mut bytes = 0;
        for row in table.range(first..)? {
            let (key, value) = row?;
            rows.push((key.value(), Bytes::copy_from_slice(value.value())));
            bytes += value.value().len();
            if bytes >= bytes_max {
                break;
            }
        }
        Ok(())
    });
    // What was read before the tree turned out to be corrupt is sound or damaged by itself.
    if rows.is_empty() {
        read?;
    }
    Ok(rows)
}

/// Like [`look_up_rows`], by reading on from `start`; nothing when it does not get there.
fn read_on_rows(segment: &impl Readable, start: u64, from: u64, bytes_max: usize) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    let _damage = catch_redb_panics(from, "reading frames", || {
        let table = segment.begin()?.open_table(FRAMES)?;
        let mut bytes = 0;
        for row in table.range(start..)? {
            let (key, value) = row?;
            if key.value() <= from {
                rows.clear();
                bytes = 0;
            }
            rows.push((key.value(), Bytes::copy_from_slice(value.value())));
            bytes += value.value().len();
            if key.value() >= from && bytes >= bytes_max {
                break;
            }
        }
        Ok(())
    });
    rows
}

/// Returns the frames that contain `from` and what follows without a gap, up to a damaged one; when
/// the first is damaged, returns its error.
fn in_order(
    from: u64,
    read: impl IntoIterator<Item = Result<EncodedFrame, LogError>>,
) -> Result<Vec<EncodedFrame>, LogError> {
    let mut next = from;
    let mut frames = Vec::new();
    for frame in read {
        let follows = frame.and_then(|frame| {
            let follows = if next == from {
                (frame.first_offset..=frame.last_offset()).contains(&from)
            } else {
                frame.first_offset == next
            };
            if follows {
                Ok(frame)
            } else {
                Err(LogError::damaged(next, "no frame contains this record"))
            }
        });
        match follows {
            Ok(frame) => {
                next = frame.last_offset() + 1;
                frames.push(frame);
            }
            Err(error) if next == from => return Err(error),
            Err(_) => break,
        }
    }
    Ok(frames)
}
