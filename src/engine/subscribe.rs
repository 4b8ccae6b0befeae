//! Subscriptions: existing events of a source, then new ones.
//!
//! A subscription pulls: it reads from the log at its reader's pace and waits when there is nothing
//! more. Nothing is buffered for a slow reader, and a slow reader loses nothing.

use std::sync::{Arc, atomic::Ordering};

use futures::{StreamExt, stream::BoxStream};

use super::{
    Engine, Inner, ReadPath,
    error::ReadError,
    query::{EventSource, NamedEvent, ReadQuery, StartAfter, SubscribeQuery, SubscriptionItem},
};
use treering_domain::{BranchId, ConversationKey, Revision};

/// A caught-up reader that falls this many log offsets behind is notified.
const FELL_BEHIND_OFFSETS: u64 = 10_000;

impl Engine {
    /// Follows a source: its events from the requested start, then [`SubscriptionItem::CaughtUp`],
    /// then each new event as it is appended. The stream ends only with an error; drop it to stop.
    pub fn subscribe(
        &self,
        query: SubscribeQuery,
    ) -> BoxStream<'static, Result<SubscriptionItem, ReadError>> {
        let inner = Arc::clone(&self.inner);
        let engine = self.clone();
        async_stream::try_stream! {
            let followed = inner.reads.followed(&query)?;
            let mut news = match &followed {
                FollowedSource::Log => inner.appends.news.of_log(),
                FollowedSource::Conversation(id) | FollowedSource::Branch(id, _) => inner.appends.news.of(*id),
            };
            let mut last = match query.start {
                StartAfter::Place(place) => place,
                StartAfter::Now => inner.reads.end_of(&followed)?.1,
            };
            let follower = inner.appends.followers.join(start_of(&followed, &query, &inner));
            let mut caught_up = false;
            let mut told_behind = false;
            loop {
                // Mark before reading, so that events that arrive during the read count as news.
                news.mark_unchanged();
                follower.record_waiting(false);
                let head = inner.reads.published.load(Ordering::Acquire);
                let (source, end) = inner.reads.end_of(&followed)?;
                let mut seen = head;
                let mut batches = engine.read(continuation(&query, source, last, end));
                while let Some(batch) = batches.next().await {
                    for event in batch? {
                        seen = event.event.position.offset;
                        follower.record_delivery(seen);
                        last = followed.place_of(&event).unwrap_or(last);
                        yield SubscriptionItem::Event(Box::new(event));
                    }
                    let now = inner.reads.published.load(Ordering::Acquire);
                    if caught_up && !told_behind && now.saturating_sub(seen) > FELL_BEHIND_OFFSETS {
                        told_behind = true;
                        yield SubscriptionItem::FellBehind(inner.reads.reader.position(now));
                    }
                }
                last = last.max(end);
                if news.has_changed().unwrap_or(false) {
                    continue;
                }
                if !caught_up || told_behind {
                    caught_up = true;
                    told_behind = false;
                    yield SubscriptionItem::CaughtUp(inner.reads.reader.position(head));
                }
                // A damaged conversation gets no more events.
                inner.reads.check_followed_whole(&followed)?;
                follower.record_waiting(true);
                if news.changed().await.is_err() {
                    break;
                }
            }
        }
        .boxed()
    }
}

/// The followed source. A branch is followed by id, because it may be renamed and another one may
/// become active.
enum FollowedSource {
    Log,
    Conversation(ConversationKey),
    Branch(ConversationKey, BranchId),
}

impl FollowedSource {
    /// Returns where a subscription continues after an event; `None` for an inherited event.
    fn place_of(&self, event: &NamedEvent) -> Option<u64> {
        let header = &event.event.header;
        match self {
            Self::Log => Some(event.event.position.offset),
            Self::Conversation(id) | Self::Branch(id, _) => {
                (header.key() == *id).then_some(header.revision.0)
            }
        }
    }
}

/// Returns the log offset from which the lag of a subscription is measured: the requested start in
/// the log; for other sources, the published head.
fn start_of(followed: &FollowedSource, query: &SubscribeQuery, inner: &Inner) -> u64 {
    match (followed, query.start) {
        (FollowedSource::Log, StartAfter::Place(place)) => place,
        _ => inner.reads.published.load(Ordering::Acquire),
    }
}

/// Returns the part of the source that was not read yet.
fn continuation(query: &SubscribeQuery, source: EventSource, last: u64, end: u64) -> ReadQuery {
    ReadQuery {
        // 0 also reads the history that a fork inherits from another conversation.
        from: if last == 0 { 0 } else { last + 1 },
        to: end,
        kinds: query.kinds.clone(),
        ..ReadQuery::all(query.namespace.clone(), source)
    }
}

impl ReadPath {
    fn followed(&self, query: &SubscribeQuery) -> Result<FollowedSource, ReadError> {
        Ok(match &query.source {
            EventSource::Log => FollowedSource::Log,
            EventSource::Conversation(id) => {
                FollowedSource::Conversation(self.row(&query.namespace, *id)?.key())
            }
            EventSource::Branch {
                conversation,
                branch,
            } => {
                let branch = self.branch(&query.namespace, *conversation, branch.as_ref())?;
                FollowedSource::Branch(query.namespace.key(*conversation), branch.id)
            }
        })
    }

    fn check_followed_whole(&self, followed: &FollowedSource) -> Result<(), ReadError> {
        match followed {
            FollowedSource::Log => Ok(()),
            FollowedSource::Conversation(id) | FollowedSource::Branch(id, _) => {
                self.check_whole(*id, Revision(u64::MAX))
            }
        }
    }

    /// Returns the source as it is now, and its last revision or log offset.
    fn end_of(&self, followed: &FollowedSource) -> Result<(EventSource, u64), ReadError> {
        Ok(match followed {
            FollowedSource::Log => (EventSource::Log, self.published.load(Ordering::Acquire)),
            FollowedSource::Conversation(id) => {
                let row = self.projections.load().conversation(*id)?;
                (
                    EventSource::Conversation(id.id),
                    row.map_or(0, |row| row.head.0),
                )
            }
            FollowedSource::Branch(id, branch) => {
                let branch = self.history().branch(*id, *branch)?;
                let source = EventSource::Branch {
                    conversation: id.id,
                    branch: Some(branch.name.clone()),
                };
                (source, branch.head.0)
            }
        })
    }
}
