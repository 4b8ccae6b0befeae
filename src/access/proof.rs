//! The credentials of an HTTP request. Calls to the services on behalf of the request use them, so
//! that they have the rights of its sender.

use std::{fmt, sync::Arc};

use super::{
    key_store::{ClientCertificate, KeyHolder, KeyRefusal, KeyStore},
    subject::CertificateSubject,
};

/// The credentials that a caller has shown.
#[derive(Clone, PartialEq, Eq)]
pub enum CallerProof {
    /// No credentials. They are enough only while the store has no keys.
    Nothing,
    /// A key.
    Key(String),
    /// The subject of a connection's certificate.
    Certificate(CertificateSubject),
}

impl fmt::Debug for CallerProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("Nothing"),
            Self::Key(_) => f.write_str("Key(…)"),
            Self::Certificate(subject) => f.debug_tuple("Certificate").field(subject).finish(),
        }
    }
}

impl CallerProof {
    /// Returns the proof of a certificate.
    ///
    /// # Errors
    /// [`KeyRefusal::SubjectMissing`] when it has no subject.
    pub fn of_certificate(certificate: &ClientCertificate) -> Result<Self, KeyRefusal> {
        let subject = certificate.subject.clone();
        subject
            .map(Self::Certificate)
            .ok_or(KeyRefusal::SubjectMissing)
    }

    /// Returns the holder of the key, or `None` without credentials.
    ///
    /// # Errors
    /// [`KeyRefusal`].
    pub fn holder(&self, keys: &Arc<KeyStore>) -> Result<Option<Arc<KeyHolder>>, KeyRefusal> {
        match self {
            Self::Nothing => Ok(None),
            Self::Key(key) => keys.holder(key).map(Some),
            Self::Certificate(subject) => {
                let subject = Some(subject.clone());
                keys.holder_of(&ClientCertificate { subject }).map(Some)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A key in a log is a leaked key.
    #[test]
    fn debug_output_hides_the_api_key() {
        let proof = CallerProof::Key("tr_live_secret".into());
        assert!(!format!("{proof:?}").contains("secret"));
    }
}
