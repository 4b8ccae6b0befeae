//! Reads stored events of a branch with its inherited history, of a conversation, or of the whole
//! log.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use futures::{StreamExt, stream::BoxStream};

use super::{
    Engine, Inner, ReadPath,
    error::ReadError,
    history::{ENTRIES_PAGE, History, PAGE_BYTES, Segment, stored},
    query::{EventSource, NamedEvent, ReadFilter, ReadQuery, ReadStop},
    work::{self, PriorityClass},
};
use treering_domain::{
    BranchId, BranchName, ConversationKey, EventRef, Revision, limits::READ_INDEX_ROWS_MAX,
};
use treering_log::{LogError, Record};
use treering_projections::{EventEntry, EventRange, EventTerm};
use treering_proto::tags;

/// Maximum number of log records that are scanned per batch.
const LOG_PAGE: u64 = 1_024;
/// Number of records in the first page of a log read. It is small because a backward read does not
/// know the size of the records in advance, and because it keeps many new reads cheap.
const FIRST_PAGE: u64 = 64;
/// Maximum number of stretches (ranges of revisions) that one page of entries covers.
const STRETCHES_AHEAD: usize = 64;

impl Engine {
    /// Reads stored events in batches, in order, up to the head of the branch or log as of the
    /// start of the read.
    ///
    /// Revision bounds refer to the conversation itself: a fork's events inherited from another
    /// conversation are read only when `from` is 0 or, in a forward read, when `begins_in` is set.
    pub fn read(&self, query: ReadQuery) -> BoxStream<'static, Result<Vec<NamedEvent>, ReadError>> {
        self.read_as(query, |events| events)
    }

    /// Like [`Self::read`], but converts each batch with `make` on the thread that reads it, not on
    /// the threads that serve calls.
    pub fn read_as<T: Send + 'static>(
        &self,
        query: ReadQuery,
        make: impl Fn(Vec<NamedEvent>) -> T + Send + Sync + 'static,
    ) -> BoxStream<'static, Result<T, ReadError>> {
        let inner = Arc::clone(&self.inner);
        let (query, make) = (Arc::new(query), Arc::new(make));
        async_stream::try_stream! {
            let mut reading = ReadState::Begins;
            let mut left = query.limit;
            // Most reads end after one page; longer ones continue at lower priority.
            let mut lane = PriorityClass::Short;
            if query.backward {
                // A backward read begins at the end, which damage may make unreadable.
                inner.reads.check_read_whole(&query)?;
            }
            while left > 0 {
                let page = reading.next(Arc::clone(&inner), Arc::clone(&query), left);
                let make = Arc::clone(&make);
                let page = async move {
                    let (next, events) = page.await;
                    let made = events.map(|page| page.map(|page| (page.len() as u64, make(page))));
                    (next, made)
                };
                let (next, batch) = inner.work.run(lane, Box::pin(page)).await?;
                (reading, lane) = (next, PriorityClass::Bulk);
                let batch = batch.inspect_err(|error| inner.record_damage(error))?;
                let Some((events, made)) = batch else {
                    inner.reads.check_read_whole(&query)?;
                    break;
                };
                if events > 0 {
                    left -= events;
                    yield made;
                }
                if left > 0 && let Some(stop) = reading.stops(&query) {
                    Err(stop)?;
                }
            }
        }
        .boxed()
    }

    /// Returns all events of a read in one list.
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

/// The state of a read between pages.
enum ReadState {
    Begins,
    At(Cursor),
}

impl ReadState {
    /// Reads the next page and returns the state after it.
    async fn next(
        self,
        inner: Arc<Inner>,
        query: Arc<ReadQuery>,
        left: u64,
    ) -> (Self, Result<Option<Vec<NamedEvent>>, ReadError>) {
        let mut cursor = match self {
            Self::At(cursor) => cursor,
            Self::Begins => match inner.reads.cursor(&query) {
                Ok(cursor) => cursor,
                Err(error) => return (Self::Begins, Err(error)),
            },
        };
        let batch = cursor.next(&inner, &query, left).await;
        (Self::At(cursor), batch)
    }
}

impl ReadState {
    /// Returns the error that ends a read which has scanned as many events as allowed.
    fn stops(&self, query: &ReadQuery) -> Option<ReadError> {
        let Self::At(cursor) = self else { return None };
        let (looked_at, at) = match cursor {
            Cursor::Log(cursor) => (cursor.looked_at, cursor.next_at(query.backward)),
            Cursor::Entries(cursor) => (cursor.looked_at, cursor.next_at()),
        };
        let at = at.filter(|_| !query.filter.is_empty() && looked_at >= query.scan_max)?;
        Some(ReadError::ScanBound { looked_at, at })
    }
}

impl ReadPath {
    pub(super) fn cursor(&self, query: &ReadQuery) -> Result<Cursor, ReadError> {
        let mut cursor = self.cursor_of_all(query)?;
        if let Some(stop) = &query.go_on_at {
            cursor.resume_at(stop, query.backward)?;
        }
        Ok(cursor)
    }

    fn cursor_of_all(&self, query: &ReadQuery) -> Result<Cursor, ReadError> {
        let history = self.history();
        match &query.source {
            EventSource::Log => {
                let head = self.published.load(std::sync::atomic::Ordering::Acquire);
                let (first, last) = (query.from.max(1), query.to.min(head));
                Ok(Cursor::Log(LogCursor {
                    first,
                    last,
                    page: FIRST_PAGE,
                    looked_at: 0,
                    history,
                }))
            }
            EventSource::Conversation(id) => {
                let row = self.row(&query.namespace, *id)?;
                // There may be very many branches: look up names on demand.
                let names = Names::new();
                let stretch = RevisionRange {
                    conversation: row.key(),
                    branch: None,
                    first: Revision(query.from.max(1)),
                    last: Revision(query.to.min(row.head.0)),
                };
                Ok(Cursor::Entries(EntryCursor::new(
                    history,
                    names,
                    vec![stretch],
                    query.backward,
                )))
            }
            EventSource::Branch {
                conversation,
                branch,
            } => {
                let branch = self.branch(&query.namespace, *conversation, branch.as_ref())?;
                let own = query.namespace.key(*conversation);
                // Skip segments before the first requested revision: a subscription repeatedly
                // reads the end of its branch.
                let segments = history.lineage_while(own, &branch, |segment| {
                    query.from == 0
                        || query.begins_in.is_some()
                        || segment.conversation != own
                        || segment.first.0 > query.from
                })?;
                let names = segments
                    .iter()
                    .map(|s| ((s.conversation, s.branch), s.name.clone()))
                    .collect();
                let stretches = stretches(own, &segments, query);
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

/// Returns the stretches that a branch read covers, in reading order.
fn stretches(own: ConversationKey, segments: &[Segment], query: &ReadQuery) -> Vec<RevisionRange> {
    let begins_in = query.begins_in.map(|id| own.sibling(id));
    let begins_in = begins_in.filter(|id| *id != own);
    // The bound at which the read begins applies to the segments of the conversation `begins_in`.
    // Segments between that conversation and the branch's own are read whole.
    let begins = begins_in.and_then(|id| segments.iter().position(|of| of.conversation == id));
    let ends = begins_in.and_then(|id| segments.iter().rposition(|of| of.conversation == id));
    let mut stretches: Vec<_> = segments
        .iter()
        .enumerate()
        .filter_map(|(index, segment)| {
            let (mut first, mut last) = (segment.first, segment.last);
            if let (Some(begins), Some(ends)) = (begins, ends) {
                let is_there = (begins..=ends).contains(&index);
                match query.backward {
                    true if index < begins => return None,
                    true if is_there => last = last.min(Revision(query.to)),
                    false if index > ends => return None,
                    false if is_there => first = first.max(Revision(query.from)),
                    _ => {}
                }
                if segment.conversation == own {
                    match query.backward {
                        true => first = first.max(Revision(query.from)),
                        false => last = last.min(Revision(query.to)),
                    }
                } else if query.backward && query.from > 0 {
                    return None;
                }
            } else if begins_in.is_some() {
                return None;
            } else if segment.conversation == own {
                first = first.max(Revision(query.from));
                last = last.min(Revision(query.to));
            } else if query.from > 0 {
                return None;
            }
            (first <= last).then_some(RevisionRange {
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

/// Revisions of a conversation, both ends inclusive, on one branch or on all.
struct RevisionRange {
    conversation: ConversationKey,
    branch: Option<BranchId>,
    first: Revision,
    last: Revision,
}

type Names = BTreeMap<(ConversationKey, BranchId), BranchName>;

pub(super) enum Cursor {
    Log(LogCursor),
    Entries(EntryCursor),
}

impl Cursor {
    /// Skips what an earlier read has scanned.
    fn resume_at(&mut self, stop: &ReadStop, backward: bool) -> Result<(), ReadError> {
        let is_there = match (self, stop) {
            (Self::Log(cursor), ReadStop::Offset(offset)) => {
                let is_there = (cursor.first..=cursor.last).contains(offset);
                match backward {
                    true => cursor.last = *offset,
                    false => cursor.first = *offset,
                }
                is_there
            }
            (Self::Entries(cursor), ReadStop::Event(at)) => cursor.skip_to(at),
            _ => false,
        };
        if is_there {
            return Ok(());
        }
        Err(ReadError::Invalid {
            message:
                "go_on_at does not belong to this read: repeat the same query, with only go_on_at \
                 changed"
                    .to_owned(),
        })
    }

    pub(super) async fn next(
        &mut self,
        inner: &Inner,
        query: &ReadQuery,
        left: u64,
    ) -> Result<Option<Vec<NamedEvent>>, ReadError> {
        match self {
            Self::Entries(cursor) => cursor.next(query, left).await,
            Self::Log(cursor) => cursor.next(inner, query, left).await,
        }
    }
}

/// Scans the log from either end.
pub(super) struct LogCursor {
    /// The offsets still to be read, both inclusive.
    first: u64,
    last: u64,
    /// Maximum number of records in the next page.
    page: u64,
    looked_at: u64,
    history: History,
}

impl LogCursor {
    async fn next(
        &mut self,
        inner: &Inner,
        query: &ReadQuery,
        left: u64,
    ) -> Result<Option<Vec<NamedEvent>>, ReadError> {
        if self.first > self.last {
            return Ok(None);
        }
        let records = if query.backward {
            self.backward(inner).await?
        } else {
            self.forward(inner).await?
        };
        if records.is_empty() {
            return Ok(None);
        }
        let most = usize::try_from(left).unwrap_or(usize::MAX);
        let mut events = Vec::with_capacity(records.len().min(most));
        self.looked_at += records.len() as u64;
        for (offset, record) in records {
            if (events.len() as u64) < left
                && record.header.namespace == query.namespace
                && is_of_kind(record.header.kind, query)
                && matches(&self.history, &record, query)?
            {
                work::check()?;
                let body = body(&self.history, &record, query.headers_only).await?;
                events.push(NamedEvent {
                    event: stored(self.history.reader.position(offset), record, body),
                    branch: None,
                });
            }
        }
        Ok(Some(events))
    }

    fn next_at(&self, backward: bool) -> Option<ReadStop> {
        let next = if backward { self.last } else { self.first };
        (self.first <= self.last).then_some(ReadStop::Offset(next))
    }

    async fn forward(&mut self, inner: &Inner) -> Result<Vec<(u64, Record)>, ReadError> {
        let count = self.page.min(LOG_PAGE).min(self.last - self.first + 1);
        self.page = LOG_PAGE;
        let records = records(self.first, count, |from, count| {
            inner.reads.reader.records_once(from, count, PAGE_BYTES)
        });
        let records = records.await?;
        if let Some((end, _)) = records.last() {
            self.first = end + 1;
        }
        Ok(records)
    }

    /// Returns the last records, newest first. The log can only be read forward. If a page exceeds
    /// the byte limit, its oldest records are left for the next page.
    async fn backward(&mut self, inner: &Inner) -> Result<Vec<(u64, Record)>, ReadError> {
        let count = self.page.clamp(1, LOG_PAGE).min(self.last - self.first + 1);
        let mut from = self.last - count + 1;
        loop {
            work::check()?;
            // Use the frame cache: the page read before this one may begin in the frame in which
            // this page ends.
            let records = records(from, self.last - from + 1, |from, count| {
                inner.reads.reader.records(from, count, PAGE_BYTES)
            });
            let mut records = records.await?;
            let Some((end, _)) = records.last() else {
                return Err(LogError::NotFound { offset: from }.into());
            };
            if *end < self.last {
                from = end + 1;
                continue;
            }
            let fitted = self.last - from + 1;
            self.page = if fitted == count { count * 2 } else { fitted };
            if from == self.first {
                // Nothing is left; offset 0 does not exist.
                (self.first, self.last) = (1, 0);
            } else {
                self.last = from - 1;
            }
            records.reverse();
            return Ok(records);
        }
    }
}

/// Reads `count` records of the log, or as many as fit a page's bytes.
async fn records<R>(
    from: u64,
    count: u64,
    read: impl Fn(u64, usize) -> R,
) -> Result<Vec<(u64, Record)>, ReadError>
where
    R: Future<Output = Result<Vec<(u64, Record)>, LogError>>,
{
    let mut count = usize::try_from(count).unwrap_or(usize::MAX);
    loop {
        match read(from, count).await {
            // First return the records before the damage.
            Err(LogError::Damaged { offset, .. })
                if offset > from && offset - from < count as u64 =>
            {
                count = usize::try_from(offset - from).unwrap_or(count - 1);
            }
            read => return Ok(read?),
        }
    }
}

async fn body(history: &History, record: &Record, headers_only: bool) -> Result<Bytes, ReadError> {
    if headers_only {
        return history.found_by(record);
    }
    Ok(history.reader.body(record).await?)
}

fn is_of_kind(kind: u16, query: &ReadQuery) -> bool {
    let kinds = &query.kinds;
    (kinds.is_empty() || kinds.iter().any(|wanted| wanted.number() == kind))
        && query.filter.takes_kind(kind)
}

/// Returns whether an event of a requested kind matches the rest of the filter, without reading a
/// large body.
fn matches(history: &History, record: &Record, query: &ReadQuery) -> Result<bool, ReadError> {
    let filter = &query.filter;
    if !filter.takes_header(&record.header) {
        return Ok(false);
    }
    if !filter.asks_for_tags() {
        return Ok(true);
    }
    // A stub has no tags.
    if record.is_erased() {
        return Ok(false);
    }
    let (tags, body) = tags::split(&history.found_by(record)?);
    let type_name = tags::type_name(record.header.kind, &body);
    Ok(filter.takes_tags(&type_name, &tags))
}

/// Returns the part of a filter that the index can answer.
fn finding(filter: &ReadFilter) -> Option<EventTerm<'_>> {
    match (&filter.key, filter.types.as_slice()) {
        (Some(key), _) if !key.is_empty() => Some(EventTerm::Key(key)),
        (_, [type_name]) => Some(EventTerm::Type(type_name)),
        _ if !filter.key_prefix.is_empty() => Some(EventTerm::KeyFrom(&filter.key_prefix)),
        _ => None,
    }
}

/// Reads stretches through the event index.
pub(super) struct EntryCursor {
    history: History,
    names: Names,
    stretches: VecDeque<RevisionRange>,
    backward: bool,
    waiting: VecDeque<EventEntry>,
    page: Option<Page>,
    looked_at: u64,
    /// The index would have to read too many rows.
    is_unindexed: bool,
}

/// A page of entries of a conversation, on any branch, ordered by revision. A chain of forks takes
/// a few entries from each branch, so one page can serve many stretches.
struct Page {
    conversation: ConversationKey,
    first: Revision,
    last: Revision,
    entries: Vec<EventEntry>,
}

impl Page {
    fn covers(&self, conversation: ConversationKey, revision: Revision) -> bool {
        self.conversation == conversation && (self.first..=self.last).contains(&revision)
    }

    fn between(&self, first: Revision, last: Revision) -> &[EventEntry] {
        let from = self.entries.partition_point(|entry| entry.revision < first);
        let to = self.entries.partition_point(|entry| entry.revision <= last);
        &self.entries[from..to.max(from)]
    }
}

impl EntryCursor {
    fn new(history: History, names: Names, stretches: Vec<RevisionRange>, backward: bool) -> Self {
        Self {
            history,
            names,
            stretches: stretches.into(),
            backward,
            waiting: VecDeque::new(),
            page: None,
            looked_at: 0,
            is_unindexed: false,
        }
    }

    /// Skips the events before `at`; returns false if `at` is not part of the read.
    fn skip_to(&mut self, at: &EventRef) -> bool {
        let has = |stretch: &RevisionRange| {
            stretch.conversation.id == at.conversation
                && (stretch.first..=stretch.last).contains(&at.revision)
        };
        let Some(index) = self.stretches.iter().position(has) else {
            return false;
        };
        self.stretches.drain(..index);
        if let Some(stretch) = self.stretches.front_mut() {
            match self.backward {
                true => stretch.last = at.revision,
                false => stretch.first = at.revision,
            }
        }
        true
    }

    /// Returns the event that is scanned next.
    fn next_at(&self) -> Option<ReadStop> {
        let waiting = self.waiting.front();
        let waiting = waiting.map(|entry| (entry.conversation, entry.revision));
        let stretch = self.stretches.front();
        let next = waiting.or(stretch.map(|stretch| (stretch.conversation, self.next_of(stretch))));
        next.map(|(conversation, revision)| {
            ReadStop::Event(EventRef {
                conversation: conversation.id,
                revision,
            })
        })
    }

    async fn next(
        &mut self,
        query: &ReadQuery,
        left: u64,
    ) -> Result<Option<Vec<NamedEvent>>, ReadError> {
        // Without an index few events may pass the filter, so read full pages.
        let most = match query.filter.is_empty() || finding(&query.filter).is_some() {
            true => left,
            false => u64::MAX,
        };
        let most = usize::try_from(most)
            .unwrap_or(usize::MAX)
            .min(ENTRIES_PAGE);
        self.fill(query, most)?;
        if self.waiting.is_empty() {
            return Ok(None);
        }
        let entries: Vec<_> = self.waiting.iter().take(most).copied().collect();
        let records = self
            .history
            .records(&query.namespace, &entries, PAGE_BYTES)
            .await?;
        self.waiting.drain(..records.len());
        let mut events = Vec::with_capacity(records.len());
        self.looked_at += records.len() as u64;
        for (entry, record) in entries.iter().zip(records) {
            work::check()?;
            if events.len() as u64 >= left {
                break;
            }
            if !matches(&self.history, &record, query)? {
                continue;
            }
            let body = body(&self.history, &record, query.headers_only).await?;
            let branch = self.name_of(entry.conversation, entry.branch)?;
            events.push(NamedEvent {
                event: stored(self.history.reader.position(entry.offset), record, body),
                branch,
            });
        }
        Ok(Some(events))
    }

    fn name_of(
        &mut self,
        conversation: ConversationKey,
        branch: BranchId,
    ) -> Result<Option<BranchName>, ReadError> {
        if let Some(name) = self.names.get(&(conversation, branch)) {
            return Ok(Some(name.clone()));
        }
        let name = self.history.branch_name(conversation, branch)?;
        self.names.insert((conversation, branch), name.clone());
        Ok(Some(name))
    }

    /// Fetches entries until there are `most`, or until there are some and the next ones need
    /// another look-up.
    fn fill(&mut self, query: &ReadQuery, most: usize) -> Result<(), ReadError> {
        if let Some(by) = finding(&query.filter) {
            self.find(query, by, most)?;
        }
        while self.waiting.len() < most {
            work::check()?;
            let Some(stretch) = self.stretches.front() else {
                break;
            };
            let next = self.next_of(stretch);
            let page = self.page.take();
            let page = match page.filter(|page| page.covers(stretch.conversation, next)) {
                Some(page) => page,
                None if self.waiting.is_empty() => self.fetch(stretch.conversation, next)?,
                None => break,
            };
            self.take_from(&page, query);
            self.page = Some(page);
        }
        Ok(())
    }

    /// Fetches entries from the index, unless that would read too many rows.
    fn find(&mut self, query: &ReadQuery, by: EventTerm<'_>, most: usize) -> Result<(), ReadError> {
        while !self.is_unindexed && self.waiting.len() < most {
            work::check()?;
            let Some(stretch) = self.stretches.front_mut() else {
                break;
            };
            let within = EventRange {
                conversation: stretch.conversation,
                branch: stretch.branch,
                first: stretch.first,
                last: stretch.last,
            };
            let bounds = (most, READ_INDEX_ROWS_MAX);
            let projections = &self.history.projections;
            let Some(found) = projections.find_events(&within, by, bounds, self.backward)? else {
                self.is_unindexed = true;
                break;
            };
            match found.entries.last() {
                Some(last) if !found.is_all && self.backward => {
                    stretch.last = Revision(last.revision.0.saturating_sub(1));
                }
                Some(last) if !found.is_all => stretch.first = last.revision.next(),
                _ => {
                    self.stretches.pop_front();
                }
            }
            let entries = found.entries.into_iter();
            self.waiting
                .extend(entries.filter(|entry| is_of_kind(entry.kind, query)));
        }
        Ok(())
    }

    /// Returns the revision at which a stretch continues.
    fn next_of(&self, stretch: &RevisionRange) -> Revision {
        if self.backward {
            stretch.last
        } else {
            stretch.first
        }
    }

    /// Reads a page of entries for the first stretches of this conversation.
    fn fetch(&self, conversation: ConversationKey, next: Revision) -> Result<Page, ReadError> {
        let ahead = self.stretches.iter().take(STRETCHES_AHEAD);
        let ahead = ahead.take_while(|stretch| stretch.conversation == conversation);
        let end = match self.backward {
            false => ahead.map(|stretch| stretch.last).max(),
            true => ahead.map(|stretch| stretch.first).min(),
        };
        let end = end.unwrap_or(next);
        let (first, last) = if self.backward {
            (end, next)
        } else {
            (next, end)
        };
        let projections = &self.history.projections;
        let mut entries =
            projections.entries(conversation, first, last, ENTRIES_PAGE, self.backward)?;
        let mut page = Page {
            conversation,
            first,
            last,
            entries: Vec::new(),
        };
        if let (true, Some(end)) = (entries.len() == ENTRIES_PAGE, entries.last()) {
            if self.backward {
                page.first = end.revision;
            } else {
                page.last = end.revision;
            }
        }
        if self.backward {
            entries.reverse();
        }
        page.entries = entries;
        Ok(page)
    }

    /// Moves the entries of the first stretch from a page to the queue.
    fn take_from(&mut self, page: &Page, query: &ReadQuery) {
        let Some(stretch) = self.stretches.front_mut() else {
            return;
        };
        let (first, last) = (stretch.first.max(page.first), stretch.last.min(page.last));
        let branch = stretch.branch;
        let done = if self.backward {
            stretch.last = Revision(first.0.saturating_sub(1));
            stretch.last < stretch.first
        } else {
            stretch.first = last.next();
            stretch.last < stretch.first
        };
        if done {
            self.stretches.pop_front();
        }
        let found = page.between(first, last).iter().filter(|entry| {
            branch.is_none_or(|branch| branch == entry.branch) && is_of_kind(entry.kind, query)
        });
        if self.backward {
            self.waiting.extend(found.rev());
        } else {
            self.waiting.extend(found);
        }
    }
}
