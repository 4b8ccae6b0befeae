//! Which shard of a log a conversation belongs to.

use std::{collections::HashMap, sync::Arc};

use treering_domain::{ConversationId, EventBody, ShardId};
use uuid::Uuid;

use super::{AppendError, Engine, prepare::ValidatedBatch};

/// A shard, and the number of shards of its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardPlace {
    /// The shard, less than `shards`.
    pub shard: ShardId,
    /// How many shards the log has, at least 1.
    pub shards: u32,
}

/// Number of bytes at the end of an id that are added to the hash of the others.
const TAIL_BYTES: usize = 2;

/// Returns the shard of a conversation in a log with this number of shards.
///
/// It is (h + t) modulo `shards`: h is the first 8 bytes of the BLAKE3 hash of the id's first 14
/// bytes, little-endian; t is its last 2 bytes, big-endian. This never changes, because conversations are
/// found by it. Ids of any kind spread evenly, and [`ShardPlace::place`] needs no search.
#[must_use]
pub fn shard_of(id: ConversationId, shards: u32) -> ShardId {
    let shards = u64::from(shards.max(1));
    let (hash, tail) = parts(id);
    let shard = (hash % shards + u64::from(tail)) % shards;
    ShardId(u32::try_from(shard).unwrap_or_default())
}

/// Where the conversations of a log are: in the shard of their id ([`shard_of`]), except for those
/// that were moved in from a store of one shard with another id. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct ShardMap {
    shards: u32,
    moved: Arc<HashMap<ConversationId, ShardId>>,
}

impl ShardMap {
    /// Creates the map of a log with this number of shards, and these exceptions.
    #[must_use]
    pub fn new(shards: u32, moved: impl IntoIterator<Item = (ConversationId, ShardId)>) -> Self {
        let moved = moved.into_iter().collect();
        Self {
            shards,
            moved: Arc::new(moved),
        }
    }

    /// Returns the number of shards.
    #[must_use]
    pub fn shards(&self) -> u32 {
        self.shards
    }

    /// Returns the shard of a conversation.
    #[must_use]
    pub fn of(&self, id: ConversationId) -> ShardId {
        let moved = self.moved.get(&id).copied();
        moved.unwrap_or_else(|| shard_of(id, self.shards))
    }
}

fn parts(id: ConversationId) -> (u64, u16) {
    let bytes = id.0.as_bytes();
    let (front, tail) = bytes.split_at(bytes.len() - TAIL_BYTES);
    let mut hash = [0; 8];
    hash.copy_from_slice(&blake3::hash(front).as_bytes()[..8]);
    (
        u64::from_le_bytes(hash),
        u16::from_be_bytes([tail[0], tail[1]]),
    )
}

impl ShardPlace {
    /// Returns true when a conversation belongs to this shard.
    #[must_use]
    pub fn holds(self, id: ConversationId) -> bool {
        shard_of(id, self.shards) == self.shard
    }

    /// Returns an id that belongs to this shard: the id itself if it does, else the same id with
    /// other last bytes. The same id always gives the same one.
    #[must_use]
    pub fn place(self, id: ConversationId) -> ConversationId {
        let shards = self.shards.clamp(1, 1 << 15);
        let (_, tail) = parts(id);
        let away = (self.shard.0 % shards + shards - shard_of(id, shards).0) % shards;
        let tail = u32::from(tail) + away;
        // Stay below 2^16 without changing the remainder.
        let tail = match u16::try_from(tail) {
            Ok(tail) => tail,
            Err(_) => (tail - shards) as u16,
        };
        let mut bytes = *id.0.as_bytes();
        bytes[16 - TAIL_BYTES..].copy_from_slice(&tail.to_be_bytes());
        ConversationId(Uuid::from_bytes(bytes))
    }
}

impl Engine {
    /// Returns an id for a new conversation beside those of this engine: see
    /// [`ShardPlace::place`]. An embedded store takes any id.
    #[must_use]
    pub fn place(&self, id: ConversationId) -> ConversationId {
        self.inner.place.map_or(id, |place| place.place(id))
    }

    /// Checks that the conversations which a batch creates belong to this engine's shard.
    ///
    /// # Errors
    /// [`AppendError::Invalid`].
    pub(super) fn check_place(&self, batch: &ValidatedBatch) -> Result<(), AppendError> {
        let Some(place) = self.inner.place else {
            return Ok(());
        };
        let events = batch.command.events.iter().enumerate();
        let created = events
            .filter(|(_, event)| matches!(event.body.body(), EventBody::ConversationCreated(_)))
            .map(|(index, event)| (index, event.conversation));
        let may_create = batch.may_create().map(|id| (0, id));
        // One that was moved in from another store is already here.
        let namespace = &batch.command.namespace;
        let exists = |id: ConversationId| self.inner.reads.row(namespace, id).is_ok();
        let mut new = created.chain(may_create);
        match new.find(|(_, id)| !place.holds(*id) && !exists(*id)) {
            None => Ok(()),
            Some((event_index, id)) => Err(AppendError::Invalid {
                event_index,
                message: format!(
                    "conversation {id} would be in shard {}, but its parent or the rest of the \
                     batch is in shard {}. Leave its id out: the server then chooses one of the \
                     right shard",
                    shard_of(id, place.shards).0,
                    place.shard.0
                ),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        // An id that is placed in a shard but found in another one would make a fork unreachable.
        #[test]
        fn placed_ids_belong_to_the_shard(id: u128, shards in 1..=4_096_u32, shard: u32) {
            let id = ConversationId(Uuid::from_u128(id));
            let place = ShardPlace { shard: ShardId(shard % shards), shards };
            let placed = place.place(id);
            prop_assert!(place.holds(placed));
            prop_assert_eq!(place.place(placed), placed);
            prop_assert_eq!(placed.0.get_version_num(), id.0.get_version_num());
            prop_assert_eq!(place.holds(id), placed == id);
        }
    }

    // Conversations are found by this function in twenty years too.
    #[test]
    fn shards_of_known_ids_never_change() {
        let of = |number: u128, shards| shard_of(ConversationId(Uuid::from_u128(number)), shards).0;
        let known: Vec<_> = [0, 1, u128::MAX, 0x0192_f3c4 << 96]
            .map(|number| (of(number, 64), of(number, 4_096)))
            .into();
        assert_eq!(known, KNOWN);
    }

    const KNOWN: [(u32, u32); 4] = [(15, 3855), (16, 3856), (51, 1779), (17, 1681)];

    // Sequential ids, as some clients make them, and random ones must spread evenly.
    #[test]
    fn ids_spread_evenly() {
        let mut kinds = [[0_u32; 16]; 3];
        for number in 0..16_000_u128 {
            let ids = [
                Uuid::from_u128(number),
                ConversationId::generate().0,
                Uuid::from_u128(number << 64),
            ];
            for (count, id) in kinds.iter_mut().zip(ids) {
                count[shard_of(ConversationId(id), 16).0 as usize] += 1;
            }
        }
        for counts in kinds {
            assert!(
                counts.iter().all(|count| (850..1_150).contains(count)),
                "{counts:?}"
            );
        }
    }
}
