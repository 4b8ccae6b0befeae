//! Tracks the head of each conversation during a pass through the log, in bounded memory.
//!
//! A verification needs, for each event, the chain hash of the previous event of its conversation.
//! The projections know only the last one of each conversation, and are themselves to be verified.
//! So the pass keeps the heads itself: the latest in memory, and the rest, once there are many
//! conversations, in an unnamed temporary file.

use std::{collections::HashMap, path::Path};

use redb::{Database, ReadableTable, TableDefinition, WriteTransaction, backends::FileBackend};

use super::ProjectionsError;
use treering_domain::{ContentHash, ConversationKey, Revision};

/// Maps a conversation's key to its last revision and that event's chain hash.
const HEADS: TableDefinition<[u8; ConversationKey::BYTES], [u8; 40]> =
    TableDefinition::new("heads");
/// Maximum number of heads in memory, about 6 MiB. Small in tests, so that they reach the file with
/// a few conversations.
const RECENT_MAX: usize = if cfg!(test) { 8 } else { 65_536 };
/// Page cache of the file, in bytes.
const CACHE_BYTES: usize = 8 << 20;

/// The last event of a conversation in a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Its revision.
    pub revision: Revision,
    /// Its chain hash.
    pub chain_hash: ContentHash,
}

impl Head {
    fn to_bytes(self) -> [u8; 40] {
        let mut bytes = [0; 40];
        bytes[..8].copy_from_slice(&self.revision.0.to_le_bytes());
        bytes[8..].copy_from_slice(&self.chain_hash.0);
        bytes
    }

    fn from_bytes(bytes: &[u8; 40]) -> Self {
        let (mut revision, mut chain) = ([0; 8], [0; 32]);
        revision.copy_from_slice(&bytes[..8]);
        chain.copy_from_slice(&bytes[8..]);
        Self {
            revision: Revision(u64::from_le_bytes(revision)),
            chain_hash: ContentHash(chain),
        }
    }
}

/// The heads of all conversations in a pass.
#[derive(Default)]
pub struct Heads {
    recent: HashMap<ConversationKey, Head>,
    rest: Option<SpillFile>,
    count: u64,
}

/// The file with the heads that are not in memory.
struct SpillFile {
    /// One transaction that is never committed: nothing has to be durable. Declared before the
    /// database, because it must be dropped first.
    transaction: WriteTransaction,
    _database: Database,
}

impl Heads {
    /// Returns the number of conversations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns a conversation's head; the default one before its first event.
    ///
    /// # Errors
    /// [`ProjectionsError`] when the file fails.
    pub fn get(&self, id: ConversationKey) -> Result<Head, ProjectionsError> {
        if let Some(head) = self.recent.get(&id) {
            return Ok(*head);
        }
        let Some(rest) = &self.rest else {
            return Ok(Head::default());
        };
        let table = rest.transaction.open_table(HEADS)?;
        let head = table.get(id.to_bytes())?;
        Ok(head.map_or_else(Head::default, |bytes| Head::from_bytes(&bytes.value())))
    }

    /// Sets the next head of a conversation whose head was `before`. If a file is needed, it is
    /// created in `dir`, or in the system's temporary folder.
    ///
    /// # Errors
    /// [`ProjectionsError`] when the file fails.
    pub fn set(
        &mut self,
        dir: Option<&Path>,
        id: ConversationKey,
        before: Head,
        head: Head,
    ) -> Result<(), ProjectionsError> {
        self.count += u64::from(before == Head::default());
        if self.recent.len() >= RECENT_MAX && !self.recent.contains_key(&id) {
            self.spill(dir)?;
        }
        self.recent.insert(id, head);
        Ok(())
    }

    /// Returns at most `limit` heads after `after`, in key order; empty when there are no more.
    ///
    /// # Errors
    /// [`ProjectionsError`] when the file fails.
    pub fn page(
        &mut self,
        after: Option<ConversationKey>,
        limit: usize,
    ) -> Result<Vec<(ConversationKey, Head)>, ProjectionsError> {
        if self.rest.is_some() {
            self.spill(None)?;
        }
        let Some(rest) = &self.rest else {
            let behind = |id: &ConversationKey| after.is_none_or(|after| *id > after);
            let mut heads: Vec<_> = self.recent.iter().map(|(id, head)| (*id, *head)).collect();
            heads.retain(|(id, _)| behind(id));
            heads.sort_by_key(|(id, _)| *id);
            heads.truncate(limit);
            return Ok(heads);
        };
        let table = rest.transaction.open_table(HEADS)?;
        let from = match after {
            Some(after) => std::ops::Bound::Excluded(after.to_bytes()),
            None => std::ops::Bound::Unbounded,
        };
        let rows =
            table.range::<[u8; ConversationKey::BYTES]>((from, std::ops::Bound::Unbounded))?;
        let heads = rows.take(limit).map(|row| {
            let (id, head) = row?;
            let id = ConversationKey::from_bytes(&id.value());
            Ok((id, Head::from_bytes(&head.value())))
        });
        heads.collect()
    }

    /// Moves the heads in memory to the file.
    fn spill(&mut self, dir: Option<&Path>) -> Result<(), ProjectionsError> {
        let rest = match self.rest.take() {
            Some(rest) => rest,
            None => begin(dir)?,
        };
        {
            let mut table = rest.transaction.open_table(HEADS)?;
            // In the order of the file, because neighbours share pages.
            let mut heads: Vec<_> = self.recent.drain().collect();
            heads.sort_by_key(|(id, _)| *id);
            for (id, head) in heads {
                table.insert(id.to_bytes(), head.to_bytes())?;
            }
        }
        self.rest = Some(rest);
        Ok(())
    }
}

fn begin(dir: Option<&Path>) -> Result<SpillFile, ProjectionsError> {
    let file = match dir {
        Some(dir) => tempfile::tempfile_in(dir)?,
        None => tempfile::tempfile()?,
    };
    let database = Database::builder()
        .set_cache_size(CACHE_BYTES)
        .create_with_backend(FileBackend::new(file)?)?;
    Ok(SpillFile {
        transaction: database.begin_write()?,
        _database: database,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // A verification held an entry for each conversation: for a store with many, this took hundreds
    // of megabytes beside the server that it ran in. The memory must be bounded, and the results
    // the same.
    #[test]
    fn heads_of_many_conversations_use_bounded_memory() {
        const CONVERSATIONS: u8 = 200;
        let id = |n: u8| {
            let mut bytes = [7; ConversationKey::BYTES];
            bytes[0] = n.wrapping_mul(151);
            bytes[31] = n;
            ConversationKey::from_bytes(&bytes)
        };
        let head = |n: u8, revision: u64| Head {
            revision: Revision(revision),
            chain_hash: ContentHash([n ^ revision as u8; 32]),
        };
        let dir = tempfile::tempdir().unwrap();
        let mut heads = Heads::default();
        let mut model = HashMap::new();
        let mut next = 1_u32;
        for _ in 0..3_000 {
            next = next.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let n = (next >> 16) as u8 % CONVERSATIONS;
            let before = heads.get(id(n)).unwrap();
            let known = model.get(&id(n)).copied().unwrap_or_default();
            assert_eq!(before, known);
            let after = head(n, before.revision.0 + 1);
            heads.set(Some(dir.path()), id(n), before, after).unwrap();
            model.insert(id(n), after);
            assert!(heads.recent.len() <= RECENT_MAX);
        }
        assert_eq!(heads.count(), model.len() as u64);
        let mut told = Vec::new();
        loop {
            let after = told.last().map(|(id, _)| *id);
            let page = heads.page(after, 7).unwrap();
            if page.is_empty() {
                break;
            }
            told.extend(page);
        }
        assert!(told.is_sorted_by_key(|(id, _)| *id));
        assert_eq!(told.into_iter().collect::<HashMap<_, _>>(), model);
        let left = std::fs::read_dir(dir.path()).unwrap().count();
        assert!(cfg!(not(unix)) || left == 0, "the file has no name");
    }
}
