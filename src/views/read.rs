//! What the views know of one conversation.

use std::{ops::Bound, sync::Arc};

use serde::de::DeserializeOwned;

use crate::domain::{
    BranchId, BranchName, BranchState, ConversationId, ConversationRow, ConversationState,
    ForkPoint, Revision,
};

use super::{
    chunk::{Chunk, chunk_of},
    codec::{self, CreatedRow},
    delta::{CallEntry, EventEntry},
    error::ViewsError,
    keys::{self, Key, StateRow},
    layers::Reader,
    store::Views,
    table::{CONVERSATIONS, Get, Range, ReadTable},
    tip::Tip,
};

/// All errors of reads: [`ViewsError::Damaged`], [`ViewsError::Closed`],
/// [`ViewsError::Storage`].
impl Views {
    /// A conversation as a whole.
    ///
    /// # Errors
    /// As every read.
    pub fn conversation(&self, id: ConversationId) -> Result<Option<ConversationRow>, ViewsError> {
        self.read(|reader| conversation(&reader.table(CONVERSATIONS), id))
    }

    /// All conversations of all namespaces, in the order of their ids.
    ///
    /// # Errors
    /// As every read.
    pub fn every_conversation(&self) -> Result<Vec<ConversationRow>, ViewsError> {
        let mut rows = Vec::new();
        self.each_conversation(|row| {
            rows.push(row);
            true
        })?;
        Ok(rows)
    }

    /// The same one by one, while `each` wants more.
    ///
    /// # Errors
    /// As every read.
    pub fn each_conversation(
        &self,
        mut each: impl FnMut(ConversationRow) -> bool,
    ) -> Result<(), ViewsError> {
        self.read(|reader| {
            let table = reader.table(CONVERSATIONS);
            let mut from = Vec::new();
            while let Some(row) = table.range(from.as_slice()..).next() {
                let key = row?.0;
                let Some(id) = keys::conversation_of(&key) else {
                    break;
                };
                if conversation(&table, id)?.is_some_and(|row| !each(row)) {
                    break;
                }
                from = keys::after_conversation(id).as_bytes().to_vec();
            }
            Ok(())
        })
    }

    /// A branch as it is now.
    ///
    /// # Errors
    /// As every read.
    pub fn branch(
        &self,
        id: ConversationId,
        branch: BranchId,
    ) -> Result<Option<BranchState>, ViewsError> {
        self.read(|reader| branch_of(&reader.table(CONVERSATIONS), id, branch))
    }

    /// The branch with this name.
    ///
    /// # Errors
    /// As every read.
    pub fn branch_named(
        &self,
        id: ConversationId,
        name: &BranchName,
    ) -> Result<Option<BranchState>, ViewsError> {
        self.read(|reader| {
            let table = reader.table(CONVERSATIONS);
            let key = keys::branch_name(id, name);
            let found = match table.get(key.as_bytes())? {
                Some(row) => branch_id(codec::checked(key.as_bytes(), &row)?)?,
                // It has no row while it is called so.
                None if *name == BranchName::default() => BranchId::MAIN,
                None => return Ok(None),
            };
            let branch = branch_of(&table, id, found)?;
            Ok(branch.filter(|branch| branch.name == *name))
        })
    }

    /// Branches of a conversation by id, at most `limit` of those after one; none: from the
    /// first on.
    ///
    /// # Errors
    /// As every read.
    pub fn branches(
        &self,
        id: ConversationId,
        after: Option<BranchId>,
        limit: usize,
    ) -> Result<Vec<BranchState>, ViewsError> {
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

    /// Goes from a branch up to the root, through every fork, until `visit` says
    /// that it has seen enough. One pass over one state of the views, which reads
    /// of each branch only where it came from: chains of forks can be long, and
    /// branches can hold much.
    ///
    /// Returns a branch that should be there and is not.
    ///
    /// # Errors
    /// As every read.
    pub fn ancestors(
        &self,
        id: ConversationId,
        branch: BranchId,
        mut visit: impl FnMut(&Ancestor) -> bool,
    ) -> Result<Option<(ConversationId, BranchId)>, ViewsError> {
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
                next = ancestor.fork.map(|fork| (fork.conversation, fork.branch));
            }
            Ok(None)
        })
    }

    /// A conversation with all of its branches.
    ///
    /// # Errors
    /// As every read.
    pub fn state(&self, id: ConversationId) -> Result<Option<ConversationState>, ViewsError> {
        self.read(|reader| state(reader, id))
    }

    /// The same, and how far the views had come when it was read.
    ///
    /// # Errors
    /// As every read.
    pub fn state_with_mark(
        &self,
        id: ConversationId,
    ) -> Result<(u64, Option<ConversationState>), ViewsError> {
        self.read(|reader| Ok((reader.reached()?, state(reader, id)?)))
    }

    /// A branch as it was when its last snapshot up to the revision was kept. The
    /// branch's own snapshots only: before its fork, ask for its parent's.
    ///
    /// # Errors
    /// As every read.
    pub fn snapshot_at_or_before(
        &self,
        id: ConversationId,
        branch: BranchId,
        revision: Revision,
    ) -> Result<Option<BranchState>, ViewsError> {
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

    /// The events from one revision to another, both included, of all branches:
    /// at most `max`, from the first up or from the last down.
    ///
    /// # Errors
    /// As every read.
    pub fn entries(
        &self,
        id: ConversationId,
        from: Revision,
        to: Revision,
        max: usize,
        backward: bool,
    ) -> Result<Vec<EventEntry>, ViewsError> {
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

    /// Where an event is, and what it is about.
    ///
    /// # Errors
    /// As every read.
    pub fn entry(
        &self,
        id: ConversationId,
        revision: Revision,
    ) -> Result<Option<EventEntry>, ViewsError> {
        Ok(self.entries(id, revision, revision, 1, false)?.pop())
    }

    /// Log offset of an event.
    ///
    /// # Errors
    /// As every read.
    pub fn offset(
        &self,
        id: ConversationId,
        revision: Revision,
    ) -> Result<Option<u64>, ViewsError> {
        Ok(self.entry(id, revision)?.map(|entry| entry.offset))
    }

    /// Every call with this provider's id, by request.
    ///
    /// # Errors
    /// As every read.
    pub fn calls(&self, id: ConversationId, call_id: &str) -> Result<Vec<CallEntry>, ViewsError> {
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

    /// Conversations that were forked or spawned from this one, by id.
    ///
    /// # Errors
    /// As every read.
    pub fn children(&self, id: ConversationId) -> Result<Vec<ConversationId>, ViewsError> {
        self.read(|reader| {
            let table = reader.table(CONVERSATIONS);
            ending_conversations(&table, &keys::children(id))
        })
    }
}

/// A branch and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ancestor {
    /// Its conversation.
    pub conversation: ConversationId,
    /// The branch.
    pub branch: BranchId,
    /// Its name today.
    pub name: BranchName,
    /// Where it left another one.
    pub fork: Option<ForkPoint>,
}

fn ancestor(
    table: &ReadTable,
    id: ConversationId,
    branch: BranchId,
) -> Result<Option<Ancestor>, ViewsError> {
    // What a branch's state begins with.
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

fn branch_id(row: &[u8]) -> Result<BranchId, ViewsError> {
    let bytes: Result<[u8; 8], _> = row.try_into();
    let bytes = bytes.map_err(|_| ViewsError::damaged("a branch's name leads nowhere"))?;
    Ok(BranchId(u64::from_le_bytes(bytes)))
}

fn branch_of(
    table: &ReadTable,
    id: ConversationId,
    branch: BranchId,
) -> Result<Option<BranchState>, ViewsError> {
    if branch != BranchId::MAIN {
        return get(table, &keys::branch(id, branch));
    }
    with_tip(table, id, |tip| tip.main())
}

/// A row's value, if the row is there.
pub(super) fn get<T: DeserializeOwned>(
    table: &ReadTable,
    key: &Key,
) -> Result<Option<T>, ViewsError> {
    match table.get(key.as_bytes())? {
        Some(row) => codec::decode(key.as_bytes(), &row).map(Some),
        None => Ok(None),
    }
}

/// The rows whose keys begin with this one.
pub(super) fn prefix(table: &ReadTable, prefix: &Key) -> Range {
    let end = prefix.after_prefix();
    let bounds = (
        Bound::Included(prefix.as_bytes()),
        Bound::Excluded(end.as_bytes()),
    );
    table.range(bounds)
}

/// Keys and values, the checksums taken off.
type RawRows = Vec<(Vec<u8>, Vec<u8>)>;

/// The rows whose keys begin with these bytes.
pub(super) fn prefix_of(table: &ReadTable, prefix: &[u8]) -> Result<RawRows, ViewsError> {
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

/// The conversations that end the keys under this prefix.
pub(super) fn ending_conversations(
    table: &ReadTable,
    under: &Key,
) -> Result<Vec<ConversationId>, ViewsError> {
    let mut found = Vec::new();
    for row in prefix(table, under) {
        let (key, row) = row?;
        codec::checked(&key, &row)?;
        found.extend(keys::last_conversation(&key));
    }
    Ok(found)
}

/// What a conversation's tip says, if the conversation is there.
fn with_tip<T>(
    table: &ReadTable,
    id: ConversationId,
    read: impl FnOnce(Tip<'_>) -> Result<T, ViewsError>,
) -> Result<Option<T>, ViewsError> {
    let key = keys::tip(id);
    match table.get(key.as_bytes())? {
        Some(row) => read(Tip::of(codec::checked(key.as_bytes(), &row)?)?).map(Some),
        None => Ok(None),
    }
}

pub(super) fn conversation(
    table: &ReadTable,
    id: ConversationId,
) -> Result<Option<ConversationRow>, ViewsError> {
    let Some(head) = with_tip(table, id, |tip| tip.head())? else {
        return Ok(None);
    };
    let created: CreatedRow = get(table, &keys::created(id))?.ok_or_else(incomplete)?;
    Ok(Some(head.joined(id, created)))
}

fn incomplete() -> ViewsError {
    ViewsError::damaged("a conversation lacks a row")
}

/// Tip, creation and branches lie side by side: one walk.
fn state(reader: &Reader, id: ConversationId) -> Result<Option<ConversationState>, ViewsError> {
    let table = reader.table(CONVERSATIONS);
    let (first, end) = (keys::tip(id), keys::branches(id).after_prefix());
    let (mut head, mut created, mut branches) = (None, None, Vec::new());
    for row in table.range(first.as_bytes()..end.as_bytes()) {
        let (key, row) = row?;
        let (key, row) = (&key, &row);
        match keys::state_row(key) {
            Some(StateRow::Tip) => {
                let tip = Tip::of(codec::checked(key, row)?)?;
                head = Some(tip.head()?);
                branches.push(Arc::new(tip.main()?));
            }
            Some(StateRow::Created) => created = Some(codec::decode(key, row)?),
            Some(StateRow::Branch) => {
                branches.push(Arc::new(codec::decode::<BranchState>(key, row)?));
            }
            None => return Err(ViewsError::damaged("a row is out of place")),
        }
    }
    let Some(head) = head else {
        return Ok(None);
    };
    let row = head.joined(id, created.ok_or_else(incomplete)?);
    if row.branch_count != branches.len() as u64 {
        return Err(incomplete());
    }
    Ok(Some(ConversationState::new(row, branches)))
}

/// A stretch of a conversation's event index.
struct Window {
    id: ConversationId,
    from: Revision,
    to: Revision,
    max: usize,
    backward: bool,
}

impl Window {
    fn read(&self, table: &ReadTable) -> Result<Vec<EventEntry>, ViewsError> {
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

    /// Adds what is not in a full chunk yet.
    fn add_tip(&self, table: &ReadTable, found: &mut Vec<EventEntry>) -> Result<(), ViewsError> {
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
    id: ConversationId,
    key: &[u8],
    row: &[u8],
) -> Result<Vec<EventEntry>, ViewsError> {
    let number = keys::last_number(key).unwrap_or_default();
    let value = codec::checked(key, row)?;
    let entries = Chunk::entries(value, id, number);
    entries.ok_or_else(|| ViewsError::damaged("a chunk of the event index does not add up"))
}
