//! Queries on one namespace. Every key begins with the namespace, so no lookup can find rows of
//! another one.

use std::{collections::BTreeMap, ops::Bound};

use treering_domain::{
    BranchId, ContentHash, ConversationId, ConversationKey, ConversationRow, EventId, EventKind,
    Namespace, NamespaceUse, TimestampMicros,
};

use super::{
    apply::CountsRow,
    codec::{self, KeyRow},
    delta::KeyEntry,
    error::ProjectionsError,
    facets::{Facet, has_facet, listed_conversation, with_facet},
    keys,
    read::{conversation, ending_conversations, get, prefix},
    row_store::Reader,
    store::Projections,
    table::{CONVERSATIONS, NAMESPACES, ReadTable},
};

/// The size of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct NamespaceCounts {
    /// Number of conversations.
    pub conversations: u64,
    /// Number of branches.
    pub branches: u64,
    /// Number of events.
    pub events: u64,
    /// Number of branches with at least one call that waits for a decision.
    pub pending_branches: u64,
    /// Number of those calls.
    pub pending_calls: u64,
    /// Number of events by kind number.
    pub by_kind: BTreeMap<u16, u64>,
    /// How much its events count against a quota, in bytes.
    pub event_bytes: u64,
}

impl Projections {
    /// Returns the conversations that were imported under this source id, ordered by their own ids.
    ///
    /// # Errors
    /// As for every read.
    pub fn by_source_id(
        &self,
        namespace: &Namespace,
        source_id: &str,
    ) -> Result<Vec<ConversationId>, ProjectionsError> {
        self.read(|reader| {
            let table = reader.table(NAMESPACES);
            ending_conversations(&table, &keys::source_ids(namespace, source_id))
        })
    }

    /// Returns a page of conversations, and where the next page continues; `None` when there is no
    /// more.
    ///
    /// # Errors
    /// As for every read.
    pub fn list(
        &self,
        page: &ListPage<'_>,
    ) -> Result<(Vec<ConversationRow>, Option<ListPlace>), ProjectionsError> {
        self.list_where(page, usize::MAX, &|_| true)
    }

    /// Like [`list`](Self::list), with only the conversations that `keep` accepts. Examines at most
    /// `scan_max` conversations, so a page may be short although there are more.
    ///
    /// # Errors
    /// As for every read.
    pub fn list_where(
        &self,
        page: &ListPage<'_>,
        scan_max: usize,
        keep: &dyn Fn(&ConversationRow) -> bool,
    ) -> Result<(Vec<ConversationRow>, Option<ListPlace>), ProjectionsError> {
        self.list_by(page, (scan_max, GATHERED_MAX), keep)
    }

    /// Like [`list_where`](Self::list_where). Does not scan the list if at most `gathered_max`
    /// conversations have one of the narrowing properties: reads these instead.
    pub(super) fn list_by(
        &self,
        page: &ListPage<'_>,
        (scan_max, gathered_max): (usize, usize),
        keep: &dyn Fn(&ConversationRow) -> bool,
    ) -> Result<(Vec<ConversationRow>, Option<ListPlace>), ProjectionsError> {
        self.read(|reader| match page.gathered(reader, gathered_max)? {
            Some(ids) => page.page_of(reader, &ids, keep),
            None => page.read(reader, scan_max, keep),
        })
    }

    /// Returns the log offset that the projections had reached, and the entry of an idempotency
    /// key. An expired key may still be present.
    ///
    /// # Errors
    /// As for every read.
    pub fn key(
        &self,
        namespace: &Namespace,
        key: &str,
    ) -> Result<(u64, Option<KeyEntry>), ProjectionsError> {
        self.read(|reader| {
            let found: Option<KeyRow> = get(
                &reader.table(NAMESPACES),
                &keys::idempotency(namespace, key),
            )?;
            let entry = found.map(
                |(content_hash, salt, first_offset, events, ends_at)| KeyEntry {
                    namespace: namespace.clone(),
                    key: key.to_owned(),
                    content_hash,
                    salt,
                    first_offset,
                    events,
                    ends_at,
                },
            );
            Ok((reader.reached()?, entry))
        })
    }

    /// Returns the log offset of an event whose id does not contain it.
    ///
    /// # Errors
    /// As for every read.
    pub fn event_id(
        &self,
        namespace: &Namespace,
        id: EventId,
    ) -> Result<Option<u64>, ProjectionsError> {
        self.read(|reader| get(&reader.table(NAMESPACES), &keys::event_id(namespace, id)))
    }

    /// Returns at most `limit` branches with calls that wait for a decision: of all conversations,
    /// or of one.
    ///
    /// # Errors
    /// As for every read.
    pub fn pending(
        &self,
        namespace: &Namespace,
        conversation: Option<ConversationId>,
        limit: usize,
    ) -> Result<Vec<(ConversationId, BranchId)>, ProjectionsError> {
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

    /// Returns the log offset of the event that is the home of a body stored as a blob.
    ///
    /// # Errors
    /// As for every read.
    pub fn blob_home(
        &self,
        namespace: &Namespace,
        hash: &ContentHash,
    ) -> Result<Option<u64>, ProjectionsError> {
        self.read(|reader| get(&reader.table(NAMESPACES), &keys::blob(namespace, hash)))
    }

    /// Returns the size of the namespace.
    ///
    /// # Errors
    /// As for every read.
    pub fn counts(&self, namespace: &Namespace) -> Result<NamespaceCounts, ProjectionsError> {
        self.read(|reader| {
            let row = get(&reader.table(NAMESPACES), &keys::counts(namespace))?;
            let row: CountsRow = row.unwrap_or_default();
            let (pending_branches, pending_calls, by_kind, event_bytes, _) = row;
            let of = |kind: EventKind| by_kind.get(&kind.number()).copied().unwrap_or_default();
            let conversations = of(EventKind::ConversationCreated);
            Ok(NamespaceCounts {
                conversations,
                branches: conversations + of(EventKind::BranchForked),
                events: by_kind.values().sum(),
                pending_branches,
                pending_calls,
                by_kind,
                event_bytes,
            })
        })
    }

    /// Returns the log offset that the projections had reached, and the namespace's usage of its
    /// quota.
    ///
    /// # Errors
    /// As for every read.
    pub fn used(&self, namespace: &Namespace) -> Result<(u64, NamespaceUse), ProjectionsError> {
        self.read(|reader| {
            let row = get(&reader.table(NAMESPACES), &keys::counts(namespace))?;
            let (_, _, by_kind, bytes, _): CountsRow = row.unwrap_or_default();
            let created = EventKind::ConversationCreated.number();
            let used = NamespaceUse {
                bytes,
                conversations: by_kind.get(&created).copied().unwrap_or_default(),
            };
            Ok((reader.reached()?, used))
        })
    }
}

/// The order of a list of conversations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListOrder {
    /// By when their first event was recorded.
    #[default]
    Recorded,
    /// By when the last of their events happened, according to its author. Conversations with times
    /// in the same second are in exact order within a page, but across pages they are in the order
    /// of their first events.
    Happened,
}

/// A position in a list of conversations. It stays valid when more is appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListPlace {
    /// When the conversation's last event happened; 0 in [`ListOrder::Recorded`].
    pub happened_to: TimestampMicros,
    /// Log offset of the conversation's first event.
    pub first_offset: u64,
}

impl ListPlace {
    /// Returns what orders places.
    #[must_use]
    pub fn order(self) -> (i64, u64) {
        (keys::second(self.happened_to), self.first_offset)
    }

    /// Returns the place after which a page begins with this one.
    #[must_use]
    pub fn before(self, ascending: bool) -> Self {
        let first_offset = match ascending {
            true => self.first_offset.saturating_sub(1),
            false => self.first_offset.saturating_add(1),
        };
        Self {
            first_offset,
            ..self
        }
    }
}

/// A request for a page of conversations.
#[derive(Clone, Copy, Debug)]
pub struct ListPage<'a> {
    /// The namespace to list.
    pub namespace: &'a Namespace,
    /// Where the previous page ended.
    pub after: Option<ListPlace>,
    /// Maximum number of conversations on the page.
    pub limit: usize,
    /// The order of the list.
    pub order: ListOrder,
    /// True: oldest first; false: newest first.
    pub ascending: bool,
    /// Only conversations that were imported from this source.
    pub source: Option<&'a str>,
    /// Properties that all listed conversations have. They speed up the list, but `keep` must check
    /// them too, since a facet may also match other conversations.
    pub narrowing: ListNarrowing<'a>,
}

/// Properties by which the conversations of a list can be looked up.
#[derive(Clone, Copy, Debug, Default)]
pub struct ListNarrowing<'a> {
    /// They have all of these facets.
    pub facets: &'a [Facet<'a>],
    /// They were forked or spawned from this conversation.
    pub parent: Option<ConversationId>,
    /// Their last event was recorded at this time or later.
    pub updated_from: Option<TimestampMicros>,
}

/// If a property has at most this many conversations, all of them are read and sorted.
const GATHERED_MAX: usize = 1_000;
/// Maximum number of conversations that a page skips because they lack a facet. Each takes about a
/// microsecond.
const PASSED_OVER_MAX: usize = 50_000;

impl ListPage<'_> {
    fn read(
        &self,
        reader: &Reader,
        scan_max: usize,
        keep: &dyn Fn(&ConversationRow) -> bool,
    ) -> Result<(Vec<ConversationRow>, Option<ListPlace>), ProjectionsError> {
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
        let (mut mark, mut looked_at, mut passed_over, mut last) = (None, 0, 0, None);
        while let Some(entry) = next() {
            let (key, value) = entry?;
            let is_scanned = looked_at == scan_max || passed_over == PASSED_OVER_MAX;
            if rows.len() == self.limit || is_scanned {
                mark = last;
                break;
            }
            let id = listed_conversation(&key, &value)?;
            let place = self.place_of_key(&key)?;
            last = Some(place);
            if !self.has_facets(reader, place.first_offset)? {
                passed_over += 1;
                continue;
            }
            looked_at += 1;
            let row = listed(&table, self.namespace.key(id))?;
            if keep(&row) {
                rows.push(row);
            }
        }
        self.sort_page(&mut rows);
        Ok((rows, mark))
    }

    /// Returns the conversations with the first narrowing property that at most `max` conversations
    /// have, or `None` if there is no such property.
    fn gathered(
        &self,
        reader: &Reader,
        max: usize,
    ) -> Result<Option<Vec<ConversationId>>, ProjectionsError> {
        let ListNarrowing {
            facets,
            parent,
            updated_from,
        } = self.narrowing;
        let few = |found: &mut dyn Iterator<Item = Result<ConversationId, ProjectionsError>>| {
            let found: Result<Vec<_>, _> = found.take(max + 1).collect();
            found.map(|ids| (ids.len() <= max).then_some(ids))
        };
        for facet in facets {
            if let Some(ids) = few(&mut with_facet(reader, self.namespace, *facet))? {
                return Ok(Some(ids));
            }
        }
        if let Some(parent) = parent {
            let children = keys::children(self.namespace.key(parent));
            let ids = ending_conversations(&reader.table(CONVERSATIONS), &children)?;
            if ids.len() <= max {
                return Ok(Some(ids));
            }
        }
        if let Some(from) = updated_from {
            let first = keys::updated_in(self.namespace, from);
            let end = keys::updates(self.namespace).after_prefix();
            let rows = reader.table(NAMESPACES);
            let rows = rows.range(first.as_bytes()..end.as_bytes());
            let mut updated = rows.map(|row| {
                let (key, value) = row?;
                listed_conversation(&key, &value)
            });
            return few(&mut updated);
        }
        Ok(None)
    }

    /// Returns the page, selected from these conversations.
    fn page_of(
        &self,
        reader: &Reader,
        ids: &[ConversationId],
        keep: &dyn Fn(&ConversationRow) -> bool,
    ) -> Result<(Vec<ConversationRow>, Option<ListPlace>), ProjectionsError> {
        let table = reader.table(CONVERSATIONS);
        let mut rows = Vec::new();
        for id in ids {
            let row = listed(&table, self.namespace.key(*id))?;
            let is_of_source = self.source.is_none_or(|source| source == row.info.source);
            if is_of_source && keep(&row) {
                rows.push(row);
            }
        }
        rows.sort_by_key(|row| self.place(row).order());
        if !self.ascending {
            rows.reverse();
        }
        if let Some(after) = self.after.map(ListPlace::order) {
            rows.retain(|row| match self.ascending {
                true => self.place(row).order() > after,
                false => self.place(row).order() < after,
            });
        }
        let more = rows.len() > self.limit;
        rows.truncate(self.limit);
        let next = rows.last().filter(|_| more).map(|row| self.place(row));
        self.sort_page(&mut rows);
        Ok((rows, next))
    }

    fn has_facets(&self, reader: &Reader, first_offset: u64) -> Result<bool, ProjectionsError> {
        for facet in self.narrowing.facets {
            if !has_facet(reader, self.namespace, *facet, first_offset)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn sort_page(&self, rows: &mut [ConversationRow]) {
        if self.order == ListOrder::Happened {
            rows.sort_by_key(|row| (row.happened_to, row.first_position.offset));
            if !self.ascending {
                rows.reverse();
            }
        }
    }

    /// Returns the place of a row of the list.
    fn place_of_key(&self, key: &[u8]) -> Result<ListPlace, ProjectionsError> {
        let place = keys::last_place(key).map(|(second, first_offset)| ListPlace {
            happened_to: match self.order {
                ListOrder::Recorded => TimestampMicros::default(),
                ListOrder::Happened => second,
            },
            first_offset,
        });
        place.ok_or_else(|| ProjectionsError::damaged("a row has an unexpected key"))
    }

    fn place(&self, row: &ConversationRow) -> ListPlace {
        ListPlace {
            happened_to: match self.order {
                ListOrder::Recorded => TimestampMicros::default(),
                ListOrder::Happened => row.happened_to,
            },
            first_offset: row.first_position.offset,
        }
    }

    /// Returns the first key of the page's range, and the key after its last.
    fn bounds(&self) -> (keys::Key, keys::Key) {
        let (namespace, source) = (self.namespace, self.source);
        // The rows of a facet are in the same order, so that nothing is passed over.
        let facet = self.narrowing.facets.first();
        let facet = facet.filter(|_| source.is_none());
        let all = match (self.order, facet) {
            (ListOrder::Recorded, Some(facet)) => facet.prefix(namespace),
            (ListOrder::Recorded, None) => keys::listing(namespace, source),
            (ListOrder::Happened, _) => keys::happenings(namespace, source),
        };
        let at = |place: ListPlace| match self.order {
            ListOrder::Recorded => all.clone().number(place.first_offset),
            ListOrder::Happened => {
                keys::happened(namespace, source, place.happened_to, place.first_offset)
            }
        };
        match (self.after, self.ascending) {
            (None, _) => (all.clone(), all.after_prefix()),
            (Some(place), true) => (at(place).after_prefix(), all.after_prefix()),
            (Some(place), false) => (all.clone(), at(place)),
        }
    }
}

/// Returns the row of a listed conversation.
fn listed(table: &ReadTable, id: ConversationKey) -> Result<ConversationRow, ProjectionsError> {
    let row = conversation(table, id)?;
    row.ok_or_else(|| ProjectionsError::damaged("a listed conversation is missing"))
}
