//! Indexes the damage that was found when the log was folded: unreadable ranges, and the
//! conversations that they damaged. The damage itself is recorded in the conversations' rows.

use treering_domain::ConversationRow;

use super::{
    delta::ProjectionDelta,
    error::ProjectionsError,
    keys,
    meta::put_meta,
    read::{conversation, prefix_of},
    store::Projections,
    table::{CONVERSATIONS, META, RawTable},
};

/// Prefix of the keys of lost ranges; the first offset follows, big-endian.
const LOST: &[u8] = b"lost/";
/// Prefix of the keys of damaged conversations; the conversation's key follows.
const DAMAGED: &[u8] = b"damaged/";

/// Writes the damage that a delta contains.
pub(super) fn note(meta: &mut RawTable<'_>, delta: &ProjectionDelta) {
    for (first, last) in &delta.lost {
        let key = [LOST, &first.to_be_bytes()].concat();
        put_meta(meta, &key, &last.to_le_bytes());
    }
    for row in delta.conversations.iter().filter(|r| r.damage.is_some()) {
        let key = [DAMAGED, &row.key().to_bytes()].concat();
        put_meta(meta, &key, &[]);
    }
}

impl Projections {
    /// Returns the ranges of the log that could not be read, first and last offset, both inclusive,
    /// in order.
    ///
    /// # Errors
    /// As for every read.
    pub fn lost(&self) -> Result<Vec<(u64, u64)>, ProjectionsError> {
        self.read(|reader| {
            let rows = prefix_of(&reader.table(META), LOST)?;
            let ends = |(key, value): (Vec<u8>, Vec<u8>)| {
                let last = <[u8; 8]>::try_from(value.as_slice()).ok()?;
                Some((keys::last_number(&key)?, u64::from_le_bytes(last)))
            };
            let ends = rows.into_iter().map(ends).collect::<Option<_>>();
            ends.ok_or_else(|| ProjectionsError::damaged("an unreadable range has no end"))
        })
    }

    /// Returns every damaged conversation of all namespaces, by key.
    ///
    /// # Errors
    /// As for every read.
    pub fn damaged(&self) -> Result<Vec<ConversationRow>, ProjectionsError> {
        self.read(|reader| {
            let table = reader.table(CONVERSATIONS);
            let mut rows = Vec::new();
            for (key, _) in prefix_of(&reader.table(META), DAMAGED)? {
                let id = keys::conversation_of(&key[DAMAGED.len()..]);
                let row = id.map(|id| conversation(&table, id));
                rows.extend(row.transpose()?.flatten());
            }
            Ok(rows)
        })
    }
}
