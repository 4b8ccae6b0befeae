//! The keys of a server that runs: who holds one, and when it ends.
//!
//! The file is looked at before each call (one `stat`, about a microsecond), and once in a
//! while for calls that go on. So a key that was made is good at once, and one that was
//! revoked is refused at once.

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
    role::{Grant, GrantReach, KeyRole},
    subject::CertificateSubject,
    token::{KeyId, Token, TokenError},
};
use crate::domain::{Namespace, TimestampMicros};

/// A use is noted to so many microseconds.
const USED_TO_MICROS: i64 = 60 * 1_000_000;
/// The longest that the end of a key is waited for without a look: clocks are put right.
const END_LOOK: Duration = Duration::from_secs(60);

/// Why a caller is not let in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyRefusal {
    /// No key came.
    #[error("a key is needed, and none came: send `authorization: Bearer tr_live_…`")]
    Missing,
    /// What came is no key.
    #[error(transparent)]
    Malformed(#[from] TokenError),
    /// No key has this id and secret.
    #[error("this key is not known here")]
    Unknown,
    /// No key has the subject of the client's certificate, and no other key came.
    #[error(
        "no key came, and none stands for the client's certificate, whose subject is {0}: send a \
         key, or make one with `treering keys create NAME --certificate-subject '{0}'`"
    )]
    SubjectUnknown(CertificateSubject),
    /// The client's certificate names nobody, and no key came.
    #[error("no key came, and the client's certificate has no subject that a key could stand for")]
    SubjectMissing,
    /// It was revoked.
    #[error("the key {0} was revoked")]
    Revoked(String),
    /// It has expired, or its secret was replaced and the grace is over.
    #[error("the key {0} has expired")]
    Expired(String),
}

/// A key as it is in use.
#[derive(Debug)]
struct RingKey {
    id: KeyId,
    name: Arc<str>,
    roles: Vec<Grant>,
    rate: Arc<Rate>,
    expires_at: Option<TimestampMicros>,
    is_revoked: bool,
    subject: Option<CertificateSubject>,
    secrets: Vec<(blake3::Hash, Option<TimestampMicros>)>,
    used: Arc<AtomicI64>,
}

/// The certificate that a client has shown, and that was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// Whom it names; none: nobody.
    pub subject: Option<CertificateSubject>,
}

/// What somebody has shown.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Shown {
    /// The hash of a key.
    Secret(blake3::Hash),
    /// A certificate.
    Certificate(CertificateSubject),
}

impl RingKey {
    /// Until when what was shown is good; none: for ever.
    fn good_until(
        &self,
        shown: &Shown,
        now: TimestampMicros,
    ) -> Result<Option<TimestampMicros>, KeyRefusal> {
        let ends_at = match shown {
            Shown::Secret(secret) => {
                // Equality of hashes takes the same time wherever they differ.
                let known = self.secrets.iter().find(|(hash, _)| hash == secret);
                known.ok_or(KeyRefusal::Unknown)?.1
            }
            Shown::Certificate(subject) if self.subject.as_ref() == Some(subject) => None,
            Shown::Certificate(_) => return Err(KeyRefusal::Unknown),
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

/// What a file was when it was looked at.
#[derive(Debug)]
struct Seen {
    stamp: Option<Stamp>,
    /// Kept open, so that no other file gets its number.
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
        {
            use std::os::unix::fs::MetadataExt;
            Self {
                file: (metadata.dev(), metadata.ino()),
                bytes: metadata.len(),
                changed: (metadata.mtime(), metadata.mtime_nsec()),
            }
        }
        #[cfg(not(unix))]
        {
            let since = metadata
                .modified()
                .ok()
                .and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok())
                .unwrap_or_default();
            Self {
                file: (0, 0),
                bytes: metadata.len(),
                changed: (since.as_secs().cast_signed(), since.subsec_nanos().into()),
            }
        }
    }
}

#[derive(Debug)]
struct Loaded {
    seen: Seen,
    keys: HashMap<KeyId, Arc<RingKey>>,
    by_subject: HashMap<CertificateSubject, Arc<RingKey>>,
}

impl Loaded {
    /// The file's keys. `keys` has one for each of them.
    fn new(seen: Seen, file: &KeyFile, keys: HashMap<KeyId, Arc<RingKey>>) -> Self {
        let now = TimestampMicros::now();
        // Of those with one subject the living one comes last, and stays.
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

/// The keys of a data folder, as they are now.
#[derive(Debug)]
pub struct KeyRing {
    dir: PathBuf,
    loaded: ArcSwap<Loaded>,
    /// One reads the file at a time.
    loading: Mutex<()>,
    changes: watch::Sender<u64>,
}

impl KeyRing {
    /// Reads the keys of a data folder.
    ///
    /// # Errors
    /// [`KeyFileError::File`], [`KeyFileError::Damaged`]: who cannot read the keys must not
    /// serve as if there were none.
    pub fn open(dir: &Path) -> Result<Arc<Self>, KeyFileError> {
        let (seen, file) = open(dir)?;
        let mut keys = ring_keys(&file, &HashMap::new());
        for (id, time) in file::last_uses(dir) {
            if let Some(key) = keys.get_mut(&id) {
                key.used.store(time.0, Ordering::Relaxed);
            }
        }
        Ok(Arc::new(Self {
            dir: dir.to_owned(),
            loaded: ArcSwap::from_pointee(Loaded::new(seen, &file, keys)),
            loading: Mutex::new(()),
            changes: watch::Sender::new(0),
        }))
    }

    /// The data folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// How often the keys were read again.
    #[must_use]
    pub fn changes(&self) -> u64 {
        *self.changes.borrow()
    }

    /// True while no key was ever made: nobody is asked for one.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.loaded.load().keys.is_empty()
    }

    /// True when somebody could use a key now.
    #[must_use]
    pub fn has_living(&self) -> bool {
        let now = TimestampMicros::now();
        let keys = self.loaded.load();
        let lives = |key: &Arc<RingKey>| {
            let secrets = key.secrets.iter().map(|(secret, _)| Shown::Secret(*secret));
            let subject = key.subject.iter().cloned().map(Shown::Certificate);
            let mut shown = secrets.chain(subject);
            shown.any(|shown| key.good_until(&shown, now).is_ok())
        };
        keys.keys.values().any(lives)
    }

    /// True when a certificate stands for a key.
    #[must_use]
    pub fn has_subjects(&self) -> bool {
        !self.loaded.load().by_subject.is_empty()
    }

    /// Reads the file again if it is another one than it was. What cannot be read is said,
    /// once, and the keys stay as they were: a file that is gone opens no store.
    pub fn look(&self) {
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
            // An open server may get keys; one with keys is never opened by a file.
            Ok((seen, file)) if !file.keys.is_empty() || before.keys.is_empty() => {
                let keys = ring_keys(&file, &before.keys);
                tracing::info!(keys = keys.len(), "the keys were read again");
                let loaded = Loaded::new(seen, &file, keys);
                self.loaded.store(Arc::new(loaded));
                self.changes.send_modify(|count| *count += 1);
            }
            Ok((seen, _)) => {
                tracing::error!(
                    dir = %self.dir.display(),
                    "keys.json is gone, or has no keys: those that were in it stay in force until \
                     the server is started again"
                );
                self.keep(&before, seen);
            }
            Err(error) => {
                tracing::error!(%error, "the keys stay as they were");
                let seen = Seen {
                    stamp,
                    _file: File::open(file::path(&self.dir)).ok(),
                };
                self.keep(&before, seen);
            }
        }
    }

    fn keep(&self, before: &Loaded, seen: Seen) {
        let loaded = Loaded {
            seen,
            keys: before.keys.clone(),
            by_subject: before.by_subject.clone(),
        };
        self.loaded.store(Arc::new(loaded));
    }

    /// Who sends this.
    ///
    /// # Errors
    /// [`KeyRefusal`].
    pub fn holder(self: &Arc<Self>, text: &str) -> Result<Arc<Holder>, KeyRefusal> {
        let token = Token::parse(text)?;
        let secret = token.hash();
        let key = self.loaded.load().keys.get(token.id()).cloned();
        self.held(key.ok_or(KeyRefusal::Unknown)?, Shown::Secret(secret))
    }

    /// Who shows this certificate, and sends no key.
    ///
    /// # Errors
    /// [`KeyRefusal`].
    pub fn holder_of(
        self: &Arc<Self>,
        certificate: &ClientCertificate,
    ) -> Result<Arc<Holder>, KeyRefusal> {
        let subject = certificate.subject.as_ref();
        let subject = subject.ok_or(KeyRefusal::SubjectMissing)?;
        let key = self.loaded.load().by_subject.get(subject).cloned();
        let key = key.ok_or_else(|| KeyRefusal::SubjectUnknown(subject.clone()))?;
        self.held(key, Shown::Certificate(subject.clone()))
    }

    fn held(self: &Arc<Self>, key: Arc<RingKey>, shown: Shown) -> Result<Arc<Holder>, KeyRefusal> {
        let now = TimestampMicros::now();
        key.good_until(&shown, now)?;
        let coarse = now.0 - now.0.rem_euclid(USED_TO_MICROS);
        if key.used.load(Ordering::Relaxed) < coarse {
            key.used.store(coarse, Ordering::Relaxed);
        }
        Ok(Arc::new(Holder {
            ring: Arc::clone(self),
            key,
            shown,
        }))
    }

    /// Writes down when keys were used last.
    ///
    /// # Errors
    /// What the system says.
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

fn open(dir: &Path) -> Result<(Seen, KeyFile), KeyFileError> {
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
            let seen = Seen {
                stamp: Some(stamp),
                _file: Some(opened),
            };
            Ok((seen, keys))
        }
        Err(error) if file::is_absent(&error) => {
            let seen = Seen {
                stamp: None,
                _file: None,
            };
            Ok((seen, KeyFile::default()))
        }
        Err(error) => Err(failed(error)),
    }
}

/// The keys of a file. What those of before have used goes on to count.
fn ring_keys(
    file: &KeyFile,
    before: &HashMap<KeyId, Arc<RingKey>>,
) -> HashMap<KeyId, Arc<RingKey>> {
    let keys = file.keys.iter().map(|record| {
        let secrets = record.secrets.iter();
        let known = before.get(&record.id);
        let rate = known.map(|key| &key.rate);
        let rate = rate.filter(|rate| rate.limits() == record.limits);
        let key = RingKey {
            id: record.id.clone(),
            name: record.name.as_str().into(),
            roles: record.roles.clone(),
            rate: rate.map_or_else(|| Arc::new(Rate::new(record.limits)), Arc::clone),
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

/// Somebody who has shown a key.
#[derive(Debug)]
pub struct Holder {
    ring: Arc<KeyRing>,
    key: Arc<RingKey>,
    shown: Shown,
}

impl Holder {
    /// The key's public part.
    #[must_use]
    pub fn id(&self) -> &KeyId {
        &self.key.id
    }

    /// The key's name: who acts.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.key.name
    }

    /// What the key has used lately.
    #[must_use]
    pub fn rate(&self) -> &Arc<Rate> {
        &self.key.rate
    }

    /// True when the key has a role in a namespace.
    #[must_use]
    pub fn may(&self, role: KeyRole, namespace: &Namespace) -> bool {
        self.key
            .roles
            .iter()
            .any(|grant| grant.covers(role, namespace))
    }

    /// The namespaces that the key's grants name, each once; of one for every namespace none.
    #[must_use]
    pub fn namespaces(&self) -> Vec<&Namespace> {
        let grants = self.key.roles.iter();
        let named: BTreeSet<_> = grants
            .filter_map(|grant| match &grant.namespace {
                GrantReach::One(namespace) => Some(namespace),
                GrantReach::Every => None,
            })
            .collect();
        named.into_iter().collect()
    }

    /// True when the key is an admin's, of the whole store.
    #[must_use]
    pub fn may_all(&self) -> bool {
        self.key.roles.iter().any(Grant::is_of_store)
    }

    /// What the key says of itself now: it may have been revoked or changed since it was
    /// shown.
    fn now(&self) -> Result<Option<TimestampMicros>, KeyRefusal> {
        let key = self.ring.loaded.load().keys.get(&self.key.id).cloned();
        let key = key.ok_or(KeyRefusal::Unknown)?;
        if key.roles != self.key.roles {
            return Err(KeyRefusal::Revoked(key.name.to_string()));
        }
        key.good_until(&self.shown, TimestampMicros::now())
    }

    /// Whether the key is still good.
    ///
    /// # Errors
    /// [`KeyRefusal`] when it is not.
    pub fn check(&self) -> Result<(), KeyRefusal> {
        self.now().map(|_| ())
    }

    /// Waits until the key is good no more, and says why.
    pub async fn ended(&self) -> KeyRefusal {
        let mut changes = self.ring.changes.subscribe();
        loop {
            let until = match self.now() {
                Ok(until) => until,
                Err(refusal) => return refusal,
            };
            let wait = until.map_or(END_LOOK, |until| {
                let micros = until.0.saturating_sub(TimestampMicros::now().0);
                Duration::from_micros(micros.max(0).unsigned_abs()).min(END_LOOK)
            });
            tokio::select! {
                // The sender lives as long as the ring.
                _ = changes.changed() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
