//! Records an erasure, hides the content from readers, and removes it from the disk.
//!
//! The order makes it safe to interrupt. First the log's manifest states that an erasure is
//! running; then events record what is erased; then segments, projections and index are rewritten
//! without it; then the manifest states that it is done. An engine that finds a running erasure
//! repeats everything that was recorded.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, atomic::Ordering},
};

use super::{
    EraseCommand, EraseError, EraseOutcome, EraseTarget, Reports, folder,
    from_index::{IndexedErasure, erase_from_index},
    plan::{ErasePlan, EraseSelection, PlannedErasure, is_accepted, unread},
    receipt::{self, RecordedErasure},
    report_progress, tell,
};
use crate::{
    Inner, ReadPath, Signer,
    damage::{LogStretch, UnreadableRange, stretch},
    error::{AppendError, ReadError},
    history::decode_body,
    meaning::Meaning,
    prepare::ValidatedBatch,
    rebuild::{Appends, rebuild_projections},
    reindex,
    sequencer::WriteAnswer,
};
use treering_domain::{
    AppendCommand, AppendOutcome, ContentHash, ConversationId, ConversationKey, EventBody,
    EventKind, Limits, Namespace, NewEvent, PublicKey, Revision,
};
use treering_log::{ErasableLog, Erasure, LogReader, ScrubOutcome};

/// Maximum number of revisions per erasure event.
const REVISIONS_MAX: usize = 4_096;
/// Maximum number of erasure events in flight.
const APPENDS_MAX: usize = 512;
/// Number of records per read when searching for erasure events.
const RECORDS_MAX: usize = 4_096;
const RECORDS_BYTES_MAX: usize = 4 << 20;

/// Erases the events of a plan, and matching events appended since it was made.
pub(super) async fn carry_out(
    inner: &Arc<Inner>,
    log: &Arc<dyn ErasableLog>,
    command: &EraseCommand,
    mut plan: ErasePlan,
    reports: &mut Reports,
) -> Result<EraseOutcome, EraseError> {
    let _changing = inner.upkeep.erasings.begin();
    let (recorded, signer) = {
        let _alone = inner.appends.gate.write().await;
        inner.settled().await?;
        plan.scan(inner, &**log, |_, _| {}).await?;
        check_still_due(inner, command, &plan).await?;
        if plan.is_empty() {
            return Ok(plan.outcome());
        }
        let signer = signer(inner).await?;
        begin(log).await?;
        let recorded = record(inner, command, &plan, signer.public()).await?;
        inner.hide(plan.erasure());
        (recorded, signer)
    };
    let last = recorded.iter().map(|one| one.position.offset).max();
    let last = last.unwrap_or_default();
    let indexed = IndexedErasure::of(&plan);
    let scrubbed = finish(inner, log, &plan.erasure(), indexed, last, reports).await?;
    let receipt = receipt::make(inner, command, &plan, recorded, &scrubbed, &signer);
    let receipt = receipt.await.map_err(EraseError::unfinished)?;
    tell(&plan, reports).await;
    Ok(EraseOutcome {
        receipt: Some(receipt),
        ..plan.outcome()
    })
}

/// Finishes an earlier erasure that was interrupted.
pub(super) async fn finish_earlier(
    inner: &Arc<Inner>,
    log: &Arc<dyn ErasableLog>,
    reports: &mut Reports,
) -> Result<(), EraseError> {
    let _changing = inner.upkeep.erasings.begin();
    let earlier = {
        let _alone = inner.appends.gate.write().await;
        inner.settled().await?;
        let head = inner.reads.published.load(Ordering::Acquire);
        let earlier = recorded_since(&inner.reads.reader, &**log, head).await?;
        if let Some(lost) = earlier.unread {
            return Err(unread(&lost));
        }
        // The erasure began, but nothing was recorded: there is nothing to finish.
        if earlier.last == 0 {
            return Ok(());
        }
        inner.hide(earlier.erasure.clone());
        earlier
    };
    // The index may still have content that the log no longer has.
    let indexed = None;
    finish(inner, log, &earlier.erasure, indexed, earlier.last, reports).await?;
    Ok(())
}

/// Recorded erasures that are not finished.
pub(super) struct UnfinishedErasure {
    pub(crate) erasure: Erasure,
    /// Offset of the last erasure event; 0 if there is none.
    pub(crate) last: u64,
    /// Unaccepted damage that may hide an erasure event or erased content; if set, the erasures
    /// cannot be finished.
    pub(crate) unread: Option<UnreadableRange>,
}

/// Reads the recorded erasures that are not finished.
pub(super) async fn recorded_since(
    reader: &LogReader,
    log: &dyn ErasableLog,
    head: u64,
) -> Result<UnfinishedErasure, EraseError> {
    let mut listed: HashMap<ConversationKey, BTreeSet<Revision>> = HashMap::new();
    let progress = log.progress().await.map_err(ReadError::from)?;
    let (mut next, mut last) = (progress.erasing.unwrap_or(head + 1), 0);
    let accepted = log.accepted_losses();
    let mut unread = None;
    while next <= head {
        let read = stretch(reader, next, head, RECORDS_MAX, RECORDS_BYTES_MAX).await;
        let records = match read.map_err(ReadError::from)? {
            LogStretch::Records(records) => records,
            // One unreadable stretch must not make the rest unavailable.
            LogStretch::Lost(lost) => {
                next = lost.last + 1;
                if !is_accepted(&lost, &accepted) {
                    unread.get_or_insert(lost);
                }
                continue;
            }
        };
        let Some((end, _)) = records.last() else {
            break;
        };
        next = end + 1;
        for (offset, record) in &records {
            if record.header.kind() != Some(EventKind::ContentErased) {
                continue;
            }
            let body = reader.body(record).await.map_err(ReadError::from)?;
            let body = decode_body(*offset, record.header.kind, &body)?;
            if let EventBody::ContentErased { revisions, .. } = body {
                let of = listed.entry(record.header.key()).or_default();
                of.extend(revisions);
                last = *offset;
            }
        }
    }
    let mut plan = ErasePlan::new(None, EraseSelection::Recorded(listed), true);
    if last > 0 {
        let lost = plan.read_to(None, reader, log, head, |_, _| {}).await?;
        unread = unread.or(lost);
    }
    Ok(UnfinishedErasure {
        erasure: plan.erasure(),
        last,
        unread,
    })
}

/// Checks that the conversations are still due: one may have grown while the log was read.
async fn check_still_due(
    inner: &Arc<Inner>,
    command: &EraseCommand,
    plan: &ErasePlan,
) -> Result<(), EraseError> {
    let EraseTarget::Due(retention) = &command.target else {
        return Ok(());
    };
    let due = inner.due(&command.namespace, retention).await?;
    let mut planned = plan.gone.values().map(|gone| gone.event.conversation);
    match planned.find(|id| !due.contains(id)) {
        None => Ok(()),
        Some(id) => Err(EraseError::invalid(format!(
            "conversation {id} got new events in the meantime, so nothing was erased: retry"
        ))),
    }
}

/// Returns the key to sign the receipt with. Without a key nothing is erased.
async fn signer(inner: &Inner) -> Result<Signer, EraseError> {
    let data = inner.options.data_dir.clone();
    let signer = tokio::task::spawn_blocking(move || Signer::of_store(&data)).await;
    let signer = signer.map_err(AppendError::storage)?;
    signer.map_err(|error| AppendError::storage(error).into())
}

pub(super) async fn begin(log: &Arc<dyn ErasableLog>) -> Result<(), EraseError> {
    let begun = Arc::clone(log).mark_begun().await;
    begun.map_err(|error| EraseError::Append(error.into()))
}

/// Appends the erasure events to the affected conversations.
pub(super) async fn record(
    inner: &Arc<Inner>,
    command: &EraseCommand,
    plan: &ErasePlan,
    signed_by: PublicKey,
) -> Result<Vec<RecordedErasure>, EraseError> {
    let events = events_of(command, plan, signed_by);
    let mut recorded: Vec<RecordedErasure> = Vec::with_capacity(events.len());
    let mut described = BTreeMap::new();
    for id in plan.described.keys() {
        let stays = inner.reads.described(&command.namespace, *id, plan)?;
        described.extend(stays.map(|stays| (*id, stays)));
    }
    for some in events.chunks(APPENDS_MAX) {
        let mut answers = Vec::with_capacity(some.len());
        for event in some {
            let stays = described.remove(&event.conversation);
            let stays = stays.map(|body| NewEvent {
                actor: event.actor.clone(),
                ..NewEvent::new(event.conversation, body)
            });
            let events = std::iter::once(event.clone()).chain(stays).collect();
            answers.push(inner.record_erased(&command.namespace, events).await);
        }
        for (event, answer) in some.iter().zip(answers) {
            let appended = match answer {
                Ok(answer) => answer.await,
                Err(error) => Err(error),
            };
            match appended {
                Ok(appended) => recorded.extend(RecordedErasure::of(event, &appended)),
                Err(error) if recorded.is_empty() => return Err(error.into()),
                Err(error) => return Err(EraseError::unfinished(error)),
            }
        }
    }
    Ok(recorded)
}

/// Returns the erasure events.
fn events_of(command: &EraseCommand, plan: &ErasePlan, signed_by: PublicKey) -> Vec<NewEvent> {
    let mut by_conversation: BTreeMap<ConversationId, Vec<&PlannedErasure>> = BTreeMap::new();
    for gone in plan.gone.values() {
        let of = by_conversation.entry(gone.event.conversation).or_default();
        of.push(gone);
    }
    let mut events = Vec::new();
    for (conversation, gone) in by_conversation {
        for some in gone.chunks(REVISIONS_MAX) {
            let body = EventBody::ContentErased {
                revisions: some.iter().map(|gone| gone.event.revision).collect(),
                reason: command.reason.clone(),
                stubs: Some(hash_of_stubs(some.iter().map(|gone| &gone.stub[..]))),
                signed_by: Some(signed_by),
            };
            let mut event = NewEvent::new(conversation, body);
            event.actor.clone_from(&command.actor);
            events.push(event);
        }
    }
    events
}

/// Returns BLAKE3 over stubs, each preceded by its length.
pub fn hash_of_stubs<'a>(stubs: impl Iterator<Item = &'a [u8]>) -> ContentHash {
    let mut hasher = blake3::Hasher::new();
    for stub in stubs {
        hasher.update(&(stub.len() as u64).to_le_bytes());
        hasher.update(stub);
    }
    ContentHash(*hasher.finalize().as_bytes())
}

/// Removes hidden content from the disk.
async fn finish(
    inner: &Arc<Inner>,
    log: &Arc<dyn ErasableLog>,
    erasure: &Erasure,
    indexed: Option<IndexedErasure>,
    last: u64,
    reports: &mut Reports,
) -> Result<ScrubOutcome, EraseError> {
    let scrubbed = scrub(log, erasure, reports).await?;
    let mut report = |done, total| report_progress(reports, "views", done, total);
    let projections = rebuild_projections(inner, Appends::Wait, &mut report).await;
    projections.map_err(EraseError::unfinished)?;
    // An empty request makes the writer discard its caches.
    inner.settled().await.map_err(EraseError::unfinished)?;
    let head = inner.reads.published.load(Ordering::Acquire);
    let index = erase_from_index(inner, indexed, |done| {
        report_progress(reports, "index", done, head);
    });
    index.await.map_err(EraseError::unfinished)?;
    Meaning::forget_erased(inner)
        .await
        .map_err(EraseError::unfinished)?;
    reindex::remove_left_over(&inner.search.indexer.place).map_err(EraseError::unfinished)?;
    inner.reads.reader.forget_hidden();
    inner.forget_contexts();
    let ended = Arc::clone(log).mark_done(last).await;
    ended.map_err(EraseError::unfinished)?;
    if inner.place.is_some()
        && let Err(error) = folder::set_mark(&inner.options.data_dir, last)
    {
        tracing::warn!(%error, "the erasure was not noted in the folder; the next start rebuilds it");
    }
    Ok(scrubbed)
}

async fn scrub(
    log: &Arc<dyn ErasableLog>,
    erasure: &Erasure,
    reports: &mut Reports,
) -> Result<ScrubOutcome, EraseError> {
    let mut told = reports.clone();
    let report = move |done, total| report_progress(&mut told, "segments", done, total);
    let removed = Arc::clone(log).remove(Arc::new(erasure.clone()), Box::new(report));
    removed.await.map_err(EraseError::unfinished)
}

impl Inner {
    /// Waits until everything handed to the writer is answered, and thus published. The caller must
    /// block further appends.
    pub(crate) async fn settled(&self) -> Result<(), AppendError> {
        let nothing = AppendCommand::<EventBody>::new(Namespace::default(), Vec::new());
        let prepared = ValidatedBatch::new(nothing, &self.options.limits)?;
        let request = self.look_up(prepared).await?;
        match self.hand_over(request)?.await {
            Ok(WriteAnswer::Failed(AppendError::Rejected(_))) => Ok(()),
            Ok(WriteAnswer::Failed(error)) => Err(error),
            // An empty batch is always refused.
            Ok(_) => Err(AppendError::storage("the writer accepted an empty batch")),
            Err(_) => Err(AppendError::Closing),
        }
    }

    /// Submits the events of an erasure; the returned future waits for the answer.
    async fn record_erased(
        &self,
        namespace: &Namespace,
        events: Vec<NewEvent>,
    ) -> Result<impl Future<Output = Result<AppendOutcome, AppendError>> + use<>, AppendError> {
        // The engine's own records are not subject to configured limits.
        let limits = Limits::default();
        let mut command = AppendCommand::new(namespace.clone(), events);
        if let Some(pseudonyms) = &self.appends.pseudonyms {
            pseudonyms.pseudonymize(&mut command);
        }
        let prepared = ValidatedBatch::new(command, &limits)?.of_eraser();
        let request = self.look_up(prepared).await?;
        let answer = self.hand_over(request)?;
        Ok(async move {
            match answer.await {
                Ok(WriteAnswer::Done(outcome, _)) => Ok(outcome),
                Ok(WriteAnswer::Failed(error)) => Err(error),
                Ok(_) => Err(AppendError::storage(
                    "the writer needs earlier events that were not read",
                )),
                Err(_) => Err(AppendError::Closing),
            }
        })
    }

    /// Hides erased content from all readers, and prevents new references to it.
    fn hide(&self, erasure: Erasure) {
        self.reads.reader.hide(Arc::new(erasure));
        self.appends.feed.clear();
        self.appends
            .cached_set
            .forget_all(Some(self.reads.published.load(Ordering::Acquire)));
        self.forget_contexts();
    }

    fn forget_contexts(&self) {
        self.context.windows.forget();
        self.context.knowledge.forget();
    }
}

impl ReadPath {
    /// Returns a change that restores labels and metadata erased together with a title, as far as
    /// they are still current.
    fn described(
        &self,
        namespace: &Namespace,
        id: ConversationId,
        plan: &ErasePlan,
    ) -> Result<Option<EventBody>, ReadError> {
        let Some(mut stays) = plan.described.get(&id).cloned() else {
            return Ok(None);
        };
        let now = self.row(namespace, id)?.info;
        stays
            .set_labels
            .retain(|name, text| now.labels.get(name) == Some(text));
        stays
            .set_metadata
            .retain(|name, text| now.metadata.get(name) == Some(text));
        let is_some = !stays.set_labels.is_empty() || !stays.set_metadata.is_empty();
        Ok(is_some.then_some(EventBody::ConversationChanged(stays)))
    }
}
