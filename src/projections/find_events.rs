//! Finds events by key, type or kind without a scan of their conversation.

use std::collections::{BTreeMap, BTreeSet};

use treering_domain::{BranchId, ConversationKey, Revision, Tags};

use super::{
    chunk::{CHUNK_EVENTS, chunk_of, first_revision},
    codec,
    delta::{EventEntry, FoundBy},
    error::ProjectionsError,
    keys::{self, Key},
    read::{get, prefix},
    rows::Rows,
    store::Projections,
    table::{CONVERSATIONS, Range, ReadTable},
};

/// Length of an index row, in bytes: offset and kind, little-endian.
const ROW_BYTES: usize = 8 + 2;

/// What to search for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventTerm<'a> {
    /// Events with this key.
    Key(&'a str),
    /// Events whose key has this prefix.
    KeyFrom(&'a str),
    /// Framework events of this type.
    Type(&'a str),
}

impl EventTerm<'_> {
    fn under(self, id: ConversationKey) -> Key {
        match self {
            Self::Key(key) => keys::events_with_key(id, key),
            Self::KeyFrom(beginning) => keys::events_with_key_from(id, beginning),
            Self::Type(type_name) => keys::events_of_type(id, type_name),
        }
    }

    /// Returns true when the rows of a branch are adjacent and sorted by revision.
    fn is_exact(self) -> bool {
        match self {
            Self::Key(_) | Self::Type(_) => true,
            Self::KeyFrom(_) => false,
        }
    }
}

/// The range to search.
#[derive(Clone, Copy, Debug)]
pub struct EventRange {
    /// The conversation.
    pub conversation: ConversationKey,
    /// Only this branch's own events, if set.
    pub branch: Option<BranchId>,
    /// First revision, inclusive.
    pub first: Revision,
    /// Last revision, inclusive.
    pub last: Revision,
}

impl EventRange {
    fn has(&self, branch: BranchId, revision: Revision) -> bool {
        self.branch.is_none_or(|own| own == branch) && (self.first..=self.last).contains(&revision)
    }
}

/// The position after which keys are listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyAfter {
    /// From the first key on.
    Nothing,
    /// After this key.
    Key(String),
    /// After all keys with this prefix.
    Beginning(String),
}

/// The result of a search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundEvents {
    /// The events, in the requested order.
    pub entries: Vec<EventEntry>,
    /// True when there are no more; otherwise continue after the last one.
    pub is_all: bool,
}

/// Errors of every read: [`ProjectionsError::Damaged`], [`ProjectionsError::Closed`],
/// [`ProjectionsError::Storage`].
impl Projections {
    /// Returns the matching events, ordered by revision. If the index is in that order, returns one
    /// page. Otherwise returns all events, or `None` if more than `rows_max` rows would be read.
    ///
    /// # Errors
    /// As for every read.
    pub fn find_events(
        &self,
        within: &EventRange,
        by: EventTerm<'_>,
        (page, rows_max): (usize, usize),
        backward: bool,
    ) -> Result<Option<FoundEvents>, ProjectionsError> {
        if within.first > within.last {
            return Ok(Some(FoundEvents {
                is_all: true,
                ..FoundEvents::default()
            }));
        }
        self.read(|reader| {
            let table = reader.table(CONVERSATIONS);
            match within.branch {
                Some(branch) if by.is_exact() => {
                    ordered(&table, within, branch, by, page, backward).map(Some)
                }
                _ => sorted(&table, within, by, rows_max, backward),
            }
        })
    }

    /// Returns the newest match among a branch's own events.
    ///
    /// # Errors
    /// As for every read.
    pub fn latest_event(
        &self,
        within: &EventRange,
        by: EventTerm<'_>,
    ) -> Result<Option<EventEntry>, ProjectionsError> {
        let found = self.find_events(within, by, (1, usize::MAX), true)?;
        Ok(found.and_then(|found| found.entries.into_iter().next()))
    }

    /// Returns the newest of a branch's own events for each key with this prefix, in key order.
    /// Takes one or two lookups for each key, however many events have it.
    ///
    /// # Errors
    /// As for every read.
    pub fn newest_by_key(
        &self,
        id: ConversationKey,
        branch: BranchId,
        beginning: &str,
        after: &KeyAfter,
        keys_max: usize,
    ) -> Result<Vec<(String, EventEntry)>, ProjectionsError> {
        let all = keys::events_with_key_from(id, beginning);
        let end = all.after_prefix();
        let mut next = match after {
            KeyAfter::Nothing => all,
            KeyAfter::Key(key) => keys::events_with_key(id, key).after_prefix(),
            KeyAfter::Beginning(passed) => keys::events_with_key_from(id, passed).after_prefix(),
        };
        self.read(|reader| {
            let table = reader.table(CONVERSATIONS);
            let mut found = Vec::new();
            while found.len() < keys_max && next.as_bytes() < end.as_bytes() {
                let Some(row) = table.range(next.as_bytes()..end.as_bytes()).next() else {
                    break;
                };
                let (row_key, _) = row?;
                let Some(key) = keys::key_of_event(&row_key) else {
                    return Err(ProjectionsError::damaged("an index row is corrupt"));
                };
                let under = keys::events_with_key(id, key);
                let first = keys::event_under(under.clone(), branch, Revision::NONE);
                let last = keys::event_under(under.clone(), branch, Revision(u64::MAX));
                let newest = table.range(first.as_bytes()..=last.as_bytes()).next_back();
                if let Some(row) = newest {
                    let (newest_key, row) = row?;
                    found.push((key.to_owned(), entry(id, &newest_key, &row)?));
                }
                next = under.after_prefix();
            }
            Ok(found)
        })
    }

    /// Returns whether a conversation has a matching event on any branch.
    ///
    /// # Errors
    /// As for every read.
    pub fn has_event(
        &self,
        id: ConversationKey,
        by: EventTerm<'_>,
    ) -> Result<bool, ProjectionsError> {
        self.read(|reader| {
            let table = reader.table(CONVERSATIONS);
            let first = prefix(&table, &by.under(id)).next();
            first.map_or(Ok(false), |row| row.map(|_| true))
        })
    }

    /// Returns the newest event of a kind among a branch's own.
    ///
    /// # Errors
    /// As for every read.
    pub fn latest_of_kind(
        &self,
        id: ConversationKey,
        branch: BranchId,
        kind: u16,
        (first, last): (Revision, Revision),
    ) -> Result<Option<EventEntry>, ProjectionsError> {
        let mut last_chunk = chunk_of(last);
        loop {
            let Some(chunk) = self.chunk_with_kind(id, branch, kind, last_chunk)? else {
                return Ok(None);
            };
            let from = first_revision(chunk);
            if from.0.saturating_add(CHUNK_EVENTS) <= first.0 {
                return Ok(None);
            }
            let to = Revision(from.0.saturating_add(CHUNK_EVENTS - 1));
            let (from, to) = (from.max(first), to.min(last));
            let mut entries = self.entries(id, from, to, CHUNK_EVENTS as usize, true)?;
            entries.retain(|entry| entry.branch == branch && entry.kind == kind);
            if let Some(newest) = entries.into_iter().next() {
                return Ok(Some(newest));
            }
            // Only the last and the first chunk can be cut by the bounds, so this ends soon.
            let Some(before) = chunk.checked_sub(1) else {
                return Ok(None);
            };
            last_chunk = before;
        }
    }

    /// Returns the last chunk, up to a given one, that has events of a kind on a branch.
    fn chunk_with_kind(
        &self,
        id: ConversationKey,
        branch: BranchId,
        kind: u16,
        last: u64,
    ) -> Result<Option<u64>, ProjectionsError> {
        self.read(|reader| {
            let table = reader.table(CONVERSATIONS);
            let first = keys::chunk_with_kind(id, branch, kind, 0);
            let last = keys::chunk_with_kind(id, branch, kind, last);
            let newest = table.range(first.as_bytes()..=last.as_bytes()).next_back();
            let Some(row) = newest else { return Ok(None) };
            let (key, row) = row?;
            codec::checked(&key, &row)?;
            Ok(keys::last_number(&key))
        })
    }

    /// Returns type, key and attributes of an event with a separately stored body; `None` when it
    /// has no such row.
    ///
    /// # Errors
    /// As for every read.
    pub fn tags_of_large(
        &self,
        id: ConversationKey,
        revision: Revision,
    ) -> Result<Option<(String, Tags)>, ProjectionsError> {
        let read = self.read(|reader| {
            let table = reader.table(CONVERSATIONS);
            get(&table, &keys::large(id, revision))
        });
        let found: Option<LargeRow> = read?;
        Ok(found.map(|(type_name, key, attributes)| (type_name, Tags { key, attributes })))
    }
}

/// Type, key and attributes.
pub(super) type LargeRow = (String, String, BTreeMap<String, String>);

/// Reads a page of one branch's rows for a key or type, which are in revision order.
fn ordered(
    table: &ReadTable,
    within: &EventRange,
    branch: BranchId,
    by: EventTerm<'_>,
    page: usize,
    backward: bool,
) -> Result<FoundEvents, ProjectionsError> {
    let id = within.conversation;
    let first = keys::event_under(by.under(id), branch, within.first);
    let last = keys::event_under(by.under(id), branch, within.last);
    let mut range = table.range(first.as_bytes()..=last.as_bytes());
    let mut found = FoundEvents::default();
    while found.entries.len() < page {
        match next(&mut range, backward) {
            Some(row) => {
                let (key, row) = row?;
                found.entries.push(entry(id, &key, &row)?);
            }
            None => {
                found.is_all = true;
                break;
            }
        }
    }
    Ok(found)
}

/// Collects the rows of several branches or keys, and sorts them.
fn sorted(
    table: &ReadTable,
    within: &EventRange,
    by: EventTerm<'_>,
    rows_max: usize,
    backward: bool,
) -> Result<Option<FoundEvents>, ProjectionsError> {
    let id = within.conversation;
    let mut entries = Vec::new();
    for (count, row) in prefix(table, &by.under(id)).enumerate() {
        if count >= rows_max {
            return Ok(None);
        }
        let (key, row) = row?;
        let entry = entry(id, &key, &row)?;
        if within.has(entry.branch, entry.revision) {
            entries.push(entry);
        }
    }
    entries.sort_unstable_by_key(|entry| entry.revision);
    if backward {
        entries.reverse();
    }
    Ok(Some(FoundEvents {
        entries,
        is_all: true,
    }))
}

fn next(range: &mut Range, backward: bool) -> Option<<Range as Iterator>::Item> {
    if backward {
        range.next_back()
    } else {
        range.next()
    }
}

fn entry(id: ConversationKey, key: &[u8], row: &[u8]) -> Result<EventEntry, ProjectionsError> {
    let value = codec::checked(key, row)?;
    let place = keys::last_event(key);
    let (Some((branch, revision)), Ok(value)) = (place, <[u8; ROW_BYTES]>::try_from(value)) else {
        return Err(ProjectionsError::damaged("an index row is corrupt"));
    };
    let [o0, o1, o2, o3, o4, o5, o6, o7, k0, k1] = value;
    Ok(EventEntry {
        conversation: id,
        revision,
        branch,
        kind: u16::from_le_bytes([k0, k1]),
        offset: u64::from_le_bytes([o0, o1, o2, o3, o4, o5, o6, o7]),
    })
}

/// Adds the index rows of an event.
pub(super) fn put(rows: &mut Rows, found: &FoundBy) -> Result<(), ProjectionsError> {
    let event = &found.event;
    let id = event.conversation;
    let mut value = [0; ROW_BYTES];
    value[..8].copy_from_slice(&event.offset.to_le_bytes());
    value[8..].copy_from_slice(&event.kind.to_le_bytes());
    let mut put = |under| {
        let key = keys::event_under(under, event.branch, event.revision);
        rows.put_bytes(&key, &value)
    };
    if !found.tags.key.is_empty() {
        put(keys::events_with_key(id, &found.tags.key))?;
    }
    if !found.type_name.is_empty() {
        put(keys::events_of_type(id, &found.type_name))?;
    }
    if found.is_large {
        let row = (&found.type_name, &found.tags.key, &found.tags.attributes);
        let key = keys::large(id, event.revision);
        rows.put(&key, |bytes| codec::encode(&row, bytes))?;
    }
    Ok(())
}

/// Adds the rows that say which kinds of events each chunk has.
pub(super) fn put_kinds<'a>(
    rows: &mut Rows,
    events: impl Iterator<Item = &'a EventEntry>,
) -> Result<(), ProjectionsError> {
    let chunks: BTreeSet<_> = events
        .map(|event| {
            let chunk = chunk_of(event.revision);
            (event.conversation, event.branch, event.kind, chunk)
        })
        .collect();
    for (id, branch, kind, chunk) in chunks {
        rows.put_bytes(&keys::chunk_with_kind(id, branch, kind, chunk), &[])?;
    }
    Ok(())
}
