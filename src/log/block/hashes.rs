//! The hashes of a block's records. For most records only a check is stored.

use std::sync::{Arc, OnceLock};

use super::{CHECK_BYTES, decode::DecompressedBlock};
use crate::record::{Hashes, Record};
use treering_domain::{ChainHashes, ContentHash};

/// How a record's chain hash is determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// Computed from the previous record of its conversation in the block.
    Previous,
    /// Computed as that of the first record of the conversation.
    First,
    /// Stored in the block.
    Given(ContentHash),
}

/// What is stored about a record's hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StoredHashes {
    /// `None`: computed from the body and its salt.
    pub(crate) body: Option<ContentHash>,
    pub(crate) link: Link,
    /// Index of its conversation in the block.
    pub(crate) conversation: usize,
}

/// The hashes of a record.
#[derive(Clone, Copy, Default)]
struct ComputedHashes {
    body: ContentHash,
    chain: ContentHash,
    /// The chain hash from which it was computed; `None` when its own is stored.
    previous: Option<ContentHash>,
}

/// The hashes of a block's records, all computed when the first hash is requested.
pub(crate) struct BlockHashes {
    unpacked: DecompressedBlock,
    worked_out: OnceLock<Vec<ComputedHashes>>,
}

impl BlockHashes {
    /// Decodes the records of a block.
    ///
    /// # Errors
    /// Why the block cannot be decoded.
    pub(super) fn records_of(unpacked: DecompressedBlock) -> Result<Vec<Record>, &'static str> {
        let of = Arc::new(Self {
            unpacked,
            worked_out: OnceLock::new(),
        });
        let hashes = |index| Hashes::Block {
            of: Arc::clone(&of),
            index,
        };
        let mut records = Vec::with_capacity(of.unpacked.count);
        of.unpacked.read(|index, mut record, _| {
            record.hashes = hashes(index);
            records.push(record);
        })?;
        Ok(records)
    }

    fn of(&self, index: u32) -> ComputedHashes {
        let all = self.worked_out.get_or_init(|| self.work_out());
        all.get(index as usize).copied().unwrap_or_default()
    }

    fn work_out(&self) -> Vec<ComputedHashes> {
        let mut all = Vec::with_capacity(self.unpacked.count);
        let mut last: Vec<ContentHash> = Vec::new();
        // The block was decoded before, so this succeeds; a missing record would count as damaged.
        let _read = self.unpacked.read(|_, record, kept| {
            if last.len() <= kept.conversation {
                last.resize(kept.conversation + 1, ContentHash::default());
            }
            // A hash that is neither stored nor derivable is left zero, which matches no check.
            let body = kept.body.or_else(|| record.hash_of_body());
            let body = body.unwrap_or_default();
            let (previous, given) = match kept.link {
                Link::Given(hash) => (None, hash),
                Link::First => (Some(ContentHash::default()), ContentHash::default()),
                Link::Previous => (Some(last[kept.conversation]), ContentHash::default()),
            };
            let behind = |previous| record.expected_chain_hash(previous, body);
            // A hash that cannot be computed is left zero, which matches no check.
            let chain = previous.map_or(given, |previous| behind(previous).unwrap_or_default());
            last[kept.conversation] = chain;
            all.push(ComputedHashes {
                body,
                chain,
                previous,
            });
        });
        all
    }

    pub(crate) fn body(&self, index: u32) -> ContentHash {
        self.of(index).body
    }

    /// Returns the chain hash from which a record's own was computed; `None` when its own is
    /// stored.
    pub(crate) fn previous(&self, index: u32) -> Option<ContentHash> {
        self.of(index).previous
    }

    /// Returns true when the chain hash matches the record's check.
    pub(crate) fn is_sound(&self, index: u32) -> bool {
        let chain = self.of(index).chain;
        self.unpacked.check(index) == Some(&chain.0[..CHECK_BYTES])
    }
}

impl ChainHashes for BlockHashes {
    fn chain_hash(&self, index: u32) -> ContentHash {
        self.of(index).chain
    }
}
