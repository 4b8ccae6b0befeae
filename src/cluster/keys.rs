//! The API keys of a cluster. They are in its database. Each node has a copy in its folder, and
//! takes every change over; without the database, it keeps the keys that it has.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{sleep, timeout},
};
use treering_access::{self as access, KeyFile, KeyFileError, KeyStore};
use treering_domain::with_causes;
use treering_log_postgres::SharedKeys;
use uuid::Uuid;

use crate::{
    bounds::{KEY_CHANGES_MAX, VIEWS_PER_LEASE},
    ownership::{Ownership, OwnershipError},
    trouble::Trouble,
};

/// Why the keys of a cluster could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum SharedKeysError {
    /// The keys, or the change.
    #[error(transparent)]
    Keys(#[from] KeyFileError),
    /// The database cannot be used.
    #[error("the keys in the database cannot be read or changed: {0}")]
    Database(#[from] OwnershipError),
    /// Others changed the keys all the time.
    #[error("others are changing the keys too")]
    Contended,
}

/// Returns the keys of a cluster.
///
/// # Errors
/// [`SharedKeysError`].
pub async fn read_keys(table: &dyn Ownership) -> Result<KeyFile, SharedKeysError> {
    let keys = table.keys(None).await?;
    Ok(keys.as_ref().map(parsed).transpose()?.unwrap_or_default())
}

/// Changes the keys of a cluster. If somebody else has changed them in between, makes the change
/// again with the new ones.
///
/// # Errors
/// [`SharedKeysError`]. After [`SharedKeysError::Database`], the keys may have been changed.
pub async fn change_keys<T>(
    table: &dyn Ownership,
    mut change: impl FnMut(&mut KeyFile) -> Result<T, KeyFileError>,
) -> Result<T, SharedKeysError> {
    for _ in 0..KEY_CHANGES_MAX {
        let before = table.keys(None).await?;
        let mut keys = before.as_ref().map(parsed).transpose()?.unwrap_or_default();
        let changed = change(&mut keys)?;
        let from = before.map(|before| before.version);
        if table.replace_keys(from, &stored(&keys)?).await? {
            return Ok(changed);
        }
    }
    Err(SharedKeysError::Contended)
}

fn parsed(keys: &SharedKeys) -> Result<KeyFile, KeyFileError> {
    KeyFile::parse(&keys.content).map_err(damaged)
}

fn stored(keys: &KeyFile) -> Result<SharedKeys, KeyFileError> {
    Ok(SharedKeys {
        version: Uuid::new_v4(),
        content: keys.to_text().map_err(damaged)?,
    })
}

fn damaged(why: String) -> KeyFileError {
    KeyFileError::Damaged {
        path: "the table treering_keys".into(),
        why,
    }
}

/// A node's copy of the keys.
pub(crate) struct KeyCopy {
    table: Arc<dyn Ownership>,
    store: Arc<KeyStore>,
    /// The version that is in force and in the folder.
    known: Option<Uuid>,
    /// The last copy could not be written.
    is_unwritten: bool,
}

impl KeyCopy {
    /// Puts the keys of the cluster in force. If it has none, those of this folder become the
    /// cluster's.
    pub(crate) async fn load(
        table: Arc<dyn Ownership>,
        store: Arc<KeyStore>,
    ) -> Result<Self, SharedKeysError> {
        let mut copy = Self {
            table,
            store,
            known: None,
            is_unwritten: false,
        };
        let mut shared = copy.table.keys(None).await?;
        if shared.is_none() {
            copy.offer().await?;
            shared = copy.table.keys(None).await?;
        }
        if let Some(shared) = shared {
            copy.take(&shared).await?;
        }
        Ok(copy)
    }

    /// Makes the keys of this folder the cluster's, unless it has got others.
    async fn offer(&self) -> Result<(), SharedKeysError> {
        let dir = self.store.dir();
        let own = access::read(dir)?;
        if own.keys.is_empty() {
            return Ok(());
        }
        if access::is_copy(dir) {
            tracing::error!(
                "the cluster's keys are missing in its database: this node keeps its copy in force. \
                 Restore the database, or remove keys.cluster from the folder of one node and \
                 restart it"
            );
            return Ok(());
        }
        if self.table.replace_keys(None, &stored(&own)?).await? {
            tracing::warn!(
                dir = %dir.display(),
                "the cluster had no keys: those of this folder are its keys from now on"
            );
        }
        Ok(())
    }

    /// Takes changes over until the node stops.
    pub(crate) async fn follow(mut self, lease: Duration, mut stop: watch::Receiver<bool>) {
        let trouble = Trouble::new("reading keys");
        loop {
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => return,
                () = sleep(lease / VIEWS_PER_LEASE) => {}
            }
            match timeout(lease, self.look()).await {
                Ok(Ok(())) => trouble.end(),
                Ok(Err(error)) => trouble.note(&with_causes(&error).to_string()),
                Err(_) => trouble.note("no answer within a lease"),
            }
        }
    }

    async fn look(&mut self) -> Result<(), SharedKeysError> {
        match self.table.keys(self.known).await? {
            Some(shared) => self.take(&shared).await,
            None => Ok(()),
        }
    }

    async fn take(&mut self, shared: &SharedKeys) -> Result<(), SharedKeysError> {
        let keys = parsed(shared)?;
        let count = keys.keys.len();
        let store = Arc::clone(&self.store);
        let written = spawn_blocking(move || store.replace(&keys)).await;
        match written {
            Ok(Ok(())) => {
                tracing::info!(keys = count, "the cluster's keys are in force");
                self.known = Some(shared.version);
                self.is_unwritten = false;
            }
            Ok(Err(error)) if !self.is_unwritten => {
                let error = with_causes(&error);
                tracing::error!(
                    %error,
                    "the cluster's keys are in force, but could not be copied to this node's \
                     folder: this is tried again"
                );
                self.is_unwritten = true;
            }
            Ok(Err(_)) | Err(_) => {}
        }
        Ok(())
    }
}
