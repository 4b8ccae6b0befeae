//! Reads the frames of a segment. If damage prevents the lookup of a frame, tries to reach it by a
//! scan from an earlier one.

use bytes::Bytes;

use super::segment::{FRAMES, Readable, Reader, catch_redb_panics};
use crate::{
    frame::FrameHeader,
    port::{EncodedFrame, LogError},
};

/// Returns the frames or blocks from the one that contains `from` onwards, until they have
/// `bytes_max` bytes in total. Stops before a damaged one; if the first is damaged, returns its
/// error.
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
    // A lookup and a scan from an earlier frame read different pages of the B-tree, so the scan may
    // succeed if a page on the path of the lookup is corrupt.
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

/// How many records before an unreachable one each scan starts. The list is short, because every
/// unreachable record costs all of these scans.
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
    // Keep the rows that were read before the corrupt page: each frame is checked on its own.
    if rows.is_empty() {
        read?;
    }
    Ok(rows)
}

/// Like [`look_up_rows`], but scans from `start`. If the scan fails before it reaches `from`, the
/// rows do not contain `from`.
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

/// Returns the frame that contains `from` and those that follow without a gap, up to a damaged one.
/// If the first frame is damaged, returns its error.
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
