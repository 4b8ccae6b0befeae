//! Where a subscription to the log continues: a position of each shard.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;

use super::from_proto::InvalidField;
use treering_domain::ShardId;
use treering_proto::pb;

/// The last offset that was sent of each shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LogCursor(pub(super) BTreeMap<ShardId, u64>);

impl LogCursor {
    /// Reads the cursor of a request for a log of this many shards.
    ///
    /// # Errors
    /// It is not a cursor, or not of such a log.
    pub(super) fn decode(bytes: &[u8], shards: u32) -> Result<Self, InvalidField> {
        let field = "after_cursor";
        let cursor = pb::LogCursor::decode(bytes)
            .map_err(|_| InvalidField::new(field, "is not a cursor that a server sent"))?;
        if let Some(other) = cursor.reached.iter().find(|place| place.shard >= shards) {
            let message = format!("is of another store: there is no shard {}", other.shard);
            return Err(InvalidField::new(field, message));
        }
        let reached = cursor.reached.into_iter();
        Ok(Self(
            reached
                .map(|place| (ShardId(place.shard), place.offset))
                .collect(),
        ))
    }

    pub(super) fn encode(&self) -> Bytes {
        let reached = self.0.iter().map(|(shard, offset)| pb::Position {
            shard: shard.0,
            offset: *offset,
        });
        let cursor = pb::LogCursor {
            reached: reached.collect(),
        };
        cursor.encode_to_vec().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A subscription that goes on at the wrong place loses events without a word.
    #[test]
    fn cursors_of_other_logs_are_refused() {
        let cursor = LogCursor([(ShardId(0), 7), (ShardId(5), 9)].into());
        let bytes = cursor.encode();
        assert_eq!(LogCursor::decode(&bytes, 6), Ok(cursor));
        assert!(LogCursor::decode(&bytes, 5).is_err());
        assert!(LogCursor::decode(b"what is this", 6).is_err());
    }
}
