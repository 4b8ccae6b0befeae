//! A folder or a bucket, as a flat set of named objects.

use std::{
    error::Error,
    fs, io,
    ops::Range,
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

use super::error::ObjectError;
use treering_base::disk;
use treering_domain::{Cause, TimestampMicros};

/// A folder or a bucket.
#[derive(Clone, Debug)]
pub struct ObjectStorage {
    objects: Arc<dyn ObjectStore>,
    below: ObjectPath,
    address: String,
    /// The folder; `None` for a bucket.
    folder: Option<PathBuf>,
}

/// An object in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectEntry {
    /// Its name, relative to the storage.
    pub name: String,
    /// Its size, in bytes.
    pub bytes: u64,
    /// When it was written.
    pub modified: TimestampMicros,
}

/// The behaviour of a put if the object exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteMode {
    /// It must not exist: the second writer gets [`PutOutcome::WasThere`].
    Once,
    /// It may exist, and is replaced.
    Any,
}

/// The outcome of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// It was written.
    Written,
    /// The object existed.
    WasThere,
}

impl ObjectStorage {
    /// Opens storage for writing: a folder, which is created, or a bucket: `s3://BUCKET/PATH`,
    /// `gs://BUCKET/PATH`, `az://CONTAINER/PATH`, with the usual environment variables.
    ///
    /// # Errors
    /// [`ObjectError::Address`].
    pub fn to_write(address: &str) -> Result<Self, ObjectError> {
        match folder(address) {
            Some(path) => {
                let made = disk::make_folder(path);
                made.map_err(|error| wrong(address, error.to_string()))?;
                Self::of_folder(path)
            }
            None => Self::of_bucket(address),
        }
    }

    /// Opens existing storage for reading.
    ///
    /// # Errors
    /// [`ObjectError::Address`], [`ObjectError::NoFolder`].
    pub fn to_read(address: &str) -> Result<Self, ObjectError> {
        match folder(address) {
            Some(path) if path.is_dir() => Self::of_folder(path),
            Some(path) => Err(ObjectError::NoFolder {
                path: path.to_owned(),
            }),
            None => Self::of_bucket(address),
        }
    }

    fn of_folder(path: &Path) -> Result<Self, ObjectError> {
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
    fn of_bucket(address: &str) -> Result<Self, ObjectError> {
        let url = url::Url::parse(address).map_err(|error| wrong(address, error.to_string()))?;
        super::cloud::ready();
        // Operators keep keys in the environment. Variables that are not options of the object
        // store are ignored.
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
    fn of_bucket(address: &str) -> Result<Self, ObjectError> {
        let what = "this treering was built without the feature `cloud`: use a folder";
        Err(wrong(address, what.to_owned()))
    }

    /// Returns its address, without credentials.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the address of an object.
    pub fn address_of(&self, name: &str) -> String {
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
    ) -> ObjectError {
        ObjectError::Storage {
            doing,
            object: self.address_of(name),
            source: Cause::of(error),
        }
    }

    /// Puts an object.
    ///
    /// # Errors
    /// [`ObjectError::Storage`].
    pub async fn put(
        &self,
        name: &str,
        bytes: Bytes,
        put: WriteMode,
    ) -> Result<PutOutcome, ObjectError> {
        let options = match put {
            WriteMode::Once => PutOptions::from(PutMode::Create),
            WriteMode::Any => PutOptions::from(PutMode::Overwrite),
        };
        let path = self.path(name);
        match self.objects.put_opts(&path, bytes.into(), options).await {
            Ok(_) => Ok(PutOutcome::Written),
            Err(object_store::Error::AlreadyExists { .. }) => Ok(PutOutcome::WasThere),
            Err(object_store::Error::Precondition { .. }) if put == WriteMode::Once => {
                Ok(PutOutcome::WasThere)
            }
            Err(error) => Err(self.failed("writing", name, error)),
        }
    }

    /// Returns an object; `None` if it does not exist.
    ///
    /// # Errors
    /// [`ObjectError::Storage`].
    pub async fn find(&self, name: &str) -> Result<Option<Bytes>, ObjectError> {
        let read = async { self.objects.get(&self.path(name)).await?.bytes().await };
        match read.await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failed("reading", name, error)),
        }
    }

    /// Returns a part of an object; `None` if the object does not exist.
    ///
    /// # Errors
    /// [`ObjectError::Storage`], also if the object is shorter.
    pub async fn find_range(
        &self,
        name: &str,
        range: Range<u64>,
    ) -> Result<Option<Bytes>, ObjectError> {
        match self.objects.get_range(&self.path(name), range).await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failed("reading", name, error)),
        }
    }

    /// Returns an object.
    ///
    /// # Errors
    /// [`ObjectError::Missing`], [`ObjectError::Storage`].
    pub async fn get(&self, name: &str) -> Result<Bytes, ObjectError> {
        let found = self.find(name).await?;
        found.ok_or_else(|| ObjectError::Missing {
            object: self.address_of(name),
        })
    }

    /// Removes an object if it exists.
    ///
    /// # Errors
    /// [`ObjectError::Storage`].
    pub async fn remove(&self, name: &str) -> Result<(), ObjectError> {
        match self.objects.delete(&self.path(name)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed("removing", name, error)),
        }
    }

    /// Returns every object below a name, sorted by name.
    ///
    /// # Errors
    /// [`ObjectError::Storage`].
    pub async fn list(&self, below: &str) -> Result<Vec<ObjectEntry>, ObjectError> {
        self.list_after(below, None).await
    }

    /// Returns every object below a name that sorts after another name.
    ///
    /// # Errors
    /// [`ObjectError::Storage`].
    pub async fn list_after(
        &self,
        below: &str,
        after: Option<&str>,
    ) -> Result<Vec<ObjectEntry>, ObjectError> {
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
        let mut found: Vec<ObjectEntry> = listed
            .into_iter()
            .filter_map(|meta| {
                let parts = meta.location.prefix_match(&prefix)?;
                let rest: Vec<String> = parts.map(|part| part.as_ref().to_owned()).collect();
                Some(ObjectEntry {
                    name: format!("{below}/{}", rest.join("/")),
                    bytes: meta.size,
                    modified: TimestampMicros(meta.last_modified.timestamp_micros()),
                })
            })
            .collect();
        found.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(found)
    }

    /// Returns incomplete files below a name, whose writer died before renaming them. A bucket has
    /// none, since its listings do not show incomplete objects.
    ///
    /// # Errors
    /// [`ObjectError::Storage`].
    pub fn unfinished(&self, below: &str) -> Result<Vec<ObjectEntry>, ObjectError> {
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
            // It may just have been renamed.
            let Ok(about) = entry.metadata() else {
                continue;
            };
            let modified = about.modified().map_err(failed)?;
            let since = modified.duration_since(UNIX_EPOCH).unwrap_or_default();
            found.push(ObjectEntry {
                name: format!("{below}/{name}"),
                bytes: about.len(),
                modified: TimestampMicros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX)),
            });
        }
        Ok(found)
    }

    /// Removes [`unfinished`](Self::unfinished) files that were written before a time.
    ///
    /// # Errors
    /// [`ObjectError::Storage`].
    pub fn remove_unfinished(
        &self,
        below: &str,
        before: TimestampMicros,
    ) -> Result<(), ObjectError> {
        for file in self.unfinished(below)? {
            let path = self.folder.as_ref().map(|folder| folder.join(&file.name));
            let Some(path) = path.filter(|_| file.modified < before) else {
                continue;
            };
            disk::remove(&path).map_err(|error| self.failed("removing", &file.name, error))?;
        }
        Ok(())
    }

    /// Returns the folders in the storage.
    ///
    /// # Errors
    /// [`ObjectError::Storage`].
    pub async fn folders(&self) -> Result<Vec<String>, ObjectError> {
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

/// Returns true for the name of an incomplete file, to which `LocalFileSystem` has appended `#` and
/// a number.
fn is_unfinished(name: &str) -> bool {
    let number = name.split_once('#').map(|(_, number)| number);
    number.is_some_and(|number| {
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// Returns the path, if the address is a folder.
fn folder(address: &str) -> Option<&Path> {
    match address.split_once("://") {
        Some(("file", path)) => Some(Path::new(path)),
        Some(_) => None,
        None => Some(Path::new(address)),
    }
}

fn wrong(address: &str, what: String) -> ObjectError {
    ObjectError::Address {
        address: address.to_owned(),
        what,
    }
}

/// Returns an address for display: without user, password and query.
#[cfg(feature = "cloud")]
fn without_secrets(url: &url::Url) -> String {
    let mut shown = url.clone();
    shown.set_query(None);
    shown.set_fragment(None);
    // Fails only for addresses that cannot have credentials.
    let _ = shown.set_password(None);
    if shown.scheme() != "abfs" && shown.scheme() != "abfss" {
        let _ = shown.set_username("");
    }
    shown.as_str().trim_end_matches('/').to_owned()
}
