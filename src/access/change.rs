//! Creates, rotates and revokes keys.

use std::{path::Path, time::Duration};

use serde::{Deserialize, Serialize};

use super::{
    file::{self, KeyFile, KeyFileError, KeyRecord, SecretRecord},
    role::Grant,
    subject::CertificateSubject,
    token::{KeyId, KeyToken},
};
use treering_domain::TimestampMicros;

/// Rate limits of a key. Zero means unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KeyLimits {
    /// Average calls per second; one second's worth may come at once.
    pub requests_per_second: u32,
    /// Average request bytes per second; one second's worth may come at once.
    pub bytes_per_second: u32,
}

impl KeyLimits {
    /// Returns true when there is no limit.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// The properties of a key to be created.
#[derive(Clone, Debug)]
pub struct NewKey {
    /// The holder's name, unique among living keys.
    pub name: String,
    /// Its grants; at least one.
    pub roles: Vec<Grant>,
    /// Its lifetime; `None` means it does not expire.
    pub expires_in: Option<Duration>,
    /// Rate limits.
    pub limits: KeyLimits,
    /// The actor that creates it.
    pub by: String,
}

/// A key with its new secret. The token is not stored.
#[derive(Clone, Debug)]
pub struct IssuedKey {
    /// The stored part.
    pub record: KeyRecord,
    /// The token to hand to the holder.
    pub token: KeyToken,
}

/// Creates a key in a folder.
///
/// # Errors
/// [`KeyFileError`]; no key is created in that case.
pub fn create(dir: &Path, new: NewKey) -> Result<IssuedKey, KeyFileError> {
    file::change(dir, |keys| keys.create(new))
}

/// Creates a key in a folder, for clients whose certificate has this subject. It has no secret.
///
/// # Errors
/// [`KeyFileError`]; no key is created in that case.
pub fn create_for_certificate(
    dir: &Path,
    new: NewKey,
    subject: CertificateSubject,
) -> Result<KeyRecord, KeyFileError> {
    file::change(dir, |keys| keys.create_for_certificate(new, subject))
}

/// Revokes a key of a folder, given its id or name.
///
/// # Errors
/// [`KeyFileError`]; the key is then unchanged.
pub fn revoke(dir: &Path, which: &str, by: &str) -> Result<KeyRecord, KeyFileError> {
    file::change(dir, |keys| keys.revoke(which, by))
}

/// Gives a key of a folder a new secret. The current one stays valid for the grace period.
///
/// # Errors
/// [`KeyFileError`]; the key is then unchanged.
pub fn rotate(
    dir: &Path,
    which: &str,
    grace: Duration,
    by: &str,
) -> Result<IssuedKey, KeyFileError> {
    file::change(dir, |keys| keys.rotate(which, grace, by))
}

impl KeyFile {
    /// Creates a key.
    ///
    /// # Errors
    /// [`KeyFileError`]; no key is created in that case.
    pub fn create(&mut self, new: NewKey) -> Result<IssuedKey, KeyFileError> {
        let token = KeyToken::generate().map_err(KeyFileError::Random)?;
        let now = TimestampMicros::now();
        let secrets = vec![secret(&token, now, new.by.clone())];
        let record = new.record(token.id().clone(), now, secrets, None)?;
        let record = self.add(record, now)?;
        Ok(IssuedKey { record, token })
    }

    /// Creates a key for clients whose certificate has this subject. It has no secret.
    ///
    /// # Errors
    /// [`KeyFileError`]; no key is created in that case.
    pub fn create_for_certificate(
        &mut self,
        new: NewKey,
        subject: CertificateSubject,
    ) -> Result<KeyRecord, KeyFileError> {
        let id = KeyId::generate().map_err(KeyFileError::Random)?;
        let now = TimestampMicros::now();
        self.add(new.record(id, now, Vec::new(), Some(subject))?, now)
    }

    fn add(&mut self, new: KeyRecord, now: TimestampMicros) -> Result<KeyRecord, KeyFileError> {
        let mut living = self.keys.iter().filter(|key| !key.has_ended(now));
        if living.clone().any(|key| key.name == new.name) {
            return Err(KeyFileError::NameTaken(new.name));
        }
        if let Some(subject) = &new.certificate_subject
            && let Some(other) =
                living.find(|key| key.certificate_subject.as_ref() == Some(subject))
        {
            return Err(KeyFileError::SubjectTaken {
                key: other.name.clone(),
                subject: subject.clone(),
            });
        }
        self.keys.push(new.clone());
        Ok(new)
    }

    /// Revokes a key, given its id or name.
    ///
    /// # Errors
    /// [`KeyFileError`]; the key is then unchanged.
    pub fn revoke(&mut self, which: &str, by: &str) -> Result<KeyRecord, KeyFileError> {
        let now = TimestampMicros::now();
        let key = find_active(self, which, now)?;
        key.revoked_at = Some(now);
        by.clone_into(&mut key.revoked_by);
        Ok(key.clone())
    }

    /// Gives a key a new secret. The current one stays valid for the grace period.
    ///
    /// # Errors
    /// [`KeyFileError`]; the key is then unchanged.
    pub fn rotate(
        &mut self,
        which: &str,
        grace: Duration,
        by: &str,
    ) -> Result<IssuedKey, KeyFileError> {
        let now = TimestampMicros::now();
        let key = find_active(self, which, now)?;
        if key.certificate_subject.is_some() {
            return Err(KeyFileError::NoSecret(key.name.clone()));
        }
        let end = after(now, grace);
        key.secrets
            .retain(|secret| secret.ends_at.is_none_or(|ends| ends > now));
        for old in &mut key.secrets {
            old.ends_at = Some(old.ends_at.map_or(end, |ends| ends.min(end)));
        }
        let token = KeyToken::with_id(key.id.clone()).map_err(KeyFileError::Random)?;
        key.secrets.push(secret(&token, now, by.to_owned()));
        Ok(IssuedKey {
            record: key.clone(),
            token,
        })
    }
}

impl NewKey {
    fn record(
        self,
        id: KeyId,
        now: TimestampMicros,
        secrets: Vec<SecretRecord>,
        certificate_subject: Option<CertificateSubject>,
    ) -> Result<KeyRecord, KeyFileError> {
        file::check_name(&self.name).map_err(KeyFileError::Invalid)?;
        if self.roles.is_empty() {
            let what = "a key needs at least one role";
            return Err(KeyFileError::Invalid(what.to_owned()));
        }
        Ok(KeyRecord {
            id,
            name: self.name,
            roles: self.roles,
            made_at: now,
            made_by: self.by,
            expires_at: self.expires_in.map(|wait| after(now, wait)),
            revoked_at: None,
            revoked_by: String::new(),
            certificate_subject,
            secrets,
            limits: self.limits,
        })
    }
}

/// Returns the key with this id, or the living one of this name.
fn find_active<'a>(
    file: &'a mut KeyFile,
    which: &str,
    now: TimestampMicros,
) -> Result<&'a mut KeyRecord, KeyFileError> {
    let keys = &mut file.keys;
    let of_id = keys.iter().position(|key| key.id.as_str() == which);
    // Only the last key with a name can be active.
    let of_name = || keys.iter().rposition(|key| key.name == which);
    let Some(at) = of_id.or_else(of_name) else {
        return Err(KeyFileError::NotFound(which.to_owned()));
    };
    let key = Some(&mut keys[at]).filter(|key| !key.has_ended(now));
    key.ok_or_else(|| KeyFileError::Ended(which.to_owned()))
}

fn secret(token: &KeyToken, now: TimestampMicros, by: String) -> SecretRecord {
    SecretRecord {
        blake3: token.hash().to_hex().to_string(),
        made_at: now,
        made_by: by,
        ends_at: None,
    }
}

fn after(now: TimestampMicros, wait: Duration) -> TimestampMicros {
    let wait = i64::try_from(wait.as_micros()).unwrap_or(i64::MAX);
    TimestampMicros(now.0.saturating_add(wait))
}
