//! Searching, with everything that the index does not know: branches, names,
//! and the text that snippets are made from.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, btree_map::Entry},
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use super::{
    Engine,
    error::SearchError,
    grep::{Wanted, best_conversations},
    hit::{Finds, HitDetails, HitReader, shortened},
    query::{ConversationHits, HitCopy, SearchAnswer, SearchRequest},
    work::{self, Lane},
};
use super::{Inner, error::ReadError, query::SearchHit};
use crate::{
    domain::{Cause, ConversationId, ConversationRow, Namespace, Position},
    search::{
        AsTyped, Copies, Hit, HitCopies, IndexError, IndexSearchError, LineageSegment, Reading,
        Scope, SearchFilters, SearchIndex, SearchQuery, SearchResults, Snippeter, Wholeness,
        check_globs, passage_at, searchable_text,
    },
};

/// Hits that conversations are ordered by.
const GROUPED_HITS: usize = 1_000;
/// How long a search that has met a damaged index waits for a new one.
const INDEX_MADE_WITHIN: Duration = Duration::from_secs(10);
/// So much more of a query, as a share of it, is clearly more.
const CLEARLY_MORE: f32 = 0.25;
/// Most conversations that a search over sub-contexts spans.
const SUB_CONTEXTS_MAX: usize = 1_000;

impl Engine {
    /// Waits until a search finds everything up to a position.
    ///
    /// # Errors
    /// [`SearchError::Index`] when indexing keeps failing.
    pub async fn wait_indexed(&self, position: Position) -> Result<(), SearchError> {
        self.inner.indexer.wait_for(position.offset).await
    }

    /// Searches what tools returned, messages and summaries.
    ///
    /// # Errors
    /// [`SearchError::Query`] when the query cannot be read; others when the
    /// index or a name in the filters is not there.
    pub async fn search(&self, request: SearchRequest) -> Result<SearchAnswer, SearchError> {
        self.search_by_stages(request, &Arc::default()).await
    }

    /// The same within a time.
    ///
    /// # Errors
    /// [`SearchLate`] when the time is over, with what it went into; within it as
    /// [`Self::search`].
    pub async fn search_within(
        &self,
        request: SearchRequest,
        max: Duration,
    ) -> Result<Result<SearchAnswer, SearchError>, SearchLate> {
        let at = Arc::new(Stages::default());
        let searched = self.search_by_stages(request, &at);
        let late = |_| SearchLate {
            stage: at.now(),
            waited: max,
        };
        tokio::time::timeout(max, searched).await.map_err(late)
    }

    async fn search_by_stages(
        &self,
        request: SearchRequest,
        at: &Arc<Stages>,
    ) -> Result<SearchAnswer, SearchError> {
        check_globs(&request.paths).map_err(refused)?;
        let request = request.or_listing();
        let inner = &self.inner;
        // An index that was let go is empty, and would find nothing.
        inner.views.load().reached().map_err(ReadError::from)?;
        let head = inner.published.load(Ordering::Acquire);
        at.reach(SearchStage::Index);
        if let Some(position) = request.at_least {
            if position.offset > head {
                return Err(SearchError::Query {
                    message: format!("position {position} is not written yet; the head is {head}"),
                });
            }
            let waiting = inner.indexer.wait_for(position.offset);
            match request.wait_max {
                None => waiting.await?,
                // Who does not wait for all of it gets what is there.
                Some(max) => tokio::time::timeout(max, waiting).await.unwrap_or(Ok(()))?,
            }
        }
        let searched = self.search_index(request.clone(), head, at).await;
        let Err(SearchError::IndexDamaged { .. }) = searched else {
            return searched;
        };
        at.reach(SearchStage::Index);
        // It is made anew; a small one is there before anybody would ask again.
        let waiting = inner.indexer.wait_for(head);
        match tokio::time::timeout(INDEX_MADE_WITHIN, waiting).await {
            Ok(waited) => waited?,
            Err(_) => return searched,
        }
        self.search_index(request, head, at).await
    }

    async fn search_index(
        &self,
        request: SearchRequest,
        head: u64,
        at: &Arc<Stages>,
    ) -> Result<SearchAnswer, SearchError> {
        at.reach(SearchStage::Turn);
        let at = Arc::clone(at);
        self.on(lane_of(&request), |engine: Self| async move {
            at.reach(SearchStage::Run);
            engine.inner.search(request, head).await
        })
        .await
    }
}

/// By what a search looks at: the best of its words are found in milliseconds. All conversations,
/// all matches, all terms or stored texts may take seconds.
fn lane_of(request: &SearchRequest) -> Lane {
    let looks_at_conversations = !request.sources.is_empty()
        || !request.labels.is_empty()
        || request.not_sealed
        || request.active_branches_only
        || request.include_sub_contexts;
    let looks_at_matches = request.regex || request.by_conversation || request.count_all;
    let looks_at_terms = !request.paths.is_empty();
    match looks_at_conversations || looks_at_matches || looks_at_terms {
        true => Lane::Search,
        false => Lane::Short,
    }
}

/// What a search does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchStage {
    /// It waits for the index to reach what is asked for.
    Index,
    /// It waits for its turn.
    Turn,
    /// It runs.
    Run,
}

/// A search had no answer within its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SearchLate {
    /// What it did when the time was over.
    pub stage: SearchStage,
    /// The time.
    pub waited: Duration,
}

impl std::error::Error for SearchLate {}

impl std::fmt::Display for SearchLate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = self.waited.as_secs_f32();
        match self.stage {
            SearchStage::Index => write!(
                f,
                "the index did not reach the position within {seconds} s: \
                 search again later, or with a shorter wait_max"
            ),
            SearchStage::Turn => write!(
                f,
                "the search waited {seconds} s for its turn and was not started: \
                 other searches that take long are running; try again later"
            ),
            SearchStage::Run => write!(
                f,
                "the search ran and was not done within {seconds} s: \
                 narrow it by a conversation, a time or a longer word"
            ),
        }
    }
}

/// What a search does, for whoever waits for it.
#[derive(Debug, Default)]
struct Stages(AtomicU8);

impl Stages {
    fn reach(&self, stage: SearchStage) {
        self.0.store(stage as u8, Ordering::Relaxed);
    }

    fn now(&self) -> SearchStage {
        let at = self.0.load(Ordering::Relaxed);
        let all = [SearchStage::Index, SearchStage::Turn, SearchStage::Run];
        let found = all.into_iter().find(|stage| *stage as u8 == at);
        found.unwrap_or(SearchStage::Run)
    }
}

fn refused(error: IndexSearchError) -> SearchError {
    match error {
        IndexSearchError::Index(IndexError::NeedsRebuild { reason }) => {
            SearchError::IndexDamaged { message: reason }
        }
        IndexSearchError::Index(error) => SearchError::Index {
            source: Cause::of(error),
        },
        other => SearchError::Query {
            message: other.to_string(),
        },
    }
}

/// What hits of one conversation share.
#[derive(Default)]
pub(super) struct Names(BTreeMap<ConversationId, Named>);

#[derive(Default)]
pub(super) struct Named {
    pub source_id: String,
    pub title: String,
}

impl Inner {
    async fn search(&self, request: SearchRequest, head: u64) -> Result<SearchAnswer, SearchError> {
        let scope = self.scope(&request)?;
        let shown = match request.active_branches_only {
            true => self.shown_by_active_branches(&request, scope.as_ref())?,
            false => Vec::new(),
        };
        let query = SearchQuery {
            reading: request.reading,
            limit: request.limit,
            offset: request.offset,
            count_all: request.count_all,
            told_by_text: true,
            copies: match request.every_copy {
                true => Copies::Each,
                false => Copies::Folded,
            },
            filters: SearchFilters {
                scope,
                shown,
                tools: request.tools,
                success: request.success,
                recorded_from: request.recorded_from,
                recorded_to: request.recorded_to,
                happened_from: request.happened_from,
                happened_to: request.happened_to,
                kinds: request.kinds,
                roles: request.roles,
                paths: request.paths,
            },
            ..SearchQuery::new(request.namespace.clone(), request.text)
        };
        if request.regex {
            let wanted = Wanted {
                context_lines: request.context_lines,
                conversations_max: request.by_conversation.then_some(request.conversations_max),
            };
            return self.search_pattern(&query, wanted, head).await;
        }
        let index = self.indexer.index();
        work::check()?;
        let refused = |error| self.search_failed(&index, error);
        let mut results = index.search(&query).map_err(refused)?;
        let parts_only = self.look_at_texts(&mut results, &query).await?;
        let copies = index.copies(&query, &results.hits).map_err(refused)?;
        let hidden = self.hidden(&index, &query, &results)?;
        let mut snippeter = Snippeter::for_query(&index, &query).map_err(refused)?;
        let mut names = Names::default();
        let mut hits = Vec::with_capacity(results.hits.len());
        let mut reader = HitReader {
            namespace: &request.namespace,
            context_lines: request.context_lines,
            finds: Finds::Words(&mut snippeter),
        };
        for (hit, copies) in results.hits.into_iter().zip(copies) {
            work::check()?;
            // An index from before the damage knows what cannot be served any more.
            if self.marks.covers(hit.conversation, hit.revision) {
                continue;
            }
            let found = self.read_or_note(&hit, &mut reader).await?;
            let mut hit = self.named(hit, found, &mut names, &query)?;
            self.add_copies(&mut hit, copies, &names, &query)?;
            hits.push(hit);
        }
        let mut answer = self.answer(hits, results.reached, head);
        answer.parts_only = parts_only;
        if let Some(hit) = hidden {
            let found = self.read_or_note(&hit, &mut reader).await?;
            answer.hidden = Some(Box::new(self.named(hit, found, &mut names, &query)?));
        }
        answer.total = results.total;
        answer.more_than_total = results.more_than_total;
        answer.read_as = results.read_as;
        if request.by_conversation {
            let max = request.conversations_max;
            answer.conversations = self.grouped(&index, &query, &mut names, max)?;
        }
        Ok(answer)
    }

    /// What only the event says of a hit. One that cannot be read any more is no reason to
    /// find nothing.
    async fn read_or_note(
        &self,
        hit: &Hit,
        reader: &mut HitReader<'_>,
    ) -> Result<HitDetails, ReadError> {
        match self.read_hit(hit, reader).await {
            Err(error @ ReadError::Damaged { .. }) => {
                self.noticed(&error);
                Ok(HitDetails::default())
            }
            read => Ok(read?.unwrap_or_default()),
        }
    }

    /// Orders the first hits as their texts tell, and cuts the page. True: the query is
    /// one name, and nothing has it whole.
    async fn look_at_texts(
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
        let has_name = match look.tells_names() {
            true => looked_at == 0 || standings.iter().any(|standing| standing.names > 0),
            false => results.names.found != Wholeness::Parts,
        };
        AsTyped::reorder(standings, results, query);
        Ok(results.names.typed.is_all && !has_name && results.total > 0)
    }

    /// The text that was found; empty when it cannot be read any more.
    async fn passage_of(&self, hit: &Hit, query: &SearchQuery) -> Result<String, ReadError> {
        if self.marks.covers(hit.conversation, hit.revision) {
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

    /// The best result that is hidden by the filter for what worked, or failed, if it has
    /// clearly more of the query than what is shown.
    fn hidden(
        &self,
        index: &Arc<SearchIndex>,
        query: &SearchQuery,
        shown: &SearchResults,
    ) -> Result<Option<Hit>, SearchError> {
        let together = shown.hits.first().map_or(0.0, |hit| hit.together);
        let hides = query.filters.success.is_some() && query.offset == 0;
        if !hides || together > 1.0 - CLEARLY_MORE {
            return Ok(None);
        }
        let mut others = SearchQuery {
            limit: 1,
            count_all: false,
            told_by_text: false,
            ..query.clone()
        };
        others.filters.success = query.filters.success.map(|success| !success);
        let best = index.search(&others);
        let best = best.map_err(|error| self.search_failed(index, error))?;
        let is_clear = |hit: &Hit| {
            hit.together - together >= CLEARLY_MORE
                && !self.marks.covers(hit.conversation, hit.revision)
        };
        Ok(best.hits.into_iter().next().filter(is_clear))
    }

    pub(super) fn add_copies(
        &self,
        hit: &mut SearchHit,
        copies: HitCopies,
        names: &Names,
        query: &SearchQuery,
    ) -> Result<(), ReadError> {
        hit.copies = copies.count;
        for place in copies.nearest {
            let id = place.conversation;
            let source_id = match names.0.get(&id) {
                Some(named) => named.source_id.clone(),
                // Its branches are not asked for.
                None => self.row(&query.namespace, id)?.info.source_id.clone(),
            };
            hit.copies_at.push(HitCopy {
                conversation: id,
                source_id,
                revision: place.revision,
            });
        }
        Ok(())
    }

    /// The conversations with matches, with the scores of the best ones.
    fn grouped(
        &self,
        index: &Arc<SearchIndex>,
        query: &SearchQuery,
        names: &mut Names,
        max: usize,
    ) -> Result<Vec<ConversationHits>, SearchError> {
        let best = SearchQuery {
            offset: 0,
            limit: GROUPED_HITS,
            told_by_text: false,
            copies: Copies::Each,
            ..query.clone()
        };
        let refused = |error| self.search_failed(index, error);
        let mut scores: HashMap<ConversationId, f32> = HashMap::new();
        for hit in index.search(&best).map_err(refused)?.hits {
            let score = scores.entry(hit.conversation).or_insert(hit.score);
            *score = score.max(hit.score);
        }
        work::check()?;
        let counts = index.by_conversation(query).map_err(refused)?;
        let best = best_conversations(counts.into_iter().collect(), &scores, max);
        Ok(self.hits_by_conversation(best, names, query)?)
    }

    /// Why a search of this index has no answer. One that is damaged is made anew.
    pub(super) fn search_failed(
        &self,
        index: &Arc<SearchIndex>,
        error: IndexSearchError,
    ) -> SearchError {
        if let IndexSearchError::Index(IndexError::NeedsRebuild { reason }) = &error {
            self.indexer.condemn(index, reason);
        }
        refused(error)
    }

    /// An answer, with how much of the log it is of.
    pub(super) fn answer(
        &self,
        hits: Vec<SearchHit>,
        reached: Position,
        head: u64,
    ) -> SearchAnswer {
        let published = self.published.load(Ordering::Acquire);
        let lagging = self.indexer.lagging(published);
        let events_missing = head.saturating_sub(reached.offset);
        SearchAnswer {
            hits,
            total: 0,
            more_than_total: false,
            reached,
            complete: events_missing == 0 && lagging.is_none(),
            events_missing,
            read_as: Reading::Plain,
            parts_only: false,
            hidden: None,
            conversations: Vec::new(),
            lagging,
        }
    }

    /// The conversations or histories that a search is restricted to.
    fn scope(&self, request: &SearchRequest) -> Result<Option<Scope>, SearchError> {
        let Some(id) = request.conversation else {
            if request.branch.is_some() || request.include_sub_contexts {
                let message = "a branch or sub-contexts need a conversation".to_owned();
                return Err(SearchError::Query { message });
            }
            let chosen = self.chosen_conversations(request)?;
            return Ok(chosen.map(Scope::Conversations));
        };
        self.row(&request.namespace, id)?;
        let mut conversations = BTreeSet::from([id]);
        if request.include_sub_contexts {
            self.add_children(id, &mut conversations)?;
        }
        if let Some(chosen) = self.chosen_conversations(request)? {
            conversations.retain(|id| chosen.contains(id));
            if conversations.is_empty() {
                return Ok(Some(Scope::Conversations(Vec::new())));
            }
        }
        let Some(name) = &request.branch else {
            return Ok(Some(Scope::Conversations(
                conversations.into_iter().collect(),
            )));
        };
        let branch = self.branch(&request.namespace, id, Some(name))?;
        let segments = self.history().lineage(id, &branch)?;
        let mut lineage: Vec<_> = segments
            .into_iter()
            .map(|segment| LineageSegment {
                conversation: segment.conversation,
                branch: segment.branch,
                up_to: segment.last,
            })
            .collect();
        for child in conversations.into_iter().filter(|child| *child != id) {
            let state = self.state(&request.namespace, child)?;
            lineage.extend(state.branches.values().map(|branch| LineageSegment {
                conversation: child,
                branch: branch.id,
                up_to: branch.head,
            }));
        }
        Ok(Some(Scope::Lineage(lineage)))
    }

    /// What the active branches of conversations with several branches hold of their own.
    fn shown_by_active_branches(
        &self,
        request: &SearchRequest,
        scope: Option<&Scope>,
    ) -> Result<Vec<LineageSegment>, SearchError> {
        // A row has its labels and title: of all rows only what is needed is kept.
        let mut of_several = Vec::new();
        let mut look_at = |row: ConversationRow| {
            if row.namespace == request.namespace && row.branch_count > 1 {
                of_several.push((row.id, row.active));
            }
        };
        match scope {
            Some(Scope::Conversations(ids)) => {
                for id in ids {
                    work::check()?;
                    look_at(self.row(&request.namespace, *id)?);
                }
            }
            // A branch that was named is what is to be shown.
            Some(Scope::Lineage(_)) => return Ok(Vec::new()),
            None => self.each_row(look_at)?,
        }
        let (history, mut shown) = (self.history(), Vec::new());
        for (id, active) in of_several {
            work::check()?;
            let active = history.branch(id, active)?;
            let segments = history.lineage_while(id, &active, |segment| {
                // Behind its own events come those of another conversation.
                segment.fork.is_none_or(|fork| fork.conversation == id)
            })?;
            shown.extend(segments.into_iter().map(|segment| LineageSegment {
                conversation: segment.conversation,
                branch: segment.branch,
                up_to: segment.last,
            }));
        }
        Ok(shown)
    }

    /// The namespace's conversations that have the sources and labels that a search
    /// wants; none: it wants none.
    fn chosen_conversations(
        &self,
        request: &SearchRequest,
    ) -> Result<Option<Vec<ConversationId>>, SearchError> {
        if request.sources.is_empty() && request.labels.is_empty() && !request.not_sealed {
            return Ok(None);
        }
        let is_chosen = |row: &ConversationRow| {
            let info = &row.info;
            let has_label = |label: &String| match label.split_once('=') {
                Some((name, value)) => info.labels.get(name).is_some_and(|own| own == value),
                None => info.labels.contains_key(label),
            };
            row.namespace == request.namespace
                && !(request.not_sealed && row.sealed)
                && (request.sources.is_empty() || request.sources.contains(&info.source))
                && request.labels.iter().all(has_label)
        };
        let mut chosen = Vec::new();
        self.each_row(|row| chosen.extend(is_chosen(&row).then_some(row.id)))?;
        Ok(Some(chosen))
    }

    /// Looks at all conversations, one by one, while the work is wanted.
    fn each_row(&self, mut each: impl FnMut(ConversationRow)) -> Result<(), ReadError> {
        let looked = self.views.load().each_conversation(|row| {
            let is_wanted = work::check().is_ok();
            if is_wanted {
                each(row);
            }
            is_wanted
        });
        looked.map_err(ReadError::from)?;
        work::check()
    }

    fn add_children(
        &self,
        root: ConversationId,
        found: &mut BTreeSet<ConversationId>,
    ) -> Result<(), ReadError> {
        let mut waiting = vec![root];
        while let Some(id) = waiting.pop() {
            for child in self.views.load().children(id)? {
                if found.len() < SUB_CONTEXTS_MAX && found.insert(child) {
                    waiting.push(child);
                }
            }
        }
        Ok(())
    }

    /// A hit with the names of where it is.
    pub(super) fn named(
        &self,
        hit: Hit,
        found: HitDetails,
        names: &mut Names,
        query: &SearchQuery,
    ) -> Result<SearchHit, ReadError> {
        let named = self.names(&query.namespace, hit.conversation, names)?;
        // Of a thousand branches that it may have, only this one is looked up.
        let branch_name = self.history().branch_name(hit.conversation, hit.branch)?;
        let (source_id, title) = (named.source_id.clone(), named.title.clone());
        Ok(SearchHit {
            conversation: hit.conversation,
            source_id,
            branch: hit.branch,
            branch_name,
            revision: hit.revision,
            position: hit.position,
            kind: hit.kind,
            call_id: found.call_id,
            tool: hit.tool,
            success: hit.success,
            score: hit.score,
            scores: hit.scores,
            line: found.line,
            byte_start: found.byte_start,
            byte_end: found.byte_end,
            passage: found.passage,
            role: found.role,
            in_reasoning: found.in_reasoning,
            together: hit.together,
            copies: 0,
            copies_at: Vec::new(),
            title,
            path: found.target.paths.into_iter().next().unwrap_or_default(),
            command: shortened(&found.target.command),
            context: found.context,
            context_line: found.context_line,
            snippet: found.snippet.text,
            highlights: found.snippet.highlights,
            recorded_at: hit.recorded_at,
            happened_at: hit.happened_at,
        })
    }

    pub(super) fn names<'a>(
        &self,
        namespace: &Namespace,
        conversation: ConversationId,
        names: &'a mut Names,
    ) -> Result<&'a Named, ReadError> {
        Ok(match names.0.entry(conversation) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let info = self.row(namespace, conversation)?.info;
                place.insert(Named {
                    source_id: info.source_id.clone(),
                    title: info.title.clone(),
                })
            }
        })
    }
}
