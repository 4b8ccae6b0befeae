//! What a request by HTTP shows of whoever sends it, so that the services can be asked as them.

use std::{fmt, sync::Arc};

use super::{
    ring::{ClientCertificate, Holder, KeyRefusal, KeyRing},
    subject::CertificateSubject,
};

/// What somebody has shown.
#[derive(Clone, PartialEq, Eq)]
pub enum CallerProof {
    /// Nothing: nobody is asked.
    Nothing,
    /// A key.
    Key(String),
    /// The certificate of a connection, by its subject.
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
    /// That of a certificate.
    ///
    /// # Errors
    /// [`KeyRefusal::SubjectMissing`]: it names nobody.
    pub fn of_certificate(certificate: &ClientCertificate) -> Result<Self, KeyRefusal> {
        let subject = certificate.subject.clone();
        subject
            .map(Self::Certificate)
            .ok_or(KeyRefusal::SubjectMissing)
    }

    /// Whose it is; none: nobody's.
    ///
    /// # Errors
    /// [`KeyRefusal`].
    pub fn holder(&self, keys: &Arc<KeyRing>) -> Result<Option<Arc<Holder>>, KeyRefusal> {
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

    // A key in a log is a key that others have.
    #[test]
    fn a_key_is_not_shown() {
        let proof = CallerProof::Key("tr_live_secret".into());
        assert!(!format!("{proof:?}").contains("secret"));
    }
}
