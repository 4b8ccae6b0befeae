//! Converts batches of stored events to messages of limited size. A larger event is sent alone.

use futures::{Stream, StreamExt};
use tonic::Status;

use super::status::OrStatus;
use super::{bounds::READ_MESSAGE_BYTES, guard::Caller, lookup, to_proto};
use treering_engine::{NamedEvent, ReadError};
use treering_proto::pb;

/// Approximate bytes of an event besides its body.
const HEADER_BYTES: usize = 256;

/// Converts a batch for its reader, with the approximate bytes of each event.
pub(super) fn converted(
    reader: &Caller,
    batch: Vec<NamedEvent>,
    headers_only: bool,
) -> Vec<(pb::Event, usize)> {
    reader.reads(batch.iter().map(|named| named.event.header.conversation));
    let event = |named| (to_proto::event(named, headers_only), size(named));
    batch.iter().map(event).collect()
}

/// Splits and joins batches into messages. Yields between two of them, so that a fast reader does
/// not occupy a thread.
pub(super) fn messages(
    batches: impl Stream<Item = Result<Vec<(pb::Event, usize)>, ReadError>> + Send + 'static,
) -> impl Stream<Item = Result<pb::ReadResponse, Status>> + Send + 'static {
    async_stream::try_stream! {
        let mut batches = std::pin::pin!(batches);
        let mut page = Page::default();
        while let Some(batch) = batches.next().await {
            // Events read before an error are sent before it.
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
                    Err(error).or_status()?
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
    use treering_domain::{
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

    fn nobody() -> Caller {
        Caller::anybody(Namespace::default())
    }

    async fn shape(batches: Vec<Result<Vec<NamedEvent>, ReadError>>) -> Vec<Vec<u64>> {
        let batches = stream::iter(batches);
        messages(batches.map_ok(|batch| converted(&nobody(), batch, false)))
            .map(|message| match message {
                Ok(message) => message.events.iter().map(|event| event.revision).collect(),
                Err(_) => Vec::new(),
            })
            .collect()
            .await
    }

    // A message over the client's limit ends a read for good: many events must be split, a large
    // one sent alone, and the order kept.
    #[tokio::test]
    async fn messages_are_limited_and_in_order() {
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

    // A damaged event must not hide the undamaged ones before it.
    #[tokio::test]
    async fn fault_follows_the_events_before_it() {
        let fault = ReadError::storage("gone");
        let batches = vec![Ok(vec![event(1, 1)]), Err(fault), Ok(vec![event(2, 1)])];
        assert_eq!(shape(batches).await, vec![vec![1], vec![]]);
    }
}
