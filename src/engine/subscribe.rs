//! Following a source: what is there, then what comes.
//!
//! A subscription pulls: it reads from the log at its reader's own pace and
//! waits when there is nothing more. So nothing is buffered for a slow reader,
//! and a slow reader loses nothing.

use std::sync::{Arc, atomic::Ordering};

use futures::{StreamExt, stream::BoxStream};

use super::{
    Engine, Inner,
    error::ReadError,
    query::{NamedEvent, ReadQuery, Source, StartAfter, SubscribeQuery, Subscribed},
};
use crate::domain::{BranchId, ConversationId, Position, Revision};

/// A reader that has caught up and is then this many log offsets behind is told
/// that it fell behind.
const FELL_BEHIND_OFFSETS: u64 = 10_000;

impl Engine {
    /// Follows a source: its events from the start that was asked for, then
    /// [`Subscribed::CaughtUp`], then each new event as it is appended. The
    /// stream ends with an error only; drop it to stop.
    pub fn subscribe(
        &self,
        query: SubscribeQuery,
    ) -> BoxStream<'static, Result<Subscribed, ReadError>> {
        let inner = Arc::clone(&self.inner);
        let engine = self.clone();
        async_stream::try_stream! {
            let followed = inner.followed(&query)?;
            let mut news = match &followed {
                Followed::Log => inner.news.of_log(),
                Followed::Conversation(id) | Followed::Branch(id, _) => inner.news.of(*id),
            };
            let mut last = match query.start {
                StartAfter::Place(place) => place,
                StartAfter::Now => inner.end_of(&followed)?.1,
            };
            let follower = inner.followers.join(start_of(&followed, &query, &inner));
            let mut caught_up = false;
            let mut told_behind = false;
            loop {
                // Heard before it is looked at: what comes meanwhile is news.
                news.mark_unchanged();
                follower.waits(false);
                let head = inner.published.load(Ordering::Acquire);
                let (source, end) = inner.end_of(&followed)?;
                let mut seen = head;
                let mut batches = engine.read(continuation(&query, source, last, end));
                while let Some(batch) = batches.next().await {
                    for event in batch? {
                        seen = event.event.position.offset;
                        follower.saw(seen);
                        last = followed.place_of(&event).unwrap_or(last);
                        yield Subscribed::Event(Box::new(event));
                    }
                    let now = inner.published.load(Ordering::Acquire);
                    if caught_up && !told_behind && now.saturating_sub(seen) > FELL_BEHIND_OFFSETS {
                        told_behind = true;
                        yield Subscribed::FellBehind(Position::local(now));
                    }
                }
                last = last.max(end);
                if news.has_changed().unwrap_or(false) {
                    continue;
                }
                if !caught_up || told_behind {
                    caught_up = true;
                    told_behind = false;
                    yield Subscribed::CaughtUp(Position::local(head));
                }
                // Nothing more will come of a damaged conversation.
                inner.check_followed_whole(&followed)?;
                follower.waits(true);
                if news.changed().await.is_err() {
                    break;
                }
            }
        }
        .boxed()
    }
}

/// What is followed. A branch is followed by its id: it may be renamed, and
/// another one may become the active one.
enum Followed {
    Log,
    Conversation(ConversationId),
    Branch(ConversationId, BranchId),
}

impl Followed {
    /// Where a subscription goes on after an event; none for an inherited one.
    fn place_of(&self, event: &NamedEvent) -> Option<u64> {
        let header = &event.event.header;
        match self {
            Self::Log => Some(event.event.position.offset),
            Self::Conversation(id) | Self::Branch(id, _) => {
                (header.conversation == *id).then_some(header.revision.0)
            }
        }
    }
}

/// The log offset that a subscription begins after, as far as that is known at once.
fn start_of(followed: &Followed, query: &SubscribeQuery, inner: &Inner) -> u64 {
    match (followed, query.start) {
        (Followed::Log, StartAfter::Place(place)) => place,
        _ => inner.published.load(Ordering::Acquire),
    }
}

/// The part of the source that was not read yet.
fn continuation(query: &SubscribeQuery, source: Source, last: u64, end: u64) -> ReadQuery {
    ReadQuery {
        // 0 reads what a forked conversation inherits, too.
        from: if last == 0 { 0 } else { last + 1 },
        to: end,
        kinds: query.kinds.clone(),
        ..ReadQuery::all(query.namespace.clone(), source)
    }
}

impl Inner {
    fn followed(&self, query: &SubscribeQuery) -> Result<Followed, ReadError> {
        Ok(match &query.source {
            Source::Log => Followed::Log,
            Source::Conversation(id) => Followed::Conversation(self.row(&query.namespace, *id)?.id),
            Source::Branch {
                conversation,
                branch,
            } => {
                let branch = self.branch(&query.namespace, *conversation, branch.as_ref())?;
                Followed::Branch(*conversation, branch.id)
            }
        })
    }

    fn check_followed_whole(&self, followed: &Followed) -> Result<(), ReadError> {
        match followed {
            Followed::Log => Ok(()),
            Followed::Conversation(id) | Followed::Branch(id, _) => {
                self.check_whole(*id, Revision(u64::MAX))
            }
        }
    }

    /// The source as it is now, and its last revision or log offset.
    fn end_of(&self, followed: &Followed) -> Result<(Source, u64), ReadError> {
        Ok(match followed {
            Followed::Log => (Source::Log, self.published.load(Ordering::Acquire)),
            Followed::Conversation(id) => {
                let row = self.views.load().conversation(*id)?;
                (Source::Conversation(*id), row.map_or(0, |row| row.head.0))
            }
            Followed::Branch(id, branch) => {
                let branch = self.history().branch(*id, *branch)?;
                let source = Source::Branch {
                    conversation: *id,
                    branch: Some(branch.name.clone()),
                };
                (source, branch.head.0)
            }
        })
    }
}
