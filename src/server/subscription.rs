//! What a subscription sends. The engine reads again from the log when a reader
//! is slow, so nothing is buffered here: one item at a time.

use std::time::Duration;

use futures::{Stream, StreamExt};
use tokio::time::{Instant, timeout_at};
use tonic::Status;

use super::{
    bounds::{HEARTBEAT_DEFAULT, HEARTBEAT_MAX},
    to_proto,
};
use crate::{
    codec::{
        envelope::{position_to_pb, timestamp_to_pb},
        pb::{self, subscribe_response::Item},
    },
    domain::{Position, TimestampMicros},
    engine::{ReadError, Subscribed},
};

/// What the client chose, within bounds; 0: the server's own.
pub(super) fn heartbeat(seconds: u32) -> Duration {
    if seconds == 0 {
        return HEARTBEAT_DEFAULT;
    }
    Duration::from_secs(seconds.into()).min(HEARTBEAT_MAX)
}

/// The engine's items, with a heartbeat after every silence of that length. A
/// heartbeat names the last place that was sent: a reader that goes on from
/// there misses nothing.
pub(super) fn items(
    source: impl Stream<Item = Result<Subscribed, ReadError>> + Send + 'static,
    heartbeat: Duration,
) -> impl Stream<Item = Result<pb::SubscribeResponse, Status>> + Send + 'static {
    async_stream::try_stream! {
        let mut source = std::pin::pin!(source);
        let mut reached = Position::default();
        loop {
            let silence = Instant::now() + heartbeat;
            let item = match timeout_at(silence, source.next()).await {
                Ok(None) => break,
                Ok(Some(item)) => {
                    let (item, position) = sent(item?);
                    reached = position;
                    item
                }
                Err(_silent) => Item::Heartbeat(pb::Heartbeat {
                    position: Some(position_to_pb(reached)),
                    time: Some(timestamp_to_pb(TimestampMicros::now())),
                }),
            };
            yield pb::SubscribeResponse { item: Some(item) };
        }
    }
}

fn sent(item: Subscribed) -> (Item, Position) {
    let at = |position| Some(position_to_pb(position));
    match item {
        Subscribed::Event(named) => {
            let position = named.event.position;
            (Item::Event(to_proto::event(&named, false)), position)
        }
        Subscribed::CaughtUp(position) => {
            let position_pb = at(position);
            let item = pb::CaughtUp {
                position: position_pb,
            };
            (Item::CaughtUp(item), position)
        }
        Subscribed::FellBehind(position) => {
            let position_pb = at(position);
            let item = pb::FellBehind {
                position: position_pb,
            };
            (Item::FellBehind(item), position)
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::*;

    // Proxies cut silent connections: a quiet subscription must speak, and must
    // not claim a place that it has not sent.
    #[tokio::test(start_paused = true)]
    async fn silence_is_broken_by_heartbeats() {
        let caught_up = Subscribed::CaughtUp(Position::local(7));
        let source = stream::iter([Ok(caught_up)]).chain(stream::pending());
        let mut items = std::pin::pin!(items(source, heartbeat(2)));
        let first = items.next().await.unwrap().unwrap();
        assert!(matches!(first.item, Some(Item::CaughtUp(_))));
        for _ in 0..3 {
            let started = Instant::now();
            let next = items.next().await.unwrap().unwrap();
            let Some(Item::Heartbeat(beat)) = next.item else {
                panic!("{next:?}");
            };
            assert_eq!(beat.position.unwrap().offset, 7);
            assert_eq!(started.elapsed().as_secs(), 2);
        }
    }

    // A client's choice must not make the server busy or silent for ever.
    #[test]
    fn heartbeats_are_bounded() {
        assert_eq!(heartbeat(0), HEARTBEAT_DEFAULT);
        assert_eq!(heartbeat(1).as_secs(), 1);
        assert_eq!(heartbeat(u32::MAX), HEARTBEAT_MAX);
    }
}
