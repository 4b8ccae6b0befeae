//! A delta becomes rows.

use std::collections::BTreeMap;

use redb::{ReadableTable, WriteTransaction};

use crate::domain::{ConversationRow, Namespace};

use super::{
    chunk::{Chunk, chunk_of, first_revision},
    codec::{self, CreatedRow, HeadRow},
    delta::{EventEntry, PendingEntry, ViewDelta},
    error::ViewsError,
    keys,
    rows::{RawTable, Rows},
    store::{CONVERSATIONS, META, NAMESPACES, Views, reached_in, set_reached},
};

/// What a namespace's counts row holds: branches with waiting calls, and events
/// by kind. The other counts follow from these.
pub(super) type CountsRow = (u64, BTreeMap<u16, u64>);

impl Views {
    /// Takes a delta over, all of it or nothing. Readers see it at once; it is on
    /// the disk after [`make_durable`](Self::make_durable).
    ///
    /// # Errors
    /// [`ViewsError::NotBeyond`] when the delta, or its first event, is not after
    /// what was reached: nothing is counted twice. [`ViewsError::Gap`] when
    /// revisions are missing. [`ViewsError::NoSpace`], [`ViewsError::Storage`]
    /// when it cannot be written.
    pub fn apply(&self, delta: &ViewDelta) -> Result<(), ViewsError> {
        self.write(|txn| {
            let reached = advance(txn, delta)?;
            let mut table = txn.open_table(CONVERSATIONS)?;
            conversation_rows(&table, delta, reached)?.write(&mut table)?;
            drop(table);
            let mut table = txn.open_table(NAMESPACES)?;
            let waiting = apply_pending(&mut table, &delta.pending)?;
            let mut rows = namespace_rows(delta, reached)?;
            count(&table, delta, &waiting, &mut rows)?;
            rows.write(&mut table)
        })
    }
}

/// Moves the mark, and returns where it was.
fn advance(txn: &WriteTransaction, delta: &ViewDelta) -> Result<u64, ViewsError> {
    let mut meta = txn.open_table(META)?;
    let reached = reached_in(&meta)?;
    let offsets = || delta.events.iter().map(|(_, event)| event.offset);
    let first = offsets().min().unwrap_or(delta.reached);
    let last = delta.reached.max(offsets().max().unwrap_or(0));
    if delta.reached <= reached || first <= reached || last > delta.reached {
        return Err(ViewsError::NotBeyond {
            reached,
            first,
            last,
        });
    }
    set_reached(&mut meta, delta.reached)?;
    Ok(reached)
}

/// The first event of the conversation is in this delta.
fn is_new(row: &ConversationRow, reached: u64) -> bool {
    row.first_position.offset > reached
}

fn conversation_rows(
    table: &RawTable<'_>,
    delta: &ViewDelta,
    reached: u64,
) -> Result<Rows, ViewsError> {
    let mut rows = Rows::default();
    for row in &delta.conversations {
        let head = HeadRow::of(row);
        rows.put(&keys::head(row.id), |bytes| codec::encode(&head, bytes))?;
        if is_new(row, reached) {
            let created = CreatedRow::of(row);
            rows.put(&keys::created(row.id), |bytes| {
                codec::encode(&created, bytes)
            })?;
        }
    }
    for (id, branch) in &delta.branches {
        let key = keys::branch(*id, branch.id);
        rows.put(&key, |bytes| codec::encode(&**branch, bytes))?;
    }
    for (id, branch) in &delta.snapshots {
        let key = keys::snapshot(*id, branch.id, branch.head);
        rows.put(&key, |bytes| codec::encode(&**branch, bytes))?;
    }
    for call in &delta.calls {
        let key = keys::call(call.conversation, &call.call_id, call.request);
        let value = (call.branch, &call.tool);
        rows.put(&key, |bytes| codec::encode(&value, bytes))?;
    }
    for (parent, child) in &delta.children {
        rows.put_bytes(&keys::child(*parent, *child), &[])?;
    }
    event_rows(table, delta, &mut rows)?;
    Ok(rows)
}

/// The event index: only the last chunk of each conversation is read again.
fn event_rows(table: &RawTable<'_>, delta: &ViewDelta, rows: &mut Rows) -> Result<(), ViewsError> {
    let mut events: Vec<&EventEntry> = delta.events.iter().map(|(_, event)| event).collect();
    events.sort_unstable_by_key(|event| (event.conversation, event.revision));
    let same_chunk = |a: &&EventEntry, b: &&EventEntry| {
        a.conversation == b.conversation && chunk_of(a.revision) == chunk_of(b.revision)
    };
    for run in events.chunk_by(same_chunk) {
        let (id, number) = (run[0].conversation, chunk_of(run[0].revision));
        let key = keys::events(id, number);
        let mut chunk = if run[0].revision == first_revision(number) {
            Chunk::new()
        } else {
            stored_chunk(table, key.as_bytes())?
        };
        for event in run {
            let mut expected = first_revision(number);
            expected.0 += chunk.len();
            if event.revision != expected || !chunk.push(event) {
                return Err(ViewsError::Gap {
                    conversation: id,
                    expected,
                    found: event.revision,
                });
            }
        }
        rows.put_bytes(&key, chunk.as_bytes())?;
    }
    Ok(())
}

fn stored_chunk(table: &RawTable<'_>, key: &[u8]) -> Result<Chunk, ViewsError> {
    match table.get(key)? {
        Some(row) => Chunk::from_bytes(codec::checked(key, row.value())?)
            .ok_or_else(|| ViewsError::damaged("a chunk of the event index is too short")),
        None => Ok(Chunk::new()),
    }
}

fn namespace_rows(delta: &ViewDelta, reached: u64) -> Result<Rows, ViewsError> {
    let mut rows = Rows::default();
    for row in delta.conversations.iter().filter(|r| is_new(r, reached)) {
        let (namespace, offset) = (&row.namespace, row.first_position.offset);
        let (source, source_id) = (&row.info.source, &row.info.source_id);
        let id = row.id.0.as_bytes();
        rows.put_bytes(&keys::listed(namespace, None, offset), id)?;
        if !source.is_empty() {
            rows.put_bytes(&keys::listed(namespace, Some(source), offset), id)?;
        }
        if !source_id.is_empty() {
            rows.put_bytes(&keys::source_id(namespace, source_id, row.id), &[])?;
        }
    }
    for entry in &delta.keys {
        let value = (entry.content_hash, entry.first_offset, entry.events);
        rows.put(&keys::idempotency(&entry.namespace, &entry.key), |bytes| {
            codec::encode(&value, bytes)
        })?;
    }
    for (namespace, hash, home) in &delta.blobs {
        rows.put_bytes(&keys::blob(namespace, hash), &home.to_le_bytes())?;
    }
    Ok(rows)
}

/// Writes the pending rows and says by how much each namespace's number of
/// waiting branches changed.
fn apply_pending<'a>(
    table: &mut RawTable<'_>,
    pending: &'a [PendingEntry],
) -> Result<BTreeMap<&'a Namespace, i64>, ViewsError> {
    let mut changes = BTreeMap::new();
    for entry in pending {
        let key = keys::pending(&entry.namespace, entry.conversation, entry.branch);
        let change = changes.entry(&entry.namespace).or_insert(0);
        if !entry.waiting {
            *change -= i64::from(table.remove(key.as_bytes())?.is_some());
            continue;
        }
        let mut sealed = key.as_bytes().to_vec();
        codec::seal(&mut sealed, 0);
        let checksum = &sealed[key.as_bytes().len()..];
        *change += i64::from(table.insert(key.as_bytes(), checksum)?.is_none());
    }
    Ok(changes)
}

fn count(
    table: &RawTable<'_>,
    delta: &ViewDelta,
    waiting: &BTreeMap<&Namespace, i64>,
    rows: &mut Rows,
) -> Result<(), ViewsError> {
    let mut events: BTreeMap<&Namespace, BTreeMap<u16, u64>> = BTreeMap::new();
    for (namespace, event) in &delta.events {
        let kinds = events.entry(namespace).or_default();
        *kinds.entry(event.kind).or_default() += 1;
    }
    for (namespace, _) in waiting.iter().filter(|(_, change)| **change != 0) {
        events.entry(namespace).or_default();
    }
    for (namespace, kinds) in events {
        let key = keys::counts(namespace);
        let mut counts = match table.get(key.as_bytes())? {
            Some(row) => codec::decode(key.as_bytes(), row.value())?,
            None => CountsRow::default(),
        };
        let change = waiting.get(namespace).copied().unwrap_or_default();
        counts.0 = counts.0.saturating_add_signed(change);
        for (kind, number) in kinds {
            *counts.1.entry(kind).or_default() += number;
        }
        rows.put(&key, |bytes| codec::encode(&counts, bytes))?;
    }
    Ok(())
}
