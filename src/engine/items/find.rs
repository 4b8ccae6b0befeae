//! Finding items by name, under a path, by conditions on their values, and by a query.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;

use super::{
    ItemName, ItemSearch, ItemsError, PathsQuery, RememberedItem, items_conversation, json_of,
    name, stored::ItemMetadata,
};
use crate::{
    Engine, Inner, ReadPath,
    error::ReadError,
    history::History,
    lookup::record_of,
    meaning::SearchBy,
    search_query::{ConversationFilters, SearchRequest},
    work::{self, PriorityClass},
};
use treering_domain::{
    BranchId, BranchName, ConversationId, ConversationKey, EventBody, EventKind, JsonText,
    Namespace, Revision, TimestampMicros,
    limits::{ITEM_PATHS_DEFAULT, ITEM_SEARCH_DEFAULT, ITEMS_INDEX_WAIT_MAX, ITEMS_LOOKED_AT_MAX},
};
use treering_log::Record;
use treering_projections::{EventEntry, EventRange, EventTerm, KeyAfter};
use treering_proto as codec;
use treering_search::{DuplicateHandling, MEANING_HITS_MAX};

/// Number of hits per index query.
const HITS_PAGE: usize = 100;
/// Maximum number of hits that a search examines; they include outdated values and items that the
/// filter rejects.
const HITS_MAX: usize = 2_000;
/// Number of keys per look-up.
const KEYS_PAGE: usize = 512;

/// An item that was found, with its value.
#[derive(Clone, Debug)]
pub(super) struct FoundItem {
    pub(crate) kept: ItemMetadata,
    /// `None` if the answer has no room for it.
    pub(crate) value: Option<Bytes>,
    pub(crate) text: String,
    pub(crate) score: Option<f32>,
}

impl FoundItem {
    /// Converts to the public form.
    pub(crate) fn item(&self, name: &ItemName) -> RememberedItem {
        RememberedItem {
            name: name.clone(),
            value: self.value.clone().map(JsonText::from_checked),
            created_at: self.kept.created_at,
            updated_at: self.kept.updated_at,
            expires_at: self.kept.expires_at,
            at: self.kept.at,
            score: self.score,
        }
    }
}

/// Space for values in an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnswerSpace {
    bytes_left: usize,
    is_empty: bool,
}

impl AnswerSpace {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            bytes_left: bytes_max,
            is_empty: true,
        }
    }

    /// Returns whether a value still fits, and counts it if so. The first value always fits.
    pub(crate) fn takes(&mut self, bytes: usize) -> bool {
        if bytes > self.bytes_left && !self.is_empty {
            return false;
        }
        self.bytes_left = self.bytes_left.saturating_sub(bytes);
        self.is_empty = false;
        true
    }
}

/// The newest event with a key.
#[derive(Clone, Debug)]
struct Newest {
    name: ItemName,
    entry: EventEntry,
}

impl Engine {
    /// Returns an item with its value, if it exists.
    pub(super) async fn item(
        &self,
        namespace: &Namespace,
        name: &ItemName,
        now: TimestampMicros,
    ) -> Result<Option<FoundItem>, ItemsError> {
        let (namespace, name) = (namespace.clone(), name.clone());
        let read = |engine: Self| async move {
            let inner = &engine.inner;
            let newest = inner.reads.newest_of_item(&namespace, &name).await?;
            match newest.filter(|(_, kept)| kept.is_live(now)) {
                Some((record, kept)) => inner.reads.read_value(&record, kept).await.map(Some),
                None => Ok(None),
            }
        };
        Ok(self.on(PriorityClass::Short, read).await?)
    }

    /// Returns the name of the branch that holds the items; `None` if their conversation does not
    /// exist yet.
    pub(super) async fn first_branch(
        &self,
        namespace: &Namespace,
        id: ConversationId,
    ) -> Result<Option<BranchName>, ItemsError> {
        let namespace = namespace.clone();
        let read = |engine: Self| async move {
            let inner = &engine.inner;
            match inner.reads.find_row(&namespace, id)? {
                Some(_) => inner
                    .reads
                    .history()
                    .branch_name(namespace.key(id), BranchId::MAIN)
                    .map(Some),
                None => Ok::<_, ReadError>(None),
            }
        };
        Ok(self.on(PriorityClass::Short, read).await?)
    }

    /// Searches for items; true means that the scan limit was reached and there may be more.
    pub(super) async fn search_items(
        &self,
        namespace: &Namespace,
        search: &ItemSearch,
        now: TimestampMicros,
        room: &mut AnswerSpace,
    ) -> Result<(Vec<(ItemName, FoundItem)>, bool), ItemsError> {
        let id = items_conversation(namespace);
        if self.inner.reads.find_row(namespace, id)?.is_none() {
            return Ok((Vec::new(), false));
        }
        if !search.query.is_empty() {
            return self.search_query(namespace, search, now, room).await;
        }
        let (namespace, search) = (namespace.clone(), search.clone());
        let mut page = Page::of(&search, *room);
        let read = |engine: Self| async move {
            let inner = &engine.inner;
            let history = inner.reads.history();
            let beginning = name::beginning(&search.under).unwrap_or_default();
            let most = ITEMS_LOOKED_AT_MAX;
            let (mut all, is_partial) =
                inner
                    .reads
                    .newest_under(&history, namespace.key(id), &beginning, most)?;
            all.sort_unstable_by_key(|newest| std::cmp::Reverse(newest.entry.offset));
            for newest in all {
                work::check()?;
                if page.is_full() {
                    break;
                }
                let record = record_of(&history, &namespace, &newest.entry).await?;
                page.look_at(inner, &search, newest.name, record, now)
                    .await?;
            }
            Ok::<_, ReadError>((page, is_partial))
        };
        let (page, is_partial) = self.on(PriorityClass::Long, read).await?;
        *room = page.room;
        Ok((page.found, is_partial))
    }

    async fn search_query(
        &self,
        namespace: &Namespace,
        search: &ItemSearch,
        now: TimestampMicros,
        room: &mut AnswerSpace,
    ) -> Result<(Vec<(ItemName, FoundItem)>, bool), ItemsError> {
        let mut page = Page::of(search, *room);
        let mut request = SearchRequest::new(namespace.clone(), search.query.clone(), HITS_PAGE);
        request.within = ConversationFilters::only(items_conversation(namespace));
        request.filters.kinds = vec![EventKind::Custom];
        request.by = search.by;
        request.copies = DuplicateHandling::Each;
        // A caller must find items that it has just put.
        request.at_least = Some(self.published());
        request.wait_max = Some(ITEMS_INDEX_WAIT_MAX);
        let hits_max = match search.by {
            SearchBy::Words => HITS_MAX,
            SearchBy::Meaning | SearchBy::Both => HITS_MAX.min(MEANING_HITS_MAX),
        };
        let mut is_partial = true;
        'looking: while request.offset < hits_max {
            let answer = self.search(request.clone()).await?;
            let count = answer.hits.len();
            for hit in answer.hits {
                if page.is_full() {
                    is_partial = false;
                    break 'looking;
                }
                let (namespace, asked) = (namespace.clone(), search.clone());
                let (id, revision) = (hit.found.conversation, hit.found.revision);
                let read = |engine: Self| async move {
                    let inner = &engine.inner;
                    let newest = inner.reads.still_newest(&namespace, id, revision).await?;
                    let Some((name, record)) = newest else {
                        return Ok((page, None));
                    };
                    let before = page.found.len();
                    page.look_at(inner, &asked, name, record, now).await?;
                    let last = (page.found.len() > before).then_some(before);
                    Ok::<_, ReadError>((page, last))
                };
                let (looked, added) = self.on(PriorityClass::Short, read).await?;
                page = looked;
                if let Some((_, found)) = added.and_then(|at| page.found.get_mut(at)) {
                    found.score = Some(hit.found.score);
                }
            }
            if count < HITS_PAGE {
                is_partial = false;
                break;
            }
            request.offset += HITS_PAGE;
        }
        *room = page.room;
        Ok((page.found, is_partial))
    }

    /// Lists paths that have items; true means that the scan limit was reached and there may be
    /// more.
    pub(super) async fn paths_of_items(
        &self,
        namespace: &Namespace,
        query: &PathsQuery,
        now: TimestampMicros,
    ) -> Result<(Vec<Vec<String>>, bool), ItemsError> {
        let (namespace, query) = (namespace.clone(), query.clone());
        let read = |engine: Self| async move {
            let history = engine.inner.reads.history();
            let mut paths = Paths {
                query: &query,
                found: BTreeSet::new(),
                looked_at: 0,
            };
            let id = items_conversation(&namespace);
            let is_partial = match engine.inner.reads.find_row(&namespace, id)? {
                Some(_) => paths.look_through(&history, &namespace, id, now).await?,
                None => false,
            };
            let limit = match query.limit {
                0 => ITEM_PATHS_DEFAULT,
                limit => limit,
            };
            let paths = paths.found.into_iter().skip(query.offset).take(limit);
            Ok::<_, ReadError>((paths.collect(), is_partial))
        };
        Ok(self.on(PriorityClass::Long, read).await?)
    }
}

/// The results that a search collects.
struct Page {
    skip: usize,
    limit: usize,
    room: AnswerSpace,
    found: Vec<(ItemName, FoundItem)>,
}

impl Page {
    fn of(search: &ItemSearch, room: AnswerSpace) -> Self {
        Self {
            skip: search.offset,
            limit: match search.limit {
                0 => ITEM_SEARCH_DEFAULT,
                limit => limit,
            },
            room,
            found: Vec::new(),
        }
    }

    fn is_full(&self) -> bool {
        self.found.len() >= self.limit
    }

    /// Adds an item if it is live and matches.
    async fn look_at(
        &mut self,
        inner: &Arc<Inner>,
        search: &ItemSearch,
        name: ItemName,
        record: Record,
        now: TimestampMicros,
    ) -> Result<(), ReadError> {
        let is_under = name.path.starts_with(&search.under);
        let kept = ItemMetadata::of(&record, &inner.reads.history().found_by(&record)?);
        let Some(kept) = kept.filter(|kept| is_under && kept.is_live(now)) else {
            return Ok(());
        };
        let skipped = search.filter.is_empty() && self.skip > 0;
        if !skipped {
            let mut found = inner.reads.read_value(&record, kept).await?;
            if !fits(search, found.value.as_ref()) {
                return Ok(());
            }
            if self.skip == 0 {
                // Do not keep a value that does not fit.
                let room = &mut self.room;
                found.value = found.value.filter(|value| room.takes(value.len()));
                found.text = String::new();
                self.found.push((name, found));
                return Ok(());
            }
        }
        self.skip -= 1;
        Ok(())
    }
}

fn fits(search: &ItemSearch, value: Option<&Bytes>) -> bool {
    if search.filter.is_empty() {
        return true;
    }
    let value = value.and_then(json_of);
    value.is_some_and(|value| search.filter.iter().all(|condition| condition.fits(&value)))
}

/// The paths found while keys are scanned in order.
struct Paths<'a> {
    query: &'a PathsQuery,
    found: BTreeSet<Vec<String>>,
    looked_at: usize,
}

impl Paths<'_> {
    async fn look_through(
        &mut self,
        history: &History,
        namespace: &Namespace,
        id: ConversationId,
        now: TimestampMicros,
    ) -> Result<bool, ReadError> {
        let mut after = KeyAfter::Nothing;
        loop {
            work::check()?;
            if self.looked_at >= ITEMS_LOOKED_AT_MAX {
                return Ok(true);
            }
            let page = history.projections.newest_by_key(
                namespace.key(id),
                BranchId::MAIN,
                "",
                &after,
                1,
            )?;
            let Some((key, entry)) = page.into_iter().next() else {
                return Ok(false);
            };
            self.looked_at += 1;
            after = match ItemName::of_event_key(&key) {
                Some(name) => self.look_at(history, namespace, name, &entry, now).await?,
                None => None,
            }
            .unwrap_or(KeyAfter::Key(key));
        }
    }

    /// Examines an item; returns the keys to skip because they are under a path already found.
    async fn look_at(
        &mut self,
        history: &History,
        namespace: &Namespace,
        name: ItemName,
        entry: &EventEntry,
        now: TimestampMicros,
    ) -> Result<Option<KeyAfter>, ReadError> {
        let depth = match self.query.depth_max {
            0 => name.path.len(),
            depth => depth.min(name.path.len()),
        };
        let cut = name.path[..depth].to_vec();
        let fits = self.query.matches.iter().all(|at| at.fits(&name.path));
        if fits && !self.found.contains(&cut) {
            let record = record_of(history, namespace, entry).await?;
            let kept = ItemMetadata::of(&record, &history.found_by(&record)?);
            if kept.is_some_and(|kept| kept.is_live(now)) {
                self.found.insert(cut.clone());
            }
        }
        // All items under the found path are truncated to that path.
        let is_done = depth == self.query.depth_max && self.found.contains(&cut);
        let passed = is_done.then(|| name::beginning(&cut).ok()).flatten();
        Ok(passed.map(KeyAfter::Beginning))
    }
}

impl ReadPath {
    /// Returns the newest event of an item, if it is a put.
    pub(super) async fn newest_of_item(
        &self,
        namespace: &Namespace,
        name: &ItemName,
    ) -> Result<Option<(Record, ItemMetadata)>, ReadError> {
        let Ok(key) = name.event_key() else {
            return Ok(None);
        };
        let Some(row) = self.find_row(namespace, items_conversation(namespace))? else {
            return Ok(None);
        };
        let id = row.key();
        self.check_whole(id, Revision(u64::MAX))?;
        let history = self.history();
        let within = own_events(id);
        let Some(entry) = history
            .projections
            .latest_event(&within, EventTerm::Key(&key))?
        else {
            return Ok(None);
        };
        let record = record_of(&history, namespace, &entry).await?;
        let kept = ItemMetadata::of(&record, &history.found_by(&record)?);
        Ok(kept.map(|kept| (record, kept)))
    }

    /// Returns the item that an event puts, if the event is the item's newest.
    async fn still_newest(
        &self,
        namespace: &Namespace,
        id: ConversationId,
        revision: Revision,
    ) -> Result<Option<(ItemName, Record)>, ReadError> {
        let history = self.history();
        let id = namespace.key(id);
        let Some(entry) = history.projections.entry(id, revision)? else {
            return Ok(None);
        };
        let record = record_of(&history, namespace, &entry).await?;
        let key = codec::tags::of(&history.found_by(&record)?).key;
        let newest = history
            .projections
            .latest_event(&own_events(id), EventTerm::Key(&key))?;
        let is_newest = newest.is_some_and(|newest| newest.revision == revision);
        let name = ItemName::of_event_key(&key).filter(|_| is_newest);
        Ok(name.map(|name| (name, record)))
    }

    /// Returns the newest event of each item whose key has this prefix; true if there are more.
    fn newest_under(
        &self,
        history: &History,
        id: ConversationKey,
        beginning: &str,
        items_max: usize,
    ) -> Result<(Vec<Newest>, bool), ReadError> {
        self.check_whole(id, Revision(u64::MAX))?;
        let (mut all, mut looked_at) = (Vec::new(), 0);
        let mut after = KeyAfter::Nothing;
        while looked_at < items_max {
            work::check()?;
            let most = KEYS_PAGE.min(items_max - looked_at);
            let projections = &history.projections;
            let page = projections.newest_by_key(id, BranchId::MAIN, beginning, &after, most)?;
            looked_at += page.len();
            let is_last = page.len() < most;
            if let Some((key, _)) = page.last() {
                after = KeyAfter::Key(key.clone());
            }
            for (key, entry) in page {
                if let Some(name) = ItemName::of_event_key(&key) {
                    all.push(Newest { name, entry });
                }
            }
            if is_last {
                return Ok((all, false));
            }
        }
        Ok((all, true))
    }

    /// Reads an item's value.
    async fn read_value(
        &self,
        record: &Record,
        kept: ItemMetadata,
    ) -> Result<FoundItem, ReadError> {
        let offset = record.header.id.offset();
        let (value, text) = match self.history().decode(offset, record).await? {
            EventBody::Custom(custom) => (custom.data, custom.text),
            // Cannot happen: according to the header, it is a custom event.
            _ => (Bytes::new(), String::new()),
        };
        Ok(FoundItem {
            kept,
            value: Some(value),
            text,
            score: None,
        })
    }
}

fn own_events(conversation: ConversationKey) -> EventRange {
    EventRange {
        conversation,
        branch: Some(BranchId::MAIN),
        first: Revision(1),
        last: Revision(u64::MAX),
    }
}
