//! Folds the log into projections, to catch up after a start and to rebuild.
//!
//! Damage is contained here. An unreadable event ends only the conversations that it belongs to, as
//! far as these can be determined. The event before it becomes their last one, and a damage mark
//! gives the reason. Later events of these conversations are skipped, because each event builds on
//! those before it.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{
    consistency_check,
    damage::{LogStretch, UnreadableRange, stretch},
    delta::DeltaBuilder,
    error::ReadError,
    history::{History, decode_body, first_own},
};
use treering_domain::{
    BranchForked, BranchId, BranchState, ChangedConversation, ConversationCreated,
    ConversationInfo, ConversationKey, ConversationRow, ConversationState, Damage, DamageKind,
    EventBody, EventHeader, EventRef, ForkPoint, Revision, SequencedEvent, with_causes,
};
use treering_log::{LogError, LogReader, Record, RecordBody};
use treering_projections::{KeyEntry, Projections, ProjectionsError};
use treering_proto::tags;

/// Number of events that are folded before they are written to the projections in one commit.
const DELTA_EVENTS_MAX: usize = 8_192;
/// Maximum size of the records per read, in bytes.
const READ_BYTES: usize = 4 << 20;
/// Maximum number of states cached while folding; beyond it they are read from the projections
/// again.
const STATES_MAX: usize = 20_000;

/// Folds the log into projections.
pub(super) struct ProjectionFold {
    projections: Arc<Projections>,
    reader: Arc<LogReader>,
    states: HashMap<ConversationKey, ConversationState>,
    builder: DeltaBuilder,
    reached: u64,
    /// The offset that the projections have reached.
    applied: u64,
    /// Stretches that could not be read, in order.
    lost: Vec<(u64, u64)>,
    /// Earlier projections, which may have seen lost events.
    before: Option<Projections>,
    /// The projections themselves are damaged.
    unsound: bool,
    stop: Option<Arc<AtomicBool>>,
}

/// Why an event was not applied.
enum FoldStop {
    /// The event, or what it builds on, is damaged.
    Damage(DamageKind, String),
    /// Another failure: the fold ends, and can be retried.
    Failed(ReadError),
}

impl From<ReadError> for FoldStop {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Damaged { message, .. } => Self::Damage(DamageKind::Unreadable, message),
            error => Self::Failed(error),
        }
    }
}

impl From<LogError> for FoldStop {
    fn from(error: LogError) -> Self {
        match error {
            LogError::Damaged { what, .. } => Self::Damage(DamageKind::Unreadable, what),
            // The frame of a body was checked before, so this is damage too.
            error @ (LogError::NewerFormat { .. } | LogError::NotFound { .. }) => {
                Self::Damage(DamageKind::Unreadable, error.to_string())
            }
            error => Self::Failed(error.into()),
        }
    }
}

impl ProjectionFold {
    /// Creates a fold that continues at the offset that the projections have reached.
    pub(crate) fn new(
        projections: Arc<Projections>,
        reader: Arc<LogReader>,
    ) -> Result<Self, ReadError> {
        consistency_check::sign(&projections, reader.log().identity())?;
        let reached = projections.reached()?;
        let lost = projections.lost()?;
        Ok(Self {
            projections,
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

    /// Uses earlier projections of the same log to find conversations whose end is lost.
    pub(crate) fn after(mut self, before: Projections) -> Self {
        self.before = Some(before);
        self
    }

    /// Ends with an error once this flag is set.
    pub(crate) fn stop_when(mut self, stop: Arc<AtomicBool>) -> Self {
        self.stop = Some(stop);
        self
    }

    /// Returns true after an error that was caused by damaged projections.
    pub(crate) fn projections_are_unsound(&self) -> bool {
        self.unsound
    }

    /// Folds up to a log offset, inclusive, and reports progress.
    ///
    /// # Errors
    /// When the projections or the log fail. Damage in the log is not an error: see
    /// [`Projections::damaged`].
    pub(crate) async fn run(
        &mut self,
        head: u64,
        mut report: impl FnMut(u64),
    ) -> Result<(), ReadError> {
        while self.reached < head {
            self.go_on()?;
            let next = self.reached + 1;
            match stretch(&self.reader, next, head, DELTA_EVENTS_MAX, READ_BYTES).await? {
                LogStretch::Records(records) => {
                    for (offset, record) in &records {
                        self.fold(*offset, record).await?;
                        self.reached = *offset;
                    }
                }
                LogStretch::Lost(lost) => self.lose(&lost),
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

    /// Marks conversations whose last events are lost. No later event reveals such a loss, but the
    /// earlier projections have seen the lost events.
    fn mark_what_ends_in_a_loss(&mut self, before: &Projections) -> Result<(), ReadError> {
        if self.lost.is_empty() {
            return Ok(());
        }
        let rows = match before.every_conversation() {
            Ok(rows) => rows,
            Err(error) => {
                tracing::warn!(error = %with_causes(&error), "the earlier projections cannot be read to find conversations that end in a loss");
                return Ok(());
            }
        };
        for row in rows {
            let (went_to, at) = match &row.damage {
                None => (row.head, row.last_position),
                // Inherited from still earlier projections.
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

    /// Marks a conversation whose revision `went_to` was in a lost stretch, if the conversation now
    /// ends before that revision.
    fn mark_ended(
        &mut self,
        row: ConversationRow,
        went_to: Revision,
        (first, last): (u64, u64),
    ) -> Result<(), ReadError> {
        let id = row.key();
        self.load(id)?;
        let known = self.states.remove(&id);
        let is_new = known.is_none();
        let mut state = known.unwrap_or_else(|| {
            let info = (*row.info).clone();
            let mut changed = ChangedConversation::new(row.namespace, id.id, info, None);
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
            let what = format!("positions {first} to {last} of the log cannot be read");
            let damage = Damage::new(
                DamageKind::Missing,
                revision,
                self.reader.position(first),
                &what,
            );
            tracing::error!(conversation = %id.id, %damage, "a conversation is damaged");
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
            let applied = self.projections.apply(&delta);
            applied.map_err(|error| self.projections_failed(error))?;
            self.applied = self.reached;
        }
        Ok(())
    }

    fn projections_failed(&mut self, error: ProjectionsError) -> ReadError {
        self.unsound |= error.needs_rebuild();
        error.into()
    }

    /// Records an unreadable stretch. Adjacent stretches are merged, so that the result does not
    /// depend on where a fold began.
    fn lose(&mut self, lost: &UnreadableRange) {
        let (first, last, what) = (lost.first, lost.last, &lost.what);
        tracing::error!(first, last, what, "a part of the log cannot be read");
        match self.lost.last_mut() {
            Some(known) if known.1 + 1 == lost.first => known.1 = lost.last,
            _ => self.lost.push((lost.first, lost.last)),
        }
        self.builder.lost(self.lost.last().copied());
        self.reached = lost.last;
    }

    /// Loads a conversation's state, if it exists.
    fn load(&mut self, id: ConversationKey) -> Result<(), ReadError> {
        if !self.states.contains_key(&id) {
            let state = self.projections.state(id);
            if let Some(state) = state.map_err(|error| self.projections_failed(error))? {
                self.states.insert(id, state);
            }
        }
        Ok(())
    }

    async fn fold(&mut self, offset: u64, record: &Record) -> Result<(), ReadError> {
        let id = record.header.key();
        self.load(id)?;
        let state = self.states.get(&id);
        if state.is_some_and(|state| state.row.damage.is_some()) {
            // The event's key and id stay taken, although the event is not applied.
            self.note_names(offset, record);
            return Ok(());
        }
        match self.take(offset, record).await {
            Ok(()) => Ok(()),
            Err(FoldStop::Damage(kind, what)) => {
                self.note_names(offset, record);
                self.mark(offset, record, kind, &what).await
            }
            Err(FoldStop::Failed(error)) => Err(error),
        }
    }

    /// Applies an event to its conversation, if possible.
    async fn take(&mut self, offset: u64, record: &Record) -> Result<(), FoldStop> {
        let header = &record.header;
        let id = header.key();
        self.check_follows(offset, record)?;
        let bytes = self.reader.body(record).await?;
        let body = decode_body(offset, header.kind, &bytes)?;
        let mut changed = match (&body, self.states.get(&id)) {
            (EventBody::ConversationCreated(created), None) => self.create(header, created).await?,
            (EventBody::ConversationCreated(_), Some(_)) => {
                return Err(broken("the conversation is created twice".to_owned()));
            }
            (_, Some(state)) => ChangedConversation::of(state),
            (_, None) => {
                return Err(broken(
                    "the first event is not conversation_created".to_owned(),
                ));
            }
        };
        if let EventBody::BranchForked(forked) = &body {
            let branch = self.forked(id, header.branch, forked).await?;
            changed.open_branch(branch);
        }
        let state = self.states.remove(&id);
        let at = changed.apply(state.as_ref(), header.branch, &body);
        changed.row.chain_hash = record.chain_hash();
        changed.row.last_position = self.reader.position(offset);
        changed.row.note_times(header, state.is_none());
        if state.is_none() {
            changed.row.first_position = self.reader.position(offset);
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

    /// Checks that an event is the next one of its conversation.
    fn check_follows(&self, offset: u64, record: &Record) -> Result<(), FoldStop> {
        let row = self.states.get(&record.header.key());
        let row = row.map(|state| &state.row);
        let head = row.map_or(Revision::NONE, |row| row.head);
        let found = record.header.revision;
        if found > head.next() {
            let after = row.map_or(0, |row| row.last_position.offset);
            let what = match self.lost_between(after, offset) {
                Some((first, last)) => {
                    format!("positions {first} to {last} of the log cannot be read")
                }
                None => format!("revision {found} follows revision {head}"),
            };
            return Err(FoldStop::Damage(DamageKind::Missing, what));
        }
        if found < head.next() {
            return Err(broken(format!("revision {found} occurs twice")));
        }
        let previous = row.map(|row| row.chain_hash).unwrap_or_default();
        if !record.follows(previous) {
            let what = "its chain hash does not match the previous event";
            return Err(broken(what.to_owned()));
        }
        Ok(())
    }

    /// Returns the first unreadable stretch between two offsets.
    fn lost_between(&self, after: u64, before: u64) -> Option<(u64, u64)> {
        let found = self.lost.iter().find(|(first, _)| *first > after);
        found.copied().filter(|(first, _)| *first < before)
    }

    /// Ends a conversation before an event that cannot be applied.
    async fn mark(
        &mut self,
        offset: u64,
        record: &Record,
        kind: DamageKind,
        what: &str,
    ) -> Result<(), ReadError> {
        let header = &record.header;
        let id = header.key();
        let known = self.states.remove(&id);
        let is_new = known.is_none();
        let mut state = match known {
            Some(state) => state,
            None => self.unreadable_conversation(offset, record).await?,
        };
        let revision = state.row.head.next();
        let after = state.row.last_position.offset;
        let place = match kind {
            DamageKind::Missing if !is_new => self.lost_between(after, offset),
            _ => None,
        };
        let position = self
            .reader
            .position(place.map_or(offset, |(first, _)| first));
        let damage = Damage::new(kind, revision, position, what);
        tracing::error!(conversation = %id.id, %damage, "a conversation is damaged");
        state.row.damage = Some(Arc::new(damage));
        self.builder.damaged(&state, is_new);
        self.states.insert(id, state);
        Ok(())
    }

    /// Creates the state of a conversation whose first event cannot be applied.
    async fn unreadable_conversation(
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
        let info = self.info(header.key(), &created)?;
        let mut changed =
            ChangedConversation::new(header.namespace.clone(), header.conversation, info, None);
        changed.row.first_position = self.reader.position(offset);
        changed.row.last_position = self.reader.position(offset);
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
            SequencedEvent {
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

    /// Returns the properties that a conversation was created with.
    fn info(
        &mut self,
        id: ConversationKey,
        created: &ConversationCreated,
    ) -> Result<ConversationInfo, ReadError> {
        let Some(parent) = &created.parent else {
            return Ok(ConversationInfo::new(created, id.id));
        };
        let above = id.sibling(parent.conversation);
        self.load(above)?;
        Ok(match self.states.get(&above) {
            Some(state) => ConversationInfo::below(created, &state.row.info),
            None => ConversationInfo::new(created, parent.conversation),
        })
    }

    async fn create(
        &mut self,
        header: &EventHeader,
        created: &ConversationCreated,
    ) -> Result<ChangedConversation, FoldStop> {
        let (namespace, id) = (header.namespace.clone(), header.conversation);
        let key = header.key();
        let info = self.info(key, created)?;
        let Some(parent) = created.parent.as_ref().filter(|_| created.shares_history) else {
            return Ok(ChangedConversation::new(namespace, id, info, None));
        };
        let fork = ForkPoint {
            conversation: parent.conversation,
            branch: parent.branch,
            revision: parent.revision,
        };
        self.check_inherited(key, fork)?;
        let base = self.branch_at(key, fork).await?;
        Ok(ChangedConversation::new(
            namespace,
            id,
            info,
            Some((&base, fork)),
        ))
    }

    /// Checks that the history that a conversation inherits is intact.
    fn check_inherited(&self, heir: ConversationKey, fork: ForkPoint) -> Result<(), FoldStop> {
        let ForkPoint {
            conversation,
            revision,
            ..
        } = fork;
        let what = match self.states.get(&heir.sibling(conversation)) {
            None => format!("it shares the history of {conversation}, which does not exist"),
            Some(state) => match &state.row.damage {
                Some(damage) if revision >= damage.revision => format!(
                    "it shares the history of {conversation} up to revision {revision}, which is \
                     damaged from revision {} on",
                    damage.revision
                ),
                _ => return Ok(()),
            },
        };
        Err(FoldStop::Damage(DamageKind::Inherited, what))
    }

    async fn forked(
        &mut self,
        conversation: ConversationKey,
        branch: BranchId,
        forked: &BranchForked,
    ) -> Result<BranchState, FoldStop> {
        let point = ForkPoint {
            conversation: conversation.id,
            branch: forked.parent,
            revision: forked.fork_revision,
        };
        let base = self.branch_at(conversation, point).await?;
        Ok(base.forked(branch, forked.name.clone(), point))
    }

    /// Returns the state that a fork inherits: the state at the head, or a past one. To read a past
    /// state, everything folded so far is first written to the projections.
    async fn branch_at(
        &mut self,
        heir: ConversationKey,
        point: ForkPoint,
    ) -> Result<Arc<BranchState>, FoldStop> {
        let conversation = heir.sibling(point.conversation);
        let current = self
            .states
            .get(&conversation)
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
            .branch_at(conversation, point.branch, point.revision)
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
            projections: Arc::clone(&self.projections),
            reader: Arc::clone(&self.reader),
        }
    }
}

fn broken(what: String) -> FoldStop {
    FoldStop::Damage(DamageKind::Broken, what)
}
