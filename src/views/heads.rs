//! Where each conversation has come to in a pass through the log, in bounded memory.
//!
//! A verification needs for each event the chain hash of its conversation's event
//! before. The views know the last one of each only, and are themselves to be
//! verified. So the pass keeps them for itself: the latest in memory, and the rest,
//! once there are many conversations, in a file that is gone with its handle.

use std::{collections::HashMap, path::Path};

use redb::{Database, ReadableTable, TableDefinition, WriteTransaction, backends::FileBackend};

use super::ViewsError;
use crate::domain::{ContentHash, ConversationId, Revision};

/// A conversation's id to its last revision and that event's chain hash.
const HEADS: TableDefinition<[u8; 16], [u8; 40]> = TableDefinition::new("heads");
/// Kept in memory: about 6 MiB. Tests meet the file with a few conversations.
const RECENT_MAX: usize = if cfg!(test) { 8 } else { 65_536 };
/// Memory for pages of the file, in bytes.
const CACHE_BYTES: usize = 8 << 20;

/// The last event of a conversation that a pass has met.
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

/// The heads of all conversations that a pass has met.
#[derive(Default)]
pub struct Heads {
    recent: HashMap<ConversationId, Head>,
    rest: Option<Rest>,
    count: u64,
}

/// The file.
struct Rest {
    /// One transaction that never ends: nothing of it has to last. It goes before the
    /// database does, which waits for it.
    transaction: WriteTransaction,
    _database: Database,
}

impl Heads {
    /// How many conversations there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// A conversation's head; the default one before its first event.
    ///
    /// # Errors
    /// [`ViewsError`] when the file fails.
    pub fn get(&self, id: ConversationId) -> Result<Head, ViewsError> {
        if let Some(head) = self.recent.get(&id) {
            return Ok(*head);
        }
        let Some(rest) = &self.rest else {
            return Ok(Head::default());
        };
        let table = rest.transaction.open_table(HEADS)?;
        let head = table.get(id.0.into_bytes())?;
        Ok(head.map_or_else(Head::default, |bytes| Head::from_bytes(&bytes.value())))
    }

    /// Takes the next head of a conversation whose head was `before`. A file is made
    /// in `dir`, or where the system keeps what is temporary.
    ///
    /// # Errors
    /// [`ViewsError`] when the file fails.
    pub fn set(
        &mut self,
        dir: Option<&Path>,
        id: ConversationId,
        before: Head,
        head: Head,
    ) -> Result<(), ViewsError> {
        self.count += u64::from(before == Head::default());
        if self.recent.len() >= RECENT_MAX && !self.recent.contains_key(&id) {
            self.spill(dir)?;
        }
        self.recent.insert(id, head);
        Ok(())
    }

    /// Heads behind `after` in the order of their ids, at most `limit`; none: there are
    /// no more.
    ///
    /// # Errors
    /// [`ViewsError`] when the file fails.
    pub fn page(
        &mut self,
        after: Option<ConversationId>,
        limit: usize,
    ) -> Result<Vec<(ConversationId, Head)>, ViewsError> {
        if self.rest.is_some() {
            self.spill(None)?;
        }
        let Some(rest) = &self.rest else {
            let behind = |id: &ConversationId| after.is_none_or(|after| *id > after);
            let mut heads: Vec<_> = self.recent.iter().map(|(id, head)| (*id, *head)).collect();
            heads.retain(|(id, _)| behind(id));
            heads.sort_by_key(|(id, _)| *id);
            heads.truncate(limit);
            return Ok(heads);
        };
        let table = rest.transaction.open_table(HEADS)?;
        let from = match after {
            Some(after) => std::ops::Bound::Excluded(after.0.into_bytes()),
            None => std::ops::Bound::Unbounded,
        };
        let rows = table.range::<[u8; 16]>((from, std::ops::Bound::Unbounded))?;
        let heads = rows.take(limit).map(|row| {
            let (id, head) = row?;
            let id = ConversationId(uuid::Uuid::from_bytes(id.value()));
            Ok((id, Head::from_bytes(&head.value())))
        });
        heads.collect()
    }

    /// Moves what is in memory to the file.
    fn spill(&mut self, dir: Option<&Path>) -> Result<(), ViewsError> {
        let rest = match self.rest.take() {
            Some(rest) => rest,
            None => begin(dir)?,
        };
        {
            let mut table = rest.transaction.open_table(HEADS)?;
            // In the order of the file: neighbours share pages.
            let mut heads: Vec<_> = self.recent.drain().collect();
            heads.sort_by_key(|(id, _)| *id);
            for (id, head) in heads {
                table.insert(id.0.into_bytes(), head.to_bytes())?;
            }
        }
        self.rest = Some(rest);
        Ok(())
    }
}

fn begin(dir: Option<&Path>) -> Result<Rest, ViewsError> {
    let file = match dir {
        Some(dir) => tempfile::tempfile_in(dir)?,
        None => tempfile::tempfile()?,
    };
    let database = Database::builder()
        .set_cache_size(CACHE_BYTES)
        .create_with_backend(FileBackend::new(file)?)?;
    Ok(Rest {
        transaction: database.begin_write()?,
        _database: database,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // A verification held an entry for each conversation: of a store with many it took
    // hundreds of megabytes beside the server that it ran in. What is in memory is
    // bounded, and what is told is the same.
    #[test]
    fn many_conversations_take_little_memory() {
        const CONVERSATIONS: u8 = 200;
        let id = |n: u8| {
            let mut bytes = [7; 16];
            bytes[0] = n.wrapping_mul(151);
            bytes[15] = n;
            ConversationId(uuid::Uuid::from_bytes(bytes))
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
