//! Signatures of receipts and heads.
//!
//! A store has its own Ed25519 key, created when it first signs. The public key is part of the
//! signed object, and of the erasure events, so the hash chain vouches for it. The signed text is
//! the JSON object without white space and without its last field, the signature; reformatting the
//! object therefore does not break the signature.

use std::{io, path::Path};

use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use serde_json::Value;

use crate::secret;
use treering_domain::{PublicKey, hex, unhex};

/// Name of the private key's file.
const KEY_FILE: &str = "receipts.key";
/// The fields for the signer and the signature.
const SIGNED_BY: &str = "signed_by";
const SIGNATURE: &str = "signature";

/// Why a signature is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// The text is not JSON.
    #[error("not JSON: {message}")]
    NotJson {
        /// The parser's message.
        message: String,
    },
    /// A field is missing.
    #[error("no signature")]
    NotSigned,
    /// A field is malformed.
    #[error("{field} must have {digits} hexadecimal digits")]
    Malformed {
        /// The field.
        field: &'static str,
        /// The required number of hexadecimal digits.
        digits: usize,
    },
    /// The signature does not match this text or this key.
    #[error("the signature does not match: the text was changed after it was signed")]
    Changed,
}

/// A signing key.
pub struct Signer(SigningKey);

impl Signer {
    /// Returns the key of the store in a folder; creates one if there is none.
    ///
    /// # Errors
    /// The I/O error, or [`io::ErrorKind::InvalidData`] for a file that holds no key.
    pub fn of_store(data: &Path) -> io::Result<Self> {
        match Self::found_in_store(data)? {
            Some(signer) => Ok(signer),
            None => secret::make(&data.join(KEY_FILE)).map(Self::of_seed),
        }
    }

    /// Returns the key of the store in a folder, if there is one.
    ///
    /// # Errors
    /// As [`Self::of_store`].
    pub fn found_in_store(data: &Path) -> io::Result<Option<Self>> {
        let what_to_do = "restore the old file, or remove it to create a new key";
        let seed = secret::read(&data.join(KEY_FILE), what_to_do)?;
        Ok(seed.map(Self::of_seed))
    }

    /// Reads a key from a file.
    ///
    /// # Errors
    /// The I/O error, or [`io::ErrorKind::InvalidData`] for a file that holds no key.
    pub fn of_file(path: &Path) -> io::Result<Self> {
        let seed = secret::read(path, "it must have 64 hexadecimal digits")?;
        seed.map(Self::of_seed)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Creates a key and its file, which must not exist.
    ///
    /// # Errors
    /// The I/O error.
    pub fn make(path: &Path) -> io::Result<Self> {
        if path.symlink_metadata().is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        secret::make(path).map(Self::of_seed)
    }

    fn of_seed(seed: [u8; secret::SECRET_BYTES]) -> Self {
        Self(SigningKey::from_bytes(&seed))
    }

    /// Returns the public key.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key().to_bytes())
    }

    /// Adds the signer and the signature to a JSON object.
    #[must_use]
    pub fn sign(&self, mut object: Value) -> Value {
        object[SIGNED_BY] = self.public().to_string().into();
        let signature = self.0.sign(object.to_string().as_bytes());
        object[SIGNATURE] = hex(&signature.to_bytes()).into();
        object
    }
}

/// Verifies a signed JSON object and returns the signer and the object. Only its layout may have
/// changed since it was signed.
///
/// # Errors
/// [`SignatureError`].
pub fn signed_object(text: &str) -> Result<(PublicKey, Value), SignatureError> {
    let mut signed: Value =
        serde_json::from_str(text).map_err(|error| SignatureError::NotJson {
            message: error.to_string(),
        })?;
    let fields = signed.as_object_mut().ok_or(SignatureError::NotSigned)?;
    let signature = fields.remove(SIGNATURE).ok_or(SignatureError::NotSigned)?;
    let by = fields.get(SIGNED_BY).ok_or(SignatureError::NotSigned)?;
    let key: [u8; 32] = read(SIGNED_BY, by)?;
    let signature = Signature::from_bytes(&read(SIGNATURE, &signature)?);
    let verified = VerifyingKey::from_bytes(&key)
        .and_then(|key| key.verify_strict(signed.to_string().as_bytes(), &signature));
    verified.map_err(|_| SignatureError::Changed)?;
    Ok((PublicKey(key), signed))
}

/// Verifies a receipt and returns its signer; only its layout may have changed. To check that the
/// signer is the store in question, compare it with the events that the receipt names
/// ([`EventBody::ContentErased`]).
///
/// [`EventBody::ContentErased`]: treering_domain::EventBody::ContentErased
///
/// # Errors
/// [`SignatureError`].
pub fn receipt_signer(receipt: &str) -> Result<PublicKey, SignatureError> {
    signed_object(receipt).map(|(signer, _)| signer)
}

fn read<const N: usize>(field: &'static str, value: &Value) -> Result<[u8; N], SignatureError> {
    let bytes = value.as_str().and_then(|text| unhex(text.as_bytes()));
    bytes.ok_or(SignatureError::Malformed {
        field,
        digits: 2 * N,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn receipt() -> Value {
        json!({"receipt": 2, "events": 7, "recorded": [{"revision": 9, "reason": "ä\n"}]})
    }

    // A receipt passes through mail programs and formatters before it is verified. Its layout may
    // change, but nothing else.
    #[test]
    fn changed_receipt_fails_verification() {
        let dir = tempfile::tempdir().unwrap();
        let signer = Signer::of_store(dir.path()).unwrap();
        let signed = signer.sign(receipt());
        let signer_of = |receipt: &Value| receipt_signer(&receipt.to_string());
        assert_eq!(signer_of(&signed), Ok(signer.public()));
        let laid_out = serde_json::to_string_pretty(&signed).unwrap();
        assert_eq!(receipt_signer(&laid_out), Ok(signer.public()));

        let mut changed = signed.clone();
        changed["events"] = 8.into();
        assert_eq!(signer_of(&changed), Err(SignatureError::Changed));
        let other = Signer::of_store(tempfile::tempdir().unwrap().path()).unwrap();
        let mut claimed = signed.clone();
        claimed[SIGNED_BY] = other.public().to_string().into();
        assert_eq!(signer_of(&claimed), Err(SignatureError::Changed));
        assert_eq!(signer_of(&receipt()), Err(SignatureError::NotSigned));
        let mut short = signed;
        short[SIGNATURE] = "00".into();
        assert!(matches!(
            signer_of(&short),
            Err(SignatureError::Malformed { digits: 128, .. })
        ));
    }

    // A store must sign all its receipts with the same key.
    #[test]
    fn store_keeps_its_signing_key() {
        let dir = tempfile::tempdir().unwrap();
        let first = Signer::of_store(dir.path()).unwrap().public();
        assert_eq!(Signer::of_store(dir.path()).unwrap().public(), first);
    }
}
