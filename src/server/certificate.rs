//! The validity period and names of a server's certificate. Clients verify who signed it.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use x509_cert::{
    Certificate,
    der::Decode,
    ext::pkix::{SubjectAltName, name::GeneralName},
};

use treering_domain::TimestampMicros;
use treering_proto::rfc3339;

/// The validity period and the names of a certificate.
#[derive(Clone, Debug)]
pub(super) struct CertificateFacts {
    not_before: Duration,
    not_after: Duration,
    names: BTreeSet<String>,
}

/// Why a certificate must not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum CertificateFault {
    /// It cannot be read.
    #[error("its first certificate cannot be read ({0}): expected X.509 in PEM")]
    Unreadable(String),
    /// It has expired.
    #[error("the certificate expired at {0}, and clients refuse it: renew it and replace the file")]
    Ended(String),
    /// It is not valid yet.
    #[error(
        "the certificate is not valid before {0}, and clients refuse it: check this machine's \
         clock, or wait until then"
    )]
    NotBegun(String),
    /// It has no name in common with the one in use.
    #[error(
        "the certificate is for {found}, the current one for {wanted}: check that the file belongs \
         to this host. To change the server's names, restart it"
    )]
    OtherNames {
        /// Its own names.
        found: String,
        /// The names of the one in use.
        wanted: String,
    },
}

impl CertificateFacts {
    /// Returns the facts of a DER certificate.
    ///
    /// # Errors
    /// [`CertificateFault::Unreadable`].
    pub(crate) fn of(der: &[u8]) -> Result<Self, CertificateFault> {
        let unreadable =
            |error: x509_cert::der::Error| CertificateFault::Unreadable(error.to_string());
        let certificate = Certificate::from_der(der).map_err(unreadable)?;
        let certificate = certificate.tbs_certificate();
        let names = certificate.get_extension::<SubjectAltName>();
        let names = names.map_err(unreadable)?;
        let names = names.map(|(_critical, names)| names.0).unwrap_or_default();
        Ok(Self {
            not_before: certificate.validity().not_before.to_unix_duration(),
            not_after: certificate.validity().not_after.to_unix_duration(),
            names: names.iter().filter_map(name).collect(),
        })
    }

    /// Checks that clients would accept it now. `now` is the time since 1970.
    ///
    /// # Errors
    /// [`CertificateFault::Ended`], [`CertificateFault::NotBegun`].
    pub(crate) fn check_time(&self, now: Duration) -> Result<(), CertificateFault> {
        if now > self.not_after {
            return Err(CertificateFault::Ended(text(self.not_after)));
        }
        if now < self.not_before {
            return Err(CertificateFault::NotBegun(text(self.not_before)));
        }
        Ok(())
    }

    /// Checks that it can replace another one: they share at least one name, or the other one has
    /// none.
    ///
    /// # Errors
    /// [`CertificateFault::OtherNames`].
    pub(crate) fn check_takes_place_of(&self, before: &Self) -> Result<(), CertificateFault> {
        let is_shared = |name: &String| before.names.iter().any(|other| meet(name, other));
        if before.names.is_empty() || self.names.iter().any(is_shared) {
            return Ok(());
        }
        Err(CertificateFault::OtherNames {
            found: listed(&self.names),
            wanted: listed(&before.names),
        })
    }

    /// Returns the end of the validity period, in seconds since 1970.
    pub(crate) fn ends_at_seconds(&self) -> u64 {
        self.not_after.as_secs()
    }
}

fn name(name: &GeneralName) -> Option<String> {
    match name {
        GeneralName::DnsName(name) => Some(name.as_str().to_ascii_lowercase()),
        GeneralName::IpAddress(bytes) => {
            let bytes = bytes.as_bytes();
            let v4 = <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
            let ip = v4.or_else(|| <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from));
            ip.map(|ip| ip.to_string())
        }
        _ => None,
    }
}

/// Returns true when a host can have both names: they are equal, or one is a wildcard for the
/// other.
fn meet(one: &str, other: &str) -> bool {
    let covers = |wildcard: &str, name: &str| {
        let above = wildcard.strip_prefix("*.");
        above.is_some() && name.split_once('.').map(|(_, above)| above) == above
    };
    one == other || covers(one, other) || covers(other, one)
}

fn listed(names: &BTreeSet<String>) -> String {
    match names.is_empty() {
        true => "no name".to_owned(),
        false => Vec::from_iter(names.iter().cloned()).join(", "),
    }
}

fn text(since_1970: Duration) -> String {
    let micros = i64::try_from(since_1970.as_micros()).unwrap_or(i64::MAX);
    rfc3339::text(TimestampMicros(micros)).unwrap_or_else(|| format!("{} s", since_1970.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    // A wildcard that covers the current names is a renewal; one of another domain is not.
    #[test]
    fn certificate_names_match_with_wildcards() {
        for (one, other, wanted) in [
            ("db.example", "db.example", true),
            ("*.example", "db.example", true),
            ("db.example", "*.example", true),
            ("*.example", "a.db.example", false),
            ("*.example", "example", false),
            ("db.example", "web.example", false),
            ("127.0.0.1", "127.0.0.1", true),
        ] {
            assert_eq!(meet(one, other), wanted, "{one} {other}");
        }
    }
}
