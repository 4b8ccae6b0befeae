//! What the views know of one namespace. Every key begins with the namespace, so
//! no lookup can meet another one's rows.

use std::{collections::BTreeMap, ops::Bound};

use crate::domain::{BranchId, ContentHash, ConversationId, ConversationRow, EventKind, Namespace};

use super::{
    apply::CountsRow,
    codec,
    delta::KeyEntry,
    error::ViewsError,
    keys,
    read::{conversation, ending_conversations, get, prefix},
    store::{CONVERSATIONS, NAMESPACES, Reader, Views},
};

/// How much a namespace holds.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Counts {
    /// Conversations.
    pub conversations: u64,
    /// Their branches.
    pub branches: u64,
    /// Their events.
    pub events: u64,
    /// Branches with at least one call that waits for a decision.
    pub pending_branches: u64,
    /// Those calls.
    pub pending_calls: u64,
    /// Events by the number of their kind.
    pub by_kind: BTreeMap<u16, u64>,
}

impl Views {
    /// Conversations that were imported under this id, by their own.
    ///
    /// # Errors
    /// As every read.
    pub fn by_source_id(
        &self,
        namespace: &Namespace,
        source_id: &str,
    ) -> Result<Vec<ConversationId>, ViewsError> {
        self.read(|reader| {
            let table = reader.table(NAMESPACES);
            ending_conversations(&table, &keys::source_ids(namespace, source_id))
        })
    }

    /// A page of the conversations, by the log offset of their first event:
    /// those after that offset, oldest first, or those before it, newest first.
    /// The second value is where the next page goes on; none: there is no more.
    /// `source` leaves only those that were imported from there.
    ///
    /// # Errors
    /// As every read.
    pub fn list(
        &self,
        namespace: &Namespace,
        after: Option<u64>,
        limit: usize,
        ascending: bool,
        source: Option<&str>,
    ) -> Result<(Vec<ConversationRow>, Option<u64>), ViewsError> {
        let page = Page {
            namespace,
            after,
            limit,
            ascending,
            source,
        };
        self.read(|reader| page.read(reader))
    }

    /// What was appended with an idempotency key, and how far the views had come
    /// when it was looked up.
    ///
    /// # Errors
    /// As every read.
    pub fn key(
        &self,
        namespace: &Namespace,
        key: &str,
    ) -> Result<(u64, Option<KeyEntry>), ViewsError> {
        self.read(|reader| {
            let found = get(
                &reader.table(NAMESPACES),
                &keys::idempotency(namespace, key),
            )?;
            let entry = found.map(|(content_hash, first_offset, events)| KeyEntry {
                namespace: namespace.clone(),
                key: key.to_owned(),
                content_hash,
                first_offset,
                events,
            });
            Ok((reader.reached()?, entry))
        })
    }

    /// Branches with calls that wait for a decision, at most `limit`: of all
    /// conversations, or of one.
    ///
    /// # Errors
    /// As every read.
    pub fn pending(
        &self,
        namespace: &Namespace,
        conversation: Option<ConversationId>,
        limit: usize,
    ) -> Result<Vec<(ConversationId, BranchId)>, ViewsError> {
        self.read(|reader| {
            let table = reader.table(NAMESPACES);
            let mut found = Vec::new();
            for row in prefix(&table, &keys::pendings(namespace, conversation)).take(limit) {
                let (key, row) = row?;
                codec::checked(&key, &row)?;
                found.extend(keys::last_pending(&key));
            }
            Ok(found)
        })
    }

    /// Log offset of the event that is the home of a body kept as a blob.
    ///
    /// # Errors
    /// As every read.
    pub fn blob_home(
        &self,
        namespace: &Namespace,
        hash: &ContentHash,
    ) -> Result<Option<u64>, ViewsError> {
        self.read(|reader| get(&reader.table(NAMESPACES), &keys::blob(namespace, hash)))
    }

    /// How much the namespace holds.
    ///
    /// # Errors
    /// As every read.
    pub fn counts(&self, namespace: &Namespace) -> Result<Counts, ViewsError> {
        self.read(|reader| {
            let row = get(&reader.table(NAMESPACES), &keys::counts(namespace))?;
            let (pending_branches, pending_calls, by_kind): CountsRow = row.unwrap_or_default();
            let of = |kind: EventKind| by_kind.get(&kind.number()).copied().unwrap_or_default();
            let conversations = of(EventKind::ConversationCreated);
            Ok(Counts {
                conversations,
                branches: conversations + of(EventKind::BranchForked),
                events: by_kind.values().sum(),
                pending_branches,
                pending_calls,
                by_kind,
            })
        })
    }
}

struct Page<'a> {
    namespace: &'a Namespace,
    after: Option<u64>,
    limit: usize,
    ascending: bool,
    source: Option<&'a str>,
}

impl Page<'_> {
    fn read(&self, reader: &Reader) -> Result<(Vec<ConversationRow>, Option<u64>), ViewsError> {
        let listing = reader.table(NAMESPACES);
        let table = reader.table(CONVERSATIONS);
        let (first, end) = self.bounds();
        let bounds = (
            Bound::Included(first.as_bytes()),
            Bound::Excluded(end.as_bytes()),
        );
        let mut range = listing.range(bounds);
        let mut next = || {
            if self.ascending {
                range.next()
            } else {
                range.next_back()
            }
        };
        let mut rows: Vec<ConversationRow> = Vec::new();
        while let Some(entry) = next() {
            let (key, value) = entry?;
            if rows.len() == self.limit {
                let mark = rows.last().map(|row| row.first_position.offset);
                return Ok((rows, mark));
            }
            let id = codec::checked(&key, &value)?;
            let row = match keys::last_conversation(id) {
                Some(id) => conversation(&table, id)?,
                None => None,
            };
            rows.push(row.ok_or_else(|| ViewsError::damaged("a listed conversation is missing"))?);
        }
        Ok((rows, None))
    }

    /// First key of the page's stretch, and the key after its last.
    fn bounds(&self) -> (keys::Key, keys::Key) {
        let all = keys::listing(self.namespace, self.source);
        let at = |offset| keys::listed(self.namespace, self.source, offset);
        match (self.after, self.ascending) {
            (None, _) => (all.clone(), all.after_prefix()),
            (Some(offset), true) => (at(offset).after_prefix(), all.after_prefix()),
            (Some(offset), false) => (all, at(offset)),
        }
    }
}
