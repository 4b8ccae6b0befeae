//! Where a backup is kept: a folder, or a bucket of an object store.

use std::{error::Error, path::Path, sync::Arc};

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
        let prefix = self.path(below);
        let listed = self.objects.list(Some(&prefix));
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
