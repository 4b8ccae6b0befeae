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
    query::{ReadQuery, Source, StartAfter, SubscribeQuery, Subscribed},
};
use crate::domain::{Namespace, Position};

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
            let mut news = inner.news.clone();
            let mut last = match query.start {
                StartAfter::Place(place) => place,
                StartAfter::Now => inner.end_of(&query.namespace, &query.source)?,
            };
            let mut caught_up = false;
            let mut told_behind = false;
            loop {
                let head = *news.borrow_and_update();
                let end = inner.end_of(&query.namespace, &query.source)?;
                let mut seen = last.max(1);
                let mut batches = engine.read(continuation(&query, last, end));
                while let Some(batch) = batches.next().await {
                    for event in batch? {
                        seen = event.event.position.offset;
                        last = place_of(&query.source, &event).unwrap_or(last);
                        yield Subscribed::Event(Box::new(event));
                    }
                    let now = inner.published.load(Ordering::Acquire);
                    if caught_up && !told_behind && now.saturating_sub(seen) > FELL_BEHIND_OFFSETS {
                        told_behind = true;
                        yield Subscribed::FellBehind(Position::local(now));
                    }
                }
                last = last.max(end);
                if inner.published.load(Ordering::Acquire) > head {
                    continue;
                }
                if !caught_up || told_behind {
                    caught_up = true;
                    told_behind = false;
                    yield Subscribed::CaughtUp(Position::local(head));
                }
                if news.changed().await.is_err() {
                    break;
                }
            }
        }
        .boxed()
    }
}

/// The part of the source that was not read yet.
fn continuation(query: &SubscribeQuery, last: u64, end: u64) -> ReadQuery {
    ReadQuery {
        // 0 reads what a forked conversation inherits, too.
        from: if last == 0 { 0 } else { last + 1 },
        to: end,
        kinds: query.kinds.clone(),
        ..ReadQuery::all(query.namespace.clone(), query.source.clone())
    }
}

/// Where a subscription goes on after an event; none for an inherited one.
fn place_of(source: &Source, event: &super::query::NamedEvent) -> Option<u64> {
    let header = &event.event.header;
    match source {
        Source::Log => Some(event.event.position.offset),
        Source::Conversation(id)
        | Source::Branch {
            conversation: id, ..
        } => (header.conversation == *id).then_some(header.revision.0),
    }
}

impl Inner {
    /// The last revision or log offset of a source.
    fn end_of(&self, namespace: &Namespace, source: &Source) -> Result<u64, ReadError> {
        match source {
            Source::Log => Ok(self.published.load(Ordering::Acquire)),
            Source::Conversation(id) => Ok(self.row(namespace, *id)?.head.0),
            Source::Branch {
                conversation,
                branch,
            } => Ok(self
                .branch(namespace, *conversation, branch.as_ref())?
                .head
                .0),
        }
    }
}
