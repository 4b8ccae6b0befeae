//! The log of a namespace in a cluster: the logs of all shards together.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap, VecDeque},
    time::Duration,
};

use bytes::Bytes;
use futures::{FutureExt, Stream, StreamExt, TryStreamExt, stream};
use http::Response;
use prost::Message;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::{Code, Status, body::Body};

use super::{
    ShardRouter,
    answers::{AnswerFault, AnswerMessages, streamed},
    call::{CallHead, prefixed},
    scatter::decoded_request,
};
use crate::{
    bounds::{READ_MESSAGE_BYTES, ROUTE_PAUSE_MAX, SHARDS_ASKED_MAX},
    call::shutting_down,
    cursor::LogCursor,
    from_proto::InvalidField,
    shutdown::Phase,
    status::Refusal,
    subscription,
};
use treering_domain::{ShardId, TimestampMicros};
use treering_proto::{
    envelope::timestamp_to_pb,
    pb::{self, subscribe_response::Item},
};

pub(super) const READ: &str = "/treering.v1.Events/Read";
pub(super) const SUBSCRIBE: &str = "/treering.v1.Events/Subscribe";
/// With at most this many shards, each event has a cursor.
const CURSOR_SHARDS_MAX: u32 = 64;

impl ShardRouter {
    /// Answers a subscription to the log.
    ///
    /// # Errors
    /// An invalid request.
    pub(super) fn subscribe_to_log(
        &self,
        call: &CallHead,
        message: &Bytes,
    ) -> Result<Response<Body>, Status> {
        let request: pb::SubscribeRequest = decoded_request(message)?;
        let shards = self.inner.directory.shards();
        let cursor = LogCursor::decode(&request.after_cursor, shards)?;
        if request.after_offset.is_some() {
            let message = "belongs to one shard, and a cluster has several: use after_cursor";
            return Err(InvalidField::new("after_offset", message).into());
        }
        if request.from_now && !request.after_cursor.is_empty() {
            let message = "cannot be combined with a position to start at";
            return Err(InvalidField::new("from_now", message).into());
        }
        let own = pb::SubscribeRequest {
            after_cursor: Bytes::new(),
            ..request.clone()
        };
        let followed = (0..shards).map(ShardId).map(|shard| {
            let after = cursor.0.get(&shard).copied();
            let items = follow(self.clone(), call.read_here(), shard, own.clone(), after);
            items.boxed()
        });
        let items = stream::select_all(followed);
        let stop = self.inner.stop.clone();
        let merged = MergedLog {
            cursor,
            shards,
            from_start: !request.from_now,
            caught_up: BTreeSet::new(),
            events: 0,
            reached: None,
        };
        let heartbeat = subscription::heartbeat(request.heartbeat_seconds);
        let responses = merged.responses(items, heartbeat);
        let responses = responses.take_until(async move { stop.reached(Phase::Draining).await });
        let end = stream::once(async { Err(shutting_down()) });
        Ok(streamed(responses.chain(end)))
    }

    /// Answers a read of the log: the events of all shards by the time of their recording.
    ///
    /// # Errors
    /// An invalid request.
    pub(super) fn read_log(
        &self,
        call: &CallHead,
        message: &Bytes,
    ) -> Result<Response<Body>, Status> {
        let request: pb::ReadRequest = decoded_request(message)?;
        for (is_set, field) in [
            (request.from_offset != 0, "from_offset"),
            (request.go_on_at.is_some(), "go_on_at"),
        ] {
            if is_set {
                let message = "belongs to one shard, and a cluster has several: read the log as a \
                               whole, or subscribe to it with after_cursor";
                return Err(InvalidField::new(field, message).into());
            }
        }
        let shards = (0..self.inner.directory.shards()).map(ShardId);
        let reads = shards.map(|shard| ShardRead {
            shard,
            router: self.clone(),
            head: call.read_here(),
            messages: None,
            events: VecDeque::new(),
            has_ended: false,
        });
        let merged = read_merged(reads.collect(), request);
        Ok(streamed(merged))
    }
}

/// An item of one shard.
struct ShardItem {
    shard: ShardId,
    item: Item,
    /// The offset that was sent, or skipped.
    reached: Option<u64>,
}

/// Follows the log of a shard, whichever node owns it.
fn follow(
    router: ShardRouter,
    head: CallHead,
    shard: ShardId,
    request: pb::SubscribeRequest,
    mut after: Option<u64>,
) -> impl Stream<Item = Result<ShardItem, Status>> + Send + 'static {
    async_stream::try_stream! {
        loop {
            let request = pb::SubscribeRequest {
                after_offset: after,
                from_now: request.from_now && after.is_none(),
                ..request.clone()
            };
            let mut call = head.beside(SUBSCRIBE, prefixed(&request));
            let mut messages = AnswerMessages::of(router.serve(&mut call, shard).await?);
            loop {
                let message: pb::SubscribeResponse = match messages.next().await {
                    Ok(Some(message)) => message,
                    Ok(None) | Err(AnswerFault::Broken(_)) => break,
                    // The shard has another owner now.
                    Err(AnswerFault::Refused(status)) if status.code() == Code::Unavailable => break,
                    Err(AnswerFault::Refused(status)) => Err(status)?,
                };
                let Some(item) = message.item else { continue };
                let reached = match &item {
                    Item::Event(event) => event.position,
                    Item::CaughtUp(caught_up) => caught_up.position,
                    Item::Heartbeat(_) => continue,
                    Item::FellBehind(_) => None,
                };
                let reached = reached.map(|position| position.offset);
                after = reached.or(after);
                yield ShardItem { shard, item, reached };
            }
            sleep(ROUTE_PAUSE_MAX).await;
        }
    }
}

/// The subscription to a log of several shards.
struct MergedLog {
    cursor: LogCursor,
    shards: u32,
    /// Shards that the cursor does not name are followed from their start.
    from_start: bool,
    /// The shards that have caught up.
    caught_up: BTreeSet<ShardId>,
    events: u64,
    /// Position of the last event.
    reached: Option<pb::Position>,
}

impl MergedLog {
    fn responses(
        mut self,
        items: impl Stream<Item = Result<ShardItem, Status>> + Send + 'static,
        heartbeat: Duration,
    ) -> impl Stream<Item = Result<pb::SubscribeResponse, Status>> + Send + 'static {
        async_stream::try_stream! {
            let mut items = std::pin::pin!(items);
            let mut silence = Instant::now() + heartbeat;
            loop {
                let item = match timeout_at(silence, items.next()).await {
                    Ok(None) => break,
                    Ok(Some(item)) => {
                        let ShardItem { shard, item, reached } = item?;
                        if let Some(reached) = reached {
                            self.cursor.0.insert(shard, reached);
                        }
                        if let Item::CaughtUp(_) = &item {
                            let is_last = self.caught_up.insert(shard)
                                && self.caught_up.len() == self.shards as usize;
                            // All shards together catch up once.
                            if !is_last {
                                continue;
                            }
                        }
                        item
                    }
                    Err(_silent) => Item::Heartbeat(pb::Heartbeat {
                        position: self.reached,
                        time: Some(timestamp_to_pb(TimestampMicros::now())),
                    }),
                };
                silence = Instant::now() + heartbeat;
                yield self.response(item);
            }
        }
    }

    fn response(&mut self, item: Item) -> pb::SubscribeResponse {
        let has_cursor = match &item {
            Item::Event(event) => {
                self.reached = event.position;
                self.events += 1;
                self.events
                    .is_multiple_of(u64::from(self.shards.div_ceil(CURSOR_SHARDS_MAX)))
            }
            _ => true,
        };
        // Without the position of a shard, the next subscription would begin at its start.
        let is_whole = self.from_start || self.cursor.0.len() == self.shards as usize;
        let cursor = match has_cursor && is_whole {
            true => self.cursor.encode(),
            false => Bytes::new(),
        };
        pb::SubscribeResponse {
            item: Some(item),
            cursor,
        }
    }
}

/// A read of one shard.
struct ShardRead {
    shard: ShardId,
    router: ShardRouter,
    head: CallHead,
    messages: Option<AnswerMessages>,
    events: VecDeque<pb::Event>,
    has_ended: bool,
}

impl ShardRead {
    /// Returns the time of the next event; `None` at the end.
    async fn next_time(&mut self, request: &pb::ReadRequest) -> Result<Option<(i64, i32)>, Status> {
        while self.events.is_empty() && !self.has_ended {
            let messages = match &mut self.messages {
                Some(messages) => messages,
                None => {
                    let mut call = self.head.beside(READ, prefixed(request));
                    let answer = self.router.serve(&mut call, self.shard).await?;
                    self.messages.insert(AnswerMessages::of(answer))
                }
            };
            match messages.next::<pb::ReadResponse>().await? {
                Some(page) if page.stopped_at.is_some() => {
                    let what = "a read of the log with a filter that looks at more than 50,000 \
                                events of a shard";
                    Err(Refusal::not_in_cluster(what))?;
                }
                Some(page) => self.events.extend(page.events),
                None => self.has_ended = true,
            }
        }
        Ok(self.events.front().map(|event| {
            let time = event.recorded_at.unwrap_or_default();
            (time.seconds, time.nanos)
        }))
    }
}

/// Reads all shards, and sends their events in the order of their times. Of equal times, those of
/// the first shard are first.
fn read_merged(
    mut reads: Vec<ShardRead>,
    request: pb::ReadRequest,
) -> impl Stream<Item = Result<pb::ReadResponse, Status>> + Send + 'static {
    async_stream::try_stream! {
        let backward = request.backward;
        // The heap gives the greatest key first.
        let key = |(seconds, nanos): (i64, i32), shard: usize| {
            let time = (i128::from(seconds) << 32) + i128::from(nanos);
            (if backward { time } else { -time }, Reverse(shard))
        };
        let opened = reads.iter_mut().map(|read| read.next_time(&request).boxed());
        let opened: Vec<_> = stream::iter(opened.collect::<Vec<_>>())
            .buffered(SHARDS_ASKED_MAX)
            .try_collect()
            .await?;
        let times = opened.into_iter().enumerate();
        let times = times.filter_map(|(shard, time)| Some(key(time?, shard)));
        let mut order: BinaryHeap<_> = times.collect();
        let mut left = match request.limit {
            0 => u64::MAX,
            limit => limit,
        };
        let (mut page, mut bytes) = (pb::ReadResponse::default(), 0);
        while let Some((_, Reverse(shard))) = order.pop() {
            let Some(event) = reads[shard].events.pop_front() else { continue };
            let size = event.encoded_len();
            if !page.events.is_empty() && bytes + size > READ_MESSAGE_BYTES {
                yield std::mem::take(&mut page);
                bytes = 0;
            }
            bytes += size;
            page.events.push(event);
            left -= 1;
            if left == 0 {
                break;
            }
            let time = reads[shard].next_time(&request).await?;
            order.extend(time.map(|time| key(time, shard)));
        }
        if !page.events.is_empty() {
            yield page;
        }
    }
}
