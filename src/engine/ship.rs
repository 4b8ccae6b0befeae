//! Shipping of the log to a backup, as blocks that contain only their own records.
//!
//! Frames cannot be shipped as stored: their salt tree nodes also cover other records
//! (`docs/decisions/0009-salted-body-hashes.md`). Objects of a backup are never rewritten, so such
//! an object would reveal content that is erased elsewhere. Blocks contain exactly their own salts.

use std::{collections::HashSet, sync::atomic::Ordering};

use bytes::Bytes;
use futures::{StreamExt, stream::BoxStream};

use super::{Engine, Inner, ReadPath, error::ReadError, history::decode_body, work::PriorityClass};
use treering_domain::{
    BranchId, ContentHash, ConversationId, EventBody, EventKind, Namespace, Revision,
    TimestampMicros,
};
use treering_log::{LogIdentity, Record, RecordBody, block::Packer};

/// Maximum number of records per read, and their maximum size in bytes. A larger batch is read
/// whole.
const RECORDS_MAX: usize = 4_096;
const RECORDS_BYTES_MAX: usize = 4 << 20;

/// The range to be shipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShipQuery {
    /// The first offset, at least 1.
    pub from: u64,
    /// The last offset, which must end a batch; `None` for the published head.
    pub to: Option<u64>,
    /// Continue with later appends. The stream then ends only with an error.
    pub follow: bool,
}

/// A record, identified by offset and chain hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShipMark {
    /// Its log offset.
    pub offset: u64,
    /// Its chain hash, which covers all earlier events of its conversation.
    pub chain: ContentHash,
}

/// Consecutive records as an uncompressed block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShippedBlock {
    /// Offset of the first record.
    pub first: u64,
    /// Number of records.
    pub count: u32,
    /// The block, in the format of `treering_log::block`.
    pub bytes: Bytes,
    /// Home offsets of large bodies that the block's records refer to, but that are shipped with
    /// another record: the one at the home offset.
    pub needs: Vec<u64>,
}

/// An erasure event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShippedErasure {
    /// Its log position.
    pub position: u64,
    /// When it was recorded.
    pub recorded_at: TimestampMicros,
    /// The tenant.
    pub namespace: Namespace,
    /// The conversation that content was erased from.
    pub conversation: ConversationId,
    /// The branch of the event.
    pub branch: BranchId,
    /// The erased revisions.
    pub revisions: Vec<Revision>,
    /// Log offsets of the erased events.
    pub offsets: Vec<u64>,
    /// The reason.
    pub reason: String,
    /// The actor.
    pub actor: String,
}

/// An item of a shipment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShipmentItem {
    /// The first item: the log's identity, its head, and the record before the first requested
    /// offset (`None` if there is none).
    Start {
        /// The identity of the log.
        identity: LogIdentity,
        /// Its last offset.
        head: u64,
        /// The record before the first requested offset.
        before: Option<ShipMark>,
    },
    /// A block of records.
    Block(ShippedBlock),
    /// A large body that a record refers to.
    Blob {
        /// Its home offset.
        home: u64,
        /// The complete body.
        bytes: Bytes,
    },
    /// An erasure event among the records.
    Erasure(ShippedErasure),
    /// Everything up to this record was shipped, and it ends a batch.
    Reached {
        /// The last record.
        mark: ShipMark,
        /// When it was recorded.
        recorded_at: TimestampMicros,
        /// Nothing more of the requested range is published at present.
        is_all: bool,
    },
}

/// A store's note of a backup, for the receipts of erasures.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct BackupNote {
    /// The target, without its credentials.
    pub target: String,
    /// The newest generation.
    pub generation: u64,
    /// The last offset that the backup holds.
    pub head: u64,
    /// The time of the backup, in microseconds since 1970.
    pub made_at: i64,
    /// No generation still contains content whose erasure was recorded up to this offset.
    pub clean_to: u64,
}

impl Engine {
    /// Ships the log from an offset on, for all tenants. Erased content appears as stubs, as for
    /// every reader. Shipping reads what is published and never delays an append.
    /// [`ShipmentItem::Start`] comes first.
    pub fn ship(&self, query: ShipQuery) -> BoxStream<'static, Result<ShipmentItem, ReadError>> {
        let engine = self.clone();
        async_stream::try_stream! {
            let inner = &engine.inner;
            let mut news = inner.appends.news.of_log();
            news.mark_unchanged();
            let mut next = query.from.max(1);
            yield inner.ship_start(next).await?;
            let mut held = Vec::new();
            loop {
                news.mark_unchanged();
                let head = inner.reads.published.load(Ordering::Acquire);
                let end = query.to.map_or(head, |to| to.min(head));
                while next + (held.len() as u64) <= end {
                    // Packing handles megabytes at a time: keep it off the threads that serve
                    // calls.
                    let before = std::mem::take(&mut held);
                    let packed = engine.on(PriorityClass::Bulk, |engine: Self| async move {
                        engine.inner.reads.packed_page(next, end, before).await
                    });
                    let packed = packed.await?;
                    held = packed.held;
                    for item in packed.items {
                        next = match &item {
                            ShipmentItem::Reached { mark, .. } => mark.offset + 1,
                            _ => next,
                        };
                        yield item;
                    }
                }
                if !query.follow {
                    break;
                }
                if news.changed().await.is_err() {
                    Err(ReadError::Stopped)?;
                }
            }
        }
        .boxed()
    }
}

impl Engine {
    /// Returns the log's identity.
    #[must_use]
    pub fn identity(&self) -> LogIdentity {
        self.inner.log.identity()
    }

    /// Returns the first stored records of a range, as many as one read returns. It is meant for a
    /// single scan of the log. `to` must be published.
    ///
    /// # Errors
    /// [`ReadError::Damaged`] when there are none.
    pub async fn records_once(&self, from: u64, to: u64) -> Result<Vec<(u64, Record)>, ReadError> {
        let mut held = Vec::new();
        let mut page = self.inner.reads.page(from, to, &mut held).await?;
        page.append(&mut held);
        Ok(page)
    }

    /// Returns true when no conversation is marked as damaged.
    ///
    /// # Errors
    /// When the projections cannot be read.
    pub fn is_whole(&self) -> Result<bool, ReadError> {
        Ok(self.inner.reads.projections.load().damaged()?.is_empty())
    }
}

impl Inner {
    /// Waits while an erasure is recorded but its content is not hidden yet.
    async fn wait_for_erasures(&self) {
        drop(self.appends.gate.read().await);
    }

    /// Creates the first item. All items after it hide the content that was erased by events up to
    /// its head.
    async fn ship_start(&self, from: u64) -> Result<ShipmentItem, ReadError> {
        let head = self.reads.published.load(Ordering::Acquire);
        self.wait_for_erasures().await;
        let before = match from
            .checked_sub(1)
            .filter(|offset| (1..=head).contains(offset))
        {
            Some(offset) => Some(ShipMark {
                offset,
                chain: self.reads.reader.record(offset).await?.chain_hash(),
            }),
            None => None,
        };
        Ok(ShipmentItem::Start {
            identity: self.log.identity(),
            head,
            before,
        })
    }
}

impl ReadPath {
    /// Returns the next records up to the end of a batch; none if no batch has ended. Later records
    /// stay in `held`.
    async fn page(
        &self,
        next: u64,
        end: u64,
        held: &mut Vec<(u64, Record)>,
    ) -> Result<Vec<(u64, Record)>, ReadError> {
        let from = next + held.len() as u64;
        let room = usize::try_from(end - from + 1).unwrap_or(usize::MAX);
        let read = self
            .reader
            .records_once(from, room.min(RECORDS_MAX), RECORDS_BYTES_MAX);
        let read = read.await?;
        if read.is_empty() {
            return Err(ReadError::Damaged {
                position: self.reader.position(from),
                message: "the log ends before the published head".to_owned(),
            });
        }
        held.extend(read);
        let ends = |(offset, _): &(u64, Record)| *offset == end;
        let whole = match held.last().is_some_and(ends) {
            true => held.len(),
            false => last_batch(held),
        };
        let rest = held.split_off(whole);
        Ok(std::mem::replace(held, rest))
    }

    /// Returns the next page and its end as items; none if no batch has ended.
    async fn packed_page(
        &self,
        next: u64,
        end: u64,
        mut held: Vec<(u64, Record)>,
    ) -> Result<PackedPage, ReadError> {
        let page = self.page(next, end, &mut held).await?;
        let mut items = Vec::new();
        if let Some((last, record)) = page.last() {
            let reached = ShipmentItem::Reached {
                mark: ShipMark {
                    offset: *last,
                    chain: record.chain_hash(),
                },
                recorded_at: record.header.recorded_at,
                is_all: *last == end,
            };
            items = self.packed(next, page).await?;
            items.push(reached);
        }
        Ok(PackedPage { items, held })
    }

    async fn packed(
        &self,
        first: u64,
        records: Vec<(u64, Record)>,
    ) -> Result<Vec<ShipmentItem>, ReadError> {
        let mut packing = BlockBuilder::new(first);
        let mut items = Vec::new();
        for (offset, record) in records {
            if let RecordBody::Blob(blob) = &record.body {
                let home = blob.home_offset;
                if home == offset || !self.is_kept_at(home).await? {
                    if packing.homes.insert(home) {
                        let bytes = self.reader.body(&record).await?;
                        items.push(ShipmentItem::Blob { home, bytes });
                    }
                } else {
                    packing.needs.insert(home);
                }
            }
            if record.header.kind() == Some(EventKind::ContentErased) {
                items.extend(self.erasure_of(offset, &record).await?);
            }
            items.extend(packing.push(record)?);
        }
        items.extend(packing.finish()?);
        Ok(items)
    }

    /// Returns true when the record at a large body's home still refers to the body. The body is
    /// then shipped with that record.
    async fn is_kept_at(&self, home: u64) -> Result<bool, ReadError> {
        let record = self.reader.record(home).await?;
        Ok(matches!(&record.body, RecordBody::Blob(blob) if blob.home_offset == home))
    }

    async fn erasure_of(
        &self,
        offset: u64,
        record: &Record,
    ) -> Result<Option<ShipmentItem>, ReadError> {
        let bytes = self.reader.body(record).await?;
        let EventBody::ContentErased {
            revisions, reason, ..
        } = decode_body(offset, record.header.kind, &bytes)?
        else {
            return Ok(None);
        };
        let projections = self.projections.load_full();
        let header = &record.header;
        let mut offsets = Vec::with_capacity(revisions.len());
        for revision in &revisions {
            offsets.extend(projections.offset(header.key(), *revision)?);
        }
        Ok(Some(ShipmentItem::Erasure(ShippedErasure {
            position: offset,
            recorded_at: header.recorded_at,
            namespace: header.namespace.clone(),
            conversation: header.conversation,
            branch: header.branch,
            revisions,
            offsets,
            reason,
            actor: header.actor.clone(),
        })))
    }
}

/// A page of items.
struct PackedPage {
    items: Vec<ShipmentItem>,
    /// Records after the last complete batch.
    held: Vec<(u64, Record)>,
}

/// Blocks under construction, and the large bodies that their records refer to.
struct BlockBuilder {
    packer: Packer,
    /// Large bodies that are shipped with the page.
    homes: HashSet<u64>,
    /// Large bodies that are shipped with the record at their home offset.
    needs: HashSet<u64>,
}

impl BlockBuilder {
    fn new(first: u64) -> Self {
        Self {
            packer: Packer::plain(first),
            homes: HashSet::new(),
            needs: HashSet::new(),
        }
    }

    fn push(&mut self, record: Record) -> Result<Option<ShipmentItem>, ReadError> {
        let block = self.packer.push(record)?;
        Ok(block.map(|block| self.block(block)))
    }

    fn finish(&mut self) -> Result<Option<ShipmentItem>, ReadError> {
        let block = self.packer.finish()?;
        Ok(block.map(|block| self.block(block)))
    }

    fn block(&mut self, block: treering_log::EncodedFrame) -> ShipmentItem {
        let mut needs: Vec<u64> = std::mem::take(&mut self.needs).into_iter().collect();
        needs.sort_unstable();
        ShipmentItem::Block(ShippedBlock {
            first: block.first_offset,
            count: block.count,
            bytes: block.bytes,
            needs,
        })
    }
}

/// Returns the number of records before the last batch. Each batch has a unique time.
pub fn last_batch(records: &[(u64, Record)]) -> usize {
    let Some((_, last)) = records.last() else {
        return 0;
    };
    let time = last.header.recorded_at;
    let of_last = records
        .iter()
        .rev()
        .take_while(|(_, record)| record.header.recorded_at == time)
        .count();
    records.len() - of_last
}
