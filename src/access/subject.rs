//! The subject of a client's certificate, as text.
//!
//! The text follows RFC 4514, for example `CN=worker-7,O=Acme`. Special characters are escaped, so
//! that a value cannot look like several parts. The whole subject is compared, not only its common
//! name: two teams may each have a `worker-7`.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};
use x509_cert::{
    Certificate,
    der::{Decode, Encode},
    name::Name,
};

/// Longest subject, in bytes.
const SUBJECT_BYTES_MAX: usize = 1_024;

/// The subject of a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CertificateSubject(Arc<str>);

/// Why a string is not a valid subject.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubjectError {
    /// It cannot be parsed, or is empty.
    #[error(
        "a subject has the form CN=worker-7,O=Acme: `openssl x509 -noout -subject -nameopt RFC2253 \
         -in FILE` shows a certificate's subject"
    )]
    Malformed,
    /// It differs from its canonical form.
    #[error("the canonical form of this subject is {0}")]
    WrittenOtherwise(String),
    /// It is too long.
    #[error("a subject has at most {SUBJECT_BYTES_MAX} bytes")]
    TooLong,
}

impl CertificateSubject {
    /// Parses a subject.
    ///
    /// # Errors
    /// [`SubjectError`].
    pub fn parse(text: &str) -> Result<Self, SubjectError> {
        if text.len() > SUBJECT_BYTES_MAX {
            return Err(SubjectError::TooLong);
        }
        let name: Name = text.parse().map_err(|_| SubjectError::Malformed)?;
        // Reject names that a certificate cannot contain, and parts without a value.
        let has_value =
            |part: &x509_cert::attr::AttributeTypeAndValue| !part.value.value().is_empty();
        if name.is_empty() || name.to_der().is_err() || !name.iter().all(has_value) {
            return Err(SubjectError::Malformed);
        }
        let written = name.to_string();
        if written.eq_ignore_ascii_case(text) {
            return Ok(Self(written.into()));
        }
        Err(SubjectError::WrittenOtherwise(written))
    }

    /// Returns the subject of a DER certificate, or `None` when the certificate cannot be parsed or
    /// its subject is empty or too long.
    #[must_use]
    pub fn of_certificate(der: &[u8]) -> Option<Self> {
        let certificate = Certificate::from_der(der).ok()?;
        let name = certificate.tbs_certificate().subject();
        let text = name.to_string();
        let good = !name.is_empty() && text.len() <= SUBJECT_BYTES_MAX;
        good.then(|| Self(text.into()))
    }

    /// Returns the subject as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for CertificateSubject {
    type Error = SubjectError;

    fn try_from(text: String) -> Result<Self, SubjectError> {
        Self::parse(&text)
    }
}

impl From<CertificateSubject> for String {
    fn from(subject: CertificateSubject) -> Self {
        subject.0.as_ref().to_owned()
    }
}

impl fmt::Display for CertificateSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(parts: &[(rcgen::DnType, &str)]) -> Vec<u8> {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, value) in parts {
            params.distinguished_name.push(kind.clone(), *value);
        }
        let key = rcgen::KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    // A subject that a user typed must match the certificate's, whatever characters it contains. A
    // value must not look like another part: the common name "worker,O=Ops" does not name a worker
    // of the organisation Ops.
    #[test]
    fn parsed_subject_equals_the_certificate_subject() {
        use rcgen::DnType::{CommonName, CountryName, OrganizationName};
        let cases: [(&[(rcgen::DnType, &str)], &str); 7] = [
            (&[(CommonName, "worker-7")], "CN=worker-7"),
            (
                &[
                    (CountryName, "DE"),
                    (OrganizationName, "Acme"),
                    (CommonName, "w"),
                ],
                "CN=w,O=Acme,C=DE",
            ),
            (&[(OrganizationName, "Acme")], "O=Acme"),
            (&[(CommonName, "w,O=Ops")], r"CN=w\,O=Ops"),
            (&[(CommonName, "w+O=Ops")], r"CN=w\+O=Ops"),
            (&[(CommonName, "Jürgen \"J\"")], r#"CN=Jürgen \"J\""#),
            (&[(CommonName, "w/O=Ops")], "CN=w/O=Ops"),
        ];
        for (parts, text) in cases {
            let of_certificate = CertificateSubject::of_certificate(&certificate(parts)).unwrap();
            assert_eq!(of_certificate.as_str(), text);
            assert_eq!(CertificateSubject::parse(text), Ok(of_certificate));
        }
        assert_ne!(
            CertificateSubject::parse("CN=w,O=Ops"),
            CertificateSubject::parse(r"CN=w\,O=Ops")
        );
    }

    // An invalid subject must not become a key that nobody, or anybody, can use.
    #[test]
    fn invalid_subject_is_refused() {
        for wrong in [
            "",
            "worker-7",
            "CN=",
            "CN=a,",
            "XX=a",
            "CN = a",
            "CN=a, O=b",
        ] {
            assert!(CertificateSubject::parse(wrong).is_err(), "{wrong:?}");
        }
        let long = format!("CN={}", "a".repeat(SUBJECT_BYTES_MAX));
        assert_eq!(CertificateSubject::parse(&long), Err(SubjectError::TooLong));
        assert_eq!(CertificateSubject::parse("cn=a").unwrap().as_str(), "CN=a");
        assert_eq!(CertificateSubject::of_certificate(&certificate(&[])), None);
        assert_eq!(CertificateSubject::of_certificate(b"no certificate"), None);
    }
}
