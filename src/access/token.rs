//! A key as it is sent: `tr_live_<id>_<secret><checksum>`.
//!
//! The id, 12 hex digits, is public and names the key in lists and logs. The secret is 256 random
//! bits. The checksum tells a typo from a wrong key without a lookup. The prefix lets secret
//! scanners find keys that were committed to source code.

use std::{fmt, io, sync::Arc};

use serde::{Deserialize, Serialize};

use treering_domain::hex;

const PREFIX: &str = "tr_live_";
const ID_BYTES: usize = 6;
const SECRET_BYTES: usize = 32;
/// Hex digits of a CRC-32C.
const CHECKSUM_DIGITS: usize = 8;

/// Identifies a key. Not a secret.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KeyId(Arc<str>);

impl KeyId {
    /// Returns a new random id.
    ///
    /// # Errors
    /// When the system's random number generator fails.
    pub fn generate() -> io::Result<Self> {
        Ok(Self(hex(&random::<ID_BYTES>()?).into()))
    }

    /// Returns the id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for KeyId {
    type Error = TokenError;

    fn try_from(text: String) -> Result<Self, TokenError> {
        let legal = text.len() == 2 * ID_BYTES && text.bytes().all(is_digit);
        if !legal {
            return Err(TokenError::Mistyped);
        }
        Ok(Self(text.into()))
    }
}

impl From<KeyId> for String {
    fn from(id: KeyId) -> Self {
        id.0.as_ref().to_owned()
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a string is not a valid key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It does not begin with the prefix of keys.
    #[error("not an API key: keys begin with {PREFIX}")]
    NotAKey,
    /// It resembles a key, but a character is missing or wrong.
    #[error("the key is mistyped or incomplete: checksum mismatch")]
    Mistyped,
}

/// A key with its secret. Its debug output shows the id only.
#[derive(Clone)]
pub struct KeyToken {
    id: KeyId,
    text: String,
}

impl fmt::Debug for KeyToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.id)
    }
}

impl KeyToken {
    /// Returns a new id with a new secret.
    ///
    /// # Errors
    /// When the system's random number generator fails.
    pub fn generate() -> io::Result<Self> {
        Self::with_id(KeyId::generate()?)
    }

    /// Returns a new secret for an id.
    ///
    /// # Errors
    /// As [`Self::generate`].
    pub fn with_id(id: KeyId) -> io::Result<Self> {
        let secret = hex(&random::<SECRET_BYTES>()?);
        let mut text = format!("{PREFIX}{id}_{secret}");
        text.push_str(&checksum(&text));
        Ok(Self { id, text })
    }

    /// Parses a key.
    ///
    /// # Errors
    /// [`TokenError`].
    pub fn parse(text: &str) -> Result<Self, TokenError> {
        let Some(rest) = text.strip_prefix(PREFIX) else {
            return Err(TokenError::NotAKey);
        };
        let (id, secret) = rest.split_once('_').ok_or(TokenError::Mistyped)?;
        let digits = 2 * SECRET_BYTES + CHECKSUM_DIGITS;
        let legal = secret.len() == digits && secret.bytes().all(is_digit);
        if !legal {
            return Err(TokenError::Mistyped);
        }
        let (sum_of, sum) = text.split_at(text.len() - CHECKSUM_DIGITS);
        if checksum(sum_of) != sum {
            return Err(TokenError::Mistyped);
        }
        Ok(Self {
            id: id.to_owned().try_into()?,
            text: text.to_owned(),
        })
    }

    /// Returns the key's id.
    #[must_use]
    pub fn id(&self) -> &KeyId {
        &self.id
    }

    /// Returns the whole key with its secret, to show it to its holder once.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.text
    }

    /// Returns the key's hash, which is what the store keeps. Hashes compare in constant time. The
    /// secret is random, so a slow hash would add nothing.
    #[must_use]
    pub fn hash(&self) -> blake3::Hash {
        blake3::hash(self.text.as_bytes())
    }
}

fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

fn checksum(text: &str) -> String {
    format!("{:08x}", crc32c::crc32c(text.as_bytes()))
}

fn is_digit(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

#[cfg(test)]
mod tests {
    use super::*;

    // A badly copied key must not look like a revoked one: each single wrong, missing or added
    // character must be reported as a typo, and never accepted.
    #[test]
    fn mistyped_token_is_reported_as_a_typo() {
        let token = KeyToken::generate().unwrap();
        let text = token.reveal().to_owned();
        let read = KeyToken::parse(&text).unwrap();
        assert_eq!((read.id(), read.hash()), (token.id(), token.hash()));
        for at in PREFIX.len()..text.len() {
            let mut other = text.clone().into_bytes();
            other[at] = if other[at] == b'0' { b'1' } else { b'0' };
            let other = String::from_utf8(other).unwrap();
            assert_eq!(KeyToken::parse(&other).unwrap_err(), TokenError::Mistyped);
            let cut = &text[..at];
            assert_eq!(KeyToken::parse(cut).unwrap_err(), TokenError::Mistyped);
        }
        let longer = format!("{text}0");
        assert_eq!(KeyToken::parse(&longer).unwrap_err(), TokenError::Mistyped);
        for other in ["", "sk-live", "tr_test_x", "Tr_live_"] {
            assert_eq!(KeyToken::parse(other).unwrap_err(), TokenError::NotAKey);
        }
    }

    // A secret that repeats, or that appears in a log, gives others access to the store.
    #[test]
    fn secrets_are_unique_and_hidden_in_debug_output() {
        let first = KeyToken::generate().unwrap();
        let second = KeyToken::with_id(first.id().clone()).unwrap();
        assert_eq!(first.id(), second.id());
        assert_ne!(first.hash(), second.hash());
        let shown = format!("{first:?}");
        assert!(
            shown.contains(first.id().as_str()) && shown.len() < 24,
            "{shown}"
        );
    }
}
