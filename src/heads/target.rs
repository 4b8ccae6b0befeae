//! The target of heads: a folder or bucket with a file for each head; one file with the newest; or
//! an HTTP address that receives them.

use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::{error::HeadError, file::SignedHead, webhook::Webhook};
use treering_backup::BackupError;
use treering_base::disk;
use treering_objects::{ObjectStorage, WriteMode};

/// File name suffix of a target that has only the newest head.
const ONE_FILE: &str = ".json";

/// A target for heads.
#[derive(Clone, Debug)]
pub struct HeadTarget(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Many(ObjectStorage),
    One(PathBuf),
    Web(Webhook),
}

impl HeadTarget {
    /// Parses an address. Heads are posted to an `http://…` or `https://…` address, a name that
    /// ends with `.json` is a file, and everything else is an address for
    /// [`ObjectStorage::to_write`].
    ///
    /// # Errors
    /// [`BackupError::Address`].
    pub fn new(address: &str) -> Result<Self, BackupError> {
        if address.starts_with("http://") || address.starts_with("https://") {
            let webhook = Webhook::of(address).ok_or_else(|| BackupError::Address {
                address: address.to_owned(),
                what: "it is not a valid URL".to_owned(),
            });
            return Ok(Self(Kind::Web(webhook?)));
        }
        if address.ends_with(ONE_FILE) && !address.contains("://") {
            return Ok(Self(Kind::One(address.into())));
        }
        Ok(Self(Kind::Many(ObjectStorage::to_write(address)?)))
    }

    /// Returns its address, without credentials.
    #[must_use]
    pub fn address(&self) -> String {
        match &self.0 {
            Kind::Many(target) => target.address().to_owned(),
            Kind::One(path) => path.display().to_string(),
            Kind::Web(webhook) => webhook.address().to_owned(),
        }
    }

    /// Stores a head in the target.
    ///
    /// # Errors
    /// [`HeadError::Failed`].
    pub async fn put(&self, head: &SignedHead) -> Result<(), HeadError> {
        let text = format!("{}\n", head.text());
        match &self.0 {
            Kind::Many(target) => {
                let put = target
                    .put(&head.name(), Bytes::from(text), WriteMode::Any)
                    .await;
                Ok(put.map(drop).map_err(BackupError::from)?)
            }
            Kind::One(path) => {
                let path = path.clone();
                let doing = format!("writing {}", path.display());
                let written = tokio::task::spawn_blocking(move || write(&path, &text)).await;
                let written = written.unwrap_or_else(|error| Err(std::io::Error::other(error)));
                written.map_err(|error| HeadError::failed(doing, error))
            }
            Kind::Web(webhook) => webhook.post(&text).await,
        }
    }
}

/// Replaces the content of a file with a head.
///
/// # Errors
/// I/O errors. The file then has its old content, or the new content without being durable.
pub fn write(path: &Path, text: &str) -> std::io::Result<()> {
    let new = path.with_extension("json.new");
    disk::write(&new, text.as_bytes())?;
    disk::rename(&new, path)
}
