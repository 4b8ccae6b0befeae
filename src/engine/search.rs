//! Search, combined with data that the index lacks: branches, names, and the texts for snippets.

use std::{
    collections::{BTreeMap, HashMap, btree_map::Entry},
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use super::{
    Engine,
    error::SearchError,
    grep::{GrepOptions, best_conversations, least_of_best},
    hit::{HitReader, MatchFinder},
    meaning::{MeaningVector, SearchBy},
    search_query::{
        ConversationFilters, ConversationHits, HitDetails, HitDuplicate, SearchAnswer, SearchHit,
        SearchRequest,
    },
    work::{self, PriorityClass},
};
use super::{Inner, ReadPath, error::ReadError};
use treering_domain::{Cause, ConversationId, Namespace, Position};
use treering_search::{
    DuplicateHandling, Hit, HitDuplicates, IndexError, IndexSearchError, MeaningQuery,
    NameCompleteness, QueryError, QuerySyntax, RecalledTexts, Scope, SearchIndex, SearchMemory,
    SearchQuery, SearchResults, SharedStatistics, ShownBranches, Snippeter, VerbatimQuery,
    check_globs, passage_at, searchable_text,
};

/// Number of hits that determine the order of conversations, if fewer do not determine it.
const GROUPED_HITS: usize = 1_000;
/// Number of hits that are looked at first.
const GROUPED_HITS_FIRST: usize = 100;
/// How long a search that met a damaged index waits for a new one.
const INDEX_MADE_WITHIN: Duration = Duration::from_secs(10);
/// A hit is clearly better than another if the share of the query that it matches is larger by at
/// least this.
pub const CLEARLY_MORE: f32 = 0.25;

impl Engine {
    /// Waits until searches see everything up to a log position.
    ///
    /// # Errors
    /// [`SearchError::Index`] when indexing keeps failing.
    pub async fn wait_indexed(&self, position: Position) -> Result<(), SearchError> {
        self.inner.search.indexer.wait_for(position.offset).await
    }

    /// Searches tool results, messages, arguments and summaries.
    ///
    /// # Errors
    /// [`SearchError::Query`] when the query cannot be parsed; others when the index fails or a
    /// name in the filters does not exist.
    pub async fn search(&self, request: SearchRequest) -> Result<SearchAnswer, SearchError> {
        self.search_by_stages(request, &Arc::default()).await
    }

    /// Like [`Self::search`], with a time limit.
    ///
    /// # Errors
    /// [`SearchTimeout`] with the stage of the search when the time is over; otherwise as
    /// [`Self::search`].
    pub async fn search_within(
        &self,
        request: SearchRequest,
        max: Duration,
    ) -> Result<Result<SearchAnswer, SearchError>, SearchTimeout> {
        let at = Arc::new(Stages::default());
        let searched = self.search_by_stages(request, &at);
        let late = |_| SearchTimeout {
            stage: at.now(),
            waited: max,
        };
        tokio::time::timeout(max, searched).await.map_err(late)
    }

    /// Returns how often the terms of a query occur. The sum over all shards is
    /// [`SearchRequest::shared`].
    ///
    /// # Errors
    /// As [`Self::search`].
    pub async fn count_terms(
        &self,
        request: SearchRequest,
    ) -> Result<SharedStatistics, SearchError> {
        let head = self.inner.reads.published.load(Ordering::Acquire);
        self.index_reaches(&request, head).await?;
        self.on(PriorityClass::Short, |engine: Self| async move {
            let index = engine.inner.search.indexer.index();
            let mut query = SearchQuery::new(request.namespace, request.text);
            query.reading = request.reading;
            let counted = index.statistics(&query);
            counted.map_err(|error| engine.inner.search_failed(&index, error))
        })
        .await
    }

    /// Waits until the index has what the search asks for.
    async fn index_reaches(&self, request: &SearchRequest, head: u64) -> Result<(), SearchError> {
        let Some(position) = request.at_least else {
            return Ok(());
        };
        if position.offset > head {
            return Err(SearchError::Query {
                message: format!("position {position} is not yet written; the head is {head}"),
            });
        }
        let waiting = self.inner.search.indexer.wait_for(position.offset);
        match request.wait_max {
            None => waiting.await?,
            // After `wait_max`, answer from what is indexed.
            Some(max) => tokio::time::timeout(max, waiting).await.unwrap_or(Ok(()))?,
        }
        Ok(())
    }

    async fn search_by_stages(
        &self,
        request: SearchRequest,
        at: &Arc<Stages>,
    ) -> Result<SearchAnswer, SearchError> {
        check_globs(&request.filters.paths).map_err(refused)?;
        let request = request.or_listing();
        check_kind(&request)?;
        let inner = &self.inner;
        // After closing, the index is empty and would find nothing.
        inner
            .reads
            .projections
            .load()
            .reached()
            .map_err(ReadError::from)?;
        let head = inner.reads.published.load(Ordering::Acquire);
        at.reach(SearchStage::Index);
        self.index_reaches(&request, head).await?;
        let mut request = request;
        let vector = inner.meaning_vector(&mut request).await?;
        let vector = vector.as_ref();
        let searched = self.search_index(request.clone(), vector, head, at).await;
        let Err(SearchError::IndexDamaged { .. }) = searched else {
            return searched;
        };
        at.reach(SearchStage::NewIndex);
        // The index is being rebuilt; a small one is complete before a caller would retry.
        let waiting = inner.search.indexer.wait_for(head);
        match tokio::time::timeout(INDEX_MADE_WITHIN, waiting).await {
            Ok(waited) => waited?,
            Err(_) => return searched,
        }
        self.search_index(request, vector, head, at).await
    }

    async fn search_index(
        &self,
        request: SearchRequest,
        vector: Option<&MeaningVector>,
        head: u64,
        at: &Arc<Stages>,
    ) -> Result<SearchAnswer, SearchError> {
        let lane = priority_of(&request);
        at.reach(match lane {
            PriorityClass::Search => SearchStage::TurnOfLong,
            PriorityClass::Short | PriorityClass::Bulk | PriorityClass::Long => SearchStage::Turn,
        });
        let at = Arc::clone(at);
        let vector = vector.cloned();
        self.on(lane, |engine: Self| async move {
            at.reach(SearchStage::Run);
            let memory = SearchMemory::default();
            let vector = vector.as_ref();
            let inner = &engine.inner;
            let found = inner.search(request.clone(), vector, head, memory.clone());
            let found = found.await?;
            // Only all shards together know whether there is no other hit.
            let left_out =
                request.filters.recalled == RecalledTexts::LeftOut && request.shared.is_none();
            let index = inner.search.indexer.index();
            if found.total > 0 || !left_out || !index.has_recalled(&request.namespace) {
                return Ok(found);
            }
            // A hit in recalled text is better than none.
            let mut request = request;
            request.filters.recalled = RecalledTexts::Only;
            inner.search(request, vector, head, memory).await
        })
        .await
    }
}

/// Refuses options that only a search by words supports.
fn check_kind(request: &SearchRequest) -> Result<(), SearchError> {
    if request.by == SearchBy::Words {
        return Ok(());
    }
    let wanted = [
        (request.regex, "a regular expression"),
        (
            request.conversations_max.is_some(),
            "counts by conversation",
        ),
        (request.count_all, "a count of all hits"),
    ];
    match wanted.into_iter().find(|(is_wanted, _)| *is_wanted) {
        None => Ok(()),
        Some((_, what)) => Err(SearchError::Query {
            message: format!("{what} needs a search by words"),
        }),
    }
}

/// Returns the priority class of a search. The best word matches are found in milliseconds;
/// scanning all conversations, all matches, all terms or stored texts may take seconds. For a named
/// conversation only its own labels are read.
fn priority_of(request: &SearchRequest) -> PriorityClass {
    let ConversationFilters {
        conversation,
        branch: _,
        include_sub_contexts,
        sources,
        labels,
        active_branches_only,
        not_sealed,
    } = &request.within;
    let looks_at_all = conversation.is_none()
        && (!sources.is_empty() || !labels.is_empty() || *not_sealed || *active_branches_only);
    let looks_at_conversations = looks_at_all || *include_sub_contexts;
    let looks_at_matches = request.by != SearchBy::Words
        || request.regex
        || request.conversations_max.is_some()
        || request.count_all;
    let looks_at_terms = !request.filters.paths.is_empty();
    match looks_at_conversations || looks_at_matches || looks_at_terms {
        true => PriorityClass::Search,
        false => PriorityClass::Short,
    }
}

/// The stages of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchStage {
    /// Waiting for the index to reach the requested position.
    Index,
    /// Waiting for a new index, because the last one was damaged.
    NewIndex,
    /// Waiting for a slot among short reads.
    Turn,
    /// Waiting for a slot among long searches.
    TurnOfLong,
    /// Running.
    Run,
}

/// The error of a search that exceeded its time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SearchTimeout {
    /// The stage when the time was over.
    pub stage: SearchStage,
    /// The time limit.
    pub waited: Duration,
}

impl std::error::Error for SearchTimeout {}

impl std::fmt::Display for SearchTimeout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = self.waited.as_secs_f32();
        match self.stage {
            SearchStage::Index => write!(
                f,
                "the index did not reach the position within {seconds} s: retry later, or set a \
                 shorter wait_max"
            ),
            SearchStage::NewIndex => write!(
                f,
                "the search index was damaged and was not rebuilt within {seconds} s: retry later"
            ),
            SearchStage::Turn => write!(
                f,
                "the search was not started within {seconds} s: the server is busy with other \
                 reads; retry later"
            ),
            SearchStage::TurnOfLong => write!(
                f,
                "the search was not started within {seconds} s: other slow searches are running; \
                 retry later"
            ),
            SearchStage::Run => write!(
                f,
                "the search did not finish within {seconds} s: narrow it with a conversation, a \
                 time or a longer word"
            ),
        }
    }
}

/// The current stage of a search, shared with its waiting caller.
#[derive(Debug, Default)]
struct Stages(AtomicU8);

impl Stages {
    fn reach(&self, stage: SearchStage) {
        self.0.store(stage as u8, Ordering::Relaxed);
    }

    fn now(&self) -> SearchStage {
        let at = self.0.load(Ordering::Relaxed);
        let all = [
            SearchStage::Index,
            SearchStage::NewIndex,
            SearchStage::Turn,
            SearchStage::TurnOfLong,
            SearchStage::Run,
        ];
        let found = all.into_iter().find(|stage| *stage as u8 == at);
        found.unwrap_or(SearchStage::Run)
    }
}

pub(super) fn refused(error: IndexSearchError) -> SearchError {
    match error {
        IndexSearchError::Index(IndexError::NeedsRebuild { reason }) => {
            SearchError::IndexDamaged { message: reason }
        }
        IndexSearchError::Index(error) => SearchError::Index {
            source: Cause::of(error),
        },
        IndexSearchError::Stopped => ReadError::Stopped.into(),
        IndexSearchError::Query(QueryError::Empty) => SearchError::EmptyQuery,
        other @ (IndexSearchError::Query(_)
        | IndexSearchError::TooFar { .. }
        | IndexSearchError::FilterTooLarge { .. }
        | IndexSearchError::GlobsTooLong { .. }
        | IndexSearchError::TooMuchMemory { .. }) => SearchError::Query {
            message: other.to_string(),
        },
    }
}

/// Names shared by the hits of one conversation.
#[derive(Default)]
pub(super) struct Names(BTreeMap<ConversationId, ConversationName>);

#[derive(Default)]
pub(super) struct ConversationName {
    pub(crate) source_id: String,
    pub(crate) title: String,
}

impl Inner {
    pub(super) async fn search(
        &self,
        request: SearchRequest,
        vector: Option<&MeaningVector>,
        head: u64,
        memory: SearchMemory,
    ) -> Result<SearchAnswer, SearchError> {
        let SearchRequest {
            namespace,
            text,
            reading,
            regex,
            by,
            // The text of that event has already replaced `text`.
            similar_to: _,
            limit,
            offset,
            within,
            mut filters,
            copies,
            conversations_max,
            count_all,
            context_lines,
            // The wait is over.
            at_least: _,
            wait_max: _,
            shared,
        } = request;
        let index = self.search.indexer.index();
        let refused = |error| self.search_failed(&index, error);
        let tools = index.tools_named(&namespace, &filters.tools);
        filters.tools = tools.map_err(refused)?;
        let scope = self.scope(&namespace, &within, &memory)?;
        let (mut shown, mut active) = (ShownBranches::default(), None);
        if within.active_branches_only {
            let looked = self.shown_by_active_branches(&namespace, scope.as_ref(), &memory)?;
            (shown, active) = (looked.0, Some(looked.1));
        }
        let query = SearchQuery {
            namespace,
            text,
            reading,
            limit,
            offset,
            told_by_text: by != SearchBy::Meaning,
            copies,
            count_all,
            scope,
            shown,
            filters,
            memory,
            shared,
        };
        if regex {
            let wanted = GrepOptions {
                context_lines,
                conversations_max,
            };
            let answer = self.search_pattern(&query, wanted, head).await?;
            active.map_or(Ok(()), |active| active.check())?;
            return Ok(answer);
        }
        work::check()?;
        if query
            .shared
            .as_ref()
            .is_some_and(|shared| shared.floors.is_none())
        {
            let pool = index.pool(&query).map_err(refused)?;
            let mut answer = self.answer(Vec::new(), index.reached(), head);
            answer.pool = Some(pool);
            active.map_or(Ok(()), |active| active.check())?;
            return Ok(answer);
        }
        let mut results = match vector {
            Some(vector) => {
                let meaning = MeaningQuery {
                    vectors: &vector.model.vectors,
                    vector: &vector.vector,
                    except: vector.except,
                    with_words: by == SearchBy::Both,
                };
                index.search_by_meaning(&query, meaning).map_err(refused)?
            }
            _ => index.search(&query).map_err(refused)?,
        };
        let checked = results.as_typed.hits;
        let parts_only = self.reads.rerank_by_texts(&mut results, &query).await?;
        let copies = index.copies(&query, &results.hits).map_err(refused)?;
        let hidden = match by {
            SearchBy::Words => self.hidden(&index, &query, &results)?,
            SearchBy::Meaning | SearchBy::Both => None,
        };
        let mut snippeter = match by {
            SearchBy::Words => Snippeter::for_query(&index, &query).map_err(refused)?,
            SearchBy::Meaning | SearchBy::Both => Snippeter::for_text(&index, &query),
        };
        let mut names = Names::default();
        let mut hits = Vec::with_capacity(results.hits.len());
        let mut reader = HitReader {
            namespace: &query.namespace,
            context_lines,
            finds: MatchFinder::Words(&mut snippeter),
        };
        for (hit, copies) in results.hits.into_iter().zip(copies) {
            work::check()?;
            // An index older than the damage has events that cannot be served.
            if self.reads.is_damaged(&query.namespace, &hit) {
                continue;
            }
            let found = self.read_or_note(&hit, &mut reader).await?;
            let mut hit = self.reads.named(hit, found, &mut names, &query)?;
            self.reads.add_copies(&mut hit, copies, &names, &query)?;
            hits.push(hit);
        }
        let mut answer = self.answer(hits, results.reached, head);
        answer.checked = checked;
        answer.parts_only = parts_only && by == SearchBy::Words;
        if vector.is_some() && answer.lagging.is_none() {
            let meaning = self.search.meaning.as_ref();
            answer.lagging = meaning.and_then(|meaning| meaning.lagging(results.not_embedded));
            answer.complete &= answer.lagging.is_none();
        }
        if let Some(hit) = hidden {
            let found = self.read_or_note(&hit, &mut reader).await?;
            answer.hidden = Some(Box::new(self.reads.named(hit, found, &mut names, &query)?));
        }
        answer.total = results.total;
        answer.more_than_total = results.more_than_total;
        answer.read_as = results.read_as;
        if let Some(max) = conversations_max {
            answer.conversations = self.grouped(&index, &query, &mut names, max)?;
        }
        active.map_or(Ok(()), |active| active.check())?;
        Ok(answer)
    }

    /// Reads a hit's details. A hit that has become unreadable does not fail the search.
    async fn read_or_note(
        &self,
        hit: &Hit,
        reader: &mut HitReader<'_>,
    ) -> Result<HitDetails, ReadError> {
        match self.reads.read_hit(hit, reader).await {
            Err(error @ ReadError::Damaged { .. }) => {
                self.record_damage(&error);
                Ok(HitDetails::default())
            }
            read => Ok(read?.unwrap_or_default()),
        }
    }

    /// Returns the best result that the `success` filter hides, if it matches clearly more of the
    /// query than the best shown hit.
    fn hidden(
        &self,
        index: &Arc<SearchIndex>,
        query: &SearchQuery,
        shown: &SearchResults,
    ) -> Result<Option<Hit>, SearchError> {
        let phrase_score = shown.hits.first().map_or(0.0, |hit| hit.phrase_score);
        let hides = query.filters.success.is_some() && query.offset == 0;
        if !hides || phrase_score > 1.0 - CLEARLY_MORE {
            return Ok(None);
        }
        let mut others = SearchQuery {
            limit: 1,
            count_all: false,
            told_by_text: false,
            ..query.clone()
        };
        others.filters.success = query.filters.success.map(|success| !success);
        if let Some(shared) = &mut others.shared {
            // They are of the passages that pass the filter.
            Arc::make_mut(shared).floors = None;
        }
        let best = index.search(&others);
        let best = best.map_err(|error| self.search_failed(index, error))?;
        let is_clear = |hit: &Hit| {
            hit.phrase_score - phrase_score >= CLEARLY_MORE
                && !self.reads.is_damaged(&query.namespace, hit)
        };
        Ok(best.hits.into_iter().next().filter(is_clear))
    }

    /// Returns the conversations with matches, with the scores of the best ones.
    fn grouped(
        &self,
        index: &Arc<SearchIndex>,
        query: &SearchQuery,
        names: &mut Names,
        max: usize,
    ) -> Result<Vec<ConversationHits>, SearchError> {
        let refused = |error| self.search_failed(index, error);
        let mut best = SearchQuery {
            offset: 0,
            limit: GROUPED_HITS_FIRST,
            told_by_text: false,
            copies: DuplicateHandling::Each,
            ..query.clone()
        };
        let (scores, least) = loop {
            let hits = index.search(&best).map_err(refused)?.hits;
            work::check()?;
            let mut scores: HashMap<ConversationId, f32> = HashMap::new();
            for hit in &hits {
                let score = scores.entry(hit.conversation).or_insert(hit.score);
                *score = score.max(hit.score);
            }
            let least = least_of_best(&scores, max);
            let is_decided = hits.last().map(|last| last.score) < least;
            if is_decided || hits.len() < best.limit || best.limit == GROUPED_HITS {
                break (scores, least);
            }
            best.limit = GROUPED_HITS;
        };
        let mut counted = query.clone();
        // Others cannot be among the best, however many hits they have.
        if !matches!(query.scope, Some(Scope::Lineage(_)))
            && let Some(least) = least
        {
            let best = scores.iter().filter(|(_, score)| **score >= least);
            counted.scope = Some(Scope::Conversations(best.map(|(id, _)| *id).collect()));
        }
        let counts = index.by_conversation(&counted).map_err(refused)?;
        let best = best_conversations(counts, &scores, max);
        self.reads.hits_by_conversation(best, names, query)
    }

    /// Converts a search error; a damaged index is rebuilt.
    pub(super) fn search_failed(
        &self,
        index: &Arc<SearchIndex>,
        error: IndexSearchError,
    ) -> SearchError {
        if let IndexSearchError::Index(IndexError::NeedsRebuild { reason }) = &error {
            self.search.indexer.mark_damaged(index, reason);
        }
        refused(error)
    }

    /// Creates an answer that states how much of the log it covers.
    pub(super) fn answer(
        &self,
        hits: Vec<SearchHit>,
        reached: Position,
        head: u64,
    ) -> SearchAnswer {
        let published = self.reads.published.load(Ordering::Acquire);
        let lagging = self.search.indexer.lagging(published);
        let events_missing = head.saturating_sub(reached.offset);
        SearchAnswer {
            hits,
            total: 0,
            more_than_total: false,
            reached,
            complete: events_missing == 0 && lagging.is_none(),
            events_missing,
            read_as: QuerySyntax::Plain,
            parts_only: false,
            hidden: None,
            conversations: Vec::new(),
            lagging,
            checked: 0,
            pool: None,
        }
    }
}

impl ReadPath {
    /// Reranks the first hits by their texts, and truncates them to the page. Returns true if the
    /// query is one name and no text contains the whole name.
    async fn rerank_by_texts(
        &self,
        results: &mut SearchResults,
        query: &SearchQuery,
    ) -> Result<bool, ReadError> {
        let look = std::mem::take(&mut results.as_typed);
        let mut standings = Vec::new();
        let looked_at = match query.offset < look.hits {
            true => results.hits.len().min(look.hits),
            false => 0,
        };
        for hit in &results.hits[..looked_at] {
            work::check()?;
            standings.push(look.standing(&self.passage_of(hit, query).await?));
        }
        let has_name = match look.decides_names() {
            true => looked_at == 0 || standings.iter().any(|standing| standing.names > 0),
            false => results.names.found != NameCompleteness::Parts,
        };
        VerbatimQuery::reorder(standings, results, query);
        Ok(results.names.typed.is_all && !has_name && results.total > 0)
    }

    /// Returns true when the event of a hit cannot be served.
    pub(super) fn is_damaged(&self, namespace: &Namespace, hit: &Hit) -> bool {
        self.quarantine
            .covers(namespace.key(hit.conversation), hit.revision)
    }

    /// Returns the passage that the index found; empty when it cannot be read any more.
    async fn passage_of(&self, hit: &Hit, query: &SearchQuery) -> Result<String, ReadError> {
        if self.is_damaged(&query.namespace, hit) {
            return Ok(String::new());
        }
        let body = match self.body_of(hit, &query.namespace).await {
            Err(ReadError::Damaged { .. }) => return Ok(String::new()),
            read => read?.1,
        };
        let text = searchable_text(&body).unwrap_or_default();
        let start = usize::try_from(hit.byte_start).unwrap_or(usize::MAX);
        let passage = passage_at(&text, start).map_or("", |passage| passage.text);
        Ok(passage.to_owned())
    }

    pub(super) fn add_copies(
        &self,
        hit: &mut SearchHit,
        copies: HitDuplicates,
        names: &Names,
        query: &SearchQuery,
    ) -> Result<(), ReadError> {
        hit.copies = copies.count;
        for place in copies.nearest {
            let id = place.conversation;
            let source_id = match names.0.get(&id) {
                Some(named) => named.source_id.clone(),
                // Only the row is needed, not the branches.
                None => self.row(&query.namespace, id)?.info.source_id.clone(),
            };
            hit.copies_at.push(HitDuplicate {
                conversation: id,
                source_id,
                revision: place.revision,
            });
        }
        Ok(())
    }

    /// Adds names to a hit.
    pub(super) fn named(
        &self,
        hit: Hit,
        details: HitDetails,
        names: &mut Names,
        query: &SearchQuery,
    ) -> Result<SearchHit, ReadError> {
        let named = self.names(&query.namespace, hit.conversation, names)?;
        // A conversation may have a thousand branches: look up only this one.
        let branch_name = self
            .history()
            .branch_name(query.namespace.key(hit.conversation), hit.branch)?;
        Ok(SearchHit {
            source_id: named.source_id.clone(),
            title: named.title.clone(),
            branch_name,
            found: hit,
            details,
            copies: 0,
            copies_at: Vec::new(),
        })
    }

    pub(super) fn names<'a>(
        &self,
        namespace: &Namespace,
        conversation: ConversationId,
        names: &'a mut Names,
    ) -> Result<&'a ConversationName, ReadError> {
        Ok(match names.0.entry(conversation) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let info = self.row(namespace, conversation)?.info;
                place.insert(ConversationName {
                    source_id: info.source_id.clone(),
                    title: info.title.clone(),
                })
            }
        })
    }
}
