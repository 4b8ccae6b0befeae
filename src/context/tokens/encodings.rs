//! OpenAI's encodings, embedded. The current one is a table compressed at build time. The older one
//! is a list of tokens from which the table is built on first use. The splitting rules are those of
//! `tiktoken`'s `openai_public`, with look-ahead as in `bpe-openai`.

use std::{io, sync::LazyLock};

use bpe_openai::{Tokenizer, byte_pair_encoding::BytePairEncoding};
use serde::de::DeserializeOwned;

use super::Encoding;

/// A hash factor without collisions among the tokens, as found by `bpe-openai`.
const CL100K_HASHES: u64 = 17_846_336_922_010_275_747;

static O200K_BASE: LazyLock<Tokenizer> = LazyLock::new(|| {
    const TABLE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/o200k_base.zst"));
    tokenizer(
        unpacked(TABLE),
        &[
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"\p{N}{1,3}",
            r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
            r"\s*[\r\n]+",
        ],
    )
});

static CL100K_BASE: LazyLock<Tokenizer> = LazyLock::new(|| {
    const TOKENS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cl100k_base.zst"));
    tokenizer(
        BytePairEncoding::from_dictionary(unpacked::<Vec<Vec<u8>>>(TOKENS), Some(CL100K_HASHES)),
        &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
            r"[^\r\n\p{L}\p{N}]?\p{L}+",
            r"\p{N}{1,3}",
            r" ?[^\s\p{L}\p{N}]+[\r\n]*",
            r"\s*[\r\n]+",
        ],
    )
});

impl Encoding {
    /// Returns the tokenizer. The first call decompresses the table, which takes about 70 ms, or
    /// builds it from the tokens, which takes about 400 ms.
    pub(super) fn tokenizer(self) -> &'static Tokenizer {
        match self {
            Self::O200kBase => &O200K_BASE,
            Self::Cl100kBase => &CL100K_BASE,
        }
    }
}

/// Decompresses a table that the build compressed. Panics on errors, because all counts would be
/// wrong.
fn unpacked<T: DeserializeOwned>(table: &[u8]) -> T {
    let read = |table| -> io::Result<T> {
        let raw = io::BufReader::new(zstd::Decoder::new(table)?);
        rmp_serde::from_read(raw).map_err(io::Error::other)
    };
    read(table).expect("the table was written by the build")
}

fn tokenizer(bpe: BytePairEncoding, pieces: &[&str]) -> Tokenizer {
    // The last of several spaces before a word belongs to it; trailing spaces do not.
    let pieces = format!(r"{}|\s+$", pieces.join("|"));
    let patterns = [(pieces.as_str(), false), (r"\s+\s", true), (r"\s+", false)];
    Tokenizer::new_lookahead(bpe, &patterns, false).expect("the patterns are valid")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // If counts differed from OpenAI's, requests would be shortened too early, or would exceed the
    // provider's limit.
    proptest! {
        #[test]
        fn encoding_equals_the_bpe_openai_library(text in ".{0,200}|[a-zA-Z' \\r\\n/\t0-9.]{0,300}") {
            for (ours, theirs) in [
                (Encoding::O200kBase, bpe_openai::o200k_base()),
                (Encoding::Cl100kBase, bpe_openai::cl100k_base()),
            ] {
                prop_assert_eq!(ours.tokenizer().encode(&text), theirs.encode(&text));
            }
        }
    }
}
