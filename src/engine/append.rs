//! Appending: prepare, look up, hand to the writer, answer.

use std::collections::{BTreeMap, HashMap};

use futures::future::BoxFuture;

use super::{
    Engine, Inner,
    context::compactions_of,
    error::{AppendError, ReadError},
    history::History,
    lookup::{newest, record_of},
    prepare::Prepared,
    query::Wanted,
    recent::{EventWithId, KnownEvents, NameFacts, NewestFact, newest_of},
    sequencer::{WriteAnswer, WriteRequest},
    states::{KeyFacts, LoadedState},
    work::Lane,
};
use crate::{
    codec::body::{Encode, EncodedBody},
    domain::{
        AppendCommand, AppendOutcome, Appended, BranchId, Cause, ConversationId, EventBody,
        EventHeader, ExpectedKey, Namespace, Need, PastBranch, Position, Revision, TimestampMicros,
        limits::PUBLISH_WAIT_MAX, with_causes,
    },
    log::{BlobRef, NotTaken, Record, WriterGone},
    views::KeyEntry,
};

/// How often a decision is tried again because it needs something more.
const NEEDS_MAX: usize = 16;

/// The outcome of a batch that was handed in.
pub type Pending = BoxFuture<'static, Result<AppendOutcome, AppendError>>;

impl Engine {
    /// Appends a batch: all of its events or none. When it returns, they are on
    /// disk, and every read sees them.
    ///
    /// # Errors
    /// See [`AppendError`]; unless it says otherwise, nothing was appended.
    pub async fn append<B: Encode>(
        &self,
        command: AppendCommand<B>,
    ) -> Result<AppendOutcome, AppendError> {
        self.submit(command).await?.await
    }

    /// What was appended with an idempotency key, as far as reads have come: none
    /// when the key was not used.
    ///
    /// # Errors
    /// [`AppendError::Read`] when that cannot be read.
    pub async fn appended_with_key(
        &self,
        namespace: &Namespace,
        key: &str,
    ) -> Result<Option<AppendOutcome>, AppendError> {
        let storage = |error: crate::views::ViewsError| AppendError::from(ReadError::from(error));
        let entry = self.inner.used_key(namespace, key).map_err(storage)?;
        match entry {
            Some(entry) => self.inner.repeated(&entry).await.map(Some),
            None => Ok(None),
        }
    }

    /// Which of these idempotency keys were used, as far as reads have come.
    ///
    /// # Errors
    /// [`ReadError`] when that cannot be read.
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
        // Each may unpack a block of its own.
        self.on(Lane::Short, read).await
    }

    /// Hands a batch to the writer and returns a future of its outcome, so that
    /// many can be under way. Batches handed in by one task, one after the other,
    /// are decided in that order; only one that forks or compacts at a revision
    /// that is itself still under way may be decided later.
    ///
    /// # Errors
    /// [`AppendError`] when the batch was not taken.
    pub async fn submit<B: Encode>(
        &self,
        mut command: AppendCommand<B>,
    ) -> Result<Pending, AppendError> {
        self.inner.disguise(&mut command)?;
        let submitted = match Prepared::new(command, &self.inner.options.limits) {
            Ok(prepared) => self.submit_prepared(prepared).await,
            Err(error) => Err(error),
        };
        submitted.inspect_err(|error| self.inner.refusals.note(error))
    }

    async fn submit_prepared(&self, prepared: Prepared) -> Result<Pending, AppendError> {
        let inner = std::sync::Arc::clone(&self.inner);
        let compactions = compactions_of(&prepared.command.events);
        let asked = prepared.command.events.len();
        let may_create = prepared.may_create().is_some();
        let request = inner.look_up(prepared).await?;
        let answer = inner.enqueue(request).await?;
        Ok(Box::pin(async move {
            let settled = inner.settle(answer.await).await;
            let (mut outcome, known) = settled.inspect_err(|error| inner.refusals.note(error))?;
            if may_create && outcome.events.len() + known.len() > asked {
                outcome.created = Some(outcome.events.remove(0));
            }
            inner.put_known(known, &mut outcome).await?;
            inner.warn_of_compactions(&compactions, &mut outcome).await;
            Ok(outcome)
        }))
    }
}

impl Inner {
    /// Takes out of a batch what this store has pseudonyms for.
    fn disguise<B>(&self, command: &mut AppendCommand<B>) -> Result<(), AppendError> {
        let Some(pseudonyms) = &self.pseudonyms else {
            return Ok(());
        };
        // A batch with a key from before there were pseudonyms is there already, as it was said.
        if let Some(key) = &command.idempotency_key {
            let used = self.key_as_said(&command.namespace, key);
            if used.map_err(AppendError::of_views)?.is_some() {
                return Ok(());
            }
        }
        // Nor is an event with such a key of its own.
        let mut said = Vec::new();
        for (index, event) in command.events.iter().enumerate() {
            let Some(key) = &event.idempotency_key else {
                continue;
            };
            let used = self.key_as_said(&command.namespace, key);
            if used.map_err(AppendError::of_views)?.is_some() {
                let (actor, correlation) = (event.actor.clone(), event.correlation_id.clone());
                said.push((index, key.clone(), actor, correlation));
            }
        }
        pseudonyms.disguise(command);
        for (index, key, actor, correlation_id) in said {
            let event = &mut command.events[index];
            event.idempotency_key = Some(key);
            event.actor = actor;
            event.correlation_id = correlation_id;
        }
        Ok(())
    }

    /// What an idempotency key is stored as, if it was used.
    pub(super) fn used_key(
        &self,
        namespace: &Namespace,
        key: &str,
    ) -> Result<Option<crate::views::KeyEntry>, crate::views::ViewsError> {
        let entry = self.key_as_said(namespace, key)?;
        match &self.pseudonyms {
            Some(pseudonyms) if entry.is_none() => {
                self.key_as_said(namespace, &pseudonyms.of(namespace, key))
            }
            _ => Ok(entry),
        }
    }

    /// An idempotency key as it is stored, unless it has ended.
    fn key_as_said(
        &self,
        namespace: &Namespace,
        key: &str,
    ) -> Result<Option<crate::views::KeyEntry>, crate::views::ViewsError> {
        let (_, entry) = self.views.load().key(namespace, key)?;
        let now = TimestampMicros::now();
        Ok(entry.filter(|entry| !entry.has_ended(now)))
    }

    /// Loads what the decision looks at, so that the writer need not.
    pub(super) async fn look_up(
        &self,
        mut prepared: Prepared,
    ) -> Result<WriteRequest, AppendError> {
        let erasures = self.hot.erasures();
        self.look_up_patches(&mut prepared).await;
        let views = self.views.load_full();
        let storage = AppendError::of_views;
        let mut loaded = Vec::new();
        for id in prepared.conversations() {
            if self.hot.contains(id) {
                continue;
            }
            let (reached, state) = views.state_with_mark(id).map_err(storage)?;
            loaded.push(LoadedState { id, reached, state });
        }
        let command = &prepared.command;
        let key = match &command.idempotency_key {
            Some(key) => {
                let (reached, entry) = views.key(&command.namespace, key).map_err(storage)?;
                Some(KeyFacts { reached, entry })
            }
            None => None,
        };
        let names = self.look_up_names(&prepared).await?;
        let mut blob_homes = HashMap::new();
        for body in prepared.bodies.iter().filter(|body| body.is_blob()) {
            if let Some(home) = views
                .blob_home(&command.namespace, &body.hash)
                .map_err(storage)?
                && self.hot.may_refer_to(home)
                && self.is_readable(body.reference(home)).await
            {
                blob_homes.insert(body.hash, home);
            }
        }
        let mut past = BTreeMap::new();
        for place in places_of_the_past(command) {
            // A place that is not there yet may be under way: the writer says.
            if let Some(found) = self.past(place, false).await? {
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
        })
    }

    /// Looks up which of a batch's events are there already, by the names that they have, and
    /// the newest events with the keys that it expects something of.
    async fn look_up_names(&self, prepared: &Prepared) -> Result<NameFacts, AppendError> {
        let command = &prepared.command;
        if !prepared.has_names() && command.expected_keys.is_empty() {
            return Ok(NameFacts::default());
        }
        let history = self.history();
        let mut facts = NameFacts {
            // First: what is used while the others are looked up is known to the writer.
            reached: history.views.reached().map_err(AppendError::of_views)?,
            ..NameFacts::default()
        };
        for (_, event, _) in prepared.own_events() {
            if let Some(key) = &event.idempotency_key {
                let found = history.views.key(&command.namespace, key);
                let found = found.map_err(AppendError::of_views)?.1;
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

    /// The newest event with an expected key, as the views have it.
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
            // The writer may know more, and says so if not.
            Err(ReadError::BranchNotFound { .. }) => return Ok(nothing(None)),
            Err(error) => return Err(error.into()),
        };
        let segments = history.lineage_to(row.id, branch, row.head)?;
        let by = Wanted::Key(wanted.key.clone());
        let Some((entry, _)) = newest(history, &segments, &by)? else {
            return Ok(nothing(Some(branch)));
        };
        let record = record_of(history, namespace, &entry).await?;
        Ok(NewestFact {
            branch: Some(branch),
            newest: Some(newest_of(&record.header)),
        })
    }

    /// A stored body that cannot be read is not named again, but stored anew: what is
    /// acknowledged must be there.
    async fn is_readable(&self, blob: BlobRef) -> bool {
        let shard = crate::domain::ShardId::default();
        let read = self.log.blob(shard, &blob).await;
        read.inspect_err(|error| tracing::warn!(error = %with_causes(&error), "a large body is stored a second time"))
            .is_ok()
    }

    async fn past(&self, place: PastPlace, needed: bool) -> Result<Option<PastBranch>, ReadError> {
        let (conversation, branch, revision) = place;
        // The head is known to the writer better than to the views.
        let at_head = self
            .views
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

    /// Hands a request to the writer, as soon as nobody has to be alone.
    async fn enqueue(
        &self,
        request: WriteRequest,
    ) -> Result<impl Future<Output = Result<WriteAnswer, WriterGone>> + use<>, AppendError> {
        let _not_alone = self.appending.read().await;
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
        self.writer
            .submit(request, bytes)
            .map_err(|not_taken| match not_taken {
                NotTaken::Full(full) => AppendError::Busy {
                    retry_after_ms: full.retry_after_ms,
                },
                NotTaken::Closed => AppendError::Closing,
            })
    }

    async fn settle(
        &self,
        answer: Result<WriteAnswer, WriterGone>,
    ) -> Result<(AppendOutcome, KnownEvents), AppendError> {
        let mut answer = answer.map_err(never_answered)?;
        for _ in 0..NEEDS_MAX {
            let request = match answer {
                WriteAnswer::Done(outcome, known) => return Ok((outcome, known)),
                WriteAnswer::Repeated(entry) => {
                    return Ok((self.repeated(&entry).await?, Vec::new()));
                }
                WriteAnswer::Failed(error) => return Err(error),
                WriteAnswer::LookAgain(mut request, offset) => {
                    self.wait_for_views(offset).await;
                    request.names = self.look_up_names(&request.prepared).await?;
                    request
                }
                WriteAnswer::Needs(mut request, need) => {
                    if let Need::BranchAt(conversation, branch, revision) = need {
                        let place = (conversation, branch, revision);
                        let found = self.past(place, true).await?;
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
        if matches!(answer, WriteAnswer::LookAgain(..)) {
            return Err(AppendError::views_behind());
        }
        Err(AppendError::Storage {
            source: Cause::of("the decision needs more of the past than a batch may touch"),
        })
    }

    /// Waits until reads see the log up to an offset; not for ever, because what was staged
    /// there may not have been written.
    async fn wait_for_views(&self, offset: u64) {
        let mut news = self.news.of_log();
        let come = news.wait_for(|reached| *reached >= offset);
        let _ = tokio::time::timeout(PUBLISH_WAIT_MAX, come).await;
    }

    /// Puts the events that were there already between those that were appended.
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
                outcome.events.push(appended(&record.header, offset));
            } else if let Some(event) = new.next() {
                outcome.events.push(event);
            } else {
                break;
            }
        }
        Ok(())
    }

    /// The answer that the first append with this key got.
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
            // What stands for an event that was not salvaged is none of the batch's.
            return Err(AppendError::from(ReadError::Damaged {
                position: Position::local(*offset),
                message: "of the batch that was appended with this key, events were damaged and \
                          could not be salvaged"
                    .to_owned(),
            }));
        }
        same_batch(entry, &records)?;
        let events = records
            .into_iter()
            .map(|(offset, record)| appended(&record.header, offset))
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

/// Where a stored event is.
fn appended(header: &EventHeader, offset: u64) -> Appended {
    Appended {
        event: header.id,
        conversation: header.conversation,
        branch: header.branch,
        revision: header.revision,
        position: Position::local(offset),
    }
}

/// The writer went away with a batch that it had taken.
fn never_answered(_: WriterGone) -> AppendError {
    AppendError::UnknownOutcome {
        message: "the writer ended before it answered".to_owned(),
    }
}

/// The records that a key leads to must be the batch that was appended with it.
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
        message: "the views say that a batch with an idempotency key begins there, and another \
                  event is there"
            .to_owned(),
    })
}

type PastPlace = (ConversationId, BranchId, Revision);

/// Revisions whose branch states a batch may need.
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
