//! Queries on one conversation.

use std::{ops::Bound, sync::Arc};

use serde::de::DeserializeOwned;

use treering_domain::{
    BranchId, BranchName, BranchState, ConversationId, ConversationKey, ConversationRow,
    ConversationState, ForkPoint, Revision,
};

use super::{
    chunk::{Chunk, chunk_of},
    codec::{self, CreatedRow},
    conversation_head::ConversationHead,
    delta::{CallEntry, EventEntry},
    error::ProjectionsError,
    keys::{self, Key, StateRow},
    row_store::Reader,
    store::Projections,
    table::{CONVERSATIONS, Get, Range, ReadTable},
};

/// Errors of every read: [`ProjectionsError::Damaged`], [`ProjectionsError::Closed`],
/// [`ProjectionsError::Storage`].
impl Projections {
    /// Returns a conversation's row.
    ///
    /// # Errors
    /// As for every read.
    pub fn conversation(
        &self,
        id: ConversationKey,
    ) -> Result<Option<ConversationRow>, ProjectionsError> {
        self.read(|reader| conversation(&reader.table(CONVERSATIONS), id))
    }

    /// Returns all conversations of all namespaces, in key order.
    ///
    /// # Errors
    /// As for every read.
    pub fn every_conversation(&self) -> Result<Vec<ConversationRow>, ProjectionsError> {
        self.read(|reader| {
            let table = reader.table(CONVERSATIONS);
            let (mut rows, mut from) = (Vec::new(), Vec::new());
            while let Some(row) = table.range(&from[..]..).next() {
                let key = row?.0;
                let Some(id) = keys::conversation_of(&key) else {
                    break;
                };
                rows.extend(conversation(&table, id)?);
                from = keys::after_conversation(id).as_bytes().to_vec();
            }
            Ok(rows)
        })
    }

    /// Returns the current state of a branch.
    ///
    /// # Errors
    /// As for every read.
    pub fn branch(
        &self,
        id: ConversationKey,
        branch: BranchId,
    ) -> Result<Option<BranchState>, ProjectionsError> {
        self.read(|reader| branch_of(&reader.table(CONVERSATIONS), id, branch))
    }

    /// Returns the branch with this name.
    ///
    /// # Errors
    /// As for every read.
    pub fn branch_named(
        &self,
        id: ConversationKey,
        name: &BranchName,
    ) -> Result<Option<BranchState>, ProjectionsError> {
        self.read(|reader| {
            let table = reader.table(CONVERSATIONS);
            let key = keys::branch_name(id, name);
            let found = match table.get(key.as_bytes())? {
                Some(row) => branch_id(codec::checked(key.as_bytes(), &row)?)?,
                // The main branch has no name row while it has its default name.
                None if *name == BranchName::default() => BranchId::MAIN,
                None => return Ok(None),
            };
            let branch = branch_of(&table, id, found)?;
            Ok(branch.filter(|branch| branch.name == *name))
        })
    }

    /// Returns at most `limit` branches of a conversation, ordered by id: those after a given one,
    /// or from the first.
    ///
    /// # Errors
    /// As for every read.
    pub fn branches(
        &self,
        id: ConversationKey,
        after: Option<BranchId>,
        limit: usize,
    ) -> Result<Vec<BranchState>, ProjectionsError> {
        self.read(|reader| {
            let table = reader.table(CONVERSATIONS);
            let mut found = Vec::new();
            if after.is_none() && limit > 0 {
                found.extend(branch_of(&table, id, BranchId::MAIN)?);
            }
            let first = keys::branch(id, BranchId(after.map_or(0, |after| after.0 + 1)));
            let end = keys::branches(id).after_prefix();
            let rows = table.range(first.as_bytes()..end.as_bytes());
            for row in rows.take(limit - found.len().min(limit)) {
                let (key, row) = row?;
                found.push(codec::decode(&key, &row)?);
            }
            Ok(found)
        })
    }

    /// Visits a branch and its ancestors up to the root, through every fork, until `visit` returns
    /// false. Makes one pass over one state of the projections. Reads only the origin of each
    /// branch, because chains of forks can be long and branches can be large.
    ///
    /// Returns a branch that is missing although it should exist.
    ///
    /// # Errors
    /// As for every read.
    pub fn ancestors(
        &self,
        id: ConversationKey,
        branch: BranchId,
        mut visit: impl FnMut(&Ancestor) -> bool,
    ) -> Result<Option<(ConversationKey, BranchId)>, ProjectionsError> {
        self.read(|reader| {
            let table = reader.table(CONVERSATIONS);
            let mut next = Some((id, branch));
            while let Some((id, branch)) = next {
                let Some(ancestor) = ancestor(&table, id, branch)? else {
                    return Ok(Some((id, branch)));
                };
                if !visit(&ancestor) {
                    break;
                }
                let fork = ancestor.fork;
                next = fork.map(|fork| (id.sibling(fork.conversation), fork.branch));
            }
            Ok(None)
        })
    }

    /// Returns a conversation with all of its branches.
    ///
    /// # Errors
    /// As for every read.
    pub fn state(
        &self,
        id: ConversationKey,
    ) -> Result<Option<ConversationState>, ProjectionsError> {
        self.read(|reader| state(reader, id))
    }

    /// Like [`state`](Self::state), with the log offset that the projections had reached.
    ///
    /// # Errors
    /// As for every read.
    pub fn state_with_mark(
        &self,
        id: ConversationKey,
    ) -> Result<(u64, Option<ConversationState>), ProjectionsError> {
        self.read(|reader| Ok((reader.reached()?, state(reader, id)?)))
    }

    /// Returns the last snapshot of a branch at or before a revision. Only the branch's own
    /// snapshots: for revisions before its fork, query its parent.
    ///
    /// # Errors
    /// As for every read.
    pub fn snapshot_at_or_before(
        &self,
        id: ConversationKey,
        branch: BranchId,
        revision: Revision,
    ) -> Result<Option<BranchState>, ProjectionsError> {
        self.read(|reader| {
            let table = reader.table(CONVERSATIONS);
            let first = keys::snapshot(id, branch, Revision::NONE);
            let last = keys::snapshot(id, branch, revision);
            let mut range = table.range(first.as_bytes()..=last.as_bytes());
            match range.next_back() {
                Some(row) => {
                    let (key, row) = row?;
                    codec::decode(&key, &row).map(Some)
                }
                None => Ok(None),
            }
        })
    }

    /// Returns the events between two revisions, both included, of all branches: at most `max`,
    /// from the first upwards or from the last downwards.
    ///
    /// # Errors
    /// As for every read.
    pub fn entries(
        &self,
        id: ConversationKey,
        from: Revision,
        to: Revision,
        max: usize,
        backward: bool,
    ) -> Result<Vec<EventEntry>, ProjectionsError> {
        if from > to || max == 0 {
            return Ok(Vec::new());
        }
        let wanted = Window {
            id,
            from,
            to,
            max,
            backward,
        };
        self.read(|reader| wanted.read(&reader.table(CONVERSATIONS)))
    }

    /// Returns the index entry of an event.
    ///
    /// # Errors
    /// As for every read.
    pub fn entry(
        &self,
        id: ConversationKey,
        revision: Revision,
    ) -> Result<Option<EventEntry>, ProjectionsError> {
        Ok(self.entries(id, revision, revision, 1, false)?.pop())
    }

    /// Returns the log offset of an event.
    ///
    /// # Errors
    /// As for every read.
    pub fn offset(
        &self,
        id: ConversationKey,
        revision: Revision,
    ) -> Result<Option<u64>, ProjectionsError> {
        Ok(self.entry(id, revision)?.map(|entry| entry.offset))
    }

    /// Returns every call that has this id from the provider, ordered by request.
    ///
    /// # Errors
    /// As for every read.
    pub fn calls(
        &self,
        id: ConversationKey,
        call_id: &str,
    ) -> Result<Vec<CallEntry>, ProjectionsError> {
        self.read(|reader| {
            let table = reader.table(CONVERSATIONS);
            let mut calls = Vec::new();
            for row in prefix(&table, &keys::calls(id, call_id)) {
                let (key, row) = row?;
                let (branch, tool) = codec::decode(&key, &row)?;
                calls.push(CallEntry {
                    conversation: id,
                    call_id: call_id.to_owned(),
                    request: Revision(keys::last_number(&key).unwrap_or_default()),
                    branch,
                    tool,
                });
            }
            Ok(calls)
        })
    }

    /// Returns the conversations that were forked or spawned from this one, ordered by id.
    ///
    /// # Errors
    /// As for every read.
    pub fn children(&self, id: ConversationKey) -> Result<Vec<ConversationId>, ProjectionsError> {
        self.read(|reader| {
            let table = reader.table(CONVERSATIONS);
            ending_conversations(&table, &keys::children(id))
        })
    }
}

/// A branch and its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ancestor {
    /// Its conversation.
    pub conversation: ConversationKey,
    /// The branch.
    pub branch: BranchId,
    /// Its current name.
    pub name: BranchName,
    /// Where it was forked from; `None` for a root.
    pub fork: Option<ForkPoint>,
}

fn ancestor(
    table: &ReadTable,
    id: ConversationKey,
    branch: BranchId,
) -> Result<Option<Ancestor>, ProjectionsError> {
    // The first fields of an encoded branch state.
    type Start = (BranchId, BranchName, Option<ForkPoint>);
    let start: Option<Start> = if branch == BranchId::MAIN {
        with_tip(table, id, |tip| codec::decode_start(tip.main_bytes()))?
    } else {
        let key = keys::branch(id, branch);
        match table.get(key.as_bytes())? {
            Some(row) => {
                let row = codec::checked(key.as_bytes(), &row)?;
                Some(codec::decode_start(row)?)
            }
            None => None,
        }
    };
    Ok(start.map(|(branch, name, fork)| Ancestor {
        conversation: id,
        branch,
        name,
        fork,
    }))
}

fn branch_id(row: &[u8]) -> Result<BranchId, ProjectionsError> {
    let bytes: Result<[u8; 8], _> = row.try_into();
    let bytes =
        bytes.map_err(|_| ProjectionsError::damaged("a branch name has no valid branch id"))?;
    Ok(BranchId(u64::from_le_bytes(bytes)))
}

fn branch_of(
    table: &ReadTable,
    id: ConversationKey,
    branch: BranchId,
) -> Result<Option<BranchState>, ProjectionsError> {
    if branch != BranchId::MAIN {
        return get(table, &keys::branch(id, branch));
    }
    with_tip(table, id, |tip| tip.main())
}

/// Returns a row's decoded value, if the row exists.
pub(super) fn get<T: DeserializeOwned>(
    table: &ReadTable,
    key: &Key,
) -> Result<Option<T>, ProjectionsError> {
    match table.get(key.as_bytes())? {
        Some(row) => codec::decode(key.as_bytes(), &row).map(Some),
        None => Ok(None),
    }
}

/// Returns the rows whose keys have this prefix.
pub(super) fn prefix(table: &ReadTable, prefix: &Key) -> Range {
    let end = prefix.after_prefix();
    let bounds = (
        Bound::Included(prefix.as_bytes()),
        Bound::Excluded(end.as_bytes()),
    );
    table.range(bounds)
}

/// Keys and values, without checksums.
type RawRows = Vec<(Vec<u8>, Vec<u8>)>;

/// Returns the rows whose keys begin with these bytes.
pub(super) fn prefix_of(table: &ReadTable, prefix: &[u8]) -> Result<RawRows, ProjectionsError> {
    let mut rows = Vec::new();
    for row in table.range(prefix..) {
        let (key, value) = row?;
        if !&key.starts_with(prefix) {
            break;
        }
        let checked = codec::checked(&key, &value)?;
        rows.push((key.to_vec(), checked.to_vec()));
    }
    Ok(rows)
}

/// Returns the conversation ids at the end of the keys with this prefix.
pub(super) fn ending_conversations(
    table: &ReadTable,
    under: &Key,
) -> Result<Vec<ConversationId>, ProjectionsError> {
    let mut found = Vec::new();
    for row in prefix(table, under) {
        let (key, row) = row?;
        codec::checked(&key, &row)?;
        found.extend(keys::last_conversation(&key));
    }
    Ok(found)
}

/// Reads a conversation's head row (its tip), if the conversation exists.
fn with_tip<T>(
    table: &ReadTable,
    id: ConversationKey,
    read: impl FnOnce(ConversationHead<'_>) -> Result<T, ProjectionsError>,
) -> Result<Option<T>, ProjectionsError> {
    let key = keys::tip(id);
    match table.get(key.as_bytes())? {
        Some(row) => read(ConversationHead::of(codec::checked(key.as_bytes(), &row)?)?).map(Some),
        None => Ok(None),
    }
}

pub(super) fn conversation(
    table: &ReadTable,
    id: ConversationKey,
) -> Result<Option<ConversationRow>, ProjectionsError> {
    let Some(head) = with_tip(table, id, |tip| tip.head())? else {
        return Ok(None);
    };
    let created: CreatedRow = get(table, &keys::created(id))?.ok_or_else(incomplete)?;
    Ok(Some(head.joined(id.id, created)))
}

fn incomplete() -> ProjectionsError {
    ProjectionsError::damaged("a row of a conversation is missing")
}

/// Reads a conversation in one range scan: tip, creation and branches are adjacent.
fn state(
    reader: &Reader,
    id: ConversationKey,
) -> Result<Option<ConversationState>, ProjectionsError> {
    let table = reader.table(CONVERSATIONS);
    let (first, end) = (keys::tip(id), keys::branches(id).after_prefix());
    let (mut head, mut created, mut branches) = (None, None, Vec::new());
    for row in table.range(first.as_bytes()..end.as_bytes()) {
        let (key, row) = row?;
        let (key, row) = (&key, &row);
        match keys::state_row(key) {
            Some(StateRow::Tip) => {
                let tip = ConversationHead::of(codec::checked(key, row)?)?;
                head = Some(tip.head()?);
                branches.push(Arc::new(tip.main()?));
            }
            Some(StateRow::Created) => created = Some(codec::decode(key, row)?),
            Some(StateRow::Branch) => {
                branches.push(Arc::new(codec::decode::<BranchState>(key, row)?));
            }
            None => return Err(ProjectionsError::damaged("a row has an unexpected key")),
        }
    }
    let Some(head) = head else {
        return Ok(None);
    };
    let row = head.joined(id.id, created.ok_or_else(incomplete)?);
    if row.branch_count != branches.len() as u64 {
        return Err(incomplete());
    }
    Ok(Some(ConversationState::new(row, branches)))
}

/// A range of a conversation's event index.
struct Window {
    id: ConversationKey,
    from: Revision,
    to: Revision,
    max: usize,
    backward: bool,
}

impl Window {
    fn read(&self, table: &ReadTable) -> Result<Vec<EventEntry>, ProjectionsError> {
        let first = keys::events(self.id, chunk_of(self.from));
        let last = keys::events(self.id, chunk_of(self.to));
        let mut chunks = table.range(first.as_bytes()..=last.as_bytes());
        let mut found = Vec::new();
        if self.backward {
            self.add_tip(table, &mut found)?;
        }
        while found.len() < self.max {
            let next = match self.backward {
                true => chunks.next_back(),
                false => chunks.next(),
            };
            let Some(row) = next else { break };
            let (key, row) = row?;
            self.add(chunk_entries(self.id, &key, &row)?, &mut found);
        }
        if !self.backward {
            self.add_tip(table, &mut found)?;
        }
        Ok(found)
    }

    /// Adds the entries after the last full chunk.
    fn add_tip(
        &self,
        table: &ReadTable,
        found: &mut Vec<EventEntry>,
    ) -> Result<(), ProjectionsError> {
        if found.len() < self.max
            && let Some(entries) = with_tip(table, self.id, |tip| tip.entries(self.id))?
        {
            self.add(entries, found);
        }
        Ok(())
    }

    fn add(&self, mut entries: Vec<EventEntry>, found: &mut Vec<EventEntry>) {
        if self.backward {
            entries.reverse();
        }
        entries.retain(|entry| (self.from..=self.to).contains(&entry.revision));
        entries.truncate(self.max - found.len());
        found.append(&mut entries);
    }
}

fn chunk_entries(
    id: ConversationKey,
    key: &[u8],
    row: &[u8],
) -> Result<Vec<EventEntry>, ProjectionsError> {
    let number = keys::last_number(key).unwrap_or_default();
    let value = codec::checked(key, row)?;
    let entries = Chunk::entries(value, id, number);
    entries.ok_or_else(|| ProjectionsError::damaged("a chunk of the event index is corrupt"))
}
