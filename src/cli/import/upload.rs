//! Appends conversations over gRPC.
//!
//! Most are one append, for a stream that must not exist, and go down one
//! pipelined stream. What is refused there (it exists, or the store was busy) is
//! compared with what is stored, and only the rest is appended. Large ones, and
//! those that refer to their own past, take several appends, one after the
//! other; when such an import breaks off, the next one goes on where it stopped.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use super::{
    super::{connect::Connection, error::CliError, read},
    feed::{Feed, Found, Origin, Ready, batches},
    report::{Arrival, Report},
};
use crate::{
    codec::{
        envelope,
        pb::{self, append_stream_response::Outcome, expected_revision::Expected},
    },
    domain::{Namespace, NewEvent, StoredEvent},
    importer::{self, ImportedConversation, Plan},
};

/// Appends that may be under way.
const IN_FLIGHT: usize = 64;
/// Bytes that may be under way: a few large conversations.
const IN_FLIGHT_KIB: usize = 48 * 1024;
/// Conversations that are compared with the store at the same time.
const COMPARED: usize = 8;
/// How often an append is tried again while the store is busy.
const TRIES: u32 = 20;
/// Pause before the next try.
const PAUSE: Duration = Duration::from_millis(100);

/// An import under way.
#[derive(Debug)]
pub struct Upload<'a> {
    store: &'a Connection,
    report: &'a Report,
}

/// A conversation that is on the stream.
struct Sent {
    ready: Box<Ready>,
    _room: OwnedSemaphorePermit,
}

/// Why one conversation is not in the store.
enum Refusal {
    /// It alone: the import goes on.
    One(String),
    /// The store is gone: nothing more can be done.
    All(CliError),
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        match status.code() {
            Code::Unavailable | Code::Unauthenticated | Code::Unimplemented => {
                Self::All(status.into())
            }
            _ => Self::One(status.message().to_owned()),
        }
    }
}

impl<'a> Upload<'a> {
    /// An import into this store.
    #[must_use]
    pub fn new(store: &'a Connection, report: &'a Report) -> Self {
        Self { store, report }
    }

    /// Appends everything that the feed brings.
    ///
    /// # Errors
    /// When the store goes away.
    pub async fn run(&self, feed: Feed) -> Result<(), CliError> {
        let (requests, outgoing) = mpsc::channel(IN_FLIGHT);
        let (sent, awaited) = mpsc::channel(IN_FLIGHT);
        let (unsure, to_compare) = mpsc::channel(COMPARED);
        let also_unsure = unsure.clone();
        // Both drop their senders of `unsure` when they are done: that ends the
        // comparing.
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
        sent: mpsc::Sender<Sent>,
        unsure: mpsc::Sender<Box<Ready>>,
    ) -> Result<(), CliError> {
        let room = Arc::new(Semaphore::new(IN_FLIGHT_KIB));
        while let Some(found) = feed.next().await {
            let mut ready = match found {
                Found::BadLine(origin, why) => {
                    self.report.bad_line(&origin, &why);
                    continue;
                }
                Found::BadFile(origin, why) => {
                    self.report.failed(&origin, &why);
                    continue;
                }
                Found::Conversation(ready) => ready,
            };
            if !self.report.read(&ready.origin, &ready.imported.notes) {
                continue;
            }
            if ready.batches.len() != 1 || !ready.children.is_empty() {
                // Compared with nothing, it is appended step by step.
                if unsure.send(ready).await.is_err() {
                    return Ok(());
                }
                continue;
            }
            let events = ready.batches.pop().unwrap_or_default();
            let request = first_append(&ready.imported, events);
            let kib = u32::try_from((ready.bytes / 1024).clamp(1, IN_FLIGHT_KIB)).unwrap_or(1);
            let Ok(permit) = Arc::clone(&room).acquire_many_owned(kib).await else {
                return Ok(());
            };
            let on_its_way = Sent {
                ready,
                _room: permit,
            };
            // A receiver that is gone has an error of its own to tell.
            if sent.send(on_its_way).await.is_err() || requests.send(request).await.is_err() {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn take_answers(
        &self,
        mut answers: Streaming<pb::AppendStreamResponse>,
        mut awaited: mpsc::Receiver<Sent>,
        unsure: mpsc::Sender<Box<Ready>>,
    ) -> Result<(), CliError> {
        while let Some(sent) = awaited.recv().await {
            let answer = answers.message().await?.ok_or(CliError::Answer {
                call: "AppendStream",
                part: "last answers",
            })?;
            match answer.outcome {
                Some(Outcome::Appended(appended)) => {
                    let events = appended.events.len() as u64;
                    self.report
                        .arrived(&sent.ready.imported, Arrival::New, events);
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

    async fn compare_all(&self, to_compare: mpsc::Receiver<Box<Ready>>) -> Result<(), CliError> {
        let mut done = ReceiverStream::new(to_compare)
            .map(|ready| self.compare_family(*ready))
            .buffer_unordered(COMPARED);
        while let Some(outcome) = done.next().await {
            outcome?;
        }
        Ok(())
    }

    /// A conversation, and then its sub-contexts, which need it in the store.
    async fn compare_family(&self, ready: Ready) -> Result<(), CliError> {
        let outcome = self.compare(&ready.imported).await;
        let missing = matches!(outcome, Err(Refusal::One(_)));
        self.settle(&ready.origin, &ready.imported, outcome)?;
        for child in ready.children {
            if !self.report.read(&child.origin, &child.imported.notes) {
                continue;
            }
            let outcome = if missing {
                Err(Refusal::One(
                    "the session that it belongs to was not imported".into(),
                ))
            } else {
                self.compare(&child.imported).await
            };
            self.settle(&child.origin, &child.imported, outcome)?;
        }
        Ok(())
    }

    fn settle(
        &self,
        origin: &Origin,
        imported: &ImportedConversation,
        outcome: Result<(Arrival, u64), Refusal>,
    ) -> Result<(), CliError> {
        match outcome {
            Ok((how, events)) => {
                self.report.arrived(imported, how, events);
                Ok(())
            }
            Err(Refusal::One(why)) => {
                self.report.failed(origin, &why);
                Ok(())
            }
            Err(Refusal::All(error)) => Err(error),
        }
    }

    /// Compares a conversation with what is stored, and appends the rest.
    async fn compare(&self, imported: &ImportedConversation) -> Result<(Arrival, u64), Refusal> {
        let id = imported.conversation.to_string();
        let existing = self.stored(&id).await?;
        match importer::plan(&existing, imported) {
            Plan::Nothing => Ok((Arrival::Known, 0)),
            Plan::Append(events) => {
                let how = if existing.is_empty() {
                    Arrival::New
                } else {
                    Arrival::Continued
                };
                let number = events.len() as u64;
                let next = existing.len() as u64 + 1;
                self.append_in_steps(&id, next, events).await?;
                Ok((how, number))
            }
            Plan::Conflict { at_revision } => Err(Refusal::One(format!(
                "the conversation {id} is in the store with another content from #{at_revision} on"
            ))),
        }
    }

    async fn stored(&self, id: &str) -> Result<Vec<StoredEvent>, Refusal> {
        let request = read::of_conversation(id);
        let mut answers = match self.store.events().read(request).await {
            Ok(answers) => answers.into_inner(),
            Err(status) if status.code() == Code::NotFound => return Ok(Vec::new()),
            Err(status) => return Err(status.into()),
        };
        let mut events = Vec::new();
        loop {
            match answers.message().await {
                Ok(Some(batch)) => {
                    for event in batch.events {
                        let event = envelope::event_from_pb(event, Namespace::default())
                            .map_err(|fault| Refusal::One(fault.to_string()))?;
                        events.push(event);
                    }
                }
                Ok(None) => return Ok(events),
                Err(status) if status.code() == Code::NotFound => return Ok(events),
                Err(status) => return Err(status.into()),
            }
        }
    }

    async fn append_in_steps(
        &self,
        id: &str,
        mut next: u64,
        events: Vec<NewEvent>,
    ) -> Result<(), Refusal> {
        for batch in batches(events) {
            let expected = if next == 1 {
                Expected::NoStream(pb::expected_revision::NoStream {})
            } else {
                Expected::Any(pb::expected_revision::Any {})
            };
            let request = pb::AppendRequest {
                conversation_id: id.to_owned(),
                expected: Some(pb::ExpectedRevision {
                    expected: Some(expected),
                }),
                events: batch,
                ..Default::default()
            };
            let answer = self.append_patiently(request).await?;
            let first = answer.events.first().map_or(0, |event| event.revision);
            if first != next {
                return Err(Refusal::One(format!(
                    "someone else appends to {id}: #{next} was expected, #{first} came; import \
                     into another namespace"
                )));
            }
            next += answer.events.len() as u64;
        }
        Ok(())
    }

    async fn append_patiently(
        &self,
        request: pb::AppendRequest,
    ) -> Result<pb::AppendResponse, Refusal> {
        let mut tries = 1;
        loop {
            match self.store.events().append(request.clone()).await {
                Ok(answer) => return Ok(answer.into_inner()),
                Err(status) if status.code() == Code::ResourceExhausted && tries < TRIES => {
                    tokio::time::sleep(PAUSE * tries).await;
                    tries += 1;
                }
                Err(status) => return Err(status.into()),
            }
        }
    }
}

fn first_append(imported: &ImportedConversation, events: Vec<pb::NewEvent>) -> pb::AppendRequest {
    let expected = Expected::NoStream(pb::expected_revision::NoStream {});
    pb::AppendRequest {
        conversation_id: imported.conversation.to_string(),
        expected: Some(pb::ExpectedRevision {
            expected: Some(expected),
        }),
        events,
        ..Default::default()
    }
}
