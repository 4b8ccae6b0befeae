//! Decides batches in one order, on the writer's thread, using cached states. Decided changes go to
//! the projections as a [`ProjectionDelta`] once their group is on disk.

mod companion;
mod names;

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

pub use companion::Companion;

use super::{
    damage::QuarantineList,
    delta::DeltaBuilder,
    error::AppendError,
    prepare::{PatchBase, ValidatedBatch, ValidatedBody},
    states::{CachedConversations, KeyFacts, LoadedState, SharedProjections, StateCache},
    unpublished_names::{KnownEvents, NameFacts, UnpublishedNames},
    usage::Usage,
};
use treering_domain::{
    AcceptedBatch, AppendOutcome, AppendedEvent, BranchId, Cause, ContentHash, ConversationId,
    ConversationKey, ConversationState, DecideError, EventHeader, EventId, Limits, Lookup,
    MissingData, Namespace, PastBranch, Position, Quotas, Rejection, Revision, Rule,
    SequencedEvent, ShardId, TimestampMicros, decide, decide_erasure,
    limits::{PUBLISH_WAIT_MAX, VIEWS_RETRY},
    with_causes,
};
use treering_log::{
    BlobRef, BodyPatch, CommittedGroup, GroupError, NewBlob, PendingAppend, Record, RecordBody,
    SaltSource, Sequencer,
};
use treering_projections::{KeyEntry, ProjectionDelta};

/// A batch with the results of its look-ups.
#[derive(Debug)]
pub(super) struct WriteRequest {
    pub(crate) prepared: ValidatedBatch,
    pub(crate) loaded: Vec<LoadedState>,
    pub(crate) past: BTreeMap<(ConversationId, BranchId, Revision), Option<PastBranch>>,
    pub(crate) key: Option<KeyFacts>,
    /// Facts about the ids and keys of its events.
    pub(crate) names: NameFacts,
    /// Home offsets of bodies that are already stored, by content.
    pub(crate) blob_homes: HashMap<ContentHash, u64>,
    /// [`CachedConversations::erasures`] at the time of the look-ups.
    pub(crate) erasures: u64,
    /// Makes the batch that is appended atomically with this one.
    pub(crate) companion: Option<Companion>,
}

impl WriteRequest {
    /// Creates a request without look-ups.
    fn without_lookups(prepared: ValidatedBatch, erasures: u64) -> Self {
        Self {
            prepared,
            loaded: Vec::new(),
            past: BTreeMap::new(),
            key: None,
            names: NameFacts::default(),
            blob_homes: HashMap::new(),
            erasures,
            companion: None,
        }
    }

    /// Discards what was looked up before an erasure; the writer looks it up again.
    fn forget(&mut self, erasures: u64) {
        self.loaded.clear();
        self.past.clear();
        self.blob_homes.clear();
        for body in &mut self.prepared.bodies {
            // The base of the patch may have been erased.
            body.patch = None;
        }
        if let Some(facts) = &mut self.key {
            *facts = KeyFacts {
                reached: 0,
                entry: None,
            };
        }
        self.names = NameFacts::default();
        self.erasures = erasures;
    }
}

/// The writer's answer.
#[derive(Debug)]
pub(super) enum WriteAnswer {
    /// The outcome, and the caller's events that were already stored, in order, each with its index
    /// and offset.
    Done(AppendOutcome, KnownEvents),
    /// The key was already used for the same content.
    Repeated(KeyEntry),
    /// Data must be loaded first.
    MissingData(Box<WriteRequest>, MissingData),
    /// The names of the events must be looked up again, once the projections have reached this
    /// offset.
    Retry(Box<WriteRequest>, u64),
    Failed(AppendError),
}

/// Deltas of groups that are on disk but not yet in the projections, in order.
pub(super) type Deltas = Arc<Mutex<VecDeque<ProjectionDelta>>>;

/// Makes the engine's decisions for the log's writer.
pub(super) struct EngineSequencer {
    shard: ShardId,
    limits: Limits,
    cache: StateCache,
    staged: DeltaBuilder,
    staged_conversations: HashSet<ConversationKey>,
    /// Names that were used and may not be in the projections yet.
    recent: UnpublishedNames,
    /// Homes of bodies that the projections may not know yet.
    recent_blobs: HashMap<(Namespace, ContentHash), u64>,
    staged_blobs: Vec<(Namespace, ContentHash)>,
    usage: Usage,
    salts: SaltSource,
    /// [`CachedConversations::erasures`] when this sequencer last discarded its state.
    erasures: u64,
    deltas: Deltas,
    published: Arc<AtomicU64>,
    committed: u64,
    last_time: TimestampMicros,
}

/// Maximum number of blob homes that the writer remembers; older ones are in the projections.
const RECENT_BLOBS_MAX: usize = 4_096;

impl EngineSequencer {
    pub(crate) fn new(
        shard: ShardId,
        (limits, quotas): (Limits, Quotas),
        projections: SharedProjections,
        cached_set: Arc<CachedConversations>,
        quarantine: Arc<QuarantineList>,
        deltas: Deltas,
        published: Arc<AtomicU64>,
    ) -> Self {
        let committed = published.load(Ordering::Acquire);
        Self {
            usage: Usage::new(quotas, Arc::clone(&projections), committed),
            cache: StateCache::new(projections, cached_set, quarantine, committed),
            shard,
            limits,
            staged: DeltaBuilder::default(),
            staged_conversations: HashSet::new(),
            recent: UnpublishedNames::new(committed),
            recent_blobs: HashMap::new(),
            staged_blobs: Vec::new(),
            salts: SaltSource::default(),
            erasures: 0,
            deltas,
            published,
            committed,
            last_time: TimestampMicros(i64::MIN),
        }
    }

    /// Discards everything known from before an erasure.
    fn forget_erased(&mut self, request: &mut WriteRequest) {
        let erasures = self.cache.erasures();
        if self.erasures != erasures {
            self.cache.clear();
            let published = self.published.load(Ordering::Acquire);
            self.recent = UnpublishedNames::new(published);
            self.recent_blobs.clear();
            self.usage.forget(published);
            self.erasures = erasures;
        }
        if request.erasures != erasures {
            request.forget(erasures);
        }
    }

    fn is_committed(&self, entry: &KeyEntry) -> bool {
        entry.first_offset <= self.committed
    }

    /// Returns the key's first use with the same content, as far as it is known without reading the
    /// store.
    fn used_key(&self, request: &WriteRequest) -> Option<KeyEntry> {
        let command = &request.prepared.command;
        let key = command.idempotency_key.as_ref()?;
        let entry =
            self.recent
                .key(&command.namespace, key)
                .or(request.key.as_ref()?.entry.as_ref())?;
        let is_known = !entry.has_ended(self.now()) && request.prepared.may_be(entry);
        is_known.then(|| entry.clone())
    }

    /// Returns the time for the next batch. Each batch has a unique time, by which a restored store
    /// recognises the batch.
    fn now(&self) -> TimestampMicros {
        TimestampMicros::now().max(TimestampMicros(self.last_time.0 + 1))
    }

    /// Decides the batch without the events that are already stored, and also returns those events.
    /// Decides nothing if all events are stored.
    fn decide_new(
        &mut self,
        request: &mut WriteRequest,
        now: TimestampMicros,
    ) -> Result<(Option<AcceptedBatch>, KnownEvents), RequestStop> {
        let known = self.pass_over(request, now)?;
        if !known.is_empty() && request.prepared.is_all_known() {
            return Ok((None, known));
        }
        let decided = self.decide(request)?;
        self.check_expected_keys(request)?;
        Ok((Some(decided), known))
    }

    fn decide(&mut self, request: &mut WriteRequest) -> Result<AcceptedBatch, RequestStop> {
        let namespace = &request.prepared.command.namespace;
        let ids = request.prepared.conversations();
        let may_create = request.prepared.may_create();
        for id in ids {
            let key = namespace.key(id);
            let loaded = request
                .loaded
                .iter()
                .position(|loaded| loaded.id == key)
                .map(|at| request.loaded.swap_remove(at));
            self.cache
                .ensure(key, loaded)
                .map_err(RequestStop::Failed)?;
        }
        if let Some(id) = may_create {
            let is_there = self.cache.get(namespace.key(id)).is_some();
            request.prepared.set_creates(!is_there);
        }
        let prepared = &request.prepared;
        let command = &prepared.command;
        let known = DecisionData {
            cache: &self.cache,
            past: &request.past,
            namespace: &command.namespace,
        };
        let decided = match request.prepared.by_eraser {
            true => decide_erasure(&known, command, &self.limits),
            false => decide(&known, command, &self.limits),
        };
        decided.map_err(|undecided| match undecided {
            DecideError::Rejected(Rejection { event_index, rule }) => {
                let event_index = event_index.and_then(|index| prepared.own_index(index));
                RequestStop::Failed(Rejection { event_index, rule }.into())
            }
            DecideError::MissingData(need) => RequestStop::MissingData(need),
        })
    }

    /// Creates the records of a decided batch.
    fn seal(
        &mut self,
        next_offset: u64,
        request: &WriteRequest,
        decided: &mut AcceptedBatch,
        now: TimestampMicros,
    ) -> Result<PendingBatch, AppendError> {
        let prepared = &request.prepared;
        let mut batch = PendingBatch::new(self.shard, next_offset, prepared.bodies.len());
        for (index, (placed, body)) in decided.events.iter().zip(&prepared.bodies).enumerate() {
            let stored = self.stored_body(request, body, &mut batch);
            let header = header(prepared, index, *placed, now, batch.offset());
            let previous = match decided.changed.get(&placed.at.conversation) {
                Some(changed) => changed.row.chain_hash,
                None => ContentHash::default(),
            };
            let key = prepared.key_of(index, now);
            let salted = self.salts.at(batch.offset()).hash(body.hash);
            let record = Record::seal(previous, header, stored, salted, key).map_err(|error| {
                AppendError::Storage {
                    source: Cause::of(error),
                }
            })?;
            if let Some(changed) = decided.changed.get_mut(&placed.at.conversation) {
                let position = batch.position();
                changed.row.chain_hash = record.chain_hash();
                changed.row.last_position = position;
                let is_first = placed.at.revision == Revision(1);
                changed.row.note_times(&record.header, is_first);
                if is_first {
                    changed.row.first_position = position;
                }
            }
            batch.push(record, *placed);
        }
        self.last_time = now;
        Ok(batch)
    }

    fn write(
        &mut self,
        next_offset: u64,
        request: &WriteRequest,
        (mut decided, now): (AcceptedBatch, TimestampMicros),
        companion: Option<(WriteRequest, AcceptedBatch)>,
    ) -> Result<PendingAppend<WriteAnswer>, AppendError> {
        let mut batch = self.seal(next_offset, request, &mut decided, now)?;
        // Change no state before both batches are sealed.
        let companion = match companion {
            Some((request, mut decided)) => {
                let now = self.now();
                let batch = self.seal(batch.offset(), &request, &mut decided, now)?;
                Some((request, decided, batch))
            }
            None => None,
        };
        if request.prepared.by_eraser {
            // Some salts of the current tree are about to be erased: start a new tree.
            self.salts.renew();
        }
        self.take(&request.prepared, decided, &batch);
        if let Some((request, decided, beside)) = companion {
            self.take(&request.prepared, decided, &beside);
            batch.records.extend(beside.records);
            batch.blobs.extend(beside.blobs);
        }
        let outcome = AppendOutcome {
            events: batch.appended,
            repeated_key: false,
            warnings: Vec::new(),
            created: None,
            known: Vec::new(),
        };
        Ok(PendingAppend {
            records: batch.records,
            blobs: batch.blobs,
            answer: WriteAnswer::Done(outcome, Vec::new()),
        })
    }

    fn stored_body(
        &mut self,
        request: &WriteRequest,
        body: &ValidatedBody,
        batch: &mut PendingBatch,
    ) -> RecordBody {
        if !body.is_blob() {
            return RecordBody::Inline(body.bytes.clone());
        }
        let namespace = request.prepared.command.namespace.clone();
        let known = self
            .recent_blobs
            .get(&(namespace.clone(), body.hash))
            .or_else(|| request.blob_homes.get(&body.hash))
            .copied();
        let home_offset = known.unwrap_or_else(|| {
            let home_offset = batch.offset();
            let patch = body.patch.as_ref().and_then(|patch| {
                let base_home = batch.home_of(patch.base, &request.prepared)?;
                let bytes = patch.bytes.clone();
                Some(BodyPatch { base_home, bytes })
            });
            batch.blobs.push(NewBlob {
                namespace: namespace.clone(),
                hash: body.hash,
                home_offset,
                bytes: body.bytes.clone(),
                patch,
            });
            self.recent_blobs
                .insert((namespace.clone(), body.hash), home_offset);
            self.staged_blobs.push((namespace, body.hash));
            home_offset
        });
        let bytes_len = body.bytes.len() as u64;
        RecordBody::Blob(BlobRef {
            hash: body.hash,
            bytes_len,
            home_offset,
        })
    }

    /// Adds a batch to the staged group.
    fn take(&mut self, prepared: &ValidatedBatch, decided: AcceptedBatch, batch: &PendingBatch) {
        let command = &prepared.command;
        self.usage.took(prepared, batch.offset() - 1);
        for (index, placed) in decided.events.iter().enumerate() {
            let offset = batch.first_offset + index as u64;
            let record = &batch.records[index];
            let of = (&record.header, record.body.stored_bytes());
            self.staged
                .event(of, offset, command.events[index].body.body(), *placed);
            let event = &command.events[index];
            let is_large = prepared.bodies[index].is_blob();
            self.staged
                .found_by(event.body.body(), &event.tags, is_large);
            self.note_names(record, &event.tags, offset);
        }
        for blob in &batch.blobs {
            self.staged
                .blob(blob.namespace.clone(), blob.hash, blob.home_offset);
        }
        for changed in decided.changed.into_values() {
            let id = changed.row.key();
            self.staged_conversations.insert(id);
            match self.cache.take(id) {
                Some(state) => {
                    let state = self.staged.absorb(Some(state), changed);
                    self.cache.put_back(state);
                }
                None => self.cache.put(self.staged.absorb(None, changed)),
            }
        }
    }
}

impl Sequencer for EngineSequencer {
    type Request = WriteRequest;
    type Answer = WriteAnswer;

    fn stage(&mut self, next_offset: u64, mut request: WriteRequest) -> PendingAppend<WriteAnswer> {
        self.forget_erased(&mut request);
        // Use one time for the look-up and the record, so that a key which the look-up treats as
        // expired is also expired at the recorded time.
        let now = self.now();
        match self.known_key(&request, now) {
            Ok(None) => {}
            Ok(Some(entry)) if request.prepared.may_be(&entry) => {
                return answer(WriteAnswer::Repeated(entry));
            }
            Ok(Some(_)) => {
                let rejection = Rejection::batch(Rule::IdempotencyConflict);
                return answer(WriteAnswer::Failed(rejection.into()));
            }
            Err(error) => return answer(WriteAnswer::Failed(error)),
        }
        let (decided, known) = match self.decide_new(&mut request, now) {
            Ok((Some(decided), known)) => (decided, known),
            Ok((None, known)) => return answer(WriteAnswer::Done(nothing_appended(), known)),
            Err(RequestStop::Failed(error)) => return answer(WriteAnswer::Failed(error)),
            Err(RequestStop::MissingData(need)) => {
                return answer(WriteAnswer::MissingData(Box::new(request), need));
            }
            Err(RequestStop::Retry) => {
                let staged_to = next_offset.saturating_sub(1);
                return answer(WriteAnswer::Retry(Box::new(request), staged_to));
            }
        };
        if let Err(error) = self.usage.check(&request.prepared) {
            return answer(WriteAnswer::Failed(error));
        }
        let companion = match self.decide_companion(&request, &decided) {
            Ok(companion) => companion,
            Err(error) => return answer(WriteAnswer::Failed(error)),
        };
        match self.write(next_offset, &request, (decided, now), companion) {
            Ok(mut staged) => {
                if let WriteAnswer::Done(_, beside) = &mut staged.answer {
                    *beside = known;
                }
                staged
            }
            Err(error) => answer(WriteAnswer::Failed(error)),
        }
    }

    fn committed(&mut self, group: &Arc<CommittedGroup>) {
        let reached = group.first_offset + group.records.len() as u64 - 1;
        let delta = std::mem::take(&mut self.staged).finish(reached);
        self.committed = reached;
        self.staged_conversations.clear();
        self.staged_blobs.clear();
        lock(&self.deltas).push_back(delta);

        let published = self.published.load(Ordering::Acquire);
        self.recent.published(published);
        self.usage.published(published);
        if self.recent_blobs.len() > RECENT_BLOBS_MAX {
            self.recent_blobs.retain(|_, home| *home > published);
        }
        self.cache.shrink(published);
    }

    fn aborted(&mut self, error: &GroupError) {
        tracing::warn!(error = %with_causes(&error), "a group was not written; its states are reloaded");
        self.staged = DeltaBuilder::default();
        for blob in self.staged_blobs.drain(..) {
            self.recent_blobs.remove(&blob);
        }
        let committed = self.committed;
        self.usage.aborted(committed);
        self.recent.aborted(committed);
        // States dropped here are read again from the projections, so wait until those have
        // everything that is committed. Until then, the cache refuses to load states.
        let patience = std::time::Instant::now() + PUBLISH_WAIT_MAX;
        while self.published.load(Ordering::Acquire) < committed
            && std::time::Instant::now() < patience
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.cache
            .forget(self.staged_conversations.drain(), committed);
    }

    fn failed(&self, answer: WriteAnswer, error: &GroupError) -> WriteAnswer {
        match answer {
            // That batch was committed earlier, independently of this group.
            WriteAnswer::Repeated(entry) if self.is_committed(&entry) => {
                WriteAnswer::Repeated(entry)
            }
            WriteAnswer::Done(outcome, known)
                if outcome.events.is_empty()
                    && known.iter().all(|(_, offset)| *offset <= self.committed) =>
            {
                WriteAnswer::Done(outcome, known)
            }
            WriteAnswer::Done(..) | WriteAnswer::Repeated(_) => {
                WriteAnswer::Failed(error.clone().into())
            }
            // Nothing of this request would have been appended, whatever happened to the group on
            // which its decision depended.
            WriteAnswer::Failed(_) | WriteAnswer::MissingData(..) | WriteAnswer::Retry(..) => {
                WriteAnswer::Failed(match AppendError::from(error.clone()) {
                    AppendError::UnknownOutcome { message } => AppendError::Unready {
                        message: format!(
                            "it depends on a batch whose outcome is unknown ({message})"
                        ),
                        retry_after_ms: VIEWS_RETRY.as_millis() as u64,
                    },
                    known => known,
                })
            }
        }
    }

    fn refused(&self, request: WriteRequest, error: &GroupError) -> WriteAnswer {
        match self.used_key(&request) {
            Some(entry) if self.is_committed(&entry) => WriteAnswer::Repeated(entry),
            // Events of this batch may be in the log.
            None if self.recent.may_have(&request.prepared) => {
                WriteAnswer::Failed(AppendError::UnknownOutcome {
                    message: "the outcome of an earlier append of these events is unknown"
                        .to_owned(),
                })
            }
            // This batch itself is in doubt.
            Some(_) => WriteAnswer::Failed(AppendError::UnknownOutcome {
                message: "the outcome of the batch's first attempt is unknown".to_owned(),
            }),
            None => WriteAnswer::Failed(error.clone().into()),
        }
    }
}

/// Why a request cannot proceed.
enum RequestStop {
    Failed(AppendError),
    MissingData(MissingData),
    /// The projections must be queried again.
    Retry,
}

/// The data available to `decide`.
struct DecisionData<'a> {
    cache: &'a StateCache,
    past: &'a BTreeMap<(ConversationId, BranchId, Revision), Option<PastBranch>>,
    namespace: &'a Namespace,
}

impl Lookup for DecisionData<'_> {
    fn conversation(&self, id: ConversationId) -> Result<Option<&ConversationState>, MissingData> {
        Ok(self.cache.get(self.namespace.key(id)))
    }

    fn branch_at(
        &self,
        conversation: ConversationId,
        branch: BranchId,
        revision: Revision,
    ) -> Result<Option<&PastBranch>, MissingData> {
        match self.past.get(&(conversation, branch, revision)) {
            Some(past) => Ok(past.as_ref()),
            None => Err(MissingData::BranchAt(conversation, branch, revision)),
        }
    }
}

/// The records of one batch under construction.
struct PendingBatch {
    shard: ShardId,
    first_offset: u64,
    records: Vec<Record>,
    blobs: Vec<NewBlob>,
    appended: Vec<AppendedEvent>,
}

impl PendingBatch {
    fn new(shard: ShardId, first_offset: u64, events: usize) -> Self {
        Self {
            shard,
            first_offset,
            records: Vec::with_capacity(events),
            blobs: Vec::new(),
            appended: Vec::with_capacity(events),
        }
    }

    /// Returns the offset of the next record.
    fn offset(&self) -> u64 {
        self.first_offset + self.records.len() as u64
    }

    /// Returns the home offset of a patch's base; `None` if it is not a large body.
    fn home_of(&self, base: PatchBase, prepared: &ValidatedBatch) -> Option<u64> {
        match base {
            PatchBase::Home(home) => Some(home),
            PatchBase::Event(own) => match &self.records.get(prepared.index_of_own(own)?)?.body {
                RecordBody::Blob(blob) => Some(blob.home_offset),
                RecordBody::Inline(_) | RecordBody::Stub(_) => None,
            },
        }
    }

    /// Returns the position of the next record.
    fn position(&self) -> Position {
        Position {
            shard: self.shard,
            offset: self.offset(),
        }
    }

    fn push(&mut self, record: Record, placed: SequencedEvent) {
        self.appended.push(AppendedEvent {
            event: record.header.id,
            conversation: placed.at.conversation,
            branch: placed.branch,
            revision: placed.at.revision,
            position: self.position(),
        });
        self.records.push(record);
    }
}

fn header(
    prepared: &ValidatedBatch,
    index: usize,
    placed: SequencedEvent,
    now: TimestampMicros,
    offset: u64,
) -> EventHeader {
    let event = &prepared.command.events[index];
    EventHeader {
        id: event.id.unwrap_or_else(|| EventId::at(now, offset)),
        namespace: prepared.command.namespace.clone(),
        conversation: placed.at.conversation,
        branch: placed.branch,
        revision: placed.at.revision,
        kind: event.body.body().kind().number(),
        recorded_at: now,
        occurred_at: event.occurred_at,
        actor: event.actor.clone(),
        causation_id: event.causation_id,
        correlation_id: event.correlation_id.clone(),
    }
}

fn nothing_appended() -> AppendOutcome {
    AppendOutcome {
        events: Vec::new(),
        repeated_key: false,
        warnings: Vec::new(),
        created: None,
        known: Vec::new(),
    }
}

fn answer(answer: WriteAnswer) -> PendingAppend<WriteAnswer> {
    PendingAppend {
        records: Vec::new(),
        blobs: Vec::new(),
        answer,
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
