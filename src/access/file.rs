//! `keys.json`: the stored keys. Only its owner can read it (mode 0600). A change replaces the
//! whole file, and is synced before it is reported as done.
//!
//! In the folder of a cluster's node, `keys.json` is a copy of the cluster's keys, and `keys.cluster`
//! says so.
//!
//! `keys.made` in the same folder records that there were keys, in case `keys.json` is lost.
//! `keys.used` has the times of last use. A server writes it from time to time; if it is lost, only
//! these times are lost.

use std::{
    collections::{BTreeMap, HashSet},
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{
    change::KeyLimits,
    role::Grant,
    subject::CertificateSubject,
    token::{KeyId, TokenError},
};
use treering_base::disk;
use treering_domain::TimestampMicros;
use treering_proto::rfc3339;

const FILE: &str = "keys.json";
const NEW_FILE: &str = "keys.json.new";
const MADE_FILE: &str = "keys.made";
const MADE_TEXT: &str = "\
This store has had keys. While keys.json is not there `treering serve` refuses it, unless it is \
told --insecure.
";
const COPY_FILE: &str = "keys.cluster";
const COPY_TEXT: &str = "\
keys.json is a copy of the keys of a cluster, which this node replaces whenever they change.
";
/// The keys that a folder had before it got a copy.
const BEFORE_FILE: &str = "keys.json.before";
const LOCK_FILE: &str = "keys.lock";
const USED_FILE: &str = "keys.used";
const NEW_USED_FILE: &str = "keys.used.new";
/// The format version that this program writes and reads.
const FORMAT: u32 = 1;
/// Longest name of a key, in bytes.
pub(super) const NAME_BYTES_MAX: usize = 64;
/// Largest file that is read, in bytes: room for 10,000 keys.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Why keys could not be read or changed. The stored keys are then unchanged, unless only the sync
/// of the folder failed.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The system reported an error.
    #[error("{} cannot be {doing}: {source}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The operation that failed, as a participle.
        doing: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The file is not valid.
    #[error("{} is invalid: {why}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Another key has the subject.
    #[error("the key {key} already has the certificate subject {subject}")]
    SubjectTaken {
        /// The other key's name.
        key: String,
        /// The subject.
        subject: CertificateSubject,
    },
    /// The key has no secret, so it cannot be rotated.
    #[error("the key {0} has no secret: its certificate identifies it")]
    NoSecret(String),
    /// No key has this name or id.
    #[error("no key {0}")]
    NotFound(String),
    /// Another key has the name.
    #[error("another key is already named {0}")]
    NameTaken(String),
    /// The key has ended.
    #[error("the key {0} was revoked or has expired")]
    Ended(String),
    /// The folder has a copy of a cluster's keys.
    #[error("{} is a node's folder: its keys are a copy of its cluster's", .0.display())]
    IsCopy(PathBuf),
    /// The request is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The system's random number generator failed.
    #[error("the system's random number generator failed: {0}")]
    Random(io::Error),
}

/// All keys of a store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyFile {
    format: u32,
    /// In the order in which they were made; ended keys stay.
    pub keys: Vec<KeyRecord>,
}

impl Default for KeyFile {
    fn default() -> Self {
        Self {
            format: FORMAT,
            keys: Vec::new(),
        }
    }
}

impl KeyFile {
    /// Reads keys from the text of a file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let keys: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        check(&keys)?;
        Ok(keys)
    }

    /// Returns the text of the file.
    ///
    /// # Errors
    /// A time that cannot be written.
    pub fn to_text(&self) -> Result<String, String> {
        let text = serde_json::to_string_pretty(self).map_err(|error| error.to_string())?;
        Ok(text + "\n")
    }
}

/// The stored part of a key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyRecord {
    /// The public id.
    pub id: KeyId,
    /// The holder's name: the actor of the events that it appends.
    pub name: String,
    /// What it may do.
    pub roles: Vec<Grant>,
    /// When it was made.
    #[serde(with = "rfc3339_text")]
    pub made_at: TimestampMicros,
    /// Who made it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub made_by: String,
    /// It is refused from this time on.
    #[serde(
        default,
        with = "rfc3339_text::maybe",
        skip_serializing_if = "Option::is_none"
    )]
    pub expires_at: Option<TimestampMicros>,
    /// When it was revoked. It is refused from then on.
    #[serde(
        default,
        with = "rfc3339_text::maybe",
        skip_serializing_if = "Option::is_none"
    )]
    pub revoked_at: Option<TimestampMicros>,
    /// Who revoked it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub revoked_by: String,
    /// A client certificate with this subject identifies the key, which then has no secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_subject: Option<CertificateSubject>,
    /// The last is the newest; others end after their grace period.
    pub secrets: Vec<SecretRecord>,
    /// Rate limits.
    #[serde(default, skip_serializing_if = "KeyLimits::is_none")]
    pub limits: KeyLimits,
}

/// The stored part of a secret.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretRecord {
    /// BLAKE3 of the whole key, in hex.
    pub blake3: String,
    /// When it was made.
    #[serde(with = "rfc3339_text")]
    pub made_at: TimestampMicros,
    /// Who made it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub made_by: String,
    /// It is refused from this time on; `None`: it is valid as long as its key.
    #[serde(
        default,
        with = "rfc3339_text::maybe",
        skip_serializing_if = "Option::is_none"
    )]
    pub ends_at: Option<TimestampMicros>,
}

impl SecretRecord {
    pub(super) fn hash(&self) -> Option<blake3::Hash> {
        blake3::Hash::from_hex(&self.blake3).ok()
    }
}

impl KeyRecord {
    /// Returns true when the key is refused, whatever the secret.
    #[must_use]
    pub fn has_ended(&self, now: TimestampMicros) -> bool {
        self.revoked_at.is_some() || self.expires_at.is_some_and(|end| end <= now)
    }
}

/// Returns the path of the key file of a data folder.
pub(super) fn path(dir: &Path) -> PathBuf {
    dir.join(FILE)
}

/// Reads the keys of a data folder. Without a file there are none.
///
/// # Errors
/// [`KeyFileError::File`], [`KeyFileError::Damaged`].
pub fn read(dir: &Path) -> Result<KeyFile, KeyFileError> {
    match File::open(path(dir)) {
        Ok(mut file) => read_open(dir, &mut file),
        Err(source) if is_absent(&source) => Ok(KeyFile::default()),
        Err(source) => Err(failed(path(dir), "read")(source)),
    }
}

/// Returns true when the error means that the file does not exist. This includes a data folder that
/// is not a folder, which is reported elsewhere.
pub(super) fn is_absent(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(error.kind(), Kind::NotFound | Kind::NotADirectory)
}

/// Reads the keys from the opened file.
pub(super) fn read_open(dir: &Path, file: &mut File) -> Result<KeyFile, KeyFileError> {
    let path = path(dir);
    let damaged = |why: String| KeyFileError::Damaged {
        path: path.clone(),
        why,
    };
    disk::check_secret(&path, file).map_err(failed(path.clone(), "used"))?;
    let mut text = String::new();
    let mut bounded = io::Read::take(file, FILE_BYTES_MAX);
    io::Read::read_to_string(&mut bounded, &mut text).map_err(failed(path.clone(), "read"))?;
    KeyFile::parse(&text).map_err(damaged)
}

/// Checks for mistakes that people make when they edit the file.
fn check(file: &KeyFile) -> Result<(), String> {
    if file.format != FORMAT {
        let format = file.format;
        return Err(format!(
            "it has format {format}; this program supports {FORMAT}"
        ));
    }
    let mut ids = HashSet::new();
    for key in &file.keys {
        let id = &key.id;
        if !ids.insert(id) {
            return Err(format!("the key {id} occurs twice"));
        }
        check_name(&key.name).map_err(|why| format!("key {id}: {why}"))?;
        if key.secrets.iter().any(|secret| secret.hash().is_none()) {
            return Err(format!("key {id}: invalid BLAKE3 hash"));
        }
    }
    Ok(())
}

/// Checks a name. It is the actor of events, so it is short and has no spaces, slashes or control
/// characters.
pub(super) fn check_name(name: &str) -> Result<(), String> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '@' | '+');
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(legal) {
        return Err(format!(
            "a name has 1 to {NAME_BYTES_MAX} characters of a-z A-Z 0-9 . _ - @ +"
        ));
    }
    Ok(())
}

/// Changes the keys of a data folder, one command at a time. Creates the folder if it is missing.
///
/// # Errors
/// That of the change; [`KeyFileError::IsCopy`], [`KeyFileError::File`], [`KeyFileError::Damaged`].
pub fn change<T>(
    dir: &Path,
    change: impl FnOnce(&mut KeyFile) -> Result<T, KeyFileError>,
) -> Result<T, KeyFileError> {
    let _held = lock(dir)?;
    if is_copy(dir) {
        return Err(KeyFileError::IsCopy(dir.to_owned()));
    }
    let mut keys = read(dir)?;
    let changed = change(&mut keys)?;
    note_made(dir).map_err(failed(dir.join(MADE_FILE), "written"))?;
    write(dir, &keys)?;
    Ok(changed)
}

/// Keeps other processes from changing the keys until the returned file is dropped.
fn lock(dir: &Path) -> Result<File, KeyFileError> {
    disk::make_folder(dir).map_err(failed(dir.to_owned(), "made"))?;
    let lock = dir.join(LOCK_FILE);
    let held = disk::file_options().open(&lock);
    let held = held.map_err(failed(lock.clone(), "opened"))?;
    held.lock().map_err(failed(lock, "locked"))?;
    Ok(held)
}

/// Returns true when the keys of a folder are a copy of a cluster's.
#[must_use]
pub fn is_copy(dir: &Path) -> bool {
    let copy = fs::symlink_metadata(dir.join(COPY_FILE));
    copy.map_or_else(|error| !is_absent(&error), |_| true)
}

/// Replaces the keys of a folder with a copy of a cluster's. Other keys that the folder had stay in
/// `keys.json.before`.
pub(super) fn write_copy(dir: &Path, keys: &KeyFile) -> Result<(), KeyFileError> {
    let _held = lock(dir)?;
    if !is_copy(dir) {
        let own = read(dir)?;
        if !own.keys.is_empty() && own != *keys {
            let kept = dir.join(BEFORE_FILE);
            disk::rename(&path(dir), &kept).map_err(failed(kept.clone(), "written"))?;
            tracing::warn!(
                kept = %kept.display(),
                "the cluster has other keys than this folder had: the cluster's are in force"
            );
        }
        let copy = dir.join(COPY_FILE);
        disk::write(&copy, COPY_TEXT.as_bytes()).map_err(failed(copy, "written"))?;
    }
    note_made(dir).map_err(failed(dir.join(MADE_FILE), "written"))?;
    write(dir, keys)
}

/// Returns true when a store has ever had keys.
#[must_use]
pub fn had_keys(dir: &Path) -> bool {
    let made = fs::symlink_metadata(dir.join(MADE_FILE));
    made.map_or_else(|error| !is_absent(&error), |_| true)
}

/// Records that a store has had keys.
///
/// # Errors
/// The system's error.
pub fn note_made(dir: &Path) -> io::Result<()> {
    if had_keys(dir) {
        return Ok(());
    }
    disk::write(&dir.join(MADE_FILE), MADE_TEXT.as_bytes())?;
    disk::sync_folder(dir)
}

fn write(dir: &Path, keys: &KeyFile) -> Result<(), KeyFileError> {
    let new = dir.join(NEW_FILE);
    let text = keys.to_text().map_err(|why| KeyFileError::Damaged {
        path: path(dir),
        why,
    })?;
    // A leftover file may have other permissions.
    disk::remove(&new).map_err(failed(new.clone(), "removed"))?;
    disk::write(&new, text.as_bytes()).map_err(failed(new.clone(), "written"))?;
    disk::rename(&new, &path(dir)).map_err(failed(path(dir), "replaced"))
}

fn failed(path: PathBuf, doing: &'static str) -> impl FnOnce(io::Error) -> KeyFileError {
    move |source| KeyFileError::File {
        path,
        doing,
        source,
    }
}

/// Returns the recorded times of last use.
#[must_use]
pub fn last_uses(dir: &Path) -> BTreeMap<KeyId, TimestampMicros> {
    let text = fs::read_to_string(dir.join(USED_FILE)).unwrap_or_default();
    let times: BTreeMap<String, String> = serde_json::from_str(&text).unwrap_or_default();
    let read = |(id, time): (String, String)| {
        let id: Result<KeyId, TokenError> = id.try_into();
        Some((id.ok()?, rfc3339::read(&time)?))
    };
    times.into_iter().filter_map(read).collect()
}

/// Writes the times of last use. Not synced: they may be lost.
pub(super) fn write_last_uses(
    dir: &Path,
    uses: &BTreeMap<KeyId, TimestampMicros>,
) -> io::Result<()> {
    let texts = uses.iter().filter_map(|(id, time)| {
        let time = rfc3339::text(*time)?;
        Some((id.as_str(), time))
    });
    let texts: BTreeMap<_, _> = texts.collect();
    let text = serde_json::to_vec_pretty(&texts).map_err(io::Error::other)?;
    let new = dir.join(NEW_USED_FILE);
    let mut file = disk::file_options().truncate(true).open(&new)?;
    io::Write::write_all(&mut file, &text)?;
    fs::rename(&new, dir.join(USED_FILE))
}

/// Times in RFC 3339, for people.
mod rfc3339_text {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    use treering_domain::TimestampMicros;
    use treering_proto::rfc3339::{read, text};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives references")]
    pub(crate) fn serialize<S: Serializer>(
        time: &TimestampMicros,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        text(*time).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<TimestampMicros, D::Error> {
        let text = String::deserialize(from)?;
        read(&text).ok_or_else(|| D::Error::custom("a time is not in RFC 3339 format"))
    }

    pub(super) mod maybe {
        use super::{Deserialize, Deserializer, Error, Serialize, Serializer, TimestampMicros};

        #[expect(clippy::ref_option, reason = "serde gives references")]
        pub(crate) fn serialize<S: Serializer>(
            time: &Option<TimestampMicros>,
            to: S,
        ) -> Result<S::Ok, S::Error> {
            time.and_then(super::text).serialize(to)
        }

        pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
            from: D,
        ) -> Result<Option<TimestampMicros>, D::Error> {
            let Some(text) = Option::<String>::deserialize(from)? else {
                return Ok(None);
            };
            let time = super::read(&text);
            time.map(Some)
                .ok_or_else(|| D::Error::custom("a time is not in RFC 3339 format"))
        }
    }
}
