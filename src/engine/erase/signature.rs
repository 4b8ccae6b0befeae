//! Signatures of receipts.
//!
//! A store has an Ed25519 key of its own, made at its first erasing. Its public half stands in
//! the events that record what was erased, so the chain of hashes vouches for it, and in the
//! receipt. What is signed is the receipt as JSON without white space and without its last
//! field, the signature itself: whoever lays a receipt out anew does not break it.

use std::{io, path::Path};

use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use serde_json::Value;

use crate::{
    domain::{PublicKey, hex, unhex},
    engine::secret,
};

/// The file of the private key.
const KEY_FILE: &str = "receipts.key";
/// The fields of a receipt that say who signed it, and how.
const SIGNED_BY: &str = "signed_by";
const SIGNATURE: &str = "signature";

/// Why a receipt is not what a store signed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiptError {
    /// It is no JSON.
    #[error("it is no receipt: {message}")]
    NotJson {
        /// Where, and why.
        message: String,
    },
    /// A field is not there.
    #[error("the receipt is not signed")]
    NotSigned,
    /// A field is not what it should be.
    #[error("the receipt's {field} is not of {digits} hexadecimal digits")]
    Malformed {
        /// Which.
        field: &'static str,
        /// How many it should have.
        digits: usize,
    },
    /// The signature is not of this text, or not of this key.
    #[error("the receipt is not as it was signed: somebody has changed it")]
    Changed,
}

/// The key with which a store signs.
pub(super) struct Signer(SigningKey);

impl Signer {
    /// The key of the store in a folder; makes one where there is none.
    ///
    /// # Errors
    /// What the system says, and [`io::ErrorKind::InvalidData`] for a file that holds no key.
    pub fn of_store(data: &Path) -> io::Result<Self> {
        let path = data.join(KEY_FILE);
        let seed = match secret::read(&path, "put it back, or remove it and a new one is made")? {
            Some(seed) => seed,
            None => secret::make(&path)?,
        };
        Ok(Self(SigningKey::from_bytes(&seed)))
    }

    /// Who it signs as.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key().to_bytes())
    }

    /// A receipt with who signed it and the signature.
    pub fn sign(&self, mut receipt: Value) -> Value {
        receipt[SIGNED_BY] = self.public().to_string().into();
        let signature = self.0.sign(receipt.to_string().as_bytes());
        receipt[SIGNATURE] = hex(&signature.to_bytes()).into();
        receipt
    }
}

/// Who signed a receipt, when nothing but its layout was changed since. Whether that is the
/// store in question, the events that the receipt names say ([`EventBody::ContentErased`]).
///
/// [`EventBody::ContentErased`]: crate::domain::EventBody::ContentErased
///
/// # Errors
/// [`ReceiptError`].
pub fn receipt_signer(receipt: &str) -> Result<PublicKey, ReceiptError> {
    let mut signed: Value =
        serde_json::from_str(receipt).map_err(|error| ReceiptError::NotJson {
            message: error.to_string(),
        })?;
    let fields = signed.as_object_mut().ok_or(ReceiptError::NotSigned)?;
    let signature = fields.remove(SIGNATURE).ok_or(ReceiptError::NotSigned)?;
    let by = fields.get(SIGNED_BY).ok_or(ReceiptError::NotSigned)?;
    let key: [u8; 32] = read(SIGNED_BY, by)?;
    let signature = Signature::from_bytes(&read(SIGNATURE, &signature)?);
    let verified = VerifyingKey::from_bytes(&key)
        .and_then(|key| key.verify_strict(signed.to_string().as_bytes(), &signature));
    verified.map_err(|_| ReceiptError::Changed)?;
    Ok(PublicKey(key))
}

fn read<const N: usize>(field: &'static str, value: &Value) -> Result<[u8; N], ReceiptError> {
    let bytes = value.as_str().and_then(|text| unhex(text.as_bytes()));
    bytes.ok_or(ReceiptError::Malformed {
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

    // A receipt goes through mails and formatters before somebody asks whether it is true:
    // its layout may change, and nothing else.
    #[test]
    fn whatever_is_changed_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let signer = Signer::of_store(dir.path()).unwrap();
        let signed = signer.sign(receipt());
        let signer_of = |receipt: &Value| receipt_signer(&receipt.to_string());
        assert_eq!(signer_of(&signed), Ok(signer.public()));
        let laid_out = serde_json::to_string_pretty(&signed).unwrap();
        assert_eq!(receipt_signer(&laid_out), Ok(signer.public()));

        let mut changed = signed.clone();
        changed["events"] = 8.into();
        assert_eq!(signer_of(&changed), Err(ReceiptError::Changed));
        let other = Signer::of_store(tempfile::tempdir().unwrap().path()).unwrap();
        let mut claimed = signed.clone();
        claimed[SIGNED_BY] = other.public().to_string().into();
        assert_eq!(signer_of(&claimed), Err(ReceiptError::Changed));
        assert_eq!(signer_of(&receipt()), Err(ReceiptError::NotSigned));
        let mut short = signed;
        short[SIGNATURE] = "00".into();
        assert!(matches!(
            signer_of(&short),
            Err(ReceiptError::Malformed { digits: 128, .. })
        ));
    }

    // Whoever has a receipt of last year must find the same key in today's.
    #[test]
    fn a_store_keeps_its_key() {
        let dir = tempfile::tempdir().unwrap();
        let first = Signer::of_store(dir.path()).unwrap().public();
        assert_eq!(Signer::of_store(dir.path()).unwrap().public(), first);
    }
}
