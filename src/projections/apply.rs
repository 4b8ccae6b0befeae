//! Applies a delta: converts it to rows.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;

use treering_domain::{
    BranchId, BranchState, ConversationInfo, ConversationKey, ConversationRow, Namespace, Revision,
    TimestampMicros,
};

use super::{
    chunk::{CHUNK_EVENTS, Chunk, chunk_of},
    codec::{self, CreatedRow, HeadRow},
    conversation_head::{self, ConversationHead},
    damage,
    delta::{EventEntry, PendingEntry, ProjectionDelta},
    error::ProjectionsError,
    facets::FacetChange,
    find_events, key_expiry, keys,
    meta::{reached_in, set_reached},
    row_store::Writer,
    rows::Rows,
    store::Projections,
    table::{CONVERSATIONS, Get, META, NAMESPACES, RawTable},
};

/// A namespace's counts: branches with waiting calls, those calls, events by kind, the events'
/// quota usage in bytes, and idempotency keys with an expiry. The other counts are derived from
/// these.
pub(super) type CountsRow = (u64, u64, BTreeMap<u16, u64>, u64, u64);

/// Change of a namespace's waiting branches and calls.
#[derive(Clone, Copy, Default, PartialEq)]
struct PendingCounts {
    branches: i64,
    calls: i64,
}

impl Projections {
    /// Applies a delta, all of it or nothing. Readers see it at once; it is durable after
    /// [`make_durable`](Self::make_durable).
    ///
    /// # Errors
    /// [`ProjectionsError::NotBeyond`] when the delta, or its first event, is not after the reached
    /// offset, so that nothing is counted twice. [`ProjectionsError::Gap`] when revisions are
    /// missing, [`ProjectionsError::Incomplete`] when the row of a conversation is missing.
    /// [`ProjectionsError::NoSpace`], [`ProjectionsError::Storage`] when it cannot be written.
    pub fn apply(&self, delta: &ProjectionDelta) -> Result<(), ProjectionsError> {
        let mut changed = Vec::new();
        let written = self.write(|txn| {
            let reached = advance(txn, delta)?;
            let mut table = txn.table(CONVERSATIONS);
            let (rows, listed) = conversation_rows(&table, delta, reached)?;
            rows.write(&mut table);
            apply_names(&mut table, delta)?;
            let mut table = txn.table(NAMESPACES);
            for moved in listed.moved {
                moved.apply(&mut table)?;
            }
            for facets in listed.facets {
                facets.apply(&mut table)?;
                changed.extend(facets.versions());
            }
            let waiting = apply_pending(&mut table, &delta.pending)?;
            let ended = key_expiry::forget(self, &mut table, delta)?;
            let mut rows = namespace_rows(delta, reached)?;
            count(&table, delta, (&waiting, &ended), &mut rows)?;
            rows.write(&mut table);
            Ok(())
        });
        for place in changed {
            self.facet_versions().note(place);
        }
        written
    }
}

/// Advances the reached offset, and returns the previous one.
fn advance(txn: &mut Writer, delta: &ProjectionDelta) -> Result<u64, ProjectionsError> {
    let mut meta = txn.table(META);
    let reached = reached_in(&meta)?;
    let offsets = || delta.events.iter().map(|(_, event)| event.offset);
    let first = offsets().min().unwrap_or(delta.reached);
    let last = delta.reached.max(offsets().max().unwrap_or(0));
    if delta.reached <= reached || first <= reached || last > delta.reached {
        return Err(ProjectionsError::NotBeyond {
            reached,
            first,
            last,
        });
    }
    set_reached(&mut meta, delta.reached);
    damage::note(&mut meta, delta);
    Ok(reached)
}

/// Returns true when the conversation's first event is in this delta.
fn is_new(row: &ConversationRow, reached: u64) -> bool {
    row.first_position.offset > reached
}

fn conversation_rows<'a>(
    table: &RawTable<'_>,
    delta: &'a ProjectionDelta,
    reached: u64,
) -> Result<(Rows, ListChanges<'a>), ProjectionsError> {
    let mut rows = Rows::default();
    let mut listed = ListChanges::default();
    let is_described = |row: &&ConversationRow| delta.described.contains(&row.key());
    for change in changes(delta)? {
        let is_described = is_described(&change.row);
        change.rows(table, &mut rows, is_described, &mut listed)?;
    }
    let rows_of = delta.conversations.iter();
    for row in rows_of.filter(|row| is_new(row, reached) || is_described(row)) {
        let created = CreatedRow::of(row);
        rows.put(&keys::created(row.key()), |bytes| {
            codec::encode(&created, bytes)
        })?;
    }
    for (id, branch) in delta.branches.iter().filter(|(_, b)| !is_main(b)) {
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
    for found in &delta.found_by {
        find_events::put(&mut rows, found)?;
    }
    find_events::put_kinds(&mut rows, delta.events.iter().map(|(_, event)| event))?;
    for (parent, child) in &delta.children {
        rows.put_bytes(&keys::child(*parent, *child), &[])?;
    }
    Ok((rows, listed))
}

fn apply_names(table: &mut RawTable<'_>, delta: &ProjectionDelta) -> Result<(), ProjectionsError> {
    let mut rows = Rows::default();
    for ((id, name), branch) in &delta.names {
        let key = keys::branch_name(*id, name);
        match branch {
            Some(branch) => rows.put_bytes(&key, &branch.0.to_le_bytes())?,
            None => table.remove(Bytes::copy_from_slice(key.as_bytes())),
        }
    }
    rows.write(table);
    Ok(())
}

/// The changes to the lists of conversations.
#[derive(Default)]
struct ListChanges<'a> {
    moved: Vec<MovedConversation<'a>>,
    facets: Vec<FacetChange<'a>>,
}

/// A conversation whose position in a list by time has changed.
struct MovedConversation<'a> {
    row: &'a ConversationRow,
    list: TimeList,
    /// Its previous time, or `None` if the conversation is new.
    from: Option<TimestampMicros>,
    to: TimestampMicros,
}

/// A list of conversations by time.
#[derive(Clone, Copy)]
enum TimeList {
    /// By when the last event happened; also for each source.
    Happened,
    /// By when the last event was recorded.
    Updated,
}

impl MovedConversation<'_> {
    fn is_moved(&self) -> bool {
        self.from.map(keys::second) != Some(keys::second(self.to))
    }

    fn apply(&self, table: &mut RawTable<'_>) -> Result<(), ProjectionsError> {
        let mut rows = Rows::default();
        if let Some(from) = self.from {
            for key in self.keys(from) {
                table.remove(Bytes::copy_from_slice(key.as_bytes()));
            }
        }
        for key in self.keys(self.to) {
            rows.put_bytes(&key, self.row.id.0.as_bytes())?;
        }
        rows.write(table);
        Ok(())
    }

    fn keys(&self, time: TimestampMicros) -> Vec<keys::Key> {
        let (namespace, offset) = (&self.row.namespace, self.row.first_position.offset);
        let source = self.row.info.source.as_str();
        match self.list {
            TimeList::Updated => vec![keys::updated_in(namespace, time).number(offset)],
            TimeList::Happened => {
                let of_source = (!source.is_empty()).then_some(Some(source));
                let key = |source| keys::happened(namespace, source, time, offset);
                [Some(None), of_source]
                    .into_iter()
                    .flatten()
                    .map(key)
                    .collect()
            }
        }
    }
}

fn is_main(branch: &BranchState) -> bool {
    branch.id == BranchId::MAIN
}

/// A delta's changes to the row of one conversation's head.
struct ConversationChange<'a> {
    id: ConversationKey,
    row: &'a ConversationRow,
    main: Option<&'a BranchState>,
    /// In the order of revisions.
    events: Vec<&'a EventEntry>,
}

/// Groups a delta's changes by conversation.
fn changes<'a>(
    delta: &'a ProjectionDelta,
) -> Result<Vec<ConversationChange<'a>>, ProjectionsError> {
    let start = |row: &'a ConversationRow| ConversationChange {
        id: row.key(),
        row,
        main: None,
        events: Vec::new(),
    };
    let mut changes: Vec<ConversationChange<'_>> = delta.conversations.iter().map(start).collect();
    changes.sort_unstable_by_key(|change| change.id);
    if changes.windows(2).any(|pair| pair[0].id == pair[1].id) {
        return Err(ProjectionsError::Incomplete);
    }
    let find = |changes: &[ConversationChange<'_>], id| {
        let place = changes.binary_search_by_key(&id, |change| change.id);
        place.map_err(|_| ProjectionsError::Incomplete)
    };
    for (id, branch) in &delta.branches {
        let place = find(&changes, *id)?;
        if is_main(branch) {
            changes[place].main = Some(branch);
        }
    }
    for (_, event) in &delta.events {
        let place = find(&changes, event.conversation)?;
        changes[place].events.push(event);
    }
    for change in &mut changes {
        change.events.sort_unstable_by_key(|event| event.revision);
    }
    Ok(changes)
}

impl<'a> ConversationChange<'a> {
    /// Adds the conversation's rows, and its changes to the lists.
    fn rows(
        &self,
        table: &RawTable<'_>,
        rows: &mut Rows,
        is_described: bool,
        listed: &mut ListChanges<'a>,
    ) -> Result<(), ProjectionsError> {
        let id = self.id;
        let key = keys::tip(id);
        let stored = table.get(key.as_bytes())?;
        let stored = match &stored {
            Some(row) => Some(ConversationHead::of(codec::checked(key.as_bytes(), row)?)?),
            None => None,
        };
        let before = stored.map(|tip| tip.head()).transpose()?;
        let described = || match is_described {
            true => described_before(table, id).map(Some),
            false => Ok(None),
        };
        let facets = FacetChange::of(self.row, before.as_ref(), described)?;
        listed.facets.extend(facets);
        let row = self.row;
        let times = before
            .as_ref()
            .map(|head| (head.happened_to(), head.updated_at()));
        let moves = [
            (
                TimeList::Happened,
                times.map(|times| times.0),
                row.happened_to,
            ),
            (
                TimeList::Updated,
                times.map(|times| times.1),
                row.updated_at,
            ),
        ];
        let moves = moves.map(|(list, from, to)| MovedConversation {
            row,
            list,
            from,
            to,
        });
        let moves = moves.into_iter().filter(MovedConversation::is_moved);
        listed.moved.extend(moves);
        let mut expected = before.map_or(Revision(1), |head| head.head().next());
        let mut chunk = match stored {
            Some(tip) => tip.chunk()?,
            None => Chunk::new(),
        };
        for event in &self.events {
            if event.revision != expected || !chunk.push(event) {
                return Err(gap(id, expected, event.revision));
            }
            if chunk.len() == CHUNK_EVENTS {
                let key = keys::events(id, chunk_of(event.revision));
                rows.put_bytes(&key, chunk.as_bytes())?;
                chunk = Chunk::new();
            }
            expected = expected.next();
        }
        if self.row.head.next() != expected {
            return Err(gap(id, expected, self.row.head.next()));
        }
        let head = HeadRow::of(self.row);
        rows.put(&key, |bytes| {
            conversation_head::write(bytes, &head, &chunk, |bytes| match (self.main, stored) {
                (Some(main), _) => codec::encode(main, bytes),
                (None, Some(tip)) => {
                    bytes.extend_from_slice(tip.main_bytes());
                    Ok(())
                }
                (None, None) => Err(ProjectionsError::Incomplete),
            })
        })
    }
}

/// Returns the description of a conversation before this write.
fn described_before(
    table: &RawTable<'_>,
    id: ConversationKey,
) -> Result<ConversationInfo, ProjectionsError> {
    let key = keys::created(id);
    let row = table.get(key.as_bytes())?;
    let row = row.ok_or(ProjectionsError::Incomplete)?;
    let created: CreatedRow = codec::decode(key.as_bytes(), &row)?;
    Ok(Arc::unwrap_or_clone(created.info()))
}

fn gap(conversation: ConversationKey, expected: Revision, found: Revision) -> ProjectionsError {
    ProjectionsError::Gap {
        conversation: conversation.id,
        expected,
        found,
    }
}

fn namespace_rows(delta: &ProjectionDelta, reached: u64) -> Result<Rows, ProjectionsError> {
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
        key_expiry::put(&mut rows, entry)?;
    }
    for (namespace, id, offset) in &delta.ids {
        rows.put_bytes(&keys::event_id(namespace, *id), &offset.to_le_bytes())?;
    }
    for (namespace, hash, home) in &delta.blobs {
        rows.put_bytes(&keys::blob(namespace, hash), &home.to_le_bytes())?;
    }
    Ok(rows)
}

/// Writes the pending rows and returns what changed in each namespace.
fn apply_pending<'a>(
    table: &mut RawTable<'_>,
    pending: &'a [PendingEntry],
) -> Result<BTreeMap<&'a Namespace, PendingCounts>, ProjectionsError> {
    let mut changes = BTreeMap::new();
    for entry in pending {
        let key = keys::pending(&entry.namespace, entry.conversation, entry.branch);
        let is_there = table.get(key.as_bytes())?.is_some();
        let change: &mut PendingCounts = changes.entry(&entry.namespace).or_default();
        change.calls += entry.calls_change;
        if !entry.waiting {
            change.branches -= i64::from(is_there);
            if is_there {
                table.remove(Bytes::copy_from_slice(key.as_bytes()));
            }
            continue;
        }
        let mut sealed = key.as_bytes().to_vec();
        codec::seal(&mut sealed, 0);
        let sealed = Bytes::from(sealed);
        let (key, checksum) = (
            sealed.slice(..key.as_bytes().len()),
            sealed.slice(key.as_bytes().len()..),
        );
        change.branches += i64::from(!is_there);
        table.put(key, checksum);
    }
    Ok(changes)
}

fn count(
    table: &RawTable<'_>,
    delta: &ProjectionDelta,
    (waiting, ended): (
        &BTreeMap<&Namespace, PendingCounts>,
        &BTreeMap<&Namespace, u64>,
    ),
    rows: &mut Rows,
) -> Result<(), ProjectionsError> {
    let mut events: BTreeMap<&Namespace, BTreeMap<u16, u64>> = BTreeMap::new();
    for (namespace, event) in &delta.events {
        let kinds = events.entry(namespace).or_default();
        *kinds.entry(event.kind).or_default() += 1;
    }
    let has_waited = |change: &PendingCounts| *change != PendingCounts::default();
    let waiting_in = waiting.iter().filter(|(_, change)| has_waited(change));
    let ending = delta.keys.iter().filter(|entry| entry.ends_at.is_some());
    let also = waiting_in
        .map(|(namespace, _)| *namespace)
        .chain(ending.map(|entry| &entry.namespace))
        .chain(ended.keys().copied());
    for namespace in also {
        events.entry(namespace).or_default();
    }
    let mut bytes: BTreeMap<&Namespace, u64> = BTreeMap::new();
    for ((namespace, _), some) in &delta.event_bytes {
        let sum = bytes.entry(namespace).or_default();
        *sum = sum.saturating_add(*some);
    }
    for (namespace, kinds) in events {
        let key = keys::counts(namespace);
        let mut counts = match table.get(key.as_bytes())? {
            Some(row) => codec::decode(key.as_bytes(), &row)?,
            None => CountsRow::default(),
        };
        let change = waiting.get(namespace).copied().unwrap_or_default();
        counts.0 = counts.0.saturating_add_signed(change.branches);
        counts.1 = counts.1.saturating_add_signed(change.calls);
        for (kind, number) in kinds {
            *counts.2.entry(kind).or_default() += number;
        }
        let bytes = bytes.get(namespace).copied().unwrap_or_default();
        counts.3 = counts.3.saturating_add(bytes);
        let ended = ended.get(namespace).copied().unwrap_or_default();
        let ending = key_expiry::added(delta, namespace);
        counts.4 = counts.4.saturating_add(ending).saturating_sub(ended);
        rows.put(&key, |bytes| codec::encode(&counts, bytes))?;
    }
    Ok(())
}
