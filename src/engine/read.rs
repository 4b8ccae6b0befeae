//! Reading stored events: a branch with what it inherits, a conversation, or
//! the whole log.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use futures::{StreamExt, stream::BoxStream};

use super::{
    Engine, Inner,
    error::ReadError,
    history::{ENTRIES_PAGE, History, Segment, stored},
    query::{NamedEvent, ReadQuery, Source},
};
use crate::{
    domain::{BranchId, BranchName, ConversationId, EventKind, Namespace, Revision},
    log::Record,
    views::EventEntry,
};

/// Records of the log read at once, and their bytes.
const LOG_PAGE: usize = 1_024;
const LOG_PAGE_BYTES: usize = 1 << 20;
/// A batch of a read ends once it has this many bytes of bodies.
const BATCH_BYTES: u64 = 1 << 20;

impl Engine {
    /// Reads stored events in batches, in order. The end of a branch or of the
    /// log is where it was when the read began.
    ///
    /// Bounds by revision are those of the conversation itself: what a forked
    /// conversation inherits from another one is read only when `from` is 0.
    pub fn read(&self, query: ReadQuery) -> BoxStream<'static, Result<Vec<NamedEvent>, ReadError>> {
        let inner = Arc::clone(&self.inner);
        async_stream::try_stream! {
            let mut left = query.limit;
            let mut cursor = inner.cursor(&query).inspect_err(|error| inner.noticed(error))?;
            if query.backward {
                // It begins with an end that is not known.
                inner.check_read_whole(&query)?;
            }
            while left > 0 {
                let batch = cursor.next(&inner, &query, left).await;
                let batch = batch.inspect_err(|error| inner.noticed(error))?;
                let Some(events) = batch else {
                    inner.check_read_whole(&query)?;
                    break;
                };
                if !events.is_empty() {
                    left -= events.len() as u64;
                    yield events;
                }
            }
        }
        .boxed()
    }

    /// All events of a read, in one list.
    ///
    /// # Errors
    /// The first error of the read.
    pub async fn read_all(&self, query: ReadQuery) -> Result<Vec<NamedEvent>, ReadError> {
        let mut all = Vec::new();
        let mut batches = self.read(query);
        while let Some(batch) = batches.next().await {
            all.extend(batch?);
        }
        Ok(all)
    }
}

impl Inner {
    fn cursor(&self, query: &ReadQuery) -> Result<Cursor, ReadError> {
        let history = self.history();
        match &query.source {
            Source::Log => {
                let head = self.published.load(std::sync::atomic::Ordering::Acquire);
                let (first, last) = (query.from.max(1), query.to.min(head));
                Ok(Cursor::Log {
                    next: if query.backward { last } else { first },
                    first,
                    last,
                })
            }
            Source::Conversation(id) => {
                let state = self.state(&query.namespace, *id)?;
                let names = state
                    .branches
                    .values()
                    .map(|branch| ((*id, branch.id), branch.name.clone()))
                    .collect();
                let stretch = Stretch {
                    conversation: *id,
                    branch: None,
                    first: Revision(query.from.max(1)),
                    last: Revision(query.to.min(state.row.head.0)),
                };
                Ok(Cursor::Entries(EntryCursor::new(
                    history,
                    names,
                    vec![stretch],
                    query.backward,
                )))
            }
            Source::Branch {
                conversation,
                branch,
            } => {
                let branch = self.branch(&query.namespace, *conversation, branch.as_ref())?;
                let segments = history.lineage(*conversation, &branch)?;
                let names = segments
                    .iter()
                    .map(|s| ((s.conversation, s.branch), s.name.clone()))
                    .collect();
                let stretches = stretches(*conversation, &segments, query);
                Ok(Cursor::Entries(EntryCursor::new(
                    history,
                    names,
                    stretches,
                    query.backward,
                )))
            }
        }
    }
}

/// What a read of a branch goes through, in reading order.
fn stretches(own: ConversationId, segments: &[Segment], query: &ReadQuery) -> Vec<Stretch> {
    let mut stretches: Vec<_> = segments
        .iter()
        .filter_map(|segment| {
            let (mut first, mut last) = (segment.first, segment.last);
            if segment.conversation == own {
                first = first.max(Revision(query.from));
                last = last.min(Revision(query.to));
            } else if query.from > 0 {
                return None;
            }
            (first <= last).then_some(Stretch {
                conversation: segment.conversation,
                branch: Some(segment.branch),
                first,
                last,
            })
        })
        .collect();
    if !query.backward {
        stretches.reverse();
    }
    stretches
}

/// Revisions of a conversation, both ends inclusive; of one branch only, or all.
struct Stretch {
    conversation: ConversationId,
    branch: Option<BranchId>,
    first: Revision,
    last: Revision,
}

type Names = BTreeMap<(ConversationId, BranchId), BranchName>;

enum Cursor {
    Log { next: u64, first: u64, last: u64 },
    Entries(EntryCursor),
}

impl Cursor {
    async fn next(
        &mut self,
        inner: &Inner,
        query: &ReadQuery,
        left: u64,
    ) -> Result<Option<Vec<NamedEvent>>, ReadError> {
        match self {
            Self::Entries(cursor) => cursor.next(query, left).await,
            Self::Log { next, first, last } => {
                if *next < *first || *next > *last {
                    return Ok(None);
                }
                let page = LOG_PAGE as u64;
                let (from, to) = if query.backward {
                    ((*next).saturating_sub(page - 1).max(*first), *next)
                } else {
                    (*next, (*next + page - 1).min(*last))
                };
                let bytes = if query.backward {
                    usize::MAX
                } else {
                    LOG_PAGE_BYTES
                };
                let count = usize::try_from(to - from + 1).unwrap_or(LOG_PAGE);
                let mut records = inner.reader.records(from, count, bytes).await?;
                let Some((end, _)) = records.last() else {
                    return Ok(None);
                };
                *next = if query.backward { from - 1 } else { end + 1 };
                if query.backward {
                    records.reverse();
                }
                let mut events = Vec::new();
                for (offset, record) in records {
                    if (events.len() as u64) < left
                        && record.header.namespace == query.namespace
                        && wanted(record.header.kind, &query.kinds)
                    {
                        let body = body(inner, &record, query.headers_only).await?;
                        events.push(NamedEvent {
                            event: stored(offset, record, body),
                            branch: None,
                        });
                    }
                }
                Ok(Some(events))
            }
        }
    }
}

async fn body(inner: &Inner, record: &Record, headers_only: bool) -> Result<Bytes, ReadError> {
    if headers_only {
        return Ok(Bytes::new());
    }
    Ok(inner.reader.body(record).await?)
}

fn wanted(kind: u16, kinds: &[EventKind]) -> bool {
    kinds.is_empty() || kinds.iter().any(|wanted| wanted.number() == kind)
}

/// Goes through stretches of the event index.
struct EntryCursor {
    history: History,
    names: Names,
    stretches: VecDeque<Stretch>,
    backward: bool,
    waiting: VecDeque<EventEntry>,
}

impl EntryCursor {
    fn new(history: History, names: Names, stretches: Vec<Stretch>, backward: bool) -> Self {
        Self {
            history,
            names,
            stretches: stretches.into(),
            backward,
            waiting: VecDeque::new(),
        }
    }

    async fn next(
        &mut self,
        query: &ReadQuery,
        left: u64,
    ) -> Result<Option<Vec<NamedEvent>>, ReadError> {
        while self.waiting.is_empty() {
            if !self.refill(query)? {
                return Ok(None);
            }
        }
        let take = usize::try_from(left)
            .unwrap_or(usize::MAX)
            .min(self.waiting.len());
        let entries: Vec<_> = self.waiting.drain(..take).collect();
        let mut events = Vec::with_capacity(entries.len());
        let mut bytes = 0;
        let records = self.history.records(&entries).await?;
        for (at, (entry, record)) in entries.iter().zip(records).enumerate() {
            if bytes > BATCH_BYTES {
                entries[at..]
                    .iter()
                    .rev()
                    .for_each(|rest| self.waiting.push_front(*rest));
                break;
            }
            let body = if query.headers_only {
                Bytes::new()
            } else {
                self.history.reader.body(&record).await?
            };
            bytes += body.len() as u64;
            let branch = self.names.get(&(entry.conversation, entry.branch)).cloned();
            events.push(NamedEvent {
                event: stored(entry.offset, record, body),
                branch,
            });
        }
        Ok(Some(events))
    }

    /// Fetches entries of the first stretch; false when all is done.
    fn refill(&mut self, query: &ReadQuery) -> Result<bool, ReadError> {
        let Some(stretch) = self.stretches.front_mut() else {
            return Ok(false);
        };
        let entries = self.history.views.entries(
            stretch.conversation,
            stretch.first,
            stretch.last,
            ENTRIES_PAGE,
            self.backward,
        )?;
        let branch = stretch.branch;
        let done = match entries.last() {
            None => true,
            Some(end) if self.backward => {
                let done = end.revision <= stretch.first;
                stretch.last = Revision(end.revision.0.saturating_sub(1));
                done
            }
            Some(end) => {
                stretch.first = end.revision.next();
                end.revision >= stretch.last
            }
        };
        if done {
            self.stretches.pop_front();
        }
        self.keep(entries, branch, query);
        Ok(true)
    }

    fn keep(&mut self, entries: Vec<EventEntry>, branch: Option<BranchId>, query: &ReadQuery) {
        self.waiting.extend(entries.into_iter().filter(|entry| {
            branch.is_none_or(|branch| branch == entry.branch) && wanted(entry.kind, &query.kinds)
        }));
    }
}

impl Inner {
    /// Names of all branches of a conversation.
    pub(super) fn branch_names(
        &self,
        namespace: &Namespace,
        id: ConversationId,
    ) -> Result<BTreeMap<BranchId, BranchName>, ReadError> {
        let state = self.state(namespace, id)?;
        Ok(state
            .branches
            .values()
            .map(|branch| (branch.id, branch.name.clone()))
            .collect())
    }
}
