//! Appends: validate the batch, load data for the decision, hand it to the writer, answer.

use std::collections::{BTreeMap, HashMap};

use futures::future::BoxFuture;

use super::{
    Engine, Inner, ReadPath,
    context::compactions_of,
    error::{AppendError, ReadError},
    history::History,
    lookup::{newest, record_of},
    prepare::ValidatedBatch,
    query::EventSelector,
    sequencer::{Companion, WriteAnswer, WriteRequest},
    states::{KeyFacts, LoadedState},
    unpublished_names::{EventWithId, KnownEvents, NameFacts, NewestFact, newest_of},
    work::PriorityClass,
};
use treering_domain::{
    AppendCommand, AppendOutcome, AppendedEvent, BranchId, Cause, ConversationId, EventBody,
    EventHeader, ExpectedKey, MissingData, Namespace, PastBranch, Position, Revision,
    TimestampMicros, limits::PUBLISH_WAIT_MAX, with_causes,
};
use treering_log::{BlobRef, Record, SubmitError, WriterGone};
use treering_projections::KeyEntry;
use treering_proto::body::{Encode, EncodedBody};

/// Maximum number of optimistic retries of a decision that needs more data.
const NEEDS_MAX: usize = 16;

/// The future outcome of a submitted batch.
pub type AppendFuture = BoxFuture<'static, Result<AppendOutcome, AppendError>>;

impl Engine {
    /// Appends a batch: all of its events or none. On return they are durable and visible to every
    /// read.
    ///
    /// # Errors
    /// See [`AppendError`]; unless the error says otherwise, nothing was appended.
    pub async fn append<B: Encode>(
        &self,
        command: AppendCommand<B>,
    ) -> Result<AppendOutcome, AppendError> {
        self.submit(command).await?.await
    }

    /// Returns the outcome of the append with an idempotency key, as of the published head; `None`
    /// if the key was not used.
    ///
    /// # Errors
    /// [`AppendError::Read`] when the stored batch cannot be read.
    pub async fn appended_with_key(
        &self,
        namespace: &Namespace,
        key: &str,
    ) -> Result<Option<AppendOutcome>, AppendError> {
        let storage = |error: treering_projections::ProjectionsError| {
            AppendError::from(ReadError::from(error))
        };
        let entry = self.inner.used_key(namespace, key).map_err(storage)?;
        match entry {
            Some(entry) => self.inner.reads.repeated(&entry).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns for each idempotency key whether it was used, as of the published head.
    ///
    /// # Errors
    /// [`ReadError`] when the store cannot be read.
    pub async fn known_keys(
        &self,
        namespace: &Namespace,
        keys: Vec<String>,
    ) -> Result<Vec<bool>, ReadError> {
        let namespace = namespace.clone();
        let read = |engine: Self| async move {
            let known = keys
                .iter()
                .map(|key| engine.inner.used_key(&namespace, key));
            known
                .map(|found| Ok(found.map_err(ReadError::from)?.is_some()))
                .collect()
        };
        // Each look-up may decompress its own block.
        self.on(PriorityClass::Short, read).await
    }

    /// Hands a batch to the writer and returns a future of its outcome, so that many batches can be
    /// in flight. Batches submitted by one task in sequence are decided in that order; only a batch
    /// that forks or compacts at a revision that is itself still in flight may be decided later.
    ///
    /// # Errors
    /// [`AppendError`] when the batch was not accepted by the writer.
    pub async fn submit<B: Encode>(
        &self,
        command: AppendCommand<B>,
    ) -> Result<AppendFuture, AppendError> {
        self.submit_with(command, None).await
    }

    /// Like [`Self::submit`]; the companion's events are appended atomically with the batch. For a
    /// retry, the companion creates no events.
    ///
    /// # Errors
    /// As [`Self::submit`]. The outcome is also an error when the companion's batch cannot be
    /// appended.
    pub async fn submit_with<B: Encode>(
        &self,
        mut command: AppendCommand<B>,
        companion: Option<Companion>,
    ) -> Result<AppendFuture, AppendError> {
        self.inner.pseudonymize(&mut command)?;
        let companion = match &self.inner.appends.pseudonyms {
            Some(pseudonyms) => companion.map(|of| of.with_pseudonyms(pseudonyms.clone())),
            None => companion,
        };
        let submitted = match ValidatedBatch::new(command, &self.inner.options.limits) {
            Ok(prepared) => self.submit_prepared(prepared, companion).await,
            Err(error) => Err(error),
        };
        submitted.inspect_err(|error| self.inner.appends.refusals.note(error))
    }

    async fn submit_prepared(
        &self,
        prepared: ValidatedBatch,
        companion: Option<Companion>,
    ) -> Result<AppendFuture, AppendError> {
        let inner = std::sync::Arc::clone(&self.inner);
        let namespace = prepared.command.namespace.clone();
        let compactions = compactions_of(&prepared.command.events);
        let asked = prepared.command.events.len();
        let may_create = prepared.may_create().is_some();
        self.check_place(&prepared)?;
        let mut request = inner.look_up(prepared).await?;
        request.companion = companion;
        let answer = inner.enqueue(request).await?;
        Ok(Box::pin(async move {
            let settled = inner.retry_until_decided(answer.await).await;
            let (mut outcome, known) =
                settled.inspect_err(|error| inner.appends.refusals.note(error))?;
            if may_create && outcome.events.len() + known.len() > asked {
                outcome.created = Some(outcome.events.remove(0));
            }
            inner.reads.put_known(known, &mut outcome).await?;
            inner
                .warn_of_compactions(&namespace, &compactions, &mut outcome)
                .await;
            Ok(outcome)
        }))
    }
}

impl Inner {
    /// Replaces identifying fields with pseudonyms, if this store has them.
    fn pseudonymize<B>(&self, command: &mut AppendCommand<B>) -> Result<(), AppendError> {
        let Some(pseudonyms) = &self.appends.pseudonyms else {
            return Ok(());
        };
        // If the key is stored in plain text, it was used before pseudonyms were enabled, and this
        // batch is a retry.
        if let Some(key) = &command.idempotency_key {
            let used = self.reads.find_exact_key(&command.namespace, key);
            if used.map_err(AppendError::from_projections)?.is_some() {
                return Ok(());
            }
        }
        // The same holds for an event with a key of its own.
        let mut said = Vec::new();
        for (index, event) in command.events.iter().enumerate() {
            let Some(key) = &event.idempotency_key else {
                continue;
            };
            let used = self.reads.find_exact_key(&command.namespace, key);
            if used.map_err(AppendError::from_projections)?.is_some() {
                let (actor, correlation) = (event.actor.clone(), event.correlation_id.clone());
                said.push((index, key.clone(), actor, correlation));
            }
        }
        pseudonyms.pseudonymize(command);
        for (index, key, actor, correlation_id) in said {
            let event = &mut command.events[index];
            event.idempotency_key = Some(key);
            event.actor = actor;
            event.correlation_id = correlation_id;
        }
        Ok(())
    }

    /// Returns the entry of an idempotency key, if it was used.
    pub(super) fn used_key(
        &self,
        namespace: &Namespace,
        key: &str,
    ) -> Result<Option<treering_projections::KeyEntry>, treering_projections::ProjectionsError>
    {
        let entry = self.reads.find_exact_key(namespace, key)?;
        match &self.appends.pseudonyms {
            Some(pseudonyms) if entry.is_none() => self
                .reads
                .find_exact_key(namespace, &pseudonyms.of(namespace, key)),
            _ => Ok(entry),
        }
    }

    /// Loads the data for the decision, so that the writer does not have to.
    pub(super) async fn look_up(
        &self,
        mut prepared: ValidatedBatch,
    ) -> Result<WriteRequest, AppendError> {
        let erasures = self.appends.cached_set.erasures();
        self.look_up_patches(&mut prepared).await;
        let projections = self.reads.projections.load_full();
        let storage = AppendError::from_projections;
        let mut loaded = Vec::new();
        for id in prepared.conversations() {
            let id = prepared.command.namespace.key(id);
            if self.appends.cached_set.contains(id) {
                continue;
            }
            let (reached, state) = projections.state_with_mark(id).map_err(storage)?;
            loaded.push(LoadedState { id, reached, state });
        }
        let command = &prepared.command;
        let key = match &command.idempotency_key {
            Some(key) => {
                let (reached, entry) = projections.key(&command.namespace, key).map_err(storage)?;
                Some(KeyFacts { reached, entry })
            }
            None => None,
        };
        let names = self.reads.look_up_names(&prepared).await?;
        let mut blob_homes = HashMap::new();
        for body in prepared.bodies.iter().filter(|body| body.is_blob()) {
            if let Some(home) = projections
                .blob_home(&command.namespace, &body.hash)
                .map_err(storage)?
                && self.appends.cached_set.may_refer_to(home)
                && self.is_readable(body.reference(home)).await
            {
                blob_homes.insert(body.hash, home);
            }
        }
        let mut past = BTreeMap::new();
        for place in places_of_the_past(command) {
            // A missing revision may be in flight: the writer will ask for it.
            if let Some(found) = self.reads.past(&command.namespace, place, false).await? {
                past.insert(place, Some(found));
            }
        }
        Ok(WriteRequest {
            prepared,
            loaded,
            past,
            key,
            names,
            blob_homes,
            erasures,
            companion: None,
        })
    }

    /// Returns whether a stored large body can be read. If not, the body is stored again instead of
    /// being referenced: acknowledged content must be readable.
    async fn is_readable(&self, blob: BlobRef) -> bool {
        let read = self.log.blob(self.shard, &blob).await;
        read.inspect_err(|error| {
            tracing::warn!(error = %with_causes(&error), "a stored large body cannot be read, so it is stored again")
        })
        .is_ok()
    }

    /// Hands a request to the writer once nothing holds the exclusive lock.
    async fn enqueue(
        &self,
        request: WriteRequest,
    ) -> Result<impl Future<Output = Result<WriteAnswer, WriterGone>> + use<>, AppendError> {
        let _not_alone = self.appends.gate.read().await;
        self.hand_over(request)
    }

    pub(super) fn hand_over(
        &self,
        request: WriteRequest,
    ) -> Result<impl Future<Output = Result<WriteAnswer, WriterGone>> + use<>, AppendError> {
        if self.closing.load(std::sync::atomic::Ordering::Acquire) {
            return Err(AppendError::Closing);
        }
        let bytes = request.prepared.bytes;
        self.appends
            .writer
            .submit(request, bytes)
            .map_err(|not_taken| match not_taken {
                SubmitError::Full(full) => AppendError::Busy {
                    retry_after_ms: full.retry_after_ms,
                },
                SubmitError::Closed => AppendError::Closing,
            })
    }

    pub(super) async fn retry_until_decided(
        &self,
        answer: Result<WriteAnswer, WriterGone>,
    ) -> Result<(AppendOutcome, KnownEvents), AppendError> {
        let mut answer = answer.map_err(never_answered)?;
        for _ in 0..NEEDS_MAX {
            let request = match answer {
                WriteAnswer::Done(outcome, known) => return Ok((outcome, known)),
                WriteAnswer::Repeated(entry) => {
                    return Ok((self.reads.repeated(&entry).await?, Vec::new()));
                }
                WriteAnswer::Failed(error) => return Err(error),
                WriteAnswer::Retry(mut request, offset) => {
                    self.wait_for_projections(offset).await;
                    request.names = self.reads.look_up_names(&request.prepared).await?;
                    request
                }
                WriteAnswer::MissingData(mut request, need) => {
                    if let MissingData::BranchAt(conversation, branch, revision) = need {
                        let place = (conversation, branch, revision);
                        let namespace = &request.prepared.command.namespace;
                        let found = self.reads.past(namespace, place, true).await?;
                        request.past.insert(place, found);
                    }
                    request
                }
            };
            answer = self
                .enqueue(*request)
                .await?
                .await
                .map_err(never_answered)?;
        }
        if matches!(answer, WriteAnswer::Retry(..)) {
            return Err(AppendError::projections_behind());
        }
        Err(AppendError::Storage {
            source: Cause::of(
                "the batch needs more stored events than one batch may read: split it into \
                 smaller batches",
            ),
        })
    }

    /// Waits until reads see the log up to an offset. The wait is bounded, because the events up to
    /// there may never be written.
    async fn wait_for_projections(&self, offset: u64) {
        let mut news = self.appends.news.of_log();
        let come = news.wait_for(|reached| *reached >= offset);
        let _ = tokio::time::timeout(PUBLISH_WAIT_MAX, come).await;
    }
}

impl ReadPath {
    /// Looks up an idempotency key exactly as given, unless it has expired.
    fn find_exact_key(
        &self,
        namespace: &Namespace,
        key: &str,
    ) -> Result<Option<treering_projections::KeyEntry>, treering_projections::ProjectionsError>
    {
        let (_, entry) = self.projections.load().key(namespace, key)?;
        let now = TimestampMicros::now();
        Ok(entry.filter(|entry| !entry.has_ended(now)))
    }

    /// Looks up which of a batch's events are already stored, by id or idempotency key. Also looks
    /// up the newest event for each event key with an expectation.
    async fn look_up_names(&self, prepared: &ValidatedBatch) -> Result<NameFacts, AppendError> {
        let command = &prepared.command;
        if !prepared.has_names() && command.expected_keys.is_empty() {
            return Ok(NameFacts::default());
        }
        // Read both marks first: the writer knows everything used after them. A group is in the
        // projections a moment before it is published, and until then its events are not found by
        // id.
        let published = self.published.load(std::sync::atomic::Ordering::Acquire);
        let history = self.history();
        let reached = history.projections.reached();
        let mut facts = NameFacts {
            reached: published.min(reached.map_err(AppendError::from_projections)?),
            ..NameFacts::default()
        };
        for (_, event, _) in prepared.own_events() {
            if let Some(key) = &event.idempotency_key {
                let found = history.projections.key(&command.namespace, key);
                let found = found.map_err(AppendError::from_projections)?.1;
                facts.keys.extend(found.map(|entry| (key.clone(), entry)));
            }
            let Some(id) = event.id else { continue };
            let found = self.of_id(&history, &command.namespace, id).await?;
            facts.ids.extend(found.map(|(offset, record)| {
                let body = record.plain_hash();
                let header = record.header;
                let event = EventWithId {
                    offset,
                    header,
                    body,
                };
                (id, event)
            }));
        }
        for wanted in &command.expected_keys {
            let found = self.newest_expected(&history, &command.namespace, wanted);
            facts.newest.push(found.await?);
        }
        Ok(facts)
    }

    /// Returns the newest event with an expected key, according to the projections.
    async fn newest_expected(
        &self,
        history: &History,
        namespace: &Namespace,
        wanted: &ExpectedKey,
    ) -> Result<NewestFact, AppendError> {
        let nothing = |branch| NewestFact {
            branch,
            newest: None,
        };
        let Some(row) = self.find_row(namespace, wanted.conversation)? else {
            return Ok(nothing(None));
        };
        let branch = match self.branch_id(history, &row, wanted.branch.as_ref()) {
            Ok(branch) => branch,
            // The branch may be in flight; the writer rejects the batch if not.
            Err(ReadError::BranchNotFound { .. }) => return Ok(nothing(None)),
            Err(error) => return Err(error.into()),
        };
        let segments = history.lineage_to(row.key(), branch, row.head)?;
        let by = EventSelector::Key(wanted.key.clone());
        let Some((entry, _)) = newest(history, &segments, &by)? else {
            return Ok(nothing(Some(branch)));
        };
        let record = record_of(history, namespace, &entry).await?;
        Ok(NewestFact {
            branch: Some(branch),
            newest: Some(newest_of(&record.header)),
        })
    }

    async fn past(
        &self,
        namespace: &Namespace,
        (conversation, branch, revision): PastPlace,
        needed: bool,
    ) -> Result<Option<PastBranch>, ReadError> {
        let conversation = namespace.key(conversation);
        // The writer's state of a head is newer than the projections'.
        let at_head = self
            .projections
            .load()
            .branch(conversation, branch)
            .map_err(ReadError::from)?
            .is_some_and(|state| state.head == revision);
        if at_head && !needed {
            return Ok(None);
        }
        self.history()
            .branch_at(conversation, branch, revision)
            .await
    }

    /// Merges the already stored events into the appended ones, in the batch's order.
    async fn put_known(
        &self,
        known: KnownEvents,
        outcome: &mut AppendOutcome,
    ) -> Result<(), AppendError> {
        if known.is_empty() {
            return Ok(());
        }
        outcome.known = known.iter().map(|(own, _)| *own).collect();
        let mut new = std::mem::take(&mut outcome.events).into_iter();
        let mut known = known.into_iter().peekable();
        for own in 0.. {
            if let Some((_, offset)) = known.next_if(|(known, _)| *known == own) {
                let record = self.reader.record(offset).await.map_err(ReadError::from)?;
                let position = self.reader.position(offset);
                outcome.events.push(appended(&record.header, position));
            } else if let Some(event) = new.next() {
                outcome.events.push(event);
            } else {
                break;
            }
        }
        Ok(())
    }

    /// Returns the answer that the first append with this key got.
    async fn repeated(&self, entry: &KeyEntry) -> Result<AppendOutcome, AppendError> {
        let records = self
            .reader
            .records(entry.first_offset, entry.events as usize, usize::MAX)
            .await
            .map_err(ReadError::from)?;
        if let Some((offset, _)) = records
            .iter()
            .find(|(_, record)| record.header.namespace != entry.namespace)
        {
            // A placeholder of an event that was not salvaged does not belong to the batch.
            return Err(AppendError::from(ReadError::Damaged {
                position: self.reader.position(*offset),
                message:
                    "events of the batch with this idempotency key were damaged and could not be \
                     salvaged"
                        .to_owned(),
            }));
        }
        same_batch(entry, &records)?;
        let events = records
            .into_iter()
            .map(|(offset, record)| appended(&record.header, self.reader.position(offset)))
            .collect();
        Ok(AppendOutcome {
            events,
            repeated_key: true,
            warnings: Vec::new(),
            created: None,
            known: Vec::new(),
        })
    }
}

/// Returns the place of a stored event.
fn appended(header: &EventHeader, position: Position) -> AppendedEvent {
    AppendedEvent {
        event: header.id,
        conversation: header.conversation,
        branch: header.branch,
        revision: header.revision,
        position,
    }
}

/// Returns the error for a writer that ended with an accepted batch in flight.
fn never_answered(_: WriterGone) -> AppendError {
    AppendError::UnknownOutcome {
        message: "the writer stopped before it answered".to_owned(),
    }
}

/// Checks that the records of a key's entry are the batch appended with that key.
pub(super) fn same_batch(entry: &KeyEntry, records: &[(u64, Record)]) -> Result<(), ReadError> {
    let first = records.first().map(|(_, record)| record);
    let key = first.and_then(|record| record.append_key.as_ref());
    let same = records.len() == entry.events as usize
        && first.is_some_and(|record| record.header.namespace == entry.namespace)
        && key.is_some_and(|key| {
            key.key == entry.key
                && key.content_hash == entry.content_hash
                && key.events == entry.events
        });
    if same {
        return Ok(());
    }
    Err(ReadError::Damaged {
        position: Position::local(entry.first_offset),
        message: "the projections have a batch with this idempotency key here, but the log has a \
                  different event"
            .to_owned(),
    })
}

type PastPlace = (ConversationId, BranchId, Revision);

/// Returns the revisions whose branch states a batch may need.
fn places_of_the_past(command: &AppendCommand<EncodedBody>) -> Vec<PastPlace> {
    command
        .events
        .iter()
        .filter_map(|event| match event.body.body() {
            EventBody::BranchForked(forked) => {
                Some((event.conversation, forked.parent, forked.fork_revision))
            }
            EventBody::ConversationCreated(created) => created
                .parent
                .as_ref()
                .map(|parent| (parent.conversation, parent.branch, parent.revision)),
            _ => None,
        })
        .collect()
}
