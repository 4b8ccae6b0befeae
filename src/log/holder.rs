//! How the process that serves a data folder proves to clients that it does.
//!
//! A client of the folder reads the server's address from the lock file. That address may be left
//! over from a process that is gone, and another user's process may listen there now. So the lock
//! file, which only its owner can read, also has a secret that each server generates: a process
//! that answers a challenge with it can read the folder. The answer also covers the address, so
//! that a process at another address cannot relay it.

use std::fmt;

use treering_domain::{hex, unhex};

/// Length of a secret, of a challenge, and of an answer, in bytes.
pub const PROOF_BYTES: usize = 32;

/// The secret of a process that serves a folder. Boxed to keep the errors that contain it small.
#[derive(Clone, PartialEq, Eq)]
pub struct HolderSecret(Box<[u8; PROOF_BYTES]>);

impl fmt::Debug for HolderSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HolderSecret(…)")
    }
}

impl HolderSecret {
    /// Generates a new secret.
    ///
    /// # Errors
    /// When the system's random number generator fails.
    pub fn generate() -> std::io::Result<Self> {
        question().map(|bytes| Self(Box::new(bytes)))
    }

    /// Parses the output of [`Self::text`].
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        unhex(text.as_bytes()).map(|bytes| Self(Box::new(bytes)))
    }

    /// Returns the text form that the lock file contains.
    #[must_use]
    pub fn text(&self) -> String {
        hex(&*self.0)
    }

    /// Returns the answer to a challenge received at this address, which is written as in the lock
    /// file. Comparing two answers takes constant time.
    #[must_use]
    pub fn answer(&self, question: &[u8; PROOF_BYTES], address: &str) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(question).update(address.as_bytes());
        hasher.finalize()
    }
}

/// Generates a fresh challenge.
///
/// # Errors
/// When the system's random number generator fails.
pub fn question() -> std::io::Result<[u8; PROOF_BYTES]> {
    let mut bytes = [0; PROOF_BYTES];
    getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Another user's server can take over a port that the folder's server used before, and relay
    // the challenge to the server's new address. The relayed answer must be useless.
    #[test]
    fn proof_is_bound_to_challenge_and_address() {
        let secret = HolderSecret(Box::new([7; PROOF_BYTES]));
        let here = secret.answer(&[1; 32], "http://127.0.0.1:1");
        assert_eq!(here, secret.answer(&[1; 32], "http://127.0.0.1:1"));
        assert_ne!(here, secret.answer(&[2; 32], "http://127.0.0.1:1"));
        assert_ne!(here, secret.answer(&[1; 32], "http://127.0.0.1:2"));
        let other = HolderSecret(Box::new([8; PROOF_BYTES]));
        assert_ne!(here, other.answer(&[1; 32], "http://127.0.0.1:1"));
        assert_eq!(HolderSecret::read(&secret.text()), Some(secret.clone()));
        assert_eq!(HolderSecret::read("00"), None);
        assert!(!format!("{secret:?}").contains("07"));
    }
}
