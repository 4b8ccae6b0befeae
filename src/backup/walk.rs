//! Reads a generation's records and checks each against its conversation's chain and its body.

use std::collections::HashMap;

use bytes::Bytes;
use uuid::Uuid;

use super::{
    content::ParsedObject,
    error::BackupError,
    manifest::Object,
    seal::{self, EncryptionKey},
};
use treering_domain::{ContentHash, ConversationKey, Revision};
use treering_log::{Record, RecordBody};
use treering_objects::ObjectStorage;

/// Reads the objects of a store's backup.
pub(super) struct Objects<'a> {
    pub(crate) target: &'a ObjectStorage,
    pub(crate) store: Uuid,
    pub(crate) key: Option<&'a EncryptionKey>,
}

impl Objects<'_> {
    pub(crate) fn damaged(&self, object: &Object, what: impl Into<String>) -> BackupError {
        BackupError::Damaged {
            object: self.target.address_of(&object.name(self.store)),
            what: what.into(),
        }
    }

    /// Returns the content of an object.
    pub(crate) async fn read(&self, object: &Object) -> Result<ParsedObject, BackupError> {
        let name = object.name(self.store);
        let bytes = self.target.get(&name).await?;
        if bytes.len() as u64 != object.bytes {
            let what = format!("it has {} bytes, expected {}", bytes.len(), object.bytes);
            return Err(self.damaged(object, what));
        }
        let (place, key, sum) = (
            object.place(self.store),
            self.key.cloned(),
            object.blake3.clone(),
        );
        let opened = tokio::task::spawn_blocking(move || {
            let end = bytes.len().saturating_sub(32);
            if blake3::hash(&bytes[..end]).to_hex().as_str() != sum {
                return Err("BLAKE3 mismatch".into());
            }
            let raw = seal::open(place, &bytes, key.as_ref())?;
            ParsedObject::of(raw).map_err(seal::UnsealError::from)
        });
        let opened = opened
            .await
            .map_err(|error| BackupError::internal("reading an object", error))?;
        opened.map_err(|error| error.of(self.target.address_of(&name)))
    }
}

/// The last known state of a conversation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ConversationEnd {
    pub(crate) head: Revision,
    pub(crate) chain: ContentHash,
}

/// The state that a check carries from record to record.
#[derive(Debug, Default)]
pub(super) struct Walk {
    pub(crate) conversations: HashMap<ConversationKey, ConversationEnd>,
    /// For each home offset, the hash of the large body that is stored there.
    bodies: HashMap<u64, ContentHash>,
}

impl Walk {
    /// Checks the next record, which must follow the previous ones.
    ///
    /// # Errors
    /// A description of what is wrong with it.
    pub(crate) fn record(
        &mut self,
        offset: u64,
        record: &Record,
        read: &ParsedObject,
    ) -> Result<(), String> {
        let header = &record.header;
        let known = self.conversations.entry(header.key()).or_default();
        if header.revision != known.head.next() {
            return Err(format!(
                "record {offset} is revision {} of {}, but follows revision {}",
                header.revision, header.conversation, known.head
            ));
        }
        if !record.verify_chain(known.chain) {
            return Err(format!(
                "the chain hash of record {offset} does not match the previous event of {}",
                header.conversation
            ));
        }
        *known = ConversationEnd {
            head: header.revision,
            chain: record.chain_hash(),
        };
        if let RecordBody::Blob(blob) = &record.body {
            if let Some(bytes) = read.blobs.get(&blob.home_offset) {
                check_body(offset, bytes, blob.bytes_len, blob.hash)?;
                self.bodies.insert(blob.home_offset, blob.hash);
            } else if self.bodies.get(&blob.home_offset) != Some(&blob.hash) {
                return Err(format!("the large body of record {offset} is missing"));
            }
        }
        Ok(())
    }
}

fn check_body(offset: u64, bytes: &Bytes, len: u64, hash: ContentHash) -> Result<(), String> {
    match bytes.len() as u64 == len && Record::hash_body(bytes) == hash {
        true => Ok(()),
        false => Err(format!(
            "the large body of record {offset} does not match its hash"
        )),
    }
}
