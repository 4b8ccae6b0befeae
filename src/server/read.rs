//! Batches of stored events → messages of a bounded size. A larger event goes
//! alone.

use futures::{Stream, StreamExt};
use tonic::Status;

use super::{bounds::READ_MESSAGE_BYTES, lookup, to_proto};
use crate::{
    codec::pb,
    engine::{NamedEvent, ReadError},
};

/// What an event takes beside its body, about, in bytes.
const HEADER_BYTES: usize = 256;

/// A batch as its client will see it, with the bytes that each event takes, about.
pub(super) fn converted(batch: Vec<NamedEvent>, headers_only: bool) -> Vec<(pb::Event, usize)> {
    let event = |named| (to_proto::event(named, headers_only), size(named));
    batch.iter().map(event).collect()
}

/// Cuts and joins batches into messages. Between two of them others have their turn:
/// a client that takes all that it can get shall not keep a thread from the rest.
pub(super) fn messages(
    batches: impl Stream<Item = Result<Vec<(pb::Event, usize)>, ReadError>> + Send + 'static,
) -> impl Stream<Item = Result<pb::ReadResponse, Status>> + Send + 'static {
    async_stream::try_stream! {
        let mut batches = std::pin::pin!(batches);
        let mut page = Page::default();
        while let Some(batch) = batches.next().await {
            // What was read before a fault is sent before it.
            let batch = match batch {
                Ok(batch) => batch,
                Err(ReadError::ScanBound { at, .. }) => {
                    let stopped_at = Some(lookup::read_stop(at));
                    yield pb::ReadResponse { stopped_at, ..page.take() };
                    break;
                }
                Err(error) => {
                    if !page.events.is_empty() {
                        yield page.take();
                    }
                    Err(error)?
                }
            };
            for (event, bytes) in batch {
                if !page.takes(bytes) {
                    yield page.take();
                    tokio::task::yield_now().await;
                }
                page.push(event, bytes);
            }
        }
        if !page.events.is_empty() {
            yield page.take();
        }
    }
}

#[derive(Default)]
struct Page {
    events: Vec<pb::Event>,
    bytes: usize,
}

impl Page {
    fn takes(&self, bytes: usize) -> bool {
        self.events.is_empty() || self.bytes + bytes <= READ_MESSAGE_BYTES
    }

    fn push(&mut self, event: pb::Event, bytes: usize) {
        self.bytes += bytes;
        self.events.push(event);
    }

    fn take(&mut self) -> pb::ReadResponse {
        self.bytes = 0;
        pb::ReadResponse {
            events: std::mem::take(&mut self.events),
            stopped_at: None,
        }
    }
}

fn size(named: &NamedEvent) -> usize {
    named.event.body.len() + HEADER_BYTES
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures::{TryStreamExt, stream};

    use super::*;
    use crate::domain::{
        BranchId, ChainHash, ConversationId, EventHeader, EventId, EventKind, Namespace, Position,
        Revision, StoredEvent, TimestampMicros,
    };

    fn event(revision: u64, bytes: usize) -> NamedEvent {
        let event = StoredEvent {
            header: EventHeader {
                id: EventId::generate(),
                namespace: Namespace::default(),
                conversation: ConversationId::default(),
                branch: BranchId::MAIN,
                revision: Revision(revision),
                kind: EventKind::Custom.number(),
                recorded_at: TimestampMicros(0),
                occurred_at: None,
                actor: String::new(),
                causation_id: None,
                correlation_id: String::new(),
            },
            position: Position::local(revision),
            chain_hash: ChainHash::default(),
            body: Bytes::from(vec![0; bytes]),
            erased: false,
        };
        NamedEvent {
            event,
            branch: None,
        }
    }

    async fn shape(batches: Vec<Result<Vec<NamedEvent>, ReadError>>) -> Vec<Vec<u64>> {
        let batches = stream::iter(batches);
        messages(batches.map_ok(|batch| converted(batch, false)))
            .map(|message| match message {
                Ok(message) => message.events.iter().map(|event| event.revision).collect(),
                Err(_) => Vec::new(),
            })
            .collect()
            .await
    }

    // A message over the client's bound ends a read for good: many events must
    // be cut, a large one must go alone, and order must stay.
    #[tokio::test]
    async fn messages_are_bounded_and_in_order() {
        let large = READ_MESSAGE_BYTES * 3;
        let half = READ_MESSAGE_BYTES / 2 - HEADER_BYTES;
        let batches = vec![
            Ok(vec![event(1, 10), event(2, 10)]),
            Ok(vec![event(3, large), event(4, half), event(5, half)]),
            Ok(vec![]),
            Ok(vec![event(6, 1)]),
        ];
        let expected = vec![vec![1, 2], vec![3], vec![4, 5], vec![6]];
        assert_eq!(shape(batches).await, expected);
    }

    // A damaged event must not take the sound ones before it along.
    #[tokio::test]
    async fn a_fault_comes_after_what_was_read() {
        let fault = ReadError::storage("gone");
        let batches = vec![Ok(vec![event(1, 1)]), Err(fault), Ok(vec![event(2, 1)])];
        assert_eq!(shape(batches).await, vec![vec![1], vec![]]);
    }
}
