//! Reads a log and collects the head of each conversation.

use std::{collections::BTreeSet, path::Path};

use futures::StreamExt;

use super::{error::HeadError, tree::MerkleTree};
use treering_backup::BackupSource;
use treering_domain::{ContentHash, ConversationKey, Revision};
use treering_engine::{LogIdentity, ShipQuery, ShipmentItem};
use treering_log::{EncodedFrame, Record, frame};
use treering_projections::{Head, Heads};

/// Conversations per page: about 5 MB.
const PAGE: usize = 65_536;

/// The head of each conversation in a log. Uses a few megabytes of memory for any number of
/// conversations: the rest is in an unnamed file.
#[derive(Default)]
pub(crate) struct LogHeads {
    heads: Heads,
    reached: u64,
}

impl LogHeads {
    /// Returns the position of the last record taken.
    #[must_use]
    pub(crate) fn reached(&self) -> u64 {
        self.reached
    }

    /// Adds the next record. The file for the heads that do not fit in memory is created in `dir`,
    /// or in the system's temporary folder.
    ///
    /// # Errors
    /// [`HeadError::Broken`] when the record does not follow from those before it.
    pub(crate) fn take(
        &mut self,
        dir: Option<&Path>,
        position: u64,
        record: &Record,
    ) -> Result<(), HeadError> {
        let broken = |what| Err(HeadError::Broken { position, what });
        if position != self.reached + 1 {
            return broken(format!("it follows position {}", self.reached));
        }
        let (key, revision) = (record.header.key(), record.header.revision);
        let failed = |error| HeadError::failed("tracking conversations", error);
        let before = self.heads.get(key).map_err(failed)?;
        if revision != before.revision.next() {
            let id = record.header.conversation;
            return broken(format!(
                "revision {revision} of {id} follows revision {}",
                before.revision
            ));
        }
        if !record.verify_chain(before.chain_hash) {
            return broken("its chain hash does not match the previous event".to_owned());
        }
        let chain_hash = record.chain_hash();
        let head = Head {
            revision,
            chain_hash,
        };
        self.heads.set(dir, key, before, head).map_err(failed)?;
        self.reached = position;
        Ok(())
    }

    /// Returns the root of the tree over all conversations, and their number.
    ///
    /// # Errors
    /// [`HeadError::Failed`].
    pub(crate) fn root(&mut self) -> Result<(ContentHash, u64), HeadError> {
        let mut tree = MerkleTree::default();
        let mut last = None;
        loop {
            let page = self.heads.page(last, PAGE);
            let page = page.map_err(|error| HeadError::failed("tracking conversations", error))?;
            let Some((key, _)) = page.last() else { break };
            last = Some(*key);
            for (key, head) in page {
                tree.push(key, head.revision, head.chain_hash);
            }
        }
        Ok((tree.root(), self.heads.count()))
    }
}

/// The result of a pass over a log.
pub struct SurveyResult {
    /// The log.
    pub log: LogIdentity,
    /// Its last position.
    pub ends: u64,
    /// The requested position.
    pub at: u64,
    /// The root and the number of conversations at that position; `None`: the log ends before it.
    pub root: Option<(ContentHash, u64)>,
    /// Events whose content was erased.
    pub erased: u64,
    /// Events that were erased although no event records their erasure.
    pub unsaid: BTreeSet<(ConversationKey, Revision)>,
}

/// Reads a whole log and computes the root at a position, or at the end. Reports progress as
/// position and total.
///
/// # Errors
/// [`HeadError::Unreadable`], [`HeadError::Broken`].
pub async fn survey(
    source: &dyn BackupSource,
    at: Option<u64>,
    mut report: impl FnMut(u64, u64),
) -> Result<SurveyResult, HeadError> {
    let query = ShipQuery {
        from: 1,
        to: None,
        follow: false,
    };
    let mut items = source.ship(query).await?;
    let Some(ShipmentItem::Start { identity, head, .. }) = items.next().await.transpose()? else {
        let what = "the shipped log has no start".to_owned();
        return Err(HeadError::Broken { position: 0, what });
    };
    let mut found = SurveyResult {
        log: identity,
        ends: head,
        at: at.unwrap_or(head),
        root: None,
        erased: 0,
        unsaid: BTreeSet::new(),
    };
    let at = found.at;
    let mut heads = LogHeads::default();
    // Recorded erasures whose erased event was not read yet: within a page, an erasure may come
    // before the block that holds the event.
    let mut said = BTreeSet::new();
    if at == 0 {
        found.root = Some(heads.root()?);
    }
    while let Some(item) = items.next().await {
        match item? {
            ShipmentItem::Block(block) => {
                let first = block.first;
                let frame = EncodedFrame::new(first, block.count, block.bytes);
                let records = frame::decode(&frame).map_err(|error| HeadError::Broken {
                    position: first,
                    what: error.to_string(),
                })?;
                for (position, record) in (first..).zip(&records.records) {
                    heads.take(None, position, record)?;
                    if record.is_erased() {
                        found.erased += 1;
                        let event = (record.header.key(), record.header.revision);
                        if !said.remove(&event) {
                            found.unsaid.insert(event);
                        }
                    }
                    if position == at {
                        found.root = Some(heads.root()?);
                    }
                }
            }
            ShipmentItem::Erasure(erasure) => {
                let key = erasure.namespace.key(erasure.conversation);
                for revision in erasure.revisions {
                    if !found.unsaid.remove(&(key, revision)) {
                        said.insert((key, revision));
                    }
                }
            }
            ShipmentItem::Reached { mark, .. } => report(mark.offset, head),
            ShipmentItem::Start { .. } | ShipmentItem::Blob { .. } => {}
        }
    }
    found.ends = found.ends.max(heads.reached());
    Ok(found)
}
