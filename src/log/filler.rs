//! Fills a new log with the records of another log, for salvage and restore.

use std::collections::HashMap;

use bytes::Bytes;

use super::{
    BlobRef, BodyPatch, Epoch, EventLog, FrameBatch, LogError, NewBlob, Record, RecordBody, frame,
    patch,
};
use treering_domain::{ContentHash, ConversationKey, EventHeader, Namespace, ShardId};

/// Maximum number of records in one append.
const RECORDS_MAX: usize = 4_096;
/// Maximum number of bytes of large bodies kept in memory before an append.
const BLOB_BYTES_MAX: usize = 32 << 20;
/// Maximum number of bytes of bodies kept as patch bases for later ones.
const CHAIN_BYTES_MAX: usize = 32 << 20;

/// A log that is filled record by record, storing each large body once per namespace.
pub struct LogFiller<L> {
    log: L,
    epoch: Epoch,
    head: u64,
    /// Home offsets of the stored large bodies.
    homes: HashMap<(Namespace, ContentHash), u64>,
    records: Vec<Record>,
    blobs: Vec<NewBlob>,
    blob_bytes: usize,
    chains: Chains,
}

/// For each conversation with similar bodies, the last of them: the base of the next patch.
#[derive(Default)]
struct Chains {
    last: HashMap<ConversationKey, (u64, Bytes)>,
    bytes: usize,
}

impl Chains {
    /// Returns the patch for the next body of a conversation, if there is one.
    fn next(&mut self, of: ConversationKey, home: u64, body: &Bytes) -> Option<BodyPatch> {
        let before = self.last.remove(&of);
        self.bytes -= before.as_ref().map_or(0, |(_, bytes)| bytes.len());
        if self.bytes + body.len() > CHAIN_BYTES_MAX {
            // The next body of each conversation is stored whole, and patches continue from there.
            self.last.clear();
            self.bytes = 0;
        }
        self.bytes += body.len();
        self.last.insert(of, (home, body.clone()));
        let (base_home, base) = before?;
        let different = patch::diff(&base, body).unwrap_or_default()?;
        Some(BodyPatch {
            base_home,
            bytes: different.into(),
        })
    }
}

impl<L: EventLog> LogFiller<L> {
    /// Continues at the end of a log.
    ///
    /// # Errors
    /// Errors of the log.
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
            chains: Chains::default(),
        })
    }

    /// Returns the log, which may lack the latest records.
    pub fn log(&self) -> &L {
        &self.log
    }

    /// Returns the offset of the next record.
    pub fn next(&self) -> u64 {
        self.head + self.records.len() as u64 + 1
    }

    /// Returns the home offset of a stored large body; `None`: it must be passed to [`Self::keep`]
    /// first.
    pub fn home(&self, namespace: &Namespace, blob: &BlobRef) -> Option<u64> {
        self.homes.get(&(namespace.clone(), blob.hash)).copied()
    }

    /// Stores a large body with the next record; `header` is the header of that record. If the body
    /// resembles another one, it is stored as a patch on the last such body of its conversation, if
    /// that saves enough space.
    pub fn keep(
        &mut self,
        header: &EventHeader,
        blob: &BlobRef,
        bytes: Bytes,
        is_like_another: bool,
    ) {
        let home_offset = self.next();
        let namespace = header.namespace.clone();
        self.blob_bytes += bytes.len();
        self.homes
            .insert((namespace.clone(), blob.hash), home_offset);
        let patch = match is_like_another {
            true => self.chains.next(header.key(), home_offset, &bytes),
            false => None,
        };
        self.blobs.push(NewBlob {
            namespace,
            hash: blob.hash,
            home_offset,
            bytes,
            patch,
        });
    }

    /// Adds a record. A reference to a large body may still name its old home; it is updated.
    ///
    /// # Errors
    /// Errors of the log.
    pub async fn push(&mut self, mut record: Record) -> Result<(), LogError> {
        if let RecordBody::Blob(blob) = record.body {
            let home = self.home(&record.header.namespace, &blob);
            debug_assert!(
                home.is_some(),
                "the large body was not added before its record"
            );
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

    /// Appends the pending records and closes the log.
    ///
    /// # Errors
    /// Errors of the log.
    pub async fn close(&mut self) -> Result<(), LogError> {
        self.flush().await?;
        self.log.close().await
    }
}
