//! Appends conversations over gRPC.
//!
//! Most conversations need only one append, which must create the conversation. These appends go
//! through one pipelined gRPC stream. If such an append is refused (the conversation exists, or the
//! store was busy), the conversation is compared with the stored one, and only the rest is
//! appended. Large conversations, and those that refer to their own past, take several appends in
//! order; an interrupted import continues where it stopped. The last append of a conversation uses
//! the key of its content, which marks it as complete.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use futures::StreamExt;
use tokio::{
    runtime::Handle,
    sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore, mpsc},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::{
    super::{connect::Connection, error::ClientError},
    feed::{Feed, KeyLookup, ParsedConversation, SourceLine},
    report::{Arrival, Report},
};
use treering_client::{ConversationWriter, WriteRefusal};
use treering_domain::{BranchName, ConversationId, Custom, EventBody, NewEvent, StoredEvent};
use treering_import as importer;
use treering_import::{ImportedConversation, Plan};
use treering_proto::{
    envelope,
    pb::{self, append_stream_response::Outcome, expected_revision::Expected},
};

/// Maximum number of appends in flight.
const IN_FLIGHT: usize = 64;
/// Maximum number of KiB in flight: a few large conversations.
const IN_FLIGHT_KIB: usize = 48 * 1024;
/// Maximum number of conversations that are compared at the same time.
const COMPARED: usize = 8;
/// Maximum number of attempts to compare a conversation to which somebody else appends.
const COMPARE_TRIES: u32 = 3;
/// A running import.
#[derive(Debug)]
pub(crate) struct Upload<'a> {
    store: &'a Connection,
    writer: ConversationWriter<'a>,
    report: &'a Report,
    /// Locks by conversation, because several files may have the same conversation.
    turns: Turns,
}

type Turns = Mutex<HashMap<ConversationId, Arc<tokio::sync::Mutex<()>>>>;

/// A conversation in the stream.
struct SentConversation {
    ready: Box<ParsedConversation>,
    _room: OwnedSemaphorePermit,
}

/// How a conversation was added to the store.
struct UploadResult {
    how: Arrival,
    plan: Plan,
    /// The append used the key of its content.
    key_is_used: bool,
}

impl<'a> Upload<'a> {
    /// Returns an import into this store.
    pub(crate) fn new(store: &'a Connection, report: &'a Report) -> Self {
        Self {
            store,
            writer: ConversationWriter::new(store),
            report,
            turns: Turns::default(),
        }
    }

    /// Appends everything from the feed.
    ///
    /// # Errors
    /// If the store becomes unavailable.
    pub(crate) async fn run(&self, feed: Feed) -> Result<(), ClientError> {
        let (requests, outgoing) = mpsc::channel(IN_FLIGHT);
        let (sent, awaited) = mpsc::channel(IN_FLIGHT);
        let (unsure, to_compare) = mpsc::channel(COMPARED);
        let also_unsure = unsure.clone();
        // `answers` and `sending` drop their senders of `unsure` at the end; this ends the
        // comparison.
        let answers = async move {
            let outgoing = ReceiverStream::new(outgoing);
            let answers = self.store.events().append_stream(outgoing).await?;
            self.take_answers(answers.into_inner(), awaited, also_unsure)
                .await
        };
        let sending = self.send(feed, requests, sent, unsure);
        let comparing = self.compare_all(to_compare);
        futures::future::try_join3(sending, answers, comparing).await?;
        Ok(())
    }

    async fn send(
        &self,
        mut feed: Feed,
        requests: mpsc::Sender<pb::AppendRequest>,
        sent: mpsc::Sender<SentConversation>,
        unsure: mpsc::Sender<Box<ParsedConversation>>,
    ) -> Result<(), ClientError> {
        let room = Arc::new(Semaphore::new(IN_FLIGHT_KIB));
        while let Some(found) = feed.next().await {
            let Some(mut ready) = self.report.found(found) else {
                continue;
            };
            if !self.report.read(&ready.origin, &ready.imported.notes) {
                continue;
            }
            let is_alone = ready.children.is_empty() && ready.imported.origin.is_none();
            if ready.batches.len() != 1 || !is_alone {
                // It may need several appends, so it takes the slower path through the comparison.
                if unsure.send(ready).await.is_err() {
                    return Ok(());
                }
                continue;
            }
            let events = ready.batches.pop().unwrap_or_default();
            let request = first_append(&ready, events);
            let kib = u32::try_from((ready.bytes / 1024).clamp(1, IN_FLIGHT_KIB)).unwrap_or(1);
            let Ok(permit) = Arc::clone(&room).acquire_many_owned(kib).await else {
                return Ok(());
            };
            let on_its_way = SentConversation {
                ready,
                _room: permit,
            };
            // If the receiver is gone, it reports the error itself.
            if sent.send(on_its_way).await.is_err() || requests.send(request).await.is_err() {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn take_answers(
        &self,
        mut answers: Streaming<pb::AppendStreamResponse>,
        mut awaited: mpsc::Receiver<SentConversation>,
        unsure: mpsc::Sender<Box<ParsedConversation>>,
    ) -> Result<(), ClientError> {
        while let Some(sent) = awaited.recv().await {
            let answer = answers.message().await?.ok_or(ClientError::Answer {
                call: "AppendStream",
                part: "last answers",
            })?;
            match answer.outcome {
                Some(Outcome::Appended(appended)) => {
                    let (how, events) = if appended.repeated_key {
                        (Arrival::Known, 0)
                    } else {
                        (Arrival::New, appended.events.len() as u64)
                    };
                    self.report.arrived(&sent.ready.imported, how, events);
                }
                Some(Outcome::Error(_)) | None => {
                    if unsure.send(sent.ready).await.is_err() {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    async fn compare_all(
        &self,
        to_compare: mpsc::Receiver<Box<ParsedConversation>>,
    ) -> Result<(), ClientError> {
        let mut done = ReceiverStream::new(to_compare)
            .map(|ready| self.compare_family(*ready))
            .buffer_unordered(COMPARED);
        while let Some(outcome) = done.next().await {
            outcome?;
        }
        Ok(())
    }

    /// Compares a conversation, and then its sub-contexts, whose parent must already be in the
    /// store.
    async fn compare_family(&self, mut ready: ParsedConversation) -> Result<(), ClientError> {
        let mut continued = None;
        if let Some(origin) = &ready.imported.origin {
            match self.writer.stored(&origin.conversation.to_string()).await {
                Ok(stored) if origin.is_in(&stored) => {
                    let children = ready.children.iter_mut();
                    let children = children.map(|child| &mut child.imported);
                    ready.imported.continue_origin(children);
                    continued = Some(stored);
                }
                // The conversation was exported from another store, so it is imported as a separate
                // one.
                Ok(_) => {}
                Err(refusal) => {
                    return self.settle(&ready.origin, &ready.imported, Err(refusal));
                }
            }
        }
        let _turn = self.turn_of(ready.imported.conversation).await;
        let has_children = !ready.children.is_empty();
        let key = (!has_children).then_some(ready.key.as_str());
        let is_own = continued.is_none();
        let outcome = self.compare(&ready.imported, continued, key).await;
        let plan = outcome.as_ref().ok().map(|done| done.plan.clone());
        let mut whole = plan.is_some();
        let mut is_marked = outcome.as_ref().is_ok_and(|done| done.key_is_used);
        self.settle(&ready.origin, &ready.imported, outcome)?;
        for mut child in ready.children {
            if !self.report.read(&child.origin, &child.imported.notes) {
                whole = false;
                continue;
            }
            let outcome = match &plan {
                Some(plan) => {
                    child.imported.parent_in_store(plan);
                    self.compare(&child.imported, None, None).await
                }
                None => Err(WriteRefusal::One("its session was not imported".into())),
            };
            whole &= outcome.is_ok();
            is_marked = false;
            self.settle(&child.origin, &child.imported, outcome)?;
        }
        // A continued conversation gets no mark, which would add an event to a branch that the
        // session did not change.
        if whole && !is_marked && is_own {
            self.mark(ready.imported.conversation, &ready.key).await;
        }
        Ok(())
    }

    /// Waits until no other copy of the conversation is being compared.
    async fn turn_of(&self, conversation: ConversationId) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(turns.entry(conversation).or_default())
        };
        turn.lock_owned().await
    }

    fn settle(
        &self,
        origin: &SourceLine,
        imported: &ImportedConversation,
        outcome: Result<UploadResult, WriteRefusal>,
    ) -> Result<(), ClientError> {
        match outcome {
            Ok(done) => {
                let events = done.plan.events.len() as u64;
                self.report.arrived(imported, done.how, events);
                for parted in &done.plan.parted {
                    self.report.parted(origin, imported, parted);
                }
                Ok(())
            }
            Err(WriteRefusal::One(why)) => {
                self.report.failed(origin, &why);
                Ok(())
            }
            Err(WriteRefusal::All(error)) => Err(error),
            Err(WriteRefusal::Moved) => {
                let id = imported.conversation;
                self.report.failed(
                    origin,
                    &format!("another writer is appending to {id}: import again later"),
                );
                Ok(())
            }
        }
    }

    /// Compares a conversation with its stored events, which may have been read already, and
    /// appends the rest.
    async fn compare(
        &self,
        imported: &ImportedConversation,
        mut stored: Option<Vec<StoredEvent>>,
        key: Option<&str>,
    ) -> Result<UploadResult, WriteRefusal> {
        let mut tries = 1;
        loop {
            match self.compare_once(imported, stored.take(), key).await {
                Err(WriteRefusal::Moved) if tries < COMPARE_TRIES => tries += 1,
                outcome => return outcome,
            }
        }
    }

    async fn compare_once(
        &self,
        imported: &ImportedConversation,
        stored: Option<Vec<StoredEvent>>,
        key: Option<&str>,
    ) -> Result<UploadResult, WriteRefusal> {
        let id = imported.conversation.to_string();
        let existing = match stored {
            Some(stored) => stored,
            None => self.writer.stored(&id).await?,
        };
        let plan = importer::plan(&existing, imported);
        let how = match (existing.is_empty(), plan.events.is_empty()) {
            (true, _) => Arrival::New,
            (false, true) => Arrival::Known,
            (false, false) => Arrival::Continued,
        };
        let next = existing.len() as u64 + 1;
        drop(existing);
        let key_is_used = key.is_some() && !plan.events.is_empty();
        self.writer
            .append_in_steps(&id, next, plan.events.clone(), key)
            .await?;
        Ok(UploadResult {
            how,
            plan,
            key_is_used,
        })
    }

    /// Records that the content of a conversation is complete. A failure is not an error, since the
    /// next import then compares the conversation again.
    async fn mark(&self, conversation: ConversationId, key: &str) {
        let custom = Custom {
            type_name: importer::MARK_TYPE.to_owned(),
            content_type: "application/json".to_owned(),
            data: "{}".into(),
            text: String::new(),
            delta_of: String::new(),
        };
        let event =
            NewEvent::new(conversation, EventBody::Custom(custom)).on_branch(BranchName::default());
        let request = pb::AppendRequest {
            conversation_id: conversation.to_string(),
            idempotency_key: key.to_owned(),
            events: vec![envelope::new_event_to_pb(&event)],
            ..Default::default()
        };
        if let Err(WriteRefusal::One(why)) = self.writer.append_patiently(request).await {
            tracing::debug!(why, "the import was not recorded");
        }
    }
}

/// Returns a function that asks the store which idempotency keys it knows.
pub(crate) fn asks(store: &Connection) -> KeyLookup {
    let events = store.events();
    let runtime = Handle::current();
    Box::new(move |idempotency_keys| {
        let mut events = events.clone();
        let request = pb::KnownKeysRequest { idempotency_keys };
        let answer = runtime.block_on(events.known_keys(request));
        // If the server cannot tell, everything is compared.
        answer.map_or_else(|_| Vec::new(), |answer| answer.into_inner().known)
    })
}

fn first_append(ready: &ParsedConversation, events: Vec<pb::NewEvent>) -> pb::AppendRequest {
    let expected = Expected::NoStream(pb::expected_revision::NoStream {});
    pb::AppendRequest {
        conversation_id: ready.imported.conversation.to_string(),
        expected: Some(pb::ExpectedRevision {
            expected: Some(expected),
        }),
        idempotency_key: ready.key.clone(),
        events,
        ..Default::default()
    }
}
