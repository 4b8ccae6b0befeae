//! Large bodies as rows: compressed or as patches, and cut into pieces so that redb, which rounds
//! values up to powers of two, wastes no space. A patch is stored in the segment of its base, so
//! that losing a segment does not affect bodies in another segment.

use std::io::Read;

use bytes::Bytes;

use crate::{
    frame::{self, STORED_BYTES_MAX},
    patch::{self, BodyPatch, CHAIN_BYTES_MAX, PATCHED_BYTES_MAX, PATCHES_MAX},
    port::LogError,
    record::{BlobRef, Record},
};

const MAGIC: [u8; 3] = *b"TRB";
const FORMAT_VERSION: u8 = 1;
const CODEC_NONE: u8 = 0;
const CODEC_ZSTD: u8 = 1;
/// The content is the home offset of another body, and a patch on it.
const CODEC_PATCH: u8 = 2;
const HEADER_BYTES: usize = 24;
/// Length of the base's home offset, in bytes.
const BASE_BYTES: usize = 8;

/// Returns the key of a piece: the offset of the record that first referenced the body, and the
/// number of the piece, both big-endian so that pieces sort.
pub(super) fn key(home_offset: u64, piece: u32) -> [u8; 12] {
    let mut key = [0; 12];
    key[..8].copy_from_slice(&home_offset.to_be_bytes());
    key[8..].copy_from_slice(&piece.to_be_bytes());
    key
}

/// Returns the home offset in the key of a piece; `None` when it is not such a key.
pub(super) fn home(key: &[u8]) -> Option<u64> {
    let (home, _) = key.split_first_chunk::<8>()?;
    Some(u64::from_be_bytes(*home))
}

/// Returns true for the key of a body's first piece.
pub(super) fn is_first(key: &[u8]) -> bool {
    key.len() == 12 && key[8..] == [0; 4]
}

/// Encodes a body: a header and the content, compressed if that makes it smaller.
pub(super) fn encode(raw: &[u8]) -> Result<Vec<u8>, LogError> {
    let packed = if frame::looks_incompressible(raw) {
        None
    } else {
        let packed = frame::compress(raw)
            .map_err(|error| LogError::from_io("compressing a large body", error))?;
        Some(packed).filter(|packed| packed.len() < raw.len())
    };
    Ok(match packed {
        Some(packed) => stored([CODEC_ZSTD, 0], raw.len(), &[&packed]),
        None => stored([CODEC_NONE, 0], raw.len(), &[raw]),
    })
}

/// Encodes a patch: a header and the patch. Returns `None` when the limits forbid a patch on this
/// base, so that the body must be stored whole.
pub(super) fn encode_patch(raw_len: usize, patch: &BodyPatch, base: PatchDepth) -> Option<Vec<u8>> {
    let patches = base.patches + 1;
    let unpacked = (raw_len as u64).max(base.raw_len) * (u64::from(patches) + 1);
    let fits = patches <= PATCHES_MAX
        && unpacked <= CHAIN_BYTES_MAX
        && base.raw_len <= PATCHED_BYTES_MAX as u64
        && BASE_BYTES + patch.bytes.len() < raw_len;
    let home = patch.base_home.to_le_bytes();
    fits.then(|| stored([CODEC_PATCH, patches], raw_len, &[&home, &patch.bytes]))
}

fn stored([codec, patches]: [u8; 2], raw_len: usize, content: &[&[u8]]) -> Vec<u8> {
    let content_len: usize = content.iter().map(|part| part.len()).sum();
    let mut stored = Vec::with_capacity(HEADER_BYTES + content_len);
    stored.extend_from_slice(&MAGIC);
    stored.extend_from_slice(&[FORMAT_VERSION, codec, patches, 0, 0]);
    stored.extend_from_slice(&(raw_len as u64).to_le_bytes());
    stored.extend_from_slice(&(content_len as u64).to_le_bytes());
    for part in content {
        stored.extend_from_slice(part);
    }
    stored
}

/// Returns the rows of an encoded body: number and bytes.
pub(super) fn pieces(stored: &[u8]) -> impl Iterator<Item = (u32, &[u8])> {
    (0..).zip(stored.chunks(STORED_BYTES_MAX))
}

/// Returns the maximum size of a body's stored form, in bytes: it is compressed only where that
/// makes it smaller.
pub(super) fn stored_bytes_max(body_bytes: u64) -> u64 {
    body_bytes.saturating_add(HEADER_BYTES as u64)
}

/// The patch depth of a body: it determines whether a patch on the body is within the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PatchDepth {
    /// Patches that are applied to read it.
    pub(crate) patches: u8,
    /// Its length, in bytes.
    pub(crate) raw_len: u64,
}

/// A parsed stored body.
#[derive(Debug)]
pub(super) struct StoredBlob<'a> {
    codec: u8,
    pub(crate) depth: PatchDepth,
    content: &'a [u8],
}

impl<'a> StoredBlob<'a> {
    /// Parses all pieces of a body. Damage is reported at the home offset.
    pub(super) fn of(stored: &'a [u8], home_offset: u64) -> Result<Self, LogError> {
        let damaged = |what: &str| LogError::damaged(home_offset, what);
        if stored.is_empty() {
            return Err(damaged("large body is missing"));
        }
        let Some((header, content)) = stored.split_first_chunk::<HEADER_BYTES>() else {
            return Err(damaged("large body is shorter than its header"));
        };
        if header[..3] != MAGIC {
            return Err(damaged("large body has a wrong magic number"));
        }
        if header[3] > FORMAT_VERSION {
            return Err(LogError::NewerFormat {
                offset: home_offset,
                version: header[3],
                supported: FORMAT_VERSION,
            });
        }
        let read = Self {
            codec: header[4],
            depth: PatchDepth {
                patches: header[5],
                raw_len: word(&header[8..16]),
            },
            content,
        };
        if content.len() as u64 != word(&header[16..24]) {
            return Err(damaged("large body's length differs from its header"));
        }
        Ok(read)
    }

    /// Reads the depth from a body's first piece, which is enough to put a patch on it. Returns
    /// `None` when the header cannot be trusted.
    pub(super) fn depth_of(first_piece: &[u8]) -> Option<PatchDepth> {
        let header = first_piece.first_chunk::<HEADER_BYTES>()?;
        let known = header[..3] == MAGIC && header[3] == FORMAT_VERSION;
        known.then(|| PatchDepth {
            patches: header[5],
            raw_len: word(&header[8..16]),
        })
    }

    /// Returns the home offset of the body that it is a patch on; `None` when it is whole.
    pub(super) fn base_home(&self) -> Option<u64> {
        let home = self.content.first_chunk::<BASE_BYTES>();
        let home = home.filter(|_| self.codec == CODEC_PATCH)?;
        Some(u64::from_le_bytes(*home))
    }

    /// Unpacks the body, given its base if it is a patch. Does not check its hash.
    pub(super) fn unpack(&self, base: Option<&[u8]>, home_offset: u64) -> Result<Bytes, LogError> {
        let damaged = |what: &str| LogError::damaged(home_offset, what);
        let raw_len = self.depth.raw_len;
        let raw = match (self.codec, base) {
            (CODEC_NONE, _) => Bytes::copy_from_slice(self.content),
            (CODEC_ZSTD, _) => decompress(self.content, raw_len)
                .map_err(|_| damaged("large body cannot be decompressed"))?,
            (CODEC_PATCH, Some(base)) => {
                let patch = self.content.get(BASE_BYTES..).unwrap_or_default();
                patch::apply(base, patch, raw_len)
                    .map_err(|_| damaged("large body is a patch that does not apply to its base"))?
            }
            (CODEC_PATCH, None) => {
                return Err(damaged("large body is a patch without a base"));
            }
            _ => return Err(damaged("large body has an unknown codec")),
        };
        if raw.len() as u64 != raw_len {
            return Err(damaged("large body's length differs from its header"));
        }
        Ok(raw)
    }
}

/// Returns the home offset of the base, from a body's first piece; `None` when the body is whole.
pub(super) fn base_of(first_piece: &[u8]) -> Option<u64> {
    let (header, content) = first_piece.split_first_chunk::<HEADER_BYTES>()?;
    let home = content.first_chunk::<BASE_BYTES>();
    let home = home.filter(|_| header[..3] == MAGIC && header[4] == CODEC_PATCH)?;
    Some(u64::from_le_bytes(*home))
}

/// Checks that a stored body has the length in its record, so that the length in the stored form is
/// not trusted.
pub(super) fn check_length(stored: &StoredBlob<'_>, wanted: &BlobRef) -> Result<(), LogError> {
    if stored.depth.raw_len != wanted.bytes_len {
        return Err(LogError::damaged(
            wanted.home_offset,
            "large body's length differs from its record",
        ));
    }
    Ok(())
}

/// Checks that a body matches the hash in its record.
pub(super) fn check_hash(raw: &[u8], wanted: &BlobRef) -> Result<(), LogError> {
    if Record::hash_body(raw) != wanted.hash {
        return Err(LogError::damaged(
            wanted.home_offset,
            "large body does not match its hash",
        ));
    }
    Ok(())
}

fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}

/// Decompresses into a growing buffer: never holds more than the record's length.
fn decompress(content: &[u8], raw_len: u64) -> std::io::Result<Bytes> {
    let mut raw = Vec::new();
    zstd::stream::read::Decoder::with_buffer(content)?
        .take(raw_len.saturating_add(1))
        .read_to_end(&mut raw)?;
    Ok(Bytes::from(raw))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(stored: &[u8], wanted: &BlobRef) -> Result<Bytes, LogError> {
        let read = StoredBlob::of(stored, wanted.home_offset)?;
        check_length(&read, wanted)?;
        let raw = read.unpack(None, wanted.home_offset)?;
        check_hash(&raw, wanted).map(|()| raw)
    }

    fn blob_of(body: &[u8], bytes_len: u64) -> BlobRef {
        BlobRef {
            hash: Record::hash_body(body),
            bytes_len,
            home_offset: 7,
        }
    }

    // The length in a stored header must not be trusted: 4 KiB of zstd could be decompressed to 64
    // MiB before the hash is checked. A body is decompressed at most to the length in its record,
    // and not at all when the header states another length.
    #[test]
    fn body_length_is_taken_from_the_record() {
        let body = vec![7; 64 << 20];
        let stored = encode(&body).unwrap();
        assert!(stored.len() < 64 << 10, "it packs well");
        let whole = decode(&stored, &blob_of(&body, 64 << 20)).unwrap();
        assert!(whole == body);
        for claimed in [0, 70_000, (64 << 20) - 1, (64 << 20) + 1, u64::MAX] {
            let error = decode(&stored, &blob_of(&body, claimed)).unwrap_err();
            let LogError::Damaged { offset: 7, what } = error else {
                panic!("{claimed}: {error:?}");
            };
            assert!(what.contains("its record"), "{claimed}: {what}");
        }
        // The header states the length in the record, but the content is longer.
        let mut lying = stored.clone();
        lying[8..16].copy_from_slice(&70_000_u64.to_le_bytes());
        let error = decode(&lying, &blob_of(&body, 70_000)).unwrap_err();
        assert!(matches!(error, LogError::Damaged { .. }), "{error:?}");
    }

    // A patch stores its depth, so that every read ends. When the depth or the data to unpack
    // exceeds a limit, the body is stored whole.
    #[test]
    fn patch_chains_are_limited() {
        let patch = BodyPatch {
            base_home: 5,
            bytes: Bytes::from_static(b"a patch"),
        };
        let encode = |raw_len: usize, patches| {
            let base = PatchDepth {
                patches,
                raw_len: raw_len as u64,
            };
            encode_patch(raw_len, &patch, base)
        };
        let stored = encode(70_000, PATCHES_MAX - 1).unwrap();
        let read = StoredBlob::of(&stored, 7).unwrap();
        assert_eq!(read.depth.patches, PATCHES_MAX);
        assert_eq!(read.base_home(), Some(5));
        assert_eq!(StoredBlob::depth_of(&stored), Some(read.depth));
        assert_eq!(encode(70_000, PATCHES_MAX), None);
        assert!(encode(1 << 20, 7).is_some());
        let unpacks = encode(2 << 20, 7);
        assert_eq!(unpacks, None, "16 MiB are enough");
        let small = encode(BASE_BYTES + patch.bytes.len(), 0);
        assert_eq!(small, None, "it would be no smaller");
        let error = read.unpack(None, 7).unwrap_err();
        assert!(
            matches!(error, LogError::Damaged { offset: 7, .. }),
            "{error:?}"
        );
    }
}
