//! Conversations and branches: state, lists, forks, lineages, diffs.

use std::{collections::HashMap, sync::Arc};

use super::{
    Engine, Inner, ReadPath,
    error::{AppendError, ReadError},
    history::Segment,
    query::{
        BranchAddress, BranchDiff, BranchPage, ConversationPage, ConversationSummary,
        ConversationView, EventSource, ForkCommand, ForkOptions, ForkOutcome, Lineage, LineageStep,
        ListFilter, ListQuery, NamedEvent, PartialIdMatches, ReadQuery,
    },
    work::{self, PriorityClass, priority_for_page},
};
use treering_domain::{
    AppendCommand, AppendedEvent, BranchForked, BranchId, BranchName, BranchState,
    ConversationCreated, ConversationId, ConversationKey, ConversationRow, EventBody, EventRef,
    Expectation, ExpectedRevision, JsonText, Namespace, NewEvent, ParentRef, PromptSet, Rejection,
    Revision, Rule,
};
use treering_projections::{Facet, ListNarrowing, ListPage};

/// Maximum number of branches returned with a conversation's state; a conversation may have
/// 100,000.
const BRANCHES_SHOWN_MAX: usize = 100;
/// Maximum number of conversations scanned per page of a list: a few tens of milliseconds.
const LIST_SCAN_MAX: usize = 2_000;

impl Engine {
    /// Returns a conversation and one of its branches, now or as of a revision of that branch's
    /// history.
    ///
    /// # Errors
    /// [`ReadError`] when the conversation, branch or revision does not exist.
    pub async fn conversation(
        &self,
        address: &BranchAddress,
        as_of: Option<Revision>,
    ) -> Result<ConversationView, ReadError> {
        let address = address.clone();
        let read = |engine: Self| async move {
            let (inner, id) = (&engine.inner, address.conversation);
            let row = inner.reads.row(&address.namespace, id)?;
            let now = inner.reads.branch_at(&address)?;
            let (branches, more) =
                inner
                    .reads
                    .branches_after(row.key(), None, BRANCHES_SHOWN_MAX)?;
            let branch = match as_of {
                None => now,
                Some(revision) => inner.reads.as_of(row.key(), &now, revision).await?,
            };
            let active_name = inner.reads.active_name(&row)?;
            Ok(ConversationView {
                summary: summary(row, active_name),
                branches,
                more_branches: more,
                branch,
            })
        };
        self.on(PriorityClass::Short, read).await
    }

    /// Returns branches of a conversation ordered by id: at most `limit` of those after `after`.
    ///
    /// # Errors
    /// [`ReadError`] when the conversation does not exist.
    pub async fn branches(
        &self,
        namespace: &Namespace,
        id: ConversationId,
        after: Option<BranchId>,
        limit: usize,
    ) -> Result<BranchPage, ReadError> {
        let namespace = namespace.clone();
        let read = |engine: Self| async move {
            let inner = &engine.inner;
            let row = inner.reads.row(&namespace, id)?;
            let limit = limit.clamp(1, inner.options.limits.page_events_max);
            let (branches, more) = inner.reads.branches_after(row.key(), after, limit)?;
            Ok(BranchPage {
                branches,
                active: row.active,
                more,
            })
        };
        self.on(PriorityClass::Short, read).await
    }

    /// Returns the source's own description of an imported conversation, as JSON text; absent for
    /// others.
    ///
    /// # Errors
    /// [`ReadError`] when the conversation does not exist.
    pub async fn source_meta(
        &self,
        namespace: &Namespace,
        id: ConversationId,
    ) -> Result<JsonText, ReadError> {
        let namespace = namespace.clone();
        let read = |engine: Self| async move {
            let inner = &engine.inner;
            if inner.reads.row(&namespace, id)?.head == Revision::NONE {
                // The conversation is damaged from its first event on.
                return Ok(JsonText::default());
            }
            let first = EventRef {
                conversation: id,
                revision: Revision(1),
            };
            let history = inner.reads.history();
            let Some((offset, record)) = history.event(&namespace, first).await? else {
                return Ok(JsonText::default());
            };
            match history.decode(offset, &record).await? {
                EventBody::ConversationCreated(created) => Ok(created.source_meta),
                _ => Ok(JsonText::default()),
            }
        };
        self.on(PriorityClass::Short, read).await
    }

    /// Lists a namespace's conversations, one page at a time.
    ///
    /// # Errors
    /// [`ReadError`] when the store fails.
    pub async fn list(&self, query: ListQuery) -> Result<ConversationPage, ReadError> {
        self.list_where(query, ListFilter::default()).await
    }

    /// Lists the conversations that match a filter. Labels, metadata, parent and the time of the
    /// last update are looked up. For other conditions, one page scans at most 2,000 conversations,
    /// so it may have fewer than `limit`, even none, although more pages follow.
    ///
    /// # Errors
    /// [`ReadError`] when the store fails.
    pub async fn list_where(
        &self,
        query: ListQuery,
        filter: ListFilter,
    ) -> Result<ConversationPage, ReadError> {
        // A filtered list scans more than it returns.
        let looks_at = match filter == ListFilter::default() {
            true => query.limit,
            false => LIST_SCAN_MAX,
        };
        let read = |engine: Self| async move { engine.inner.list(&query, &filter) };
        self.on(priority_for_page(looks_at), read).await
    }

    /// Returns at most `limit` conversations whose UUID or source id begins with a text; if there
    /// are none, those whose UUID or source id ends with it.
    ///
    /// # Errors
    /// [`ReadError`] when the store fails.
    pub async fn find_by_part(
        &self,
        namespace: &Namespace,
        part: &str,
        limit: usize,
    ) -> Result<PartialIdMatches, ReadError> {
        let (namespace, part) = (namespace.clone(), part.to_owned());
        let limit = limit.clamp(1, self.inner.options.limits.page_events_max);
        let by_beginning = {
            let (namespace, part) = (namespace.clone(), part.clone());
            |engine: Self| async move {
                let ids = engine.inner.reads.projections.load();
                let ids = ids.beginning(&namespace, &part, limit + 1)?;
                engine.inner.reads.found_by_part(&namespace, ids, limit)
            }
        };
        let found = self.on(PriorityClass::Short, by_beginning).await?;
        if !found.conversations.is_empty() {
            return Ok(found);
        }
        // Keys are not sorted by suffix: scan all.
        self.on(PriorityClass::Search, |engine: Self| async move {
            let projections = engine.inner.reads.projections.load();
            let is_wanted = || work::check().is_ok();
            let ids = projections.ending(&namespace, &part, limit + 1, is_wanted)?;
            work::check()?;
            engine.inner.reads.found_by_part(&namespace, ids, limit)
        })
        .await
    }

    /// Forks a branch at any revision of its history, within its conversation or into a new one.
    /// History is shared by reference, so this appends one event (plus one each for a system prompt
    /// of a new conversation and an activation), however long the history is.
    ///
    /// # Errors
    /// [`AppendError`]; nothing was appended.
    pub async fn fork(&self, command: ForkCommand) -> Result<ForkOutcome, AppendError> {
        self.fork_with(command, ForkOptions::default()).await
    }

    /// Like [`Self::fork`], with rarely used options.
    ///
    /// # Errors
    /// [`AppendError`]; nothing was appended.
    pub async fn fork_with(
        &self,
        command: ForkCommand,
        options: ForkOptions,
    ) -> Result<ForkOutcome, AppendError> {
        if command.at.is_none()
            && let Some(forked) = self.inner.forked_before(&command).await?
        {
            return Ok(forked);
        }
        let parent = self.inner.reads.branch_at(&command.address)?;
        let at = command.at.unwrap_or(parent.head);
        let (target, events) = match command.into {
            Some(into) => {
                let created = self
                    .inner
                    .reads
                    .created_by_fork(&command, &options, &parent, at)?;
                (into, events_of_new_conversation(&command, into, created))
            }
            None => (
                command.address.conversation,
                events_of_new_branch(&command, &parent, at)?,
            ),
        };
        let events = events
            .into_iter()
            .map(|event| NewEvent {
                actor: command.actor.clone(),
                ..event
            })
            .collect();
        let expected = options.expected_head.map(|head| Expectation {
            conversation: command.address.conversation,
            branch: command.address.branch.clone(),
            expected: ExpectedRevision::Exact(head),
        });
        let append = AppendCommand {
            idempotency_key: command.idempotency_key.clone(),
            expectations: expected.into_iter().collect(),
            ..AppendCommand::new(command.address.namespace.clone(), events)
        };
        match self.append(append).await {
            Ok(outcome) => self
                .inner
                .reads
                .forked(command.address.namespace.key(target), outcome.events),
            // A concurrent call with the same key may have won.
            Err(error) if command.at.is_none() && is_key_conflict(&error) => {
                let before = self.inner.forked_before(&command).await?;
                before.ok_or(error)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the lineage of a branch.
    ///
    /// # Errors
    /// [`ReadError`] when the branch does not exist.
    pub async fn lineage(&self, address: &BranchAddress) -> Result<Lineage, ReadError> {
        let address = address.clone();
        let read = |engine: Self| async move { engine.inner.reads.lineage_of(&address) };
        self.on(PriorityClass::Short, read).await
    }

    /// Compares two branches of a conversation: their common ancestor, and the events that only one
    /// of them has, at most `limit` per side.
    ///
    /// # Errors
    /// [`ReadError`] when one of the branches does not exist.
    pub async fn diff(
        &self,
        namespace: &Namespace,
        id: ConversationId,
        left: Option<&BranchName>,
        right: Option<&BranchName>,
        limit: usize,
        headers_only: bool,
    ) -> Result<BranchDiff, ReadError> {
        let (namespace, left, right) = (namespace.clone(), left.cloned(), right.cloned());
        let read = |engine: Self| async move {
            let sides = (left.as_ref(), right.as_ref());
            engine
                .diff_here(&namespace, id, sides, limit, headers_only)
                .await
        };
        self.on(priority_for_page(limit), read).await
    }

    async fn diff_here(
        &self,
        namespace: &Namespace,
        id: ConversationId,
        (left, right): (Option<&BranchName>, Option<&BranchName>),
        limit: usize,
        headers_only: bool,
    ) -> Result<BranchDiff, ReadError> {
        let inner = &self.inner;
        let history = inner.reads.history();
        let left_branch = inner.reads.branch(namespace, id, left)?;
        let right_branch = inner.reads.branch(namespace, id, right)?;
        let key = namespace.key(id);
        let left_lineage = history.lineage(key, &left_branch)?;
        let right_lineage = history.lineage(key, &right_branch)?;
        let ancestor = common_ancestor(&left_lineage, &right_lineage);
        let mut sides = [Vec::new(), Vec::new()];
        for (side, branch) in sides.iter_mut().zip([&left_branch, &right_branch]) {
            let query = ReadQuery {
                limit: limit as u64 + 1,
                headers_only,
                from: match ancestor {
                    Some((conversation, revision)) if conversation == key => revision.0 + 1,
                    _ => 0,
                },
                ..ReadQuery::all(
                    namespace.clone(),
                    EventSource::Branch {
                        conversation: id,
                        branch: Some(branch.name.clone()),
                    },
                )
            };
            *side = self.read_all(query).await?;
        }
        let truncated = sides
            .iter()
            .any(|side: &Vec<NamedEvent>| side.len() > limit);
        let [mut left, mut right] = sides;
        left.truncate(limit);
        right.truncate(limit);
        Ok(BranchDiff {
            ancestor: ancestor.map(|(conversation, revision)| (conversation.id, revision)),
            left,
            right,
            truncated,
        })
    }
}

impl Inner {
    /// Returns the fork that was created with this idempotency key. The head may have moved since
    /// the fork, so a retry is recognised by its parameters.
    async fn forked_before(
        &self,
        command: &ForkCommand,
    ) -> Result<Option<ForkOutcome>, AppendError> {
        let key = command.idempotency_key.as_ref();
        let recorded = self.recorded_batch(&command.address.namespace, key);
        let Some(recorded) = recorded.await? else {
            return Ok(None);
        };
        let source = command.address.conversation;
        let same = match (recorded.events.first(), command.into) {
            (Some((event, EventBody::BranchForked(forked))), None) => {
                event.conversation == source && forked.name.as_str() == command.name
            }
            (Some((event, EventBody::ConversationCreated(created))), Some(into)) => {
                let parent = created.parent.as_ref();
                event.conversation == into
                    && created.title == command.name
                    && parent.is_some_and(|parent| parent.conversation == source)
            }
            _ => false,
        };
        if !same {
            return Err(Rejection::batch(Rule::IdempotencyConflict).into());
        }
        let target = command.into.unwrap_or(source);
        let target = command.address.namespace.key(target);
        self.reads
            .forked(target, recorded.repeated().events)
            .map(Some)
    }

    pub(super) fn list(
        &self,
        query: &ListQuery,
        filter: &ListFilter,
    ) -> Result<ConversationPage, ReadError> {
        let limit = query.limit.clamp(1, self.options.limits.page_events_max);
        let facets = facets_of(filter);
        let page = ListPage {
            narrowing: ListNarrowing {
                facets: &facets,
                parent: filter.parent,
                updated_from: filter.updated_from,
            },
            namespace: &query.namespace,
            after: query.after,
            limit,
            order: query.order,
            ascending: query.ascending,
            source: query.source.as_deref(),
        };
        let keep = |row: &ConversationRow| filter.lets(row);
        let (rows, next) = self
            .reads
            .projections
            .load()
            .list_where(&page, LIST_SCAN_MAX, &keep)?;
        Ok(ConversationPage {
            conversations: self.reads.summaries(rows)?,
            next,
        })
    }
}

impl ReadPath {
    fn forked(
        &self,
        conversation: ConversationKey,
        events: Vec<AppendedEvent>,
    ) -> Result<ForkOutcome, AppendError> {
        let branch = events.first().map_or(BranchId::MAIN, |event| event.branch);
        let branch = Arc::new(self.history().branch(conversation, branch)?);
        Ok(ForkOutcome {
            conversation: conversation.id,
            branch,
            events,
        })
    }

    /// Returns the first event of a forked conversation.
    fn created_by_fork(
        &self,
        command: &ForkCommand,
        options: &ForkOptions,
        parent: &BranchState,
        at: Revision,
    ) -> Result<ConversationCreated, AppendError> {
        let of = self.row(&command.address.namespace, command.address.conversation)?;
        let mut labels = match options.keep_labels {
            true => of.info.labels.clone(),
            false => Default::default(),
        };
        labels.extend(options.labels.clone());
        let source = match options.keep_source && options.source.is_empty() {
            true => of.info.source.clone(),
            false => options.source.clone(),
        };
        Ok(ConversationCreated {
            title: command.name.clone(),
            config: parent.config.clone(),
            labels,
            parent: Some(ParentRef {
                conversation: command.address.conversation,
                branch: parent.id,
                revision: at,
                call_id: String::new(),
            }),
            shares_history: true,
            source,
            source_id: options.source_id.clone(),
            ..ConversationCreated::default()
        })
    }

    pub(super) fn branches_after(
        &self,
        id: ConversationKey,
        after: Option<BranchId>,
        limit: usize,
    ) -> Result<(Vec<Arc<BranchState>>, bool), ReadError> {
        let mut found = self.projections.load().branches(id, after, limit + 1)?;
        let more = found.len() > limit;
        found.truncate(limit);
        Ok((found.into_iter().map(Arc::new).collect(), more))
    }

    fn found_by_part(
        &self,
        namespace: &Namespace,
        mut ids: Vec<ConversationId>,
        limit: usize,
    ) -> Result<PartialIdMatches, ReadError> {
        let more = ids.len() > limit;
        ids.truncate(limit);
        let rows = ids
            .into_iter()
            .map(|id| self.row(namespace, id))
            .collect::<Result<_, _>>()?;
        Ok(PartialIdMatches {
            conversations: self.summaries(rows)?,
            more,
        })
    }

    fn summaries(&self, rows: Vec<ConversationRow>) -> Result<Vec<ConversationSummary>, ReadError> {
        let with_name = |row: ConversationRow| {
            let active_name = self.active_name(&row)?;
            Ok(summary(row, active_name))
        };
        rows.into_iter().map(with_name).collect()
    }

    fn lineage_of(&self, address: &BranchAddress) -> Result<Lineage, ReadError> {
        let (id, branch) = (address.key(), self.branch_at(address)?);
        let segments = self.history().lineage(id, &branch)?;
        let steps = segments
            .into_iter()
            .map(|segment| LineageStep {
                conversation: segment.conversation.id,
                branch: segment.branch,
                name: segment.name,
                up_to: segment.last,
                forked_at: segment.fork.map_or(Revision::NONE, |fork| fork.revision),
            })
            .collect();
        let children = self.projections.load().children(id)?;
        Ok(Lineage { steps, children })
    }

    /// Returns a branch's state as of a revision. Its name and id are those of the requested
    /// branch.
    pub(super) async fn as_of(
        &self,
        id: ConversationKey,
        branch: &Arc<BranchState>,
        revision: Revision,
    ) -> Result<Arc<BranchState>, ReadError> {
        if revision == branch.head {
            return Ok(Arc::clone(branch));
        }
        self.check_whole(id, revision)?;
        let past = self.history().branch_at(id, branch.id, revision).await?;
        past.map(|past| past.state)
            .ok_or_else(|| ReadError::RevisionNotFound {
                branch: branch.name.to_string(),
                revision,
                head: branch.head,
            })
    }

    fn active_name(&self, row: &ConversationRow) -> Result<BranchName, ReadError> {
        self.history().branch_name(row.key(), row.active)
    }
}

/// Returns the facets that a conversation must have to match a filter.
fn facets_of(filter: &ListFilter) -> Vec<Facet<'_>> {
    let labels = filter.labels.iter();
    let labels = labels.map(|(name, value)| Facet::Label(name, value));
    let metadata = filter.metadata.iter();
    let metadata = metadata.map(|(name, value)| Facet::Metadata(name, value));
    let sealed = (filter.sealed == Some(true)).then_some(Facet::Sealed);
    labels.chain(metadata).chain(sealed).collect()
}

fn summary(row: ConversationRow, active_name: BranchName) -> ConversationSummary {
    ConversationSummary {
        id: row.id,
        info: row.info,
        head: row.head,
        branch_count: row.branch_count,
        active: row.active,
        active_name,
        sealed: row.sealed,
        first_position: row.first_position,
        created_at: row.created_at,
        updated_at: row.updated_at,
        happened_from: row.happened_from,
        happened_to: row.happened_to,
        damage: row.damage,
    }
}

fn events_of_new_branch(
    command: &ForkCommand,
    parent: &BranchState,
    at: Revision,
) -> Result<Vec<NewEvent>, AppendError> {
    let name = BranchName::new(&command.name).map_err(|error| AppendError::Invalid {
        event_index: 0,
        message: error.to_string(),
    })?;
    let forked = EventBody::BranchForked(BranchForked {
        name: name.clone(),
        parent: parent.id,
        fork_revision: at,
        system_prompt: command.system_prompt.clone(),
    });
    let mut events = vec![NewEvent::new(command.address.conversation, forked)];
    if command.activate {
        let activated = NewEvent::new(command.address.conversation, EventBody::BranchActivated);
        events.push(activated.on_branch(name));
    }
    Ok(events)
}

fn is_key_conflict(error: &AppendError) -> bool {
    matches!(error, AppendError::Rejected(of) if of.rule == Rule::IdempotencyConflict)
}

fn events_of_new_conversation(
    command: &ForkCommand,
    into: ConversationId,
    created: ConversationCreated,
) -> Vec<NewEvent> {
    let created = EventBody::ConversationCreated(created);
    let mut events = vec![NewEvent::new(into, created)];
    if !command.system_prompt.is_empty() {
        let prompt = PromptSet {
            id: String::new(),
            content: command.system_prompt.clone(),
        };
        events.push(NewEvent::new(into, EventBody::SystemPromptSet(prompt)));
    }
    events
}

/// Returns the last event that two histories share.
fn common_ancestor(left: &[Segment], right: &[Segment]) -> Option<(ConversationKey, Revision)> {
    // Chains of forks can be long: avoid a quadratic search.
    let theirs: HashMap<_, _> = right
        .iter()
        .map(|theirs| ((theirs.conversation, theirs.branch), theirs.last))
        .collect();
    left.iter().find_map(|ours| {
        let last = theirs.get(&(ours.conversation, ours.branch))?;
        Some((ours.conversation, ours.last.min(*last)))
    })
}
