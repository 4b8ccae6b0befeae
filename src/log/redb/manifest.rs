//! The manifest: what the log's folder must contain.
//!
//! Without it, a missing segment would not be noticed. The manifest names the store, its timelines
//! and every segment, and a position that the log is known to have reached. It is small and always
//! replaced as a whole: written to a temporary file, synced, renamed, and the folder synced.
//! `docs/FORMAT.md` specifies the byte format.

use std::io;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::folder::Folder;
use crate::port::{LogError, LogIdentity};
use treering_domain::{ContentHash, TimestampMicros};

/// File name of the manifest in the log's folder.
pub const MANIFEST: &str = "MANIFEST";
/// Temporary file name while the manifest is written.
pub(super) const MANIFEST_NEW: &str = "MANIFEST.new";
/// The newest format version that this program reads, and the one it writes.
pub const FORMAT: u32 = 2;
/// The form of a segment that stores blocks.
pub(super) const FORM_BLOCKS: &str = "blocks";
/// Maximum size of a manifest, in bytes: about 200 for each segment of a log of 20 TiB.
const BYTES_MAX: u64 = 64 << 20;

/// What the log's folder must contain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of this file and of the folder that it describes.
    pub format: u32,
    /// The store of the log. Also recorded in every segment, the projections and the index.
    pub store: Uuid,
    /// Timelines in order; the last one is current.
    pub timelines: Vec<Timeline>,
    /// Segments in the order of their offsets; the last one is written to.
    pub segments: Vec<SegmentEntry>,
    /// A position that the log had reached when this was written. It may have grown since.
    pub reached: LogMark,
    /// The offset of the record that requested the last completed erasure; 0: there was none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub erased: u64,
    /// Set while an erasure is in progress: the records from this offset on, as far as they exist,
    /// say what to erase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub erasing: Option<u64>,
}

/// Takes a reference because serde requires it.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(offset: &u64) -> bool {
    *offset == 0
}

/// A period in which the log only grew. A new one begins when a loss is accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline {
    /// Unique id.
    pub id: Uuid,
    /// The first offset of the timeline.
    pub from: u64,
    /// When it began, in microseconds since 1970-01-01 UTC.
    pub began_at: i64,
}

/// A segment in the manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentEntry {
    /// Offset of its first record.
    pub first: u64,
    /// Its file name; `None`: it was lost, and the loss was accepted.
    pub file: Option<String>,
    /// Where it ends; `None`: it is the last segment.
    pub sealed: Option<LogMark>,
    /// How it stores its records: `None` as frames, or [`FORM_BLOCKS`]. The file itself records
    /// this too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<String>,
}

/// A log position and the chain hash of its record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogMark {
    /// Offset of the record; 0: before the first.
    pub offset: u64,
    /// Its chain hash in hexadecimal digits; `None`: unknown.
    pub chain_hash: Option<String>,
}

impl LogMark {
    pub(super) fn new(offset: u64, chain_hash: Option<ContentHash>) -> Self {
        Self {
            offset,
            chain_hash: chain_hash.map(|hash| hash.to_string()),
        }
    }
}

impl Manifest {
    /// Creates the manifest of a new store with one empty segment.
    pub(super) fn new(file: String) -> Self {
        Self {
            format: FORMAT,
            store: Uuid::new_v4(),
            timelines: vec![Timeline {
                id: Uuid::new_v4(),
                from: 1,
                began_at: TimestampMicros::now().0,
            }],
            segments: vec![SegmentEntry {
                first: 1,
                file: Some(file),
                sealed: None,
                form: None,
            }],
            reached: LogMark::default(),
            erased: 0,
            erasing: None,
        }
    }

    pub(super) fn identity(&self) -> LogIdentity {
        LogIdentity {
            store: self.store,
            timeline: self.timelines.last().map_or(Uuid::nil(), |last| last.id),
        }
    }

    /// Returns true when the log has, or once had, this timeline.
    pub(super) fn knows_timeline(&self, id: Uuid) -> bool {
        self.timelines.iter().any(|timeline| timeline.id == id)
    }

    pub(super) fn begin_timeline(&mut self, from: u64) {
        self.timelines.push(Timeline {
            id: Uuid::new_v4(),
            from,
            began_at: TimestampMicros::now().0,
        });
    }

    /// Returns the segment that is written to.
    pub(super) fn last(&self) -> Option<&SegmentEntry> {
        self.segments.last()
    }

    pub(super) fn names(&self, file: &str) -> bool {
        self.segments
            .iter()
            .any(|segment| segment.file.as_deref() == Some(file))
    }

    /// Encodes the manifest: a line of JSON and a line with its BLAKE3 hash.
    pub(super) fn encode(&self) -> Vec<u8> {
        // A struct of texts and numbers always serializes.
        let mut bytes = serde_json::to_vec(self).unwrap_or_default();
        let sum = blake3::hash(&bytes).to_hex();
        bytes.push(b'\n');
        bytes.extend_from_slice(sum.as_bytes());
        bytes.push(b'\n');
        bytes
    }

    /// Decodes and checks a manifest.
    ///
    /// # Errors
    /// [`LogError::Regressed`] for damage, [`LogError::NewerFormat`], [`LogError::OlderFormat`].
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, LogError> {
        let damaged = |what: &str| LogError::manifest(what);
        let text = bytes
            .strip_suffix(b"\n")
            .ok_or_else(|| damaged("it is truncated"))?;
        let (json, sum) = text
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map(|at| (&text[..at], &text[at + 1..]))
            .ok_or_else(|| damaged("it is truncated"))?;
        if blake3::hash(json).to_hex().as_bytes() != sum {
            return Err(damaged("checksum mismatch"));
        }
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let version: Version =
            serde_json::from_slice(json).map_err(|_| damaged("it has no format version"))?;
        if version.format > FORMAT {
            return Err(LogError::NewerFormat {
                offset: 0,
                version: u8::try_from(version.format).unwrap_or(u8::MAX),
                supported: FORMAT as u8,
            });
        }
        if version.format < FORMAT {
            return Err(LogError::OlderFormat {
                version: version.format,
                supported: FORMAT,
            });
        }
        let manifest: Self =
            serde_json::from_slice(json).map_err(|error| damaged(&error.to_string()))?;
        manifest.check()?;
        Ok(manifest)
    }

    /// Checks that segments are consecutive from the first record on, and that only the last one is
    /// not sealed.
    fn check(&self) -> Result<(), LogError> {
        let damaged = |what: &str| Err(LogError::manifest(what));
        if self.timelines.is_empty() {
            return damaged("it lists no timeline");
        }
        let Some((last, sealed)) = self.segments.split_last() else {
            return damaged("it lists no segment");
        };
        if last.sealed.is_some() || last.file.is_none() {
            return damaged("its last segment is sealed or has no file");
        }
        let is_newer = |entry: &&SegmentEntry| {
            let form = entry.form.as_deref();
            form.is_some_and(|form| form != FORM_BLOCKS)
        };
        if let Some(newer) = self.segments.iter().find(is_newer) {
            return Err(LogError::NewerFormat {
                offset: newer.first,
                version: FORMAT as u8 + 1,
                supported: FORMAT as u8,
            });
        }
        let mut next = 1;
        for segment in sealed {
            match &segment.sealed {
                Some(mark) if segment.first == next && mark.offset + 1 >= next => {
                    next = mark.offset + 1;
                }
                _ => return damaged("its segments are not consecutive"),
            }
        }
        if last.first != next {
            return damaged("its segments are not consecutive");
        }
        Ok(())
    }
}

/// The result of looking for a manifest in the folder.
#[derive(Debug)]
pub(super) enum ManifestLookup {
    Manifest(Manifest),
    Nothing,
}

/// Reads a folder's manifest.
///
/// # Errors
/// When it cannot be read or is damaged.
pub(super) fn read<F: Folder>(folder: &F) -> Result<ManifestLookup, LogError> {
    match folder.read(MANIFEST, BYTES_MAX) {
        Ok(bytes) => Manifest::decode(&bytes).map(ManifestLookup::Manifest),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(ManifestLookup::Nothing),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            Err(LogError::manifest(&error.to_string()))
        }
        Err(error) => Err(LogError::from_io("reading the manifest", error)),
    }
}

/// The outcome of a successful replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum ReplaceOutcome {
    /// The new manifest is durable.
    Lasting,
    /// The new manifest is in place, but it may not survive a power loss.
    InPlace,
}

/// Replaces the manifest.
///
/// # Errors
/// On error, the previous manifest is still in place; with [`LogError::UnknownOutcome`], the new
/// one may be.
pub(super) fn replace<F: Folder>(
    folder: &F,
    manifest: &Manifest,
) -> Result<ReplaceOutcome, LogError> {
    let doing = "replacing the manifest";
    let bytes = manifest.encode();
    folder
        .write(MANIFEST_NEW, &bytes)
        .map_err(|error| LogError::from_io(doing, error))?;
    if let Err(failed) = folder.rename(MANIFEST_NEW, MANIFEST) {
        // According to POSIX, a failed rename changes nothing; on some network file systems it may
        // have succeeded.
        match folder.read(MANIFEST, BYTES_MAX) {
            Ok(there) if there == bytes => {}
            Ok(_) => return Err(LogError::from_io(doing, failed)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(LogError::from_io(doing, failed));
            }
            Err(error) => {
                return Err(LogError::UnknownOutcome {
                    head: manifest.reached.offset,
                    what: format!("{doing}: {failed}; then: {error}"),
                });
            }
        }
    }
    match folder.sync() {
        Ok(()) => Ok(ReplaceOutcome::Lasting),
        Err(error) => {
            tracing::error!(%error, "the log's folder could not be synced");
            Ok(ReplaceOutcome::InPlace)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Manifest {
        let mut manifest = Manifest::new("0000000000000001.redb".into());
        manifest.segments[0].sealed = Some(LogMark::new(9, Some(ContentHash([7; 32]))));
        manifest.segments.push(SegmentEntry {
            first: 10,
            file: Some("000000000000000a.redb".into()),
            sealed: None,
            form: None,
        });
        manifest
    }

    #[test]
    fn changed_or_truncated_manifest_is_refused() {
        // Trusting a changed manifest would make the log lose segments, or use segments of another
        // store.
        let bytes = sample().encode();
        assert_eq!(Manifest::decode(&bytes).unwrap(), sample_of(&bytes));
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 4;
            assert!(Manifest::decode(&changed).is_err(), "byte {at}");
            assert!(Manifest::decode(&bytes[..at]).is_err(), "cut at {at}");
        }
    }

    fn sample_of(bytes: &[u8]) -> Manifest {
        let json = bytes.split(|byte| *byte == b'\n').next().unwrap();
        serde_json::from_slice(json).unwrap()
    }

    #[test]
    fn inconsistent_manifest_is_refused() {
        // A gap between segments would answer reads with the wrong records.
        let changes: [fn(&mut Manifest); 6] = [
            |m| m.segments.clear(),
            |m| m.timelines.clear(),
            |m| m.segments[1].first = 11,
            |m| m.segments[0].sealed = None,
            |m| m.segments[1].sealed = Some(LogMark::new(20, None)),
            |m| m.segments[1].file = None,
        ];
        for change in changes {
            let mut manifest = sample();
            change(&mut manifest);
            assert!(Manifest::decode(&manifest.encode()).is_err());
        }
        let mut older = sample();
        older.format = 1;
        let error = Manifest::decode(&older.encode()).unwrap_err();
        assert!(
            matches!(error, LogError::OlderFormat { version: 1, .. }),
            "{error}"
        );
        let newer: [fn(&mut Manifest); 2] = [
            |m| m.format = 3,
            |m| m.segments[0].form = Some("another".into()),
        ];
        for change in newer {
            let mut newer = sample();
            change(&mut newer);
            let error = Manifest::decode(&newer.encode()).unwrap_err();
            assert!(
                matches!(error, LogError::NewerFormat { version: 3, .. }),
                "{error}"
            );
        }
    }
}
