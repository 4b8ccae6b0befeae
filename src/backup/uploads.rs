//! Uploads several objects at once.

use std::collections::VecDeque;

use tokio::task::JoinHandle;
use uuid::Uuid;

use super::{
    content::ObjectContent,
    error::BackupError,
    manifest::{Object, RecordMark},
    seal::{self, EncryptionKey, ObjectIdentity, ObjectKind},
};
use treering_objects::{ObjectStorage, WriteMode};

/// Maximum number of objects that are compressed and uploaded at the same time. Each keeps its
/// content in memory.
const UNDER_WAY_MAX: usize = 2;

/// Uploads objects, and returns them in order.
pub(super) struct Uploads {
    target: ObjectStorage,
    store: Uuid,
    key: Option<EncryptionKey>,
    under_way: VecDeque<JoinHandle<Result<Object, BackupError>>>,
    done: Vec<Object>,
}

impl Uploads {
    pub(crate) fn new(target: &ObjectStorage, store: Uuid, key: Option<&EncryptionKey>) -> Self {
        Self {
            target: target.clone(),
            store,
            key: key.cloned(),
            under_way: VecDeque::new(),
            done: Vec::new(),
        }
    }

    /// Starts an upload; waits while too many are in progress.
    pub(crate) async fn put(
        &mut self,
        first: u64,
        last: RecordMark,
        content: ObjectContent,
    ) -> Result<(), BackupError> {
        while self.under_way.len() >= UNDER_WAY_MAX {
            self.wait_for_one().await?;
        }
        let (target, store, key) = (self.target.clone(), self.store, self.key.clone());
        let put = put(target, store, key, first, last, content);
        self.under_way.push_back(tokio::spawn(put));
        Ok(())
    }

    /// Waits for all uploads.
    pub(crate) async fn take(&mut self) -> Result<Vec<Object>, BackupError> {
        while !self.under_way.is_empty() {
            self.wait_for_one().await?;
        }
        Ok(std::mem::take(&mut self.done))
    }

    async fn wait_for_one(&mut self) -> Result<(), BackupError> {
        if let Some(first) = self.under_way.pop_front() {
            let put = first.await;
            let put = put.map_err(|error| BackupError::internal("uploading an object", error))?;
            self.done.push(put?);
        }
        Ok(())
    }
}

async fn put(
    target: ObjectStorage,
    store: Uuid,
    key: Option<EncryptionKey>,
    first: u64,
    last: RecordMark,
    content: ObjectContent,
) -> Result<Object, BackupError> {
    let place = ObjectIdentity {
        kind: ObjectKind::Records,
        store,
        range: (first, last.offset),
    };
    let needs = content.needs();
    let raw_bytes = content.raw.len() as u64;
    let sealed = tokio::task::spawn_blocking(move || seal::seal(place, &content.raw, key.as_ref()));
    let sealed = sealed
        .await
        .map_err(|error| BackupError::internal("encoding an object", error))??;
    let object = Object {
        first,
        last,
        blake3: sealed.sum.to_hex().to_string(),
        bytes: sealed.bytes.len() as u64,
        raw_bytes,
        needs,
    };
    target
        .put(&object.name(store), sealed.bytes, WriteMode::Any)
        .await?;
    Ok(object)
}
