//! Filling a new log with what another one had: salvaging, restoring.

use std::collections::HashMap;

use bytes::Bytes;

use super::{BlobRef, Epoch, EventLog, FrameBatch, LogError, NewBlob, Record, RecordBody, frame};
use crate::domain::{ContentHash, Namespace, ShardId};

/// Records that are appended at once.
const RECORDS_MAX: usize = 4_096;
/// Large bodies that are kept in memory until then, in bytes.
const BLOB_BYTES_MAX: usize = 32 << 20;

/// A log that grows record by record, each large body once in a namespace.
pub struct LogFiller<L> {
    log: L,
    epoch: Epoch,
    head: u64,
    /// Where large bodies are kept.
    homes: HashMap<(Namespace, ContentHash), u64>,
    records: Vec<Record>,
    blobs: Vec<NewBlob>,
    blob_bytes: usize,
}

impl<L: EventLog> LogFiller<L> {
    /// Goes on where a log ends.
    ///
    /// # Errors
    /// What the log says.
    pub async fn start(log: L) -> Result<Self, LogError> {
        let acquired = log.acquire(ShardId::default()).await?;
        Ok(Self {
            log,
            epoch: acquired.epoch,
            head: acquired.head,
            homes: HashMap::new(),
            records: Vec::new(),
            blobs: Vec::new(),
            blob_bytes: 0,
        })
    }

    /// The log; what came last may not be in it yet.
    pub fn log(&self) -> &L {
        &self.log
    }

    /// The offset of the next record.
    pub fn next(&self) -> u64 {
        self.head + self.records.len() as u64 + 1
    }

    /// Where a large body is kept; none: [`Self::keep`] it.
    pub fn home(&self, namespace: &Namespace, blob: &BlobRef) -> Option<u64> {
        self.homes.get(&(namespace.clone(), blob.hash)).copied()
    }

    /// Keeps a large body under the next record.
    pub fn keep(&mut self, namespace: &Namespace, blob: &BlobRef, bytes: Bytes) {
        let home_offset = self.next();
        self.blob_bytes += bytes.len();
        self.homes
            .insert((namespace.clone(), blob.hash), home_offset);
        self.blobs.push(NewBlob {
            namespace: namespace.clone(),
            hash: blob.hash,
            home_offset,
            bytes,
        });
    }

    /// Takes a record, which names a large body by where it was before.
    ///
    /// # Errors
    /// What the log says.
    pub async fn push(&mut self, mut record: Record) -> Result<(), LogError> {
        if let RecordBody::Blob(blob) = record.body {
            let home = self.home(&record.header.namespace, &blob);
            debug_assert!(home.is_some(), "its body was not kept");
            record.body = RecordBody::Blob(BlobRef {
                home_offset: home.unwrap_or(blob.home_offset),
                ..blob
            });
        }
        self.records.push(record);
        if self.records.len() >= RECORDS_MAX || self.blob_bytes >= BLOB_BYTES_MAX {
            self.flush().await?;
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), LogError> {
        if self.records.is_empty() {
            return Ok(());
        }
        let records = std::mem::take(&mut self.records);
        let batch = FrameBatch {
            frames: frame::encode_group(self.head + 1, &records)?,
            blobs: std::mem::take(&mut self.blobs),
        };
        self.blob_bytes = 0;
        let shard = ShardId::default();
        self.head = self.log.append(shard, self.epoch, self.head, batch).await?;
        Ok(())
    }

    /// Appends what is left and closes the log.
    ///
    /// # Errors
    /// What the log says.
    pub async fn close(&mut self) -> Result<(), LogError> {
        self.flush().await?;
        self.log.close().await
    }
}
