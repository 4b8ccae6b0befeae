//! Large bodies stored as differences: a patch is a zstd frame whose window begins with another
//! body.
//!
//! What lives here: creating and applying patches, and the limits. Other modules decide where
//! patches are stored and which bodies are alike. Records do not know about patches: their hashes
//! cover the whole body, so a patch that gives a different body is detected like any damage.

use std::io::{self, Read, Write};

use bytes::Bytes;

/// Maximum number of patches that are applied to read one body.
pub(crate) const PATCHES_MAX: u8 = 32;
/// Maximum size of a body and of its base for a patch, in bytes.
pub const PATCHED_BYTES_MAX: usize = 8 << 20;
/// Maximum data unpacked to read one body, in bytes; chains of larger bodies are shorter.
pub(crate) const CHAIN_BYTES_MAX: u64 = 16 << 20;
/// A patch that is this many times smaller than its body is used without compressing the body for
/// comparison: JSON compresses to a fifth or a tenth.
const SURELY_SMALLER: usize = 16;
/// The zstd level. A fast level suffices: it finds most matches with the base.
const LEVEL: i32 = 3;
/// zstd's smallest window, and the largest that its decoders accept by default, as powers of two.
const WINDOW_LOG: std::ops::RangeInclusive<u32> = 10..=27;

/// The difference between a body and a stored one, its base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodyPatch {
    /// Home offset of the base.
    pub base_home: u64,
    /// The patch; see [`diff`].
    pub bytes: Bytes,
}

/// Computes a patch from `base` to `body`. Returns `None` when it does not pay: either body is too
/// large, or `body` compresses about as well by itself.
///
/// # Errors
/// When zstd fails, which should not happen when it writes to memory.
pub fn diff(base: &[u8], body: &[u8]) -> io::Result<Option<Vec<u8>>> {
    if base.len().max(body.len()) > PATCHED_BYTES_MAX {
        return Ok(None);
    }
    let patch = packed_on(base, body)?;
    if patch.len() <= body.len() / SURELY_SMALLER {
        return Ok(Some(patch));
    }
    let alone = super::frame::compress(body)?.len();
    Ok((patch.len() <= alone - alone / 4).then_some(patch))
}

fn packed_on(base: &[u8], body: &[u8]) -> io::Result<Vec<u8>> {
    let window = (base.len() + body.len()).max(1).next_power_of_two().ilog2();
    let mut encoder = zstd::stream::write::Encoder::with_ref_prefix(Vec::new(), LEVEL, base)?;
    encoder.window_log(window.clamp(*WINDOW_LOG.start(), *WINDOW_LOG.end()))?;
    // Without this, repetitions within the body hide matches with the base.
    encoder.long_distance_matching(true)?;
    // Detects a patch on a damaged base even where no hash is available.
    encoder.include_checksum(true)?;
    encoder.set_pledged_src_size(Some(body.len() as u64))?;
    encoder.write_all(body)?;
    encoder.finish()
}

/// Applies a patch and returns the body, which must have `bytes_len` bytes.
///
/// # Errors
/// When it is not a patch of this base, or gives a different length.
pub fn apply(base: &[u8], patch: &[u8], bytes_len: u64) -> io::Result<Bytes> {
    let mut body = Vec::new();
    zstd::stream::read::Decoder::with_ref_prefix(patch, base)?
        .take(bytes_len.saturating_add(1))
        .read_to_end(&mut body)?;
    if body.len() as u64 != bytes_len {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(body.into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testkit::samples;

    // A growing state becomes a patch of a few bytes; bodies with nothing in common, or too large
    // ones, give no patch.
    #[test]
    fn patch_is_made_only_if_it_is_smaller() {
        let before = samples::prose(200_000);
        let mut after = before[..120_000].to_vec();
        after.extend_from_slice(b"something new in the middle");
        after.extend_from_slice(&before[120_000..]);
        let patch = diff(&before, &after).unwrap().unwrap();
        assert!(patch.len() < 200, "{}", patch.len());
        assert_eq!(apply(&before, &patch, after.len() as u64).unwrap(), after);
        let other = samples::noise(200_000);
        assert_eq!(diff(&before, &other).unwrap(), None);
        let large = vec![7; PATCHED_BYTES_MAX + 1];
        assert_eq!(diff(&large, &large).unwrap(), None);
    }

    // A wrong base, a wrong length and damage are detected, even without a hash.
    #[test]
    fn patch_on_a_wrong_base_is_refused() {
        let before = samples::prose(100_000);
        let mut after = before.to_vec();
        after.extend_from_slice(b"and so on");
        let len = after.len() as u64;
        let patch = diff(&before, &after).unwrap().unwrap();
        let mut other = before.to_vec();
        other[50_000] ^= 1;
        assert!(apply(&other, &patch, len).is_err());
        assert!(apply(&before, &patch, len - 1).is_err());
        assert!(apply(&before, &patch, len + 1).is_err());
        for at in 0..patch.len() {
            let mut damaged = patch.clone();
            damaged[at] ^= 0x40;
            if let Ok(read) = apply(&before, &damaged, len) {
                assert_eq!(read, after, "byte {at}");
            }
        }
    }

    proptest! {
        // For any two bodies, applying the patch from one to the other gives the other.
        #[test]
        fn applied_patch_gives_the_body(
            base in prop::collection::vec(0_u8..4, 0..3_000),
            cut in any::<prop::sample::Index>(),
            added in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let at = cut.index(base.len() + 1);
            let mut body = base[..at].to_vec();
            body.extend_from_slice(&added);
            body.extend_from_slice(&base[at..]);
            let patch = packed_on(&base, &body).unwrap();
            let applied = apply(&base, &patch, body.len() as u64).unwrap();
            prop_assert_eq!(applied, body);
        }
    }
}
