//! Sealed segments: where their objects are, and reading from them.
//!
//! A row of `treering_segment` names an object, whose name has the hash of its content. Sealing moves
//! frames from the database into a segment and never back, so a read that does not find a frame in
//! the database finds it in a segment afterwards.

use std::sync::{Arc, PoisonError};

use bytes::Bytes;
use quick_cache::sync::Cache;
use tokio_postgres::Row;
use treering_domain::ShardId;
use treering_log::{BlobRef, EncodedFrame, LogError};
use treering_objects::{ObjectStorage, WriteMode};
use uuid::Uuid;

use crate::{
    error::PostgresError,
    log::Inner,
    object::{SegmentIndex, SegmentObject},
    session::SqlParam,
};

/// Maximum number of segment indexes in memory. Each takes up to half a megabyte, with its dictionary.
const INDEXES_MAX: usize = 64;

const CONFIGURED: &str = "select objects, hot_bytes from treering_log";
const FIND: &str = "select number, hash, first_offset, last_offset, index_bytes, bytes \
     from treering_segment where shard = $1 and is_live and last_offset >= $2 \
     order by last_offset limit 1";
const ALL: &str = "select number, hash, first_offset, last_offset, index_bytes, bytes \
     from treering_segment where shard = $1 and is_live order by last_offset";

const READING: &str = "reading a sealed segment";

/// A segment, as its row names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentRow {
    /// Unique in its shard. It is never used again.
    pub(crate) number: i64,
    /// BLAKE3 of the object.
    pub(crate) hash: [u8; 32],
    pub(crate) first_offset: u64,
    pub(crate) last_offset: u64,
    pub(crate) index_bytes: i32,
    pub(crate) bytes: i64,
}

impl SegmentRow {
    fn of(row: &Row) -> Result<Self, LogError> {
        let first_offset = row.get::<_, i64>(2).cast_unsigned();
        let hash = row.get::<_, &[u8]>(1).try_into();
        Ok(Self {
            number: row.get(0),
            hash: hash
                .map_err(|_| LogError::damaged(first_offset, "a segment has an invalid hash"))?,
            first_offset,
            last_offset: row.get::<_, i64>(3).cast_unsigned(),
            index_bytes: row.get(4),
            bytes: row.get(5),
        })
    }

    /// Describes an object that was not put yet. Its number is still unknown.
    pub(crate) fn of_object(object: &SegmentObject) -> Self {
        Self {
            number: 0,
            hash: *blake3::hash(&object.bytes).as_bytes(),
            first_offset: object.first_offset,
            last_offset: object.last_offset,
            index_bytes: i32::try_from(object.index_bytes).unwrap_or(i32::MAX),
            bytes: i64::try_from(object.bytes.len()).unwrap_or(i64::MAX),
        }
    }

    /// Returns the number of its records.
    pub(crate) fn count(&self) -> u64 {
        (self.last_offset + 1).saturating_sub(self.first_offset)
    }

    pub(crate) fn no_storage(&self) -> LogError {
        self.damaged("it is in a segment, and the database names no object storage")
    }

    fn damaged(&self, what: &str) -> LogError {
        LogError::damaged(self.first_offset, what)
    }
}

/// The object storage of a log.
pub(crate) struct SegmentStore {
    /// As the database has it.
    address: String,
    /// How many bytes of each shard stay in the database.
    pub(crate) hot_bytes: u64,
    store: Uuid,
    storage: ObjectStorage,
    indexes: Cache<(ShardId, i64), Arc<SegmentIndex>>,
}

impl SegmentStore {
    async fn open(address: &str, hot_bytes: u64, store: Uuid) -> Result<Self, PostgresError> {
        let failed = |error| PostgresError::of_objects(&error);
        let storage = ObjectStorage::to_read(address).map_err(failed)?;
        let opened = Self {
            address: address.to_owned(),
            hot_bytes,
            store,
            storage,
            indexes: Cache::new(INDEXES_MAX),
        };
        opened.check_marker().await?;
        Ok(opened)
    }

    /// Returns the name of an object.
    pub(crate) fn name_of(&self, shard: ShardId, number: i64, hash: &[u8; 32]) -> String {
        let hash = blake3::Hash::from_bytes(*hash).to_hex();
        format!("{}/{}/{number:016x}-{hash}", self.store, shard.0)
    }

    /// Fails if the storage is not the one in which segments were put, for example because a file
    /// system is not mounted.
    async fn check_marker(&self) -> Result<(), PostgresError> {
        let name = marker_of(self.store);
        let found = self.storage.find(&name).await;
        match found.map_err(|error| PostgresError::of_objects(&error))? {
            Some(_) => Ok(()),
            None => Err(PostgresError::Objects {
                what: format!(
                    "{} is missing. Check that this folder is mounted, or that the bucket is the \
                     right one",
                    self.storage.address_of(&name)
                ),
            }),
        }
    }

    /// Returns why an object is not there.
    async fn explain_missing(&self, shard: ShardId, row: &SegmentRow) -> LogError {
        let name = self.name_of(shard, row.number, &row.hash);
        match self.check_marker().await {
            Err(error) => error.while_doing(READING),
            Ok(()) => row.damaged(&format!("{} is missing", self.storage.address_of(&name))),
        }
    }

    async fn part(
        &self,
        shard: ShardId,
        row: &SegmentRow,
        range: std::ops::Range<u64>,
    ) -> Result<Option<Bytes>, LogError> {
        if range.end > row.bytes.cast_unsigned() {
            return Err(row.damaged("segment is shorter than its index states"));
        }
        let name = self.name_of(shard, row.number, &row.hash);
        let found = self.storage.find_range(&name, range.clone()).await;
        let found =
            found.map_err(|error| PostgresError::of_objects(&error).while_doing(READING))?;
        let is_whole = |bytes: &Bytes| bytes.len() as u64 == range.end - range.start;
        match found {
            Some(bytes) if !is_whole(&bytes) => Err(row.damaged("segment has another length")),
            found => Ok(found),
        }
    }

    /// Returns the index of a segment; `None` if its object is missing.
    async fn index(
        &self,
        shard: ShardId,
        row: &SegmentRow,
    ) -> Result<Option<Arc<SegmentIndex>>, LogError> {
        if let Some(known) = self.indexes.get(&(shard, row.number)) {
            return Ok(Some(known));
        }
        let length = u64::try_from(row.index_bytes).unwrap_or_default();
        let Some(bytes) = self.part(shard, row, 0..length).await? else {
            return Ok(None);
        };
        let index = Arc::new(SegmentIndex::decode(row.first_offset, &bytes)?);
        self.indexes.insert((shard, row.number), Arc::clone(&index));
        Ok(Some(index))
    }

    async fn blocks(
        &self,
        shard: ShardId,
        row: &SegmentRow,
        from: u64,
        bytes_max: usize,
    ) -> Result<Option<Vec<EncodedFrame>>, LogError> {
        let Some(index) = self.index(shard, row).await? else {
            return Ok(None);
        };
        let places = index.blocks_from(from, bytes_max);
        let (first, last) = (&places[0], &places[places.len() - 1]);
        let start = first.range.start;
        let range = start..last.range.end;
        let Some(bytes) = self.part(shard, row, range).await? else {
            return Ok(None);
        };
        let blocks = places.iter().map(|place| {
            let range = place.range.start - start..place.range.end - start;
            index.block(place, bytes.slice(range.start as usize..range.end as usize))
        });
        Ok(Some(blocks.collect()))
    }

    async fn body(
        &self,
        shard: ShardId,
        row: &SegmentRow,
        named: &BlobRef,
    ) -> Result<Option<Bytes>, LogError> {
        let Some(index) = self.index(shard, row).await? else {
            return Ok(None);
        };
        let missing = || LogError::damaged(named.home_offset, crate::object::BODY_DAMAGED);
        let place = index.body(named.home_offset).ok_or_else(missing)?;
        let Some(stored) = self.part(shard, row, place.range.clone()).await? else {
            return Ok(None);
        };
        place.unpack(&stored).ok_or_else(missing).map(Some)
    }

    /// Returns a whole object, checked against its hash.
    pub(crate) async fn object(&self, shard: ShardId, row: &SegmentRow) -> Result<Bytes, LogError> {
        let name = self.name_of(shard, row.number, &row.hash);
        let found = self.storage.find(&name).await;
        let found =
            found.map_err(|error| PostgresError::of_objects(&error).while_doing(READING))?;
        let Some(bytes) = found else {
            return Err(self.explain_missing(shard, row).await);
        };
        if *blake3::hash(&bytes).as_bytes() != row.hash {
            return Err(row.damaged("segment does not match its hash"));
        }
        Ok(bytes)
    }

    /// Puts an object, and reads it back.
    pub(crate) async fn put(
        &self,
        shard: ShardId,
        row: &SegmentRow,
        bytes: Bytes,
    ) -> Result<(), LogError> {
        let name = self.name_of(shard, row.number, &row.hash);
        // An object of this name has this content: an earlier try, whose answer was lost, wrote it.
        let put = self.storage.put(&name, bytes, WriteMode::Once).await;
        put.map_err(|error| PostgresError::of_objects(&error).while_doing("writing a segment"))?;
        self.object(shard, row).await.map(drop)
    }

    /// Removes an object.
    pub(crate) async fn remove(
        &self,
        shard: ShardId,
        number: i64,
        hash: &[u8; 32],
    ) -> Result<(), LogError> {
        let removed = self
            .storage
            .remove(&self.name_of(shard, number, hash))
            .await;
        removed.map_err(|error| PostgresError::of_objects(&error).while_doing("removing a segment"))
    }
}

/// Returns the name of the object that shows that a storage belongs to a store.
pub(crate) fn marker_of(store: Uuid) -> String {
    format!("{store}/treering.txt")
}

impl Inner {
    /// Returns the object storage, if the log has one and it was opened.
    pub(crate) fn segment_store(&self) -> Option<Arc<SegmentStore>> {
        let store = self.segments.lock();
        store.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Opens the object storage that the database names, unless it is open.
    pub(crate) async fn open_segment_store(&self) -> Result<Option<Arc<SegmentStore>>, LogError> {
        let rows = self
            .ask("looking for the object storage", CONFIGURED, &[])
            .await?;
        let row = rows.first();
        let address = row.and_then(|row| row.get::<_, Option<&str>>(0));
        let Some((row, address)) = row.zip(address) else {
            return Ok(None);
        };
        let hot_bytes = row.get::<_, i64>(1).cast_unsigned();
        let known = self.segment_store();
        let known = known.filter(|it| it.address == address && it.hot_bytes == hot_bytes);
        if known.is_some() {
            return Ok(known);
        }
        let opened = SegmentStore::open(address, hot_bytes, self.identity.store).await;
        let opened = opened.map_err(|error| error.while_doing("opening the object storage"))?;
        let opened = Some(Arc::new(opened));
        let mut store = self.segments.lock().unwrap_or_else(PoisonError::into_inner);
        store.clone_from(&opened);
        Ok(opened)
    }

    /// Returns the first segment that ends at an offset or after it.
    async fn find_segment(
        &self,
        shard: ShardId,
        offset: u64,
    ) -> Result<Option<SegmentRow>, LogError> {
        let params: [SqlParam<'_>; 2] = [&i64::from(shard.0), &offset.cast_signed()];
        let rows = self.ask("looking for a segment", FIND, &params).await?;
        rows.first().map(SegmentRow::of).transpose()
    }

    /// Returns all segments of a shard.
    pub(crate) async fn segments_of(&self, shard: ShardId) -> Result<Vec<SegmentRow>, LogError> {
        let params: [SqlParam<'_>; 1] = [&i64::from(shard.0)];
        let rows = self.ask("looking for segments", ALL, &params).await?;
        rows.iter().map(SegmentRow::of).collect()
    }

    /// Returns the segment that contains an offset, and its storage. `missing`: the one that was
    /// returned before, if its object is missing. An erasure may have replaced it since.
    async fn locate(
        &self,
        shard: ShardId,
        offset: u64,
        missing: Option<&SegmentRow>,
    ) -> Result<Option<(Arc<SegmentStore>, SegmentRow)>, LogError> {
        let found = self.find_segment(shard, offset).await?;
        let Some(row) = found.filter(|row| row.first_offset <= offset) else {
            return Ok(None);
        };
        self.shard(shard)?.sealed(row.last_offset);
        let mut store = self.segment_store();
        if store.is_none() {
            store = self.open_segment_store().await?;
        }
        let store = store.ok_or_else(|| row.no_storage())?;
        if missing == Some(&row) {
            return Err(store.explain_missing(shard, &row).await);
        }
        Ok(Some((store, row)))
    }

    /// Returns blocks from the one that contains an offset on; `None` if no segment does.
    pub(crate) async fn sealed_blocks(
        &self,
        shard: ShardId,
        from: u64,
        bytes_max: usize,
    ) -> Result<Option<Vec<EncodedFrame>>, LogError> {
        let mut missing = None;
        while let Some((store, row)) = self.locate(shard, from, missing.as_ref()).await? {
            let blocks = store.blocks(shard, &row, from, bytes_max).await?;
            if blocks.is_some() {
                return Ok(blocks);
            }
            missing = Some(row);
        }
        Ok(None)
    }

    /// Returns a large body, not yet checked; `None` if no segment contains its home offset.
    pub(crate) async fn sealed_body(
        &self,
        shard: ShardId,
        named: &BlobRef,
    ) -> Result<Option<Bytes>, LogError> {
        let (mut missing, home) = (None, named.home_offset);
        while let Some((store, row)) = self.locate(shard, home, missing.as_ref()).await? {
            let body = store.body(shard, &row, named).await?;
            if body.is_some() {
                return Ok(body);
            }
            missing = Some(row);
        }
        Ok(None)
    }

    /// Returns the first offset after another at which a block begins.
    pub(crate) async fn next_block(
        &self,
        shard: ShardId,
        after: u64,
    ) -> Result<Option<u64>, LogError> {
        let next = after.saturating_add(1);
        let Some(row) = self.find_segment(shard, next).await? else {
            return Ok(None);
        };
        if row.first_offset >= next {
            return Ok(Some(row.first_offset));
        }
        let mut missing = None;
        let index = loop {
            let Some((store, row)) = self.locate(shard, next, missing.as_ref()).await? else {
                return Ok(None);
            };
            match store.index(shard, &row).await? {
                Some(index) => break index,
                None => missing = Some(row),
            }
        };
        let at = index.blocks.partition_point(|it| it.first_offset <= after);
        match index.blocks.get(at) {
            Some(block) => Ok(Some(block.first_offset)),
            None => {
                let following = self.find_segment(shard, row.last_offset + 1).await?;
                Ok(following.map(|row| row.first_offset))
            }
        }
    }
}
