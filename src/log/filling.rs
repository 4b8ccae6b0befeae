//! Filling a new log with what another one had: salvaging, restoring.

use std::collections::HashMap;

use bytes::Bytes;

use super::{
    BlobRef, BodyPatch, Epoch, EventLog, FrameBatch, LogError, NewBlob, Record, RecordBody, frame,
    patch,
};
use crate::domain::{ContentHash, ConversationId, EventHeader, Namespace, ShardId};

/// Records that are appended at once.
const RECORDS_MAX: usize = 4_096;
/// Large bodies that are kept in memory until then, in bytes.
const BLOB_BYTES_MAX: usize = 32 << 20;
/// Bodies that the next ones may be like, in bytes.
const CHAIN_BYTES_MAX: usize = 32 << 20;

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
    chains: Chains,
}

/// The last body of each conversation that is like the one before it.
#[derive(Default)]
struct Chains {
    last: HashMap<ConversationId, (u64, Bytes)>,
    bytes: usize,
}

impl Chains {
    /// What is different in the next one.
    fn next(&mut self, of: ConversationId, home: u64, body: &Bytes) -> Option<BodyPatch> {
        let before = self.last.remove(&of);
        self.bytes -= before.as_ref().map_or(0, |(_, bytes)| bytes.len());
        if self.bytes + body.len() > CHAIN_BYTES_MAX {
            // The next one of each is kept whole, and all go on from there.
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
            chains: Chains::default(),
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

    /// Keeps a large body under the next record, whose header this is. One that is like
    /// another is kept as a patch on the last of those in its conversation, if that pays.
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
            true => self.chains.next(header.conversation, home_offset, &bytes),
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
