//! Look-ups of events: the newest with a key, of a type or of a kind, and any event by id or place.
//! None of them scans a conversation.

use std::{collections::HashMap, sync::atomic::Ordering};

use super::{
    Engine, ReadPath,
    error::ReadError,
    history::{History, Segment, same_event, stored},
    query::{
        BranchAddress, EventName, EventSelector, FoundEvent, GetQuery, LatestEvent, LatestQuery,
        NamedEvent,
    },
    work::{self, PriorityClass, priority_for_page},
};
use treering_domain::{
    BranchId, BranchName, ConversationId, ConversationKey, ConversationRow, EventId, Namespace,
    Revision,
};
use treering_log::{LogError, Record};
use treering_projections::{EventEntry, EventRange, EventTerm};

/// Up to this many branches are queried one by one. Beyond that, a conversation that has no
/// matching event on any branch is skipped as a whole.
const SEGMENTS_ASKED: usize = 4;

impl Engine {
    /// Returns the newest event with each key, of each type and of each kind, for each
    /// conversation, in the requested order.
    ///
    /// # Errors
    /// [`ReadError`] when a conversation or its branch does not exist or cannot be read.
    pub async fn latest(&self, query: LatestQuery) -> Result<Vec<LatestEvent>, ReadError> {
        let read = |engine: Self| async move { engine.inner.reads.latest(&query).await };
        self.on(PriorityClass::Short, read).await
    }

    /// Checks that a branch exists; without a name, the active one.
    ///
    /// # Errors
    /// [`ReadError`] when the conversation or the branch does not exist.
    pub async fn check_branch(&self, address: &BranchAddress) -> Result<(), ReadError> {
        let address = address.clone();
        let read = |engine: Self| async move {
            let inner = &engine.inner;
            let row = inner.reads.row(&address.namespace, address.conversation)?;
            inner
                .reads
                .branch_id(&inner.reads.history(), &row, address.branch.as_ref())?;
            Ok(())
        };
        self.on(PriorityClass::Short, read).await
    }

    /// Returns events by their names, in the requested order.
    ///
    /// # Errors
    /// [`ReadError`] when a stored event cannot be read.
    pub async fn get_events(&self, query: GetQuery) -> Result<Vec<FoundEvent>, ReadError> {
        let lane = priority_for_page(query.names.len());
        let read = |engine: Self| async move { engine.inner.reads.get_events(&query).await };
        self.on(lane, read).await
    }
}

/// The space left in an answer.
struct AnswerSpace {
    bytes_left: usize,
    is_empty: bool,
    headers_only: bool,
}

impl AnswerSpace {
    fn new(bytes_max: usize, headers_only: bool) -> Self {
        Self {
            bytes_left: bytes_max,
            is_empty: true,
            headers_only,
        }
    }

    /// Returns whether a body still fits, and counts it if so.
    fn takes(&mut self, bytes: u64) -> bool {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        if bytes > self.bytes_left && !self.is_empty {
            return false;
        }
        self.bytes_left = self.bytes_left.saturating_sub(bytes);
        self.is_empty = false;
        true
    }
}

impl ReadPath {
    pub(super) async fn latest(&self, query: &LatestQuery) -> Result<Vec<LatestEvent>, ReadError> {
        let history = self.history();
        let mut room = AnswerSpace::new(query.bytes_max, query.headers_only);
        let mut found = Vec::with_capacity(query.conversations.len() * query.wanted.len());
        for conversation in &query.conversations {
            let segments = self.searched_history(&history, query, *conversation)?;
            for wanted in &query.wanted {
                work::check()?;
                let got = match newest(&history, &segments, wanted)? {
                    Some((entry, branch)) => {
                        let record = record_of(&history, &query.namespace, &entry).await?;
                        let branch = Some(branch.clone());
                        got(&history, entry.offset, record, branch, &mut room).await?
                    }
                    None => NOTHING,
                };
                found.push(LatestEvent {
                    conversation: *conversation,
                    wanted: wanted.clone(),
                    got,
                });
            }
        }
        Ok(found)
    }

    /// Returns the history to be searched. Only the branch's ancestry is read: its state may be
    /// large.
    fn searched_history(
        &self,
        history: &History,
        query: &LatestQuery,
        conversation: ConversationId,
    ) -> Result<Vec<Segment>, ReadError> {
        let row = self.row(&query.namespace, conversation)?;
        let last = query.as_of.unwrap_or(row.head).min(row.head);
        self.check_whole(row.key(), query.as_of.unwrap_or(Revision(u64::MAX)))?;
        let branch = self.branch_id(history, &row, query.branch.as_ref())?;
        history.lineage_to(row.key(), branch, last)
    }

    /// Returns the id of a branch, without reading its state if it is the active or the first one.
    pub(super) fn branch_id(
        &self,
        history: &History,
        row: &ConversationRow,
        name: Option<&BranchName>,
    ) -> Result<BranchId, ReadError> {
        let Some(name) = name else {
            return Ok(row.active);
        };
        for branch in [row.active, BranchId::MAIN] {
            if history.branch_name(row.key(), branch)? == *name {
                return Ok(branch);
            }
        }
        Ok(self.branch(&row.namespace, row.id, Some(name))?.id)
    }

    async fn get_events(&self, query: &GetQuery) -> Result<Vec<FoundEvent>, ReadError> {
        let history = self.history();
        let mut room = AnswerSpace::new(query.bytes_max, query.headers_only);
        let mut names = HashMap::new();
        let mut all = Vec::with_capacity(query.names.len());
        for name in &query.names {
            work::check()?;
            let Some((offset, record)) = self.event_named(&history, &query.namespace, name).await?
            else {
                all.push(NOTHING);
                continue;
            };
            let header = &record.header;
            let conversation = header.key();
            self.check_whole(conversation, header.revision)?;
            let branch = match names.get(&(conversation, header.branch)) {
                Some(name) => BranchName::clone(name),
                None => {
                    let name = history.branch_name(conversation, header.branch)?;
                    names.insert((conversation, header.branch), name.clone());
                    name
                }
            };
            all.push(got(&history, offset, record, Some(branch), &mut room).await?);
        }
        Ok(all)
    }

    /// Returns the record of an event by its name, if it is in this namespace.
    async fn event_named(
        &self,
        history: &History,
        namespace: &Namespace,
        name: &EventName,
    ) -> Result<Option<(u64, Record)>, ReadError> {
        match name {
            EventName::Id(id) => self.of_id(history, namespace, *id).await,
            EventName::Place(at) => {
                if self.find_row(namespace, at.conversation)?.is_none() {
                    return Ok(None);
                }
                self.check_whole(namespace.key(at.conversation), at.revision)?;
                history.event(namespace, *at).await
            }
        }
    }

    /// Returns the event with this id. An id made by the engine encodes the event's offset; a
    /// chosen id has a row in the projections. The event's header confirms the match.
    pub(super) async fn of_id(
        &self,
        history: &History,
        namespace: &Namespace,
        id: EventId,
    ) -> Result<Option<(u64, Record)>, ReadError> {
        if let Some(found) = self.with_id(history, namespace, id, id.offset()).await? {
            return Ok(Some(found));
        }
        match history.projections.event_id(namespace, id)? {
            Some(offset) => self.with_id(history, namespace, id, offset).await,
            None => Ok(None),
        }
    }

    /// Returns the record at an offset, if it has this id.
    async fn with_id(
        &self,
        history: &History,
        namespace: &Namespace,
        id: EventId,
        offset: u64,
    ) -> Result<Option<(u64, Record)>, ReadError> {
        if offset == 0 || offset > self.published.load(Ordering::Acquire) {
            return Ok(None);
        }
        let record = match history.reader.record(offset).await {
            Ok(record) => record,
            Err(LogError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let is_it = record.header.id == id && record.header.namespace == *namespace;
        Ok(is_it.then_some((offset, record)))
    }
}

const NOTHING: FoundEvent = FoundEvent {
    event: None,
    body_left_out: false,
};

/// Returns the newest matching event of a history, and the name of its branch.
pub(super) fn newest<'s>(
    history: &History,
    segments: &'s [Segment],
    wanted: &EventSelector,
) -> Result<Option<(EventEntry, &'s BranchName)>, ReadError> {
    let mut without: Option<ConversationKey> = None;
    for (index, segment) in segments.iter().enumerate() {
        work::check()?;
        let id = segment.conversation;
        if without == Some(id) {
            continue;
        }
        if index == SEGMENTS_ASKED
            || index > SEGMENTS_ASKED && segments[index - 1].conversation != id
        {
            let finding = finding(wanted);
            let any = finding.map(|by| history.projections.has_event(id, by));
            if any.transpose()? == Some(false) {
                without = Some(id);
                continue;
            }
        }
        if let Some(entry) = newest_own(history, segment, wanted)? {
            return Ok(Some((entry, &segment.name)));
        }
    }
    Ok(None)
}

fn finding(wanted: &EventSelector) -> Option<EventTerm<'_>> {
    match wanted {
        EventSelector::Key(key) => Some(EventTerm::Key(key)),
        EventSelector::Type(type_name) => Some(EventTerm::Type(type_name)),
        EventSelector::Kind(_) => None,
    }
}

fn newest_own(
    history: &History,
    segment: &Segment,
    wanted: &EventSelector,
) -> Result<Option<EventEntry>, ReadError> {
    let projections = &history.projections;
    let within = EventRange {
        conversation: segment.conversation,
        branch: Some(segment.branch),
        first: segment.first,
        last: segment.last,
    };
    let found = match wanted {
        EventSelector::Key(key) => projections.latest_event(&within, EventTerm::Key(key)),
        EventSelector::Type(type_name) => {
            projections.latest_event(&within, EventTerm::Type(type_name))
        }
        EventSelector::Kind(kind) => {
            let bounds = (segment.first, segment.last);
            projections.latest_of_kind(segment.conversation, segment.branch, kind.number(), bounds)
        }
    };
    Ok(found?)
}

pub(super) async fn record_of(
    history: &History,
    namespace: &Namespace,
    entry: &EventEntry,
) -> Result<Record, ReadError> {
    let record = history.reader.record(entry.offset).await?;
    same_event(entry, namespace, &record)?;
    Ok(record)
}

/// Returns an event, with its body if there is room.
async fn got(
    history: &History,
    offset: u64,
    record: Record,
    branch: Option<BranchName>,
    room: &mut AnswerSpace,
) -> Result<FoundEvent, ReadError> {
    let has_body = !room.headers_only && room.takes(record.body.bytes_len());
    let body = match has_body {
        true => history.reader.body(&record).await?,
        false => history.found_by(&record)?,
    };
    Ok(FoundEvent {
        event: Some(NamedEvent {
            event: stored(history.reader.position(offset), record, body),
            branch,
        }),
        body_left_out: !has_body && !room.headers_only,
    })
}
