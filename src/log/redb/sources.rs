//! The source segments of a rewrite: reading them in order, packing their records, and comparing
//! the result with them.

use std::sync::Arc;

use super::{
    copy::{self, KeptBlobs},
    manifest::{LogMark, SegmentEntry},
    packed::PackedSegmentWriter,
    rewrite::{Change, RewriteError, StopCheck},
    rows,
    segment::{self, Reader, SealedSegment},
};
use crate::{
    block::{Dictionary, Packer, Samples},
    frame,
    port::{EncodedFrame, LogError, LogIdentity},
    record::{Record, RecordBody},
};
use treering_domain::ContentHash;

/// How much is read at once, in bytes.
const READ_BYTES: usize = 1 << 20;
/// Number of places in the segments from which dictionary samples are taken.
const SAMPLED_PLACES: u64 = 256;

/// Adjacent segments to rewrite.
pub(super) struct Sources {
    pub(super) segments: Vec<(SegmentEntry, Arc<SealedSegment>)>,
}

impl Sources {
    pub(super) fn first_offset(&self) -> u64 {
        self.segments.first().map_or(1, |(entry, _)| entry.first)
    }

    fn last_offset(&self) -> u64 {
        let last = self.segments.last();
        let mark = last.and_then(|(entry, _)| entry.sealed.as_ref());
        mark.map_or(0, |mark| mark.offset)
    }

    pub(super) fn records(&self) -> u64 {
        (self.last_offset() + 1).saturating_sub(self.first_offset())
    }

    pub(super) fn bytes(&self) -> u64 {
        self.segments.iter().map(|(_, sealed)| sealed.bytes).sum()
    }

    /// Returns the timeline of the last segment.
    pub(super) fn timeline(&self) -> Result<uuid::Uuid, LogError> {
        let (entry, sealed) = self.segments.last().ok_or(LogError::Closed)?;
        let (identity, _) = segment::read_identity(&sealed.reader(), entry.first)?;
        Ok(identity.timeline)
    }

    /// Runs `take` on every record, in order.
    fn each(
        &self,
        stop: StopCheck<'_>,
        mut take: impl FnMut(u64, Record) -> Result<(), RewriteError>,
    ) -> Result<(), RewriteError> {
        for (entry, sealed) in &self.segments {
            let mark = entry.sealed.as_ref().ok_or(LogError::Closed)?;
            let mut records = Records::new(sealed.reader(), entry.first);
            let mut last = None;
            for offset in entry.first..=mark.offset {
                if stop() {
                    return Err(RewriteError::Stopped);
                }
                let record = records.next()?;
                if offset == mark.offset {
                    last = Some(record.chain_hash());
                }
                take(offset, record)?;
            }
            check_mark(mark, last)?;
        }
        Ok(())
    }

    pub(super) fn fill(
        &self,
        database: &::redb::Database,
        identity: LogIdentity,
        change: &dyn Change,
        stop: StopCheck<'_>,
    ) -> Result<(), RewriteError> {
        let first = self.first_offset();
        let dictionary = self.train(change, stop)?.map(Arc::new);
        let mut packer = Packer::new(first, dictionary.clone())
            .map_err(|error| LogError::from_io("compressing a segment", error))?;
        let mut writer =
            PackedSegmentWriter::new(database, identity, first, dictionary.as_deref())?;
        self.each(stop, |offset, record| {
            let changed = change.record(offset, record);
            if let Some(block) = packer.push(changed)? {
                writer.push(&block)?;
            }
            Ok(())
        })?;
        if let Some(block) = packer.finish()? {
            writer.push(&block)?;
        }
        for (entry, sealed) in &self.segments {
            let kept = kept_blobs(entry, sealed, change)?;
            writer.copy_blobs(&sealed.reader(), &kept)?;
        }
        Ok(writer.finish()?)
    }

    /// Trains a dictionary on bodies from all over the segments.
    fn train(
        &self,
        change: &dyn Change,
        stop: StopCheck<'_>,
    ) -> Result<Option<Dictionary>, RewriteError> {
        let mut samples = Samples::default();
        let step = self.records().div_ceil(SAMPLED_PLACES).max(1);
        for (entry, sealed) in &self.segments {
            let last = entry.sealed.as_ref().map_or(0, |mark| mark.offset);
            let mut next = entry.first;
            while next <= last {
                if stop() {
                    return Err(RewriteError::Stopped);
                }
                let frames = rows::read_frames(sealed.reader(), next, 1)?;
                let mut end = next;
                for frame in &frames {
                    for (offset, record) in
                        (frame.first_offset..).zip(frame::decode(frame)?.records)
                    {
                        // Erased content must not end up in the dictionary.
                        let record = change.record(offset, record);
                        if let RecordBody::Inline(body) = &record.body {
                            samples.push(body);
                        }
                    }
                    end = end.max(frame.last_offset() + 1);
                }
                next = end.max(next + step);
            }
        }
        Ok(Dictionary::train(&samples))
    }

    /// Reads the copy back and compares it with its sources.
    pub(super) fn compare(
        &self,
        copy: &SealedSegment,
        change: &dyn Change,
        stop: StopCheck<'_>,
    ) -> Result<(), RewriteError> {
        let first = self.first_offset();
        let mut copied = Records::new(copy.reader(), first);
        self.each(stop, |offset, record| {
            let wanted = change.record(offset, record);
            let found = copied.next().map_err(not_read_back)?;
            // Equal hashes prove nothing unless they match the records.
            if found != wanted || !found.is_sound() {
                return Err(not_copied(offset).into());
            }
            Ok(())
        })?;
        let end = segment::end(copy.reader(), first).map_err(not_read_back)?;
        if end.offset != self.last_offset() {
            return Err(not_copied(self.last_offset()).into());
        }
        for (entry, sealed) in &self.segments {
            let kept = kept_blobs(entry, sealed, change)?;
            copy::check_blobs(&sealed.reader(), &copy.reader(), &kept, first)
                .map_err(not_read_back)?;
        }
        Ok(())
    }
}

/// Determines which large bodies of a segment are kept.
fn kept_blobs<'a>(
    entry: &SegmentEntry,
    sealed: &SealedSegment,
    change: &'a dyn Change,
) -> Result<KeptBlobs<'a>, LogError> {
    let last = entry.sealed.as_ref().map_or(0, |mark| mark.offset);
    let keeps = |home| change.keeps_blob(home);
    // Most rewrites drop none, and then no patch loses its base.
    match change.drops_blobs(entry.first, last) {
        true => KeptBlobs::of(&sealed.reader(), keeps, entry.first),
        false => Ok(KeptBlobs::all()),
    }
}

/// Converts damage of a copy to an I/O error, because it says nothing about its source.
pub(super) fn not_read_back(error: LogError) -> LogError {
    match error {
        LogError::Damaged { .. } => LogError::from_io(
            "reading back a rewritten segment",
            std::io::Error::other(error.to_string()),
        ),
        error => error,
    }
}

fn not_copied(offset: u64) -> LogError {
    LogError::from_io(
        "rewriting a segment",
        std::io::Error::other(format!("event {offset} differs after it was rewritten")),
    )
}

/// Checks that a sealed segment ends with the record at which it was sealed.
fn check_mark(mark: &LogMark, last: Option<ContentHash>) -> Result<(), LogError> {
    match (&mark.chain_hash, last) {
        (Some(noted), Some(found)) if *noted != found.to_string() => Err(LogError::damaged(
            mark.offset,
            "sealed segment ends with another event than when it was sealed",
        )),
        _ => Ok(()),
    }
}

/// Reads the records of a segment one after another.
struct Records<'a> {
    segment: Reader<'a>,
    next: u64,
    read: std::vec::IntoIter<EncodedFrame>,
    decoded: std::vec::IntoIter<Record>,
}

impl<'a> Records<'a> {
    fn new(segment: Reader<'a>, first: u64) -> Self {
        Self {
            segment,
            next: first,
            read: Vec::new().into_iter(),
            decoded: Vec::new().into_iter(),
        }
    }

    fn next(&mut self) -> Result<Record, LogError> {
        loop {
            if let Some(record) = self.decoded.next() {
                self.next += 1;
                return Ok(record);
            }
            if let Some(frame) = self.read.next() {
                self.decoded = frame::decode(&frame)?.records.into_iter();
                continue;
            }
            let read = rows::read_frames(self.segment, self.next, READ_BYTES)?;
            let starts_here = read.first().is_some_and(|f| f.first_offset == self.next);
            if !starts_here {
                return Err(LogError::damaged(
                    self.next,
                    "no frame contains this record",
                ));
            }
            self.read = read.into_iter();
        }
    }
}
