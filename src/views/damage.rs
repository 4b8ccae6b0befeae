//! What the log could not say when it was folded: stretches that cannot be read,
//! and the conversations that are damaged by it. The marks themselves are in the
//! conversations' rows; here is which rows have one.

use crate::domain::{ConversationId, ConversationRow};

use super::{
    delta::ViewDelta,
    error::ViewsError,
    keys,
    marks::put_meta,
    read::{conversation, prefix_of},
    store::Views,
    table::{CONVERSATIONS, META, RawTable},
};

/// Begins the keys of stretches; their first offset follows, big endian.
const LOST: &[u8] = b"lost/";
/// Begins the keys of damaged conversations; their id follows.
const DAMAGED: &[u8] = b"damaged/";

/// Writes what a delta says of damage.
pub(super) fn note(meta: &mut RawTable<'_>, delta: &ViewDelta) {
    for (first, last) in &delta.lost {
        let key = [LOST, &first.to_be_bytes()].concat();
        put_meta(meta, &key, &last.to_le_bytes());
    }
    for row in delta.conversations.iter().filter(|r| r.damage.is_some()) {
        let key = [DAMAGED, row.id.0.as_bytes()].concat();
        put_meta(meta, &key, &[]);
    }
}

impl Views {
    /// Stretches of the log that could not be read, first and last offset, both
    /// inclusive, in order.
    ///
    /// # Errors
    /// As every read.
    pub fn lost(&self) -> Result<Vec<(u64, u64)>, ViewsError> {
        self.read(|reader| {
            let rows = prefix_of(&reader.table(META), LOST)?;
            let ends = |(key, value): (Vec<u8>, Vec<u8>)| {
                let last = <[u8; 8]>::try_from(value.as_slice()).ok()?;
                Some((keys::last_number(&key)?, u64::from_le_bytes(last)))
            };
            let ends = rows.into_iter().map(ends).collect::<Option<_>>();
            ends.ok_or_else(|| ViewsError::damaged("a lost stretch has no end"))
        })
    }

    /// Every conversation that is damaged, by id, of all namespaces.
    ///
    /// # Errors
    /// As every read.
    pub fn damaged(&self) -> Result<Vec<ConversationRow>, ViewsError> {
        self.read(|reader| {
            let table = reader.table(CONVERSATIONS);
            let mut rows = Vec::new();
            for (key, _) in prefix_of(&reader.table(META), DAMAGED)? {
                let id = keys::last_conversation(&key);
                let row = id.map(|id: ConversationId| conversation(&table, id));
                rows.extend(row.transpose()?.flatten());
            }
            Ok(rows)
        })
    }
}
