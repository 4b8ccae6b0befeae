//! The stream of a subscription. The engine reads from the log again when a reader is slow, so
//! nothing is buffered here but one item.

use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use tokio::time::{Instant, timeout_at};
use tonic::Status;

use super::status::OrStatus;
use super::{
    bounds::{HEARTBEAT_DEFAULT, HEARTBEAT_MAX},
    cursor::LogCursor,
    guard::Caller,
    to_proto,
};
use treering_domain::{Position, TimestampMicros};
use treering_engine::{ReadError, SubscriptionItem};
use treering_proto::{
    envelope::{position_to_pb, timestamp_to_pb},
    pb::{self, subscribe_response::Item},
};

/// Returns the client's heartbeat interval within limits; 0 means the default.
pub(super) fn heartbeat(seconds: u32) -> Duration {
    if seconds == 0 {
        return HEARTBEAT_DEFAULT;
    }
    Duration::from_secs(seconds.into()).min(HEARTBEAT_MAX)
}

/// Returns the engine's items, those of the log with a cursor, and a heartbeat after each silence of this length. A heartbeat
/// names the last position that was sent, so that a reader can continue from there without a gap.
pub(super) fn items(
    source: impl Stream<Item = Result<SubscriptionItem, ReadError>> + Send + 'static,
    heartbeat: Duration,
    reader: Caller,
    is_log: bool,
) -> impl Stream<Item = Result<pb::SubscribeResponse, Status>> + Send + 'static {
    async_stream::try_stream! {
        let mut source = std::pin::pin!(source);
        let mut reached = Position::default();
        loop {
            let silence = Instant::now() + heartbeat;
            let item = match timeout_at(silence, source.next()).await {
                Ok(None) => break,
                Ok(Some(item)) => {
                    let (item, position) = sent(item.or_status()?, &reader);
                    reached = position.unwrap_or(reached);
                    item
                }
                Err(_silent) => Item::Heartbeat(pb::Heartbeat {
                    position: Some(position_to_pb(reached)),
                    time: Some(timestamp_to_pb(TimestampMicros::now())),
                }),
            };
            let cursor = match is_log {
                true => LogCursor([(reached.shard, reached.offset)].into()).encode(),
                false => Bytes::new(),
            };
            yield pb::SubscribeResponse { item: Some(item), cursor };
        }
    }
}

/// Returns the item, and the position that the reader has reached with it. `FellBehind` names the
/// position of the log, which the reader has not reached.
fn sent(item: SubscriptionItem, reader: &Caller) -> (Item, Option<Position>) {
    match item {
        SubscriptionItem::Event(named) => {
            reader.reads([named.event.header.conversation]);
            let position = named.event.position;
            let event = to_proto::event(&named, false);
            (Item::Event(event), Some(position))
        }
        SubscriptionItem::CaughtUp(at) => {
            let position = Some(position_to_pb(at));
            (Item::CaughtUp(pb::CaughtUp { position }), Some(at))
        }
        SubscriptionItem::FellBehind(at) => {
            let position = Some(position_to_pb(at));
            (Item::FellBehind(pb::FellBehind { position }), None)
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::*;
    use treering_domain::Namespace;

    const SILENCE: Duration = Duration::from_millis(15);

    // Proxies close silent connections: a quiet subscription must send heartbeats, and must not
    // claim a position that it has not sent.
    #[tokio::test]
    async fn quiet_subscription_sends_heartbeats() {
        let caught_up = SubscriptionItem::CaughtUp(Position::local(7));
        let behind = SubscriptionItem::FellBehind(Position::local(99));
        let source = stream::iter([Ok(caught_up), Ok(behind)]).chain(stream::pending());
        let nobody = Caller::anybody(Namespace::default());
        let mut items = std::pin::pin!(items(source, SILENCE, nobody, true));
        let first = items.next().await.unwrap().unwrap();
        assert!(matches!(first.item, Some(Item::CaughtUp(_))));
        let second = items.next().await.unwrap().unwrap();
        assert!(matches!(second.item, Some(Item::FellBehind(_))));
        for _ in 0..3 {
            let started = Instant::now();
            let next = items.next().await.unwrap().unwrap();
            let Some(Item::Heartbeat(beat)) = next.item else {
                panic!("{next:?}");
            };
            assert_eq!(beat.position.unwrap().offset, 7);
            let cursor = LogCursor::decode(&next.cursor, 1).unwrap();
            assert_eq!(cursor.0.into_values().collect::<Vec<_>>(), [7]);
            assert!(started.elapsed() >= SILENCE);
        }
    }

    // The client's choice must neither overload the server nor silence it forever.
    #[test]
    fn heartbeat_interval_is_clamped() {
        assert_eq!(heartbeat(0), HEARTBEAT_DEFAULT);
        assert_eq!(heartbeat(1).as_secs(), 1);
        assert_eq!(heartbeat(u32::MAX), HEARTBEAT_MAX);
    }
}
