//! Large bodies as rows: compressed, and cut so that redb, which rounds values
//! up to powers of two, wastes nothing.

use std::io::Read;

use bytes::Bytes;

use crate::log::{
    frame::{self, STORED_BYTES_MAX},
    port::LogError,
    record::{BlobRef, Record},
};

const MAGIC: [u8; 3] = *b"TRB";
const FORMAT_VERSION: u8 = 1;
const CODEC_NONE: u8 = 0;
const CODEC_ZSTD: u8 = 1;
const HEADER_BYTES: usize = 24;

/// The key of a piece: the offset of the record that first named the body, and the
/// piece's number, both big-endian so that pieces sort.
pub(super) fn key(home_offset: u64, piece: u32) -> [u8; 12] {
    let mut key = [0; 12];
    key[..8].copy_from_slice(&home_offset.to_be_bytes());
    key[8..].copy_from_slice(&piece.to_be_bytes());
    key
}

/// The home of the body that a piece is of, by the piece's key; none: that is no key.
pub(super) fn home(key: &[u8]) -> Option<u64> {
    let (home, _) = key.split_first_chunk::<8>()?;
    Some(u64::from_be_bytes(*home))
}

/// Header and, if that pays, compressed content.
pub(super) fn encode(raw: &[u8]) -> Result<Vec<u8>, LogError> {
    let packed = if frame::looks_incompressible(raw) {
        None
    } else {
        let packed = frame::compress(raw)
            .map_err(|error| LogError::from_io("compressing a large body", error))?;
        Some(packed).filter(|packed| packed.len() < raw.len())
    };
    let codec = if packed.is_some() {
        CODEC_ZSTD
    } else {
        CODEC_NONE
    };
    let content = packed.as_deref().unwrap_or(raw);
    let mut stored = Vec::with_capacity(HEADER_BYTES + content.len());
    stored.extend_from_slice(&MAGIC);
    stored.extend_from_slice(&[FORMAT_VERSION, codec, 0, 0, 0]);
    stored.extend_from_slice(&(raw.len() as u64).to_le_bytes());
    stored.extend_from_slice(&(content.len() as u64).to_le_bytes());
    stored.extend_from_slice(content);
    Ok(stored)
}

/// The rows of an encoded body: number and bytes.
pub(super) fn pieces(stored: &[u8]) -> impl Iterator<Item = (u32, &[u8])> {
    (0..).zip(stored.chunks(STORED_BYTES_MAX))
}

/// The most bytes that the stored form of a body takes: it is compressed only where
/// that makes it smaller.
pub(super) fn stored_bytes_max(body_bytes: u64) -> u64 {
    body_bytes.saturating_add(HEADER_BYTES as u64)
}

/// Puts a body together again and checks it against its hash. Its length is what
/// its record says; what is stored is not asked for it.
pub(super) fn decode(stored: &[u8], wanted: &BlobRef) -> Result<Bytes, LogError> {
    let home_offset = wanted.home_offset;
    let damaged = |what: &str| LogError::damaged(home_offset, what);
    if stored.is_empty() {
        return Err(damaged("a large body is missing"));
    }
    let Some((header, content)) = stored.split_first_chunk::<HEADER_BYTES>() else {
        return Err(damaged("a large body ends in its header"));
    };
    if header[..3] != MAGIC {
        return Err(damaged("a large body does not begin as they do"));
    }
    if header[3] > FORMAT_VERSION {
        return Err(LogError::NewerFormat {
            offset: home_offset,
            version: header[3],
            supported: FORMAT_VERSION,
        });
    }
    let word = |at: usize| {
        header[at..at + 8]
            .iter()
            .rev()
            .fold(0, |n, b| n << 8 | u64::from(*b))
    };
    let (raw_len, content_len) = (word(8), word(16));
    if raw_len != wanted.bytes_len {
        return Err(damaged(
            "a large body has another length than its record says",
        ));
    }
    if content.len() as u64 != content_len {
        return Err(damaged("a large body has another length than it says"));
    }
    let raw = match header[4] {
        CODEC_NONE => Bytes::copy_from_slice(content),
        CODEC_ZSTD => decompress(content, raw_len)
            .map_err(|_| damaged("a large body cannot be decompressed"))?,
        _ => return Err(damaged("a large body has an unknown codec")),
    };
    if raw.len() as u64 != raw_len || Record::hash_body(&raw) != wanted.hash {
        return Err(damaged("a large body is not what its hash says"));
    }
    Ok(raw)
}

/// Grows with what comes out: no more than the record's length is ever held.
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

    fn blob_of(body: &[u8], bytes_len: u64) -> BlobRef {
        BlobRef {
            hash: Record::hash_body(body),
            bytes_len,
            home_offset: 7,
        }
    }

    // A stored header that claims another length than its record was believed: 4 KiB
    // of zstd were inflated to 64 MiB before the hash was looked at. One may be
    // inflated only to what the record says, and not at all when they disagree.
    #[test]
    fn the_record_says_how_long_a_body_is() {
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
        // A header that agrees with the record, over content that does not.
        let mut lying = stored;
        lying[8..16].copy_from_slice(&70_000_u64.to_le_bytes());
        let error = decode(&lying, &blob_of(&body, 70_000)).unwrap_err();
        assert!(matches!(error, LogError::Damaged { .. }), "{error:?}");
    }
}
