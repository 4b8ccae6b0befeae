//! The hashes of a block's records: of most, only a check is kept.

use std::sync::{Arc, OnceLock};

use super::{CHECK_BYTES, together::Unpacked};
use crate::{
    domain::{ChainHashes, ContentHash},
    log::record::{Hashes, Record},
};

/// How a record's chain hash follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// From the record of its conversation before it in the block.
    Previous,
    /// It is the first of its conversation.
    First,
    /// It is in the block.
    Given(ContentHash),
}

/// What is there of a record's hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    /// None: it follows from the body and its salt.
    pub body: Option<ContentHash>,
    pub link: Link,
    /// Which conversation of the block it is of.
    pub conversation: usize,
}

/// The hashes of a record.
#[derive(Clone, Copy, Default)]
struct WorkedOut {
    body: ContentHash,
    chain: ContentHash,
    /// The chain hash that it was made from; none: it is given.
    previous: Option<ContentHash>,
}

/// The hashes of a block's records, worked out when the first one is asked for.
pub(in crate::log) struct BlockHashes {
    unpacked: Unpacked,
    worked_out: OnceLock<Vec<WorkedOut>>,
}

impl BlockHashes {
    /// The records of a block.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn records_of(unpacked: Unpacked) -> Result<Vec<Record>, &'static str> {
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

    fn of(&self, index: u32) -> WorkedOut {
        let all = self.worked_out.get_or_init(|| self.work_out());
        all.get(index as usize).copied().unwrap_or_default()
    }

    fn work_out(&self) -> Vec<WorkedOut> {
        let mut all = Vec::with_capacity(self.unpacked.count);
        let mut last: Vec<ContentHash> = Vec::new();
        // It was read before; what is missing would be unsound.
        let _read = self.unpacked.read(|_, record, kept| {
            if last.len() <= kept.conversation {
                last.resize(kept.conversation + 1, ContentHash::default());
            }
            // One that neither is there nor follows is none that a check is of.
            let body = kept.body.or_else(|| record.hash_of_body());
            let body = body.unwrap_or_default();
            let (previous, given) = match kept.link {
                Link::Given(hash) => (None, hash),
                Link::First => (Some(ContentHash::default()), ContentHash::default()),
                Link::Previous => (Some(last[kept.conversation]), ContentHash::default()),
            };
            let behind = |previous| record.expected_chain_hash(previous, body);
            // One that cannot be made is none that a check is of.
            let chain = previous.map_or(given, |previous| behind(previous).unwrap_or_default());
            last[kept.conversation] = chain;
            all.push(WorkedOut {
                body,
                chain,
                previous,
            });
        });
        all
    }

    pub(in crate::log) fn body(&self, index: u32) -> ContentHash {
        self.of(index).body
    }

    /// The chain hash that a record's own was made from; none: its own is given.
    pub(in crate::log) fn previous(&self, index: u32) -> Option<ContentHash> {
        self.of(index).previous
    }

    /// True when the chain hash is the one that the record's check is of.
    pub(in crate::log) fn is_sound(&self, index: u32) -> bool {
        let chain = self.of(index).chain;
        self.unpacked.check(index) == Some(&chain.0[..CHECK_BYTES])
    }
}

impl ChainHashes for BlockHashes {
    fn chain_hash(&self, index: u32) -> ContentHash {
        self.of(index).chain
    }
}
