//! From the log to the views: catching up after a start, and rebuilding.
//!
//! Damage is contained here. What cannot be read ends the conversations that it
//! belongs to, as far as that can be known, and no other: the event before is the
//! last that they have, and a mark says why. What the log says of them behind it
//! is passed over, because each event builds on those before it.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{
    damage::{Lost, Stretch, stretch},
    delta::DeltaBuilder,
    error::ReadError,
    history::{History, decode_body, first_own},
    witness,
};
use crate::{
    codec::tags,
    domain::{
        BranchForked, BranchId, BranchState, ChangedConversation, ConversationCreated,
        ConversationId, ConversationInfo, ConversationRow, ConversationState, Damage, DamageKind,
        EventBody, EventHeader, EventRef, ForkPoint, Placed, Position, Revision, with_causes,
    },
    log::{LogError, LogReader, Record, RecordBody},
    views::{KeyEntry, Views, ViewsError},
};

/// Events that are folded before they are written to the views in one commit.
const DELTA_EVENTS_MAX: usize = 8_192;
/// Records read at once, in bytes.
const READ_BYTES: usize = 4 << 20;
/// States kept while folding; beyond it they are read from the views again.
const STATES_MAX: usize = 20_000;

/// Folds the log into views.
pub(super) struct ViewFold {
    views: Arc<Views>,
    reader: Arc<LogReader>,
    states: HashMap<ConversationId, ConversationState>,
    builder: DeltaBuilder,
    reached: u64,
    /// What the views have reached.
    applied: u64,
    /// Stretches that could not be read, in order.
    lost: Vec<(u64, u64)>,
    /// Views of before, which may have seen what is lost.
    before: Option<Views>,
    /// The views themselves are damaged.
    unsound: bool,
    stop: Option<Arc<AtomicBool>>,
}

/// Why an event was not folded in.
enum Stop {
    /// It, or what it builds on, is not what was written.
    Damage(DamageKind, String),
    /// Something else went wrong: the fold ends, and can be tried again.
    Failed(ReadError),
}

impl From<ReadError> for Stop {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Damaged { message, .. } => Self::Damage(DamageKind::Unreadable, message),
            error => Self::Failed(error),
        }
    }
}

impl From<LogError> for Stop {
    fn from(error: LogError) -> Self {
        match error {
            LogError::Damaged { what, .. } => Self::Damage(DamageKind::Unreadable, what),
            // A body is looked at once its frame was found sound.
            error @ (LogError::NewerFormat { .. } | LogError::NotFound { .. }) => {
                Self::Damage(DamageKind::Unreadable, error.to_string())
            }
            error => Self::Failed(error.into()),
        }
    }
}

impl ViewFold {
    /// Goes on where the views are.
    pub fn new(views: Arc<Views>, reader: Arc<LogReader>) -> Result<Self, ReadError> {
        witness::sign(&views, reader.log().identity())?;
        let reached = views.reached()?;
        let lost = views.lost()?;
        Ok(Self {
            views,
            reader,
            states: HashMap::new(),
            builder: DeltaBuilder::default(),
            reached,
            applied: reached,
            lost,
            before: None,
            unsound: false,
            stop: None,
        })
    }

    /// Hears views of the same log, from before these were begun, as to which
    /// conversations went on in what is lost.
    pub fn after(mut self, before: Views) -> Self {
        self.before = Some(before);
        self
    }

    /// Ends with an error once this is set.
    pub fn stop_when(mut self, stop: Arc<AtomicBool>) -> Self {
        self.stop = Some(stop);
        self
    }

    /// True after an error that came from damage in the views.
    pub fn views_are_unsound(&self) -> bool {
        self.unsound
    }

    /// Folds up to a log offset, inclusive, and reports how far it is.
    ///
    /// # Errors
    /// When views or log fail. Damage in the log is no error: see
    /// [`Views::damaged`].
    pub async fn run(&mut self, head: u64, mut report: impl FnMut(u64)) -> Result<(), ReadError> {
        while self.reached < head {
            self.go_on()?;
            let next = self.reached + 1;
            match stretch(&self.reader, next, head, DELTA_EVENTS_MAX, READ_BYTES).await? {
                Stretch::Records(records) => {
                    for (offset, record) in &records {
                        self.fold(*offset, record).await?;
                        self.reached = *offset;
                    }
                }
                Stretch::Lost(lost) => self.lose(&lost),
            }
            report(self.reached);
            if self.reached >= head {
                break;
            }
            if self.builder.len() >= DELTA_EVENTS_MAX || self.states.len() > STATES_MAX {
                self.flush()?;
            }
            if self.states.len() > STATES_MAX {
                self.states.clear();
            }
        }
        if self.reached > self.applied
            && let Some(before) = self.before.take()
        {
            self.mark_what_ends_in_a_loss(&before)?;
        }
        self.flush()
    }

    /// Marks conversations whose last events are lost: nothing of them lies behind the
    /// loss to show it, but views of before have seen that they went further.
    fn mark_what_ends_in_a_loss(&mut self, before: &Views) -> Result<(), ReadError> {
        if self.lost.is_empty() {
            return Ok(());
        }
        let rows = match before.every_conversation() {
            Ok(rows) => rows,
            Err(error) => {
                tracing::warn!(error = %with_causes(&error), "the views of before do not say what ended in a loss");
                return Ok(());
            }
        };
        for row in rows {
            let (went_to, at) = match &row.damage {
                None => (row.head, row.last_position),
                // As they had heard it from views before them.
                Some(damage) if damage.kind == DamageKind::Missing => {
                    (damage.revision, damage.position)
                }
                Some(_) => continue,
            };
            let lost = self.lost.iter().copied();
            let mut lost = lost.filter(|(first, last)| (*first..=*last).contains(&at.offset));
            if let Some(lost) = lost.next() {
                self.mark_ended(row, went_to, lost)?;
            }
        }
        Ok(())
    }

    /// Marks a conversation that went to a revision in a lost stretch, if it ends before.
    fn mark_ended(
        &mut self,
        row: ConversationRow,
        went_to: Revision,
        (first, last): (u64, u64),
    ) -> Result<(), ReadError> {
        let id = row.id;
        self.load(id)?;
        let known = self.states.remove(&id);
        let is_new = known.is_none();
        let mut state = known.unwrap_or_else(|| {
            let info = (*row.info).clone();
            let mut changed = ChangedConversation::new(row.namespace, id, info, None);
            changed.row.first_position = row.first_position;
            changed.row.last_position = row.first_position;
            changed.row.created_at = row.created_at;
            changed.row.updated_at = row.created_at;
            changed.row.happened_from = row.happened_from;
            changed.row.happened_to = row.happened_from;
            ConversationState::new(changed.row, changed.branches.into_values())
        });
        let revision = state.row.head.next();
        if state.row.damage.is_none() && revision <= went_to {
            let what = format!("the log cannot be read from position {first} to {last}");
            let damage = Damage::new(DamageKind::Missing, revision, Position::local(first), &what);
            tracing::error!(conversation = %id, %damage, "a conversation is damaged");
            state.row.damage = Some(Arc::new(damage));
            self.builder.damaged(&state, is_new);
        }
        self.states.insert(id, state);
        Ok(())
    }

    fn go_on(&self) -> Result<(), ReadError> {
        let stopped = |stop: &Arc<AtomicBool>| stop.load(Ordering::Acquire);
        if self.stop.as_ref().is_some_and(stopped) {
            return Err(ReadError::storage("the engine is closing"));
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ReadError> {
        if self.reached > self.applied {
            let delta = std::mem::take(&mut self.builder).finish(self.reached);
            let applied = self.views.apply(&delta);
            applied.map_err(|error| self.views_failed(error))?;
            self.applied = self.reached;
        }
        Ok(())
    }

    fn views_failed(&mut self, error: ViewsError) -> ReadError {
        self.unsound |= error.needs_rebuild();
        error.into()
    }

    /// Notes that a stretch cannot be read. One that follows on the last one is a
    /// part of it, so that it does not matter where a fold began.
    fn lose(&mut self, lost: &Lost) {
        let (first, last, what) = (lost.first, lost.last, &lost.what);
        tracing::error!(first, last, what, "a part of the log cannot be read");
        match self.lost.last_mut() {
            Some(known) if known.1 + 1 == lost.first => known.1 = lost.last,
            _ => self.lost.push((lost.first, lost.last)),
        }
        self.builder.lost(self.lost.last().copied());
        self.reached = lost.last;
    }

    /// Brings a conversation's state here, if there is one.
    fn load(&mut self, id: ConversationId) -> Result<(), ReadError> {
        if !self.states.contains_key(&id) {
            let state = self.views.state(id);
            if let Some(state) = state.map_err(|error| self.views_failed(error))? {
                self.states.insert(id, state);
            }
        }
        Ok(())
    }

    async fn fold(&mut self, offset: u64, record: &Record) -> Result<(), ReadError> {
        let id = record.header.conversation;
        self.load(id)?;
        let state = self.states.get(&id);
        if state.is_some_and(|state| state.row.damage.is_some()) {
            // What was done with its key and its id was done, whatever can be read of it.
            self.note_names(offset, record);
            return Ok(());
        }
        match self.take(offset, record).await {
            Ok(()) => Ok(()),
            Err(Stop::Damage(kind, what)) => {
                self.note_names(offset, record);
                self.mark(offset, record, kind, &what).await
            }
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    /// Folds an event into its conversation, if it can be.
    async fn take(&mut self, offset: u64, record: &Record) -> Result<(), Stop> {
        let header = &record.header;
        let id = header.conversation;
        self.check_follows(offset, record)?;
        let bytes = self.reader.body(record).await?;
        let body = decode_body(offset, header.kind, &bytes)?;
        let mut changed = match (&body, self.states.get(&id)) {
            (EventBody::ConversationCreated(created), None) => self.create(header, created).await?,
            (EventBody::ConversationCreated(_), Some(_)) => {
                return Err(broken("a second first event".to_owned()));
            }
            (_, Some(state)) => ChangedConversation::of(state),
            (_, None) => return Err(broken("its first event is of another kind".to_owned())),
        };
        if let EventBody::BranchForked(forked) = &body {
            let branch = self.forked(id, header.branch, forked).await?;
            changed.open_branch(branch);
        }
        let state = self.states.remove(&id);
        let at = changed.apply(state.as_ref(), header.branch, &body);
        changed.row.chain_hash = record.chain_hash();
        changed.row.last_position = Position::local(offset);
        changed.row.note_times(header, state.is_none());
        if state.is_none() {
            changed.row.first_position = Position::local(offset);
        }
        self.note(offset, record, &body, at);
        if !record.is_erased() {
            let is_large = matches!(record.body, RecordBody::Blob(_));
            self.builder.found_by(&body, &tags::of(&bytes), is_large);
        }
        let state = self.builder.absorb(state, changed);
        self.states.insert(id, state);
        Ok(())
    }

    /// An event must be the next one of its conversation.
    fn check_follows(&self, offset: u64, record: &Record) -> Result<(), Stop> {
        let row = self.states.get(&record.header.conversation);
        let row = row.map(|state| &state.row);
        let head = row.map_or(Revision::NONE, |row| row.head);
        let found = record.header.revision;
        if found > head.next() {
            let after = row.map_or(0, |row| row.last_position.offset);
            let what = match self.lost_between(after, offset) {
                Some((first, last)) => {
                    format!("the log cannot be read from position {first} to {last}")
                }
                None => format!("revision {found} comes after revision {head}"),
            };
            return Err(Stop::Damage(DamageKind::Missing, what));
        }
        if found < head.next() {
            return Err(broken(format!("revision {found} comes a second time")));
        }
        let previous = row.map(|row| row.chain_hash).unwrap_or_default();
        if !record.follows(previous) {
            let what = "its hash does not follow from the event before it";
            return Err(broken(what.to_owned()));
        }
        Ok(())
    }

    /// The first stretch that cannot be read between two offsets.
    fn lost_between(&self, after: u64, before: u64) -> Option<(u64, u64)> {
        let found = self.lost.iter().find(|(first, _)| *first > after);
        found.copied().filter(|(first, _)| *first < before)
    }

    /// Ends a conversation before an event that cannot be folded in.
    async fn mark(
        &mut self,
        offset: u64,
        record: &Record,
        kind: DamageKind,
        what: &str,
    ) -> Result<(), ReadError> {
        let header = &record.header;
        let id = header.conversation;
        let known = self.states.remove(&id);
        let is_new = known.is_none();
        let mut state = match known {
            Some(state) => state,
            None => self.unread(offset, record).await?,
        };
        let revision = state.row.head.next();
        let after = state.row.last_position.offset;
        let place = match kind {
            DamageKind::Missing if !is_new => self.lost_between(after, offset),
            _ => None,
        };
        let position = Position::local(place.map_or(offset, |(first, _)| first));
        let damage = Damage::new(kind, revision, position, what);
        tracing::error!(conversation = %id, %damage, "a conversation is damaged");
        state.row.damage = Some(Arc::new(damage));
        self.builder.damaged(&state, is_new);
        self.states.insert(id, state);
        Ok(())
    }

    /// A conversation of which not even the first event can be served.
    async fn unread(
        &mut self,
        offset: u64,
        record: &Record,
    ) -> Result<ConversationState, ReadError> {
        let header = &record.header;
        let created = match self.reader.body(record).await {
            Ok(bytes) => match decode_body(offset, header.kind, &bytes) {
                Ok(EventBody::ConversationCreated(created)) => created,
                _ => ConversationCreated::default(),
            },
            Err(_) => ConversationCreated::default(),
        };
        let info = self.info(header.conversation, &created)?;
        let mut changed =
            ChangedConversation::new(header.namespace.clone(), header.conversation, info, None);
        changed.row.first_position = Position::local(offset);
        changed.row.last_position = Position::local(offset);
        changed.row.note_times(header, true);
        let branches = changed.branches.into_values();
        Ok(ConversationState::new(changed.row, branches))
    }

    fn note(&mut self, offset: u64, record: &Record, body: &EventBody, at: EventRef) {
        let header = &record.header;
        self.builder.event(
            (header, record.body.stored_bytes()),
            offset,
            body,
            Placed {
                branch: header.branch,
                at,
            },
        );
        self.note_names(offset, record);
        if let RecordBody::Blob(blob) = &record.body
            && blob.home_offset == offset
        {
            self.builder
                .blob(header.namespace.clone(), blob.hash, offset);
        }
    }

    fn note_names(&mut self, offset: u64, record: &Record) {
        self.builder.header(&record.header, offset);
        if let Some(key) = &record.append_key {
            self.builder.key(KeyEntry {
                namespace: record.header.namespace.clone(),
                key: key.key.clone(),
                content_hash: key.content_hash,
                salt: key.salt.map(|salt| salt.0),
                first_offset: offset,
                events: key.events,
                ends_at: key.ends_at,
            });
        }
    }

    /// What a conversation was created with.
    fn info(
        &mut self,
        id: ConversationId,
        created: &ConversationCreated,
    ) -> Result<ConversationInfo, ReadError> {
        let Some(parent) = &created.parent else {
            return Ok(ConversationInfo::new(created, id));
        };
        self.load(parent.conversation)?;
        Ok(match self.states.get(&parent.conversation) {
            Some(state) => ConversationInfo::below(created, &state.row.info),
            None => ConversationInfo::new(created, parent.conversation),
        })
    }

    async fn create(
        &mut self,
        header: &EventHeader,
        created: &ConversationCreated,
    ) -> Result<ChangedConversation, Stop> {
        let (namespace, id) = (header.namespace.clone(), header.conversation);
        let info = self.info(id, created)?;
        let Some(parent) = created.parent.as_ref().filter(|_| created.shares_history) else {
            return Ok(ChangedConversation::new(namespace, id, info, None));
        };
        let fork = ForkPoint {
            conversation: parent.conversation,
            branch: parent.branch,
            revision: parent.revision,
        };
        self.check_inherited(fork)?;
        let base = self.branch_at(fork).await?;
        Ok(ChangedConversation::new(
            namespace,
            id,
            info,
            Some((&base, fork)),
        ))
    }

    /// The history that a conversation shares must be there.
    fn check_inherited(&self, fork: ForkPoint) -> Result<(), Stop> {
        let ForkPoint {
            conversation,
            revision,
            ..
        } = fork;
        let what = match self.states.get(&conversation) {
            None => format!("it shares the history of {conversation}, which is not there"),
            Some(state) => match &state.row.damage {
                Some(damage) if revision >= damage.revision => format!(
                    "it shares the history of {conversation} up to revision {revision}, \
                     which is damaged from revision {} on",
                    damage.revision
                ),
                _ => return Ok(()),
            },
        };
        Err(Stop::Damage(DamageKind::Inherited, what))
    }

    async fn forked(
        &mut self,
        conversation: ConversationId,
        branch: BranchId,
        forked: &BranchForked,
    ) -> Result<BranchState, Stop> {
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
    async fn branch_at(&mut self, point: ForkPoint) -> Result<Arc<BranchState>, Stop> {
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
        past.map(|past| past.state).ok_or_else(|| {
            broken(format!(
                "branch {} of conversation {} has no revision {} to fork at",
                point.branch, point.conversation, point.revision
            ))
        })
    }

    fn history(&self) -> History {
        History {
            views: Arc::clone(&self.views),
            reader: Arc::clone(&self.reader),
        }
    }
}

fn broken(what: String) -> Stop {
    Stop::Damage(DamageKind::Broken, what)
}
