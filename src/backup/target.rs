//! Where a backup is kept: a folder, or a bucket of an object store.

use std::{
    error::Error,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::UNIX_EPOCH,
};

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::{
    ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, local::LocalFileSystem,
    path::Path as ObjectPath,
};

use super::error::BackupError;
use crate::{
    disk,
    domain::{Cause, TimestampMicros},
};

/// A place for backups.
#[derive(Clone, Debug)]
pub struct BackupTarget {
    objects: Arc<dyn ObjectStore>,
    below: ObjectPath,
    address: String,
    /// None: a bucket.
    folder: Option<PathBuf>,
}

/// An object that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    /// Below the target.
    pub name: String,
    pub bytes: u64,
    pub modified: TimestampMicros,
}

/// Whether an object may be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Put {
    /// It must not: who comes second is told.
    Once,
    /// Its name says what is in it.
    Any,
}

/// What became of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Became {
    Written,
    /// It was there.
    WasThere,
}

impl BackupTarget {
    /// A folder, which is made, or a bucket: `s3://BUCKET/PATH`, `gs://BUCKET/PATH`,
    /// `az://CONTAINER/PATH`, with the usual variables of the environment.
    ///
    /// # Errors
    /// [`BackupError::Address`].
    pub fn to_write(address: &str) -> Result<Self, BackupError> {
        match folder(address) {
            Some(path) => {
                let made = disk::make_folder(path);
                made.map_err(|error| wrong(address, error.to_string()))?;
                Self::of_folder(path)
            }
            None => Self::of_bucket(address),
        }
    }

    /// The same of one that is there.
    ///
    /// # Errors
    /// [`BackupError::Address`], [`BackupError::NoBackup`].
    pub fn to_read(address: &str) -> Result<Self, BackupError> {
        match folder(address) {
            Some(path) if path.is_dir() => Self::of_folder(path),
            Some(path) => Err(BackupError::NoBackup {
                address: path.display().to_string(),
            }),
            None => Self::of_bucket(address),
        }
    }

    fn of_folder(path: &Path) -> Result<Self, BackupError> {
        let address = path.display().to_string();
        let absolute = path.canonicalize();
        let absolute = absolute.map_err(|error| wrong(&address, error.to_string()))?;
        let files = LocalFileSystem::new_with_prefix(&absolute)
            .map_err(|error| wrong(&address, error.to_string()))?;
        Ok(Self {
            objects: Arc::new(files.with_fsync(true)),
            below: ObjectPath::default(),
            address: absolute.display().to_string(),
            folder: Some(absolute),
        })
    }

    #[cfg(feature = "cloud")]
    fn of_bucket(address: &str) -> Result<Self, BackupError> {
        let url = url::Url::parse(address).map_err(|error| wrong(address, error.to_string()))?;
        super::cloud::ready();
        // Builders take what they know; the environment is where operators keep keys.
        let variables = std::env::vars().filter_map(|(name, value)| {
            let name = name.to_ascii_lowercase();
            let is_known = ["aws_", "google_", "azure_"].iter();
            let mut is_known = is_known.map(|prefix| name.starts_with(prefix));
            is_known.any(|is| is).then_some((name, value))
        });
        let (objects, below) = object_store::parse_url_opts(&url, variables)
            .map_err(|error| wrong(address, error.to_string()))?;
        Ok(Self {
            objects: Arc::from(objects),
            below,
            address: without_secrets(&url),
            folder: None,
        })
    }

    #[cfg(not(feature = "cloud"))]
    fn of_bucket(address: &str) -> Result<Self, BackupError> {
        let what = "this treering was built without the feature `cloud`: it knows folders only";
        Err(wrong(address, what.to_owned()))
    }

    /// Its address, without what gives access to it.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The address of an object.
    pub(super) fn address_of(&self, name: &str) -> String {
        format!("{}/{name}", self.address.trim_end_matches('/'))
    }

    fn path(&self, name: &str) -> ObjectPath {
        self.below
            .parts()
            .chain(ObjectPath::from(name).parts())
            .collect()
    }

    fn failed(
        &self,
        doing: &'static str,
        name: &str,
        error: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> BackupError {
        BackupError::Target {
            doing,
            object: self.address_of(name),
            source: Cause::of(error),
        }
    }

    pub(super) async fn put(
        &self,
        name: &str,
        bytes: Bytes,
        put: Put,
    ) -> Result<Became, BackupError> {
        let options = match put {
            Put::Once => PutOptions::from(PutMode::Create),
            Put::Any => PutOptions::from(PutMode::Overwrite),
        };
        let path = self.path(name);
        match self.objects.put_opts(&path, bytes.into(), options).await {
            Ok(_) => Ok(Became::Written),
            Err(object_store::Error::AlreadyExists { .. }) => Ok(Became::WasThere),
            Err(object_store::Error::Precondition { .. }) if put == Put::Once => {
                Ok(Became::WasThere)
            }
            Err(error) => Err(self.failed("writing", name, error)),
        }
    }

    /// An object; none: it is not there.
    pub(super) async fn find(&self, name: &str) -> Result<Option<Bytes>, BackupError> {
        let read = async { self.objects.get(&self.path(name)).await?.bytes().await };
        match read.await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failed("reading", name, error)),
        }
    }

    pub(super) async fn get(&self, name: &str) -> Result<Bytes, BackupError> {
        let found = self.find(name).await?;
        found.ok_or_else(|| BackupError::Missing {
            object: self.address_of(name),
        })
    }

    /// Removes an object; fine when it is not there.
    pub(super) async fn remove(&self, name: &str) -> Result<(), BackupError> {
        match self.objects.delete(&self.path(name)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed("removing", name, error)),
        }
    }

    /// Every object below a name, in the order of their names.
    pub(super) async fn list(&self, below: &str) -> Result<Vec<Listed>, BackupError> {
        self.list_after(below, None).await
    }

    /// The same of those whose name comes after another one.
    pub(super) async fn list_after(
        &self,
        below: &str,
        after: Option<&str>,
    ) -> Result<Vec<Listed>, BackupError> {
        let prefix = self.path(below);
        let listed = match after {
            Some(after) => {
                let after = self.path(after);
                self.objects.list_with_offset(Some(&prefix), &after)
            }
            None => self.objects.list(Some(&prefix)),
        };
        let listed: Vec<ObjectMeta> = listed
            .try_collect()
            .await
            .map_err(|error| self.failed("listing", below, error))?;
        let mut found: Vec<Listed> = listed
            .into_iter()
            .filter_map(|meta| {
                let parts = meta.location.prefix_match(&prefix)?;
                let rest: Vec<String> = parts.map(|part| part.as_ref().to_owned()).collect();
                Some(Listed {
                    name: format!("{below}/{}", rest.join("/")),
                    bytes: meta.size,
                    modified: TimestampMicros(meta.last_modified.timestamp_micros()),
                })
            })
            .collect();
        found.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(found)
    }

    /// Files below a name that were begun and never got their name: who wrote them died. A
    /// bucket has none, and no list shows them.
    pub(super) fn unfinished(&self, below: &str) -> Result<Vec<Listed>, BackupError> {
        let Some(folder) = &self.folder else {
            return Ok(Vec::new());
        };
        let failed = |error: io::Error| self.failed("listing", below, error);
        let entries = match fs::read_dir(folder.join(below)) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if !is_unfinished(&name) {
                continue;
            }
            // It may just have got its name.
            let Ok(about) = entry.metadata() else {
                continue;
            };
            let modified = about.modified().map_err(failed)?;
            let since = modified.duration_since(UNIX_EPOCH).unwrap_or_default();
            found.push(Listed {
                name: format!("{below}/{name}"),
                bytes: about.len(),
                modified: TimestampMicros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX)),
            });
        }
        Ok(found)
    }

    /// Removes [`unfinished`](Self::unfinished) files that were written before a time.
    pub(super) fn remove_unfinished(
        &self,
        below: &str,
        before: TimestampMicros,
    ) -> Result<(), BackupError> {
        for file in self.unfinished(below)? {
            let path = self.folder.as_ref().map(|folder| folder.join(&file.name));
            let Some(path) = path.filter(|_| file.modified < before) else {
                continue;
            };
            disk::remove(&path).map_err(|error| self.failed("removing", &file.name, error))?;
        }
        Ok(())
    }

    /// The folders in the target.
    pub(super) async fn folders(&self) -> Result<Vec<String>, BackupError> {
        let listed = self.objects.list_with_delimiter(Some(&self.below)).await;
        let listed = listed.map_err(|error| self.failed("listing", "", error))?;
        let mut names: Vec<String> = listed
            .common_prefixes
            .iter()
            .filter_map(|path| path.filename().map(str::to_owned))
            .collect();
        names.sort();
        Ok(names)
    }
}

/// True for the name of a file that is written before it gets its name, which
/// `LocalFileSystem` ends with `#` and a number.
fn is_unfinished(name: &str) -> bool {
    let number = name.split_once('#').map(|(_, number)| number);
    number.is_some_and(|number| {
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// The path of an address that names a folder.
fn folder(address: &str) -> Option<&Path> {
    match address.split_once("://") {
        Some(("file", path)) => Some(Path::new(path)),
        Some(_) => None,
        None => Some(Path::new(address)),
    }
}

fn wrong(address: &str, what: String) -> BackupError {
    BackupError::Address {
        address: address.to_owned(),
        what,
    }
}

/// What of an address may be shown: no user, no password, no query.
#[cfg(feature = "cloud")]
fn without_secrets(url: &url::Url) -> String {
    let mut shown = url.clone();
    shown.set_query(None);
    shown.set_fragment(None);
    // Of an address that cannot have them.
    let _ = shown.set_password(None);
    if shown.scheme() != "abfs" && shown.scheme() != "abfss" {
        let _ = shown.set_username("");
    }
    shown.as_str().trim_end_matches('/').to_owned()
}
