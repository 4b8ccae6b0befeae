//! Shipping: the log as a backup takes it, packed into blocks that say nothing but what
//! their own records hold.
//!
//! Frames cannot be shipped as they are stored: their nodes of salts cover other records,
//! too (`docs/decisions/0032`), so an object that is never rewritten would give away what is
//! erased somewhere else. Blocks have exactly their own.

use std::{
    collections::HashSet,
    sync::{Arc, atomic::Ordering},
};

use bytes::Bytes;
use futures::{StreamExt, stream::BoxStream};

use super::{Engine, Inner, error::ReadError, history::decode_body};
use crate::{
    domain::{
        BranchId, ContentHash, ConversationId, EventBody, EventKind, Namespace, Position, Revision,
        TimestampMicros,
    },
    log::{LogIdentity, Record, RecordBody, block::Packer},
};

/// Records that are read at once, and their bytes. A batch that is larger is taken whole.
const RECORDS_MAX: usize = 4_096;
const RECORDS_BYTES_MAX: usize = 4 << 20;

/// What is to be shipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShipQuery {
    /// The first offset, at least 1.
    pub from: u64,
    /// The last one, which ends a batch; none: what is published.
    pub to: Option<u64>,
    /// Goes on with what is appended meanwhile. It ends with an error only.
    pub follow: bool,
}

/// A record, by its offset and its chain hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShipMark {
    /// Its place.
    pub offset: u64,
    /// What all before it in its conversation is part of.
    pub chain: ContentHash,
}

/// A stretch of records, as a block that is not compressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShippedBlock {
    /// Offset of the first one.
    pub first: u64,
    /// How many.
    pub count: u32,
    /// As [`crate::log::block`] reads it.
    pub bytes: Bytes,
    /// Homes of large bodies that its records name and that are shipped with the record
    /// there.
    pub needs: Vec<u64>,
}

/// An event that says what was erased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShippedErasure {
    /// Its place.
    pub position: u64,
    /// When it was recorded.
    pub recorded_at: TimestampMicros,
    /// The tenant.
    pub namespace: Namespace,
    /// What it was erased from.
    pub conversation: ConversationId,
    /// Where the event is.
    pub branch: BranchId,
    /// What was erased.
    pub revisions: Vec<Revision>,
    /// Where these are in the log.
    pub offsets: Vec<u64>,
    /// Why.
    pub reason: String,
    /// By whom.
    pub actor: String,
}

/// What comes of shipping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shipped {
    /// First: which log it is, how far it goes, and what it has before the first offset
    /// that was asked for (none: nothing).
    Start {
        /// Which log.
        identity: LogIdentity,
        /// Its last offset.
        head: u64,
        /// The record before.
        before: Option<ShipMark>,
    },
    /// Records.
    Block(ShippedBlock),
    /// A large body that one of the records named.
    Blob {
        /// The offset under which it is kept.
        home: u64,
        /// All of it.
        bytes: Bytes,
    },
    /// One of the records says what was erased.
    Erasure(ShippedErasure),
    /// All up to here was shipped, and no batch is cut.
    Reached {
        /// The last record.
        mark: ShipMark,
        /// When it was recorded.
        recorded_at: TimestampMicros,
        /// Nothing more is published now.
        is_all: bool,
    },
}

/// What a backup did, as the store keeps it to tell who erases.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct BackupNote {
    /// Where it is, without what gives access to it.
    pub target: String,
    /// The newest generation.
    pub generation: u64,
    /// The last offset that it holds.
    pub head: u64,
    /// When, in microseconds since 1970.
    pub made_at: i64,
    /// What was recorded as erased up to this offset is in no generation any more.
    pub clean_to: u64,
}

impl Engine {
    /// Ships the log from an offset on, of all tenants: what erasing has hidden comes as
    /// stubs, as for every reader. It reads what is published and never delays an append.
    /// [`Shipped::Start`] comes first.
    pub fn ship(&self, query: ShipQuery) -> BoxStream<'static, Result<Shipped, ReadError>> {
        let inner = Arc::clone(&self.inner);
        async_stream::try_stream! {
            let mut news = inner.news.of_log();
            news.mark_unchanged();
            let mut next = query.from.max(1);
            yield inner.ship_start(next).await?;
            let mut held = Vec::new();
            loop {
                news.mark_unchanged();
                let head = inner.published.load(Ordering::Acquire);
                let end = query.to.map_or(head, |to| to.min(head));
                while next + (held.len() as u64) <= end {
                    let page = inner.page(next, end, &mut held).await?;
                    let Some((last, record)) = page.last() else { continue };
                    let (last, recorded_at) = (*last, record.header.recorded_at);
                    let mark = ShipMark { offset: last, chain: record.chain_hash() };
                    for item in inner.packed(next, page).await? {
                        yield item;
                    }
                    next = last + 1;
                    yield Shipped::Reached { mark, recorded_at, is_all: last == end };
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
    /// True when no conversation is marked as damaged.
    ///
    /// # Errors
    /// When the views cannot be read.
    pub(crate) fn is_whole(&self) -> Result<bool, ReadError> {
        Ok(self.inner.views.load().damaged()?.is_empty())
    }
}

impl Inner {
    /// Waits while something is being recorded as erased and is not hidden yet.
    async fn nothing_half_erased(&self) {
        drop(self.appending.read().await);
    }

    /// What is erased by events up to the head that it names is hidden from what follows.
    async fn ship_start(&self, from: u64) -> Result<Shipped, ReadError> {
        let head = self.published.load(Ordering::Acquire);
        self.nothing_half_erased().await;
        let before = match from
            .checked_sub(1)
            .filter(|offset| (1..=head).contains(offset))
        {
            Some(offset) => Some(ShipMark {
                offset,
                chain: self.reader.record(offset).await?.chain_hash(),
            }),
            None => None,
        };
        Ok(Shipped::Start {
            identity: self.log.identity(),
            head,
            before,
        })
    }

    /// The next records up to the end of a batch; nothing yet when none has ended. What
    /// comes behind that is held.
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
                position: Position::local(from),
                message: "the log ends before what is published".to_owned(),
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

    async fn packed(
        &self,
        first: u64,
        records: Vec<(u64, Record)>,
    ) -> Result<Vec<Shipped>, ReadError> {
        let mut packing = Packing::new(first);
        let mut items = Vec::new();
        for (offset, record) in records {
            if let RecordBody::Blob(blob) = &record.body {
                let home = blob.home_offset;
                if home == offset || !self.is_kept_at(home).await? {
                    if packing.homes.insert(home) {
                        let bytes = self.reader.body(&record).await?;
                        items.push(Shipped::Blob { home, bytes });
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

    /// True when the record at a large body's home still names it, and so ships it.
    async fn is_kept_at(&self, home: u64) -> Result<bool, ReadError> {
        let record = self.reader.record(home).await?;
        Ok(matches!(&record.body, RecordBody::Blob(blob) if blob.home_offset == home))
    }

    async fn erasure_of(&self, offset: u64, record: &Record) -> Result<Option<Shipped>, ReadError> {
        let bytes = self.reader.body(record).await?;
        let EventBody::ContentErased {
            revisions, reason, ..
        } = decode_body(offset, record.header.kind, &bytes)?
        else {
            return Ok(None);
        };
        let views = self.views.load_full();
        let header = &record.header;
        let mut offsets = Vec::with_capacity(revisions.len());
        for revision in &revisions {
            offsets.extend(views.offset(header.conversation, *revision)?);
        }
        Ok(Some(Shipped::Erasure(ShippedErasure {
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

/// Blocks that are being made of a page, and what their records name.
struct Packing {
    packer: Packer,
    /// Large bodies that are shipped with the page.
    homes: HashSet<u64>,
    /// Those that are named and shipped elsewhere.
    needs: HashSet<u64>,
}

impl Packing {
    fn new(first: u64) -> Self {
        Self {
            packer: Packer::plain(first),
            homes: HashSet::new(),
            needs: HashSet::new(),
        }
    }

    fn push(&mut self, record: Record) -> Result<Option<Shipped>, ReadError> {
        let block = self.packer.push(record)?;
        Ok(block.map(|block| self.block(block)))
    }

    fn finish(&mut self) -> Result<Option<Shipped>, ReadError> {
        let block = self.packer.finish()?;
        Ok(block.map(|block| self.block(block)))
    }

    fn block(&mut self, block: crate::log::EncodedFrame) -> Shipped {
        let mut needs: Vec<u64> = std::mem::take(&mut self.needs).into_iter().collect();
        needs.sort_unstable();
        Shipped::Block(ShippedBlock {
            first: block.first_offset,
            count: block.count,
            bytes: block.bytes,
            needs,
        })
    }
}

/// How many records there are before the last batch: each has a time of its own.
pub(crate) fn last_batch(records: &[(u64, Record)]) -> usize {
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
