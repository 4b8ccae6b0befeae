//! Large bodies as what is different in them: a patch is a zstd frame whose window begins with
//! another body.
//!
//! What lives here: making a patch and applying it, and the bounds. Who keeps it where, and
//! which body another one is like, is said elsewhere. Records know nothing of it: their hashes
//! are of the whole body, so a patch that gives another one is told like any damage.

use std::io::{self, Read, Write};

use bytes::Bytes;

/// A body that is a patch needs at most so many others, itself included, to be read.
pub const PATCHES_MAX: u8 = 32;
/// Of a larger body, or on one, no patch is made, in bytes.
pub const PATCHED_BYTES_MAX: usize = 8 << 20;
/// What is unpacked to read one body, in bytes: with larger bodies chains are shorter.
pub const CHAIN_BYTES_MAX: u64 = 16 << 20;
/// A patch that is so many times smaller than its body is taken without a look at what the
/// body alone would pack to: JSON packs to a fifth or a tenth.
const SURELY_SMALLER: usize = 16;
/// The middle one of zstd's fast levels: most of a patch is found at once.
const LEVEL: i32 = 3;
/// zstd's smallest window, and the largest that its readers take unasked, as powers of two.
const WINDOW_LOG: std::ops::RangeInclusive<u32> = 10..=27;

/// What is different in a body from one that is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodyPatch {
    /// Home of the other one.
    pub base_home: u64,
    /// See [`diff`].
    pub bytes: Bytes,
}

/// What is different in `body`; none when that does not pay: either is too large, or the body
/// alone packs about as well.
///
/// # Errors
/// What zstd says; it is not known to fail on memory.
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
    // Without it, what repeats within a body hides that all of it is in the other one.
    encoder.long_distance_matching(true)?;
    // A patch on a damaged body must not give another one unseen, also where no hash is at hand.
    encoder.include_checksum(true)?;
    encoder.set_pledged_src_size(Some(body.len() as u64))?;
    encoder.write_all(body)?;
    encoder.finish()
}

/// The body that a patch gives, of so many bytes.
///
/// # Errors
/// When it is no patch of this base, or gives another length.
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
    use crate::log::testkit::samples;

    // A state that grows is a patch of a few bytes, one that has nothing in common with the
    // other is none, and what is too large is not looked at.
    #[test]
    fn a_patch_is_made_where_it_pays() {
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

    // A wrong base, a wrong length and damage are told, also by who has no hash.
    #[test]
    fn a_patch_belongs_to_its_base() {
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
        // Whatever two bodies are, the patch of one on the other gives it back.
        #[test]
        fn a_patch_gives_the_body_back(
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
