//! Decides in which shard each conversation of an embedded store goes.
//!
//! A conversation tree must be in one shard; a batch is always in one tree. A tree goes to the shard
//! of its first conversation. An embedded store gives forks and sub-contexts ids of any shard, so
//! these are often not in the shard of their own id.

use std::collections::HashMap;

use treering_domain::{ConversationId, EventBody, EventKind, ShardId};
use treering_engine::shard_of;
use treering_log::Record;
use treering_proto::body::decode;

use super::{MoveError, stream::RecordStream};

/// The trees of a store's conversations.
#[derive(Default)]
pub(super) struct ConversationTrees {
    /// Conversations by the order in which they first occur.
    numbers: HashMap<ConversationId, usize>,
    ids: Vec<ConversationId>,
    /// An earlier conversation of the same tree, or itself.
    earlier: Vec<usize>,
}

impl ConversationTrees {
    /// Notes what a record says about its conversation.
    pub(super) async fn add(
        &mut self,
        stream: &RecordStream,
        record: &Record,
    ) -> Result<(), MoveError> {
        let own = self.number(record.header.conversation);
        if let Some(other) = related(stream, record).await? {
            let other = self.number(other);
            self.unite(own, other);
        }
        Ok(())
    }

    fn number(&mut self, id: ConversationId) -> usize {
        let next = self.ids.len();
        let number = *self.numbers.entry(id).or_insert(next);
        if number == next {
            self.ids.push(id);
            self.earlier.push(next);
        }
        number
    }

    fn first_of(&mut self, number: usize) -> usize {
        let mut first = number;
        while self.earlier[first] != first {
            self.earlier[first] = self.earlier[self.earlier[first]];
            first = self.earlier[first];
        }
        first
    }

    fn unite(&mut self, one: usize, other: usize) {
        let (one, other) = (self.first_of(one), self.first_of(other));
        self.earlier[one.max(other)] = one.min(other);
    }

    /// Returns the shard of each conversation.
    pub(super) fn placed(mut self, shards: u32) -> Placement {
        let ids = std::mem::take(&mut self.ids);
        let mut placement = Placement::default();
        for (number, id) in ids.iter().enumerate() {
            let first = self.first_of(number);
            let shard = shard_of(ids[first], shards);
            placement.shards.insert(*id, shard);
            if shard != shard_of(*id, shards) {
                placement.moved.push((*id, shard));
            }
        }
        placement
    }
}

/// The shard of each conversation of a store.
#[derive(Default)]
pub(super) struct Placement {
    pub(super) shards: HashMap<ConversationId, ShardId>,
    /// Those that are not in the shard of their id.
    pub(super) moved: Vec<(ConversationId, ShardId)>,
}

/// Returns the conversations that an event says are in one tree with its own.
async fn related(
    stream: &RecordStream,
    record: &Record,
) -> Result<Option<ConversationId>, MoveError> {
    let Some(kind) = record.header.kind() else {
        return Ok(None);
    };
    let relates = [EventKind::ConversationCreated, EventKind::SubContextSpawned];
    if !relates.contains(&kind) {
        return Ok(None);
    }
    let body = decode(kind, &stream.body(record).await?);
    let body = body.map_err(|fault| MoveError::Log {
        doing: "reading an event",
        source: treering_log::LogError::damaged(0, fault.to_string()),
    })?;
    Ok(match body {
        EventBody::ConversationCreated(created) => created.parent.map(|parent| parent.conversation),
        EventBody::SubContextSpawned(spawned) => Some(spawned.conversation),
        _ => None,
    })
}
