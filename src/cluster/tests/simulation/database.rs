//! The database of the simulation: the tables of nodes and owners with the rules of the SQL in
//! `treering-log-postgres`, and the log in memory. All nodes share it; it has a clock of its own.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use futures::FutureExt;
use treering_domain::ShardId;
use treering_log::{AcquiredShard, EncodedFrame, Epoch, EventLog, FrameBatch, LogError, MemoryLog};
use uuid::Uuid;

use crate::{ClusterView, LiveNode};

/// Number of shards.
pub(super) const SHARDS: u32 = 4;

/// An event: its number, which no other has, and its conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Event {
    pub(super) conversation: u32,
    pub(super) number: u64,
}

/// Returns the shard of a conversation.
pub(super) fn shard_of(conversation: u32) -> ShardId {
    ShardId(conversation % SHARDS)
}

impl Event {
    pub(super) fn frame(self, offset: u64) -> EncodedFrame {
        let mut bytes = self.conversation.to_le_bytes().to_vec();
        bytes.extend(self.number.to_le_bytes());
        EncodedFrame::new(offset, 1, Bytes::from(bytes))
    }

    pub(super) fn of(frame: &EncodedFrame) -> Self {
        let (conversation, number) = frame.bytes.split_at(4);
        Self {
            conversation: u32::from_le_bytes(conversation.try_into().unwrap()),
            number: u64::from_le_bytes(number.try_into().unwrap()),
        }
    }
}

struct NodeRow {
    process: Uuid,
    address: String,
    lease: Duration,
    /// `None` once it has left.
    seen: Option<Duration>,
    draining: bool,
    followed: Vec<(ShardId, u64)>,
}

#[derive(Default)]
struct ShardRow {
    owner: Option<Uuid>,
    epoch: Epoch,
}

/// See the module.
#[derive(Default)]
pub(super) struct Database {
    pub(super) now: Duration,
    nodes: BTreeMap<String, NodeRow>,
    shards: BTreeMap<ShardId, ShardRow>,
    log: MemoryLog,
    /// What every successful append has stored, by shard and offset.
    pub(super) stored: BTreeMap<(ShardId, u64), Event>,
    /// The first offset that got a second event.
    pub(super) overwritten: Option<(ShardId, u64)>,
}

/// Returns the result of a call of the log in memory, which never waits.
fn at_once<T>(call: impl Future<Output = T>) -> T {
    call.now_or_never().expect("the log in memory waited")
}

impl Database {
    fn is_live(&self, row: &NodeRow) -> bool {
        row.seen.is_some_and(|seen| seen + row.lease > self.now)
    }

    fn lives(&self, process: Uuid) -> bool {
        let mut nodes = self.nodes.values();
        nodes.any(|row| row.process == process && self.is_live(row))
    }

    /// Returns the process that has a node's name.
    pub(super) fn process_of(&self, node: &str) -> Option<Uuid> {
        self.nodes.get(node).map(|row| row.process)
    }

    pub(super) fn join(
        &mut self,
        process: Uuid,
        node: &str,
        address: String,
        lease: Duration,
    ) -> bool {
        let before = self.nodes.get(node);
        if before.is_some_and(|row| row.process != process && self.is_live(row)) {
            return false;
        }
        let row = NodeRow {
            process,
            address,
            lease,
            seen: Some(self.now),
            draining: false,
            followed: Vec::new(),
        };
        self.nodes.insert(node.to_owned(), row);
        true
    }

    pub(super) fn heartbeat(
        &mut self,
        process: Uuid,
        node: &str,
        draining: bool,
        followed: Vec<(ShardId, u64)>,
    ) -> bool {
        let row = self.nodes.get_mut(node);
        let Some(row) = row.filter(|row| row.process == process) else {
            return false;
        };
        (row.seen, row.draining, row.followed) = (Some(self.now), draining, followed);
        true
    }

    pub(super) fn leave(&mut self, process: Uuid, node: &str) {
        if let Some(row) = self.nodes.get_mut(node)
            && row.process == process
        {
            (row.seen, row.draining) = (None, true);
        }
    }

    pub(super) fn view(&self) -> ClusterView {
        let live = self.nodes.iter().filter(|(_, row)| self.is_live(row));
        let owners = self.shards.iter();
        ClusterView {
            nodes: live
                .map(|(name, row)| LiveNode {
                    name: name.clone(),
                    process: row.process,
                    address: row.address.clone(),
                    draining: row.draining,
                    followed: row.followed.clone(),
                })
                .collect(),
            owners: owners
                .filter_map(|(shard, row)| Some((*shard, row.owner?)))
                .collect(),
            // Nothing is erased here.
            erased: Vec::new(),
            heads: (0..SHARDS)
                .map(|shard| (ShardId(shard), self.head(ShardId(shard))))
                .collect(),
        }
    }

    /// Returns the offset of the last event of a shard.
    pub(super) fn head(&self, shard: ShardId) -> u64 {
        let mut stored = self.stored.range((shard, 0)..=(shard, u64::MAX));
        stored.next_back().map_or(0, |((_, offset), _)| *offset)
    }

    /// Returns the new epoch, or `None` if the owner lives or the claimant does not.
    pub(super) fn claim(&mut self, process: Uuid, shard: ShardId) -> Option<Epoch> {
        let owner = self.shards.get(&shard).and_then(|row| row.owner);
        let is_taken = owner.is_some_and(|owner| owner != process && self.lives(owner));
        if is_taken || !self.lives(process) {
            return None;
        }
        let epoch = self.raise_epoch(shard).ok()?.epoch;
        self.shards.entry(shard).or_default().owner = Some(process);
        Some(epoch)
    }

    pub(super) fn release(&mut self, process: Uuid, shard: ShardId, epoch: Epoch) {
        let row = self.shards.entry(shard).or_default();
        if row.owner == Some(process) && row.epoch == epoch {
            row.owner = None;
        }
    }

    /// Acquires a shard that the process has claimed.
    pub(super) fn acquire(
        &mut self,
        process: Uuid,
        shard: ShardId,
    ) -> Result<AcquiredShard, LogError> {
        let row = self.shards.entry(shard).or_default();
        if row.owner != Some(process) {
            return Err(LogError::NotOwner {
                shard,
                epoch: Epoch::default(),
                current: row.epoch,
            });
        }
        self.raise_epoch(shard)
    }

    fn raise_epoch(&mut self, shard: ShardId) -> Result<AcquiredShard, LogError> {
        let acquired = at_once(self.log.acquire(shard))?;
        self.shards.entry(shard).or_default().epoch = acquired.epoch;
        Ok(acquired)
    }

    pub(super) fn append(
        &mut self,
        shard: ShardId,
        epoch: Epoch,
        head: u64,
        batch: FrameBatch,
    ) -> Result<u64, LogError> {
        let frames = batch.frames.clone();
        let new_head = at_once(self.log.append(shard, epoch, head, batch))?;
        for frame in frames {
            let place = (shard, frame.first_offset);
            if self.stored.insert(place, Event::of(&frame)).is_some() {
                self.overwritten = Some(place);
            }
        }
        Ok(new_head)
    }

    pub(super) fn read(
        &self,
        shard: ShardId,
        from_offset: u64,
        bytes_max: usize,
    ) -> Result<Vec<EncodedFrame>, LogError> {
        at_once(self.log.read(shard, from_offset, bytes_max))
    }
}
