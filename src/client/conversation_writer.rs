//! Reads the stored events of a conversation, and appends the events that an import plan adds.

use std::time::Duration;

use tonic::{Code, Status};

use super::{
    connect::Connection,
    error::{ClientError, is_over_quota},
    read,
};
use treering_domain::{Namespace, NewEvent, StoredEvent};
use treering_import as importer;
use treering_proto::{
    envelope,
    pb::{self, expected_revision::Expected},
};

/// Maximum number of events in one append. A large conversation takes several.
const BATCH_EVENTS_MAX: usize = 4_000;
/// Maximum number of bytes of one append.
const BATCH_BYTES_MAX: usize = 8 << 20;
/// Attempts to append while the store is busy.
const TRIES: u32 = 20;
/// Pause between attempts.
const PAUSE: Duration = Duration::from_millis(100);

/// Why a conversation was not appended.
#[derive(Debug)]
pub enum WriteRefusal {
    /// Only this conversation failed.
    One(String),
    /// The stored conversation has changed since it was read.
    Moved,
    /// The store is unavailable or full.
    All(ClientError),
}

impl From<Status> for WriteRefusal {
    fn from(status: Status) -> Self {
        match status.code() {
            // A later attempt continues from here once there is room.
            _ if is_over_quota(&status) => Self::All(status.into()),
            Code::Unavailable | Code::Unauthenticated | Code::Unimplemented => {
                Self::All(status.into())
            }
            _ => Self::One(status.message().to_owned()),
        }
    }
}

/// Appends planned events to conversations of a store.
#[derive(Clone, Copy, Debug)]
pub struct ConversationWriter<'a> {
    store: &'a Connection,
}

impl<'a> ConversationWriter<'a> {
    /// Makes a writer for this store.
    #[must_use]
    pub fn new(store: &'a Connection) -> Self {
        Self { store }
    }

    /// Returns all events of a conversation, in order; none if it does not exist.
    ///
    /// # Errors
    /// [`WriteRefusal`] when they cannot be read.
    pub async fn stored(&self, id: &str) -> Result<Vec<StoredEvent>, WriteRefusal> {
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
                            .map_err(|fault| WriteRefusal::One(fault.to_string()))?;
                        events.push(event);
                    }
                }
                Ok(None) => return Ok(events),
                Err(status) if status.code() == Code::NotFound => return Ok(events),
                Err(status) => return Err(status.into()),
            }
        }
    }

    /// Appends events, the first as revision `next`. The last batch carries the idempotency key.
    ///
    /// # Errors
    /// [`WriteRefusal::Moved`] when another writer was first; [`WriteRefusal`] otherwise.
    pub async fn append_in_steps(
        &self,
        id: &str,
        mut next: u64,
        events: Vec<NewEvent>,
        key: Option<&str>,
    ) -> Result<(), WriteRefusal> {
        let batches = batches(events);
        let last = batches.len();
        for (index, batch) in batches.into_iter().enumerate() {
            let is_first_event = next == 1;
            let expected = if is_first_event {
                Expected::NoStream(pb::expected_revision::NoStream {})
            } else {
                Expected::Any(pb::expected_revision::Any {})
            };
            let key = key.filter(|_| index + 1 == last).unwrap_or_default();
            let request = pb::AppendRequest {
                conversation_id: id.to_owned(),
                expected: Some(pb::ExpectedRevision {
                    expected: Some(expected),
                }),
                idempotency_key: key.to_owned(),
                events: batch,
                ..Default::default()
            };
            let answer = match self.append_patiently(request).await {
                // Another writer created the conversation first: it must be read again.
                Err(WriteRefusal::One(_)) if is_first_event && self.exists(id).await => {
                    return Err(WriteRefusal::Moved);
                }
                answer => answer?,
            };
            let first = answer.events.first().map_or(0, |event| event.revision);
            if first != next {
                return Err(WriteRefusal::Moved);
            }
            next += answer.events.len() as u64;
        }
        Ok(())
    }

    async fn exists(&self, id: &str) -> bool {
        let request = pb::GetConversationRequest {
            conversation_id: id.to_owned(),
            ..Default::default()
        };
        self.store.conversations().get(request).await.is_ok()
    }

    /// Appends a batch, and retries while the store is busy.
    ///
    /// # Errors
    /// [`WriteRefusal`] of the last attempt.
    pub async fn append_patiently(
        &self,
        request: pb::AppendRequest,
    ) -> Result<pb::AppendResponse, WriteRefusal> {
        let mut tries = 1;
        loop {
            match self.store.events().append(request.clone()).await {
                Ok(answer) => return Ok(answer.into_inner()),
                Err(status) if is_busy(&status) && tries < TRIES => {
                    tokio::time::sleep(PAUSE * tries).await;
                    tries += 1;
                }
                Err(status) => return Err(status.into()),
            }
        }
    }
}

/// Returns true if a retry may succeed.
fn is_busy(status: &Status) -> bool {
    status.code() == Code::ResourceExhausted && !is_over_quota(status)
}

/// Splits events into appends, in order.
#[must_use]
pub fn batches(events: Vec<NewEvent>) -> Vec<Vec<pb::NewEvent>> {
    importer::plan::batches(events, BATCH_EVENTS_MAX, BATCH_BYTES_MAX)
        .into_iter()
        .map(|batch| batch.iter().map(envelope::new_event_to_pb).collect())
        .collect()
}
