//! From the log to the views: catching up after a start, and rebuilding.

use std::{collections::HashMap, sync::Arc};

use super::{
    delta::DeltaBuilder,
    error::ReadError,
    history::{History, first_own},
    marks,
};
use crate::{
    domain::{
        BranchForked, BranchId, BranchState, ConversationCreated, ConversationId, ConversationInfo,
        ConversationState, Draft, EventBody, EventRef, ForkPoint, Placed, Position,
    },
    log::{LogReader, Record, RecordBody},
    views::{KeyEntry, Views},
};

/// Events that are folded before they are written to the views in one commit.
const DELTA_EVENTS_MAX: usize = 8_192;
/// Records read at once, in bytes.
const READ_BYTES: usize = 4 << 20;
/// States kept while folding; beyond it they are read from the views again.
const STATES_MAX: usize = 20_000;

/// Folds the log into views.
pub(super) struct Folder {
    views: Arc<Views>,
    reader: Arc<LogReader>,
    states: HashMap<ConversationId, ConversationState>,
    builder: DeltaBuilder,
    reached: u64,
}

impl Folder {
    /// Goes on where the views are.
    pub fn new(views: Arc<Views>, reader: Arc<LogReader>) -> Result<Self, ReadError> {
        marks::sign(&views, reader.log().identity())?;
        let reached = views.reached()?;
        Ok(Self {
            views,
            reader,
            states: HashMap::new(),
            builder: DeltaBuilder::default(),
            reached,
        })
    }

    /// Folds up to a log offset, inclusive, and reports how far it is.
    pub async fn run(&mut self, head: u64, mut report: impl FnMut(u64)) -> Result<(), ReadError> {
        while self.reached < head {
            let wanted = usize::try_from(head - self.reached).unwrap_or(usize::MAX);
            let records = self
                .reader
                .records(self.reached + 1, wanted.min(DELTA_EVENTS_MAX), READ_BYTES)
                .await?;
            if records.is_empty() {
                let position = Position::local(self.reached + 1);
                let message = format!("the log ends there, but its head is {head}");
                return Err(ReadError::Damaged { position, message });
            }
            for (offset, record) in &records {
                self.fold(*offset, record).await?;
                self.reached = *offset;
            }
            if self.builder.len() >= DELTA_EVENTS_MAX || self.states.len() > STATES_MAX {
                self.flush()?;
            }
            if self.states.len() > STATES_MAX {
                self.states.clear();
            }
            report(self.reached);
        }
        self.flush()
    }

    fn flush(&mut self) -> Result<(), ReadError> {
        if self.builder.len() > 0 {
            let delta = std::mem::take(&mut self.builder).finish(self.reached);
            self.views.apply(&delta)?;
        }
        Ok(())
    }

    async fn fold(&mut self, offset: u64, record: &Record) -> Result<(), ReadError> {
        let header = &record.header;
        let id = header.conversation;
        let history = self.history();
        let body = history.decode(offset, record).await?;
        if !self.states.contains_key(&id)
            && let Some(state) = self.views.state(id)?
        {
            self.states.insert(id, state);
        }
        let mut draft = match &body {
            EventBody::ConversationCreated(created) => self.create(header, created).await?,
            _ => Draft::of(self.state(id, offset)?),
        };
        if let EventBody::BranchForked(forked) = &body {
            let branch = self.forked(id, header.branch, forked).await?;
            draft.open_branch(branch);
        }
        let state = self.states.remove(&id);
        let at = draft.apply(state.as_ref(), header.branch, &body);
        if at.revision != header.revision {
            let message = format!("revision {} follows {}", header.revision, at.revision);
            return Err(ReadError::Damaged {
                position: Position::local(offset),
                message,
            });
        }
        draft.row.chain_hash = record.chain_hash;
        draft.row.last_position = Position::local(offset);
        draft.row.updated_at = header.recorded_at;
        if state.is_none() {
            draft.row.first_position = Position::local(offset);
            draft.row.created_at = header.recorded_at;
        }
        self.note(offset, record, &body, at);
        let state = self.builder.absorb(state, draft);
        self.states.insert(id, state);
        Ok(())
    }

    fn note(&mut self, offset: u64, record: &Record, body: &EventBody, at: EventRef) {
        let header = &record.header;
        self.builder.event(
            header,
            offset,
            body,
            Placed {
                branch: header.branch,
                at,
            },
        );
        if let Some(key) = &record.append_key {
            self.builder.key(KeyEntry {
                namespace: header.namespace.clone(),
                key: key.key.clone(),
                content_hash: key.content_hash,
                first_offset: offset,
                events: key.events,
            });
        }
        if let RecordBody::Blob(blob) = &record.body
            && blob.home_offset == offset
        {
            self.builder
                .blob(header.namespace.clone(), blob.hash, offset);
        }
    }

    fn state(&self, id: ConversationId, offset: u64) -> Result<&ConversationState, ReadError> {
        self.states.get(&id).ok_or_else(|| ReadError::Damaged {
            position: Position::local(offset),
            message: format!("conversation {id} has no first event"),
        })
    }

    async fn create(
        &mut self,
        header: &crate::domain::EventHeader,
        created: &ConversationCreated,
    ) -> Result<Draft, ReadError> {
        let (namespace, id) = (header.namespace.clone(), header.conversation);
        let Some(parent) = &created.parent else {
            return Ok(Draft::new(
                namespace,
                id,
                ConversationInfo::new(created, id),
                None,
            ));
        };
        if !self.states.contains_key(&parent.conversation)
            && let Some(state) = self.views.state(parent.conversation)?
        {
            self.states.insert(parent.conversation, state);
        }
        let info = match self.states.get(&parent.conversation) {
            Some(state) => ConversationInfo::below(created, &state.row.info),
            None => ConversationInfo::new(created, parent.conversation),
        };
        if !created.shares_history {
            return Ok(Draft::new(namespace, id, info, None));
        }
        let fork = ForkPoint {
            conversation: parent.conversation,
            branch: parent.branch,
            revision: parent.revision,
        };
        let base = self.branch_at(fork).await?;
        Ok(Draft::new(namespace, id, info, Some((&base, fork))))
    }

    async fn forked(
        &mut self,
        conversation: ConversationId,
        branch: BranchId,
        forked: &BranchForked,
    ) -> Result<BranchState, ReadError> {
        let point = ForkPoint {
            conversation,
            branch: forked.parent,
            revision: forked.fork_revision,
        };
        let base = self.branch_at(point).await?;
        Ok(base.forked(branch, forked.name.clone(), point))
    }

    /// The state that a fork inherits: the head's, or one of the past, for which
    /// the views must have what was folded so far.
    async fn branch_at(&mut self, point: ForkPoint) -> Result<Arc<BranchState>, ReadError> {
        let current = self
            .states
            .get(&point.conversation)
            .and_then(|state| state.branches.get(&point.branch));
        if let Some(current) = current
            && current.head == point.revision
            && first_own(current.id) <= point.revision
        {
            return Ok(Arc::clone(current));
        }
        self.flush()?;
        let past = self
            .history()
            .branch_at(point.conversation, point.branch, point.revision)
            .await?;
        past.map(|past| past.state)
            .ok_or_else(|| ReadError::Storage {
                message: format!(
                    "branch {} of conversation {} has no revision {} to fork at",
                    point.branch, point.conversation, point.revision
                ),
            })
    }

    fn history(&self) -> History {
        History {
            views: Arc::clone(&self.views),
            reader: Arc::clone(&self.reader),
        }
    }
}
