//! The keys of a running server: who holds each key, and when it expires.
//!
//! The file is checked before each call (one `stat`, about a microsecond), and from time to time
//! for long calls. New and revoked keys therefore take effect at once.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs::{self, File, Metadata},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use tokio::sync::watch;

use super::{
    file::{self, KeyFile, KeyFileError},
    rate::Rate,
    reads::Reads,
    role::{Grant, GrantScope, KeyRole},
    subject::CertificateSubject,
    token::{KeyId, KeyToken, TokenError},
};
use treering_base::disk;
use treering_domain::{Namespace, TimestampMicros};

/// Resolution of last-use times, in microseconds.
const LAST_USE_RESOLUTION_MICROS: i64 = 60 * 1_000_000;
/// Longest sleep while waiting for a key to expire. The clock is checked again after it, because it
/// may have been adjusted.
const CLOCK_CHECK_EVERY: Duration = Duration::from_secs(60);

/// Why a caller is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyRefusal {
    /// No key was sent.
    #[error("the call has no API key: send `authorization: Bearer tr_live_…`")]
    Missing,
    /// The value that was sent is not a key.
    #[error(transparent)]
    Malformed(#[from] TokenError),
    /// No key has this id and secret.
    #[error("unknown API key")]
    Unknown,
    /// No key was sent, and no stored key has the subject of the client's certificate.
    #[error(
        "the call has no API key, and no key has the client certificate's subject {0}: send a key, \
         or create one with `treering keys create NAME --certificate-subject '{0}'`"
    )]
    SubjectUnknown(CertificateSubject),
    /// No key was sent, and the client's certificate has no subject.
    #[error("the call has no API key, and the client certificate has no subject")]
    SubjectMissing,
    /// The key was revoked.
    #[error("the key {0} was revoked")]
    Revoked(String),
    /// The key has expired, or its secret was replaced and the grace period is over.
    #[error("the key {0} has expired")]
    Expired(String),
}

/// A key in use.
#[derive(Debug)]
struct ActiveKey {
    id: KeyId,
    name: Arc<str>,
    roles: Vec<Grant>,
    rate: Arc<Rate>,
    reads: Arc<Reads>,
    expires_at: Option<TimestampMicros>,
    is_revoked: bool,
    subject: Option<CertificateSubject>,
    secrets: Vec<(blake3::Hash, Option<TimestampMicros>)>,
    used: Arc<AtomicI64>,
}

/// A client's verified certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// Its subject, if it has one.
    pub subject: Option<CertificateSubject>,
}

/// The credentials that a caller presented.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PresentedCredential {
    /// The hash of a key.
    Secret(blake3::Hash),
    /// A certificate's subject.
    Certificate(CertificateSubject),
}

impl ActiveKey {
    /// Returns when the credentials expire; `None` means never.
    fn valid_until(
        &self,
        shown: &PresentedCredential,
        now: TimestampMicros,
    ) -> Result<Option<TimestampMicros>, KeyRefusal> {
        let ends_at = match shown {
            PresentedCredential::Secret(secret) => {
                // Hashes compare in constant time.
                let known = self.secrets.iter().find(|(hash, _)| hash == secret);
                known.ok_or(KeyRefusal::Unknown)?.1
            }
            PresentedCredential::Certificate(subject) if self.subject.as_ref() == Some(subject) => {
                None
            }
            PresentedCredential::Certificate(_) => return Err(KeyRefusal::Unknown),
        };
        if self.is_revoked {
            return Err(KeyRefusal::Revoked(self.name.to_string()));
        }
        let until = [self.expires_at, ends_at].into_iter().flatten().min();
        if until.is_some_and(|until| until <= now) {
            return Err(KeyRefusal::Expired(self.name.to_string()));
        }
        Ok(until)
    }
}

/// The state of the key file when it was last checked.
#[derive(Debug)]
struct KeyFileState {
    stamp: Option<Stamp>,
    /// Kept open, so that no other file gets its inode number.
    _file: Option<File>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    file: (u64, u64),
    bytes: u64,
    changed: (i64, i64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        #[cfg(unix)]
        let file = {
            use std::os::unix::fs::MetadataExt;
            (metadata.dev(), metadata.ino())
        };
        #[cfg(not(unix))]
        let file = (0, 0);
        Self {
            file,
            bytes: metadata.len(),
            changed: disk::changed_at(metadata),
        }
    }
}

#[derive(Debug)]
struct KeyIndex {
    seen: KeyFileState,
    keys: HashMap<KeyId, Arc<ActiveKey>>,
    by_subject: HashMap<CertificateSubject, Arc<ActiveKey>>,
}

impl KeyIndex {
    /// Indexes the file's keys. `keys` must have a key for each record of the file.
    fn new(seen: KeyFileState, file: &KeyFile, keys: HashMap<KeyId, Arc<ActiveKey>>) -> Self {
        let now = TimestampMicros::now();
        // If several keys have the same subject, the valid one comes last and wins.
        let mut records: Vec<_> = file.keys.iter().collect();
        records.sort_by_key(|record| !record.has_ended(now));
        let by_subject = records.into_iter().filter_map(|record| {
            let subject = record.certificate_subject.clone()?;
            Some((subject, Arc::clone(keys.get(&record.id)?)))
        });
        let by_subject = by_subject.collect();
        Self {
            seen,
            keys,
            by_subject,
        }
    }
}

/// The current keys of a data folder.
#[derive(Debug)]
pub struct KeyStore {
    dir: PathBuf,
    loaded: ArcSwap<KeyIndex>,
    /// Locked while the file is read.
    loading: Mutex<()>,
    changes: watch::Sender<u64>,
}

impl KeyStore {
    /// Reads the keys of a data folder.
    ///
    /// # Errors
    /// [`KeyFileError::File`], [`KeyFileError::Damaged`]: a server that cannot read the keys must
    /// not run as if there were none.
    pub fn open(dir: &Path) -> Result<Arc<Self>, KeyFileError> {
        let (seen, file) = open(dir)?;
        let mut keys = build_keys(&file, &HashMap::new());
        for (id, time) in file::last_uses(dir) {
            if let Some(key) = keys.get_mut(&id) {
                key.used.store(time.0, Ordering::Relaxed);
            }
        }
        Ok(Arc::new(Self {
            dir: dir.to_owned(),
            loaded: ArcSwap::from_pointee(KeyIndex::new(seen, &file, keys)),
            loading: Mutex::new(()),
            changes: watch::Sender::new(0),
        }))
    }

    /// Returns the data folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns how many times the keys were reloaded.
    #[must_use]
    pub fn changes(&self) -> u64 {
        *self.changes.borrow()
    }

    /// Returns true if no key has ever been created. Callers then need no key.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.loaded.load().keys.is_empty()
    }

    /// Returns true when at least one key is valid now.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn has_living(&self) -> bool {
        let now = TimestampMicros::now();
        let keys = self.loaded.load();
        let lives = |key: &Arc<ActiveKey>| {
            let secrets = key
                .secrets
                .iter()
                .map(|(secret, _)| PresentedCredential::Secret(*secret));
            let subject = key
                .subject
                .iter()
                .cloned()
                .map(PresentedCredential::Certificate);
            let mut shown = secrets.chain(subject);
            shown.any(|shown| key.valid_until(&shown, now).is_ok())
        };
        keys.keys.values().any(lives)
    }

    /// Returns true when at least one key has a certificate subject.
    #[must_use]
    pub fn has_subjects(&self) -> bool {
        !self.loaded.load().by_subject.is_empty()
    }

    /// Reloads the file if it has changed. If the file cannot be read, that is logged once and the
    /// current keys stay valid: a missing file does not give everyone access.
    pub fn reload_if_changed(&self) {
        let stamp = fs::metadata(file::path(&self.dir));
        let stamp = stamp.ok().map(|metadata| Stamp::of(&metadata));
        if self.loaded.load().seen.stamp == stamp {
            return;
        }
        let _one = lock(&self.loading);
        let before = self.loaded.load_full();
        if before.seen.stamp == stamp {
            return;
        }
        match open(&self.dir) {
            // A file without keys does not replace keys: that would give everyone access.
            Ok((seen, file)) if !file.keys.is_empty() || before.keys.is_empty() => {
                let keys = build_keys(&file, &before.keys);
                tracing::info!(keys = keys.len(), "the keys were reloaded");
                let loaded = KeyIndex::new(seen, &file, keys);
                self.loaded.store(Arc::new(loaded));
                self.changes.send_modify(|count| *count += 1);
            }
            Ok((seen, _)) => {
                tracing::error!(
                    dir = %self.dir.display(),
                    "keys.json is missing or has no keys: the loaded keys stay in force until the \
                     server restarts"
                );
                self.keep(&before, seen);
            }
            Err(error) => {
                tracing::error!(%error, "keys.json could not be reloaded: the loaded keys stay in \
                                         force");
                let seen = KeyFileState {
                    stamp,
                    _file: File::open(file::path(&self.dir)).ok(),
                };
                self.keep(&before, seen);
            }
        }
    }

    /// Puts the keys of a cluster in force, and writes them to the folder as a copy. A file without
    /// keys does not replace keys: that would give everyone access.
    ///
    /// # Errors
    /// If the copy could not be written. The keys are in force nevertheless.
    pub fn replace(&self, file: &KeyFile) -> Result<(), KeyFileError> {
        let _one = lock(&self.loading);
        let before = self.loaded.load_full();
        if file.keys.is_empty() && !before.keys.is_empty() {
            tracing::error!("the cluster's keys are missing: the loaded keys stay in force");
            return Ok(());
        }
        let written = file::write_copy(&self.dir, file);
        let opened = File::open(file::path(&self.dir)).ok();
        let metadata = opened.as_ref().and_then(|file| file.metadata().ok());
        let seen = KeyFileState {
            stamp: metadata.map(|metadata| Stamp::of(&metadata)),
            _file: opened,
        };
        let keys = build_keys(file, &before.keys);
        self.loaded.store(Arc::new(KeyIndex::new(seen, file, keys)));
        self.changes.send_modify(|count| *count += 1);
        written
    }

    fn keep(&self, before: &KeyIndex, seen: KeyFileState) {
        let loaded = KeyIndex {
            seen,
            keys: before.keys.clone(),
            by_subject: before.by_subject.clone(),
        };
        self.loaded.store(Arc::new(loaded));
    }

    /// Returns the holder of a key.
    ///
    /// # Errors
    /// [`KeyRefusal`].
    pub fn holder(self: &Arc<Self>, text: &str) -> Result<Arc<KeyHolder>, KeyRefusal> {
        let token = KeyToken::parse(text)?;
        let secret = token.hash();
        let key = self.loaded.load().keys.get(token.id()).cloned();
        self.held(
            key.ok_or(KeyRefusal::Unknown)?,
            PresentedCredential::Secret(secret),
        )
    }

    /// Returns the holder of the key with this certificate's subject.
    ///
    /// # Errors
    /// [`KeyRefusal`].
    pub fn holder_of(
        self: &Arc<Self>,
        certificate: &ClientCertificate,
    ) -> Result<Arc<KeyHolder>, KeyRefusal> {
        let subject = certificate.subject.as_ref();
        let subject = subject.ok_or(KeyRefusal::SubjectMissing)?;
        let key = self.loaded.load().by_subject.get(subject).cloned();
        let key = key.ok_or_else(|| KeyRefusal::SubjectUnknown(subject.clone()))?;
        self.held(key, PresentedCredential::Certificate(subject.clone()))
    }

    fn held(
        self: &Arc<Self>,
        key: Arc<ActiveKey>,
        shown: PresentedCredential,
    ) -> Result<Arc<KeyHolder>, KeyRefusal> {
        let now = TimestampMicros::now();
        key.valid_until(&shown, now)?;
        let coarse = now.0 - now.0.rem_euclid(LAST_USE_RESOLUTION_MICROS);
        if key.used.load(Ordering::Relaxed) < coarse {
            key.used.store(coarse, Ordering::Relaxed);
        }
        Ok(Arc::new(KeyHolder {
            ring: Arc::clone(self),
            key,
            shown,
        }))
    }

    /// Returns each key with its name and what it read recently.
    #[must_use]
    pub fn reads(&self) -> Vec<(KeyId, Arc<str>, Arc<Reads>)> {
        let keys = self.loaded.load();
        let of = |key: &Arc<ActiveKey>| {
            (
                key.id.clone(),
                Arc::clone(&key.name),
                Arc::clone(&key.reads),
            )
        };
        keys.keys.values().map(of).collect()
    }

    /// Writes each key's time of last use to the data folder.
    ///
    /// # Errors
    /// I/O errors.
    pub fn note_uses(&self) -> io::Result<()> {
        let keys = self.loaded.load();
        let uses = keys.keys.values().map(|key| {
            let used = key.used.load(Ordering::Relaxed);
            (key.id.clone(), TimestampMicros(used))
        });
        let uses: BTreeMap<_, _> = uses.filter(|(_, used)| used.0 > 0).collect();
        if uses.is_empty() || uses == file::last_uses(&self.dir) {
            return Ok(());
        }
        file::write_last_uses(&self.dir, &uses)
    }
}

fn lock(mutex: &Mutex<()>) -> MutexGuard<'_, ()> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open(dir: &Path) -> Result<(KeyFileState, KeyFile), KeyFileError> {
    let path = file::path(dir);
    let failed = |source| KeyFileError::File {
        path: path.clone(),
        doing: "read",
        source,
    };
    match File::open(&path) {
        Ok(mut opened) => {
            let stamp = Stamp::of(&opened.metadata().map_err(failed)?);
            let keys = file::read_open(dir, &mut opened)?;
            let seen = KeyFileState {
                stamp: Some(stamp),
                _file: Some(opened),
            };
            Ok((seen, keys))
        }
        Err(error) if file::is_absent(&error) => {
            let seen = KeyFileState {
                stamp: None,
                _file: None,
            };
            Ok((seen, KeyFile::default()))
        }
        Err(error) => Err(failed(error)),
    }
}

/// Builds the keys of a file. Known keys keep their counters, and their rate limiter if its limits
/// are unchanged.
fn build_keys(
    file: &KeyFile,
    before: &HashMap<KeyId, Arc<ActiveKey>>,
) -> HashMap<KeyId, Arc<ActiveKey>> {
    let keys = file.keys.iter().map(|record| {
        let secrets = record.secrets.iter();
        let known = before.get(&record.id);
        let rate = known.map(|key| &key.rate);
        let rate = rate.filter(|rate| rate.limits() == record.limits);
        let key = ActiveKey {
            id: record.id.clone(),
            name: record.name.as_str().into(),
            roles: record.roles.clone(),
            rate: rate.map_or_else(|| Arc::new(Rate::new(record.limits)), Arc::clone),
            reads: known.map_or_else(Arc::default, |key| Arc::clone(&key.reads)),
            expires_at: record.expires_at,
            is_revoked: record.revoked_at.is_some(),
            subject: record.certificate_subject.clone(),
            secrets: secrets
                .filter_map(|secret| Some((secret.hash()?, secret.ends_at)))
                .collect(),
            used: known.map_or_else(Arc::default, |key| Arc::clone(&key.used)),
        };
        (record.id.clone(), Arc::new(key))
    });
    keys.collect()
}

/// A caller that presented a valid key.
#[derive(Debug)]
pub struct KeyHolder {
    ring: Arc<KeyStore>,
    key: Arc<ActiveKey>,
    shown: PresentedCredential,
}

impl KeyHolder {
    /// Returns the key's id.
    #[must_use]
    pub fn id(&self) -> &KeyId {
        &self.key.id
    }

    /// Returns the key's name, which is recorded as the actor.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.key.name
    }

    /// Returns the key's rate limiter.
    #[must_use]
    pub fn rate(&self) -> &Arc<Rate> {
        &self.key.rate
    }

    /// Returns what the key read recently.
    #[must_use]
    pub fn reads(&self) -> &Reads {
        &self.key.reads
    }

    /// Returns true when the key has a role in a namespace.
    #[must_use]
    pub fn may(&self, role: KeyRole, namespace: &Namespace) -> bool {
        self.key
            .roles
            .iter()
            .any(|grant| grant.covers(role, namespace))
    }

    /// Returns the namespaces named by the key's grants, each once. Grants for every namespace add
    /// none.
    #[must_use]
    pub fn namespaces(&self) -> Vec<&Namespace> {
        let grants = self.key.roles.iter();
        let named: BTreeSet<_> = grants
            .filter_map(|grant| match &grant.namespace {
                GrantScope::One(namespace) => Some(namespace),
                GrantScope::Every => None,
            })
            .collect();
        named.into_iter().collect()
    }

    /// Returns true when the key is an admin of the whole store.
    #[must_use]
    pub fn may_all(&self) -> bool {
        self.key.roles.iter().any(Grant::is_of_store)
    }

    /// Checks the current state of the key, which may have been revoked or changed since it was
    /// presented.
    fn now(&self) -> Result<Option<TimestampMicros>, KeyRefusal> {
        let key = self.ring.loaded.load().keys.get(&self.key.id).cloned();
        let key = key.ok_or(KeyRefusal::Unknown)?;
        if key.roles != self.key.roles {
            return Err(KeyRefusal::Revoked(key.name.to_string()));
        }
        key.valid_until(&self.shown, TimestampMicros::now())
    }

    /// Checks whether the key is still valid.
    ///
    /// # Errors
    /// [`KeyRefusal`] when it is not.
    pub fn check(&self) -> Result<(), KeyRefusal> {
        self.now().map(|_| ())
    }

    /// Waits until the key is no longer valid, and returns why.
    pub async fn wait_until_invalid(&self) -> KeyRefusal {
        let mut changes = self.ring.changes.subscribe();
        loop {
            let until = match self.now() {
                Ok(until) => until,
                Err(refusal) => return refusal,
            };
            let wait = until.map_or(CLOCK_CHECK_EVERY, |until| {
                let micros = until.0.saturating_sub(TimestampMicros::now().0);
                Duration::from_micros(micros.max(0).unsigned_abs()).min(CLOCK_CHECK_EVERY)
            });
            tokio::select! {
                // The sender lives as long as the key store.
                _ = changes.changed() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }
}

#[cfg(test)]
#[path = "key_store_tests.rs"]
mod tests;
